//! Commands inside a running container. Never leaves one behind whose caller has gone, where the engine's machine is ours.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::DockerDriver;
use super::image::unknown;
use crate::docker::logs::{Channel, Frames};
use crate::docker::{Engine, ExecCommand};
use crate::driver::handle::failed;
use crate::driver::{DriverError, ExecOptions, ExecTaskResult, ExecTaskStreaming, TerminalSize};
use crate::spec::ExitResult;

/// How much of a command's output is kept, the last of it.
const KEPT: usize = 4096;
const BUFFER: usize = 16 * 1024;
/// What a terminal takes for the end of its input.
const END_OF_TRANSMISSION: u8 = 4;
/// How long the engine may take to see that a command has ended whose streams have.
const STATUS: Duration = Duration::from_secs(10);
const STATUS_PAUSE: Duration = Duration::from_millis(20);

fn keep_last(kept: &mut Vec<u8>, more: &[u8]) {
    kept.extend_from_slice(more);
    let surplus = kept.len().saturating_sub(KEPT);
    kept.drain(..surplus);
}

/// Runs a command to its end and keeps the last of what it says.
pub(super) async fn run(
    engine: &Engine,
    container: &str,
    command: &[String],
    timeout: Duration,
) -> Result<ExecTaskResult, DriverError> {
    if command.is_empty() {
        return Err(failed("cmd is required, but was empty".to_owned(), false));
    }
    let running = async {
        let command = ExecCommand { command: command.to_vec(), tty: false, stdin: false };
        let id = engine.exec_create(container, &command).await.map_err(|e| unknown(&e))?;
        let mut streams = engine.exec_start(&id, false).await.map_err(|e| unknown(&e))?;
        let (mut frames, mut buffer) = (Frames::default(), vec![0; BUFFER]);
        let mut result = ExecTaskResult::default();
        loop {
            let length = streams.read(&mut buffer).await.map_err(|e| failed(e.to_string(), true))?;
            if length == 0 {
                break;
            }
            frames.push(&buffer[..length]);
            while let Some((channel, data)) = frames.next_frame().map_err(|e| failed(e.to_string(), false))? {
                match channel {
                    Channel::Stdout => keep_last(&mut result.stdout, data),
                    Channel::Stderr => keep_last(&mut result.stderr, data),
                }
            }
        }
        result.exit = status(engine, &id).await?;
        Ok(result)
    };
    tokio::time::timeout(timeout, running)
        .await
        .unwrap_or_else(|_| Err(failed(format!("the command did not end within {timeout:?}"), false)))
}

/// The exit status of a command whose streams have ended.
async fn status(engine: &Engine, id: &str) -> Result<ExitResult, DriverError> {
    let deadline = tokio::time::Instant::now() + STATUS;
    loop {
        let state = engine.exec_inspect(id).await.map_err(|e| unknown(&e))?;
        if !state.running {
            return Ok(ExitResult { exit_code: state.exit_code, ..ExitResult::default() });
        }
        if tokio::time::Instant::now() >= deadline {
            // Its streams are closed, and it goes on.
            return Err(failed("the command closed its output and did not end".to_owned(), false));
        }
        tokio::time::sleep(STATUS_PAUSE).await;
    }
}

#[tonic::async_trait]
impl ExecTaskStreaming for DockerDriver {
    async fn exec_task_streaming(&self, id: &str, mut options: ExecOptions) -> Result<ExitResult, DriverError> {
        let (task, life) = (self.0.task(id)?, self.0.life()?);
        let engine = &life.engine;
        let tty = options.tty;
        let command = ExecCommand { command: options.command, tty, stdin: true };
        let id = engine.exec_create(&task.container, &command).await.map_err(|e| unknown(&e))?;
        let streams = engine.exec_start(&id, tty).await.map_err(|e| unknown(&e))?;
        let (mut from, mut to) = tokio::io::split(streams);
        let input = async {
            // It may end before its input does.
            let _closed = tokio::io::copy(&mut options.stdin, &mut to).await;
            if tty {
                // Hanging up would end what still runs: a terminal says it with a character.
                let _gone = to.write_all(&[END_OF_TRANSMISSION]).await;
            } else {
                let _closed = to.shutdown().await;
            }
            std::future::pending::<std::convert::Infallible>().await
        };
        let sizes = async {
            loop {
                let size = *options.resize.borrow_and_update();
                if size != TerminalSize::default()
                    && let Err(error) = engine.exec_resize(&id, size.height, size.width).await
                {
                    tracing::debug!(%error, "setting the size of a terminal");
                }
                if options.resize.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let output = async {
            let (mut frames, mut buffer) = (Frames::default(), vec![0; BUFFER]);
            loop {
                let length = match from.read(&mut buffer).await {
                    Ok(0) | Err(_) => break,
                    Ok(length) => length,
                };
                if tty {
                    // A caller that does not read any more is seen by the one who called this.
                    let _gone = options.stdout.write_all(&buffer[..length]).await;
                    continue;
                }
                frames.push(&buffer[..length]);
                while let Some((channel, data)) = frames.next_frame().map_err(|e| failed(e.to_string(), false))? {
                    let _gone = match channel {
                        Channel::Stdout => options.stdout.write_all(data).await,
                        Channel::Stderr => options.stderr.write_all(data).await,
                    };
                }
            }
            Ok::<(), DriverError>(())
        };
        tokio::select! {
            output = output => output?,
            never = input => match never {},
            () = sizes => {}
        }
        let _closed = options.stdout.shutdown().await;
        let _closed = options.stderr.shutdown().await;
        status(engine, &id).await
    }
}
