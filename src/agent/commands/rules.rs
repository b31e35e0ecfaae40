//! Nomad's rules for what a job says to its scheduler, as far as they relate several values or depend on the job's type.

use std::time::Duration;

use serde_json::{Map, Value};

use super::listed;
use crate::alloc::go_duration;
use crate::spec::{Job, JobType};

const SECOND: u64 = 1_000_000_000;
/// Least values of a `reschedule` block, in nanoseconds.
const LEAST_DELAY: u64 = 5 * SECOND;
const LEAST_INTERVAL: u64 = 15 * SECOND;

/// Checks a job and the specification that it was read from.
///
/// # Errors
/// What Nomad refuses, in Nomad's words.
pub(super) fn check(spec: &Map<String, Value>, job: &Job) -> Result<(), Vec<String>> {
    let mut wrong = Vec::new();
    for group in spec.get("TaskGroups").and_then(Value::as_array).into_iter().flatten() {
        nest(&mut wrong, "Task group", group, &of_group(group, job.kind));
    }
    let (periodic, parameterized) = (&job.scheduling.periodic, &job.scheduling.parameterized);
    for (what, is_there) in [
        ("Periodic", periodic.as_ref().is_some_and(|periodic| periodic.enabled)),
        ("Parameterized job", parameterized.is_some()),
    ] {
        if is_there && !job.kind.runs_to_completion() {
            wrong.push(format!("{what} can only be used with \"batch\" or \"sysbatch\" scheduler"));
        }
    }
    if let Some(keys) = parameterized {
        let both = keys.meta_required.iter().filter(|key| keys.meta_optional.contains(*key));
        let both: Vec<&str> = both.map(String::as_str).collect();
        if !both.is_empty() {
            wrong.push(format!(
                "Required and optional meta keys should be disjoint. Following keys exist in both: [{}]",
                both.join(" ")
            ));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// Adds the errors of a group or task as one.
fn nest(wrong: &mut Vec<String>, kind: &str, owner: &Value, errors: &[String]) {
    if !errors.is_empty() {
        let name = owner["Name"].as_str().unwrap_or_default();
        wrong.push(format!("{kind} {name} validation failed: {}", listed(errors)));
    }
}

fn of_group(group: &Value, kind: JobType) -> Vec<String> {
    let mut wrong = Vec::new();
    let (update, migrate, policy) = (&group["Update"], &group["Migrate"], &group["ReschedulePolicy"]);
    let is_service = kind == JobType::Service;
    if matches!(kind, JobType::Service | JobType::Batch) {
        of_reschedule(policy, &mut wrong);
    } else if !policy.is_null() {
        wrong.push("System or sysbatch jobs should not have a reschedule policy".to_owned());
    }
    if !update.is_null() {
        if kind.runs_to_completion() {
            wrong.push(format!("Job type {:?} does not allow update block", kind.as_str()));
        }
        of_update(update, &mut wrong);
    }
    if !migrate.is_null() {
        if !is_service {
            wrong.push(format!("Job type {:?} does not allow migrate block", kind.as_str()));
        } else if time(migrate, "MinHealthyTime") > time(migrate, "HealthyDeadline") {
            wrong.push("MinHealthyTime must be less than HealthyDeadline".to_owned());
        }
    }
    let progress = time(update, "ProgressDeadline");
    for task in group["Tasks"].as_array().into_iter().flatten() {
        let kill = time(task, "KillTimeout");
        if is_service && progress > 0 && kill > progress {
            let (kill, progress) = (shown(kill), shown(progress));
            let error = format!("KillTimout ({kill}) longer than the group's ProgressDeadline ({progress})");
            nest(&mut wrong, "Task", task, &[error]);
        }
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
    let function = policy["DelayFunction"].as_str().unwrap_or_default();
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

/// A number that is not negative, of nanoseconds if it is a time.
fn time(block: &Value, field: &str) -> u64 {
    block[field].as_u64().unwrap_or_default()
}

fn shown(nanos: u64) -> String {
    go_duration(Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agent::jobs;
    use crate::jobspec;

    /// What is wrong with a job whose group has `block` with these members; a block whose name begins with `P` is the job's.
    fn errors(kind: &str, block: &str, members: &Value) -> Vec<String> {
        let task = json!({ "Name": "t", "Driver": "raw_exec", "Config": { "command": "true" } });
        let mut job = json!({ "ID": "j", "Type": kind, "TaskGroups": [{ "Name": "g", "Tasks": [task] }] });
        let owner = if block.starts_with('P') { &mut job } else { &mut job["TaskGroups"][0] };
        owner[block] = members.clone();
        let spec = jobspec::canonicalize(&job, 0).unwrap();
        let job = jobs::read(&spec).unwrap().job;
        check(&spec, &job).err().unwrap_or_default()
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
        let disabled = json!({ "Enabled": false, "Spec": "0 4 * * *", "SpecType": "cron" });
        assert_eq!(errors("service", "Periodic", &disabled), [""; 0]);
        let both = json!({ "MetaRequired": ["a", "b"], "MetaOptional": ["b"] });
        let told = "Required and optional meta keys should be disjoint. Following keys exist in both: [b]";
        assert_eq!(errors("batch", "ParameterizedJob", &both), [told]);
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
