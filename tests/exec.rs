//! B4: commands inside a running task, through real executors of both kinds. This program embeds agentbin, so every executor
//! and shim below is this very file; started as a plain user it runs those tests again that need no root.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/task.rs"]
mod task;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use agentbin::executor::{ExecRequests, Executor as _, ExecutorClient, ExecutorError};
use agentbin::plugin::Client;
use agentbin::spec::{MemoryLimits, Mount};
use agentbin::wire::drivers::ExecTaskStreamingRequest;
use agentbin::wire::drivers::exec_task_streaming_request::Setup;
use harness::{Test, block_on, eventually, is_alive, run, tests};
use task::{
    Done, Session, Task, args, descriptors, in_seconds, nap, processes_of, resident_kib, size, slower, stdin,
    stdin_close,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio_stream::StreamExt as _;

/// Set for this program when it runs as a plain user.
const PLAIN: &str = "AGENTBIN_TEST_PLAIN";
/// Set for this program as a task that watches.
const WATCH: &str = "AGENTBIN_TEST_WATCH";

fn main() -> ExitCode {
    agentbin::init();
    if std::env::var_os(WATCH).is_some() {
        return watch();
    }
    let everybody: &[Test] = tests![
        b4_output_is_split_and_the_status_comes_last,
        b4_output_comes_while_the_command_runs,
        b4_without_a_terminal_there_is_none,
        b4_input_is_passed_and_closed,
        b4_a_terminal_merges_output_and_ends_lines,
        b4_a_terminal_is_resized,
        b4_a_terminal_echoes,
        b4_a_terminal_ends_with_its_first_process,
        b4_a_terminal_that_nobody_holds_is_not_at_its_end,
        b4_no_terminal_session_is_short,
        b4_no_session_without_a_terminal_is_short,
        b4_the_log_is_whole_when_the_end_is_told,
        b4_a_terminal_is_the_commands_own,
        b4_a_child_in_the_background_does_not_hold_the_session,
        b4_a_session_has_what_the_task_has,
        b4_what_means_nothing_harms_nothing,
        b4_what_cannot_start_is_an_error,
        b4_commands_run_until_the_shutdown_of_a_task_without_isolation,
        b4_a_caller_that_goes_takes_the_session_along,
        b4_scripts_have_a_deadline,
        b4_signals_and_statuses,
        b2_below_an_init_a_signal_has_its_default_action,
    ];
    if std::env::var_os(PLAIN).is_some() {
        return run(everybody);
    }
    if !rustix::process::geteuid().is_root() {
        return harness::skip("exec", "needs root for cgroups, users and mounts");
    }
    let root: &[Test] = tests![
        b4_files_are_those_of_the_task,
        b4_a_session_is_in_the_tasks_cgroups,
        b4_a_session_has_the_tasks_identity,
        b4_a_session_has_the_tasks_host_ids,
        b4_fifty_sessions_at_once,
        b4_a_caller_that_does_not_read_stalls_only_itself,
        b4_an_executor_does_not_grow,
        b4_a_reattached_executor_has_sessions,
        a3_an_executor_is_called_when_its_connection_has_rested,
        a3_an_executor_rings_when_it_has_news,
        a3_whoever_asks_for_a_bell_disturbs_nobody,
        b4_the_end_of_the_task_ends_its_sessions,
        b4_a_sessions_oom_is_not_the_tasks,
        b4_a_task_that_may_trace_sees_nobody_with_more_than_itself,
        b4_a_plain_user_has_sessions_too,
        b2_an_init_has_the_restrictions_of_the_command_and_nothing_else,
    ];
    run(&[everybody, root].concat())
}

const BOTH: [bool; 2] = [false, true];

fn done(stdout: &str, stderr: &str, code: i32) -> Done {
    Done { stdout: stdout.to_owned(), stderr: stderr.to_owned(), code }
}

fn b4_output_is_split_and_the_status_comes_last() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let session = task.shell("echo hello stdout; echo hello stderr >&2; exit 43", false).await;
            let ended = session.finish_with_ends([1, 1]).await;
            assert_eq!(ended, done("hello stdout\n", "hello stderr\n", 43));
            // A bare name is looked up as at a launch.
            let session = task.open(&["true"], false).await.unwrap();
            assert_eq!(session.finish_with_ends([1, 1]).await, done("", "", 0));
            task.end().await;
        }
    });
}

fn b4_output_comes_while_the_command_runs() {
    block_on(async {
        for (isolated, tty) in [(false, false), (false, true), (true, false), (true, true)] {
            let task = Task::new(isolated).await;
            let mut session = task.shell("for n in 1 2 3; do echo line $n; read go; done", tty).await;
            for n in 1..=3 {
                session.hear_until(&format!("line {n}")).await;
                assert!(!session.done.stdout.contains(&format!("line {}", n + 1)));
                session.say(stdin("go\n")).await;
            }
            assert_eq!(session.finish().await.code, 0);
            let much = task.run("head -c 3000000 /dev/zero | tr '\\0' x; echo end >&2", false).await;
            assert_eq!((much.stdout.len(), much.stderr.as_str(), much.code), (3_000_000, "end\n", 0));
            task.end().await;
        }
    });
}

fn b4_without_a_terminal_there_is_none() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let ended = task.run("stty size", false).await;
            assert_eq!((ended.stdout.as_str(), ended.code), ("", 1));
            assert!(ended.stderr.contains("Inappropriate ioctl for device"), "{ended:?}");
            task.end().await;
        }
    });
}

fn b4_input_is_passed_and_closed() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let mut session = task.shell("echo ready; cat; echo end", false).await;
            session.hear_until("ready").await;
            session.say(stdin("hello ")).await;
            session.say(stdin("from stdin\n")).await;
            session.hear_until("from stdin\n").await;
            session.say(stdin_close()).await;
            // What comes after the end has nowhere to go.
            session.say(stdin("late")).await;
            assert_eq!(session.finish().await, done("ready\nhello from stdin\nend\n", "", 0));

            let session = task.shell("wc -c; exit 3", false).await;
            let block = "y".repeat(100_000);
            for _ in 0..20 {
                session.say(stdin(&block)).await;
            }
            session.say(stdin_close()).await;
            let ended = session.finish().await;
            assert_eq!((ended.stdout.trim(), ended.code), ("2000000", 3));
            task.end().await;
        }
    });
}

