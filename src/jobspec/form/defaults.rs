//! What a job has where nothing was given: the defaults of Nomad's command line and API client, as the real ones show them.

use serde_json::{Map, Value as Json};

use super::types::{self, Kind, Type};

use crate::spec::json::json;

type Object = Map<String, Json>;

const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

/// Fields of a type with their defaults, as far as they depend on nothing.
fn fixed(name: &str) -> Option<Json> {
    Some(match name {
        "Job" => json!({
            "Region": "global", "Namespace": "default", "Type": "service", "Priority": 50, "AllAtOnce": false, "NodePool": "",
            "Stop": false, "ParentID": "", "ConsulNamespace": "", "VaultNamespace": "", "NomadTokenID": "", "Status": "",
            "StatusDescription": "", "Stable": false, "Version": 0, "CreateIndex": 0, "ModifyIndex": 0, "JobModifyIndex": 0,
        }),
        "Affinity" | "Spread" => json!({ "Weight": 50 }),
        "TaskGroup" => json!({ "EphemeralDisk": {} }),
        "EphemeralDisk" => json!({ "Sticky": false, "Migrate": false, "SizeMB": 300 }),
        "Task" => json!({ "KillTimeout": 5 * SECOND, "LogConfig": {}, "Resources": {} }),
        "SidecarTask" => json!({ "KillTimeout": 5 * SECOND, "LogConfig": {}, "Resources": {}, "ShutdownDelay": 0 }),
        "LogConfig" => json!({ "MaxFiles": 10, "MaxFileSizeMB": 10, "Disabled": false }),
        "Resources" => json!({ "Cores": 0, "MemoryMB": 300 }),
        "RequestedDevice" => json!({ "Count": 1 }),
        "TaskArtifact" => json!({ "GetterSource": "", "GetterMode": "any", "GetterInsecure": false }),
        "Vault" => json!({
            "Env": true, "DisableFile": false, "Namespace": "", "Cluster": "default", "ChangeMode": "restart",
            "ChangeSignal": "SIGHUP", "AllowTokenExpiration": false,
        }),
        "Consul" => json!({ "Cluster": "default" }),
        "Template" => json!({
            "SourcePath": "", "DestPath": "", "EmbeddedTmpl": "", "ChangeMode": "restart", "ChangeSignal": "", "Once": false,
            "Splay": 5 * SECOND, "Perms": "0644", "LeftDelim": "{{", "RightDelim": "}}", "Envvars": false, "VaultGrace": 0,
            "ErrMissingKey": false,
        }),
        "ChangeScript" => {
            json!({ "Command": "", "Args": [], "Timeout": 5 * SECOND, "FailOnError": false, "RunOnFirstRender": false })
        }
        "VolumeMount" => json!({ "PropagationMode": "private", "ReadOnly": false, "SELinuxLabel": "" }),
        "TaskCSIPluginConfig" => {
            json!({ "MountDir": "/csi", "StagePublishBaseDir": "/local/csi", "HealthTimeout": 30 * SECOND })
        }
        "Service" => {
            json!({ "AddressMode": "auto", "OnUpdate": "require_healthy", "Provider": "consul", "Cluster": "default" })
        }
        "CheckRestart" => json!({ "Grace": SECOND }),
        "ServiceWeights" => json!({ "Passing": 1, "Warning": 1 }),
        "ConsulGatewayProxy" => json!({ "ConnectTimeout": 5 * SECOND }),
        "ConsulIngressListener" => json!({ "Protocol": "tcp" }),
        "DisconnectStrategy" => json!({ "Replace": true, "Reconcile": "best_score" }),
        "Multiregion" => json!({ "Strategy": {}, "Regions": [] }),
        "MultiregionStrategy" => json!({ "MaxParallel": 0, "OnFailure": "" }),
        "MultiregionRegion" => json!({ "Count": 1, "Datacenters": [], "Meta": {} }),
        "PeriodicConfig" => json!({
            "Enabled": true, "Spec": "", "Specs": [], "SpecType": "cron", "ProhibitOverlap": false, "TimeZone": "UTC",
        }),
        "UpdateStrategy" => json!({
            "Stagger": 30 * SECOND, "MaxParallel": 1, "HealthCheck": "checks", "MinHealthyTime": 10 * SECOND,
            "HealthyDeadline": 5 * MINUTE, "ProgressDeadline": 10 * MINUTE, "Canary": 0, "AutoRevert": false,
            "AutoPromote": false,
        }),
        "MigrateStrategy" => json!({
            "MaxParallel": 1, "HealthCheck": "checks", "MinHealthyTime": 10 * SECOND, "HealthyDeadline": 5 * MINUTE,
        }),
        _ => return None,
    })
}

/// Maps that are null where nothing is in them.
const EMPTY_IS_NULL: [(&str, &[&str]); 3] = [
    ("TaskArtifact", &["GetterOptions", "GetterHeaders"]),
    ("Service", &["Meta", "CanaryMeta", "TaggedAddresses"]),
    ("SidecarTask", &["Meta", "Env", "Config"]),
];

