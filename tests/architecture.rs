//! Holds the house together: layers, the home of `unsafe` and of `process::exit`, and what ARCHITECTURE.md claims.
//!
//! Nothing in one crate keeps a lower module from using a higher one, so this test reads the source. Every check is a
//! function over `(path, text)`, and `samples` below shows each of them a bad sample, so that all are seen to fail.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The layers. A module may use modules with a smaller number, none with the same or a larger one.
const LAYERS: &[(&str, u8)] = &[
    ("spec", 0),
    ("template", 0),
    ("sys", 0),
    ("cgroup", 1),
    ("jobspec", 1),
    ("names", 1),
    ("store", 1),
    ("net", 1),
    ("wire", 1),
    ("container", 2),
    ("docker", 2),
    ("http", 2),
    ("logs", 2), // below the executor, which collects the output of its task itself
    ("plugin", 2),
    ("artifact", 3),
    ("executor", 3),
    ("csi", 4),
    ("driver", 4),
    ("alloc", 5),
    ("agent", 6),
    ("cli", 7),
    ("roles", 7),
];

/// The arrows that stay on a layer: `roles` starts the command line, and two modules use `spec`, which does no I/O and uses nobody:
/// system calls speak of processes and signals in its words, and templates hold their values in its maps. Templates make keys with
/// functions of a C library, which `sys` calls.
const BESIDE: &[(&str, &str)] = &[("roles", "cli"), ("sys", "spec"), ("template", "spec"), ("template", "sys")];

/// Files of `src/` that belong to no module.
const OUTSIDE: &[&str] = &["fuzz.rs", "lib.rs", "main.rs"];

/// Names that end up imported by everybody; a type lives in the lowest module that understands it.
const HUBS: &[&str] = &["util", "utils", "common", "helper", "helpers"];

/// Programs that are roles of this executable: started through `plugin::launch`, never searched for in PATH.
const OURSELVES: &[&str] =
    &["agentbin", "executor", "libcontainer-shim", "logmon", "docker_logger", "artifact-fetcher"];

/// Files that hand a path which they did not write down themselves to a call that follows links, and whose path that is.
/// Everything else below a task's directory is opened by `sys::path`.
const BY_NAME: &[(&str, &str)] = &[
    ("agent/api/agent.rs", "files of the kernel and of the host's configuration of its network"),
    ("alloc/atomic.rs", "our own folder"),
    ("alloc/dir.rs", "the data folder, where only we write; what lies in an allocation goes through sys::path"),
    ("alloc/facts.rs", "files of the kernel, and what the host says of its release"),
    ("alloc/fake.rs", "a driver for tests"),
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
    ("cli/plugin.rs", "files that the operator names"),
    ("cli/probe.rs", "a folder of our own, before a task runs in it and after"),
    ("cli/token.rs", "our own folder, where only we write"),
    ("cli/upgrade.rs", "the file that the operator started, and our own folder, where only we write"),
    ("cli/volumes.rs", "the socket of a plugin, which the operator names"),
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
    ("net/namespace.rs", "our own directory of namespaces"),
    ("net/resolver.rs", "the host's resolver configuration"),
    ("plugin/connection.rs", "sockets of our own"),
    ("plugin/host.rs", "sockets of our own"),
    ("plugin/server.rs", "sockets of our own"),
    ("roles/driver.rs", "our own folder, made and checked"),
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

/// The crates on which this one is to stand, as code names them: each does work in the program itself.
const CARD: &[&str] =
    &["anyhow", "caps", "cgroups_rs", "clap", "libc", "nix", "procfs", "rustix", "serde_json", "signal_hook"];

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

fn layer(module: &str) -> Option<u8> {
    LAYERS.iter().find(|(name, _)| *name == module).map(|(_, n)| *n)
}

// ---------------------------------------------------------------------------------------------------------------
// A light tokenizer: enough of Rust to tell code from comments and strings.

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Ident(String),
    Text(String),
    Comment(String),
    Punct(char),
    PathSep,
    Other,
}

#[derive(Debug, Clone)]
struct Token {
    line: usize,
    kind: Kind,
}

impl Token {
    fn is(&self, c: char) -> bool {
        self.kind == Kind::Punct(c)
    }

    fn ident(&self) -> Option<&str> {
        match &self.kind {
            Kind::Ident(name) => Some(name),
            _ => None,
        }
    }
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    line: usize,
    out: Vec<Token>,
}

fn tokens(text: &str) -> Vec<Token> {
    let mut lexer = Lexer { chars: text.chars().collect(), at: 0, line: 1, out: Vec::new() };
    lexer.run();
    lexer.out
}

/// The tokens without comments: what the compiler sees.
fn code(text: &str) -> Vec<Token> {
    tokens(text).into_iter().filter(|t| !matches!(t.kind, Kind::Comment(_))).collect()
}

impl Lexer {
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn take(&mut self) -> char {
        let c = self.peek(0);
        self.at += 1;
        if c == '\n' {
            self.line += 1;
        }
        c
    }

    fn push(&mut self, line: usize, kind: Kind) {
        self.out.push(Token { line, kind });
    }

    fn run(&mut self) {
        while self.at < self.chars.len() {
            let (line, c) = (self.line, self.peek(0));
            if c.is_whitespace() {
                self.take();
            } else if c == '/' && self.peek(1) == '/' {
                let comment = self.take_while(|c| c != '\n');
                self.push(line, Kind::Comment(comment));
            } else if c == '/' && self.peek(1) == '*' {
                let comment = self.block_comment();
                self.push(line, Kind::Comment(comment));
            } else if c == '"' {
                let text = self.quoted();
                self.push(line, Kind::Text(text));
            } else if c == '\'' {
                self.char_or_lifetime();
                self.push(line, Kind::Other);
            } else if c == '_' || c.is_alphabetic() {
                self.word(line);
            } else if c.is_ascii_digit() {
                self.take_while(|c| c == '_' || c.is_alphanumeric());
                self.push(line, Kind::Other);
            } else if c == ':' && self.peek(1) == ':' {
                self.at += 2;
                self.push(line, Kind::PathSep);
            } else {
                self.take();
                self.push(line, Kind::Punct(c));
            }
        }
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) -> String {
        let mut text = String::new();
        while self.at < self.chars.len() && keep(self.peek(0)) {
            text.push(self.take());
        }
        text
    }

    fn block_comment(&mut self) -> String {
        let (mut depth, mut text) = (0, String::new());
        while self.at < self.chars.len() {
            match (self.peek(0), self.peek(1)) {
                ('/', '*') => depth += 1,
                ('*', '/') => depth -= 1,
                _ => {
                    text.push(self.take());
                    continue;
                }
            }
            self.at += 2;
            if depth == 0 {
                break;
            }
        }
        text
    }

