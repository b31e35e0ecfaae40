//! syslog messages (RFC 5424) as datagrams (RFC 5426, and to a unix socket) or counted octets over TCP (RFC 6587).
//!
//! The protocol has no answers. Over TCP a line counts as delivered when the receiver's kernel has acknowledged it; lines in
//! flight when a connection breaks are sent again. A datagram counts as delivered when it was sent.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UdpSocket, UnixDatagram};

use super::entry::{Batch, Entry};
use super::sink::Syslog;
use super::{Labels, Stream};
use crate::names;
use crate::sys::net::unacknowledged;

/// Most bytes of text in a datagram: with its header less than the 64 KiB that a UDP packet holds.
const DATAGRAM_TEXT: usize = 32 * 1024;
/// Most bytes in flight: they are kept until they are acknowledged.
const SEND_BUFFER: usize = 128 * 1024;
/// How long bytes may be in flight.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);
/// How long they may be in flight to a receiver that has closed its side, and how often to check: there is no event for it.
const GOODBYE: Duration = Duration::from_secs(1);
const GOODBYE_LOOK: Duration = Duration::from_millis(5);
/// Facility `user`; severities `informational` and `error`.
const STDOUT: u8 = 8 + 6;
const STDERR: u8 = 8 + 3;

/// A connection to a syslog receiver.
#[derive(Debug)]
pub(super) enum Connection {
    Unix(UnixDatagram),
    Udp(UdpSocket),
    Tcp(Tcp),
}

/// The batches that a receiver over TCP may not have got, on whatever connection.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// How many were ever in it: the number of the last one.
    pub(super) given: u64,
    batches: VecDeque<Messages>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Batches up to this number have arrived.
    pub(super) fn arrived(&self) -> u64 {
        self.given - self.batches.len() as u64
    }
}

#[derive(Debug, Default)]
struct Messages {
    bytes: Vec<u8>,
    /// Where each message ends.
    ends: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Tcp {
    stream: TcpStream,
    /// The receiver has closed its side.
    goodbye: bool,
    /// How many bytes of the queue were given to the kernel.
    sent: usize,
}

impl Connection {
    pub(super) async fn open(to: &Syslog) -> io::Result<Connection> {
        Ok(match to {
            Syslog::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path)?;
                Connection::Unix(socket)
            }
            Syslog::Udp(address) => {
                let target = names::addresses(address).await?[0];
                // Not as text: parsing that would call getaddrinfo.
                let any = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
                let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
                socket.connect(target).await?;
                Connection::Udp(socket)
            }
            Syslog::Tcp(address) => {
                let stream = names::connect(address).await?;
                sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER)?;
                sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED.as_millis() as u32)?;
                Connection::Tcp(Tcp { stream, goodbye: false, sent: 0 })
            }
        })
    }

    /// Sends the entries from `done` on, and advances `done`. Over TCP, what is in the queue comes first, and after an error they
    /// are in it.
    pub(super) async fn send(
        &mut self,
        labels: &Labels,
        stream: Stream,
        batch: &Batch,
        done: &mut usize,
        queue: &mut Queue,
    ) -> io::Result<()> {
        match self {
            Connection::Unix(socket) => {
                while let Some(entry) = batch.entries.get(*done) {
                    for message in datagrams(labels, stream, batch, entry) {
                        socket.send(&message).await?;
                    }
                    *done += 1;
                }
            }
            Connection::Udp(socket) => {
                while let Some(entry) = batch.entries.get(*done) {
                    for message in datagrams(labels, stream, batch, entry) {
                        socket.send(&message).await?;
                        // On this machine a missing receiver is reported at once, for the datagram just sent.
                        if let Some(error) = socket.take_error()? {
                            return Err(error);
                        }
                    }
                    *done += 1;
                }
            }
            Connection::Tcp(tcp) => {
                tcp.trim(queue);
                let mut messages = Messages::default();
                for entry in &batch.entries[*done..] {
                    let mut message = header(labels, stream, batch, entry, None);
                    message.extend_from_slice(batch.text(entry));
                    messages.bytes.extend_from_slice(format!("{} ", message.len()).as_bytes());
                    messages.bytes.extend_from_slice(&message);
                    messages.ends.push(messages.bytes.len());
                }
                if !messages.ends.is_empty() {
                    queue.batches.push_back(messages);
                    queue.given += 1;
                }
                let written = tcp.write(queue).await;
                *done = batch.entries.len();
                written?;
            }
        }
        Ok(())
    }

    /// Removes what has arrived from the queue.
    pub(super) fn look(&mut self, queue: &mut Queue) {
        if let Connection::Tcp(tcp) = self {
            tcp.trim(queue);
        }
    }

    /// The same, also within a batch, before the connection is dropped: the next one sends the rest again.
    pub(super) async fn leave(&mut self, queue: &mut Queue) {
        let Connection::Tcp(tcp) = self else { return };
        if tcp.goodbye {
            tcp.say_goodbye().await;
        }
        let arrived = tcp.trim(queue);
        if let Some(first) = queue.batches.front_mut() {
            // A message that arrived partially does not count.
            let gone = first.ends.iter().take_while(|end| **end <= arrived).count();
            let cut = first.ends.drain(..gone).next_back().unwrap_or(0);
            first.bytes.drain(..cut);
            first.ends.iter_mut().for_each(|end| *end -= cut);
        }
    }
}

