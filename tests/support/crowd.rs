//! Fifty tasks of all drivers, who they are, and what holds them.
#![allow(dead_code, reason = "every test program uses a part")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value as Json;

use super::world::World;

/// Prints a number after the other, each line with its pid.
const SCRIPT: &str = "n=0; while :; do n=$((n+1)); echo $$ $n; sleep 0.2; done";

/// Does the same.
const CLASS: &str = "
class Counter {
    public static void main(String[] none) throws Exception {
        for (long n = 1; ; n++) {
            System.out.println(ProcessHandle.current().pid() + \" \" + n);
            Thread.sleep(200);
        }
    }
}
";

/// Drivers, and how many tasks each has.
const CROWD: [(&str, usize); 4] = [("raw_exec", 20), ("exec", 20), ("java", 5), ("docker", 5)];

/// What the plugin of exec is to do, as the drivers inside do: its tasks outlive their executors.
pub const ADOPTS: &str = "plugin \"exec\" {\n  config {\n    on_executor_loss = \"adopt\"\n  }\n}\n";

/// The names of the tasks, each with its driver.
pub fn names() -> impl Iterator<Item = (String, &'static str)> {
    CROWD.into_iter().flat_map(|(driver, count)| (0..count).map(move |n| (format!("{driver}-{n}"), driver)))
}

/// The job, with the class of the tasks of java.
pub fn job(class: &Path) -> String {
    let of = |(name, driver): (String, &str)| {
        let sh = |script: &str, more: &str| {
            format!("config {{\n{more}command = \"/bin/sh\"\nargs = [\"-c\", \"{script}\"]\n}}\n")
        };
        let (config, memory) = match driver {
            "java" => (
                format!(
                    "artifact {{\nsource = \"{}\"\n}}\nconfig {{\nclass = \"Counter\"\nclass_path = \
                         \"${{NOMAD_TASK_DIR}}\"\njvm_options = [\"-Xmx16m\", \"-XX:+UseSerialGC\"]\n}}\n",
                    class.display()
                ),
                128,
            ),
            "docker" => {
                let script = SCRIPT.replace("sleep", "/bin/busybox sleep");
                (sh(&script, "image = \"busybox:test\"\nnetwork_mode = \"none\"\n"), 32)
            }
            _ => (sh(SCRIPT, ""), 32),
        };
        format!(
            "task \"{name}\" {{\ndriver = \"{driver}\"\nkill_timeout = \"2s\"\n{config}resources {{\ncpu = 10\nmemory = \
                 {memory}\n}}\n}}\n"
        )
    };
    let tasks: Vec<String> = names().map(of).collect();
    format!("job \"crowd\" {{\ngroup \"g\" {{\n{}}}\n}}\n", tasks.concat())
}

/// The first process of each task: the one whose parent is none of its task's.
pub fn firsts(id: &str) -> BTreeMap<String, i32> {
    let mut found = BTreeMap::new();
    for process in procfs::process::all_processes().unwrap().flatten() {
        let Ok(env) = process.environ() else { continue };
        let value = |name: &str| env.get(std::ffi::OsStr::new(name)).and_then(|value| value.to_str());
        if let (Some(of), Some(name), Ok(stat)) = (value("NOMAD_ALLOC_ID"), value("NOMAD_TASK_NAME"), process.stat())
            && of == id
        {
            found.insert(process.pid, (stat.ppid, name.to_owned()));
        }
    }
    let is_first = |(_, (parent, _)): &(&i32, &(i32, String))| !found.contains_key(parent);
    found.iter().filter(is_first).map(|(pid, (_, name))| (name.clone(), *pid)).collect()
}

/// The executors of this world, whoever has started them.
pub fn executors(world: &World) -> Vec<i32> {
    let alloc = world.data_dir().join("alloc");
    let is_ours = |config: &str| {
        let config: Option<Json> = serde_json::from_str(config).ok();
        config.is_some_and(|config| config["LogFile"].as_str().is_some_and(|log| Path::new(log).starts_with(&alloc)))
    };
    let all = procfs::process::all_processes().unwrap().flatten();
    let ours = all.filter(|process| {
        process
            .cmdline()
            .is_ok_and(|words| matches!(&words[..], [_, role, config] if role == "executor" && is_ours(config)))
    });
    ours.map(|process| process.pid).collect()
}

/// How many executors there are when each task has its own.
pub fn executing() -> usize {
    names().filter(|(_, driver)| *driver != "docker").count()
}

/// Compiles the class of the tasks of java.
pub fn class(world: &World) -> PathBuf {
    let source = world.file("Counter.java", CLASS);
    let javac = Command::new("javac").arg("-d").arg(source.parent().unwrap()).arg(&source).status();
    assert!(javac.is_ok_and(|status| status.success()), "javac");
    source.with_extension("class")
}

/// That all tasks have begun.
pub fn all_have_begun(firsts: &BTreeMap<String, i32>) -> bool {
    firsts.keys().cloned().collect::<BTreeSet<_>>() == names().map(|(name, _)| name).collect()
}

/// How often something is killed: so often as `AGENTBIN_KILLS` says, with `AGENTBIN_FULL=1` so often as an issue asks.
pub fn kills(slice: usize, full: usize) -> usize {
    let given = std::env::var("AGENTBIN_KILLS").ok().and_then(|count| count.parse().ok());
    given.unwrap_or(if std::env::var("AGENTBIN_FULL").is_ok_and(|set| set == "1") { full } else { slice })
}

/// Removes the cgroup above those of all tasks, which the engine leaves in trees that are not ours.
pub fn remove_parent(parent: &str) {
    for tree in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        let _none_there = std::fs::remove_dir(tree.path().join(parent));
    }
}

/// The lines of a task, of which each has the number after that of the one before it; how many there are.
pub fn assert_counted(logs: &Path, name: &str) -> usize {
    let prefix = format!("{name}.stdout.");
    let number = |path: PathBuf| Some((path.file_name()?.to_str()?.strip_prefix(&prefix)?.parse::<u64>().ok()?, path));
    let mut files: Vec<_> =
        std::fs::read_dir(logs).unwrap().filter_map(|entry| number(entry.unwrap().path())).collect();
    files.sort();
    let text: String = files.iter().map(|(_, path)| std::fs::read_to_string(path).unwrap()).collect();
    let pid = text.split(' ').next().unwrap();
    for (number, line) in text.lines().enumerate() {
        assert_eq!(line, format!("{pid} {}", number + 1), "{name}");
    }
    text.lines().count()
}
