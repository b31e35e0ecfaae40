//! The store on real files and on disks that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use super::testing::{Disk, Fault};
use super::*;

const TABLES: [TableName; 2] = ["a", "b"];
const SCHEMA: Schema = Schema { version: 1, tables: &TABLES, upgrades: &[] };

fn put(table: TableName, key: &'static [u8], value: &'static [u8]) -> impl FnOnce(&Draft) + Send + 'static {
    move |draft| draft.put(table, key, value.to_vec())
}

fn all(store: &Store, table: TableName) -> Vec<(Vec<u8>, Vec<u8>)> {
    store.snapshot().unwrap().page(table, &[], None, 1000).unwrap().records
}

#[test]
fn what_is_written_is_there_after_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), SCHEMA).unwrap();
    store.write_now(put("a", b"key", b"value")).unwrap();
    let before = store.snapshot().unwrap();
    store.write_now(|draft| draft.remove("a", b"key")).unwrap();
    assert_eq!(before.get("a", b"key").unwrap().unwrap(), b"value", "a snapshot does not change");
    assert_eq!(store.snapshot().unwrap().get("a", b"key").unwrap(), None);
    store.write_now(put("b", b"key", b"other")).unwrap();
    drop((store, before));
    let store = Store::open(dir.path(), SCHEMA).unwrap();
    assert!(all(&store, "a").is_empty());
    assert_eq!(all(&store, "b"), [(b"key".to_vec(), b"other".to_vec())]);
}

#[test]
fn a_second_one_says_who_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let first = Store::open(dir.path(), SCHEMA).unwrap();
    let error = Store::open(dir.path(), SCHEMA).unwrap_err();
    assert!(matches!(error, StoreError::Held { pid: Some(pid), .. } if pid == std::process::id()), "{error}");
    assert!(error.to_string().contains(&format!("held by pid {}", std::process::id())), "{error}");
    drop(first);
    Store::open(dir.path(), SCHEMA).unwrap();
}

#[test]
fn an_older_file_is_upgraded_step_by_step_and_a_newer_one_refused_by_name() {
    const STEPS: [Upgrade; 2] = [
        (1, |draft| {
            let old = draft.get("a", b"key")?.unwrap_or_default();
            draft.put("a", b"key", [old, b"+1".to_vec()].concat());
            Ok(())
        }),
        (2, |draft| {
            let old = draft.get("a", b"key")?.unwrap_or_default();
            draft.put("c", b"key", [old, b"+2".to_vec()].concat());
            draft.remove("a", b"key");
            Ok(())
        }),
    ];
    const NEWER: Schema = Schema { version: 3, tables: &["a", "b", "c"], upgrades: &STEPS };
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), SCHEMA).unwrap();
    store.write_now(put("a", b"key", b"value")).unwrap();
    drop(store);
    let gap = Schema { upgrades: &STEPS[1..], ..NEWER };
    assert!(matches!(Store::open(dir.path(), gap), Err(StoreError::TooOld { found: 1, known: 3, .. })));
    let store = Store::open(dir.path(), NEWER).unwrap();
    assert_eq!(all(&store, "c"), [(b"key".to_vec(), b"value+1+2".to_vec())]);
    assert!(all(&store, "a").is_empty());
    drop(store);
    let error = Store::open(dir.path(), SCHEMA).unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 3, known: 1, .. }), "{error}");
    assert!(error.to_string().contains("schema 3, written by agentbin"), "{error}");
    drop(Store::open(dir.path(), NEWER).unwrap());
}

#[test]
fn something_else_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(FILE);
    std::fs::write(&file, b"these are somebody's notes, of a length that is not a database's").unwrap();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, permissions).unwrap();
    let error = Store::open(dir.path(), SCHEMA).unwrap_err();
    assert!(error.to_string().contains("state.redb"), "{error}");
    assert!(std::fs::read_to_string(&file).unwrap().starts_with("these are"));
}

#[test]
fn a_draft_reads_its_own_writes_over_what_is_there() {
    let disk = Disk::default();
    let store = Store::open_on(move || Ok(disk.clone()), SCHEMA).unwrap();
    store
        .write_now(|draft| {
            for number in 0..100_u8 {
                draft.put("a", &[number], vec![number]);
            }
        })
        .unwrap();
    let (sender, receiver) = mpsc::channel();
    store
        .write_now(move |draft| {
            draft.remove("a", &[0]);
            draft.remove("a", &[50]);
            draft.put("a", &[51], b"new".to_vec());
            draft.put("a", &[51, 0], b"between".to_vec());
            draft.put("a", &[200], b"last".to_vec());
            let mut seen = Vec::new();
            let mut after: Option<Vec<u8>> = None;
            loop {
                let page = draft.page("a", &[], after.as_deref(), 7).unwrap();
                assert!(page.records.len() <= 7);
                after = page.records.last().map(|(key, _)| key.clone()).or(after);
                seen.extend(page.records);
                if !page.more {
                    break;
                }
            }
            let below = draft.page("a", &[51], None, 10).unwrap().records;
            sender.send((seen, below, draft.get("a", &[50]).unwrap())).unwrap();
        })
        .unwrap();
    let (seen, below, removed) = receiver.recv().unwrap();
    assert_eq!(removed, None);
    assert_eq!(below, [(vec![51], b"new".to_vec()), (vec![51, 0], b"between".to_vec())]);
    assert_eq!(seen, all(&store, "a"), "what a draft reads is what is there afterwards");
    assert_eq!(seen.len(), 100);
}

