//! What a caller could use of the cgroup trees, regardless of privileges.

use std::path::{Path, PathBuf};

use super::delegated::Delegated;
use super::error::{Error, Result};
use super::fs::CgroupFs;
use super::regime::{Mounts, Regime, scan};

/// How the cgroups of a machine are set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The regime, regardless of the caller's privileges.
    pub regime: Regime,
    /// v1, with a v2 tree beside it.
    pub hybrid: bool,
    /// Those of cpu, memory, pids, cpuset and io that are not available for tasks.
    pub missing: Vec<&'static str>,
    /// v2: one write kills a whole cgroup (Linux 5.14).
    pub kills_at_once: bool,
    /// v2, for a plain user: the cgroup below which this process may make task cgroups.
    pub delegated: Option<PathBuf>,
}

/// Inspects the cgroup root `root` (`/sys/fs/cgroup`).
///
/// # Errors
/// [`Error::Io`] when mountinfo or a tree cannot be read.
pub fn facts(root: &Path) -> Result<Facts> {
    let file = Path::new("/proc/self/mountinfo");
    let text = std::fs::read(file).map_err(|e| Error::io("read", file, e))?;
    let text = String::from_utf8_lossy(&text);
    let mounts: Mounts = scan(&text, root);
    let regime = mounts.regime;
    let below = |line: &str| line.split(' ').nth(4).is_some_and(|p| Path::new(p).parent() == Some(root));
    let hybrid = regime == Regime::V1 && text.lines().any(|line| below(line) && line.contains(" - cgroup2 "));
    let fs = CgroupFs::open(mounts)?;
    let missing = fs.missing_controllers()?;
    let own = if regime == Regime::V2 { own_cgroup(root) } else { None };
    let children = std::fs::read_dir(root).into_iter().flatten().flatten().map(|e| e.path());
    let kills_at_once = regime == Regime::V2 && children.chain(own).any(|folder| folder.join("cgroup.kill").exists());
    let delegated = Delegated::find(&fs)?.map(|delegated| root.join(delegated.relative()));
    Ok(Facts { regime, hybrid, missing, kills_at_once, delegated })
}

/// The v2 cgroup that this process is in: the line `0::/path`.
fn own_cgroup(root: &Path) -> Option<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(root.join(path))
}
