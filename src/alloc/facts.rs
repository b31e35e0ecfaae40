//! Facts of the machine that are node attributes, under Nomad's names, read from files of the kernel.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::cgroup::Regime;
use crate::spec::collections::BTreeMap;
use crate::spec::{IntoMap as _, Signal};
use crate::sys::{features, owned};

/// The Nomad release whose job files, drivers and templates are implemented, which is what a job file asks for with
/// `${attr.nomad.version}`. `tests/jobfiles/go.mod` names the same version.
pub const NOMAD_VERSION: &str = "1.11.3";

/// Most bytes of a file of the kernel, or of the system's release: `/proc/cpuinfo` of the largest machine has some MiB.
const LONGEST_FILE: u64 = 16 << 20;
/// Most memory nodes of a kernel (`CONFIG_NODES_SHIFT`).
const MOST_MEMORY_NODES: u32 = 1024;

/// A text file's content, if the file exists.
pub(super) fn text(path: impl AsRef<Path>) -> Option<String> {
    let bytes = File::open(path).and_then(|file| owned::bounded(file, LONGEST_FILE)).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Passes every attribute to `set`; an empty value means no attribute. `storage` is the directory of allocations, which may not
/// exist yet.
pub(super) fn tell(storage: Option<&Path>, cgroups: Regime, set: &mut dyn FnMut(&str, String)) {
    set("nomad.version", NOMAD_VERSION.to_owned());
    set("cpu.modelname", text("/proc/cpuinfo").and_then(|text| model_name(&text)).unwrap_or_default());
    set("kernel.landlock", features::landlock().map(|version| format!("v{version}")).unwrap_or_default());
    set("os.signals", Signal::names().collect::<Vec<_>>().join(","));
    if cgroups != Regime::Off {
        // As agents before Nomad 1.7 wrote it.
        set("unique.cgroup.mountpoint", "/sys/fs/cgroup".to_owned());
    }
    memory_nodes(set);
    if let Some(storage) = storage.and_then(existing) {
        if let Ok(stat) = rustix::fs::statvfs(&storage) {
            set("unique.storage.bytestotal", stat.f_blocks.saturating_mul(stat.f_frsize).to_string());
            // Nomad reported it until 1.9.
            set("unique.storage.bytesfree", stat.f_bavail.saturating_mul(stat.f_frsize).to_string());
        }
        let table = text("/proc/self/mountinfo").unwrap_or_default();
        set("unique.storage.volume", volume(&table, &storage).unwrap_or_default());
    }
}

/// The directory, or its nearest existing ancestor.
fn existing(dir: &Path) -> Option<PathBuf> {
    dir.ancestors().find_map(|dir| dir.canonicalize().ok())
}

fn model_name(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The processors of each memory node.
fn memory_nodes(set: &mut dyn FnMut(&str, String)) {
    let base = Path::new("/sys/devices/system/node");
    let online = text(base.join("online")).and_then(|text| text.trim().parse::<crate::spec::CpuSet>().ok());
    let Some(online) = online else { return };
    set("numa.node.count", online.len().to_string());
    for node in online.iter().take_while(|node| *node < MOST_MEMORY_NODES) {
        let cores = text(base.join(format!("node{node}/cpulist"))).unwrap_or_default();
        set(&format!("numa.node{node}.cores"), cores.trim().to_owned());
    }
}

/// The source of the file system on which a directory lies (`proc_pid_mountinfo(5)`): that of the deepest mount point, and of
/// several mounts there the last one.
fn volume(table: &str, dir: &Path) -> Option<String> {
    let mounts = table.lines().filter_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let point = PathBuf::from(unescaped(mount.split(' ').nth(4)?));
        let source = unescaped(file_system.split(' ').nth(1)?);
        dir.starts_with(&point).then_some((point.components().count(), source))
    });
    mounts.max_by_key(|(depth, _)| *depth).map(|(_, source)| source)
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescaped(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(field.to_owned(), |text, (written, meant)| text.replace(written, meant))
}

/// The name and the version of the system, from the files in which Nomad looks for them, in its order.
pub(super) fn system(read: &dyn Fn(&str) -> Option<String>) -> (String, String) {
    let file = |path: &str| read(path).filter(|text| text.len() > 4);
    let pairs = |text: Option<String>| -> BTreeMap<String, String> {
        let text = text.unwrap_or_default();
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs.map(|(key, value)| (key.to_owned(), value.trim_matches(['"', '\'']).to_owned())).into_map()
    };
    if let Some(text) = file("/etc/oracle-release").or_else(|| file("/etc/enterprise-release")) {
        return ("oracle".to_owned(), release(&text));
    }
    if let Some(text) = file("/etc/debian_version") {
        let mut derived = pairs(read("/etc/lsb-release"));
        let id = derived.remove("DISTRIB_ID").unwrap_or_default();
        if matches!(id.as_str(), "Ubuntu" | "LinuxMint") {
            return (id.to_lowercase(), derived.remove("DISTRIB_RELEASE").unwrap_or_default());
        }
        let name = if file("/usr/bin/raspi-config").is_some() { "raspbian" } else { "debian" };
        return (name.to_owned(), text.lines().next().unwrap_or_default().trim().to_owned());
    }
    if let Some(text) = file("/etc/redhat-release").or_else(|| file("/etc/system-release")) {
        let text = text.to_lowercase();
        let first = text.split_whitespace().next().unwrap_or_default();
        let name = if text.contains("red hat") { "redhat" } else { first };
        return (name.to_owned(), release(&text));
    }
    let mut own = pairs(read("/etc/os-release").or_else(|| read("/usr/lib/os-release")));
    (own.remove("ID").unwrap_or_default(), own.remove("VERSION_ID").unwrap_or_default())
}

/// The version in a text such as `CentOS Stream release 9`.
fn release(text: &str) -> String {
    let text = text.to_lowercase();
    if text.contains("rawhide") {
        return "rawhide".to_owned();
    }
    let version = text.split("release ").skip(1).find(|rest| rest.starts_with(|c: char| c.is_ascii_alphanumeric()));
    let is_part = |(at, c): &(usize, char)| *at == 0 || c.is_ascii_digit() || *c == '.';
    version.unwrap_or_default().chars().enumerate().take_while(is_part).map(|(_, c)| c).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volume_is_what_is_mounted_furthest_down() {
        let table = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:2 / /var/lib rw shared:1 - xfs /dev/sd\\040b rw\n\
            3 1 0:9 / /var/lib rw - tmpfs above rw\n4 1 0:8 / /var/lib/agentbin2 rw - tmpfs other rw\nbroken\n";
        assert_eq!(volume(table, Path::new("/var/lib/agentbin")).as_deref(), Some("above"));
        assert_eq!(volume(table, Path::new("/srv")).as_deref(), Some("/dev/sda1"));
        assert_eq!(
            volume(&table.replace("above", "/dev/sd\\040b"), Path::new("/var/lib")).as_deref(),
            Some("/dev/sd b")
        );
        assert_eq!(volume("", Path::new("/")), None);
        assert_eq!(existing(Path::new("/proc/self/no/such")), Path::new("/proc/self").canonicalize().ok());
    }

    #[test]
    fn j2_the_system_has_nomads_name_for_it() {
        let id = ("/etc/os-release", "ID=rhel\nVERSION_ID=\"9.3\"\n");
        let debian = ("/etc/debian_version", "12.5\n");
        let redhat = |text| ("/etc/redhat-release", text);
        let ubuntu = ("/etc/lsb-release", "DISTRIB_ID=Ubuntu\nDISTRIB_RELEASE=\"24.04\"\n");
        let rhel = redhat("Red Hat Enterprise Linux release 9.3 (Plow)\n");
        let oracle = ("/etc/oracle-release", "Oracle Linux Server release 8.9\n");
        let amazon = ("/etc/system-release", "Amazon Linux release 2023.3.20240131 (Amazon Linux)\n");
        for (files, expected) in [
            (&[id, rhel][..], ("redhat", "9.3")),
            (&[id, rhel, oracle], ("oracle", "8.9")),
            (&[id, redhat("CentOS Stream release 9\n")], ("centos", "9")),
            (&[id, redhat("Fedora release 41 (Rawhide)\n")], ("fedora", "rawhide")),
            (&[id, amazon], ("amazon", "2023.3.20240131")),
            (&[id, debian], ("debian", "12.5")),
            (&[id, debian, ubuntu], ("ubuntu", "24.04")),
            (&[debian, ("/usr/bin/raspi-config", "#!/bin/sh\n")], ("raspbian", "12.5")),
            (&[id], ("rhel", "9.3")),
            (&[("/usr/lib/os-release", id.1)], ("rhel", "9.3")),
            (&[], ("", "")),
        ] {
            let read = |path: &str| {
                let found = files.iter().find(|(name, _)| *name == path);
                found.map(|(_, text)| (*text).to_owned())
            };
            let (name, version) = system(&read);
            assert_eq!((name.as_str(), version.as_str()), expected, "{files:?}");
        }
    }

    #[test]
    fn the_model_is_a_line_of_cpuinfo() {
        assert_eq!(model_name("processor\t: 0\nmodel name\t: A: B @ 2GHz \n").as_deref(), Some("A: B @ 2GHz"));
        assert_eq!(model_name("processor\t: 0\n"), None);
    }

    /// J2: the version that job files see is the release that the tests compare with.
    #[test]
    fn j2_the_version_is_that_of_the_nomad_that_the_tests_use() {
        for module in [include_str!("../../tests/jobfiles/go.mod"), include_str!("../../tests/constraints/go.mod")] {
            assert!(module.contains(&format!("github.com/hashicorp/nomad v{NOMAD_VERSION}\n")), "{module}");
        }
    }
}
