//! Client of a plugin's base and driver services, over gRPC.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use prost::Message as _;
use prost_types::Timestamp;
use tokio::sync::{broadcast, watch};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Response, Status, Streaming};

use super::hclspec::{Body, Schema};
use super::{
    Capabilities, Driver, DriverError, DriverNetwork, ExecStreaming, ExecTaskResult, ExecTaskStreamingRaw, Fingerprint,
    Health, NetworkIsolation, NodeConfig, TaskConfig, TaskEvent, TaskHandle, TaskStatus, convert,
};
use crate::executor::{ExecRequests, ExecResponses, spec_stats, system_time};
use crate::plugin::Life;
use crate::spec::collections::BTreeMap;
use crate::spec::{DriverConfig, ExitResult, Signal, TaskStats};
use crate::sys::task::JoinHandle;
use crate::wire::Channel;
use crate::wire::base::base_plugin_client::BasePluginClient;
use crate::wire::base::{self, PluginType};
use crate::wire::drivers as wire;
use crate::wire::drivers::driver_client;
use crate::wire::hclspec::Spec;

/// Timeout of a plugin's Shutdown.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(2);
/// Pause before a stream that ended is requested again.
const AGAIN: Duration = Duration::from_secs(5);
/// Capacity of the event queue for a slow listener.
const EVENTS: usize = 256;

/// A plugin's answer to `PluginInfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginInfo {
    /// `driver`, `device`, or `unknown`.
    pub kind: &'static str,
    /// The interface versions that it speaks, such as `v0.1.0`.
    pub api_versions: Vec<String>,
    /// Its own version.
    pub version: String,
    /// Its name.
    pub name: String,
}

/// The calls of a plugin, one method each. Cheap to clone.
///
/// Every call on a plugin whose process has ended, or ends during the call, fails with [`DriverError::PluginShutdown`].
#[derive(Debug, Clone)]
pub struct PluginClient {
    base: BasePluginClient<Channel>,
    driver: driver_client::DriverClient<Channel>,
    life: Life,
}

/// The messages of a streaming call; dropping it ends the call.
#[derive(Debug)]
pub struct Answers<T> {
    stream: Streaming<T>,
    life: Life,
}

impl<T> Answers<T> {
    /// The next message; `None` when the plugin ended the stream without an error.
    ///
    /// # Errors
    /// [`DriverError::PluginShutdown`], or the plugin's error.
    pub async fn next(&mut self) -> Result<Option<T>, DriverError> {
        match self.stream.message().await {
            Ok(message) => Ok(message),
            Err(status) => Err(error_of(&self.life, status).await),
        }
    }
}

/// The requests of a session; fills the task's id into the setup. An error of the caller's stream ends the requests.
struct Outgoing {
    id: String,
    requests: ExecRequests,
}

impl Stream for Outgoing {
    type Item = wire::ExecTaskStreamingRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.requests.as_mut().poll_next(context).map(|next| {
            let mut request = next?.ok()?;
            if let Some(setup) = &mut request.setup {
                setup.task_id.clone_from(&self.id);
            }
            Some(request)
        })
    }
}

/// The error for a failed call.
async fn error_of(life: &Life, status: Status) -> DriverError {
    if life.is_shutdown(&status).await { DriverError::PluginShutdown } else { DriverError::from_status(&status) }
}

fn absent(what: &str) -> DriverError {
    DriverError::Failed { message: format!("the plugin's answer lacks {what}"), recoverable: false }
}

impl PluginClient {
    /// Speaks to the plugin at the other end of `channel`, whose process `life` watches.
    #[must_use]
    pub fn new(channel: Channel, life: Life) -> PluginClient {
        let limit = i32::MAX as usize;
        PluginClient {
            base: BasePluginClient::new(channel.clone()).max_decoding_message_size(limit),
            driver: driver_client::DriverClient::new(channel).max_decoding_message_size(limit),
            life,
        }
    }

    async fn answer<T>(&self, answer: Result<Response<T>, Status>) -> Result<T, DriverError> {
        match answer {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(error_of(&self.life, status).await),
        }
    }

    async fn answers<T>(&self, answer: Result<Response<Streaming<T>>, Status>) -> Result<Answers<T>, DriverError> {
        Ok(Answers { stream: self.answer(answer).await?, life: self.life.clone() })
    }

