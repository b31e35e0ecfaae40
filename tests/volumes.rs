//! Host volumes of job files (F1, F2): the real binary on the real kernel, with mounts in a namespace of the test's own.

#[path = "support/world.rs"]
mod world;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use world::{Out, Running, World, batch, need_root, signal, wait_for_text};

/// A batch job whose group has these volumes and whose only task runs a shell script.
fn job(volumes: &str, mounts: &str, script: &str) -> String {
    task(volumes, mounts, script, "")
}

fn task(volumes: &str, mounts: &str, script: &str, more: &str) -> String {
    format!(
        "job \"volumes\" {{\n type = \"batch\"\n group \"g\" {{\n restart {{\n attempts = 0\n mode = \"fail\"\n }}\n {volumes}\n \
         task \"t\" {{\n driver = \"exec\"\n user = \"root\"\n {mounts}\n config {{\n command = \"/bin/sh\"\n \
         args = [\"-c\", <<EOT\n{script}\nEOT\n ]\n {more}\n }}\n }}\n }}\n}}\n"
    )
}

const DATA: &str = "volume \"data\" {\n type = \"host\"\n source = \"data\"\n }";
const AT_DATA: &str = "volume_mount {\n volume = \"data\"\n destination = \"/data\"\n }";

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn directory(world: &World, name: &str) -> PathBuf {
    let path = world.path(name);
    std::fs::create_dir_all(&path).unwrap();
    path.canonicalize().unwrap()
}

