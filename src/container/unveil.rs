//! Restricts what a task may do with files, beyond the permissions of its user, by Landlock.

use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, Ruleset, RulesetAttr as _,
    RulesetCreated, RulesetCreatedAttr as _, make_bitflags,
};
use rustix::fs::{FileType, Mode, OFlags};

use super::config::{Failure, Step as _};
use crate::spec::Unveil;
use crate::sys::path::Root;

/// The first version that also restricts `truncate(2)`: with an older one, a task could truncate files that it may not write to.
const NEEDED: ABI = ABI::V3;

/// Landlock rules that are not applied yet.
pub(super) struct Prepared {
    ruleset: RulesetCreated,
    /// One of the rules lets the task change files or directories; devices do not count.
    pub(super) changes_files: bool,
}

/// Opens what the rules name below `/`, the task's root. `None` without a rule.
///
/// Follows no link: the task may have planted one in an earlier run to get further access.
pub(super) fn prepare(rules: &[Unveil]) -> Result<Option<Prepared>, Failure> {
    if rules.is_empty() {
        return Ok(None);
    }
    let lacking = |error: landlock::RulesetError| {
        Failure::invalid(
            "prepare unveil",
            format!("unveil needs Linux 6.2 or newer with Landlock among its security modules (lsm=): {error}"),
        )
    };
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(NEEDED))
        .and_then(Ruleset::create)
        .map_err(lacking)?
        .no_new_privs(false);
    let root = Root::open(Path::new("/")).step(|| "open the root".to_owned())?;
    let mut changes_files = false;
    for rule in rules {
        let step = || format!("unveil {rule}");
        let relative = rule.path.strip_prefix("/").unwrap_or(&rule.path);
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let opened = root.open_beneath(relative, OFlags::PATH, Mode::empty());
        let place = opened.map_err(|error| {
            let mend = match error.raw_os_error() {
                Some(libc::ENOENT) => ": it must be there when the task starts",
                Some(libc::ELOOP) => ": name the place to which the link leads",
                _ => "",
            };
            Failure::invalid(step(), format!("{}: {error}{mend}", step()))
        })?;
        let stat = rustix::fs::fstat(&place).step(step)?;
        let mut access = access(rule);
        let kind = FileType::from_raw_mode(stat.st_mode);
        let holds_data = matches!(kind, FileType::Directory | FileType::RegularFile);
        changes_files |= (rule.write || rule.create) && holds_data;
        if kind != FileType::Directory {
            access &= AccessFs::from_file(NEEDED);
        }
        if access.is_empty() {
            return Err(Failure::invalid(step(), format!("{}: of these only directories have something", step())));
        }
        ruleset = ruleset.add_rule(PathBeneath::new(place, access)).step(step)?;
    }
    Ok(Some(Prepared { ruleset, changes_files }))
}

/// Applies the rules to this process and all that it becomes and starts. Needs `CAP_SYS_ADMIN`, or `no_new_privs`.
pub(super) fn restrict(prepared: Prepared) -> Result<(), Failure> {
    prepared.ruleset.restrict_self().step(|| "unveil".to_owned()).map(drop)
}

fn access(rule: &Unveil) -> BitFlags<AccessFs> {
    let create = make_bitflags!(AccessFs::{
        MakeBlock | MakeChar | MakeDir | MakeFifo | MakeReg | MakeSock | MakeSym | Refer | RemoveDir | RemoveFile
    });
    let parts = [
        (rule.read, make_bitflags!(AccessFs::{ReadDir | ReadFile})),
        (rule.write, make_bitflags!(AccessFs::{Truncate | WriteFile})),
        (rule.execute, AccessFs::Execute.into()),
        (rule.create, create),
    ];
    parts.into_iter().filter(|(asked, _)| *asked).map(|(_, access)| access).fold(BitFlags::empty(), |all, a| all | a)
}
