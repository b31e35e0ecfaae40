//! The host side: starts a plugin, dials it, ends it, reattaches to it.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio as ProcessStdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status};

use super::bell::Bell;
use super::connection::{self, Address, SocketFolder, Sockets};
use super::hclog::HclogLines;
use super::tls::{Identity, Tls};
use super::{Broker, Handshake, HclogLine, HostError, Protocol, Reattach};
use crate::spec::{PLUGIN_MARK, ProcessId, Role, Signal};
use crate::sys;
use crate::sys::lock::lock;
use crate::sys::mutant;
use crate::wire::Channel;
use crate::wire::goplugin::Empty;
use crate::wire::goplugin::grpc_broker_client::GrpcBrokerClient;
use crate::wire::goplugin::grpc_controller_client::GrpcControllerClient;
use crate::wire::goplugin::grpc_stdio_client::GrpcStdioClient;
use crate::wire::goplugin::stdio_data::Channel as StdioChannel;

/// Time limit for a plugin to answer Shutdown, and then to end.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// Time limit for a plugin's handshake, unless the launch sets another one.
const START_PATIENCE: Duration = Duration::from_mins(1);
/// Time limit for connecting to a plugin that already runs.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// How long a failed call waits for the end of the plugin's process to be noticed.
const DEATH_PATIENCE: Duration = Duration::from_secs(3);
/// How long SIGKILL may take.
const KILL_PATIENCE: Duration = Duration::from_secs(1);
/// How long to read remaining output of a dead plugin: another process may hold the other end of the pipe.
const REST_PATIENCE: Duration = Duration::from_secs(1);
/// Longest line on stdout and stderr, in bytes.
const LONGEST_LINE: u64 = 64 * 1024;
/// Longest answer about its health, in bytes.
const LONGEST_HEALTH: usize = 64 * 1024;
/// Lines of a plugin's stderr that are quoted in an error.
const QUOTED_LINES: usize = 5;

/// The program to start as a plugin.
#[derive(Debug, Clone, Copy)]
pub enum Program<'a> {
    /// This executable in another role.
    Own(Role),
    /// Another program.
    Path(&'a Path),
}

/// Output of a plugin on one of its language-level streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stdio {
    /// Printed to stderr instead of stdout.
    pub stderr: bool,
    /// The bytes.
    pub data: Vec<u8>,
}

/// How to start a plugin. `..Launch::new(program)` sets the defaults.
pub struct Launch<'a> {
    /// What to start.
    pub program: Program<'a>,
    /// Arguments after the program's (or the role's) name.
    pub args: &'a [OsString],
    /// The plugin's environment, in addition to the protocol's variables; nothing is inherited.
    pub env: Vec<(OsString, OsString)>,
    /// Descriptors that it inherits, under the same numbers.
    pub inherits: Vec<Arc<OwnedFd>>,
    /// Start it as leader of a new session, out of reach of our terminal's signals.
    pub new_session: bool,
    /// The kernel kills it when the thread that starts it ends: for plugins to which no later process reattaches.
    pub dies_with_us: bool,
    /// Cookie and app protocol versions; Nomad's by default.
    pub protocol: Protocol,
    /// Protect the connection with certificates made for this launch. Such a plugin cannot be reattached. Nomad never asks for it;
    /// it adds little for a socket in a directory that only its owner can enter.
    pub auto_mtls: bool,
    /// The directory of its sockets; the temporary directory by default.
    pub socket_dir: Option<&'a Path>,
    /// The group, by name or number, to which its sockets are chowned, with mode 0660.
    pub socket_group: Option<&'a str>,
    /// Time limit for its handshake, and then for the answer on its socket.
    pub start_timeout: Duration,
    /// The connection is closed when no call was made for this long, and made again for the next one; `None` to keep it. Only for
    /// our own roles, without TLS.
    pub rests_after: Option<Duration>,
    /// Receives the lines that it writes to stderr.
    pub log: Box<dyn Fn(HclogLine) + Send + Sync>,
}

/// A running plugin and the connection to it.
///
/// Dropping it leaves the plugin running, for a later [`Client::reattach`]; [`Client::kill`] ends it.
#[derive(Debug)]
#[must_use = "a plugin that is not killed runs on"]
pub struct Client {
    channel: Channel,
    process: ProcessId,
    address: Address,
    version: Option<u32>,
    tls: bool,
    pidfd: Arc<OwnedFd>,
    life: Life,
    broker: Arc<Broker>,
    /// Its stream is open.
    has_broker: AtomicBool,
    stdio: Arc<Printed>,
    /// It is one of our roles, which announce and print nothing.
    is_ours: bool,
    /// The user that it runs as, if that is known.
    user: Option<u32>,
}

