//! The key file, and encryption with its key.
//!
//! The key is stored next to the database and never in it, so that a copy of the database or a snapshot reveals no secret. Each
//! record is encrypted by AES-256-GCM with its table and key as associated data, so that one record cannot replace another.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::error::StateError;
use crate::store::{TableName, read_or_make};
use crate::sys::owned::OwnDir;
use crate::sys::random;

/// The file's name.
pub const KEY_FILE: &str = "state.key";
/// Bytes of the key.
const KEY: usize = 32;
/// Bytes of the file, at most: the key as text, and a line's end.
const FILE: u64 = 128;

/// The keys that are derived from the key file.
pub(super) struct Keys {
    seal: RandomizedNonceKey,
    hash: hmac::Key,
    id: String,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Keys {
    /// Reads the key file of a directory; creates it if it is missing.
    pub(super) fn open(dir: &Path) -> Result<Keys, StateError> {
        Keys::read(dir, true)
    }

    /// Reads the key file of a directory that contains secrets already; fails if it is missing.
    pub(super) fn existing(dir: &Path) -> Result<Keys, StateError> {
        Keys::read(dir, false)
    }

    fn read(dir: &Path, make_it: bool) -> Result<Keys, StateError> {
        let path = dir.join(KEY_FILE);
        let failed =
            |reason: &dyn std::fmt::Display| StateError::Key(format!("the key file {}: {reason}", path.display()));
        let own = OwnDir::open(dir).map_err(|error| failed(&error))?;
        let make = || {
            let mut key = [0; KEY];
            key[..16].copy_from_slice(&random::bits().to_ne_bytes());
            key[16..].copy_from_slice(&random::bits().to_ne_bytes());
            format!("{}\n", STANDARD.encode(key)).into_bytes()
        };
        match own.file(KEY_FILE.as_ref()) {
            Ok(file) => {
                let mode = rustix::fs::fstat(file).map_err(|error| failed(&error))?.st_mode & 0o777;
                if mode & 0o077 != 0 {
                    let reason =
                        format!("others may read it (mode {mode:o}): chmod 600 it, and renew what it protects");
                    return Err(failed(&reason));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && make_it => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(failed(&"it is gone, and the database has secrets sealed with it: put it back"));
            }
            Err(error) => return Err(failed(&error)),
        }
        let text = read_or_make(&own, KEY_FILE, FILE, make).map_err(|error| failed(&error))?;
        let key = STANDARD.decode(text.trim_ascii()).ok().filter(|key| key.len() == KEY);
        let key = key.ok_or_else(|| failed(&format!("it is not {KEY} bytes in base64; put the right one there")))?;
        Ok(Keys::of(&key))
    }

    /// Made of these bytes.
    pub(super) fn of(key: &[u8]) -> Keys {
        let main = hmac::Key::new(hmac::HMAC_SHA256, key);
        let derive = |purpose: &str| hmac::sign(&main, purpose.as_bytes());
        let seal = RandomizedNonceKey::new(&AES_256_GCM, derive("agentbin records").as_ref());
        let id = derive("agentbin key id");
        Keys {
            seal: seal.unwrap_or_else(|_| unreachable!("a SHA-256 is as long as a key of AES-256")),
            hash: hmac::Key::new(hmac::HMAC_SHA256, derive("agentbin tokens").as_ref()),
            id: hex(&id.as_ref()[..8]),
        }
    }

    /// An id of the key that reveals nothing about it.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Encrypts the content of this record.
    pub(super) fn seal(&self, table: TableName, key: &[u8], mut plain: Vec<u8>) -> Vec<u8> {
        let nonce = self.seal.seal_in_place_append_tag(Aad::from(place(table, key)), &mut plain);
        // AES-GCM fails for texts of 64 GiB and more only.
        let nonce = nonce.unwrap_or_else(|_| unreachable!("a record is shorter than 64 GiB"));
        let mut sealed = nonce.as_ref().to_vec();
        sealed.extend(plain);
        sealed
    }

    /// Decrypts it again; `None` when it was sealed with another key, for another record, or is damaged.
    pub(super) fn open_sealed(&self, table: TableName, key: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, text) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut text = text.to_vec();
        let plain = self.seal.open_in_place(nonce, Aad::from(place(table, key)), &mut text).ok()?;
        let length = plain.len();
        text.truncate(length);
        Some(text)
    }

    /// By which a token's secret is found: whoever reads it cannot even try secrets without the key file.
    pub(super) fn hash(&self, secret: &str) -> Vec<u8> {
        hmac::sign(&self.hash, secret.as_bytes()).as_ref().to_vec()
    }
}

/// Bytes as text.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Into a string, which takes it.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Where a record stands.
fn place(table: TableName, key: &[u8]) -> Vec<u8> {
    let mut place = table.as_bytes().to_vec();
    place.push(0);
    place.extend(key);
    place
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_is_sealed_opens_only_with_its_key_in_its_place() {
        let keys = Keys::of(&[7; KEY]);
        let sealed = keys.seal("variables", b"default\0a", b"secret".to_vec());
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
        assert_ne!(sealed, keys.seal("variables", b"default\0a", b"secret".to_vec()), "a nonce is used once");
        assert_eq!(keys.open_sealed("variables", b"default\0a", &sealed).unwrap(), b"secret");
        assert_eq!(keys.open_sealed("variables", b"default\0b", &sealed), None);
        assert_eq!(keys.open_sealed("tokens", b"default\0a", &sealed), None);
        assert_eq!(Keys::of(&[8; KEY]).open_sealed("variables", b"default\0a", &sealed), None);
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert_eq!(keys.open_sealed("variables", b"default\0a", &damaged), None, "byte {at}");
            assert_eq!(keys.open_sealed("variables", b"default\0a", &sealed[..at]), None, "{at} bytes");
        }
        assert!(!format!("{keys:?}").contains("seal"));
    }

    #[test]
    fn the_key_file_is_made_once_and_is_its_owner_s_alone() {
        let dir = tempfile::tempdir().unwrap();
        let first = Keys::open(dir.path()).unwrap();
        let path = dir.path().join(KEY_FILE);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let second = Keys::open(dir.path()).unwrap();
        assert_eq!(first.id(), second.id());
        assert_eq!(first.hash("x"), second.hash("x"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(Keys::open(dir.path()).unwrap_err().to_string().contains("mode 640"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "c2hvcnQ=").unwrap();
        assert!(Keys::open(dir.path()).unwrap_err().to_string().contains("32 bytes"));
    }
}
