//! The agent's API as the commands about its jobs ask it, and what of its answers they show.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::ask::{Answer, Request, ask, open, socket};
use super::output::indented;
use super::runs::{lasting, row, short, table};
use super::{ApiArgs, SocketArgs, complain, print};
use crate::agent::model::Nanos;
use crate::spec::json::json;
use crate::spec::{escaped_lines, percent_encoded};

/// Nomad's status for a job some of whose allocations could not be placed.
const UNPLACED: i32 = 2;
/// How long one question waits for a change.
const WAIT: &str = "60s";
/// How long allocations without a deployment have to start.
const START: Duration = Duration::from_secs(10);

// Commands share these, as each struct of arguments takes some kilobytes of code (docs/size.md).

/// Of a command that lists.
#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// Print JSON, as the API has it
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) api: ApiArgs,
}

/// Of a command that shows what has no namespace.
#[derive(Debug, clap::Args)]
pub(super) struct ListAllArgs {
    /// Print JSON, as the API has it
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) at: SocketArgs,
}

/// Of a command that shows something of one object.
#[derive(Debug, clap::Args)]
pub(super) struct ShowArgs {
    /// The id, or the beginning of one
    pub(super) id: String,
    /// Print JSON, as the API has it
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) api: ApiArgs,
}

/// Of a command that lists, or shows something of one object.
#[derive(Debug, clap::Args)]
pub(super) struct FindArgs {
    /// The id, or the beginning of one
    pub(super) id: Option<String>,
    /// Print JSON, as the API has it
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) api: ApiArgs,
}

/// Of a command that needs nothing but an object.
#[derive(Debug, clap::Args)]
pub(super) struct OneArgs {
    /// The id, or the beginning of one
    pub(super) id: String,
    #[command(flatten)]
    pub(super) api: ApiArgs,
}

/// Of a command that causes an evaluation.
#[derive(Debug, clap::Args)]
pub(super) struct ChangeArgs {
    /// The id, or the beginning of one
    pub(super) id: String,
    /// Do not wait; print the id of the evaluation
    #[arg(long)]
    pub(super) detach: bool,
    #[command(flatten)]
    pub(super) api: ApiArgs,
}

/// Of a command that promotes canaries.
#[derive(Debug, clap::Args)]
pub(super) struct PromoteArgs {
    /// The id, or the beginning of one
    pub(super) id: String,
    /// Only these groups [default: all]
    #[arg(long, value_name = "GROUP")]
    pub(super) group: Vec<String>,
    /// Do not wait; print the id of the evaluation
    #[arg(long)]
    pub(super) detach: bool,
    #[command(flatten)]
    pub(super) api: ApiArgs,
}

/// The agent, and the namespace that is meant.
pub(super) struct Api {
    socket: PathBuf,
    namespace: Option<String>,
}

impl Api {
    pub(super) fn new(args: &ApiArgs) -> anyhow::Result<Api> {
        let of_nomad = || std::env::var("NOMAD_NAMESPACE").ok().filter(|name| !name.is_empty());
        Ok(Api { socket: socket(&args.at)?, namespace: args.namespace.clone().or_else(of_nomad) })
    }

    /// For what has no namespace.
    pub(super) fn at(at: &SocketArgs) -> anyhow::Result<Api> {
        Ok(Api { socket: socket(at)?, namespace: None })
    }

    /// For a job of a file: the flag counts more than the file, and the file more than the environment.
    pub(super) fn for_job(args: &ApiArgs, job: &mut Value) -> anyhow::Result<Api> {
        let mut api = Api::new(args)?;
        match (&args.namespace, job["Namespace"].as_str().filter(|name| !name.is_empty())) {
            (None, Some(of_file)) => api.namespace = Some(of_file.to_owned()),
            _ => job["Namespace"] = json!(api.namespace),
        }
        Ok(api)
    }

    /// The answer to a question; `path` is escaped, and has a `?`.
    pub(super) fn ask(&self, method: &str, path: &str, body: &str) -> anyhow::Result<Value> {
        let answer = ask(&self.socket, method, &self.path(path), body)?;
        serde_json::from_str(&answer).context("cannot read the agent's answer")
    }

    /// The answer to a question as it comes.
    pub(super) fn open(&self, method: &str, path: &str) -> anyhow::Result<Answer> {
        let path = self.path(path);
        open(&self.socket, Request { method, path: &path, length: 0, body: &mut std::io::empty() })
    }

    /// The answer to a request whose path is whole.
    pub(super) fn send(&self, request: Request<'_>) -> anyhow::Result<Answer> {
        open(&self.socket, request)
    }

    /// The namespace that was given.
    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// An order whose answer says nothing.
    pub(super) fn order(&self, method: &str, path: &str, body: &str) -> anyhow::Result<i32> {
        ask(&self.socket, method, &self.path(path), body).map(|_| 0)
    }

    /// The whole path, with the namespace.
    pub(super) fn path(&self, path: &str) -> String {
        format!("/v1/{path}&namespace={}", part(self.namespace.as_deref().unwrap_or("default")))
    }

