//! Nothing is left behind, whoever is interrupted or killed and whenever: the real binary, the real kernel.
//!
//! The default is the short form; `AGENTBIN_FULL=1` runs the full counts. Moments are random; `AGENTBIN_SEED` repeats a run.

#![expect(clippy::disallowed_methods, reason = "the moments of the faults are drawn, not awaited")]

#[path = "support/random.rs"]
mod random;
#[path = "support/world.rs"]
mod world;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use random::Random;
use world::{Out, Running, World, batch, need_root, plain_user, seconds, signal, slower, wait_for_text};

/// The life of a short run, start to end, on the machine where these tests are written.
const LIFE: Duration = Duration::from_millis(150);

fn full() -> bool {
    std::env::var_os("AGENTBIN_FULL").is_some_and(|v| v == "1")
}

fn count(short: u64, full_count: u64) -> u64 {
    if full() { full_count } else { short }
}

/// What tasks do. `for` in their environment names the world: a process that hides everything else has that.
const TRUE: &str = "exit 0";
const SHORT: &str = "sleep 0.03";
const LONG: &str = "sleep 300";
const STUBBORN: &str = "trap '' INT TERM; while :; do sleep 0.02; done";
const CHATTY: &str = "seq 1 30000; echo done >&2";
const FORKING: &str = "(setsid sleep 300 &); (setsid sh -c 'sleep 300 & sleep 300 &' &); sleep 300 & sleep 0.03";
const FORKING_LONG: &str = "(setsid sleep 300 &); (setsid sh -c 'sleep 300 & sleep 300 &' &); sleep 300";

fn task(mark: &str, name: &str, driver: &str, hook: &str, script: &str) -> String {
    let lifecycle = if hook.is_empty() { String::new() } else { format!("lifecycle {{\n hook = \"{hook}\"\n}}\n") };
    format!(
        "task \"{name}\" {{\n driver = \"{driver}\"\n kill_timeout = \"50ms\"\n {lifecycle}env {{\n for = \"{mark}\"\n}}\n \
         config {{\n command = \"/bin/sh\"\n args = [\"-c\", {script:?}]\n}}\n}}\n"
    )
}

fn job(tasks: &str) -> String {
    format!(
        "job \"fault\" {{\n type = \"batch\"\n group \"g\" {{\n restart {{\n attempts = 0\n mode = \"fail\"\n}}\n{tasks}}}\n}}\n"
    )
}

/// A job of some kind; those that are `long` end only when somebody ends them.
fn some_job(random: &mut Random, mark: &str, drivers: &[&str], long: bool) -> String {
    let driver = drivers[usize::try_from(random.below(drivers.len() as u64)).unwrap()];
    let one = |script: &str| job(&task(mark, "t", driver, "", script));
    match (long, random.below(6)) {
        (false, 0) => one(TRUE),
        (false, 1) => one(SHORT),
        (false, 2) => one(CHATTY),
        (false, 3 | 4) => one(FORKING),
        (true, 0) => one(LONG),
        (true, 1) => one(STUBBORN),
        (true, 2) => one("while :; do seq 1 1000; done"),
        (true, 3 | 4) => one(FORKING_LONG),
        (long, _) => {
            let main = if long { LONG } else { SHORT };
            let other = drivers[usize::try_from(random.below(drivers.len() as u64)).unwrap()];
            let tasks = [
                task(mark, "before", driver, "prestart", TRUE),
                task(mark, "main", other, "", main),
                task(mark, "after", driver, "poststop", TRUE),
            ];
            job(&tasks.concat())
        }
    }
}

/// The executors whose arguments name the world.
fn executors(mark: &str) -> Vec<i32> {
    let is = |p: &procfs::process::Process| {
        p.stat().is_ok_and(|s| s.state != 'Z')
            && p.cmdline()
                .is_ok_and(|c| c.get(1).is_some_and(|a| a == "executor") && c.get(2).is_some_and(|a| a.contains(mark)))
    };
    procfs::process::all_processes().unwrap().flatten().filter(is).map(|p| p.pid).collect()
}

