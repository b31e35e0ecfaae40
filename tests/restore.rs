//! Runs in the background whose supervisors are killed with -9: their tasks go on, no line is lost or doubled, and the next
//! command takes them up (A4). `AGENTBIN_FULL=1` kills more often.

#[path = "support/crowd.rs"]
mod crowd;
#[path = "support/engine.rs"]
mod engine;
#[path = "restore/fifty.rs"]
mod fifty;
#[path = "restore/kinds.rs"]
mod kinds;
#[path = "support/plugin_dir.rs"]
mod plugin_dir;
#[path = "support/random.rs"]
mod random;
#[path = "support/wire.rs"]
mod wire;
#[path = "support/world.rs"]
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use agentbin::spec::Signal;
use agentbin::sys;
use random::Random;
use serde_json::Value as Json;
use world::{Out, World, batch, need_root, seconds};

/// Prints a number after the other, each line with its pid.
const COUNTER: &str = "n=0; while :; do n=$((n+1)); echo $$ $n; sleep 0.01; done";

/// A group of counters, with a task before them that ends well.
fn counters(job: &str) -> String {
    let task = |name: &str, driver: &str| {
        format!(
            r#"
    task "{name}" {{
      driver       = "{driver}"
      kill_timeout = "1s"
      config {{
        command = "/bin/sh"
        args    = ["-c", "{COUNTER}"]
      }}
    }}"#
        )
    };
    let tasks: String =
        [("a", "raw_exec"), ("b", "raw_exec"), ("c", "exec"), ("d", "exec")].map(|(n, d)| task(n, d)).concat();
    format!(
        r#"
job "{job}" {{
  type = "service"
  group "g" {{
    restart {{
      attempts = 3
      delay    = "1s"
      interval = "10m"
      mode     = "fail"
    }}
    task "init" {{
      driver = "exec"
      lifecycle {{
        hook = "prestart"
      }}
      config {{
        command = "/bin/echo"
        args    = ["begun"]
      }}
    }}
{tasks}
  }}
}}
"#
    )
}

fn detach(world: &World, job: &str, more: &[&str]) -> String {
    let file = world.file("job.nomad.hcl", job);
    let out = world.run(&[&["--detach", "--quiet"], more, &[file.to_str().unwrap()]].concat());
    assert_eq!(out.status, 0, "{out:?}");
    out.stdout.lines().next().unwrap().to_owned()
}

/// The only allocation.
fn view(world: &World) -> Json {
    let views: Vec<Json> = serde_json::from_str(&world.done(&["ps", "--json"])).unwrap();
    assert_eq!(views.len(), 1, "{views:?}");
    views.into_iter().next().unwrap()
}

fn task<'a>(view: &'a Json, name: &str) -> &'a Json {
    view["tasks"].as_array().unwrap().iter().find(|task| task["name"] == name).unwrap()
}

/// The process that holds the lock of the only run, by what it wrote there.
fn supervisor(data_dir: &Path) -> Option<i32> {
    let locks = std::fs::read_dir(data_dir.join("runs")).ok()?.flatten();
    let path = locks.map(|e| e.path()).find(|path| path.extension().is_some_and(|end| end == "lock"))?;
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Kills exactly this process, and waits until it has gone.
fn kill(pid: i32) {
    let Ok(pidfd) = sys::process::open_pidfd(pid) else { return };
    let _gone_already = sys::process::send_signal(pidfd.as_fd(), Signal::KILL);
    rustix::event::poll(&mut [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)], None).unwrap();
}

/// Kills the supervisor of the only run, unless it is dead already.
fn kill_supervisor(world: &World) {
    kill_supervisor_of(&world.data_dir());
}

/// The same of another data directory.
fn kill_supervisor_of(data_dir: &Path) {
    let Some(pid) = supervisor(data_dir) else { return };
    // Its number may have passed to somebody else.
    let words = procfs::process::Process::new(pid).and_then(|process| process.cmdline()).unwrap_or_default();
    if words.iter().any(|word| word.contains("supervise")) {
        kill(pid);
    }
}

