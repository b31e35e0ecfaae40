//! Constraints: on which machines a job may run.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use super::{Pos, VersionDemand, VersionRules, go_regex, shortened};
use crate::spec::collections::BTreeSet;

/// How a constraint compares, in the words of a job file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[expect(missing_docs, reason = "Nomad's operators")]
pub enum Operator {
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
    Version,
    Semver,
    Regexp,
    SetContains,
    SetContainsAny,
    IsSet,
    IsNotSet,
    DistinctHosts,
    DistinctProperty,
}

impl Operator {
    /// Every word and what it means; the first word of an operator is the one that is shown.
    pub const WORDS: &[(&str, Operator)] = &[
        ("=", Operator::Equal),
        ("==", Operator::Equal),
        ("is", Operator::Equal),
        ("!=", Operator::NotEqual),
        ("not", Operator::NotEqual),
        ("<", Operator::Less),
        ("<=", Operator::AtMost),
        (">", Operator::Greater),
        (">=", Operator::AtLeast),
        ("version", Operator::Version),
        ("semver", Operator::Semver),
        ("regexp", Operator::Regexp),
        ("set_contains", Operator::SetContains),
        ("set_contains_all", Operator::SetContains),
        ("set_contains_any", Operator::SetContainsAny),
        ("is_set", Operator::IsSet),
        ("is_not_set", Operator::IsNotSet),
        ("distinct_hosts", Operator::DistinctHosts),
        ("distinct_property", Operator::DistinctProperty),
    ];

    /// The operator of a word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Operator> {
        Operator::WORDS.iter().find(|(known, _)| *known == word).map(|(_, operator)| *operator)
    }

    /// Whether it is about instances that stay apart, and not about one machine.
    #[must_use]
    pub const fn is_distinct(self) -> bool {
        matches!(self, Operator::DistinctHosts | Operator::DistinctProperty)
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Operator::WORDS.iter().find(|(_, operator)| operator == self).map_or("", |(word, _)| word);
        f.write_str(word)
    }
}

/// A `constraint` block.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Constraint {
    /// What is compared: `${attr.kernel.name}`, or a text that stands for itself.
    pub attribute: String,
    /// How.
    pub operator: Operator,
    /// With what; also a reference, or a text.
    pub value: String,
    /// Where it stands in the job file.
    pub pos: Pos,
}

/// Which argument of a constraint is wrong, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConstraintMistake {
    /// The attribute.
    Attribute(String),
    /// The value.
    Value(String),
}

/// What can be referred to besides `attr.*` and `meta.*`.
const NODE: [&str; 5] = ["node.unique.id", "node.unique.name", "node.datacenter", "node.class", "node.pool"];
/// Bytes of a value in a message.
const SHOWN: usize = 200;

impl Constraint {
    /// What no machine could make sense of.
    #[must_use]
    pub fn mistake(&self) -> Option<ConstraintMistake> {
        let value = |problem: String| Some(ConstraintMistake::Value(problem));
        let operator = self.operator;
        let wrong_value = match operator {
            Operator::Regexp => go_regex(&self.value).err().and_then(value),
            Operator::Version => {
                VersionDemand::parse(&self.value, VersionRules::Loose).err().map(|e| e.to_string()).and_then(value)
            }
            Operator::Semver => {
                VersionDemand::parse(&self.value, VersionRules::Semver).err().map(|e| e.to_string()).and_then(value)
            }
            Operator::IsSet | Operator::IsNotSet if !self.value.is_empty() => {
                value(format!("{operator} takes no value; remove it"))
            }
            Operator::IsSet | Operator::IsNotSet | Operator::DistinctHosts => None,
            Operator::DistinctProperty if self.allowed().is_none() => {
                value(format!("distinct_property takes a count of at least 1 as value, not \"{}\"", self.value))
            }
            Operator::DistinctProperty => None,
            _ if self.value.is_empty() => value(format!("operator \"{operator}\" needs a value; add value = \"...\"")),
            _ => None,
        };
        if wrong_value.is_some() || operator == Operator::DistinctHosts {
            return wrong_value;
        }
        self.wrong_attribute().map(ConstraintMistake::Attribute)
    }

