//! Splits a stream of bytes into lines, each with its position in the files.

use std::ops::Range;
use std::time::SystemTime;

use super::super::follower::Cursor;

/// A longer line is split: it is kept in memory until it ends.
pub(super) const LONGEST_LINE: usize = 256 * 1024;

/// A line, or a part of one that is too long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its position in the batch, without the line end.
    text: Range<usize>,
    /// The position of its beginning in the files.
    pub(super) at: Cursor,
    /// What follows belongs to the same line, or was never read.
    pub(super) partial: bool,
}

/// Lines that are sent together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Batch {
    /// When they were read.
    pub(super) time: SystemTime,
    bytes: Vec<u8>,
    pub(super) entries: Vec<Entry>,
    /// Where reading continues once all of them are delivered.
    pub(super) resume: Cursor,
}

impl Batch {
    /// Without entries.
    pub(super) const fn empty() -> Batch {
        let resume = Cursor { index: 0, inode: 0, offset: 0 };
        Batch { time: SystemTime::UNIX_EPOCH, bytes: Vec::new(), entries: Vec::new(), resume }
    }

    pub(super) fn text(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.text.clone()]
    }

    /// The size of the entries in the files, in bytes.
    pub(super) fn size(&self) -> u64 {
        self.entries.iter().map(|e| e.text.len() as u64 + u64::from(!e.partial)).sum()
    }
}

/// Assembles lines from bytes.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pending: Vec<u8>,
    /// The position of their beginning.
    at: Option<Cursor>,
}

impl Lines {
    /// Adds the next bytes, which end at `end`; returns the lines that are complete now.
    pub(super) fn feed(&mut self, data: &[u8], end: Cursor, time: SystemTime) -> Option<Batch> {
        let start = Cursor { offset: end.offset.saturating_sub(data.len() as u64), ..end };
        let before = self.pending.len();
        let first = self.at.take().unwrap_or(start);
        let mut bytes = std::mem::take(&mut self.pending);
        bytes.extend_from_slice(data);
        let place = |index: usize| match index.checked_sub(before) {
            Some(ahead) => Cursor { offset: start.offset + ahead as u64, ..start },
            None => Cursor { offset: first.offset + index as u64, ..first },
        };
        let (mut entries, mut from) = (Vec::new(), 0);
        for at in memchr::memchr_iter(b'\n', data) {
            let line_end = before + at;
            entries.push(Entry { text: from..line_end, at: place(from), partial: false });
            from = line_end + 1;
        }
        while bytes.len() - from >= LONGEST_LINE {
            entries.push(Entry { text: from..from + LONGEST_LINE, at: place(from), partial: true });
            from += LONGEST_LINE;
        }
        let resume = place(from);
        if from < bytes.len() {
            self.at = Some(resume);
            if from == 0 {
                self.pending = bytes;
                return None;
            }
            self.pending = bytes.split_off(from);
        }
        (!entries.is_empty()).then_some(Batch { time, bytes, entries, resume })
    }

    /// Returns an incomplete line that will not be completed; reading continues at `resume`.
    pub(super) fn cut(&mut self, resume: Cursor, time: SystemTime) -> Option<Batch> {
        let at = self.at.take()?;
        let bytes = std::mem::take(&mut self.pending);
        let entries = vec![Entry { text: 0..bytes.len(), at, partial: true }];
        Some(Batch { time, bytes, entries, resume })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(index: u64, offset: u64) -> Cursor {
        Cursor { index, inode: index + 100, offset }
    }

    fn texts(batch: Option<Batch>) -> Vec<(String, Cursor, bool)> {
        let Some(batch) = batch else { return Vec::new() };
        let text = |e: &Entry| String::from_utf8(batch.text(e).to_vec()).unwrap();
        batch.entries.iter().map(|e| (text(e), e.at, e.partial)).collect()
    }

    #[test]
    fn lines_have_their_places_across_files() {
        let time = SystemTime::UNIX_EPOCH;
        let mut lines = Lines::default();
        let batch = lines.feed(b"one\ntw", at(0, 6), time).unwrap();
        assert_eq!((batch.resume, batch.size()), (at(0, 4), 4));
        assert_eq!(texts(Some(batch)), [("one".to_owned(), at(0, 0), false)]);
        assert_eq!(lines.at, Some(at(0, 4)));
        assert_eq!(lines.feed(b"o", at(1, 1), time), None);
        let batch = lines.feed(b"!\n\nx", at(1, 5), time).unwrap();
        assert_eq!(batch.resume, at(1, 4));
        assert_eq!(texts(Some(batch)), [("two!".to_owned(), at(0, 4), false), (String::new(), at(1, 3), false)]);
        assert_eq!(texts(lines.cut(at(1, 5), time)), [("x".to_owned(), at(1, 4), true)]);
        assert_eq!(lines.cut(at(1, 5), time), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 50, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_the_pieces_the_bytes_are_the_same(
            pieces in proptest::collection::vec((0..2_usize, proptest::collection::vec(9..12_u8, 0..40)), 0..30),
        ) {
            let mut lines = Lines::default();
            let (mut got, mut expected, mut offset) = (Vec::new(), Vec::new(), 0);
            for (long, mut piece) in pieces {
                piece.extend(std::iter::repeat_n(b'x', long * LONGEST_LINE / 2));
                expected.extend_from_slice(&piece);
                offset += piece.len() as u64;
                let Some(batch) = lines.feed(&piece, at(0, offset), SystemTime::UNIX_EPOCH) else { continue };
                for entry in &batch.entries {
                    prop_assert_eq!(entry.at.offset, got.len() as u64);
                    got.extend_from_slice(batch.text(entry));
                    if !entry.partial {
                        got.push(b'\n');
                    }
                }
                prop_assert_eq!(batch.resume.offset, got.len() as u64);
            }
            if let Some(batch) = lines.cut(at(0, offset), SystemTime::UNIX_EPOCH) {
                got.extend_from_slice(batch.text(&batch.entries[0]));
            }
            prop_assert!(got == expected);
        }
    }
}
