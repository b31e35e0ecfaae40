//! The cores on which tasks run: those that some tasks have reserved, and the rest, which all others share.
//!
//! The cgroups are the only record. A reservation is a mark (an extended attribute) on the task's directory, so it ends with the
//! directory, no matter which process removes it; and every process that starts or ends tasks sees the same state, under one lock.
//! The directory above all tasks is never narrowed, so that no order of writes leaves a child with more cores than its parent
//! (EBUSY), and one core is always left for the sharing tasks (an empty v1 cpuset accepts no process, ENOSPC; an empty v2 one means
//! all cores).

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::FlockOperation;

use super::error::{Error, Result};
use super::fs::{CgroupFs, Dir, Tree, checked};
use super::regime::Regime;
use crate::spec::{CpuSet, Order as _};
use crate::sys::owned::OwnDir;

/// The value is the list of reserved cores. The names are distinct from those that mark a directory as ours.
const RESERVED: [&str; 2] = ["trusted.agentbin-cores", "user.agentbin-cores"];
/// Set on the directory above: some task has reserved cores, or had at the last check.
const IN_USE: [&str; 2] = ["trusted.agentbin-cpuset", "user.agentbin-cpuset"];
/// The same limit as for a task's directory.
const RACE: Duration = Duration::from_secs(1);
/// The file that is locked.
const LOCK: &str = "cpuset.lock";
/// Prefix of the directory that holds a reservation beyond the life of the task's own directory.
const KEPT: &str = "kept-";
/// Most levels of cgroups that a v1 task may have made below its own.
const DEPTH: usize = 32;

/// Cores that a task wants to reserve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cores {
    /// These.
    Exactly(CpuSet),
    /// This many, whichever are free.
    Any(u32),
}

/// The cores of all tasks below one cgroup.
#[derive(Debug, Clone)]
pub struct Cpusets {
    regime: Regime,
    tree: Arc<Tree>,
    parent: PathBuf,
    /// Which directories in `parent` are tasks of ours, by name.
    is_task: fn(&str) -> bool,
    /// The directory of the lock file; without it the tree's root is locked, which every user can open.
    lock_dir: Option<PathBuf>,
}

impl Cpusets {
    /// The tasks in `parent`, relative to the tree's root: those of its directories whose name `is_task` accepts. Creates and
    /// changes nothing.
    ///
    /// # Errors
    /// [`Error::Off`]; [`Error::NoController`] where there is no cpuset; [`Error::BadPath`].
    pub fn open(fs: &CgroupFs, parent: &Path, is_task: fn(&str) -> bool) -> Result<Cpusets> {
        let none = || Error::NoController("cpuset".to_owned());
        let tree = match fs.regime() {
            Regime::Off => return Err(Error::Off),
            Regime::V1 => fs.v1("cpuset").ok_or_else(none)?,
            Regime::V2 if fs.missing_controllers()?.contains(&"cpuset") => return Err(none()),
            Regime::V2 => &fs.trees()[0],
        };
        Ok(Cpusets { regime: fs.regime(), tree: Arc::clone(tree), parent: checked(parent)?, is_task, lock_dir: None })
    }

    /// The same with a lock file in a directory that only this user can enter, created if missing: a user who can open the locked
    /// file can block all processes that reserve cores.
    #[must_use]
    pub fn locked_in(self, dir: PathBuf) -> Cpusets {
        Cpusets { lock_dir: Some(dir), ..self }
    }

    /// The cores that tasks may have: those of the directory above them, or if that does not exist of its nearest existing
    /// ancestor.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Malformed`].
    pub fn reservable(&self) -> Result<CpuSet> {
        for path in self.parent.ancestors() {
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            let dir = match self.tree.dir(path) {
                Err(e) if e.is_gone() => continue,
                dir => dir?,
            };
            for name in ["cpuset.effective_cpus", "cpuset.cpus.effective", "cpuset.cpus"] {
                if let Some(cores) = dir.read_if_there(name)? {
                    return parse(&dir, name, &cores);
                }
            }
        }
        Err(Error::NoController("cpuset".to_owned()))
    }

    /// The cores shared by the tasks that have reserved none.
    ///
    /// # Errors
    /// As [`reservable`](Self::reservable).
    pub fn shared(&self) -> Result<CpuSet> {
        let reserved = match self.parent_dir()? {
            Some(parent) => reserved(&self.tasks(&parent)?),
            None => CpuSet::default(),
        };
        Ok(self.reservable()?.without(&reserved))
    }

    /// As [`shared`](Self::shared), or `None` while no cores are reserved and all tasks have those of the directory above.
    ///
    /// # Errors
    /// As [`reservable`](Self::reservable).
    pub fn restricted(&self) -> Result<Option<CpuSet>> {
        match self.parent_dir()? {
            Some(parent) if parent.mark(&IN_USE).is_some() => self.shared().map(Some),
            _ => Ok(None),
        }
    }

