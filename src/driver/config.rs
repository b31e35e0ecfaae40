//! Reads a driver's `config` block: known keys with known types. Everything else is refused, with its position.

use serde_json::Value;

use super::DriverError;
use crate::jobspec::did_you_mean;
use crate::spec::{DriverConfig, NamespaceMode, Pos};

/// The values of one block, with the driver's name for error messages.
///
/// A null value counts as absent, because an agent sends every key of the schema.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    driver: &'static str,
    config: &'a DriverConfig,
}

impl<'a> Reader<'a> {
    /// Refuses every key that is not in `known`.
    ///
    /// # Errors
    /// [`DriverError::Config`], as for all other methods.
    pub fn new(driver: &'static str, config: &'a DriverConfig, known: &[&str]) -> Result<Reader<'a>, DriverError> {
        let reader = Reader { driver, config };
        match config.values.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => {
                let hint = did_you_mean(key, known.iter().copied());
                Err(reader.error(key, &format!("unsupported key {key:?}{hint}; known keys are {}", known.join(", "))))
            }
            None => Ok(reader),
        }
    }

    /// A reader that accepts any keys, for a block whose keys were already checked with [`new`](Self::new).
    #[must_use]
    pub fn any(driver: &'static str, config: &'a DriverConfig) -> Reader<'a> {
        Reader { driver, config }
    }

    /// The driver's name.
    #[must_use]
    pub fn driver(&self) -> &'static str {
        self.driver
    }

    /// An error about the value of `key`, prefixed with its position in the file where that is known.
    #[must_use]
    pub fn error(&self, key: &str, problem: &str) -> DriverError {
        let pos: &Pos = self.config.positions.get(key).unwrap_or(&self.config.pos);
        let place = if pos.file.is_empty() { String::new() } else { format!("{pos}: ") };
        DriverError::Config(format!("{place}config of driver {}: {problem}", self.driver))
    }

    /// Whether the key has a value.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// The value as it is.
    pub(super) fn value(&self, key: &str) -> Option<&'a Value> {
        self.config.values.get(key).filter(|value| !value.is_null())
    }

    /// A string; numbers and booleans are converted.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub fn string(&self, key: &str) -> Result<Option<String>, DriverError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(Value::Bool(flag)) => Ok(Some(flag.to_string())),
            Some(_) => Err(self.error(key, &format!("{key} must be a string"))),
        }
    }

    /// A string that must be set and not be empty.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub fn required(&self, key: &str) -> Result<String, DriverError> {
        let text = self.string(key)?.unwrap_or_default();
        if text.is_empty() {
            Err(self.error(key, &format!("{key} is missing; it names the program to run")))
        } else {
            Ok(text)
        }
    }

    /// A list of strings; an absent one is empty.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub fn strings(&self, key: &str) -> Result<Vec<String>, DriverError> {
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

    /// An integer.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub fn integer(&self, key: &str) -> Result<Option<i64>, DriverError> {
        let bad = || self.error(key, &format!("{key} must be a whole number"));
        match self.value(key) {
            None => Ok(None),
            Some(Value::Number(number)) => number.as_i64().map(Some).ok_or_else(bad),
            Some(Value::String(text)) => text.parse().map(Some).map_err(|_| bad()),
            Some(_) => Err(bad()),
        }
    }

    /// A boolean.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub fn flag(&self, key: &str) -> Result<Option<bool>, DriverError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(Value::String(text)) if text == "true" || text == "false" => Ok(Some(text == "true")),
            Some(_) => Err(self.error(key, &format!("{key} must be true or false"))),
        }
    }

    /// The keys of a nested block that may occur at most once; empty if it is absent.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub fn block(&self, key: &str) -> Result<DriverConfig, DriverError> {
        let block = match self.value(key) {
            None => None,
            Some(Value::Object(object)) => Some(object),
            Some(Value::Array(items)) if items.len() <= 1 => items.first().and_then(Value::as_object),
            Some(_) => return Err(self.error(key, &format!("there may be one block {key}"))),
        };
        let pos = self.config.positions.get(key).unwrap_or(&self.config.pos).clone();
        Ok(DriverConfig { values: block.cloned().unwrap_or_default(), pos, ..DriverConfig::default() })
    }

    /// The keys of each of the nested blocks, of which there may be any number.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub fn blocks(&self, key: &str) -> Result<Vec<DriverConfig>, DriverError> {
        let bad = || self.error(key, &format!("{key} must be blocks"));
        let blocks: Vec<&serde_json::Map<String, Value>> = match self.value(key) {
            None => Vec::new(),
            Some(Value::Object(object)) => vec![object],
            Some(Value::Array(items)) => {
                items.iter().map(|item| item.as_object().ok_or_else(bad)).collect::<Result<_, _>>()?
            }
            Some(_) => return Err(bad()),
        };
        let pos = self.config.positions.get(key).unwrap_or(&self.config.pos);
        let config = |block: &serde_json::Map<String, Value>| DriverConfig {
            values: block.clone(),
            pos: pos.clone(),
            ..DriverConfig::default()
        };
        Ok(blocks.into_iter().map(config).collect())
    }

    /// A limit of at least 1.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub fn limit(&self, key: &str) -> Result<Option<u64>, DriverError> {
        match self.integer(key)?.map(u64::try_from) {
            None => Ok(None),
            Some(Ok(limit @ 1..)) => Ok(Some(limit)),
            Some(_) => Err(self.error(key, &format!("{key} must be at least 1"))),
        }
    }

    /// A block of string pairs, written as a map or as a nested block.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub fn pairs(&self, key: &str) -> Result<Vec<(String, String)>, DriverError> {
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
        let text = |value: &Value| match value {
            Value::String(text) => Ok(text.clone()),
            Value::Number(number) => Ok(number.to_string()),
            _ => Err(bad()),
        };
        pairs.map(|(k, v)| Ok((k.clone(), text(v)?))).collect()
    }

    /// `private` or `host`; `None` when empty.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub fn namespace_mode(&self, key: &str) -> Result<Option<NamespaceMode>, DriverError> {
        let name = self.string(key)?.unwrap_or_default();
        if name.is_empty() {
            return Ok(None);
        }
        NamespaceMode::from_name(&name)
            .map(Some)
            .ok_or_else(|| self.error(key, &format!("{key} must be \"private\" or \"host\", got {name:?}")))
    }

    /// An absolute path; empty when not set.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub fn absolute_path(&self, key: &str) -> Result<String, DriverError> {
        let path = self.string(key)?.unwrap_or_default();
        if path.is_empty() || path.starts_with('/') {
            return Ok(path);
        }
        // Two wordings: hosts and users know the texts of Nomad's drivers, and those differ.
        Err(self.error(
            key,
            &if self.driver == "exec" {
                format!("{key} must be absolute but got relative path {path:?}")
            } else {
                format!("{key} must be an absolute path: {path}")
            },
        ))
    }
}
