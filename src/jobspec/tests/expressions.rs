//! Expressions and templates.

use serde_json::json;

use super::{Given, around_task, errors, task_of, value_of};

fn value(expression: &str) -> serde_json::Value {
    match value_of(&Given::default(), expression) {
        Ok(value) => value,
        Err(e) => panic!("{expression}: {e}"),
    }
}

fn error(expression: &str) -> String {
    value_of(&Given::default(), expression).expect_err(expression)
}

#[test]
fn operators_and_conversions() {
    for (expression, expected) in [
        ("1 + 2 * 3", json!(7)),
        ("(1 + 2) * 3", json!(9)),
        ("7 / 2", json!(3.5)),
        ("6 / 2", json!(3)),
        ("7 % 4", json!(3)),
        ("-5 + 2", json!(-3)),
        ("-(2 + 3)", json!(-5)),
        ("9007199254740993 + 0", json!(9_007_199_254_740_993u64)),
        ("0.1 + 0.2", json!(0.3)),
        ("\"5\" + 1", json!(6)),
        ("1 < 2 && 2 <= 2 && !(3 > 4)", json!(true)),
        ("true || false", json!(true)),
        ("1 == 1.0", json!(true)),
        ("1 == \"1\"", json!(false)),
        ("[1, 2] == [1, 2]", json!(true)),
        ("{ a = 1 } != { a = 2 }", json!(true)),
        ("true ? 1 : 2", json!(1)),
        ("false ? 1 : \"two\"", json!("two")),
        ("true ? 1 : \"two\"", json!("1")),
        ("null == null", json!(true)),
        ("\"n${12345678901234567890123}\"", json!("n12345678901234567890123")),
        ("\"n${1.50}\"", json!("n1.5")),
        ("\"n${1e20}\"", json!("n100000000000000000000")),
        ("\"\\u00e4\\t\\\"\"", json!("ä\t\"")),
    ] {
        assert_eq!(value(expression), expected, "{expression}");
    }
}

#[test]
fn collections_indexes_and_splats() {
    for (expression, expected) in [
        ("[1, [2, 3]][1][0]", json!(2)),
        ("{ a = { b = 5 } }.a.b", json!(5)),
        ("{ \"x y\" = 1 }[\"x y\"]", json!(1)),
        ("{ (upper(\"k\")) = 1 }.K", json!(1)),
        ("[\"a\", \"b\"].1", json!("b")),
        ("[{ n = 1 }, { n = 2 }][*].n", json!([1, 2])),
        ("[{ n = [1] }, { n = [2] }].*.n[1]", json!([2])),
        ("[{ n = [1] }, { n = [2] }][*].n[0]", json!([1, 2])),
        ("length({ n = 1 }[*])", json!(1)),
        ("length(null[*])", json!(0)),
    ] {
        assert_eq!(value(expression), expected, "{expression}");
    }
}

/// The mission's N8: maps go in the order of their keys, whatever the order in the file.
#[test]
fn n8_for_expressions_go_over_maps_in_key_order() {
    for (expression, expected) in [
        ("[for k, v in { b = 2, a = 1 } : \"${k}=${v}\"]", json!(["a=1", "b=2"])),
        ("[for v in [3, 1, 2] : v * 2 if v != 1]", json!([6, 4])),
        ("[for i, v in [\"x\", \"y\"] : \"${i}${v}\"]", json!(["0x", "1y"])),
        ("length({ for v in [\"x\", \"y\"] : v => upper(v) })", json!(2)),
        ("{ for v in [\"x\", \"y\"] : v => upper(v) }.y", json!("Y")),
        ("{ for v in [\"ab\", \"ac\", \"b\"] : substr(v, 0, 1) => v... }.a", json!(["ab", "ac"])),
        ("[for v in convert([\"b\", \"a\", \"b\"], set(string)) : v]", json!(["a", "b"])),
        ("[for x in [1, 2] : [for y in [10, 20] : x * y]]", json!([[10, 20], [20, 40]])),
        ("[for x in [1] : [for x in [2] : x]]", json!([[2]])),
    ] {
        assert_eq!(value(expression), expected, "{expression}");
    }
}

