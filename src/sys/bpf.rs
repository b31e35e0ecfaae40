//! Programs for the kernel's virtual machine, of the one type that controls access to devices: `bpf(2)`.

use std::ffi::{CStr, c_long, c_uint};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

const PROG_LOAD: c_uint = 5;
const PROG_ATTACH: c_uint = 8;
const PROG_DETACH: c_uint = 9;
const PROG_GET_FD_BY_ID: c_uint = 13;
const OBJ_GET_INFO_BY_FD: c_uint = 15;
const PROG_QUERY: c_uint = 16;

/// `BPF_PROG_TYPE_CGROUP_DEVICE`
const TYPE_CGROUP_DEVICE: u32 = 15;
/// `BPF_CGROUP_DEVICE`
const CGROUP_DEVICE: u32 = 6;
/// `BPF_F_ALLOW_MULTI`
const ALLOW_MULTI: u32 = 2;
/// `BPF_CGROUP_MAX_PROGS`: most programs of one type that a cgroup takes.
const MOST_PROGRAMS: usize = 64;
/// Length of a program's name with its NUL.
const NAME_LEN: usize = 16;

/// One instruction, `struct bpf_insn`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// Class, operation and where the operand is.
    pub code: u8,
    /// Destination register in the low half, source register in the high half.
    pub registers: u8,
    /// For a jump: instructions to skip. For a load: offset in bytes.
    pub offset: i16,
    /// Immediate operand.
    pub immediate: i32,
}

#[repr(C)]
#[derive(Default)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; NAME_LEN],
}

#[repr(C)]
struct Attach {
    target_fd: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
}

/// As long as the newest kernel's struct: the kernel writes some of the fields without checking the length.
#[repr(C)]
#[derive(Default)]
struct Query {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    _padding: u32,
    prog_attach_flags: u64,
    link_ids: u64,
    link_attach_flags: u64,
    revision: u64,
}

#[repr(C)]
#[derive(Default)]
struct ById {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

#[repr(C)]
struct InfoByFd {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The beginning of `struct bpf_prog_info`, up to the name. Contains no address: the kernel only writes to it.
#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    _before: [u64; 8],
    name: [u8; NAME_LEN],
}

fn fd_number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn address<T: ?Sized>(of: &T) -> u64 {
    std::ptr::from_ref(of).cast::<u8>().addr() as u64
}

/// Runs a command; `attr` is the part of `union bpf_attr` that belongs to it.
///
/// # Safety
/// Every address in `attr` must be that of memory as the command wants it, for the call.
unsafe fn bpf<T>(command: c_uint, attr: &mut T) -> io::Result<c_long> {
    // SAFETY: the kernel reads, and for some commands writes, `size_of::<T>()` bytes at the address of `attr`, which is
    // borrowed exclusively; the caller answers for the addresses in it.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(fd: c_long) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor, close-on-exec, and nobody else knows of it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

/// Loads a program that controls access to devices; `name` has at most 15 letters, digits, `_` or `.`.
///
/// # Errors
/// What `bpf(2)` says: EPERM without the privilege, ENOSYS or EINVAL on a kernel without such programs, EACCES and EINVAL for a
/// program that the verifier rejects.
pub fn load_device_program(instructions: &[Instruction], name: &str) -> io::Result<OwnedFd> {
    const LICENSE: &CStr = c"MPL";
    let mut attr = Load {
        prog_type: TYPE_CGROUP_DEVICE,
        insn_cnt: instructions.len() as u32,
        insns: address(instructions),
        license: LICENSE.as_ptr().addr() as u64,
        ..Load::default()
    };
    let len = name.len().min(NAME_LEN - 1);
    attr.prog_name[..len].copy_from_slice(&name.as_bytes()[..len]);
    // SAFETY: `insns` is the address of `insn_cnt` instructions laid out as the kernel's, `license` that of a string with
    // its NUL; both outlive the call, and the kernel only reads them. No log is asked for.
    unsafe { bpf(PROG_LOAD, &mut attr) }.map(owned)
}

/// Attaches a program to a cgroup, in addition to those attached already: a device is only accessible if all of them allow it. The
/// program is released with the cgroup.
///
/// # Errors
/// What `bpf(2)` says: EPERM also where a parent's program forbids further ones, E2BIG when the cgroup has 64.
pub fn attach_device_program(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = Attach {
        target_fd: fd_number(cgroup),
        attach_bpf_fd: fd_number(program),
        attach_type: CGROUP_DEVICE,
        attach_flags: ALLOW_MULTI,
    };
    // SAFETY: the structure holds descriptors and numbers, no address.
    unsafe { bpf(PROG_ATTACH, &mut attr) }.map(drop)
}

/// Detaches a program from a cgroup.
///
/// # Errors
/// What `bpf(2)` says; ENOENT when it is not attached there.
pub fn detach_device_program(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = Attach {
        target_fd: fd_number(cgroup),
        attach_bpf_fd: fd_number(program),
        attach_type: CGROUP_DEVICE,
        attach_flags: 0,
    };
    // SAFETY: the structure holds descriptors and numbers, no address.
    unsafe { bpf(PROG_DETACH, &mut attr) }.map(drop)
}

/// Ids of the device programs that are attached to exactly this cgroup.
///
/// # Errors
/// What `bpf(2)` says.
pub fn device_programs(cgroup: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut ids = vec![0u32; MOST_PROGRAMS];
    let mut attr = Query {
        target_fd: fd_number(cgroup),
        attach_type: CGROUP_DEVICE,
        prog_ids: ids.as_mut_ptr().expose_provenance() as u64,
        prog_cnt: MOST_PROGRAMS as u32,
        ..Query::default()
    };
    // SAFETY: `prog_ids` is the address of `prog_cnt` numbers of 32 bits that outlive the call and that nobody else uses
    // meanwhile; the other addresses are 0, which asks for nothing.
    unsafe { bpf(PROG_QUERY, &mut attr) }?;
    ids.truncate(attr.prog_cnt as usize);
    Ok(ids)
}

/// A descriptor of the program with this id.
///
/// # Errors
/// What `bpf(2)` says; ENOENT when it is gone.
pub fn open_program(id: u32) -> io::Result<OwnedFd> {
    let mut attr = ById { id, ..ById::default() };
    // SAFETY: the structure holds numbers, no address.
    unsafe { bpf(PROG_GET_FD_BY_ID, &mut attr) }.map(owned)
}

/// The name that a program was loaded with.
///
/// # Errors
/// What `bpf(2)` says.
pub fn program_name(program: BorrowedFd<'_>) -> io::Result<String> {
    let mut info = ProgramInfo::default();
    let mut attr = InfoByFd {
        bpf_fd: fd_number(program),
        info_len: size_of::<ProgramInfo>() as u32,
        info: std::ptr::from_mut(&mut info).expose_provenance() as u64,
    };
    // SAFETY: `info` is the address of `info_len` zeroed bytes that outlive the call and that nobody else uses meanwhile.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attr) }?;
    let name = info.name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}
