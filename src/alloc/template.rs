//! Templates of a task: what they may read, and the files that they render to.
//!
//! The language is in `crate::template`; this module adds the task.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::str::Chars;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use serde_json::Value as Json;

use super::artifact;
use super::dir::AllocDir;
use super::env::TaskEnv;
use super::error::SetupError;
use super::values::Values;
use crate::spec::Template as Block;
use crate::spec::collections::BTreeMap;
use crate::template::{Asked, Found, Host, Limits, Service, Template, TemplateError, Tree, Variable};

/// Largest file that a template reads, in bytes.
const LARGEST_FILE: u64 = 16 << 20;

/// Most different things of a template that are asked for again to learn whether it has to be rendered; one that asks for more is
/// rendered, which tells too.
const MOST_ASKED: usize = 10_000;

/// What the templates of one task are rendered with.
pub(super) struct Renderer {
    pub(super) env: TaskEnv,
    pub(super) dir: AllocDir,
    pub(super) task: String,
    pub(super) values: Values,
    /// Whether a template has read services.
    pub(super) asked_for_services: AtomicBool,
}

/// What a template was rendered from.
#[derive(Clone)]
pub(super) struct Basis {
    /// Digest of its text and of the answers it got.
    pub(super) digest: String,
    /// The same in full; `None` if only the digest was kept.
    asked: Option<Arc<Asked>>,
}

/// The rendered templates of a task.
#[derive(Default)]
pub(super) struct Files {
    /// By the index of the template; a template with a missing value has none.
    pub(super) rendered: BTreeMap<usize, Vec<u8>>,
    /// What these were rendered from, as far as it is known.
    pub(super) bases: BTreeMap<usize, Basis>,
    /// The variables of the templates with `env = true`.
    pub(super) env: Vec<(String, String)>,
    /// The values that templates wait for.
    pub(super) missing: Vec<String>,
    /// Whether their output depends on registered services.
    pub(super) asks_for_services: bool,
}

impl Basis {
    fn of(asked: Asked) -> Basis {
        let digest = asked.digest();
        Basis { digest, asked: (asked.count() <= MOST_ASKED).then(|| Arc::new(asked)) }
    }

    /// What a record has of it.
    pub(super) fn known(digest: &str) -> Basis {
        Basis { digest: digest.to_owned(), asked: None }
    }
}

impl Files {
    /// Goes back to `before` for the templates that are not the same as there, as far as it has them: they are still to change.
    pub(super) fn keep_known(&mut self, before: Files, is_same: impl Fn(&usize, &[u8], &Basis) -> bool) {
        let missing = Basis::known("");
        let same = |(number, bytes): (&usize, &Vec<u8>)| {
            is_same(number, bytes, self.bases.get(number).unwrap_or(&missing)).then_some(*number)
        };
        let same: Vec<usize> = self.rendered.iter().filter_map(same).collect();
        self.rendered.retain(|number, _| same.contains(number));
        self.bases.retain(|number, _| same.contains(number));
        for (number, bytes) in before.rendered {
            if !same.contains(&number) {
                self.rendered.insert(number, bytes);
            }
        }
        for (number, basis) in before.bases {
            if !same.contains(&number) {
                self.bases.insert(number, basis);
            }
        }
    }

    /// Adds what a template was rendered to, and its variables if it has some.
    fn add(&mut self, number: usize, block: &Block, output: Vec<u8>, most_env: usize) -> Result<(), TemplateError> {
        if block.env {
            let text = std::str::from_utf8(&output)
                .map_err(|_| TemplateError::at_line(1, "as environment it has to be UTF-8"))?;
            check_env(text, most_env)?;
            self.env.extend(parse_env(text)?);
        }
        self.rendered.insert(number, output);
        Ok(())
    }
}

impl Host for Renderer {
    fn env(&self, name: &str) -> Option<Vec<u8>> {
        self.env.get(name).map(|value| value.as_bytes().to_vec())
    }

