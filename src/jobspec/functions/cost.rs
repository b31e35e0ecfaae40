//! What a call costs, told from its arguments: for functions whose result can be much larger than what they are given.

use super::hashes;
use crate::jobspec::budget::size;
use crate::jobspec::value::Value;

/// What a call takes.
pub(in crate::jobspec) struct Cost {
    /// Work, for [`Budget::step`](crate::jobspec::budget::Budget::step).
    pub steps: u64,
    /// Most bytes of its result and of what it makes on the way.
    pub bytes: u64,
}

/// What one value of a decoded text takes with its place.
const DECODED: u64 = 256;
/// What an object takes, whose first node has room for eleven members.
const OBJECT: u64 = 768;
/// How much longer a text can become that is encoded.
const ENCODED: u64 = 8;
/// Widest that a verb makes a value.
const WIDEST: u64 = 1100;

/// What a call of a function with these arguments takes at most.
pub(in crate::jobspec) fn cost(name: &str, args: &[Value]) -> Cost {
    let given: u64 = args.iter().fold(0, |sum, arg| sum.saturating_add(size(arg)));
    let text = |i: usize| match args.get(i) {
        Some(Value::String(text)) => text.as_str(),
        _ => "",
    };
    let int = |i: usize| args.get(i).and_then(Value::to_number).and_then(crate::jobspec::value::Number::to_int);
    let bytes = match name {
        "replace" => {
            let found = text(0).matches(text(1)).count() as u64;
            found.saturating_mul(text(2).len() as u64).saturating_add(given)
        }
        "join" => {
            let count = |arg: &Value| arg.elements().map_or(0, |items| items.len() as u64);
            let elements: u64 = args.iter().map(count).sum();
            elements.saturating_mul(text(0).len() as u64).saturating_add(given)
        }
        "indent" => {
            let spaces = u64::try_from(int(0).unwrap_or(0)).unwrap_or(0);
            (text(1).matches('\n').count() as u64).saturating_mul(spaces).saturating_add(given)
        }
        "format" | "formatlist" => {
            let verbs = text(0).matches('%').count() as u64;
            let rows = args.iter().filter_map(Value::elements).map(<[Value]>::len).max().unwrap_or(1).max(1) as u64;
            let rows = if name == "format" { 1 } else { rows };
            let largest = |arg: &Value| match arg.elements() {
                Some(items) if name == "formatlist" => items.iter().map(size).max().unwrap_or(0),
                _ => size(arg),
            };
            let largest = args[1.min(args.len())..].iter().map(largest).max().unwrap_or(0);
            let row = verbs.saturating_mul(largest.saturating_mul(ENCODED).saturating_add(WIDEST));
            rows.saturating_mul(row.saturating_add(text(0).len() as u64))
        }
        "split" => {
            let pieces = if text(0).is_empty() { text(1).len() } else { text(1).matches(text(0)).count() + 1 };
            (pieces as u64).saturating_mul(128).saturating_add(given)
        }
        "csvdecode" => {
            let lines = marks(text(0), b"\n\r");
            // Names in quotes may go over several lines.
            let mut reader = csv::Reader::from_reader(text(0).as_bytes());
            let names = reader.headers().map_or(0, |names| names.iter().map(str::len).sum::<usize>()) as u64;
            let rows = lines.saturating_mul(OBJECT.saturating_add(2 * names));
            rows.saturating_add(marks(text(0), b",").saturating_mul(DECODED)).saturating_add(2 * given)
        }
        "jsondecode" => {
            let values = marks(text(0), b",:[{").saturating_mul(DECODED);
            values.saturating_add(marks(text(0), b"{").saturating_mul(OBJECT)).saturating_add(2 * given)
        }
        "yamldecode" => {
            let values = marks(text(0), b"\n\r,-:?[{").saturating_mul(2 * DECODED);
            values.saturating_add(marks(text(0), b"{:").saturating_mul(OBJECT)).saturating_add(4 * given)
        }
        "setproduct" => {
            let lists = || args.iter().filter_map(Value::elements);
            let rows = lists().fold(1u64, |rows, items| rows.saturating_mul(items.len() as u64));
            let largest = lists().map(|items| items.iter().map(size).max().unwrap_or(0));
            rows.saturating_mul(largest.fold(128, u64::saturating_add))
        }
        "base64encode" | "formatdate" | "jsonencode" | "lower" | "title" | "upper" | "urlencode" | "yamlencode" => {
            given.saturating_mul(ENCODED)
        }
        _ => 0,
    };
    let steps = match name {
        "bcrypt" => {
            let cost = u32::try_from(int(1).unwrap_or(10)).unwrap_or(0);
            if cost <= hashes::MOST_COST { 180 << cost } else { 0 }
        }
        "md5" | "sha1" | "sha256" | "sha512" | "uuidv5" => given / 16,
        "abspath" | "file" | "filebase64" | "fileexists" | "fileset" => 64,
        "yamldecode" => given,
        "formatdate" | "timeadd" => given / 8,
        "csvdecode" | "jsondecode" => given / 4,
        _ => given / 64,
    };
    Cost { steps: steps.saturating_add(1), bytes }
}

fn marks(text: &str, wanted: &[u8]) -> u64 {
    text.bytes().filter(|b| wanted.contains(b)).count() as u64 + 1
}
