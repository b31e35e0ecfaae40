//! The cursor: how far a container's output was passed on, stored where the next process finds it. Never knows where the output
//! goes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::docker::logs::{Channel, Message};
use crate::logs::place::Place;
use crate::sys::path::Root;

/// First word of a cursor's file, and the version of its format.
const MARK: &str = "agentbin-cursor 2";
/// Within a stream the engine's timestamps are ordered; the timestamps of the two streams may differ by this much.
const SKEW_NS: i64 = 10_000_000_000;
/// Sentinel for "no position in the files".
const NOWHERE: u64 = u64::MAX;

/// How far one stream was passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Position {
    /// Time of the last message that was passed on completely.
    pub(super) time_ns: i64,
    /// Its index among the messages with that time.
    pub(super) index: u32,
    /// Number of bytes after that message that were passed on.
    pub(super) ahead: u64,
    /// Number of further bytes whose write is in progress; the files show whether they arrived.
    pub(super) pending: u64,
    /// Time of the last message that these bytes belong to.
    pub(super) until_ns: i64,
    /// A position in the files.
    pub(super) place: Option<Place>,
    /// Number of bytes after that position once everything that was passed on has arrived.
    pub(super) handed: u64,
}

/// How far both streams were passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Cursor {
    pub(super) stdout: Position,
    pub(super) stderr: Position,
}

impl Cursor {
    /// The time from which the engine has to be asked for output.
    pub(super) fn since_ns(&self) -> i64 {
        let last = self.stdout.time_ns.max(self.stderr.time_ns);
        (last - SKEW_NS).max(0)
    }

    pub(super) fn position(&mut self, channel: Channel) -> &mut Position {
        match channel {
            Channel::Stdout => &mut self.stdout,
            Channel::Stderr => &mut self.stderr,
        }
    }

    /// A line of fixed length: after a shorter one, the end of the longer one would stay in the file.
    fn to_line(self, container: &str) -> String {
        let part = |p: Position| {
            let place = p.place.unwrap_or(Place { index: NOWHERE, size: 0 });
            let (index, size) = (place.index, place.size);
            let (time_ns, number, ahead, pending) = (p.time_ns, p.index, p.ahead, p.pending);
            let (until_ns, handed) = (p.until_ns, p.handed);
            let message = format!("{time_ns:020} {number:010} {ahead:020} {pending:020} {until_ns:020}");
            format!("{message} {index:020} {size:020} {handed:020}")
        };
        format!("{MARK} {container:.64} {} {}\n", part(self.stdout), part(self.stderr))
    }

    fn from_line(line: &str, container: &str) -> Option<Cursor> {
        let rest = line.strip_suffix('\n')?.strip_prefix(MARK)?.strip_prefix(' ')?.strip_prefix(container)?;
        let numbers: Option<Vec<u64>> = rest.split_ascii_whitespace().map(|word| word.parse().ok()).collect();
        let numbers = numbers.filter(|numbers| numbers.len() == 16)?;
        let part = |part: &[u64]| {
            let &[time, index, ahead, pending, until, file, size, handed] = part else { return None };
            Some(Position {
                time_ns: i64::try_from(time).ok()?,
                index: u32::try_from(index).ok()?,
                ahead,
                pending,
                until_ns: i64::try_from(until).ok()?,
                place: (file != NOWHERE).then_some(Place { index: file, size }),
                handed,
            })
        };
        Some(Cursor { stdout: part(&numbers[..8])?, stderr: part(&numbers[8..])? })
    }
}

/// The file that stores a cursor.
#[derive(Debug)]
pub(super) struct Bookmark {
    file: Option<File>,
    container: String,
}

impl Bookmark {
    /// Opens or creates the file and reads the cursor of this container from it. Without a file the cursor is kept in memory
    /// only.
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
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file: File = Root::open(dir)?.open_beneath(Path::new(name), flags, Mode::RUSR | Mode::WUSR)?.into();
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    pub(super) fn save(&self, cursor: Cursor) {
        let line = cursor.to_line(&self.container);
        // If the write fails, lines may be repeated after a crash; there is no other effect.
        if let Some(Err(error)) = self.file.as_ref().map(|file| file.write_all_at(line.as_bytes(), 0)) {
            tracing::debug!(%error, "keeping where a container's output was left");
        }
    }
}

/// How many messages of one time are compared with each other: pieces of a line of 2 MiB, by default all that an engine keeps.
const TWINS: usize = 128;

/// How a message relates to those before it in its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sight {
    /// It is later than the last one, or another piece of the same line.
    Next,
    /// It is earlier: read a second time, or written after the clock was set back.
    Earlier,
    /// One with its time and its bytes was there: read a second time, or a piece of a line that repeats itself.
    Twin,
}

/// Filters out the messages of a stream that were passed on before.
#[derive(Debug, Clone, Default)]
pub(super) struct Replay {
    time_ns: i64,
    index: u32,
    /// Number of already passed-on bytes in what follows; `None` until the position has been passed.
    ahead: Option<u64>,
    /// Digests of the messages with that time.
    digests: Vec<u64>,
}

