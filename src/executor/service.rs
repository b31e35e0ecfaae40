//! The executor service: gRPC server.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{ExecResponses, Executor, ExecutorError, VERSION, convert, held};
use crate::wire::drivers::ExecTaskStreamingRequest;
use crate::wire::executor as wire;

/// Serves an [`Executor`] to a host.
#[derive(Debug)]
pub struct ExecutorService<E>(Arc<E>);

impl<E: Executor + 'static> ExecutorService<E> {
    /// The service for a server's routes. Accepts messages as large as Go hosts send them.
    pub fn server(executor: Arc<E>) -> wire::executor_server::ExecutorServer<ExecutorService<E>> {
        wire::executor_server::ExecutorServer::new(ExecutorService(executor))
            .max_decoding_message_size(i32::MAX as usize)
    }
}

#[tonic::async_trait]
impl<E: Executor + 'static> wire::executor_server::Executor for ExecutorService<E> {
    async fn launch(&self, request: Request<wire::LaunchRequest>) -> Result<Response<wire::LaunchResponse>, Status> {
        let spec = convert::launch_spec(request.into_inner())?;
        let executor = Arc::clone(&self.0);
        // Spawned as a separate tokio task: if the host disconnects half-way, the launch must not stop half-way.
        let launched = crate::sys::task::spawn(async move { executor.launch(spec).await }).await;
        let state = launched.map_err(|e| Status::internal(e.to_string()))??;
        Ok(Response::new(wire::LaunchResponse { process: Some(convert::wire_state(&state)) }))
    }

    async fn wait(&self, _: Request<wire::WaitRequest>) -> Result<Response<wire::WaitResponse>, Status> {
        let state = self.0.wait().await?;
        Ok(Response::new(wire::WaitResponse { process: Some(convert::wire_state(&state)) }))
    }

    async fn shutdown(
        &self,
        request: Request<wire::ShutdownRequest>,
    ) -> Result<Response<wire::ShutdownResponse>, Status> {
        let request = request.into_inner();
        let grace = Duration::from_nanos(u64::try_from(request.grace_period).unwrap_or(0));
        self.0.shutdown(&request.signal, grace).await?;
        Ok(Response::new(wire::ShutdownResponse {}))
    }

    async fn update_resources(
        &self,
        request: Request<wire::UpdateResourcesRequest>,
    ) -> Result<Response<wire::UpdateResourcesResponse>, Status> {
        self.0.update_resources(convert::new_limits(request.into_inner())?).await?;
        Ok(Response::new(wire::UpdateResourcesResponse {}))
    }

    async fn version(&self, _: Request<wire::VersionRequest>) -> Result<Response<wire::VersionResponse>, Status> {
        Ok(Response::new(wire::VersionResponse { version: VERSION.to_owned() }))
    }

    type StatsStream = Pin<Box<dyn Stream<Item = Result<wire::StatsResponse, Status>> + Send>>;

    /// The first sample at once, then one each interval; samples are not queued for a host that does not read.
    async fn stats(&self, request: Request<wire::StatsRequest>) -> Result<Response<Self::StatsStream>, Status> {
        let interval = match u64::try_from(request.into_inner().interval) {
            Ok(0) | Err(_) => Duration::from_secs(1),
            Ok(nanos) => Duration::from_nanos(nanos),
        };
        let executor = Arc::clone(&self.0);
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        crate::sys::task::spawn(async move {
            let mut ticks = tokio::time::interval(interval);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = sender.closed() => return,
                }
                let sample = executor.stats().await;
                let failed = sample.is_err();
                let message = sample
                    .map(|stats| wire::StatsResponse { stats: Some(convert::wire_stats(&stats)) })
                    .map_err(Status::from);
                if sender.send(message).await.is_err() || failed {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn signal(&self, request: Request<wire::SignalRequest>) -> Result<Response<wire::SignalResponse>, Status> {
        self.0.signal(request.into_inner().signal).await?;
        Ok(Response::new(wire::SignalResponse {}))
    }

    async fn output_changed(
        &self,
        request: Request<wire::OutputChangedRequest>,
    ) -> Result<Response<wire::OutputChangedResponse>, Status> {
        let health = self.0.output_changed(request.into_inner().known).await?;
        Ok(Response::new(health.map(convert::wire_health).unwrap_or_default()))
    }

    async fn exec(&self, request: Request<wire::ExecRequest>) -> Result<Response<wire::ExecResponse>, Status> {
        let request = request.into_inner();
        let deadline = request.deadline.as_ref().map(convert::system_time);
        let deadline = deadline.ok_or_else(|| ExecutorError::Invalid("deadline is required".to_owned()))?;
        let answer = self.0.exec(deadline, &request.cmd, &request.args).await?;
        Ok(Response::new(wire::ExecResponse { output: answer.output, exit_code: answer.exit_code }))
    }

    type ExecStreamingStream = ExecResponses;

    async fn exec_streaming(
        &self,
        requests: Request<Streaming<ExecTaskStreamingRequest>>,
    ) -> Result<Response<Self::ExecStreamingStream>, Status> {
        let run = |requests| self.0.exec_streaming(requests);
        Ok(Response::new(held::open(Box::pin(requests.into_inner()), run).await?))
    }
}
