//! The manager against a plugin that loses answers, fails, and is used by managers that are killed in the middle of a step.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use proptest::prelude::*;
use tokio::sync::Notify;
use tonic::Status;

use super::*;
use crate::csi::{AccessMode, AttachmentMode, Needs};
use crate::spec::MountOptions;
use crate::spec::collections::{BTreeMap, BTreeSet};

const NEEDS: Needs = Needs { attach: true, stage: true };

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// Nothing is done.
    Fails,
    /// It is done.
    AnswerIsLost,
    /// The manager is killed; nothing is done.
    KilledBefore,
    /// The manager is killed; it is done.
    KilledAfter,
}

#[derive(Default)]
struct Node {
    attached: bool,
    staged: bool,
    published: BTreeSet<String>,
    busy: bool,
}

/// The plugin and the disk: what outlives a manager.
#[derive(Default)]
struct World {
    nodes: BTreeMap<VolumeId, Node>,
    records: BTreeMap<VolumeId, VolumeUse>,
    /// Those who were told that they have a volume, and have not asked for its end.
    live: BTreeSet<(String, VolumeId)>,
    wrong: Vec<String>,
    calls: usize,
    faults: BTreeMap<usize, Fault>,
    steps: Vec<Step>,
    /// Those of the last call.
    secrets: Secrets,
}

#[derive(Default)]
struct Fake {
    world: Mutex<World>,
    killed: Notify,
}

impl World {
    fn check(&mut self, step: &Step, id: &VolumeId) {
        let record = self.records.get(id).cloned().unwrap_or_default();
        let (is_noted, name) = match step {
            Step::Attach | Step::Detach => (record.attached.is_some(), ""),
            Step::Stage | Step::Unstage => (record.staged.is_some(), ""),
            Step::Publish(user) | Step::Unpublish(user) => {
                (record.users.get(user).is_some_and(|user| user.published.is_some()), &**user)
            }
        };
        let node = self.nodes.entry(id.clone()).or_default();
        let is_live = |user: &str| self.live.contains(&(user.to_owned(), id.clone()));
        let problem = match step {
            _ if !is_noted => "not written down",
            _ if node.busy => "two calls at a time",
            Step::Stage if !node.attached => "staged before it was attached",
            Step::Publish(_) if !node.staged => "published before it was staged",
            Step::Unstage if !node.published.is_empty() => "unstaged while published",
            Step::Detach if node.staged => "detached while staged",
            Step::Unpublish(_) if is_live(name) => "taken away from its user",
            _ => return,
        };
        self.wrong.push(format!("{step:?} of {id:?}: {problem}"));
    }

    fn act(&mut self, step: &Step, id: &VolumeId) {
        let node = self.nodes.entry(id.clone()).or_default();
        match step {
            Step::Attach => node.attached = true,
            Step::Detach => node.attached = false,
            Step::Stage => node.staged = true,
            Step::Unstage => node.staged = false,
            Step::Publish(user) => drop(node.published.insert(user.clone())),
            Step::Unpublish(user) => drop(node.published.remove(user)),
        }
        self.steps.push(step.clone());
    }
}

#[tonic::async_trait]
impl Calls for Fake {
    fn needs(&self) -> Needs {
        NEEDS
    }

    async fn make(&self, step: &Step, work: &Work) -> Result<BTreeMap<String, String>, CsiError> {
        let id = &work.volume.id;
        let fault = {
            let mut world = lock(&self.world);
            world.check(step, id);
            if matches!(step, Step::Stage | Step::Publish(_)) && work.context.get("attached") != Some(&id.id) {
                world.wrong.push(format!("{step:?} without what the controller said"));
            }
            world.nodes.entry(id.clone()).or_default().busy = true;
            world.calls += 1;
            world.secrets.clone_from(&work.volume.secrets);
            let number = world.calls;
            world.faults.remove(&number)
        };
        // Others have their turn in between.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        let is_killed = matches!(fault, Some(Fault::KilledBefore | Fault::KilledAfter));
        {
            let mut world = lock(&self.world);
            world.nodes.entry(id.clone()).or_default().busy = false;
            if !matches!(fault, Some(Fault::Fails | Fault::KilledBefore)) {
                world.act(step, id);
            }
        }
        if is_killed {
            self.killed.notify_one();
            std::future::pending::<()>().await;
        }
        match fault {
            Some(Fault::Fails) => Err(CsiError::answer("NodeX", &id.id, &Status::internal("fails"))),
            Some(_) => Err(CsiError::answer("NodeX", &id.id, &Status::unavailable("lost"))),
            None if *step == Step::Attach => Ok([("attached".to_owned(), id.id.clone())].into()),
            None => Ok(BTreeMap::new()),
        }
    }

