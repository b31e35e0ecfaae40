//! What tasks on the built-in bridge cannot send (row G1): a task with every capability in its network tries, and each try succeeds
//! when the rules are taken out.

use std::collections::BTreeSet;
use std::io::BufRead as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use nix::mount::{MsFlags, mount};

use crate::site::{By, Site, done, group, job};
use crate::world::{need_root, seconds, wait_for_text};

/// Sends each frame with its name in it, the honest ones last, round after round. What is sent goes to all on the bridge.
const SENDER: &str = r#"
import socket, struct, time
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind(("eth0", 0))
MAC = out.getsockname()[4]
look = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
look.connect(("198.51.100.9", 9))
IP = socket.inet_aton(look.getsockname()[0])
ALL, OTHER_MAC, OTHER = b"\xff" * 6, bytes.fromhex("02aabbccddee"), socket.inet_aton("10.126.79.9")
LL = b"\xfe\x80" + bytes(6) + bytes([MAC[0] ^ 2]) + MAC[1:3] + b"\xff\xfe" + MAC[3:]
OTHER6 = socket.inet_pton(socket.AF_INET6, "fe80::bad")
NODES = socket.inet_pton(socket.AF_INET6, "ff02::1")

GLOBAL = bytes.fromhex([l for l in open("/proc/self/net/if_inet6") if l.startswith("fd")][0][:32])
OTHER_GLOBAL = socket.inet_pton(socket.AF_INET6, "fd00:7::bad")

def total(data):
    data += bytes(len(data) % 2)
    s = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while s >> 16:
        s = (s & 0xffff) + (s >> 16)
    return ~s & 0xffff

def ether(kind, data, mac=MAC):
    return ALL + mac + struct.pack("!H", kind) + data

def v4(data, source=None, target="10.126.79.255"):
    udp = struct.pack("!4H", 9, 9, 8 + len(data), 0) + data
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0) + (source or IP) + socket.inet_aton(target)
    return head[:10] + struct.pack("!H", total(head)) + head[12:] + udp

def v6(data, source=LL, nexthead=58, ext=b""):
    return struct.pack("!IHBB", 6 << 28, len(ext) + len(data), nexthead, 255) + source + NODES + ext + data

def icmp(kind, body, source=LL):
    body = bytes([kind, 0, 0, 0]) + body
    head = source + NODES + struct.pack("!II", len(body), 58)
    return body[:2] + struct.pack("!H", total(head + body)) + body[4:]

def arp(mac, ip, kind=1, hlen=6):
    return struct.pack("!HHBBH", 1, 0x800, hlen, 4, kind) + mac + ip + bytes(6) + OTHER

# An option that nobody knows, of as many bytes as there are.
def option(mark):
    data = bytes([0xfd, len(mark)]) + mark
    return data + bytes(-len(data) % 8)

def frames(say):
    own = socket.inet_aton
    return [
        ether(0x800, v4(say("mac")), OTHER_MAC),
        ether(0x806, arp(MAC, IP) + say("arp-frame"), OTHER_MAC),
        ether(0x800, v4(say("ipv4"), OTHER)),
        ether(0x800, v4(say("ipv4-none"), bytes(4))),
        ether(0x800, v4(say("loopback"), target="127.0.0.1")),
        ether(0x806, arp(MAC, OTHER) + say("arp-ip")),
        ether(0x806, arp(MAC, OTHER, 2) + say("arp-answer")),
        ether(0x806, arp(OTHER_MAC, IP) + say("arp-mac")),
        ether(0x806, arp(MAC, IP, hlen=8) + say("arp-shape")),
        ether(0x86dd, v6(icmp(128, bytes(4) + say("ipv6"), OTHER6), OTHER6)),
        ether(0x86dd, v6(icmp(134, bytes(12) + option(say("router"))))),
        ether(0x86dd, v6(icmp(134, bytes(12) + option(say("router-behind-options"))), nexthead=60, ext=b"\x3a\x00\x01\x04" + bytes(4))),
        ether(0x86dd, v6(icmp(137, bytes(4) + OTHER6 * 2 + option(say("redirect"))))),
        ether(0x86dd, v6(icmp(136, bytes(4) + OTHER6 + option(say("neighbour"))))),
        ether(0x86dd, v6(icmp(130, bytes(20) + say("listeners")))),
        ether(0x86dd, v6(icmp(135, bytes(4) + OTHER6 + say("duplicate"), bytes(16)), bytes(16))),
        ether(0x86dd, v6(icmp(128, bytes(4) + say("ipv6-none"), bytes(16)), bytes(16))),
        ether(0x86dd, v6(icmp(128, bytes(4) + say("global"), OTHER_GLOBAL), OTHER_GLOBAL)),
        ether(0x86dd, v6(icmp(136, bytes(4) + OTHER_GLOBAL + option(say("global-neighbour"))))),
        ether(0x86dd, v6(icmp(135, bytes(4) + OTHER_GLOBAL + say("global-duplicate"), bytes(16)), bytes(16))),
        ether(0x86dd, v6(icmp(136, bytes(4) + GLOBAL + option(say("own-global-neighbour"))))),
        ether(0x86dd, v6(icmp(128, bytes(4) + say("own-global"), GLOBAL), GLOBAL)),
        ether(0x8100, struct.pack("!HH", 5, 0x800) + v4(say("tagged"))),
        ether(0x88b5, say("protocol") + bytes(40)),
        ether(0x806, arp(MAC, IP) + say("own-arp")),
        ether(0x806, arp(MAC, bytes(4)) + say("own-arp-probe")),
        ether(0x86dd, v6(icmp(136, bytes(4) + LL + option(say("own-neighbour"))))),
        ether(0x86dd, v6(icmp(135, bytes(4) + LL + say("own-duplicate"), bytes(16)), bytes(16))),
        ether(0x86dd, v6(icmp(128, bytes(4) + say("own-ipv6")))),
        ether(0x800, v4(say("own-ipv4"))),
    ]

