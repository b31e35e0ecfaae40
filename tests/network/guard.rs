//! What tasks on the built-in bridge cannot send (row G1): a task with every capability in its network tries, and each try succeeds
//! when the rules are taken out.

use std::collections::BTreeSet;
use std::io::BufRead as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::kernel::{Answers, Call, Reply, answered};
use crate::site::{By, HOST, HOST_IPV6, Site, done, group, job};
use crate::world::{World, need_root, seconds, wait_for_text};

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

/// G1: what others are told of the rules of an allocation, in the words of nft.
#[test]
fn g1_the_rules_of_an_allocation_are_listed_by_nft() {
    need_root!();
    let site = Site::with_ipv6(By::Builtin);
    let before = site.state();
    let network = "mode = \"bridge\"\nport \"http\" {\n static = 18080\n to = 8080\n}\nport \"six\" {\n static = 18081\n to = 8081\n \
                   host_network = \"six\"\n}";
    let script = "ip -o link show eth0; echo up; sleep 1000";
    let run = site.start("g", &job("service", &[group("g", "raw_exec", network, script)]), &[]);
    wait_for_text(&run.stdout, "up");
    let told: serde_json::Value =
        serde_json::from_str(&site.world.agentbin(&["network", "status", "--json"]).stdout).unwrap();
    let own = told["networks"][0]["address"].as_str().unwrap();
    let own6 = told["networks"][0]["address_ipv6"].as_str().unwrap();
    let text = String::from_utf8_lossy(&run.stdout.lock().unwrap()).into_owned();
    let mac = text.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let [table] = &site.tables()[..] else { panic!("{:?}", site.tables()) };
    let list = |family: &str, table: &str| done("nft", &["list", "table", family, table]);
    let bytes = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect::<Vec<_>>();
    let local = [0xfe80, 0, 0, 0].into_iter().chain(
        [[bytes[0] ^ 2, bytes[1]], [bytes[2], 0xff], [0xfe, bytes[3]], [bytes[4], bytes[5]]].map(u16::from_be_bytes),
    );
    let local = std::net::Ipv6Addr::from(<[u16; 8]>::try_from(local.collect::<Vec<_>>()).unwrap());
    let neighbour = |ip: std::net::Ipv6Addr| format!("{:#034x}", ip.to_bits());
    let (local_number, own6_number) = (neighbour(local), neighbour(own6.parse().unwrap()));
    let wire = [
        "policy drop;".to_owned(),
        format!("ether saddr != {mac} drop"),
        format!("arp htype 1 arp ptype ip arp hlen 6 arp plen 4 arp saddr ether {mac} arp saddr ip 0.0.0.0 accept"),
        format!("arp htype 1 arp ptype ip arp hlen 6 arp plen 4 arp saddr ether {mac} arp saddr ip {own} accept"),
        "ip daddr 127.0.0.0/8 drop".to_owned(),
        format!("ip saddr {own} accept"),
        "ether type != ip6 drop".to_owned(),
        "icmpv6 type nd-router-advert drop".to_owned(),
        "icmpv6 type nd-redirect drop".to_owned(),
        "icmpv6 type mld-listener-query drop".to_owned(),
        format!("icmpv6 type nd-neighbor-advert @th,64,128 != {local_number} @th,64,128 != {own6_number} drop"),
        format!("ip6 saddr {local} accept"),
        format!("ip6 saddr {own6} accept"),
        format!("ip6 saddr :: icmpv6 type nd-neighbor-solicit @th,64,128 {local_number} accept"),
        format!("ip6 saddr :: icmpv6 type nd-neighbor-solicit @th,64,128 {own6_number} accept"),
        "ip6 saddr :: icmpv6 type mld-listener-report accept".to_owned(),
        "ip6 saddr :: icmpv6 type mld2-listener-report accept".to_owned(),
    ];
    let ports = ["prerouting priority dstnat - 1", "output priority -101"];
    let ports = ports.map(|place| format!("type nat hook {place}; policy accept;"));
    let lines = |listed: &str| listed.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let missing = |listed: &str, wanted: &[String]| {
        let listed = lines(listed);
        let is_there = |line: &&String| !listed.iter().any(|found| found.ends_with(line.as_str()));
        wanted.iter().filter(is_there).cloned().collect::<Vec<_>>()
    };
    let listed = list("netdev", table);
    assert_eq!(missing(&listed, &wire), [""; 0], "{listed}");
    assert_eq!(lines(&listed).len(), wire.len() + 4, "a table, its chain, and nothing else: {listed}");
    let listed = list("ip", table);
    let leads = [format!("ip daddr {HOST} tcp dport 18080 dnat to {own}:8080")];
    assert_eq!(missing(&listed, &leads), [""; 0], "{listed}");
    assert!(ports.iter().all(|line| listed.contains(line)), "{listed}");
    let listed = list("ip6", table);
    let leads = [format!("ip6 daddr {HOST_IPV6} tcp dport 18081 dnat to [{own6}]:8081")];
    assert_eq!(missing(&listed, &leads), [""; 0], "{listed}");
    let shared = [
        "iifname \"agentbin\" ip daddr 127.0.0.0/8 ct state ! established,related drop",
        "ip saddr 10.126.64.0/20 ip daddr != 224.0.0.0/4 oifname != \"agentbin\" masquerade",
        "oifname \"agentbin\" ct status dnat ip saddr 10.126.64.0/20 masquerade",
        "oifname \"agentbin\" ct status dnat ip saddr 127.0.0.0/8 masquerade",
    ];
    let listed = list("ip", "agentbin");
    assert_eq!(missing(&listed, &shared.map(str::to_owned)), [""; 0], "{listed}");
    let shared = [
        "ip6 saddr fd00:7::/64 ip6 daddr != ff00::/8 oifname != \"agentbin\" masquerade",
        "oifname \"agentbin\" ct status dnat ip6 saddr fd00:7::/64 masquerade",
    ];
    let listed = list("ip6", "agentbin");
    assert_eq!(missing(&listed, &shared.map(str::to_owned)), [""; 0], "{listed}");
    site.stop(run);
    assert_eq!(site.state(), before);
}

