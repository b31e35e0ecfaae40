//! One call of the engine: the request, its answer as JSON, and answers that report progress line by line. Answers are kept as
//! JSON, from which callers read the few values that they need, because the engine's own types are very many.

use std::ops::Range;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::Value;

use super::ask::Ask;
use super::error::chain;
use super::meter::{Allowance, MAX_ANSWER, MAX_RIDDLE};
use super::{Engine, EngineError};
use crate::spec::percent_encoded;

/// Escapes a name for use as a part of a path. Image names contain slashes.
pub(super) fn escaped(name: &str) -> String {
    percent_encoded(name, b"/:@")
}

/// Converts an error from before the answer to the call's own error.
fn unanswered(what: &'static str, error: EngineError) -> EngineError {
    match error {
        EngineError::Answer { .. } => error,
        EngineError::NoConnection { .. } => EngineError::NoConnection { what, problem: error.to_string() },
        other => EngineError::Broken { what, problem: other.to_string() },
    }
}

fn no_json(what: &'static str, error: &serde_json::Error) -> EngineError {
    EngineError::Broken { what, problem: format!("the engine's answer is not JSON: {error}") }
}

impl Engine {
    /// The engine's answer; null for an empty one.
    pub(super) async fn ask(&self, what: &'static str, after: Duration, ask: Ask) -> Result<Value, EngineError> {
        tokio::time::timeout(after, self.ask_forever(what, ask))
            .await
            .unwrap_or(Err(EngineError::Timeout { what, after }))
    }

    /// The same without a deadline.
    pub(super) async fn ask_forever(&self, what: &'static str, ask: Ask) -> Result<Value, EngineError> {
        let allowance = Allowance::new(MAX_ANSWER);
        let body = self.connector.answer(what, ask, allowance).await.map_err(|error| unanswered(what, error))?;
        let body = body.collect().await.map_err(|e| EngineError::Broken { what, problem: chain(&e) })?.to_bytes();
        if body.trim_ascii().is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).map_err(|e| no_json(what, &e))
    }

    /// An answer in lines; the request is sent when the first line is read. No deadline.
    pub(super) fn ask_for_lines(&self, what: &'static str, ask: Ask) -> Lines {
        let allowance = Allowance::new(MAX_RIDDLE);
        Lines {
            engine: self.clone(),
            what,
            allowance,
            ask: Some(ask),
            body: None,
            text: Vec::new(),
            read: 0,
            searched: 0,
        }
    }
}

/// An answer whose lines are JSON values, read as they arrive. The amount of data that cannot be parsed is bounded.
pub(super) struct Lines {
    engine: Engine,
    what: &'static str,
    allowance: Allowance,
    /// Set until the request is sent.
    ask: Option<Ask>,
    /// Set until the end of the answer.
    body: Option<Incoming>,
    /// Received data. The first `read` bytes were consumed; from there on no line ends before `searched`.
    text: Vec<u8>,
    read: usize,
    searched: usize,
}

impl Lines {
    /// The next value; `None` at the end, and after an error. The future must not be dropped before it completes.
    pub(super) async fn next(&mut self) -> Option<Result<Value, EngineError>> {
        let value = self.try_next().await;
        if value.is_err() {
            self.body = None;
            (self.read, self.searched) = (self.text.len(), self.text.len());
        }
        value.transpose()
    }

    async fn try_next(&mut self) -> Result<Option<Value>, EngineError> {
        let what = self.what;
        if let Some(ask) = self.ask.take() {
            let answer = self.engine.connector.answer(what, ask, self.allowance.clone()).await;
            self.body = Some(answer.map_err(|error| unanswered(what, error))?);
        }
        loop {
            while let Some(line) = self.line() {
                let line = self.text[line].trim_ascii();
                if line.is_empty() {
                    continue;
                }
                let value: Value = serde_json::from_slice(line).map_err(|e| no_json(what, &e))?;
                self.allowance.renew();
                return match complaint(&value) {
                    Some(message) => Err(EngineError::Answer { what, status: 500, message }),
                    None => Ok(Some(value)),
                };
            }
            let Some(body) = &mut self.body else { return Ok(None) };
            match body.frame().await {
                None => self.body = None,
                Some(Err(e)) => return Err(EngineError::Broken { what, problem: chain(&e) }),
                Some(Ok(frame)) => {
                    self.text.drain(..self.read);
                    (self.searched, self.read) = (self.searched - self.read, 0);
                    self.text.extend(frame.into_data().unwrap_or_default());
                }
            }
        }
    }

    /// The range of the next complete line; at the end of the answer also that of a line without a line end.
    fn line(&mut self) -> Option<Range<usize>> {
        let end = memchr::memchr(b'\n', &self.text[self.searched..]).map(|at| self.searched + at + 1);
        let last = self.body.is_none() && self.read < self.text.len();
        self.searched = end.unwrap_or(self.text.len());
        let line = self.read..end.or(last.then_some(self.text.len()))?;
        self.read = line.end;
        Some(line)
    }
}

/// The error in a line of progress.
fn complaint(line: &Value) -> Option<String> {
    let said = line.pointer("/errorDetail/message").or_else(|| line.get("error"));
    said.and_then(Value::as_str).map(str::to_owned)
}

/// The text at a JSON pointer; empty where there is none.
pub(super) fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Whether true stands at a JSON pointer.
pub(super) fn flag(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer).and_then(Value::as_bool).unwrap_or(false)
}

/// The number at a JSON pointer.
pub(super) fn number<T: TryFrom<i64>>(value: &Value, pointer: &str) -> Option<T> {
    value.pointer(pointer).and_then(Value::as_i64).and_then(|n| T::try_from(n).ok())
}

/// The elements of the list at a JSON pointer.
pub(super) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The id in an answer, which must contain one.
pub(super) fn id(what: &'static str, answer: &Value) -> Result<String, EngineError> {
    match text(answer, "/Id") {
        id if id.is_empty() => Err(EngineError::Broken { what, problem: "the engine's answer has no id".to_owned() }),
        id => Ok(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e1_names_and_parameters_are_escaped() {
        assert_eq!(escaped("quay.io/a/b:1@sha256:0f"), "quay.io/a/b:1@sha256:0f");
        assert_eq!(escaped("a b?c%ü"), "a%20b%3Fc%25%C3%BC");
        let ask = Ask::get("/containers/json").with("all", "true").with("filters", "{\"label\":[\"a&b\"]}");
        assert_eq!(ask.target, "/containers/json?all=true&filters=%7B%22label%22%3A%5B%22a%26b%22%5D%7D");
        assert_eq!(Ask::get("/info").target, "/info");
    }

    #[test]
    fn e1_an_error_among_the_progress_is_one() {
        let said = |text: &str| complaint(&serde_json::from_str(text).unwrap());
        assert_eq!(said(r#"{"errorDetail":{"message":"no"},"error":"other"}"#).as_deref(), Some("no"));
        assert_eq!(said(r#"{"error":"no"}"#).as_deref(), Some("no"));
        assert_eq!(said(r#"{"status":"error"}"#), None);
    }
}
