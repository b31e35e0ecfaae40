//! What comes from outside of a template: variables, files, keys, secrets, services; and the scratch pad.

use std::rc::Rc;

use super::{Any, Function, Reflect, Text, Type, many, name, row, text};
use crate::spec::Order as _;
use crate::spec::collections::BTreeMap;
use crate::template::asked::{self, Ask};
use crate::template::host::{Found, Service, Variable};
use crate::template::types::Exec;
use crate::template::value::{Key, Keyed, Kind, Map, Object, Value, sorted};

type Outcome = Result<Value, String>;

const PAIR: &str = "*dependency.KeyPair";
const HEALTH: &str = "*dependency.HealthService";
const NOMAD: &str = "*dependency.NomadService";
const SNIPPET: &str = "*dependency.CatalogSnippet";

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    row("env", &[Text], |x, a| Ok(Value::text(x.host.env(&name(a, 0)).unwrap_or_default())), "a variable of the task's environment, or `node.*`, `attr.*` or `meta.*` of the node; empty where there is none"),
    row("mustEnv", &[Text], must_env, "as `env`; an error where there is none"),
    row("envOrDefault", &[Text, Text], |x, a| Ok(x.host.env(&name(a, 0)).map_or_else(|| a[1].clone(), Value::text)), "as `env`; the second argument where there is none"),
    row("file", &[Text], file, "a file below the task's directories"),
    row("key", &[Text], key, "the value of a key; waits for it"),
    row("keyExists", &[Text], |x, a| Ok(Value::Bool(matches!(ask_key(x, &name(a, 0))?, Found::Here(_)))), "whether there is a key"),
    row("keyOrDefault", &[Text, Text], key_or_default, "the value of a key, else the second argument"),
    row("ls", &[Text], |x, a| pairs(x, a, true, false), "the keys right below a path, each with `.Key`, `.Value`, `.Path`"),
    row("safeLs", &[Text], |x, a| pairs(x, a, true, true), "as `ls`; waits while there are none"),
    row("tree", &[Text], |x, a| pairs(x, a, false, false), "all keys below a path"),
    row("safeTree", &[Text], |x, a| pairs(x, a, false, true), "as `tree`; waits while there are none"),
    many("secret", &[Text], secret, "a secret, its data in `.Data`; waits for it"),
    row("secrets", &[Text], secrets, "the names of the secrets below a path"),
    row("nomadVar", &[Text], nomad_var, "the items of a variable by name, and `.Keys`, `.Values`, `.Tuples`, `.Metadata`; waits for it"),
    row("nomadVarExists", &[Text], |x, a| Ok(Value::Bool(matches!(ask_variable(x, &path(a))?, Found::Here(_)))), "whether there is a variable"),
    many("nomadVarList", &[Text], |x, a| nomad_vars(x, a, false), "the variables below a path, each with `.Path`"),
    many("nomadVarListSafe", &[Text], |x, a| nomad_vars(x, a, true), "as `nomadVarList`; waits while there are none"),
    many("nomadService", &[Any], nomad_service, "the instances of a service of Nomad's that are not critical, each with `.Address`, `.Port`, `.Tags`, ...; two more arguments choose some of them"),
    many("nomadServices", &[Text], |x, _| services(x), "the services of Nomad's, each with `.Name`, `.Tags`"),
    many("service", &[Text], consul_service, "the instances of a service of Consul's, each with `.Address`, `.Port`, `.Tags`, ..."),
    many("connect", &[Text], consul_service, "as `service`"),
    many("services", &[Text], |x, _| services(x), "the services of Consul's, each with `.Name`, `.Tags`"),
    row("byTag", &[Any], by_tag, "services in lists by tag"),
    row("byPort", &[Any], by_port, "services in lists by port"),
    row("byKey", &[Type::Pairs], by_key, "pairs in maps by the first part of their keys"),
    row("byMeta", &[Text, Type::Services], by_meta, "services in lists by values of metadata"),
    many("node", &[Text], consul, "refused: the nodes of Consul"),
    many("nodes", &[Text], consul, "refused: the nodes of Consul"),
    many("datacenters", &[Reflect], |_, _| Ok(Value::texts(["dc1"])), "the datacenters: the one"),
    many("caRoots", &[Text], consul, "refused: certificates of Consul"),
    many("caLeaf", &[Text], consul, "refused: certificates of Consul"),
    many("pkiCert", &[Text], vault, "refused: certificates of Vault"),
    many("partitions", &[Text], consul, "refused: partitions of Consul"),
    many("peerings", &[Text], consul, "refused: peerings of Consul"),
    many("exportedServices", &[Text], consul, "refused: services of Consul's partitions"),
    many("importedServices", &[Text], consul, "refused: services of Consul's partitions"),
    row("scratch", &[], |_, _| Ok(Value::Scratch), "what the template keeps: `.Key`, `.Get`, `.Set`, `.SetX`, `.MapSet`, `.MapSetX`, `.MapValues`"),
];

