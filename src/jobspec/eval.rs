//! Evaluation of expressions.
//!
//! A name that is neither `var`, `local` nor an iterator is a runtime reference: it evaluates to its own spelling in
//! `${}`, which the task runner replaces when the task starts.

use std::borrow::Cow;
use std::rc::Rc;

use super::ast::{Call, Expr, For, Kind, Operator, Part, Step};
use super::base::Base;
use super::budget::{self, Budget};
use super::diag::{Diagnostic, Result, did_you_mean};
use super::functions;
use super::operators::{arithmetic, described, indexed};
use super::types::Type;
use super::value::{Number, Value};
use crate::spec::Pos;
use crate::spec::collections::BTreeMap;

/// What every expression of a file can see.
#[derive(Debug, Clone)]
pub(super) struct Globals<'p> {
    pub vars: BTreeMap<String, Value>,
    pub locals: BTreeMap<String, Value>,
    /// Directory of the filesystem functions; `None` where they are not allowed.
    pub base_dir: Option<Base<'p>>,
    /// A plugin's configuration: fewer functions, and an unknown name is a mistake instead of a runtime reference.
    pub is_config: bool,
    pub budget: &'p Budget,
}

/// Bytes of a loop's entry that are copied in one step; it is gone with its turn.
const ENTRY_BYTES_PER_STEP: u64 = 256;

#[derive(Debug)]
struct Frame {
    name: String,
    value: Value,
    outer: Option<Rc<Frame>>,
}

/// The globals with the iterators of the loops around an expression.
#[derive(Debug, Clone)]
pub(super) struct Scope<'g> {
    globals: &'g Globals<'g>,
    frame: Option<Rc<Frame>>,
}

