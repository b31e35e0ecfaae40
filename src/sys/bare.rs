//! System calls as instructions of their caller, for a process that only waits: it then needs no page of this program but the
//! caller's, and hardly any memory. What is inlined here is inlined in an unoptimized build, too.

use std::ptr::NonNull;

/// A system call that changes nothing but what its arguments name; the kernel's answer, a negative errno where it failed.
///
/// # Safety
/// That of the call.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a call would need another page of the program")]
unsafe fn system_call(number: libc::c_long, [a, b, c, d]: [usize; 4]) -> isize {
    let answer: isize;
    // SAFETY: the registers are those of syscall(2), and the kernel changes no other; what it does is the caller's business.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => answer,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            options(nostack),
        );
    }
    answer
}

/// Every signal, as the kernel's `sigset_t`.
const ALL_SIGNALS: u64 = u64::MAX;

/// Waits for the next signal, of those that are blocked; its number, or a negative errno. `rt_sigtimedwait(2)`.
#[inline(always)]
#[must_use]
#[expect(clippy::inline_always, reason = "a call would need another page of the program")]
pub fn next_signal() -> isize {
    let all = ALL_SIGNALS;
    // SAFETY: the kernel reads the 8 bytes of `all`, and writes nothing where the pointer is null.
    unsafe { system_call(libc::SYS_rt_sigtimedwait, [&raw const all as usize, 0, 0, size_of::<u64>()]) }
}

/// Reaps any child that has ended, or waits until one has; its pid and its status as `wait(2)` has it. 0 for the pid: none has. A
/// negative errno: there is none at all.
#[inline(always)]
#[must_use]
#[expect(clippy::inline_always, reason = "a call would need another page of the program")]
pub fn reap(waits: bool) -> (isize, i32) {
    let mut status = 0i32;
    let options = if waits { 0 } else { libc::WNOHANG as usize };
    // SAFETY: the kernel writes the 4 bytes of `status`, and no usage where the pointer is null.
    let pid = unsafe { system_call(libc::SYS_wait4, [usize::MAX, &raw mut status as usize, options, 0]) };
    (pid, status)
}

/// Sends a signal, by its number, to a child that this process has not reaped, whose pid is therefore not another's. Not to one that
/// has become another user. `kill(2)`.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a call would need another page of the program")]
pub fn signal_child(pid: i32, number: isize) {
    // SAFETY: takes numbers.
    unsafe { system_call(libc::SYS_kill, [pid as usize, number as usize, 0, 0]) };
}

/// Ends this process. `exit_group(2)`.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a call would need another page of the program")]
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY: takes a number. It does not return.
        unsafe { system_call(libc::SYS_exit_group, [status as usize, 0, 0, 0]) };
    }
}

/// Most ranges of [`Releasable`].
const MOST: usize = 8;
/// Length of the stack that is released: the kernel maps nothing else as near below a stack (`stack_guard_gap`).
const STACK: usize = 512 * 1024;
/// Longest function that [`Releasable`] keeps, in bytes.
const LONGEST: usize = 4096;

/// What a process that only waits does not need: its heap, the stack that its start has used, and the pages of its program, which the kernel
/// maps again from the page cache as they are used. It maps their neighbours with them, but not beyond the function that waits.
#[derive(Debug)]
pub struct Releasable {
    /// Start, length and advice of each.
    ranges: [[usize; 3]; MOST],
    count: usize,
}

