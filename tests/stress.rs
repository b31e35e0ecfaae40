//! Tasks and sessions that do their worst, on real executors of both kinds: fork bombs, frozen and traced processes, much
//! data, callers that come and go. `AGENTBIN_FULL=1` runs the full counts.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/random.rs"]
mod random;
#[path = "support/task.rs"]
mod task;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use agentbin::cgroup::Regime;
use agentbin::executor::{ExecRequests, Executor as _};
use agentbin::spec::Mount;
use agentbin::wire::drivers::exec_task_streaming_request::Setup;
use agentbin::wire::drivers::{ExecTaskStreamingIoOperation, ExecTaskStreamingRequest};
use harness::{block_on, eventually, is_alive, run, tests};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use random::Random;
use sha2::{Digest as _, Sha256};
use task::{Task, cgroups, descriptors, processes_of, resident_kib, slower, stdin, stdin_close};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

/// Set for this program as a task that is a bomb: of which kind.
const BOMB: &str = "AGENTBIN_TEST_BOMB";
const BOTH: [bool; 2] = [false, true];

fn main() -> ExitCode {
    agentbin::init();
    if let Ok(kind) = std::env::var(BOMB) {
        bomb(&kind);
    }
    if !rustix::process::geteuid().is_root() {
        return harness::skip("stress", "needs root for cgroups, users and mounts");
    }
    run(tests![
        r22_a_fork_bomb_is_gone_at_once,
        r19_a_frozen_child_cgroup_is_killed_and_removed,
        r20_what_is_stopped_or_traced_is_killed,
        r20_a_traced_task_keeps_its_exit_status,
        b4_much_data_arrives_as_it_was_sent,
        r27_sessions_in_any_state_leave_nothing,
    ])
}

fn full() -> bool {
    std::env::var_os("AGENTBIN_FULL").is_some_and(|v| v == "1")
}

fn count(short: u32, full_count: u32) -> u32 {
    if full() { full_count } else { short }
}

/// What the kernel may take: ours is a second, a busy or emulated machine gets more.
fn bound() -> Duration {
    Duration::from_secs(5) * slower()
}

/// Never ends by itself.
fn bomb(kind: &str) -> ! {
    agentbin::sys::prctl::ignore_signal(rustix::process::Signal::TERM);
    agentbin::sys::prctl::ignore_signal(rustix::process::Signal::INT);
    loop {
        match kind {
            // vfork and exec; each one does the same.
            "vfork" => drop(Command::new("/proc/self/exe").spawn()),
            _ => drop(std::thread::Builder::new().stack_size(64 << 10).spawn(|| bomb("threads"))),
        }
    }
}

/// In new sessions, deaf to signals, and never waited for.
const FORKS: &str = "use POSIX; $SIG{TERM} = $SIG{INT} = $SIG{HUP} = 'IGNORE'; while (1) { my $p = fork(); \
    POSIX::setsid() if defined $p && $p == 0; }";

const LIMIT: u64 = 256;

fn cgroup_file(task: &Task, v1_controller: &str, name: &str) -> PathBuf {
    let cgroups = cgroups();
    let hierarchies: Vec<_> = cgroups.hierarchies().collect();
    let hierarchy = match cgroups.regime() {
        Regime::V2 => hierarchies[0],
        _ => *hierarchies.iter().find(|h| h.has(v1_controller)).unwrap(),
    };
    hierarchy.mount_point.join(&task.cgroup).join(name)
}

async fn bomb_task(isolated: bool, kind: &str) -> Task {
    Task::with(isolated, |spec| {
        spec.resources.pids_max = Some(LIMIT);
        if kind == "fork" {
            "/usr/bin/perl".clone_into(&mut spec.command);
            spec.args = vec!["-e".to_owned(), FORKS.to_owned()];
            return;
        }
        let own = std::fs::read_link("/proc/self/exe").unwrap();
        spec.command = if isolated { "/local/bomb".to_owned() } else { own.display().to_string() };
        spec.args = Vec::new();
        spec.env.push(format!("{BOMB}={kind}"));
        if isolated {
            let task_path = spec.command.clone();
            spec.mounts.push(Mount { task_path, host_path: own, readonly: true, ..Mount::default() });
        } else {
            // The tree that holds the program may be closed to others.
            spec.user = String::new();
        }
    })
    .await
}

