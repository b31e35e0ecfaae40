//! Group D: programs that somebody else put where a task's program is looked for. The attackers are other users of the
//! machine, and other tasks of the same allocation.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt, lchown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use agentbin::spec::Propagation;
use agentbin::sys::acl::{Acl, EXECUTE, READ, WRITE, Who};

use crate::framework::{
    Attack, Inside, Lab, Mutant, Report, Run, Task, Verdict, hold, own_program, patience, pause, set_mode,
};

pub const ATTACKS: &[Attack] = &[
    Attack { id: "d01", run: d01, inside: Some(stranger), mutants: &[Mutant::new("d01")], control: None },
    Attack { id: "d02", run: d02, inside: None, mutants: &[Mutant::new("d02")], control: None },
    Attack { id: "d03", run: d03, inside: None, mutants: &[Mutant::new("d03")], control: None },
    Attack { id: "d04", run: d04, inside: None, mutants: &[Mutant::new("d04")], control: None },
    Attack { id: "d05", run: d05, inside: None, mutants: &[Mutant::new("d05")], control: None },
    Attack { id: "d06", run: d06, inside: Some(stranger), mutants: &[Mutant::new("d06")], control: None },
    Attack { id: "d07", run: d07, inside: None, mutants: &[Mutant::new("d07")], control: None },
    Attack { id: "d41", run: d41, inside: None, mutants: &[Mutant::new("d41")], control: None },
    Attack { id: "d43", run: d43, inside: None, mutants: &[Mutant::new("d43")], control: None },
];

/// Another user of the machine, in no group but his own.
const STRANGER: u32 = 7009;
/// The user `abthree` of the lab.
const ABTHREE: u32 = 7001;
/// Says that it was executed.
const APP: &[u8] = b"#!/bin/sh\necho RAN\n";

/// The key that a refusal names.
const KEY: &str = "allow_writable_programs";

/// A job of these tasks.
fn job(restart: &str, tasks: &str) -> String {
    format!(
        "job \"attack\" {{\n  type = \"batch\"\n  group \"g\" {{\n    restart {{\n      {restart}\n    }}\n{tasks}  }}\n}}\n"
    )
}

/// One attempt, no more.
const ONCE: &str = "attempts = 0\n      mode = \"fail\"";

/// A task of such a job; `more` are further blocks of it.
fn task(name: &str, driver: &str, user: &str, config: &str, more: &str) -> String {
    format!(
        "    task \"{name}\" {{\n      driver = \"{driver}\"\n      user = \"{user}\"\n      kill_timeout = \"10ms\"\n      \
         config {{\n        {config}\n      }}\n{more}    }}\n"
    )
}

/// A job that runs to its end; all that was said.
fn whole(lab: &Lab, job: &str) -> String {
    whole_with(lab, &[], job)
}

/// The same with these flags.
fn whole_with(lab: &Lab, flags: &[&str], job: &str) -> String {
    let said = to_its_end(lab.agentbin_run_with(flags, job, &[]));
    // Records and directories go with the job.
    std::fs::remove_dir_all(lab.path("data")).unwrap();
    said
}

/// The only allocation there is.
fn alloc_dir(lab: &Lab) -> PathBuf {
    let allocs = std::fs::read_dir(lab.path("data/alloc")).unwrap();
    allocs.flatten().map(|entry| entry.path()).find(|path| path.is_dir()).expect("an allocation")
}

/// Runs the stranger of this uid, who knows every name, and plants programs in the task's directory.
fn plant_as(lab: &Lab, uid: u32, alloc: &Path) -> String {
    let program = lab.path("stranger");
    if !program.exists() {
        std::fs::copy(own_program(), &program).unwrap();
    }
    let mut command = Command::new(&program);
    command.args(["inside", lab.id]).arg(alloc).uid(uid).gid(uid).stdin(Stdio::null());
    let said = String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned();
    assert!(said.contains("END"), "{said}");
    said
}

