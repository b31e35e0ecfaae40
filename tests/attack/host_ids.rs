//! Host ids: whose numbers a task in a user namespace has outside of it, seen from the host.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use agentbin::container::HostIdRegistry;
use agentbin::plugin::{Launch, Program};
use agentbin::spec::{HostIdSpace, HostIds};
use agentbin::wire::base::base_plugin_client::BasePluginClient;
use agentbin::wire::cty::{self, Value};
use agentbin::wire::drivers::driver_client::DriverClient;
use agentbin::wire::{base, drivers as wire};

use crate::framework::{
    Attack, Breach, Lab, Level, Mutant, Run, Verdict, command_line, hold, own_program, patience, pause, processes,
    set_mode,
};
use crate::kernel;

pub const ATTACKS: &[Attack] = &[
    Attack { id: "d20", run: d20, inside: None, mutants: &[Mutant::new("d20")], control: None },
    Attack { id: "d21", run: d21, inside: None, mutants: &[Mutant::new("d21")], control: None },
    Attack { id: "d22", run: d22, inside: None, mutants: &[Mutant::new("d22")], control: None },
    Attack { id: "d23", run: d23, inside: None, mutants: &[Mutant::new("d23")], control: None },
    Attack { id: "d24", run: d24, inside: None, mutants: &[Mutant::new("d24")], control: None },
    Attack { id: "d25", run: d25, inside: None, mutants: &[Mutant::new("d25")], control: None },
    Attack { id: "d26", run: d26, inside: None, mutants: &[Mutant::new("d26")], control: None },
    Attack { id: "d84", run: d84, inside: None, mutants: &[Mutant::new("d84")], control: None },
];

/// A user namespace comes with the level, or by itself.
fn held(level: Level) -> &'static str {
    match level {
        Level::Default => "isolation = \"strict\"",
        Level::Nomad => "isolation = \"nomad\"\n        user_namespace = true",
    }
}

/// Two tasks, one of root and one of nobody, that stay and can be told apart by `mark`.
fn job(level: Level, mark: &str) -> String {
    let task = |user: &str| {
        let script = format!("touch /local/made /alloc/data/of-{user}; echo READY-{user}; sleep 100000; : {mark}");
        format!(
            "    task \"{user}\" {{\n      driver = \"exec\"\n      user = \"{user}\"\n      kill_timeout = \"10ms\"\n      config {{\n        \
             command = \"/bin/sh\"\n        args = [\"-c\", \"{script}\"]\n        {}\n      }}\n    }}\n",
            held(level)
        )
    };
    format!(
        "job \"attack\" {{\n  type = \"batch\"\n  group \"g\" {{\n    restart {{\n      attempts = 0\n      mode = \"fail\"\n    }}\n{}{}  }}\n}}\n",
        task("root"),
        task("nobody")
    )
}

/// All ids of the processes of tasks with this mark, as the host sees them.
fn ids_of(mark: &str) -> BTreeSet<u32> {
    let shells: BTreeSet<i32> = processes().into_iter().filter(|pid| command_line(*pid).contains(mark)).collect();
    let status = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
        line.split_whitespace().map(|number| number.parse::<i64>().unwrap()).collect::<Vec<_>>()
    };
    let child_of_one =
        |status: &str| field(status, "PPid:").iter().any(|pid| shells.iter().any(|p| i64::from(*p) == *pid));
    let statuses: Vec<String> = processes()
        .into_iter()
        .map(|pid| (pid, status(pid)))
        .filter(|(pid, s)| shells.contains(pid) || child_of_one(s))
        .map(|(_, s)| s)
        .collect();
    assert!(statuses.len() >= 2, "shells of two tasks: {statuses:?}");
    let of = |status: &String| ["Uid:", "Gid:", "Groups:"].map(|name| field(status, name)).concat();
    statuses.iter().flat_map(of).map(|id| u32::try_from(id).unwrap()).collect()
}

/// The one range that all of these ids lie in.
fn range_of(ids: &BTreeSet<u32>) -> Option<HostIds> {
    let ranges: BTreeSet<Option<HostIds>> = ids.iter().map(|id| HostIdSpace::DEFAULT.range_of(*id)).collect();
    if ranges.len() == 1 { ranges.into_iter().next().flatten() } else { None }
}

