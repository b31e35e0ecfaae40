//! A written job becomes the API's JSON: what the file says and nothing else, as `nomad job run -output` writes it.

use serde_json::{Map, Value as Json};

use super::free;
use super::types::{self, Field, Kind, Type};
use crate::jobspec::ast::Attr;
use crate::jobspec::duration;
use crate::jobspec::scheduling::check_scaling;
use crate::jobspec::schema;
use crate::jobspec::section::{Expanded, Section, Sink};
use crate::jobspec::value::{Number, Value};
use crate::spec::json::json;

type Object = Map<String, Json>;

/// What a block has where its file leaves it out, although nothing else has a value then.
fn parsed_defaults(name: &str) -> Vec<(&'static str, Json)> {
    match name {
        "ChangeScript" => {
            vec![("Args", json!([])), ("Timeout", json!(5_000_000_000_i64)), ("FailOnError", json!(false))]
        }
        "Template" => vec![
            ("ChangeMode", json!("restart")),
            ("Splay", json!(5_000_000_000_i64)),
            ("Perms", json!("0644")),
            ("ErrMissingKey", json!(false)),
        ],
        "Vault" => vec![("Env", json!(true)), ("DisableFile", json!(false)), ("ChangeMode", json!("restart"))],
        _ => Vec::new(),
    }
}

/// Keys that a block must have, as the parser of job files wants it.
const REQUIRED: [(&str, &str); 2] = [("TaskLifecycle", "hook"), ("Action", "command")];

/// Writes down one job; what is wrong has been reported to the sink.
pub(super) fn job(block: &Expanded<'_>, native: bool, sink: &Sink) -> Object {
    let label = block.labels.first().cloned().unwrap_or_default();
    let section = Section::unchecked(format!("job \"{label}\""), block, sink);
    section.check_refused(&schema::JOB);
    if sink.has_errors() {
        return Object::new();
    }
    let writer = Writer { native, sink };
    let mut job = writer.body(&section, types::of("Job"), None);
    for field in ["ID", "Name"] {
        if job.get(field).is_none_or(Json::is_null) {
            job.insert(field.to_owned(), Json::from(label.as_str()));
        }
    }
    writer.groups(&section, &mut job);
    job
}

struct Writer<'s> {
    native: bool,
    sink: &'s Sink,
}

impl<'s> Writer<'s> {
    fn inner<'x>(&self, around: &Section<'_>, block: &Expanded<'x>) -> Section<'x>
    where
        's: 'x,
    {
        Section::unchecked(format!("{} of {}", block.kind, around.name), block, self.sink)
    }

    /// A body as an object of a type.
    fn body(&self, section: &Section<'_>, of: &'static Type, label: Option<&str>) -> Object {
        let mut out = of.empty();
        for field in &of.fields {
            let value = match (field.written, label) {
                (Some(key), _) => self.field(section, field, key),
                (None, Some(label)) if field.is_label => Some(Json::from(label)),
                (None, _) => None,
            };
            if let Some(value) = value {
                out.insert(field.name.to_owned(), value);
            }
        }
        for (name, default) in parsed_defaults(of.name) {
            if out.get(name).is_none_or(Json::is_null) {
                out.insert(name.to_owned(), default);
            }
        }
        for (_, key) in REQUIRED.iter().filter(|(name, _)| *name == of.name) {
            if section.attr(key).is_none() {
                section.error(section.pos, format!("{} has no {key}; add {key} = \"...\"", section.name));
            }
        }
        match of.name {
            "Constraint" => constraint(section, &mut out),
            "Affinity" => affinity(section, &mut out),
            "PeriodicConfig" if section.attr("cron").is_some() || section.attr("crons").is_some() => {
                out.insert("SpecType".to_owned(), Json::from("cron"));
            }
            "TaskGroup" => group(section, &mut out),
            "Task" => task(section, &mut out),
            _ => {}
        }
        out
    }