fn b4_a_terminal_merges_output_and_ends_lines() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let session = task.shell("echo hello stdout; echo hello stderr >&2; exit 43", true).await;
            let ended = session.finish_with_ends([1, 0]).await;
            assert_eq!(ended, done("hello stdout\r\nhello stderr\r\n", "", 43));
            // All that was written is heard, however much and however late.
            let ended =
                task.run("i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done; printf end", true).await;
            assert!(ended.stdout.starts_with("line 0\r\n") && ended.stdout.ends_with("line 4999\r\nend"));
            assert_eq!(ended.stdout.lines().count(), 5001);
            task.end().await;
        }
    });
}

fn b4_a_terminal_is_resized() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let mut session =
                task.shell("trap 'stty size' WINCH; echo ready; until read go; do :; done; stty size", true).await;
            session.hear_until("ready").await;
            session.say(size(50, 40)).await;
            session.hear_until("50 40\r\n").await;
            session.say(size(-1, 100_000)).await;
            session.say(size(100, 100)).await;
            session.hear_until("100 100\r\n").await;
            session.done.stdout.clear();
            session.say(stdin("\n")).await;
            assert_eq!(session.finish().await, done("\r\n100 100\r\n", "", 0));
            task.end().await;
        }
    });
}

fn b4_a_terminal_echoes() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let mut session = task.shell("echo ready; cat; echo end", true).await;
            session.hear_until("ready").await;
            session.say(stdin("this is a line\n")).await;
            session.hear_until("this is a line\r\nthis is a line\r\n").await;
            // The end of input is what a person would type to say so.
            session.say(stdin_close()).await;
            let ended = session.finish().await;
            assert!(ended.stdout.ends_with("end\r\n") && ended.code == 0, "{ended:?}");
            // So is an interrupt, which reaches the foreground.
            let mut session = task.shell("trap 'echo caught; exit 7' INT; echo ready; sleep 1000", true).await;
            session.hear_until("ready").await;
            loop {
                // A shell may be just about to start its child, and neither hears it then.
                // It may also be over before we have heard of it.
                let _ = session.to.as_ref().unwrap().send(Ok(stdin("\u{3}"))).await;
                let heard = tokio::time::timeout(Duration::from_secs(1) * slower(), session.hear_until("caught"));
                if heard.await.is_ok() {
                    break;
                }
            }
            let ended = session.finish().await;
            assert!(ended.stdout.contains("caught") && ended.code == 7, "{ended:?}");
            task.end().await;
        }
    });
}

fn b4_a_terminal_ends_with_its_first_process() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            // A child that comes late finds no terminal any more, which is not what is asked here.
            let script = "(trap '' HUP; read x < /dev/tty; sleep 1000) 2> /dev/null & \
                (trap '' HUP; sleep 1000; echo from child) & echo from main";
            let begin = Instant::now();
            assert_eq!(task.run(script, true).await, done("from main\r\n", "", 0));
            assert!(begin.elapsed() < Duration::from_mins(1) * slower(), "the children were waited for");
            task.end().await;
        }
    });
}

/// Until its process has ended, a terminal that nobody has open any more can be opened anew.
fn b4_a_terminal_that_nobody_holds_is_not_at_its_end() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let mut session =
                task.shell("printf one; exec <&- >&- 2>&-; read go < /dev/tty; printf two > /dev/tty", true).await;
            session.hear_until("one").await;
            let held = tokio::time::timeout(Duration::from_millis(300), session.hear()).await;
            assert!(held.is_err(), "a terminal that was given up ended something: {:?}", session.closed);
            session.say(stdin("\n")).await;
            let ended = session.finish_with_ends([1, 0]).await;
            assert_eq!(ended, done("one\r\ntwo", "", 0));
            task.end().await;
        }
    });
}

/// Numbers that look random and are the same in every run (xorshift64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

/// A script that writes in pieces and ends directly behind the last one, and what it writes.
fn pieces(numbers: &mut Numbers, number: usize) -> (String, String) {
    let (mut script, mut expected) = (String::new(), String::new());
    if numbers.below(16) == 0 {
        // Holds the terminal beyond the end, which delays nothing.
        script.push_str("sleep 1000 & ");
    }
    let longest = if numbers.below(8) == 0 { 6000 } else { 40 };
    for piece in 0..=numbers.below(24) {
        let text = format!("<{number}.{piece}{}>", "x".repeat(numbers.below(longest)));
        write!(script, "printf '{text}'; ").unwrap();
        expected.push_str(&text);
    }
    let code = numbers.below(100);
    write!(script, "printf '<end {code}>'; ").unwrap();
    write!(expected, "<end {code}>").unwrap();
    if numbers.below(2) == 0 {
        // The terminal is given up at once, where the end of a process takes a while to come to that.
        script.push_str("exec <&- >&- 2>&-; ");
    }
    write!(script, "exit {code}").unwrap();
    (script, expected)
}

/// Many sessions whose last words come directly before their end, one to four at a time: none loses a byte of them.
fn b4_no_terminal_session_is_short() {
    let count = task::full(10_000).unwrap_or(200 / usize::try_from(slower().min(4)).unwrap());
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let mut numbers = Numbers(0x5eed_0014);
            let (mut number, mut short) = (0, Vec::new());
            while number < count {
                let mut opened = Vec::new();
                for _ in 0..=numbers.below(4) {
                    let (script, expected) = pieces(&mut numbers, number);
                    opened.push((number, expected, task.shell(&script, true).await));
                    number += 1;
                }
                for (number, expected, session) in opened {
                    let ended = session.finish_with_ends([1, 0]).await;
                    assert!(expected.ends_with(&format!("<end {}>", ended.code)), "{number}: {ended:?}");
                    if ended.stdout != expected {
                        assert!(
                            expected.starts_with(&ended.stdout),
                            "{number}: other words: {ended:?}, not {expected}"
                        );
                        short.push((number, ended.stdout.len(), expected.len()));
                    }
                }
            }
            println!("{number} terminal sessions, isolated: {isolated}, {} of them short: {short:?}", short.len());
            assert!(short.is_empty(), "{} of {number} sessions are short", short.len());
            task.end().await;
        }
    });
}

