//! `operator snapshot save`, `inspect` and `restore`: all records in one archive of the form that Nomad's command line reads,
//! without the key with which the secrets in it are sealed.
//!
//! The archive is a gzipped tar of `meta.json`, `state.bin` and `SHA256SUMS`. In `state.bin` stands, after an empty map,
//! one record after the other: a byte that says what it is, by which `operator snapshot inspect` counts, and a msgpack array of
//! table, key and value.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek as _, SeekFrom, Write};
use std::path::Path;
use std::time::SystemTime;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use rustix::fs::{AtFlags, Mode, OFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tar::{Archive, Builder, Header};
use tokio::sync::oneshot;

use super::error::StateError;
use super::secret::hex;
use super::table::{self, SCHEMA, TABLES, Table};
use super::{KEY_ID, State};
use crate::agent::model::Nanos;
use crate::spec::json;
use crate::store::{Bulk, Verdict};
use crate::sys::owned::OwnDir;
use crate::sys::random;

/// The files of the archive, in this order.
const META: &str = "meta.json";
const STATE: &str = "state.bin";
const SUMS: &str = "SHA256SUMS";
/// The tables whose records are sealed, or parts of them.
const SEALED: [&str; 3] = [Table::Variables.name(), Table::Tokens.name(), Table::CsiVolumes.name()];
/// Bytes of the two small ones, at most.
const SMALL: u64 = 64 << 10;
/// Bytes of a key or a value, at most: longer ones are no records.
const LONGEST: u32 = 64 << 20;
/// An index that no state reaches: others come after it.
const MOST_INDEX: u64 = 1 << 62;
/// Records that are written or read at a time, and their bytes, about.
const TOGETHER: usize = 64;
const BYTES: usize = 1 << 20;

/// A snapshot as a file that has no name.
#[derive(Debug)]
pub struct Saved {
    /// The archive, at its beginning.
    pub file: File,
    /// Its SHA-256, for the header `Digest`.
    pub sha256: [u8; 32],
    /// Its length.
    pub length: u64,
    /// The index of what is in it.
    pub index: u64,
}

/// `meta.json`: what Nomad has there, and what we need.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Meta {
    version: u32,
    #[serde(rename = "ID")]
    id: String,
    index: u64,
    term: u64,
    peers: Option<String>,
    configuration: Configuration,
    configuration_index: u64,
    size: u64,
    agentbin: Option<Ours>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Configuration {
    servers: Vec<serde_json::Value>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Ours {
    /// The program's version.
    version: String,
    schema: u32,
    /// By which the key is known that opens the secrets.
    key: String,
    /// How many records need it.
    secrets: u64,
}

fn bad(reason: impl std::fmt::Display) -> StateError {
    StateError::Invalid(format!("the snapshot cannot be used: {reason}"))
}

fn unwritten(error: &dyn std::fmt::Display) -> StateError {
    StateError::Invalid(format!("cannot write the snapshot: {error}"))
}

impl State {
    /// Writes all that is kept into an archive in this directory. It blocks, and reads a snapshot: nobody waits for it.
    ///
    /// # Errors
    /// [`StateError::Store`] when it cannot be read, [`StateError::Invalid`] when the archive cannot be written.
    pub fn save_snapshot(&self, dir: &Path) -> Result<Saved, StateError> {
        let view = self.read()?;
        let index = view.index()?;
        let mut state = Sum::new(BufWriter::new(nameless(dir).map_err(|error| unwritten(&error))?));
        let mut secrets = 0;
        // An empty map.
        state.write_all(&[0x80]).map_err(|error| unwritten(&error))?;
        for name in TABLES {
            let mut after: Option<Vec<u8>> = None;
            loop {
                let page = view.source().page(name, &[], after.as_deref(), TOGETHER)?;
                for (key, value) in page.records {
                    secrets += u64::from(SEALED.contains(&name));
                    record(&mut state, name, &key, &value).map_err(|error| unwritten(&error))?;
                    after = Some(key);
                }
                if !page.more {
                    break;
                }
            }
        }
        let size = state.length;
        let created = Nanos::of(SystemTime::now()).0 / 1_000_000;
        let meta = Meta {
            version: 1,
            id: format!("1-{index}-{created}"),
            index,
            term: 1,
            peers: None,
            configuration: Configuration::default(),
            configuration_index: 1,
            size,
            agentbin: Some(Ours {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                schema: SCHEMA.version,
                key: self.shared.keys.id().to_owned(),
                secrets,
            }),
        };
        let meta = json::to_vec(&meta).map_err(|error| unwritten(&error))?;
        archive(dir, &meta, state, index).map_err(|error| unwritten(&error))
    }

    /// Puts what is in an archive in the place of all that is kept, and returns the index that everything has then. Allocations
    /// that run and are not in it are known to nobody afterwards: who calls this ends them.
    ///
    /// # Errors
    /// [`StateError::Invalid`] for an archive that is damaged, from elsewhere, newer, or whose secrets need another key: then
    /// nothing is changed.
    pub async fn restore_snapshot(&self, archive: File) -> Result<u64, StateError> {
        let (sender, receiver) = oneshot::channel();
        let shared = std::sync::Arc::clone(&self.shared);
        let work = move |bulk: Result<&Bulk, _>| {
            let made = match bulk {
                Ok(bulk) => restore(bulk, archive, shared.keys.id()),
                Err(error) => Err(StateError::Store(error)),
            };
            let keep = made.is_ok();
            let done = Box::new(move |committed: Result<(), _>| {
                let result = committed.map_err(StateError::Store).and(made);
                if let Ok(index) = &result {
                    shared.indexes.publish(Table::ALL, *index);
                }
                // Who asked may have gone.
                let _ = sender.send(result);
            });
            if keep { Verdict::Keep(done) } else { Verdict::Drop(done) }
        };
        self.store.submit_bulk(work).await;
        receiver.await.unwrap_or(Err(StateError::Lost))
    }
}

/// A file in this directory that has no name, or has lost it.
///
/// # Errors
/// What making it gives; `PermissionDenied` for a directory that others may write to.
pub fn nameless(dir: &Path) -> io::Result<File> {
    let dir = OwnDir::open(dir)?;
    let (mode, flags) = (Mode::RUSR | Mode::WUSR, OFlags::RDWR | OFlags::CLOEXEC);
    if let Ok(file) = rustix::fs::openat(&dir, ".", flags | OFlags::TMPFILE, mode) {
        return Ok(file.into());
    }
    // Not every file system has such files.
    let name = format!("snapshot.{}.new", random::uuid());
    let file = rustix::fs::openat(&dir, &name, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode)?;
    rustix::fs::unlinkat(&dir, &name, AtFlags::empty())?;
    Ok(file.into())
}

/// Counts and sums what goes through.
struct Sum<T> {
    inner: T,
    hash: Sha256,
    length: u64,
}

impl<T> Sum<T> {
    fn new(inner: T) -> Sum<T> {
        Sum { inner, hash: Sha256::new(), length: 0 }
    }

    fn see(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
    }
}

impl<T: Write> Write for Sum<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.see(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Sum<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.see(&bytes[..read]);
        Ok(read)
    }
}

/// The archive of these two.
fn archive(dir: &Path, meta: &[u8], state: Sum<BufWriter<File>>, index: u64) -> io::Result<Saved> {
    let (length, sum) = (state.length, state.hash.finalize());
    let mut state = state.inner.into_inner().map_err(io::IntoInnerError::into_error)?;
    state.seek(SeekFrom::Start(0))?;
    let gzip = GzEncoder::new(Sum::new(BufWriter::new(nameless(dir)?)), Compression::default());
    let mut tar = Builder::new(gzip);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let header = |length: u64| {
        let mut header = Header::new_gnu();
        header.set_size(length);
        header.set_mode(0o600);
        header.set_mtime(now);
        header
    };
    tar.append_data(&mut header(meta.len() as u64), META, meta)?;
    tar.append_data(&mut header(length), STATE, BufReader::new(state).take(length))?;
    let sums = format!("{}  {META}\n{}  {STATE}\n", hex(&Sha256::digest(meta)), hex(&sum));
    tar.append_data(&mut header(sums.len() as u64), SUMS, sums.as_bytes())?;
    let whole = tar.into_inner()?.finish()?;
    let (length, sha256) = (whole.length, whole.hash.finalize().into());
    let mut file = whole.inner.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(Saved { file, sha256, length, index })
}

/// What Nomad has such a record for, by the number of its kind.
fn kind(name: &str) -> u8 {
    match name {
        "nodes" => 0,
        "jobs" => 1,
        "evals" => 3,
        "allocs" => 4,
        "launches" => 6,
        "job_summaries" => 7,
        "job_versions" => 9,
        "deployments" => 10,
        "tokens" => 12,
        "settings" => 13,
        "csi_volumes" => 18,
        "scaling_events" => 19,
        "services" => 21,
        "variables" => 22,
        "job_submissions" => 29,
        "namespaces" => 64,
        // Indexes, theirs and those by which our records are found.
        _ => 2,
    }
}

/// A record: its kind, and a msgpack array of two texts (`str 8`, `bin 32`) and the value (`bin 32`).
fn record(to: &mut impl Write, name: &str, key: &[u8], value: &[u8]) -> io::Result<()> {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
    to.write_all(&[kind(name), 0x93, 0xd9, u8::try_from(name.len()).unwrap_or(u8::MAX)])?;
    to.write_all(name.as_bytes())?;
    for bytes in [key, value] {
        to.write_all(&[0xc6])?;
        to.write_all(&length(bytes)?.to_be_bytes())?;
        to.write_all(bytes)?;
    }
    Ok(())
}

/// Table, key and value.
type Record = (&'static str, Vec<u8>, Vec<u8>);

/// Reads a record; `None` at the end.
fn read_record(from: &mut impl Read) -> Result<Option<Record>, StateError> {
    let short = |error: io::Error| bad(format!("{STATE}: {error}"));
    let mut kind = [0];
    if from.read(&mut kind).map_err(short)? == 0 {
        return Ok(None);
    }
    let mut head = [0; 3];
    from.read_exact(&mut head).map_err(short)?;
    let [0x93, 0xd9, length] = head else { return Err(bad(format!("{STATE} has something else than our records"))) };
    let mut name = vec![0; usize::from(length)];
    from.read_exact(&mut name).map_err(short)?;
    let known = TABLES.into_iter().find(|known| known.as_bytes() == name);
    let known = known.ok_or_else(|| bad(format!("it has an unknown table {:?}", String::from_utf8_lossy(&name))))?;
    let mut bytes = || -> Result<Vec<u8>, StateError> {
        let (mut kind, mut length) = ([0], [0; 4]);
        from.read_exact(&mut kind).and_then(|()| from.read_exact(&mut length)).map_err(short)?;
        let length = u32::from_be_bytes(length);
        if kind != [0xc6] || length > LONGEST {
            return Err(bad(format!("{STATE} has something else than our records")));
        }
        let mut bytes = Vec::new();
        from.take(u64::from(length)).read_to_end(&mut bytes).map_err(short)?;
        if bytes.len() != length as usize {
            return Err(bad(format!("{STATE} ends early")));
        }
        Ok(bytes)
    };
    let key = bytes()?;
    let value = bytes()?;
    Ok(Some((known, key, value)))
}

/// Writes what is in the archive; it is committed only if all of it is as its sums say.
fn restore(bulk: &Bulk, file: File, key: &str) -> Result<u64, StateError> {
    let now = number(bulk, table::LAST)?;
    let key_id = bulk.get(table::INDEXES, KEY_ID)?;
    let mut filling = Filling { bulk, key, table: "", some: Vec::new(), bytes: 0 };
    let index = read(file, &mut filling)?.index;
    filling.flush()?;
    // Never backwards: who waits for a change would wait for ever.
    let index = now.max(index).checked_add(1).filter(|index| *index < MOST_INDEX);
    let index = index.ok_or_else(|| bad("its index is none that a state can have"))?;
    let mut indexes: Vec<(Vec<u8>, Vec<u8>)> =
        Table::ALL.iter().map(|table| (table.name().as_bytes().to_vec(), index.to_be_bytes().to_vec())).collect();
    indexes.push((table::LAST.to_vec(), index.to_be_bytes().to_vec()));
    indexes.extend(key_id.map(|id| (KEY_ID.to_vec(), id)));
    bulk.put(table::INDEXES, &indexes)?;
    Ok(index)
}

/// Who reads an archive.
trait Reader {
    /// Whether it can be used; comes before its records.
    fn begin(&mut self, meta: &Meta) -> Result<(), StateError>;
    fn take(&mut self, record: Record) -> Result<(), StateError>;
}

/// Reads an archive to its end, and checks that all of it is as its sums say.
fn read(file: File, reader: &mut dyn Reader) -> Result<Meta, StateError> {
    let mut archive = Archive::new(GzDecoder::new(BufReader::new(file)));
    let meta = unpack(&mut archive, reader)?;
    // To its end, where its last sum stands.
    let rest = io::copy(&mut archive.into_inner().take(SMALL), &mut io::sink()).map_err(bad)?;
    if rest == SMALL { Err(bad("there is more behind its end")) } else { Ok(meta) }
}

fn unpack(archive: &mut Archive<impl Read>, reader: &mut dyn Reader) -> Result<Meta, StateError> {
    let mut entries = archive.entries().map_err(bad)?;
    let mut next = |name: &str| -> Result<_, StateError> {
        let entry = entries.next().ok_or_else(|| bad(format!("it has no {name}")))?.map_err(bad)?;
        if entry.path().map_err(bad)?.as_os_str() != name {
            return Err(bad(format!("where {name} is expected there is {:?}", entry.path().map_err(bad)?.display())));
        }
        Ok(entry)
    };
    let mut text = Vec::new();
    next(META)?.take(SMALL).read_to_end(&mut text).map_err(bad)?;
    let meta: Meta = json::from_slice(&text).map_err(|error| bad(format!("{META}: {error}")))?;
    reader.begin(&meta)?;
    let meta_sum = hex(&Sha256::digest(&text));

    let mut state = Sum::new(BufReader::new(next(STATE)?));
    let mut head = [0];
    state.read_exact(&mut head).map_err(bad)?;
    if head != [0x80] {
        return Err(bad(format!("{STATE} does not begin as ours do")));
    }
    while let Some(record) = read_record(&mut state)? {
        reader.take(record)?;
    }
    let state_sum = hex(&state.hash.finalize());

    let mut sums = String::new();
    next(SUMS)?.take(SMALL).read_to_string(&mut sums).map_err(bad)?;
    for (name, sum) in [(META, meta_sum), (STATE, state_sum)] {
        let listed = sums.lines().filter_map(|line| line.split_once("  ")).find(|(_, listed)| *listed == name);
        if listed.is_none_or(|(listed, _)| listed != sum) {
            return Err(bad(format!("{name} is not what {SUMS} says: the file is damaged")));
        }
    }
    Ok(meta)
}

fn number(bulk: &Bulk, key: &[u8]) -> Result<u64, StateError> {
    let found = bulk.get(table::INDEXES, key)?;
    Ok(found.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes))
}

/// What agentbin has noted, if what is in the archive means the same here.
fn ours(meta: &Meta) -> Result<&Ours, StateError> {
    let Some(ours) = &meta.agentbin else {
        return Err(bad("it is one of Nomad's servers; only those of agentbin can be read here"));
    };
    // Schema 2 has tables that schema 1 has not, and is otherwise the same.
    if (1..=SCHEMA.version).contains(&ours.schema) {
        return Ok(ours);
    }
    Err(bad(format!(
        "it has the schema {}, written by agentbin {}, and this program has {}: use that version",
        ours.schema, ours.version, SCHEMA.version
    )))
}

/// Puts records in the place of all that is kept.
struct Filling<'a> {
    bulk: &'a Bulk,
    /// By which the key of this agent is known.
    key: &'a str,
    table: &'static str,
    /// Records of this table that are not written yet, and their bytes.
    some: Vec<(Vec<u8>, Vec<u8>)>,
    bytes: usize,
}

