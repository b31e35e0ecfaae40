//! Files of allocations. As a task may have put anything there, names are resolved by the kernel below the allocation's
//! directory, links are not followed, only regular files are read, and tasks' secrets are not shown.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use serde_json::Value;

use super::Call;
use super::answer::{Answer, Refusal};
use super::{ENDING, Process, client};
use crate::agent::model::{Nanos, Stamp};
use crate::http::stream::{Out, stream as streamed};
use crate::http::{Body, HeaderValue, Response, StatusCode, header};
use crate::logs::framer::{FileEvent, Framer, Piece, Source};
use crate::spec::Order as _;
use crate::spec::json;
use crate::spec::json::json;
use crate::sys::path::Root;

/// Limit of directory entries in an answer.
const ENTRIES: usize = 65_536;
/// Size of one read, in bytes.
const CHUNK: usize = 64 * 1024;
/// How often a followed file is checked.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The directory of an allocation.
pub(super) fn dir(call: &Call) -> Result<PathBuf, Refusal> {
    client::known(call)?;
    let gone = || Refusal::missing(format!("state for allocation {} not found on client", call.id()));
    call.api.engine.alloc_dir(call.id()).ok_or_else(gone)
}

/// The path of a query. That there is one is seen before whether there is the allocation.
fn named(call: &Call) -> Result<&str, Refusal> {
    call.query.text("path").ok_or_else(|| Refusal::bad("must provide a file name"))
}

/// A path of a query, relative to the allocation's directory.
fn path(given: &str) -> Result<PathBuf, Refusal> {
    let mut clean = PathBuf::new();
    for component in Path::new(given).components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(Refusal::failed("Path escapes the alloc directory"));
            }
        }
    }
    // `<task>/secrets` and `<task>/private`; no link leads there, as none is followed.
    let second = clean.components().nth(1).map(Component::as_os_str);
    if second.is_some_and(|name| name == "secrets" || name == "private") {
        return Err(Refusal::new(
            StatusCode::FORBIDDEN,
            format!("Reading secret file prohibited: {}", clean.display()),
        ));
    }
    Ok(if clean.as_os_str().is_empty() { PathBuf::from(".") } else { clean })
}

/// A file that the executor of a task keeps in the allocation's directory, for root.
fn is_of_executor(name: &str, stat: &Stat) -> bool {
    let is_one = |end: &str| matches!(end, "out" | "json" | "task" | "launch" | "tmp" | "new");
    FileType::from_raw_mode(stat.st_mode) != FileType::Directory
        && name.rsplit_once("-executor.").is_some_and(|(_, end)| is_one(end))
}

fn open(dir: &Path, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let fd = Root::open(dir)?.open_beneath(path, flags | OFlags::CLOEXEC, Mode::empty())?;
    // These files are hidden from listings and reads.
    let is_top = path.components().nth(1).is_none();
    if is_top && is_of_executor(&path.to_string_lossy(), &rustix::fs::fstat(&fd)?) {
        return Err(io::Error::from_raw_os_error(libc::ENOENT));
    }
    Ok(fd)
}

/// An error text as Go's library would word it.
fn why(doing: &str, dir: &Path, path: &Path, error: &io::Error) -> String {
    let text = error.to_string();
    if error.raw_os_error().is_none() {
        return text;
    }
    let text = text.split_once(" (os error").map_or(text.as_str(), |(text, _)| text);
    let (first, rest) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
    format!("{doing} {}: {}{rest}", dir.join(path).display(), first.to_lowercase())
}

fn cannot(doing: &str, dir: &Path, path: &Path, error: &io::Error) -> Refusal {
    let text = why(doing, dir, path, error);
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ELOOP | libc::EXDEV) => Refusal::missing(text),
        _ => Refusal::failed(text),
    }
}

