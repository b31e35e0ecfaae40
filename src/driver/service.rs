//! Server of the base and driver services, over gRPC.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{broadcast, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::{Driver, DriverError, FINGERPRINT_PERIOD, convert, streaming};
use crate::executor::held;
use crate::plugin::{ServeError, Server};
use crate::spec::{ExitResult, Signal};
use crate::wire::base::base_plugin_server::{BasePlugin, BasePluginServer};
use crate::wire::base::{self, PluginType};
use crate::wire::drivers as wire;
use crate::wire::drivers::driver_server::DriverServer;

/// The only version of Nomad's driver interface.
const API_VERSION: &str = "v0.1.0";
/// Version of the handles that this service creates; 0 means a handle from before handles had versions.
const HANDLE_VERSION: i32 = 1;
/// Capacity of the queue for a slow host.
const QUEUE: usize = 1;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Serves a [`Driver`] to a host.
#[derive(Clone)]
pub struct DriverService(Arc<dyn Driver>);

impl DriverService {
    /// The services of a driver plugin, for a server's routes. The message size is not limited, as with Go hosts.
    pub fn routes(driver: Arc<dyn Driver>) -> Routes {
        let service = DriverService(driver);
        let limit = i32::MAX as usize;
        let base = BasePluginServer::new(service.clone()).max_decoding_message_size(limit);
        Routes::new(base).add_service(DriverServer::new(service).max_decoding_message_size(limit))
    }
}

/// Serves `driver` as a Nomad plugin until the host ends it. Its tasks continue to run.
///
/// # Errors
/// See [`ServeError`].
pub async fn serve(server: Server, driver: Arc<dyn Driver>) -> Result<(), ServeError> {
    server.serve(DriverService::routes(driver)).await
}

#[tonic::async_trait]
impl BasePlugin for DriverService {
    async fn plugin_info(
        &self,
        _: Request<base::PluginInfoRequest>,
    ) -> Result<Response<base::PluginInfoResponse>, Status> {
        Ok(Response::new(base::PluginInfoResponse {
            r#type: PluginType::Driver.into(),
            plugin_api_versions: vec![API_VERSION.to_owned()],
            plugin_version: self.0.version().to_owned(),
            name: self.0.name().to_owned(),
        }))
    }

    async fn config_schema(
        &self,
        _: Request<base::ConfigSchemaRequest>,
    ) -> Result<Response<base::ConfigSchemaResponse>, Status> {
        Ok(Response::new(base::ConfigSchemaResponse { spec: self.0.config_schema() }))
    }

    async fn set_config(
        &self,
        request: Request<base::SetConfigRequest>,
    ) -> Result<Response<base::SetConfigResponse>, Status> {
        let request = request.into_inner();
        let failed = |error: DriverError| Status::unknown(format!("SetConfig failed: {error}"));
        let config = convert::config(&request.msgpack_config).map_err(failed)?;
        let node = request.nomad_config.map(convert::node_config);
        self.0.set_config(&config, node.as_ref()).map_err(failed)?;
        Ok(Response::new(base::SetConfigResponse {}))
    }
}

#[tonic::async_trait]
impl wire::driver_server::Driver for DriverService {
    async fn init(&self, _: Request<wire::InitRequest>) -> Result<Response<wire::InitResponse>, Status> {
        self.0.init().await?;
        Ok(Response::new(wire::InitResponse {}))
    }

    async fn task_config_schema(
        &self,
        _: Request<wire::TaskConfigSchemaRequest>,
    ) -> Result<Response<wire::TaskConfigSchemaResponse>, Status> {
        Ok(Response::new(wire::TaskConfigSchemaResponse { spec: Some(self.0.task_config_schema()) }))
    }

    async fn capabilities(
        &self,
        _: Request<wire::CapabilitiesRequest>,
    ) -> Result<Response<wire::CapabilitiesResponse>, Status> {
        let capabilities = Some(convert::wire_capabilities(&self.0.capabilities()));
        Ok(Response::new(wire::CapabilitiesResponse { capabilities }))
    }

    type FingerprintStream = Answers<wire::FingerprintResponse>;

