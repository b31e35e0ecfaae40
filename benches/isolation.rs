//! The isolation table for us and for what else starts processes on a Linux host, in one run: the same probe, started by
//! each of them in its default form and, where it has one, in its tightest.
//!
//! Every one of them is started with a descriptor open that nobody asked for, as an agent's own would be.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agentbin::container::probe::{Host, ROWS, Report, score};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::{pause, program};

const PROBE: &str = "isolation-probe";
pub(super) const IMAGE: &str = "agentbin-isolation-probe";
/// A unit's lines that take away what a plain program does not need.
const HARDENED_UNIT: &[&str] = &[
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "PrivateDevices=yes",
    "PrivateIPC=yes",
    "PrivateMounts=yes",
    "PrivateNetwork=yes",
    "PrivateTmp=yes",
    "PrivateUsers=yes",
    "ProcSubset=pid",
    "ProtectClock=yes",
    "ProtectControlGroups=yes",
    "ProtectHome=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "ProtectProc=invisible",
    "ProtectSystem=strict",
    "RemoveIPC=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
];

pub struct Isolation {
    columns: Vec<(&'static str, Report)>,
    notes: Vec<String>,
    pub ours_ran: bool,
}

pub fn measure(agentbin: &Path, dir: &Path) -> Result<Isolation> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    let root = dir.join("root");
    fill(&root, agentbin)?;
    let host = serde_json::to_string(&Host::here()?)?;
    let mut isolation = Isolation { columns: Vec::new(), notes: Vec::new(), ours_ran: true };
    let column = |isolation: &mut Isolation, name, report: Result<Report>| match report {
        Ok(report) => isolation.columns.push((name, report)),
        Err(error) => isolation.notes.push(format!("{name}: {error:#}")),
    };
    let program = root.join("agentbin").to_string_lossy().into_owned();
    column(&mut isolation, "host", ask(&[vec![program], probe(&host)].concat()));
    for runtime in ["runc", "crun"] {
        column(&mut isolation, runtime, by_runtime(runtime, dir, &root, &host));
    }
    match Docker::start(dir, &root) {
        Ok(docker) => {
            column(&mut isolation, "docker", docker.run(&[], &host));
            let hardened = "--user 65534 --cap-drop ALL --security-opt no-new-privileges --read-only --network none";
            column(&mut isolation, "docker +", docker.run(&hardened.split(' ').collect::<Vec<_>>(), &host));
        }
        Err(error) => isolation.notes.push(format!("docker: {error:#}")),
    }
    column(&mut isolation, "systemd", by_systemd(&[], &root, &host));
    column(&mut isolation, "systemd +", by_systemd(HARDENED_UNIT, &root, &host));
    column(&mut isolation, "bubblewrap", by_bubblewrap(&root, &host));
    ours(&mut isolation, agentbin, dir)?;
    Ok(isolation)
}

impl Isolation {
    pub fn table(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| *name).collect();
        let mut text = format!("| id | check | {} |\n|---|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
        for row in &ROWS {
            let mark = |report: &Report| if report.get(row.id).is_some_and(|seen| seen.pass) { "✓" } else { "✗" };
            let cells: Vec<&str> = self.columns.iter().map(|(_, report)| mark(report)).collect();
            let _ = writeln!(text, "| {} | {} | {} |", row.id, row.name, cells.join(" | "));
        }
        let scores: Vec<String> = self.columns.iter().map(|(_, report)| format!("**{}**", score(report))).collect();
        let _ = writeln!(text, "| | holds, of {} | {} |", ROWS.len(), scores.join(" | "));
        for note in &self.notes {
            let _ = write!(text, "\n{note}");
        }
        text
    }

    pub fn json(&self) -> Value {
        let columns = self.columns.iter().map(|(name, report)| {
            ((*name).to_owned(), json!({ "score": score(report), "of": ROWS.len(), "rows": report }))
        });
        json!({ "columns": Value::Object(columns.collect()), "notes": self.notes })
    }
}