    fn file(&self, path: &[u8]) -> Result<Vec<u8>, String> {
        let path = std::str::from_utf8(path).map_err(|_| "the path is not UTF-8".to_owned())?.trim();
        self.read(path).map_err(|e| match e.raw_os_error() {
            Some(libc::EXDEV) => {
                format!("'{path}' is outside of sandbox: only files of the task and of alloc can be read")
            }
            _ => format!("cannot read {path}, which is looked for below the task's directory: {e}"),
        })
    }

    fn key(&self, path: &str) -> Found<String> {
        self.values.key(path)
    }

    fn tree(&self, prefix: &str) -> Tree {
        self.values.tree(prefix)
    }

    fn secret(&self, path: &str) -> Found<Json> {
        self.values.secret(path)
    }

    fn secrets(&self, path: &str) -> Vec<String> {
        self.values.secrets(path)
    }

    fn variable(&self, path: &str) -> Found<Variable> {
        self.values.variable(path)
    }

    fn variables(&self, prefix: &str) -> Vec<String> {
        self.values.variables(prefix)
    }

    fn services(&self) -> Vec<Service> {
        self.asked_for_services.store(true, Ordering::Relaxed);
        self.values.services()
    }

    fn now(&self) -> (i64, u32) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (i64::try_from(now.as_secs()).unwrap_or(0), now.subsec_nanos())
    }
}

impl Renderer {
    /// Reads a regular file below the task's directory or `alloc`: never follows a symbolic link, and never blocks.
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let (top, below) = self.dir.locate(&self.task, path)?;
        let found = top.open_beneath(&below, OFlags::PATH, Mode::empty())?;
        if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is not a regular file"));
        }
        // Opens the same file, even if its path leads to another one by now.
        let again = Path::new("/proc/self/fd").join(found.as_raw_fd().to_string());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&again, flags, Mode::empty())?);
        let mut bytes = Vec::new();
        file.take(LARGEST_FILE + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > LARGEST_FILE {
            return Err(io::Error::other(format!("it has more than {} MiB", LARGEST_FILE >> 20)));
        }
        Ok(bytes)
    }

    /// Renders all templates of the task, except those with `once` that are in `before`. One that is in `before`, and whose text and
    /// values are still the same, keeps what it was rendered to: rendered again it may become something else each time.
    ///
    /// # Errors
    /// [`SetupError::Template`] with the position of the first mistake.
    pub(super) fn render(&self, blocks: &[Block], before: &Files, cancel: &AtomicBool) -> Result<Files, SetupError> {
        let mut files = Files::default();
        for (number, block) in blocks.iter().enumerate() {
            let destination = self.env.interpolate(&block.destination);
            let error =
                |source| SetupError::Template { pos: block.pos.clone(), destination: destination.clone(), source };
            let kept = before.rendered.get(&number);
            let output = if let Some(kept) = kept.filter(|_| block.once) {
                kept.clone()
            } else {
                let text = self.text_of(block)?;
                let basis = before.bases.get(&number);
                let still = |basis: &&Basis| basis.asked.as_ref().is_some_and(|asked| asked.is_still(&text, self));
                if let (Some(kept), Some(basis)) = (kept, basis.filter(still)) {
                    files.bases.insert(number, basis.clone());
                    files.add(number, block, kept.clone(), self.env.most()).map_err(error)?;
                    continue;
                }
                let template =
                    Template::parse(text, &block.left_delimiter, &block.right_delimiter, cancel).map_err(error)?;
                let rendered =
                    template.render(self, block.error_on_missing_key, Limits::default(), cancel).map_err(error)?;
                if !rendered.missing.is_empty() {
                    let new = rendered.missing.into_iter().filter(|what| !files.missing.contains(what));
                    let new: Vec<String> = new.collect();
                    files.missing.extend(new);
                    continue;
                }
                let new = Basis::of(rendered.asked);
                let kept = kept.filter(|_| basis.is_some_and(|basis| basis.digest == new.digest));
                files.bases.insert(number, new);
                kept.cloned().unwrap_or(rendered.output)
            };
            files.add(number, block, output, self.env.most()).map_err(error)?;
        }
        files.asks_for_services = self.asked_for_services.load(Ordering::Relaxed);
        Ok(files)
    }

    /// The template's text: `data`, or the content of the file `source`.
    fn text_of(&self, block: &Block) -> Result<Vec<u8>, SetupError> {
        let Some(source) = &block.source else { return Ok(block.data.clone().into_bytes()) };
        let path = self.env.interpolate(source);
        let (pos, source) = (block.pos.clone(), self.read(&path));
        source.map_err(|source| SetupError::TemplateSource { pos, path, source: escapes("source", source) })
    }

    /// The files that these templates rendered earlier and that still exist unchanged, by index: those for which `is_known` is
    /// true.
    pub(super) fn there(&self, blocks: &[Block], is_known: &dyn Fn(&usize, &[u8]) -> bool) -> BTreeMap<usize, Vec<u8>> {
        let read = |(number, block): (usize, &Block)| {
            let bytes = self.read(&self.env.interpolate(&block.destination)).ok()?;
            is_known(&number, &bytes).then_some((number, bytes))
        };
        blocks.iter().enumerate().filter_map(read).collect()
    }

    /// Writes the files that differ from `before`. Returns the indexes of their templates.
    ///
    /// # Errors
    /// [`SetupError::TemplateFile`].
    pub(super) fn write(&self, blocks: &[Block], files: &Files, before: &Files) -> Result<Vec<usize>, SetupError> {
        let mut written = Vec::new();
        for (number, bytes) in &files.rendered {
            let Some(block) = blocks.get(*number).filter(|_| before.rendered.get(number) != Some(bytes)) else {
                continue;
            };
            let destination = self.env.interpolate(&block.destination);
            self.write_one(block, &destination, bytes).map_err(|source| SetupError::TemplateFile {
                pos: block.pos.clone(),
                destination: destination.clone(),
                source: escapes("destination", source),
            })?;
            written.push(*number);
        }
        Ok(written)
    }

    fn write_one(&self, block: &Block, destination: &str, bytes: &[u8]) -> io::Result<()> {
        write_file(&self.dir, &self.task, destination, block.perms, (block.uid, block.gid), bytes)
    }
}

