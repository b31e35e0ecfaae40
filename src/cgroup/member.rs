//! The directories of a task's cgroup: one on v2, one per hierarchy on v1.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::error::{Error, Result};
use super::fs::{Backoff, Dir, Figures, Tree};
use super::regime::Regime;

/// The cgroup of one task: one directory on v2, one per hierarchy on v1.
///
/// It holds no descriptor of its directories, so dropping it changes nothing, and another process may open the same cgroup.
#[derive(Debug, Clone)]
pub struct TaskCgroup {
    pub(super) regime: Regime,
    pub(super) members: Vec<Member>,
    pub(super) oom_baseline: u64,
}

/// A directory of a task.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) tree: Arc<Tree>,
    pub(super) relative: PathBuf,
    /// False for a directory that the host gave: joined, never limited, killed or removed.
    pub(super) ours: bool,
    /// A cpuset that the host gave empty: it has the task's cores as long as the task runs.
    pub(super) is_filled: bool,
}

impl Member {
    pub(super) fn dir(&self) -> Result<Dir> {
        self.tree.dir(&self.relative)
    }

    pub(super) fn figures(&self) -> Result<Figures> {
        Figures::open(&self.tree, &self.relative)
    }

    pub(super) fn dir_if_there(&self) -> Result<Option<Dir>> {
        match self.dir() {
            Err(e) if e.is_gone() => Ok(None),
            result => result.map(Some),
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.tree.path(&self.relative)
    }

    /// Whether this v1 cpuset accepts a process; an empty one returns ENOSPC. It is first filled with `cores`, if any are
    /// requested.
    pub(super) fn has_cores(&mut self, cores: &str) -> Result<bool> {
        let dir = if cores.is_empty() { self.dir_if_there()? } else { Some(self.dir()?) };
        let Some(dir) = dir else { return Ok(false) };
        let empty = |name| Ok::<_, Error>(dir.read(name)?.trim().is_empty());
        if cores.is_empty() {
            return Ok(!empty("cpuset.cpus")? && !empty("cpuset.mems")?);
        }
        if empty("cpuset.mems")? {
            let above = self
                .tree
                .dir(self.relative.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
            dir.write("cpuset.mems", above.read("cpuset.mems")?.trim())?;
        }
        if empty("cpuset.cpus")? {
            dir.write("cpuset.cpus", cores)?;
            self.is_filled = true;
        }
        Ok(true)
    }

    /// Takes the cores back that [`has_cores`](Self::has_cores) gave to a cpuset of the host, unless others are in it. An agent
    /// removes it later; until then it could not take a core away from the directory above, and each allocation that it places
    /// meanwhile would fail.
    pub(super) fn empty_cores(&self) -> Result<()> {
        match self.dir().and_then(|dir| dir.write("cpuset.cpus", "\n")) {
            Err(e) if !e.is_gone() && !matches!(e.errno(), Some(libc::EBUSY | libc::ENOSPC)) => Err(e),
            _ => Ok(()),
        }
    }

    pub(super) fn remove(&self, deadline: Instant) -> Result<()> {
        let Some(name) = self.relative.file_name() else { return Err(Error::BadPath(self.path())) };
        let parent = self.relative.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match self.tree.dir(parent) {
            Ok(parent) => parent.remove_tree(name, &mut Backoff::until(deadline)),
            Err(e) if e.is_gone() => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Starts at the innermost parent and stops at the first one that has to stay.
    pub(super) fn remove_parents(&self) -> Result<()> {
        let mut path = self.relative.as_path();
        while let Some(parent) = path.parent() {
            let Some(name) = parent.file_name() else { break };
            let above = parent.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            match self.tree.dir(above) {
                Ok(dir) if !dir.remove_marked(name)? => break,
                Err(e) if !e.is_gone() => return Err(e),
                _ => path = parent,
            }
        }
        Ok(())
    }
}
