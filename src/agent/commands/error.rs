//! Why a command is refused.

use crate::agent::state::StateError;

/// A refusal, which whoever answers turns into a status once.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// What it is about is not there.
    #[error("{0}")]
    NotFound(String),
    /// It is not allowed.
    #[error("{0}")]
    Denied(String),
    /// It makes no sense as it was given.
    #[error("{0}")]
    Invalid(String),
    /// It is at odds with what there is by now.
    #[error("{0}")]
    Conflict(String),
    /// The agent could not do it.
    #[error("{doing}")]
    Failed {
        /// What was being done.
        doing: String,
        /// What went wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl CommandError {
    /// Something of the agent's own went wrong.
    pub fn failed(doing: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CommandError {
        CommandError::Failed { doing: doing.to_owned(), source: source.into() }
    }
}

impl From<StateError> for CommandError {
    fn from(error: StateError) -> CommandError {
        match error {
            StateError::NotFound { kind, .. } => CommandError::NotFound(format!("{kind} not found")),
            StateError::Invalid(why) => CommandError::Invalid(why),
            StateError::Conflict(why) => CommandError::Conflict(why),
            other => CommandError::failed("cannot change the state", other),
        }
    }
}
