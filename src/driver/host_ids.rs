//! Host ids per allocation: when a task gets them, which of its files are chowned to it, and the events about files that it
//! cannot read.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::config::Reader;
use super::failed;
use super::{DriverError, TaskConfig};
use crate::container::{Heir, HostIdRegistry, HostIdsError, Owned, Subordinate, host_user};
use crate::spec::collections::BTreeMap;
use crate::spec::{HostIdSpace, HostIds, LaunchSpec};
use crate::sys::lock::lock;
use crate::sys::mutant;
use crate::wire::hclspec::Spec;
use crate::wire::schema::{self, Literal};

/// Keys of a plugin's configuration.
pub(super) const KEYS: [&str; 2] = ["host_ids", "host_id_range"];

/// Which host ids the users of tasks in a user namespace map to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostIdsConfig {
    /// Whether each allocation has ids that no other one has; otherwise they equal the ids inside, which are shared with every
    /// other allocation.
    pub own: bool,
    /// The range that ids are assigned from.
    pub space: HostIdSpace,
}

impl Default for HostIdsConfig {
    fn default() -> HostIdsConfig {
        HostIdsConfig { own: true, space: HostIdSpace::DEFAULT }
    }
}

impl HostIdsConfig {
    pub(super) fn schema() -> [(&'static str, Spec); 2] {
        let text =
            |name, default| (name, schema::with_default(schema::attr(name, "string", false), Literal::string(default)));
        [text(KEYS[0], "own"), text(KEYS[1], "1879048192-2147352575")]
    }

    pub(super) fn read(reader: &Reader<'_>) -> Result<HostIdsConfig, DriverError> {
        let own = match reader.string(KEYS[0])?.as_deref() {
            None | Some("" | "own") => true,
            Some("shared") => false,
            Some(other) => {
                let text = format!("host_ids must be \"own\" or \"shared\", got {other:?}");
                return Err(reader.error(KEYS[0], &text));
            }
        };
        let space = match reader.string(KEYS[1])?.filter(|text| !text.is_empty()) {
            None => HostIdSpace::DEFAULT,
            Some(text) => HostIdSpace::parse(&text).ok_or_else(|| {
                let text = format!(
                    "host_id_range must be \"first-last\" of whole ranges of 65536 ids above the first, such as \
                     \"1879048192-1879113727\"; got {text:?}"
                );
                reader.error(KEYS[1], &text)
            })?,
        };
        Ok(HostIdsConfig { own, space })
    }

    /// The range that ids are assigned from, if they are assigned at all.
    pub(super) fn given(self) -> Option<HostIdSpace> {
        self.own.then_some(self.space)
    }
}

/// The tasks that have host ids assigned to them.
#[derive(Debug, Default)]
pub(super) struct Owners(Mutex<HashMap<String, Kept>>);

/// One of these tasks.
#[derive(Debug, Clone)]
pub(super) struct Owner {
    heir: Heir,
    task_dir: PathBuf,
    /// What was chowned to it at its start.
    given: Owned,
    /// Files that its history already reports as not readable.
    told: Vec<PathBuf>,
}

/// A task, and its state here.
type Kept = (TaskConfig, Owner);

impl Owners {
    /// Assigns ids to the allocation of a task in a user namespace, and chowns the task's directories to them. `None` for any
    /// other task, and without root: there the shim may map a range of the user's subordinate ids and chown the files, and the
    /// sentence for the task's history is returned as well.
    pub(super) async fn prepare(
        space: Option<HostIdSpace>,
        task: &TaskConfig,
        spec: &mut LaunchSpec,
        owns_files: bool,
    ) -> Result<(Option<Owner>, Option<String>), DriverError> {
        let Some(space) = space.filter(|_| spec.user_namespace) else { return Ok((None, None)) };
        if !rustix::process::geteuid().is_root() {
            // A host that is not root could not remove files that belong to these ids.
            if owns_files {
                return Ok((None, None));
            }
            let alloc_dir = task.alloc_dir.clone();
            let (host_ids, told) = on_a_thread(move || subordinate(&alloc_dir)).await?;
            spec.host_ids = host_ids;
            return Ok((None, told));
        }
        let (alloc_dir, task_dir, user) = (task.alloc_dir.clone(), spec.task_dir.clone(), spec.user.clone());
        let work = move || {
            let registry = HostIdRegistry::machine();
            let taken = registry.take(&alloc_dir, space);
            let ids = taken.map_err(|error| {
                let text = format!("failed to get host ids for {}: {error}{}", alloc_dir.display(), cause(&error));
                failed(text, false)
            })?;
            let heir = Heir { ids, space, user: host_user(&user), passes_over: false };
            let given = heir.give(&task_dir).map_err(|error| {
                let text = format!(
                    "failed to give {} to the host ids {ids}: {error} (on a file system that cannot store owners, \
                     user_namespace = false does without)",
                    task_dir.display()
                );
                failed(text, false)
            })?;
            let left = inherit(&registry, &heir, &alloc_dir)?;
            let given = Owned { left: given.left + left, ..given };
            Ok(Owner { heir, task_dir, given, told: Vec::new() })
        };
        let owner = on_a_thread(work).await??;
        spec.host_ids = Some(owner.heir.ids);
        Ok((Some(owner), None))
    }

