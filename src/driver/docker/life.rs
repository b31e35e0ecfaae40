//! Changes that converge: after whatever the engine answers, or does not, there is exactly the container that is wanted, or
//! none. Never trusts an answer that is not a clear one.
//!
//! ```text
//! create ── yes ─────────────────────────────────────────────▶ one
//!   │ no, clearly ──────────────────────────────────────────▶ none: the error
//!   └ taken, or nobody knows ─▶ inspect by name ── ours ────▶ one: adopted
//!                                  │ an older one ─▶ remove ─┐
//!                                  └ none ─▶ pause ──────────┴─▶ create
//! ```
//!
//! The name is the same for every start of a task in its allocation, so two cannot be; a label says which start made it.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::{LABEL_ALLOC, LABEL_CONFIG, LABEL_NODE, LABEL_START};
use crate::docker::models::ContainerCreateBody;
use crate::docker::{Container, Engine, EngineError};
use crate::driver::DriverError;
use crate::driver::handle::failed;
use crate::driver::streaming::{NOT_EXECUTABLE, NOT_FOUND};
use crate::sys::lock::lock;

/// First and longest pause between two tries.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often a call is made whose outcome stays unclear.
const TRIES: u32 = 6;
/// How long an engine that says nothing is asked for what it has done.
const PATIENCE: Duration = Duration::from_mins(2);
/// How often what could not be removed is tried again.
const BURY_EVERY: Duration = Duration::from_secs(10);

/// Pauses that double.
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

/// What was asked for and has come about, or why it could not be found out.
type Known<T> = Result<T, EngineError>;

/// Asks until there is an answer, for as long as an engine may be silent.
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

/// A container that is there and belongs to the start.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) id: String,
    /// It ran before this start.
    pub(super) adopted: bool,
}

/// What a driver has on an engine.
#[derive(Debug, Clone)]
pub(super) struct Life {
    pub(super) engine: Engine,
    /// Names of what could not be removed yet, with the start that has to go.
    graves: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Life {
    pub(super) fn new(engine: Engine) -> Life {
        Life { engine, graves: Arc::default() }
    }

    /// Makes the container of this name, or finds the one that an earlier call made.
    pub(super) async fn create(
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
                // "duplicate mount point" comes from two tasks that are about to share a directory; later it may work.
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
                // It was not made, or is still being made: its name says so next time.
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

    /// Starts the container. One that runs, or has run, is a success: what it came to is for those who wait to see.
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
                return Err(match container.exit_code {
                    NOT_FOUND => DriverError::CommandNotFound(text),
                    NOT_EXECUTABLE => DriverError::CommandNotExecutable(text),
                    _ => failed(text, error.is_conflict() || error.is_uncertain()),
                });
            }
            if tries >= TRIES {
                return Err(failed(text, true));
            }
            pauses.next().await;
        }
    }

    /// Kills and removes the container of this id or name; it is gone when this returns.
    pub(super) async fn remove(&self, id: &str) -> Known<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut pauses = Pauses::new();
        loop {
            let result = self.engine.remove(id).await;
            match self.engine.inspect(id).await {
                Ok(None) => return Ok(()),
                // It is going (the engine answers a conflict), or nobody knows.
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

    /// Removes it now, or as soon as the engine can be asked.
    pub(super) async fn remove_surely(&self, name: &str, start: &str) -> Known<()> {
        let removed = self.remove(name).await;
        if removed.is_err() {
            self.bury(name, start);
        }
        removed
    }

    /// Ends the container's processes. `signal` is sent first, or its own stop signal where there is none.
    pub(super) async fn stop(&self, id: &str, grace: Duration, signal: Option<i32>) -> Known<()> {
        let deadline = Instant::now() + grace;
        let gone = |container: Option<Container>| container.is_none_or(|container| !container.running);
        if let Some(signal) = signal {
            let mut pauses = Pauses::new();
            loop {
                let sent = self.engine.kill(id, signal).await;
                if gone(ask(PATIENCE, || self.engine.inspect(id)).await?) {
                    return Ok(());
                }
                // A signal that may have arrived is not sent twice.
                if !sent.is_err_and(|error| error.is_conflict()) || Instant::now() >= deadline {
                    break;
                }
                pauses.next().await;
            }
            // Its end, not an answer, is what is waited for.
            let mut pauses = Pauses::new();
            while Instant::now() < deadline {
                let left = deadline.saturating_duration_since(Instant::now());
                let _ended_or_silent = tokio::time::timeout(left, self.engine.wait(id)).await;
                if matches!(self.engine.inspect(id).await, Ok(container) if gone(container.clone())) {
                    return Ok(());
                }
                pauses.next().await;
            }
        }
        let grace = if signal.is_some() { Duration::ZERO } else { grace };
        let give_up = Instant::now() + grace + PATIENCE;
        let mut pauses = Pauses::new();
        let mut first = true;
        loop {
            // The second time the grace is over.
            let grace = if first { grace } else { Duration::ZERO };
            let said = self.engine.stop(id, grace).await;
            match self.engine.inspect(id).await {
                Ok(container) if gone(container.clone()) => return Ok(()),
                Ok(_) if !first => drop(self.engine.kill(id, libc::SIGKILL).await),
                _ => {}
            }
            if Instant::now() >= give_up {
                let what = "stop the container";
                let still = EngineError::Broken { what, problem: "it still runs".to_owned() };
                return Err(said.err().unwrap_or(still));
            }
            first = false;
            pauses.next().await;
        }
    }

    /// Removes a container later whose engine cannot be asked now, unless by then another start has its name.
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
