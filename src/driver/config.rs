//! Reads a driver's `config` block: known keys of known types, everything else refused with its place.

use serde_json::Value;

use super::DriverError;
use crate::spec::{DriverConfig, NamespaceMode, Pos};

/// The values of one block, with the driver's name for errors.
pub(super) struct Reader<'a> {
    driver: &'static str,
    config: &'a DriverConfig,
}

impl<'a> Reader<'a> {
    /// Refuses every key that is not in `known`.
    pub(super) fn new(
        driver: &'static str,
        config: &'a DriverConfig,
        known: &[&str],
    ) -> Result<Reader<'a>, DriverError> {
        let reader = Reader { driver, config };
        match config.values.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => {
                Err(reader.error(key, &format!("unsupported key {key:?}; known keys are {}", known.join(", "))))
            }
            None => Ok(reader),
        }
    }

    pub(super) fn error(&self, key: &str, problem: &str) -> DriverError {
        let pos: &Pos = self.config.positions.get(key).unwrap_or(&self.config.pos);
        let place = if pos.file.is_empty() { String::new() } else { format!("{pos}: ") };
        DriverError::Config(format!("{place}config of driver {}: {problem}", self.driver))
    }

    fn value(&self, key: &str) -> Option<&'a Value> {
        self.config.values.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn string(&self, key: &str) -> Result<Option<String>, DriverError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(Value::Bool(flag)) => Ok(Some(flag.to_string())),
            Some(_) => Err(self.error(key, &format!("{key} must be a string"))),
        }
    }

    pub(super) fn required(&self, key: &str) -> Result<String, DriverError> {
        let text = self.string(key)?.unwrap_or_default();
        if text.is_empty() {
            Err(self.error(key, &format!("{key} is missing; it names the program to run")))
        } else {
            Ok(text)
        }
    }

    pub(super) fn strings(&self, key: &str) -> Result<Vec<String>, DriverError> {
        let bad = || self.error(key, &format!("{key} must be a list of strings"));
        match self.value(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => items
                .iter()
                .map(|item| match item {
                    Value::String(text) => Ok(text.clone()),
                    Value::Number(number) => Ok(number.to_string()),
                    Value::Bool(flag) => Ok(flag.to_string()),
                    _ => Err(bad()),
                })
                .collect(),
            Some(_) => Err(bad()),
        }
    }

    pub(super) fn integer(&self, key: &str) -> Result<Option<i64>, DriverError> {
        let bad = || self.error(key, &format!("{key} must be a whole number"));
        match self.value(key) {
            None => Ok(None),
            Some(Value::Number(number)) => number.as_i64().map(Some).ok_or_else(bad),
            Some(Value::String(text)) => text.parse().map(Some).map_err(|_| bad()),
            Some(_) => Err(bad()),
        }
    }

    /// A number of things, at least one.
    pub(super) fn limit(&self, key: &str) -> Result<Option<u64>, DriverError> {
        match self.integer(key)?.map(u64::try_from) {
            None => Ok(None),
            Some(Ok(limit @ 1..)) => Ok(Some(limit)),
            Some(_) => Err(self.error(key, &format!("{key} must be at least 1"))),
        }
    }

    /// A block of string pairs, written as a map or as a nested block.
    pub(super) fn pairs(&self, key: &str) -> Result<Vec<(String, String)>, DriverError> {
        let bad = || self.error(key, &format!("{key} must be a map of strings"));
        let objects: Vec<&serde_json::Map<String, Value>> = match self.value(key) {
            None => Vec::new(),
            Some(Value::Object(object)) => vec![object],
            Some(Value::Array(items)) => {
                items.iter().map(|i| i.as_object().ok_or_else(bad)).collect::<Result<_, _>>()?
            }
            Some(_) => return Err(bad()),
        };
        let pairs = objects.into_iter().flatten();
        pairs.map(|(k, v)| Ok((k.clone(), v.as_str().ok_or_else(bad)?.to_owned()))).collect()
    }

    pub(super) fn namespace_mode(&self, key: &str) -> Result<NamespaceMode, DriverError> {
        let name = self.string(key)?.unwrap_or_default();
        NamespaceMode::from_name(&name)
            .ok_or_else(|| self.error(key, &format!("{key} must be \"private\" or \"host\", got {name:?}")))
    }

    pub(super) fn absolute_path(&self, key: &str) -> Result<String, DriverError> {
        let path = self.string(key)?.unwrap_or_default();
        if path.is_empty() || path.starts_with('/') {
            return Ok(path);
        }
        Err(self.error(key, &format!("{key} must be absolute but got relative path {path:?}")))
    }
}
