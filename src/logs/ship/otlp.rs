//! OTLP over HTTP with JSON: hyper is used already, and generated protobuf messages would only add code
//! (<https://opentelemetry.io/docs/specs/otlp/#otlphttp>).

use std::io;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;

use super::entry::Batch;
use super::sink::Otlp;
use super::{Labels, Stream};

use crate::spec::json::json;
use crate::sys::task::JoinHandle;

/// How long a collector may take for a batch.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most bytes of an answer that are read.
const ANSWER: usize = 64 * 1024;

/// A connection to a collector.
#[derive(Debug)]
pub(super) struct Collector {
    requests: SendRequest<Full<Bytes>>,
    connection: JoinHandle<()>,
    to: Otlp,
}

/// The lines that a collector has rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rejected {
    pub(super) lines: u64,
    pub(super) error: String,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl std::fmt::Debug for Otlp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Otlp").field("address", &self.address).field("path", &self.path).finish_non_exhaustive()
    }
}

impl Collector {
    pub(super) async fn connect(to: &Otlp) -> io::Result<Collector> {
        let stream = crate::names::connect(&to.address).await?;
        let (requests, connection) =
            http1::handshake(TokioIo::new(crate::sys::stream::stream(stream))).await.map_err(io::Error::other)?;
        let connection = crate::sys::task::spawn(async move {
            // The error is reported by the next request.
            let _ = connection.await;
        });
        Ok(Collector { requests, connection, to: to.clone() })
    }

    /// Sends the entries from `done` on in one request, and advances `done` when the collector has answered.
    pub(super) async fn send(
        &mut self,
        labels: &Labels,
        stream: Stream,
        batch: &Batch,
        done: &mut usize,
    ) -> io::Result<Option<Rejected>> {
        let lines = (batch.entries.len() - *done) as u64;
        let body = encode(labels, stream, batch, *done).to_string();
        let answered = tokio::time::timeout(PATIENCE, self.post(body.into())).await;
        let (status, answer) = answered.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let rejected = if status.is_success() {
            partial_success(&answer)
        } else if status.is_client_error()
            && !matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
        {
            // The collector would reject it again.
            Some(Rejected { lines, error: said(status, &answer) })
        } else {
            return Err(io::Error::other(said(status, &answer)));
        };
        *done = batch.entries.len();
        Ok(rejected)
    }

    async fn post(&mut self, body: Bytes) -> io::Result<(StatusCode, Bytes)> {
        self.requests.ready().await.map_err(io::Error::other)?;
        let mut request = Request::post(self.to.path.as_str())
            .header(HOST, self.to.address.as_str())
            .header(USER_AGENT, concat!("agentbin/", env!("CARGO_PKG_VERSION")))
            .header(CONTENT_TYPE, "application/json");
        if let Some(credentials) = &self.to.credentials {
            request = request.header(AUTHORIZATION, format!("Basic {}", STANDARD.encode(credentials)));
        }
        let request = request.body(Full::new(body)).map_err(io::Error::other)?;
        let response = self.requests.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status();
        let answer = Limited::new(response.into_body(), ANSWER).collect().await.map_err(io::Error::other)?;
        Ok((status, answer.to_bytes()))
    }
}

fn said(status: StatusCode, answer: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(answer).chars().filter(|c| !c.is_control()).take(200).collect();
    format!("HTTP {status}{}{text}", if text.is_empty() { "" } else { ": " })
}

/// Numbers of 64 bits may be strings in protobuf's JSON.
fn partial_success(answer: &[u8]) -> Option<Rejected> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let partial = answer.get("partialSuccess")?;
    let lines = match partial.get("rejectedLogRecords")? {
        Value::String(text) => text.parse().ok()?,
        other => other.as_u64()?,
    };
    let error = partial.get("errorMessage").and_then(Value::as_str).unwrap_or("no reason given").to_owned();
    (lines > 0).then_some(Rejected { lines, error })
}

fn encode(labels: &Labels, stream: Stream, batch: &Batch, first: usize) -> Value {
    let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
    let nanos = batch.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos().to_string();
    let (severity, name) = if stream == Stream::Stderr { (17, "ERROR") } else { (9, "INFO") };
    let record = |entry: &super::entry::Entry| {
        let line = batch.text(entry);
        let body = if let Ok(line) = std::str::from_utf8(line) {
            json!({ "stringValue": line })
        } else {
            json!({ "bytesValue": STANDARD.encode(line) })
        };
        let uid = format!("{}/{}.{}.{}:{}", labels.alloc, labels.task, stream.name(), entry.at.index, entry.at.offset);
        let mut attributes = vec![text("log.iostream", stream.name()), text("log.record.uid", &uid)];
        if entry.partial {
            attributes.push(json!({ "key": "nomad.partial", "value": { "boolValue": true } }));
        }
        json!({
            "timeUnixNano": nanos,
            "observedTimeUnixNano": nanos,
            "severityNumber": severity,
            "severityText": name,
            "body": body,
            "attributes": attributes,
        })
    };
    let records: Vec<Value> = batch.entries[first..].iter().map(record).collect();
    let resource = [
        text("service.name", &labels.task),
        text("service.namespace", &labels.job),
        text("nomad.job", &labels.job),
        text("nomad.group", &labels.group),
        text("nomad.task", &labels.task),
        text("nomad.alloc.id", &labels.alloc),
    ];
    json!({
        "resourceLogs": [{
            "resource": { "attributes": resource },
            "scopeLogs": [{ "scope": { "name": "agentbin" }, "logRecords": records }],
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_success_is_read() {
        let rejected = |text: &str| partial_success(text.as_bytes()).map(|r| (r.lines, r.error));
        assert_eq!(rejected("{}"), None);
        assert_eq!(rejected(r#"{"partialSuccess":{}}"#), None);
        let text = r#"{"partialSuccess":{"rejectedLogRecords":"3","errorMessage":"full"}}"#;
        assert_eq!(rejected(text), Some((3, "full".to_owned())));
        let text = r#"{"partialSuccess":{"rejectedLogRecords":2}}"#;
        assert_eq!(rejected(text), Some((2, "no reason given".to_owned())));
    }
}
