//! A3: our host side against a plugin made with the real hashicorp/go-plugin, and against our own roles. The Go hosts
//! that drive our roles are in `tests/interop`.

#[path = "support/harness.rs"]
mod harness;

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agentbin::plugin::{
    Broker, Client, HandshakeError, HclogLine, HostError, Incoming, Launch, Level, Program, Protocol, ReattachConfig,
    Server, role_environment,
};
use agentbin::spec::Role;
use agentbin::wire::Channel;
use harness::{block_on, children, eventually, is_alive, run, tests};
use tonic::{Code, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

fn main() -> ExitCode {
    agentbin::init();
    if std::env::args().nth(1).as_deref() == Some(OUR_PLUGIN) {
        return our_plugin();
    }
    if Command::new("go").arg("version").output().is_err() {
        return harness::skip("interop", "no go toolchain; scripts/setup says how to get one");
    }
    run(tests![
        a3_go_plugin_is_launched_pinged_called_and_killed,
        a3_go_plugin_prints_and_logs,
        a3_go_plugin_is_reattached_until_it_is_gone,
        a3_go_plugin_that_lingers_is_killed_in_time,
        a3_a_plugin_that_dies_is_noticed,
        a3_programs_that_are_no_plugins,
        a3_own_role_is_launched_and_reattached,
        a3_broker_gives_up_in_time,
        a3_broker_connects_both_ways,
        a3_broker_connects_us_to_ourselves,
        a3_auto_mtls_with_a_go_plugin,
        a3_auto_mtls_with_our_own_roles,
        a3_auto_mtls_when_the_plugin_has_other_ideas,
        a3_a_plugin_on_a_tcp_port,
        a3_plugins_of_another_family,
        a3_records_of_go_hosts_are_adopted,
        a3_sockets_are_given_to_a_group,
        a3_output_that_nobody_reads_blocks_nobody,
        a3_our_own_hosts_wishes_are_not_passed_on,
        a6_broken_calls_are_told_from_answers,
    ])
}

fn go_program(name: &str) -> PathBuf {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop");
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("go-{name}"));
    let package = format!("./{name}");
    let built =
        Command::new("go").args(["build", "-o"]).arg(&binary).arg(package).current_dir(module).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    binary
}

fn go_plugin() -> PathBuf {
    go_program("plugin")
}

type Lines = Arc<Mutex<Vec<HclogLine>>>;

async fn launch(program: Program<'_>, args: &[OsString], env: &[(&str, &str)]) -> Result<(Client, Lines), HostError> {
    start(Launch { args, new_session: true, ..Launch::new(program) }, env).await
}

async fn start(launch: Launch<'_>, env: &[(&str, &str)]) -> Result<(Client, Lines), HostError> {
    let lines = Lines::default();
    let log = Arc::clone(&lines);
    let env = env.iter().map(|(k, v)| (OsString::from(k), OsString::from(v))).chain(role_environment()).collect();
    let log = Box::new(move |line| log.lock().unwrap().push(line));
    let launch = Launch { env, start_timeout: Duration::from_mins(1), log, ..launch };
    Ok((launch.start().await?, lines))
}

async fn call(channel: Channel, method: &'static str, text: &str) -> Result<String, Status> {
    invoke(channel, method, text.to_owned()).await
}

async fn invoke<Q, A>(channel: Channel, method: &'static str, question: Q) -> Result<A, Status>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
    let path = tonic::codegen::http::uri::PathAndQuery::from_static(method);
    let codec: tonic_prost::ProstCodec<Q, A> = tonic_prost::ProstCodec::default();
    Ok(grpc.unary(tonic::Request::new(question), path, codec).await?.into_inner())
}

async fn echo(client: &Client, text: &str) -> Result<String, Status> {
    call(client.channel(), "/agentbin.test.Echo/Echo", text).await
}