    async fn has(&self, user: &str, work: &Work) -> Result<bool, CsiError> {
        let world = lock(&self.world);
        Ok(world.nodes.get(&work.volume.id).is_some_and(|node| node.published.contains(user)))
    }
}

impl Ledger for Fake {
    fn load(&self) -> io::Result<Vec<Recorded>> {
        // Through the text, as a file is.
        let world = lock(&self.world);
        let copy = |(id, volume): (&VolumeId, &VolumeUse)| {
            Ok((id.clone(), serde_json::from_slice(&serde_json::to_vec(volume)?)?))
        };
        world.records.iter().map(copy).collect()
    }

    fn lock(&self, id: &VolumeId, _waits: bool) -> io::Result<Option<Locked>> {
        let volume = self.load()?.into_iter().find(|(found, _)| found == id).map(|(_, volume)| volume);
        Ok(Some(Locked { volume: volume.unwrap_or_default(), hold: Box::new(()) }))
    }

    fn save(&self, id: &VolumeId, volume: &VolumeUse) -> io::Result<()> {
        let mut world = lock(&self.world);
        if volume.is_empty() {
            world.records.remove(id);
        } else {
            world.records.insert(id.clone(), volume.clone());
        }
        Ok(())
    }
}

fn id(number: u8) -> VolumeId {
    VolumeId { namespace: "default".to_owned(), id: format!("v{number}") }
}

fn join_of(user: &str, id: VolumeId) -> Join {
    Join {
        user: user.to_owned(),
        volume: Volume { id, context: BTreeMap::new(), secrets: Secrets::default() },
        capability: Capability {
            access: AccessMode::MultiNodeMultiWriter,
            attachment: AttachmentMode::FileSystem,
            options: MountOptions::default(),
        },
        read_only: false,
    }
}

fn manager(fake: &Arc<Fake>) -> Arc<Manager> {
    Manager::open(Arc::<Fake>::clone(fake), Arc::<Fake>::clone(fake))
}

/// One life of a manager: what is to be done, all at once, until it is done or the manager is killed.
fn life(fake: &Arc<Fake>, orders: &[(bool, u8, u8)]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let manager = manager(fake);
        let live: BTreeSet<String> = lock(&fake.world).live.iter().map(|(user, _)| user.clone()).collect();
        // Of two calls that were killed at once in an earlier life the second was told of to nobody.
        let earlier = std::future::poll_fn(|context| Poll::Ready(pin!(fake.killed.notified()).poll(context)));
        let _told = earlier.await;
        let work = async {
            manager.settle(&|user| live.contains(user), &|_| Secrets::default()).await;
            let mut tasks = tokio::task::JoinSet::new();
            for &(joins, user, volume) in orders {
                let (manager, fake) = (Arc::clone(&manager), Arc::clone(fake));
                let (user, id) = (format!("a{user}-{volume}"), id(volume));
                tasks.spawn(async move {
                    let who = (user.clone(), id.clone());
                    if joins {
                        let joined = manager.join(join_of(&user, id), std::future::pending()).await;
                        if joined.is_ok() && manager.users().unwrap().get(&who.1).is_some_and(|all| all.contains(&user))
                        {
                            lock(&fake.world).live.insert(who);
                        }
                    } else {
                        lock(&fake.world).live.remove(&who);
                        // It may fail: `settle` undoes it.
                        let _ = manager.leave(&user, &id, &Secrets::default(), std::future::pending()).await;
                    }
                });
            }
            while tasks.join_next().await.is_some() {}
        };
        tokio::select! {
            biased;
            () = fake.killed.notified() => {}
            () = work => {}
        }
    });
    // A killed call is not busy any more.
    lock(&fake.world).nodes.values_mut().for_each(|node| node.busy = false);
}

