//! Specifications of volumes, in HCL or JSON, as what the API takes. (P1)

use std::path::Path;

use anyhow::Context as _;
use serde_json::{Map, Value};

use super::args;
use crate::jobspec::config::{self, Member, Node, Variables};
use crate::jobspec::{Diagnostic, did_you_mean};
use crate::spec::Pos;
use crate::spec::json::json;

type Read = fn(&Member) -> Result<Value, Diagnostic>;
/// A key of a specification, how the API calls it, and how it is read.
type Key = (&'static str, &'static str, Read);

const OF_CSI: [Key; 14] = [
    ("id", "ID", text),
    ("name", "Name", text),
    ("namespace", "Namespace", text),
    ("external_id", "ExternalID", text),
    ("plugin_id", "PluginID", text),
    ("snapshot_id", "SnapshotID", text),
    ("clone_id", "CloneID", text),
    ("capacity_min", "RequestedCapacityMin", bytes),
    ("capacity_max", "RequestedCapacityMax", bytes),
    ("capability", "RequestedCapabilities", capabilities),
    ("mount_options", "MountOptions", mount_options),
    ("topology_request", "RequestedTopologies", topologies),
    ("secrets", "Secrets", texts),
    ("parameters", "Parameters", texts),
];
/// Only of a volume that exists.
const CONTEXT: Key = ("context", "Context", texts);
const OF_HOST: [Key; 13] = [
    ("id", "ID", text),
    ("name", "Name", text),
    ("namespace", "Namespace", text),
    ("plugin_id", "PluginID", text),
    ("node_id", "NodeID", text),
    ("node_pool", "NodePool", text),
    ("host_path", "HostPath", text),
    ("capacity", "CapacityBytes", bytes),
    ("capacity_min", "RequestedCapacityMinBytes", bytes),
    ("capacity_max", "RequestedCapacityMaxBytes", bytes),
    ("capability", "RequestedCapabilities", capabilities),
    ("constraint", "Constraints", constraints),
    ("parameters", "Parameters", texts),
];
const CAPABILITY: [Key; 2] = [("access_mode", "AccessMode", text), ("attachment_mode", "AttachmentMode", text)];
const MOUNT_OPTIONS: [Key; 2] = [("fs_type", "FSType", text), ("mount_flags", "MountFlags", flags)];
const CONSTRAINT: [Key; 3] =
    [("attribute", "LTarget", text), ("value", "RTarget", text), ("operator", "Operand", text)];
const TOPOLOGIES: [Key; 2] = [("required", "Required", topology), ("preferred", "Preferred", topology)];
const SEGMENTS: [Key; 1] = [("segments", "Segments", texts)];
/// Multiples of a byte by the first letter of their unit.
const UNITS: &str = "kmgtpe";

/// The kinds of volumes.
pub(super) const KINDS: [&str; 2] = [CSI, "host"];
pub(super) const CSI: &str = "csi";

/// The specification in a file; `-` is standard input.
///
/// # Errors
/// The first mistake in it, with its position.
pub(super) fn read(file: &Path) -> anyhow::Result<(&'static str, Value)> {
    let text = String::from_utf8(args::contents(file)?);
    let text = text.with_context(|| format!("{} is not UTF-8 text", file.display()))?;
    parse(file, &text).map_err(|mistake| anyhow::anyhow!("{mistake}"))
}

/// Nomad reads these files as HCL 1: `${` is text, keys may be in quotes, and members of a block may stand in a line.
fn parse(file: &Path, written: &str) -> Result<(&'static str, Value), Diagnostic> {
    let literal = written.replace("${", "$${").replace("%{", "%%{");
    match config::parse(file, &literal) {
        Ok(node) => specification(file, &node),
        Err(mistake) => {
            let (text, lines) = one_member_a_line(&literal);
            let Ok(node) = config::parse(file, &text) else { return Err(mistake) };
            specification(file, &node).map_err(|mut mistake| {
                let at = usize::try_from(mistake.pos.line).unwrap_or_default().saturating_sub(1);
                mistake.pos.line = lines.get(at).copied().unwrap_or(mistake.pos.line);
                mistake
            })
        }
    }
}

