//! The host side: start a plugin, dial it, end it, find it again.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio as ProcessStdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Channel, Endpoint, Uri};

use super::{Broker, COOKIE_KEY, COOKIE_VALUE, Handshake, HandshakeError, HclogLine, PROTOCOL_VERSION};
use crate::spec::{ProcessId, Role, Signal};
use crate::sys;
use crate::sys::lock::lock;
use crate::wire::goplugin::Empty;
use crate::wire::goplugin::grpc_broker_client::GrpcBrokerClient;
use crate::wire::goplugin::grpc_controller_client::GrpcControllerClient;
use crate::wire::goplugin::grpc_stdio_client::GrpcStdioClient;
use crate::wire::goplugin::stdio_data::Channel as StdioChannel;

/// How long a plugin may take to answer Shutdown, and then to end.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// Lines of a plugin's stderr that an error quotes.
const QUOTED_LINES: usize = 5;

/// Why a plugin could not be started or reached.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The program could not be executed.
    #[error("cannot start plugin {program}: {source}")]
    Start {
        /// Which program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// It ended without a handshake.
    #[error("plugin {program} exited before it could be reached{said}")]
    Exited {
        /// Which program.
        program: String,
        /// `: ` and what it wrote to stderr, or nothing.
        said: String,
    },
    /// It said nothing in time.
    #[error("plugin {program} sent no handshake within {timeout:?}")]
    Timeout {
        /// Which program.
        program: String,
        /// How long it had.
        timeout: Duration,
    },
    /// Its first line was something else.
    #[error("plugin {program}: {source}")]
    Handshake {
        /// Which program.
        program: String,
        /// What was wrong.
        source: HandshakeError,
    },
    /// Its socket could not be dialled.
    #[error("cannot connect to plugin socket {socket}: {source}")]
    Connect {
        /// Which socket.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The process that a reattach record names is gone; its number may belong to somebody else by now.
    #[error("reattachment process not found: pid {0} has ended")]
    Gone(i32),
    /// It cannot be told whether the process lives.
    #[error("cannot look at the plugin's process {pid}: {source}")]
    Watch {
        /// Its number.
        pid: i32,
        /// What the system said.
        source: io::Error,
    },
}

/// What to start as a plugin.
#[derive(Debug, Clone, Copy)]
pub enum Program<'a> {
    /// This very executable in another role.
    Own(Role),
    /// Another program.
    Path(&'a Path),
}

/// Everything needed to reach a plugin again after this process has been replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reattach {
    /// The plugin's process.
    pub process: ProcessId,
    /// Its socket.
    pub socket: PathBuf,
}

/// What a plugin printed on one of its language-level streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stdio {
    /// Printed to stderr instead of stdout.
    pub stderr: bool,
    /// The bytes.
    pub data: Vec<u8>,
}

/// How to start a plugin.
pub struct Launch<'a> {
    /// What to start.
    pub program: Program<'a>,
    /// Arguments after the program's (or the role's) name.
    pub args: &'a [OsString],
    /// The plugin inherits this environment; nothing else but the protocol's variables.
    pub env: Vec<(OsString, OsString)>,
    /// Start it as leader of a new session, out of reach of our terminal's signals.
    pub new_session: bool,
    /// Where its sockets go; the temporary folder unless given.
    pub socket_dir: Option<&'a Path>,
    /// How long it may take to its handshake.
    pub start_timeout: Duration,
    /// Gets the lines that it writes to stderr.
    pub log: Box<dyn Fn(HclogLine) + Send + Sync>,
}

/// A running plugin and the connection to it.
///
/// Dropping it leaves the plugin running, for a later [`Client::reattach`]; [`Client::kill`] ends it.
#[derive(Debug)]
#[must_use = "a plugin that is not killed runs on"]
pub struct Client {
    channel: Channel,
    reattach: Reattach,
    pidfd: Arc<OwnedFd>,
    exited: watch::Receiver<bool>,
    broker: Arc<Broker>,
}