/// Tasks of two allocations in user namespaces, root among them: with the host's ids they would be the same user outside, and
/// root the host's.
fn d20(lab: &mut Lab) -> Verdict {
    let (one, other) = (job(lab.level, "d20-one"), job(lab.level, "d20-other"));
    let mut runs = [
        lab.agentbin_run_in(&lab.path("data"), &[], &one, &[]),
        lab.agentbin_run_in(&lab.path("data2"), &[], &other, &[]),
    ];
    for run in &mut runs {
        run.wait_for("READY-root");
        run.wait_for("READY-nobody");
    }
    let ids = ["d20-one", "d20-other"].map(ids_of);
    let owners: Vec<u32> = ["data", "data2"].iter().flat_map(|data| made_in(&lab.path(data).join("alloc"))).collect();
    // A run that is killed leaves its tasks for the moment, and their ids with them.
    let [first, mut killed] = runs;
    killed.kill();
    let mut third = lab.agentbin_run_in(&lab.path("data3"), &[], &job(lab.level, "d20-third"), &[]);
    third.wait_for("READY-root");
    third.wait_for("READY-nobody");
    let [one, other, third_ids] = [ids[0].clone(), ids[1].clone(), ids_of("d20-third")];
    let still = ids_of("d20-other");
    let gc = lab.spoiled(&[], &lab.program()).arg("gc").arg("--data-dir").arg(lab.path("data2")).output().unwrap();
    let ended = [first, third].map(Run::interrupt);
    assert_eq!(still, other, "the tasks of a killed run");
    assert!(gc.status.success() && std::fs::read_dir(lab.path("data2/alloc")).unwrap().count() == 0, "{gc:?}");
    let all = [one, other, third_ids];
    hold!(all.iter().all(|ids| !ids.contains(&0)), "host uid or gid 0: {all:?}");
    let ranges: BTreeSet<HostIds> = all.iter().filter_map(range_of).collect();
    hold!(ranges.len() == 3, "three allocations have the host ids {all:?}");
    assert_eq!(owners.len(), 8, "four files of tasks in each: {owners:?}; {ended:?}");
    hold!(owners.iter().all(|owner| ranges.iter().any(|ids| ids.contains(*owner))), "owners on disk: {owners:?}");
    Ok(())
}

/// Tasks in user namespaces take all that the kernel gives to one user, such as inotify instances, which it also counts for the
/// owner of the namespace: were that root, nothing would be left for the host's.
fn d84(lab: &mut Lab) -> Verdict {
    let mut run = lab.agentbin_run_in(&lab.path("data"), &[], &job(lab.level, "d84-count"), &[]);
    run.wait_for("READY-root");
    run.wait_for("READY-nobody");
    let shells = processes().into_iter().filter(|pid| command_line(*pid).contains("d84-count"));
    let namespaces = shells.filter_map(|pid| std::fs::File::open(format!("/proc/{pid}/ns/user")).ok());
    let own = std::fs::metadata("/proc/self/ns/user").unwrap().ino();
    let of_tasks = namespaces.filter(|file| file.metadata().unwrap().ino() != own);
    let owners: Vec<u32> = of_tasks.map(|file| kernel::owner_of_namespace(&file).unwrap()).collect();
    let ids = ids_of("d84-count");
    drop(run.interrupt());
    assert!(owners.len() >= 2, "the user namespaces of two tasks: {owners:?}");
    let range = range_of(&ids);
    hold!(owners.iter().all(|owner| range.is_some_and(|ids| ids.contains(*owner))), "counted for the users {owners:?}");
    Ok(())
}

/// The owners of what the tasks have made on disk.
fn made_in(allocs: &Path) -> Vec<u32> {
    let dirs = std::fs::read_dir(allocs).unwrap().flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    let names = ["root/local/made", "nobody/local/made", "alloc/data/of-root", "alloc/data/of-nobody"];
    dirs.flat_map(|dir| names.map(|name| dir.join(name).metadata().unwrap().uid())).collect()
}

/// A driver plugin as an agent starts it, which gives away one range.
struct Agent {
    client: agentbin::plugin::Client,
    level: Level,
}

/// The last range of the default ones: the first that somebody else on this machine takes is another.
const ONE_RANGE: &str = "2147287040-2147352575";

fn bytes(values: &[(&str, Value)]) -> Vec<u8> {
    cty::encode(&Value::Map(values.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()))
}

