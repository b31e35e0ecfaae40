//! Jobs in the JSON of Nomad's HTTP API, as `nomad job run -output` writes them and as a server answers.
//!
//! They become the same body as a written job file. Strings are literal there, durations are nanoseconds, and null,
//! zero and empty mean that nothing was given. What a field is called in a job file is in the table of types.

use super::ast::{Attr, Block, Body, Expr};
use super::diag::{Diagnostic, Result};
use super::form::types::{self, Field, Kind, Type};
use super::json::{Member, Node, NodeKind};
use super::section::Sink;
use super::value::{Number, Value};
use crate::spec::Pos;

/// Numbers whose zero is written by servers where nothing was given. Another number that may be null is meant as it is.
const ZERO_IS_NOTHING: &[(&str, &str)] = &[
    ("NetworkResource", "MBits"),
    ("Resources", "Cores"),
    ("Resources", "DiskMB"),
    ("Resources", "IOPS"),
    ("Resources", "MemoryMaxMB"),
    ("Resources", "SecretsMB"),
    ("Template", "VaultGrace"),
    ("DisconnectStrategy", "LostAfter"),
    ("Job", "Priority"),
];

/// Flags and texts whose `false` and emptiness say something.
const MEANT: &[(&str, &str)] = &[
    ("DisconnectStrategy", "Replace"),
    ("LogConfig", "Enabled"),
    ("PeriodicConfig", "Enabled"),
    ("ReschedulePolicy", "Unlimited"),
    ("ScalingPolicy", "Enabled"),
    ("Template", "EmbeddedTmpl"),
    ("Vault", "Env"),
];

/// Blocks that mean something by being there, also without a value in them.
const PRESENT: [&str; 7] = [
    "ConsulConnect",
    "ConsulGateway",
    "ConsulMeshConfigEntry",
    "ConsulSidecarService",
    "ParameterizedJobConfig",
    "SidecarTask",
    "Vault",
];

/// What servers write beside the types of the API's client.
const BESIDE: &[(&str, &str)] =
    &[("Job", "ConsulToken"), ("Job", "VaultToken"), ("Service", "Id"), ("Service", "Namespace")];

/// The members of the job, if this is the API's form: `{"Job": {...}}`, or the job alone.
pub(super) fn job_of(node: &Node) -> Option<(&Pos, &[Member])> {
    let NodeKind::Object(members) = &node.kind else { return None };
    if let Some(Member { pos, node: Node { kind: NodeKind::Object(job), .. }, .. }) =
        members.iter().find(|m| m.name == "Job")
    {
        return Some((pos, job));
    }
    members.iter().any(|m| m.name == "ID" || m.name == "TaskGroups").then_some((&node.pos, members))
}

/// A file with only this job in it.
pub(super) fn body(pos: &Pos, members: &[Member], sink: &Sink) -> Result<Body> {
    let text = |field: &str| match members.iter().find(|m| m.name.eq_ignore_ascii_case(field)).map(|m| &m.node.kind) {
        Some(NodeKind::Scalar(Value::String(s))) if !s.is_empty() => Some(s.clone()),
        _ => None,
    };
    let label = text("ID").or_else(|| text("Name")).unwrap_or_default();
    let body = object(members, types::of("Job"), sink)?;
    Ok(Body { attrs: Vec::new(), blocks: vec![block("job", pos, vec![label], body)] })
}

fn block(kind: &str, pos: &Pos, labels: Vec<String>, body: Body) -> Block {
    Block { kind: kind.to_owned(), pos: pos.clone(), labels, body }
}

fn attr(name: &str, pos: &Pos, node: &Node) -> Attr {
    Attr { name: name.to_owned(), pos: pos.clone(), value: Expr::literal(&node.pos, node.clone().into_value()) }
}

fn object(members: &[Member], of: &'static Type, sink: &Sink) -> Result<Body> {
    let mut out = Body::default();
    // Cores say how much CPU there is; a server writes a zero beside them.
    let has_cores =
        of.name == "Resources" && members.iter().any(|m| m.name.eq_ignore_ascii_case("Cores") && !is_nothing(&m.node));
    for member in members {
        match of.field(&member.name) {
            Some(field) if has_cores && field.name == "CPU" && is_nothing(&member.node) => {}
            Some(field) => add(&mut out, member, field, of, sink)?,
            None if of.name == "Job" && is_among(BESIDE, of, &member.name) => server(member, sink),
            None if is_among(BESIDE, of, &member.name) => {}
            None => out.attrs.push(attr(&member.name, &member.pos, &member.node)),
        }
    }
    Ok(out)
}

/// What only a server sets.
fn server(member: &Member, sink: &Sink) {
    if !is_nothing(&member.node) {
        sink.warn(&member.pos, format!("{} has no effect with agentbin run", member.name));
    }
}