impl Launch<'_> {
    /// Starts the plugin and connects to it.
    ///
    /// # Errors
    /// See [`HostError`]. The process is gone when this fails.
    pub async fn start(self) -> Result<Client, HostError> {
        let (mut command, program) = self.command()?;
        let start_error = |source| HostError::Start { program: program.clone(), source };
        let spawned = if self.new_session { sys::process::spawn_in_session(&mut command) } else { command.spawn() };
        let mut child = spawned.map_err(start_error)?;
        #[expect(clippy::cast_possible_wrap, reason = "a pid fits in pid_t")]
        let pid = child.id() as i32;
        let owned = |fd: Option<OwnedFd>| fd.ok_or_else(|| start_error(io::ErrorKind::BrokenPipe.into()));
        let stdout = owned(child.stdout.take().map(OwnedFd::from))?;
        let stderr = owned(child.stderr.take().map(OwnedFd::from))?;
        // The number cannot be reused before somebody reaps the child, and only the watcher below does.
        let pidfd = Arc::new(sys::process::open_pidfd(pid).map_err(start_error)?);
        let guard = KillOnDrop(Some(Arc::clone(&pidfd)));
        let exited = watch_exit(Arc::clone(&pidfd), true).map_err(start_error)?;
        let quoted = follow_stderr(stderr, self.log).map_err(start_error)?;
        let first = read_first_line(stdout).map_err(start_error)?;
        let line = tokio::time::timeout(self.start_timeout, first)
            .await
            .map_err(|_| HostError::Timeout { program: program.clone(), timeout: self.start_timeout })?;
        let Ok(Some(line)) = line else {
            let _ = exited.clone().wait_for(|gone| *gone).await;
            return Err(HostError::Exited { program, said: quoted.text() });
        };
        let handshake = Handshake::parse(&line).map_err(|source| HostError::Handshake { program, source })?;
        let process = sys::time::process_id(pid).map_err(|source| HostError::Watch { pid, source })?;
        let reattach = Reattach { process, socket: handshake.socket };
        let client = Client::connect(reattach, pidfd, exited).await?;
        guard.disarm();
        Ok(client)
    }

    fn command(&self) -> Result<(Command, String), HostError> {
        let (mut command, name) = match self.program {
            Program::Own(role) => {
                let name = role.name().to_owned();
                let exe = sys::exe::own().map_err(|source| HostError::Start { program: name.clone(), source })?;
                let mut command = Command::new(format!("/proc/self/fd/{}", exe.as_raw_fd()));
                // A descriptor has no name, so argv[0] decides: one that is no role's, and then the role.
                std::os::unix::process::CommandExt::arg0(&mut command, env!("CARGO_PKG_NAME"));
                command.arg(role.name());
                (command, name)
            }
            Program::Path(path) => (Command::new(path), path.display().to_string()),
        };
        command
            .args(self.args)
            .env_clear()
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .env(COOKIE_KEY, COOKIE_VALUE)
            .env("PLUGIN_MIN_PORT", "10000")
            .env("PLUGIN_MAX_PORT", "25000")
            .env("PLUGIN_PROTOCOL_VERSIONS", PROTOCOL_VERSION.to_string())
            .stdin(ProcessStdio::null())
            .stdout(ProcessStdio::piped())
            .stderr(ProcessStdio::piped());
        if let Some(dir) = self.socket_dir {
            command.env("PLUGIN_UNIX_SOCKET_DIR", dir);
        }
        Ok((command, name))
    }
}

/// Kills the plugin when starting it fails half-way.
struct KillOnDrop(Option<Arc<OwnedFd>>);

impl KillOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(pidfd) = &self.0 {
            // ESRCH: it has ended by itself.
            let _ = sys::process::send_signal(pidfd.as_fd(), Signal::KILL);
        }
    }
}