fn string(text: &str) -> Value {
    Value::String(text.to_owned())
}

impl Agent {
    fn new(lab: &Lab) -> Agent {
        Agent::with(lab, lab.plugin("exec"), ONE_RANGE)
    }

    /// One that is killed at its first `fchownat(2)`, before it is done.
    fn killed_before_it_gives_files(lab: &Lab) -> Agent {
        let before = ["spoil", lab.openat2.name(), "--", "/usr/bin/strace", "-f", "-qq", "-o", "/dev/null"];
        let strike = ["-e", "trace=fchownat", "-e", "inject=fchownat:signal=KILL:when=1"];
        let mut args: Vec<OsString> = before.into_iter().chain(strike).map(OsString::from).collect();
        args.push(lab.program().into());
        args.push("driver".into());
        args.push("exec".into());
        let mut env: Vec<(OsString, OsString)> = vec![("PATH".into(), "/usr/bin:/bin".into())];
        env.push(("TMPDIR".into(), lab.path("tmp").into()));
        env.extend(lab.mutant.map(|name| ("AGENTBIN_MUTANT".into(), name.into())));
        let (own, sockets) = (own_program(), lab.path("sockets"));
        let launch = Launch {
            args: &args,
            env,
            new_session: true,
            socket_dir: Some(&sockets),
            ..Launch::new(Program::Path(&own))
        };
        lab.started.set(lab.started.get() + 1);
        Agent::with(lab, lab.block_on("start a traced plugin", launch.start()).unwrap(), ONE_RANGE)
    }

    fn with(lab: &Lab, client: agentbin::plugin::Client, ranges: &str) -> Agent {
        let request = base::SetConfigRequest {
            msgpack_config: bytes(&[("host_id_range", string(ranges))]),
            nomad_config: Some(base::NomadConfig { driver: Some(base::NomadDriverConfig::default()) }),
            plugin_api_version: "v0.1.0".into(),
        };
        let mut plugin = BasePluginClient::new(client.channel());
        lab.block_on("configure the plugin", plugin.set_config(request)).unwrap();
        Agent { client, level: lab.level }
    }

    /// Starts a task named `t` of root in this allocation's directory.
    fn start(&self, lab: &Lab, dir: &Path, script: &str) -> Result<String, String> {
        let task_id = format!("{}/t", dir.display());
        let held = match self.level {
            Level::Default => vec![("isolation", string("strict"))],
            Level::Nomad => vec![("isolation", string("nomad")), ("user_namespace", Value::Bool(true))],
        };
        let command = [("command", string("/bin/sh")), ("args", Value::List(["-c", script].map(string).to_vec()))];
        let task = wire::TaskConfig {
            id: task_id.clone(),
            name: "t".to_owned(),
            user: "root".to_owned(),
            alloc_dir: dir.display().to_string(),
            msgpack_driver_config: bytes(&[&command[..], &held].concat()),
            resources: Some(wire::Resources::default()),
            ..Default::default()
        };
        let mut driver = DriverClient::new(self.client.channel());
        let request = wire::StartTaskRequest { task: Some(task) };
        let answer =
            lab.block_on("start a task", driver.start_task(request)).map_err(|status| status.message().to_owned())?;
        let answer = answer.into_inner();
        if answer.driver_error_msg.is_empty() { Ok(task_id) } else { Err(answer.driver_error_msg) }
    }

    fn end(&self, lab: &Lab, task_id: String) {
        let mut driver = DriverClient::new(self.client.channel());
        let request = wire::DestroyTaskRequest { task_id, force: true };
        lab.block_on("end a task", driver.destroy_task(request)).unwrap();
    }

    fn stop(self, lab: &Lab) {
        lab.block_on("end the plugin", self.client.kill());
    }
}

/// Waits for what a task writes.
fn wait_for(path: &Path, content: &str) {
    let deadline = Instant::now() + patience();
    while !std::fs::read_to_string(path).is_ok_and(|text| text == content) {
        assert!(Instant::now() < deadline, "{} did not come", path.display());
        pause();
    }
}

