//! The part of consul-template's language that needs no server: text, `env` and friends, `printf`, conditions.
//!
//! Anything else is refused by name before the task starts: a template that silently rendered to something else than on
//! a Nomad cluster would be worse than none.

use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

/// Deepest nesting of conditions, and of parentheses.
const DEEPEST: usize = 100;
/// Most texts, actions and words of one template: what it is cut into takes far more room than the template.
const MOST_PARTS: usize = 400_000;
/// Most bytes that a template renders to.
const MOST_RENDERED: usize = 16 << 20;
/// Most bytes of the values that it makes on the way.
const MOST_MADE: usize = 64 << 20;

/// Why a template cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct TemplateError {
    /// Line within the template's data, from 1.
    pub line: u32,
    /// What is wrong there.
    pub message: String,
}

const FUNCTIONS: &[&str] = &[
    "and",
    "env",
    "envOrDefault",
    "eq",
    "mustEnv",
    "ne",
    "not",
    "or",
    "print",
    "printf",
    "toLower",
    "toUpper",
    "trimSpace",
];

/// Renders `data` with the delimiters `left` and `right`; `env` looks up an environment variable, and `cancel` gives it up.
///
/// # Errors
/// [`TemplateError`] for a syntax error, for everything outside the subset, for what is too large, and when it is given up.
pub fn render(
    data: &str,
    left: &str,
    right: &str,
    env: &dyn Fn(&str) -> Option<String>,
    cancel: &AtomicBool,
) -> Result<String, TemplateError> {
    let pieces = split(data, left, right, cancel)?;
    let mut parser = Parser { pieces: pieces.into_iter().peekable() };
    let (nodes, end) = parser.block(0)?;
    if let Some((line, word)) = end {
        return Err(error(line, format!("unexpected {{{{{word}}}}}")));
    }
    let mut out = String::new();
    Work { env, cancel, made: Cell::new(0) }.execute(&nodes, &mut out)?;
    Ok(out)
}

fn go_on(cancel: &AtomicBool, line: u32) -> Result<(), TemplateError> {
    if cancel.load(Ordering::Relaxed) {
        Err(error(line, "it was given up, because the task is stopped"))
    } else {
        Ok(())
    }
}

fn error(line: u32, message: impl Into<String>) -> TemplateError {
    TemplateError { line, message: message.into() }
}

#[derive(Debug)]
enum Piece {
    Text(String),
    Action(u32, Vec<Token>),
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Str(String),
    Int(i64),
    Pipe,
    Open,
    Close,
}

/// Cuts `data` at its delimiters, drops comments and trims where `{{-` and `-}}` say so.
fn split(data: &str, left: &str, right: &str, cancel: &AtomicBool) -> Result<Vec<Piece>, TemplateError> {
    let space = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
    let mut pieces = Vec::new();
    let mut parts = 0;
    let (mut at, mut trim_start) = (0, false);
    // The line where `counted` stands: each is counted once.
    let (mut line, mut counted) = (1u32, 0);
    loop {
        go_on(cancel, line)?;
        let rest = &data[at..];
        let (text, action) = match rest.find(left) {
            Some(offset) => (&rest[..offset], Some(at + offset)),
            None => (rest, None),
        };
        let text = if trim_start { text.trim_start_matches(space) } else { text };
        let Some(action) = action else {
            pieces.push(Piece::Text(text.to_owned()));
            return Ok(pieces);
        };
        let newlines = data[counted..action].matches('\n').count();
        line = line.saturating_add(u32::try_from(newlines).unwrap_or(u32::MAX));
        counted = action;
        let mut inner = &data[action + left.len()..];
        let trims_before = inner.starts_with('-') && inner[1..].starts_with(space);
        if trims_before {
            inner = &inner[1..];
        }
        let text = if trims_before { text.trim_end_matches(space) } else { text };
        pieces.push(Piece::Text(text.to_owned()));

        let body = inner.trim_start_matches(space);
        let after = if let Some(comment) = body.strip_prefix("/*") {
            let end = comment.find("*/").ok_or_else(|| error(line, "unclosed comment"))?;
            &comment[end + 2..]
        } else {
            let (tokens, after) = tokens(body, right, line, cancel)?;
            parts += tokens.len();
            pieces.push(Piece::Action(line, tokens));
            after
        };
        // The text before it, and itself.
        parts += 2;
        if parts > MOST_PARTS {
            return Err(error(line, format!("it has more than {MOST_PARTS} texts, actions and words")));
        }
        let trimmed = after.trim_start_matches(space);
        trim_start = after.len() > trimmed.len() && trimmed.starts_with(&format!("-{right}"));
        let after = if trim_start { &trimmed[1..] } else { trimmed };
        let after = after.strip_prefix(right).ok_or_else(|| error(line, format!("expected {right}")))?;
        at = data.len() - after.len();
    }
}