impl Client {
    /// Connects to a plugin that an earlier process of ours started.
    ///
    /// # Errors
    /// [`HostError::Gone`] unless exactly that process still runs, [`HostError::Connect`].
    pub async fn reattach(reattach: Reattach) -> Result<Client, HostError> {
        let pid = reattach.process.pid;
        // Opened first, checked second: the descriptor cannot change its process after the check.
        let watch_error = |source: io::Error| match source.raw_os_error() {
            Some(libc::ESRCH) => HostError::Gone(pid),
            _ => HostError::Watch { pid, source },
        };
        let pidfd = sys::process::open_pidfd(pid).map_err(watch_error)?;
        if !sys::time::is_alive(&reattach.process).map_err(watch_error)? {
            return Err(HostError::Gone(pid));
        }
        let pidfd = Arc::new(pidfd);
        let exited = watch_exit(Arc::clone(&pidfd), false).map_err(watch_error)?;
        Client::connect(reattach, pidfd, exited).await
    }

    async fn connect(
        reattach: Reattach,
        pidfd: Arc<OwnedFd>,
        exited: watch::Receiver<bool>,
    ) -> Result<Client, HostError> {
        let channel = dial_socket(&reattach.socket).await?;
        let broker = Arc::new(Broker::new());
        tokio::spawn(open_broker(channel.clone(), Arc::clone(&broker)));
        Ok(Client { channel, reattach, pidfd, exited, broker })
    }

    /// The connection, for the plugin's own services.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// The broker of this connection.
    #[must_use]
    pub fn broker(&self) -> Arc<Broker> {
        Arc::clone(&self.broker)
    }

    /// What a later process of ours needs to find this plugin again.
    #[must_use]
    pub fn reattach_config(&self) -> &Reattach {
        &self.reattach
    }

    /// Whether the plugin's process has ended.
    #[must_use]
    pub fn has_exited(&self) -> bool {
        *self.exited.borrow()
    }

    /// Waits for the end of the plugin's process.
    pub async fn exited(&self) {
        let _ = self.exited.clone().wait_for(|gone| *gone).await;
    }

    /// Asks the plugin's health service. Only the call's success counts, as in Go hosts.
    ///
    /// # Errors
    /// The gRPC status of the failed call.
    pub async fn ping(&self) -> Result<(), tonic::Status> {
        let request = tonic_health::pb::HealthCheckRequest { service: "plugin".to_owned() };
        tonic_health::pb::health_client::HealthClient::new(self.channel()).check(request).await?;
        Ok(())
    }

    /// What the plugin prints on its language-level stdout and stderr. A plugin without the service prints nothing.
    ///
    /// A Go plugin blocks while nobody reads this once it has filled its pipes.
    pub fn stdio(&self) -> mpsc::UnboundedReceiver<Stdio> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut client = GrpcStdioClient::new(self.channel());
        tokio::spawn(async move {
            let Ok(stream) = client.stream_stdio(()).await else { return };
            let mut stream = stream.into_inner();
            while let Some(Ok(item)) = stream.next().await {
                let stderr = item.channel() == StdioChannel::Stderr;
                if sender.send(Stdio { stderr, data: item.data }).is_err() {
                    return;
                }
            }
        });
        receiver
    }

    /// Ends the plugin: asks it to shut down, waits 2 s, then kills it. Its socket is gone afterwards.
    pub async fn kill(self) {
        let mut controller = GrpcControllerClient::new(self.channel());
        // A Go plugin tears the connection down before it answers: any result will do.
        let _ = tokio::time::timeout(END_PATIENCE, controller.shutdown(Empty {})).await;
        if tokio::time::timeout(END_PATIENCE, self.exited()).await.is_err() {
            let _ = sys::process::send_signal(self.pidfd.as_fd(), Signal::KILL);
            self.exited().await;
        }
        // An orderly plugin has removed it; a killed one could not.
        let _ = std::fs::remove_file(&self.reattach.socket);
    }
}

