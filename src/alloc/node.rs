//! What is known of this machine: the `node.*`, `attr.*` and `meta.*` that job files may refer to.

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::OnceLock;

use super::facts;
use crate::cgroup::Regime;
use crate::driver::{Attribute, Fingerprint};
use crate::executor::Compute;
use crate::spec::CpuSet;
use crate::spec::collections::BTreeMap;

/// The machine as job files see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// `${node.unique.id}`.
    pub id: String,
    /// `${node.unique.name}`.
    pub name: String,
    /// `${node.datacenter}`.
    pub datacenter: String,
    /// `${node.region}`.
    pub region: String,
    /// `${node.class}`.
    pub class: String,
    /// `${node.pool}`.
    pub pool: String,
    /// `${attr.*}`.
    pub attributes: BTreeMap<String, String>,
    /// `${meta.*}`.
    pub meta: BTreeMap<String, String>,
    /// The address under which other machines reach this one.
    pub ip: IpAddr,
}

impl Node {
    /// Inspects this machine; the node's id is kept in `<data_dir>/client-id`. `cgroups` is how tasks are limited, and `reservable`
    /// is how many cores can be reserved according to the cgroups; `None` means all cores.
    ///
    /// # Errors
    /// When that file can neither be read nor written.
    pub fn detect(data_dir: &Path, cgroups: Regime, reservable: Option<usize>) -> io::Result<Node> {
        Ok(Node { id: node_id(data_dir)?, ..Node::look(Some(data_dir), cgroups, reservable) })
    }

    /// The same without changing anything: if the machine has no id yet, the id is empty.
    #[must_use]
    pub fn look(data_dir: Option<&Path>, cgroups: Regime, reservable: Option<usize>) -> Node {
        let uname = rustix::system::uname();
        let name = uname.nodename().to_string_lossy().into_owned();
        let ip = outgoing_address();
        let mut attributes = BTreeMap::new();
        let mut set = |key: &str, value: String| {
            if !value.is_empty() {
                attributes.insert(key.to_owned(), value);
            }
        };
        set("kernel.name", uname.sysname().to_string_lossy().to_lowercase());
        set("kernel.version", uname.release().to_string_lossy().into_owned());
        set("kernel.arch", uname.machine().to_string_lossy().into_owned());
        set("cpu.arch", go_arch(&uname.machine().to_string_lossy()).to_owned());
        set("arch", go_arch(&uname.machine().to_string_lossy()).to_owned());
        let Compute { total_mhz, cores } = compute();
        set("cpu.numcores", cores.to_string());
        set("cpu.reservablecores", reservable.map_or_else(|| cores.to_string(), |n| n.to_string()));
        if total_mhz > 0 {
            set("cpu.frequency", (total_mhz / u64::from(cores)).to_string());
            set("cpu.totalcompute", total_mhz.to_string());
            set("cpu.usablecompute", total_mhz.to_string());
        }
        // Agents before Nomad 1.7 wrote the name with the letter.
        let version = match cgroups {
            Regime::V1 => "1",
            Regime::V2 => "2",
            Regime::Off => "",
        };
        set("os.cgroups.version", version.to_owned());
        set("unique.cgroups.version", if version.is_empty() { String::new() } else { format!("v{version}") });
        set("memory.totalbytes", memory_total_bytes().map(|n| n.to_string()).unwrap_or_default());
        let (system, version) = facts::system(&|path| facts::text(path));
        set("os.name", system);
        set("os.version", version);
        set("unique.hostname", name.clone());
        set("unique.network.ip-address", ip.to_string());
        facts::tell(data_dir, cgroups, &mut set);
        Node {
            id: data_dir.and_then(kept_id).unwrap_or_default(),
            name,
            datacenter: "dc1".to_owned(),
            region: "global".to_owned(),
            class: String::new(),
            pool: "default".to_owned(),
            attributes,
            meta: BTreeMap::new(),
            ip,
        }
    }

    /// Adds the attributes of drivers; `driver.<name>` itself is 1 for a working driver, as agents write it.
    pub fn add_drivers(&mut self, drivers: &BTreeMap<String, Fingerprint>) {
        for (name, fingerprint) in drivers {
            for (key, value) in &fingerprint.attributes {
                let is_switch = *key == format!("driver.{name}") && *value == Attribute::Bool(true);
                self.attributes.insert(key.clone(), if is_switch { "1".to_owned() } else { value.to_string() });
            }
        }
    }

