//! What stands in certain places only: `unsafe`, the end of the program, starts of programs, paths that follow links, large types.

use super::layers::module_of;
use super::source::{Call, Source};

/// Programs that are roles of this executable: started through `plugin::launch`, never searched for in PATH.
const OURSELVES: &[&str] =
    &["agentbin", "executor", "libcontainer-shim", "logmon", "docker_logger", "artifact-fetcher"];

/// Files that hand a path which they did not write down themselves to a call that follows links, and whose path that is.
/// Everything else below a task's directory is opened by `sys::path`.
pub const BY_NAME: &[(&str, &str)] = &[
    ("agent/api/agent.rs", "files of the kernel and of the host's configuration of its network"),
    ("agent/state/mod.rs", "the key in the agent's own directory"),
    ("alloc/atomic.rs", "our own folder"),
    ("alloc/dir.rs", "the data folder, where only we write; what lies in an allocation goes through sys::path"),
    ("alloc/facts.rs", "files of the kernel, and what the host says of its release"),
    ("alloc/gc.rs", "records and sockets in our own folders"),
    ("alloc/control/server.rs", "the control socket in our own folder"),
    ("alloc/kept_sockets.rs", "sockets in our own folder"),
    ("alloc/output.rs", "our own folder of kept logs, which is checked before"),
    ("alloc/owner.rs", "our own folder of runs, which is checked before"),
    ("alloc/record.rs", "records in our own folder"),
    ("alloc/sockets.rs", "sockets in our own folder"),
    ("cgroup/facts.rs", "the cgroup root and the list of mounts, given by the caller"),
    ("cgroup/fs.rs", "the list of mounts, given by the caller"),
    ("cli/agent.rs", "the directory of the agent's socket, which the operator names or is our own"),
    ("cli/config.rs", "the configuration that the operator names"),
    ("cli/gc.rs", "our own folder of kept logs, beneath which no link is followed"),
    ("cli/jobs.rs", "the payload that the operator names"),
    ("cli/logs.rs", "our own folders of allocations; what lies in them is listed by logs"),
    ("cli/operator.rs", "the snapshot that the operator names"),
    ("cli/plugin.rs", "files that the operator names"),
    ("cli/probe.rs", "a folder of our own, before a task runs in it and after"),
    ("cli/token.rs", "our own folder, where only we write"),
    ("cli/volume.rs", "the example that the operator names, and that must not exist"),
    ("cli/upgrade.rs", "the file that the operator started, and our own folder, where only we write"),
    ("cli/given_volumes.rs", "the socket of a plugin, which the operator names"),
    ("container/host_users.rs", "the host's user database"),
    ("container/probe.rs", "what a task sees, tried by the task"),
    (
        "container/shim.rs",
        "cgroups to join, in the words of the executor, and files of /proc before the root is entered",
    ),
    ("container/host_ids.rs", "the registry, root's alone, which is checked before each use"),
    ("driver/catalog.rs", "the operator's plugin folder"),
    ("driver/docker/cores.rs", "the cgroup that the agent names"),
    ("driver/docker/image.rs", "the operator's credentials"),
    ("driver/docker/mod.rs", "files in the allocation's folder, where no task can write"),
    ("driver/java.rs", "the host's programs"),
    ("driver/left.rs", "what a task's FIFO is, and open descriptors by their name in /proc; nothing is opened"),
    ("driver/strays.rs", "notes in our own folder"),
    ("docker/endpoint.rs", "the operator's certificates"),
    ("executor/adopt.rs", "records in our own folder"),
    ("executor/universal.rs", "open descriptors by their name in /proc"),
    ("http/listener.rs", "the socket that the operator names, or our own"),
    ("logs/journal.rs", "journals in our own folder, and whether a FIFO is still there"),
    ("logs/ship/record.rs", "records in our own folder"),
    ("net/bridge.rs", "our own directory of leases, and our mark"),
    ("net/builtin.rs", "our own directory of leases, and settings of the kernel"),
    ("net/forward.rs", "settings of the kernel"),
    ("net/cni.rs", "the operator's CNI configurations and plugins, which are checked"),
    ("net/lease.rs", "our own directory of leases"),
    ("net/namespace.rs", "our own directory of namespaces"),
    ("net/resolver.rs", "the host's resolver configuration"),
    ("plugin/connection.rs", "sockets of our own"),
    ("plugin/host.rs", "sockets of our own"),
    ("plugin/server.rs", "sockets of our own"),
    ("roles/driver.rs", "our own folder, made and checked"),
    ("store/mod.rs", "the database in our own directory"),
    ("sys/exe.rs", "the own executable"),
    ("sys/features.rs", "settings of the kernel"),
    ("sys/path.rs", "open descriptors by their name in /proc"),
    ("sys/process.rs", "id maps of processes by their number in /proc"),
    ("sys/processes.rs", "processes by their number in /proc"),
];

