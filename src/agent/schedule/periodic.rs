//! Jobs that a clock starts: when next, and what is started.
//!
//! Cron expressions are matched on civil time: croner knows the calendar, jiff the zones. A time that a change of clocks skips never
//! comes, one that it repeats comes twice, and each launch is later than the one before.

use croner::Cron;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{cron, zones};
use crate::agent::model::Nanos;

/// The last year that an expression matches, as in the package that Nomad uses.
const LAST_YEAR: i16 = 2099;
/// More changes of clocks are not looked at: that is more than any zone has until then.
const MOST_CHANGES: usize = 1000;

/// Why there is no next launch, and never will be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeriodicError {
    /// No such zone.
    #[error("time zone {0:?} is not known; write a name such as Europe/Berlin")]
    Zone(String),
    /// No cron expression.
    #[error("{spec:?} is not a cron expression: {why}")]
    Cron {
        /// As it was written.
        spec: String,
        /// What is wrong.
        why: String,
    },
}

/// The first moment after another one at which a cron expression starts a job in a time zone; `None`: never again.
///
/// # Errors
/// What is wrong with expression or zone.
pub fn next(spec: &str, time_zone: &str, after: Nanos) -> Result<Option<Nanos>, PeriodicError> {
    let (zone, cron) = (zone(time_zone)?, cron(spec)?);
    Ok(following(&cron, &zone, after))
}

/// What is wrong with cron expressions and with the time zone that they are of.
pub(crate) fn mistakes<'a>(specs: impl Iterator<Item = &'a str>, time_zone: &str) -> Vec<PeriodicError> {
    zone(time_zone).err().into_iter().chain(specs.filter_map(|spec| cron(spec).err())).collect()
}

fn cron(spec: &str) -> Result<Cron, PeriodicError> {
    cron::parse(spec).map_err(|why| PeriodicError::Cron { spec: spec.to_owned(), why })
}

fn zone(name: &str) -> Result<TimeZone, PeriodicError> {
    match name {
        "" | "UTC" => Ok(TimeZone::UTC),
        _ => zones::zone(name).ok_or_else(|| PeriodicError::Zone(name.to_owned())),
    }
}

/// Goes from one change of clocks to the next: between two of them civil time is linear, so that what is skipped is never met, and
/// what is repeated is met twice.
fn following(cron: &Cron, zone: &TimeZone, after: Nanos) -> Option<Nanos> {
    let mut from = Timestamp::from_second(after.0.div_euclid(1_000_000_000) + 1).ok()?;
    for _ in 0..MOST_CHANGES {
        let offset = zone.to_offset(from);
        let change = zone.following(from).next().map(|change| change.timestamp());
        let civil = cron.find_next_occurrence(&offset.to_datetime(from), true).ok()?;
        if civil.year() > LAST_YEAR {
            return None;
        }
        let found = offset.to_timestamp(civil).ok()?;
        match change {
            Some(change) if found >= change => from = change,
            _ => return i64::try_from(found.as_nanosecond()).ok().map(Nanos),
        }
    }
    None
}

/// The id of what is started at a moment.
#[must_use]
pub fn launch_id(parent: &str, at: Nanos) -> String {
    format!("{parent}/periodic-{}", at.0.div_euclid(1_000_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn after(spec: &str, zone: &str, seconds: i64) -> Option<i64> {
        next(spec, zone, Nanos(seconds * SECOND)).expect("it is one").map(|next| next.0 / SECOND)
    }

    #[test]
    fn what_is_skipped_never_comes_and_what_is_repeated_comes_twice() {
        // 2024-03-31 has no 02:30 in Berlin, and 2024-10-27 has two.
        assert_eq!(after("30 2 * * *", "Europe/Berlin", 1_711_800_000), Some(1_711_931_400));
        assert_eq!(after("30 2 * * *", "Europe/Berlin", 1_729_981_800), Some(1_729_989_000));
        assert_eq!(after("30 2 * * *", "Europe/Berlin", 1_729_989_000), Some(1_729_992_600));
        assert_eq!(after("30 2 * * *", "Europe/Berlin", 1_729_992_600), Some(1_730_079_000));
    }

    #[test]
    fn fields_are_counted_as_nomad_counts_them() {
        let now = 1_700_000_000;
        assert_eq!(after("0 0 29 2 *", "", now), Some(1_709_164_800));
        assert_eq!(after("0 0 29 2 * 2028", "UTC", now), Some(1_835_395_200), "the sixth is the year");
        assert_eq!(after("7 0 0 29 2 * *", "UTC", now), Some(1_709_164_807), "the first of seven are seconds");
        assert_eq!(after("@hourly", "UTC", now), Some(1_700_002_800));
        assert_eq!(after("* * * * * 1980", "UTC", now), None);
        assert_eq!(after("0 0 30 2 *", "Europe/Berlin", now), None);
        for (spec, zone) in
            [("* * * *", "UTC"), ("* * * * * * * *", "UTC"), ("61 * * * *", "UTC"), ("* * * * *", "X/Y")]
        {
            assert!(next(spec, zone, Nanos(0)).is_err(), "{spec} {zone}");
        }
        assert_eq!(launch_id("a/b", Nanos(1_700_000_000_999_999_999)), "a/b/periodic-1700000000");
    }
}
