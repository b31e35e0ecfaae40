//! Decides which role this process has, runs it, and ends the process. Never holds logic that other modules need.

mod artifact_fetcher;
mod docker_logger;
mod driver;
mod executor;
mod isolation_probe;
mod libcontainer_shim;
mod logmon;
mod network_keeper;
mod subordinate;

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use tokio::runtime::Runtime;

pub use driver::{driver_main, serve_driver};

use crate::spec::Role;
use crate::sys;

/// Exit status of a program that cannot do its work.
const CANNOT: i32 = 125;

/// Most events that a role takes from the kernel at a time. The 1024 that are usual would be 12 KiB of each executor's memory.
const EVENTS: usize = 64;

/// The function of a role: takes the arguments after the role's name, returns the exit status.
type Run = fn(&[OsString]) -> i32;

/// The function of each role.
const fn table(role: Role) -> Run {
    match role {
        Role::Executor => executor::run,
        Role::Shim => libcontainer_shim::run,
        Role::Logmon => logmon::run,
        Role::DockerLogger => docker_logger::run,
        Role::IsolationProbe => isolation_probe::run,
        Role::Subordinate => subordinate::run,
        Role::NetworkKeeper => network_keeper::run,
        Role::ArtifactFetcher => artifact_fetcher::run,
    }
}

/// The runtime of a role that serves.
fn runtime() -> io::Result<Runtime> {
    sys::pages::event_loop().max_io_events_per_tick(EVENTS).build()
}

/// The `agentbin` program: a role or a driver plugin if this process was started as one, else the command line. Never returns.
pub fn main() -> ! {
    init();
    refuse_borrowed_rights();
    let args: Vec<OsString> = std::env::args_os().collect();
    if let Some(name) = driver_of(sys::auxv::executed_path().as_deref(), &args) {
        exit(driver::run(name))
    }
    exit(crate::cli::run(args))
}

/// Runs a role if this process was started as one, and returns otherwise.
///
/// Must be the first statement of any program that embeds agentbin: executors that it launches later run this same program.
///
/// ```no_run
/// agentbin::init();
/// // The program's own work starts here.
/// ```
pub fn init() {
    let args: Vec<OsString> = std::env::args_os().collect();
    if let Some((role, rest)) = role_of(sys::auxv::executed_path().as_deref(), &args) {
        refuse_borrowed_rights();
        exit(table(role)(rest))
    }
    // Opened before another process can replace the file. Without /proc no role can be started later; that start reports the error.
    let _ = sys::exe::own();
}

/// The file name by which this program was executed; a descriptor has none, so `argv[0]` stands in.
fn program_name<'a>(executed: Option<&'a OsStr>, args: &'a [OsString]) -> Option<&'a OsStr> {
    let by_descriptor =
        executed.is_none_or(|path| Path::new(path).starts_with("/proc") || Path::new(path).starts_with("/dev/fd"));
    let name = if by_descriptor { args.first().map(OsString::as_os_str) } else { executed };
    name.and_then(|path| Path::new(path).file_name())
}

/// `agentbin driver exec`, or the file name that an agent's plugin directory requires: `exec`, `nomad-driver-exec`. Further
/// arguments are the agent's `args`, and are ignored.
fn driver_of<'a>(executed: Option<&OsStr>, args: &'a [OsString]) -> Option<&'a str> {
    let file = program_name(executed, args).and_then(OsStr::to_str).unwrap_or_default();
    let file = file.strip_prefix("nomad-driver-").unwrap_or(file);
    if let Some(name) = driver::NAMES.into_iter().find(|name| *name == file) {
        return Some(name);
    }
    let named = args.get(1).is_some_and(|word| word == "driver");
    named.then(|| args.get(2).and_then(|name| name.to_str()).unwrap_or_default())
}

/// Exact names only: first the file name that was executed, then the first argument.
fn role_of<'a>(executed: Option<&OsStr>, args: &'a [OsString]) -> Option<(Role, &'a [OsString])> {
    let named = |name: Option<&OsStr>| name.and_then(OsStr::to_str).and_then(Role::from_name);
    if let Some(role) = named(program_name(executed, args)) {
        return Some((role, args.get(1..).unwrap_or_default()));
    }
    named(args.get(1).map(OsString::as_os_str)).map(|role| (role, &args[2..]))
}

/// A program file with a set-id bit gives its owner's privileges to every user who executes it, and this program executes any given
/// command: it would be a root shell for everybody.
fn refuse_borrowed_rights() {
    let users = (rustix::process::getuid(), rustix::process::geteuid());
    let groups = (rustix::process::getgid(), rustix::process::getegid());
    if (users.0 != users.1 || groups.0 != groups.1) && !sys::mutant::on("d73") {
        eprintln!("agentbin: started by user {} with the rights of another user or group: chmod ug-s it", users.0);
        exit(CANNOT)
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place where the program ends")]
fn exit(status: i32) -> ! {
    std::process::exit(status)
}

/// The message for a user who starts a role manually. Nothing goes to stdout, which a host parses.
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

    #[test]
    fn a1_names_select_drivers() {
        let driver = |executed: &str, args: &[&str]| {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            driver_of(Some(OsStr::new(executed)), &args).map(str::to_owned)
        };
        for (executed, args, expected) in [
            ("/opt/plugins/exec", &["/opt/plugins/exec"][..], Some("exec")),
            ("/opt/plugins/raw_exec", &["x", "--flag"], Some("raw_exec")),
            ("/opt/plugins/nomad-driver-java", &["x"], Some("java")),
            ("/usr/bin/agentbin", &["agentbin", "driver", "java"], Some("java")),
            ("/opt/plugins/docker", &["x"], Some("docker")),
            ("/usr/bin/agentbin", &["agentbin", "driver", "dcoker"], Some("dcoker")),
            ("/usr/bin/agentbin", &["agentbin", "driver"], Some("")),
            ("/usr/bin/agentbin", &["exec"], None),
            ("/proc/self/fd/3", &["exec"], Some("exec")),
            ("/usr/bin/agentbin", &["agentbin", "run", "exec"], None),
        ] {
            assert_eq!(driver(executed, args).as_deref(), expected, "{executed} {args:?}");
        }
    }

    /// A1: the executed file's name first, whatever argv[0] contains; then argv[1]; exact names only.
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