#[test]
fn wrong_expressions_say_what_is_wrong_where() {
    for (expression, expected) in [
        ("1 + \"a\"", "a number is needed here, not a string"),
        ("1 / 0", "division by zero"),
        ("[1][5]", "index 5 is outside of the list of 1"),
        ("{ user = 1 }.uesr", "there is no attribute \"uesr\" here (did you mean \"user\"?)"),
        ("{ a = 1 }.b.c", "there is no attribute \"b\" here"),
        ("\"x\".a", "a string has no attribute \"a\""),
        ("\"a${[1]}\"", "a string cannot include a list; convert it to a string"),
        ("\"a${null}\"", "a string cannot include null; convert it to a string"),
        ("1 ? 2 : 3", "a bool is needed here, not a number"),
        ("[for x in 5 : x]", "a list, set or map is needed here, not a number"),
        ("{ for x in [1, 2] : \"k\" => x }", "two elements give the key \"k\"; group them with \"...\""),
        ("{ a.b = 1 }", "ambiguous key; put it in quotes to take it literally, or in parentheses to evaluate it"),
        ("{ \"a\" = 1, (\"a\") = 2 }", "duplicate key \"a\"; remove one of the two"),
        ("nofunc(1)", "nofunc: there is no function of this name"),
        ("uper(\"x\")", "uper: there is no function of this name (did you mean \"upper\"?)"),
        ("upper()", "upper: takes 1 argument, not 0"),
        ("upper([1])", "upper: argument 1 must be a string, not list"),
        ("max(1...)", "only a list can be expanded with \"...\""),
        ("attr.x + 1", "a number is needed here, not the runtime reference \"${attr.x}\""),
    ] {
        assert_eq!(error(expression), format!("job.hcl:5: {expected}"), "{expression}");
    }
}

