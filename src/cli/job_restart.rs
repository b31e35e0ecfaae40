//! `agentbin job restart`: restarts what runs of a job, batch by batch.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use super::api::{Api, failed, part, text};
use super::runs::{short, wait_for};
use super::{ApiArgs, args, print};
use crate::spec::escaped_lines;
use crate::spec::json::json;

#[derive(Debug, clap::Args)]
pub(super) struct RestartArgs {
    /// Id of a job, or the beginning of one
    job: String,
    /// Only allocations of these groups [default: all]
    #[arg(long, value_name = "GROUP")]
    group: Vec<String>,
    /// Only this task [default: all that run]
    #[arg(long, value_name = "TASK", conflicts_with_all = ["all_tasks", "reschedule"])]
    task: Option<String>,
    /// Restart all tasks, also those that have ended
    #[arg(long, conflicts_with = "reschedule")]
    all_tasks: bool,
    /// Stop allocations, which the agent replaces, instead of restarting them in place
    #[arg(long)]
    reschedule: bool,
    /// How many allocations are restarted at the same time: a number, or a part of all of them (25%)
    #[arg(long, value_name = "COUNT", default_value = "1")]
    batch_size: String,
    /// Wait this long between batches
    #[arg(long, value_name = "DURATION", value_parser = args::duration, default_value = "0s")]
    batch_wait: Duration,
    #[command(flatten)]
    api: ApiArgs,
}

/// How many of all are restarted at the same time.
fn batch(text: &str, all: usize) -> Option<usize> {
    let (digits, percent) = text.strip_suffix('%').map_or((text, false), |digits| (digits, true));
    match digits.parse() {
        Ok(part @ 1..=100) if percent => Some(all.saturating_mul(part).div_ceil(100).max(1)),
        Ok(count @ 1..) if !percent => Some(count),
        _ => None,
    }
}

/// Stops at the first allocation that does not run again. Whatever fails is status 1, as with Nomad's command.
pub(super) fn run(args: &RestartArgs) -> i32 {
    failed(restarted(args))
}

fn restarted(args: &RestartArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let id = api.job(&args.job)?;
    let all = api.allocs(&id)?;
    for group in &args.group {
        ensure!(all.iter().any(|alloc| text(alloc, "TaskGroup") == group), "job {id:?} has no allocation of {group:?}");
    }
    let is_meant = |alloc: &&Value| {
        let is_of_group = args.group.is_empty() || args.group.iter().any(|group| text(alloc, "TaskGroup") == group);
        text(alloc, "ClientStatus") == "running" && text(alloc, "DesiredStatus") == "run" && is_of_group
    };
    let meant: Vec<&Value> = all.iter().filter(is_meant).collect();
    ensure!(!meant.is_empty(), "no allocation of job {id:?} runs");
    let has_task = |task: &String| meant.iter().any(|alloc| !alloc["TaskStates"][task].is_null());
    if let Some(task) = args.task.as_ref().filter(|task| !has_task(task)) {
        bail!("no allocation of job {id:?} has a task {task:?}");
    }
    let size = batch(&args.batch_size, meant.len());
    let size = size.with_context(|| format!("--batch-size {}: give a number, or 1% to 100%", args.batch_size))?;
    for (number, batch) in meant.chunks(size).enumerate() {
        if number > 0 {
            wait_for(async {
                tokio::time::sleep(args.batch_wait).await;
                Ok(())
            })?;
        }
        let mut ordered = Vec::new();
        for alloc in batch {
            ordered.push(order(&api, args, alloc)?);
        }
        for (alloc, eval) in batch.iter().zip(ordered) {
            let (name, old) = (text(alloc, "Name"), text(alloc, "ID"));
            let done = if let Some(eval) = eval {
                format!("replaced by {}", short(&replaced(&api, old, &eval)?))
            } else {
                again(&api, alloc, args.task.as_deref())?;
                "restarted".to_owned()
            };
            print(escaped_lines(&format!("{} {name} {done}\n", short(old))).as_bytes())?;
        }
    }
    Ok(0)
}

/// The id of the evaluation that replaces it, if it is replaced.
fn order(api: &Api, args: &RestartArgs, alloc: &Value) -> anyhow::Result<Option<String>> {
    let id = part(text(alloc, "ID"));
    let about = || format!("allocation {}", short(text(alloc, "ID")));
    if args.reschedule {
        let answer = api.ask("PUT", &format!("allocation/{id}/stop?"), "").with_context(about)?;
        return Ok(Some(text(&answer, "EvalID").to_owned()));
    }
    let asked = json!({ "TaskName": args.task, "AllTasks": args.all_tasks });
    api.ask("PUT", &format!("client/allocation/{id}/restart?"), &asked.to_string()).with_context(about)?;
    Ok(None)
}

/// Waits until the tasks that ran have started again.
fn again(api: &Api, before: &Value, only: Option<&str>) -> anyhow::Result<()> {
    let id = text(before, "ID");
    let ran = before["TaskStates"].as_object().into_iter().flatten();
    let ran: Vec<(&String, &Value)> = ran
        .filter(|(name, state)| text(state, "State") == "running" && only.is_none_or(|only| only == *name))
        .collect();
    let mut now = before.clone();
    loop {
        let status = text(&now, "ClientStatus");
        ensure!(matches!(status, "running" | "pending"), "allocation {} is {status}", short(id));
        let is_again = |(name, then): &(&String, &Value)| {
            let state = &now["TaskStates"][*name];
            text(state, "State") == "running" && state["StartedAt"] != then["StartedAt"]
        };
        if ran.iter().all(is_again) {
            return Ok(());
        }
        now = api.get_after(&format!("allocation/{}", part(id)), &now)?;
    }
}

/// Waits until what replaces an allocation runs; its id.
fn replaced(api: &Api, old: &str, eval: &str) -> anyhow::Result<String> {
    api.decided(eval)?;
    let id = text(&api.get(&format!("allocation/{}?", part(old)))?, "NextAllocation").to_owned();
    ensure!(!id.is_empty(), "allocation {} is stopped, and nothing replaces it", short(old));
    let mut now = api.get(&format!("allocation/{}?", part(&id)))?;
    loop {
        match text(&now, "ClientStatus") {
            "pending" => now = api.get_after(&format!("allocation/{}", part(&id)), &now)?,
            "running" | "complete" => return Ok(id),
            other => bail!("allocation {}, which replaces {}, is {other}", short(&id), short(old)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::batch;

    #[test]
    fn sizes_of_batches() {
        let of = |text: &str| batch(text, 10);
        assert_eq!([of("3"), of("25%"), of("1%"), of("100%")], [Some(3), Some(3), Some(1), Some(10)]);
        for text in ["0", "0%", "101%", "-1", "x", "", "%"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
