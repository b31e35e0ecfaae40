//! Runs that are asked and ordered from outside: `ps`, `status`, `stop`, `restart`, `signal`, `exec`, `logs`, `stats` and
//! `run --detach`, by the real binary (P1).

#[path = "support/world.rs"]
mod world;

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};
use world::{Out, World, batch, need_root, plain_user, seconds, wait_for_text};

/// A service of two tasks, which say when they begin and what they are told.
const TALKER: &str = "trap 'echo hup' HUP; echo begin; while :; do sleep 0.05; done";

fn service(job: &str, count: u32) -> String {
    format!(
        r#"
job "{job}" {{
  type = "service"
  group "g" {{
    count = {count}
    restart {{
      attempts = 0
      mode     = "fail"
    }}
    task "web" {{
      driver      = "raw_exec"
      kill_signal = "SIGTERM"
      config {{
        command = "/bin/sh"
        args    = ["-c", "{TALKER}"]
      }}
    }}
    task "side" {{
      driver       = "exec"
      kill_timeout = "100ms"
      config {{
        command = "/bin/sleep"
        args    = ["1000"]
      }}
    }}
  }}
}}
"#
    )
}

/// Starts a job in the background; the ids of its allocations.
fn detach(world: &World, job: &str) -> Vec<String> {
    let file = world.file("detached.nomad.hcl", job);
    let out = world.run(&["--detach", file.to_str().unwrap()]);
    assert_eq!(out.status, 0, "{out:?}");
    assert!(out.stderr.contains("agentbin stop"), "it says how to reach it: {out:?}");
    out.stdout.lines().map(str::to_owned).collect()
}

fn listed(world: &World, args: &[&str]) -> Vec<Json> {
    serde_json::from_str(&world.done(args)).unwrap()
}

fn pid_of(view: &Json) -> i32 {
    i32::try_from(view["run"].as_i64().unwrap()).unwrap()
}

/// Waits until the output of a task holds something.
fn wait_for_log(world: &World, args: &[&str], wanted: &str) -> String {
    let deadline = Instant::now() + seconds(60);
    loop {
        let text = world.done(args);
        if text.contains(wanted) {
            return text;
        }
        assert!(Instant::now() < deadline, "{wanted:?} did not come: {text:?}");
    }
}

fn control_sockets(world: &World) -> Vec<PathBuf> {
    world.kept_sockets().into_iter().map(|dir| dir.join("control.sock")).collect()
}

#[test]
fn p1_a_job_in_the_background_is_listed_and_stopped_and_leaves_its_logs() {
    need_root!();
    let world = World::new();
    let ids = detach(&world, &service("back", 1));
    let [id] = &ids[..] else { panic!("{ids:?}") };
    let text = world.done(&["ps"]);
    let line = text.lines().nth(1).unwrap();
    assert!(line.starts_with(&id[..8]) && line.contains("back") && line.contains("running"), "{text}");

    let views = listed(&world, &["ps", "--json"]);
    assert_eq!((views.len(), &views[0]["id"], &views[0]["status"]), (1, &Json::from(id.as_str()), &"running".into()));
    let pid = pid_of(&views[0]);
    let sockets = control_sockets(&world);
    assert_eq!(sockets.len(), 1);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&sockets[0]), mode(sockets[0].parent().unwrap())), (0o600, 0o700));

    for word in ["back", "web", &id[..5], id] {
        let shown = world.done(&["status", word]);
        assert!(shown.contains(id.as_str()) && shown.contains("Task started by client"), "{word}: {shown}");
    }
    wait_for_log(&world, &["logs", "back", "web"], "begin");
    let began = Instant::now();
    let stopped = world.done(&["stop", "back"]);
    assert!(stopped.contains(id.as_str()), "{stopped}");
    assert!(began.elapsed() < seconds(30));
    assert!(procfs::process::Process::new(pid).and_then(|p| p.stat()).map_or(true, |s| s.state == 'Z'));
    assert!(sockets.iter().all(|socket| !socket.exists()));
    world.assert_clean();

    assert_eq!(listed(&world, &["ps", "--json"]).len(), 0);
    let ended = listed(&world, &["ps", "--all", "--json"]);
    assert_eq!((ended.len(), &ended[0]["status"]), (1, &Json::from("complete")));
    assert_eq!(world.done(&["logs", "web"]), "begin\n", "by the name of a task that has ended");
    let out = world.ask(&["stop", "back"]);
    assert!(out.status == 125 && out.stderr.contains("nothing runs here"), "{out:?}");
}

