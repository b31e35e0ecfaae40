//! Search by prefix, which completes ids, and by any part of a name.

use serde_json::{Map, Value};

use super::Call;
use super::answer::{Answer, Refusal, with_meta};
use crate::agent::model::{DynamicVolume, Role, VariableMeta};
use crate::agent::state::{StateError, View};
use crate::spec::Order as _;
use crate::spec::collections::BTreeMap;
use crate::spec::json::json;

/// Limit of matches per context.
const MOST: usize = 20;
/// The pools of nodes.
const POOLS: [&str; 2] = ["all", "default"];
/// The contexts whose objects have UUIDs.
const BY_ID: &[&str] = &["allocs", "evals", "deployment", "nodes"];
/// The others.
const BY_NAME: &[&str] =
    &["jobs", "namespaces", "vars", "node_pools", "plugins", "volumes", "host_volumes", "scaling_policy"];

/// Error text for an unknown context.
const CONTEXTS: &str = "context must be one of [allocs jobs nodes node_pools evals deployment plugins volumes scaling_policy vars namespaces \
                        host_volumes] or 'all' for all contexts";

/// The ids in a context that begin with a prefix; one more than is shown, so that truncation can be reported.
fn found(call: &Call, view: &View, context: &str, prefix: &str) -> Result<Vec<String>, Refusal> {
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
        "vars" if call.caller.role == Role::Manage => {
            view.variables(call.namespace(), prefix).take(most).map(|variable| Ok(variable?.path)).collect()
        }
        "host_volumes" => {
            let is_it = |of: &DynamicVolume| wants(&of.namespace) && of.id.starts_with(prefix);
            let all = view.volumes().filter(|volume| volume.as_ref().map_or(true, is_it));
            all.take(most).map(|volume| Ok(volume?.id)).collect()
        }
        "volumes" => view.csi_volumes(call.namespace(), prefix).take(most).map(|volume| Ok(volume?.id)).collect(),
        "plugins" => Ok(super::csi::plugin_ids(view, prefix)?.into_iter().take(most).collect()),
        "node_pools" => Ok(POOLS.into_iter().filter(|pool| pool.starts_with(prefix)).map(str::to_owned).collect()),
        "scaling_policy" => {
            let policies = super::scaling::all(call, view)?;
            let ids = policies.iter().filter_map(|policy| policy["ID"].as_str()).filter(|id| id.starts_with(prefix));
            let mut ids: Vec<String> = ids.map(str::to_owned).collect();
            ids.order_by(Ord::cmp);
            ids.truncate(most);
            Ok(ids)
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

/// Where a text is in a name, how long the name is, the name, and what it is a part of: in the order of the answer.
type Match = (usize, usize, String, Vec<String>);

/// The names that contain a text, by context.
struct Matches<'a> {
    /// In small letters.
    text: &'a str,
    found: BTreeMap<&'static str, Vec<Match>>,
}

impl Matches<'_> {
    fn add(&mut self, context: &'static str, name: &str, scope: &[&str]) {
        if let Some(at) = name.to_lowercase().find(self.text) {
            let scope = scope.iter().map(|part| (*part).to_owned()).collect();
            self.found.entry(context).or_default().push((at, name.len(), name.to_owned(), scope));
        }
    }
}

/// Searches names for a text, the best first, and ids by their beginnings.
pub(super) async fn fuzzy(mut call: Call) -> Result<Answer, Refusal> {
    let input = call.input().await?;
    let given = input.text("Text")?;
    if given.len() < 2 {
        return Err(Refusal::failed(
            "fuzzy search query must be at least 2 characters, got ".to_owned() + &given.len().to_string(),
        ));
    }
    let view = call.api.state.read()?;
    let text = given.to_lowercase();
    let mut matches = Matches { text: &text, found: BTreeMap::new() };
    let (mut all, mut truncations) = (Map::new(), Map::new());
    for context in contexts(&input.text("Context")?, "")? {
        truncations.insert(context.to_owned(), false.into());
        match context {
            "jobs" => of_jobs(&call, &view, &mut matches)?,
            "allocs" => {
                for alloc in view.allocs("") {
                    let alloc = alloc?;
                    if call.wants(&alloc.namespace) {
                        matches.add("allocs", &alloc.name, &[&alloc.namespace, &alloc.id]);
                    }
                }
            }
            "nodes" => {
                if let Some(node) = view.node()? {
                    matches.add("nodes", &node.name, &[&node.id]);
                }
            }
            "node_pools" => {
                for pool in POOLS {
                    matches.add("node_pools", pool, &[pool]);
                }
            }
            "namespaces" => {
                for namespace in view.namespaces("") {
                    matches.add("namespaces", &namespace?.name, &[]);
                }
            }
            "plugins" => {
                for id in super::csi::plugin_ids(&view, "")? {
                    matches.add("plugins", &id, &[]);
                }
            }
            "vars" => {
                for path in view.variables(call.namespace(), "").filter(|_| call.caller.role == Role::Manage) {
                    let VariableMeta { namespace, path, .. } = path?;
                    matches.add("vars", &path, &[&namespace, &path]);
                }
            }
            _ => {
                let mut ids = found(&call, &view, context, &given)?;
                truncations.insert(context.to_owned(), (ids.len() > MOST).into());
                ids.truncate(MOST);
                all.insert(context.to_owned(), ids.iter().map(|id| json!({"ID": id})).collect());
            }
        }
    }
    for (context, mut list) in matches.found {
        list.order_by(Ord::cmp);
        if list.len() > MOST {
            truncations.insert(context.to_owned(), true.into());
        }
        list.truncate(MOST);
        let mut shown = Vec::new();
        for (_, _, name, scope) in list {
            shown.push(if scope.is_empty() { json!({"ID": name}) } else { json!({"ID": name, "Scope": scope}) });
        }
        all.insert(context.to_owned(), shown.into());
    }
    let index = view.index()?.max(1);
    let mut answer = Map::new();
    answer.insert("Matches".to_owned(), all.into());
    answer.insert("Truncations".to_owned(), truncations.into());
    with_meta(&mut answer, index);
    Ok(Answer::at(index, answer.into()))
}

/// Names in jobs: of the job, its groups, tasks, services, and what its tasks run.
fn of_jobs(call: &Call, view: &View, matches: &mut Matches<'_>) -> Result<(), StateError> {
    for job in view.jobs(call.namespace(), "") {
        let job = job?;
        let (namespace, id) = (job.key.namespace.as_str(), job.key.id.as_str());
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        matches.add("jobs", job.spec.get("Name").and_then(Value::as_str).unwrap_or(id), &[namespace, id]);
        for group in job.spec.get("TaskGroups").and_then(Value::as_array).into_iter().flatten() {
            let group_name = text(group, "Name");
            matches.add("groups", &group_name, &[namespace, id]);
            for service in group["Services"].as_array().into_iter().flatten() {
                matches.add("services", &text(service, "Name"), &[namespace, id, &group_name]);
            }
            for task in group["Tasks"].as_array().into_iter().flatten() {
                let task_name = text(task, "Name");
                let scope = [namespace, id, &group_name, &task_name];
                matches.add("tasks", &task_name, &scope[..3]);
                for (context, key) in [("images", "image"), ("commands", "command"), ("classes", "class")] {
                    matches.add(context, &text(&task["Config"], key), &scope);
                }
                for service in task["Services"].as_array().into_iter().flatten() {
                    matches.add("services", &text(service, "Name"), &scope);
                }
            }
        }
    }
    Ok(())
}
