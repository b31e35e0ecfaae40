//! Job files as people have them, whose tasks are containers with ports that others reach (J3): the real binary, a Docker
//! Engine of this program's own with a bridge, both in a network namespace that nothing else is in.

#[path = "support/engine.rs"]
mod engine;
#[path = "support/world.rs"]
mod world;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use engine::TestEngine;
use world::{Running, World, need_root, seconds, signal, wait_for_text};

/// The address of the machine, in the namespace.
const HOST: &str = "198.51.100.7";

/// The namespace is this thread's and that of all that it starts.
fn enter_network() {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    for words in [
        "link set lo up",
        "address add 198.51.100.7/32 dev lo",
        // Where the node's own address is looked for; nothing is sent there.
        "route add 192.0.2.1/32 dev lo src 198.51.100.7",
    ] {
        assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "ip {words}");
    }
}

/// An engine whose images `redis:7` and `web:1` are a web server on 6379 that shows its environment.
fn start_engine() -> Result<TestEngine, String> {
    let options = ["--bridge=", "--bip", "10.213.7.1/24", "--ip-forward=false", "--ip-masq=false"];
    let engine = TestEngine::with(&options)?;
    let script = "/bin/busybox mkdir /www; echo pong > /www/index.html; env > /www/env; trap 'exit 0' INT TERM; \
                  /bin/busybox httpd -f -p 6379 -h /www & wait";
    let tar = engine.path().join("stand-in.tar");
    std::fs::write(&tar, engine::busybox()).unwrap();
    let cmd = format!("CMD {}", serde_json::json!(["/bin/sh", "-c", script]));
    engine.docker(&["import", "-c", &cmd, tar.to_str().unwrap(), "redis:7"]);
    engine.docker(&["tag", "redis:7", "web:1"]);
    Ok(engine)
}

struct Ports {
    world: World,
    engine: TestEngine,
}

impl Ports {
    fn start(&self, job: &str, args: &[&str]) -> Running {
        let number = std::fs::read_dir(self.world.path("")).unwrap().count();
        let file = self.world.file(&format!("job{number}.nomad.hcl"), job);
        let mut command = self.world.command(args);
        command.arg(file).env("DOCKER_HOST", self.engine.endpoint());
        let run = World::start_command(command);
        wait_for_text(&run.stderr, "Task started by client");
        run
    }

    /// What the containers publish, as `198.51.100.7:20123->6379/tcp`, in order.
    fn published(&self) -> Vec<String> {
        let all = self.engine.docker(&["ps", "--format", "{{.Ports}}"]);
        let mut all: Vec<String> = all.split([',', '\n']).map(|port| port.trim().to_owned()).collect();
        all.retain(|port| !port.is_empty());
        all.sort();
        all
    }

    fn stop(&self, mut run: Running) {
        signal(&run.child, "INT");
        let out = run.finish();
        assert_eq!(out.status, 130, "{out:?}");
        let left = self.engine.docker(&["ps", "-aq"]);
        assert_eq!(left, "", "{out:?}");
    }
}

/// What the server at the address says, from outside of the container.
fn get(address: &str, path: &str) -> String {
    let address: SocketAddr = address.parse().unwrap();
    let deadline = Instant::now() + seconds(30);
    loop {
        let ask = || {
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok::<String, std::io::Error>(answer)
        };
        match ask() {
            Ok(answer) if answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200") => return answer,
            answer => assert!(Instant::now() < deadline, "{address}{path}: {answer:?}"),
        }
        #[expect(clippy::disallowed_methods, reason = "a server comes up until a deadline; there is no event")]
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `198.51.100.7:20123->6379/tcp`: what is before the arrow, after checking what is behind it.
fn outside<'a>(published: &'a str, inside: &str) -> &'a str {
    let (host, found) = published.split_once("->").unwrap_or_else(|| panic!("{published}"));
    assert_eq!(found, inside);
    host
}

