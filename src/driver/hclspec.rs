//! Applies a plugin's schema to a configuration: from the operator's text to the value that the plugin gets.
//!
//! The rules are those of Nomad: the configuration is taken as HCL's JSON, so a block is an object or a list of objects,
//! and an attribute of the type `list(map(string))` may be written as blocks.

use std::cmp::Ordering;
use std::path::Path;

use crate::jobspec::config::{self, Node, Variables};
use crate::jobspec::{Diagnostic, Number, Value};
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{DriverConfig, IntoMap as _, Order as _, Pos, TryIntoMap as _};
use crate::wire::cty::{self, Type};
use crate::wire::hclspec::{Spec, spec};

use super::DriverError;

/// A parsed configuration.
#[derive(Debug, Clone)]
pub struct Body(Node);

impl Body {
    /// Reads a file in HCL or JSON; `file` names it in messages.
    ///
    /// # Errors
    /// [`DriverError::Config`]: a syntax error, with its place.
    pub fn parse(file: &Path, text: &str) -> Result<Body, DriverError> {
        config::parse(file, text).map(Body).map_err(|e| DriverError::Config(e.to_string()))
    }

    /// A configuration without any settings.
    #[must_use]
    pub fn empty() -> Body {
        Body(config::empty())
    }

    /// The content of a block in another file.
    #[must_use]
    pub(crate) fn of_node(node: Node) -> Body {
        Body(node)
    }

    /// A configuration block as the job file's parser returns it. Its strings are parsed as templates, unless they are already
    /// `interpolated`.
    ///
    /// # Errors
    /// [`DriverError::Config`]: a syntax error in a template.
    pub fn of(config: &DriverConfig, interpolated: bool) -> Result<Body, DriverError> {
        config::of_config(config, interpolated).map(Body).map_err(|e| DriverError::Config(e.to_string()))
    }
}

/// A checked schema, with its types and literals parsed.
#[derive(Debug, Clone)]
pub struct Schema(Plan);

#[derive(Debug, Clone)]
enum Plan {
    Object(BTreeMap<String, Plan>),
    Tuple(Vec<Plan>),
    Attr {
        name: String,
        kind: Type,
        required: bool,
    },
    Block {
        name: String,
        required: bool,
        nested: Box<Plan>,
    },
    BlockAttrs {
        name: String,
        kind: Type,
        required: bool,
    },
    /// Blocks that form a list or a set.
    Blocks {
        name: String,
        min: u64,
        max: u64,
        is_set: bool,
        nested: Box<Plan>,
    },
    BlockMap {
        name: String,
        labels: Vec<String>,
        nested: Box<Plan>,
    },
    Default(Box<Plan>, Box<Plan>),
    Literal(Typed),
}

/// A value with its type: where the schema allows any type, each value has its own.
#[derive(Debug, Clone, PartialEq)]
struct Typed {
    kind: Type,
    value: cty::Value,
}

impl Schema {
    /// Checks the schema of a plugin.
    ///
    /// # Errors
    /// [`DriverError::Config`] names the error in the schema, which is the plugin's and not the operator's.
    pub fn new(spec: &Spec) -> Result<Schema, DriverError> {
        plan(spec, "").map(Schema).map_err(|e| DriverError::Config(format!("the plugin's schema: {e}")))
    }

