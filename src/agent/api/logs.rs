//! A task's output from its rotated files, as frames or plain.

use std::path::PathBuf;

use tokio::time::{Duration, Instant};

use super::answer::{Answer, Refusal};
use super::call::Call;
use super::{ENDING, Process, files};
use crate::agent::model::{Allocation, TaskStateName};
use crate::agent::state::{State, Table};
use crate::http::stream::stream;
use crate::logs::follower::{Finisher, Follower, Output, Start};
use crate::logs::framer::Followed;

/// The longest single wait for the end of a task.
const LOOK: Duration = Duration::from_hours(1);

pub(super) async fn logs(call: Call) -> Result<Answer, Refusal> {
    let task = call.query.text("task").ok_or_else(|| Refusal::bad("must provide task name"))?.to_owned();
    let kind = match call.query.get("type") {
        Some(kind @ ("stdout" | "stderr")) => kind.to_owned(),
        _ => return Err(Refusal::bad("must provide log type (stdout/stderr)")),
    };
    let (from_end, offset) = files::origin(&call)?;
    let wrong = |_| Refusal::bad("follow and plain must be true or false");
    let follow = call.query.switch("follow").map_err(wrong)?.unwrap_or(false);
    let plain = call.query.switch("plain").map_err(wrong)?.unwrap_or(false);
    let dir = dir(&call, &task)?;
    let start = match (from_end, offset) {
        (false, 0) => Start::Beginning,
        (false, offset) => Start::Offset(offset),
        (true, 0) => Start::End,
        (true, offset) => Start::LastBytes(offset),
    };
    let base = format!("{task}.{kind}");
    let missing = || Refusal::missing(format!("log entry for task {task:?} and log type {kind:?} not found"));
    let follower = Follower::open(&dir, &base, start).map_err(|_| missing())?;
    let finisher = follower.finisher();
    // `alloc logs -f` without further options asks for both outputs from their ends, and loops without pause when one of them
    // ends. All other streams end with their task.
    let ends = follow && !(from_end && offset == 0);
    if !follow {
        finisher.finish();
    }
    let (state, id) = (call.api.state.clone(), call.id().to_owned());
    let beside = async move {
        if ends {
            finish_with_task(state, id, task, finisher).await;
        }
        std::future::pending::<()>().await;
    };
    let process = call.api.process.clone();
    Ok(if plain {
        as_it_is(follower, beside, process)
    } else {
        files::framed(Followed::new(follower, "alloc/logs", &base), beside, process)
    })
}

/// Where the output of a task lies, if the task has been started.
fn dir(call: &Call, task: &str) -> Result<PathBuf, Refusal> {
    let dir = files::dir(call)?;
    let alloc = super::client::known(call)?;
    let state = alloc.task_states.get(task);
    let has = state.is_some() || alloc.allocated_resources.tasks.contains_key(task);
    // The name becomes part of a file name, so it must be that of a task.
    if !has || task.contains('/') {
        return Err(Refusal::bad(format!("unknown task name {task:?}")));
    }
    if state.is_none_or(|state| state.started_at.0.is_none()) {
        return Err(Refusal::missing(format!("task {task:?} not started yet. No logs available")));
    }
    Ok(dir.join("alloc").join("logs"))
}

/// Ends a stream when its task has ended for good.
async fn finish_with_task(state: State, alloc: String, task: String, finisher: Finisher) {
    loop {
        let found = state.read().and_then(|view| Ok((view.alloc(&alloc)?, view.table_index(Table::Allocs)?)));
        let Ok((found, seen)) = found else { break };
        if found.is_none_or(|found| has_ended(&found, &task)) {
            break;
        }
        state.wait(&[Table::Allocs], seen, Instant::now() + LOOK).await;
    }
    finisher.finish();
}

fn has_ended(alloc: &Allocation, task: &str) -> bool {
    let dead = alloc.task_states.get(task).is_none_or(|state| state.state == TaskStateName::Dead);
    dead || alloc.client_status.is_terminal()
}

fn as_it_is(mut follower: Follower, beside: impl Future<Output = ()> + Send + 'static, process: Process) -> Answer {
    let body = stream(move |out| async move {
        let reading = async {
            loop {
                match follower.next().await {
                    Ok(Some(Output::Data(data))) => {
                        if out.send(data).await.is_err() {
                            return;
                        }
                    }
                    Ok(Some(Output::Gap { .. })) => {}
                    Ok(None) => return,
                    Err(e) => return out.fail(e).await,
                }
            }
        };
        tokio::select! {
            () = reading => {}
            () = beside => {}
            // The output has no place for a word of ours: it is cut off, so that nobody takes it for whole.
            () = process.ends() => out.fail(std::io::Error::other(ENDING)).await,
        }
    });
    files::raw("text/plain", body)
}