    fn quoted(&mut self) -> String {
        let mut text = String::new();
        self.take();
        while self.at < self.chars.len() {
            match self.take() {
                '"' => break,
                '\\' => {
                    text.push('\\');
                    text.push(self.take());
                }
                c => text.push(c),
            }
        }
        text
    }

    /// After the `r` of a raw string: `#`s, quote, text, quote, as many `#`s.
    fn raw(&mut self) -> String {
        let hashes = self.take_while(|c| c == '#').len();
        self.take();
        let mut text = String::new();
        while self.at < self.chars.len() {
            let c = self.take();
            if c == '"' && (0..hashes).all(|i| self.peek(i) == '#') {
                self.at += hashes;
                break;
            }
            text.push(c);
        }
        text
    }

    fn char_or_lifetime(&mut self) {
        self.take();
        if self.peek(0) == '\\' {
            self.at += 2;
            self.take_while(|c| c != '\'');
            self.take();
        } else if self.peek(1) == '\'' {
            self.take();
            self.take();
        } else {
            self.take_while(|c| c == '_' || c.is_alphanumeric());
        }
    }

    fn word(&mut self, line: usize) {
        let word = self.take_while(|c| c == '_' || c.is_alphanumeric());
        let next = (self.peek(0), self.peek(1));
        let kind = match word.as_str() {
            "r" | "br" | "cr" if next.0 == '"' || (next.0 == '#' && (next.1 == '"' || next.1 == '#')) => {
                Kind::Text(self.raw())
            }
            "b" | "c" if next.0 == '"' => Kind::Text(self.quoted()),
            "b" if next.0 == '\'' => {
                self.char_or_lifetime();
                Kind::Other
            }
            "r" if next.0 == '#' => {
                self.take();
                Kind::Ident(self.take_while(|c| c == '_' || c.is_alphanumeric()))
            }
            _ => Kind::Ident(word),
        };
        self.push(line, kind);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// The checks. `path` is relative to `src/`; an answer is one line per violation.

/// The module of a file: the first component of its path, `None` for the crate root.
fn module_of(path: &str) -> Option<&str> {
    if OUTSIDE.contains(&path) {
        return None;
    }
    Some(path.split('/').next().unwrap_or(path).trim_end_matches(".rs"))
}

/// How deep a file is in the tree of modules: 0 is the crate root, 1 a module of `src`.
fn module_depth(path: &str) -> usize {
    let parts = path.split('/').count();
    if path.ends_with("/mod.rs") { parts - 1 } else { parts }
}

/// Names at the crate root that a file uses, with the line of each: `crate::x`, `super::super::x`, groups of them.
fn root_names(path: &str, text: &str) -> Vec<(usize, String)> {
    let tokens = code(text);
    let mut found = Vec::new();
    let mut braces = 0_usize;
    let mut inline_modules: Vec<usize> = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        let token = &tokens[i];
        let starts_path = i == 0 || tokens[i - 1].kind != Kind::PathSep;
        match token.ident() {
            Some("mod") if tokens.get(i + 2).is_some_and(|t| t.is('{')) => {
                inline_modules.push(braces);
                braces += 1;
                i += 3;
                continue;
            }
            Some("crate" | "super" | "self")
                if starts_path && tokens.get(i + 1).is_some_and(|t| t.kind == Kind::PathSep) =>
            {
                let depth = module_depth(path) + inline_modules.len();
                i = walk_path(&tokens, i, depth, &mut found);
                continue;
            }
            _ => {}
        }
        if token.is('{') {
            braces += 1;
        } else if token.is('}') {
            braces = braces.saturating_sub(1);
            if inline_modules.last() == Some(&braces) {
                inline_modules.pop();
            }
        }
        i += 1;
    }
    found
}

/// Follows one path or use tree from `i`, standing in a module `depth` levels below the crate root.
fn walk_path(tokens: &[Token], mut i: usize, mut depth: usize, found: &mut Vec<(usize, String)>) -> usize {
    loop {
        let Some(token) = tokens.get(i) else { return i };
        match &token.kind {
            Kind::Ident(word) if word == "crate" => depth = 0,
            Kind::Ident(word) if word == "super" => depth = depth.saturating_sub(1),
            Kind::Ident(word) if word == "self" => {}
            Kind::Ident(word) => {
                if depth == 0 {
                    found.push((token.line, word.clone()));
                }
                return skip_branch(tokens, i + 1);
            }
            Kind::Punct('*') => {
                if depth == 0 {
                    found.push((token.line, "*".to_owned()));
                }
                return i + 1;
            }
            Kind::Punct('{') => {
                i += 1;
                while tokens.get(i).is_some_and(|t| !t.is('}')) {
                    i = walk_path(tokens, i, depth, found);
                    while tokens.get(i).is_some_and(|t| !t.is(',') && !t.is('}')) {
                        i += 1;
                    }
                    if tokens.get(i).is_some_and(|t| t.is(',')) {
                        i += 1;
                    }
                }
                return i + 1;
            }
            _ => return i,
        }
        i += 1;
        if tokens.get(i).is_none_or(|t| t.kind != Kind::PathSep) {
            return i;
        }
        i += 1;
    }
}

/// The end of what follows a name in a use tree: `::a::{b, c}`.
fn skip_branch(tokens: &[Token], mut i: usize) -> usize {
    while tokens.get(i).is_some_and(|t| t.kind == Kind::PathSep) {
        i += 1;
        match tokens.get(i) {
            Some(t) if t.is('{') => {
                let mut open = 0;
                while let Some(t) = tokens.get(i) {
                    open += i32::from(t.is('{'));
                    open -= i32::from(t.is('}'));
                    i += 1;
                    if open == 0 {
                        break;
                    }
                }
            }
            Some(t) if t.ident().is_some() || t.is('*') => i += 1,
            _ => {}
        }
    }
    i
}

fn arrows(path: &str, text: &str) -> Vec<String> {
    let Some(module) = module_of(path) else { return Vec::new() };
    let Some(mine) = layer(module) else {
        return vec![format!("{path}: module `{module}` is not in the table of layers")];
    };
    let mut bad = Vec::new();
    for (line, name) in root_names(path, text) {
        match layer(&name) {
            _ if name == module || BESIDE.contains(&(module, &name)) => {}
            Some(theirs) if theirs < mine => {}
            Some(theirs) if theirs == mine => bad.push(format!("{path}:{line}: {module} -> {name} points sideways")),
            Some(_) => bad.push(format!("{path}:{line}: {module} -> {name} points up")),
            None => bad.push(format!("{path}:{line}: crate::{name} is no module; name the module that owns it")),
        }
    }
    bad
}

/// `unsafe` only in `sys`, each block and impl there led by a SAFETY comment of its own.
fn unsafe_home(path: &str, text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let mut bad = Vec::new();
    for (i, token) in tokens.iter().enumerate().filter(|(_, t)| t.ident() == Some("unsafe")) {
        let line = token.line;
        if module_of(path) != Some("sys") {
            bad.push(format!("{path}:{line}: unsafe outside sys"));
            continue;
        }
        let next = tokens[i + 1..].iter().find(|t| !matches!(t.kind, Kind::Comment(_)));
        let needs_argument = next.is_some_and(|t| t.is('{') || t.ident() == Some("impl"));
        if needs_argument && !has_safety_comment(&tokens[..i]) {
            bad.push(format!("{path}:{line}: unsafe without a SAFETY comment before it"));
        }
    }
    bad
}

/// Walks back to the start of the statement; an earlier `unsafe` in it has used up the comment.
fn has_safety_comment(before: &[Token]) -> bool {
    for token in before.iter().rev() {
        match &token.kind {
            Kind::Comment(text) if text.contains("SAFETY:") => return true,
            Kind::Punct(';' | '{' | '}') => return false,
            Kind::Ident(word) if word == "unsafe" => return false,
            _ => {}
        }
    }
    false
}

/// The program ends in `roles`; after a fork `_exit` is right everywhere.
fn exits(path: &str, text: &str) -> Vec<String> {
    if matches!(module_of(path), Some("roles")) {
        return Vec::new();
    }
    let tokens = code(text);
    let mut bad = Vec::new();
    for i in 0..tokens.len() {
        if !matches!(tokens[i].ident(), Some("process" | "libc"))
            || tokens.get(i + 1).map(|t| &t.kind) != Some(&Kind::PathSep)
        {
            continue;
        }
        let rest = &tokens[i + 2..];
        let hit = match rest.first() {
            Some(t) if t.is('{') => rest.iter().take_while(|t| !t.is(';')).find(|t| t.ident() == Some("exit")),
            Some(t) if t.ident() == Some("exit") => Some(t),
            _ => None,
        };
        if let Some(token) = hit {
            bad.push(format!("{path}:{}: process::exit outside roles", token.line));
        }
    }
    bad
}

/// A role is this executable, opened once; a name would be looked up in PATH.
fn path_searches(path: &str, text: &str) -> Vec<String> {
    let tokens = code(text);
    let mut bad = Vec::new();
    for window in tokens.windows(5) {
        let [command, sep, new, open, name] = window else { continue };
        let Kind::Text(name_text) = &name.kind else { continue };
        if command.ident() == Some("Command")
            && sep.kind == Kind::PathSep
            && new.ident() == Some("new")
            && open.is('(')
            && OURSELVES.contains(&name_text.as_str())
        {
            bad.push(format!("{path}:{}: Command::new(\"{name_text}\") searches PATH for ourselves", name.line));
        }
    }
    bad
}

/// A program that is started without a word to `sys::children` may be killed as an orphan.
fn unlisted_starts(path: &str, text: &str) -> Vec<String> {
    if path.ends_with("/tests.rs") || STARTS.iter().any(|(file, _)| *file == path) {
        return Vec::new();
    }
    let starts = |window: &&[Token]| {
        window[0].is('.')
            && matches!(window[1].ident(), Some("spawn" | "output"))
            && window[2].is('(')
            && window[3].is(')')
    };
    let tokens = code(without_tests(text));
    let found = tokens.windows(4).filter(starts);
    found.map(|w| format!("{path}:{}: starts a program; use sys::children::spawn", w[1].line)).collect()
}

/// A file may not be compiled into a module it does not lie in.
fn path_attributes(path: &str, text: &str) -> Vec<String> {
    code(text)
        .windows(3)
        .filter(|w| w[0].is('#') && w[1].is('[') && w[2].ident() == Some("path"))
        .map(|w| format!("{path}:{}: #[path] hides which module a file belongs to", w[0].line))
        .collect()
}

/// The code before the tests of a file.
fn without_tests(text: &str) -> &str {
    text.find("#[cfg(test)]\nmod ").map_or(text, |at| &text[..at])
}

/// What `std::fs` is given is a path written down on the spot, or the file has a reason: a task puts links where its
/// directory is, and every one of these calls follows them.
fn opens_by_name(path: &str, text: &str) -> Vec<String> {
    if BY_NAME.iter().any(|(file, _)| *file == path) || path.contains("/tests/") || path.ends_with("/tests.rs") {
        return Vec::new();
    }
    let tokens = code(without_tests(text));
    let mut bad = Vec::new();
    for window in tokens.windows(5) {
        let [owner, sep, name, open, argument] = window else { continue };
        let (Some(owner), Some(call)) = (owner.ident(), name.ident()) else { continue };
        let opens = match owner {
            "fs" => OPENS.contains(&call),
            "File" => matches!(call, "open" | "create" | "create_new" | "options"),
            "OpenOptions" => call == "new",
            _ => false,
        };
        let written_down = matches!(argument.kind, Kind::Text(_));
        if opens && sep.kind == Kind::PathSep && open.is('(') && !written_down {
            bad.push(format!("{path}:{}: {owner}::{call} follows links; open it through sys::path", name.line));
        }
    }
    bad
}

/// The standard library's B-trees are 3 to 5 KB of code for each pair of types (docs/size.md).
fn large_maps(path: &str, text: &str) -> Vec<String> {
    let tokens = code(without_tests(text));
    let mut bad = Vec::new();
    for (at, window) in tokens.windows(4).enumerate() {
        let [std, _, collections, sep] = window else { continue };
        if std.ident() != Some("std") || collections.ident() != Some("collections") || sep.kind != Kind::PathSep {
            continue;
        }
        let mut named: Vec<&Token> = tokens[at + 4..].iter().take_while(|token| !token.is('}')).collect();
        if !named.first().is_some_and(|token| token.is('{')) {
            named.truncate(1);
        }
        let trees = named.iter().filter_map(|token| Some((token.line, token.ident()?)));
        let trees = trees.filter(|(_, name)| matches!(*name, "BTreeMap" | "BTreeSet"));
        bad.extend(trees.map(|(line, name)| format!("{path}:{line}: {name} of std; use the one of spec::collections")));
    }
    bad
}

/// `serde_json`'s macro for objects is 100 to 190 bytes of code for each member more than ours (docs/size.md).
fn large_objects(path: &str, text: &str) -> Vec<String> {
    if path.contains("/tests/") || path.ends_with("/tests.rs") || path.starts_with("spec/json") {
        return Vec::new();
    }
    let tokens = code(without_tests(text));
    let mut bad = Vec::new();
    for (at, window) in tokens.windows(2).enumerate() {
        let [owner, sep] = window else { continue };
        if owner.ident() != Some("serde_json") || sep.kind != Kind::PathSep {
            continue;
        }
        let mut named: Vec<&Token> = tokens[at + 2..].iter().take_while(|token| !token.is('}')).collect();
        if !named.first().is_some_and(|token| token.is('{')) {
            named.truncate(1);
        }
        let macros = named.iter().filter(|token| token.ident() == Some("json"));
        bad.extend(macros.map(|token| format!("{path}:{}: json! of serde_json; use spec::json::json", token.line)));
    }
    bad
}

/// A module opens with its one job and with what it never does.
fn opening(path: &str, text: &str) -> Vec<String> {
    if path.split('/').count() != 2 || !path.ends_with("/mod.rs") {
        return Vec::new();
    }
    let doc: Vec<&str> = text.lines().map_while(|l| l.strip_prefix("//!")).collect();
    let doc = doc.join(" ");
    if doc.trim().is_empty() {
        return vec![format!("{path}:1: a module opens with a `//!` sentence that says its one job")];
    }
    // A module that is still empty says so; it owes its sentence from its first item on.
    let empty = text.lines().all(|l| l.starts_with("//!") || l.trim().is_empty());
    if empty || doc.contains("ever ") {
        return Vec::new();
    }
    vec![format!("{path}:1: the opening does not say what the module never does (\"Never ...\")")]
}

/// No hub module that everybody imports, and no module called `error`.
fn hubs(path: &str) -> Vec<String> {
    let names: Vec<&str> = path.split('/').map(|part| part.trim_end_matches(".rs")).collect();
    let hub = names.iter().find(|n| HUBS.contains(n)).or(names.first().filter(|n| matches!(**n, "error" | "errors")));
    hub.map(|name| format!("{path}: `{name}` is a hub; put the item into the lowest module that understands it"))
        .into_iter()
        .collect()
}

/// Whether the program, not only its tests, names something of a crate: `name::item`, in a path or a `use`.
fn works_with(path: &str, text: &str, name: &str) -> bool {
    let of_tests = ["/tests/", "/testdata/"].iter().any(|part| path.contains(part)) || path.ends_with("/tests.rs");
    let tokens = code(without_tests(text));
    let named = |at: usize| {
        let behind = |n: usize| at.checked_sub(n).map(|at| &tokens[at]);
        let inside =
            behind(1).is_some_and(|t| t.kind == Kind::PathSep) && behind(2).is_some_and(|t| t.ident().is_some());
        !inside && tokens[at].ident() == Some(name) && tokens.get(at + 1).is_some_and(|t| t.kind == Kind::PathSep)
    };
    !of_tests && (0..tokens.len()).any(named)
}

fn check_source(path: &str, text: &str) -> Vec<String> {
    let mut bad = hubs(path);
    let checks = [
        arrows,
        unsafe_home,
        exits,
        path_searches,
        path_attributes,
        opens_by_name,
        unlisted_starts,
        large_maps,
        large_objects,
        opening,
    ];
    for check in checks {
        bad.extend(check(path, text));
    }
    bad
}

/// Spans in backticks of a document, with their lines; fenced blocks are examples and do not count.
fn backticked(document: &str) -> Vec<(usize, &str)> {
    let mut spans = Vec::new();
    let mut fenced = false;
    for (number, line) in document.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            spans.extend(line.split('`').skip(1).step_by(2).map(|span| (number + 1, span)));
        }
    }
    spans
}

