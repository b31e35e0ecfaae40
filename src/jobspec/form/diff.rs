//! The difference of two jobs as `nomad job plan` shows it.

use crate::spec::{IntoMap as _, IntoSet as _, Order as _};

use serde::Serialize;
use serde_json::{Map, Value as Json};

use super::shapes::{self, Part, Same, Shape};
use crate::spec::collections::{BTreeMap, BTreeSet};

type Object = Map<String, Json>;

/// What became of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[expect(missing_docs, reason = "Nomad's words")]
pub enum DiffType {
    Added,
    Deleted,
    Edited,
    None,
}

/// The difference of two versions of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct JobDiff {
    /// What became of the job.
    #[serde(rename = "Type")]
    pub kind: DiffType,
    /// Its id.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its own keys.
    #[serde(serialize_with = "null_for_none")]
    pub fields: Vec<FieldDiff>,
    /// Its blocks but the groups.
    #[serde(serialize_with = "null_for_none")]
    pub objects: Vec<ObjectDiff>,
    /// Its groups, also those that nothing became of, by their names.
    #[serde(serialize_with = "null_for_none")]
    pub task_groups: Vec<GroupDiff>,
}

/// A key that was changed; in a changed block also one that was not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct FieldDiff {
    /// Its name; `Meta[key]` for a member of a map.
    pub name: String,
    /// What became of it.
    #[serde(rename = "Type")]
    pub kind: DiffType,
    /// What it was; empty where it was not there.
    pub old: String,
    /// What it is.
    pub new: String,
    /// What follows from it.
    #[serde(serialize_with = "null_for_none")]
    pub annotations: Vec<&'static str>,
}

/// A block that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ObjectDiff {
    /// What became of it.
    #[serde(rename = "Type")]
    pub kind: DiffType,
    /// Its name.
    pub name: String,
    /// Its keys.
    #[serde(serialize_with = "null_for_none")]
    pub fields: Vec<FieldDiff>,
    /// Its blocks.
    #[serde(serialize_with = "null_for_none")]
    pub objects: Vec<ObjectDiff>,
}

/// A group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct GroupDiff {
    /// What became of it.
    #[serde(rename = "Type")]
    pub kind: DiffType,
    /// Its name.
    pub name: String,
    /// Its keys.
    #[serde(serialize_with = "null_for_none")]
    pub fields: Vec<FieldDiff>,
    /// Its blocks but the tasks.
    #[serde(serialize_with = "null_for_none")]
    pub objects: Vec<ObjectDiff>,
    /// Its tasks, also those that nothing became of, by their names.
    #[serde(serialize_with = "null_for_none")]
    pub tasks: Vec<TaskDiff>,
    /// What a scheduler will do with its allocations: how many for each word.
    pub updates: Option<BTreeMap<&'static str, u64>>,
}

/// A task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct TaskDiff {
    /// What became of it.
    #[serde(rename = "Type")]
    pub kind: DiffType,
    /// Its name.
    pub name: String,
    /// Its keys.
    #[serde(serialize_with = "null_for_none")]
    pub fields: Vec<FieldDiff>,
    /// Its blocks.
    #[serde(serialize_with = "null_for_none")]
    pub objects: Vec<ObjectDiff>,
    /// What follows from the changes.
    #[serde(serialize_with = "null_for_none")]
    pub annotations: Vec<&'static str>,
}

/// How many allocations of a group a scheduler will treat how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlannedUpdates {
    /// Stay as they are.
    pub ignore: u64,
    /// Are made.
    pub place: u64,
    /// Go to another node.
    pub migrate: u64,
    /// Are stopped.
    pub stop: u64,
    /// Are changed while they run.
    pub in_place: u64,
    /// Are stopped and made anew.
    pub destructive: u64,
    /// Are made beside the old ones.
    pub canary: u64,
    /// Make room for others.
    pub preemptions: u64,
}

impl PlannedUpdates {
    /// By Nomad's words, without those that are none.
    #[must_use]
    pub fn by_word(&self) -> BTreeMap<&'static str, u64> {
        let all = [
            ("ignore", self.ignore),
            ("create", self.place),
            ("migrate", self.migrate),
            ("destroy", self.stop),
            ("in-place update", self.in_place),
            ("create/destroy update", self.destructive),
            ("canary", self.canary),
            ("preemptions", self.preemptions),
        ];
        all.into_iter().filter(|(_, n)| *n > 0).into_map()
    }
}

