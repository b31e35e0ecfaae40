//! `--config`: what a Nomad agent's configuration says about the machine, in the agent's syntax.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::ValueEnum as _;
use tokio_rustls::TlsAcceptor;

use super::level::Level;
use super::log::Least;
use super::{given_networks, given_volumes, networks, volumes};
use crate::agent::model::Role;
use crate::alloc::{HostNetworks, HostVolumes};
use crate::driver::hclspec::Body;
use crate::http::tls::TlsFiles;
use crate::jobspec::config::{self, Member, Node, Variables};
use crate::jobspec::{self, Diagnostic, Value, did_you_mean};
use crate::net::{Networks, Subnet, Subnets};
use crate::spec::Pos;
use crate::spec::collections::BTreeMap;

/// Most mistakes of all files that are reported.
const MOST_SAID: usize = 20;
/// Most files that are read of one directory.
const MOST_FILES: usize = 1000;

const TOP: [&str; 8] = ["advertise", "api", "client", "isolation_minimum", "log_level", "plugin", "plugin_dir", "tls"];
const ADVERTISE: [&str; 1] = ["http"];
const API: [&str; 4] = ["socket_group", "socket_role", "submit_drivers", "submit_volumes"];
const TLS: [&str; 5] = ["ca_file", "cert_file", "http", "key_file", "verify_https_client"];
const CLIENT: [&str; 10] = [
    "bridge_network_subnet",
    "bridge_network_subnet_ipv6",
    "cni_config_dir",
    "cni_path",
    "host_network",
    "host_volume",
    "host_volume_plugin_dir",
    "host_volumes_dir",
    "meta",
    "options",
];
const OPTIONS: [&str; 1] = ["env.denylist"];
const HOST_VOLUME: [&str; 2] = ["path", "read_only"];
const HOST_NETWORK: [&str; 2] = ["cidr", "interface"];
const PLUGIN: [&str; 2] = ["args", "config"];

/// The operator's configuration of this machine, from files and the command line.
#[derive(Debug, Clone, Default)]
pub(super) struct Config {
    pub(super) volumes: Vec<given_volumes::Given>,
    /// The directory in which plugins put dynamic host volumes.
    pub(super) volumes_dir: Option<PathBuf>,
    /// The directory of these plugins.
    pub(super) volume_plugin_dir: Option<PathBuf>,
    pub(super) networks: Vec<given_networks::Given>,
    subnet: Option<Subnet>,
    subnet_ipv6: Option<Subnet>,
    /// The directory of the CNI networks of mode `cni/NAME`.
    cni_config_dir: Option<PathBuf>,
    /// The directories of CNI plugins, if they are not the usual ones.
    cni_path: Option<given_networks::Dirs>,
    pub(super) meta: BTreeMap<String, String>,
    /// The variables of the environment that tasks without isolation do not inherit, if they are not the usual ones.
    pub(super) env_denylist: Option<Vec<String>>,
    /// The configuration of drivers by name.
    pub(super) plugins: BTreeMap<String, Plugin>,
    /// The directory of driver plugins.
    pub(super) plugin_dir: Option<PathBuf>,
    pub(super) isolation_minimum: Option<Level>,
    /// Who may do what over the agent's API.
    pub(super) api: Access,
    /// The files of `tls`, if it is on for the API.
    pub(super) tls: Tls,
    /// `host` or `host:port`, by which others reach the agent's API.
    pub(super) advertise: Option<String>,
    pub(super) log_level: Option<Least>,
}

impl Config {
    /// The settings for networks of groups: what is not configured stays as usual.
    pub(super) fn networks(&self, usual: Networks) -> Networks {
        Networks {
            config_dir: self.cni_config_dir.clone().unwrap_or(usual.config_dir),
            plugin_dirs: self.cni_path.clone().map_or(usual.plugin_dirs, given_networks::Dirs::into),
            subnets: Subnets { v4: self.subnet.unwrap_or(usual.subnets.v4), v6: self.subnet_ipv6.or(usual.subnets.v6) },
            ..usual
        }
    }
}

/// An `api` block.
#[derive(Debug, Clone, Default)]
pub(super) struct Access {
    pub(super) socket_group: Option<String>,
    pub(super) socket_role: Option<Role>,
    pub(super) submit_drivers: Option<Vec<String>>,
    pub(super) submit_volumes: Option<Vec<String>>,
}

