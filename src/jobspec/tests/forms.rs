//! The JSON forms of a job file.

use super::{Given, errors, job};
use crate::spec::Job;

/// The job with places forgotten, because the two forms have other lines.
fn without_places(mut job: Job) -> Job {
    for group in &mut job.groups {
        group.pos = crate::spec::Pos::default();
        group.network.iter_mut().flat_map(|n| &mut n.ports).for_each(|p| p.pos = crate::spec::Pos::default());
        for task in &mut group.tasks {
            task.pos = crate::spec::Pos::default();
            task.config.pos = crate::spec::Pos::default();
            task.config.positions.values_mut().for_each(|p| *p = crate::spec::Pos::default());
            task.templates.iter_mut().for_each(|t| t.pos = crate::spec::Pos::default());
            task.artifacts.iter_mut().for_each(|a| a.pos = crate::spec::Pos::default());
        }
    }
    job
}

const NATIVE: &str = r#"
variable "n" {
  type    = list(number)
  default = [1, 2]
}
locals { who = "w-${var.n[0]}" }
job "j" {
  type = "batch"
  meta = { "a.b" = "c" }
  group "g" {
    count = 2
    network {
      port "http" { static = 8080 }
      port "x" {}
    }
    dynamic "task" {
      for_each = var.n
      labels   = ["t${task.value}"]
      content {
        driver = "exec"
        config {
          command = "x"
          mount   = [{ a = 1 }]
        }
      }
    }
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/${local.who}"
        args    = ["${NOMAD_PORT_http}", "$${x}", "%{ if true }y%{ endif }"]
      }
      env { "K" = "v" }
      restart { attempts = 1 }
      template {
        data        = "a"
        destination = "local/a"
      }
      template {
        data        = "b"
        destination = "local/b"
      }
    }
  }
}
"#;

const JSON: &str = r#"  {
  "//": "a comment",
  "variable": {"n": {"type": "list(number)", "default": [1, 2]}},
  "locals": {"who": "w-${var.n[0]}"},
  "job": {
    "j": {
      "type": "batch",
      "meta": {"a.b": "c"},
      "group": [{
        "g": {
          "count": 2,
          "network": {"port": {"http": {"static": 8080}, "x": {}}},
          "dynamic": {"task": {
            "for_each": "${var.n}",
            "labels": ["t${task.value}"],
            "content": {"driver": "exec", "config": {"command": "x", "mount": [{"a": 1}]}}
          }},
          "task": {
            "main": {
              "driver": "raw_exec",
              "config": {
                "command": "/bin/${local.who}",
                "args": ["${NOMAD_PORT_http}", "$${x}", "%{ if true }y%{ endif }"]
              },
              "env": {"K": "v"},
              "restart": [{"attempts": 1}],
              "template": [
                {"data": "a", "destination": "local/a"},
                {"data": "b", "destination": "local/b"}
              ]
            }
          }
        }
      }]
    }
  }
}
"#;

#[test]
fn json_and_native_syntax_give_the_same_job() {
    let native = NATIVE.replace("env { \"K\" = \"v\" }", "env { K = \"v\" }");
    assert_eq!(without_places(job(JSON)), without_places(job(&native)));
    let args = &job(JSON).groups[0].tasks[2].config.values["args"];
    assert_eq!(args, &serde_json::json!(["${NOMAD_PORT_http}", "${x}", "y"]));
}

#[test]
fn json_places_are_those_of_the_keys() {
    let job = job(JSON);
    let task = &job.groups[0].tasks[2];
    assert_eq!((job.groups[0].pos.line, task.pos.line, task.pos.column), (10, 19, 13));
    assert_eq!((task.config.pos.line, task.config.positions["args"].line), (21, 23));
    assert_eq!((task.templates[0].pos.line, task.templates[1].pos.line), (28, 29));
    for (from, to, expected) in [
        (
            "\"count\": 2",
            "\"cuont\": 2",
            "job.hcl:11: unsupported argument \"cuont\" in group \"g\"; did you mean \"count\"?",
        ),
        ("\"count\": 2", "\"count\": \"${1 / 0}\"", "job.hcl:11: division by zero"),
        (
            "\"env\": {\"K\": \"v\"}",
            "\"service\": {\"port\": \"x\"}",
            "job.hcl:25: service in task \"main\" is not supported yet by agentbin run; remove it",
        ),
        (
            "\"restart\": [{\"attempts\": 1}]",
            "\"restart\": 5",
            "job.hcl:26: \"restart\" in task \"main\" is a block; write restart { ... }",
        ),
        (
            "\"data\": \"b\"",
            "\"data\": \"${local.x}\"",
            "job.hcl:29: undeclared local value \"x\"; declare it in a locals block",
        ),
        ("\"count\": 2", "\"count\": 2, \"count\": 3", "job.hcl:11: duplicate key \"count\"; remove one of the two"),
        ("\"count\": 2,", "\"count\": 2", "job.hcl:12: syntax error: expected \",\" or \"}\""),
        ("\"count\": 2", "\"count\": nope", "job.hcl:11: syntax error: expected a value"),
        ("\"count\": 2", "\"count\": \"${\"", "job.hcl:11: syntax error: "),
        ("\"job\": {", "\"jub\": {", "job.hcl:5: unsupported argument \"jub\" in the job file; did you mean \"job\"?"),
    ] {
        assert!(JSON.contains(from), "{from}");
        let found = errors(&JSON.replacen(from, to, 1));
        assert!(found[0].starts_with(expected), "{from}: {found:?}");
    }
}

#[test]
fn only_blanks_may_stand_before_json() {
    let given = Given::default();
    assert!(given.parse(" \t\r\n{\"job\": {}}").unwrap_err().to_string().contains("the file has no job"));
    assert!(given.parse("\u{a0}{}").unwrap_err().to_string().contains("syntax error"));
}