/// The same file with each member of a block in a line of its own, its key without quotes; and the lines that they were in.
fn one_member_a_line(text: &str) -> (String, Vec<u32>) {
    let (mut out, mut lines, mut line) = (String::new(), vec![1], 1);
    // Whether what is open is a block, and what came last that is not a blank.
    let (mut open, mut last) = (Vec::new(), '\n');
    let mut rest = text.char_indices().peekable();
    while let Some((at, c)) = rest.next() {
        let in_block = open.last().is_none_or(|is_block| *is_block);
        let mut end_line = |out: &mut String, line: u32| {
            out.push('\n');
            lines.push(line);
        };
        match c {
            '\n' => {
                line += 1;
                end_line(&mut out, line);
            }
            '"' => {
                let mut end = text.len();
                let mut escaped = false;
                for (at, c) in rest.by_ref() {
                    if c == '"' && !escaped {
                        end = at + 1;
                        break;
                    }
                    escaped = c == '\\' && !escaped;
                }
                let string = &text[at..end];
                let is_key = in_block && last != '=' && text[end..].trim_start().starts_with('=');
                out += if is_key { string.trim_matches('"') } else { string };
            }
            '#' => {
                out.push(c);
                while let Some((_, c)) = rest.next_if(|(_, c)| *c != '\n') {
                    out.push(c);
                }
            }
            '{' => {
                let is_block = in_block && last != '=';
                open.push(is_block);
                out.push(c);
                if is_block {
                    end_line(&mut out, line);
                }
            }
            '}' => {
                if open.pop() == Some(true) {
                    end_line(&mut out, line);
                }
                out.push(c);
                if open.last().is_none_or(|is_block| *is_block) {
                    end_line(&mut out, line);
                }
            }
            '[' | '(' => {
                open.push(false);
                out.push(c);
            }
            ']' | ')' => {
                open.pop();
                out.push(c);
            }
            ',' if in_block => end_line(&mut out, line),
            _ => out.push(c),
        }
        if !c.is_whitespace() {
            last = c;
        }
    }
    (out, lines)
}

fn specification(file: &Path, node: &Node) -> Result<(&'static str, Value), Diagnostic> {
    let all = members(node)?;
    let Some(kind) = all.iter().find(|member| member.name == "type") else {
        let what = "it does not say what it is; write type = \"csi\" or type = \"host\"";
        return Err(Diagnostic::new(&Pos { file: file.display().to_string().into(), line: 1, column: 1 }, what));
    };
    let rest: Vec<&Member> = all.iter().filter(|member| member.name != "type").collect();
    match text(kind)?.as_str() {
        Some("csi") => {
            let keys: Vec<Key> = OF_CSI.into_iter().chain([CONTEXT]).collect();
            Ok((CSI, object(&rest, &keys)?))
        }
        Some("host") => Ok(("host", object(&rest, &OF_HOST)?)),
        _ => Err(Diagnostic::new(&kind.pos, "type is \"csi\" or \"host\"")),
    }
}

fn members(node: &Node) -> Result<&[Member], Diagnostic> {
    node.members().ok_or_else(|| Diagnostic::new(&node.pos, "expected a block"))
}

fn object(members: &[&Member], keys: &[Key]) -> Result<Value, Diagnostic> {
    let mut made = Map::new();
    for member in members {
        let Some((_, name, read)) = keys.iter().find(|(key, ..)| *key == member.name) else {
            let hint = did_you_mean(&member.name, keys.iter().map(|(key, ..)| *key));
            return Err(Diagnostic::new(&member.pos, format!("unsupported key \"{}\"{hint}", member.name)));
        };
        if made.insert((*name).to_owned(), read(member)?).is_some() {
            return Err(Diagnostic::new(
                &member.pos,
                format!("duplicate key \"{}\"; remove one of the two", member.name),
            ));
        }
    }
    Ok(made.into())
}

/// Each block of a name as an object.
fn blocks(member: &Member, keys: &[Key]) -> Result<Vec<Value>, Diagnostic> {
    let one = |node: &Node| object(&members(node)?.iter().collect::<Vec<_>>(), keys);
    match member.node.items() {
        Some(items) => items.iter().map(one).collect(),
        None => Ok(vec![one(&member.node)?]),
    }
}

/// The only block of a name.
fn block(member: &Member, keys: &[Key]) -> Result<Value, Diagnostic> {
    let mut all = blocks(member, keys)?;
    match (all.pop(), all.is_empty()) {
        (Some(only), true) => Ok(only),
        _ => Err(wrong(member, "a single block")),
    }
}

fn value(member: &Member) -> Result<Value, Diagnostic> {
    member.node.eval(&Variables::default()).map(|value| value.to_json())
}