/// Opens the broker stream that hosts keep open for the life of the connection.
async fn open_broker(channel: Channel, broker: Arc<Broker>) {
    let (sender, outgoing) = mpsc::unbounded_channel();
    let Ok(stream) = GrpcBrokerClient::new(channel).start_stream(UnboundedReceiverStream::new(outgoing)).await else {
        return;
    };
    broker.set_peer(sender);
    let mut stream = stream.into_inner();
    while let Some(Ok(info)) = stream.next().await {
        broker.received(info);
    }
}

/// Dials a plugin's socket.
pub(super) async fn dial_socket(socket: &Path) -> Result<Channel, HostError> {
    // The path never becomes the `:authority`; servers refuse one with slashes.
    let endpoint = Endpoint::from_static("http://localhost");
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    endpoint
        .connect_with_connector(connector)
        .await
        .map_err(|error| HostError::Connect { socket: socket.to_owned(), source: io::Error::other(root_cause(&error)) })
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// Tells when the process has ended, and reaps it when it is our child.
fn watch_exit(pidfd: Arc<OwnedFd>, reap: bool) -> io::Result<watch::Receiver<bool>> {
    let ended = sys::watch::register(pidfd, tokio::io::Interest::READABLE)?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        let _ = ended.readable().await;
        if reap {
            // Readable means ended; ECHILD would mean that it was reaped before, which is as good.
            let _ = sys::process::try_wait(ended.get_ref().as_fd());
        }
        sender.send_replace(true);
    });
    Ok(receiver)
}

/// The last lines that a plugin wrote to stderr.
#[derive(Clone, Default)]
struct Quoted(Arc<Mutex<VecDeque<String>>>);

impl Quoted {
    fn push(&self, line: &str) {
        let mut lines = lock(&self.0);
        if lines.len() == QUOTED_LINES {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }

    fn text(&self) -> String {
        let lines = lock(&self.0);
        let text = lines.iter().map(String::as_str).collect::<Vec<_>>().join("; ");
        if text.is_empty() { text } else { format!(": {text}") }
    }
}

fn follow_stderr(stderr: OwnedFd, log: Box<dyn Fn(HclogLine) + Send + Sync>) -> io::Result<Quoted> {
    let quoted = Quoted::default();
    let lines = quoted.clone();
    let mut reader = BufReader::with_capacity(1024, pipe::Receiver::from_owned_fd(stderr)?);
    tokio::spawn(async move {
        let mut line = Vec::new();
        // 64 KiB without a line end is a line of its own, as in Go hosts.
        while let Ok(1..) = (&mut reader).take(64 * 1024).read_until(b'\n', &mut line).await {
            let parsed = HclogLine::parse(&String::from_utf8_lossy(&line));
            lines.push(&parsed.message);
            log(parsed);
            line.clear();
        }
    });
    Ok(quoted)
}

/// The first line of stdout; whatever follows is read and thrown away, so that the plugin never blocks.
fn read_first_line(stdout: OwnedFd) -> io::Result<impl Future<Output = io::Result<Option<String>>>> {
    let reader = pipe::Receiver::from_owned_fd(stdout)?;
    Ok(async move {
        let mut reader = BufReader::with_capacity(512, reader);
        let mut line = String::new();
        let read = (&mut reader).take(64 * 1024).read_line(&mut line).await?;
        tokio::spawn(async move {
            let mut sink = [0u8; 512];
            while let Ok(1..) = reader.read(&mut sink).await {}
        });
        Ok((read > 0).then_some(line))
    })
}

/// The environment that our own roles get: enough to find programs and temporary files, and no secret of ours.
#[must_use]
pub fn role_environment() -> Vec<(OsString, OsString)> {
    ["PATH", "TMPDIR", "RUST_BACKTRACE"]
        .into_iter()
        .filter_map(|key| std::env::var_os(key).map(|value| (OsStr::new(key).to_owned(), value)))
        .collect()
}
