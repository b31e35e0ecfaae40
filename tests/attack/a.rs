//! Group A: the runtime's own binary, its descriptors and its environment.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileTypeExt as _;

use crate::framework::{Attack, Inside, Lab, Mutant, Verdict, hold};
use crate::kernel;

pub const ATTACKS: &[Attack] =
    &[Attack { id: "a03", run: a03, inside: Some(a03_inside), mutants: &[Mutant::new("a03")], control: None }];

/// Numbers that a careless parent leaves open.
const LEAKED: [i32; 6] = [3, 40, 41, 42, 43, 44];

/// The host's root, a secret and a socket, open across exec, as the parent of an executor.
pub fn leak_descriptors() {
    let root = File::open("/").unwrap();
    let shadow = File::open("/etc/shadow").unwrap();
    let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
    let fds = [root.as_raw_fd(), shadow.as_raw_fd(), socket.as_raw_fd()];
    // Above the numbers that are taken while they are made.
    for (number, fd) in LEAKED.into_iter().rev().zip(fds.into_iter().cycle()) {
        kernel::leak(fd, number).unwrap();
    }
}

/// CVE-2021-44717 and its like: descriptors of whoever started the executor reach the task.
fn a03(lab: &mut Lab) -> Verdict {
    for (spoiled, env) in [("fds", ""), ("closed", ""), ("fds", "3")] {
        for isolated in [true, false] {
            let mut plan = lab.task(&[]).spoil(spoiled).executor_env("LISTEN_FDS", env);
            if !isolated {
                let attacker = crate::framework::own_program();
                plan = plan.not_isolated().command(attacker.to_str().unwrap(), &["inside", "a03", "wait"]);
            }
            let report = plan.run().unwrap();
            report.held()?;
            hold!(report.fact("open") == "0,1,2", "descriptors {}", report.fact("open"));
        }
    }
    let task = lab.task(&[]).spoil("fds").command("/bin/sleep", &["1000"]).start().unwrap();
    for tty in [false, true] {
        let report = task.exec(&["/attack", "inside", "a03"], tty).unwrap();
        report.held()?;
        hold!(report.fact("open") == "0,1,2", "descriptors of a session {}", report.fact("open"));
    }
    task.stop();
    Ok(())
}

fn a03_inside(_: &[String], inside: &Inside) {
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let number: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
        // The one that lists them is closed by now for the second look.
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        if target.starts_with("/proc") && target.ends_with("fd") {
            continue;
        }
        open.push(number);
        let Ok(meta) = std::fs::metadata(entry.path()) else { continue };
        let kind = meta.file_type();
        if number > 2 || kind.is_dir() || kind.is_socket() || kind.is_file() {
            inside.breach(&format!("descriptor {number} is {}", target.display()));
        }
    }
    open.sort_unstable();
    let open: Vec<String> = open.iter().map(ToString::to_string).collect();
    inside.fact("open", open.join(","));
}
