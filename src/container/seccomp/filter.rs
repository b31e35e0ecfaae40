//! The decisions of a filter, and their translation: a small assembler for classic BPF.

use libc::sock_filter;

use crate::spec::Order as _;

/// Most instructions that the kernel takes, `BPF_MAXINSNS`.
const LONGEST: usize = 4096;
/// Most instructions that a conditional jump can skip, less those that may still be inserted in between.
const NEAR: usize = 250;
/// Numbers of the x32 ABI have this bit; it shares the architecture's value with `x86_64`.
const X32: u32 = 0x4000_0000;

/// `struct seccomp_data`: number, architecture, address of the instruction, six arguments.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_GREATER: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const IF_NOT_LESS: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;

/// The architectures for which there are filters. Both are little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    #[cfg(target_arch = "x86_64")]
    pub const NATIVE: Option<Arch> = Some(Arch::X86_64);
    #[cfg(target_arch = "aarch64")]
    pub const NATIVE: Option<Arch> = Some(Arch::Aarch64);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub const NATIVE: Option<Arch> = None;

    /// By the names that the kernel, Go and the OCI specification use.
    pub fn from_name(name: &str) -> Option<Arch> {
        match name {
            "x86_64" | "amd64" | "SCMP_ARCH_X86_64" => Some(Arch::X86_64),
            "aarch64" | "arm64" | "SCMP_ARCH_AARCH64" => Some(Arch::Aarch64),
            _ => None,
        }
    }

    /// `AUDIT_ARCH_`: the ELF machine, 64 bit, little-endian.
    pub const fn audit(self) -> u32 {
        match self {
            Arch::X86_64 => 0xc000_003e,
            Arch::Aarch64 => 0xc000_00b7,
        }
    }

    /// The first number after all that have a name.
    pub const fn end(self) -> usize {
        match self {
            Arch::X86_64 => syscalls::x86_64::Sysno::last() as usize + 1,
            Arch::Aarch64 => syscalls::aarch64::Sysno::last() as usize + 1,
        }
    }

    /// The name of a system call, as profiles use it.
    pub fn name_of(self, number: usize) -> Option<&'static str> {
        match self {
            Arch::X86_64 => syscalls::x86_64::Sysno::new(number).map(|call| call.name()),
            Arch::Aarch64 => syscalls::aarch64::Sysno::new(number).map(|call| match call {
                syscalls::aarch64::Sysno::fstatat => "newfstatat",
                _ => call.name(),
            }),
        }
    }
}

/// What the kernel does with a call: the value that a filter returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Action(pub u32);

impl Action {
    pub const ALLOW: Action = Action(libc::SECCOMP_RET_ALLOW);
    pub const LOG: Action = Action(libc::SECCOMP_RET_LOG);
    pub const TRAP: Action = Action(libc::SECCOMP_RET_TRAP);
    pub const KILL_THREAD: Action = Action(libc::SECCOMP_RET_KILL_THREAD);
    pub const KILL_PROCESS: Action = Action(libc::SECCOMP_RET_KILL_PROCESS);
    pub const EPERM: Action = Action::error(libc::EPERM as u16);
    pub const ENOSYS: Action = Action::error(libc::ENOSYS as u16);

    /// The call is not made and fails with this errno (at most 4095).
    pub const fn error(errno: u16) -> Action {
        Action(libc::SECCOMP_RET_ERRNO | errno as u32)
    }

    /// The call is made.
    pub fn is_permissive(self) -> bool {
        self == Action::ALLOW || self == Action::LOG
    }

    /// The order in which the kernel prefers actions, see `seccomp(2)`: the lowest has precedence.
    fn rank(self) -> i32 {
        (self.0 & libc::SECCOMP_RET_ACTION_FULL).cast_signed()
    }
}

/// A statement about one argument of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Test {
    /// The argument's bits under the mask equal the value.
    Masked {
        mask: u64,
        value: u64,
    },
    Greater(u64),
    NotLess(u64),
}

/// A condition on an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Check {
    /// 0 to 5.
    pub argument: u8,
    pub test: Test,
    /// Negates the test.
    pub not: bool,
}

impl Check {
    /// For arguments of which the kernel reads the low half only: ignores the high half.
    pub fn low(argument: u8, value: u32) -> Check {
        let mask = if crate::sys::mutant::on("c08") { u64::MAX } else { u64::from(u32::MAX) };
        Check { argument, test: Test::Masked { mask, value: u64::from(value) }, not: false }
    }
}

/// An action for calls whose arguments meet all checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub checks: Vec<Check>,
    pub action: Action,
}

/// The decision for the calls of one number: the first rule that applies, else one action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decision {
    rules: Vec<Rule>,
    otherwise: Action,
}