fn consul(_: &mut Exec<'_>, _: &[Value]) -> Outcome {
    Err("this asks a Consul agent, and there is none on a machine of its own".to_owned())
}

fn vault(_: &mut Exec<'_>, _: &[Value]) -> Outcome {
    Err("this asks a Vault server to make a certificate; put one into the file of --kv and read it with secret"
        .to_owned())
}

fn must_env(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let name = name(arguments, 0);
    let value = exec.host.env(&name).filter(|value| !value.is_empty());
    value.map(Value::text).ok_or_else(|| format!("required environment variable {name} is empty"))
}

fn file(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    if text(arguments, 0).is_empty() {
        return Ok(Value::text(b""));
    }
    let read = exec.host.file(text(arguments, 0));
    exec.note(Ask::File, &name(arguments, 0), &asked::file(&read))?;
    read.map(Value::text)
}

fn ask_key(exec: &mut Exec<'_>, name: &str) -> Result<Found<String>, String> {
    let found = exec.host.key(name);
    exec.note(Ask::Key, name, &found)?;
    Ok(found)
}

fn ask_variable(exec: &mut Exec<'_>, path: &str) -> Result<Found<Variable>, String> {
    let found = exec.host.variable(path);
    exec.note(Ask::Variable, path, &found)?;
    Ok(found)
}

fn key(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let name = name(arguments, 0);
    if name.is_empty() {
        return Ok(Value::text(b""));
    }
    match ask_key(exec, &name)? {
        Found::Here(value) => Ok(Value::text(value)),
        Found::Missing => {
            exec.miss(format!("kv.block({name})"));
            Ok(Value::text(b""))
        }
    }
}

fn key_or_default(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    match ask_key(exec, &name(arguments, 0))? {
        Found::Here(value) if !value.is_empty() => Ok(Value::text(value)),
        _ => Ok(arguments[1].clone()),
    }
}

fn pair(key: &str, value: &str, prefix: &str) -> Value {
    let path = format!("{}/{key}", prefix.trim_end_matches('/'));
    let fields = vec![
        ("Path", Value::text(path)),
        ("Key", Value::text(key)),
        ("Value", Value::text(value)),
        ("CreateIndex", Value::Uint64(0)),
        ("ModifyIndex", Value::Uint64(0)),
        ("LockIndex", Value::Uint64(0)),
        ("Flags", Value::Uint64(0)),
        ("Session", Value::text(b"")),
    ];
    Value::Object(Rc::new(Object { type_name: "KeyPair", fields, shown: None, methods: Vec::new() }))
}

fn pairs(exec: &mut Exec<'_>, arguments: &[Value], top: bool, safe: bool) -> Outcome {
    let prefix = name(arguments, 0);
    if prefix.is_empty() {
        return Ok(Value::list(Kind::Objects(PAIR), Vec::new()));
    }
    let found = exec.host.tree(&prefix);
    exec.note(Ask::Tree, &prefix, &found)?;
    let wanted = found.iter().filter(|(key, _)| !(key.is_empty() || key.ends_with('/') || top && key.contains('/')));
    let items: Vec<Value> = wanted.map(|(key, value)| pair(key, value, &prefix)).collect();
    if items.is_empty() && safe {
        exec.miss(format!("kv.list({prefix})"));
    }
    Ok(Value::list(Kind::Objects(PAIR), items))
}

fn secret(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let Some(_) = arguments.first() else { return Ok(Value::Nil) };
    let path = name(arguments, 0);
    if arguments.len() > 1 {
        let more: Vec<String> = (1..arguments.len()).map(|i| name(arguments, i)).collect();
        if more.iter().any(|pair| !pair.is_empty() && !pair.contains('=')) {
            return Err(format!("not k=v pair {:?}", more.join(" ")));
        }
    }
    let found = exec.host.secret(&path);
    exec.note(Ask::Secret, &path, &found)?;
    match found {
        Found::Here(data) => {
            let fields = vec![
                ("RequestID", Value::text(b"")),
                ("LeaseID", Value::text(b"")),
                ("LeaseDuration", Value::Int(0)),
                ("Renewable", Value::Bool(false)),
                ("Data", Value::of_json(&data)),
                ("Warnings", Value::list(Kind::Text, Vec::new())),
                ("Auth", Value::NilPointer("*dependency.SecretAuth")),
                ("WrapInfo", Value::NilPointer("*dependency.SecretWrapInfo")),
            ];
            Ok(Value::Object(Rc::new(Object { type_name: "Secret", fields, shown: None, methods: Vec::new() })))
        }
        Found::Missing => {
            exec.miss(format!("vault.read({path})"));
            Ok(Value::NilAny)
        }
    }
}

