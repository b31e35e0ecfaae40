//! A harness for test programs that are roles themselves: `main` calls `agentbin::init()` first, which libtest cannot.
#![allow(dead_code, reason = "every test program uses a part")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Functions as tests under their own names.
macro_rules! tests {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name as fn())),*] };
}
pub(crate) use tests;

/// A named test.
pub type Test = (&'static str, fn());

/// Runs the tests whose name contains the first argument that is not a flag, one after the other, and closes with
/// libtest's line.
pub fn run(tests: &[Test]) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let exact = args.iter().any(|arg| arg == "--exact");
    let filter = args.iter().find(|arg| !arg.starts_with('-')).cloned().unwrap_or_default();
    let chosen = |name: &str| if exact { name == filter } else { name.contains(&filter) };
    if args.iter().any(|arg| arg == "--list") {
        for (name, _) in tests.iter().filter(|(name, _)| chosen(name)) {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed) = (0, Vec::new());
    let all = Instant::now();
    for (name, test) in tests.iter().filter(|(name, _)| chosen(name)) {
        let started = Instant::now();
        let ok = catch_unwind(AssertUnwindSafe(test)).is_ok();
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        println!("took {:.2?}", started.elapsed());
        if ok { passed += 1 } else { failed.push(*name) }
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {} failed; 0 ignored; 0 measured; 0 filtered out; finished in {:.2?}",
        failed.len(),
        all.elapsed()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The end of a program that cannot test anything here; a failure in CI.
pub fn skip(program: &str, reason: &str) -> ExitCode {
    println!("SKIP: {program}: {reason}");
    println!("test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
    ExitCode::from(u8::from(std::env::var("CI").as_deref() == Ok("true")))
}

pub fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// Waits for a condition that has no event here, with a deadline.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    // The emulated guest is many times slower and says so.
    let slower = std::env::var("AGENTBIN_TEST_SLOWER").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1);
    let deadline = Instant::now() + Duration::from_mins(1) * slower;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not in time");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The children of this process, dead ones that nobody has waited for included.
pub fn children() -> Vec<i32> {
    let own = i32::try_from(std::process::id()).unwrap();
    let all = procfs::process::all_processes().unwrap();
    all.flatten().filter_map(|p| p.stat().ok()).filter(|s| s.ppid == own).map(|s| s.pid).collect()
}

#[allow(dead_code, reason = "not every test program asks for it")]
pub fn is_alive(pid: i32) -> bool {
    procfs::process::Process::new(pid).and_then(|p| p.stat()).is_ok_and(|s| s.state != 'Z')
}
