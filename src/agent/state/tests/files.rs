//! The state in a directory: its lock, its key, snapshots, its size in memory.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::making::{alloc, eval, job, long_spec, told};
use super::{check, dump, key};
use crate::agent::model::{DynamicVolume, EvalStatus, Nanos, Secret};
use crate::agent::state::{Condition, KEY_FILE, State, StateError};
use crate::store::StoreError;
use crate::sys::children;

/// A state like that of an agent with so many allocations, and a variable.
async fn fill(state: &State, allocs: u32) {
    for number in 0..allocs.div_ceil(10) {
        let of = key(&format!("job{number}"));
        state
            .change(move |change| {
                let mut new = job(&of.id, "service");
                new.spec = long_spec(&of.id);
                change.put_job(new, None)?;
                change.put_eval(eval(&format!("e{number}"), &of, EvalStatus::Complete))?;
                for index in 0..10.min(allocs - number * 10) {
                    let mut one = alloc(&format!("a{number}-{index}"), &of, 0, &format!("e{number}"));
                    one.task_states = told(10);
                    change.put_alloc(one)?;
                }
                let items = [("password".to_owned(), Secret::new("hunter2"))].into();
                change.put_variable("default", "a/b", items, &Condition::default(), Nanos(1))?;
                Ok(())
            })
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn the_state_of_a_directory_is_there_again_and_belongs_to_one_agent() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::open(dir.path()).unwrap();
    fill(&state, 20).await;
    let (index, all) = (state.index(), dump(&state.read().unwrap()));
    let second = State::open(dir.path()).unwrap_err();
    assert!(matches!(&second, StateError::Store(StoreError::Held { .. })), "{second}");
    drop(state);
    let state = State::open(dir.path()).unwrap();
    assert_eq!((state.index(), dump(&state.read().unwrap())), (index, all));
    check(&state.read().unwrap());
    drop(state);
    // Without its key, or with another one.
    let path = dir.path().join(KEY_FILE);
    let saved = dir.path().join("saved");
    std::fs::rename(&path, &saved).unwrap();
    let gone = State::open(dir.path()).unwrap_err();
    assert!(gone.to_string().contains("put it back"), "{gone}");
    assert!(!path.exists(), "no other key is made");
    let other = tempfile::tempdir().unwrap();
    drop(State::open(other.path()).unwrap());
    std::fs::copy(other.path().join(KEY_FILE), &path).unwrap();
    let wrong = State::open(dir.path()).unwrap_err();
    assert!(wrong.to_string().contains("put that key file there"), "{wrong}");
    std::fs::rename(&saved, &path).unwrap();
    assert!(State::open(dir.path()).unwrap().read().unwrap().variable("default", "a/b").unwrap().is_some());
}

#[tokio::test]
async fn a_snapshot_is_put_back_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::open(dir.path()).unwrap();
    fill(&state, 30).await;
    let before = dump(&state.read().unwrap());
    let saved = state.save_snapshot(dir.path()).unwrap();
    assert_eq!(saved.index, state.index());
    let mut bytes = Vec::new();
    let mut file = saved.file;
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, saved.length);
    assert!(saved.sha256[..] == *<sha2::Sha256 as sha2::Digest>::digest(&bytes));
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "nothing is left behind: {names:?}");

    state
        .change(|change| {
            change.delete_job(&key("job1"))?;
            change.put_job(job("later", "batch"), None).map(drop)
        })
        .await
        .unwrap();
    let (changed, index) = (dump(&state.read().unwrap()), state.index());
    let archive = |bytes: &[u8]| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file
    };
    for cut in [0, 10, bytes.len() / 3, bytes.len() / 2, bytes.len() - 600, bytes.len() - 1] {
        let error = state.restore_snapshot(archive(&bytes[..cut])).await;
        assert!(matches!(error, Err(StateError::Invalid(_))), "{cut} bytes");
    }
    for at in [bytes.len() / 3, bytes.len() / 2] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x55;
        assert!(state.restore_snapshot(archive(&damaged)).await.is_err(), "byte {at}");
    }
    assert_eq!(dump(&state.read().unwrap()), changed, "what failed has changed nothing");
    let restored = state.restore_snapshot(archive(&bytes)).await.unwrap();
    assert_eq!((restored, state.index()), (index + 1, index + 1), "the index never goes back");
    let mut after = dump(&state.read().unwrap());
    let mut expected = before;
    for all in [&mut after, &mut expected] {
        all.retain(|(table, key), _| *table != super::table::INDEXES || key == super::KEY_ID);
    }
    assert_eq!(after, expected);
    check(&state.read().unwrap());

    // Elsewhere the key is another one; with the key it is the same.
    let other = tempfile::tempdir().unwrap();
    let elsewhere = State::open(other.path()).unwrap();
    let error = elsewhere.restore_snapshot(archive(&bytes)).await.unwrap_err();
    assert!(error.to_string().contains("sealed with the key"), "{error}");
    assert!(elsewhere.read().unwrap().job_keys(None, "").next().is_none());
    drop(elsewhere);
    let moved = tempfile::tempdir().unwrap();
    std::fs::copy(dir.path().join(KEY_FILE), moved.path().join(KEY_FILE)).unwrap();
    let elsewhere = State::open(moved.path()).unwrap();
    elsewhere.restore_snapshot(archive(&bytes)).await.unwrap();
    let view = elsewhere.read().unwrap();
    assert_eq!(view.variable("default", "a/b").unwrap().unwrap().items["password"].expose(), "hunter2");
    assert!(memchr::memmem::find(&bytes, b"hunter2").is_none());
}

