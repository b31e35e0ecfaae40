//! Input that nobody means well: whatever it is, the answer is a job or diagnostics, never a crash.

use proptest::prelude::*;

use super::{Given, around_task, errors, job};

const SEED: &str = r#"
variable "n" {
  type    = map(list(string))
  default = { a = ["x", "y"], b = [] }
  validation {
    condition     = length(var.n) > 0
    error_message = "empty"
  }
}
locals {
  all = flatten([for k, v in var.n : [for x in v : "${k}-${x}" if x != "z"]])
  fmt = format("%-10s|%05.2f|%q", "a", 1.5, "b")
}
job "j" {
  group "g" {
    network {
      port "http" { static = 8080 }
    }
    dynamic "task" {
      for_each = local.all
      labels   = [task.value]
      content {
        driver = "exec"
        env = { "a.b" = "${NOMAD_PORT_http}:${task.key}" }
        config {
          args = ["-c", true ? "x" : 5, var.n["a"][*], substr("äöü", -2, 1)]
        }
      }
    }
    task "main" {
      driver       = "raw_exec"
      kill_timeout = "1m30s"
      template {
        destination = "local/x"
        data        = <<-EOT
          %{ for x in [1, 2] ~}
          n ${x} $${y}
          %{ endfor ~}
            end
        EOT
      }
      config {
        mount "a" { b = cidrsubnets("10.0.0.0/8", 4, 4) }
      }
    }
  }
}
"#;

#[test]
fn the_seed_of_the_mutations_is_valid() {
    assert_eq!(Given::default().job(SEED).groups[0].tasks.len(), 3);
}

#[test]
fn deep_nesting_is_an_error_and_no_stack_overflow() {
    let n = 50_000;
    let wrap = |open: &str, middle: &str, close: &str| format!("{}{middle}{}", open.repeat(n), close.repeat(n));
    let expressions = [
        wrap("[", "1", "]"),
        wrap("(", "1", ")"),
        wrap("{ a = ", "1", "}"),
        wrap("\"${", "1", "}\""),
        wrap("!", "true", ""),
        wrap("- -", "1", ""),
        wrap("true ? 1 : ", "1", ""),
        wrap("true ? ", "1", " : 1"),
        wrap("upper(", "\"a\"", ")"),
        wrap("x[", "1", "]"),
        wrap("[for x in [1] : ", "1", "]"),
        wrap("\"%{ if true }", "a", "%{ endif }\""),
        wrap("1 + ", "1", ""),
        wrap("(1 + ", "1", ")"),
    ];
    for expression in &expressions {
        let found = errors(&around_task(&format!("config {{\nx = {expression}\n}}")));
        // What has a limit of its own is refused before the parser.
        let refused = [
            "syntax error: ",
            "the objects and blocks here have too many or too large keys and values",
            "brackets after operators are nested too deeply",
        ];
        assert!(refused.iter().any(|text| found[0].starts_with(&format!("job.hcl:5: {text}"))), "{found:?}");
    }
    let blocks = errors(&wrap("a {\n", "", "}\n"));
    assert!(blocks[0].contains("syntax error: invalid nesting depth"), "{blocks:?}");
    for json in [wrap("{\"a\":", "1", "}"), format!("{{\"job\": {}}}", wrap("[", "", "]"))] {
        let found = errors(&json);
        assert!(found[0].ends_with("more than 64 nested levels"), "{found:?}");
    }
    let heredocs = wrap("<<-E\n${\n", "1", "\n}\nE\n");
    assert!(!errors(&around_task(&format!("config {{\nx = {heredocs}\n}}"))).is_empty());
}

/// The parser would read all that follows on an empty heredoc twice, if there is a mistake in it: twice as often for each around it.
#[test]
fn empty_heredocs_in_each_other_are_read_once() {
    for mistake in ["%{ x }", "${ \"", "%{ if x }", "${ <<Q\n", "${ }"] {
        let nested = |begin: &str| (0..50).fold(mistake.to_owned(), |inner, _| format!("{begin}{inner}\nE\n}}"));
        for begin in ["${<<E\nE\n}", "${<<-E\n  E\n}", "${<<E\nE}", "${<<E\r\nE }"] {
            let found = errors(&around_task(&format!("env {{\nA = <<X\n{}\nX\n}}", nested(begin))));
            assert!(!found.is_empty(), "{begin} {mistake}");
        }
    }
}

