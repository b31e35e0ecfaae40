//! Sessions inside a task over WebSocket: all output is sent before the exit status, and pings keep an idle socket open.

use std::time::Duration;

use axum::extract::FromRequestParts as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::Call;
use super::answer::{Answer, Refusal};
use super::{ENDING, client};
use crate::agent::model::{TaskState, TaskStateName};
use crate::executor::ExecResponses;
use crate::http::StatusCode;
use crate::http::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use crate::spec::json;
use crate::spec::json::json;
use crate::wire::drivers::exec_task_streaming_request::{Setup, TerminalSize};
use crate::wire::drivers::{ExecTaskStreamingIoOperation, ExecTaskStreamingRequest, ExecTaskStreamingResponse};

/// Limit of concurrent sessions.
pub(super) const SESSIONS: usize = 128;
/// Capacity of the queue of a client's requests for the task.
const QUEUE: usize = 1;
/// Largest message of a client, in bytes; the command line sends 2 KiB at once. All sessions together hold some 25 MiB when
/// none of their tasks reads its input.
const MESSAGE: usize = 128 << 10;
/// Size of the read buffer: the library's default of 128 KiB would be allocated for every socket at once.
const READ: usize = 8 << 10;
/// Interval of pings on an idle socket.
const PING: Duration = Duration::from_secs(10);
/// A client that is silent for longer has vanished: its machine was suspended, or a firewall has forgotten the connection.
const SILENCE: Duration = Duration::from_secs(25);
/// Timeout for the client's first message in sessions that begin with a handshake.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long a client may leave a message unread: its user may be in a pager.
const STALL: Duration = Duration::from_mins(15);
/// Largest text of a close frame, in bytes (RFC 6455, 5.5).
const REASON: usize = 123;

/// What is to be run, and where.
struct Wanted {
    alloc: String,
    task: String,
    command: Vec<String>,
    tty: bool,
    /// The client's first message carries its token, which browsers cannot put into a header.
    handshake: bool,
}

pub(super) async fn exec(mut call: Call) -> Result<Answer, Refusal> {
    let wanted = wanted(&call);
    upgrade(&mut call, wanted).await
}

/// Reads the query. An error is reported over the socket, whose text the command line shows.
fn wanted(call: &Call) -> Result<Wanted, Refusal> {
    let alloc = client::known(call)?;
    let task = call.query.text("task").ok_or_else(|| Refusal::bad("task name is not provided"))?.to_owned();
    let wrong = |e: String| Refusal::bad(format!("tty value is not a boolean: {e}"));
    let tty = call.query.switch("tty").map_err(wrong)?.unwrap_or(false);
    let command = call.query.get("command").unwrap_or_default();
    let command: Vec<String> =
        json::from_str(command).map_err(|e| Refusal::bad(format!("command is not a JSON list of strings: {e}")))?;
    if command.is_empty() {
        return Err(Refusal::bad("command is not present"));
    }
    if !alloc.allocated_resources.tasks.contains_key(&task) && !alloc.task_states.contains_key(&task) {
        return Err(Refusal::bad(format!("task {task:?} not found in allocation {:?}", alloc.id)));
    }
    let state = alloc.task_states.get(&task);
    match state.map(|state| state.state) {
        Some(TaskStateName::Running) => {}
        Some(TaskStateName::Dead) => return Err(Refusal::missing(format!("task {task:?} is not running."))),
        Some(TaskStateName::Pending) | None => return Err(Refusal::missing(format!("task {task:?} not started yet."))),
    }
    let handshake = call.query.switch("ws_handshake").unwrap_or_default().unwrap_or(false);
    Ok(Wanted { alloc: alloc.id, task, command, tty, handshake })
}

/// `/v1/job/:id/action`: runs a command that is defined in the job file.
pub(super) async fn action(mut call: Call) -> Result<Answer, Refusal> {
    let wanted = named(&call);
    upgrade(&mut call, wanted).await
}

