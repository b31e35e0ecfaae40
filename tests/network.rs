//! Groups with a network of their own (B5, G1, G2, G3): the real binary and the reference CNI plugins, on a machine of the test's
//! own.
//!
//! Each test has a machine of its own (`site`), and what a run leaves there is found by comparing all of it with what was there
//! before.

#[path = "network/connections.rs"]
mod connections;
#[path = "network/doctor.rs"]
mod doctor;
#[path = "support/engine.rs"]
mod engine;
#[path = "network/faults.rs"]
mod faults;
#[path = "network/firewalls.rs"]
mod firewalls;
#[path = "network/guard.rs"]
mod guard;
#[path = "network/ipv6.rs"]
mod ipv6;
#[path = "network/kernel.rs"]
mod kernel;
#[path = "support/random.rs"]
mod random;
#[path = "network/rootless.rs"]
mod rootless;
#[path = "network/site.rs"]
mod site;
#[path = "support/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use engine::TestEngine;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use site::{By, HOST, PLUGINS, Site, done, group, ip, job};
use world::{Out, Running, World, copy_program, need_root, seconds, signal, wait_for_text};

/// What a web server says, asked from the neighbour's machine.
fn asked_from_outside(address: &str) -> String {
    let words = ["netns", "exec", "neighbour", "curl", "-sf", "-m", "5", address];
    let deadline = Instant::now() + seconds(30);
    loop {
        let out = Command::new("ip").args(words).output().unwrap();
        if out.status.success() {
            return String::from_utf8(out.stdout).unwrap();
        }
        assert!(Instant::now() < deadline, "{address}: {out:?}");
        #[expect(clippy::disallowed_methods, reason = "a server comes up until a deadline; there is no event")]
        std::thread::sleep(Duration::from_millis(50));
    }
}

const SERVER: &str = "mkdir -p ${NOMAD_TASK_DIR}/www && cd ${NOMAD_TASK_DIR}/www && env > env && echo pong > index.html && \
                      exec busybox httpd -f -p 8080";

/// G1: a mapped port is reached from another machine, from the machine itself and from another allocation; what the tasks are
/// told of it is Nomad's; exec sessions see the same network; nothing is left.
#[test]
fn g1_groups_reach_each_other_and_are_reached_over_mapped_ports() {
    need_root!();
    groups_reach_each_other_and_are_reached_over_mapped_ports(By::Plugins);
}

/// G1: the same where no CNI plugins are installed.
#[test]
fn g1_without_plugins_groups_reach_each_other_and_are_reached_over_mapped_ports() {
    need_root!();
    groups_reach_each_other_and_are_reached_over_mapped_ports(By::Builtin);
}

/// G1: the same where they are, and the kernel has no `nf_tables`.
#[test]
fn g1_without_nf_tables_groups_reach_each_other_and_are_reached_over_mapped_ports() {
    need_root!();
    groups_reach_each_other_and_are_reached_over_mapped_ports(By::PluginsAlone);
}

fn groups_reach_each_other_and_are_reached_over_mapped_ports(by: By) {
    let site = Site::made(by);
    let before = site.state();
    let server = group("server", "exec", "mode = \"bridge\"\nport \"http\" {\n static = 18080\n to = 8080\n}", SERVER);
    let client = format!(
        "until curl -sf -m 5 http://{HOST}:18080/index.html; do sleep 0.1; done; ip -o -4 address show eth0; sleep 1000"
    );
    let client = group("client", "raw_exec", "mode = \"bridge\"", &client);
    let run = site.start("two", &job("service", &[server, client]), &[]);
    wait_for_text(&run.stdout, "client | pong");
    wait_for_text(&run.stdout, "10.126.");
    assert_eq!(asked_from_outside(&format!("http://{HOST}:18080/index.html")), "pong\n");
    let own = done("curl", &["-sf", "-m", "5", &format!("http://{HOST}:18080/env")]);
    let inside = own.lines().find_map(|line| line.strip_prefix("NOMAD_ALLOC_IP_http=")).unwrap().to_owned();
    assert!(inside.starts_with("10.126."), "{inside}");
    for line in [
        format!("NOMAD_IP_http={HOST}"),
        format!("NOMAD_ADDR_http={HOST}:18080"),
        format!("NOMAD_HOST_IP_http={HOST}"),
        format!("NOMAD_HOST_ADDR_http={HOST}:18080"),
        "NOMAD_HOST_PORT_http=18080".to_owned(),
        "NOMAD_PORT_http=8080".to_owned(),
        "NOMAD_ALLOC_PORT_http=8080".to_owned(),
        format!("NOMAD_ALLOC_ADDR_http={inside}:8080"),
        "NOMAD_ALLOC_INTERFACE_http=eth0".to_owned(),
    ] {
        assert!(own.lines().any(|found| found == line), "{line}: {own}");
    }
    let during = site.state();
    assert!(
        during.contains("link \"agentbin\" \"UP\"")
            && during.contains("/run/agentbin/network/leases/agentbin/10.126.64.3")
    );
    assert!(before.is_subset(&during), "{:#?}", before.difference(&during));
    site.stop(run);
    assert_eq!(site.state(), before);
}

/// G1: a firewall that others start while an allocation is on the bridge, as Docker does, keeps nobody from its ports.
#[test]
fn g1_a_firewall_that_comes_later_keeps_nobody_out() {
    need_root!();
    a_firewall_that_comes_later_keeps_nobody_out(By::Plugins);
}

/// G1: the same where no CNI plugins are installed.
#[test]
fn g1_without_plugins_a_firewall_that_comes_later_keeps_nobody_out() {
    need_root!();
    a_firewall_that_comes_later_keeps_nobody_out(By::Builtin);
}

