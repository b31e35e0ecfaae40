//! Calls of the engine for images: pull, load, inspect, remove.

use std::fs::File;
use std::io::{self, Read as _};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{HeaderName, HeaderValue};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::ask::Ask;
use super::call::{self, Lines, escaped};
use super::{Engine, EngineError};

use crate::spec::json::json;

/// Credentials for a registry. Unset fields are empty.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Credentials {
    /// The user's name.
    pub username: String,
    /// The password.
    pub password: String,
    /// The token from a login, used instead of name and password.
    pub identity_token: String,
    /// The registry that they are for.
    pub server_address: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Credentials { username, server_address, .. } = self;
        let mut shown = f.debug_struct("Credentials");
        shown.field("username", username).field("server_address", server_address).finish_non_exhaustive()
    }
}

impl Credentials {
    /// As a header of a request.
    fn header(&self) -> Result<HeaderValue, EngineError> {
        let mut given = serde_json::Map::new();
        for (key, value) in [
            ("username", &self.username),
            ("password", &self.password),
            ("identitytoken", &self.identity_token),
            ("serveraddress", &self.server_address),
        ] {
            if !value.is_empty() {
                given.insert(key.to_owned(), json!(value));
            }
        }
        let mut value = HeaderValue::from_str(&URL_SAFE.encode(Value::Object(given).to_string()))
            .map_err(|e| EngineError::Endpoint(e.to_string()))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// A progress message of the engine during a pull.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// The layer; empty for a message about the whole image.
    pub layer: String,
    /// The status text, such as `Downloading`.
    pub status: String,
    /// Bytes so far.
    pub current: u64,
    /// Bytes in all; 0 when that is not known.
    pub total: u64,
}

/// Size of the chunks in which an archive is sent.
const PIECE: usize = 256 * 1024;

impl Engine {
    /// The id of an image; `None` if the engine does not have it.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn image(&self, name: &str) -> Result<Option<String>, EngineError> {
        let ask = Ask::get(format!("/images/{}/json", escaped(name)));
        match self.ask("inspect the image", self.deadlines.ask, ask).await {
            Ok(image) => Ok(Some(call::text(&image, "/Id")).filter(|id| !id.is_empty())),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Pulls an image; it is available when the messages have ended without an error. No deadline.
    ///
    /// # Errors
    /// The credentials do not fit into a header.
    pub fn pull(&self, repository: &str, tag: &str, credentials: Option<&Credentials>) -> Result<Pulling, EngineError> {
        let mut ask = Ask::post("/images/create").with("fromImage", repository).with("tag", tag);
        if let Some(credentials) = credentials {
            ask = ask.header(HeaderName::from_static("x-registry-auth"), credentials.header()?);
        }
        Ok(Pulling(self.ask_for_lines("pull the image", ask)))
    }

    /// Loads an archive that `docker save` wrote. No deadline: it takes as long as the archive is large.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn load(&self, mut archive: File) -> Result<(), EngineError> {
        let (sender, pieces) = mpsc::channel::<io::Result<Bytes>>(2);
        let reading = crate::sys::task::spawn_blocking(move || {
            loop {
                let mut piece = vec![0; PIECE];
                let piece = match archive.read(&mut piece) {
                    Ok(0) => return,
                    Ok(length) => {
                        piece.truncate(length);
                        Ok(Bytes::from(piece))
                    }
                    Err(error) => Err(error),
                };
                let failed = piece.is_err();
                if sender.blocking_send(piece).is_err() || failed {
                    return;
                }
            }
        });
        let pieces = ReceiverStream::new(pieces).map(|piece| piece.map(Frame::data));
        let ask = Ask::post("/images/load").body(StreamBody::new(pieces).boxed_unsync(), "application/x-tar");
        let mut said = self.ask_for_lines("load the image", ask);
        while let Some(said) = said.next().await {
            said?;
        }
        let _ended = reading.await;
        Ok(())
    }

    /// Removes an image; a conflict when a container uses it.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn remove_image(&self, id: &str) -> Result<(), EngineError> {
        let ask = Ask::delete(format!("/images/{}", escaped(id))).with("force", "true");
        self.ask("remove the image", self.deadlines.change, ask).await.map(drop)
    }
}

/// A running pull.
pub struct Pulling(Lines);

impl Pulling {
    /// The engine's next message; `None` after the last one. Dropping this before the end cancels the pull.
    pub async fn next(&mut self) -> Option<Result<Progress, EngineError>> {
        self.0.next().await.map(|said| said.map(|line| progress(&line)))
    }
}

fn progress(line: &Value) -> Progress {
    Progress {
        layer: call::text(line, "/id"),
        status: call::text(line, "/status"),
        current: call::number(line, "/progressDetail/current").unwrap_or(0),
        total: call::number(line, "/progressDetail/total").unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e1_credentials_are_sent_as_the_engine_reads_them_and_are_not_shown() {
        let given = Credentials { username: "u".to_owned(), password: "?>?>".to_owned(), ..Credentials::default() };
        let header = given.header().unwrap();
        // The URL-safe alphabet, as in Go's `base64.URLEncoding`.
        let json = URL_SAFE.decode(header.as_bytes()).unwrap();
        assert_eq!(json, br#"{"username":"u","password":"?>?>"}"#);
        assert!(header.is_sensitive() && !format!("{given:?}").contains("?>"));
    }
}
