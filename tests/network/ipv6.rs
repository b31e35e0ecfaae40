//! IPv6 on the built-in bridge (row G1).

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::site::{By, HOST_IPV6, Site, done, group, ip, job};
use crate::world::{World, need_root, seconds, signal, wait_for_text};
use crate::{SERVER, asked_from_outside};

/// A web server in the neighbour's machine that says who asks.
const WHO: &str = r#"
import http.server, socket
class Server(http.server.HTTPServer):
    address_family = socket.AF_INET6
class Who(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"you are " + self.client_address[0].encode() + b"\n")
Server(("2001:db8:7::9", 17000), Who).serve_forever()
"#;

/// Announces a router to all on the wire, until it is killed.
const ROUTER: &str = r#"
import socket, struct, time
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, socket.if_nametoindex("wire"))
while True:
    try:
        s.sendto(struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0), ("ff02::1", 0))
    except OSError:
        pass
    time.sleep(0.1)
"#;

const FORWARDING: &str = "/proc/sys/net/ipv6/conf/all/forwarding";

/// A program of the neighbour's.
struct Neighbour(Child);

impl Neighbour {
    fn new(script: &str) -> Neighbour {
        let words = ["netns", "exec", "neighbour", "python3", "-c", script];
        Neighbour(Command::new("ip").args(words).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _already_gone = self.0.kill();
        let _already_gone = self.0.wait();
    }
}

/// G1: a mapped port is reached over IPv6 from another machine, from the machine itself and from another allocation, which reaches
/// the other machine with the address of this one; nothing is left.
#[test]
fn g1_groups_are_reached_over_ipv6() {
    need_root!();
    groups_are_reached_over_ipv6(By::Plugins);
}

/// G1: the same where no CNI plugins are installed.
#[test]
fn g1_without_plugins_groups_are_reached_over_ipv6() {
    need_root!();
    groups_are_reached_over_ipv6(By::Builtin);
}

fn groups_are_reached_over_ipv6(by: By) {
    let site = Site::with_ipv6(by);
    let before = site.state();
    let who = Neighbour::new(WHO);
    let ports = "mode = \"bridge\"\nport \"http\" {\n static = 18080\n to = 8080\n host_network = \"six\"\n}";
    // At once: no address waits for others to object to it.
    let script = format!("ip -o -6 address show dev eth0 scope global; ip -6 route; {SERVER}");
    let server = group("server", "exec", ports, &script);
    let url = format!("http://[{HOST_IPV6}]:18080/index.html");
    let client = format!(
        "until curl -sf -m 5 {url}; do sleep 0.1; done; until curl -sf -m 5 http://[2001:db8:7::9]:17000/; do sleep 0.1; done; sleep 1000"
    );
    let client = group("client", "raw_exec", "mode = \"bridge\"", &client);
    let run = site.start("two", &job("service", &[server, client]), &[]);
    wait_for_text(&run.stdout, "client | pong");
    wait_for_text(&run.stdout, &format!("client | you are {HOST_IPV6}"));
    let said = String::from_utf8_lossy(&run.stdout.lock().unwrap()).into_owned();
    assert!(said.contains("inet6 fd00:7::") && said.contains("default via fd00:7::1"), "{said}");
    assert!(!said.contains("tentative"), "{said}");
    assert_eq!(asked_from_outside(&url), "pong\n");
    assert_eq!(done("curl", &["-sf", "-m", "5", &url]), "pong\n");
    let told = site.world.agentbin(&["network", "status", "--json"]).stdout;
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let addresses = |key: &str| {
        let all = told["networks"].as_array().unwrap().iter().map(|one| one[key].as_str().unwrap().to_owned());
        all.collect::<BTreeSet<_>>()
    };
    assert!(addresses("address").iter().all(|ip| ip.starts_with("10.126.64.")), "{told}");
    let six = addresses("address_ipv6");
    assert!(six.len() == 2 && six.iter().all(|ip| ip.starts_with("fd00:7::")), "{told}");
    let text = site.world.agentbin(&["network", "status"]).stdout;
    assert!(six.iter().all(|ip| text.contains(&format!(",{ip} "))), "{text}");
    let during = site.state();
    assert!(before.is_subset(&during), "{:#?}", before.difference(&during));

    // A bridge has its subnets until its last allocation has gone.
    let none = job("batch", &[group("none", "raw_exec", "mode = \"bridge\"", "true")]);
    let out = site.world.run_text(&none, &[]);
    let fix = "give --bridge-network-subnet 10.126.64.0/20 --bridge-network-subnet-ipv6 fd00:7::/64";
    assert!(out.status == 125 && out.stderr.contains(fix), "{out:?}");
    assert_eq!(site.state(), during);
    site.stop(run);
    drop(who);
    assert_eq!(site.state(), before);
    let left = site.remembered();
    assert!(!left.iter().any(|line| line.contains("fd00:7:") || line.contains("10.126.")), "{left:#?}");
    let out = site.world.run_text(&none, &[]);
    assert_eq!(out.status, 0, "{out:?}");
}

/// G2: the namespace of docker's pause container has addresses of both families.
#[test]
fn g2_docker_and_exec_over_ipv6() {
    need_root!();
    docker_and_exec_over_ipv6("g2_docker_and_exec_over_ipv6", By::Plugins);
}

/// G2: the same where no CNI plugins are installed.
#[test]
fn g2_without_plugins_docker_and_exec_over_ipv6() {
    need_root!();
    docker_and_exec_over_ipv6("g2_without_plugins_docker_and_exec_over_ipv6", By::Builtin);
}

fn docker_and_exec_over_ipv6(test: &str, by: By) {
    let site = Site::with_ipv6(by);
    let Some(engine) = crate::engine(test) else { return };
    let before = site.state();
    let text = r#"
job "pair" {
  group "g" {
    network {
      mode = "bridge"
      port "http" {
        static       = 18080
        to           = 8080
        host_network = "six"
      }
    }
    task "web" {
      driver = "docker"
      config {
        image   = "busybox:test"
        command = "/bin/sh"
        args    = ["-c", "/bin/busybox mkdir /www; echo pong > /www/index.html; exec /bin/busybox httpd -f -p [::]:8080 -h /www"]
      }
    }
    task "probe" {
      driver = "exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "until curl -sf -m 5 http://[::1]:8080/index.html; do sleep 0.1; done; ip -o -6 address show dev eth0 scope global; sleep 1000"]
      }
    }
  }
}
"#;
    let file = site.world.file("pair.nomad.hcl", text);
    let mut command = site.world.command(&site.args(&[]));
    command.arg(file).env("DOCKER_HOST", engine.endpoint());
    let mut run = World::start_command(command);
    wait_for_text(&run.stdout, "probe | pong");
    wait_for_text(&run.stdout, "inet6 fd00:7::");
    assert_eq!(asked_from_outside(&format!("http://[{HOST_IPV6}]:18080/index.html")), "pong\n");
    signal(&run.child, "INT");
    let out = run.finish();
    assert!(!out.stderr.contains("cannot"), "{out:?}");
    assert_eq!(engine.docker(&["ps", "-aq"]), "");
    assert_eq!(site.state(), before);
}

