//! Defences that tests take out, to see that the attack they stop is then noticed (`tests/attack`).
//!
//! Only a program built with the feature `mutants` knows any; everywhere else [`on`] is `false` at compile time.

/// Names the environment variable that says which defence is gone.
#[cfg(feature = "mutants")]
const KEY: &str = "AGENTBIN_MUTANT";

/// Whether the defence `name` is gone.
#[cfg(not(feature = "mutants"))]
#[must_use]
pub const fn on(_name: &str) -> bool {
    false
}

/// Whether the defence `name` is gone.
#[cfg(feature = "mutants")]
#[must_use]
pub fn on(name: &str) -> bool {
    use std::sync::OnceLock;
    static CHOSEN: OnceLock<String> = OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var(KEY).unwrap_or_default()) == name
}

/// Between a careless check and the use of what was checked. Nothing.
#[cfg(not(feature = "mutants"))]
pub const fn linger() {}

/// Between a careless check and the use of what was checked: time for somebody else to change it.
#[cfg(feature = "mutants")]
pub fn linger() {
    let begun = std::time::Instant::now();
    while begun.elapsed() < std::time::Duration::from_millis(1) {
        std::thread::yield_now();
    }
}

/// What our own roles must be told, as `KEY=value`: nothing.
#[cfg(not(feature = "mutants"))]
#[must_use]
pub const fn environment() -> Vec<String> {
    Vec::new()
}

/// What our own roles must be told, as `KEY=value`: which defence is gone. Everything, where that is the environment.
#[cfg(feature = "mutants")]
#[must_use]
pub fn environment() -> Vec<String> {
    let all =
        std::env::vars().filter(|(key, _)| key == KEY || super::mutant::on("a07") || super::mutant::on("a07-role"));
    all.map(|(key, value)| format!("{key}={value}")).collect()
}
