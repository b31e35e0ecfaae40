//! Keys and certificates in the forms in which Go writes and reads them: DER, in PEM. Never: show a private key in a message.

mod certificate;
mod der;
mod key;
pub(super) mod pem;

pub(super) use certificate::{Certificate, Request, issue};
pub(super) use key::Key;
