//! Nothing leaks (row G1): each program that a network is made and removed by fails, dies, hangs, loses its answer, or outlives its
//! run; so does each request to the kernel, or whoever makes it is killed; and afterwards the machine is as before, on which a firewalld and
//! a Docker Engine have their rules.
//!
//! The default draws a few of the points, which `AGENTBIN_SEED` repeats; `AGENTBIN_FULL=1` takes each of them but for most of the calls
//! that hang, and beside another allocation on the bridge each request and a part of the calls.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};

use crate::engine::TestEngine;
use crate::firewalls::{Firewalld, engine};
use crate::kernel::{Answers, Call, Reply, answered, hide_tables, without_tables};
use crate::random::Random;
use crate::site::{By, PLUGINS, Site, group, job};
use crate::world::{World, copy_program, need_root, seconds, signal, wait_for_text};

/// What becomes of one call of a program.
const FAULTS: [&str; 9] =
    ["fails", "lost", "garbage", "dies", "dies-after", "run-dies", "run-dies-after", "hangs", "hangs-after"];
/// The last two of them: somebody has to end the run.
const HANGS: usize = 7;
/// What becomes of one request by netlink: the kernel does not take it, its answer gets lost, or who makes it is killed.
const STEPS: [&str; 4] = ["fails", "lost", "dies", "dies-after"];
/// In a full run, each so many-th call hangs, as each costs up to a minute; and beside another allocation, each so many-th fails.
const HANGING: usize = 8;
const BESIDE: usize = 4;
/// Points of the default: other calls, hanging ones, and requests.
const SLICE: (usize, usize, usize) = (8, 1, 12);

/// What goes wrong: the call, or the request, of this number.
#[derive(Debug, Clone, Copy)]
enum Point {
    Nothing,
    Call(usize, &'static str),
    Step(usize, &'static str),
}

impl Point {
    const fn number(self) -> usize {
        match self {
            Point::Nothing => 0,
            Point::Call(nth, _) | Point::Step(nth, _) => nth,
        }
    }
}

/// The requests of one run.
struct Steps {
    point: Point,
    count: usize,
    hit: String,
    /// The thread whose next answer is the one.
    after: Option<u32>,
}

impl Steps {
    const fn new(point: Point) -> Steps {
        Steps { point, count: 0, hit: String::new(), after: None }
    }

    fn answer(&mut self, call: &Call) -> Reply {
        let is_request = call.message.is_some();
        self.count += usize::from(is_request);
        let Point::Step(nth, fault) = self.point else { return Reply::Own };
        if is_request && self.count == nth {
            let kinds: Vec<u16> = call.messages().into_iter().map(|(kind, _)| kind).collect();
            self.hit = format!("netlink {kinds:?}");
            match fault {
                "fails" => return Reply::Fails(nix::libc::ENOBUFS),
                "dies" => kill(call),
                _ => self.after = Some(call.thread),
            }
        } else if !is_request && self.after == Some(call.thread) {
            self.after = None;
            if fault == "lost" {
                return Reply::Fails(nix::libc::ENOBUFS);
            }
            kill(call);
        }
        Reply::Own
    }
}

/// Kills the process that makes a request.
fn kill(call: &Call) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", call.thread)).unwrap();
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:")).unwrap().trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(process), nix::sys::signal::Signal::SIGKILL).unwrap();
}

/// A machine on which one call, counted over all programs that make networks, or one request goes wrong.
struct Faulty {
    site: Site,
    by: By,
    dir: PathBuf,
    plugins: PathBuf,
    steps: Arc<Mutex<Steps>>,
    /// Whose rules stay as they are.
    _others: (Firewalld, TestEngine),
}

impl Faulty {
    fn new(by: By) -> Faulty {
        let mut site = Site::with_ipv6(by);
        let others = (Firewalld::start(), engine());
        others.0.trust();
        // firewalld has taken out what it found.
        site.settle();
        let steps = Arc::new(Mutex::new(Steps::new(Point::Nothing)));
        let answering = Arc::clone(&steps);
        let answers: Answers = Arc::new(Mutex::new(move |call: &Call| match answering.lock().unwrap().answer(call) {
            Reply::Own if by == By::PluginsAlone => without_tables(call).unwrap_or(Reply::Own),
            other => other,
        }));
        site.world.prepare(move |command| answered(command, &answers));
        let dir = site.world.path("faults");
        std::fs::create_dir(&dir).unwrap();
        let plugins = site.plugins(&[]);
        // The first directory in which programs are looked for.
        let programs = Path::new("/usr/local/sbin");
        let names = ["iptables", "iptables-restore", "ip6tables", "ip6tables-restore"];
        let real: Vec<(&str, PathBuf)> = names
            .iter()
            .map(|name| {
                let places = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
                let place = places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists());
                let place = place.unwrap_or_else(|| panic!("{name} is not installed"));
                assert_ne!(place.parent().unwrap(), programs, "{name} would be hidden");
                (*name, place)
            })
            .collect();
        mount(Some("programs"), programs, Some("tmpfs"), MsFlags::empty(), Some("mode=755")).unwrap();
        let faulty = Faulty { site, by, dir, plugins, steps, _others: others };
        for (name, path) in &real {
            faulty.wrap(path, &programs.join(name));
        }
        for name in ["bridge", "portmap"] {
            let over = faulty.plugins.join(name);
            std::fs::remove_file(&over).unwrap();
            faulty.wrap(&Path::new(PLUGINS).join(name), &over);
        }
        faulty
    }

