//! Streams of files as the frames that Nomad's HTTP API sends: `/v1/client/fs/logs` and `/v1/client/fs/stream`.
//!
//! A [`Framer`] takes pieces from a [`Source`] and returns frames; [`Frame::to_json`] is what is sent, one object after the
//! other without separators, and [`Decoder`] parses that again. A frame owns its bytes: later changes of the framer do not
//! affect a frame that was returned.
//!
//! ```text
//!   piece ──▶ same file, no event, goes on where the last one ended? ──no──▶ what is collected is a frame
//!                 │ yes                                                       (an event without data is one at once)
//!                 ▼
//!             collect ──▶ 64 KiB, or 200 ms after the first byte, or the source's end ──▶ frame
//!   every second, whatever else there is: an empty frame
//! ```

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::follower::{Cursor, Follower, Output};
use crate::spec::json;

/// Bytes of data in a frame, at most.
pub const FRAME_SIZE: usize = 64 * 1024;
/// How long data may wait for further data.
pub const BATCH_WINDOW: Duration = Duration::from_millis(200);
/// How often an empty frame is sent, which distinguishes a quiet stream from a dead one.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// Longest JSON object that a [`Decoder`] accepts as a frame.
const LONGEST_OBJECT: usize = 4 * FRAME_SIZE;

/// What happened to the file of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileEvent {
    /// It was deleted; on a stream of rotated files, further ones may have been deleted unread.
    #[serde(rename = "file deleted")]
    Deleted,
    /// It was truncated; the frame's data begins at its start.
    #[serde(rename = "file truncated")]
    Truncated,
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Frame {
    /// Bytes of the file.
    #[serde(rename = "Data", with = "data", skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<u8>,
    /// The file, relative to the allocation's directory.
    #[serde(rename = "File", skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// What happened to it.
    #[serde(rename = "FileEvent", skip_serializing_if = "Option::is_none")]
    pub event: Option<FileEvent>,
    /// The position in the file right after `data`. Nomad's own frames have that of the first of several merged reads, so it is
    /// only
    /// a hint there; here it is exact.
    #[serde(rename = "Offset", skip_serializing_if = "is_zero")]
    pub offset: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

mod data {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(data: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(data))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        // Go writes missing data as null if the member is not omitted.
        let text = Option::<String>::deserialize(from)?.unwrap_or_default();
        STANDARD.decode(text).map_err(serde::de::Error::custom)
    }
}

impl Frame {
    /// Whether it is a heartbeat: the object without members.
    #[must_use]
    pub fn is_heartbeat(&self) -> bool {
        *self == Frame::default()
    }

    /// The frame as it is sent.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        json::to_vec(self).expect("texts and numbers can be written")
    }
}

/// Why bytes cannot be decoded as frames.
#[derive(Debug, thiserror::Error)]
#[error("not a stream of frames: {0}")]
pub struct DecodeError(String);

/// Decodes frames from a stream of bytes that may be cut anywhere.
#[derive(Debug, Default)]
pub struct Decoder {
    pending: Vec<u8>,
    /// How many of these bytes were scanned.
    seen: usize,
    place: Place,
}

/// The position of a byte within an object. A JSON parser that is given an incomplete text cannot always tell a cut from an
/// error.
#[derive(Debug, Default)]
struct Place {
    /// The number of open objects and lists.
    depth: usize,
    in_text: bool,
    escaped: bool,
}

impl Place {
    /// Advances by one byte; returns whether an object ends with it.
    ///
    /// # Errors
    /// Between two objects only white space is allowed: serde would accept a list of a frame's members as a frame, too.
    fn advance(&mut self, byte: u8) -> Result<bool, DecodeError> {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_text => self.escaped = true,
            b'"' if self.depth > 0 => self.in_text = !self.in_text,
            _ if self.in_text => {}
            b'{' => self.depth += 1,
            b' ' | b'\t' | b'\n' | b'\r' => {}
            _ if self.depth == 0 => return Err(DecodeError(format!("a frame begins with {:?}", char::from(byte)))),
            b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth -= 1;
                return Ok(self.depth == 0);
            }
            _ => {}
        }
        Ok(false)
    }
}

