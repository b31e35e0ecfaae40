//! Msgpack as Nomad's Go codec reads and writes structs: the state of a driver, what a plugin gets as configuration.
//! Never the forms that this codec does not know (a timestamp, text with an 8-bit length).
//!
//! Values are those of serde. [`to_vec`] writes what Go writes: maps and structs with sorted keys, text and bytes in one
//! raw form, a signed number in a signed form. [`from_slice`] reads as leniently as Go does: nil is the zero value of any
//! type, a whole number is also a float, 0 and 1 are bools, unknown keys are passed over. Declare `#[serde(default)]` on
//! structs, since Go leaves out what is empty where a field says so.

mod de;
mod ser;
#[cfg(test)]
mod tests;
mod time;
pub(super) mod token;

pub use de::from_slice;
pub use ser::to_vec;
pub use time::{Bytes, GoTime};

/// Deepest nesting that is read: far more than any configuration has, far less than the stack.
pub(in crate::wire) const MAX_DEPTH: usize = 128;

/// Why bytes could not be read, or a value not be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes end within a value.
    #[error("msgpack: the bytes end within a value")]
    Truncated,
    /// There are bytes after the value.
    #[error("msgpack: {0} bytes follow after the value")]
    Trailing(usize),
    /// The marker 0xc1, which means nothing.
    #[error("msgpack: the marker 0xc1 is reserved; these bytes are no msgpack")]
    Reserved,
    /// More nested levels than any configuration has.
    #[error("msgpack: more than {} nested levels", MAX_DEPTH)]
    TooDeep,
    /// Text that is not UTF-8.
    #[error("msgpack: a text is not UTF-8")]
    NotText,
    /// A key of a map that is not text.
    #[error("msgpack: a key is not text")]
    KeyNotText,
    /// An extension of this type; none is known here.
    #[error("msgpack: unknown extension type {0}")]
    Extension(i8),
    /// A value that was not known when it was written, at this place.
    #[error("{0} is unknown; the host must send configuration only when every value is known")]
    Unknown(String),
    /// What serde or a type has to say.
    #[error("{0}")]
    Message(String),
}

impl serde::ser::Error for Error {
    fn custom<T: std::fmt::Display>(message: T) -> Error {
        Error::Message(message.to_string())
    }
}

impl serde::de::Error for Error {
    fn custom<T: std::fmt::Display>(message: T) -> Error {
        Error::Message(message.to_string())
    }
}