#[test]
fn quoted_templates() {
    for (expression, expected) in [
        (r#""a${1 + 1}b""#, json!("a2b")),
        (r#""${[1, 2]}""#, json!([1, 2])),
        (r#""%{ if true }yes%{ else }no%{ endif }""#, json!("yes")),
        (r#""%{ if false }yes%{ endif }""#, json!("")),
        (r#""%{ for i, x in ["a", "b"] }${i}${x};%{ endfor }""#, json!("0a;1b;")),
        (r#""a   ${~ "b" ~}   c""#, json!("abc")),
        (r#""x\n  %{~ if true ~}  y  %{~ endif ~}  z""#, json!("xyz")),
        (r#""$${x} %%{ if }""#, json!("${x} %{ if }")),
        (r#""$ {} $$ %""#, json!("$ {} $$ %")),
    ] {
        assert_eq!(value(expression), expected, "{expression}");
    }
}

#[test]
fn heredocs_keep_or_lose_their_indent() {
    let data = |heredoc: &str| {
        let text = format!("template {{\ndestination = \"local/x\"\ndata = {heredoc}\n}}");
        task_of(&text).templates.remove(0).data
    };
    for (heredoc, expected) in [
        ("<<EOT\n  a\n    b\nEOT", "  a\n    b\n"),
        ("<<-EOT\n    a\n      b\n\n    c\n    EOT", "a\n  b\n\nc\n"),
        ("<<-EOT\n    a\n   \n    c\n    EOT", "a\n   \nc\n"),
        ("<<-EOT\n    ${1 + 1} x\n      y\n    EOT", "2 x\n  y\n"),
        ("<<-EOT\n${1}\n    y\n    EOT", "1\n    y\n"),
        ("<<-EOT\n    %{ if true }\n      a\n    %{ endif }\n    b\n    EOT", "\n  a\n\nb\n"),
        // A line that `~` has joined to the one before keeps its indent, as in the Go library.
        ("<<-EOT\n    %{ if true ~}\n    a\n    %{ endif ~}\n    b\n    EOT", "    a\n    b\n"),
        ("<<EOT\n%{ for x in [1, 2] ~}\nn${x}\n%{ endfor ~}\nend\nEOT", "n1\nn2\nend\n"),
        ("<<EOT\nraw \\n \"q\" $${keep} {{ env \"X\" }}\nEOT", "raw \\n \"q\" ${keep} {{ env \"X\" }}\n"),
        ("<<EOT\nEOT", ""),
    ] {
        assert_eq!(data(heredoc), expected, "{heredoc}");
    }
}

/// Values that the real Nomad has for the same text: a heredoc that is over in its first line is empty, whatever follows.
#[test]
fn empty_heredocs_end_at_once() {
    let env = "env {\nA = <<EOF\nEOF\nB = <<EOF\nx\nEOF\nC = <<-EOF\n  EOF \t\r\nD = upper(<<EOF\nEOF\n)\nE = \"<${<<EOF\nEOF\n}>\"\n\
               F = <<EOF\n${<<F\nF\n}|${join(\",\", [<<F\nF\n, <<F\nF\n])}\nEOF\nG = <<-EOF\n    ${<<F\nF\n}g\n    EOF\n}";
    let found = task_of(env).env;
    let expected = [("A", ""), ("B", "x\n"), ("C", ""), ("D", ""), ("E", "<>"), ("F", "|,\n"), ("G", "g\n")];
    assert_eq!(found.iter().map(|(k, v)| (&**k, &**v)).collect::<Vec<_>>(), expected);
    // A template of JSON.
    let json =
        r#"{"job": {"j": {"group": {"g": {"task": {"t": {"driver": "exec", "env": {"A": "<${<<E\nE\n}>E\n"}}}}}}}}"#;
    assert_eq!(Given::default().job(json).groups[0].tasks[0].env["A"], "<>E\n");
    // What follows is where it was.
    let text = around_task("env {\nA = <<EOF\nEOF\nB = local.nope\nC = <<EOF\nEOF\n}");
    assert_eq!(errors(&text), ["job.hcl:7: undeclared local value \"nope\"; declare it in a locals block"]);
    for line in ["EOF)", "EOF # x", "  EOF,"] {
        let text = around_task(&format!("env {{\nA = <<EOF\n{line}\nEOF\n}}"));
        let said = "job.hcl:6: the first line of the heredoc begins with its delimiter EOF; use another word";
        assert_eq!(errors(&text), [said], "{line}");
    }
}

#[test]
fn positions_inside_heredocs_are_exact() {
    let text = around_task("template {\ndestination = \"local/x\"\ndata = <<-EOT\n  one\n  ${1 / 0}\n  EOT\n}");
    assert_eq!(errors(&text), ["job.hcl:8: division by zero"]);
    let text = around_task("template {\ndestination = \"local/x\"\ndata = <<EOT\none\n\n${local.nope}\nEOT\n}");
    assert_eq!(errors(&text), ["job.hcl:9: undeclared local value \"nope\"; declare it in a locals block"]);
}

#[test]
fn can_try_and_convert_take_expressions() {
    for (expression, expected) in [
        ("can({ a = 1 }.b)", json!(false)),
        ("can(1 + 1)", json!(true)),
        ("try({ a = 1 }.b, [1][4], \"last\")", json!("last")),
        ("convert(\"5\", number)", json!(5)),
        ("convert([\"1\", 2], list(number))", json!([1, 2])),
        ("convert([2, 1, 2], set(number))", json!([1, 2])),
        ("convert({ a = 1, b = 2 }, object({ a = string }))", json!([{"a": "1"}])),
        ("convert([1, \"true\"], tuple([string, bool]))", json!(["1", true])),
    ] {
        let found = value(expression);
        let found = if expected.to_string().starts_with("[{") { json!([found[0]]) } else { found };
        assert_eq!(found, expected, "{expression}");
    }
    assert_eq!(error("convert(\"x\", number)"), "job.hcl:5: convert: a number is needed, not \"x\"");
    assert_eq!(error("convert(1, strin)"), "job.hcl:5: unknown type \"strin\" (did you mean \"string\"?)");
    assert_eq!(error("try(1 / 0)"), "job.hcl:5: division by zero");
}

/// `oracle.txt` holds expressions and what the Go library (hcl 2.25.0, go-cty 1.19.0, go-cty-yaml 1.2.0) makes of them.
#[test]
fn n8_expressions_evaluate_as_in_the_go_library() {
    let mut differences = Vec::new();
    for case in include_str!("oracle.txt").split_terminator("\n====\n") {
        let (expression, expected) = case.split_once("\n----\n").unwrap();
        let expected = format!("jsondecode({})", serde_json::Value::from(expected.replace("${", "$${")));
        let same = value_of(&Given::default(), &format!("jsonencode({expression}\n) == jsonencode({expected})"));
        if same != Ok(json!(true)) {
            let found = value_of(&Given::default(), &format!("jsonencode({expression}\n)"));
            differences.push(format!("{expression}\n  expected {expected}\n  found {found:?}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
