//! Goes through a parsed template and writes what it says. Every round of a loop, every call and every byte is counted.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::asked::{Ask, Asked};
use super::host::Host;
use super::types::{Branch, Command, Exec, Function, Name, Node, Operand, Pipeline, Term, Type};
use super::value::{Key, Keyed, Kind, Map, Value};
use super::verbs;
use super::{Limits, Rendered, TemplateError};
use crate::spec::collections::BTreeMap;

/// Why it does not go on: the place is added on the way out.
pub(super) enum Stop {
    /// A mistake at a byte of the template.
    Failed(usize, String),
    Break,
    Continue,
}

type Go<T> = Result<T, Stop>;

/// Renders the template without a name.
pub(super) fn run(
    defined: &BTreeMap<Vec<u8>, Vec<Node>>,
    source: &[u8],
    host: &dyn Host,
    strict: bool,
    limits: Limits,
    cancel: &AtomicBool,
) -> Result<Rendered, TemplateError> {
    let mut exec = Exec {
        defined,
        host,
        strict,
        limits,
        cancel,
        steps: 0,
        made: 0,
        depth: 0,
        written: 0,
        variables: vec![("".into(), Value::Nil)],
        scratch: BTreeMap::new(),
        missing: Vec::new(),
        asked: Asked::of(source),
    };
    let mut output = Vec::new();
    let nodes = defined.get(&b""[..]).map_or(&[][..], Vec::as_slice);
    match exec.walk(nodes, &Value::Nil, &mut output) {
        Err(Stop::Failed(at, message)) => Err(TemplateError::new(source, at, message)),
        _ => Ok(Rendered { output, missing: exec.missing, asked: exec.asked }),
    }
}

fn failed<T>(at: usize, message: impl Into<String>) -> Go<T> {
    Err(Stop::Failed(at, message.into()))
}