impl Releasable {
    /// All but the function at this address, which is at most a page long, is called from the caller's frame, and uses no heap and
    /// no variable of a thread from then on. The process must have no other thread.
    #[must_use]
    pub fn all_but(function: usize) -> Releasable {
        let mut releasable = Releasable { ranges: [[0; 3]; MOST], count: 0 };
        let page = auxiliary(libc::AT_PAGESZ).max(4096);
        let (keep, kept) = (function - function % page, (function + LONGEST).next_multiple_of(page));
        let here = 0u8;
        let top = &raw const here as usize;
        // The frames of the caller and of the function lie within the first pages.
        releasable.push(top - top % page - 2 * page - STACK, STACK, libc::MADV_DONTNEED);
        let mut own = None;
        let mut data_end = 0;
        for segment in segments() {
            let (start, end) = (segment.start - segment.start % page, segment.end.next_multiple_of(page));
            if segment.writable {
                data_end = data_end.max(end);
            } else if (start..end).contains(&function) {
                own = Some((start, end));
            } else {
                releasable.push(start, end - start, libc::MADV_DONTNEED);
            }
        }
        // SAFETY: moves nothing, and says where the heap ends.
        let heap_end = unsafe { libc::sbrk(0) } as usize;
        if data_end > 0 && heap_end > data_end {
            // The heap begins somewhere behind the data; nothing else is between.
            releasable.push(data_end, heap_end - data_end, libc::MADV_DONTNEED);
        }
        if let Some((start, end)) = own {
            // Another property of the memory around makes a mapping of its own of what is kept.
            releasable.push(start, keep - start, libc::MADV_DONTDUMP);
            releasable.push(kept, end.saturating_sub(kept), libc::MADV_DONTDUMP);
            // Last: the code of this function.
            releasable.push(start, end - start, libc::MADV_DONTNEED);
        }
        releasable
    }

    fn push(&mut self, start: usize, length: usize, advice: libc::c_int) {
        if let Some(range) = self.ranges.get_mut(self.count) {
            *range = [start, length, advice as usize];
            self.count += 1;
        }
    }

    /// Releases it. `madvise(2)`: what is not mapped is passed over.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call would need another page of the program")]
    pub fn release(&self) {
        let mut number = 0;
        while number < self.count {
            let [start, length, advice] = self.ranges[number];
            // SAFETY: private pages of a file that this process may not write to: all that can be read there again is what the file
            // has. Stack below all frames. And the heap, which nobody uses from here on.
            unsafe { system_call(libc::SYS_madvise, [start, length, advice, 0]) };
            number += 1;
        }
    }
}

/// A number that the kernel passed to this process at its start; 0 where it passed none.
fn auxiliary(kind: libc::c_ulong) -> usize {
    // SAFETY: getauxval only reads the vector that the kernel placed on the initial stack.
    unsafe { libc::getauxval(kind) as usize }
}

/// A part of this program that is mapped.
struct Segment {
    start: usize,
    end: usize,
    writable: bool,
}

/// All of them, by the program's headers: a task may not be allowed to read `/proc/self/maps`.
fn segments() -> impl Iterator<Item = Segment> {
    let (start, count) = (auxiliary(libc::AT_PHDR), auxiliary(libc::AT_PHNUM));
    let headers: &[libc::Elf64_Phdr] = match NonNull::new(start as *mut libc::Elf64_Phdr) {
        // SAFETY: the kernel maps the program's headers, which are so many, and nobody writes to them.
        Some(first) => unsafe { std::slice::from_raw_parts(first.as_ptr(), count) },
        None => &[],
    };
    // Where a program that is not bound to an address was put.
    let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR);
    let base = own.map_or(0, |header| start.wrapping_sub(header.p_vaddr as usize));
    headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(move |header| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        Segment { start, end: start + header.p_memsz as usize, writable: header.p_flags & libc::PF_W != 0 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_the_program_but_one_function_is_released() {
        let function = all_of_the_program_but_one_function_is_released as fn() as usize;
        let Releasable { ranges, count } = Releasable::all_but(function);
        let ranges = &ranges[..count];
        let with = |advice: i32| ranges.iter().filter(move |range| range[2] == advice as usize);
        // The stack, the heap, and two segments at least: constants and code.
        assert!(with(libc::MADV_DONTNEED).count() >= 4, "{ranges:?}");
        let is_in = |[start, length, _]: &[usize; 3]| (*start..start + length).contains(&function);
        assert!(!with(libc::MADV_DONTDUMP).any(is_in), "{ranges:?}");
        assert!(is_in(ranges.last().unwrap()), "{ranges:?}");
        let kept: usize = ranges.last().unwrap()[1] - with(libc::MADV_DONTDUMP).map(|range| range[1]).sum::<usize>();
        assert!((4096..=8192).contains(&kept), "{kept}");
    }
}
