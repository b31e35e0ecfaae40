//! Files that a job file or its operator names: regular, of bounded size, and never waited for.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};

use super::budget::LARGEST_FILE;

/// Everything that is in a file, which was opened without waiting for a writer of a FIFO or for a device, and is looked at
/// only now, so that nobody can put another file in its place in between.
pub(super) fn read(file: OwnedFd) -> io::Result<Vec<u8>> {
    read_of(file, false)
}

/// The same of a file that the operator names: also of a pipe, which is what a shell makes of `<(command)`, and then for as
/// long as somebody writes.
pub(super) fn read_own(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    read_of(rustix::fs::open(path, flags, Mode::empty())?, true)
}

fn read_of(fd: OwnedFd, pipes: bool) -> io::Result<Vec<u8>> {
    let stat = rustix::fs::fstat(&fd)?;
    let too_large = || io::Error::other(format!("it has more than {} MiB", LARGEST_FILE >> 20));
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Fifo if pipes => rustix::fs::fcntl_setfl(&fd, OFlags::empty())?,
        FileType::Directory => return Err(io::ErrorKind::IsADirectory.into()),
        _ => return Err(io::Error::other("it is not a regular file")),
    }
    if u64::try_from(stat.st_size).is_ok_and(|size| size > LARGEST_FILE as u64) {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    // Those of /proc have no size.
    File::from(fd).take(LARGEST_FILE as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > LARGEST_FILE { Err(too_large()) } else { Ok(bytes) }
}