fn r22_a_fork_bomb_is_gone_at_once() {
    block_on(async {
        let mut slowest = Duration::ZERO;
        for round in 0..count(1, 17) {
            let all = BOTH.into_iter().flat_map(|b| ["fork", "vfork", "threads"].map(|k| (b, k)));
            // Emulated: each kind once.
            let few = [(true, "fork"), (false, "vfork"), (true, "threads")];
            let bombs: Vec<_> = if slower() > 1 { few.to_vec() } else { all.collect() };
            for (isolated, kind) in bombs {
                let task = bomb_task(isolated, kind).await;
                let current = cgroup_file(&task, "pids", "pids.current");
                let running = || std::fs::read_to_string(&current).unwrap().trim().parse::<u64>().unwrap();
                eventually("a bomb that has gone off", || running() > LIMIT * 9 / 10).await;
                assert!(running() <= LIMIT, "{kind}: more than its limit");
                let began = Instant::now();
                task.executor.shutdown("SIGTERM", Duration::ZERO).await.unwrap();
                let took = began.elapsed();
                println!("round {round}, {kind}, isolated {isolated}: gone after {took:?}");
                assert!(took < bound(), "{kind}: {took:?}");
                slowest = slowest.max(took);
                assert_eq!(processes_of(&task), Vec::<i32>::new());
                task.end().await;
            }
        }
        println!("the slowest bomb: {slowest:?}");
    });
}

/// What a task that was given its own part of the tree may do to itself: runc's tasks could not be killed then.
fn r19_a_frozen_child_cgroup_is_killed_and_removed() {
    block_on(async {
        for (isolated, whole) in BOTH.into_iter().flat_map(|b| BOTH.map(|w| (b, w))) {
            let task = Task::new(isolated).await;
            let mut session = task.shell("echo ready; sleep 1000", false).await;
            session.hear_until("ready").await;
            let pids = processes_of(&task);
            let (file, frozen) = match cgroups().regime() {
                Regime::V2 => ("cgroup.freeze", "1"),
                _ => ("freezer.state", "FROZEN"),
            };
            let child = cgroup_file(&task, "freezer", "child/deeper");
            std::fs::create_dir_all(&child).unwrap();
            for pid in pids.iter().filter(|pid| whole || **pid != task.pid) {
                std::fs::write(child.join("cgroup.procs"), pid.to_string()).unwrap();
            }
            std::fs::write(child.parent().unwrap().join(file), frozen).unwrap();
            let began = Instant::now();
            task.executor.shutdown("SIGTERM", Duration::from_millis(10)).await.unwrap();
            let took = began.elapsed();
            println!("frozen, isolated {isolated}, whole {whole}: gone after {took:?}");
            assert!(took < bound(), "{took:?}");
            assert!(pids.iter().all(|pid| !is_alive(*pid)));
            drop(session);
            task.end().await;
        }
    });
}

fn r20_what_is_stopped_or_traced_is_killed() {
    block_on(async {
        for isolated in BOTH {
            // Stopped by a signal, main process and session.
            let task = Task::new(isolated).await;
            let mut session = task.shell("echo ready; kill -STOP $$; sleep 1000", false).await;
            session.hear_until("ready").await;
            task.executor.signal(libc::SIGSTOP).await.unwrap();
            let stopped =
                |pid: &i32| procfs::process::Process::new(*pid).and_then(|p| p.stat()).is_ok_and(|s| s.state == 'T');
            eventually("all of them stop", || processes_of(&task).iter().all(stopped)).await;
            end_soon(task, "stopped").await;

            // Traced by one of its own, which is stopped itself. 101 is ptrace, 16 to attach.
            if cfg!(target_arch = "x86_64") {
                let task = Task::new(isolated).await;
                let main = if isolated { 1 } else { task.pid };
                let tracer = format!(
                    "$| = 1; syscall(101, 16, {main}, 0, 0) == 0 or die $!; waitpid({main}, 0); print \"traced\\n\"; \
                     kill 'STOP', $$; sleep 1000"
                );
                let mut session = task.open(&["/usr/bin/perl", "-e", &tracer], false).await.unwrap();
                session.hear_until("traced").await;
                end_soon(task, "traced").await;
            }
        }
    });
}