    /// The value of `node.*`, `attr.*` or `meta.*`.
    #[must_use]
    pub fn lookup(&self, key: &str) -> Option<&str> {
        match key {
            "node.unique.id" => Some(&self.id),
            "node.unique.name" => Some(&self.name),
            "node.datacenter" => Some(&self.datacenter),
            "node.region" => Some(&self.region),
            "node.class" => Some(&self.class),
            "node.pool" => Some(&self.pool),
            _ => {
                let attribute = key.strip_prefix("attr.").and_then(|k| self.attributes.get(k));
                attribute.or_else(|| key.strip_prefix("meta.").and_then(|k| self.meta.get(k))).map(String::as_str)
            }
        }
    }
}

/// Most bytes of the file with the node's id.
const LONGEST_ID: u64 = 4096;

/// The id that the node already has, if any.
fn kept_id(data_dir: &Path) -> Option<String> {
    let bytes = crate::sys::owned::read(&data_dir.join("client-id"), LONGEST_ID).ok()?;
    let id = uuid::Uuid::parse_str(std::str::from_utf8(&bytes).ok()?.trim()).ok()?;
    Some(id.hyphenated().to_string())
}

fn node_id(data_dir: &Path) -> io::Result<String> {
    let path = data_dir.join("client-id");
    if let Some(id) = kept_id(data_dir) {
        return Ok(id);
    }
    let id = crate::sys::random::uuid().hyphenated().to_string();
    super::atomic::write_atomically(&path, id.as_bytes())?;
    Ok(id)
}

/// Go's name of an architecture, with which job files compare.
fn go_arch(machine: &str) -> &str {
    match machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "i386" | "i686" => "386",
        other => other,
    }
}

/// This machine's compute capacity, as far as it can be detected; a Nomad agent detects more.
#[must_use]
pub fn compute() -> Compute {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cores = u32::try_from(cores).unwrap_or(1);
    let total_mhz = speeds().map_or(0, |(all, online)| all * u64::from(cores) / online);
    Compute { total_mhz, cores }
}

/// The speed of all cores that are online together, in Nomad's unit of CPU, and their number: the same for all tasks of this
/// process, and read once, as the kernel has files for each core, and `/proc/cpuinfo` is long where there are many.
fn speeds() -> Option<(u64, u64)> {
    static READ: OnceLock<Option<(u64, u64)>> = OnceLock::new();
    *READ.get_or_init(|| read_speeds(&|path| facts::text(path)))
}

fn read_speeds(read: &dyn Fn(&str) -> Option<String>) -> Option<(u64, u64)> {
    let online = read("/sys/devices/system/cpu/online").and_then(|list| list.trim().parse::<CpuSet>().ok());
    let of_each = online.iter().flat_map(CpuSet::iter).filter_map(|core| core_mhz(core, read));
    let (all, known) = of_each.fold((0, 0), |(all, known), mhz| (all + mhz, known + 1));
    if known > 0 {
        return Some((all, known));
    }
    let text = read("/proc/cpuinfo")?;
    let value = text.lines().find_map(|l| l.strip_prefix("cpu MHz")?.split_once(':'))?.1;
    Some((value.trim().split('.').next()?.parse().ok()?, 1))
}

/// What a core can deliver at any time, without turbo: Nomad reckons with that, and with the highest frequency only where the base
/// frequency is unknown.
fn core_mhz(core: u32, read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let text = |file: &str| read(&format!("/sys/devices/system/cpu/cpu{core}/{file}"));
    let number = |file: &str| text(file)?.trim().parse::<u64>().ok().filter(|number| *number > 0);
    let mhz = |file: &str| number(file).map(|khz| khz / 1000);
    let driver = text("cpufreq/scaling_driver").unwrap_or_default();
    let base = match driver.trim() {
        "acpi-cpufreq" => number("acpi_cppc/nominal_freq"),
        _ => mhz("cpufreq/base_frequency"),
    };
    base.or_else(|| mhz("cpufreq/cpuinfo_max_freq"))
}