fn a3_go_plugin_is_launched_pinged_called_and_killed() {
    let plugin = go_plugin();
    block_on(async {
        let (client, _) = launch(Program::Path(&plugin), &[], &[]).await.unwrap();
        client.ping().await.unwrap();
        assert_eq!(echo(&client, "hello").await.unwrap(), "hello");
        let reattach = client.reattach_config().unwrap();
        let before = Instant::now();
        client.kill().await;
        assert!(before.elapsed() < Duration::from_secs(2), "an orderly end takes no SIGKILL: {:?}", before.elapsed());
        assert!(!is_alive(reattach.process.pid) && !reattach.socket.exists());
    });
}

fn a3_go_plugin_prints_and_logs() {
    let plugin = go_plugin();
    block_on(async {
        let (client, lines) = launch(Program::Path(&plugin), &[], &[]).await.unwrap();
        let mut stdio = client.stdio();
        call(client.channel(), "/agentbin.test.Echo/Print", "printed").await.unwrap();
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while stdout.is_empty() || stderr.is_empty() {
            let item = tokio::time::timeout(Duration::from_mins(1), stdio.recv()).await.unwrap().unwrap();
            if item.stderr { stderr.extend(item.data) } else { stdout.extend(item.data) }
        }
        assert_eq!((stdout.as_slice(), stderr.as_slice()), (b"printed\n".as_slice(), b"printed\n".as_slice()));
        call(client.channel(), "/agentbin.test.Echo/Log", "logged").await.unwrap();
        let found = || lines.lock().unwrap().iter().find(|l| l.message.contains("logged")).cloned();
        eventually("the log line", || found().is_some()).await;
        let line = found().unwrap();
        assert!(line.level >= Level::Info && !line.pairs.is_empty(), "{line:?}");
        client.kill().await;
    });
}

fn a3_go_plugin_is_reattached_until_it_is_gone() {
    let plugin = go_plugin();
    block_on(async {
        let (first, _) = launch(Program::Path(&plugin), &[], &[]).await.unwrap();
        let reattach = first.reattach_config().unwrap();
        for _ in 0..2 {
            let again = Client::reattach(reattach.clone()).await.unwrap();
            assert_eq!(echo(&again, "again").await.unwrap(), "again");
        }
        let again = Client::reattach(reattach.clone()).await.unwrap();
        again.kill().await;
        first.exited().await;
        assert!(matches!(Client::reattach(reattach.clone()).await, Err(HostError::Gone(_))));
        // The number now belongs to somebody else, who is left alone.
        let mut other = Command::new("sleep").arg("30").spawn().unwrap();
        let mut stolen = reattach;
        stolen.process.pid = i32::try_from(other.id()).unwrap();
        assert!(matches!(Client::reattach(stolen).await, Err(HostError::Gone(_))));
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    });
}

fn a3_go_plugin_that_lingers_is_killed_in_time() {
    let plugin = go_plugin();
    block_on(async {
        let (client, _) = launch(Program::Path(&plugin), &[], &[("SHUTDOWN_DELAY_MS", "60000")]).await.unwrap();
        let pid = client.process().pid;
        let before = Instant::now();
        client.kill().await;
        let took = before.elapsed();
        assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(30), "{took:?}");
        assert!(!is_alive(pid));
    });
}

