//! Determines from the mounts whether tasks use cgroup v1, v2 or none.

use std::path::{Path, PathBuf};

/// Which kind of cgroup tree holds tasks. Decided once, from what is mounted at the cgroup root (`/sys/fs/cgroup`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Regime {
    /// A tmpfs with one hierarchy per controller set. Hybrid (v2 on a sub-directory beside them) counts as this.
    V1,
    /// The unified tree, mounted at the cgroup root itself.
    V2,
    /// Neither: tasks run without cgroups.
    Off,
}

/// One mounted cgroup tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// v1 controllers bound to it, `name=systemd` for a named one; empty for v2.
    pub controllers: Vec<String>,
    /// Where it is mounted, absolute.
    pub mount_point: PathBuf,
}

impl Hierarchy {
    /// Whether `controller` is bound to this v1 hierarchy.
    #[must_use]
    pub fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|c| c == controller)
    }
}

/// The result of [`scan`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounts {
    /// The decision.
    pub regime: Regime,
    /// v1: every hierarchy mounted directly below the root; v2: the root; off: nothing.
    pub hierarchies: Vec<Hierarchy>,
    /// The unified tree beside those of v1, without controllers, if it is mounted directly below the root. Our tasks are not in it;
    /// container engines also put containers there.
    pub beside: Option<PathBuf>,
}

/// Mount options of a v1 hierarchy that name no controller (cgroup-v1/cgroups.rst, `cgroup1_show_options`).
const NOT_A_CONTROLLER: &[&str] = &[
    "rw",
    "ro",
    "none",
    "all",
    "noprefix",
    "clone_children",
    "cpuset_v2_mode",
    "xattr",
    "favordynmods",
    "nofavordynmods",
    "seclabel",
];

struct MountLine<'a> {
    device: &'a str,
    mount_point: PathBuf,
    fs_type: &'a str,
    super_options: &'a str,
}

/// Decides the regime from the text of `/proc/self/mountinfo` for the cgroup root `root`.
///
/// Of several mounts on the same mount point the last one is visible. v1 hierarchies mounted elsewhere (a container's copy, a
/// private mount) are not counted. A tmpfs without any hierarchy below is [`Regime::Off`]. Source: proc(5).
#[must_use]
pub fn scan(mountinfo: &str, root: &Path) -> Mounts {
    let mounts: Vec<MountLine<'_>> = mountinfo.lines().filter_map(parse_line).collect();
    let regime = match mounts.iter().rev().find(|m| m.mount_point == root).map(|m| m.fs_type) {
        Some("cgroup2") => Regime::V2,
        Some("tmpfs") => Regime::V1,
        _ => Regime::Off,
    };
    let hierarchies = match regime {
        Regime::V2 => vec![Hierarchy { controllers: Vec::new(), mount_point: root.to_owned() }],
        Regime::V1 => v1_hierarchies(&mounts, root),
        Regime::Off => Vec::new(),
    };
    let regime = if hierarchies.is_empty() { Regime::Off } else { regime };
    let beside = |m: &&MountLine<'_>| m.fs_type == "cgroup2" && m.mount_point.parent() == Some(root);
    let beside = mounts.iter().find(beside).filter(|_| regime == Regime::V1).map(|m| m.mount_point.clone());
    Mounts { regime, hierarchies, beside }
}

fn v1_hierarchies(mounts: &[MountLine<'_>], root: &Path) -> Vec<Hierarchy> {
    let mut devices = Vec::new();
    let mut found: Vec<Hierarchy> = Vec::new();
    for mount in mounts.iter().filter(|m| m.fs_type == "cgroup" && m.mount_point.parent() == Some(root)) {
        let controllers: Vec<String> = mount
            .super_options
            .split(',')
            .filter(|o| !NOT_A_CONTROLLER.contains(o) && !o.starts_with("release_agent=") && !o.is_empty())
            .map(str::to_owned)
            .collect();
        if controllers.is_empty() || devices.contains(&mount.device) {
            continue;
        }
        devices.push(mount.device);
        found.retain(|h| h.mount_point != mount.mount_point);
        found.push(Hierarchy { controllers, mount_point: mount.mount_point.clone() });
    }
    found
}

/// Parses a line such as `31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - tmpfs tmpfs rw,mode=755`
fn parse_line(line: &str) -> Option<MountLine<'_>> {
    let (mount, source) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(2);
    let (device, _inner_root, mount_point) = (mount.next()?, mount.next()?, mount.next()?);
    let mut source = source.split(' ');
    let (fs_type, _device_name, super_options) = (source.next()?, source.next()?, source.next().unwrap_or(""));
    Some(MountLine { device, mount_point: unescape(mount_point), fs_type, super_options })
}