/// The tokens up to the right delimiter, and the text from the white space before it on.
fn tokens<'a>(
    body: &'a str,
    right: &str,
    line: u32,
    cancel: &AtomicBool,
) -> Result<(Vec<Token>, &'a str), TemplateError> {
    let mut tokens = Vec::new();
    let mut rest = body;
    let trimming = format!("-{right}");
    loop {
        go_on(cancel, line)?;
        if tokens.len() > MOST_PARTS {
            return Err(error(line, format!("the action has more than {MOST_PARTS} words")));
        }
        let next = rest.trim_start();
        let trims = next.len() < rest.len() && next.starts_with(&trimming);
        if next.starts_with(right) || trims {
            return Ok((tokens, rest));
        }
        let Some(first) = next.chars().next() else { return Err(error(line, "unclosed action")) };
        let (token, length) = match first {
            '|' => (Token::Pipe, 1),
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            '"' => quoted(next, line)?,
            '`' => {
                let end = next[1..].find('`').ok_or_else(|| error(line, "unclosed raw string"))?;
                (Token::Str(next[1..=end].to_owned()), end + 2)
            }
            '0'..='9' | '-' => {
                let length = 1 + next[1..].find(|c: char| !c.is_ascii_digit()).unwrap_or(next.len() - 1);
                let text = &next[..length];
                (Token::Int(text.parse().map_err(|_| error(line, format!("bad number {text:?}")))?), length)
            }
            c if c.is_ascii_alphabetic() || matches!(c, '_' | '.' | '$') => {
                let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$');
                let length = next.find(|c| !word(c)).unwrap_or(next.len());
                (Token::Word(next[..length].to_owned()), length)
            }
            c => return Err(error(line, format!("unexpected {c:?} in action"))),
        };
        tokens.push(token);
        rest = &next[length..];
    }
}

fn quoted(text: &str, line: u32) -> Result<(Token, usize), TemplateError> {
    let mut value = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((Token::Str(value), at + 1)),
            '\n' => break,
            '\\' => value.push(match chars.next().map(|(_, c)| c) {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some(c @ ('"' | '\\' | '\'')) => c,
                other => {
                    let shown = other.map(String::from).unwrap_or_default();
                    return Err(error(line, format!("unknown escape \\{shown}")));
                }
            }),
            c => value.push(c),
        }
    }
    Err(error(line, "unclosed string"))
}

#[derive(Debug)]
enum Node {
    Text(String),
    Print(u32, Pipeline),
    /// `if` and each `else if` with its line, and what `else` has.
    If {
        branches: Vec<(u32, Pipeline, Vec<Node>)>,
        otherwise: Vec<Node>,
    },
}

/// Commands; the value of each is the last argument of the next.
type Pipeline = Vec<Vec<Operand>>;

#[derive(Debug)]
enum Operand {
    Literal(Value),
    Function(String),
    Group(Pipeline),
}

#[derive(Debug, Clone, PartialEq)]
enum Value {
    Str(String),
    Int(i64),
    Bool(bool),
}

struct Parser<I: Iterator<Item = Piece>> {
    pieces: std::iter::Peekable<I>,
}

/// The `end`, `else` or `else if` that closes a block: its line, its word, and the condition of an `else if`.
type Closing = Option<(u32, String)>;