fn a3_a_plugin_that_dies_is_noticed() {
    let plugin = go_plugin();
    block_on(async {
        let (client, _) = launch(Program::Path(&plugin), &[], &[]).await.unwrap();
        assert!(!client.has_exited());
        let pid = rustix::process::Pid::from_raw(client.process().pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        tokio::time::timeout(Duration::from_mins(1), client.exited()).await.unwrap();
        assert!(client.has_exited());
        assert!(echo(&client, "x").await.is_err());
        client.kill().await;
    });
}

fn a3_programs_that_are_no_plugins() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let script = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let error = |path: PathBuf| async move { launch(Program::Path(&path), &[], &[]).await.err().unwrap() };
        let exits = error(script("exits", "echo because >&2; exit 3")).await;
        assert!(matches!(&exits, HostError::Exited { said, .. } if said.contains("because")), "{exits}");
        let talks = error(script("talks", "echo hello; sleep 30")).await;
        assert!(matches!(talks, HostError::Handshake { .. }), "{talks}");
        let lies = error(script("lies", "echo '1|2|unix|/no/such/socket|grpc|'; sleep 30")).await;
        assert!(matches!(lies, HostError::Connect { .. }), "{lies}");
        // The end is noticed although somebody else holds the pipes.
        let before = Instant::now();
        let held = error(script("held", "sleep 60 & echo because >&2; exit 3")).await;
        assert!(matches!(&held, HostError::Exited { said, .. } if said.contains("because")), "{held}");
        assert!(before.elapsed() < Duration::from_secs(30), "{:?}", before.elapsed());
        let bytes = error(script("bytes", "printf '\\377\\376\\n'; sleep 30")).await;
        assert!(matches!(bytes, HostError::Handshake { .. }), "{bytes}");
        let quiet = script("quiet", "exec >&-; sleep 30");
        let launch = Launch { start_timeout: Duration::from_millis(300), ..Launch::new(Program::Path(&quiet)) };
        let late = Launch { env: role_environment(), ..launch }.start().await.unwrap_err();
        assert!(matches!(late, HostError::Timeout { .. }), "{late}");
        let missing = error(dir.path().join("missing")).await;
        assert!(matches!(missing, HostError::Start { .. }), "{missing}");
        // Whatever went wrong, the process is gone.
        eventually("the scripts killed", || !children().into_iter().any(is_alive)).await;
    });
}

fn a3_own_role_is_launched_and_reattached() {
    block_on(async {
        let (client, _) = launch(Program::Own(Role::Logmon), &[], &[]).await.unwrap();
        client.ping().await.unwrap();
        let again = Client::reattach(client.reattach_config().unwrap()).await.unwrap();
        again.ping().await.unwrap();
        client.ping().await.unwrap();
        let before = Instant::now();
        again.kill().await;
        client.exited().await;
        assert!(before.elapsed() < Duration::from_secs(2));
    });
}