fn wrong(member: &Member, wanted: &str) -> Diagnostic {
    Diagnostic::new(&member.pos, format!("{} must be {wanted}", member.name))
}

/// Numbers and switches may stand for their texts.
fn textual(value: Value) -> Option<Value> {
    match value {
        Value::String(_) => Some(value),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string().into()),
        _ => None,
    }
}

fn text(member: &Member) -> Result<Value, Diagnostic> {
    textual(value(member)?).ok_or_else(|| wrong(member, "a string"))
}

fn flags(member: &Member) -> Result<Value, Diagnostic> {
    let Value::Array(items) = value(member)? else { return Err(wrong(member, "a list of strings")) };
    let items: Option<Vec<Value>> = items.into_iter().map(textual).collect();
    items.map(Value::Array).ok_or_else(|| wrong(member, "a list of strings"))
}

/// A map of strings, as a block or as an object.
fn texts(member: &Member) -> Result<Value, Diagnostic> {
    let mut found = value(member)?;
    if let Value::Array(blocks) = &mut found
        && let [only] = &mut blocks[..]
    {
        found = only.take();
    }
    let Value::Object(map) = found else { return Err(wrong(member, "a block of strings")) };
    let pairs: Option<Map<String, Value>> =
        map.into_iter().map(|(key, value)| textual(value).map(|value| (key, value))).collect();
    pairs.map(Value::Object).ok_or_else(|| wrong(member, "a block of strings"))
}

fn capabilities(member: &Member) -> Result<Value, Diagnostic> {
    blocks(member, &CAPABILITY).map(Value::Array)
}

fn constraints(member: &Member) -> Result<Value, Diagnostic> {
    let mut all = blocks(member, &CONSTRAINT)?;
    for one in &mut all {
        if one["Operand"].is_null() {
            one["Operand"] = "=".into();
        }
    }
    Ok(all.into())
}

fn mount_options(member: &Member) -> Result<Value, Diagnostic> {
    block(member, &MOUNT_OPTIONS)
}

fn topologies(member: &Member) -> Result<Value, Diagnostic> {
    block(member, &TOPOLOGIES)
}

/// The `topology` blocks of `required` or `preferred`.
fn topology(member: &Member) -> Result<Value, Diagnostic> {
    const OF: [Key; 1] = [("topology", "Topologies", |member| blocks(member, &SEGMENTS).map(Value::Array))];
    block(member, &OF).map(|mut made| match made["Topologies"].take() {
        Value::Null => json!([]),
        all => all,
    })
}