    fn wrong_attribute(&self) -> Option<String> {
        let text = &self.attribute;
        let Some(name) = text.strip_prefix('$') else {
            return text.is_empty().then(|| {
                format!(
                    "operator \"{}\" needs an attribute; add attribute = \"${{attr.kernel.name}}\" or another",
                    self.operator
                )
            });
        };
        let Some(key) = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')) else {
            let key = name.trim_matches(['{', '}']);
            return Some(format!("the attribute \"{text}\" needs braces; write ${{{key}}}"));
        };
        let known = key.starts_with("device.") || is_known(key);
        (!known).then(|| {
            format!(
                "the attribute \"{text}\" is not known; use ${{attr...}}, ${{meta...}} or one of {}",
                NODE.map(|n| format!("${{{n}}}")).join(", ")
            )
        })
    }

    /// So many instances may have the same value of a property.
    fn allowed(&self) -> Option<u64> {
        if self.value.is_empty() { Some(1) } else { self.value.parse().ok().filter(|count| *count > 0) }
    }

    /// Whether it is met on a machine, of which `lookup` knows `attr.*`, `meta.*` and `node.*`, by so many instances there.
    #[must_use]
    pub fn is_met(&self, instances: u64, lookup: &dyn Fn(&str) -> Option<String>) -> bool {
        let left = resolve(&self.attribute, lookup);
        match self.operator {
            Operator::DistinctHosts => instances < 2 || self.is_off(),
            // What the machine does not have cannot be distinct.
            Operator::DistinctProperty => left.is_some() && instances <= self.allowed().unwrap_or(1),
            operator => compare(operator, left.as_deref(), resolve(&self.value, lookup).as_deref()),
        }
    }

    fn is_off(&self) -> bool {
        matches!(self.value.as_str(), "0" | "f" | "F" | "false" | "FALSE" | "False")
    }

    /// What is wanted, what the machine has, and what to do about it.
    #[must_use]
    pub fn explain(&self, instances: u64, lookup: &dyn Fn(&str) -> Option<String>) -> String {
        let Constraint { attribute, operator, value, .. } = self;
        let left = resolve(attribute, lookup);
        let lower = "lower count, or remove the constraint";
        match operator {
            Operator::DistinctHosts => {
                return format!(
                    "distinct_hosts wants a machine for each of {instances} instances, and there is only this one; {lower}"
                );
            }
            Operator::DistinctProperty if left.is_some() => {
                let allowed = self.allowed().unwrap_or(1);
                return format!(
                    "distinct_property wants at most {allowed} of {instances} instances where {} is the same, and all are on \
                     this machine; {lower}",
                    shown_target(attribute)
                );
            }
            _ => {}
        }
        let right = resolve(value, lookup);
        let mut wanted = format!("{} {operator}", shown_target(attribute));
        if !matches!(operator, Operator::IsSet | Operator::IsNotSet | Operator::DistinctProperty) {
            _ = write!(wanted, " {}", shown_target(value));
            if value.starts_with("${") {
                _ = write!(wanted, " ({} here)", shown(right.as_deref()));
            }
        }
        let bare = ["attr.", "meta.", "node."].iter().any(|start| attribute.starts_with(start));
        let fix = if bare {
            format!("write ${{{}}}, as a text alone stands for itself", shortened(attribute, SHOWN))
        } else if attribute.starts_with("${meta.") || attribute == "${node.class}" {
            "agentbin run has no class of the node, and the meta of a --config file; write it there, or \
                 remove the constraint"
                .to_owned()
        } else if *operator == Operator::Version && compare(Operator::Semver, left.as_deref(), right.as_deref()) {
            // Kernels are called so: 6.1.0-37-amd64.
            "a dash makes that a version before its release, which operator \"version\" takes for none; use \"semver\""
                .to_owned()
        } else {
            "run the job where that is so, or remove the constraint".to_owned()
        };
        let found = if attribute.starts_with("${") { "this machine has" } else { "that is" };
        format!("it wants {wanted}, and {found} {}; {fix}", shown(left.as_deref()))
    }
}

fn shown_target(target: &str) -> Cow<'_, str> {
    if target.starts_with("${") { shortened(target, SHOWN) } else { format!("\"{}\"", shortened(target, SHOWN)).into() }
}

fn shown(value: Option<&str>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| format!("\"{}\"", shortened(value, SHOWN)))
}

