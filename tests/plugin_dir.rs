//! `run --plugin-dir`: driver plugins of others run tasks of job files (A4, A8, P3). The plugin is the example of a driver, whose
//! executors are its own program; Nomad's `raw_exec` is in `tests/interop_plugin_dir.rs`.

#[path = "support/plugin_dir.rs"]
mod plugin_dir;
#[path = "support/world.rs"]
mod world;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use plugin_dir::{command, go, kill_plugin, pid, plugins, processes, waiting};
use serde_json::Value as Json;
use world::{Out, World, need_root, wait_for_text};

const AGENTBIN: &str = env!("CARGO_BIN_EXE_agentbin");

/// The example, as a plugin of a directory.
fn script(world: &World) -> Option<PathBuf> {
    let example = Path::new(AGENTBIN).with_file_name("examples").join("external_driver");
    if !example.exists() {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{} is missing", example.display());
        println!("SKIP: plugin_dir: the example is not built: cargo build --examples");
        return None;
    }
    Some(plugins(world, "nomad-driver-script", &example))
}

macro_rules! need_script {
    ($world:expr) => {
        match script($world) {
            Some(dir) => dir,
            None => return,
        }
    };
}

fn job(text: &str, more: &str) -> String {
    format!(
        "job \"j\" {{\n  type = \"batch\"\n  {more}\n  group \"g\" {{\n    task \"t\" {{\n      driver = \"script\"\n      config {{\n        \
         text = \"{text}\"\n      }}\n    }}\n  }}\n}}\n"
    )
}

