//! The environment of a task, and the references that its configuration may contain.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::node::Node;
use super::ports::AllocPort;
use crate::driver::FsIsolation;
use crate::net::Status;
use crate::spec::collections::BTreeMap;
use crate::spec::{AllocId, DriverConfig, Group, IntoMap as _, Job, Task, env_name, interpolate};

/// Never inherited, whatever the denylist says: a user who runs a job by hand may have a cluster's token there.
const TOKEN: &str = "NOMAD_TOKEN";

/// The inputs of a task's environment.
#[derive(Debug)]
pub struct Source<'a> {
    /// The job.
    pub job: &'a Job,
    /// The task's group.
    pub group: &'a Group,
    /// The job that started this one; empty for none.
    pub parent: &'a str,
    /// The task.
    pub task: &'a Task,
    /// The allocation.
    pub alloc: &'a AllocId,
    /// Its number among the group's, from 0.
    pub index: u32,
    /// The allocation's directory on the host.
    pub alloc_dir: &'a Path,
    /// Decides whether the task gets host paths.
    pub isolation: FsIsolation,
    /// The parent of the task's cgroup, relative to the hierarchy; empty if there is none.
    pub cgroup_parent: &'a Path,
    /// The ports of the allocation.
    pub ports: &'a [AllocPort],
    /// The network that the group's tasks share; `None` is the host's.
    pub network: Option<&'a Status>,
    /// The machine.
    pub node: &'a Arc<Node>,
    /// The environment of this process.
    pub host: &'a BTreeMap<String, String>,
    /// The names in it that tasks do not inherit.
    pub denied: &'a [String],
}

/// A task's environment; all other values of the task are interpolated with it.
#[derive(Debug, Clone)]
pub struct TaskEnv {
    /// Shared by all who have this environment, as most tasks never change it.
    vars: Arc<BTreeMap<String, String>>,
    node: Arc<Node>,
    /// Bytes that references may expand to.
    most: usize,
    /// The references in the task's own variables exceeded that limit.
    is_too_large: bool,
}

/// The expansion of a task's `${...}` references exceeds its limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("what its ${{...}} references stand for has more than {0} KiB; use fewer, or shorter values")]
pub struct TooLarge(usize);

/// The bytes that references may still expand to. A reference that would exceed them stays as it is.
struct Room {
    left: Cell<usize>,
    is_exceeded: Cell<bool>,
}

impl Room {
    fn new(most: usize) -> Room {
        Room { left: Cell::new(most), is_exceeded: Cell::new(false) }
    }

    fn take(&self, value: &str) -> bool {
        match self.left.get().checked_sub(value.len()) {
            Some(left) => self.left.set(left),
            None => self.is_exceeded.set(true),
        }
        !self.is_exceeded.get()
    }
}

/// Bytes that the references of all tasks of a run may expand to, and the minimum for one task.
const MOST_OF_RUN: usize = 64 << 20;
const LEAST_OF_TASK: usize = 128 << 10;

impl TaskEnv {
    /// Builds the environment; later sources win over earlier ones: ids, limits and directories, ports, meta, the host's
    /// variables (which only fill gaps), the task's `env`.
    #[must_use]
    pub fn build(source: &Source<'_>) -> TaskEnv {
        let mut vars = BTreeMap::new();
        basics(source, &mut vars);
        ports(source, &mut vars);
        let tasks: usize = source.job.groups.iter().map(|g| g.count as usize * g.tasks.len()).sum();
        let most = (MOST_OF_RUN / tasks.max(1)).max(LEAST_OF_TASK);
        let mut env = TaskEnv { vars: Arc::new(vars), node: Arc::clone(source.node), most, is_too_large: false };
        let room = Room::new(most);
        let spelt = |(key, value): (&String, &String)| {
            [key.to_uppercase(), key.clone()].map(|key| {
                let key = env.interpolate_within(&format!("NOMAD_META_{key}"), &room);
                (key, env.interpolate_within(value, &room))
            })
        };
        // A parameterized job that runs was dispatched.
        let unset = &String::new();
        let optional = source.job.scheduling.parameterized.iter().flat_map(|rules| &rules.meta_optional);
        let meta = [&source.job.meta, &source.group.meta, &source.task.meta].into_iter().flatten();
        let meta: Vec<_> = optional.map(|key| (key, unset)).chain(meta).flat_map(spelt).collect();
        let vars = Arc::make_mut(&mut env.vars);
        vars.extend(meta);
        if source.isolation == FsIsolation::None {
            for (key, value) in source.host {
                let denied = key == TOKEN || source.denied.contains(key);
                if !denied && !vars.contains_key(key) {
                    vars.insert(key.clone(), value.clone());
                }
            }
        }
        let own =
            source.task.env.iter().map(|(k, v)| (env.interpolate_within(k, &room), env.interpolate_within(v, &room)));
        let own: Vec<_> = own.collect();
        env.is_too_large = room.is_exceeded.get();
        env.add(own);
        env
    }

