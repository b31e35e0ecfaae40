//! Nomad's HTTP API of one node: checks and routes requests here, and answers them from the state, the commands and the engine.
//! One file per group of endpoints. Never decides about jobs.
//!
//! ```text
//!   request ──▶ auth: who ──▶ routes: what, with which ids, for which role ──▶ handler ──▶ answer: headers, form, gzip
//! ```

mod agent;
mod allocations;
mod answer;
mod auth;
mod call;
mod client;
mod csi;
mod deployments;
mod evaluations;
mod events;
mod exec;
mod files;
pub mod filter;
mod fixed;
mod input;
mod job;
mod jobs;
mod limits;
mod lists;
mod logs;
mod metrics;
mod namespaces;
mod nodes;
mod operator;
mod parse;
mod routes;
mod scaling;
mod search;
mod services;
mod shape;
mod tokens;
mod upgrade;
mod vars;
mod versions;
mod volumes;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, oneshot, watch};

use super::Agent;
use super::commands::Commands;
use super::engine::Engine;
use super::model::Role;
use super::state::State;
use crate::http::listener::Peer;
use crate::http::query::Query;
use crate::http::route::Router;
use crate::http::serve::{self, Handler};
use crate::http::{Incoming, Method, Parts, Request};
pub(crate) use agent::followed_level;
use answer::{Answer, Refusal};
use auth::Caller;
pub use auth::{Allowed, Security};

/// The agent's description of itself.
#[derive(Debug, Clone)]
pub struct About {
    /// Its name.
    pub name: String,
    /// The one region that there is.
    pub region: String,
    /// The data center.
    pub datacenter: String,
    /// The version of Nomad whose API this is, as jobs may ask for it.
    pub nomad_version: String,
    /// The version of this program.
    pub version: String,
    /// Where its data lies.
    pub data_dir: PathBuf,
    /// Its configuration as it may be shown: without secrets, in any form.
    pub config: Value,
    /// When it was started.
    pub started: SystemTime,
}

/// A line of the agent's own log.
#[derive(Debug, Clone)]
pub struct LogLine {
    /// Its severity.
    pub level: tracing::Level,
    /// The line as text, with its line end.
    pub text: Arc<str>,
}

/// One request: it is answered when the new program takes over, or with the reason why it does not.
pub type Upgrade = oneshot::Sender<Result<(), String>>;

/// Where requests go.
pub type Replacing = mpsc::Sender<Upgrade>;

/// How the process that serves the API and its handlers know of each other's end.
#[derive(Debug, Clone)]
pub struct Process {
    /// Becomes true when the process is about to end: then whatever would go on for long ends.
    pub ending: watch::Receiver<bool>,
    /// Limits the number of sessions, each of which holds a permit: at the end the process waits for them.
    pub sessions: Arc<Semaphore>,
    /// Requests to replace the program of the process.
    pub replacing: Replacing,
}

impl Process {
    /// The sessions that may be open at once.
    pub const SESSIONS: usize = exec::SESSIONS;

    /// Returns when the process is about to end.
    async fn ends(mut self) {
        if self.ending.wait_for(|ending| *ending).await.is_err() {
            // The serving process says nothing about its end, as in a test.
            std::future::pending::<()>().await;
        }
    }
}

/// What a stream or a session says when its agent ends.
const ENDING: &str = "the agent ends or is being upgraded: connect again";

/// The API of an agent.
pub struct Api {
    state: State,
    engine: Arc<dyn Engine>,
    commands: Commands,
    about: About,
    security: Security,
    log: broadcast::Sender<LogLine>,
    router: Router<Vec<Route>>,
    process: Process,
    /// Budget in KiB for large bodies in progress.
    room: Arc<Semaphore>,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api").field("about", &self.about).finish_non_exhaustive()
    }
}

impl Api {
    /// The API of this agent. `log` feeds `/v1/agent/monitor`.
    #[must_use]
    #[expect(clippy::new_ret_no_self, reason = "a server takes nothing but a handler")]
    pub fn new(
        agent: Agent,
        about: About,
        security: Security,
        log: broadcast::Sender<LogLine>,
        process: Process,
    ) -> Arc<dyn Handler> {
        Arc::new(Answers(Arc::new(Api {
            state: agent.state,
            engine: agent.engine,
            commands: agent.commands,
            about,
            security,
            log,
            router: routes::router(),
            process,
            room: Arc::new(Semaphore::new(call::ROOM)),
        })))
    }
}

/// The future that a handler returns.
type Answering = Pin<Box<dyn Future<Output = Result<Answer, Refusal>> + Send>>;

