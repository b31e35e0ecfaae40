//! The shared cores of tasks without reserved cores. The agent changes the shared set with every reservation, and on cgroup v1
//! a container does not inherit it, so the driver updates the container through the engine. Never moves a process.

use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde_json::json;
use tokio::io::Interest;
use tokio::sync::Notify;

use super::{Shared, Task};
use crate::cgroup::Regime;
use crate::driver::TaskConfig;
use crate::sys::lock::lock;

/// The cpuset file that the agent writes.
const WRITTEN: &str = "cpuset.cpus";
/// Pause before an update that the engine failed to apply is retried.
const AGAIN: Duration = Duration::from_secs(10);

/// The cores of a cgroup; empty if there is no cgroup.
pub(super) fn read(cgroup: &Path) -> String {
    let read = |name: &&str| std::fs::read_to_string(cgroup.join(name)).ok();
    if cgroup.as_os_str().is_empty() {
        return String::new();
    }
    ["cpuset.effective_cpus", WRITTEN].iter().find_map(read).unwrap_or_default().trim().to_owned()
}

impl Shared {
    /// Whether the container has to follow shared cores: on v2 it need not, because the agent's own cgroup is a parent of the
    /// container's and limits it.
    pub(super) fn shares_cores(&self, task: &TaskConfig) -> bool {
        self.settings.cgroups.regime() == Regime::V1
            && task.resources.cpuset_cpus.is_empty()
            && !task.cpuset_cgroup.as_os_str().is_empty()
    }

    /// Keeps the container's cores equal to those of the task's cgroup; `has` are the cores that the container has now.
    pub(super) fn follow_cores(self: &Arc<Self>, task: &TaskConfig, has: &str) {
        let Ok(known) = self.task(&task.id) else { return };
        let cgroup = task.cpuset_cgroup.clone();
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

    fn sharers(&self, cgroup: &Path, cores: &str) -> Vec<Arc<Task>> {
        let differs = |task: &&Arc<Task>| {
            let shared = lock(&task.shared_cores);
            let is = shared.as_ref().is_some_and(|(of, has)| of == cgroup && has != cores);
            is && task.end.borrow().is_none()
        };
        lock(&self.tasks).values().filter(differs).cloned().collect()
    }
}

/// Runs until the driver or the cgroup is gone.
async fn follow(driver: Weak<Shared>, cgroup: PathBuf, look: Arc<Notify>) {
    let watch = || {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        inotify::add_watch(&fd, cgroup.join(WRITTEN), WatchFlags::MODIFY)?;
        crate::sys::watch::register(Arc::new(fd), Interest::READABLE)
    };
    let watch = match watch() {
        Ok(watch) => watch,
        Err(error) => {
            tracing::warn!(%error, cgroup = %cgroup.display(), "cannot follow the cores that tasks share");
            if let Some(driver) = driver.upgrade() {
                lock(&driver.followed).remove(&cgroup);
            }
            return;
        }
    };
    loop {
        // The watch is set before the read, so that no change in between is missed.
        let Some(shared) = driver.upgrade() else { return };
        let cores = read(&cgroup);
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
            changed = watch.async_io(Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut events)?)) => {
                if changed.is_err() {
                    return;
                }
            }
            () = look.notified() => {}
            () = again => {}
        }
    }
}