    /// What a field is set to; `None` where nothing was written.
    fn field(&self, section: &Section<'_>, field: &Field, key: &str) -> Option<Json> {
        match field.kind {
            Kind::One(of) => {
                let block = section.blocks_of(key).next()?;
                let label = block.labels.first().map(String::as_str);
                Some(Json::Object(self.body(&self.inner(section, block), types::of(of), label)))
            }
            Kind::Many(of) => {
                let mut blocks = section.blocks_of(key).peekable();
                blocks.peek()?;
                let object = |block: &Expanded<'_>| {
                    let label = block.labels.first().map(String::as_str);
                    Json::Object(self.body(&self.inner(section, block), types::of(of), label))
                };
                Some(Json::Array(blocks.map(object).collect()))
            }
            Kind::Named(of) => {
                let mut blocks = section.blocks_of(key).peekable();
                blocks.peek()?;
                let mut out = Object::new();
                for block in blocks {
                    let label = block.labels.first().cloned().unwrap_or_default();
                    let object = self.body(&self.inner(section, block), types::of(of), Some(&label));
                    out.insert(label, Json::Object(object));
                }
                out.sort_keys();
                Some(Json::Object(out))
            }
            Kind::Any => section.blocks_of(key).next().map(|b| Json::Object(free::body(b, self.native, self.sink))),
            Kind::Lists => section.blocks_of(key).next().map(|block| self.lists(section, block)),
            Kind::Strings => {
                let attr = section.attr(key).filter(|a| section.eval(&a.value).is_some_and(|v| v != Value::Null));
                if attr.is_none() && section.blocks_of(key).next().is_none() {
                    return None;
                }
                let strings = section.strings(key);
                Some(Json::Object(strings.into_iter().map(|(k, v)| (k, Json::from(v))).collect()))
            }
            _ => {
                let attr = section.attr(key)?;
                let value = section.eval(&attr.value)?;
                (value != Value::Null).then(|| scalar(section, field, attr, &value)).flatten()
            }
        }
    }

    /// Lists of strings by name.
    fn lists(&self, around: &Section<'_>, block: &Expanded<'_>) -> Json {
        let section = self.inner(around, block);
        let mut out = Object::new();
        for attr in section.attrs() {
            let texts = section.texts(&attr.name).unwrap_or_default();
            out.insert(attr.name.clone(), Json::from(texts));
        }
        out.sort_keys();
        Json::Object(out)
    }

    /// What stands at job and group and belongs to tasks: tasks of the job, `vault` and `secret`.
    fn groups(&self, section: &Section<'_>, job: &mut Object) {
        let lone = section.blocks_of("task").map(|block| {
            let label = block.labels.first().cloned().unwrap_or_default();
            let task = self.body(&self.inner(section, block), types::of("Task"), Some(&label));
            let mut group = types::of("TaskGroup").empty();
            group.insert("Name".to_owned(), Json::from(label));
            group.insert("Tasks".to_owned(), json!([task]));
            Json::Object(group)
        });
        let mut groups: Vec<Json> = lone.collect();
        let alone = groups.len();
        if let Some(Json::Array(written)) = job.get_mut("TaskGroups") {
            groups.append(written);
        }
        let of_job = self.inherited(section);
        for (group, block) in groups[alone..].iter_mut().zip(section.blocks_of("group")) {
            self.inherited(&self.inner(section, block)).give(group);
        }
        for group in &mut groups {
            of_job.give(group);
        }
        if !groups.is_empty() {
            job.insert("TaskGroups".to_owned(), Json::Array(groups));
        }
    }

    fn inherited(&self, section: &Section<'_>) -> Inherited {
        let vault = section.blocks_of("vault").next();
        let vault = vault.map(|b| Json::Object(self.body(&self.inner(section, b), types::of("Vault"), None)));
        let secrets = section.blocks_of("secret").map(|block| {
            let label = block.labels.first().map(String::as_str);
            Json::Object(self.body(&self.inner(section, block), types::of("Secret"), label))
        });
        Inherited { vault, secrets: secrets.collect() }
    }
}

/// What of a task depends on several of its keys.
fn task(section: &Section<'_>, task: &mut Object) {
    let with_ports = task.get_mut("Resources").and_then(|r| r.get_mut("Networks"));
    split_ports(with_ports);
    take_default_identity(task);
    let policies = task.get_mut("ScalingPolicies").and_then(Json::as_array_mut);
    for (policy, block) in policies.into_iter().flatten().zip(section.blocks_of("scaling")) {
        let kind = match block.labels.first().map(|label| label.to_lowercase()).as_deref() {
            Some("cpu") => "vertical_cpu",
            Some("mem") => "vertical_mem",
            _ => {
                section.error(block.pos, "scaling policy name must be \"cpu\" or \"mem\"; use one of them");
                continue;
            }
        };
        let given = policy["Type"].as_str().unwrap_or_default();
        if !given.is_empty() && given != kind {
            let message =
                format!("Invalid scaling policy type: expected \"{kind}\" but found \"{given}\"; remove type");
            section.error(block.pos, message);
        }
        policy["Type"] = Json::from(kind);
    }
    check_scaling(section);
}

/// What of a group does.
fn group(section: &Section<'_>, group: &mut Object) {
    split_ports(group.get_mut("Networks"));
    if let (Some(policy), Some(block)) =
        (group.get_mut("Scaling").filter(|s| s.is_object()), section.blocks_of("scaling").next())
    {
        let given = policy["Type"].as_str().unwrap_or_default();
        if !matches!(given, "" | "horizontal") {
            let message = format!("task group scaling policy had invalid type: \"{given}\"; remove type");
            section.error(block.pos, message);
        }
        if policy["Max"].is_null() {
            let message = format!("the argument \"max\" is required in scaling of {}; add max = ...", section.name);
            section.error(block.pos, message);
        }
        policy["Type"] = Json::from("horizontal");
    }
}

/// What tasks have from the job or group around them.
struct Inherited {
    vault: Option<Json>,
    secrets: Vec<Json>,
}