fn volume(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

fn fine(out: &Out) {
    assert_eq!(out.status, 0, "{out:?}");
}

/// A run is refused before anything has started, and says why.
fn refused(world: &World, job: &str, args: &[&str], why: &str) {
    let out = world.run_text(job, args);
    assert_eq!(out.status, 125, "{out:?}");
    assert!(out.stderr.contains(why), "wanted {why:?}: {}", out.stderr);
    assert!(!out.stderr.contains("Task received"), "something was started: {}", out.stderr);
    assert_eq!(world.allocations(), 0);
}

#[test]
fn f1_a_task_writes_to_a_directory_of_the_host() {
    need_root!();
    let world = World::new();
    let data = directory(&world, "srv");
    symlink("srv", world.path("link")).unwrap();
    for place in ["srv", "link"] {
        let given = volume("data", &world.path(place));
        fine(&world.run_text(&job(DATA, AT_DATA, &format!("echo hello > /data/{place}")), &["--volume", &given]));
        assert_eq!(std::fs::read_to_string(data.join(place)).unwrap(), "hello\n");
    }
    // Each of the three places makes it read-only.
    let given = volume("data", &data);
    let closed = format!("{given}:ro");
    let ro = |text: &str| text.replacen("volume \"data\" {", "volume \"data\" {\n read_only = true", 1);
    let ro_mount = AT_DATA.replace("destination", "read_only = true\n destination");
    let script = "touch /data/x && exit 3; exit 0";
    for (given, volumes, mounts) in
        [(&closed, &ro(DATA), AT_DATA), (&given, &ro(DATA), AT_DATA), (&given, &DATA.to_owned(), &*ro_mount)]
    {
        let out = world.run_text(&job(volumes, mounts, script), &["--volume", given]);
        fine(&out);
        assert!(out.stderr.contains("Read-only file system") && !data.join("x").exists(), "{out:?}");
    }
    refused(&world, &job(DATA, AT_DATA, "true"), &["--volume", &closed], "host volume \"data\" is read-only");
    world.assert_clean();
}

#[test]
fn f1_each_allocation_has_its_own_and_places_may_name_the_tasks_directories() {
    need_root!();
    let world = World::new();
    let (one, two) = (directory(&world, "one"), directory(&world, "two"));
    let volumes = "count = 2\n volume \"data\" {\n type = \"host\"\n source = \"own\"\n per_alloc = true\n }";
    let mounts = AT_DATA.replace("/data", "${NOMAD_TASK_DIR}/data");
    let text = job(volumes, &mounts, "echo $NOMAD_ALLOC_INDEX > /local/data/index");
    let (first, second) = (volume("own[0]", &one), volume("own[1]", &two));
    refused(&world, &text, &["--volume", &first], "there is no host volume \"own[1]\" here");
    fine(&world.run_text(&text, &["--volume", &first, "--volume", &second]));
    for (path, index) in [(one, "0\n"), (two, "1\n")] {
        assert_eq!(std::fs::read_to_string(path.join("index")).unwrap(), index);
    }
    world.assert_clean();
}

#[test]
fn f1_what_cannot_be_had_is_refused_before_anything_starts() {
    need_root!();
    let world = World::new();
    let data = directory(&world, "srv");
    let given = volume("data", &data);
    let plain = job(DATA, AT_DATA, "true");
    refused(&world, &plain, &[], "say which directory it is with --volume data=PATH");
    refused(&world, &plain, &["--volume", &volume("data", &world.path("none"))], "name a directory that exists");
    world.file("file", "");
    refused(&world, &plain, &["--volume", &volume("data", &world.path("file"))], "Not a directory");
    refused(&world, &plain.replace("\"exec\"", "\"raw_exec\""), &["--volume", &given], "does not support host volumes");
    let both = AT_DATA.replace("volume = ", "propagation_mode = \"bidirectional\"\n volume = ");
    let ro_mount = both.replace("destination", "read_only = true\n destination");
    refused(&world, &job(DATA, &ro_mount, "true"), &["--volume", &given], "because the volume_mount is read-only");
    let inner = format!("{both}\n{}", AT_DATA.replace("/data", "/data/inner"));
    refused(&world, &job(DATA, &inner, "true"), &["--volume", &given], "it would be mounted on the host, too");
    let twice = format!("{AT_DATA}\n{AT_DATA}");
    refused(&world, &job(DATA, &twice, "true"), &["--volume", &given], "is mounted there already");
    let csi =
        DATA.replace("\"host\"", "\"csi\"\n attachment_mode = \"file-system\"\n access_mode = \"single-node-writer\"");
    refused(&world, &job(&csi, AT_DATA, "true"), &["--volume", &given], "there is no CSI volume \"data\" here");
    // What the operator demands holds for volumes, too.
    for (level, mounts, why) in
        [("strict", AT_DATA, "read_only = false is looser"), ("default", &*both, "\"bidirectional\" is looser")]
    {
        refused(&world, &job(DATA, mounts, "touch /data/x"), &["--volume", &given, "--isolation-minimum", level], why);
        assert!(!data.join("x").exists());
    }
    world.assert_clean();
}

/// D96: a task that may write above another volume puts a link to something else in its place.
#[test]
fn d96_a_volume_is_what_the_operator_gave() {
    need_root!();
    let world = World::new();
    let (outer, secret) = (directory(&world, "outer"), directory(&world, "secret"));
    std::fs::create_dir(outer.join("inner")).unwrap();
    std::fs::write(secret.join("key"), "secret").unwrap();
    for (swap, why) in [
        (format!("mv /outer/inner /outer/gone; ln -s {} /outer/inner", secret.display()), "symbolic links"),
        ("mv /outer/inner /outer/gone; mkdir /outer/inner".to_owned(), "another directory"),
    ] {
        let text = format!(
            "job \"swap\" {{\n type = \"batch\"\n group \"g\" {{\n restart {{\n attempts = 0\n mode = \"fail\"\n }}\n \
             volume \"outer\" {{\n type = \"host\"\n source = \"outer\"\n }}\n \
             volume \"inner\" {{\n type = \"host\"\n source = \"inner\"\n }}\n \
             task \"first\" {{\n driver = \"exec\"\n user = \"root\"\n lifecycle {{\n hook = \"prestart\"\n }}\n \
             volume_mount {{\n volume = \"outer\"\n destination = \"/outer\"\n }}\n \
             config {{\n command = \"/bin/sh\"\n args = [\"-c\", \"{swap}\"]\n }}\n }}\n \
             task \"then\" {{\n driver = \"exec\"\n user = \"root\"\n \
             volume_mount {{\n volume = \"inner\"\n destination = \"/inner\"\n }}\n \
             config {{\n command = \"/bin/cat\"\n args = [\"/inner/key\"]\n }}\n }}\n }}\n}}\n"
        );
        let args = [volume("outer", &outer), volume("inner", &outer.join("inner"))];
        let out = world.run_text(&text, &["--volume", &args[0], "--volume", &args[1]]);
        assert!(out.status == 125 && out.stderr.contains(why), "wanted {why:?}: {out:?}");
        assert!(!out.stdout.contains("secret"), "{out:?}");
        let _ = std::fs::remove_file(outer.join("inner"));
        let _ = std::fs::remove_dir(outer.join("inner"));
        std::fs::rename(outer.join("gone"), outer.join("inner")).unwrap();
    }
    world.assert_clean();
}

/// D01 for volumes: a program that somebody else can change is not executed.
#[test]
fn f1_programs_of_others_in_a_writable_volume_are_not_executed() {
    need_root!();
    let world = World::new();
    let data = directory(&world, "srv");
    std::fs::copy("/bin/true", data.join("program")).unwrap();
    mode(&data.join("program"), 0o755);
    let given = volume("data", &data);
    let text = job(DATA, AT_DATA, "").replace("/bin/sh", "/data/program");
    fine(&world.run_text(&text, &["--volume", &given]));
    mode(&data.join("program"), 0o757);
    let out = world.run_text(&text, &["--volume", &given]);
    assert!(out.status != 0 && out.stderr.contains("a task executes no such program"), "{out:?}");
    fine(&world.run_text(&text, &["--volume", &given, "--allow-writable-programs"]));
    // Of a read-only one the host's rules hold.
    let closed = DATA.replacen('{', "{\n read_only = true", 1);
    fine(&world.run_text(&text.replace(DATA, &closed), &["--volume", &given]));
    world.assert_clean();
}

/// Whose the files are under `strict`: the host's users are nobody inside, and what the task makes is its allocation's.
#[test]
fn f1_under_strict_files_of_the_host_are_nobodys() {
    need_root!();
    let world = World::new();
    let data = directory(&world, "srv");
    mode(&data, 0o777);
    std::fs::write(data.join("of-root"), "mine").unwrap();
    mode(&data.join("of-root"), 0o600);
    let script = "stat -c %u /data/of-root; cat /data/of-root && exit 4; echo x > /data/made && stat -c %u /data/made";
    let out =
        world.run_text(&task(DATA, AT_DATA, script, "isolation = \"strict\""), &["--volume", &volume("data", &data)]);
    fine(&out);
    assert_eq!(out.stdout, "65534\n0\n", "{out:?}");
    let owner = std::fs::metadata(data.join("made")).unwrap().uid();
    assert!(owner >= 65536, "made by {owner}");
    // At the default level the task's root is the host's, without its power over others' files.
    let out = world.run_text(&job(DATA, AT_DATA, "stat -c %u /data/of-root"), &["--volume", &volume("data", &data)]);
    assert_eq!(out.stdout, "0\n", "{out:?}");
    world.assert_clean();
}

/// What is mounted now below this directory, as this thread sees it.
fn mounted_below(dir: &Path) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let dir = dir.to_str().unwrap();
    let places = text.lines().filter_map(|line| line.split(' ').nth(4));
    places
        .filter(|place| place.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/')))
        .map(str::to_owned)
        .collect()
}

fn tmpfs(place: &Path) {
    std::fs::create_dir_all(place).unwrap();
    mount(Some("volumes"), place, Some("tmpfs"), MsFlags::empty(), Some("mode=0777,size=1m")).unwrap();
}

fn propagate(place: &Path, how: MsFlags) {
    mount(None::<&str>, place, None::<&str>, how, None::<&str>).unwrap();
}

/// The operator lets tasks of `exec` mount.
const MAY_MOUNT: &str = "plugin \"exec\" {\n config {\n allow_caps = [\"sys_admin\", \"dac_override\"]\n }\n}\n";

struct Propagating {
    world: World,
    data: PathBuf,
    config: PathBuf,
}

impl Propagating {
    fn start(&self, mode: &str) -> Running {
        for name in ["task", "host"] {
            std::fs::create_dir_all(self.data.join(name)).unwrap();
        }
        let mounts = AT_DATA.replace("volume = ", &format!("propagation_mode = \"{mode}\"\n volume = "));
        let script = "mount -t tmpfs -o size=1m task /data/task || exit 5; echo mounted; \
                      while [ ! -e /data/go ]; do sleep 0.05; done; \
                      [ -e /data/host/seen ] && echo seen || echo unseen; while :; do sleep 1; done";
        let more = "cap_add = [\"sys_admin\", \"dac_override\"]\n seccomp = \"unconfined\"";
        let file = self.world.file("job.nomad.hcl", &task(DATA, &mounts, script, more));
        let given = volume("data", &self.data);
        self.world.start(&["--volume", &given, "--config", self.config.to_str().unwrap(), file.to_str().unwrap()])
    }
}

/// In a thread of its own, whose mount namespace nobody shares.
#[test]
fn f2_mounts_travel_as_asked_and_none_of_ours_stays() {
    need_root!();
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    propagate(Path::new("/"), MsFlags::MS_PRIVATE | MsFlags::MS_REC);
    let world = World::new();
    let data = directory(&world, "srv");
    tmpfs(&data);
    let config = world.file("agent.hcl", MAY_MOUNT);
    let test = Propagating { world, data, config };

    // A file system that is mounted privately shares nothing, and nobody is told that it does.
    for mode in ["host-to-task", "bidirectional"] {
        let mut run = test.start(mode);
        let out = run.finish();
        assert!(out.status == 125 && out.stderr.contains("mount --make-shared"), "{out:?}");
    }
    propagate(&test.data, MsFlags::MS_SHARED);
    for (mode, from_task, from_host) in
        [("private", false, false), ("host-to-task", false, true), ("bidirectional", true, true)]
    {
        for killed in [false, true] {
            let mut run = test.start(mode);
            wait_for_text(&run.stdout, "mounted\n");
            let task = test.data.join("task").to_str().unwrap().to_owned();
            let host = test.data.join("host");
            let expected = if from_task { vec![task] } else { Vec::new() };
            assert_eq!(mounted_below(&test.data), expected, "{mode}");
            tmpfs(&host);
            std::fs::write(host.join("seen"), "").unwrap();
            std::fs::write(test.data.join("go"), "").unwrap();
            wait_for_text(&run.stdout, if from_host { "\nseen\n" } else { "\nunseen\n" });
            umount2(&host, MntFlags::empty()).unwrap();
            signal(&run.child, if killed { "SIGKILL" } else { "SIGINT" });
            run.finish();
            if killed {
                // The next run takes away what is left.
                let out = test.world.agentbin(&["gc"]);
                assert_eq!(out.status, 0, "{out:?}");
            }
            test.world.assert_clean();
            // What the task itself has mounted for others, as plugins for storage do, is for them to take off.
            assert_eq!(mounted_below(&test.data), expected, "{mode}, killed: {killed}");
            if from_task {
                umount2(&test.data.join("task"), MntFlags::empty()).unwrap();
            }
            std::fs::remove_file(test.data.join("go")).unwrap();
        }
    }
    what_is_mounted_below_comes_along(&test);
    umount2(&test.data, MntFlags::empty()).unwrap();
}

/// D100: a mount in a bidirectional volume is one on the host. A link, `..`, or a file of ours leads there as well as its name.
#[test]
fn d100_nothing_is_mounted_in_a_bidirectional_volume() {
    need_root!();
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    propagate(Path::new("/"), MsFlags::MS_PRIVATE | MsFlags::MS_REC);
    let world = World::new();
    let (data, other, files) = (directory(&world, "srv"), directory(&world, "other"), directory(&world, "files"));
    tmpfs(&data);
    propagate(&data, MsFlags::MS_SHARED);
    tmpfs(&data.join("sub"));
    for name in ["inner", "sub/inner"] {
        std::fs::create_dir(data.join(name)).unwrap();
    }
    symlink("/data", files.join("l")).unwrap();
    let volumes = format!("{DATA}\n{}", DATA.replace("data", "other"));
    let both = AT_DATA.replace("volume = ", "propagation_mode = \"bidirectional\"\n volume = ");
    let artifact = format!("artifact {{\n source = \"{}\"\n }}", files.display());
    let given = [volume("data", &data), volume("other", &other)];
    let before = mounted_below(&data);
    let at = |place: &str| {
        let second = AT_DATA.replace("\"data\"", "\"other\"").replace("/data", place);
        let mounts = format!("{artifact}\n{both}\n{second}");
        let out = world.run_text(&job(&volumes, &mounts, "true"), &["--volume", &given[0], "--volume", &given[1]]);
        world.assert_clean();
        assert_eq!(mounted_below(&data), before, "{place}: {out:?}");
        assert!(!data.join("new").exists(), "{place}: made on the host");
        out
    };
    for place in ["/tmp/../data/inner", "/tmp/../data/new", "/data/../data/sub/inner", "/${meta.none}/../data/inner"] {
        let out = at(place);
        assert!(out.status == 125 && out.stderr.contains("\"..\""), "{place}: {out:?}");
    }
    for place in ["/local/l/inner", "/local/l/new", "/local/l/new/deep", "/local/l/sub/inner"] {
        let out = at(place);
        assert!(out.status == 125 && out.stderr.contains("lies in a bidirectional volume"), "{place}: {out:?}");
    }
    fine(&at("/local/x"));
    umount2(&data.join("sub"), MntFlags::empty()).unwrap();
    umount2(&data, MntFlags::empty()).unwrap();
}

/// A volume is bound with all that is mounted below it, and read-only to the last of them.
fn what_is_mounted_below_comes_along(test: &Propagating) {
    let sub = test.data.join("host");
    tmpfs(&sub);
    std::fs::write(sub.join("seen"), "below").unwrap();
    let given = volume("data", &test.data);
    let out = test.world.run_text(&job(DATA, AT_DATA, "cat /data/host/seen"), &["--volume", &given]);
    assert_eq!((out.status, &*out.stdout), (0, "below"), "{out:?}");
    let mounts = AT_DATA.replace("destination", "read_only = true\n destination");
    let out = test.world.run_text(&job(DATA, &mounts, "touch /data/host/new && exit 3; exit 0"), &["--volume", &given]);
    assert!(out.status == 0 && out.stderr.contains("Read-only file system"), "{out:?}");
    umount2(&sub, MntFlags::empty()).unwrap();
}

#[test]
fn f1_an_agents_configuration_says_what_the_flags_say() {
    need_root!();
    let world = World::new();
    let data = directory(&world, "srv");
    let text = "client {\n host_volume \"data\" {\n path = \"PATH\"\n }\n meta {\n rack = \"7\"\n }\n}\n";
    let config = world.file("agent.hcl", &text.replace("PATH", data.to_str().unwrap()));
    let config = config.to_str().unwrap();
    let constraint = "constraint {\n attribute = \"${meta.rack}\"\n value = \"7\"\n }";
    let constrained = job(&format!("{constraint}\n{DATA}"), AT_DATA, "echo ${meta.rack} > /data/rack");
    fine(&world.run_text(&constrained, &["--config", config]));
    assert_eq!(std::fs::read_to_string(data.join("rack")).unwrap(), "7\n");
    refused(&world, &constrained, &["--volume", &volume("data", &data)], "meta.rack");
    // The command line wins.
    let other = directory(&world, "other");
    fine(&world.run_text(&constrained, &["--config", config, "--volume", &volume("data", &other)]));
    assert!(other.join("rack").exists());
    let wrong = world.file("wrong.hcl", "client {\n host_volume \"x\" {\n pth = \"/\"\n }\n}\n");
    refused(&world, &constrained, &["--config", wrong.to_str().unwrap()], "wrong.hcl:3: unsupported key \"pth\"");
    let off = world.file("off.hcl", "plugin \"raw_exec\" {\n config {\n enabled = false\n }\n}\n");
    let out = world.run_text(&batch("raw_exec", "/bin/true", "[]"), &["--config", off.to_str().unwrap()]);
    assert!(out.status == 125 && out.stderr.contains("raw_exec is disabled"), "{out:?}");
    let strict = world.file("strict.hcl", "isolation_minimum = \"strict\"\n");
    let out = world.run_text(&batch("raw_exec", "/bin/true", "[]"), &["--config", strict.to_str().unwrap()]);
    assert!(out.status == 125 && out.stderr.contains("--isolation-minimum strict"), "{out:?}");
    let unknown = world.file("unknown.hcl", "plugin \"podman\" {\n config { }\n}\n");
    let out = world.run_text(&batch("exec", "/bin/true", "[]"), &["--config", unknown.to_str().unwrap()]);
    assert!(
        out.status == 125 && out.stderr.contains("unknown.hcl:1: plugin \"podman\": there is no such driver"),
        "{out:?}"
    );
    world.assert_clean();
}

#[test]
fn p1_a_dry_run_shows_what_would_run_and_makes_nothing() {
    let world = World::new();
    let data = directory(&world, "srv");
    let network = "network {\n port \"http\" {\n static = 8080\n to = 80\n }\n port \"db\" {\n }\n }\n count = 2";
    let artifact = "artifact {\n source = \"https://tok-d7@127.0.0.1:1/x?sig=tok-d7&archive=zip\"\n }";
    let text = job(&format!("{network}\n{DATA}"), &format!("{artifact}\n{AT_DATA}"), "touch /data/x");
    let given = volume("data", &data);
    let out = world.run_text(&text, &["--dry-run", "--volume", &given]);
    fine(&out);
    for words in [
        vec!["group", "g", "(2", "times)"],
        vec!["t", "exec", "/bin/sh", "main", "root", "100", "MHz", "300", "MiB"],
        vec!["8080", "80"],
        vec!["one", "of", "20000-32000"],
        vec!["data", data.to_str().unwrap(), "t", "/data", "writable", "private"],
        vec!["t", "https://...@127.0.0.1:1/x?sig=...&archive=zip", "local/"],
    ] {
        let has = |line: &str| {
            let found: Vec<&str> = line.split_whitespace().collect();
            found.windows(words.len()).any(|window| window == words)
        };
        assert!(out.stdout.lines().any(has), "{words:?}: {}", out.stdout);
    }
    assert!(!out.stdout.contains("tok-d7"), "{}", out.stdout);
    let out = world.run_text(&text, &["--dry-run", "--json", "--volume", &given]);
    assert!(!out.stdout.contains("tok-d7"), "{}", out.stdout);
    let shown: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    let group = &shown["groups"][0];
    assert_eq!(group["ports"][0]["host_port"], 8080);
    assert_eq!(group["ports"][1]["dynamic_range"], "20000-32000");
    assert_eq!(group["volume_mounts"][0]["path"], data.to_str().unwrap());
    assert!(!world.data_dir().exists() && !data.join("x").exists(), "nothing is made");
    for (args, why) in
        [(vec!["--dry-run"], "--volume data=PATH"), (vec!["--dry-run", "--volume", &given], "unsupported key")]
    {
        let text = if why.contains("key") { text.replace("command =", "comand =") } else { text.clone() };
        let out = world.run_text(&text, &args);
        assert!(out.status == 125 && out.stderr.contains(why), "{out:?}");
    }
    world.assert_clean();
}

#[test]
fn p1_strict_takes_warnings_for_mistakes() {
    let world = World::new();
    let text = batch("exec", "/bin/true", "[]").replace("type = ", "priority = 70\n type = ");
    let warning = "priority has no effect";
    let out = world.run_text(&text, &["--dry-run"]);
    assert!(out.status == 0 && out.stderr.contains(warning), "{out:?}");
    let out = world.run_text(&text, &["--dry-run", "--strict"]);
    assert!(out.status == 125 && out.stderr.contains(warning) && out.stderr.contains("--strict"), "{out:?}");
    refused(&world, &text, &["--strict", "--quiet"], "--strict treats warnings as errors");
    fine(&world.run_text(&text.replace("priority = 70", ""), &["--dry-run", "--strict"]));
    world.assert_clean();
}
