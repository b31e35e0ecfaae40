//! Idempotent operations on containers: whatever the engine answers, or fails to answer, the result is exactly one container of
//! the wanted kind, or none. An unclear answer is never trusted.
//!
//! ```text
//! create ── yes ─────────────────────────────────────────────▶ one
//!   │ no, clearly ──────────────────────────────────────────▶ none: the error
//!   └ taken, or nobody knows ─▶ inspect by name ── ours ────▶ one: adopted
//!                                  │ an older one ─▶ remove ─┐
//!                                  └ none ─▶ pause ──────────┴─▶ create
//! ```
//!
//! The name is the same for every start of a task in its allocation, so there cannot be two containers; a label says which
//! start created it.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::{LABEL_ALLOC, LABEL_CONFIG, LABEL_NODE, LABEL_START};
use crate::docker::models::ContainerCreateBody;
use crate::docker::{Container, Engine, EngineError};
use crate::driver::DriverError;
use crate::driver::failed;
use crate::driver::streaming::{NOT_EXECUTABLE, NOT_FOUND};
use crate::spec::collections::BTreeMap;
use crate::sys::lock::lock;

/// First and longest pause between two tries.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often a call with an unclear outcome is made.
const TRIES: u32 = 6;
/// For how long an engine that does not answer is asked about the outcome.
const PATIENCE: Duration = Duration::from_mins(2);
/// Interval between further tries to remove a container whose removal failed.
const BURY_EVERY: Duration = Duration::from_secs(10);

/// Pauses that double each time.
struct Pauses(Duration);

impl Pauses {
    fn new() -> Pauses {
        Pauses(FIRST_PAUSE)
    }

    async fn next(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(LONGEST_PAUSE);
    }
}

/// The established outcome of a call, or why it could not be established.
type Known<T> = Result<T, EngineError>;

/// Repeats a query until there is an answer or `patience` has passed.
async fn ask<T, F: Future<Output = Known<T>>>(patience: Duration, call: impl Fn() -> F) -> Known<T> {
    let deadline = Instant::now() + patience;
    let mut pauses = Pauses::new();
    loop {
        match call().await {
            Err(error) if error.is_uncertain() && Instant::now() < deadline => pauses.next().await,
            other => return other,
        }
    }
}

/// A container that exists and belongs to this start.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) id: String,
    /// It ran before this start.
    pub(super) adopted: bool,
}

