//! The `docker_logger`: copies one container's output into the two FIFOs of a task. Never knows the task.

pub mod service;

use std::path::PathBuf;
use std::sync::Mutex;

use super::collect::{Collector, Target};
use crate::docker::{Deadlines, Endpoint, Engine, EngineError, Tls};
use crate::sys::lock::lock;
use crate::sys::task::JoinHandle;

/// What a `docker_logger` has to copy: the fields of `StartRequest`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StartConfig {
    /// The engine's endpoint; empty uses the environment.
    pub endpoint: String,
    /// The container.
    pub container_id: String,
    /// FIFO for standard output; with a terminal it gets all output.
    pub stdout_fifo: PathBuf,
    /// FIFO that gets its standard error.
    pub stderr_fifo: PathBuf,
    /// Files for the client's TLS; without any, TLS is off.
    pub tls: Tls,
    /// The container has a terminal.
    pub tty: bool,
    /// File of the cursor; empty uses a file next to the stdout FIFO.
    pub cursor: PathBuf,
}

/// Copies a container's output, in the background.
#[derive(Debug, Default)]
pub struct DockerLogger(Mutex<Option<JoinHandle<()>>>);

impl DockerLogger {
    /// Starts or restarts copying and returns at once. Each FIFO is opened when it has a reader; both are closed when the
    /// output has ended.
    ///
    /// # Errors
    /// The endpoint or the certificates are not usable.
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

    /// Stops copying and closes both FIFOs.
    pub async fn stop(&self) {
        let copying = lock(&self.0).take();
        if let Some(copying) = copying {
            copying.abort();
            // Its descriptors stay open until the task has ended.
            let _aborted = copying.await;
        }
    }
}