/// As deep as it may be, every step over the tree must still fit into a test thread's 2 MiB of stack.
#[test]
fn the_deepest_allowed_nesting_is_evaluated() {
    for n in [20, 40, 58, 60, 61, 62, 63, 64, 65] {
        let wrap = |open: &str, middle: &str, close: &str| format!("{}{middle}{}", open.repeat(n), close.repeat(n));
        for expression in [
            wrap("[", "1", "]"),
            wrap("upper(", "\"a\"", ")"),
            wrap("{ a = ", "1", "}"),
            wrap("\"${", "1", "}\""),
            wrap("true ? 1 : ", "1", ""),
            wrap("[for x in [1] : ", "1", "]"),
            wrap("(1 + 1 + ", "1", ")"),
            wrap("<<-E\n${\n", "1", "\n}\nE\n"),
        ] {
            let _ = Given::default().parse(&around_task(&format!("config {{\nx = {expression}\n}}")));
        }
    }
    let chain = format!("1{}", " + 1".repeat(128));
    assert!(Given::default().parse(&around_task(&format!("count_of = {chain}"))).is_err());
    let sum = around_task(&format!("resources {{\ncpu = {chain}\n}}"));
    assert_eq!(Given::default().job(&sum).groups[0].tasks[0].resources.cpu_mhz, 129);
}

#[test]
fn local_values_that_double_each_other_are_stopped() {
    let lines = |first: &str, next: &dyn Fn(usize) -> String| {
        let more: String = (1..200).map(|i| format!("a{i} = {}\n", next(i - 1))).collect::<Vec<_>>().concat();
        format!("locals {{\na0 = {first}\n{more}}}\n{}", around_task(""))
    };
    let texts = [
        lines("\"xxxxxxxx\"", &|i| format!("\"${{local.a{i}}}${{local.a{i}}}\"")),
        lines("[1]", &|i| format!("[local.a{i}, local.a{i}]")),
        lines("[1]", &|i| format!("concat(local.a{i}, local.a{i})")),
    ];
    for text in texts {
        let found = errors(&text);
        assert!(found.len() == 1 && found[0].contains("evaluating the job file takes more than"), "{found:?}");
    }
}

/// Cuts, copies and overwrites by the plan's numbers; always on the borders of characters.
fn mutated(seed: &str, plan: &[(u8, u16, u16, String)]) -> String {
    let mut chars: Vec<char> = seed.chars().collect();
    for (kind, at, length, text) in plan {
        let at = usize::from(*at) % (chars.len() + 1);
        let end = (at + usize::from(*length) % 40).min(chars.len());
        match kind % 4 {
            0 => drop(chars.drain(at..end)),
            1 => drop(chars.splice(at..end, text.chars()).collect::<Vec<_>>()),
            2 => drop(chars.splice(at..at, text.chars()).collect::<Vec<_>>()),
            _ => {
                let part: Vec<char> = chars[at..end].to_vec();
                let target = usize::from(*length) % (chars.len() + 1);
                drop(chars.splice(target..target, part).collect::<Vec<_>>());
            }
        }
    }
    chars.into_iter().collect()
}

fn plan() -> impl Strategy<Value = Vec<(u8, u16, u16, String)>> {
    let text = prop_oneof![
        "[-a-z0-9{}\\[\\]()\"$%~.,:=?!<>&|+*/\\\\ \n\u{e4}]{0,6}",
        proptest::sample::select(vec![
            "${",
            "%{",
            "$${",
            "\"",
            "null",
            "-1",
            "1e400",
            "<<-X\n",
            "...",
            "[*]",
            ".*.",
            "dynamic",
            "var.n",
            "each",
            "99999999999999999999999999999999999999999999",
            "\u{0}",
            "%{ for a, b in var.n }",
            "%{ endfor }",
            "~}",
        ])
        .prop_map(str::to_owned),
    ];
    proptest::collection::vec((any::<u8>(), any::<u16>(), any::<u16>(), text), 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_never_panic(plan in plan()) {
        let text = mutated(SEED, &plan);
        if let Err(e) = Given::default().parse(&text) {
            prop_assert!(e.diagnostics.iter().all(|d| d.pos.line > 0 && !d.message.is_empty()));
        }
    }

    #[test]
    fn mutated_json_never_panics(plan in plan()) {
        let seed = r#"{"variable": {"v": {"default": [1, {"a": "${1 + 1}"}]}}, "job": {"j": {"group": {"g": {
            "task": [{"t": {"driver": "exec", "env": {"A": "${var.v[0]}"}, "restart": {"interval": "1m", "attempts": 1}}}]}}}}}"#;
        let _ = Given::default().parse(&mutated(seed, &plan));
    }

    #[test]
    fn any_text_as_expression_never_panics(text in "\\PC{0,40}") {
        let _ = Given::default().parse(&around_task(&format!("config {{\nx = {text}\n}}")));
        let _ = Given::default().var("v", &text).parse(&format!("variable \"v\" {{ type = list(string) }}\n{}", around_task("")));
    }
}

