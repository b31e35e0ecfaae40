//! Answers of handlers, and how they are sent: headers, format, compression.

use serde_json::{Map, Value};

use crate::agent::commands::CommandError;
use crate::agent::engine::OrderError;
use crate::agent::state::StateError;
use crate::alloc::control;
use crate::http::query::Query;
use crate::http::{Body, HeaderMap, HeaderName, HeaderValue, Response, StatusCode, body, header};
use crate::spec::json::json;

/// The index headers of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Meta {
    /// `X-Nomad-Index`; every answer has one, as the command line's monitors loop without pause if it is missing.
    pub(super) index: u64,
    /// Where the next page begins.
    pub(super) next_token: Option<String>,
}

/// An answer with status 200, unless it says otherwise itself.
#[derive(Debug)]
pub(super) enum Answer {
    /// JSON.
    Json(Value, Meta),
    /// JSON with another status: for a variable that another client has changed.
    Other(StatusCode, Value, Meta),
    /// A body as it is, with its type.
    Text(&'static str, Vec<u8>),
    /// Nothing.
    Empty,
    /// Nothing, with status 204: what was asked for is gone as of this index.
    Gone(u64),
    /// A stream, or a switch to WebSocket.
    Raw(Response<Body>),
}

impl Answer {
    /// JSON without an index.
    pub(super) fn of(value: Value) -> Answer {
        Answer::Json(value, Meta::default())
    }

    /// JSON as of an index.
    pub(super) fn at(index: u64, value: Value) -> Answer {
        Answer::Json(value, Meta { index, next_token: None })
    }

    /// The answer to a write: its members and the index, which clients also read from the body.
    pub(super) fn written(index: u64, mut value: Value) -> Answer {
        if let Value::Object(map) = &mut value {
            with_meta(map, index);
        }
        Answer::at(index, value)
    }
}

/// The members that Nomad puts into some objects beside the headers.
pub(super) fn with_meta(map: &mut Map<String, Value>, index: u64) {
    super::shape::lay(map, json!({"Index": index, "LastContact": 0, "KnownLeader": true, "NextToken": ""}));
}

/// An error answer: status and text, in Nomad's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) text: String,
    /// The index of the data that was read.
    pub(super) index: u64,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Refusal {
        Refusal { status, text: text.into(), index: 0 }
    }

    pub(super) fn bad(text: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, text)
    }

    pub(super) fn missing(text: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, text)
    }

    /// What Nomad answers when one of its internal calls failed.
    pub(super) fn failed(text: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }

    /// As [`Refusal::failed`] when a command did not find its object; `text` is Nomad's message for that.
    pub(super) fn unfound(error: CommandError, text: impl Into<String>) -> Refusal {
        if let CommandError::NotFound(_) = error { Refusal::failed(text) } else { error.into() }
    }

    pub(super) fn denied() -> Refusal {
        Refusal::new(StatusCode::FORBIDDEN, "Permission denied")
    }
}

impl From<StateError> for Refusal {
    fn from(error: StateError) -> Refusal {
        CommandError::from(error).into()
    }
}

impl From<CommandError> for Refusal {
    fn from(error: CommandError) -> Refusal {
        match &error {
            CommandError::Denied(text) => Refusal::new(StatusCode::FORBIDDEN, text),
            // Nomad uses 500 for all of them, and the command line shows the number.
            CommandError::NotFound(text) | CommandError::Invalid(text) | CommandError::Conflict(text) => {
                Refusal::failed(text)
            }
            CommandError::Failed { .. } => Refusal::failed(crate::alloc::chain(&error)),
        }
    }
}

impl From<OrderError> for Refusal {
    fn from(error: OrderError) -> Refusal {
        match &error {
            OrderError::UnknownAlloc(_) => Refusal::missing(error.to_string()),
            OrderError::Refused(control::OrderError::UnknownTask { task, .. }) => {
                Refusal::failed(format!("Could not find task runner for task: {task}"))
            }
            OrderError::Refused(control::OrderError::NotRunning { .. } | control::OrderError::NothingRuns(_)) => {
                Refusal::failed("Task not running")
            }
            OrderError::Refused(_) => Refusal::failed(error.to_string()),
        }
    }
}

/// Builds the HTTP response.
pub(super) fn respond(answer: Result<Answer, Refusal>, query: &Query, headers: &HeaderMap) -> Response<Body> {
    let (status, kind, bytes, meta) = match answer {
        Ok(Answer::Raw(response)) => return response,
        Ok(Answer::Empty) => (StatusCode::OK, None, Vec::new(), Meta::default()),
        Ok(Answer::Gone(index)) => (StatusCode::NO_CONTENT, None, Vec::new(), Meta { index, next_token: None }),
        Ok(Answer::Text(kind, bytes)) => (StatusCode::OK, Some(kind), bytes, Meta::default()),
        Ok(Answer::Json(value, meta)) => (StatusCode::OK, Some("application/json"), written(&value, query), meta),
        Ok(Answer::Other(status, value, meta)) => (status, Some("application/json"), written(&value, query), meta),
        Err(Refusal { status, text, index }) => {
            let meta = Meta { index, next_token: None };
            (status, Some("text/plain; charset=utf-8"), text.into_bytes(), meta)
        }
    };
    let packed = if body::takes_gzip(headers) { body::gzip(&bytes) } else { None };
    let is_packed = packed.is_some();
    let mut response = Response::new(Body::from(packed.unwrap_or(bytes)));
    *response.status_mut() = status;
    let out = response.headers_mut();
    put(out, header::VARY, "Accept-Encoding");
    if is_packed {
        put(out, header::CONTENT_ENCODING, "gzip");
    }
    if let Some(kind) = kind {
        put(out, header::CONTENT_TYPE, kind);
    }
    if status == StatusCode::FORBIDDEN {
        // A client without a valid token gets this answer only: a connection that sends requests and reads no answers would
        // stay open forever.
        put(out, header::CONNECTION, "close");
    }
    put(out, HeaderName::from_static("x-content-type-options"), "nosniff");
    put(out, HeaderName::from_static("x-nomad-index"), &meta.index.max(1).to_string());
    put(out, HeaderName::from_static("x-nomad-lastcontact"), "0");
    put(out, HeaderName::from_static("x-nomad-knownleader"), "true");
    if let Some(token) = meta.next_token {
        put(out, HeaderName::from_static("x-nomad-nexttoken"), &token);
    }
    response
}

fn put(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // A value that is not valid in a header is left out.
    if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
        headers.insert(name, value);
    }
}

/// JSON, with indentation where `pretty` asks for it.
fn written(value: &Value, query: &Query) -> Vec<u8> {
    let pretty = query.get("pretty").is_some_and(|text| !matches!(text, "0" | "false"));
    let written = if pretty {
        let mut out = Vec::new();
        let form = serde_json::ser::PrettyFormatter::with_indent(b"    ");
        let mut serializer = serde_json::Serializer::with_formatter(&mut out, form);
        serde::Serialize::serialize(value, &mut serializer).map(|()| out)
    } else {
        serde_json::to_vec(value)
    };
    written.expect("a value with texts as keys can be written")
}
