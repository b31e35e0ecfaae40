//! A container's output as the engine stores it: messages with timestamps, from any time on. Never decides which of them were
//! read before.

use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, header};

use super::ask::nothing;
use super::endpoint::Connector;
use super::error::chain;
use super::{Engine, EngineError};

/// Length of `2026-11-22T03:55:08.163822377Z` and the blank after it.
const STAMP: usize = 31;
/// The engine splits longer lines into pieces of this size, each a separate message.
const PIECE: usize = 16 * 1024;
/// Longest payload of a frame, and longest piece of a terminal's output, that is accepted: engines send at most a few times
/// [`PIECE`].
const MAX_FRAME: usize = 1024 * 1024;

/// Which stream a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// Standard output; with a terminal everything.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A line, or a piece of a long one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Which stream.
    pub channel: Channel,
    /// When the engine read it, in nanoseconds since 1970.
    pub time_ns: i64,
    /// Its bytes, with the line end where there is one.
    pub data: Vec<u8>,
}

/// The data is not in the format of the engine's stream.
#[derive(Debug, thiserror::Error)]
#[error("the engine's log stream cannot be read: {0}")]
pub struct Garbled(&'static str);

/// Splits a stream in which every piece has a header of eight bytes.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: Vec<u8>,
    read: usize,
}

impl Frames {
    /// Appends received data.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.read > 0 {
            self.buffer.drain(..self.read);
            self.read = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether there is no incomplete piece.
    #[must_use]
    pub fn is_at_an_end(&self) -> bool {
        self.read == self.buffer.len()
    }

    /// The next complete piece.
    ///
    /// # Errors
    /// [`Garbled`]: the data is not framed.
    pub fn next_frame(&mut self) -> Result<Option<(Channel, &[u8])>, Garbled> {
        let Some((head, rest)) = self.buffer[self.read..].split_at_checked(8) else { return Ok(None) };
        let channel = match head[..4] {
            [0 | 1, 0, 0, 0] => Channel::Stdout,
            [2, 0, 0, 0] => Channel::Stderr,
            _ => return Err(Garbled("there is no frame where one has to be")),
        };
        let length = u32::from_be_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if length > MAX_FRAME {
            return Err(Garbled("a frame is too long to be one"));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let from = self.read + 8;
        self.read = from + length;
        Ok(Some((channel, &self.buffer[from..from + length])))
    }
}

/// Decodes a log stream with timestamps into messages.
#[derive(Debug)]
pub enum Decoder {
    /// Frames, one per message.
    Frames(Frames),
    /// A terminal's output: messages without frames.
    Terminal(Vec<u8>),
}

impl Decoder {
    /// For a container with or without a terminal.
    #[must_use]
    pub fn new(tty: bool) -> Decoder {
        if tty { Decoder::Terminal(Vec::new()) } else { Decoder::Frames(Frames::default()) }
    }

    /// Appends received data.
    pub fn push(&mut self, bytes: &[u8]) {
        match self {
            Decoder::Frames(frames) => frames.push(bytes),
            Decoder::Terminal(buffer) => buffer.extend_from_slice(bytes),
        }
    }

    /// The next complete message.
    ///
    /// # Errors
    /// [`Garbled`].
    pub fn next_message(&mut self) -> Result<Option<Message>, Garbled> {
        match self {
            Decoder::Frames(frames) => {
                let Some((channel, piece)) = frames.next_frame()? else { return Ok(None) };
                let (time_ns, data) = stamped(piece).ok_or(Garbled("a message has no time"))?;
                Ok(Some(Message { channel, time_ns, data: data.to_vec() }))
            }
            Decoder::Terminal(buffer) => {
                if buffer.len() < STAMP {
                    return Ok(None);
                }
                let (time_ns, data) = stamped(buffer).ok_or(Garbled("a message has no time"))?;
                let length = match memchr::memchr(b'\n', data) {
                    // A piece of a long line has no line end; the next message begins right after it.
                    Some(end) if end < PIECE => end + 1,
                    _ if data.len() >= PIECE + STAMP && stamped(&data[PIECE..]).is_some() => PIECE,
                    Some(end) => end + 1,
                    None if data.len() > MAX_FRAME => return Err(Garbled("a line is too long to be one")),
                    None => return Ok(None),
                };
                let data = data[..length].to_vec();
                buffer.drain(..STAMP + length);
                Ok(Some(Message { channel: Channel::Stdout, time_ns, data }))
            }
        }
    }