const CREATE: &str = "forces create";
const DESTROY: &str = "forces destroy";
const IN_PLACE: &str = "forces in-place update";
const DESTRUCTIVE: &str = "forces create/destroy update";

/// Keys of a task that can change while it runs, as the annotations have it.
const SOFT_FIELDS: [&str; 1] = ["KillTimeout"];
/// Blocks of a task that can.
const SOFT_OBJECTS: [&str; 3] = ["Affinity", "Constraint", "Service"];

/// Compares two versions of a job, as [`canonicalize`](super::canonicalize) makes them; `None` is a job that is not there. With
/// `contextual` a block that was changed shows also what was not changed in it.
#[must_use]
pub fn diff(old: Option<&Object>, new: Option<&Object>, contextual: bool) -> JobDiff {
    let id = new.or(old).and_then(|job| job.get("ID")).and_then(Json::as_str).unwrap_or_default();
    let compare = Compare { contextual };
    let shape = shapes::of("Job");
    let fields = Compare { contextual: false }.fields(shape, old, new);
    let mut objects = compare.parts(shape, old, new);
    objects.retain(|object| object.kind != DiffType::None);
    let groups = by_name(old, new, "TaskGroups").into_iter();
    let task_groups: Vec<_> = groups.map(|(name, old, new)| compare.group(name, old, new)).collect();
    let unchanged = fields.is_empty() && objects.is_empty() && task_groups.iter().all(|g| g.kind == DiffType::None);
    JobDiff { kind: kind_of(old, new, unchanged), id: id.to_owned(), fields, objects, task_groups }
}

impl JobDiff {
    /// Adds what a scheduler will do with the allocations of its groups, which is in a plan and not in a history.
    pub fn annotate(&mut self, planned: &BTreeMap<String, PlannedUpdates>) {
        for group in &mut self.task_groups {
            annotate_count(&mut group.fields);
            for task in &mut group.tasks {
                annotate_task(task, group.kind);
            }
            group.updates = planned.get(&group.name).map(PlannedUpdates::by_word);
        }
    }
}

fn kind_of<T>(old: Option<&T>, new: Option<&T>, unchanged: bool) -> DiffType {
    match (old, new) {
        (None, None) => DiffType::None,
        (None, Some(_)) => DiffType::Added,
        (Some(_), None) => DiffType::Deleted,
        (Some(_), Some(_)) if unchanged => DiffType::None,
        (Some(_), Some(_)) => DiffType::Edited,
    }
}

/// The objects of a list on both sides, by their names.
fn by_name<'j>(
    old: Option<&'j Object>,
    new: Option<&'j Object>,
    list: &str,
) -> Vec<(&'j str, Option<&'j Object>, Option<&'j Object>)> {
    fn named<'j>(owner: Option<&'j Object>, list: &str) -> BTreeMap<&'j str, &'j Object> {
        let items = owner.and_then(|o| o.get(list)).and_then(Json::as_array).into_iter().flatten();
        items
            .filter_map(Json::as_object)
            .map(|o| (o.get("Name").and_then(Json::as_str).unwrap_or_default(), o))
            .into_map()
    }
    let (old, new) = (named(old, list), named(new, list));
    let names: BTreeSet<&str> = old.keys().chain(new.keys()).copied().into_set();
    names.into_iter().map(|name| (name, old.get(name).copied(), new.get(name).copied())).collect()
}

#[derive(Clone, Copy)]
struct Compare {
    contextual: bool,
}

impl Compare {
    fn group(self, name: &str, old: Option<&Object>, new: Option<&Object>) -> GroupDiff {
        let shape = shapes::of("TaskGroup");
        let mut fields = Compare { contextual: false }.fields(shape, old, new);
        if old.is_none() || new.is_none() {
            fields.retain(|field| field.name != "ShutdownDelay");
        }
        let objects = self.parts(shape, old, new);
        let tasks = by_name(old, new, "Tasks").into_iter();
        let tasks: Vec<_> = tasks.map(|(name, old, new)| self.task(name, old, new)).collect();
        // What is not shown counts as well.
        let kind = kind_of(old, new, old == new);
        GroupDiff { kind, name: name.to_owned(), fields, objects, tasks, updates: None }
    }