/// Files that start a program themselves, and why the sweep for orphans of `agentbin run` does not take it for one. All others
/// use `sys::children`, which the sweep asks.
const STARTS: &[(&str, &str)] = &[
    ("artifact/git.rs", "in the fetcher's process, which inherits nothing"),
    ("cli/detach.rs", "the supervisor, before anything runs"),
    ("cli/revive.rs", "supervisors of other runs, which are nobody's child, before anything runs"),
    ("cli/supervise.rs", "itself, as nobody's child"),
    ("driver/docker/image.rs", "tokio's, listed by sys::children"),
    ("driver/java.rs", "tokio's, listed by sys::children"),
    ("plugin/host.rs", "plugins; an executor is known by its arguments"),
    ("sys/children.rs", "the list"),
    ("sys/process.rs", "for plugin/host.rs and cli/detach.rs"),
];

/// Functions of `std::fs` that take a path.
const OPENS: &[&str] = &[
    "canonicalize",
    "copy",
    "create_dir",
    "create_dir_all",
    "exists",
    "hard_link",
    "metadata",
    "read",
    "read_dir",
    "read_link",
    "read_to_string",
    "remove_dir",
    "remove_dir_all",
    "remove_file",
    "rename",
    "set_permissions",
    "symlink_metadata",
    "write",
];

/// `unsafe` only in `sys`, each block and impl there led by a SAFETY comment of its own.
pub fn unsafe_home(source: &Source) -> Vec<String> {
    let at_home = module_of(&source.path) == Some("sys");
    let said = |line: usize, what: &str| format!("{}:{line}: unsafe {what}", source.path);
    let wrong = source.unsafes.iter().filter_map(|found| match found {
        found if !at_home => Some(said(found.line, "outside sys")),
        found if found.without_argument => Some(said(found.line, "without a SAFETY comment before it")),
        _ => None,
    });
    wrong.collect()
}

/// The program ends in `roles`; after a fork `_exit` is right everywhere.
pub fn exits(source: &Source) -> Vec<String> {
    if module_of(&source.path) == Some("roles") {
        return Vec::new();
    }
    // Those of tests, too.
    let ends = source.paths.iter().filter(|named| {
        let words = source.whole_path(named);
        words.windows(2).any(|pair| matches!(pair[0].as_str(), "process" | "libc") && pair[1] == "exit")
    });
    ends.map(|named| format!("{}:{}: process::exit outside roles", source.path, named.line)).collect()
}

/// The last two words of the function that is called.
fn function_of(source: &Source, call: &Call) -> Option<(String, String)> {
    if call.method {
        return None;
    }
    let mut words = source.whole(&call.words);
    let name = words.pop()?;
    Some((words.pop()?, name))
}

/// A role is this executable, opened once; a name would be looked up in PATH.
pub fn path_searches(source: &Source) -> Vec<String> {
    let mut bad = Vec::new();
    for call in &source.calls {
        let Some(text) = call.text.as_deref().filter(|text| OURSELVES.contains(text)) else { continue };
        if function_of(source, call).is_some_and(|(owner, name)| owner == "Command" && name == "new") {
            let place = format!("{}:{}", source.path, call.line);
            bad.push(format!("{place}: Command::new(\"{text}\") searches PATH for ourselves"));
        }
    }
    bad
}

