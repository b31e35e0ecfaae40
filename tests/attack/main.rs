//! The attacks of tests/attack/README.md: each must fail on agentbin, and succeed on an agentbin whose defence was taken
//! out. The program runs itself again as first family of namespaces of its own (so that all it finds there is its own
//! doing), as the attacker inside a task, and as the one that spoils what an executor is started with.

mod a;
mod b;
mod c;
mod control;
mod doors;
mod fields;
mod files;
mod filled;
mod framework;
mod host_ids;
mod kernel;
mod local_user;
mod mounts;
mod operator;
mod owners;
mod policy;
mod programs;
mod setid;
mod siblings;

#[path = "../support/random.rs"]
mod random;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode};

use framework::{Attack, Breach, Inside, Lab, Level, Openat2, Verdict, mutant_program};
use random::Random;

/// Set for the program in namespaces of its own.
const IN_LAB: &str = "AGENTBIN_ATTACK_LAB";

fn attacks() -> Vec<&'static Attack> {
    [
        a::ATTACKS,
        b::ATTACKS,
        mounts::ATTACKS,
        fields::ATTACKS,
        files::ATTACKS,
        filled::ATTACKS,
        c::ATTACKS,
        programs::ATTACKS,
        setid::ATTACKS,
        host_ids::ATTACKS,
        policy::ATTACKS,
        operator::ATTACKS,
        owners::ATTACKS,
        local_user::ATTACKS,
        siblings::ATTACKS,
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).skip(1).collect();
    match args.first().map(String::as_str) {
        Some("inside") => return inside(&args[1..]),
        // Until it is killed.
        Some("idle") => loop {
            std::thread::park();
        },
        Some("version") => return ExitCode::SUCCESS,
        Some("catalog") => {
            doors::catalog(&args[1..]);
            return ExitCode::SUCCESS;
        }
        Some("spoil") => return spoil(&args[1..]),
        _ => {}
    }
    if args.iter().any(|arg| arg == "--list") {
        for attack in attacks() {
            println!("{}: test", attack.id);
        }
        return ExitCode::SUCCESS;
    }
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: attack: needs root for cgroups, users and mounts");
        println!("test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
        return ExitCode::from(u8::from(std::env::var("CI").as_deref() == Ok("true")));
    }
    if std::env::var_os(IN_LAB).is_none() {
        return enter_lab(&args);
    }
    // As on a machine whose mounts are shared, which is the rule: what leaks, leaks to here.
    let flags = nix::mount::MsFlags::MS_SHARED | nix::mount::MsFlags::MS_REC;
    nix::mount::mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).unwrap();
    let _users = add_users();
    run(&args)
}

/// Users and groups of the host that the attacks speak of, in this mount namespace only.
fn add_users() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("agentbin-attack-users-").tempdir_in("/var/tmp").unwrap();
    framework::set_mode(dir.path(), 0o755);
    for (name, more) in [
        ("passwd", "abthree:x:7001:7001::/:/bin/sh\nabtoor:x:0:0::/:/bin/sh\n"),
        ("group", "abg1:x:7001:\nabg2:x:7002:abthree\nabg3:x:7003:other,abthree\n"),
    ] {
        let (own, host) = (dir.path().join(name), format!("/etc/{name}"));
        std::fs::write(&own, std::fs::read_to_string(&host).unwrap() + more).unwrap();
        let flags = nix::mount::MsFlags::MS_BIND;
        nix::mount::mount(Some(&own), host.as_str(), None::<&str>, flags, None::<&str>).unwrap();
    }
    dir
}