/// The stranger: what can be made below the allocation's directory is made.
fn stranger(args: &[String], inside: &Inside) {
    let alloc = Path::new(&args[0]);
    for name in ["t/local/bin/sh", "t/bin/sh", "t/local/app", "alloc/data/app"] {
        let place = alloc.join(name);
        let made = std::fs::create_dir_all(place.parent().unwrap())
            .and_then(|()| std::fs::write(&place, "#!/bin/sh\necho PLANTED as $(id -u)\n"))
            .and_then(|()| std::fs::set_permissions(&place, PermissionsExt::from_mode(0o755)));
        if made.is_ok() {
            inside.breach(&format!("made {name}"));
        }
    }
    inside.end();
}

/// A local user plants `bin/sh` in the directory of root's task, which is found before the host's at the next start.
fn d01(lab: &mut Lab) -> Verdict {
    for uid in [STRANGER, 65534] {
        let go = lab.path("go");
        let script = format!("echo RUN; while ! test -e {}; do sleep 0.05; done; exit 1", go.display());
        let config = format!("command = \"/bin/sh\"\n        args = [\"-c\", \"{script}\"]");
        let restart = "attempts = 1\n      interval = \"1h\"\n      delay = \"100ms\"\n      mode = \"fail\"";
        let mut run = lab.agentbin_run(&job(restart, &task("t", "raw_exec", "", &config, "")), &[]);
        run.wait_for("RUN");
        let said = plant_as(lab, uid, &alloc_dir(lab));
        std::fs::write(&go, "").unwrap();
        let all = to_its_end(run);
        std::fs::remove_file(&go).unwrap();
        std::fs::remove_dir_all(lab.path("data")).unwrap();
        hold!(!all.contains("PLANTED"), "uid {uid} is root now: {all}");
        hold!(!said.contains("BREACH"), "uid {uid}: {said}");
        assert!(all.matches("RUN").count() >= 2, "it was started again: {all}");
    }
    std::fs::remove_file(lab.path("stranger")).unwrap();
    Ok(())
}

fn to_its_end(mut run: Run) -> String {
    let deadline = Instant::now() + patience();
    while run.is_running() {
        assert!(Instant::now() < deadline, "the job does not end: {}", run.said());
        pause();
    }
    run.interrupt()
}

/// As agentbin makes it: nobody gets in.
fn close(lab: &Lab) {
    set_mode(&lab.path("alloc"), 0o700);
}

/// A file of the task's directory stands in for a program of the host that is named by its whole path.
fn d02(lab: &mut Lab) -> Verdict {
    close(lab);
    for place in ["local/bin/sh", "local/bin/echo"] {
        lab.plant_file(place, b"#!/bin/bash\necho PLANTED\n", 0o755);
    }
    for isolated in [true, false] {
        let plan = lab.task(&[]).user("root").command("/bin/sh", &["-c", "echo OF THE HOST; exec sleep 1000"]);
        let plan = if isolated { plan } else { plan.not_isolated().user("") };
        let task = plan.start().unwrap();
        wait(&task, "OF THE HOST", "PLANTED");
        let output = task.output();
        hold!(!output.contains("PLANTED"), "isolated {isolated}: {output}");
        let session = task.exec(&["/bin/echo", "OF THE HOST"], false).unwrap();
        task.stop();
        hold!(!session.text.contains("PLANTED"), "isolated {isolated}, a session: {}", session.text);
        assert!(session.text.contains("OF THE HOST"), "{session:?}");
    }
    Ok(())
}

/// Until the task has said one of these.
fn wait(task: &Task, one: &str, other: &str) {
    let deadline = Instant::now() + patience();
    while ![one, other].iter().any(|text| task.output().contains(text)) {
        assert!(Instant::now() < deadline, "neither came: {:?}", task.output());
        pause();
    }
}

/// One way in which the program could be somebody else's, or not.
struct Case {
    what: &'static str,
    /// Changes what is as agentbin makes it.
    change: fn(&Lab),
    /// It must not run.
    refused: bool,
}

fn own(path: &Path, uid: u32, gid: u32) {
    lchown(path, Some(uid), Some(gid)).unwrap();
}

/// Gives a user these rights to a file or directory; whoever owns it keeps all.
fn let_in(path: &Path, uid: u32, may: u16) {
    let all = READ | WRITE | EXECUTE;
    let list =
        Acl(vec![(Who::Owner, all), (Who::User(uid), may), (Who::OwningGroup, 0), (Who::Mask, all), (Who::Others, 0)]);
    list.set(std::fs::File::open(path).unwrap()).unwrap();
}

