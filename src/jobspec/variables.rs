//! Input variables and local values.

use std::collections::VecDeque;
use std::path::Path;

use super::ast::{Attr, Expr, Kind, Step};
use super::budget::{Budget, check_source, size};
use super::diag::{Diagnostic, Result, Source, did_you_mean};
use super::eval::{Globals, Scope};
use super::json;
use super::native;
use super::schema::{VALIDATION, VARIABLE};
use super::section::{Expanded, Section, Sink};
use super::types::Type;
use super::value::Value;
use super::{Input, Origin};
use crate::spec::Pos;
use crate::spec::collections::{BTreeMap, BTreeSet};

/// A declared variable.
struct Declaration<'a> {
    pos: &'a Pos,
    kind: Type,
    default: Option<Value>,
    section: Option<Section<'a>>,
}

/// A value for a variable from outside of the job file.
struct Given {
    pos: Pos,
    value: Value,
}

/// Values of all variables that `blocks` declare. A file of values may have others where the job was sent to a server.
pub(super) fn evaluate(
    input: &Input<'_>,
    origin: Origin,
    blocks: &[Expanded<'_>],
    budget: &Budget,
    sink: &Sink,
) -> BTreeMap<String, Value> {
    let declarations = declarations(blocks, sink);
    let mut given: BTreeMap<String, Given> = BTreeMap::new();
    for (key, text) in input.env {
        if let Some(name) = key.strip_prefix("NOMAD_VAR_")
            && let Some(declaration) = declarations.get(name)
            && let Some(value) = sink.ok(from_text(key, text, &declaration.kind, budget))
        {
            given.insert(name.to_owned(), value);
        }
    }
    let undeclared = |pos: &Pos, name: &str| {
        if origin == Origin::Sent {
            return;
        }
        let hint = match did_you_mean(name, declarations.keys().map(String::as_str)) {
            hint if hint.is_empty() => "; declare it with a variable block".to_owned(),
            hint => hint,
        };
        sink.error(pos, format!("undeclared variable \"{name}\"{hint}"));
    };
    for (path, contents) in input.var_files {
        for (name, value) in sink.ok(var_file(path, contents, budget, sink)).unwrap_or_default() {
            if declarations.contains_key(&name) {
                given.insert(name, value);
            } else {
                undeclared(&value.pos, &name);
            }
        }
    }
    for (name, text) in input.vars {
        let flag = format!("--var {name}");
        match declarations.get(name) {
            Some(declaration) => {
                if let Some(value) = sink.ok(from_text(&flag, text, &declaration.kind, budget)) {
                    given.insert(name.clone(), value);
                }
            }
            None => undeclared(&outside(&flag), name),
        }
    }
    let mut out = BTreeMap::new();
    if sink.has_errors() {
        return out;
    }
    for (name, declaration) in &declarations {
        if let Some(value) = sink.ok(declaration.value(name, given.remove(name), budget)) {
            declaration.validate(name, &value, budget, sink);
            out.insert(name.clone(), value);
        }
    }
    out
}

/// The place of something that stands in no file.
fn outside(what: &str) -> Pos {
    Pos { file: what.into(), line: 0, column: 0 }
}

fn declarations<'a>(blocks: &[Expanded<'a>], sink: &'a Sink) -> BTreeMap<String, Declaration<'a>> {
    let mut out: BTreeMap<String, Declaration<'a>> = BTreeMap::new();
    let mut declare = |name: &str, declaration: Declaration<'a>| {
        let pos = declaration.pos;
        if let Some(first) = out.get(name) {
            let message = format!("duplicate variable \"{name}\"; it stands in line {} already", first.pos.line);
            sink.error(pos, message);
        } else {
            out.insert(name.to_owned(), declaration);
        }
    };
    for block in blocks {
        if block.kind == "variables" {
            for attr in &block.body.attrs {
                let default = sink.ok(block.scope.eval(&attr.value));
                let kind = default.as_ref().map_or(Type::Any, Type::of);
                declare(&attr.name, Declaration { pos: &attr.pos, kind, default, section: None });
            }
        } else if block.kind == "variable"
            && let [name] = block.labels.as_slice()
        {
            let section = Section::open(format!("variable \"{name}\""), block, &VARIABLE, sink);
            let default = section.attr("default").and_then(|a| section.eval(&a.value));
            let written = section.attr("type").and_then(|a| sink.ok(Type::parse(&a.value)));
            let kind = written.unwrap_or_else(|| default.as_ref().map_or(Type::Any, Type::of));
            section.string("description");
            declare(name, Declaration { pos: block.pos, kind, default, section: Some(section) });
        }
    }
    out
}