fn a_firewall_that_comes_later_keeps_nobody_out(by: By) {
    let site = Site::made(by);
    done("nft", &["delete", "table", "ip", "filter"]);
    let before = site.state();
    let accepts = || done("nft", &["list", "ruleset"]).contains("AGENTBIN-FORWARD");
    let server = group("server", "exec", "mode = \"bridge\"\nport \"http\" {\n static = 18080\n to = 8080\n}", SERVER);
    let run = site.start("server", &job("service", &[server]), &[]);
    let url = format!("http://{HOST}:18080/index.html");
    assert_eq!(asked_from_outside(&url), "pong\n");
    assert!(!accepts(), "nothing is dropped yet");
    done("iptables", &["-P", "FORWARD", "DROP"]);
    assert_eq!(asked_from_outside(&url), "pong\n");
    assert!(accepts());
    // As a firewall does that makes its rules anew.
    done("iptables", &["-F", "FORWARD"]);
    assert_eq!(asked_from_outside(&url), "pong\n");
    site.stop(run);
    assert!(!accepts());
    done("nft", &["delete", "table", "ip", "filter"]);
    assert_eq!(site.state(), before);
}

/// G1: the same when it comes while no process looks after the allocation: the next supervisor finds it there.
#[test]
fn g1_a_firewall_that_came_unseen_keeps_nobody_out() {
    need_root!();
    let site = Site::made(By::Builtin);
    done("nft", &["delete", "table", "ip", "filter"]);
    let server = group("server", "exec", "mode = \"bridge\"\nport \"http\" {\n static = 18080\n to = 8080\n}", SERVER);
    let file = site.world.file("server.nomad.hcl", &job("service", &[server]));
    let out: Out = site.world.command(&site.args(&["--detach", "--quiet"])).arg(file).output().unwrap().into();
    assert_eq!(out.status, 0, "{out:?}");
    let url = format!("http://{HOST}:18080/index.html");
    assert_eq!(asked_from_outside(&url), "pong\n");
    let runs = std::fs::read_dir(site.world.data_dir().join("runs")).unwrap().flatten();
    let mut locks = runs.map(|run| run.path()).filter(|path| path.extension().is_some_and(|end| end == "lock"));
    let supervisor = std::fs::read_to_string(locks.next().unwrap()).unwrap().trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(supervisor), nix::sys::signal::Signal::SIGKILL).unwrap();
    done("iptables", &["-P", "FORWARD", "DROP"]);
    let listed = site.world.agentbin(&["ps"]);
    assert_eq!(listed.status, 0, "{listed:?}");
    assert_eq!(asked_from_outside(&url), "pong\n");
    assert_eq!(site.world.agentbin(&["stop", "test"]).status, 0);
    done("nft", &["delete", "table", "ip", "filter"]);
}

/// G1: udp is mapped as well as tcp, the allocation reaches itself by the machine's address, and the loopback of the machine is
/// out of reach, though the plugin for ports opens it.
#[test]
fn g1_udp_hairpin_and_the_hosts_loopback() {
    need_root!();
    udp_hairpin_and_the_hosts_loopback(By::Plugins);
}

/// G1: the same where no CNI plugins are installed.
#[test]
fn g1_without_plugins_udp_hairpin_and_the_hosts_loopback() {
    need_root!();
    udp_hairpin_and_the_hosts_loopback(By::Builtin);
}

/// G1: the same where they are, and the kernel has no `nf_tables`.
#[test]
fn g1_without_nf_tables_udp_hairpin_and_the_hosts_loopback() {
    need_root!();
    udp_hairpin_and_the_hosts_loopback(By::PluginsAlone);
}

fn udp_hairpin_and_the_hosts_loopback(by: By) {
    let site = Site::made(by);
    let before = site.state();
    let secret = TcpListener::bind((Ipv4Addr::LOCALHOST, 17777)).unwrap();
    secret.set_nonblocking(true).unwrap();
    let go = site.world.path("go");
    let script = format!(
        "python3 -c \"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 9000))
while True:
    data, who = s.recvfrom(100)
    s.sendto(data, who)
\" &
mkdir www; echo own > www/index.html; busybox httpd -p 8080 -h www
until curl -sf -m 5 http://{HOST}:18080/index.html; do sleep 0.1; done
ip address del 127.0.0.1/8 dev lo
echo 1 > /proc/sys/net/ipv4/conf/eth0/route_localnet
ip route add 127.0.0.1/32 via 10.126.64.1
curl -s -m 2 http://127.0.0.1:17777/; echo tried once
until [ -e {} ]; do sleep 0.1; done
curl -s -m 2 http://127.0.0.1:17777/; echo tried twice; sleep 1000",
        go.display()
    );
    let ports = "mode = \"bridge\"\nport \"dns\" {\n static = 19000\n to = 9000\n}\nport \"http\" {\n static = 18080\n to = 8080\n}";
    let run = site.start("udp", &job("service", &[group("g", "raw_exec", ports, &script)]), &[]);
    wait_for_text(&run.stdout, "own");
    // A datagram that comes before the server listens is lost.
    let ask = format!(
        "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(0.5)
for _ in range(60):
    try:
        s.sendto(b'datagram', ('{HOST}', 19000))
        print(s.recvfrom(100))
        break
    except OSError:
        pass
"
    );
    let answer = done("ip", &["netns", "exec", "neighbour", "python3", "-c", &ask]);
    assert_eq!(answer, format!("(b'datagram', ('{HOST}', 19000))\n"));
    wait_for_text(&run.stdout, "tried once");
    let knocked = secret.accept().map(|(_, from)| from);
    assert!(knocked.is_err(), "{knocked:?}");
    // The way is there: without the rules, one on the bridge and one on the wire, the very same knock is heard.
    site.open_loopback();
    std::fs::write(go, "").unwrap();
    wait_for_text(&run.stdout, "tried twice");
    secret.accept().unwrap();
    site.stop(run);
    assert_eq!(site.state(), before);
}

/// G1: with mode none there is loopback, which is up, and nothing else; strict tasks get the same networks as others.
#[test]
fn g1_mode_none_is_loopback_only_and_strict_tasks_join_too() {
    need_root!();
    let site = Site::new();
    let before = site.state();
    let script = "ip -o link | cut -d: -f2; ip -o -4 address show lo | grep -o 127.0.0.1/8";
    for driver in ["exec", "raw_exec"] {
        let out = site.run(&job("batch", &[group("g", driver, "mode = \"none\"", script)]), &["--quiet"]);
        assert_eq!((out.status, out.stdout.as_str()), (0, " lo\n127.0.0.1/8\n"), "{driver}: {out:?}");
    }
    let strict = |mode: &str| {
        let text =
            group("g", "exec", &format!("mode = \"{mode}\""), "ip -o -4 address | cut -d' ' -f2,7; ls /sys/class/net");
        job("batch", &[text.replace("config {\n", "config {\n isolation = \"strict\"\n")])
    };
    let out = site.run(&strict("none"), &["--quiet"]);
    assert_eq!((out.status, out.stdout.as_str()), (0, "lo 127.0.0.1/8\nlo\n"), "{out:?}");
    let out = site.run(&strict("bridge"), &["--quiet"]);
    assert!(out.status == 0 && out.stdout.contains("eth0 10.126.") && out.stdout.ends_with("eth0\nlo\n"), "{out:?}");
    assert_eq!(site.state(), before);
}