pub(super) async fn list(call: Call) -> Result<Answer, Refusal> {
    let (dir, path) = (dir(&call)?, path(call.query.text("path").unwrap_or("/"))?);
    let made =
        crate::sys::task::spawn_blocking(move || entries(&dir, &path).map_err(|e| cannot("open", &dir, &path, &e)));
    Ok(Answer::of(made.await.map_err(|e| Refusal::failed(e.to_string()))??))
}

fn entries(dir: &Path, path: &Path) -> io::Result<Value> {
    let fd = open(dir, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let is_top = path == Path::new(".");
    let mut found = Vec::new();
    for entry in rustix::fs::Dir::read_from(&fd)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_bytes() == b"." || name.to_bytes() == b".." {
            continue;
        }
        // An entry that was removed in between is skipped.
        let Ok(stat) = rustix::fs::statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let name = name.to_string_lossy();
        if !is_top || !is_of_executor(&name, &stat) {
            found.push(info(&name, &stat));
        }
        if found.len() == ENTRIES {
            break;
        }
    }
    found.order_by_key(|entry| entry["Name"].as_str().unwrap_or_default().to_owned());
    Ok(found.into())
}

fn info(name: &str, stat: &Stat) -> Value {
    // A task can set any modification time.
    let nanos = Nanos(stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as i64));
    json!({
        "Name": name,
        "IsDir": FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
        "Size": stat.st_size,
        "FileMode": mode(stat),
        "ModTime": json::to_value(&Stamp(Some(nanos))).unwrap_or_default(),
    })
}

/// A mode as Go writes it.
fn mode(stat: &Stat) -> String {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => "d",
        FileType::Symlink => "L",
        FileType::Socket => "S",
        FileType::Fifo => "p",
        FileType::CharacterDevice => "Dc",
        FileType::BlockDevice => "D",
        _ => "-",
    };
    let set = [(0o4000, 'u'), (0o2000, 'g'), (0o1000, 't')];
    let mut out: String = set.iter().filter(|(bit, _)| stat.st_mode & bit != 0).map(|(_, c)| c).collect();
    if out.is_empty() || kind != "-" {
        out.insert_str(0, kind);
    }
    for n in (0..9).rev() {
        out.push(if stat.st_mode & (1 << n) == 0 { '-' } else { ['x', 'w', 'r'][n % 3] });
    }
    out
}

pub(super) async fn stat(call: Call) -> Result<Answer, Refusal> {
    let named = named(&call)?;
    let (dir, path) = (dir(&call)?, path(named)?);
    let made = crate::sys::task::spawn_blocking(move || {
        let look = || {
            let fd = open(&dir, &path, OFlags::PATH)?;
            let stat = rustix::fs::fstat(&fd)?;
            let name = path.file_name().map_or_else(|| "/".to_owned(), |name| name.to_string_lossy().into_owned());
            let mut info = info(&name, &stat);
            let kind = regular(&dir, &path).map(|file| content_type(&head(&file, 0)));
            info["ContentType"] = kind.unwrap_or("application/octet-stream").into();
            Ok(info)
        };
        look().map_err(|e: io::Error| cannot("stat", &dir, &path, &e))
    });
    Ok(Answer::of(made.await.map_err(|e| Refusal::failed(e.to_string()))??))
}

/// Opens a regular file; opening cannot block.
fn regular(dir: &Path, path: &Path) -> io::Result<std::fs::File> {
    let fd = open(dir, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
        FileType::RegularFile => Ok(fd.into()),
        FileType::Directory => Err(io::Error::other(format!("file {:?} is a directory", path.display().to_string()))),
        _ => Err(io::Error::other(format!("file {:?} is not a regular file", path.display().to_string()))),
    }
}

/// What the type of a file's content is guessed from, as in Go's library.
fn head(file: &std::fs::File, offset: u64) -> Vec<u8> {
    let mut head = vec![0; 512];
    let length = rustix::io::pread(file, &mut head, offset).unwrap_or(0);
    head.truncate(length);
    head
}

