//! Group B: files that outlive a task. Permissions, removal, programs, logs, plugins.

use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use agentbin::alloc::{AllocDir, Record, Records};
use agentbin::logs::client::Client as LogClient;
use agentbin::logs::{LogMonitor as _, StartConfig};
use agentbin::spec::{AllocId, LaunchSpec};

use crate::framework::{Attack, Inside, Lab, Mutant, Swapper, Verdict, full, hold, own_program, patience, set_mode};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "b14",
        run: b14,
        inside: Some(b14_inside),
        mutants: &[Mutant::new("b14"), Mutant::new("b14-dir")],
        control: None,
    },
    Attack {
        id: "b15",
        run: b15,
        inside: None,
        mutants: &[Mutant::new("b15"), Mutant::new("b15-race")],
        control: None,
    },
    Attack {
        id: "b16",
        run: b16,
        inside: None,
        mutants: &[Mutant::new("b16"), Mutant::new("b16-race")],
        control: None,
    },
    Attack {
        id: "b17",
        run: b17,
        inside: None,
        mutants: &[Mutant::new("b17"), Mutant::new("b17-race"), Mutant::new("b17-fifo")],
        control: None,
    },
    Attack { id: "b18", run: b18, inside: None, mutants: &[Mutant::new("b18")], control: None },
    Attack { id: "b21", run: b21, inside: None, mutants: &[Mutant::new("b21")], control: None },
];

/// A user of the host who has nothing to do with any task.
const STRANGER: u32 = 12345;

/// Longest start, on a machine that has other work.
const LONGEST: Duration = Duration::from_secs(10);

fn output(mut command: Command) -> Output {
    command.output().unwrap()
}

/// A link, which may be one of a chain, to this place from anywhere.
fn out_of_here(place: &Path) -> PathBuf {
    Path::new("../../../../../../../../..").join(place.strip_prefix("/").unwrap())
}

/// Visits `top` and what lies below it; of a directory that `visit` says `false` of, nothing more.
fn tree(top: &Path, visit: &mut dyn FnMut(&Path, &std::fs::Metadata) -> bool) {
    let Ok(meta) = top.symlink_metadata() else { return };
    if visit(top, &meta) && meta.is_dir() {
        std::fs::read_dir(top).into_iter().flatten().flatten().for_each(|entry| tree(&entry.path(), visit));
    }
}

/// CVE-2024-25621, CVE-2021-41091, CVE-2021-41103: what we make can be read or changed by others.
fn b14(lab: &mut Lab) -> Verdict {
    for umask in ["umask=0", "umask=077"] {
        let data = lab.path("data");
        let file = lab.path("job.nomad.hcl");
        let job = lab.job(
            "exec",
            "/bin/sh",
            "[\"-c\", \"echo secret > ${NOMAD_SECRETS_DIR}/key; echo READY; exec sleep 1000\"]",
            "",
        );
        std::fs::write(&file, job).unwrap();
        let mut command = lab.spoiled(&[umask], &lab.program());
        command.arg("run").arg("--data-dir").arg(&data).arg(&file).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut run = command.spawn().unwrap();
        lab.started.set(lab.started.get() + 1);
        let mut said = String::new();
        let mut stdout = std::io::BufReader::new(run.stdout.take().unwrap());
        while !said.contains("READY") {
            let read = std::io::BufRead::read_line(&mut stdout, &mut said).unwrap();
            assert!(read > 0, "the job did not start: {said}");
        }
        let verdict = look_at_state(lab, &data);
        rustix::process::kill_process(rustix::process::Pid::from_child(&run), rustix::process::Signal::INT).unwrap();
        let _ = stdout.read_to_string(&mut said);
        run.wait().unwrap();
        verdict?;
        std::fs::remove_dir_all(&data).unwrap();
    }
    Ok(())
}