/// Says in Nomad's words that a path of a template leads out of the allocation's directory, if that is the error.
fn escapes(which: &str, error: io::Error) -> io::Error {
    if error.raw_os_error() == Some(libc::EXDEV) {
        return io::Error::other(format!("template {which} path escapes alloc directory"));
    }
    error
}

/// Writes a file below the task's directory or the shared one, atomically.
pub(super) fn write_file(
    dir: &AllocDir,
    task: &str,
    destination: &str,
    perms: u32,
    (uid, gid): (Option<u32>, Option<u32>),
    bytes: &[u8],
) -> io::Result<()> {
    let (top, below) = dir.locate(task, destination)?;
    let (parent, name) = artifact::parent_of(&top, &below)?;
    // A running task never sees a partial file, and the file is never missing.
    let new = OsString::from(format!(".agentbin-{}", crate::sys::random::uuid().simple()));
    let mut file = artifact::create(&parent, &new, perms)?;
    let mut fill = || {
        file.write_all(bytes)?;
        if uid.is_some() || gid.is_some() {
            rustix::fs::fchown(&file, uid.map(Uid::from_raw), gid.map(Gid::from_raw))?;
            // Changing the owner clears mode bits.
            rustix::fs::fchmod(&file, Mode::from_raw_mode(perms & 0o1777))?;
        }
        Ok(rustix::fs::renameat(&parent, &new, &parent, &name)?)
    };
    fill().inspect_err(|_: &io::Error| {
        let _ = rustix::fs::unlinkat(&parent, &new, AtFlags::empty());
    })
}