/// Root's own directories in an allocation that everybody can enter.
fn tight(lab: &Lab) {
    set_mode(&lab.path("alloc"), 0o755);
    set_mode(&lab.task_path(""), 0o755);
    set_mode(&lab.task_path("local"), 0o755);
}

/// They belong to nobody, whoever the task's user is.
fn as_agent(lab: &Lab) {
    for name in ["", "local"] {
        own(&lab.task_path(name), 65534, 65534);
        set_mode(&lab.task_path(name), 0o777);
    }
}

const CASES: &[Case] = &[
    Case { what: "closed", change: |_| {}, refused: false },
    Case { what: "everybody gets in", change: |lab| set_mode(&lab.path("alloc"), 0o711), refused: true },
    Case { what: "everybody gets in and may read", change: |lab| set_mode(&lab.path("alloc"), 0o755), refused: true },
    Case {
        what: "a group gets in",
        change: |lab| {
            own(&lab.path("alloc"), 0, STRANGER);
            set_mode(&lab.path("alloc"), 0o710);
        },
        refused: true,
    },
    Case {
        what: "the allocation is somebody's",
        change: |lab| own(&lab.path("alloc"), STRANGER, STRANGER),
        refused: true,
    },
    Case { what: "the file is somebody's", change: |lab| own(&lab.task_path("local/app"), STRANGER, 0), refused: true },
    Case {
        what: "its directory is somebody's",
        change: |lab| own(&lab.task_path("local"), STRANGER, 0),
        refused: true,
    },
    Case { what: "directories as an agent makes them", change: as_agent, refused: false },
    Case {
        what: "directories as an agent makes them, and everybody gets in",
        change: |lab| {
            as_agent(lab);
            set_mode(&lab.path("alloc"), 0o711);
        },
        refused: true,
    },
    Case { what: "everybody gets in, nobody can write", change: tight, refused: false },
    Case {
        what: "everybody may write to the file",
        change: |lab| {
            tight(lab);
            set_mode(&lab.task_path("local/app"), 0o757);
        },
        refused: true,
    },
    Case {
        what: "root's group may write",
        change: |lab| {
            tight(lab);
            set_mode(&lab.task_path("local/app"), 0o775);
            set_mode(&lab.task_path("local"), 0o775);
        },
        refused: false,
    },
    Case {
        what: "a group may write to the file",
        change: |lab| {
            tight(lab);
            own(&lab.task_path("local/app"), 0, STRANGER);
            set_mode(&lab.task_path("local/app"), 0o775);
        },
        refused: true,
    },
    Case {
        what: "a group may write to the directory",
        change: |lab| {
            tight(lab);
            own(&lab.task_path("local"), 0, STRANGER);
            set_mode(&lab.task_path("local"), 0o775);
        },
        refused: true,
    },
    Case {
        what: "a directory above the file is open, and one above that closed",
        change: |lab| {
            set_mode(&lab.path("alloc"), 0o755);
            set_mode(&lab.task_path(""), 0o700);
        },
        refused: false,
    },
    Case {
        what: "the file has another name elsewhere",
        change: |lab| {
            let second = lab.path("second");
            let _ = std::fs::remove_file(&second);
            std::fs::hard_link(lab.task_path("local/app"), second).unwrap();
            set_mode(&lab.task_path("local/app"), 0o757);
        },
        refused: true,
    },
    Case {
        what: "somebody's link",
        change: |lab| {
            std::fs::rename(lab.task_path("local/app"), lab.task_path("local/real")).unwrap();
            lab.plant_link("local/app", "real");
            own(&lab.task_path("local/app"), STRANGER, STRANGER);
        },
        refused: true,
    },
    Case {
        what: "root's link",
        change: |lab| {
            std::fs::rename(lab.task_path("local/app"), lab.task_path("local/real")).unwrap();
            lab.plant_link("local/app", "real");
        },
        refused: false,
    },
    Case {
        what: "through a directory that is somebody's, and back",
        change: |lab| {
            lab.plant_dir("local/way");
            own(&lab.task_path("local/way"), STRANGER, STRANGER);
            std::fs::rename(lab.task_path("local/app"), lab.task_path("local/real")).unwrap();
            lab.plant_link("local/app", "way/../real");
        },
        refused: true,
    },
];

