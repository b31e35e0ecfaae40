//! Decides: which allocations there are to be, and what becomes of deployments, drains, periodic and dispatched jobs. Pure: what a
//! decision depends on comes in, and what is decided goes out. Never does I/O, and asks neither clock nor chance.

mod blocked;
mod cron;
mod decision;
mod deploy;
pub mod dispatch;
mod drain;
mod feasible;
mod fit;
mod group;
mod input;
mod names;
pub mod periodic;
mod place;
mod ports;
mod reconcile;
mod reschedule;
mod sorted;
mod system;
pub mod texts;
mod versions;
mod zones;

#[cfg(test)]
mod differential;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod simulation;

pub use blocked::{Change, is_evaluated, unblocks};
pub(super) use deploy::health_step;
pub use deploy::{
    DeploymentInput, DeploymentStep, deployment_step, fail_deployment, pause_deployment, promote_deployment, set_health,
};
pub use drain::{DrainStep, drain_step, drain_strategy};
pub use feasible::{is_like, unmet_on};
pub use input::{CsiState, Input, Plan};
pub use names::name;
pub use ports::PortHistory;
pub use reconcile::{reconcile, running_text};
pub use reschedule::{Verdict, delay, failed_at, tracker, verdict};
pub use versions::{is_same, is_same_spec};