fn secrets(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let path = name(arguments, 0);
    let names = exec.host.secrets(&path);
    exec.note(Ask::Secrets, &path, &names)?;
    Ok(Value::texts(names))
}

/// A variable's path without namespace and region.
fn path(arguments: &[Value]) -> String {
    let written = name(arguments, 0);
    written.split('@').next().unwrap_or_default().trim_start_matches('/').to_owned()
}

fn meta(path: &str) -> Value {
    let fields = vec![
        ("Namespace", Value::text(b"default")),
        ("Path", Value::text(path)),
        ("CreateIndex", Value::Uint64(1)),
        ("ModifyIndex", Value::Uint64(1)),
        ("CreateTime", Value::Int64(0)),
        ("ModifyTime", Value::Int64(0)),
    ];
    let shown = Some(path.as_bytes().into());
    Value::Object(Rc::new(Object { type_name: "NomadVarMeta", fields, shown, methods: Vec::new() }))
}

fn nomad_var(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let path = path(arguments);
    if path.is_empty() {
        return Ok(Value::NilPointer("*dependency.NomadVarItems"));
    }
    let Found::Here(items) = ask_variable(exec, &path)? else {
        exec.miss(format!("nomad.var.block({path}@default.global)"));
        return Ok(Value::NilPointer("*dependency.NomadVarItems"));
    };
    let item = |key: &String, value: &String| {
        let fields = vec![("Key", Value::text(key)), ("Value", Value::text(value))];
        let shown = Some(value.as_bytes().into());
        let methods = vec![("String", Value::text(value)), ("Metadata", meta(&path))];
        Value::Object(Rc::new(Object { type_name: "NomadVarItem", fields, shown, methods }))
    };
    let entries = sorted(items.iter().map(|(k, v)| (Key::text(k.as_bytes()), item(k, v))));
    let fields = vec![("Namespace", Value::text(b"default")), ("Path", Value::text(&path))];
    let methods = vec![("Metadata", meta(&path))];
    let owner = Rc::new(Object { type_name: "NomadVariable", fields, shown: None, methods });
    let kind = Kind::Objects("dependency.NomadVarItem");
    let entries = std::cell::RefCell::new(entries);
    Ok(Value::Map(Rc::new(Map { kind, keyed: Keyed::Text, entries, owner: Some(owner) })))
}

fn nomad_vars(exec: &mut Exec<'_>, arguments: &[Value], safe: bool) -> Outcome {
    if arguments.len() > 1 {
        return Err("it takes one prefix, or none for all variables".to_owned());
    }
    let prefix = path(arguments);
    let found = exec.host.variables(&prefix);
    exec.note(Ask::Variables, &prefix, &found)?;
    let items: Vec<Value> = found.iter().map(|path| meta(path)).collect();
    if items.is_empty() && safe {
        exec.miss(format!("nomad.var.list({prefix}@default.global)"));
    }
    Ok(Value::list(Kind::Objects("*dependency.NomadVarMeta"), items))
}

fn tags(service: &Service) -> Value {
    Value::texts(&service.tags)
}

/// The instances of a service in these states.
fn matching(exec: &mut Exec<'_>, query: &str, states: &str) -> Result<Vec<Service>, String> {
    let found = asked::matching(exec.host.services(), query, states);
    exec.note(Ask::Service, &format!("{query}\n{states}"), &found)?;
    Ok(found)
}

fn health(service: &Service) -> Value {
    let meta = sorted(service.meta.iter().map(|(k, v)| (Key::text(k.as_bytes()), Value::text(v))));
    let fields = vec![
        ("Node", Value::text(&service.node)),
        ("NodeID", Value::text(b"")),
        ("NodeAddress", Value::text(&service.address)),
        ("NodeDatacenter", Value::text(&service.datacenter)),
        ("NodeTaggedAddresses", Value::map(Kind::Text, BTreeMap::new())),
        ("NodeMeta", Value::map(Kind::Text, BTreeMap::new())),
        ("ServiceMeta", Value::map(Kind::Text, meta)),
        ("Address", Value::text(&service.address)),
        ("ID", Value::text(&service.id)),
        ("Name", Value::text(&service.name)),
        ("Tags", tags(service)),
        ("Checks", Value::list(Kind::Any, Vec::new())),
        ("Status", Value::text(&service.status)),
        ("Port", Value::Int(i64::from(service.port))),
    ];
    Value::Object(Rc::new(Object { type_name: "HealthService", fields, shown: None, methods: Vec::new() }))
}

