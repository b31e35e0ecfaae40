//! Networks of a plain user's groups (row G1): the real binary and the real pasta, on a machine of the test's own.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use agentbin::sys;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use serde_json::Value as Json;

use crate::site::{HOST, done, group, ip, job};
use crate::world::{Out, Running, World, plain_user, seconds, signal, wait_for_text};
use crate::{SERVER, asked_from_outside, need_root};

/// The address that a namespace has inside, whichever it is.
const INSIDE: &str = "10.126.64.2";

/// A machine with a wire to a neighbour, on which this thread is root, and a plain user.
struct Machine {
    world: World,
    user: u32,
}

impl Machine {
    fn new(number: u32) -> Machine {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
        let mounted = |what: &str, mode: &str| {
            mount(Some("test"), what, Some("tmpfs"), MsFlags::empty(), Some(mode)).unwrap();
        };
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        mounted("/run", "mode=755");
        mounted("/dev/net", "mode=755");
        mknod(TUN, SFlag::S_IFCHR, Mode::empty(), makedev(10, 200)).unwrap();
        open_tunnels(0o666);
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
        // What is there now is not left by a run.
        Machine { world: World::new(), user: plain_user(number) }
    }

    fn command(&self, args: &[&str]) -> Command {
        self.world.command_as(self.user, args)
    }

    fn done(&self, args: &[&str]) -> String {
        let out: Out = self.command(args).output().unwrap().into();
        assert_eq!(out.status, 0, "{args:?}: {out:?}");
        out.stdout
    }

    fn json(&self, args: &[&str]) -> Json {
        serde_json::from_str(&self.done(args)).unwrap()
    }

    fn run(&self, job: &str, args: &[&str]) -> Out {
        self.world.run_as(self.user, job, args)
    }

    fn start(&self, name: &str, job: &str) -> Running {
        let file = self.world.file(&format!("{name}.nomad.hcl"), job);
        let mut command = self.command(&["run"]);
        command.arg(file);
        World::start_command(command)
    }

    fn stop(&self, mut run: Running) -> Out {
        signal(&run.child, "INT");
        let out = run.finish();
        self.assert_clean();
        out
    }

    /// Processes that hold networks: keeper and pause, and pasta.
    fn holders(&self) -> [Vec<i32>; 2] {
        let [mut ours, mut pasta] = [Vec::new(), Vec::new()];
        for process in procfs::process::all_processes().unwrap().flatten() {
            let Ok(stat) = process.stat() else { continue };
            let user = process.uid().unwrap_or_default();
            match stat.comm.as_str() {
                _ if user != self.user || stat.state == 'Z' => {}
                "network-keeper" | "network-pause" => ours.push(process.pid),
                comm if comm.starts_with("pas") => pasta.push(process.pid),
                _ => {}
            }
        }
        [ours, pasta]
    }

    /// The files that name networks, and their processes.
    fn files(&self) -> Vec<String> {
        let dirs = ["netns", "networks"].map(|name| self.data_dir().join("run/network").join(name));
        let entries = dirs.iter().flat_map(|dir| std::fs::read_dir(dir).into_iter().flatten().flatten());
        entries.map(|entry| entry.path().display().to_string()).collect()
    }

    fn data_dir(&self) -> PathBuf {
        self.world.path("home/.local/state/agentbin")
    }

    fn assert_clean(&self) {
        self.world.assert_clean();
        until("no process of a network", || self.holders().iter().all(Vec::is_empty).then_some(()));
        assert_eq!(self.files(), [""; 0]);
        assert_eq!(listening(), BTreeSet::new());
    }
}

const TUN: &str = "/dev/net/tun";

fn open_tunnels(mode: u32) {
    std::fs::set_permissions(TUN, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + seconds(30);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        #[expect(clippy::disallowed_methods, reason = "a state of other processes, of which there is no event")]
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Kills exactly this process, and waits until it has gone.
fn kill(pid: i32) {
    let pidfd = sys::process::open_pidfd(pid).unwrap();
    sys::process::send_signal(pidfd.as_fd(), agentbin::spec::Signal::KILL).unwrap();
    rustix::event::poll(&mut [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)], None).unwrap();
}

/// Everything that listens on this machine, tcp and udp.
fn listening() -> BTreeSet<String> {
    let lines = done("ss", &["-Hlntu"]);
    let of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        format!("{} {}", words[0], words[4])
    };
    lines.lines().map(of).collect()
}

