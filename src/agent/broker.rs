//! Selects the next evaluation: by priority, then by age; none before its due time; blocked ones wait for the resource that was
//! missing.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Mutex;

use tokio::sync::Notify;

use super::clock::{nap, now};
use super::model::{EvalStatus, Evaluation, Nanos};
use super::schedule::{Change, unblocks};
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::sys::lock::lock;

/// The queues of evaluations. They hold ids; the content is in the state.
#[derive(Debug, Default)]
pub(super) struct Broker {
    queues: Mutex<Queues>,
    more: Notify,
}

#[derive(Debug, Default)]
struct Queues {
    /// Nothing is selected.
    paused: bool,
    /// The highest priority first, then the oldest.
    ready: BTreeMap<(Reverse<i64>, u64), String>,
    /// By due time.
    later: BTreeSet<(Nanos, i64, String)>,
    blocked: BTreeMap<String, Evaluation>,
    /// Index of the last change of each kind, because an evaluation that was decided earlier may have missed it.
    changes: Vec<(Change, u64)>,
    /// The queue that each evaluation is in.
    known: HashMap<String, Place>,
    /// Counter for the order in which evaluations became ready.
    came: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Ready(Reverse<i64>, u64),
    Later(Nanos, i64),
    Blocked,
}

impl Queues {
    fn remove(&mut self, id: &str) {
        match self.known.remove(id) {
            Some(Place::Ready(priority, came)) => _ = self.ready.remove(&(priority, came)),
            Some(Place::Later(when, priority)) => _ = self.later.remove(&(when, priority, id.to_owned())),
            Some(Place::Blocked) => _ = self.blocked.remove(id),
            None => {}
        }
    }

    fn make_ready(&mut self, id: String, priority: i64) {
        self.came += 1;
        let place = (Reverse(priority), self.came);
        self.known.insert(id.clone(), Place::Ready(place.0, place.1));
        self.ready.insert(place, id);
    }

    /// Moves evaluations that are due to the ready queue.
    fn advance(&mut self, now: Nanos) {
        while let Some((when, priority, id)) = self.later.pop_first() {
            if when > now {
                self.later.insert((when, priority, id));
                return;
            }
            self.known.remove(&id);
            self.make_ready(id, priority);
        }
    }
}

impl Broker {
    /// Empties all queues.
    pub(super) fn forget(&self) {
        let mut queues = lock(&self.queues);
        *queues = Queues { paused: queues.paused, ..Queues::default() };
    }

    /// Selects nothing until this is `false` again.
    pub(super) fn pause(&self, paused: bool) {
        lock(&self.queues).paused = paused;
        self.more.notify_one();
    }

    /// Queues an evaluation by its current record: an ended one is removed, any other is put into the queue for its status.
    pub(super) fn put(&self, eval: &Evaluation) {
        let mut queues = lock(&self.queues);
        queues.remove(&eval.id);
        match eval.status {
            EvalStatus::Pending if eval.wait_until_nanos > Nanos(0) => {
                queues.later.insert((eval.wait_until_nanos, eval.priority, eval.id.clone()));
                queues.known.insert(eval.id.clone(), Place::Later(eval.wait_until_nanos, eval.priority));
            }
            EvalStatus::Pending => queues.make_ready(eval.id.clone(), eval.priority),
            EvalStatus::Blocked => {
                let came = |(change, index): &(Change, u64)| *index > eval.modify_index && unblocks(eval, *change);
                if !queues.changes.iter().any(came) {
                    queues.blocked.insert(eval.id.clone(), eval.clone());
                    queues.known.insert(eval.id.clone(), Place::Blocked);
                    return;
                }
                queues.make_ready(eval.id.clone(), eval.priority);
            }
            _ => return,
        }
        drop(queues);
        self.more.notify_one();
    }

    /// A resource changed at this index: evaluations that may have waited for it are retried.
    pub(super) fn unblock(&self, change: Change, index: u64) {
        let mut queues = lock(&self.queues);
        match queues.changes.iter_mut().find(|(known, _)| *known == change) {
            Some((_, last)) => *last = index.max(*last),
            None => queues.changes.push((change, index)),
        }
        let woken: Vec<(String, i64)> = {
            let woken = queues.blocked.values().filter(|eval| unblocks(eval, change));
            woken.map(|eval| (eval.id.clone(), eval.priority)).collect()
        };
        if woken.is_empty() {
            return;
        }
        for (id, priority) in woken {
            queues.remove(&id);
            queues.make_ready(id, priority);
        }
        drop(queues);
        self.more.notify_one();
    }

