//! N7: a driver written from `docs/driver-authors.md` alone: the crate of somebody else, built and used as that page says. Under a real
//! agent it is in `tests/nomad/template_test.go`.

#[path = "support/plugin_dir.rs"]
mod plugin_dir;
#[path = "support/world.rs"]
mod world;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use plugin_dir::{plugins, processes};
use serde_json::Value as Json;
use world::{World, need_root};

/// The driver, built.
fn greet() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/driver-template");
    let out = Command::new(script).stdin(Stdio::null()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    PathBuf::from(String::from_utf8(out.stdout).unwrap().trim())
}

/// The page shows a file as what `cat` prints.
fn shown(name: &str) -> String {
    let page = include_str!("../docs/driver-authors.md");
    let is_prompt = |line: &&str| line.starts_with("# ") || line.starts_with("$ ") || line.starts_with("```");
    let lines = page.lines().skip_while(|line| !line.ends_with(&format!(" cat {name}"))).skip(1);
    let text: String = lines.take_while(|line| !is_prompt(line)).flat_map(|line| [line, "\n"]).collect();
    assert!(!text.is_empty(), "{name}");
    text
}

#[test]
fn n7_a_driver_written_from_the_docs_is_called_by_hand_and_runs_a_job() {
    need_root!();
    let lines = include_str!("../docs/driver-template/src/main.rs").lines().count();
    assert!(lines < 80, "{lines} lines");
    let program = greet();
    let world = World::new();
    for name in ["task.hcl", "agent.hcl", "greet.nomad.hcl"] {
        world.file(name, &shown(name));
    }

    let launch = Command::new(env!("CARGO_BIN_EXE_agentbin"))
        .args(["plugin", "launch"])
        .arg(&program)
        .current_dir(world.path(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut launch = launch.unwrap();
    launch.stdin.take().unwrap().write_all(b"info\nfingerprint\nstart task.hcl\nwait -\n").unwrap();
    let out = launch.wait_with_output().unwrap();
    let said = String::from_utf8(out.stdout).unwrap();
    let answers: Vec<Json> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(out.status.success() && answers.len() == 4, "{said}\n{}", String::from_utf8_lossy(&out.stderr));
    assert!(answers[0].to_string().contains("\"greet\"") && answers[1].to_string().contains("ealthy"), "{said}");
    assert_eq!(answers[3]["exit_code"], 0, "{said}");

    let dir = plugins(&world, "nomad-driver-greet", &program);
    let config = world.path("agent.hcl");
    let job = world.path("greet.nomad.hcl");
    let [dir_arg, config, job] = [&dir, &config, &job].map(|path| path.to_str().unwrap());
    let out = world.run(&["--plugin-dir", dir_arg, "--config", config, job]);
    assert_eq!((out.status, out.stdout.as_str()), (0, "Good morning, world!\n"), "{out:?}");
    assert!(processes(&dir).is_empty());
    world.assert_clean();
}