async fn end_soon(task: Task, how: &str) {
    let (pids, began) = (processes_of(&task), Instant::now());
    task.executor.shutdown("SIGTERM", Duration::from_millis(10)).await.unwrap();
    let took = began.elapsed();
    println!("{how}, isolated {}: gone after {took:?}", task.isolated);
    assert!(took < bound(), "{how}: {took:?}");
    assert!(pids.iter().all(|pid| !is_alive(*pid)), "{how}: {pids:?}");
    let exit = task.executor.wait().await.unwrap().exit.unwrap();
    assert_eq!(exit.signal, 9, "{how}: {exit:?}");
    task.end().await;
}

/// Its tracer hears of its end first, and takes its time.
fn r20_a_traced_task_keeps_its_exit_status() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::with(isolated, |spec| {
                "/bin/sh".clone_into(&mut spec.command);
                spec.args = ["-c", "trap 'exit 9' TERM; while :; do sleep 0.01; done"].map(str::to_owned).to_vec();
            })
            .await;
            // A signal that comes before is lost on the first process of a namespace.
            let catches = |pid| {
                let status = procfs::process::Process::new(pid).and_then(|process| process.status());
                status.is_ok_and(|status| status.sigcgt & (1 << (libc::SIGTERM - 1)) != 0)
            };
            eventually("the trap is set", || catches(task.pid)).await;
            let main = Pid::from_raw(task.pid);
            let (ready, go) = std::sync::mpsc::channel();
            let tracer = std::thread::spawn(move || {
                ptrace::seize(main, ptrace::Options::empty()).unwrap();
                ready.send(()).unwrap();
                loop {
                    // Readable is its end, and more than a moment later its status is taken.
                    match waitpid(main, Some(WaitPidFlag::__WALL)).unwrap() {
                        WaitStatus::Stopped(_, signal) => {
                            #[expect(clippy::disallowed_methods, reason = "the tracer is to be slow")]
                            std::thread::sleep(Duration::from_millis(50));
                            ptrace::cont(main, signal).unwrap();
                        }
                        WaitStatus::PtraceEvent(..) => ptrace::cont(main, None).unwrap(),
                        WaitStatus::Exited(_, code) => return code,
                        other => panic!("{other:?}"),
                    }
                }
            });
            go.recv().unwrap();
            task.executor.signal(libc::SIGTERM).await.unwrap();
            let exit = task.executor.wait().await.unwrap().exit.unwrap();
            assert_eq!((exit.exit_code, exit.signal), (9, 0), "{exit:?}");
            assert_eq!(tracer.join().unwrap(), 9);
            task.end().await;
        }
    });
}

/// Bytes that compress badly and are never the same twice in a row.
fn block(number: u64) -> Vec<u8> {
    let mut state = number;
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    (0..4096).flat_map(|_| next().to_le_bytes()).collect()
}