    /// The environment of the group's own services: what its tasks have in common, whichever task `source` names.
    pub(super) fn of_group(source: &Source<'_>) -> TaskEnv {
        let task = Task { env: BTreeMap::new(), meta: BTreeMap::new(), network: None, ..source.task.clone() };
        let host = BTreeMap::new();
        let mut env = TaskEnv::build(&Source { task: &task, host: &host, ..*source });
        for own in ["TASK_NAME", "TASK_DIR", "SECRETS_DIR", "MEMORY_LIMIT", "MEMORY_MAX_LIMIT", "CPU_LIMIT"] {
            Arc::make_mut(&mut env.vars).remove(&format!("NOMAD_{own}"));
        }
        env
    }

    /// Adds variables, replacing existing ones.
    pub fn extend(&mut self, pairs: impl IntoIterator<Item = (String, String)>) {
        let mut pairs = pairs.into_iter().peekable();
        if pairs.peek().is_some() {
            self.add(pairs);
        }
    }

    fn add(&mut self, pairs: impl IntoIterator<Item = (String, String)>) {
        let vars = Arc::make_mut(&mut self.vars);
        vars.extend(pairs);
        *vars = std::mem::take(vars).into_iter().map(|(k, v)| (clean(k), v)).into_map();
    }

    /// The variables.
    #[must_use]
    pub fn vars(&self) -> &BTreeMap<String, String> {
        &self.vars
    }

    /// The machine.
    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// A variable, or what is known of the node: `node.*`, `attr.*`, `meta.*`.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str).or_else(|| self.node.lookup(name))
    }

    /// Most bytes that one template may add to the task's variables.
    #[must_use]
    pub const fn most(&self) -> usize {
        self.most
    }

    /// Replaces every known `${...}`; unknown references, and those that would exceed the limit, stay as they are.
    #[must_use]
    pub fn interpolate(&self, text: &str) -> String {
        self.interpolate_within(text, &Room::new(self.most))
    }

    /// The same, with additional references.
    pub(super) fn interpolate_with(&self, text: &str, more: &dyn Fn(&str) -> Option<String>) -> String {
        let room = Room::new(self.most);
        interpolate(text, &|key| self.value(key, &room).or_else(|| more(key)))
    }

    fn interpolate_within(&self, text: &str, room: &Room) -> String {
        interpolate(text, &|key| self.value(key, room))
    }

    /// The expansion of a reference, while the limit is not exceeded.
    fn value(&self, key: &str, room: &Room) -> Option<String> {
        let name = key.strip_prefix("env.").unwrap_or(key);
        let value = self.vars.get(name).map(String::as_str).or_else(|| self.node.lookup(key))?;
        room.take(value).then(|| value.to_owned())
    }

    /// Interpolates every string of a driver's configuration, at any depth.
    ///
    /// # Errors
    /// When the references, or those in the task's variables, expand to more than the limit.
    pub fn interpolate_config(&self, config: &DriverConfig) -> Result<DriverConfig, TooLarge> {
        let room = Room::new(self.most);
        let values = config.values.iter().map(|(k, v)| (k.clone(), self.interpolate_value(v, &room))).collect();
        if self.is_too_large || room.is_exceeded.get() {
            return Err(TooLarge(self.most / 1024));
        }
        Ok(DriverConfig { values, positions: config.positions.clone(), pos: config.pos.clone() })
    }

    fn interpolate_value(&self, value: &serde_json::Value, room: &Room) -> serde_json::Value {
        use serde_json::Value;
        let said = |text: &str| interpolate(text, &|key| self.value(&plain(key), room));
        match value {
            Value::String(text) => Value::String(said(text)),
            Value::Array(items) => Value::Array(items.iter().map(|v| self.interpolate_value(v, room)).collect()),
            Value::Object(map) => {
                Value::Object(map.iter().map(|(k, v)| (said(k), self.interpolate_value(v, room))).collect())
            }
            other => other.clone(),
        }
    }
}