impl<'a> Launch<'a> {
    /// Nomad's protocol, no arguments, no environment, no TLS, a minute to start; log lines are discarded.
    pub fn new(program: Program<'a>) -> Launch<'a> {
        Launch {
            program,
            args: &[],
            env: Vec::new(),
            inherits: Vec::new(),
            new_session: false,
            dies_with_us: false,
            protocol: Protocol::nomad(),
            auto_mtls: false,
            socket_dir: None,
            socket_group: None,
            start_timeout: START_PATIENCE,
            rests_after: None,
            log: Box::new(|_| {}),
        }
    }

    /// Starts the plugin and connects to it.
    ///
    /// # Errors
    /// See [`HostError`]. When this fails, the process has been ended.
    pub async fn start(self) -> Result<Client, HostError> {
        let (mut command, program) = self.command()?;
        let start_error = |source| HostError::Start { program: program.clone(), source };
        let tls_error = |source| HostError::Tls { program: program.clone(), source };
        let identity = if self.auto_mtls { Some(Identity::new().map_err(tls_error)?) } else { None };
        if let Some(identity) = &identity {
            command.env("PLUGIN_CLIENT_CERT", identity.pem());
        }
        let deadline = Instant::now() + self.start_timeout;
        let sockets_dir = self.socket_dir.map_or_else(std::env::temp_dir, Path::to_owned);
        let ours = matches!(self.program, Program::Own(_));
        let sockets = ours.then(|| SocketFolder::open(&sockets_dir)).transpose().map_err(start_error)?;
        if self.dies_with_us && !mutant::on("d66") {
            sys::process::die_with_parent(&mut command);
        }
        if !self.inherits.is_empty() {
            sys::process::leave_open(&mut command, &self.inherits);
        }
        let spawned = if self.new_session { sys::process::spawn_in_session(&mut command) } else { command.spawn() };
        let mut child = spawned.map_err(start_error)?;
        #[expect(clippy::cast_possible_wrap, reason = "a pid fits in pid_t")]
        let pid = child.id() as i32;
        let owned = |fd: Option<OwnedFd>| fd.ok_or_else(|| start_error(io::ErrorKind::BrokenPipe.into()));
        let stdout = owned(child.stdout.take().map(OwnedFd::from))?;
        let stderr = owned(child.stderr.take().map(OwnedFd::from))?;
        // The pid cannot be reused before the child is reaped, and only the watcher below does that.
        let pidfd = Arc::new(sys::process::open_pidfd(pid).map_err(|source| {
            // Without a pidfd nobody would watch it, so it is killed. SIGKILL cannot be blocked, so this does not take long.
            let _ = child.kill();
            let _ = child.wait();
            if let Some(dir) = &sockets {
                dir.remove_sockets(pid);
            }
            start_error(source)
        })?);
        let guard = KillOnDrop(Some(Launched { pid, pidfd: Arc::clone(&pidfd), sockets }));
        let life = watch_exit(Arc::clone(&pidfd)).map_err(start_error)?;
        let stderr = follow_stderr(stderr, self.log).map_err(start_error)?;
        let first = read_first_line(stdout).map_err(start_error)?;
        let Ok(line) = timeout_at(deadline, first_line_or_end(first, &life)).await else {
            return Err(HostError::Timeout { program, timeout: self.start_timeout });
        };
        let Some(line) = line else {
            return Err(HostError::Exited { program, said: stderr.last_words().await });
        };
        let handshake = Handshake::parse(&line, &self.protocol.versions, self.auto_mtls)
            .map_err(|source| HostError::Handshake { program: program.clone(), source })?;
        let tls = match (identity, handshake.certificate) {
            (Some(identity), Some(shown)) => Some(identity.towards(vec![shown.into()]).map_err(tls_error)?),
            _ => None,
        };
        let process = sys::time::process_id(pid).map_err(|source| HostError::Watch { pid, source })?;
        let user = sys::processes::user(pid).map_err(|source| HostError::Watch { pid, source })?;
        let sockets = Sockets { dir: sockets_dir, group: self.socket_group.map(str::to_owned) };
        let broker = Arc::new(Broker::new(sockets, tls.clone(), user));
        let patience = deadline.saturating_duration_since(Instant::now()).max(REST_PATIENCE);
        let rests_after = self.rests_after.filter(|_| ours && tls.is_none());
        let channel = connect(&handshake.address, tls, patience, user, rests_after).await?;
        guard.disarm();
        let client = Client {
            channel,
            process,
            address: handshake.address,
            version: Some(handshake.version),
            tls: self.auto_mtls,
            pidfd,
            life,
            broker,
            has_broker: AtomicBool::new(false),
            stdio: Arc::default(),
            is_ours: ours,
            user,
        };
        client.open_streams();
        Ok(client)
    }

    fn command(&self) -> Result<(Command, String), HostError> {
        let (mut command, name) = match self.program {
            Program::Own(role) => {
                let name = role.name().to_owned();
                let exe = sys::exe::own().map_err(|source| HostError::Start { program: name.clone(), source })?;
                let mut command = Command::new(format!("/proc/self/fd/{}", exe.as_raw_fd()));
                // A descriptor has no file name, so argv[0] decides: it is not the name of a role, and the role follows as an
                // argument.
                std::os::unix::process::CommandExt::arg0(&mut command, env!("CARGO_PKG_NAME"));
                command.arg(role.name());
                (command, name)
            }
            Program::Path(path) => (Command::new(path), path.display().to_string()),
        };
        command.args(self.args).env_clear().envs(self.env.iter().map(|(key, value)| (key, value)));
        // A host that is a plugin itself must not pass on the settings of its own host.
        for ours in
            ["PLUGIN_CLIENT_CERT", "PLUGIN_MULTIPLEX_GRPC", "PLUGIN_UNIX_SOCKET_DIR", "PLUGIN_UNIX_SOCKET_GROUP"]
        {
            command.env_remove(ours);
        }
        command
            .env(&self.protocol.cookie_key, &self.protocol.cookie_value)
            .env("PLUGIN_MIN_PORT", "10000")
            .env("PLUGIN_MAX_PORT", "25000")
            .env("PLUGIN_PROTOCOL_VERSIONS", self.protocol.offer())
            .stdin(ProcessStdio::null())
            .stdout(ProcessStdio::piped())
            .stderr(ProcessStdio::piped());
        if let Some(dir) = self.socket_dir {
            command.env("PLUGIN_UNIX_SOCKET_DIR", dir);
        }
        if let Some(group) = self.socket_group {
            command.env("PLUGIN_UNIX_SOCKET_GROUP", group);
        }
        Ok((command, name))
    }
}

/// A plugin that was started, but is not yet owned by a client.
struct Launched {
    pid: i32,
    pidfd: Arc<OwnedFd>,
    /// The directory of its sockets, if it is one of ours.
    sockets: Option<SocketFolder>,
}

/// Kills the plugin when its start fails half-way, and removes the socket that it may have made.
struct KillOnDrop(Option<Launched>);

impl KillOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let Some(Launched { pid, pidfd, sockets }) = &self.0 else { return };
        // ESRCH: it has already ended.
        let _ = sys::process::send_signal(pidfd.as_fd(), Signal::KILL);
        let patience = Timespec { tv_sec: KILL_PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        let ended = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&patience)).is_ok_and(|ready| ready > 0);
        if let (Some(dir), true) = (sockets, ended) {
            dir.remove_sockets(*pid);
        }
        let _ = sys::process::try_wait(pidfd.as_fd());
    }
}

