//! The part of a v2 tree that was given to a plain user: where it begins, and how tasks get cgroups in it.
//!
//! A cgroup whose children have controllers takes no processes itself, and nobody but root moves a process across the
//! border of what was given. So tasks go beside the cgroup that this process is in, or, where it is alone in its own,
//! below that, after it has stepped down into a child.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Access, AtFlags};

use super::error::{Error, Result};
use super::fs::{Backoff, CgroupFs, Dir, Tree, V2_REQUIRED};
use super::regime::Regime;

/// Where this process waits while its own cgroup holds those of tasks.
const STEP: &str = "agentbin-supervisors";
/// How long processes that have just ended may keep that directory busy.
const PATIENCE: Duration = Duration::from_secs(2);

/// A cgroup below which this process may make those of tasks, without root.
#[derive(Debug)]
pub struct Delegated {
    tree: Arc<Tree>,
    base: PathBuf,
    alone: bool,
    entered: bool,
}

impl Delegated {
    /// Looks where tasks of this process could have cgroups; changes nothing. `None` where nothing was given to this user,
    /// or not the controllers that limits need (cpu, memory, pids), or others are in the way.
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
        // The topmost of ours only: what lies between belongs to whoever made it, as a user's systemd.
        let topmost = |path: &&Path| is_given(tree, path) && path.parent().is_none_or(|above| !is_given(tree, above));
        let parent = own.parent().filter(topmost).and_then(|parent| found(parent, false));
        Ok(parent.or_else(|| is_alone_in(tree, &own).then(|| found(&own, true)).flatten()))
    }

    /// The cgroup below which those of tasks can be made, relative to the tree's root.
    #[must_use]
    pub fn relative(&self) -> &Path {
        &self.base
    }

    /// Steps out of the way, where this process is in it; all that it starts from now on is then out of the way, too.
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
    /// Back to where it came from. With tasks still there that is not possible, and whoever gave the cgroup removes it.
    fn drop(&mut self) {
        if self.entered {
            let _best_effort = self.leave();
        }
    }
}

/// Whether this user may make cgroups in `path`, move processes there and hand on controllers.
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