    /// What the plugin is.
    ///
    /// # Errors
    /// See [`DriverError`]; the same holds for all other calls.
    pub async fn info(&self) -> Result<PluginInfo, DriverError> {
        let answer = self.base.clone().plugin_info(base::PluginInfoRequest {}).await;
        let info = self.answer(answer).await?;
        let kind = match info.r#type() {
            PluginType::Driver => "driver",
            PluginType::Device => "device",
            PluginType::Unknown => "unknown",
        };
        let base::PluginInfoResponse { plugin_api_versions: api_versions, plugin_version: version, name, .. } = info;
        Ok(PluginInfo { kind, api_versions, version, name })
    }

    /// The schema of the plugin's configuration; `None` for a plugin that takes none.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn config_schema(&self) -> Result<Option<Spec>, DriverError> {
        let answer = self.base.clone().config_schema(base::ConfigSchemaRequest {}).await;
        Ok(self.answer(answer).await?.spec)
    }

    /// Gives the plugin its configuration, encoded by [`Schema::encode`].
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn set_config(
        &self,
        config: Vec<u8>,
        node: Option<&NodeConfig>,
        api_version: &str,
    ) -> Result<(), DriverError> {
        let request = base::SetConfigRequest {
            msgpack_config: config,
            nomad_config: node.map(convert::wire_node_config),
            plugin_api_version: api_version.to_owned(),
        };
        self.answer(self.base.clone().set_config(request).await).await?;
        Ok(())
    }

    /// Called once before the first task; succeeds on a plugin that does not implement the call.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn init(&self) -> Result<(), DriverError> {
        match self.answer(self.driver.clone().init(wire::InitRequest {}).await).await {
            Ok(_) | Err(DriverError::NotSupported(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Called before the plugin is ended, with a timeout of 2 s; the answer is ignored.
    pub async fn shutdown(&self) {
        let mut driver = self.driver.clone();
        let mut request = tonic::Request::new(wire::ShutdownRequest {});
        request.set_timeout(SHUTDOWN_PATIENCE);
        let _ = tokio::time::timeout(SHUTDOWN_PATIENCE, driver.shutdown(request)).await;
    }

    /// The schema of a task's `config` block.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn task_config_schema(&self) -> Result<Spec, DriverError> {
        let answer = self.driver.clone().task_config_schema(wire::TaskConfigSchemaRequest {}).await;
        self.answer(answer).await?.spec.ok_or_else(|| absent("the task's schema"))
    }

    /// The driver's capabilities.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn capabilities(&self) -> Result<Capabilities, DriverError> {
        let answer = self.driver.clone().capabilities(wire::CapabilitiesRequest {}).await;
        Ok(convert::capabilities(&self.answer(answer).await?.capabilities.unwrap_or_default()))
    }

    /// Whether tasks can be started: the current state, then every update from the plugin.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn fingerprints(&self) -> Result<Answers<wire::FingerprintResponse>, DriverError> {
        let answer = self.driver.clone().fingerprint(wire::FingerprintRequest {}).await;
        self.answers(answer).await
    }

    /// Starts a task. The configuration in `task` is encoded by [`Schema::encode`].
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn start_task(
        &self,
        task: wire::TaskConfig,
    ) -> Result<(wire::TaskHandle, Option<DriverNetwork>), DriverError> {
        let answer = self.driver.clone().start_task(wire::StartTaskRequest { task: Some(task) }).await;
        let answer = self.answer(answer).await?;
        let handle = answer.handle.ok_or_else(|| absent("the task's handle"))?;
        Ok((handle, answer.network_override.map(convert::driver_network)))
    }

    /// Recovers a task by the handle that its start returned.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn recover_task(&self, handle: wire::TaskHandle) -> Result<(), DriverError> {
        let task_id = handle.config.as_ref().map(|config| config.id.clone()).unwrap_or_default();
        let request = wire::RecoverTaskRequest { task_id, handle: Some(handle) };
        self.answer(self.driver.clone().recover_task(request).await).await?;
        Ok(())
    }

    /// Waits for the end of a task.
    ///
    /// # Errors
    /// See [`DriverError`]; also the error that the plugin reports for the task.
    pub async fn wait_task(&self, id: &str) -> Result<ExitResult, DriverError> {
        let answer = self.driver.clone().wait_task(wire::WaitTaskRequest { task_id: id.to_owned() }).await;
        let answer = self.answer(answer).await?;
        let exit = answer.result.map(convert::exit);
        // A driver may describe an end in words, too. Without an end the words are the error.
        let is_end = |exit: &ExitResult| exit.exit_code > 0 || exit.signal != 0 || exit.oom_killed;
        if !answer.err.is_empty() && !exit.as_ref().is_some_and(is_end) {
            return Err(DriverError::Failed { message: answer.err, recoverable: false });
        }
        exit.ok_or_else(|| absent("how the task ended"))
    }

    /// Stops a task; an empty signal selects the driver's default.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn stop_task(&self, id: &str, timeout: Duration, signal: &str) -> Result<(), DriverError> {
        let timeout = Some(wire_duration(timeout));
        let request = wire::StopTaskRequest { task_id: id.to_owned(), timeout, signal: signal.to_owned() };
        self.answer(self.driver.clone().stop_task(request).await).await?;
        Ok(())
    }

    /// Forgets a task.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn destroy_task(&self, id: &str, force: bool) -> Result<(), DriverError> {
        let request = wire::DestroyTaskRequest { task_id: id.to_owned(), force };
        self.answer(self.driver.clone().destroy_task(request).await).await?;
        Ok(())
    }

    /// The status of a task.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn inspect_task(&self, id: &str) -> Result<TaskStatus, DriverError> {
        let answer = self.driver.clone().inspect_task(wire::InspectTaskRequest { task_id: id.to_owned() }).await;
        Ok(convert::status(self.answer(answer).await?))
    }

    /// Samples of a task's resource use, one each `interval`.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn task_stats(
        &self,
        id: &str,
        interval: Duration,
    ) -> Result<Answers<wire::TaskStatsResponse>, DriverError> {
        let collection_interval = Some(wire_duration(interval));
        let request = wire::TaskStatsRequest { task_id: id.to_owned(), collection_interval };
        self.answers(self.driver.clone().task_stats(request).await).await
    }

    /// Events of tasks from now on.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn task_events(&self) -> Result<Answers<wire::DriverTaskEvent>, DriverError> {
        self.answers(self.driver.clone().task_events(wire::TaskEventsRequest {}).await).await
    }

    /// Sends a signal, by name, to a task.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn signal_task(&self, id: &str, signal: &str) -> Result<(), DriverError> {
        let request = wire::SignalTaskRequest { task_id: id.to_owned(), signal: signal.to_owned() };
        self.answer(self.driver.clone().signal_task(request).await).await?;
        Ok(())
    }

    /// Runs a command inside a task.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn exec_task(
        &self,
        id: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<ExecTaskResult, DriverError> {
        let timeout = Some(wire_duration(timeout));
        let request = wire::ExecTaskRequest { task_id: id.to_owned(), command: command.to_vec(), timeout };
        let answer = self.answer(self.driver.clone().exec_task(request).await).await?;
        let exit = convert::exit(answer.result.ok_or_else(|| absent("how the command ended"))?);
        Ok(ExecTaskResult { stdout: answer.stdout, stderr: answer.stderr, exit })
    }

    /// Holds a session inside a task. The messages are handed on as they are; the first one is the setup, which gets the
    /// task's id.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn exec_task_streaming(
        &self,
        id: &str,
        requests: ExecRequests,
    ) -> Result<Answers<wire::ExecTaskStreamingResponse>, DriverError> {
        let outgoing = Outgoing { id: id.to_owned(), requests };
        self.answers(self.driver.clone().exec_task_streaming(outgoing).await).await
    }

    /// Creates the network of an allocation; the flag says whether it is new.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn create_network(&self, id: &str, hostname: &str) -> Result<(NetworkIsolation, bool), DriverError> {
        let request = wire::CreateNetworkRequest { alloc_id: id.to_owned(), hostname: hostname.to_owned() };
        let answer = self.answer(self.driver.clone().create_network(request).await).await?;
        let network = answer.isolation_spec.ok_or_else(|| absent("the network"))?;
        Ok((convert::network(network), answer.created))
    }

    /// Removes such a network.
    ///
    /// # Errors
    /// See [`DriverError`].
    pub async fn destroy_network(&self, id: &str, network: NetworkIsolation) -> Result<(), DriverError> {
        let isolation_spec = Some(convert::wire_network(network));
        let request = wire::DestroyNetworkRequest { alloc_id: id.to_owned(), isolation_spec };
        self.answer(self.driver.clone().destroy_network(request).await).await?;
        Ok(())
    }

    /// Watches whether the plugin's process is alive.
    #[must_use]
    pub fn life(&self) -> &Life {
        &self.life
    }
}

