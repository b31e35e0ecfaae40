//! What reads bytes of others, as functions of any bytes: for `fuzz/`, and for the tests, which run the corpus there. Never part of a
//! release (feature `fuzzing`).
//!
//! Each returns when all is well, and panics where a reader does, or where what was read and written again is another thing.

use std::path::Path;
use std::time::SystemTime;

use prost::Message as _;

use crate::container::{Config, check_seccomp, lookup_user};
use crate::driver::hclspec::{Body, Schema};
use crate::driver::state::GoDriverState;
use crate::logs::{framer, ship};
use crate::plugin::{Handshake, HclogLine, ReattachConfig};
use crate::spec::Seccomp;
use crate::template::{Found, Host, Limits, Service, Template};
use crate::wire::{cty, hclspec};

/// Reads anything, and must not panic.
pub type Target = fn(&[u8]);

/// Every target by its name, which is also that of its corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("rotation_names", rotation_names),
    ("cursors", cursors),
    ("frames", frames),
    ("lines", lines),
    ("sinks", sinks),
    ("handshake", handshake),
    ("hclog", hclog),
    ("msgpack", msgpack),
    ("cty_values", cty_values),
    ("hclspec_bodies", hclspec_bodies),
    ("expressions", expressions),
    ("job_files", job_files),
    ("templates", templates),
    ("seccomp_profiles", seccomp_profiles),
    ("user_files", user_files),
    ("records", records),
];

fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

/// The parts between zero bytes; the last has the rest.
fn parts<const N: usize>(data: &[u8]) -> [&[u8]; N] {
    let mut split = data.splitn(N, |byte| *byte == 0);
    std::array::from_fn(|_| split.next().unwrap_or_default())
}

/// Names of rotated files.
pub fn rotation_names(data: &[u8]) {
    let [base, name] = parts(data);
    let Some(base) = text(base) else { return };
    if let Some(index) = crate::logs::rotation_index(base, name) {
        assert_eq!(format!("{base}.{index}").as_bytes(), name, "one name for one number");
    }
}

/// Records of shipments.
pub fn cursors(data: &[u8]) {
    ship::check_record(data);
}

/// Frames of the HTTP API, in one piece and in two.
pub fn frames(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    let cut = usize::from(*first).min(data.len());
    let whole = framer::Decoder::default().feed(data);
    let mut decoder = framer::Decoder::default();
    let halves = decoder.feed(&data[..cut]).and_then(|mut frames| {
        frames.extend(decoder.feed(&data[cut..])?);
        Ok(frames)
    });
    let Ok(whole) = whole else { return };
    assert_eq!(halves.expect("what is right in one piece is right in two"), whole);
    for frame in whole {
        let again = framer::Decoder::default().feed(&frame.to_json()).expect("what we write we read");
        assert_eq!(again, [frame]);
    }
}

/// Lines out of pieces of a stream.
pub fn lines(data: &[u8]) {
    ship::check_lines(data, SystemTime::UNIX_EPOCH);
}

/// URLs of sinks.
pub fn sinks(data: &[u8]) {
    let Some(url) = text(data) else { return };
    let shown = |url: &str| match url.parse::<ship::Sink>() {
        Ok(sink) => format!("{sink} {sink:?}"),
        Err(error) => error.to_string(),
    };
    let said = shown(url);
    if let Some((before, rest)) = url.split_once("//")
        && let Some((secret, after)) = rest.rsplit_once('@')
        && secret.len() > 8
    {
        // What is said with another secret, too, stands there by chance.
        let other = |c: char| {
            if "/:@[]".contains(c) {
                c
            } else if c.is_ascii_digit() {
                '1'
            } else {
                '-'
            }
        };
        let otherwise = shown(&format!("{before}//{}@{after}", secret.chars().map(other).collect::<String>()));
        assert!(!said.contains(secret) || otherwise.contains(secret), "a secret is shown");
    }
}

/// The line with which a plugin begins.
pub fn handshake(data: &[u8]) {
    let Some(line) = text(data) else { return };
    for asked_tls in [false, true] {
        if let Ok(handshake) = Handshake::parse(line, &[1, 2], asked_tls) {
            let again = Handshake::parse(&handshake.to_string(), &[1, 2], asked_tls).expect("what we write we read");
            assert_eq!(again.to_string(), handshake.to_string());
        }
    }
}

