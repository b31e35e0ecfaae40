//! Commands for the node.

use super::{CommandError, Commands, Drain, NodeChanged};
use crate::agent::core::{Core, now};
use crate::agent::gc;
use crate::agent::model::{DrainStatus, DrainStrategy, Eligibility, Evaluation, JobStatus, Node, Trigger};
use crate::agent::node::{event, note_drain};
use crate::agent::schedule::{self, drain_strategy};
use crate::agent::state::{Change, View};
use crate::agent::versions::put_eval;
use crate::spec::JobType;
use crate::spec::collections::BTreeMap;

/// Limit of metadata changed over the API, in bytes.
const MAX_META: usize = 64 << 10;

/// The node, whose record exists before requests are accepted.
fn node(view: &View) -> Result<Node, CommandError> {
    view.node()?.ok_or_else(|| CommandError::NotFound("node not found".to_owned()))
}

/// Creates an evaluation for each system job, which runs wherever it can, and with `all` for each job that has allocations; a
/// sysbatch job runs where it could when somebody registered it.
pub(crate) fn evaluate(core: &Core, change: &mut Change<'_>, all: bool) -> Result<Vec<Evaluation>, CommandError> {
    let mut wanted = Vec::new();
    for job in change.jobs(None, "") {
        let job = job?;
        let kind = core.jobs.of(&job).map_or(JobType::Service, |job| job.kind);
        let is_here = all && kind != JobType::Sysbatch && job.status == JobStatus::Running;
        if !job.stop && (is_here || schedule::is_evaluated(kind, schedule::Change::NodeChanged)) {
            wanted.push(job);
        }
    }
    let eval = |job| Ok(put_eval(change, core.evaluation_of(&job, Trigger::NodeUpdate))?);
    wanted.into_iter().map(eval).collect()
}

impl Commands {
    /// Begins or ends a drain.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn drain(&self, given: Drain) -> Result<NodeChanged, CommandError> {
        let made = self.change(move |core, change| {
            let mut node = node(change)?;
            let had = node.drain_strategy.take().map(|drain| drain.started_at);
            let new = given.spec.map(|spec| drain_strategy(spec, now()));
            let (message, status) = match (&had, &new) {
                (None, Some(_)) => ("Node drain strategy set", DrainStatus::Draining),
                (Some(_), Some(_)) => ("Node drain strategy updated", DrainStatus::Draining),
                (_, None) => ("Node drain disabled", DrainStatus::Canceled),
            };
            let started_at = had.or(new.as_ref().map(|drain| drain.started_at));
            if new.is_some() {
                node.scheduling_eligibility = Eligibility::Ineligible;
            } else if given.mark_eligible {
                node.scheduling_eligibility = Eligibility::Eligible;
            }
            if let Some(started_at) = started_at {
                node.drain_strategy = new.map(|drain| DrainStrategy { started_at, ..drain });
                note_drain(&mut node, started_at, status, &given.meta, &given.accessor);
                event(&mut node, "Drain", message, given.meta);
            }
            let is_eligible = node.scheduling_eligibility == Eligibility::Eligible;
            change.put_node(node)?;
            if is_eligible { evaluate(core, change, false) } else { Ok(Vec::new()) }
        });
        let (index, evals) = made.await?;
        self.core.drain.notify_one();
        Ok(self.changed(index, &evals))
    }

    /// Sets whether allocations may be placed.
    ///
    /// # Errors
    /// [`CommandError`]: a node that is drained cannot be eligible.
    pub async fn eligibility(&self, eligibility: Eligibility) -> Result<NodeChanged, CommandError> {
        let made = self.change(move |core, change| {
            let mut node = node(change)?;
            if node.drain_strategy.is_some() && eligibility == Eligibility::Eligible {
                let why = "can not set node's scheduling eligibility to eligible while it is draining";
                return Err(CommandError::Invalid(why.to_owned()));
            }
            if node.scheduling_eligibility == eligibility {
                return Ok(Vec::new());
            }
            node.scheduling_eligibility = eligibility;
            let message = match eligibility {
                Eligibility::Eligible => "Node marked as eligible for scheduling",
                Eligibility::Ineligible => "Node marked as ineligible for scheduling",
            };
            event(&mut node, "Cluster", message, BTreeMap::new());
            change.put_node(node)?;
            if eligibility == Eligibility::Eligible { evaluate(core, change, false) } else { Ok(Vec::new()) }
        });
        let (index, evals) = made.await?;
        Ok(self.changed(index, &evals))
    }

    /// Changes the node's metadata; `None` removes a key, also one from the configuration. Returns the index and the changed
    /// node.
    ///
    /// # Errors
    /// [`CommandError::Invalid`]: nothing to change, a key without a name, more than 64 KiB.
    pub async fn metadata(&self, changes: Vec<(String, Option<String>)>) -> Result<(u64, Node), CommandError> {
        let refuse = |why: &str| Err(CommandError::Invalid(why.to_owned()));
        if changes.is_empty() {
            return refuse("missing required Meta object");
        }
        if changes.iter().any(|(key, _)| key.is_empty()) {
            return refuse("metadata keys must not be empty");
        }
        let made = self.change(move |core, change| {
            let mut node = node(change)?;
            let before = node.meta.clone();
            node.dynamic_meta.extend(changes);
            node.lay_meta();
            let bytes = |(key, value): (&String, &Option<String>)| key.len() + value.as_ref().map_or(0, String::len);
            if node.dynamic_meta.iter().map(bytes).sum::<usize>() > MAX_META {
                return Err(CommandError::Invalid(format!("the metadata has more than {MAX_META} bytes")));
            }
            change.put_node(node.clone())?;
            // System jobs may fit here now.
            let evals = if node.meta == before { Vec::new() } else { evaluate(core, change, false)? };
            Ok((node, evals))
        });
        let (index, (node, evals)) = made.await?;
        for eval in &evals {
            self.decide(eval);
        }
        self.core.broker.unblock(schedule::Change::NodeChanged, index);
        Ok((index, node))
    }

    /// Creates evaluations for all jobs of the node.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn evaluate_node(&self) -> Result<NodeChanged, CommandError> {
        let (index, evals) = self.change(|core, change| evaluate(core, change, true)).await?;
        Ok(self.changed(index, &evals))
    }

    /// Always refused: the node is this agent, which would register it again.
    ///
    /// # Errors
    /// Always.
    #[expect(clippy::unused_self, reason = "a command like the others, which is refused")]
    pub fn purge_node(&self) -> Result<NodeChanged, CommandError> {
        let why = "the only node is this agent itself: stop the agent and remove its data directory instead";
        Err(CommandError::Invalid(why.to_owned()))
    }

    /// Forgets everything that has ended.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn gc(&self) -> Result<(), CommandError> {
        Ok(gc::collect(&self.core, true).await?)
    }

    fn changed(&self, index: u64, evals: &[Evaluation]) -> NodeChanged {
        for eval in evals {
            self.decide(eval);
        }
        self.core.broker.unblock(schedule::Change::NodeEligible, index);
        NodeChanged {
            eval_ids: evals.iter().map(|eval| eval.id.clone()).collect(),
            eval_create_index: if evals.is_empty() { 0 } else { index },
            node_modify_index: index,
            index,
        }
    }
}
