//! What all reads share: namespaces, blocking queries, filters and pages.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::Call;
use super::answer::{Answer, Meta, Refusal};
use super::filter::Filter;
use crate::agent::state::{StateError, Table, View};
use crate::http::query;

/// The longest and default time that a blocking query waits.
const LONGEST_WAIT: Duration = Duration::from_mins(5);
/// Rows of a page, at most.
const LARGEST_PAGE: usize = 100_000;

/// What a read found, and at which index.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) index: u64,
    /// A text where there is none.
    pub(super) value: Result<Value, String>,
    pub(super) next_token: Option<String>,
}

impl Found {
    pub(super) fn new(index: u64, value: Value) -> Found {
        Found { index, value: Ok(value), next_token: None }
    }

    /// There is none, which Nomad answers with 404 and this text.
    pub(super) fn missing(index: u64, text: &str) -> Found {
        Found { index, value: Err(text.to_owned()), next_token: None }
    }
}

/// What a read looks for.
type Find<'a> = dyn Fn(&View) -> Result<Found, Refusal> + Send + 'a;

/// Reads; a blocking query waits until the result is newer than the client's index. Only changes of `tables` wake it up. After
/// the timeout it answers with the current result.
pub(super) fn read<'a>(
    call: &'a Call,
    tables: &'a [Table],
    find: impl Fn(&View) -> Result<Found, Refusal> + Send + 'a,
) -> impl Future<Output = Result<Answer, Refusal>> + Send {
    // One copy of the code below for all lists.
    read_with(call, tables, Box::new(find))
}

async fn read_with<'a>(call: &'a Call, tables: &'a [Table], find: Box<Find<'a>>) -> Result<Answer, Refusal> {
    let (above, wait) = waiting(call)?;
    let mut until = Instant::now() + wait;
    loop {
        let (found, seen) = {
            let view = call.api.state.read()?;
            let seen = tables.iter().map(|table| view.table_index(*table)).collect::<Result<Vec<_>, _>>()?;
            (find(&view)?, seen.into_iter().max().unwrap_or(1))
        };
        if above == 0 || found.index > above || Instant::now() >= until {
            let index = found.index;
            return match found.value {
                Ok(value) => Ok(Answer::Json(value, Meta { index, next_token: found.next_token })),
                Err(text) => Err(Refusal { index, ..Refusal::missing(text) }),
            };
        }
        tokio::select! {
            _ = call.api.state.wait(tables, seen, until) => {}
            // Answered as after the timeout; the client asks again, and the next agent answers.
            () = call.api.process.clone().ends() => until = Instant::now(),
        }
    }
}

fn waiting(call: &Call) -> Result<(u64, Duration), Refusal> {
    let index = match call.query.text("index") {
        None => 0,
        Some(text) => text.parse().map_err(|_| Refusal::bad("Invalid index"))?,
    };
    let wait = match call.query.text("wait") {
        None => LONGEST_WAIT,
        Some(text) => query::duration(text).ok_or_else(|| Refusal::bad("Invalid wait time"))?,
    };
    Ok((index, if wait.is_zero() { LONGEST_WAIT } else { wait.min(LONGEST_WAIT) }))
}

/// The paging and filter parameters of a list.
pub(super) struct Page {
    filter: Option<Filter>,
    per_page: usize,
    from: Option<String>,
    reverse: bool,
}

impl Page {
    pub(super) fn of(call: &Call) -> Result<Page, Refusal> {
        let filter = call.query.text("filter").map(Filter::new).transpose();
        let filter = filter.map_err(|e| Refusal::bad(format!("failed to create result paginator: {e}")))?;
        let per_page = match call.query.text("per_page") {
            None => 0,
            Some(text) => text
                .parse::<i32>()
                .map_err(|_| Refusal::bad("Expect a number for `per_page` query string parameter"))?,
        };
        Ok(Page {
            filter,
            per_page: usize::try_from(per_page).unwrap_or(0).min(LARGEST_PAGE),
            from: call.query.text("next_token").map(str::to_owned),
            reverse: call.query.switch("reverse").unwrap_or_default().unwrap_or(false),
        })
    }

    /// The same page of a list whose rows come the oldest first, and that begins at its other end.
    pub(super) fn newest_first(mut self) -> Page {
        self.reverse = !self.reverse;
        self
    }

    /// The same with so many rows.
    pub(super) fn of_at_most(mut self, rows: usize) -> Page {
        self.per_page = rows.min(LARGEST_PAGE);
        self
    }

    /// The rows of the page and the token of the next one. `rows` are in the order of the list; `token` gives a row's position;
    /// `whole` is the value that a filter is applied to, `shown` the one in the answer.
    pub(super) fn rows<T>(
        &self,
        rows: impl Iterator<Item = Result<T, StateError>>,
        token: impl Fn(&T) -> Token,
        whole: impl Fn(&T) -> Result<Value, StateError>,
        shown: impl Fn(&T) -> Result<Value, StateError>,
    ) -> Result<(Vec<Value>, Option<String>), Refusal> {
        let mut page = Rows { of: self, rows: Vec::new(), next: None };
        let mut take = |row: &T| page.take(&token(row), &|| whole(row), &|| shown(row));
        if self.reverse {
            let all: Vec<T> = rows.collect::<Result<_, _>>()?;
            for row in all.iter().rev() {
                if !take(row)? {
                    break;
                }
            }
        } else {
            for row in rows {
                if !take(&row?)? {
                    break;
                }
            }
        }
        Ok((page.rows, page.next))
    }
}

/// A page that is being filled. What does not depend on the type of a row is here, once for all lists.
struct Rows<'a> {
    of: &'a Page,
    rows: Vec<Value>,
    next: Option<String>,
}

impl Rows<'_> {
    /// Takes the next row, unless it is not of this page; `false` when the page is full.
    fn take(
        &mut self,
        at: &Token,
        whole: &dyn Fn() -> Result<Value, StateError>,
        shown: &dyn Fn() -> Result<Value, StateError>,
    ) -> Result<bool, Refusal> {
        let is_before = |from: &str| {
            let from = Token::read(from, at.number > 0);
            if self.of.reverse { *at > from } else { *at < from }
        };
        if self.of.from.as_deref().is_some_and(is_before) {
            return Ok(true);
        }
        if let Some(filter) = &self.of.filter {
            let fits = filter.fits(&whole()?);
            if !fits.map_err(|e| Refusal::bad(format!("failed to read result page: {e}")))? {
                return Ok(true);
            }
        }
        if self.of.per_page > 0 && self.rows.len() == self.of.per_page {
            self.next = Some(at.text());
            return Ok(false);
        }
        self.rows.push(shown()?);
        Ok(true)
    }
}

/// A row's position in its list; starts with an index, or is one, where the list is sorted by that.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Token {
    number: u64,
    name: String,
}

impl Token {
    /// Of a list that is sorted by name.
    pub(super) fn name(name: impl Into<String>) -> Token {
        Token { number: 0, name: name.into() }
    }

    /// Of a list that is sorted by index.
    pub(super) fn index(number: u64, id: &str) -> Token {
        Token { number, name: id.to_owned() }
    }

    fn read(text: &str, is_numbered: bool) -> Token {
        let (number, name) = text.split_once('.').unwrap_or((text, ""));
        match number.parse().ok().filter(|_| is_numbered) {
            Some(number) => Token::index(number, name),
            None => Token::name(text),
        }
    }

    fn text(&self) -> String {
        match (self.number, self.name.as_str()) {
            (0, name) => name.to_owned(),
            (number, "") => number.to_string(),
            (number, name) => format!("{number}.{name}"),
        }
    }
}
