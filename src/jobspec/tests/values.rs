//! Jobs and the values that they are decoded to.

use std::time::Duration;

use serde_json::json;

use super::{Given, around_task, errors, job, task_of};
use crate::spec::{
    ArtifactMode, ChangeMode, JobType, Lifecycle, LifecycleHook, LogConfig, LogKeeping, RestartMode, RestartPolicy,
    Signal, TaskResources,
};

#[test]
fn a_minimal_job_has_the_defaults() {
    let parsed = Given::default().parse(&around_task("")).unwrap();
    assert_eq!(parsed.warnings, Vec::<String>::new());
    let job = parsed.job;
    assert_eq!((job.id.as_str(), job.name.as_str(), job.kind), ("j", "j", JobType::Service));
    assert_eq!((job.region.as_str(), job.namespace.as_str(), job.priority), ("global", "default", 50));
    let group = &job.groups[0];
    assert_eq!((group.count, group.shutdown_delay, &group.network), (1, Duration::ZERO, &None));
    assert_eq!((group.pos.line, group.pos.column, group.pos.file.as_ref()), (2, 1, "job.hcl"));
    let task = &group.tasks[0];
    assert_eq!(
        task.resources,
        TaskResources { cpu_mhz: 100, cores: 0, memory_mib: 300, memory_max_mib: 0, secrets_mib: 0 }
    );
    assert_eq!(
        task.logs,
        LogConfig { max_files: 10, max_file_size_mib: 10, disabled: false, keeping: LogKeeping::default() }
    );
    assert_eq!((task.kill_signal, task.kill_timeout), (None, Duration::from_secs(5)));
    assert_eq!((task.lifecycle, task.leader, task.user.as_str()), (None, false, ""));
    assert_eq!(task.pos.line, 3);
    assert_eq!(task.config.pos.line, 3);
}

#[test]
fn every_argument_reaches_the_job() {
    let text = r#"
job "web" {
  id        = "web-id"
  name      = "Web"
  type      = "batch"
  region    = "eu"
  namespace = "prod"
  meta { owner = "a" }
  group "g" {
    count          = 2
    shutdown_delay = "3s"
    meta { tier = 1 }
    ephemeral_disk { size = 101 }
    network {
      mode = "host"
      port "http" { static = 8080 }
      port "admin" {}
    }
    task "t" {
      driver         = "raw_exec"
      user           = "nobody"
      leader         = true
      kill_signal    = "term"
      kill_timeout   = "1m30s"
      shutdown_delay = 250000000
      config {
        command = "/bin/sh"
        args    = ["-c", "exit 0"]
      }
      env { A = "b" }
      meta { k = true }
      resources {
        cpu        = 500
        memory     = 64
        memory_max = 128
      }
      logs {
        max_files     = 3
        max_file_size = 2
        compress = true
        max_age = "72h"
      }
      lifecycle {
        hook    = "prestart"
        sidecar = true
      }
      template {
        data                 = "x"
        destination          = "local/x"
        perms                = "0600"
        env                  = true
        change_mode          = "signal"
        change_signal        = "sighup"
        left_delimiter       = "[["
        right_delimiter      = "]]"
        error_on_missing_key = true
      }
      artifact {
        source      = "file:///srv/a%20b"
        destination = "local/ab"
        mode        = "file"
        chown       = true
      }
      artifact { source = "data/x.tar" }
    }
    task "main" { driver = "exec" }
  }
}
"#;
    let job = job(text);
    assert_eq!((job.id.as_str(), job.name.as_str(), job.kind), ("web-id", "Web", JobType::Batch));
    assert_eq!((job.region.as_str(), job.namespace.as_str()), ("eu", "prod"));
    assert_eq!(job.meta["owner"], "a");
    let group = &job.groups[0];
    assert_eq!((group.count, group.shutdown_delay), (2, Duration::from_secs(3)));
    assert_eq!(group.meta["tier"], "1");
    let ports = &group.network.as_ref().unwrap().ports;
    assert_eq!((ports[0].label.as_str(), ports[0].static_port, ports[0].pos.line), ("http", Some(8080), 16));
    assert_eq!((ports[1].label.as_str(), ports[1].static_port), ("admin", None));
    let task = &group.tasks[0];
    assert_eq!((task.driver.as_str(), task.user.as_str(), task.leader), ("raw_exec", "nobody", true));
    assert_eq!((task.kill_signal, task.kill_timeout), (Some(Signal::TERM), Duration::from_secs(90)));
    assert_eq!(task.shutdown_delay, Duration::from_millis(250));
    assert_eq!(json!(task.config.values), json!({"command": "/bin/sh", "args": ["-c", "exit 0"]}));
    assert_eq!((task.config.pos.line, task.config.positions["args"].line), (26, 28));
    assert_eq!((task.env["A"].as_str(), task.meta["k"].as_str()), ("b", "true"));
    assert_eq!(
        task.resources,
        TaskResources { cpu_mhz: 500, cores: 0, memory_mib: 64, memory_max_mib: 128, secrets_mib: 0 }
    );
    let keeping = LogKeeping { compress: true, max_age: Some(Duration::from_hours(72)) };
    assert_eq!(task.logs, LogConfig { max_files: 3, max_file_size_mib: 2, disabled: false, keeping });
    assert_eq!(task.lifecycle, Some(Lifecycle { hook: LifecycleHook::Prestart, sidecar: true }));
    let template = &task.templates[0];
    assert_eq!((template.data.as_str(), template.destination.as_str(), template.perms), ("x", "local/x", 0o600));
    assert_eq!(template.change_mode, ChangeMode::Signal(Signal::from_name("HUP").unwrap()));
    assert_eq!((template.left_delimiter.as_str(), template.right_delimiter.as_str()), ("[[", "]]"));
    assert!(template.env && template.error_on_missing_key);
    let [first, second] = task.artifacts.as_slice() else { panic!("{:?}", task.artifacts) };
    assert_eq!((first.source.as_str(), first.destination.as_str()), ("file:///srv/a%20b", "local/ab"));
    assert_eq!((first.mode, first.chown), (ArtifactMode::File, true));
    assert_eq!((second.source.as_str(), second.destination.as_str()), ("data/x.tar", "local/"));
    assert_eq!(second.base_dir.as_os_str(), "/nonexistent");
}