#[test]
fn p1_restarts_and_signals_reach_the_tasks_that_are_meant() {
    need_root!();
    let world = World::new();
    let id = detach(&world, &service("orders", 1)).remove(0);
    wait_for_log(&world, &["logs", &id, "web"], "begin");
    world.done(&["signal", "-s", "SIGHUP", "--task", "web", &id[..8]]);
    wait_for_log(&world, &["logs", &id, "web"], "hup");

    // The policy allows none at all, and is not asked.
    for count in 1..=2 {
        assert_eq!(world.done(&["restart", "web"]), format!("restarted {id} web\n"));
        let view = listed(&world, &["status", "--json", &id]).remove(0);
        let restarts: Vec<u64> =
            view["tasks"].as_array().unwrap().iter().map(|t| t["restarts"].as_u64().unwrap()).collect();
        assert_eq!((restarts, &view["status"]), (vec![count, 0], &"running".into()), "{view}");
    }
    wait_for_log(&world, &["logs", &id, "web"], "begin\nhup\nbegin\nbegin\n");
    assert_eq!(world.done(&["logs", "--tail=1", &id, "web"]), "begin\n", "and the logs of all starts are there");
    let events = world.done(&["status", "orders"]);
    assert!(events.contains("Restart Signaled") && events.contains("User requested task to restart"), "{events}");

    let stats = listed(&world, &["stats", "--json", "orders"]);
    let side = stats.iter().find(|s| s["task"] == "side").unwrap();
    assert!(stats.len() == 2 && side["memory_rss"].as_u64().unwrap() > 0, "{stats:?}");
    assert_eq!(world.done(&["stats"]).lines().count(), 3);

    for (args, told) in [
        (vec!["restart", "nothing"], "there is no job, task or allocation"),
        (vec!["restart", "--task", "db", "orders"], "has no task \"db\"; it has web, side"),
        (vec!["signal", "-s", "SIGNONE", "orders"], "there is no signal"),
        (vec!["exec", "orders", "true"], "name one with --task"),
        (vec!["stop", "web"], "is a task"),
    ] {
        let out = world.ask(&args);
        assert!(out.status == 125 && out.stderr.contains(told), "{args:?}: {out:?}");
    }
    // A signal that kills it ends the task, and with it the group, as the policy has it.
    world.done(&["signal", "--task", "web", &id]);
    wait_until_clean(&world);
}

/// B1: the limit of memory of a running task, as the kernel has it.
fn memory_limit(world: &World, task: &str) -> u64 {
    let stats = listed(world, &["stats", "--json", "limits"]);
    let sample = stats.iter().find(|sample| sample["task"] == task).unwrap();
    let pids = sample["by_pid"].as_object().unwrap().keys();
    // Some of its processes are short-lived.
    let mut cgroups = pids.filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok());
    let cgroups = cgroups.find(|text| !text.is_empty()).unwrap_or_else(|| panic!("{sample:#}"));
    let of = |line: &str| {
        let mut fields = line.splitn(3, ':');
        match (fields.next()?, fields.next()?, fields.next()?) {
            ("0", "", path) => Some(format!("/sys/fs/cgroup{path}/memory.max")),
            (_, "memory", path) => Some(format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes")),
            _ => None,
        }
    };
    let files: Vec<String> = cgroups.lines().filter_map(of).filter(|file| Path::new(file).exists()).collect();
    std::fs::read_to_string(&files[0]).unwrap().trim().parse().unwrap()
}

#[test]
fn p1_limits_change_while_tasks_run_and_are_the_jobs_after_a_restart() {
    need_root!();
    let world = World::new();
    let id = detach(&world, &service("limits", 1)).remove(0);
    wait_for_log(&world, &["logs", &id, "web"], "begin");
    assert_eq!((memory_limit(&world, "web"), memory_limit(&world, "side")), (300 << 20, 300 << 20));
    let args = ["update", "--memory", "100", "--memory-max", "200", "--task", "side", "limits"];
    assert_eq!(world.done(&args), format!("updated {id} side\n"));
    assert_eq!((memory_limit(&world, "web"), memory_limit(&world, "side")), (300 << 20, 200 << 20));
    let args = ["update", "--cpu", "200", "--memory", "150", "--pids-limit", "50", &id[..8]];
    assert_eq!(world.done(&args), format!("updated {id} web side\n"));
    assert_eq!((memory_limit(&world, "web"), memory_limit(&world, "side")), (150 << 20, 150 << 20));
    for (args, told) in [
        (vec!["update", "limits"], "no new limit is given"),
        (vec!["update", "--memory", "64", "--memory-max", "32", "limits"], "is below the 64 MiB"),
        (vec!["update", "--memory", "-1", "limits"], "is not a limit"),
        (vec!["update", "--memory", "0", "--memory-max", "0", "limits", "--task", "db"], "has no task \"db\""),
    ] {
        let out = world.ask(&args);
        assert!(out.status == 125 && out.stderr.contains(told), "{args:?}: {out:?}");
    }
    assert_eq!((memory_limit(&world, "web"), memory_limit(&world, "side")), (150 << 20, 150 << 20));
    world.done(&["restart", "--task", "side", "limits"]);
    assert_eq!((memory_limit(&world, "web"), memory_limit(&world, "side")), (150 << 20, 300 << 20));
    world.done(&["stop", "limits"]);
    world.assert_clean();
}

