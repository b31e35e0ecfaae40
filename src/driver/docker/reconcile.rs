//! Removes dangling containers: those that the engine started but that no task is known for. Touches only containers that
//! certainly belong to this agent.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::config::Dangling;
use super::{Identity, LABEL_ALLOC, LABEL_NODE, LABEL_REMOVED_BY, OWNER, Place, Shared, slice};
use crate::cgroup::TaskCgroup;
use crate::docker::{EngineError, Listed};
use crate::spec::AllocId;
use crate::spec::collections::BTreeSet;
use crate::sys::lock::lock;

impl Identity {
    /// Decides by agentbin's node label. A container of Nomad's own driver has no such label: it belongs to this agent when its
    /// mounts are the directories of one of this agent's allocations and its name ends with the same allocation id.
    fn owns(&self, listed: &Listed) -> bool {
        if let Some(node) = listed.labels.get(LABEL_NODE) {
            // Both labels are always set by the driver, so that an image or a job cannot set them. Earlier versions set the first.
            let left_to_owner = listed.labels.get(LABEL_REMOVED_BY).is_some_and(|by| by == OWNER);
            return self.nodes.contains(node) && !left_to_owner;
        }
        let source = |target: &str| listed.mounts.iter().find(|(_, to)| to == target).map(|(from, _)| Path::new(from));
        let (Some(alloc), Some(local), Some(secrets)) = (source("/alloc"), source("/local"), source("/secrets")) else {
            return false;
        };
        let Some(dir) = alloc.parent().filter(|_| alloc.ends_with("alloc")) else { return false };
        let named = |id: &str| listed.names.iter().any(|name| name.ends_with(&format!("-{id}")));
        let id = dir.file_name().and_then(|id| id.to_str()).filter(|id| AllocId::parse(id).is_some() && named(id));
        let labelled = |id: &str| listed.labels.get(LABEL_ALLOC).is_none_or(|alloc| alloc == id);
        let ours = dir.parent().is_some_and(|parent| self.dirs.contains(parent));
        ours && id.is_some_and(labelled) && local.starts_with(dir) && secrets.starts_with(dir)
    }
}

/// The engine's containers that no task is known for.
pub(super) fn dangling<'a>(
    listed: &'a [Listed],
    tracked: &BTreeSet<String>,
    identity: &Identity,
    created_before: i64,
) -> Vec<&'a Listed> {
    let is = |container: &&Listed| {
        // A container that was created and never started is also left over from a start; containers that have ended are kept
        // for inspection.
        let live =
            container.state == "running" || (container.state == "created" && container.labels.contains_key(LABEL_NODE));
        live && !tracked.contains(&container.id) && container.created <= created_before && identity.owns(container)
    };
    listed.iter().filter(is).collect()
}

impl Shared {
    /// Runs once per period until the driver ends. The first run is late enough for all tasks to have been recovered.
    pub(super) async fn reconcile_for_ever(self: Arc<Self>) {
        let dangling = self.config().dangling;
        if !dangling.enabled {
            tracing::debug!("skipping dangling containers handling; is disabled");
            return;
        }
        tokio::time::sleep(dangling.period.max(dangling.creation_grace)).await;
        let mut silent = false;
        loop {
            let dangling = self.config().dangling;
            if self.healthy.load(Ordering::Relaxed) {
                match self.reconcile(dangling).await {
                    Ok(_) => silent = false,
                    Err(error) if !silent => {
                        tracing::warn!(%error, "failed to find untracked containers");
                        silent = true;
                    }
                    Err(_) => {}
                }
            }
            tokio::time::sleep(dangling.period).await;
        }
    }

    /// One run. Returns the ids of the containers that were removed, or would have been with a dry run.
    pub(super) async fn reconcile(&self, dangling: Dangling) -> Result<Vec<String>, EngineError> {
        let life = self.life().map_err(|e| EngineError::Endpoint(e.to_string()))?;
        // The known tasks are read before the containers are listed: a container that is created in between is too young.
        let tracked = self.tracked();
        let identity = self.identity();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let before = now.saturating_sub(dangling.creation_grace).as_secs();
        let listed = life.engine.list(None, true).await?;
        let found = self::dangling(&listed, &tracked, &identity, i64::try_from(before).unwrap_or(0));
        let mut removed = Vec::new();
        if dangling.dry_run {
            let ids: Vec<String> = found.iter().map(|container| container.id.clone()).collect();
            if !ids.is_empty() {
                tracing::info!(?ids, "detected untracked containers");
            }
            return Ok(ids);
        }
        for container in found {
            match life.remove(&container.id).await {
                Ok(()) => {
                    tracing::info!(id = container.id, "removed untracked container");
                    removed.push(container.id.clone());
                    self.sweep_slice(container).await;
                }
                Err(error) => tracing::warn!(%error, id = container.id, "failed to remove untracked container"),
            }
        }
        Ok(removed)
    }

