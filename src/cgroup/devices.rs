//! Restricts the devices that a task may make nodes for and open. On v1 the kernel keeps a list, on v2 it runs a BPF program.

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use super::error::{Error, Result};
use super::member::{Member, TaskCgroup};
use super::regime::Regime;
use crate::sys::bpf::{self, Instruction};

/// The name by which our programs are recognized.
const PROGRAM: &str = "agentbin_dev";

/// The two kinds of device nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// A block device.
    Block,
    /// A character device.
    Char,
}

/// Kinds of access to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceAccess(u8);

impl DeviceAccess {
    /// Making a node, `m`.
    pub const MKNOD: DeviceAccess = DeviceAccess(1);
    /// Opening for reading, `r`.
    pub const READ: DeviceAccess = DeviceAccess(2);
    /// Opening for writing, `w`.
    pub const WRITE: DeviceAccess = DeviceAccess(4);
    /// All three.
    pub const ALL: DeviceAccess = DeviceAccess(7);

    const LETTERS: [(char, DeviceAccess); 3] =
        [('r', DeviceAccess::READ), ('w', DeviceAccess::WRITE), ('m', DeviceAccess::MKNOD)];

    /// Parses letters of `rwm`; an empty text means all three. `None` for any other letter.
    #[must_use]
    pub fn from_letters(letters: &str) -> Option<DeviceAccess> {
        if letters.is_empty() {
            return Some(DeviceAccess::ALL);
        }
        let one = |letter| DeviceAccess::LETTERS.iter().find(|(l, _)| *l == letter).map(|(_, access)| access.0);
        letters.chars().try_fold(0, |all, letter| Some(all | one(letter)?)).map(DeviceAccess)
    }

    /// Both kinds of access together.
    #[must_use]
    pub const fn or(self, other: DeviceAccess) -> DeviceAccess {
        DeviceAccess(self.0 | other.0)
    }
}

/// Permits some access to one device or several. Access that no rule permits is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRule {
    /// Block or character.
    pub kind: DeviceKind,
    /// Major number; `None` is any.
    pub major: Option<u32>,
    /// Minor number; `None` is any.
    pub minor: Option<u32>,
    /// The permitted access. An access that asks for two kinds at once needs one rule with both.
    pub access: DeviceAccess,
}

impl fmt::Display for DeviceRule {
    /// In the format of the v1 files: `c 1:3 rwm`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            DeviceKind::Block => 'b',
            DeviceKind::Char => 'c',
        };
        let number = |n: Option<u32>| n.map_or_else(|| "*".to_owned(), |n| n.to_string());
        write!(f, "{kind} {}:{} ", number(self.major), number(self.minor))?;
        let granted = DeviceAccess::LETTERS.iter().filter(|(_, access)| self.access.0 & access.0 != 0);
        granted.map(|(letter, _)| *letter).try_for_each(|letter| write!(f, "{letter}"))
    }
}

/// Denies access to every device except those that `rules` permit, in the directory if it is ours.
pub(super) fn set(task: &TaskCgroup, rules: &[DeviceRule]) -> Result<()> {
    if task.is_host_given() {
        return Ok(());
    }
    match task.regime {
        Regime::Off => Err(Error::Off),
        Regime::V1 => {
            let member = task.member("devices").ok_or_else(|| Error::NoController("devices".to_owned()))?;
            if member.ours { v1(member, rules) } else { Ok(()) }
        }
        Regime::V2 => v2(&task.members[0], rules),
    }
}

/// Removes the restrictions of an earlier task in the same directory, as far as possible.
pub(super) fn lift(task: &TaskCgroup) {
    for member in task.members.iter().filter(|m| m.ours) {
        if task.regime == Regime::V1 && member.tree.hierarchy.has("devices") {
            // Refused where the parent has a list: then this directory can only have a part of that list.
            let _best_effort = member.dir().and_then(|d| d.write("devices.allow", "a"));
        }
        if task.regime == Regime::V2
            && let Ok(folder) = member.tree.descriptor(&member.relative)
        {
            detach(folder.as_fd(), &own_programs(folder.as_fd()));
        }
    }
}

fn v1(member: &Member, rules: &[DeviceRule]) -> Result<()> {
    let dir = member.dir()?;
    dir.write("devices.deny", "a")?;
    let allowed = rules.iter().map(ToString::to_string);
    // A rule that the parent directory does not have cannot be set here, so it is skipped.
    dir.write_each("devices.allow", allowed, libc::EPERM)
}

fn v2(member: &Member, rules: &[DeviceRule]) -> Result<()> {
    let folder = member.tree.descriptor(&member.relative)?;
    let cannot = |source: io::Error| match source.raw_os_error() {
        Some(libc::EPERM | libc::ENOSYS | libc::EINVAL) => Error::NoDeviceRules(source),
        _ => Error::io("attach a device program to", &member.path(), source),
    };
    let earlier = own_programs(folder.as_fd());
    let program = bpf::load_device_program(&instructions(rules), PROGRAM).map_err(cannot)?;
    bpf::attach_device_program(folder.as_fd(), program.as_fd()).map_err(cannot)?;
    detach(folder.as_fd(), &earlier);
    Ok(())
}