fn consul_service(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let found = matching(exec, &name(arguments, 0), &name(arguments, 1))?;
    Ok(Value::list(Kind::Objects(HEALTH), found.iter().map(health).collect()))
}

/// Those that can be used.
fn working(exec: &mut Exec<'_>, name: &[u8]) -> Result<Vec<Service>, String> {
    matching(exec, &String::from_utf8_lossy(name), asked::WORKING)
}

fn nomad_service(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let (mut found, key) = match arguments {
        [Value::Text(name)] => (working(exec, name)?, None),
        [count, Value::Text(key), Value::Text(name)] => {
            let count = count.signed().ok_or("the first of three arguments is a number: how many instances")?;
            (working(exec, name)?, Some((count, key.clone())))
        }
        _ => return Err("it takes a name, or a number, a key and a name".to_owned()),
    };
    if let Some((count, key)) = key {
        // Always the same ones for the same key.
        found.order_by_cached_key(|service| {
            let mut hash = <sha2::Sha256 as sha2::Digest>::new();
            sha2::Digest::update(&mut hash, &key);
            sha2::Digest::update(&mut hash, service.id.as_bytes());
            sha2::Digest::finalize(hash).to_vec()
        });
        found.truncate(usize::try_from(count).unwrap_or(0));
    }
    let of = |service: &Service| {
        let fields = vec![
            ("ID", Value::text(&service.id)),
            ("Name", Value::text(&service.name)),
            ("Node", Value::text(&service.node)),
            ("Address", Value::text(&service.address)),
            ("Port", Value::Int(i64::from(service.port))),
            ("Datacenter", Value::text(&service.datacenter)),
            ("Tags", tags(service)),
            ("JobID", Value::text(&service.job)),
            ("AllocID", Value::text(&service.alloc)),
        ];
        Value::Object(Rc::new(Object { type_name: "NomadService", fields, shown: None, methods: Vec::new() }))
    };
    Ok(Value::list(Kind::Objects(NOMAD), found.iter().map(of).collect()))
}

fn services(exec: &mut Exec<'_>) -> Outcome {
    let names = asked::catalog(exec.host.services());
    exec.note(Ask::Services, "", &names)?;
    let of = |(name, tags): (&String, &crate::spec::collections::BTreeSet<String>)| {
        let fields = vec![("Name", Value::text(name)), ("Tags", Value::texts(tags))];
        Value::Object(Rc::new(Object { type_name: "CatalogSnippet", fields, shown: None, methods: Vec::new() }))
    };
    Ok(Value::list(Kind::Objects(SNIPPET), names.iter().map(of).collect()))
}

/// Objects of a list in lists by what `keys` gives for each.
fn group(value: &Value, what: &str, keys: impl Fn(&Object) -> Vec<Key>) -> Result<BTreeMap<Key, Value>, String> {
    let mut groups: BTreeMap<Key, Vec<Value>> = BTreeMap::new();
    match value {
        Value::Nil | Value::NilAny => {}
        Value::List(list) if matches!(list.kind, Kind::Objects(HEALTH | NOMAD | SNIPPET)) => {
            for item in &list.items {
                let Value::Object(object) = item else { continue };
                for key in keys(object) {
                    groups.entry(key).or_default().push(item.clone());
                }
            }
        }
        other => return Err(format!("{what} takes services, not a value of type {}", other.type_name())),
    }
    Ok(sorted(groups.into_iter().map(|(k, v)| (k, Value::list(Kind::Any, v)))))
}

fn by_tag(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let tags = |object: &Object| match object.field("Tags") {
        Some(Value::List(list)) => list.items.iter().filter_map(|t| t.as_text().map(|t| Key::text(t))).collect(),
        _ => Vec::new(),
    };
    Ok(Value::map(Kind::Lists, group(&arguments[0], "byTag", tags)?))
}

fn by_port(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let port = |object: &Object| object.field("Port").and_then(|p| p.signed()).map(Key::Int).into_iter().collect();
    Ok(Value::map_keyed(Keyed::Int, Kind::Lists, group(&arguments[0], "byPort", port)?))
}

