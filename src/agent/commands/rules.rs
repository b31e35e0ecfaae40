//! Nomad's rules for a job, as far as they relate several values or depend on the job's type.

mod service;
mod task;
mod words;

use serde_json::{Map, Value};

use self::words::{items, nest, number, shown, tell, text, time};
use crate::agent::commands::error::listed;
use crate::agent::schedule::periodic;

const SECOND: u64 = 1_000_000_000;
/// Least values of a `reschedule` block, in nanoseconds.
const LEAST_DELAY: u64 = 5 * SECOND;
const LEAST_INTERVAL: u64 = 15 * SECOND;
/// Longest descriptions of a job and of a version, in bytes.
const LONGEST_DESCRIPTION: usize = 1000;

/// What Nomad refuses in a specification, in Nomad's words, beside what keeps it from being read as a job.
pub(super) fn check(spec: &Map<String, Value>) -> Vec<String> {
    let mut wrong = Vec::new();
    let is_empty = |field: &str| part(spec, field).as_str().is_none_or(str::is_empty);
    let kind = part(spec, "Type").as_str().unwrap_or_default();
    let (is_system, groups) = (kind == "system", items(part(spec, "TaskGroups")));
    let is_nowhere = items(part(spec, "Datacenters")).iter().any(|name| *name == "");
    let is_scaled = groups.iter().any(|group| !group["Scaling"].is_null());
    tell(
        &mut wrong,
        &[
            (is_empty("ID"), "Missing job ID"),
            (is_empty("Name"), "Missing job name"),
            (is_nowhere, "Job datacenter must be non-empty string"),
            (is_system && is_scaled, "Task groups with job type system do not support scaling blocks"),
            (!is_empty("Payload"), "job can't be submitted with a payload, only dispatched"),
        ],
    );
    preferences(&mut wrong, is_system, "affinity", items(part(spec, "Affinities")));
    preferences(&mut wrong, is_system, "spread", items(part(spec, "Spreads")));
    for (what, of) in [("UI", "UI"), ("Tagged version", "VersionTag")] {
        let length = text(part(spec, of), "Description").len();
        if length > LONGEST_DESCRIPTION {
            let most = LONGEST_DESCRIPTION;
            wrong.push(format!("{what} description must be under {most} characters, currently {length}"));
        }
    }
    for group in groups {
        nest(&mut wrong, &format!("Task group {}", text(group, "Name")), &of_group(group, kind));
    }
    let (clock, parameterized) = (part(spec, "Periodic"), part(spec, "ParameterizedJob"));
    for (what, is_there) in [("Periodic", clock["Enabled"] == true), ("Parameterized job", !parameterized.is_null())] {
        if is_there && !runs_to_completion(kind) {
            wrong.push(format!("{what} can only be used with \"batch\" or \"sysbatch\" scheduler"));
        }
    }
    of_clock(clock, &mut wrong);
    let optional = items(&parameterized["MetaOptional"]);
    let both = items(&parameterized["MetaRequired"]).iter().filter(|key| optional.contains(key));
    let both: Vec<&str> = both.filter_map(Value::as_str).collect();
    if !both.is_empty() {
        wrong.push(format!(
            "Required and optional meta keys should be disjoint. Following keys exist in both: [{}]",
            both.join(" ")
        ));
    }
    wrong
}

/// What Nomad warns of, in Nomad's words.
pub(super) fn warnings(spec: &Map<String, Value>) -> Vec<String> {
    let mut all = Vec::new();
    let groups = items(part(spec, "TaskGroups"));
    for group in groups {
        let (parallel, count) = (number(&group["Update"], "MaxParallel"), number(group, "Count"));
        if count > 1 && parallel > count {
            let why = format!(
                "Update max parallel count is greater than task group count ({parallel} > {count}). A destructive change \
                 would result in the simultaneous replacement of all allocations."
            );
            all.push(format!("Group {:?} has warnings: {}", text(group, "Name"), listed(&[why])));
        }
    }
    let updates = || groups.iter().map(|group| &group["Update"]).filter(|update| !update.is_null());
    let promotes = |update: &Value| update["AutoPromote"] == true;
    let is_mixed = updates().any(promotes) && !updates().all(|update| update["Canary"] == 0 || promotes(update));
    let has_cron = !text(part(spec, "Periodic"), "Spec").is_empty();
    tell(
        &mut all,
        &[
            (is_mixed, "auto_promote must be true for all groups to enable automatic promotion"),
            (has_cron, "cron is deprecated and may be removed in a future release. Use crons instead"),
        ],
    );
    all
}

