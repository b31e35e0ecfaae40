//! Native syntax: from the parser's tree to ours.
//!
//! The parser limits nesting to 64 levels and chains to 128 operators, so every walk over the result may recurse.

mod template;

use std::ops::Range;

use hcl_edit::Span;
use hcl_edit::expr::{self as hcl, BinaryOperator, Expression, ObjectKey, TraversalOperator, UnaryOperator};
use hcl_edit::structure::Body as HclBody;

use super::ast::{Attr, Block, Body, Call, Expr, For, Kind, Operator, Step};
use super::diag::{Diagnostic, Result, Source};
use super::scan;
use super::value::{Number, Value};
use crate::spec::Pos;

/// Most steps (`.name`, `[index]`, splats) after one value; a splat is evaluated by recursion.
const MOST_STEPS: usize = 64;

/// Reads a whole file.
pub(super) fn parse_body(source: &Source<'_>) -> Result<Body> {
    let reader = Reader { text: source.text, places: Places::In(source, 0) };
    let text = scan::code(source.text).map_err(|found| reader.refusal(found))?;
    let reader = Reader { text: &text, ..reader };
    let body = hcl_edit::parser::parse_body(&text).map_err(|e| reader.syntax_error(&e))?;
    reader.body(&body)
}

/// Reads one expression that stands by itself; every place in it is `pos`.
pub(super) fn parse_expression(text: &str, pos: &Pos) -> Result<Expr> {
    let reader = Reader { text, places: Places::At(pos) };
    let text = scan::code(text).map_err(|found| reader.refusal(found))?;
    let reader = Reader { text: text.trim(), ..reader };
    let expr = hcl_edit::parser::parse_expr(reader.text).map_err(|e| reader.syntax_error(&e))?;
    reader.expr(&expr)
}

/// Reads a string as a template (strings of JSON are); every place in it is `pos`.
pub(super) fn parse_template(text: &str, pos: &Pos) -> Result<Expr> {
    if !text.contains("${") && !text.contains("%{") {
        return Ok(Expr::literal(pos, Value::string(text)));
    }
    let reader = Reader { text, places: Places::At(pos) };
    let text = scan::template(text).map_err(|found| reader.refusal(found))?;
    let reader = Reader { text: &text, ..reader };
    let parsed = hcl_edit::parser::parse_template(&text).map_err(|e| reader.syntax_error(&e))?;
    template::read(&reader, &parsed, template::Form::Lines, pos)
}

/// Where the text that is read stands.
#[derive(Clone, Copy)]
enum Places<'a> {
    /// In a file, from this offset on.
    In(&'a Source<'a>, usize),
    /// All at one place.
    At(&'a Pos),
}

/// What the parser says of a place, or the fix for what people often write there.
fn explained<'a>(message: &'a str, rest: &str) -> &'a str {
    let wants = |what: &str| message.contains(what);
    let begins = |what: &str| rest.starts_with(what);
    if wants("redefined attribute") {
        "this argument was given already; remove one of the two"
    } else if wants("heredoc end delimiter") {
        "the heredoc is not closed; write the word behind its << alone on a line"
    } else if begins("/*") {
        "the comment is not closed; write */ behind it"
    } else if begins("'") {
        "text needs double quotes"
    } else if begins(":") && wants("`=`") {
        "write = between a name and its value, not :"
    } else if begins(",") && wants("newline") {
        "remove the comma; each argument has its own line"
    } else if begins("=") && wants("`{`") {
        "remove the =; it is a block"
    } else if wants("escape sequence") {
        "unknown escape; write \\\\ for a backslash"
    } else if wants("expected `]`") && begins("\"") {
        "a comma is missing before this"
    } else {
        message
    }
}

#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    text: &'a str,
    places: Places<'a>,
}

impl<'a> Reader<'a> {
    fn refusal(&self, (at, message): scan::Found) -> Diagnostic {
        Diagnostic::new(&self.pos(at), message)
    }

    fn syntax_error(&self, error: &hcl_edit::parser::Error) -> Diagnostic {
        let at = error.location().offset();
        let rest = self.text.get(at..).unwrap_or_default();
        Diagnostic::new(&self.pos(at), format!("syntax error: {}", explained(error.message(), rest)))
    }

