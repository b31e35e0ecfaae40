//! JSON with the place of every key and value.

use super::budget;
use super::diag::{Diagnostic, Result, Source};
use super::value::{Number, Value};
use crate::spec::collections::BTreeSet;
use crate::spec::{IntoMap as _, Pos};

/// Deepest nesting, the same as of native syntax.
const MAX_DEPTH: usize = 64;

/// A value with the place where it starts.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub pos: Pos,
    pub kind: NodeKind,
}

#[derive(Debug, Clone)]
pub(super) enum NodeKind {
    /// Anything but a list or an object.
    Scalar(Value),
    List(Vec<Node>),
    /// Members in the order of the file.
    Object(Vec<Member>),
}

#[derive(Debug, Clone)]
pub(super) struct Member {
    pub name: String,
    pub pos: Pos,
    pub node: Node,
}

impl Node {
    /// As a value, with strings taken literally.
    pub fn into_value(self) -> Value {
        match self.kind {
            NodeKind::Scalar(value) => value,
            NodeKind::List(items) => Value::List(items.into_iter().map(Node::into_value).collect()),
            NodeKind::Object(members) => {
                Value::Object(members.into_iter().map(|m| (m.name, m.node.into_value())).into_map())
            }
        }
    }
}

/// Reads one JSON text.
pub(super) fn read(source: &Source<'_>) -> Result<Node> {
    let mut reader = Reader { source, at: 0, depth: 0, hidden: 0 };
    let node = reader.value()?;
    reader.blanks();
    if reader.at < source.text.len() {
        return Err(reader.error("expected the end of the file"));
    }
    Ok(node)
}

struct Reader<'s, 't> {
    source: &'s Source<'t>,
    at: usize,
    depth: usize,
    /// Marks of syntax in strings that were written with escapes, so that nobody has counted them.
    hidden: usize,
}

impl Reader<'_, '_> {
    fn error(&self, what: &str) -> Diagnostic {
        Diagnostic::new(&self.source.pos(self.at), format!("syntax error: {what}"))
    }

    fn peek(&self) -> Option<u8> {
        self.source.text.as_bytes().get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, wanted: u8) -> bool {
        self.blanks();
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self) -> Result<Node> {
        self.blanks();
        let pos = self.source.pos(self.at);
        let kind = match self.peek() {
            Some(b'{') => self.nested(Reader::object)?,
            Some(b'[') => self.nested(Reader::list)?,
            Some(b'"') => NodeKind::Scalar(Value::String(self.string()?)),
            Some(b'-' | b'0'..=b'9') => NodeKind::Scalar(Value::Number(self.number()?)),
            _ => NodeKind::Scalar(self.word()?),
        };
        Ok(Node { pos, kind })
    }

    fn nested(&mut self, inner: fn(&mut Self) -> Result<NodeKind>) -> Result<NodeKind> {
        if self.depth == MAX_DEPTH {
            return Err(self.error(&format!("more than {MAX_DEPTH} nested levels")));
        }
        self.depth += 1;
        self.at += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    fn object(&mut self) -> Result<NodeKind> {
        let mut members = Vec::new();
        let mut names = BTreeSet::new();
        if self.take(b'}') {
            return Ok(NodeKind::Object(members));
        }
        loop {
            self.blanks();
            let pos = self.source.pos(self.at);
            if self.peek() != Some(b'"') {
                return Err(self.error("expected a key in double quotes"));
            }
            let name = self.string()?;
            if !names.insert(name.clone()) {
                return Err(Diagnostic::new(&pos, format!("duplicate key \"{name}\"; remove one of the two")));
            }
            if !self.take(b':') {
                return Err(self.error("expected \":\" after the key"));
            }
            members.push(Member { name, pos, node: self.value()? });
            if self.take(b'}') {
                return Ok(NodeKind::Object(members));
            }
            if !self.take(b',') {
                return Err(self.error("expected \",\" or \"}\""));
            }
        }
    }

    fn list(&mut self) -> Result<NodeKind> {
        let mut items = Vec::new();
        if self.take(b']') {
            return Ok(NodeKind::List(items));
        }
        loop {
            items.push(self.value()?);
            if self.take(b']') {
                return Ok(NodeKind::List(items));
            }
            if !self.take(b',') {
                return Err(self.error("expected \",\" or \"]\""));
            }
        }
    }

    fn word(&mut self) -> Result<Value> {
        for (word, value) in [("true", Value::Bool(true)), ("false", Value::Bool(false)), ("null", Value::Null)] {
            if self.source.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.error("expected a value"))
    }

    fn number(&mut self) -> Result<Number> {
        let rest = &self.source.text[self.at..];
        let end = rest.find(|c: char| !matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E')).unwrap_or(rest.len());
        let number = Number::parse(&rest[..end]).ok_or_else(|| self.error("invalid number"))?;
        self.at += end;
        Ok(number)
    }

    /// Finds the closing quote and leaves escapes to the JSON library.
    fn string(&mut self) -> Result<String> {
        let bytes = self.source.text.as_bytes();
        let mut end = self.at + 1;
        loop {
            match bytes.get(end) {
                Some(b'"') => break,
                Some(b'\\') => end += 2,
                Some(b'\n') | None => return Err(self.error("this string is not closed")),
                Some(_) => end += 1,
            }
        }
        let quoted = self.source.text.get(self.at..=end).unwrap_or_default();
        let string: String =
            serde_json::from_str(quoted).map_err(|_| self.error("invalid escape or character in this string"))?;
        if quoted.contains('\\') {
            self.hidden = self.hidden.saturating_add(budget::marks(&string));
            if self.hidden > budget::MOST_MARKS {
                let most = budget::MOST_MARKS;
                return Err(self.error(&format!("more than {most} expressions in strings with escapes; split the job")));
            }
        }
        self.at = end + 1;
        Ok(string)
    }
}