/// The pids of the tasks' own processes: each prints its own, which for an isolated one is that of its namespace.
fn shells(world: &World) -> BTreeSet<i32> {
    let id = view(world)["id"].as_str().unwrap().to_owned();
    let marked = format!("NOMAD_ALLOC_ID={id}");
    let mut found = BTreeSet::new();
    for process in procfs::process::all_processes().unwrap().flatten() {
        let named = process
            .environ()
            .is_ok_and(|env| env.iter().any(|(key, value)| format!("{}={}", key.display(), value.display()) == marked));
        let runs_counter = process.cmdline().is_ok_and(|words| words.iter().any(|word| word == COUNTER));
        // Not those that it has forked and that are about to become a sleep, or have ended since their words were read.
        let Ok(stat) = process.stat() else { continue };
        let forked = procfs::process::Process::new(stat.ppid)
            .and_then(|p| p.cmdline())
            .is_ok_and(|w| w.iter().any(|w| w == COUNTER));
        if named && runs_counter && !forked {
            found.insert(process.pid);
        }
    }
    found
}

/// The executors of this world, by their tasks.
fn executors(world: &World) -> BTreeMap<String, i32> {
    world.executors().into_iter().collect()
}

/// All lines that a task printed, as the log files have them, wherever they are now.
fn lines(world: &World, id: &str, name: &str) -> Vec<String> {
    lines_below(&world.data_dir(), id, name)
}

fn lines_below(data_dir: &Path, id: &str, name: &str) -> Vec<String> {
    let running = data_dir.join("alloc").join(id).join("alloc/logs");
    let dir = if running.is_dir() { running } else { data_dir.join("logs").join(id) };
    let prefix = format!("{name}.stdout.");
    let mut files: Vec<(u64, PathBuf)> = std::fs::read_dir(&dir)
        .unwrap()
        .flatten()
        .filter_map(|e| Some((e.file_name().to_str()?.strip_prefix(&prefix)?.parse().ok()?, e.path())))
        .collect();
    files.sort();
    let text: String = files.iter().map(|(_, path)| std::fs::read_to_string(path).unwrap()).collect();
    text.lines().map(str::to_owned).collect()
}

/// Each line of one process is there exactly once, in its order.
fn assert_counted(world: &World, id: &str, name: &str) -> usize {
    assert_counted_in(&lines(world, id, name), name)
}

fn assert_counted_in(lines: &[String], name: &str) -> usize {
    let pid = lines[0].split_once(' ').unwrap().0.to_owned();
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(*line, format!("{pid} {}", number + 1), "line {} of {name}", number + 1);
    }
    lines.len()
}

/// Lets a moment pass: one that is drawn, or between two looks at something for which there is no event.
fn pause(moment: Duration) {
    let moment = rustix::event::Timespec::try_from(moment).unwrap();
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut [], Some(&moment))).unwrap();
}

fn full() -> bool {
    std::env::var("AGENTBIN_FULL").is_ok_and(|full| full != "0")
}

#[test]
fn a4_tasks_outlive_a_supervisor_that_is_killed_at_any_instant() {
    need_root!();
    let (world, mut random) = (World::new(), Random::new("restore"));
    let id = detach(&world, &counters("at-any-instant"), &[]);
    let (before, ours) = (shells(&world), executors(&world));
    assert_eq!((before.len(), ours.len()), (4, 4), "{before:?} {ours:?}");
    let rounds = if full() { 300 } else { 30 };
    for round in 0..rounds {
        // Some of the commands that take it up, each killed with it at a random instant of taking up.
        let mut next = world.client(&["ps", "--json"]);
        let mut next = next.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        pause(random.moment(Duration::from_millis(60)));
        kill_supervisor(&world);
        next.wait().unwrap();
        if round % 10 == 9 {
            let view = view(&world);
            assert_eq!((&view["id"], &view["status"]), (&Json::from(id.as_str()), &"running".into()), "round {round}");
            assert_eq!(shells(&world), before, "round {round}");
        }
    }
    let view = view(&world);
    for name in ["a", "b", "c", "d"] {
        let task = task(&view, name);
        assert_eq!((&task["state"], &task["restarts"]), (&"running".into(), &0.into()), "{task}");
        assert!(assert_counted(&world, &id, name) > 0);
    }
    assert_eq!(task(&view, "init")["state"], "dead", "a dead task stays dead");
    assert_eq!((shells(&world), executors(&world)), (before, ours));
    // What is asked of a task reaches it.
    assert_eq!(world.done(&["exec", "--task", "c", &id, "echo", "here"]), "here\n");
    assert!(world.done(&["stats", &id]).contains("at-any-instant"));
    world.done(&["stop", "at-any-instant"]);
    world.assert_clean();
    for name in ["a", "b", "c", "d"] {
        assert_counted(&world, &id, name);
    }
    assert_eq!(lines(&world, &id, "init"), ["begun"], "it has run once");
}

