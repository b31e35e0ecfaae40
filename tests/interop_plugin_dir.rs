//! A4, P3: `run --plugin-dir` with drivers that are not ours: Nomad's own `raw_exec` and `qemu`, served as plugins by
//! `tests/nomad/plugin`.

#[path = "support/plugin_dir.rs"]
mod plugin_dir;
#[path = "support/world.rs"]
mod world;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use plugin_dir::{command, go, kill_plugin, pid, plugins, processes, waiting};
use world::{Out, World, need_root, wait_for_text};

const CONFIG: &str = "command = \"/bin/sh\"\n        args = [\"-c\", \"SCRIPT\"]";

/// The driver `name` in a directory of plugins.
fn plugin(world: &World, name: &str) -> Option<PathBuf> {
    if Command::new("go").arg("version").output().is_err() {
        println!("SKIP: interop_plugin_dir: no go toolchain; scripts/setup says how to get one");
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "no skips in CI");
        return None;
    }
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-drivers");
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nomad");
    let built =
        Command::new("go").args(["build", "-o"]).arg(&binary).arg("./plugin").current_dir(module).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(plugins(world, name, &binary))
}

/// The driver, and its configuration.
fn raw_exec(world: &World) -> Option<(PathBuf, String)> {
    let dir = plugin(world, "raw_exec")?;
    let config = world.file("c.hcl", "plugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n");
    Some((dir, config.to_str().unwrap().to_owned()))
}

/// The driver, and a job of a machine which says `begin` on its serial line and then stands still.
fn qemu(world: &World) -> Option<(PathBuf, Vec<String>)> {
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        println!("SKIP: interop_plugin_dir: no qemu-system-x86_64; scripts/setup installs it");
        return None;
    }
    let dir = plugin(world, "qemu")?;
    // cld; ds = 0; each byte of the message to port 0x3f8; then hlt for ever.
    let mut image =
        b"\xfc\x31\xc0\x8e\xd8\xbe\x16\x7c\xac\x84\xc0\x74\x06\xba\xf8\x03\xee\xeb\xf5\xf4\xeb\xfdbegin\n\0".to_vec();
    image.resize(510, 0);
    image.extend([0x55, 0xaa]);
    image.resize(1 << 20, 0);
    let images = world.path("images");
    std::fs::create_dir_all(&images).unwrap();
    let image_path = images.join("boot.img");
    std::fs::write(&image_path, image).unwrap();
    let config = format!("plugin \"qemu\" {{\n  config {{\n    image_paths = [\"{}\"]\n  }}\n}}\n", images.display());
    let config = world.file("qemu.hcl", &config);
    let job = format!(
        r#"
job "machine" {{
  type = "batch"
  group "g" {{
    restart {{
      attempts = 0
      mode     = "fail"
    }}
    task "t" {{
      driver       = "qemu"
      kill_timeout = "1s"
      config {{
        image_path        = "{}"
        graceful_shutdown = true
        args              = ["-nic", "none", "-device", "isa-debug-exit,iobase=0xf4,iosize=4"]
      }}
      resources {{
        memory = 256
      }}
    }}
  }}
}}
"#,
        image_path.display()
    );
    let job = world.file("machine.nomad.hcl", &job);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    Some((dir.clone(), vec!["--plugin-dir".into(), text(&dir), "--config".into(), text(&config), text(&job)]))
}

macro_rules! need_qemu {
    ($world:expr) => {
        match qemu($world) {
            Some(found) => found,
            None => return,
        }
    };
}

/// Lets the machine end with status 7: a byte for its debug port, by its monitor.
fn end_machine(world: &World) {
    let allocs = std::fs::read_dir(world.data_dir().join("alloc")).unwrap().flatten();
    let sockets: Vec<PathBuf> =
        allocs.map(|alloc| alloc.path().join("t/qm.sock")).filter(|path| path.exists()).collect();
    assert_eq!(sockets.len(), 1, "{sockets:?}");
    let mut monitor = UnixStream::connect(&sockets[0]).unwrap();
    monitor.set_read_timeout(Some(world::seconds(60))).unwrap();
    monitor.write_all(b"o /b 0xf4 3\n").unwrap();
    // Its end is the machine's; a machine that is killed by its own byte may also reset the connection.
    let _ = monitor.read_to_end(&mut Vec::new());
}

/// The machines whose image is in this world.
fn machines(world: &World) -> Vec<i32> {
    let image = world.path("images").join("boot.img").display().to_string();
    let all = procfs::process::all_processes().unwrap().flatten();
    let is = |process: &procfs::process::Process| {
        let line = process.cmdline().unwrap_or_default();
        line.first().is_some_and(|name| name.contains("qemu-system")) && line.iter().any(|arg| arg.contains(&image))
    };
    all.filter(is).map(|process| process.pid).collect()
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

#[test]
fn a4_nomads_qemu_is_killed_and_finds_its_machine() {
    need_root!();
    let world = World::new();
    let (dir, args) = need_qemu!(&world);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut run = world.start(&args);
    wait_for_text(&run.stdout, "begin");
    wait_for_text(&run.stderr, "Started: Task started");
    let before = machines(&world);
    assert_eq!(before.len(), 1, "{before:?}");
    for _ in 0..2 {
        let first = kill_plugin(&dir);
        let found = "was started again and has found the task";
        wait_for_text(&run.stderr, found);
        run.stderr.lock().unwrap().clear();
        assert!(processes(&dir).iter().all(|(pid, _)| *pid != first));
        assert_eq!(machines(&world), before, "it goes on");
    }
    end_machine(&world);
    let out = run.finish();
    assert_eq!(out.status, 7, "{out:?}");
    assert_eq!(out.stdout.matches("begin").count(), 1, "it was started once: {out:?}");
    assert!(processes(&dir).is_empty() && machines(&world).is_empty());
    world.assert_clean();
}

#[test]
fn a4_nomads_qemu_is_stopped_and_killed_with_its_run() {
    need_root!();
    let world = World::new();
    let (dir, args) = need_qemu!(&world);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut run = world.start(&args);
    wait_for_text(&run.stdout, "begin");
    wait_for_text(&run.stderr, "Started: Task started");
    let out: Out = command(&world, &["exec", "machine", "/bin/echo", "inside"]).output().unwrap().into();
    assert!(out.status == 125 && out.stderr.contains("exec"), "the driver has no sessions: {out:?}");
    kill(pid(&run.child), Signal::SIGTERM).unwrap();
    let out = run.finish();
    assert!(out.status >= 128, "{out:?}");
    assert!(processes(&dir).is_empty() && machines(&world).is_empty());
    world.assert_clean();

    let mut run = world.start(&args);
    wait_for_text(&run.stdout, "begin");
    run.child.kill().unwrap();
    run.finish();
    let out: Out = world.agentbin(&["gc"]);
    assert_eq!(out.status, 0, "{out:?}");
    assert!(processes(&dir).is_empty() && machines(&world).is_empty(), "{:?}", machines(&world));
    world.assert_clean();
}