fn a3_broker_gives_up_in_time() {
    block_on(async {
        let (client, _) = launch(Program::Own(Role::Logmon), &[], &[]).await.unwrap();
        let broker = client.broker();
        assert_eq!((broker.next_id(), broker.next_id()), (1, 2));
        let before = Instant::now();
        // The logmon role announces nothing, so the dial gives up after 5 s.
        assert_eq!(broker.dial(7).await.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        assert!(before.elapsed() >= Duration::from_secs(5));
        let incoming = broker.accept(3).await.unwrap();
        let path = incoming.socket().to_owned();
        assert!(path.exists());
        drop(incoming);
        assert!(!path.exists());
        client.kill().await;
    });
}

/// Serves the health of `name` to whoever comes.
fn serve_health(incoming: Incoming, name: &'static str) {
    tokio::spawn(async move {
        let (health, service) = tonic_health::server::health_reporter();
        health.set_service_status(name, ServingStatus::Serving).await;
        tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await
    });
}

async fn health_of(channel: Channel, name: &str) -> Result<i32, Status> {
    let answer = HealthClient::new(channel).check(HealthCheckRequest { service: name.to_owned() }).await?;
    Ok(answer.into_inner().status)
}

/// The broker of a plugin made with go-plugin, with and without TLS: it dials us, and we dial it.
fn a3_broker_connects_both_ways() {
    let plugin = go_plugin();
    for auto_mtls in [false, true] {
        block_on(async {
            let launch = Launch { auto_mtls, ..Launch::new(Program::Path(&plugin)) };
            let (client, _) = start(launch, &[]).await.unwrap();
            let broker = client.broker();
            let id = broker.next_id();
            serve_health(broker.accept(id).await.unwrap(), "host");
            let answer: String =
                invoke(client.channel(), "/agentbin.test.Echo/Dial", i32::try_from(id).unwrap()).await.unwrap();
            assert_eq!(answer, "SERVING");
            let id: i32 = invoke(client.channel(), "/agentbin.test.Echo/Accept", String::new()).await.unwrap();
            let inner = broker.dial(u32::try_from(id).unwrap()).await.unwrap();
            assert_eq!(call(inner, "/agentbin.test.Echo/Echo", "inside").await.unwrap(), "inside");
            client.kill().await;
        });
    }
}

/// The first argument that makes this program a plugin with our plugin side.
const OUR_PLUGIN: &str = "our-plugin";
/// The broker ids that plugin and test agree on.
const PLUGIN_ACCEPTS: u32 = 1;
const HOST_ACCEPTS: u32 = 2;

/// Accepts one broker id, and answers there for `host-was-reached` once it has reached the other.
fn our_plugin() -> ExitCode {
    block_on(async {
        let server = Server::from_env_for(&family()).unwrap();
        tokio::spawn(serve_over_broker(server.broker()));
        server.serve(tonic::service::Routes::default()).await.unwrap();
    });
    ExitCode::SUCCESS
}

async fn serve_over_broker(broker: Arc<Broker>) {
    let incoming = broker.accept(PLUGIN_ACCEPTS).await.unwrap();
    let (health, service) = tonic_health::server::health_reporter();
    tokio::spawn(async move {
        let host = broker.dial(HOST_ACCEPTS).await.unwrap();
        health_of(host, "host").await.unwrap();
        health.set_service_status("host-was-reached", ServingStatus::Serving).await;
    });
    tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
}

fn family() -> Protocol {
    Protocol { cookie_key: "TEST_COOKIE".to_owned(), cookie_value: "biscuit".to_owned(), versions: vec![3, 7, 5] }
}

fn a3_broker_connects_us_to_ourselves() {
    let own = Path::new("/proc/self/exe");
    for auto_mtls in [false, true] {
        block_on(async {
            let args = [OsString::from(OUR_PLUGIN)];
            let launch = Launch { args: &args, auto_mtls, protocol: family(), ..Launch::new(Program::Path(own)) };
            let (client, _) = start(launch, &[]).await.unwrap();
            assert_eq!(client.version(), Some(7));
            serve_health(client.broker().accept(HOST_ACCEPTS).await.unwrap(), "host");
            let inner = client.broker().dial(PLUGIN_ACCEPTS).await.unwrap();
            let deadline = Instant::now() + Duration::from_mins(1);
            while health_of(inner.clone(), "host-was-reached").await.is_err() {
                assert!(Instant::now() < deadline, "the plugin never reached the host");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            client.kill().await;
        });
    }
}

fn a3_auto_mtls_with_a_go_plugin() {
    let (plugin, odd) = (go_plugin(), go_program("odd"));
    block_on(async {
        let launch = Launch { auto_mtls: true, ..Launch::new(Program::Path(&plugin)) };
        let (client, lines) = start(launch, &[]).await.unwrap();
        client.ping().await.unwrap();
        let text = "x".repeat(300_000);
        assert_eq!(echo(&client, &text).await.unwrap(), text);
        let mut stdio = client.stdio();
        call(client.channel(), "/agentbin.test.Echo/Print", "printed").await.unwrap();
        assert_eq!(stdio.recv().await.unwrap().data, b"printed\n");
        let refused = client.reattach_config().unwrap_err();
        assert!(matches!(refused, HostError::NotReattachable(_)), "{refused}");
        let pid = client.process().pid;
        let before = Instant::now();
        client.kill().await;
        assert!(before.elapsed() < Duration::from_secs(2), "{:?}", before.elapsed());
        assert!(!is_alive(pid));
        let faults: Vec<_> = lines.lock().unwrap().iter().filter(|line| line.level >= Level::Warn).cloned().collect();
        assert!(faults.is_empty(), "{faults:?}");

        let launch = Launch { args: &["tls12".into()], auto_mtls: true, ..Launch::new(Program::Path(&odd)) };
        let (client, _) = start(launch, &[]).await.unwrap();
        client.ping().await.unwrap();
        client.kill().await;
    });
}

fn a3_auto_mtls_with_our_own_roles() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let config = serde_json::json!({ "LogFile": dir.path().join("executor.out"), "LogLevel": "debug" });
        let config = [OsString::from(config.to_string())];
        for (role, args) in [(Role::Logmon, &[][..]), (Role::Executor, &config[..])] {
            let own = || Launch { args, socket_dir: Some(dir.path()), ..Launch::new(Program::Own(role)) };
            let (client, _) = start(Launch { auto_mtls: true, ..own() }, &[]).await.unwrap();
            client.ping().await.unwrap();
            assert!(matches!(client.reattach_config(), Err(HostError::NotReattachable(_))));
            // The keys of another launch are of no use here.
            let sockets: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.path()).collect();
            let socket = sockets.iter().find(|path| path.file_name().unwrap().to_string_lossy().starts_with("plugin"));
            let other = start(own(), &[]).await.unwrap().0;
            let mut stolen = other.reattach_config().unwrap();
            other.ping().await.unwrap();
            stolen.socket.clone_from(socket.unwrap());
            let stranger = Client::reattach(stolen).await.unwrap();
            assert!(stranger.ping().await.is_err());
            client.ping().await.unwrap();
            other.kill().await;
            client.kill().await;
        }
    });
}

