//! Words into trees. Every name of a function and a variable is known here, or it is a mistake.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::functions;
use super::lexer::{Kind, Lexer, Token};
use super::number::{Number, literal};
use super::quote::{unquote, unquote_char};
use super::show::meant;
use super::types::{Branch, Command, Function, Name, Node, Operand, Pipeline, Term};
use super::{DEEPEST, TemplateError};
use crate::spec::collections::BTreeMap;

/// Reads a file's templates: those that it defines, and itself, which has no name.
pub(super) fn parse(
    source: &[u8],
    left: &str,
    right: &str,
    cancel: &AtomicBool,
) -> Result<BTreeMap<Vec<u8>, Vec<Node>>, TemplateError> {
    let lexer = Lexer::new(source, left, right, cancel);
    let mut parser = Parser {
        source,
        lexer,
        ahead: Vec::new(),
        seen: 0,
        variables: vec!["".into()],
        loops: 0,
        depth: 0,
        defined: BTreeMap::new(),
    };
    let mut main = Vec::new();
    loop {
        match parser.next()? {
            Token { kind: Kind::End, .. } => break,
            token if token.kind == Kind::LeftDelim => {
                let word = parser.next_word()?;
                if word.kind == Kind::Word && parser.text(word) == b"define" {
                    parser.definition()?;
                    continue;
                }
                match parser.action(word)? {
                    Part::Node(node) => main.push(node),
                    Part::Closing(what, at) => return Err(parser.error(at, format!("unexpected {}", what.word()))),
                }
            }
            token => main.push(Node::Text(parser.text(token).to_vec())),
        }
    }
    parser.define(Vec::new(), main)?;
    Ok(parser.defined)
}

/// What closes a part of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    End,
    Else,
    ElseIf,
    ElseWith,
}

impl Closing {
    fn word(self) -> &'static str {
        match self {
            Closing::End => "{{end}}",
            _ => "{{else}}",
        }
    }
}

enum Part {
    Node(Node),
    Closing(Closing, usize),
}

/// Whether a block is all white space, as a definition that may be replaced.
fn is_empty(nodes: &[Node]) -> bool {
    nodes.iter().all(|node| matches!(node, Node::Text(text) if text.trim_ascii().is_empty()))
}

struct Parser<'a> {
    source: &'a [u8],
    lexer: Lexer<'a>,
    /// Words that were read too early, the next one last.
    ahead: Vec<Token>,
    /// Where the last word stands that was looked at.
    seen: usize,
    /// Names of variables that are in reach, `$` itself as the empty one.
    variables: Vec<Name>,
    loops: usize,
    depth: usize,
    defined: BTreeMap<Vec<u8>, Vec<Node>>,
}

impl<'a> Parser<'a> {
    fn error(&self, at: usize, message: impl Into<String>) -> TemplateError {
        TemplateError::new(self.source, at, message)
    }

