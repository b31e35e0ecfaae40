//! J2: constraint blocks, right and wrong.

use super::{Given, around_group, around_task, errors};
use crate::spec::Operator;

fn of_group(block: &str) -> String {
    around_group(&format!("constraint {{\n{block}\n}}"))
}

#[test]
fn j2_every_operator_has_its_word_and_some_a_key() {
    for (word, operator) in Operator::WORDS {
        let value = match operator {
            Operator::IsSet | Operator::IsNotSet => "",
            Operator::Version | Operator::Semver => "value = \">= 1.2\"",
            _ => "value = \"1\"",
        };
        let job =
            Given::default().job(&of_group(&format!("attribute = \"${{attr.x}}\"\noperator = \"{word}\"\n{value}")));
        let [constraint] = &job.groups[0].constraints[..] else { panic!("{word}: {job:?}") };
        assert_eq!((constraint.operator, constraint.attribute.as_str()), (*operator, "${attr.x}"), "{word}");
        assert_eq!(constraint.pos.line, 3);
    }
    for (block, expected) in [
        ("attribute = attr.x\nvalue = \"a\"", ("${attr.x}", Operator::Equal, "a")),
        ("attribute = \"$${meta.my-key}\"\nvalue = 5", ("${meta.my-key}", Operator::Equal, "5")),
        (
            "attribute = node.class\noperator = \"=\"\nversion = \"~> 1.2\"",
            ("${node.class}", Operator::Version, "~> 1.2"),
        ),
        ("attribute = \"${attr.x}\"\nsemver = \"> 1.2.3\"", ("${attr.x}", Operator::Semver, "> 1.2.3")),
        ("attribute = \"${attr.x}\"\nregexp = \"[a|b]\"", ("${attr.x}", Operator::Regexp, "[a|b]")),
        ("attribute = \"${attr.x}\"\nset_contains = \"a,b\"", ("${attr.x}", Operator::SetContains, "a,b")),
        ("distinct_hosts = true", ("", Operator::DistinctHosts, "true")),
        ("distinct_hosts = false", ("", Operator::DistinctHosts, "false")),
        ("operator = \"distinct_hosts\"", ("", Operator::DistinctHosts, "")),
        ("distinct_property = \"${meta.rack}\"\nvalue = 2", ("${meta.rack}", Operator::DistinctProperty, "2")),
    ] {
        let job = Given::default().job(&of_group(block));
        let found = &job.groups[0].constraints[0];
        assert_eq!((found.attribute.as_str(), found.operator, found.value.as_str()), expected, "{block}");
    }
}

#[test]
fn j2_a_constraint_that_no_machine_could_meet_is_a_mistake_at_its_line() {
    let node = "${node.unique.id}, ${node.unique.name}, ${node.datacenter}, ${node.class}, ${node.pool}";
    for (block, expected) in [
        ("", "3: operator \"=\" needs a value; add value = \"...\"".to_owned()),
        (
            "value = \"linux\"",
            "3: operator \"=\" needs an attribute; add attribute = \"${attr.kernel.name}\" or another".to_owned(),
        ),
        (
            "attribute = \"${attr.x}\"\nregexp = \"a(\"",
            "5: \"a(\" is not a regular expression: unclosed group".to_owned(),
        ),
        (
            "attribute = \"${attr.x}\"\nversion = \"latest\"",
            "5: \"latest\" compares with no version; write for example \">= 1.2, < 2.0\"".to_owned(),
        ),
        (
            "attribute = \"${attr.x}\"\noperator = \"semver\"\nvalue = \"~> 1.2\"",
            "6: \"~> 1.2\" compares with no version; write for example \">= 1.2, < 2.0\"".to_owned(),
        ),
        (
            "attribute = \"${attr.x}\"\noperator = \"is_set\"\nvalue = \"a\"",
            "6: is_set takes no value; remove it".to_owned(),
        ),
        (
            "attribute = \"$attr.kernel.name\"\nvalue = \"linux\"",
            "4: the attribute \"$attr.kernel.name\" needs braces; write ${attr.kernel.name}".to_owned(),
        ),
        (
            "attribute = \"${node.region}\"\nvalue = \"global\"",
            format!(
                "4: the attribute \"${{node.region}}\" is not known; use ${{attr...}}, ${{meta...}} or one of {node}"
            ),
        ),
        (
            "attribute = \"${attr.x}\"\nset_contains_any = \"a,b\"",
            "3: Nomad takes no notice of set_contains_any as a key; write operator = \"set_contains_any\"".to_owned(),
        ),
        (
            "distinct_property = \"${meta.rack}\"\nvalue = \"none\"",
            "5: distinct_property takes a count of at least 1 as value, not \"none\"".to_owned(),
        ),
    ] {
        assert_eq!(errors(&of_group(block)), [format!("job.hcl:{expected}, in constraint of group \"g\"")], "{block}");
    }
    assert_eq!(
        errors(&of_group("attribute = \"${attr.x}\"\noperator = \"regex\"\nvalue = \"a\"")),
        ["job.hcl:5: unknown operator \"regex\" in constraint of group \"g\" (did you mean \"regexp\"?)"]
    );
    assert_eq!(
        errors(&around_task("constraint {\ndistinct_hosts = true\n}")),
        ["job.hcl:5: distinct_hosts in constraint of task \"t\" has no place in a task; move it to the group"]
    );
}

/// Each level counts its own instances; a group of none has nothing to meet.
#[test]
fn j2_what_is_not_met_is_told_of_job_groups_and_tasks() {
    let text = r#"
job "j" {
  constraint {
    operator = "distinct_hosts"
  }
  constraint {
    attribute = "${attr.arch}"
    value     = "amd64"
  }
  group "one" {
    constraint {
      distinct_hosts = true
    }
    task "a" {
      driver = "exec"
      constraint {
        attribute = "${attr.arch}"
        value     = "arm64"
      }
    }
  }
  group "two" {
    count = 2
    constraint {
      distinct_property = "${attr.arch}"
    }
    task "b" { driver = "exec" }
  }
  group "none" {
    count = 0
    constraint {
      attribute = "${attr.arch}"
      value     = "mips"
    }
    task "c" { driver = "exec" }
  }
}
"#;
    let job = Given::default().job(text);
    let lookup = |key: &str| (key == "attr.arch").then(|| "amd64".to_owned());
    let unmet: Vec<_> = job.unmet(&lookup).map(|(pos, why)| (pos.line, why)).collect();
    let begin = ["job \"j\"", "group \"two\"", "task \"a\""].map(|owner| format!("constraint in {owner} is not met: "));
    assert_eq!(unmet.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [3, 24, 16]);
    for ((_, why), begin) in unmet.iter().zip(begin) {
        assert!(why.starts_with(&begin), "{why}");
    }
    assert!(unmet[0].1.contains("each of 3 instances") && unmet[1].1.contains("at most 1 of 2 instances"), "{unmet:?}");
    assert_eq!(job.all_constraints().count(), 6);
}

/// What compiles patterns costs: a file of ten lines may ask for a million.
#[test]
fn j2_patterns_are_counted() {
    let block = "dynamic \"constraint\" {\nfor_each = range(400)\ncontent {\nattribute = \"${attr.x}\"\nregexp = \"(a{90}){90}\"\n}\n}";
    let found = errors(&around_group(block));
    assert!(matches!(&found[..], [one] if one.contains("takes more than 3000000 steps")), "{found:?}");
}