/// G1: a conflist of the operator's, its arguments and its DNS; what cannot be made is said with its fix, and before anything
/// is made.
#[test]
fn g1_networks_of_the_operator() {
    need_root!();
    let site = Site::new();
    let before = site.state();
    let log = site.world.path("log");
    let spy = format!(
        "input=$(cat); echo \"$CNI_COMMAND $CNI_IFNAME $CNI_ARGS\" >> {0}; echo \"$input\" >> {0}.$CNI_COMMAND; echo \"$input\" | {PLUGINS}/ptp",
        log.display()
    );
    let dir = site.plugins(&[("spy", &spy), ("broken", "echo '{\"code\": 7, \"msg\": \"out of order\"}'; exit 1")]);
    let configs = site.world.path("configs");
    std::fs::create_dir(&configs).unwrap();
    let ipam = r#""ipam": {"type": "host-local", "subnet": "10.77.0.0/24", "dataDir": "/run/leases"}"#;
    let dns = r#""dns": {"nameservers": ["192.0.2.77"], "search": ["lab.test"]}"#;
    let list = format!(
        r#"{{"cniVersion": "1.0.0", "name": "lab", "plugins": [{{"type": "spy", "ipMasq": true, {ipam}, {dns}}}, {{"type": "portmap", "capabilities": {{"portMappings": true}}}}]}}"#
    );
    std::fs::write(configs.join("lab.conflist"), list).unwrap();
    let broken = format!(
        r#"{{"cniVersion": "1.0.0", "name": "bad", "plugins": [{{"type": "spy", {ipam}}}, {{"type": "broken"}}]}}"#
    );
    std::fs::write(configs.join("bad.conflist"), broken).unwrap();
    let missing = r#"{"cniVersion": "1.0.0", "name": "half", "plugins": [{"type": "nothere"}]}"#;
    std::fs::write(configs.join("half.conflist"), missing).unwrap();
    let args = ["--quiet", "--cni-config-dir", configs.to_str().unwrap(), "--cni-path", dir.to_str().unwrap()];
    let of = |network: &str, script: &str| job("batch", &[group("g", "exec", network, script)]);

    let network =
        "mode = \"cni/lab\"\ncni {\n args = {\n WHO = \"${NOMAD_GROUP_NAME}-x\"\n }\n}\nport \"p\" {\n to = 80\n}";
    let out = site.run(&of(network, "ip -o -4 address show eth0; cat /etc/resolv.conf; echo $NOMAD_ALLOC_IP_p"), &args);
    assert!(out.status == 0 && out.stdout.contains("inet 10.77.0.2/24"), "{out:?}");
    assert!(
        out.stdout.contains("nameserver 192.0.2.77\nsearch lab.test\n") && out.stdout.ends_with("10.77.0.2\n"),
        "{out:?}"
    );
    let lines = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = lines.lines().collect();
    assert!(lines[0].starts_with("ADD eth0 IgnoreUnknown=true;WHO=g-x;NOMAD_REGION=global;NOMAD_NAMESPACE=default;NOMAD_JOB_ID=test;NOMAD_GROUP_NAME=g;NOMAD_ALLOC_ID="), "{lines:?}");
    assert_eq!(lines[0].replace("ADD", "DEL"), lines[1], "DEL has the arguments of ADD");
    let deleted: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(format!("{}.DEL", log.display())).unwrap()).unwrap();
    assert_eq!(deleted["prevResult"]["ips"][0]["address"], "10.77.0.2/24", "{deleted}");
    assert_eq!(site.state(), before);

    // The words of an agent's configuration; the command line has precedence.
    let text = format!("client {{\n cni_config_dir = {configs:?}\n cni_path = {dir:?}\n}}\n");
    let config = site.world.file("agent.hcl", &text);
    let args_of_config = ["--quiet", "--config", config.to_str().unwrap()];
    let out = site.run(&of("mode = \"cni/lab\"", "ip -o -4 address show eth0"), &args_of_config);
    assert!(out.status == 0 && out.stdout.contains("inet 10.77.0."), "{out:?}");
    let elsewhere = [&args_of_config[..], &["--cni-config-dir", "/nonexistent"]].concat();
    let out = site.run(&of("mode = \"cni/lab\"", "true"), &elsewhere);
    assert!(out.status == 125 && out.stderr.contains("there is no CNI network \"lab\" in /nonexistent"), "{out:?}");

    std::fs::remove_file(&log).unwrap();
    let out = site.run(&of("mode = \"cni/bad\"", "true"), &args);
    let said = "network mode \"cni/bad\": CNI plugin broken (ADD, network \"bad\"): out of order";
    assert!(out.status == 125 && out.stderr.contains(said), "{out:?}");
    let lines = std::fs::read_to_string(&log).unwrap();
    let commands: Vec<&str> = lines.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(commands[..2], ["ADD", "DEL"], "what a failed ADD has done is undone");
    // The plugin that is out of order cannot undo anything either: what may be left is kept in mind, and told.
    let out = site.world.agentbin(&["gc"]);
    assert!(out.status == 1 && out.stderr.contains("out of order"), "{out:?}");
    std::fs::remove_file(dir.join("broken")).unwrap();
    copy_program(Path::new("/bin/true"), &dir.join("broken"));
    site.gc();
    assert_eq!((site.state(), site.world.allocations()), (before.clone(), 0));

    for (mode, said) in [
        ("cni/half", format!("the CNI plugin \"nothere\" is not in {}; install it", dir.display())),
        ("cni/none", format!("there is no CNI network \"none\" in {}, where there is \"bad\"", configs.display())),
    ] {
        let out = site.run(&of(&format!("mode = \"{mode}\""), "true"), &args);
        assert!(out.status == 125 && out.stderr.contains(&said) && !out.stderr.contains("left behind"), "{out:?}");
        // Before a group that could be made is.
        let (_already_gone, mode) = (std::fs::remove_file(&log), format!("mode = \"{mode}\""));
        let both = job("batch", &[group("a", "exec", "mode = \"cni/lab\"", "true"), group("b", "exec", &mode, "true")]);
        for dry in [&[][..], &["--dry-run"]] {
            let out = site.run(&both, &[&args, dry].concat());
            assert!(out.status == 125 && out.stderr.contains(&said) && !log.exists(), "{out:?}");
        }
    }
    let out = site.run(&of("mode = \"cni/lab\"", "true"), &[&args[..], &["--dry-run"]].concat());
    assert!(out.status == 0 && out.stdout.contains("group g, network mode cni/lab\n") && !log.exists(), "{out:?}");
    let out = site.run(&of("mode = \"bridge\"", "true"), &["--cni-path", configs.to_str().unwrap()]);
    assert_eq!(out.status, 0, "the built-in network needs no plugins: {out:?}");
    let out = site.run(&of("mode = \"bridge\"", "true"), &["--bridge-network-subnet", "10.99.0.0/16"]);
    assert!(out.status == 125 && out.stderr.contains("others has the address 10.99.0.1"), "{out:?}");
    // A bridge of this name that somebody else made stays as it is.
    ip("link add agentbin type bridge");
    let out = site.run(&of("mode = \"bridge\"", "true"), &[]);
    assert!(
        out.status == 125 && out.stderr.contains("there is an interface \"agentbin\" that agentbin did not make"),
        "{out:?}"
    );
    ip("link del agentbin");
    assert_eq!(site.state(), before);
}

