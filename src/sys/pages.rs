//! Memory outside the heap: anonymous memory, which is returned to the kernel when it is dropped, or a file's, which outlives the
//! process.

use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Zeroed private pages outside the heap: an allocator would keep large freed blocks, munmap returns them to the kernel. Pages that
/// were never touched use no memory.
#[derive(Debug)]
pub struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and is reached through it alone, as a `Box<[u8]>` would be.
unsafe impl Send for Pages {}

impl Pages {
    /// Maps `len` bytes, at least one.
    ///
    /// # Errors
    /// ENOMEM when there is not enough memory, EINVAL for 0 bytes.
    pub fn map(len: usize) -> io::Result<Pages> {
        Pages::map_with(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    /// Maps `len` bytes of a file from `offset` on, a multiple of the page size; a store is in the file at once, even if this
    /// process is killed right after it. No other process may map or truncate the file meanwhile: access beyond its new end kills
    /// this process.
    ///
    /// # Errors
    /// What `mmap(2)` says.
    pub fn map_file(file: impl AsFd, offset: u64, len: usize) -> io::Result<Pages> {
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        Pages::map_with(len, libc::MAP_SHARED, file.as_fd().as_raw_fd(), offset)
    }

    fn map_with(len: usize, flags: libc::c_int, fd: libc::c_int, offset: libc::off_t) -> io::Result<Pages> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: without MAP_FIXED the kernel picks an address range that nothing else uses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset) };
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

/// Numbers in a file's memory. Stores reach the file in the order in which they are made, no matter when the process is killed.
#[derive(Debug)]
pub struct Words(Pages);

// SAFETY: the mapping is reached as atomics only, which threads may share.
unsafe impl Sync for Words {}

impl Words {
    /// Maps the first `count` numbers of a file that is long enough for them.
    ///
    /// # Errors
    /// What `mmap(2)` says.
    pub fn map_file(file: impl AsFd, count: usize) -> io::Result<Words> {
        Pages::map_file(file, 0, count * size_of::<AtomicU64>()).map(Words)
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        let count = self.0.len / size_of::<AtomicU64>();
        // SAFETY: mappings begin at a page, so they are aligned; any bits are a number; and nothing else refers to the
        // mapping but atomics, as `Pages` is not given away.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr().cast(), count) }
    }
}

/// Releases memory that was only needed during startup: free heap, and the mapped pages of this program's code, which are mapped
/// again from the page cache when they are executed. An idle process then only holds pages that it wrote.
///
/// # Errors
/// When `/proc/self/maps` cannot be read. `madvise(2)` is advice: ranges that it refuses stay mapped.
pub fn rest() -> io::Result<()> {
    // SAFETY: takes a number; glibc locks its own heap.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
    for range in own_code(&std::fs::read_to_string("/proc/self/maps")?) {
        // SAFETY: private pages of a file that this process may not write to: all that can be read there again is what the
        // file has.
        unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), libc::MADV_DONTNEED) };
    }
    Ok(())
}

/// The ranges of `/proc/PID/maps` that are a file's code and not writable.
fn own_code(maps: &str) -> impl Iterator<Item = Range<usize>> {
    maps.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (range, "r-xp", _, _, inode) = (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?)
        else {
            return None;
        };
        let (start, end) = range.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        (inode != "0").then_some(address(start)?..address(end)?)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn what_is_stored_in_a_mapped_file_is_in_the_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let words = Words::map_file(&file, 4).unwrap();
        let mut pages = Pages::map_file(&file, 4096, 4096).unwrap();
        words[3].store(7, Ordering::SeqCst);
        pages[4095] = 9;
        let mut found = [0; 8];
        file.read_exact_at(&mut found, 24).unwrap();
        assert_eq!((words.len(), u64::from_ne_bytes(found)), (4, 7));
        file.read_exact_at(&mut found[..1], 8191).unwrap();
        assert_eq!(found[0], 9);
        assert!(Pages::map_file(&file, 1, 4096).is_err());
    }

    #[test]
    fn only_code_is_given_back() {
        let maps = "7f00-7f10 r--p 00000000 08:01 77  /usr/bin/agentbin\n\
                    7f10-7f30 r-xp 00001000 08:01 77  /usr/bin/agentbin\n\
                    7f30-7f40 r--p 00003000 08:01 77  /usr/bin/agentbin\n\
                    7f40-7f50 rw-p 00004000 08:01 77  /usr/bin/agentbin\n\
                    7f60-7f70 r-xp 00000000 00:00 0   [vdso]\n\
                    nonsense";
        let mut found = own_code(maps);
        assert_eq!((found.next(), found.next()), (Some(0x7f10..0x7f30), None));
    }

    #[test]
    fn a_program_goes_on_after_its_rest() {
        rest().unwrap();
        let resident = |maps: &str| {
            let code = maps.split("VmFlags").find(|part| part.contains(" r-xp ") && part.contains("/deps/"))?;
            let line = code.lines().find_map(|line| line.strip_prefix("Rss:"))?;
            line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
        };
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let total: usize =
            own_code(&std::fs::read_to_string("/proc/self/maps").unwrap()).map(|range| range.len()).sum();
        let resident = resident(&smaps).unwrap();
        assert!(total > 0 && resident < total as u64 / 1024, "{resident} KiB of {total} bytes");
    }

    #[test]
    fn pages_are_zeroed_and_writable() {
        let mut pages = Pages::map(256 * 1024).unwrap();
        assert!(pages.iter().all(|&b| b == 0));
        pages[256 * 1024 - 1] = 7;
        assert_eq!(pages[256 * 1024 - 1], 7);
        assert_eq!(Pages::map(0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