fn memory_total_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The source address of the default route. Connecting a UDP socket sends no packet; 192.0.2.1 is reserved for documentation.
fn outgoing_address() -> IpAddr {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let address = socket.and_then(|s| s.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).and_then(|()| s.local_addr()));
    address.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |a| a.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described_and_keeps_its_id() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::detect(dir.path(), Regime::V2, Some(3)).unwrap();
        assert_eq!(node.lookup("attr.kernel.name"), Some("linux"));
        assert_eq!(node.lookup("node.unique.name"), node.lookup("attr.unique.hostname"));
        assert!(node.lookup("attr.memory.totalbytes").unwrap().parse::<u64>().unwrap() > 1 << 20);
        assert_eq!(node.lookup("attr.no.such"), None);
        assert_eq!(node.lookup("meta.none"), None);
        for name in ["nomad.version", "os.signals", "unique.storage.bytestotal", "unique.storage.bytesfree"] {
            assert!(node.attributes.get(name).is_some_and(|value| !value.is_empty()), "{name}: {node:?}");
        }
        assert_eq!(node.lookup("attr.unique.cgroup.mountpoint"), Some("/sys/fs/cgroup"));
        let looked = Node::look(Some(dir.path()), Regime::V2, Some(3));
        assert_eq!(
            (&looked.id, looked.attributes.keys().collect::<Vec<_>>()),
            (&node.id, node.attributes.keys().collect())
        );
        assert_eq!(Node::look(None, Regime::V2, None).id, "");
        let again = Node::detect(dir.path(), Regime::Off, None).unwrap();
        assert_eq!(again.id, node.id);
        assert_eq!(again.lookup("attr.cpu.reservablecores"), again.lookup("attr.cpu.numcores"));
    }

    /// The base frequency counts, for each core, and not what a core reaches for a while.
    #[test]
    fn cores_are_reckoned_without_turbo() {
        let speeds = |files: &[(&str, &str)]| {
            let read = |path: &str| {
                let name = path.strip_prefix("/sys/devices/system/cpu/").unwrap_or(path);
                files.iter().find(|(file, _)| *file == name).map(|(_, text)| format!("{text}\n"))
            };
            read_speeds(&read)
        };
        let intel = [
            ("online", "0,2"),
            ("cpu0/cpufreq/scaling_driver", "intel_pstate"),
            ("cpu0/cpufreq/base_frequency", "3200000"),
            ("cpu0/cpufreq/cpuinfo_max_freq", "5200000"),
            ("cpu1/cpufreq/base_frequency", "9900000"),
            ("cpu2/cpufreq/base_frequency", "2400000"),
        ];
        assert_eq!(speeds(&intel), Some((5600, 2)));
        let amd = [
            ("online", "0"),
            ("cpu0/cpufreq/scaling_driver", "acpi-cpufreq"),
            ("cpu0/acpi_cppc/nominal_freq", "2450"),
            ("cpu0/cpufreq/cpuinfo_max_freq", "3500000"),
        ];
        assert_eq!(speeds(&amd), Some((2450, 1)));
        let unknown = [
            ("online", "0"),
            ("cpu0/cpufreq/base_frequency", "0"),
            ("cpu0/cpufreq/cpuinfo_max_freq", "3500000"),
            ("/proc/cpuinfo", "processor : 0\ncpu MHz\t\t: 2100.5"),
        ];
        assert_eq!(speeds(&unknown), Some((3500, 1)));
        assert_eq!(speeds(&unknown[3..]), Some((2100, 1)));
        assert_eq!(speeds(&[("online", "0-3")]), None);
    }

    #[test]
    fn c1_the_regime_is_an_attribute_by_both_names() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["attr.os.cgroups.version", "attr.unique.cgroups.version", "attr.cpu.reservablecores"];
        for (regime, expected) in [
            (Regime::V1, [Some("1"), Some("v1"), Some("7")]),
            (Regime::V2, [Some("2"), Some("v2"), Some("7")]),
            (Regime::Off, [None, None, Some("7")]),
        ] {
            let node = Node::detect(dir.path(), regime, Some(7)).unwrap();
            assert_eq!(names.map(|name| node.lookup(name)), expected);
        }
    }

    #[test]
    fn j2_a_driver_that_works_is_1() {
        let mut node = Node::look(None, Regime::Off, None);
        let mut exec = Fingerprint::healthy("exec");
        exec.attributes.insert("driver.exec.version".to_owned(), Attribute::String("1.2".to_owned()));
        exec.attributes.insert("driver.exec.privileged.enabled".to_owned(), Attribute::Bool(true));
        let docker = Fingerprint::without(crate::driver::Health::Undetected, "");
        node.add_drivers(&BTreeMap::from([("exec".to_owned(), exec), ("docker".to_owned(), docker)]));
        let names = ["driver.exec", "driver.exec.version", "driver.exec.privileged.enabled", "driver.docker"];
        let found = names.map(|name| node.attributes.get(name).map(String::as_str));
        assert_eq!(found, [Some("1"), Some("1.2"), Some("true"), None]);
    }
}