/// A `tls` block.
#[derive(Debug, Clone, Default)]
pub(super) struct Tls {
    http: bool,
    verify_https_client: bool,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    pos: Pos,
}

impl Tls {
    /// What a listener on TCP does with a connection; `None` where it speaks no TLS.
    ///
    /// # Errors
    /// A file that is missing or wrong.
    pub(super) fn acceptor(&self) -> anyhow::Result<Option<TlsAcceptor>> {
        if !self.http {
            return Ok(None);
        }
        let given = |file: &Option<PathBuf>, key: &str| {
            file.clone().with_context(|| format!("{}: tls has http = true and no {key}; name the file", self.pos))
        };
        let files = TlsFiles {
            certificate: given(&self.cert_file, "cert_file")?,
            key: given(&self.key_file, "key_file")?,
            client_ca: self.verify_https_client.then(|| given(&self.ca_file, "ca_file")).transpose()?,
        };
        files.acceptor().map(Some).with_context(|| format!("{}: tls", self.pos))
    }
}

/// A `plugin` block.
#[derive(Debug, Clone)]
pub(super) struct Plugin {
    pub(super) body: Body,
    /// The keys that it contains.
    pub(super) keys: Vec<String>,
    /// Arguments of the plugin's program; built-in drivers have none.
    pub(super) args: Vec<OsString>,
    pub(super) pos: Pos,
}

/// A [`Config`] whose directories are open, and whose networks have addresses.
#[derive(Debug)]
pub(super) struct Operator {
    pub(super) config: Config,
    /// The volumes as they were given.
    pub(super) given: Vec<given_volumes::Given>,
    pub(super) volumes: HostVolumes,
    pub(super) networks: HostNetworks,
}

impl Operator {
    /// Reads the files, which the command line overrides, and looks up the directories and networks that they name.
    ///
    /// # Errors
    /// As [`read`]; a directory or network that does not exist.
    pub(super) fn find(
        files: &[PathBuf],
        given: &[given_volumes::Given],
        host_networks: &[given_networks::Given],
    ) -> anyhow::Result<Operator> {
        let config = read(files)?;
        let given = [&config.volumes, given].concat();
        let volumes = volumes::open(&given)?;
        let networks = networks::networks(&[&config.networks, host_networks].concat())?;
        Ok(Operator { config, given, volumes, networks })
    }
}

/// Reads all files: each named file, and of a directory those that end with `.hcl` or `.json`, in the order of their names. A
/// later setting is added to an earlier one, or overrides it.
///
/// # Errors
/// Every mistake of all files, with its position.
pub(super) fn read(paths: &[PathBuf]) -> anyhow::Result<Config> {
    let (mut config, mut problems) = (Config::default(), Vec::new());
    for path in files(paths)? {
        let text = jobspec::read_file(&path).with_context(|| format!("--config: cannot read {}", path.display()))?;
        match config::parse(&path, &text) {
            Ok(node) => Reader { config: &mut config, problems: &mut problems }.file(&node),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() {
        return Ok(config);
    }
    let more = problems.len().saturating_sub(MOST_SAID);
    let mut told: Vec<String> = problems.iter().take(MOST_SAID).map(ToString::to_string).collect();
    if more > 0 {
        told.push(format!("{more} more mistakes are not shown"));
    }
    bail!("{}", told.join("\n"));
}

fn files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let context = || format!("--config: cannot read the directory {}", path.display());
        let mut found = Vec::new();
        for entry in std::fs::read_dir(path).with_context(context)? {
            let entry = entry.with_context(context)?.path();
            if entry.extension().is_some_and(|end| end == "hcl" || end == "json") && entry.is_file() {
                found.push(entry);
            }
            if found.len() > MOST_FILES {
                bail!("--config: {} has more than {MOST_FILES} files; name those that count", path.display());
            }
        }
        found.sort();
        files.extend(found);
    }
    Ok(files)
}

struct Reader<'a> {
    config: &'a mut Config,
    problems: &'a mut Vec<Diagnostic>,
}

/// An absolute path.
fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err("it must be absolute".to_owned()) }
}

/// The bodies of a block that may occur any number of times: one, or a list.
fn bodies(node: &Node) -> Vec<&Node> {
    node.items().map_or_else(|| vec![node], |items| items.iter().collect())
}

