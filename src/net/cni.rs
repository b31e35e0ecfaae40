//! The Container Network Interface: lists of plugins, executed one after the other.
//!
//! <https://www.cni.dev/docs/spec/>: configuration on standard input, parameters in the environment, a result or an error on
//! standard output. ADD calls the plugins in the order of the list, each with the result of the previous one; DEL calls them in
//! reverse order, with the result of the ADD.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use super::lease::By;
use super::lock::Locked;
use super::program;
use super::{Error, Mapping, Status};
use crate::spec::Order as _;
use crate::sys::owned;

/// Longest file of a configuration that is read, in bytes.
const LONGEST: u64 = 1 << 20;
/// Most names of other networks in an error.
const MOST_TOLD: usize = 20;

/// A list of plugins under one name.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct List {
    pub(super) name: String,
    version: String,
    plugins: Vec<Map<String, Value>>,
}

impl List {
    /// Parses a list, or a single plugin's configuration, as found in a file.
    pub(super) fn parse(text: &[u8]) -> Result<List, String> {
        let value: Value = serde_json::from_slice(text).map_err(|e| e.to_string())?;
        let Value::Object(mut fields) = value else { return Err("it is not an object".to_owned()) };
        let text = |fields: &Map<String, Value>, key: &str| fields.get(key).and_then(Value::as_str).map(str::to_owned);
        let name = text(&fields, "name").unwrap_or_default();
        if !is_name(&name) {
            return Err(format!("its name {name:?} has other characters than letters, digits, _ . and -"));
        }
        let version = text(&fields, "cniVersion").unwrap_or_else(|| "0.1.0".to_owned());
        let plugins = match fields.remove("plugins") {
            Some(Value::Array(plugins)) => plugins,
            None if fields.contains_key("type") => vec![Value::Object(fields)],
            _ => return Err("it has no list of plugins".to_owned()),
        };
        let plugin = |value: Value| match value {
            Value::Object(plugin) if text(&plugin, "type").is_some_and(|kind| is_name(&kind)) => Ok(plugin),
            _ => Err("a plugin has no type, or one that is not a plain file name".to_owned()),
        };
        let plugins: Vec<_> = plugins.into_iter().map(plugin).collect::<Result<_, _>>()?;
        if plugins.is_empty() {
            return Err("its list of plugins is empty".to_owned());
        }
        Ok(List { name, version, plugins })
    }

    /// A list of no plugins: this program does their work.
    pub(super) fn without_plugins(name: &str) -> List {
        List { name: name.to_owned(), version: String::new(), plugins: Vec::new() }
    }

    /// The types of its plugins.
    fn kinds(&self) -> impl Iterator<Item = &str> {
        self.plugins.iter().filter_map(|plugin| plugin.get("type").and_then(Value::as_str))
    }
}

/// Whether a text can be the name of a network, and of a plugin's file.
pub(super) fn is_name(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphanumeric())
        && letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

/// The names of the networks in a directory of configurations, each once.
pub(super) fn names(dir: &Path) -> Vec<String> {
    let entries = owned::resolve_parent(dir).and_then(std::fs::read_dir);
    let files = entries.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let is_config = |path: &PathBuf| path.extension().is_some_and(|e| e == "conf" || e == "conflist" || e == "json");
    let lists = files.filter(is_config).filter_map(|path| List::parse(&owned::read(&path, LONGEST).ok()?).ok());
    let mut names: Vec<String> = lists.map(|list| list.name).collect();
    names.sort();
    names.dedup();
    names
}