/// The same by access control lists, which not every file system has.
const LISTS: &[Case] = &[
    Case { what: "a user is let in", change: |lab| let_in(&lab.path("alloc"), STRANGER, EXECUTE), refused: true },
    Case { what: "root is let in", change: |lab| let_in(&lab.path("alloc"), 0, EXECUTE), refused: false },
    Case {
        what: "a user may write to the file",
        change: |lab| {
            tight(lab);
            let_in(&lab.task_path("local/app"), STRANGER, READ | WRITE);
        },
        refused: true,
    },
    Case {
        what: "a user may write to the directory",
        change: |lab| {
            tight(lab);
            let_in(&lab.task_path("local"), STRANGER, WRITE | EXECUTE);
        },
        refused: true,
    },
];

/// `Ok` is that the program has run.
fn judged(what: &str, result: Result<Report, String>, refused: bool) -> Verdict {
    match result {
        Ok(report) if refused => hold!(!report.text.contains("RAN"), "{what}: it was executed"),
        Ok(report) => assert!(report.text.contains("RAN"), "{what}: {report:?}"),
        Err(error) => assert!(refused && error.contains(KEY), "{what}: {error}"),
    }
    Ok(())
}

/// A program that others could have changed is executed as root.
fn d03(lab: &mut Lab) -> Verdict {
    let begin = |lab: &Lab| {
        lab.reset_task_folder();
        lab.plant_file("local/app", APP, 0o755);
        close(lab);
    };
    let probe = Acl(vec![(Who::Owner, READ | WRITE | EXECUTE), (Who::OwningGroup, 0), (Who::Others, 0)]);
    let lists = match probe.set(std::fs::File::open(lab.path("tmp")).unwrap()) {
        Ok(()) => LISTS,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{error}");
            println!("note: d03: no access control lists on this file system");
            &[]
        }
    };
    for Case { what, change, refused } in CASES.iter().chain(lists) {
        for isolated in [true, false] {
            begin(lab);
            change(lab);
            let absolute = lab.task_path("local/app");
            let plan = lab.task(&[]).user("root").command("local/app", &[]);
            let result = if isolated { plan.run() } else { plan.not_isolated().user("").run() };
            judged(what, result, *refused)?;
            if !isolated {
                let plan = lab.task(&[]).command(absolute.to_str().unwrap(), &[]).not_isolated();
                judged(what, plan.run(), *refused)?;
            }
        }
    }
    // What the task's own user owns is its own.
    begin(lab);
    own(&lab.task_path("local/app"), ABTHREE, ABTHREE);
    let run = |lab: &mut Lab, user: &str| lab.task(&[]).user(user).command("local/app", &[]).run();
    judged("the task's user", run(lab, "abthree"), false)?;
    judged("another user", run(lab, "root"), true)?;
    // Whoever runs the machine may say otherwise.
    let allowed = lab.task(&[]).user("root").command("local/app", &[]).spec(|spec| spec.allow_writable_programs = true);
    judged("allowed", allowed.run(), false)?;
    // Sessions go by the same rule, as it is when they begin.
    for isolated in [true, false] {
        begin(lab);
        let plan = lab.task(&[]).user("root").command("/bin/sh", &["-c", "exec sleep 1000"]);
        let task = if isolated { plan.start() } else { plan.not_isolated().user("").start() }.unwrap();
        let before = task.exec(&["local/app"], false);
        set_mode(&lab.path("alloc"), 0o755);
        let opened = task.exec(&["local/app"], false);
        close(lab);
        own(&lab.task_path("local/app"), STRANGER, STRANGER);
        let owned = task.exec(&["local/app"], true);
        task.stop();
        judged("a session", before, false)?;
        judged("a session, everybody gets in", opened, true)?;
        judged("a session, the file is somebody's", owned, true)?;
    }
    volumes(lab)
}

