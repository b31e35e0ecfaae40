//! Immutable files in memory. See `memfd_create(2)`.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::fs::SealFlags;
use rustix::io::Errno;

/// How often a busy file is tried again, each time after [`PAUSE`]: ten seconds in total, plus the time that the kernel itself
/// waits in each try.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(100);

/// Seals a file's content, its length and its seals. See `F_ADD_SEALS` in `fcntl(2)`.
///
/// The kernel refuses with EBUSY while a page has an extra reference, which it takes for a write in progress; the kernel itself may
/// hold it (when it moves pages to make huge ones), but only briefly. So this may wait for up to ten seconds.
///
/// # Errors
/// Those of `fcntl(2)`; EBUSY where a process has the file mapped for writing, or keeps a page of it in a pipe.
#[expect(clippy::disallowed_methods, reason = "the kernel has no event for what is awaited; there is a deadline")]
pub fn seal(file: impl AsFd) -> io::Result<()> {
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    for _ in 1..TRIES {
        match rustix::fs::fcntl_add_seals(&file, seals) {
            Err(Errno::BUSY) => std::thread::sleep(PAUSE),
            other => return Ok(other?),
        }
    }
    Ok(rustix::fs::fcntl_add_seals(&file, seals)?)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Seek as _, Write as _};
    use std::sync::mpsc;

    use rustix::fs::MemfdFlags;
    use rustix::pipe::{SpliceFlags, splice};

    use super::*;

    #[test]
    fn a_page_in_somebodys_hand_is_waited_for() {
        let fd = rustix::fs::memfd_create("busy", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let mut file = File::from(fd);
        file.write_all(&[b'x'; 4096]).unwrap();
        file.rewind().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        assert_eq!(splice(&file, None, &writer, None, 4096, SpliceFlags::empty()), Ok(4096));
        assert_eq!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE), Err(Errno::BUSY));

        let other = file.try_clone().unwrap();
        let (done, ended) = mpsc::channel();
        std::thread::spawn(move || done.send(seal(other)));
        assert_eq!(ended.recv_timeout(Duration::from_millis(500)).err(), Some(mpsc::RecvTimeoutError::Timeout));
        drop((reader, writer));
        ended.recv().unwrap().unwrap();
        assert_eq!(file.write_all(b"y").unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
}