/// The calls of a file that are not those of tests.
fn calls(source: &Source) -> impl Iterator<Item = &Call> {
    source.calls.iter().filter(|call| !source.of_tests && !call.of_tests)
}

/// A program that is started without a word to `sys::children` may be killed as an orphan.
pub fn unlisted_starts(source: &Source) -> Vec<String> {
    if STARTS.iter().any(|(file, _)| *file == source.path) {
        return Vec::new();
    }
    let starts = calls(source).filter(|call| {
        call.method && !call.arguments && matches!(call.words.last().map(String::as_str), Some("spawn" | "output"))
    });
    starts.map(|call| format!("{}:{}: starts a program; use sys::children::spawn", source.path, call.line)).collect()
}

/// What `std::fs` is given is a path written down on the spot, or the file has a reason: a task puts links where its
/// directory is, and every one of these calls follows them.
pub fn opens_by_name(source: &Source) -> Vec<String> {
    if BY_NAME.iter().any(|(file, _)| *file == source.path) { Vec::new() } else { opened_by_name(source) }
}

pub fn opened_by_name(source: &Source) -> Vec<String> {
    let mut bad = Vec::new();
    for call in calls(source).filter(|call| call.text.is_none() && call.arguments | is_options(call)) {
        let Some((owner, name)) = function_of(source, call) else { continue };
        let opens = match owner.as_str() {
            "fs" => OPENS.contains(&name.as_str()),
            "File" => matches!(name.as_str(), "open" | "create" | "create_new" | "options"),
            "OpenOptions" => name == "new",
            _ => false,
        };
        if opens {
            let place = format!("{}:{}", source.path, call.line);
            bad.push(format!("{place}: {owner}::{name} follows links; open it through sys::path"));
        }
    }
    bad
}

/// A call that makes options, which has no arguments.
fn is_options(call: &Call) -> bool {
    call.words.last().is_some_and(|name| name == "new" || name == "options")
}

/// The standard library's B-trees are 3 to 5 KB of code for each pair of types (docs/size.md).
pub fn large_maps(source: &Source) -> Vec<String> {
    let named = source.whole_paths().filter_map(|(line, words)| match &words[..] {
        [std, collections, tree, ..] if std == "std" && collections == "collections" => Some((line, tree.clone())),
        _ => None,
    });
    named
        .filter(|(_, tree)| matches!(tree.as_str(), "BTreeMap" | "BTreeSet"))
        .map(|(line, tree)| format!("{}:{line}: {tree} of std; use the one of spec::collections", source.path))
        .collect()
}

/// `serde_json`'s macro for objects is 100 to 190 bytes of code for each member more than ours (docs/size.md).
pub fn large_objects(source: &Source) -> Vec<String> {
    if source.path.starts_with("spec/json") {
        return Vec::new();
    }
    let named =
        source.whole_paths().filter(|(_, words)| words.len() == 2 && words[0] == "serde_json" && words[1] == "json");
    named.map(|(line, _)| format!("{}:{line}: json! of serde_json; use spec::json::json", source.path)).collect()
}

/// Whether the program, not only its tests, names something of a crate: `name::item`, in a path or a `use`.
pub fn works_with(source: &Source, name: &str) -> bool {
    let mut named = source.paths.iter().filter(|named| !source.of_tests && !named.of_tests);
    named.any(|named| named.words.len() > 1 && named.words[0] == name)
}

mod samples {
    use super::super::tree::mark_tests;
    use super::*;

    type Check = fn(&Source) -> Vec<String>;

    /// What a check says of a text.
    fn of(check: Check, path: &str, text: &str) -> Vec<String> {
        check(&Source::parse(path, text))
    }