/// What `nomad job init -short` asks for, in its blocks and keys.
const SHORT: &str = r#"
job "example" {
  group "cache" {
    network {
      port "db" { to = 6379 }
    }
    task "redis" {
      driver = "docker"
      config {
        image          = "redis:7"
        ports          = ["db"]
        auth_soft_fail = true
      }
      identity {
        env  = true
        file = true
      }
      resources {
        cpu    = 500
        memory = 256
      }
    }
  }
}
"#;

/// What the long form has besides.
fn long() -> String {
    let job = "datacenters = [\"*\"]\n type = \"service\"\n update {\n max_parallel = 1\n auto_revert = false\n canary = 0\n }\n \
               migrate {\n max_parallel = 1\n health_check = \"checks\"\n }\n ui {\n description = \"an example\"\n link {\n \
               label = \"docs\"\n url = \"https://example.com\"\n }\n }\n group \"cache\" {\n count = 1\n service {\n \
               name = \"redis-cache\"\n tags = [\"global\"]\n port = \"db\"\n provider = \"nomad\"\n }\n restart {\n attempts = 2\n \
               interval = \"30m\"\n delay = \"15s\"\n mode = \"fail\"\n }\n ephemeral_disk {\n size = 300\n }\n";
    SHORT.replacen("group \"cache\" {", job, 1)
}

#[test]
fn j3_ports_of_containers_answer_from_outside() {
    need_root!();
    enter_network();
    let engine = match start_engine() {
        Ok(engine) => engine,
        Err(reason) => {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{reason}");
            println!("SKIP: j3_ports_of_containers_answer_from_outside: {reason}");
            return;
        }
    };
    let ports = Ports { world: World::new(), engine };
    the_example_runs_as_it_is(&ports);
    two_runs_have_different_ports(&ports);
    old_forms_lead_to_the_same(&ports);
    a_port_is_on_the_network_that_it_names(&ports);
    a_static_port_is_one_runs(&ports);
    a_container_has_the_mac_address_of_its_task(&ports);
    ports.world.assert_clean();
}

fn the_example_runs_as_it_is(ports: &Ports) {
    for text in [SHORT, &long()] {
        let run = ports.start(text, &[]);
        let published = ports.published();
        let [tcp, udp] = published.as_slice() else { panic!("{published:?}") };
        let host = outside(tcp, "6379/tcp");
        assert_eq!(host, outside(udp, "6379/udp"));
        let number: u16 = host.strip_prefix(&format!("{HOST}:")).unwrap_or_else(|| panic!("{host}")).parse().unwrap();
        assert!((20_000..=32_000).contains(&number), "{host}");
        assert!(get(host, "/index.html").ends_with("pong\n"));
        // On this address only.
        assert!(TcpStream::connect(("127.0.0.1", number)).is_err());
        let env = get(host, "/env");
        for line in [
            "NOMAD_PORT_db=6379".to_owned(),
            "NOMAD_ALLOC_PORT_db=6379".to_owned(),
            format!("NOMAD_HOST_PORT_db={number}"),
            format!("NOMAD_ADDR_db={host}"),
            format!("NOMAD_HOST_ADDR_db={host}"),
            format!("NOMAD_IP_db={HOST}"),
            format!("NOMAD_HOST_IP_db={HOST}"),
        ] {
            assert!(env.lines().any(|found| found == line), "{line}: {env}");
        }
        ports.stop(run);
    }
}

fn two_runs_have_different_ports(ports: &Ports) {
    // From a range of two, each has to take what the other leaves.
    let run = || ports.start(SHORT, &["--dynamic-ports", "31998-31999"]);
    let (one, other) = (run(), run());
    let published = ports.published();
    let hosts: Vec<&str> = published.iter().filter_map(|port| port.strip_suffix("->6379/tcp")).collect();
    assert_eq!(hosts, [format!("{HOST}:31998"), format!("{HOST}:31999")]);
    for host in hosts {
        assert!(get(host, "/index.html").ends_with("pong\n"));
    }
    let file = ports.world.file("third.nomad.hcl", SHORT);
    let out = ports.world.run(&["--dynamic-ports", "31998-31999", file.to_str().unwrap()]);
    assert_eq!(out.status, 125, "{out:?}");
    assert!(out.stderr.contains("port \"db\": no port from 31998 to 31999 is free"), "{out:?}");
    signal(&one.child, "INT");
    signal(&other.child, "INT");
    let mut runs = [one, other];
    assert!(runs.iter_mut().all(|run| run.finish().status == 130));
}