/// Log lines of plugins, and what agents keep of them.
pub fn hclog(data: &[u8]) {
    let Some(text) = text(data) else { return };
    for line in text.lines() {
        let _ = HclogLine::parse(line);
    }
    if let Ok(config) = ReattachConfig::parse(text) {
        ReattachConfig::parse(&config.to_json()).expect("what we write we read");
    }
}

/// States of tasks that Go's drivers wrote.
pub fn msgpack(data: &[u8]) {
    if let Ok(state) = GoDriverState::from_bytes(data)
        && let Ok(bytes) = state.to_bytes()
    {
        let again = GoDriverState::from_bytes(&bytes).expect("what we write we read");
        assert_eq!(again.to_bytes().expect("it was written before"), bytes);
    }
}

/// Configurations that agents send.
pub fn cty_values(data: &[u8]) {
    let _ = cty::decode(data);
}

/// Schemas of plugins, and configurations for them.
pub fn hclspec_bodies(data: &[u8]) {
    let [body, spec] = parts(data);
    let Some(body) = text(body) else { return };
    let body = Body::parse(Path::new("body.hcl"), body);
    let Some(schema) = hclspec::Spec::decode(spec).ok().and_then(|spec| Schema::new(&spec).ok()) else { return };
    let Ok(body) = body else { return };
    if let Ok(bytes) = schema.encode(&body, &serde_json::Map::new()) {
        cty::decode(&bytes).expect("what we write we read");
    }
}

/// Job files, in HCL and JSON.
pub fn job_files(data: &[u8]) {
    let Some(text) = text(data) else { return };
    // Its functions read files, as they should, and this is not about what lies around.
    if ["file", "bcrypt"].iter().any(|name| text.contains(name)) {
        return;
    }
    let input = crate::jobspec::Input {
        file: Path::new("job.nomad.hcl"),
        text,
        vars: &[],
        var_files: &[],
        env: &[],
        base_dir: Path::new("/nonexistent"),
        stays_in_base_dir: false,
    };
    let _ = crate::jobspec::parse(&input);
}

/// One expression of a job file, with a local value, a variable and a list to use.
pub fn expressions(data: &[u8]) {
    let Some(text) = text(data) else { return };
    job_files(
        format!(
            "variable \"v\" {{\n default = {{ a = [1, 2.5, \"x\"], b = null }}\n}}\nlocals {{\n l = [\"a\", \"b\"]\n e = {text}\n}}\n\
             job \"j\" {{\n meta {{\n e = local.e\n s = \"${{local.e}}\"\n }}\n group \"g\" {{\n task \"t\" {{\n driver = \"exec\"\n \
             config {{\n command = \"x\"\n args = [for k in local.l : k]\n }}\n }}\n }}\n}}\n"
        )
        .as_bytes(),
    );
}

/// A machine on which a template finds a little of everything.
struct Machine;

impl Host for Machine {
    fn env(&self, name: &str) -> Option<Vec<u8>> {
        (name.len() < 9).then(|| name.as_bytes().to_vec())
    }

    fn file(&self, path: &[u8]) -> Result<Vec<u8>, String> {
        if path.starts_with(b"/") { Err("outside".to_owned()) } else { Ok([path, b"\nline\xff"].concat()) }
    }