fn a3_auto_mtls_when_the_plugin_has_other_ideas() {
    let odd = go_program("odd");
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let script = |name: &str, line: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\necho '{line}'\nexec sleep 30\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let error = async |path: &Path, args: &[OsString], auto_mtls| {
            let launch = Launch { args, auto_mtls, socket_dir: Some(dir.path()), ..Launch::new(Program::Path(path)) };
            start(launch, &[]).await.err().unwrap()
        };
        let handshake = |error: HostError| match error {
            HostError::Handshake { source, .. } => source,
            other => panic!("{other}"),
        };
        let none = script("none", "1|2|unix|/s|grpc|");
        assert_eq!(handshake(error(&none, &[], true).await), HandshakeError::NoTls);
        let padded = script("padded", &format!("1|2|unix|/s|grpc|{}==", "A".repeat(70)));
        assert_eq!(handshake(error(&padded, &[], false).await), HandshakeError::UnexpectedTls);
        assert!(matches!(handshake(error(&padded, &[], true).await), HandshakeError::Certificate(_)));
        let unasked = error(&odd, &["tls12".into()], false).await;
        assert_eq!(handshake(unasked), HandshakeError::UnexpectedTls);
        let wrong = error(&odd, &["wrong-cert".into()], true).await;
        assert!(matches!(wrong, HostError::Connect { .. }), "{wrong}");
        let silent = error(&odd, &["no-alpn".into()], true).await;
        assert!(silent.to_string().contains("ALPN"), "{silent}");
        // Talks TLS to nobody: it listens, and accepts nothing.
        let mute = dir.path().join("mute");
        let _listener = std::os::unix::net::UnixListener::bind(&mute).unwrap();
        let certificate = some_certificate(&odd);
        let mute = script("deaf", &format!("1|2|unix|{}|grpc|{certificate}", mute.display()));
        let before = Instant::now();
        let launch = Launch { auto_mtls: true, ..Launch::new(Program::Path(&mute)) };
        let late = Launch { start_timeout: Duration::from_secs(2), ..launch }.start().await.unwrap_err();
        assert!(matches!(&late, HostError::Connect { source, .. } if source.kind() == std::io::ErrorKind::TimedOut));
        assert!(before.elapsed() < Duration::from_secs(30));
        eventually("the scripts killed", || !children().into_iter().any(is_alive)).await;
    });
}

/// Some certificate, in the form of a handshake line.
fn some_certificate(odd: &Path) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(odd);
    command.arg("tls12").env("PLUGIN_UNIX_SOCKET_DIR", dir.path()).stdout(Stdio::piped());
    let mut plugin = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(plugin.stdout.take().unwrap()).read_line(&mut line).unwrap();
    plugin.kill().unwrap();
    plugin.wait().unwrap();
    line.trim().rsplit('|').next().unwrap().to_owned()
}

fn a3_a_plugin_on_a_tcp_port() {
    let odd = go_program("odd");
    block_on(async {
        let (client, _) = launch(Program::Path(&odd), &["tcp".into()], &[]).await.unwrap();
        client.ping().await.unwrap();
        let pid = client.process().pid;
        assert!(matches!(client.reattach_config(), Err(HostError::NotReattachable(_))));
        // It has no controller, so it takes a SIGKILL.
        client.kill().await;
        assert!(!is_alive(pid));
    });
}