impl Client {
    /// Connects to a plugin that an earlier process of ours started.
    ///
    /// # Errors
    /// [`HostError::Gone`] unless exactly that process still runs, [`HostError::Connect`].
    pub async fn reattach(reattach: Reattach) -> Result<Client, HostError> {
        Client::reattach_to(reattach, false, None).await
    }

    /// The same for one of our own roles; see [`Launch::rests_after`].
    ///
    /// # Errors
    /// See [`Client::reattach`].
    pub async fn reattach_own(reattach: Reattach, rests_after: Option<Duration>) -> Result<Client, HostError> {
        Client::reattach_to(reattach, true, rests_after).await
    }

    async fn reattach_to(
        reattach: Reattach,
        is_ours: bool,
        rests_after: Option<Duration>,
    ) -> Result<Client, HostError> {
        let pid = reattach.process.pid;
        // Opened first, checked second: the descriptor keeps referring to the process that was checked.
        let watch_error = |source: io::Error| match source.raw_os_error() {
            Some(libc::ESRCH) => HostError::Gone(pid),
            _ => HostError::Watch { pid, source },
        };
        let pidfd = sys::process::open_pidfd(pid).map_err(watch_error)?;
        if !sys::time::is_alive(&reattach.process).map_err(watch_error)? {
            return Err(HostError::Gone(pid));
        }
        let pidfd = Arc::new(pidfd);
        // An agent that was upgraded is the same process, so that what it started before is its child, and nobody else reaps it.
        let life = watch_exit(Arc::clone(&pidfd)).map_err(watch_error)?;
        // Next to the plugin's own socket, in a directory that the plugin can certainly access.
        let dir = reattach.socket.parent().map_or_else(std::env::temp_dir, Path::to_owned);
        let address = Address::Unix(reattach.socket);
        let user = sys::processes::user(pid).map_err(watch_error)?;
        let broker = Arc::new(Broker::new(Sockets { dir, group: None }, None, user));
        let channel = connect(&address, None, CONNECT_PATIENCE, user, rests_after).await?;
        let client = Client {
            channel,
            process: reattach.process,
            address,
            version: None,
            tls: false,
            pidfd,
            life,
            broker,
            has_broker: AtomicBool::new(false),
            stdio: Arc::default(),
            is_ours,
            user,
        };
        client.open_streams();
        Ok(client)
    }

