//! Containers on cgroup v2, on the machine's own engine, with either of its ways to make cgroups.

use std::process::{Child, Command, Stdio};

use crate::engine;
use crate::machine::{Process, need_disk, processes, sh, until, write};
use crate::trace::Trace;

/// An image with a busybox, and with [`FORKS`] as `/forks`.
pub const IMAGE: &str = "busybox:test";

/// A program that forks with its first instruction, twice more with those that follow, and tells with each of the eight processes the
/// cores that the kernel lets it run on, as a digit with a bit for each of three: `mov eax, 57; syscall` three times,
/// `sub rsp, 16; xor eax, eax; mov [rsp], rax; mov eax, 204; xor edi, edi; mov esi, 8; mov rdx, rsp; syscall`,
/// `add byte [rsp], 48; mov byte [rsp+1], 10; mov eax, 1; mov edi, 1; mov rsi, rsp; mov edx, 2; syscall`, and
/// `mov eax, 34; syscall; jmp` for ever.
const FORKS: [u8; 86] = [
    0xb8, 57, 0, 0, 0, 0x0f, 0x05, // fork
    0xb8, 57, 0, 0, 0, 0x0f, 0x05, // fork
    0xb8, 57, 0, 0, 0, 0x0f, 0x05, // fork
    0x48, 0x83, 0xec, 16, // sub rsp, 16
    0x31, 0xc0, // xor eax, eax
    0x48, 0x89, 0x04, 0x24, // mov [rsp], rax
    0xb8, 204, 0, 0, 0, // sched_getaffinity(
    0x31, 0xff, // 0,
    0xbe, 8, 0, 0, 0, // 8,
    0x48, 0x89, 0xe2, // rsp)
    0x0f, 0x05, //
    0x80, 0x04, 0x24, 48, // add byte [rsp], '0'
    0xc6, 0x44, 0x24, 0x01, 10, // mov byte [rsp + 1], '\n'
    0xb8, 1, 0, 0, 0, // write(
    0xbf, 1, 0, 0, 0, // 1,
    0x48, 0x89, 0xe6, // rsp,
    0xba, 2, 0, 0, 0, // 2)
    0x0f, 0x05, //
    0xb8, 34, 0, 0, 0, 0x0f, 0x05, // pause
    0xeb, 0xf7, // again
];

/// [`FORKS`] as a file: an ELF header and one segment, at 4 MiB.
fn forks() -> Vec<u8> {
    let base: u64 = 4 << 20;
    let start = 64 + 56;
    let length = start + FORKS.len() as u64;
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // An executable for x86-64.
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for number in [base + start, 64, 0] {
        file.extend(number.to_le_bytes());
    }
    // Flags; sizes and counts of the headers.
    file.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    // To load, readable and executable.
    file.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for number in [0, base, base, length, length, 4096] {
        file.extend(number.to_le_bytes());
    }
    file.extend(FORKS);
    file
}

/// The machine's engine, anew, with the given way to make cgroups, and the image.
pub fn start_engine(driver: &str) {
    write("/etc/docker/daemon.json", &format!("{{\"exec-opts\": [\"native.cgroupdriver={driver}\"]}}\n"));
    sh("systemctl restart docker.service");
    assert_eq!(sh("docker info --format '{{.CgroupDriver}} {{.CgroupVersion}}'"), format!("{driver} 2"));
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(dir.path().join("image.tar"), engine::busybox()).unwrap();
    std::fs::write(root.join("forks"), forks()).unwrap();
    sh(&format!(
        "cd {} && chmod 755 root/forks && tar -C root -rf image.tar ./forks && docker import image.tar {IMAGE} && \
         docker import -c 'ENTRYPOINT [\"/bin/sleep\", \"1000000\"]' image.tar pause:test",
        dir.path().display()
    ));
}

/// The digits that the processes of [`FORKS`] print for a list of cores, such as `0` or `0-1`.
pub fn digit(cores: &str) -> String {
    let set: agentbin::spec::CpuSet = cores.parse().unwrap();
    let bit = |core: u32| if cores_of(&set).contains(&core) { 1 << core } else { 0 };
    (0..3).map(bit).sum::<u32>().to_string()
}

fn cores_of(set: &agentbin::spec::CpuSet) -> Vec<u32> {
    (0..3).filter(|core| core.to_string().parse::<agentbin::spec::CpuSet>().unwrap().is_within(set)).collect()
}

/// A run in the foreground, and the file with all that it prints.
struct Run {
    child: Child,
    out: String,
}

