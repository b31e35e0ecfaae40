//! The jobs of one node: the work of a Nomad server for a single node, served over Nomad's API. Never starts a process, touches
//! the kernel or speaks gRPC.
//!
//! ```text
//! commands ──▶ state ◀── reports ◀── engine (allocations)
//!    │           ▲ │                    ▲
//!    └▶ broker ─▶ worker ── schedule ───┘      deployments, periodic, drain, gc, node: each waits for its next deadline
//! ```

pub mod api;
mod broker;
mod clock;
pub mod commands;
mod core;
mod csi;
mod deployments;
mod drain;
pub mod engine;
#[cfg(test)]
pub(crate) mod fake;
mod gc;
mod health;
mod jobs;
mod locks;
pub mod model;
mod node;
mod periodic;
mod reports;
pub mod runner;
pub mod schedule;
mod services;
mod settings;
pub mod state;
#[cfg(test)]
mod tests;
mod variables;
mod versions;
mod volumes;
mod worker;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use commands::Commands;
use core::Core;
pub use csi::secrets_of;
use engine::{Engine, Report};
use state::{State, StateError};

use crate::sys::task::boxed;

/// The agent for its API: state, engine and commands.
#[derive(Clone)]
pub struct Agent {
    /// The stored state.
    pub state: State,
    /// The engine that runs allocations.
    pub engine: Arc<dyn Engine>,
    /// The commands that change the state.
    pub commands: Commands,
}

/// The background tasks; they end when this value is dropped.
#[derive(Debug)]
pub struct Working(JoinSet<()>);

impl Working {
    /// Ends them: when this returns, no more decisions are made and no handle of the state is held.
    pub async fn end(mut self) {
        self.0.shutdown().await;
    }
}

impl Agent {
    /// Registers the node, makes the engine recover what ran before, and starts deciding.
    ///
    /// # Errors
    /// [`StateError`].
    pub async fn start(
        state: State,
        engine: Arc<dyn Engine>,
        reports: mpsc::Receiver<Report>,
    ) -> Result<(Agent, Working), StateError> {
        let core = Core::new(state.clone(), Arc::clone(&engine));
        volumes::restore(&core).await?;
        node::look(&core, Some(node::AT_START)).await?;
        let mut working = JoinSet::new();
        // Reports are received while the engine recovers allocations.
        working.spawn(boxed(reports::run(Arc::clone(&core), reports)));
        core.begin_anew().await?;
        working.spawn(boxed(services::run(Arc::clone(&core))));
        working.spawn(boxed(worker::run(Arc::clone(&core))));
        working.spawn(boxed(deployments::run(Arc::clone(&core))));
        working.spawn(boxed(periodic::run(Arc::clone(&core))));
        working.spawn(boxed(drain::run(Arc::clone(&core))));
        working.spawn(boxed(node::run(Arc::clone(&core))));
        working.spawn(boxed(gc::run(Arc::clone(&core))));
        working.spawn(boxed(locks::run(Arc::clone(&core))));
        Ok((Agent { state, engine, commands: Commands::new(core) }, Working(working)))
    }
}