/// The run ends by itself.
fn wait_until_clean(world: &World) {
    world.assert_clean();
    assert_eq!(listed(world, &["ps", "--json"]).len(), 0);
}

#[test]
fn p1_exec_passes_streams_statuses_and_terminals() {
    need_root!();
    let world = World::new();
    let id = detach(&world, &service("sessions", 1)).remove(0);
    let exec = |args: &[&str]| world.ask(&[&["exec", "--task", "side", &id], args].concat());
    let out = exec(&["sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!((out.status, out.stdout.as_str(), out.stderr.as_str()), (3, "out\n", "err\n"));
    assert_eq!(exec(&["sh", "-c", "kill -9 $$"]).status, 137);
    let out = exec(&["no-such-command"]);
    assert!(out.status == 127 && out.stderr.contains("command not found"), "{out:?}");
    let out = exec(&["/etc/hostname"]);
    assert!(out.status == 126 || out.status == 127, "{out:?}");
    assert_eq!(exec(&["cat"]).stdout, "", "without -i there is no input");
    assert_eq!(exec(&["-json", "x"]).status, 127, "its flags are its own");
    let tty = world.ask(&["exec", "-t", "--task", "side", &id, "sh", "-c", "test -t 0 && test -t 1 && tty; exit 5"]);
    assert!(tty.status == 5 && tty.stdout.contains("/dev/pts/"), "{tty:?}");

    // 200 sessions, some at once, each with bytes of its own.
    let session = |number: u32| {
        let data: Vec<u8> = (0..40_000_u32 + number).flat_map(|i| (i.wrapping_mul(number + 7)).to_le_bytes()).collect();
        let mut child = world
            .client(&["exec", "-i", "--task", "side", &id, "sh", "-c", "cat; exit 9"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let expected = Sha256::digest(&data);
        let writer = std::thread::spawn(move || stdin.write_all(&data).unwrap());
        let mut back = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut back).unwrap();
        writer.join().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(9), "session {number}");
        assert_eq!(Sha256::digest(&back), expected, "session {number} of {} bytes", back.len());
    };
    let session = &session;
    std::thread::scope(|scope| {
        for part in 0..4 {
            scope.spawn(move || (0..50).for_each(|number| session(part * 50 + number)));
        }
    });

    // One whose caller is killed goes with him.
    let marker = format!("4{}", std::process::id());
    let mut caller = world.client(&["exec", "--task", "side", &id, "sleep", &marker]).spawn().unwrap();
    let sleeps = || {
        let all = procfs::process::all_processes().unwrap().flatten();
        all.filter(|p| p.cmdline().is_ok_and(|c| c.len() == 2 && c[1] == marker)).count()
    };
    let eventually = |what: &str, count: usize| {
        let deadline = Instant::now() + seconds(30);
        while sleeps() != count {
            assert!(Instant::now() < deadline, "{what}");
        }
    };
    eventually("the session began", 1);
    caller.kill().unwrap();
    caller.wait().unwrap();
    eventually("the session ended", 0);
    world.done(&["stop", "sessions"]);
    world.assert_clean();
}

#[test]
fn p1_two_runs_at_once_are_told_apart() {
    need_root!();
    let world = World::new();
    let file = world.file("fore.nomad.hcl", &service("twice", 1));
    let mut fore = world.start(&["--quiet", file.to_str().unwrap()]);
    wait_for_text(&fore.stdout, "web | begin");
    let back = detach(&world, &service("twice", 2));
    let views = listed(&world, &["ps", "--json"]);
    assert_eq!(views.len(), 3);
    let of_fore = views.iter().find(|view| !back.contains(&view["id"].as_str().unwrap().to_owned())).unwrap();
    let fore_id = of_fore["id"].as_str().unwrap().to_owned();
    assert_eq!(pid_of(of_fore), i32::try_from(fore.child.id()).unwrap());

    let out = world.ask(&["stop", "twice"]);
    let all_named = views.iter().all(|view| out.stderr.contains(view["id"].as_str().unwrap()));
    assert!(out.status == 125 && out.stderr.contains("runs several times") && all_named, "{out:?}");
    let out = world.ask(&["exec", "--task", "side", "twice", "true"]);
    assert!(out.status == 125 && out.stderr.contains("several allocations"), "{out:?}");

    world.done(&["stop", &back[0]]);
    let running: Vec<Json> =
        listed(&world, &["ps", "--json"]).into_iter().filter(|v| v["status"] == "running").collect();
    assert_eq!(running.len(), 2, "one of the two in the background goes on: {running:?}");
    world.done(&["stop", &fore_id]);
    let out = fore.finish();
    assert_eq!((out.status, out.stdout.as_str(), out.stderr.as_str()), (143, "web | begin\n", ""));
    assert_eq!(world.done(&["exec", "--task", "side", &back[1], "echo", "there"]), "there\n");
    world.done(&["stop", "--now", "twice"]);
    world.assert_clean();
}

#[test]
fn p1_only_the_own_user_and_root_give_orders() {
    need_root!();
    let world = World::new();
    let id = detach(&world, &service("private", 1)).remove(0);
    let socket = control_sockets(&world).remove(0);
    let ask = |socket: &Path, user: Option<u32>, frame: Vec<u8>| {
        let socket = socket.to_owned();
        // The user of a thread of its own: that is what the kernel tells the other side.
        std::thread::spawn(move || {
            if let Some(user) = user.map(rustix::process::Uid::from_raw) {
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            }
            let mut stream = UnixStream::connect(socket)?;
            stream.write_all(&frame)?;
            let mut answer = Vec::new();
            stream.set_read_timeout(Some(seconds(30)))?;
            // A request that is refused before it was read resets the connection behind the answer.
            let read = stream.read_to_end(&mut answer);
            if answer.is_empty() {
                read?;
            }
            Ok::<_, std::io::Error>(String::from_utf8_lossy(answer.get(5..).unwrap_or_default()).into_owned())
        })
        .join()
        .unwrap()
    };
    let frame = |text: &str| [b"j", &u32::try_from(text.len()).unwrap().to_be_bytes()[..], text.as_bytes()].concat();
    let status = frame(r#"{"request":"status"}"#);
    let stop = frame(r#"{"request":"stop","alloc":null,"now":true}"#);
    assert!(ask(&socket, None, status.clone()).unwrap().contains(&id));
    let stranger = plain_user(1);
    let error = ask(&socket, Some(stranger), status.clone()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "the directory keeps others away");

    // Should there be a way to it all the same, the run looks who asks.
    let beside = tempfile::Builder::new().prefix("agentbin-test-").tempdir_in("/run").unwrap();
    let open = beside.path().join("control.sock");
    std::fs::hard_link(&socket, &open).unwrap();
    for (path, mode) in [(beside.path(), 0o711), (open.as_path(), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    assert!(ask(&open, None, status.clone()).unwrap().contains(&id));
    for frame in [&status, &stop] {
        let answer = ask(&open, Some(stranger), frame.clone());
        let refused = answer.as_ref().is_ok_and(|told| told.contains("another user's runs take no orders from you"));
        // The answer may be lost when the request that it refuses was not read.
        let lost = [std::io::ErrorKind::ConnectionReset, std::io::ErrorKind::BrokenPipe];
        let reset = answer.as_ref().is_err_and(|e| lost.contains(&e.kind()));
        assert!(refused || reset, "{answer:?}");
    }

    // What is not a request does no harm.
    for garbage in [b"j\xff\xff\xff\xff".to_vec(), b"GET / HTTP/1.1\r\n\r\n".to_vec(), frame("{}"), frame("[")] {
        let answer = ask(&socket, None, garbage);
        assert!(answer.is_err() || !answer.as_ref().unwrap().contains("ok"), "{answer:?}");
    }
    assert_eq!(listed(&world, &["ps", "--json"])[0]["status"], "running");
    world.done(&["stop", "private"]);
    world.assert_clean();
}

#[test]
fn p1_a_run_that_was_killed_is_said_to_be_lost_or_goes_on_in_the_background() {
    need_root!();
    let world = World::new();
    let file = world.file("fore.nomad.hcl", &service("killed", 1));
    let mut fore = world.start(&["--quiet", file.to_str().unwrap()]);
    wait_for_text(&fore.stdout, "web | begin");
    let id = listed(&world, &["ps", "--json"])[0]["id"].as_str().unwrap().to_owned();
    fore.child.kill().unwrap();
    fore.child.wait().unwrap();

    let views = listed(&world, &["ps", "--json"]);
    assert_eq!((views.len(), &views[0]["id"], &views[0]["status"]), (1, &Json::from(id.as_str()), &"lost".into()));
    let out = world.ask(&["ps"]);
    assert!(out.status == 0 && out.stderr.contains("was killed, and its tasks may still run"), "{out:?}");
    let out = world.ask(&["exec", &id, "true"]);
    assert!(out.status == 125 && out.stderr.contains("was killed and cannot be reached"), "{out:?}");
    let stopped = world.done(&["stop", "killed"]);
    assert!(stopped.contains("its run was killed"), "{stopped}");
    // The socket of the killed run is left to the next run, or this.
    world.done(&["gc"]);
    world.assert_clean();

    // In the background the next command starts a supervisor again.
    let id = detach(&world, &service("killed", 1)).remove(0);
    let pid = pid_of(&listed(&world, &["ps", "--json"])[0]);
    let pidfd = agentbin::sys::process::open_pidfd(pid).unwrap();
    agentbin::sys::process::send_signal(std::os::fd::AsFd::as_fd(&pidfd), agentbin::spec::Signal::KILL).unwrap();
    let views = listed(&world, &["ps", "--json"]);
    assert_eq!((views.len(), &views[0]["id"], &views[0]["status"]), (1, &Json::from(id), &"running".into()));
    assert_ne!(pid_of(&views[0]), pid);
    world.done(&["stop", "killed"]);
    world.assert_clean();
}

#[test]
fn p1_what_cannot_start_in_the_background_ends_as_in_the_foreground() {
    need_root!();
    let world = World::new();
    for (job, status) in [
        (batch("raw_exec", "/no/such/command", "[]"), 127),
        (batch("raw_exec", "/etc/passwd", "[]"), 126),
        (batch("podman", "/bin/true", "[]"), 125),
        ("job {".to_owned(), 125),
    ] {
        let fore = world.run_text(&job, &["--quiet"]);
        let back = world.run_text(&job, &["--quiet", "--detach"]);
        assert_eq!((fore.status, back.status), (status, status), "{fore:?} {back:?}");
        assert_eq!((fore.stderr, back.stdout.as_str()), (back.stderr, ""));
        world.assert_clean();
    }
    // Also when something else runs before it.
    let first = "task \"first\" {\n driver = \"raw_exec\"\n lifecycle { hook = \"prestart\" }\n config {\n command = \"/bin/sleep\"\n args = [\"1\"]\n }\n }\n task \"t\"";
    let job = batch("raw_exec", "/no/such/command", "[]").replace("task \"t\"", first);
    let out = world.run_text(&job, &["--quiet", "--detach"]);
    assert!(out.status == 127 && out.stderr.contains("/no/such/command"), "{out:?}");
    world.assert_clean();
    // A task that ends well and soon has been started.
    let out = world.run_text(&batch("raw_exec", "/bin/echo", "[\"hello\"]"), &["--quiet", "--detach"]);
    assert_eq!((out.status, out.stdout.lines().count()), (0, 1), "{out:?}");
    world.assert_clean();
    let id = out.stdout.trim();
    assert_eq!(world.done(&["logs", id]), "hello\n");
    assert_eq!(listed(&world, &["status", "--json", id])[0]["tasks"][0]["exit_code"], 0);
    // From standard input, too, and as JSON.
    let mut child =
        world.command(&["--detach", "--json", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(service("piped", 1).as_bytes()).unwrap();
    let out: Out = child.wait_with_output().unwrap().into();
    let view: Json = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!((out.status, &view["job"], &view["detached"]), (0, &"piped".into(), &true.into()));
    world.done(&["stop", "--detach", "piped"]);
    world.assert_clean();
}

#[test]
fn p1_a_plain_user_has_all_of_it() {
    need_root!();
    let world = World::new();
    let user = plain_user(2);
    let as_user = |args: &[&str]| -> Out { world.command_as(user, args).output().unwrap().into() };
    let job = batch("raw_exec", "/bin/sh", "[\"-c\", \"echo begin; exec sleep 1000\"]");
    let out = world.run_as(user, &job, &["--quiet", "--detach"]);
    assert_eq!(out.status, 0, "{out:?}");
    let id = out.stdout.trim().to_owned();
    let shown = as_user(&["ps"]);
    assert!(shown.stdout.contains(&id[..8]), "{shown:?}");
    let out = as_user(&["exec", "test", "id", "-u"]);
    assert_eq!((out.status, out.stdout.trim()), (0, user.to_string().as_str()), "{out:?}");
    assert_eq!(as_user(&["restart", "t"]).status, 0);
    assert_eq!(as_user(&["stop", "test"]).status, 0);
    assert_eq!(as_user(&["logs", &id]).stdout, "begin\nbegin\n");
    world.assert_clean();
}

/// The ids that run, and what they do.
fn running(world: &World) -> Vec<String> {
    let views = listed(world, &["ps", "--json"]);
    views.iter().filter(|v| v["status"] == "running").map(|v| v["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn p1_a_name_is_not_the_beginning_of_an_id() {
    need_root!();
    let world = World::new();
    let id = detach(&world, &service("one", 1)).remove(0);
    wait_for_log(&world, &["logs", &id[..4], "web"], "begin");
    // What changes something wants as much of an id as `ps` shows: a job `a` or `db` may have just ended.
    for least in [1, 2, 7] {
        for args in [vec!["stop"], vec!["signal"], vec!["restart"], vec!["exec", "--task", "web"]] {
            let command: &[&str] = if args[0] == "exec" { &["true"] } else { &[] };
            let out = world.ask(&[&args, &[&id[..least]][..], command].concat());
            let told = "of an id give 8 characters at least";
            assert!(out.status == 125 && out.stderr.contains(told), "{args:?} {least}: {out:?}");
        }
    }
    let out = world.ask(&["logs", &id[..3], "web"]);
    assert!(out.status == 125 && out.stderr.contains("of an id give 4"), "{out:?}");
    assert_eq!(running(&world), [id.as_str()]);

    // A job that is called so comes first, also when it has ended.
    let name = &id[..6];
    let other = service(name, 1).replace("echo begin", "echo other");
    let other_id = detach(&world, &other).remove(0);
    assert_eq!(wait_for_log(&world, &["logs", name, "web"], "other"), "other\n");
    world.done(&["stop", name]);
    assert_eq!(world.done(&["logs", name, "web"]), "other\n");
    assert_eq!(listed(&world, &["status", "--json", name])[0]["id"], other_id.as_str());
    assert_eq!(running(&world), [id.as_str()]);
    world.done(&["stop", "one"]);
    world.assert_clean();
}

#[test]
fn p1_one_that_has_ended_keeps_no_order_from_the_others() {
    need_root!();
    let world = World::new();
    let ids = detach(&world, &service("pair", 2));
    wait_for_log(&world, &["logs", &ids[1], "web"], "begin");
    world.done(&["stop", &ids[0]]);
    assert_eq!(listed(&world, &["ps", "--json"]).len(), 2, "the run knows both");
    assert_eq!(world.done(&["restart", "pair"]), format!("restarted {} web side\n", ids[1]));
    world.done(&["signal", "-s", "HUP", "--task", "web", "pair"]);
    assert_eq!(world.done(&["stats", "pair"]).lines().count(), 3);
    assert_eq!(world.done(&["exec", "--task", "side", "pair", "echo", "there"]), "there\n");
    wait_for_log(&world, &["logs", "pair", "web"], "hup");

    // Two words for the same.
    let stopped = world.done(&["stop", &ids[1], "pair"]);
    assert_eq!(stopped, format!("stopped {} pair.g[1]\n", ids[1]));
    world.assert_clean();
}

#[test]
fn p1_a_task_of_several_jobs_is_not_meant() {
    need_root!();
    let world = World::new();
    let ids = [detach(&world, &service("first", 1)).remove(0), detach(&world, &service("second", 1)).remove(0)];
    for args in [&["signal", "web"][..], &["restart", "web"]] {
        let out = world.ask(args);
        let named = ids.iter().all(|id| out.stderr.contains(id.as_str()));
        assert!(out.status == 125 && out.stderr.contains("runs several times") && named, "{args:?}: {out:?}");
    }
    for view in listed(&world, &["ps", "--json"]) {
        let restarts: Vec<u64> =
            view["tasks"].as_array().unwrap().iter().map(|t| t["restarts"].as_u64().unwrap()).collect();
        assert_eq!((&view["status"], restarts), (&"running".into(), vec![0, 0]));
    }
    world.done(&["stop", "first", "second"]);
    world.assert_clean();
}

#[test]
fn p1_what_cannot_be_looked_at_keeps_nobody_from_the_rest() {
    need_root!();
    let world = World::new();
    let id = detach(&world, &service("look", 1)).remove(0);
    let mode = |dir: &Path, mode: u32| {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let logs = world.data_dir().join("logs");
    std::fs::create_dir_all(&logs).unwrap();
    mode(&logs, 0o777);
    let out = world.ask(&["ps"]);
    assert!(out.status == 0 && out.stdout.contains("look") && out.stderr.is_empty(), "{out:?}");
    let out = world.ask(&["ps", "--all"]);
    assert!(out.status == 0 && out.stdout.contains("look") && out.stderr.contains("was kept of ended jobs"), "{out:?}");
    mode(&logs, 0o700);
    let allocs = world.data_dir().join("alloc");
    let before = allocs.metadata().unwrap().permissions().mode();
    mode(&allocs, 0o777);
    assert_eq!(world.done(&["exec", "--task", "side", "look", "echo", "there"]), "there\n");
    mode(&allocs, before);

    // Runs that do not answer take their time together.
    let pids: Vec<i32> = (0..3)
        .map(|number| {
            let name = format!("stopped{number}");
            detach(&world, &service(&name, 1));
            pid_of(&listed(&world, &["status", "--json", &name])[0])
        })
        .collect();
    let signal = |name: agentbin::spec::Signal| {
        for pid in &pids {
            let pidfd = agentbin::sys::process::open_pidfd(*pid).unwrap();
            agentbin::sys::process::send_signal(std::os::fd::AsFd::as_fd(&pidfd), name).unwrap();
        }
    };
    signal(agentbin::spec::Signal::from_name("SIGSTOP").unwrap());
    let began = Instant::now();
    let out = world.ask(&["ps"]);
    let took = began.elapsed();
    signal(agentbin::spec::Signal::from_name("SIGCONT").unwrap());
    assert!(out.status == 0 && out.stdout.contains(&id[..8]), "{out:?}");
    assert!(took < std::time::Duration::from_secs(12), "one after the other: {took:?}");
    world.done(&["stop", "look", "stopped0", "stopped1", "stopped2"]);
    world.assert_clean();
}

#[test]
fn p1_what_is_said_after_the_start_is_kept() {
    need_root!();
    let world = World::new();
    let file = world.file("late.nomad.hcl", &service("late", 1));
    let begin = |timeout: &str| {
        let out = world.run(&["--detach", "--quiet", "--timeout", timeout, file.to_str().unwrap()]);
        assert_eq!(out.status, 0, "{out:?}");
        let messages = world.data_dir().join("logs").join(out.stdout.trim()).join("supervisor.log");
        assert!(messages.exists());
        let (status, swept) = (world.done(&["status", "late"]), world.done(&["gc", "--kept-logs", "0s"]));
        // On a loaded machine its time may have been over before it was looked at.
        let is_silent = std::fs::read_to_string(&messages).is_ok_and(|text| text.is_empty());
        if is_silent {
            assert!(!status.contains("Messages"), "{status}");
            // It is not a log of an ended job yet.
            assert!(!swept.contains("kept logs") && !swept.contains("removed") && messages.exists(), "{swept}");
        }
        wait_until_clean(&world);
        is_silent.then_some((out, messages))
    };
    let begun = ["3s", "10s", "40s"].into_iter().find_map(begin);
    let (out, messages) = begun.expect("it was looked at before its time was over");
    let told = std::fs::read_to_string(&messages).unwrap();
    assert!(told.contains("Z agentbin: the job was stopped because --timeout ran out\n"), "{told}");
    assert_eq!(messages.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let shown = world.done(&["status", "late"]);
    assert!(shown.contains(&format!("Messages  {}\n", messages.display())), "{shown}");
    let swept = world.done(&["gc", "--kept-logs", "0s"]);
    assert!(swept.contains(out.stdout.trim()) && !messages.exists(), "{swept}");

    let ids = detach(&world, &service("two", 2));
    let messages = |id: &String| world.data_dir().join("logs").join(id).join("supervisor.log");
    let first = ids.iter().find(|id| messages(id).exists()).expect("one has the messages of both");
    world.done(&["stop", first]);
    let swept = world.done(&["gc", "--kept-logs", "0s"]);
    assert!(messages(first).exists(), "the other one goes on: {swept}");
    world.done(&["stop", "two"]);
    let swept = world.done(&["gc", "--kept-logs", "0s"]);
    assert!(ids.iter().all(|id| swept.contains(id.as_str()) && !messages(id).exists()), "{swept}");

    let id = detach(&world, &service("silent", 1)).remove(0);
    world.done(&["stop", "silent"]);
    let kept = world.data_dir().join("logs").join(id);
    assert!(kept.join("alloc.json").exists() && !kept.join("supervisor.log").exists());
    world.assert_clean();
}

#[test]
fn p1_drivers_that_do_not_answer_keep_nobody() {
    need_root!();
    let world = World::new();
    // Not written by this process, which starts others at the same time: nobody could execute it then.
    let (java, asked) = (world.path("java"), world.path("asked"));
    let script = format!(
        "printf '#!/bin/sh\\n: > {}\\nexec sleep 1000\\n' > {1} && chmod 755 {1}",
        asked.display(),
        java.display()
    );
    assert!(Command::new("/bin/sh").args(["-c", &script]).status().unwrap().success());
    let job = batch("raw_exec", "/bin/true", "[]");
    let job = job.replace("driver ", "env { JAVA = \"$${attr.driver.java.version}\" }\ndriver ").replace("$$", "$");
    let file = world.file("asks.nomad.hcl", &job);
    for (args, status) in [(&[][..], 130), (&["--timeout", "1s"], 124)] {
        let path = format!("{}:{}", world.path("").display(), std::env::var("PATH").unwrap());
        let mut command = world.command(args);
        let mut run = World::start_command({
            command.arg(&file).env("PATH", path);
            command
        });
        let deadline = Instant::now() + seconds(60);
        while !asked.exists() {
            assert!(Instant::now() < deadline, "java is asked for its version");
        }
        let began = Instant::now();
        if status == 130 {
            world::signal(&run.child, "SIGINT");
        }
        assert_eq!(run.finish().status, status);
        assert!(began.elapsed() < std::time::Duration::from_secs(15), "its 20 seconds are waited for");
        std::fs::remove_file(&asked).unwrap();
    }
    world.assert_clean();
}

/// The groups' names and changes in what `plan --json` says, and its exit status.
fn planned(world: &World, text: &str) -> (Vec<(String, String)>, i32) {
    let file = world.file("planned.nomad.hcl", text);
    let out = world.ask(&["plan", "--json", file.to_str().unwrap()]);
    let object: Json = serde_json::from_str(&out.stdout).unwrap_or_else(|error| panic!("{error}: {out:?}"));
    let changes = object["changes"].as_array().unwrap_or_else(|| panic!("{out:?}"));
    let text = |value: &Json| value.as_str().unwrap().to_owned();
    (changes.iter().map(|group| (text(&group["group"]), text(&group["change"]))).collect(), out.status)
}

#[test]
fn p1_plan_says_what_a_file_changes_of_what_runs() {
    need_root!();
    let world = World::new();
    let job = service("planned", 2);
    let of = |group: &str, change: &str| (group.to_owned(), change.to_owned());
    assert_eq!(planned(&world, &job), (vec![of("g", "new")], 1), "nothing runs");
    assert!(!world.data_dir().exists(), "it makes nothing");
    detach(&world, &job);
    assert_eq!(planned(&world, &job), (vec![of("g", "unchanged")], 0));
    let moved = format!("# A comment\n\n{}", job.replace("kill_signal = ", "kill_signal   =   "));
    assert_eq!(planned(&world, &moved), (vec![of("g", "unchanged")], 0), "where it stands means nothing");
    assert_eq!(planned(&world, &service("planned", 3)), (vec![of("g", "count")], 1));
    for (before, after) in
        [("100ms", "200ms"), ("1000", "1001"), ("\"service\"", "\"service\"\n  meta {\n a = \"b\"\n }")]
    {
        let changed = job.replace(before, after);
        assert!(changed != job);
        assert_eq!(planned(&world, &changed), (vec![of("g", "differs")], 1), "{after}");
    }
    let other = job.replace("group \"g\"", "group \"h\"");
    assert_eq!(planned(&world, &other), (vec![of("h", "new"), of("g", "not in the file")], 1));
    assert_eq!(planned(&world, &service("another", 1)), (vec![of("g", "new")], 1), "another job runs");

    let file = world.file("planned.nomad.hcl", &job);
    let out = world.ask(&["plan", file.to_str().unwrap()]);
    assert!(out.status == 0 && out.stdout.contains("group g: unchanged, 2 running"), "{out:?}");
    let dry = world.ask(&["run", "--dry-run", file.to_str().unwrap()]);
    assert!(dry.status == 0 && out.stdout.starts_with(&dry.stdout), "{dry:?}");
    for json in [&[][..], &["--json"]] {
        let dry = |more: &[&str]| world.ask(&[&["run", "--dry-run"], json, more, &[file.to_str().unwrap()]].concat());
        let (fore, back) = (dry(&[]), dry(&["--detach"]));
        assert!(back.status == 0 && !back.stdout.is_empty() && back.stdout == fore.stdout, "{back:?}");
    }
    let out = world.ask(&["plan", "/no/such/file.hcl"]);
    assert!(out.status == 255 && out.stderr.contains("/no/such/file.hcl"), "{out:?}");
    world.done(&["stop", "planned"]);
    assert_eq!(planned(&world, &job), (vec![of("g", "new")], 1), "what has ended is not compared");

    // What runs in the foreground keeps no definition.
    let mut fore = world.start(&["--quiet", file.to_str().unwrap()]);
    wait_for_text(&fore.stdout, "web | begin");
    assert_eq!(planned(&world, &job), (vec![of("g", "unknown")], 1));
    world::signal(&fore.child, "SIGINT");
    fore.finish();
    world.assert_clean();
}

/// A foreground run whose standard output is full, and its job's only allocation.
fn unread(world: &World, script: &str) -> (std::process::Child, String) {
    let text = batch("raw_exec", "/bin/sh", &format!("[\"-c\", \"{script}\"]"));
    let text = text.replace("driver", "kill_signal = \"SIGTERM\"\nkill_timeout = \"10m\"\ndriver");
    let file = world.file("unread.nomad.hcl", &text);
    let mut command = world.command(&["--quiet", file.to_str().unwrap()]);
    let run = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + seconds(60);
    while rustix::io::ioctl_fionread(run.stdout.as_ref().unwrap()).unwrap() < 60_000 {
        assert!(Instant::now() < deadline, "the pipe is full");
    }
    // The output may be there before the run has noted that the task runs.
    let id = loop {
        if let Some(id) = running(world).pop() {
            break id;
        }
        assert!(Instant::now() < deadline, "the task runs");
    };
    (run, id)
}

#[test]
fn p1_nobody_waits_for_output_that_is_not_read() {
    need_root!();
    let world = World::new();
    let (mut run, _) = unread(&world, "yes");
    let mut stop = world.client(&["stop", "--now", "test"]).stdout(Stdio::null()).spawn().unwrap();
    world::wait_within(&mut stop, seconds(30));
    world::wait_within(&mut run, seconds(30));
    assert_eq!(stop.wait().unwrap().code(), Some(0));

    // An order to stop is the first one, so that Ctrl-C is the second one, which kills.
    let (mut run, id) = unread(&world, "trap '' TERM; while :; do yes | head -c 100000; done");
    assert_eq!(world.ask(&["stop", "--detach", "test"]).status, 0);
    let deadline = Instant::now() + seconds(60);
    while listed(&world, &["status", "--json", &id])[0]["stopping"] != true {
        assert!(Instant::now() < deadline, "it is stopping");
    }
    world::signal(&run, "SIGINT");
    world::wait_within(&mut run, seconds(30));
    assert_eq!(run.wait().unwrap().code(), Some(137));
    world.assert_clean();
}