/// mountinfo writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt as _;
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let escaped = (first == b'\\').then(|| tail.get(..3)).flatten();
        let value = escaped.and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u8::from_str_radix(d, 8).ok());
        bytes.push(value.unwrap_or(first));
        rest = if value.is_some() { &tail[3..] } else { tail };
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "/sys/fs/cgroup";

    fn names(mounts: &Mounts) -> Vec<String> {
        mounts.hierarchies.iter().map(|h| h.controllers.join("+")).collect()
    }

    #[test]
    fn c1_hybrid_counts_as_v1() {
        let text = "\
22 1 0:20 / /proc rw,relatime - proc proc rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
        let mounts = scan(text, Path::new(ROOT));
        assert_eq!(mounts.regime, Regime::V1);
        assert_eq!(names(&mounts), ["cpu", "cpuset", "memory", "freezer", "name=systemd"]);
        assert_eq!(mounts.hierarchies[3].mount_point, Path::new("/sys/fs/cgroup/freezer"));
        assert_eq!(mounts.beside.as_deref(), Some(Path::new("/sys/fs/cgroup/unified")));
    }

    #[test]
    fn c1_debian_style_co_mounts_and_options() {
        let text = "\
25 22 0:22 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:9 - tmpfs tmpfs ro,size=4096k,nr_inodes=1024,mode=755
26 25 0:23 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate
27 25 0:24 / /sys/fs/cgroup/systemd rw,nosuid shared:11 - cgroup cgroup rw,xattr,release_agent=/lib/systemd/systemd-cgroups-agent,name=systemd
30 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:14 - cgroup cgroup rw,cpu,cpuacct
31 25 0:28 / /sys/fs/cgroup/net_cls,net_prio rw,nosuid shared:15 - cgroup cgroup rw,net_cls,net_prio
32 25 0:29 /docker/ab /sys/fs/cgroup/my\\040cpuset rw shared:16 - cgroup cgroup rw,cpuset,clone_children
40 22 0:27 / /var/lib/x/sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
";
        let mounts = scan(text, Path::new(ROOT));
        assert_eq!(mounts.regime, Regime::V1);
        assert_eq!(names(&mounts), ["name=systemd", "cpu+cpuacct", "net_cls+net_prio", "cpuset"]);
        assert_eq!(mounts.hierarchies[3].mount_point, Path::new("/sys/fs/cgroup/my cpuset"));
        assert!(mounts.hierarchies[1].has("cpuacct") && !mounts.hierarchies[1].has("cpua"));
    }

    #[test]
    fn c1_v2_only_at_the_root_itself() {
        let v2 =
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";
        let mounts = scan(v2, Path::new(ROOT));
        assert_eq!((mounts.regime, mounts.hierarchies.len()), (Regime::V2, 1));
        assert_eq!(mounts.hierarchies[0].mount_point, Path::new(ROOT));
        let elsewhere = "30 23 0:26 / /mnt/cgroup2 rw - cgroup2 cgroup2 rw\n";
        assert_eq!(scan(elsewhere, Path::new(ROOT)).regime, Regime::Off);
    }

    #[test]
    fn c1_nothing_junk_and_stacked_mounts() {
        assert_eq!(scan("", Path::new(ROOT)).regime, Regime::Off);
        assert_eq!(scan("a b c\n - \n1 2 - x\n", Path::new(ROOT)).regime, Regime::Off);
        let bare_tmpfs = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n";
        assert_eq!(scan(bare_tmpfs, Path::new(ROOT)).regime, Regime::Off);
        let over = format!("{bare_tmpfs}32 31 0:40 / /sys/fs/cgroup rw - cgroup2 none rw\n");
        assert_eq!(scan(&over, Path::new(ROOT)).regime, Regime::V2);
    }
}