/// Time grows with the size of the file and not with its square, also when all of it is one line.
#[test]
fn large_files_are_read_in_reasonable_time() {
    let started = std::time::Instant::now();
    let tasks: Vec<String> = (0..1000)
        .map(|i| format!(r#""t{i}": {{"driver": "exec", "config": {{"args": ["a", "${{NOMAD_X}}", "{i}"]}}, "env": {{"K": "v"}}}}"#))
        .collect();
    let json = format!(r#"{{"job": {{"j": {{"group": {{"g": {{"task": {{{}}}}}}}}}}}}}"#, tasks.join(","));
    assert_eq!(Given::default().job(&json).groups[0].tasks.len(), 1000);
    let native: String = (0..1000)
        .map(|i| {
            format!(
                "task \"t{i}\" {{\ndriver = \"exec\"\nconfig {{\nargs = [\"a\", \"${{NOMAD_X}}\", \"{i}\"]\n}}\n}}\n"
            )
        })
        .collect::<Vec<_>>()
        .concat();
    let native = format!("job \"j\" {{\ngroup \"g\" {{\n{native}}}\n}}\n");
    assert_eq!(Given::default().job(&native).groups[0].tasks.len(), 1000);
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

/// Whoever has spent most is named, wherever it ran out, and no `try` hides it.
#[test]
fn the_dearest_expression_is_named() {
    let two = "[for a in range(1000) : [for b in range(800) : a + b]]";
    let three = "[for a in range(1000) : [for b in range(1000) : [for c in range(1000) : a]]]";
    for (locals, line) in [
        (format!("a = 1\nb = length({two})\nc = [for a in range(1000) : [for b in range(300) : a]]"), 3),
        (format!("a = 1\nb = try({three}, 1)\nc = 2"), 3),
        (format!("a = can({three})\nb = can(local.a)"), 2),
        (format!("a = true ? 1 : {three}"), 2),
    ] {
        let found = errors(&format!("locals {{\n{locals}\n}}\n{}", around_task("")));
        assert!(found.len() == 1 && found[0].starts_with(&format!("job.hcl:{line}: evaluating")), "{found:?}");
    }
}

/// A loop over what has a name makes no copy of it: what people write is far below the limits.
#[test]
fn loops_over_a_large_table_are_cheap() {
    let table =
        "table = { for i in range(1000) : \"host-${i}\" => { address = \"10.0.0.${i}\", zone = \"z${i % 3}\" } }";
    let loops: String = (0..100)
        .map(|i| format!("l{i} = length([for name, host in local.table : name if host.zone == \"z1\"])\n"))
        .collect::<Vec<_>>()
        .concat();
    let names: String =
        (0..2000).map(|i| format!("n{i} = local.table[\"host-{}\"].address\n", i % 1000)).collect::<Vec<_>>().concat();
    let text =
        format!("locals {{\n{table}\n{loops}{names}}}\n{}", around_task("env {\nA = local.l99\nB = local.n1999\n}"));
    let env = Given::default().job(&text).groups[0].tasks[0].env.clone();
    assert_eq!((env["A"].as_str(), env["B"].as_str()), ("333", "10.0.0.999"));
}

#[test]
fn names_have_no_controls_and_a_length() {
    for (name, error) in [
        ("a\\u001bb", "the task's name \"a\\x1bb\" must not contain the character U+001B"),
        ("a\\nb", "must not contain the character U+000A"),
        ("a\u{202e}b", "must not contain the character U+202E"),
        (&"x".repeat(129), "the task's name has 129 bytes; at most 128 are possible"),
    ] {
        let text = around_task("").replace("task \"t\"", &format!("task \"{name}\""));
        let found = errors(&text);
        assert!(found[0].starts_with("job.hcl:3: ") && found[0].contains(error), "{found:?}");
    }
    let fits = "x".repeat(128);
    assert_eq!(job(&around_task("").replace("task \"t\"", &format!("task \"{fits}\""))).groups[0].tasks[0].name, fits);
}