/// Of a writable volume nobody knows who else writes there; a read-only one is the host's.
fn volumes(lab: &mut Lab) -> Verdict {
    lab.reset_task_folder();
    close(lab);
    let volume = lab.path("volume");
    std::fs::create_dir(&volume).unwrap();
    std::fs::write(volume.join("app"), APP).unwrap();
    set_mode(&volume.join("app"), 0o755);
    for (what, mode, readonly, refused) in [
        ("a volume that is root's", 0o755, false, false),
        ("a volume that everybody writes to", 0o777, false, true),
        ("the same, read-only", 0o777, true, false),
    ] {
        set_mode(&volume, mode);
        let plan = lab.task(&[]).user("root").command("/vol/app", &[]);
        judged(what, plan.mount(&volume, "/vol", readonly, Propagation::Private).run(), refused)?;
    }
    // The host's programs are left to the kernel, wherever the allocation lies.
    lab.reset_task_folder();
    let plan = lab.task(&[]).user("root").command("/bin/sh", &["-c", "echo RAN"]);
    judged("a program of the host", plan.run(), false)
}

/// Another task of the allocation, of another user, can write to what root's task executes.
fn d04(lab: &mut Lab) -> Verdict {
    let app = lab.path("app");
    std::fs::write(&app, APP).unwrap();
    set_mode(&app, 0o755);
    let shared = format!(
        "      artifact {{\n        source = \"{}\"\n        destination = \"alloc/data\"\n      }}\n",
        app.display()
    );
    let private = shared.replace("alloc/data", "local");
    let idle = |driver, user| {
        let isolation = if driver == "exec" { format!("isolation = \"{}\"", lab.level.name()) } else { String::new() };
        task("other", driver, user, &format!("command = \"/bin/true\"\n        {isolation}"), "")
    };
    let in_shared = "command = \"${NOMAD_ALLOC_DIR}/data/app\"";
    for (what, others, config, artifact, refused) in [
        ("alone", String::new(), in_shared, &shared, false),
        ("beside root", idle("exec", "root"), in_shared, &shared, false),
        ("beside an isolated task", idle("exec", "abthree"), in_shared, &shared, true),
        ("beside one that sees the host", idle("raw_exec", "abthree"), in_shared, &shared, true),
        ("beside an isolated task, its own", idle("exec", "abthree"), "command = \"local/app\"", &private, false),
        ("beside one that sees the host, its own", idle("raw_exec", "abthree"), "command = \"app\"", &private, true),
    ] {
        let job = job(ONCE, &(others + &task("t", "raw_exec", "", config, artifact)));
        let said = whole(lab, &job);
        hold!(!refused || !said.contains("RAN"), "{what}: executed what another task could have changed");
        assert_eq!(said.contains("RAN"), !refused, "{what}: {said}");
        assert_eq!(said.contains(KEY), refused, "{what}: {said}");
        // Whoever runs the job may allow it, unless there is a minimum to hold.
        let flag = "--allow-writable-programs";
        assert_eq!(said.contains(flag), refused, "{what}: {said}");
        if refused {
            let said = whole_with(lab, &[flag], &job);
            assert!(said.contains("RAN"), "{what}: {said}");
            let said = to_its_end(lab.agentbin_run_with(&[flag, "--isolation-minimum", "default"], &job, &[]));
            hold!(!said.contains("RAN") && said.contains("cannot be used with"), "{what}, with a minimum: {said}");
        }
    }
    Ok(())
}

/// The program is a link, in the task's own directory, to a file that is none of its business.
fn d05(lab: &mut Lab) -> Verdict {
    let volume = lab.path("volume");
    std::fs::create_dir(&volume).unwrap();
    let foreign = [volume.join("key"), lab.shared("data/key"), lab.task_path("tmp/key")];
    for isolated in [true, false] {
        for (number, target) in ["/vol/key", "/alloc/data/key", "../tmp/key"].into_iter().enumerate() {
            lab.reset_task_folder();
            close(lab);
            for file in &foreign {
                std::fs::write(file, APP).unwrap();
                set_mode(file, 0o600);
            }
            lab.plant_link("local/app", target);
            let plan = lab.task(&[]).user("root").command("local/app", &[]);
            let plan = plan.mount(&volume, "/vol", false, Propagation::Private);
            let plan = if isolated { plan } else { plan.not_isolated().user("") };
            if let Ok(task) = plan.start() {
                task.stop();
                hold!(false, "{target}, isolated {isolated}: it was executed");
            }
            let mode = foreign[number].metadata().unwrap().mode() & 0o7777;
            hold!(mode == 0o600, "{target}, isolated {isolated}: mode {mode:o}");
        }
    }
    // A file of its own is made executable as ever.
    lab.reset_task_folder();
    close(lab);
    lab.plant_file("local/app", APP, 0o600);
    judged("a plain file", lab.task(&[]).user("root").command("local/app", &[]).run(), false)
}