    /// Opens the streams that hosts keep open for the life of the connection. For our own roles they would only cost memory, unless
    /// they are asked for.
    fn open_streams(&self) {
        if !self.is_ours {
            self.open_broker();
            self.drain_stdio();
        }
    }

    fn open_broker(&self) {
        if !self.has_broker.swap(true, Ordering::Relaxed) {
            crate::sys::task::spawn(open_broker(self.channel(), Arc::clone(&self.broker)));
        }
    }

    /// Has the plugin, which must be one of our roles, say when it has news for a client that knows its state `known`; `None` if it
    /// cannot, and then a call has to wait.
    pub fn bell(&self, known: u64) -> impl Future<Output = Option<Bell>> + Send + use<> {
        let socket = match &self.address {
            Address::Unix(socket) if self.is_ours && !self.tls => Some(socket.clone()),
            Address::Unix(_) | Address::Tcp(_) => None,
        };
        let user = self.user;
        async move { Bell::on(connection::to(&socket?, user).await.ok()?, known).await.ok() }
    }

    /// The connection, for the plugin's own services.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// The broker of this connection.
    ///
    /// # Panics
    /// Outside a tokio runtime, for one of our own roles.
    #[must_use]
    pub fn broker(&self) -> Arc<Broker> {
        self.open_broker();
        Arc::clone(&self.broker)
    }

    /// The app protocol version that the plugin chose; `None` after a reattach, where it is unknown.
    #[must_use]
    pub fn version(&self) -> Option<u32> {
        self.version
    }

    /// The plugin's process.
    #[must_use]
    pub fn process(&self) -> &ProcessId {
        &self.process
    }

    /// The record with which a later process of ours can reattach to this plugin.
    ///
    /// # Errors
    /// [`HostError::NotReattachable`] when it was launched with `AutoMTLS`, or listens on a TCP port.
    pub fn reattach_config(&self) -> Result<Reattach, HostError> {
        if self.tls {
            return Err(HostError::NotReattachable("its TLS keys are in the memory of the process that started it"));
        }
        match &self.address {
            Address::Unix(socket) => Ok(Reattach { process: self.process.clone(), socket: socket.clone() }),
            Address::Tcp(_) => Err(HostError::NotReattachable("it listens on a TCP port")),
        }
    }

    /// The state of the plugin's process, for code that only holds its channel.
    #[must_use]
    pub fn life(&self) -> Life {
        self.life.clone()
    }

    /// Whether the plugin's process has ended.
    #[must_use]
    pub fn has_exited(&self) -> bool {
        self.life.has_exited()
    }

    /// Waits for the end of the plugin's process.
    pub async fn exited(&self) {
        self.life.exited().await;
    }

    /// See [`Life::is_shutdown`].
    pub async fn is_shutdown(&self, status: &Status) -> bool {
        self.life.is_shutdown(status).await
    }

    /// Calls the plugin's health service. Only the success of the call counts, as in Go hosts.
    ///
    /// # Errors
    /// The gRPC status of the failed call.
    pub async fn ping(&self) -> Result<(), Status> {
        crate::wire::health(self.channel(), "plugin", LONGEST_HEALTH).await.map(drop)
    }

