//! The subtree of a v2 tree that is delegated to a plain user: where it begins, and how tasks get cgroups in it.
//!
//! A cgroup whose children have controllers cannot contain processes itself, and only root can move a process across the border of
//! the delegated subtree. So task cgroups are made beside the cgroup of this process; or, if this process is alone in its own,
//! below that, after it has moved itself into a child.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Access, AtFlags};

use super::error::{Error, Result};
use super::fs::{Backoff, CgroupFs, Dir, Tree, V2_REQUIRED};
use super::regime::Regime;

/// The child cgroup into which this process moves while its own cgroup contains those of tasks.
const STEP: &str = "agentbin-supervisors";
/// How long processes that have just ended may keep that directory busy.
const PATIENCE: Duration = Duration::from_secs(2);

/// A cgroup below which this process may make task cgroups, without root.
#[derive(Debug)]
pub struct Delegated {
    tree: Arc<Tree>,
    base: PathBuf,
    alone: bool,
    entered: bool,
}

impl Delegated {
    /// Finds where tasks of this process can have cgroups; changes nothing. `None` where nothing is delegated to this user, or not
    /// the controllers that limits need (cpu, memory, pids), or other processes are in the way.
    ///
    /// # Errors
    /// [`Error::Io`] when `/proc/self/cgroup` cannot be read.
    pub fn find(fs: &CgroupFs) -> Result<Option<Delegated>> {
        let [tree] = fs.trees() else { return Ok(None) };
        if fs.regime() != Regime::V2 {
            return Ok(None);
        }
        let read = std::fs::read_to_string("/proc/self/cgroup");
        let text = read.map_err(|e| Error::io("read", Path::new("/proc/self/cgroup"), e))?;
        let Some(own) = text.lines().find_map(|line| line.strip_prefix("0::/")).map(PathBuf::from) else {
            return Ok(None);
        };
        let found = |base: &Path, alone| {
            let delegated = Delegated { tree: Arc::clone(tree), base: base.to_owned(), alone, entered: false };
            has_controllers(tree, base).then_some(delegated)
        };
        // Only the topmost delegated one: those below it belong to the software that made them, such as a user's systemd.
        let topmost = |path: &&Path| is_given(tree, path) && path.parent().is_none_or(|above| !is_given(tree, above));
        let parent = own.parent().filter(topmost).and_then(|parent| found(parent, false));
        Ok(parent.or_else(|| is_alone_in(tree, &own).then(|| found(&own, true)).flatten()))
    }

    /// The cgroup below which task cgroups can be made, relative to the tree's root.
    #[must_use]
    pub fn relative(&self) -> &Path {
        &self.base
    }

    /// Moves this process into a child cgroup if it is in the base; all that it starts from now on is in the child, too.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Write`].
    pub fn enter(&mut self) -> Result<()> {
        if self.alone && !self.entered {
            let base = self.tree.dir(&self.base)?;
            base.make_child(STEP.as_ref())?;
            base.child(STEP.as_ref())?.write("cgroup.procs", "0")?;
            self.entered = true;
        }
        Ok(())
    }

    fn leave(&self) -> Result<()> {
        let base = self.tree.dir(&self.base)?;
        base.disable_controllers()?;
        base.write("cgroup.procs", "0")?;
        base.remove_tree(STEP.as_ref(), &mut Backoff::until(Instant::now() + PATIENCE))
    }
}

impl Drop for Delegated {
    /// Moves this process back. That fails while there are still tasks; then the delegating manager has to remove the cgroup.
    fn drop(&mut self) {
        if self.entered {
            let _best_effort = self.leave();
        }
    }
}

/// Whether this user may make cgroups in `path`, move processes there and enable controllers.
fn is_given(tree: &Tree, path: &Path) -> bool {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let Ok(dir) = tree.dir(path) else { return false };
    let writable = |name: &str| rustix::fs::accessat(&dir, name, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
    [".", "cgroup.procs", "cgroup.subtree_control"].into_iter().all(writable)
}

fn is_alone_in(tree: &Tree, own: &Path) -> bool {
    let this = rustix::process::getpid().as_raw_nonzero().get();
    !own.as_os_str().is_empty()
        && is_given(tree, own)
        && tree.dir(own).and_then(|dir| dir.pids()).is_ok_and(|pids| pids == [this])
}

fn has_controllers(tree: &Tree, path: &Path) -> bool {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let controllers = tree.dir(path).and_then(|dir: Dir| dir.read("cgroup.controllers"));
    controllers.is_ok_and(|have| V2_REQUIRED.iter().all(|c| have.split_whitespace().any(|h| h == *c)))
}