impl<I: Iterator<Item = Piece>> Parser<I> {
    /// Reads up to the closing word, which is left in place. `depth` counts the conditions around it.
    fn block(&mut self, depth: usize) -> Result<(Vec<Node>, Closing), TemplateError> {
        let mut nodes = Vec::new();
        loop {
            if let Some(Piece::Action(line, tokens)) = self.pieces.peek()
                && let Some(Token::Word(word)) = tokens.first()
                && matches!(word.as_str(), "end" | "else")
            {
                return Ok((nodes, Some((*line, word.clone()))));
            }
            match self.pieces.next() {
                None => return Ok((nodes, None)),
                Some(Piece::Text(text)) => nodes.push(Node::Text(text)),
                Some(Piece::Action(line, tokens)) => match tokens.first() {
                    Some(Token::Word(word)) if word == "if" => {
                        if depth == DEEPEST {
                            return Err(error(line, format!("more than {DEEPEST} conditions nest in each other")));
                        }
                        nodes.push(self.condition(line, &tokens[1..], depth + 1)?);
                    }
                    _ => nodes.push(Node::Print(line, whole_pipeline(&tokens, line)?)),
                },
            }
        }
    }

    /// One `if` with everything up to its `end`.
    fn condition(&mut self, line: u32, tokens: &[Token], depth: usize) -> Result<Node, TemplateError> {
        let mut branches = Vec::new();
        let (mut at, mut condition) = (line, whole_pipeline(tokens, line)?);
        loop {
            let (then, _) = self.block(depth)?;
            branches.push((at, condition, then));
            let Some(Piece::Action(closed, closing)) = self.pieces.next() else {
                return Err(error(at, "if without end"));
            };
            let word = |i: usize| match closing.get(i) {
                Some(Token::Word(word)) => word.as_str(),
                _ => "",
            };
            match (word(0), word(1), closing.len()) {
                ("end", _, 1) => return Ok(Node::If { branches, otherwise: Vec::new() }),
                ("else", "if", _) => (at, condition) = (closed, whole_pipeline(&closing[2..], closed)?),
                ("else", _, 1) => {
                    let (otherwise, _) = self.block(depth)?;
                    return match self.pieces.next() {
                        Some(Piece::Action(_, tokens)) if tokens == [Token::Word("end".to_owned())] => {
                            Ok(Node::If { branches, otherwise })
                        }
                        _ => Err(error(at, "if without end")),
                    };
                }
                _ => return Err(error(closed, "unexpected words after end or else")),
            }
        }
    }
}

fn whole_pipeline(tokens: &[Token], line: u32) -> Result<Pipeline, TemplateError> {
    let mut rest = tokens;
    let pipeline = pipeline(&mut rest, line, 0)?;
    if rest.is_empty() { Ok(pipeline) } else { Err(error(line, "unexpected )")) }
}

fn pipeline(tokens: &mut &[Token], line: u32, depth: usize) -> Result<Pipeline, TemplateError> {
    if depth > DEEPEST {
        return Err(error(line, format!("more than {DEEPEST} parentheses nest in each other")));
    }
    let mut commands = vec![Vec::new()];
    while let Some((first, rest)) = tokens.split_first() {
        if *first == Token::Close {
            break;
        }
        *tokens = rest;
        let operand = match first {
            Token::Pipe => {
                commands.push(Vec::new());
                continue;
            }
            Token::Open => {
                let group = pipeline(tokens, line, depth + 1)?;
                let Some((Token::Close, rest)) = tokens.split_first() else { return Err(error(line, "missing )")) };
                *tokens = rest;
                Operand::Group(group)
            }
            Token::Str(text) => Operand::Literal(Value::Str(text.clone())),
            Token::Int(number) => Operand::Literal(Value::Int(*number)),
            Token::Word(word) if word == "true" || word == "false" => Operand::Literal(Value::Bool(word == "true")),
            Token::Word(word) if FUNCTIONS.contains(&word.as_str()) => Operand::Function(word.clone()),
            Token::Word(word) => return Err(unsupported(word, line)),
            Token::Close => unreachable!("handled above"),
        };
        if let Some(command) = commands.last_mut() {
            command.push(operand);
        }
    }
    if commands.iter().any(Vec::is_empty) { Err(error(line, "empty action or pipe")) } else { Ok(commands) }
}

fn unsupported(word: &str, line: u32) -> TemplateError {
    let kind = match word {
        w if w.starts_with(['.', '$']) => "data and variables",
        "range" | "with" | "define" | "template" | "block" | "break" | "continue" => "keyword",
        _ => "function",
    };
    let known = FUNCTIONS.join(", ");
    error(line, format!("{kind} {word:?} cannot be used without a Nomad server; if, else, end and {known} can"))
}

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What a template is rendered with.
struct Work<'a> {
    env: Lookup<'a>,
    cancel: &'a AtomicBool,
    /// Bytes of all values so far.
    made: Cell<usize>,
}