impl Decision {
    pub fn always(action: Action) -> Decision {
        Decision { rules: Vec::new(), otherwise: action }
    }

    /// Of all rules that apply the strictest wins, as with several filters, and among equally strict ones the first.
    pub fn of(mut rules: Vec<Rule>, otherwise: Action) -> Decision {
        rules.order_by_key(|rule| rule.action.rank());
        let last = rules.iter().position(|rule| rule.checks.is_empty());
        let otherwise = last.map_or(otherwise, |last| rules[last].action);
        rules.truncate(last.unwrap_or(rules.len()));
        while rules.last().is_some_and(|rule| rule.action == otherwise) {
            rules.pop();
        }
        Decision { rules, otherwise }
    }
}

/// Decisions for all numbers of one architecture.
#[derive(Debug)]
pub(super) struct Policy {
    decisions: Vec<Decision>,
    /// Index into the decisions, by number.
    table: Vec<u16>,
    /// Index of the decision for numbers beyond the table.
    beyond: u16,
}

impl Policy {
    /// `from` and all numbers above get `beyond`, those below get `known` until they are decided.
    pub fn new(from: usize, known: Action, beyond: Action) -> Policy {
        let mut policy = Policy { decisions: Vec::with_capacity(16), table: Vec::new(), beyond: 0 };
        policy.beyond = policy.intern(Decision::always(beyond));
        policy.table = vec![policy.intern(Decision::always(known)); from];
        policy
    }

    /// Adds a decision, or reuses an equal one.
    pub fn intern(&mut self, decision: Decision) -> u16 {
        let index = self.decisions.iter().position(|known| *known == decision).unwrap_or_else(|| {
            self.decisions.push(decision);
            self.decisions.len() - 1
        });
        index as u16
    }

    /// Sets the decision for a number below those of `beyond`.
    pub fn decide(&mut self, number: usize, decision: u16) {
        self.table[number] = decision;
    }

    /// Adds rules to the decision for a number; the strictest wins.
    pub fn add(&mut self, number: usize, rules: &[Rule]) {
        let known = &self.decisions[usize::from(self.table[number])];
        let all = rules.iter().chain(&known.rules).cloned().collect();
        let decision = Decision::of(all, known.otherwise);
        let decision = self.intern(decision);
        self.decide(number, decision);
    }

    /// Translates the policy into a filter.
    pub fn compile(&self, arch: Arch) -> Result<Vec<sock_filter>, String> {
        let mut ranges: Vec<(u32, u16)> = Vec::with_capacity(128);
        for (number, decision) in self.table.iter().enumerate() {
            if ranges.last().is_none_or(|(_, last)| last != decision) {
                ranges.push((number as u32, *decision));
            }
        }
        if ranges.last().is_none_or(|(_, last)| *last != self.beyond) {
            ranges.push((self.table.len() as u32, self.beyond));
        }

        let mut assembler = Assembler { reversed: Vec::with_capacity(512), returns: Vec::with_capacity(8) };
        let mut places = Vec::with_capacity(self.decisions.len());
        for decision in &self.decisions {
            places.push(assembler.decision(decision));
            if assembler.reversed.len() > LONGEST {
                break;
            }
        }
        if assembler.reversed.len() <= LONGEST {
            let mut leaves: Vec<Leaf> = Vec::with_capacity(ranges.len() + 1);
            leaves.extend(ranges.iter().map(|(from, index)| Leaf { from: *from, place: places[usize::from(*index)] }));
            if arch == Arch::X86_64 {
                leaves.push(Leaf { from: X32, place: Place::Return(Action::ENOSYS) });
            }
            let search = assembler.search(&leaves);
            let native = assembler.load(NUMBER, search);
            let known = crate::sys::mutant::on("c06");
            let foreign = assembler.return_with(if known { Action::ALLOW } else { Action::ENOSYS });
            let which = assembler.branch(IF_EQUAL, arch.audit(), native, foreign);
            assembler.load(ARCHITECTURE, which);
        }
        if assembler.reversed.len() > LONGEST {
            return Err(format!(
                "it takes more than the {LONGEST} instructions that the kernel allows; say less about arguments"
            ));
        }
        assembler.reversed.reverse();
        Ok(assembler.reversed)
    }
}

/// Where a decision is carried out. One that only returns is repeated where it is needed, which saves a jump.
#[derive(Debug, Clone, Copy)]
enum Place {
    Return(Action),
    At(Label),
}

/// A decision that applies from this number on.
#[derive(Debug, Clone, Copy)]
struct Leaf {
    from: u32,
    place: Place,
}

/// An instruction, by its index from the end of the program.
type Label = usize;

/// Writes the program from its end: jumps only go forward, so every target exists before a jump refers to it.
struct Assembler {
    reversed: Vec<sock_filter>,
    /// The last label of each action.
    returns: Vec<(Action, Label)>,
}