fn old_forms_lead_to_the_same(ports: &Ports) {
    let job = |config: &str, resources: &str| {
        format!(
            "job \"old\" {{\n group \"g\" {{\n task \"web\" {{\n driver = \"docker\"\n config {{\n image = \"web:1\"\n {config}\n }}\n \
             resources {{\n network {{\n mbits = 10\n {resources}\n }}\n }}\n }}\n }}\n}}\n"
        )
    };
    for text in [
        job("port_map {\n http = 6379\n }", "port \"http\" {}"),
        job("port_map = [{ http = 6379 }]", "port \"http\" {}"),
        job("port_map = { http = \"6379\" }", "port \"http\" {}"),
        job("ports = [\"http\"]", "port \"http\" { to = 6379 }"),
    ] {
        let run = ports.start(&text, &[]);
        let published = ports.published();
        assert_eq!(published.len(), 2, "{published:?}");
        let host = outside(&published[0], "6379/tcp");
        outside(&published[1], "6379/udp");
        let env = get(host, "/env");
        let number = host.rsplit_once(':').unwrap().1;
        for line in [
            "NOMAD_PORT_http=6379".to_owned(),
            format!("NOMAD_HOST_PORT_http={number}"),
            format!("NOMAD_ADDR_http={HOST}:{number}"),
            format!("NOMAD_IPv4_http={HOST}"),
        ] {
            assert!(env.lines().any(|found| found == line), "{line}: {env}");
        }
        ports.stop(run);
    }
}

fn a_port_is_on_the_network_that_it_names(ports: &Ports) {
    let text = SHORT.replace("to = 6379", "to = 6379\n host_network = \"lan\"").replace("{ to", "{\n to");
    let text = text.replace("\"lan\" }", "\"lan\"\n }");
    let file = ports.world.file("lan.nomad.hcl", &text);
    let out = ports.world.run(&[file.to_str().unwrap()]);
    assert_eq!(out.status, 125, "{out:?}");
    let refusal = ":7: host_network in port \"db\": there is no host network \"lan\" here; say where it is with \
                   --host-network lan=ADDRESS";
    assert!(out.stderr.contains(refusal), "{out:?}");
    for (network, expected) in [("lan=127.0.0.9", "127.0.0.9"), ("lan=docker0", "10.213.7.1")] {
        let run = ports.start(&text, &["--host-network", network]);
        let published = ports.published();
        let host = outside(&published[0], "6379/tcp");
        assert_eq!(host.rsplit_once(':').unwrap().0, expected);
        assert!(get(host, "/index.html").ends_with("pong\n"));
        ports.stop(run);
    }
}

fn a_static_port_is_one_runs(ports: &Ports) {
    let text = SHORT.replace("{ to = 6379 }", "{\n static = 8379\n to = 6379\n }");
    let run = ports.start(&text, &[]);
    assert!(get(&format!("{HOST}:8379"), "/index.html").ends_with("pong\n"));
    let file = ports.world.file("again.nomad.hcl", &text);
    let out = ports.world.run(&[file.to_str().unwrap()]);
    assert_eq!(out.status, 125, "{out:?}");
    let holder = "8379 is not free: job \"example\", group \"cache\" has it (allocation ";
    assert!(out.stderr.contains(holder), "{out:?}");
    assert!(out.stderr.contains(&format!("agentbin with pid {})", run.child.id())), "{out:?}");
    ports.stop(run);
}

fn a_container_has_the_mac_address_of_its_task(ports: &Ports) {
    let text = SHORT.replace("auth_soft_fail = true", "mac_address = \"02:42:00:00:00:07\"");
    let run = ports.start(&text, &[]);
    let id = ports.engine.docker(&["ps", "-q"]);
    let format = "{{range .NetworkSettings.Networks}}{{.MacAddress}}{{end}}";
    assert_eq!(ports.engine.docker(&["inspect", "-f", format, &id]), "02:42:00:00:00:07");
    ports.stop(run);
}