/// An allocation whose owner was killed: nothing runs, but its directory is full of its files. The next one asks for ids.
fn d21(lab: &mut Lab) -> Verdict {
    let dirs = ["alloc", "alloc2", "alloc3"].map(|name| lab.path(name));
    for dir in &dirs[1..] {
        for (name, mode) in [("", 0o755), ("alloc", 0o777), ("alloc/logs", 0o777), ("t", 0o777), ("t/local", 0o777)] {
            std::fs::create_dir(dir.join(name)).unwrap();
            set_mode(&dir.join(name), mode);
        }
    }
    let agent = Agent::new(lab);
    let first = agent.start(lab, &dirs[0], "umask 077; echo secret > /local/secret; exec sleep 100000").unwrap();
    wait_for(&dirs[0].join("t/local/secret"), "secret\n");
    agent.end(lab, first);
    // Again in the same allocation: a restart, whose ids are those of its files.
    let again = agent.start(lab, &dirs[0], "cat /local/secret > /local/copy; exec sleep 100000").unwrap();
    wait_for(&dirs[0].join("t/local/copy"), "secret\n");
    agent.end(lab, again);
    // The next driver, that of an agent which was killed and started again, knows nothing of the first.
    agent.stop(lab);
    let agent = Agent::new(lab);
    let refused = agent.start(lab, &dirs[1], "exec sleep 100000");
    let why = match refused {
        Ok(id) => {
            agent.end(lab, id);
            agent.stop(lab);
            return Err(Breach("another allocation has the ids of files that are there".to_owned()));
        }
        Err(why) => why,
    };
    assert!(why.contains("all 1 ranges of 65536 host ids") && why.contains("host_id_range"), "{why}");
    std::fs::remove_dir_all(&dirs[0]).unwrap();
    let id = agent.start(lab, &dirs[2], "exec sleep 100000").unwrap();
    agent.end(lab, id);
    agent.stop(lab);
    Ok(())
}

/// Somebody who shares the allocation has put second names of the host's files, and links, where the next start gives what it
/// finds to the task.
fn d22(lab: &mut Lab) -> Verdict {
    std::fs::hard_link(lab.canary("log"), lab.task_path("local/log")).unwrap();
    lab.plant_link("local/way-out", lab.canary(""));
    lab.plant_link("secrets", lab.canary("dir"));
    lab.plant_link("tmp", "../../canary/open");
    let agent = Agent::new(lab);
    let id = agent.start(lab, &lab.path("alloc"), "chmod 0 /local/log; exec sleep 100000");
    let owner = lab.canary("log").metadata().unwrap().uid();
    if let Ok(id) = id {
        agent.end(lab, id);
    }
    agent.stop(lab);
    std::fs::remove_file(lab.task_path("local/log")).unwrap();
    hold!(owner == 0, "a file of the host belongs to {owner}");
    Ok(())
}

/// A user of the machine who runs agentbin, in an `/etc` of the lab's own.
struct PlainUser {
    program: PathBuf,
    home: PathBuf,
}

const PLAIN: u32 = 7101;
/// What `subuid` and `subgid` give that user: two ranges, which begin nowhere in particular.
const SUBORDINATE: [HostRange; 2] = [HostRange(700_000), HostRange(765_536)];

/// 65,536 host ids from this one on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct HostRange(u32);

impl HostRange {
    /// The one that all of these lie in.
    fn of(ids: &BTreeSet<u32>) -> Option<HostRange> {
        SUBORDINATE.into_iter().find(|range| ids.iter().all(|id| (range.0..range.0 + 65_536).contains(id)))
    }
}

impl PlainUser {
    fn new(lab: &Lab, subordinate: &str) -> PlainUser {
        assert!(Path::new("/usr/bin/newuidmap").exists(), "scripts/setup installs uidmap");
        set_mode(&lab.path(""), 0o755);
        let (program, home, etc) = (lab.path("agentbin-of-all"), lab.path("home"), lab.path("etc"));
        if !program.exists() {
            std::fs::copy(lab.program(), &program).unwrap();
            set_mode(&program, 0o755);
            std::fs::create_dir(&home).unwrap();
            std::os::unix::fs::chown(&home, Some(PLAIN), Some(PLAIN)).unwrap();
            std::fs::create_dir(&etc).unwrap();
            set_mode(&etc, 0o755);
        }
        let of_host = |name: &str| std::fs::read_to_string(Path::new("/etc").join(name)).unwrap();
        let passwd = of_host("passwd") + &format!("abann:x:{PLAIN}:{PLAIN}::{}:/bin/sh\n", home.display());
        let group = of_host("group") + &format!("abann:x:{PLAIN}:\n");
        for (name, text) in [("passwd", &*passwd), ("group", &group), ("subuid", subordinate), ("subgid", subordinate)]
        {
            std::fs::write(etc.join(name), text).unwrap();
            set_mode(&etc.join(name), 0o644);
        }
        nix::mount::mount(Some(&etc), "/etc", None::<&str>, nix::mount::MsFlags::MS_BIND, None::<&str>).unwrap();
        PlainUser { program, home }
    }