impl Reader<'_> {
    fn wrong(&mut self, pos: &Pos, message: impl Into<String>) {
        self.problems.push(Diagnostic::new(pos, message));
    }

    /// The members of all bodies of a block without labels; each name must be among `known`.
    fn members<'n>(&mut self, what: &str, node: &'n Node, known: &[&str]) -> Vec<&'n Member> {
        let mut members = Vec::new();
        for body in bodies(node) {
            let Some(inner) = body.members() else {
                self.wrong(&body.pos, format!("{what} is a block; write {what} {{ ... }}"));
                continue;
            };
            for member in inner {
                if known.contains(&&*member.name) {
                    members.push(member);
                } else {
                    let hint = did_you_mean(&member.name, known.iter().copied());
                    let words = known.join(", ");
                    let message = format!("unsupported key \"{}\" in {what}{hint}; known are {words}", member.name);
                    self.wrong(&member.pos, message);
                }
            }
        }
        members
    }

    /// The bodies of a block with one label, each with its label.
    fn labelled<'n>(&mut self, what: &str, node: &'n Node) -> Vec<(&'n Member, &'n Node)> {
        let mut found = Vec::new();
        for entry in bodies(node) {
            match entry.members() {
                Some(members) => {
                    found.extend(members.iter().flat_map(|m| bodies(&m.node).into_iter().map(move |b| (m, b))));
                }
                None => {
                    self.wrong(&entry.pos, format!("{what} takes a name and a body; write {what} \"NAME\" {{ ... }}"));
                }
            }
        }
        found
    }

    fn value<T>(&mut self, member: &Member, needed: &str, read: impl FnOnce(&Value) -> Option<T>) -> Option<T> {
        match member.node.eval(&Variables::default()) {
            Ok(value) => {
                let found = read(&value);
                if found.is_none() {
                    self.wrong(&member.pos, format!("\"{}\" must be {needed}", member.name));
                }
                found
            }
            Err(problem) => {
                self.problems.push(problem);
                None
            }
        }
    }

    fn text(&mut self, member: &Member) -> Option<String> {
        self.value(member, "a string", Value::to_text)
    }

    fn file(&mut self, node: &Node) {
        for member in self.members("the configuration", node, &TOP) {
            match &*member.name {
                "client" => self.client(&member.node),
                "plugin" => {
                    for (label, body) in self.labelled("plugin", &member.node) {
                        self.plugin(label, body);
                    }
                }
                "plugin_dir" => {
                    let dir = self.text(member).map(PathBuf::from);
                    if dir.as_ref().is_some_and(|dir| !dir.is_absolute()) {
                        self.wrong(&member.pos, "\"plugin_dir\" must be absolute");
                    }
                    self.config.plugin_dir = dir.or(self.config.plugin_dir.take());
                }
                "api" => self.api(&member.node),
                "tls" => self.tls(member),
                "advertise" => {
                    for member in self.members("advertise", &member.node, &ADVERTISE) {
                        self.config.advertise = self.text(member);
                    }
                }
                "log_level" => {
                    let level = |value: &Value| Least::from_str(&value.to_text()?, true).ok();
                    self.config.log_level = self.value(member, "\"debug\", \"info\", \"warn\" or \"error\"", level);
                }
                _ => {
                    let level = |value: &Value| match value.to_text()?.as_str() {
                        "default" => Some(Level::Default),
                        "strict" => Some(Level::Strict),
                        _ => None,
                    };
                    let read = self.value(member, "\"default\" or \"strict\"", level);
                    self.config.isolation_minimum = Level::stricter(self.config.isolation_minimum, read);
                }
            }
        }
    }

    fn api(&mut self, node: &Node) {
        for member in self.members("api", node, &API) {
            match &*member.name {
                "socket_group" => self.config.api.socket_group = self.text(member),
                "socket_role" => {
                    let role = |value: &Value| Role::parse(&value.to_text()?);
                    self.config.api.socket_role = self.value(member, "\"read\", \"submit\" or \"manage\"", role);
                }
                "submit_drivers" => self.config.api.submit_drivers = self.words(member),
                _ => self.config.api.submit_volumes = self.words(member),
            }
        }
    }

    fn tls(&mut self, block: &Member) {
        self.config.tls.pos = block.pos.clone();
        for member in self.members("tls", &block.node, &TLS) {
            match &*member.name {
                "http" => {
                    self.config.tls.http = self.value(member, "true or false", Value::to_bool).unwrap_or(false);
                }
                "verify_https_client" => {
                    let verify = self.value(member, "true or false", Value::to_bool);
                    self.config.tls.verify_https_client = verify.unwrap_or(false);
                }
                name => {
                    let file = self.text(member).map(PathBuf::from);
                    if file.as_ref().is_some_and(|file| !file.is_absolute()) {
                        self.wrong(&member.pos, format!("\"{name}\" must be absolute"));
                    }
                    let tls = &mut self.config.tls;
                    match name {
                        "cert_file" => tls.cert_file = file,
                        "key_file" => tls.key_file = file,
                        _ => tls.ca_file = file,
                    }
                }
            }
        }
    }

    fn words(&mut self, member: &Member) -> Option<Vec<String>> {
        let words = |value: &Value| match value {
            Value::List(words) => words.iter().map(Value::to_text).collect::<Option<Vec<_>>>(),
            _ => None,
        };
        self.value(member, "a list of strings", words)
    }

    fn client(&mut self, node: &Node) {
        for member in self.members("client", node, &CLIENT) {
            match &*member.name {
                "host_volume" => {
                    for (label, body) in self.labelled("host_volume", &member.node) {
                        self.host_volume(label, body);
                    }
                }
                "host_network" => {
                    for (label, body) in self.labelled("host_network", &member.node) {
                        self.host_network(label, body);
                    }
                }
                "meta" => {
                    for body in bodies(&member.node) {
                        for entry in body.members().unwrap_or_default() {
                            if let Some(text) = self.text(entry) {
                                self.config.meta.insert(entry.name.clone(), text);
                            }
                        }
                        if body.members().is_none() {
                            self.wrong(&body.pos, "meta is a block; write meta { NAME = \"VALUE\" }");
                        }
                    }
                }
                "options" => {
                    for option in self.members("options", &member.node, &OPTIONS) {
                        let names = self.text(option).unwrap_or_default();
                        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
                        self.config.env_denylist = Some(names.map(str::to_owned).collect());
                    }
                }
                "host_volumes_dir" => self.config.volumes_dir = self.parsed(member, absolute),
                "host_volume_plugin_dir" => self.config.volume_plugin_dir = self.parsed(member, absolute),
                "cni_config_dir" => self.config.cni_config_dir = self.parsed(member, absolute),
                "cni_path" => self.config.cni_path = self.parsed(member, given_networks::dirs),
                "bridge_network_subnet" => self.config.subnet = self.parsed(member, Subnet::v4),
                _ => self.config.subnet_ipv6 = self.parsed(member, Subnet::v6),
            }
        }
    }

    /// The value of a key as `parse` reads it. An empty one counts as not given, as with Nomad.
    fn parsed<T>(&mut self, member: &Member, parse: fn(&str) -> Result<T, String>) -> Option<T> {
        let text = self.text(member).filter(|text| !text.is_empty())?;
        let parsed = parse(&text);
        parsed.map_err(|why| self.wrong(&member.pos, format!("{} {text:?}: {why}", member.name))).ok()
    }

    fn host_volume(&mut self, label: &Member, body: &Node) {
        let (mut path, mut read_only) = (None, false);
        for member in self.members("host_volume", body, &HOST_VOLUME) {
            match &*member.name {
                "path" => path = self.text(member),
                _ => read_only = self.value(member, "true or false", Value::to_bool).unwrap_or(false),
            }
        }
        match path {
            Some(path) if Path::new(&path).is_absolute() => {
                let origin = format!("{}: host_volume {:?}", label.pos, label.name);
                let given = given_volumes::Given { name: label.name.clone(), path: path.into(), read_only, origin };
                self.config.volumes.push(given);
            }
            Some(path) => {
                let message = format!("the path \"{path}\" of host_volume \"{}\" must be absolute", label.name);
                self.wrong(&label.pos, message);
            }
            None => {
                self.wrong(&label.pos, format!("host_volume \"{}\" has no path; write path = \"/...\"", label.name));
            }
        }
    }

    fn host_network(&mut self, label: &Member, body: &Node) {
        let (mut cidr, mut interface) = (None, None);
        for member in self.members("host_network", body, &HOST_NETWORK) {
            let text = self.text(member);
            match &*member.name {
                "cidr" => cidr = text.filter(|text| !text.is_empty()),
                _ => interface = text.filter(|text| !text.is_empty()),
            }
        }
        match given_networks::Given::configured(&label.name, interface, cidr) {
            Ok(given) => self.config.networks.push(given),
            Err(why) => self.wrong(&label.pos, format!("host_network \"{}\": {why}", label.name)),
        }
    }

    fn plugin(&mut self, label: &Member, body: &Node) {
        let (mut config, mut args, pos) = (config::empty(), Vec::new(), label.pos.clone());
        for member in self.members("plugin", body, &PLUGIN) {
            if member.name == "args" {
                args = self.words(member).unwrap_or_default().into_iter().map(OsString::from).collect();
                continue;
            }
            let found = bodies(&member.node);
            match found.as_slice() {
                [one] if one.members().is_some() => config = (*one).clone(),
                _ => self.wrong(&member.pos, "config is one block; write config { ... }"),
            }
        }
        let keys = config.members().unwrap_or_default().iter().map(|member| member.name.clone()).collect();
        self.config.plugins.insert(label.name.clone(), Plugin { body: Body::of_node(config), keys, args, pos });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> anyhow::Result<Config> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("agent.hcl");
        std::fs::write(&file, text).unwrap();
        read(&[file])
    }

    #[test]
    fn an_agents_words_are_read_in_hcl_and_json() {
        let hcl = "client {\n host_volume \"data\" {\n path = \"/srv/data\"\n read_only = true\n }\n \
                   host_volume \"own[0]\" { path = \"/srv/own\" }\n host_network \"lan\" { interface = \"lo\" }\n \
                   meta {\n rack = \"7\"\n }\n cni_path = \"/opt/cni/bin:/usr/lib/cni\"\n \
                   cni_config_dir = \"/etc/cni/net.d\"\n options = {\n \"env.denylist\" = \"PASSWORD, KEY\"\n }\n \
                   bridge_network_subnet = \"\"\n bridge_network_subnet_ipv6 = \"fd00:7::/64\"\n}\n\
                   plugin \"docker\" {\n config {\n allow_privileged = true\n volumes { enabled = true }\n }\n}\n\
                   isolation_minimum = \"strict\"\n";
        let json = r#"{"client": {"host_volume": {"data": {"path": "/srv/data", "read_only": true},
            "own[0]": [{"path": "/srv/own"}]}, "host_network": [{"lan": {"interface": "lo"}}],
            "meta": {"rack": 7}, "cni_path": "/opt/cni/bin:/usr/lib/cni",
            "cni_config_dir": "/etc/cni/net.d", "options": [{"env.denylist": "PASSWORD,KEY"}], "bridge_network_subnet": "",
            "bridge_network_subnet_ipv6": "fd00:7::/64"},
            "plugin": [{"docker": [{"config": [{"allow_privileged": true, "volumes": {"enabled": true}}]}]}],
            "isolation_minimum": "strict"}"#;
        for text in [hcl, json] {
            let config = config(text).unwrap();
            let volumes: Vec<_> =
                config.volumes.iter().map(|v| (&*v.name, v.path.to_str().unwrap(), v.read_only)).collect();
            assert_eq!(volumes, [("data", "/srv/data", true), ("own[0]", "/srv/own", false)]);
            assert_eq!(config.networks.len(), 1);
            assert_eq!(config.meta["rack"], "7");
            assert_eq!(config.env_denylist.as_deref(), Some(&["PASSWORD".to_owned(), "KEY".to_owned()][..]));
            assert_eq!(config.plugins["docker"].keys, ["allow_privileged", "volumes"]);
            assert_eq!(config.isolation_minimum, Some(Level::Strict));
            let usual = Subnets { v4: Subnet::DEFAULT, v6: None };
            let v6 = Subnet::v6("fd00:7::/64").ok();
            let networks = config.networks(Networks { subnets: usual, ..Networks::new(PathBuf::new()) });
            assert_eq!(networks.subnets, Subnets { v6, ..usual });
            assert_eq!(networks.plugin_dirs, [Path::new("/opt/cni/bin"), Path::new("/usr/lib/cni")]);
            assert_eq!(networks.config_dir, Path::new("/etc/cni/net.d"));
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_the_words_that_exist() {
        for (text, line, why) in [
            (
                "client {\n host_volumes \"x\" { path = \"/\" }\n}",
                2,
                "(did you mean \"host_volume\"?); known are bridge_network_subnet, bridge_network_subnet_ipv6",
            ),
            ("server { enabled = true }", 1, "unsupported key \"server\" in the configuration; known are advertise"),
            ("api {\n socket_role = \"root\"\n}", 2, "must be \"read\", \"submit\" or \"manage\""),
            ("api {\n submit_drivers = \"exec\"\n}", 2, "a list of strings"),
            ("tls {\n http = true\n cert_file = \"a.pem\"\n}", 3, "must be absolute"),
            ("tls {\n rpc = true\n}", 2, "known are ca_file"),
            ("log_level = \"loud\"", 1, "must be \"debug\""),
            ("client {\n host_volume \"x\" { path = \"srv\" }\n}", 2, "must be absolute"),
            ("client {\n options = {\n \"driver.allowlist\" = \"exec\"\n}\n}", 3, "known are env.denylist"),
            ("client {\n cni_config_dir = \"net.d\"\n}", 2, "cni_config_dir \"net.d\": it must be absolute"),
            ("client {\n cni_path = \"/opt/cni/bin:lib\"\n}", 2, "cni_path \"/opt/cni/bin:lib\": write it as DIR:DIR"),
            ("client {\n host_volume \"x\" {\n readonly = true\n}\n}", 3, "did you mean \"read_only\"?"),
            ("client {\n\n host_volume \"x\" { }\n}", 3, "has no path"),
            ("client {\n host_volumes_dir = \"srv\"\n}", 2, "host_volumes_dir \"srv\": it must be absolute"),
            (
                "client {\n host_volume_plugin_dir = \"srv\"\n}",
                2,
                "host_volume_plugin_dir \"srv\": it must be absolute",
            ),
            ("client = 3", 1, "client is a block"),
            ("client {\n host_volume \"x\" { path = [1] }\n}", 2, "\"path\" must be a string"),
            ("client {\n host_network \"x\" { cidr = \"10.0.0\" }\n}", 2, "cidr"),
            ("client {\n host_network \"x\" { }\n}", 2, "interface or cidr"),
            ("client {\n bridge_network_subnet = \"10.0.0.1/24\"\n}", 2, "\"10.0.0.1/24\": the network is 10.0.0.0/24"),
            ("client {\n bridge_network_subnet_ipv6 = \"10.0.0.0/24\"\n}", 2, "an IPv6 network"),
            ("isolation_minimum = \"high\"", 1, "must be \"default\" or \"strict\""),
            ("plugin \"exec\" {\n resources = []\n}", 2, "known are args, config"),
            ("plugin \"exec\" {\n args = \"x\"\n}", 2, "a list of strings"),
            ("client {", 1, ""),
        ] {
            let error = config(text).unwrap_err().to_string();
            assert!(error.contains(&format!("agent.hcl:{line}: ")) && error.contains(why), "{text}: {error}");
        }
        let two = config("client { x = 1 }\nserver { }\n").unwrap_err().to_string();
        assert_eq!(two.lines().count(), 2, "all at once: {two}");
    }

    #[test]
    fn what_the_agents_api_is_told_is_read() {
        let text = "api {\n socket_group = \"ops\"\n socket_role = \"read\"\n submit_drivers = [\"exec\"]\n \
                    submit_volumes = [\"data\"]\n}\nadvertise { http = \"box.example:4646\" }\nlog_level = \"DEBUG\"\n\
                    tls {\n http = true\n cert_file = \"/none/cert.pem\"\n}\n";
        let config = config(text).unwrap();
        assert_eq!((config.api.socket_group.as_deref(), config.api.socket_role), (Some("ops"), Some(Role::Read)));
        assert_eq!(config.api.submit_drivers, Some(vec!["exec".to_owned()]));
        assert_eq!(config.api.submit_volumes, Some(vec!["data".to_owned()]));
        assert_eq!((config.advertise.as_deref(), config.log_level), (Some("box.example:4646"), Some(Least::Debug)));
        let error = format!("{:#}", config.tls.acceptor().map(drop).unwrap_err());
        assert!(error.contains("agent.hcl:9") && error.contains("no key_file"), "{error}");
        assert!(Tls::default().acceptor().unwrap().is_none());
    }

    #[test]
    fn a_directory_is_read_in_the_order_of_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("b.hcl", "client {\n meta { a = \"b\" }\n}");
        write("a.json", r#"{"client": {"meta": {"a": "a", "c": "a"}}}"#);
        write("c.txt", "nonsense {");
        let config = read(&[dir.path().to_owned()]).unwrap();
        assert_eq!((config.meta["a"].as_str(), config.meta["c"].as_str()), ("b", "a"));
        assert!(format!("{:#}", read(&[dir.path().join("none")]).unwrap_err()).contains("cannot read"));
    }
}
