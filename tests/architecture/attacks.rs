//! The attack suite: its table, its attacks, and the defences that can be taken out.

use std::collections::{BTreeMap, BTreeSet};

use super::source::Source;

/// The texts that calls of one of these functions of an owner begin with.
fn given<'a>(sources: &'a [Source], owner: &str, names: &[&str]) -> BTreeSet<&'a str> {
    let calls = sources.iter().flat_map(|source| &source.calls);
    let meant = calls.filter(|call| match &call.words[..] {
        [.., of, name] => of == owner && names.contains(&name.as_str()),
        _ => false,
    });
    meant.filter_map(|call| call.text.as_deref()).collect()
}

/// The rows of the table of attacks: the id in small letters, and the mutants that the last column names.
fn attack_rows(document: &str) -> BTreeMap<String, BTreeSet<&str>> {
    let rows = document.lines().filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'));
    let cells = rows.map(|row| row.split('|').collect::<Vec<_>>());
    let attacks = cells.filter(|cells| is_attack(&cells[0].trim().to_lowercase()));
    attacks
        .map(|cells| {
            let seen = cells[cells.len() - 1].split('`').skip(1).step_by(2).filter(|span| is_attack(span)).collect();
            (cells[0].trim().to_lowercase(), seen)
        })
        .collect()
}

/// `a03`, `b05-links`, `d100`.
fn is_attack(text: &str) -> bool {
    let id = text.split('-').next().unwrap_or(text);
    matches!(id.len(), 3 | 4) && id.starts_with(['a', 'b', 'c', 'd']) && id[1..].chars().all(|c| c.is_ascii_digit())
}

/// What disagrees between the table of attacks, the attacks, and the defences that can be taken out.
pub fn faults(document: &str, attacks: &[Source], sources: &[Source]) -> Vec<String> {
    let rows = attack_rows(document);
    let told: BTreeSet<&str> = rows.values().flatten().copied().collect();
    let tried = given(attacks, "Mutant", &["new", "nomad", "slow"]);
    let made = given(sources, "mutant", &["on"]);
    let mut bad = Vec::new();
    let fields = attacks.iter().flat_map(|source| &source.fields).filter(|(name, _)| name == "id");
    let ids: BTreeSet<&str> = fields.map(|(_, id)| id.as_str()).collect();
    bad.extend(ids.iter().filter(|id| !rows.contains_key(**id)).map(|id| format!("{id} has no row")));
    for (id, mutants) in &rows {
        if !ids.contains(id.as_str()) || !attacks.iter().any(|source| source.defines(id)) {
            bad.push(format!("{id} has a row, but no attack and function of that name"));
        }
        if mutants.is_empty() {
            bad.push(format!("{id} was never seen to fail"));
        }
        bad.extend(mutants.iter().filter(|m| !m.starts_with(id.as_str())).map(|m| format!("{m} in the row of {id}")));
    }
    for (what, one, other) in [
        ("is in the table, but no attack tries it", &told, &tried),
        ("is tried, but not in the table", &tried, &told),
        ("is tried, but src/ has no such mutant", &tried, &made),
        ("is in src/, but no attack tries it", &made, &tried),
    ] {
        bad.extend(one.difference(other).map(|name| format!("mutant {name} {what}")));
    }
    bad
}

mod samples {
    use super::*;

    #[test]
    fn attacks_without_a_proof_are_reported() {
        let table =
            "| id | attack | seen |\n|---|---|---|\n| A01 | `x` | mutant `a01` |\n| B02 | y | `b02`, `b02-x`; runc |\n";
        let attacks = "const ALL: &[Attack] = &[
                Attack { id: \"a01\", mutants: &[Mutant::new(\"a01\")] },
                Attack { id: \"b02\", mutants: &[Mutant::slow(\"b02\"), Mutant::nomad(\"b02-x\")] },
            ];
            fn a01() {}
            fn b02() {}";
        let source = "fn f() -> bool { !mutant::on(\"a01\") && assert!(mutant::on(\"b02\") || crate::sys::mutant::on(\"b02-x\")) }";
        let attack_faults = |document: &str, attacks: &str, source: &str| {
            faults(document, &[Source::parse("a.rs", attacks)], &[Source::parse("sys/a.rs", source)])
        };
        assert_eq!(attack_faults(table, attacks, source), [""; 0]);
        assert_eq!(attack_faults(&table.replace("mutant `a01`", "seen"), attacks, source).len(), 2);
        assert_eq!(attack_faults(table, &attacks.replace("\"b02-x\"", "\"b02-y\""), source).len(), 4);
        assert_eq!(attack_faults(table, attacks, &source.replace("a01", "a02")).len(), 2);
        assert_eq!(attack_faults(&table.replace("A01", "A04"), attacks, source).len(), 3);
        assert_eq!(attack_faults(table, &attacks.replace("fn b02", "fn b03"), source).len(), 1);
    }
}