fn wire_duration(duration: Duration) -> prost_types::Duration {
    // More than 10000 years means no limit.
    prost_types::Duration::try_from(duration).unwrap_or(prost_types::Duration { seconds: 315_576_000_000, nanos: 0 })
}

fn event_of(event: wire::DriverTaskEvent) -> TaskEvent {
    TaskEvent {
        task_id: event.task_id,
        alloc_id: event.alloc_id,
        task_name: event.task_name,
        time: event.timestamp.as_ref().map_or_else(SystemTime::now, |time: &Timestamp| system_time(time)),
        message: event.message,
        annotations: event.annotations.into_iter().collect::<BTreeMap<_, _>>(),
    }
}

/// A sample of resource use, from the wire.
///
/// # Errors
/// An answer without stats.
pub fn stats_of(answer: wire::TaskStatsResponse) -> Result<TaskStats, DriverError> {
    answer.stats.map(spec_stats).ok_or_else(|| absent("the figures"))
}

/// A fingerprint, from the wire.
#[must_use]
pub fn fingerprint_of(answer: wire::FingerprintResponse) -> Fingerprint {
    convert::fingerprint(answer)
}

/// A task for the wire: `config` is its configuration encoded by [`Schema::encode`].
#[must_use]
pub fn wire_task(task: &TaskConfig, config: Vec<u8>) -> wire::TaskConfig {
    convert::wire_task_config(task, config)
}