    #[test]
    fn unsafe_has_one_place_and_an_argument() {
        assert_eq!(
            of(unsafe_home, "cgroup/v2.rs", "fn f() { unsafe { g() } }"),
            ["cgroup/v2.rs:1: unsafe outside sys"]
        );
        assert_eq!(of(unsafe_home, "cgroup/v2.rs", "// unsafe { }\nconst X: &str = \"unsafe\";"), [""; 0]);
        assert_eq!(of(unsafe_home, "sys/a.rs", "fn f() {\n    unsafe { g() }\n}").len(), 1);
        assert_eq!(of(unsafe_home, "sys/a.rs", "// SAFETY: no.\nfn f() {\n    unsafe { g() }\n}").len(), 1);
        assert_eq!(
            of(
                unsafe_home,
                "sys/a.rs",
                "fn f() {\n    // SAFETY: g has no condition.\n    let x =\n unsafe { g() };\n}"
            ),
            [""; 0]
        );
        let two = "fn f() {\n    // SAFETY: g.\n    unsafe { g() };\n    unsafe { h() };\n}";
        assert_eq!(of(unsafe_home, "sys/a.rs", two), ["sys/a.rs:4: unsafe without a SAFETY comment before it"]);
        assert_eq!(of(unsafe_home, "net/a.rs", "fn f() { m! { unsafe { g() } } }").len(), 1, "in a macro");
        let shared = "fn f() {\n    // SAFETY: both.\n    k(unsafe { g() }, unsafe { h() });\n}";
        assert_eq!(of(unsafe_home, "sys/a.rs", shared).len(), 1);
        assert_eq!(of(unsafe_home, "sys/a.rs", "unsafe impl Send for X {}").len(), 1);
        assert_eq!(of(unsafe_home, "sys/a.rs", "/// # Safety\n/// Yes.\npub unsafe fn f() {}"), [""; 0]);
    }

    #[test]
    fn the_program_ends_in_roles() {
        let text = "fn f() { std::process::exit(1) }";
        assert_eq!(of(exits, "cli/mod.rs", text), ["cli/mod.rs:1: process::exit outside roles"]);
        assert_eq!(of(exits, "roles/mod.rs", text), [""; 0]);
        assert_eq!(of(exits, "sys/a.rs", "use std::process::{Command, exit};").len(), 1);
        assert_eq!(of(exits, "sys/a.rs", "use libc::exit;").len(), 1);
        assert_eq!(
            of(exits, "sys/a.rs", "use std::process as p;\nfn f() { p::exit(1) }").len(),
            1,
            "under another name"
        );
        assert_eq!(of(exits, "sys/a.rs", "fn f() { tokio::select! { _ = x => std::process::exit(1) } }").len(), 1);
        assert_eq!(of(exits, "sys/a.rs", "fn f() { libc::_exit(1); nix::process::exit_group() }"), [""; 0]);
    }

    #[test]
    fn nobody_searches_path_for_ourselves() {
        assert_eq!(
            of(path_searches, "driver/exec.rs", "fn f() { Command::new(\"agentbin\").arg(\"executor\") }").len(),
            1
        );
        assert_eq!(of(path_searches, "driver/exec.rs", "fn f() { std::process::Command::new(\"logmon\") }").len(), 1);
        assert_eq!(of(path_searches, "net/nft.rs", "fn f() { Command::new(\"nft\"); Command::new(exe) }"), [""; 0]);
    }

    #[test]
    fn names_below_a_task_are_opened_by_the_path_module() {
        let bad = |text: &str| of(opens_by_name, "container/root.rs", text);
        let text = "fn f() { std::fs::read(path) }";
        assert_eq!(bad(text), ["container/root.rs:1: fs::read follows links; open it through sys::path"]);
        assert_eq!(bad("fn f() { File::open(&name)?; fs::rename(a, b)?; OpenOptions::new().open(x) }").len(), 3);
        assert_eq!(bad("fn f() { std::fs::read(\"/proc/cpuinfo\"); rustix::fs::open(x); file.metadata() }"), [""; 0]);
        assert_eq!(bad("fn f() {}\n#[cfg(test)]\nmod tests { fn g() { std::fs::read(path) } }"), [""; 0]);
        assert_eq!(bad("use std::fs::read_dir;\nfn f() { read_dir(path); x.read() }").len(), 1, "by its own name");
        assert_eq!(bad("fn f() { tokio::select! { _ = x => fs::read(path) } }").len(), 1);
        assert_eq!(of(opens_by_name, "alloc/record.rs", text), [""; 0], "a file with a reason");
    }