    fn key(&self, path: &str) -> Found<String> {
        if path.contains("no") { Found::Missing } else { Found::Here(r#"{"a":[1,2.5,"x"]}"#.to_owned()) }
    }

    fn tree(&self, prefix: &str) -> Vec<(String, String)> {
        vec![("a".to_owned(), prefix.to_owned()), ("b/c".to_owned(), "2".to_owned())]
    }

    fn secret(&self, path: &str) -> Found<serde_json::Value> {
        Found::Here(crate::spec::json::json!({ "path": path, "n": 1, "list": [true, null, { "k": -1.5e300 }] }))
    }

    fn secrets(&self, path: &str) -> Vec<String> {
        vec![path.to_owned()]
    }

    fn variable(&self, path: &str) -> Found<crate::spec::collections::BTreeMap<String, String>> {
        if path.is_empty() { Found::Missing } else { Found::Here([("k".to_owned(), path.to_owned())].into()) }
    }

    fn variables(&self, prefix: &str) -> Vec<String> {
        vec![format!("{prefix}/x")]
    }

    fn services(&self) -> Vec<Service> {
        let named = |name: &str, port| Service { name: name.to_owned(), port, ..Service::default() };
        vec![named("web", 80), named("web", 81), named("db", 0)]
    }

    fn now(&self) -> (i64, u32) {
        (1_700_000_000, 5)
    }
}

/// Templates, rendered with limits so small that each takes a moment.
pub fn templates(data: &[u8]) {
    let cancel = std::sync::atomic::AtomicBool::new(false);
    let Ok(template) = Template::parse(data, "{{", "}}", &cancel) else { return };
    let limits = Limits { rendered: 1 << 16, made: 1 << 20, steps: 20_000, depth: 200 };
    match template.render(&Machine, data.len().is_multiple_of(2), limits, &cancel) {
        Ok(rendered) => assert!(rendered.output.len() <= limits.rendered, "{} bytes", rendered.output.len()),
        // Other messages may quote the template.
        Err(error) => assert_ne!(error.message, "the renderer panicked"),
    }
}

/// Profiles for system calls.
pub fn seccomp_profiles(data: &[u8]) {
    let Some(profile) = text(data) else { return };
    let _ = check_seccomp(&Seccomp::Profile(profile.to_owned()), &[]);
}

/// passwd and group files of a task's root.
pub fn user_files(data: &[u8]) {
    let [name, passwd, group] = parts(data);
    let [Some(name), Some(passwd), Some(group)] = [name, passwd, group].map(text) else { return };
    let _ = lookup_user(passwd, group, name);
}

/// What a shim is told, and records of allocations.
pub fn records(data: &[u8]) {
    if let Ok(config) = crate::spec::json::from_slice::<Config>(data) {
        let bytes = crate::spec::json::to_vec(&config).expect("texts and numbers");
        assert_eq!(crate::spec::json::from_slice::<Config>(&bytes).expect("what we write we read"), config);
    }
    if let Ok(record) = crate::spec::json::from_slice::<crate::alloc::Record>(data) {
        let _ = record.id();
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn fuzz() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
    }

    fn corpus(target: &str) -> Vec<Vec<u8>> {
        let entries = std::fs::read_dir(fuzz().join("corpus").join(target));
        let mut paths: Vec<_> =
            entries.unwrap_or_else(|e| panic!("{target}: {e}")).map(|e| e.unwrap().path()).collect();
        paths.sort();
        paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
    }

    /// splitmix64
    fn next(state: &mut u64) -> usize {
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) as usize
    }

    /// What was found once is found again at once, and a hundred inputs like it for each target, always the same;
    /// `AGENTBIN_FUZZ` says how many.
    #[test]
    fn every_target_takes_its_corpus_and_inputs_like_it() {
        let runs = std::env::var("AGENTBIN_FUZZ").ok().map_or(100_u64, |runs| runs.parse().unwrap());
        for (name, target) in TARGETS {
            let corpus = corpus(name);
            assert!(!corpus.is_empty(), "{name} has no corpus");
            target(b"");
            for input in &corpus {
                target(input);
            }
            let mut state = 1;
            for _ in 0..runs {
                let mut input = corpus[next(&mut state) % corpus.len()].clone();
                for _ in 0..=next(&mut state) % 4 {
                    let at = next(&mut state) % (input.len() + 1);
                    match next(&mut state) % 4 {
                        0 => input.truncate(at),
                        1 => input.insert(at, next(&mut state) as u8),
                        2 if at < input.len() => input[at] ^= 1 << (next(&mut state) % 8),
                        _ => {
                            let other = &corpus[next(&mut state) % corpus.len()];
                            input.extend_from_slice(&other[other.len().min(at)..]);
                        }
                    }
                }
                target(&input);
            }
        }
    }

    #[test]
    fn every_target_is_a_program() {
        let manifest = std::fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
        for (name, _) in TARGETS {
            assert!(manifest.contains(&format!("name = \"{name}\"\n")), "fuzz/Cargo.toml lacks {name}");
            let program = std::fs::read_to_string(fuzz().join("fuzz_targets").join(format!("{name}.rs")));
            assert!(program.is_ok_and(|text| text.contains(&format!("agentbin::fuzz::{name}(data)"))), "{name}");
        }
        assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
    }
}