/// The same without a terminal: the last words of both streams are heard, also when somebody else holds the pipes.
fn b4_no_session_without_a_terminal_is_short() {
    let count = task::full(2_000).unwrap_or(60 / usize::try_from(slower().min(4)).unwrap());
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let mut numbers = Numbers(0x5eed_0015);
            for number in 0..count {
                let (script, expected) = pieces(&mut numbers, number);
                let (errors, told) = pieces(&mut numbers, number);
                let errors =
                    errors.rsplit_once("; exit").map_or("", |(pieces, _)| pieces).replace("exec <&- >&- 2>&-", ":");
                let session = task.shell(&format!("({errors}) >&2; {script}"), false).await;
                let ended = session.finish_with_ends([1, 1]).await;
                assert_eq!((ended.stdout, ended.stderr), (expected, told), "{number}, isolated: {isolated}");
            }
            task.end().await;
        }
    });
}

/// Whoever hears of a task's end finds all that it printed in the files, also when a child of it goes on.
fn b4_the_log_is_whole_when_the_end_is_told() {
    let count = task::full(300).unwrap_or(6);
    block_on(async {
        let mut numbers = Numbers(0x5eed_0016);
        for number in 0..count {
            for isolated in BOTH {
                let (script, expected) = pieces(&mut numbers, number);
                let script = script.replace("sleep 1000", &format!("sleep {}", nap()));
                let task = Task::with(isolated, |spec| {
                    spec.command = "/bin/sh".into();
                    spec.args = vec!["-c".to_owned(), script];
                })
                .await;
                let exit = task.executor.wait().await.unwrap().exit.unwrap();
                assert!(expected.ends_with(&format!("<end {}>", exit.exit_code)), "{exit:?}");
                let told = std::fs::read_to_string(task.dir.path().join("alloc/logs/task.stdout.0")).unwrap();
                assert_eq!(told, expected, "{number}, isolated: {isolated}");
                task.end().await;
            }
        }
    });
}

fn b4_a_terminal_is_the_commands_own() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let script = "tty; stat -c %u $(tty); echo again > $(tty); echo by name > /dev/tty; \
                ps -o sid= -p $$ | tr -d ' '; echo $$; ls /proc/self/fd | wc -l";
            let ended = task.run(script, true).await;
            let lines: Vec<&str> = ended.stdout.lines().collect();
            let [tty, owner, again, by_name, session, own, fds] = lines[..] else { panic!("{ended:?}") };
            assert!(tty.starts_with("/dev/pts/"), "{tty}");
            let user = if task.isolated { 65534 } else { uid_of(task.pid) };
            assert_eq!(owner, user.to_string());
            assert_eq!((again, by_name), ("again", "by name"));
            assert_eq!(session, own, "it leads its session");
            assert_eq!(fds, "4", "stdin, stdout, stderr, and the folder that ls reads");
            task.end().await;
        }
    });
}

/// What is opened for the command belongs to it also where the host has another number for its user.
fn b4_a_session_has_the_tasks_host_ids() {
    const BASE: u32 = 2_147_221_504;
    block_on(async {
        let task = Task::with(true, |spec| {
            "root".clone_into(&mut spec.user);
            spec.user_namespace = true;
            spec.host_ids = agentbin::spec::HostIds::new(BASE);
        })
        .await;
        assert_eq!(uid_of(task.pid), BASE);
        let script =
            "cat /proc/self/uid_map; stat -Lc '%u %g' /proc/self; echo again > /dev/stdout; echo to err > /dev/stderr";
        let ended = task.run(script, false).await;
        assert_eq!((ended.code, ended.stderr.as_str()), (0, "to err\n"), "{ended:?}");
        assert_eq!(ended.stdout.split_whitespace().collect::<Vec<_>>().join(" "), format!("0 {BASE} 65536 0 0 again"));
        let ended = task.run("stat -c %u $(tty); echo again > $(tty); id -u", true).await;
        assert_eq!(ended.stdout.lines().collect::<Vec<_>>(), ["0", "again", "0"], "{ended:?}");
        task.end().await;
    });
}

fn uid_of(pid: i32) -> u32 {
    procfs::process::Process::new(pid).unwrap().status().unwrap().euid
}

fn b4_a_child_in_the_background_does_not_hold_the_session() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let begin = Instant::now();
            let ended = task.run("sleep 1000 & echo from main; exit 4", false).await;
            assert_eq!(ended, done("from main\n", "", 4));
            // One that writes without end neither.
            let ended = task.run("yes & echo main >&2; exit 5", false).await;
            assert_eq!((ended.stderr.as_str(), ended.code), ("main\n", 5));
            assert!(begin.elapsed() < Duration::from_mins(1) * slower(), "the children were waited for");
            task.end().await;
        }
    });
}

/// Environment, directory, umask, descriptors, signals, limits: everything that a program starts with.
fn b4_a_session_has_what_the_task_has() {
    block_on(async {
        for isolated in BOTH {
            let script = "echo $GREETING $PATH; pwd; umask; cat /proc/self/oom_score_adj; \
                grep -E '^(Sig(Blk|Ign|Cgt)|NoNewPrivs|Uid|Gid|Groups|Cap)' /proc/self/status; cat /proc/self/limits; \
                for n in mnt pid ipc net uts user; do readlink /proc/self/ns/$n; done; echo $USER $HOME";
            let main = format!("({script}) > tmp.out; mv tmp.out main.out; sleep {}", nap());
            let task = Task::with(isolated, |spec| {
                spec.command = "/bin/sh".into();
                spec.args = vec!["-c".to_owned(), main];
                spec.work_dir =
                    if isolated { "/local".to_owned() } else { spec.task_dir.join("local").display().to_string() };
            })
            .await;
            let file = task.dir.path().join("task/local/main.out");
            eventually("the task's own answer", || file.exists()).await;
            let expected = std::fs::read_to_string(file).unwrap();
            assert_eq!(task.output(script).await, expected);
            let terminal = task.run(script, true).await.stdout.replace("\r\n", "\n");
            assert_eq!(terminal, expected);
            let answer = task.executor.exec(in_seconds(60), "/bin/sh", &args(&["-c", script])).await.unwrap();
            // The last 4096 bytes are more than enough for the tail of it.
            assert!(expected.ends_with(&String::from_utf8(answer.output).unwrap()) && answer.exit_code == 0);
            task.end().await;
        }
    });
}

