//! The state, on disks in memory and on real ones.

mod crash;
mod faults;
mod feed;
mod files;
mod jobs;
mod making;
mod others;
mod retention;
mod secrets;

use std::path::Path;

use super::secret::Keys;
use super::table::{self, TABLES, Table};
use super::{KEY_ID, State, View};
use crate::agent::model::JobKey;
use crate::spec::collections::BTreeMap;
use crate::store::testing::Disk;
use crate::store::{Source as _, Store};

/// A state on this disk, with a key that all tests have.
fn on(disk: &Disk) -> State {
    let disk = disk.clone();
    let store = Store::open_on(move || Ok(disk.clone()), table::SCHEMA).unwrap();
    let id = store.snapshot().unwrap().get(table::INDEXES, KEY_ID).unwrap();
    State::start(store, Keys::of(&[1; 32]), id, Path::new("/nowhere")).unwrap()
}

/// One that is forgotten afterwards.
fn empty() -> State {
    on(&Disk::default())
}

fn key(id: &str) -> JobKey {
    JobKey { namespace: "default".to_owned(), id: id.to_owned() }
}

/// All records.
fn dump(view: &View) -> BTreeMap<(&'static str, Vec<u8>), Vec<u8>> {
    let mut all = BTreeMap::new();
    for name in TABLES {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = view.source().page(name, &[], after.as_deref(), 100).unwrap();
            after = page.records.last().map(|(key, _)| key.clone());
            all.extend(page.records.into_iter().map(|(key, value)| ((name, key), value)));
            if !page.more {
                break;
            }
        }
    }
    all
}

/// That what is found by other ways is what a look at all records finds, and that everything belongs together.
fn check(view: &View) {
    let last = view.index().unwrap();
    let jobs = view.jobs(None, "").all().unwrap();
    let allocs = view.allocs("").all().unwrap();
    let evals = view.evals("").all().unwrap();
    let deployments = view.deployments("").all().unwrap();
    let mut linked = BTreeMap::<&str, usize>::new();
    let mut keys: Vec<JobKey> = jobs.iter().map(|job| job.key.clone()).collect();
    keys.extend(allocs.iter().map(|alloc| JobKey { namespace: alloc.namespace.clone(), id: alloc.job_id.clone() }));
    keys.extend(evals.iter().map(|eval| JobKey { namespace: eval.namespace.clone(), id: eval.job_id.clone() }));
    keys.extend(deployments.iter().map(|one| JobKey { namespace: one.namespace.clone(), id: one.job_id.clone() }));
    keys.sort();
    keys.dedup();
    for key in &keys {
        let of = |namespace: &str, id: &str| namespace == key.namespace && id == key.id;
        let mut found: Vec<_> = view.allocs_of_job(key).unwrap();
        found.sort_by(|a, b| a.id.cmp(&b.id));
        let scan: Vec<_> = allocs.iter().filter(|alloc| of(&alloc.namespace, &alloc.job_id)).cloned().collect();
        assert_eq!(found, scan);
        let live: Vec<_> = view.live_allocs_of_job(key).all().unwrap();
        let scan_live: Vec<_> = scan.iter().filter(|alloc| !alloc.client_status.is_terminal()).cloned().collect();
        assert_eq!(live, scan_live);
        for alloc in &scan {
            let version = view.version_of(alloc).unwrap().expect("the version of an allocation is kept");
            assert_eq!((version.version, version.create_index), (alloc.job_version, alloc.job_create_index));
        }
        let scan: Vec<_> = evals.iter().filter(|eval| of(&eval.namespace, &eval.job_id)).cloned().collect();
        assert_eq!(view.evals_of_job(key).unwrap(), scan);
        let mut scan: Vec<_> =
            deployments.iter().filter(|deployment| of(&deployment.namespace, &deployment.job_id)).cloned().collect();
        scan.sort_by_key(|deployment| deployment.create_index);
        let ids = |all: Vec<crate::agent::model::Deployment>| {
            all.into_iter().map(|deployment| (deployment.create_index, deployment.id)).collect::<Vec<_>>()
        };
        assert_eq!(ids(view.deployments_of_job(key).unwrap()), ids(scan));
        *linked.entry(table::ALLOCS_BY_JOB).or_default() += found.len();
        *linked.entry(table::ALLOCS_LIVE).or_default() += live.len();
        *linked.entry(table::EVALS_BY_JOB).or_default() += view.evals_of_job(key).unwrap().len();
        *linked.entry(table::DEPLOYMENTS_BY_JOB).or_default() += view.deployments_of_job(key).unwrap().len();
    }
    let open: Vec<_> = evals.iter().filter(|eval| !eval.status.is_terminal()).map(|eval| eval.id.clone()).collect();
    let mut found: Vec<_> = view.open_evals().all().unwrap().into_iter().map(|eval| eval.id).collect();
    found.sort();
    assert_eq!(found, open);
    linked.insert(table::EVALS_OPEN, open.len());
    for (name, ids) in [
        (table::ALLOCS_BY_EVAL, allocs.iter().map(|alloc| alloc.eval_id.clone()).collect::<Vec<_>>()),
        (
            table::ALLOCS_BY_DEPLOYMENT,
            allocs.iter().map(|alloc| alloc.deployment_id.clone()).filter(|id| !id.is_empty()).collect(),
        ),
    ] {
        linked.insert(name, ids.len());
        for id in ids {
            let found = match name {
                table::ALLOCS_BY_EVAL => view.allocs_of_eval(&id),
                _ => view.allocs_of_deployment(&id),
            };
            let of = |alloc: &&crate::agent::model::Allocation| {
                if name == table::ALLOCS_BY_EVAL { alloc.eval_id == id } else { alloc.deployment_id == id }
            };
            let scan: Vec<_> = allocs.iter().filter(of).cloned().collect();
            assert_eq!(found.unwrap(), scan);
        }
    }
    // Nothing is linked that is not there.
    let all = dump(view);
    for (name, count) in linked {
        assert_eq!(all.keys().filter(|(table, _)| *table == name).count(), count, "{name}");
    }
    for job in &jobs {
        let versions = view.versions(&job.key).unwrap();
        assert_eq!(versions[0], *job);
        assert!(versions.windows(2).all(|pair| pair[0].version > pair[1].version));
        assert!(versions.iter().filter(|version| version.version_tag.is_none()).count() <= super::TRACKED_VERSIONS);
        assert!(view.summary(&job.key).unwrap().is_some());
        if !job.parent_id.is_empty() {
            let parent = JobKey { namespace: job.key.namespace.clone(), id: job.parent_id.clone() };
            assert!(view.children(&parent).all().unwrap().contains(&job.key));
        }
    }
    // No version is kept that nobody needs.
    for ((_, at), _) in all.iter().filter(|((table, _), _)| *table == table::VERSIONS) {
        let needed = view.has(table::ALLOCS_BY_JOB, at).unwrap()
            || jobs.iter().any(|job| {
                let versions = view.versions(&job.key).unwrap();
                versions.iter().any(|v| table::version(&job.key, v.create_index, v.version) == *at)
            });
        assert!(needed, "{}", table::readable(at));
    }
    others::check(view, &all, &jobs);
    let indexes = Table::ALL.map(|table| view.table_index(table).unwrap());
    assert_eq!(indexes.iter().copied().max(), Some(last), "the last index is that of a table");
    let newest = allocs.iter().map(|alloc| alloc.modify_index).max().unwrap_or(0);
    assert!(newest <= view.table_index(Table::Allocs).unwrap());
}
