//! How the node suited a group, and resources.

use serde_json::{Map, Value};

use super::{kept, lay, null_if_empty};
use crate::agent::model::{AllocMetric, AllocatedTask};
use crate::spec::json::json;

/// Why a group was placed as it was on the node, or could not be.
pub(in super::super) fn metric(metric: &AllocMetric, node: &str) -> Value {
    let mut value = kept(metric);
    for key in ["ConstraintFiltered", "DimensionExhausted"] {
        if let Some(map) = value.get_mut(key) {
            *map = null_if_empty(map.take());
        }
    }
    let exhausted: Map<String, Value> = metric
        .resources_exhausted
        .iter()
        .map(|(name, task)| (name.clone(), resources(task, 0, &Value::Null)))
        .collect();
    let scores = metric.scores.as_ref().map(|scores| {
        // The mean of the scores that are set.
        let told = [scores.job_anti_affinity, scores.node_affinity, scores.node_reschedule_penalty];
        let told = told.iter().filter(|score| **score < 0.0);
        let score = told.clone().fold(scores.binpack, |sum, score| sum + score) / (1 + told.count()) as f64;
        json!([{"NodeID": node, "NormScore": score, "Scores": kept(scores)}])
    });
    let over = json!({
        "NodesInPool": 1,
        "NodePool": "default",
        "AllocationTime": 0,
        "ClassFiltered": null,
        "ClassExhausted": null,
        "QuotaExhausted": null,
        "ResourcesExhausted": null_if_empty(exhausted.into()),
        "ScoreMetaData": scores,
        "Scores": null,
    });
    lay(&mut value, over);
    Value::Object(value)
}

/// Resources for clients that are older than `AllocatedResources`.
pub(super) fn resources(task: &AllocatedTask, disk_mb: u64, networks: &Value) -> Value {
    json!({
        "CPU": task.cpu_shares,
        "Cores": task.reserved_cores.len(),
        "MemoryMB": task.memory_mb,
        "MemoryMaxMB": task.memory_max_mb,
        "DiskMB": disk_mb,
        "IOPS": 0,
        "Networks": networks,
        "Devices": null,
        "NUMA": null,
        "SecretsMB": 0,
    })
}