/// A driver in another process, with the same interface as the internal ones.
#[derive(Debug)]
pub struct DriverClient {
    plugin: PluginClient,
    name: String,
    version: String,
    config_schema: Option<Spec>,
    task_schema: Spec,
    schema: Schema,
    capabilities: Capabilities,
    fingerprint: watch::Receiver<Option<Fingerprint>>,
    events: broadcast::Sender<TaskEvent>,
    /// Read the two streams as long as this value exists.
    readers: [JoinHandle<()>; 2],
}

impl Drop for DriverClient {
    fn drop(&mut self) {
        self.readers.iter().for_each(JoinHandle::abort);
    }
}

impl DriverClient {
    /// Queries a configured plugin for everything that does not change, and subscribes to its streams.
    ///
    /// # Errors
    /// See [`DriverError`]; `Config` means that the plugin's schema is not usable.
    pub async fn connect(plugin: PluginClient) -> Result<DriverClient, DriverError> {
        let info = plugin.info().await?;
        let config_schema = plugin.config_schema().await?;
        let task_schema = plugin.task_config_schema().await?;
        let capabilities = plugin.capabilities().await?;
        let schema = Schema::new(&task_schema)?;
        let (latest, fingerprint) = watch::channel(None);
        let (events, _) = broadcast::channel(EVENTS);
        let readers = [
            crate::sys::task::spawn(follow_fingerprints(plugin.clone(), latest)),
            crate::sys::task::spawn(follow_events(plugin.clone(), events.clone())),
        ];
        let (name, version) = (info.name, info.version);
        Ok(DriverClient {
            plugin,
            name,
            version,
            config_schema,
            task_schema,
            schema,
            capabilities,
            fingerprint,
            events,
            readers,
        })
    }

    /// The plugin's calls.
    #[must_use]
    pub fn plugin(&self) -> &PluginClient {
        &self.plugin
    }

    /// The newest fingerprint and all later ones; `None` until the plugin has sent the first.
    #[must_use]
    pub fn fingerprints(&self) -> watch::Receiver<Option<Fingerprint>> {
        self.fingerprint.clone()
    }
}

