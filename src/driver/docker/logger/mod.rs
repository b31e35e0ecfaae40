//! The `docker_logger`: copies one container's output into the two FIFOs of a task. Never knows the task.

pub mod service;

use std::path::PathBuf;
use std::sync::Mutex;

use tokio::task::JoinHandle;

use super::collect::{Collector, Target};
use crate::docker::{Deadlines, Endpoint, Engine, EngineError, Tls};
use crate::sys::lock::lock;

/// What a `docker_logger` is to copy: the `StartRequest` as values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StartConfig {
    /// Where the engine listens; empty is what the environment says.
    pub endpoint: String,
    /// The container.
    pub container_id: String,
    /// FIFO that gets its standard output; with a terminal everything.
    pub stdout_fifo: PathBuf,
    /// FIFO that gets its standard error.
    pub stderr_fifo: PathBuf,
    /// Files of the client's TLS; without any there is none.
    pub tls: Tls,
    /// The container has a terminal.
    pub tty: bool,
    /// Where it is written down how far the output was copied; empty is a file beside the FIFO of stdout.
    pub cursor: PathBuf,
}

/// Copies a container's output, in the background.
#[derive(Debug, Default)]
pub struct DockerLogger(Mutex<Option<JoinHandle<()>>>);

impl DockerLogger {
    /// Begins, or begins anew, and returns at once. The FIFOs are opened when somebody reads them; both are closed when the
    /// output has ended.
    ///
    /// # Errors
    /// An endpoint or certificates that cannot be used.
    pub fn start(&self, config: StartConfig) -> Result<(), EngineError> {
        let tls = (config.tls != Tls::default()).then_some(config.tls);
        let endpoint = if config.endpoint.is_empty() {
            Endpoint::from_env(|name| std::env::var(name).ok())?
        } else {
            Endpoint::parse(&config.endpoint, tls)?
        };
        let cursor = if config.cursor.as_os_str().is_empty() {
            let mut beside = config.stdout_fifo.clone().into_os_string();
            beside.push(".cursor");
            PathBuf::from(beside)
        } else {
            config.cursor
        };
        let collector = Collector {
            engine: Engine::new(&endpoint, Deadlines::default())?,
            container: config.container_id,
            tty: config.tty,
            target: Target::Fifos(config.stdout_fifo, config.stderr_fifo),
            bookmark: Some(cursor),
            held: Vec::new(),
        };
        let copying = crate::sys::task::spawn(async move {
            let ended = collector.run().await;
            tracing::debug!(?ended, "the container's output has ended");
        });
        if let Some(before) = lock(&self.0).replace(copying) {
            before.abort();
        }
        Ok(())
    }

    /// Ends it and closes both FIFOs.
    pub async fn stop(&self) {
        let copying = lock(&self.0).take();
        if let Some(copying) = copying {
            copying.abort();
            // Until then its descriptors are open.
            let _aborted = copying.await;
        }
    }
}