fn kill_process(pid: i32) {
    // It may just have ended.
    let Ok(pidfd) = agentbin::sys::process::open_pidfd(pid) else { return };
    let _ = agentbin::sys::process::send_signal(std::os::fd::AsFd::as_fd(&pidfd), agentbin::spec::Signal::KILL);
}

fn sleep_until(moment: Instant) {
    std::thread::sleep(moment.saturating_duration_since(Instant::now()));
}

/// How a run is disturbed.
#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    Signal(&'static str, Duration),
    /// Executors that are there at this moment.
    Executors(Duration),
    /// The first executor, as long after its start.
    Newborn(Duration),
    /// `run` itself.
    Run(Duration),
}

impl Fault {
    fn some(random: &mut Random, span: Duration) -> Fault {
        match random.below(6) {
            0 => Fault::Signal("INT", random.moment(span)),
            1 => Fault::Signal("TERM", random.moment(span)),
            2 | 3 => Fault::Executors(random.moment(span)),
            _ => Fault::Newborn(random.moment(span / 3)),
        }
    }

    fn strike(self, run: &Running, mark: &str, began: Instant) {
        match self {
            Fault::None => {}
            Fault::Signal(name, after) => {
                sleep_until(began + after);
                signal(&run.child, name);
            }
            Fault::Executors(after) => {
                sleep_until(began + after);
                executors(mark).into_iter().for_each(kill_process);
            }
            Fault::Newborn(after) => {
                let deadline = Instant::now() + seconds(2);
                while Instant::now() < deadline {
                    if let Some(pid) = executors(mark).first() {
                        sleep_until(Instant::now() + after);
                        return kill_process(*pid);
                    }
                }
            }
            Fault::Run(after) => {
                sleep_until(began + after);
                signal(&run.child, "KILL");
            }
        }
    }

    /// Whether a run that goes on for ever surely ends: an executor may not have been there yet.
    fn is_sure(self) -> bool {
        matches!(self, Fault::Run(_))
    }
}