/// The programs that we attached to exactly this cgroup. Those of others stay: a device is only accessible if all programs allow
/// it.
fn own_programs(folder: BorrowedFd<'_>) -> Vec<OwnedFd> {
    let attached = bpf::device_programs(folder).unwrap_or_default();
    let programs = attached.into_iter().filter_map(|id| bpf::open_program(id).ok());
    programs.filter(|program| bpf::program_name(program.as_fd()).is_ok_and(|name| name == PROGRAM)).collect()
}

fn detach(folder: BorrowedFd<'_>, programs: &[OwnedFd]) {
    for program in programs {
        // Another process may have detached it already; a program that stays denies more than it should, never less.
        let _gone = bpf::detach_device_program(folder, program.as_fd());
    }
}

/// The input of the program, `struct bpf_cgroup_dev_ctx`: kind and access in one word, major, minor.
const ACCESS_TYPE: i16 = 0;
const MAJOR: i16 = 4;
const MINOR: i16 = 8;

/// Registers: the result, the input, and those in which the program keeps its parts.
const ANSWER: u8 = 0;
const GIVEN: u8 = 1;
const KIND: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR_NUMBER: u8 = 4;
const MINOR_NUMBER: u8 = 5;

/// Instruction codes from bpf.h: load of a 32-bit word, 32-bit arithmetic, comparison, exit.
const LOAD_WORD: u8 = 0x61;
const MOVE_REGISTER: u8 = 0xbc;
const MOVE: u8 = 0xb4;
const AND: u8 = 0x54;
const SHIFT_RIGHT: u8 = 0x74;
const JUMP_UNLESS_EQUAL: u8 = 0x55;
const EXIT: u8 = 0x95;

fn instruction(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: source << 4 | destination, offset, immediate }
}

