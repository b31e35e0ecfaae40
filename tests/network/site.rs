//! A machine of a test's own: a network namespace, in which the test is the host, one beside it from which the host is reached over
//! a wire, and a mount namespace with an empty `/run`.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::kernel::hide_tables;
use crate::world::{Out, Running, World, copy_program, signal};

/// The address of the machine; its neighbour on the wire has 198.51.100.9.
pub const HOST: &str = "198.51.100.7";
/// Its IPv6 address, where it has one; its neighbour then has `2001:db8:7::9`.
pub const HOST_IPV6: &str = "2001:db8:7::7";
/// Where Debian has the reference plugins.
pub const PLUGINS: &str = "/usr/lib/cni";

/// What makes the network of mode bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The reference plugins.
    Plugins,
    /// The same on a machine without `nf_tables`, where iptables is the older one.
    PluginsAlone,
    /// agentbin itself, as no plugins are found.
    Builtin,
}

/// A machine with a wire, on which this thread is root.
pub struct Site {
    pub world: World,
    by: By,
    has_ipv6: bool,
}

/// The programs of iptables for `nf_tables`, and those for the kernel's older tables; each file is all of them.
const IPTABLES: &str = "/usr/sbin/xtables-nft-multi";
const OLDER_IPTABLES: &str = "/usr/sbin/xtables-legacy-multi";

