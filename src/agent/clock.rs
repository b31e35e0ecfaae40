//! The current time, and sleeping until a given time.

use std::time::{Duration, SystemTime};

use super::model::Nanos;

/// The longest single sleep: meanwhile clocks may be set and machines suspended.
const NAP: Duration = Duration::from_mins(1);

/// This moment.
pub(super) fn now() -> Nanos {
    Nanos::of(SystemTime::now())
}

/// How long to sleep before it is checked again whether this moment has come.
pub(super) fn nap(until: Nanos) -> Duration {
    until.duration().saturating_sub(now().duration()).min(NAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sleep_is_so_long_that_a_clock_that_is_set_is_not_seen() {
        assert_eq!(nap(now().plus(Duration::from_hours(24))), NAP);
        assert_eq!(nap(Nanos(i64::MAX)), NAP);
        assert_eq!(nap(Nanos(0)), Duration::ZERO);
    }
}