    /// At once, and then every 30 s for as long as the host listens.
    async fn fingerprint(
        &self,
        _: Request<wire::FingerprintRequest>,
    ) -> Result<Response<Self::FingerprintStream>, Status> {
        let driver = Arc::clone(&self.0);
        let (sender, receiver) = mpsc::channel(QUEUE);
        crate::sys::task::spawn(async move {
            let mut ticks = tokio::time::interval(FINGERPRINT_PERIOD);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = sender.closed() => return,
                }
                let response = convert::wire_fingerprint(driver.fingerprint().await);
                if sender.send(Ok(response)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn recover_task(
        &self,
        request: Request<wire::RecoverTaskRequest>,
    ) -> Result<Response<wire::RecoverTaskResponse>, Status> {
        let handle = request.into_inner().handle.ok_or_else(|| Status::unknown("handle cannot be nil"))?;
        let config = handle.config.ok_or_else(|| Status::unknown("handle has no task config"))?;
        let task = convert::task_config(config)?;
        self.0.recover_task(&task, &handle.driver_state).await?;
        Ok(Response::new(wire::RecoverTaskResponse {}))
    }

    async fn start_task(
        &self,
        request: Request<wire::StartTaskRequest>,
    ) -> Result<Response<wire::StartTaskResponse>, Status> {
        let config = request.into_inner().task.ok_or_else(|| Status::unknown("task cannot be nil"))?;
        let task = convert::task_config(config.clone())?;
        let driver = Arc::clone(&self.0);
        // In a separate async task: a host that disconnects during the start must not leave a half-started task.
        let started = crate::sys::task::spawn(async move { driver.start_task(&task).await }).await;
        let handle = started.map_err(|e| Status::internal(e.to_string()))??;
        Ok(Response::new(wire::StartTaskResponse {
            handle: Some(wire::TaskHandle {
                version: HANDLE_VERSION,
                config: Some(config),
                state: wire::TaskState::Running.into(),
                driver_state: handle.driver_state,
            }),
            network_override: handle.network.map(convert::wire_override),
            ..Default::default()
        }))
    }

    /// An error of the task is part of the answer; the call itself fails only for an unknown task.
    async fn wait_task(
        &self,
        request: Request<wire::WaitTaskRequest>,
    ) -> Result<Response<wire::WaitTaskResponse>, Status> {
        let response = match self.0.wait_task(&request.into_inner().task_id).await {
            Ok(exit) => {
                let err = self.0.exit_message(&exit).unwrap_or_default();
                wire::WaitTaskResponse { result: Some(convert::wire_exit(exit)), err }
            }
            Err(error @ DriverError::TaskNotFound) => return Err(error.into()),
            Err(error) => {
                let lost = ExitResult { exit_code: -1, ..ExitResult::default() };
                wire::WaitTaskResponse { result: Some(convert::wire_exit(lost)), err: error.to_string() }
            }
        };
        Ok(Response::new(response))
    }

    async fn stop_task(
        &self,
        request: Request<wire::StopTaskRequest>,
    ) -> Result<Response<wire::StopTaskResponse>, Status> {
        let request = request.into_inner();
        let timeout = convert::duration(request.timeout)?;
        let signal = Signal::from_name(&request.signal);
        // The stop is not refused: a host gives up after a few tries, and the task would keep running.
        if signal.is_none() && !request.signal.is_empty() {
            tracing::warn!(signal = request.signal, "unknown signal to stop task, using the default instead");
        }
        self.0.stop_task(&request.task_id, timeout, signal).await?;
        Ok(Response::new(wire::StopTaskResponse {}))
    }

    async fn destroy_task(
        &self,
        request: Request<wire::DestroyTaskRequest>,
    ) -> Result<Response<wire::DestroyTaskResponse>, Status> {
        let request = request.into_inner();
        self.0.destroy_task(&request.task_id, request.force).await?;
        Ok(Response::new(wire::DestroyTaskResponse {}))
    }

    async fn inspect_task(
        &self,
        request: Request<wire::InspectTaskRequest>,
    ) -> Result<Response<wire::InspectTaskResponse>, Status> {
        let status = self.0.inspect_task(&request.into_inner().task_id).await?;
        Ok(Response::new(convert::wire_status(status)))
    }

    type TaskStatsStream = Answers<wire::TaskStatsResponse>;

    /// The first sample at once, then one each interval; nothing is queued for a host that does not read.
    async fn task_stats(
        &self,
        request: Request<wire::TaskStatsRequest>,
    ) -> Result<Response<Self::TaskStatsStream>, Status> {
        let request = request.into_inner();
        let interval = convert::duration(request.collection_interval)?;
        let interval = if interval.is_zero() { std::time::Duration::from_secs(1) } else { interval };
        // Errors of the first sample are errors of the call and not of the stream.
        let first = self.0.task_stats(&request.task_id).await?;
        let driver = Arc::clone(&self.0);
        let (sender, receiver) = mpsc::channel(QUEUE);
        crate::sys::task::spawn(async move {
            let mut ticks = tokio::time::interval(interval);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            ticks.tick().await;
            let mut sample = Ok(first);
            loop {
                let failed = sample.is_err();
                let message = sample.map_err(Status::from).map(|stats| {
                    let mut stats = crate::executor::wire_stats(&stats);
                    stats.id.clone_from(&request.task_id);
                    wire::TaskStatsResponse { stats: Some(stats) }
                });
                if sender.send(message).await.is_err() || failed {
                    return;
                }
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = sender.closed() => return,
                }
                sample = driver.task_stats(&request.task_id).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    type TaskEventsStream = Answers<wire::DriverTaskEvent>;

    /// Stays open also for a driver without events: a host repeats the call when the stream ends.
    async fn task_events(
        &self,
        _: Request<wire::TaskEventsRequest>,
    ) -> Result<Response<Self::TaskEventsStream>, Status> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let mut events = self.0.task_events();
        crate::sys::task::spawn(async move {
            while let Some(receiver) = &mut events {
                let event = tokio::select! {
                    event = receiver.recv() => event,
                    () = sender.closed() => return,
                };
                match event {
                    Ok(event) => {
                        if sender.send(Ok(convert::wire_event(event))).await.is_err() {
                            return;
                        }
                    }
                    Err(broadcast::error::RecvError::Lagged(lost)) => {
                        tracing::warn!(lost, "the host does not keep up with task events");
                    }
                    Err(broadcast::error::RecvError::Closed) => events = None,
                }
            }
            sender.closed().await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn shutdown(&self, _: Request<wire::ShutdownRequest>) -> Result<Response<wire::ShutdownResponse>, Status> {
        self.0.shutdown().await;
        Ok(Response::new(wire::ShutdownResponse {}))
    }

    async fn signal_task(
        &self,
        request: Request<wire::SignalTaskRequest>,
    ) -> Result<Response<wire::SignalTaskResponse>, Status> {
        let request = request.into_inner();
        let known = Signal::from_name(&request.signal);
        let signal = known.map_or_else(|| self.0.unknown_signal(&request.signal), Ok)?;
        self.0.signal_task(&request.task_id, signal).await?;
        Ok(Response::new(wire::SignalTaskResponse {}))
    }

    async fn exec_task(
        &self,
        request: Request<wire::ExecTaskRequest>,
    ) -> Result<Response<wire::ExecTaskResponse>, Status> {
        let request = request.into_inner();
        let timeout = convert::duration(request.timeout)?;
        let result = self.0.exec_task(&request.task_id, &request.command, timeout).await?;
        Ok(Response::new(wire::ExecTaskResponse {
            stdout: result.stdout,
            stderr: result.stderr,
            result: Some(convert::wire_exit(result.exit)),
        }))
    }

    type ExecTaskStreamingStream = Answers<wire::ExecTaskStreamingResponse>;

    async fn exec_task_streaming(
        &self,
        request: Request<Streaming<wire::ExecTaskStreamingRequest>>,
    ) -> Result<Response<Self::ExecTaskStreamingStream>, Status> {
        let (setup, requests) = streaming::take_setup(Box::pin(request.into_inner())).await?;
        let run = |requests| streaming::session(Arc::clone(&self.0), setup.task_id, requests);
        Ok(Response::new(held::open(requests, run).await?))
    }

    async fn create_network(
        &self,
        request: Request<wire::CreateNetworkRequest>,
    ) -> Result<Response<wire::CreateNetworkResponse>, Status> {
        let request = request.into_inner();
        let (network, created) = self.0.create_network(&request.alloc_id, &request.hostname).await?;
        let isolation_spec = Some(convert::wire_network(network));
        Ok(Response::new(wire::CreateNetworkResponse { isolation_spec, created }))
    }

    async fn destroy_network(
        &self,
        request: Request<wire::DestroyNetworkRequest>,
    ) -> Result<Response<wire::DestroyNetworkResponse>, Status> {
        let request = request.into_inner();
        let network = convert::network(request.isolation_spec.unwrap_or_default());
        self.0.destroy_network(&request.alloc_id, &network).await?;
        Ok(Response::new(wire::DestroyNetworkResponse {}))
    }
}