/// Waits until something of a task is so.
fn wait_for(world: &World, name: &str, wanted: impl Fn(&Json) -> bool) -> Json {
    let deadline = Instant::now() + seconds(60);
    loop {
        let view = view(world);
        if wanted(task(&view, name)) {
            return task(&view, name).clone();
        }
        assert!(Instant::now() < deadline, "{view:#}");
    }
}

#[test]
fn a4_a_task_whose_executor_is_killed_too_is_adopted_or_restarted_and_never_both() {
    need_root!();
    let (world, mut random) = (World::new(), Random::new("executors"));
    detach(&world, &counters("executors"), &[]);
    let before = shells(&world);
    for _ in 0..if full() { 100 } else { 8 } {
        let victims = executors(&world);
        assert_eq!(victims.len(), 4, "{victims:?}");
        let victim = victims.values().nth(random.index(4)).copied().unwrap();
        if random.below(2) == 0 {
            kill_supervisor(&world);
            kill(victim);
        } else {
            kill(victim);
            kill_supervisor(&world);
        }
        let view = view(&world);
        assert_eq!(view["status"], "running", "{view:#}");
        for name in ["a", "b", "c", "d"] {
            assert_eq!(task(&view, name)["restarts"], 0, "{view:#}");
        }
        assert_eq!(shells(&world), before);
        // The next round counts its executors.
        wait_until(|| executors(&world).len() == 4);
    }
    world.done(&["stop", "executors"]);
    world.assert_clean();
}

fn wait_until(wanted: impl Fn() -> bool) {
    let deadline = Instant::now() + seconds(60);
    while !wanted() {
        assert!(Instant::now() < deadline);
        pause(Duration::from_millis(10));
    }
}

#[test]
fn a4_what_ended_meanwhile_is_seen_with_its_status_and_restarts_are_counted_on() {
    need_root!();
    let world = World::new();
    let go = world.path("go");
    let script = format!("while ! [ -e {} ]; do sleep 0.05; done; rm {0}; exit 7", go.display());
    let job = counters("meanwhile").replace(COUNTER, &script);
    detach(&world, &job, &[]);
    // One of the tasks ends with status 7 while nobody looks.
    kill_supervisor(&world);
    std::fs::write(&go, "").unwrap();
    wait_until(|| !go.exists());
    let ended = |view: &Json| ["a", "b", "c", "d"].into_iter().find(|name| task(view, name)["restarts"] == 1);
    let name = std::cell::Cell::new(None);
    wait_until(|| {
        name.set(ended(&view(&world)));
        name.get().is_some()
    });
    let name = name.get().unwrap();
    let seen = wait_for(&world, name, |task| task["state"] == "running");
    let events = seen["events"].as_array().unwrap();
    assert!(events.iter().any(|event| event["details"]["exit_code"] == "7"), "{events:#?}");
    for _ in 0..3 {
        kill_supervisor(&world);
        assert_eq!(task(&view(&world), name)["restarts"], 1, "a supervisor's death is not a restart");
    }
    world.done(&["stop", "meanwhile"]);
    world.assert_clean();
}