/// What comes back for a datagram from the neighbour's machine.
fn echo_from_outside(port: u16) -> String {
    let script = format!(
        "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(1)
for _ in range(30):
    s.sendto(b'datagram', ('{HOST}', {port}))
    try:
        print(s.recv(100).decode()); break
    except OSError:
        pass"
    );
    done("ip", &["netns", "exec", "neighbour", "/usr/bin/python3", "-c", &script]).trim().to_owned()
}

const ECHO: &str = "exec /usr/bin/python3 -c \"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 9000))
while True:
    data, who = s.recvfrom(100)
    s.sendto(data, who)
\"";

fn task(name: &str, driver: &str, script: &str) -> String {
    let script = serde_json::to_string(script).unwrap().replace("${", "$${");
    format!(
        "task \"{name}\" {{\n driver = \"{driver}\"\n config {{\n command = \"/bin/sh\"\n args = [\"-c\", {script}]\n }}\n }}\n"
    )
}

/// G1: without root a group has a network that its tasks share, isolated or not: tcp and udp reach it through the mapped ports
/// and nothing else does; it reaches others, and not the host's loopback; what is told of it is so; checks and sessions see it.
#[test]
fn g1_without_root_mapped_ports_lead_into_the_network_of_a_group() {
    need_root!();
    let machine = Machine::new(0);
    let secret = TcpListener::bind((Ipv4Addr::LOCALHOST, 17777)).unwrap();
    secret.set_nonblocking(true).unwrap();
    // A tcp server of the neighbour's.
    let mut neighbour = Command::new("ip")
        .args(["netns", "exec", "neighbour", "busybox", "nc", "-ll", "-p", "7000", "-e", "/bin/echo", "outside"])
        .spawn()
        .unwrap();
    let network = "network {
 mode = \"bridge\"
 port \"http\" {
  static = 18080
  to = 8080
 }
 port \"echo\" {
  static = 19000
  to = 9000
 }
 dns {
  servers = [\"192.0.2.53\"]
  searches = [\"lab.test\"]
 }
}
service {
 name = \"own\"
 provider = \"nomad\"
 port = \"http\"
 address_mode = \"alloc\"
 check {
  type = \"tcp\"
  interval = \"1s\"
  timeout = \"5s\"
 }
}
";
    let look = format!(
        "until curl -sf -m 5 http://127.0.0.1:8080/index.html; do sleep 0.1; done
echo user $(id -u); cat ${{NOMAD_ALLOC_DIR}}/resolv; ip -o -4 address show eth0
/usr/bin/python3 -c \"
import socket
print('neighbour', socket.create_connection(('198.51.100.9', 7000), 20).makefile().read(), flush=True)
for address in ['127.0.0.1', '10.126.64.1', '{INSIDE}']:
    try:
        socket.create_connection((address, 17777), 2)
        print('reached', address, flush=True)
    except OSError:
        print('closed', address, flush=True)
print('done')
\"
{ECHO}"
    );
    let web = format!("cp /etc/resolv.conf ${{NOMAD_ALLOC_DIR}}/resolv; {SERVER}");
    let tasks = [task("web", "exec", &web), task("side", "raw_exec", &look)].concat();
    let text = format!("job \"test\" {{\n type = \"service\"\n group \"g\" {{\n {network}\n {tasks} }}\n}}\n");
    let run = machine.start("ports", &text);
    wait_for_text(&run.stdout, "side | done");
    let said = String::from_utf8_lossy(&run.stdout.lock().unwrap()).into_owned();
    for line in [
        "side | pong".to_owned(),
        format!("side | user {}", machine.user),
        "side | nameserver 192.0.2.53".to_owned(),
        "side | search lab.test".to_owned(),
        "side | neighbour outside".to_owned(),
        "side | closed 127.0.0.1".to_owned(),
        "side | closed 10.126.64.1".to_owned(),
        format!("side | closed {INSIDE}"),
    ] {
        assert!(said.contains(&line), "{line}: {said}");
    }
    assert!(secret.accept().is_err(), "the host's loopback was reached");
    drop(secret);
    assert_eq!(asked_from_outside(&format!("http://{HOST}:18080/index.html")), "pong\n");
    assert_eq!(echo_from_outside(19000), "datagram");
    let own = done("curl", &["-sf", "-m", "5", &format!("http://{HOST}:18080/env")]);
    for line in [
        format!("NOMAD_IP_http={HOST}"),
        format!("NOMAD_ADDR_http={HOST}:18080"),
        "NOMAD_PORT_http=8080".to_owned(),
        "NOMAD_HOST_PORT_http=18080".to_owned(),
        format!("NOMAD_ALLOC_IP_http={INSIDE}"),
        format!("NOMAD_ALLOC_ADDR_http={INSIDE}:8080"),
        "NOMAD_ALLOC_INTERFACE_http=eth0".to_owned(),
    ] {
        assert!(own.lines().any(|found| found == line), "{line}: {own}");
    }
    // What is asked for listens, and only there.
    let ports = [18080, 19000].iter().flat_map(|port| ["tcp", "udp"].map(|p| format!("{p} {HOST}:{port}")));
    assert_eq!(listening(), ports.collect::<BTreeSet<_>>());
    for task in ["web", "side"] {
        let told = machine.done(&["exec", "--task", task, "test", "ip", "-o", "-4", "address", "show", "eth0"]);
        assert!(told.contains(INSIDE), "{task}: {told}");
    }
    until("a check in the network passes", || {
        let status = machine.json(&["status", "--json", "test"]);
        (status[0]["services"][0]["checks"][0]["status"] == "passing").then_some(())
    });
    let status = machine.json(&["network", "status", "--json"]);
    let told = &status["networks"][0];
    assert!(
        told["network"] == "pasta" && told["address"] == INSIDE && told["ports"].as_array().unwrap().len() == 4,
        "{status}"
    );
    assert!(status["bridge"]["lack"].is_null() && told["state"] == "in use", "{status}");
    neighbour.kill().unwrap();
    neighbour.wait().unwrap();
    machine.stop(run);
}