    /// Finds out whether a task that an earlier driver started has assigned ids: then its directory belongs to them.
    pub(super) async fn recover(&self, space: Option<HostIdSpace>, task: &TaskConfig) {
        let Some(space) = space else { return };
        let (alloc_dir, task_dir, user) = (task.alloc_dir.clone(), task.alloc_dir.join(&task.name), task.user.clone());
        let work = move || {
            use std::os::unix::fs::MetadataExt as _;
            let ids = HostIdRegistry::machine().find(&alloc_dir).ok()??;
            let is_own = task_dir.symlink_metadata().is_ok_and(|meta| meta.uid() == ids.base());
            let heir = Heir { ids, space, user: host_user(&user), passes_over: false };
            is_own.then_some(Owner { heir, task_dir, given: Owned::default(), told: Vec::new() })
        };
        if let Ok(Some(owner)) = on_a_thread(work).await {
            self.keep(task, owner);
        }
    }

    pub(super) fn keep(&self, task: &TaskConfig, owner: Owner) {
        // What an event needs; the rest, which includes secrets, is not kept.
        let (id, alloc_id, name) = (task.id.clone(), task.alloc_id.clone(), task.name.clone());
        let signed = TaskConfig { id, name, alloc_id, ..TaskConfig::default() };
        lock(&self.0).insert(task.id.clone(), (signed, owner));
    }

    pub(super) fn forget(&self, id: &str) {
        lock(&self.0).remove(id);
    }