#[test]
fn a4_after_a_restart_of_the_machine_the_allocation_begins_again() {
    need_root!();
    let world = World::new();
    let id = detach(&world, &counters("rebooted"), &[]);
    let before = shells(&world);
    // What a restart of the machine takes along: processes, and what is below /run.
    kill_supervisor(&world);
    executors(&world).into_values().for_each(kill);
    before.iter().copied().for_each(kill);
    for dir in world.kept_sockets() {
        std::fs::remove_dir_all(dir).unwrap();
    }
    let path = world.data_dir().join(format!("alloc/{id}.json"));
    let mut record: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    record["owner"]["boot_id"] = "an earlier one".into();
    std::fs::write(&path, record.to_string()).unwrap();

    let view = view(&world);
    assert_eq!(view["id"], id.as_str(), "the same allocation");
    for name in ["a", "b", "c", "d"] {
        let task = wait_for(&world, name, |task| task["state"] == "running");
        assert_eq!(task["restarts"], 0, "{task:#}");
        let kinds: Vec<&str> = task["events"].as_array().unwrap().iter().map(|e| e["type"].as_str().unwrap()).collect();
        assert!(kinds.ends_with(&["Restored", "Task Setup", "Started"]), "{kinds:?}");
    }
    assert_eq!(lines(&world, &id, "init"), ["begun"], "a dead task stays dead");
    assert!(shells(&world).is_disjoint(&before));
    world.done(&["stop", "rebooted"]);
    world.assert_clean();
}

#[test]
fn a4_gc_leaves_what_is_taken_up_again_unless_it_is_told_otherwise() {
    need_root!();
    let world = World::new();
    let id = detach(&world, &counters("kept"), &[]);
    let before = shells(&world);
    kill_supervisor(&world);
    let told = world.done(&["gc"]);
    assert!(told.contains("kept") && told.contains(&id) && told.contains("--abandoned"), "{told}");
    let told = world.done(&["gc", "--dry-run", "--abandoned"]);
    assert!(told.contains("would remove") && told.contains(&id), "{told}");
    // A run beside it takes it up, and leaves it alone.
    assert_eq!(world.run_text(&batch("raw_exec", "/bin/true", "[]"), &["--quiet"]).status, 0);
    assert_eq!(shells(&world), before);
    let told = world.done(&["gc", "--abandoned"]);
    assert!(told.contains("in use") && shells(&world) == before, "its supervisor lives: {told}");
    kill_supervisor(&world);
    let told = world.done(&["gc", "--abandoned"]);
    assert!(told.contains("removed") && told.contains(&id), "{told}");
    world.assert_clean();
    assert_eq!(world.done(&["ps", "--json"]).trim(), "[]");
}

/// Killed while it starts its tasks, a supervisor has told nobody that they run: nothing of them stays.
#[test]
fn a4_what_was_never_announced_is_removed() {
    need_root!();
    let (world, mut random) = (World::new(), Random::new("unannounced"));
    let file = world.file("job.nomad.hcl", &counters("unannounced"));
    let mut announced = 0;
    for _ in 0..if full() { 100 } else { 10 } {
        let mut starting = world.command(&["--detach", "--quiet", file.to_str().unwrap()]);
        let mut starting = starting.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        pause(random.moment(Duration::from_millis(150)));
        kill_supervisor(&world);
        let was_told = starting.wait().unwrap().success();
        let views: Vec<Json> = serde_json::from_str(&world.done(&["ps", "--json"])).unwrap();
        let taken_up = views.iter().filter(|view| view["status"] != "lost").count();
        assert!(taken_up >= usize::from(was_told), "what somebody was told of goes on: {views:?}");
        announced += taken_up;
        if taken_up > 0 {
            world.done(&["stop", "unannounced"]);
        }
        world.done(&["gc"]);
        world.assert_clean();
    }
    println!("{announced} were announced before they were killed");
}