    /// The plugin's output on its language-level stdout and stderr, from now on. A plugin without the service has no output. The
    /// latest caller receives it; without one it is read and discarded, so that the plugin never blocks.
    pub fn stdio(&self) -> mpsc::UnboundedReceiver<Stdio> {
        let (sender, receiver) = mpsc::unbounded_channel();
        lock(&self.stdio.0).reader = Some(sender);
        self.drain_stdio();
        receiver
    }

    fn drain_stdio(&self) {
        let was_open = std::mem::replace(&mut lock(&self.stdio.0).open, true);
        if was_open {
            return;
        }
        let printed = Arc::clone(&self.stdio);
        let mut client = GrpcStdioClient::new(self.channel()).max_decoding_message_size(i32::MAX as usize);
        crate::sys::task::spawn(async move {
            if let Ok(stream) = client.stream_stdio(()).await {
                let mut stream = stream.into_inner();
                while let Some(Ok(item)) = stream.next().await {
                    let stderr = item.channel() == StdioChannel::Stderr;
                    printed.pass_on(Stdio { stderr, data: item.data });
                }
            }
            // The receiver sees the end of the stream.
            lock(&printed.0).reader = None;
        });
    }

    /// Ends the plugin: asks it to shut down, waits 2 s, then kills it. Its socket is removed afterwards.
    pub async fn kill(self) {
        let mut controller = GrpcControllerClient::new(self.channel());
        // A Go plugin closes the connection before it answers: the result is ignored.
        let _ = tokio::time::timeout(END_PATIENCE, controller.shutdown(Empty {})).await;
        if tokio::time::timeout(END_PATIENCE, self.exited()).await.is_err() {
            let _ = sys::process::send_signal(self.pidfd.as_fd(), Signal::KILL);
            self.exited().await;
        }
        if let Address::Unix(socket) = &self.address {
            // A plugin that exits orderly has removed it; a killed one could not.
            let _ = std::fs::remove_file(socket);
        }
    }
}

/// Whether a plugin's process is alive. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Life(watch::Receiver<bool>);