impl Inherited {
    fn give(&self, group: &mut Json) {
        for task in group["Tasks"].as_array_mut().into_iter().flatten() {
            if let (Some(vault), true) = (&self.vault, task["Vault"].is_null()) {
                task["Vault"] = vault.clone();
            }
            match &mut task["Secrets"] {
                _ if self.secrets.is_empty() => {}
                Json::Array(own) => own.extend(self.secrets.iter().cloned()),
                none => *none = Json::Array(self.secrets.clone()),
            }
        }
    }
}

/// An argument's value as its field has it.
fn scalar(section: &Section<'_>, field: &Field, attr: &Attr, value: &Value) -> Option<Json> {
    let wrong = |what: &str| {
        section.error(&attr.pos, format!("\"{}\" in {} must be {what}", attr.name, section.name));
        None
    };
    let int = value.to_number().and_then(Number::to_int);
    match field.kind {
        Kind::Text => value.to_text().map(Json::from).or_else(|| wrong("a string")),
        Kind::Flag => value.to_bool().map(Json::from).or_else(|| wrong("true or false")),
        Kind::Int(least, most) => match int {
            Some(int) if (least..=most).contains(&int) => Some(free::json(&Value::int(int))),
            Some(_) => wrong(&format!("between {least} and {most}")),
            None => wrong("a whole number"),
        },
        Kind::Duration => {
            let nanos = match value {
                Value::String(text) => duration::parse_signed(text),
                _ => int.and_then(|i| i64::try_from(i).ok()).ok_or_else(|| "a duration such as \"30s\"".to_owned()),
            };
            nanos.map_or_else(
                |message| wrong(&format!("a duration such as \"30s\": {message}")),
                |n| Some(Json::from(n)),
            )
        }
        Kind::Texts => {
            let texts = value.elements().and_then(|items| items.iter().map(Value::to_text).collect::<Option<Vec<_>>>());
            texts.map(Json::from).or_else(|| wrong("a list of strings"))
        }
        Kind::Ports => {
            let port = |v: &Value| v.to_number().and_then(Number::to_int).and_then(|i| u16::try_from(i).ok());
            let ports = value.elements().and_then(|items| items.iter().map(port).collect::<Option<Vec<_>>>());
            ports.map(Json::from).or_else(|| wrong("a list of ports"))
        }
        _ => None,
    }
}

/// A port with a number of its own is a reserved one.
fn split_ports(networks: Option<&mut Json>) {
    for network in networks.and_then(Json::as_array_mut).into_iter().flatten() {
        let Json::Array(ports) = network["DynamicPorts"].take() else { continue };
        let (reserved, dynamic): (Vec<_>, Vec<_>) =
            ports.into_iter().partition(|p| p["Value"].as_i64().is_some_and(|v| v > 0));
        let list = |ports: Vec<Json>| if ports.is_empty() { Json::Null } else { Json::Array(ports) };
        network["ReservedPorts"] = list(reserved);
        network["DynamicPorts"] = list(dynamic);
    }
}

/// The first identity without a name of its own is the task's identity for Nomad itself.
fn take_default_identity(task: &mut Object) {
    let Some(Json::Array(identities)) = task.get_mut("Identities") else { return };
    let unnamed = |i: &Json| matches!(i["Name"].as_str(), Some("" | "default"));
    if let Some(at) = identities.iter().position(unnamed) {
        let identity = identities.remove(at);
        task.insert("Identity".to_owned(), identity);
    }
}

/// The keys that write operator and value in one, in the order in which later ones win.
fn constraint(section: &Section<'_>, out: &mut Object) {
    shorthand(section, out, &["version", "semver", "regexp", "set_contains"]);
    if let Some(distinct) = section.bool("distinct_hosts") {
        out.insert("Operand".to_owned(), Json::from("distinct_hosts"));
        out.insert("RTarget".to_owned(), Json::from(distinct.to_string()));
    }
    if let Some(property) = section.string("distinct_property").filter(|p| !p.is_empty()) {
        out.insert("Operand".to_owned(), Json::from("distinct_property"));
        out.insert("LTarget".to_owned(), Json::from(property));
    }
    equal_by_default(out);
}

fn affinity(section: &Section<'_>, out: &mut Object) {
    shorthand(section, out, &["version", "semver", "regexp", "set_contains_any", "set_contains_all", "set_contains"]);
    equal_by_default(out);
}

fn shorthand(section: &Section<'_>, out: &mut Object, keys: &[&str]) {
    for key in keys {
        if let Some(value) = section.string(key).filter(|v| !v.is_empty()) {
            out.insert("Operand".to_owned(), Json::from(*key));
            out.insert("RTarget".to_owned(), Json::from(value));
        }
    }
}

fn equal_by_default(out: &mut Object) {
    if out["Operand"].as_str().is_none_or(str::is_empty) {
        out.insert("Operand".to_owned(), Json::from("="));
    }
}
