//! A container's output, from the engine's log into a task's files or FIFOs: every line once, whoever restarts in between.
//! Never decides whether the task lives.
//!
//! The engine keeps the output, with times. What was handed on last is a cursor: for each stream the time of a message, its
//! number among those of that time, and how many of its bytes. It is written down after every write, so that another
//! process goes on with the next byte.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tokio::time::Instant;

use crate::docker::logs::{Channel, Decoder, LogStream, Message, is_unreadable};
use crate::docker::{Engine, EngineError};
use crate::logs::fifo::{self, FifoError, Writer};
use crate::logs::rotator::{Change, Limits, Rotator};
use crate::spec::LogCollection;
use crate::sys::path::Root;

/// First word of a cursor's file, and its version.
const MARK: &str = "agentbin-cursor 1";
/// The engine's own times are in order within a stream; between the two they may be this far apart.
const SKEW_NS: i64 = 10_000_000_000;
/// Bounds of the pause before the engine is asked again.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// A stream that lived this long was a good one: the next pause is the first again.
const GOOD: Duration = Duration::from_secs(5);

/// How far a stream was handed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Position {
    /// Time of the message.
    time_ns: i64,
    /// Its number among the messages of that time.
    index: u32,
    /// How many bytes of it.
    bytes: u64,
}

/// How far both streams were handed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Cursor {
    stdout: Position,
    stderr: Position,
}

impl Cursor {
    /// From where on the engine is to be asked.
    fn since_ns(&self) -> i64 {
        let last = self.stdout.time_ns.max(self.stderr.time_ns);
        (last - SKEW_NS).max(0)
    }

    fn position(&mut self, channel: Channel) -> &mut Position {
        match channel {
            Channel::Stdout => &mut self.stdout,
            Channel::Stderr => &mut self.stderr,
        }
    }

    /// A line of one length: a shorter one would leave a piece of the longer.
    fn to_line(self, container: &str) -> String {
        let part = |p: Position| format!("{:020} {:010} {:020}", p.time_ns, p.index, p.bytes);
        format!("{MARK} {container:.64} {} {}\n", part(self.stdout), part(self.stderr))
    }

    fn from_line(line: &str, container: &str) -> Option<Cursor> {
        let rest = line.strip_suffix('\n')?.strip_prefix(MARK)?.strip_prefix(' ')?.strip_prefix(container)?;
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        let [a, b, c, d, e, f] = words[..] else { return None };
        let part = |time: &str, index: &str, bytes: &str| {
            Some(Position { time_ns: time.parse().ok()?, index: index.parse().ok()?, bytes: bytes.parse().ok()? })
        };
        Some(Cursor { stdout: part(a, b, c)?, stderr: part(d, e, f)? })
    }
}

/// Where a cursor is kept.
#[derive(Debug)]
pub(super) struct Bookmark {
    file: Option<File>,
    container: String,
}

impl Bookmark {
    /// Opens the file, or makes it, and reads what it says of this container. Without a file the cursor is only remembered.
    pub(super) fn open(path: Option<&Path>, container: &str) -> (Bookmark, Cursor) {
        let container = container.to_owned();
        let Some(path) = path else { return (Bookmark { file: None, container }, Cursor::default()) };
        match Bookmark::open_file(path) {
            Ok(file) => {
                let mut line = vec![0; Cursor::default().to_line(&container).len()];
                let read = file.read_at(&mut line, 0).unwrap_or(0);
                let text = std::str::from_utf8(&line[..read]).unwrap_or_default();
                let cursor = Cursor::from_line(text, &container).unwrap_or_default();
                (Bookmark { file: Some(file), container }, cursor)
            }
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cannot keep where a container's output was left");
                (Bookmark { file: None, container }, Cursor::default())
            }
        }
    }

    fn open_file(path: &Path) -> io::Result<File> {
        let (dir, name) = path.parent().zip(path.file_name()).ok_or(io::ErrorKind::InvalidInput)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW;
        let file: File = Root::open(dir)?.open_beneath(Path::new(name), flags, Mode::RUSR | Mode::WUSR)?.into();
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    fn save(&self, cursor: Cursor) {
        let line = cursor.to_line(&self.container);
        // One that cannot be written costs lines that come twice after a crash, and nothing now.
        if let Some(Err(error)) = self.file.as_ref().map(|file| file.write_all_at(line.as_bytes(), 0)) {
            tracing::debug!(%error, "keeping where a container's output was left");
        }
    }
}

