//! The cgroup of one task: create, open, join, remove.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::devices::{self, DeviceRule};
use super::error::{Error, Result};
use super::fs::{Backoff, CgroupFs, Dir, Tree, checked};
use super::limits;
use super::member::{Member, TaskCgroup};
use super::regime::Regime;
use crate::spec::Resources;

/// How long a launch retries while other processes make or remove the same parents.
const RACE: Duration = Duration::from_secs(1);
/// How long removing an emptied cgroup may fail before it is checked again for new processes.
const LATECOMERS: Duration = Duration::from_millis(100);
/// How long a launch waits for the processes of an earlier, killed executor to end.
const LEFTOVERS: Duration = Duration::from_secs(10);

impl TaskCgroup {
    /// Creates the cgroup `relative` in every tree and writes the limits. v2: the controllers are enabled from the root down. v1:
    /// cpus and memory nodes are copied down, as an empty cpuset accepts no process.
    ///
    /// An existing directory is taken over: processes that an earlier executor left in it are killed first (up to 10 s). With an
    /// override in `resources` the host's directories are opened instead, which must exist; they get no limits.
    ///
    /// # Errors
    /// [`Error::Off`]; [`Error::BadPath`] for a path that is empty, absolute or has `..`; [`Error::NoController`] for a limit that
    /// is not available; [`Error::Protected`] and [`Error::Survivors`] from the kill; [`Error::Io`] and [`Error::Write`] else.
    /// Directories that were created are removed again.
    pub fn create(fs: &CgroupFs, relative: &Path, resources: &Resources) -> Result<TaskCgroup> {
        TaskCgroup::create_with_cpuset(fs, relative, None, resources)
    }

