//! What the rules share: the members of a block, and how errors are told.

use std::time::Duration;

use serde_json::Value;

use crate::agent::commands::error::listed;
use crate::alloc::go_duration;

/// A text of a block; empty where there is none.
pub(super) fn text<'a>(block: &'a Value, field: &str) -> &'a str {
    block[field].as_str().unwrap_or_default()
}

/// A number of a block; 0 where there is none.
pub(super) fn number(block: &Value, field: &str) -> i64 {
    block[field].as_i64().unwrap_or_default()
}

/// A number that is not negative, of nanoseconds if it is a time.
pub(super) fn time(block: &Value, field: &str) -> u64 {
    block[field].as_u64().unwrap_or_default()
}

/// The blocks of a list; none where it is null.
pub(super) fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

/// A time as Nomad writes it.
pub(super) fn shown(nanos: u64) -> String {
    go_duration(Duration::from_nanos(nanos))
}

/// Adds the texts of the rules that are broken.
pub(super) fn tell(wrong: &mut Vec<String>, rules: &[(bool, &str)]) {
    wrong.extend(rules.iter().filter(|(is_broken, _)| *is_broken).map(|(_, text)| (*text).to_owned()));
}

/// Adds the errors of a part of the job as one.
pub(super) fn nest(wrong: &mut Vec<String>, what: &str, errors: &[String]) {
    if !errors.is_empty() {
        wrong.push(format!("{what} validation failed: {}", listed(errors)));
    }
}