    /// At the end of the stream: the last line of a terminal without its line end.
    #[must_use]
    pub fn finish(self) -> Option<Message> {
        let Decoder::Terminal(buffer) = self else { return None };
        let (time_ns, data) = stamped(&buffer)?;
        (!data.is_empty()).then(|| Message { channel: Channel::Stdout, time_ns, data: data.to_vec() })
    }
}

/// The timestamp at the beginning, and the rest.
fn stamped(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (stamp, rest) = bytes.split_at_checked(STAMP)?;
    let digits = |from: usize, to: usize| {
        stamp[from..to].iter().try_fold(0i64, |n, b| b.is_ascii_digit().then(|| n * 10 + i64::from(b - b'0')))
    };
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':'), (19, b'.'), (29, b'Z'), (30, b' ')];
    if marks.iter().any(|(at, mark)| stamp[*at] != *mark) {
        return None;
    }
    let days = days(digits(0, 4)?, digits(5, 7)?, digits(8, 10)?);
    let seconds = days * 86_400 + digits(11, 13)? * 3600 + digits(14, 16)? * 60 + digits(17, 19)?;
    Some((seconds.checked_mul(1_000_000_000)?.checked_add(digits(20, 29)?)?, rest))
}

/// Days from 1970-01-01 in the Gregorian calendar.
const fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, month) = (year.div_euclid(400), (month + 9) % 12);
    let year = year.rem_euclid(400);
    era * 146_097 + year * 365 + year / 4 - year / 100 + (153 * month + 2) / 5 + day - 1 - 719_468
}

/// A log stream as bytes.
#[derive(Debug)]
pub struct LogStream(Incoming);

impl LogStream {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// [`EngineError::Broken`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, EngineError> {
        loop {
            match self.0.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(e)) => {
                    return Err(EngineError::Broken { what: "read the container's log", problem: chain(&e) });
                }
            }
        }
    }
}

impl Engine {
    /// The container's output from `since_ns` (nanoseconds since 1970; 0 is its beginning) on, with timestamps; it is decoded
    /// with a [`Decoder`]. With `follow` it continues until the container ends. The deadline applies to the beginning of the
    /// answer.
    ///
    /// # Errors
    /// See [`EngineError`]; [`is_unreadable`] recognises the error of a log driver that cannot be read.
    pub async fn logs(&self, container: &str, since_ns: i64, follow: bool) -> Result<LogStream, EngineError> {
        const WHAT: &str = "read the container's log";
        let asking = async {
            let (seconds, nanoseconds) = (since_ns.div_euclid(1_000_000_000), since_ns.rem_euclid(1_000_000_000));
            let query = format!(
                "stdout=1&stderr=1&timestamps=1&follow={follow}&since={seconds}.{nanoseconds:09}",
                follow = u8::from(follow)
            );
            let uri = self.connector.versioned(&format!("/containers/{container}/logs?{query}")).await?;
            let request = Request::get(uri).header(header::HOST, "docker").body(nothing());
            let request = request.map_err(|e| EngineError::Endpoint(e.to_string()))?;
            Connector::checked(WHAT, self.connector.send(request).await?).await
        };
        let after = self.deadlines.ask;
        let answer = tokio::time::timeout(after, asking).await;
        Ok(LogStream(answer.unwrap_or(Err(EngineError::Timeout { what: WHAT, after }))?.into_body()))
    }
}

