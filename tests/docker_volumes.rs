//! Host volumes of jobs whose tasks are containers (F1, F2): the real binary and a Docker Engine of this program's own, in a
//! mount namespace that nobody else is in.

#[path = "support/engine.rs"]
mod engine;
#[path = "support/world.rs"]
mod world;

use std::path::{Path, PathBuf};

use engine::{IMAGE, TestEngine};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use world::{Out, World, need_root, signal, wait_for_text};

fn job(read_only: bool, mounts: &str, script: &str) -> String {
    format!(
        "job \"volumes\" {{\n type = \"batch\"\n group \"g\" {{\n restart {{\n attempts = 0\n mode = \"fail\"\n }}\n \
         volume \"data\" {{\n type = \"host\"\n source = \"data\"\n read_only = {read_only}\n }}\n task \"t\" {{\n \
         driver = \"docker\"\n volume_mount {{\n volume = \"data\"\n destination = \"/data\"\n {mounts}\n }}\n config {{\n \
         image = \"{IMAGE}\"\n network_mode = \"none\"\n command = \"/bin/sh\"\n args = [\"-c\", \"{script}\"]\n }}\n }}\n }}\n}}\n"
    )
}

struct Volumes {
    world: World,
    engine: TestEngine,
    data: PathBuf,
}

impl Volumes {
    fn command(&self, job: &str) -> std::process::Command {
        let file = self.world.file("job.nomad.hcl", job);
        let mut command = self.world.command(&["--volume", &format!("data={}", self.data.display())]);
        command.arg(file).env("DOCKER_HOST", self.engine.endpoint());
        command
    }

    fn run(&self, job: &str) -> Out {
        self.command(job).output().unwrap().into()
    }
}

#[test]
fn f2_containers_mount_volumes_as_asked() {
    need_root!();
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    let change = |place: &Path, how| mount(None::<&str>, place, None::<&str>, how, None::<&str>).unwrap();
    change(Path::new("/"), MsFlags::MS_PRIVATE | MsFlags::MS_REC);
    let engine = match TestEngine::with(&["--bridge=none"]) {
        Ok(engine) => engine,
        Err(reason) => {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{reason}");
            println!("SKIP: {reason}");
            return;
        }
    };
    let world = World::new();
    let data = world.path("srv");
    std::fs::create_dir(&data).unwrap();
    let data = data.canonicalize().unwrap();
    mount(Some("volumes"), &data, Some("tmpfs"), MsFlags::empty(), Some("mode=0777,size=1m")).unwrap();
    change(&data, MsFlags::MS_SHARED);
    let test = Volumes { world, engine, data };

    let out = test.run(&job(false, "", "echo hello > /data/x"));
    assert_eq!(out.status, 0, "{out:?}");
    assert_eq!(std::fs::read_to_string(test.data.join("x")).unwrap(), "hello\n");
    for (read_only, mounts) in [(true, ""), (false, "read_only = true"), (true, "selinux_label = \"z\"")] {
        let out = test.run(&job(read_only, mounts, "touch /data/y && exit 3; cat /data/x"));
        assert!(out.status == 0 && out.stdout == "hello\n" && out.stderr.contains("Read-only file system"), "{out:?}");
    }
    for (mode, expected, seen) in
        [("private", "rprivate", false), ("host-to-task", "rslave", true), ("bidirectional", "rshared", true)]
    {
        for label in ["", "selinux_label = \"Z\""] {
            let mounts = format!("propagation_mode = \"{mode}\"\n {label}");
            let script = "until [ -e /data/go ]; do sleep 0.1; done; [ -e /data/host/seen ] && echo seen || echo unseen; \
                          while :; do sleep 1; done";
            let host = test.data.join("host");
            std::fs::create_dir_all(&host).unwrap();
            let mut run = World::start_command(test.command(&job(false, &mounts, script)));
            wait_for_text(&run.stderr, "Task started by client");
            let format = "{{range .Mounts}}{{if eq .Destination \"/data\"}}{{.Propagation}}{{end}}{{end}}";
            let container = test.engine.docker(&["ps", "-q"]);
            assert_eq!(test.engine.docker(&["inspect", "-f", format, &container]), expected, "{mode}");
            mount(Some("volumes"), &host, Some("tmpfs"), MsFlags::empty(), Some("size=1m")).unwrap();
            std::fs::write(host.join("seen"), "").unwrap();
            std::fs::write(test.data.join("go"), "").unwrap();
            wait_for_text(&run.stdout, if seen { "seen" } else { "unseen" });
            assert_eq!(
                String::from_utf8_lossy(&run.stdout.lock().unwrap()).trim(),
                if seen { "seen" } else { "unseen" }
            );
            umount2(&host, MntFlags::empty()).unwrap();
            signal(&run.child, "SIGINT");
            run.finish();
            std::fs::remove_file(test.data.join("go")).unwrap();
            assert_eq!(test.engine.docker(&["ps", "-aq"]), "");
        }
    }
    test.world.assert_clean();
    drop(test.engine);
    umount2(&test.data, MntFlags::empty()).unwrap();
}
