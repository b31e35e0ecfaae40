//! Jobs in the API's form: out of files and back, with defaults, and the difference of two, which a real agent told
//! (`tests/jobs-form/plans.json`; tests/nomad asks it again).

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value as Json, json};

use super::super::schema::{self, Schema};
use super::super::{Input, canonicalize, diff, from_api, group_change, parse, parse_sent, to_api, with_defaults};
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{DelayFunction, HealthCheck, Job, PayloadRule};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/jobs-form")
}

/// The files with their texts, by their names.
fn files() -> Vec<(PathBuf, String)> {
    let entries = std::fs::read_dir(folder()).unwrap().map(|e| e.unwrap().path());
    let is_job = |path: &PathBuf| path.to_string_lossy().contains(".nomad.");
    let mut paths: Vec<PathBuf> = entries.filter(is_job).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read_to_string(&path).unwrap())).collect()
}

fn input<'a>(file: &'a Path, text: &'a str) -> Input<'a> {
    Input { file, text, vars: &[], var_files: &[], env: &[], base_dir: Path::new("/srv"), stays_in_base_dir: false }
}

/// A job without the places in its file, and with what has no order in one order.
fn shown(mut job: Job) -> String {
    for group in &mut job.groups {
        group.volumes.sort_by(|a, b| a.name.cmp(&b.name));
        let own = group.network.iter_mut().chain(group.tasks.iter_mut().filter_map(|t| t.network.as_mut()));
        own.for_each(|network| network.ports.sort_by(|a, b| a.label.cmp(&b.label)));
    }
    let text = format!("{job:#?}");
    let mut out = String::new();
    let mut in_pos = 0;
    for line in text.lines() {
        let trimmed = line.trim();
        if in_pos > 0 {
            in_pos -= 1;
        } else if trimmed.ends_with("Pos {") {
            // Its three fields and the brace.
            in_pos = 4;
        } else if trimmed == "cluster: \"default\"," {
            // The one that is meant where none is named.
            out.push_str("cluster: \"\",\n");
        } else {
            out.push_str(trimmed);
            out.push('\n');
        }
    }
    out
}

/// J1: what a run makes of a file is what an agent makes of the file's API form.
#[test]
fn j1_a_file_and_its_api_form_are_one_job() {
    let (mut compared, mut bad) = (0, Vec::new());
    for (path, text) in files() {
        let input = input(&path, &text);
        let name = path.display();
        let written = to_api(&input).unwrap_or_else(|e| panic!("{e}"));
        let stored = canonicalize(&written, 7).unwrap_or_else(|e| panic!("{name}: {e}"));
        // What comes out goes in again.
        assert_eq!(canonicalize(&json!({ "Job": stored }), 7).unwrap(), stored, "{name}");
        let Ok(parsed) = parse(&input) else { continue };
        // Nomad's parser loses reserved ports beside others; a run has them.
        if text.contains("reserved_ports") && text.contains("port \"a\"") {
            continue;
        }
        // A server puts the names of job, group and task into a service's name; a run does it later.
        if text.contains("${JOB}") {
            continue;
        }
        let again = from_api(&stored, Path::new("/srv")).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (here, there) = (shown(parsed.job), shown(again.job));
        let line = here.lines().zip(there.lines()).find(|(here, there)| here != there);
        bad.extend(line.map(|(here, there)| format!("{name}: {here} is {there} in the API's form")));
        compared += 1;
        assert_eq!(here.lines().count(), there.lines().count(), "{name}: {bad:?}");
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(compared >= 100, "only {compared} files are jobs");
}

/// Every block and key of the table stands in one of the files.
#[test]
fn j1_the_files_have_every_block_and_key() {
    let all: String = files().into_iter().map(|(_, text)| text).collect();
    let words: BTreeSet<&str> = all.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let mut missing = BTreeSet::new();
    names(&schema::JOB, &mut |name| {
        if !words.contains(name) && !["compress", "max_age"].contains(&name) {
            missing.insert(name);
        }
    });
    assert!(missing.is_empty(), "{missing:?}");
}

fn names(schema: &'static Schema, visit: &mut impl FnMut(&'static str)) {
    schema.names().for_each(&mut *visit);
    for block in schema.blocks {
        names(block.body, visit);
    }
}