fn b4_what_means_nothing_harms_nothing() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let mut session = task.shell("echo ready; read line; echo got $line; read more; echo $?", false).await;
            session.hear_until("ready").await;
            session.say(ExecTaskStreamingRequest::default()).await;
            session.say(size(10, 10)).await;
            session.say(stdin("text\n")).await;
            session.hear_until("got text").await;
            // The end of the requests ends neither the input nor the session.
            session.to = None;
            let held = tokio::time::timeout(Duration::from_millis(300), session.hear()).await;
            assert!(held.is_err(), "half-close ended something: {:?}", session.done);
            drop(session);
            eventually("the session's end", || processes_of(&task) == [task.pid]).await;
            task.end().await;
        }
    });
}

fn b4_what_cannot_start_is_an_error() {
    block_on(async {
        for isolated in BOTH {
            let error = |result: Result<Session, ExecutorError>| result.map(drop).unwrap_err().to_string();
            let task = Task::idle(isolated).await;
            assert_eq!(error(task.open(&["true"], false).await), "Task not yet run");
            task.executor.launch(task.spec()).await.unwrap();
            for requests in [vec![], vec![Ok(stdin("x"))], vec![Ok(ExecTaskStreamingRequest::default())]] {
                let result = task.executor.exec_streaming(Box::pin(tokio_stream::iter(requests))).await;
                assert_eq!(result.map(drop).unwrap_err().to_string(), "first message should always be setup");
            }
            for command in [&[][..], &[""]] {
                assert_eq!(error(task.open(command, false).await), "command is required");
            }
            for tty in BOTH {
                let missing = task.open(&["/no/such/program"], tty).await.map(drop).unwrap_err();
                assert!(matches!(missing, ExecutorError::CommandNotFound(_)), "{missing:?}");
                let folder = task.open(&["/usr"], tty).await.map(drop).unwrap_err();
                assert!(matches!(folder, ExecutorError::NotExecutable(_)), "{folder:?}");
                assert!(folder.to_string().contains("/usr"), "{folder:?}");
            }
            let missing = task.executor.exec(in_seconds(60), "/no/such/program", &[]).await.unwrap_err();
            assert!(matches!(missing, ExecutorError::CommandNotFound(_)), "{missing:?}");
            // What could not start left nothing.
            eventually("their end", || processes_of(&task).len() == 1).await;
            let main = task.executor.stats().await.unwrap().by_pid.len();
            assert_eq!(main, 1);
            task.executor.signal(9).await.unwrap();
            task.executor.wait().await.unwrap();
            if !isolated {
                task.executor.shutdown("", Duration::ZERO).await.unwrap();
            }
            assert_eq!(error(task.open(&["true"], false).await), "the task has ended");
            let late = task.executor.exec(in_seconds(60), "true", &[]).await.unwrap_err();
            assert_eq!(late.to_string(), "the task has ended");
            task.end().await;
        }
    });
}

/// Without isolation a task ends at its shutdown, as with Nomad's executor: until then commands run in it, and they end with it,
/// with all that they have left.
fn b4_commands_run_until_the_shutdown_of_a_task_without_isolation() {
    block_on(async {
        for tty in BOTH {
            let task = Task::new(false).await;
            task.executor.signal(9).await.unwrap();
            task.executor.wait().await.unwrap();
            assert_eq!(task.run("test $GREETING = hello", tty).await.code, 0);
            let script = args(&["-c", &format!("echo late; setsid sleep {} > /dev/null 2>&1 &", nap())]);
            let told = task.executor.exec(in_seconds(60), "/bin/sh", &script).await.unwrap();
            assert_eq!((told.output.as_slice(), told.exit_code), (&b"late\n"[..], 0));
            let mut session = task.shell("trap '' TERM INT HUP; echo ready; sleep 1000; sleep 1000", tty).await;
            session.hear_until("ready").await;
            // One whose call comes before the shutdown, and its command after that.
            let (to, requests) = tokio::sync::mpsc::channel(1);
            let requests: ExecRequests = Box::pin(tokio_stream::wrappers::ReceiverStream::new(requests));
            let executor = task.executor.clone();
            let late = tokio::spawn(async move { executor.exec_streaming(requests).await.map(drop) });
            for _ in 0..2 {
                task.executor.version().await.unwrap();
            }
            let (stopped, ended) = tokio::join!(task.executor.shutdown("", Duration::ZERO), session.finish());
            stopped.unwrap();
            assert_eq!(ended.code, 137, "{ended:?}");
            assert_eq!(processes_of(&task), Vec::<i32>::new());
            let setup = Some(Setup { command: args(&["/bin/sleep", &nap()]), tty, ..Setup::default() });
            let _ = to.send(Ok(ExecTaskStreamingRequest { setup, ..Default::default() })).await;
            drop(to);
            assert_eq!(late.await.unwrap().unwrap_err().to_string(), "the task has ended");
            task.end().await;
        }
    });
}

fn b4_a_caller_that_goes_takes_the_session_along() {
    block_on(async {
        for (isolated, tty) in [(false, false), (false, true), (true, false), (true, true)] {
            let task = Task::new(isolated).await;
            let mut other = task.shell("echo ready; read line; echo $line", false).await;
            other.hear_until("ready").await;
            let before = processes_of(&task);
            // Jobs with groups of their own belong to the session as well, also those that hear no signal.
            let script = "trap '' INT TERM HUP; set -m; sleep 1000 & sleep 1000 & echo ready; sleep 1000; sleep 1000";
            let mut session = task.shell(script, tty).await;
            session.hear_until("ready").await;
            eventually("the session's jobs", || processes_of(&task).len() >= before.len() + 4).await;
            drop(session);
            eventually("the session's end", || processes_of(&task) == before).await;
            // An error of the caller's own requests is such an end as well.
            let mut session = task.shell("echo ready; sleep 1000", tty).await;
            session.hear_until("ready").await;
            session.to.as_ref().unwrap().send(Err(tonic::Status::cancelled("gone"))).await.unwrap();
            // A terminal's line may come in parts, and its rest before the error.
            let told = loop {
                if let Err(told) = session.from.next().await.unwrap() {
                    break told;
                }
            };
            assert_eq!(told.message(), "gone");
            eventually("the session's end", || processes_of(&task) == before).await;
            drop(session);
            other.say(stdin("still here\n")).await;
            assert_eq!(other.finish().await, done("ready\nstill here\n", "", 0));
            assert!(is_alive(task.pid));
            task.end().await;
        }
    });
}

