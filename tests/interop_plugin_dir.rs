//! A4: `run --plugin-dir` with a driver that is not ours: Nomad's own `raw_exec`, served as a plugin by `tests/nomad/plugin`.

#[path = "support/plugin_dir.rs"]
mod plugin_dir;
#[path = "support/world.rs"]
mod world;

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use plugin_dir::{command, go, kill_plugin, pid, plugins, processes, waiting};
use world::{Out, World, need_root, wait_for_text};

const CONFIG: &str = "command = \"/bin/sh\"\n        args = [\"-c\", \"SCRIPT\"]";

/// The driver, and its configuration.
fn raw_exec(world: &World) -> Option<(PathBuf, String)> {
    if Command::new("go").arg("version").output().is_err() {
        println!("SKIP: interop_plugin_dir: no go toolchain; scripts/setup says how to get one");
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "no skips in CI");
        return None;
    }
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-raw-exec");
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nomad");
    let built =
        Command::new("go").args(["build", "-o"]).arg(&binary).arg("./plugin").current_dir(module).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let config = world.file("c.hcl", "plugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n");
    Some((plugins(world, "raw_exec", &binary), config.to_str().unwrap().to_owned()))
}

macro_rules! need_raw_exec {
    ($world:expr) => {
        match raw_exec($world) {
            Some(found) => found,
            None => return,
        }
    };
}

#[test]
fn a4_nomads_raw_exec_runs_a_task_to_its_end() {
    need_root!();
    let world = World::new();
    let (dir, config) = need_raw_exec!(&world);
    let text = world::batch("raw_exec", "/bin/sh", "[\"-c\", \"echo out $NOMAD_TASK_NAME; echo err >&2; exit 5\"]");
    let out = world.run_text(&text, &["--plugin-dir", dir.to_str().unwrap(), "--config", &config]);
    assert_eq!(out.status, 5, "{out:?}");
    assert!(out.stdout.starts_with("out "), "{out:?}");
    assert!(out.stderr.contains("err\n") && out.stderr.contains("takes the place of the built-in one"), "{out:?}");
    assert!(processes(&dir).is_empty());
    world.assert_clean();
}

#[test]
fn a4_nomads_raw_exec_is_killed_and_finds_its_task() {
    need_root!();
    let world = World::new();
    let (dir, config) = need_raw_exec!(&world);
    let file = world.file("job.nomad.hcl", &waiting("raw_exec", CONFIG));
    let mut run = world.start(&["--plugin-dir", dir.to_str().unwrap(), "--config", &config, file.to_str().unwrap()]);
    wait_for_text(&run.stdout, "begin");
    wait_for_text(&run.stderr, "Started: Task started");
    let first = kill_plugin(&dir);
    wait_for_text(&run.stderr, "was started again and has found the task");
    assert!(processes(&dir).iter().all(|(pid, _)| *pid != first));
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
fn a4_nomads_raw_exec_is_stopped_and_killed_with_its_run() {
    need_root!();
    let world = World::new();
    let (dir, config) = need_raw_exec!(&world);
    let file = world.file("job.nomad.hcl", &waiting("raw_exec", CONFIG));
    let args = ["--plugin-dir", dir.to_str().unwrap(), "--config", &config, file.to_str().unwrap()];
    let mut run = world.start(&args);
    wait_for_text(&run.stdout, "begin");
    wait_for_text(&run.stderr, "Started: Task started");
    let out: Out = command(&world, &["exec", "waits", "/bin/echo", "inside"]).output().unwrap().into();
    assert_eq!((out.status, out.stdout.as_str()), (0, "inside\n"), "{out:?}");
    kill(pid(&run.child), Signal::SIGTERM).unwrap();
    let out = run.finish();
    assert!(out.status >= 128, "{out:?}");
    assert!(processes(&dir).is_empty());
    world.assert_clean();

    let mut run = world.start(&args);
    wait_for_text(&run.stdout, "begin");
    run.child.kill().unwrap();
    run.finish();
    let out: Out = world.agentbin(&["gc"]);
    assert_eq!(out.status, 0, "{out:?}");
    assert!(processes(&dir).is_empty(), "{:?}", processes(&dir));
    world.assert_clean();
}