    /// Queues an evaluation that could not be decided for a later retry.
    pub(super) fn again(&self, id: &str, when: Nanos) {
        let mut queues = lock(&self.queues);
        queues.remove(id);
        queues.later.insert((when, 0, id.to_owned()));
        queues.known.insert(id.to_owned(), Place::Later(when, 0));
        drop(queues);
        self.more.notify_one();
    }

    /// The next evaluation that is due. There must be only one caller, because jobs are decided one after the other.
    pub(super) async fn next(&self) -> String {
        loop {
            let due = {
                let mut queues = lock(&self.queues);
                if queues.paused {
                    None
                } else {
                    queues.advance(now());
                    if let Some((_, id)) = queues.ready.pop_first() {
                        queues.known.remove(&id);
                        return id;
                    }
                    queues.later.first().map(|(when, _, _)| nap(*when))
                }
            };
            let time = async {
                match due {
                    Some(due) => tokio::time::sleep(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.more.notified() => {}
                () = time => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::agent::model::{AllocMetric, Trigger};
    use crate::spec::JobType;

    fn eval(id: &str, priority: i64, status: EvalStatus) -> Evaluation {
        Evaluation {
            priority,
            status,
            ..super::super::core::evaluation(id.to_owned(), ("default", "web"), JobType::Service, Trigger::JobRegister)
        }
    }

    #[tokio::test]
    async fn priorities_come_first_and_then_age() {
        let broker = Broker::default();
        for (id, priority) in [("a", 50), ("b", 80), ("c", 50), ("d", 80)] {
            broker.put(&eval(id, priority, EvalStatus::Pending));
        }
        // An evaluation that is put again is in the queues once; an ended one is not in them.
        broker.put(&eval("d", 80, EvalStatus::Pending));
        broker.put(&eval("c", 50, EvalStatus::Canceled));
        let mut order = Vec::new();
        for _ in 0..3 {
            order.push(broker.next().await);
        }
        assert_eq!(order, ["b", "d", "a"]);
    }

    #[tokio::test]
    async fn a_paused_broker_keeps_what_it_gets() {
        let broker = Broker::default();
        broker.pause(true);
        broker.forget();
        broker.put(&eval("a", 50, EvalStatus::Pending));
        let next = broker.next();
        tokio::pin!(next);
        let early = tokio::time::timeout(Duration::from_millis(50), &mut next).await;
        assert!(early.is_err(), "{early:?}");
        broker.pause(false);
        assert_eq!(next.await, "a");
    }

    #[tokio::test]
    async fn one_that_waits_comes_at_its_time_and_not_before() {
        let broker = Broker::default();
        let until = Nanos::of(SystemTime::now()).plus(Duration::from_millis(80));
        broker.put(&Evaluation { wait_until_nanos: until, ..eval("later", 90, EvalStatus::Pending) });
        broker.put(&eval("now", 10, EvalStatus::Pending));
        assert_eq!(broker.next().await, "now");
        assert_eq!(broker.next().await, "later");
        assert!(Nanos::of(SystemTime::now()) >= until);
    }

    #[tokio::test]
    async fn a_blocked_one_waits_for_what_it_lacks() {
        let broker = Broker::default();
        let lacks = |what: &str| AllocMetric {
            nodes_evaluated: 1,
            nodes_exhausted: 1,
            dimension_exhausted: [(what.to_owned(), 1)].into(),
            ..AllocMetric::default()
        };
        let blocked = |id: &str, index| Evaluation {
            failed: [("web".to_owned(), lacks("memory"))].into(),
            modify_index: index,
            ..eval(id, 50, EvalStatus::Blocked)
        };
        broker.put(&blocked("a", 7));
        broker.unblock(Change::NodeEligible, 8);
        broker.put(&eval("other", 1, EvalStatus::Pending));
        assert_eq!(broker.next().await, "other", "another node would not help");
        let (id, ()) = tokio::join!(broker.next(), async { broker.unblock(Change::AllocEnded, 9) });
        assert_eq!(id, "a");
        // Decided before the memory was freed, and put only now.
        broker.put(&blocked("b", 8));
        assert_eq!(broker.next().await, "b");
        broker.put(&blocked("c", 10));
        broker.put(&eval("last", 1, EvalStatus::Pending));
        assert_eq!(broker.next().await, "last");
    }
}