impl Work<'_> {
    fn execute(&self, nodes: &[Node], out: &mut String) -> Result<(), TemplateError> {
        let add = |out: &mut String, line: u32, text: &str| {
            if out.len() + text.len() > MOST_RENDERED {
                return Err(error(line, format!("it renders to more than {} MiB", MOST_RENDERED >> 20)));
            }
            out.push_str(text);
            Ok(())
        };
        let mut at = 1;
        for node in nodes {
            go_on(self.cancel, at)?;
            match node {
                Node::Text(text) => add(out, at, text)?,
                Node::Print(line, pipeline) => {
                    at = *line;
                    add(out, at, &text_of(&self.evaluate(pipeline, at)?))?;
                }
                Node::If { branches, otherwise } => {
                    let mut chosen = otherwise;
                    for (line, condition, then) in branches {
                        at = *line;
                        if truth(&self.evaluate(condition, at)?) {
                            chosen = then;
                            break;
                        }
                    }
                    self.execute(chosen, out)?;
                }
            }
        }
        Ok(())
    }

    /// Counts a value before it is handed on.
    fn made(&self, value: Value, line: u32) -> Result<Value, TemplateError> {
        let size = if let Value::Str(text) = &value { text.len() } else { 0 };
        self.made.set(self.made.get().saturating_add(size));
        if self.made.get() > MOST_MADE {
            return Err(error(line, format!("its values have more than {} MiB", MOST_MADE >> 20)));
        }
        Ok(value)
    }

    fn evaluate(&self, pipeline: &Pipeline, line: u32) -> Result<Value, TemplateError> {
        let mut piped = None;
        for command in pipeline {
            let value = |operand: &Operand| match operand {
                Operand::Literal(value) => self.made(value.clone(), line),
                Operand::Group(group) => self.evaluate(group, line),
                Operand::Function(name) => self.call(name, &[], line),
            };
            let (first, rest) = command.split_first().ok_or_else(|| error(line, "empty command"))?;
            let result = match first {
                Operand::Function(name) => {
                    let mut arguments = rest.iter().map(value).collect::<Result<Vec<_>, _>>()?;
                    arguments.extend(piped.take());
                    self.call(name, &arguments, line)?
                }
                operand if rest.is_empty() && piped.is_none() => value(operand)?,
                _ => return Err(error(line, "a value is not a function and takes no arguments")),
            };
            piped = Some(result);
        }
        piped.ok_or_else(|| error(line, "empty action"))
    }

    fn call(&self, name: &str, arguments: &[Value], line: u32) -> Result<Value, TemplateError> {
        self.made(call(name, arguments, self.env, line)?, line)
    }
}

fn call(name: &str, arguments: &[Value], env: Lookup<'_>, line: u32) -> Result<Value, TemplateError> {
    let count = |wanted: std::ops::RangeInclusive<usize>| {
        let given = arguments.len();
        if wanted.contains(&given) { Ok(()) } else { Err(error(line, format!("{name}: {given} arguments"))) }
    };
    let string = |i: usize| match arguments.get(i) {
        Some(Value::Str(text)) => Ok(text.as_str()),
        _ => Err(error(line, format!("{name}: argument {} is not a string", i + 1))),
    };
    match name {
        "env" => {
            count(1..=1)?;
            Ok(Value::Str(env(string(0)?).unwrap_or_default()))
        }
        "envOrDefault" => {
            count(2..=2)?;
            let value = env(string(0)?).filter(|v| !v.is_empty());
            Ok(Value::Str(value.map_or_else(|| string(1).map(str::to_owned), Ok)?))
        }
        "mustEnv" => {
            count(1..=1)?;
            let key = string(0)?;
            env(key).map(Value::Str).ok_or_else(|| error(line, format!("mustEnv: {key} is not set")))
        }
        "toLower" | "toUpper" | "trimSpace" => {
            count(1..=1)?;
            let text = string(0)?;
            Ok(Value::Str(match name {
                "toLower" => text.to_lowercase(),
                "toUpper" => text.to_uppercase(),
                _ => text.trim().to_owned(),
            }))
        }
        "not" => {
            count(1..=1)?;
            Ok(Value::Bool(!truth(&arguments[0])))
        }
        "and" | "or" => {
            count(1..=usize::MAX)?;
            let decides = |v: &&Value| truth(v) == (name == "or");
            Ok(arguments.iter().find(decides).unwrap_or(&arguments[arguments.len() - 1]).clone())
        }
        "eq" => {
            count(2..=usize::MAX)?;
            Ok(Value::Bool(arguments[1..].contains(&arguments[0])))
        }
        "ne" => {
            count(2..=2)?;
            Ok(Value::Bool(arguments[0] != arguments[1]))
        }
        "print" => Ok(Value::Str(arguments.iter().map(text_of).collect())),
        _ => {
            count(1..=usize::MAX)?;
            printf(string(0)?, &arguments[1..], line).map(Value::Str)
        }
    }
}

