//! `--payload` and `--meta`: what `nomad job dispatch` passes to a parameterized job on a cluster.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, bail};

use super::RunArgs;
use crate::jobspec::{self, Diagnostic, Parsed, did_you_mean};
use crate::spec::collections::BTreeMap;
use crate::spec::{DispatchError, LONGEST_PAYLOAD, Parameterized, Pos};

/// The payload and metadata of the command line.
#[derive(Debug, Default)]
pub(super) struct Dispatch {
    /// Empty if there is none.
    pub(super) payload: Vec<u8>,
    meta: BTreeMap<String, String>,
}

impl Dispatch {
    /// # Errors
    /// When the payload cannot be read, or is longer than Nomad accepts.
    pub(super) fn of(args: &RunArgs) -> anyhow::Result<Dispatch> {
        let dash = Path::new("-");
        let payload = match &args.payload {
            Some(file) if file == dash && args.file == dash => {
                bail!("--payload - and the job file - cannot both be standard input; give one of them as a file")
            }
            Some(file) if file == dash => {
                let (mut bytes, most) = (Vec::new(), LONGEST_PAYLOAD as u64 + 1);
                let read = std::io::stdin().take(most).read_to_end(&mut bytes);
                read.context("cannot read --payload from standard input")?;
                bytes
            }
            Some(file) => {
                jobspec::read_bytes(file).with_context(|| format!("cannot read --payload {}", file.display()))?
            }
            None => Vec::new(),
        };
        if payload.len() > LONGEST_PAYLOAD {
            bail!("--payload has more than {LONGEST_PAYLOAD} bytes; make it shorter");
        }
        Ok(Dispatch { payload, meta: args.meta.iter().cloned().collect() })
    }

    /// Passes the payload and metadata to the job, or refuses them.
    ///
    /// # Errors
    /// When there is a payload or metadata, and the job is not parameterized.
    pub(super) fn give(&self, parsed: &mut Parsed) -> anyhow::Result<()> {
        let nothing = self.payload.is_empty() && self.meta.is_empty();
        let Some(rules) = &parsed.job.scheduling.parameterized else {
            if !nothing {
                bail!("--payload and --meta are for a job with a parameterized block, which this one has not");
            }
            return Ok(());
        };
        match rules.check(&self.payload, &self.meta) {
            Err(error) => {
                let refusal = Diagnostic::new(&rules.pos, told(rules, &error));
                parsed.refusals.push(refusal);
            }
            Ok(()) if nothing => parsed.warnings.push(once(&rules.pos)),
            Ok(()) => parsed.job.meta.extend(self.meta.clone()),
        }
        Ok(())
    }
}

/// Adds a warning that says what the job has to be dispatched with, or that it starts as it is.
pub(super) fn advise(parsed: &mut Parsed) {
    let Some(rules) = &parsed.job.scheduling.parameterized else { return };
    let advice = match rules.check(&[], &BTreeMap::new()) {
        Err(error) => format!("{}: {}", rules.pos, told(rules, &error)),
        Ok(()) => once(&rules.pos),
    };
    parsed.warnings.push(advice);
}

fn once(pos: &Pos) -> String {
    format!("{pos}: parameterized has no effect with agentbin run: the job is started once, now")
}