fn named(call: &Call) -> Result<Wanted, Refusal> {
    let text = |key: &str| call.query.text(key).ok_or_else(|| Refusal::bad(format!("{key} is not provided")));
    let (name, group, task) = (text("action")?, text("group")?, text("task")?);
    let view = call.api.state.read()?;
    let job = view.job(&call.job())?.ok_or_else(|| Refusal::missing("job not found"))?;
    let is = |value: &&Value, name: &str| value["Name"] == name;
    let groups = job.spec.get("TaskGroups").and_then(Value::as_array).into_iter().flatten();
    let found = groups
        .filter(|value| is(value, group))
        .flat_map(|value| value["Tasks"].as_array().into_iter().flatten())
        .filter(|value| is(value, task))
        .flat_map(|value| value["Actions"].as_array().into_iter().flatten())
        .find(|value| is(value, name))
        .ok_or_else(|| Refusal::missing(format!("action {name} not found in task {task}")))?;
    let args = found["Args"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    let command = found["Command"].as_str().map(str::to_owned).into_iter().chain(args).collect();
    let allocs = view.allocs_of_job(&call.job())?;
    let asked = call.query.text("allocID");
    let fits = allocs.iter().find(|alloc| {
        let is_running = |state: &TaskState| state.state == TaskStateName::Running;
        let is_it = asked.is_none_or(|id| id == alloc.id) && alloc.task_group == group;
        is_it && alloc.task_states.get(task).is_some_and(is_running)
    });
    let alloc = fits.ok_or_else(|| Refusal::missing("no such allocation of the job runs this task"))?.id.clone();
    let tty = call.query.switch("tty").unwrap_or_default().unwrap_or(false);
    let handshake = call.query.switch("ws_handshake").unwrap_or_default().unwrap_or(false);
    Ok(Wanted { alloc, task: task.to_owned(), command, tty, handshake })
}

/// Switches to WebSocket first and reports errors there: a WebSocket client shows no other text.
async fn upgrade(call: &mut Call, wanted: Result<Wanted, Refusal>) -> Result<Answer, Refusal> {
    let upgrade = WebSocketUpgrade::from_request_parts(&mut call.parts, &()).await;
    let upgrade = upgrade.map_err(|e| Refusal::new(e.status(), e.body_text()))?;
    // A connection that was upgraded no longer counts against its listener's limit.
    let busy = || Refusal::new(StatusCode::TOO_MANY_REQUESTS, format!("{SESSIONS} sessions are open; end one of them"));
    let place = call.api.process.sessions.clone().try_acquire_owned().map_err(|_| busy())?;
    let (engine, process) = (call.api.engine.clone(), call.api.process.clone());
    Ok(Answer::Raw(upgrade.max_message_size(MESSAGE).max_frame_size(MESSAGE).read_buffer_size(READ).on_upgrade(
        async move |mut socket| {
            let ended = match wanted {
                Err(refusal) => Err(refusal),
                Ok(wanted) => {
                    let (requests, stream) = mpsc::channel(QUEUE);
                    let begun = begin(&mut socket, &wanted, &requests).await;
                    match begun {
                        Err(refusal) => Err(refusal),
                        Ok(()) => {
                            match engine.exec(&wanted.alloc, &wanted.task, Box::pin(ReceiverStream::new(stream))).await
                            {
                                Ok(responses) => tokio::select! {
                                    ended = session(&mut socket, requests, responses) => ended,
                                    () = process.ends() => {
                                        Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, ENDING))
                                    }
                                },
                                Err(error) => Err(error.into()),
                            }
                        }
                    }
                }
            };
            close(socket, ended).await;
            drop(place);
        },
    )))
}

type Requests = mpsc::Sender<Result<ExecTaskStreamingRequest, tonic::Status>>;

/// Receives the handshake message if there is one, and queues the setup.
async fn begin(socket: &mut WebSocket, wanted: &Wanted, requests: &Requests) -> Result<(), Refusal> {
    if wanted.handshake {
        let first = tokio::time::timeout(PATIENCE, socket.recv()).await;
        let Ok(Some(Ok(Message::Text(text)))) = first else { return Err(Refusal::bad("the handshake did not come")) };
        let hello: Value =
            json::from_str(&text).map_err(|e| Refusal::bad(format!("the handshake is not JSON: {e}")))?;
        if hello["version"] != 1 {
            return Err(Refusal::bad(format!("unsupported handshake version {}", hello["version"])));
        }
    }
    let setup = Setup { task_id: String::new(), command: wanted.command.clone(), tty: wanted.tty };
    let setup = ExecTaskStreamingRequest { setup: Some(setup), ..ExecTaskStreamingRequest::default() };
    requests.send(Ok(setup)).await.map_err(|_| Refusal::failed("the session was not begun"))
}

/// How a session ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// The command has ended and its exit status was sent.
    Command,
    /// The client has disconnected.
    Client,
}

async fn session(socket: &mut WebSocket, requests: Requests, mut responses: ExecResponses) -> Result<Ended, Refusal> {
    // Whether the session still accepts input.
    let mut takes = true;
    // A client's message that the task has not accepted yet: meanwhile no further messages are read from the client.
    let mut pending: Option<ExecTaskStreamingRequest> = None;
    let mut ping = tokio::time::interval(PING);
    ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // A client that is there answers pings, or sends heartbeats; one whose messages are not read cannot be told from a silent one.
    let mut heard = Instant::now();
    loop {
        let place = async { if pending.is_some() { requests.reserve().await } else { std::future::pending().await } };
        tokio::select! {
            response = responses.next() => match response {
                Some(Ok(response)) => {
                    let began = Instant::now();
                    if tell(socket, &response).await.is_err() {
                        return Ok(Ended::Client);
                    }
                    if began.elapsed() > PING {
                        heard = Instant::now();
                    }
                    if response.exited {
                        return Ok(Ended::Command);
                    }
                }
                Some(Err(status)) => return Err(Refusal::failed(status.message())),
                None => return Err(Refusal::failed("the session ended without an exit status")),
            },
            place = place => if let Ok(place) = place {
                if let Some(request) = pending.take() { place.send(Ok(request)); }
                heard = Instant::now();
            } else {
                // The session accepts no more input; its output may continue.
                (takes, pending) = (false, None);
            },
            message = socket.recv(), if pending.is_none() => {
                heard = Instant::now();
                match message {
                    Some(Ok(Message::Text(text))) => pending = request(text.as_bytes())?.filter(|_| takes),
                    Some(Ok(Message::Binary(bytes))) => pending = request(&bytes)?.filter(|_| takes),
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(Ended::Client),
                }
            }
            _ = ping.tick() => {
                let is_gone = pending.is_none() && heard.elapsed() > SILENCE;
                if is_gone || send(socket, Message::Ping(Vec::new().into())).await.is_err() {
                    return Ok(Ended::Client);
                }
            }
        }
    }
}

