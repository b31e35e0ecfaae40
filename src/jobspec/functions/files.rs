//! Functions of the job file that read files and take paths apart.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{AtFlags, Dir, FileType, OFlags};

use super::{Count, Outcome, strings, text};
use crate::jobspec::base::Base;
use crate::jobspec::regular;
use crate::jobspec::value::Value;

/// Most files that `fileset` looks at.
const MOST_FILES: usize = 100_000;
/// What one of them is worth.
const STEPS_PER_FILE: u64 = 16;
/// What a step of reading a file is worth.
const BYTES_PER_STEP: u64 = 256;

fn expand(path: &str) -> String {
    match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => match std::env::var("HOME") {
            Ok(home) if !home.is_empty() => format!("{home}{rest}"),
            _ => path.to_owned(),
        },
        _ => path.to_owned(),
    }
}

fn resolve(args: &[Value], base: Base<'_>) -> Result<PathBuf, String> {
    Ok(base.dir.join(expand(&text(args, 0)?)))
}

/// The path without `.` and `..`, by its spelling alone.
fn clean(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(out.components().next_back(), Some(Component::Normal(_))) => {
                out.pop();
            }
            Component::ParentDir if out.has_root() => {}
            other => out.push(other),
        }
    }
    if out.as_os_str().is_empty() { PathBuf::from(".") } else { out }
}

fn path_value(path: &Path) -> Outcome {
    path.to_str().map(Value::string).ok_or_else(|| "the path is not UTF-8 text".to_owned())
}

pub(super) fn abspath(args: &[Value], base: Base<'_>) -> Outcome {
    let path = std::path::absolute(resolve(args, base)?).map_err(|e| e.to_string())?;
    path_value(&clean(&path))
}

pub(super) fn basename(args: &[Value]) -> Outcome {
    let path = text(args, 0)?;
    Ok(Value::string(match Path::new(&path).file_name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None if path.starts_with('/') => "/".to_owned(),
        None => ".".to_owned(),
    }))
}

pub(super) fn dirname(args: &[Value]) -> Outcome {
    let path = text(args, 0)?;
    match path.rfind('/') {
        Some(slash) => path_value(&clean(Path::new(&path[..=slash]))),
        None => Ok(Value::string(".")),
    }
}

pub(super) fn pathexpand(args: &[Value], _: Base<'_>) -> Outcome {
    Ok(Value::String(expand(&text(args, 0)?)))
}

/// Counted also where the text is of no use, and a `try` around it hides that.
fn bytes(args: &[Value], base: Base<'_>, count: Count<'_>) -> Result<Vec<u8>, String> {
    let path = resolve(args, base)?;
    let found = base.open(&path, OFlags::PATH);
    let bytes =
        found.and_then(|found| regular::read(&found)).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    count(bytes.len() as u64 / BYTES_PER_STEP)?;
    Ok(bytes)
}

pub(super) fn file(args: &[Value], base: Base<'_>, count: Count<'_>) -> Outcome {
    let text = String::from_utf8(bytes(args, base, count)?);
    text.map(Value::String).map_err(|_| "the file is not UTF-8 text; use filebase64".to_owned())
}

pub(super) fn filebase64(args: &[Value], base: Base<'_>, count: Count<'_>) -> Outcome {
    Ok(Value::String(STANDARD.encode(bytes(args, base, count)?)))
}

pub(super) fn fileexists(args: &[Value], base: Base<'_>) -> Outcome {
    let path = resolve(args, base)?;
    let found = base.open(&path, OFlags::PATH).and_then(|fd| Ok(rustix::fs::fstat(&fd)?));
    match found {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => Ok(Value::Bool(true)),
        Ok(_) => Err(format!("{} is not a file", path.display())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Value::Bool(false)),
        Err(e) => Err(format!("cannot examine {}: {e}", path.display())),
    }
}

/// The files below a directory whose path from there matches a pattern with `*`, `**`, `?`, `[]` and `{}`.
pub(super) fn fileset(args: &[Value], base: Base<'_>, count: Count<'_>) -> Outcome {
    let top = resolve(args, base)?;
    let pattern = strings::regex(&glob(&text(args, 1)?), count)?;
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        let dir = top.join(&folder);
        let failed = |e: io::Error| format!("cannot read {}: {e}", dir.display());
        let open = base.open(&dir, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
        for entry in Dir::read_from(&open).map_err(|e| failed(e.into()))? {
            let entry = entry.map_err(|e| failed(e.into()))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            seen += 1;
            count(STEPS_PER_FILE)?;
            if seen > MOST_FILES {
                return Err(format!("there are more than {MOST_FILES} files below {}", top.display()));
            }
            let relative = folder.join(name);
            let kind = |flags| match rustix::fs::statat(&open, name, flags) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(_) => FileType::Unknown,
            };
            // A link to a directory is not gone into; one to a file is that file, where links are followed.
            let itself = kind(AtFlags::SYMLINK_NOFOLLOW);
            let follows = itself == FileType::Symlink && !base.alone;
            let is_file = if follows { kind(AtFlags::empty()) } else { itself } == FileType::RegularFile;
            if itself == FileType::Directory {
                folders.push(relative);
            } else if is_file && relative.to_str().is_some_and(|r| pattern.is_match(r)) {
                found.push(path_value(&relative)?);
            }
        }
    }
    Ok(Value::set(found))
}

fn glob(pattern: &str) -> String {
    let mut out = String::from("^");
    let mut chars = pattern.chars().peekable();
    let mut braces = 0usize;
    while let Some(c) = chars.next() {
        match c {
            '*' if chars.next_if_eq(&'*').is_some() => {
                let folders = chars.next_if_eq(&'/').is_some();
                out.push_str(if folders { "(?:.*/)?" } else { ".*" });
            }
            '*' => out.push_str("[^/]*"),
            '?' => out.push_str("[^/]"),
            '[' => out.push('['),
            ']' => out.push(']'),
            '{' => {
                braces += 1;
                out.push_str("(?:");
            }
            '}' if braces > 0 => {
                braces -= 1;
                out.push(')');
            }
            ',' if braces > 0 => out.push('|'),
            '-' | '^' => out.push(c),
            '\\' => out.push_str(&regex::escape(&chars.next().unwrap_or('\\').to_string())),
            other => out.push_str(&regex::escape(&other.to_string())),
        }
    }
    out.push('$');
    out
}