pub fn done(program: &str, words: &[&str]) -> String {
    let out = Command::new(program).args(words).output().unwrap();
    assert!(out.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

pub fn ip(words: &str) -> String {
    done("ip", &words.split(' ').collect::<Vec<_>>())
}

impl Site {
    pub fn new() -> Site {
        Site::made(By::Plugins)
    }

    pub fn made(by: By) -> Site {
        Site::with(by, false)
    }

    /// A machine with IPv6, on which allocations get such addresses as well.
    pub fn with_ipv6(by: By) -> Site {
        Site::with(by, true)
    }

    fn with(by: By, has_ipv6: bool) -> Site {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        mount(Some("run"), "/run", Some("tmpfs"), MsFlags::empty(), Some("mode=755")).unwrap();
        if by == By::PluginsAlone {
            mount(Some(OLDER_IPTABLES), IPTABLES, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        }
        // Its addresses come when they please.
        for which in ["all", "default"] {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1").unwrap();
        }
        for words in [
            "link set lo up",
            "netns add neighbour",
            "link add wire type veth peer name wire netns neighbour",
            "address add 198.51.100.7/24 dev wire",
            "link set wire up",
            "route add default via 198.51.100.9",
            "-n neighbour address add 198.51.100.9/24 dev wire",
            "-n neighbour link set wire up",
        ] {
            ip(words);
        }
        // As where Docker runs; and things of others.
        done("iptables", &["-P", "FORWARD", "DROP"]);
        done("iptables", &["-P", "INPUT", "ACCEPT"]);
        done("iptables", &["-A", "FORWARD", "-s", "203.0.113.0/24", "-j", "ACCEPT"]);
        done("iptables", &["-t", "nat", "-N", "OTHERS"]);
        done("iptables", &["-t", "nat", "-A", "OTHERS", "-d", "203.0.113.1", "-j", "RETURN"]);
        done(
            "nft",
            &[
                "add table inet others; add chain inet others input { type filter hook input priority 10; policy accept; }",
            ],
        );
        done(
            "nft",
            &["add rule inet others input iifname \"others\" drop; add table netdev agentbins; add table ip6 others"],
        );
        ip("link add others type bridge");
        ip("address add 10.99.0.1/24 dev others");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        if has_ipv6 {
            add_ipv6();
        }
        let mut world = World::new();
        if by == By::PluginsAlone {
            world.prepare(hide_tables);
        }
        let site = Site { world, by, has_ipv6 };
        site.settle();
        site
    }

    /// Makes the chains that the reference plugin for ports leaves empty, for all that use it.
    pub fn settle(&self) {
        let six = if self.has_ipv6 { "port \"six\" { host_network = \"six\" }" } else { "" };
        let ports = format!("mode = \"bridge\"\nport \"p\" {{}}\n{six}");
        let out = self.run(&job("batch", &[group("first", "raw_exec", &ports, "true")]), &[]);
        assert_eq!(out.status, 0, "{out:?}");
    }

    /// The arguments of a run that connects its allocations this way.
    pub fn args<'a>(&self, args: &[&'a str]) -> Vec<&'a str> {
        let none: &[&str] = if self.by == By::Builtin { &["--cni-path", "/nonexistent/cni"] } else { &[] };
        let six: &[&str] = if self.has_ipv6 { &IPV6 } else { &[] };
        [none, six, args].concat()
    }

    pub fn run(&self, job: &str, args: &[&str]) -> Out {
        self.world.run_text(job, &self.args(args))
    }

    /// Takes the rules out that keep the bridge from the machine's loopback.
    pub fn open_loopback(&self) {
        match self.by {
            By::PluginsAlone => done("iptables", &["-F", "AGENTBIN-INPUT"]),
            By::Plugins | By::Builtin => done("nft", &["flush", "chain", "ip", "agentbin", "input"]),
        };
        for table in self.tables() {
            done("nft", &["delete", "table", "netdev", &table]);
        }
    }

    pub fn start(&self, name: &str, job: &str, args: &[&str]) -> Running {
        let file = self.world.file(&format!("{name}.nomad.hcl"), job);
        let mut command = self.world.command(&self.args(args));
        command.arg(file);
        World::start_command(command)
    }

    /// The tables of rules that allocations have on their wires.
    #[expect(clippy::unused_self, reason = "what is looked at is this machine's, whose namespaces it holds")]
    pub fn tables(&self) -> Vec<String> {
        let tables = done("nft", &["list", "tables", "netdev"]);
        let ours = tables.lines().filter_map(|line| line.strip_prefix("table netdev agentbin-"));
        ours.map(|name| format!("agentbin-{name}")).collect()
    }

    /// Everything that a network is made of, in lines: interfaces, addresses, routes, rules, settings, namespaces, leases.
    #[expect(clippy::unused_self, reason = "what is looked at is this machine's, whose namespaces it holds")]
    pub fn state(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        let links: serde_json::Value = serde_json::from_str(&ip("-j link")).unwrap();
        let name = |link: &serde_json::Value| format!("link {} {}", link["ifname"], link["operstate"]);
        all.extend(links.as_array().unwrap().iter().map(name));
        all.extend(ip("-o address").lines().map(|line| format!("address {}", line.split_once(' ').unwrap().1)));
        all.extend(ip("route show table all").lines().map(|line| format!("route {line}")));
        // What bridges know of who is behind which port; what they have learnt goes by itself.
        let known = done("bridge", &["fdb", "show"]);
        all.extend(known.lines().filter(|line| line.contains("permanent")).map(|line| format!("fdb {line}")));
        let mut table = String::new();
        for line in (done("iptables-save", &[]) + &done("ip6tables-save", &[])).lines() {
            if let Some(name) = line.strip_prefix('*') {
                name.clone_into(&mut table);
            }
            let rule = line.split(" [").next().unwrap();
            if !line.starts_with('#') {
                all.insert(format!("{table} {rule}"));
            }
        }
        let rules: serde_json::Value = serde_json::from_str(&done("nft", &["-j", "list", "ruleset"])).unwrap();
        let rules = rules["nftables"].as_array().unwrap().iter().map(|rule| format!("nft {}", normal(rule)));
        all.extend(rules.filter(|rule| !rule.contains("metainfo")));
        for dir in ["ipv4", "ipv6"] {
            settings(&Path::new("/proc/sys/net").join(dir), &mut all);
        }
        let own = ["netns", "networks", "leases/agentbin"].map(|name| format!("/run/agentbin/network/{name}"));
        for dir in own.iter().map(String::as_str).chain(["/run/netns"]) {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.file_name().into_string().unwrap());
            // What the plugin for addresses keeps besides: which was given last, and its lock.
            let names = names.filter(|name| !name.starts_with("last_reserved_ip") && name != "lock");
            all.extend(names.map(|name| format!("{dir}/{name}")));
        }
        let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        all.extend(mounts.lines().filter(|line| line.contains("nsfs") && line.contains("agentbin")).map(str::to_owned));
        all
    }

    /// What the kernel remembers of connections, without what changes by itself.
    #[expect(clippy::unused_self, reason = "what is looked at is this machine's, whose namespaces it holds")]
    pub fn remembered(&self) -> BTreeSet<String> {
        let is_fixed =
            |word: &&str| ["src=", "dst=", "sport=", "dport=", "id="].iter().any(|key| word.starts_with(key));
        let lines = done("cat", &["/proc/net/nf_conntrack"]);
        let tuples = |line: &str| line.split(' ').filter(is_fixed).collect::<Vec<_>>().join(" ");
        lines.lines().map(tuples).collect()
    }

    /// The same, without the kernel's own reports of multicast groups, which come when they please.
    pub fn connections(&self) -> BTreeSet<String> {
        self.remembered().into_iter().filter(|line| !line.contains("dst=224.0.0.22")).collect()
    }

    pub fn gc(&self) {
        let out = self.world.agentbin(&["gc"]);
        assert_eq!(out.status, 0, "{out:?}");
    }

    /// A directory of plugins that are the reference ones, but for these scripts.
    pub fn plugins(&self, scripts: &[(&str, &str)]) -> PathBuf {
        let dir = self.world.path("plugins");
        let _none_yet = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        for name in ["bridge", "portmap", "host-local", "ptp"] {
            std::os::unix::fs::symlink(Path::new(PLUGINS).join(name), dir.join(name)).unwrap();
        }
        for (name, text) in scripts {
            let path = dir.join(name);
            let _none_yet = std::fs::remove_file(&path);
            let source = self.world.file("script", &format!("#!/bin/sh\n{text}\n"));
            std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o755)).unwrap();
            copy_program(&source, &path);
        }
        dir
    }

    #[expect(clippy::unused_self, reason = "a run is this machine's")]
    pub fn stop(&self, mut run: Running) -> Out {
        signal(&run.child, "INT");
        run.finish()
    }
}