    fn wrap(&self, real: &Path, over: &Path) {
        let (dir, real, name) = (self.dir.display(), real.display(), over.file_name().unwrap().display());
        let script = format!(
            "#!/bin/sh
n=$(($(cat {dir}/count) + 1))
echo $n > {dir}/count.$$
mv {dir}/count.$$ {dir}/count
[ $n = $(cat {dir}/nth) ] || exec {real} \"$@\"
echo {name} $CNI_COMMAND \"$@\" > {dir}/hit
end() {{ until [ -s {dir}/pid ]; do sleep 0.01; done; kill -9 $(cat {dir}/pid); }}
case $(cat {dir}/fault) in
fails) exit 1;;
lost) {real} \"$@\" > /dev/null; exit 1;;
garbage) {real} \"$@\" > /dev/null; echo '{{'; exit 0;;
dies) kill -9 $$;;
dies-after) {real} \"$@\" > /dev/null; kill -9 $$;;
run-dies) end; sleep 0.1; exec {real} \"$@\";;
run-dies-after) {real} \"$@\" > {dir}/out; end; cat {dir}/out;;
hangs) exec sleep 1000;;
hangs-after) {real} \"$@\" > /dev/null; exec sleep 1000;;
esac
"
        );
        let source = self.site.world.file("wrapper", &script);
        std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o755)).unwrap();
        copy_program(&source, over);
    }

    /// Runs a job in which something goes wrong. Returns what that was, how many calls there were, and how many requests.
    fn run(&self, point: Point) -> (String, usize, usize) {
        let file = |name: &str| self.dir.join(name);
        for old in ["hit", "pid", "out"] {
            let _not_there = std::fs::remove_file(file(old));
        }
        let (nth, fault) = if let Point::Call(nth, fault) = point { (nth, fault) } else { (0, "") };
        for (name, text) in [("fault", fault), ("nth", &nth.to_string()), ("count", "0")] {
            std::fs::write(file(name), text).unwrap();
        }
        *self.steps.lock().unwrap() = Steps::new(point);
        let network =
            "mode = \"bridge\"\nport \"p\" {\n to = 80\n}\nport \"six\" {\n to = 80\n host_network = \"six\"\n}";
        // The kernel remembers that it was there.
        let script = "busybox ping -c 1 198.51.100.9; busybox ping -c 1 2001:db8:7::9";
        let text = job("batch", &[group("g", "raw_exec", network, script)]);
        let plugins: &[&str] =
            if self.by == By::Builtin { &[] } else { &["--cni-path", self.plugins.to_str().unwrap()] };
        let mut run = self.site.start("faulty", &text, plugins);
        std::fs::write(file("pid"), run.child.id().to_string()).unwrap();
        let deadline = Instant::now() + seconds(120);
        let mut is_told = false;
        let status = loop {
            if let Some(status) = run.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "{point:?}: the run does not end");
            if fault.starts_with("hangs") && !is_told && file("hit").exists() {
                signal(&run.child, "INT");
                is_told = true;
            }
            #[expect(clippy::disallowed_methods, reason = "a call hangs, or the run ends, until a deadline")]
            std::thread::sleep(Duration::from_millis(5));
        };
        run.finish();
        // What comes now is in order: it is counted further, also by a program that outlives its run.
        let count = std::fs::read_to_string(file("count")).unwrap().trim().parse().unwrap();
        let steps = std::mem::replace(&mut *self.steps.lock().unwrap(), Steps::new(Point::Nothing));
        let hit = std::fs::read_to_string(file("hit")).unwrap_or_default() + &steps.hit;
        assert!(!hit.is_empty() || status.success(), "{point:?}, which did not come: {status}");
        (hit, count, steps.count)
    }

    /// The same, and the clean-up after it. Returns whether the point came: a run that ends early has not looked again at the rules of
    /// iptables, which it does a moment after they have changed.
    fn point(&self, point: Point, before: &BTreeSet<String>) -> bool {
        let (hit, calls, steps) = self.run(point);
        let all = if matches!(point, Point::Step(..)) { steps } else { calls };
        assert!(!hit.is_empty() || all < point.number(), "{point:?} of {all} is not seen");
        self.site.gc();
        // A namespace's interfaces go a moment after it.
        let deadline = Instant::now() + seconds(20);
        loop {
            let state = self.site.state();
            if state == *before {
                break;
            }
            let (left, gone) =
                (state.difference(before).collect::<Vec<_>>(), before.difference(&state).collect::<Vec<_>>());
            assert!(Instant::now() < deadline, "{point:?}, {hit}: left {left:#?}, gone {gone:#?}");
            #[expect(
                clippy::disallowed_methods,
                reason = "the kernel removes what is left of a namespace until a deadline"
            )]
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(self.site.world.allocations(), 0, "{point:?}, {hit}");
        assert_eq!(self.site.connections(), BTreeSet::new(), "{point:?}, {hit}");
        !hit.is_empty()
    }
}

