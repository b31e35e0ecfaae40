//! What a run prints: its tasks' output, and their events.
//!
//! One thread writes to stdout and stderr, so that a slow reader delays the output and nothing else: neither the signals nor the
//! clean-up. What is written in which order is decided before, in [`Shape`].

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write};
use std::time::SystemTime;

use base64::Engine as _;
use tokio::sync::{mpsc, oneshot, watch};

use crate::alloc::AllocEvent;
use crate::spec::json::json;
use crate::spec::{EventKind, LONGEST_MESSAGE, escaped, is_unprintable, shortened};

/// Number of pieces of output that may wait for the writer.
const QUEUE: usize = 64;
/// A longer line is split, as it is kept in memory until it ends.
const LONGEST_LINE: usize = 1024 * 1024;

/// The stream to print to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

/// A piece for the writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) stream: Stream,
    pub(super) bytes: Vec<u8>,
    /// Begins on a new line, whatever was printed before.
    pub(super) own_line: bool,
}

/// The format of a run's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) json: bool,
    pub(super) quiet: bool,
    /// Colour on stderr.
    pub(super) colour: bool,
}

impl Style {
    /// Colour only on a terminal, and unless the user has refused it (<https://no-color.org>).
    pub(super) fn new(json: bool, quiet: bool) -> Style {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|t| t == "dumb");
        Style { json, quiet, colour: std::io::stderr().is_terminal() && !refused && !dumb }
    }

    /// An event as it is printed; `None` if events are not wanted.
    pub(super) fn event(self, label: &str, happened: &AllocEvent) -> Option<Piece> {
        let AllocEvent { alloc, group, index, event } = happened;
        if self.json {
            let object = json!({
                "type": event.kind.as_str(),
                "time": timestamp(event.time),
                "task": event.task,
                "details": event.details,
                "message": event.message,
                "group": group,
                "alloc_id": alloc.as_str(),
                "alloc_index": index,
            });
            return Some(json_line(&object));
        }
        if self.quiet {
            return None;
        }
        let (before, after) = match (self.colour, event.kind) {
            (false, _) => ("", ""),
            (true, kind) if is_trouble(kind) => ("\x1b[31m", "\x1b[0m"),
            (true, _) => ("\x1b[2m", "\x1b[0m"),
        };
        let message = shortened(&event.message, LONGEST_MESSAGE);
        let (label, message) = (escaped(label), escaped(&message));
        let line = format!("{before}==> {label}: {}: {message}{after}\n", event.kind.as_str());
        Some(Piece { stream: Stream::Stderr, bytes: line.into_bytes(), own_line: true })
    }

    /// Reports lost output, which must not go unnoticed.
    pub(super) fn gap(self, label: &str, source: &Source, missing_files: u64) -> Piece {
        if self.json {
            return json_line(&source.object("Output Lost", &json!({ "missing_files": missing_files.to_string() })));
        }
        let what = format!("{missing_files} log files were rotated away before they were read");
        let line = format!("agentbin: {}: {}: {what}\n", escaped(label), source.stream.name());
        Piece { stream: Stream::Stderr, bytes: line.into_bytes(), own_line: true }
    }
}

fn is_trouble(kind: EventKind) -> bool {
    use EventKind::{
        DriverFailure, FailedArtifactDownload, HookFailed, NotRestarting, SetupFailure, SiblingTaskFailed,
    };
    matches!(
        kind,
        DriverFailure | FailedArtifactDownload | HookFailed | NotRestarting | SetupFailure | SiblingTaskFailed
    )
}

fn timestamp(time: SystemTime) -> String {
    humantime::format_rfc3339_nanos(time).to_string()
}

fn json_line(object: &serde_json::Value) -> Piece {
    Piece { stream: Stream::Stdout, bytes: (json_text(object) + "\n").into_bytes(), own_line: true }
}

/// JSON in which also the characters are escaped that JSON allows but a terminal interprets. They occur in strings only (except
/// for the line ends of indented JSON), so that a parser gets the same value.
pub(super) fn json_text(object: &serde_json::Value) -> String {
    escaped_json(object.to_string())
}

/// The same on several lines, for people.
pub(super) fn indented(object: &serde_json::Value) -> String {
    escaped_json(format!("{object:#}"))
}