    /// As [`create`](Self::create), but on v1 the cpuset is a directory that the host made and owns, which many tasks may share
    /// (`/sys/fs/cgroup/cpuset/nomad/share`, or relative to the cpuset tree). On v2 it has no effect.
    ///
    /// An empty one gets the cores that `resources` requests: Nomad makes a directory for a task with reserved cores and leaves it
    /// to the executor to fill it; [`remove`](Self::remove) empties it again. Where no cores are requested, an empty or missing one
    /// is not used: the task gets its own cpuset, like its other directories.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_with_cpuset(
        fs: &CgroupFs,
        relative: &Path,
        cpuset: Option<&Path>,
        resources: &Resources,
    ) -> Result<TaskCgroup> {
        if let Some(given) = host_given(fs, resources)? {
            return Ok(given);
        }
        let mut task = TaskCgroup::open(fs, relative)?;
        if let (Some(path), Regime::V1) = (cpuset, fs.regime()) {
            let mut given = given_member(fs, "cpuset", path)?;
            if given.has_cores(&resources.cpuset_cpus)? {
                task.use_cpuset(given);
            }
        }
        let mut backoff = Backoff::until(Instant::now() + RACE);
        loop {
            match task.set_up(resources) {
                // A stale executor is just ending, and removes the cgroup of this name.
                Err(e) if e.is_gone() && task.given_are_there() && backoff.wait() => {}
                result => return result.map(|()| task),
            }
        }
    }

    /// On failure, directories that were created are removed again.
    fn set_up(&mut self, resources: &Resources) -> Result<()> {
        let task = self;
        let mut fresh = Vec::with_capacity(task.members.len());
        let set_up = task.make(&mut fresh).and_then(|()| {
            task.clear_leftovers(&fresh)?;
            let all_fresh = fresh.iter().all(|f| *f);
            limits::write(task, resources, !all_fresh)?;
            task.oom_baseline = if all_fresh { 0 } else { task.oom_kills()? };
            Ok(())
        });
        if let Err(error) = set_up {
            let mut made = task.clone();
            let mut fresh = fresh.into_iter();
            made.members.retain(|m| fresh.next().unwrap_or(false) || m.is_filled);
            let _first_error_counts = made.remove(Instant::now() + RACE);
            return Err(error);
        }
        Ok(())
    }

    /// Whether the directories exist that the host has to make.
    fn given_are_there(&self) -> bool {
        self.members.iter().all(|m| m.ours || m.dir().is_ok())
    }

    /// Refers to the cgroup `relative` without creating or reading anything: for a recovered task, and for cleaning up.
    ///
    /// # Errors
    /// [`Error::Off`], [`Error::BadPath`].
    pub fn open(fs: &CgroupFs, relative: &Path) -> Result<TaskCgroup> {
        let relative = checked(relative)?;
        if fs.regime() == Regime::Off {
            return Err(Error::Off);
        }
        let member = |tree: &Arc<Tree>| Member {
            tree: Arc::clone(tree),
            relative: relative.clone(),
            ours: true,
            is_filled: false,
        };
        let members = fs.trees().iter().map(member).collect();
        Ok(TaskCgroup { regime: fs.regime(), members, oom_baseline: 0 })
    }

    /// As [`open`](Self::open), for a cgroup that [`create_with_cpuset`](Self::create_with_cpuset) made with this cpuset of the
    /// host's.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::Io`] where no cpuset tree is mounted, or when it cannot be read.
    pub fn open_with_cpuset(fs: &CgroupFs, relative: &Path, cpuset: Option<&Path>) -> Result<TaskCgroup> {
        let mut task = TaskCgroup::open(fs, relative)?;
        if let (Some(path), Regime::V1) = (cpuset, fs.regime()) {
            let own = task.members.iter().find(|m| m.tree.hierarchy.has("cpuset"));
            // It has one of its own where the host's was not usable.
            if own.map(Member::dir_if_there).transpose()?.flatten().is_none() {
                task.use_cpuset(given_member(fs, "cpuset", path)?);
            }
        }
        Ok(task)
    }

    /// Puts the host's cpuset in the place of its own.
    fn use_cpuset(&mut self, given: Member) {
        self.members.retain(|m| !m.tree.hierarchy.has("cpuset"));
        self.members.push(given);
    }

    /// Attributes the first `count` OOM kills to an earlier run of the task; see [`oom_baseline`](Self::oom_baseline).
    #[must_use]
    pub fn with_oom_baseline(mut self, count: u64) -> TaskCgroup {
        self.oom_baseline = count;
        self
    }

    /// OOM kills counted before this run: must be kept in the record from which the task is recovered.
    #[must_use]
    pub fn oom_baseline(&self) -> u64 {
        self.oom_baseline
    }

    /// The directory in which its processes are listed: on v2 the only one, on v1 the freezer's, or that of `pids`, or the first
    /// one.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.primary().map(Member::path).unwrap_or_default()
    }

    /// Whether its first directory exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.primary().is_some_and(|m| m.dir().is_ok())
    }

    /// Whether the host gave it, so that [`kill_all`](Self::kill_all) refuses and [`remove`](Self::remove) does nothing.
    #[must_use]
    pub fn is_host_given(&self) -> bool {
        !self.members.iter().any(|m| m.ours)
    }

    /// v2: a descriptor (`O_PATH`, close-on-exec) for `CLONE_INTO_CGROUP`, so that the task never runs anywhere else.
    /// v1: `None`; there the process has to join, see [`join_self`](Self::join_self).
    ///
    /// # Errors
    /// [`Error::Io`] when the directory no longer exists.
    pub fn dir_fd(&self) -> Result<Option<OwnedFd>> {
        match self.members.first() {
            Some(member) if self.regime == Regime::V2 => member.tree.handle(&member.relative).map(Some),
            _ => Ok(None),
        }
    }

    /// v1: the `tasks` files to which a single-threaded process writes 0 in order to join, the freezer's first. v2: none.
    ///
    /// `cgroup.procs` would move all threads, and for that, after an idle time, first wait some ms for all CPUs.
    #[must_use]
    pub fn join_files(&self) -> Vec<PathBuf> {
        match self.regime {
            Regime::V1 => self.members.iter().map(|m| m.path().join("tasks")).collect(),
            Regime::V2 | Regime::Off => Vec::new(),
        }
    }

    /// v1: the same files of the roots of these hierarchies. v2: none.
    #[must_use]
    pub fn root_files(&self) -> Vec<PathBuf> {
        match self.regime {
            Regime::V1 => self.members.iter().map(|m| m.tree.path(Path::new("tasks"))).collect(),
            Regime::V2 | Regime::Off => Vec::new(),
        }
    }

    /// Moves the process `pid` (as seen in our pid namespace) into every directory, the freezer first.
    ///
    /// The first move after an idle time waits some ms for the kernel: do it once, early, in parallel to other work.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Write`]; ESRCH when the process is gone. Directories that were already joined stay joined.
    pub fn join(&self, pid: rustix::process::Pid) -> Result<()> {
        self.write_procs(&pid.as_raw_nonzero().to_string())
    }

    /// As [`join`](Self::join), for the calling process; works in any pid namespace.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn join_self(&self) -> Result<()> {
        self.write_procs("0")
    }

    fn write_procs(&self, pid: &str) -> Result<()> {
        self.members.iter().try_for_each(|m| m.dir()?.write("cgroup.procs", pid))
    }

    /// Writes the limits again, for a running task; limits that `resources` does not set are removed.
    ///
    /// # Errors
    /// As for the limits in [`create`](Self::create).
    pub fn set_limits(&self, resources: &Resources) -> Result<()> {
        limits::write(self, resources, true)
    }

    /// Denies access to every device except those that `rules` permit; rules of an earlier call are replaced. Applies at once, also
    /// to processes that are already in it and to sessions that join later. A directory given by the host is not changed.
    ///
    /// v1: the list of the devices controller; a rule that the directory above does not have is skipped.
    /// v2: a program that is attached to the cgroup and released with it.
    ///
    /// # Errors
    /// [`Error::NoController`] (v1) and [`Error::NoDeviceRules`] (v2) when device rules are not supported here; [`Error::Off`];
    /// [`Error::Io`] and [`Error::Write`] else.
    pub fn set_devices(&self, rules: &[DeviceRule]) -> Result<()> {
        if crate::sys::mutant::on("b13") { Ok(()) } else { devices::set(self, rules) }
    }

    /// Its processes, child cgroups included, ascending; empty when the cgroup is gone. 0 is one outside our pid
    /// namespace.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Malformed`].
    pub fn pids(&self) -> Result<Vec<i32>> {
        let dir = self.primary().map(Member::dir_if_there).transpose()?.flatten();
        dir.map_or_else(|| Ok(Vec::new()), |d| d.pids_recursive())
    }

    /// Processes that the kernel killed for lack of memory since the creation of the cgroup, child cgroups included. Read it after
    /// wait and before [`remove`](Self::remove); 0 when the cgroup is gone or memory is not controlled.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn oom_kills(&self) -> Result<u64> {
        let Some(member) = self.member("memory") else { return Ok(0) };
        let Some(dir) = member.dir_if_there()? else { return Ok(0) };
        if self.regime == Regime::V2 {
            // The counts of child cgroups are included in their parents', also those of removed children.
            return Ok(dir.read_if_there("memory.events")?.and_then(|t| value(&t, "oom_kill")).unwrap_or(0));
        }
        let kills =
            |d: &Dir| Ok(d.read_if_there("memory.oom_control")?.and_then(|t| value(&t, "oom_kill")).unwrap_or(0));
        Ok(dir.collect(kills)?.into_iter().sum())
    }

    /// Whether the kernel killed a process of this run for lack of memory.
    ///
    /// # Errors
    /// As [`oom_kills`](Self::oom_kills).
    pub fn oom_killed(&self) -> Result<bool> {
        Ok(self.oom_kills()? > self.oom_baseline)
    }

    /// Removes the cgroup and all below it in every tree, then empty parents that we made.
    ///
    /// A directory with a process in it is retried until `deadline`. May be called again, even when everything is removed.
    ///
    /// # Errors
    /// [`Error::Remove`] with every failure; the other directories are removed nevertheless.
    pub fn remove(&self, deadline: Instant) -> Result<()> {
        let ours = || self.members.iter().filter(|m| m.ours);
        let mut failures: Vec<Error> = ours().filter_map(|m| m.remove(deadline).err()).collect();
        failures.extend(ours().filter_map(|m| m.remove_parents().err()));
        failures.extend(self.members.iter().filter(|m| m.is_filled).filter_map(|m| m.empty_cores().err()));
        if failures.is_empty() { Ok(()) } else { Err(Error::Remove(failures)) }
    }

    /// Kills its processes and removes it, repeatedly until `deadline`: for a dead owner, of which a process may still be joining.
    /// Each removal may take twice as long as the one before, so that also a loaded machine comes to the end of many children.
    ///
    /// # Errors
    /// As [`kill_all`](Self::kill_all) and [`remove`](Self::remove).
    pub fn destroy(&self, deadline: Instant) -> Result<()> {
        let mut patience = LATECOMERS;
        loop {
            self.kill_all(deadline)?;
            match self.remove(deadline.min(Instant::now() + patience)) {
                Err(_) if Instant::now() < deadline => patience *= 2,
                result => return result,
            }
        }
    }

    /// Makes the cgroup at `path` for a container engine, which makes its own cgroups below it, in every tree and in a unified tree
    /// beside those of v1. New parents are marked as ours, so that [`destroy_at`](Self::destroy_at) removes them when they are
    /// empty; parents that an engine makes are never removed.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::Io`] when one cannot be made.
    pub fn make_for_engine(cgroups: &CgroupFs, path: &Path) -> Result<()> {
        TaskCgroup::open(cgroups, path)?.make(&mut Vec::new())?;
        let unified = cgroups.unified_beside()?;
        unified.map_or(Ok(()), |unified| TaskCgroup::open(&unified, path)?.make(&mut Vec::new()))
    }

    /// As [`destroy`](Self::destroy), for the cgroup at `path` and for the one with the same path in a unified tree beside those of
    /// v1, where a container engine also makes its directories.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`destroy`](Self::destroy), the first failure; the other cgroup is removed nevertheless.
    pub fn destroy_at(cgroups: &CgroupFs, path: &Path, deadline: Instant) -> Result<()> {
        let destroyed = TaskCgroup::open(cgroups, path).and_then(|cgroup| cgroup.destroy(deadline));
        let beside = cgroups.unified_beside().and_then(|unified| {
            let beside = unified.map(|unified| TaskCgroup::open(&unified, path)).transpose()?;
            beside.filter(TaskCgroup::exists).map_or(Ok(()), |cgroup| cgroup.destroy(deadline))
        });
        destroyed.and(beside)
    }

    /// The directory that controls `controller`; on v2 the only one.
    pub(super) fn member(&self, controller: &str) -> Option<&Member> {
        match self.regime {
            Regime::V1 => self.members.iter().find(|m| m.tree.hierarchy.has(controller)),
            Regime::V2 => self.members.first(),
            Regime::Off => None,
        }
    }

    fn primary(&self) -> Option<&Member> {
        self.member("freezer").or_else(|| self.member("pids")).or_else(|| self.members.first())
    }

    fn make(&self, fresh: &mut Vec<bool>) -> Result<()> {
        for member in &self.members {
            fresh.push(if member.ours { member.tree.make(&member.relative, RACE)? } else { false });
            if !member.ours {
                member.dir()?;
            }
        }
        Ok(())
    }

    /// A killed executor may have left its task, and a task its own cgroups, in a directory that existed.
    fn clear_leftovers(&self, fresh: &[bool]) -> Result<()> {
        if fresh.iter().zip(&self.members).all(|(fresh, member)| *fresh || !member.ours) {
            return Ok(());
        }
        let deadline = Instant::now() + LEFTOVERS;
        self.kill_all(deadline)?;
        for member in self.members.iter().filter(|m| m.ours) {
            let dir = member.dir()?;
            dir.remove_children(&mut Backoff::until(deadline))?;
            if self.regime == Regime::V2 {
                dir.disable_controllers()?;
            }
        }
        devices::lift(self);
        Ok(())
    }
}