fn b4_scripts_have_a_deadline() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let shell = |script: &str| args(&["-c", &script.replace("sleep 1000", &format!("sleep {}", nap()))]);
            let exec = |deadline, script: &str| {
                let (executor, args) = (task.executor.clone(), shell(script));
                async move { executor.exec(deadline, "/bin/sh", &args).await }
            };
            let answer = exec(in_seconds(60), "echo out; echo err >&2; echo out; exit 9").await.unwrap();
            assert_eq!((String::from_utf8(answer.output).unwrap().as_str(), answer.exit_code), ("out\nerr\nout\n", 9));
            let answer =
                exec(in_seconds(60), "i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done").await.unwrap();
            assert_eq!(answer.output.len(), 4096);
            assert!(answer.output.ends_with(b"2998\n2999\n"));
            let answer = exec(in_seconds(60), "cat; kill -9 $$").await.unwrap();
            assert_eq!((answer.output.len(), answer.exit_code), (0, 137));

            let before = processes_of(&task);
            let begin = Instant::now();
            let late = exec(in_seconds(3), "trap '' TERM INT; echo started; sleep 1000; sleep 1000").await;
            assert!(
                begin.elapsed() >= Duration::from_millis(2900) && begin.elapsed() < Duration::from_mins(1) * slower()
            );
            if isolated {
                assert_eq!(late, Err(ExecutorError::DeadlineExceeded));
            } else {
                let late = late.unwrap();
                assert_eq!((late.output.as_slice(), late.exit_code), (&b"started\n"[..], -1));
            }
            eventually("the script's end", || processes_of(&task) == before).await;
            let past = exec(SystemTime::UNIX_EPOCH, "true").await;
            assert!(past.is_err() == isolated && past.is_ok_and(|p| p.exit_code == -1) != isolated);
            // A caller that goes does not leave its script running.
            let going = exec(in_seconds(600), "echo started; sleep 1000");
            tokio::select! {
                ended = going => panic!("{ended:?}"),
                () = eventually("the script's start", || processes_of(&task).len() > before.len()) => {}
            }
            eventually("the script's end", || processes_of(&task) == before).await;
            task.end().await;
        }
    });
}

fn b4_signals_and_statuses() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            for (script, code) in [("kill -TERM $$", 143), ("kill -KILL $$", 137), ("exit 255", 255), ("exit 0", 0)] {
                for tty in BOTH {
                    assert_eq!(task.run(script, tty).await.code, code, "{script}");
                }
            }
            assert!(is_alive(task.pid));
            task.end().await;
        }
    });
}

fn b4_files_are_those_of_the_task() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::with(isolated, |spec| spec.user = String::new()).await;
            let name = task.output("mktemp /tmp/agentbin-exec.XXXXXX").await;
            assert_eq!(Path::new(name.trim()).exists(), !isolated, "{name}");
            let inside = task.dir.path().join("task").join(name.trim().trim_start_matches('/'));
            assert_eq!(inside.exists(), isolated, "{}", inside.display());
            task.output(&format!("test -f {0} && rm {0}", name.trim())).await;
            task.end().await;
        }
    });
}

fn b4_a_session_is_in_the_tasks_cgroups() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let main = std::fs::read_to_string(format!("/proc/{}/cgroup", task.pid)).unwrap();
            let name = task.cgroup.file_name().unwrap().to_str().unwrap().to_owned();
            assert!(main.contains(&name), "{main}");
            let executor = || std::fs::read_to_string(format!("/proc/{}/cgroup", task.executor_pid())).unwrap();
            let before = executor();
            for tty in BOTH {
                let own = task.run("cat /proc/self/cgroup", tty).await.stdout.replace("\r\n", "\n");
                assert_eq!(own, main);
            }
            assert_eq!(executor(), before, "the executor stays where it is");
            task.end().await;
        }
    });
}

fn b4_a_session_has_the_tasks_identity() {
    block_on(async {
        for (isolated, user) in [(false, "nobody"), (true, "nobody"), (false, ""), (true, "root"), (false, "games")] {
            let capabilities = if isolated { args(&["CAP_CHOWN", "CAP_NET_BIND_SERVICE"]) } else { Vec::new() };
            let task = Task::with(isolated, |spec| {
                spec.user = user.into();
                spec.capabilities = capabilities;
            })
            .await;
            let status = |text: &str| -> Vec<String> {
                let wanted = ["Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp:"];
                let lines = text.lines().filter(|l| wanted.iter().any(|w| l.starts_with(w)));
                lines.map(|l| l.trim().to_owned()).collect()
            };
            let main = status(&std::fs::read_to_string(format!("/proc/{}/status", task.pid)).unwrap());
            for tty in BOTH {
                let session = task.run("cat /proc/self/status", tty).await.stdout;
                assert_eq!(status(&session), main, "{user:?}, terminal: {tty}");
            }
            let script = task.executor.exec(in_seconds(60), "cat", &args(&["/proc/self/status"])).await.unwrap();
            assert_eq!(status(&String::from_utf8(script.output).unwrap()), main);
            task.end().await;
        }
    });
}

fn b4_fifty_sessions_at_once() {
    // Emulated, a fifth of them takes as long as the others of this file together.
    let many = if slower() > 1 { 10 } else { 50 };
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let mut sessions = Vec::new();
            for number in 0..many {
                let script = format!("echo ready; read line; echo $line {number}; exit {number}");
                sessions.push(task.shell(&script, number % 2 == 1).await);
            }
            for session in &mut sessions {
                session.hear_until("ready").await;
            }
            for session in &sessions {
                session.say(stdin("line\n")).await;
            }
            for (number, session) in sessions.into_iter().enumerate() {
                let ended = session.finish().await;
                assert_eq!(ended.code, i32::try_from(number).unwrap());
                assert!(ended.stdout.contains(&format!("line {number}")), "{ended:?}");
            }
            // All starts at the same time.
            let starts = (0..many).map(|number| {
                let executor = task.executor.clone();
                tokio::spawn(async move {
                    executor.exec(in_seconds(60), "/bin/sh", &args(&["-c", &format!("exit {number}")])).await
                })
            });
            for (number, start) in starts.collect::<Vec<_>>().into_iter().enumerate() {
                assert_eq!(start.await.unwrap().unwrap().exit_code, i32::try_from(number).unwrap());
            }
            let threads = procfs::process::Process::new(task.executor_pid()).unwrap().stat().unwrap().num_threads;
            assert_eq!(threads, 1, "no thread for any session");
            task.end().await;
        }
    });
}