fn escaped_json(text: String) -> String {
    if !text.contains(is_unprintable) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unprintable(c) && c != '\n' {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// The task and stream that output comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) task: String,
    pub(super) group: String,
    pub(super) alloc: String,
    pub(super) index: u32,
    pub(super) stream: Stream,
}

impl Source {
    fn object(&self, kind: &str, details: &serde_json::Value) -> serde_json::Value {
        json!({
            "type": kind,
            "time": timestamp(SystemTime::now()),
            "task": self.task,
            "details": details,
            "group": self.group,
            "alloc_id": self.alloc,
            "alloc_index": self.index,
        })
    }
}

/// Turns the output of one stream of one task into pieces.
#[derive(Debug)]
pub(super) enum Shape {
    /// Byte for byte.
    Raw(Stream),
    /// Each line after `task | `; an incomplete line waits for its end.
    Prefixed { stream: Stream, prefix: String, pending: Vec<u8> },
    /// JSON objects; an incomplete UTF-8 sequence waits for its end. Output that is not UTF-8 is encoded and marked as `base64`.
    Json { source: Source, pending: Vec<u8> },
}

impl Shape {
    /// Adds the next bytes.
    pub(super) fn feed(&mut self, bytes: Vec<u8>) -> Option<Piece> {
        match self {
            Shape::Raw(stream) => Some(Piece { stream: *stream, bytes, own_line: false }),
            Shape::Prefixed { stream, prefix, pending } => {
                pending.extend(bytes);
                let complete = match pending.iter().rposition(|b| *b == b'\n') {
                    Some(end) => end + 1,
                    None if pending.len() < LONGEST_LINE => return None,
                    None => pending.len(),
                };
                let rest = pending.split_off(complete);
                Some(prefixed(*stream, prefix, &std::mem::replace(pending, rest)))
            }
            Shape::Json { source, pending } => {
                pending.extend(bytes);
                let complete = match std::str::from_utf8(pending) {
                    Err(e) if e.error_len().is_none() => e.valid_up_to(),
                    _ => pending.len(),
                };
                let rest = pending.split_off(complete);
                let data = std::mem::replace(pending, rest);
                (!data.is_empty()).then(|| output_object(source, data))
            }
        }
    }

    /// The remaining bytes when the stream has ended.
    pub(super) fn end(&mut self) -> Option<Piece> {
        match self {
            Shape::Raw(_) => None,
            Shape::Prefixed { pending, .. } if pending.is_empty() => None,
            Shape::Prefixed { stream, prefix, pending } => Some(prefixed(*stream, prefix, &std::mem::take(pending))),
            Shape::Json { pending, .. } if pending.is_empty() => None,
            Shape::Json { source, pending } => Some(output_object(source, std::mem::take(pending))),
        }
    }
}

/// Whole lines, each with its prefix and a line end.
fn prefixed(stream: Stream, prefix: &str, lines: &[u8]) -> Piece {
    let mut bytes = Vec::with_capacity(lines.len() + prefix.len() * 2);
    for line in lines.split_inclusive(|b| *b == b'\n') {
        bytes.extend_from_slice(prefix.as_bytes());
        bytes.extend_from_slice(line);
    }
    if bytes.last() != Some(&b'\n') {
        bytes.push(b'\n');
    }
    Piece { stream, bytes, own_line: true }
}

fn output_object(source: &Source, data: Vec<u8>) -> Piece {
    let mut object = source.object("Output", &json!({}));
    object["stream"] = source.stream.name().into();
    match String::from_utf8(data) {
        Ok(text) => object["data"] = text.into(),
        Err(e) => {
            object["data"] = base64::engine::general_purpose::STANDARD.encode(e.as_bytes()).into();
            object["encoding"] = "base64".into();
        }
    }
    json_line(&object)
}

/// The writer's thread.
#[derive(Debug)]
pub(super) struct Writer {
    queue: mpsc::Sender<Piece>,
    done: oneshot::Receiver<()>,
    broken: Broken,
}

/// Why stdout cannot be written to any more; empty if the reader has just closed it, and `None` while it can be written.
pub(super) type Broken = watch::Receiver<Option<String>>;

impl Writer {
    /// Writes to `stdout` and `stderr`; `one_screen` when both are the same terminal.
    pub(super) fn new(
        stdout: impl Write + Send + 'static,
        stderr: impl Write + Send + 'static,
        one_screen: bool,
    ) -> std::io::Result<Writer> {
        let (queue, mut pieces) = mpsc::channel::<Piece>(QUEUE);
        let (ended, done) = oneshot::channel();
        let (tell, broken) = watch::channel(None);
        let mut screen = Screen { out: Box::new(stdout), err: Box::new(stderr), one_screen, open: [false; 2] };
        std::thread::Builder::new().name("output".to_owned()).spawn(move || {
            while let Some(piece) = pieces.blocking_recv() {
                // No process reads stdout any more: the rest is discarded, so that nothing waits for it.
                if let Err(error) = screen.write(&piece)
                    && piece.stream == Stream::Stdout
                {
                    let left = error.kind() == std::io::ErrorKind::BrokenPipe;
                    let why = if left { String::new() } else { error.to_string() };
                    tell.send_if_modified(|told| {
                        let first = told.is_none();
                        told.get_or_insert(why);
                        first
                    });
                }
            }
            // The receiver may have given up.
            let _ = ended.send(());
        })?;
        Ok(Writer { queue, done, broken })
    }

    pub(super) fn queue(&self) -> mpsc::Sender<Piece> {
        self.queue.clone()
    }

    /// Notifies when stdout cannot be written to any more.
    pub(super) fn broken(&self) -> Broken {
        self.broken.clone()
    }

    /// Waits until everything is written.
    pub(super) async fn finish(self) {
        drop(self.queue);
        // The thread has ended in any case.
        let _ = self.done.await;
    }
}

struct Screen {
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
    one_screen: bool,
    /// For each stream, whether its last line is incomplete.
    open: [bool; 2],
}

impl Screen {
    fn write(&mut self, piece: &Piece) -> std::io::Result<()> {
        let which = usize::from(piece.stream == Stream::Stderr);
        let open = self.open[which] || self.one_screen && self.open[1 - which];
        let target = if piece.stream == Stream::Stderr { &mut self.err } else { &mut self.out };
        if piece.own_line && open {
            target.write_all(b"\n")?;
            self.open = if self.one_screen { [false; 2] } else { self.open };
        }
        target.write_all(&piece.bytes)?;
        self.open[which] = piece.bytes.last().is_some_and(|b| *b != b'\n');
        target.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::spec::{AllocId, TaskEvent};

    fn text(piece: Option<Piece>) -> String {
        piece.map(|p| String::from_utf8(p.bytes).unwrap()).unwrap_or_default()
    }

    #[test]
    fn lines_are_prefixed_when_they_are_complete() {
        let mut shape = Shape::Prefixed { stream: Stream::Stdout, prefix: "web | ".to_owned(), pending: Vec::new() };
        assert_eq!(text(shape.feed(b"a\nb".to_vec())), "web | a\n");
        assert_eq!(shape.feed(b"c".to_vec()), None);
        assert_eq!(text(shape.feed(b"d\n\ne\n".to_vec())), "web | bcd\nweb | \nweb | e\n");
        assert_eq!(shape.end(), None);
        assert_eq!(shape.feed(b"rest".to_vec()), None);
        assert_eq!(text(shape.end()), "web | rest\n");
        assert_eq!(text(shape.feed(vec![b'x'; LONGEST_LINE])).len(), LONGEST_LINE + 7);
    }

    #[test]
    fn json_output_is_lossless() {
        let source = Source {
            task: "web".to_owned(),
            group: "g".to_owned(),
            alloc: "id".to_owned(),
            index: 0,
            stream: Stream::Stderr,
        };
        let mut shape = Shape::Json { source, pending: Vec::new() };
        let object = |piece: Option<Piece>| serde_json::from_str::<serde_json::Value>(&text(piece)).unwrap();
        let first = object(shape.feed(b"a\xc3".to_vec()));
        assert_eq!(
            (&first["data"], &first["stream"], &first["type"]),
            (&"a".into(), &"stderr".into(), &"Output".into())
        );
        assert_eq!(object(shape.feed(b"\xa4".to_vec()))["data"], "ä", "a character cut in two is put together");
        let binary = object(shape.feed(b"\xff\x00".to_vec()));
        assert_eq!((&binary["data"], &binary["encoding"]), (&"/wA=".into(), &"base64".into()));
        assert_eq!(shape.feed(b"\xe2\x82".to_vec()), None);
        assert_eq!(object(shape.end())["data"], "4oI=");
    }

    #[test]
    fn events_are_lines_for_people_or_objects_for_programs() {
        let event = AllocEvent {
            alloc: AllocId::parse("0f2c1f7e-43b8-4a9c-9e0d-5a5b7e3c1d2e").unwrap(),
            group: "g".to_owned(),
            index: 1,
            event: TaskEvent {
                kind: EventKind::Terminated,
                time: SystemTime::UNIX_EPOCH,
                task: "web".to_owned(),
                message: "Exit Code: 3\x1b[2J".to_owned(),
                details: [("exit_code".to_owned(), "3".to_owned())].into(),
            },
        };
        let style = Style { json: false, quiet: false, colour: false };
        assert_eq!(text(style.event("web", &event)), "==> web: Terminated: Exit Code: 3\\x1b[2J\n");
        assert_eq!(Style { quiet: true, ..style }.event("web", &event), None);
        let line = text(Style { json: true, ..style }.event("web", &event));
        let object: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(object["time"], "1970-01-01T00:00:00.000000000Z");
        assert_eq!(object["details"]["exit_code"], "3");
    }

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn events_begin_on_their_own_line_and_a_closed_stdout_is_told() {
        let piece = |stream, bytes: &[u8], own_line| Piece { stream, bytes: bytes.to_vec(), own_line };
        for (one_screen, expected) in [(true, "\n==> a\n"), (false, "==> a\n")] {
            let (out, err) = (Shared::default(), Shared::default());
            let writer = Writer::new(out.clone(), err.clone(), one_screen).unwrap();
            writer.queue().send(piece(Stream::Stdout, b"prompt", false)).await.unwrap();
            writer.queue().send(piece(Stream::Stderr, b"==> a\n", true)).await.unwrap();
            writer.finish().await;
            assert_eq!(out.0.lock().unwrap().as_slice(), b"prompt");
            assert_eq!(String::from_utf8_lossy(&err.0.lock().unwrap()), expected);
        }
        let (reader, closed) = std::io::pipe().unwrap();
        drop(reader);
        let writer = Writer::new(closed, Shared::default(), false).unwrap();
        let mut broken = writer.broken();
        writer.queue().send(piece(Stream::Stdout, b"x", false)).await.unwrap();
        broken.wait_for(Option::is_some).await.unwrap();
        writer.finish().await;
    }
}