impl Tcp {
    /// A receiver that has closed its side has read what it was sent before, and reads nothing from now on.
    fn check_goodbye(&mut self) -> io::Result<()> {
        match self.stream.try_read(&mut [0; 256]) {
            Ok(0) => {
                self.goodbye = true;
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the receiver closed the connection"))
            }
            Ok(_) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Closes our side, and waits for what is in flight: kernels delay acknowledgements, but not for long.
    async fn say_goodbye(&mut self) {
        if self.stream.shutdown().await.is_err() {
            return;
        }
        let arrived = async {
            let mut look = tokio::time::interval(GOODBYE_LOOK);
            while unacknowledged(&self.stream).is_ok_and(|bytes| bytes > 0) {
                look.tick().await;
            }
        };
        // What is not acknowledged by then is sent again.
        let _ = tokio::time::timeout(GOODBYE, arrived).await;
    }

    /// Writes what was not written yet. If the future is dropped, the next one continues.
    async fn write(&mut self, queue: &Queue) -> io::Result<()> {
        self.check_goodbye()?;
        let mut end = 0;
        for Messages { bytes, .. } in &queue.batches {
            end += bytes.len();
            while self.sent < end {
                let written = self.stream.write(&bytes[bytes.len() - (end - self.sent)..]).await?;
                self.sent += written;
            }
        }
        Ok(())
    }

    /// Removes the batches that the receiver's kernel has acknowledged. Returns how many bytes of the next one it has.
    fn trim(&mut self, queue: &mut Queue) -> usize {
        let unacknowledged = unacknowledged(&self.stream).map_or(usize::MAX, |bytes| bytes as usize);
        let mut arrived = self.sent.saturating_sub(unacknowledged);
        while let Some(size) = queue.batches.front().map(|first| first.bytes.len()).filter(|size| *size <= arrived) {
            arrived -= size;
            self.sent -= size;
            queue.batches.pop_front();
        }
        arrived
    }
}

/// An entry as one message, or as several if it is too long for a datagram.
fn datagrams(labels: &Labels, stream: Stream, batch: &Batch, entry: &Entry) -> Vec<Vec<u8>> {
    let text = batch.text(entry);
    let parts = text.len().div_ceil(DATAGRAM_TEXT).max(1);
    let part = |n: usize| {
        let mut message = header(labels, stream, batch, entry, (parts > 1).then_some((n + 1, parts)));
        message
            .extend_from_slice(&text[(n * DATAGRAM_TEXT).min(text.len())..((n + 1) * DATAGRAM_TEXT).min(text.len())]);
        message
    };
    (0..parts).map(part).collect()
}

/// A message except for its text. The structured data uses the example number of RFC 5424, as we have no registered number.
fn header(labels: &Labels, stream: Stream, batch: &Batch, entry: &Entry, part: Option<(usize, usize)>) -> Vec<u8> {
    let uname = rustix::system::uname();
    let host = word(&uname.nodename().to_string_lossy(), 255);
    let priority = if stream == Stream::Stderr { STDERR } else { STDOUT };
    let time = humantime::format_rfc3339_micros(batch.time);
    let mut out = format!("<{priority}>1 {time} {host} {} - {} [nomad@32473", word(&labels.task, 48), stream.name());
    let place = (entry.at.index.to_string(), entry.at.offset.to_string());
    let params = [
        ("job", labels.job.as_str()),
        ("group", &labels.group),
        ("task", &labels.task),
        ("alloc", &labels.alloc),
        ("stream", stream.name()),
        ("file", &place.0),
        ("offset", &place.1),
    ];
    for (name, value) in params {
        let _ = write!(out, " {name}=\"{}\"", escaped(value));
    }
    if let Some((n, of)) = part {
        let _ = write!(out, " part=\"{n}/{of}\"");
    }
    if entry.partial {
        out.push_str(" partial=\"1\"");
    }
    out.push_str("] ");
    out.into_bytes()
}

/// Printable ASCII without blanks, or `-`.
fn word(text: &str, longest: usize) -> String {
    let word: String = text.chars().filter(char::is_ascii_graphic).take(longest).collect();
    if word.is_empty() { "-".to_owned() } else { word }
}

fn escaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        if matches!(c, '"' | '\\' | ']') {
            out.push('\\');
        }
        out.push(if c.is_control() { ' ' } else { c });
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::super::super::follower::Cursor;
    use super::super::entry::Lines;
    use super::*;

    #[test]
    fn a_message_is_rfc_5424() {
        let labels = Labels { job: "a\"]\\".into(), group: "g".into(), task: "web 1".into(), alloc: "id".into() };
        let at = Cursor { index: 2, inode: 1, offset: 6 };
        let batch = Lines::default().feed(b"hello\n", at, SystemTime::UNIX_EPOCH).unwrap();
        let message = datagrams(&labels, Stream::Stderr, &batch, &batch.entries[0]).remove(0);
        let text = String::from_utf8(message).unwrap();
        assert!(text.starts_with("<11>1 1970-01-01T00:00:00.000000Z "), "{text}");
        let end = r#" web1 - stderr [nomad@32473 job="a\"\]\\" group="g" task="web 1" alloc="id" stream="stderr" file="2" offset="0"] hello"#;
        assert!(text.ends_with(end), "{text}");
    }
}