/// The value without nulls: Go's null is an absent one of ours, or the other way round.
fn slim(value: &Json) -> Json {
    match value {
        Json::Object(members) => {
            Json::Object(members.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), slim(v))).collect())
        }
        Json::Array(items) => Json::Array(items.iter().map(slim).collect()),
        other => other.clone(),
    }
}

/// Objects of one name stand in the order of a map with Nomad, which is none.
fn ordered(value: &mut Json) {
    match value {
        Json::Object(members) => {
            members.values_mut().for_each(ordered);
            if let Some(Json::Array(objects)) = members.get_mut("Objects") {
                let all = std::mem::take(objects);
                let mut runs: Vec<Vec<Json>> = Vec::new();
                for object in all {
                    match runs.last_mut() {
                        Some(run) if run[0]["Name"] == object["Name"] => run.push(object),
                        _ => runs.push(vec![object]),
                    }
                }
                for run in &mut runs {
                    run.sort_by_key(sorted_text);
                }
                *objects = runs.into_iter().flatten().collect();
            }
        }
        Json::Array(items) => items.iter_mut().for_each(ordered),
        _ => {}
    }
}

fn sorted_text(value: &Json) -> String {
    let mut value = value.clone();
    value.sort_all_objects();
    value.to_string()
}

/// A plan that a real agent was asked for.
struct Plan {
    name: String,
    old: Map<String, Json>,
    new: Map<String, Json>,
    /// What became of the allocations, where one ran.
    change: Option<String>,
    diff: Json,
}

fn plans() -> Vec<Plan> {
    let all: Json = serde_json::from_str(&std::fs::read_to_string(folder().join("plans.json")).unwrap()).unwrap();
    let plan = |plan: &Json| {
        let base = &all["bases"][plan["base"].as_str().unwrap()];
        let mut new = base.clone();
        for (at, value) in plan["set"].as_object().unwrap() {
            set(&mut new, at, value);
        }
        let name = plan["name"].as_str().unwrap().to_owned();
        let stored = |job: &Json| canonicalize(job, 7).unwrap_or_else(|e| panic!("{name}: {e}"));
        let change = plan["change"].as_str().map(str::to_owned);
        Plan { old: stored(base), new: stored(&new), change, diff: plan["diff"].clone(), name: name.clone() }
    };
    all["plans"].as_array().unwrap().iter().map(plan).collect()
}

/// Sets what a JSON pointer names, whose last member may not be there yet.
fn set(value: &mut Json, at: &str, to: &Json) {
    let (owner, last) = at.rsplit_once('/').unwrap();
    let last = last.replace("~1", "/").replace("~0", "~");
    match value.pointer_mut(owner).unwrap() {
        Json::Array(items) => items[last.parse::<usize>().unwrap()] = to.clone(),
        owner => owner[last] = to.clone(),
    }
}

/// J2: the difference of two jobs is what `job plan` of a real agent shows.
#[test]
fn j2_the_difference_of_two_jobs_is_nomads() {
    let plans = plans();
    assert!(plans.len() >= 150);
    let mut bad = Vec::new();
    for Plan { name, old, new, diff: mut expected, .. } in plans {
        let mut diff = diff(Some(&old), Some(&new), true);
        diff.annotate(&BTreeMap::new());
        let mut found = slim(&serde_json::to_value(diff).unwrap());
        ordered(&mut expected);
        ordered(&mut found);
        let (expected, found) = (sorted_text(&expected), sorted_text(&found));
        if found != expected {
            bad.push(format!("{name}\n  found    {found}\n  expected {expected}"));
        }
    }
    assert!(bad.is_empty(), "{} differ:\n{}", bad.len(), bad.join("\n"));
}