fn arg(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[test]
fn a4_a_plugin_of_a_directory_is_configured_and_runs_tasks() {
    need_root!();
    let world = World::new();
    let dir = need_script!(&world);
    let config =
        world.file("c.hcl", "plugin \"nomad-driver-script\" {\n  config {\n    interpreter = \"/bin/bash\"\n  }\n}\n");
    let (dir_arg, config_arg) = (arg(&dir), arg(&config));
    let args = ["--plugin-dir", &dir_arg, "--config", &config_arg];
    let text = job("echo in $${BASH_VERSION%%.*} $NOMAD_TASK_NAME; id -un; echo wrong >&2; exit 4", "");
    let out = world.run_text(&text, &args);
    assert_eq!(out.status, 4, "{out:?}");
    assert!(out.stdout.starts_with("in ") && out.stdout.ends_with(" t\nnobody\n"), "{out:?}");
    assert!(out.stderr.contains("wrong\n"), "{out:?}");
    assert!(processes(&dir).is_empty());
    world.assert_clean();

    // The directory may stand in the configuration; the command line has no more to say then.
    let both = format!(
        "plugin_dir = \"{dir_arg}\"\nplugin \"script\" {{\n  config {{\n    interpreter = \"/bin/sh\"\n  }}\n}}\n"
    );
    let both = arg(&world.file("both.hcl", &both));
    let out = world.run_text(&job("echo plain", ""), &["--config", &both]);
    assert_eq!((out.status, out.stdout.as_str()), (0, "plain\n"), "{out:?}");
    world.assert_clean();
}

#[test]
fn a4_constraints_and_mistakes_are_found_before_anything_starts() {
    need_root!();
    let world = World::new();
    let dir = need_script!(&world);
    let dir_arg = arg(&dir);
    let want = |value: &str| {
        let constraint = format!(
            "constraint {{\n    attribute = \"$${{attr.driver.script.interpreter}}\"\n    value = \"{value}\"\n  }}"
        );
        job("echo ok", &constraint.replace("$$", "$"))
    };
    let validate = |text: &str, args: &[&str]| -> Json {
        let file = arg(&world.file("v.nomad.hcl", text));
        let out: Out = world.agentbin(&[&["validate", "--json", file.as_str()], args].concat());
        serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
    };
    let with = ["--plugin-dir", dir_arg.as_str()];
    assert_eq!(validate(&want("/bin/sh"), &with)["runnable"], true);
    assert_eq!(validate(&want("/bin/zsh"), &with)["runnable"], false);
    assert_eq!(validate(&want("/bin/sh"), &[])["runnable"], false);
    let wrong = job("x", "").replace("text =", "txt =");
    let said = validate(&wrong, &with);
    assert!(said["refusals"].to_string().contains("txt"), "{said}");
    let out = world.run_text(&want("/bin/sh"), &with);
    assert_eq!((out.status, out.stdout.as_str()), (0, "ok\n"), "{out:?}");

    for (text, args, wanted) in [
        (wrong.clone(), vec!["--plugin-dir", dir_arg.as_str()], "txt"),
        (job("x", ""), vec![], "unknown driver \"script\""),
        (job("x", ""), vec!["--plugin-dir", "/no/such/directory"], "/no/such/directory"),
        (
            job("x", ""),
            vec!["--plugin-dir", dir_arg.as_str(), "--isolation-minimum", "default"],
            "--allow-driver script",
        ),
    ] {
        let out = world.run_text(&text, &args);
        assert_eq!(out.status, 125, "{args:?} {out:?}");
        assert!(out.stderr.contains(wanted), "{wanted:?}: {out:?}");
    }
    let dry = world.run_text(&wrong, &["--dry-run", "--plugin-dir", &dir_arg]);
    assert!(dry.status == 125 && dry.stderr.contains("txt"), "{dry:?}");
    let config =
        arg(&world.file("c.hcl", "\nplugin \"script\" {\n  config {\n    interpreteur = \"/bin/sh\"\n  }\n}\n"));
    let out = world.run_text(&job("x", ""), &["--plugin-dir", &dir_arg, "--config", &config]);
    assert!(out.status == 125 && out.stderr.contains("c.hcl:4") && out.stderr.contains("interpreteur"), "{out:?}");
    let config = arg(&world.file("c.hcl", "plugin \"nobody\" {\n}\n"));
    let out = world.run_text(&job("x", ""), &["--plugin-dir", &dir_arg, "--config", &config]);
    assert!(out.status == 125 && out.stderr.contains("c.hcl:1") && out.stderr.contains("nobody"), "{out:?}");
    assert!(processes(&dir).is_empty());
    world.assert_clean();
}

#[test]
fn a4_what_others_may_have_put_there_is_not_started() {
    need_root!();
    let world = World::new();
    let dir = need_script!(&world);
    let (dir_arg, program) = (arg(&dir), dir.join("nomad-driver-script"));
    let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    let refused = |what: &str| {
        let out = world.run_text(&job("echo no", ""), &["--plugin-dir", &dir_arg]);
        assert_eq!((out.status, out.stdout.as_str()), (125, ""), "{what}: {out:?}");
        assert!(
            out.stderr.contains("others may write to") || out.stderr.contains("belongs to user"),
            "{what}: {out:?}"
        );
    };
    mode(&dir, 0o777);
    refused("a directory of everybody's");
    mode(&dir, 0o755);
    mode(&program, 0o775);
    refused("a program of a group's");
    mode(&program, 0o755);
    std::os::unix::fs::chown(&program, Some(12345), None).unwrap();
    refused("a program of somebody else's");
    std::os::unix::fs::chown(&program, Some(0), None).unwrap();
    let elsewhere = world.path("open");
    std::fs::create_dir(&elsewhere).unwrap();
    mode(&elsewhere, 0o777);
    std::fs::rename(&program, elsewhere.join("x")).unwrap();
    std::os::unix::fs::symlink(elsewhere.join("x"), &program).unwrap();
    refused("a link into a directory of everybody's");
    world.assert_clean();
}

#[test]
fn a4_a_program_that_is_no_plugin_is_told_of_and_left_out() {
    need_root!();
    let world = World::new();
    let dir = need_script!(&world);
    let text = "#!/bin/sh\necho not a plugin\n";
    std::fs::write(dir.join("other"), text).unwrap();
    std::fs::set_permissions(dir.join("other"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(dir.join("notes.txt"), "no program").unwrap();
    let out = world.run_text(&job("echo ok", ""), &["--plugin-dir", &arg(&dir)]);
    assert_eq!((out.status, out.stdout.as_str()), (0, "ok\n"), "{out:?}");
    assert!(out.stderr.contains("plugins/other is left out"), "{out:?}");
    assert!(!out.stderr.contains("notes.txt"), "{out:?}");
    world.assert_clean();
}

#[test]
fn a4_a_plugin_takes_the_place_of_the_built_in_driver() {
    need_root!();
    let world = World::new();
    let dir = plugins(&world, "raw_exec", Path::new(AGENTBIN));
    let config = arg(&world.file("c.hcl", "plugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n"));
    let text = world::batch("raw_exec", "/bin/sh", "[\"-c\", \"echo from a plugin\"]");
    let args = ["--plugin-dir", &arg(&dir), "--config", &config];
    let out = world.run_text(&text, &args);
    assert_eq!((out.status, out.stdout.as_str()), (0, "from a plugin\n"), "{out:?}");
    assert!(out.stderr.contains("takes the place of the built-in one"), "{out:?}");
    world.assert_clean();
    // Whatever its name, nobody knows how it isolates.
    let strict = [&args[..], &["--isolation-minimum", "default"]].concat();
    let out = world.run_text(&text, &strict);
    assert!(out.status == 125 && out.stderr.contains("--allow-driver raw_exec"), "{out:?}");
}

#[test]
fn a4_a_killed_plugin_is_started_again_and_finds_its_task() {
    need_root!();
    let world = World::new();
    let dir = need_script!(&world);
    let file = world.file("job.nomad.hcl", &waiting("script", "text = \"SCRIPT\""));
    let mut run = world.start(&["--plugin-dir", &arg(&dir), &arg(&file)]);
    wait_for_text(&run.stdout, "begin");
    wait_for_text(&run.stderr, "Started: Task started");
    let first = kill_plugin(&dir);
    wait_for_text(&run.stderr, "was started again and has found the task");
    let found = processes(&dir);
    assert!(found.iter().all(|(pid, _)| *pid != first), "{found:?}");
    go(&world);
    let out = run.finish();
    assert_eq!(out.status, 7, "{out:?}");
    let lines: Vec<&str> = out.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{out:?}");
    assert_eq!(lines[0].replace("begin", "end"), lines[1], "it is the same process");
    assert!(processes(&dir).is_empty());
    world.assert_clean();
}

#[test]
fn a4_a8_a_command_runs_inside_and_a_stop_ends_task_and_plugin() {
    need_root!();
    let world = World::new();
    let dir = need_script!(&world);
    let file = world.file("job.nomad.hcl", &waiting("script", "text = \"SCRIPT\""));
    let mut run = world.start(&["--plugin-dir", &arg(&dir), &arg(&file)]);
    wait_for_text(&run.stdout, "begin");
    wait_for_text(&run.stderr, "Started: Task started");
    let out: Out = command(&world, &["exec", "waits", "/bin/echo", "inside"]).output().unwrap().into();
    assert_eq!((out.status, out.stdout.as_str()), (0, "inside\n"), "{out:?}");
    kill(pid(&run.child), Signal::SIGTERM).unwrap();
    let out = run.finish();
    assert!(out.status >= 128, "{out:?}");
    assert!(processes(&dir).is_empty());
    world.assert_clean();
}

#[test]
fn a4_nothing_is_left_of_a_killed_run() {
    need_root!();
    let world = World::new();
    let dir = need_script!(&world);
    let file = world.file("job.nomad.hcl", &waiting("script", "text = \"SCRIPT\""));
    let mut run = world.start(&["--plugin-dir", &arg(&dir), &arg(&file)]);
    wait_for_text(&run.stdout, "begin");
    run.child.kill().unwrap();
    run.finish();
    let out: Out = world.agentbin(&["gc"]);
    assert_eq!(out.status, 0, "{out:?}");
    assert!(processes(&dir).is_empty());
    world.assert_clean();
}

#[test]
fn a4_a_run_in_the_background_finds_its_plugins_tasks_again() {
    need_root!();
    let world = World::new();
    let dir = need_script!(&world);
    let file = world.file("job.nomad.hcl", &waiting("script", "text = \"SCRIPT\""));
    let config =
        arg(&world.file("c.hcl", "plugin \"script\" {\n  config {\n    interpreter = \"/bin/bash\"\n  }\n}\n"));
    let args = ["run", "--detach", "--json", "--plugin-dir", &arg(&dir), "--config", &config, &arg(&file)];
    let out: Out = command(&world, &args).output().unwrap().into();
    assert_eq!(out.status, 0, "{out:?}");
    let view: Json = serde_json::from_str(&out.stdout).unwrap();
    let supervisor = i32::try_from(view["pid"].as_i64().unwrap()).unwrap();
    kill(nix::unistd::Pid::from_raw(supervisor), Signal::SIGKILL).unwrap();
    // Whatever was only there for this run.
    std::fs::remove_file(&config).unwrap();
    let out: Out = command(&world, &["status", "--json", "waits"]).output().unwrap().into();
    assert_eq!(out.status, 0, "{out:?}");
    go(&world);
    let out: Out = command(&world, &["logs", "-f", "waits"]).output().unwrap().into();
    let lines: Vec<&str> = out.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{out:?}");
    assert_eq!(lines[0].replace("begin", "end"), lines[1], "it is the same process: {out:?}");
    let stopped: Out = command(&world, &["stop", "waits"]).output().unwrap().into();
    assert!(stopped.status == 0 || stopped.stderr.contains("waits"), "{stopped:?}");
    // The job has ended; the process that looked after it ends its plugins, and then itself.
    let deadline = Instant::now() + world::seconds(20);
    while !processes(&dir).is_empty() {
        assert!(Instant::now() < deadline, "{:?}", processes(&dir));
        #[expect(clippy::disallowed_methods, reason = "the process ends by itself, until a deadline")]
        std::thread::sleep(Duration::from_millis(10));
    }
}