/// G1: whatever goes wrong when, what others have stays, and what the run had does not.
#[test]
fn g1_no_fault_of_a_network_leaves_anything() {
    need_root!();
    no_fault_leaves_anything(By::Plugins, (10, 10), 250);
}

/// G1: the same where the kernel has no `nf_tables`, and iptables is called more often.
#[test]
fn g1_without_nf_tables_no_fault_of_a_network_leaves_anything() {
    need_root!();
    no_fault_leaves_anything(By::PluginsAlone, (20, 5), 500);
}

/// G1: the same where no CNI plugins are installed, and fewer programs are called.
#[test]
fn g1_without_plugins_no_fault_of_a_network_leaves_anything() {
    need_root!();
    no_fault_leaves_anything(By::Builtin, (5, 30), 250);
}

fn no_fault_leaves_anything(by: By, least: (usize, usize), least_points: usize) {
    let faulty = Faulty::new(by);
    let before = faulty.site.state();
    let (_, calls, steps) = faulty.run(Point::Nothing);
    let (after, connections) = (faulty.site.state(), faulty.site.connections());
    let different: Vec<_> = after.symmetric_difference(&before).collect();
    assert!(different.is_empty() && connections.is_empty(), "{different:#?} {connections:#?}");
    assert!(calls > least.0 && steps > least.1, "{calls} calls, {steps} requests");
    if std::env::var("AGENTBIN_FULL").is_ok_and(|full| full == "1") {
        let mut points = 0;
        let mut every = |before: &BTreeSet<String>, calls: usize, steps: usize, of_calls: usize| {
            let of_calls =
                (1..=calls).step_by(of_calls).flat_map(|nth| FAULTS[..HANGS].iter().map(move |fault| (nth, *fault)));
            let hanging =
                (1..=calls).step_by(HANGING).flat_map(|nth| FAULTS[HANGS..].iter().map(move |fault| (nth, *fault)));
            let of_steps = (1..=steps).flat_map(|nth| STEPS.map(|fault| Point::Step(nth, fault)));
            for point in of_steps.chain(of_calls.chain(hanging).map(|(nth, fault)| Point::Call(nth, fault))) {
                points += usize::from(faulty.point(point, before));
            }
        };
        every(&before, calls, steps, 1);
        let other = World::new();
        let text = job("batch", &[group("other", "raw_exec", "mode = \"bridge\"", "echo up; sleep 1000")]);
        let file = other.file("other.nomad.hcl", &text);
        // Connected as the other one is: what both share is there before.
        let mut command = other.command(&faulty.site.args(&[file.to_str().unwrap()]));
        if by == By::PluginsAlone {
            hide_tables(&mut command);
        }
        let mut others = World::start_command(command);
        wait_for_text(&others.stdout, "up");
        let beside = faulty.site.state();
        let (_, calls, steps) = faulty.run(Point::Nothing);
        every(&beside, calls, steps, BESIDE);
        signal(&others.child, "INT");
        others.finish();
        assert!(points >= least_points, "{points} points");
        println!("{points} points");
    } else {
        let mut random = Random::new(&format!("g1_no_fault_of_a_network_leaves_anything {by:?}"));
        let mut one = |point: &mut dyn FnMut(&mut Random) -> Point| {
            let came = (0..20).any(|_| faulty.point(point(&mut random), &before));
            assert!(came, "none of 20 came");
        };
        let of = |random: &mut Random, most: usize, faults: &[&'static str]| {
            (1 + random.index(most), faults[random.index(faults.len())])
        };
        for _ in 0..SLICE.0 {
            one(&mut |random| {
                let (nth, fault) = of(random, calls, &FAULTS[..HANGS]);
                Point::Call(nth, fault)
            });
        }
        for _ in 0..SLICE.1 {
            // While it is made: whoever waits for the end of a run waits longer for what removes it.
            one(&mut |random| {
                let (nth, fault) = of(random, calls.div_ceil(4), &FAULTS[HANGS..]);
                Point::Call(nth, fault)
            });
        }
        for _ in 0..SLICE.2 {
            one(&mut |random| {
                let (nth, fault) = of(random, steps, &STEPS);
                Point::Step(nth, fault)
            });
        }
    }
    assert_eq!(faulty.site.state(), before);
}