    /// The value that the plugin gets for `body`; `variables` are the variables available in its expressions.
    ///
    /// # Errors
    /// [`DriverError::Config`] with one line for each mistake: file and line, key, and the fix.
    pub fn decode(
        &self,
        body: &Body,
        variables: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<cty::Value, DriverError> {
        let mut decoder = Decoder { variables: Variables::new(variables), faults: Vec::new() };
        let typed = decoder.body(&self.0, &[&body.0], &body.0.pos);
        if decoder.faults.is_empty() {
            return Ok(typed.value);
        }
        Err(DriverError::Config(decoder.faults.join("\n")))
    }

    /// The encoded bytes for `SetConfig` or for a task's driver configuration.
    ///
    /// # Errors
    /// As [`Schema::decode`].
    pub fn encode(
        &self,
        body: &Body,
        variables: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<Vec<u8>, DriverError> {
        self.decode(body, variables).map(|value| cty::encode(&value))
    }
}

/// The configuration of a driver in this process for the operator's block `body`.
///
/// # Errors
/// As [`Schema::decode`].
pub fn driver_config(spec: &Spec, body: &Body) -> Result<DriverConfig, DriverError> {
    super::convert::config(&Schema::new(spec)?.encode(body, &serde_json::Map::new())?)
}

// ---------------------------------------------------------------------------------------------------------------
// Reading the schema.

/// `key` is the name to use where the spec gives none: only members of an object have one.
fn plan(spec: &Spec, key: &str) -> Result<Plan, String> {
    let block = spec.block.as_ref().ok_or("a spec is empty")?;
    let named = |name: &str, what: &str| match (name, key) {
        ("", "") => Err(format!("{what} has no name")),
        ("", key) => Ok(key.to_owned()),
        (name, _) => Ok(name.to_owned()),
    };
    let nested = |spec: &Option<Box<Spec>>, name: &str| {
        let spec = spec.as_deref().ok_or_else(|| format!("the block \"{name}\" has no contents"))?;
        plan(spec, "").map(Box::new)
    };
    Ok(match block {
        spec::Block::Object(object) => Plan::Object(
            object.attributes.iter().map(|(k, s)| Ok::<_, String>((k.clone(), plan(s, k)?))).try_into_map()?,
        ),
        spec::Block::Array(array) => Plan::Tuple(array.values.iter().map(|s| plan(s, "")).collect::<Result<_, _>>()?),
        spec::Block::Attr(attr) => {
            let name = named(&attr.name, "an attribute")?;
            let kind = parse_type(&attr.r#type).map_err(|e| format!("the type of \"{name}\": {e}"))?;
            Plan::Attr { name, kind, required: attr.required }
        }
        spec::Block::BlockValue(block) => {
            let name = named(&block.name, "a block")?;
            Plan::Block { nested: nested(&block.nested, &name)?, name, required: block.required }
        }
        spec::Block::BlockAttrs(block) => {
            let name = named(&block.name, "a block")?;
            let kind = parse_type(&block.r#type).map_err(|e| format!("the type of \"{name}\": {e}"))?;
            Plan::BlockAttrs { name, kind, required: block.required }
        }
        spec::Block::BlockList(block) => {
            let name = named(&block.name, "a block")?;
            let (min, max) = (block.min_items, block.max_items);
            Plan::Blocks { nested: nested(&block.nested, &name)?, name, min, max, is_set: false }
        }
        spec::Block::BlockSet(block) => {
            let name = named(&block.name, "a block")?;
            let (min, max) = (block.min_items, block.max_items);
            Plan::Blocks { nested: nested(&block.nested, &name)?, name, min, max, is_set: true }
        }
        spec::Block::BlockMap(block) => {
            let name = named(&block.name, "a block")?;
            if block.labels.is_empty() {
                return Err(format!("the map of blocks \"{name}\" has no label"));
            }
            let nested = nested(&block.nested, &name)?;
            if nested.has_any() {
                return Err(format!("the type any may not be used in the map of blocks \"{name}\""));
            }
            Plan::BlockMap { name, labels: block.labels.clone(), nested }
        }
        spec::Block::Default(default) => {
            let half = |spec: &Option<Box<Spec>>| spec.as_deref().ok_or("a default lacks a half").cloned();
            let (primary, fallback) = (half(&default.primary)?, half(&default.default)?);
            Plan::Default(Box::new(plan(&primary, "")?), Box::new(plan(&fallback, "")?))
        }
        spec::Block::Literal(literal) => {
            let value = config::expression(&literal.value, &Pos::default())
                .map_err(|e| format!("the literal {:?}: {}", literal.value, e.message))?;
            Plan::Literal(type_of(&value)?)
        }
    })
}

impl Plan {
    /// Whether it contains a dynamic type.
    fn has_any(&self) -> bool {
        match self {
            Plan::Object(members) => members.values().any(Plan::has_any),
            Plan::Tuple(items) => items.iter().any(Plan::has_any),
            Plan::Attr { kind, .. } | Plan::BlockAttrs { kind, .. } => has_any(kind),
            Plan::Block { nested, .. } | Plan::Blocks { nested, .. } | Plan::BlockMap { nested, .. } => {
                nested.has_any()
            }
            Plan::Default(primary, _) => primary.has_any(),
            Plan::Literal(typed) => has_any(&typed.kind),
        }
    }

    /// The names that a body with this plan may contain at its own level.
    fn names<'a>(&'a self, out: &mut Names<'a>) {
        match self {
            Plan::Object(members) => members.values().for_each(|plan| plan.names(out)),
            Plan::Tuple(items) => items.iter().for_each(|plan| plan.names(out)),
            Plan::Attr { name, required, .. } => {
                *out.attrs.entry(name).or_default() |= *required;
            }
            Plan::Block { name, .. } | Plan::BlockAttrs { name, .. } | Plan::Blocks { name, .. } => {
                out.blocks.insert(name, &[]);
            }
            Plan::BlockMap { name, labels, .. } => {
                out.blocks.insert(name, labels);
            }
            Plan::Default(primary, fallback) => {
                primary.names(out);
                fallback.names(out);
            }
            Plan::Literal(_) => {}
        }
    }
}

/// Attributes, with whether they are required, and blocks, with the meanings of their labels.
#[derive(Default)]
struct Names<'a> {
    attrs: BTreeMap<&'a str, bool>,
    blocks: BTreeMap<&'a str, &'a [String]>,
}

fn has_any(kind: &Type) -> bool {
    match kind {
        Type::Dynamic => true,
        Type::Bool | Type::Number | Type::String => false,
        Type::List(of) | Type::Set(of) | Type::Map(of) => has_any(of),
        Type::Object(members) => members.values().any(has_any),
        Type::Tuple(items) => items.iter().any(has_any),
    }
}

/// Parses a type expression.
fn parse_type(text: &str) -> Result<Type, String> {
    let mut rest = text;
    let kind = read_type(&mut rest, 0)?;
    if rest.trim().is_empty() { Ok(kind) } else { Err(format!("what is {:?} in {text:?}?", rest.trim())) }
}

fn word<'t>(rest: &mut &'t str) -> &'t str {
    *rest = rest.trim_start();
    let end = rest.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-'))).unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    *rest = after;
    word
}

