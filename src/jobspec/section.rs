//! A body that is being read: checked against its schema, its `dynamic` blocks expanded, its arguments evaluated.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use super::ast::{Attr, Block, Body, Expr, Kind};
use super::diag::{Diagnostic, Result, did_you_mean};
use super::duration;
use super::eval::Scope;
use super::schema::{self, Key, Often, Schema, Takes, Use};
use super::value::Value;
use crate::spec::collections::BTreeMap;
use crate::spec::{Order as _, Pos, Signal, shortened};

/// The largest numbers of the types that arguments have.
const LARGEST: [i128; 5] = [u16::MAX as i128, i32::MAX as i128, u32::MAX as i128, i64::MAX as i128, u64::MAX as i128];

/// Most errors, and most warnings, that are said about one file.
pub const MOST_SAID: usize = 50;

/// Everything that is said about a job file.
#[derive(Debug, Default)]
pub(super) struct Sink {
    errors: RefCell<Vec<Diagnostic>>,
    warnings: RefCell<Vec<Diagnostic>>,
    /// There were errors that are not told.
    more: Cell<bool>,
    refusals: RefCell<Vec<Diagnostic>>,
    /// Refusals that are not told.
    untold: Cell<usize>,
}

impl Sink {
    pub fn error(&self, pos: &Pos, message: impl Into<String>) {
        if self.is_full() {
            // A file may have a hundred thousand mistakes.
            self.more.set(true);
        } else {
            self.report(Diagnostic::new(pos, message));
        }
    }

    pub fn report(&self, diagnostic: Diagnostic) {
        let mut errors = self.errors.borrow_mut();
        if errors.len() == MOST_SAID {
            self.more.set(true);
        } else if !errors.contains(&diagnostic) {
            errors.push(diagnostic);
        }
    }

    /// Whether nobody will read more, so that nothing more needs to be found out.
    pub fn is_full(&self) -> bool {
        self.errors.borrow().len() == MOST_SAID
    }

    /// Says something once, however often it holds.
    pub fn warn(&self, pos: &Pos, message: impl Into<String>) {
        let warning = Diagnostic::new(pos, message);
        let mut warnings = self.warnings.borrow_mut();
        if warnings.len() < MOST_SAID && !warnings.iter().any(|w| w.message == warning.message) {
            warnings.push(warning);
        }
    }

    /// Something that Nomad knows and that a run here would not do.
    pub fn refuse(&self, pos: &Pos, message: impl Into<String>) {
        let refusal = Diagnostic::new(pos, message);
        let mut refusals = self.refusals.borrow_mut();
        if refusals.contains(&refusal) {
            return;
        }
        if refusals.len() < MOST_SAID {
            refusals.push(refusal);
        } else {
            self.untold.set(self.untold.get() + 1);
        }
    }

    pub fn has_errors(&self) -> bool {
        !self.errors.borrow().is_empty()
    }

    /// The errors so far, if there are any, in the order of the file.
    pub fn take_errors(&self) -> Option<Vec<Diagnostic>> {
        let mut errors = std::mem::take(&mut *self.errors.borrow_mut());
        errors.order_by_key(|d| (d.pos.line, d.pos.column));
        if let Some(last) = errors.last().filter(|_| self.more.get()) {
            let more = Diagnostic::new(&last.pos, format!("there are more mistakes than these {MOST_SAID}"));
            errors.push(more);
        }
        (!errors.is_empty()).then_some(errors)
    }

    pub fn take_warnings(&self) -> Vec<Diagnostic> {
        let mut warnings = std::mem::take(&mut *self.warnings.borrow_mut());
        warnings.order_by_key(|d| (d.pos.line, d.pos.column));
        warnings
    }

    pub fn take_refusals(&self) -> Vec<Diagnostic> {
        let mut refusals = std::mem::take(&mut *self.refusals.borrow_mut());
        refusals.order_by_key(|d| (d.pos.line, d.pos.column));
        if let Some(last) = refusals.last().filter(|_| self.untold.get() > 0) {
            let more = Diagnostic::new(&last.pos, format!("and {} more like these {MOST_SAID}", self.untold.get()));
            refusals.push(more);
        }
        refusals
    }

