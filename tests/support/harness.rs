//! A harness for test programs that are roles themselves: `main` calls `agentbin::init()` first, which libtest cannot.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

/// A named test.
pub type Test = (&'static str, fn());

/// Runs the tests whose name contains the first argument that is no flag, one after the other, and closes with
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
    for (name, test) in tests.iter().filter(|(name, _)| chosen(name)) {
        let ok = catch_unwind(AssertUnwindSafe(test)).is_ok();
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        if ok { passed += 1 } else { failed.push(*name) }
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {} failed; 0 ignored; 0 measured; 0 filtered out",
        failed.len()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