/// A small root: a shell, our probe, and a user database with somebody's password in it.
fn fill(root: &Path, agentbin: &Path) -> Result<()> {
    for folder in ["bin", "dev", "etc", "proc", "sys", "tmp", "run", "var"] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    let busybox = program("busybox").context("no busybox (scripts/setup brings it)")?;
    fs::copy(busybox, root.join("bin/busybox"))?;
    fs::copy(agentbin, root.join("agentbin"))?;
    fs::set_permissions(root.join("agentbin"), fs::Permissions::from_mode(0o755))?;
    fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")?;
    let groups = "root:x:0:\nbin:x:1:root\ndaemon:x:2:root\nsys:x:3:root\nnogroup:x:65534:\n";
    fs::write(root.join("etc/group"), groups)?;
    fs::write(root.join("etc/shadow"), "root:*:20000:0:99999:7:::\n")?;
    fs::set_permissions(root.join("etc/shadow"), fs::Permissions::from_mode(0o640))?;
    Ok(())
}

fn probe(host: &str) -> Vec<String> {
    vec![PROBE.to_owned(), host.to_owned()]
}

/// Starts a command with one descriptor too many and reads the report that it prints.
fn ask(command: &[String]) -> Result<Report> {
    serde_json::from_str(&output(command)?).context("not a report")
}

pub(super) fn output(command: &[String]) -> Result<String> {
    let out = Command::new("sh").args(["-c", "exec \"$@\" 9</", "sh"]).args(command).stdin(Stdio::null()).output()?;
    ensure!(out.status.success(), "{}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    Ok(String::from_utf8(out.stdout)?)
}

fn installed(name: &str) -> Result<String> {
    let path = program(name).with_context(|| format!("{name} is not installed (scripts/setup --bench brings it)"))?;
    Ok(path.to_string_lossy().into_owned())
}

/// With the configuration that `RUNTIME spec` writes, but for the command.
fn by_runtime(name: &str, dir: &Path, root: &Path, host: &str) -> Result<Report> {
    let runtime = installed(name)?;
    let bundle = dir.join(format!("{name}-isolation"));
    fs::create_dir_all(&bundle)?;
    let spec = Command::new(&runtime).arg("spec").current_dir(&bundle).output()?;
    ensure!(spec.status.success(), "spec: {}", String::from_utf8_lossy(&spec.stderr).trim());
    let file = bundle.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file)?)?;
    config["process"]["terminal"] = false.into();
    config["process"]["args"] = [vec!["/agentbin".to_owned()], probe(host)].concat().into();
    config["root"]["path"] = root.to_string_lossy().into();
    fs::write(&file, config.to_string())?;
    let state = dir.join(format!("{name}-isolation-state"));
    let id = format!("agentbin-isolation-{}", std::process::id());
    let words =
        ["--root", &state.to_string_lossy(), "run", "--bundle", &bundle.to_string_lossy(), &id].map(str::to_owned);
    ask(&[&[runtime][..], &words].concat())
}

/// A daemon of our own, on a socket and in directories of our own; ended when dropped.
pub(super) struct Docker {
    daemon: Child,
    client: String,
    socket: String,
}

impl Docker {
    pub(super) fn start(dir: &Path, root: &Path) -> Result<Docker> {
        let (daemon, client) = (installed("dockerd")?, installed("docker")?);
        let dir = dir.join("docker");
        fs::create_dir_all(&dir)?;
        let socket = format!("unix://{}", dir.join("socket").display());
        let log = dir.join("log");
        let daemon = Command::new(daemon)
            .args(["--host", &socket, "--storage-driver", "vfs"])
            .args(["--bridge", "none", "--iptables=false", "--ip6tables=false"])
            .arg("--data-root")
            .arg(dir.join("data"))
            .arg("--exec-root")
            .arg(dir.join("exec"))
            .arg("--pidfile")
            .arg(dir.join("pid"))
            .stdin(Stdio::null())
            .stdout(fs::File::create(&log)?)
            .stderr(fs::File::options().append(true).open(&log)?)
            .spawn()?;
        let mut docker = Docker { daemon, client, socket };
        let deadline = Instant::now() + Duration::from_mins(1);
        while output(&docker.words(&["version"])).is_err() {
            let log = || fs::read_to_string(&log).unwrap_or_default().lines().last().unwrap_or_default().to_owned();
            ensure!(docker.daemon.try_wait()?.is_none(), "dockerd does not run here: {}", log());
            ensure!(Instant::now() < deadline, "dockerd does not answer: {}", log());
            pause(Duration::from_millis(50));
        }
        let archive = dir.join("root.tar");
        let packed = Command::new("tar").arg("-C").arg(root).arg("-cf").arg(&archive).arg(".").status()?;
        ensure!(packed.success(), "tar: {packed}");
        output(&docker.words(&["import", &archive.to_string_lossy(), IMAGE])).context("docker import")?;
        Ok(docker)
    }