fn orders() -> impl Strategy<Value = Vec<(bool, u8, u8)>> {
    // A user of one name has one order in a life: what two at a time mean for it would not be known.
    prop::collection::btree_map((0..4_u8, 0..2_u8), any::<bool>(), 1..8)
        .prop_map(|orders| orders.into_iter().map(|((user, volume), joins)| (joins, user, volume)).collect::<Vec<_>>())
        .prop_shuffle()
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![Just(Fault::Fails), Just(Fault::AnswerIsLost), Just(Fault::KilledBefore), Just(Fault::KilledAfter)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever fails, is lost or killed: a volume is there as long as somebody has it, and nothing is left in the end.
    #[test]
    fn f7_a_volume_is_there_exactly_while_somebody_uses_it(
        lives in prop::collection::vec(orders(), 1..5),
        faults in prop::collection::btree_map(1..40_usize, fault(), 0..8),
    ) {
        let fake = Arc::new(Fake::default());
        lock(&fake.world).faults = faults.into_iter().collect();
        for orders in &lives {
            life(&fake, orders);
            let world = lock(&fake.world);
            for (user, id) in &world.live {
                prop_assert!(world.nodes[id].published.contains(user), "{user} has {id:?} no longer");
            }
            prop_assert_eq!(&world.wrong, &Vec::<String>::new());
        }
        let mut world = lock(&fake.world);
        world.faults.clear();
        let last: Vec<_> = world.live.iter().map(|(user, id)| {
            let digit = |text: &str, at: usize| text.as_bytes()[at] - b'0';
            (false, digit(user, 1), digit(&id.id, 1))
        }).collect();
        drop(world);
        life(&fake, &last);
        life(&fake, &[]);
        let world = lock(&fake.world);
        prop_assert_eq!(&world.wrong, &Vec::<String>::new());
        prop_assert!(world.records.is_empty(), "{:?}", world.records);
        for (id, node) in &world.nodes {
            prop_assert!(!node.attached && !node.staged && node.published.is_empty(), "{id:?} is left");
        }
    }
}

#[tokio::test]
async fn f7_who_waits_for_a_volume_and_gives_up_is_told_so_and_nothing_is_done() {
    let fake = Arc::new(Fake::default());
    let manager = manager(&fake);
    manager.join(join_of("a", id(0)), std::future::pending()).await.unwrap();
    let held = manager.take(&id(0), std::future::pending()).await.unwrap();
    let calls = lock(&fake.world).calls;
    let error = manager.join(join_of("b", id(0)), tokio::task::yield_now()).await.unwrap_err();
    assert!(matches!(error, CsiError::Cancelled(_)), "{error}");
    assert_eq!(lock(&fake.world).calls, calls);
    // Another volume does not wait.
    manager.join(join_of("b", id(1)), std::future::pending()).await.unwrap();
    manager.put_back(held);
    manager.join(join_of("b", id(0)), std::future::pending()).await.unwrap();
    let expected = ["a", "b"].map(str::to_owned).to_vec();
    assert_eq!(manager.users().unwrap()[&id(0)], expected);
}

#[tokio::test]
async fn f7_after_a_restart_the_first_who_leaves_takes_nothing_from_the_others() {
    let fake = Arc::new(Fake::default());
    let first = manager(&fake);
    for user in ["a", "b"] {
        first.join(join_of(user, id(0)), std::future::pending()).await.unwrap();
    }
    drop(first);
    let second = manager(&fake);
    second.leave("a", &id(0), &Secrets::default(), std::future::pending()).await.unwrap();
    let steps = lock(&fake.world).steps.clone();
    let unpublish = |user: &str| Step::Unpublish(user.to_owned());
    assert_eq!(steps.last(), Some(&unpublish("a")));
    assert!(!steps.contains(&Step::Unstage));
    second.leave("b", &id(0), &Secrets::default(), std::future::pending()).await.unwrap();
    assert!(lock(&fake.world).steps.ends_with(&[unpublish("b"), Step::Unstage, Step::Detach]));
    assert_eq!(lock(&second.volumes).len(), 0);
}

#[tokio::test]
async fn f7_what_was_lost_meanwhile_is_done_again_and_what_is_there_is_not() {
    let fake = Arc::new(Fake::default());
    manager(&fake).join(join_of("a", id(0)), std::future::pending()).await.unwrap();
    let calls = lock(&fake.world).calls;
    let again = manager(&fake);
    again.join(join_of("a", id(0)), std::future::pending()).await.unwrap();
    assert_eq!(lock(&fake.world).calls, calls, "it is there");
    lock(&fake.world).nodes.get_mut(&id(0)).unwrap().published.clear();
    again.join(join_of("a", id(0)), std::future::pending()).await.unwrap();
    assert_eq!(lock(&fake.world).steps[calls..], [Step::Stage, Step::Publish("a".to_owned())]);
    // What cannot be done again is not taken away either.
    lock(&fake.world).nodes.get_mut(&id(0)).unwrap().published.clear();
    let next = lock(&fake.world).calls + 1;
    lock(&fake.world).faults.insert(next, Fault::Fails);
    assert!(again.join(join_of("a", id(0)), std::future::pending()).await.is_err());
    assert_eq!(again.users().unwrap()[&id(0)], ["a"]);
    assert!(!lock(&fake.world).steps.iter().any(|step| matches!(step, Step::Unpublish(_) | Step::Unstage)));
    again.join(join_of("a", id(0)), std::future::pending()).await.unwrap();
    assert!(lock(&fake.world).nodes[&id(0)].published.contains("a"));
}

#[tokio::test]
async fn f7_what_nobody_undoes_is_undone_with_the_secrets_of_its_volume() {
    let fake = Arc::new(Fake::default());
    let manager = manager(&fake);
    manager.join(join_of("a", id(0)), std::future::pending()).await.unwrap();
    let secrets = |of: &VolumeId| Secrets([("token".to_owned(), of.id.clone())].into());
    assert_eq!(manager.settle(&|_| false, &secrets).await.len(), 0);
    let world = lock(&fake.world);
    assert_eq!((world.steps.last(), &world.secrets), (Some(&Step::Detach), &secrets(&id(0))));
}

#[tokio::test]
async fn f7_a_user_whose_step_fails_keeps_no_other_one_from_leaving() {
    let fake = Arc::new(Fake::default());
    let manager = manager(&fake);
    for user in ["a", "b", "c"] {
        manager.join(join_of(user, id(0)), std::future::pending()).await.unwrap();
    }
    let next = lock(&fake.world).calls + 1;
    lock(&fake.world).faults.insert(next, Fault::Fails);
    let error = manager.settle(&|user| user == "c", &|_| Secrets::default()).await.remove(0);
    assert!(error.to_string().contains("fails"), "{error}");
    assert_eq!(manager.users().unwrap()[&id(0)], ["a", "c"]);
    lock(&fake.world).faults.insert(next + 2, Fault::Fails);
    assert_eq!(manager.settle(&|_| false, &|_| Secrets::default()).await.len(), 1);
    assert_eq!(manager.users().unwrap()[&id(0)], ["a"], "and the volume stays where it is");
    assert!(!lock(&fake.world).steps.contains(&Step::Unstage));
    assert_eq!(manager.settle(&|_| false, &|_| Secrets::default()).await.len(), 0);
    let unpublish = |user: &str| Step::Unpublish(user.to_owned());
    let last = [unpublish("b"), unpublish("c"), unpublish("a"), Step::Unstage, Step::Detach];
    assert!(lock(&fake.world).steps.ends_with(&last));
    assert!(lock(&fake.world).records.is_empty());
}

#[tokio::test]
async fn f7_the_last_user_tries_again_what_of_its_volume_could_not_be_undone() {
    let fake = Arc::new(Fake::default());
    let (manager, volume, secrets) = (manager(&fake), id(0), Secrets::default());
    manager.join(join_of("a", id(0)), std::future::pending()).await.unwrap();
    let unstages = lock(&fake.world).calls + 2;
    lock(&fake.world).faults.insert(unstages, Fault::Fails);
    assert!(manager.leave("a", &volume, &secrets, std::future::pending()).await.is_err());
    assert_eq!(manager.users().unwrap()[&volume], ["a"]);
    manager.leave("a", &volume, &secrets, std::future::pending()).await.unwrap();
    assert!(lock(&fake.world).records.is_empty());
}