/// Paths of the repository that a document names.
fn named_paths(document: &str) -> Vec<(usize, &str)> {
    const TOPS: &[&str] =
        &["src/", "tests/", "scripts/", "proto/", "examples/", "benches/", "man/", "docs/", ".ci/", ".cargo/"];
    backticked(document)
        .into_iter()
        .map(|(line, span)| (line, span.split([' ', ':', '#']).next().unwrap_or(span)))
        .filter(|(_, path)| TOPS.iter().any(|top| path.starts_with(top)) && !path.contains(['*', '<', '{']))
        .collect()
}

/// Where a document's links lead inside of the repository, with their lines.
fn links(document: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    for (number, line) in document.lines().enumerate() {
        for (at, _) in line.match_indices("](") {
            let target = line[at + 2..].split(')').next().unwrap_or_default();
            if !target.contains("://") && !target.starts_with("mailto:") {
                links.push((number + 1, target));
            }
        }
    }
    links
}

/// The name by which a heading can be linked to, as code hosts make it.
fn anchor_of(line: &str) -> Option<String> {
    let title = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
    let kept =
        title.to_lowercase().chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c)).collect::<String>();
    Some(kept.replace(' ', "-"))
}

/// Names that a document says are in a file: `src/a.rs::name`.
fn named_items(document: &str) -> Vec<(usize, &str, &str)> {
    backticked(document)
        .into_iter()
        .filter_map(|(line, span)| span.split_once("::").map(|(path, name)| (line, path, name)))
        .filter(|(_, path, _)| path.starts_with("src/") && path.ends_with(".rs"))
        .collect()
}