    fn task(self, name: &str, old: Option<&Object>, new: Option<&Object>) -> TaskDiff {
        let shape = shapes::of("Task");
        let fields = Compare { contextual: false }.fields(shape, old, new);
        let objects = self.parts(shape, old, new);
        // What is not shown counts as well.
        let kind = kind_of(old, new, old == new);
        TaskDiff { kind, name: name.to_owned(), fields, objects, annotations: Vec::new() }
    }

    /// The fields of an object that differ, and in context all that are there.
    fn fields(self, shape: &Shape, old: Option<&Object>, new: Option<&Object>) -> Vec<FieldDiff> {
        let (old, new) = (flat(shape, old), flat(shape, new));
        self.flat_fields(&old, &new)
    }

    fn flat_fields(self, old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Vec<FieldDiff> {
        let names = old.keys().chain(new.keys()).into_set();
        let field = |name: &String| {
            let (old, new) = (old.get(name).cloned().unwrap_or_default(), new.get(name).cloned().unwrap_or_default());
            let kind = match (old.is_empty(), new.is_empty()) {
                _ if old == new => DiffType::None,
                (true, _) => DiffType::Added,
                (_, true) => DiffType::Deleted,
                _ => DiffType::Edited,
            };
            FieldDiff { name: name.clone(), kind, old, new, annotations: Vec::new() }
        };
        names.into_iter().map(field).filter(|f| self.contextual || f.kind != DiffType::None).collect()
    }

    fn parts(self, shape: &Shape, old: Option<&Object>, new: Option<&Object>) -> Vec<ObjectDiff> {
        let mut out = Vec::new();
        for part in shape.parts {
            let (Part::One(member, _)
            | Part::Set(member, _)
            | Part::Keyed(member, ..)
            | Part::Texts(member)
            | Part::Any(member, _)
            | Part::Lists(member, _)) = *part;
            let side = |side: Option<&Object>| side.and_then(|o| o.get(member)).cloned().unwrap_or(Json::Null);
            let (old, new) = (side(old), side(new));
            match *part {
                Part::One(_, name) => {
                    // Of this one only what was changed is shown.
                    let compare = Compare { contextual: self.contextual && name != "Scaling" };
                    out.extend(compare.one(name, old.as_object(), new.as_object()));
                }
                Part::Set(_, name) => self.set(name, &objects(&old), &objects(&new), &mut out),
                Part::Keyed(_, name, same) => self.matched(name, &objects(&old), &objects(&new), same, &mut out),
                Part::Texts(name) => out.extend(self.texts(name, &old, &new)),
                Part::Any(_, name) | Part::Lists(_, name) => out.extend(self.any(name, &old, &new)),
            }
        }
        out
    }

    fn one(self, name: &str, old: Option<&Object>, new: Option<&Object>) -> Option<ObjectDiff> {
        if old == new {
            return None;
        }
        let shape = shapes::of(name);
        let fields = self.fields(shape, old, new);
        let objects = self.parts(shape, old, new);
        let shown = |f: &FieldDiff| f.kind != DiffType::None;
        let both = old.is_some() && new.is_some();
        if both && !fields.iter().any(shown) && objects.iter().all(|o| o.kind == DiffType::None) {
            return None;
        }
        let name = if name == "Template Wait" { "Template" } else { name };
        Some(ObjectDiff { kind: kind_of(old, new, false), name: name.to_owned(), fields, objects })
    }

    /// Objects without a key: what is on one side only was added or deleted.
    fn set(self, name: &str, old: &[&Object], new: &[&Object], out: &mut Vec<ObjectDiff>) {
        let lone = |these: &[&Object], others: &[&Object]| -> Vec<Object> {
            these.iter().filter(|o| !others.contains(o)).map(|o| (*o).clone()).collect()
        };
        out.extend(lone(new, old).iter().filter_map(|o| self.one(name, None, Some(o))));
        out.extend(lone(old, new).iter().filter_map(|o| self.one(name, Some(o), None)));
    }

    /// Objects of two lists: each of before is the one of now that has the most in common with it; what is left came or went.
    fn matched(self, name: &str, old: &[&Object], new: &[&Object], same: Same, out: &mut Vec<ObjectDiff>) {
        let is_lone = old.len() == 1 && new.len() == 1;
        let has_key = matches!(same, Same::Key(_) | Same::KeyOrLone(_));
        // What has a key and did not change is no other one's, also where several have the same key.
        let is_open = |one: &&Object, others: &[&Object]| !(has_key && others.contains(one));
        let mut left: Vec<(usize, &Object)> =
            new.iter().copied().enumerate().filter(|(_, is)| is_open(is, old)).collect();
        for (before, was) in old.iter().copied().enumerate().filter(|(_, was)| is_open(was, new)) {
            let common = |now: usize, is: &Object| {
                let has = |member: &str| was.get(member) == is.get(member);
                match same {
                    Same::KeyOrLone(_) | Same::Service if is_lone => 1,
                    Same::Key(key) | Same::KeyOrLone(key) => u8::from(has(key)),
                    Same::Position => u8::from(before == now),
                    Same::Service => {
                        let all = 3 * u8::from(has("Name")) + 2 * u8::from(has("PortLabel")) + u8::from(before == now);
                        // The port alone is not enough, nor is the position.
                        all.saturating_sub(2)
                    }
                }
            };
            let mut best = (0, None);
            for (at, &(now, is)) in left.iter().enumerate() {
                let found = common(now, is);
                if found > best.0 {
                    best = (found, Some(at));
                }
            }
            let is = best.1.map(|at| left.remove(at).1);
            out.extend(self.one(name, Some(was), is));
        }
        out.extend(left.into_iter().filter_map(|(_, is)| self.one(name, None, Some(is))));
    }

    /// A set of texts: a field for each that came, went, or in context stayed.
    fn texts(self, name: &str, old: &Json, new: &Json) -> Option<ObjectDiff> {
        let texts = |list: &Json| -> BTreeSet<String> { list.as_array().into_iter().flatten().map(plain).into_set() };
        let (old, new) = (texts(old), texts(new));
        let field = |kind: DiffType, old: &str, new: &str| FieldDiff {
            name: name.to_owned(),
            kind,
            old: old.to_owned(),
            new: new.to_owned(),
            annotations: Vec::new(),
        };
        let mut fields: Vec<_> = new.difference(&old).map(|t| field(DiffType::Added, "", t)).collect();
        fields.extend(old.difference(&new).map(|t| field(DiffType::Deleted, t, "")));
        let (added, deleted) = (!new.is_subset(&old), !old.is_subset(&new));
        if self.contextual {
            fields.extend(old.intersection(&new).map(|t| field(DiffType::None, t, t)));
        }
        fields.order_by(|a, b| (&a.old, &a.new).cmp(&(&b.old, &b.new)));
        let kind = match (added, deleted) {
            (true, true) => DiffType::Edited,
            (true, false) => DiffType::Added,
            (false, true) => DiffType::Deleted,
            (false, false) if fields.is_empty() => return None,
            (false, false) => DiffType::None,
        };
        Some(ObjectDiff { kind, name: name.to_owned(), fields, objects: Vec::new() })
    }

    /// An object with any keys.
    fn any(self, name: &str, old: &Json, new: &Json) -> Option<ObjectDiff> {
        let flatten = |value: &Json| {
            let mut out = BTreeMap::new();
            for (key, value) in value.as_object().into_iter().flatten() {
                flatten_value(key, value, &mut out);
            }
            out
        };
        let (from, to) = (flatten(old), flatten(new));
        if from == to {
            return None;
        }
        let fields = self.flat_fields(&from, &to);
        let there =
            |value: &Json, flat: &BTreeMap<String, String>| (!value.is_null() && !flat.is_empty()).then_some(());
        let (old, new) = (there(old, &from), there(new, &to));
        Some(ObjectDiff {
            kind: kind_of(old.as_ref(), new.as_ref(), false),
            name: name.to_owned(),
            fields,
            objects: Vec::new(),
        })
    }
}

fn objects(list: &Json) -> Vec<&Object> {
    match list {
        Json::Array(items) => items.iter().filter_map(Json::as_object).collect(),
        Json::Object(members) => members.values().filter_map(Json::as_object).collect(),
        _ => Vec::new(),
    }
}

/// The shown fields of an object as texts; null is not there.
fn flat(shape: &Shape, object: Option<&Object>) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let Some(object) = object else { return out };
    for field in shape.fields {
        // Servers write this one name differently.
        let (value, shown) = match object.get(*field).or_else(|| object.get("Url").filter(|_| *field == "URL")) {
            None => continue,
            // The one that Nomad shows although it is not there, by Go's name for that.
            Some(Json::Null) if *field == "StopOnClientAfter" => {
                out.insert((*field).to_owned(), "nil".to_owned());
                continue;
            }
            Some(Json::Null) => continue,
            Some(value) => (value, if *field == "URL" { "Url" } else { field }),
        };
        match (shape.name, value) {
            ("CNIConfig", Json::Object(members)) => {
                members.iter().for_each(|(key, value)| flatten_value(key, value, &mut out));
            }
            (_, Json::Object(members)) => {
                for (key, value) in members {
                    flatten_value(&format!("{shown}[{key}]"), value, &mut out);
                }
            }
            (_, Json::Array(items)) => {
                let all: Vec<String> = items.iter().map(plain).collect();
                out.insert(shown.to_owned(), all.join(","));
            }
            (_, value) => {
                out.insert(shown.to_owned(), plain(value));
            }
        }
    }
    out
}

