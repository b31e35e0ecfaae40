//! The JSON forms of a job file.

use super::{Given, errors, job};
use crate::spec::Job;

/// The job with places forgotten, because the two forms have other lines.
fn without_places(mut job: Job) -> Job {
    job.constraints.iter_mut().for_each(|c| c.pos = crate::spec::Pos::default());
    for group in &mut job.groups {
        group.pos = crate::spec::Pos::default();
        if let Some(network) = &mut group.network {
            network.pos = crate::spec::Pos::default();
            network.ports.iter_mut().for_each(|p| p.pos = crate::spec::Pos::default());
        }
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
            "job.hcl:11: unsupported argument \"cuont\" in group \"g\" (did you mean \"count\"?)",
        ),
        ("\"count\": 2", "\"count\": \"${1 / 0}\"", "job.hcl:11: division by zero"),
        (
            "\"env\": {\"K\": \"v\"}",
            "\"vault\": {\"role\": \"x\"}",
            "job.hcl:25: vault in task \"main\" is not supported yet by agentbin run; remove it",
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
        ("\"job\": {", "\"jub\": {", "job.hcl:5: unsupported argument \"jub\" in the job file (did you mean \"job\"?)"),
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

/// What `nomad job run -output` writes, shortened; everything that was not given is there as null or zero.
const API: &str = r#"{
  "Job": {
    "ID": "j", "Name": "j", "Type": "batch", "Region": null, "Priority": null, "Payload": null, "Version": 3,
    "Datacenters": ["*"],
    "Constraints": [{"LTarget": "${attr.cpu.arch}", "RTarget": "x", "Operand": "!="}],
    "Meta": {"a.b": "c"},
    "TaskGroups": [
      {
        "Name": "g",
        "Count": 2,
        "Networks": [{"Mode": "", "DNS": null,
          "ReservedPorts": [{"Label": "http", "Value": 8080, "To": 0, "HostNetwork": ""}],
          "DynamicPorts": [{"Label": "x", "Value": 0, "To": 0}]}],
        "RestartPolicy": {"Attempts": 0, "Interval": 60000000000, "Delay": 0, "Mode": "fail"},
        "Consul": {"Namespace": "", "Partition": ""},
        "Services": [],
        "Tasks": [
          {
            "Name": "t", "Driver": "exec", "User": "",
            "Config": {"command": "/bin/sh", "args": ["${NOMAD_PORT_http}"], "mount": [{"a": 1}]},
            "Env": {"A": "${attr.x}%{ if"},
            "Resources": {"CPU": 200, "MemoryMB": 64, "MemoryMaxMB": null, "Networks": null},
            "LogConfig": {"MaxFiles": 2, "MaxFileSizeMB": 3, "Disabled": false, "Enabled": null},
            "Templates": [{"SourcePath": "", "EmbeddedTmpl": "", "DestPath": "local/x", "Perms": "0600", "Wait": null}],
            "Artifacts": [{"GetterSource": "/srv/x", "GetterMode": "any", "RelativeDest": "local/"}],
            "KillTimeout": 7000000000,
            "Leader": false
          }
        ]
      }
    ]
  }
}
"#;

#[test]
fn the_form_of_the_http_api_is_read_too() {
    let native = r#"
job "j" {
  type = "batch"
  meta = { "a.b" = "c" }
  constraint {
    attribute = attr.cpu.arch
    operator  = "!="
    value     = "x"
  }
  group "g" {
    count = 2
    network {
      port "http" { static = 8080 }
      port "x" {}
    }
    restart {
      attempts = 0
      interval = "1m"
      delay    = "0s"
    }
    task "t" {
      driver       = "exec"
      kill_timeout = "7s"
      config {
        command = "/bin/sh"
        args    = ["${NOMAD_PORT_http}"]
        mount { a = 1 }
      }
      env { A = "${attr.x}%%{ if" }
      resources {
        cpu    = 200
        memory = 64
      }
      logs {
        max_files     = 2
        max_file_size = 3
      }
      template {
        data        = ""
        destination = "local/x"
        perms       = "0600"
      }
      artifact { source = "/srv/x" }
    }
  }
}
"#;
    let expected = without_places(job(native));
    let parsed = Given::default().parse(API).unwrap();
    assert_eq!(
        parsed.warnings,
        [
            "job.hcl:3: Version has no effect with agentbin run",
            "job.hcl:4: datacenters has no effect with agentbin run",
        ]
    );
    assert_eq!(without_places(parsed.job), expected);
    let bare = API.trim().strip_prefix("{\n  \"Job\":").unwrap().strip_suffix('}').unwrap();
    assert_eq!(without_places(job(bare)), expected);
}

#[test]
fn the_form_of_the_http_api_is_checked_by_the_same_rules() {
    for (from, to, expected) in [
        (
            "\"Services\": []",
            "\"Constraints\": [{\"LTarget\": \"x\", \"Operand\": \"regexp\", \"RTarget\": \"(\"}]",
            "job.hcl:16: \"(\" is not a regular expression: unclosed group, in constraint of group \"g\"",
        ),
        (
            "\"Mode\": \"\"",
            "\"Mode\": \"driver\"",
            "job.hcl:11: network mode \"driver\" is not supported by agentbin run; use \"host\", \"bridge\", \"none\" or \"cni/NAME\"",
        ),
        (
            "\"Leader\": false",
            "\"Leadr\": false",
            "job.hcl:27: unsupported argument \"Leadr\" in task \"t\"; remove it",
        ),
        (
            "\"MemoryMB\": 64",
            "\"MemoryMB\": 5",
            "job.hcl:22: \"memory\" in resources of task \"t\" must be at least 10, not 5",
        ),
        ("\"CPU\": 200", "\"CPU\": 0", "job.hcl:22: \"cpu\" in resources of task \"t\" must be at least 1, not 0"),
        (
            "\"MemoryMB\": 64",
            "\"MemoryMB\": 0",
            "job.hcl:22: \"memory\" in resources of task \"t\" must be at least 10, not 0",
        ),
        (
            "\"MaxFiles\": 2",
            "\"MaxFiles\": 0",
            "job.hcl:23: \"max_files\" in logs of task \"t\" must be at least 1, not 0",
        ),
        (
            "\"MaxFileSizeMB\": 3",
            "\"MaxFileSizeMB\": 0",
            "job.hcl:23: \"max_file_size\" in logs of task \"t\" must be at least 1, not 0",
        ),
        ("\"TaskGroups\": [", "\"TaskGroups\": [5,", "job.hcl:7: an object is needed here; write { ... }"),
        (
            "\"GetterSource\": \"/srv/x\"",
            "\"GetterSource\": \"ftp://x/y\"",
            "job.hcl:25: source in artifact of task \"t\": unknown scheme \"ftp://\"; use http, https, file, git:: or s3::",
        ),
    ] {
        assert!(API.contains(from), "{from}");
        assert_eq!(errors(&API.replacen(from, to, 1)), [expected], "{to}");
    }
    // A server writes this zero beside cores.
    let by_cores = job(&API.replacen("\"CPU\": 200", "\"CPU\": 0, \"Cores\": 2", 1));
    assert_eq!(by_cores.groups[0].tasks[0].resources.cores, 2);
}

#[test]
fn what_a_run_refuses_is_seen_in_the_form_of_the_http_api() {
    let with = |service: &str| API.replacen("\"Services\": []", &format!("\"Services\": [{service}]"), 1);
    let found = errors(&with("{\"Name\": \"s\", \"Connect\": {\"SidecarService\": {}}}"));
    assert!(matches!(&found[..], [one] if one.contains("connect")), "{found:?}");
    let text = with("{\"Name\": \"s\", \"Namespace\": \"default\", \"Connect\": null}");
    let warnings = Given::default().parse(&text).unwrap().warnings;
    assert!(warnings.iter().any(|warning| warning.contains("there is no Consul here")), "{warnings:?}");
}
