//! Translates a launch into an isolated process: own root, namespaces, few devices.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use super::ExecutorError;
use crate::cgroup::{DeviceAccess, DeviceKind, DeviceRule};
use crate::container::{
    Bind, Config, DEVICES, DeviceNode, Guard, RootConfig, Rootless, Subordinate, Trusted, host_user,
};
use crate::spec::{Device, HostIds, LaunchSpec};

/// The terminals of `/dev/pts`, `/dev/ptmx`, and tunnels, for which programs make the node themselves.
const MORE_DEVICES: [(u32, Option<u32>); 3] = [(136, None), (5, Some(2)), (10, Some(200))];

/// Set unless this process is root: isolation then uses a user namespace.
///
/// # Errors
/// Without root: when this range of subordinate ids does not belong to this user.
pub(super) fn rootless(host_ids: Option<HostIds>) -> Result<Option<Rootless>, ExecutorError> {
    if rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let find = |inside| {
        let subordinate = Subordinate::of_this_user().map_err(|error| error.to_string())?;
        subordinate.ids(inside).ok_or_else(|| "its line of /etc/subuid or /etc/subgid is gone".to_owned())
    };
    let ids = host_ids.map(find).transpose();
    let ids = ids.map_err(|why| ExecutorError::System(format!("find the task's subordinate ids: {why}")))?;
    Ok(Some(Rootless { uid, gid, ids }))
}

/// The shim's configuration for a task with its own root.
///
/// # Errors
/// As [`rootless`].
pub(super) fn config(spec: &LaunchSpec) -> Result<Config, ExecutorError> {
    let id_range = spec.host_ids.filter(|_| spec.user_namespace);
    let rootless = rootless(id_range)?;
    let host_ids = host_user(&spec.user);
    let neighbours = super::universal::neighbours(spec);
    // Without root the range's ids belong to other users on the host.
    let trusted = Trusted::of(host_ids.as_ref(), id_range.filter(|_| rootless.is_none()));
    let look = |neighbours| Guard::look(&spec.task_dir, &trusted, neighbours);
    Ok(Config {
        command: spec.command.clone(),
        guard: neighbours.map(look),
        neighbours,
        args: spec.args.clone(),
        env: spec.env.clone(),
        user: spec.user.clone(),
        host_ids,
        init: spec.init,
        host_users: spec.host_users,
        work_dir: spec.work_dir.clone().into(),
        root: Some(RootConfig {
            task_dir: spec.task_dir.clone(),
            binds: spec
                .mounts
                .iter()
                .zip(0u32..)
                .map(|(m, number)| Bind {
                    target: m.task_path.clone().into(),
                    source: m.host_path.clone(),
                    readonly: m.readonly,
                    propagation: m.propagation,
                    of_host: number < spec.host_mounts,
                    identity: m.identity,
                })
                .collect(),
            devices: spec
                .devices
                .iter()
                .map(|d| DeviceNode { target: d.task_path.clone().into(), source: d.host_path.clone() })
                .collect(),
            no_pivot_root: spec.no_pivot_root,
            masks: spec.masks,
            filled: spec.filled_root,
        }),
        capabilities: spec.capabilities.clone(),
        no_new_privs: spec.no_new_privs,
        seccomp: spec.seccomp.clone(),
        limits: spec.limits.clone(),
        own: spec.own,
        // Without root and with a single user, the task is in a user namespace anyway.
        user_namespace: spec.user_namespace && rootless.is_none_or(|rootless| rootless.ids.is_some()),
        id_range,
        unveil: spec.unveil.clone(),
        oom_score_adj: 0,
        network_namespace: super::universal::network_namespace(spec),
        rootless,
        outlives: spec.outlive.is_some(),
        session: None,
    })
}

/// The devices that every task may use, and permission to make nodes for any device: a node alone does not permit opening it.
pub(super) fn default_devices() -> Vec<DeviceRule> {
    let make = |kind| DeviceRule { kind, major: None, minor: None, access: DeviceAccess::MKNOD };
    let nodes = DEVICES.iter().map(|(_, major, minor)| (*major, Some(*minor)));
    let allow =
        |(major, minor)| DeviceRule { kind: DeviceKind::Char, major: Some(major), minor, access: DeviceAccess::ALL };
    let made = [make(DeviceKind::Char), make(DeviceKind::Block)];
    made.into_iter().chain(nodes.chain(MORE_DEVICES).map(allow)).collect()
}

/// The devices that this task may use: the default ones and those of its launch.
pub(super) fn devices(spec: &LaunchSpec) -> Result<Vec<DeviceRule>, ExecutorError> {
    let own = spec.devices.iter().map(rule).collect::<Result<Vec<_>, _>>()?;
    Ok(default_devices().into_iter().chain(own).collect())
}

fn rule(device: &Device) -> Result<DeviceRule, ExecutorError> {
    let path = device.host_path.display();
    let cannot = |cause: &str| format!("failed to make device out for {path}: {cause}");
    let access = DeviceAccess::from_letters(&device.cgroup_permissions).ok_or_else(|| {
        let letters = &device.cgroup_permissions;
        ExecutorError::Invalid(cannot(&format!("permissions {letters:?} may have the letters r, w and m only")))
    })?;
    let stat = device.host_path.metadata().map_err(|e| ExecutorError::System(cannot(&e.to_string())))?;
    let kind = match stat.file_type() {
        t if t.is_block_device() => DeviceKind::Block,
        t if t.is_char_device() => DeviceKind::Char,
        _ => return Err(ExecutorError::Invalid(cannot("it is not a device"))),
    };
    let (major, minor) = (rustix::fs::major(stat.rdev()), rustix::fs::minor(stat.rdev()));
    Ok(DeviceRule { kind, major: Some(major), minor: Some(minor), access })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_device(host_path: &str, permissions: &str) -> LaunchSpec {
        let device =
            Device { task_path: "/dev/x".into(), host_path: host_path.into(), cgroup_permissions: permissions.into() };
        LaunchSpec { devices: vec![device], ..LaunchSpec::default() }
    }

    #[test]
    fn b2_every_task_may_use_the_default_devices_and_its_own() {
        let rules = devices(&with_device("/dev/null", "r")).unwrap();
        let text: Vec<String> = rules.iter().map(ToString::to_string).collect();
        let expected = [
            "c *:* m",
            "b *:* m",
            "c 1:3 rwm",
            "c 1:5 rwm",
            "c 1:7 rwm",
            "c 1:8 rwm",
            "c 1:9 rwm",
            "c 5:0 rwm",
            "c 136:* rwm",
            "c 5:2 rwm",
            "c 10:200 rwm",
            "c 1:3 r",
        ];
        assert_eq!(text, expected);
    }

    #[test]
    fn b2_a_device_that_is_none_is_refused() {
        for (path, permissions, why) in [
            ("/no/such/device", "", "failed to make device out for /no/such/device: No such file"),
            ("/proc/self/stat", "rw", "it is not a device"),
            ("/dev/null", "rwx", "permissions \"rwx\" may have"),
        ] {
            let error = devices(&with_device(path, permissions)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
