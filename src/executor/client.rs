//! The executor service: gRPC client.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use super::{ExecOutput, ExecRequests, ExecResponses, Executor, ExecutorError, NewLimits, convert};
use crate::spec::{LaunchSpec, OutputHealth, ProcessState, TaskStats};
use crate::wire::Channel;
use crate::wire::drivers::{ExecTaskStreamingRequest, ExecTaskStreamingResponse};
use crate::wire::executor as wire;
use crate::wire::executor::executor_client;

/// An executor in another process.
#[derive(Debug, Clone)]
pub struct ExecutorClient(executor_client::ExecutorClient<Channel>);

impl ExecutorClient {
    /// Connects to the executor at the other end of `channel`.
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

    async fn update_resources(&self, limits: NewLimits) -> Result<(), ExecutorError> {
        self.0.clone().update_resources(convert::update_request(limits)).await?;
        Ok(())
    }

    async fn stats(&self) -> Result<TaskStats, ExecutorError> {
        let mut stream = self.0.clone().stats(wire::StatsRequest { interval: 0 }).await?.into_inner();
        let sample = stream.message().await?.and_then(|message| message.stats);
        Ok(convert::spec_stats(sample.ok_or_else(|| ExecutorError::System("the executor sent no sample".to_owned()))?))
    }

    async fn output_changed(&self, known: u64) -> Result<Option<OutputHealth>, ExecutorError> {
        let answer = self.0.clone().output_changed(wire::OutputChangedRequest { known }).await?.into_inner();
        Ok(convert::spec_health(answer))
    }

    async fn exec(&self, deadline: SystemTime, command: &str, args: &[String]) -> Result<ExecOutput, ExecutorError> {
        let request = wire::ExecRequest {
            deadline: Some(convert::timestamp(deadline)),
            cmd: command.to_owned(),
            args: args.to_vec(),
        };
        let answer = self.0.clone().exec(request).await?.into_inner();
        Ok(ExecOutput { output: answer.output, exit_code: answer.exit_code })
    }

    async fn exec_streaming(&self, requests: ExecRequests) -> Result<ExecResponses, ExecutorError> {
        let (broke, broken) = oneshot::channel();
        let outgoing = Outgoing { requests, broke: Some(broke) };
        let responses = self.0.clone().exec_streaming(outgoing).await?.into_inner();
        Ok(Box::pin(Incoming { responses: Some(responses), broken }))
    }
}

/// The caller's requests without errors, which a gRPC request stream cannot carry.
struct Outgoing {
    requests: ExecRequests,
    broke: Option<oneshot::Sender<Status>>,
}

impl Stream for Outgoing {
    type Item = ExecTaskStreamingRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // No receiver is left: gRPC cancels a session only when both of its directions are closed.
        if self.broke.as_mut().is_none_or(|broke| broke.poll_closed(context).is_ready()) {
            return Poll::Ready(None);
        }
        let status = match std::task::ready!(self.requests.as_mut().poll_next(context)) {
            Some(Ok(request)) => return Poll::Ready(Some(request)),
            Some(Err(status)) => status,
            None => return Poll::Ready(None),
        };
        // There is no receiver when the session has already ended.
        let _ = self.broke.take().map(|broke| broke.send(status));
        Poll::Ready(None)
    }
}

/// The executor's responses until the requests fail; dropping the stream tells the executor to cancel.
struct Incoming {
    responses: Option<Streaming<ExecTaskStreamingResponse>>,
    broken: oneshot::Receiver<Status>,
}

impl Stream for Incoming {
    type Item = Result<ExecTaskStreamingResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Incoming { responses, broken } = &mut *self;
        let Some(open) = responses else { return Poll::Ready(None) };
        // A sender that was dropped without a status: the requests have ended, which does not end the session.
        if !broken.is_terminated()
            && let Poll::Ready(Ok(status)) = Pin::new(broken).poll(context)
        {
            *responses = None;
            return Poll::Ready(Some(Err(status)));
        }
        let next = std::task::ready!(Pin::new(open).poll_next(context));
        // The status is the last message. The call itself may stay open behind it.
        if matches!(&next, Some(Ok(response)) if response.exited) {
            *responses = None;
        }
        Poll::Ready(next)
    }
}
