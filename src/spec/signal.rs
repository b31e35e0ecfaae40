//! Signal numbers and their names.

use std::fmt;

/// A signal number that the kernel knows (1 to 64).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Signal(i32);

const NAMES: &[(&str, i32)] = &[
    ("SIGHUP", 1),
    ("SIGINT", 2),
    ("SIGQUIT", 3),
    ("SIGILL", 4),
    ("SIGTRAP", 5),
    ("SIGABRT", 6),
    ("SIGIOT", 6),
    ("SIGBUS", 7),
    ("SIGFPE", 8),
    ("SIGKILL", 9),
    ("SIGUSR1", 10),
    ("SIGSEGV", 11),
    ("SIGUSR2", 12),
    ("SIGPIPE", 13),
    ("SIGALRM", 14),
    ("SIGTERM", 15),
    ("SIGSTKFLT", 16),
    ("SIGCHLD", 17),
    ("SIGCONT", 18),
    ("SIGSTOP", 19),
    ("SIGTSTP", 20),
    ("SIGTTIN", 21),
    ("SIGTTOU", 22),
    ("SIGURG", 23),
    ("SIGXCPU", 24),
    ("SIGXFSZ", 25),
    ("SIGVTALRM", 26),
    ("SIGPROF", 27),
    ("SIGWINCH", 28),
    ("SIGIO", 29),
    ("SIGPOLL", 29),
    ("SIGPWR", 30),
    ("SIGSYS", 31),
];

impl Signal {
    /// `SIGINT`, Nomad's default kill signal.
    pub const INT: Signal = Signal(2);
    /// `SIGKILL`.
    pub const KILL: Signal = Signal(9);
    /// `SIGSTOP`.
    pub const STOP: Signal = Signal(19);
    /// `SIGTERM`.
    pub const TERM: Signal = Signal(15);

    /// The names of all signals, and second names of some.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// The signal with this number, if the kernel has one (1 to 64).
    #[must_use]
    pub const fn from_number(number: i32) -> Option<Signal> {
        if number >= 1 && number <= 64 { Some(Signal(number)) } else { None }
    }

    /// Reads `SIGTERM`, `term` or `TERM`; numbers are not names.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Signal> {
        let upper = name.to_ascii_uppercase();
        let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
        NAMES.iter().find(|(n, _)| *n == full).map(|(_, v)| Signal(*v))
    }

    /// The number that `kill(2)` takes.
    #[must_use]
    pub const fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, v)| *v == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "signal {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Signal;

    #[test]
    fn names_are_read_with_and_without_prefix() {
        assert_eq!(Signal::from_name("SIGTERM"), Some(Signal::TERM));
        assert_eq!(Signal::from_name("int"), Some(Signal::INT));
        assert_eq!(Signal::from_name("9"), None);
        assert_eq!(Signal::from_name(""), None);
        assert_eq!(Signal::from_number(0), None);
        assert_eq!(Signal::from_number(65), None);
        assert_eq!(Signal::INT.to_string(), "SIGINT");
    }
}