fn b4_a_caller_that_does_not_read_stalls_only_itself() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            task.output("true").await;
            let before = resident_kib(task.executor_pid());
            let mut stalled = Vec::new();
            for tty in BOTH {
                let mut session = task.shell("exec yes", tty).await;
                session.hear_until("y").await;
                stalled.push(session);
            }
            // One that takes no input is full after a while, which nobody else notices.
            let mut deaf = task.shell("echo ready; sleep 1000", false).await;
            deaf.hear_until("ready").await;
            let block = "x".repeat(100_000);
            for _ in 0..8 {
                deaf.say(stdin(&block)).await;
                task.executor.version().await.unwrap();
            }
            for _ in 0..20 / slower().min(5) {
                assert_eq!(task.output("echo quick").await, "quick\n");
            }
            let after = resident_kib(task.executor_pid());
            assert!(after < before + 4096, "grew from {before} to {after} KiB");
            drop((stalled, deaf));
            eventually("the sessions' end", || processes_of(&task) == [task.pid]).await;
            task.end().await;
        }
    });
}

fn b4_an_executor_does_not_grow() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let executor = task.executor_pid();
            let mut marks = Vec::new();
            let rounds = 20 + 200 / slower().pow(2);
            for round in 0..rounds {
                let tty = round % 2 == 0;
                let mut session = task.shell("echo x; read line", tty).await;
                session.hear_until("x").await;
                match round % 3 {
                    0 => drop(session),
                    1 => {
                        session.say(stdin("\n")).await;
                        session.finish().await;
                    }
                    _ => {
                        session.say(stdin_close()).await;
                        session.finish().await;
                    }
                }
                if round == 19 || round == rounds - 1 {
                    eventually("the sessions' end", || processes_of(&task) == [task.pid]).await;
                    eventually("descriptors of sessions are gone", || {
                        marks.first().is_none_or(|(fds, _)| descriptors(executor) <= *fds)
                    })
                    .await;
                    marks.push((descriptors(executor), resident_kib(executor)));
                }
            }
            let [(_, before), (_, after)] = marks[..] else { panic!("{marks:?}") };
            assert!(after <= before + 512, "grew from {before} to {after} KiB");
            task.end().await;
        }
    });
}

fn b4_a_reattached_executor_has_sessions() {
    block_on(async {
        for isolated in BOTH {
            let mut task = Task::new(isolated).await;
            let mut session = task.shell("echo ready; sleep 1000", false).await;
            session.hear_until("ready").await;
            let first = task.client.take().unwrap();
            let client = Client::reattach(first.reattach_config().unwrap()).await.unwrap();
            task.executor = ExecutorClient::new(client.channel());
            task.client = Some(client);
            assert_eq!(task.output("echo $GREETING").await, "hello\n");
            // A host that is gone without a word takes its sessions along.
            drop((session, first));
            eventually("the session's end", || processes_of(&task) == [task.pid]).await;
            assert_eq!(task.run("tty | cut -c-9", true).await, done("/dev/pts/\r\n", "", 0));
            task.end().await;
        }
    });
}

/// The executor of a task, over a connection that is closed after this time without a call.
async fn resting(task: &mut Task, after: Duration) {
    let first = task.client.take().unwrap();
    let client = Client::reattach_own(first.reattach_config().unwrap(), Some(after)).await.unwrap();
    task.executor = ExecutorClient::new(client.channel());
    task.client = Some(client);
}

fn a3_an_executor_is_called_when_its_connection_has_rested() {
    block_on(async {
        for isolated in BOTH {
            let mut task = Task::new(isolated).await;
            let after = Duration::from_millis(300);
            resting(&mut task, after).await;
            let executor = task.executor_pid();
            for _ in 0..3 {
                task.executor.version().await.unwrap();
                let connected = descriptors(executor);
                eventually("the end of the connection", || descriptors(executor) < connected).await;
            }
            // Neither a call that waits nor a session is cut off.
            let session = async {
                let mut session =
                    task.shell("echo ready; read line; echo heard $line; read line; echo $line", true).await;
                session.hear_until("ready").await;
                for line in ["one", "two"] {
                    tokio::time::sleep(after * 4).await;
                    session.say(stdin(&format!("{line}\n"))).await;
                }
                session.finish().await
            };
            let executor = task.executor.clone();
            let waiting = tokio::spawn(async move { executor.wait().await });
            let done = session.await;
            assert!(done.stdout.contains("heard one") && done.code == 0, "{done:?}");
            assert!(!waiting.is_finished());
            task.executor.shutdown("SIGKILL", Duration::ZERO).await.unwrap();
            assert_eq!(waiting.await.unwrap().unwrap().exit.unwrap().signal, 9);
            task.end().await;
        }
    });
}

fn a3_an_executor_rings_when_it_has_news() {
    block_on(async {
        let moment = Duration::from_millis(300);
        let idle = Task::idle(false).await;
        let client = idle.client.as_ref().unwrap();
        client.bell(0).await.expect("an executor has bells").rung().await;
        idle.end().await;

        for isolated in BOTH {
            let task = Task::new(isolated).await;
            let client = task.client.as_ref().unwrap();
            let quiet = descriptors(task.executor_pid());
            let mut rung = Box::pin(client.bell(0).await.unwrap().rung());
            assert!(tokio::time::timeout(moment, &mut rung).await.is_err(), "nothing has happened");
            // For a client that knows another state.
            client.bell(7).await.unwrap().rung().await;
            task.executor.shutdown("SIGKILL", Duration::ZERO).await.unwrap();
            rung.await;
            // Also for one that comes later.
            client.bell(0).await.unwrap().rung().await;
            eventually("the end of the bells", || descriptors(task.executor_pid()) <= quiet).await;
            task.end().await;
        }

        let task = Task::new(false).await;
        let quiet = descriptors(task.executor_pid());
        let client = task.client.as_ref().unwrap();
        drop(client.bell(0).await.unwrap());
        eventually("the end of a bell that nobody hears", || descriptors(task.executor_pid()) <= quiet).await;
        // Only our own roles have any: others would take the request for a mistake.
        let other = Client::reattach(client.reattach_config().unwrap()).await.unwrap();
        assert!(other.bell(0).await.is_none());
        drop(other);
        task.end().await;

        // What is lost of the output is news, too.
        let task = Task::with(false, |spec| {
            "/bin/sh".clone_into(&mut spec.command);
            spec.args = args(&["-c", "while :; do echo line; sleep 0.05; done"]);
        })
        .await;
        let bell = task.client.as_ref().unwrap().bell(0).await.unwrap();
        std::fs::remove_dir_all(task.dir.path().join("alloc/logs")).unwrap();
        bell.rung().await;
        let health = task.executor.output_changed(0).await.unwrap().unwrap();
        assert!(health.changes > 0 && health.stdout.failing.is_some(), "{health:?}");
        let mut rung = Box::pin(task.client.as_ref().unwrap().bell(health.changes).await.unwrap().rung());
        assert!(tokio::time::timeout(moment, &mut rung).await.is_err(), "that is known");
        task.end().await;
    });
}

