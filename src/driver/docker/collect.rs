//! Copies a container's output from the engine's log to the task's files or FIFOs: every line exactly once, across restarts of
//! this process, the engine and the reader. Never decides whether the task is alive.
//!
//! The engine keeps the output with timestamps. A cursor records what was passed on last: for each stream the time of a
//! message, its index among the messages with that time, and how many of its bytes. Before a piece is written, the cursor notes
//! its length and a position in the files. When the process is killed before it can note that the write was done, its successor
//! finds out from the size of the files. Behind a FIFO those are the files of the FIFO's reader.
//!
//! An engine that is followed may send messages a second time: Docker 20.10 does when it rotates its log, from the first message
//! of the new file on, which may be a piece in the middle of a long line. What its log has can be read exactly without following
//! it. That is done when a message looks like one that was there.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use super::cursor::{Bookmark, Cursor, Position, Replay, Sight};

use crate::docker::logs::{Channel, Decoder, LogStream, Message, is_unreadable};
use crate::docker::{Engine, EngineError};
use crate::logs::fifo::{self, FifoError, Writer};
use crate::logs::place::Place;
use crate::logs::rotator::{Change, Limits, Rotator};
use crate::spec::LogCollection;

/// First and longest pause before the engine is asked again.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// A stream that lasted this long resets the pause to the first one.
const GOOD: Duration = Duration::from_secs(5);
/// How long the reader of a FIFO, which may hold data in its memory, is waited for without progress, and how often progress is
/// checked.
const QUIET: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(10);
/// After this many bytes through a FIFO a new position in the files behind it is recorded, so that few files lie between the
/// two.
const MARK_EVERY: u64 = 1 << 20;

/// Where the output of one stream goes.
enum Sink {
    Nowhere,
    Files(Box<Rotator>, PathBuf),
    /// Opened when its reader has opened it.
    Fifo(Pipe),
}

/// A FIFO, and the files into which its reader writes.
struct Pipe {
    path: PathBuf,
    writer: Option<Writer>,
    /// Directory and base name.
    files: Option<(PathBuf, String)>,
    /// From this many passed-on bytes on a new position is recorded.
    mark_at: u64,
}

impl Pipe {
    /// Nomad calls the FIFO of `<base>.<n>` `.<base>.fifo`.
    fn new(path: &Path, writer: Writer) -> Pipe {
        let base = path.file_name().and_then(|name| name.to_str()?.strip_prefix('.')?.strip_suffix(".fifo"));
        let files = path.parent().zip(base).map(|(dir, base)| (dir.to_owned(), base.to_owned()));
        Pipe { path: path.to_owned(), writer: Some(writer), files, mark_at: MARK_EVERY }
    }

    fn unread(&self) -> u64 {
        self.writer.as_ref().and_then(|writer| writer.unread().ok()).unwrap_or(0)
    }

    /// The end of the files, and by how much they have grown since `place`.
    fn grown(&self, place: Place) -> Option<(Place, u64)> {
        let (dir, base) = self.files.as_ref()?;
        place.until_end(dir, base).ok().flatten()
    }

    /// Starts to count at the current end of the files. The bytes still in the pipe follow it there.
    fn mark(&mut self, position: &mut Position) {
        position.place = self.files.as_ref().and_then(|(dir, base)| Place::end(dir, base).ok());
        position.handed = self.unread();
        self.mark_at = MARK_EVERY;
    }

    /// The same, once everything that was passed on is in the files: the file of an old position may have been rotated away
    /// when it is needed.
    fn mark_again(&mut self, position: &mut Position) {
        if position.handed < self.mark_at {
            return;
        }
        self.mark_at = position.handed + MARK_EVERY / 16;
        match position.place.map(|place| self.grown(place)) {
            Some(Some((end, bytes))) if bytes == position.handed && self.unread() == 0 => {
                (position.place, position.handed) = (Some(end), 0);
                self.mark_at = MARK_EVERY;
            }
            Some(Some(_)) => {}
            Some(None) | None => self.mark(position),
        }
    }

