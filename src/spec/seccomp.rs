//! The choice of a task's seccomp filter.

/// Which system calls a task may make.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Seccomp {
    /// All of them: no filter.
    #[default]
    Unconfined,
    /// What ordinary programs need, and what goes with the capabilities that the task has.
    Default,
    /// The text of a profile in Docker's and OCI's JSON form.
    Profile(String),
}
