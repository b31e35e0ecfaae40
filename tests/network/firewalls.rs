//! Beside the real firewalls of others (row G1): firewalld with its bus, and a Docker Engine with its bridge and rules.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};

use crate::asked_from_outside;
use crate::engine::TestEngine;
use crate::site::{By, HOST, Site, done, group, job};
use crate::world::{need_root, seconds, wait_for_text, wait_for_times};

/// The daemon, in the namespaces of this thread.
pub struct Firewalld {
    processes: Vec<Child>,
}

impl Firewalld {
    pub fn start() -> Firewalld {
        // Where it logs.
        mount(Some("log"), "/var/log", Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        std::fs::create_dir("/run/dbus").unwrap();
        let mut all = Firewalld { processes: Vec::new() };
        all.spawn("dbus-daemon", &["--system", "--nofork", "--nopidfile"]);
        all.wait("the bus", || std::path::Path::new("/run/dbus/system_bus_socket").exists());
        all.spawn("firewalld", &["--nofork", "--nopid"]);
        all.wait("firewalld", || {
            Command::new("firewall-cmd").arg("--state").output().is_ok_and(|out| out.status.success())
        });
        all
    }

    /// Does what doctor says: until it loads its rules anew, it forwards what comes from the bridge.
    #[expect(clippy::unused_self, reason = "there is one to ask")]
    pub fn trust(&self) {
        done("firewall-cmd", &["--zone=trusted", "--add-interface=agentbin"]);
    }

    fn spawn(&mut self, program: &str, words: &[&str]) {
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.processes.push(command.spawn().unwrap_or_else(|e| panic!("{program}: {e}; scripts/setup installs it")));
    }

    fn wait(&mut self, what: &str, is_there: impl Fn() -> bool) {
        let deadline = Instant::now() + seconds(60);
        while !is_there() {
            let ended = self.processes.iter_mut().find_map(|one| one.try_wait().unwrap());
            assert!(ended.is_none() && Instant::now() < deadline, "{what} does not come up: {ended:?}");
            #[expect(clippy::disallowed_methods, reason = "a daemon comes up until a deadline; there is no event")]
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Firewalld {
    fn drop(&mut self) {
        // The bus last: whoever is connected to it ends with it.
        for process in self.processes.iter_mut().rev() {
            let _gone_already = process.kill();
            let _gone_already = process.wait();
        }
    }
}

/// An engine that makes a bridge and rules as where it is the machine's own.
pub fn engine() -> TestEngine {
    TestEngine::with(&["--bridge=", "--iptables=true", "--bip=10.98.7.1/24"]).unwrap()
}

/// G1: doctor says that firewalld keeps packets of the bridge from being forwarded, and its fix lets them through; rules that either
/// makes anew take none of ours, and ours none of theirs.
#[test]
fn g1_beside_firewalld_and_docker() {
    need_root!();
    let site = Site::made(By::Builtin);
    let firewalld = Firewalld::start();
    let engine = engine();
    let before = site.state();
    assert!(before.iter().any(|line| line.contains("\"firewalld\"")), "{before:#?}");
    assert!(before.iter().any(|line| line.contains("DOCKER")), "{before:#?}");
    let doctor: serde_json::Value = serde_json::from_str(&site.world.agentbin(&["doctor", "--json"]).stdout).unwrap();
    let row = doctor["checks"].as_array().unwrap().iter().find(|row| row["name"] == "forwarded packets").unwrap();
    assert!(row["state"] == "warn" && row["mend"].as_str().unwrap().contains("--add-interface=agentbin"), "{row}");

    let script = "mkdir www; echo pong > www/index.html; busybox httpd -p 8080 -h www; while :; do \
                  busybox ping -c 1 -W 1 198.51.100.9 > /dev/null 2>&1 && echo goes || echo kept; sleep 0.2; done";
    let server = group("g", "raw_exec", "mode = \"bridge\"\nport \"http\" {\n static = 18080\n to = 8080\n}", script);
    let run = site.start("server", &job("service", &[server]), &[]);
    wait_for_times(&run.stdout, "kept", 2);
    assert!(!String::from_utf8_lossy(&run.stdout.lock().unwrap()).contains("goes"), "firewalld forwards it");
    // It lets through what comes by a mapped port.
    let url = format!("http://{HOST}:18080/index.html");
    assert_eq!(asked_from_outside(&url), "pong\n");
    firewalld.trust();
    wait_for_text(&run.stdout, "goes");
    done("firewall-cmd", &["--reload"]);
    engine.crash_and_restart();
    assert_eq!(asked_from_outside(&url), "pong\n");
    site.stop(run);
    let after = site.state();
    let different: Vec<_> = after.symmetric_difference(&before).collect();
    assert!(different.is_empty(), "{different:#?}");
}
