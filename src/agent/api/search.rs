//! Search by prefix, which completes ids, and by any part of a name.

use serde_json::{Map, Value};

use super::Call;
use super::answer::{Answer, Refusal, with_meta};
use crate::agent::model::DynamicVolume;
use crate::agent::state::{StateError, View};
use crate::spec::json::json;

/// Limit of matches per context.
const MOST: usize = 20;
/// The contexts whose objects have UUIDs.
const BY_ID: &[&str] = &["allocs", "evals", "deployment", "nodes"];
/// The others.
const BY_NAME: &[&str] =
    &["jobs", "namespaces", "vars", "node_pools", "plugins", "volumes", "host_volumes", "scaling_policy"];

/// Error text for an unknown context.
const CONTEXTS: &str = "context must be one of [allocs jobs nodes node_pools evals deployment plugins volumes scaling_policy vars namespaces \
                        host_volumes] or 'all' for all contexts";

/// The ids in a context that begin with a prefix; one more than is shown, so that truncation can be reported.
fn found(call: &Call, view: &View, context: &str, prefix: &str) -> Result<Vec<String>, StateError> {
    let most = MOST + 1;
    let wants = |namespace: &str| call.wants(namespace);
    match context {
        "jobs" => view.jobs(call.namespace(), prefix).take(most).map(|job| Ok(job?.key.id)).collect(),
        "allocs" => {
            let all = view.allocs(prefix).filter(|a| a.as_ref().map_or(true, |a| wants(&a.namespace)));
            all.take(most).map(|alloc| Ok(alloc?.id)).collect()
        }
        "evals" => {
            let all = view.evals(prefix).filter(|e| e.as_ref().map_or(true, |e| wants(&e.namespace)));
            all.take(most).map(|eval| Ok(eval?.id)).collect()
        }
        "deployment" => {
            let all = view.deployments(prefix).filter(|d| d.as_ref().map_or(true, |d| wants(&d.namespace)));
            all.take(most).map(|deployment| Ok(deployment?.id)).collect()
        }
        "nodes" => Ok(view.node()?.map(|node| node.id).filter(|id| id.starts_with(prefix)).into_iter().collect()),
        "namespaces" => view.namespaces(prefix).take(most).map(|namespace| Ok(namespace?.name)).collect(),
        "vars" if call.caller.role == crate::agent::model::Role::Manage => {
            view.variables(call.namespace(), prefix).take(most).map(|variable| Ok(variable?.path)).collect()
        }
        "host_volumes" => {
            let is_it = |of: &DynamicVolume| wants(&of.namespace) && of.id.starts_with(prefix);
            let all = view.volumes().filter(|volume| volume.as_ref().map_or(true, is_it));
            all.take(most).map(|volume| Ok(volume?.id)).collect()
        }
        "volumes" => view.csi_volumes(call.namespace(), prefix).take(most).map(|volume| Ok(volume?.id)).collect(),
        "plugins" => Ok(super::csi::plugin_ids(view, prefix)?.into_iter().take(most).collect()),
        "node_pools" => {
            Ok(["all", "default"].into_iter().filter(|p| p.starts_with(prefix)).map(str::to_owned).collect())
        }
        _ => Ok(Vec::new()),
    }
}

/// The contexts that are asked for.
fn contexts(wanted: &str, prefix: &str) -> Result<Vec<&'static str>, Refusal> {
    let all = BY_ID.iter().chain(BY_NAME).copied();
    if wanted.is_empty() || wanted == "all" {
        // A prefix that is not hexadecimal cannot begin a UUID.
        let may_be_id = prefix.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit());
        return Ok(all.filter(|context| may_be_id || !BY_ID.contains(context)).collect());
    }
    let known: Vec<_> = all.filter(|context| *context == wanted).collect();
    if known.is_empty() { Err(Refusal::failed(format!("{CONTEXTS}; got {wanted:?}"))) } else { Ok(known) }
}

pub(super) async fn prefix(mut call: Call) -> Result<Answer, Refusal> {
    let input = call.input().await?;
    let prefix = input.text("Prefix")?;
    let view = call.api.state.read()?;
    let (mut matches, mut truncations) = (Map::new(), Map::new());
    for context in contexts(&input.text("Context")?, &prefix)? {
        let mut ids = found(&call, &view, context, &prefix)?;
        truncations.insert(context.to_owned(), (ids.len() > MOST).into());
        ids.truncate(MOST);
        matches.insert(context.to_owned(), super::shape::null_if_empty(json!(ids)));
    }
    let index = view.index()?.max(1);
    let mut answer = Map::new();
    answer.insert("Matches".to_owned(), matches.into());
    answer.insert("Truncations".to_owned(), truncations.into());
    with_meta(&mut answer, index);
    Ok(Answer::at(index, answer.into()))
}

