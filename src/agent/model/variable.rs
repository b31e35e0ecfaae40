//! Variables: what jobs and operators keep in the agent, and is nobody else's business.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Nanos;
use crate::spec::collections::BTreeMap;

/// A text that is not shown by accident.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Takes a text.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text, for whom it is meant.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// That somebody holds a variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct VariableLock {
    /// By which the holder is known: whoever has it may write.
    #[serde(rename = "ID")]
    pub id: Secret,
    /// How long it holds at least without a word of the holder.
    #[serde(rename = "TTL")]
    pub ttl: Nanos,
    /// How long nobody else gets it when it was taken from its holder.
    pub lock_delay: Nanos,
}

/// What a list says of a variable.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct VariableMeta {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub path: String,
    /// Somebody holds it.
    #[serde(default)]
    pub locked: bool,
    /// Nobody gets its lock before; 0 is at once. Set when a holder fell silent.
    #[serde(default)]
    pub lock_after: Nanos,
    /// Index at which it came to be.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
    /// When it came to be.
    pub create_time: Nanos,
    /// When it changed last.
    pub modify_time: Nanos,
}

/// A variable.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Variable {
    /// What may be shown.
    pub meta: VariableMeta,
    /// What it keeps.
    pub items: BTreeMap<String, Secret>,
    /// Who holds it.
    pub lock: Option<VariableLock>,
}