    #[test]
    fn programs_are_started_by_the_list_of_children() {
        let bad = |text: &str| of(unlisted_starts, "names/users.rs", text).len();
        assert_eq!(bad("fn f() { command.arg(x).spawn()?; Command::new(y).output() }"), 2);
        assert_eq!(bad("fn f() { children::spawn(&mut command)?; scope.spawn(work); response.status() }"), 0);
        assert_eq!(of(unlisted_starts, "sys/children.rs", "fn f() { command.spawn() }"), [""; 0]);
    }

    #[test]
    fn objects_are_those_with_little_code() {
        let bad = |text: &str| of(large_objects, "agent/core.rs", text);
        let text = "use serde_json::json;";
        assert_eq!(bad(text), ["agent/core.rs:1: json! of serde_json; use spec::json::json"]);
        assert_eq!(bad("use serde_json::{Map, Value as Json, json};").len(), 1);
        assert_eq!(bad("fn f() -> serde_json::Value { serde_json::json!({}) }").len(), 1);
        assert_eq!(bad("use serde_json::{Map, Value};\nuse crate::spec::json::json;\nfn f() { json!({}) }"), [""; 0]);
        assert_eq!(bad("fn f() {}\n#[cfg(test)]\nmod tests { use serde_json::json; }"), [""; 0]);
    }

    #[test]
    fn maps_are_those_with_little_code() {
        let bad = |text: &str| of(large_maps, "agent/core.rs", text);
        let text = "use std::collections::BTreeMap;";
        assert_eq!(bad(text), ["agent/core.rs:1: BTreeMap of std; use the one of spec::collections"]);
        assert_eq!(bad("use std::collections::{BTreeSet, HashMap, BTreeMap};").len(), 2);
        assert_eq!(bad("fn f(all: &std::collections::BTreeSet<u8>) {}").len(), 1);
        assert_eq!(bad("use std::collections::{HashMap, hash_map::Entry};\nfn f(all: BTreeMap<u8, u8>) {}"), [""; 0]);
        assert_eq!(bad("fn f(one: std::collections::HashMap<u8, u8>, all: BTreeMap<u8, u8>) {}"), [""; 0]);
        assert_eq!(bad("#[cfg(test)]\nmod tests { use std::collections::BTreeMap; }"), [""; 0]);
    }

    #[test]
    fn a_crate_is_used_by_code_and_not_by_tests_or_words() {
        let uses = |path, text| works_with(&Source::parse(path, text), "nix");
        assert!(uses("sys/a.rs", "use nix::unistd::Pid;") && uses("sys/a.rs", "fn f() { ::nix::unistd::sync() }"));
        assert!(uses("sys/a.rs", "use {nix::sched, x::y};\n#[cfg(test)]\nmod tests {}"));
        for text in [
            "// nix::unistd\nconst X: &str = \"nix::unistd\";",
            "use unix::nix::x;",
            "fn nix() {}",
            "use nix_more::x;",
            "fn f() {}\n#[cfg(test)]\nmod tests { use nix::unistd::Pid; }",
        ] {
            assert!(!uses("sys/a.rs", text), "{text}");
        }
        let parent = |text: &str| Source::parse("sys/mod.rs", text);
        let of_tests = |declared: &str| {
            let mut sources = [parent(declared), Source::parse("sys/a/b.rs", "use nix::unistd::Pid;")];
            mark_tests(&mut sources);
            sources[1].of_tests && !works_with(&sources[1], "nix")
        };
        assert!(of_tests("#[cfg(test)]\nmod a;") && !of_tests("mod a;"));
    }
}
