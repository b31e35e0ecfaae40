//! The executable of this process, opened once.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{Access, Advice, AtFlags, CWD, MemfdFlags, Mode, OFlags, fadvise};

pub(super) const PATH: &str = "/proc/self/exe";

static OWN: OnceLock<OwnedFd> = OnceLock::new();

/// A descriptor of the file that this process was started from.
///
/// The first call opens it (roles do that before anything else), so that a later replacement or removal of the file has no effect:
/// every role that this process starts runs exactly this program.
///
/// # Errors
/// Whatever `open(2)` of `/proc/self/exe` says: most likely that `/proc` is not mounted.
pub fn own() -> io::Result<BorrowedFd<'static>> {
    if let Some(fd) = OWN.get() {
        return Ok(fd.as_fd());
    }
    let fd = rustix::fs::openat(CWD, PATH, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    Ok(OWN.get_or_init(|| fd).as_fd())
}

/// The path of this process's executable, to start it again.
///
/// # Errors
/// Those of `readlink(2)`; `NotFound` when it was removed.
pub fn path() -> io::Result<PathBuf> {
    let path = std::fs::read_link(PATH)?;
    if path.exists() { Ok(path) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Whether this process may write to its own executable, which root always may.
#[must_use]
pub fn is_writable() -> bool {
    !matches!(
        rustix::fs::accessat(CWD, PATH, Access::WRITE_OK, AtFlags::EACCESS),
        Err(rustix::io::Errno::ACCESS | rustix::io::Errno::ROFS | rustix::io::Errno::PERM)
    )
}

/// How long pages that were read ahead are assumed to stay in the page cache.
const FRESH: Duration = Duration::from_mins(1);
/// The most that the kernel reads ahead per request (`read_ahead_kb`, 128 by default).
const STEP: u64 = 128 << 10;

/// Makes the kernel read this whole program, charged to this process, unless that was done in the last minute: a page of a file is
/// charged to the cgroup of the first process that needs it, and that must not be a child of ours in a task's cgroup.
///
/// # Errors
/// What opening or reading says: most likely that `/proc` is not mounted.
pub fn read_ahead() -> io::Result<()> {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last = super::lock::lock(&LAST);
    if last.is_some_and(|last| last.elapsed() < FRESH) {
        return Ok(());
    }
    let file = File::open(PATH)?;
    let end = mapped_end(&std::fs::read_to_string("/proc/self/maps")?, file.metadata()?.ino());
    for start in (0..end).step_by(STEP as usize) {
        fadvise(&file, start, NonZeroU64::new(STEP), Advice::WillNeed)?;
    }
    *last = Some(Instant::now());
    Ok(())
}

/// The end of the part of the file with this inode that is mapped; the rest is only read by debuggers. See `proc_pid_maps(5)`.
fn mapped_end(maps: &str, inode: u64) -> u64 {
    let end = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let (offset, found) = (number(fields.nth(1)?)?, fields.nth(1)?);
        let length = number(to)?.checked_sub(number(from)?)?;
        (found.parse() == Ok(inode)).then_some(offset + length)
    };
    maps.lines().filter_map(end).max().unwrap_or(0)
}

/// A sealed, immutable copy of the executable in memory. See `memfd_create(2)`.
///
/// # Errors
/// Those of opening and reading the file and of sealing; EACCES where `vm.memfd_noexec` forbids programs in memory.
pub fn sealed_copy() -> io::Result<OwnedFd> {
    let mut file = File::open(PATH)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // MFD_EXEC makes it executable, on kernels that distinguish that (6.3).
    let copy = rustix::fs::memfd_create(env!("CARGO_PKG_NAME"), flags | MemfdFlags::EXEC)
        .or_else(|_| rustix::fs::memfd_create(env!("CARGO_PKG_NAME"), flags))?;
    let mut copy = File::from(copy);
    io::copy(&mut file, &mut copy)?;
    super::memfd::seal(&copy)?;
    Ok(copy.into())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn what_is_mapped_of_a_file_ends_with_its_last_segment() {
        let maps = "\
            7f00a000-7f00c000 r--p 00000000 fe:00 42    /opt/a program\n\
            7f00c000-7f00f000 r-xp 00002000 fe:00 42    /opt/a program\n\
            7f00f000-7f010000 rw-p 00000000 00:00 0 \n\
            7f010000-7f090000 r--p 00000000 fe:00 43    /lib/other\n\
            7ffc0000-7ffd0000 rw-p 00000000 00:00 0     [stack]\n";
        assert_eq!([mapped_end(maps, 42), mapped_end(maps, 43), mapped_end(maps, 7)], [0x5000, 0x8_0000, 0]);
        read_ahead().unwrap();
        let own = std::fs::metadata(PATH).unwrap();
        let end = mapped_end(&std::fs::read_to_string("/proc/self/maps").unwrap(), own.ino());
        assert!(end > 4096 && end < own.len() + 4096, "{end} of {}", own.len());
    }

    /// A1 of the attack list.
    #[test]
    fn a01_a_sealed_copy_is_the_program_and_cannot_be_changed() {
        let copy = sealed_copy().unwrap();
        let mut file = File::from(copy.try_clone().unwrap());
        io::Seek::rewind(&mut file).unwrap();
        let (mut text, mut own) = (Vec::new(), Vec::new());
        file.read_to_end(&mut text).unwrap();
        File::open(PATH).unwrap().read_to_end(&mut own).unwrap();
        assert!(text == own);
        assert!(file.write_all(b"x").is_err());
        assert!(file.set_len(0).is_err());
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&copy));
        let again = std::fs::File::options().write(true).open(path);
        assert!(again.is_err() || again.unwrap().write_all(b"x").is_err());
    }
}