/// What makes a run give its allocations IPv6 addresses, and their ports one of the machine.
const IPV6: [&str; 4] = ["--bridge-network-subnet-ipv6", "fd00:7::/64", "--host-network", "six=2001:db8:7::7"];

/// Gives the machine and its neighbour IPv6 addresses, which they have at once.
fn add_ipv6() {
    for (interface, setting, value) in [
        ("lo", "disable_ipv6", "0"),
        ("wire", "accept_dad", "0"),
        ("wire", "accept_ra", "0"),
        ("wire", "disable_ipv6", "0"),
    ] {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/{setting}"), value).unwrap();
    }
    std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
    ip("address add 2001:db8:7::7/64 dev wire nodad");
    ip("-n neighbour address add 2001:db8:7::9/64 dev wire nodad");
    done("ip6tables", &["-P", "FORWARD", "DROP"]);
    done("ip6tables", &["-A", "FORWARD", "-s", "2001:db8:9::/48", "-j", "ACCEPT"]);
    done("ip6tables", &["-t", "nat", "-N", "OTHERS"]);
}

/// A rule without what changes by itself: its number, and how much it has seen.
fn normal(rule: &serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    let changing = ["handle", "index", "packets", "bytes"];
    match rule {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(key, _)| !changing.contains(&key.as_str()));
            fields.map(|(key, value)| (key.clone(), normal(value))).collect()
        }
        Value::Array(all) => all.iter().map(normal).collect(),
        other => other.clone(),
    }
}

/// The settings in a directory of the kernel's, those of interfaces too. Some can be read by nobody.
fn settings(dir: &Path, into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            settings(&path, into);
        } else if let Ok(value) = std::fs::read_to_string(&path) {
            into.insert(format!("{} = {}", path.display(), value.trim()));
        }
    }
}

/// A group with one task, which is a shell with this script.
pub fn group(name: &str, driver: &str, network: &str, script: &str) -> String {
    let script = serde_json::to_string(script).unwrap().replace("${", "$${");
    format!(
        "group \"{name}\" {{\n network {{\n{network}\n}}\n restart {{\n attempts = 0\n mode = \"fail\"\n }}\n task \"{name}\" {{\n driver = \"{driver}\"\n config {{\n \
         command = \"/bin/sh\"\n args = [\"-c\", {script}]\n }}\n }}\n}}\n"
    )
}

pub fn job(kind: &str, groups: &[String]) -> String {
    format!("job \"test\" {{\n type = \"{kind}\"\n{}}}\n", groups.concat())
}
