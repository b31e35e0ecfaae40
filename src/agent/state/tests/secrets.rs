//! Variables, their locks, and tokens.

use std::time::Duration;

use tokio::time::Instant;

use super::{dump, empty, on};
use crate::agent::model::{Nanos, Role, Secret, Token, Variable};
use crate::agent::state::{Condition, State, StateError, Written};
use crate::spec::collections::BTreeMap;
use crate::store::testing::Disk;

const SECOND: i64 = 1_000_000_000;

fn wall(second: u64) -> Nanos {
    Nanos(second.cast_signed() * SECOND)
}

fn items(value: &str) -> BTreeMap<String, Secret> {
    BTreeMap::from([("password".to_owned(), Secret::new(value))])
}

async fn put(
    state: &State,
    path: &'static str,
    value: &'static str,
    condition: Condition,
) -> Result<Written<Variable>, StateError> {
    let made =
        state.change(move |change| change.put_variable("default", path, items(value), &condition, Nanos(1))).await;
    made.map(|(_, written)| written)
}

fn done(written: Written<Variable>) -> Variable {
    match written {
        Written::Done(variable) => variable,
        Written::Conflict(found) => panic!("a conflict with {found:?}"),
    }
}

fn token(accessor: &str) -> Token {
    Token {
        accessor_id: accessor.to_owned(),
        name: "ci".to_owned(),
        role: Role::Submit,
        create_time: Nanos(1),
        expiration_time: Nanos(100),
        create_index: 0,
        modify_index: 0,
    }
}

fn cas(index: u64) -> Condition {
    Condition { cas: Some(index), lock: None }
}

#[tokio::test]
async fn no_secret_is_readable_in_the_database_nor_in_what_is_printed() {
    let disk = Disk::default();
    let state = on(&disk);
    let variable = done(put(&state, "nomad/jobs/web", "hunter2-is-secret", Condition::default()).await.unwrap());
    let (one, secret) = (token("one"), Secret::new("token-is-secret"));
    let given = secret.clone();
    state.change(move |change| change.put_token(one, Some(&given))).await.unwrap();
    for value in dump(&state.read().unwrap()).values() {
        let text = String::from_utf8_lossy(value);
        assert!(!text.contains("hunter2") && !text.contains("token-is") && !text.contains("password"), "{text}");
    }
    let bytes = disk.bytes();
    for secret in [b"hunter2".as_slice(), b"token-is"] {
        assert!(memchr::memmem::find(&bytes, secret).is_none());
    }
    let printed = format!("{variable:?} {secret:?}");
    assert!(
        !printed.contains("hunter2") && !printed.contains("token-is") && printed.contains("[redacted]"),
        "{printed}"
    );
    let view = state.read().unwrap();
    assert_eq!(
        view.variable("default", "nomad/jobs/web").unwrap().unwrap().items["password"].expose(),
        "hunter2-is-secret"
    );
    assert_eq!(view.token_by_secret(&secret, Nanos(99)).unwrap().unwrap().accessor_id, "one");
    assert!(view.token_by_secret(&secret, Nanos(100)).unwrap().is_none(), "it has expired");
    assert!(view.token_by_secret(&Secret::new("another"), Nanos(1)).unwrap().is_none());
    let (two, given) = (token("two"), secret.clone());
    assert!(matches!(
        state.change(move |change| change.put_token(two, Some(&given))).await,
        Err(StateError::Conflict(_))
    ));
    let renewed = Secret::new("renewed");
    let (one, given) = (token("one"), renewed.clone());
    state.change(move |change| change.put_token(one, Some(&given))).await.unwrap();
    let view = state.read().unwrap();
    assert!(view.token_by_secret(&secret, Nanos(1)).unwrap().is_none());
    assert!(view.token_by_secret(&renewed, Nanos(1)).unwrap().is_some());
    assert!(state.change(|change| change.delete_token("one")).await.unwrap().1);
    assert!(state.read().unwrap().token_by_secret(&renewed, Nanos(1)).unwrap().is_none());
    assert!(!state.change(|change| change.delete_token("one")).await.unwrap().1);
}

#[tokio::test]
async fn a_variable_is_written_only_as_the_writer_knows_it() {
    let state = empty();
    let first = done(put(&state, "a/b", "1", cas(0)).await.unwrap());
    assert_eq!(first.meta.create_index, first.meta.modify_index);
    let Written::Conflict(Some(found)) = put(&state, "a/b", "2", cas(0)).await.unwrap() else { panic!("no conflict") };
    assert_eq!(found.items["password"].expose(), "1", "who lost is told what is there");
    let Written::Conflict(None) = put(&state, "none", "2", cas(7)).await.unwrap() else { panic!("no conflict") };
    let second = done(put(&state, "a/b", "2", cas(first.meta.modify_index)).await.unwrap());
    assert!(second.meta.modify_index > first.meta.modify_index);
    assert_eq!(second.meta.create_index, first.meta.create_index);
    let listed = state.read().unwrap().variables(None, "a/").all().unwrap();
    assert_eq!(listed, std::slice::from_ref(&second.meta));
    for bad in ["", "a b", "nomad", "nomad/x", "../x?"] {
        assert!(matches!(put(&state, bad, "1", Condition::default()).await, Err(StateError::Invalid(_))), "{bad:?}");
    }
    let long = BTreeMap::from([("k".to_owned(), Secret::new("x".repeat(64 << 10)))]);
    let too_long =
        state.change(move |change| change.put_variable("default", "a", long, &Condition::default(), Nanos(1))).await;
    assert!(matches!(too_long, Err(StateError::Invalid(_))));
    let none =
        state.change(move |change| change.put_variable("none", "a", items("1"), &Condition::default(), Nanos(1))).await;
    assert!(matches!(none, Err(StateError::NotFound { kind: "namespace", .. })));
    let old = first.meta.modify_index;
    let (_, gone) = state.change(move |change| change.delete_variable("default", "a/b", &cas(old))).await.unwrap();
    assert!(matches!(gone, Written::Conflict(Some(_))));
    let (_, gone) =
        state.change(|change| change.delete_variable("default", "a/b", &Condition::default())).await.unwrap();
    assert_eq!(gone, Written::Done(()));
    assert!(state.read().unwrap().variable("default", "a/b").unwrap().is_none());
}