/// A member of the job; null where there is none.
fn part<'a>(spec: &'a Map<String, Value>, field: &str) -> &'a Value {
    static NOTHING: Value = Value::Null;
    spec.get(field).unwrap_or(&NOTHING)
}

fn runs_to_completion(kind: &str) -> bool {
    matches!(kind, "batch" | "sysbatch")
}

/// The clock of a periodic job. One that is not enabled starts nothing, whatever it says.
fn of_clock(clock: &Value, wrong: &mut Vec<String>) {
    if clock["Enabled"] != true {
        return;
    }
    let (one, many, kind) = (text(clock, "Spec"), items(&clock["Specs"]), text(clock, "SpecType"));
    tell(
        wrong,
        &[
            (!one.is_empty() && !many.is_empty(), "Only cron or crons may be used"),
            (one.is_empty() && many.is_empty(), "Must specify a spec"),
        ],
    );
    if kind != "cron" {
        wrong.push(format!("Unknown periodic specification type {kind:?}"));
        return;
    }
    let specs = Some(one).filter(|one| !one.is_empty()).into_iter().chain(many.iter().filter_map(Value::as_str));
    wrong.extend(periodic::mistakes(specs, text(clock, "TimeZone")).iter().map(ToString::to_string));
}

fn of_group(group: &Value, kind: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let (update, migrate, policy) = (&group["Update"], &group["Migrate"], &group["ReschedulePolicy"]);
    let is_service = kind == "service";
    if !matches!(kind, "system" | "sysbatch") {
        of_reschedule(policy, &mut wrong);
    } else if !policy.is_null() {
        wrong.push("System or sysbatch jobs should not have a reschedule policy".to_owned());
    }
    if !update.is_null() {
        if !matches!(kind, "service" | "system") {
            wrong.push(format!("Job type {kind:?} does not allow update block"));
        }
        of_update(update, &mut wrong);
    }
    if !migrate.is_null() {
        if is_service {
            of_migrate(migrate, &mut wrong);
        } else {
            wrong.push(format!("Job type {kind:?} does not allow migrate block"));
        }
    }
    let (is_system, count) = (kind == "system", number(group, "Count"));
    preferences(&mut wrong, is_system, "affinity", items(&group["Affinities"]));
    preferences(&mut wrong, is_system, "spread", items(&group["Spreads"]));
    for (name, volume) in group["Volumes"].as_object().into_iter().flatten() {
        let errors = of_volume(volume, count);
        if !errors.is_empty() {
            wrong.push(format!("Task group volume validation for {name} failed: {}", listed(&errors)));
        }
    }
    nest(&mut wrong, "Task group service", &service::of_group(group));
    nest(&mut wrong, "Task group scaling policy", &of_scaling(&group["Scaling"], count));
    let progress = is_service.then(|| time(update, "ProgressDeadline"));
    for task in items(&group["Tasks"]) {
        let mut errors = Vec::new();
        task::check(task, progress, &mut errors);
        preferences(&mut errors, is_system, "affinity", items(&task["Affinities"]));
        service::of_task(task, &mut errors);
        nest(&mut wrong, &format!("Task {}", text(task, "Name")), &errors);
    }
    wrong
}

/// The affinities or spreads of a job, group or task.
fn preferences(wrong: &mut Vec<String>, is_system: bool, what: &str, blocks: &[Value]) {
    let is_affinity = what == "affinity";
    let (article, title) = if is_affinity { ("an", "Affinity") } else { ("a", "Spread") };
    let check: fn(&Value) -> Vec<String> = if is_affinity { of_affinity } else { of_spread };
    if is_system && !blocks.is_empty() {
        wrong.push(format!("System jobs may not have {article} {what} block"));
        return;
    }
    for (at, block) in blocks.iter().enumerate() {
        nest(wrong, &format!("{title} {}", at + 1), &check(block));
    }
}

fn of_affinity(affinity: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let (operand, has_value) = (text(affinity, "Operand"), !text(affinity, "RTarget").is_empty());
    match operand {
        // With one node it does not matter what these say.
        "regexp" | "version" | "semver" => {}
        "set_contains" | "set_contains_all" | "set_contains_any" => {
            tell(&mut wrong, &[(!has_value, "Set contains operators require an RTarget")]);
        }
        "=" | "==" | "is" | "!=" | "not" | "<" | "<=" | ">" | ">=" if has_value => {}
        "=" | "==" | "is" | "!=" | "not" | "<" | "<=" | ">" | ">=" => {
            wrong.push(format!("Operator {operand:?} requires an RTarget"));
        }
        _ => wrong.push(format!("Unknown affinity operator {operand:?}")),
    }
    let weight = number(affinity, "Weight");
    tell(
        &mut wrong,
        &[
            (text(affinity, "LTarget").is_empty(), "No LTarget provided but is required"),
            (weight == 0, "Affinity weight cannot be zero"),
            (!(-100..=100).contains(&weight), "Affinity weight must be within the range [-100,100]"),
        ],
    );
    wrong
}