/// G1: where the kernel does not take the rules, the network works without them, and an event says what that leaves open, and why.
#[test]
fn g1_a_bridge_without_rules_says_what_it_leaves_open() {
    need_root!();
    for (by, why, fix) in [
        (By::Plugins, "Operation not supported", "CONFIG_NF_TABLES_NETDEV"),
        (By::Builtin, "Operation not supported", "CONFIG_NF_TABLES_NETDEV"),
        (By::PluginsAlone, "Operation not supported", "the module nf_tables"),
    ] {
        let mut site = Site::made(by);
        let before = site.state();
        if by != By::PluginsAlone {
            // A kernel that has no such rules, but others.
            let netdev = nix::libc::NFPROTO_NETDEV as u8;
            let answers: Answers = Arc::new(Mutex::new(move |call: &Call| {
                let is_netdev = |(kind, rest): &(u16, Vec<u8>)| *kind >> 8 == 10 && rest.first() == Some(&netdev);
                if call.messages().iter().any(is_netdev) { Reply::Fails(nix::libc::EOPNOTSUPP) } else { Reply::Own }
            }));
            site.world.prepare(move |command| answered(command, &answers));
        }
        let text = job("batch", &[group("g", "raw_exec", "mode = \"bridge\"", "ip -o -4 address show eth0")]);
        let out = site.run(&text, &[]);
        assert!(out.status == 0 && out.stdout.contains("10.126."), "{by:?}: {out:?}");
        let says = format!("{}{}", out.stdout, out.stderr);
        assert!(
            says.contains("CAP_NET_RAW") && says.contains(why) && says.contains("agentbin doctor"),
            "{by:?}: {out:?}"
        );
        let doctor = site.world.agentbin(&["doctor", "--json"]);
        let checks: serde_json::Value = serde_json::from_str(&doctor.stdout).unwrap();
        let row = checks["checks"].as_array().unwrap().iter().find(|row| row["name"] == "network rules (netdev)");
        let row = row.unwrap_or_else(|| panic!("{checks}")).to_string();
        assert!(row.contains("warn") && row.contains(fix), "{by:?}: {row}");
        let after = site.state();
        let left: Vec<_> = after.symmetric_difference(&before).collect();
        assert!(left.is_empty(), "{by:?}: {left:#?}");
    }
    let doctor = World::new().agentbin(&["doctor", "--json"]);
    let checks: serde_json::Value = serde_json::from_str(&doctor.stdout).unwrap();
    let rows = checks["checks"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["name"] == "network rules (netdev)" && row["state"] == "ok"), "{checks}");
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
