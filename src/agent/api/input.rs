//! Request bodies: JSON whose members are looked up case-insensitively, as in Go.

use crate::spec::TryIntoMap as _;

use serde_json::{Map, Value};

use super::answer::Refusal;
use crate::http::StatusCode;
use crate::spec::collections::BTreeMap;

/// Limit of values in a body: each takes some hundred bytes in memory, however short it is in the text.
const VALUES: usize = 200_000;

/// An upper estimate of the number of values in a JSON text.
fn values(body: &[u8]) -> usize {
    let (mut count, mut in_text, mut escaped) = (0, false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => count += 1,
            _ => {}
        }
    }
    count
}

/// An object that was sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Input(Map<String, Value>);

impl Input {
    /// Reads a body. Nothing at all is an object without members where `optional`.
    pub(super) fn new(body: &[u8], optional: bool) -> Result<Input, Refusal> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return if optional { Ok(Input::default()) } else { Err(Refusal::bad("Request body is empty")) };
        }
        if values(body) > VALUES {
            let why = format!("the request's body has more than {VALUES} values");
            return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Input(map)),
            Ok(Value::Null) if optional => Ok(Input::default()),
            Ok(_) => Err(Refusal::bad("the request's body is not a JSON object")),
            Err(e) => Err(Refusal::bad(format!("the request's body is not JSON: {e}"))),
        }
    }

    /// A member unless it is null. An exact match of the name takes precedence over one that differs in case.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        let exact = self.0.get(key);
        let found = exact.or_else(|| self.0.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, v)| v));
        found.filter(|value| !value.is_null())
    }

    fn wrong(key: &str, wanted: &str) -> Refusal {
        Refusal::bad(format!("{key} must be {wanted}"))
    }

    /// A text; empty where there is none.
    pub(super) fn text(&self, key: &str) -> Result<String, Refusal> {
        match self.get(key) {
            None => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(Input::wrong(key, "a string")),
        }
    }

    /// A switch; off where there is none.
    pub(super) fn switch(&self, key: &str) -> Result<bool, Refusal> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Bool(on)) => Ok(*on),
            Some(_) => Err(Input::wrong(key, "true or false")),
        }
    }

    /// A whole number.
    pub(super) fn number(&self, key: &str) -> Result<Option<i64>, Refusal> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => value.as_i64().map(Some).ok_or_else(|| Input::wrong(key, "a whole number")),
        }
    }

    /// A number from 0.
    pub(super) fn natural(&self, key: &str) -> Result<Option<u64>, Refusal> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| Input::wrong(key, "a whole number from 0")),
        }
    }

    /// An object.
    pub(super) fn object(&self, key: &str) -> Result<Option<Input>, Refusal> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Input(map.clone()))),
            Some(_) => Err(Input::wrong(key, "an object")),
        }
    }

    /// A list of objects; empty where there is none.
    pub(super) fn objects(&self, key: &str) -> Result<Vec<Input>, Refusal> {
        let wrong = || Input::wrong(key, "a list of objects");
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => {
                list.iter().map(|one| one.as_object().cloned().map(Input).ok_or_else(wrong)).collect()
            }
            Some(_) => Err(wrong()),
        }
    }

    /// An object whose values are texts.
    pub(super) fn texts(&self, key: &str) -> Result<BTreeMap<String, String>, Refusal> {
        let Some(Input(map)) = self.object(key)? else { return Ok(BTreeMap::new()) };
        let pair = |(name, value): (String, Value)| match value {
            Value::String(text) => Ok((name, text)),
            _ => Err(Input::wrong(key, "an object of strings")),
        };
        map.into_iter().map(pair).try_into_map()
    }

    /// A list of texts; empty where there is none.
    pub(super) fn list(&self, key: &str) -> Result<Vec<String>, Refusal> {
        let wrong = || Input::wrong(key, "a list of strings");
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(|v| v.as_str().map(str::to_owned).ok_or_else(wrong)).collect(),
            Some(_) => Err(wrong()),
        }
    }

    /// All of it.
    pub(super) fn members(self) -> Map<String, Value> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_without_regard_to_case_and_checked() {
        let input = Input::new(
            br#"{"taskname": "a", "TaskName": "b", "ALL": true, "n": 3, "m": {"x": "y"}, "l": ["p"], "z": null}"#,
            false,
        )
        .unwrap();
        assert_eq!(input.text("TaskName").unwrap(), "b");
        assert_eq!((input.switch("All").unwrap(), input.number("N").unwrap()), (true, Some(3)));
        assert_eq!((input.list("L").unwrap(), input.texts("M").unwrap().len()), (vec!["p".to_owned()], 1));
        assert_eq!((input.text("Z").unwrap(), input.natural("none").unwrap()), (String::new(), None));
        assert!(
            input.text("n").is_err()
                && input.switch("n").is_err()
                && input.number("all").is_err()
                && input.list("m").is_err()
        );
        assert!(
            Input::new(b"[]", true).is_err() && Input::new(b"{", true).is_err() && Input::new(b" ", false).is_err()
        );
        assert_eq!(Input::new(b"", true).unwrap(), Input::default());
        let many = |one: &str| format!("{{\"x\": [{}0]}}", one.repeat(300_000));
        assert_eq!(Input::new(many("0,").as_bytes(), false).unwrap_err().status, StatusCode::PAYLOAD_TOO_LARGE);
        let text = format!("{{\"x\": \"\\\"{}\"}}", "[,{".repeat(300_000));
        assert_eq!(Input::new(text.as_bytes(), false).unwrap().text("x").unwrap().len(), 900_001);
    }
}