/// Types whose defaults depend on what is around them; they are filled where that is known.
const BY_CONTEXT: [&str; 5] =
    ["UpdateStrategy", "MigrateStrategy", "RestartPolicy", "ReschedulePolicy", "CheckRestart"];

fn restart(kind: &str) -> Json {
    let (attempts, interval) = if matches!(kind, "batch" | "sysbatch") { (3, 24 * HOUR) } else { (2, 30 * MINUTE) };
    json!({
        "Interval": interval, "Attempts": attempts, "Delay": 15 * SECOND, "Mode": "fail", "RenderTemplates": false,
    })
}

fn reschedule(kind: &str) -> Option<Json> {
    match kind {
        "service" => Some(json!({
            "Attempts": 0, "Interval": 0, "Delay": 30 * SECOND, "DelayFunction": "exponential", "MaxDelay": HOUR,
            "Unlimited": true,
        })),
        "batch" => Some(json!({
            "Attempts": 1, "Interval": 24 * HOUR, "Delay": 5 * SECOND, "DelayFunction": "constant", "MaxDelay": 0,
            "Unlimited": false,
        })),
        "system" | "sysbatch" => None,
        _ => Some(json!({
            "Attempts": 0, "Interval": 0, "Delay": 0, "DelayFunction": "", "MaxDelay": 0, "Unlimited": false,
        })),
    }
}

/// Fills a job as the API's client does before it sends it.
pub(super) fn fill(job: &mut Object) {
    if job["Name"].is_null() {
        job.insert("Name".to_owned(), job["ID"].clone());
    }
    let name = text(job, "Name");
    fill_fixed(job, types::of("Job"));
    let kind = text(job, "Type");
    if !job["Update"].is_null() || matches!(kind.as_str(), "service" | "system") {
        let mut update = std::mem::take(&mut job["Update"]);
        over(&mut update, "UpdateStrategy", fixed("UpdateStrategy"));
        job["Update"] = update;
    }
    let around = Around {
        job: &name,
        kind: &kind,
        // What a server answers of a job that has none.
        update: if is_zero_throughout(&job["Update"]) { Json::Null } else { job["Update"].clone() },
        migrate: job["Migrate"].clone(),
        reschedule: job["Reschedule"].clone(),
    };
    for group in job["TaskGroups"].as_array_mut().into_iter().flatten().filter_map(Json::as_object_mut) {
        around.group(group);
    }
    for_each(job, types::of("Job"), &mut fill_fixed);
}

/// What groups have from their job.
struct Around<'a> {
    /// The job's name.
    job: &'a str,
    kind: &'a str,
    update: Json,
    migrate: Json,
    reschedule: Json,
}

impl Around<'_> {
    fn group(&self, group: &mut Object) {
        let name = text(group, "Name");
        count(group);
        let merged = |group: &mut Object, field: &str, of: &str, job: &Json, default: Option<Json>| {
            let mut own = std::mem::take(&mut group[field]);
            if !own.is_null() || !job.is_null() || default.is_some() {
                over(&mut own, of, (!job.is_null()).then(|| job.clone()));
                over(&mut own, of, default);
            }
            group[field] = own;
        };
        let is_service = self.kind == "service";
        let update = if self.update.is_null() && group["Update"].is_null() { None } else { fixed("UpdateStrategy") };
        merged(group, "Update", "UpdateStrategy", &self.update, update);
        let migrate = if is_service || !group["Migrate"].is_null() || !self.migrate.is_null() {
            fixed("MigrateStrategy")
        } else {
            None
        };
        merged(group, "Migrate", "MigrateStrategy", &self.migrate, migrate);
        merged(group, "ReschedulePolicy", "ReschedulePolicy", &self.reschedule, reschedule(self.kind));
        merged(group, "RestartPolicy", "RestartPolicy", &Json::Null, Some(restart(self.kind)));
        let policy = group["RestartPolicy"].clone();
        services(group, &format!("{}-{name}", self.job));
        for task in group["Tasks"].as_array_mut().into_iter().flatten().filter_map(Json::as_object_mut) {
            let own = &mut task["RestartPolicy"];
            over(own, "RestartPolicy", Some(policy.clone()));
            let prefix = format!("{}-{name}-{}", self.job, text(task, "Name"));
            services(task, &prefix);
        }
    }
}

/// How many there are, where a scaling policy may say the least.
fn count(group: &mut Object) {
    let least = group["Scaling"].get("Min").cloned().unwrap_or(Json::Null);
    if group["Count"].is_null() {
        group["Count"] = if least.is_null() { Json::from(1) } else { least.clone() };
    }
    let count = group["Count"].clone();
    if let Some(policy) = group["Scaling"].as_object_mut() {
        for (name, value) in [("Min", count), ("Enabled", Json::from(true))] {
            if policy[name].is_null() {
                policy.insert(name.to_owned(), value);
            }
        }
    }
}