/// Text of a flag or of the environment: literal for strings and numbers, an expression for everything else.
fn from_text(origin: &str, text: &str, kind: &Type, budget: &Budget) -> Result<Given> {
    let pos = outside(origin);
    if kind.takes_plain_text() {
        budget.keep(text.len() as u64, &pos)?;
        return Ok(Given { pos, value: Value::string(text) });
    }
    let globals = Globals { vars: BTreeMap::new(), locals: BTreeMap::new(), base_dir: None, is_config: false, budget };
    let value = Scope::new(&globals).eval(&native::parse_expression(text, &pos)?)?;
    Ok(Given { pos, value })
}

/// The value of an expression that refers to nothing.
pub(super) fn constant(expression: &super::ast::Expr, budget: &Budget) -> Result<serde_json::Value> {
    let globals = Globals { vars: BTreeMap::new(), locals: BTreeMap::new(), base_dir: None, is_config: false, budget };
    Scope::new(&globals).eval(expression).map(|value| value.to_json())
}

fn var_file(path: &Path, contents: &str, budget: &Budget, sink: &Sink) -> Result<Vec<(String, Given)>> {
    let source = Source::new(path, contents);
    check_source(&source)?;
    if super::is_json(contents) {
        return match json::read(&source)?.kind {
            json::NodeKind::Object(members) => {
                let given = |m: json::Member| {
                    let value = m.node.into_value();
                    budget.keep(size(&value), &m.pos)?;
                    Ok((m.name, Given { pos: m.pos, value }))
                };
                members.into_iter().map(given).collect()
            }
            _ => Ok(Vec::new()),
        };
    }
    let body = native::parse_body(&source)?;
    for block in &body.blocks {
        let mend = match block.kind.as_str() {
            "variable" => "declare it in the job file and write name = value here",
            _ => "write name = value here",
        };
        sink.error(&block.pos, format!("a variable file cannot contain a {} block; {mend}", block.kind));
    }
    let globals = Globals { vars: BTreeMap::new(), locals: BTreeMap::new(), base_dir: None, is_config: false, budget };
    let scope = Scope::new(&globals);
    let given = |a: &Attr| Ok((a.name.clone(), Given { pos: a.pos.clone(), value: scope.eval(&a.value)? }));
    body.attrs.iter().map(given).collect()
}

impl Declaration<'_> {
    fn value(&self, name: &str, given: Option<Given>, budget: &Budget) -> Result<Value> {
        let (pos, value) = match (given, &self.default) {
            (Some(given), _) => (given.pos, given.value),
            (None, Some(default)) => (self.pos.clone(), default.clone()),
            (None, None) => {
                let message = format!(
                    "Unset variable \"{name}\"; give it a default, --var {name}=..., a variable file or NOMAD_VAR_{name}"
                );
                return Err(Diagnostic::new(self.pos, message));
            }
        };
        budget.make(size(&value), &pos)?;
        self.kind
            .convert(value)
            .map_err(|m| Diagnostic::new(&pos, format!("invalid value for variable \"{name}\": {m}")))
    }

    fn validate(&self, name: &str, value: &Value, budget: &Budget, sink: &Sink) {
        let Some(section) = &self.section else { return };
        let vars = BTreeMap::from([(name.to_owned(), value.clone())]);
        let globals = Globals { vars, locals: BTreeMap::new(), base_dir: None, is_config: false, budget };
        for block in section.blocks_of("validation") {
            let rule = Section::open(format!("validation of {}", section.name), block, &VALIDATION, sink);
            let (Some(condition), Some(message)) = (rule.attr("condition"), rule.attr("error_message")) else {
                sink.error(block.pos, "validation needs the arguments condition and error_message");
                continue;
            };
            if !only_refers_to(&condition.value, name) {
                let text = format!("the condition must refer to var.{name} and to no other variable or local value");
                sink.error(&condition.pos, text);
                continue;
            }
            let scope = Scope::new(&globals);
            let Some(text) = sink.ok(scope.eval(&message.value)) else { continue };
            let text = text.to_text().unwrap_or_default();
            if text.trim().is_empty() {
                sink.error(&message.pos, "error_message must be a string that is not empty");
                continue;
            }
            match sink.ok(scope.eval(&condition.value)).map(|v| v.to_bool()) {
                Some(Some(false)) => {
                    sink.error(&condition.pos, format!("invalid value for variable \"{name}\": {text}"));
                }
                Some(None) => sink.error(&condition.pos, "the condition must be true or false"),
                Some(Some(true)) | None => {}
            }
        }
    }
}

