//! Errors of plugins, with texts that say what to do.

use tonic::Code;

/// Why a plugin's call failed.
#[derive(Debug, thiserror::Error)]
pub enum CsiError {
    /// The plugin's answer, and its meaning according to the specification.
    #[error("{call} of {subject}: {}{message} ({code:?})", hint(meaning))]
    Answer {
        /// The call.
        call: &'static str,
        /// The volume, snapshot or plugin.
        subject: String,
        /// The answer's code.
        code: Code,
        /// The plugin's message.
        message: String,
        /// The meaning of the code for this call; empty if none is specified.
        meaning: &'static str,
    },
    /// An invalid or unsupported request, which is not sent.
    #[error("{0}")]
    Invalid(String),
    /// The volume has a user with another kind of use.
    #[error("{0}")]
    Conflict(String),
    /// The caller does not wait for it any more; no call was made.
    #[error("the wait for volume {0} was cancelled")]
    Cancelled(String),
    /// The record of a volume cannot be written or read: without it no call is made.
    #[error("cannot keep the record of volume {volume}")]
    Record {
        /// Its id.
        volume: String,
        /// Why not.
        source: std::io::Error,
    },
}

fn hint(meaning: &str) -> String {
    if meaning.is_empty() { String::new() } else { format!("{meaning}: ") }
}

impl CsiError {
    pub(super) const fn invalid(message: String) -> CsiError {
        CsiError::Invalid(message)
    }

    /// The error for a failed call.
    pub(super) fn answer(call: &'static str, subject: &str, status: &tonic::Status) -> CsiError {
        let (code, message) = (status.code(), status.message().chars().take(LONGEST).collect());
        CsiError::Answer { call, subject: subject.to_owned(), code, message, meaning: meaning(call, code) }
    }

    /// Whether the object to remove does not exist any more.
    #[must_use]
    pub const fn is_ignorable(&self) -> bool {
        let CsiError::Answer { call, code, .. } = self else { return false };
        matches!(code, Code::NotFound) && undoes(call)
    }

    /// Whether the plugin says that nothing is mounted where it was to unmount something.
    pub(super) fn says_no_mount_point(&self) -> bool {
        matches!(self, CsiError::Answer { message, .. } if message.contains("no mount point"))
    }

    /// Whether the same call may succeed later without intervention.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        let CsiError::Answer { code, .. } = self else { return false };
        matches!(
            code,
            Code::Unavailable
                | Code::DeadlineExceeded
                | Code::Aborted
                | Code::ResourceExhausted
                | Code::FailedPrecondition
        )
    }
}

/// Longest part of a plugin's message that is shown, in characters.
const LONGEST: usize = 2000;

const fn undoes(call: &str) -> bool {
    matches!(call.as_bytes(), b"ControllerUnpublishVolume" | b"NodeUnpublishVolume" | b"NodeUnstageVolume")
}

/// The meaning of a code as the answer to a call, according to the specification.
fn meaning(call: &str, code: Code) -> &'static str {
    let is = |calls: &[&str]| calls.contains(&call);
    match code {
        Code::Internal => "the plugin failed; see the logs of its allocation",
        Code::Unimplemented => "the plugin cannot do that",
        Code::Unauthenticated => "the secrets of the volume are missing or wrong",
        Code::PermissionDenied => "the secrets of the volume do not allow it",
        Code::Unavailable => "the plugin is not reached; see whether it runs",
        Code::DeadlineExceeded => "the plugin does not answer in time",
        Code::Aborted if is(&["ListVolumes", "ListSnapshots"]) => "the starting token is invalid",
        Code::Aborted => "something is being done to it already",
        Code::InvalidArgument => "its parameters, its capabilities or the secrets are not what the plugin takes",
        Code::NotFound if is(&["ControllerPublishVolume"]) => "the volume or the node does not exist",
        Code::NotFound if is(&["CreateVolume"]) => "the snapshot or volume to copy does not exist",
        Code::NotFound => "it does not exist",
        Code::AlreadyExists if is(&["CreateVolume", "CreateSnapshot"]) => "there is another one of that name",
        Code::AlreadyExists => "it is there already, with another capability or as a read-only one",
        Code::ResourceExhausted if is(&["ControllerPublishVolume"]) => "the node has as many volumes as it can",
        Code::ResourceExhausted if is(&["CreateVolume"]) => "it cannot be made in that topology",
        Code::ResourceExhausted => "there is no space",
        Code::OutOfRange => "that capacity is not to be had",
        Code::FailedPrecondition if is(&["DeleteVolume", "DeleteSnapshot"]) => "it is in use",
        Code::FailedPrecondition if is(&["ControllerExpandVolume", "NodeExpandVolume"]) => {
            "it cannot be expanded while it is in use"
        }
        Code::FailedPrecondition => "it is used elsewhere, and is not a volume of several nodes, or was not staged",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f7_what_a_code_means_depends_on_the_call() {
        let error = |call, code| CsiError::answer(call, "vol-1", &tonic::Status::new(code, "no"));
        for call in ["ControllerUnpublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"] {
            assert!(
                error(call, Code::NotFound).is_ignorable() && !error(call, Code::Internal).is_ignorable(),
                "{call}"
            );
        }
        assert!(!error("NodeStageVolume", Code::NotFound).is_ignorable());
        assert!(error("NodeStageVolume", Code::Unavailable).is_retryable());
        assert!(!error("NodeStageVolume", Code::InvalidArgument).is_retryable());
        let text = error("DeleteVolume", Code::FailedPrecondition).to_string();
        assert_eq!(text, "DeleteVolume of vol-1: it is in use: no (FailedPrecondition)");
        let text = error("ListVolumes", Code::Aborted).to_string();
        assert!(text.contains("starting token"), "{text}");
        let text = error("Probe", Code::Unknown).to_string();
        assert_eq!(text, "Probe of vol-1: no (Unknown)");
        assert!(error("Probe", Code::Unknown).to_string().len() < 3000);
        let long = CsiError::answer("Probe", "p", &tonic::Status::internal("x".repeat(100_000)));
        assert!(long.to_string().len() < 3000);
    }
}