fn add(out: &mut Body, member: &Member, field: &Field, of: &'static Type, sink: &Sink) -> Result<()> {
    let Member { pos, node, .. } = member;
    let known = match (of.name, field.name, field.written) {
        ("Task", "Identity", _) if !says_something(node) => return Ok(()),
        ("Task", "Identity", _) => "identity",
        ("NetworkResource", "ReservedPorts", _) => "port",
        (_, _, Some(known)) => known,
        ("Job", _, None) => {
            server(member, sink);
            return Ok(());
        }
        (_, _, None) => return Ok(()),
    };
    match field.kind {
        _ if matches!(node.kind, NodeKind::Scalar(Value::Null)) => {}
        Kind::One(inner) if !is_given(node, inner) => {}
        Kind::One(inner) => {
            out.blocks.push(block(known, pos, Vec::new(), object(inside(node)?, types::of(inner), sink)?));
        }
        Kind::Many(inner) => {
            let inner = types::of(inner);
            // A server says of a task's own service whose it is, and of its checks.
            let is_own = (of.name, field.name) == ("Task", "Services");
            for (item, pos) in items(node, pos) {
                let members = inside(item)?;
                let labels = label(members, inner, known == "scaling");
                let mut body = object(members, inner, sink)?;
                if is_own {
                    let checks = body.blocks.iter_mut().filter(|inner| inner.kind == "check");
                    for attrs in checks.map(|check| &mut check.body.attrs).chain([&mut body.attrs]) {
                        attrs.retain(|attr| attr.name != "task");
                    }
                }
                out.blocks.push(block(known, pos, labels, body));
            }
        }
        Kind::Named(inner) => {
            for Member { name, pos, node } in inside(node)? {
                let body = object(inside(node)?, types::of(inner), sink)?;
                out.blocks.push(block(known, pos, vec![name.clone()], body));
            }
        }
        Kind::Strings | Kind::Lists | Kind::Any if known == "args" => out.attrs.push(attr(known, pos, node)),
        Kind::Strings | Kind::Lists | Kind::Any if inside(node)?.is_empty() => {}
        Kind::Strings | Kind::Lists | Kind::Any => {
            let attrs = inside(node)?.iter().map(|m| attr(&m.name, &m.pos, &m.node)).collect();
            out.blocks.push(block(known, pos, Vec::new(), Body { attrs, blocks: Vec::new() }));
        }
        _ if is_meant(node, field, of) => out.attrs.push(attr(known, pos, node)),
        _ => {}
    }
    Ok(())
}

/// The label of one of several blocks; a scaling policy of a task has it from its type.
fn label(members: &[Member], of: &Type, is_scaling: bool) -> Vec<String> {
    let text = |field: &str| {
        let member = members.iter().find(|m| m.name.eq_ignore_ascii_case(field));
        member.and_then(|m| m.node.clone().into_value().to_text()).unwrap_or_default()
    };
    match of.label() {
        Some(field) => vec![text(field.name)],
        None if is_scaling => vec![text("Type")],
        None => Vec::new(),
    }
}

/// Whether an argument is given: it is neither zero nor empty, or that is meant.
fn is_meant(node: &Node, field: &Field, of: &Type) -> bool {
    if (of.name, field.name) == ("Service", "Cluster") {
        // There is one everywhere else than in the enterprise's edition.
        return !matches!(&node.kind, NodeKind::Scalar(Value::String(name)) if name.is_empty() || name == "default");
    }
    if !is_nothing(node) || is_among(MEANT, of, field.name) {
        return true;
    }
    matches!(field.kind, Kind::Int(..) | Kind::Duration) && field.nullable && !is_among(ZERO_IS_NOTHING, of, field.name)
}

fn is_among(list: &[(&str, &str)], of: &Type, field: &str) -> bool {
    list.iter().any(|(name, known)| *name == of.name && known.eq_ignore_ascii_case(field))
}

/// Whether a block is there: a client writes null for what was not given, and a server an object that is zero throughout.
fn is_given(node: &Node, of: &str) -> bool {
    let NodeKind::Object(members) = &node.kind else { return true };
    let is_null = |m: &Member| matches!(m.node.kind, NodeKind::Scalar(Value::Null));
    PRESENT.contains(&of) || !is_nothing(node) || members.iter().any(is_null) && !members.iter().all(is_null)
}

/// Whether a task's identity is another one than each task has.
fn says_something(identity: &Node) -> bool {
    let NodeKind::Object(members) = &identity.kind else { return true };
    let default = |m: &Member| matches!(m.name.as_str(), "Name" | "Audience") || is_nothing(&m.node);
    !members.iter().all(default)
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
fn is_nothing(node: &Node) -> bool {
    match &node.kind {
        NodeKind::Scalar(Value::Null | Value::Bool(false) | Value::Number(Number::Int(0))) => true,
        NodeKind::Scalar(Value::String(s)) => s.is_empty(),
        NodeKind::Scalar(_) => false,
        NodeKind::List(items) => items.is_empty(),
        NodeKind::Object(members) => members.iter().all(|m| is_nothing(&m.node)),
    }
}
