//! System calls that the attacks make raw: what an attacker does has no safe wrapper.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// A system call as a hostile program makes it: the number and up to six words.
pub fn raw(number: libc::c_long, args: [u64; 6]) -> io::Result<i64> {
    // SAFETY: callers pass numbers, or addresses of buffers that live as long as the call and are as large as it says.
    let result = unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The number of an errno, 0 for success.
pub fn errno<T>(result: &io::Result<T>) -> i32 {
    result.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(-1))
}

/// From here on, and for every program that this process executes, `openat2(2)` answers with this errno.
pub fn block_openat2(errno: i32) -> io::Result<()> {
    block(&[libc::SYS_openat2], errno)
}

/// From here on, and for every program that this process executes, these system calls answer with this errno.
pub fn block(numbers: &[libc::c_long], errno: i32) -> io::Result<()> {
    let instruction = |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let load = instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0);
    let mut program = vec![load];
    for (at, number) in numbers.iter().enumerate() {
        let to_the_error = u8::try_from(numbers.len() - at).unwrap();
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, to_the_error, *number as u32));
    }
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | errno as u32));
    let filter = libc::sock_fprog { len: u16::try_from(program.len()).unwrap(), filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies `len` instructions of a live array.
    let rc = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, std::ptr::from_ref(&filter)) };
    if rc == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Puts a copy of `fd` at `number`, open across exec.
pub fn leak(fd: i32, number: i32) -> io::Result<()> {
    // SAFETY: takes two numbers; what was at `number` belongs to nobody here.
    if unsafe { libc::dup2(fd, number) } == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Closes a number that nobody here owns.
pub fn close(number: i32) {
    // SAFETY: called directly before exec, for descriptors that this process uses no more.
    unsafe { libc::close(number) };
}

/// `ioctl(2)` with a pointer to a byte.
pub fn ioctl_byte(fd: i32, request: u64, byte: u8) -> io::Result<()> {
    raw(libc::SYS_ioctl, [fd as u64, request, std::ptr::from_ref(&byte) as u64, 0, 0, 0]).map(drop)
}

/// The user that a user namespace belongs to (`NS_GET_OWNER_UID`, `ioctl_nsfs(2)`).
pub fn owner_of_namespace(namespace: &std::fs::File) -> io::Result<u32> {
    const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;
    let mut owner = 0_u32;
    // SAFETY: the kernel writes one number of this size.
    let rc = unsafe {
        libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(namespace), NS_GET_OWNER_UID, std::ptr::from_mut(&mut owner))
    };
    if rc == -1 { Err(io::Error::last_os_error()) } else { Ok(owner) }
}

/// A system call of the i386 ABI, without arguments.
#[cfg(target_arch = "x86_64")]
pub fn raw_i386(number: i64) -> i64 {
    let answer: i64;
    // SAFETY: the kernel reads the number and changes the one register that is told here, and those of the upper half that the
    // ABI lets it change; without arguments it touches no memory.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("rax") number => answer, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    i64::from(answer as i32)
}

/// There is no such ABI.
#[cfg(not(target_arch = "x86_64"))]
pub fn raw_i386(_: i64) -> i64 {
    -i64::from(libc::ENOSYS)
}

const SESSION_KEYRING: u64 = (-3_i64) as u64;
const KEYCTL_JOIN_SESSION_KEYRING: u64 = 1;
const KEYCTL_SEARCH: u64 = 10;
const KEYCTL_READ: u64 = 11;

/// A key in a new session keyring of this process, which programs inherit that it executes.
pub fn add_key(name: &std::ffi::CStr) -> io::Result<()> {
    raw(libc::SYS_keyctl, [KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0, 0])?;
    let (kind, value) = (c"user".as_ptr() as u64, c"secret".as_ptr() as u64);
    raw(libc::SYS_add_key, [kind, name.as_ptr() as u64, value, 6, SESSION_KEYRING, 0]).map(drop)
}

/// The number of a key in the session keyring of this process.
pub fn find_key(name: &std::ffi::CStr) -> io::Result<i64> {
    let kind = c"user".as_ptr() as u64;
    raw(libc::SYS_keyctl, [KEYCTL_SEARCH, SESSION_KEYRING, kind, name.as_ptr() as u64, 0, 0])
}

/// Reads a key by its number.
pub fn read_key(id: u64) -> io::Result<i64> {
    let mut buffer = [0_u8; 64];
    raw(libc::SYS_keyctl, [KEYCTL_READ, id, buffer.as_mut_ptr() as u64, 64, 0, 0])
}

/// From here on `/proc` shows so many zeros as the arguments and the environment of this process, which nobody may trace any more.
pub fn point_arguments_at(length: u64) -> io::Result<()> {
    const PR_SET_MM_MAP: u64 = 14;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<u64> =
        stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
    // Numbers of proc_pid_stat(5), of which the first two are cut off.
    let field = |number: usize| fields[number - 3];
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let start = raw(libc::SYS_mmap, [0, length, protection, flags, u64::MAX, 0])? as u64;
    let end = start + length;
    let brk = raw(libc::SYS_brk, [0; 6])? as u64;
    // `struct prctl_mm_map` of prctl(2): the last three words are no vector, its length 0 and no file.
    let map: [u64; 13] = [
        field(26),
        field(27),
        field(45),
        field(46),
        field(47),
        brk,
        field(28),
        start,
        end,
        start,
        end,
        0,
        0xffff_ffff_0000_0000,
    ];
    let size = std::mem::size_of_val(&map) as u64;
    raw(libc::SYS_prctl, [libc::PR_SET_MM as u64, PR_SET_MM_MAP, map.as_ptr() as u64, size, 0, 0])?;
    raw(libc::SYS_prctl, [libc::PR_SET_DUMPABLE as u64, 0, 0, 0, 0, 0]).map(drop)
}

/// Runs before another program in the same process; returns why it could not be executed.
pub fn execute(program: &str, args: &[String]) -> io::Error {
    Command::new(program).args(args).exec()
}
