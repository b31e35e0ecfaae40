//! Which calls of a plugin are retried, and after which wait. Every call of the interface is idempotent.

use std::time::Duration;

use tonic::Code;

/// Timeout of one try.
pub const TRY: Duration = Duration::from_mins(2);
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// Limit of tries where the call may have been executed, or is not likely to succeed soon.
const TRIES: u32 = 3;
/// Longest total wait for a plugin's restart, or for another call on the same volume.
const WAITS: Duration = Duration::from_secs(30);

/// The tries of one call.
#[derive(Debug, Default)]
pub(super) struct Tries {
    failed: u32,
    waited: Duration,
}

impl Tries {
    /// The wait before the next try after this answer; `None` if the answer is final.
    pub(super) fn after(&mut self, code: Code) -> Option<Duration> {
        self.failed += 1;
        let again = match code {
            // The plugin is starting, or still executes a call on the volume for a process that was killed.
            Code::Unavailable | Code::Aborted => self.waited < WAITS,
            Code::DeadlineExceeded | Code::ResourceExhausted => self.failed < TRIES,
            _ => false,
        };
        let wait = FIRST.saturating_mul(1 << (self.failed - 1).min(16)).min(LONGEST);
        self.waited += wait;
        again.then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(code: Code) -> Vec<u128> {
        let mut tries = Tries::default();
        std::iter::from_fn(|| tries.after(code)).map(|wait| wait.as_millis()).collect()
    }

    #[test]
    fn f7_waits_double_and_end() {
        for code in [Code::DeadlineExceeded, Code::ResourceExhausted] {
            assert_eq!(waits(code), [100, 200], "{code:?}");
        }
        for code in [Code::Unavailable, Code::Aborted] {
            let waits = waits(code);
            assert_eq!(waits[..7], [100, 200, 400, 800, 1600, 3200, 5000], "{code:?}");
            assert!((30_000..35_100).contains(&waits.iter().sum::<u128>()), "{waits:?}");
        }
        for code in [Code::Internal, Code::NotFound, Code::FailedPrecondition, Code::Unauthenticated, Code::Cancelled] {
            assert_eq!(waits(code), [], "{code:?}");
        }
    }
}