/// G1: a subnet that cannot be used is an error with its fix, on the command line and in a file of `--config`.
#[test]
fn g1_wrong_subnets_of_ipv6_are_refused() {
    need_root!();
    let site = Site::with_ipv6(By::Builtin);
    let before = site.state();
    let text =
        job("batch", &[group("g", "raw_exec", "mode = \"bridge\"", "ip -o -6 address show dev eth0 scope global")]);
    let run =
        |args: &[&str]| site.world.run_text(&text, &[&["--cni-path", "/nonexistent/cni", "--quiet"], args].concat());
    for (subnet, said) in [
        ("fd00:8::1/64", "the network is fd00:8::/64"),
        ("10.0.0.0/24", "an IPv6 network"),
        ("fe80::/64", "fd00::/8"),
        ("2001:db8:7::/64", "wire has the address 2001:db8:7::7; give another one with --bridge-network-subnet-ipv6"),
    ] {
        let out = run(&["--bridge-network-subnet-ipv6", subnet]);
        assert!(out.status == 125 && out.stderr.contains(said), "{subnet}: {out:?}");
    }
    let file = |subnet: &str| {
        let text = format!("client {{\n bridge_network_subnet_ipv6 = \"{subnet}\"\n}}");
        site.world.file("agent.hcl", &text).to_str().unwrap().to_owned()
    };
    let out = run(&["--config", &file("fd00:8::1/64")]);
    assert!(out.status != 0 && out.stderr.contains("agent.hcl:2") && out.stderr.contains("fd00:8::/64"), "{out:?}");
    let out = run(&["--config", &file("fd00:8::/64")]);
    assert!(out.status == 0 && out.stdout.contains("inet6 fd00:8::2/64"), "{out:?}");
    let out = run(&["--config", &file("fd00:8::/64"), "--bridge-network-subnet-ipv6", "fd00:9::/120"]);
    assert!(out.status == 0 && out.stdout.contains("inet6 fd00:9::2/120"), "{out:?}");
    assert_eq!(run(&[]).stdout, "", "without the option there is none");
    // Ports for which there is no way.
    let port =
        job("batch", &[group("g", "raw_exec", "mode = \"bridge\"\nport \"p\" { host_network = \"six\" }", "true")]);
    let out = site.run(&port, &["--host-network", "six=::1"]);
    assert!(out.status == 125 && out.stderr.contains("a port of ::1 cannot be mapped"), "{out:?}");
    let four = ["--cni-path", "/nonexistent/cni", "--host-network", &format!("six={HOST_IPV6}")];
    let out = site.world.run_text(&port, &four);
    assert!(out.status == 125 && out.stderr.contains("give --bridge-network-subnet-ipv6"), "{out:?}");
    assert_eq!(site.state(), before);
}

