//! Variables, their sources and their rules; local values.

use super::{Given, around_task, errors, job};

fn with(head: &str, expression: &str) -> String {
    format!("{head}\n{}", around_task(&format!("env {{\nX = {expression}\n}}")))
}

fn env_of(given: &Given<'_>, head: &str, expression: &str) -> String {
    given.job(&with(head, expression)).groups[0].tasks[0].env["X"].clone()
}

/// Upstream: `VariablesDefaultsAndSet`. The order is default, environment, files, flags.
#[test]
fn later_sources_win() {
    let head = "variable \"v\" { default = \"default\" }";
    let given = Given::default;
    assert_eq!(env_of(&given(), head, "var.v"), "default");
    let env = || given().env("NOMAD_VAR_v", "env").env("v", "no").env("NOMAD_VAR_other", "ignored");
    assert_eq!(env_of(&env(), head, "var.v"), "env");
    let file = || env().file("a.hcl", "v = \"one\"\n").file("b.json", "{\"v\": \"two\"}");
    assert_eq!(env_of(&file(), head, "var.v"), "two");
    assert_eq!(env_of(&file().var("v", "first").var("v", "flag"), head, "var.v"), "flag");
}

#[test]
fn text_from_outside_becomes_the_declared_type() {
    for (declaration, text, expression, expected) in [
        ("type = string", "[1]", "var.v", "[1]"),
        ("type = string", "${x}", "var.v", "${x}"),
        ("type = number", "5", "var.v + 1", "6"),
        ("type = bool", "true", "var.v ? \"y\" : \"n\"", "y"),
        ("type = list(string)", "[1, \"b\"]", "join(\",\", var.v)", "1,b"),
        ("type = set(string)", "[\"b\", \"a\", \"b\"]", "join(\",\", var.v)", "a,b"),
        ("type = map(number)", "{a = \"1\"}", "var.v.a + 1", "2"),
        ("type = object({ a = string, b = optional(number) })", "{a = 1}", "\"${var.v.a}${var.v.b == null}\"", "1true"),
        ("type = tuple([string, number])", "[\"x\", \"2\"]", "\"${var.v[0]}${var.v[1] + 1}\"", "x3"),
        ("type = any", "plain text", "var.v", "plain text"),
        ("", "plain text", "var.v", "plain text"),
        ("default = 3", "7", "var.v + 1", "8"),
        ("default = []", "[\"a\"]", "var.v[0]", "a"),
        ("type = \"list(string)\"", "[\"a\"]", "var.v[0]", "a"),
    ] {
        let head = format!("variable \"v\" {{\n{declaration}\n}}");
        assert_eq!(env_of(&Given::default().var("v", text), &head, expression), expected, "{declaration}");
    }
}

#[test]
fn values_that_do_not_fit_name_variable_and_source() {
    for (given, declaration, expected) in [
        (
            Given::default().var("v", "x"),
            "type = number",
            "--var v: invalid value for variable \"v\": a number is needed, not \"x\"",
        ),
        (
            Given::default().env("NOMAD_VAR_v", "5"),
            "type = list(string)",
            "NOMAD_VAR_v: invalid value for variable \"v\": a list(string) is needed, not number",
        ),
        (
            Given::default().file("f.hcl", "\nv = [{}]\n"),
            "type = list(string)",
            "f.hcl:2: invalid value for variable \"v\": element 0: a string is needed, not object",
        ),
        (
            Given::default().file("f.json", "{\n\"v\": \"yes\"}"),
            "type = bool",
            "f.json:2: invalid value for variable \"v\": a bool is needed, not \"yes\"; write true or false",
        ),
        (
            Given::default(),
            "type = number\ndefault = \"x\"",
            "job.hcl:1: invalid value for variable \"v\": a number is needed, not \"x\"",
        ),
        (
            Given::default().var("v", "{}"),
            "type = object({ a = string })",
            "--var v: invalid value for variable \"v\": attribute \"a\" is missing",
        ),
        (Given::default().var("v", "[1"), "type = list(string)", "--var v: syntax error: expected `]`"),
        (
            Given::default().var("v", "1"),
            "type = lst(string)",
            "job.hcl:2: unknown type \"lst\" (did you mean \"list\"?)",
        ),
    ] {
        let text = with(&format!("variable \"v\" {{\n{declaration}\n}}"), "\"\"");
        assert_eq!(given.errors(&text), [expected], "{declaration}");
    }
}

