//! Whether a job's constraints allow this machine.

use std::path::Path;

use super::drivers::{add_drivers, wanted};
use super::plugins::{Asked, Given, Wanted};
use crate::alloc::Machine;
use crate::alloc::machine;
use crate::driver::Fingerprint;
use crate::jobspec::{Diagnostic, Parsed};
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{Job, Order as _};

/// Most unmet constraints that are reported.
const MOST_SAID: usize = 50;

/// Refuses each constraint that this machine does not meet. Nothing on the machine is made or changed.
///
/// # Errors
/// When its cgroups cannot be inspected; as [`Asked::start`].
pub(super) fn check(
    parsed: &mut Parsed,
    data_dir: Option<&Path>,
    cgroup_parent: Option<&Path>,
    given: &Given<'_>,
) -> anyhow::Result<()> {
    let mut wanted = BTreeSet::new();
    let mut has_any = false;
    for constraint in parsed.job.all_constraints() {
        has_any = true;
        add_drivers(&constraint.attribute, &mut wanted);
        add_drivers(&constraint.value, &mut wanted);
    }
    if !has_any {
        return Ok(());
    }
    let mut node = machine::look(data_dir, cgroup_parent)?;
    node.meta.extend(given.config.meta.clone());
    if !wanted.is_empty() {
        let (drivers, settings) = machine::drivers_to_ask(cgroup_parent)?;
        let asked = Asked::start(given, &Wanted::These(wanted.clone()), &settings, drivers)?;
        node.add_drivers(&asked.hear(machine::fingerprints(&asked.drivers, &wanted, None)));
    }
    let lookup = |key: &str| node.lookup(key).map(str::to_owned);
    let unmet = parsed.job.unmet(&lookup).take(MOST_SAID).map(|(pos, why)| Diagnostic::new(pos, why));
    parsed.refusals.extend(unmet.collect::<Vec<_>>());
    parsed.refusals.order_by_key(|refusal| (refusal.pos.line, refusal.pos.column));
    Ok(())
}

/// Fingerprints the drivers that the job refers to (`${attr.driver.docker.version}`). Not the others: a Java runtime is slow to
/// report its version.
pub(super) async fn ask_drivers(job: &Job, machine: &Machine) -> BTreeMap<String, Fingerprint> {
    let wanted = wanted(job);
    if wanted.is_empty() { BTreeMap::new() } else { machine::fingerprints(&machine.drivers, &wanted, None).await }
}