fn b4_much_data_arrives_as_it_was_sent() {
    block_on(async {
        let mib = count(if slower() > 1 { 1 } else { 64 }, 1024);
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let before = resident_kib(task.executor_pid());
            // Both ways, and one way.
            for (command, mib) in [(&["/bin/cat"][..], mib), (&["/usr/bin/sha256sum"], mib.div_ceil(8))] {
                let blocks = u64::from(mib) * 32;
                let (to, requests) = mpsc::channel(4);
                let requests: ExecRequests = Box::pin(ReceiverStream::new(requests));
                let setup = Setup { command: command.iter().map(|&c| c.to_owned()).collect(), ..Setup::default() };
                let sending = tokio::spawn(async move {
                    let mut sent = Sha256::new();
                    to.send(Ok(ExecTaskStreamingRequest { setup: Some(setup), ..Default::default() })).await.unwrap();
                    for number in 0..blocks {
                        let data = block(number);
                        sent.update(&data);
                        let stdin = Some(ExecTaskStreamingIoOperation { data, close: false });
                        to.send(Ok(ExecTaskStreamingRequest { stdin, ..Default::default() })).await.unwrap();
                    }
                    to.send(Ok(stdin_close())).await.unwrap();
                    // Held until the end: its end is not an end of the session, but neither is it what is looked at.
                    (sent.finalize(), to)
                });
                let began = Instant::now();
                let mut responses = task.executor.exec_streaming(requests).await.unwrap();
                let (mut received, mut text, mut length, mut code) = (Sha256::new(), Vec::new(), 0, None);
                while let Some(response) = responses.next().await {
                    let response = response.unwrap();
                    if let Some(stdout) = response.stdout {
                        received.update(&stdout.data);
                        length += stdout.data.len();
                        if text.len() < 100 {
                            text.extend(stdout.data);
                        }
                    }
                    code = code.or(response.result.map(|result| result.exit_code));
                }
                let (sent, _to) = sending.await.unwrap();
                assert_eq!(code, Some(0));
                if command[0].ends_with("cat") {
                    assert_eq!(length as u64, blocks << 15);
                    assert_eq!(received.finalize(), sent, "what came back is not what was sent");
                } else {
                    let sum = sent.iter().fold(String::new(), |sum, byte| format!("{sum}{byte:02x}"));
                    assert!(String::from_utf8_lossy(&text).starts_with(&sum), "what arrived is not what was sent");
                }
                println!("{mib} MiB through {command:?}, isolated {isolated}: {:?}", began.elapsed());
            }
            let after = resident_kib(task.executor_pid());
            assert!(after < before + 8192, "grew from {before} to {after} KiB");
            task.end().await;
        }
    });
}

fn r27_sessions_in_any_state_leave_nothing() {
    let mut random = Random::new("r27_sessions_in_any_state_leave_nothing");
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let executor = task.executor_pid();
            let sessions = count(100, 2000) / slower().min(3) / 2;
            let warm = sessions / 5;
            let mut base = None;
            for number in 0..sessions {
                one_session(&task, &mut random).await;
                if number == warm || number == sessions - 1 {
                    eventually("the sessions' end", || processes_of(&task) == [task.pid]).await;
                    eventually("descriptors of sessions are gone", || {
                        base.is_none_or(|(fds, _)| descriptors(executor) <= fds)
                    })
                    .await;
                    base = base.or(Some((descriptors(executor), resident_kib(executor))));
                }
            }
            let (_, before) = base.unwrap();
            let after = resident_kib(executor);
            println!("{sessions} sessions, isolated {isolated}: from {before} to {after} KiB");
            assert!(after <= before + (16 << 10), "grew from {before} to {after} KiB");
            let threads = procfs::process::Process::new(executor).unwrap().stat().unwrap().num_threads;
            assert_eq!(threads, 1, "no thread for any session");
            task.end().await;
        }
    });
}

/// A session that is left somewhere on its way.
async fn one_session(task: &Task, random: &mut Random) {
    let tty = random.below(2) == 0;
    let script = [
        "echo ready; sleep 1000",
        "echo ready; exec yes",
        "echo ready; cat",
        "echo ready; (sleep 0.3 &) ; exit 3",
        "trap '' HUP TERM INT; echo ready; while :; do sleep 0.05; done",
        "echo ready; head -c 1000000 /dev/zero; cat",
    ][usize::try_from(random.below(6)).unwrap()];
    match random.below(6) {
        // Before it has begun: the call itself is given up.
        0 => {
            let starting = task.shell(script, tty);
            let _ = tokio::time::timeout(Duration::from_micros(random.below(8000)), starting).await;
        }
        1 => drop(task.shell(script, tty).await),
        2 => {
            let mut session = task.shell(script, tty).await;
            session.hear_until("ready").await;
        }
        3 => {
            let mut session = task.shell(script, tty).await;
            session.hear_until("ready").await;
            // Its command may have ended meanwhile.
            let to = session.to.as_ref().unwrap();
            let _ = to.send(Ok(stdin("some input\n"))).await;
            let _ = to.send(Ok(task::size(30, 100))).await;
        }
        4 => {
            let session = task.shell(script, tty).await;
            let _ = session.to.as_ref().unwrap().send(Ok(stdin_close())).await;
        }
        // Its caller stops talking, and goes later.
        _ => {
            let mut session = task.shell(script, tty).await;
            session.to = None;
            session.hear_until("ready").await;
        }
    }
}