/// Reports a plugin that has ended as unhealthy; requests a stream that ended again.
async fn follow_fingerprints(plugin: PluginClient, latest: watch::Sender<Option<Fingerprint>>) {
    loop {
        let mut last = DriverError::Failed { message: "the plugin ended the stream".to_owned(), recoverable: true };
        match plugin.fingerprints().await {
            Ok(mut answers) => loop {
                match answers.next().await {
                    Ok(Some(answer)) => {
                        latest.send_replace(Some(convert::fingerprint(answer)));
                    }
                    Ok(None) => break,
                    Err(error) => {
                        last = error;
                        break;
                    }
                }
            },
            Err(error) => last = error,
        }
        let gone = matches!(last, DriverError::PluginShutdown);
        if gone || latest.borrow().is_none() {
            let failed = Fingerprint::without(Health::Unhealthy, &last.to_string());
            latest.send_replace(Some(failed));
        }
        if gone || tokio::time::timeout(AGAIN, plugin.life.exited()).await.is_ok() {
            let failed = Fingerprint::without(Health::Unhealthy, &DriverError::PluginShutdown.to_string());
            latest.send_replace(Some(failed));
            return;
        }
    }
}

async fn follow_events(plugin: PluginClient, events: broadcast::Sender<TaskEvent>) {
    loop {
        if let Ok(mut answers) = plugin.task_events().await {
            while let Ok(Some(event)) = answers.next().await {
                // There may be no subscriber.
                let _ = events.send(event_of(event));
            }
        }
        if tokio::time::timeout(AGAIN, plugin.life.exited()).await.is_ok() {
            return;
        }
    }
}

#[tonic::async_trait]
impl Driver for DriverClient {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn config_schema(&self) -> Option<Spec> {
        self.config_schema.clone()
    }

    /// A plugin is configured when it is started.
    fn set_config(&self, _: &DriverConfig, _: Option<&NodeConfig>) -> Result<(), DriverError> {
        Err(DriverError::NotSupported("a plugin is configured when it is started".to_owned()))
    }

    fn task_config_schema(&self) -> Spec {
        self.task_schema.clone()
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    /// The newest fingerprint; waits for the first one.
    async fn fingerprint(&self) -> Fingerprint {
        let mut latest = self.fingerprint.clone();
        let first = latest.wait_for(Option::is_some).await.ok().and_then(|latest| latest.clone());
        first.unwrap_or_else(|| Fingerprint::without(Health::Unhealthy, &DriverError::PluginShutdown.to_string()))
    }

    async fn init(&self) -> Result<(), DriverError> {
        self.plugin.init().await
    }

    async fn shutdown(&self) {
        self.plugin.shutdown().await;
    }

    /// Values that are known only at run time are accepted.
    fn validate(&self, config: &DriverConfig) -> Result<(), DriverError> {
        let mut known = config.clone();
        known.values.values_mut().for_each(forget_unknown);
        self.schema.decode(&Body::of(&known, true)?, &serde_json::Map::new()).map(drop)
    }

    async fn start_task(&self, task: &TaskConfig) -> Result<TaskHandle, DriverError> {
        let config = self.schema.encode(&Body::of(&task.config, true)?, &serde_json::Map::new())?;
        let (handle, network) = self.plugin.start_task(convert::wire_task_config(task, config)).await?;
        // The caller that keeps the handle also keeps the task itself.
        let kept = wire::TaskHandle { config: None, ..handle };
        Ok(TaskHandle { driver_state: kept.encode_to_vec(), executor: None, network })
    }

    async fn recover_task(&self, task: &TaskConfig, driver_state: &[u8]) -> Result<(), DriverError> {
        let handle = wire::TaskHandle::decode(driver_state)
            .map_err(|e| DriverError::Failed { message: format!("the task's record: {e}"), recoverable: false })?;
        let config = Some(convert::wire_task_config(task, Vec::new()));
        self.plugin.recover_task(wire::TaskHandle { config, ..handle }).await
    }

    async fn wait_task(&self, id: &str) -> Result<ExitResult, DriverError> {
        self.plugin.wait_task(id).await
    }

    async fn stop_task(&self, id: &str, timeout: Duration, signal: Option<Signal>) -> Result<(), DriverError> {
        self.plugin.stop_task(id, timeout, &signal.map(|s| s.to_string()).unwrap_or_default()).await
    }

    async fn destroy_task(&self, id: &str, force: bool) -> Result<(), DriverError> {
        self.plugin.destroy_task(id, force).await
    }

    async fn inspect_task(&self, id: &str) -> Result<TaskStatus, DriverError> {
        self.plugin.inspect_task(id).await
    }

    async fn task_stats(&self, id: &str) -> Result<TaskStats, DriverError> {
        let mut answers = self.plugin.task_stats(id, Duration::from_secs(1)).await?;
        stats_of(answers.next().await?.ok_or_else(|| absent("the figures"))?)
    }

    async fn signal_task(&self, id: &str, signal: Signal) -> Result<(), DriverError> {
        self.plugin.signal_task(id, &signal.to_string()).await
    }

    async fn exec_task(&self, id: &str, command: &[String], timeout: Duration) -> Result<ExecTaskResult, DriverError> {
        self.plugin.exec_task(id, command, timeout).await
    }

    fn exec_streaming(&self) -> ExecStreaming<'_> {
        if self.capabilities.exec { ExecStreaming::Raw(self) } else { ExecStreaming::None }
    }

