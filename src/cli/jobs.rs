//! `agentbin job` and `agentbin alloc stop`: the jobs of this machine's agent, over its API.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::ask::{ask, socket};
use super::output::indented;
use super::runs::{lasting, row, short, table};
use super::shown::Texts;
use super::{AllocStopArgs, ApiArgs, JobCommand, JobRunArgs, JobStatusArgs, JobStopArgs, complain, print, run};
use crate::agent::model::Nanos;
use crate::jobspec;
use crate::spec::json::json;
use crate::spec::{escaped_lines, percent_encoded};

/// Nomad's status for a job some of whose allocations could not be placed.
const UNPLACED: i32 = 2;
/// How long one question waits for a change.
const WAIT: &str = "60s";
/// How long allocations without a deployment have to start.
const START: Duration = Duration::from_secs(10);

/// The agent, and the namespace that is meant.
struct Api {
    socket: PathBuf,
    namespace: Option<String>,
}

impl Api {
    fn new(args: &ApiArgs) -> anyhow::Result<Api> {
        let of_nomad = || std::env::var("NOMAD_NAMESPACE").ok().filter(|name| !name.is_empty());
        Ok(Api { socket: socket(&args.at)?, namespace: args.namespace.clone().or_else(of_nomad) })
    }

    /// The answer to a question; `path` is escaped, and has a `?`.
    fn ask(&self, method: &str, path: &str, body: &str) -> anyhow::Result<Value> {
        let namespace = self.namespace.as_deref().unwrap_or("default");
        let path = format!("/v1/{path}&namespace={}", part(namespace));
        let answer = ask(&self.socket, method, &path, body)?;
        serde_json::from_str(&answer).context("cannot read the agent's answer")
    }

    fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.ask("GET", path, "")
    }

    /// The same, once the object has changed since this index, or after a minute.
    fn get_after(&self, path: &str, seen: &Value) -> anyhow::Result<Value> {
        self.get_within(path, seen, WAIT)
    }

    fn get_within(&self, path: &str, seen: &Value, wait: &str) -> anyhow::Result<Value> {
        let index = seen["ModifyIndex"].as_u64().unwrap_or(0);
        self.get(&format!("{path}?wait={wait}&index={index}"))
    }

    /// The id of the job that a word is the id or the beginning of the id of.
    fn job(&self, word: &str) -> anyhow::Result<String> {
        self.find("job", word, "agentbin job status lists them")
    }

    /// The same for whatever the API lists by the plural of this word; `fix` says where the ids are found.
    fn find(&self, kind: &str, word: &str, fix: &str) -> anyhow::Result<String> {
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
    fn decided(&self, eval: &str) -> anyhow::Result<(i32, String)> {
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
    fn deployed(&self, deployment: &str) -> anyhow::Result<i32> {
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
    fn started(&self, job: &str) -> anyhow::Result<()> {
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

    /// Waits until no allocation of a job runs.
    fn ended(&self, job: &str) -> anyhow::Result<()> {
        loop {
            let all = self.allocs(job)?;
            let Some(alive) = all.iter().find(|alloc| is_alive(alloc)) else { return Ok(()) };
            self.get_after(&format!("allocation/{}", text(alive, "ID")), alive)?;
        }
    }

    /// The allocations of a job, the newest first.
    fn allocs(&self, job: &str) -> anyhow::Result<Vec<Value>> {
        let Value::Array(mut all) = self.get(&format!("job/{}/allocations?", part(job)))? else {
            return Ok(Vec::new());
        };
        all.sort_by_key(|alloc| std::cmp::Reverse(alloc["CreateTime"].as_i64()));
        Ok(all)
    }
}

/// `agentbin job`. Whatever fails is status 1, as with Nomad's command.
pub(super) fn run_command(command: &JobCommand) -> i32 {
    let done = match command {
        JobCommand::Run(args) => start(args),
        JobCommand::Status(args) => status(args),
        JobCommand::Stop(args) => stop(args),
    };
    failed(done)
}

/// `agentbin alloc stop`.
pub(super) fn stop_alloc(args: &AllocStopArgs) -> i32 {
    let stop = || {
        let api = Api::new(&args.api)?;
        let id = api.find("allocation", &args.alloc, "agentbin job status JOB lists those of a job")?;
        let answer = api.ask("PUT", &format!("allocation/{id}/stop?"), "")?;
        if args.detach {
            return print(format!("{}\n", text(&answer, "EvalID")).as_bytes());
        }
        api.decided(text(&answer, "EvalID")).map(|(status, _)| status)
    };
    failed(stop())
}

fn failed(done: anyhow::Result<i32>) -> i32 {
    done.unwrap_or_else(|error| {
        complain(&crate::alloc::chain(error.as_ref()));
        1
    })
}

fn start(args: &JobRunArgs) -> anyhow::Result<i32> {
    let mut texts = Texts::default();
    let parsed = run::parsed(&args.file, &args.var, &args.var_file, false, &mut texts, jobspec::to_api);
    let mut request = parsed.map_err(|error| texts.explain(error))?;
    let mut job = request["Job"].take();
    let mut api = Api::new(&args.api)?;
    // The flag counts more than the file, and the file more than the environment.
    match (&args.api.namespace, job["Namespace"].as_str().filter(|name| !name.is_empty())) {
        (None, Some(of_file)) => api.namespace = Some(of_file.to_owned()),
        _ => job["Namespace"] = json!(api.namespace),
    }
    let id = text(&job, "ID").to_owned();
    let clock = job.get("Periodic").is_some_and(|value| !value.is_null());
    let answer = api.ask("PUT", "jobs?", &json!({ "Job": job, "Submission": submission(args, &texts) }).to_string())?;
    let warnings = text(&answer, "Warnings");
    if !warnings.is_empty() {
        complain(warnings);
    }
    let eval = text(&answer, "EvalID");
    if eval.is_empty() {
        let when = if clock { "its clock says so" } else { "it is dispatched" };
        complain(&format!("job {id:?} is registered, and starts when {when}"));
        return Ok(0);
    }
    if args.detach {
        return print(format!("{eval}\n").as_bytes());
    }
    let (mut status, deployment) = api.decided(eval)?;
    if status == 0 && !deployment.is_empty() {
        status = api.deployed(&deployment)?;
    }
    api.started(&id)?;
    let rows = alloc_rows(&api.allocs(&id)?);
    print(escaped_lines(&table(&rows)).as_bytes())?;
    Ok(status)
}

/// The text of a job file, as the agent keeps it for `nomad job inspect -hcl`.
fn submission(args: &JobRunArgs, texts: &Texts) -> Value {
    let source = texts.of(&args.file).unwrap_or_default();
    let flags = args.var.iter().filter_map(|given| given.split_once('='));
    let flags: serde_json::Map<String, Value> = flags.map(|(name, value)| (name.to_owned(), value.into())).collect();
    let variables: Vec<&str> = args.var_file.iter().filter_map(|file| texts.of(file)).collect();
    json!({
        "Source": source,
        "Format": if jobspec::is_json(source) { "json" } else { "hcl2" },
        "VariableFlags": flags,
        "Variables": variables.join("\n"),
    })
}

fn stop(args: &JobStopArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let mut status = 0;
    for word in &args.jobs {
        let id = api.job(word)?;
        let answer = api.ask("DELETE", &format!("job/{}?purge={}", part(&id), args.purge), "")?;
        let eval = text(&answer, "EvalID");
        if args.detach || eval.is_empty() {
            print(format!("{eval}\n").as_bytes())?;
            continue;
        }
        status = api.decided(eval)?.0.max(status);
        if !args.purge {
            api.ended(&id)?;
        }
    }
    Ok(status)
}

fn is_alive(alloc: &Value) -> bool {
    matches!(text(alloc, "ClientStatus"), "pending" | "running")
}

fn status(args: &JobStatusArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let Some(word) = &args.job else {
        let jobs = api.get("jobs?")?;
        if args.json {
            return print((indented(&jobs) + "\n").as_bytes());
        }
        let mut rows = vec![row(&["ID", "TYPE", "PRIORITY", "STATUS", "SUBMITTED"])];
        for job in list(&jobs) {
            let priority = job["Priority"].to_string();
            let submitted = ago(&job["SubmitTime"]);
            rows.push(row(&[text(job, "ID"), text(job, "Type"), &priority, &state(job), &submitted]));
        }
        return print(table(&rows).as_bytes());
    };
    let id = api.job(word)?;
    let of = part(&id);
    let job = api.get(&format!("job/{of}?"))?;
    if args.json {
        return print((indented(&job) + "\n").as_bytes());
    }
    let mut about = Vec::new();
    for (name, value) in [
        ("ID", id.clone()),
        ("Namespace", text(&job, "Namespace").to_owned()),
        ("Type", text(&job, "Type").to_owned()),
        ("Priority", job["Priority"].to_string()),
        ("Status", state(&job)),
        ("Version", job["Version"].to_string()),
        ("Submitted", ago(&job["SubmitTime"])),
    ] {
        about.push(row(&[name, &value]));
    }
    let mut out = table(&about);
    let summary = api.get(&format!("job/{of}/summary?"))?;
    let mut rows = vec![row(&["GROUP", "QUEUED", "STARTING", "RUNNING", "FAILED", "COMPLETE", "LOST"])];
    for (group, counts) in summary["Summary"].as_object().into_iter().flatten() {
        let mut cells = vec![group.clone()];
        cells
            .extend(["Queued", "Starting", "Running", "Failed", "Complete", "Lost"].map(|key| counts[key].to_string()));
        rows.push(cells);
    }
    let _ = write!(out, "\n{}", table(&rows));
    for eval in list(&api.get(&format!("job/{of}/evaluations?"))?) {
        if text(eval, "Status") == "blocked" {
            for (group, why) in eval["FailedTGAllocs"].as_object().into_iter().flatten() {
                let _ = write!(out, "\ngroup {group:?}: {}\n", refusal(why));
            }
        }
    }
    let deployment = api.get(&format!("job/{of}/deployment?"))?;
    if !deployment.is_null() {
        let about = [("Deployment", short(text(&deployment, "ID"))), ("Status", text(&deployment, "Status"))];
        let mut rows: Vec<Vec<String>> = about.iter().map(|(name, value)| row(&[name, value])).collect();
        rows.push(row(&["Description", text(&deployment, "StatusDescription")]));
        rows.push(row(&["Allocations", &healthy(&deployment)]));
        let _ = write!(out, "\n{}", table(&rows));
    }
    let allocs = api.allocs(&id)?;
    if !allocs.is_empty() {
        let _ = write!(out, "\n{}", table(&alloc_rows(&allocs)));
    }
    print(escaped_lines(&out).as_bytes())
}

fn alloc_rows(allocs: &[Value]) -> Vec<Vec<String>> {
    let mut rows = vec![row(&["ID", "GROUP", "VERSION", "DESIRED", "STATUS", "CREATED", "MODIFIED"])];
    for alloc in allocs {
        let version = alloc["JobVersion"].to_string();
        let (created, modified) = (ago(&alloc["CreateTime"]), ago(&alloc["ModifyTime"]));
        let cells = [short(text(alloc, "ID")), text(alloc, "TaskGroup"), &version, text(alloc, "DesiredStatus")];
        rows.push(row(&[&cells[..], &[text(alloc, "ClientStatus"), &created, &modified]].concat()));
    }
    rows
}

/// The status of a job, as Nomad's command shows it.
fn state(job: &Value) -> String {
    let status = text(job, "Status");
    if job["Stop"] == true { format!("{status} (stopped)") } else { status.to_owned() }
}

/// How many of the allocations of a deployment are healthy, by group.
fn healthy(deployment: &Value) -> String {
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
fn refusal(why: &Value) -> String {
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
fn ago(nanoseconds: &Value) -> String {
    let now = Nanos::of(std::time::SystemTime::now()).0;
    let then = nanoseconds.as_i64().filter(|then| *then > 0);
    then.map_or("-".to_owned(), |then| lasting(now.saturating_sub(then).max(0).unsigned_abs() / 1_000_000_000) + " ago")
}

/// A text as a part of a path, or as a value in a query.
fn part(text: &str) -> String {
    percent_encoded(text, b"")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}