/// What the command line said is kept, with the secrets that are in it.
#[test]
fn a4_the_next_supervisor_knows_the_command_line_of_the_first() {
    need_root!();
    let world = World::new();
    let (values, sink) = (world.file("values.json", r#"{"word":"one"}"#), world.path("sink"));
    let volume = world.path("volume");
    std::fs::create_dir(&volume).unwrap();
    std::fs::set_permissions(&volume, std::fs::Permissions::from_mode(0o777)).unwrap();
    let job = r#"
job "settings" {
  type = "service"
  group "g" {
    volume "v" {
      type   = "host"
      source = "v"
    }
    task "web" {
      driver = "exec"
      volume_mount {
        volume      = "v"
        destination = "/v"
      }
      template {
        data          = "{{ key \"word\" }}"
        destination   = "local/word"
        change_mode   = "signal"
        change_signal = "SIGHUP"
      }
      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'cat /local/word; echo' HUP; cat /local/word; echo; touch /v/began; while :; do sleep 0.05; done"]
      }
    }
  }
}
"#;
    let sink_url = format!("file:{}", sink.display());
    let volume_word = format!("v={}", volume.display());
    let more = ["--kv", values.to_str().unwrap(), "--log-sink", &sink_url, "--volume", &volume_word];
    let id = detach(&world, job, &more);
    wait_until(|| lines(&world, &id, "web") == ["one"] && volume.join("began").exists());
    kill_supervisor(&world);
    std::fs::write(&values, r#"{"word":"two"}"#).unwrap();
    let seen = view(&world);
    assert_eq!(task(&seen, "web")["restarts"], 0);
    // The template has changed while nobody looked.
    wait_until(|| lines(&world, &id, "web") == ["one", "two"]);
    // Restarted by the second supervisor, it has its volume.
    std::fs::remove_file(volume.join("began")).unwrap();
    world.done(&["restart", &id]);
    wait_until(|| volume.join("began").exists() && lines(&world, &id, "web") == ["one", "two", "two"]);
    let shipped = || std::fs::read_to_string(&sink).unwrap_or_default();
    wait_until(|| shipped().lines().count() >= 3);
    world.done(&["stop", "settings"]);
    let words = shipped();
    assert!(words.contains("one") && words.matches("two").count() >= 2, "both supervisors have shipped: {words}");
    world.assert_clean();
}

/// What differs each time it is rendered is kept over supervisors, whatever other values change while nobody looks.
#[test]
fn j4_templates_that_differ_each_time_are_kept_by_the_next_supervisor() {
    need_root!();
    let world = World::new();
    let values = world.file("values.json", r#"{"word": "one", "other": "one"}"#);
    let template = |data: &str, destination: &str, mode: &str| {
        format!(
            "template {{\n data = <<EOT\n{data}\nEOT\n destination = \"{destination}\"\n change_mode = \"{mode}\"\n \
             splay = \"0s\"\n }}\n"
        )
    };
    let random = "{{ sprig_genPrivateKey `ecdsa` }}{{ timestamp `05.000000000` }} {{ key `word` }}";
    let job = format!(
        "job \"kept\" {{\n type = \"service\"\n group \"g\" {{\n task \"web\" {{\n driver = \"raw_exec\"\n {}{}{} \
         config {{\n command = \"/bin/sleep\"\n args = [\"1000\"]\n }}\n }}\n }}\n}}\n",
        template(random, "secrets/key", "restart"),
        template(random, "local/own", "restart"),
        template("{{ key `other` }}", "local/other", "noop"),
    );
    let id = detach(&world, &job, &["--kv", values.to_str().unwrap()]);
    let file = |name: &str| world.data_dir().join(format!("alloc/{id}/web/{name}"));
    let read = |name: &str| std::fs::read_to_string(file(name)).unwrap();
    let restarts = || task(&view(&world), "web")["restarts"].as_u64().unwrap();
    wait_until(|| task(&view(&world), "web")["state"] == "running");
    let first = read("secrets/key");
    // The task has changed the other one, which is its own affair.
    std::fs::write(file("local/own"), "changed").unwrap();
    for other in ["two", "three"] {
        kill_supervisor(&world);
        std::fs::write(&values, format!(r#"{{"word": "one", "other": "{other}"}}"#)).unwrap();
        assert_eq!(restarts(), 0);
        wait_until(|| read("local/other") == format!("{other}\n"));
        assert_eq!((read("secrets/key"), read("local/own"), restarts()), (first.clone(), "changed".to_owned(), 0));
    }
    kill_supervisor(&world);
    std::fs::write(&values, r#"{"word": "two", "other": "three"}"#).unwrap();
    wait_until(|| restarts() == 1 && task(&view(&world), "web")["state"] == "running");
    let second = read("secrets/key");
    assert!(
        second.ends_with(" two\n") && second[..120] != first[..120] && read("local/own").ends_with(" two\n"),
        "{second}"
    );
    world.done(&["restart", &id]);
    wait_until(|| restarts() == 2);
    assert_eq!(read("secrets/key"), second);
    world.done(&["stop", "kept"]);
    world.assert_clean();
}

/// A record that this version does not understand is not a reason to forget the run that it belongs to.
#[test]
fn a4_a_run_whose_record_is_not_understood_is_not_forgotten() {
    need_root!();
    let world = World::new();
    let id = detach(&world, &counters("unreadable"), &[]);
    let before = shells(&world);
    kill_supervisor(&world);
    let path = world.data_dir().join(format!("alloc/{id}.json"));
    let record = std::fs::read_to_string(&path).unwrap();
    let newer = record.replacen("\"version\":3", "\"version\":9", 1);
    assert_ne!(record, newer);
    std::fs::write(&path, newer).unwrap();
    let out = world.ask(&["ps", "--json"]);
    assert!(out.stderr.contains("version 9"), "{out:?}");
    world.done(&["gc"]);
    std::fs::write(&path, record).unwrap();
    let view = view(&world);
    assert_eq!((&view["id"], &view["status"]), (&Json::from(id.as_str()), &"running".into()), "{view:#}");
    assert_eq!(shells(&world), before);
    world.done(&["stop", "unreadable"]);
    world.assert_clean();
}

/// The file of a newer version is left to that version, and nothing is said to end the run meanwhile that does not.
#[test]
fn a4_a_run_of_a_newer_version_is_said_to_be_kept() {
    need_root!();
    let world = World::new();
    let id = detach(&world, &counters("newer"), &[]);
    kill_supervisor(&world);
    let mut files = std::fs::read_dir(world.data_dir().join("runs")).unwrap().flatten().map(|entry| entry.path());
    let path = files.find(|path| path.extension().is_some_and(|end| end == "json")).unwrap();
    let file = std::fs::read_to_string(&path).unwrap();
    let newer = file.replacen("\"version\":1", "\"version\":9", 1);
    assert_ne!(file, newer);
    std::fs::write(&path, newer).unwrap();
    let out = world.ask(&["ps"]);
    assert!(out.stdout.contains(&id[..8]) && out.stderr.contains("as agentbin gc --abandoned does"), "{out:?}");
    let told = world.done(&["gc"]);
    assert!(told.contains("kept") && told.contains("this version cannot take it up again"), "{told}");
    std::fs::write(&path, file).unwrap();
    assert_eq!(view(&world)["id"], id.as_str());
    world.done(&["stop", "newer"]);
    world.assert_clean();
}

/// From another pid namespace nothing of it can be seen, and is not taken for dead: else it would be started a second time.
#[test]
fn a4_another_pid_namespace_takes_nothing_up() {
    need_root!();
    let world = World::new();
    let id = detach(&world, &counters("elsewhere"), &[]);
    let before = shells(&world);
    kill_supervisor(&world);
    let beside = |args: &[&str]| -> Out {
        let inner = world.client(args);
        let mut outer = Command::new("unshare");
        outer.args(["--pid", "--fork", "--mount", "--mount-proc"]).arg(inner.get_program()).args(inner.get_args());
        outer.env("XDG_RUNTIME_DIR", world.path("")).stdin(Stdio::null()).output().unwrap().into()
    };
    let out = beside(&["ps", "--json"]);
    assert!(out.stderr.contains("another pid namespace"), "{out:?}");
    let out = beside(&["gc", "--abandoned"]);
    assert!(out.stdout.contains("left alone") && out.stdout.contains(&id), "{out:?}");
    assert_eq!(shells(&world), before);
    for name in ["a", "b", "c", "d"] {
        assert_eq!(task(&view(&world), name)["restarts"], 0);
        assert!(assert_counted(&world, &id, name) > 0);
    }
    world.done(&["stop", "elsewhere"]);
    world.assert_clean();
}

#[test]
fn a_test_that_fails_takes_its_runs_along() {
    need_root!();
    let failing = std::thread::spawn(|| {
        let world = World::new();
        detach(&world, &counters("failing"), &[]);
        let mut alive: Vec<i32> = shells(&world).into_iter().chain(executors(&world).into_values()).collect();
        alive.extend(supervisor(&world.data_dir()));
        assert_eq!(alive.len(), 9, "{alive:?}");
        std::panic::resume_unwind(Box::new(alive));
    });
    let alive = failing.join().unwrap_err().downcast::<Vec<i32>>().unwrap();
    wait_until(|| alive.iter().all(|pid| !procfs::process::Process::new(*pid).is_ok_and(|p| p.is_alive())));
}