/// The usual form of a reference in a driver's configuration, where Nomad also accepts `env["X"]`, `meta["k"]`, `attr["a.b"]`,
/// `node.attr.a` and `node.meta.k`.
fn plain(key: &str) -> String {
    let key = key.replace("[\"", ".").replace("\"]", "");
    match key.strip_prefix("node.") {
        Some(rest) if rest.starts_with("attr.") || rest.starts_with("meta.") => rest.to_owned(),
        _ => key,
    }
}

fn basics(source: &Source<'_>, vars: &mut BTreeMap<String, String>) {
    let Source { job, group, task, alloc, .. } = *source;
    let dirs = match source.isolation {
        FsIsolation::Image | FsIsolation::Chroot => ["/alloc", "/local", "/secrets"].map(PathBuf::from),
        FsIsolation::None | FsIsolation::Unveil => {
            let task_dir = source.alloc_dir.join(&task.name);
            [source.alloc_dir.join("alloc"), task_dir.join("local"), task_dir.join("secrets")]
        }
    };
    for (key, dir) in ["NOMAD_ALLOC_DIR", "NOMAD_TASK_DIR", "NOMAD_SECRETS_DIR"].into_iter().zip(dirs) {
        vars.insert(key.to_owned(), dir.to_string_lossy().into_owned());
    }
    let mut set = |key: &str, value: String| vars.insert(format!("NOMAD_{key}"), value);
    set("MEMORY_LIMIT", task.resources.memory_mib.to_string());
    if task.resources.memory_max_mib > 0 {
        set("MEMORY_MAX_LIMIT", task.resources.memory_max_mib.to_string());
    }
    set("CPU_LIMIT", task.resources.cpu_mhz.to_string());
    set("ALLOC_ID", alloc.to_string());
    set("SHORT_ALLOC_ID", alloc.short().to_owned());
    set("ALLOC_NAME", format!("{}.{}[{}]", job.id, group.name, source.index));
    set("ALLOC_INDEX", source.index.to_string());
    set("GROUP_NAME", group.name.clone());
    set("TASK_NAME", task.name.clone());
    set("JOB_ID", job.id.clone());
    set("JOB_NAME", job.name.clone());
    if !source.parent.is_empty() {
        set("JOB_PARENT_ID", source.parent.to_owned());
    }
    set("DC", source.node.datacenter.clone());
    set("NAMESPACE", job.namespace.clone());
    set("REGION", job.region.clone());
    if !source.cgroup_parent.as_os_str().is_empty() {
        set("PARENT_CGROUP", source.cgroup_parent.to_string_lossy().into_owned());
    }
}

