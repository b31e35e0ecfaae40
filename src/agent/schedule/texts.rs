//! The words that the command line shows of decisions; scripts look for them.

/// Of an allocation that is stopped: no group or number of the job has it.
pub const NOT_NEEDED: &str = "alloc not needed due to job update";
/// A new version takes its place.
pub const UPDATED: &str = "alloc is being updated due to job update";
/// The new version is the same process.
pub const IN_PLACE: &str = "alloc updating in-place";
/// It is moved, as somebody asked for.
pub const MIGRATED: &str = "alloc is being migrated";
/// It failed and was replaced: Nomad has no words for that.
pub const RESCHEDULED: &str = "";
/// What it ran on is gone.
pub const LOST: &str = "alloc is lost since its node is down";
/// An allocation of a system job on a node that is drained.
pub const TAINTED: &str = "alloc not needed as node is tainted";

/// Of an evaluation that waits for what was missing.
pub const BLOCKED: &str = "created to place remaining allocations";
/// Of one that waits until a failed allocation may be replaced.
pub const DELAYED: &str = "created for delayed rescheduling";

/// Of a deployment that goes on.
pub const RUNNING: &str = "Deployment is running";
/// Somebody has to promote it.
pub const NEEDS_PROMOTION: &str = "Deployment is running but requires manual promotion";
/// It promotes itself.
pub const AUTO_PROMOTION: &str = "Deployment is running pending automatic promotion";
/// Somebody paused it.
pub const PAUSED: &str = "Deployment is paused";
/// All is well.
pub const SUCCESSFUL: &str = "Deployment completed successfully";
/// The job was stopped.
pub const STOPPED_JOB: &str = "Cancelled because job is stopped";
/// The job has a newer version.
pub const NEWER_JOB: &str = "Cancelled due to newer version of job";
/// An allocation is unhealthy, and is not replaced, or no progress is waited for.
pub const FAILED_ALLOCS: &str = "Failed due to unhealthy allocations";
/// None became healthy in time.
pub const NO_PROGRESS: &str = "Failed due to progress deadline";
/// Somebody said so.
pub const FAILED_BY_USER: &str = "Deployment marked as failed";
