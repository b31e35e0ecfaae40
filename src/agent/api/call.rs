//! One request, as handlers get it.

use std::fs::File;
use std::io::{BufWriter, Seek as _, Write as _};
use std::time::Duration;

use hyper::body::Body as _;

use super::Call;
use super::answer::Refusal;
use super::input::Input;
use crate::agent::model::JobKey;
use crate::http::body::{self, BodyError};
use crate::http::{Bytes, StatusCode};

/// Budget in KiB for the larger bodies of all requests together, held until they are answered.
pub(super) const ROOM: usize = 16 << 10;
/// Largest body, in bytes, that does not count against this budget.
const FREE: usize = 64 << 10;
/// How long a larger body waits for its share of the budget.
const PATIENCE: Duration = Duration::from_secs(30);

impl Call {
    /// The first id of the path.
    pub(super) fn id(&self) -> &str {
        self.ids.first().map_or("", String::as_str)
    }

    /// The second one.
    pub(super) fn second(&self) -> &str {
        self.ids.get(1).map_or("", String::as_str)
    }

    /// The requested namespace; `None` for all.
    pub(super) fn namespace(&self) -> Option<&str> {
        match self.query.text("namespace").unwrap_or("default") {
            "*" => None,
            one => Some(one),
        }
    }

    /// The requested namespace, where a request for all of them makes no sense.
    pub(super) fn one_namespace(&self) -> &str {
        self.namespace().unwrap_or("default")
    }

    /// Whether a record of this namespace is requested.
    pub(super) fn wants(&self, namespace: &str) -> bool {
        self.namespace().is_none_or(|wanted| wanted == namespace)
    }

    /// The job that the path names.
    pub(super) fn job(&self) -> JobKey {
        JobKey { namespace: self.one_namespace().to_owned(), id: self.id().to_owned() }
    }

    /// The prefix of a list.
    pub(super) fn prefix(&self) -> &str {
        self.query.get("prefix").unwrap_or_default()
    }

    /// A switch of the query that is off unless it is given.
    pub(super) fn switch(&self, key: &str) -> Result<bool, Refusal> {
        let wrong = |_| Refusal::bad(format!("Failed to parse value of \"{key}\" as a bool"));
        Ok(self.query.switch(key).map_err(wrong)?.unwrap_or(false))
    }

    /// A number of the query.
    pub(super) fn number<T: std::str::FromStr>(&self, key: &str) -> Result<Option<T>, Refusal> {
        let wrong = |_| Refusal::bad(format!("Failed to parse value of \"{key}\" as a number"));
        self.query.text(key).map(|text| text.parse().map_err(wrong)).transpose()
    }

    /// The body. It can be read once.
    pub(super) async fn bytes(&mut self) -> Result<Bytes, Refusal> {
        let Some(incoming) = self.body.take() else { return Ok(Bytes::new()) };
        let size = incoming.size_hint();
        let most = size.upper().and_then(|most| usize::try_from(most).ok()).map_or(self.limit, |n| n.min(self.limit));
        // A body that is too large is refused at once.
        if most > FREE && size.lower() <= self.limit as u64 {
            let place = self.api.room.clone().acquire_many_owned((most / 1024).min(ROOM) as u32);
            let busy = || Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too many large requests at once; try again");
            self.place = tokio::time::timeout(PATIENCE, place).await.map_err(|_| busy())?.ok();
        }
        body::read(incoming, self.limit).await.map_err(|e| unread(&e))
    }

    /// Writes the body to a file and rewinds it.
    pub(super) async fn file(&mut self, file: File) -> Result<File, Refusal> {
        let mut writing = BufWriter::new(file);
        let mut written = Ok(());
        if let Some(incoming) = self.body.take() {
            let take =
                |data: Bytes| written = std::mem::replace(&mut written, Ok(())).and_then(|()| writing.write_all(&data));
            body::each(incoming, self.limit, take).await.map_err(|e| unread(&e))?;
        }
        let whole = written.and_then(|()| writing.into_inner().map_err(std::io::IntoInnerError::into_error));
        let rewound = whole.and_then(|mut file| file.rewind().map(|()| file));
        rewound.map_err(|e| Refusal::failed(format!("cannot keep the body: {e}")))
    }

    /// The body as an object.
    pub(super) async fn input(&mut self) -> Result<Input, Refusal> {
        Input::new(&self.bytes().await?, false)
    }

    /// The body as an object; none at all is one without members.
    pub(super) async fn optional_input(&mut self) -> Result<Input, Refusal> {
        Input::new(&self.bytes().await?, true)
    }
}

/// Why a body was not read, as a status.
fn unread(error: &BodyError) -> Refusal {
    let status = match error {
        BodyError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
        BodyError::TooSlow => StatusCode::REQUEST_TIMEOUT,
        BodyError::Broken(_) => StatusCode::BAD_REQUEST,
    };
    Refusal::new(status, error.to_string())
}

/// An id in the form that this agent's and Nomad's databases can look up.
pub(super) fn uuid<'a>(id: &'a str, what: &str) -> Result<&'a str, Refusal> {
    let fits = id.len() == 36 && id.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit());
    if fits {
        Ok(id)
    } else {
        Err(Refusal::failed(format!("{what} lookup failed: index error: UUID must be 36 characters")))
    }
}
