//! Anonymous memory that goes back to the kernel when it is dropped.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Zeroed private pages outside the heap: an allocator keeps large freed blocks for later, the kernel does not.
/// Pages that were never touched cost nothing.
#[derive(Debug)]
pub struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and is reached through it alone, as a `Box<[u8]>` would be.
unsafe impl Send for Pages {}

impl Pages {
    /// Maps `len` bytes, more than none.
    ///
    /// # Errors
    /// ENOMEM when there is no room, EINVAL for no bytes.
    pub fn map(len: usize) -> io::Result<Pages> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: without MAP_FIXED the kernel picks an address range that nothing else uses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Pages { start, len })
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is the start of `len` mapped, zero-initialised bytes that live as long as this value.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` says that no other reference into the mapping lives.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `map` got, and no reference into it outlives this value.
        let result = unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert_eq!(result, 0, "munmap of an own mapping cannot fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zeroed_and_writable() {
        let mut pages = Pages::map(256 * 1024).unwrap();
        assert!(pages.iter().all(|&b| b == 0));
        pages[256 * 1024 - 1] = 7;
        assert_eq!(pages[256 * 1024 - 1], 7);
        assert_eq!(Pages::map(0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
