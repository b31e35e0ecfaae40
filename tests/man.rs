//! Man pages against the program: every command and every flag is in its page, every role has one.
//!
//! What the program offers is read from its own `--help`, so that a new flag without a word about it fails here.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use agentbin::spec::Role;

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn page(name: &str) -> String {
    let path = repository().join("man").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What `agentbin ARGUMENTS --help` prints.
fn help(arguments: &[String]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_agentbin"))
        .args(arguments)
        .arg("--help")
        .stdin(Stdio::null())
        .output()
        .expect("starts agentbin");
    String::from_utf8(out.stdout).expect("help is text")
}

/// The names below `Commands:`.
fn commands(help: &str) -> Vec<String> {
    help.lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| line.starts_with("  "))
        // Continuations of a description are indented deeper than the names.
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// Long flags at the beginning of an option's line: `  -q, --quiet`, `      --var <K=V>`.
fn flags(help: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in help.lines().map(str::trim_start) {
        let long = match line.split_once(", --") {
            Some((short, rest)) if short.len() == 2 && short.starts_with('-') => rest,
            _ => match line.strip_prefix("--") {
                Some(rest) => rest,
                None => continue,
            },
        };
        let name: String = long.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        // A version is also what a command is about.
        if !matches!(name.as_str(), "" | "help") && !line.starts_with("-V") {
            found.insert(name);
        }
    }
    found
}

/// Whether an mdoc page has an entry (`.It Fl -name`) for a flag.
fn explains_flag(page: &str, flag: &str) -> bool {
    entries(page)
        .any(|words| words.windows(2).any(|w| w[0] == "Fl" && w[1].trim_start_matches("\\&") == format!("-{flag}")))
}

/// Whether an mdoc page has an entry (`.It Cm name`) for a command.
fn explains_command(page: &str, command: &str) -> bool {
    entries(page).any(|words| words.first() == Some(&"Cm") && words.get(1) == Some(&command))
}

fn entries(page: &str) -> impl Iterator<Item = Vec<&str>> {
    page.lines().filter_map(|line| Some(line.strip_prefix(".It ")?.split_whitespace().collect()))
}

/// What of a help text its page does not explain.
fn unexplained(help: &str, page: &str) -> Vec<String> {
    let missing_commands = commands(help).into_iter().filter(|name| !explains_command(page, name));
    let missing_flags =
        flags(help).into_iter().filter(|name| !explains_flag(page, name)).map(|name| format!("--{name}"));
    missing_commands.chain(missing_flags).collect()
}

#[test]
fn every_command_and_flag_is_in_its_page() {
    let text = page("agentbin.8");
    let top = help(&[]);
    let names = commands(&top);
    assert!(names.iter().any(|name| name == "run"), "agentbin --help lists no run:\n{top}");
    let mut bad = unexplained(&top, &text);
    let mut todo: Vec<Vec<String>> = names.into_iter().map(|name| vec![name]).collect();
    while let Some(words) = todo.pop() {
        // Roles have pages of their own.
        if Role::from_name(&words[0]).is_some() {
            continue;
        }
        let help = help(&words);
        let missing = flags(&help).into_iter().filter(|name| !explains_flag(&text, name));
        bad.extend(missing.map(|flag| format!("{} --{flag}", words.join(" "))));
        todo.extend(commands(&help).into_iter().map(|name| [words.clone(), vec![name]].concat()));
    }
    assert!(bad.is_empty(), "man/agentbin.8 does not explain: {}", bad.join(", "));
}

#[test]
fn every_flag_in_the_page_is_one() {
    let text = page("agentbin.8");
    let mut known = BTreeSet::new();
    let mut todo = vec![Vec::new()];
    while let Some(words) = todo.pop() {
        let help = help(&words);
        known.extend(flags(&help));
        todo.extend(commands(&help).into_iter().map(|name| [words.clone(), vec![name]].concat()));
    }
    let told = entries(&text)
        .filter_map(|words| Some(words.strip_prefix(&["Fl"])?.first()?.trim_start_matches('-').to_owned()));
    let bad: Vec<String> = told.filter(|name| !known.contains(name)).collect();
    assert!(bad.is_empty(), "man/agentbin.8 explains flags that do not exist: {}", bad.join(", "));
}

#[test]
fn every_role_has_a_page() {
    for role in Role::ALL {
        let text = page(&format!("agentbin-{}.8", role.name()));
        assert!(text.contains(&format!(".Cm {}", role.name())), "the page of {} does not name it", role.name());
        assert!(page("agentbin.8").contains(&format!(".Xr agentbin-{} 8", role.name())));
    }
}

#[test]
fn the_executors_configuration_is_explained() {
    let text = page("agentbin-executor.8");
    for key in ["LogFile", "LogLevel", "FSIsolation", "Compute"] {
        assert!(text.contains(&format!(".It Ql {key}")), "{key} is not explained");
    }
}

#[test]
fn the_logs_block_of_the_drivers_is_explained() {
    let text = page("agentbin-driver.8");
    for key in ["max_files", "max_file_size", "compress", "max_age"] {
        assert!(text.contains(&format!("\n.Ql {key}\n")), "{key} is not explained");
    }
}

#[test]
fn pages_refer_to_pages_that_exist() {
    for entry in fs::read_dir(repository().join("man")).expect("reads man/") {
        let path = entry.expect("reads an entry").path();
        let text = fs::read_to_string(&path).expect("reads a page");
        let title = text.lines().find_map(|line| line.strip_prefix(".Dt ")).expect("a page has a .Dt");
        let (name, section) = (path.file_stem().expect("a name"), path.extension().expect("a section"));
        let wanted = format!("{} {}", name.to_string_lossy().to_uppercase(), section.to_string_lossy());
        assert_eq!(title, wanted, "{}", path.display());
        for line in text.lines().filter_map(|line| line.strip_prefix(".Xr agentbin")) {
            let mut words = line.split_whitespace();
            let (name, section) =
                if line.starts_with(' ') { ("", words.next()) } else { (words.next().unwrap_or(""), words.next()) };
            let file = format!("man/agentbin{name}.{}", section.unwrap_or("?"));
            assert!(Path::new(&repository()).join(&file).exists(), "{} refers to {file}", path.display());
        }
    }
}

/// J4: the page is what the tables of functions say; `AGENTBIN_WRITE_GOLDEN=1` writes it.
#[test]
fn the_page_of_template_functions_is_written_from_their_tables() {
    let path = Path::new(&repository()).join("docs/template-functions.md");
    if std::env::var_os("AGENTBIN_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, agentbin::template::page()).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(page == agentbin::template::page(), "{}: AGENTBIN_WRITE_GOLDEN=1 writes it anew", path.display());
}

mod samples {
    use super::*;

    const HELP: &str = "Run it\n\nUsage: agentbin run [OPTIONS] <FILE>\n\nCommands:\n  gc       Remove left-overs\n           \
        and more\n  version  Print it\n  help     Print this\n\nArguments:\n  <FILE>  Job file\n\nOptions:\n      --var <K=V>  \
        Set, see --var-file\n  -q, --quiet      Say nothing\n      --data-dir <DIR>\n  -h, --help       Print help\n";

    #[test]
    fn help_is_understood() {
        assert_eq!(commands(HELP), ["gc", "version"]);
        assert_eq!(flags(HELP).into_iter().collect::<Vec<_>>(), ["data-dir", "quiet", "var"]);
    }

    #[test]
    fn what_the_page_leaves_out_is_named() {
        let page = ".It Cm gc\n.It Cm version\n.It Fl -quiet\n.It Fl -data-dir Ar dir\n.It Fl -var-file Ar file\n";
        assert_eq!(unexplained(HELP, page), ["--var"]);
        assert_eq!(unexplained(HELP, ""), ["gc", "version", "--data-dir", "--quiet", "--var"]);
        let page = format!("{page}.It Fl -var Ar name Ns = Ns Ar value\n");
        assert!(unexplained(HELP, &page).is_empty());
    }
}
