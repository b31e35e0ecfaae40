//! What may stand where in a job file, what it takes, and what becomes of it.
//!
//! All of Nomad's job specification is here; `src/jobspec/tests/keys.rs` compares it with the API's own types, whose names are
//! in `tests/jobfiles/keys.txt`. What its fields are called in JSON is in `src/jobspec/form/types.txt`.

/// What becomes of a key or block.
///
/// What stands inside a block that is not read becomes what the block becomes, except that it may be refused on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// It is read.
    Taken,
    /// `agentbin agent` does it (an update, another number of instances); `run` says that it does not, and goes on.
    Agent,
    /// It means something to a scheduler or a server only, so a task cannot tell whether it was there.
    NoEffect,
    /// It is passed over, and the text says what happens instead.
    Instead(&'static str),
    /// Nomad knows it, and running without it would not be what the file says; the text is the fix.
    Refused(&'static str),
}

use Use::{Agent, Instead, NoEffect, Refused, Taken};

/// What a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    Text,
    Number,
    /// `true` or `false`.
    Flag,
    /// `"1h30m"` or a number of nanoseconds.
    Duration,
    /// A list of strings.
    Texts,
    /// Strings by name.
    Map,
    /// What its reader knows.
    Any,
}

use Takes::{Any, Duration, Flag, Map, Number, Text, Texts};

/// A key of a body.
#[derive(Debug)]
pub(super) struct Key {
    pub name: &'static str,
    pub takes: Takes,
    pub becomes: Use,
}

const fn key(name: &'static str, takes: Takes, becomes: Use) -> Key {
    Key { name, takes, becomes }
}

/// How often a block may stand in a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Often {
    Once,
    Many,
}

use Often::{Many, Once};

/// A block's name, labels and insides.
#[derive(Debug)]
pub(super) struct BlockSchema {
    pub name: &'static str,
    pub labels: usize,
    pub often: Often,
    pub becomes: Use,
    pub body: &'static Schema,
}

const fn block(name: &'static str, labels: usize, often: Often, becomes: Use, body: &'static Schema) -> BlockSchema {
    BlockSchema { name, labels, often, becomes, body }
}

/// Keys and blocks of one kind of body.
#[derive(Debug)]
pub(super) struct Schema {
    pub keys: &'static [Key],
    pub blocks: &'static [BlockSchema],
    /// Any names are allowed.
    pub free: bool,
}

impl Schema {
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|k| k.name == name)
    }

    pub fn block(&self, name: &str) -> Option<&'static BlockSchema> {
        self.blocks.iter().find(|b| b.name == name)
    }

    /// The names of all keys and blocks.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|k| k.name).chain(self.blocks.iter().map(|b| b.name))
    }
}

/// Keys and values as the user likes.
pub(super) static FREE: Schema = Schema { keys: &[], blocks: &[], free: true };

pub(super) static FILE: Schema = Schema {
    keys: &[],
    blocks: &[
        block("job", 1, Many, Taken, &JOB),
        block("variable", 1, Many, Taken, &VARIABLE),
        block("variables", 0, Many, Taken, &FREE),
        block("locals", 0, Many, Taken, &FREE),
    ],
    free: false,
};

pub(super) static VARIABLE: Schema = Schema {
    keys: &[key("type", Any, Taken), key("default", Any, Taken), key("description", Any, Taken)],
    blocks: &[block("validation", 0, Many, Taken, &VALIDATION)],
    free: false,
};

pub(super) static VALIDATION: Schema =
    Schema { keys: &[key("condition", Any, Taken), key("error_message", Any, Taken)], blocks: &[], free: false };