fn of_spread(spread: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let is_weighed = (1..=100).contains(&number(spread, "Weight"));
    tell(
        &mut wrong,
        &[
            (text(spread, "Attribute").is_empty(), "Missing spread attribute"),
            (!is_weighed, "Spread block must have a positive weight from 0 to 100"),
        ],
    );
    let (mut seen, mut sum) = (Vec::new(), 0);
    for target in items(&spread["SpreadTarget"]) {
        let (value, percent) = (text(target, "Value"), number(target, "Percent"));
        if seen.contains(&value) {
            wrong.push(format!("Spread target value {value:?} already defined"));
        }
        if percent > 100 {
            wrong.push(format!("Spread target percentage for value {value:?} must be between 0 and 100"));
        }
        seen.push(value);
        sum += percent;
    }
    if sum > 100 {
        wrong.push(format!("Sum of spread target percentages must not be greater than 100%; got {sum}%"));
    }
    wrong
}

fn of_migrate(migrate: &Value, wrong: &mut Vec<String>) {
    let (parallel, check) = (number(migrate, "MaxParallel"), text(migrate, "HealthCheck"));
    if parallel < 0 {
        wrong.push(format!("MaxParallel must be >= 0 but found {parallel}"));
    }
    match check {
        "checks" | "task_states" => {}
        "" => tell(wrong, &[(parallel > 0, "Missing HealthCheck")]),
        _ => wrong.push(format!("Invalid HealthCheck: {check:?}")),
    }
    if time(migrate, "MinHealthyTime") > time(migrate, "HealthyDeadline") {
        wrong.push("MinHealthyTime must be less than HealthyDeadline".to_owned());
    }
}

/// How many of a group may use a volume of a plugin; what else is wrong with a volume keeps a job from being read.
fn of_volume(volume: &Value, count: i64) -> Vec<String> {
    let mut wrong = Vec::new();
    let (mode, is_read_only) = (text(volume, "AccessMode"), volume["ReadOnly"] == true);
    let (only_reads, only_one) = match mode {
        _ if volume["Type"] != "csi" => return wrong,
        "single-node-reader-only" => (true, "reader"),
        "single-node-writer" => (false, "reader or writer"),
        "multi-node-reader-only" => (true, ""),
        "multi-node-single-writer" if !is_read_only => (false, "writer"),
        _ => return wrong,
    };
    if only_reads && !is_read_only {
        wrong.push(format!("{mode} volumes must be read-only"));
    }
    if !only_one.is_empty() && count > 1 && volume["PerAlloc"] != true {
        wrong.push(format!("volume with {mode} access mode allows only one {only_one}"));
    }
    wrong
}

fn of_scaling(policy: &Value, count: i64) -> Vec<String> {
    let mut wrong = Vec::new();
    if policy.is_null() {
        return wrong;
    }
    let (kind, least, most) = (text(policy, "Type"), number(policy, "Min"), policy["Max"].as_i64().unwrap_or(-1));
    if kind != "horizontal" {
        wrong.push(format!("scaling policy type \"{kind}\" is not valid"));
    }
    tell(
        &mut wrong,
        &[
            (most < 0, "maximum count must be specified and non-negative"),
            (most >= 0 && most < least, "maximum count must not be less than minimum count"),
            (most < count, "task group count must not be greater than maximum count in scaling policy"),
            (count < least, "task group count must not be less than minimum count in scaling policy"),
        ],
    );
    for rule in &mut wrong {
        rule.insert_str(0, "Scaling policy invalid: ");
    }
    wrong
}

fn of_update(update: &Value, wrong: &mut Vec<String>) {
    let [healthy, deadline, progress] =
        ["MinHealthyTime", "HealthyDeadline", "ProgressDeadline"].map(|field| time(update, field));
    if update["AutoPromote"] == true && update["Canary"] == 0 {
        wrong.push("Auto Promote requires a Canary count greater than zero".to_owned());
    }
    if deadline == 0 {
        wrong.push("Healthy deadline must be greater than zero: 0s".to_owned());
    }
    let not_less = |what: &str, less, more| format!("{what}: {} > {}", shown(less), shown(more));
    if healthy >= deadline {
        wrong.push(not_less("Minimum healthy time must be less than healthy deadline", healthy, deadline));
    }
    if progress > 0 && deadline >= progress {
        wrong.push(not_less("Healthy deadline must be less than progress deadline", deadline, progress));
    }
    if time(update, "Stagger") == 0 {
        wrong.push("Stagger must be greater than zero: 0s".to_owned());
    }
}

