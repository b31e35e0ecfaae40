//! Configuration that a plugin describes itself: a tree of members, whether it was written in HCL, in JSON or comes from
//! a job. What is a block and what an attribute, its reader knows.

use std::path::Path;

use serde_json::Value as Json;

use super::ast::{self, Expr, Kind};
use super::budget::{Budget, check_source};
use super::diag::{Diagnostic, Source};
use super::eval::{Globals, Scope};
use super::value::{Number, Value};
use super::{json, native};
use crate::spec::collections::BTreeMap;
use crate::spec::{DriverConfig, IntoMap as _, Pos};

/// A value, list or group of members with its place.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub pos: Pos,
    kind: NodeKind,
}

#[derive(Debug, Clone)]
enum NodeKind {
    Leaf(Expr),
    List(Vec<Node>),
    Members(Vec<Member>),
}

/// A name and what it stands for.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub name: String,
    pub pos: Pos,
    pub node: Node,
    /// Where this is part of a value, the name may contain `${}`.
    is_template: bool,
}

/// Names that expressions can use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Variables(BTreeMap<String, Value>);

impl Variables {
    pub fn new<'a>(variables: impl IntoIterator<Item = (&'a String, &'a Json)>) -> Variables {
        Variables(variables.into_iter().map(|(name, value)| (name.clone(), from_json(value))).into_map())
    }
}

fn from_json(value: &Json) -> Value {
    match value {
        Json::Null => Value::Null,
        Json::Bool(flag) => Value::Bool(*flag),
        Json::Number(number) => Number::parse(&number.to_string()).map_or(Value::Null, Value::Number),
        Json::String(text) => Value::string(text.as_str()),
        Json::Array(items) => Value::List(items.iter().map(from_json).collect()),
        Json::Object(map) => Value::Object(map.iter().map(|(k, v)| (k.clone(), from_json(v))).into_map()),
    }
}

/// Reads a file in HCL or JSON.
pub(crate) fn parse(file: &Path, text: &str) -> Result<Node, Diagnostic> {
    let source = Source::new(file, text);
    check_source(&source)?;
    // No HCL begins with a list.
    if super::is_json(text) || text.trim_start().starts_with('[') {
        return of_json_text(json::read(&source)?);
    }
    Ok(of_body(source.pos(0), native::parse_body(&source)?))
}

/// Nothing at all.
pub(crate) fn empty() -> Node {
    Node { pos: Pos::default(), kind: NodeKind::Members(Vec::new()) }
}

/// The `config` of a job's task. Its strings are templates unless they were `interpolated` before.
pub(crate) fn of_config(config: &DriverConfig, interpolated: bool) -> Result<Node, Diagnostic> {
    let members = config.values.iter().map(|(name, value)| {
        let pos = config.positions.get(name).unwrap_or(&config.pos).clone();
        Ok(Member { node: of_json(value, &pos, interpolated)?, name: name.clone(), pos, is_template: false })
    });
    Ok(Node { pos: config.pos.clone(), kind: NodeKind::Members(members.collect::<Result<_, Diagnostic>>()?) })
}

/// Evaluates an expression that stands by itself and may use no variables.
pub(crate) fn expression(text: &str, pos: &Pos) -> Result<Value, Diagnostic> {
    Node { pos: pos.clone(), kind: NodeKind::Leaf(native::parse_expression(text, pos)?) }.eval(&Variables::default())
}

fn of_json(value: &Json, pos: &Pos, interpolated: bool) -> Result<Node, Diagnostic> {
    let kind = match value {
        Json::String(text) if !interpolated => NodeKind::Leaf(native::parse_template(text, pos)?),
        Json::Array(items) => {
            NodeKind::List(items.iter().map(|item| of_json(item, pos, interpolated)).collect::<Result<_, _>>()?)
        }
        Json::Object(map) => NodeKind::Members(
            map.iter()
                .map(|(name, value)| {
                    let node = of_json(value, pos, interpolated)?;
                    Ok(Member { name: name.clone(), pos: pos.clone(), node, is_template: !interpolated })
                })
                .collect::<Result<_, Diagnostic>>()?,
        ),
        scalar => NodeKind::Leaf(Expr::literal(pos, from_json(scalar))),
    };
    Ok(Node { pos: pos.clone(), kind })
}

fn of_json_text(node: json::Node) -> Result<Node, Diagnostic> {
    let kind = match node.kind {
        json::NodeKind::Scalar(Value::String(text)) => NodeKind::Leaf(native::parse_template(&text, &node.pos)?),
        json::NodeKind::Scalar(value) => NodeKind::Leaf(Expr::literal(&node.pos, value)),
        json::NodeKind::List(items) => NodeKind::List(items.into_iter().map(of_json_text).collect::<Result<_, _>>()?),
        json::NodeKind::Object(members) => NodeKind::Members(
            members
                .into_iter()
                .map(|m| Ok(Member { name: m.name, pos: m.pos, node: of_json_text(m.node)?, is_template: true }))
                .collect::<Result<_, Diagnostic>>()?,
        ),
    };
    Ok(Node { pos: node.pos, kind })
}