#[test]
fn restart_defaults_follow_the_type_and_the_task_wins_over_the_group() {
    let policy = |kind: &str, group: &str, task: &str| {
        let text = format!(
            "job \"j\" {{\ntype = \"{kind}\"\ngroup \"g\" {{\n{group}\ntask \"t\" {{\ndriver = \"exec\"\n{task}\n}}\n}}\n}}\n"
        );
        job(&text).groups[0].tasks[0].restart
    };
    let made = |attempts, interval, delay, mode| RestartPolicy {
        attempts,
        interval: Duration::from_secs(interval),
        delay: Duration::from_secs(delay),
        mode,
        render_templates: false,
    };
    for kind in ["service", "system"] {
        assert_eq!(policy(kind, "", ""), made(2, 1800, 15, RestartMode::Fail), "{kind}");
    }
    for kind in ["batch", "sysbatch"] {
        assert_eq!(policy(kind, "", ""), made(3, 86_400, 15, RestartMode::Fail), "{kind}");
    }
    let group = "restart {\nattempts = 5\ninterval = \"10m\"\nmode = \"delay\"\n}";
    assert_eq!(policy("service", group, ""), made(5, 600, 15, RestartMode::Delay));
    assert_eq!(
        policy("service", group, "restart {\ndelay = \"1s\"\nattempts = 0\nmode = \"fail\"\n}"),
        made(0, 600, 1, RestartMode::Fail)
    );
    let renders = |task: &str| policy("service", "restart {\nrender_templates = true\n}", task).render_templates;
    assert!(renders("restart {\ndelay = \"1s\"\n}") && !renders("restart {\nrender_templates = false\n}"));
}

#[test]
fn lone_tasks_become_the_first_groups() {
    let job =
        job("job \"j\" {\ngroup \"g\" {\ntask \"a\" { driver = \"exec\" }\n}\ntask \"b\" { driver = \"exec\" }\n}\n");
    let names: Vec<_> = job.groups.iter().map(|g| (g.name.as_str(), g.tasks[0].name.as_str())).collect();
    assert_eq!(names, [("b", "b"), ("g", "a")]);
}