/// Most bytes that %q makes of one: `\u{7f}`.
const LONGEST_ESCAPE: usize = 6;

fn printf(format: &str, arguments: &[Value], line: u32) -> Result<String, TemplateError> {
    let mut out = String::new();
    let mut rest = arguments.iter();
    let mut chars = format.chars();
    let is_too_large = |out: &String| out.len() > MOST_RENDERED;
    while let Some(c) = chars.next() {
        if is_too_large(&out) {
            return Err(error(line, format!("printf: the result has more than {} MiB", MOST_RENDERED >> 20)));
        }
        if c != '%' {
            out.push(c);
            continue;
        }
        let verb = chars.next().ok_or_else(|| error(line, "printf: format ends in %"))?;
        if verb == '%' {
            out.push('%');
            continue;
        }
        let value = rest.next().ok_or_else(|| error(line, format!("printf: no argument for %{verb}")))?;
        match (verb, value) {
            ('v', value) => out.push_str(&text_of(value)),
            ('s', Value::Str(text)) => out.push_str(text),
            ('q', Value::Str(text)) if text.len() <= MOST_RENDERED / LONGEST_ESCAPE => {
                let _ = write!(out, "{text:?}");
            }
            ('q', Value::Str(text)) => {
                let what =
                    format!("printf: %q takes at most {} bytes, not {}", MOST_RENDERED / LONGEST_ESCAPE, text.len());
                return Err(error(line, what));
            }
            ('d', Value::Int(number)) => {
                let _ = write!(out, "{number}");
            }
            ('t', Value::Bool(value)) => {
                let _ = write!(out, "{value}");
            }
            _ => return Err(error(line, format!("printf: %{verb} does not fit {}", text_of(value)))),
        }
    }
    if rest.next().is_some() { Err(error(line, "printf: too many arguments")) } else { Ok(out) }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::Str(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        Value::Bool(value) => value.to_string(),
    }
}

fn truth(value: &Value) -> bool {
    match value {
        Value::Str(text) => !text.is_empty(),
        Value::Int(number) => *number != 0,
        Value::Bool(value) => *value,
    }
}

/// Refuses a rendered `env = true` template that has more variables than a task may have.
///
/// # Errors
/// [`TemplateError`] when it has more than `most` bytes.
pub fn check_env(text: &str, most: usize) -> Result<(), TemplateError> {
    if text.len() > most {
        return Err(error(1, format!("as environment it may have {} KiB", most / 1024)));
    }
    Ok(())
}

/// Reads the lines of a rendered `env = true` template: `KEY=value`, optional `export`, comments, quotes.
///
/// # Errors
/// [`TemplateError`] with the line that cannot be read.
pub fn parse_env(text: &str) -> Result<Vec<(String, String)>, TemplateError> {
    let mut pairs = Vec::new();
    for (number, raw) in (1u32..).zip(text.lines()) {
        let line = raw.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").map_or(line, str::trim_start);
        let (key, value) = line.split_once('=').ok_or_else(|| error(number, "expected KEY=value"))?;
        let key = key.trim_end();
        if !super::env::is_key(key) {
            return Err(error(number, format!("{key:?} is no name of an environment variable")));
        }
        pairs.push((key.to_owned(), env_value(value.trim(), number)?));
    }
    Ok(pairs)
}