fn punctuation(rest: &mut &str, wanted: char) -> bool {
    *rest = rest.trim_start();
    let found = rest.strip_prefix(wanted);
    *rest = found.unwrap_or(rest);
    found.is_some()
}

fn read_type(rest: &mut &str, depth: usize) -> Result<Type, String> {
    const MAX_DEPTH: usize = 32;
    if depth > MAX_DEPTH {
        return Err("too many nested levels".to_owned());
    }
    let needed = |rest: &mut &str, wanted: char| {
        if punctuation(rest, wanted) { Ok(()) } else { Err(format!("{wanted:?} is missing before {:?}", *rest)) }
    };
    let name = word(rest);
    let kind = match name {
        "string" => return Ok(Type::String),
        "number" => return Ok(Type::Number),
        "bool" => return Ok(Type::Bool),
        "any" | "null" => return Ok(Type::Dynamic),
        "" => return Err("a type is missing".to_owned()),
        "list" | "set" | "map" => {
            needed(rest, '(')?;
            let of = Box::new(read_type(rest, depth + 1)?);
            match name {
                "list" => Type::List(of),
                "set" => Type::Set(of),
                _ => Type::Map(of),
            }
        }
        "tuple" => {
            needed(rest, '(')?;
            needed(rest, '[')?;
            let mut items = Vec::new();
            while !punctuation(rest, ']') {
                items.push(read_type(rest, depth + 1)?);
                if !punctuation(rest, ',') {
                    needed(rest, ']')?;
                    break;
                }
            }
            Type::Tuple(items)
        }
        "object" => {
            needed(rest, '(')?;
            needed(rest, '{')?;
            let mut members = BTreeMap::new();
            while !punctuation(rest, '}') {
                let member = word(rest).to_owned();
                if member.is_empty() {
                    return Err("an attribute's name is missing".to_owned());
                }
                if !punctuation(rest, '=') {
                    needed(rest, ':')?;
                }
                members.insert(member, read_type(rest, depth + 1)?);
                // A line break separates like a comma; here it has become a blank.
                punctuation(rest, ',');
            }
            Type::Object(members)
        }
        other => return Err(format!("{other:?} is not a type")),
    };
    needed(rest, ')')?;
    Ok(kind)
}

// ---------------------------------------------------------------------------------------------------------------
// Reading a body.

struct Decoder {
    variables: Variables,
    /// Error messages, one line each.
    faults: Vec<String>,
}

/// The content of one body.
struct Content<'n> {
    attrs: BTreeMap<&'n str, (&'n Pos, &'n Node)>,
    blocks: Vec<Block<'n>>,
    pos: &'n Pos,
}

struct Block<'n> {
    kind: &'n str,
    pos: &'n Pos,
    labels: Vec<&'n str>,
    body: &'n Node,
}

const NULL: Typed = Typed { kind: Type::Dynamic, value: cty::Value::Null };

impl Decoder {
    fn fault(&mut self, pos: &Pos, message: &str) {
        let place = if pos.file.is_empty() { String::new() } else { format!("{pos}: ") };
        let line = format!("{place}{message}");
        if !self.faults.contains(&line) {
            self.faults.push(line);
        }
    }

    fn diagnostic(&mut self, diagnostic: &Diagnostic) {
        self.fault(&diagnostic.pos, &diagnostic.message);
    }

    /// Several nodes are treated as one body, in their order.
    fn body(&mut self, plan: &Plan, nodes: &[&Node], pos: &Pos) -> Typed {
        let mut names = Names::default();
        plan.names(&mut names);
        let content = self.content(&names, nodes, pos);
        self.value(plan, &content)
    }