/// G1: whoever wants the end of a run is heard while its network is made: Ctrl-C, `stop`, the time, also when the plugin that is to
/// undo it hangs as well.
#[test]
fn g1_a_network_that_is_not_made_in_time_keeps_nobody() {
    need_root!();
    let site = Site::new();
    let before = site.state();
    let (log, undone) = (site.world.path("log"), site.world.path("undone"));
    let slow = format!(
        "echo \"$CNI_COMMAND\" >> {}; [ $CNI_COMMAND = DEL ] && [ -e {} ] && exit 0; exec sleep 1000",
        log.display(),
        undone.display()
    );
    let dir = site.plugins(&[("slow", &slow)]);
    let configs = site.world.path("configs");
    std::fs::create_dir(&configs).unwrap();
    let list = r#"{"cniVersion": "1.0.0", "name": "slow", "plugins": [{"type": "slow"}]}"#;
    std::fs::write(configs.join("slow.conflist"), list).unwrap();
    let data_dir = site.world.data_dir();
    let dirs = ["--cni-config-dir", configs.to_str().unwrap(), "--cni-path", dir.to_str().unwrap()];
    // Whoever comes second waits for the first one's lock.
    let text = job("service", &["a", "b"].map(|name| group(name, "exec", "mode = \"cni/slow\"", "sleep 1000")));
    let start = |args: &[&str]| {
        let run = site.start("slow", &text, &[&dirs, args].concat());
        let deadline = Instant::now() + seconds(60);
        while !std::fs::read_to_string(&log).is_ok_and(|log| log.contains("ADD")) {
            assert!(Instant::now() < deadline, "the plugin is called");
        }
        run
    };
    let agentbin = |args: &[&str]| site.world.agentbin(&[args, &["--data-dir", data_dir.to_str().unwrap()]].concat());
    let ended = |mut run: Running, status: i32, patience: u64| {
        let began = Instant::now();
        let out = run.finish();
        assert_eq!(out.status, status, "{out:?}");
        assert!(began.elapsed() < seconds(patience), "after {:?}: {out:?}", began.elapsed());
        std::fs::remove_file(&log).unwrap();
        out
    };

    std::fs::write(&undone, "").unwrap();
    let run = start(&[]);
    let out = agentbin(&["ps", "--json"]);
    let views: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert!(views.as_array().unwrap().len() == 2 && views[0]["status"] == "pending", "it is seen: {views}");
    // One of the two alone: the run goes on with the other one.
    let id = views[0]["id"].as_str().unwrap();
    let began = Instant::now();
    let out = agentbin(&["stop", id]);
    assert_eq!(out.status, 0, "{out:?}");
    assert!(began.elapsed() < seconds(20), "{:?}", began.elapsed());
    let deadline = Instant::now() + seconds(60);
    while std::fs::read_to_string(&log).unwrap() != "ADD\nDEL\nADD\n" {
        assert!(Instant::now() < deadline, "the next one's turn has come");
    }
    // A second one waits for the network, and hears it there, too.
    let mut waits = site.start("waits", &text, &[&dirs[..], &["--quiet"]].concat());
    let deadline = Instant::now() + seconds(60);
    while agentbin(&["ps"]).stdout.lines().count() < 4 {
        assert!(Instant::now() < deadline, "it is seen");
    }
    let began = Instant::now();
    signal(&waits.child, "INT");
    let out = waits.finish();
    assert_eq!((out.status, out.stderr.as_str()), (130, ""));
    assert!(began.elapsed() < seconds(20), "{:?}", began.elapsed());
    let out = agentbin(&["stop", "test"]);
    assert_eq!(out.status, 0, "{out:?}");
    ended(run, 143, 20);
    let run = start(&[]);
    signal(&run.child, "INT");
    ended(run, 130, 20);
    let run = start(&["--timeout", "2s"]);
    let out = ended(run, 124, 20);
    assert!(out.stderr.contains("--timeout"), "{out:?}");
    assert_eq!((site.state(), site.world.allocations()), (before.clone(), 0));

    // The plugin does not undo it either: it has its moment, and the next clean-up tries again.
    std::fs::remove_file(&undone).unwrap();
    let run = start(&[]);
    signal(&run.child, "INT");
    let out = ended(run, 130, 40);
    assert!(out.stderr.contains("it was given up because the allocation is to end"), "{out:?}");
    let records = || std::fs::read_dir(data_dir.join("alloc")).into_iter().flatten().flatten().count();
    assert_ne!(records(), 0, "its record is kept for that");
    std::fs::write(&undone, "").unwrap();
    site.gc();
    assert_eq!((site.state(), records()), (before, 0));
}