/// A value of any depth as fields named by their paths.
fn flatten_value(path: &str, value: &Json, out: &mut BTreeMap<String, String>) {
    match value {
        Json::Object(members) => members.iter().for_each(|(key, v)| flatten_value(&format!("{path}[{key}]"), v, out)),
        Json::Array(items) => {
            items.iter().enumerate().for_each(|(i, v)| flatten_value(&format!("{path}[{i}]"), v, out));
        }
        Json::Null => {}
        Json::Number(number) => {
            out.insert(path.to_owned(), number.as_f64().map_or_else(|| number.to_string(), as_float));
        }
        value => {
            out.insert(path.to_owned(), plain(value));
        }
    }
}

fn plain(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Null => String::new(),
        other => other.to_string(),
    }
}

/// A number as Go prints its floats, which all numbers of a configuration are for a server: `1e+06`.
fn as_float(float: f64) -> String {
    let scientific = format!("{float:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(exponent @ -4..6) => format!("{float:.*}", decimals(digits, exponent)),
        Ok(exponent) => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
        Err(_) => scientific,
    }
}

/// Digits behind the point of a number that is not written with an exponent.
fn decimals(digits: &str, exponent: i32) -> usize {
    let behind = digits.split_once('.').map_or(0, |(_, behind)| behind.len());
    usize::try_from(i32::try_from(behind).unwrap_or(i32::MAX) - exponent).unwrap_or_default()
}

