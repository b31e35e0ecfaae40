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

/// What our own roles must be told, as `KEY=value`: nothing.
#[cfg(not(feature = "mutants"))]
#[must_use]
pub const fn environment() -> Option<String> {
    None
}

/// What our own roles must be told, as `KEY=value`: which defence is gone.
#[cfg(feature = "mutants")]
#[must_use]
pub fn environment() -> Option<String> {
    std::env::var(KEY).ok().map(|name| format!("{KEY}={name}"))
}
