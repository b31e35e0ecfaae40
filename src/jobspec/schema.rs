//! What may stand where in a job file, and what becomes of it.

/// What becomes of an argument or block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// It is read.
    Taken,
    /// It means something to a scheduler or a server only, so a task cannot tell whether it was there.
    NoEffect,
    /// It would change what the task sees; the text says how to do without.
    Refused(&'static str),
}

use Use::{NoEffect, Refused, Taken};

/// The mend of most refused things.
const REMOVE: Use = Refused("remove it");

/// A block's name, labels and insides.
#[derive(Debug)]
pub(super) struct BlockSchema {
    pub name: &'static str,
    pub labels: usize,
    /// Stands once at most.
    pub single: bool,
    pub becomes: Use,
    pub body: &'static Schema,
}

/// Arguments and blocks of one kind of body.
#[derive(Debug)]
pub(super) struct Schema {
    pub attrs: &'static [(&'static str, Use)],
    pub blocks: &'static [BlockSchema],
    /// Any names are allowed.
    pub free: bool,
}

impl Schema {
    pub fn attr(&self, name: &str) -> Option<Use> {
        self.attrs.iter().find(|(n, _)| *n == name).map(|(_, becomes)| *becomes)
    }

    pub fn block(&self, name: &str) -> Option<&'static BlockSchema> {
        self.blocks.iter().find(|b| b.name == name)
    }
}

/// Keys and values as the user likes.
pub(super) static FREE: Schema = Schema { attrs: &[], blocks: &[], free: true };

const fn once(name: &'static str, body: &'static Schema) -> BlockSchema {
    BlockSchema { name, labels: 0, single: true, becomes: Taken, body }
}

const fn many(name: &'static str, labels: usize, body: &'static Schema) -> BlockSchema {
    BlockSchema { name, labels, single: false, becomes: Taken, body }
}

/// A block that is not read; what it contains is not looked at.
const fn unread(name: &'static str, labels: usize, becomes: Use) -> BlockSchema {
    BlockSchema { name, labels, single: false, becomes, body: &FREE }
}

pub(super) static FILE: Schema = Schema {
    attrs: &[],
    blocks: &[
        many("job", 1, &JOB),
        many("variable", 1, &VARIABLE),
        many("variables", 0, &FREE),
        many("locals", 0, &FREE),
    ],
    free: false,
};

pub(super) static VARIABLE: Schema = Schema {
    attrs: &[("type", Taken), ("default", Taken), ("description", Taken)],
    blocks: &[many("validation", 0, &VALIDATION)],
    free: false,
};

pub(super) static VALIDATION: Schema =
    Schema { attrs: &[("condition", Taken), ("error_message", Taken)], blocks: &[], free: false };

pub(super) static JOB: Schema = Schema {
    attrs: &[
        ("all_at_once", NoEffect),
        ("datacenters", NoEffect),
        ("id", Taken),
        ("name", Taken),
        ("namespace", Taken),
        ("node_pool", NoEffect),
        ("priority", Taken),
        ("region", Taken),
        ("type", Taken),
    ],
    blocks: &[
        many("group", 1, &GROUP),
        many("task", 1, &TASK),
        once("meta", &FREE),
        unread("affinity", 0, NoEffect),
        unread("migrate", 0, NoEffect),
        unread("reschedule", 0, NoEffect),
        unread("spread", 0, NoEffect),
        unread("ui", 0, NoEffect),
        unread("update", 0, NoEffect),
        unread("constraint", 0, REMOVE),
        unread("multiregion", 0, REMOVE),
        unread("parameterized", 0, REMOVE),
        unread("periodic", 0, Refused("remove it and start the job from a timer")),
        unread("secret", 1, REMOVE),
        unread("vault", 0, REMOVE),
    ],
    free: false,
};

pub(super) static GROUP: Schema = Schema {
    attrs: &[
        ("count", Taken),
        ("max_client_disconnect", NoEffect),
        ("max_run_duration", REMOVE),
        ("prevent_reschedule_on_lost", NoEffect),
        ("shutdown_delay", Taken),
        ("stop_after_client_disconnect", NoEffect),
    ],
    blocks: &[
        many("task", 1, &TASK),
        many("network", 0, &NETWORK),
        once("ephemeral_disk", &EPHEMERAL_DISK),
        once("meta", &FREE),
        once("restart", &RESTART),
        unread("affinity", 0, NoEffect),
        unread("disconnect", 0, NoEffect),
        unread("migrate", 0, NoEffect),
        unread("reschedule", 0, NoEffect),
        unread("spread", 0, NoEffect),
        unread("update", 0, NoEffect),
        unread("constraint", 0, REMOVE),
        unread("consul", 0, REMOVE),
        unread("scaling", 0, REMOVE),
        unread("secret", 1, REMOVE),
        unread("service", 0, REMOVE),
        unread("vault", 0, REMOVE),
        unread("volume", 1, REMOVE),
    ],
    free: false,
};