fn digest(data: &[u8]) -> u64 {
    use std::hash::Hasher as _;
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(data);
    hasher.finish()
}

impl Replay {
    /// How a message that was not admitted yet relates to those that were. Only what has to be passed on can be a twin.
    pub(super) fn sight(&self, message: &Message) -> Sight {
        if message.time_ns < self.time_ns {
            return Sight::Earlier;
        }
        let compared = message.time_ns == self.time_ns && self.ahead.is_some() && self.digests.len() < TWINS;
        if compared && self.digests.contains(&digest(&message.data)) { Sight::Twin } else { Sight::Next }
    }

    /// What follows was read before, up to the position; everything until now was passed on.
    pub(super) fn rewind(&mut self) {
        *self = Replay::default();
    }

    /// The part of the message that still has to be passed on; `None` for a message before the position.
    pub(super) fn admit<'a>(&mut self, position: &Position, message: &'a Message) -> Option<&'a [u8]> {
        if message.time_ns == self.time_ns {
            self.index += 1;
        } else {
            (self.time_ns, self.index) = (message.time_ns, 0);
            self.digests.clear();
        }
        if self.digests.len() < TWINS {
            self.digests.push(digest(&message.data));
        }
        let ahead = match self.ahead {
            None if (message.time_ns, self.index) <= (position.time_ns, position.index) => return None,
            // The engine may have deleted the messages that these bytes belonged to.
            None if message.time_ns > position.until_ns => 0,
            None => position.ahead,
            Some(ahead) => ahead,
        };
        let length = message.data.len();
        let before = usize::try_from(ahead).unwrap_or(usize::MAX).min(length);
        self.ahead = Some(ahead - before as u64);
        Some(&message.data[before..])
    }

    /// Moves the position to the message that was admitted last.
    pub(super) fn pass(&self, position: &mut Position) {
        (position.time_ns, position.index) = (self.time_ns, self.index);
        position.ahead = self.ahead.unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(time_ns: i64, text: &str) -> Message {
        Message { channel: Channel::Stdout, time_ns, data: text.as_bytes().to_vec() }
    }

    #[test]
    fn d3_a_cursor_is_that_of_one_container_and_counts_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cursor");
        let (bookmark, cursor) = Bookmark::open(Some(&path), "aa");
        assert_eq!(cursor, Cursor::default());
        let place = Some(Place { index: 6, size: 7 });
        let stdout = Position { time_ns: 12, index: 3, ahead: 4, pending: 5, until_ns: 6, place, handed: 8 };
        let cursor = Cursor { stdout, ..Cursor::default() };
        bookmark.save(cursor);
        assert_eq!(Bookmark::open(Some(&path), "aa").1, cursor);
        assert_eq!(Bookmark::open(Some(&path), "ab").1, Cursor::default());

        let mut replay = Replay::default();
        let mut position = Position { time_ns: 5, ahead: 6, until_ns: 7, handed: 9, ..Position::default() };
        let rest = |replay: &mut Replay, position: &Position, time_ns, text: &str| {
            replay.admit(position, &message(time_ns, text)).map(|rest| String::from_utf8(rest.to_vec()).unwrap())
        };
        assert_eq!(rest(&mut replay, &position, 5, "old"), None);
        assert_eq!(rest(&mut replay, &position, 5, "abcd").as_deref(), Some(""));
        assert_eq!(rest(&mut replay, &position, 7, "efgh").as_deref(), Some("gh"));
        replay.pass(&mut position);
        assert_eq!(position, Position { time_ns: 7, until_ns: 7, handed: 9, ..Position::default() });
        // A clock that was set back has no effect while the stream is read continuously.
        assert_eq!(rest(&mut replay, &position, 4, "back").as_deref(), Some("back"));
        // The messages that these bytes belonged to are gone; none of the following bytes are skipped.
        let position = Position { time_ns: 5, ahead: 6, until_ns: 7, ..Position::default() };
        assert_eq!(rest(&mut Replay::default(), &position, 8, "later").as_deref(), Some("later"));

        // What is earlier, and what is equal; before the position only what is earlier counts.
        let mut replay = Replay::default();
        let position = Position { time_ns: 5, until_ns: 5, ..Position::default() };
        for (time_ns, text, expected) in [
            (5, "a", Sight::Next),
            (5, "b", Sight::Next),
            (5, "a", Sight::Twin),
            (6, "a", Sight::Next),
            (6, "b", Sight::Next),
            (6, "b", Sight::Twin),
            (5, "a", Sight::Earlier),
        ] {
            let message = message(time_ns, text);
            assert_eq!(replay.sight(&message), expected, "{time_ns} {text}");
            if expected != Sight::Earlier {
                replay.admit(&position, &message);
            }
        }

        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(Bookmark::open(Some(&link), "aa").1, Cursor::default());
    }
}