    fn content<'n>(&mut self, names: &Names<'_>, nodes: &[&'n Node], pos: &'n Pos) -> Content<'n> {
        let mut content = Content { attrs: BTreeMap::new(), blocks: Vec::new(), pos };
        let mut members = Vec::new();
        for node in nodes {
            self.members(node, &mut members);
        }
        for member in members.into_iter().filter(|m| m.name != "//") {
            if names.attrs.contains_key(member.name.as_str()) {
                if content.attrs.insert(&member.name, (&member.pos, &member.node)).is_some() {
                    self.fault(&member.pos, &format!("\"{}\" is set twice; remove one of the two", member.name));
                }
            } else if let Some(labels) = names.blocks.get(member.name.as_str()) {
                self.blocks(&member.name, &member.pos, &member.node, labels, &mut Vec::new(), &mut content.blocks);
            } else {
                let known: Vec<&str> = names.attrs.keys().chain(names.blocks.keys()).copied().collect();
                let mend = match known.as_slice() {
                    [] => "nothing can be set here".to_owned(),
                    known => format!("known here are {}", known.join(", ")),
                };
                self.fault(&member.pos, &format!("there is no \"{}\"; {mend}", member.name));
            }
        }
        for (name, _) in names.attrs.iter().filter(|(_, required)| **required) {
            if !content.attrs.contains_key(name) {
                self.fault(pos, &format!("\"{name}\" is missing; set {name} = ..."));
            }
        }
        content
    }

    /// The members of an object, or of all objects of a list.
    fn members<'n>(&mut self, node: &'n Node, out: &mut Vec<&'n config::Member>) {
        if let Some(members) = node.members() {
            out.extend(members);
        } else if let Some(items) = node.items() {
            for item in items {
                match item.members() {
                    Some(members) => out.extend(members),
                    None => self.fault(&item.pos, "a block is needed here; write { ... }"),
                }
            }
        } else {
            self.fault(&node.pos, "a block is needed here; write { ... }");
        }
    }

    /// One level of names per label, then one body or a list of them.
    fn blocks<'n>(
        &mut self,
        kind: &'n str,
        pos: &'n Pos,
        node: &'n Node,
        names: &[String],
        labels: &mut Vec<&'n str>,
        out: &mut Vec<Block<'n>>,
    ) {
        if let Some(name) = names.get(labels.len()) {
            let mut members = Vec::new();
            self.members(node, &mut members);
            if members.is_empty() {
                self.fault(
                    pos,
                    &format!("the block \"{kind}\" needs a label, its {name}; write {kind} \"{name}\" {{ ... }}"),
                );
            }
            for member in members {
                labels.push(&member.name);
                self.blocks(kind, &member.pos, &member.node, names, labels, out);
                labels.pop();
            }
        } else if let Some(items) = node.items() {
            out.extend(items.iter().map(|body| Block { kind, pos: &body.pos, labels: labels.clone(), body }));
        } else if node.members().is_some() {
            out.push(Block { kind, pos, labels: labels.clone(), body: node });
        } else if !node.is_null() {
            self.fault(&node.pos, &format!("\"{kind}\" is a block; write {kind} {{ ... }}"));
        }
    }

    fn value(&mut self, plan: &Plan, content: &Content<'_>) -> Typed {
        match plan {
            Plan::Object(members) => {
                let members = members.iter().map(|(name, plan)| (name.clone(), self.value(plan, content)));
                let (kinds, values) = members.map(|(n, t)| ((n.clone(), t.kind), (n, t.value))).unzip();
                Typed { kind: Type::Object(kinds), value: cty::Value::Map(values) }
            }
            Plan::Tuple(items) => {
                let (kinds, values) = items.iter().map(|p| self.value(p, content)).map(|t| (t.kind, t.value)).unzip();
                Typed { kind: Type::Tuple(kinds), value: cty::Value::List(values) }
            }
            Plan::Attr { name, kind, .. } => match content.attrs.get(name.as_str()) {
                Some((_, node)) => self.attribute(name, kind, node),
                None => Typed { kind: kind.clone(), value: cty::Value::Null },
            },
            Plan::Block { name, required, nested } => match self.only(name, *required, content) {
                Some(block) => self.body(nested, &[block.body], block.pos),
                None => NULL,
            },
            Plan::BlockAttrs { name, kind, required } => match self.only(name, *required, content) {
                Some(block) => self.free_attributes(kind, block),
                None => Typed { kind: Type::Map(Box::new(kind.clone())), value: cty::Value::Null },
            },
            Plan::Blocks { name, min, max, is_set, nested } => {
                let blocks: Vec<&Block<'_>> = content.blocks.iter().filter(|b| b.kind == name).collect();
                let count = blocks.len() as u64;
                if count < *min {
                    self.fault(
                        content.pos,
                        &format!("{count} blocks \"{name}\" are too few; at least {min} are needed"),
                    );
                }
                if *max > 0
                    && let Some(extra) = usize::try_from(*max).ok().and_then(|max| blocks.get(max))
                {
                    self.fault(
                        extra.pos,
                        &format!("{count} blocks \"{name}\" are too many; at most {max} are allowed"),
                    );
                }
                let items: Vec<Typed> = blocks.iter().map(|b| self.body(nested, &[b.body], b.pos)).collect();
                let unified = if nested.has_any() { unify_all(items) } else { Ok(same(items)) };
                let (of, mut values) = unified.unwrap_or_else(|e| {
                    self.fault(content.pos, &format!("the blocks \"{name}\" do not have the same types: {e}"));
                    (Type::Dynamic, Vec::new())
                });
                if *is_set {
                    sort(&mut values, &of);
                    return Typed { kind: Type::Set(Box::new(of)), value: cty::Value::List(values) };
                }
                Typed { kind: Type::List(Box::new(of)), value: cty::Value::List(values) }
            }
            Plan::BlockMap { name, labels, nested } => {
                let mut map = BTreeMap::new();
                for block in content.blocks.iter().filter(|b| b.kind == name) {
                    let value = self.body(nested, &[block.body], block.pos).value;
                    if !insert(&mut map, &block.labels, value) {
                        let labels = block.labels.join("\" \"");
                        self.fault(block.pos, &format!("there are two blocks {name} \"{labels}\"; remove one of them"));
                    }
                }
                let kind = labels.iter().fold(Type::Dynamic, |of, _| Type::Map(Box::new(of)));
                Typed { kind, value: cty::Value::Map(map) }
            }
            Plan::Default(primary, fallback) => match self.value(primary, content) {
                Typed { value: cty::Value::Null, .. } => self.value(fallback, content),
                typed => typed,
            },
            Plan::Literal(typed) => typed.clone(),
        }
    }

    /// The only block with this name.
    fn only<'a, 'n>(&mut self, name: &str, required: bool, content: &'a Content<'n>) -> Option<&'a Block<'n>> {
        let mut blocks = content.blocks.iter().filter(|b| b.kind == name);
        let first = blocks.next();
        if let Some(second) = blocks.next() {
            self.fault(second.pos, &format!("there are two blocks \"{name}\"; only one is allowed"));
        }
        if required && first.is_none() {
            self.fault(content.pos, &format!("the block \"{name}\" is missing; write {name} {{ ... }}"));
        }
        first
    }

    fn attribute(&mut self, name: &str, kind: &Type, node: &Node) -> Typed {
        let value = match node.eval(&self.variables) {
            Ok(value) => value,
            Err(diagnostic) => {
                self.diagnostic(&diagnostic);
                return NULL;
            }
        };
        convert(&value, kind).unwrap_or_else(|e| {
            self.fault(&node.pos, &format!("\"{name}\" must be of the type {kind}: {e}"));
            NULL
        })
    }

    fn free_attributes(&mut self, kind: &Type, block: &Block<'_>) -> Typed {
        let mut members = Vec::new();
        self.members(block.body, &mut members);
        let mut names = BTreeSet::new();
        let mut values = Vec::new();
        let mut keys = Vec::new();
        for member in members.into_iter().filter(|m| m.name != "//") {
            if !names.insert(&member.name) {
                self.fault(&member.pos, &format!("\"{}\" is set twice; remove one of the two", member.name));
            }
            keys.push(member.name.clone());
            values.push(self.attribute(&member.name, kind, &member.node));
        }
        let unified = if has_any(kind) { unify_all(values) } else { Ok(same(values)) };
        let (of, values) = unified.unwrap_or_else(|e| {
            self.fault(block.pos, &format!("the values of \"{}\" do not have the same type: {e}", block.kind));
            (Type::Dynamic, Vec::new())
        });
        Typed { kind: Type::Map(Box::new(of)), value: cty::Value::Map(keys.into_iter().zip(values).into_map()) }
    }
}