impl Exec<'_> {
    /// Counts one step.
    pub(super) fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        if self.steps > self.limits.steps {
            return Err(format!("it takes more than {} steps", self.limits.steps));
        }
        if self.cancel.load(Ordering::Relaxed) {
            return Err("it was given up, because the task is stopped".to_owned());
        }
        Ok(())
    }

    /// Counts what takes as long as so many steps, before it is done.
    pub(super) fn work(&mut self, what: &str, steps: u64) -> Result<(), String> {
        let left = self.limits.steps.saturating_sub(self.steps);
        if steps > left {
            let most = self.limits.steps;
            return Err(format!("it takes more than {most} steps: {what} counts as {steps}, and {left} are left"));
        }
        self.steps += steps;
        self.step()
    }

    /// Counts bytes of values that were made.
    pub(super) fn spend(&mut self, bytes: usize) -> Result<(), String> {
        self.made = self.made.saturating_add(bytes);
        if self.made > self.limits.made {
            return Err(format!("its values have more than {} MiB", self.limits.made >> 20));
        }
        Ok(())
    }

    /// Notes what was asked for, and the answer.
    pub(super) fn note(&mut self, ask: Ask, name: &str, answer: &dyn std::fmt::Debug) -> Result<(), String> {
        if self.asked.note(ask, name, answer) { self.spend(96 + name.len()) } else { Ok(()) }
    }

    /// How many bytes the next value may have.
    pub(super) fn room(&self) -> usize {
        (self.limits.made - self.made.min(self.limits.made)).min(self.limits.rendered)
    }

    /// Notes something that is not there.
    pub(super) fn miss(&mut self, what: String) {
        if !self.missing.contains(&what) {
            self.missing.push(what);
        }
    }

    fn write(&mut self, at: usize, out: &mut Vec<u8>, bytes: &[u8]) -> Go<()> {
        self.written = self.written.saturating_add(bytes.len());
        if self.written > self.limits.rendered {
            return failed(at, format!("it renders to more than {} MiB", self.limits.rendered >> 20));
        }
        out.extend_from_slice(bytes);
        Ok(())
    }

    fn deeper(&mut self, at: usize) -> Go<()> {
        self.depth += 1;
        if self.depth > self.limits.depth {
            return failed(at, format!("more than {} templates and blocks nest in each other", self.limits.depth));
        }
        self.step().map_err(|e| Stop::Failed(at, e))
    }

    fn walk(&mut self, nodes: &[Node], dot: &Value, out: &mut Vec<u8>) -> Go<()> {
        for node in nodes {
            match node {
                Node::Text(text) => {
                    self.step().map_err(|e| Stop::Failed(0, e))?;
                    self.write(0, out, text)?;
                }
                Node::Action(pipeline) => {
                    let value = self.pipeline(dot, pipeline)?;
                    if pipeline.variables.is_empty() {
                        let at = pipeline.commands.first().map_or(0, |c| c.at);
                        let mut text = verbs::Out::new(self.room());
                        verbs::print_result(&mut text, &value).map_err(|e| Stop::Failed(at, e))?;
                        self.write(at, out, text.bytes())?;
                    }
                }
                Node::If(branch) => self.branch(branch, dot, false, out)?,
                Node::With(branch) => self.branch(branch, dot, true, out)?,
                Node::Range(branch) => {
                    self.deeper(branch.at)?;
                    let kept = self.variables.len();
                    self.range(branch, dot, out)?;
                    self.variables.truncate(kept);
                    self.depth -= 1;
                }
                Node::Template(at, name, data) => {
                    let Some(nodes) = self.defined.get(name) else {
                        let known: Vec<String> =
                            self.defined.keys().filter(|k| !k.is_empty()).map(|k| shown(k)).collect();
                        let known = if known.is_empty() { "none is".to_owned() } else { known.join(", ") };
                        return failed(*at, format!("the template {} is not defined; defined: {known}", shown(name)));
                    };
                    let value = data.as_ref().map_or(Ok(Value::Nil), |data| self.pipeline(dot, data))?;
                    self.deeper(*at)?;
                    self.template(nodes, &value, out)?;
                    self.depth -= 1;
                }
                Node::Break => return Err(Stop::Break),
                Node::Continue => return Err(Stop::Continue),
            }
        }
        Ok(())
    }

    /// A template with variables of its own.
    fn template(&mut self, nodes: &[Node], dot: &Value, out: &mut Vec<u8>) -> Go<()> {
        let variables = std::mem::replace(&mut self.variables, vec![("".into(), dot.clone())]);
        let done = self.walk(nodes, dot, out);
        self.variables = variables;
        done
    }

    /// What `executeTemplate` does.
    pub(super) fn execute(&mut self, name: &[u8], dot: &Value) -> Result<Vec<u8>, String> {
        let Some(nodes) = self.defined.get(name) else {
            return Err(format!("the template {} is not defined", shown(name)));
        };
        let plain = |stop: Stop| match stop {
            Stop::Failed(_, message) => message,
            Stop::Break | Stop::Continue => "a loop is left that is not in it".to_owned(),
        };
        self.deeper(0).map_err(plain)?;
        let mut out = Vec::new();
        self.template(nodes, dot, &mut out).map_err(plain)?;
        self.depth -= 1;
        Ok(out)
    }

    fn branch(&mut self, branch: &Branch, dot: &Value, with: bool, out: &mut Vec<u8>) -> Go<()> {
        // A chain of `else if` is gone through here; only what really nests goes deeper.
        let kept = self.variables.len();
        self.deeper(branch.at)?;
        let (mut branch, mut with) = (branch, with);
        loop {
            let value = self.pipeline(dot, &branch.pipeline)?;
            if value.is_true() {
                self.walk(&branch.then, if with { &value } else { dot }, out)?;
                break;
            }
            match branch.otherwise.as_deref() {
                None => break,
                Some([Node::If(next)]) => (branch, with) = (next, false),
                Some([Node::With(next)]) => (branch, with) = (next, true),
                Some(nodes) => {
                    self.walk(nodes, dot, out)?;
                    break;
                }
            }
        }
        self.variables.truncate(kept);
        self.depth -= 1;
        Ok(())
    }

    fn range(&mut self, branch: &Branch, dot: &Value, out: &mut Vec<u8>) -> Go<()> {
        let value = self.pipeline(dot, &branch.pipeline)?;
        let at = branch.at;
        let any = match &value {
            Value::List(list) => {
                for (i, item) in list.items.iter().enumerate() {
                    if !self.round(branch, Some(Value::Int(i as i64)), item, out)? {
                        break;
                    }
                }
                !list.items.is_empty()
            }
            Value::Map(map) => {
                let pairs = map.pairs();
                self.spend(pairs.len() * 64).map_err(|e| Stop::Failed(at, e))?;
                for (key, item) in &pairs {
                    if !self.round(branch, Some(key.value()), item, out)? {
                        break;
                    }
                }
                !pairs.is_empty()
            }
            Value::Loop(from, to) => {
                let mut n = *from;
                while n < *to && self.round(branch, Some(Value::Int(n - from)), &Value::Int64(n), out)? {
                    n += 1;
                }
                from < to
            }
            Value::Int(_) | Value::Int64(_) | Value::Uint64(_) | Value::Byte(_) => {
                if branch.pipeline.variables.len() > 1 {
                    return failed(at, "a number cannot be gone through with two variables");
                }
                let most = value.signed().unwrap_or_else(|| value.unsigned().unwrap_or(0).min(1 << 62) as i64);
                let of = |n: i64| match value {
                    Value::Int(_) => Value::Int(n),
                    Value::Int64(_) => Value::Int64(n),
                    Value::Byte(_) => Value::Byte(n as u8),
                    _ => Value::Uint64(n as u64),
                };
                let mut n = 0;
                while n < most && self.round(branch, None, &of(n), out)? {
                    n += 1;
                }
                most > 0
            }
            Value::Nil | Value::NilAny => false,
            other => return failed(at, format!("range cannot go through a value of type {}", other.type_name())),
        };
        match &branch.otherwise {
            Some(nodes) if !any => self.walk(nodes, dot, out),
            _ => Ok(()),
        }
    }

    /// One round of a loop. `false` ends it.
    fn round(&mut self, branch: &Branch, index: Option<Value>, item: &Value, out: &mut Vec<u8>) -> Go<bool> {
        self.step().map_err(|e| Stop::Failed(branch.at, e))?;
        let pipeline = &branch.pipeline;
        let kept = self.variables.len();
        let item_value = item.clone().bare();
        let index = index.unwrap_or(Value::Nil);
        match pipeline.variables.as_slice() {
            [one] if pipeline.assigns => self.set(one, item_value.clone()),
            [key, one] if pipeline.assigns => {
                self.set(key, index);
                self.set(one, item_value.clone());
            }
            // The pipeline has put them there.
            [_] => self.variables[kept - 1].1 = item_value.clone(),
            [_, _] => {
                self.variables[kept - 1].1 = item_value.clone();
                self.variables[kept - 2].1 = index;
            }
            _ => {}
        }
        let depth = self.depth;
        let done = self.walk(&branch.then, item, out);
        self.variables.truncate(kept);
        self.depth = depth;
        match done {
            Ok(()) | Err(Stop::Continue) => Ok(true),
            Err(Stop::Break) => Ok(false),
            Err(other) => Err(other),
        }
    }

    fn set(&mut self, name: &Name, value: Value) {
        if let Some((_, place)) = self.variables.iter_mut().rev().find(|(n, _)| n == name) {
            *place = value;
        }
    }

    fn pipeline(&mut self, dot: &Value, pipeline: &Pipeline) -> Go<Value> {
        let mut value = None;
        for command in &pipeline.commands {
            value = Some(self.command(dot, command, value)?.bare());
        }
        let value = value.unwrap_or(Value::Nil);
        for name in &pipeline.variables {
            if pipeline.assigns {
                self.set(name, value.clone());
            } else {
                self.variables.push((Name::clone(name), value.clone()));
            }
        }
        Ok(value)
    }

    fn command(&mut self, dot: &Value, command: &Command, last: Option<Value>) -> Go<Value> {
        let Some((first, rest)) = command.words.split_first() else { return Ok(Value::Nil) };
        let at = first.at;
        match &first.term {
            Term::Field(names) => return self.fields(at, dot, dot, names, rest, last),
            Term::Chain(base, names) => {
                let value = self.argument(dot, Type::Reflect, base)?;
                return self.fields(at, dot, &value, names, rest, last);
            }
            Term::Function(function) => return self.call(dot, function, command.at, rest, last),
            Term::Variable(name, names) if !names.is_empty() => {
                let value = self.variable(name);
                return self.fields(at, dot, &value, names, rest, last);
            }
            _ => {}
        }
        if !rest.is_empty() || last.is_some() {
            return failed(at, "what is not a function cannot have arguments");
        }
        match &first.term {
            Term::Nil => failed(at, "nil alone is not a command"),
            Term::Pipeline(inner) => self.nested(at, dot, inner),
            Term::Variable(name, _) => Ok(self.variable(name)),
            _ => self.constant(at, dot, &first.term),
        }
    }

    fn nested(&mut self, at: usize, dot: &Value, pipeline: &Pipeline) -> Go<Value> {
        self.deeper(at)?;
        let value = self.pipeline(dot, pipeline)?;
        self.depth -= 1;
        Ok(value)
    }

    fn constant(&mut self, at: usize, dot: &Value, term: &Term) -> Go<Value> {
        Ok(match term {
            Term::Dot => dot.clone(),
            Term::Bool(b) => Value::Bool(*b),
            Term::Text(text) => {
                self.spend(text.len()).map_err(|e| Stop::Failed(at, e))?;
                Value::text(text)
            }
            Term::Number(n) => match (n.is_float, n.float, n.int) {
                (true, Some(f), _) => Value::Float(f),
                (_, _, Some(n)) => Value::Int(n),
                _ => return failed(at, "the number is too large for an integer"),
            },
            _ => Value::Nil,
        })
    }

    fn variable(&self, name: &Name) -> Value {
        self.variables.iter().rev().find(|(n, _)| n == name).map_or(Value::Nil, |(_, v)| v.clone())
    }

    /// Field after field; the arguments belong to the last one.
    fn fields(
        &mut self,
        at: usize,
        dot: &Value,
        of: &Value,
        names: &[Name],
        rest: &[Operand],
        last: Option<Value>,
    ) -> Go<Value> {
        let Some((end, before)) = names.split_last() else { return Ok(of.clone()) };
        let mut value = of.clone();
        for name in before {
            value = self.field(at, dot, &value, name, &[], None)?;
        }
        self.field(at, dot, &value, end, rest, last)
    }

    fn field(
        &mut self,
        at: usize,
        dot: &Value,
        of: &Value,
        name: &str,
        rest: &[Operand],
        last: Option<Value>,
    ) -> Go<Value> {
        let has_arguments = !rest.is_empty() || last.is_some();
        let no_arguments = || failed(at, format!("{name} has arguments, but it is not a function"));
        match of {
            Value::Nil if self.strict => failed(at, format!("nil data; no entry for key {name:?}")),
            Value::Nil => Ok(Value::Nil),
            Value::NilAny => failed(at, format!("there is no value to take .{name} of")),
            Value::NilPointer(kind) => failed(at, format!("nil pointer evaluating {kind}.{name}")),
            Value::Scratch => {
                let mut arguments = Vec::new();
                for operand in rest {
                    let value = self.argument(dot, Type::Any, operand)?;
                    arguments.push(value);
                }
                arguments.extend(last);
                let done = super::functions::scratch(self, name, &arguments);
                done.map_err(|e| Stop::Failed(at, e))
            }
            Value::Object(object) => match object.field(name) {
                Some(_) if has_arguments => no_arguments(),
                Some(value) => Ok(value),
                None => {
                    let known: Vec<&str> = object.fields.iter().map(|(n, _)| *n).collect();
                    let what = format!("{} has no field {name}; it has {}", object.type_name, known.join(", "));
                    failed(at, what)
                }
            },
            Value::Map(map) => {
                if let Some(owner) = &map.owner
                    && let Some(value) = items_method(map, owner, name)
                {
                    return if has_arguments { no_arguments() } else { Ok(value) };
                }
                if map.keyed == Keyed::Int {
                    return failed(at, format!("can't evaluate field {name} in type {}", of.type_name()));
                }
                if has_arguments {
                    return no_arguments();
                }
                match map.get(&Key::text(name.as_bytes())) {
                    Some(value) => Ok(value),
                    None if self.strict => failed(at, format!("map has no entry for key {name:?}{}", keys_of(map))),
                    None => Ok(map.kind.zero()),
                }
            }
            other => failed(at, format!("can't evaluate field {name} in type {}", other.type_name())),
        }
    }

    /// The value of an argument whose parameter has the type `wanted`.
    fn argument(&mut self, dot: &Value, wanted: Type, operand: &Operand) -> Go<Value> {
        let at = operand.at;
        let value = match &operand.term {
            Term::Dot => dot.clone(),
            Term::Nil => {
                return if wanted.can_be_nil() {
                    Ok(Value::Nil)
                } else {
                    failed(at, format!("cannot assign nil to {}", wanted.name()))
                };
            }
            Term::Field(names) => self.fields(at, dot, dot, names, &[], None)?,
            Term::Variable(name, names) => {
                let value = self.variable(name);
                self.fields(at, dot, &value, names, &[], None)?
            }
            Term::Pipeline(pipeline) => self.nested(at, dot, pipeline)?,
            Term::Function(function) => self.call(dot, function, at, &[], None)?,
            Term::Chain(base, names) => {
                let value = self.argument(dot, Type::Reflect, base)?;
                self.fields(at, dot, &value, names, &[], None)?
            }
            // One that is too large is cut, as Go does it.
            Term::Number(n) if wanted == Type::Uint32 => {
                let number = n.uint.map(|n| Value::Int(i64::from(n as u32)));
                return number.map_or_else(|| failed(at, "expected uint32; found another number"), Ok);
            }
            term => {
                let value = self.constant(at, dot, term)?;
                let converted = match (wanted, term) {
                    (Type::Int, Term::Number(n)) => n.int.map(Value::Int),
                    (Type::Float, Term::Number(n)) => n.float.map(Value::Float),
                    (Type::Any | Type::Reflect, _) | (Type::Text, Term::Text(_)) | (Type::Bool, Term::Bool(_)) => {
                        Some(value.clone())
                    }
                    _ => None,
                };
                let Some(converted) = converted else {
                    let what = format!("expected {}; found {}", wanted.name(), value.type_name());
                    return failed(at, what);
                };
                return Ok(converted);
            }
        };
        Self::fit(at, value, wanted)
    }

    /// `value` as an argument of the type `wanted`.
    fn fit(at: usize, value: Value, wanted: Type) -> Go<Value> {
        if wanted.takes(&value) {
            return Ok(if wanted == Type::Any { value.bare() } else { value });
        }
        match value {
            Value::Nil => failed(at, format!("there is no value; expected {}", wanted.name())),
            other => failed(at, format!("wrong type for value; expected {}; got {}", wanted.name(), other.type_name())),
        }
    }

    fn call(
        &mut self,
        dot: &Value,
        function: &'static Function,
        at: usize,
        words: &[Operand],
        last: Option<Value>,
    ) -> Go<Value> {
        self.step().map_err(|e| Stop::Failed(at, e))?;
        let given = words.len() + usize::from(last.is_some());
        let fixed = function.fixed();
        if given < fixed || (!function.is_variadic() && given > fixed) {
            let least = if function.is_variadic() { "at least " } else { "" };
            let what = format!("wrong number of args for {}: want {least}{fixed} got {given}", function.name);
            return failed(at, format!("{what}; it is used as {}", function.usage()));
        }
        if matches!(function.name, "and" | "or") {
            let mut value = Value::Nil;
            for word in words {
                value = self.argument(dot, Type::Reflect, word)?;
                if value.is_true() == (function.name == "or") {
                    return Ok(value);
                }
            }
            return Ok(last.unwrap_or(value));
        }
        let mut arguments = Vec::with_capacity(given);
        for (i, word) in words.iter().enumerate() {
            let value = self.argument(dot, function.parameter(i), word)?;
            arguments.push(value);
        }
        if let Some(last) = last {
            let value = Self::fit(at, last, function.parameter(words.len()))?;
            arguments.push(value);
        }
        let value = (function.run)(self, &arguments);
        let value = value.map_err(|e| Stop::Failed(at, format!("{}: {e}", function.name)))?;
        self.spend(value.size()).map_err(|e| Stop::Failed(at, e))?;
        Ok(value)
    }
}

