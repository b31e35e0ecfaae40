//! Files that a job file or its operator names: regular, of bounded size, and never waited for.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};

use super::budget::LARGEST_FILE;

/// Everything that is in a file that was found by `O_PATH`.
///
/// It is looked at before it is opened, by one descriptor: to open a FIFO lets whoever writes to it go on, and to open a
/// device does what the device does then, be it to start the machine's watchdog or to wind a tape back.
pub(super) fn read(found: &OwnedFd) -> io::Result<Vec<u8>> {
    read_of(found, false)
}

/// The same of a file that the operator names: also of a pipe, which is what a shell makes of `<(command)`, and then for as
/// long as somebody writes.
pub(super) fn read_own(path: &Path) -> io::Result<Vec<u8>> {
    read_of(&rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?, true)
}

fn read_of(found: &OwnedFd, pipes: bool) -> io::Result<Vec<u8>> {
    let stat = rustix::fs::fstat(found)?;
    let too_large = || io::Error::other(format!("it has more than {} MiB", LARGEST_FILE >> 20));
    let kind = FileType::from_raw_mode(stat.st_mode);
    match kind {
        FileType::RegularFile => {}
        FileType::Fifo if pipes => {}
        FileType::Directory => return Err(io::ErrorKind::IsADirectory.into()),
        _ => return Err(io::Error::other("it is not a regular file")),
    }
    // The same file, whatever has its name by now.
    let again = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(again, flags, Mode::empty())?;
    if kind == FileType::Fifo {
        rustix::fs::fcntl_setfl(&fd, OFlags::empty())?;
    }
    if u64::try_from(stat.st_size).is_ok_and(|size| size > LARGEST_FILE as u64) {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    // Those of /proc have no size.
    File::from(fd).take(LARGEST_FILE as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > LARGEST_FILE { Err(too_large()) } else { Ok(bytes) }
}
