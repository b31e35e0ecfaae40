//! Where a job may run: what a scheduler decides elsewhere.

use super::budget::steps_of_pattern;
use super::diag::did_you_mean;
use super::schema::CONSTRAINT;
use super::section::{Expanded, Section};
use crate::spec::{Constraint, ConstraintMistake, Operator};

/// What comparing a constraint costs beside the length of its text.
const COMPARE_STEPS: u64 = 10;
const BYTES_PER_STEP: u64 = 16;

/// Keys that write operator and value in one, and those that Nomad accepts and passes over.
const SHORT: [&str; 4] = ["version", "semver", "regexp", "set_contains"];
const IDLE: [&str; 4] = ["set_contains_all", "set_contains_any", "is_set", "is_not_set"];

/// The `constraint` blocks of a job or group.
pub(super) fn constraints(owner: &Section<'_>) -> Vec<Constraint> {
    owner.blocks_of("constraint").filter_map(|block| constraint(owner, block, false)).collect()
}

/// Those of a task, which is never placed alone.
pub(super) fn task_constraints(owner: &Section<'_>) -> Vec<Constraint> {
    owner.blocks_of("constraint").filter_map(|block| constraint(owner, block, true)).collect()
}

fn constraint(owner: &Section<'_>, block: &Expanded<'_>, in_task: bool) -> Option<Constraint> {
    let section = Section::open(format!("constraint of {}", owner.name), block, &CONSTRAINT, owner.sink);
    let text = |key: &str| section.string(key).unwrap_or_default();
    let (mut attribute, mut word, mut value) = (text("attribute"), text("operator"), text("value"));
    // Where the value and the operator stand.
    let (mut of_value, mut of_word) = ("value", "operator");
    for key in SHORT {
        let short = text(key);
        if !short.is_empty() {
            (word, value, of_value, of_word) = (key.to_owned(), short, key, key);
        }
    }
    // A mistake in one that is passed over is one as well.
    for key in IDLE {
        section.string(key);
    }
    if let Some(distinct) = section.bool("distinct_hosts") {
        (word, value, of_word) = ("distinct_hosts".to_owned(), distinct.to_string(), "distinct_hosts");
    }
    let property = text("distinct_property");
    if !property.is_empty() {
        (word, attribute, of_word) = ("distinct_property".to_owned(), property, "distinct_property");
    }
    if word.is_empty() {
        "=".clone_into(&mut word);
    }
    let Some(operator) = Operator::from_word(&word) else {
        let hint = did_you_mean(&word, Operator::WORDS.iter().map(|(known, _)| *known));
        let hint = if hint.is_empty() { "; use one such as =, version or is_set".to_owned() } else { hint };
        section.error(section.pos_of(of_word), format!("unknown operator \"{word}\" in {}{hint}", section.name));
        return None;
    };
    if in_task && operator.is_distinct() {
        let message = format!("{operator} in {} has no place in a task; move it to the group", section.name);
        section.error(section.pos_of(of_word), message);
        return None;
    }
    // A pattern is compiled twice: to say what is wrong with it, and to compare.
    let compile = if operator == Operator::Regexp { 2 * steps_of_pattern(&value) } else { COMPARE_STEPS };
    let steps = compile + (attribute.len() + value.len()) as u64 / BYTES_PER_STEP;
    owner.sink.ok(section.scope.count_steps(steps, section.pos))?;
    let constraint = Constraint { attribute, operator, value, pos: block.pos.clone() };
    match constraint.mistake() {
        None => return Some(constraint),
        Some(ConstraintMistake::Attribute(problem)) => {
            section.error(section.pos_of("attribute"), format!("{problem}, in {}", section.name));
        }
        Some(ConstraintMistake::Value(problem)) => {
            let idle = IDLE.iter().find(|key| section.attr(key).is_some()).filter(|_| constraint.value.is_empty());
            let problem = match idle {
                Some(key) => format!("Nomad takes no notice of {key} as a key; write operator = \"{key}\""),
                None => problem,
            };
            section.error(section.pos_of(of_value), format!("{problem}, in {}", section.name));
        }
    }
    None
}
