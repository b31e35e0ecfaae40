//! The second proof: the same attack on a runtime that is known to fall for it, where this machine has that one.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::framework::{Lab, Verdict, hold};

/// Versions for which the advisories say so.
const KNOWN: &str = "1.1.5";

fn is_known() -> bool {
    let version = Command::new("runc").arg("--version").output();
    version.is_ok_and(|out| {
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        text.strip_prefix("runc version ").is_some_and(|v| v.starts_with(KNOWN))
    })
}

/// Runs a command in a bundle whose root is the hostile directory, with the host's programs bound in.
fn runc(lab: &Lab, args: &[&str], masked: &[&str]) -> String {
    let bundle = lab.path("bundle");
    std::fs::create_dir_all(&bundle).unwrap();
    let programs = ["/bin", "/lib", "/lib64", "/usr"].into_iter().filter(|path| Path::new(path).exists());
    let name = lab.path("").file_name().unwrap().to_str().unwrap().to_owned();
    let bind = |path| json!({ "destination": path, "source": path, "type": "bind", "options": ["rbind", "ro"] });
    let mut mounts = vec![json!({ "destination": "/proc", "type": "proc", "source": "proc" })];
    mounts.extend(programs.map(bind));
    let config = json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false, "user": { "uid": 0, "gid": 0 }, "args": args, "env": ["PATH=/usr/bin:/bin"], "cwd": "/",
            "noNewPrivileges": true,
        },
        "root": { "path": lab.path("alloc/t"), "readonly": false },
        "mounts": mounts,
        "linux": {
            "namespaces": [{ "type": "pid" }, { "type": "ipc" }, { "type": "mount" }],
            "maskedPaths": masked,
            // One directory at the root of each hierarchy: of a path, runc takes only the last away again.
            "cgroupsPath": format!("/{name}"),
        },
    });
    std::fs::write(bundle.join("config.json"), config.to_string()).unwrap();
    let mut command = Command::new("runc");
    command.arg("--root").arg(lab.path("runc")).arg("run").arg("--bundle").arg(&bundle).arg(&name);
    let out = command.stdin(Stdio::null()).output().unwrap();
    let _ = Command::new("runc").arg("--root").arg(lab.path("runc")).args(["delete", "-f", &name]).output();
    String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned()
}

/// A root without a `/dev` of its own, whose `/dev/null` is a link.
pub fn b02(lab: &mut Lab) -> Option<Verdict> {
    is_known().then(|| {
        lab.plant_link("dev/null", "/proc/sys/vm/stat_interval");
        lab.plant_file("testfile", b"hidden", 0o644);
        let script = "cat /testfile > /seen; readlink /proc/self/fd/0 >> /seen";
        let said = runc(lab, &["/bin/sh", "-c", script], &["/testfile"]);
        let seen =
            std::fs::read_to_string(lab.task_path("seen")).unwrap_or_else(|_| panic!("runc did not run: {said}"));
        hold!(!seen.contains("/proc/sys") && !seen.starts_with(|c: char| c.is_ascii_digit()), "the task saw {seen:?}");
        Ok(())
    })
}

/// A root whose `/dev` is a link.
pub fn b05(lab: &mut Lab) -> Option<Verdict> {
    is_known().then(|| {
        lab.plant_link("dev", lab.canary(""));
        runc(lab, &["/bin/true"], &[]);
        Ok(())
    })
}