/// Upstream: `UnknownVariables`.
#[test]
fn values_for_undeclared_variables_are_errors() {
    let text = with("variable \"region\" { default = \"x\" }", "\"\"");
    for (given, expected) in [
        (
            Given::default().var("regoin", "y"),
            "--var regoin: undeclared variable \"regoin\" (did you mean \"region\"?)",
        ),
        (
            Given::default().file("f.hcl", "\n\nfoo = 1\n"),
            "f.hcl:3: undeclared variable \"foo\"; declare it with a variable block",
        ),
        (
            Given::default().file("f.json", "{\n \"foo\": 1}"),
            "f.json:2: undeclared variable \"foo\"; declare it with a variable block",
        ),
        (
            Given::default().file("f.hcl", "variable \"region\" {\n}\n"),
            "f.hcl:1: a variable file cannot contain a variable block; declare it in the job file and write name = value here",
        ),
        (Given::default().file("f.hcl", "region = \n"), "f.hcl:1: syntax error: "),
    ] {
        let found = given.errors(&text);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
    }
    assert!(Given::default().env("NOMAD_VAR_nope", "x").parse(&text).is_ok());
}

/// Upstream: `UnsetVariables`.
#[test]
fn a_variable_without_value_is_an_error() {
    let text = with("variable \"a\" {}\nvariable \"b\" { type = number }", "\"\"");
    assert_eq!(
        Given::default().var("a", "1").errors(&text),
        ["job.hcl:2: Unset variable \"b\"; give it a default, --var b=..., a variable file or NOMAD_VAR_b"]
    );
    let null = env_of(
        &Given::default(),
        "variable \"a\" {\ntype = string\ndefault = null\n}",
        "var.a == null ? \"none\" : var.a",
    );
    assert_eq!(null, "none");
}

/// Upstream: `VariableValidationErrorMessage`.
#[test]
fn validation_checks_the_winning_value_only() {
    let head = r#"variable "v" {
  type    = string
  default = "bad"
  validation {
    condition     = can(parseint(var.v, 10)) && length([for c in split("", var.v) : c]) < 4
    error_message = "${var.v} is not short"
  }
}"#;
    assert_eq!(env_of(&Given::default().var("v", "123"), head, "var.v"), "123");
    assert_eq!(errors(&with(head, "\"\"")), ["job.hcl:5: invalid value for variable \"v\": bad is not short"]);
    let rule = |inside: &str| {
        with(
            &format!(
                "variable \"v\" {{\ndefault = 1\nvalidation {{\n{inside}\n}}\n}}\nvariable \"w\" {{ default = 1 }}"
            ),
            "\"\"",
        )
    };
    for (inside, expected) in [
        (
            "condition = true\nerror_message = \"x\"",
            "job.hcl:4: the condition must refer to var.v and to no other variable or local value",
        ),
        (
            "condition = var.v == var.w\nerror_message = \"x\"",
            "job.hcl:4: the condition must refer to var.v and to no other variable or local value",
        ),
        (
            "condition = var.v == local.w\nerror_message = \"x\"",
            "job.hcl:4: the condition must refer to var.v and to no other variable or local value",
        ),
        (
            "condition = var.v == 1\nerror_message = \" \"",
            "job.hcl:5: error_message must be a string that is not empty",
        ),
        ("condition = var.v", "job.hcl:3: validation needs the arguments condition and error_message"),
        ("condition = var.v\nerror_message = \"x\"", "job.hcl:4: the condition must be true or false"),
        (
            "condition = fileexists(var.v)\nerror_message = \"x\"",
            "job.hcl:4: fileexists: filesystem functions cannot be used here",
        ),
    ] {
        assert_eq!(errors(&rule(inside)), [expected], "{inside}");
    }
}