/// More allocations are created, fewer are destroyed.
fn annotate_count(fields: &mut [FieldDiff]) {
    for field in fields.iter_mut().filter(|f| f.name == "Count") {
        let number = |text: &str| text.parse::<i64>().unwrap_or_default();
        field.annotations = match number(&field.new).cmp(&number(&field.old)) {
            std::cmp::Ordering::Greater => vec![CREATE],
            std::cmp::Ordering::Less => vec![DESTROY],
            std::cmp::Ordering::Equal => Vec::new(),
        };
    }
}

fn annotate_task(task: &mut TaskDiff, group: DiffType) {
    let hard = |task: &TaskDiff| {
        let field = |f: &FieldDiff| f.kind != DiffType::None && !SOFT_FIELDS.contains(&f.name.as_str());
        let object = |o: &ObjectDiff| o.kind != DiffType::None && !SOFT_OBJECTS.contains(&o.name.as_str());
        task.fields.iter().any(field) || task.objects.iter().any(object)
    };
    let annotation = match (group, task.kind) {
        (_, DiffType::None) => return,
        (DiffType::Added, _) => CREATE,
        (DiffType::Deleted, _) => DESTROY,
        (_, DiffType::Added | DiffType::Deleted) => DESTRUCTIVE,
        (_, DiffType::Edited) if hard(task) => DESTRUCTIVE,
        (_, DiffType::Edited) => IN_PLACE,
    };
    task.annotations = vec![annotation];
}

