//! Records in the format of Nomad's answers: the record's fields, and those that an answer adds. Every key in the answers of a
//! real agent of 1.11.3 is here with its type (checked against `testdata/shapes.json`); further ones are allowed.

mod alloc;
mod csi;
mod evaluation;
mod job;
mod metric;
mod node;

pub(super) use alloc::{allocation, stub as alloc_stub};
pub(super) use csi::{
    Plugin, external as csi_external, snapshot as csi_snapshot, volume as csi_volume, volume_stub as csi_volume_stub,
};
pub(super) use evaluation::{deployment, evaluation, evaluation_stub};
pub(super) use job::{job, policy_id, stub as job_stub, summary as job_summary};
pub(super) use metric::metric;
pub(super) use node::{node, stub as node_stub};

use serde_json::{Map, Value};

use crate::agent::model::{Nanos, Stamp};
use crate::spec::json;

/// A record as it is kept.
pub(super) fn kept<T: serde::Serialize>(record: &T) -> Map<String, Value> {
    match json::to_value(record) {
        Ok(Value::Object(map)) => map,
        // Records always serialize to an object with string keys.
        _ => Map::new(),
    }
}

/// Lays members over an object.
pub(super) fn lay(over: &mut Map<String, Value>, members: Value) {
    if let Value::Object(members) = members {
        over.extend(members);
    }
}

/// Go's `nil` for a list or a map with nothing in it.
pub(super) fn null_if_empty(value: Value) -> Value {
    match &value {
        Value::Array(list) if list.is_empty() => Value::Null,
        Value::Object(map) if map.is_empty() => Value::Null,
        Value::String(text) if text.is_empty() => Value::Null,
        _ => value,
    }
}

/// A moment, or null.
pub(super) fn moment(stamp: Stamp) -> Value {
    match stamp.0 {
        None => Value::Null,
        Some(_) => json::to_value(&stamp).unwrap_or_default(),
    }
}

/// A moment given in nanoseconds; Go's zero time for none.
pub(super) fn instant(nanos: Nanos) -> Value {
    json::to_value(&Stamp((nanos.0 != 0).then_some(nanos))).unwrap_or_default()
}