/// Plain text or binary, never HTML: a browser must not run what a task wrote.
fn content_type(head: &[u8]) -> &'static str {
    let is_text = head.iter().all(|byte| !matches!(byte, 0..=8 | 11 | 14..=26 | 28..=31));
    if is_text { "text/plain; charset=utf-8" } else { "application/octet-stream" }
}

/// Whether Go's library takes a text for HTML, which Nomad then sends as text of no charset.
fn is_html(head: &[u8]) -> bool {
    const TAGS: &str = "!doctype html,html,head,script,iframe,h1,div,font,table,a,style,title,b,body,br,p,!--";
    let Some(head) = head.trim_ascii_start().strip_prefix(b"<") else { return false };
    TAGS.split(',').any(|tag| {
        let begins = head.get(..tag.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(tag.as_bytes()));
        begins && matches!(head.get(tag.len()), Some(b' ' | b'>'))
    })
}

pub(super) async fn cat(call: Call) -> Result<Answer, Refusal> {
    content(call, 0, u64::MAX).await
}

pub(super) async fn read_at(call: Call) -> Result<Answer, Refusal> {
    named(&call)?;
    let given = call.query.get("offset").unwrap_or_default();
    let offset = given.parse::<i64>().map_err(|e| Refusal::bad(format!("error parsing offset: {e}")))?;
    let limit = call.number::<i64>("limit")?.unwrap_or(0);
    // As in Nomad no limit, or one of 0 or less, means all of it.
    let limit = u64::try_from(limit).ok().filter(|limit| *limit > 0).unwrap_or(u64::MAX);
    content(call, u64::try_from(offset).unwrap_or(0), limit).await
}

async fn content(call: Call, offset: u64, limit: u64) -> Result<Answer, Refusal> {
    let named = named(&call)?;
    let (dir, path) = (dir(&call)?, path(named)?);
    let opened = crate::sys::task::spawn_blocking(move || {
        let file = regular(&dir, &path).map_err(|e| cannot("stat", &dir, &path, &e))?;
        let head = head(&file, offset);
        Ok::<_, Refusal>((if is_html(&head) { "text/plain" } else { content_type(&head) }, file))
    });
    let (kind, file) = opened.await.map_err(|e| Refusal::failed(e.to_string()))??;
    let body = streamed(move |out| send(file, offset, limit, out));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-type", kind),
        ("x-content-type-options", "nosniff"),
        ("x-xss-protection", "1; mode=block"),
        ("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(Answer::Raw(response))
}

async fn send(mut file: std::fs::File, offset: u64, mut left: u64, out: Out) {
    if let Err(e) = file.seek(SeekFrom::Start(offset)) {
        return out.fail(e).await;
    }
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        match read(file, most).await {
            Ok((_, data)) if data.is_empty() => return,
            Ok((same, data)) => {
                (file, left) = (same, left - data.len() as u64);
                if out.send(data).await.is_err() {
                    return;
                }
            }
            Err(e) => return out.fail(e).await,
        }
    }
}

/// The next bytes; reading may wait for a disk.
pub(super) async fn read(mut file: std::fs::File, most: usize) -> io::Result<(std::fs::File, Vec<u8>)> {
    let reading = crate::sys::task::spawn_blocking(move || {
        let mut data = vec![0; most];
        let length = file.read(&mut data)?;
        data.truncate(length);
        Ok((file, data))
    });
    reading.await.map_err(io::Error::other)?
}

/// The position given by `origin` and `offset`, relative to the file's size.
pub(super) fn origin(call: &Call) -> Result<(bool, u64), Refusal> {
    let from_end = match call.query.text("origin").unwrap_or("start") {
        "start" => false,
        "end" => true,
        _ => return Err(Refusal::bad("origin must be start or end")),
    };
    let offset = match call.query.text("offset") {
        None => 0,
        Some(text) => text.parse::<i64>().map_err(|e| Refusal::bad(format!("error parsing offset: {e}")))?,
    };
    Ok((from_end, u64::try_from(offset).unwrap_or(0)))
}

