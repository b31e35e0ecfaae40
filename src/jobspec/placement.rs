//! Where a job may run, and when it starts: what a scheduler decides elsewhere.

use super::schema::{CONSTRAINT, PARAMETERIZED};
use super::section::Section;

/// The `constraint` blocks of a job, group or task. What says that instances stay apart holds on one machine as far as
/// anything can; every other one says where not to run, and is not compared with this machine.
pub(super) fn constraints(owner: &Section<'_>) {
    for block in owner.blocks_of("constraint") {
        let section = Section::open(format!("constraint of {}", owner.name), block, &CONSTRAINT, owner.sink);
        for key in CONSTRAINT.keys.iter().filter(|k| k.name != "distinct_hosts") {
            section.string(key.name);
        }
        let operator = section.string("operator").unwrap_or_default();
        let apart = section.bool("distinct_hosts").is_some() || section.attr("distinct_property").is_some();
        if apart || matches!(operator.as_str(), "distinct_hosts" | "distinct_property") {
            let what = "all instances run on this machine";
            owner
                .sink
                .warn(block.pos, format!("constraint has no effect with agentbin run where it is distinct: {what}"));
        } else {
            let message = format!("constraint in {} is not supported yet by agentbin run; remove it", owner.name);
            owner.refuse(block.pos, message);
        }
    }
}

/// The `parameterized` block of a job: one that needs nothing from a dispatch can be started as it is.
pub(super) fn parameterized(job: &Section<'_>) {
    let Some(section) = job.child("parameterized", &PARAMETERIZED) else { return };
    section.texts("meta_optional");
    let meta = section.texts("meta_required").unwrap_or_default();
    let payload = section.string("payload");
    if payload.as_deref() == Some("required") {
        let message =
            format!("{} needs a payload, which agentbin run cannot give it yet; remove payload", section.name);
        section.refuse(section.pos_of("payload"), message);
    } else if let Some(first) = meta.first() {
        let message = format!(
            "{} needs the metadata of a dispatch ({}), which agentbin run cannot give it yet; remove meta_required and \
             set {first} in meta",
            section.name,
            meta.join(", ")
        );
        section.refuse(section.pos_of("meta_required"), message);
    } else {
        job.sink.warn(section.pos, "parameterized has no effect with agentbin run: the job is started once, now");
    }
}
