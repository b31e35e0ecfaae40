//! Tokens: what is kept is sealed, and has no secret in it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::change::{Change, encode, valid};
use super::error::StateError;
use super::records::Records;
use super::table::{self, Table};
use super::view::{View, damaged, decode};
use crate::agent::model::{Nanos, Secret, Token};

#[derive(Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    token: Token,
    /// The keyed hash of its secret, base64.
    #[serde(rename = "Hash")]
    hash: String,
}

impl View {
    fn open_token(&self, key: &[u8], sealed: &[u8]) -> Result<Kept, StateError> {
        let name = Table::Tokens.name();
        let plain = self.keys.open_sealed(name, key, sealed);
        let plain = plain.ok_or_else(|| damaged(name, key, &"it was sealed with another key, or is damaged"))?;
        decode(name, key, &plain)
    }

    fn kept_token(&self, accessor: &str) -> Result<Option<Kept>, StateError> {
        let found = self.source().get(Table::Tokens.name(), accessor.as_bytes())?;
        found.map(|sealed| self.open_token(accessor.as_bytes(), &sealed)).transpose()
    }

    /// A token by its accessor.
    ///
    /// # Errors
    /// [`StateError`], here and below.
    pub fn token(&self, accessor: &str) -> Result<Option<Token>, StateError> {
        Ok(self.kept_token(accessor)?.map(|kept| kept.token))
    }

    /// All tokens, sorted by accessor.
    pub fn tokens(&self) -> Records<'_, Token> {
        Records::new(self.source(), Table::Tokens.name(), Vec::new(), |key, sealed| {
            Ok(Some(self.open_token(key, sealed)?.token))
        })
    }

    /// The token with this secret, unless it has expired. The secret is found by its keyed hash, so that the time this takes
    /// says nothing of other secrets.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn token_by_secret(&self, secret: &Secret, now: Nanos) -> Result<Option<Token>, StateError> {
        let hash = self.keys.hash(secret.expose());
        let Some(accessor) = self.source().get(table::TOKENS_BY_SECRET, &hash)? else { return Ok(None) };
        let token = self.token(&String::from_utf8_lossy(&accessor))?;
        Ok(token.filter(|token| !token.is_expired(now)))
    }
}

impl Change<'_> {
    /// Keeps a token with this secret. A token that is there keeps its secret unless another one is given.
    ///
    /// # Errors
    /// [`StateError::Invalid`] for a new token without a secret; [`StateError::Conflict`] for a secret that another one has.
    pub fn put_token(&mut self, mut token: Token, secret: Option<&Secret>) -> Result<(), StateError> {
        valid("an accessor", &token.accessor_id)?;
        let old = self.kept_token(&token.accessor_id)?;
        let hash = secret.map(|secret| self.keys.hash(secret.expose()));
        let hash = match (hash, &old) {
            (Some(hash), _) => hash,
            (None, Some(old)) => STANDARD.decode(&old.hash).unwrap_or_default(),
            (None, None) => return Err(StateError::Invalid("a new token needs a secret".to_owned())),
        };
        let accessor = token.accessor_id.clone().into_bytes();
        let owner = self.view().source().get(table::TOKENS_BY_SECRET, &hash)?;
        if owner.is_some_and(|owner| owner != accessor) {
            return Err(StateError::Conflict("another token has this secret".to_owned()));
        }
        if let Some(old) = &old {
            self.unlink(table::TOKENS_BY_SECRET, &STANDARD.decode(&old.hash).unwrap_or_default());
        }
        let index = self.next_index();
        token.create_index = old.map_or(index, |old| old.token.create_index);
        token.modify_index = index;
        self.link(table::TOKENS_BY_SECRET, &hash, accessor.clone());
        let plain = encode(&Kept { token, hash: STANDARD.encode(&hash) })?;
        let sealed = self.keys.seal(Table::Tokens.name(), &accessor, plain);
        self.put_bytes(Table::Tokens, &accessor, sealed)
    }

    /// Forgets a token, and says whether there was one.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn delete_token(&mut self, accessor: &str) -> Result<bool, StateError> {
        let Some(old) = self.kept_token(accessor)? else { return Ok(false) };
        self.unlink(table::TOKENS_BY_SECRET, &STANDARD.decode(&old.hash).unwrap_or_default());
        self.take(Table::Tokens, accessor.as_bytes())?;
        Ok(true)
    }
}