/// Whether a file defines a name.
fn defines(text: &str, name: &str) -> bool {
    const KINDS: &[&str] = &["fn", "struct", "enum", "trait", "const", "static", "type", "mod", "macro_rules"];
    code(text).windows(2).any(|w| w[0].ident().is_some_and(|k| KINDS.contains(&k)) && w[1].ident() == Some(name))
}

/// The ids in the first column of the table below the heading that names it.
fn done_ids(document: &str) -> Vec<&str> {
    document
        .lines()
        .skip_while(|l| !(l.starts_with('#') && l.to_lowercase().contains("mission ids done")))
        .skip(1)
        .take_while(|l| !l.starts_with('#'))
        .filter_map(|l| l.strip_prefix('|')?.split('|').next())
        .map(str::trim)
        .filter(|id| is_mission_id(id))
        .collect()
}

fn is_mission_id(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_uppercase())
        && chars.as_str().parse::<u8>().is_ok_and(|n| n.to_string() == chars.as_str())
}

/// Whether a text names an id as a word of its own, or has a test whose name begins with it.
fn names_id(text: &str, id: &str) -> bool {
    text.match_indices(id).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + id.len()..].chars().next();
        let outside = |c: Option<char>| c.is_none_or(|c| !(c.is_alphanumeric() || c == '_'));
        outside(before) && outside(after)
    }) || text.contains(&format!("fn {}_", id.to_lowercase()))
}

// ---------------------------------------------------------------------------------------------------------------
// The house as it stands.

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below `dir` whose name ends in one of `ends`, as (path relative to `dir`, text).
fn files(dir: &Path, ends: &[&str]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(next) = todo.pop() {
        let Ok(entries) = fs::read_dir(&next) else { continue };
        for entry in entries {
            let path = entry.expect("reads a folder entry").path();
            if path.is_dir() {
                todo.push(path);
            } else if ends.iter().any(|end| path.to_string_lossy().ends_with(end)) {
                let name = path.strip_prefix(dir).expect("lies below").to_string_lossy().into_owned();
                found.insert(name, String::from_utf8_lossy(&fs::read(&path).expect("reads a file")).into_owned());
            }
        }
    }
    found
}