impl<'g> Scope<'g> {
    pub fn new(globals: &'g Globals<'g>) -> Scope<'g> {
        Scope { globals, frame: None }
    }

    /// This scope with one more name, which hides an outer one.
    pub fn with(&self, name: &str, value: Value) -> Scope<'g> {
        let frame = Frame { name: name.to_owned(), value, outer: self.frame.clone() };
        Scope { globals: self.globals, frame: Some(Rc::new(frame)) }
    }

    fn iterator(&self, name: &str) -> Option<&Value> {
        let mut frame = self.frame.as_deref();
        while let Some(f) = frame {
            if f.name == name {
                return Some(&f.value);
            }
            frame = f.outer.as_deref();
        }
        None
    }

    /// Evaluates what an argument of the file is set to.
    pub fn eval(&self, expr: &Expr) -> Result<Value> {
        let budget = self.globals.budget;
        budget.whole(&expr.pos, || {
            let value = self.value(expr)?;
            if budget::is_too_deep(&value) {
                let message = format!("the value nests deeper than {} levels", budget::DEEPEST_VALUE);
                return Err(Diagnostic::new(&expr.pos, message));
            }
            budget.keep(budget::size(&value), &expr.pos)?;
            Ok(value)
        })
    }

    /// The entries of what an argument of the file is set to.
    pub fn whole_entries(&self, collection: &Expr) -> Result<Vec<(Value, Value)>> {
        self.globals.budget.whole(&collection.pos, || self.entries(collection))
    }

    /// Whether this is inside of the content of a `dynamic` block.
    pub fn is_inner(&self) -> bool {
        self.frame.is_some()
    }

    /// Counts a block that a `dynamic` one makes.
    pub fn count_block(&self, pos: &Pos) -> Result<()> {
        const BLOCK_BYTES: u64 = 4096;
        self.globals.budget.make(BLOCK_BYTES, pos)
    }

    /// Counts work that is about to be done with a value.
    pub fn count_steps(&self, steps: u64, pos: &Pos) -> Result<()> {
        self.globals.budget.step(steps, pos)
    }

    /// Counts something that is made of a value, and kept.
    pub fn keep(&self, bytes: u64, pos: &Pos) -> Result<()> {
        self.globals.budget.keep(bytes, pos)
    }

    /// The bytes that have been kept so far.
    pub fn kept(&self) -> u64 {
        self.globals.budget.kept()
    }

    /// Counts a value that has been made.
    fn made(&self, value: Value, pos: &Pos) -> Result<Value> {
        self.globals.budget.make(budget::size(&value), pos)?;
        Ok(value)
    }

    /// Evaluates an expression.
    fn value(&self, expr: &Expr) -> Result<Value> {
        let pos = &expr.pos;
        self.globals.budget.step(1, pos)?;
        match &expr.kind {
            Kind::Literal(value) => self.made(value.clone(), pos),
            Kind::Template(parts) => {
                let mut text = String::new();
                self.template(parts, &mut text, pos)?;
                Ok(Value::String(text))
            }
            Kind::List(items) => Ok(Value::List(items.iter().map(|e| self.value(e)).collect::<Result<_>>()?)),
            Kind::Object(items) => self.object(pos, items),
            Kind::Reference { name, steps, source } => {
                let value = self.reference(pos, name, steps, source)?;
                self.made(value.into_owned(), pos)
            }
            Kind::Traversal(root, steps) => Ok(walk(self, Cow::Owned(self.value(root)?), steps, pos)?.into_owned()),
            Kind::Call(call) => self.call(pos, call),
            Kind::Not(e) => Ok(Value::Bool(!self.bool(e)?)),
            Kind::Negate(e) => match self.number(e)? {
                Number::Int(i) => {
                    Ok(Value::Number(i.checked_neg().map_or(Number::Float(-(Number::Int(i).to_f64())), Number::Int)))
                }
                Number::Float(f) => Ok(Value::Number(Number::Float(-f))),
            },
            Kind::Binary(left, operator, right) => self.binary(pos, left, *operator, right),
            Kind::Conditional(three) => self.conditional(three),
            Kind::For(f) => self.for_expr(f),
        }
    }

    fn bool(&self, expr: &Expr) -> Result<bool> {
        let value = self.value(expr)?;
        value
            .to_bool()
            .ok_or_else(|| Diagnostic::new(&expr.pos, format!("a bool is needed here, not {}", described(&value))))
    }

    fn number(&self, expr: &Expr) -> Result<Number> {
        let value = self.value(expr)?;
        value
            .to_number()
            .ok_or_else(|| Diagnostic::new(&expr.pos, format!("a number is needed here, not {}", described(&value))))
    }

    fn object(&self, pos: &Pos, items: &[(Expr, Expr)]) -> Result<Value> {
        self.globals.budget.make(budget::size_of_members(&BTreeMap::new()), pos)?;
        let mut map = BTreeMap::new();
        for (key, value) in items {
            let name = self.key(key)?;
            let value = self.value(value)?;
            if map.insert(name.clone(), value).is_some() {
                return Err(Diagnostic::new(&key.pos, format!("duplicate key \"{name}\"; remove one of the two")));
            }
        }
        Ok(Value::Object(map))
    }

    fn key(&self, expr: &Expr) -> Result<String> {
        let key = self.value(expr)?;
        key.to_text()
            .ok_or_else(|| Diagnostic::new(&expr.pos, format!("a key must be a string, not {}", described(&key))))
    }

    fn reference(&self, pos: &Pos, name: &str, steps: &[Step], source: &str) -> Result<Cow<'_, Value>> {
        if let Some(value) = self.iterator(name) {
            return walk(self, Cow::Borrowed(value), steps, pos);
        }
        let known = match name {
            "var" => Some((&self.globals.vars, "variable")),
            "local" => Some((&self.globals.locals, "local value")),
            _ => None,
        };
        if self.globals.is_config {
            return Err(Diagnostic::new(pos, format!("there is no variable \"{name}\" here; put text in quotes")));
        }
        let Some((map, what)) = known else {
            return runtime_reference(pos, name, steps, source).map(Cow::Owned);
        };
        let Some((first, rest)) = steps.split_first() else {
            return Ok(Cow::Owned(Value::Object(map.clone())));
        };
        let member = match first {
            Step::Attr(member) => member.clone(),
            Step::Index(index) => self.key(index)?,
            Step::AttrSplat | Step::FullSplat => {
                return Err(Diagnostic::new(pos, format!("a splat cannot be applied to \"{name}\"; name one {what}")));
            }
        };
        if let Some(value) = map.get(&member) {
            walk(self, Cow::Borrowed(value), rest, pos)
        } else {
            let hinting = self.globals.budget.may_hint();
            let names = map.keys().map(String::as_str).take_while(|_| hinting);
            let hint = match did_you_mean(&member, names) {
                hint if hint.is_empty() && name == "var" => "; declare it with a variable block".to_owned(),
                hint if hint.is_empty() => "; declare it in a locals block".to_owned(),
                hint => hint,
            };
            Err(Diagnostic::new(pos, format!("undeclared {what} \"{member}\"{hint}")))
        }
    }

    fn call(&self, pos: &Pos, call: &Call) -> Result<Value> {
        match (call.name.as_str(), call.args.as_slice()) {
            _ if self.globals.is_config => {}
            ("can", [expr]) => {
                let result = self.globals.budget.unread(|| self.value(expr));
                return Ok(Value::Bool(result.is_ok()));
            }
            ("try", [first @ .., last]) => {
                let tried = first.iter().find_map(|e| self.globals.budget.unread(|| self.value(e)).ok());
                return tried.map_or_else(|| self.value(last), Ok);
            }
            ("convert", [value, target]) => {
                let target = Type::parse(target)?;
                let value = self.value(value)?;
                self.globals.budget.step(budget::size(&value) / 64, pos)?;
                return target.convert(value).map_err(|m| Diagnostic::new(pos, format!("convert: {m}")));
            }
            ("can", _) => return Err(Diagnostic::new(pos, "can: takes 1 argument")),
            ("try", _) => return Err(Diagnostic::new(pos, "try: takes at least 1 argument")),
            ("convert", _) => return Err(Diagnostic::new(pos, "convert: takes 2 arguments, a value and a type")),
            _ => {}
        }
        let mut args = call.args.iter().map(|e| self.value(e)).collect::<Result<Vec<_>>>()?;
        if call.expand {
            match args.pop() {
                Some(Value::List(items) | Value::Set(items)) => args.extend(items),
                _ => return Err(Diagnostic::new(pos, "only a list can be expanded with \"...\"")),
            }
        }
        let budget = self.globals.budget;
        let cost = functions::cost(&call.name, &args);
        budget.step(cost.steps, pos)?;
        budget.fit(cost.bytes, pos)?;
        let surroundings = functions::Surroundings {
            base_dir: self.globals.base_dir,
            count: &|steps| budget.step(steps, pos).map_err(|d| d.message),
            hints: &|| budget.may_hint(),
        };
        let result = if self.globals.is_config {
            functions::call_in_config(&call.name, &args, &surroundings)
        } else {
            functions::call(&call.name, &args, &surroundings)
        };
        drop(args);
        self.made(result.map_err(|m| Diagnostic::new(pos, format!("{}: {m}", call.name)))?, pos)
    }

    fn binary(&self, pos: &Pos, left: &Expr, operator: Operator, right: &Expr) -> Result<Value> {
        match operator {
            Operator::And => {
                let (l, r) = (self.bool(left)?, self.bool(right)?);
                Ok(Value::Bool(l && r))
            }
            Operator::Or => {
                let (l, r) = (self.bool(left)?, self.bool(right)?);
                Ok(Value::Bool(l || r))
            }
            Operator::Eq | Operator::NotEq => {
                let (left, right) = (self.value(left)?, self.value(right)?);
                let equal = left == right;
                Ok(Value::Bool(equal == (operator == Operator::Eq)))
            }
            _ => {
                let (l, r) = (self.number(left)?, self.number(right)?);
                arithmetic(operator, l, r).map_err(|m| Diagnostic::new(pos, m))
            }
        }
    }

    /// Both branches have one type in the end: a number beside a string becomes a string.
    fn conditional(&self, [condition, then, otherwise]: &[Expr; 3]) -> Result<Value> {
        let (chosen, other) = if self.bool(condition)? { (then, otherwise) } else { (otherwise, then) };
        let value = self.value(chosen)?;
        if value.is_primitive()
            && let Ok(other) = self.globals.budget.unread(|| self.value(other))
            && other.is_primitive()
            && other.type_name() != value.type_name()
        {
            return Ok(value.to_text().map_or(value, Value::String));
        }
        Ok(value)
    }

    /// The entries of what a loop goes over.
    fn entries(&self, collection: &Expr) -> Result<Vec<(Value, Value)>> {
        let value = self.value(collection)?;
        // Each has a key of its own, and stands in a place of its own.
        self.globals.budget.make(2 * budget::size(&value), &collection.pos)?;
        value.entries().ok_or_else(|| {
            let message = format!("a list, set or map is needed here, not {}", described(&value));
            Diagnostic::new(&collection.pos, message)
        })
    }

    /// Calls `turn` with each entry of a collection, of which there is no copy where it has a name.
    fn each(&self, collection: &Expr, mut turn: impl FnMut((Value, Value)) -> Result<()>) -> Result<()> {
        let pos = &collection.pos;
        let value = match &collection.kind {
            Kind::Reference { name, steps, source } => {
                let value = self.reference(pos, name, steps, source)?;
                if let Cow::Owned(copy) = &value {
                    self.globals.budget.make(budget::size(copy), pos)?;
                }
                value
            }
            _ => Cow::Owned(self.value(collection)?),
        };
        let mut next = |key: Value, item: &Value| {
            self.globals.budget.step(1 + budget::size(item) / ENTRY_BYTES_PER_STEP, pos)?;
            turn((key, item.clone()))
        };
        match &*value {
            Value::List(items) => items.iter().enumerate().try_for_each(|(i, item)| next(Value::usize(i), item)),
            Value::Set(items) => items.iter().try_for_each(|item| next(item.clone(), item)),
            Value::Object(map) => map.iter().try_for_each(|(key, item)| next(Value::string(key.as_str()), item)),
            other => {
                let message = format!("a list, set or map is needed here, not {}", described(other));
                Err(Diagnostic::new(pos, message))
            }
        }
    }

    /// The scope of one turn of a loop.
    fn iteration(&self, key_name: Option<&str>, value_name: &str, (key, value): (Value, Value)) -> Scope<'g> {
        let scope = self.with(value_name, value);
        key_name.map_or_else(|| scope.clone(), |name| scope.with(name, key))
    }

    fn for_expr(&self, f: &For) -> Result<Value> {
        let mut list = Vec::new();
        let mut map = BTreeMap::new();
        self.each(&f.collection, |entry| {
            let scope = self.iteration(f.key_name.as_deref(), &f.value_name, entry);
            if let Some(condition) = &f.condition
                && !scope.bool(condition)?
            {
                return Ok(());
            }
            let value = scope.value(&f.value)?;
            let Some(key) = &f.key else {
                list.push(value);
                return Ok(());
            };
            let name = scope.key(key)?;
            if f.group {
                self.globals.budget.make(name.len() as u64, &key.pos)?;
                let slot = map.entry(name).or_insert_with(|| Value::List(Vec::new()));
                if let Value::List(items) = slot {
                    items.push(value);
                }
            } else if map.insert(name.clone(), value).is_some() {
                let message = format!("two elements give the key \"{name}\"; group them with \"...\"");
                return Err(Diagnostic::new(&key.pos, message));
            }
            Ok(())
        })?;
        Ok(if f.key.is_some() { Value::Object(map) } else { Value::List(list) })
    }

    fn template(&self, parts: &[Part], out: &mut String, pos: &Pos) -> Result<()> {
        let budget = self.globals.budget;
        for part in parts {
            budget.step(1, pos)?;
            match part {
                Part::Text(text) => {
                    budget.make(text.len() as u64, pos)?;
                    out.push_str(text);
                }
                Part::Value(expr) => {
                    let value = self.value(expr)?;
                    let text = value.to_text().ok_or_else(|| {
                        let what = described(&value);
                        Diagnostic::new(&expr.pos, format!("a string cannot include {what}; convert it to a string"))
                    })?;
                    budget.make(text.len() as u64, &expr.pos)?;
                    out.push_str(&text);
                }
                Part::If { condition, then, otherwise } => {
                    self.template(if self.bool(condition)? { then } else { otherwise }, out, pos)?;
                }
                Part::For { key_name, value_name, collection, body } => {
                    self.each(collection, |entry| {
                        self.iteration(key_name.as_deref(), value_name, entry).template(body, out, pos)
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// What only the task runner knows stays in the text.
fn runtime_reference(pos: &Pos, name: &str, steps: &[Step], source: &str) -> Result<Value> {
    let fixed = |s: &Step| match s {
        Step::Attr(_) => true,
        Step::Index(e) => matches!(e.kind, Kind::Literal(_)),
        Step::AttrSplat | Step::FullSplat => false,
    };
    if steps.iter().all(fixed) {
        return Ok(Value::String(format!("${{{source}}}")));
    }
    let message =
        format!("\"{name}\" is known only when the task runs; a computed index or splat cannot be applied to it");
    Err(Diagnostic::new(pos, message))
}

fn walk<'v>(scope: &Scope<'_>, value: Cow<'v, Value>, steps: &[Step], pos: &Pos) -> Result<Cow<'v, Value>> {
    let mut value = value;
    for (i, step) in steps.iter().enumerate() {
        scope.globals.budget.step(1, pos)?;
        value = match step {
            Step::Attr(name) => {
                let missing = || {
                    let hints = scope.globals.budget.may_hint();
                    Diagnostic::new(pos, attribute_error(&value, name, hints))
                };
                part(&value, |v| member(v, name)).ok_or_else(missing)?
            }
            Step::Index(index) => {
                let key = scope.value(index)?;
                let hints = || scope.globals.budget.may_hint();
                let wrong = |m| Diagnostic::new(&index.pos, m);
                match value {
                    Cow::Borrowed(whole) => Cow::Borrowed(indexed(whole, &key, &hints).map_err(wrong)?),
                    Cow::Owned(whole) => Cow::Owned(indexed(&whole, &key, &hints).map_err(wrong)?.clone()),
                }
            }
            Step::AttrSplat => {
                let names = steps[i + 1..].iter().take_while(|s| matches!(s, Step::Attr(_))).count();
                let list = splat(scope, &value, &steps[i + 1..=i + names], pos)?;
                return walk(scope, Cow::Owned(list), &steps[i + 1 + names..], pos);
            }
            Step::FullSplat => return splat(scope, &value, &steps[i + 1..], pos).map(Cow::Owned),
        };
    }
    Ok(value)
}

/// A part of a value, without a copy where there is none yet.
fn part<'v>(value: &Cow<'v, Value>, find: impl Fn(&Value) -> Option<&Value>) -> Option<Cow<'v, Value>> {
    match value {
        Cow::Borrowed(whole) => find(whole).map(Cow::Borrowed),
        Cow::Owned(whole) => find(whole).cloned().map(Cow::Owned),
    }
}

/// A splat treats null as an empty list and anything else that is not a list as a list of one.
fn splat(scope: &Scope<'_>, value: &Value, steps: &[Step], pos: &Pos) -> Result<Value> {
    let items = match value {
        Value::Null => &[],
        Value::List(items) | Value::Set(items) => items.as_slice(),
        one => std::slice::from_ref(one),
    };
    let part = |item| Ok(walk(scope, Cow::Borrowed(item), steps, pos)?.into_owned());
    let list = items.iter().map(part).collect::<Result<_>>()?;
    scope.made(Value::List(list), pos)
}

fn member<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    match value {
        Value::Object(map) => map.get(name),
        _ => None,
    }
}

fn attribute_error(value: &Value, name: &str, hints: bool) -> String {
    match value {
        Value::Object(map) => {
            let names = map.keys().map(String::as_str).take_while(|_| hints);
            format!("there is no attribute \"{name}\" here{}", did_you_mean(name, names))
        }
        other => format!("{} has no attribute \"{name}\"", described(other)),
    }
}
