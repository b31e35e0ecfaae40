//! A3: our host side against a plugin made with the real hashicorp/go-plugin, and against our own roles. The Go hosts
//! that drive our roles are in `tests/interop`.

#[path = "support/harness.rs"]
mod harness;

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agentbin::plugin::{Client, HclogLine, HostError, Launch, Level, Program, role_environment};
use agentbin::spec::Role;
use tonic::transport::Channel;

macro_rules! tests {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name as fn())),*] };
}

fn main() -> ExitCode {
    agentbin::init();
    if Command::new("go").arg("version").output().is_err() {
        println!("SKIP: interop: no go toolchain; scripts/setup says how to get one");
        println!("test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
        return ExitCode::from(u8::from(std::env::var_os("CI").is_some()));
    }
    harness::run(tests![
        a3_go_plugin_is_launched_pinged_called_and_killed,
        a3_go_plugin_prints_and_logs,
        a3_go_plugin_is_reattached_until_it_is_gone,
        a3_go_plugin_that_lingers_is_killed_in_time,
        a3_a_plugin_that_dies_is_noticed,
        a3_programs_that_are_no_plugins,
        a3_own_role_is_launched_and_reattached,
        a3_broker_connects_both_ways,
    ])
}

fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

fn go_plugin() -> PathBuf {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop");
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-plugin");
    let built =
        Command::new("go").args(["build", "-o"]).arg(&binary).arg("./plugin").current_dir(module).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    binary
}

type Lines = Arc<Mutex<Vec<HclogLine>>>;

async fn launch(program: Program<'_>, args: &[OsString], env: &[(&str, &str)]) -> Result<(Client, Lines), HostError> {
    let lines = Lines::default();
    let log = Arc::clone(&lines);
    let env = env.iter().map(|(k, v)| (OsString::from(k), OsString::from(v))).chain(role_environment()).collect();
    let launch = Launch {
        program,
        args,
        env,
        new_session: true,
        socket_dir: None,
        start_timeout: Duration::from_secs(10),
        log: Box::new(move |line| log.lock().unwrap().push(line)),
    };
    Ok((launch.start().await?, lines))
}

async fn call(channel: Channel, method: &'static str, text: &str) -> Result<String, tonic::Status> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.map_err(|e| tonic::Status::unavailable(e.to_string()))?;
    let path = tonic::codegen::http::uri::PathAndQuery::from_static(method);
    let codec: tonic_prost::ProstCodec<String, String> = tonic_prost::ProstCodec::default();
    Ok(grpc.unary(tonic::Request::new(text.to_owned()), path, codec).await?.into_inner())
}

async fn echo(client: &Client, text: &str) -> Result<String, tonic::Status> {
    call(client.channel(), "/agentbin.test.Echo/Echo", text).await
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within 10 s");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn is_alive(client_pid: i32) -> bool {
    procfs::process::Process::new(client_pid).and_then(|p| p.stat()).is_ok_and(|s| s.state != 'Z')
}

fn a3_go_plugin_is_launched_pinged_called_and_killed() {
    let plugin = go_plugin();
    block_on(async {
        let (client, _) = launch(Program::Path(&plugin), &[], &[]).await.unwrap();
        client.ping().await.unwrap();
        assert_eq!(echo(&client, "hello").await.unwrap(), "hello");
        let reattach = client.reattach_config().clone();
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
            let item = tokio::time::timeout(Duration::from_secs(5), stdio.recv()).await.unwrap().unwrap();
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
        let reattach = first.reattach_config().clone();
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
        let pid = client.reattach_config().process.pid;
        let before = Instant::now();
        client.kill().await;
        let took = before.elapsed();
        assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(6), "{took:?}");
        assert!(!is_alive(pid));
    });
}

fn a3_a_plugin_that_dies_is_noticed() {
    let plugin = go_plugin();
    block_on(async {
        let (client, _) = launch(Program::Path(&plugin), &[], &[]).await.unwrap();
        assert!(!client.has_exited());
        let pid = rustix::process::Pid::from_raw(client.reattach_config().process.pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        tokio::time::timeout(Duration::from_secs(5), client.exited()).await.unwrap();
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
        let missing = error(dir.path().join("missing")).await;
        assert!(matches!(missing, HostError::Start { .. }), "{missing}");
        // Whatever went wrong, the process is gone.
        eventually("the scripts killed", || children().is_empty()).await;
    });
}

fn children() -> Vec<i32> {
    let own = i32::try_from(std::process::id()).unwrap();
    let all = procfs::process::all_processes().unwrap();
    all.flatten().filter_map(|p| p.stat().ok()).filter(|s| s.ppid == own && s.state != 'Z').map(|s| s.pid).collect()
}

fn a3_own_role_is_launched_and_reattached() {
    block_on(async {
        let (client, _) = launch(Program::Own(Role::Logmon), &[], &[]).await.unwrap();
        client.ping().await.unwrap();
        let again = Client::reattach(client.reattach_config().clone()).await.unwrap();
        again.ping().await.unwrap();
        client.ping().await.unwrap();
        let before = Instant::now();
        again.kill().await;
        client.exited().await;
        assert!(before.elapsed() < Duration::from_secs(2));
    });
}

/// The broker of two processes is the same code on both sides; here one process plays both over a real stream.
fn a3_broker_connects_both_ways() {
    block_on(async {
        let (client, _) = launch(Program::Own(Role::Logmon), &[], &[]).await.unwrap();
        let broker = client.broker();
        assert_eq!((broker.next_id(), broker.next_id()), (1, 2));
        let before = Instant::now();
        // The logmon role announces nothing, so the dial gives up after 5 s.
        assert_eq!(broker.dial(7).await.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        assert!(before.elapsed() >= Duration::from_secs(5));
        let listener = broker.accept(3).unwrap();
        let path = listener.local_addr().unwrap().as_pathname().unwrap().to_owned();
        assert!(path.exists());
        std::fs::remove_file(path).unwrap();
        client.kill().await;
    });
}
