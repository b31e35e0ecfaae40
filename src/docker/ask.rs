//! A request to the engine: method, path with parameters, headers, body.

use std::io;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use serde_json::Value;
use url::form_urlencoded::byte_serialize;

/// The body of a request. One type for all of them, so that the connection's code is instantiated only once.
pub(super) type Payload = UnsyncBoxBody<Bytes, io::Error>;

/// No body.
pub(super) fn nothing() -> Payload {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body that is complete in memory.
pub(super) fn bytes(bytes: impl Into<Bytes>) -> Payload {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A request to the engine.
pub(super) struct Ask {
    method: Method,
    /// The path with its parameters.
    pub(super) target: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    payload: Payload,
}

impl Ask {
    fn new(method: Method, target: String) -> Ask {
        Ask { method, target, headers: Vec::new(), payload: nothing() }
    }

    pub(super) fn get(path: impl Into<String>) -> Ask {
        Ask::new(Method::GET, path.into())
    }

    pub(super) fn post(path: impl Into<String>) -> Ask {
        Ask::new(Method::POST, path.into())
    }

    pub(super) fn delete(path: impl Into<String>) -> Ask {
        Ask::new(Method::DELETE, path.into())
    }

    /// With a parameter.
    pub(super) fn with(mut self, name: &str, value: &str) -> Ask {
        self.target.push(if self.target.contains('?') { '&' } else { '?' });
        self.target.extend([name, "="]);
        self.target.extend(byte_serialize(value.as_bytes()));
        self
    }

    pub(super) fn header(mut self, name: HeaderName, value: HeaderValue) -> Ask {
        self.headers.push((name, value));
        self
    }

    /// With a value as its body.
    pub(super) fn json(self, value: &Value) -> Ask {
        self.body(bytes(value.to_string()), "application/json")
    }

    pub(super) fn body(mut self, payload: Payload, content_type: &'static str) -> Ask {
        self.payload = payload;
        self.header(CONTENT_TYPE, HeaderValue::from_static(content_type))
    }

    pub(super) fn into_request(self, uri: Uri) -> Request<Payload> {
        let mut request = Request::new(self.payload);
        (*request.method_mut(), *request.uri_mut()) = (self.method, uri);
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("docker"));
        headers.extend(self.headers);
        request
    }
}
