//! `agentbin top` by the real binary: on a terminal, and without one (P1).

#[path = "support/world.rs"]
mod world;

#[path = "support/screen.rs"]
mod screen;

use std::time::Instant;

use agentbin::spec::Signal;
use screen::Screen;
use serde_json::Value as Json;
use world::{World, need_root, seconds, wait_for_text, wait_within};

/// One task that computes, and one that has memory.
fn two(job: &str) -> String {
    let task = |name: &str, driver: &str, script: &str| {
        format!(
            "task \"{name}\" {{\n driver = \"{driver}\"\n kill_timeout = \"100ms\"\n config {{\n command = \"/usr/bin/perl\"\n \
             args = [\"-e\", \"{script}\"]\n }}\n resources {{\n memory = 200\n }}\n }}\n"
        )
    };
    let (burns, holds) = ("$| = 1; print 'begin', chr 10; 1 while 1", "$x = 'x' x (40 << 20); sleep 1000");
    let tasks = task("burns", "raw_exec", burns) + &task("holds", "exec", holds);
    format!("job \"{job}\" {{\n type = \"service\"\n group \"g\" {{\n {tasks} }}\n}}\n")
}

/// Starts a job in the background; the id of its allocation.
fn detach(world: &World, job: &str) -> String {
    let file = world.file("detached.nomad.hcl", job);
    let out = world.run(&["--detach", "--quiet", file.to_str().unwrap()]);
    assert_eq!(out.status, 0, "{out:?}");
    out.stdout.trim().to_owned()
}

fn signal(pid: i32, signal: Signal) {
    let pidfd = agentbin::sys::process::open_pidfd(pid).unwrap();
    agentbin::sys::process::send_signal(std::os::fd::AsFd::as_fd(&pidfd), signal).unwrap();
}

/// The task's row, as words, and its place among the rows.
fn row(lines: &[String], job: &str, task: &str) -> Option<(usize, Vec<String>)> {
    let words = |line: &String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows = lines.iter().map(words).enumerate();
    rows.into_iter().find(|(_, words)| words.len() > 3 && words[0] == job && words[2] == task)
}

/// Whether both tasks are shown, the one above the other.
fn is_above(lines: &[String], upper: &str, lower: &str) -> bool {
    let place = |task: &str| row(lines, "both", task).map(|(place, _)| place);
    place(upper).zip(place(lower)).is_some_and(|(upper, lower)| upper < lower)
}

fn ends(screen: &mut Screen, status: i32) {
    wait_within(&mut screen.child, seconds(30));
    assert_eq!(screen.child.wait().unwrap().code(), Some(status));
    assert!(!screen.is_raw(), "the terminal's modes are as before");
}

/// The same, and its screen is back, too.
fn ends_restored(screen: &mut Screen, status: i32) {
    ends(screen, status);
    let deadline = Instant::now() + seconds(10);
    while screen.is_taken() != (false, false) {
        assert!(Instant::now() < deadline, "the screen is as before: {:?}", screen.is_taken());
    }
}