/// G1: a run that is killed at any moment leaves what the next clean-up finds, and it removes no more than that.
#[test]
fn g1_what_a_killed_run_left_is_removed() {
    need_root!();
    let site = Site::new();
    let network = "mode = \"bridge\"\nport \"p\" {\n to = 80\n}";
    let text = job("batch", &[group("g", "raw_exec", network, "echo up; sleep 1000")]);
    let short = job("batch", &[group("g", "raw_exec", network, "true")]);
    // Somebody else's, who goes on meanwhile.
    let other = World::new();
    let file = other.file("other.nomad.hcl", &text);
    let mut others = other.start(&[file.to_str().unwrap()]);
    wait_for_text(&others.stdout, "up");
    let before = site.state();

    let mut run = site.start("killed", &text, &[]);
    wait_for_text(&run.stdout, "up");
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    assert_ne!(site.state(), before);
    site.gc();
    assert_eq!(site.state(), before, "killed while its task runs");

    let mut moments = 0;
    for plugin in ["bridge", "portmap"] {
        for command in ["ADD", "DEL"] {
            for after in [false, true] {
                let (one, two) = if after { ("", "kill -9 $PPID") } else { ("kill -9 $PPID; sleep 0.3", "") };
                let script = format!(
                    "[ $CNI_COMMAND = {command} ] || exec {PLUGINS}/{plugin}\n{one}\n{PLUGINS}/{plugin}\n{two}"
                );
                let dir = site.plugins(&[(plugin, &script)]);
                let out = site.run(&short, &["--cni-path", dir.to_str().unwrap()]);
                assert_eq!(out.status, -1, "{plugin} {command} {after}: {out:?}");
                site.plugins(&[]);
                // The plugin that goes on is waited for; the next run cleans up as gc does.
                if after {
                    site.gc();
                } else {
                    let out = site.run(&short, &[]);
                    assert_eq!((out.status, out.stderr.contains("cannot")), (0, false), "{plugin} {command}: {out:?}");
                }
                assert_eq!((site.state(), site.world.allocations()), (before.clone(), 0), "{plugin} {command} {after}");
                moments += 1;
            }
        }
    }
    assert_eq!(moments, 8);

    signal(&others.child, "INT");
    others.finish();
    let left = site.state();
    // A table of somebody else's begins like ours.
    let is_ours = |line: &String| line.to_lowercase().replace("agentbins", "").contains("agentbin");
    assert!(left.is_subset(&before) && !left.iter().any(is_ours), "{left:#?}");
    other.assert_clean();

    // After a reboot nothing is there but the record.
    let mut run = site.start("rebooted", &text, &[]);
    wait_for_text(&run.stdout, "up");
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
    mount(Some("run"), "/run", Some("tmpfs"), MsFlags::empty(), Some("mode=755")).unwrap();
    done("iptables", &["-P", "FORWARD", "DROP"]);
    done("iptables", &["-t", "nat", "-N", "OTHERS"]);
    // The reference plugin for ports makes this table where it is missing.
    done("ip6tables", &["-t", "nat", "-N", "OTHERS"]);
    let before = site.state();
    assert_eq!(site.world.allocations(), 1);
    site.gc();
    assert_eq!((site.state(), site.world.allocations()), (before, 0));
}

/// G1: what a killed run has made without plugins is removed, too: killed while its task runs, and at a random moment.
#[test]
fn g1_without_plugins_what_a_killed_run_left_is_removed() {
    need_root!();
    let site = Site::made(By::Builtin);
    let before = site.state();
    let network = "mode = \"bridge\"\nport \"p\" {\n to = 80\n}";
    let text = job("batch", &[group("g", "raw_exec", network, "echo up; sleep 1000")]);
    let mut run = site.start("killed", &text, &[]);
    let began = Instant::now();
    wait_for_text(&run.stdout, "up");
    let whole = began.elapsed();
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    assert_ne!(site.state(), before);
    site.gc();
    assert_eq!(site.state(), before, "killed while its task runs");
    let mut random = random::Random::new("g1_without_plugins_what_a_killed_run_left_is_removed");
    for _ in 0..12 {
        let after = whole.mul_f64(f64::from(u32::try_from(random.index(1000)).unwrap()) / 1000.0);
        let mut run = site.start("killed", &text, &[]);
        #[expect(clippy::disallowed_methods, reason = "the moment of the kill is what is drawn")]
        std::thread::sleep(after);
        run.child.kill().unwrap();
        run.child.wait().unwrap();
        site.gc();
        assert_eq!((site.state(), site.world.allocations()), (before.clone(), 0), "killed after {after:?}");
    }
}

/// G1: the bridge has one subnet: a run with another one is refused and touches nothing of what others have.
#[test]
fn g1_a_second_subnet_is_refused_while_the_first_is_used() {
    need_root!();
    let site = Site::new();
    let before = site.state();
    let network = "mode = \"bridge\"\nport \"http\" {\n static = 18080\n to = 8080\n}";
    let run = site.start("first", &job("service", &[group("server", "exec", network, SERVER)]), &[]);
    let ask = || asked_from_outside(&format!("http://{HOST}:18080/index.html"));
    assert_eq!(ask(), "pong\n");
    let during = site.state();
    let short = job("batch", &[group("g", "raw_exec", "mode = \"bridge\"", "ip -o -4 address show eth0")]);
    let other = ["--quiet", "--bridge-network-subnet", "10.50.0.0/24"];
    let out = site.run(&short, &other);
    assert!(
        out.status == 125 && out.stderr.contains("10.126.64.0/20") && out.stderr.contains("--bridge-network-subnet"),
        "{out:?}"
    );
    assert_eq!(site.state(), during);
    assert_eq!(ask(), "pong\n");
    site.stop(run);
    assert_eq!(site.state(), before);
    // When nobody uses it any more, it is another one's.
    let out = site.run(&short, &other);
    assert!(out.status == 0 && out.stdout.contains("inet 10.50.0.2/24"), "{out:?}");
    assert_eq!(site.state(), before);
    // So it is when the bridge was left behind.
    let mut run = site.start("killed", &job("service", &[group("server", "exec", network, SERVER)]), &[]);
    assert_eq!(ask(), "pong\n");
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    let out = site.run(&short, &other);
    assert!(out.status == 0 && out.stdout.contains("inet 10.50.0.2/24"), "{out:?}");
    assert_eq!(site.state(), before);
}