    pub(super) fn words(&self, words: &[&str]) -> Vec<String> {
        let mut all = vec![self.client.clone(), "--host".to_owned(), self.socket.clone()];
        all.extend(words.iter().map(|w| (*w).to_owned()));
        all
    }

    fn run(&self, options: &[&str], host: &str) -> Result<Report> {
        ask(&self.words(&[&["run", "--rm"], options, &[IMAGE, "/agentbin", PROBE, host]].concat()))
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let pid = i32::try_from(self.daemon.id()).unwrap_or_default();
        let asked = agentbin::sys::process::open_pidfd(pid).and_then(|pidfd| {
            let terminate =
                agentbin::spec::Signal::from_name("SIGTERM").context("no SIGTERM").map_err(std::io::Error::other)?;
            agentbin::sys::process::send_signal(std::os::fd::AsFd::as_fd(&pidfd), terminate)
        });
        if asked.is_err() {
            let _ = self.daemon.kill();
        }
        let _ = self.daemon.wait();
    }
}

fn by_systemd(lines: &[&str], root: &Path, host: &str) -> Result<Report> {
    ensure!(Path::new("/run/systemd/system").is_dir(), "not available: process 1 is not systemd");
    let mut words = vec![installed("systemd-run")?];
    words.extend(["--quiet", "--wait", "--pipe", "--collect", "-p", "User=nobody"].map(str::to_owned));
    for line in lines {
        words.extend(["-p".to_owned(), (*line).to_owned()]);
    }
    words.extend(["--".to_owned(), root.join("agentbin").to_string_lossy().into_owned()]);
    words.extend(probe(host));
    ask(&words)
}

fn by_bubblewrap(root: &Path, host: &str) -> Result<Report> {
    let mut words: Vec<String> = vec![installed("setpriv")?];
    words.extend(["--reuid", "65534", "--regid", "65534", "--clear-groups"].map(str::to_owned));
    words.push(installed("bwrap")?);
    words.extend(["--unshare-all", "--new-session", "--ro-bind"].map(str::to_owned));
    words.extend([root.to_string_lossy().into_owned(), "/".to_owned()]);
    words.extend(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "/agentbin"].map(str::to_owned));
    words.extend(probe(host));
    ask(&words)
}

/// All levels, as `agentbin doctor --probe` measures them.
fn ours(isolation: &mut Isolation, agentbin: &Path, dir: &Path) -> Result<()> {
    let data_dir: PathBuf = dir.join("doctor-data");
    let out = Command::new("sh")
        .args(["-c", "exec \"$@\" 9</", "sh"])
        .arg(agentbin)
        .args(["doctor", "--probe", "--json", "--data-dir"])
        .arg(data_dir)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    let said: Value = serde_json::from_slice(&out.stdout).context("agentbin doctor --probe --json")?;
    let levels = [("ours: raw_exec", "raw_exec"), ("nomad", "nomad"), ("default", "default"), ("strict", "strict")];
    for (column, level) in levels {
        let level = &said["isolation"]["levels"][level];
        if let Ok(report) = serde_json::from_value(level["rows"].clone()) {
            isolation.columns.push((column, report));
        } else {
            isolation.ours_ran = false;
            isolation.notes.push(format!("{column}: {}", level["error"]));
        }
    }
    if isolation.columns.is_empty() {
        bail!("nothing was measured");
    }
    Ok(())
}