/// What is open to others is the way to allocations of tasks that see the host, and nothing else.
fn look_at_state(lab: &Lab, data: &Path) -> Verdict {
    let allocs = data.join("alloc");
    let mut open = Vec::new();
    let mut records = 0;
    for top in [data, Path::new("/run/agentbin")] {
        tree(top, &mut |path, meta| {
            records += u32::from(path.extension().is_some_and(|end| end == "json"));
            let mode = meta.mode() & 0o7777;
            let allowed = if path == data || path == allocs { 0o711 } else { 0o700 };
            if !meta.is_symlink() && mode & !allowed & 0o7077 != 0 {
                open.push(format!("{} {mode:o}", path.display()));
            }
            // Who cannot enter a directory finds nothing in it, whatever its mode.
            mode & 0o077 != 0
        });
    }
    let closed = data.metadata().unwrap().mode() & 0o777 == 0o700;
    assert!(closed || records > 0, "no record was looked at");
    hold!(open.is_empty(), "open to others: {}", open.join(", "));
    // A stranger who knows every name tries them all.
    let mut names = Vec::new();
    for top in [data, Path::new("/run/agentbin")] {
        tree(top, &mut |path, _| {
            names.push(path.to_owned());
            true
        });
    }
    let program = lab.path("stranger");
    std::fs::copy(own_program(), &program).unwrap();
    let mut command = Command::new(&program);
    command.args(["inside", "b14"]).arg(&allocs).args(&names).uid(STRANGER).gid(STRANGER).stdin(Stdio::null());
    let said = String::from_utf8_lossy(&output(command).stdout).into_owned();
    assert!(said.contains("END"), "{said}");
    std::fs::remove_file(&program).unwrap();
    hold!(!said.contains("BREACH"), "a stranger: {said}");
    Ok(())
}

/// The stranger.
fn b14_inside(args: &[String], inside: &Inside) {
    let allocs = Path::new(&args[0]);
    if std::fs::read_dir(allocs).is_ok() {
        inside.breach("lists the allocations");
    }
    for path in args[1..].iter().map(Path::new) {
        let Ok(meta) = path.symlink_metadata() else { continue };
        let kind = meta.file_type();
        if kind.is_file() && std::fs::File::open(path).is_ok() {
            inside.breach(&format!("reads {}", path.display()));
        }
        if kind.is_socket() && std::os::unix::net::UnixStream::connect(path).is_ok() {
            inside.breach(&format!("speaks to {}", path.display()));
        }
        if kind.is_fifo() && std::fs::File::options().read(true).write(true).open(path).is_ok() {
            inside.breach(&format!("reads the FIFO {}", path.display()));
        }
        if std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).is_ok() {
            inside.breach(&format!("changes {}", path.display()));
        }
    }
}