fn report(what: &str, bad: &[String]) {
    assert!(bad.is_empty(), "{what}:\n{}", bad.join("\n"));
}

#[test]
fn the_source_keeps_its_floors() {
    let sources = files(&repository().join("src"), &[".rs"]);
    assert!(sources.len() > 10, "src/ was not read");
    let bad: Vec<String> = sources.iter().flat_map(|(path, text)| check_source(path, text)).collect();
    report("the house is out of order", &bad);
}

#[test]
fn every_crate_of_the_card_does_work_in_the_program() {
    let sources = files(&repository().join("src"), &[".rs"]);
    let manifest = fs::read_to_string(repository().join("Cargo.toml")).expect("reads Cargo.toml");
    let (_, dependencies) = manifest.split_once("\n[dependencies]\n").expect("there are dependencies");
    let dependencies = dependencies.split("\n[").next().unwrap_or_default();
    let listed = |name: &str| {
        let names = dependencies.lines().filter_map(|line| line.split([' ', '=']).next());
        names.map(|listed| listed.replace('-', "_")).any(|listed| listed == name)
    };
    let bad: Vec<String> = CARD
        .iter()
        .filter(|name| !listed(name) || !sources.iter().any(|(path, text)| works_with(path, text, name)))
        .map(|name| format!("{name} is not used by src/"))
        .collect();
    report("crates of the card", &bad);
}

#[test]
fn every_reason_to_open_by_name_is_needed() {
    let sources = files(&repository().join("src"), &[".rs"]);
    let bad: Vec<String> = BY_NAME
        .iter()
        .filter(|(file, _)| {
            // Under another name the same text has no reason.
            sources.get(*file).is_none_or(|text| opens_by_name("some/file.rs", text).is_empty())
        })
        .map(|(file, _)| format!("{file} opens nothing by name"))
        .collect();
    report("reasons that nobody needs", &bad);
}

#[test]
fn the_lint_for_unsafe_is_on() {
    let lib = fs::read_to_string(repository().join("src/lib.rs")).expect("reads lib.rs");
    assert!(lib.contains("#![deny(unsafe_code)]"), "src/lib.rs does not deny unsafe_code");
    let allowed = lib.matches("(unsafe_code").count();
    assert_eq!(allowed, 2, "src/lib.rs lifts the ban on unsafe for more than sys");
}

#[test]
fn paths_in_the_documents_exist() {
    let mut bad = Vec::new();
    let pages: Vec<String> =
        files(&repository().join("docs"), &[".md"]).into_keys().map(|n| format!("docs/{n}")).collect();
    let tops = ["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md"];
    for name in tops.into_iter().chain(pages.iter().map(String::as_str)) {
        let text = fs::read_to_string(repository().join(name)).expect("reads the document");
        for (line, link) in links(&text) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { name.into() } else { Path::new(name).with_file_name(file) };
            match fs::read_to_string(repository().join(&target)) {
                Err(_) => bad.push(format!("{name}:{line}: {link} leads nowhere")),
                Ok(page) if !anchor.is_empty() && !page.lines().any(|l| anchor_of(l).as_deref() == Some(anchor)) => {
                    bad.push(format!("{name}:{line}: {} has no heading #{anchor}", target.display()));
                }
                Ok(_) => {}
            }
        }
        for (line, path) in named_paths(&text) {
            if !repository().join(path).exists() {
                bad.push(format!("{name}:{line}: {path} does not exist"));
            }
        }
        for (line, path, item) in named_items(&text) {
            let source = fs::read_to_string(repository().join(path)).unwrap_or_default();
            if !defines(&source, item) {
                bad.push(format!("{name}:{line}: {path} defines no {item}"));
            }
        }
    }
    report("documents name what is not there", &bad);
}

#[test]
fn the_table_of_floors_in_the_document_is_this_one() {
    let text = fs::read_to_string(repository().join("ARCHITECTURE.md")).expect("reads ARCHITECTURE.md");
    let mut bad = Vec::new();
    for (module, number) in LAYERS {
        if !repository().join("src").join(module).is_dir() {
            continue; // arrives with a later issue
        }
        let shown = *number;
        let row = text.lines().find(|l| l.starts_with('|') && l.contains(&format!("`{module}/`")));
        match row.and_then(|l| l.split('|').nth(1)) {
            Some(cell) if cell.trim() == shown.to_string() => {}
            Some(cell) => bad.push(format!("ARCHITECTURE.md has `{module}/` on layer {}, not {shown}", cell.trim())),
            None => bad.push(format!("ARCHITECTURE.md has no row for `{module}/`")),
        }
    }
    report("the table of layers drifted", &bad);
}

#[test]
fn what_is_done_has_a_test() {
    let document = fs::read_to_string(repository().join("docs/coverage.md")).expect("reads docs/coverage.md");
    let ids = done_ids(&document);
    assert!(!ids.is_empty(), "docs/coverage.md has no table of mission ids done");
    let mut tests: Vec<String> = files(&repository().join("tests"), &[".rs", ".go", ".sh"])
        .into_iter()
        .filter(|(path, _)| path != "architecture.rs")
        .map(|(_, text)| text)
        .collect();
    tests.extend(files(&repository().join("src"), &[".rs"]).into_values().filter_map(|text| {
        let at = text.find("#[cfg(test)]")?;
        Some(text[at..].to_owned())
    }));
    let mut bad: Vec<String> = ids
        .into_iter()
        .filter(|id| !tests.iter().any(|text| names_id(text, id)))
        .map(|id| format!("docs/coverage.md says that {id} is done, but no test names it"))
        .collect();
    // Each file that a row names does so, too.
    for row in document.lines() {
        let Some(id) = row.strip_prefix('|').and_then(|r| r.split('|').next()).map(str::trim) else { continue };
        let named = if is_mission_id(id) { named_paths(row) } else { Vec::new() };
        for (_, path) in named {
            let text = fs::read_to_string(repository().join(path)).unwrap_or_default();
            if !names_id(&text, id) {
                bad.push(format!("docs/coverage.md says that {path} tests {id}, but it does not name it"));
            }
        }
    }
    report("promises without a test", &bad);
}

/// Functions of the C library that load modules for another C library (`nsswitch.conf`), or would.
const LOADING: &[&str] = &[
    "getaddrinfo",
    "getgrent",
    "getgrgid",
    "getgrnam",
    "getgrouplist",
    "gethostbyaddr",
    "gethostbyname",
    "getnameinfo",
    "getpwent",
    "getpwnam",
    "getpwuid",
    "getservbyname",
    "initgroups",
    "nss_hosts_lookup",
    "nss_lookup",
    "nss_lookup_function",
    "nss_next",
    "nss_services_lookup",
];

