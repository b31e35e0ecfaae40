//! A plain user with a manager of his own, whom systemd gives a part of the cgroups.

use crate::machine::{need_disk, sh, write};

/// C2: in a scope that is delegated to him he has limits.
#[test]
fn c2_a_plain_user_with_a_manager_has_limits() {
    need_disk!();
    let show = "c=$(sed s/^0::// /proc/self/cgroup); echo $c; cat /sys/fs/cgroup$c/memory.max";
    write(
        "/home/tester/job.nomad.hcl",
        &format!(
            "job \"j\" {{\n type = \"batch\"\n group \"g\" {{\n task \"t\" {{\n driver = \"raw_exec\"\n config {{\n \
             command = \"/bin/sh\"\n args = [\"-c\", \"{show}\"]\n }}\n resources {{\n cpu = 200\n memory = 48\n }}\n }}\n }}\n}}\n"
        ),
    );
    // The tree that holds the program may be closed to others.
    sh(
        "install -m 755 $(readlink -f $(command -v agentbin)) /usr/local/bin/agentbin-of-all; systemctl start user@1000.service",
    );
    let as_user = "setpriv --reuid=tester --regid=tester --init-groups env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/home/tester \
                   XDG_RUNTIME_DIR=/run/user/1000 DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus";
    let run = "agentbin-of-all run --quiet /home/tester/job.nomad.hcl";
    let scope = "systemd-run --user --scope --quiet -p Delegate=yes";
    let said = sh(&format!("{as_user} {scope} {run} 2>/tmp/said || {{ cat /tmp/said; false; }}"));
    let last = |at: usize| said.lines().nth(at).unwrap_or_default().rsplit(' ').next().unwrap_or_default().to_owned();
    assert!(last(0).contains("/user@1000.service/") && last(0).ends_with("-t.scope"), "{said}");
    assert_eq!(last(1), (48 << 20).to_string(), "{said}");
    // Nothing is left below his manager.
    assert_eq!(sh("find /sys/fs/cgroup/user.slice -name '*-t.scope' -o -name agentbin-supervisors"), "");
    // A scope that is not delegated is the manager's own: its cgroup is left alone.
    let said =
        sh(&format!("{as_user} systemd-run --user --scope --quiet {run} 2>/tmp/said || {{ cat /tmp/said; false; }}"));
    assert!(!said.contains("-t.scope") && said.contains("/app.slice/run-"), "{said}");
}