/// The number after `key` in a flat keyed file.
pub(super) fn value(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The cgroup from the host's directories, if `resources` names any.
fn host_given(fs: &CgroupFs, resources: &Resources) -> Result<Option<TaskCgroup>> {
    let members: Vec<Member> = match fs.regime() {
        Regime::V1 => {
            let overrides = resources.cgroup_v1_override.iter().filter(|(_, path)| !path.as_os_str().is_empty());
            overrides.map(|(controller, path)| given_member(fs, controller, path)).collect::<Result<_>>()?
        }
        Regime::V2 => {
            let path = resources.cgroup_v2_override.as_ref().filter(|p| !p.as_os_str().is_empty());
            path.map(|p| member_at(&fs.trees()[0], p)).transpose()?.into_iter().collect()
        }
        Regime::Off => Vec::new(),
    };
    if members.is_empty() {
        return Ok(None);
    }
    for member in &members {
        member.dir()?;
    }
    let mut task = TaskCgroup { regime: fs.regime(), members, oom_baseline: 0 };
    task.oom_baseline = task.oom_kills()?;
    Ok(Some(task))
}

fn given_member(fs: &CgroupFs, controller: &str, path: &Path) -> Result<Member> {
    // The named hierarchy is `systemd` in a job file and `name=systemd` in mountinfo.
    let tree = fs.v1(controller).or_else(|| fs.v1(&format!("name={controller}")));
    // As for a directory that does not exist, which is what hosts look for.
    let none = || Error::io("find the v1 hierarchy of", Path::new(controller), rustix::io::Errno::NOENT);
    member_at(tree.ok_or_else(none)?, path)
}

/// An absolute path has to be in the tree: a pid is never written into a file elsewhere.
fn member_at(tree: &Arc<Tree>, path: &Path) -> Result<Member> {
    let bad = || Error::BadPath(path.to_owned());
    let inner = if path.is_absolute() { tree.strip(path).ok_or_else(bad)? } else { path.to_owned() };
    let relative = checked(&inner).map_err(|_| bad())?;
    Ok(Member { tree: Arc::clone(tree), relative, ours: false, is_filled: false })
}