/// G1: two groups of a plain user have networks of their own, with the same ports inside; a task that is started again is in the
/// same one; a program that connects them and has died is started again.
#[test]
fn g1_without_root_groups_have_networks_of_their_own() {
    need_root!();
    let machine = Machine::new(1);
    let groups = ["a", "b"].map(|name| {
        let port = if name == "a" { 18081 } else { 18082 };
        let network = format!("mode = \"bridge\"\nport \"http\" {{\n static = {port}\n to = 8080\n}}");
        let script = format!("mkdir www; echo {name} $(readlink /proc/self/ns/net) > www/index.html; exec busybox httpd -f -p 8080 -h www");
        group(name, if name == "a" { "exec" } else { "raw_exec" }, &network, &script)
    });
    let run = machine.start("two", &job("service", &groups));
    let ask = |port: u16| asked_from_outside(&format!("http://{HOST}:{port}/"));
    let (a, b) = (ask(18081), ask(18082));
    assert!(a.starts_with("a net:") && b.starts_with("b net:") && a[2..] != b[2..], "{a} {b}");
    let views = machine.json(&["ps", "--json"]);
    let of_a = views.as_array().unwrap().iter().find(|view| view["group"] == "a").unwrap();
    machine.done(&["restart", "--task", "a", of_a["id"].as_str().unwrap()]);
    assert_eq!(ask(18081), a, "the same network");
    let [ours, pasta] = machine.holders();
    assert_eq!((ours.len(), pasta.len()), (4, 2), "{ours:?} {pasta:?}");
    for pid in pasta {
        kill(pid);
    }
    until("pasta again", || (machine.holders()[1].len() == 2).then_some(()));
    assert_eq!((ask(18081), ask(18082)), (a.clone(), b));
    // A run that has lost an executor kills what that has left behind, and no network.
    let executor = procfs::process::all_processes().unwrap().flatten().find(|process| {
        let words = process.cmdline().unwrap_or_default();
        words.len() == 3 && words[1] == "executor" && words[2].contains("/b-executor.out")
    });
    kill(executor.unwrap().pid);
    until("the other group's network is removed", || (machine.holders()[0].len() == 2).then_some(()));
    assert_eq!(ask(18081), a);
    machine.stop(run);
}