/// What is wrong with a dispatch, and the flag that fixes it.
fn told(rules: &Parameterized, error: &DispatchError) -> String {
    let known = || rules.meta_required.iter().chain(&rules.meta_optional).map(String::as_str);
    match error {
        DispatchError::NoPayload => "the job needs a payload; give --payload FILE to agentbin run".to_owned(),
        DispatchError::ForbiddenPayload => "the job takes no payload; leave --payload out".to_owned(),
        DispatchError::LongPayload(bytes) => {
            format!("the payload has {bytes} bytes, and at most {LONGEST_PAYLOAD} are possible; make it shorter")
        }
        DispatchError::UnknownMeta(keys) => {
            let first = keys.first().map_or("", String::as_str);
            let hint = did_you_mean(first, known());
            let fix = match known().collect::<Vec<_>>().join(", ") {
                _ if !hint.is_empty() => hint,
                none if none.is_empty() => "; leave --meta out, or name the key in meta_optional".to_owned(),
                names => format!("; it takes {names}"),
            };
            format!("the job does not take --meta {}{fix}", keys.join(", "))
        }
        DispatchError::NoMeta(keys) => {
            let flags: Vec<String> = keys.iter().map(|key| format!("--meta {key}=VALUE")).collect();
            format!("the job needs metadata; give {} to agentbin run", flags.join(" "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(block: &str) -> Parsed {
        let text = format!(
            "job \"j\" {{\n{block}\nmeta {{\nk = \"v\"\n}}\ngroup \"g\" {{\ntask \"t\" {{ driver = \"exec\" }}\n}}\n}}\n"
        );
        let input = jobspec::Input {
            file: Path::new("j.hcl"),
            text: &text,
            vars: &[],
            var_files: &[],
            env: &[],
            base_dir: Path::new("/srv"),
            stays_in_base_dir: false,
        };
        jobspec::parse(&input).unwrap()
    }

    fn dispatch(payload: &str, meta: &[(&str, &str)]) -> Dispatch {
        let meta = meta.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Dispatch { payload: payload.into(), meta }
    }

    #[test]
    fn j7_a_run_gives_what_a_dispatch_gives() {
        let block = "parameterized {\npayload = \"required\"\nmeta_required = [\"a\"]\nmeta_optional = [\"bee\"]\n}";
        let mut job = parsed(block);
        assert_eq!((&*job.warnings, &*job.refusals), (&[][..], &[][..]));
        dispatch("x", &[("a", "1")]).give(&mut job).unwrap();
        assert_eq!(job.refusals, []);
        assert_eq!(job.job.meta, BTreeMap::from([("a", "1"), ("k", "v")].map(|(k, v)| (k.to_owned(), v.to_owned()))));
        for (given, expected) in [
            (dispatch("", &[]), "the job needs a payload; give --payload FILE to agentbin run"),
            (dispatch("x", &[]), "the job needs metadata; give --meta a=VALUE to agentbin run"),
            (dispatch("x", &[("a", ""), ("bea", "")]), "the job does not take --meta bea (did you mean \"bee\"?)"),
            (
                dispatch(&"x".repeat(20_000), &[("a", "")]),
                "the payload has 20000 bytes, and at most 16384 are possible; make it shorter",
            ),
        ] {
            let mut job = parsed(block);
            given.give(&mut job).unwrap();
            assert_eq!(
                job.refusals.iter().map(ToString::to_string).collect::<Vec<_>>(),
                [format!("j.hcl:2: {expected}")]
            );
        }
        let mut job = parsed("parameterized {\npayload = \"forbidden\"\n}");
        dispatch("x", &[]).give(&mut job).unwrap();
        assert_eq!(job.refusals[0].message, "the job takes no payload; leave --payload out");
    }

    #[test]
    fn j7_one_that_needs_nothing_is_started_as_it_is() {
        let warned = "j.hcl:2: parameterized has no effect with agentbin run: the job is started once, now";
        let mut job = parsed("parameterized {\n}");
        Dispatch::default().give(&mut job).unwrap();
        assert_eq!((&*job.warnings, &*job.refusals), (&[warned.to_owned()][..], &[][..]));
        let mut job = parsed("parameterized {\nmeta_required = [\"a\", \"b\"]\n}");
        advise(&mut job);
        assert_eq!(
            job.warnings,
            ["j.hcl:2: the job needs metadata; give --meta a=VALUE --meta b=VALUE to agentbin run"]
        );
        let mut job = parsed("");
        Dispatch::default().give(&mut job).unwrap();
        advise(&mut job);
        assert_eq!(job.warnings, Vec::<String>::new());
        let error = dispatch("", &[("a", "")]).give(&mut job).unwrap_err().to_string();
        assert!(error.contains("a job with a parameterized block"), "{error}");
    }
}