pub(super) static EPHEMERAL_DISK: Schema =
    Schema { attrs: &[("migrate", NoEffect), ("size", Taken), ("sticky", NoEffect)], blocks: &[], free: false };

pub(super) static RESTART: Schema = Schema {
    attrs: &[("attempts", Taken), ("delay", Taken), ("interval", Taken), ("mode", Taken), ("render_templates", Taken)],
    blocks: &[],
    free: false,
};

pub(super) static NETWORK: Schema = Schema {
    attrs: &[("hostname", REMOVE), ("mbits", NoEffect), ("mode", Taken)],
    blocks: &[many("port", 1, &PORT), unread("cni", 0, REMOVE), unread("dns", 0, REMOVE)],
    free: false,
};

pub(super) static PORT: Schema = Schema {
    attrs: &[("host_network", REMOVE), ("ignore_collision", REMOVE), ("static", Taken), ("to", Taken)],
    blocks: &[],
    free: false,
};

pub(super) static TASK: Schema = Schema {
    attrs: &[
        ("driver", Taken),
        ("kill_signal", Taken),
        ("kill_timeout", Taken),
        ("kind", REMOVE),
        ("leader", Taken),
        ("shutdown_delay", Taken),
        ("user", Taken),
    ],
    blocks: &[
        many("artifact", 0, &ARTIFACT),
        many("template", 0, &TEMPLATE),
        once("config", &FREE),
        once("env", &FREE),
        once("lifecycle", &LIFECYCLE),
        once("logs", &LOGS),
        once("meta", &FREE),
        once("resources", &RESOURCES),
        once("restart", &RESTART),
        unread("affinity", 0, NoEffect),
        unread("action", 1, REMOVE),
        unread("constraint", 0, REMOVE),
        unread("consul", 0, REMOVE),
        unread("csi_plugin", 0, REMOVE),
        unread("dispatch_payload", 0, REMOVE),
        unread("identity", 0, REMOVE),
        unread("scaling", 1, REMOVE),
        unread("schedule", 0, REMOVE),
        unread("secret", 1, REMOVE),
        unread("service", 0, REMOVE),
        unread("vault", 0, REMOVE),
        unread("volume_mount", 0, REMOVE),
    ],
    free: false,
};

pub(super) static RESOURCES: Schema = Schema {
    attrs: &[
        ("cores", Taken),
        ("cpu", Taken),
        ("disk", NoEffect),
        ("iops", NoEffect),
        ("memory", Taken),
        ("memory_max", Taken),
        ("secrets", REMOVE),
    ],
    blocks: &[
        unread("device", 1, REMOVE),
        unread("network", 0, Refused("move it to the group")),
        unread("numa", 0, REMOVE),
    ],
    free: false,
};

pub(super) static LOGS: Schema = Schema {
    attrs: &[
        ("compress", Taken),
        ("disabled", Taken),
        ("enabled", Taken),
        ("max_age", Taken),
        ("max_file_size", Taken),
        ("max_files", Taken),
    ],
    blocks: &[],
    free: false,
};

pub(super) static LIFECYCLE: Schema =
    Schema { attrs: &[("hook", Taken), ("sidecar", Taken)], blocks: &[], free: false };

pub(super) static TEMPLATE: Schema = Schema {
    attrs: &[
        ("change_mode", Taken),
        ("change_signal", Taken),
        ("data", Taken),
        ("destination", Taken),
        ("env", Taken),
        ("error_on_missing_key", Taken),
        ("gid", REMOVE),
        ("left_delimiter", Taken),
        ("once", NoEffect),
        ("perms", Taken),
        ("right_delimiter", Taken),
        ("source", Refused("put the text into data, for example with data = file(\"...\")")),
        ("splay", NoEffect),
        ("uid", REMOVE),
        ("vault_grace", NoEffect),
    ],
    blocks: &[unread("wait", 0, NoEffect), unread("change_script", 0, REMOVE)],
    free: false,
};

pub(super) static ARTIFACT: Schema = Schema {
    attrs: &[("chown", Taken), ("destination", Taken), ("insecure", NoEffect), ("mode", Taken), ("source", Taken)],
    blocks: &[unread("headers", 0, REMOVE), unread("options", 0, REMOVE)],
    free: false,
};
