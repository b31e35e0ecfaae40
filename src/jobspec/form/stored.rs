//! What a server keeps of a job that was submitted: what it adds to the client's defaults, and what it takes away.
//!
//! Not added are constraints for what a job needs by implication (Consul's or a plugin's version), and tasks and ports of a service
//! mesh: one machine either has these things or says itself that it does not.

use serde_json::{Map, Value as Json};

use super::defaults::for_each;
use super::types::{self, Type};

use crate::spec::json::json;

type Object = Map<String, Json>;

/// What services of a group have instead of a task's name.
const OF_GROUP: &str = "group";
/// Whom the token of the default identity is for.
const AUDIENCE: &str = "nomadproject.io";

/// Fills a job that has the client's defaults; `now` is in nanoseconds since 1970.
pub(super) fn fill(job: &mut Object, now: i64) {
    set_if(job, "Datacenters", is_nothing, json!(["*"]));
    set_if(job, "NodePool", is_nothing, json!("default"));
    set_if(job, "DispatchIdempotencyToken", is_nothing, json!(""));
    set_if(job, "Priority", |priority| *priority == 0, json!(50));
    job.insert("SubmitTime".to_owned(), Json::from(now));
    // What groups have by now.
    for field in ["Migrate", "Reschedule"] {
        job.insert(field.to_owned(), Json::Null);
    }
    // Of the job's own block the pace counts, for the kinds of jobs that are updated step by step.
    let pace = |field: &str| job["Update"].get(field).and_then(Json::as_i64).unwrap_or_default();
    let stepwise = matches!(job["Type"].as_str(), Some("service" | "system")) && pace("MaxParallel") > 0;
    let (parallel, stagger) = if stepwise { (pace("MaxParallel"), pace("Stagger")) } else { (0, 0) };
    let update = json!({
        "Stagger": stagger, "MaxParallel": parallel, "HealthCheck": "", "MinHealthyTime": 0, "HealthyDeadline": 0,
        "ProgressDeadline": 0, "Canary": 0, "AutoRevert": false, "AutoPromote": false,
    });
    job.insert("Update".to_owned(), update);
    no_empty_map(job, "Meta");
    let names = Names { namespace: text(job, "Namespace"), id: text(job, "ID"), job: text(job, "Name") };
    for group in job["TaskGroups"].as_array_mut().into_iter().flatten().filter_map(Json::as_object_mut) {
        names.group(group);
    }
    for_each(job, types::of("Job"), &mut each);
}

struct Names {
    namespace: String,
    id: String,
    /// The job's name.
    job: String,
}

impl Names {
    fn group(&self, group: &mut Object) {
        let name = text(group, "Name");
        set_if(group, "PreventRescheduleOnLost", Json::is_null, json!(false));
        self.target(&mut group["Scaling"], json!({ "Namespace": self.namespace, "Job": self.id, "Group": name }));
        self.services(group, &name, OF_GROUP);
        for task in group["Tasks"].as_array_mut().into_iter().flatten().filter_map(Json::as_object_mut) {
            let own = text(task, "Name");
            for policy in task["ScalingPolicies"].as_array_mut().into_iter().flatten() {
                let target = json!({ "Namespace": self.namespace, "Job": self.id, "Group": name, "Task": own });
                self.target(policy, target);
            }
            self.services(task, &name, &own);
            identities(task);
        }
    }

    fn target(&self, policy: &mut Json, target: Json) {
        if let Some(policy) = policy.as_object_mut() {
            policy.insert("Target".to_owned(), target);
            policy.insert("Namespace".to_owned(), Json::from(self.namespace.as_str()));
            set_if(policy, "Min", Json::is_null, json!(0));
        }
    }

    fn services(&self, owner: &mut Object, group: &str, task: &str) {
        let base = format!("{}-{group}-{task}", self.job);
        for service in owner["Services"].as_array_mut().into_iter().flatten().filter_map(Json::as_object_mut) {
            let mut name = text(service, "Name");
            for (word, value) in [("JOB", self.job.as_str()), ("TASKGROUP", group), ("TASK", task), ("BASE", &base)] {
                name = name.replace(&format!("${{{word}}}"), value);
            }
            service.insert("Namespace".to_owned(), Json::from(self.namespace.as_str()));
            // Its checks have it by now.
            service.insert("CheckRestart".to_owned(), Json::Null);
            if task != OF_GROUP {
                set_if(service, "TaskName", is_nothing, Json::from(task));
            }
            let of_task = service["TaskName"].clone();
            for check in service["Checks"].as_array_mut().into_iter().flatten().filter_map(Json::as_object_mut) {
                let called = format!("service: \"{name}\" check");
                set_if(check, "Name", is_nothing, Json::from(called));
                set_if(check, "TaskName", is_nothing, of_task.clone());
            }
            service.insert("Name".to_owned(), Json::from(name));
        }
    }
}

/// Each task has an identity for Nomad itself, whatever its file says.
fn identities(task: &mut Object) {
    let mut identity = match task["Identity"].take() {
        Json::Object(given) => given,
        _ => types::of("WorkloadIdentity").empty(),
    };
    identity.insert("Name".to_owned(), Json::from("default"));
    identity.insert("Audience".to_owned(), json!([AUDIENCE]));
    task.insert("Identity".to_owned(), Json::Object(identity));
    if task["Identities"].as_array().is_some_and(Vec::is_empty) {
        task.insert("Identities".to_owned(), Json::Null);
    }
}

fn each(object: &mut Object, of: &'static Type) {
    match of.name {
        "Resources" => {
            for field in ["Cores", "MemoryMaxMB", "SecretsMB", "IOPS"] {
                set_if(object, field, Json::is_null, json!(0));
            }
            // Disks are the group's.
            object.insert("DiskMB".to_owned(), json!(0));
        }
        "Port" => set_if(object, "HostNetwork", is_nothing, json!("default")),
        "ScalingPolicy" => {
            set_if(object, "Enabled", Json::is_null, json!(true));
            set_if(object, "Type", is_nothing, json!("horizontal"));
        }
        "ParameterizedJobConfig" => set_if(object, "Payload", is_nothing, json!("optional")),
        "DisconnectStrategy" => set_if(object, "LostAfter", Json::is_null, json!(0)),
        "TaskGroup" => {
            no_empty_map(object, "Meta");
            // The `disconnect` block has taken their place; a server takes no notice of them.
            for old in ["MaxClientDisconnect", "StopAfterClientDisconnect"] {
                object.insert(old.to_owned(), Json::Null);
            }
        }
        "Task" => {
            no_empty_map(object, "Meta");
            no_empty_map(object, "Env");
            if !object.contains_key("CSIPluginConfig") {
                object.insert("CSIPluginConfig".to_owned(), Json::Null);
            }
        }
        _ => {}
    }
}

fn set_if(object: &mut Object, field: &str, when: impl Fn(&Json) -> bool, value: Json) {
    if object.get(field).is_none_or(when) {
        object.insert(field.to_owned(), value);
    }
}

fn no_empty_map(object: &mut Object, field: &str) {
    if object.get(field).and_then(Json::as_object).is_some_and(Map::is_empty) {
        object.insert(field.to_owned(), Json::Null);
    }
}

fn is_nothing(value: &Json) -> bool {
    value.is_null() || value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty)
}

fn text(object: &Object, field: &str) -> String {
    object.get(field).and_then(Json::as_str).unwrap_or_default().to_owned()
}