impl Filling<'_> {
    fn flush(&mut self) -> Result<(), StateError> {
        self.bytes = 0;
        if !self.some.is_empty() {
            self.bulk.put(self.table, &self.some)?;
            self.some.clear();
        }
        Ok(())
    }
}

impl Reader for Filling<'_> {
    fn begin(&mut self, meta: &Meta) -> Result<(), StateError> {
        let ours = ours(meta)?;
        if ours.secrets > 0 && ours.key != self.key {
            return Err(bad(format!(
                "its {} secrets are sealed with the key {}, and this agent has the key {}: put the right {} into its data \
                 directory and start it anew",
                ours.secrets,
                ours.key,
                self.key,
                super::KEY_FILE
            )));
        }
        TABLES.into_iter().try_for_each(|name| Ok(self.bulk.clear(name)?))
    }

    fn take(&mut self, (name, key, value): Record) -> Result<(), StateError> {
        if name != self.table || self.some.len() == TOGETHER || self.bytes > BYTES {
            self.flush()?;
        }
        self.table = name;
        self.bytes += key.len() + value.len();
        if name != table::INDEXES {
            self.some.push((key, value));
        }
        Ok(())
    }
}

/// What is in an archive.
#[derive(Debug)]
pub struct Contents {
    /// Its name, as the one who saved it has made it up.
    pub id: String,
    /// The index of what is in it.
    pub index: u64,
    /// The version of the agentbin that saved it.
    pub version: String,
    /// By which the key is known that opens its secrets.
    pub key: String,
    /// How many records need it.
    pub secrets: u64,
    /// Each table that has records, how many, and their bytes.
    pub tables: Vec<(&'static str, u64, u64)>,
}

/// Reads an archive, and checks that it is whole; its secrets are not opened.
///
/// # Errors
/// [`StateError::Invalid`] for an archive that is damaged, from elsewhere, or newer.
pub fn inspect(file: File) -> Result<Contents, StateError> {
    let mut counting = Counting { tables: Vec::new() };
    let meta = read(file, &mut counting)?;
    let Ours { version, key, secrets, .. } = ours(&meta)?;
    let (version, key, secrets) = (version.clone(), key.clone(), *secrets);
    Ok(Contents { id: meta.id, index: meta.index, version, key, secrets, tables: counting.tables })
}

struct Counting {
    tables: Vec<(&'static str, u64, u64)>,
}

impl Reader for Counting {
    fn begin(&mut self, meta: &Meta) -> Result<(), StateError> {
        ours(meta).map(drop)
    }

    fn take(&mut self, (name, key, value): Record) -> Result<(), StateError> {
        let at = self.tables.iter().position(|(known, ..)| *known == name).unwrap_or_else(|| {
            self.tables.push((name, 0, 0));
            self.tables.len() - 1
        });
        let (_, count, bytes) = &mut self.tables[at];
        *count += 1;
        *bytes += (key.len() + value.len()) as u64;
        Ok(())
    }
}
