//! Who may do what over the API.

use serde::{Deserialize, Serialize};

use super::Nanos;

/// What the owner of a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Look.
    Read,
    /// And submit jobs within what the configuration allows.
    Submit,
    /// Everything: equal to root.
    Manage,
}

impl Role {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Submit => "submit",
            Role::Manage => "manage",
        }
    }

    /// The role of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Role> {
        [Role::Read, Role::Submit, Role::Manage].into_iter().find(|role| role.as_str() == name)
    }
}

/// A token. Its secret is kept nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Token {
    /// By which it is named.
    #[serde(rename = "AccessorID")]
    pub accessor_id: String,
    /// What it is for.
    pub name: String,
    /// See [`Role`].
    pub role: Role,
    /// When it came to be.
    pub create_time: Nanos,
    /// When it is worth nothing any more; 0 is never.
    #[serde(default)]
    pub expiration_time: Nanos,
    /// Index at which it came to be.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
}

impl Token {
    /// It is worth nothing any more.
    #[must_use]
    pub fn is_expired(&self, now: Nanos) -> bool {
        self.expiration_time.0 != 0 && self.expiration_time <= now
    }
}
