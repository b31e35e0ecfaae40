//! `agentbin job` and `agentbin alloc stop`: the jobs of this machine's agent, over its API.

use std::fmt::Write as _;
use std::io::Read as _;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::api::{
    Api, ChangeArgs, FindArgs, OneArgs, PromoteArgs, ShowArgs, ago, failed, follow, healthy, list, part, print_json,
    print_list, refusal, text,
};
use super::runs::{row, short, table};
use super::shown::Texts;
use super::{
    JobCommand, JobDispatchArgs, JobRevertArgs, JobRunArgs, JobScaleArgs, JobStopArgs, PeriodicCommand, complain,
    job_plan, job_restart, job_tag, print, run,
};
use crate::jobspec;
use crate::spec::escaped_lines;
use crate::spec::json::json;

/// Most bytes of a payload that are read; the agent says that fewer are allowed.
const PAYLOAD: u64 = 1 << 20;

/// `agentbin job`. Whatever fails is status 1, as with Nomad's command.
pub(super) fn run_command(command: &JobCommand) -> i32 {
    let done = match command {
        JobCommand::Run(args) => start(args),
        JobCommand::Status(args) => status(args),
        JobCommand::Stop(args) => stop(args),
        JobCommand::Plan(args) => return job_plan::plan(args),
        JobCommand::Dispatch(args) => dispatch(args),
        JobCommand::Scale(args) => scale(args),
        JobCommand::Revert(args) => revert(args),
        JobCommand::Promote(args) => promote(args),
        JobCommand::History(args) => history(args),
        JobCommand::Inspect(args) => inspect(args),
        JobCommand::Eval(args) => cause(args, "evaluate"),
        JobCommand::Allocs(args) => allocs(args),
        JobCommand::Deployments(args) => deployments(args),
        JobCommand::Restart(args) => return job_restart::run(args),
        JobCommand::Tag(command) => return job_tag::run(command),
        JobCommand::Periodic(PeriodicCommand::Force(args)) => cause(args, "periodic/force"),
    };
    failed(done)
}

/// `agentbin alloc stop`.
pub(super) fn stop_alloc(args: &ChangeArgs) -> i32 {
    let stop = || {
        let api = Api::new(&args.api)?;
        let id = api.find("allocation", &args.id, "agentbin job status JOB lists those of a job")?;
        // As Nomad's: one of a batch job begins again as its policy says.
        let is_batch = api.get(&format!("allocation/{id}?"))?["Job"]["Type"] == "batch";
        let answer = api.ask("PUT", &format!("allocation/{id}/stop?reschedule={is_batch}"), "")?;
        if args.detach {
            return print(format!("{}\n", text(&answer, "EvalID")).as_bytes());
        }
        api.decided(text(&answer, "EvalID")).map(|(status, _)| status)
    };
    failed(stop())
}

