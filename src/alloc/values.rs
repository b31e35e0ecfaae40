//! The values that templates may read besides their task's own: keys, secrets, variables and services from one file, and the
//! registered services.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde_json::{Map, Value as Json};
use sha2::Digest as _;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::service_registry::{Registration, Services};
use super::text::hex;
use crate::jobspec;
use crate::spec::{IntoMap as _, Job, Order as _};
use crate::sys::watch::register;
use crate::template::{Found, Service, Tree, Variable};

/// How often a file is read if it cannot be watched.
const UNWATCHED: Duration = Duration::from_secs(5);

/// Values by their paths, as of one moment.
#[derive(Debug, Clone, Default)]
pub struct Values {
    members: Arc<Map<String, Json>>,
    registry: Option<Services>,
    /// The namespace whose registered services are seen; `None` is all.
    namespace: Option<String>,
    /// The services as of the first access.
    registered: Arc<OnceLock<Vec<Service>>>,
}

/// Variables that an agent stores.
pub trait Variables: std::fmt::Debug + Send + Sync {
    /// The items of the variables that exist, by path; each is an object of strings.
    ///
    /// # Errors
    /// When they cannot be read now.
    fn read(&self, namespace: &str, paths: &[String]) -> Result<Map<String, Json>, String>;

    /// Changes whenever one of them may have changed.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// The task whose templates read variables and services.
#[derive(Debug, Clone)]
struct Asker {
    namespace: String,
    /// Nomad's rule for tasks without an ACL policy: the variables of all jobs, of the job, of the group and of the task.
    paths: Vec<String>,
}

/// The file that the operator names by `--kv`, if any; the services that are registered on this machine; and the variables of an
/// agent.
#[derive(Debug, Clone, Default)]
pub struct ValuesFile {
    path: Option<PathBuf>,
    registry: Option<Services>,
    variables: Option<Arc<dyn Variables>>,
    asker: Option<Asker>,
}

impl ValuesFile {
    /// Opens the file; it is read once, so that a mistake is reported before anything starts.
    ///
    /// # Errors
    /// When it cannot be read, or is neither JSON nor HCL.
    pub fn open(path: &Path) -> Result<ValuesFile, String> {
        let file = ValuesFile::later(path);
        file.read()?;
        Ok(file)
    }

    /// The file without reading it now.
    #[must_use]
    pub fn later(path: &Path) -> ValuesFile {
        ValuesFile { path: Some(path.to_owned()), ..ValuesFile::default() }
    }

    /// The same, with these services.
    #[must_use]
    pub fn with_services(self, registry: &Services) -> ValuesFile {
        ValuesFile { registry: Some(registry.clone()), ..self }
    }

    /// The same, with these variables.
    #[must_use]
    pub fn with_variables(self, variables: Arc<dyn Variables>) -> ValuesFile {
        ValuesFile { variables: Some(variables), ..self }
    }

    /// The same, for the templates of a group. A job that `parent` started has the variables of that one.
    #[must_use]
    pub(super) fn of_group(&self, job: &Job, parent: &str, group: &str) -> ValuesFile {
        let id = if parent.is_empty() { job.id.as_str() } else { parent };
        let names = ["nomad/jobs", id, group];
        let paths = (1..=names.len()).map(|n| names[..n].join("/")).collect();
        ValuesFile { asker: Some(Asker { namespace: job.namespace.clone(), paths }), ..self.clone() }
    }

    /// A group's values, for the templates of one of its tasks.
    #[must_use]
    pub(super) fn of_task(&self, task: &str) -> ValuesFile {
        let mut values = self.clone();
        if let Some(Asker { paths, .. }) = &mut values.asker {
            let own = paths.last().map(|group| format!("{group}/{task}"));
            paths.extend(own);
        }
        values
    }

    /// Whether there is a source of values besides registered services.
    pub fn is_given(&self) -> bool {
        self.path.is_some() || self.variables.is_some()
    }

    /// How to provide a missing value, for a message.
    pub(super) fn remedy(&self) -> String {
        match (&self.variables, &self.asker, &self.path) {
            (Some(_), Some(Asker { paths, .. }), _) => {
                format!("; `nomad var put` gives one, at one of the paths that the task may read: {}", paths.join(", "))
            }
            (_, _, Some(_)) => String::new(),
            _ => "; give a file with these values by --kv".to_owned(),
        }
    }

