//! Jobs in the JSON of Nomad's HTTP API, as `nomad job run -output` writes them.
//!
//! They become the same body as a written job file. Strings are literal there, durations are nanoseconds, and null,
//! zero and empty mean that nothing was given.

use super::ast::{Attr, Block, Body, Expr};
use super::diag::{Diagnostic, Result};
use super::json::{Member, Node, NodeKind};
use super::section::Sink;
use super::value::{Number, Value};
use crate::spec::Pos;

/// What a member of an API object is in a job file.
#[derive(Clone, Copy)]
enum Form {
    /// An argument; zero and empty mean that it was not given.
    Arg(&'static str),
    /// An argument whose zero counts.
    Exact(&'static str),
    /// A block or a list of blocks.
    Block(&'static str, Fields),
    /// A list of blocks with the label in a member of this name.
    Named(&'static str, &'static str, Fields),
    /// Keys and values as the user likes.
    Map(&'static str),
    /// Something that is refused or has no effect as a whole, with this many labels.
    Whole(&'static str, usize),
    /// A block that means something by being there, also without a value in it.
    Present(&'static str, Fields),
    /// Known; what the block around it says holds for it too.
    Unread,
    /// Set by servers.
    Server,
}

type Fields = &'static [(&'static str, Form)];

use Form::{Arg, Block as Nested, Exact, Map, Named, Present, Server, Unread, Whole};

const JOB: Fields = &[
    ("ID", Arg("id")),
    ("Name", Arg("name")),
    ("Type", Arg("type")),
    ("Region", Arg("region")),
    ("Namespace", Arg("namespace")),
    ("Priority", Arg("priority")),
    ("AllAtOnce", Arg("all_at_once")),
    ("Datacenters", Arg("datacenters")),
    ("NodePool", Arg("node_pool")),
    ("Meta", Map("meta")),
    ("TaskGroups", Named("group", "Name", GROUP)),
    ("Affinities", Whole("affinity", 0)),
    ("Constraints", Nested("constraint", CONSTRAINT)),
    ("Migrate", Whole("migrate", 0)),
    ("Multiregion", Whole("multiregion", 0)),
    ("ParameterizedJob", Present("parameterized", PARAMETERIZED)),
    ("Periodic", Whole("periodic", 0)),
    ("Reschedule", Whole("reschedule", 0)),
    ("Spreads", Whole("spread", 0)),
    ("UI", Whole("ui", 0)),
    ("Update", Whole("update", 0)),
    ("ConsulNamespace", Server),
    ("ConsulToken", Server),
    ("CreateIndex", Server),
    ("DispatchIdempotencyToken", Server),
    ("Dispatched", Server),
    ("JobModifyIndex", Server),
    ("ModifyIndex", Server),
    ("NomadTokenID", Server),
    ("ParentID", Server),
    ("Payload", Server),
    ("Stable", Server),
    ("Status", Server),
    ("StatusDescription", Server),
    ("Stop", Server),
    ("SubmitTime", Server),
    ("VaultNamespace", Server),
    ("VaultToken", Server),
    ("Version", Server),
    ("VersionTag", Server),
];

const GROUP: Fields = &[
    ("Count", Exact("count")),
    ("MaxClientDisconnect", Arg("max_client_disconnect")),
    ("MaxRunDuration", Arg("max_run_duration")),
    ("PreventRescheduleOnLost", Arg("prevent_reschedule_on_lost")),
    ("ShutdownDelay", Arg("shutdown_delay")),
    ("StopAfterClientDisconnect", Arg("stop_after_client_disconnect")),
    ("EphemeralDisk", Nested("ephemeral_disk", EPHEMERAL_DISK)),
    ("Meta", Map("meta")),
    ("Networks", Nested("network", NETWORK)),
    ("RestartPolicy", Nested("restart", RESTART)),
    ("Tasks", Named("task", "Name", TASK)),
    ("Affinities", Whole("affinity", 0)),
    ("Constraints", Nested("constraint", CONSTRAINT)),
    ("Consul", Whole("consul", 0)),
    ("Disconnect", Whole("disconnect", 0)),
    ("Migrate", Whole("migrate", 0)),
    ("ReschedulePolicy", Whole("reschedule", 0)),
    ("Scaling", Whole("scaling", 0)),
    ("Services", Nested("service", SERVICE)),
    ("Spreads", Whole("spread", 0)),
    ("Update", Whole("update", 0)),
    ("Volumes", Whole("volume", 1)),
];

const CONSTRAINT: Fields = &[("LTarget", Arg("attribute")), ("Operand", Arg("operator")), ("RTarget", Arg("value"))];

const PARAMETERIZED: Fields =
    &[("MetaOptional", Arg("meta_optional")), ("MetaRequired", Arg("meta_required")), ("Payload", Arg("payload"))];

const CONNECT: Fields = &[
    ("Gateway", Present("gateway", GATEWAY)),
    ("Native", Unread),
    ("SidecarService", Unread),
    ("SidecarTask", Unread),
];

const GATEWAY: Fields = &[("Ingress", Unread), ("Mesh", Unread), ("Proxy", Unread), ("Terminating", Unread)];

/// Of a service only what a run refuses; the block as a whole says that nothing is registered.
const SERVICE: Fields = &[
    ("Connect", Present("connect", CONNECT)),
    ("Name", Arg("name")),
    ("Address", Unread),
    ("AddressMode", Unread),
    ("CanaryMeta", Unread),
    ("CanaryTags", Unread),
    ("CheckRestart", Unread),
    ("Checks", Unread),
    ("Cluster", Unread),
    ("EnableTagOverride", Unread),
    ("Id", Unread),
    ("Identity", Unread),
    ("Kind", Unread),
    ("Meta", Unread),
    ("Namespace", Unread),
    ("OnUpdate", Unread),
    ("PortLabel", Unread),
    ("Provider", Unread),
    ("TaggedAddresses", Unread),
    ("Tags", Unread),
    ("TaskName", Unread),
    ("Weights", Unread),
];

const EPHEMERAL_DISK: Fields = &[("SizeMB", Arg("size")), ("Sticky", Arg("sticky")), ("Migrate", Arg("migrate"))];

const NETWORK: Fields = &[
    ("Mode", Arg("mode")),
    ("MBits", Arg("mbits")),
    ("Hostname", Arg("hostname")),
    ("DNS", Whole("dns", 0)),
    ("CNI", Whole("cni", 0)),
    ("ReservedPorts", Named("port", "Label", PORT)),
    ("DynamicPorts", Named("port", "Label", PORT)),
    ("CIDR", Server),
    ("Device", Server),
    ("IP", Server),
];

const PORT: Fields = &[
    ("Value", Arg("static")),
    ("To", Arg("to")),
    ("HostNetwork", Arg("host_network")),
    ("IgnoreCollision", Arg("ignore_collision")),
];

const RESTART: Fields = &[
    ("Attempts", Exact("attempts")),
    ("Delay", Exact("delay")),
    ("Interval", Exact("interval")),
    ("Mode", Arg("mode")),
    ("RenderTemplates", Arg("render_templates")),
];

const TASK: Fields = &[
    ("Driver", Arg("driver")),
    ("KillSignal", Arg("kill_signal")),
    ("KillTimeout", Exact("kill_timeout")),
    ("Kind", Arg("kind")),
    ("Leader", Arg("leader")),
    ("ShutdownDelay", Arg("shutdown_delay")),
    ("User", Arg("user")),
    ("Config", Map("config")),
    ("Env", Map("env")),
    ("Meta", Map("meta")),
    ("Artifacts", Nested("artifact", ARTIFACT)),
    ("Lifecycle", Nested("lifecycle", &[("Hook", Arg("hook")), ("Sidecar", Arg("sidecar"))])),
    ("LogConfig", Nested("logs", LOGS)),
    ("Resources", Nested("resources", RESOURCES)),
    ("RestartPolicy", Nested("restart", RESTART)),
    ("Templates", Nested("template", TEMPLATE)),
    ("Actions", Whole("action", 1)),
    ("Affinities", Whole("affinity", 0)),
    ("CSIPluginConfig", Whole("csi_plugin", 0)),
    ("Constraints", Nested("constraint", CONSTRAINT)),
    ("Consul", Whole("consul", 0)),
    ("DispatchPayload", Whole("dispatch_payload", 0)),
    ("Identities", Whole("identity", 0)),
    ("Identity", Whole("identity", 0)),
    ("ScalingPolicies", Whole("scaling", 1)),
    ("Schedule", Whole("schedule", 0)),
    ("Secrets", Whole("secret", 1)),
    ("Services", Nested("service", SERVICE)),
    ("Vault", Whole("vault", 0)),
    ("VolumeMounts", Whole("volume_mount", 0)),
];

const LOGS: Fields = &[
    ("Disabled", Arg("disabled")),
    ("Enabled", Exact("enabled")),
    ("MaxFileSizeMB", Arg("max_file_size")),
    ("MaxFiles", Arg("max_files")),
];

const RESOURCES: Fields = &[
    ("CPU", Arg("cpu")),
    ("Cores", Arg("cores")),
    ("DiskMB", Arg("disk")),
    ("IOPS", Arg("iops")),
    ("MemoryMB", Arg("memory")),
    ("MemoryMaxMB", Arg("memory_max")),
    ("SecretsMB", Arg("secrets")),
    ("Devices", Whole("device", 1)),
    ("NUMA", Whole("numa", 0)),
    ("Networks", Nested("network", NETWORK)),
];

const TEMPLATE: Fields = &[
    ("ChangeMode", Arg("change_mode")),
    ("ChangeSignal", Arg("change_signal")),
    ("DestPath", Arg("destination")),
    ("EmbeddedTmpl", Exact("data")),
    ("Envvars", Arg("env")),
    ("ErrMissingKey", Arg("error_on_missing_key")),
    ("Gid", Arg("gid")),
    ("LeftDelim", Arg("left_delimiter")),
    ("Once", Arg("once")),
    ("Perms", Arg("perms")),
    ("RightDelim", Arg("right_delimiter")),
    ("SourcePath", Arg("source")),
    ("Splay", Arg("splay")),
    ("Uid", Arg("uid")),
    ("VaultGrace", Arg("vault_grace")),
    ("ChangeScript", Whole("change_script", 0)),
    ("Wait", Whole("wait", 0)),
];

const ARTIFACT: Fields = &[
    ("Chown", Arg("chown")),
    ("GetterInsecure", Arg("insecure")),
    ("GetterMode", Arg("mode")),
    ("GetterSource", Arg("source")),
    ("RelativeDest", Arg("destination")),
    ("GetterHeaders", Whole("headers", 0)),
    ("GetterOptions", Whole("options", 0)),
];

/// The members of the job, if this is the API's form: `{"Job": {...}}`, or the job alone.
pub(super) fn job_of(node: &Node) -> Option<(&Pos, &[Member])> {
    let NodeKind::Object(members) = &node.kind else { return None };
    if let [Member { name, pos, node: Node { kind: NodeKind::Object(job), .. } }] = members.as_slice()
        && name == "Job"
    {
        return Some((pos, job));
    }
    members.iter().any(|m| m.name == "ID" || m.name == "TaskGroups").then_some((&node.pos, members))
}

/// A file with only this job in it.
pub(super) fn body(pos: &Pos, members: &[Member], sink: &Sink) -> Result<Body> {
    let text = |field: &str| match members.iter().find(|m| m.name == field).map(|m| &m.node.kind) {
        Some(NodeKind::Scalar(Value::String(s))) if !s.is_empty() => Some(s.clone()),
        _ => None,
    };
    let label = text("ID").or_else(|| text("Name")).unwrap_or_default();
    let body = object(members, JOB, None, sink)?;
    Ok(Body { attrs: Vec::new(), blocks: vec![block("job", pos, vec![label], body)] })
}

fn block(kind: &str, pos: &Pos, labels: Vec<String>, body: Body) -> Block {
    Block { kind: kind.to_owned(), pos: pos.clone(), labels, body }
}

fn attr(name: &str, pos: &Pos, node: &Node) -> Attr {
    Attr { name: name.to_owned(), pos: pos.clone(), value: Expr::literal(&node.pos, node.clone().into_value()) }
}

fn object(members: &[Member], fields: Fields, label_field: Option<&str>, sink: &Sink) -> Result<Body> {
    let mut out = Body::default();
    for Member { name, pos, node } in members.iter().filter(|m| label_field != Some(m.name.as_str())) {
        let null = matches!(node.kind, NodeKind::Scalar(Value::Null));
        let form = fields.iter().find(|(field, _)| field == name).map(|(_, form)| *form);
        match form {
            None => out.attrs.push(attr(name, pos, node)),
            Some(Exact(known)) if !null => out.attrs.push(attr(known, pos, node)),
            Some(Present(known, fields)) if !null => {
                out.blocks.push(block(known, pos, Vec::new(), object(inside(node)?, fields, None, sink)?));
            }
            Some(Unread | Present(..)) => {}
            Some(_) if nothing(node) => {}
            Some(Arg(known) | Exact(known)) => out.attrs.push(attr(known, pos, node)),
            Some(Server) => sink.warn(pos, format!("{name} has no effect with agentbin run")),
            Some(Whole(known, labels)) => {
                out.blocks.push(block(known, pos, vec![String::new(); labels], Body::default()));
            }
            Some(Map(known)) => {
                let attrs = inside(node)?.iter().map(|m| attr(&m.name, &m.pos, &m.node)).collect();
                out.blocks.push(block(known, pos, Vec::new(), Body { attrs, blocks: Vec::new() }));
            }
            Some(Nested(known, fields)) => {
                for (item, pos) in items(node, pos) {
                    let body = object(inside(item)?, fields, None, sink)?;
                    out.blocks.push(block(known, pos, Vec::new(), body));
                }
            }
            Some(Named(known, field, fields)) => {
                for (item, pos) in items(node, pos) {
                    let members = inside(item)?;
                    let label = members.iter().find(|m| m.name == field);
                    let label = label.and_then(|m| m.node.clone().into_value().to_text()).unwrap_or_default();
                    let body = object(members, fields, Some(field), sink)?;
                    out.blocks.push(block(known, pos, vec![label], body));
                }
            }
        }
    }
    Ok(out)
}

fn items<'n>(node: &'n Node, pos: &'n Pos) -> Vec<(&'n Node, &'n Pos)> {
    match &node.kind {
        NodeKind::List(items) => items.iter().map(|item| (item, &item.pos)).collect(),
        _ => vec![(node, pos)],
    }
}

fn inside(node: &Node) -> Result<&[Member]> {
    match &node.kind {
        NodeKind::Object(members) => Ok(members),
        _ => Err(Diagnostic::new(&node.pos, "an object is needed here; write { ... }")),
    }
}

/// Null, zero, empty, or made of nothing else.
fn nothing(node: &Node) -> bool {
    match &node.kind {
        NodeKind::Scalar(Value::Null | Value::Bool(false) | Value::Number(Number::Int(0))) => true,
        NodeKind::Scalar(Value::String(s)) => s.is_empty(),
        NodeKind::Scalar(_) => false,
        NodeKind::List(items) => items.is_empty(),
        NodeKind::Object(members) => members.iter().all(|m| nothing(&m.node)),
    }
}
