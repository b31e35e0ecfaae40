//! `agentbin run` as a person uses it: the real binary, real job files, the real kernel (N8).

#[path = "support/world.rs"]
mod world;

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use world::{Out, World, batch, copy_program, example, need_root, seconds, signal, wait_for_text};

#[test]
fn n8_hello_says_who_and_where_it_is() {
    need_root!();
    let world = World::new();
    let out = world.run(&[example("hello").to_str().unwrap()]);
    assert_eq!(out.status, 0, "{out:?}");
    assert!(
        out.stdout.starts_with("Hello, world!\nI am nobody (65534), process 1 of task hello in job hello.\n"),
        "{out:?}"
    );
    assert!(out.stdout.contains("64 MiB") && out.stdout.contains("Capabilities: 0000000000000000"), "{out:?}");
    assert!(out.stderr.contains("Started") && out.stderr.contains("Exit Code: 0"), "{out:?}");
    let out = world.run(&["-var", "name=you", "--quiet", example("hello").to_str().unwrap()]);
    assert!(out.stdout.starts_with("Hello, you!\n") && out.stderr.is_empty(), "{out:?}");
    world.assert_clean();
}

/// Whoever reads both streams at one terminal sees what README shows, in that order.
#[test]
fn n8_what_a_task_writes_stands_between_its_start_and_its_end() {
    need_root!();
    let world = World::new();
    let path = world.path("said");
    let (_, readme) = include_str!("../README.md").split_once("<!-- demo:begin").unwrap();
    let (_, shown) = readme.split_once("$ agentbin run examples/hello.nomad.hcl\n").unwrap();
    let (shown, _) = shown.split_once("```").unwrap();
    // Which directories there are is the machine's.
    let lines = |text: &str| {
        let told = text.lines().map(|line| line.split_inclusive("My root holds:").next().unwrap().to_owned());
        told.collect::<Vec<_>>()
    };
    for round in 0..20 {
        let said = std::fs::File::create(&path).unwrap();
        let mut run = world.command(&[example("hello").to_str().unwrap()]);
        let status = run.stdout(said.try_clone().unwrap()).stderr(said).status().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(status.success() && text.ends_with("==> hello: Terminated: Exit Code: 0\n"), "{round}: {text}");
        assert_eq!(lines(&text), lines(shown), "{round}");
    }
    world.assert_clean();
}

#[test]
fn n8_pipeline_passes_files_from_task_to_task() {
    need_root!();
    let world = World::new();
    let out = world.run(&[example("pipeline").to_str().unwrap()]);
    assert_eq!(out.status, 0, "{out:?}");
    let lines: Vec<&str> = out.stdout.lines().collect();
    assert_eq!(lines[0], "fetch | fetched 10 words");
    assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["count", "|", "2", "be"]);
    assert_eq!(lines.last().unwrap(), &"report | 8 different words, most often: 2 be");
    world.assert_clean();
}

#[test]
fn n8_web_answers_on_loopback_until_it_is_told_to_stop() {
    need_root!();
    let world = World::new();
    // Above those that the kernel gives to whoever asks for any, so that nobody takes it in between.
    let first = 61_000 + u16::try_from(std::process::id() % 4000).unwrap();
    let port = (first..=u16::MAX).find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap();
    let mut run = world.start(&["-var", &format!("port={port}"), example("web").to_str().unwrap()]);
    wait_for_text(&run.stdout, "listening on");
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    std::io::Write::write_all(&mut stream, b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("Hello from server, run as nobody.\n"),
        "{answer}"
    );
    wait_for_text(&run.stdout, "GET /x HTTP/1.1");
    signal(&run.child, "INT");
    let out = run.finish();
    assert!(out.status == 130 && out.stdout.ends_with("bye\n"), "{out:?}");
    world.assert_clean();
}

/// N6: blocks and keys of a job file reach the task, as they do from an agent.
#[test]
fn n6_a_job_file_says_how_a_task_is_held() {
    need_root!();
    let world = World::new();
    let job = |keys: &str| {
        let script = "grep -E '^(NoNewPrivs|Seccomp:)' /proc/self/status; grep -E 'open files|core' /proc/self/limits; \
            cat /proc/self/uid_map; ls /sys/class/net";
        format!(
            "job \"x\" {{\n type = \"batch\"\n group \"g\" {{\n task \"t\" {{\n driver = \"exec\"\n config {{\n \
             command = \"/bin/sh\"\n args = [\"-c\", \"{script}\"]\n{keys}\n}}\n}}\n}}\n}}\n"
        )
    };
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let keys = "isolation = \"strict\"\npids_limit = 50\nulimit {\nnofile = 100\ncore = \"1:2\"\n}";
    let out = world.run_text(&job(keys), &["--quiet"]);
    let text = squeezed(&out.stdout);
    let expected = "NoNewPrivs: 1 Seccomp: 2 Max core file size 1 2 bytes Max open files 100 100 files 0 ";
    let base = text.strip_prefix(expected).and_then(|rest| rest.strip_suffix(" 65536 lo"));
    let base = base.and_then(|base| base.parse::<u32>().ok());
    assert!(out.status == 0 && base.is_some_and(|base| base >= 1_879_048_192), "{out:?}");
    let out = world.run_text(&job("isolation = \"nomad\""), &["--quiet"]);
    assert!(out.status == 0 && squeezed(&out.stdout).starts_with("NoNewPrivs: 0 Seccomp: 0 "), "{out:?}");
    for (keys, why) in [
        ("isolation = \"docker\"", "isolation must be"),
        ("ulimit {\nfiles = 1\n}", "ulimit \"files\" is not known"),
        ("io {\ndevice = \"/dev/vda\"\n}", "io for /dev/vda limits nothing"),
    ] {
        let out = world.run_text(&job(keys), &[]);
        assert!(out.status == 125 && out.stderr.contains(why) && out.stderr.contains(":9:"), "{keys}: {out:?}");
    }
    world.assert_clean();
}

