//! Job files as people write them, run to an end by the real binary, and what they leave and show (J1-J5): `tests/jobs`.

#[path = "support/job_files.rs"]
mod job_files;
#[path = "support/wire.rs"]
mod wire;
#[path = "support/world.rs"]
mod world;

use job_files::{all, directory, run_all, table};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use world::need_root;

/// How many run at once: most of the time they wait.
const AT_ONCE: usize = 6;

/// A machine of the thread's own, as far as ports, services and sockets go; its address is 198.51.100.7.
fn enter() {
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
    mount(Some("run"), "/run", Some("tmpfs"), MsFlags::empty(), Some("mode=755")).unwrap();
    wire::make();
}

#[test]
fn j1_job_files_show_their_effects() {
    need_root!();
    let mut files = all();
    files.retain(|file| !file.drivers.contains(&"docker".to_owned()));
    if let Ok(only) = std::env::var("AGENTBIN_JOB_FILE") {
        files.retain(|file| file.name.contains(&only));
    }
    run_all(files, AT_ONCE, enter, &[]);
}

#[test]
fn j1_the_table_has_all_of_them() {
    let path = directory().join("README.md");
    let table = table();
    if std::env::var_os("AGENTBIN_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    assert!(all().len() >= 60, "{}", all().len());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), table, "AGENTBIN_WRITE_GOLDEN=1 writes it anew");
}