impl Life {
    /// Whether the process has ended.
    #[must_use]
    pub fn has_exited(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for the end of the process.
    pub async fn exited(&self) {
        // An error would mean that the watcher has ended: the runtime is shutting down.
        let _ = self.0.clone().wait_for(|gone| *gone).await;
    }

    /// Whether a call failed because the plugin is gone, which Nomad calls `PluginShutdown`.
    ///
    /// If the process has ended, that explains any status. A call that broke (Unavailable, Cancelled, or an error that this side
    /// created because the connection ended) waits up to 3 s for the end to be noticed; every other status is the plugin's own
    /// answer. Do not use this for calls that the caller itself cancelled.
    pub async fn is_shutdown(&self, status: &Status) -> bool {
        // An error of the transport has a source; one received from the plugin has none.
        let broken =
            matches!(status.code(), Code::Unavailable | Code::Cancelled) || std::error::Error::source(status).is_some();
        self.has_exited() || (broken && timeout(DEATH_PATIENCE, self.exited()).await.is_ok())
    }
}

/// Destination of the plugin's output.
#[derive(Debug, Default)]
struct Printed(Mutex<Printing>);

#[derive(Debug, Default)]
struct Printing {
    open: bool,
    reader: Option<mpsc::UnboundedSender<Stdio>>,
}

impl Printed {
    fn pass_on(&self, item: Stdio) {
        let mut printing = lock(&self.0);
        if printing.reader.as_ref().is_some_and(|reader| reader.send(item).is_err()) {
            printing.reader = None;
        }
    }
}

/// Dials a plugin.
async fn connect(
    address: &Address,
    tls: Option<Tls>,
    patience: Duration,
    user: Option<u32>,
    rests_after: Option<Duration>,
) -> Result<Channel, HostError> {
    let open = connection::dial(address, tls, patience, user)
        .await
        .map_err(|source| HostError::Connect { address: address.to_string(), source })?;
    let Some(after) = rests_after else { return Ok(open.into()) };
    let address = address.clone();
    Ok(Channel::resting(
        open,
        after,
        Box::new(move || {
            let address = address.clone();
            Box::pin(async move {
                let dialled = connection::dial(&address, None, CONNECT_PATIENCE, user).await;
                // Known to tonic: the call ends as unavailable.
                dialled.map_err(|error| tonic::ConnectError(error.into()).into())
            })
        }),
    ))
}

/// Opens the broker stream that hosts keep open for the life of the connection.
async fn open_broker(channel: Channel, broker: Arc<Broker>) {
    let (sender, outgoing) = mpsc::unbounded_channel();
    // Set before the response: a Go plugin sends none, not even headers, until it has something to announce.
    broker.set_peer(sender);
    let Ok(stream) = GrpcBrokerClient::new(channel).start_stream(UnboundedReceiverStream::new(outgoing)).await else {
        return;
    };
    let mut stream = stream.into_inner();
    while let Some(Ok(info)) = stream.next().await {
        broker.received(info);
    }
}

/// Reports when the process has ended, and reaps it if it is our child.
fn watch_exit(pidfd: Arc<OwnedFd>) -> io::Result<Life> {
    let ended = sys::watch::register(pidfd, tokio::io::Interest::READABLE)?;
    let (sender, receiver) = watch::channel(false);
    crate::sys::task::spawn(async move {
        let _ = ended.readable().await;
        // Readable means that it has ended; ECHILD means that it is not a child of ours or was already reaped, which is fine.
        let _ = sys::process::try_wait(ended.get_ref().as_fd());
        sender.send_replace(true);
    });
    Ok(Life(receiver))
}

/// A plugin's stderr: its last lines, and whether the stream has ended.
struct Stderr {
    lines: Arc<Mutex<VecDeque<String>>>,
    ended: watch::Receiver<bool>,
}

impl Stderr {
    /// The last lines of a plugin that has ended, for an error message.
    async fn last_words(mut self) -> String {
        let _ = timeout(REST_PATIENCE, self.ended.wait_for(|ended| *ended)).await;
        let lines = lock(&self.lines);
        let text = lines.iter().map(String::as_str).collect::<Vec<_>>().join("; ");
        if text.is_empty() { text } else { format!(": {text}") }
    }
}

fn follow_stderr(stderr: OwnedFd, log: Box<dyn Fn(HclogLine) + Send + Sync>) -> io::Result<Stderr> {
    let (ended, receiver) = watch::channel(false);
    let followed = Stderr { lines: Arc::default(), ended: receiver };
    let quoted = Arc::clone(&followed.lines);
    let mut reader = BufReader::with_capacity(1024, pipe::Receiver::from_owned_fd(stderr)?);
    crate::sys::task::spawn(async move {
        let mut lines = HclogLines::default();
        let mut line = Vec::new();
        // 64 KiB without a line end count as a line, as in Go hosts.
        while let Ok(1..) = (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut line).await {
            let parsed = lines.next(&String::from_utf8_lossy(&line));
            let mut quoted = lock(&quoted);
            if quoted.len() == QUOTED_LINES {
                quoted.pop_front();
            }
            quoted.push_back(parsed.message.clone());
            drop(quoted);
            log(parsed);
            line.clear();
        }
        ended.send_replace(true);
    });
    Ok(followed)
}

/// The first line of stdout; everything after it is read and discarded, so that the plugin never blocks.
fn read_first_line(stdout: OwnedFd) -> io::Result<impl Future<Output = Option<String>>> {
    let reader = pipe::Receiver::from_owned_fd(stdout)?;
    Ok(async move {
        let mut reader = BufReader::with_capacity(512, reader);
        let mut line = Vec::new();
        // An error is treated like the end: no line.
        let _ = (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut line).await;
        crate::sys::task::spawn(async move {
            let mut sink = [0u8; 512];
            while let Ok(1..) = reader.read(&mut sink).await {}
        });
        (!line.is_empty()).then(|| String::from_utf8_lossy(&line).into_owned())
    })
}

/// The first line, or `None` once the process has ended without one. If the plugin closes its stdout and keeps running, this waits
/// for its end.
async fn first_line_or_end(first: impl Future<Output = Option<String>>, life: &Life) -> Option<String> {
    let mut first = std::pin::pin!(first);
    tokio::select! {
        biased;
        line = &mut first => {
            if line.is_none() {
                life.exited().await;
            }
            line
        }
        // The line may still be in the pipe; another process may hold the other end of the pipe.
        () = life.exited() => timeout(REST_PATIENCE, first).await.ok().flatten(),
    }
}

/// The environment of our own roles: enough to find programs and temporary files, and none of our secrets.
#[must_use]
pub fn role_environment() -> Vec<(OsString, OsString)> {
    ["PATH", "TMPDIR", "RUST_BACKTRACE", PLUGIN_MARK]
        .into_iter()
        .filter_map(|key| std::env::var_os(key).map(|value| (OsStr::new(key).to_owned(), value)))
        .chain(sys::mutant::environment().iter().filter_map(|entry| {
            let (key, value) = entry.split_once('=')?;
            Some((key.into(), value.into()))
        }))
        .collect()
}