/// G1: what a killed run leaves of a plain user's network is removed by the next clean-up; all of it ends with its keeper, and the
/// next task is told so.
#[test]
fn g1_without_root_a_killed_run_leaves_no_network() {
    need_root!();
    let machine = Machine::new(2);
    let network = "mode = \"bridge\"\nport \"http\" {\n static = 18083\n to = 8080\n}";
    let text = job("service", &[group("web", "exec", network, SERVER)]);
    let address = format!("http://{HOST}:18083/index.html");
    for drop_directory in [false, true] {
        let mut run = machine.start("killed", &text);
        assert_eq!(asked_from_outside(&address), "pong\n");
        run.child.kill().unwrap();
        run.child.wait().unwrap();
        assert_eq!(machine.holders().map(|all| all.len()), [2, 1], "the tasks go on, and so does their network");
        if drop_directory {
            // As the user's systemd does when the user has logged out.
            std::fs::remove_dir_all(machine.data_dir().join("run/network/netns")).unwrap();
        }
        machine.done(&["gc"]);
        machine.assert_clean();
    }

    // Killed before it has noted the keeper that it starts.
    let own = [machine.user; 2];
    let keeper = serde_json::json!({ "file": "/nonexistent", "own": own, "ranges": [], "pasta": null }).to_string();
    let mut command = machine.command(&["network-keeper", &keeper]);
    let mut starter = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    BufReader::new(starter.stdout.take().unwrap()).read_line(&mut told).unwrap();
    let keeper: i32 = told.trim().parse().unwrap();
    let pidfd = sys::process::open_pidfd(keeper).unwrap();
    starter.kill().unwrap();
    starter.wait().unwrap();
    let patience = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
    let mut ended = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut ended, Some(&patience)), Ok(1), "it ends with whoever started it");
    machine.assert_clean();

    let run = machine.start("keeper", &text);
    assert_eq!(asked_from_outside(&address), "pong\n");
    let keepers = machine.holders()[0].clone();
    kill(*keepers.iter().min().unwrap());
    until("all of it ends with its keeper", || machine.holders().iter().all(Vec::is_empty).then_some(()));
    let _refused = machine.command(&["restart", "--task", "web", "test"]).output().unwrap();
    wait_for_text(&run.stderr, "the processes that held the allocation's network have ended");
    machine.stop(run);
}

/// G1: a plain user's network stays when the supervisor of a run in the background is killed: the next one takes it up, restarts
/// tasks in it, and removes it in the end.
#[test]
fn g1_without_root_a_network_outlives_its_supervisor() {
    need_root!();
    let machine = Machine::new(3);
    let network = "mode = \"bridge\"\nport \"http\" {\n static = 18084\n to = 8080\n}";
    let script = "mkdir -p www; readlink /proc/self/ns/net > www/index.html; exec busybox httpd -f -p 8080 -h www";
    let file = machine.world.file("job.nomad.hcl", &job("service", &[group("web", "exec", network, script)]));
    machine.done(&["run", "--detach", "--quiet", file.to_str().unwrap()]);
    let address = format!("http://{HOST}:18084/");
    let before = asked_from_outside(&address);
    let holders = machine.holders();
    let locks = std::fs::read_dir(machine.data_dir().join("runs")).unwrap().flatten().map(|entry| entry.path());
    let lock = locks.into_iter().find(|path| path.extension().is_some_and(|end| end == "lock")).unwrap();
    kill(std::fs::read_to_string(lock).unwrap().trim().parse().unwrap());
    assert_eq!(asked_from_outside(&address), before);
    // Starts the next supervisor.
    machine.done(&["restart", "--task", "web", "test"]);
    assert_eq!((asked_from_outside(&address), machine.holders()), (before, holders));
    machine.done(&["stop", "test"]);
    machine.assert_clean();
}