/// The symbols of a 64-bit little-endian ELF file; none when it has been stripped of them.
fn symbols(elf: &[u8]) -> BTreeSet<String> {
    let number =
        |at: usize, len: usize| elf[at..at + len].iter().rev().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte));
    assert_eq!(&elf[..6], b"\x7fELF\x02\x01", "a 64-bit program");
    let (table, size, count) = (number(40, 8), number(58, 2), number(60, 2));
    // A section's type, place, length, and the section that it is linked to.
    let section = |index: usize| {
        let at = table + index * size;
        (number(at + 4, 4), number(at + 24, 8), number(at + 32, 8), number(at + 40, 4))
    };
    let mut found = BTreeSet::new();
    // SHT_SYMTAB
    for (_, place, length, linked) in (0..count).map(section).filter(|(kind, ..)| *kind == 2) {
        let texts = section(linked).1;
        for symbol in (place..place + length).step_by(24) {
            let name = &elf[texts + number(symbol, 4)..];
            let end = name.iter().position(|byte| *byte == 0).expect("a name ends");
            found.insert(String::from_utf8_lossy(&name[..end]).into_owned());
        }
    }
    found
}

/// What of these symbols loads modules: `getpwnam_r` and `__new_getpwnam_r`, too. Not what lies behind `fork`, which keeps the
/// list of modules as it is for the child (`__nss_database_fork_prepare_parent`), and with it the readers of files.
fn loading(symbols: &BTreeSet<String>) -> Vec<String> {
    let plain = |name: &str| {
        let name = name.trim_start_matches('_').trim_start_matches("new_").trim_end_matches("_r");
        name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned()
    };
    let loads = |name: &&String| LOADING.contains(&plain(name).as_str());
    symbols.iter().filter(loads).map(|name| format!("{name} is linked in: ask src/names instead")).collect()
}

/// Invariant 13. Also what nobody calls must not be there: then nobody can begin to.
#[test]
#[cfg(not(feature = "mutants"))]
fn no_name_service_of_the_c_library_is_linked() {
    let symbols = symbols(&fs::read(env!("CARGO_BIN_EXE_agentbin")).expect("reads the program"));
    assert!(symbols.contains("main"), "the program is stripped: nothing can be seen in it");
    report("the program may load the host's NSS modules", &loading(&symbols));
}

/// The tables for unwinding are registered when the program starts, so that it needs no index of them (build.rs). A program
/// with neither would end at a panic instead of unwinding.
#[test]
#[cfg(all(not(feature = "mutants"), target_arch = "x86_64", target_env = "gnu"))]
fn a_panic_finds_the_tables_for_unwinding() {
    let symbols = symbols(&fs::read(env!("CARGO_BIN_EXE_agentbin")).expect("reads the program"));
    for needed in ["__EH_FRAME_BEGIN__", "__register_frame_info"] {
        assert!(symbols.contains(needed), "{needed} is not linked in: build.rs may not leave the index out");
    }
}

/// The texts in quotes that directly follow one of `calls`.
fn quoted_after<'a>(text: &'a str, calls: &[&str]) -> BTreeSet<&'a str> {
    calls.iter().flat_map(|call| text.split(call).skip(1)).filter_map(|rest| rest.split('"').next()).collect()
}

/// The rows of the table of attacks: the id in small letters, and the mutants that the last column names.
fn attack_rows(document: &str) -> BTreeMap<String, BTreeSet<&str>> {
    let rows = document.lines().filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'));
    let cells = rows.map(|row| row.split('|').collect::<Vec<_>>());
    let attacks = cells.filter(|cells| is_attack(&cells[0].trim().to_lowercase()));
    attacks
        .map(|cells| {
            let seen = cells[cells.len() - 1].split('`').skip(1).step_by(2).filter(|span| is_attack(span)).collect();
            (cells[0].trim().to_lowercase(), seen)
        })
        .collect()
}

/// `a03`, `b05-links`, `d100`.
fn is_attack(text: &str) -> bool {
    let id = text.split('-').next().unwrap_or(text);
    matches!(id.len(), 3 | 4) && id.starts_with(['a', 'b', 'c', 'd']) && id[1..].chars().all(|c| c.is_ascii_digit())
}

/// What disagrees between the table of attacks, the attacks, and the defences that can be taken out.
fn attack_faults(document: &str, attacks: &str, source: &str) -> Vec<String> {
    let rows = attack_rows(document);
    let told: BTreeSet<&str> = rows.values().flatten().copied().collect();
    let tried = quoted_after(attacks, &["Mutant::new(\"", "Mutant::nomad(\"", "Mutant::slow(\""]);
    let made = quoted_after(source, &["mutant::on(\""]);
    let mut bad = Vec::new();
    let ids = quoted_after(attacks, &["id: \""]);
    bad.extend(ids.iter().filter(|id| !rows.contains_key(**id)).map(|id| format!("{id} has no row")));
    for (id, mutants) in &rows {
        if !ids.contains(id.as_str()) || !defines(attacks, id) {
            bad.push(format!("{id} has a row, but no attack and function of that name"));
        }
        if mutants.is_empty() {
            bad.push(format!("{id} was never seen to fail"));
        }
        bad.extend(mutants.iter().filter(|m| !m.starts_with(id.as_str())).map(|m| format!("{m} in the row of {id}")));
    }
    for (what, one, other) in [
        ("is in the table, but no attack tries it", &told, &tried),
        ("is tried, but not in the table", &tried, &told),
        ("is tried, but src/ has no such mutant", &tried, &made),
        ("is in src/, but no attack tries it", &made, &tried),
    ] {
        bad.extend(one.difference(other).map(|name| format!("mutant {name} {what}")));
    }
    bad
}

#[test]
fn attacks_mutants_and_their_table_are_the_same() {
    let text = |dir: &str, ends: &str| -> String { files(&repository().join(dir), &[ends]).into_values().collect() };
    let document = fs::read_to_string(repository().join("tests/attack/README.md")).expect("reads the table");
    report("the attack suite drifted", &attack_faults(&document, &text("tests/attack", ".rs"), &text("src", ".rs")));
}

// ---------------------------------------------------------------------------------------------------------------
// Each check is seen to fail, and to leave good code alone.

mod samples {
    use super::*;

    #[test]
    fn functions_that_load_modules_are_seen() {
        let bad = |names: &[&str]| loading(&names.iter().map(|name| (*name).to_owned()).collect()).len();
        assert_eq!(
            bad(&["main", "getrandom", "_ZN3std3net11getaddrinfo17h0E", "getgroups", "_nss_files_getpwnam_r"]),
            0
        );
        assert_eq!(bad(&["getaddrinfo", "__getpwnam_r", "__new_gethostbyname2_r", "getgrgid_r", "__nss_lookup"]), 5);
        // This program has its own.
        let own = symbols(&fs::read("/proc/self/exe").expect("reads this program"));
        assert!(own.contains("main") && own.iter().any(|name| name.contains("functions_that_load_modules")));
    }

