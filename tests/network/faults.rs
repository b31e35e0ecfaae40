//! Nothing leaks (row G1): each call that a network is made and removed by fails, dies, hangs, loses its answer, or outlives its
//! run, and afterwards the machine is as before.
//!
//! The default draws a few of the points, which `AGENTBIN_SEED` repeats; `AGENTBIN_FULL=1` takes each of them, alone and beside
//! another allocation on the bridge.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};

use crate::random::Random;
use crate::site::{By, PLUGINS, Site, group, job};
use crate::world::{World, copy_program, need_root, seconds, signal, wait_for_text};

/// What becomes of one call.
const FAULTS: [&str; 9] =
    ["fails", "lost", "garbage", "dies", "dies-after", "run-dies", "run-dies-after", "hangs", "hangs-after"];
/// The last two of them: somebody has to end the run.
const HANGS: usize = 7;
/// Points of the default: others, and hanging ones.
const SLICE: (usize, usize) = (8, 1);

/// A machine on which one call, counted over all programs that make networks, goes wrong.
struct Faulty {
    site: Site,
    by: By,
    dir: PathBuf,
    plugins: PathBuf,
}

impl Faulty {
    fn new(by: By) -> Faulty {
        let site = Site::with_ipv6(by);
        let dir = site.world.path("faults");
        std::fs::create_dir(&dir).unwrap();
        let plugins = site.plugins(&[]);
        // The first directory in which programs are looked for.
        let programs = Path::new("/usr/local/sbin");
        let names = ["iptables", "iptables-restore", "ip6tables", "ip6tables-restore", "nft"];
        let real: Vec<(&str, PathBuf)> = names[..if by == By::PluginsAlone { 4 } else { 5 }]
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
        let faulty = Faulty { site, by, dir, plugins };
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

    /// Runs a job in which the call of this number goes wrong. Returns which that was, and how many there were.
    fn run(&self, nth: usize, fault: &str) -> (String, usize) {
        let file = |name: &str| self.dir.join(name);
        for old in ["hit", "pid", "out"] {
            let _not_there = std::fs::remove_file(file(old));
        }
        for (name, text) in [("fault", fault), ("nth", &nth.to_string()), ("count", "0")] {
            std::fs::write(file(name), text).unwrap();
        }
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
            assert!(Instant::now() < deadline, "{fault} of call {nth}: the run does not end");
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
        let hit = std::fs::read_to_string(file("hit")).unwrap_or_default();
        assert!(!hit.is_empty() || status.success(), "{fault} of call {nth}, which did not come: {status}");
        (hit, count)
    }

    /// The same, and the clean-up after it. Returns whether the call came: a run that ends early has not looked again at the rules of
    /// iptables, which it does a moment after they have changed.
    fn point(&self, nth: usize, fault: &str, before: &BTreeSet<String>) -> bool {
        let (hit, calls) = self.run(nth, fault);
        assert!(!hit.is_empty() || calls < nth, "call {nth} of {calls} is not seen");
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
            assert!(Instant::now() < deadline, "{fault} of call {nth}, {hit}: left {left:#?}, gone {gone:#?}");
            #[expect(
                clippy::disallowed_methods,
                reason = "the kernel removes what is left of a namespace until a deadline"
            )]
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(self.site.world.allocations(), 0, "{fault} of call {nth}, {hit}");
        assert_eq!(self.site.connections(), BTreeSet::new(), "{fault} of call {nth}, {hit}");
        !hit.is_empty()
    }
}

/// G1: whatever goes wrong when, what others have stays, and what the run had does not.
#[test]
fn g1_no_fault_of_a_network_leaves_anything() {
    need_root!();
    no_fault_leaves_anything(By::Plugins, 12, 250);
}

/// G1: the same where nft is not installed, and iptables is called more often.
#[test]
fn g1_without_nft_no_fault_of_a_network_leaves_anything() {
    need_root!();
    no_fault_leaves_anything(By::PluginsAlone, 20, 500);
}

/// G1: the same where no CNI plugins are installed, and fewer programs are called.
#[test]
fn g1_without_plugins_no_fault_of_a_network_leaves_anything() {
    need_root!();
    no_fault_leaves_anything(By::Builtin, 7, 130);
}

fn no_fault_leaves_anything(by: By, least_calls: usize, least_points: usize) {
    let faulty = Faulty::new(by);
    let before = faulty.site.state();
    let (_, calls) = faulty.run(0, "");
    assert_eq!((faulty.site.state(), faulty.site.connections()), (before.clone(), BTreeSet::new()));
    assert!(calls > least_calls, "{calls} calls");
    if std::env::var("AGENTBIN_FULL").is_ok_and(|full| full == "1") {
        let mut points = 0;
        let mut every = |before: &BTreeSet<String>, calls: usize| {
            for nth in 1..=calls {
                for fault in FAULTS {
                    points += usize::from(faulty.point(nth, fault, before));
                }
            }
        };
        every(&before, calls);
        let other = World::new();
        let text = job("batch", &[group("other", "raw_exec", "mode = \"bridge\"", "echo up; sleep 1000")]);
        let file = other.file("other.nomad.hcl", &text);
        // Connected as the other one is: what both share is there before.
        let mut others = other.start(&faulty.site.args(&[file.to_str().unwrap()]));
        wait_for_text(&others.stdout, "up");
        let beside = faulty.site.state();
        let (_, calls) = faulty.run(0, "");
        every(&beside, calls);
        signal(&others.child, "INT");
        others.finish();
        assert!(points >= least_points, "{points} points");
        println!("{points} points");
    } else {
        let mut random = Random::new(&format!("g1_no_fault_of_a_network_leaves_anything {by:?}"));
        let mut one = |most: usize, faults: &[&str]| {
            let came = (0..20).any(|_| {
                let (nth, fault) = (1 + random.index(most), faults[random.index(faults.len())]);
                faulty.point(nth, fault, &before)
            });
            assert!(came, "none of 20 calls of {most} came");
        };
        for _ in 0..SLICE.0 {
            one(calls, &FAULTS[..HANGS]);
        }
        for _ in 0..SLICE.1 {
            // While it is made: whoever waits for the end of a run waits longer for what removes it.
            one(calls / 4, &FAULTS[HANGS..]);
        }
    }
    assert_eq!(faulty.site.state(), before);
}
