//! What becomes of an allocation that does not go on, over a driver that starts nothing.

use super::*;
use crate::agent::model::ClientStatus;
use crate::alloc::fake::{self, FakeDriver};
use crate::alloc::{HostVolumes, Owner};
use crate::csi::{Files, Ledger as _, Phase, Secrets, User, VolumeId, VolumeUse};
use crate::sys::owned::OwnDir;

#[tokio::test]
async fn f7_what_cannot_be_restored_keeps_nothing_from_its_replacement() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().canonicalize().unwrap();
    let driver = FakeDriver::new(&[]);
    let machine = || fake::machine(&data_dir, &driver, Owner::Agent);
    let job = Arc::new(fake::job(vec![fake::task("web")]));
    let mut alloc = Alloc::new(&Arc::new(machine()), &job, Assignment::new(&job, 0, 0));
    alloc.set_up().await.unwrap();
    let id = alloc.id().to_string();
    drop(alloc);
    let csi = OwnDir::open(&data_dir).unwrap().make("csi".as_ref(), 0o700).unwrap();
    let files = Files::open(&csi.make("volumes".as_ref(), 0o700).unwrap(), "disk").unwrap();
    let volume = VolumeId { namespace: "default".to_owned(), id: "v".to_owned() };
    let user = User { read_only: false, leaves: false, published: Some(Phase::Done) };
    files.save(&volume, &VolumeUse { users: [(id.clone(), user)].into(), ..VolumeUse::default() }).unwrap();

    // The next process lacks its driver.
    let next = Arc::new(Machine { drivers: BTreeMap::new(), ..machine() });
    let volumes = VolumePlugins::new(&data_dir, None, None, HostVolumes::default());
    let secrets = Arc::new(|_: &str, _: &VolumeId| Secrets::default());
    let (runner, mut reports) = Runner::new(next, Advertised::default(), volumes, secrets).unwrap();
    let record = || runner.machine.records.read(&id).unwrap();
    let alloc = Alloc::restore(&runner.machine, record().unwrap()).unwrap();
    let (destroy, destroyed) = watch::channel(false);
    let life = crate::sys::task::spawn(life(Box::new(alloc), Alive::new(&runner), Arc::default(), destroyed));
    assert_eq!(reports.recv().await.unwrap().client_status, ClientStatus::Failed);
    assert!(record().is_some(), "its plugin does not run");
    assert!(files.load().unwrap()[0].1.users[&id].leaves, "who joins the volume may undo that");
    // What its plugin would have done.
    files.save(&volume, &VolumeUse::default()).unwrap();
    let gone = async {
        while record().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), gone).await.unwrap();
    assert!(!data_dir.join("alloc").join(&id).exists());
    destroy.send_replace(true);
    life.await.unwrap();
    crate::alloc::release(&data_dir).unwrap();
}

#[tokio::test]
async fn a_driver_that_does_not_answer_in_time_is_described_later() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().canonicalize().unwrap();
    let driver = FakeDriver::new(&[]);
    let machine = Arc::new(fake::machine(&data_dir, &driver, Owner::Agent));
    let volumes = VolumePlugins::new(&data_dir, None, None, HostVolumes::default());
    let secrets = Arc::new(|_: &str, _: &VolumeId| Secrets::default());
    let (runner, _reports) = Runner::new(machine, Advertised::default(), volumes, secrets).unwrap();
    driver.answers.send_replace(false);
    let Described { node, late } = runner.describe(Some(Duration::ZERO)).await;
    assert_eq!((node.drivers.len(), late), (0, ["fake".to_owned()].into()));
    assert!(!node.attributes.contains_key("driver.fake"));
    driver.answers.send_replace(true);
    let Described { node, late } = runner.describe(None).await;
    assert!(node.drivers["fake"].healthy && late.is_empty());
    assert_eq!(node.attributes["driver.fake"], "1");
    // One that answers at once needs no patience.
    let Described { late, .. } = runner.describe(Some(Duration::from_mins(1))).await;
    assert!(late.is_empty());
}