/// The network of this name in a directory of configurations; the first file in the order of names wins.
pub(super) fn find(dir: &Path, name: &str) -> Result<List, Error> {
    // The files decide what root executes, so neither they nor their directories may be writable for others.
    let entries = match owned::resolve_parent(dir).and_then(std::fs::read_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        other => Some(other.map_err(Error::system("use the CNI configurations in", dir))?),
    };
    let mut files = Vec::new();
    for entry in entries.into_iter().flatten() {
        let path = entry.map_err(Error::system("list", dir))?.path();
        let is_config = path.extension().is_some_and(|e| e == "conf" || e == "conflist" || e == "json");
        files.extend(is_config.then_some(path));
    }
    files.sort();
    let (mut names, mut unreadable) = (Vec::new(), Vec::new());
    for path in files {
        let read = owned::read(&path, LONGEST).map_err(|e| e.to_string());
        match read.and_then(|text| List::parse(&text)) {
            Ok(list) if list.name == name => return Ok(list),
            Ok(list) => names.push(format!("{:?}", list.name)),
            Err(reason) => unreadable.push(Error::BadConfig { path, reason }.to_string()),
        }
    }
    names.truncate(MOST_TOLD);
    unreadable.truncate(MOST_TOLD);
    let mut others = if names.is_empty() { String::new() } else { format!(", where there is {}", names.join(", ")) };
    others.extend(unreadable.iter().map(|reason| format!("; {reason}")));
    Err(Error::NoSuchNetwork { name: name.to_owned(), dir: dir.to_owned(), others })
}

/// A plugin, from the first directory that has it: its path there, and the resolved file to execute, which only its owner and
/// root can replace.
fn plugin(dirs: &[PathBuf], kind: &str) -> Result<(PathBuf, PathBuf), Error> {
    for dir in dirs {
        let path = dir.join(kind);
        match owned::resolve(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => {
                let checked = found.and_then(|file| owned::check(std::fs::File::open(&file)?, &file).map(|()| file));
                return checked.map(|file| (path.clone(), file)).map_err(Error::system("use the CNI plugin", path));
            }
        }
    }
    Err(Error::NoPlugin { plugin: kind.to_owned(), dirs: joined(dirs) })
}

fn joined(dirs: &[PathBuf]) -> String {
    dirs.iter().map(|dir| dir.to_string_lossy()).collect::<Vec<_>>().join(":")
}

/// A container's connection to a network: the parameters of each call.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Connection {
    pub(super) list: List,
    /// The directories of plugins.
    pub(super) dirs: Vec<PathBuf>,
    /// `CNI_ARGS`.
    pub(super) args: String,
    pub(super) mappings: Vec<Mapping>,
    /// The last result of ADD.
    pub(super) result: Option<Value>,
}

/// Name of the interface inside, the same as Nomad's.
pub(super) const INTERFACE: &str = "eth0";

/// One container, for a few calls.
#[derive(Debug)]
pub(super) struct Caller<'a> {
    pub(super) id: &'a str,
    /// Its namespace; empty if it no longer exists.
    pub(super) namespace: &'a Path,
    /// Timeout of one plugin.
    pub(super) patience: Duration,
}

impl Connection {
    /// What does the work: a list that was read has plugins, see [`List::parse`].
    pub(super) fn by(&self) -> By {
        if self.list.plugins.is_empty() { By::Builtin } else { By::Plugins }
    }