/// A directory as the first release left it. `AGENTBIN_WRITE_GOLDEN=1` makes one for a new schema, and never replaces one that exists.
const FIRST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/agent/state/testdata/schema-1.redb.zst");

#[tokio::test]
async fn yesterday_s_file_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let (file, path) = (dir.path().join("state.redb"), dir.path().join(KEY_FILE));
    let secret = |bytes: &[u8], path: &Path| {
        std::fs::write(path, bytes).unwrap();
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    };
    secret(b"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n", &path);
    if std::env::var_os("AGENTBIN_WRITE_GOLDEN").is_some() && !Path::new(FIRST).exists() {
        let state = State::open(dir.path()).unwrap();
        fill(&state, 2).await;
        drop(state);
        std::fs::write(FIRST, zstd::encode_all(File::open(&file).unwrap(), 19).unwrap()).unwrap();
    }
    secret(&zstd::decode_all(File::open(FIRST).unwrap()).unwrap(), &file);
    let state = State::open(dir.path()).unwrap();
    let view = state.read().unwrap();
    check(&view);
    assert_eq!(view.job(&key("job0")).unwrap().unwrap().spec, long_spec("job0"));
    let alloc = view.alloc("a0-1").unwrap().unwrap();
    assert_eq!(alloc.task_states, told(10));
    assert_eq!(view.version_of(&alloc).unwrap().unwrap().key, key("job0"));
    assert_eq!(view.variable("default", "a/b").unwrap().unwrap().items["password"].expose(), "hunter2");
    let web = job("web", "service");
    drop(view);
    state.change(move |change| change.put_job(web, None)).await.unwrap();
    check(&state.read().unwrap());
    // What has come since works in it, too.
    let volume = DynamicVolume { id: "v".to_owned(), name: "data".to_owned(), ..DynamicVolume::default() };
    state.change(move |change| change.put_volume(volume)).await.unwrap();
    assert_eq!(state.read().unwrap().volumes().all().unwrap().len(), 1);
}

/// The real command line reads ours: set `NOMAD` to it.
#[tokio::test]
async fn nomad_s_command_line_inspects_a_snapshot_of_ours() {
    const NAME: &str = "nomad_s_command_line_inspects_a_snapshot_of_ours";
    let nomad = std::env::var("NOMAD").unwrap_or_default();
    let Some(nomad) = nomad.split(':').next().filter(|nomad| Path::new(nomad).is_file()) else {
        println!("SKIP: {NAME}: it is run by scripts/test nomad, which sets NOMAD");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let state = State::open(dir.path()).unwrap();
    fill(&state, 30).await;
    let mut saved = state.save_snapshot(dir.path()).unwrap();
    let path = dir.path().join("ours.snap");
    std::io::copy(&mut saved.file, &mut File::create(&path).unwrap()).unwrap();
    let output = output(Command::new(nomad).args(["operator", "snapshot", "inspect"]).arg(&path));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let row = |name: &str| text.lines().find(|line| line.starts_with(name)).map(|line| line.split_whitespace().nth(1));
    assert_eq!(row("Job "), Some(Some("3")), "{text}");
    assert_eq!(row("Alloc "), Some(Some("30")), "{text}");
    assert_eq!(row("Eval "), Some(Some("3")), "{text}");
    assert_eq!(row("Variables "), Some(Some("1")), "{text}");
    assert_eq!(row("Namespace "), Some(Some("1")), "{text}");
    assert!(text.lines().any(|line| line == format!("Index   = {}", saved.index)), "{text}");
}

/// Runs a program to its end.
fn output(command: &mut Command) -> Output {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    children::spawn(command).unwrap().0.wait_with_output().unwrap()
}

/// Bytes of this process's own memory.
fn own_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Nanoseconds that this thread was on a processor.
fn on_processor() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// Prints what it costs to open a state of 100 allocations and to read all of it, in a process of its own.
#[tokio::test]
#[ignore = "run by a_state_of_100_allocations_is_small_and_quick"]
async fn opens_what_is_there() {
    let dir = std::env::var_os("AGENTBIN_TEST_STATE").expect("the directory is given");
    let before = own_memory();
    let start = on_processor();
    let state = State::open(Path::new(&dir)).unwrap();
    let end = on_processor();
    let mut read = 0;
    let view = state.read().unwrap();
    for alloc in view.allocs("") {
        read += usize::from(!alloc.unwrap().id.is_empty());
    }
    assert_eq!((read, view.jobs(None, "").count()), (100, 10));
    drop(view);
    let bytes = own_memory().saturating_sub(before);
    let micros = (end - start) / 1000;
    println!("COST {bytes} {micros}");
}

#[tokio::test]
async fn a_state_of_100_allocations_is_small_and_quick() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::open(dir.path()).unwrap();
    fill(&state, 100).await;
    drop(state);
    let mut helper = Command::new("/proc/self/exe");
    helper.args(["--exact", "agent::state::tests::files::opens_what_is_there", "--ignored", "--nocapture"]);
    let output = output(helper.env("AGENTBIN_TEST_STATE", dir.path()));
    let text = String::from_utf8_lossy(&output.stdout);
    let cost = text.lines().find_map(|line| line.split_once("COST ")).map(|(_, cost)| cost);
    let cost = cost.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
    let (bytes, micros) = cost.split_once(' ').unwrap();
    println!("{bytes} bytes, {micros} µs");
    assert!(bytes.parse::<u64>().unwrap() < 2 << 20, "{bytes} bytes of memory");
    // Of the processor, and not optimized: a release takes a tenth of it.
    assert!(micros.parse::<u64>().unwrap() < 100_000, "{micros} µs");
}