/// `PORT` and `ALLOC_PORT` are the port inside the task's network where ports are mapped to it; all others are the host's.
fn ports(source: &Source<'_>, vars: &mut BTreeMap<String, String>) {
    for AllocPort { label, value, ip, task, .. } in source.ports {
        let Some(task) = task else { continue };
        let address = SocketAddr::new(*ip, *value).to_string();
        if *task == source.task.name {
            let family = if ip.is_ipv6() { "IPv6" } else { "IPv4" };
            vars.insert(format!("NOMAD_{family}_{label}"), ip.to_string());
        } else {
            for (key, value) in [("ADDR", address), ("IP", ip.to_string()), ("PORT", value.to_string())] {
                vars.insert(format!("NOMAD_{key}_{task}_{label}"), value);
            }
        }
    }
    for port in source.ports {
        let AllocPort { label, value, ip, .. } = port;
        let (address, host, inside) = (SocketAddr::new(*ip, *value).to_string(), ip.to_string(), port.inside());
        for (key, value) in [
            ("ADDR", address.clone()),
            ("HOST_ADDR", address),
            ("IP", host.clone()),
            ("HOST_IP", host),
            ("PORT", inside.to_string()),
            ("ALLOC_PORT", inside.to_string()),
            ("HOST_PORT", value.to_string()),
        ] {
            vars.insert(format!("NOMAD_{key}_{label}"), value);
        }
        if let Some(Status { interface, address: Some(own), .. }) = source.network.filter(|_| port.task.is_none()) {
            let address = SocketAddr::new(*own, inside).to_string();
            for (key, value) in [("INTERFACE", interface.clone()), ("IP", own.to_string()), ("ADDR", address)] {
                vars.insert(format!("NOMAD_ALLOC_{key}_{label}"), value);
            }
        }
    }
}