#[test]
fn p1_top_on_a_terminal() {
    need_root!();
    let world = World::new();
    let id = detach(&world, &two("both"));
    let mut screen = Screen::start(&world.client(&["top"]), (120, 20), true);
    // By CPU, and CPU time is measured from the second sample on.
    let lines = screen.wait("the tasks by CPU", |lines| {
        let number = |task: &str, word: usize| {
            row(lines, "both", task).and_then(|(_, r)| r[word].trim_end_matches('%').parse::<f64>().ok())
        };
        let used = number("burns", 6).zip(number("holds", 7));
        is_above(lines, "burns", "holds") && used.is_some_and(|(cpu, rss)| cpu > 10.0 && rss > 40.0)
    });
    assert!(lines[0].starts_with("2 tasks, 2 of them running; CPU "), "{lines:?}");
    let (_, burns) = row(&lines, "both", "burns").unwrap();
    assert_eq!(burns[..6], ["both", "g[0]", "burns", "raw_exec", &id[..8], "running"], "{lines:?}");
    let (_, holds) = row(&lines, "both", "holds").unwrap();
    // CPU, RSS with its unit, limit with its unit, processes.
    let rss: f64 = holds[7].parse().unwrap();
    assert!(rss > 40.0 && rss < 120.0 && holds[8] == "MiB" && holds[9..11] == ["200.0", "MiB"], "{holds:?}");
    assert_eq!(holds.last().unwrap(), "0", "never restarted");
    assert!(screen.is_raw() && screen.is_taken() == (true, true));

    screen.type_in("m");
    screen.wait("the tasks by memory", |lines| is_above(lines, "holds", "burns") && lines[19].starts_with("by memory"));
    screen.type_in("c");
    screen.wait("by CPU again", |lines| is_above(lines, "burns", "holds") && lines[19].starts_with("by CPU"));
    for size in [(90, 10), (20, 3), (200, 60), (120, 20)] {
        screen.resize(size);
        let last = usize::from(size.1) - 1;
        screen.wait("it fits", |lines| lines.len() == last + 1 && lines[last].starts_with("by CPU"));
    }
    // What was stopped and continued takes the terminal over again.
    let pid = screen.child.id().cast_signed();
    screen.resize((110, 20));
    signal(pid, Signal::from_name("SIGCONT").unwrap());
    screen.wait("it is drawn anew", |lines| is_above(lines, "burns", "holds") && lines[19].starts_with("by CPU"));

    // A restart is counted as by `status`, and a task that has ended uses nothing.
    world.done(&["signal", "-s", "SIGKILL", "--task", "burns", "both"]);
    screen.wait("it was restarted", |lines| row(lines, "both", "burns").is_some_and(|(_, r)| r.last().unwrap() == "1"));
    screen.type_in("q");
    ends_restored(&mut screen, 0);

    let one = Screen::start(&world.client(&["top", "--sort", "memory", "holds"]), (120, 20), true);
    let lines = one.wait("one task", |lines| row(lines, "both", "holds").is_some());
    assert!(row(&lines, "both", "burns").is_none() && lines[0].starts_with("1 tasks"), "{lines:?}");
    let mut one = one;
    one.type_in("\x03");
    ends_restored(&mut one, 0);
    for (sent, status) in [("SIGTERM", 143), ("SIGINT", 130)] {
        let mut screen = Screen::start(&world.client(&["top"]), (80, 24), true);
        screen.wait("the tasks", |lines| lines[0].starts_with("2 tasks"));
        signal(screen.child.id().cast_signed(), Signal::from_name(sent).unwrap());
        ends_restored(&mut screen, status);
    }
    world.done(&["stop", "both"]);
    world.assert_clean();
}

#[test]
fn p1_top_ends_with_its_terminal_and_waits_for_none() {
    need_root!();
    let world = World::new();
    detach(&world, &two("both"));
    let mut screen = Screen::start(&world.client(&["top"]), (120, 20), true);
    screen.wait("the tasks", |lines| is_above(lines, "burns", "holds"));
    screen.hang_up();
    signal(screen.child.id().cast_signed(), Signal::from_name("SIGHUP").unwrap());
    wait_within(&mut screen.child, seconds(30));
    assert_eq!(screen.child.wait().unwrap().code(), Some(129));

    // Nobody reads what it draws: more than the kernel keeps for a terminal.
    for (typed, sent, status) in [("q", None, 0), ("", Some("SIGTERM"), 143)] {
        let mut screen = Screen::start(&world.client(&["top"]), (400, 200), false);
        let deadline = Instant::now() + seconds(60);
        while !screen.is_raw() {
            assert!(Instant::now() < deadline, "it takes the terminal");
        }
        screen.resize((300, 150));
        screen.type_in(typed);
        if let Some(sent) = sent {
            signal(screen.child.id().cast_signed(), Signal::from_name(sent).unwrap());
        }
        ends(&mut screen, status);
    }
    world.done(&["stop", "both"]);
    world.assert_clean();
}