    pub(super) fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.ask("GET", path, "")
    }

    /// The same, once the object has changed since this index, or after a minute.
    pub(super) fn get_after(&self, path: &str, seen: &Value) -> anyhow::Result<Value> {
        self.get_within(path, seen, WAIT)
    }

    fn get_within(&self, path: &str, seen: &Value, wait: &str) -> anyhow::Result<Value> {
        let index = seen["ModifyIndex"].as_u64().unwrap_or(0);
        self.get(&format!("{path}?wait={wait}&index={index}"))
    }

    /// The id of the job that a word is the id or the beginning of the id of.
    pub(super) fn job(&self, word: &str) -> anyhow::Result<String> {
        self.find("job", word, "agentbin job status lists them")
    }

    /// The same for whatever the API lists by the plural of this word; `fix` says where the ids are found.
    pub(super) fn find(&self, kind: &str, word: &str, fix: &str) -> anyhow::Result<String> {
        let all = self.get(&format!("{kind}s?prefix={}", part(word)))?;
        let ids: Vec<&str> = list(&all).iter().map(|one| text(one, "ID")).collect();
        match *ids {
            [only] => Ok(only.to_owned()),
            _ if ids.contains(&word) => Ok(word.to_owned()),
            [] => bail!("the agent has no {kind} {word:?}; {fix}"),
            _ => bail!("{word:?} is the beginning of several ids: {}", ids.join(", ")),
        }
    }

    /// Waits until an evaluation is decided; the exit status, and its deployment.
    pub(super) fn decided(&self, eval: &str) -> anyhow::Result<(i32, String)> {
        let path = format!("evaluation/{}", part(eval));
        let mut seen = Value::Null;
        loop {
            seen = self.get_after(&path, &seen)?;
            match text(&seen, "Status") {
                "pending" => {}
                "complete" | "blocked" => break,
                other => bail!("evaluation {}: {other}: {}", short(eval), text(&seen, "StatusDescription")),
            }
        }
        let mut status = 0;
        for (group, why) in seen["FailedTGAllocs"].as_object().into_iter().flatten() {
            status = UNPLACED;
            complain(&format!("group {group:?}: {}", refusal(why)));
        }
        Ok((status, text(&seen, "DeploymentID").to_owned()))
    }

    /// Waits until what was deployed is healthy, or is not; the exit status.
    pub(super) fn deployed(&self, deployment: &str) -> anyhow::Result<i32> {
        let path = format!("deployment/{}", part(deployment));
        let (mut seen, mut said) = (Value::Null, String::new());
        loop {
            seen = self.get_after(&path, &seen)?;
            let now = format!("{}: {}", text(&seen, "Status"), healthy(&seen));
            if now != said {
                complain(&format!("deployment {}: {now}", short(deployment)));
                said = now;
            }
            match text(&seen, "Status") {
                "successful" => return Ok(0),
                "failed" | "cancelled" => {
                    complain(text(&seen, "StatusDescription"));
                    return Ok(1);
                }
                // A person has to decide about its canaries.
                "running" if waits_for_a_person(&seen) => {
                    complain(text(&seen, "StatusDescription"));
                    return Ok(0);
                }
                _ => {}
            }
        }
    }

    /// Waits until no allocation of a job waits for its start, but not long: one may wait for a value of a template.
    pub(super) fn started(&self, job: &str) -> anyhow::Result<()> {
        let until = Instant::now() + START;
        while Instant::now() < until {
            let all = self.allocs(job)?;
            let waits =
                |alloc: &&Value| text(alloc, "ClientStatus") == "pending" && text(alloc, "DesiredStatus") == "run";
            let Some(waiting) = all.iter().find(waits) else { break };
            self.get_within(&format!("allocation/{}", text(waiting, "ID")), waiting, "1s")?;
        }
        Ok(())
    }

    /// Waits until a drain of the node has ended.
    pub(super) fn drained(&self, node: &str) -> anyhow::Result<()> {
        let path = format!("node/{node}");
        let mut seen = self.get(&format!("{path}?"))?;
        while !seen["DrainStrategy"].is_null() {
            seen = self.get_after(&path, &seen)?;
        }
        Ok(())
    }

    /// Waits until no allocation of a job runs.
    pub(super) fn ended(&self, job: &str) -> anyhow::Result<()> {
        loop {
            let all = self.allocs(job)?;
            let Some(alive) = all.iter().find(|alloc| is_alive(alloc)) else { return Ok(()) };
            self.get_after(&format!("allocation/{}", text(alive, "ID")), alive)?;
        }
    }

    /// The allocations of a job, the newest first.
    pub(super) fn allocs(&self, job: &str) -> anyhow::Result<Vec<Value>> {
        let Value::Array(mut all) = self.get(&format!("job/{}/allocations?", part(job)))? else {
            return Ok(Vec::new());
        };
        all.sort_by_key(|alloc| std::cmp::Reverse(alloc["CreateTime"].as_i64()));
        Ok(all)
    }
}