    /// The current values; empty if there is no file.
    ///
    /// # Errors
    /// As [`ValuesFile::open`].
    pub fn read(&self) -> Result<Values, String> {
        let mut members = Map::new();
        if let Some(path) = &self.path {
            let text = jobspec::read_file(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            members = jobspec::paths(path, &text)?;
        }
        members.extend(self.stored()?);
        let namespace = self.asker.as_ref().map(|asker| asker.namespace.clone());
        Ok(Values { members: Arc::new(members), registry: self.registry.clone(), namespace, ..Values::default() })
    }

    fn stored(&self) -> Result<Map<String, Json>, String> {
        match (&self.variables, &self.asker) {
            (Some(variables), Some(asker)) => variables.read(&asker.namespace, &asker.paths),
            _ => Ok(Map::new()),
        }
    }

    /// A digest of the content; empty if nothing can be read.
    pub(super) fn digest(&self) -> String {
        let text = self.path.as_ref().and_then(|path| jobspec::read_file(path).ok());
        let stored =
            self.stored().ok().filter(|stored| !stored.is_empty()).map(|stored| Json::Object(stored).to_string());
        if text.is_none() && stored.is_none() {
            return String::new();
        }
        let mut digest = sha2::Sha256::new();
        digest.update(text.unwrap_or_default());
        digest.update(stored.unwrap_or_default());
        hex(&digest.finalize())
    }

    /// Begins to watch for changes.
    pub(super) fn watch(&self) -> ValuesWatch {
        let watch = || {
            let path = self.path.as_ref()?;
            let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
            // Editors write a new file and rename it.
            let flags = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::CREATE;
            inotify::add_watch(&fd, directory, flags).ok()?;
            register(Arc::new(fd), Interest::READABLE).ok()
        };
        let registry = self.registry.as_ref().map(Services::changes);
        let variables = self.variables.as_ref().map(|variables| variables.changes());
        ValuesWatch { fd: watch(), is_file: self.path.is_some(), registry, variables }
    }
}

/// Notifies about writes in the file's directory.
pub(super) struct ValuesWatch {
    /// `None` also if the machine has no inotify instances left.
    fd: Option<AsyncFd<Arc<OwnedFd>>>,
    is_file: bool,
    /// Notifies about changes of services.
    registry: Option<watch::Receiver<u64>>,
    /// Notifies about changes of variables.
    variables: Option<watch::Receiver<u64>>,
}

impl ValuesWatch {
    /// Waits for the next change, of services only if `services_matter`; for ever if nothing can change.
    pub(super) async fn changed(mut self, services_matter: bool) {
        let registry = self.registry.take().filter(|_| services_matter);
        let variables = self.variables.take();
        tokio::select! {
            () = another(registry) => {}
            () = another(variables) => {}
            () = self.file_changed() => {}
        }
    }

    async fn file_changed(&self) {
        if !self.is_file {
            return std::future::pending().await;
        }
        let readable = async { self.fd.as_ref()?.readable().await.ok().zip(self.fd.as_ref()) };
        let Some((mut ready, fd)) = readable.await else { return tokio::time::sleep(UNWATCHED).await };
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(fd.get_ref(), &mut buffer);
        while events.next().is_ok() {}
        ready.clear_ready();
    }
}

/// Waits for the next change; for ever if there is no source of changes.
async fn another(changes: Option<watch::Receiver<u64>>) {
    if let Some(mut changes) = changes
        && changes.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// A value as the template function `key` returns it.
fn text(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The rest of a path below a prefix, which may end with a slash.
fn below<'p>(path: &'p str, prefix: &str) -> Option<&'p str> {
    path.strip_prefix(prefix.trim_end_matches('/'))?.strip_prefix('/')
}

impl Values {
    /// The value of a key; if it does not exist, the item of that name in a variable.
    pub(super) fn key(&self, path: &str) -> Found<String> {
        let item = || path.rsplit_once('/').and_then(|(variable, item)| self.members.get(variable)?.get(item));
        self.members.get(path).or_else(item).map_or(Found::Missing, |value| Found::Here(text(value)))
    }

    /// All keys below a prefix.
    pub(super) fn tree(&self, prefix: &str) -> Tree {
        let pairs = self.members.iter().filter(|(_, value)| !value.is_object() && !value.is_array());
        let mut tree: Tree =
            pairs.filter_map(|(path, value)| Some((below(path, prefix)?.to_owned(), text(value)))).collect();
        tree.order_by(Ord::cmp);
        tree
    }

    /// The data of a secret, which is an object.
    pub(super) fn secret(&self, path: &str) -> Found<Json> {
        let found = self.members.get(path).filter(|value| value.is_object());
        found.map_or(Found::Missing, |value| Found::Here(value.clone()))
    }