    /// The value, or `None` after taking note of the error.
    pub fn ok<T>(&self, result: Result<T>) -> Option<T> {
        result.map_err(|d| self.report(d)).ok()
    }
}

/// What messages say of the name of a section, in bytes: the name is in each of its messages.
const LONGEST_NAME: usize = 400;

/// A block after `dynamic` expansion, with the iterators it stands in.
#[derive(Debug, Clone)]
pub(super) struct Expanded<'a> {
    pub kind: &'a str,
    pub pos: &'a Pos,
    pub labels: Vec<String>,
    pub body: &'a Body,
    pub scope: Scope<'a>,
}

/// The blocks of a body, with every `dynamic` one replaced by what it makes.
pub(super) fn expand<'a>(body: &'a Body, scope: &Scope<'a>, sink: &Sink) -> Vec<Expanded<'a>> {
    let mut out = Vec::new();
    for block in &body.blocks {
        if block.kind == "dynamic" {
            sink.ok(expand_dynamic(block, scope, &mut out));
        } else {
            // In the content of a dynamic block it is there once more for each turn, whatever the file's size.
            if scope.is_inner() && sink.ok(scope.count_block(&block.pos)).is_none() {
                break;
            }
            out.push(Expanded {
                kind: &block.kind,
                pos: &block.pos,
                labels: block.labels.clone(),
                body: &block.body,
                scope: scope.clone(),
            });
        }
    }
    out
}

fn expand_dynamic<'a>(block: &'a Block, scope: &Scope<'a>, out: &mut Vec<Expanded<'a>>) -> Result<()> {
    let wrong = |pos: &Pos, message: &str| Diagnostic::new(pos, message);
    let [kind] = block.labels.as_slice() else {
        return Err(wrong(&block.pos, "dynamic takes one label, the name of the block that it makes"));
    };
    let attr = |name: &str| block.body.attrs.iter().find(|a| a.name == name);
    let known = ["for_each", "iterator", "labels"];
    if let Some(unknown) = block.body.attrs.iter().find(|a| !known.contains(&a.name.as_str())) {
        let hint = did_you_mean(&unknown.name, known);
        let message = format!("unsupported argument \"{}\" in dynamic \"{kind}\"{hint}", unknown.name);
        return Err(Diagnostic::new(&unknown.pos, message));
    }
    let content = match block.body.blocks.as_slice() {
        [content] if content.kind == "content" && content.labels.is_empty() => content,
        _ => return Err(wrong(&block.pos, "dynamic needs exactly one block, content { ... }")),
    };
    let for_each = attr("for_each").ok_or_else(|| wrong(&block.pos, "dynamic needs the argument for_each"))?;
    let iterator = match attr("iterator").map(|a| (&a.pos, &a.value.kind)) {
        None => kind.as_str(),
        Some((_, Kind::Reference { name, steps, .. })) if steps.is_empty() => name,
        Some((_, Kind::Literal(Value::String(name)))) => name,
        Some((pos, _)) => return Err(wrong(pos, "iterator must be a plain name")),
    };
    for (key, value) in scope.whole_entries(&for_each.value)? {
        scope.count_block(&block.pos)?;
        let element = BTreeMap::from([("key".to_owned(), key), ("value".to_owned(), value)]);
        let scope = scope.with(iterator, Value::Object(element));
        let mut labels = Vec::new();
        if let Some(attr) = attr("labels") {
            for (_, label) in scope.whole_entries(&attr.value)? {
                labels.push(label.to_text().ok_or_else(|| wrong(&attr.pos, "labels must be a list of strings"))?);
            }
        }
        out.push(Expanded { kind, pos: &block.pos, labels, body: &content.body, scope });
    }
    Ok(())
}

/// One body of the job file.
#[derive(Debug)]
pub(super) struct Section<'a> {
    /// How messages call it: `task "web"`.
    pub name: String,
    pub pos: &'a Pos,
    pub sink: &'a Sink,
    pub scope: Scope<'a>,
    body: &'a Body,
    blocks: Vec<Expanded<'a>>,
}

/// What is said of the keys of a body that are not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    /// What becomes of each.
    Each,
    /// Only what is refused; the block around has been said to be passed over.
    Refusals,
    /// Nothing; the block around is refused.
    Nothing,
}

