//! Nomad's rules for a task, but for its services.

use serde_json::Value;

use super::words::{items, nest, number, shown, tell, text, time};
use crate::agent::commands::error::listed;
use crate::spec::names;

/// Longest name of an action or identity, in bytes.
const LONGEST_NAME: usize = 128;

/// A task whose group has so long for the progress of an update, if that counts.
pub(super) fn check(task: &Value, progress: Option<u64>, wrong: &mut Vec<String>) {
    let kill = time(task, "KillTimeout");
    if let Some(progress) = progress.filter(|progress| *progress > 0 && kill > *progress) {
        let (kill, progress) = (shown(kill), shown(progress));
        wrong.push(format!("KillTimout ({kill}) longer than the group's ProgressDeadline ({progress})"));
    }
    let resources = &task["Resources"];
    let (secrets, memory) = (number(resources, "SecretsMB"), number(resources, "MemoryMB"));
    if secrets > memory {
        wrong.push(format!("SecretsMB value ({secrets}) cannot be larger than MemoryMB value ({memory})"));
    }
    if secrets < 0 {
        wrong.push(format!("SecretsMB value ({secrets}) cannot be negative"));
    }
    for (at, template) in items(&task["Templates"]).iter().enumerate() {
        nest(wrong, &format!("Template {}", at + 1), &of_template(template));
    }
    let mut seen = Vec::new();
    for action in items(&task["Actions"]) {
        let name = text(action, "Name");
        nest(wrong, &format!("Action {name}"), &of_action(action, name));
        if seen.contains(&name) {
            wrong.push(format!("Action {name} defined multiple times"));
        }
        seen.push(name);
    }
    if escapes(text(&task["DispatchPayload"], "File")) {
        wrong.push("Dispatch Payload validation failed: destination escapes allocation directory".to_owned());
    }
    for identity in [&task["Identity"]].into_iter().filter(|own| !own.is_null()).chain(items(&task["Identities"])) {
        // As a server calls it.
        let name = Some(text(identity, "Name")).filter(|name| !name.is_empty()).unwrap_or("default");
        let errors = of_identity(identity, name);
        if !errors.is_empty() {
            wrong.push(format!("Identity {name:?} is invalid: {}", listed(&errors)));
        }
    }
}

fn of_template(template: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let is_empty = |field: &str| text(template, field).is_empty();
    let signals = template["ChangeMode"] == "signal" && template["Envvars"] == true;
    tell(
        &mut wrong,
        &[
            (
                is_empty("SourcePath") && is_empty("EmbeddedTmpl"),
                "Must specify a source path or have an embedded template",
            ),
            (signals, "cannot use signals with env var templates"),
        ],
    );
    let [min, max] = ["Min", "Max"].map(|field| template["Wait"][field].as_u64());
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        wrong.push(format!("wait min {} is greater than max {}", shown(min), shown(max)));
    }
    wrong
}

fn of_action(action: &Value, name: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    tell(&mut wrong, &[(text(action, "Command").is_empty(), "command cannot be empty")]);
    let is_name = (1..=LONGEST_NAME).contains(&name.chars().count());
    if !is_name || name.contains(|c: char| c == '\0' || c.is_ascii_whitespace()) {
        wrong.push(format!("invalid name '{name}'"));
    }
    wrong
}

fn of_identity(identity: &Value, name: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if name.len() > LONGEST_NAME || !name.chars().all(fits) {
        wrong.push(format!("invalid name {name:?}. Must match regex ^[a-zA-Z0-9-_]{{1,128}}$"));
    }
    for (at, _) in items(&identity["Audience"]).iter().enumerate().filter(|(_, audience)| **audience == "") {
        wrong.push(format!("an empty string is an invalid audience ({})", at + 1));
    }
    let ttl = number(identity, "TTL");
    tell(
        &mut wrong,
        &[(ttl > 0 && name == "default", "ttl for default identity not yet supported"), (ttl < 0, "ttl must be >= 0")],
    );
    wrong
}

/// Whether a file below a task's `local` directory is outside of the allocation's.
fn escapes(file: &str) -> bool {
    // The directories of the task, and in it.
    let mut depth = 2_usize;
    for name in names(file) {
        match (name, depth) {
            ("..", 0) => return true,
            ("..", _) => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}