    /// How many bytes of the piece that the previous process was writing have arrived, either in the pipe or in the files
    /// behind it. Waits for a reader that may still hold some of them in its memory.
    async fn arrived(&self, position: &Position) -> u64 {
        let Some(place) = position.place else { return 0 };
        let (mut seen, mut changed) = ((0, 0), Instant::now());
        loop {
            // In this order, bytes that move from the pipe to the files in between are counted once or not at all, never twice.
            let Some((_, grown)) = self.grown(place) else { return 0 };
            let unread = self.unread();
            let arrived = (grown + unread).saturating_sub(position.handed);
            if arrived >= position.pending {
                return position.pending;
            }
            if unread > 0 || seen != (grown, unread) {
                (seen, changed) = ((grown, unread), Instant::now());
            }
            if changed.elapsed() > QUIET {
                return arrived;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

async fn open_fifo(path: &Path) -> Option<Writer> {
    let mut pause = FIRST_PAUSE;
    loop {
        match fifo::open_writer(path).await {
            Ok(writer) => return Some(writer),
            Err(FifoError::NotAFifo(_)) => return None,
            Err(error) => {
                tracing::debug!(%error, "opening a FIFO of a container's output");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

impl Sink {
    async fn open_fifo(path: &Path) -> Sink {
        open_fifo(path).await.map_or(Sink::Nowhere, |writer| Sink::Fifo(Pipe::new(path, writer)))
    }

    /// Finds out how much of the piece was written that the previous process was writing when it was killed.
    async fn resume(&mut self, position: &mut Position) {
        if position.pending > 0 {
            let arrived = match self {
                Sink::Nowhere => position.pending,
                Sink::Files(rotator, dir) => {
                    let grown = position.place.map(|place| place.until_end(dir, rotator.base()).ok().flatten());
                    // Bytes in files that were rotated away or compressed by now were written.
                    grown.flatten().map_or(position.pending, |(_, bytes)| bytes.min(position.pending))
                }
                Sink::Fifo(pipe) => pipe.arrived(position).await,
            };
            position.ahead += arrived;
            position.handed += arrived;
            position.pending = 0;
        }
        if let Sink::Fifo(pipe) = self
            && position.place.is_none_or(|place| pipe.grown(place).is_none())
        {
            pipe.mark(position);
        }
    }

    /// Notes that the next `len` bytes are about to be written, so that a successor can find out whether they were.
    fn announce(&mut self, position: &mut Position, len: usize) {
        match self {
            Sink::Nowhere => {}
            Sink::Files(rotator, _) => (position.place, position.handed) = (rotator.place(), 0),
            Sink::Fifo(pipe) => pipe.mark_again(position),
        }
        position.pending = len as u64;
    }

    /// Whether the files alone show a successor that a piece was written.
    fn tells(&self) -> bool {
        matches!(self, Sink::Files(..))
    }

    /// Writes as much as can be written at once, at least one byte.
    async fn write(&mut self, data: &[u8]) -> usize {
        loop {
            match self {
                Sink::Nowhere => return data.len(),
                Sink::Files(rotator, _) => {
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
                Sink::Fifo(pipe) => {
                    let broken = match &mut pipe.writer {
                        Some(writer) => match writer.write(data).await {
                            Ok(length) => return length,
                            Err(error) => error,
                        },
                        None => io::ErrorKind::NotConnected.into(),
                    };
                    // The reader has closed the FIFO and is expected to return: the engine keeps the output meanwhile. The old
                    // descriptor keeps the bytes in the pipe until the new one is open.
                    tracing::debug!(error = %broken, "a FIFO of a container's output has no reader");
                    match open_fifo(&pipe.path).await {
                        Some(writer) => pipe.writer = Some(writer),
                        None => *self = Sink::Nowhere,
                    }
                }
            }
        }
    }
}

/// Destination of a container's output.
#[derive(Debug, Clone)]
pub(super) enum Target {
    /// Rotated files.
    Files(LogCollection),
    /// FIFOs with a reader. A path that is not a FIFO gets no output.
    Fifos(PathBuf, PathBuf),
}

impl Target {
    async fn open(&self) -> io::Result<[Sink; 2]> {
        match self {
            Target::Files(logs) => {
                let open = |base: &str| Rotator::open(&logs.dir, base, Limits::from(logs));
                let open = |base: &str| open(base).map(|rotator| Sink::Files(Box::new(rotator), logs.dir.clone()));
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
    /// The container has ended, and all of its output was passed on.
    Complete,
    /// The engine no longer knows the container.
    Gone,
    /// The engine's log driver keeps no logs that can be read.
    Unreadable,
    /// The container has ended, and the files cannot be opened.
    NoSink,
}

/// Copies a container's output until it ends.
pub(super) struct Collector {
    pub(super) engine: Engine,
    pub(super) container: String,
    pub(super) tty: bool,
    pub(super) target: Target,
    /// File of the cursor.
    pub(super) bookmark: Option<PathBuf>,
    /// Kept open until the FIFOs are open: a reader that sees its last writer close would end.
    pub(super) held: Vec<Writer>,
}

impl Collector {
    /// Runs to the end of the container's output. If the future is dropped before that, another collector can continue.
    pub(super) async fn run(mut self) -> Ended {
        let mut pause = FIRST_PAUSE;
        // The engine keeps the output meanwhile.
        let mut sinks = loop {
            match self.target.open().await {
                Ok(sinks) => break sinks,
                Err(error) if pause == FIRST_PAUSE => {
                    tracing::error!(%error, "a container's output cannot be collected; this is tried again");
                }
                Err(_) => {}
            }
            let container = self.engine.inspect(&self.container).await;
            if container.is_ok_and(|found| found.is_none_or(|found| !found.running && found.was_started)) {
                return Ended::NoSink;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
        self.held.clear();
        let (bookmark, mut cursor) = Bookmark::open(self.bookmark.as_deref(), &self.container);
        let Cursor { stdout, stderr } = &mut cursor;
        let [to_stdout, to_stderr] = &mut sinks;
        tokio::join!(to_stdout.resume(stdout), to_stderr.resume(stderr));
        let mut pause = FIRST_PAUSE;
        let (mut last_round, mut in_doubt) = (false, false);
        loop {
            let began = Instant::now();
            // When the container has ended, its log is read once more without following: then the end of the stream is the end
            // of the output.
            let follow = !last_round && !in_doubt;
            let asked = self.engine.logs(&self.container, cursor.since_ns(), follow).await;
            let read = match asked {
                Ok(stream) => self.copy(stream, follow, &mut cursor, &bookmark, &mut sinks).await,
                Err(error) => Err(error),
            };
            let was_in_doubt = std::mem::take(&mut in_doubt);
            match read {
                Ok(Read::Doubtful) => {
                    in_doubt = true;
                    continue;
                }
                Ok(Read::Whole) if was_in_doubt => {
                    // A line that repeats itself is doubted again and again.
                    tokio::time::sleep(FIRST_PAUSE).await;
                    continue;
                }
                Ok(Read::Whole) if last_round => return Ended::Complete,
                Ok(Read::Whole) => {}
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
            // A random part, so that many collectors that lost the same engine do not reconnect at the same moment.
            let spread = u32::from(crate::sys::random::uuid().as_bytes()[0]);
            tokio::time::sleep(pause + pause * spread / 255).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn copy(
        &self,
        mut stream: LogStream,
        follows: bool,
        cursor: &mut Cursor,
        bookmark: &Bookmark,
        sinks: &mut [Sink; 2],
    ) -> Result<Read, EngineError> {
        let mut decoder = Decoder::new(self.tty);
        let (mut batch, mut replays) = (Batch::default(), <[Replay; 2]>::default());
        while let Some(bytes) = stream.next().await? {
            decoder.push(&bytes);
            while let Some(message) = decoder.next_message().map_err(|e| garbled(&e))? {
                let sight = if follows { replays[side(message.channel)].sight(&message) } else { Sight::Next };
                if sight != Sight::Next {
                    hand_on(&mut batch, cursor, bookmark, sinks, &replays).await;
                }
                if sight == Sight::Twin {
                    return Ok(Read::Doubtful);
                }
                if sight == Sight::Earlier && !self.goes_back(&message).await {
                    replays[side(message.channel)].rewind();
                }
                batch.add(&message, cursor, &mut replays);
            }
            hand_on(&mut batch, cursor, bookmark, sinks, &replays).await;
        }
        if let Some(message) = decoder.finish() {
            batch.add(&message, cursor, &mut replays);
            hand_on(&mut batch, cursor, bookmark, sinks, &replays).await;
        }
        Ok(Read::Whole)
    }

    /// Whether the times in the engine's log itself go back at or after this message: the clock was set back. Where that cannot be
    /// found out the answer is yes, because then nothing is left out.
    async fn goes_back(&self, message: &Message) -> bool {
        let mut last_ns = 0;
        let reading = async {
            let mut stream = self.engine.logs(&self.container, message.time_ns, false).await?;
            let mut decoder = Decoder::new(self.tty);
            while let Some(bytes) = stream.next().await? {
                decoder.push(&bytes);
                while let Some(Message { channel, time_ns, .. }) = decoder.next_message().map_err(|e| garbled(&e))? {
                    if channel == message.channel && std::mem::replace(&mut last_ns, time_ns) > time_ns {
                        return Ok(true);
                    }
                }
            }
            Ok::<_, EngineError>(false)
        };
        reading.await.unwrap_or(true)
    }
}

/// How a reading of the log ended that had no error.
enum Read {
    /// With the end of the engine's answer.
    Whole,
    /// With a message that may have been passed on before.
    Doubtful,
}

fn garbled(error: &dyn std::error::Error) -> EngineError {
    EngineError::Broken { what: "read the container's log", problem: error.to_string() }
}

/// The index of a stream's part.
fn side(channel: Channel) -> usize {
    usize::from(channel == Channel::Stderr)
}

/// What was read and not passed on yet: for each stream its bytes, and the time of the last message among them.
#[derive(Default)]
struct Batch([(Vec<u8>, Option<i64>); 2]);

impl Batch {
    /// Adds of a message what was not passed on before.
    fn add(&mut self, message: &Message, cursor: &mut Cursor, replays: &mut [Replay; 2]) {
        let at = side(message.channel);
        if let Some(rest) = replays[at].admit(cursor.position(message.channel), message) {
            let (data, until_ns) = &mut self.0[at];
            data.extend_from_slice(rest);
            *until_ns = Some(message.time_ns);
        }
    }
}

/// Passes a batch on, in one piece per stream, updates the cursor before and after, and empties the batch.
async fn hand_on(
    batch: &mut Batch,
    cursor: &mut Cursor,
    bookmark: &Bookmark,
    sinks: &mut [Sink; 2],
    replays: &[Replay; 2],
) {
    for (channel, (sink, replay)) in [Channel::Stdout, Channel::Stderr].into_iter().zip(sinks.iter_mut().zip(replays)) {
        let (data, until_ns) = std::mem::take(&mut batch.0[side(channel)]);
        let Some(until_ns) = until_ns else { continue };
        let mut rest = data.as_slice();
        while !rest.is_empty() {
            let position = cursor.position(channel);
            position.until_ns = until_ns;
            sink.announce(position, rest.len());
            bookmark.save(*cursor);
            let written = sink.write(rest).await;
            rest = &rest[written..];
            let position = cursor.position(channel);
            position.ahead += written as u64;
            position.handed += written as u64;
            position.pending = 0;
            if rest.is_empty() {
                replay.pass(position);
            }
            if !sink.tells() {
                bookmark.save(*cursor);
            }
        }
        replay.pass(cursor.position(channel));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(channel: Channel, time_ns: i64, text: &str) -> Message {
        Message { channel, time_ns, data: text.as_bytes().to_vec() }
    }

    /// The content of the files after the messages were read, with the reader killed after each of `cuts` messages.
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
            let [stdout, stderr] = &mut sinks;
            stdout.resume(&mut cursor.stdout).await;
            stderr.resume(&mut cursor.stderr).await;
            let (mut batch, mut replays) = (Batch::default(), <[Replay; 2]>::default());
            let since = cursor.since_ns();
            let asked: Vec<Message> = messages.iter().take(cut).filter(|m| m.time_ns >= since).cloned().collect();
            for messages in asked.chunks(3) {
                for message in messages {
                    batch.add(message, &mut cursor, &mut replays);
                }
                hand_on(&mut batch, &mut cursor, &bookmark, &mut sinks, &replays).await;
            }
        }
        let text = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        (text("o.0"), text("e.0"))
    }

    /// D3: every line once across restarts, with equal timestamps and with timestamps of the two streams out of order.
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

    /// A message of an engine's log: its stream, the second of its time, its bytes.
    type Said = (Channel, u8, &'static str);

    fn frames(messages: &[Said]) -> Vec<u8> {
        let frame = |(channel, second, text): &Said| {
            let text = format!("2026-11-25T10:00:{second:02}.000000000Z {text}");
            let head = [1 + u8::try_from(side(*channel)).unwrap(), 0, 0, 0];
            [&head, &u32::try_from(text.len()).unwrap().to_be_bytes()[..], text.as_bytes()].concat()
        };
        messages.iter().flat_map(frame).collect()
    }

    /// An engine whose container has ended: its log, and what it sends to the first one who follows it. If there is no directory
    /// `logs` yet, the engine makes it when it is first asked for the container, and says that the container runs.
    fn engine(dir: &Path, log: &[Said], followed: &[Said]) -> Engine {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::UnixListener::bind(dir.join("sock")).unwrap();
        let (log, mut followed, logs) = (frames(log), Some(frames(followed)), dir.join("logs"));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 16 * 1024];
                let length = stream.read(&mut request).await.unwrap();
                let target = String::from_utf8_lossy(&request[..length]).split(' ').nth(1).unwrap().to_owned();
                let body = if target == "/_ping" {
                    b"OK".to_vec()
                } else if target.ends_with("/json") {
                    let running = std::fs::create_dir(&logs).is_ok();
                    let state = format!(r#"{{"Running":{running},"StartedAt":"2026-11-25T10:00:00Z","ExitCode":0}}"#);
                    format!(r#"{{"Id":"0a","State":{state}}}"#).into_bytes()
                } else if target.contains("follow=1") {
                    followed.take().unwrap_or_else(|| log.clone())
                } else {
                    log.clone()
                };
                let head = format!("HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: {}\r\n\r\n", body.len());
                stream.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
            }
        });
        let minute = Duration::from_mins(1);
        let deadlines = crate::docker::Deadlines { change: minute, ask: minute };
        Engine::new(&crate::docker::Endpoint::Unix(dir.join("sock")), deadlines).unwrap()
    }

    /// What is collected of them, in a directory that is there at once or later.
    async fn collected(log: &[Said], followed: &[Said], at_once: bool) -> (String, String) {
        let dir = tempfile::tempdir().unwrap();
        let logs_dir = dir.path().join("logs");
        if at_once {
            std::fs::create_dir(&logs_dir).unwrap();
        }
        let logs = LogCollection {
            dir: logs_dir.clone(),
            stdout_file: "o".to_owned(),
            stderr_file: "e".to_owned(),
            max_files: 2,
            max_file_size_bytes: 1 << 20,
            ..LogCollection::default()
        };
        let collector = Collector {
            engine: engine(dir.path(), log, followed),
            container: "0a".to_owned(),
            tty: false,
            target: Target::Files(logs),
            bookmark: Some(dir.path().join("cursor")),
            held: Vec::new(),
        };
        assert_eq!(collector.run().await, Ended::Complete);
        let text = |name: &str| std::fs::read_to_string(logs_dir.join(name)).unwrap();
        (text("o.0"), text("e.0"))
    }

    /// D3: files that cannot be opened when the container starts have its output later.
    #[tokio::test]
    async fn d3_files_are_opened_again_while_the_container_runs() {
        let log = [(Channel::Stdout, 1, "first\n"), (Channel::Stderr, 2, "second\n")];
        assert_eq!(collected(&log, &log, false).await, ("first\n".to_owned(), "second\n".to_owned()));
    }

    /// D3: an engine that rotates its log sends again what is in the new file, from any message on, to any one.
    #[tokio::test]
    async fn d3_what_an_engine_sends_again_is_written_once() {
        use Channel::{Stderr, Stdout};
        let log = [
            (Stdout, 1, "short\n"),
            (Stdout, 2, "aaaa"),
            (Stdout, 2, "bbbb"),
            (Stdout, 2, "cccc"),
            (Stdout, 2, "dddd\n"),
            (Stderr, 3, "error\n"),
            (Stderr, 3, "error\n"),
            (Stdout, 4, "xxxx"),
            (Stdout, 4, "xxxx"),
            (Stderr, 5, "yyyy"),
            (Stderr, 5, "yyyy\n"),
            (Stdout, 4, "xxxx"),
            (Stdout, 4, "x\n"),
            (Stdout, 6, "last\n"),
        ];
        let text = |channel| log.iter().filter(|said| said.0 == channel).map(|said| said.2).collect::<String>();
        let expected = (text(Stdout), text(Stderr));
        for from in 0..log.len() {
            for to in from..log.len() {
                let followed = [&log[..=to], &log[from..]].concat();
                assert_eq!(collected(&log, &followed, true).await, expected, "{from} to {to} twice");
            }
        }
        // And again.
        let followed = [&log[..9], &log[2..9], &log[2..9], &log[2..]].concat();
        assert_eq!(collected(&log, &followed, true).await, expected);
        // The clock was set back: what comes then is new.
        let log = [(Stdout, 5, "before\n"), (Stdout, 3, "after\n"), (Stdout, 4, "more\n")];
        assert!(collected(&log, &log, true).await.0.starts_with("before\nafter\nmore\n"));
    }

    /// The same for a piece that was written but not recorded as written, and for one that was written in part.
    #[tokio::test]
    async fn d3_a_piece_that_was_in_hand_is_written_once() {
        let dir = tempfile::tempdir().unwrap();
        let (base, text) = ("web.stdout", "0123456789\n");
        let file = dir.path().join("web.stdout.0");
        let fifo = dir.path().join(".web.stdout.fifo");
        let mut reader = fifo::create_and_read(&fifo).unwrap();
        let logs = LogCollection {
            dir: dir.path().to_owned(),
            stdout_file: base.to_owned(),
            stderr_file: "web.stderr".to_owned(),
            max_files: 2,
            max_file_size_bytes: 1 << 20,
            ..LogCollection::default()
        };
        for (written, in_pipe) in [(0, 0), (4, 0), (11, 0), (3, 8), (0, 11)] {
            for fifos in [false, true] {
                if in_pipe > 0 && !fifos {
                    continue;
                }
                std::fs::write(&file, "before\n").unwrap();
                let target = if fifos {
                    Target::Fifos(fifo.clone(), PathBuf::from("/dev/null"))
                } else {
                    Target::Files(logs.clone())
                };
                let [mut sink, _] = target.open().await.unwrap();
                let mut position = Position::default();
                sink.resume(&mut position).await;
                sink.announce(&mut position, text.len());
                // The process is killed here.
                std::fs::write(&file, format!("before\n{}", &text[..written])).unwrap();
                if let Sink::Fifo(pipe) = &mut sink {
                    pipe.writer.as_mut().unwrap().write_all(&text.as_bytes()[..in_pipe]).await.unwrap();
                }
                let [mut sink, _] = target.open().await.unwrap();
                sink.resume(&mut position).await;
                let expected = (written + in_pipe) as u64;
                assert_eq!((position.ahead, position.pending), (expected, 0), "{written} {in_pipe} {fifos}");
                if in_pipe > 0 {
                    assert_eq!(reader.read(&mut [0; 64]).await.unwrap(), in_pipe);
                }
            }
        }
    }
}
