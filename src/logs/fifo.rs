//! Named pipes between a task's executor and its logmon.
//!
//! The two ends are two types, and neither of them blocks: opening for reading succeeds before there is a writer, and the first
//! read waits for one. The task may be able to write to the directory, so a name is resolved beneath the opened directory
//! without following symlinks, checked, and then that very inode is opened.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::dir;
use crate::sys::mutant;
use crate::sys::path::Root;

/// How long [`open_writer`] waits for a notification of a reader before it tries again. For a reader that blocks in `open(2)`,
/// the notification comes only after its open has completed.
const READER_CHECK: Duration = Duration::from_millis(100);

/// What went wrong with a FIFO.
#[derive(Debug, thiserror::Error)]
pub enum FifoError {
    /// [`create_and_read`] found an existing file of this name.
    #[error("{0}: file exists")]
    Exists(PathBuf),
    /// The name belongs to something that is not a FIFO.
    #[error("{0}: not a FIFO")]
    NotAFifo(PathBuf),
    /// Another user made it, who could read what is written, or write what is read.
    #[error("{path} belongs to user {owner}, and is used only when it belongs to this user or root: remove it")]
    Foreign {
        /// The FIFO.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// A system call failed.
    #[error("{path}: cannot {what}")]
    Io {
        /// The FIFO.
        path: PathBuf,
        /// The action that failed.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl FifoError {
    fn io(path: &Path, what: &'static str) -> impl Fn(io::Error) -> FifoError {
        move |source| FifoError::Io { path: path.to_owned(), what, source }
    }
}

/// The read end.
#[derive(Debug)]
pub struct Reader(AsyncFd<Arc<OwnedFd>>);

/// The write end.
#[derive(Debug)]
pub struct Writer(AsyncFd<Arc<OwnedFd>>);

/// Creates the FIFO (mode 0600) and opens it for reading.
///
/// # Errors
/// [`FifoError::Exists`] when the name is taken, by anything; else what the system says.
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub fn create_and_read(path: &Path) -> Result<Reader, FifoError> {
    let (root, name) = dir::open_parent(path).map_err(FifoError::io(path, "open the directory"))?;
    match rustix::fs::mknodat(&root, &name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
        Ok(()) => open_reader_in(&root, &name, path),
        Err(Errno::EXIST) => Err(FifoError::Exists(path.to_owned())),
        Err(e) => Err(FifoError::io(path, "create")(e.into())),
    }
}

/// Opens an existing FIFO for reading.
///
/// Also reads what earlier writers left in it while another descriptor kept it alive.
///
/// # Errors
/// [`FifoError::NotAFifo`] for anything else, a symlink to a FIFO included; else what the system says.
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub fn open_reader(path: &Path) -> Result<Reader, FifoError> {
    let (root, name) = dir::open_parent(path).map_err(FifoError::io(path, "open the directory"))?;
    open_reader_in(&root, &name, path)
}

fn open_reader_in(root: &Root, name: &OsStr, path: &Path) -> Result<Reader, FifoError> {
    let node = look_up(root, name, path)?;
    let open = || {
        let fd = reopen(&node, OFlags::RDONLY | OFlags::NONBLOCK)?;
        crate::sys::watch::register(Arc::new(fd), Interest::READABLE)
    };
    open().map(Reader).map_err(FifoError::io(path, "open for reading"))
}

/// Opens an existing FIFO for writing, as soon as a process has it open for reading. Dropping the future gives up.
///
/// # Errors
/// [`FifoError::NotAFifo`] for anything else, a symlink to a FIFO included; else what the system says.
///
/// # Panics
/// Outside a tokio runtime with I/O and time enabled.
pub async fn open_writer(path: &Path) -> Result<Writer, FifoError> {
    let (root, name) = dir::open_parent(path).map_err(FifoError::io(path, "open the directory"))?;
    let node = look_up(&root, &name, path)?;
    let failed = FifoError::io(path, "open for writing");
    let mut opens: Option<OpenWatch> = None;
    loop {
        match reopen(&node, OFlags::WRONLY | OFlags::NONBLOCK) {
            Ok(fd) => {
                let fd = crate::sys::watch::register(Arc::new(fd), Interest::WRITABLE).map_err(failed)?;
                return Ok(Writer(fd));
            }
            // No process has it open for reading.
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => {}
            Err(e) => return Err(failed(e)),
        }
        match &opens {
            // Watch first, then try again, so that a reader that came in between is not missed.
            None => opens = Some(OpenWatch::new(&node)),
            Some(opens) => {
                let _ = tokio::time::timeout(READER_CHECK, opens.next()).await;
            }
        }
    }
}

/// Removes the name, but only if it is a FIFO.
///
/// # Errors
/// [`FifoError::NotAFifo`] for anything else; else what the system says.
pub fn remove(path: &Path) -> Result<(), FifoError> {
    let (root, name) = dir::open_parent(path).map_err(FifoError::io(path, "open the directory"))?;
    look_up(&root, &name, path)?;
    rustix::fs::unlinkat(&root, &name, AtFlags::empty()).map_err(|e| FifoError::io(path, "remove")(e.into()))
}

/// Finds the FIFO without opening it.
fn look_up(root: &Root, name: &OsStr, path: &Path) -> Result<OwnedFd, FifoError> {
    if mutant::on("b17-fifo") {
        let node = rustix::fs::openat(root, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        return node.map_err(|e| FifoError::io(path, "find")(e.into()));
    }
    let node = match root.open_beneath(Path::new(name), OFlags::PATH, Mode::empty()) {
        Ok(node) => node,
        Err(e) if e.raw_os_error() == Some(libc::ELOOP) => return Err(FifoError::NotAFifo(path.to_owned())),
        Err(e) => return Err(FifoError::io(path, "find")(e)),
    };
    let stat = rustix::fs::fstat(&node).map_err(|e| FifoError::io(path, "examine")(e.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Fifo {
        return Err(FifoError::NotAFifo(path.to_owned()));
    }
    if is_foreign(&stat) {
        return Err(FifoError::Foreign { path: path.to_owned(), owner: stat.st_uid });
    }
    Ok(node)
}

/// Whether a FIFO was made by neither this user nor root.
pub(super) fn is_foreign(stat: &rustix::fs::Stat) -> bool {
    stat.st_uid != 0 && stat.st_uid != rustix::process::geteuid().as_raw() && !mutant::on("d76-fifo")
}

/// Opens the inode of a descriptor again, with other access.
pub(super) fn reopen(node: &OwnedFd, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(proc_path(node), flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?)
}

/// A path to the inode of a descriptor.
pub(super) fn proc_path(node: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", node.as_raw_fd())
}

/// Notifies when a process has opened an inode.
struct OpenWatch(Option<AsyncFd<Arc<OwnedFd>>>);

impl OpenWatch {
    /// If no inotify instance is available, it never notifies.
    fn new(node: &OwnedFd) -> OpenWatch {
        let watch = || {
            let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            inotify::add_watch(&fd, proc_path(node), WatchFlags::OPEN)?;
            crate::sys::watch::register(Arc::new(fd), Interest::READABLE)
        };
        OpenWatch(watch().ok())
    }

    async fn next(&self) {
        let Some(watch) = &self.0 else { return std::future::pending().await };
        let mut events = [0; 512];
        let read = |fd: &Arc<OwnedFd>| Ok(rustix::io::read(fd, &mut events)?);
        let _ = watch.async_io(Interest::READABLE, read).await;
    }
}

impl Reader {
    /// Waits for data and reads some; 0 when the last writer has closed and everything is read. Before there is a writer it waits
    /// for one.
    ///
    /// # Errors
    /// What `read(2)` says.
    pub async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.async_io(Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut *buffer)?)).await
    }

    /// The descriptor, non-blocking and no longer registered with the reactor.
    #[must_use]
    pub fn into_fd(self) -> Arc<OwnedFd> {
        self.0.into_inner()
    }
}

impl Writer {
    /// Writes all of `data`, waiting while the pipe is full.
    ///
    /// # Errors
    /// EPIPE when the last reader has gone (the process must ignore SIGPIPE, as Rust programs do).
    pub async fn write_all(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let n = self.write(data).await?;
            data = &data[n..];
        }
        Ok(())
    }

    /// Writes as much of `data` as the pipe takes, waiting while it is full, and returns the number of bytes.
    ///
    /// # Errors
    /// As [`write_all`](Self::write_all).
    pub async fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.async_io(Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, data)?)).await
    }

    /// How many bytes in the pipe have not been read yet.
    ///
    /// # Errors
    /// What `FIONREAD` says.
    pub fn unread(&self) -> io::Result<u64> {
        Ok(rustix::io::ioctl_fionread(self.0.get_ref())?)
    }
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