    /// Stops the slice that a start made for a container which is removed now, unless another start of that task uses it.
    async fn sweep_slice(&self, container: &Listed) {
        let Some(alloc) = container.labels.get(LABEL_ALLOC).filter(|_| container.labels.contains_key(LABEL_NODE))
        else {
            return;
        };
        let end = format!("-{alloc}");
        let Some(task) = container.names.iter().find_map(|name| name.strip_suffix(&end)) else { return };
        let slice = slice::of(alloc, task);
        let path = slice::path(&slice);
        // No start is under way while this is held.
        let Ok(_alone) = self.slices.try_write() else { return };
        let is_used = lock(&self.tasks).values().any(|task| task.own.slice == slice);
        let is_there = TaskCgroup::open(&self.settings.cgroups, Path::new(&path)).is_ok_and(|cgroup| cgroup.exists());
        if is_there && !is_used {
            self.sweep(&Place { slice, ..Place::default() }).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::RECONCILER;
    use super::*;

    const ALLOC: &str = "0a1b2c3d-0000-4000-8000-00000000000a";

    fn container(id: &str, labels: &[(&str, &str)]) -> Listed {
        Listed {
            id: id.to_owned(),
            names: vec![format!("web-{ALLOC}")],
            labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            created: 100,
            state: "running".to_owned(),
            mounts: Vec::new(),
        }
    }

    fn mounted(id: &str, dir: &str) -> Listed {
        let mounts = [("alloc", "/alloc"), ("web/local", "/local"), ("web/secrets", "/secrets")];
        let mounts = mounts.map(|(from, to)| (format!("{dir}/{from}"), to.to_owned())).to_vec();
        Listed { mounts, ..container(id, &[]) }
    }

    /// `TestDanglingContainerRemoval_normal`, together with containers of other owners.
    #[test]
    fn e4_only_what_is_certainly_ours_is_dangling() {
        let identity = Identity {
            nodes: BTreeSet::from(["node".to_owned()]),
            dirs: BTreeSet::from([PathBuf::from("/data/alloc")]),
        };
        let own = [(LABEL_NODE, "node"), (LABEL_ALLOC, ALLOC)];
        let by = |by| [own[0], own[1], (LABEL_REMOVED_BY, by)];
        let crowd = vec![
            container("dangling", &own),
            container("tracked", &own),
            Listed { created: 200, ..container("young", &own) },
            Listed { state: "exited".to_owned(), ..container("ended", &own) },
            Listed { state: "created".to_owned(), ..container("never-started", &own) },
            container("dangling-by-name", &by(RECONCILER)),
            container("of-a-run-in-the-same-data-directory", &by(OWNER)),
            container("another-agent", &[(LABEL_NODE, "other"), (LABEL_ALLOC, ALLOC)]),
            container("nomads-own-on-another-agent", &[(LABEL_ALLOC, ALLOC)]),
            container("by-hand", &[]),
            mounted("nomads-own-of-this-agent", &format!("/data/alloc/{ALLOC}")),
            mounted("look-alike", &format!("/home/me/{ALLOC}")),
            Listed { names: vec!["web".to_owned()], ..mounted("other-name", &format!("/data/alloc/{ALLOC}")) },
            Listed {
                mounts: mounted("", &format!("/data/alloc/{ALLOC}")).mounts[..2].to_vec(),
                ..container("two", &[])
            },
        ];
        let tracked = BTreeSet::from(["tracked".to_owned()]);
        let ids =
            |before| dangling(&crowd, &tracked, &identity, before).iter().map(|c| c.id.as_str()).collect::<Vec<_>>();
        assert_eq!(ids(150), ["dangling", "never-started", "dangling-by-name", "nomads-own-of-this-agent"]);
        assert_eq!(ids(50), Vec::<&str>::new());
        assert!(dangling(&crowd, &tracked, &Identity::default(), 1000).is_empty());
    }
}
