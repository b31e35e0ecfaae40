//! After a sync that failed the kernel takes the pages that it could not write for written (fsync(2), and the same of the
//! drive's cache): they are read as if they were on the disk, and are on no disk. So all that is read then is written again
//! before anything is built on it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::StorageBackend;

/// Bytes that are written again at once.
const PIECE: usize = 64 << 10;

/// That a sync has failed since all was written again.
pub(super) type Doubt = Arc<AtomicBool>;

/// A backend that remembers that a sync has failed.
#[derive(Debug)]
pub(super) struct Doubted<B> {
    inner: B,
    doubt: Doubt,
}

impl<B: StorageBackend> Doubted<B> {
    /// Takes a backend that was just opened; what is doubted is written again first.
    pub(super) fn new(inner: B, doubt: &Doubt) -> io::Result<Doubted<B>> {
        if doubt.load(Ordering::Relaxed) {
            write_again(&inner)?;
            doubt.store(false, Ordering::Relaxed);
        }
        Ok(Doubted { inner, doubt: Arc::clone(doubt) })
    }
}

fn write_again(backend: &dyn StorageBackend) -> io::Result<()> {
    let length = backend.len()?;
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < length {
        let part = usize::try_from(length - at).map_or(PIECE, |left| left.min(PIECE));
        backend.read(at, &mut piece[..part])?;
        backend.write(at, &piece[..part])?;
        at += part as u64;
    }
    backend.sync_data()
}

impl<B: StorageBackend> StorageBackend for Doubted<B> {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.inner.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data().inspect_err(|_| self.doubt.store(true, Ordering::Relaxed))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }
}
