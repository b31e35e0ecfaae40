//! Who runs on which cores, on the real kernel, whichever regime it has. Mission C3 C4.
//!
//! Needs root, a cpuset controller and two cores. Without them a test says why it did not run, and fails where `CI` is
//! `true`.

#[path = "support/random.rs"]
mod random;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agentbin::cgroup::{CgroupFs, Cores, Cpusets, Error, Regime, TaskCgroup};
use agentbin::spec::{CpuSet, Resources};
use random::Random;
use rustix::process::Pid;

/// A parent of our own per test; what is in it is removed whatever happens.
struct Bench {
    fs: CgroupFs,
    parent: PathBuf,
    cpusets: Cpusets,
    all: CpuSet,
    running: BTreeMap<String, Task>,
}

/// A task as the test believes it to be.
struct Task {
    cgroup: TaskCgroup,
    process: Option<Child>,
    own: Option<CpuSet>,
}

fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none_or(|v| v != "true"), "cannot test: {why}");
    println!("SKIP: {}: {why}", std::thread::current().name().unwrap_or("cpuset"));
}

fn is_task(name: &str) -> bool {
    name.starts_with("task")
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

impl Bench {
    fn new(test: &str) -> Option<Bench> {
        if !rustix::process::geteuid().is_root() {
            skip("not root");
            return None;
        }
        let fs = CgroupFs::detect(Path::new("/sys/fs/cgroup")).unwrap();
        let parent = PathBuf::from(format!("agentbin-cpuset-{}-{test}", std::process::id()));
        let cpusets = match Cpusets::open(&fs, &parent, is_task) {
            Err(Error::Off | Error::NoController(_)) => {
                skip("no cpuset controller");
                return None;
            }
            cpusets => cpusets.unwrap(),
        };
        let all = cpusets.reservable().unwrap();
        if all.len() < 2 {
            skip("one core");
            return None;
        }
        Some(Bench { fs, parent, cpusets, all, running: BTreeMap::new() })
    }

    /// Starts a task as an allocation does: reservation, cgroup, process, settlement.
    fn start(&mut self, name: &str, wanted: Option<&Cores>, with_process: bool) -> Result<(), Error> {
        let own = wanted.map(|wanted| self.cpusets.reserve(name, wanted)).transpose()?;
        let cores = own.clone().map_or_else(|| self.cpusets.shared(), Ok)?;
        let resources = Resources { cpuset_cpus: cores.to_string(), ..Resources::default() };
        let cgroup = TaskCgroup::create(&self.fs, &self.parent.join(name), &resources)?;
        let process = with_process.then(|| {
            let child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
            cgroup.join(Pid::from_child(&child)).unwrap();
            child
        });
        self.cpusets.settle()?;
        self.running.insert(name.to_owned(), Task { cgroup, process, own });
        Ok(())
    }

    /// `settled` is false for an owner that was killed before it could say so.
    fn stop(&mut self, name: &str, settled: bool) {
        let mut task = self.running.remove(name).unwrap();
        task.cgroup.destroy(soon()).unwrap();
        if let Some(process) = &mut task.process {
            process.wait().unwrap();
        }
        if settled {
            self.cpusets.settle().unwrap();
        }
    }

    fn reserved(&self) -> CpuSet {
        self.running.values().filter_map(|task| task.own.as_ref()).fold(CpuSet::default(), |all, own| all.union(own))
    }

    /// Everybody is where the model says, in the files and for the scheduler.
    fn check(&self) {
        let shared = self.all.without(&self.reserved());
        assert!(!shared.is_empty());
        assert_eq!(self.cpusets.shared().unwrap(), shared);
        assert_eq!(self.cpusets.reservable().unwrap(), self.all);
        for (name, task) in &self.running {
            let expected = task.own.as_ref().unwrap_or(&shared);
            assert_eq!(self.effective(name), *expected, "{name}");
            if let Some(process) = &task.process {
                let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
                let line = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap();
                assert_eq!(line.parse::<CpuSet>().unwrap(), *expected, "{name}");
            }
        }
    }

    fn effective(&self, name: &str) -> CpuSet {
        let tree = self.fs.hierarchies().find(|h| self.fs.regime() == Regime::V2 || h.has("cpuset")).unwrap();
        let file = if self.fs.regime() == Regime::V2 { "cpuset.cpus.effective" } else { "cpuset.cpus" };
        let path = tree.mount_point.join(&self.parent).join(name).join(file);
        std::fs::read_to_string(path).unwrap().parse().unwrap()
    }

    fn end(mut self) {
        for name in self.running.keys().cloned().collect::<Vec<_>>() {
            self.stop(&name, true);
        }
        for tree in self.fs.hierarchies() {
            let path = tree.mount_point.join(&self.parent);
            assert!(!path.exists(), "{} is left", path.display());
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Ok(all) = TaskCgroup::open(&self.fs, &self.parent) {
            let _ = all.destroy(soon());
        }
        for task in self.running.values_mut() {
            if let Some(process) = &mut task.process {
                let _ = process.wait();
            }
        }
    }
}

/// Random starts, reservations and ends against a model, on the real tree.
#[test]
fn c3_whatever_starts_and_ends_everybody_has_his_cores() {
    let Some(mut bench) = Bench::new("model") else { return };
    let mut random = Random::new("c3_whatever_starts_and_ends_everybody_has_his_cores");
    let full = std::env::var_os("AGENTBIN_FULL").is_some_and(|v| v == "1");
    for step in 0..if full { 2000 } else { 120 } {
        let names: Vec<String> = bench.running.keys().cloned().collect();
        let name = format!("task-{step}");
        let free = bench.all.len() - bench.reserved().len() - 1;
        match random.below(8) {
            0..=1 => bench.start(&name, None, random.below(2) == 0).unwrap(),
            2..=3 => {
                let count = 1 + random.index(bench.all.len());
                let wanted = Cores::Any(u32::try_from(count).unwrap());
                match bench.start(&name, Some(&wanted), random.below(2) == 0) {
                    Ok(()) => assert!(count <= free),
                    Err(Error::Cores { free: said, .. }) => assert!(count > free && said == free),
                    Err(other) => panic!("{other}"),
                }
            }
            4 => {
                let cores: CpuSet = bench.all.iter().filter(|_| random.below(2) == 0).collect();
                let shared = bench.all.without(&bench.reserved());
                let can = !cores.is_empty() && cores.is_within(&shared) && !shared.is_within(&cores);
                let started = bench.start(&name, Some(&Cores::Exactly(cores)), true);
                assert_eq!(started.is_ok(), can, "{started:?}");
            }
            _ if names.is_empty() => {}
            kind => {
                bench.stop(&names[random.index(names.len())], kind != 5);
                if kind == 5 {
                    // Somebody else looks, at some other time.
                    bench.cpusets.settle().unwrap();
                }
            }
        }
        bench.check();
    }
    bench.end();
}

/// Between two runs of a task nobody else gets its cores, and its next run does.
#[test]
fn c3_a_task_keeps_its_cores_while_it_has_no_cgroup() {
    let Some(mut bench) = Bench::new("kept") else { return };
    let keeper = Cpusets::keeper("task-1");
    let own = bench.cpusets.reserve(&keeper, &Cores::Any(1)).unwrap();
    let rest = bench.all.without(&own);
    let everything = Cores::Any(u32::try_from(bench.all.len()).unwrap() - 1);
    for _ in 0..2 {
        bench.start("task-1", Some(&Cores::Exactly(own.clone())), true).unwrap();
        bench.check();
        bench.stop("task-1", true);
        assert_eq!(bench.cpusets.shared().unwrap(), rest);
        let taken = bench.cpusets.reserve("task-2", &everything);
        assert!(matches!(taken, Err(Error::Cores { .. })), "{taken:?}");
        let taken = bench.cpusets.reserve("task-2", &Cores::Exactly(own.clone()));
        assert!(matches!(taken, Err(Error::Cores { .. })), "{taken:?}");
    }
    TaskCgroup::open(&bench.fs, &bench.parent.join(&keeper)).unwrap().remove(soon()).unwrap();
    bench.cpusets.settle().unwrap();
    bench.start("task-2", Some(&everything), true).unwrap();
    bench.check();
    bench.stop("task-2", true);
    bench.end();
}

/// Tasks that start, reserve and end at once, each seen by its own process.
#[test]
fn c3_many_at_once_do_not_meet() {
    let Some(bench) = Bench::new("crowd") else { return };
    let (fs, parent, all) = (bench.fs.clone(), bench.parent.clone(), bench.all.clone());
    std::thread::scope(|scope| {
        for worker in 0..6 {
            let (fs, parent, all) = (&fs, &parent, &all);
            scope.spawn(move || {
                let cpusets = Cpusets::open(fs, parent, is_task).unwrap();
                for round in 0..15 {
                    let name = format!("task-{worker}-{round}");
                    let own = match cpusets.reserve(&name, &Cores::Any(1)) {
                        Ok(own) => Some(own),
                        Err(Error::Cores { .. }) => None,
                        Err(other) => panic!("{other}"),
                    };
                    let cores = own.clone().map_or_else(|| cpusets.shared(), Ok).unwrap();
                    let resources = Resources { cpuset_cpus: cores.to_string(), ..Resources::default() };
                    let task = TaskCgroup::create(fs, &parent.join(&name), &resources).unwrap();
                    cpusets.settle().unwrap();
                    if let Some(own) = own {
                        assert!(own.len() == 1 && own.is_within(all));
                        assert!(cpusets.shared().unwrap().without(&own) == cpusets.shared().unwrap());
                    }
                    task.remove(soon()).unwrap();
                    cpusets.settle().unwrap();
                }
            });
        }
    });
    assert_eq!(bench.cpusets.shared().unwrap(), bench.all);
    bench.end();
}

/// Cgroups that are there already and are no tasks are left alone, and so is a parent whose cores somebody chose.
#[test]
fn c4_reservable_cores_are_those_of_the_parent() {
    let Some(mut bench) = Bench::new("parent") else { return };
    let some = CpuSet::first(u32::try_from(bench.all.len()).unwrap() - 1);
    if some.len() < 2 {
        // Two cores are too few for a parent with fewer that still has some to share.
        let resources = Resources { cpuset_cpus: "0".to_owned(), ..Resources::default() };
        let parent = TaskCgroup::create(&bench.fs, &bench.parent, &resources).unwrap();
        assert_eq!(bench.cpusets.reservable().unwrap().to_string(), "0");
        assert!(matches!(bench.cpusets.reserve("task", &Cores::Any(1)), Err(Error::Cores { free: 0, .. })));
        return parent.remove(soon()).unwrap();
    }
    let resources = Resources { cpuset_cpus: some.to_string(), ..Resources::default() };
    let parent = TaskCgroup::create(&bench.fs, &bench.parent, &resources).unwrap();
    let other = TaskCgroup::create(&bench.fs, &bench.parent.join("other"), &Resources::default()).unwrap();
    bench.all = some;
    let before = bench.effective("other");
    bench.start("task-1", Some(&Cores::Any(1)), false).unwrap();
    bench.start("task-2", None, false).unwrap();
    bench.check();
    assert_eq!(bench.effective("other"), before);
    other.remove(soon()).unwrap();
    bench.stop("task-1", true);
    bench.check();
    bench.stop("task-2", true);
    parent.remove(soon()).unwrap();
}

/// A v1 task that made cpusets of its own does not keep its cores from others.
#[test]
fn c3_cpusets_below_a_task_shrink_with_it() {
    let Some(mut bench) = Bench::new("nested") else { return };
    bench.start("task-1", None, true).unwrap();
    let inner = TaskCgroup::create(&bench.fs, &bench.parent.join("task-1/a/b"), &Resources::default());
    // A v2 cgroup with a process in it has no controllers for others.
    if bench.fs.regime() == Regime::V1 {
        inner.unwrap();
    }
    bench.start("task-2", Some(&Cores::Any(1)), false).unwrap();
    bench.check();
    bench.stop("task-2", true);
    bench.stop("task-1", true);
    bench.end();
}