fn is_known(key: &str) -> bool {
    key.starts_with("attr.") || key.starts_with("meta.") || NODE.contains(&key)
}

/// What a text stands for on the machine; one that is not a reference stands for itself.
fn resolve<'a>(target: &'a str, lookup: &dyn Fn(&str) -> Option<String>) -> Option<Cow<'a, str>> {
    let Some(key) = target.strip_prefix("${") else { return Some(Cow::Borrowed(target)) };
    let key = key.strip_suffix('}').unwrap_or(key);
    if is_known(key) { lookup(key).map(Cow::Owned) } else { None }
}

/// Whether a comparison holds; `None` is what the machine does not have.
fn compare(operator: Operator, left: Option<&str>, right: Option<&str>) -> bool {
    let both =
        |holds: &dyn Fn(&str, &str) -> bool| matches!((left, right), (Some(left), Some(right)) if holds(left, right));
    let version =
        |rules| both(&|left, right| VersionDemand::parse(right, rules).is_ok_and(|demand| demand.is_met_by(left)));
    match operator {
        Operator::Equal => both(&|left, right| left == right),
        Operator::NotEqual => left.unwrap_or_default() != right.unwrap_or_default(),
        Operator::Less | Operator::AtMost | Operator::Greater | Operator::AtLeast => {
            both(&|left, right| is_ordered(operator, left, right))
        }
        Operator::Version => version(VersionRules::Loose),
        Operator::Semver => version(VersionRules::Semver),
        Operator::Regexp => both(&|left, right| go_regex(right).is_ok_and(|pattern| pattern.is_match(left))),
        Operator::SetContains => both(&|left, right| words(right).is_subset(&words(left))),
        Operator::SetContainsAny => both(&|left, right| !words(right).is_disjoint(&words(left))),
        Operator::IsSet => left.is_some(),
        Operator::IsNotSet => left.is_none(),
        // They compare instances.
        Operator::DistinctHosts | Operator::DistinctProperty => true,
    }
}

fn words(list: &str) -> BTreeSet<&str> {
    list.split(',').map(str::trim).collect()
}

/// As whole numbers where both are, else as numbers where both are, else as text.
fn is_ordered(operator: Operator, left: &str, right: &str) -> bool {
    let holds = |order: Option<std::cmp::Ordering>| {
        order.is_some_and(|order| match operator {
            Operator::Less => order.is_lt(),
            Operator::AtMost => order.is_le(),
            Operator::Greater => order.is_gt(),
            _ => order.is_ge(),
        })
    };
    if let (Ok(left), Ok(right)) = (left.parse::<i64>(), right.parse::<i64>()) {
        return holds(Some(left.cmp(&right)));
    }
    match (float(left), float(right)) {
        (Some(left), Some(right)) => holds(left.partial_cmp(&right)),
        _ => holds(Some(left.cmp(right))),
    }
}

