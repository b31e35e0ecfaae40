//! The language of `filter`, beside go-bexpr itself (`tests/interop/golden`): seeded expressions over seeded values, the same answer, and
//! an error of the same kind.

use std::path::Path;

use agentbin::agent::api::filter::{Filter, FilterError};
use serde_json::{Value, json};

#[path = "support/golden.rs"]
#[expect(dead_code, reason = "what speaks in bytes is for others")]
mod golden;

/// A generator that gives the same for the same seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

/// No null: it is where ours differs (see `agent/api/filter`).
fn value(random: &mut Random) -> Value {
    let load = [0.5, 1.5, 2.0][random.below(3)];
    let tags = [["one", "two"], ["two", "three"]][random.below(2)];
    json!({
        "ID": random.one(&["web", "a b", "", "x.y", "7"]),
        "Count": random.below(4),
        "Minus": -3,
        "Load": load,
        "Stop": random.below(2) == 0,
        "Meta": {"k": random.one(&["v", "w", ""]), "a.b": "x", "deep": {"er": random.below(3)}},
        "Flat": {"k": "v", "w": random.one(&["v", "x"])},
        "Empty": {},
        "Tags": tags,
        "Numbers": [1, random.below(5)],
        "None": [],
        "Groups": [{"Name": "g", "Count": 0}, {"Name": "h", "Count": random.below(3)}],
        "Mixed": ["one", 1, true, 2.5],
    })
}

const PATHS: &[&str] = &[
    "ID",
    "Count",
    "Minus",
    "Load",
    "Stop",
    "Meta",
    "Meta.k",
    "Meta[\"a.b\"]",
    "Meta.nope",
    "Meta.deep.er",
    "Meta.nope.er",
    "Empty",
    "Empty.x",
    "Tags",
    "Tags.0",
    "Tags.9",
    "Numbers",
    "Numbers.1",
    "None",
    "Groups",
    "Groups.1.Name",
    "Mixed",
    "\"/ID\"",
    "\"/Meta/k\"",
    "\"/Meta/a.b\"",
    "\"/Groups/0/Count\"",
    "Nope",
    "ID.x",
    "x",
    "i",
    "x.Name",
    "Meta[ \"k\" ]",
];
/// None begins with `/`: where ours differs.
const VALUES: &[&str] = &[
    "web",
    "\"web\"",
    "`a b`",
    "\"\"",
    "v",
    "one",
    "two",
    "1",
    "0",
    "-3",
    "1.5",
    "0.5",
    "2",
    "3",
    "true",
    "false",
    "\"true\"",
    "0x1",
    "\"0x1\"",
    "x.y",
    "T",
    "g",
    "k",
    "\"a.b\"",
    "\"w\\x65b\"",
    "\"1_0\"",
    "01",
    "1x",
    "\"+1\"",
    "er",
    "\"(\"",
    "`^w.*b$`",
    "\"[gh]\"",
];

fn comparison(random: &mut Random) -> String {
    let (path, value) = (random.one(PATHS), random.one(VALUES));
    let space = random.one(&["", " ", "  ", "\t"]);
    match random.below(14) {
        0..=3 => format!("{path}{space}=={space}{value}"),
        4 | 5 => format!("{path}{space}!={space}{value}"),
        6 => format!("{value} in {path}"),
        7 => format!("{value} not in {path}"),
        8 => format!("{path} contains {value}"),
        9 => format!("{path} not contains {value}"),
        10 => format!("{path} {} {value}", random.one(&["matches", "not matches"])),
        11 => format!("{path} is {}empty", random.one(&["", "not "])),
        12 => format!("{path} is {}nil", random.one(&["", "not "])),
        // What is none.
        _ => random
            .one(&["", "x", "ID =", "ID == web)", "is empty", "ID is", "not", "( ", "ID == \"open", "and ID == x"])
            .to_owned(),
    }
}

fn expression(random: &mut Random, depth: usize) -> String {
    if depth == 0 {
        return comparison(random);
    }
    let below = |random: &mut Random| {
        let depth = random.below(depth);
        expression(random, depth)
    };
    match random.below(9) {
        0 | 1 => format!("{} and {}", below(random), below(random)),
        2 | 3 => format!("{} or {}", below(random), below(random)),
        4 => format!("not {}", below(random)),
        5 | 6 => format!("({}{})", random.one(&["", " "]), below(random)),
        7 => {
            let names = random.one(&["x", "i, x", "_, x", "i, _", "x, x", "_", "k"]);
            let path = random.one(&["Tags", "Groups", "Flat", "Numbers", "None", "ID", "Meta.nope"]);
            format!("{} {path} as {names} {{ {} }}", random.one(&["any", "all"]), below(random))
        }
        _ => comparison(random),
    }
}

fn ours(expression: &str, value: &Value) -> (bool, &'static str) {
    match Filter::new(expression).and_then(|filter| filter.fits(value)) {
        Ok(fits) => (fits, ""),
        Err(FilterError::Syntax { .. }) => (false, "syntax"),
        Err(FilterError::Value(_)) => (false, "value"),
    }
}

/// What is refused where it is read here, and only where it is asked in the Go package: a wrong regular expression.
fn is_of_regex(expression: &str, ours: &str, theirs: &str) -> bool {
    expression.contains("matches") && ours == "syntax" && theirs != "syntax"
}

fn compare(binary: &Path, questions: &[(String, Value)]) -> [usize; 3] {
    let asked: Vec<Value> = questions.iter().map(|(e, v)| json!({"expression": e, "value": v})).collect();
    let answers = golden::ask(binary, "bexpr", &serde_json::to_string(&asked).unwrap());
    let answers: Vec<Value> = serde_json::from_str(&answers).unwrap();
    assert_eq!(answers.len(), questions.len());
    let (mut counts, mut faults) = ([0; 3], Vec::new());
    for ((expression, value), answer) in questions.iter().zip(&answers) {
        let theirs = (answer["fits"].as_bool().unwrap(), answer["error"].as_str().unwrap());
        let ours = ours(expression, value);
        if ours != theirs && !is_of_regex(expression, ours.1, theirs.1) {
            faults.push(format!("{expression}\n  of {value}\n  ours {ours:?}, go-bexpr {theirs:?}"));
        }
        counts[match ours.1 {
            "" => usize::from(!ours.0),
            _ => 2,
        }] += 1;
    }
    assert!(
        faults.is_empty(),
        "{} of {} differ:\n{}",
        faults.len(),
        questions.len(),
        faults[..faults.len().min(20)].join("\n")
    );
    counts
}

#[test]
fn seeded_expressions_mean_what_they_mean_to_the_go_package() {
    let Some(binary) = golden::build("interop_filter") else { return };
    let mut random = Random(20_261_123);
    let questions: Vec<(String, Value)> = (0..20_000)
        .map(|n| {
            let expression = expression(&mut random, n % 4);
            (expression, value(&mut random))
        })
        .collect();
    let [yes, no, errors] = compare(&binary, &questions);
    println!("{yes} fit, {no} do not, {errors} are errors");
    assert!(yes > 1000 && no > 1000 && errors > 1000, "{yes} {no} {errors}");
}