/// J2: what a new version does to the allocations that run, as a real agent decided it.
#[test]
fn j2_a_change_is_in_place_or_destructive_as_with_nomad() {
    let mut seen = BTreeSet::new();
    let mut bad = Vec::new();
    for Plan { name, old, new, change, .. } in plans() {
        let Some(change) = change else { continue };
        let found = format!("{:?}", group_change(&old, &new, "g"));
        seen.insert(change.clone());
        if found != change {
            bad.push(format!("{name}: {found}, not {change}"));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert_eq!(seen.len(), 3, "{seen:?}");
}

/// J2: of a restart policy, only whether templates are rendered anew is not taken over.
#[test]
fn j2_a_task_that_renders_its_templates_anew_is_another_one() {
    let job = |of: &str, value: Json| {
        let mut job = json!({ "ID": "j", "TaskGroups": [{ "Name": "g", "Tasks": [{ "Name": "t" }] }] });
        job.pointer_mut(of).unwrap()["RestartPolicy"] = value;
        canonicalize(&job, 1).unwrap()
    };
    for of in ["/TaskGroups/0", "/TaskGroups/0/Tasks/0"] {
        let old = job(of, json!({ "Attempts": 1 }));
        let found = |value: Json| format!("{:?}", group_change(&old, &job(of, value), "g"));
        assert_eq!(found(json!({ "Attempts": 2, "RenderTemplates": false })), "InPlace", "{of}");
        assert_eq!(found(json!({ "Attempts": 1, "RenderTemplates": true })), "Destructive", "{of}");
    }
}

/// J2: a job that is new, gone or the same.
#[test]
fn j2_a_whole_job_is_added_and_deleted() {
    let job = canonicalize(&json!({ "ID": "j", "TaskGroups": [{ "Name": "g", "Count": 2 }] }), 1).unwrap();
    let kinds = |old: Option<&Map<String, Json>>, new: Option<&Map<String, Json>>| {
        let mut diff = diff(old, new, true);
        diff.annotate(&BTreeMap::new());
        let diff = serde_json::to_value(diff).unwrap();
        let group = &diff["TaskGroups"][0];
        (diff["Type"].clone(), group["Type"].clone(), group["Fields"][0]["Annotations"].clone(), diff["ID"].clone())
    };
    assert_eq!(kinds(None, Some(&job)), (json!("Added"), json!("Added"), json!(["forces create"]), json!("j")));
    assert_eq!(kinds(Some(&job), None), (json!("Deleted"), json!("Deleted"), json!(["forces destroy"]), json!("j")));
    assert_eq!(kinds(Some(&job), Some(&job)), (json!("None"), json!("None"), Json::Null, json!("j")));
    // When it was submitted is not a change of it.
    let later = canonicalize(&Json::Object(job.clone()), 2).unwrap();
    assert_ne!(later, job);
    assert_eq!(kinds(Some(&job), Some(&later)).0, json!("None"));
    assert!(!super::super::is_changed(&job, &later));
}

#[test]
fn j1_a_submitted_job_is_read_as_go_reads_it() {
    let job = json!({
        "job": {
            "id": "j", "TASKGROUPS": [{ "name": "g", "Strange": 1, "tasks": [{ "name": "t", "driver": "exec", "Leader": null }] }],
            "Type": null, "Unknown": {},
        }
    });
    let stored = canonicalize(&job, 5).unwrap();
    let of = |pointer: &str| Json::Object(stored.clone()).pointer(pointer).cloned();
    assert_eq!(of("/ID"), Some(json!("j")));
    assert_eq!(of("/Type"), Some(json!("service")));
    assert_eq!(of("/Name"), Some(json!("j")));
    assert_eq!(of("/SubmitTime"), Some(json!(5)));
    assert_eq!(of("/TaskGroups/0/Tasks/0/Leader"), Some(json!(false)));
    assert_eq!(of("/TaskGroups/0/Tasks/0/KillTimeout"), Some(json!(5_000_000_000_i64)));
    assert_eq!((of("/Unknown"), of("/TaskGroups/0/Strange")), (None, None));
    for (job, message) in [
        (json!([]), "job: the job must be an object"),
        (json!({ "Job": null }), "job: there is no job in it"),
        (json!({ "ID": 5 }), "job: Job.ID must be a string, not a number that does not fit"),
        (
            json!({ "TaskGroups": [{ "Count": "2" }] }),
            "job: Job.TaskGroups[0].Count must be a whole number from -9223372036854775808 to 9223372036854775807, not a string",
        ),
        (json!({ "TaskGroups": {} }), "job: Job.TaskGroups must be a list, not an object"),
        (json!({ "Meta": { "a": 1 } }), "job: Job.Meta must be an object of strings, not an object"),
        (
            json!({ "Affinities": [{ "Weight": 300 }] }),
            "job: Job.Affinities[0].Weight must be a whole number from -128 to 127, not a number that does not fit",
        ),
    ] {
        assert_eq!(with_defaults(&job).unwrap_err().to_string(), message, "{job}");
    }
    // However deep it is.
    let mut deep = json!({});
    for _ in 0..500 {
        deep = json!({ "a": deep });
    }
    let job = json!({ "ID": "j", "TaskGroups": [{ "Tasks": [{ "Config": deep }] }] });
    assert!(with_defaults(&job).unwrap_err().to_string().ends_with("Config: more than 64 nested levels"));
}

#[test]
fn j1_what_a_server_adds_to_a_job_is_added() {
    let check = json!({ "Type": "script", "Command": "c", "SuccessBeforePassing": -1 });
    let service = json!({ "Provider": "nomad", "Checks": [check] });
    let mut of_group = service.clone();
    of_group["TaskName"] = json!("u");
    let job = json!({
        "ID": "j", "Type": "batch", "Priority": 0, "Periodic": { "Spec": "@daily", "TimeZone": "" },
        "TaskGroups": [{
            "Name": "g", "Scaling": { "Max": 2 }, "Services": [of_group], "Tasks": [{ "Name": "t", "Services": [service] }],
        }],
    });
    let stored = Json::Object(canonicalize(&job, 1).unwrap());
    for (at, expected) in [
        ("/Priority", json!(50)),
        ("/Periodic/TimeZone", json!("UTC")),
        ("/TaskGroups/0/Scaling/Type", json!("horizontal")),
        ("/TaskGroups/0/Services/0/Checks/0/TaskName", json!("u")),
        ("/TaskGroups/0/Tasks/0/Services/0/TaskName", json!("t")),
        ("/TaskGroups/0/Tasks/0/Services/0/Checks/0/TaskName", json!("t")),
        ("/TaskGroups/0/Tasks/0/Services/0/Checks/0/SuccessBeforePassing", json!(0)),
    ] {
        assert_eq!(stored.pointer(at), Some(&expected), "{at}");
    }
}

/// Nomad takes a negative number of attempts, or of results of a check, for none.
#[test]
fn j1_a_negative_number_may_be_none() {
    let inside = "reschedule {\nattempts = -1\nunlimited = false\n}\nservice {\nport = 1\ncheck {\ntype = \"tcp\"\ninterval = \"10s\"\n\
                  timeout = \"2s\"\nsuccess_before_passing = -1\nfailures_before_warning = -1\n}\n}";
    let text = format!("job \"j\" {{\ngroup \"g\" {{\n{inside}\ntask \"t\" {{\ndriver = \"exec\"\n}}\n}}\n}}\n");
    let group = parse(&input(Path::new("j.hcl"), &text)).unwrap().job.groups.remove(0);
    assert_eq!(group.scheduling.reschedule.map(|again| again.attempts), Some(0));
    let check = &group.services[0].checks[0];
    assert_eq!((check.success_before_passing, check.failures_before_warning), (0, Some(0)));
}

#[test]
fn j1_services_are_called_by_the_jobs_name() {
    let text = "job \"j\" {\nname = \"shop\"\ngroup \"g\" {\nservice {\nprovider = \"nomad\"\n}\ntask \"t\" {\ndriver = \"exec\"\n\
                service {\nname = \"${BASE}-${JOB}\"\nprovider = \"nomad\"\n}\n}\n}\n}\n";
    let input = input(Path::new("j.hcl"), text);
    let stored = canonicalize(&to_api(&input).unwrap(), 1).unwrap();
    let group = &stored["TaskGroups"][0];
    assert_eq!(group["Services"][0]["Name"], "shop-g");
    assert_eq!(group["Tasks"][0]["Services"][0]["Name"], "shop-g-t-shop");
    assert_eq!(parse(&input).unwrap().job.groups[0].services[0].name, "shop-g");
}

#[test]
fn j1_scaling_blocks_are_read_by_the_rules_of_nomads_parser() {
    for (of_group, of_task, expected) in [
        ("scaling {\nmin = 1\n}", "", "the argument \"max\" is required"),
        ("scaling {\nmax = 1\ntype = \"x\"\n}", "", "task group scaling policy had invalid type: \"x\""),
        ("", "scaling \"disk\" {\n}", "scaling policy name must be \"cpu\" or \"mem\""),
        ("", "scaling \"CPU\" {\ntype = \"vertical_mem\"\n}", "Invalid scaling policy type: expected \"vertical_cpu\""),
        ("", "scaling \"mem\" {\n}\nscaling \"Mem\" {\n}", "Duplicate scaling \"mem\" block"),
    ] {
        let task = format!("task \"t\" {{\ndriver = \"exec\"\n{of_task}\n}}");
        let text = format!("job \"j\" {{\ngroup \"g\" {{\n{of_group}\n{task}\n}}\n}}\n");
        let error = to_api(&input(Path::new("j.hcl"), &text)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn j1_a_job_that_was_sent_reads_no_files() {
    let text = "variable \"v\" {\n}\njob \"x\" {\nname = var.v\n}\n";
    let job = parse_sent(text, "v = \"a\"\nanother = 1\n").unwrap();
    assert_eq!((&job["ID"], &job["Name"], &job["TaskGroups"]), (&json!("x"), &json!("a"), &Json::Null));
    let error = parse_sent("job \"x\" {\nmeta {\na = file(\"/etc/passwd\")\n}\n}\n", "").unwrap_err();
    assert_eq!(error.diagnostics[0].pos.line, 3);
    assert!(!error.to_string().contains("root:"), "{error}");
    // Nor where this program's user is at home.
    for read in ["pathexpand(\"~\")", "abspath(\".\")", "fileexists(\"/etc/passwd\")", "fileset(\"/etc\", \"*\")"] {
        let error = parse_sent(&format!("job \"x\" {{\nname = {read}\n}}\n"), "").unwrap_err().to_string();
        assert!(error.contains("filesystem functions cannot be used here"), "{read}: {error}");
    }
    let error = parse_sent("job \"x\" {\nfoo = 1\n}\n", "").unwrap_err();
    assert!(error.to_string().starts_with("input.hcl:2: unsupported argument \"foo\""), "{error}");
}

/// J7: an agent keeps the job until somebody dispatches it.
#[test]
fn j7_a_parameterized_job_waits_for_its_dispatch() {
    let text = "job \"j\" {\ntype = \"batch\"\nparameterized {\npayload = \"required\"\nmeta_required = [\"a\"]\n}\ngroup \"g\" {\n\
                task \"t\" {\ndriver = \"exec\"\n}\n}\n}\n";
    let input = input(Path::new("j.hcl"), text);
    assert_eq!(parse(&input).unwrap().refusals, []);
    let kept = from_api(&canonicalize(&to_api(&input).unwrap(), 1).unwrap(), Path::new("/srv")).unwrap();
    assert_eq!(kept.refusals, []);
    assert_eq!(kept.job.scheduling.parameterized.unwrap().payload, PayloadRule::Required);
}

#[test]
fn j1_logs_of_ours_stay_in_the_form() {
    let text = "job \"j\" {\ngroup \"g\" {\ntask \"t\" {\ndriver = \"exec\"\nlogs {\ncompress = true\nmax_age = \"2h\"\n}\n}\n}\n}\n";
    let input = input(Path::new("j.hcl"), text);
    let stored = canonicalize(&to_api(&input).unwrap(), 1).unwrap();
    assert_eq!(stored["TaskGroups"][0]["Tasks"][0]["LogConfig"]["Compress"], json!(true));
    let job = from_api(&stored, Path::new("/srv")).unwrap().job;
    assert_eq!(job.groups[0].tasks[0].logs.keeping.max_age, Some(Duration::from_hours(2)));
    assert_eq!(shown(parse(&input).unwrap().job), shown(job));
}

#[test]
fn j2_what_a_job_says_to_a_scheduler_is_read() {
    let job = |kind: &str, inside: &str| {
        let text = format!(
            "job \"j\" {{\ntype = \"{kind}\"\n{inside}\ngroup \"g\" {{\nupdate {{\ncanary = 2\n}}\ntask \"t\" {{\ndriver = \"exec\"\n}}\n}}\n}}\n"
        );
        parse(&input(Path::new("j.hcl"), &text)).unwrap().job
    };
    let service = job(
        "service",
        "datacenters = [\"a\"]\nupdate {\nhealth_check = \"manual\"\ncanary = 1\n}\nreschedule {\ndelay = \"9s\"\n}",
    );
    let group = &service.groups[0].scheduling;
    let update = group.update.as_ref().unwrap();
    assert_eq!((update.canary, update.health_check, update.max_parallel), (2, HealthCheck::Manual, 1));
    let again = group.reschedule.as_ref().unwrap();
    assert_eq!(
        (again.delay, again.delay_function, again.unlimited),
        (Duration::from_secs(9), DelayFunction::Exponential, true)
    );
    assert_eq!(service.scheduling.datacenters, ["a"]);
    assert_eq!(job("system", "").groups[0].scheduling.reschedule, None);
    let none = job("service", "").groups.remove(0);
    assert!(none.scheduling.update.is_some());
    let batch = job(
        "batch",
        "periodic {\ncrons = [\"@daily\"]\ntime_zone = \"Europe/Berlin\"\nprohibit_overlap = true\n}\nparameterized {\npayload = \"forbidden\"\nmeta_required = [\"a\"]\n}",
    );
    let periodic = batch.scheduling.periodic.unwrap();
    assert_eq!((periodic.specs, periodic.enabled), (vec!["@daily".to_owned()], true));
    assert_eq!((periodic.time_zone.as_str(), periodic.prohibit_overlap), ("Europe/Berlin", true));
    let parameterized = batch.scheduling.parameterized.unwrap();
    assert_eq!(parameterized.payload, PayloadRule::Forbidden);
    assert_eq!(parameterized.meta_required, BTreeSet::from(["a".to_owned()]));
    assert_eq!(batch.groups[0].scheduling.reschedule.as_ref().unwrap().attempts, 1);
    for (inside, message) in [
        (
            "update {\nhealth_check = \"cheks\"\n}",
            "unknown health_check \"cheks\" in update of job \"j\" (did you mean \"checks\"?)",
        ),
        (
            "reschedule {\ndelay_function = \"linear\"\n}",
            "unknown delay_function \"linear\" in reschedule of job \"j\"",
        ),
        ("parameterized {\npayload = \"some\"\n}", "unknown payload \"some\" in parameterized of job \"j\""),
    ] {
        let text = format!("job \"j\" {{\n{inside}\ngroup \"g\" {{\ntask \"t\" {{\ndriver = \"exec\"\n}}\n}}\n}}\n");
        let error = parse(&input(Path::new("j.hcl"), &text)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("j.hcl:3: {message}")), "{error}");
    }
}