impl Assembler {
    fn push(&mut self, code: u16, jt: u8, jf: u8, k: u32) -> Label {
        self.reversed.push(sock_filter { code, jt, jf, k });
        self.reversed.len() - 1
    }

    fn distance(&self, target: Label) -> usize {
        self.reversed.len() - target - 1
    }

    fn return_with(&mut self, action: Action) -> Label {
        let known = self.returns.iter().position(|(known, _)| *known == action);
        if let Some(index) = known
            && self.distance(self.returns[index].1) < NEAR
        {
            return self.returns[index].1;
        }
        let label = self.push(RETURN, 0, 0, action.0);
        match known {
            Some(index) => self.returns[index].1 = label,
            None => self.returns.push((action, label)),
        }
        label
    }

    /// The target itself, or an instruction within a conditional jump's range that leads there.
    fn near(&mut self, target: Label) -> Label {
        let distance = self.distance(target);
        if distance < NEAR {
            return target;
        }
        match self.reversed[target] {
            sock_filter { code: RETURN, k, .. } => self.return_with(Action(k)),
            _ => self.push(JUMP, 0, 0, distance as u32),
        }
    }

    /// Compares the loaded value.
    fn branch(&mut self, code: u16, k: u32, yes: Label, no: Label) -> Label {
        if yes == no {
            return yes;
        }
        let yes = self.near(yes);
        let no = self.near(no);
        let (jt, jf) = (self.distance(yes) as u8, self.distance(no) as u8);
        self.push(code, jt, jf, k)
    }

    /// An instruction that continues at `next`, with a jump if `next` does not follow directly.
    fn before(&mut self, code: u16, k: u32, next: Label) -> Label {
        let distance = self.distance(next);
        if distance != 0 {
            self.push(JUMP, 0, 0, distance as u32);
        }
        self.push(code, 0, 0, k)
    }

    fn load(&mut self, offset: u32, next: Label) -> Label {
        self.before(LOAD, offset, next)
    }

    /// Tests half of an argument; the other half is tested before or after.
    fn masked(&mut self, offset: u32, mask: u32, value: u32, yes: Label, no: Label) -> Label {
        if value & !mask != 0 {
            return no;
        }
        if mask == 0 || yes == no {
            return yes;
        }
        let mut next = self.branch(IF_EQUAL, value, yes, no);
        if mask != u32::MAX {
            next = self.before(AND, mask, next);
        }
        self.load(offset, next)
    }

    fn check(&mut self, check: Check, yes: Label, no: Label) -> Label {
        let (yes, no) = if check.not { (no, yes) } else { (yes, no) };
        let low = ARGUMENTS + 8 * u32::from(check.argument);
        let high = low + 4;
        let halves = |value: u64| ((value >> 32) as u32, value as u32);
        match check.test {
            Test::Masked { mask, value } => {
                let ((mask_high, mask_low), (value_high, value_low)) = (halves(mask), halves(value));
                let next = self.masked(low, mask_low, value_low, yes, no);
                self.masked(high, mask_high, value_high, next, no)
            }
            Test::Greater(value) => self.compare(IF_GREATER, high, low, halves(value), yes, no),
            Test::NotLess(value) => self.compare(IF_NOT_LESS, high, low, halves(value), yes, no),
        }
    }

    /// The high half decides unless it is equal; then the low half does, by `code`.
    fn compare(&mut self, code: u16, high: u32, low: u32, value: (u32, u32), yes: Label, no: Label) -> Label {
        if yes == no {
            return yes;
        }
        let by_low = self.branch(code, value.1, yes, no);
        let by_low = self.load(low, by_low);
        let equal = self.branch(IF_EQUAL, value.0, by_low, no);
        let by_high = self.branch(IF_GREATER, value.0, yes, equal);
        self.load(high, by_high)
    }

    fn decision(&mut self, decision: &Decision) -> Place {
        if decision.rules.is_empty() {
            return Place::Return(decision.otherwise);
        }
        let mut next = self.return_with(decision.otherwise);
        for rule in decision.rules.iter().rev() {
            if self.reversed.len() > LONGEST {
                break;
            }
            let mut met = self.return_with(rule.action);
            for check in rule.checks.iter().rev() {
                met = self.check(*check, met, next);
            }
            next = met;
        }
        Place::At(next)
    }

    fn search(&mut self, leaves: &[Leaf]) -> Label {
        if let [leaf] = leaves {
            return match leaf.place {
                Place::Return(action) => self.return_with(action),
                Place::At(label) => label,
            };
        }
        let (left, right) = leaves.split_at(leaves.len() / 2);
        let no = self.search(left);
        let yes = self.search(right);
        self.branch(IF_NOT_LESS, right[0].from, yes, no)
    }
}