    fn command(&self, lab: &Lab, words: &[&str], data: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).arg("--data-dir").arg(self.home.join(data)).stdin(Stdio::null()).env_clear();
        command.env("PATH", "/usr/bin:/bin").env("HOME", &self.home).env("XDG_RUNTIME_DIR", &self.home);
        command.envs(lab.mutant.map(|name| ("AGENTBIN_MUTANT", name)));
        command.uid(PLAIN).gid(PLAIN);
        command
    }

    fn run(&self, lab: &Lab, data: &str) -> Run {
        let command = self.command(lab, &["run"], data);
        PlainUser::start(lab, command, data)
    }

    fn start(lab: &Lab, mut command: Command, data: &str) -> Run {
        let file = lab.path(&format!("{data}.nomad.hcl"));
        std::fs::write(&file, job(lab.level, &format!("d23-{data}"))).unwrap();
        command.arg(&file);
        lab.started.set(lab.started.get() + 1);
        let mut run = Run::of(command);
        run.wait_for("READY-root");
        run.wait_for("READY-nobody");
        run
    }

    /// What is left in the data directory of a run that has ended.
    fn left(&self, data: &str) -> Vec<PathBuf> {
        std::fs::read_dir(self.home.join(data).join("alloc")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for PlainUser {
    fn drop(&mut self) {
        let _ = nix::mount::umount2("/etc", nix::mount::MntFlags::MNT_DETACH);
    }
}

/// Without root: tasks in user namespaces that are the user himself outside could do whatever he can, and the allocations of one
/// user are one another's. With subordinate ids they are nobody; what belongs to these is removed all the same.
fn d23(lab: &mut Lab) -> Verdict {
    let user = PlainUser::new(lab, "somebody:100000:65536\n7101:700000:65536\nabann:765536:65536\n");
    let runs = ["one", "other"].map(|data| user.run(lab, data));
    let ids = ["d23-one", "d23-other"].map(ids_of);
    let owners: BTreeSet<u32> =
        ["one", "other"].iter().flat_map(|data| made_in(&user.home.join(data).join("alloc"))).collect();
    // There are two ranges.
    let third = user.run(lab, "third");
    let third_ids = ids_of("d23-third");
    let [one, mut killed] = runs;
    killed.kill();
    let gc = user.command(lab, &["gc"], "other").output().unwrap();
    // The range of the one that is gone is free.
    let fourth = user.run(lab, "fourth");
    let fourth_ids = ids_of("d23-fourth");
    let ended = [one, third, fourth].map(Run::interrupt);
    let left: Vec<PathBuf> = ["one", "other", "third", "fourth"].iter().flat_map(|data| user.left(data)).collect();
    drop(user);
    let all = [&ids[0], &ids[1], &third_ids, &fourth_ids];
    hold!(
        all.iter().all(|ids| HostRange::of(ids).is_some()),
        "host ids of tasks of user {PLAIN}: {all:?} {}",
        ended[0]
    );
    let [one, other, third, fourth] = all.map(HostRange::of);
    hold!(one != other, "two allocations have the same host ids: {ids:?}");
    hold!(
        owners.iter().all(|id| SUBORDINATE.iter().any(|range| (range.0..range.0 + 65_536).contains(id))),
        "owners on disk: {owners:?}"
    );
    assert!(third == Some(SUBORDINATE[0]) && ended[1].contains("shares its host ids"), "{third:?}: {}", ended[1]);
    assert!(fourth == other && !ended[2].contains("host ids"), "{fourth:?}: {}", ended[2]);
    assert!(gc.status.success() && left.is_empty(), "{left:?}; {gc:?}; {ended:?}");

    // Whose helpers cannot do what they should, or who has no subordinate ids, is told why, and runs as before.
    let user = PlainUser::new(lab, "abann:700000:65536\n");
    let mut without = Command::new("/usr/bin/setpriv");
    let run = user.command(lab, &["run"], "sixth");
    without.arg("--no-new-privs").arg(run.get_program()).args(run.get_args()).env_clear();
    without.envs(run.get_envs().filter_map(|(key, value)| Some((key, value?)))).uid(PLAIN).gid(PLAIN);
    let run = PlainUser::start(lab, without, "sixth");
    let (ids, said) = (ids_of("d23-sixth"), run.interrupt());
    drop(user);
    assert!(
        ids == BTreeSet::from([PLAIN]) && said.contains("could not get others: /usr/bin/newgidmap:"),
        "{ids:?} {said}"
    );
    let user = PlainUser::new(lab, "somebody:100000:65536\n");
    let run = user.run(lab, "fifth");
    let (ids, said) = (ids_of("d23-fifth"), run.interrupt());
    let left = user.left("fifth");
    drop(user);
    let fix = "usermod --add-subuids 165536-231071 --add-subgids 165536-231071 abann";
    assert!(ids == BTreeSet::from([PLAIN]) && said.contains(fix) && left.is_empty(), "{ids:?} {left:?} {said}");
    Ok(())
}

/// An agent moves the shared data of an allocation to the next one: what belongs to the earlier one's ids would be another
/// allocation's, as soon as these are given away again.
fn d24(lab: &mut Lab) -> Verdict {
    const TWO_RANGES: &str = "2147221504-2147352575";
    let dirs = ["alloc", "alloc2"].map(|name| lab.path(name));
    for (name, mode) in [("", 0o755), ("alloc", 0o777), ("alloc/logs", 0o777), ("t", 0o777), ("t/local", 0o777)] {
        std::fs::create_dir(dirs[1].join(name)).unwrap();
        set_mode(&dirs[1].join(name), mode);
    }
    let agent = Agent::with(lab, lab.plugin("exec"), TWO_RANGES);
    let script = "umask 077; mkdir /alloc/data/dir; echo secret > /alloc/data/dir/secret; echo done > /local/done; exec sleep 100000";
    let id = agent.start(lab, &dirs[0], script).unwrap();
    wait_for(&dirs[0].join("t/local/done"), "done\n");
    agent.end(lab, id);
    std::fs::rename(dirs[0].join("alloc/data"), dirs[1].join("alloc/data")).unwrap();
    std::fs::remove_dir_all(&dirs[0]).unwrap();
    let script = "cat /alloc/data/dir/secret > /local/copy; exec sleep 100000";
    let id = agent.start(lab, &dirs[1], script).unwrap();
    let owner = |name: &str| dirs[1].join(name).metadata().unwrap().uid();
    let owners = ["t", "alloc/data/dir", "alloc/data/dir/secret"].map(owner);
    if owners[1] == owners[0] && owners[2] == owners[0] {
        wait_for(&dirs[1].join("t/local/copy"), "secret\n");
    }
    agent.end(lab, id);
    agent.stop(lab);
    hold!(
        owners.iter().all(|owner| *owner == owners[0]),
        "inherited files belong to another allocation's ids: {owners:?}"
    );
    Ok(())
}

/// A driver that is killed when it is about to give the first file away: the ids are noted by then, or the next allocation would
/// get them too; the next driver goes on with the same.
fn d25(lab: &mut Lab) -> Verdict {
    let (dir, secret) = (lab.path("alloc"), lab.task_path("local/secret"));
    std::fs::write(&secret, "secret\n").unwrap();
    set_mode(&secret, 0o600);
    let agent = Agent::killed_before_it_gives_files(lab);
    let started = agent.start(lab, &dir, "exec sleep 100000");
    agent.stop(lab);
    assert!(started.is_err(), "the driver was not killed");
    assert_eq!((secret.metadata().unwrap().uid(), lab.path("alloc/t").metadata().unwrap().uid()), (0, 0));
    let noted = HostIdRegistry::machine().find(&dir).unwrap();
    let agent = Agent::new(lab);
    let id = agent.start(lab, &dir, "cat /local/secret > /local/copy; exec sleep 100000").unwrap();
    wait_for(&dir.join("t/local/copy"), "secret\n");
    let owner = secret.metadata().unwrap().uid();
    agent.end(lab, id);
    agent.stop(lab);
    hold!(noted.is_some(), "nobody has noted whose the ids are that were about to be given");
    assert_eq!(noted.map(HostIds::base), Some(owner), "root inside");
    Ok(())
}

/// Two disks with XFS, one of which is there, always under the same device number and at the same place.
struct Disks {
    images: [PathBuf; 2],
    place: PathBuf,
    device: String,
}

/// A program to its end: what it printed, if it was content.
fn printed(program: &str, words: &[&std::ffi::OsStr]) -> Option<String> {
    let out = Command::new(program).args(words).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

impl Disks {
    /// `None` where there is no XFS or no loop device.
    fn new(lab: &Lab) -> Option<Disks> {
        let images = ["one.image", "other.image"].map(|name| lab.path(name));
        for image in &images {
            std::fs::File::create(image).unwrap().set_len(320 << 20).unwrap();
            printed("mkfs.xfs", &["-q".as_ref(), image.as_ref()])?;
        }
        let place = lab.path("disk");
        std::fs::create_dir(&place).unwrap();
        let device = printed("losetup", &["--find".as_ref(), "--show".as_ref(), images[0].as_ref()])?;
        let disks = Disks { images, place, device };
        disks.mount().then_some(disks)
    }

    fn mount(&self) -> bool {
        printed("mount", &["-t".as_ref(), "xfs".as_ref(), self.device.as_ref(), self.place.as_ref()]).is_some()
    }

    /// The other one takes the place of this one.
    fn swap(&self, to: usize) {
        let deadline = Instant::now() + patience();
        // Namespaces of a task that has just ended keep its file systems for a moment.
        let until = |what: &str, done: &dyn Fn() -> bool| {
            while !done() {
                assert!(Instant::now() < deadline, "{what}");
                pause();
            }
        };
        until("unmount a disk", &|| printed("umount", &[self.place.as_ref()]).is_some());
        let _ = printed("losetup", &["--detach".as_ref(), self.device.as_ref()]);
        until("attach the other disk", &|| {
            printed("losetup", &[self.device.as_ref(), self.images[to].as_ref()]).is_some()
        });
        assert!(self.mount(), "mount {}", self.images[to].display());
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        let _ = printed("umount", &["--lazy".as_ref(), self.place.as_ref()]);
        let _ = printed("losetup", &["--detach".as_ref(), self.device.as_ref()]);
    }
}

/// The disk with an allocation is away, and another one has its number: an XFS is not told by that, and nothing that is on the
/// first one is gone.
fn d26(lab: &mut Lab) -> Verdict {
    const RANGE: &str = "2147155968-2147221503";
    let Some(disks) = Disks::new(lab) else {
        println!("SKIP: d26: no XFS can be made and mounted here");
        lab.started.set(lab.started.get() + 1);
        return if lab.mutant.is_some() { Err(Breach("not tried".to_owned())) } else { Ok(()) };
    };
    let first = disks.place.join("alloc");
    for name in ["", "alloc", "alloc/logs", "alloc/data", "t", "t/local"] {
        std::fs::create_dir(first.join(name)).unwrap();
        set_mode(&first.join(name), if name.is_empty() { 0o755 } else { 0o777 });
    }
    let agent = Agent::with(lab, lab.plugin("exec"), RANGE);
    let id = agent.start(lab, &first, "exec sleep 100000").unwrap();
    agent.end(lab, id);
    disks.swap(1);
    let refused = agent.start(lab, &lab.path("alloc"), "exec sleep 100000");
    let given = refused.is_ok();
    if let Ok(id) = &refused {
        agent.end(lab, id.clone());
    }
    disks.swap(0);
    std::fs::remove_dir_all(&first).unwrap();
    let again = if given { Ok(None) } else { agent.start(lab, &lab.path("alloc"), "exec sleep 100000").map(Some) };
    if let Ok(Some(id)) = &again {
        agent.end(lab, id.clone());
    }
    agent.stop(lab);
    drop(disks);
    hold!(!given, "another allocation has the ids of files on a disk that is away");
    assert!(refused.is_err_and(|why| why.contains("all 1 ranges of 65536 host ids")), "another refusal");
    assert!(again.is_ok(), "the disk is back, and the directory gone: {again:?}");
    Ok(())
}