/// A number; one that is too large is none.
fn float(text: &str) -> Option<f64> {
    let is_too_large = |number: &f64| number.is_infinite() && text.bytes().any(|b| b.is_ascii_digit());
    text.parse().ok().filter(|number| !is_too_large(number))
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::*;

    fn constraint(attribute: &str, operator: &str, value: &str) -> Constraint {
        let operator = Operator::from_word(operator).unwrap();
        Constraint { attribute: attribute.to_owned(), operator, value: value.to_owned(), pos: Pos::default() }
    }

    fn node(x: Option<&str>) -> impl Fn(&str) -> Option<String> {
        move |key| match key {
            "attr.x" => x.map(str::to_owned),
            "meta.m" => Some("2".to_owned()),
            "node.unique.id" => Some("id".to_owned()),
            "node.unique.name" => Some("name".to_owned()),
            "node.class" => Some(String::new()),
            "node.pool" => Some("default".to_owned()),
            "node.datacenter" | "node.region" => Some("dc1".to_owned()),
            _ => None,
        }
    }

    /// J2: each line of the table is what the scheduler and the servers of a real Nomad say, `tests/constraints/main.go`.
    #[test]
    fn j2_constraints_are_met_where_nomad_takes_them_for_met() {
        let table = include_str!("../../tests/constraints/table.txt");
        let mut wrong = Vec::new();
        let (mut lefts, mut cases, mut met, mut malformed) = (Vec::new(), 0, 0, 0);
        for line in table.lines() {
            let row: Json = serde_json::from_str(line).unwrap();
            if let Some(values) = row["lefts"].as_array() {
                values.clone_into(&mut lefts);
                continue;
            }
            let word = |key: &str| row[key].as_str().unwrap();
            let is_malformed = row["malformed"] == true;
            let Some(operator) = Operator::from_word(word("operator")) else {
                // No operator is `=` in a job file.
                assert!(is_malformed && matches!(word("operator"), "other" | ""), "{line}");
                continue;
            };
            let constraint = Constraint { operator, ..constraint(word("attribute"), "=", word("right")) };
            if constraint.mistake().is_some() != is_malformed {
                wrong.push(format!("{:?}: {line}", constraint.mistake()));
            }
            malformed += usize::from(is_malformed);
            assert_eq!(word("met").len(), lefts.len());
            for (left, expected) in lefts.iter().zip(word("met").bytes()) {
                // The count of instances is compared by others.
                let is_met = operator.is_distinct() || constraint.is_met(1, &node(left.as_str()));
                if is_met != (expected == b'1') {
                    wrong.push(format!("{is_met}: {left}: {line}"));
                }
                cases += 1;
                met += usize::from(expected == b'1');
            }
        }
        assert!(wrong.is_empty(), "{} are otherwise:\n{}", wrong.len(), wrong.join("\n"));
        assert!(cases > 5000 && met > 1000 && malformed > 100, "{cases} {met} {malformed}");
    }

    #[test]
    fn j2_instances_are_counted_where_they_have_to_be_apart() {
        let lookup = node(Some("here"));
        let is_met =
            |attribute, operator, value, instances| constraint(attribute, operator, value).is_met(instances, &lookup);
        for value in ["", "true", "1", "yes"] {
            assert!(is_met("", "distinct_hosts", value, 1) && !is_met("", "distinct_hosts", value, 2), "{value}");
        }
        for value in ["false", "0", "F"] {
            assert!(is_met("", "distinct_hosts", value, 2), "{value}");
        }
        assert!(is_met("${attr.x}", "distinct_property", "", 1) && !is_met("${attr.x}", "distinct_property", "", 2));
        assert!(is_met("${attr.x}", "distinct_property", "3", 3) && !is_met("${attr.x}", "distinct_property", "3", 4));
        assert!(!is_met("${meta.rack}", "distinct_property", "9", 1));
    }

    #[test]
    fn j2_what_is_not_met_says_what_was_wanted_and_found() {
        let lookup = node(Some("amd64"));
        let end = "run the job where that is so, or remove the constraint";
        let without = "agentbin run has no class of the node, and the meta of a --config file; write it there, or \
             remove the constraint";
        for (attribute, operator, value, instances, expected) in [
            ("${attr.x}", "==", "arm64", 1, format!("it wants ${{attr.x}} = \"arm64\", and this machine has \"amd64\"; {end}")),
            ("${node.class}", "=", "gpu", 1, format!("it wants ${{node.class}} = \"gpu\", and this machine has \"\"; {without}")),
            (
                "${meta.rack}",
                "is_set",
                "",
                1,
                format!("it wants ${{meta.rack}} is_set, and this machine has none; {without}"),
            ),
            (
                "${attr.x}",
                "=",
                "${meta.m}",
                1,
                format!("it wants ${{attr.x}} = ${{meta.m}} (\"2\" here), and this machine has \"amd64\"; {end}"),
            ),
            (
                "attr.x",
                "=",
                "amd64",
                1,
                "it wants \"attr.x\" = \"amd64\", and that is \"attr.x\"; write ${attr.x}, as a text alone stands for itself".to_owned(),
            ),
            (
                "",
                "distinct_hosts",
                "true",
                3,
                "distinct_hosts wants a machine for each of 3 instances, and there is only this one; lower count, or remove the constraint"
                    .to_owned(),
            ),
        ] {
            let constraint = constraint(attribute, operator, value);
            assert!(!constraint.is_met(instances, &lookup));
            assert_eq!(constraint.explain(instances, &lookup), expected);
        }
        let kernel = constraint("${attr.x}", "version", ">= 4.0").explain(1, &node(Some("6.1.0-37-amd64")));
        assert!(kernel.ends_with("which operator \"version\" takes for none; use \"semver\""), "{kernel}");
    }
}