/// Makes keys that contain labels from the job valid in a shell: byte by byte as Nomad does, except for dots, and except the
/// keys of the host's address and the allocation's port.
fn clean(key: String) -> String {
    let labelled = ["ADDR", "IP", "PORT", "HOST_PORT", "META"];
    let rest = key.strip_prefix("NOMAD_");
    if !rest.is_some_and(|r| labelled.iter().any(|l| r.strip_prefix(l).is_some_and(|r| r.starts_with('_')))) {
        return key;
    }
    env_name(&key)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::alloc::fake;
    use crate::spec::Parameterized;

    fn port(label: &str, value: u16, to: Option<u16>, task: Option<&str>) -> AllocPort {
        let ip = if label.ends_with('6') { "2001:db8::7" } else { "192.0.2.7" }.parse().unwrap();
        AllocPort { label: label.to_owned(), value, to, ip, task: task.map(str::to_owned) }
    }

    pub(in crate::alloc) fn built(isolation: FsIsolation, change: impl FnOnce(&mut Job)) -> TaskEnv {
        let mut job = fake::job(vec![fake::task("web-app")]);
        job.meta.insert("who".to_owned(), "job".to_owned());
        job.groups[0].meta.insert("who".to_owned(), "group".to_owned());
        change(&mut job);
        let group = &job.groups[0];
        let id = AllocId::parse("0f2c1f7e-43b8-4a9c-9e0d-5a5b7e3c1d2e").unwrap();
        let host = [("HOME", "/home/op"), ("VAULT_TOKEN", "s3cr3t"), ("NOMAD_DC", "lies")];
        TaskEnv::build(&Source {
            job: &job,
            group,
            parent: job.id.split_once("/dispatch-").map_or("", |(parent, _)| parent),
            task: &group.tasks[0],
            alloc: &id,
            index: 2,
            alloc_dir: Path::new("/data/alloc/0f2c"),
            isolation,
            cgroup_parent: Path::new("nomad.slice"),
            ports: &[port("http-api", 20_123, None, None)],
            network: None,
            node: &fake::node(),
            host: &host.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            denied: &["VAULT_TOKEN".to_owned()],
        })
    }

    fn assert_vars(env: &TaskEnv, expected: &[(&str, &str)]) {
        for (key, value) in expected {
            assert_eq!(env.vars().get(*key).map(String::as_str), Some(*value), "{key}");
        }
    }

    #[test]
    fn envvars() {
        let env = built(FsIsolation::Image, |_| {});
        assert_vars(
            &env,
            &[
                ("NOMAD_ALLOC_DIR", "/alloc"),
                ("NOMAD_TASK_DIR", "/local"),
                ("NOMAD_SECRETS_DIR", "/secrets"),
                ("NOMAD_ALLOC_ID", "0f2c1f7e-43b8-4a9c-9e0d-5a5b7e3c1d2e"),
                ("NOMAD_SHORT_ALLOC_ID", "0f2c1f7e"),
                ("NOMAD_ALLOC_NAME", "job.group[2]"),
                ("NOMAD_ALLOC_INDEX", "2"),
                ("NOMAD_TASK_NAME", "web-app"),
                ("NOMAD_MEMORY_LIMIT", "300"),
                ("NOMAD_CPU_LIMIT", "100"),
                ("NOMAD_PARENT_CGROUP", "nomad.slice"),
                ("NOMAD_DC", "dc1"),
                ("NOMAD_META_WHO", "group"),
                ("NOMAD_META_who", "group"),
            ],
        );
        assert!(!env.vars().contains_key("HOME"));
        assert!(!env.vars().contains_key("NOMAD_MEMORY_MAX_LIMIT"));
    }

    #[test]
    fn tasks_without_their_own_root_see_host_paths_and_host_variables_but_no_secrets() {
        let env = built(FsIsolation::None, |_| {});
        assert_vars(
            &env,
            &[
                ("NOMAD_ALLOC_DIR", "/data/alloc/0f2c/alloc"),
                ("NOMAD_TASK_DIR", "/data/alloc/0f2c/web-app/local"),
                ("HOME", "/home/op"),
                ("NOMAD_DC", "dc1"),
            ],
        );
        assert!(!env.vars().contains_key("VAULT_TOKEN"));
    }

    #[test]
    fn ports_have_every_spelling_and_shell_safe_names() {
        let env = built(FsIsolation::Image, |_| {});
        assert_vars(
            &env,
            &[
                ("NOMAD_PORT_http_api", "20123"),
                ("NOMAD_HOST_PORT_http_api", "20123"),
                ("NOMAD_IP_http_api", "192.0.2.7"),
                ("NOMAD_ADDR_http_api", "192.0.2.7:20123"),
            ],
        );
        assert!(!env.vars().contains_key("NOMAD_PORT_http-api"));
    }

    /// J3: the variables that Nomad sets for ports of groups and of tasks, and no others.
    #[test]
    fn j3_ports_are_named_as_nomad_names_them() {
        let mut job = fake::job(vec![fake::task("web"), fake::task("side-car")]);
        job.groups[0].count = 1;
        let ports = [
            port("db", 20_001, Some(6379), None),
            port("API", 8080, Some(8080), None),
            port("a-b.c", 20_002, None, None),
            port("v6", 20_003, None, None),
            port("own", 20_004, Some(80), Some("web")),
            port("adm-in", 20_005, None, Some("side-car")),
        ];
        let id = AllocId::parse("0f2c1f7e-43b8-4a9c-9e0d-5a5b7e3c1d2e").unwrap();
        let found = |task: usize| {
            let env = TaskEnv::build(&Source {
                job: &job,
                group: &job.groups[0],
                parent: "",
                task: &job.groups[0].tasks[task],
                alloc: &id,
                index: 0,
                alloc_dir: Path::new("/data/alloc/0f2c"),
                isolation: FsIsolation::Image,
                cgroup_parent: Path::new(""),
                ports: &ports,
                network: None,
                node: &fake::node(),
                host: &BTreeMap::new(),
                denied: &[],
            });
            let is_of_port = |key: &str| {
                ["IP", "HOST_IP", "IPv4", "IPv6", "PORT", "HOST_PORT", "ADDR", "HOST_ADDR"]
                    .iter()
                    .chain(&["ALLOC_PORT", "ALLOC_IP", "ALLOC_ADDR", "ALLOC_INTERFACE"])
                    .any(|kind| key.strip_prefix("NOMAD_").is_some_and(|k| k.starts_with(&format!("{kind}_"))))
            };
            let of_ports = env.vars().iter().filter(|(key, _)| is_of_port(key));
            of_ports.map(|(key, value)| format!("{key}={value}")).collect::<crate::spec::collections::BTreeSet<_>>()
        };
        let all = |label: &str, clean: &str, ip: &str, host: u16, inside: u16| {
            let address = SocketAddr::new(ip.parse().unwrap(), host);
            [
                format!("NOMAD_ADDR_{clean}={address}"),
                format!("NOMAD_ALLOC_PORT_{label}={inside}"),
                format!("NOMAD_HOST_ADDR_{label}={address}"),
                format!("NOMAD_HOST_IP_{label}={ip}"),
                format!("NOMAD_HOST_PORT_{clean}={host}"),
                format!("NOMAD_IP_{clean}={ip}"),
                format!("NOMAD_PORT_{clean}={inside}"),
            ]
        };
        let mut expected: crate::spec::collections::BTreeSet<String> = [
            all("db", "db", "192.0.2.7", 20_001, 6379),
            all("API", "API", "192.0.2.7", 8080, 8080),
            all("a-b.c", "a_b.c", "192.0.2.7", 20_002, 20_002),
            all("v6", "v6", "2001:db8::7", 20_003, 20_003),
            all("own", "own", "192.0.2.7", 20_004, 80),
            all("adm-in", "adm_in", "192.0.2.7", 20_005, 20_005),
        ]
        .concat()
        .into_iter()
        .collect();
        assert!(expected.contains("NOMAD_ADDR_v6=[2001:db8::7]:20003"));
        let common = expected.clone();
        // Its own network's ports, and what it sees of the other task's ports: the host's.
        expected.extend(
            [
                "NOMAD_IPv4_own=192.0.2.7",
                "NOMAD_ADDR_side_car_adm_in=192.0.2.7:20005",
                "NOMAD_IP_side_car_adm_in=192.0.2.7",
                "NOMAD_PORT_side_car_adm_in=20005",
            ]
            .map(str::to_owned),
        );
        assert_eq!(found(0), expected);
        let mut expected = common;
        expected.extend(
            [
                "NOMAD_IPv4_adm-in=192.0.2.7",
                "NOMAD_ADDR_web_own=192.0.2.7:20004",
                "NOMAD_IP_web_own=192.0.2.7",
                "NOMAD_PORT_web_own=20004",
            ]
            .map(str::to_owned),
        );
        assert_eq!(found(1), expected);
    }

    #[test]
    fn task_env_and_config_are_interpolated() {
        let env = built(FsIsolation::Image, |job| {
            let task = &mut job.groups[0].tasks[0];
            for (key, value) in [
                ("A", "${NOMAD_TASK_NAME}/${node.datacenter}/${attr.kernel.name}"),
                ("B", "${env.NOMAD_DC} $${x} ${unknown}"),
                ("PORT_${NOMAD_ALLOC_INDEX}", "${NOMAD_PORT_http-api}"),
            ] {
                task.env.insert(key.to_owned(), value.to_owned());
            }
        });
        assert_vars(&env, &[("A", "web-app/dc1/linux"), ("B", "dc1 ${x} ${unknown}"), ("PORT_2", "20123")]);
        let config: serde_json::Map<_, _> =
            serde_json::from_str(r#"{"args": ["${A}", {"x": "${NOMAD_DC}"}], "n": 3}"#).unwrap();
        let config = env.interpolate_config(&DriverConfig { values: config, ..DriverConfig::default() }).unwrap();
        assert_eq!(
            serde_json::Value::Object(config.values),
            serde_json::json!({"args": ["web-app/dc1/linux", {"x": "dc1"}], "n": 3})
        );
    }

    #[test]
    fn a_drivers_configuration_has_more_spellings_of_references() {
        let mut env = built(FsIsolation::Image, |job| {
            job.groups[0].tasks[0].env.insert("A.b".to_owned(), "own".to_owned());
        });
        Arc::make_mut(&mut env.node).meta.insert("ra.ck".to_owned(), "r2".to_owned());
        let interpolated = |text: &str| {
            let values = [("x".to_owned(), text.into())].into_iter().collect();
            let config = env.interpolate_config(&DriverConfig { values, ..DriverConfig::default() }).unwrap();
            config.values["x"].as_str().unwrap().to_owned()
        };
        for (text, expected) in [
            ("${env[\"NOMAD_DC\"]}-${env[\"A.b\"]}-${env.NOMAD_DC}", "dc1-own-dc1"),
            ("${meta[\"ra.ck\"]}:${node.meta.ra.ck}:${node.meta[\"ra.ck\"]}:${meta.ra.ck}", "r2:r2:r2:r2"),
            ("${attr[\"kernel.name\"]}/${node.attr.kernel.name}/${node.datacenter}", "linux/linux/dc1"),
            ("${meta[\"none\"]}${node.meta.none}${node.attr}", "${meta[\"none\"]}${node.meta.none}${node.attr}"),
        ] {
            assert_eq!(interpolated(text), expected);
        }
        assert_eq!(env.interpolate("${meta[\"ra.ck\"]}"), "${meta[\"ra.ck\"]}", "only there");
    }

    #[test]
    fn meta_is_interpolated_with_what_precedes_it() {
        let env = built(FsIsolation::Image, |job| {
            job.meta.insert("url".to_owned(), "${attr.kernel.name}:${NOMAD_PORT_http-api}/${meta.none}".to_owned());
            job.groups[0].tasks[0].meta.insert("of_${NOMAD_TASK_NAME}".to_owned(), "$${x}".to_owned());
            job.groups[0].tasks[0].env.insert("URL".to_owned(), "${NOMAD_META_url}".to_owned());
        });
        let url = "linux:20123/${meta.none}";
        assert_vars(&env, &[("NOMAD_META_URL", url), ("NOMAD_META_url", url), ("URL", url)]);
        assert_vars(&env, &[("NOMAD_META_of_web_app", "${x}"), ("NOMAD_META_OF_web_app", "${x}")]);
    }

    #[test]
    fn a_dispatched_job_has_its_parent_and_its_optional_meta() {
        let env = built(FsIsolation::Image, |job| {
            job.id = "job/dispatch-1".to_owned();
            let meta_optional = ["color", "who"].map(str::to_owned).into();
            job.scheduling.parameterized = Some(Parameterized { meta_optional, ..Parameterized::default() });
        });
        assert_vars(&env, &[("NOMAD_JOB_PARENT_ID", "job"), ("NOMAD_META_WHO", "group"), ("NOMAD_META_who", "group")]);
        assert_vars(&env, &[("NOMAD_META_COLOR", ""), ("NOMAD_META_color", "")]);
        assert!(!built(FsIsolation::Image, |_| {}).vars().contains_key("NOMAD_JOB_PARENT_ID"));
    }

    #[test]
    fn references_to_large_values_fill_no_memory() {
        let env = |count: usize, tasks: u32| {
            built(FsIsolation::Image, |job| {
                job.meta.insert("big".to_owned(), "x".repeat(1 << 20));
                job.groups[0].count = tasks;
                let own = (0..count).map(|i| (format!("E{i}"), "${NOMAD_META_big}".to_owned()));
                job.groups[0].tasks[0].env.extend(own);
            })
        };
        let config = |args: usize| {
            let values = serde_json::json!({"args": vec!["${NOMAD_META_big}"; args]});
            let serde_json::Value::Object(values) = values else { panic!() };
            DriverConfig { values, ..DriverConfig::default() }
        };
        assert!(env(3, 1).interpolate_config(&config(3)).is_ok());
        let of_meta = built(FsIsolation::Image, |job| {
            let large = job.name.repeat(1 << 20);
            job.name = large;
            job.meta.extend((0..100).map(|i| (format!("m{i}"), "${NOMAD_JOB_NAME}".to_owned())));
        });
        for (env, args) in [(env(3, 1), 65), (env(100_000, 1), 0), (env(1, 1000), 0), (of_meta, 0)] {
            let error = env.interpolate_config(&config(args)).unwrap_err().to_string();
            assert!(error.starts_with("what its ${...} references stand for has more than"), "{error}");
            assert!(env.vars().values().map(String::len).sum::<usize>() < 80 << 20);
        }
    }
}