/// CVE-2022-21658, RUSTSEC-2023-0018: what is removed with an allocation is not what lies in it.
fn b15(lab: &mut Lab) -> Verdict {
    lab.race([3, 200], &[], |lab, round| {
        let data = lab.path("data");
        let id = AllocId::new(uuid::Uuid::new_v4());
        let mut record = Record::new(&id, "job", "group").unwrap();
        // Its owner is dead.
        record.owner.start_ticks += 1;
        Records::new(&data).create(record).unwrap();
        let alloc = AllocDir::new(&data, &id);
        alloc.build().unwrap();
        alloc.build_task("web").unwrap();
        let local = alloc.path().join("web/local");
        for (name, target) in [("a", lab.canary("")), ("b", out_of_here(&lab.canary("open"))), ("c", "c".into())] {
            std::os::unix::fs::symlink(target, local.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(lab.canary("dir"), alloc.path().join("link")).unwrap();
        std::fs::hard_link(local.join("a"), local.join("second")).unwrap();
        // A mount that somebody has left there, at a name with odd bytes, below a directory that is swapped for a link.
        let leaked = local.join("up/le ak\\040\n");
        std::fs::create_dir_all(&leaked).unwrap();
        let bind = |from: &Path, to: &Path| {
            nix::mount::mount(Some(from), to, None::<&str>, nix::mount::MsFlags::MS_BIND, None::<&str>).unwrap();
        };
        bind(&lab.canary(""), &leaked);
        // Directories with something in them become links to the canary, again and again.
        let mut swappers = Vec::new();
        for number in 0..4 {
            let (dir, link) = (local.join(format!("dir{number}")), local.join(format!("link{number}")));
            std::fs::create_dir_all(dir.join("deep/deeper")).unwrap();
            std::fs::write(dir.join("deep/file"), "").unwrap();
            std::os::unix::fs::symlink(lab.canary(if number % 2 == 0 { "open" } else { "dir" }), &link).unwrap();
            swappers.push(Swapper::new(dir, link));
        }
        // A mount of the host which the same name leads to then.
        let kept = lab.path("mounted/le ak\\040\n");
        std::fs::create_dir_all(&kept).unwrap();
        std::fs::create_dir_all(lab.path("to-mount/mounted")).unwrap();
        bind(&lab.path("to-mount"), &kept);
        if round > 0 {
            let link = local.join("other");
            std::os::unix::fs::symlink(lab.path("mounted"), &link).unwrap();
            swappers.push(Swapper::new(local.join("up"), link));
        }
        let deadline = Instant::now() + patience();
        while swappers.iter().any(|swapper| swapper.swaps() == 0) {
            assert!(Instant::now() < deadline, "nothing was swapped");
            std::thread::yield_now();
        }
        let mut command = lab.spoiled(&[], &lab.program());
        command.arg("gc").arg("--data-dir").arg(&data);
        let said = output(command);
        lab.started.set(lab.started.get() + 1);
        drop(swappers);
        hold!(lab.canary("open/file").exists() && lab.canary("dir/inner").exists(), "removed through a link");
        hold!(lab.canary("secret").exists(), "removed through a mount");
        // It stopped with an error where it was raced, and goes on the next time.
        let mut command = lab.spoiled(&[], &lab.program());
        command.arg("gc").arg("--data-dir").arg(&data);
        let again = output(command);
        assert!(again.status.success() && !alloc.path().exists(), "{said:?}, then {again:?}");
        hold!(kept.join("mounted").exists(), "a mount of the host was taken off");
        nix::mount::umount2(&kept, nix::mount::MntFlags::empty()).unwrap();
        lab.judge()?;
        std::fs::remove_dir_all(&data).unwrap();
        Ok(())
    })
}

/// As agentbin makes it: in an allocation that everybody can enter such a program would be refused for that.
fn reset_closed(lab: &Lab) {
    lab.reset_task_folder();
    set_mode(&lab.path("alloc"), 0o700);
}

/// CVE-2021-32760, CVE-2021-41089: what is made executable is another file.
fn b16(lab: &mut Lab) -> Verdict {
    let canary = lab.canary("shadow");
    let app = lab.task_path("local/app");
    for what in ["absolute", "relative", "second name", "fifo", "folder", "chain", "socket", "loop"] {
        for isolated in [true, false] {
            reset_closed(lab);
            match what {
                "absolute" => lab.plant_link("local/app", &canary),
                "relative" => lab.plant_link("local/app", out_of_here(&canary)),
                "second name" => std::fs::hard_link(&canary, &app).unwrap(),
                "fifo" => lab.plant_fifo("local/app"),
                "folder" => lab.plant_dir("local/app"),
                "socket" => drop(std::os::unix::net::UnixListener::bind(&app).unwrap()),
                "loop" => lab.plant_link("local/app", "app"),
                _ => {
                    for number in 0..100 {
                        lab.plant_link(&format!("local/link{number}"), format!("link{}", number + 1));
                    }
                    lab.plant_link("local/link100", &canary);
                    lab.plant_link("local/app", "link0");
                }
            }
            let begun = Instant::now();
            let task = lab.task(&[]).user("root").command("local/app", &[]);
            let result = if isolated { task.start() } else { task.not_isolated().user("").start() };
            let took = begun.elapsed();
            if what == "second name" {
                std::fs::remove_file(&app).unwrap();
            }
            if let Ok(task) = result {
                task.stop();
                hold!(false, "{what} was executed");
            }
            hold!(took < LONGEST, "{what}: {took:?}");
            lab.judge()?;
        }
    }
    reset_closed(lab);
    lab.plant_file("local/app", b"#!/bin/true\n", 0o600);
    lab.plant_link("local/other", out_of_here(&canary));
    let plain = std::fs::File::open(&app).unwrap();
    let swapper = [Swapper::new(app, lab.task_path("local/other"))];
    lab.race([8, 500], &swapper, |lab, round| {
        plain.set_permissions(std::fs::Permissions::from_mode(0o600)).unwrap();
        let task = lab.task(&[]).user("root").command("local/app", &[]);
        let _ = if round % 2 == 0 { task.run() } else { task.not_isolated().user("").run() };
        Ok(())
    })?;
    drop(swapper);
    reset_closed(lab);
    lab.plant_file("local/app", b"#!/bin/true\n", 0o600);
    let report = lab.task(&[]).user("root").command("local/app", &[]).run();
    assert!(report.is_ok_and(|report| report.exit.exit_code == 0), "a plain file is made executable");
    Ok(())
}

/// What stands in the place of a log, or of the FIFO that leads to it.
const PLANTS: [&str; 10] =
    ["absolute", "relative", "second name", "fifo", "folder", "dangling", "loop", "device", "socket", "foreign fifo"];

fn plant(lab: &Lab, what: &str, place: &Path) {
    let canary = lab.canary("log");
    let link = |target: &Path| std::os::unix::fs::symlink(target, place).unwrap();
    match what {
        "absolute" => link(&canary),
        "relative" => link(&out_of_here(&canary)),
        "second name" => std::fs::hard_link(&canary, place).unwrap(),
        "fifo" => nix::unistd::mkfifo(place, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap(),
        "folder" => std::fs::create_dir(place).unwrap(),
        "dangling" => link(&lab.canary("open/new")),
        "loop" => link(place),
        "socket" => drop(std::os::unix::net::UnixListener::bind(place).unwrap()),
        "device" => link(Path::new("/dev/full")),
        _ => link(&lab.path("foreign")),
    }
}

fn unplant(place: &Path) {
    let _ = std::fs::remove_file(place);
    let _ = std::fs::remove_dir_all(place);
}

fn unplant_all(folder: &Path) {
    std::fs::read_dir(folder).unwrap().flatten().for_each(|entry| unplant(&entry.path()));
}

/// CVE-2026-6959: the place of a log, its directory, or of the FIFO that leads there, is something else.
fn b17(lab: &mut Lab) -> Verdict {
    let logs = lab.shared("logs");
    let foreign = lab.path("foreign");
    nix::unistd::mkfifo(&foreign, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    let mut private = std::fs::File::options().read(true).write(true).open(&foreign).unwrap();
    let secret = lab.secret("log");
    // The files of a collector in the executor.
    let named = |spec: &mut LaunchSpec, out: &str, err: &str| {
        let logs = spec.logs.as_mut().unwrap();
        (logs.stdout_file, logs.stderr_file) = (out.to_owned(), err.to_owned());
    };
    let say = ["-c", "echo of-the-task; echo of-the-task >&2"];
    for what in PLANTS {
        for name in ["u.stdout.0", "u.stderr.0"] {
            plant(lab, what, &logs.join(name));
            let begun = Instant::now();
            let task = lab.task(&[]).command("/bin/sh", &say).spec(|spec| named(spec, "u.stdout", "u.stderr"));
            let result = task.run();
            let took = begun.elapsed();
            unplant(&logs.join(name));
            let written: Vec<String> = std::fs::read_dir(&logs)
                .unwrap()
                .flatten()
                .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with("u.")))
                .map(|entry| std::fs::read_to_string(entry.path()).unwrap_or_default())
                .collect();
            unplant_all(&logs);
            hold!(took < LONGEST, "{what} as {name}: {took:?}");
            hold!(!written.concat().contains(&secret), "{what} as {name}: the canary is in a log");
            hold!(result.is_err() || written.concat().contains("of-the-task"), "{what} as {name}: output is lost");
            lab.judge()?;
        }
        // A FIFO that somebody else reads.
        let fifo = logs.join("u.fifo");
        plant(lab, what, &fifo);
        let task = lab.task(&[]).command("/bin/sh", &say).spec(|spec| {
            spec.logs = None;
            fifo.to_str().unwrap().clone_into(&mut spec.stdout_path);
        });
        let begun = Instant::now();
        let _ = task.run();
        unplant(&fifo);
        hold!(begun.elapsed() < LONGEST, "{what} as FIFO: {:?}", begun.elapsed());
        lab.judge()?;
    }
    // Their directory.
    for target in [lab.canary("open"), out_of_here(&lab.canary("open")), lab.canary("open/new")] {
        for isolated in [true, false] {
            std::fs::remove_dir_all(&logs).unwrap();
            std::os::unix::fs::symlink(&target, &logs).unwrap();
            let task = lab.task(&[]).command("/bin/sh", &say).spec(|spec| named(spec, "u.stdout", "u.stderr"));
            let _ = if isolated { task.run() } else { task.not_isolated().run() };
            std::fs::remove_file(&logs).unwrap();
            std::fs::create_dir(&logs).unwrap();
            lab.judge()?;
        }
    }
    // The FIFOs and files of a logmon.
    std::io::Write::write_all(&mut private, secret.as_bytes()).unwrap();
    for what in PLANTS {
        for name in [".m.stdout.fifo", "m.stdout.0"] {
            plant(lab, what, &logs.join(name));
            let logmon = collect(lab, &logs);
            unplant(&logs.join(name));
            let written: Vec<u8> = std::fs::read_dir(&logs)
                .unwrap()
                .flatten()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
                .flat_map(|entry| std::fs::read(entry.path()).unwrap_or_default())
                .collect();
            unplant_all(&logs);
            hold!(logmon < LONGEST, "{what} as {name} of a logmon: {logmon:?}");
            let written = String::from_utf8_lossy(&written).into_owned();
            hold!(!written.contains("canary-"), "{what} as {name} of a logmon: {written}");
            lab.judge()?;
        }
    }
    let mut left = vec![0; secret.len()];
    rustix::io::ioctl_fionbio(&private, true).unwrap();
    let kept = private.read(&mut left).is_ok_and(|read| read == secret.len());
    hold!(kept, "a FIFO of somebody else was read");
    race_for_logs(lab, &logs)
}

/// A file that is swapped for a link while a task writes and rotates. Each round begins with the same directory: a collector
/// goes on behind the last file that it finds, and would never come to the swapped one again.
fn race_for_logs(lab: &mut Lab, logs: &Path) -> Verdict {
    let (file, link) = (logs.join("u.stdout.1"), logs.join("link"));
    let swapper = [Swapper::new(file.clone(), link.clone())];
    lab.race([4, 500], &swapper, |lab, _| {
        unplant_all(logs);
        for number in [2, 4, 6] {
            std::os::unix::fs::symlink(lab.canary("log"), logs.join(format!("u.stdout.{number}"))).unwrap();
        }
        // Nothing is swapped until both are there.
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(lab.canary("log"), &link).unwrap();
        let script = "i=0; while [ $i -lt 3000 ]; do echo of-the-task of-the-task; i=$((i+1)); done";
        let task = lab.task(&[]).command("/bin/sh", &["-c", script]).spec(|spec| {
            let logs = spec.logs.as_mut().unwrap();
            "u.stdout".clone_into(&mut logs.stdout_file);
            logs.max_file_size_bytes = 16 << 10;
        });
        let _ = task.run();
        Ok(())
    })
}

/// Starts a logmon on this directory, lets it read what there is, ends it. How long that took.
fn collect(lab: &Lab, logs: &Path) -> Duration {
    let client = lab.role(&[], &["logmon"], Vec::new());
    let begun = Instant::now();
    let config = StartConfig {
        log_dir: logs.to_owned(),
        stdout_file: "m.stdout".to_owned(),
        stderr_file: "m.stderr".to_owned(),
        max_files: 2,
        max_file_size_mb: 1,
        stdout_fifo: logs.join(".m.stdout.fifo"),
        stderr_fifo: logs.join(".m.stderr.fifo"),
    };
    let logmon = LogClient::new(client.channel());
    let started = lab.block_on("start collecting", logmon.start(config));
    let took = begun.elapsed();
    if started.is_ok() {
        // What it reads it has read when the next call is answered.
        let _ = lab.block_on("stop collecting", logmon.stop());
    }
    lab.block_on("end the logmon", client.kill());
    took
}

/// Names of rotated files that nobody has rotated: at the end of the numbers, full, or no files at all.
fn b18(lab: &mut Lab) -> Verdict {
    let logs = lab.shared("logs");
    let plants = if full() { 100_000 } else { 300 };
    for what in ["huge", "limit", "folders", "full files"] {
        match what {
            "huge" => {
                for number in
                    ["9223372036854775807", "18446744073709551615", "99999999999999999999999", "-1", "00", "1e3"]
                {
                    std::fs::write(logs.join(format!("u.stdout.{number}")), "").unwrap();
                }
                std::fs::create_dir(logs.join("u.stdout.9223372036854775806")).unwrap();
            }
            "limit" => {
                for number in [999_999_999, 999_999_998, 1_000_000_000, 4_294_967_295_u64] {
                    std::fs::write(logs.join(format!("u.stdout.{number}")), "").unwrap();
                }
            }
            "folders" => {
                (1..=plants).for_each(|number| std::fs::create_dir(logs.join(format!("u.stdout.{number}"))).unwrap());
            }
            _ => {
                for number in 1..=plants {
                    let file = std::fs::File::create(logs.join(format!("u.stdout.{number}"))).unwrap();
                    file.set_len(1 << 20).unwrap();
                }
            }
        }
        for run in ["first", "second"] {
            let megabytes = if full() { 50 } else { 6 };
            let script =
                format!("yes of-the-task | head -c {megabytes}000000; echo; echo newest-of-the-{run}-run; sleep 0");
            let task = lab.task(&[]).command("/bin/sh", &["-c", &script]).spec(|spec| {
                let logs = spec.logs.as_mut().unwrap();
                "u.stdout".clone_into(&mut logs.stdout_file);
                logs.max_file_size_bytes = 1 << 20;
            });
            task.run().unwrap();
            let ours: Vec<String> = std::fs::read_dir(&logs)
                .unwrap()
                .flatten()
                .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with("u.stdout.")))
                .filter_map(|entry| String::from_utf8(std::fs::read(entry.path()).ok()?).ok())
                .filter(|text| text.contains("of-the-"))
                .collect();
            let newest = ours.iter().any(|text| text.contains(&format!("newest-of-the-{run}-run")));
            hold!(newest, "{what}: the newest output of the {run} run is lost");
            hold!(ours.len() <= 3, "{what}: {} files after the {run} run", ours.len());
        }
        std::fs::remove_dir_all(&logs).unwrap();
        std::fs::create_dir(&logs).unwrap();
    }
    Ok(())
}