fn shown(name: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(name))
}

/// The keys of a map, for a message: at most ten.
fn keys_of(map: &Map) -> String {
    let entries = map.entries.borrow();
    let names: Vec<String> = entries
        .keys()
        .take(10)
        .map(|key| match key {
            Key::Int(n) => n.to_string(),
            Key::Text(text) => String::from_utf8_lossy(text).into_owned(),
        })
        .collect();
    if names.is_empty() { "; it is empty".to_owned() } else { format!("; it has {}", names.join(", ")) }
}

/// What the items of a variable have besides their names.
fn items_method(map: &Map, owner: &Rc<super::value::Object>, name: &str) -> Option<Value> {
    let pairs = map.pairs();
    let text = |value: &Value| match value {
        Value::Object(item) => item.shown.clone().map_or(Value::Nil, Value::Text),
        other => other.clone(),
    };
    Some(match name {
        "Keys" => Value::list(Kind::Text, pairs.iter().map(|(k, _)| k.value()).collect()),
        "Values" => Value::list(Kind::Text, pairs.iter().map(|(_, v)| text(v)).collect()),
        "Tuples" => {
            let tuple = |(key, value): &(Key, Value)| {
                Value::Object(Rc::new(super::value::Object {
                    type_name: "struct { K, V string }",
                    fields: vec![("K", key.value()), ("V", text(value))],
                    shown: None,
                    methods: Vec::new(),
                }))
            };
            Value::list(Kind::Objects("struct { K, V string }"), pairs.iter().map(tuple).collect())
        }
        "Metadata" => owner.field("Metadata")?,
        "Parent" => Value::Object(Rc::clone(owner)),
        _ => return None,
    })
}