    /// Checks that all plugins exist.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.list.kinds().try_for_each(|kind| plugin(&self.dirs, kind).map(drop))
    }

    /// Connects the container and keeps the result. What a failed call has made stays until [`Connection::del`].
    pub(super) fn add(&mut self, locked: &mut Locked, caller: &Caller<'_>) -> Result<(), Error> {
        let mut result = None;
        for config in &self.list.plugins {
            let answer = self.call(locked, caller, "ADD", config, result.as_ref())?;
            let answer: Value = serde_json::from_slice(&answer)
                .map_err(|e| Error::BadResult { network: self.list.name.clone(), reason: e.to_string() })?;
            result = Some(answer);
        }
        self.result = result;
        Ok(())
    }

    /// Whether ports of the host are mapped to it.
    pub(super) fn has_mappings(&self) -> bool {
        !self.mappings.is_empty()
    }

    /// Disconnects the container. Every plugin is called; the first error is returned.
    pub(super) fn del(&self, locked: &mut Locked, caller: &Caller<'_>) -> Result<(), Error> {
        let mut first = Ok(());
        for config in self.list.plugins.iter().rev() {
            let done = self.call(locked, caller, "DEL", config, self.result.as_ref());
            first = first.and(done.map(drop));
        }
        first
    }

    fn call(
        &self,
        locked: &mut Locked,
        caller: &Caller<'_>,
        command: &str,
        config: &Map<String, Value>,
        previous: Option<&Value>,
    ) -> Result<Vec<u8>, Error> {
        let kind = config.get("type").and_then(Value::as_str).unwrap_or_default();
        let (name, file) = plugin(&self.dirs, kind)?;
        let input = Value::Object(self.input(config, previous)).to_string();
        let (namespace, dirs) = (caller.namespace.to_string_lossy(), joined(&self.dirs));
        let env = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", caller.id),
            ("CNI_NETNS", &namespace),
            ("CNI_IFNAME", INTERFACE),
            ("CNI_ARGS", &self.args),
            ("CNI_PATH", &dirs),
        ];
        let failed = |reason: String| Error::Failed {
            program: format!("CNI plugin {kind}"),
            of: format!(" ({command}, network {:?})", self.list.name),
            reason,
        };
        let output = program::run(locked, &file, &[&name.to_string_lossy()], &env, input.as_bytes(), caller.patience);
        let output = output.map_err(|e| failed(e.to_string()))?;
        if output.status.success() { Ok(output.stdout) } else { Err(failed(said(&output))) }
    }

    /// The plugin's configuration, extended by the list's, the job's and the previous plugin's values.
    fn input(&self, config: &Map<String, Value>, previous: Option<&Value>) -> Map<String, Value> {
        let mut input = config.clone();
        input.insert("name".to_owned(), self.list.name.clone().into());
        input.insert("cniVersion".to_owned(), self.list.version.clone().into());
        let wants = |what: &str| config.get("capabilities").and_then(|c| c.get(what)).and_then(Value::as_bool);
        input.remove("capabilities");
        if wants("portMappings") == Some(true) && !self.mappings.is_empty() {
            let mappings: Vec<Value> = self.mappings.iter().map(Mapping::of_cni).collect();
            input.insert("runtimeConfig".to_owned(), crate::spec::json::json!({ "portMappings": mappings }));
        }
        if let Some(previous) = previous {
            input.insert("prevResult".to_owned(), previous.clone());
        }
        input
    }

    /// The container's addresses in the result.
    pub(super) fn status(&self) -> Result<Status, Error> {
        let bad = |reason: &str| Error::BadResult { network: self.list.name.clone(), reason: reason.to_owned() };
        let result = self.result.as_ref().ok_or_else(|| bad("there is none"))?;
        status(result).ok_or_else(|| bad("no interface has an address"))
    }
}

/// The error message of a plugin.
fn said(output: &program::Output) -> String {
    let error: Option<Value> = serde_json::from_slice(&output.stdout).ok();
    let text = |key: &str| error.as_ref().and_then(|e| e.get(key)).and_then(Value::as_str).filter(|t| !t.is_empty());
    match (text("msg"), text("details")) {
        (Some(message), Some(details)) => format!("{message}; {details}"),
        (Some(message), None) => message.to_owned(),
        (None, _) => output.reason(),
    }
}

impl Mapping {
    fn of_cni(&self) -> Value {
        let Mapping { host, inside, protocol, ip } = self;
        crate::spec::json::json!({ "hostPort": host, "containerPort": inside, "protocol": protocol, "hostIP": ip })
    }
}

