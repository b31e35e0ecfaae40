//! Decides which program this process is, and ends it. Never holds logic that somebody else would want.

mod executor;
mod libcontainer_shim;
mod logmon;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::spec::Role;
use crate::sys;

/// What runs a role: its arguments after the role's name, and the exit status.
type Run = fn(&[OsString]) -> i32;

/// Which function a name runs.
const fn table(role: Role) -> Run {
    match role {
        Role::Executor => executor::run,
        Role::Shim => libcontainer_shim::run,
        Role::Logmon => logmon::run,
    }
}

/// The `agentbin` program: a role when this process was started as one, else the command line. Never returns.
pub fn main() -> ! {
    init();
    exit(crate::cli::run(std::env::args_os().collect()))
}

/// Turns this process into a role when it was started as one, and returns otherwise.
///
/// The first statement of any program that embeds agentbin: executors that it launches later are this very program.
///
/// ```no_run
/// agentbin::init();
/// // The program's own work starts here.
/// ```
pub fn init() {
    let args: Vec<OsString> = std::env::args_os().collect();
    if let Some((role, rest)) = role_of(sys::auxv::executed_path().as_deref(), &args) {
        exit(table(role)(rest))
    }
    // Opened before anybody can replace the file. Without /proc no role can be started later, which is when it is told.
    let _ = sys::exe::own();
}

/// Exact names only: first the file name that was executed, then the first argument.
fn role_of<'a>(executed: Option<&OsStr>, args: &'a [OsString]) -> Option<(Role, &'a [OsString])> {
    let argv0 = args.first().map(OsString::as_os_str);
    let by_descriptor =
        executed.is_none_or(|path| Path::new(path).starts_with("/proc") || Path::new(path).starts_with("/dev/fd"));
    let name = if by_descriptor { argv0 } else { executed };
    let named = |name: Option<&OsStr>| name.and_then(OsStr::to_str).and_then(Role::from_name);
    if let Some(role) = named(name.and_then(|path| Path::new(path).file_name())) {
        return Some((role, args.get(1..).unwrap_or_default()));
    }
    named(args.get(1).map(OsString::as_os_str)).map(|role| (role, &args[2..]))
}

#[expect(clippy::disallowed_methods, reason = "the one place where the program ends")]
fn exit(status: i32) -> ! {
    std::process::exit(status)
}

/// What somebody hears who starts a role by hand. Nothing goes to stdout: a host reads that.
fn explain(role: Role, problem: &str) -> i32 {
    eprintln!("{role}: {problem}", role = role.name());
    eprintln!("This is a helper role of agentbin: a go-plugin host or agentbin itself starts it, not a person.");
    eprintln!("To run a job file: agentbin run FILE. See agentbin(8).");
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(executed: Option<&str>, args: &[&str]) -> Option<(Role, usize)> {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        role_of(executed.map(OsStr::new), &args).map(|(role, rest)| (role, rest.len()))
    }

    /// A1: the executed file's name first, whatever argv[0] pretends; then argv[1]; exact names only.
    #[test]
    fn names_select_roles() {
        let agentbin = Some("/usr/bin/agentbin");
        assert_eq!(role(agentbin, &["agentbin", "executor", "{}"]), Some((Role::Executor, 1)));
        assert_eq!(role(Some("/x/logmon"), &["agentbin"]), Some((Role::Logmon, 0)));
        assert_eq!(role(Some("./executor"), &["nomad", "{}"]), Some((Role::Executor, 1)));
        assert_eq!(role(agentbin, &["logmon"]), None);
        assert_eq!(role(agentbin, &["logmon", "executor", "{}"]), Some((Role::Executor, 1)));
        assert_eq!(role(Some("/proc/self/fd/7"), &["logmon"]), Some((Role::Logmon, 0)));
        assert_eq!(role(Some("/dev/fd/7"), &["agentbin", "libcontainer-shim"]), Some((Role::Shim, 0)));
        assert_eq!(role(None, &["/a/b/executor", "{}"]), Some((Role::Executor, 1)));
        for args in [vec!["agentbin"], vec!["agentbin", "Executor"], vec!["agentbin", "run", "executor"], vec![]] {
            assert_eq!(role(agentbin, &args), None, "{args:?}");
        }
    }
}
