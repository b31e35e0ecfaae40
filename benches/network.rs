//! What a network costs an allocation: `/bin/true` in each mode, launch to exit, beside podman with netavark, and the same plugins
//! called by cnitool. All in a network namespace of the bench's own.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use super::{Options, median, program, quantile};

/// Where Debian has the reference plugins.
const PLUGINS: &str = "/usr/lib/cni";
/// Names of the bench's own namespace, bridge, interface and network.
const NAME: &str = "bench";
const HOST: &str = "agentbin run, host";
const NONE: &str = "agentbin run, none";
const BUILTIN: &str = "agentbin run, bridge, built in";
const BY_PLUGINS: &str = "agentbin run, bridge, CNI plugins";
const PODMAN_NONE: &str = "podman run, none";
const PODMAN_BRIDGE: &str = "podman run, bridge";
const IP: &str = "ip(8): namespace, veth pair, address, route";
const CNITOOL: &str = "cnitool: the same CNI plugins";

/// What is timed: commands, one after the other.
struct Candidate {
    name: &'static str,
    commands: Vec<Vec<String>>,
    times: Vec<f64>,
}

pub struct Network {
    candidates: Vec<Candidate>,
    notes: Vec<String>,
    runs: usize,
    pub ours_ran: bool,
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn call(command: &[String]) -> Result<()> {
    let (name, arguments) = command.split_first().context("an empty command")?;
    let out = Command::new(name).args(arguments).stdin(Stdio::null()).output().with_context(|| name.clone())?;
    ensure!(out.status.success(), "{command:?}: {}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    Ok(())
}

impl Candidate {
    fn once(&self) -> Result<f64> {
        let started = Instant::now();
        self.commands.iter().try_for_each(|command| call(command))?;
        Ok(started.elapsed().as_secs_f64() * 1e3)
    }
}

/// A machine of the bench's own: loopback, forwarding, a bridge for what is not a runtime, and an empty `/run`.
fn enter() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).context("make a network namespace")?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    mount(Some("run"), "/run", Some("tmpfs"), MsFlags::empty(), Some("mode=755"))?;
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("forward packets")?;
    for command in [
        "ip link set lo up".to_owned(),
        format!("ip link add {NAME} type bridge"),
        format!("ip address add 10.98.0.1/24 dev {NAME}"),
        format!("ip link set {NAME} up"),
    ] {
        call(&words(&command))?;
    }
    Ok(())
}

fn ours(agentbin: &Path, dir: &Path) -> Result<Vec<Candidate>> {
    let of = |name, mode: &str, cni_path: &str| -> Result<Candidate> {
        let file = dir.join(format!("network-{mode}.nomad.hcl"));
        let job = format!(
            "job \"bench\" {{\n type = \"batch\"\n group \"bench\" {{\n network {{\n mode = \"{mode}\"\n }}\n \
             task \"bench\" {{\n driver = \"exec\"\n config {{ command = \"/bin/true\" }}\n }}\n }}\n}}\n"
        );
        fs::write(&file, job).context("write the job file")?;
        let run = [
            agentbin.display().to_string(),
            "run".to_owned(),
            "--quiet".to_owned(),
            "--data-dir".to_owned(),
            dir.join("network-data").display().to_string(),
            "--cni-path".to_owned(),
            cni_path.to_owned(),
            file.display().to_string(),
        ];
        Ok(Candidate { name, commands: vec![run.to_vec()], times: Vec::new() })
    };
    Ok(vec![
        of(HOST, "host", PLUGINS)?,
        of(NONE, "none", PLUGINS)?,
        of(BUILTIN, "bridge", "/nonexistent")?,
        of(BY_PLUGINS, "bridge", PLUGINS)?,
    ])
}

/// An allocation that is on our bridge all the time: the bridges of the others stay, and ours goes with its last allocation.
struct Held<'a> {
    agentbin: &'a Path,
    data: PathBuf,
}