impl AsFd for Writer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};

    use super::*;

    async fn read_to_end(mut reader: Reader) -> Vec<u8> {
        let (mut all, mut buffer) = (Vec::new(), [0; 100]);
        loop {
            match reader.read(&mut buffer).await.unwrap() {
                0 => return all,
                n => all.extend_from_slice(&buffer[..n]),
            }
        }
    }

    #[tokio::test]
    async fn d1_fifo() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        let reader = create_and_read(&path).unwrap();
        let meta = std::fs::symlink_metadata(&path).unwrap();
        assert!(meta.file_type().is_fifo());
        assert_eq!(meta.permissions().mode() & 0o7777, 0o600);
        let read = crate::sys::task::spawn(read_to_end(reader));
        let mut writer = open_writer(&path).await.unwrap();
        let pieces = ["abc\n", "", "def\n", "nomad", "\n"];
        for piece in pieces {
            writer.write_all(piece.as_bytes()).await.unwrap();
        }
        drop(writer);
        assert_eq!(read.await.unwrap(), pieces.concat().into_bytes());
        remove(&path).unwrap();
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn d1_write_close() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        let mut reader = create_and_read(&path).unwrap();
        let mut writer = open_writer(&path).await.unwrap();
        let data = vec![7; 300_000];
        let (written, read) = tokio::join!(writer.write_all(&data), async {
            let (mut total, mut buffer) = (0, [0; 4096]);
            while total < data.len() {
                total += reader.read(&mut buffer).await.unwrap();
            }
            total
        });
        written.unwrap();
        assert_eq!(read, data.len());
        drop(reader);
        assert_eq!(writer.write_all(b"x").await.unwrap_err().raw_os_error(), Some(libc::EPIPE));
    }

    #[tokio::test]
    async fn d1_creating_one_that_exists_is_file_exists() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        drop(create_and_read(&path).unwrap());
        let error = create_and_read(&path).unwrap_err();
        assert!(matches!(error, FifoError::Exists(_)));
        assert!(error.to_string().ends_with("file exists"));
        open_reader(&path).unwrap();
    }

    #[tokio::test]
    async fn d1_a_writer_waits_for_a_reader() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        drop(create_and_read(&path).unwrap());
        let writer = open_writer(&path);
        tokio::pin!(writer);
        let early = tokio::time::timeout(Duration::from_millis(20), &mut writer).await;
        assert!(early.is_err(), "nobody reads yet");
        let reader = open_reader(&path).unwrap();
        let mut writer = tokio::time::timeout(Duration::from_secs(5), writer).await.unwrap().unwrap();
        writer.write_all(b"x").await.unwrap();
        drop(writer);
        assert_eq!(read_to_end(reader).await, b"x");
    }

    #[tokio::test]
    async fn d1_a_reader_that_blocks_in_open_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        drop(create_and_read(&path).unwrap());
        let blocking = std::thread::spawn({
            let path = path.clone();
            move || std::fs::read_to_string(path).unwrap()
        });
        let mut writer = tokio::time::timeout(Duration::from_secs(5), open_writer(&path)).await.unwrap().unwrap();
        writer.write_all(b"hello").await.unwrap();
        drop(writer);
        assert_eq!(blocking.join().unwrap(), "hello");
    }

    #[tokio::test]
    async fn d1_nothing_but_a_fifo_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        drop(create_and_read(&path("fifo")).unwrap());
        std::fs::write(path("file"), "secret").unwrap();
        std::fs::create_dir(path("dir")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        for (link, to) in [("to-file", "file"), ("to-fifo", "fifo"), ("dangling", "nothing"), ("loop", "loop")] {
            std::os::unix::fs::symlink(to, path(link)).unwrap();
        }
        for name in ["file", "dir", "socket", "to-file", "to-fifo", "dangling", "loop"] {
            let path = path(name);
            assert!(matches!(open_reader(&path), Err(FifoError::NotAFifo(_))), "{name}");
            assert!(matches!(open_writer(&path).await, Err(FifoError::NotAFifo(_))), "{name}");
            assert!(matches!(remove(&path), Err(FifoError::NotAFifo(_))), "{name}");
            assert!(matches!(create_and_read(&path), Err(FifoError::Exists(_))), "{name}");
        }
        assert!(!path("nothing").exists());
    }
}
