//! Bodies with any keys, such as `config`, in the form that the API's JSON has of them.

use serde_json::{Map, Value as Json};

use crate::jobspec::section::{Expanded, Sink, expand};
use crate::jobspec::value::{Number, Value};

/// A body as an object. Native syntax writes an object that an argument has as a list of one, as if it were a block.
pub(super) fn body(block: &Expanded<'_>, native: bool, sink: &Sink) -> Map<String, Json> {
    let mut out = Map::new();
    for attr in &block.body.attrs {
        match sink.ok(block.scope.eval(&attr.value)) {
            None | Some(Value::Null) => {}
            Some(value @ Value::Object(_)) if native => {
                out.insert(attr.name.clone(), Json::Array(vec![json(&value)]));
            }
            Some(value) => {
                out.insert(attr.name.clone(), json(&value));
            }
        }
    }
    for inner in expand(block.body, &block.scope, sink) {
        let object = Json::Object(body(&inner, native, sink));
        // One object around it per label.
        let item = inner
            .labels
            .iter()
            .rev()
            .fold(object, |item, label| Json::Object(Map::from_iter([(label.clone(), Json::Array(vec![item]))])));
        match out.get_mut(inner.kind) {
            Some(Json::Array(items)) => items.push(item),
            _ => {
                out.insert(inner.kind.to_owned(), Json::Array(vec![item]));
            }
        }
    }
    out.sort_keys();
    out
}

/// A value as JSON: a whole number is one where 64 bits hold it.
pub(super) fn json(value: &Value) -> Json {
    match value {
        Value::Number(Number::Int(int)) => {
            i64::try_from(*int).map_or_else(|_| Json::from(Number::Int(*int).to_f64()), Json::from)
        }
        Value::List(items) | Value::Set(items) => Json::Array(items.iter().map(json).collect()),
        Value::Object(members) => Json::Object(members.iter().map(|(k, v)| (k.clone(), json(v))).collect()),
        other => other.to_json(),
    }
}