    fn pos(&self, offset: usize) -> Pos {
        match self.places {
            Places::In(source, base) => source.pos(base + offset),
            Places::At(pos) => pos.clone(),
        }
    }

    pub fn pos_of(&self, node: &impl Span) -> Pos {
        self.pos(node.span().map_or(0, |s| s.start))
    }

    fn source_of(&self, span: Option<Range<usize>>) -> &'a str {
        span.and_then(|s| self.text.get(s)).unwrap_or_default().trim()
    }

    fn body(&self, body: &HclBody) -> Result<Body> {
        let mut out = Body::default();
        for structure in body {
            if let Some(attr) = structure.as_attribute() {
                let value = self.expr(&attr.value)?;
                out.attrs.push(Attr { name: attr.key.to_string(), pos: self.pos_of(&attr.key), value });
            } else if let Some(block) = structure.as_block() {
                out.blocks.push(Block {
                    kind: block.ident.to_string(),
                    pos: self.pos_of(&block.ident),
                    labels: block.labels.iter().map(|l| l.as_str().to_owned()).collect(),
                    body: self.body(&block.body)?,
                });
            }
        }
        Ok(out)
    }

    pub fn expr(&self, expr: &Expression) -> Result<Expr> {
        let pos = self.pos_of(expr);
        let kind = match expr {
            Expression::Null(_) => Kind::Literal(Value::Null),
            Expression::Bool(b) => Kind::Literal(Value::Bool(*b.value())),
            Expression::Number(n) => Kind::Literal(Value::Number(self.number(expr, n.value(), &pos)?)),
            Expression::String(s) => Kind::Literal(Value::string(s.as_str())),
            Expression::Array(items) => Kind::List(items.iter().map(|e| self.expr(e)).collect::<Result<_>>()?),
            Expression::Object(items) => Kind::Object(
                items.iter().map(|(k, v)| Ok((self.key(k)?, self.expr(v.expr())?))).collect::<Result<_>>()?,
            ),
            Expression::StringTemplate(t) => return template::read(self, t, template::Form::Quoted, &pos),
            Expression::HeredocTemplate(h) => return self.heredoc(h, expr, &pos),
            Expression::Parenthesis(p) => return self.expr(p.inner()),
            Expression::Variable(name) => {
                let name = name.to_string();
                Kind::Reference { source: name.clone(), name, steps: Vec::new() }
            }
            Expression::Traversal(t) => {
                if t.operators.len() > MOST_STEPS {
                    let message = format!("syntax error: more than {MOST_STEPS} steps after a value");
                    return Err(Diagnostic::new(&pos, message));
                }
                let steps = t.operators.iter().map(|o| self.step(o.value())).collect::<Result<_>>()?;
                match &t.expr {
                    Expression::Variable(name) => Kind::Reference {
                        name: name.to_string(),
                        steps,
                        source: self.source_of(expr.span()).to_owned(),
                    },
                    root => Kind::Traversal(Box::new(self.expr(root)?), steps),
                }
            }
            Expression::FuncCall(call) => Kind::Call(Call {
                name: {
                    let outer = call.name.namespace.iter().flat_map(|n| [n.as_str(), "::"]);
                    outer.chain([call.name.name.as_str()]).collect()
                },
                args: call.args.iter().map(|e| self.expr(e)).collect::<Result<_>>()?,
                expand: call.args.expand_final(),
            }),
            Expression::Conditional(c) => Kind::Conditional(Box::new([
                self.expr(&c.cond_expr)?,
                self.expr(&c.true_expr)?,
                self.expr(&c.false_expr)?,
            ])),
            Expression::UnaryOp(op) => {
                let operand = Box::new(self.expr(&op.expr)?);
                match op.operator.value() {
                    UnaryOperator::Neg => Kind::Negate(operand),
                    UnaryOperator::Not => Kind::Not(operand),
                }
            }
            Expression::BinaryOp(op) => Kind::Binary(
                Box::new(self.expr(&op.lhs_expr)?),
                operator(*op.operator.value()),
                Box::new(self.expr(&op.rhs_expr)?),
            ),
            Expression::ForExpr(f) => Kind::For(Box::new(self.for_expr(f)?)),
        };
        Ok(Expr { pos, kind })
    }

    /// The parser keeps only 64 bits of a number; its spelling has them all.
    fn number(&self, expr: &Expression, parsed: &hcl_edit::Number, pos: &Pos) -> Result<Number> {
        let spelling = self.source_of(expr.span());
        let exact = match spelling.strip_prefix('-') {
            Some(digits) => Number::parse(&format!("-{}", digits.trim_start())),
            None => Number::parse(spelling),
        };
        exact
            .or_else(|| parsed.as_f64().and_then(Number::from_f64))
            .ok_or_else(|| Diagnostic::new(pos, "this number is too large; use a smaller one"))
    }

    fn key(&self, key: &ObjectKey) -> Result<Expr> {
        match key {
            ObjectKey::Ident(name) => Ok(Expr::literal(&self.pos_of(name), Value::string(name.as_str()))),
            ObjectKey::Expression(Expression::Traversal(t)) => Err(Diagnostic::new(
                &self.pos_of(t),
                "ambiguous key; put it in quotes to take it literally, or in parentheses to evaluate it",
            )),
            ObjectKey::Expression(e) => self.expr(e),
        }
    }

    fn step(&self, step: &TraversalOperator) -> Result<Step> {
        Ok(match step {
            TraversalOperator::AttrSplat(_) => Step::AttrSplat,
            TraversalOperator::FullSplat(_) => Step::FullSplat,
            TraversalOperator::GetAttr(name) => Step::Attr(name.to_string()),
            TraversalOperator::Index(index) => Step::Index(self.expr(index)?),
            TraversalOperator::LegacyIndex(index) => {
                Step::Index(Expr::literal(&self.pos_of(index), Value::int(*index.value())))
            }
        })
    }

    fn for_expr(&self, f: &hcl::ForExpr) -> Result<For> {
        Ok(For {
            key_name: f.intro.key_var.as_ref().map(ToString::to_string),
            value_name: f.intro.value_var.to_string(),
            collection: self.expr(&f.intro.collection_expr)?,
            key: f.key_expr.as_ref().map(|e| self.expr(e)).transpose()?,
            value: self.expr(&f.value_expr)?,
            group: f.grouping,
            condition: f.cond.as_ref().map(|c| self.expr(&c.expr)).transpose()?,
        })
    }

    /// An indented heredoc is read a second time, because the parser takes the indent away before `~` is applied and
    /// not inside directives.
    fn heredoc(&self, heredoc: &hcl_edit::template::HeredocTemplate, expr: &Expression, pos: &Pos) -> Result<Expr> {
        let span = heredoc.template.span().unwrap_or_default();
        if !self.source_of(expr.span()).starts_with("<<-") || span.is_empty() {
            return template::read(self, &heredoc.template, template::Form::Lines, pos);
        }
        let inner = Reader {
            text: self.text.get(span.clone()).unwrap_or_default(),
            places: match self.places {
                Places::In(source, base) => Places::In(source, base + span.start),
                at @ Places::At(_) => at,
            },
        };
        let raw = hcl_edit::parser::parse_template(inner.text).map_err(|e| inner.syntax_error(&e))?;
        template::read(&inner, &raw, template::Form::Indented, pos)
    }
}

const fn operator(operator: BinaryOperator) -> Operator {
    match operator {
        BinaryOperator::Eq => Operator::Eq,
        BinaryOperator::NotEq => Operator::NotEq,
        BinaryOperator::LessEq => Operator::LessEq,
        BinaryOperator::GreaterEq => Operator::GreaterEq,
        BinaryOperator::Less => Operator::Less,
        BinaryOperator::Greater => Operator::Greater,
        BinaryOperator::Plus => Operator::Add,
        BinaryOperator::Minus => Operator::Sub,
        BinaryOperator::Mul => Operator::Mul,
        BinaryOperator::Div => Operator::Div,
        BinaryOperator::Mod => Operator::Mod,
        BinaryOperator::And => Operator::And,
        BinaryOperator::Or => Operator::Or,
    }
}