#[test]
fn declarations_are_checked() {
    for (head, expected) in [
        (
            "variable \"v\" { default = 1 }\nvariable \"v\" { default = 2 }",
            "job.hcl:2: duplicate variable \"v\"; it stands in line 1 already",
        ),
        (
            "variables {\nv = 1\n}\nvariable \"v\" { default = 2 }",
            "job.hcl:4: duplicate variable \"v\"; it stands in line 2 already",
        ),
        (
            "variable \"v\" { defualt = 1 }",
            "job.hcl:1: unsupported argument \"defualt\" in variable \"v\" (did you mean \"default\"?)",
        ),
        (
            "variable \"w\" { default = 1 }\nvariable \"v\" { default = var.w }",
            "job.hcl:2: undeclared variable \"w\"; declare it with a variable block",
        ),
        ("variables {\nv {\n}\n}", "job.hcl:2: unsupported block \"v\" in variables; write name = value"),
    ] {
        assert_eq!(errors(&with(head, "\"\"")), [expected], "{head}");
    }
    assert_eq!(
        env_of(&Given::default().var("a", "9"), "variables {\na = 1\nb = \"x\"\n}", "\"${var.a}${var.b}\""),
        "9x"
    );
}

/// Upstream: Locals.
#[test]
fn locals_are_evaluated_in_any_order() {
    let head = "locals {\nc = \"${local.b}!\"\nb = upper(local.a)\n}\nvariable \"v\" { default = \"x\" }\nlocals {\na = \"a${var.v}\"\n}";
    assert_eq!(env_of(&Given::default(), head, "local.c"), "AX!");
    for (head, expected) in [
        (
            "locals {\na = local.b\nb = local.a\n}",
            vec![
                "job.hcl:2: circular reference: local value \"a\" needs \"b\", which needs it in turn",
                "job.hcl:3: circular reference: local value \"b\" needs \"a\", which needs it in turn",
            ],
        ),
        (
            "locals {\na = local.a\n}",
            vec!["job.hcl:2: circular reference: local value \"a\" needs \"a\", which needs it in turn"],
        ),
        (
            "locals {\na = 1\n}\nlocals {\na = 2\n}",
            vec!["job.hcl:5: duplicate local value \"a\"; it stands in line 2 already"],
        ),
        (
            "locals {\na = 1\nb = [for k, v in local : k]\n}",
            vec!["job.hcl:3: a local value cannot refer to all of local; name one, such as local.x"],
        ),
        (
            "locals {\na = local.nope\n}",
            vec!["job.hcl:2: undeclared local value \"nope\"; declare it in a locals block"],
        ),
        ("locals {\na {\n}\n}", vec!["job.hcl:2: unsupported block \"a\" in locals; write name = value"]),
    ] {
        assert_eq!(errors(&with(head, "\"\"")), expected, "{head}");
    }
}

/// Upstream: `VarsAndFunctions`, `JobWithFunctionsAndLookups`.
#[test]
fn variables_functions_and_lookups_together() {
    let text = r#"
variables {
  region_var = "default_region"
}
variable "sizes" {
  type    = map(object({ cpu = number, memory = number }))
  default = { small = { cpu = 100, memory = 64 }, large = { cpu = 2000, memory = 512 } }
}
locals {
  size = lookup(var.sizes, "large", var.sizes["small"])
  port = { for k, v in { web = 80, api = 81 } : upper(k) => v }
}
job "example" {
  datacenters = [for s in ["dc1", "dc2"] : upper(s)]
  region      = var.region_var
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "echo"
        args    = concat(["-n"], [for k in keys(local.port) : format("%s=%d", k, local.port[k])])
      }
      resources {
        cpu    = local.size.cpu
        memory = local.size.memory
      }
    }
  }
}
"#;
    let job = job(text);
    assert_eq!(job.region, "default_region");
    let task = &job.groups[0].tasks[0];
    assert_eq!(task.config.values["args"], serde_json::json!(["-n", "API=81", "WEB=80"]));
    assert_eq!((task.resources.cpu_mhz, task.resources.memory_mib), (2000, 512));
}