    #[test]
    fn an_arrow_up_is_reported_with_its_line() {
        let text = "//! Cgroups. Never anything.\n\nuse crate::executor::Executor;\n";
        assert_eq!(arrows("cgroup/mod.rs", text), ["cgroup/mod.rs:3: cgroup -> executor points up"]);
    }

    #[test]
    fn arrows_hide_in_groups_and_expressions() {
        let bad = |text: &str| arrows("container/child/mounts.rs", text);
        assert_eq!(bad("use crate::{spec::Mount, executor::{self, X}, sys};").len(), 1);
        assert_eq!(
            bad("use crate::{\n    sys::{a, b::{c, d}},\n    alloc,\n};"),
            ["container/child/mounts.rs:3: container -> alloc points up"]
        );
        assert_eq!(bad("fn f() { crate::driver::start() }").len(), 1);
        assert_eq!(bad("fn f() -> Vec<crate::alloc::X> { g::<crate::agent::Y>() }").len(), 2);
        assert_eq!(bad("use super::super::super::alloc::X;").len(), 1, "depth 3: two supers stay in the module");
        assert_eq!(bad("use super::super::alloc::X;").len(), 0);
        assert_eq!(bad("mod inner { use super::super::super::super::alloc::X; }").len(), 1);
        assert_eq!(bad("mod inner { fn f() { if x { y } } }\nuse super::super::super::{sys, alloc};").len(), 1);
        assert_eq!(bad("use super::super::{super::alloc, x};").len(), 1);
        assert_eq!(bad("macro_rules! m { () => { $crate::alloc::x() } }").len(), 1);
        assert_eq!(bad("use crate::{sys::*, r#alloc as a};").len(), 1);
    }

    #[test]
    fn arrows_sideways_and_re_exports_are_reported() {
        assert_eq!(arrows("spec/job.rs", "use crate::sys::Pid;"), ["spec/job.rs:1: spec -> sys points sideways"]);
        assert_eq!(arrows("cli/run.rs", "use crate::roles::x;"), ["cli/run.rs:1: cli -> roles points sideways"]);
        assert_eq!(arrows("roles/mod.rs", "use crate::cli::command;"), [""; 0]);
        assert_eq!(arrows("sys/time.rs", "use crate::spec::ProcessId;"), [""; 0]);
        assert_eq!(arrows("alloc/mod.rs", "use crate::init;").len(), 1);
        assert_eq!(arrows("alloc/mod.rs", "use crate::*;").len(), 1);
        assert_eq!(arrows("attic/mod.rs", ""), ["attic/mod.rs: module `attic` is not in the table of layers"]);
    }

