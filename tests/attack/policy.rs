//! Group D: a job that asks for less isolation than the machine's operator demands.

use crate::framework::{Attack, Inside, Lab, Mutant, Verdict};

pub const ATTACKS: &[Attack] =
    &[Attack { id: "d30", run: d30, inside: Some(d30_inside), mutants: &[Mutant::new("d30")], control: None }];

/// A strict task asks for the host's processes and shared memory, by itself or by the plugin's default.
fn d30(lab: &mut Lab) -> Verdict {
    for user in ["nobody", "root"] {
        for key in ["pid_mode", "ipc_mode"] {
            let own = std::fs::read_link(format!("/proc/self/ns/{}", &key[..3])).unwrap();
            let own = own.display().to_string();
            lab.task(&[&own]).user(user).config("isolation", "strict".into()).config(key, "host".into()).must_hold()?;
        }
    }
    // A driver that refuses everything would pass.
    lab.task(&["none"]).user("nobody").config("isolation", "strict".into()).run().unwrap().held()
}

fn d30_inside(args: &[String], inside: &Inside) {
    for name in ["pid", "ipc"] {
        let own = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap().display().to_string();
        if own == args[0] {
            inside.breach(&format!("in the host's {name} namespace"));
        }
    }
    let first = std::fs::read("/proc/1/cmdline").unwrap_or_default();
    if !String::from_utf8_lossy(&first).contains("inside") {
        inside.breach("sees the host's first process");
    }
}