#[tokio::test]
async fn who_holds_a_variable_s_lock_writes_alone_until_it_falls_silent() {
    let state = empty();
    let start = Instant::now();
    let at = move |second: u64| start + Duration::from_secs(second);
    let acquire = |now: u64, held: Option<Secret>| {
        state.change(move |change| {
            let (ttl, delay, times) = (Nanos(10 * SECOND), Nanos(5 * SECOND), (at(now), wall(now)));
            change.acquire_lock("default", "leader", None, ttl, delay, held.as_ref(), times)
        })
    };
    let held = done(acquire(1, None).await.unwrap().1);
    assert!(held.meta.locked);
    let id = held.lock.unwrap().id;
    assert!(matches!(acquire(1, None).await.unwrap().1, Written::Conflict(Some(_))));
    assert_eq!(done(acquire(1, Some(id.clone())).await.unwrap().1).lock.unwrap().id, id, "it is held already");
    assert!(matches!(put(&state, "leader", "1", Condition::default()).await.unwrap(), Written::Conflict(_)));
    let own = Condition { cas: None, lock: Some(id.clone()) };
    done(put(&state, "leader", "1", own).await.unwrap());
    let of = id.clone();
    let renew = move |change: &mut crate::agent::state::Change<'_>| change.renew_lock("default", "leader", &of, at(5));
    let before = state.index();
    done(state.change(renew).await.unwrap().1);
    assert_eq!(state.index(), before, "who waits for a change is not told that nothing changed");
    let expire = |now: u64| state.change(move |change| change.expire_locks(at(now), wall(now)));
    let before = state.index();
    let (index, next) = expire(24).await.unwrap();
    assert_eq!((index, next), (before, Some(at(25))), "it was renewed, has a grace period, and nothing is written");
    assert_eq!(expire(25).await.unwrap().1, None);
    assert!(matches!(acquire(29, None).await.unwrap().1, Written::Conflict(_)), "its delay is not over");
    let of = id.clone();
    let renew = move |change: &mut crate::agent::state::Change<'_>| change.renew_lock("default", "leader", &of, at(25));
    assert!(matches!(state.change(renew).await.unwrap().1, Written::Conflict(_)), "it was taken away");
    let next = done(acquire(30, None).await.unwrap().1).lock.unwrap().id;
    assert_ne!(next, id);
    let of = next.clone();
    let release =
        move |change: &mut crate::agent::state::Change<'_>| change.release_lock("default", "leader", &of, Nanos(1));
    assert!(!done(state.change(release).await.unwrap().1).meta.locked);
    done(acquire(30, None).await.unwrap().1);
    let times = (at(1), wall(1));
    let short =
        state.change(move |change| change.acquire_lock("default", "x", None, Nanos(SECOND), Nanos(0), None, times));
    assert!(matches!(short.await, Err(StateError::Invalid(_))));
}

/// No holder can renew its lock while there is no agent.
#[tokio::test]
async fn a_lock_has_its_whole_time_again_when_an_agent_begins() {
    let disk = Disk::default();
    let (before, begin) = (on(&disk), Instant::now());
    let acquired = before.change(move |change| {
        change.acquire_lock("default", "leader", None, Nanos(10 * SECOND), Nanos(0), None, (begin, wall(1)))
    });
    done(acquired.await.unwrap().1);
    let (state, later) = (on(&Disk::of(disk.bytes())), begin + Duration::from_hours(1));
    let expire = |clock: Instant| state.change(move |change| change.expire_locks(clock, wall(3600)));
    let until = later + Duration::from_secs(20);
    assert_eq!(expire(later).await.unwrap().1, Some(until));
    assert_eq!(expire(until).await.unwrap().1, None);
    assert!(state.read().unwrap().variable("default", "leader").unwrap().unwrap().lock.is_none());
}

/// What an upgrade tries the new program on: all of one moment, whatever is written meanwhile. (N8)
#[tokio::test]
async fn a_copy_is_the_state_of_one_moment_with_its_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let (here, copy) = (dir.path().join("server"), dir.path().join("copy"));
    let state = State::open(&here).unwrap();
    let secret = Secret::new("token-is-secret");
    let (one, given) = (token("one"), secret.clone());
    let index = state.change(move |change| change.put_token(one, Some(&given))).await.unwrap().0;
    let (copied, changed) = tokio::join!(state.copy(&copy), state.change(|change| change.delete_token("one")));
    copied.unwrap();
    let changed = changed.unwrap().0;
    assert!(matches!(State::open(&here), Err(StateError::Store(_))), "it is open here");
    let opened = State::open(&copy).unwrap();
    let is_before = opened.index() == index;
    assert!(is_before || opened.index() == changed, "{} is neither {index} nor {changed}", opened.index());
    let known = opened.read().unwrap().token_by_secret(&secret, Nanos(1)).unwrap();
    assert_eq!(known.is_some(), is_before);
    // Without its process's help, while nothing is written.
    let beside = dir.path().join("beside");
    State::copy_of(&here, &beside).unwrap();
    assert_eq!(State::open(&beside).unwrap().index(), changed);
    assert_eq!(state.index(), changed);
}
