//! The executor service: gRPC out.

use std::time::Duration;

use tonic::transport::Channel;

use super::{Executor, ExecutorError, convert};
use crate::spec::{LaunchSpec, ProcessState, TaskStats};
use crate::wire::executor as wire;
use crate::wire::executor::executor_client;

/// An executor in another process.
#[derive(Debug, Clone)]
pub struct ExecutorClient(executor_client::ExecutorClient<Channel>);

impl ExecutorClient {
    /// Speaks to the executor at the other end of `channel`.
    #[must_use]
    pub fn new(channel: Channel) -> ExecutorClient {
        let client = executor_client::ExecutorClient::new(channel).max_decoding_message_size(i32::MAX as usize);
        ExecutorClient(client)
    }

    /// The executor's version.
    ///
    /// # Errors
    /// [`ExecutorError::PluginShutdown`] when it is gone.
    pub async fn version(&self) -> Result<String, ExecutorError> {
        Ok(self.0.clone().version(wire::VersionRequest {}).await?.into_inner().version)
    }
}

fn absent() -> ExecutorError {
    ExecutorError::System("the executor's answer lacks the process state".to_owned())
}

#[tonic::async_trait]
impl Executor for ExecutorClient {
    async fn launch(&self, spec: LaunchSpec) -> Result<ProcessState, ExecutorError> {
        let answer = self.0.clone().launch(convert::launch_request(spec)).await?.into_inner();
        Ok(convert::spec_state(answer.process.ok_or_else(absent)?, true))
    }

    async fn wait(&self) -> Result<ProcessState, ExecutorError> {
        let answer = self.0.clone().wait(wire::WaitRequest {}).await?.into_inner();
        Ok(convert::spec_state(answer.process.ok_or_else(absent)?, false))
    }

    async fn shutdown(&self, signal: &str, grace: Duration) -> Result<(), ExecutorError> {
        let grace_period = i64::try_from(grace.as_nanos()).unwrap_or(i64::MAX);
        self.0.clone().shutdown(wire::ShutdownRequest { signal: signal.to_owned(), grace_period }).await?;
        Ok(())
    }

    async fn signal(&self, number: i32) -> Result<(), ExecutorError> {
        self.0.clone().signal(wire::SignalRequest { signal: number }).await?;
        Ok(())
    }

    async fn stats(&self) -> Result<TaskStats, ExecutorError> {
        let mut stream = self.0.clone().stats(wire::StatsRequest { interval: 0 }).await?.into_inner();
        let sample = stream.message().await?.and_then(|message| message.stats);
        Ok(convert::spec_stats(sample.ok_or_else(|| ExecutorError::System("the executor sent no sample".to_owned()))?))
    }
}