impl<'a> Section<'a> {
    /// Checks a body against its schema; what does not belong there has been reported afterwards.
    pub fn open(name: String, block: &Expanded<'a>, schema: &Schema, sink: &'a Sink) -> Section<'a> {
        let section = Section::unchecked(name, block, sink);
        section.check(schema, Said::Each);
        section
    }

    /// A body that somebody reads before it is known what it has to be checked against.
    pub fn unchecked(name: String, block: &Expanded<'a>, sink: &'a Sink) -> Section<'a> {
        Section {
            name: if name.len() > LONGEST_NAME { shortened(&name, LONGEST_NAME).into_owned() } else { name },
            pos: block.pos,
            sink,
            scope: block.scope.clone(),
            body: block.body,
            blocks: expand(block.body, &block.scope, sink),
        }
    }

    /// Checks a body that is refused as a whole.
    pub fn check_refused(&self, schema: &Schema) {
        self.check(schema, Said::Nothing);
    }

    fn check(&self, schema: &Schema, said: Said) {
        if !schema.free {
            self.body.attrs.iter().for_each(|a| self.check_attr(a, schema, said));
            self.check_blocks(schema, said);
        } else if said != Said::Each {
            self.check_free();
        }
    }

    /// What nobody reads can still be wrong.
    fn check_free(&self) {
        for attr in &self.body.attrs {
            self.eval(&attr.value);
        }
        for block in &self.blocks {
            Section::unchecked(format!("{} of {}", block.kind, self.name), block, self.sink).check_free();
        }
    }

    fn check_attr(&self, attr: &Attr, schema: &Schema, said: Said) {
        if self.sink.is_full() {
            return;
        }
        let (name, here) = (&attr.name, &self.name);
        if let Some(key) = schema.key(name) {
            if key.becomes != Use::Taken || said != Said::Each {
                self.check_value(key);
            }
            self.say(key.becomes, name, &attr.pos, said);
        } else if let Some(block) = schema.block(name) {
            // Nomad reads these two in both forms, at these three places only.
            let both = [&schema::JOB, &schema::GROUP, &schema::TASK].iter().any(|s| std::ptr::eq(*s, schema));
            if !both || !matches!(block.name, "env" | "meta") {
                self.sink.error(&attr.pos, format!("\"{name}\" in {here} is a block; write {name} {{ ... }}"));
            }
        } else {
            let hint = did_you_mean(name, schema.names());
            self.sink.error(&attr.pos, format!("unsupported argument \"{name}\" in {here}{}", or_remove(hint)));
        }
    }

    /// Evaluates what is not read, so that a mistake in it is found.
    fn check_value(&self, key: &Key) {
        match key.takes {
            Takes::Text => drop(self.string(key.name)),
            Takes::Number => drop(self.int::<i128>(key.name, i128::MIN)),
            Takes::Flag => drop(self.bool(key.name)),
            Takes::Duration => drop(self.duration(key.name)),
            Takes::Texts => drop(self.texts(key.name)),
            Takes::Map => drop(self.strings(key.name)),
            Takes::Any => drop(self.value(key.name)),
        }
    }

    fn check_blocks(&self, schema: &Schema, said: Said) {
        let mut seen: BTreeMap<&str, &Pos> = BTreeMap::new();
        for block in &self.blocks {
            if self.sink.is_full() {
                return;
            }
            let (name, here) = (block.kind, &self.name);
            let Some(known) = schema.block(name) else {
                if schema.key(name).is_some() {
                    self.sink.error(block.pos, format!("\"{name}\" in {here} is an argument; write {name} = ..."));
                } else {
                    let hint = or_remove(did_you_mean(name, schema.names()));
                    self.sink.error(block.pos, format!("unsupported block \"{name}\" in {here}{hint}"));
                }
                continue;
            };
            if block.labels.len() != known.labels {
                let wanted = if known.labels == 0 { "no label" } else { "one label, its name" };
                self.sink.error(block.pos, format!("{name} in {here} takes {wanted}"));
            }
            if known.often == Often::Once
                && let Some(first) = seen.insert(name, block.pos)
            {
                let message = format!("Duplicate {name} block in {here}; it stands in line {} already", first.line);
                self.sink.error(block.pos, message);
            }
            self.say(known.becomes, name, block.pos, said);
            let said = match (known.becomes, said) {
                (Use::Taken, Said::Each) => continue,
                (Use::Refused(_), _) | (_, Said::Nothing) => Said::Nothing,
                _ => Said::Refusals,
            };
            let inner = match block.labels.first() {
                Some(label) => format!("{name} \"{label}\" of {here}"),
                None => format!("{name} of {here}"),
            };
            Section::unchecked(inner, block, self.sink).check(known.body, said);
        }
    }

    fn say(&self, becomes: Use, name: &str, pos: &Pos, said: Said) {
        match (becomes, said) {
            (Use::Refused(fix), Said::Each | Said::Refusals) => {
                self.refuse(pos, format!("{name} in {} is not supported yet by agentbin run; {fix}", self.name));
            }
            (Use::NoEffect | Use::Agent, Said::Each) => {
                self.sink.warn(pos, format!("{name} has no effect with agentbin run"));
            }
            (Use::Instead(what), Said::Each) => {
                self.sink.warn(pos, format!("{name} has no effect with agentbin run: {what}"));
            }
            _ => {}
        }
    }

    /// Something that Nomad knows and that a run here would not do.
    pub fn refuse(&self, pos: &Pos, message: impl Into<String>) {
        self.sink.refuse(pos, message);
    }

    pub fn error(&self, pos: &Pos, message: impl Into<String>) {
        self.sink.error(pos, message);
    }

    /// An argument as it is written.
    pub fn attr(&self, name: &str) -> Option<&'a Attr> {
        self.body.attrs.iter().find(|a| a.name == name)
    }

    pub fn attrs(&self) -> &'a [Attr] {
        &self.body.attrs
    }

    /// Where an argument stands, or else the section.
    pub fn pos_of(&self, name: &str) -> &'a Pos {
        self.attr(name).map_or(self.pos, |a| &a.pos)
    }

    pub fn blocks(&self) -> &[Expanded<'a>] {
        &self.blocks
    }

    pub fn blocks_of(&self, kind: &str) -> impl Iterator<Item = &Expanded<'a>> {
        self.blocks.iter().filter(move |b| b.kind == kind)
    }

    /// The only block of a kind, opened as `<kind> of <this>`.
    pub fn child(&self, kind: &str, schema: &Schema) -> Option<Section<'a>> {
        let block = self.blocks_of(kind).next()?;
        Some(Section::open(format!("{kind} of {}", self.name), block, schema, self.sink))
    }

    pub fn eval(&self, expr: &Expr) -> Option<Value> {
        self.sink.ok(self.scope.eval(expr))
    }

    /// An argument's value; `None` when it is absent, null or wrong (which has been reported then).
    fn value(&self, name: &str) -> Option<(&'a Attr, Value)> {
        let attr = self.attr(name)?;
        match self.eval(&attr.value)? {
            Value::Null => None,
            value => Some((attr, value)),
        }
    }

    fn wrong(&self, attr: &Attr, needed: &str, value: &Value) {
        let found = match value {
            Value::String(s) => format!("\"{s}\""),
            other => other.type_name().to_owned(),
        };
        let message = format!("\"{}\" in {} must be {needed}, not {found}", attr.name, self.name);
        self.error(&attr.pos, message);
    }

    pub fn string(&self, name: &str) -> Option<String> {
        let (attr, value) = self.value(name)?;
        let text = value.to_text();
        if text.is_none() {
            self.wrong(attr, "a string", &value);
        }
        text
    }

    /// A list of strings.
    pub fn texts(&self, name: &str) -> Option<Vec<String>> {
        let (attr, value) = self.value(name)?;
        let texts = value.elements().and_then(|items| items.iter().map(Value::to_text).collect());
        if texts.is_none() {
            self.wrong(attr, "a list of strings", &value);
        }
        texts
    }

    pub fn bool(&self, name: &str) -> Option<bool> {
        let (attr, value) = self.value(name)?;
        let bool = value.to_bool();
        if bool.is_none() {
            self.wrong(attr, "true or false", &value);
        }
        bool
    }

    /// A whole number of at least `least` that fits the type.
    pub fn int<T: TryFrom<i128>>(&self, name: &str, least: i128) -> Option<T> {
        let (attr, value) = self.value(name)?;
        let Some(int) = value.to_number().and_then(super::value::Number::to_int) else {
            self.wrong(attr, "a whole number", &value);
            return None;
        };
        if int < least {
            self.error(&attr.pos, format!("\"{name}\" in {} must be at least {least}, not {int}", self.name));
            return None;
        }
        let fitting = T::try_from(int).ok();
        if fitting.is_none() {
            let is_last = |most: &i128| T::try_from(*most).is_ok() && T::try_from(most + 1).is_err();
            let bound = match LARGEST.iter().find(|most| is_last(most)) {
                Some(most) => format!("must be at most {most}, not {int}"),
                None => "is too large".to_owned(),
            };
            self.error(&attr.pos, format!("\"{name}\" in {} {bound}", self.name));
        }
        fitting
    }

    /// A duration, as Go text or as a number of nanoseconds.
    pub fn duration(&self, name: &str) -> Option<Duration> {
        let attr = self.attr(name)?;
        let value = self.eval(&attr.value)?;
        let nanos = match (&value, value.to_number().and_then(super::value::Number::to_int)) {
            (Value::Number(_), Some(int)) => {
                i64::try_from(int).map_err(|_| "the number of nanoseconds is too large".to_owned())
            }
            // A number in quotes has no unit, which Nomad refuses too.
            (Value::String(text), _) => duration::parse_signed(text),
            _ => {
                self.wrong(attr, "a duration such as \"30s\"", &value);
                return None;
            }
        };
        let duration = nanos.and_then(|n| u64::try_from(n).map_err(|_| "it must not be negative".to_owned()));
        match duration {
            Ok(nanos) => Some(Duration::from_nanos(nanos)),
            Err(message) => {
                self.error(&attr.pos, format!("\"{name}\" in {}: {message}", self.name));
                None
            }
        }
    }

    /// A block or argument of strings by name: `env { A = 1 }` or `env = { "a.b" = 1 }`.
    pub fn strings(&self, name: &str) -> BTreeMap<String, String> {
        let mut out = BTreeMap::new();
        let block = self.blocks_of(name).next();
        if let (Some(block), Some(attr)) = (block, self.attr(name)) {
            let pos = if attr.pos.line > block.pos.line { &attr.pos } else { block.pos };
            self.error(pos, format!("Duplicate {name} block in {}; use one of the two forms", self.name));
        }
        if let Some((attr, value)) = self.value(name) {
            match value {
                Value::Object(map) => {
                    for (key, value) in map {
                        self.add_string(&mut out, name, &attr.pos, key, &value);
                    }
                }
                other => self.wrong(attr, "a map of strings", &other),
            }
        }
        if let Some(block) = block {
            for inner in expand(block.body, &block.scope, self.sink) {
                let message =
                    format!("unsupported block \"{}\" in {name} of {}; write KEY = value", inner.kind, self.name);
                self.error(inner.pos, message);
            }
            for attr in &block.body.attrs {
                if let Some(value) = self.sink.ok(block.scope.eval(&attr.value)) {
                    self.add_string(&mut out, name, &attr.pos, attr.name.clone(), &value);
                }
            }
        }
        out
    }

    fn add_string(&self, out: &mut BTreeMap<String, String>, name: &str, pos: &Pos, key: String, value: &Value) {
        if let Some(text) = value.to_text() {
            out.insert(key, text);
        } else {
            let message = format!("\"{key}\" in {name} of {} must be a string, not {}", self.name, value.type_name());
            self.error(pos, message);
        }
    }
}

fn or_remove(hint: String) -> String {
    if hint.is_empty() { "; remove it".to_owned() } else { hint }
}

/// Reads a signal's name.
pub(super) fn signal(section: &Section<'_>, argument: &str, name: &str) -> Option<Signal> {
    let signal = Signal::from_name(name);
    if signal.is_none() {
        let message = format!("unknown signal \"{name}\" in {}; use a name such as SIGTERM", section.name);
        section.refuse(section.pos_of(argument), message);
    }
    signal
}
