use std::time::Duration;

/// Why a call on the engine gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The engine answered with an error. Below 500 nothing was done; from 500 on that is not known.
    #[error("{what}: {message} (status {status})")]
    Answer {
        /// What was asked for.
        what: &'static str,
        /// HTTP status.
        status: u16,
        /// The engine's words.
        message: String,
    },
    /// No answer in time. Whether it was done is not known.
    #[error("{what}: the engine did not answer within {after:?}")]
    Timeout {
        /// What was asked for.
        what: &'static str,
        /// How long it had.
        after: Duration,
    },
    /// Nobody listens, the connection ended, or the answer makes no sense. Whether it was done is not known.
    #[error("{what}: {problem}")]
    Broken {
        /// What was asked for.
        what: &'static str,
        /// What happened.
        problem: String,
    },
    /// The address or the certificates of the engine cannot be used.
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

    /// There is no such thing.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }

    /// The name is taken, or the state does not allow it.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.status() == Some(409)
    }

    /// Whether it was done is not known.
    #[must_use]
    pub fn is_uncertain(&self) -> bool {
        match self {
            EngineError::Answer { status, .. } => *status >= 500,
            EngineError::Timeout { .. } | EngineError::Broken { .. } => true,
            EngineError::Endpoint(_) => false,
        }
    }

    /// The engine itself said something.
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