/// CVE-2026-7474: the name of a plugin is a path.
fn b21(lab: &mut Lab) -> Verdict {
    let plugins = lab.path("plugins");
    std::fs::create_dir_all(plugins.join("folder")).unwrap();
    let script = |place: &Path, mark: &str| {
        std::fs::write(place, format!("#!/bin/sh\necho x > {}\n", lab.canary("open").join(mark).display())).unwrap();
        crate::framework::set_mode(place, 0o755);
    };
    script(&lab.path("evil"), "evil-was-here");
    script(&plugins.join("folder/inner"), "inner-was-here");
    script(&plugins.join("unnamed"), "unnamed-was-here");
    std::fs::write(plugins.join("good"), "#!/bin/sh\nexit 0\n").unwrap();
    crate::framework::set_mode(&plugins.join("good"), 0o755);
    std::fs::write(plugins.join("plain"), "#!/bin/sh\nexit 0\n").unwrap();
    let evil = lab.path("evil").to_str().unwrap().to_owned();
    let mut names: Vec<String> = [
        "../evil",
        "./../evil",
        "folder/../../evil",
        "good/../../evil",
        "../plugins/../evil",
        "folder/inner",
        "./folder/inner",
        "folder//inner",
        ".",
        "..",
        "",
        "/",
        "./",
        "../",
        "folder",
        "folder/",
        "plain",
        "./good/",
        "good/",
        "evil",
        "*",
        "g*",
        "good\n",
        " good",
        "good ",
        "good;evil",
        "$(evil)",
        "../../bin/ls",
        "../../../../bin/ls",
        "/bin/ls",
        "-evil",
        "--",
        "~root",
        "%2e%2e/evil",
        "..\\evil",
        "GOOD",
        "go\u{301}od",
        "\u{202e}live",
    ]
    .map(str::to_owned)
    .to_vec();
    names.extend([
        evil.clone(),
        format!("/{evil}"),
        format!("folder/../../../..{evil}"),
        "a".repeat(5000),
        "good".to_owned(),
    ]);
    let program = if lab.mutant.is_some() { lab.program() } else { own_program() };
    let mut command = lab.spoiled(&[], &program);
    command.arg("catalog").arg(&plugins).args(&names);
    let said = output(command);
    lab.started.set(lab.started.get() + 1);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let found: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("FOUND ")).collect();
    lab.judge()?;
    assert!(said.status.success(), "{said:?}");
    hold!(found == ["good"], "found {found:?}");
    Ok(())
}