n = 0
while True:
    n += 1
    for frame in frames(lambda name: b"<%s %d>" % (name.encode(), n)):
        out.send(frame)
    time.sleep(0.1)
"#;

/// Says which frames come to the bridge.
const LISTENER: &str = r#"
import re, socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(("agentbin", 3))
while True:
    for name, n in re.findall(rb"<([a-z0-9-]+) (\d+)>", s.recv(65536)):
        print(name.decode(), n.decode(), flush=True)
"#;

const HONEST: [&str; 8] = [
    "own-arp",
    "own-arp-probe",
    "own-neighbour",
    "own-duplicate",
    "own-ipv6",
    "own-global",
    "own-global-neighbour",
    "own-ipv4",
];
const ATTACKS: [&str; 22] = [
    "mac",
    "arp-frame",
    "ipv4",
    "ipv4-none",
    "loopback",
    "arp-ip",
    "arp-answer",
    "arp-mac",
    "arp-shape",
    "ipv6",
    "router",
    "router-behind-options",
    "redirect",
    "neighbour",
    "listeners",
    "duplicate",
    "ipv6-none",
    "global",
    "global-neighbour",
    "global-duplicate",
    "tagged",
    "protocol",
];

struct Listener {
    child: Child,
    heard: Receiver<(String, u64)>,
}

impl Listener {
    fn new() -> Listener {
        let mut child = Command::new("/usr/bin/python3").args(["-c", LISTENER]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let (say, heard) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let (name, round) = line.split_once(' ').unwrap();
                // Nobody listens any more when the test has ended.
                let _ = say.send((name.to_owned(), round.parse().unwrap()));
            }
        });
        Listener { child, heard }
    }

    /// What has come when whole rounds went by, and as often until these have.
    fn names(&self, wanted: &[&str]) -> BTreeSet<String> {
        // What was sent before now is not told from what is sent after it.
        while self.heard.try_recv().is_ok() {}
        let deadline = Instant::now() + seconds(60);
        let (mut names, mut first) = (BTreeSet::new(), None);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let (name, round) =
                self.heard.recv_timeout(left).unwrap_or_else(|_| panic!("{wanted:?}: only {names:?} came"));
            let first = *first.get_or_insert(round);
            let is_last = name == "own-ipv4";
            names.insert(name);
            // The last frame of a round, with those before it: two rounds later all of the one between has come.
            if is_last && round >= first + 2 && wanted.iter().all(|name| names.contains(*name)) {
                return names;
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _already_gone = self.child.wait();
    }
}

fn set(names: &[&[&str]]) -> BTreeSet<String> {
    names.concat().into_iter().map(str::to_owned).collect()
}

/// G1: a task can send with its own addresses only, whatever capabilities it has; without the rules each of the attacks works.
#[test]
fn g1_a_task_on_the_bridge_sends_with_its_own_addresses_only() {
    need_root!();
    a_task_on_the_bridge_sends_with_its_own_addresses_only(By::Plugins);
}

/// G1: the same where no CNI plugins are installed.
#[test]
fn g1_without_plugins_a_task_on_the_bridge_sends_with_its_own_addresses_only() {
    need_root!();
    a_task_on_the_bridge_sends_with_its_own_addresses_only(By::Builtin);
}

fn a_task_on_the_bridge_sends_with_its_own_addresses_only(by: By) {
    let site = Site::with_ipv6(by);
    let before = site.state();
    let file = site.world.file("sender.py", SENDER);
    let script = format!("echo up; exec /usr/bin/python3 {}", file.display());
    let groups = ["evil", "other"].map(|name| {
        let script = if name == "evil" { script.as_str() } else { "sleep 1000" };
        group(name, "raw_exec", "mode = \"bridge\"", script)
    });
    let run = site.start("evil", &job("service", &groups), &[]);
    wait_for_text(&run.stdout, "up");
    let listener = Listener::new();
    assert_eq!(listener.names(&HONEST), set(&[&HONEST]));
    // A table for each of the two, and nothing of others'.
    let tables = site.tables();
    assert_eq!(tables.len(), 2, "{tables:?}");
    for table in &tables {
        done("nft", &["delete", "table", "netdev", table]);
    }
    let all = set(&[&HONEST, &ATTACKS]);
    assert_eq!(listener.names(&[&HONEST[..], &ATTACKS].concat()), all);
    drop(listener);
    let out = site.stop(run);
    assert!(!out.stderr.contains("addresses of others"), "{out:?}");
    assert_eq!(site.state(), before);
}