    fn task_events(&self) -> Option<broadcast::Receiver<TaskEvent>> {
        Some(self.events.subscribe())
    }

    async fn create_network(&self, alloc_id: &str, hostname: &str) -> Result<(NetworkIsolation, bool), DriverError> {
        self.plugin.create_network(alloc_id, hostname).await
    }

    async fn destroy_network(&self, alloc_id: &str, network: &NetworkIsolation) -> Result<(), DriverError> {
        self.plugin.destroy_network(alloc_id, network.clone()).await
    }
}

#[tonic::async_trait]
impl ExecTaskStreamingRaw for DriverClient {
    async fn exec_task_streaming(&self, id: &str, requests: ExecRequests) -> Result<ExecResponses, DriverError> {
        let Answers { stream, life } = self.plugin.exec_task_streaming(id, requests).await?;
        let answers = stream.then(move |answer| {
            let life = life.clone();
            async move {
                match answer {
                    Ok(answer) => Ok(answer),
                    Err(status) if life.is_shutdown(&status).await => Err(DriverError::PluginShutdown.into()),
                    Err(status) => Err(status),
                }
            }
        });
        Ok(Box::pin(answers))
    }
}

/// Removes values that contain a runtime reference.
fn forget_unknown(value: &mut serde_json::Value) {
    use serde_json::Value as Json;
    match value {
        Json::String(text) if text.contains("${") => *value = Json::Null,
        Json::Array(items) => items.iter_mut().for_each(forget_unknown),
        Json::Object(map) => map.values_mut().for_each(forget_unknown),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{FsIsolation, NetworkMode};

    #[test]
    fn a6_capabilities_cross_the_wire_without_loss() {
        use NetworkMode::{Group, Host, None, Task};
        let all = [FsIsolation::None, FsIsolation::Chroot, FsIsolation::Image, FsIsolation::Unveil];
        for (bits, fs_isolation) in (0..64u8).flat_map(|bits| all.map(|fs| (bits, fs))) {
            let is = |bit: u8| bits & (1 << bit) != 0;
            let given = Capabilities {
                send_signals: is(0),
                exec: is(1),
                fs_isolation,
                network_modes: if is(0) { vec![Host, Group, Task, None] } else { vec![Task] },
                must_create_network: is(2),
                no_mounts: is(3),
                disable_log_collection: is(4),
                dynamic_workload_users: is(5),
            };
            let bytes = convert::wire_capabilities(&given).encode_to_vec();
            let read = wire::DriverCapabilities::decode(bytes.as_slice()).unwrap();
            assert_eq!(convert::capabilities(&read), given);
        }
    }

    #[test]
    fn a4_what_is_known_only_at_run_time_counts_as_right() {
        let mut value = serde_json::json!({"port": "${NOMAD_PORT_x}", "args": ["a", "${x}"], "m": {"k": "$x"}});
        forget_unknown(&mut value);
        assert_eq!(value, serde_json::json!({"port": null, "args": ["a", null], "m": {"k": "$x"}}));
    }

    #[test]
    fn durations_of_any_length_are_sent() {
        assert_eq!(wire_duration(Duration::from_millis(1500)).nanos, 500_000_000);
        assert!(wire_duration(Duration::MAX).seconds > 0);
    }
}
