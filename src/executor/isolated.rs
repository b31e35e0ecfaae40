//! From a launch to an isolated process: own root, namespaces, few devices.

use crate::container::{Bind, Config, DeviceNode, RootConfig, Rootless};
use crate::spec::LaunchSpec;

/// Set unless this process is root: isolation goes through a user namespace then.
pub(super) fn rootless() -> Option<Rootless> {
    (!rustix::process::geteuid().is_root())
        .then(|| Rootless { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() })
}

/// What the shim is told for a task with a root of its own.
pub(super) fn config(spec: &LaunchSpec) -> Config {
    Config {
        command: spec.command.clone(),
        args: spec.args.clone(),
        env: spec.env.clone(),
        user: spec.user.clone(),
        host_ids: super::universal::host_user(&spec.user),
        work_dir: spec.work_dir.clone().into(),
        root: Some(RootConfig {
            task_dir: spec.task_dir.clone(),
            binds: spec
                .mounts
                .iter()
                .map(|m| Bind {
                    target: m.task_path.clone().into(),
                    source: m.host_path.clone(),
                    readonly: m.readonly,
                    propagation: m.propagation,
                })
                .collect(),
            devices: spec
                .devices
                .iter()
                .map(|d| DeviceNode { target: d.task_path.clone().into(), source: d.host_path.clone() })
                .collect(),
            no_pivot_root: spec.no_pivot_root,
        }),
        capabilities: spec.capabilities.clone(),
        no_new_privs: spec.no_new_privs,
        oom_score_adj: 0,
        network_namespace: super::universal::network_namespace(spec),
        rootless: rootless(),
        session: None,
    }
}