/// A client's message; `None` for a heartbeat.
fn request(text: &[u8]) -> Result<Option<ExecTaskStreamingRequest>, Refusal> {
    let wrong = |why: String| Refusal::bad(format!("a message of the session cannot be read: {why}"));
    let message: Value = serde_json::from_slice(text).map_err(|e| wrong(e.to_string()))?;
    let stdin = &message["stdin"];
    if stdin.is_object() {
        let data = STANDARD.decode(stdin["data"].as_str().unwrap_or_default()).map_err(|e| wrong(e.to_string()))?;
        let close = stdin["close"].as_bool().unwrap_or(false);
        let stdin = Some(ExecTaskStreamingIoOperation { data, close });
        return Ok(Some(ExecTaskStreamingRequest { stdin, ..ExecTaskStreamingRequest::default() }));
    }
    let size = &message["tty_size"];
    if size.is_object() {
        let number = |key: &str| size[key].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
        let tty_size = Some(TerminalSize { height: number("height"), width: number("width") });
        return Ok(Some(ExecTaskStreamingRequest { tty_size, ..ExecTaskStreamingRequest::default() }));
    }
    Ok(None)
}

/// Sends the task's output before its exit status.
async fn tell(socket: &mut WebSocket, response: &ExecTaskStreamingResponse) -> Result<(), axum::Error> {
    for (name, output) in [("stdout", &response.stdout), ("stderr", &response.stderr)] {
        let Some(output) = output else { continue };
        let mut part = serde_json::Map::new();
        if !output.data.is_empty() {
            part.insert("data".to_owned(), STANDARD.encode(&output.data).into());
        }
        if output.close {
            part.insert("close".to_owned(), true.into());
        }
        send(socket, Message::Text(json!({name: part}).to_string().into())).await?;
    }
    if response.exited {
        let result = response.result.unwrap_or_default();
        let mut told = json!({"exit_code": result.exit_code});
        if result.signal != 0 {
            told["signal"] = result.signal.into();
        }
        send(socket, Message::Text(json!({"exited": true, "result": told}).to_string().into())).await?;
    }
    Ok(())
}

async fn send(socket: &mut WebSocket, message: Message) -> Result<(), axum::Error> {
    tokio::time::timeout(STALL, socket.send(message)).await.unwrap_or_else(|e| Err(axum::Error::new(e)))
}

/// Sends the close frame and waits until the client has acknowledged it.
async fn close(mut socket: WebSocket, ended: Result<Ended, Refusal>) {
    let (code, reason) = match ended {
        Ok(Ended::Client) => return,
        Ok(Ended::Command) => (1000, String::new()),
        // Service restart, of the registry of close codes.
        Err(refusal) if refusal.status == StatusCode::SERVICE_UNAVAILABLE => (1012, refusal.text),
        Err(refusal) if refusal.status.is_client_error() && refusal.status != StatusCode::REQUEST_TIMEOUT => {
            (1008, refusal.text)
        }
        Err(refusal) => (1011, refusal.text),
    };
    let mut reason = reason;
    while reason.len() > REASON {
        reason.pop();
    }
    if send(&mut socket, Message::Close(Some(CloseFrame { code, reason: reason.into() }))).await.is_ok() {
        let heard = async { while let Some(Ok(_)) = socket.recv().await {} };
        // A client that does not answer is disconnected.
        let _ = tokio::time::timeout(PING, heard).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_session_are_read() {
        let stdin = request(br#"{"stdin":{"data":"aGk=","close":true}}"#).unwrap().unwrap().stdin.unwrap();
        assert_eq!((stdin.data.as_ref(), stdin.close), (&b"hi"[..], true));
        let size = request(br#"{"tty_size":{"height":24,"width":80}}"#).unwrap().unwrap().tty_size.unwrap();
        assert_eq!((size.height, size.width), (24, 80));
        assert_eq!(request(b"{}").unwrap(), None);
        assert!(request(b"x").is_err() && request(br#"{"stdin":{"data":"!"}}"#).is_err());
    }
}