fn a3_whoever_asks_for_a_bell_disturbs_nobody() {
    block_on(async {
        let task = Task::new(false).await;
        let socket = task.client.as_ref().unwrap().reattach_config().unwrap().socket;
        let quiet = descriptors(task.executor_pid());
        let say = async |said: &[u8]| {
            let mut stream = UnixStream::connect(&socket).await.unwrap();
            // It may be closed before all is said.
            let _ = stream.write_all(said).await;
            stream
        };
        for said in ["bell\n", "bell x\n", "bell -1\n", "bell 18446744073709551616\n", "bye\n", &"b".repeat(100_000)] {
            let mut stream = say(said.as_bytes()).await;
            let mut answer = Vec::new();
            // What it has not read resets the connection.
            let _ = stream.read_to_end(&mut answer).await;
            assert_eq!(answer, b"", "{said:.20}");
        }
        // Those who say nothing, or not all, are waited for, and nobody waits for them.
        let slow = [say(b"").await, say(b"b").await, say(b"bell 1").await, say(b"PRI * HT").await];
        assert_eq!(task.output("echo $GREETING").await, "hello\n");
        task.client.as_ref().unwrap().bell(1).await.unwrap().rung().await;
        drop(slow);
        eventually("the end of all of them", || descriptors(task.executor_pid()) <= quiet).await;
        task.end().await;
    });
}

fn b4_the_end_of_the_task_ends_its_sessions() {
    block_on(async {
        for (isolated, tty) in [(false, false), (false, true), (true, false), (true, true)] {
            let task = Task::new(isolated).await;
            let mut session = task.shell("trap '' TERM INT HUP; echo ready; sleep 1000; sleep 1000", tty).await;
            session.hear_until("ready").await;
            let (stopped, ended) =
                tokio::join!(task.executor.shutdown("SIGTERM", Duration::from_millis(100)), session.finish());
            stopped.unwrap();
            assert_eq!(ended.code, 137, "{ended:?}");
            assert_eq!(processes_of(&task), Vec::<i32>::new());
            task.end().await;
        }
    });
}

fn b4_a_sessions_oom_is_not_the_tasks() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::with(isolated, |spec| {
                spec.resources.memory = MemoryLimits { hard_bytes: Some(32 << 20), soft_bytes: None };
            })
            .await;
            // Whom the kernel takes is the kernel's choice, and on a slow machine it takes a second one: not the task.
            let script = "echo 1000 > /proc/self/oom_score_adj; x=$(head -c 200000000 /dev/zero | tr '\\0' x)";
            let ended = task.run(script, false).await;
            assert_eq!(ended.code, 137, "{ended:?}");
            assert!(is_alive(task.pid));
            task.executor.signal(9).await.unwrap();
            let exit = task.executor.wait().await.unwrap().exit.unwrap();
            assert!(!exit.oom_killed, "{exit:?}");
            task.end().await;
        }
    });
}

/// What a task may do that is allowed to trace: look at every process that appears beside it, as fast as it can, for more
/// than it has itself. Ends when the file `stop` appears.
fn watch() -> ExitCode {
    let own: i32 = i32::try_from(std::process::id()).unwrap();
    let own_status = std::fs::read_to_string("/proc/self/status").unwrap();
    let permitted = |status: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix("CapPrm:")).unwrap_or("0").trim().to_owned();
        u64::from_str_radix(&line, 16).unwrap_or(u64::MAX)
    };
    let allowed = permitted(&own_status);
    let mut findings = BTreeSet::new();
    let (mut seen, mut of_ours) = (BTreeSet::new(), BTreeSet::new());
    while !Path::new("/local/stop").exists() {
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
            if pid == own {
                continue;
            }
            seen.insert(pid);
            let dir = PathBuf::from(format!("/proc/{pid}"));
            let exe = std::fs::read_link(dir.join("exe")).unwrap_or_default();
            if !exe.as_os_str().is_empty() && !exe.starts_with("/usr") && !exe.starts_with("/bin") {
                of_ours.insert(pid);
                // Busy hides read-only from open(2), but a descriptor that is held may be opened anew when it is not busy.
                if let Ok(file) = std::fs::File::open(dir.join("exe"))
                    && rustix::fs::fstatvfs(&file)
                        .is_ok_and(|s| !s.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
                {
                    findings.insert(format!("{} can be written one day", exe.display()));
                }
            }
            let status = std::fs::read_to_string(dir.join("status")).unwrap_or_default();
            if permitted(&status) & !allowed != 0 {
                findings.insert(format!(
                    "a process with more capabilities: {} {:x}",
                    exe.display(),
                    permitted(&status)
                ));
            }
            for what in ["cwd", "root"] {
                let target = std::fs::read_link(dir.join(what)).unwrap_or_default();
                if std::fs::read_dir(dir.join(what))
                    .is_ok_and(|mut d| d.any(|e| e.is_ok_and(|e| e.file_name() == "root")))
                {
                    findings.insert(format!("{what} {} is of the host", target.display()));
                }
            }
            for fd in std::fs::read_dir(dir.join("fd")).into_iter().flatten().flatten() {
                let target = std::fs::read_link(fd.path()).unwrap_or_default();
                let is_dir = std::fs::metadata(fd.path()).is_ok_and(|m| m.is_dir());
                let known = ["/dev/", "pipe:", "socket:", "anon_inode:", "/lib/", "/usr/lib/", "/etc/ld.so.cache"];
                if is_dir
                    || (!target.as_os_str().is_empty()
                        && !known.iter().any(|k| target.to_string_lossy().starts_with(k)))
                {
                    findings.insert(format!("descriptor {}", target.display()));
                }
            }
        }
    }
    println!("seen {} ours {}", seen.len(), of_ours.len());
    for finding in findings {
        println!("FOUND {finding}");
    }
    ExitCode::SUCCESS
}