    /// The name of the directory that holds what the task `name` has [reserved](Self::reserve) while it has no directory itself:
    /// between two runs. No process is ever put into this directory.
    #[must_use]
    pub fn keeper(name: &str) -> String {
        format!("{KEPT}{name}")
    }

    /// Reserves cores for the task `name` and takes them from all others. Its directory is created if missing; the reservation
    /// lasts until that directory and its [`keeper`](Self::keeper) are removed. An earlier reservation under this name is replaced.
    ///
    /// # Errors
    /// [`Error::Cores`] when the cores are not available, with nothing changed; else what the files say, and then
    /// [`settle`](Self::settle) applies the reservations that are stored.
    pub fn reserve(&self, name: &str, wanted: &Cores) -> Result<CpuSet> {
        let _lock = self.lock()?;
        let scope = self.parent.join(checked(Path::new(name))?);
        let tasks = self.parent_dir()?.map(|parent| self.tasks(&parent)).transpose()?.unwrap_or_default();
        let others =
            tasks.iter().filter(|task| owner(&task.name) != owner(name)).filter_map(|task| task.reserved.as_ref());
        let taken = others.fold(CpuSet::default(), |all, cores| all.union(cores));
        let reservable = self.reservable()?;
        let cores = pick(wanted, &reservable, &taken)?;

        // First the mark that there is work for `settle`, then the reservation, then the other tasks give up the cores.
        self.tree.make(&scope, RACE)?;
        let parent = self.tree.dir(&self.parent)?;
        parent.set_mark(&IN_USE, b"1")?;
        self.tree.dir(&scope)?.set_mark(&RESERVED, cores.to_string().as_bytes())?;
        self.arrange(&parent)?;
        Ok(cores)
    }

    /// Writes every task's cores: call it after a task was started or its directory removed. If no cores are reserved, this only
    /// reads one mark.
    ///
    /// # Errors
    /// What the files say; all tasks were tried.
    pub fn settle(&self) -> Result<()> {
        match self.parent_dir()? {
            Some(parent) if parent.mark(&IN_USE).is_some() => {}
            _ => return Ok(()),
        }
        let _lock = self.lock()?;
        match self.parent_dir()? {
            Some(parent) => self.arrange(&parent),
            None => Ok(()),
        }
    }

    /// Call it with the lock held.
    fn arrange(&self, parent: &Dir) -> Result<()> {
        let tasks = self.tasks(parent)?;
        let reserved = reserved(&tasks);
        // The cores are written explicitly even without reservations: a cpuset with a process in it cannot be emptied again, not on
        // v2 either (ENOSPC).
        let shared = self.reservable()?.without(&reserved).to_string();
        let mut first = Ok(());
        // Sharing tasks give up cores before reserving tasks get them.
        for (task, cores) in tasks.iter().map(|task| match &task.reserved {
            None => (task, shared.clone()),
            Some(own) => (task, own.to_string()),
        }) {
            let result = self.confine(parent, &task.name, &cores);
            first = first.and(result);
        }
        if reserved.is_empty() && first.is_ok() {
            parent.remove_mark(&IN_USE);
        }
        first
    }

    /// Writes `cores` into the task's directory, and on v1 into those below it, which must not have more.
    fn confine(&self, parent: &Dir, name: &str, cores: &str) -> Result<()> {
        let gone = |result: Result<()>| match result {
            Err(e) if e.is_gone() => Ok(()),
            other => other,
        };
        let dir = match parent.child(OsStr::new(name)) {
            Err(e) if e.is_gone() => return Ok(()),
            dir => dir?,
        };
        if self.regime == Regime::V2 {
            return gone(dir.write("cpuset.cpus", cores));
        }
        for _ in 0..DEPTH {
            let busy = |dir: &Dir| match dir.write("cpuset.cpus", cores) {
                Err(e) if e.errno() == Some(libc::EBUSY) => Ok(true),
                other => gone(other).map(|()| false),
            };
            if !dir.collect(busy)?.contains(&true) {
                return Ok(());
            }
        }
        gone(dir.write("cpuset.cpus", cores))
    }

    fn tasks(&self, parent: &Dir) -> Result<Vec<TaskCores>> {
        let mut tasks = Vec::new();
        for name in parent.children()? {
            let Some(name) = name.to_str().filter(|name| (self.is_task)(owner(name))) else { continue };
            let dir = match parent.child(OsStr::new(name)) {
                Err(e) if e.is_gone() => continue,
                dir => dir?,
            };
            let reserved = dir.mark(&RESERVED).map(|mark| parse(&dir, RESERVED[0], &String::from_utf8_lossy(&mark)));
            tasks.push(TaskCores { name: name.to_owned(), reserved: reserved.transpose()? });
        }
        tasks.order_by_key(|task| task.reserved.is_some());
        Ok(tasks)
    }