/// Interpreted as Nomad does: the first interface, by name, that is in the container and has an address; if none is marked as
/// inside, any with an address.
fn status(result: &Value) -> Option<Status> {
    let list = |key: &str| result.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (interfaces, ips) = (list("interfaces"), list("ips"));
    let addresses_of = |number: usize| -> Vec<IpAddr> {
        let of = ips.iter().filter(|ip| ip.get("interface").and_then(Value::as_u64) == u64::try_from(number).ok());
        of.filter_map(|ip| text(ip, "address").split('/').next()?.parse().ok()).collect()
    };
    let mut numbered: Vec<(String, bool, Vec<IpAddr>)> = interfaces
        .iter()
        .enumerate()
        .map(|(number, i)| (text(i, "name"), !text(i, "sandbox").is_empty(), addresses_of(number)))
        .filter(|(_, _, addresses)| !addresses.is_empty())
        .collect();
    numbered.order_by(|one, other| (!one.1, &one.0).cmp(&(!other.1, &other.0)));
    let (interface, addresses) = if let Some((name, _, addresses)) = numbered.into_iter().next() {
        (name, addresses)
    } else {
        // Results before version 0.3 have no interfaces.
        let any = ips.iter().filter_map(|ip| text(ip, "address").split('/').next()?.parse().ok());
        (INTERFACE.to_owned(), any.collect())
    };
    let v4 = addresses.iter().copied().find(IpAddr::is_ipv4);
    let address = v4.or_else(|| addresses.first().copied())?;
    let address_ipv6 = addresses.iter().find_map(|ip| if let IpAddr::V6(ip) = ip { Some(*ip) } else { None });
    let dns = result.get("dns").cloned().unwrap_or_default();
    let texts = |key: &str| -> Vec<String> {
        let all = dns.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        all.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect()
    };
    let (servers, searches, options) = (texts("nameservers"), texts("search"), texts("options"));
    Some(Status { interface, address: Some(address), address_ipv6, servers, searches, options, unguarded: None })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_and_single_plugins_are_read_and_nothing_else() {
        let list =
            List::parse(br#"{"cniVersion":"1.0.0","name":"a.b","plugins":[{"type":"x"},{"type":"y"}]}"#).unwrap();
        assert_eq!((list.name.as_str(), list.version.as_str()), ("a.b", "1.0.0"));
        assert_eq!(list.kinds().collect::<Vec<_>>(), ["x", "y"]);
        let single = List::parse(br#"{"name":"one","type":"macvlan","master":"eth0"}"#).unwrap();
        assert_eq!(single.kinds().collect::<Vec<_>>(), ["macvlan"]);
        for bad in [
            "[]",
            "{",
            r#"{"plugins":[{"type":"x"}]}"#,
            r#"{"name":"../x","type":"x"}"#,
            r#"{"name":"x","type":"../x"}"#,
            r#"{"name":"x","plugins":[]}"#,
            r#"{"name":"x","plugins":[{}]}"#,
            r#"{"name":"x"}"#,
        ] {
            assert!(List::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_network_is_found_by_its_name_and_else_said_to_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
        write("20.conflist", r#"{"name":"mine","plugins":[{"type":"late"}]}"#);
        write("10.conf", r#"{"name":"mine","type":"early"}"#);
        write("00.json", r#"{"name":"other","type":"x"}"#);
        write("30.conf", "{");
        write("notes.txt", r#"{"name":"text","type":"x"}"#);
        assert_eq!(find(dir.path(), "mine").unwrap().kinds().collect::<Vec<_>>(), ["early"]);
        let error = find(dir.path(), "text").unwrap_err().to_string();
        assert!(error.contains("where there is \"other\", \"mine\", \"mine\""), "{error}");
        assert!(error.contains("30.conf is not a CNI configuration") && error.contains("--cni-config-dir"), "{error}");
        assert!(matches!(find(Path::new("/nonexistent"), "x"), Err(Error::NoSuchNetwork { .. })));
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(dir.path().join("00.json"), std::fs::Permissions::from_mode(0o666)).unwrap();
        let error = find(dir.path(), "other").unwrap_err().to_string();
        assert!(error.contains("others may write to"), "{error}");
    }

    #[test]
    fn nothing_is_used_that_others_can_exchange() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        let top = tempfile::tempdir().unwrap();
        let (open, closed, links) = (top.path().join("open"), top.path().join("closed"), top.path().join("links"));
        for dir in [&open, &closed, &links] {
            std::fs::create_dir(dir).unwrap();
            for name in ["plugin", "net.conf"] {
                std::fs::write(dir.join(name), r#"{"name":"mine","type":"x"}"#).unwrap();
                mode(&dir.join(name), 0o755);
            }
        }
        symlink(closed.join("plugin"), links.join("good")).unwrap();
        symlink(open.join("plugin"), links.join("bad")).unwrap();
        let of = |dir: &Path, kind: &str| plugin(&[dir.to_owned()], kind);
        let closed = owned::resolve(&closed).unwrap();
        assert_eq!(of(&open, "plugin").unwrap().1.file_name().unwrap(), "plugin");
        find(&open, "mine").unwrap();
        mode(&open, 0o777);
        for (dir, kind) in [(&open, "plugin"), (&links, "bad")] {
            let error = of(dir, kind).unwrap_err();
            let Error::System { source, .. } = &error else { panic!("{error:?}") };
            assert!(owned::is_untrusted(source), "{source}");
        }
        assert!(matches!(find(&open, "mine"), Err(Error::System { .. })));
        // The target of the link is executed, under the name of the link.
        assert_eq!(of(&links, "good").unwrap(), (links.join("good"), closed.join("plugin")));
        assert!(matches!(of(&links, "none"), Err(Error::NoPlugin { .. })));
    }

    #[test]
    fn the_address_is_that_of_the_first_interface_inside() {
        let ip = |number: Option<u32>, address: &str| match number {
            Some(number) => json!({ "interface": number, "address": address }),
            None => json!({ "address": address }),
        };
        let interfaces = json!([
            { "name": "bridge" },
            { "name": "eth1", "sandbox": "/x" },
            { "name": "eth0", "sandbox": "/x" },
            { "name": "dummy", "sandbox": "/x" }
        ]);
        let of = |interfaces: &Value, ips: Vec<Value>| {
            let found = status(&json!({ "interfaces": interfaces, "ips": ips }))?;
            Some((found.interface, found.address?.to_string()))
        };
        let v6 = |ips: Vec<Value>| {
            status(&json!({ "interfaces": interfaces, "ips": ips })).unwrap().address_ipv6.map(|ip| ip.to_string())
        };
        let is = |interface: &str, address: &str| Some((interface.to_owned(), address.to_owned()));
        let all = vec![ip(Some(0), "10.0.0.1/8"), ip(Some(1), "10.0.0.9/8"), ip(Some(2), "10.0.0.2/8")];
        assert_eq!(of(&interfaces, all), is("eth0", "10.0.0.2"));
        let both = vec![ip(Some(2), "fd00::2/64"), ip(Some(2), "10.0.0.2/8")];
        assert_eq!((of(&interfaces, both.clone()), v6(both)), (is("eth0", "10.0.0.2"), Some("fd00::2".to_owned())));
        assert_eq!(v6(vec![ip(Some(2), "fd00::2/64")]), Some("fd00::2".to_owned()));
        assert_eq!(v6(vec![ip(Some(0), "fd00::1/64"), ip(Some(2), "10.0.0.2/8")]), None, "the bridge's");
        assert_eq!(of(&interfaces, vec![ip(Some(2), "fd00::2/64")]), is("eth0", "fd00::2"));
        assert_eq!(of(&interfaces, vec![ip(Some(0), "10.0.0.1/8")]), is("bridge", "10.0.0.1"));
        assert_eq!(of(&json!([]), vec![ip(None, "10.0.0.3/8")]), is("eth0", "10.0.0.3"));
        assert_eq!(of(&interfaces, Vec::new()), None);
    }
}