/// Names of services, and what their checks have from them.
fn services(owner: &mut Object, name: &str) {
    for service in owner["Services"].as_array_mut().into_iter().flatten().filter_map(Json::as_object_mut) {
        if text(service, "Name").is_empty() {
            service.insert("Name".to_owned(), Json::from(name));
        }
        let grace = fixed("CheckRestart");
        let restart = service["CheckRestart"].clone();
        let mut own = restart.clone();
        if !own.is_null() {
            over(&mut own, "CheckRestart", grace.clone());
        }
        service["CheckRestart"] = own;
        let on_update = match text(service, "OnUpdate").as_str() {
            "" => "require_healthy".to_owned(),
            given => given.to_owned(),
        };
        for check in service["Checks"].as_array_mut().into_iter().flatten().filter_map(Json::as_object_mut) {
            let mut own = std::mem::take(&mut check["CheckRestart"]);
            if !own.is_null() || !restart.is_null() {
                over(&mut own, "CheckRestart", (!restart.is_null()).then(|| restart.clone()));
                over(&mut own, "CheckRestart", grace.clone());
            }
            check["CheckRestart"] = own;
            if text(check, "OnUpdate").is_empty() {
                check.insert("OnUpdate".to_owned(), Json::from(on_update.as_str()));
            }
            for times in ["SuccessBeforePassing", "FailuresBeforeCritical", "FailuresBeforeWarning"] {
                if check[times].as_i64().is_some_and(|given| given < 0) {
                    check[times] = Json::from(0);
                }
            }
        }
    }
}

/// Fills what an object does not have from another one.
fn over(own: &mut Json, of: &str, below: Option<Json>) {
    let Some(Json::Object(below)) = below else { return };
    if own.is_null() {
        *own = Json::Object(types::of(of).empty());
    }
    let Some(own) = own.as_object_mut() else { return };
    for (name, value) in below {
        let Some(field) = types::of(of).field(&name) else { continue };
        if own.get(&name).is_none_or(|v| v.is_null() || !field.nullable && is_zero(v)) {
            own.insert(name, value);
        }
    }
}

fn fill_fixed(object: &mut Object, of: &'static Type) {
    for (_, fields) in EMPTY_IS_NULL.iter().filter(|(name, _)| *name == of.name) {
        for field in *fields {
            if object.get(*field).and_then(Json::as_object).is_some_and(Map::is_empty) {
                object.insert((*field).to_owned(), Json::Null);
            }
        }
    }
    if !BY_CONTEXT.contains(&of.name)
        && let Some(Json::Object(defaults)) = fixed(of.name)
    {
        for (name, default) in defaults {
            let Some(field) = of.field(&name) else { continue };
            if !object.get(field.name).is_none_or(|v| v.is_null() || !field.nullable && is_zero(v)) {
                continue;
            }
            let default = match (field.kind, default) {
                (Kind::One(inner), Json::Object(_)) => Json::Object(types::of(inner).empty()),
                (_, default) => default,
            };
            object.insert(name, default);
        }
    }
    match of.name {
        "TaskArtifact" if object["RelativeDest"].is_null() => {
            let source = text(object, "GetterSource");
            let file = source.rsplit('/').next().filter(|_| text(object, "GetterMode") == "file").unwrap_or_default();
            object["RelativeDest"] = Json::from(format!("local/{file}"));
        }
        "PeriodicConfig" if text(object, "TimeZone").is_empty() => object["TimeZone"] = Json::from("UTC"),
        // Cores say how much CPU there is.
        "Resources" if object["CPU"].is_null() => {
            let cores = object["Cores"].as_i64().unwrap_or_default();
            object["CPU"] = Json::from(if cores > 0 { 0 } else { 100 });
        }
        "Template" => {
            let signal = text(object, "ChangeSignal").to_uppercase();
            let signal =
                if signal.is_empty() && text(object, "ChangeMode") == "signal" { "SIGHUP".to_owned() } else { signal };
            object["ChangeSignal"] = Json::from(signal);
        }
        _ => {}
    }
}

/// Calls `visit` with every object of the job below this one, outer ones first.
pub(super) fn for_each(object: &mut Object, of: &'static Type, visit: &mut impl FnMut(&mut Object, &'static Type)) {
    for field in &of.fields {
        let Some(value) = object.get_mut(field.name) else { continue };
        let (inner, values): (_, Vec<&mut Json>) = match (field.kind, value) {
            (Kind::One(inner), value) => (inner, vec![value]),
            (Kind::Many(inner), Json::Array(items)) => (inner, items.iter_mut().collect()),
            (Kind::Named(inner), Json::Object(members)) => (inner, members.values_mut().collect()),
            _ => continue,
        };
        let inner = types::of(inner);
        for value in values.into_iter().filter_map(Json::as_object_mut) {
            visit(value, inner);
            for_each(value, inner, visit);
        }
    }
}

fn is_zero(value: &Json) -> bool {
    value.as_str() == Some("") || value.as_i64() == Some(0) || value.as_bool() == Some(false)
}

fn is_zero_throughout(value: &Json) -> bool {
    value.as_object().is_some_and(|members| members.values().all(is_zero))
}

fn text(object: &Object, field: &str) -> String {
    object.get(field).and_then(Json::as_str).unwrap_or_default().to_owned()
}
