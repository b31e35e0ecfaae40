//! The table of blocks and keys beside what Nomad's API package says (`tests/jobfiles/keys.txt`, written by the program there).

use super::super::schema::{BlockSchema, JOB, Often, Schema};
use super::{Given, around_group, around_task};
use crate::spec::collections::{BTreeMap, BTreeSet};

/// Keys and blocks that the package's types do not show: read by decoders of their own, or ours.
const BESIDE: [(&str, &[&str]); 6] = [
    ("Affinity", &["regexp", "semver", "set_contains", "set_contains_all", "set_contains_any", "version"]),
    (
        "Constraint",
        &[
            "distinct_hosts",
            "distinct_property",
            "is_not_set",
            "is_set",
            "regexp",
            "semver",
            "set_contains",
            "set_contains_all",
            "set_contains_any",
            "version",
        ],
    ),
    ("Job", &["secret", "task", "vault"]),
    ("LogConfig", &["compress", "max_age"]),
    ("Task", &[]),
    ("TaskGroup", &["secret", "vault"]),
];

type Bodies<'t> = BTreeMap<&'t str, Vec<Vec<&'t str>>>;

fn bodies(text: &str) -> Bodies<'_> {
    let mut out = Bodies::new();
    let mut current = "";
    for line in text.lines().filter(|l| !l.is_empty()) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            current = name;
            out.entry(name).or_default();
        } else {
            out.entry(current).or_default().push(line.split(' ').collect());
        }
    }
    out
}

/// What differs between a body of the package and one of the table.
fn compare(
    name: &str,
    schema: &'static Schema,
    bodies: &Bodies<'_>,
    seen: &mut BTreeSet<String>,
    bad: &mut Vec<String>,
) {
    if !seen.insert(format!("{name} {schema:p}")) {
        return;
    }
    let beside = BESIDE.iter().find(|(body, _)| *body == name).map_or(&[][..], |(_, names)| names);
    let mut known: BTreeSet<&str> = schema.names().filter(|n| !beside.contains(n)).collect();
    for words in &bodies[name] {
        known.remove(words[0]);
        match words[1..] {
            ["key", takes] => {
                let found = schema.key(words[0]).map(|k| format!("{:?}", k.takes).to_lowercase());
                if found.as_deref() != Some(takes) {
                    bad.push(format!("{name}.{} takes {takes}, not {found:?}", words[0]));
                }
            }
            ["block", body, often, labels] => match schema.block(words[0]) {
                None => bad.push(format!("{name}.{} is missing", words[0])),
                Some(BlockSchema { labels: found, often: how, body: inner, .. }) => {
                    // The decoder of a task gives scaling its label.
                    let labels = if (name, words[0]) == ("Task", "scaling") { "1" } else { labels };
                    if *found != labels.parse::<usize>().unwrap() || (*how == Often::Once) != (often == "one") {
                        bad.push(format!("{name}.{} has {labels} labels and stands {often}", words[0]));
                    }
                    if body != "free" {
                        compare(body, inner, bodies, seen, bad);
                    } else if !inner.free {
                        bad.push(format!("{name}.{} takes any names", words[0]));
                    }
                }
            },
            _ => bad.push(format!("cannot read {words:?}")),
        }
    }
    bad.extend(known.iter().map(|n| format!("{name}.{n} is not Nomad's")));
}

/// J1: a key or block that Nomad gets, and the table does not have, fails here.
#[test]
fn j1_every_block_and_key_of_nomads_is_in_the_table() {
    let text = include_str!("../../../tests/jobfiles/keys.txt");
    let known = bodies(text);
    let mut bad = Vec::new();
    compare("Job", &JOB, &known, &mut BTreeSet::new(), &mut bad);
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    // It sees a new key, a lost one and another type.
    for (from, to) in [
        ("[Job]\n", "[Job]\nnew key text\n"),
        ("priority key number\n", ""),
        ("priority key number\n", "priority key text\n"),
        ("path block ConsulExposePath many 0\n", "path block ConsulExposePath one 0\n"),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from}");
        let mut bad = Vec::new();
        compare("Job", &JOB, &bodies(&changed), &mut BTreeSet::new(), &mut bad);
        assert_eq!(bad.len(), 1, "{from}");
    }
}

#[test]
fn j1_what_is_passed_over_is_checked_all_the_same() {
    let wrong = [
        (
            around_group("service {\nprot = \"http\"\n}"),
            "job.hcl:4: unsupported argument \"prot\" in service of group \"g\" (did you mean \"port\"?)",
        ),
        (
            around_group("update {\ncanary = \"many\"\n}"),
            "job.hcl:4: \"canary\" in update of group \"g\" must be a whole number, not \"many\"",
        ),
        (
            around_task("vault {\npolicies = \"a\"\n}"),
            "job.hcl:5: \"policies\" in vault of task \"t\" must be a list of strings, not \"a\"",
        ),
        (
            around_task("volume_mount \"x\" {\n}"),
            "job.hcl:4: volume_mount in task \"t\" takes no label\njob.hcl:4: volume_mount of task \"t\" names no volume; \
             write volume = \"NAME\" as the group calls it",
        ),
    ];
    for (text, expected) in wrong {
        let error = Given::default().parse(&text).expect_err(&text);
        assert_eq!(error.to_string(), expected, "{text}");
    }
}

#[test]
fn j1_what_this_machine_lacks_is_accepted_and_refused_by_a_run() {
    let text = around_group(
        "network {\nmode = \"bridge\"\nport \"http\" {}\n}\nservice {\nport = \"http\"\nconnect {\nsidecar_service {\n}\n}\n}",
    );
    let parsed = Given::default().parse(&text).unwrap();
    assert_eq!(
        parsed.refusals.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "job.hcl:9: connect in service of group \"g\" is not supported yet by agentbin run; remove it, and reach the \
             other service by its address",
        ]
    );
    assert_eq!(
        parsed.warnings,
        [
            "job.hcl:7: there is no Consul here: services are registered with agentbin itself, where `agentbin services` and \
             templates find them; write provider = \"nomad\" to say so"
        ]
    );
}

#[test]
fn j1_what_only_a_server_does_is_passed_over_with_a_warning() {
    let job =
        |inside: &str| format!("job \"j\" {{\n{inside}\ngroup \"g\" {{\ntask \"t\" {{ driver = \"exec\" }}\n}}\n}}\n");
    for (text, name) in [
        (job("multiregion {\n}"), "multiregion"),
        (job("periodic {\n}"), "periodic"),
        (around_group("service {\nprovider = \"nomad\"\ncanary_tags = [\"a\"]\n}"), "canary_tags"),
        (around_group("scaling {\nmax = 2\n}"), "scaling"),
        (around_group("consul {\n}"), "consul"),
        (around_task("service {\nprovider = \"nomad\"\nenable_tag_override = true\n}"), "enable_tag_override"),
        (around_task("consul {\n}"), "consul"),
        (around_task("identity {\n}"), "identity"),
        (around_task("action \"a\" {\n}"), "action"),
        (around_task("scaling \"cpu\" {\n}"), "scaling"),
    ] {
        let parsed = Given::default().parse(&text).unwrap();
        assert_eq!(parsed.refusals, [], "{text}");
        assert_eq!(parsed.warnings.len(), 1, "{text}");
        assert!(parsed.warnings[0].contains(&format!(": {name} has no effect with agentbin run")), "{text}");
    }
}
