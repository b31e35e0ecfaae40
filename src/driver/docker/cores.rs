//! The shared cores of tasks without reserved cores. The shared set changes with every reservation, and a container that does not
//! inherit it from a cgroup above is updated through the engine. Never moves a process.

use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use super::{Shared, Task};
use crate::cgroup::Regime;
use crate::docker::Endpoint;
use crate::driver::{Host, TaskConfig};
use crate::spec::json::json;
use crate::sys::lock::lock;

/// The cpuset file that the agent writes.
const WRITTEN: &str = "cpuset.cpus";
/// Pause before an update that the engine failed to apply is retried.
const AGAIN: Duration = Duration::from_secs(10);

/// The cores of a cgroup; empty if there is no cgroup, or if nothing limits them. On v2 a Nomad agent writes those of a cgroup
/// only once cores are reserved: until then they are those of the one above. Ours has no other cores than the machine then.
pub(super) fn read(cgroup: &Path, host: Host) -> String {
    let read = |name: &&str| std::fs::read_to_string(cgroup.join(name)).ok();
    if cgroup.as_os_str().is_empty() {
        return String::new();
    }
    let inherited = if host.makes_cgroups { "cpuset.cpus.effective" } else { WRITTEN };
    ["cpuset.effective_cpus", inherited, WRITTEN].iter().find_map(read).unwrap_or_default().trim().to_owned()
}

impl Shared {
    /// The cgroup whose cores a container without reserved ones has to follow, as it is not below it; `cgroup` is the container's
    /// own. On v1 no container inherits them. On v2 those do not that systemd puts directly into a slice, and one that was created
    /// while cores were reserved keeps its own limit.
    pub(super) fn leading(&self, task: &TaskConfig, cgroup: &str) -> Option<PathBuf> {
        let (cgroups, is_sharing) = (&self.settings.cgroups, task.resources.cpuset_cpus.is_empty());
        let given = Some(&task.cpuset_cgroup).filter(|given| !given.as_os_str().is_empty());
        match cgroups.regime() {
            Regime::V1 => given.filter(|_| is_sharing).cloned(),
            Regime::V2 if !matches!(self.config().endpoint, Endpoint::Unix(_)) => None,
            Regime::V2 if self.settings.host.makes_cgroups => {
                let given = given.filter(|_| is_sharing)?;
                let inherits = Path::new(cgroup.trim_start_matches('/')).starts_with(cgroups.relative(given).ok()?);
                // The agent writes the cores of all that share them one level above.
                given.parent().filter(|_| !inherits).map(Path::to_owned)
            }
            // Of a task of ours; all that has reserved cores is there, too.
            Regime::V2 => Some(cgroups.hierarchies().next()?.mount_point.join(&task.cgroup)),
            Regime::Off => None,
        }
    }

    /// Keeps the container's cores equal to those of a cgroup that [`leading`](Self::leading) names; `has` are the cores that it has
    /// now.
    pub(super) fn follow_cores(self: &Arc<Self>, task: &TaskConfig, cgroup: PathBuf, has: &str) {
        let Ok(known) = self.task(&task.id) else { return };
        *lock(&known.shared_cores) = Some((cgroup.clone(), has.to_owned()));
        match lock(&self.followed).entry(cgroup.clone()) {
            // The cores may have changed since they were read.
            Entry::Occupied(look) => look.get().notify_one(),
            Entry::Vacant(none) => {
                let look = Arc::clone(none.insert(Arc::default()));
                crate::sys::task::spawn(follow(Arc::downgrade(self), cgroup, look));
            }
        }
    }

    /// For a container that has ended, whose cgroups may be gone.
    pub(super) fn unfollow_cores(&self, task: &Task) {
        let led = lock(&task.shared_cores).take();
        if let Some(look) = led.and_then(|(cgroup, _)| lock(&self.followed).get(&cgroup).cloned()) {
            look.notify_one();
        }
    }

    fn sharers(&self, cgroup: &Path, cores: &str) -> Vec<Arc<Task>> {
        let differs = |task: &&Arc<Task>| {
            let shared = lock(&task.shared_cores);
            let is = shared.as_ref().is_some_and(|(of, has)| of == cgroup && has != cores);
            is && task.end.borrow().is_none()
        };
        lock(&self.tasks).values().filter(differs).cloned().collect()
    }
}

type Watch = AsyncFd<Arc<OwnedFd>>;

/// Watches the cgroup. `None` if the driver or the cgroup is gone: then nobody follows it any more.
fn watch(driver: &Weak<Shared>, cgroup: &Path) -> Option<Watch> {
    let driver = driver.upgrade()?;
    // With the lock held, so that whoever finds a follower there is followed.
    let mut followed = lock(&driver.followed);
    let watch = || {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        inotify::add_watch(&fd, cgroup.join(WRITTEN), WatchFlags::MODIFY)?;
        crate::sys::watch::register(Arc::new(fd), Interest::READABLE)
    };
    match watch() {
        Ok(watch) => Some(watch),
        Err(error) => {
            if cgroup.exists() {
                tracing::warn!(%error, cgroup = %cgroup.display(), "cannot follow the cores that tasks share");
            }
            followed.remove(cgroup);
            None
        }
    }
}

/// Runs until the driver or the cgroup is gone.
async fn follow(driver: Weak<Shared>, cgroup: PathBuf, look: Arc<Notify>) {
    let Some(mut watched) = watch(&driver, &cgroup) else { return };
    loop {
        // The watch is set before the read, so that no change in between is missed.
        let Some(shared) = driver.upgrade() else { return };
        let cores = read(&cgroup, shared.settings.host);
        let mut failed = false;
        if !cores.is_empty()
            && let Ok(life) = shared.life()
        {
            for task in shared.sharers(&cgroup, &cores) {
                match life.engine.update(&task.container, &json!({ "CpusetCpus": cores })).await {
                    Ok(()) => *lock(&task.shared_cores) = Some((cgroup.clone(), cores.clone())),
                    Err(error) => {
                        tracing::debug!(%error, id = task.container, cores, "setting the cores of a container");
                        failed |= error.is_uncertain();
                    }
                }
            }
        }
        drop(shared);
        let mut events = [0; 512];
        let again = async { if failed { tokio::time::sleep(AGAIN).await } else { std::future::pending().await } };
        tokio::select! {
            changed = watched.async_io(Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut events)?)) => {
                if changed.is_err() {
                    return;
                }
            }
            // Nobody tells that a cgroup was removed; there may be another one at the same path.
            () = look.notified() => {
                let Some(next) = watch(&driver, &cgroup) else { return };
                watched = next;
            }
            () = again => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C3: on v2 a Nomad agent leaves the file empty in which it later writes the cores that tasks share.
    #[test]
    fn c3_shared_cores_are_those_of_the_cgroup_above_until_some_are_reserved() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, cores: &str| std::fs::write(dir.path().join(name), cores).unwrap();
        write(WRITTEN, "\n");
        write("cpuset.cpus.effective", "1-3\n");
        assert_eq!((read(dir.path(), Host::NOMAD).as_str(), read(dir.path(), Host::OWN).as_str()), ("1-3", ""));
        write(WRITTEN, "2-3\n");
        write("cpuset.cpus.effective", "2-3\n");
        assert_eq!((read(dir.path(), Host::NOMAD).as_str(), read(dir.path(), Host::OWN).as_str()), ("2-3", "2-3"));
        write("cpuset.effective_cpus", "3\n");
        assert_eq!(read(dir.path(), Host::NOMAD), "3");
        assert_eq!(read(Path::new(""), Host::NOMAD), "");
    }
}