fn a3_plugins_of_another_family() {
    let plugin = go_plugin();
    block_on(async {
        let env = [("COOKIE_KEY", "TEST_COOKIE"), ("COOKIE_VALUE", "biscuit"), ("VERSIONS", "4,5,6")];
        let go = |protocol| Launch { protocol, ..Launch::new(Program::Path(&plugin)) };
        let (client, _) = start(go(family()), &env).await.unwrap();
        assert_eq!(client.version(), Some(5));
        assert_eq!(echo(&client, "5").await.unwrap(), "5");
        let again = Client::reattach(client.reattach_config().unwrap()).await.unwrap();
        assert_eq!(again.version(), None);
        again.kill().await;
        // No version in common: a Go plugin answers its lowest.
        let none = start(go(Protocol { versions: vec![9], ..family() }), &env).await.unwrap_err();
        let HostError::Handshake { source, .. } = none else { panic!("{none}") };
        assert_eq!(source, HandshakeError::Version { answered: "4".to_owned(), offered: "9".to_owned() });
        // Not the cookie that it wants: it says so and ends.
        let stale = start(go(Protocol { cookie_value: "stale".to_owned(), ..family() }), &env).await.unwrap_err();
        assert!(matches!(&stale, HostError::Exited { said, .. } if said.contains("plugin")), "{stale}");
    });
}

/// A record in Go's form names a process by number alone.
fn a3_records_of_go_hosts_are_adopted() {
    let plugin = go_plugin();
    block_on(async {
        let (first, _) = launch(Program::Path(&plugin), &[], &[]).await.unwrap();
        let reattach = first.reattach_config().unwrap();
        let record = ReattachConfig::from(&reattach).to_json();
        let record = ReattachConfig::parse(&record).unwrap();
        let adopted = record.adopt().await.unwrap();
        assert_eq!(adopted, reattach);
        // The number of somebody else, who is left alone, beside a socket that answers.
        let (bystander, _) = launch(Program::Own(Role::Logmon), &[], &[]).await.unwrap();
        let stale = ReattachConfig { pid: bystander.process().pid, ..record.clone() };
        let refused = stale.adopt().await.unwrap_err();
        assert!(matches!(&refused, HostError::Stranger { found, .. } if *found == record.pid), "{refused}");
        bystander.ping().await.unwrap();
        let again = Client::reattach(adopted).await.unwrap();
        assert_eq!(echo(&again, "adopted").await.unwrap(), "adopted");
        again.kill().await;
        first.exited().await;
        assert!(matches!(record.adopt().await, Err(HostError::Gone(_))));
        bystander.kill().await;
    });
}

fn a3_sockets_are_given_to_a_group() {
    let plugin = go_plugin();
    // Any number will do for root; for others it is one that they have.
    let gid = if rustix::process::getuid().is_root() { 4242 } else { rustix::process::getgid().as_raw() };
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        for program in [Program::Path(&plugin), Program::Own(Role::Logmon)] {
            let group = gid.to_string();
            let asked = Launch { socket_dir: Some(dir.path()), socket_group: Some(&group), ..Launch::new(program) };
            let (client, _) = start(asked, &[]).await.unwrap();
            let socket = client.reattach_config().unwrap().socket;
            let about = std::fs::metadata(&socket).unwrap();
            assert_eq!((about.gid(), about.mode() & 0o777), (gid, 0o660));
            assert_eq!(socket.parent(), Some(dir.path()));
            let incoming = client.broker().accept(1).await.unwrap();
            let about = std::fs::metadata(incoming.socket()).unwrap();
            assert_eq!((about.gid(), about.mode() & 0o777), (gid, 0o660));
            assert_eq!(incoming.socket().parent(), Some(dir.path()));
            client.kill().await;
        }
        let asked = Launch { socket_group: Some("no-such-group"), ..Launch::new(Program::Own(Role::Logmon)) };
        let refused = start(asked, &[]).await.unwrap_err();
        assert!(matches!(&refused, HostError::Exited { said, .. } if said.contains("no-such-group")), "{refused}");
    });
}

