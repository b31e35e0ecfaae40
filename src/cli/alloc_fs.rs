//! `agentbin alloc fs`: the directory of an allocation of this machine's agent, over its API.

use std::io::Read;

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::api::{Api, about, failed, list, part, print_json, text};
use super::ask::{Answer, BODY_PIECE, BROKEN, Body};
use super::runs::{row, table};
use super::{ApiArgs, print};
use crate::spec::escaped_lines;

/// Lines that `--tail` shows.
const LINES: u64 = 10;
/// Bytes in which the last lines are looked for first.
const WINDOW: u64 = 16 << 10;
/// Longest frame of a file that is followed: 64 KiB of it as base64, with a name.
const LONGEST_FRAME: usize = 1 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct FsArgs {
    /// Id of an allocation, or the beginning of one; with --job of a job
    alloc: String,
    /// A directory, which is listed, or a file, which is printed
    #[arg(default_value = "/")]
    path: String,
    /// The newest allocation of a job
    #[arg(long)]
    job: bool,
    /// Describe the file instead of printing it
    #[arg(long)]
    stat: bool,
    /// Follow the file as it grows
    #[arg(short = 'f', long, conflicts_with = "stat")]
    follow: bool,
    /// Show the end of the file: the last 10 lines, or as given by -n or -c
    #[arg(long, conflicts_with = "stat")]
    tail: bool,
    /// Begin this many lines before the end
    #[arg(short = 'n', long, value_name = "LINES", conflicts_with_all = ["bytes", "stat"])]
    lines: Option<u64>,
    /// Begin this many bytes before the end
    #[arg(short = 'c', long, value_name = "BYTES", conflicts_with = "stat")]
    bytes: Option<u64>,
    /// Print JSON, as the API has it: the list of a directory, or what --stat says
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    api: ApiArgs,
}

/// Whatever fails is status 1, as with Nomad's command.
pub(super) fn run(args: &FsArgs) -> i32 {
    failed(shown(args))
}

/// A directory or file of an allocation.
struct Place<'a> {
    api: &'a Api,
    alloc: String,
    path: String,
}

impl Place<'_> {
    fn of(&self, what: &str) -> String {
        format!("client/fs/{what}/{}?path={}", self.alloc, self.path)
    }

    /// A file from an offset on.
    fn read_at(&self, offset: u64) -> anyhow::Result<Answer> {
        self.api.open("GET", &format!("{}&offset={offset}", self.of("readat")))
    }

    /// Where the last lines of a file of this size begin.
    fn before(&self, size: u64, lines: u64) -> anyhow::Result<u64> {
        let Some(above) = lines.checked_sub(1) else { return Ok(size) };
        let above = usize::try_from(above).unwrap_or(usize::MAX);
        let mut window = WINDOW;
        loop {
            let from = size.saturating_sub(window);
            let mut found = Vec::new();
            self.read_at(from)?.body.take(size - from).read_to_end(&mut found).context(BROKEN)?;
            // The end of the last line is not a beginning of another one.
            let mut ends = found.iter().enumerate().rev().skip(1).filter(|(_, byte)| **byte == b'\n');
            if let Some((at, _)) = ends.nth(above) {
                return Ok(from + at as u64 + 1);
            }
            if from == 0 {
                return Ok(0);
            }
            window = window.saturating_mul(4);
        }
    }
}

fn shown(args: &FsArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let alloc = if args.job {
        let job = api.job(&args.alloc)?;
        let all = api.allocs(&job)?;
        let newest = all.first().with_context(|| format!("job {job:?} has no allocation"))?;
        text(newest, "ID").to_owned()
    } else {
        api.find("allocation", &args.alloc, "agentbin job allocs JOB lists those of a job")?
    };
    let place = Place { api: &api, alloc, path: part(&args.path) };
    let stat = api.get(&place.of("stat"))?;
    if args.stat {
        if args.json {
            return print_json(&stat);
        }
        let members = [("Mode", "FileMode"), ("Size", "Size"), ("Modified", "ModTime"), ("Name", "Name")];
        return print(escaped_lines(&about(&stat, &members)).as_bytes());
    }
    if stat["IsDir"] == true {
        ensure!(!args.follow && !args.tail, "{} is a directory", args.path);
        return directory(&api.get(&place.of("ls"))?, args.json);
    }
    ensure!(!args.json, "{} is a file, whose content is printed as it is", args.path);
    let size = stat["Size"].as_u64().unwrap_or(0);
    let from = match (args.bytes, args.lines) {
        (Some(bytes), _) => size.saturating_sub(bytes),
        (_, Some(lines)) => place.before(size, lines)?,
        _ if args.tail => place.before(size, LINES)?,
        _ => 0,
    };
    if args.follow {
        return follow(api.open("GET", &format!("{}&origin=start&offset={from}", place.of("stream")))?.body);
    }
    place.read_at(from)?.print()
}

fn directory(entries: &Value, json: bool) -> anyhow::Result<i32> {
    if json {
        return print_json(entries);
    }
    let mut rows = vec![row(&["MODE", "SIZE", "MODIFIED", "NAME"])];
    for entry in list(entries) {
        let slash = if entry["IsDir"] == true { "/" } else { "" };
        let (size, name) = (entry["Size"].to_string(), format!("{}{slash}", text(entry, "Name")));
        rows.push(row(&[text(entry, "FileMode"), &size, text(entry, "ModTime"), &name]));
    }
    print(escaped_lines(&table(&rows)).as_bytes())
}

/// Prints the data of frames until the agent ends them.
fn follow(mut body: Body) -> anyhow::Result<i32> {
    let (mut held, mut piece) = (Vec::new(), vec![0; BODY_PIECE]);
    loop {
        let length = body.read(&mut piece).context(BROKEN)?;
        if length == 0 {
            return Ok(0);
        }
        held.extend_from_slice(&piece[..length]);
        while let Some(end) = frame(&held) {
            let frame: Value = serde_json::from_slice(&held[..end]).context("cannot read the agent's answer")?;
            let data = STANDARD.decode(text(&frame, "Data")).context("cannot read the agent's answer")?;
            print(&data)?;
            if !text(&frame, "FileEvent").is_empty() {
                super::complain(text(&frame, "FileEvent"));
            }
            held.drain(..end);
        }
        if held.len() > LONGEST_FRAME {
            bail!("cannot read the agent's answer: a frame is longer than {LONGEST_FRAME} bytes");
        }
    }
}

/// Where the first whole JSON object of these bytes ends.
fn frame(bytes: &[u8]) -> Option<usize> {
    let (mut depth, mut in_text, mut escaped) = (0_u32, false, false);
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'{' if !in_text => depth += 1,
            b'}' if !in_text => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::frame;

    #[test]
    fn frames_end_where_their_objects_do() {
        for (bytes, end) in [
            ("", None),
            ("{}", Some(2)),
            ("{}{\"Data\"", Some(2)),
            (r#"{"File":"a}\"b{","Offset":1}{"#, Some(28)),
            (r#"{"a":{"b":1}}"#, Some(13)),
            (r#"{"File":"\\"}x"#, Some(13)),
            (r#"{"File":"}"#, None),
            ("\n{}", Some(3)),
        ] {
            assert_eq!(frame(bytes.as_bytes()), end, "{bytes}");
        }
    }
}