/// Submits a change and says what came of it.
async fn change(
    store: &Store,
    soon: bool,
    keep: bool,
    work: impl FnOnce(&Draft) + Send + 'static,
) -> Result<(), StoreError> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    store
        .submit(soon, move |draft| {
            let _ = draft.map(|draft| work(draft));
            let done: Done = Box::new(move |result| drop(sender.send(result)));
            if keep { Verdict::Keep(done) } else { Verdict::Drop(done) }
        })
        .await;
    receiver.await.unwrap()
}

#[tokio::test]
async fn changes_that_come_together_are_committed_together_and_dropped_ones_leave_nothing() {
    let disk = Disk::default();
    let of_store = disk.clone();
    let store = Store::open_on(move || Ok(of_store.clone()), SCHEMA).unwrap();
    disk.record();
    let runs = Arc::new(AtomicU32::new(0));
    let changes = (0..100_u8).map(|number| {
        let (store, runs) = (store.clone(), Arc::clone(&runs));
        tokio::spawn(async move {
            let work = move |draft: &Draft| {
                draft.put("a", &[number], vec![number]);
                runs.fetch_add(1, Ordering::Relaxed);
            };
            change(&store, true, number % 2 == 0, work).await
        })
    });
    for change in changes.collect::<Vec<_>>() {
        change.await.unwrap().unwrap();
    }
    assert_eq!(runs.load(Ordering::Relaxed), 100);
    assert_eq!(all(&store, "a").len(), 50);
    let syncs = disk.log().iter().filter(|op| matches!(op, testing::Op::Sync)).count();
    assert!((1..=20).contains(&syncs), "{syncs} syncs for 50 changes");
}

#[tokio::test]
async fn a_change_that_panics_takes_nobody_along() {
    let disk = Disk::default();
    let store = Store::open_on(move || Ok(disk.clone()), SCHEMA).unwrap();
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    store
        .submit(false, move |draft| {
            draft.unwrap().put("a", b"half", Vec::new());
            let _sender = sender;
            panic!("seen in the output of this test");
        })
        .await;
    assert!(receiver.await.is_err());
    change(&store, false, true, put("a", b"whole", b"")).await.unwrap();
    assert_eq!(all(&store, "a"), [(b"whole".to_vec(), Vec::new())]);
}

/// Each write, and each sync, that 12 changes do, fails once: what was acknowledged is there, the rest said so, and once the
/// disk works again the store does, too.
#[tokio::test]
async fn a_disk_that_is_full_or_broken_is_an_error_and_loses_nothing_that_was_acknowledged() {
    let full = std::env::var_os("AGENTBIN_FULL").is_some();
    for make in [Fault::Write as fn(u64) -> Fault, Fault::Sync] {
        let mut at = 0;
        loop {
            let disk = Disk::default();
            let of_store = disk.clone();
            let store = Store::open_on(move || Ok(of_store.clone()), SCHEMA).unwrap();
            disk.fail(Some(make(at)));
            let mut kept = Vec::new();
            let mut refused = 0;
            for number in 0..12_u8 {
                let value = vec![number; 600 * usize::from(number)];
                let result = change(&store, false, true, move |draft| draft.put("a", &[number], value)).await;
                match result {
                    Ok(()) => kept.push(number),
                    Err(error) => {
                        refused += 1;
                        assert!(!matches!(error, StoreError::Panicked(_)), "{error}");
                    }
                }
            }
            let failed = disk.failed();
            disk.fail(None);
            assert_eq!(refused > 0, failed > 0, "an error is told, and only an error is");
            for image in [disk.bytes(), {
                // The store goes on by itself.
                change(&store, false, true, put("b", b"after", b"")).await.unwrap();
                assert!(store.snapshot().is_ok());
                disk.bytes()
            }] {
                let again = Store::open_on(move || Ok(Disk::of(image.clone())), SCHEMA).unwrap();
                let found: Vec<u8> = all(&again, "a").iter().map(|(key, _)| key[0]).collect();
                assert!(kept.iter().all(|number| found.contains(number)), "{at}: kept {kept:?}, found {found:?}");
            }
            if failed == 0 {
                break;
            }
            at += if full { 1 } else { 5 };
        }
        assert!(at > 10, "faults were injected");
    }
}

/// After a sync that failed the kernel shows what is on no disk. What is acknowledged later stands on it.
#[tokio::test]
async fn what_a_failed_sync_has_lost_is_written_again_before_anything_is_built_on_it() {
    let disk = Disk::default();
    let of_store = disk.clone();
    let store = Store::open_on(move || Ok(of_store.clone()), SCHEMA).unwrap();
    // More than one page, of which the later changes write none.
    let many = |draft: &Draft| (0..200_u8).for_each(|number| draft.put("a", &[number], vec![1; 2000]));
    store.write_now(many).unwrap();
    disk.fail(Some(Fault::Lost(0)));
    change(&store, false, true, |draft| draft.put("a", &[7], vec![2; 2000])).await.unwrap_err();
    disk.fail(None);
    assert_eq!(store.snapshot().unwrap().get("a", &[7]).unwrap().unwrap()[0], 2, "it is shown");
    for number in 0..5_u8 {
        change(&store, false, true, move |draft| draft.put("b", &[number], vec![number])).await.unwrap();
    }
    let medium = disk.medium();
    let again = Store::open_on(move || Ok(Disk::of(medium.clone())), SCHEMA).unwrap();
    assert_eq!(all(&again, "b").len(), 5);
    let found = again.snapshot().unwrap();
    assert!((0..200_u8).all(|number| found.get("a", &[number]).unwrap().is_some()));
}
