//! Cuts a template into texts and the words of its actions.

use std::sync::atomic::{AtomicBool, Ordering};

use super::text::first;
use super::{MOST_PARTS, TemplateError};

/// One word of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    LeftDelim,
    RightDelim,
    Space,
    /// A name: of a function, a keyword, `true`, `false`, `nil`.
    Word,
    /// `.name`, the point included.
    Field,
    /// `$name` or `$`.
    Variable,
    /// A point alone.
    Dot,
    Number,
    Char,
    Quoted,
    Raw,
    Pipe,
    Open,
    Close,
    /// `:=`
    Declare,
    /// `=`
    Assign,
    /// A character that only some places allow, as the comma.
    Other,
    End,
}

/// A word and where it stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Reads one word after the other.
pub(super) struct Lexer<'a> {
    source: &'a [u8],
    left: &'a [u8],
    right: &'a [u8],
    cancel: &'a AtomicBool,
    at: usize,
    inside: bool,
    /// Where the action began that is read.
    action: usize,
    parentheses: usize,
    parts: usize,
    /// Where the next text begins: white space after a trimming delimiter is jumped over.
    trim: bool,
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// Whether white space and a minus follow, which with the delimiter after them trim what comes next.
fn trims_right(rest: &[u8]) -> bool {
    matches!(rest, [space, b'-', ..] if is_space(*space))
}

fn in_name(c: char) -> bool {
    c == '_' || c.is_alphabetic() || c.is_numeric()
}