/// A file that is followed.
struct Growing {
    dir: PathBuf,
    path: PathBuf,
    file: Option<Arc<std::fs::File>>,
    at: u64,
    follow: bool,
}

/// The result of one read.
enum Look {
    Data(Vec<u8>),
    /// No more data for now.
    End,
    /// The name refers to another file or to none, or the file was truncated.
    Became(FileEvent, Option<std::fs::File>),
}

/// Reads on; at the end of a followed file, checks what its name refers to now. May block on the disk.
fn look(file: &std::fs::File, at: u64, follow: Option<(&Path, &Path)>) -> io::Result<Look> {
    let mut data = vec![0; CHUNK];
    let length = rustix::io::pread(file, &mut data, at)?;
    if length > 0 {
        data.truncate(length);
        return Ok(Look::Data(data));
    }
    let Some((dir, path)) = follow else { return Ok(Look::End) };
    let Ok(now) = regular(dir, path) else { return Ok(Look::Became(FileEvent::Deleted, None)) };
    let (old, new) = (rustix::fs::fstat(file.as_fd())?, rustix::fs::fstat(&now)?);
    let other = (old.st_dev, old.st_ino) != (new.st_dev, new.st_ino);
    let is_cut = other || (new.st_size as u64) < at;
    Ok(if is_cut { Look::Became(FileEvent::Truncated, Some(now)) } else { Look::End })
}

impl Source for Growing {
    async fn next(&mut self) -> io::Result<Option<Piece>> {
        loop {
            let Some(file) = self.file.clone() else { return Ok(None) };
            let (at, follow) = (self.at, self.follow);
            let (dir, path) = (self.dir.clone(), self.path.clone());
            let looking = crate::sys::task::spawn_blocking(move || look(&file, at, follow.then_some((&dir, &path))));
            let name = || self.path.display().to_string();
            match looking.await.map_err(io::Error::other)?? {
                Look::Data(data) => {
                    self.at += data.len() as u64;
                    return Ok(Some(Piece { file: name(), offset: at, data, event: None }));
                }
                Look::End if !self.follow => return Ok(None),
                Look::End => tokio::time::sleep(LOOK_EVERY).await,
                Look::Became(event, now) => {
                    (self.at, self.file) = (0, now.map(Arc::new));
                    return Ok(Some(Piece { file: name(), offset: at, data: Vec::new(), event: Some(event) }));
                }
            }
        }
    }
}

pub(super) async fn stream(call: Call) -> Result<Answer, Refusal> {
    let named = named(&call)?;
    let (from_end, offset) = origin(&call)?;
    let follow = call.query.switch("follow").map_err(|_| Refusal::bad("follow must be true or false"))?.unwrap_or(true);
    let (dir, path) = (dir(&call)?, path(named)?);
    let opened = crate::sys::task::spawn_blocking(move || {
        let file = regular(&dir, &path).map_err(|e| Refusal::bad(why("stat", &dir, &path, &e)))?;
        let size = file.metadata().map_err(|e| cannot("stat", &dir, &path, &e))?.len();
        let at = if from_end { size.saturating_sub(offset) } else { offset.min(size) };
        Ok::<_, Refusal>(Growing { dir, path, file: Some(Arc::new(file)), at, follow })
    });
    let growing = opened.await.map_err(|e| Refusal::failed(e.to_string()))??;
    Ok(framed(growing, std::future::pending(), call.api.process.clone()))
}

