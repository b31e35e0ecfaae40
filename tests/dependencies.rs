//! What this crate brings along: under which licenses, and which crates come in more than one version.
//!
//! Asks `cargo metadata` about all dependencies that are built on Linux, for the program, its build and its tests. Whether
//! one of them has a known defect is asked by `scripts/check --online`, which needs the network.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Licenses that ask for no more than a notice, by their SPDX names.
const LICENSES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "bzip2-1.0.6", // as BSD-3-Clause with other words; of libbz2-rs-sys
];

/// Crates that are built in several versions, how many, and who wants the older one. A row that no longer holds fails as well.
const SEVERAL: &[(&str, usize, &str)] = &[
    ("base64", 2, "bollard and others are at 0.23, rcgen's pem at 0.22"),
    ("bit-vec", 2, "cgroups-rs is at 0.6, proptest at 0.9; tests only"),
    ("bitflags", 2, "nix 0.25 of cgroups-rs is at 1"),
    ("block-buffer", 2, "by digest 0.10"),
    ("cpufeatures", 2, "by sha1 0.10"),
    ("crypto-common", 2, "by digest 0.10"),
    ("digest", 2, "by sha1 0.10"),
    ("darling", 2, "derive_builder of croner is at 0.20, ratatui at 0.24; build time only"),
    ("darling_core", 2, "by darling 0.20; build time only"),
    ("darling_macro", 2, "by darling 0.20; build time only"),
    ("foldhash", 2, "by hashbrown 0.15"),
    ("getrandom", 3, "ring, which rcgen's parser brings, is at 0.2; rand 0.9 at 0.3"),
    ("hashbrown", 2, "petgraph, of the protobuf compiler, is at 0.15; build time only"),
    ("nix", 2, "cgroups-rs is at 0.25"),
    ("rand", 2, "the WebSockets of axum (tungstenite) are at 0.9"),
    ("rand_core", 2, "by rand 0.9"),
    ("sha1", 2, "the WebSockets of axum (tungstenite) are at 0.10"),
    ("strum", 2, "croner is at 0.27, ratatui at 0.28"),
    ("strum_macros", 2, "by strum 0.27; build time only"),
    ("syn", 2, "derive macros are moving to 3; build time and tests only"),
    ("synstructure", 2, "by syn 2; build time only"),
    ("thiserror", 2, "cgroups-rs is at 1"),
    ("thiserror-impl", 2, "by thiserror 1"),
    ("unicode-width", 2, "miette, of the protobuf compiler, is at 0.1; build time only"),
    ("untrusted", 2, "aws-lc-rs is at 0.7"),
];

/// A crate of the graph.
struct Crate {
    name: String,
    version: String,
    license: String,
}

/// Everything in the graph but this crate.
fn crates() -> Vec<Crate> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--locked", "--format-version", "1", "--manifest-path"]);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    for target in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"] {
        command.args(["--filter-platform", target]);
    }
    let output = command.output().expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let built: BTreeSet<&str> =
        metadata["resolve"]["nodes"].as_array().into_iter().flatten().filter_map(|node| node["id"].as_str()).collect();
    let packages = metadata["packages"].as_array().expect("cargo metadata lists packages");
    let of = |p: &Value| Crate { name: text(&p["name"]), version: text(&p["version"]), license: text(&p["license"]) };
    let found: Vec<Crate> = packages
        .iter()
        .filter(|p| p["id"].as_str().is_some_and(|id| built.contains(id)))
        .map(of)
        .filter(|c| c.name != "agentbin")
        .collect();
    assert!(found.len() > 100, "cargo metadata lists only {} crates", found.len());
    found
}

/// Whether an SPDX expression can be met with `allowed` alone. A slash is the older way to write OR.
fn permits(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = either(&words, &mut at, allowed);
    met && at == words.len()
}

fn either(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut met = both(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        // Not `||`: the other side has to be read in any case.
        met |= both(words, at, allowed);
    }
    met
}

fn both(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut met = single(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= single(words, at, allowed);
    }
    met
}

fn single(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let met = either(words, at, allowed);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return met && closed;
    }
    if words.get(*at) == Some(&"WITH") {
        let exception = words.get(*at + 1).copied().unwrap_or_default();
        *at += 2;
        return allowed.contains(&format!("{word} WITH {exception}").as_str()) || allowed.contains(word);
    }
    allowed.contains(word)
}

/// What `crates` have in several versions, against the list. One line for each difference.
fn several(crates: &[Crate], list: &[(&str, usize, &str)]) -> Vec<String> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for one in crates {
        versions.entry(&one.name).or_default().insert(&one.version);
    }
    let mut wrong = Vec::new();
    for (name, found) in versions.iter().filter(|(_, found)| found.len() > 1) {
        let listed = list.iter().find(|(listed, ..)| listed == name).map_or(1, |(_, count, _)| *count);
        if found.len() > listed {
            let found = found.iter().copied().collect::<Vec<_>>().join(", ");
            wrong.push(format!(
                "{name} is built in the versions {found}: bring them together (cargo tree -d -i {name})"
            ));
        }
    }
    for (name, count, _) in list {
        let found = versions.get(name).map_or(0, BTreeSet::len);
        if found < *count {
            wrong.push(format!("{name} is built in {found} versions and not in {count} any more: shrink the list"));
        }
    }
    wrong
}

#[test]
fn every_license_is_one_of_the_list() {
    let refused: Vec<String> = crates()
        .iter()
        .filter(|c| !permits(&c.license, LICENSES))
        .map(|c| format!("{} {}: {:?}", c.name, c.version, c.license))
        .collect();
    assert!(refused.is_empty(), "not among the allowed licenses:\n{}", refused.join("\n"));
}

#[test]
fn no_crate_comes_in_more_versions_than_listed() {
    let wrong = several(&crates(), SEVERAL);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn samples() {
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("MIT OR GPL-3.0", true),
        ("MIT AND GPL-3.0", false),
        ("GPL-3.0/MIT", true),
        ("(MIT OR GPL-3.0) AND ISC", true),
        ("(GPL-2.0 OR GPL-3.0) AND ISC", false),
        ("Apache-2.0 WITH LLVM-exception OR GPL-2.0", true),
        ("GPL-2.0 WITH Classpath-exception-2.0", false),
        ("(MIT", false),
        ("MIT)", false),
        ("", false),
    ] {
        assert_eq!(permits(expression, LICENSES), expected, "{expression:?}");
    }
    let one = |name: &str, version: &str| Crate { name: name.into(), version: version.into(), license: "MIT".into() };
    let graph = [one("a", "1.0.0"), one("a", "2.0.0"), one("b", "1.0.0")];
    assert_eq!(several(&graph, &[("a", 2, "")]).len(), 0);
    assert!(several(&graph, &[])[0].contains("1.0.0, 2.0.0"));
    assert!(several(&graph, &[("a", 2, ""), ("b", 2, "")])[0].contains("shrink"));
}
