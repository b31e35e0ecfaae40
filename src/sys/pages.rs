//! Memory outside the heap: anonymous memory, which is returned to the kernel when it is dropped, or a file's, which outlives the
//! process.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::runtime::Builder;

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

/// Releases memory that was only needed for a while: free heap, and the mapped pages of this program's code and constants, which are
/// mapped again from the page cache when they are used. An idle process then only holds pages that it wrote.
///
/// `madvise(2)` is advice: ranges that it refuses stay mapped.
pub fn rest() {
    // SAFETY: takes a number; glibc locks its own heap.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
    for range in constant() {
        // SAFETY: private pages of this program's file that nobody could ever write to: all that can be read there again is what
        // the file has.
        unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), libc::MADV_DONTNEED) };
    }
}

/// What the event loop of a thread does before it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BeforeWaiting {
    /// It is not one of [`event_loop`].
    Unknown,
    Nothing,
    Rest,
}

thread_local! {
    static BEFORE_WAITING: Cell<BeforeWaiting> = const { Cell::new(BeforeWaiting::Unknown) };
}

/// An event loop for the calling thread, which can [`rest_after`] a time as the last it does before it waits: what of the program its
/// way there needs would be mapped again otherwise, a megabyte and more.
pub(crate) fn event_loop() -> Builder {
    BEFORE_WAITING.set(BeforeWaiting::Nothing);
    let mut builder = Builder::new_current_thread();
    builder.enable_all().on_thread_park(|| {
        if BEFORE_WAITING.get() == BeforeWaiting::Rest {
            BEFORE_WAITING.set(BeforeWaiting::Nothing);
            rest();
        }
    });
    builder
}

/// [Rests](rest) once after this time, and never ends: beside what else is waited for. An [`event_loop`] does so when it has nothing else
/// to do; another runtime, of a program that embeds this library, at once.
pub(crate) async fn rest_after(time: Duration) -> Infallible {
    tokio::time::sleep(time).await;
    if BEFORE_WAITING.get() == BeforeWaiting::Unknown {
        rest();
    } else {
        BEFORE_WAITING.set(BeforeWaiting::Rest);
    }
    std::future::pending().await
}

/// The whole pages of the segments of this program that are not writable, and never were: those that the loader writes to and protects
/// afterwards belong to a writable segment (`elf(5)`).
fn constant() -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    // SAFETY: `note` has the type that is asked for, and only uses the pointer during the call, in this thread.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut ranges).cast()) };
    ranges
}

/// Adds the constant segments of the program itself, whose name is empty, to a vector of ranges.
unsafe extern "C" fn note(object: *mut libc::dl_phdr_info, _: libc::size_t, ranges: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the C library passes a description that is valid during this call.
    let object = unsafe { &*object };
    // SAFETY: it also passes what `constant` gave it, which nobody else uses meanwhile.
    let ranges = unsafe { &mut *ranges.cast::<Vec<Range<usize>>>() };
    // SAFETY: a name is null or a C string.
    if !object.dlpi_name.is_null() && unsafe { *object.dlpi_name } != 0 {
        return 0;
    }
    // SAFETY: so many headers are there, in memory that is never written.
    let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let is_constant = |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0;
    let page = rustix::param::page_size();
    for header in headers.iter().filter(is_constant) {
        let at = |offset: u64| usize::try_from(object.dlpi_addr + offset).unwrap_or_default();
        let (start, end) =
            (at(header.p_vaddr).next_multiple_of(page), at(header.p_vaddr + header.p_memsz) / page * page);
        if start < end {
            ranges.push(start..end);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;
    use std::sync::Mutex;
    use std::sync::atomic::Ordering;
    use std::task::Poll;

    use super::*;

    /// Held while all of the program is mapped and released: another test that does so would map it again.
    static MAPPING: Mutex<()> = Mutex::new(());

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
    fn only_what_nobody_can_write_to_is_given_back() {
        static WRITTEN: AtomicU64 = AtomicU64::new(7);
        static CONSTANT: [u8; 8192] = [7; 8192];
        let ranges = constant();
        let is_in = |address: usize| ranges.iter().any(|range| range.contains(&address));
        assert!(is_in(rest as *const () as usize), "code");
        assert!(is_in((&raw const CONSTANT) as usize + 4096), "a constant");
        assert!(!is_in((&raw const WRITTEN) as usize), "a variable");
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        for range in ranges {
            let line = maps.lines().find(|line| {
                let (start, end) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
                let address = |text| usize::from_str_radix(text, 16).unwrap();
                address(start) <= range.start && range.end <= address(end)
            });
            let line = line.unwrap_or_else(|| panic!("{range:x?} is in no mapping, or in several: {maps}"));
            assert!(line.contains(" r--p ") || line.contains(" r-xp "), "{line}");
        }
    }

    /// How much of the program is mapped once all of it was used, and after `work`, in KiB.
    fn mapped_before_and_after(work: impl FnOnce()) -> (usize, usize) {
        let _alone = MAPPING.lock();
        let ranges = constant();
        // The counters of /proc/self/status lag behind by thousands of pages, as each thread keeps a part of them (proc(5)).
        let resident = || {
            let maps = procfs::process::Process::myself().and_then(|process| process.smaps()).unwrap();
            let ours = maps.iter().filter(|map| {
                let (start, end) = map.address;
                ranges.iter().any(|range| (range.start as u64) < end && start < range.end as u64)
            });
            ours.map(|map| map.extension.map["Rss"] as usize / 1024).sum::<usize>()
        };
        for page in ranges.iter().flat_map(|range| range.clone().step_by(4096)) {
            // SAFETY: a byte of a mapped page of this program.
            std::hint::black_box(unsafe { *(page as *const u8) });
        }
        work();
        (ranges.iter().map(|range| range.len() / 1024).sum(), resident())
    }

    #[test]
    fn a_program_goes_on_after_its_rest() {
        let (before, after) = mapped_before_and_after(rest);
        assert!(after < before / 2, "{after} of {before} KiB are still mapped");
    }

    #[test]
    fn an_event_loop_rests_when_nothing_else_is_to_be_done() {
        let work = || {
            let runtime = event_loop().build().unwrap();
            runtime.block_on(async {
                let mut resting = std::pin::pin!(rest_after(Duration::from_millis(1)));
                std::future::poll_fn(|context| match resting.as_mut().poll(context) {
                    Poll::Ready(never) => match never {},
                    Poll::Pending if BEFORE_WAITING.get() == BeforeWaiting::Rest => Poll::Ready(()),
                    Poll::Pending => Poll::Pending,
                })
                .await;
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert_eq!(BEFORE_WAITING.get(), BeforeWaiting::Nothing, "the loop has waited");
            });
        };
        let (before, after) = mapped_before_and_after(work);
        assert!(after < before / 2, "{after} of {before} KiB are still mapped");
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