/// Upstream: `TaskEnvs`, `Meta_Alternatives`.
#[test]
fn env_and_meta_are_blocks_or_maps() {
    let block = task_of("env {\nA = 1\nB = true\nC = \"c\"\nD = 1.5\n}\nmeta {\nx = \"y\"\n}");
    let map = task_of("env = {\nA = 1\nB = true\nC = \"c\"\n\"D\" = 1.5\n}\nmeta = { x = \"y\" }");
    assert_eq!(block.env, map.env);
    assert_eq!(
        block.env.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>(),
        ["A=1", "B=true", "C=c", "D=1.5"]
    );
    assert_eq!(block.meta, map.meta);
    let dotted = task_of("env = {\n\"a.b\" = \"c\"\n\"X-Y\" = \"z\"\n}");
    assert_eq!((dotted.env["a.b"].as_str(), dotted.env["X-Y"].as_str()), ("c", "z"));
    let job = job(
        "job \"j\" {\nmeta = { \"a.b\" = 1 }\ngroup \"g\" {\nmeta = { \"c.d\" = 2 }\ntask \"t\" { driver = \"exec\" }\n}\n}\n",
    );
    assert_eq!((job.meta["a.b"].as_str(), job.groups[0].meta["c.d"].as_str()), ("1", "2"));
}

/// Upstream: `TaskEnvs_Invalid`, `TaskEnvs_Multiple`.
#[test]
fn both_forms_of_env_or_a_wrong_one_are_errors() {
    for (inside, expected) in [
        ("env { A = 1 }\nenv { B = 2 }", "job.hcl:5: Duplicate env block in task \"t\"; it stands in line 4 already"),
        ("env { A = 1 }\nenv = { B = 2 }", "job.hcl:5: Duplicate env block in task \"t\"; use one of the two forms"),
        ("env = { B = 2 }\nenv { A = 1 }", "job.hcl:5: Duplicate env block in task \"t\"; use one of the two forms"),
        ("env = \"A=1\"", "job.hcl:4: \"env\" in task \"t\" must be a map of strings, not \"A=1\""),
        ("env { A = [1] }", "job.hcl:4: \"A\" in env of task \"t\" must be a string, not list"),
        ("env = { A = null }", "job.hcl:4: \"A\" in env of task \"t\" must be a string, not null"),
        ("env {\nB {\n}\n}", "job.hcl:5: unsupported block \"B\" in env of task \"t\"; write KEY = value"),
    ] {
        assert_eq!(errors(&around_task(inside)), [expected], "{inside}");
    }
    assert!(errors(&around_task("env { \"a.b\" = 1 }"))[0].starts_with("job.hcl:4: syntax error"));
}

#[test]
fn config_blocks_become_lists_of_objects() {
    let config = task_of(
        r#"config {
  plain  = "a"
  number = 10
  big    = 12345678901234567
  float  = 1.5
  flags  = [true, null]
  labels = { a = "b", deep = { c = 1 } }
  list   = [{ a = 1 }]
  mount {
    source = "/x"
    opts { ro = true }
  }
  mount { source = "/y" }
  driver "vfio" "gpu" { count = 1 }
}"#,
    )
    .config;
    assert_eq!(
        json!(config.values),
        json!({
            "plain": "a", "number": 10, "big": 12_345_678_901_234_567u64, "float": 1.5, "flags": [true, null],
            "labels": [{"a": "b", "deep": [{"c": 1}]}],
            "list": [{"a": 1}],
            "mount": [{"source": "/x", "opts": [{"ro": true}]}, {"source": "/y"}],
            "driver": [{"vfio": [{"gpu": [{"count": 1}]}]}],
        })
    );
    assert_eq!(
        (config.positions["plain"].line, config.positions["mount"].line, config.positions["driver"].line),
        (5, 12, 17)
    );
}