/// A request whose route was found and whose sender is authorized.
struct Call {
    api: Arc<Api>,
    /// The ids in the path, in its order.
    ids: Vec<String>,
    query: Query,
    parts: Parts,
    caller: Caller,
    body: Option<Incoming>,
    /// Bytes of a body, at most.
    limit: usize,
    /// The body's share of the budget for large bodies.
    place: Option<OwnedSemaphorePermit>,
}

/// The action on the resource in the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verb {
    /// Read.
    Get,
    /// Write or execute: PUT and POST.
    Put,
    /// Remove.
    Delete,
}

impl Verb {
    /// The method; PUT stands for POST, too.
    const fn as_str(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Put => "PUT",
            Verb::Delete => "DELETE",
        }
    }
}

/// How an answer is produced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// From the agent's data.
    Served,
    /// The same for every agent, for features that a single machine does not have.
    Fixed,
    /// Status 501 with the reason.
    Refused,
}

impl Kind {
    /// As one word.
    const fn as_str(self) -> &'static str {
        match self {
            Kind::Served => "served",
            Kind::Fixed => "fixed",
            Kind::Refused => "501",
        }
    }
}

/// One row.
#[derive(Clone, Copy)]
struct Route {
    verb: Verb,
    pattern: &'static str,
    role: Role,
    kind: Kind,
    /// Bytes of a body, at most.
    limit: usize,
    run: fn(Call) -> Answering,
    /// For users.
    about: &'static str,
}

/// The handler of a server.
struct Answers(Arc<Api>);

impl Handler for Answers {
    fn answer(&self, request: Request<Incoming>, peer: Peer) -> serve::Answering {
        let api = Arc::clone(&self.0);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let query = Query::new(parts.uri.query().unwrap_or_default());
            let headers = parts.headers.clone();
            let answer = match admit(&api, &parts, &query, peer) {
                Err(refusal) => Err(refusal),
                Ok((route, ids, caller)) => {
                    let limit = route.limit;
                    let call = Call {
                        api: Arc::clone(&api),
                        ids,
                        query: query.clone(),
                        parts,
                        caller,
                        body: Some(body),
                        limit,
                        place: None,
                    };
                    run(route, call).await
                }
            };
            answer::respond(answer, &query, &headers)
        })
    }
}

/// Runs the handler. A write continues when its client disconnects, so that the follow-up steps of a change are not lost; what only
/// reads ends, or a client could leave behind any number of them.
async fn run(route: Route, call: Call) -> Result<Answer, Refusal> {
    if route.verb == Verb::Get || route.role == Role::Read {
        return (route.run)(call).await;
    }
    crate::sys::task::spawn((route.run)(call))
        .await
        .unwrap_or_else(|error| Err(Refusal::failed(format!("internal error: {error}"))))
}

/// Authenticates and authorizes a request. Paths are matched only after authentication, so that unauthenticated clients learn
/// nothing about them.
fn admit(api: &Api, parts: &Parts, query: &Query, peer: Peer) -> Result<(Route, Vec<String>, Caller), Refusal> {
    let caller = api.security.caller(&api.state, peer, &parts.headers)?;
    let found = api.router.find(parts.uri.path());
    let (verbs, ids) = found.ok_or_else(|| nowhere(parts.uri.path()))?;
    let verb = Verb::of(&parts.method);
    let invalid = || Refusal::new(crate::http::StatusCode::METHOD_NOT_ALLOWED, "Invalid method");
    let route = verb.and_then(|verb| verbs.iter().find(|route| route.verb == verb)).ok_or_else(invalid)?;
    if caller.role < route.role {
        return Err(Refusal::denied());
    }
    let elsewhere = query.text("region").is_some_and(|region| region != api.about.region);
    if elsewhere {
        return Err(Refusal::failed("No path to region"));
    }
    Ok((*route, ids, caller))
}

/// The answer to a path that leads nowhere.
fn nowhere(path: &str) -> Refusal {
    match path.strip_prefix("/v1/client/fs/") {
        // Nomad misses the id.
        Some("ls/" | "stat/" | "cat/" | "readat/" | "stream/" | "logs/") => {
            Refusal::bad("must provide a valid alloc id")
        }
        _ => Refusal::missing(""),
    }
}

impl Verb {
    /// The action for a method; PUT and POST both mean writing.
    fn of(method: &Method) -> Option<Verb> {
        match *method {
            Method::GET | Method::HEAD => Some(Verb::Get),
            Method::PUT | Method::POST => Some(Verb::Put),
            Method::DELETE => Some(Verb::Delete),
            _ => None,
        }
    }
}