impl Run {
    fn start(name: &str, job: &str) -> Run {
        let (file, out) = (format!("/root/{name}.nomad.hcl"), format!("/root/{name}.out"));
        write(&file, job);
        let to = std::fs::File::create(&out).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentbin"));
        command.args(["run", &file]).stdin(Stdio::null()).stdout(to.try_clone().unwrap()).stderr(to);
        Run { child: command.spawn().unwrap(), out }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap()
    }

    /// Waits until eight processes of a task have told their cores, all the same.
    fn tells(&self, task: &str, mask: &str) {
        until(&format!("what {task} tells of its cores"), || {
            let text = self.said();
            // A run names the task where it has several.
            let lines = text.lines().map(|line| line.split_once(" | ").unwrap_or((task, line)));
            let lines = lines.filter(|(of, line)| of.trim() == task && line.len() == 1);
            let told: Vec<&str> = lines.map(|(_, line)| line).collect();
            assert!(told.iter().all(|line| *line == mask), "{task}, whose cores are {mask}: {text}");
            (told.len() == 8).then_some(())
        });
    }

    /// Its exit status.
    fn end(&mut self, interrupt: bool) -> Option<i32> {
        if interrupt {
            sh(&format!("kill -INT {}", self.child.id()));
        }
        until("the run ends", || self.child.try_wait().unwrap()).code()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

pub fn task(name: &str, driver: &str, config: &str, resources: &str) -> String {
    format!(
        " task \"{name}\" {{\n  driver = \"{driver}\"\n  config {{\n{config}\n  }}\n  resources {{\n{resources}\n  }}\n }}\n"
    )
}

pub fn container(name: &str, command: &str, args: &str, resources: &str) -> String {
    let config = format!("image = \"{IMAGE}\"\nnetwork_mode = \"none\"\ncommand = \"{command}\"\nargs = [{args}]");
    task(name, "docker", &config, resources)
}

fn job(kind: &str, tasks: &str) -> String {
    format!(
        "job \"j\" {{\n type = \"{kind}\"\n group \"g\" {{\n restart {{\n attempts = 0\n mode = \"fail\"\n }}\n{tasks} }}\n}}\n"
    )
}

fn read(cgroup: &str, name: &str) -> String {
    std::fs::read_to_string(format!("/sys/fs/cgroup{cgroup}/{name}")).unwrap_or_default().trim().to_owned()
}

/// All processes of a task whose program is [`FORKS`], which has its own name as argument.
pub fn forked(name: &str) -> Vec<Process> {
    until(&format!("the eight processes of {name}"), || {
        Some(processes(&format!("/forks {name} "))).filter(|p| p.len() == 8)
    })
}

/// The one cgroup of processes, and their cores.
pub fn place(of: &[Process]) -> (String, String) {
    let first = &of[0];
    assert!(of.iter().all(|p| (&p.cgroup, &p.cores) == (&first.cgroup, &first.cores)), "{of:#?}");
    (first.cgroup.clone(), first.cores.clone())
}

fn containers(driver: &str) {
    start_engine(driver);
    let all = std::thread::available_parallelism().unwrap().get();
    assert_eq!(all, 3, "scripts/test starts the machine with three processors");
    let trace = Trace::start();
    // The first is there before cores are reserved, the other one comes after.
    let wait = "until [ -e $NOMAD_ALLOC_DIR/data/go ]; do sleep 0.1; done; ";
    let late = format!("\"-c\", \"{wait}exec /forks late x\"");
    let tasks = container("early", "/forks", "\"early\", \"x\"", "cpu = 100\nmemory = 32\nmemory_max = 64")
        + &container("late", "/bin/sh", &late, "cpu = 100\nmemory = 32");
    let sleeps = task("plain", "exec", "command = \"/bin/sleep\"\nargs = [\"100004\"]", "cpu = 100\nmemory = 40");
    let mut other = Run::start("other", &job("service", &sleeps));
    let mut first = Run::start("first", &job("service", &tasks));
    let (early, cores) = place(&forked("early"));
    assert_eq!(digit(&cores), "7");
    let tasks = container("own", "/forks", "\"own\", \"x\"", "cores = 1\nmemory = 32");
    let mut own = Run::start("own", &job("service", &tasks));
    let (own_cgroup, own_core) = place(&forked("own"));
    assert!(["0", "1", "2"].contains(&own_core.as_str()), "cores = 1 has {own_core}");
    // C3: nobody else is on it, whether he came before or comes later, in a container or not.
    let others = digit(&cores).parse::<u32>().unwrap() - digit(&own_core).parse::<u32>().unwrap();
    until(&format!("early is sent off core {own_core}, and not on {:?}", place(&forked("early"))), || {
        (digit(&place(&forked("early")).1) == others.to_string()).then_some(())
    });
    let plain = processes("/bin/sleep 100004");
    assert_eq!(digit(&place(&plain).1), others.to_string(), "{plain:?}");
    sh("for data in /var/lib/agentbin/alloc/*/alloc/data; do touch $data/go; done");
    let (late, cores) = place(&forked("late"));
    assert_eq!(digit(&cores), others.to_string(), "late");
    // From the first instruction on.
    first.tells("late", &others.to_string());
    own.tells("own", &digit(&own_core));
    // C2: each was born in its container's cgroup, and nobody was moved.
    let born = trace.born_in("/forks");
    let expected = [&early, &late, &own_cgroup].map(String::clone);
    assert_eq!(born, expected.into_iter().collect(), "{driver}");
    for (name, cgroup) in [("early", &early), ("late", &late), ("own", &own_cgroup)] {
        let id = sh(&format!("docker ps --no-trunc --quiet --filter name={name}-"));
        if driver == "systemd" {
            let slice = cgroup.strip_suffix(&format!("_{name}.slice/docker-{id}.scope"));
            let slice = slice.and_then(|slice| slice.strip_prefix("/agentbin.slice/agentbin-"));
            assert!(slice.is_some_and(|alloc| alloc.len() == 32), "{name}: {cgroup}");
        } else {
            assert!(cgroup.ends_with(&format!("/{id}")), "{name}: {cgroup}");
        }
    }
    // Limits, and that systemd leaves them alone when it looks at its units anew.
    let limits = |what: &str| {
        assert_eq!(read(&early, "memory.max"), (64_u64 << 20).to_string(), "{what}");
        assert_eq!(read(&early, "memory.low"), (32_u64 << 20).to_string(), "{what}");
        assert_eq!(read(&plain[0].cgroup, "memory.max"), (40_u64 << 20).to_string(), "{what}");
        assert_eq!(place(&forked("own")).1, own_core, "{what}");
        assert_eq!(digit(&place(&forked("early")).1), others.to_string(), "{what}");
        assert_eq!(digit(&place(&processes("/bin/sleep 100004")).1), others.to_string(), "{what}");
    };
    limits("at first");
    sh("systemctl daemon-reload; systemctl start unrelated.slice; docker run --rm --network none busybox:test true");
    limits("after a reload and another container");
    // When the core is free again it is everybody's.
    own.end(true);
    until("early has all cores again", || (digit(&place(&forked("early")).1) == "7").then_some(()));
    until("late has all cores again", || (digit(&place(&forked("late")).1) == "7").then_some(()));
    // The task of another driver keeps what it has when the last container of all is gone.
    first.end(true);
    sh("systemctl daemon-reload");
    assert_eq!(read(&plain[0].cgroup, "memory.max"), (40_u64 << 20).to_string());
    other.end(true);

    // The limit is the kernel's: 64 MiB can be had, 200 cannot.
    let eats = |mib: u32| format!("\"-c\", \"x=$(yes | head -c {mib}m); echo had it\"");
    for (mib, ends) in [(8, 0), (200, 137)] {
        let text = container("eats", "/bin/sh", &eats(mib), "cpu = 100\nmemory = 32\nmemory_max = 64");
        let mut run = Run::start("eats", &job("batch", &text));
        let status = run.end(false);
        let said = run.said();
        assert_eq!((status == Some(0), said.contains("had it")), (ends == 0, ends == 0), "{mib} MiB: {said}");
        assert_eq!(said.contains("OOM"), ends != 0, "{mib} MiB: {said}");
    }
    drop(trace);
    // Nothing is left.
    assert_eq!(sh("docker ps -aq"), "");
    until("no cgroup is left", || {
        sh("find /sys/fs/cgroup -name '*-*-*-*-*.scope' -o -name 'docker-*.scope' -o -name 'kept-*' -o -name 'agentbin-*'")
            .is_empty()
            .then_some(())
    });
    assert_eq!(sh("systemctl list-units --all --plain --no-legend 'agentbin-*'"), "");
}

/// C2, C3, E1: on an engine that asks systemd for each container's cgroup, Debian's default.
#[test]
fn c2_c3_containers_of_an_engine_with_systemd_cgroups() {
    need_disk!();
    containers("systemd");
}

/// C2, C3, E1: on an engine that makes the cgroups itself.
#[test]
fn c2_c3_containers_of_an_engine_with_its_own_cgroups() {
    need_disk!();
    containers("cgroupfs");
}