/// G1: a network that leads nowhere, and what cannot be had without root: each is refused with what to do, and doctor says it, too.
#[test]
fn g1_without_root_what_cannot_be_had_is_refused() {
    need_root!();
    let machine = Machine::new(4);
    let of = |network: &str, script: &str| job("batch", &[group("g", "exec", network, script)]);
    let out = machine.run(&of("mode = \"none\"", "ip -o link; cat /proc/net/dev | wc -l"), &[]);
    assert!(out.status == 0 && out.stdout.contains("LOOPBACK,UP") && !out.stdout.contains("eth0"), "{out:?}");
    let doctor = |path: Option<&Path>| {
        let mut command = machine.command(&["doctor", "--json"]);
        path.map(|path| command.env("PATH", path));
        let told: Json = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        let rows = told["checks"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == "network mode bridge").unwrap().clone()
    };
    let row = doctor(None);
    assert!(row["state"] == "ok" && row["value"].as_str().unwrap().starts_with("by pasta"), "{row}");

    let file = machine.world.file("bridge.nomad.hcl", &of("mode = \"bridge\"", "true"));
    let refused = |command: &mut Command, said: &str| {
        let out: Out = command.output().unwrap().into();
        assert!(out.status == 125 && out.stderr.contains(said), "{said}: {out:?}");
    };
    let run = |args: &[&str]| {
        let mut command = machine.command(&["run"]);
        command.args(args).arg(&file);
        command
    };
    let empty = machine.world.path("empty");
    std::fs::create_dir(&empty).unwrap();
    refused(
        run(&[]).env("PATH", &empty),
        "pasta is not installed; the network of mode \"bridge\" needs it (package passt)",
    );
    let row = doctor(Some(&empty));
    assert!(row["state"] == "warn" && row["mend"] == "install the package passt", "{row}");
    open_tunnels(0o600);
    refused(&mut run(&[]), "/dev/net/tun cannot be opened");
    let row = doctor(None);
    assert!(row["state"] == "warn" && row["mend"].as_str().unwrap().contains("chmod 666 /dev/net/tun"), "{row}");
    open_tunnels(0o666);
    refused(&mut run(&["--bridge-network-subnet-ipv6", "fd00:7::/64"]), "a group's network has IPv4 only");
    let out = machine.run(&of("mode = \"cni/lab\"", "true"), &[]);
    assert!(out.status == 125 && out.stderr.contains("it needs root"), "{out:?}");

    // What pasta says is passed on, and nothing is left of the attempt.
    ip("route del default");
    refused(&mut run(&[]), "pasta: ");
    machine.assert_clean();
    ip("route add default via 198.51.100.9");
    let out: Out = run(&[]).output().unwrap().into();
    assert_eq!(out.status, 0, "{out:?}");
    machine.assert_clean();
}