/// G1: the kernel is told to forward IPv6, and what interfaces do stays as it is; a machine that would lose its router is left alone.
#[test]
fn g1_forwarding_of_ipv6_changes_nothing_else() {
    need_root!();
    let site = Site::with_ipv6(By::Builtin);
    let text = job("batch", &[group("g", "raw_exec", "mode = \"bridge\"", "true")]);
    std::fs::write(FORWARDING, "0").unwrap();
    let before = site.state();
    let out = site.run(&text, &[]);
    assert_eq!(out.status, 0, "{out:?}");
    let after = site.state();
    let (gone, new): (Vec<_>, Vec<_>) = (before.difference(&after).collect(), after.difference(&before).collect());
    assert_eq!((gone, new), (vec![&format!("{FORWARDING} = 0")], vec![&format!("{FORWARDING} = 1")]));

    std::fs::write(FORWARDING, "0").unwrap();
    std::fs::write("/proc/sys/net/ipv6/conf/wire/accept_ra", "1").unwrap();
    let router = Neighbour::new(ROUTER);
    let deadline = Instant::now() + seconds(60);
    while !ip("-6 route").contains("default via fe80:") {
        assert!(Instant::now() < deadline, "{}", ip("-6 route"));
        #[expect(clippy::disallowed_methods, reason = "the kernel hears a router until a deadline; there is no event")]
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(router);
    let out = site.run(&text, &[]);
    assert!(out.status == 125 && out.stderr.contains("net.ipv6.conf.wire.accept_ra = 2"), "{out:?}");
    assert_eq!(std::fs::read_to_string(FORWARDING).unwrap(), "0\n");
    assert!(ip("-6 route").contains("default via fe80:"));
    std::fs::write("/proc/sys/net/ipv6/conf/wire/accept_ra", "2").unwrap();
    let out = site.run(&text, &[]);
    assert_eq!(out.status, 0, "{out:?}");
    assert!(ip("-6 route").contains("default via fe80:"), "the kernel has kept it");
}