    fn parent_dir(&self) -> Result<Option<Dir>> {
        match self.tree.dir(&self.parent) {
            Err(e) if e.is_gone() => Ok(None),
            dir => dir.map(Some),
        }
    }

    fn lock(&self) -> Result<OwnedFd> {
        let (file, path) = if let Some(dir) = &self.lock_dir {
            let make = || {
                DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
                OwnDir::open(dir)?.lock_file(LOCK.as_ref())
            };
            let path = dir.join(LOCK);
            (OwnedFd::from(make().map_err(|e| Error::io("open the lock", &path, e))?), path)
        } else {
            let root = self.tree.dir(Path::new("."))?;
            let file = root.as_fd().try_clone_to_owned().map_err(|e| Error::io("lock", &root.path, e))?;
            (file, root.path.clone())
        };
        let locked = rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive));
        locked.map_err(|e| Error::io("lock", &path, e))?;
        Ok(file)
    }
}

/// A task's directory.
struct TaskCores {
    name: String,
    reserved: Option<CpuSet>,
}

/// The task to which a directory belongs.
fn owner(name: &str) -> &str {
    name.strip_prefix(KEPT).unwrap_or(name)
}

fn reserved(tasks: &[TaskCores]) -> CpuSet {
    tasks.iter().filter_map(|task| task.reserved.as_ref()).fold(CpuSet::default(), |all, cores| all.union(cores))
}

/// Picks cores for `wanted` from the free ones, of which one must remain. Takes the highest numbers first: other software prefers
/// the lowest ones.
fn pick(wanted: &Cores, reservable: &CpuSet, taken: &CpuSet) -> Result<CpuSet> {
    let free = reservable.without(taken);
    let (cores, text) = match wanted {
        Cores::Exactly(cores) => (cores.clone(), format!("the cores {cores}")),
        Cores::Any(count) => {
            let count = usize::try_from(*count).unwrap_or(usize::MAX);
            (free.iter().rev().take(count).collect(), format!("{count} cores"))
        }
    };
    let enough = match wanted {
        Cores::Exactly(_) => true,
        Cores::Any(count) => u32::try_from(cores.len()) == Ok(*count),
    };
    if !enough || cores.is_empty() || !cores.is_within(&free) || free.is_within(&cores) {
        let free = free.len().saturating_sub(1);
        return Err(Error::Cores { wanted: text, free, all: reservable.clone() });
    }
    Ok(cores)
}

fn parse(dir: &Dir, name: &str, text: &str) -> Result<CpuSet> {
    let malformed = |_| Error::Malformed { path: dir.path.join(name), text: text.trim().to_owned() };
    text.parse().map_err(malformed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    fn exactly(text: &str) -> Cores {
        Cores::Exactly(set(text))
    }

    #[test]
    fn c3_one_core_stays_for_those_that_share() {
        let get = |wanted, taken| pick(&wanted, &set("0-3"), &set(taken)).map_err(|e| e.to_string());
        assert_eq!(get(Cores::Any(2), ""), Ok(set("2-3")));
        assert_eq!(get(Cores::Any(2), "3"), Ok(set("1-2")));
        assert_eq!(get(exactly("0,2"), "1"), Ok(set("0,2")));
        let all = "of the cores 0-3 can be reserved, as one stays for tasks without cores of their own";
        assert_eq!(get(Cores::Any(4), ""), Err(format!("cannot reserve 4 cores: 3 {all}")));
        assert_eq!(get(Cores::Any(1), "1-3"), Err(format!("cannot reserve 1 cores: 0 {all}")));
        assert_eq!(get(exactly("0-3"), ""), Err(format!("cannot reserve the cores 0-3: 3 {all}")));
        for (wanted, taken) in [("4", ""), ("1", "1"), ("", ""), ("3-4", ""), ("2,3", "0-1")] {
            assert!(get(exactly(wanted), taken).is_err(), "{wanted} of {taken}");
        }
        assert!(get(Cores::Any(0), "").is_err());
    }

    proptest! {
        #[test]
        fn c3_what_is_picked_is_free_and_leaves_something(
            count in 0u32..9, all in prop::collection::btree_set(0u32..8, 1..8),
            taken in prop::collection::btree_set(0u32..8, 0..8)
        ) {
            let (all, taken): (CpuSet, CpuSet) = (all.into_iter().collect(), taken.into_iter().collect());
            let free = all.without(&taken);
            match pick(&Cores::Any(count), &all, &taken) {
                Ok(cores) => {
                    prop_assert!(cores.len() == count as usize && cores.is_within(&free));
                    prop_assert!(!free.without(&cores).is_empty());
                }
                Err(_) => prop_assert!(count == 0 || count as usize >= free.len()),
            }
        }
    }
}
