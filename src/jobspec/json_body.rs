//! The JSON form of job files: the schema says which members are blocks and how many labels they have.

use super::ast::{Attr, Block, Body, Expr, Kind};
use super::diag::{Diagnostic, Result};
use super::json::{Member, Node, NodeKind};
use super::native;
use super::schema::{BlockSchema, FREE, Schema};
use super::value::Value;
use crate::spec::Pos;
use crate::spec::collections::BTreeSet;

/// Longest label, in bytes: the longest name of a job.
const LONGEST_LABEL: usize = 255;

/// Reads an object as a body; a list of objects is one body after the other.
pub(super) fn body(node: &Node, schema: &Schema) -> Result<Body> {
    let mut out = Body::default();
    add_body(node, schema, &mut out)?;
    // One object has a key once; several that make one body together may not repeat each other's.
    let mut seen = BTreeSet::new();
    match out.attrs.iter().find(|attr| !seen.insert(attr.name.as_str())) {
        Some(twice) => {
            Err(Diagnostic::new(&twice.pos, format!("duplicate key \"{}\"; remove one of the two", twice.name)))
        }
        None => Ok(out),
    }
}

/// A label is kept with each body below it, so it must not be longer than anything that has a name.
fn check_label(member: &Member) -> Result<()> {
    if member.name.len() > LONGEST_LABEL {
        let message = format!("the label has {} bytes; at most {LONGEST_LABEL} are read", member.name.len());
        return Err(Diagnostic::new(&member.pos, message));
    }
    Ok(())
}

fn add_body(node: &Node, schema: &Schema, out: &mut Body) -> Result<()> {
    match &node.kind {
        NodeKind::Object(members) => members.iter().try_for_each(|m| add_member(m, schema, out)),
        NodeKind::List(items) => items.iter().try_for_each(|item| add_body(item, schema, out)),
        NodeKind::Scalar(_) => Err(Diagnostic::new(&node.pos, "an object is needed here; write { ... }")),
    }
}

fn add_member(member: &Member, schema: &Schema, out: &mut Body) -> Result<()> {
    if member.name == "//" {
        return Ok(());
    }
    if member.name == "dynamic" && !schema.free {
        return dynamic(member, schema, out);
    }
    let is_object = |node: &Node| match &node.kind {
        NodeKind::Object(_) => true,
        NodeKind::List(items) => !items.is_empty() && items.iter().all(|i| matches!(i.kind, NodeKind::Object(_))),
        NodeKind::Scalar(_) => false,
    };
    match schema.block(&member.name) {
        Some(_) if matches!(member.node.kind, NodeKind::Scalar(Value::Null)) => Ok(()),
        Some(_) if matches!(&member.node.kind, NodeKind::List(items) if items.is_empty()) => Ok(()),
        Some(block) if is_object(&member.node) => add_blocks(block, &member.pos, &member.node, &mut Vec::new(), out),
        _ => {
            out.attrs.push(Attr {
                name: member.name.clone(),
                pos: member.pos.clone(),
                value: expression(&member.node)?,
            });
            Ok(())
        }
    }
}

/// One level of labels per level of objects; lists may stand anywhere between.
fn add_blocks(schema: &BlockSchema, pos: &Pos, node: &Node, labels: &mut Vec<String>, out: &mut Body) -> Result<()> {
    match &node.kind {
        NodeKind::List(items) => items.iter().try_for_each(|item| {
            let pos = if schema.labels == labels.len() { &item.pos } else { pos };
            add_blocks(schema, pos, item, labels, out)
        }),
        NodeKind::Object(members) if labels.len() < schema.labels => members.iter().try_for_each(|m| {
            check_label(m)?;
            labels.push(m.name.clone());
            let result = add_blocks(schema, &m.pos, &m.node, labels, out);
            labels.pop();
            result
        }),
        _ => {
            out.blocks.push(Block {
                kind: schema.name.to_owned(),
                pos: pos.clone(),
                labels: labels.clone(),
                body: body(node, schema.body)?,
            });
            Ok(())
        }
    }
}

/// `"dynamic": {"<block>": {"for_each": ..., "content": {...}}}`
fn dynamic(member: &Member, schema: &Schema, out: &mut Body) -> Result<()> {
    let NodeKind::Object(kinds) = &member.node.kind else {
        return Err(Diagnostic::new(&member.pos, "dynamic takes the name of the block that it makes"));
    };
    for kind in kinds {
        check_label(kind)?;
        let content = schema.block(&kind.name).map_or(&FREE, |b| b.body);
        let bodies = match &kind.node.kind {
            NodeKind::List(items) => items.as_slice(),
            _ => std::slice::from_ref(&kind.node),
        };
        for node in bodies {
            let NodeKind::Object(members) = &node.kind else {
                return Err(Diagnostic::new(&node.pos, "an object is needed here; write { ... }"));
            };
            let mut inner = Body::default();
            for m in members {
                if m.name == "content" {
                    let body = body(&m.node, content)?;
                    inner.blocks.push(Block { kind: m.name.clone(), pos: m.pos.clone(), labels: Vec::new(), body });
                } else {
                    inner.attrs.push(Attr { name: m.name.clone(), pos: m.pos.clone(), value: expression(&m.node)? });
                }
            }
            let labels = vec![kind.name.clone()];
            out.blocks.push(Block { kind: member.name.clone(), pos: kind.pos.clone(), labels, body: inner });
        }
    }
    Ok(())
}

/// A value as an expression; strings and keys are templates.
fn expression(node: &Node) -> Result<Expr> {
    let kind = match &node.kind {
        NodeKind::Scalar(Value::String(text)) => return native::parse_template(text, &node.pos),
        NodeKind::Scalar(value) => Kind::Literal(value.clone()),
        NodeKind::List(items) => Kind::List(items.iter().map(expression).collect::<Result<_>>()?),
        NodeKind::Object(members) => Kind::Object(
            members
                .iter()
                .map(|m| Ok((native::parse_template(&m.name, &m.pos)?, expression(&m.node)?)))
                .collect::<Result<_>>()?,
        ),
    };
    Ok(Expr { pos: node.pos.clone(), kind })
}