impl Decoder {
    /// Adds bytes and returns the frames that are complete now, including heartbeats.
    ///
    /// # Errors
    /// [`DecodeError`]; the stream cannot be used any further.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Frame>, DecodeError> {
        self.pending.extend_from_slice(bytes);
        let (mut frames, mut read) = (Vec::new(), 0);
        for at in self.seen..self.pending.len() {
            if self.place.advance(self.pending[at])? {
                let frame = json::from_slice(&self.pending[read..=at]);
                frames.push(frame.map_err(|e| DecodeError(e.to_string()))?);
                read = at + 1;
            }
        }
        drop(self.pending.drain(..read));
        self.seen = self.pending.len();
        if self.seen > LONGEST_OBJECT {
            return Err(DecodeError(format!("an object longer than {LONGEST_OBJECT} bytes")));
        }
        Ok(frames)
    }

    /// Whether the stream ended between two frames.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.pending.iter().all(u8::is_ascii_whitespace)
    }
}

/// A part of a file, or an event of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Piece {
    /// Which file.
    pub file: String,
    /// The position of `data`; without data, how far the file was read.
    pub offset: u64,
    /// Its bytes; may be empty.
    pub data: Vec<u8>,
    /// What happened to the file right before them.
    pub event: Option<FileEvent>,
}

/// A source of pieces, in order.
pub trait Source: Send {
    /// The next piece; `None` at the end. Must be cancel safe.
    ///
    /// # Errors
    /// Ends the stream.
    fn next(&mut self) -> impl Future<Output = io::Result<Option<Piece>>> + Send;
}

/// Turns pieces into frames on demand: if no frame is requested, the source is not read.
#[derive(Debug)]
pub struct Framer<S> {
    source: S,
    /// The collected data; its offset is that of the end.
    collected: Frame,
    /// When it has to be sent.
    due: Option<Instant>,
    /// A piece that did not fit yet.
    next: Option<Piece>,
    end: Option<io::Result<()>>,
    heartbeat: tokio::time::Interval,
}

impl<S: Source> Framer<S> {
    /// Begins a stream. The first heartbeat comes after [`HEARTBEAT`].
    ///
    /// # Panics
    /// Outside a tokio runtime with time enabled.
    pub fn new(source: S) -> Framer<S> {
        let mut heartbeat = tokio::time::interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
        heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        Framer { source, collected: Frame::default(), due: None, next: None, end: None, heartbeat }
    }

    /// The next frame, waiting for it; `None` at the end. Data that came before an error is returned before it. Dropping the future
    /// loses nothing.
    ///
    /// # Errors
    /// What the source says, once.
    pub async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if self.collected.data.len() >= FRAME_SIZE {
                return Ok(Some(self.full()));
            }
            if let Some(piece) = self.next.take() {
                if self.due.is_some() && !self.goes_on(&piece) {
                    self.next = Some(piece);
                    return Ok(Some(self.flush()));
                }
                self.collect(piece);
                if self.collected.event.is_some() && self.collected.data.is_empty() {
                    return Ok(Some(self.flush()));
                }
                continue;
            }
            if self.end.is_some() {
                if self.due.is_some() {
                    return Ok(Some(self.flush()));
                }
                return match &mut self.end {
                    Some(end) => std::mem::replace(end, Ok(())).map(|()| None),
                    None => Ok(None),
                };
            }
            let due = self.due;
            let window = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = self.heartbeat.tick() => return Ok(Some(Frame::default())),
                () = window => return Ok(Some(self.flush())),
                piece = self.source.next() => match piece {
                    Ok(Some(piece)) => self.next = Some(piece).filter(|p| !p.data.is_empty() || p.event.is_some()),
                    Ok(None) => self.end = Some(Ok(())),
                    Err(e) => self.end = Some(Err(e)),
                },
            }
        }
    }

    fn goes_on(&self, piece: &Piece) -> bool {
        let collected = &self.collected;
        piece.event.is_none()
            && !piece.data.is_empty()
            && collected.file == piece.file
            && collected.offset == piece.offset
    }

    fn collect(&mut self, piece: Piece) {
        if self.due.is_none() {
            self.due = Some(Instant::now() + BATCH_WINDOW);
            self.collected = Frame { file: piece.file, event: piece.event, offset: piece.offset, data: Vec::new() };
        }
        self.collected.offset += piece.data.len() as u64;
        if self.collected.data.is_empty() {
            self.collected.data = piece.data;
        } else {
            self.collected.data.extend_from_slice(&piece.data);
        }
    }

    /// Returns everything that is collected.
    fn flush(&mut self) -> Frame {
        self.due = None;
        std::mem::take(&mut self.collected)
    }

    /// Returns the first [`FRAME_SIZE`] bytes of it; the rest stays.
    fn full(&mut self) -> Frame {
        let rest = self.collected.data.split_off(FRAME_SIZE);
        let (file, end) = (self.collected.file.clone(), self.collected.offset);
        let mut frame = self.flush();
        if !rest.is_empty() {
            frame.offset -= rest.len() as u64;
            self.due = Some(Instant::now() + BATCH_WINDOW);
            self.collected = Frame { data: rest, file, event: None, offset: end };
        }
        frame
    }
}

