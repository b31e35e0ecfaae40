//! Why a command is refused.

use crate::agent::state::StateError;

/// The refusal of a command; each API maps it to a status in one place.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The object of the command does not exist.
    #[error("{0}")]
    NotFound(String),
    /// It is not allowed.
    #[error("{0}")]
    Denied(String),
    /// The parameters are not valid.
    #[error("{0}")]
    Invalid(String),
    /// It conflicts with the current state.
    #[error("{0}")]
    Conflict(String),
    /// The agent failed to execute it.
    #[error("{doing}")]
    Failed {
        /// What was being done.
        doing: String,
        /// What went wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Several errors as one text, in the form of Go's multierror; empty for none.
#[must_use]
pub fn listed(errors: &[String]) -> String {
    match errors.len() {
        0 => String::new(),
        1 => format!("1 error occurred:\n\t* {}\n\n", errors[0]),
        n => format!("{n} errors occurred:\n{}\n", errors.iter().fold(String::new(), |all, e| all + "\t* " + e + "\n")),
    }
}

impl CommandError {
    /// An internal error of the agent.
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
