//! Profiles from files, in the JSON form of Docker and of OCI's runtime specification.
//!
//! Unknown words are refused, as an overlooked word in a filter would be a hole in it. There are two exceptions: names of system
//! calls, which differ between architectures, and fields at the top level, where there are no conditions. Of several rules for the
//! same call that apply, the strictest wins; conditions on the same argument within one rule are alternatives.
//!
//! An error says where the mistake is, and never quotes the file: root reads it at any path that a job names, and the error is
//! shown to the author of the job.

use crate::spec::Order as _;
use std::borrow::Cow;
use std::str::FromStr as _;

use caps::Capability;
use serde::Deserialize;

use super::Machine;
use super::filter::{Action, Arch, Check, Decision, Policy, Rule, Test};

/// Most rules for calls, each name times its alternatives. A filter could hold only a small part of that.
const MOST_RULES: usize = 1 << 16;

/// Largest errno that the kernel passes on, `MAX_ERRNO`.
const LARGEST_ERRNO: i64 = 4095;

#[derive(Deserialize)]
#[serde(transparent)]
struct Word<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Profile<'a> {
    #[serde(borrow)]
    default_action: Word<'a>,
    default_errno_ret: Option<i64>,
    default_errno: Option<Word<'a>>,
    architectures: Option<Vec<Word<'a>>>,
    arch_map: Option<Vec<ArchMap<'a>>>,
    flags: Option<Vec<Word<'a>>>,
    listener_path: Option<Word<'a>>,
    syscalls: Option<Vec<Calls<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ArchMap<'a> {
    #[serde(borrow)]
    architecture: Word<'a>,
    sub_architectures: Option<Vec<Word<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Calls<'a> {
    #[serde(borrow)]
    name: Option<Word<'a>>,
    names: Option<Vec<Word<'a>>>,
    action: Word<'a>,
    errno_ret: Option<i64>,
    errno: Option<Word<'a>>,
    args: Option<Vec<Arg<'a>>>,
    #[serde(rename = "comment")]
    _comment: Option<Word<'a>>,
    includes: Option<Condition<'a>>,
    excludes: Option<Condition<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Arg<'a> {
    index: u64,
    #[serde(default)]
    value: u64,
    #[serde(default)]
    value_two: u64,
    #[serde(borrow)]
    op: Word<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Condition<'a> {
    #[serde(borrow)]
    caps: Option<Vec<Word<'a>>>,
    arches: Option<Vec<Word<'a>>>,
    min_kernel: Option<Word<'a>>,
}