fn env_value(text: &str, line: u32) -> Result<String, TemplateError> {
    let (value, rest) = if text.starts_with('"') {
        let (Token::Str(value), length) = quoted(text, line)? else { return Err(error(line, "unclosed string")) };
        (value, &text[length..])
    } else if let Some(raw) = text.strip_prefix('\'') {
        let (value, rest) = raw.split_once('\'').ok_or_else(|| error(line, "unclosed string"))?;
        (value.to_owned(), rest)
    } else {
        let end = text.find(" #").unwrap_or(text.len());
        return Ok(text[..end].trim_end().to_owned());
    };
    let rest = rest.trim_start();
    if rest.is_empty() || rest.starts_with('#') {
        Ok(value)
    } else {
        Err(error(line, "unexpected text after the closing quote"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(data: &str) -> Result<String, TemplateError> {
        let env = |key: &str| match key {
            "NAME" => Some("web".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        render(data, "{{", "}}", &env, &AtomicBool::new(false))
    }

    #[test]
    fn the_subset_renders() {
        let cases = [
            ("plain } { text\n", "plain } { text\n"),
            ("a {{ env \"NAME\" }} b", "a web b"),
            ("{{env `NAME`}}{{ \"\\\"}}\" }}", "web\"}}"),
            ("{{ printf \"%s-%d %v%%\" (env \"NAME\") 7 true }}", "web-7 true%"),
            ("{{ env \"NAME\" | printf \"<%s>\" | toUpper }}", "<WEB>"),
            ("{{ if env \"NAME\" }}yes{{ else }}no{{ end }}", "yes"),
            ("{{ if env \"EMPTY\" }}yes{{ else if eq (env \"NAME\") \"web\" }}web{{ else }}no{{ end }}", "web"),
            ("{{ if and (env \"NAME\") (not (env \"EMPTY\")) }}both{{ end }}", "both"),
            ("{{ envOrDefault \"NONE\" \"d\" }}{{ env \"NONE\" }}", "d"),
            ("a {{- /* gone */ -}} b", "ab"),
            ("a\n{{- env \"NAME\" -}}\n  b", "awebb"),
            ("x{{ -3 }}", "x-3"),
            ("ü {{/* comment with }} inside */}}ß", "ü ß"),
        ];
        for (data, expected) in cases {
            assert_eq!(rendered(data).as_deref(), Ok(expected), "{data}");
        }
        assert_eq!(
            render("{{ [[ env \"X\" ]] }}", "[[", "]]", &|_| Some("v".to_owned()), &AtomicBool::new(false)).unwrap(),
            "{{ v }}"
        );
    }

    #[test]
    fn whatever_needs_a_server_is_refused_by_name_and_line() {
        for (data, line, what) in [
            ("a\n\n{{ key \"x\" }}", 3, "function \"key\""),
            ("{{ range service \"web\" }}{{ end }}", 1, "keyword \"range\""),
            ("{{ with secret \"x\" }}{{ .Data.x }}{{ end }}", 1, "keyword \"with\""),
            ("\n{{ .Data }}", 2, "data and variables"),
            ("{{ if env \"X\" }}{{ nomadVar \"x\" }}{{ end }}", 1, "\"nomadVar\""),
            ("{{ mustEnv \"NONE\" }}", 1, "NONE is not set"),
        ] {
            let error = rendered(data).unwrap_err();
            assert_eq!(error.line, line, "{error}");
            assert!(error.message.contains(what), "{error}");
        }
    }

    #[test]
    fn broken_syntax_is_an_error_and_never_a_panic() {
        for data in [
            "{{",
            "{{ ",
            "{{ \"",
            "{{ `",
            "{{ env",
            "{{ (env \"X\" }}",
            "{{ ) }}",
            "{{ | env }}",
            "{{ }}",
            "{{ if }}",
            "{{ if true }}",
            "{{ end }}",
            "{{ else }}",
            "{{ if true }}{{ else }}",
            "{{ if true }}{{ else }}{{ else }}",
            "{{ \"a\" \"b\" }}",
            "{{ env }}",
            "{{ env 3 }}",
            "{{ printf \"%\" }}",
            "{{ printf \"%d\" \"x\" }}",
            "{{ printf \"%s\" }}",
            "{{ \"\\x\" }}",
            "{{/* open",
            "{{ /* c */ x }}",
            "{{ 99999999999999999999 }}",
            "{{ - }}",
            "{{ if true }}{{ end now }}",
            "{{ ä }}",
        ] {
            assert!(rendered(data).is_err(), "{data}");
        }
    }

    #[test]
    fn nesting_is_limited_and_chains_are_not() {
        let nested = |n: usize| "{{if true}}".repeat(n) + "x" + &"{{end}}".repeat(n);
        assert_eq!(rendered(&nested(DEEPEST)).as_deref(), Ok("x"));
        for n in [DEEPEST + 1, 30_000] {
            assert!(rendered(&nested(n)).unwrap_err().message.contains("conditions nest"), "{n}");
        }
        let parentheses = |n: usize| format!("{{{{ {}true{} }}}}", "(".repeat(n), ")".repeat(n));
        assert_eq!(rendered(&parentheses(DEEPEST)).as_deref(), Ok("true"));
        assert!(rendered(&parentheses(100_000)).unwrap_err().message.contains("parentheses nest"));
        let chain = "{{if false}}a".to_owned() + &"{{else if false}}b".repeat(50_000) + "{{else}}c{{end}}";
        assert_eq!(rendered(&chain).as_deref(), Ok("c"));
        let unclosed = "{{if false}}a".to_owned() + &"{{else if false}}b".repeat(50_000);
        assert!(rendered(&unclosed).is_err());
    }

    /// By their number, not by its square: each line is counted once.
    #[test]
    fn many_actions_take_time_by_their_number() {
        let data = "line {{ env \"NAME\" }}\n".repeat(50_000);
        let began = std::time::Instant::now();
        assert_eq!(rendered(&data).unwrap().len(), 50_000 * "line web\n".len());
        assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
        assert_eq!(rendered(&(data + "{{ key }}")).unwrap_err().line, 50_001);
    }

    #[test]
    fn what_it_renders_to_is_limited_and_it_can_be_given_up() {
        let large = |_: &str| Some("x".repeat(1 << 20));
        let render = |data: &str, cancel: bool| render(data, "{{", "}}", &large, &AtomicBool::new(cancel));
        let error = render(&"{{ env \"A\" }}".repeat(17), false).unwrap_err();
        assert!(error.message.contains("renders to more than 16 MiB"), "{error}");
        let error = render(&"{{ if eq (env \"A\") (env \"B\") }}{{ end }}".repeat(40), false).unwrap_err();
        assert!(error.message.contains("values have more than 64 MiB"), "{error}");
        assert!(render("text", true).unwrap_err().message.contains("given up"));
    }

    #[test]
    fn what_it_is_cut_into_is_limited() {
        for data in ["{{1}}".repeat(200_000), format!("{{{{ print {}}}}}", "1 ".repeat(500_000))] {
            let error = rendered(&data).unwrap_err();
            assert!(error.message.contains("more than 400000"), "{error}");
        }
        let large = |_: &str| Some("\u{7f}".repeat(2 << 20));
        let render = |data: &str| render(data, "{{", "}}", &large, &AtomicBool::new(false));
        assert_eq!(render("{{ printf \"%q\" (env \"A\") }}").unwrap().len(), (12 << 20) + 2);
        let error = render("{{ printf \"%q%q%q%q\" (env \"A\") (env \"A\") (env \"A\") (env \"A\") }}").unwrap_err();
        assert!(error.message.contains("result has more than 16 MiB"), "{error}");
        let error = render("{{ printf \"%q\" (print (env \"A\") (env \"A\")) }}").unwrap_err();
        assert!(error.message.contains("%q takes at most"), "{error}");
    }

    #[test]
    fn env_files_are_read_line_by_line() {
        let text = "# c\n\nA=1\nexport B = two words # tail\nC=\"x\\ny # no\" # tail\nD='a \"b\"'\nE=\nF=a=b#c\r\n";
        let pairs = parse_env(text).unwrap();
        let expected =
            [("A", "1"), ("B", "two words"), ("C", "x\ny # no"), ("D", "a \"b\""), ("E", ""), ("F", "a=b#c")];
        assert_eq!(pairs, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        for (text, line) in [("A=1\nnope", 2), ("1A=x", 1), ("A=\"x", 1), ("A='x", 1), ("A=\"x\"y", 1), ("=x", 1)] {
            assert_eq!(parse_env(text).unwrap_err().line, line, "{text}");
        }
    }
}