impl Held<'_> {
    const NAME: &'static str = "held";

    fn new<'a>(agentbin: &'a Path, dir: &Path) -> Result<Held<'a>> {
        let held = Held { agentbin, data: dir.join("held-data") };
        let file = dir.join("held.nomad.hcl");
        let job = format!(
            "job \"{}\" {{\n group \"held\" {{\n network {{\n mode = \"bridge\"\n }}\n task \"held\" {{\n driver = \"exec\"\n \
             config {{\n command = \"/bin/sleep\"\n args = [\"infinity\"]\n }}\n }}\n }}\n}}\n",
            Held::NAME
        );
        fs::write(&file, job).context("write the job file")?;
        let run = ["run", "--quiet", "--detach", "--cni-path", "/nonexistent"];
        held.call(&run, &file.display().to_string())?;
        Ok(held)
    }

    fn call(&self, arguments: &[&str], last: &str) -> Result<()> {
        let (agentbin, data) = (self.agentbin.display().to_string(), self.data.display().to_string());
        let (name, rest) = arguments.split_first().context("no arguments")?;
        let all = [&[&agentbin, *name, "--data-dir", &data][..], rest, &[last]].concat();
        call(&all.into_iter().map(str::to_owned).collect::<Vec<_>>())
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.call(&["stop"], Held::NAME) {
            eprintln!("cannot stop what was held on the bridge: {error:#}");
        }
    }
}

/// An image with `/bin/true` alone, in a store of the bench's own.
fn podman(dir: &Path) -> Result<Vec<Candidate>> {
    let podman = program("podman").context("podman is not installed (scripts/setup --bench installs it)")?;
    let busybox = program("busybox").context("busybox is not installed")?;
    let (root, archive) = (dir.join("podman-root"), dir.join("podman.tar"));
    fs::create_dir_all(root.join("bin"))?;
    fs::copy(busybox, root.join("bin/true"))?;
    call(&words(&format!("tar -C {} -cf {} .", root.display(), archive.display())))?;
    let at = dir.display();
    let global = format!(
        "{} --root {at}/podman-store --runroot {at}/podman-run --storage-driver vfs --cgroup-manager cgroupfs",
        podman.display()
    );
    call(&words(&format!("{global} import {} {NAME}", archive.display())))?;
    // Without these, it raises the limits, for which not every machine gives the capability.
    let of = |name, network| {
        let run = format!(
            "{global} run --rm --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --network {network} {NAME} /bin/true"
        );
        Candidate { name, commands: vec![words(&run)], times: Vec::new() }
    };
    Ok(vec![of(PODMAN_NONE, "none"), of(PODMAN_BRIDGE, "podman")])
}

/// The least that anybody does: what is made and unmade, by few processes.
fn ip(dir: &Path) -> Result<Candidate> {
    let (outside, inside) = (dir.join("outside.ip"), dir.join("inside.ip"));
    let pair = format!("link add {NAME}0 type veth peer name eth0 netns {NAME}\nlink set {NAME}0 master {NAME} up\n");
    fs::write(&outside, pair)?;
    let own = "link set lo up\naddress add 10.98.0.2/24 dev eth0\nlink set eth0 up\nroute add default via 10.98.0.1\n";
    fs::write(&inside, own)?;
    let commands = [
        format!("ip netns add {NAME}"),
        format!("ip -batch {}", outside.display()),
        format!("ip -n {NAME} -batch {}", inside.display()),
        format!("ip link delete {NAME}0"),
        format!("ip netns delete {NAME}"),
    ];
    Ok(Candidate { name: IP, commands: commands.iter().map(|text| words(text)).collect(), times: Vec::new() })
}

/// `CNITOOL` names it, as scripts/bench builds it.
fn cnitool(dir: &Path) -> Result<Candidate> {
    let tool =
        std::env::var_os("CNITOOL").map(PathBuf::from).context("there is no cnitool (scripts/bench builds it)")?;
    ensure!(Path::new(PLUGINS).join("bridge").exists(), "the CNI plugins are not in {PLUGINS}");
    let configs = dir.join("cni");
    fs::create_dir_all(&configs)?;
    // As the network of mode bridge.
    let list = json!({
        "cniVersion": "0.4.0",
        "name": NAME,
        "plugins": [
            {
                "type": "bridge", "bridge": "benchcni", "isGateway": true, "hairpinMode": true,
                "ipam": {
                    "type": "host-local", "ranges": [[{ "subnet": "10.97.0.0/24" }]],
                    "routes": [{ "dst": "0.0.0.0/0" }], "dataDir": "/run/bench-leases",
                },
            },
            { "type": "portmap", "capabilities": { "portMappings": true }, "snat": true },
        ],
    });
    fs::write(configs.join("bench.conflist"), list.to_string())?;
    let call = |verb: &str| {
        let tool = tool.display();
        words(&format!(
            "env CNI_PATH={PLUGINS} NETCONFPATH={} {tool} {verb} {NAME} /run/netns/{NAME}",
            configs.display()
        ))
    };
    let commands = vec![
        words(&format!("ip netns add {NAME}")),
        call("add"),
        call("del"),
        words(&format!("ip netns delete {NAME}")),
    ];
    Ok(Candidate { name: CNITOOL, commands, times: Vec::new() })
}