/// Ends a run that was disturbed: one that did not notice hears SIGINT.
fn finish(run: &mut Running, long: bool, fault: Fault) -> Out {
    if long && !fault.is_sure() {
        let deadline = Instant::now() + Duration::from_millis(100) * slower();
        while run.child.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                signal(&run.child, "INT");
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    run.finish()
}

/// 200 runs in a row, 50 of them interrupted at random moments.
#[test]
fn n5_interrupted_runs_leave_nothing() {
    need_root!();
    let mut random = Random::new("n5_interrupted_runs_leave_nothing");
    let world = World::new();
    let (runs, every) = (count(200, 1000), 4);
    for number in 0..runs {
        let disturbed = number % every == 0;
        let long = disturbed && random.below(2) == 0;
        let fault = if disturbed { Fault::some(&mut random, LIFE * slower()) } else { Fault::None };
        let text = some_job(&mut random, &world.mark(), &["exec", "raw_exec"], long);
        let began = Instant::now();
        let mut run = world.start_text(&text);
        fault.strike(&run, &world.mark(), began);
        let out = finish(&mut run, long, fault);
        if !disturbed {
            assert_eq!(out.status, 0, "run {number}: {out:?}");
        }
        assert!(!out.stderr.contains("cannot be cleaned up"), "run {number}, {fault:?}: {out:?}");
        if disturbed || number % 10 == 9 {
            println!("run {number}: {fault:?}: status {}", out.status);
            world.assert_clean();
        }
    }
    world.assert_clean();
}

/// Several at once in one data dir, one of them killed with -9: the others live on, and a later one cleans up after it.
#[test]
fn n5_runs_beside_each_other_do_not_disturb_each_other() {
    need_root!();
    let mut random = Random::new("n5_runs_beside_each_other_do_not_disturb_each_other");
    let world = World::new();
    for round in 0..count(8, 50) {
        let mut runs = Vec::new();
        for number in 0..4 {
            let text = some_job(&mut random, &world.mark(), &["exec", "raw_exec"], number == 0);
            let file = world.file(&format!("{number}.hcl"), &text);
            let began = Instant::now();
            let run = world.start(&["--quiet", file.to_str().unwrap()]);
            let fault = if number == 0 { Fault::Run(random.moment(LIFE * slower())) } else { Fault::None };
            fault.strike(&run, &world.mark(), began);
            runs.push(run);
        }
        for (number, run) in runs.iter_mut().enumerate() {
            let out = run.finish();
            assert!(number == 0 || out.status == 0, "round {round}, run {number}: {out:?}");
        }
        let out = world.run_text(&batch("raw_exec", "/bin/true", "[]"), &["--quiet"]);
        assert!(out.status == 0 && out.stderr.is_empty(), "round {round}: {out:?}");
        world.assert_clean();
    }
}

/// A kill -9 of `run` at every moment of its life: gc, or the next run, finds everything.
#[test]
fn n5_gc_cleans_up_whenever_run_was_killed() {
    need_root!();
    let mut random = Random::new("n5_gc_cleans_up_whenever_run_was_killed");
    let world = World::new();
    let moments = count(40, 400);
    for number in 0..moments {
        let text = some_job(&mut random, &world.mark(), &["exec", "raw_exec"], number % 4 == 3);
        let step = LIFE * slower() / u32::try_from(moments).unwrap();
        let after = step * u32::try_from(number).unwrap() + random.moment(step);
        let began = Instant::now();
        let mut run = world.start_text(&text);
        Fault::Run(after).strike(&run, &world.mark(), began);
        run.finish();
        if number % 5 == 4 {
            let out = world.run_text(&batch("raw_exec", "/bin/true", "[]"), &["--quiet"]);
            assert!(out.status == 0 && out.stderr.is_empty(), "killed after {after:?}: {out:?}");
        } else {
            let out = world.agentbin(&["gc"]);
            assert!(out.status == 0 && out.stderr.is_empty(), "killed after {after:?}: {out:?}");
        }
        world.assert_clean();
    }
}

/// The executor that was started a moment ago is in no record yet.
#[test]
fn n5_gc_finds_an_executor_that_run_did_not_note() {
    need_root!();
    let mut random = Random::new("n5_gc_finds_an_executor_that_run_did_not_note");
    let world = World::new();
    for _ in 0..count(15, 150) {
        let file = world.file("job.hcl", &job(&task(&world.mark(), "t", "raw_exec", "", FORKING_LONG)));
        let mut run = world.start(&["--quiet", file.to_str().unwrap()]);
        let deadline = Instant::now() + seconds(60);
        while executors(&world.mark()).is_empty() {
            assert!(Instant::now() < deadline, "no executor");
        }
        std::thread::sleep(random.moment(Duration::from_millis(15) * slower()));
        signal(&run.child, "KILL");
        run.finish();
        let out = world.agentbin(&["gc"]);
        assert!(out.status == 0 && out.stderr.is_empty(), "{out:?}");
        assert_eq!(executors(&world.mark()), [0; 0]);
        world.assert_clean();
    }
}

/// Without cgroups, what a killed executor's task started is `run`'s to find.
#[test]
fn n5_a_plain_users_orphans_end_with_the_run() {
    need_root!();
    let (world, user) = (World::new(), plain_user(0));
    let script = "(setsid env -i sh -c 'sleep 300 & sleep 300; echo MARK' &); (setsid sleep 300 &); sleep 0.1; echo ready; sleep 300";
    let script = script.replace("MARK", &world.mark());
    let two = [
        task(&world.mark(), "victim", "raw_exec", "", &script),
        task(&world.mark(), "after", "raw_exec", "poststop", "exit 0"),
    ];
    let file = world.file("job.hcl", &job(&two.concat()));
    for _ in 0..count(2, 20) {
        let mut run = World::start_command(world.command_as(user, &["run", file.to_str().unwrap()]));
        wait_for_text(&run.stdout, "ready");
        let victims = executors(&world.mark());
        assert_eq!(victims.len(), 1);
        victims.into_iter().for_each(kill_process);
        let out = run.finish();
        assert!(out.status == 125 && out.stderr.contains("error waiting on process"), "{out:?}");
        world.assert_clean();
        assert_eq!(processes_of(user), [""; 0]);
    }
}

/// Both killed, `run` and executor, and no cgroup: gc kills what still has the allocation in its environment.
#[test]
fn n5_a_plain_users_killed_run_is_cleaned_up() {
    need_root!();
    let mut random = Random::new("n5_a_plain_users_killed_run_is_cleaned_up");
    let (world, user) = (World::new(), plain_user(1));
    for number in 0..count(12, 100) {
        let file = world.file("job.hcl", &some_job(&mut random, &world.mark(), &["raw_exec"], number % 2 == 0));
        let began = Instant::now();
        let mut run = World::start_command(world.command_as(user, &["run", "--quiet", file.to_str().unwrap()]));
        Fault::Run(random.moment(LIFE * slower())).strike(&run, &world.mark(), began);
        if number % 3 == 0 {
            executors(&world.mark()).into_iter().for_each(kill_process);
        }
        run.finish();
        let out: Out = world.command_as(user, &["gc"]).output().unwrap().into();
        assert!(out.status == 0 && out.stderr.is_empty(), "{out:?}");
        world.assert_clean();
        assert_eq!(processes_of(user), [""; 0]);
    }
}

fn processes_of(uid: u32) -> Vec<String> {
    let all = procfs::process::all_processes().unwrap().flatten();
    let alive = |p: &procfs::process::Process| p.stat().is_ok_and(|s| s.state != 'Z');
    all.filter(|p| p.uid().is_ok_and(|u| u == uid) && alive(p))
        .map(|p| p.cmdline().unwrap_or_default().join(" "))
        .collect()
}

/// What ran before this process was `run` is not its to kill.
#[test]
fn n5_a_script_that_becomes_run_keeps_its_children() {
    let world = World::new();
    let file =
        world.file("job.hcl", &job(&task(&world.mark(), "t", "raw_exec", "", "(setsid sleep 300 &); sleep 300")));
    let nap = (3_000_000 + std::process::id()).to_string();
    let script = format!("(sleep 0.3; setsid sh -c 'sleep {nap} & exec sleep {nap}' & ) >/dev/null 2>&1 & exec \"$@\"");
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", &script, "sh"])
        .arg(env!("CARGO_BIN_EXE_agentbin"))
        .arg("run")
        .arg("--data-dir")
        .arg(world.data_dir());
    command.arg(&file).stdin(Stdio::null()).env("XDG_RUNTIME_DIR", world.path(""));
    let mut run = World::start_command(command);
    wait_for_text(&run.stderr, "Started");
    let sleepers = || {
        let all = procfs::process::all_processes().unwrap().flatten();
        all.filter(|p| p.cmdline().is_ok_and(|c| c == ["sleep", &nap])).map(|p| p.pid).collect::<Vec<_>>()
    };
    let deadline = Instant::now() + seconds(60);
    while sleepers().len() < 2 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
    executors(&world.mark()).into_iter().for_each(kill_process);
    run.finish();
    assert_eq!(sleepers().len(), 2);
    sleepers().into_iter().for_each(kill_process);
    world.assert_clean();
}

/// In a mount namespace of its own, with a data dir of its own on it.
fn run_on_tmpfs(world: &World, options: &str, prepare: &str, job: &str) -> Out {
    let (file, data) = (world.file("job.hcl", job), world.path("small"));
    std::fs::create_dir_all(&data).unwrap();
    let script = format!(
        "mount -t tmpfs -o mode=711,{options} tmpfs \"$1\" && {prepare} && exec \"$2\" run --quiet --data-dir \"$1\" \"$3\""
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(&data).arg(env!("CARGO_BIN_EXE_agentbin")).arg(file);
    command.stdin(Stdio::null()).env("XDG_RUNTIME_DIR", world.path(""));
    World::start_command(command).finish()
}

#[test]
fn n5_a_full_disk_is_told_and_leaves_nothing() {
    need_root!();
    let world = World::new();
    let quiet = batch("exec", "/bin/sh", r#"["-c", "exit 7"]"#);
    let chatty = batch("raw_exec", "/bin/sh", r#"["-c", "seq 1 400000; exit 7"]"#);
    let full = "head -c 100m /dev/zero > \"$1/filler\" 2>/dev/null; true";
    // No page and no inode left at different steps, from the node's id to the output.
    let mut seen = Vec::new();
    for options in ["size=4k", "size=8k", "size=16k", "size=64k", "size=1m"] {
        for (job, prepare) in [(&quiet, "true"), (&chatty, "true"), (&quiet, full)] {
            let out = run_on_tmpfs(&world, options, prepare, job);
            seen.push((options, out.status));
            assert!(out.status == 7 || out.status == 125, "{options} {prepare}: {out:?}");
            assert!(out.status == 7 || out.stderr.contains("No space left"), "{options} {prepare}: {out:?}");
            world.assert_clean();
        }
    }
    for inodes in 2..30 {
        let out = run_on_tmpfs(&world, &format!("size=1m,nr_inodes={inodes}"), "true", &quiet);
        seen.push(("inodes", out.status));
        assert!(out.status == 7 || out.status == 125, "{inodes} inodes: {out:?}");
        assert!(out.status == 7 || out.stderr.contains("No space left"), "{inodes} inodes: {out:?}");
        assert!(out.stderr.lines().count() <= 2, "{inodes} inodes: {out:?}");
        world.assert_clean();
    }
    println!("{seen:?}");
    assert!(seen.iter().any(|(_, s)| *s == 7) && seen.iter().any(|(_, s)| *s == 125), "{seen:?}");
}

#[test]
fn n5_a_read_only_data_dir_is_125() {
    need_root!();
    let world = World::new();
    let out = run_on_tmpfs(&world, "ro", "true", &batch("exec", "/bin/true", "[]"));
    assert!(out.status == 125 && out.stderr.contains("Read-only file system"), "{out:?}");
    assert!(out.stderr.lines().count() == 1 && out.stderr.contains(world.path("small").to_str().unwrap()), "{out:?}");
    world.assert_clean();
}

/// A task that cannot be started makes the run look for orphans. What another task of it is just fetching is none.
#[test]
fn a_failed_start_does_not_end_another_tasks_download() {
    use std::io::{BufRead as _, BufReader, Write as _};

    let world = World::new();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", server.local_addr().unwrap());
    let group = |name: &str, command: &str| {
        format!(
            "group \"{name}\" {{\n restart {{\n attempts = 0\n mode = \"fail\"\n}}\n task \"{name}\" {{\n driver = \"raw_exec\"\n \
             artifact {{\n source = \"{url}/{name}\"\n}}\n config {{\n {command}\n}}\n}}\n}}\n"
        )
    };
    let good = group("good", "command = \"/bin/cat\"\n args = [\"local/good\"]");
    let bad = group("bad", "command = \"/no/such/command\"");
    let mut run = world.start_text(&format!("job \"two\" {{\n type = \"batch\"\n{good}{bad}}}\n"));
    let asked = || {
        let stream = server.accept().unwrap().0;
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        // The rest of the head.
        assert!(lines.by_ref().any(|line| line.unwrap().is_empty()));
        (first, stream)
    };
    let answer = |mut stream: std::net::TcpStream, text: &str| {
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}", text.len()).unwrap();
    };
    let (mut fetching, mut failing) = (None, None);
    while fetching.is_none() || failing.is_none() {
        let (line, stream) = asked();
        *(if line.starts_with("GET /good") { &mut fetching } else { &mut failing }) = Some(stream);
    }
    answer(failing.unwrap(), "x");
    // It is told after the look for orphans.
    wait_for_text(&run.stderr, "/no/such/command");
    answer(fetching.unwrap(), "fetched nevertheless");
    let out = run.finish();
    assert!(out.stdout.contains("fetched nevertheless"), "{out:?}");
    world.assert_clean();
}
