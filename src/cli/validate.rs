//! `agentbin validate`: checks a job file without starting anything.

use serde_json::Value as Json;

use super::config::Operator;
use super::output::json_text;
use super::run::parsed as read;
use super::shown::{SHOWN, Texts};
use super::{ValidateArgs, complain, dispatch, networks, placement, plugins, print, volumes};
use crate::agent::model::Nanos;
use crate::agent::schedule::periodic::{self, PeriodicError};
use crate::jobspec::{self, Diagnostic};
use crate::spec::json;
use crate::spec::json::json;
use crate::spec::{Job, escaped};

/// Exit status for an invalid file.
const INVALID: i32 = 1;

pub(super) fn run(args: &ValidateArgs) -> anyhow::Result<i32> {
    let mut texts = Texts::default();
    if args.output_json {
        return output(args, &mut texts);
    }
    let (errors, parsed) = match read(&args.file, &args.var, &args.var_file, false, &mut texts, jobspec::parse) {
        Ok(mut parsed) => {
            let operator = Operator::find(&args.config, &args.volume, &args.host_network)?;
            dispatch::advise(&mut parsed);
            networks::check(&mut parsed, &operator.networks);
            let csi = volumes::csi_volumes(None, &args.csi);
            volumes::check(&mut parsed, &operator.volumes, (&args.csi, &csi), operator.config.isolation_minimum);
            let plugin_dir = plugins::dir(args.plugin_dir.as_deref(), &operator.config);
            let given =
                plugins::Given { dir: plugin_dir.as_deref(), config: &operator.config, quiet: true, outlive: false };
            placement::check(&mut parsed, None, None, &given)?;
            plugins::check(&mut parsed, &given, &texts)?;
            (clock(&parsed.job), Some(parsed))
        }
        Err(error) => (error.downcast::<jobspec::Error>()?.diagnostics, None),
    };
    let (warnings, refusals) = parsed.as_ref().map_or((&[][..], &[][..]), |p| (&p.warnings[..], &p.refusals[..]));
    let doubtful = !warnings.is_empty() || !refusals.is_empty();
    let valid = errors.is_empty() && !(args.strict && doubtful);
    let status = if valid { 0 } else { INVALID };
    if args.json {
        let answer = json!({
            "file": args.file.to_string_lossy(),
            "job": parsed.as_ref().map(|p| &p.job.id),
            "valid": valid,
            "runnable": errors.is_empty() && refusals.is_empty(),
            "errors": errors.iter().map(place).collect::<Vec<_>>(),
            "refusals": refusals.iter().map(place).collect::<Vec<_>>(),
            "warnings": warnings,
        });
        print((json_text(&answer) + "\n").as_bytes())?;
        return Ok(status);
    }
    tell(&errors, &texts);
    for refusal in refusals {
        complain(&format!("warning: {}", texts.show(refusal)));
    }
    for warning in warnings {
        complain(&format!("warning: {warning}"));
    }
    if !valid && errors.is_empty() {
        complain("not valid: --strict treats warnings as errors");
    }
    let file = args.file.display().to_string();
    let file = escaped(&file);
    let verdict = match (valid, refusals.is_empty()) {
        (false, _) => return Ok(status),
        (true, true) => format!("{file} is valid\n"),
        (true, false) => format!("{file} is valid, but agentbin run would refuse it: see the warnings\n"),
    };
    print(verdict.as_bytes())?;
    Ok(status)
}

/// What is wrong with a job's clock. A run starts such a job once, whatever its clock; an agent refuses it.
fn clock(job: &Job) -> Vec<Diagnostic> {
    let Some(clock) = job.scheduling.periodic.as_ref().filter(|clock| clock.enabled) else { return Vec::new() };
    if clock.specs.is_empty() {
        return vec![Diagnostic::new(&clock.pos, "periodic says no time; add cron = \"0 4 * * *\"")];
    }
    let wrong = |spec: &String| periodic::next(spec, &clock.time_zone, Nanos(0)).err();
    let mut errors = Vec::new();
    for error in clock.specs.iter().filter_map(wrong) {
        let pos = if matches!(error, PeriodicError::Zone(_)) { &clock.time_zone_pos } else { &clock.pos };
        let diagnostic = Diagnostic::new(pos, error.to_string());
        if !errors.contains(&diagnostic) {
            errors.push(diagnostic);
        }
    }
    errors
}

/// The job in the format of Nomad's API.
fn output(args: &ValidateArgs, texts: &mut Texts) -> anyhow::Result<i32> {
    match read(&args.file, &args.var, &args.var_file, false, texts, jobspec::to_api) {
        Ok(job) => print((json::to_string_pretty(&job)? + "\n").as_bytes()),
        Err(error) => {
            tell(&error.downcast::<jobspec::Error>()?.diagnostics, texts);
            Ok(INVALID)
        }
    }
}

fn tell(errors: &[Diagnostic], texts: &Texts) {
    errors.iter().take(SHOWN).for_each(|error| complain(&texts.show(error)));
    if let Some(more @ 1..) = errors.len().checked_sub(SHOWN) {
        complain(&format!("{more} more mistakes are not shown"));
    }
}

fn place(diagnostic: &Diagnostic) -> Json {
    let Diagnostic { pos, message } = diagnostic;
    json!({ "file": &*pos.file, "line": pos.line, "column": pos.column, "message": message })
}