/// G1: while packets for a port are still led to an allocation that is gone, nobody else gets the port.
#[test]
fn g1_a_port_is_free_when_nothing_leads_anywhere_any_more() {
    need_root!();
    let site = Site::new();
    let before = site.state();
    let network = "mode = \"bridge\"\nport \"http\" {\n static = 18080\n to = 8080\n}";
    let short = job("batch", &[group("next", "raw_exec", network, "true")]);
    // Its plugin does not disconnect one of two groups, while the run goes on.
    let stuck = format!(
        "[ $CNI_COMMAND = ADD ] || [ -e {} ] || exit 1; exec {PLUGINS}/portmap",
        site.world.path("well").display()
    );
    let dir = site.plugins(&[("portmap", &stuck)]);
    let other = World::new();
    let groups = [
        group("first", "raw_exec", network, "true"),
        group("second", "raw_exec", "mode = \"none\"", "echo up; sleep 1000"),
    ];
    let file = other.file("two.nomad.hcl", &job("batch", &groups));
    let mut run = other.start(&["--cni-path", dir.to_str().unwrap(), file.to_str().unwrap()]);
    wait_for_text(&run.stdout, "up");
    // Its directory goes after its network, which does not.
    let deadline = Instant::now() + seconds(30);
    while other.allocations() > 1 {
        assert!(Instant::now() < deadline, "the first group is not removed");
        #[expect(clippy::disallowed_methods, reason = "a directory goes until a deadline; there is no event")]
        std::thread::sleep(Duration::from_millis(10));
    }
    let out = site.run(&short, &[]);
    assert!(
        out.status == 125 && out.stderr.contains("18080 is not free") && out.stderr.contains("group \"first\""),
        "{out:?}"
    );
    // Nor when the run was killed: only its own data directory's clean-up gives it back.
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    let out = site.run(&short, &[]);
    let fix = format!("agentbin gc --data-dir {}", other.data_dir().display());
    assert!(out.status == 125 && out.stderr.contains("18080 is not free") && out.stderr.contains(&fix), "{out:?}");
    // No dynamic one either.
    let dynamic = network.replace("static = 18080\n ", "");
    let out =
        site.run(&job("batch", &[group("next", "raw_exec", &dynamic, "true")]), &["--dynamic-ports", "18080-18080"]);
    assert!(out.status == 125 && out.stderr.contains("no port from 18080 to 18080 is free"), "{out:?}");
    other.file("well", "");
    site.world.file("well", "");
    let mut gc = Command::new(env!("CARGO_BIN_EXE_agentbin"));
    gc.args(["gc", "--data-dir"]).arg(other.data_dir());
    let out = Out::from(gc.output().unwrap());
    assert_eq!(out.status, 0, "{out:?}");
    let out = site.run(&short, &[]);
    assert_eq!(out.status, 0, "{out:?}");
    assert_eq!(site.state(), before);
}

/// G1: what cannot be disconnected does not keep a killed run's tasks alive.
#[test]
fn g1_a_plugin_that_is_gone_keeps_no_task_alive() {
    need_root!();
    let site = Site::new();
    let before = site.state();
    let dir = site.plugins(&[]);
    let args = ["--cni-path", dir.to_str().unwrap()];
    let network = "mode = \"bridge\"\nport \"http\" {\n to = 8080\n}";
    let mut run = site.start("killed", &job("batch", &[group("g", "raw_exec", network, "echo up; sleep 1000")]), &args);
    wait_for_text(&run.stdout, "up");
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    std::fs::remove_file(dir.join("portmap")).unwrap();
    let out = site.world.agentbin(&["gc"]);
    assert!(out.status == 1 && out.stderr.contains("the CNI plugin \"portmap\" is not in"), "{out:?}");
    let left = site.state();
    assert!(!left.iter().any(|line| line.starts_with("/run/agentbin/network/netns/")), "{left:#?}");
    assert_eq!(site.world.allocations(), 1, "it is tried again");
    site.plugins(&[]);
    site.gc();
    assert_eq!((site.state(), site.world.allocations()), (before, 0));
}

/// G1: what a run made is also removed when nobody has its record any more: its data directory was removed, say.
#[test]
fn g1_networks_without_a_record_are_removed() {
    need_root!();
    let site = Site::new();
    let before = site.state();
    let network = "mode = \"bridge\"\nport \"http\" {\n static = 18080\n to = 8080\n}";
    let text = job("batch", &[group("g", "raw_exec", network, "echo up; exec sleep 1000")]);
    let other = World::new();
    let file = other.file("other.nomad.hcl", &text);
    let mut run = other.start(&[file.to_str().unwrap()]);
    wait_for_text(&run.stdout, "up");
    let records = || std::fs::read_dir(other.data_dir().join("alloc")).unwrap().flatten().map(|entry| entry.path());
    let record = records().find(|path| path.extension().is_some_and(|e| e == "json")).unwrap();
    let kept = record.with_extension("kept");
    std::fs::rename(&record, &kept).unwrap();
    let during = site.state();
    site.gc();
    assert_eq!(site.state(), during, "its run lives");
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    std::fs::rename(&kept, &record).unwrap();
    site.gc();
    assert_eq!(site.state(), during, "whoever has its record removes it, with its tasks");
    std::fs::rename(&record, &kept).unwrap();
    let out = site.world.agentbin(&["gc", "--dry-run"]);
    assert!(out.status == 0 && out.stdout.contains("would remove") && out.stdout.contains("network of"), "{out:?}");
    assert_eq!(site.state(), during);
    site.gc();
    assert_eq!(site.state(), before);
    // Its task is not ours to end, for whom there is no record.
    std::fs::rename(&kept, &record).unwrap();
    let mut gc = Command::new(env!("CARGO_BIN_EXE_agentbin"));
    gc.args(["gc", "--data-dir"]).arg(other.data_dir());
    let out = Out::from(gc.output().unwrap());
    assert_eq!(out.status, 0, "{out:?}");
    other.assert_clean();
    assert_eq!(site.state(), before);
}

