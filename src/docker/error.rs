//! Errors of calls of the engine.

use std::time::Duration;

/// Why a call of the engine failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The engine answered with an error. Below 500 nothing was done; from 500 on that is not known.
    #[error("{what}: {message} (status {status})")]
    Answer {
        /// The call.
        what: &'static str,
        /// HTTP status.
        status: u16,
        /// The engine's message.
        message: String,
    },
    /// No answer in time. Whether the call was executed is not known.
    #[error("{what}: the engine did not answer within {after:?}")]
    Timeout {
        /// The call.
        what: &'static str,
        /// The deadline.
        after: Duration,
    },
    /// The connection ended, or the answer cannot be parsed. Whether the call was executed is not known.
    #[error("{what}: {problem}")]
    Broken {
        /// The call.
        what: &'static str,
        /// What happened.
        problem: String,
    },
    /// No connection to the engine. The call did not reach it.
    #[error("{what}: {problem}")]
    NoConnection {
        /// The call.
        what: &'static str,
        /// What happened.
        problem: String,
    },
    /// The address or the certificates of the engine are not usable.
    #[error("{0}")]
    Endpoint(String),
}

impl EngineError {
    /// The HTTP status of an answer.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            EngineError::Answer { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// The object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }

    /// The name is taken, or the state does not allow it.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.status() == Some(409)
    }

    /// Whether it is unknown if the call was executed, or the engine cannot be asked now.
    #[must_use]
    pub fn is_uncertain(&self) -> bool {
        match self {
            EngineError::Answer { status, .. } => *status >= 500,
            EngineError::Timeout { .. } | EngineError::Broken { .. } | EngineError::NoConnection { .. } => true,
            EngineError::Endpoint(_) => false,
        }
    }

    /// Whether the call certainly did not reach the engine.
    #[must_use]
    pub fn never_arrived(&self) -> bool {
        matches!(self, EngineError::NoConnection { .. })
    }

    /// Whether this is an error answer of the engine.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        matches!(self, EngineError::Answer { .. })
    }
}

/// The whole chain of causes in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}