#[test]
fn p1_top_shows_the_others_while_a_run_does_not_answer_and_forgets_one_that_was_killed() {
    need_root!();
    let world = World::new();
    detach(&world, &two("both"));
    let file = world.file("fore.nomad.hcl", &two("fore").replace("1 while 1", "sleep 1000"));
    let mut fore = world.start(&["--quiet", file.to_str().unwrap()]);
    wait_for_text(&fore.stdout, "burns | begin");
    let mut screen = Screen::start(&world.client(&["top"]), (120, 20), true);
    screen.wait("both jobs", |lines| {
        is_above(lines, "burns", "holds") && row(lines, "fore", "holds").is_some() && lines[0].starts_with("4 tasks")
    });
    let pid = fore.child.id().cast_signed();
    signal(pid, Signal::from_name("SIGSTOP").unwrap());
    // The others are shown as they are, and keys are obeyed, while it is waited for.
    world.done(&["signal", "-s", "SIGKILL", "--task", "burns", "both"]);
    screen.type_in("m");
    screen.wait("keys are obeyed", |lines| lines[19].starts_with("by memory"));
    screen.wait("others are shown", |lines| row(lines, "both", "burns").is_some_and(|(_, r)| r.last().unwrap() == "1"));
    let lines = screen.wait("it is said", |lines| lines.iter().any(|line| line.contains("no answer")));
    assert!(row(&lines, "fore", "holds").is_some(), "what is known of it stays: {lines:?}");
    signal(pid, Signal::from_name("SIGCONT").unwrap());
    screen.wait("it answers again", |lines| !lines.iter().any(|line| line.contains("no answer")));

    fore.child.kill().unwrap();
    fore.child.wait().unwrap();
    screen.wait("the killed run is gone", |lines| {
        lines[0].starts_with("2 tasks") && row(lines, "fore", "holds").is_none()
    });
    screen.type_in("q");
    ends_restored(&mut screen, 0);
    world.done(&["stop", "fore"]);
    world.done(&["stop", "both"]);
    world.done(&["gc"]);
    world.assert_clean();
}

#[test]
fn p1_top_without_a_terminal_is_one_table_or_one_document() {
    need_root!();
    let world = World::new();
    std::fs::create_dir(world.data_dir()).unwrap();
    let heads = "JOB  GROUP  TASK  DRIVER  ALLOC  STATE  CPU  RSS  LIMIT  PROCS  UPTIME  RESTARTS\n";
    assert_eq!(world.done(&["top"]), heads, "nothing runs");
    assert_eq!(world.done(&["top", "--json"]), "{\n  \"tasks\": []\n}\n");
    let id = detach(&world, &two("both"));
    for args in [&["top"][..], &["top", "--once", "both"], &["top", &id[..5]]] {
        let text = world.done(args);
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        assert!(lines.len() == 3 && lines[0].starts_with("JOB ") && is_above(&lines, "burns", "holds"), "{text}");
        assert!(!text.contains('\x1b'), "{text:?}");
    }
    let text = world.done(&["top", "--sort", "memory", "--json"]);
    let document: Json = serde_json::from_str(&text).unwrap();
    let tasks = document["tasks"].as_array().unwrap();
    assert_eq!((tasks.len(), &tasks[0]["task"], &tasks[1]["task"]), (2, &"holds".into(), &"burns".into()), "{text}");
    let holds = &tasks[0];
    assert_eq!((&holds["alloc_id"], &holds["memory_limit"]), (&id.as_str().into(), &(200 << 20).into()), "{text}");
    assert!(holds["memory_rss"].as_u64().unwrap() > 40 << 20 && holds["processes"].as_u64().unwrap() >= 1, "{text}");
    assert_eq!(tasks[1]["memory_limit"], 200 << 20, "of raw_exec, too: {text}");
    assert!(tasks[1]["cpu_percent"].as_f64().unwrap() > 1.0 && tasks[1]["uptime_seconds"].is_u64(), "{text}");
    assert_eq!((&holds["state"], &holds["restarts"], &holds["index"]), (&"running".into(), &0.into(), &0.into()));
    let out = world.ask(&["top", "nothing-of-this-name"]);
    assert!(out.status == 125 && out.stderr.contains("there is no job, task or allocation"), "{out:?}");
    // A name that would draw on a terminal is refused long before.
    let out = world.run_text(&two("a\\u001b[2J"), &[]);
    assert!(out.status == 125 && !out.stderr.contains('\x1b'), "{out:?}");
    world.done(&["stop", "both"]);
    world.assert_clean();
}