/// Compares field by field, for each rule; a mismatch continues with the next rule.
fn instructions(rules: &[DeviceRule]) -> Vec<Instruction> {
    let mut program = vec![
        instruction(LOAD_WORD, KIND, GIVEN, ACCESS_TYPE, 0),
        instruction(MOVE_REGISTER, ACCESS, KIND, 0, 0),
        instruction(SHIFT_RIGHT, ACCESS, 0, 0, 16),
        instruction(AND, KIND, 0, 0, 0xffff),
        instruction(LOAD_WORD, MAJOR_NUMBER, GIVEN, MAJOR, 0),
        instruction(LOAD_WORD, MINOR_NUMBER, GIVEN, MINOR, 0),
    ];
    for rule in rules {
        let kind = match rule.kind {
            DeviceKind::Block => 1,
            DeviceKind::Char => 2,
        };
        let mut checks = vec![instruction(JUMP_UNLESS_EQUAL, KIND, 0, 0, kind)];
        for (register, number) in [(MAJOR_NUMBER, rule.major), (MINOR_NUMBER, rule.minor)] {
            checks.extend(number.map(|n| instruction(JUMP_UNLESS_EQUAL, register, 0, 0, n.cast_signed())));
        }
        if rule.access != DeviceAccess::ALL {
            let forbidden = DeviceAccess::ALL.0 & !rule.access.0;
            checks.push(instruction(MOVE_REGISTER, ANSWER, ACCESS, 0, 0));
            checks.push(instruction(AND, ANSWER, 0, 0, forbidden.into()));
            checks.push(instruction(JUMP_UNLESS_EQUAL, ANSWER, 0, 0, 0));
        }
        checks.push(instruction(MOVE, ANSWER, 0, 0, 1));
        checks.push(instruction(EXIT, 0, 0, 0, 0));
        let len = checks.len();
        for (at, check) in checks.iter_mut().enumerate().filter(|(_, check)| check.code == JUMP_UNLESS_EQUAL) {
            check.offset = (len - at - 1) as i16;
        }
        program.append(&mut checks);
    }
    program.extend([instruction(MOVE, ANSWER, 0, 0, 0), instruction(EXIT, 0, 0, 0, 0)]);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn rule(kind: DeviceKind, major: Option<u32>, minor: Option<u32>, access: DeviceAccess) -> DeviceRule {
        DeviceRule { kind, major, minor, access }
    }

    const RULES: [DeviceRule; 6] = [
        rule(DeviceKind::Block, None, None, DeviceAccess::MKNOD),
        rule(DeviceKind::Char, Some(1), Some(3), DeviceAccess::ALL),
        rule(DeviceKind::Char, Some(136), None, DeviceAccess::ALL),
        rule(DeviceKind::Char, Some(10), Some(229), DeviceAccess::READ),
        rule(DeviceKind::Char, Some(10), Some(229), DeviceAccess::MKNOD),
        rule(DeviceKind::Block, Some(4095), Some(0xf_ffff), DeviceAccess::READ.or(DeviceAccess::WRITE)),
    ];

    /// Evaluates the rules naively.
    fn allowed(rules: &[DeviceRule], kind: DeviceKind, major: u32, minor: u32, access: u8) -> bool {
        rules.iter().any(|rule| {
            rule.kind == kind
                && rule.major.is_none_or(|m| m == major)
                && rule.minor.is_none_or(|m| m == minor)
                && access & !rule.access.0 == 0
        })
    }

    /// An interpreter for the instructions that these programs use; like the verifier it rejects reads of uninitialized registers.
    fn interpret(program: &[Instruction], given: [u32; 3]) -> u32 {
        let mut registers = [None; 11];
        registers[usize::from(GIVEN)] = Some(0);
        let mut at = 0;
        loop {
            let Instruction { code, registers: names, offset, immediate } = program[at];
            let (to, from) = (usize::from(names & 15), usize::from(names >> 4));
            at += 1;
            match code {
                LOAD_WORD => {
                    assert_eq!(from, usize::from(GIVEN));
                    registers[to] = Some(given[usize::try_from(offset).unwrap() / 4]);
                }
                MOVE => registers[to] = Some(immediate.cast_unsigned()),
                MOVE_REGISTER => registers[to] = Some(registers[from].unwrap()),
                AND => registers[to] = Some(registers[to].unwrap() & immediate.cast_unsigned()),
                SHIFT_RIGHT => registers[to] = Some(registers[to].unwrap() >> immediate),
                JUMP_UNLESS_EQUAL if registers[to].unwrap() != immediate.cast_unsigned() => {
                    at += usize::try_from(offset).expect("jumps lead forward only");
                }
                JUMP_UNLESS_EQUAL => {}
                EXIT => return registers[usize::from(ANSWER)].unwrap(),
                _ => panic!("{code:#x} is not an instruction of ours"),
            }
        }
    }

    #[test]
    fn b2_the_program_says_what_the_rules_say() {
        let programs = [&RULES[..], &RULES[..1], &[]].map(|rules| (rules, instructions(rules)));
        let mut answers = [0, 0];
        for (rules, program) in &programs {
            for (kind, word) in [(DeviceKind::Block, 1), (DeviceKind::Char, 2)] {
                for major in [0, 1, 5, 10, 136, 4095] {
                    for minor in [0, 3, 5, 229, 0xf_ffff] {
                        for access in 1..=7u8 {
                            let answer = interpret(program, [u32::from(access) << 16 | word, major, minor]);
                            let expected = allowed(rules, kind, major, minor, access);
                            assert_eq!(answer, u32::from(expected), "{kind:?} {major}:{minor} {access} of {rules:?}");
                            answers[usize::from(expected)] += 1;
                        }
                    }
                }
            }
        }
        assert!(answers.iter().all(|n| *n > 50), "{answers:?}");
    }

    #[test]
    fn b2_instructions_are_what_the_verifier_wants() {
        let program = instructions(&RULES[..2]);
        let text: Vec<String> = program
            .iter()
            .map(|i| format!("{:02x} {:02x} {} {}", i.code, i.registers, i.offset, i.immediate))
            .collect();
        let expected = [
            "61 12 0 0",
            "bc 23 0 0",
            "74 03 0 16",
            "54 02 0 65535",
            "61 14 4 0",
            "61 15 8 0", // parts
            "55 02 5 1",
            "bc 30 0 0",
            "54 00 0 6",
            "55 00 2 0",
            "b4 00 0 1",
            "95 00 0 0", // b *:* m
            "55 02 4 2",
            "55 04 3 1",
            "55 05 2 3",
            "b4 00 0 1",
            "95 00 0 0", // c 1:3 rwm
            "b4 00 0 0",
            "95 00 0 0",
        ];
        assert_eq!(text, expected);
    }

    #[test]
    fn b2_rules_in_the_words_of_v1() {
        let text: Vec<String> = RULES.iter().map(ToString::to_string).collect();
        let expected = ["b *:* m", "c 1:3 rwm", "c 136:* rwm", "c 10:229 r", "c 10:229 m", "b 4095:1048575 rw"];
        assert_eq!(text, expected);
    }

    #[test]
    fn b2_permissions_are_letters_of_rwm() {
        assert_eq!(DeviceAccess::from_letters(""), Some(DeviceAccess::ALL));
        assert_eq!(DeviceAccess::from_letters("mrw"), Some(DeviceAccess::ALL));
        assert_eq!(DeviceAccess::from_letters("r"), Some(DeviceAccess::READ));
        assert_eq!(DeviceAccess::from_letters("wr"), Some(DeviceAccess::READ.or(DeviceAccess::WRITE)));
        for bad in ["x", "rwx", "R", "r w"] {
            assert_eq!(DeviceAccess::from_letters(bad), None, "{bad:?}");
        }
    }
}
