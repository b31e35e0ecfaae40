//! How long a long job file takes to be read and checked, beside Nomad's own command, which reads it without an agent, too.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Options, median, quantile};

/// Lines of the file, at least.
const LINES: usize = 2000;
/// The median to reach, in milliseconds.
const TARGET: f64 = 20.0;

pub struct Validate {
    lines: usize,
    runs: usize,
    rows: Vec<(&'static str, Vec<f64>)>,
    notes: Vec<String>,
}

pub fn measure(options: &Options, agentbin: &Path, dir: &Path) -> Result<Validate> {
    let text = job();
    let (file, lines) = (dir.join("long.nomad.hcl"), text.lines().count());
    fs::write(&file, text).context("write the job file")?;
    let mut rows = vec![("agentbin validate", Vec::new())];
    let mut notes = Vec::new();
    let nomad = std::env::var_os("NOMAD").map(PathBuf::from);
    if nomad.is_some() {
        rows.push(("nomad job run -output", Vec::new()));
    } else {
        notes.push("NOMAD names no command: no peer".to_owned());
    }
    // They take turns, so that a busy moment of the machine hits both. The first time is not counted.
    for round in 0..=options.runs {
        for (number, (name, times)) in rows.iter_mut().enumerate() {
            let peer = nomad.as_ref().filter(|_| number > 0);
            let (program, words): (&Path, &[&str]) =
                if let Some(nomad) = peer { (nomad, &["job", "run", "-output"]) } else { (agentbin, &["validate"]) };
            let mut command = Command::new(program);
            command.args(words);
            command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let started = Instant::now();
            let status = command.status().with_context(|| format!("start {name}"))?;
            let took = started.elapsed().as_secs_f64() * 1e3;
            ensure!(status.success(), "{name} ended with {status}");
            if round > 0 {
                times.push(took);
            }
        }
    }
    Ok(Validate { lines, runs: options.runs, rows, notes })
}

/// A job file as people write them, and long: groups with ports, services with checks, environments, templates.
fn job() -> String {
    let mut text = String::from(
        "variable \"datacenter\" {\n  type    = string\n  default = \"dc1\"\n}\n\nlocals {\n  version = \"1.2.3\"\n}\n\n\
         job \"long\" {\n  datacenters = [var.datacenter]\n\n",
    );
    let mut number = 0;
    while text.lines().count() < LINES {
        number += 1;
        let _ = write!(
            text,
            r#"  group "group-{number}" {{
    count = 2

    network {{
      port "http" {{
        to = 8080
      }}
      port "metrics" {{}}
    }}

    constraint {{
      attribute = "${{attr.kernel.name}}"
      value     = "linux"
    }}

    service {{
      name     = "web-{number}"
      port     = "http"
      provider = "nomad"
      tags     = ["version=${{local.version}}", "group=${{NOMAD_GROUP_NAME}}"]

      check {{
        type     = "http"
        path     = "/health"
        interval = "10s"
        timeout  = "2s"
      }}
    }}

    task "server" {{
      driver = "exec"

      config {{
        command = "/bin/sh"
        args    = ["-c", "exec /usr/bin/server --port ${{NOMAD_PORT_http}} --name {number}"]
      }}

      env {{
        VERSION  = local.version
        ADDRESS  = "${{NOMAD_ADDR_http}}"
        NUMBER   = "{number}"
        SHOUTING = upper("group-{number}")
      }}

      template {{
        destination = "local/server.conf"
        change_mode = "signal"
        change_signal = "SIGHUP"
        data        = <<EOT
listen {{{{ env "NOMAD_PORT_http" }}}}
{{{{ range nomadService "database" }}}}
server {{{{ .Address }}}}:{{{{ .Port }}}}
{{{{ end }}}}
EOT
      }}

      resources {{
        cpu    = 100
        memory = 128
      }}
    }}
  }}

"#
        );
    }
    text + "}\n"
}

impl Validate {
    fn ours(&self) -> f64 {
        median(&self.rows[0].1)
    }

    pub fn table(&self) -> String {
        let mut out = format!(
            "a job file of {} lines, read and checked; median (90th percentile) of {} runs each\n{:<24} {:>18} {:>8}\n",
            self.lines, self.runs, "", "ms", "/ nomad"
        );
        let base = self.rows.get(1).map(|(_, times)| median(times));
        for (name, times) in &self.rows {
            let cell = format!("{:.2} ({:.2})", median(times), quantile(times, 0.9));
            let ratio = base.map_or("-".to_owned(), |base| format!("{:.3}", median(times) / base));
            let _ = writeln!(out, "{name:<24} {cell:>18} {ratio:>8}");
        }
        let verdict = if self.ours() <= TARGET { "reached" } else { "missed" };
        let _ = writeln!(out, "to reach: {TARGET} ms, {verdict}");
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        out
    }

    pub fn json(&self) -> Value {
        let base = self.rows.get(1).map(|(_, times)| median(times));
        let rows = self.rows.iter().map(|(name, times)| {
            json!({
                "what": name, "ms": median(times), "p90_ms": quantile(times, 0.9),
                "ratio_nomad": base.map(|base| median(times) / base),
            })
        });
        let rows: Vec<Value> = rows.collect();
        json!({ "lines": self.lines, "runs": self.runs, "rows": rows, "target_ms": TARGET, "notes": self.notes })
    }
}