    #[test]
    fn comments_strings_and_own_paths_are_no_arrows() {
        let text = r##"
            // use crate::alloc::X;
            /* crate::alloc /* nested */ crate::alloc */
            const A: &str = "crate::alloc";
            const B: &str = r#"say "crate::alloc" twice"#;
            const C: char = '"'; fn f<'a>(x: &'a str) {}
            pub(crate) use crate::executor::y;
            pub(in crate::executor) fn g() { self::h(); super::k() }
            use crate::{plugin, spec::{Task, Role}};
            use std::crate_like::alloc;
        "##;
        assert_eq!(arrows("executor/service.rs", text), [""; 0]);
    }

    #[test]
    fn unsafe_has_one_room_and_an_argument() {
        assert_eq!(unsafe_home("cgroup/v2.rs", "fn f() { unsafe { g() } }"), ["cgroup/v2.rs:1: unsafe outside sys"]);
        assert_eq!(unsafe_home("cgroup/v2.rs", "// unsafe { }\nconst X: &str = \"unsafe\";"), [""; 0]);
        assert_eq!(unsafe_home("sys/a.rs", "fn f() {\n    unsafe { g() }\n}").len(), 1);
        assert_eq!(unsafe_home("sys/a.rs", "// SAFETY: no.\nfn f() {\n    unsafe { g() }\n}").len(), 1);
        assert_eq!(
            unsafe_home("sys/a.rs", "fn f() {\n    // SAFETY: g has no condition.\n    let x =\n unsafe { g() };\n}"),
            [""; 0]
        );
        let two = "fn f() {\n    // SAFETY: g.\n    unsafe { g() };\n    unsafe { h() };\n}";
        assert_eq!(unsafe_home("sys/a.rs", two), ["sys/a.rs:4: unsafe without a SAFETY comment before it"]);
        let shared = "fn f() {\n    // SAFETY: both.\n    k(unsafe { g() }, unsafe { h() });\n}";
        assert_eq!(unsafe_home("sys/a.rs", shared).len(), 1);
        assert_eq!(unsafe_home("sys/a.rs", "unsafe impl Send for X {}").len(), 1);
        assert_eq!(unsafe_home("sys/a.rs", "/// # Safety\n/// Yes.\npub unsafe fn f() {}"), [""; 0]);
    }

    #[test]
    fn the_program_ends_in_roles() {
        let text = "fn f() { std::process::exit(1) }";
        assert_eq!(exits("cli/mod.rs", text), ["cli/mod.rs:1: process::exit outside roles"]);
        assert_eq!(exits("roles/mod.rs", text), [""; 0]);
        assert_eq!(exits("sys/a.rs", "use std::process::{Command, exit};").len(), 1);
        assert_eq!(exits("sys/a.rs", "use libc::exit;").len(), 1);
        assert_eq!(exits("sys/a.rs", "fn f() { libc::_exit(1); nix::process::exit_group() }"), [""; 0]);
    }

    #[test]
    fn nobody_searches_path_for_ourselves() {
        assert_eq!(path_searches("driver/exec.rs", "Command::new(\"agentbin\").arg(\"executor\")").len(), 1);
        assert_eq!(path_searches("driver/exec.rs", "std::process::Command::new(\"logmon\")").len(), 1);
        assert_eq!(path_searches("net/nft.rs", "Command::new(\"nft\"); Command::new(exe)"), [""; 0]);
    }

    #[test]
    fn names_below_a_task_are_opened_by_the_path_module() {
        let bad = |text: &str| opens_by_name("container/root.rs", text);
        let text = "fn f() { std::fs::read(path) }";
        assert_eq!(bad(text), ["container/root.rs:1: fs::read follows links; open it through sys::path"]);
        assert_eq!(bad("fn f() { File::open(&name)?; fs::rename(a, b)?; OpenOptions::new().open(x) }").len(), 3);
        assert_eq!(bad("fn f() { std::fs::read(\"/proc/cpuinfo\"); rustix::fs::open(x); file.metadata() }"), [""; 0]);
        assert_eq!(bad("fn f() {}\n#[cfg(test)]\nmod tests { fn g() { std::fs::read(path) } }"), [""; 0]);
        assert_eq!(opens_by_name("alloc/record.rs", text), [""; 0], "a file with a reason");
    }

    #[test]
    fn programs_are_started_by_the_list_of_children() {
        let bad = |text: &str| unlisted_starts("names/users.rs", text).len();
        assert_eq!(bad("fn f() { command.arg(x).spawn()?; Command::new(y).output() }"), 2);
        assert_eq!(bad("fn f() { children::spawn(&mut command)?; scope.spawn(work); response.status() }"), 0);
        assert_eq!(unlisted_starts("sys/children.rs", "fn f() { command.spawn() }"), [""; 0]);
    }

    #[test]
    fn objects_are_those_with_little_code() {
        let bad = |text: &str| large_objects("agent/core.rs", text);
        let text = "use serde_json::json;";
        assert_eq!(bad(text), ["agent/core.rs:1: json! of serde_json; use spec::json::json"]);
        assert_eq!(bad("use serde_json::{Map, Value as Json, json};").len(), 1);
        assert_eq!(bad("fn f() -> serde_json::Value { serde_json::json!({}) }").len(), 1);
        assert_eq!(bad("use serde_json::{Map, Value};\nuse crate::spec::json::json;\nfn f() { json!({}) }"), [""; 0]);
        assert_eq!(bad("fn f() {}\n#[cfg(test)]\nmod tests { use serde_json::json; }"), [""; 0]);
    }

    #[test]
    fn maps_are_those_with_little_code() {
        let bad = |text: &str| large_maps("agent/core.rs", text);
        let text = "use std::collections::BTreeMap;";
        assert_eq!(bad(text), ["agent/core.rs:1: BTreeMap of std; use the one of spec::collections"]);
        assert_eq!(bad("use std::collections::{BTreeSet, HashMap, BTreeMap};").len(), 2);
        assert_eq!(bad("fn f(all: &std::collections::BTreeSet<u8>) {}").len(), 1);
        assert_eq!(bad("use std::collections::{HashMap, hash_map::Entry};\nfn f(all: BTreeMap<u8, u8>) {}"), [""; 0]);
        assert_eq!(bad("fn f(one: std::collections::HashMap<u8, u8>, all: BTreeMap<u8, u8>) {}"), [""; 0]);
        assert_eq!(bad("#[cfg(test)]\nmod tests { use std::collections::BTreeMap; }"), [""; 0]);
    }

    #[test]
    fn a_room_says_its_job_and_its_never() {
        assert_eq!(opening("cgroup/mod.rs", "use x;").len(), 1);
        assert_eq!(opening("cgroup/mod.rs", "//! Cgroups.\nuse x;").len(), 1);
        assert_eq!(opening("cgroup/mod.rs", "//! Cgroups. Never\n//! finds its own root.\nuse x;"), [""; 0]);
        assert_eq!(opening("cgroup/v1/mod.rs", "use x;"), [""; 0], "only modules");
        assert_eq!(opening("cgroup/mod.rs", "//! Skeleton.\n"), [""; 0], "nothing in it yet");
    }

    #[test]
    fn hubs_and_path_attributes_are_refused() {
        for path in ["utils.rs", "common/mod.rs", "error.rs", "error/mod.rs", "cgroup/utils.rs", "plugin/common/x.rs"] {
            assert_eq!(hubs(path).len(), 1, "{path}");
        }
        assert_eq!(hubs("jobspec/error.rs"), [""; 0], "errors of a module are its own");
        assert_eq!(path_attributes("sys/mod.rs", "#[path = \"../alloc/x.rs\"]\nmod x;").len(), 1);
        assert_eq!(path_attributes("sys/mod.rs", "#[cfg(test)]\nmod x;"), [""; 0]);
    }

    #[test]
    fn document_paths_and_ids_are_found() {
        let text = "See `src/sys/path.rs:12` and `scripts/test guest`, not `tests/*.rs`.\n```\n`src/none.rs`\n```\n";
        assert_eq!(named_paths(text), [(1, "src/sys/path.rs"), (1, "scripts/test")]);
        assert_eq!(named_items("so `src/a.rs::main` and `crate::x`"), [(1, "src/a.rs", "main")]);
        assert!(defines("pub async fn main() {}", "main") && !defines("// fn main\nmain()", "main"));
        let text = "| A9 | no |\n## Mission ids done\n| id | what |\n|---|---|\n| A1 | x |\n| N12 | y |\n## Next\n| B1 | z |\n";
        assert_eq!(done_ids(text), ["A1", "N12"]);
        assert!(names_id("// A1: roles", "A1") && names_id("(A1)", "A1"));
        assert!(!names_id("A12 BA1 A1_x", "A1"));
    }

    #[test]
    fn attacks_without_a_proof_are_reported() {
        let table =
            "| id | attack | seen |\n|---|---|---|\n| A01 | `x` | mutant `a01` |\n| B02 | y | `b02`, `b02-x`; runc |\n";
        let attacks = "id: \"a01\" Mutant::new(\"a01\") fn a01() {} id: \"b02\" [Mutant::slow(\"b02\"), Mutant::nomad(\"b02-x\")] fn b02() {}";
        let source = "if mutant::on(\"a01\") {} mutant::on(\"b02\") || mutant::on(\"b02-x\")";
        assert_eq!(attack_faults(table, attacks, source), [""; 0]);
        assert_eq!(attack_faults(&table.replace("mutant `a01`", "seen"), attacks, source).len(), 2);
        assert_eq!(attack_faults(table, &attacks.replace("\"b02-x\"", "\"b02-y\""), source).len(), 4);
        assert_eq!(attack_faults(table, attacks, &source.replace("a01", "a02")).len(), 2);
        assert_eq!(attack_faults(&table.replace("A01", "A04"), attacks, source).len(), 3);
        assert_eq!(attack_faults(table, &attacks.replace("fn b02", "fn b03"), source).len(), 1);
    }

    #[test]
    fn a_crate_is_used_by_code_and_not_by_tests_or_words() {
        let uses = |path, text| works_with(path, text, "nix");
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
        assert!(!uses("sys/tests.rs", "use nix::unistd::Pid;") && !uses("agent/tests/a.rs", "use nix::unistd::Pid;"));
    }

    #[test]
    fn one_bad_file_is_reported_once_per_fault() {
        let text =
            "//! Cgroups. Never anything else.\nuse crate::alloc::X;\nfn f() { unsafe { std::process::exit(1) } }\n";
        assert_eq!(check_source("cgroup/mod.rs", text).len(), 3);
    }
}