/// G1: where the rules cannot be made, the network works without them, and an event says what that leaves open, and why.
#[test]
fn g1_a_bridge_without_rules_says_what_it_leaves_open() {
    need_root!();
    let site = Site::new();
    let before = site.state();
    let text = job("batch", &[group("g", "raw_exec", "mode = \"bridge\"", "ip -o -4 address show eth0")]);
    let nft = ["/usr/local/sbin/nft", "/usr/local/bin/nft", "/usr/sbin/nft", "/usr/bin/nft", "/sbin/nft", "/bin/nft"];
    let nft = nft.iter().find(|path| std::path::Path::new(path).exists()).unwrap();
    let real = site.world.path("nft");
    crate::world::copy_program(std::path::Path::new(nft), &real);
    // A kernel that has no such rules, but lists what there is.
    let refuses = format!(
        "#!/bin/sh\ncase \"$*\" in *-f*) echo 'Operation not supported' >&2; exit 1;; esac\nexec {} \"$@\"\n",
        real.display()
    );
    let refuses = site.world.file("refuses", &refuses);
    std::fs::set_permissions(&refuses, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let over = |file: &std::path::Path| {
        mount(Some(file), *nft, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    };
    for (file, why, fix) in [
        (refuses.as_path(), "Operation not supported", "CONFIG_NF_TABLES_NETDEV"),
        (std::path::Path::new("/dev/null"), "nft is not installed (package nftables)", "install nftables"),
    ] {
        over(file);
        let out = site.run(&text, &[]);
        assert!(out.status == 0 && out.stdout.contains("10.126."), "{out:?}");
        let says = format!("{}{}", out.stdout, out.stderr);
        assert!(says.contains("CAP_NET_RAW") && says.contains(why) && says.contains("agentbin doctor"), "{out:?}");
        let doctor = site.world.agentbin(&["doctor", "--json"]);
        let checks: serde_json::Value = serde_json::from_str(&doctor.stdout).unwrap();
        let row = checks["checks"].as_array().unwrap().iter().find(|row| row["name"] == "network rules (netdev)");
        let row = row.unwrap_or_else(|| panic!("{checks}")).to_string();
        assert!(row.contains("warn") && row.contains(fix), "{row}");
    }
    for _ in 0..2 {
        nix::mount::umount(*nft).unwrap();
    }
    let doctor = site.world.agentbin(&["doctor", "--json"]);
    let checks: serde_json::Value = serde_json::from_str(&doctor.stdout).unwrap();
    let rows = checks["checks"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["name"] == "network rules (netdev)" && row["state"] == "ok"), "{checks}");
    assert_eq!(site.state(), before);
}

/// G1: a bridge has room for so many allocations; the next one is told so, and nothing is left of it.
#[test]
fn g1_a_full_bridge_says_so() {
    need_root!();
    a_full_bridge_says_so(By::Plugins);
}

/// G1: the same where no CNI plugins are installed.
#[test]
fn g1_without_plugins_a_full_bridge_says_so() {
    need_root!();
    a_full_bridge_says_so(By::Builtin);
}

fn a_full_bridge_says_so(by: By) {
    let site = Site::made(by);
    let before = site.state();
    let six = group("g", "raw_exec", "mode = \"bridge\"", "sleep 1000").replacen("{\n", "{\n count = 5\n", 1);
    let small = ["--bridge-network-subnet", "10.50.0.0/29"];
    let run = site.start(
        "five",
        &job("service", &[six, group("up", "raw_exec", "mode = \"host\"", "echo up; sleep 1000")]),
        &small,
    );
    wait_for_text(&run.stdout, "up");
    let during = site.state();
    assert_eq!(site.tables().len(), 5);
    let out = site.world.agentbin(&["network", "status"]);
    assert!(out.status == 0 && out.stdout.starts_with("bridge: ready; 5 of 1023 allocations\n"), "{out:?}");
    let told: serde_json::Value =
        serde_json::from_str(&site.world.agentbin(&["network", "status", "--json"]).stdout).unwrap();
    let addresses: BTreeSet<&str> =
        told["networks"].as_array().unwrap().iter().map(|one| one["address"].as_str().unwrap()).collect();
    assert_eq!(addresses.into_iter().collect::<Vec<_>>(), (2..7).map(|n| format!("10.50.0.{n}")).collect::<Vec<_>>());
    let data_dir = site.world.data_dir();
    let first = &told["networks"][0];
    assert!(
        first["state"] == "in use"
            && first["network"] == "agentbin"
            && first["data_dir"] == *data_dir.to_str().unwrap(),
        "{told}"
    );
    let out = site.run(&job("batch", &[group("next", "raw_exec", "mode = \"bridge\"", "true")]), &small);
    assert!(out.status == 125 && out.stderr.contains("the bridge is full: its 5 allocations"), "{out:?}");
    assert_eq!(site.state(), during);
    site.stop(run);
    assert_eq!(site.state(), before);
}