/// A task of another user finds its files, and nobody comes in behind it.
fn d06(lab: &mut Lab) -> Verdict {
    let script = "cd $NOMAD_TASK_DIR && echo IN $(id -u) $PWD && exec sleep 1000";
    let config = format!("command = \"/bin/sh\"\n        args = [\"-c\", \"{script}\"]");
    let mut run = lab.agentbin_run(&job(ONCE, &task("t", "raw_exec", "abthree", &config, "")), &[]);
    run.wait_for(&format!("IN {ABTHREE}"));
    let alloc = alloc_dir(lab);
    let said = [STRANGER, 65534].map(|uid| plant_as(lab, uid, &alloc)).concat();
    let others = alloc.metadata().unwrap().mode() & 0o007;
    run.interrupt();
    std::fs::remove_dir_all(lab.path("data")).unwrap();
    std::fs::remove_file(lab.path("stranger")).unwrap();
    hold!(!said.contains("BREACH"), "{said}");
    hold!(others == 0, "others have {others:o}");
    // Nor does it for its own program, which as a script keeps its name.
    let app = lab.path("app");
    std::fs::write(&app, "#!/bin/sh\necho RAN as $(id -u) $0\n").unwrap();
    set_mode(&app, 0o755);
    let source = app.display();
    let artifact =
        format!("      artifact {{\n        source = \"{source}\"\n        destination = \"local/\"\n      }}\n");
    let said = whole(lab, &job(ONCE, &task("t", "raw_exec", "abthree", "command = \"local/app\"", &artifact)));
    assert!(said.contains(&format!("RAN as {ABTHREE} /")) && said.contains("/t/local/app\n"), "{said}");
    Ok(())
}

/// Where an artifact or a template goes is, or lies behind, a link that an earlier task has planted.
fn d07(lab: &mut Lab) -> Verdict {
    let app = lab.path("app");
    std::fs::write(&app, "of the artifact").unwrap();
    set_mode(&app, 0o666);
    set_mode(&lab.canary("open"), 0o777);
    let open = lab.canary("open");
    let before = "      lifecycle {\n        hook = \"prestart\"\n      }\n";
    for (plant, destination) in [
        (format!("ln -s {} $D/way", open.display()), "alloc/data/way"),
        (format!("mkdir $D/a && ln -s {} $D/a/way", open.display()), "alloc/data/a/way/file"),
        (format!("ln -s {}/file $D/file", open.display()), "alloc/data/file"),
        (format!("ln -s {}/new $D/new", open.display()), "alloc/data/new"),
    ] {
        let (source, data) = (format!("source = \"{}\"", app.display()), "data = \"of the template\"");
        let block = |kind: &str, up: &str, rest: &str| {
            format!("      {kind} {{\n        destination = \"{up}{destination}\"\n        {rest}\n      }}\n")
        };
        for block in [
            block("artifact", "", &format!("{source}\n        mode = \"any\"")),
            block("artifact", "", &format!("{source}\n        mode = \"file\"")),
            block("artifact", "../", &format!("{source}\n        mode = \"any\"")),
            block("template", "", data),
            block("template", "../", data),
        ] {
            let config =
                format!("command = \"/bin/sh\"\n        args = [\"-c\", \"D=$NOMAD_ALLOC_DIR/data; {plant}\"]");
            let planter = task("planter", "raw_exec", "abthree", &config, before);
            let main = task("t", "raw_exec", "", "command = \"/bin/true\"", &block);
            let said = whole(lab, &job(ONCE, &(planter + &main)));
            assert!(said.contains("planter"), "{said}");
            lab.judge()?;
        }
    }
    Ok(())
}