/// Translates the text into a policy for a machine and the task's capabilities.
pub(super) fn policy(text: &str, machine: &Machine<'_>) -> Result<Policy, String> {
    let profile: Profile<'_> = serde_json::from_str(text).map_err(|error| without_content(&error))?;
    check_surroundings(&profile)?;
    let field = ("defaultAction", "defaultErrnoRet");
    let default = action(field, &profile.default_action, profile.default_errno_ret, profile.default_errno.as_ref())?;

    let mut names: Vec<(&str, usize)> =
        (0..machine.arch.end()).filter_map(|number| Some((machine.arch.name_of(number)?, number))).collect();
    names.order_by(Ord::cmp);
    let number_of = |name: &str| names.binary_search_by_key(&name, |(known, _)| known).ok().map(|at| names[at].1);

    // Rules in the file's order, and for each number the indices of those that apply.
    let mut rules: Vec<Rule> = Vec::new();
    let mut by_number: Vec<Vec<u32>> = vec![Vec::new(); machine.arch.end()];
    let mut newest = 0;
    let mut said = 0;
    for (position, calls) in profile.syscalls.iter().flatten().enumerate() {
        let place = |error: String| format!("syscalls[{position}]: {error}");
        let action =
            action(("action", "errnoRet"), &calls.action, calls.errno_ret, calls.errno.as_ref()).map_err(place)?;
        let args = calls.args.iter().flatten().enumerate();
        let check = |(at, arg): (usize, &Arg<'_>)| check(arg).map_err(|error| format!("args[{at}]: {error}"));
        let checks = args.map(check).collect::<Result<Vec<Check>, String>>().map_err(place)?;
        let applies = applies(calls, machine).map_err(place)?;
        if calls.name.is_none() && calls.names.is_none() {
            return Err(place("neither \"names\" nor \"name\"".to_owned()));
        }

        let first = rules.len() as u32;
        if applies {
            let twice = checks.iter().enumerate().any(|(i, c)| checks[..i].iter().any(|o| o.argument == c.argument));
            if twice {
                rules.extend(checks.into_iter().map(|check| Rule { checks: vec![check], action }));
            } else {
                rules.push(Rule { checks, action });
            }
        }
        for number in calls.names.iter().flatten().chain(&calls.name).filter_map(|name| number_of(&name.0)) {
            newest = newest.max(number + 1);
            said += rules.len() - first as usize;
            if said > MOST_RULES {
                return Err(format!("more than {MOST_RULES} rules for calls; say less about arguments"));
            }
            by_number[number].extend(first..rules.len() as u32);
        }
    }

    // The author cannot have meant calls that are newer than the newest one named: libc must find them absent (ENOSYS), not denied.
    let (from, beyond) = if default.is_permissive() { (machine.arch.end(), default) } else { (newest, Action::ENOSYS) };
    let mut policy = Policy::new(from, default, beyond);
    let mut decided: Vec<(&[u32], u16)> = Vec::new();
    for (number, chosen) in by_number.iter().enumerate().filter(|(_, chosen)| !chosen.is_empty()) {
        let known = decided.iter().find(|(same, _)| same == chosen).map(|(_, decision)| *decision);
        let decision = known.unwrap_or_else(|| {
            let chosen = chosen.iter().map(|rule| rules[*rule as usize].clone()).collect();
            policy.intern(Decision::of(chosen, default))
        });
        decided.push((chosen, decision));
        policy.decide(number, decision);
    }
    Ok(policy)
}

/// The parser's message without the words that it quotes from the file: those stand before what it expected.
fn without_content(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let is_ours = ["missing field ", "duplicate field "].iter().any(|start| text.starts_with(start));
    if is_ours || !error.is_data() {
        return text;
    }
    match text.rfind("expected ") {
        Some(at) => text[at..].to_owned(),
        None => format!("an impossible value at line {} column {}", error.line(), error.column()),
    }
}

/// Checks the fields that have no effect here, and refuses those that are not supported.
fn check_surroundings(profile: &Profile<'_>) -> Result<(), String> {
    let is_unknown = |Word(name): &Word<'_>| !name.starts_with("SCMP_ARCH_");
    if let Some(at) = profile.architectures.iter().flatten().position(is_unknown) {
        return Err(format!("architectures[{at}]: unknown; it would begin with SCMP_ARCH_"));
    }
    let is_unknown =
        |entry: &ArchMap<'_>| entry.sub_architectures.iter().flatten().chain([&entry.architecture]).any(is_unknown);
    if let Some(at) = profile.arch_map.iter().flatten().position(is_unknown) {
        return Err(format!("archMap[{at}]: unknown architecture; it would begin with SCMP_ARCH_"));
    }
    // They concern other threads, of which there are none, the log, and a mitigation that kernels since 5.16 leave off anyway.
    let known = ["SECCOMP_FILTER_FLAG_TSYNC", "SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW"];
    if let Some(at) = profile.flags.iter().flatten().position(|Word(flag)| !known.contains(&&**flag)) {
        return Err(format!("flags[{at}]: unknown; known are {}", known.join(", ")));
    }
    if profile.listener_path.as_ref().is_some_and(|path| !path.0.is_empty()) {
        return Err(
            "\"listenerPath\": there is nobody here to ask about a call; take it and SCMP_ACT_NOTIFY out".to_owned()
        );
    }
    Ok(())
}

fn action(
    (field, errno_field): (&str, &str),
    name: &Word<'_>,
    errno: Option<i64>,
    errno_name: Option<&Word<'_>>,
) -> Result<Action, String> {
    let action = match &*name.0 {
        "SCMP_ACT_ERRNO" => {
            let errno = match (errno, errno_name) {
                (None, Some(_)) => return Err(format!("a name of an errno without {errno_field:?}, its number")),
                (errno, _) => errno.unwrap_or(i64::from(libc::EPERM)),
            };
            let in_range = u16::try_from(errno).ok().filter(|errno| i64::from(*errno) <= LARGEST_ERRNO);
            let errno = in_range.ok_or_else(|| format!("{errno_field:?} is not between 0 and {LARGEST_ERRNO}"))?;
            return Ok(Action::error(errno));
        }
        "SCMP_ACT_ALLOW" => Action::ALLOW,
        "SCMP_ACT_LOG" => Action::LOG,
        "SCMP_ACT_TRAP" => Action::TRAP,
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Action::KILL_THREAD,
        "SCMP_ACT_KILL_PROCESS" => Action::KILL_PROCESS,
        known @ ("SCMP_ACT_NOTIFY" | "SCMP_ACT_TRACE") => {
            return Err(format!("{field:?} {known}: there is nobody here to ask about a call; take SCMP_ACT_ERRNO"));
        }
        _ => {
            let known = "SCMP_ACT_ALLOW, _ERRNO, _KILL, _KILL_PROCESS, _KILL_THREAD, _TRAP and _LOG";
            return Err(format!("unknown {field:?}; known are {known}"));
        }
    };
    // Some tools write a zero for every rule.
    if errno.is_some_and(|errno| errno != 0) {
        return Err(format!("{errno_field:?} goes with SCMP_ACT_ERRNO, not with {}", name.0));
    }
    Ok(action)
}

fn check(arg: &Arg<'_>) -> Result<Check, String> {
    let Some(argument) = u8::try_from(arg.index).ok().filter(|index| *index < 6) else {
        return Err("\"index\" is not between 0 and 5".to_owned());
    };
    let equal = Test::Masked { mask: u64::MAX, value: arg.value };
    let (test, not) = match &*arg.op.0 {
        "SCMP_CMP_EQ" => (equal, false),
        "SCMP_CMP_NE" => (equal, true),
        "SCMP_CMP_GT" => (Test::Greater(arg.value), false),
        "SCMP_CMP_LE" => (Test::Greater(arg.value), true),
        "SCMP_CMP_GE" => (Test::NotLess(arg.value), false),
        "SCMP_CMP_LT" => (Test::NotLess(arg.value), true),
        "SCMP_CMP_MASKED_EQ" if arg.value_two & !arg.value != 0 => {
            return Err("\"valueTwo\" has bits that \"value\", the mask, has not".to_owned());
        }
        "SCMP_CMP_MASKED_EQ" => (Test::Masked { mask: arg.value, value: arg.value_two }, false),
        _ => {
            let known = "SCMP_CMP_EQ, _NE, _LT, _LE, _GT, _GE and _MASKED_EQ";
            return Err(format!("unknown \"op\"; known are {known}"));
        }
    };
    Ok(Check { argument, test, not })
}

/// Whether the rule applies to this machine and these capabilities: all that it includes, none that it excludes.
fn applies(calls: &Calls<'_>, machine: &Machine<'_>) -> Result<bool, String> {
    let holds = |Word(name): &Word<'_>| {
        let capability = Capability::from_str(name).map_err(|_| "\"caps\": unknown capability".to_owned())?;
        Ok::<bool, String>(machine.held.contains(&capability))
    };
    let is_here = |Word(name): &Word<'_>| Arch::from_name(name) == Some(machine.arch);
    let runs_on = |Word(version): &Word<'_>| {
        let wanted =
            super::kernel_version(version.as_bytes()).map_err(|_| "\"minKernel\" is not a version".to_owned())?;
        Ok::<bool, String>(machine.kernel >= wanted)
    };
    let mut applies = true;
    if let Some(includes) = &calls.includes {
        for name in includes.caps.iter().flatten() {
            applies &= holds(name)?;
        }
        let arches = includes.arches.as_deref().unwrap_or_default();
        applies &= arches.is_empty() || arches.iter().any(is_here);
        applies &= includes.min_kernel.as_ref().filter(|v| !v.0.is_empty()).map_or(Ok(true), runs_on)?;
    }
    if let Some(excludes) = &calls.excludes {
        for name in excludes.caps.iter().flatten() {
            applies &= !holds(name)?;
        }
        applies &= !excludes.arches.iter().flatten().any(is_here);
        applies &= !excludes.min_kernel.as_ref().filter(|v| !v.0.is_empty()).map_or(Ok(false), runs_on)?;
    }
    Ok(applies)
}