fn by_key(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let mut maps: BTreeMap<Key, BTreeMap<Key, Value>> = BTreeMap::new();
    if let Value::List(list) = &arguments[0] {
        for item in &list.items {
            let Value::Object(object) = item else { continue };
            if let Some(Value::Text(key)) = object.field("Key")
                && let Some(at) = memchr::memchr(b'/', &key)
            {
                maps.entry(Key::text(&key[..at])).or_default().insert(Key::text(&key[at + 1..]), item.clone());
            }
        }
    }
    let inner = |map| Value::map(Kind::Objects(PAIR), map);
    Ok(Value::map(Kind::Maps, sorted(maps.into_iter().map(|(k, map)| (k, inner(map))))))
}

fn by_meta(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let wanted = name(arguments, 0);
    let key = |object: &Object| {
        let Some(Value::Map(meta)) = object.field("ServiceMeta") else { return Vec::new() };
        let parts: Vec<String> = wanted
            .split(',')
            .map(|part| {
                let part = part.trim();
                let (name, number) = part.split_once('|').map_or((part, ""), |(n, kind)| (n, kind));
                let value = meta.get(&Key::text(name.as_bytes())).and_then(|v| v.as_text().cloned());
                let value = String::from_utf8_lossy(value.as_deref().unwrap_or_default()).into_owned();
                match (number, value.parse::<i64>()) {
                    ("int", Ok(n)) => format!("{n:05}"),
                    _ => value,
                }
            })
            .collect();
        vec![Key::text(parts.join("_").as_bytes())]
    };
    let groups = group(&arguments[1], "byMeta", key)?;
    Ok(Value::map(Kind::Lists, groups))
}

/// A method of the scratch pad.
pub(in crate::template) fn scratch(exec: &mut Exec<'_>, method: &str, arguments: &[Value]) -> Outcome {
    let wanted = match method {
        "Key" | "Get" | "MapValues" => 1,
        "Set" | "SetX" => 2,
        "MapSet" | "MapSetX" => 3,
        _ => return Err(format!("scratch has no {method}; it has Key, Get, Set, SetX, MapSet, MapSetX, MapValues")),
    };
    if arguments.len() != wanted {
        return Err(format!("wrong number of args for {method}: want {wanted} got {}", arguments.len()));
    }
    let key_of = |i: usize| match &arguments[i] {
        Value::Text(text) => Ok(text.clone()),
        other => Err(format!("wrong type for value; expected string; got {}", other.type_name())),
    };
    let key = key_of(0)?;
    exec.spend(64 + key.len())?;
    match method {
        "Key" => Ok(Value::Bool(exec.scratch.contains_key(&key))),
        "Get" => Ok(exec.scratch.get(&key).cloned().unwrap_or(Value::NilAny)),
        "Set" | "SetX" => {
            if method == "Set" || !exec.scratch.contains_key(&key) {
                exec.scratch.insert(key, arguments[1].clone().boxed());
            }
            Ok(Value::text(b""))
        }
        "MapValues" => Ok(match exec.scratch.get(&key) {
            Some(Value::Map(map)) => Value::list(Kind::Any, map.pairs().into_iter().map(|(_, v)| v).collect()),
            _ => Value::list(Kind::Any, Vec::new()),
        }),
        _ => {
            let inner = Key::Text(key_of(1)?);
            let place = exec.scratch.entry(key).or_insert_with(|| Value::map(Kind::Any, BTreeMap::new())).clone();
            match place {
                Value::Map(map) if map.kind == Kind::Any && map.keyed == Keyed::Text => {
                    let there = map.get(&inner).is_some();
                    if method == "MapSet" || !there {
                        put(exec, &map, inner, &arguments[2])?;
                    }
                    Ok(Value::text(b""))
                }
                _ => Err(format!("{:?} is not a map", name(arguments, 0))),
            }
        }
    }
}

/// Sets an entry of a map that others may hold too. A map never comes to hold itself: that would never be let go.
pub(super) fn put(exec: &mut Exec<'_>, map: &Rc<Map>, key: Key, value: &Value) -> Result<(), String> {
    if holds(exec, value, map)? {
        return Err("a map cannot hold itself".to_owned());
    }
    exec.spend(64)?;
    let old = map.entries.borrow_mut().insert(key, value.clone().boxed());
    drop(old);
    Ok(())
}

fn holds(exec: &mut Exec<'_>, value: &Value, map: &Rc<Map>) -> Result<bool, String> {
    let mut rest = vec![value.clone()];
    while let Some(value) = rest.pop() {
        exec.step()?;
        match value {
            Value::Map(other) if Rc::ptr_eq(&other, map) => return Ok(true),
            Value::Map(other) => rest.extend(other.entries.borrow().values().cloned()),
            Value::List(list) => rest.extend(list.items.iter().cloned()),
            _ => {}
        }
    }
    Ok(false)
}