/// G1: a program that a plugin leaves running, as some do that serve names, is not an orphan of the run's.
#[test]
fn g1_what_a_plugin_leaves_running_goes_on() {
    need_root!();
    let site = Site::new();
    let before = site.state();
    let pid = site.world.path("pid");
    let leave = format!(
        "[ $CNI_COMMAND = ADD ] && [ ! -e {0} ] && {{ setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $! > {0}; }}\nexec {PLUGINS}/portmap",
        pid.display()
    );
    let dir = site.plugins(&[("portmap", &leave)]);
    let network = "mode = \"bridge\"\nport \"p\" {\n to = 80\n}";
    // Also when the run looks for orphans.
    let groups = [
        group("good", "raw_exec", network, "true"),
        group("bad", "raw_exec", network, "true").replace("/bin/sh", "/no/sh"),
    ];
    let out = site.run(&job("batch", &groups), &["--cni-path", dir.to_str().unwrap()]);
    assert!(out.stderr.contains("/no/sh"), "{out:?}");
    let pid = std::fs::read_to_string(pid).unwrap();
    let lives = std::fs::read(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
    assert_eq!(lives, b"sleep\x001000\x00");
    done("kill", &[pid.trim()]);
    assert_eq!(site.state(), before);
}

/// G1: an argument that no plugin can be given is refused before anything is made.
#[test]
fn g1_arguments_that_cannot_be_said_are_refused() {
    need_root!();
    let site = Site::new();
    let before = site.state();
    let configs = site.world.path("configs");
    std::fs::create_dir(&configs).unwrap();
    let list = r#"{"cniVersion": "1.0.0", "name": "lab", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.77.0.0/24", "dataDir": "/run/leases"}}]}"#;
    std::fs::write(configs.join("lab.conflist"), list).unwrap();
    let long = "x".repeat(200 << 10);
    for (meta, said) in [("a;b", "\";\""), ("a=b", "\"=\""), (&long, "longer than")] {
        let network = "mode = \"cni/lab\"\ncni {\n args = {\n X = \"${NOMAD_META_LIST}\"\n}\n}";
        let text = job("batch", &[group("g", "raw_exec", network, "true")]);
        let text = text.replacen("type =", &format!("meta {{\n LIST = \"{meta}\"\n}}\ntype ="), 1);
        let out = site.run(&text, &["--cni-config-dir", configs.to_str().unwrap()]);
        assert!(out.status == 125 && out.stderr.contains(said) && out.stderr.contains("\"X\""), "{said}: {out:?}");
        assert!(!out.stderr.contains("left behind"), "{said}: {out:?}");
        assert_eq!((site.state(), site.world.allocations()), (before.clone(), 0), "{said}");
        site.gc();
    }
}

/// G1: allocations one after the other and many at once leave nothing, never share an address, and each answers at its port.
/// Twenty-five and ten; with `AGENTBIN_FULL=1`, 1,000 and 200.
#[test]
fn g1_many_allocations_leave_nothing() {
    need_root!();
    many_allocations_leave_nothing(By::Plugins);
}

/// G1: the same where no CNI plugins are installed.
#[test]
fn g1_without_plugins_many_allocations_leave_nothing() {
    need_root!();
    many_allocations_leave_nothing(By::Builtin);
}

fn many_allocations_leave_nothing(by: By) {
    let full = std::env::var("AGENTBIN_FULL").is_ok_and(|full| full == "1");
    let (runs, at_once) = if full { (200, 200) } else { (5, 10) };
    let site = Site::made(by);
    let before = site.state();
    let script = "ip -o -4 address show eth0 | grep -o '10[.][0-9.]*/20'";
    let ports = "mode = \"bridge\"\nport \"p\" {\n to = 80\n}";
    let different =
        |text: &str| text.split_whitespace().filter(|word| word.ends_with("/20")).collect::<BTreeSet<_>>().len();
    for _ in 0..runs {
        let five = group("g", "raw_exec", ports, script).replacen("{\n", "{\n count = 5\n", 1);
        let out = site.run(&job("batch", &[five]), &["--quiet"]);
        assert_eq!((out.status, different(&out.stdout)), (0, 5), "{out:?}");
    }
    assert_eq!(site.state(), before);

    // Each says its address, the port of the host that leads to it, and `end`, and serves its address there.
    let script = format!(
        "address=$({script}); mkdir www; echo $address > www/index.html; busybox httpd -p 80 -h www\n\
         echo at $address $NOMAD_HOST_PORT_p end; sleep 1000"
    );
    let many = group("g", "raw_exec", ports, &script).replacen("{\n", &format!("{{\n count = {at_once}\n"), 1);
    let run = site.start("many", &job("service", &[many]), &["--quiet"]);
    let deadline = Instant::now() + seconds(if full { 300 } else { 60 });
    let said = loop {
        let said = String::from_utf8_lossy(&run.stdout.lock().unwrap()).into_owned();
        let ready = said.matches(" end\n").count();
        if ready == at_once {
            break said;
        }
        assert!(Instant::now() < deadline, "{ready} of {at_once} have said where they are: {said}");
        #[expect(clippy::disallowed_methods, reason = "tasks come up until a deadline; there is no event")]
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(different(&said), at_once, "{said}");
    for line in said.lines().filter_map(|line| line.split_once("at ")) {
        let (address, port) = line.1.trim_end_matches(" end").split_once(' ').unwrap();
        assert_eq!(asked_from_outside(&format!("http://{HOST}:{port}/index.html")), format!("{address}\n"));
    }
    site.stop(run);
    assert_eq!(site.state(), before);
}

/// An engine for this test, which says so if there is none.
fn engine(test: &str) -> Option<TestEngine> {
    match TestEngine::start() {
        Ok(engine) => Some(engine),
        Err(why) => {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{why}");
            println!("SKIP: {test}: {why}");
            None
        }
    }
}

/// G2: a container and a process share one network, for which nothing is fetched; the container's names are the group's.
#[test]
fn g2_docker_and_exec_in_one_group() {
    need_root!();
    let site = Site::new();
    let Some(engine) = engine("g2_docker_and_exec_in_one_group") else { return };
    let before = site.state();
    let text = r#"
job "pair" {
  group "g" {
    network {
      mode     = "bridge"
      hostname = "pair-${NOMAD_ALLOC_INDEX}"
      port "http" { to = 8080 }
      dns { servers = ["192.0.2.53"] }
    }
    task "web" {
      driver = "docker"
      config {
        image   = "busybox:test"
        command = "/bin/sh"
        args    = ["-c", "/bin/busybox mkdir /www; cat /etc/hosts /etc/resolv.conf > /www/index.html; /bin/busybox hostname >> /www/index.html; exec /bin/busybox httpd -f -p 8080 -h /www"]
        ports   = ["http"]
      }
    }
    task "probe" {
      driver = "exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "until curl -sf -m 5 http://127.0.0.1:8080/index.html; do sleep 0.1; done; sleep 1000"]
      }
    }
  }
}
"#;
    let start = |name: &str| {
        let file = site.world.file(&format!("{name}.nomad.hcl"), text);
        let mut command = site.world.command(&[]);
        command.arg(file).env("DOCKER_HOST", engine.endpoint());
        World::start_command(command)
    };
    let mut run = start("pair");
    wait_for_text(&run.stdout, "pair-0\n");
    let said = String::from_utf8_lossy(&run.stdout.lock().unwrap()).into_owned();
    assert!(said.contains("nameserver 192.0.2.53") && said.contains("10.126.") && said.contains(" pair-0"), "{said}");
    let save = done("iptables-save", &["-t", "nat"]);
    let port = save.split("--dport ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert!(asked_from_outside(&format!("http://{HOST}:{port}/index.html")).contains("pair-0"));
    signal(&run.child, "INT");
    let out = run.finish();
    assert!(!out.stderr.contains("cannot"), "{out:?}");
    assert_eq!(engine.docker(&["ps", "-aq"]), "");
    assert_eq!(site.state(), before);

    let mut run = start("killed");
    wait_for_text(&run.stdout, "pair-0\n");
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    let gc = || {
        let mut gc = Command::new(env!("CARGO_BIN_EXE_agentbin"));
        gc.args(["gc", "--data-dir"]).arg(site.world.data_dir()).env("DOCKER_HOST", engine.endpoint());
        Out::from(gc.output().unwrap())
    };
    let out = gc();
    assert_eq!(out.status, 0, "{out:?}");
    assert_eq!(engine.docker(&["ps", "-aq"]), "");
    assert_eq!(site.state(), before);

    // A network that cannot be given back keeps neither the container nor the process alive.
    let dir = site.plugins(&[]);
    let file = site.world.file("stuck.nomad.hcl", text);
    let mut command = site.world.command(&["--cni-path", dir.to_str().unwrap()]);
    command.arg(file).env("DOCKER_HOST", engine.endpoint());
    let mut run = World::start_command(command);
    wait_for_text(&run.stdout, "pair-0\n");
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    std::fs::remove_file(dir.join("portmap")).unwrap();
    let out = gc();
    assert!(out.status == 1 && out.stderr.contains("the CNI plugin \"portmap\" is not in"), "{out:?}");
    assert_eq!(engine.docker(&["ps", "-aq"]), "");
    assert_eq!(site.world.task_processes(), [""; 0]);
    site.plugins(&[]);
    let out = gc();
    assert_eq!(out.status, 0, "{out:?}");
    assert_eq!((site.state(), site.world.allocations()), (before, 0));
}

/// B5: the tasks of a group are in one network namespace, whatever their drivers, a java task too, and in strict isolation.
#[test]
fn b5_tasks_of_all_drivers_are_in_the_groups_namespace() {
    need_root!();
    let site = Site::new();
    let Some(engine) = engine("b5_tasks_of_all_drivers_are_in_the_groups_namespace") else { return };
    let source = site.world.file(
        "Where.java",
        "class Where {
    public static void main(String[] args) throws Exception {
        System.out.println(\"java \" + java.nio.file.Files.readSymbolicLink(java.nio.file.Path.of(\"/proc/self/ns/net\")));
    }
}
",
    );
    done("javac", &["-d", source.parent().unwrap().to_str().unwrap(), source.to_str().unwrap()]);
    let class = source.with_extension("class");
    let shell = |driver: &str, more: &str| {
        format!(
            "task \"{driver}\" {{\n driver = \"{driver}\"\n config {{\n command = \"/bin/sh\"\n \
             args = [\"-c\", \"echo {driver} $(/bin/busybox readlink /proc/self/ns/net)\"]\n {more}\n }}\n }}\n"
        )
    };
    for (mode, level) in [("bridge", "default"), ("bridge", "strict"), ("none", "default")] {
        let before = site.state();
        let isolation = format!("isolation = \"{level}\"");
        let text = format!(
            "job \"test\" {{\n type = \"batch\"\n group \"g\" {{\n network {{\n mode = \"{mode}\"\n }}\n{}{}{}\
             task \"java\" {{\n driver = \"java\"\n artifact {{\n source = \"{}\"\n }}\n config {{\n class = \"Where\"\n \
             class_path = \"${{NOMAD_TASK_DIR}}\"\n {isolation}\n }}\n }}\n}}\n}}\n",
            shell("exec", &isolation),
            shell("raw_exec", ""),
            shell("docker", "image = \"busybox:test\""),
            class.display()
        );
        let file = site.world.file("drivers.nomad.hcl", &text);
        let mut command = site.world.command(&["--quiet"]);
        command.arg(file).env("DOCKER_HOST", engine.endpoint());
        let out = Out::from(command.output().unwrap());
        assert_eq!(out.status, 0, "{mode} {level}: {out:?}");
        let mut drivers = BTreeSet::new();
        let mut namespaces = BTreeSet::new();
        for line in out.stdout.lines() {
            // As `run` prints it: the task before its line.
            let (driver, namespace) = line.split_once(" | ").unwrap().1.split_once(' ').unwrap();
            drivers.insert(driver);
            namespaces.insert(namespace);
        }
        assert_eq!(drivers, BTreeSet::from(["docker", "exec", "java", "raw_exec"]), "{out:?}");
        let host = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        assert!(namespaces.len() == 1 && !namespaces.contains(host.to_str().unwrap()), "{mode} {level}: {out:?}");
        assert_eq!(site.state(), before, "{mode} {level}");
    }
}