/// The status of the task is the status of `run`.
#[test]
fn n8_exit_statuses() {
    need_root!();
    let world = World::new();
    for (driver, command, args, expected) in [
        ("exec", "/bin/sh", r#"["-c", "exit 3"]"#, 3),
        ("raw_exec", "/bin/sh", r#"["-c", "exit 3"]"#, 3),
        ("raw_exec", "/bin/sh", r#"["-c", "kill -9 $$"]"#, 137),
        ("exec", "/bin/sh", r#"["-c", "sh -c 'kill -9 $$'; exit $?"]"#, 137),
        ("raw_exec", "/bin/sh", r#"["-c", "kill -TERM $$"]"#, 143),
        ("exec", "no-such-command", "[]", 127),
        ("raw_exec", "/no/such/command", "[]", 127),
        ("exec", "/etc/passwd", "[]", 126),
        ("raw_exec", "/etc/passwd", "[]", 126),
        ("exec", "/bin/true", "[]", 0),
        ("docker", "/bin/true", "[]", 125),
    ] {
        let job = batch(driver, command, args);
        let out = world.run_text(&job, &["--quiet"]);
        assert_eq!(out.status, expected, "{driver} {command} {args}: {out:?}");
        assert!(!(124..=128).contains(&expected) || out.stderr.lines().count() <= 6, "one or two mistakes: {out:?}");
    }
    world.assert_clean();
}

#[test]
fn n8_a_broken_file_is_refused_with_its_place() {
    let world = World::new();
    for (text, expected) in [
        ("job \"x\" {\n", ":1:"),
        (
            "job \"x\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"exec\"\n      drivr = 1\n    }\n  }\n}\n",
            ":5:",
        ),
        (
            "job \"x\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"exec\"\n      config {\n        comand = \"x\"\n      }\n    }\n  }\n}\n",
            ":6:",
        ),
        (
            "job \"x\" {\n  vault {}\n  group \"g\" {\n    task \"t\" {\n      driver = \"exec\"\n      config {\n        command = \"x\"\n      }\n    }\n  }\n}\n",
            ":2: vault",
        ),
    ] {
        let out = world.run_text(text, &[]);
        assert_eq!(out.status, 125, "{out:?}");
        assert!(out.stderr.contains(expected) && out.stdout.is_empty(), "{expected}: {out:?}");
    }
    let out = world.run(&["/no/such/file.hcl"]);
    assert!(out.status == 125 && out.stderr.contains("/no/such/file.hcl"), "{out:?}");
}

/// Byte for byte with one task, binary and without a last newline; prefixed lines with several.
#[test]
fn n8_output_is_passed_on_as_it_is() {
    let world = World::new();
    let job = batch("raw_exec", "/bin/sh", r#"["-c", "printf 'a\\000\\377b\\n\\nno newline'; printf err >&2"]"#);
    let out = world.run_raw(&job, &["--quiet"]);
    assert_eq!(out.status.code(), Some(0));
    assert_eq!(out.stdout, b"a\0\xffb\n\nno newline");
    assert_eq!(out.stderr, b"err");

    let two = "job \"x\" {\n type = \"batch\"\n group \"g\" {\n\
        task \"one\" {\n driver = \"raw_exec\"\n config {\n command = \"sh\"\n args = [\"-c\", \"printf 'a\\nb'\"]\n}\n}\n\
        task \"two\" {\n driver = \"raw_exec\"\n config {\n command = \"sh\"\n args = [\"-c\", \"echo c >&2\"]\n}\n}\n}\n}\n";
    let out = world.run_text(two, &["--quiet"]);
    assert_eq!((out.stdout.as_str(), out.stderr.as_str()), ("one | a\none | b\n", "two | c\n"), "{out:?}");
    world.assert_clean();
}

/// What a task without isolation does not inherit: Nomad's list without a configuration, that of `env.denylist` with one, and always
/// a cluster's token.
#[test]
fn n8_the_environments_denylist_is_the_configured_one() {
    let world = World::new();
    let file = world.file("job.hcl", &batch("raw_exec", "/usr/bin/env", "[]"));
    let denied = "client {\n options = {\n \"env.denylist\" = \"MINE, OTHER\"\n }\n}\n";
    let config = world.file("agent.hcl", denied);
    let names = ["MINE", "VAULT_TOKEN", "NOMAD_TOKEN", "KEPT"];
    for (args, inherited) in [
        (vec!["--quiet"], [true, false, false, true]),
        (vec!["--quiet", "--config", config.to_str().unwrap()], [false, true, false, true]),
    ] {
        let mut command = world.command(&args);
        let out: Out = command.envs(names.map(|name| (name, "x"))).arg(&file).output().unwrap().into();
        assert_eq!(out.status, 0, "{out:?}");
        let found = names.map(|name| out.stdout.lines().any(|line| line == format!("{name}=x")));
        assert_eq!(found, inherited, "{args:?}: {out:?}");
    }
    world.assert_clean();
}

/// The kernel lets a process that has an inotify instance end only after a grace period, and a user has few of them: executors tell
/// what they have written.
#[test]
fn n8_output_is_followed_without_inotify() {
    need_root!();
    let world = World::new();
    for driver in ["raw_exec", "exec"] {
        let script = r#"["-c", "trap 'echo last; exit 0' INT; echo first; while :; do sleep 0.1; done"]"#;
        let file = world.file("job.hcl", &batch(driver, "/bin/sh", script));
        let mut run = world.start(&["--quiet", file.to_str().unwrap()]);
        wait_for_text(&run.stdout, "first");
        let open = std::fs::read_dir(format!("/proc/{}/fd", run.child.id())).unwrap();
        let open: Vec<_> = open.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok()).collect();
        let none = !open.iter().any(|link| link.to_string_lossy().contains("inotify"));
        assert!(none && !open.is_empty(), "{driver}: {open:?}");
        signal(&run.child, "INT");
        let out = run.finish();
        assert_eq!((out.status, out.stdout.as_str()), (130, "first\nlast\n"), "{driver}: {out:?}");
    }
    world.assert_clean();
}

#[test]
fn n8_large_output_is_complete_across_rotation() {
    let world = World::new();
    let job = batch("raw_exec", "/bin/sh", r#"["-c", "seq 1 400000"]"#)
        .replace("config {", "logs {\n max_files = 2\n max_file_size = 1\n}\nconfig {");
    let out = world.run_text(&job, &["--quiet"]);
    let expected: String = (1..=400_000).map(|i| format!("{i}\n")).collect::<Vec<_>>().concat();
    assert!(out.stdout == expected, "{} of {} bytes", out.stdout.len(), expected.len());
}

#[test]
fn n8_json_is_one_object_per_event() {
    let world = World::new();
    let job = batch("raw_exec", "/bin/sh", r#"["-c", "echo out; echo err >&2; exit 4"]"#);
    let out = world.run_text(&job, &["-json"]);
    assert_eq!(out.status, 4);
    let events: Vec<serde_json::Value> = out.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    for event in &events {
        for key in ["type", "time", "task", "details"] {
            assert!(event.get(key).is_some(), "{key}: {event}");
        }
    }
    let kinds: Vec<&str> = events.iter().filter_map(|e| e["type"].as_str()).collect();
    for kind in ["Received", "Task Setup", "Started", "Terminated", "Not Restarting"] {
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
    let output = |stream: &str| {
        events.iter().filter(|e| e["stream"] == stream).filter_map(|e| e["data"].as_str()).collect::<String>()
    };
    assert_eq!((output("stdout"), output("stderr")), ("out\n".into(), "err\n".into()));
    let terminated = events.iter().find(|e| e["type"] == "Terminated").unwrap();
    assert_eq!(terminated["details"]["exit_code"], "4");
}

#[test]
fn n8_timeout_and_signals_stop_the_job() {
    let world = World::new();
    let stubborn =
        batch("raw_exec", "/bin/sh", r#"["-c", "trap '' INT TERM; echo ready; while :; do sleep 0.1; done"]"#)
            .replace("config {", "kill_timeout = \"60s\"\nconfig {");
    let before = Instant::now();
    let sleeping = batch("raw_exec", "/bin/sleep", r#"["100"]"#);
    let out = world.run_text(&sleeping, &["--quiet", "--timeout", "500ms"]);
    assert_eq!(out.status, 124, "{out:?}");
    assert!(before.elapsed() < seconds(50));

    for name in ["INT", "TERM"] {
        let args = r#"["-c", "trap 'echo asked; exit 7' INT; echo ready; while :; do sleep 0.1; done"]"#;
        let patient = batch("raw_exec", "/bin/sh", args).replace("config {", "kill_timeout = \"60s\"\nconfig {");
        let mut run = world.start_text(&patient);
        wait_for_text(&run.stdout, "ready");
        signal(&run.child, name);
        let out = run.finish();
        assert!(out.status == 7 && out.stdout == "ready\nasked\n", "{name}: {out:?}");
    }
    // The first is ignored by the task for a minute; the second kills it.
    let mut run = world.start_text(&stubborn);
    wait_for_text(&run.stdout, "ready");
    signal(&run.child, "INT");
    wait_for_text(&run.stderr, "Killing");
    let before = Instant::now();
    signal(&run.child, "INT");
    let out = run.finish();
    assert!(out.status == 137 && before.elapsed() < seconds(40), "{out:?}");
    world.assert_clean();
}

#[test]
fn n8_a_closed_stdout_does_not_stop_the_clean_up() {
    let world = World::new();
    let file = world.file("job.hcl", &batch("raw_exec", "/bin/sh", r#"["-c", "while echo y; do :; done"]"#));
    let mut child =
        world.command(&[file.to_str().unwrap()]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut first = [0; 4];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
    drop(child.stdout.take());
    signal(&child, "TERM");
    world::wait_within(&mut child, seconds(30));
    world.assert_clean();
}

/// restart, count, env, meta, user, templates, artifacts, runtime interpolation in one job.
#[test]
fn n8_blocks_do_what_they_say() {
    let world = World::new();
    let source = world.file("source.txt", "from the artifact\n");
    let job = format!(
        r#"
locals {{
  words = ["a", "b"]
}}
job "blocks" {{
  type = "batch"
  meta {{
    color = "red"
  }}
  group "g" {{
    count = 2
    restart {{
      attempts = 1
      delay    = "10ms"
      interval = "1h"
      mode     = "fail"
    }}
    task "t" {{
      driver = "raw_exec"
      artifact {{
        source      = "{source}"
        destination = "local/"
      }}
      template {{
        destination = "local/rendered"
        perms       = "600"
        data        = "user {{{{ env \"NOMAD_META_color\" }}}}\n"
      }}
      template {{
        destination = "secrets/env"
        env         = true
        data        = "FROM_TEMPLATE=yes\n"
      }}
      env {{
        INDEX = "${{NOMAD_ALLOC_INDEX}}"
        UP    = upper(join("-", local.words))
      }}
      config {{
        command = "/bin/sh"
        args    = ["-c", "echo $INDEX $UP $FROM_TEMPLATE $NOMAD_META_COLOR $(cat local/source.txt) $(cat local/rendered) $(stat -c %a local/rendered); exit 9"]
      }}
    }}
  }}
}}"#,
        source = source.display()
    );
    let out = world.run_text(&job, &[]);
    assert_eq!(out.status, 9, "{out:?}");
    let said = |index: u32| {
        let line = format!("{index} A-B yes red from the artifact user red 600");
        out.stdout.lines().filter(|l| l.ends_with(&line)).count()
    };
    assert_eq!((said(0), said(1)), (2, 2), "each allocation runs twice: {out:?}");
    let events = |kind: &str| out.stderr.lines().filter(|l| l.contains(kind)).count();
    assert_eq!((events(": Restarting: "), events(": Not Restarting: ")), (2, 2), "{out:?}");
    world.assert_clean();
}

/// B8: accepted, warned about, without effect.
#[test]
fn b8_iops_is_accepted_with_a_warning() {
    let world = World::new();
    let job = batch("raw_exec", "/bin/true", "[]").replace("config {", "resources {\n iops = 5\n}\nconfig {");
    let out = world.run_text(&job, &[]);
    assert!(out.status == 0 && out.stderr.contains("iops"), "{out:?}");
}

/// A1: the file that tasks are started from may be replaced or deleted while they run.
#[test]
fn a1_own_executable_is_opened_once() {
    let world = World::new();
    let copy = world.path("copy-of-agentbin");
    copy_program(Path::new(env!("CARGO_BIN_EXE_agentbin")), &copy);
    let flag = world.path("go-on");
    let job = format!(
        "job \"x\" {{\n type = \"batch\"\n group \"g\" {{\n\
        task \"first\" {{\n lifecycle {{\n hook = \"prestart\"\n}}\n driver = \"raw_exec\"\n config {{\n command = \"sh\"\n args = [\"-c\", \"echo ready; until test -e {0}; do sleep 0.05; done\"]\n}}\n}}\n\
        task \"main\" {{\n driver = \"raw_exec\"\n config {{\n command = \"echo\"\n args = [\"still here\"]\n}}\n}}\n}}\n}}\n",
        flag.display()
    );
    let file = world.file("job.hcl", &job);
    let mut run = world.start_program(&copy, &["--quiet", file.to_str().unwrap()]);
    wait_for_text(&run.stdout, "ready");
    std::fs::remove_file(&copy).unwrap();
    std::fs::write(&copy, "#!/bin/sh\necho not me\n").unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(&flag, "").unwrap();
    let out = run.finish();
    assert!(out.status == 0 && out.stdout.contains("main | still here"), "{out:?}");
}

/// A2: a program that embeds agentbin runs its task in the executor that it was compiled with.
#[test]
fn a2_an_embedding_program_runs_a_task() {
    need_root!();
    let example = Path::new(env!("CARGO_BIN_EXE_agentbin")).with_file_name("examples").join("embedded_task");
    if !example.exists() {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{} is missing", example.display());
        println!("SKIP: a2_an_embedding_program_runs_a_task: the example is not built: cargo build --examples");
        return;
    }
    // Nothing else of ours can be found from here.
    let mut command = Command::new(example);
    command.args(["/bin/sh", "-c", "id -un; echo $$ >&2; exit 3"]).env_clear().current_dir("/");
    let out = command.output().unwrap();
    let text = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!((out.status.code(), text.0.as_ref(), text.1.as_ref()), (Some(3), "nobody\n", "1\n"), "{out:?}");
}

/// A1: by hand every role explains itself on stderr, says nothing on stdout and ends with 1; by symlink, too, whatever
/// argv[0] says.
#[test]
fn a1_roles_by_hand_explain_themselves() {
    let world = World::new();
    let binary = env!("CARGO_BIN_EXE_agentbin");
    let log = world.path("executor.log");
    let config = format!("{{\"LogFile\":{log:?}}}");
    for role in ["executor", "libcontainer-shim", "logmon"] {
        let link = world.path(role);
        std::os::unix::fs::symlink(binary, &link).unwrap();
        let mut by_name = Command::new(binary);
        by_name.arg(role);
        let mut by_link = Command::new(&link);
        std::os::unix::process::CommandExt::arg0(&mut by_link, "innocent");
        for mut command in [by_name, by_link] {
            if role == "executor" {
                command.arg(&config);
            }
            let out = command.env_remove("NOMAD_PLUGIN_MAGIC_COOKIE").stdin(Stdio::null()).output().unwrap();
            assert_eq!(out.status.code(), Some(1), "{role}: {out:?}");
            let stderr = String::from_utf8(out.stderr).unwrap();
            assert!(out.stdout.is_empty() && stderr.starts_with(&format!("{role}: ")), "{role}: {stderr}");
        }
    }
}

/// On a machine with two cores only one can be reserved at a time.
static CORES: Mutex<()> = Mutex::new(());

/// One task has a core for itself; the other is sent off it, also when it ran before.
#[test]
fn c3_a_reserved_core_is_nobody_elses() {
    need_root!();
    let cores = std::thread::available_parallelism().unwrap().get();
    if cores < 2 {
        println!("SKIP: c3_a_reserved_core_is_nobody_elses: one core");
        return;
    }
    let _cores = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let world = World::new();
    let task = |name: &str, driver: &str, resources: &str, script: &str| {
        let list = "list() { sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status; }; ";
        let script = format!("{list}{script}");
        format!(
            "task \"{name}\" {{\ndriver = \"{driver}\"\nconfig {{\ncommand = \"/bin/sh\"\nargs = [\"-c\", {script:?}]\n}}\n\
             resources {{\nmemory = 32\n{resources}\n}}\n}}\n"
        )
    };
    let done = "until [ -e $NOMAD_ALLOC_DIR/data/done ]; do sleep 0.05; done";
    let own = format!("echo own $NOMAD_CPU_CORES $(list) $NOMAD_CPU_LIMIT; {done}");
    let other = format!(
        "while [ \"$(list)\" = 0-{} ]; do sleep 0.05; done; \
         echo other $(list); touch $NOMAD_ALLOC_DIR/data/done",
        cores - 1
    );
    for driver in ["exec", "raw_exec"] {
        let tasks = task("other", driver, "cpu = 100", &other) + &task("own", driver, "cores = 1", &own);
        let out =
            world.run_text(&format!("job \"j\" {{\ntype = \"batch\"\ngroup \"g\" {{\n{tasks}}}\n}}\n"), &["--quiet"]);
        assert_eq!(out.status, 0, "{out:?}");
        let words = |task: &str| -> Vec<String> {
            let line = out.stdout.lines().find_map(|line| line.split_once(&format!("| {task} ")).map(|(_, rest)| rest));
            line.unwrap_or_else(|| panic!("{out:?}")).split_whitespace().map(str::to_owned).collect()
        };
        let [own, seen, mhz] = <[String; 3]>::try_from(words("own")).unwrap();
        assert_eq!(own, seen, "{out:?}");
        assert!(own.parse::<u32>().is_ok() && mhz.parse::<u64>().unwrap() > 0, "{out:?}");
        let cores = words("other").remove(0).parse::<agentbin::spec::CpuSet>().unwrap();
        assert!(!own.parse::<agentbin::spec::CpuSet>().unwrap().is_within(&cores), "{out:?}");
    }
    world.assert_clean();
    let too_many =
        batch("exec", "/bin/true", "[]").replace("config {", &format!("resources {{\ncores = {cores}\n}}\nconfig {{"));
    let out = world.run_text(&too_many, &["--quiet"]);
    assert!(out.status != 0 && out.stderr.contains(&format!("cannot reserve {cores} cores: ")), "{out:?}");
    world.assert_clean();
}

/// A task that waits for its restart keeps its cores: the one that shares sees the same before and after, and meanwhile. The
/// first run leaves a process behind that is killed.
#[test]
fn c3_a_restart_keeps_its_cores() {
    need_root!();
    let cores = std::thread::available_parallelism().unwrap().get();
    if cores < 2 {
        println!("SKIP: c3_a_restart_keeps_its_cores: one core");
        return;
    }
    let _cores = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let world = World::new();
    let list =
        "list() { sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status; }; cd $NOMAD_ALLOC_DIR/data; ";
    // The other looks until the second run is over: any moment without the reservation would be a second line.
    let own = "echo own $(list) $NOMAD_CPU_CORES; if [ ! -e first ]; then until [ -e seen ]; do sleep 0.02; done; \
               touch first; setsid sleep 1000 & exit 1; fi; touch done; until [ -e over ]; do sleep 0.02; done";
    let other = format!(
        "while now=$(list); [ $now = 0-{} ]; do sleep 0.02; done; touch seen; echo other $now; \
         until [ -e done ]; do [ $(list) = $now ] || echo other $(list); sleep 0.01; done; touch over",
        cores - 1
    );
    let task = |name: &str, resources: &str, script: &str| {
        let script = format!("{list}{script}");
        format!(
            "task \"{name}\" {{\ndriver = \"raw_exec\"\nconfig {{\ncommand = \"/bin/sh\"\nargs = [\"-c\", {script:?}]\n}}\n\
             resources {{\nmemory = 32\n{resources}\n}}\nrestart {{\nattempts = 1\ndelay = \"1s\"\nmode = \"fail\"\n}}\n}}\n"
        )
    };
    let tasks = task("other", "cpu = 100", &other) + &task("own", "cores = 1", own);
    let out = world.run_text(&format!("job \"j\" {{\ntype = \"batch\"\ngroup \"g\" {{\n{tasks}}}\n}}\n"), &["--quiet"]);
    assert_eq!(out.status, 0, "{out:?}");
    let lines = |of: &str| out.stdout.lines().filter(|line| line.contains(of)).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines("| other").len(), 1, "{out:?}");
    let own = lines("| own");
    assert!(own.len() == 2 && own[0] == own[1], "{out:?}");
    world.assert_clean();
}

/// A full disk is told; that a reader of the output has left, as `head` does, is not.
#[test]
fn r12_output_that_cannot_be_written_stops_the_job_and_is_told() {
    let world = World::new();
    let file = world.file("job.nomad.hcl", &batch("raw_exec", "/bin/sh", "[\"-c\", \"echo x; exec sleep 1000\"]"));
    let mut command = world.command(&["--quiet", file.to_str().unwrap()]);
    command.stdout(std::fs::File::options().write(true).open("/dev/full").unwrap()).stderr(Stdio::piped());
    let out: world::Out = command.spawn().unwrap().wait_with_output().unwrap().into();
    assert!(out.status != 0, "{out:?}");
    assert!(out.stderr.contains("cannot be written to stdout: No space left on device"), "{out:?}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = world.command(&["--quiet", file.to_str().unwrap()]);
    let out: world::Out =
        command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap().into();
    assert!(out.status != 0 && out.stderr.is_empty(), "{out:?}");
    world.assert_clean();
}

/// A program that a template or an artifact puts into the task's directory belongs to root as the allocation knows it.
#[test]
fn n6_a_strict_task_executes_what_its_directory_holds() {
    need_root!();
    let world = World::new();
    for user in ["nobody", "root"] {
        let job = batch("exec", "local/app", "[\"in\"]").replace(
            "config {",
            &format!(
                "user = \"{user}\"\n      template {{\n        destination = \"local/app\"\n        perms = \"755\"\n        \
                 data = \"#!/bin/sh\\necho ran $1 $(id -u)\\n\"\n      }}\n      config {{\n        isolation = \"strict\""
            ),
        );
        let output = world.run_text(&job, &["--quiet"]);
        let id = if user == "root" { 0 } else { 65534 };
        assert_eq!(output.stdout, format!("ran in {id}\n"), "{output:?}");
    }
}

/// The stranger is another user of the machine who knows every name.
#[test]
fn b14_a_stranger_gets_nothing_of_an_allocation() {
    need_root!();
    let world = World::new();
    let script = "echo secret; id -u; pwd; cd $NOMAD_TASK_DIR && cp /bin/sh tool && chmod 4755 tool && \
                  echo secret > file && ls && sleep 1000";
    // A root in a jail sets that bit when the job asks for the capability.
    for (driver, user, more) in
        [("exec", "root", "cap_add = [\"fsetid\"]"), ("raw_exec", "root", ""), ("raw_exec", "nobody", "")]
    {
        let job = batch(driver, "/bin/sh", &format!("[\"-c\", {script:?}]"))
            .replace("config {", &format!("user = \"{user}\"\nconfig {{\n{more}"));
        let mut running = world.start_text(&job);
        wait_for_text(&running.stdout, "tool\n");
        let allocs = world.data_dir().join("alloc");
        let alloc = std::fs::read_dir(&allocs).unwrap().map(|e| e.unwrap().path()).find(|path| path.is_dir()).unwrap();
        let stranger = |args: &[&str]| {
            let mut command = Command::new(args[0]);
            command.args(&args[1..]).uid(world::plain_user(7)).gid(world::plain_user(7)).current_dir("/");
            // One that may not even be executed has no output.
            command.stdin(Stdio::null()).output().ok()
        };
        let path = |below: &str| alloc.join(below).to_str().unwrap().to_owned();
        for command in [
            &["ls", allocs.to_str().unwrap()][..],
            &["ls", &path("")],
            &["cat", &path("t-executor.out")],
            &["cat", alloc.with_extension("json").to_str().unwrap()],
        ] {
            let out = stranger(command).unwrap();
            assert!(!out.status.success() && out.stdout.is_empty(), "{driver}: {command:?}: {out:?}");
        }
        for command in [
            &["cat", &path("alloc/logs/t.stdout.0")][..],
            &["cat", &path("t/local/file")],
            &[&path("t/local/tool"), "-c", "id -u"],
        ] {
            let reached = stranger(command).is_some_and(|out| out.status.success());
            assert!(!reached, "{driver} as {user}: {command:?}");
        }
        signal(&running.child, "SIGINT");
        running.finish();
        world.assert_clean();
    }
}

/// The same without root: `raw_exec` plainly, exec through a user namespace.
#[test]
fn n8_a_plain_user_runs_both_drivers() {
    need_root!();
    let world = World::new();
    for (driver, expected) in [("raw_exec", "12345 12345"), ("exec", "65534 65534")] {
        let job = batch(
            driver,
            "/bin/sh",
            r#"["-c", "echo $(id -u) $(id -g); touch $NOMAD_TASK_DIR/x $NOMAD_ALLOC_DIR/data/y && echo written; exit 6"]"#,
        );
        let out = world.run_as(12345, &job, &["--quiet"]);
        assert_eq!(out.status, 6, "{driver}: {out:?}");
        assert!(out.stdout.starts_with(&format!("{expected}\nwritten\n")), "{driver}: {out:?}");
    }
    world.assert_clean();
}

/// Nothing that the job asks for is ignored in silence.
#[test]
fn n8_limits_that_cannot_be_had_are_told() {
    need_root!();
    let world = World::new();
    let out = world.run_as(12345, &batch("raw_exec", "/bin/true", "[]"), &[]);
    assert!(
        out.status == 0 && out.stderr.contains("warning: you are not root, so that memory and cpu limits"),
        "{out:?}"
    );
    let out = world.run_text(&batch("raw_exec", "/bin/true", "[]"), &[]);
    assert!(out.status == 0 && !out.stderr.contains("warning"), "{out:?}");
}

/// The machine is made to forbid user namespaces: inside one of our own, which has a limit of its own.
#[test]
fn n8_a_plain_user_hears_what_is_missing() {
    need_root!();
    let world = World::new();
    let file = world.file("job.nomad.hcl", &batch("exec", "/bin/true", "[]"));
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    let out = Command::new("unshare")
        .args(["--user", "--map-user=12345", "--map-group=12345", "--keep-caps", "sh", "-c", script, "sh"])
        .args([env!("CARGO_BIN_EXE_agentbin"), "run", "--quiet"])
        .arg(&file)
        .env("HOME", world.path(""))
        .env("XDG_RUNTIME_DIR", world.path(""))
        .env_remove("XDG_STATE_HOME")
        .output()
        .unwrap();
    let stderr = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(125), "{stderr}");
    assert!(stderr.contains("user.max_user_namespaces") && stderr.lines().count() == 1, "{stderr}");
    world.assert_clean();
}

/// N5: after a kill -9 of `run` itself, gc finds its tasks, cgroups and mounts, shows them, removes them.
#[test]
fn n5_gc_cleans_up_after_a_killed_run() {
    need_root!();
    let world = World::new();
    for driver in ["exec", "raw_exec"] {
        let mut run = world.start_text(&batch(driver, "/bin/sh", r#"["-c", "echo ready; sleep 1000 & sleep 1000"]"#));
        wait_for_text(&run.stdout, "ready");
        signal(&run.child, "KILL");
        run.finish();
        let shown = world.agentbin(&["gc", "--dry-run"]);
        assert_eq!(shown.status, 0, "{shown:?}");
        assert!(!(shown.stdout + &shown.stderr).is_empty(), "{driver}: nothing was found");
        assert!(world.allocations() == 1, "a dry run removes nothing");
        let gc = world.agentbin(&["gc"]);
        assert_eq!(gc.status, 0, "{gc:?}");
        world.assert_clean();
        // A second one has nothing to do.
        let again = world.agentbin(&["gc", "--dry-run"]);
        assert_eq!((again.status, world.allocations()), (0, 0), "{again:?}");
    }
    assert!(Path::new("/proc/self").exists());
}

#[test]
fn program_tells_version_and_completion() {
    let world = World::new();
    let version = world.agentbin(&["version"]);
    assert!(version.status == 0 && version.stdout.contains(env!("CARGO_PKG_VERSION")), "{version:?}");
    for shell in ["bash", "zsh", "fish"] {
        let script = world.agentbin(&["completion", shell]);
        assert!(script.status == 0 && script.stdout.contains("agentbin"), "{script:?}");
    }
    let unknown = world.agentbin(&["no-such-command"]);
    assert!(unknown.status != 0 && unknown.stderr.contains("no-such-command"), "{unknown:?}");
}

/// A job of one task that prints a line, with a constraint of the job, of the group and of the task.
fn constrained(of_job: &str, of_group: &str, of_task: &str) -> String {
    let block = |inside: &str| if inside.is_empty() { String::new() } else { format!("constraint {{\n{inside}\n}}\n") };
    format!(
        "job \"c\" {{\ntype = \"batch\"\n{}group \"g\" {{\n{}task \"t\" {{\ndriver = \"raw_exec\"\n{}config {{\ncommand = \"/bin/sh\"\n\
         args = [\"-c\", \"echo ran on ${{attr.kernel.name}} with ${{attr.driver.raw_exec}}\"]\n}}\n}}\n}}\n}}\n",
        block(of_job),
        block(of_group),
        block(of_task)
    )
}

/// J2: a job runs where its constraints are met.
#[test]
fn j2_a_job_runs_where_its_constraints_are_met() {
    need_root!();
    let world = World::new();
    let is = |attribute: &str, operator: &str, value: &str| {
        format!("attribute = \"${{{attribute}}}\"\noperator = \"{operator}\"\nvalue = \"{value}\"")
    };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    for (of_job, of_group, of_task) in [
        (
            is("attr.kernel.name", "=", "linux"),
            is("attr.cpu.numcores", ">=", "1"),
            is("attr.driver.raw_exec", "is", "1"),
        ),
        (
            is("attr.kernel.version", "semver", ">= 4.0"),
            "distinct_hosts = true".to_owned(),
            is("attr.os.signals", "set_contains", "SIGTERM,SIGHUP"),
        ),
        (
            is("attr.nomad.version", "version", ">= 1.4.0, ~> 1.4"),
            is("attr.kernel.version", "regexp", &format!("^{}", &kernel[..1])),
            "attribute = attr.consul.version\noperator = \"is_not_set\"".to_owned(),
        ),
        (
            is("meta.rack", "!=", "r1"),
            is("node.class", "!=", "gpu"),
            is("attr.unique.storage.bytesfree", ">", "1048576"),
        ),
    ] {
        let out = world.run_text(&constrained(&of_job, &of_group, &of_task), &["--quiet"]);
        assert_eq!((out.status, out.stdout.as_str()), (0, "ran on linux with 1\n"), "{out:?}");
    }
    world.assert_clean();
}

/// J2: what is not met is refused before anything starts, all at once, with what was wanted and found; `validate` warns of it,
/// and makes nothing.
#[test]
fn j2_constraints_that_are_not_met_are_refused_all_at_once() {
    need_root!();
    let world = World::new();
    let job = constrained(
        "attribute = \"${attr.kernel.name}\"\nvalue = \"windows\"",
        "attribute = \"${meta.rack}\"\noperator = \"is_set\"",
        "attribute = \"${attr.driver.podman.version}\"\noperator = \"version\"\nvalue = \"> 1\"",
    );
    let file = world.file("c.nomad.hcl", &job);
    let name = file.to_str().unwrap();
    let fix = "run the job where that is so, or remove the constraint";
    let without = "agentbin run has no class of the node, and the meta of a --config file; write it there, or \
         remove the constraint";
    let expected = [
        format!(
            "{name}:3: constraint in job \"c\" is not met: it wants ${{attr.kernel.name}} = \"windows\", and this machine has \"linux\"; {fix}"
        ),
        format!(
            "{name}:8: constraint in group \"g\" is not met: it wants ${{meta.rack}} is_set, and this machine has none; {without}"
        ),
        format!(
            "{name}:14: constraint in task \"t\" is not met: it wants ${{attr.driver.podman.version}} version \"> 1\", and this machine \
             has none; {fix}"
        ),
    ];
    let out = world.run(&[name]);
    assert_eq!((out.status, out.stdout.as_str()), (125, ""), "{out:?}");
    // Each is followed by its line, with a caret below.
    let told: Vec<&str> = out.stderr.lines().filter(|line| line.contains(": constraint in ")).collect();
    assert_eq!(told.join("\n"), format!("agentbin: {}", expected.join("\n")), "{out:?}");
    assert_eq!(out.stderr.lines().count(), 3 * 5, "{out:?}");
    let validate = |args: &[&str]| world.agentbin(&[&["validate"], args, &[name]].concat());
    let out = validate(&[]);
    assert!(out.status == 0 && out.stdout.ends_with("agentbin run would refuse it: see the warnings\n"), "{out:?}");
    assert!(expected.iter().all(|line| out.stderr.contains(&format!("agentbin: warning: {line}\n"))), "{out:?}");
    assert_eq!(validate(&["--strict"]).status, 1);
    let json: serde_json::Value = serde_json::from_str(&validate(&["--json"]).stdout).unwrap();
    assert_eq!((&json["valid"], &json["runnable"]), (&true.into(), &false.into()), "{json}");
    assert_eq!(
        (json["refusals"].as_array().map(Vec::len), &json["refusals"][1]["line"]),
        (Some(3), &8.into()),
        "{json}"
    );

    let apart = constrained("", "distinct_hosts = true", "").replace("group \"g\" {", "group \"g\" {\ncount = 2");
    let out = world.run_text(&apart, &[]);
    assert!(
        out.status == 125 && out.stderr.contains("each of 2 instances, and there is only this one; lower count"),
        "{out:?}"
    );
    let wrong = constrained("attribute = \"${attr.x}\"\nversion = \"latest\"", "", "");
    let out = world.run_text(&wrong, &[]);
    assert!(out.status == 125 && out.stderr.contains(":5: \"latest\" compares with no version"), "{out:?}");
    world.assert_clean();
}

/// J3: what a task on the host's network hears of its ports, and that a port belongs to one run of the machine.
#[test]
fn j3_a_port_belongs_to_one_run_and_tells_a_task_where_to_listen() {
    need_root!();
    let world = World::new();
    // Neither a dynamic port of a job, nor one that the kernel gives to whoever names none.
    let first = 10_000 + u16::try_from(std::process::id() % 8000).unwrap();
    let port = (first..20_000).find(|port| std::net::TcpListener::bind(("0.0.0.0", *port)).is_ok()).unwrap();
    let script =
        "tr '\\\\0' '\\\\n' < /proc/$$/environ | grep -E '^NOMAD_[A-Z_]*_(web|adm.in)='; echo end; exec sleep 1000";
    let text = |data: &str| {
        let text = format!(
            "job \"{data}\" {{\n type = \"batch\"\n group \"g\" {{\n network {{\n port \"web\" {{\n static = {port}\n to = 80\n }}\n \
             port \"adm-in\" {{\n host_network = \"loopback\"\n }}\n }}\n task \"t\" {{\n driver = \"raw_exec\"\n \
             kill_signal = \"SIGTERM\"\n config {{\n command = \"/bin/sh\"\n args = [\"-c\", \"{script}\"]\n }}\n }}\n }}\n}}\n"
        );
        world.file(&format!("{data}.nomad.hcl"), &text).display().to_string()
    };
    let (one, other) = (text("one"), text("other"));
    let mut run = world.start(&[&one]);
    wait_for_text(&run.stdout, "end\n");
    wait_for_text(
        &run.stderr,
        &format!("Port \"web\" is {port} (NOMAD_HOST_PORT_web), and the task has to listen there"),
    );
    let said = String::from_utf8_lossy(&run.stdout.lock().unwrap()).into_owned();
    let value = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("{name}: {said}")).to_owned()
    };
    assert_eq!((value("NOMAD_PORT_web"), value("NOMAD_ALLOC_PORT_web")), ("80".to_owned(), "80".to_owned()));
    assert_eq!(value("NOMAD_HOST_PORT_web"), port.to_string());
    assert_eq!(value("NOMAD_ADDR_web"), format!("{}:{port}", value("NOMAD_IP_web")));
    assert_eq!(value("NOMAD_ADDR_adm_in"), format!("127.0.0.1:{}", value("NOMAD_PORT_adm_in")));
    // The names that a shell cannot have are there, too, as with Nomad.
    assert_eq!(value("NOMAD_HOST_IP_adm-in"), "127.0.0.1");

    // Another data directory is the same machine; nobody listens, and the port is taken all the same.
    let data = world.path("other-data").display().to_string();
    let again = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentbin"));
        command.args(["run", "--data-dir", &data, "--timeout", "60s", &other]).stdin(Stdio::null());
        command
    };
    let refused = || -> world::Out { again().output().unwrap().into() };
    let out = refused();
    let holder = "job \"one\", group \"g\" has it (allocation ";
    assert!(
        out.status == 125 && out.stderr.contains(&format!("port \"web\": {port} is not free: {holder}")),
        "{out:?}"
    );
    assert!(out.stderr.contains(&format!("agentbin with pid {})", run.child.id())), "{out:?}");

    // What a run had that was killed is free.
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    let mut next = World::start_command(again());
    wait_for_text(&next.stdout, "end\n");
    signal(&next.child, "SIGTERM");
    let out = next.finish();
    assert_eq!(out.status, 143, "{out:?}");

    // Whoever listens without a registry is named.
    let node_address = value("NOMAD_IP_web");
    let listener = std::net::TcpListener::bind((node_address.as_str(), port)).unwrap();
    let out = refused();
    let who = format!("{port} is not free: ");
    let named = format!("(pid {}) listens there", std::process::id());
    assert!(out.status == 125 && out.stderr.contains(&who) && out.stderr.contains(&named), "{out:?}");
    drop(listener);
    world.agentbin(&["gc"]);
    world.assert_clean();
}

/// J7: a parameterized job gets what `nomad job dispatch` would give it, and says which flag is missing.
#[test]
fn j7_a_parameterized_job_is_given_payload_and_metadata() {
    need_root!();
    let world = World::new();
    let job = |driver: &str| {
        format!(
            "job \"greet\" {{\n type = \"batch\"\n parameterized {{\n payload = \"required\"\n meta_required = [\"who\"]\n \
             meta_optional = [\"how\"]\n }}\n meta {{\n how = \"quietly\"\n }}\n group \"g\" {{\n task \"t\" {{\n \
             driver = \"{driver}\"\n dispatch_payload {{\n file = \"in/data\"\n }}\n config {{\n command = \"/bin/sh\"\n \
             args = [\"-c\", \"cksum < $NOMAD_TASK_DIR/in/data; echo $NOMAD_META_who $NOMAD_META_HOW\"]\n }}\n }}\n }}\n}}\n"
        )
    };
    // Bytes, not text.
    let payload = world.path("payload");
    std::fs::write(&payload, [0, 255, b'\n', b'x']).unwrap();
    let given = ["--quiet", "--payload", payload.to_str().unwrap(), "-meta", "who=you"];
    let expected =
        String::from_utf8(Command::new("cksum").stdin(std::fs::File::open(&payload).unwrap()).output().unwrap().stdout);
    for driver in ["exec", "raw_exec"] {
        let out = world.run_text(&job(driver), &given);
        assert_eq!((out.status, &*out.stderr), (0, ""), "{out:?}");
        assert_eq!(out.stdout, format!("{}you quietly\n", expected.as_ref().unwrap()), "{driver}");
    }
    let out = world.run_text(&job("exec"), &["--dry-run", "--payload", payload.to_str().unwrap(), "--meta=who=x"]);
    assert!(out.status == 0 && out.stdout.contains("the payload") && out.stdout.contains("local/in/data"), "{out:?}");
    let long = world.file("long", &"x".repeat(16_385));
    for (args, told) in [
        (&["--meta", "who=you"][..], "the job needs a payload; give --payload FILE to agentbin run"),
        (&["--payload", "/etc/passwd"], "the job needs metadata; give --meta who=VALUE to agentbin run"),
        (&["--payload", "/no/such/file"], "cannot read --payload /no/such/file: No such file or directory"),
        (&["--payload", "/dev/zero", "--meta", "who=x"], "cannot read --payload /dev/zero: "),
        (
            &["--payload", long.to_str().unwrap(), "--meta", "who=x"],
            "--payload has more than 16384 bytes; make it shorter",
        ),
        (&["--payload", "/etc/passwd", "--meta", "who=x", "--meta", "hew=y"], "did you mean \"how\"?"),
    ] {
        let out = world.run_text(&job("exec"), args);
        assert!(out.status == 125 && out.stdout.is_empty() && out.stderr.contains(told), "{args:?}: {out:?}");
    }
    let plain = batch("exec", "/bin/true", "[]");
    let out = world.run_text(&plain, &["--meta", "a=b"]);
    assert!(out.status == 125 && out.stderr.contains("a job with a parameterized block"), "{out:?}");
    let file = world.file("job.nomad.hcl", &job("exec"));
    let out = world.agentbin(&["validate", file.to_str().unwrap()]);
    assert!(out.status == 0 && out.stderr.contains("the job needs a payload; give --payload FILE"), "{out:?}");
    world.assert_clean();
}