/// Blocks of one kind become a list under its name, labels become names on the way.
fn of_body(pos: Pos, body: ast::Body) -> Node {
    let named = |name: String, pos: Pos, node: Node| Member { name, pos, node, is_template: false };
    let mut members: Vec<Member> = body.attrs.into_iter().map(|a| named(a.name, a.pos, of_expr(a.value))).collect();
    let attributes = members.len();
    for block in body.blocks {
        let mut node = of_body(block.pos.clone(), block.body);
        for label in block.labels.into_iter().rev() {
            let members = vec![named(label, block.pos.clone(), node)];
            node = Node { pos: block.pos.clone(), kind: NodeKind::Members(members) };
        }
        let earlier = members[attributes..].iter_mut().find(|m| m.name == block.kind);
        match earlier.map(|m| &mut m.node.kind) {
            Some(NodeKind::List(items)) => items.push(node),
            Some(NodeKind::Leaf(_) | NodeKind::Members(_)) | None => {
                let list = Node { pos: block.pos.clone(), kind: NodeKind::List(vec![node]) };
                members.push(named(block.kind, block.pos, list));
            }
        }
    }
    Node { pos, kind: NodeKind::Members(members) }
}

/// Lists and objects of plain names are opened, so that they can stand for blocks.
fn of_expr(expr: Expr) -> Node {
    let is_plain = |(key, _): &(Expr, Expr)| matches!(key.kind, Kind::Literal(Value::String(_)));
    match expr.kind {
        Kind::List(items) => Node { pos: expr.pos, kind: NodeKind::List(items.into_iter().map(of_expr).collect()) },
        Kind::Object(pairs) if pairs.iter().all(is_plain) => {
            let members = pairs.into_iter().filter_map(|(key, value)| match key.kind {
                Kind::Literal(Value::String(name)) => {
                    Some(Member { name, pos: key.pos, node: of_expr(value), is_template: false })
                }
                _ => None,
            });
            Node { kind: NodeKind::Members(members.collect()), pos: expr.pos }
        }
        _ => Node { pos: expr.pos.clone(), kind: NodeKind::Leaf(expr) },
    }
}

impl Node {
    /// What a list consists of.
    pub fn items(&self) -> Option<&[Node]> {
        match &self.kind {
            NodeKind::List(items) => Some(items),
            NodeKind::Leaf(_) | NodeKind::Members(_) => None,
        }
    }

    /// The members of a body or object.
    pub fn members(&self) -> Option<&[Member]> {
        match &self.kind {
            NodeKind::Members(members) => Some(members),
            NodeKind::Leaf(_) | NodeKind::List(_) => None,
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(&self.kind, NodeKind::Leaf(Expr { kind: Kind::Literal(Value::Null), .. }))
    }

    /// The value that all of it gives.
    pub fn eval(&self, variables: &Variables) -> Result<Value, Diagnostic> {
        let budget = Budget::default();
        let globals = Globals {
            vars: BTreeMap::new(),
            locals: BTreeMap::new(),
            base_dir: None,
            is_config: true,
            budget: &budget,
        };
        let scope = variables.0.iter().fold(Scope::new(&globals), |scope, (k, v)| scope.with(k, v.clone()));
        self.eval_in(&scope)
    }

    fn eval_in(&self, scope: &Scope<'_>) -> Result<Value, Diagnostic> {
        match &self.kind {
            NodeKind::Leaf(expr) => scope.eval(expr),
            NodeKind::List(items) => {
                items.iter().map(|item| item.eval_in(scope)).collect::<Result<_, _>>().map(Value::List)
            }
            NodeKind::Members(members) => {
                let mut map = BTreeMap::new();
                for member in members {
                    let name = member.value_name(scope)?;
                    if map.insert(name.clone(), member.node.eval_in(scope)?).is_some() {
                        let message = format!("duplicate key \"{name}\"; remove one of the two");
                        return Err(Diagnostic::new(&member.pos, message));
                    }
                }
                Ok(Value::Object(map))
            }
        }
    }
}

impl Member {
    fn value_name(&self, scope: &Scope<'_>) -> Result<String, Diagnostic> {
        if !self.is_template {
            return Ok(self.name.clone());
        }
        let name = scope.eval(&native::parse_template(&self.name, &self.pos)?)?;
        name.to_text().ok_or_else(|| Diagnostic::new(&self.pos, "a key must be a string"))
    }
}