fn b4_a_task_that_may_trace_sees_nobody_with_more_than_itself() {
    block_on(async {
        let own = std::fs::read_link("/proc/self/exe").unwrap();
        let task = Task::with(true, |spec| {
            spec.command = "/local/watcher".into();
            spec.args = Vec::new();
            spec.env.push(format!("{WATCH}=1"));
            spec.capabilities = args(&["CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE"]);
            spec.mounts.push(Mount {
                task_path: "/local/watcher".to_owned(),
                host_path: own,
                readonly: true,
                ..Mount::default()
            });
        })
        .await;
        for round in 0..200 / slower() {
            let ended = task.run("/bin/true", round % 2 == 0).await;
            assert_eq!(ended.code, 0);
        }
        std::fs::write(task.dir.path().join("task/local/stop"), "").unwrap();
        task.executor.wait().await.unwrap();
        let told = std::fs::read_to_string(task.dir.path().join("alloc/logs/task.stdout.0")).unwrap();
        println!("{}", told.trim());
        assert!(told.starts_with("seen ") && !told.starts_with("seen 0 "), "{told}");
        assert!(!told.contains("FOUND"), "{told}");
        task.end().await;
    });
}

/// Waits for the one child of the init.
async fn below_init(task: &Task) -> i32 {
    let child = || processes_of(task).into_iter().find(|pid| *pid != task.pid);
    eventually("a child of the init", || child().is_some()).await;
    child().unwrap()
}

fn b2_below_an_init_a_signal_has_its_default_action() {
    block_on(async {
        for (script, signal, status) in [
            ("exec sleep 1000", 15, 128 + 15),
            ("trap 'exit 7' USR1; sleep 1000 & wait", 10, 7),
            ("exec sleep 1000", 64, 128 + 64),
            ("(setsid sleep 1000 &); exit 3", 0, 3),
        ] {
            let task = Task::with(true, |spec| {
                spec.init = true;
                "/bin/sh".clone_into(&mut spec.command);
                spec.args = vec!["-c".to_owned(), script.replace("sleep 1000", &format!("sleep {}", nap()))];
            })
            .await;
            if signal > 0 {
                // The shell has set its trap when it has started what it waits for.
                let runs = "grep -q '^sleep' /proc/[0-9]*/comm && echo yes";
                while task.run(runs, false).await.stdout != "yes\n" {}
                assert_eq!(task.output("cat /proc/1/comm").await, "init\n");
                task.executor.signal(signal).await.unwrap();
            }
            let exit = task.executor.wait().await.unwrap().exit.unwrap();
            assert_eq!((exit.exit_code, exit.signal), (status, 0), "{script}");
            task.end().await;
        }
        // What cannot be executed is told as without one.
        let task = Task::idle(true).await;
        let mut spec = task.spec();
        (spec.init, spec.command) = (true, "/etc/passwd".to_owned());
        let error = task.executor.launch(spec).await.unwrap_err();
        assert!(matches!(error, ExecutorError::NotExecutable(_)), "{error:?}");
        task.end().await;
    });
}

/// Most private memory of an init, in KiB.
const INIT_KIB: u64 = 100;

fn b2_an_init_has_the_restrictions_of_the_command_and_nothing_else() {
    block_on(async {
        type Change = fn(&mut agentbin::spec::LaunchSpec);
        let levels: [(&str, Change); 3] = [
            ("nomad", |spec| spec.no_new_privs = false),
            ("default", |spec| spec.seccomp = agentbin::spec::Seccomp::Default),
            ("strict", |spec| {
                spec.seccomp = agentbin::spec::Seccomp::Default;
                spec.user_namespace = true;
                spec.own = agentbin::spec::OwnNamespaces { uts: true, cgroup: true, network: true };
            }),
        ];
        for (level, change) in levels {
            let task = Task::with(true, |spec| {
                spec.init = true;
                change(spec);
            })
            .await;
            let child = below_init(&task).await;
            let read = |pid: i32, file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
            let kib = |smaps: &str, field: &str| -> u64 {
                let lines = smaps.lines().filter(|line| line.starts_with(field));
                lines.map(|line| line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum()
            };
            // It gives its memory back, the last that it does before it waits, while the command runs already.
            eventually("an init that waits", || kib(&read(task.pid, "smaps_rollup"), "Rss:") < 1024).await;
            let restrictions = |pid: i32| -> Vec<String> {
                let wanted = ["Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp:", "CoreDumping"];
                let status = read(pid, "status");
                let lines = status.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name)));
                lines.map(str::to_owned).collect()
            };
            assert_eq!(restrictions(task.pid), restrictions(child), "{level}");
            assert_eq!(std::fs::read_dir(format!("/proc/{}/fd", task.pid)).unwrap().count(), 0, "{level}");
            assert_eq!((read(task.pid, "environ").as_str(), read(task.pid, "comm").as_str()), ("", "init\n"));
            assert_eq!(read(task.pid, "cmdline").trim_end_matches('\0'), "init");
            let smaps = read(task.pid, "smaps_rollup");
            let private = kib(&smaps, "Private_");
            println!("init at {level}: {private} KiB private");
            assert!((1..=INIT_KIB).contains(&private), "{level}: {private} KiB\n{smaps}");
            task.end().await;
        }
    });
}

fn b4_a_plain_user_has_sessions_too() {
    let user = 100_000 + std::process::id() * 10;
    let status = std::process::Command::new("/proc/self/exe")
        .env(PLAIN, "1")
        .env("XDG_RUNTIME_DIR", "/tmp")
        .current_dir("/")
        .uid(user)
        .gid(user)
        .status()
        .unwrap();
    assert!(status.success(), "as a plain user: {status}");
}