fn a3_output_that_nobody_reads_blocks_nobody() {
    let plugin = go_plugin();
    block_on(async {
        let (client, _) = launch(Program::Path(&plugin), &[], &[]).await.unwrap();
        // More than pipes and flow control hold together.
        let text = "x".repeat(2 << 20);
        let printed = call(client.channel(), "/agentbin.test.Echo/Print", &text);
        tokio::time::timeout(Duration::from_mins(1), printed).await.unwrap().unwrap();
        client.kill().await;
    });
}

/// A driver plugin launches executors with parts of its own environment.
fn a3_our_own_hosts_wishes_are_not_passed_on() {
    let plugin = go_plugin();
    block_on(async {
        let env = [
            ("PLUGIN_CLIENT_CERT", "somebody else's"),
            ("PLUGIN_MULTIPLEX_GRPC", "true"),
            ("PLUGIN_UNIX_SOCKET_DIR", "/no/such/folder"),
            ("PLUGIN_UNIX_SOCKET_GROUP", "no-such-group"),
        ];
        for program in [Program::Path(&plugin), Program::Own(Role::Logmon)] {
            let (client, _) = launch(program, &[], &env).await.unwrap();
            client.ping().await.unwrap();
            client.kill().await;
        }
    });
}

async fn fail(client: &Client, code: Code) -> Status {
    invoke::<i32, ()>(client.channel(), "/agentbin.test.Echo/Fail", i32::from(code)).await.unwrap_err()
}

/// A6: a process that has ended explains any status; a broken call waits for the end; an answer is an answer.
fn a6_broken_calls_are_told_from_answers() {
    let plugin = go_plugin();
    for auto_mtls in [false, true] {
        block_on(async {
            let start_one =
                async || start(Launch { auto_mtls, ..Launch::new(Program::Path(&plugin)) }, &[]).await.unwrap().0;
            let client = start_one().await;
            for code in [Code::Unknown, Code::FailedPrecondition, Code::Unimplemented] {
                let status = fail(&client, code).await;
                let before = Instant::now();
                assert_eq!(status.code(), code);
                assert!(!client.is_shutdown(&status).await);
                assert!(before.elapsed() < Duration::from_secs(3), "an answer needs no wait");
            }
            // The plugin lives on, so the status stands, but only after a while.
            let status = fail(&client, Code::Unavailable).await;
            let before = Instant::now();
            assert!(!client.is_shutdown(&status).await);
            assert!(before.elapsed() >= Duration::from_secs(3), "{:?}", before.elapsed());
            // The call itself ends the process: whatever the transport makes of that.
            let broken = invoke::<i32, ()>(client.channel(), "/agentbin.test.Echo/Exit", 3).await.unwrap_err();
            let before = Instant::now();
            assert!(client.is_shutdown(&broken).await, "{broken:?}");
            assert!(before.elapsed() < Duration::from_secs(2), "{:?}", before.elapsed());
            // From here on anything is explained by that, and calls fail at once.
            assert!(client.is_shutdown(&Status::unknown("task not found for given id")).await);
            let later = echo(&client, "x").await.unwrap_err();
            assert!(client.life().is_shutdown(&later).await);
            client.kill().await;

            // Killed in the middle of many calls.
            let client = start_one().await;
            let pid = rustix::process::Pid::from_raw(client.process().pid).unwrap();
            let text = "x".repeat(1 << 20);
            let mut calls = tokio::task::JoinSet::new();
            for _ in 0..8 {
                let (channel, life, text) = (client.channel(), client.life(), text.clone());
                calls.spawn(async move {
                    loop {
                        if let Err(status) = call(channel.clone(), "/agentbin.test.Echo/Echo", &text).await {
                            assert!(life.is_shutdown(&status).await, "{status:?}");
                            return;
                        }
                    }
                });
            }
            echo(&client, "x").await.unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            calls.join_all().await;
            client.kill().await;
        });
    }
}