fn of_reschedule(policy: &Value, wrong: &mut Vec<String>) {
    let [interval, delay, ceiling] = ["Interval", "Delay", "MaxDelay"].map(|field| time(policy, field));
    let (attempts, is_unlimited) = (time(policy, "Attempts"), policy["Unlimited"] == true);
    let function = text(policy, "DelayFunction");
    if attempts == 0 && !is_unlimited {
        return;
    }
    if attempts > 0 && interval == 0 {
        wrong.push("Interval must be a non zero value if Attempts > 0".to_owned());
    }
    let (of_interval, of_delay, of_ceiling) = (shown(interval), shown(delay), shown(ceiling));
    if attempts > 0 && is_unlimited {
        wrong.push(format!(
            "Reschedule Policy with Attempts = {attempts}, Interval = {of_interval}, and Unlimited = true is ambiguous"
        ));
        wrong.push("If Attempts >0, Unlimited cannot also be set to true".to_owned());
    }
    let before = wrong.len();
    if delay < LEAST_DELAY {
        wrong.push(format!("Delay cannot be less than 5s (got {of_delay})"));
    }
    let grows = function != "constant";
    if grows && ceiling < LEAST_DELAY {
        // Nomad shows the other one here.
        wrong.push(format!("Max Delay cannot be less than 5s (got {of_delay})"));
    }
    if grows && ceiling < delay {
        wrong.push(format!("Max Delay cannot be less than Delay {of_delay} (got {of_ceiling})"));
    }
    let is_sound = wrong.len() == before;
    if is_unlimited {
        return;
    }
    if interval < LEAST_INTERVAL {
        wrong.push(format!("Interval cannot be less than 15s (got {of_interval})"));
    }
    if is_sound && let Some((fitting, needed)) = misfit(function, attempts, [interval, delay, ceiling]) {
        let of_function = if grows {
            format!(", delay function {function:?}, and delay ceiling {of_ceiling}")
        } else {
            format!(" and delay function {function:?}")
        };
        wrong.push(format!(
            "Nomad can only make {fitting} attempts in {of_interval} with initial delay {of_delay}{of_function}"
        ));
        let needed = shown(needed.saturating_add(SECOND / 2) / SECOND * SECOND);
        wrong.push(format!("Set the interval to at least {needed} to accommodate {attempts} attempts"));
    }
}