    fn text(&self, token: Token) -> &'a [u8] {
        &self.source[token.start..token.end]
    }

    fn shown(&self, token: Token) -> String {
        match token.kind {
            Kind::End => "the end of the template".to_owned(),
            Kind::RightDelim => "the closing delimiter".to_owned(),
            _ => format!("{:?}", String::from_utf8_lossy(self.text(token))),
        }
    }

    fn next(&mut self) -> Result<Token, TemplateError> {
        let token = match self.ahead.pop() {
            Some(token) => token,
            None => self.lexer.next()?,
        };
        self.seen = token.start;
        Ok(token)
    }

    /// The next word that is not white space.
    fn next_word(&mut self) -> Result<Token, TemplateError> {
        loop {
            let token = self.next()?;
            if token.kind != Kind::Space {
                return Ok(token);
            }
        }
    }

    fn unexpected(&self, token: Token, place: &str) -> TemplateError {
        self.error(token.start, format!("unexpected {} in {place}", self.shown(token)))
    }

    fn name(&self, token: Token) -> Name {
        String::from_utf8_lossy(&self.text(token)[1..]).into()
    }

    fn deeper(&mut self, at: usize, what: &str) -> Result<(), TemplateError> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(self.error(at, format!("more than {DEEPEST} {what} nest in each other")));
        }
        Ok(())
    }

    fn close_action(&mut self, place: &str) -> Result<(), TemplateError> {
        let token = self.next_word()?;
        if token.kind == Kind::RightDelim { Ok(()) } else { Err(self.unexpected(token, place)) }
    }

    /// A name in quotes, as `define`, `template` and `block` have it.
    fn template_name(&mut self, place: &str) -> Result<Vec<u8>, TemplateError> {
        let token = self.next_word()?;
        match token.kind {
            Kind::Quoted | Kind::Raw => self.string(token),
            _ => Err(self.unexpected(token, place)),
        }
    }

    fn string(&self, token: Token) -> Result<Vec<u8>, TemplateError> {
        let text = self.text(token);
        if token.kind == Kind::Raw {
            // As in Go's own sources, without carriage returns.
            return Ok(text[1..text.len() - 1].iter().copied().filter(|b| *b != b'\r').collect());
        }
        unquote(text).ok_or_else(|| self.error(token.start, "this string has an escape that Go does not know"))
    }

    /// Takes a template in. One that is all white space replaces none, and is replaced by any.
    fn define(&mut self, name: Vec<u8>, nodes: Vec<Node>) -> Result<(), TemplateError> {
        match self.defined.get(&name) {
            Some(old) if !is_empty(old) && is_empty(&nodes) => Ok(()),
            Some(old) if !is_empty(old) => {
                let shown = String::from_utf8_lossy(&name).into_owned();
                Err(self.error(self.seen, format!("the template {shown:?} is defined twice")))
            }
            _ => {
                self.defined.insert(name, nodes);
                Ok(())
            }
        }
    }

    fn definition(&mut self) -> Result<(), TemplateError> {
        let name = self.template_name("define")?;
        self.close_action("define")?;
        let (outer, loops) = (std::mem::replace(&mut self.variables, vec!["".into()]), self.loops);
        self.loops = 0;
        let (nodes, closing, at) = self.block()?;
        if closing != Closing::End {
            return Err(self.error(at, format!("unexpected {} in define", closing.word())));
        }
        (self.variables, self.loops) = (outer, loops);
        self.define(name, nodes)
    }

    /// Up to what closes it, which is taken with it.
    fn block(&mut self) -> Result<(Vec<Node>, Closing, usize), TemplateError> {
        let mut nodes = Vec::new();
        loop {
            let token = self.next()?;
            match token.kind {
                Kind::Text => nodes.push(Node::Text(self.text(token).to_vec())),
                Kind::LeftDelim => {
                    let word = self.next_word()?;
                    match self.action(word)? {
                        Part::Node(node) => nodes.push(node),
                        Part::Closing(closing, at) => return Ok((nodes, closing, at)),
                    }
                }
                _ => return Err(self.error(token.start, "unexpected end of the template: an {{end}} is missing")),
            }
        }
    }

    /// What stands between two delimiters, `first` being its first word.
    fn action(&mut self, first: Token) -> Result<Part, TemplateError> {
        let at = first.start;
        let word = if first.kind == Kind::Word { self.text(first) } else { b"" };
        let node = match word {
            b"end" => {
                self.close_action("end")?;
                return Ok(Part::Closing(Closing::End, at));
            }
            b"else" => {
                let next = self.next_word()?;
                let closing = match self.text(next) {
                    b"if" if next.kind == Kind::Word => Closing::ElseIf,
                    b"with" if next.kind == Kind::Word => Closing::ElseWith,
                    _ if next.kind == Kind::RightDelim => Closing::Else,
                    _ => return Err(self.unexpected(next, "else")),
                };
                return Ok(Part::Closing(closing, at));
            }
            b"define" => return Err(self.unexpected(first, "an action: define stands outside of everything else")),
            b"break" | b"continue" => {
                let name = String::from_utf8_lossy(word).into_owned();
                let close = self.next_word()?;
                if close.kind != Kind::RightDelim {
                    return Err(self.unexpected(close, &format!("{{{{{name}}}}}")));
                }
                if self.loops == 0 {
                    return Err(self.error(at, format!("{{{{{name}}}}} outside {{{{range}}}}")));
                }
                if word == b"break" { Node::Break } else { Node::Continue }
            }
            b"if" => Node::If(self.branch("if", at)?),
            b"with" => Node::With(self.branch("with", at)?),
            b"range" => Node::Range(self.branch("range", at)?),
            b"template" => {
                let name = self.template_name("template")?;
                let next = self.next_word()?;
                let data = if next.kind == Kind::RightDelim {
                    None
                } else {
                    self.ahead.push(next);
                    Some(self.pipeline("template", Kind::RightDelim)?)
                };
                Node::Template(at, name, data)
            }
            b"block" => {
                let name = self.template_name("block")?;
                let data = self.pipeline("block", Kind::RightDelim)?;
                self.deeper(at, "conditions, loops and blocks")?;
                let (outer, loops) = (std::mem::replace(&mut self.variables, vec!["".into()]), self.loops);
                self.loops = 0;
                let (nodes, closing, end) = self.block()?;
                if closing != Closing::End {
                    return Err(self.error(end, format!("unexpected {} in block", closing.word())));
                }
                (self.variables, self.loops) = (outer, loops);
                self.depth -= 1;
                self.define(name.clone(), nodes)?;
                Node::Template(at, name, Some(data))
            }
            _ => {
                self.ahead.push(first);
                let pipeline = self.pipeline("command", Kind::RightDelim)?;
                return Ok(Part::Node(Node::Action(pipeline)));
            }
        };
        Ok(Part::Node(node))
    }

    /// `if`, `with` or `range` with everything up to its `end`.
    fn branch(&mut self, what: &'static str, at: usize) -> Result<Branch, TemplateError> {
        self.deeper(at, "conditions, loops and blocks")?;
        let kept = self.variables.len();
        // What follows an `else if` hangs below it, however long the chain is: it is collected here, not by recursion.
        let mut chain: Vec<(Closing, usize, Pipeline, Vec<Node>)> = Vec::new();
        let (mut kind, mut began) = (Closing::End, at);
        let last = loop {
            let pipeline = self.pipeline(what, Kind::RightDelim)?;
            self.loops += usize::from(what == "range");
            let block = self.block();
            self.loops -= usize::from(what == "range");
            let (then, closing, closed) = block?;
            chain.push((kind, began, pipeline, then));
            let allowed = match closing {
                Closing::End => break None,
                Closing::Else => {
                    let (otherwise, closing, closed) = self.block()?;
                    if closing != Closing::End {
                        return Err(self.error(closed, format!("expected {{{{end}}}}, found {}", closing.word())));
                    }
                    break Some(otherwise);
                }
                Closing::ElseIf => what == "if",
                Closing::ElseWith => what == "with",
            };
            if !allowed {
                let other = if closing == Closing::ElseIf { "if" } else { "with" };
                return Err(self.error(closed, format!("unexpected {other} in else of {what}")));
            }
            (kind, began) = (closing, closed);
        };
        self.variables.truncate(kept);
        self.depth -= 1;
        let mut otherwise = last;
        let mut links = chain.into_iter().rev();
        loop {
            let Some((kind, at, pipeline, then)) = links.next() else {
                return Err(self.error(at, "the block has no beginning"));
            };
            let branch = Branch { at, pipeline, then, otherwise };
            otherwise = match kind {
                Closing::ElseIf => Some(vec![Node::If(branch)]),
                Closing::ElseWith => Some(vec![Node::With(branch)]),
                _ => return Ok(branch),
            };
        }
    }

    /// Commands up to `end`, which is taken with them.
    fn pipeline(&mut self, place: &str, end: Kind) -> Result<Pipeline, TemplateError> {
        let mut pipeline = Pipeline { variables: Vec::new(), assigns: false, commands: Vec::new() };
        self.declarations(&mut pipeline, place)?;
        loop {
            let token = self.next_word()?;
            if token.kind == end {
                if pipeline.commands.is_empty() {
                    return Err(self.error(token.start, format!("missing value for {place}")));
                }
                for command in &pipeline.commands[1..] {
                    let alone = |term: &Term| {
                        matches!(term, Term::Bool(_) | Term::Dot | Term::Nil | Term::Number(_) | Term::Text(_))
                    };
                    if command.words.first().is_some_and(|word| alone(&word.term)) {
                        let what = "what stands after | has to be a function or a field: it gets the value before it";
                        return Err(self.error(command.at, what));
                    }
                }
                return Ok(pipeline);
            }
            match token.kind {
                Kind::Word
                | Kind::Field
                | Kind::Variable
                | Kind::Dot
                | Kind::Number
                | Kind::Char
                | Kind::Quoted
                | Kind::Raw
                | Kind::Open => {
                    self.ahead.push(token);
                    let command = self.command(token.start)?;
                    pipeline.commands.push(command);
                }
                _ => return Err(self.unexpected(token, place)),
            }
        }
    }

    /// `$a := `, `$a = ` and, of a `range`, `$a, $b := ` before the commands.
    fn declarations(&mut self, pipeline: &mut Pipeline, place: &str) -> Result<(), TemplateError> {
        loop {
            let variable = self.next_word()?;
            if variable.kind != Kind::Variable {
                self.ahead.push(variable);
                return Ok(());
            }
            let after = self.next()?;
            let next = if after.kind == Kind::Space { self.next_word()? } else { after };
            let name = self.name(variable);
            match next.kind {
                Kind::Declare | Kind::Assign => {
                    pipeline.assigns = next.kind == Kind::Assign;
                    if pipeline.assigns {
                        self.known(&name, variable)?;
                    } else {
                        self.variables.push(Arc::clone(&name));
                    }
                    pipeline.variables.push(name);
                    return Ok(());
                }
                Kind::Other if self.text(next) == b"," => {
                    pipeline.variables.push(Arc::clone(&name));
                    self.variables.push(name);
                    if place == "range" && pipeline.variables.len() < 2 {
                        let following = self.next_word()?;
                        let expected = matches!(following.kind, Kind::Variable | Kind::RightDelim | Kind::Close);
                        self.ahead.push(following);
                        if expected {
                            continue;
                        }
                        return Err(self.error(following.start, "range can only initialize variables"));
                    }
                    return Err(self.error(next.start, format!("too many declarations in {place}")));
                }
                _ => {
                    self.ahead.push(next);
                    if after.kind == Kind::Space {
                        self.ahead.push(after);
                    }
                    self.ahead.push(variable);
                    return Ok(());
                }
            }
        }
    }

    fn known(&self, name: &Name, token: Token) -> Result<(), TemplateError> {
        if self.variables.contains(name) {
            return Ok(());
        }
        let near = meant(name, self.variables.iter().map(|v| &**v).filter(|v| !v.is_empty()));
        let near: Vec<String> = near.into_iter().map(|n| format!("${n}")).collect();
        let hint = did_you_mean(&near);
        Err(self.error(token.start, format!("the variable ${name} is not defined here{hint}")))
    }

    /// Words up to a pipe or the end.
    fn command(&mut self, at: usize) -> Result<Command, TemplateError> {
        let mut words = Vec::new();
        loop {
            let first = self.next_word()?;
            self.ahead.push(first);
            if let Some(operand) = self.operand()? {
                words.push(operand);
            }
            let token = self.next()?;
            match token.kind {
                Kind::Space => continue,
                Kind::RightDelim | Kind::Close => self.ahead.push(token),
                // As in Go, nothing has to follow.
                Kind::Pipe => {}
                _ => return Err(self.unexpected(token, "operand")),
            }
            break;
        }
        if words.is_empty() { Err(self.error(at, "the command is empty")) } else { Ok(Command { at, words }) }
    }

    /// A term and the fields right behind it.
    fn operand(&mut self) -> Result<Option<Operand>, TemplateError> {
        let token = self.next_word()?;
        let at = token.start;
        let term = match token.kind {
            Kind::Word => match self.text(token) {
                b"true" => Term::Bool(true),
                b"false" => Term::Bool(false),
                b"nil" => Term::Nil,
                name => Term::Function(self.function(name, token)?),
            },
            Kind::Dot => Term::Dot,
            Kind::Variable => {
                let name = self.name(token);
                self.known(&name, token)?;
                Term::Variable(name, Vec::new())
            }
            Kind::Field => Term::Field(vec![self.name(token)]),
            Kind::Number => {
                let text = String::from_utf8_lossy(self.text(token));
                let number = literal(&text).filter(|_| !text.ends_with('i'));
                Term::Number(number.ok_or_else(|| self.error(at, format!("{text} is not a number that can be used")))?)
            }
            Kind::Char => {
                let value = unquote_char(self.text(token)).ok_or_else(|| self.error(at, "this is not a character"))?;
                let int = i64::from(value);
                Term::Number(Number {
                    int: Some(int),
                    uint: Some(u64::from(value)),
                    float: Some(int as f64),
                    is_float: false,
                })
            }
            Kind::Quoted | Kind::Raw => Term::Text(self.string(token)?),
            Kind::Open => {
                self.deeper(at, "parentheses")?;
                let pipeline = self.pipeline("parenthesized pipeline", Kind::Close)?;
                self.depth -= 1;
                Term::Pipeline(pipeline)
            }
            _ => {
                self.ahead.push(token);
                return Ok(None);
            }
        };
        let mut fields = Vec::new();
        loop {
            let next = self.next()?;
            if next.kind != Kind::Field {
                self.ahead.push(next);
                break;
            }
            if matches!(term, Term::Bool(_) | Term::Text(_) | Term::Number(_) | Term::Nil | Term::Dot) {
                return Err(self.error(next.start, format!("unexpected {} after a value", self.shown(next))));
            }
            fields.push(self.name(next));
        }
        let term = match term {
            term if fields.is_empty() => term,
            Term::Field(mut names) => {
                names.append(&mut fields);
                Term::Field(names)
            }
            Term::Variable(name, _) => Term::Variable(name, fields),
            term => Term::Chain(Box::new(Operand { at, term }), fields),
        };
        Ok(Some(Operand { at, term }))
    }

    fn function(&self, name: &[u8], token: Token) -> Result<&'static Function, TemplateError> {
        let name = String::from_utf8_lossy(name);
        functions::find(&name).ok_or_else(|| {
            let near: Vec<String> = meant(&name, functions::names()).into_iter().map(ToOwned::to_owned).collect();
            let hint = match functions::unavailable(&name) {
                Some(why) => format!(": {why}"),
                None => did_you_mean(&near),
            };
            self.error(token.start, format!("there is no function {name:?}{hint}"))
        })
    }
}

fn did_you_mean(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(" or ")) }
}