pub fn measure(options: &Options, agentbin: &Path, dir: &Path) -> Result<Network> {
    enter()?;
    let mut notes = Vec::new();
    let mut candidates = Vec::new();
    let mut consider = |found: Result<Vec<Candidate>>| {
        let works = |one: &Candidate| one.once().with_context(|| one.name).map(drop);
        match found.and_then(|found| found.iter().try_for_each(works).map(|()| found)) {
            Ok(found) => candidates.extend(found),
            Err(error) => notes.push(format!("{error:#}")),
        }
    };
    let _held = Held::new(agentbin, dir)?;
    let all_of_ours = ours(agentbin, dir)?;
    let wanted = all_of_ours.len();
    for one in all_of_ours {
        consider(Ok(vec![one]));
    }
    consider(podman(dir));
    consider(ip(dir).map(|one| vec![one]));
    consider(cnitool(dir).map(|one| vec![one]));
    for _ in 0..options.runs {
        for one in &mut candidates {
            let took = one.once().with_context(|| one.name)?;
            one.times.push(took);
        }
    }
    let ours_ran = candidates.iter().filter(|one| one.name.starts_with("agentbin")).count() == wanted;
    Ok(Network { candidates, notes, runs: options.runs, ours_ran })
}

impl Network {
    fn median(&self, name: &str) -> Option<f64> {
        self.candidates.iter().find(|one| one.name == name).map(|one| median(&one.times))
    }

    /// What is compared: the name, our figure in ms, the peer's, and the ratio to reach, if there is one.
    fn ratios(&self) -> Vec<(String, f64, Option<f64>)> {
        let added = |name| Some(self.median(name)? - self.median(HOST)?);
        [
            ("none / host", self.median(NONE), self.median(HOST), None),
            ("what bridge adds, built in / ip(8)", added(BUILTIN), self.median(IP), Some(1.5)),
            ("what bridge adds, CNI plugins / cnitool", added(BY_PLUGINS), self.median(CNITOOL), Some(1.1)),
            ("none / podman", self.median(NONE), self.median(PODMAN_NONE), None),
            ("bridge, built in / podman", self.median(BUILTIN), self.median(PODMAN_BRIDGE), None),
            ("bridge, CNI plugins / podman", self.median(BY_PLUGINS), self.median(PODMAN_BRIDGE), None),
        ]
        .into_iter()
        .filter_map(|(what, ours, peer, target)| Some((what.to_owned(), ours? / peer?, target)))
        .collect()
    }

    pub fn table(&self) -> String {
        let mut out = format!(
            "network: /bin/true in an allocation, launch to exit; median (90th percentile) of {} runs, ms\n",
            self.runs
        );
        for one in &self.candidates {
            let _ = writeln!(out, "  {:<46} {:>8.1} ({:.1})", one.name, median(&one.times), quantile(&one.times, 0.9));
        }
        for (what, ratio, target) in self.ratios() {
            let target = target.map_or_else(String::new, |target| {
                format!("  to reach: {target}, {}", if ratio <= target { "reached" } else { "missed" })
            });
            let _ = writeln!(out, "  {what:<46} {ratio:>8.2}{target}");
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        out
    }

    pub fn json(&self) -> Value {
        let rows = self
            .candidates
            .iter()
            .map(|one| json!({ "what": one.name, "ms": median(&one.times), "p90_ms": quantile(&one.times, 0.9) }));
        let ratios = self
            .ratios()
            .into_iter()
            .map(|(what, ratio, target)| json!({ "what": what, "ratio": ratio, "target": target }));
        json!({
            "runs": self.runs, "rows": rows.collect::<Vec<_>>(), "ratios": ratios.collect::<Vec<_>>(), "notes": self.notes,
        })
    }
}