/// Whether the engine keeps no readable log for this container, and never will.
#[must_use]
pub fn is_unreadable(error: &EngineError) -> bool {
    let text = error.to_string().to_lowercase();
    error.is_answer()
        && ["configured logging driver does not support reading", "not implemented"].iter().any(|t| text.contains(t))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(channel: u8, text: &str) -> Vec<u8> {
        let mut bytes = vec![channel, 0, 0, 0];
        bytes.extend((text.len() as u32).to_be_bytes());
        bytes.extend(text.as_bytes());
        bytes
    }

    fn all(tty: bool, bytes: &[u8], step: usize) -> Vec<(Channel, i64, String)> {
        let mut decoder = Decoder::new(tty);
        let mut messages = Vec::new();
        for piece in bytes.chunks(step) {
            decoder.push(piece);
            while let Some(message) = decoder.next_message().unwrap() {
                messages.push(message);
            }
        }
        messages.extend(decoder.finish());
        messages.into_iter().map(|m| (m.channel, m.time_ns, String::from_utf8(m.data).unwrap())).collect()
    }

    const T: &str = "1970-01-02T00:00:01.000000002Z ";
    const NS: i64 = 86_401_000_000_002;

    #[test]
    fn d3_frames_become_messages_however_they_arrive() {
        let bytes = [frame(1, &format!("{T}one\n")), frame(2, &format!("{T}two\n")), frame(1, T)].concat();
        for step in [1, 7, 1000] {
            let texts = all(false, &bytes, step);
            let expected = [(Channel::Stdout, "one\n"), (Channel::Stderr, "two\n"), (Channel::Stdout, "")];
            let expected: Vec<_> = expected.iter().map(|(c, t)| (*c, NS, (*t).to_owned())).collect();
            assert_eq!(texts, expected);
        }
        let mut decoder = Decoder::new(false);
        decoder.push(b"plain text, no frames");
        assert!(decoder.next_message().is_err());
    }

    #[test]
    fn d3_a_terminal_has_no_frames_and_may_begin_with_any_byte() {
        let long = "x".repeat(PIECE);
        let bytes = format!("{T}\u{1}\u{0}\u{0}\u{0}one\r\n{T}\n{T}{long}{T}tail\n{T}prompt> ");
        for step in [1, 5, 100_000] {
            let texts: Vec<String> = all(true, bytes.as_bytes(), step).into_iter().map(|(_, _, text)| text).collect();
            assert_eq!(texts, ["\u{1}\u{0}\u{0}\u{0}one\r\n", "\n", &long, "tail\n", "prompt> "]);
        }
    }

    #[test]
    fn d3_times_have_nanoseconds() {
        assert_eq!(stamped(T.as_bytes()).unwrap(), (NS, &b""[..]));
        let modern = stamped(b"2026-02-28T23:59:59.999999999Z x").unwrap();
        assert_eq!(modern, (1_772_323_199_999_999_999, &b"x"[..]));
        let leap = stamped(b"2024-02-29T00:00:00.000000000Z ").unwrap().0;
        assert_eq!(leap, 1_709_164_800_000_000_000);
        assert!(stamped(b"2026-02-28 23:59:59.999999999Z x").is_none());
    }

    /// `TestIsLoggingTerminalError`.
    #[test]
    fn d3_a_log_that_cannot_be_read_is_known_by_its_words() {
        let answer = |message: &str| EngineError::Answer { what: "", status: 500, message: message.to_owned() };
        for text in [
            "configured logging driver does not support reading",
            "Error: Configured Logging Driver does not support reading",
            "not implemented",
        ] {
            assert!(is_unreadable(&answer(text)), "{text}");
        }
        assert!(!is_unreadable(&answer("not expected")) && !is_unreadable(&answer("Service unavailable")));
    }
}
