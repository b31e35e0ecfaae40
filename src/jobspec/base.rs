//! The directory from which the files are named that a job file reads.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::sys::mutant;
use crate::sys::path::Root;

/// The job file's directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Base<'a> {
    /// Where relative paths start.
    pub dir: &'a Path,
    /// What does not lie below it, or behind a symbolic link, is not read.
    pub alone: bool,
}

impl Base<'_> {
    /// Opens a file that the job file names.
    pub(super) fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        if !self.alone || mutant::on("d91-function") {
            return Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?);
        }
        let below = path.strip_prefix(self.dir).unwrap_or(path);
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        Root::open(self.dir)?.open_beneath(below, flags, Mode::empty()).map_err(|error| match error.raw_os_error() {
            Some(libc::EXDEV) => io::Error::other(
                "it lies outside of the job file's directory, which --isolation-minimum does not allow",
            ),
            Some(libc::ELOOP) => {
                io::Error::other("it is behind a symbolic link, which --isolation-minimum does not allow")
            }
            _ => error,
        })
    }
}