pub(super) static JOB: Schema = Schema {
    keys: &[
        key("all_at_once", Flag, Agent),
        key("datacenters", Texts, Agent),
        key("id", Text, Taken),
        key("name", Text, Taken),
        key("namespace", Text, Taken),
        key("node_pool", Text, Agent),
        key("priority", Number, Agent),
        key("region", Text, Taken),
        key("type", Text, Taken),
    ],
    blocks: &[
        block("affinity", 0, Many, NoEffect, &AFFINITY),
        block("constraint", 0, Many, Taken, &CONSTRAINT),
        block("group", 1, Many, Taken, &GROUP),
        block("meta", 0, Once, Taken, &FREE),
        block("migrate", 0, Once, Agent, &MIGRATE),
        block("multiregion", 0, Once, NoEffect, &MULTIREGION),
        block("parameterized", 0, Once, Taken, &PARAMETERIZED),
        block("periodic", 0, Once, Instead("the job is started once, now"), &PERIODIC),
        block("reschedule", 0, Once, Agent, &RESCHEDULE),
        block("secret", 1, Many, Refused("remove it"), &SECRET),
        block("spread", 0, Many, NoEffect, &SPREAD),
        block("task", 1, Many, Taken, &TASK),
        block("ui", 0, Once, NoEffect, &UI),
        block("update", 0, Once, Agent, &UPDATE),
        block("vault", 0, Once, Refused("remove it"), &VAULT),
    ],
    free: false,
};

pub(super) static GROUP: Schema = Schema {
    keys: &[
        key("count", Number, Taken),
        key("max_client_disconnect", Duration, NoEffect),
        key("max_run_duration", Duration, Refused("use --timeout")),
        key("prevent_reschedule_on_lost", Flag, NoEffect),
        key("shutdown_delay", Duration, Taken),
        key("stop_after_client_disconnect", Duration, NoEffect),
    ],
    blocks: &[
        block("affinity", 0, Many, NoEffect, &AFFINITY),
        block("constraint", 0, Many, Taken, &CONSTRAINT),
        block("consul", 0, Once, NoEffect, &CONSUL),
        block("disconnect", 0, Once, NoEffect, &DISCONNECT),
        block("ephemeral_disk", 0, Once, Taken, &EPHEMERAL_DISK),
        block("meta", 0, Once, Taken, &FREE),
        block("migrate", 0, Once, Agent, &MIGRATE),
        block("network", 0, Many, Taken, &NETWORK),
        block("reschedule", 0, Once, Agent, &RESCHEDULE),
        block("restart", 0, Once, Taken, &RESTART),
        block("scaling", 0, Once, Agent, &SCALING),
        block("secret", 1, Many, Refused("remove it"), &SECRET),
        block("service", 0, Many, Taken, &SERVICE),
        block("spread", 0, Many, NoEffect, &SPREAD),
        block("task", 1, Many, Taken, &TASK),
        block("update", 0, Once, Agent, &UPDATE),
        block("vault", 0, Once, Refused("remove it"), &VAULT),
        block("volume", 1, Many, Taken, &VOLUME),
    ],
    free: false,
};

pub(super) static TASK: Schema = Schema {
    keys: &[
        key("driver", Text, Taken),
        key("kill_signal", Text, Taken),
        key("kill_timeout", Duration, Taken),
        key("kind", Text, Refused("remove it")),
        key("leader", Flag, Taken),
        key("shutdown_delay", Duration, Taken),
        key("user", Text, Taken),
    ],
    blocks: &[
        block("action", 1, Many, Agent, &ACTION),
        block("affinity", 0, Many, NoEffect, &AFFINITY),
        block("artifact", 0, Many, Taken, &ARTIFACT),
        block("config", 0, Once, Taken, &FREE),
        block("constraint", 0, Many, Taken, &CONSTRAINT),
        block("consul", 0, Once, NoEffect, &CONSUL),
        block("csi_plugin", 0, Once, Taken, &CSI_PLUGIN),
        block("dispatch_payload", 0, Once, Taken, &DISPATCH_PAYLOAD),
        block("env", 0, Once, Taken, &FREE),
        block("identity", 0, Many, Instead("the task gets no token"), &IDENTITY),
        block("lifecycle", 0, Once, Taken, &LIFECYCLE),
        block("logs", 0, Once, Taken, &LOGS),
        block("meta", 0, Once, Taken, &FREE),
        block("resources", 0, Once, Taken, &RESOURCES),
        block("restart", 0, Once, Taken, &RESTART),
        block("scaling", 1, Many, Agent, &SCALING),
        block("schedule", 0, Once, Refused("remove it"), &SCHEDULE),
        block("secret", 1, Many, Refused("remove it"), &SECRET),
        block("service", 0, Many, Taken, &SERVICE),
        block("template", 0, Many, Taken, &TEMPLATE),
        block("vault", 0, Once, Refused("remove it"), &VAULT),
        block("volume_mount", 0, Many, Taken, &VOLUME_MOUNT),
    ],
    free: false,
};

