//! When two versions of a job are the same: a register that changes nothing makes no new one.

use serde_json::{Map, Value};

use crate::agent::model::JobVersion;

/// What stands beside a specification: not part of what somebody wants, or compared apart.
const VOLATILE: [&str; 18] = [
    "Stop",
    "Status",
    "StatusDescription",
    "Stable",
    "Version",
    "VersionTag",
    "SubmitTime",
    "CreateIndex",
    "ModifyIndex",
    "JobModifyIndex",
    "ConsulToken",
    "ConsulNamespace",
    "VaultToken",
    "VaultNamespace",
    "NomadTokenID",
    "ParentID",
    "Dispatched",
    "DispatchIdempotencyToken",
];

/// Whether two versions want the same, `stop` among it.
#[must_use]
pub fn is_same_spec(one: &JobVersion, other: &JobVersion) -> bool {
    one.stop == other.stop && one.payload == other.payload && is_same(&one.spec, &other.spec)
}

/// Whether two specifications in canonical form are the same but for what changes by itself. The order of keys is no matter, and
/// what is null is not there.
#[must_use]
pub fn is_same(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let counts = |(key, value): &(&String, &Value)| !VOLATILE.contains(&key.as_str()) && !value.is_null();
    let (mut own, mut count) = (one.iter().filter(counts), 0usize);
    let is_in = own.all(|(key, value)| {
        count += 1;
        other.get(key).is_some_and(|found| is_equal(value, found))
    });
    is_in && count == other.iter().filter(counts).count()
}

fn is_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let there = |map: &Map<String, Value>| map.values().filter(|value| !value.is_null()).count();
            there(one) == there(other)
                && one
                    .iter()
                    .filter(|(_, value)| !value.is_null())
                    .all(|(key, value)| other.get(key).is_some_and(|found| is_equal(value, found)))
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_equal(one, other))
        }
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_changes_by_itself_and_how_it_is_written_makes_no_new_version() {
        let same = |one: Value, other: Value| {
            is_same(one.as_object().expect("an object"), other.as_object().expect("an object"))
        };
        let base = || json!({"ID": "web", "Meta": {"a": "1", "b": "2"}, "Version": 3, "Priority": 50, "Update": null});
        assert!(same(
            base(),
            json!({"Priority": 50.0, "Meta": {"b": "2", "a": "1", "c": null}, "ID": "web", "Stable": true})
        ));
        for other in [
            json!({"ID": "web", "Meta": {"a": "1"}, "Priority": 50}),
            json!({"ID": "web", "Meta": {"a": "1", "b": "3"}, "Priority": 50}),
            json!({"ID": "web", "Meta": {"a": "1", "b": "2"}, "Priority": 50, "Unknown": {}}),
            json!({"ID": "web", "Meta": ["a", "b"], "Priority": 50}),
        ] {
            assert!(!same(base(), other.clone()) && !same(other, base()));
        }
        assert!(!same(json!({"L": [1, 2]}), json!({"L": [2, 1]})), "the order of a list counts");
    }
}