pub(super) fn failed(done: anyhow::Result<i32>) -> i32 {
    done.unwrap_or_else(|error| {
        complain(&crate::alloc::chain(error.as_ref()));
        1
    })
}

fn is_alive(alloc: &Value) -> bool {
    matches!(text(alloc, "ClientStatus"), "pending" | "running")
}

/// How many of the allocations of a deployment are healthy, by group.
pub(super) fn healthy(deployment: &Value) -> String {
    let groups = deployment["TaskGroups"].as_object().into_iter().flatten();
    let of = |(name, group): (&String, &Value)| {
        let canaries = match group["DesiredCanaries"].as_u64() {
            None | Some(0) => String::new(),
            Some(wanted) => {
                format!(", {} of {wanted} canaries", group["PlacedCanaries"].as_array().map_or(0, Vec::len))
            }
        };
        format!("{name}: {} of {} healthy{canaries}", group["HealthyAllocs"], group["DesiredTotal"])
    };
    groups.map(of).collect::<Vec<_>>().join("; ")
}

/// Whether all canaries of a deployment are healthy, and none of its groups is promoted by itself.
fn waits_for_a_person(deployment: &Value) -> bool {
    let mut groups = deployment["TaskGroups"].as_object().into_iter().flatten().map(|(_, group)| group);
    groups.any(|group| {
        let wanted = group["DesiredCanaries"].as_u64().unwrap_or(0);
        wanted > 0
            && group["Promoted"] != true
            && group["AutoPromote"] != true
            && group["HealthyAllocs"].as_u64().unwrap_or(0) >= wanted
    })
}

/// Why a group was not placed.
pub(super) fn refusal(why: &Value) -> String {
    let mut reasons = Vec::new();
    for (key, what) in [
        ("ConstraintFiltered", "constraint not met"),
        ("ClassFiltered", "node class not eligible"),
        ("DimensionExhausted", "not enough"),
    ] {
        for (name, _) in why[key].as_object().into_iter().flatten() {
            reasons.push(format!("{what}: {name}"));
        }
    }
    let reasons = if reasons.is_empty() { "no eligible node".to_owned() } else { reasons.join("; ") };
    let more = why["CoalescedFailures"].as_u64().unwrap_or(0);
    let times = if more > 0 { format!(" ({} allocations)", more + 1) } else { String::new() };
    format!("not placed{times}: {reasons}")
}

/// How long ago a time of the API was.
pub(super) fn ago(nanoseconds: &Value) -> String {
    let now = Nanos::of(std::time::SystemTime::now()).0;
    let then = nanoseconds.as_i64().filter(|then| *then > 0);
    then.map_or("-".to_owned(), |then| lasting(now.saturating_sub(then).max(0).unsigned_abs() / 1_000_000_000) + " ago")
}

/// A text as a part of a path, or as a value in a query.
pub(super) fn part(text: &str) -> String {
    percent_encoded(text, b"")
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Follows an evaluation that a command has caused, and the deployment that it made; the exit status.
pub(super) fn follow(api: &Api, answer: &Value, detach: bool) -> anyhow::Result<i32> {
    let eval = text(answer, "EvalID");
    if detach {
        return print(format!("{eval}\n").as_bytes());
    }
    if eval.is_empty() {
        return Ok(0);
    }
    let (status, deployment) = api.decided(eval)?;
    if status == 0 && !deployment.is_empty() { api.deployed(&deployment) } else { Ok(status) }
}

/// A value in a table: ids short, times as how long ago, nothing as a dash.
fn cell(value: &Value, key: &str) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::Number(_) if key.ends_with("Time") => ago(value),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) if key.ends_with("ID") && text.len() == 36 => short(text).to_owned(),
        Value::String(text) => text.clone(),
        // A part of an object by its name, such as the tag of a version.
        Value::Object(_) => text(value, "Name").to_owned(),
        Value::Array(all) => all.iter().map(|one| cell(one, key)).collect::<Vec<_>>().join(", "),
        Value::Number(number) => number.to_string(),
    }
}

/// Prints a list: JSON as the API has it, or a table with these members, each below its title.
pub(super) fn print_list(all: &Value, json: bool, columns: &[(&str, &str)]) -> anyhow::Result<i32> {
    if json {
        return print_json(all);
    }
    let mut rows = vec![columns.iter().map(|(title, _)| (*title).to_owned()).collect()];
    for one in list(all) {
        let cells: Vec<String> = columns.iter().map(|(_, key)| cell(&one[*key], key)).collect();
        rows.push(row(&cells.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    print(escaped_lines(&table(&rows)).as_bytes())
}

/// These members of an object, each behind its title.
pub(super) fn about(one: &Value, members: &[(&str, &str)]) -> String {
    let rows: Vec<_> = members.iter().map(|(title, key)| row(&[title, &cell(&one[*key], key)])).collect();
    table(&rows)
}

/// Prints JSON, as the API has it.
pub(super) fn print_json(value: &Value) -> anyhow::Result<i32> {
    print((indented(value) + "\n").as_bytes())
}