fn null_for_none<T: Serialize, S: serde::Serializer>(list: &Vec<T>, serializer: S) -> Result<S::Ok, S::Error> {
    if list.is_empty() { serializer.serialize_none() } else { list.serialize(serializer) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::{DiffType, as_float, diff};
    use crate::jobspec::canonicalize;

    /// What became of the blocks of a group, or of its task, when a list of them changed.
    fn became(of_task: bool, list: &str, old: &Json, new: &Json) -> Vec<DiffType> {
        let job = |blocks: &Json| {
            let mut group = json!({ "Name": "g", "Tasks": [{ "Name": "t" }] });
            let owner = if of_task { &mut group["Tasks"][0] } else { &mut group };
            owner[list] = blocks.clone();
            canonicalize(&json!({ "ID": "j", "TaskGroups": [group] }), 1).unwrap()
        };
        let found = diff(Some(&job(old)), Some(&job(new)), false).task_groups.remove(0);
        let objects = if of_task { &found.tasks[0].objects } else { &found.objects };
        let mut kinds: Vec<DiffType> = objects.iter().map(|object| object.kind).collect();
        kinds.sort();
        kinds
    }

    #[test]
    fn j2_services_are_the_same_by_name_port_and_position() {
        use DiffType::{Added, Deleted, Edited};
        let service = |name: &str, port: &str| json!({ "Name": name, "PortLabel": port, "Provider": "nomad" });
        let (a, b) = (service("a", "x"), service("b", "y"));
        for (new, expected) in [
            (json!([b, a]), vec![]),
            (json!([a, service("c", "y")]), vec![Edited]),
            // The port alone, at another position.
            (json!([service("c", "y"), a]), vec![Added, Deleted]),
            (json!([a, service("c", "z")]), vec![Added, Deleted]),
            // Name and port are more than port and position.
            (json!([service("c", "x"), a]), vec![Added, Deleted]),
        ] {
            assert_eq!(became(false, "Services", &json!([a, b]), &new), expected, "{new}");
        }
        assert_eq!(became(false, "Services", &json!([a]), &json!([b])), [Edited], "a lone one is the same");
    }

    #[test]
    fn j2_other_blocks_are_the_same_by_their_key_or_position() {
        use DiffType::{Added, Deleted, Edited};
        let template = |to: &str| json!({ "EmbeddedTmpl": "x", "DestPath": to });
        assert_eq!(became(true, "Templates", &json!([template("a")]), &json!([template("b")])), [Edited]);
        let two = json!([template("a"), template("b")]);
        assert_eq!(became(true, "Templates", &two, &json!([template("b"), template("c")])), [Added, Deleted]);
        let mount = |volume: &str| json!({ "Volume": volume, "Destination": volume });
        assert_eq!(became(true, "VolumeMounts", &json!([mount("a")]), &json!([mount("b")])), [Edited]);
        let action = |name: &str| json!({ "Name": name, "Command": "c" });
        let (old, new) = (json!([action("a"), action("b")]), json!([action("b")]));
        assert_eq!(became(true, "Actions", &old, &new), [Deleted, Edited]);
    }

    /// As Go's `fmt` prints them with `%v`.
    #[test]
    fn j2_numbers_of_a_configuration_are_floats() {
        for (float, text) in [
            (0.0, "0"),
            (1_000_000.0, "1e+06"),
            (20_971_520.0, "2.097152e+07"),
            (123_456.0, "123456"),
            (0.000_012_34, "1.234e-05"),
            (1_234_567.5, "1.2345675e+06"),
            (1e21, "1e+21"),
            (0.0001, "0.0001"),
            (-2_500_000.0, "-2.5e+06"),
            (2.5, "2.5"),
            (-70.0, "-70"),
            (100.25, "100.25"),
        ] {
            assert_eq!(as_float(float), text);
        }
    }
}
