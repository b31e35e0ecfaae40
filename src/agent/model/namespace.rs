//! A namespace of jobs and variables.

use crate::spec::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// What it is for.
    #[serde(default)]
    pub description: String,
    /// The operator's.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
    /// Index at which it came to be.
    #[serde(default)]
    pub create_index: u64,
    /// Index of its last change.
    #[serde(default)]
    pub modify_index: u64,
}