/// G1: a task with subordinate ids of the user is in the group's network as well, with its own users, and so are its sessions; a
/// user whose number is one of those numbers has them, too.
#[test]
fn g1_without_root_tasks_with_subordinate_ids_share_the_network() {
    need_root!();
    let mut machine = Machine::new(5);
    let etc = machine.world.path("etc");
    std::fs::create_dir(&etc).unwrap();
    std::fs::set_permissions(&etc, std::fs::Permissions::from_mode(0o755)).unwrap();
    for user in [7102, 70_000] {
        machine.user = user;
        let read = |name: &str| std::fs::read_to_string(Path::new("/etc").join(name)).unwrap();
        let home = machine.world.path("home");
        let (passwd, group_file) = (read("passwd"), read("group"));
        let own = "plain:700000:131072\n".to_owned();
        for (name, text) in [
            ("passwd", format!("{passwd}plain:x:{user}:{user}::{}:/bin/sh\n", home.display())),
            ("group", format!("{group_file}plain:x:{user}:\n")),
            ("subuid", own.clone()),
            ("subgid", own),
            ("resolv.conf", read("resolv.conf")),
        ] {
            std::fs::write(etc.join(name), text).unwrap();
            std::fs::set_permissions(etc.join(name), std::fs::Permissions::from_mode(0o644)).unwrap();
        }
        mount(Some(&etc), "/etc", None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        let _none_yet = std::fs::remove_dir_all(&home);
        let network = "mode = \"bridge\"\nport \"http\" {\n static = 18085\n to = 8080\n}";
        let script = "mkdir -p /local/www; (id -u; cat /proc/self/uid_map) > /local/www/index.html; exec busybox httpd -f -p 8080 -h /local/www";
        let strict = group("web", "exec", network, script)
            .replace("config {", "user = \"nobody\"\nconfig {\n isolation = \"strict\"\n");
        let run = machine.start("strict", &job("service", &[strict]));
        let told = asked_from_outside(&format!("http://{HOST}:18085/"));
        let words: Vec<&str> = told.split_whitespace().collect();
        assert!(words[0] == "65534" && words[3] == "65536", "{told}");
        let session = machine.done(&["exec", "test", "ip", "-o", "-4", "address", "show", "eth0"]);
        assert!(session.contains(INSIDE), "{session}");
        let owner = done("sh", &["-c", "stat -c %u /proc/$(pgrep -f 'httpd -f -p 8080 -h /local' | head -1)"]);
        let owner: u32 = owner.trim().parse().unwrap();
        assert!((700_000..831_072).contains(&owner), "{owner}");
        machine.stop(run);
        nix::mount::umount2("/etc", nix::mount::MntFlags::MNT_DETACH).unwrap();
    }
}

/// G1: the agent of a plain user gives allocations the same networks. They stay while it is killed and comes back, and go with their
/// job.
#[test]
fn g1_without_root_an_agent_keeps_the_networks_of_its_allocations() {
    need_root!();
    let machine = Machine::new(6);
    let log = machine.world.path("agent.log");
    let start = || {
        let log = std::fs::File::options().create(true).append(true).open(&log).unwrap();
        let agent = machine.command(&["agent"]).stderr(log).spawn().unwrap();
        until("the agent answers", || {
            let out: Out = machine.command(&["job", "status"]).output().unwrap().into();
            (out.status == 0).then_some(())
        });
        agent
    };
    let mut agent = start();
    let network = "mode = \"bridge\"\nport \"http\" {\n static = 18080\n to = 8080\n}";
    let file = machine.world.file("web.nomad.hcl", &job("service", &[group("server", "exec", network, SERVER)]));
    machine.done(&["job", "run", "-detach", file.to_str().unwrap()]);
    let url = format!("http://{HOST}:18080/index.html");
    let words = ["netns", "exec", "neighbour", "curl", "-sf", "-m", "5", &url];
    until("the mapped port answers", || {
        Command::new("ip").args(words).output().unwrap().status.success().then_some(())
    });
    let holders = machine.holders();
    assert!(holders.iter().all(|some| !some.is_empty()), "{holders:?}");
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert_eq!(asked_from_outside(&url), "pong\n");
    let mut agent = start();
    let listed = machine.json(&["job", "allocs", "-json", "test"]);
    let alloc = listed[0]["ID"].as_str().unwrap();
    until("the allocation is recovered", || {
        let out: Out = machine.command(&["alloc", "exec", alloc, "cat", "/proc/net/dev"]).output().unwrap().into();
        (out.status == 0 && out.stdout.contains("eth0")).then_some(())
    });
    assert_eq!(machine.holders(), holders, "{}", std::fs::read_to_string(&log).unwrap());
    assert_eq!(asked_from_outside(&url), "pong\n");
    machine.done(&["job", "stop", "test"]);
    machine.done(&["system", "gc"]);
    signal(&agent, "TERM");
    assert!(agent.wait().unwrap().success(), "{}", std::fs::read_to_string(&log).unwrap());
    machine.assert_clean();
}