impl<'a> Lexer<'a> {
    pub(super) fn new(source: &'a [u8], left: &'a str, right: &'a str, cancel: &'a AtomicBool) -> Lexer<'a> {
        let or = |given: &'a str, usual: &'a str| if given.is_empty() { usual.as_bytes() } else { given.as_bytes() };
        let (left, right) = (or(left, "{{"), or(right, "}}"));
        Lexer { source, left, right, cancel, at: 0, inside: false, action: 0, parentheses: 0, parts: 0, trim: false }
    }

    fn error(&self, at: usize, message: impl Into<String>) -> TemplateError {
        TemplateError::new(self.source, at, message)
    }

    fn rest(&self) -> &'a [u8] {
        &self.source[self.at..]
    }

    /// Of the bytes from `start` on, up to where it reads on.
    fn token(&mut self, kind: Kind, start: usize) -> Token {
        Token { kind, start, end: self.at }
    }

    /// The next word.
    ///
    /// # Errors
    /// For what is not a word, for too many, and when it is given up.
    pub(super) fn next(&mut self) -> Result<Token, TemplateError> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(self.error(self.at, "it was given up, because the task is stopped"));
        }
        self.parts += 1;
        if self.parts > MOST_PARTS {
            return Err(self.error(self.at, format!("it has more than {MOST_PARTS} texts, actions and words")));
        }
        if self.inside { self.word() } else { self.text() }
    }

    /// A text, or the delimiter after it. Comments are jumped over.
    fn text(&mut self) -> Result<Token, TemplateError> {
        loop {
            if std::mem::take(&mut self.trim) {
                self.at += self.rest().iter().take_while(|b| is_space(**b)).count();
            }
            let start = self.at;
            let Some(found) = memchr::memmem::find(self.rest(), self.left) else {
                self.at = self.source.len();
                let kind = if start == self.at { Kind::End } else { Kind::Text };
                return Ok(self.token(kind, start));
            };
            let delimiter = start + found;
            let after = delimiter + self.left.len();
            let trims = matches!(&self.source[after..], [b'-', space, ..] if is_space(*space));
            let mut end = delimiter;
            while trims && end > start && is_space(self.source[end - 1]) {
                end -= 1;
            }
            if end > start {
                // The delimiter is found again from here.
                self.at = delimiter;
                return Ok(Token { kind: Kind::Text, start, end });
            }
            self.at = after + if trims { 2 } else { 0 };
            if self.rest().starts_with(b"/*") {
                self.comment(delimiter)?;
                continue;
            }
            (self.inside, self.action, self.parentheses) = (true, delimiter, 0);
            return Ok(self.token(Kind::LeftDelim, delimiter));
        }
    }

    fn comment(&mut self, start: usize) -> Result<(), TemplateError> {
        let Some(length) = memchr::memmem::find(self.rest(), b"*/") else {
            return Err(self.error(start, "the comment is not closed; it ends with */ and the delimiter right after"));
        };
        self.at += length + 2;
        if let Some(width) = self.right_delimiter() {
            self.at += width;
            Ok(())
        } else {
            let what = "the comment ends before the closing delimiter, which has to follow */ at once";
            Err(self.error(start, what))
        }
    }

    /// The width of the closing delimiter, if it follows; notes whether it trims.
    fn right_delimiter(&mut self) -> Option<usize> {
        let rest = self.rest();
        let trims = trims_right(rest) && rest[2..].starts_with(self.right);
        self.trim = trims;
        if trims { Some(2 + self.right.len()) } else { rest.starts_with(self.right).then_some(self.right.len()) }
    }

    fn word(&mut self) -> Result<Token, TemplateError> {
        let start = self.at;
        if let Some(width) = self.right_delimiter() {
            if self.parentheses > 0 {
                return Err(self.error(start, "a parenthesis is not closed"));
            }
            self.at += width;
            self.inside = false;
            return Ok(self.token(Kind::RightDelim, start));
        }
        let Some(rune) = first(self.rest()) else {
            return Err(self.error(start, format!("the action that begins in line {} is not closed", self.began())));
        };
        self.at += rune.width;
        let kind = match rune.or_replacement() {
            ' ' | '\t' | '\r' | '\n' => {
                while self.rest().first().is_some_and(|b| is_space(*b)) {
                    // Of `  -}}` the last space belongs to the delimiter.
                    if trims_right(self.rest()) && self.rest()[2..].starts_with(self.right) {
                        break;
                    }
                    self.at += 1;
                }
                Kind::Space
            }
            '|' => Kind::Pipe,
            '=' => Kind::Assign,
            ':' if self.rest().first() == Some(&b'=') => {
                self.at += 1;
                Kind::Declare
            }
            ':' => return Err(self.error(start, "expected :=")),
            '"' => self.quoted(start, b'"', "string").map(|()| Kind::Quoted)?,
            '\'' => self.quoted(start, b'\'', "character").map(|()| Kind::Char)?,
            '`' => {
                let end = memchr::memchr(b'`', self.rest());
                self.at += end.ok_or_else(|| self.error(start, "the raw string is not closed"))? + 1;
                Kind::Raw
            }
            '(' => {
                self.parentheses += 1;
                Kind::Open
            }
            ')' => {
                if self.parentheses == 0 {
                    return Err(self.error(start, "there is no parenthesis that ) closes"));
                }
                self.parentheses -= 1;
                Kind::Close
            }
            '$' => self.name(Kind::Variable, start)?,
            '.' if !self.rest().first().is_some_and(u8::is_ascii_digit) => {
                let field = self.rest().first().is_some_and(|b| !is_space(*b));
                let kind = self.name(Kind::Field, start)?;
                if field && self.at > start + 1 { kind } else { Kind::Dot }
            }
            '.' | '+' | '-' | '0'..='9' => {
                self.at = start;
                self.number(start)?;
                Kind::Number
            }
            c if in_name(c) => self.name(Kind::Word, start)?,
            c if c.is_ascii_graphic() => Kind::Other,
            c => return Err(self.error(start, format!("the character {c:?} belongs to no action"))),
        };
        Ok(self.token(kind, start))
    }

    /// The line in which the action began, for messages about its end.
    fn began(&self) -> u32 {
        TemplateError::new(self.source, self.action, "").line
    }

    /// The rest of a name, after which only some characters may stand.
    fn name(&mut self, kind: Kind, start: usize) -> Result<Kind, TemplateError> {
        while let Some(rune) = first(self.rest()).filter(|r| r.char.is_some_and(in_name)) {
            self.at += rune.width;
        }
        let next = first(self.rest()).map(super::text::Rune::or_replacement);
        match next {
            None | Some(' ' | '\t' | '\r' | '\n' | '.' | ',' | '|' | ':' | ')' | '(') => Ok(kind),
            _ if self.rest().starts_with(self.right) => Ok(kind),
            Some(c) => {
                let name = String::from_utf8_lossy(&self.source[start..self.at]).into_owned();
                Err(self.error(self.at, format!("the character {c:?} cannot follow {name}")))
            }
        }
    }

    fn quoted(&mut self, start: usize, quote: u8, what: &str) -> Result<(), TemplateError> {
        loop {
            match self.rest() {
                [] | [b'\n', ..] | [b'\\'] | [b'\\', b'\n', ..] => {
                    return Err(self.error(start, format!("the {what} is not closed in its line")));
                }
                [b'\\', _, ..] => self.at += 2,
                [byte, ..] => {
                    self.at += 1;
                    if *byte == quote {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// A number, as far as its characters go; whether it is one is seen when it is read.
    fn number(&mut self, start: usize) -> Result<(), TemplateError> {
        let some = |lexer: &mut Lexer<'_>, allowed: &[u8]| {
            lexer.at += lexer.rest().iter().take_while(|b| allowed.contains(b)).count();
        };
        let one = |lexer: &mut Lexer<'_>, allowed: &[u8]| {
            let found = lexer.rest().first().is_some_and(|b| allowed.contains(b));
            lexer.at += usize::from(found);
            found
        };
        one(self, b"+-");
        let mut digits: &[u8] = b"0123456789_";
        if one(self, b"0") {
            if one(self, b"xX") {
                digits = b"0123456789abcdefABCDEF_";
            } else if one(self, b"oO") {
                digits = b"01234567_";
            } else if one(self, b"bB") {
                digits = b"01_";
            }
        }
        some(self, digits);
        if one(self, b".") {
            some(self, digits);
        }
        if digits.len() == 11 && one(self, b"eE") {
            one(self, b"+-");
            some(self, b"0123456789_");
        }
        if digits.len() == 23 && one(self, b"pP") {
            one(self, b"+-");
            some(self, b"0123456789_");
        }
        one(self, b"i");
        if first(self.rest()).and_then(|r| r.char).is_some_and(in_name) {
            return Err(self.error(start, "this is not a number"));
        }
        Ok(())
    }
}
