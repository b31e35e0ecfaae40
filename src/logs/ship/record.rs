//! The progress of a sink: a versioned record, written atomically, with everything that is needed to continue.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::super::follower::Cursor;
use super::{Labels, Lost, Sink, Stream};
use crate::spec::json;
use crate::sys::mutant;
use crate::sys::owned::{self, OwnDir};

/// The format version that this program writes.
const VERSION: u32 = 1;
/// Most bytes of a record.
const LONGEST: u64 = 1 << 20;

/// Output that a sink got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Shipped {
    /// Lines.
    pub lines: u64,
    /// Bytes, line ends too.
    pub bytes: u64,
}

/// The counts of one stream's output for one sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Account {
    /// Output that the sink got.
    pub shipped: Shipped,
    /// Output that it did not get.
    pub lost: Lost,
    /// Lines that it has rejected; they count in neither of the others.
    pub rejected: u64,
}

impl std::ops::AddAssign for Account {
    fn add_assign(&mut self, other: Account) {
        self.shipped.lines += other.shipped.lines;
        self.shipped.bytes += other.shipped.bytes;
        self.lost += other.lost;
        self.rejected += other.rejected;
    }
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// `read`, `write` or `make`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is not a record, or a newer program wrote it.
    #[error("{} is not a record that this version understands: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Content {
    version: u32,
    sink: String,
    labels: Labels,
    stream: Stream,
    #[serde(default)]
    cursor: Option<Place>,
    #[serde(default)]
    account: Account,
}

#[derive(Clone, Copy, serde::Serialize, serde::Deserialize)]
struct Place {
    index: u64,
    inode: u64,
    offset: u64,
}

/// One sink's record of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) sink: Sink,
    pub(super) labels: Labels,
    pub(super) stream: Stream,
    /// `None` before the first file.
    pub(super) cursor: Option<Cursor>,
    pub(super) account: Account,
}

impl Record {
    pub(super) fn new(sink: &Sink, labels: &Labels, stream: Stream) -> Record {
        Record { sink: sink.clone(), labels: labels.clone(), stream, cursor: None, account: Account::default() }
    }

    /// Parses a record.
    pub(super) fn parse(bytes: &[u8]) -> Result<Record, String> {
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        let version = value.get("version").and_then(serde_json::Value::as_u64);
        if version != Some(u64::from(VERSION)) {
            return Err(version.map_or("no version".to_owned(), |v| format!("version {v}")));
        }
        let content: Content = json::from_value(&value).map_err(|e| e.to_string())?;
        if content.labels.task.is_empty() || content.labels.task.contains(['/', '\0']) {
            return Err(format!("task {:?}", content.labels.task));
        }
        let sink = content.sink.parse::<Sink>().map_err(|e| e.to_string())?;
        let cursor = content.cursor.map(|Place { index, inode, offset }| Cursor { index, inode, offset });
        let Content { labels, stream, account, .. } = content;
        Ok(Record { sink, labels, stream, cursor, account })
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let content = Content {
            version: VERSION,
            sink: self.sink.secret_text().to_owned(),
            labels: self.labels.clone(),
            stream: self.stream,
            cursor: self.cursor.map(|Cursor { index, inode, offset }| Place { index, inode, offset }),
            account: self.account,
        };
        json::to_vec(&content).expect("texts and numbers can be written")
    }

    /// `<task>.<stream>.<digest of the sink>.json`.
    fn file_name(&self) -> String {
        let digest = Sha256::digest(self.sink.secret_text());
        let of_sink = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
        format!("{}.{}.{of_sink:08x}.json", self.labels.task, self.stream.name())
    }

    /// Reads the record of the same sink and stream in `folder`, if there is one.
    pub(super) fn read_again(&self, folder: &Path) -> Result<Option<Record>, RecordError> {
        let path = folder.join(self.file_name());
        match owned::read(&path, LONGEST) {
            Ok(bytes) => {
                let record = Record::parse(&bytes);
                record.map(Some).map_err(|reason| RecordError::Unreadable { path, reason })
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(RecordError::Io { action: "read", path, source }),
        }
    }

    /// All records in `folder`, which may be missing.
    pub(super) fn all(folder: &Path) -> Vec<Result<Record, RecordError>> {
        let error = |source| RecordError::Io { action: "read", path: folder.to_owned(), source };
        let own = match OwnDir::open(folder) {
            Ok(own) => own,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(e) => return vec![Err(error(e))],
        };
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(e) => return vec![Err(error(e))],
        };
        let mut records = Vec::new();
        for entry in entries {
            let path = match entry {
                Ok(entry) => entry.path(),
                Err(e) => {
                    records.push(Err(error(e)));
                    continue;
                }
            };
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let read = match path.file_name() {
                Some(name) if !mutant::on("d68") => own.read(name, LONGEST),
                _ => std::fs::read(&path),
            };
            records.push(match read {
                Ok(bytes) => Record::parse(&bytes).map_err(|reason| RecordError::Unreadable { path, reason }),
                Err(source) => Err(RecordError::Io { action: "read", path, source }),
            });
        }
        records
    }

    /// Creates the directory of records, accessible to its owner only: a sink's URL may contain a password.
    pub(super) fn make_folder(folder: &Path) -> Result<(), RecordError> {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        let own = made.and_then(|()| OwnDir::open(folder));
        own.map(drop).map_err(|source| RecordError::Io { action: "make", path: folder.to_owned(), source })
    }

    /// Writes the record atomically. Not synced: after a crash of the machine, lines may be delivered twice.
    pub(super) fn write(&self, folder: &Path) -> Result<(), RecordError> {
        let path = folder.join(self.file_name());
        let temporary = path.with_extension("tmp");
        let write = || {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&temporary)?;
            file.write_all(&self.to_bytes())?;
            std::fs::rename(&temporary, &path)
        };
        write().map_err(|source| RecordError::Io { action: "write", path: path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_as_it_was_and_is_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("ship");
        let sink: Sink = "otlp:http://u:p@h".parse().unwrap();
        let labels = Labels { job: "j".into(), group: "g".into(), task: "web".into(), alloc: "id".into() };
        let mut record = Record::new(&sink, &labels, Stream::Stderr);
        assert_eq!(record.read_again(&folder).unwrap(), None);
        Record::make_folder(&folder).unwrap();
        record.cursor = Some(Cursor { index: 3, inode: 4, offset: 5 });
        record.account.shipped = Shipped { lines: 1, bytes: 2 };
        record.account.lost = Lost { lines: 6, bytes: 7, files: 8 };
        record.write(&folder).unwrap();
        assert_eq!(Record::new(&sink, &labels, Stream::Stderr).read_again(&folder).unwrap(), Some(record.clone()));
        assert_eq!(Record::new(&sink, &labels, Stream::Stdout).read_again(&folder).unwrap(), None);
        let other = Record::new(&"otlp:http://h".parse().unwrap(), &labels, Stream::Stderr);
        assert_eq!(other.read_again(&folder).unwrap(), None);
        assert_eq!(Record::all(&folder).into_iter().map(Result::unwrap).collect::<Vec<_>>(), [record.clone()]);
        let mode = |path: &Path| std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(path).unwrap()) & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join(record.file_name()))), (0o700, 0o600));

        let newer = String::from_utf8(record.to_bytes()).unwrap().replace("\"version\":1", "\"version\":2");
        std::fs::write(folder.join(record.file_name()), newer).unwrap();
        assert!(record.read_again(&folder).unwrap_err().to_string().ends_with("understands: version 2"));
        for text in ["", "{}", "[1]", r#"{"version":1}"#] {
            assert!(Record::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