/// The allocation's directory cannot be looked at, so that nobody knows who put the program there.
fn d41(lab: &mut Lab) -> Verdict {
    lab.plant_file("local/app", APP, 0o755);
    own(&lab.task_path("local/app"), STRANGER, STRANGER);
    let planted = lab.task_path("local/app");
    let gone = lab.path("gone");
    for command in [planted.to_str().unwrap(), "/bin/sh"] {
        let args: &[&str] = if command == "/bin/sh" { &["-c", "echo RAN"] } else { &[] };
        let task_dir = gone.join("t");
        let plan = lab.task(&[]).command(command, args).not_isolated();
        let result = plan.spec(move |spec| (spec.task_dir, spec.work_dir) = (task_dir, "/".to_owned())).run();
        match result {
            Ok(report) => hold!(false, "{command}: {}", report.text),
            Err(error) => assert!(error.contains(gone.to_str().unwrap()) && error.contains(KEY), "{error}"),
        }
    }
    // A session, when the directory is not there any more.
    close(lab);
    let plan = lab.task(&[]).command("/bin/sh", &["-c", "echo RAN; exec sleep 1000"]).not_isolated();
    let task = plan.start().unwrap();
    task.wait_for("RAN");
    let (alloc, moved) = (lab.path("alloc"), lab.path("moved"));
    std::fs::rename(&alloc, &moved).unwrap();
    let session = task.exec(&[moved.join("t/local/app").to_str().unwrap()], false);
    std::fs::rename(&moved, &alloc).unwrap();
    task.stop();
    match session {
        Ok(session) => hold!(!session.text.contains("RAN"), "a session: {}", session.text),
        Err(error) => assert!(error.contains(alloc.to_str().unwrap()), "{error}"),
    }
    Ok(())
}

/// A file in the shared directory that lacks the right to be executed gets it, as with Nomad's drivers, when it is the task's: not
/// somebody else's, not one that has a second name, not a volume's.
fn d43(lab: &mut Lab) -> Verdict {
    let volume = lab.path("volume");
    std::fs::create_dir(&volume).unwrap();
    set_mode(&volume, 0o700);
    for allow in [false, true] {
        let begin = |lab: &Lab| {
            lab.reset_task_folder();
            close(lab);
            for file in [lab.shared("data/app"), lab.task_path("secrets/app"), volume.join("app")] {
                let _ = std::fs::remove_file(&file);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(&file, APP).unwrap();
                set_mode(&file, 0o600);
            }
        };
        let run = |lab: &mut Lab, command: &str| {
            let plan =
                lab.task(&[]).user("root").command(command, &[]).mount(&volume, "/vol", false, Propagation::Private);
            plan.spec(move |spec| spec.allow_writable_programs = allow).run()
        };
        for (command, host) in
            [("alloc/data/app", lab.shared("data/app")), ("/secrets/app", lab.task_path("secrets/app"))]
        {
            begin(lab);
            judged(command, run(lab, command), false)?;
            assert_eq!(host.metadata().unwrap().mode() & 0o7777, 0o755, "{command}");
        }
        let second = lab.path("second");
        type Change<'a> = (&'a str, &'a str, PathBuf, u32, Box<dyn Fn(&Path) + 'a>);
        let changes: [Change<'_>; 4] = [
            ("somebody's", "/alloc/data/app", lab.shared("data/app"), 0o600, Box::new(|file| own(file, STRANGER, 0))),
            ("others write", "/alloc/data/app", lab.shared("data/app"), 0o606, Box::new(|file| set_mode(file, 0o606))),
            (
                "a second name",
                "/alloc/data/app",
                lab.shared("data/app"),
                0o600,
                Box::new(|file| {
                    let _ = std::fs::remove_file(&second);
                    std::fs::hard_link(file, &second).unwrap();
                }),
            ),
            ("a volume's", "/vol/app", volume.join("app"), 0o600, Box::new(|_| {})),
        ];
        for (what, command, host, before, change) in &changes {
            begin(lab);
            if *what == "others write" {
                set_mode(&lab.path("alloc"), 0o755);
            }
            change(host);
            let result = run(lab, command);
            hold!(result.is_err(), "{what}, allow {allow}: it was executed");
            let mode = host.metadata().unwrap().mode() & 0o7777;
            hold!(mode == *before, "{what}, allow {allow}: mode {mode:o}");
        }
    }
    Ok(())
}
