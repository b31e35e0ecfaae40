//! Why something of this machine cannot be used.

/// Why something of this machine cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{doing}")]
pub struct MachineError {
    /// The action that failed, or the problem.
    pub(super) doing: String,
    pub(super) source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Adds to an error what was being done.
pub(super) trait Doing<T> {
    fn doing(self, what: &str) -> Result<T, MachineError>;
    fn doing_with(self, what: impl FnOnce() -> String) -> Result<T, MachineError>;
}

impl<T, E: Into<Box<dyn std::error::Error + Send + Sync>>> Doing<T> for Result<T, E> {
    fn doing(self, what: &str) -> Result<T, MachineError> {
        self.doing_with(|| what.to_owned())
    }

    fn doing_with(self, what: impl FnOnce() -> String) -> Result<T, MachineError> {
        self.map_err(|source| MachineError { doing: what(), source: Some(source.into()) })
    }
}
