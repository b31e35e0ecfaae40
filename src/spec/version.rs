//! Versions and what a job file demands of them, by the rules of the package that Nomad compares with (`version`) and by
//! those of Semantic Versioning 2.0 (`semver`).

use std::cmp::Ordering;

/// A version: numbers, and what comes before a release. What follows a `+` says nothing of its order.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    /// At least three.
    numbers: Vec<i64>,
    /// How many of them were written.
    written: usize,
    /// `beta.2`; empty for a release.
    pre: String,
}

/// How a demand is read and compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionRules {
    /// `1.2`, `1.2beta` and `~>` are taken; a version before a release meets no demand but one that names such a one of the
    /// same numbers.
    Loose,
    /// A dash stands in front of what comes before a release, and such a version is simply older.
    Semver,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    Equal,
    NotEqual,
    Greater,
    Less,
    AtLeast,
    AtMost,
    /// `~>`: at least this, with no other numbers before the last one that is written.
    About,
}

/// What a text such as `>= 1.2, < 2.0` demands of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionDemand {
    rules: VersionRules,
    /// All of them have to hold.
    parts: Vec<(Relation, Version)>,
}

/// A text that demands nothing of a version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" compares with no version; write for example \">= 1.2, < 2.0\"")]
pub struct VersionDemandError(String);

impl VersionDemand {
    /// Reads demands with commas between them.
    ///
    /// # Errors
    /// The first one that is none.
    pub fn parse(text: &str, rules: VersionRules) -> Result<VersionDemand, VersionDemandError> {
        let part = |part: &str| demand(part, rules).ok_or_else(|| VersionDemandError(part.to_owned()));
        Ok(VersionDemand { rules, parts: text.split(',').map(part).collect::<Result<_, _>>()? })
    }

    /// Whether a text is a version that meets them all.
    #[must_use]
    pub fn is_met_by(&self, version: &str) -> bool {
        let Some(version) = Version::parse(version, VersionRules::Loose) else { return false };
        self.parts.iter().all(|(relation, wanted)| match self.rules {
            VersionRules::Loose => is_met_loosely(*relation, &version, wanted),
            VersionRules::Semver => relation.holds(version.compare(wanted)),
        })
    }
}

impl Relation {
    const WORDS: [(&str, Relation); 7] = [
        (">=", Relation::AtLeast),
        ("<=", Relation::AtMost),
        ("!=", Relation::NotEqual),
        ("~>", Relation::About),
        (">", Relation::Greater),
        ("<", Relation::Less),
        ("=", Relation::Equal),
    ];

    const fn holds(self, order: Ordering) -> bool {
        match self {
            Relation::Equal => order.is_eq(),
            Relation::NotEqual => order.is_ne(),
            Relation::Greater => order.is_gt(),
            Relation::Less => order.is_lt(),
            Relation::AtLeast | Relation::About => order.is_ge(),
            Relation::AtMost => order.is_le(),
        }
    }
}

/// One demand; without a relation it is equality.
fn demand(text: &str, rules: VersionRules) -> Option<(Relation, Version)> {
    let blank = ['\t', '\n', '\x0c', '\r', ' '];
    let text = text.trim_matches(blank);
    let found = Relation::WORDS.iter().find_map(|(word, relation)| Some((*relation, text.strip_prefix(word)?)));
    let (relation, version) = found.unwrap_or((Relation::Equal, text));
    if relation == Relation::About && rules == VersionRules::Semver {
        return None;
    }
    Some((relation, Version::parse(version.trim_start_matches(blank), rules)?))
}

fn is_met_loosely(relation: Relation, version: &Version, wanted: &Version) -> bool {
    let order = relation.holds(version.compare(wanted));
    if matches!(relation, Relation::Equal | Relation::NotEqual) {
        return order;
    }
    let comparable = match (version.pre.is_empty(), wanted.pre.is_empty()) {
        (false, false) => version.numbers == wanted.numbers,
        (false, true) => false,
        (true, _) => true,
    };
    if relation != Relation::About {
        return comparable && order;
    }
    let fixed = wanted.written - 1;
    let last = wanted.numbers.len() - 1;
    comparable
        && order
        && (wanted.pre.is_empty() || !version.pre.is_empty())
        && version.numbers.len() > last
        && version.numbers[..fixed] == wanted.numbers[..fixed]
        && version.numbers[last] >= wanted.numbers[last]
}

impl Version {
    fn parse(text: &str, rules: VersionRules) -> Option<Version> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut rest = text;
        let mut numbers = Vec::new();
        loop {
            let (number, after) = digits(rest)?;
            numbers.push(number.parse().ok()?);
            rest = after;
            match rest.strip_prefix('.') {
                Some(after) if after.starts_with(|c: char| c.is_ascii_digit()) => rest = after,
                _ => break,
            }
        }
        let pre = match rest.split_once('+') {
            Some((pre, build)) if are_words(build) => pre,
            Some(_) => return None,
            None => rest,
        };
        let pre = if pre.is_empty() { "" } else { before_release(pre, rules)? };
        let written = numbers.len();
        numbers.resize(written.max(3), 0);
        Some(Version { numbers, written, pre: pre.to_owned() })
    }

    fn compare(&self, other: &Version) -> Ordering {
        if self.numbers == other.numbers {
            return match (self.pre.is_empty(), other.pre.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => compare_pre(&self.pre, &other.pre),
            };
        }
        // Zeros at the end say nothing; with more of them than the other has, neither does what comes before a release.
        let longest = self.numbers.len().max(other.numbers.len());
        let at = |version: &Version, i: usize| version.numbers.get(i).copied().unwrap_or(0);
        (0..longest).map(|i| at(self, i).cmp(&at(other, i))).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }
}

fn digits(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Letters, digits, dashes and tildes with dots between them.
fn are_words(text: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "-~".contains(c));
    text.split('.').all(is_word)
}

/// What stands behind the numbers, without its dash. A number there needs one.
fn before_release(text: &str, rules: VersionRules) -> Option<&str> {
    match text.strip_prefix('-') {
        Some(words) if are_words(words) => Some(words),
        _ if rules == VersionRules::Semver => None,
        // A dash alone is a word as well.
        _ => are_words(text).then_some(text),
    }
}

fn compare_pre(one: &str, other: &str) -> Ordering {
    let (one, other): (Vec<&str>, Vec<&str>) = (one.split('.').collect(), other.split('.').collect());
    let pairs = (0..one.len().max(other.len())).map(|i| (one.get(i).copied(), other.get(i).copied()));
    pairs.map(|(one, other)| compare_word(one, other)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// Numbers come before words. Where one has no word left, it comes after a word and before a number.
fn compare_word(one: Option<&str>, other: Option<&str>) -> Ordering {
    let number = |word: &str| word.parse::<i64>().ok();
    match (one, other) {
        (None, None) => Ordering::Equal,
        (None, Some(other)) => {
            if number(other).is_some() {
                Ordering::Less
            } else {
                Ordering::Greater
            }
        }
        (Some(one), None) => {
            if number(one).is_some() {
                Ordering::Greater
            } else {
                Ordering::Less
            }
        }
        (Some(one), Some(other)) if one == other => Ordering::Equal,
        (Some(one), Some(other)) => match (number(one), number(other)) {
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => one.cmp(other),
            // The same number in another spelling is not the same.
            (Some(one), Some(other)) => one.cmp(&other).then(Ordering::Less),
        },
    }
}