/// Where the output of one stream goes.
enum Sink {
    Nowhere,
    Files(Box<Rotator>),
    /// Opened when its reader is there.
    Fifo(PathBuf, Option<Writer>),
}

impl Sink {
    async fn open_fifo(path: &Path) -> Sink {
        let mut pause = FIRST_PAUSE;
        loop {
            match fifo::open_writer(path).await {
                Ok(writer) => return Sink::Fifo(path.to_owned(), Some(writer)),
                Err(FifoError::NotAFifo(_)) => return Sink::Nowhere,
                Err(error) => {
                    tracing::debug!(%error, "opening a FIFO of a container's output");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Hands on what can be handed on at once, at least a byte.
    async fn write(&mut self, data: &[u8]) -> usize {
        loop {
            match self {
                Sink::Nowhere => return data.len(),
                Sink::Files(rotator) => {
                    match rotator.write(data) {
                        Some(Change::Failed(error)) => {
                            tracing::error!(%error, "a container's output cannot be written and is dropped");
                        }
                        Some(Change::Healed { dropped_bytes, dropped_lines }) => {
                            tracing::info!(dropped_bytes, dropped_lines, "a container's output is written again");
                        }
                        None => {}
                    }
                    return data.len();
                }
                Sink::Fifo(path, writer) => {
                    let broken = match writer {
                        Some(writer) => match writer.write(data).await {
                            Ok(length) => return length,
                            Err(error) => error,
                        },
                        None => io::ErrorKind::NotConnected.into(),
                    };
                    // Its reader has gone, and will come again: the engine keeps what it misses.
                    tracing::debug!(error = %broken, "a FIFO of a container's output has no reader");
                    let path = path.clone();
                    *self = Sink::open_fifo(&path).await;
                }
            }
        }
    }
}

/// Where a container's output is to go.
#[derive(Debug, Clone)]
pub(super) enum Target {
    /// Rotated files.
    Files(LogCollection),
    /// FIFOs that somebody reads; what is no FIFO gets nothing.
    Fifos(PathBuf, PathBuf),
}

impl Target {
    async fn open(&self) -> io::Result<[Sink; 2]> {
        match self {
            Target::Files(logs) => {
                let open = |base: &str| Rotator::open(&logs.dir, base, Limits::from(logs));
                let open = |base: &str| open(base).map(|rotator| Sink::Files(Box::new(rotator)));
                Ok([open(&logs.stdout_file)?, open(&logs.stderr_file)?])
            }
            Target::Fifos(stdout, stderr) => {
                let (stdout, stderr) = tokio::join!(Sink::open_fifo(stdout), Sink::open_fifo(stderr));
                Ok([stdout, stderr])
            }
        }
    }
}

/// Why collecting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The container has ended, and all that it wrote was handed on.
    Complete,
    /// The engine does not know the container any more.
    Gone,
    /// The engine's log driver keeps nothing that could be read.
    Unreadable,
    /// The files cannot be opened.
    NoSink,
}

/// Which messages of a stream were handed on before.
#[derive(Debug, Clone, Copy, Default)]
struct Replay {
    time_ns: i64,
    index: u32,
    /// All that come now are new.
    caught_up: bool,
}

impl Replay {
    /// How many of the message's first bytes were handed on; the cursor's message is this one from now on, unless it was
    /// handed on wholly.
    fn admit(&mut self, position: &mut Position, message: &Message) -> usize {
        self.index = if message.time_ns == self.time_ns { self.index + 1 } else { 0 };
        self.time_ns = message.time_ns;
        let here = (message.time_ns, self.index);
        if !self.caught_up {
            if here < (position.time_ns, position.index) {
                return message.data.len();
            }
            self.caught_up = true;
            if here == (position.time_ns, position.index) {
                return usize::try_from(position.bytes).unwrap_or(usize::MAX).min(message.data.len());
            }
        }
        *position = Position { time_ns: here.0, index: here.1, bytes: 0 };
        0
    }
}

/// Copies a container's output until it ends.
pub(super) struct Collector {
    pub(super) engine: Engine,
    pub(super) container: String,
    pub(super) tty: bool,
    pub(super) target: Target,
    /// Where the cursor is kept.
    pub(super) bookmark: Option<PathBuf>,
    /// Held until the FIFOs are open: a reader that sees its last writer go would end.
    pub(super) held: Vec<Writer>,
}

impl Collector {
    /// Runs to the end of the container's output. What is dropped in between can be taken up by another one.
    pub(super) async fn run(mut self) -> Ended {
        let mut sinks = match self.target.open().await {
            Ok(sinks) => sinks,
            Err(error) => {
                tracing::error!(%error, "a container's output cannot be collected");
                return Ended::NoSink;
            }
        };
        self.held.clear();
        let (bookmark, mut cursor) = Bookmark::open(self.bookmark.as_deref(), &self.container);
        let mut pause = FIRST_PAUSE;
        let mut last_round = false;
        loop {
            let began = Instant::now();
            // A container that has ended is read once more without following: then the end is the end.
            let asked = self.engine.logs(&self.container, cursor.since_ns(), !last_round).await;
            let read = match asked {
                Ok(stream) => self.copy(stream, &mut cursor, &bookmark, &mut sinks).await,
                Err(error) => Err(error),
            };
            match read {
                Ok(()) if last_round => return Ended::Complete,
                Ok(()) => {}
                Err(error) if is_unreadable(&error) => {
                    tracing::warn!(
                        container = self.container,
                        "the container's log driver does not let its output be read"
                    );
                    return Ended::Unreadable;
                }
                Err(error) if error.is_not_found() => return Ended::Gone,
                Err(error) => tracing::debug!(%error, container = self.container, "following a container's output"),
            }
            match self.engine.inspect(&self.container).await {
                Ok(None) => return Ended::Gone,
                Ok(Some(container)) if !container.running && container.was_started => {
                    if !last_round {
                        last_round = true;
                        continue;
                    }
                }
                Ok(Some(_)) => last_round = false,
                Err(error) => tracing::debug!(%error, container = self.container, "looking for a container"),
            }
            if began.elapsed() > GOOD {
                pause = FIRST_PAUSE;
            }
            // Many collectors that lost one engine do not come back in one moment.
            let spread = u32::from(crate::sys::random::uuid().as_bytes()[0]);
            tokio::time::sleep(pause + pause * spread / 255).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn copy(
        &self,
        mut stream: LogStream,
        cursor: &mut Cursor,
        bookmark: &Bookmark,
        sinks: &mut [Sink; 2],
    ) -> Result<(), EngineError> {
        let mut decoder = Decoder::new(self.tty);
        let mut replays = [Replay::default(); 2];
        let garbled = |e: &dyn std::error::Error| EngineError::Broken {
            what: "read the container's log",
            problem: e.to_string(),
        };
        loop {
            let Some(bytes) = stream.next().await? else { break };
            decoder.push(&bytes);
            let mut batch: Vec<Message> = Vec::new();
            while let Some(message) = decoder.next_message().map_err(|e| garbled(&e))? {
                batch.push(message);
            }
            for message in &batch {
                hand_on(message, cursor, bookmark, sinks, &mut replays).await;
            }
        }
        if let Some(message) = decoder.finish() {
            hand_on(&message, cursor, bookmark, sinks, &mut replays).await;
        }
        Ok(())
    }
}

/// Everything of the message that was not handed on before, and the cursor after each piece.
async fn hand_on(
    message: &Message,
    cursor: &mut Cursor,
    bookmark: &Bookmark,
    sinks: &mut [Sink; 2],
    replays: &mut [Replay; 2],
) {
    let at = usize::from(message.channel == Channel::Stderr);
    let mut done = replays[at].admit(cursor.position(message.channel), message);
    while done < message.data.len() {
        done += sinks[at].write(&message.data[done..]).await;
        cursor.position(message.channel).bytes = done as u64;
        bookmark.save(*cursor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(channel: Channel, time_ns: i64, text: &str) -> Message {
        Message { channel, time_ns, data: text.as_bytes().to_vec() }
    }

    /// What the files hold after the messages were read, with the reader killed after each of `cuts` messages.
    async fn read(dir: &Path, messages: &[Message], cuts: &[usize]) -> (String, String) {
        let logs = LogCollection {
            dir: dir.to_owned(),
            stdout_file: "o".to_owned(),
            stderr_file: "e".to_owned(),
            max_files: 2,
            max_file_size_bytes: 1 << 20,
            ..LogCollection::default()
        };
        let bookmark = dir.join("cursor");
        for cut in cuts.iter().copied().chain([messages.len()]) {
            let mut sinks = Target::Files(logs.clone()).open().await.unwrap();
            let (bookmark, mut cursor) = Bookmark::open(Some(&bookmark), "0a");
            let mut replays = [Replay::default(); 2];
            let since = cursor.since_ns();
            for message in messages.iter().take(cut).filter(|m| m.time_ns >= since) {
                hand_on(message, &mut cursor, &bookmark, &mut sinks, &mut replays).await;
            }
        }
        let text = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        (text("o.0"), text("e.0"))
    }

    /// D3: every line once, whatever the restarts, with equal times and with times of the two streams out of order.
    #[tokio::test]
    async fn d3_a_reader_that_begins_anew_goes_on_with_the_next_byte() {
        use Channel::{Stderr, Stdout};
        let second = 1_000_000_000;
        let messages = [
            message(Stdout, 1_000 * second, "a\n"),
            message(Stdout, 1_000 * second, "b\n"),
            message(Stderr, 999 * second, "x\n"),
            message(Stdout, 1_000 * second, "b\n"),
            message(Stderr, 1_000 * second, "y\n"),
            message(Stdout, 1_001 * second, "c\n"),
            message(Stderr, 1_100 * second, "z\n"),
            message(Stdout, 1_100 * second, "d\n"),
        ];
        for first in 0..=messages.len() {
            for second in 0..=messages.len() {
                let dir = tempfile::tempdir().unwrap();
                let texts = read(dir.path(), &messages, &[first, second, second]).await;
                assert_eq!(texts, ("a\nb\nb\nc\nd\n".to_owned(), "x\ny\nz\n".to_owned()), "{first} {second}");
            }
        }
    }

    #[tokio::test]
    async fn d3_a_cursor_is_that_of_one_container_and_counts_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cursor");
        let (bookmark, cursor) = Bookmark::open(Some(&path), "aa");
        assert_eq!(cursor, Cursor::default());
        let mut cursor = Cursor::default();
        cursor.stdout = Position { time_ns: 12, index: 3, bytes: 4 };
        bookmark.save(cursor);
        assert_eq!(Bookmark::open(Some(&path), "aa").1, cursor);
        assert_eq!(Bookmark::open(Some(&path), "ab").1, Cursor::default());

        let mut replay = Replay::default();
        let mut position = Position { time_ns: 5, index: 0, bytes: 2 };
        assert_eq!(replay.admit(&mut position, &message(Channel::Stdout, 5, "abcd")), 2);
        assert_eq!(replay.admit(&mut position, &message(Channel::Stdout, 5, "next")), 0);
        assert_eq!(position, Position { time_ns: 5, index: 1, bytes: 0 });
        // A clock that was set back costs nothing while somebody reads along.
        assert_eq!(replay.admit(&mut position, &message(Channel::Stdout, 4, "back")), 0);

        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(Bookmark::open(Some(&link), "aa").1, Cursor::default());
    }
}
