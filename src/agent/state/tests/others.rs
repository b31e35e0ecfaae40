//! What an agent keeps beside jobs and what they run: namespaces, variables, tokens, services, versions with names.

use std::time::Duration;

use tokio::time::Instant;

use crate::agent::model::{
    JobKey, JobVersion, Namespace, Nanos, Role, ScalingEvent, Secret, ServiceRegistration, Token, VersionTag,
};
use crate::agent::state::table::{self, Table};
use crate::agent::state::{Change, Condition, StateError, View};
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::store::testing::Dice;

fn token(accessor: String, expiration_time: Nanos) -> Token {
    let (name, role) = ("ci".to_owned(), Role::Submit);
    Token {
        accessor_id: accessor,
        name,
        role,
        create_time: Nanos(1),
        expiration_time,
        create_index: 0,
        modify_index: 0,
    }
}

/// Something that an agent might do and that no job does. What is refused for a reason changes nothing.
pub(super) fn anything_else(change: &mut Change<'_>, dice: &mut Dice, step: u64) -> Result<(), StateError> {
    let name = ["default", "other", "third"][dice.roll(3) as usize].to_owned();
    let of = JobKey { namespace: name.clone(), id: format!("job{}", dice.roll(4)) };
    let (clock, now) = (Instant::now() + Duration::from_secs(step), Nanos((step as i64) * 1_000_000_000));
    let known = change.namespace(&name)?.is_some();
    match dice.roll(12) {
        0 => {
            let description = step.to_string();
            change.put_namespace(Namespace { name, description, ..Namespace::default() })?;
        }
        1 => match change.delete_namespace(&name) {
            Ok(()) | Err(StateError::Conflict(_) | StateError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        },
        2 | 3 => {
            let items = BTreeMap::from([("password".to_owned(), Secret::new("x".repeat(dice.roll(2000) as usize)))]);
            let path = format!("app/{}", dice.roll(4));
            let lock = dice.roll(2) == 0;
            let made = if lock {
                change.acquire_lock(&name, &path, Some(items), Nanos(0), Nanos(0), None, (clock, now))
            } else {
                change.put_variable(&name, &path, items, &Condition::default(), now)
            };
            match made {
                Ok(_) => assert!(known, "a variable was made in the namespace {name}, which is not there"),
                Err(StateError::NotFound { kind: "namespace", .. }) => assert!(!known),
                Err(error) => return Err(error),
            }
        }
        4 => {
            let path = format!("app/{}", dice.roll(4));
            let _written = change.delete_variable(&name, &path, &Condition::default())?;
            let _next = change.expire_locks(clock, now)?;
        }
        5 => {
            let accessor = format!("accessor-{}", dice.roll(4));
            let secret = Secret::new(format!("secret-{}", dice.roll(6)));
            match change.put_token(token(accessor, Nanos(dice.roll(2) as i64)), Some(&secret)) {
                Ok(()) | Err(StateError::Conflict(_)) => {}
                Err(error) => return Err(error),
            }
        }
        6 => drop(change.delete_token(&format!("accessor-{}", dice.roll(4)))?),
        7 => {
            let id = format!("_nomad-task-{}", dice.roll(6));
            let service_name = format!("web{}", dice.roll(3));
            let port = dice.roll(3) as u16;
            let namespace = name;
            change.put_service(ServiceRegistration {
                id,
                service_name,
                namespace,
                port,
                ..ServiceRegistration::default()
            })?;
        }
        8 => drop(change.delete_service(&format!("_nomad-task-{}", dice.roll(6)))?),
        9 => {
            if let Some(job) = change.job(&of)? {
                let versions = change.versions(&of)?;
                let one = versions[dice.roll(versions.len() as u64) as usize].version;
                let tag =
                    VersionTag { name: format!("tag{}", dice.roll(3)), description: String::new(), tagged_time: now };
                match change.set_tag(&of, one, (dice.roll(3) > 0).then_some(tag)) {
                    Ok(()) | Err(StateError::Conflict(_)) => {}
                    Err(error) => return Err(error),
                }
                change.set_stable(&of, job.version, dice.roll(2) == 0)?;
            }
        }
        10 => {
            if change.job(&of)?.is_some() {
                change.put_launch(&of, now)?;
                change.put_scaling_event(&of, "g", ScalingEvent { time: now, ..ScalingEvent::default() })?;
            }
        }
        _ => change.reconcile_summaries()?,
    }
    Ok(())
}

/// What belongs together of all that.
pub(super) fn check(view: &View, all: &BTreeMap<(&'static str, Vec<u8>), Vec<u8>>, jobs: &[JobVersion]) {
    let count = |table: &str| all.keys().filter(|(name, _)| *name == table).count();
    let keys = |table: &'static str| all.keys().filter(move |(name, _)| *name == table).map(|(_, key)| key);
    let mut services: Vec<ServiceRegistration> = view.services(None, "").all().unwrap();
    assert_eq!(services.len(), count(Table::Services.name()));
    assert_eq!(services.len(), count(table::SERVICES_BY_NAME));
    services.sort_by(|a, b| a.id.cmp(&b.id));
    services.dedup_by(|a, b| a.id == b.id);
    assert_eq!(services.len(), count(Table::Services.name()));
    for service in &services {
        assert_eq!(view.service(&service.id).unwrap().as_ref(), Some(service));
        assert!(view.service_named(&service.namespace, &service.service_name).unwrap().contains(service));
    }
    let tokens: BTreeSet<String> = view.tokens().all().unwrap().into_iter().map(|token| token.accessor_id).collect();
    let by_secret: BTreeSet<String> = all
        .iter()
        .filter(|((name, _), _)| *name == table::TOKENS_BY_SECRET)
        .map(|(_, accessor)| String::from_utf8(accessor.clone()).unwrap())
        .collect();
    assert_eq!((&by_secret, tokens.len()), (&tokens, count(table::TOKENS_BY_SECRET)));
    for meta in view.variables(None, "").all().unwrap() {
        let whole = view.variable(&meta.namespace, &meta.path).unwrap().unwrap();
        assert_eq!(whole.meta, meta);
        assert_eq!(meta.locked, whole.lock.is_some());
        assert!(view.namespace(&meta.namespace).unwrap().is_some(), "{meta:?} is in no namespace");
    }
    let with_parent = jobs.iter().filter(|job| !job.parent_id.is_empty()).count();
    assert_eq!(count(table::CHILDREN), with_parent);
    // What belongs to a job goes with it.
    let of_jobs: BTreeSet<Vec<u8>> = jobs.iter().map(|job| table::job(&job.key)).collect();
    assert_eq!(keys(Table::Summaries.name()).cloned().collect::<BTreeSet<_>>(), of_jobs);
    for name in [Table::Launches.name(), Table::Scaling.name()] {
        assert!(keys(name).all(|key| of_jobs.contains(key)), "{name}");
    }
    let mut versions = BTreeSet::new();
    for job in jobs {
        let listed = view.versions(&job.key).unwrap();
        let tags: Vec<_> = listed.iter().filter_map(|version| Some(&version.version_tag.as_ref()?.name)).collect();
        assert_eq!(tags.iter().collect::<BTreeSet<_>>().len(), tags.len(), "a name is of one version");
        versions.extend(listed.iter().map(|one| table::version(&job.key, one.create_index, one.version)));
    }
    for key in keys(table::SUBMISSIONS) {
        assert!(versions.contains(key), "the text of a version that is not kept: {}", table::readable(key));
    }
}
