//! Templates: literal text with `${}` values and `%{}` directives, `~` trimming and heredoc indents.
//!
//! The parser's tree is flattened first, because trimming and indents go by the order of the text, across the
//! borders of directives; then it is built up again.

use hcl_edit::Span;
use hcl_edit::template::{Directive, Element, Interpolation, Strip, Template};

use super::Reader;
use crate::jobspec::ast::{Expr, Kind, Part};
use crate::jobspec::diag::Result;
use crate::jobspec::value::Value;
use crate::spec::Pos;

/// How the template stands in the file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Between quotes: `~` trims the whole text beside it.
    Quoted,
    /// Heredoc or JSON string: `~` trims no further than the end of its line.
    Lines,
    /// Heredoc with `<<-`: the common indent goes, too.
    Indented,
}

enum Token {
    Text(String),
    Value(Expr),
    If(Expr),
    Else,
    EndIf,
    For { key_name: Option<String>, value_name: String, collection: Expr },
    EndFor,
}

/// Reads a template as an expression; text alone becomes a literal, one value alone stays what it is.
pub(super) fn read(reader: &Reader<'_>, template: &Template, form: Form, pos: &Pos) -> Result<Expr> {
    let mut flat = Flat { reader, by_line: form != Form::Quoted, tokens: Vec::new() };
    flat.template(template)?;
    let mut tokens = trimmed(flat.tokens);
    if form == Form::Indented {
        remove_indent(&mut tokens);
    }
    let mut parts = build(&mut tokens.into_iter());
    let kind = match parts.as_mut_slice() {
        [] => Kind::Literal(Value::string("")),
        [Part::Text(text)] => Kind::Literal(Value::String(std::mem::take(text))),
        [Part::Value(_)] => match parts.remove(0) {
            Part::Value(expr) => return Ok(expr),
            part => Kind::Template(vec![part]),
        },
        _ => Kind::Template(parts),
    };
    Ok(Expr { pos: pos.clone(), kind })
}

struct Flat<'r, 'a> {
    reader: &'r Reader<'a>,
    by_line: bool,
    tokens: Vec<(Token, Strip)>,
}

impl Flat<'_, '_> {
    fn template(&mut self, template: &Template) -> Result<()> {
        for element in template {
            match element {
                Element::Literal(text) if self.by_line => {
                    let lines = text.split_inclusive('\n').map(|l| (Token::Text(l.to_owned()), Strip::None));
                    self.tokens.extend(lines);
                }
                Element::Literal(text) => self.tokens.push((Token::Text(text.to_string()), Strip::None)),
                Element::Interpolation(i) => self.tokens.push((Token::Value(self.value(i)?), i.strip)),
                Element::Directive(directive) => self.directive(directive)?,
            }
        }
        Ok(())
    }

    /// One value. The spelling of a name has the blanks around it, with which it stays where only the task runner knows it.
    fn value(&self, interpolation: &Interpolation) -> Result<Expr> {
        let mut expr = self.reader.expr(&interpolation.expr)?;
        if let Kind::Reference { source, .. } = &mut expr.kind {
            let text = self.reader.source_of(interpolation.span());
            let inner = text.strip_prefix("${").and_then(|text| text.strip_suffix('}'));
            if let Some(inner) = inner.filter(|inner| inner.trim_matches(' ') == *source) {
                inner.clone_into(source);
            }
        }
        Ok(expr)
    }

    fn directive(&mut self, directive: &Directive) -> Result<()> {
        match directive {
            Directive::If(d) => {
                self.tokens.push((Token::If(self.reader.expr(&d.if_expr.cond_expr)?), d.if_expr.strip));
                self.template(&d.if_expr.template)?;
                if let Some(otherwise) = &d.else_expr {
                    self.tokens.push((Token::Else, otherwise.strip));
                    self.template(&otherwise.template)?;
                }
                self.tokens.push((Token::EndIf, d.endif_expr.strip));
            }
            Directive::For(d) => {
                let token = Token::For {
                    key_name: d.for_expr.key_var.as_ref().map(ToString::to_string),
                    value_name: d.for_expr.value_var.to_string(),
                    collection: self.reader.expr(&d.for_expr.collection_expr)?,
                };
                self.tokens.push((token, d.for_expr.strip));
                self.template(&d.for_expr.template)?;
                self.tokens.push((Token::EndFor, d.endfor_expr.strip));
            }
        }
        Ok(())
    }
}

fn trimmed(mut tokens: Vec<(Token, Strip)>) -> Vec<Token> {
    for i in 0..tokens.len() {
        let strip = tokens[i].1;
        if strip.strip_start()
            && let Some((Token::Text(before), _)) = i.checked_sub(1).and_then(|b| tokens.get_mut(b))
        {
            before.truncate(before.trim_end().len());
        }
        if strip.strip_end()
            && let Some((Token::Text(after), _)) = tokens.get_mut(i + 1)
        {
            *after = after.trim_start().to_owned();
        }
    }
    tokens.into_iter().map(|(token, _)| token).collect()
}

/// Takes the smallest indent of all lines that are not blank away from each of them.
///
/// A line that trimming has joined to the one before does not start a line any more and keeps its indent.
fn remove_indent(tokens: &mut [Token]) {
    let mut smallest = usize::MAX;
    let mut indented = Vec::new();
    let mut line_start = true;
    for (i, token) in tokens.iter().enumerate() {
        let text = if let Token::Text(text) = token { text.as_str() } else { "" };
        if line_start {
            let blank = text.ends_with('\n') && text.trim().is_empty();
            if !blank {
                smallest = smallest.min(text.chars().take_while(|c| c.is_whitespace()).count());
                indented.push(i);
            }
        }
        line_start = text.ends_with('\n');
    }
    for i in indented {
        if let Token::Text(text) = &mut tokens[i] {
            *text = text.chars().skip(smallest).collect();
        }
    }
}

/// Builds parts up to the token that closes the directive they stand in.
fn build(tokens: &mut std::vec::IntoIter<Token>) -> Vec<Part> {
    build_until_close(tokens).0
}

fn build_until_close(tokens: &mut std::vec::IntoIter<Token>) -> (Vec<Part>, bool) {
    let mut parts: Vec<Part> = Vec::new();
    while let Some(token) = tokens.next() {
        match token {
            Token::Text(text) => match parts.last_mut() {
                Some(Part::Text(before)) => before.push_str(&text),
                _ if text.is_empty() => {}
                _ => parts.push(Part::Text(text)),
            },
            Token::Value(expr) => parts.push(Part::Value(expr)),
            Token::If(condition) => {
                let (then, has_else) = build_until_close(tokens);
                let otherwise = if has_else { build(tokens) } else { Vec::new() };
                parts.push(Part::If { condition, then, otherwise });
            }
            Token::For { key_name, value_name, collection } => {
                parts.push(Part::For { key_name, value_name, collection, body: build(tokens) });
            }
            Token::Else => return (parts, true),
            Token::EndIf | Token::EndFor => return (parts, false),
        }
    }
    (parts, false)
}
