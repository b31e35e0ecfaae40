//! `agentbin job plan`: what registering a job file would change, as the agent says.

use std::fmt::Write as _;

use serde_json::Value;

use super::api::{Api, list, part, refusal, text};
use super::shown::Texts;
use super::{JobRunArgs, NO_PLAN, complain, print, run};
use crate::jobspec;
use crate::spec::escaped_lines;
use crate::spec::json::json;

/// Status 1 if allocations would be started or stopped, 0 if none, 255 after an error, as with Nomad's command.
pub(super) fn plan(args: &JobRunArgs) -> i32 {
    shown(args).unwrap_or_else(|error| {
        complain(&crate::alloc::chain(error.as_ref()));
        NO_PLAN
    })
}

fn shown(args: &JobRunArgs) -> anyhow::Result<i32> {
    let mut texts = Texts::default();
    let parsed = run::parsed(&args.file, &args.var, &args.var_file, false, &mut texts, jobspec::to_api);
    let mut request = parsed.map_err(|error| texts.explain(error))?;
    let mut job = request["Job"].take();
    let api = Api::for_job(&args.api, &mut job)?;
    let path = format!("job/{}/plan?", part(text(&job, "ID")));
    let plan = api.ask("PUT", &path, &json!({ "Job": job, "Diff": true }).to_string())?;
    let mut out = String::new();
    difference(&mut out, &plan["Diff"], "job", 0);
    if out.is_empty() {
        out += "nothing changes\n";
    }
    let mut changes = 0;
    for (group, updates) in plan["Annotations"]["DesiredTGUpdates"].as_object().into_iter().flatten() {
        let counts = ["Place", "Stop", "Migrate", "DestructiveUpdate", "Canary"];
        let mut told = Vec::new();
        for (what, key) in ["start", "stop", "migrate", "replace", "canary"].iter().zip(counts) {
            let count = updates[key].as_u64().unwrap_or(0);
            changes += count;
            if count > 0 {
                told.push(format!("{count} {what}"));
            }
        }
        if updates["InPlaceUpdate"].as_u64().is_some_and(|count| count > 0) {
            told.push(format!("{} update in place", updates["InPlaceUpdate"]));
        }
        if !told.is_empty() {
            let _ = writeln!(out, "\ngroup {group:?}: {}", told.join(", "));
        }
    }
    for (group, why) in plan["FailedTGAllocs"].as_object().into_iter().flatten() {
        let _ = writeln!(out, "\ngroup {group:?}: {}", refusal(why));
    }
    let _ = writeln!(out, "\njob modify index {}", plan["JobModifyIndex"]);
    let warnings = text(&plan, "Warnings");
    if !warnings.is_empty() {
        complain(warnings);
    }
    print(escaped_lines(&out).as_bytes())?;
    Ok(i32::from(changes > 0))
}

/// What differs in an object, its fields first, then what is in it. Of a job, a group or a task that is new or gone there is its
/// name, as with Nomad's command.
fn difference(out: &mut String, of: &Value, what: &str, depth: usize) {
    let Some(mark) = mark(of) else { return };
    let name = match (text(of, "ID"), text(of, "Name")) {
        ("", "") => String::new(),
        ("", name) | (name, _) => format!(" {name:?}"),
    };
    let indent = "  ".repeat(depth);
    let _ = writeln!(out, "{indent}{mark} {what}{name}");
    let is_whole = mark != "+/-" && what != "block";
    for field in list(&of["Fields"]).iter().filter(|_| !is_whole) {
        let (old, new) = (text(field, "Old"), text(field, "New"));
        let Some(mark) = self::mark(field) else { continue };
        let values = match mark {
            "+" => format!("{new:?}"),
            "-" => format!("{old:?}"),
            _ => format!("{old:?} => {new:?}"),
        };
        let _ = writeln!(out, "{indent}  {mark} {}: {values}", text(field, "Name"));
    }
    for object in list(&of["Objects"]).iter().filter(|_| !is_whole) {
        difference(out, object, "block", depth + 1);
    }
    for group in list(&of["TaskGroups"]) {
        difference(out, group, "group", depth + 1);
    }
    for task in list(&of["Tasks"]) {
        difference(out, task, "task", depth + 1);
    }
}

fn mark(of: &Value) -> Option<&'static str> {
    match text(of, "Type") {
        "Added" => Some("+"),
        "Deleted" => Some("-"),
        "Edited" => Some("+/-"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_differs_is_shown_by_depth() {
        let field =
            |kind: &str, name: &str, old: &str, new: &str| json!({"Type": kind, "Name": name, "Old": old, "New": new});
        let task = json!({
            "Type": "Edited", "Name": "t", "Fields": [field("None", "Driver", "exec", "exec")],
            "Objects": [{"Type": "Added", "Name": "Config", "Fields": [field("Added", "args[0]", "", "a\u{1b}b")]}],
        });
        let group =
            json!({"Type": "Edited", "Name": "g", "Fields": [field("Edited", "Count", "1", "2")], "Tasks": [task]});
        let gone = json!({"Type": "Deleted", "Name": "old", "Fields": [field("Deleted", "Count", "3", "")]});
        let diff = json!({"Type": "Edited", "ID": "web", "Fields": null, "TaskGroups": [group, gone, {"Type": "None", "Name": "x"}]});
        let mut out = String::new();
        difference(&mut out, &diff, "job", 0);
        let expected = [
            "+/- job \"web\"",
            "  +/- group \"g\"",
            "    +/- Count: \"1\" => \"2\"",
            "    +/- task \"t\"",
            "      + block \"Config\"",
            "        + args[0]: \"a\\u{1b}b\"",
            "  - group \"old\"",
            "",
        ];
        assert_eq!(out, expected.join("\n"));
        out.clear();
        difference(&mut out, &json!({"Type": "None", "ID": "web"}), "job", 0);
        assert_eq!(out, "");
    }
}