/// Puts a value under its labels; false when one is there already.
fn insert(map: &mut BTreeMap<String, cty::Value>, labels: &[&str], value: cty::Value) -> bool {
    let Some((first, rest)) = labels.split_first() else { return false };
    if rest.is_empty() {
        return map.insert((*first).to_owned(), value).is_none();
    }
    let inner = map.entry((*first).to_owned()).or_insert_with(|| cty::Value::Map(BTreeMap::new()));
    match inner {
        cty::Value::Map(inner) => insert(inner, rest, value),
        _ => false,
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Types.

fn word_for(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a bool",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::List(_) | Value::Set(_) => "a list",
        Value::Object(_) => "a map",
    }
}

fn number(number: Number) -> Result<cty::Number, String> {
    let exact = match number {
        Number::Int(int) => cty::Number::parse(&int.to_string()),
        Number::Float(float) => cty::Number::from_f64(float),
    };
    exact.ok_or_else(|| "the number is too large".to_owned())
}

/// A value with its natural type.
fn type_of(value: &Value) -> Result<Typed, String> {
    Ok(match value {
        Value::Null => NULL,
        Value::Bool(flag) => Typed { kind: Type::Bool, value: cty::Value::Bool(*flag) },
        Value::Number(n) => Typed { kind: Type::Number, value: cty::Value::Number(number(*n)?) },
        Value::String(text) => Typed { kind: Type::String, value: cty::Value::String(text.clone()) },
        Value::List(items) | Value::Set(items) => {
            let items = items.iter().map(type_of).collect::<Result<Vec<_>, _>>()?;
            let (kinds, values) = items.into_iter().map(|t| (t.kind, t.value)).unzip();
            Typed { kind: Type::Tuple(kinds), value: cty::Value::List(values) }
        }
        Value::Object(map) => {
            let members = map.iter().map(|(k, v)| Ok((k.clone(), type_of(v)?))).collect::<Result<Vec<_>, String>>()?;
            let (kinds, values) = members.into_iter().map(|(k, t)| ((k.clone(), t.kind), (k, t.value))).unzip();
            Typed { kind: Type::Object(kinds), value: cty::Value::Map(values) }
        }
    })
}

/// Converts a value to a type, by HCL's automatic conversions.
fn convert(value: &Value, to: &Type) -> Result<Typed, String> {
    let wrong = || Err(format!("it is {}", word_for(value)));
    let converted = match (to, value) {
        (Type::Dynamic, value) => return type_of(value),
        (_, Value::Null) => cty::Value::Null,
        (Type::Bool, Value::Bool(flag)) => cty::Value::Bool(*flag),
        (Type::Bool, Value::String(text)) => match text.as_str() {
            "true" | "1" => cty::Value::Bool(true),
            "false" | "0" => cty::Value::Bool(false),
            text => return Err(format!("{text:?} is neither true nor false")),
        },
        (Type::Number, Value::Number(n)) => cty::Value::Number(number(*n)?),
        (Type::Number, Value::String(text)) => {
            cty::Value::Number(cty::Number::parse(text).ok_or_else(|| format!("{text:?} is not a number"))?)
        }
        (Type::String, Value::String(text)) => cty::Value::String(text.clone()),
        (Type::String, Value::Bool(flag)) => cty::Value::String(flag.to_string()),
        (Type::String, Value::Number(n)) => cty::Value::String(number(*n)?.to_string()),
        (Type::List(of) | Type::Set(of), Value::List(items) | Value::Set(items)) => {
            let items = items.iter().enumerate().map(|(i, item)| convert(item, of).map_err(|e| format!("[{i}]: {e}")));
            let items = items.collect::<Result<Vec<_>, _>>()?;
            let (of, mut values) = if has_any(of) { unify_all(items)? } else { same(items) };
            let is_set = matches!(to, Type::Set(_));
            if is_set {
                sort(&mut values, &of);
            }
            let of = Box::new(of);
            let kind = if is_set { Type::Set(of) } else { Type::List(of) };
            return Ok(Typed { kind, value: cty::Value::List(values) });
        }
        (Type::Map(of), Value::Object(map)) => {
            let items = map.iter().map(|(k, item)| convert(item, of).map_err(|e| format!("{k:?}: {e}")));
            let items = items.collect::<Result<Vec<_>, _>>()?;
            let (of, values) = if has_any(of) { unify_all(items)? } else { same(items) };
            let map = map.keys().cloned().zip(values).into_map();
            return Ok(Typed { kind: Type::Map(Box::new(of)), value: cty::Value::Map(map) });
        }
        (Type::Object(members), Value::Object(map)) => {
            let member = |(name, of): (&String, &Type)| {
                let value = map.get(name).ok_or_else(|| format!("{name:?} is missing"))?;
                let typed = convert(value, of).map_err(|e| format!("{name:?}: {e}"))?;
                Ok(((name.clone(), typed.kind), (name.clone(), typed.value)))
            };
            let (kinds, values) = members.iter().map(member).collect::<Result<Vec<_>, String>>()?.into_iter().unzip();
            return Ok(Typed { kind: Type::Object(kinds), value: cty::Value::Map(values) });
        }
        (Type::Tuple(kinds), Value::List(items)) => {
            if kinds.len() != items.len() {
                return Err(format!("it has {} elements, not {}", items.len(), kinds.len()));
            }
            let items = kinds.iter().zip(items).enumerate();
            let items = items.map(|(i, (of, item))| convert(item, of).map_err(|e| format!("[{i}]: {e}")));
            let items = items.collect::<Result<Vec<_>, _>>()?;
            let (kinds, values) = items.into_iter().map(|t| (t.kind, t.value)).unzip();
            return Ok(Typed { kind: Type::Tuple(kinds), value: cty::Value::List(values) });
        }
        _ => return wrong(),
    };
    Ok(Typed { kind: to.clone(), value: converted })
}

/// The common type of values that were all converted to the same type.
fn same(items: Vec<Typed>) -> (Type, Vec<cty::Value>) {
    let kind = items.first().map_or(Type::Dynamic, |first| first.kind.clone());
    (kind, items.into_iter().map(|typed| typed.value).collect())
}

/// Converts values to one common type.
fn unify_all(items: Vec<Typed>) -> Result<(Type, Vec<cty::Value>), String> {
    let Some(first) = items.first() else { return Ok((Type::Dynamic, Vec::new())) };
    let mut kind = first.kind.clone();
    for item in &items[1..] {
        kind = unify(&kind, &item.kind).ok_or_else(|| format!("{kind} and {}", item.kind))?;
    }
    let values = items.into_iter().map(|item| retype(item.value, &item.kind, &kind)).collect();
    Ok((kind, values))
}

/// The type that both can be converted to.
fn unify(a: &Type, b: &Type) -> Option<Type> {
    match (a, b) {
        (a, b) if a == b => Some(a.clone()),
        (Type::Dynamic, other) | (other, Type::Dynamic) => Some(other.clone()),
        (Type::String, Type::Bool | Type::Number) | (Type::Bool | Type::Number, Type::String) => Some(Type::String),
        (Type::Tuple(a), Type::Tuple(b)) if a.len() == b.len() => {
            a.iter().zip(b).map(|(a, b)| unify(a, b)).collect::<Option<_>>().map(Type::Tuple)
        }
        (Type::Tuple(a), Type::Tuple(b)) => {
            let mut all = a.iter().chain(b);
            let first = all.next()?.clone();
            all.try_fold(first, |sum, next| unify(&sum, next)).map(|of| Type::List(Box::new(of)))
        }
        (Type::List(of), Type::Tuple(items)) | (Type::Tuple(items), Type::List(of)) => {
            items.iter().try_fold((**of).clone(), |sum, next| unify(&sum, next)).map(|of| Type::List(Box::new(of)))
        }
        (Type::List(a), Type::List(b)) => unify(a, b).map(|of| Type::List(Box::new(of))),
        (Type::Set(a), Type::Set(b)) => unify(a, b).map(|of| Type::Set(Box::new(of))),
        (Type::Map(a), Type::Map(b)) => unify(a, b).map(|of| Type::Map(Box::new(of))),
        (Type::Object(a), Type::Object(b)) if a.keys().eq(b.keys()) => {
            let members = a.iter().map(|(name, kind)| Some((name.clone(), unify(kind, b.get(name)?)?)));
            members.map(|member| member.ok_or(())).try_into_map().ok().map(Type::Object)
        }
        (Type::Object(a), Type::Object(b)) => {
            let mut all = a.values().chain(b.values());
            let first = all.next()?.clone();
            all.try_fold(first, |sum, next| unify(&sum, next)).map(|of| Type::Map(Box::new(of)))
        }
        (Type::Map(of), Type::Object(members)) | (Type::Object(members), Type::Map(of)) => {
            members.values().try_fold((**of).clone(), |sum, next| unify(&sum, next)).map(|of| Type::Map(Box::new(of)))
        }
        _ => None,
    }
}

/// Converts a value of the type `from` to the type it was unified to.
fn retype(value: cty::Value, from: &Type, to: &Type) -> cty::Value {
    match value {
        value if from == to => value,
        cty::Value::Bool(flag) if *to == Type::String => cty::Value::String(flag.to_string()),
        cty::Value::Number(number) if *to == Type::String => cty::Value::String(number.to_string()),
        cty::Value::List(items) => {
            let items =
                items.into_iter().enumerate().map(|(i, v)| retype(v, &element(from, i, ""), &element(to, i, "")));
            cty::Value::List(items.collect())
        }
        cty::Value::Map(map) => {
            let members = map.into_iter().map(|(k, v)| {
                let (from, to) = (element(from, 0, &k), element(to, 0, &k));
                (k, retype(v, &from, &to))
            });
            cty::Value::Map(members.into_map())
        }
        other => other,
    }
}

/// The order and uniqueness of a set of values of one type.
fn sort(values: &mut Vec<cty::Value>, of: &Type) {
    values.order_by(|a, b| compare(a, b, of));
    values.dedup();
}

fn compare(a: &cty::Value, b: &cty::Value, of: &Type) -> Ordering {
    match (a, b) {
        (cty::Value::Null, cty::Value::Null) => Ordering::Equal,
        (cty::Value::Null, _) => Ordering::Greater,
        (_, cty::Value::Null) => Ordering::Less,
        (cty::Value::Bool(a), cty::Value::Bool(b)) => a.cmp(b),
        (cty::Value::Number(a), cty::Value::Number(b)) => a.compare(b),
        (cty::Value::String(a), cty::Value::String(b)) => a.cmp(b),
        (a, b) => key(a, of).cmp(&key(b, of)),
    }
}

/// The text by which go-cty sorts values without a natural order.
fn key(value: &cty::Value, kind: &Type) -> String {
    match (value, kind) {
        (cty::Value::Null, _) => "~".to_owned(),
        (cty::Value::Bool(flag), _) => if *flag { "T" } else { "F" }.to_owned(),
        (cty::Value::Number(number), _) => number.to_string(),
        (cty::Value::String(text), _) => format!("{text:?}"),
        (cty::Value::List(items), kind) => {
            let keys = items.iter().enumerate().map(|(i, item)| key(item, &element(kind, i, "")) + ";");
            let keys: String = keys.collect();
            if matches!(kind, Type::Tuple(_)) { format!("<{keys}>") } else { format!("[{keys}]") }
        }
        (cty::Value::Map(map), Type::Object(_)) => {
            let keys: String = map.iter().map(|(name, item)| key(item, &element(kind, 0, name)) + ";").collect();
            format!("<{keys}>")
        }
        (cty::Value::Map(map), kind) => {
            let pairs = map.iter().map(|(name, item)| format!("{name:?}:{};", key(item, &element(kind, 0, name))));
            format!("{{{}}}", pairs.collect::<String>())
        }
        (cty::Value::Dynamic(kind, value), _) => key(value, kind),
    }
}

/// The type of the element at this index or with this name.
fn element(kind: &Type, at: usize, name: &str) -> Type {
    match kind {
        Type::List(of) | Type::Set(of) | Type::Map(of) => (**of).clone(),
        Type::Tuple(items) => items.get(at).cloned().unwrap_or(Type::Dynamic),
        Type::Object(members) => members.get(name).cloned().unwrap_or(Type::Dynamic),
        leaf => leaf.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::wire::schema::{attr, block, block_attrs, block_list, block_map, object};

    fn schema() -> Schema {
        let port = || object([("to", attr("to", "number", true))]);
        Schema::new(&object([
            ("image", attr("image", "string", true)),
            ("args", attr("args", "list(string)", false)),
            ("labels", attr("labels", "list(map(string))", false)),
            ("auth", block("auth", false, port())),
            ("port", block_list("port", 0, 2, port())),
            ("disk", block_map("disk", ["name"], port())),
            ("sysctl", block_attrs("sysctl", "string", false)),
        ]))
        .unwrap()
    }

    fn decoded(text: &str) -> Result<serde_json::Value, String> {
        let body = Body::parse(Path::new("f.hcl"), text).map_err(|e| e.to_string())?;
        schema().decode(&body, &serde_json::Map::new()).map(|v| v.to_json()).map_err(|e| e.to_string())
    }

    #[test]
    fn a4_native_syntax_is_taken_as_its_json() {
        let native = r#"
            image = "x${1 + 1}"
            args  = ["a", 1]
            labels { a = "b" }
            labels { c = 5 }
            auth { to = "5" }
            port { to = 1 }
            port { to = 2 }
            disk "root" { to = 3 }
            disk "data" { to = 4 }
            sysctl {
              net = 1
            }
        "#;
        let expected = json!({
            "image": "x2", "args": ["a", "1"], "labels": [{"a": "b"}, {"c": "5"}], "auth": {"to": 5},
            "port": [{"to": 1}, {"to": 2}], "disk": {"root": {"to": 3}, "data": {"to": 4}}, "sysctl": {"net": "1"},
        });
        assert_eq!(decoded(native), Ok(expected.clone()));
        let values = json!({
            "image": "x${1 + 1}", "args": ["a", 1], "labels": [{"a": "b"}, {"c": 5}], "auth": [{"to": "5"}],
            "port": [{"to": 1}, {"to": 2}], "disk": [{"root": [{"to": 3}]}, {"data": [{"to": 4}]}], "sysctl": [{"net": 1}],
        });
        assert_eq!(decoded(&values.to_string()), Ok(expected.clone()));
        let config = DriverConfig { values: values.as_object().unwrap().clone(), ..DriverConfig::default() };
        let decode = |interpolated| {
            let body = Body::of(&config, interpolated).unwrap();
            schema().decode(&body, &serde_json::Map::new()).unwrap().to_json()
        };
        assert_eq!(decode(false), expected);
        assert_eq!(decode(true)["image"], "x${1 + 1}");
    }

    #[test]
    fn a4_every_mistake_is_said_with_its_place_and_its_mend() {
        let said = decoded(
            "args = \"a\"\nauth {\n}\nauth {\n  to = 1\n}\nport {\n  to = \"x\"\n}\nport { to = 1 }\nport { to = 2 }\n\
             disk {\n  to = 1\n}\nimge = 1\nsysctl = 5\nlabels = [nobody]\n",
        )
        .unwrap_err();
        for expected in [
            "f.hcl:1: \"image\" is missing; set image = ...",
            "f.hcl:1: \"args\" must be of the type list(string): it is a string",
            "f.hcl:2: \"to\" is missing; set to = ...",
            "f.hcl:4: there are two blocks \"auth\"; only one is allowed",
            "f.hcl:8: \"to\" must be of the type number: \"x\" is not a number",
            "f.hcl:11: 3 blocks \"port\" are too many; at most 2 are allowed",
            "f.hcl:15: there is no \"imge\"; known here are args, image, labels, auth, disk, port, sysctl",
            "f.hcl:16: \"sysctl\" is a block; write sysctl { ... }",
            "f.hcl:17: there is no variable \"nobody\" here; put text in quotes",
        ] {
            assert!(said.lines().any(|line| line == expected), "{expected:?} is missing in:\n{said}");
        }
        assert!(decoded("image = ").unwrap_err().starts_with("f.hcl:1: syntax error"));
        assert!(decoded("image = file(\"x\")").unwrap_err().contains("there is no function of this name"));
    }

    #[test]
    fn a4_a_schema_that_cannot_be_used_is_the_plugins_fault() {
        for (spec, expected) in [
            (Spec::default(), "a spec is empty"),
            (object([("a", attr("a", "strings", false))]), "the type of \"a\": \"strings\" is not a type"),
            (attr("", "string", false), "an attribute has no name"),
            (block_map::<&str>("m", [], object::<&str>([])), "the map of blocks \"m\" has no label"),
            (crate::wire::schema::Literal::expression("3m").into(), "the literal \"3m\": "),
        ] {
            let said = Schema::new(&spec).unwrap_err().to_string();
            assert!(said.starts_with("the plugin's schema: ") && said.contains(expected), "{said}");
        }
    }
}