/// Upstream: `ParseDynamic`.
#[test]
fn dynamic_blocks_are_expanded_everywhere() {
    let text = r#"
variable "sizes" {
  default = { a = 10, b = 20 }
}
job "j" {
  dynamic "group" {
    for_each = ["x", "y"]
    iterator = g
    labels   = ["group-${g.key}-${g.value}"]
    content {
      dynamic "task" {
        for_each = var.sizes
        labels   = ["${g.value}-${task.key}"]
        content {
          driver = "exec"
          env { SIZE = task.value }
          resources { memory = task.value }
          config {
            dynamic "mount" {
              for_each = convert(["p", "q"], set(string))
              content { name = "${mount.key}${mount.value}${g.value}" }
            }
          }
        }
      }
    }
  }
}
"#;
    let job = job(text);
    let names: Vec<_> = job.groups.iter().map(|g| g.name.as_str()).collect();
    assert_eq!(names, ["group-0-x", "group-1-y"]);
    let tasks: Vec<_> = job.groups[1].tasks.iter().map(|t| (t.name.as_str(), t.resources.memory_mib)).collect();
    assert_eq!(tasks, [("y-a", 10), ("y-b", 20)]);
    assert_eq!(job.groups[1].tasks[1].env["SIZE"], "20");
    assert_eq!(json!(job.groups[0].tasks[0].config.values), json!({"mount": [{"name": "ppx"}, {"name": "qqx"}]}));
}

/// The mission's B8: `iops` is accepted and has no effect, which is said.
#[test]
fn b8_iops_is_accepted_with_a_warning() {
    let parsed = Given::default().parse(&around_task("resources {\niops = 10\ncpu = 200\n}")).unwrap();
    assert_eq!(parsed.warnings, ["job.hcl:5: iops has no effect with agentbin run"]);
    assert_eq!(parsed.job.groups[0].tasks[0].resources.cpu_mhz, 200);
}

#[test]
fn what_only_a_scheduler_reads_is_named_in_a_warning() {
    let text = r#"job "j" {
  datacenters = ["dc1"]
  priority    = 70
  node_pool   = "x"
  update {
    max_parallel = 1
  }
  group "g" {
    reschedule {
      attempts = 0
    }
    spread {
      attribute = "${node.datacenter}"
    }
    network { mbits = 10 }
    ephemeral_disk { sticky = true }
    task "t" {
      driver = "exec"
      affinity {
        attribute = "${attr.kernel.name}"
      }
      logs { enabled = false }
      template {
        data        = "x"
        destination = "local/x"
        splay       = "5s"
      }
    }
  }
}
"#;
    let parsed = Given::default().parse(text).unwrap();
    let expected = [
        (2, "datacenters"),
        (3, "priority"),
        (4, "node_pool"),
        (5, "update"),
        (9, "reschedule"),
        (12, "spread"),
        (15, "mbits"),
        (16, "sticky"),
        (19, "affinity"),
    ];
    let expected: Vec<_> =
        expected.iter().map(|(line, name)| format!("job.hcl:{line}: {name} has no effect with agentbin run")).collect();
    let (enabled, rest): (Vec<_>, Vec<_>) = parsed.warnings.iter().partition(|w| w.contains("deprecated"));
    assert_eq!(rest, expected.iter().collect::<Vec<_>>());
    assert_eq!(enabled, ["job.hcl:22: enabled is deprecated; use disabled"]);
    assert_eq!(parsed.job.priority, 70);
    assert!(parsed.job.groups[0].tasks[0].logs.disabled);
}

#[test]
fn files_with_carriage_returns_are_read() {
    let text =
        around_task("env {\nA = \"x\"\n}\ntemplate {\ndestination = \"local/x\"\ndata = <<-EOT\n  a\n  b\n  EOT\n}");
    let task = job(&text.replace('\n', "\r\n")).groups.remove(0).tasks.remove(0);
    assert_eq!((task.env["A"].as_str(), task.templates[0].data.as_str()), ("x", "a\r\nb\r\n"));
    assert_eq!((task.pos.line, task.templates[0].pos.line), (3, 7));
}

#[test]
fn empty_lists_and_null_are_no_blocks_in_json() {
    let json = r#"{"job": {"j": {"group": {"g": {"network": null, "task": {"t": {"driver": "exec", "template": [], "env": {}}}}}}}}"#;
    assert_eq!(job(json).groups[0].tasks[0].templates, []);
}

#[test]
fn the_secrets_of_a_task_have_a_size() {
    let parsed = Given::default().parse(&around_task("resources {\nsecrets = 5\n}")).unwrap();
    assert_eq!((parsed.warnings.len(), parsed.job.groups[0].tasks[0].resources.secrets_mib), (0, 5));
}

#[test]
fn a_sysbatch_job_may_have_a_count() {
    let text = around_task("").replacen("group", "type = \"sysbatch\"\ngroup", 1);
    let text = text.replacen("task", "count = 2\ntask", 1);
    assert_eq!(job(&text).groups[0].count, 2);
}