fn only_refers_to(condition: &Expr, name: &str) -> bool {
    let (mut own, mut other) = (false, false);
    condition.references(&mut |_, root, steps| match (root, steps.first()) {
        ("var", Some(Step::Attr(member))) if member == name => own = true,
        ("var" | "local", _) => other = true,
        _ => {}
    });
    own && !other
}

/// Adds the values of all `locals` blocks to the globals.
///
/// Each is evaluated when all that it refers to are: in time that grows with the number of references, not of pairs.
pub(super) fn evaluate_locals<'g>(globals: Globals<'g>, attrs: &[&Attr], sink: &Sink) -> Globals<'g> {
    let mut globals = globals;
    let mut open: BTreeMap<&str, (&Attr, BTreeSet<String>)> = BTreeMap::new();
    for attr in attrs {
        let mut needs = BTreeSet::new();
        attr.value.references(&mut |pos, root, steps| match (root, steps.first().and_then(member)) {
            ("local", Some(name)) => drop(needs.insert(name)),
            ("local", None) => sink.error(pos, "a local value cannot refer to all of local; name one, such as local.x"),
            _ => {}
        });
        if let Some((first, _)) = open.get(attr.name.as_str()) {
            let message =
                format!("duplicate local value \"{}\"; it stands in line {} already", attr.name, first.pos.line);
            sink.error(&attr.pos, message);
        } else {
            open.insert(&attr.name, (attr, needs));
        }
    }
    let mut waiting: BTreeMap<&str, usize> = BTreeMap::new();
    let mut needed_by: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut ready: VecDeque<&str> = VecDeque::new();
    for (name, (_, needs)) in &open {
        // What is not there at all is a mistake that evaluation tells.
        let there: Vec<&str> = needs.iter().filter_map(|n| open.get_key_value(n.as_str()).map(|(n, _)| *n)).collect();
        for needed in &there {
            needed_by.entry(needed).or_default().push(name);
        }
        waiting.insert(name, there.len());
        if there.is_empty() {
            ready.push_back(name);
        }
    }
    while let Some(name) = ready.pop_front() {
        waiting.remove(name);
        for next in needed_by.remove(name).unwrap_or_default() {
            if let Some(count) = waiting.get_mut(next) {
                *count -= 1;
                if *count == 0 {
                    ready.push_back(next);
                }
            }
        }
        let Some((attr, _)) = open.get(name) else { continue };
        if let Some(value) = sink.ok(Scope::new(&globals).eval(&attr.value)) {
            globals.locals.insert(name.to_owned(), value);
        }
    }
    for (name, _) in waiting {
        let Some((attr, needs)) = open.get(name) else { continue };
        let next = needs.iter().find(|n| open.contains_key(n.as_str())).map_or(name, String::as_str);
        let message = format!("circular reference: local value \"{name}\" needs \"{next}\", which needs it in turn");
        sink.error(&attr.pos, message);
    }
    globals
}

fn member(step: &Step) -> Option<String> {
    match step {
        Step::Attr(name) | Step::Index(Expr { kind: Kind::Literal(Value::String(name)), .. }) => Some(name.clone()),
        _ => None,
    }
}