/// A size: a number of bytes, or `10GiB`, `500MB`, `1.5G`.
fn bytes(member: &Member) -> Result<Value, Diagnostic> {
    let given = text(member)?;
    let given = given.as_str().unwrap_or_default().trim().replace(',', "").to_ascii_lowercase();
    if given.is_empty() {
        return Ok(0.into());
    }
    let at = given.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(given.len());
    let (number, unit) = given.split_at(at);
    let unit = unit.trim();
    let power = |unit: &str| {
        let mut letters = unit.chars();
        let exponent = UNITS.find(letters.next()?)?;
        let base: f64 = match letters.as_str() {
            "ib" | "i" => 1024.0,
            "b" | "" => 1000.0,
            _ => return None,
        };
        Some(base.powi(i32::try_from(exponent).ok()? + 1))
    };
    let factor = if matches!(unit, "" | "b") { Some(1.0) } else { power(unit) };
    let size = number.parse::<f64>().ok().zip(factor).map(|(number, factor)| number * factor);
    // As in the API; what is lost of a fraction is less than a byte.
    size.filter(|size| *size < i64::MAX as f64)
        .map(|size| (size as i64).into())
        .ok_or_else(|| wrong(member, "a size, such as \"10GiB\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Value, String> {
        parse(Path::new("v.hcl"), text).map(|(_, value)| value).map_err(|mistake| mistake.to_string())
    }

    #[test]
    fn a_volume_of_a_csi_plugin() {
        let text = r#"
            id           = "db"
            name         = "database"
            type         = "csi"
            plugin_id    = "disks"
            capacity_min = "10GiB"
            capacity_max = "1.5T"
            capability {
              access_mode     = "single-node-writer"
              attachment_mode = "file-system"
            }
            capability {
              access_mode     = "single-node-reader-only"
              attachment_mode = "block-device"
            }
            mount_options {
              fs_type     = "ext4"
              mount_flags = ["noatime"]
            }
            topology_request {
              required {
                topology { segments { "rack" = "R1" } }
                topology { segments { "rack" = "R2", "zone" = "${a}" } } # both, {
              }
            }
            secrets { key = "value" }
            parameters = { skuname = "fast", replicas = 3 }
            context { endpoint = "here" }
        "#;
        let wanted = json!({
            "ID": "db", "Name": "database", "PluginID": "disks",
            "RequestedCapacityMin": 10_737_418_240_i64, "RequestedCapacityMax": 1_500_000_000_000_i64,
            "RequestedCapabilities": [
                { "AccessMode": "single-node-writer", "AttachmentMode": "file-system" },
                { "AccessMode": "single-node-reader-only", "AttachmentMode": "block-device" },
            ],
            "MountOptions": { "FSType": "ext4", "MountFlags": ["noatime"] },
            "RequestedTopologies": {
                "Required": [{ "Segments": { "rack": "R1" } }, { "Segments": { "rack": "R2", "zone": "${a}" } }],
            },
            "Secrets": { "key": "value" },
            "Parameters": { "skuname": "fast", "replicas": "3" },
            "Context": { "endpoint": "here" },
        });
        assert_eq!(parsed(text), Ok(wanted));
    }

    #[test]
    fn a_volume_of_the_machine_in_json() {
        let text = r#"{ "type": "host", "name": "data", "capacity_min": 1024, "parameters": { "uid": 1000 },
            "capability": [{ "access_mode": "single-node-writer", "attachment_mode": "file-system" }],
            "constraint": { "attribute": "${attr.kernel.name}", "value": "linux" } }"#;
        let made = parsed(text);
        assert!(
            matches!(&made, Ok(made) if made["RequestedCapacityMinBytes"] == 1024
            && made["Parameters"]["uid"] == "1000" && made["RequestedCapabilities"][0]["AccessMode"] == "single-node-writer"
            && made["Constraints"][0] == json!({ "LTarget": "${attr.kernel.name}", "RTarget": "linux", "Operand": "=" })),
            "{made:?}"
        );
    }

    #[test]
    fn mistakes_have_a_line() {
        for (text, wanted) in [
            ("id = \"a\"", "v.hcl:1: it does not say what it is"),
            ("type = \"nfs\"", "type is \"csi\" or \"host\""),
            ("type = \"csi\"\nplugin = \"a\"", "v.hcl:2: unsupported key \"plugin\""),
            ("type = \"csi\"\nplugin_idd = \"a\"", "did you mean"),
            ("type = \"host\"\ncontext { a = 1 }", "unsupported key \"context\""),
            ("type = \"csi\"\ncapacity_min = \"ten\"", "capacity_min must be a size"),
            ("type = \"csi\"\ncapacity_min = \"10XB\"", "capacity_min must be a size"),
            ("type = \"csi\"\nmount_options { }\nmount_options { }", "mount_options must be a single block"),
            ("type = \"csi\"\nid = [1]", "id must be a string"),
            ("type = \"csi\"\nsecrets { a { b = 1 } }", "secrets must be a block of strings"),
            ("type = \"csi\"\ncapability = 3", "expected a block"),
            ("type = \"csi\"\nsecrets { \"a\" = 1, b = 2 }\ncapability { a = 1 }", "v.hcl:3: unsupported key \"a\""),
            ("type = \"csi\"\n\nsecrets { a = }", "v.hcl:3"),
        ] {
            let said = parsed(text).unwrap_err();
            assert!(said.contains(wanted), "{text}: {said}");
        }
    }

    #[test]
    fn sizes() {
        let size = |text: &str| {
            let made = parsed(&format!("type = \"csi\"\ncapacity_max = \"{text}\"")).ok()?;
            made["RequestedCapacityMax"].as_i64()
        };
        for (text, wanted) in [
            ("", Some(0)),
            ("1", Some(1)),
            ("1b", Some(1)),
            ("1 KB", Some(1000)),
            ("1k", Some(1000)),
            ("1KiB", Some(1024)),
            ("2Mi", Some(2 << 20)),
            ("1,000", Some(1000)),
            ("0.5GiB", Some(512 << 20)),
            ("9EiB", None),
            ("-1", None),
            ("1.2.3k", None),
            ("1kx", None),
        ] {
            assert_eq!(size(text), wanted, "{text}");
        }
    }
}
