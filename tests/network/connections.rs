//! What the kernel remembers of connections does not outlive the network that they led to (row G1).

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::site::{By, HOST, Site, done, group, job};
use crate::world::{World, need_root, seconds, signal, wait_for_text};

/// A neighbour with one socket for datagrams, whose port stays the same. For each line it sends to a port, as often as it says, until
/// there is an answer. Before that it connects to two ports, and keeps these connections.
const CLIENT: &str = r#"
import socket, sys
kept = [socket.create_connection((sys.argv[1], int(port))) for port in sys.argv[2:]]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(0.2)
print("connected", flush=True)
for line in sys.stdin:
    port, times = line.split()
    heard = "nothing"
    for _ in range(int(times)):
        try:
            s.sendto(b"x", (sys.argv[1], int(port)))
            heard = s.recvfrom(100)[0].decode()
            break
        except OSError:
            pass
    print(heard, flush=True)
"#;

/// Answers datagrams, and accepts connections.
const SERVER: &str = r#"
import socket, sys
t = socket.create_server(("", 8000))
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 9000))
print("up", flush=True)
while True:
    s.sendto(sys.argv[1].encode(), s.recvfrom(100)[1])
"#;

struct Client {
    child: Child,
    asks: ChildStdin,
    hears: Receiver<String>,
}

impl Client {
    fn new(ports: &[&str]) -> Client {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", "neighbour", "python3", "-c", CLIENT, HOST]).args(ports);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (asks, lines) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
        let (say, hears) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // Nobody listens any more when the test has ended.
                let _ = say.send(line);
            }
        });
        let client = Client { child, asks, hears };
        assert_eq!(client.hears.recv_timeout(seconds(60)).unwrap(), "connected");
        client
    }

    fn ask(&mut self, times: u32) -> String {
        writeln!(self.asks, "19000 {times}").unwrap();
        self.hears.recv_timeout(seconds(60)).unwrap()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _already_gone = self.child.wait();
    }
}

/// G1: whoever sends datagrams to a mapped port is answered by the next allocation that has it, with the same socket; connections of
/// others stay.
#[test]
fn g1_datagrams_reach_the_next_allocation() {
    need_root!();
    datagrams_reach_the_next_allocation(By::Plugins);
}

/// G1: the same where no CNI plugins are installed.
#[test]
fn g1_without_plugins_datagrams_reach_the_next_allocation() {
    need_root!();
    datagrams_reach_the_next_allocation(By::Builtin);
}

fn datagrams_reach_the_next_allocation(by: By) {
    let site = Site::made(by);
    // The kernel remembers connections as long as somebody asks for them.
    done("nft", &["add table ip others; add chain ip others c { type filter hook prerouting priority 0; }"]);
    done("nft", &["add rule ip others c ct state new counter"]);
    let before = site.state();
    let file = site.world.file("server.py", SERVER);
    let server = |name: &str, ports: &str| {
        let script = format!("exec /usr/bin/python3 {} {name}", file.display());
        job("service", &[group(name, "raw_exec", &format!("mode = \"bridge\"\n{ports}"), &script)])
    };
    let udp = "port \"udp\" {\n static = 19000\n to = 9000\n}";
    let other = World::new();
    let text = server("other", "port \"tcp\" {\n static = 18000\n to = 8000\n}");
    let mut command = other.command(&site.args(&[]));
    command.arg(other.file("other.nomad.hcl", &text));
    let mut others = World::start_command(command);
    wait_for_text(&others.stdout, "up");
    let host = TcpListener::bind((HOST, 17000)).unwrap();
    let mut client = Client::new(&["18000", "17000"]);
    let strangers = || {
        let all = site.connections();
        ["dport=18000", "dport=17000"].map(|port| all.iter().filter(|line| line.contains(port)).count())
    };
    assert_eq!(strangers(), [1, 1]);

    let beside = site.connections();
    let first = site.start("first", &server("first", udp), &[]);
    wait_for_text(&first.stdout, "up");
    assert_eq!(client.ask(100), "first");
    assert_ne!(site.connections(), beside);
    site.stop(first);
    let mut second = site.start("second", &server("second", udp), &[]);
    wait_for_text(&second.stdout, "up");
    assert_eq!(client.ask(100), "second", "it was led to the first one's address");
    second.child.kill().unwrap();
    second.child.wait().unwrap();
    site.gc();
    assert_eq!(site.connections(), beside);
    assert_eq!(client.ask(2), "nothing");
    assert_ne!(site.connections(), beside, "the kernel remembers that nobody has the port");
    let third = site.start("third", &server("third", udp), &[]);
    wait_for_text(&third.stdout, "up");
    assert_eq!(client.ask(100), "third", "it was led to nobody");
    site.stop(third);
    assert_eq!((site.connections(), strangers()), (beside, [1, 1]));

    drop((client, host));
    signal(&others.child, "INT");
    others.finish();
    assert_eq!(site.state(), before);
    let left = site.remembered();
    assert!(!left.iter().any(|line| line.contains("10.126.")), "{left:#?}");
}