/// Runs the attacks in a pid and a mount namespace of their own, below a shell that reaps orphans.
fn enter_lab(args: &[String]) -> ExitCode {
    let own = std::fs::read_link("/proc/self/exe").unwrap();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--"]);
    command.args(["/bin/sh", "-c", "\"$@\"; exit $?", "sh"]).arg(own).args(args).env(IN_LAB, "1");
    match command.status() {
        Ok(status) => ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)),
        Err(error) => {
            println!("unshare(1) of util-linux is wanted: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The attacker inside a task.
fn inside(args: &[String]) -> ExitCode {
    let attack = attacks().into_iter().find(|attack| attack.id == args[0]).expect("a known attack");
    let report = Inside::default();
    (attack.inside.expect("an attack with an inside"))(&args[1..], &report);
    report.end();
    ExitCode::SUCCESS
}

/// Executes a program with what a careless or hostile parent leaves it: `openat2|enosys|eperm [fds|closed|key|core|groups=..|umask=..]...
/// -- PROGRAM ARGS`.
fn spoil(args: &[String]) -> ExitCode {
    let at = args.iter().position(|arg| arg == "--").expect("-- before the program");
    for how in &args[..at] {
        match how.split_once('=').unwrap_or((how, "")) {
            ("openat2", _) => {}
            ("enosys", _) => kernel::block_openat2(libc::ENOSYS).unwrap(),
            ("eperm", _) => kernel::block_openat2(libc::EPERM).unwrap(),
            ("fds", _) => a::leak_descriptors(),
            ("closed", _) => [0, 2].into_iter().for_each(kernel::close),
            ("key", _) => kernel::add_key(c::KEY).unwrap(),
            ("core", _) => {
                let most = rustix::process::getrlimit(rustix::process::Resource::Core).maximum;
                let limit = rustix::process::Rlimit { current: most, maximum: most };
                rustix::process::setrlimit(rustix::process::Resource::Core, limit).unwrap();
                // Where a core is put that has no other place, and where the judge looks.
                rustix::process::chdir(std::env::var_os("TMPDIR").unwrap()).unwrap();
            }
            ("umask", mask) => {
                rustix::process::umask(rustix::fs::Mode::from_raw_mode(u32::from_str_radix(mask, 8).unwrap()));
            }
            ("groups", list) => {
                let groups: Vec<_> =
                    list.split(',').map(|gid| rustix::process::Gid::from_raw(gid.parse().unwrap())).collect();
                rustix::thread::set_thread_groups(&groups).unwrap();
            }
            _ => panic!("{how} is not known"),
        }
    }
    let error = kernel::execute(&args[at + 1], &args[at + 2..]);
    eprintln!("{}: {error}", args[at + 1]);
    ExitCode::FAILURE
}

/// One line of the run.
struct Case {
    name: String,
    test: Box<dyn FnOnce() -> Result<(), String>>,
}

/// Both levels with `openat2(2)`, and each of its two ways to be missing at one of them: of these one is drawn. Where there is nobody
/// to draw it is both, and all of them at full count.
fn variants(random: Option<&mut Random>) -> Vec<(Level, Openat2)> {
    let mut all = vec![(Level::Default, Openat2::Free), (Level::Nomad, Openat2::Free)];
    let missing = [(Level::Default, Openat2::Enosys), (Level::Nomad, Openat2::Eperm)];
    match random {
        _ if framework::full() => {
            all.extend(missing);
            all.extend([(Level::Default, Openat2::Eperm), (Level::Nomad, Openat2::Enosys)]);
        }
        Some(random) => all.push(missing[random.index(missing.len())]),
        None => all.extend(missing),
    }
    all
}

fn cases(mut random: Option<Random>) -> Vec<Case> {
    let mut all = Vec::new();
    for attack in attacks() {
        for (level, openat2) in variants(random.as_mut()) {
            all.push(Case {
                name: format!("{}::{}::{}", attack.id, level.name(), openat2.name()),
                test: Box::new(move || match attempt(attack.id, level, openat2, None, attack.run) {
                    Ok(()) => Ok(()),
                    Err(Breach(how)) => Err(format!("broken into: {how}")),
                }),
            });
        }
        for mutant in attack.mutants {
            let (level, openat2) = (mutant.level, mutant.openat2);
            all.push(Case {
                name: format!("{}::mutant::{}", attack.id, mutant.name),
                test: Box::new(move || {
                    if mutant_program().is_none() {
                        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "CI builds the mutants");
                        println!("SKIP: {}: AGENTBIN_MUTANT_PROGRAM names no mutant; scripts/test attack", mutant.name);
                        return Ok(());
                    }
                    if let Some(why) = unseen(mutant.name) {
                        println!("SKIP: {}: {why}", mutant.name);
                        return Ok(());
                    }
                    seen_to_fail(attempt(attack.id, level, openat2, Some(mutant.name), attack.run))
                }),
            });
        }
        if let Some(control) = attack.control {
            all.push(Case {
                name: format!("{}::runc", attack.id),
                test: Box::new(move || {
                    let mut lab = Lab::new(attack.id, Level::Default, Openat2::Free, None);
                    let verdict = control(&mut lab);
                    let verdict = verdict.map(|verdict| verdict.and_then(|()| lab.judge()));
                    lab.clean();
                    let Some(verdict) = verdict else {
                        println!("note: {}: this machine has no runtime that is known to fall for it", attack.id);
                        return Ok(());
                    };
                    seen_to_fail(verdict)
                }),
            });
        }
    }
    all
}

/// Why nobody would see here that a defence is gone.
fn unseen(mutant: &str) -> Option<String> {
    if mutant != "c12" {
        return None;
    }
    let most = rustix::process::getrlimit(rustix::process::Resource::Core).maximum;
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if most.is_some_and(|most| most < 4096) {
        return Some(format!("the kernel writes no core here: it may have {} bytes at most", most.unwrap_or(0)));
    }
    pattern.starts_with('|').then(|| "the kernel gives cores to a program here".to_owned())
}

fn attempt(
    id: &'static str,
    level: Level,
    openat2: Openat2,
    mutant: Option<&'static str>,
    run: fn(&mut Lab) -> Verdict,
) -> Verdict {
    let mut lab = Lab::new(id, level, openat2, mutant);
    let verdict = catch_unwind(AssertUnwindSafe(|| {
        let verdict = run(&mut lab).and_then(|()| lab.judge());
        assert!(verdict.is_err() || lab.started.get() > 0, "every task was refused: nothing was attacked");
        verdict
    }));
    lab.clean();
    verdict.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn seen_to_fail(verdict: Verdict) -> Result<(), String> {
    match verdict {
        Ok(()) => Err("survived: the attack does not see that the defence is gone".to_owned()),
        Err(Breach(how)) => {
            println!("  seen: {}", how.chars().take(300).collect::<String>());
            Ok(())
        }
    }
}

fn run(args: &[String]) -> ExitCode {
    let exact = args.iter().any(|arg| arg == "--exact");
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let chosen = |name: &str| {
        filters.is_empty() || filters.iter().any(|f| if exact { name == **f } else { name.contains(f.as_str()) })
    };
    let (mut passed, mut failed) = (0, 0);
    // Who asks for an attack gets all of it.
    let random = filters.is_empty().then(|| Random::new("attack"));
    for Case { name, test } in cases(random).into_iter().filter(|case| chosen(&case.name)) {
        let started = std::time::Instant::now();
        let result = catch_unwind(AssertUnwindSafe(test)).unwrap_or_else(|_| Err("could not be tried".to_owned()));
        if let Err(why) = &result {
            println!("{name}: {why}");
        }
        println!("test {name} ... {}", if result.is_ok() { "ok" } else { "FAILED" });
        if std::env::var_os("AGENTBIN_ATTACK_TIMES").is_some() {
            println!("  {:?}", started.elapsed());
        }
        if result.is_ok() { passed += 1 } else { failed += 1 }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
