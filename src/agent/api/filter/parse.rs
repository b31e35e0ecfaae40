//! Parses an expression: one function per grammar rule, each of which consumes its match, or restores the position if it does
//! not match.

use super::{Expression, FilterError, Names, Test};

/// Longest expression, in bytes.
const LONGEST: usize = 16 * 1024;
/// How deep parentheses and `not`s may be.
const DEEPEST: usize = 100;
/// Most memory that a regular expression may take, in bytes.
const REGEX: usize = 1 << 20;
/// Regular expressions in one filter.
const REGEXES: usize = 8;

pub(super) fn parse(text: &str) -> Result<Expression, FilterError> {
    let mut parser = Parser { text, at: 0, furthest: 0, expected: "an expression".to_owned(), depth: 0, regexes: 0 };
    if text.len() > LONGEST {
        parser.expected = format!("at most {LONGEST} bytes");
        return Err(parser.error());
    }
    parser.spaces();
    let read = parser.or();
    parser.spaces();
    match read {
        Some(expression) if parser.at == text.len() => Ok(expression),
        _ => Err(parser.error()),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// End of the furthest attempt, which error messages refer to.
    furthest: usize,
    expected: String,
    depth: usize,
    /// Number of regular expressions compiled so far.
    regexes: usize,
}

/// What joins several; one alone is itself.
fn one_of(mut all: Vec<Expression>, join: fn(Vec<Expression>) -> Expression) -> Expression {
    match all.pop() {
        Some(only) if all.is_empty() => only,
        last => {
            all.extend(last);
            join(all)
        }
    }
}

impl Parser<'_> {
    fn error(&self) -> FilterError {
        FilterError::Syntax { at: self.furthest, why: format!("no match found, expected: {}", self.expected) }
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Records what was expected here.
    fn miss<T>(&mut self, expected: &str) -> Option<T> {
        if self.at >= self.furthest {
            self.furthest = self.at;
            expected.clone_into(&mut self.expected);
        }
        None
    }

    /// Restores the position unless all of `f` matches.
    fn all<T>(&mut self, f: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let began = self.at;
        let found = f(self);
        if found.is_none() {
            self.at = began;
        }
        found
    }

    /// White space, perhaps none.
    fn spaces(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start_matches([' ', '\t', '\r', '\n']).len();
    }

    /// White space, at least one.
    fn space(&mut self) -> Option<()> {
        let began = self.at;
        self.spaces();
        if self.at == began { self.miss("a space") } else { Some(()) }
    }

    fn text(&mut self, text: &str) -> Option<()> {
        if !self.rest().starts_with(text) {
            return self.miss(&format!("{text:?}"));
        }
        self.at += text.len();
        Some(())
    }

    /// Words with white space before each.
    fn words(&mut self, words: &[&str]) -> Option<()> {
        self.all(|p| words.iter().try_for_each(|word| p.space().and_then(|()| p.text(word))))
    }

    fn or(&mut self) -> Option<Expression> {
        let Some(first) = self.and() else { return self.each() };
        let mut all = vec![first];
        let mut last = false;
        while !last {
            let next = self.all(|p| {
                p.words(&["or"])?;
                p.space()?;
                p.and().map(|next| (next, false)).or_else(|| p.each().map(|next| (next, true)))
            });
            let Some((next, is_each)) = next else { break };
            all.push(next);
            // Nothing may follow its closing brace.
            last = is_each;
        }
        Some(one_of(all, Expression::Or))
    }

    fn and(&mut self) -> Option<Expression> {
        let mut all = vec![self.not()?];
        let next = |p: &mut Self| {
            p.words(&["and"])?;
            p.space()?;
            p.not()
        };
        while let Some(next) = self.all(next) {
            all.push(next);
        }
        Some(one_of(all, Expression::And))
    }

    fn not(&mut self) -> Option<Expression> {
        if self.depth == DEEPEST {
            return self.miss(&format!("at most {DEEPEST} levels"));
        }
        self.depth += 1;
        let negated = self.all(|p| {
            p.text("not")?;
            p.space()?;
            p.not()
        });
        let found = match negated {
            Some(Expression::Not(inner)) => Some(*inner),
            Some(inner) => Some(Expression::Not(Box::new(inner))),
            None => self.parenthesized(),
        };
        self.depth -= 1;
        found
    }

    fn parenthesized(&mut self) -> Option<Expression> {
        let grouped = self.all(|p| {
            p.text("(")?;
            p.spaces();
            let inner = p.or()?;
            p.spaces();
            p.text(")")?;
            Some(inner)
        });
        grouped.or_else(|| self.comparison())
    }

    /// `any PATH as NAMES { ... }`.
    fn each(&mut self) -> Option<Expression> {
        if self.depth == DEEPEST {
            return self.miss(&format!("at most {DEEPEST} levels"));
        }
        self.depth += 1;
        let found = self.all(|p| {
            let all = match p.text("any") {
                Some(()) => false,
                None => p.text("all").map(|()| true)?,
            };
            p.space()?;
            let path = p.selector()?;
            p.words(&["as"])?;
            p.space()?;
            let names = p.names()?;
            p.spaces();
            p.text("{")?;
            p.spaces();
            let inner = Box::new(p.or()?);
            p.spaces();
            p.text("}")?;
            Some(Expression::Each { all, path, names, inner })
        });
        self.depth -= 1;
        found
    }

    fn names(&mut self) -> Option<Names> {
        let first = match self.text("_") {
            Some(()) => None,
            None => Some(self.identifier()?),
        };
        let second = self.all(|p| {
            p.spaces();
            p.text(",")?;
            p.spaces();
            match p.text("_") {
                Some(()) => Some(None),
                None => p.identifier().map(Some),
            }
        });
        match (first, second) {
            (Some(default), None) => Some(Names { default: Some(default), ..Names::default() }),
            (index, Some(value)) if index.is_some() || value.is_some() => Some(Names { default: None, index, value }),
            _ => self.miss("a name"),
        }
    }

    fn comparison(&mut self) -> Option<Expression> {
        let by_path = self.all(|p| {
            let path = p.selector()?;
            let (negated, test) = p.operator()?;
            Some(Expression::Match { path, negated, test })
        });
        by_path.or_else(|| {
            self.all(|p| {
                let value = p.value()?;
                let negated = match p.words(&["in"]) {
                    Some(()) => false,
                    None => p.words(&["not", "in"]).map(|()| true)?,
                };
                p.space()?;
                let path = p.selector()?;
                Some(Expression::Match { path, negated, test: Test::Contains(value) })
            })
        })
    }

    /// What follows a path.
    fn operator(&mut self) -> Option<(bool, Test)> {
        for (sign, negated) in [("==", false), ("!=", true)] {
            let found = self.all(|p| {
                p.spaces();
                p.text(sign)?;
                p.spaces();
                p.value()
            });
            if let Some(value) = found {
                return Some((negated, Test::Equal(value)));
            }
        }
        for (words, negated) in [(&["contains"][..], false), (&["not", "contains"], true)] {
            if let Some(value) = self.with_value(words) {
                return Some((negated, Test::Contains(value)));
            }
        }
        for (words, negated) in [(&["matches"][..], false), (&["not", "matches"], true)] {
            if let Some(value) = self.with_value(words) {
                if self.regexes == REGEXES {
                    return self.miss(&format!("at most {REGEXES} regular expressions"));
                }
                self.regexes += 1;
                let regex = regex::RegexBuilder::new(&value).size_limit(REGEX).dfa_size_limit(REGEX).build().ok();
                return match regex {
                    Some(regex) => Some((negated, Test::Matches(regex))),
                    None => self.miss("a regular expression"),
                };
            }
        }
        let tests: [(&[&str], bool, Test); 4] = [
            (&["is", "empty"], false, Test::Empty),
            (&["is", "not", "empty"], true, Test::Empty),
            (&["is", "nil"], false, Test::Nil),
            (&["is", "not", "nil"], true, Test::Nil),
        ];
        tests.into_iter().find(|(words, ..)| self.words(words).is_some()).map(|(_, negated, test)| (negated, test))
    }

    fn with_value(&mut self, words: &[&str]) -> Option<String> {
        self.all(|p| {
            p.words(words)?;
            p.space()?;
            p.value()
        })
    }

    /// `A.b["c"].0`, or `"/A/b"`.
    fn selector(&mut self) -> Option<Vec<String>> {
        if self.rest().starts_with('"') {
            return self.pointer();
        }
        let mut path = vec![self.identifier()?];
        loop {
            let next = self.all(|p| {
                p.text(".")?;
                p.identifier().or_else(|| p.digits())
            });
            match next.or_else(|| self.index()) {
                Some(next) => path.push(next),
                None => return Some(path),
            }
        }
    }

    fn pointer(&mut self) -> Option<Vec<String>> {
        self.all(|p| {
            p.text("\"")?;
            let mut path = Vec::new();
            while p.text("/").is_some() {
                let fits = |c: char| c.is_alphabetic() || c.is_numeric() || "-_.~:|".contains(c);
                let length = p.rest().find(|c| !fits(c)).unwrap_or(p.rest().len());
                if length == 0 {
                    return p.miss("a segment of a path");
                }
                path.push(p.rest()[..length].replace("~1", "/").replace("~0", "~"));
                p.at += length;
            }
            p.text("\"")?;
            Some(path)
        })
    }

    fn index(&mut self) -> Option<String> {
        self.all(|p| {
            p.text("[")?;
            p.spaces();
            let key = p.string()?;
            p.spaces();
            p.text("]")?;
            Some(key)
        })
    }

    fn identifier(&mut self) -> Option<String> {
        if !self.rest().starts_with(|c: char| c.is_ascii_alphabetic()) {
            return self.miss("a name");
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '/';
        Some(self.taken(|c| !fits(c)))
    }

    fn digits(&mut self) -> Option<String> {
        if !self.rest().starts_with(|c: char| c.is_ascii_digit()) {
            return self.miss("a number");
        }
        Some(self.taken(|c| !c.is_ascii_digit()))
    }

    fn taken(&mut self, ends: impl Fn(char) -> bool) -> String {
        let length = self.rest().find(ends).unwrap_or(self.rest().len());
        let taken = self.rest()[..length].to_owned();
        self.at += length;
        taken
    }

    /// A word, a number or a string.
    fn value(&mut self) -> Option<String> {
        if self.rest().starts_with(['"', '`']) {
            return self.string();
        }
        match self.selector() {
            Some(path) => Some(path.join(".")),
            None => self.number(),
        }
    }

    fn number(&mut self) -> Option<String> {
        self.all(|p| {
            let began = p.at;
            if p.rest().starts_with('-') {
                p.at += 1;
            }
            if p.rest().starts_with('0') {
                p.at += 1;
            } else {
                p.digits()?;
            }
            p.all(|p| {
                p.text(".")?;
                p.digits()
            });
            let number = p.text[began..p.at].to_owned();
            if p.rest().is_empty() || p.rest().starts_with([' ', '\t', '\r', '\n', ')']) {
                return Some(number);
            }
            p.miss("the end of the number")
        })
    }

    fn string(&mut self) -> Option<String> {
        let quote = self.rest().chars().next().filter(|c| matches!(c, '"' | '`'));
        let Some(quote) = quote else { return self.miss("a string") };
        let Some(length) = self.rest()[1..].find(quote) else { return self.miss("a string that ends") };
        let inner = &self.rest()[1..=length];
        let string = if quote == '`' { Some(inner.replace('\r', "")) } else { unquote(inner) };
        match string {
            Some(string) => {
                self.at += length + 2;
                Some(string)
            }
            None => self.miss("a string without line ends and wrong escapes"),
        }
    }
}

/// A string between `"` as Go reads it.
fn unquote(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let mut encoded = [0; 4];
        if c == '\n' {
            return None;
        }
        if c != '\\' {
            out.extend_from_slice(c.encode_utf8(&mut encoded).as_bytes());
            continue;
        }
        match chars.next()? {
            'a' => out.push(7),
            'b' => out.push(8),
            'f' => out.push(12),
            'n' => out.push(b'\n'),
            'r' => out.push(b'\r'),
            't' => out.push(b'\t'),
            'v' => out.push(11),
            '\\' => out.push(b'\\'),
            'x' => out.push(code(&mut chars, 2, 16, 0)? as u8),
            'u' => {
                out.extend_from_slice(
                    char::from_u32(code(&mut chars, 4, 16, 0)?)?.encode_utf8(&mut encoded).as_bytes(),
                );
            }
            'U' => {
                out.extend_from_slice(
                    char::from_u32(code(&mut chars, 8, 16, 0)?)?.encode_utf8(&mut encoded).as_bytes(),
                );
            }
            digit @ '0'..='7' => out.push(u8::try_from(code(&mut chars, 2, 8, digit.to_digit(8)?)?).ok()?),
            _ => return None,
        }
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

fn code(chars: &mut std::str::Chars<'_>, digits: usize, radix: u32, first: u32) -> Option<u32> {
    (0..digits).try_fold(first, |code, _| code.checked_mul(radix)?.checked_add(chars.next()?.to_digit(radix)?))
}