/// If not all attempts fit into the interval: how many do, and the interval that all of them need.
fn misfit(function: &str, attempts: u64, [interval, delay, ceiling]: [u64; 3]) -> Option<(u64, u64)> {
    let doubles = function == "exponential";
    let grows = function != "constant";
    let limit = if doubles { interval.saturating_sub(1) } else { interval };
    // When the attempt that is number `made` is due.
    let (mut before, mut due, mut made) = (0, delay, 1);
    let mut fitting = u64::from(due <= limit);
    while grows && made < attempts {
        let next = if doubles { due.saturating_mul(2) } else { due.saturating_add(before) };
        if doubles && next > ceiling {
            break;
        }
        (before, due, made) = (due, next.min(ceiling), made + 1);
        fitting += u64::from(due <= limit);
        if next > ceiling {
            break;
        }
    }
    // From here on they are equally far apart.
    let (step, left) = (if grows { ceiling } else { delay }, attempts - made);
    let needed = due.saturating_add(left.saturating_mul(step));
    fitting += (limit.saturating_sub(due) / step).min(left);
    (needed > limit).then_some((fitting, needed))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::jobspec;

    /// What is wrong with a job whose group has `block` with these members; a block whose name begins with `P` is the job's.
    fn errors(kind: &str, block: &str, members: &Value) -> Vec<String> {
        let task = json!({ "Name": "t", "Driver": "raw_exec", "Config": { "command": "true" } });
        let mut job = json!({ "ID": "j", "Type": kind, "TaskGroups": [{ "Name": "g", "Tasks": [task] }] });
        let owner = if block.starts_with('P') { &mut job } else { &mut job["TaskGroups"][0] };
        owner[block] = members.clone();
        check(&jobspec::canonicalize(&job, 0).unwrap())
    }

    /// The same, of the group alone.
    fn of_group(kind: &str, block: &str, members: &Value) -> Vec<String> {
        let errors = errors(kind, block, members);
        let lines = errors.iter().flat_map(|error| error.lines());
        lines.filter_map(|line| line.strip_prefix("\t* ")).map(str::to_owned).collect()
    }

    #[test]
    fn a_clock_and_a_dispatch_start_what_runs_to_an_end() {
        let clock = json!({ "Enabled": true, "Spec": "0 4 * * *", "SpecType": "cron" });
        let form = json!({ "Payload": "optional" });
        for (block, members) in [("Periodic", &clock), ("ParameterizedJob", &form)] {
            let what = if block == "Periodic" { block } else { "Parameterized job" };
            let told = format!("{what} can only be used with \"batch\" or \"sysbatch\" scheduler");
            for kind in ["service", "system"] {
                assert_eq!(errors(kind, block, members), [told.as_str()]);
            }
            for kind in ["batch", "sysbatch"] {
                assert_eq!(errors(kind, block, members), [""; 0], "{kind}");
            }
        }
        let disabled = json!({ "Enabled": false, "Spec": "0 4 * *", "TimeZone": "X/Y" });
        assert_eq!(errors("service", "Periodic", &disabled), [""; 0]);
        for (members, told) in [
            (json!({}), "Must specify a spec"),
            (json!({ "Spec": "@daily", "Specs": ["@hourly"] }), "Only cron or crons may be used"),
            (json!({ "Spec": "@daily", "SpecType": "test" }), "Unknown periodic specification type \"test\""),
            (json!({ "Spec": "0 4 * *" }), "\"0 4 * *\" is not a cron expression: "),
            (json!({ "Specs": ["@daily", "0 4 * *"] }), "\"0 4 * *\" is not a cron expression: "),
            (json!({ "Spec": "@daily", "TimeZone": "X/Y" }), "time zone \"X/Y\" is not known"),
        ] {
            let errors = errors("batch", "Periodic", &members);
            assert!(matches!(&errors[..], [one] if one.starts_with(told)), "{members}: {errors:?}");
        }
        let both = json!({ "MetaRequired": ["a", "b"], "MetaOptional": ["b"] });
        let told = "Required and optional meta keys should be disjoint. Following keys exist in both: [b]";
        assert_eq!(errors("batch", "ParameterizedJob", &both), [told]);
    }

    /// The texts of what is wrong with a sound job in which something was set.
    fn broken(kind: &str, sets: &[(&str, Value)]) -> Vec<String> {
        let task = json!({ "Name": "t", "Driver": "raw_exec", "Config": { "command": "true" } });
        let mut job = json!({ "ID": "j", "Type": kind, "TaskGroups": [{ "Name": "g", "Tasks": [task] }] });
        for (at, value) in sets {
            let at = at.replace("GROUP", "/TaskGroups/0").replace("TASK", "/TaskGroups/0/Tasks/0");
            let (owner, last) = at.rsplit_once('/').unwrap();
            job.pointer_mut(owner).unwrap()[last] = value.clone();
        }
        let errors = check(&jobspec::canonicalize(&job, 0).unwrap());
        let lines = errors.iter().flat_map(|error| error.lines()).map(|line| line.trim_start_matches("\t* "));
        lines.filter(|line| !line.is_empty() && !line.ends_with(" occurred:")).map(str::to_owned).collect()
    }

    #[test]
    fn jobs_and_groups_are_refused_in_nomads_words() {
        let long = "x".repeat(LONGEST_DESCRIPTION + 1);
        let scaling = |rule: &str| format!("Scaling policy invalid: {rule}");
        let too_many = scaling("task group count must not be greater than maximum count in scaling policy");
        let no_most = scaling("maximum count must be specified and non-negative");
        let crossed = scaling("maximum count must not be less than minimum count");
        for (kind, at, value, told) in [
            ("service", "/Name", json!(""), &["Missing job name"][..]),
            ("service", "/Datacenters", json!([""]), &["Job datacenter must be non-empty string"]),
            ("batch", "/Payload", json!("eA=="), &["job can't be submitted with a payload, only dispatched"]),
            (
                "service",
                "/UI",
                json!({ "Description": long }),
                &["UI description must be under 1000 characters, currently 1001"],
            ),
            (
                "service",
                "/VersionTag",
                json!({ "Description": long }),
                &["Tagged version description must be under 1000 characters, currently 1001"],
            ),
            (
                "system",
                "GROUP/Scaling",
                json!({ "Max": 1 }),
                &["Task groups with job type system do not support scaling blocks"],
            ),
            ("service", "GROUP/Scaling", json!({ "Min": 0, "Max": 1 }), &[]),
            ("service", "GROUP/Scaling", json!({ "Min": 2, "Max": 1 }), &[crossed.as_str(), too_many.as_str()]),
            ("service", "GROUP/Scaling", json!({ "Min": 0 }), &[no_most.as_str(), too_many.as_str()]),
            (
                "service",
                "GROUP/Scaling",
                json!({ "Max": 1, "Type": "x" }),
                &["Scaling policy invalid: scaling policy type \"x\" is not valid"],
            ),
            (
                "service",
                "/Affinities",
                json!([{ "Operand": "~", "Weight": 0 }]),
                &[
                    "Unknown affinity operator \"~\"",
                    "No LTarget provided but is required",
                    "Affinity weight cannot be zero",
                ],
            ),
            (
                "batch",
                "TASK/Affinities",
                json!([{ "LTarget": "${meta.a}", "Operand": "=", "Weight": 101 }]),
                &["Operator \"=\" requires an RTarget", "Affinity weight must be within the range [-100,100]"],
            ),
            ("system", "GROUP/Affinities", json!([{}]), &["System jobs may not have an affinity block"]),
            ("system", "/Spreads", json!([{}]), &["System jobs may not have a spread block"]),
            (
                "service",
                "GROUP/Spreads",
                json!([{ "Weight": 0,
                    "SpreadTarget": [{ "Value": "a", "Percent": 60 }, { "Value": "a", "Percent": 60 }] }]),
                &[
                    "Missing spread attribute",
                    "Spread block must have a positive weight from 0 to 100",
                    "Spread target value \"a\" already defined",
                    "Sum of spread target percentages must not be greater than 100%; got 120%",
                ],
            ),
            (
                "service",
                "GROUP/Migrate",
                json!({ "MaxParallel": -1, "HealthCheck": "manual" }),
                &["MaxParallel must be >= 0 but found -1", "Invalid HealthCheck: \"manual\""],
            ),
            ("service", "GROUP/Migrate", json!({ "HealthCheck": "" }), &["Missing HealthCheck"]),
        ] {
            assert_eq!(broken(kind, &[(at, value.clone())]), told, "{at} {value}");
        }
    }

    #[test]
    fn a_volume_has_no_more_users_than_it_may_have() {
        let volume = |mode: &str, per_alloc: bool| {
            let mut volume = json!({ "Name": "v", "Type": "csi", "Source": "s", "AttachmentMode": "file-system" });
            (volume["AccessMode"], volume["PerAlloc"]) = (json!(mode), json!(per_alloc));
            json!({ "v": volume })
        };
        for (mode, per_alloc, told) in [
            ("single-node-writer", true, &[][..]),
            ("multi-node-multi-writer", false, &[]),
            (
                "single-node-writer",
                false,
                &["volume with single-node-writer access mode allows only one reader or writer"],
            ),
            (
                "single-node-reader-only",
                false,
                &[
                    "single-node-reader-only volumes must be read-only",
                    "volume with single-node-reader-only access mode allows only one reader",
                ],
            ),
        ] {
            let sets = [("GROUP/Count", json!(2)), ("GROUP/Volumes", volume(mode, per_alloc))];
            assert_eq!(broken("service", &sets), told, "{mode}");
        }
    }

    #[test]
    fn tasks_are_refused_in_nomads_words() {
        for (at, value, told) in [
            (
                "TASK/Resources",
                json!({ "MemoryMB": 10, "SecretsMB": 11 }),
                &["SecretsMB value (11) cannot be larger than MemoryMB value (10)"][..],
            ),
            (
                "TASK/Templates",
                json!([{ "DestPath": "a", "ChangeMode": "signal", "Envvars": true,
                    "Wait": { "Min": 2 * SECOND, "Max": SECOND } }]),
                &[
                    "Must specify a source path or have an embedded template",
                    "cannot use signals with env var templates",
                    "wait min 2s is greater than max 1s",
                ],
            ),
            (
                "TASK/Actions",
                json!([{ "Name": "a b" }, { "Name": "a", "Command": "c" }, { "Name": "a", "Command": "c" }]),
                &["command cannot be empty", "invalid name 'a b'", "Action a defined multiple times"],
            ),
            ("TASK/DispatchPayload", json!({ "File": "../../x" }), &[]),
            (
                "TASK/DispatchPayload",
                json!({ "File": "../../../x" }),
                &["Dispatch Payload validation failed: destination escapes allocation directory"],
            ),
            (
                "TASK/Identities",
                json!([{ "Name": "a b", "Audience": ["x", ""], "TTL": -1 }]),
                &[
                    "invalid name \"a b\". Must match regex ^[a-zA-Z0-9-_]{1,128}$",
                    "an empty string is an invalid audience (2)",
                    "ttl must be >= 0",
                ],
            ),
            ("TASK/Identity", json!({ "TTL": 1 }), &["ttl for default identity not yet supported"]),
        ] {
            assert_eq!(broken("service", &[(at, value.clone())]), told, "{at} {value}");
        }
    }

    #[test]
    fn services_are_refused_in_nomads_words() {
        let service = |more: Value| {
            let mut service = json!({ "Name": "s", "Provider": "consul" });
            service.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!([service])
        };
        let check = |more: Value| {
            let mut check = json!({ "Name": "c", "Type": "tcp" });
            check.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            service(json!({ "Checks": [check] }))
        };
        for (at, value, told) in [
            (
                "GROUP/Services",
                service(json!({ "Address": "a", "AddressMode": "host", "Kind": "x" })),
                &[
                    "Service address_mode must be \"auto\" if address is set",
                    "Service s kind must be one of consul service kind or empty",
                ][..],
            ),
            ("GROUP/Services", check(json!({ "TaskName": "t" })), &[]),
            ("GROUP/Services", check(json!({ "TaskName": "x" })), &["Check c invalid: refers to non-existent task x"]),
            (
                "GROUP/Services",
                check(json!({ "Type": "http", "Path": "http://x/" })),
                &["Check c invalid: http type must have relative http path"],
            ),
            (
                "GROUP/Services",
                check(json!({ "AddressMode": "auto" })),
                &["Check c invalid: invalid address_mode \"auto\" - auto only valid for services"],
            ),
            (
                "GROUP/Services",
                check(json!({ "OnUpdate": "ignore", "CheckRestart": { "Limit": 1 } })),
                &["Check c invalid: on_update value \"ignore\" is not compatible with check_restart"],
            ),
            (
                "GROUP/Services",
                check(json!({ "Type": "script", "SuccessBeforePassing": 1 })),
                &["Check c invalid: success_before_passing not supported for check of type \"script\""],
            ),
            (
                "GROUP/Services",
                check(json!({ "Notes": "x".repeat(256) })),
                &["Check c invalid: notes must not be longer than 255 characters"],
            ),
            (
                "TASK/Services",
                service(json!({ "AddressMode": "alloc", "TaskName": "u" })),
                &[
                    "Service s is invalid: may only specify task the service belongs to, got \"u\"",
                    "service \"s\" cannot use address_mode=\"alloc\", only services defined in a \"group\" block can use this mode",
                ],
            ),
            (
                "TASK/Services",
                check(json!({ "PortLabel": "80" })),
                &["check \"c\" cannot use a numeric port 80 without setting address_mode=\"driver\""],
            ),
            (
                "TASK/Services",
                service(json!({ "Checks": [{ "Name": "c" }, { "Name": "c" }] })),
                &["check \"c\" is duplicate"],
            ),
        ] {
            assert_eq!(broken("service", &[(at, value.clone())]), told, "{at} {value}");
        }
        let other = json!([{ "Name": "t", "Provider": "nomad" }]);
        let mixed = [("GROUP/Services", service(json!({}))), ("TASK/Services", other)];
        let told = "Multiple service providers used: task group services must use the same provider";
        assert_eq!(broken("service", &mixed), [told]);
    }

    #[test]
    fn what_is_odd_is_told_in_nomads_words() {
        let groups = json!([
            { "Name": "g", "Count": 2, "Update": { "MaxParallel": 3, "Canary": 1, "AutoPromote": true } },
            { "Name": "h", "Update": { "Canary": 1 } },
        ]);
        let job = json!({ "ID": "j", "TaskGroups": groups, "Periodic": { "Spec": "@daily" } });
        let told = warnings(&jobspec::canonicalize(&job, 0).unwrap());
        let group = "Group \"g\" has warnings: 1 error occurred:\n\t* Update max parallel count is greater than task group \
                     count (3 > 2). A destructive change would result in the simultaneous replacement of all allocations.\n\n";
        let promotion = "auto_promote must be true for all groups to enable automatic promotion";
        let cron = "cron is deprecated and may be removed in a future release. Use crons instead";
        assert_eq!(told, [group, promotion, cron]);
    }

    #[test]
    fn blocks_belong_to_types_of_jobs() {
        for (kind, block, told) in [
            ("batch", "Update", "Job type \"batch\" does not allow update block"),
            ("sysbatch", "Update", "Job type \"sysbatch\" does not allow update block"),
            ("batch", "Migrate", "Job type \"batch\" does not allow migrate block"),
            ("system", "Migrate", "Job type \"system\" does not allow migrate block"),
            ("system", "ReschedulePolicy", "System or sysbatch jobs should not have a reschedule policy"),
        ] {
            let whole = format!("Task group g validation failed: 1 error occurred:\n\t* {told}\n\n");
            assert_eq!(errors(kind, block, &json!({})), [whole]);
        }
        for (kind, block) in [("service", "Update"), ("system", "Update"), ("service", "Migrate"), ("batch", "Meta")] {
            assert_eq!(errors(kind, block, &json!({})), [""; 0], "{kind} {block}");
        }
    }

    #[test]
    fn the_times_of_an_update_follow_each_other() {
        let second = |seconds: u64| seconds * SECOND;
        for (members, told) in [
            (json!({ "AutoPromote": true }), "Auto Promote requires a Canary count greater than zero"),
            (
                json!({ "MinHealthyTime": second(300) }),
                "Minimum healthy time must be less than healthy deadline: 5m0s > 5m0s",
            ),
            (
                json!({ "HealthyDeadline": second(600) }),
                "Healthy deadline must be less than progress deadline: 10m0s > 10m0s",
            ),
            (json!({ "Stagger": 0 }), "Stagger must be greater than zero: 0s"),
        ] {
            assert_eq!(of_group("service", "Update", &members), [told]);
        }
        let short = json!({ "HealthyDeadline": second(2), "MinHealthyTime": 0, "ProgressDeadline": second(3) });
        let told = "KillTimout (5s) longer than the group's ProgressDeadline (3s)";
        assert_eq!(of_group("service", "Update", &short)[1..], [told]);
        let forever =
            json!({ "HealthyDeadline": second(900), "ProgressDeadline": 0, "AutoPromote": true, "Canary": 1 });
        assert_eq!(errors("service", "Update", &forever), [""; 0]);
        let migrate = json!({ "MinHealthyTime": second(301) });
        assert_eq!(of_group("service", "Migrate", &migrate), ["MinHealthyTime must be less than HealthyDeadline"]);
    }

    #[test]
    fn attempts_fit_into_their_interval() {
        let policy = |attempts: u64, interval: u64, delay: u64, function: &str, ceiling: u64, unlimited: bool| {
            let members = json!({ "Attempts": attempts, "Interval": interval * SECOND, "Delay": delay * SECOND,
                "DelayFunction": function, "MaxDelay": ceiling * SECOND, "Unlimited": unlimited });
            of_group("service", "ReschedulePolicy", &members)
        };
        for sound in [
            policy(0, 0, 0, "constant", 0, false),
            policy(0, 0, 5, "constant", 0, true),
            policy(3, 15, 5, "constant", 0, false),
            policy(4, 41, 5, "exponential", 40, false),
            policy(4, 15, 5, "fibonacci", 40, false),
        ] {
            assert_eq!(sound, [""; 0]);
        }
        let misfit = |fitting: u64, interval: &str, of_function: &str, needed: &str, attempts: u64| {
            vec![
                format!("Nomad can only make {fitting} attempts in {interval} with initial delay 5s{of_function}"),
                format!("Set the interval to at least {needed} to accommodate {attempts} attempts"),
            ]
        };
        let constant = " and delay function \"constant\"";
        let exponential = ", delay function \"exponential\", and delay ceiling 40s";
        let fibonacci = ", delay function \"fibonacci\", and delay ceiling 10s";
        for (found, expected) in [
            (policy(1, 60, 4, "constant", 0, false), vec!["Delay cannot be less than 5s (got 4s)".to_owned()]),
            (
                policy(0, 0, 10, "exponential", 4, true),
                vec![
                    "Max Delay cannot be less than 5s (got 10s)".to_owned(),
                    "Max Delay cannot be less than Delay 10s (got 4s)".to_owned(),
                ],
            ),
            (
                policy(1, 60, 5, "constant", 0, true),
                vec![
                    "Reschedule Policy with Attempts = 1, Interval = 1m0s, and Unlimited = true is ambiguous"
                        .to_owned(),
                    "If Attempts >0, Unlimited cannot also be set to true".to_owned(),
                ],
            ),
            (policy(1, 14, 5, "constant", 0, false), vec!["Interval cannot be less than 15s (got 14s)".to_owned()]),
            (policy(4, 15, 5, "constant", 0, false), misfit(3, "15s", constant, "20s", 4)),
            (policy(4, 40, 5, "exponential", 40, false), misfit(3, "40s", exponential, "40s", 4)),
            // After 5, 5, 10 and, instead of 15, 10 seconds; from then on 10 seconds apart.
            (policy(6, 20, 5, "fibonacci", 10, false), misfit(5, "20s", fibonacci, "30s", 6)),
        ] {
            assert_eq!(found, expected);
        }
        // A number of attempts costs no time.
        let many = policy(2_000_000_000, 60, 5, "fibonacci", 10, false);
        assert!(many[0].starts_with("Nomad can only make "), "{many:?}");
    }
}