/// One task's rotated files as a source: `<folder>/<base>.<n>` with data, the event of a truncated file with its first new bytes,
/// and that of a deleted file if files were missed.
#[derive(Debug)]
pub struct Followed {
    follower: Follower,
    /// `<folder>/<base>`.
    name: String,
    last: Option<Cursor>,
}

impl Followed {
    /// `folder` is the name that is displayed, such as `alloc/logs`; `base` is the follower's.
    #[must_use]
    pub fn new(follower: Follower, folder: &str, base: &str) -> Followed {
        Followed { last: follower.cursor(), follower, name: format!("{folder}/{base}") }
    }
}

impl Source for Followed {
    async fn next(&mut self) -> io::Result<Option<Piece>> {
        let Some(output) = self.follower.next().await? else { return Ok(None) };
        let last = std::mem::replace(&mut self.last, self.follower.cursor());
        let at = self.last.unwrap_or(Cursor { index: 0, inode: 0, offset: 0 });
        Ok(Some(match output {
            Output::Data(data) => {
                let offset = at.offset.saturating_sub(data.len() as u64);
                let cut = last.is_some_and(|l| (l.index, l.inode) == (at.index, at.inode) && offset < l.offset);
                let event = cut.then_some(FileEvent::Truncated);
                Piece { file: format!("{}.{}", self.name, at.index), offset, data, event }
            }
            Output::Gap { .. } => {
                let gone = last.unwrap_or(at);
                let file = format!("{}.{}", self.name, gone.index);
                Piece { file, offset: gone.offset, data: Vec::new(), event: Some(FileEvent::Deleted) }
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;
    use tokio::sync::mpsc;

    use super::super::follower::Start;
    use super::super::rotator::{Limits, Rotator};
    use super::*;

    /// Pieces, each after a pause.
    struct Script {
        pieces: VecDeque<(Duration, io::Result<Piece>)>,
        at: Instant,
    }

    impl Script {
        fn new(pieces: Vec<(u64, io::Result<Piece>)>) -> Script {
            let pieces = pieces.into_iter().map(|(ms, piece)| (Duration::from_millis(ms), piece)).collect();
            Script { pieces, at: Instant::now() }
        }
    }

    impl Source for Script {
        async fn next(&mut self) -> io::Result<Option<Piece>> {
            let Some((pause, _)) = self.pieces.front() else { return Ok(None) };
            tokio::time::sleep_until(self.at + *pause).await;
            self.at = Instant::now();
            self.pieces.pop_front().map(|(_, piece)| piece).transpose()
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "as a source gives it")]
    fn piece(file: &str, offset: u64, data: &str) -> io::Result<Piece> {
        Ok(Piece { file: file.to_owned(), offset, data: data.into(), event: None })
    }

    fn frame(file: &str, offset: u64, data: &str, event: Option<FileEvent>) -> Frame {
        Frame { data: data.into(), file: file.to_owned(), event, offset }
    }

    async fn all(pieces: Vec<(u64, io::Result<Piece>)>) -> Vec<(u64, Frame)> {
        let began = Instant::now();
        let mut framer = Framer::new(Script::new(pieces));
        let mut frames = Vec::new();
        while let Some(frame) = framer.next().await.unwrap() {
            frames.push((u64::try_from(began.elapsed().as_millis()).unwrap(), frame));
        }
        frames
    }

    #[tokio::test(start_paused = true)]
    async fn d5_pieces_are_put_together_for_200_ms_and_heartbeats_go_on() {
        let frames = all(vec![
            (0, piece("f", 0, "one ")),
            (50, piece("f", 4, "two ")),
            (160, piece("f", 8, "late")),
            (1900, piece("f", 12, "!")),
        ]);
        let expected = vec![
            (200, frame("f", 8, "one two ", None)),
            (410, frame("f", 12, "late", None)),
            (1000, Frame::default()),
            (2000, Frame::default()),
            (2110, frame("f", 13, "!", None)),
        ];
        assert_eq!(frames.await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn d5_files_events_and_jumps_are_not_put_together() {
        let event = |file: &str, offset, data: &str, event| {
            Ok(Piece { file: file.to_owned(), offset, data: data.into(), event: Some(event) })
        };
        let frames = all(vec![
            (0, piece("a", 0, "1")),
            (0, piece("b", 0, "2")),
            (0, event("b", 0, "3", FileEvent::Truncated)),
            (0, piece("b", 1, "4")),
            (0, piece("b", 9, "5")),
            (0, event("b", 10, "", FileEvent::Deleted)),
            (10, piece("b", 10, "")),
        ]);
        let expected = vec![
            (0, frame("a", 1, "1", None)),
            (0, frame("b", 1, "2", None)),
            (0, frame("b", 2, "34", Some(FileEvent::Truncated))),
            (0, frame("b", 10, "5", None)),
            (0, frame("b", 10, "", Some(FileEvent::Deleted))),
        ];
        assert_eq!(frames.await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn d5_an_error_comes_after_what_came_before_it() {
        let mut framer = Framer::new(Script::new(vec![(0, piece("f", 0, "x")), (1, Err(io::Error::other("broken")))]));
        assert_eq!(framer.next().await.unwrap(), Some(frame("f", 1, "x", None)));
        assert_eq!(framer.next().await.unwrap_err().to_string(), "broken");
        assert_eq!(framer.next().await.unwrap(), None);
    }

    #[test]
    fn d5_frames_are_written_as_nomad_writes_them() {
        let json = |frame: &Frame| String::from_utf8(frame.to_json()).unwrap();
        assert_eq!(json(&Frame::default()), "{}");
        let whole = frame("alloc/logs/web.stdout.0", 3, "hi\n", Some(FileEvent::Truncated));
        assert_eq!(
            json(&whole),
            r#"{"Data":"aGkK","File":"alloc/logs/web.stdout.0","FileEvent":"file truncated","Offset":3}"#
        );
        let mut decoder = Decoder::default();
        let frames = decoder.feed(br#"{"Offset":3, "New":[1],"Data":null}{}"#).unwrap();
        assert_eq!(frames, [frame("", 3, "", None), Frame::default()]);
        assert!(decoder.is_complete());
        assert!(decoder.feed(b"{\"Data\":\"!\"}").is_err());
        assert!(Decoder::default().feed(b"log entry not found").is_err());
    }

    /// Also if the number of an unknown member is cut, which a JSON parser takes for an invalid one.
    #[test]
    fn d5_frames_are_read_wherever_they_are_cut() {
        let text = br#"{"et":66.6e-1,"x":"\"}{","Offset":3} {"y":[{"z":[]},-0.5]}{"Data":"eA=="}"#;
        let expected = [frame("", 3, "", None), Frame::default(), frame("", 0, "x", None)];
        for cut in 0..=text.len() {
            let mut decoder = Decoder::default();
            let mut frames = decoder.feed(&text[..cut]).unwrap();
            frames.extend(decoder.feed(&text[cut..]).unwrap());
            assert_eq!(frames, expected, "cut at {cut}");
            assert!(decoder.is_complete());
        }
        for wrong in [&b"{}]"[..], b"{]", b"[{}]", b"{\"Offset\":-1}", b"{}\""] {
            assert!(Decoder::default().feed(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }

    /// A slow reader gets what was sent, not what the buffer contains by then.
    #[tokio::test(start_paused = true)]
    async fn d5_ten_thousand_writes_of_three_bytes_come_in_order_to_a_slow_reader() {
        let text = (0..10_000).map(|n| format!("{:02} ", n % 100)).collect::<Vec<_>>().concat();
        let pieces = (0..10_000).map(|n| (0, piece("f", n * 3, &text[n as usize * 3..][..3]))).collect();
        let mut framer = Framer::new(Script::new(pieces));
        let (mut sent, mut read) = (Vec::new(), Vec::new());
        while let Some(frame) = framer.next().await.unwrap() {
            tokio::time::sleep(Duration::from_millis(30)).await;
            sent.push(frame);
        }
        for frame in &sent {
            read.extend_from_slice(&frame.data);
        }
        assert_eq!(String::from_utf8(read).unwrap(), text);
    }

    /// Pieces through a channel, as fast as they come.
    struct Channel(mpsc::UnboundedReceiver<Piece>);

    impl Source for Channel {
        async fn next(&mut self) -> io::Result<Option<Piece>> {
            Ok(self.0.recv().await)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

        /// Random files, sizes and cuts of the wire: what is decoded is what was written, with exact offsets.
        #[test]
        fn d5_decoded_out_is_written_in(
            writes in proptest::collection::vec((0..3_u8, 0..80_000_usize, any::<u8>()), 1..10),
            cut in 50..50_000_usize,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let (sender, receiver) = mpsc::unbounded_channel();
            let (mut ends, mut expected) = ([0_u64; 3], vec![Vec::new(); 3]);
            for (file, size, seed) in writes {
                let which = usize::from(file);
                let data: Vec<u8> = (0..size).map(|n| (n as u8).wrapping_mul(31).wrapping_add(seed)).collect();
                expected[which].extend_from_slice(&data);
                let piece = Piece { file: format!("f{file}"), offset: ends[which], data, event: None };
                ends[which] += size as u64;
                sender.send(piece).unwrap();
            }
            drop(sender);
            let wire = runtime.block_on(async {
                let mut framer = Framer::new(Channel(receiver));
                let mut wire = Vec::new();
                while let Some(frame) = framer.next().await.unwrap() {
                    assert!(frame.data.len() <= FRAME_SIZE);
                    wire.extend(frame.to_json());
                }
                wire
            });
            let (mut decoder, mut got) = (Decoder::default(), vec![Vec::new(); 3]);
            for bytes in wire.chunks(cut) {
                for frame in decoder.feed(bytes).unwrap() {
                    let Some(which) = frame.file.strip_prefix('f').map(|n| n.parse::<usize>().unwrap()) else { continue };
                    got[which].extend_from_slice(&frame.data);
                    prop_assert_eq!(frame.offset, got[which].len() as u64);
                }
            }
            prop_assert!(decoder.is_complete());
            prop_assert!(got == expected);
        }
    }

    #[tokio::test]
    async fn d5_rotated_files_come_out_as_they_are_with_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Rotator::open(
            dir.path(),
            "t.stdout",
            Limits { max_files: 1000, max_file_size_bytes: 50, keeping: crate::spec::LogKeeping::default() },
        )
        .unwrap();
        let follower = Follower::open(dir.path(), "t.stdout", Start::Beginning).unwrap();
        let finisher = follower.finisher();
        let mut framer = Framer::new(Followed::new(follower, "alloc/logs", "t.stdout"));
        let mut expected = Vec::new();
        for n in 0..200 {
            let line = format!("line {n}\n");
            writer.write(line.as_bytes());
            expected.extend(line.into_bytes());
        }
        finisher.finish();
        let (mut got, mut files) = (Vec::new(), 0);
        while let Some(frame) = framer.next().await.unwrap() {
            if frame.is_heartbeat() {
                continue;
            }
            assert_eq!(frame.file, format!("alloc/logs/t.stdout.{files}"));
            let file = dir.path().join(format!("t.stdout.{files}"));
            assert_eq!((std::fs::read(file).unwrap(), frame.data.len() as u64), (frame.data.clone(), frame.offset));
            got.extend(frame.data);
            files += 1;
        }
        assert!(got == expected && files > 20);
    }

    #[tokio::test]
    async fn d5_cut_and_deleted_files_are_events() {
        let dir = tempfile::tempdir().unwrap();
        let path = |n: u32| dir.path().join(format!("t.stdout.{n}"));
        std::fs::write(path(0), "long line\n").unwrap();
        let follower = Follower::open(dir.path(), "t.stdout", Start::Beginning).unwrap();
        let finisher = follower.finisher();
        let mut source = Followed::new(follower, "logs", "t.stdout");
        let mut next = async || source.next().await.unwrap();
        assert_eq!(next().await, Some(piece("logs/t.stdout.0", 0, "long line\n").unwrap()));
        std::fs::write(path(0), "short\n").unwrap();
        let cut = Piece { event: Some(FileEvent::Truncated), ..piece("logs/t.stdout.0", 0, "short\n").unwrap() };
        assert_eq!(next().await, Some(cut));
        std::fs::write(path(3), "later\n").unwrap();
        let gone = Piece { event: Some(FileEvent::Deleted), ..piece("logs/t.stdout.0", 6, "").unwrap() };
        assert_eq!(next().await, Some(gone));
        finisher.finish();
        assert_eq!(next().await, Some(piece("logs/t.stdout.3", 0, "later\n").unwrap()));
        assert_eq!(next().await, None);
    }
}
