//! Runs with driver plugins of a directory, and what is left of such plugins.
#![allow(dead_code, reason = "every test program uses a part")]

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::world::{World, copy_program};

/// The variable that processes of plugins carry.
const MARK: &[u8] = b"AGENTBIN_PLUGIN_OF=";

/// A directory of plugins with this program in it, by this name.
pub fn plugins(world: &World, name: &str, program: &Path) -> PathBuf {
    let dir = world.path("plugins");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    copy_program(program, &dir.join(name));
    dir
}

/// A task that prints `begin`, waits for a file `go` in its directory, prints `end` and ends with the status 7. Its script is a key
/// of the configuration, in which `SCRIPT` stands for it.
pub fn waiting(driver: &str, config: &str) -> String {
    let script = "echo begin $$; while ! [ -e $${NOMAD_TASK_DIR}/go ]; do sleep 0.05; done; echo end $$; exit 7";
    format!(
        "job \"waits\" {{\n  type = \"batch\"\n  group \"g\" {{\n    restart {{\n      attempts = 0\n      mode = \"fail\"\n    }}\n    \
         reschedule {{\n      attempts = 0\n      unlimited = false\n    }}\n    task \"t\" {{\n      driver = \"{driver}\"\n      \
         config {{\n        {}\n      }}\n      resources {{\n        memory = 64\n      }}\n    }}\n  }}\n}}\n",
        config.replace("SCRIPT", script)
    )
}

/// Lets the tasks of a [`waiting`] job end.
pub fn go(world: &World) {
    let allocs = std::fs::read_dir(world.data_dir().join("alloc")).unwrap().flatten();
    for alloc in allocs.filter(|entry| entry.path().is_dir()) {
        std::fs::File::create(alloc.path().join("t/local/go")).unwrap().write_all(b"x").unwrap();
    }
}

/// What carries the mark of plugins and was executed from this directory, with its arguments.
pub fn processes(dir: &Path) -> Vec<(i32, Vec<String>)> {
    let all = procfs::process::all_processes().unwrap().flatten();
    let marked = all.filter(|process| {
        let environ = std::fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|entry| entry.starts_with(MARK))
    });
    let of_dir = marked.filter_map(|process| {
        let exe = process.exe().ok()?;
        exe.starts_with(dir).then(|| (process.pid, process.cmdline().unwrap_or_default()))
    });
    of_dir.collect()
}

/// Kills the plugin of this directory: not the executors of its tasks.
pub fn kill_plugin(dir: &Path) -> i32 {
    let found = processes(dir);
    let plugin = found.iter().filter(|(_, args)| !args.iter().any(|arg| arg == "executor")).collect::<Vec<_>>();
    assert_eq!(plugin.len(), 1, "{found:?}");
    kill(Pid::from_raw(plugin[0].0), Signal::SIGKILL).unwrap();
    plugin[0].0
}

/// `agentbin COMMAND --data-dir ... ARGS`.
pub fn command(world: &World, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agentbin"));
    command.arg(args[0]).arg("--data-dir").arg(world.data_dir()).args(&args[1..]).stdin(Stdio::null());
    command.env("XDG_RUNTIME_DIR", world.path(""));
    command
}

/// The number of a child, for a signal.
pub fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap())
}