/// An answer of frames. The future `beside` is cancelled when the answer ends, and ends the answer when it completes. At the end of
/// this process the last frame says so.
pub(super) fn framed<S: Source + Send + 'static>(
    source: S,
    beside: impl Future<Output = ()> + Send + 'static,
    process: Process,
) -> Answer
where
    Framer<S>: Frames,
{
    let body = streamed(move |out| async move {
        let mut framer = Framer::new(source);
        let framing = async {
            while let Some(bytes) = framer.frame().await {
                match bytes {
                    Ok(bytes) => {
                        if out.send(bytes).await.is_err() {
                            return;
                        }
                    }
                    Err(e) => return out.fail(e).await,
                }
            }
        };
        tokio::select! {
            () = framing => {}
            () = beside => {}
            () = process.ends() => {
                // The client may have gone.
                let _ = out.send(json!({"FileEvent": ENDING}).to_string()).await;
            }
        }
    });
    raw("application/json", body)
}

pub(super) fn raw(kind: &'static str, body: Body) -> Answer {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    Answer::Raw(response)
}

/// The frames of a source as futures that may move between threads.
pub(super) trait Frames: Send {
    /// The next frame as JSON; `None` at the end.
    fn frame(&mut self) -> impl Future<Output = Option<io::Result<Vec<u8>>>> + Send;
}

macro_rules! frames {
    ($($source:ty),*) => {
        $(impl Frames for Framer<$source> {
            async fn frame(&mut self) -> Option<io::Result<Vec<u8>>> {
                self.next().await.transpose().map(|frame| frame.map(|frame| frame.to_json()))
            }
        })*
    };
}

frames!(Growing, crate::logs::framer::Followed);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_written_as_go_writes_them() {
        let dir = tempfile::tempdir().unwrap();
        let of = |path: &Path| mode(&rustix::fs::lstat(path).unwrap());
        let file = dir.path().join("f");
        std::fs::write(&file, "x").unwrap();
        rustix::fs::chmod(&file, Mode::from_raw_mode(0o640)).unwrap();
        assert_eq!(of(&file), "-rw-r-----");
        rustix::fs::chmod(&file, Mode::from_raw_mode(0o4755)).unwrap();
        assert_eq!(of(&file), "urwxr-xr-x");
        rustix::fs::chmod(dir.path(), Mode::from_raw_mode(0o1777)).unwrap();
        assert_eq!(of(dir.path()), "dtrwxrwxrwx");
        let link = dir.path().join("l");
        std::os::unix::fs::symlink("f", &link).unwrap();
        assert_eq!(of(&link), "Lrwxrwxrwx");
    }

    #[test]
    fn files_of_executors_are_not_there() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("t/local")).unwrap();
        std::fs::create_dir_all(dir.path().join("odd-executor.out")).unwrap();
        for end in ["out", "json", "task", "launch", "tmp", "new", "txt"] {
            std::fs::write(dir.path().join(format!("t-executor.{end}")), "x").unwrap();
        }
        std::fs::write(dir.path().join("t/local/t-executor.out"), "x").unwrap();
        let names = |path: &str| -> Vec<String> {
            let listed = entries(dir.path(), Path::new(path)).unwrap();
            listed.as_array().unwrap().iter().map(|entry| entry["Name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names("."), ["odd-executor.out", "t", "t-executor.txt"]);
        assert_eq!(names("t/local"), ["t-executor.out"]);
        let read = |path: &str| regular(dir.path(), Path::new(path)).map_err(|e| e.raw_os_error());
        for end in ["task", "launch"] {
            assert_eq!(read(&format!("t-executor.{end}")).unwrap_err(), Some(libc::ENOENT));
        }
        assert!(read("t/local/t-executor.out").is_ok() && read("t-executor.txt").is_ok());
    }

    #[test]
    fn what_a_task_planted_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("t/secrets")).unwrap();
        std::fs::write(dir.path().join("t/secrets/token"), "x").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("t/passwd")).unwrap();
        std::os::unix::fs::symlink("secrets", dir.path().join("t/open")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, dir.path().join("t/fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .unwrap();
        for planted in ["t/passwd", "t/open/token", "t/fifo", "../x", "t"] {
            assert!(regular(dir.path(), Path::new(planted)).is_err(), "{planted}");
        }
        assert!(regular(dir.path(), Path::new("t/secrets/token")).is_ok(), "refused by name, see path()");
    }
}