/// Refuses a rendered template with `env = true` that is larger than a task's limit for variables.
///
/// # Errors
/// [`TemplateError`] when it has more than `most` bytes.
pub fn check_env(text: &str, most: usize) -> Result<(), TemplateError> {
    if text.len() > most {
        return Err(TemplateError::at_line(1, format!("as environment it may have {} KiB", most / 1024)));
    }
    Ok(())
}

/// Reads the lines of a rendered `env = true` template as Nomad's go-envparse does: `KEY=value`, optional `export`, comments, and
/// quotes that open and close anywhere in a value.
///
/// # Errors
/// [`TemplateError`] with the line that cannot be read.
pub fn parse_env(text: &str) -> Result<Vec<(String, String)>, TemplateError> {
    let lines = (1u32..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines.map(|(number, line)| env_line(line).map_err(|what| TemplateError::at_line(number, what))).collect()
}

fn env_line(line: &str) -> Result<(String, String), String> {
    let (key, value) = line.split_once('=').ok_or("expected KEY=value")?;
    let key = key.trim_end();
    let key = key.strip_prefix("export ").unwrap_or(key);
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_';
    if !key.starts_with(is_start) || !key.chars().all(|c| is_start(c) || c.is_ascii_digit() || "./".contains(c)) {
        return Err(format!("{key:?} is not a name of an environment variable"));
    }
    let mut read = String::new();
    // Without the spaces before a comment; those in quotes belong to the value.
    let mut significant = 0;
    let mut quote = None;
    let mut chars = value.trim().chars();
    while let Some(c) = chars.next() {
        match c {
            ..' ' => return Err(format!("a value cannot contain {c:?}")),
            '#' if quote.is_none() => {
                read.truncate(significant);
                break;
            }
            '"' | '\'' if quote.is_none() => {
                quote = Some(c);
                continue;
            }
            _ if quote == Some(c) => {
                quote = None;
                continue;
            }
            '\\' if quote == Some('"') => read.push(escaped(&mut chars)?),
            _ => read.push(c),
        }
        if quote.is_some() || c != ' ' {
            significant = read.len();
        }
    }
    match quote {
        Some(quote) => Err(format!("unmatched {quote}")),
        None => Ok((key.to_owned(), read)),
    }
}

/// The character that an escape stands for, after its backslash.
fn escaped(chars: &mut Chars<'_>) -> Result<char, String> {
    Ok(match chars.next() {
        Some(c @ ('"' | '\\' | '/')) => c,
        Some('b') => '\u{8}',
        Some('f') => '\u{c}',
        Some('n') => '\n',
        Some('r') => '\r',
        Some('t') => '\t',
        Some('u') => {
            let mut units = [code_unit(chars)?, 0];
            if (0xd800..0xe000).contains(&units[0]) {
                if (chars.next(), chars.next()) != (Some('\\'), Some('u')) {
                    return Err("incomplete surrogate pair".to_owned());
                }
                units[1] = code_unit(chars)?;
            }
            char::decode_utf16(units).next().and_then(Result::ok).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
        other => return Err(format!("unknown escape \\{}", other.map(String::from).unwrap_or_default())),
    })
}

fn code_unit(chars: &mut Chars<'_>) -> Result<u16, String> {
    let unit = (0..4).try_fold(0u32, |unit, _| Some(unit * 16 + chars.next()?.to_digit(16)?));
    Ok(unit.ok_or("\\u needs four hexadecimal digits")? as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::env::tests::built;
    use crate::driver::FsIsolation;
    use crate::spec::AllocId;

    #[test]
    fn j4_templates_read_the_task_s_variables_and_the_node_s_attributes() {
        let id = AllocId::parse("0f2c1f7e-43b8-4a9c-9e0d-5a5b7e3c1d2e").unwrap();
        let renderer = Renderer {
            env: built(FsIsolation::Image, |_| {}),
            dir: AllocDir::new(Path::new("/data"), &id),
            task: "web-app".to_owned(),
            values: Values::default(),
            asked_for_services: AtomicBool::new(false),
        };
        for (name, expected) in [
            ("NOMAD_META_who", Some("group")),
            ("attr.kernel.name", Some("linux")),
            ("node.datacenter", Some("dc1")),
            ("node.unique.name", Some("here")),
            ("attr.none", None),
        ] {
            assert_eq!(renderer.env(name).as_deref(), expected.map(str::as_bytes), "{name}");
        }
    }

    #[test]
    fn env_files_are_read_as_go_envparse_reads_them() {
        for (line, key, value) in [
            ("A=1", "A", "1"),
            ("export B = two words # tail", "B", "two words"),
            ("export = x", "export", "x"),
            (r#"C="x\ny # no" # tail"#, "C", "x\ny # no"),
            (r#"D='a "b"\n'"#, "D", r#"a "b"\n"#),
            ("E=", "E", ""),
            ("E= # none", "E", ""),
            ("E='' # none", "E", ""),
            ("F=a=b#c\r", "F", "a=b"),
            (r#"URL="a\u0026b""#, "URL", "a&b"),
            (r#"U="\u2318\ud83d\ude01\/\b\f""#, "U", "\u{2318}\u{1f601}/\u{8}\u{c}"),
            (r#"U="\udc00\u0041""#, "U", "\u{fffd}"),
            ("spring.datasource.url=x", "spring.datasource.url", "x"),
            ("a/b_1=x", "a/b_1", "x"),
            (r#"P="/opt/bin":/usr/bin"#, "P", "/opt/bin:/usr/bin"),
            (r#"Q=plain \t 'single ' "\"double " # end"#, "Q", "plain \\t single  \"double "),
            ("R=a  ''  # end", "R", "a"),
            ("S=ä ü # end", "S", "ä ü"),
        ] {
            assert_eq!(parse_env(line).unwrap(), [(key.to_owned(), value.to_owned())], "{line}");
        }
        assert_eq!(parse_env("# c\n\n A=1\r\n\t# d\nA=2").unwrap().len(), 2);
        for line in [
            "nope",
            "1A=x",
            "é=x",
            "=x",
            "a-b=x",
            "export  A=x",
            "A=\"x",
            "A='x",
            "A=a\tb",
            "A=\"a\u{1}\"",
            r#"A="\a""#,
            r#"A="\'""#,
            r#"A="\"#,
            r#"A="\u12""#,
            r#"A="\uabcz""#,
            r#"A="\ud83d""#,
            r#"A="\ud83d \ude01""#,
            r#"A="\ud83d\ude0""#,
        ] {
            assert_eq!(parse_env(&format!("A=1\n{line}")).unwrap_err().line, 2, "{line}");
        }
    }

    #[test]
    fn j4_what_changed_while_nobody_looked_is_still_to_change() {
        let files = |rendered: &[(usize, &str)], bases: &[(usize, &str)]| Files {
            rendered: rendered.iter().map(|(number, text)| (*number, text.as_bytes().to_vec())).collect(),
            bases: bases.iter().map(|(number, digest)| (*number, Basis::known(digest))).collect(),
            ..Files::default()
        };
        // The first is the same, the second has changed, the file of the third was changed by the task, and the fourth waits.
        let before = files(&[(0, "old"), (1, "old"), (3, "old")], &[(0, "a"), (1, "b"), (2, "c"), (3, "d")]);
        let mut now = files(&[(0, "old"), (1, "new"), (2, "new")], &[(0, "a"), (1, "x"), (2, "y")]);
        now.keep_known(before, |_, _, basis| basis.digest == "a");
        let texts: Vec<(usize, &[u8])> = now.rendered.iter().map(|(number, text)| (*number, &text[..])).collect();
        assert_eq!(texts, [(0, &b"old"[..]), (1, b"old"), (3, b"old")]);
        let digests: Vec<(usize, &str)> = now.bases.iter().map(|(number, basis)| (*number, &*basis.digest)).collect();
        assert_eq!(digests, [(0, "a"), (1, "b"), (2, "c"), (3, "d")]);
    }
}