/// Matches of one context, each with where it is.
#[derive(Default)]
struct Matches {
    list: Vec<Value>,
    more: bool,
}

impl Matches {
    fn add(&mut self, name: &str, scope: &[&str]) {
        if self.list.len() == MOST {
            self.more = true;
        } else {
            self.list.push(json!({"ID": name, "Scope": scope}));
        }
    }
}

pub(super) async fn fuzzy(mut call: Call) -> Result<Answer, Refusal> {
    let input = call.input().await?;
    let text = input.text("Text")?.to_lowercase();
    if text.len() < 2 {
        return Err(Refusal::failed(
            "fuzzy search query must be at least 2 characters, got ".to_owned() + &text.len().to_string(),
        ));
    }
    let wanted = input.text("Context")?;
    let wants = |context: &str| wanted.is_empty() || wanted == "all" || wanted == context;
    let fits = |name: &str| name.to_lowercase().contains(&text);
    let view = call.api.state.read()?;
    let mut all: Map<String, Value> = Map::new();
    let mut truncations = Map::new();
    let mut keep = |context: &str, matches: Matches| {
        truncations.insert(context.to_owned(), matches.more.into());
        all.insert(context.to_owned(), matches.list.into());
    };
    if ["jobs", "groups", "services", "tasks", "images", "commands", "classes"].into_iter().any(wants) {
        for (context, matches) in of_jobs(&call, &view, fits)? {
            if wants(context) || !matches.list.is_empty() && wants("jobs") {
                keep(context, matches);
            }
        }
    }
    if wants("allocs") {
        let mut matches = Matches::default();
        for alloc in view.allocs("") {
            let alloc = alloc?;
            if call.wants(&alloc.namespace) && fits(&alloc.name) {
                matches.add(&alloc.name, &[&alloc.namespace, &alloc.id]);
            }
        }
        keep("allocs", matches);
    }
    if wants("nodes") {
        let mut matches = Matches::default();
        if let Some(node) = view.node()?.filter(|node| fits(&node.name)) {
            matches.add(&node.name, &[&node.id]);
        }
        keep("nodes", matches);
    }
    if wants("namespaces") {
        let mut matches = Matches::default();
        for namespace in view.namespaces("") {
            let namespace = namespace?;
            if fits(&namespace.name) {
                matches.add(&namespace.name, &[]);
            }
        }
        keep("namespaces", matches);
    }
    for context in ["evals", "deployment", "volumes", "host_volumes", "scaling_policy", "plugins", "node_pools", "vars"]
    {
        if wants(context) {
            keep(context, Matches::default());
        }
    }
    let index = view.index()?.max(1);
    let mut answer = Map::new();
    answer.insert("Matches".to_owned(), all.into());
    answer.insert("Truncations".to_owned(), truncations.into());
    with_meta(&mut answer, index);
    Ok(Answer::at(index, answer.into()))
}

/// Names in jobs: of the job, its groups, tasks, services, and what its tasks run.
fn of_jobs(call: &Call, view: &View, fits: impl Fn(&str) -> bool) -> Result<Vec<(&'static str, Matches)>, StateError> {
    let contexts = ["jobs", "groups", "services", "tasks", "images", "commands", "classes"];
    let mut found: Vec<(&'static str, Matches)> = contexts.into_iter().map(|c| (c, Matches::default())).collect();
    for job in view.jobs(call.namespace(), "") {
        let job = job?;
        let (namespace, id) = (job.key.namespace.as_str(), job.key.id.as_str());
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let mut add = |at: usize, name: &str, scope: &[&str]| {
            if fits(name) {
                found[at].1.add(name, scope);
            }
        };
        add(0, job.spec.get("Name").and_then(Value::as_str).unwrap_or(id), &[namespace, id]);
        for group in job.spec.get("TaskGroups").and_then(Value::as_array).into_iter().flatten() {
            let group_name = text(group, "Name");
            add(1, &group_name, &[namespace, id]);
            for service in group["Services"].as_array().into_iter().flatten() {
                add(2, &text(service, "Name"), &[namespace, id, &group_name]);
            }
            for task in group["Tasks"].as_array().into_iter().flatten() {
                let task_name = text(task, "Name");
                let scope = [namespace, id, &group_name, &task_name];
                add(3, &task_name, &scope[..3]);
                add(4, &text(&task["Config"], "image"), &scope);
                add(5, &text(&task["Config"], "command"), &scope);
                add(6, &text(&task["Config"], "class"), &scope);
                for service in task["Services"].as_array().into_iter().flatten() {
                    add(2, &text(service, "Name"), &scope);
                }
            }
        }
    }
    Ok(found)
}