    /// Files that the agent has written since and that the task cannot read, as a sentence for the task's history. Each file is
    /// reported once, as this may be called often (for every script).
    pub(super) async fn unreadable(&self, id: &str) -> Option<(TaskConfig, String)> {
        let (task, owner) = lock(&self.0).get(id).cloned()?;
        let found = on_a_thread(move || owner.heir.look(&owner.task_dir)).await.ok()?.ok()?;
        if let Some((_, owner)) = lock(&self.0).get_mut(id) {
            if owner.told == found.private {
                return None;
            }
            owner.told.clone_from(&found.private);
        }
        let names = names(&found.private)?;
        let text =
            format!("The task cannot read {names}: what the agent writes while it runs keeps the agent's owner; {FIX}");
        Some((task, text))
    }
}

impl Owner {
    /// Events for the task's history at its start.
    pub(super) fn told(&self, owns_files: bool) -> impl Iterator<Item = String> {
        let later = names(&self.given.private).filter(|_| owns_files).map(|names| {
            format!(
                "The task will not be able to read {names} any more once the agent writes it anew: what it writes while the \
                 task runs keeps the agent's owner; {FIX}"
            )
        });
        let left = (self.given.left > 0).then(|| {
            "Not all files in local, tmp, secrets and alloc/data were given to the task's user: there are more than a million, or \
             directories nested deeper than 64"
                .to_owned()
        });
        later.into_iter().chain(left)
    }
}

const FIX: &str = "give the template perms = \"0644\", or set host_ids = \"shared\" in the plugin's configuration";

/// Lists names, which a task may have chosen, for a sentence.
fn names(paths: &[PathBuf]) -> Option<String> {
    let all: Vec<String> = paths.iter().map(|path| format!("{:?}", path.display().to_string())).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// The range of subordinate ids for an allocation of an unprivileged user, and the event for its tasks if the range is shared.
fn subordinate(alloc_dir: &Path) -> (Option<HostIds>, Option<String>) {
    if mutant::on("d23") {
        return (None, None);
    }
    let subordinate = match Subordinate::usable() {
        Ok(subordinate) => subordinate,
        Err(why) => {
            let text =
                format!("The task has the host ids of the user who runs agentbin, as it could not get others: {why}");
            return (None, Some(text));
        }
    };
    let space = subordinate.space();
    let mut shared = lock(&SHARED);
    let taken = match shared.get(alloc_dir) {
        Some((ids, text)) => return (Some(*ids), Some(text.clone())),
        None => subordinate.registry().map(|registry| registry.take(alloc_dir, space)),
    };
    let why = match taken {
        Some(Ok(ids)) => return (Some(ids), None),
        Some(Err(HostIdsError::Full { ranges, .. })) => format!(
            "all ranges of 65536 subordinate ids that this user has in /etc/subuid and /etc/subgid are in use ({ranges}); as \
             root, usermod --add-subuids and --add-subgids give more"
        ),
        Some(Err(error)) => format!("it cannot be noted which they have: {error}{}", cause(&error)),
        None => "it cannot be noted which they have, as this user has no home directory in /etc/passwd".to_owned(),
    };
    let text = format!("The task shares its host ids with other allocations of the user who runs agentbin: {why}");
    // Always the same range, so that later allocations find the others free.
    let ids = space.after(None).next();
    shared.extend(ids.map(|ids| (alloc_dir.to_owned(), (ids, text.clone()))));
    (ids, Some(text))
}

/// The allocations of this process that share their ids, and the event for their tasks. The assignment stays when other ranges
/// become free, because the files on disk have these ids.
static SHARED: Mutex<BTreeMap<PathBuf, (HostIds, String)>> = Mutex::new(BTreeMap::new());

/// Chowns the shared data (alloc/data) of an earlier allocation to the ids. Runs once per allocation: only an agent puts such
/// data there, before the first task starts. Returns how many entries were left unchanged. If this process is killed before
/// completion is recorded, the work starts again.
fn inherit(registry: &HostIdRegistry, heir: &Heir, alloc_dir: &Path) -> Result<u64, DriverError> {
    if registry.is_settled(heir.ids) {
        return Ok(0);
    }
    let error = |text: String| {
        failed(format!("failed to give {}/alloc/data to the host ids {}: {text}", alloc_dir.display(), heir.ids), false)
    };
    let given = heir.inherit(alloc_dir).map_err(|e| error(e.to_string()))?;
    registry.settle(alloc_dir, heir.ids).map_err(|e| error(format!("{e}{}", cause(&e))))?;
    Ok(given.left)
}

fn cause(error: &HostIdsError) -> String {
    std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default()
}

async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, DriverError> {
    crate::sys::task::spawn_blocking(work).await.map_err(|e| failed(format!("host ids: {e}"), true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::DriverConfig;

    fn read(values: &serde_json::Value) -> Result<HostIdsConfig, String> {
        let config = DriverConfig { values: values.as_object().unwrap().clone(), ..DriverConfig::default() };
        HostIdsConfig::read(&Reader::any("exec", &config)).map_err(|error| error.to_string())
    }

    #[test]
    fn tasks_share_host_ids_only_when_an_operator_says_so() {
        use serde_json::json;
        assert_eq!(read(&json!({})).unwrap().given(), Some(HostIdSpace::DEFAULT));
        assert_eq!(read(&json!({ "host_ids": "own", "host_id_range": "" })).unwrap(), HostIdsConfig::default());
        assert_eq!(read(&json!({ "host_ids": "shared" })).unwrap().given(), None);
        let some = read(&json!({ "host_id_range": "131072-262143" })).unwrap().given().unwrap();
        assert_eq!(some.to_string(), "131072-262143");
        for (values, why) in [
            (json!({ "host_ids": "none" }), "host_ids must be \"own\" or \"shared\""),
            (json!({ "host_id_range": "0-65535" }), "host_id_range must be \"first-last\" of whole ranges"),
        ] {
            let error = read(&values).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_read_names_the_key_that_helps() {
        let (ids, space) = (HostIdSpace::DEFAULT.after(None).next().unwrap(), HostIdSpace::DEFAULT);
        let heir = Heir { ids, space, user: None, passes_over: false };
        let given = Owned { changed: 9, left: 1, private: vec!["local/a\nb".into(), "secrets/c".into()] };
        let owner = Owner { heir, task_dir: PathBuf::new(), given, told: Vec::new() };
        let told: Vec<String> = owner.told(true).collect();
        assert!(told[0].contains("\"local/a\\nb\", \"secrets/c\"") && told[0].contains("perms = \"0644\""), "{told:?}");
        assert!(told[1].contains("deeper than 64"), "{told:?}");
        assert_eq!(owner.told(false).count(), 1, "a run writes its templates before each start, and gives them away");
    }
}