    /// The names of objects directly below a path.
    pub(super) fn secrets(&self, prefix: &str) -> Vec<String> {
        let objects = self.members.iter().filter(|(_, value)| value.is_object());
        let mut names: Vec<String> = objects
            .filter_map(|(path, _)| {
                let rest = below(path, prefix)?;
                Some(rest.split_once('/').map_or_else(|| rest.to_owned(), |(first, _)| format!("{first}/")))
            })
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// The items of a variable.
    pub(super) fn variable(&self, path: &str) -> Found<Variable> {
        match self.members.get(path) {
            Some(Json::Object(items)) => Found::Here(items.iter().map(|(k, v)| (k.clone(), text(v))).into_map()),
            _ => Found::Missing,
        }
    }

    /// The paths of variables with this prefix.
    pub(super) fn variables(&self, prefix: &str) -> Vec<String> {
        let objects = self.members.iter().filter(|(path, value)| value.is_object() && path.starts_with(prefix));
        let mut paths: Vec<String> = objects.map(|(path, _)| path.clone()).collect();
        paths.sort();
        paths
    }

    /// The instances of services, which are lists of objects under `service/NAME`.
    pub(super) fn services(&self) -> Vec<Service> {
        let mut services = Vec::new();
        for (path, value) in self.members.iter() {
            let (Some(name), Json::Array(instances)) = (path.strip_prefix("service/"), value) else { continue };
            for (i, instance) in instances.iter().enumerate() {
                let of = |key: &str| instance.get(key).map(text).unwrap_or_default();
                let tags = instance.get("tags").and_then(Json::as_array);
                let meta = instance.get("meta").and_then(Json::as_object);
                services.push(Service {
                    id: instance.get("id").map_or_else(|| format!("{name}-{i}"), text),
                    name: name.to_owned(),
                    node: of("node"),
                    address: of("address"),
                    port: instance.get("port").and_then(Json::as_u64).and_then(|p| p.try_into().ok()).unwrap_or(0),
                    datacenter: instance.get("datacenter").map_or_else(|| "dc1".to_owned(), text),
                    tags: tags.map(|tags| tags.iter().map(text).collect()).unwrap_or_default(),
                    meta: meta.map(|m| m.iter().map(|(k, v)| (k.clone(), text(v))).into_map()).unwrap_or_default(),
                    job: of("job"),
                    alloc: of("alloc"),
                    status: instance.get("status").map_or_else(|| "passing".to_owned(), text),
                });
            }
        }
        services.extend(self.registered.get_or_init(|| self.registered_now()).iter().cloned());
        services
    }

    fn registered_now(&self) -> Vec<Service> {
        let listed = self.registry.as_ref().map(Services::list).transpose().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the registry of services");
            None
        });
        let listed = listed.unwrap_or_default();
        for error in listed.errors {
            tracing::warn!(%error, "cannot read some of the registry of services");
        }
        let of = |service: Registration| Service {
            id: service.id,
            name: service.service_name,
            node: service.node_name,
            address: service.address,
            port: service.port,
            datacenter: service.datacenter,
            tags: service.tags,
            meta: service.meta,
            job: service.job_id,
            alloc: service.alloc_id,
            status: service.status.as_str().to_owned(),
        };
        let is_seen = |service: &Registration| self.namespace.as_ref().is_none_or(|seen| *seen == service.namespace);
        listed.services.into_iter().filter(is_seen).map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::fake;

    #[test]
    fn values_come_from_json_and_from_hcl() {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in [
            (
                "a.json",
                r#"{"app/port": 8080, "app/db/host": "h", "nomad/jobs/x": {"user": "u"}, "service/web": [{"address": "::1", "port": 1, "tags": ["a"]}]}"#,
            ),
            (
                "a.hcl",
                "\"app/port\" = 8080\n\"app/db/host\" = \"h\"\n\"nomad/jobs/x\" = { user = \"u\" }\n\"service/web\" = [{ address = \"::1\", port = 1, tags = [\"a\"] }]\n",
            ),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            let values = ValuesFile::open(&path).unwrap().read().unwrap();
            assert_eq!(values.key("app/port"), Found::Here("8080".to_owned()), "{name}");
            assert_eq!(values.key("none"), Found::Missing, "{name}");
            let tree = values.tree("app");
            assert_eq!(
                tree,
                [("db/host".to_owned(), "h".to_owned()), ("port".to_owned(), "8080".to_owned())],
                "{name}"
            );
            assert_eq!(values.variable("nomad/jobs/x"), Found::Here([("user".to_owned(), "u".to_owned())].into()));
            assert_eq!(values.variables("nomad"), ["nomad/jobs/x"], "{name}");
            assert_eq!(values.secrets("nomad"), ["jobs/"], "{name}");
            let services = values.services();
            assert_eq!((services.len(), services[0].port, &*services[0].address), (1, 1, "::1"), "{name}");
        }
        let path = dir.path().join("b.hcl");
        std::fs::write(&path, "\"a\" = 1\n\"b\" = = 2\n").unwrap();
        assert!(ValuesFile::open(&path).unwrap_err().contains("b.hcl"));
        std::fs::write(&path, "[1]").unwrap();
        assert!(ValuesFile::open(&path).is_err());
    }

    #[test]
    fn j3_a_template_sees_the_services_of_its_own_namespace() {
        let registry = Services::default();
        for namespace in ["default", "team"] {
            let service = Registration {
                id: namespace.to_owned(),
                service_name: "db".to_owned(),
                namespace: namespace.to_owned(),
                alloc_id: namespace.to_owned(),
                ..Registration::default()
            };
            registry.change(|all| drop(all.insert(namespace.to_owned(), service))).unwrap();
        }
        let file = ValuesFile::default().with_services(&registry);
        for (namespace, expected) in [("default", &["default"][..]), ("team", &["team"]), ("other", &[])] {
            let job = Job { namespace: namespace.to_owned(), ..fake::job(vec![]) };
            let values = file.of_group(&job, "", "group").of_task("task").read().unwrap();
            let seen: Vec<String> = values.services().into_iter().map(|service| service.alloc).collect();
            assert_eq!(seen, expected, "{namespace}");
        }
    }
}
