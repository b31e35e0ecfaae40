//! A task's output from its rotated files, as frames or plain; where nobody collects it, what its driver keeps.

use std::io;
use std::path::PathBuf;

use tokio::time::{Duration, Instant};

use super::Call;
use super::answer::{Answer, Refusal};
use super::{ENDING, Process, files};
use crate::agent::engine::OrderError;
use crate::agent::model::{Allocation, TaskStateName};
use crate::agent::state::{State, Table};
use crate::alloc::control;
use crate::driver::KeptOutput;
use crate::http::stream::stream;
use crate::logs::follower::{Finisher, Follower, Output, Start};
use crate::logs::framer::{Followed, Framer, Piece, Source};
use crate::logs::ship::Stream;

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
    // `alloc logs -f` without further options asks for both outputs from their ends, and loops without pause when one of them
    // ends. All other streams end with their task.
    let ends = follow && !(from_end && offset == 0);
    // Without a file Nomad answers the same.
    let Some(follower) = Follower::open(&dir, &base, start).ok().filter(Follower::has_file) else {
        let stream = if kind == "stderr" { Stream::Stderr } else { Stream::Stdout };
        let kept = kept(&call, &task, stream, (from_end, offset), follow).await?;
        let missing = || Refusal::missing(format!("log entry for task {task:?} and log type {kind:?} not found"));
        let output = OnDemand { output: kept.ok_or_else(missing)?, name: format!("{base}.0"), stays: follow && !ends };
        let process = call.api.process.clone();
        return Ok(if plain {
            all_of(output, process)
        } else {
            files::framed(output, std::future::pending(), process)
        });
    };
    let finisher = follower.finisher();
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

/// What a driver keeps of the output of a task that nobody collects. A position near the end is found by counting first.
async fn kept(
    call: &Call,
    task: &str,
    stream: Stream,
    (from_end, offset): (bool, u64),
    follow: bool,
) -> Result<Option<Skipping>, Refusal> {
    let engine = &call.api.engine;
    let open = async |follow| match engine.kept_output(call.id(), task, stream, follow).await {
        // Its driver keeps nothing of a task that has ended.
        Err(OrderError::Refused(control::OrderError::NotRunning { .. })) => Ok(None),
        found => found,
    };
    let mut skip = offset;
    if from_end {
        let mut length = 0;
        let Some(mut counted) = open(false).await? else { return Ok(None) };
        while let Some(piece) = counted.next().await.map_err(|e| Refusal::failed(e.to_string()))? {
            length += piece.len() as u64;
        }
        skip = length.saturating_sub(offset);
    }
    Ok(open(follow).await?.map(|output| Skipping { output, skip, at: 0 }))
}

/// Output without its first bytes.
struct Skipping {
    output: KeptOutput,
    skip: u64,
    /// How far it was read.
    at: u64,
}

impl Skipping {
    /// The next piece that is not empty, and where it begins. Cancel safe.
    async fn next(&mut self) -> io::Result<Option<(u64, Vec<u8>)>> {
        while let Some(mut data) = self.output.next().await? {
            let first = usize::try_from(self.skip - self.at.min(self.skip)).unwrap_or(usize::MAX).min(data.len());
            let begin = self.at + first as u64;
            self.at += data.len() as u64;
            data.drain(..first);
            if !data.is_empty() {
                return Ok(Some((begin, data)));
            }
        }
        Ok(None)
    }
}

/// Such output as the only file of a task's log.
pub(super) struct OnDemand {
    output: Skipping,
    name: String,
    /// The stream stays open when the output has ended.
    stays: bool,
}

impl Source for OnDemand {
    async fn next(&mut self) -> io::Result<Option<Piece>> {
        match self.output.next().await? {
            Some((offset, data)) => Ok(Some(Piece { file: self.name.clone(), offset, data, event: None })),
            None if self.stays => std::future::pending().await,
            None => Ok(None),
        }
    }
}

impl files::Frames for Framer<OnDemand> {
    async fn frame(&mut self) -> Option<io::Result<Vec<u8>>> {
        self.next().await.transpose().map(|frame| frame.map(|frame| frame.to_json()))
    }
}

fn all_of(mut output: OnDemand, process: Process) -> Answer {
    let body = stream(move |out| async move {
        let reading = async {
            loop {
                match output.next().await {
                    Ok(Some(piece)) => {
                        if out.send(piece.data).await.is_err() {
                            return;
                        }
                    }
                    Ok(None) => return,
                    Err(e) => return out.fail(e).await,
                }
            }
        };
        tokio::select! {
            () = reading => {}
            // As above.
            () = process.ends() => out.fail(io::Error::other(ENDING)).await,
        }
    });
    files::raw("text/plain", body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn d4_kept_output_is_read_from_any_position() {
        for (skip, expected) in [
            (0, vec![(0, "abc"), (3, "de")]),
            (1, vec![(1, "bc"), (3, "de")]),
            (3, vec![(3, "de")]),
            (4, vec![(4, "e")]),
            (5, vec![]),
            (u64::MAX, vec![]),
        ] {
            let (sender, output) = KeptOutput::channel();
            for piece in ["abc", "", "de"] {
                sender.send(Ok(piece.into())).await.unwrap();
            }
            drop(sender);
            let (mut skipping, mut found) = (Skipping { output, skip, at: 0 }, Vec::new());
            while let Some((at, data)) = skipping.next().await.unwrap() {
                found.push((at, String::from_utf8(data).unwrap()));
            }
            let expected: Vec<_> = expected.into_iter().map(|(at, text)| (at, text.to_owned())).collect();
            assert_eq!(found, expected, "{skip}");
        }
    }
}