fn start(args: &JobRunArgs) -> anyhow::Result<i32> {
    let mut texts = Texts::default();
    let parsed = run::parsed(&args.file, &args.var, &args.var_file, false, &mut texts, jobspec::to_api);
    let mut request = parsed.map_err(|error| texts.explain(error))?;
    let mut job = request["Job"].take();
    let api = Api::for_job(&args.api, &mut job)?;
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

fn status(args: &FindArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let Some(word) = &args.id else {
        let jobs = api.get("jobs?")?;
        if args.json {
            return print_json(&jobs);
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
        return print_json(&job);
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

/// Starts a parameterized job; its id is printed.
fn dispatch(args: &JobDispatchArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let id = api.job(&args.job)?;
    let payload = match &args.payload {
        None => Vec::new(),
        Some(path) if path.as_os_str() == "-" => {
            let mut read = Vec::new();
            std::io::stdin().lock().take(PAYLOAD).read_to_end(&mut read).context("cannot read standard input")?;
            read
        }
        Some(path) => {
            let file = std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            let mut read = Vec::new();
            file.take(PAYLOAD).read_to_end(&mut read).with_context(|| format!("cannot read {}", path.display()))?;
            read
        }
    };
    let asked = json!({ "Meta": pairs(&args.meta, "-meta")?, "Payload": STANDARD.encode(payload) });
    let answer = api.ask("PUT", &format!("job/{}/dispatch?", part(&id)), &asked.to_string())?;
    print(format!("{}\n", text(&answer, "DispatchedJobID")).as_bytes())?;
    if args.detach {
        return Ok(0);
    }
    follow(&api, &answer, false)
}

/// `KEY=VALUE` words as an object.
pub(super) fn pairs(given: &[String], what: &str) -> anyhow::Result<serde_json::Map<String, Value>> {
    let pair = |word: &String| {
        let (key, value) = word.split_once('=').with_context(|| format!("{what} {word:?}: give KEY=VALUE"))?;
        Ok((key.to_owned(), value.into()))
    };
    given.iter().map(pair).collect()
}

fn scale(args: &JobScaleArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let id = api.job(&args.job)?;
    let (group, count) = match &args.count[..] {
        [group, count] => (group.clone(), count),
        [count] => {
            let job = api.get(&format!("job/{}?", part(&id)))?;
            let [only] = list(&job["TaskGroups"]) else {
                bail!("job {id:?} has several groups; name one before the count")
            };
            (text(only, "Name").to_owned(), count)
        }
        _ => bail!("give a count"),
    };
    let count: u32 = count.parse().with_context(|| format!("{count:?} is not a count"))?;
    let asked =
        json!({ "Count": count, "Target": { "Group": group }, "Message": "submitted using agentbin job scale" });
    let answer = api.ask("PUT", &format!("job/{}/scale?", part(&id)), &asked.to_string())?;
    follow(&api, &answer, args.detach)
}

fn revert(args: &JobRevertArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let id = api.job(&args.job)?;
    let asked = json!({ "JobID": id, "JobVersion": version(&api, &id, &args.version)? });
    let answer = api.ask("PUT", &format!("job/{}/revert?", part(&id)), &asked.to_string())?;
    follow(&api, &answer, args.detach)
}

/// The number of a version that is given by it or by its tag.
fn version(api: &Api, id: &str, given: &str) -> anyhow::Result<u64> {
    if let Ok(number) = given.parse() {
        return Ok(number);
    }
    let answer = api.get(&format!("job/{}/versions?", part(id)))?;
    let tagged = list(&answer["Versions"]).iter().find(|version| text(&version["VersionTag"], "Name") == given);
    let number = tagged.and_then(|version| version["Version"].as_u64());
    number.with_context(|| format!("job {id:?} has no version with the tag {given:?}; agentbin job history lists them"))
}

fn allocs(args: &ShowArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let all = api.allocs(&api.job(&args.id)?)?;
    if args.json {
        return print_json(&all.into());
    }
    print(escaped_lines(&table(&alloc_rows(&all))).as_bytes())
}

fn deployments(args: &ShowArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let all = api.get(&format!("job/{}/deployments?", part(&api.job(&args.id)?)))?;
    print_list(&all, args.json, &super::deployments::COLUMNS)
}

fn promote(args: &PromoteArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let id = api.job(&args.id)?;
    let deployment = api.get(&format!("job/{}/deployment?", part(&id)))?;
    let Some(of) = deployment["ID"].as_str() else { bail!("job {id:?} has no deployment to promote") };
    super::deployments::promote(&api, of, &args.group, args.detach)
}

fn history(args: &ShowArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let id = api.job(&args.id)?;
    let answer = api.get(&format!("job/{}/versions?", part(&id)))?;
    let columns = [
        ("VERSION", "Version"),
        ("STABLE", "Stable"),
        ("STOPPED", "Stop"),
        ("SUBMITTED", "SubmitTime"),
        ("TAG", "VersionTag"),
    ];
    print_list(&answer["Versions"], args.json, &columns)
}

fn inspect(args: &OneArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let id = api.job(&args.id)?;
    print_json(&json!({ "Job": api.get(&format!("job/{}?", part(&id)))? }))
}

/// Asks for an evaluation of a job.
fn cause(args: &ChangeArgs, how: &str) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let id = api.job(&args.id)?;
    let answer = api.ask("PUT", &format!("job/{}/{how}?", part(&id)), &json!({ "JobID": id }).to_string())?;
    follow(&api, &answer, args.detach)
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