/// The lifecycle of a driver's containers on one engine.
#[derive(Debug, Clone)]
pub(super) struct Life {
    pub(super) engine: Engine,
    /// Names of containers that could not be removed yet, each with the start that created the container.
    graves: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Life {
    pub(super) fn new(engine: Engine) -> Life {
        Life { engine, graves: Arc::default() }
    }

    /// Creates the container of this name, or finds the one that an earlier call created. It is of the image with the id `image`,
    /// although `body` has the name of that image: the name may belong to another one by now.
    pub(super) async fn create(
        &self,
        name: &str,
        body: &ContainerCreateBody,
        image: &str,
        conflicts: u32,
    ) -> Result<Made, DriverError> {
        let made = self.create_as_named(name, body, conflicts).await?;
        if made.adopted {
            return Ok(made);
        }
        let start = body.labels.as_ref().and_then(|labels| labels.get(LABEL_START)).map_or("", String::as_str);
        match ask(PATIENCE, || self.engine.inspect(&made.id)).await {
            Ok(Some(container)) if container.image != image => {}
            // That it is gone is seen at its start.
            Ok(_) => return Ok(made),
            Err(silence) => {
                self.bury(name, start);
                return Err(failed(format!("Failed to inspect container {}: {silence}", made.id), true));
            }
        }
        tracing::info!(name, image, "the name of the image is another one's by now; using the id");
        if let Err(error) = self.remove_surely(name, start).await {
            return Err(failed(format!("Failed to purge container {}: {error}", made.id), true));
        }
        let exact = ContainerCreateBody { image: Some(image.to_owned()), ..body.clone() };
        self.create_as_named(name, &exact, conflicts).await
    }

    async fn create_as_named(
        &self,
        name: &str,
        body: &ContainerCreateBody,
        conflicts: u32,
    ) -> Result<Made, DriverError> {
        let labels = body.labels.clone().unwrap_or_default();
        let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
        let (start, alloc, config) = (label(LABEL_START), label(LABEL_ALLOC), label(LABEL_CONFIG));
        let node = label(LABEL_NODE);
        let (mut unclear, mut taken) = (0, 0);
        let mut pauses = Pauses::new();
        loop {
            let error = match self.engine.create(name, body).await {
                Ok(id) => return Ok(Made { id, adopted: false }),
                Err(error) => error,
            };
            let text = format!("Failed to create container: {error}");
            if !error.is_conflict() && !error.is_uncertain() {
                // "duplicate mount point" happens when two tasks are about to share a directory; a later try may succeed.
                let recoverable = error.is_not_found() || text.to_lowercase().contains("duplicate mount point");
                return Err(failed(text, recoverable));
            }
            let found = match ask(PATIENCE, || self.engine.inspect(name)).await {
                Ok(found) => found,
                Err(silence) => {
                    self.bury(name, &start);
                    return Err(failed(format!("{text}; what it has done is not known: {silence}"), true));
                }
            };
            match found {
                Some(container) if container.labels.get(LABEL_START) == Some(&start) => {
                    return Ok(Made { id: container.id, adopted: false });
                }
                Some(container) => {
                    taken += 1;
                    let of_ours = |key: &str, value: &str| container.labels.get(key).map(String::as_str) == Some(value);
                    let foreign = container.labels.get(LABEL_NODE).is_some_and(|other| *other != node);
                    if !of_ours(LABEL_ALLOC, &alloc) || foreign {
                        let text = format!(
                            "Failed to create container: the name {name:?} is taken by a container that is not this \
                             allocation's ({id:.12}); remove or rename it",
                            id = container.id
                        );
                        return Err(failed(text, false));
                    }
                    let same = container.labels.get(LABEL_CONFIG).is_none_or(|mark| *mark == config);
                    if container.running && same {
                        return Ok(Made { id: container.id, adopted: true });
                    }
                    if taken > conflicts {
                        return Err(failed(text, true));
                    }
                    if let Err(error) = self.remove(&container.id).await {
                        let id = container.id;
                        return Err(failed(format!("Failed to purge container {id}: {error}"), true));
                    }
                }
                // It was not created, or is still being created; the next try finds it by its name.
                None => {
                    unclear += 1;
                    if unclear >= TRIES {
                        self.bury(name, &start);
                        return Err(failed(text, true));
                    }
                }
            }
            pauses.next().await;
        }
    }

    /// Starts the container. Succeeds for one that runs or has run; its exit status is left to the code that waits for it.
    pub(super) async fn start(&self, id: &str) -> Result<Container, DriverError> {
        let mut pauses = Pauses::new();
        let mut tries = 0;
        loop {
            tries += 1;
            let result = self.engine.start(id).await;
            let seen = ask(PATIENCE, || self.engine.inspect(id)).await;
            let container = match (seen, &result) {
                (Ok(Some(container)), _) => container,
                (Ok(None), _) => return Err(failed(format!("Failed to start container {id}: it is gone"), true)),
                (Err(silence), _) => {
                    let text =
                        format!("Failed to start container {id}: what the engine has done is not known: {silence}");
                    return Err(failed(text, true));
                }
            };
            if container.running || container.was_started {
                return Ok(container);
            }
            let Err(error) = result else {
                return Err(failed(
                    format!("Failed to start container {id}: it does not run: {}", container.error),
                    true,
                ));
            };
            let text = format!("Failed to start container {id}: {error}");
            if !container.error.is_empty() || !error.is_uncertain() {
                // An engine that says why it failed would fail again, unless something was in the way.
                let recoverable = error.is_conflict() || (error.is_uncertain() && !error.is_answer());
                return Err(match container.exit_code {
                    NOT_FOUND => DriverError::CommandNotFound(text),
                    NOT_EXECUTABLE => DriverError::CommandNotExecutable(text),
                    _ => failed(text, recoverable),
                });
            }
            if tries >= TRIES {
                return Err(failed(text, true));
            }
            pauses.next().await;
        }
    }

    /// Changes the limits of a running container. Repeating that is harmless.
    pub(super) async fn update(&self, id: &str, limits: &Value) -> Known<()> {
        ask(PATIENCE, || self.engine.update(id, limits)).await
    }

    /// Kills and removes the container with this id or name; it is gone when this returns.
    pub(super) async fn remove(&self, id: &str) -> Known<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut pauses = Pauses::new();
        loop {
            let result = self.engine.remove(id).await;
            match self.engine.inspect(id).await {
                Ok(None) => return Ok(()),
                // The removal is in progress (the engine answers with a conflict), or its state is unknown.
                Ok(Some(_)) | Err(_) if Instant::now() < deadline => pauses.next().await,
                Ok(Some(_)) => {
                    let what = "remove the container";
                    let still = EngineError::Broken { what, problem: "it is still there".to_owned() };
                    return Err(result.err().unwrap_or(still));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes it now, or later as soon as the engine answers.
    pub(super) async fn remove_surely(&self, name: &str, start: &str) -> Known<()> {
        let removed = self.remove(name).await;
        if removed.is_err() {
            self.bury(name, start);
        }
        removed
    }

    /// Ends the container's processes: sends `signal`, or without one the container's own stop signal, and kills what still runs
    /// after `grace`.
    pub(super) async fn stop(&self, id: &str, grace: Duration, signal: Option<i32>) -> Known<()> {
        let deadline = Instant::now() + grace;
        let left = || deadline.saturating_duration_since(Instant::now());
        let gone = |container: Option<Container>| container.is_none_or(|container| !container.running);
        let mut pauses = Pauses::new();
        loop {
            let sent = match signal {
                Some(signal) => self.engine.kill(id, signal).await,
                None => self.engine.stop(id, left()).await,
            };
            if gone(ask(PATIENCE, || self.engine.inspect(id)).await?) {
                return Ok(());
            }
            // A signal that may have been delivered is not sent again.
            let undelivered = sent.is_err_and(|error| error.is_conflict() || error.never_arrived());
            if !undelivered || left().is_zero() {
                break;
            }
            pauses.next().await;
        }
        // Waits for the container's end, as the answer to the signal does not prove it.
        let mut pauses = Pauses::new();
        while !left().is_zero() {
            let _ended_or_silent = tokio::time::timeout(left(), self.engine.wait(id)).await;
            if matches!(self.engine.inspect(id).await, Ok(container) if gone(container.clone())) {
                return Ok(());
            }
            tokio::time::timeout(left(), pauses.next()).await.unwrap_or_default();
        }
        // Not by the engine's stop, which sends the container's stop signal first: a task that handles it would end with a status
        // of its own choice.
        let give_up = Instant::now() + PATIENCE;
        let mut pauses = Pauses::new();
        loop {
            let said = self.engine.kill(id, libc::SIGKILL).await;
            match self.engine.inspect(id).await {
                Ok(container) if gone(container.clone()) => return Ok(()),
                _ if Instant::now() >= give_up => {
                    let what = "stop the container";
                    let still = EngineError::Broken { what, problem: "it still runs".to_owned() };
                    return Err(said.err().unwrap_or(still));
                }
                _ => pauses.next().await,
            }
        }
    }

    /// Schedules the removal of a container whose engine does not answer now. It is skipped when another start has the name by
    /// then.
    fn bury(&self, name: &str, start: &str) {
        let mut graves = lock(&self.graves);
        let idle = graves.is_empty();
        graves.insert(name.to_owned(), start.to_owned());
        drop(graves);
        if idle {
            let life = self.clone();
            crate::sys::task::spawn(async move { life.bury_all().await });
        }
    }

    async fn bury_all(&self) {
        loop {
            tokio::time::sleep(BURY_EVERY).await;
            let graves = lock(&self.graves).clone();
            for (name, start) in graves {
                let done = match self.engine.inspect(&name).await {
                    Ok(None) => true,
                    Ok(Some(container)) if container.labels.get(LABEL_START) != Some(&start) => true,
                    Ok(Some(container)) => self.remove(&container.id).await.is_ok(),
                    Err(_) => false,
                };
                if done {
                    tracing::info!(name, "what an engine that did not answer had made is gone");
                    lock(&self.graves).remove(&name);
                }
            }
            if lock(&self.graves).is_empty() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{UnixListener, UnixStream};

    use super::*;
    use crate::docker::{Deadlines, Endpoint};

    /// The first line of a request, and its body.
    async fn request(stream: &mut UnixStream) -> (String, String) {
        let (mut text, mut buffer) = (String::new(), vec![0; 16 * 1024]);
        loop {
            let length = stream.read(&mut buffer).await.unwrap();
            assert_ne!(length, 0, "{text}");
            text.push_str(&String::from_utf8_lossy(&buffer[..length]));
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let lower = head.to_lowercase();
            let expected = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            if body.len() >= expected.unwrap_or(0) {
                return (head.lines().next().unwrap_or_default().to_owned(), body.to_owned());
            }
        }
    }

    /// An engine whose status and body for a request are those that `answer` returns for its first line and body.
    fn engine(dir: &Path, mut answer: impl FnMut(&str, &str) -> (u16, String) + Send + 'static) -> Engine {
        let socket = dir.join("sock");
        let listener = UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (line, body) = request(&mut stream).await;
                let (status, said) = answer(&line, &body);
                let head =
                    format!("HTTP/1.1 {status} X\r\nApi-Version: 1.41\r\nContent-Length: {}\r\n\r\n", said.len());
                stream.write_all((head + &said).as_bytes()).await.unwrap();
            }
        });
        Engine::new(&Endpoint::Unix(socket), Deadlines::default()).unwrap()
    }

    /// A name of an image may be given to another one at any time.
    #[tokio::test]
    async fn e1_a_container_is_of_the_image_that_was_found() {
        for (found, expected) in [("sha256:new", &["web:1"][..]), ("sha256:old", &["web:1", "sha256:old"])] {
            let (dir, images) = (tempfile::tempdir().unwrap(), Arc::new(Mutex::new(Vec::new())));
            let (asked, mut there) = (Arc::clone(&images), None);
            let engine = engine(dir.path(), move |line, body| {
                if line.contains("/containers/create?") {
                    let body: Value = serde_json::from_str(body).unwrap();
                    let image = body["Image"].as_str().unwrap().to_owned();
                    lock(&asked).push(image.clone());
                    there = Some(image.replace("web:1", "sha256:new"));
                } else if line.starts_with("DELETE ") {
                    there = None;
                }
                match &there {
                    Some(image) => (200, json!({ "Id": "0a", "Image": image }).to_string()),
                    None => (404, json!({ "message": "none" }).to_string()),
                }
            });
            let body = ContainerCreateBody { image: Some("web:1".to_owned()), ..ContainerCreateBody::default() };
            let life = Life::new(engine);
            assert_eq!(life.create("web", &body, found, 0).await.unwrap().id, "0a");
            let container = life.engine.inspect("0a").await.unwrap().unwrap();
            assert_eq!(container.image, found);
            assert_eq!(*lock(&images), expected);
        }
    }

    #[tokio::test]
    async fn e3_an_engine_that_says_why_a_start_fails_is_not_asked_again() {
        for (status, why, expected) in [(500, "no such device", false), (400, "", false), (409, "", true)] {
            let (dir, starts) = (tempfile::tempdir().unwrap(), Arc::new(Mutex::new(0)));
            let counted = Arc::clone(&starts);
            let engine = engine(dir.path(), move |line, _| {
                if line.contains("/start ") {
                    *lock(&counted) += 1;
                    return (status, json!({ "message": "no" }).to_string());
                }
                (200, json!({ "Id": "0a", "State": { "Error": why, "ExitCode": 128 } }).to_string())
            });
            let error = Life::new(engine).start("0a").await.unwrap_err();
            assert!(matches!(error, DriverError::Failed { recoverable, .. } if recoverable == expected), "{error:?}");
            assert_eq!(*lock(&starts), 1, "{error}");
        }
    }
}