pub(super) static AFFINITY: Schema = Schema {
    keys: &[
        key("attribute", Text, Taken),
        key("operator", Text, Taken),
        key("regexp", Text, Taken),
        key("semver", Text, Taken),
        key("set_contains", Text, Taken),
        key("set_contains_all", Text, Taken),
        key("set_contains_any", Text, Taken),
        key("value", Text, Taken),
        key("version", Text, Taken),
        key("weight", Number, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static CONSTRAINT: Schema = Schema {
    keys: &[
        key("attribute", Text, Taken),
        key("distinct_hosts", Flag, Taken),
        key("distinct_property", Text, Taken),
        key("is_not_set", Text, Taken),
        key("is_set", Text, Taken),
        key("operator", Text, Taken),
        key("regexp", Text, Taken),
        key("semver", Text, Taken),
        key("set_contains", Text, Taken),
        key("set_contains_all", Text, Taken),
        key("set_contains_any", Text, Taken),
        key("value", Text, Taken),
        key("version", Text, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static MIGRATE: Schema = Schema {
    keys: &[
        key("health_check", Text, Taken),
        key("healthy_deadline", Duration, Taken),
        key("max_parallel", Number, Taken),
        key("min_healthy_time", Duration, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static MULTIREGION: Schema = Schema {
    keys: &[],
    blocks: &[
        block("region", 1, Many, Taken, &MULTIREGION_REGION),
        block("strategy", 0, Once, Taken, &MULTIREGION_STRATEGY),
    ],
    free: false,
};

pub(super) static PARAMETERIZED: Schema = Schema {
    keys: &[key("meta_optional", Texts, Taken), key("meta_required", Texts, Taken), key("payload", Text, Taken)],
    blocks: &[],
    free: false,
};

pub(super) static PERIODIC: Schema = Schema {
    keys: &[
        key("cron", Text, Taken),
        key("crons", Texts, Taken),
        key("enabled", Flag, Taken),
        key("prohibit_overlap", Flag, Taken),
        key("time_zone", Text, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static RESCHEDULE: Schema = Schema {
    keys: &[
        key("attempts", Number, Taken),
        key("delay", Duration, Taken),
        key("delay_function", Text, Taken),
        key("interval", Duration, Taken),
        key("max_delay", Duration, Taken),
        key("unlimited", Flag, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static SECRET: Schema = Schema {
    keys: &[key("path", Text, Taken), key("provider", Text, Taken)],
    blocks: &[block("config", 0, Once, Taken, &FREE), block("env", 0, Once, Taken, &FREE)],
    free: false,
};

pub(super) static SPREAD: Schema = Schema {
    keys: &[key("attribute", Text, Taken), key("weight", Number, Taken)],
    blocks: &[block("target", 1, Many, Taken, &SPREAD_TARGET)],
    free: false,
};

pub(super) static UI: Schema = Schema {
    keys: &[key("description", Text, Taken)],
    blocks: &[block("link", 0, Many, Taken, &UI_LINK)],
    free: false,
};

pub(super) static UPDATE: Schema = Schema {
    keys: &[
        key("auto_promote", Flag, Taken),
        key("auto_revert", Flag, Taken),
        key("canary", Number, Taken),
        key("health_check", Text, Taken),
        key("healthy_deadline", Duration, Taken),
        key("max_parallel", Number, Taken),
        key("min_healthy_time", Duration, Taken),
        key("progress_deadline", Duration, Taken),
        key("stagger", Duration, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static VAULT: Schema = Schema {
    keys: &[
        key("allow_token_expiration", Flag, Taken),
        key("change_mode", Text, Taken),
        key("change_signal", Text, Taken),
        key("cluster", Text, Taken),
        key("disable_file", Flag, Taken),
        key("env", Flag, Taken),
        key("namespace", Text, Taken),
        key("policies", Texts, Taken),
        key("role", Text, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static CONSUL: Schema = Schema {
    keys: &[key("cluster", Text, Taken), key("namespace", Text, Taken), key("partition", Text, Taken)],
    blocks: &[],
    free: false,
};

pub(super) static DISCONNECT: Schema = Schema {
    keys: &[
        key("lost_after", Duration, Taken),
        key("reconcile", Text, Taken),
        key("replace", Flag, Taken),
        key("stop_on_client_after", Duration, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static EPHEMERAL_DISK: Schema = Schema {
    keys: &[key("migrate", Flag, Agent), key("size", Number, Taken), key("sticky", Flag, Agent)],
    blocks: &[],
    free: false,
};

pub(super) static NETWORK: Schema = Schema {
    keys: &[
        key("cidr", Text, NoEffect),
        key("device", Text, NoEffect),
        key("hostname", Text, Taken),
        key("ip", Text, NoEffect),
        key("mbits", Number, NoEffect),
        key("mode", Text, Taken),
    ],
    blocks: &[
        block("cni", 0, Once, Taken, &CNI),
        block("dns", 0, Once, Taken, &DNS),
        block("port", 1, Many, Taken, &PORT),
        block("reserved_ports", 1, Many, Taken, &PORT),
    ],
    free: false,
};

/// The network of a task's own, which is always the host's: what would say another one has no effect, as with Nomad.
pub(super) static TASK_NETWORK: Schema = Schema {
    keys: &[
        key("cidr", Text, NoEffect),
        key("device", Text, NoEffect),
        key("hostname", Text, NoEffect),
        key("ip", Text, NoEffect),
        key("mbits", Number, NoEffect),
        key("mode", Text, Taken),
    ],
    blocks: &[
        block("cni", 0, Once, NoEffect, &CNI),
        block("dns", 0, Once, NoEffect, &DNS),
        block("port", 1, Many, Taken, &TASK_PORT),
        block("reserved_ports", 1, Many, Taken, &TASK_PORT),
    ],
    free: false,
};

pub(super) static TASK_PORT: Schema = Schema {
    keys: &[
        key(
            "host_network",
            Text,
            Instead("a task's own ports are on the default network; move the network to the group"),
        ),
        key("ignore_collision", Flag, NoEffect),
        key("static", Number, Taken),
        key("to", Number, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static RESTART: Schema = Schema {
    keys: &[
        key("attempts", Number, Taken),
        key("delay", Duration, Taken),
        key("interval", Duration, Taken),
        key("mode", Text, Taken),
        key("render_templates", Flag, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static SCALING: Schema = Schema {
    keys: &[
        key("enabled", Flag, Taken),
        key("max", Number, Taken),
        key("min", Number, Taken),
        key("type", Text, Taken),
    ],
    blocks: &[block("policy", 0, Once, Taken, &FREE)],
    free: false,
};

pub(super) static SERVICE: Schema = Schema {
    keys: &[
        key("address", Text, Taken),
        key("address_mode", Text, Taken),
        key("canary_tags", Texts, Agent),
        key("cluster", Text, NoEffect),
        key("enable_tag_override", Flag, NoEffect),
        key("kind", Text, NoEffect),
        key("name", Text, Taken),
        key("on_update", Text, Taken),
        key("port", Text, Taken),
        key("provider", Text, Taken),
        key("tags", Texts, Taken),
        key("task", Text, Taken),
    ],
    blocks: &[
        block("canary_meta", 0, Once, NoEffect, &FREE),
        block("check", 0, Many, Taken, &CHECK),
        block("check_restart", 0, Once, Taken, &CHECK_RESTART),
        block("connect", 0, Once, Refused("remove it, and reach the other service by its address"), &CONNECT),
        block("identity", 0, Once, Instead("the service gets no token"), &IDENTITY),
        block("meta", 0, Once, Taken, &FREE),
        block("tagged_addresses", 0, Once, Taken, &FREE),
        block("weights", 0, Once, Taken, &SERVICE_WEIGHTS),
    ],
    free: false,
};

pub(super) static VOLUME: Schema = Schema {
    keys: &[
        key("access_mode", Text, Taken),
        key("attachment_mode", Text, Taken),
        key("per_alloc", Flag, Taken),
        key("read_only", Flag, Taken),
        key("source", Text, Taken),
        key(
            "sticky",
            Flag,
            Instead("a host volume stays where it is; not to be had with per_alloc, nor of a CSI volume"),
        ),
        key("type", Text, Taken),
    ],
    blocks: &[block("mount_options", 0, Once, Taken, &MOUNT_OPTIONS)],
    free: false,
};

pub(super) static ACTION: Schema =
    Schema { keys: &[key("args", Texts, Taken), key("command", Text, Taken)], blocks: &[], free: false };

pub(super) static ARTIFACT: Schema = Schema {
    keys: &[
        key("chown", Flag, Taken),
        key("destination", Text, Taken),
        key("insecure", Flag, Taken),
        key("mode", Text, Taken),
        key("source", Text, Taken),
    ],
    blocks: &[block("headers", 0, Once, Taken, &FREE), block("options", 0, Once, Taken, &FREE)],
    free: false,
};

pub(super) static CSI_PLUGIN: Schema = Schema {
    keys: &[
        key("health_timeout", Duration, Taken),
        key("id", Text, Taken),
        key("mount_dir", Text, Taken),
        key("stage_publish_base_dir", Text, Taken),
        key("type", Text, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static DISPATCH_PAYLOAD: Schema = Schema { keys: &[key("file", Text, Taken)], blocks: &[], free: false };

pub(super) static IDENTITY: Schema = Schema {
    keys: &[
        key("aud", Texts, Taken),
        key("change_mode", Text, Taken),
        key("change_signal", Text, Taken),
        key("env", Flag, Taken),
        key("extra_claims", Texts, Taken),
        key("file", Flag, Taken),
        key("filepath", Text, Taken),
        key("name", Text, Taken),
        key("service_name", Text, Taken),
        key("ttl", Duration, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static LIFECYCLE: Schema =
    Schema { keys: &[key("hook", Text, Taken), key("sidecar", Flag, Taken)], blocks: &[], free: false };

pub(super) static LOGS: Schema = Schema {
    keys: &[
        key("compress", Flag, Taken),
        key("disabled", Flag, Taken),
        key("enabled", Flag, Taken),
        key("max_age", Duration, Taken),
        key("max_file_size", Number, Taken),
        key("max_files", Number, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static RESOURCES: Schema = Schema {
    keys: &[
        key("cores", Number, Taken),
        key("cpu", Number, Taken),
        key("disk", Number, NoEffect),
        key("iops", Number, NoEffect),
        key("memory", Number, Taken),
        key("memory_max", Number, Taken),
        key("secrets", Number, Taken),
    ],
    blocks: &[
        block("device", 1, Many, Refused("remove it"), &DEVICE),
        block("network", 0, Many, Taken, &TASK_NETWORK),
        block("numa", 0, Once, Refused("remove it"), &NUMA),
    ],
    free: false,
};

pub(super) static SCHEDULE: Schema =
    Schema { keys: &[], blocks: &[block("cron", 0, Once, Taken, &SCHEDULE_CRON)], free: false };

pub(super) static TEMPLATE: Schema = Schema {
    keys: &[
        key("change_mode", Text, Taken),
        key("change_signal", Text, Taken),
        key("data", Text, Taken),
        key("destination", Text, Taken),
        key("env", Flag, Taken),
        key("error_on_missing_key", Flag, Taken),
        key("gid", Number, Taken),
        key("left_delimiter", Text, Taken),
        key("once", Flag, Taken),
        key("perms", Text, Taken),
        key("right_delimiter", Text, Taken),
        key("source", Text, Taken),
        key("splay", Duration, Taken),
        key("uid", Number, Taken),
        key("vault_grace", Duration, NoEffect),
    ],
    blocks: &[block("change_script", 0, Once, Taken, &CHANGE_SCRIPT), block("wait", 0, Once, NoEffect, &WAIT)],
    free: false,
};

pub(super) static VOLUME_MOUNT: Schema = Schema {
    keys: &[
        key("destination", Text, Taken),
        key("propagation_mode", Text, Taken),
        key("read_only", Flag, Taken),
        key("selinux_label", Text, Taken),
        key("volume", Text, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static MULTIREGION_REGION: Schema = Schema {
    keys: &[key("count", Number, Taken), key("datacenters", Texts, Taken), key("node_pool", Text, Taken)],
    blocks: &[block("meta", 0, Once, Taken, &FREE)],
    free: false,
};

pub(super) static MULTIREGION_STRATEGY: Schema =
    Schema { keys: &[key("max_parallel", Number, Taken), key("on_failure", Text, Taken)], blocks: &[], free: false };

pub(super) static SPREAD_TARGET: Schema = Schema { keys: &[key("percent", Number, Taken)], blocks: &[], free: false };

pub(super) static UI_LINK: Schema =
    Schema { keys: &[key("label", Text, Taken), key("url", Text, Taken)], blocks: &[], free: false };

pub(super) static CNI: Schema = Schema { keys: &[key("args", Map, Taken)], blocks: &[], free: false };

pub(super) static DNS: Schema = Schema {
    keys: &[key("options", Texts, Taken), key("searches", Texts, Taken), key("servers", Texts, Taken)],
    blocks: &[],
    free: false,
};

pub(super) static PORT: Schema = Schema {
    keys: &[
        key("host_network", Text, Taken),
        key("ignore_collision", Flag, Taken),
        key("static", Number, Taken),
        key("to", Number, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static CHECK: Schema = Schema {
    keys: &[
        key("address_mode", Text, Taken),
        key("advertise", Text, NoEffect),
        key("args", Texts, Taken),
        key("body", Text, Taken),
        key("command", Text, Taken),
        key("expose", Flag, Taken),
        key("failures_before_critical", Number, Taken),
        key("failures_before_warning", Number, Taken),
        key("grpc_service", Text, Taken),
        key("grpc_use_tls", Flag, Taken),
        key("initial_status", Text, Taken),
        key("interval", Duration, Taken),
        key("method", Text, Taken),
        key("name", Text, Taken),
        key("notes", Text, Taken),
        key("on_update", Text, Taken),
        key("path", Text, Taken),
        key("port", Text, Taken),
        key("protocol", Text, Taken),
        key("success_before_passing", Number, Taken),
        key("task", Text, Taken),
        key("timeout", Duration, Taken),
        key("tls_server_name", Text, Taken),
        key("tls_skip_verify", Flag, Taken),
        key("type", Text, Taken),
    ],
    blocks: &[block("check_restart", 0, Once, Taken, &CHECK_RESTART), block("header", 0, Once, Taken, &FREE)],
    free: false,
};

pub(super) static CHECK_RESTART: Schema = Schema {
    keys: &[key("grace", Duration, Taken), key("ignore_warnings", Flag, Taken), key("limit", Number, Taken)],
    blocks: &[],
    free: false,
};

pub(super) static CONNECT: Schema = Schema {
    keys: &[key("native", Flag, NoEffect)],
    blocks: &[
        block("gateway", 0, Once, NoEffect, &GATEWAY),
        block("sidecar_service", 0, Once, NoEffect, &SIDECAR_SERVICE),
        block("sidecar_task", 0, Once, NoEffect, &SIDECAR_TASK),
    ],
    free: false,
};

pub(super) static SERVICE_WEIGHTS: Schema =
    Schema { keys: &[key("passing", Number, Taken), key("warning", Number, Taken)], blocks: &[], free: false };

pub(super) static MOUNT_OPTIONS: Schema =
    Schema { keys: &[key("fs_type", Text, Taken), key("mount_flags", Texts, Taken)], blocks: &[], free: false };

pub(super) static DEVICE: Schema = Schema {
    keys: &[key("count", Number, Taken)],
    blocks: &[block("affinity", 0, Many, Taken, &AFFINITY), block("constraint", 0, Many, Taken, &CONSTRAINT)],
    free: false,
};

pub(super) static NUMA: Schema =
    Schema { keys: &[key("affinity", Text, Taken), key("devices", Texts, Taken)], blocks: &[], free: false };

pub(super) static SCHEDULE_CRON: Schema = Schema {
    keys: &[key("end", Text, Taken), key("start", Text, Taken), key("timezone", Text, Taken)],
    blocks: &[],
    free: false,
};

pub(super) static CHANGE_SCRIPT: Schema = Schema {
    keys: &[
        key("args", Texts, Taken),
        key("command", Text, Taken),
        key("fail_on_error", Flag, Taken),
        key("run_on_first_render", Flag, Taken),
        key("timeout", Duration, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static WAIT: Schema =
    Schema { keys: &[key("max", Duration, Taken), key("min", Duration, Taken)], blocks: &[], free: false };

pub(super) static GATEWAY: Schema = Schema {
    keys: &[],
    blocks: &[
        block("ingress", 0, Once, Taken, &INGRESS),
        block("mesh", 0, Once, Taken, &MESH),
        block("proxy", 0, Once, Taken, &GATEWAY_PROXY),
        block("terminating", 0, Once, Taken, &TERMINATING),
    ],
    free: false,
};

pub(super) static SIDECAR_SERVICE: Schema = Schema {
    keys: &[key("disable_default_tcp_check", Flag, Taken), key("port", Text, Taken), key("tags", Texts, Taken)],
    blocks: &[block("meta", 0, Once, Taken, &FREE), block("proxy", 0, Once, Taken, &PROXY)],
    free: false,
};

pub(super) static SIDECAR_TASK: Schema = Schema {
    keys: &[
        key("driver", Text, Taken),
        key("kill_signal", Text, Taken),
        key("kill_timeout", Duration, Taken),
        key("name", Text, Taken),
        key("shutdown_delay", Duration, Taken),
        key("user", Text, Taken),
    ],
    blocks: &[
        block("config", 0, Once, Taken, &FREE),
        block("env", 0, Once, Taken, &FREE),
        block("identity", 0, Many, Taken, &IDENTITY),
        block("logs", 0, Once, Taken, &LOGS),
        block("meta", 0, Once, Taken, &FREE),
        block("resources", 0, Once, Taken, &RESOURCES),
        block("volume_mount", 0, Many, Taken, &VOLUME_MOUNT),
    ],
    free: false,
};

pub(super) static INGRESS: Schema = Schema {
    keys: &[],
    blocks: &[block("listener", 0, Many, Taken, &INGRESS_LISTENER), block("tls", 0, Once, Taken, &GATEWAY_TLS)],
    free: false,
};

pub(super) static MESH: Schema = Schema { keys: &[], blocks: &[], free: false };

pub(super) static GATEWAY_PROXY: Schema = Schema {
    keys: &[
        key("connect_timeout", Duration, Taken),
        key("envoy_dns_discovery_type", Text, Taken),
        key("envoy_gateway_bind_tagged_addresses", Flag, Taken),
        key("envoy_gateway_no_default_bind", Flag, Taken),
    ],
    blocks: &[
        block("config", 0, Once, Taken, &FREE),
        block("envoy_gateway_bind_addresses", 1, Many, Taken, &GATEWAY_BIND_ADDRESS),
    ],
    free: false,
};

pub(super) static TERMINATING: Schema =
    Schema { keys: &[], blocks: &[block("service", 0, Many, Taken, &LINKED_SERVICE)], free: false };

pub(super) static PROXY: Schema = Schema {
    keys: &[key("local_service_address", Text, Taken), key("local_service_port", Number, Taken)],
    blocks: &[
        block("config", 0, Once, Taken, &FREE),
        block("expose", 0, Once, Taken, &EXPOSE),
        block("transparent_proxy", 0, Once, Taken, &TRANSPARENT_PROXY),
        block("upstreams", 0, Many, Taken, &UPSTREAM),
    ],
    free: false,
};

pub(super) static INGRESS_LISTENER: Schema = Schema {
    keys: &[key("port", Number, Taken), key("protocol", Text, Taken)],
    blocks: &[block("service", 0, Many, Taken, &INGRESS_SERVICE)],
    free: false,
};

pub(super) static GATEWAY_TLS: Schema = Schema {
    keys: &[
        key("cipher_suites", Texts, Taken),
        key("enabled", Flag, Taken),
        key("tls_max_version", Text, Taken),
        key("tls_min_version", Text, Taken),
    ],
    blocks: &[block("sds", 0, Once, Taken, &GATEWAY_SDS)],
    free: false,
};

pub(super) static GATEWAY_BIND_ADDRESS: Schema =
    Schema { keys: &[key("address", Text, Taken), key("port", Number, Taken)], blocks: &[], free: false };

pub(super) static LINKED_SERVICE: Schema = Schema {
    keys: &[
        key("ca_file", Text, Taken),
        key("cert_file", Text, Taken),
        key("key_file", Text, Taken),
        key("name", Text, Taken),
        key("sni", Text, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static EXPOSE: Schema =
    Schema { keys: &[], blocks: &[block("path", 0, Many, Taken, &EXPOSE_PATH)], free: false };

pub(super) static TRANSPARENT_PROXY: Schema = Schema {
    keys: &[
        key("exclude_inbound_ports", Texts, Taken),
        key("exclude_outbound_cidrs", Texts, Taken),
        key("exclude_outbound_ports", Texts, Taken),
        key("exclude_uids", Texts, Taken),
        key("no_dns", Flag, Taken),
        key("outbound_port", Number, Taken),
        key("uid", Text, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static UPSTREAM: Schema = Schema {
    keys: &[
        key("datacenter", Text, Taken),
        key("destination_name", Text, Taken),
        key("destination_namespace", Text, Taken),
        key("destination_partition", Text, Taken),
        key("destination_peer", Text, Taken),
        key("destination_type", Text, Taken),
        key("local_bind_address", Text, Taken),
        key("local_bind_port", Number, Taken),
        key("local_bind_socket_mode", Text, Taken),
        key("local_bind_socket_path", Text, Taken),
    ],
    blocks: &[block("config", 0, Once, Taken, &FREE), block("mesh_gateway", 0, Once, Taken, &MESH_GATEWAY)],
    free: false,
};

pub(super) static INGRESS_SERVICE: Schema = Schema {
    keys: &[
        key("hosts", Texts, Taken),
        key("max_concurrent_requests", Number, Taken),
        key("max_connections", Number, Taken),
        key("max_pending_requests", Number, Taken),
        key("name", Text, Taken),
    ],
    blocks: &[
        block("request_headers", 0, Once, Taken, &HEADER_MODIFIERS),
        block("response_headers", 0, Once, Taken, &HEADER_MODIFIERS),
        block("tls", 0, Once, Taken, &GATEWAY_TLS),
    ],
    free: false,
};

pub(super) static GATEWAY_SDS: Schema =
    Schema { keys: &[key("cert_resource", Text, Taken), key("cluster_name", Text, Taken)], blocks: &[], free: false };

pub(super) static EXPOSE_PATH: Schema = Schema {
    keys: &[
        key("listener_port", Text, Taken),
        key("local_path_port", Number, Taken),
        key("path", Text, Taken),
        key("protocol", Text, Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static MESH_GATEWAY: Schema = Schema { keys: &[key("mode", Text, Taken)], blocks: &[], free: false };

pub(super) static HEADER_MODIFIERS: Schema = Schema {
    keys: &[key("remove", Texts, Taken)],
    blocks: &[block("add", 0, Once, Taken, &FREE), block("set", 0, Once, Taken, &FREE)],
    free: false,
};
