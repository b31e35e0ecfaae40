//! Nomad's rules for a job, as far as they relate several values or depend on the job's type.

mod words;

use serde_json::{Map, Value};

use self::words::{items, nest, shown, tell, text, time};
use crate::agent::schedule::periodic;

const SECOND: u64 = 1_000_000_000;
/// Least values of a `reschedule` block, in nanoseconds.
const LEAST_DELAY: u64 = 5 * SECOND;
const LEAST_INTERVAL: u64 = 15 * SECOND;

/// What Nomad refuses in a specification, in Nomad's words, beside what keeps it from being read as a job.
pub(super) fn check(spec: &Map<String, Value>) -> Vec<String> {
    let mut wrong = Vec::new();
    let is_nameless = |field: &str| part(spec, field).as_str().is_none_or(str::is_empty);
    let kind = part(spec, "Type").as_str().unwrap_or_default();
    tell(&mut wrong, &[(is_nameless("ID"), "Missing job ID"), (is_nameless("Name"), "Missing job name")]);
    for group in items(part(spec, "TaskGroups")) {
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
        if !is_service {
            wrong.push(format!("Job type {kind:?} does not allow migrate block"));
        } else if time(migrate, "MinHealthyTime") > time(migrate, "HealthyDeadline") {
            wrong.push("MinHealthyTime must be less than HealthyDeadline".to_owned());
        }
    }
    let progress = time(update, "ProgressDeadline");
    for task in items(&group["Tasks"]) {
        let kill = time(task, "KillTimeout");
        if is_service && progress > 0 && kill > progress {
            let (kill, progress) = (shown(kill), shown(progress));
            let error = format!("KillTimout ({kill}) longer than the group's ProgressDeadline ({progress})");
            nest(&mut wrong, &format!("Task {}", text(task, "Name")), &[error]);
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
