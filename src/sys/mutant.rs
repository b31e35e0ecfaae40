//! Safeguards that mutation tests disable, to check that the attack which they stop is then noticed (`tests/attack`).
//!
//! Only a program built with the feature `mutants` supports this; everywhere else [`on`] is `false` at compile time.

/// Names the environment variable with the disabled safeguard.
#[cfg(feature = "mutants")]
const KEY: &str = "AGENTBIN_MUTANT";

/// Whether the safeguard `name` is disabled.
#[cfg(not(feature = "mutants"))]
#[must_use]
pub const fn on(_name: &str) -> bool {
    false
}

/// Whether the safeguard `name` is disabled.
#[cfg(feature = "mutants")]
#[must_use]
pub fn on(name: &str) -> bool {
    use std::sync::OnceLock;
    static CHOSEN: OnceLock<String> = OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var(KEY).unwrap_or_default()) == name
}

/// Does nothing; called between a careless check and the use of what was checked.
#[cfg(not(feature = "mutants"))]
pub const fn linger() {}

/// Pauses between a careless check and the use of what was checked, so that another process can change it.
#[cfg(feature = "mutants")]
pub fn linger() {
    let begun = std::time::Instant::now();
    while begun.elapsed() < std::time::Duration::from_millis(1) {
        std::thread::yield_now();
    }
}

/// The environment for our own roles, as `KEY=value`: empty.
#[cfg(not(feature = "mutants"))]
#[must_use]
pub const fn environment() -> Vec<String> {
    Vec::new()
}

/// The environment for our own roles, as `KEY=value`: the disabled safeguard, or all of it if the safeguard concerns the
/// environment.
#[cfg(feature = "mutants")]
#[must_use]
pub fn environment() -> Vec<String> {
    let all =
        std::env::vars().filter(|(key, _)| key == KEY || super::mutant::on("a07") || super::mutant::on("a07-role"));
    all.map(|(key, value)| format!("{key}={value}")).collect()
}
