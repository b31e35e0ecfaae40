//! Looks over native syntax before it is parsed, for what its parser takes time or memory out of all proportion for:
//! objects (each key is compared with all before it), labels (no mark of syntax parts them), and what is read more than once:
//! heredocs, and brackets after the second operator of a chain, if there is a mistake in them. Knows where text, code and comments
//! begin and end, and nothing else of the language.
//!
//! The parser takes a heredoc that is over in its first line for one that begins with its delimiter, if it finds another delimiter
//! behind it: it reads another text than Nomad, and all that follows twice for each such heredoc around it. So it does not get any.

use std::borrow::Cow;
use std::ops::Range;

/// Comparisons of keys in all objects of one text: one object of 8,000 short keys, or many smaller ones.
const MOST_COMPARED: usize = 32_000_000;
/// Bytes of an object so far that are worth one more comparison.
const BYTES_PER_COMPARISON: usize = 32;
/// Arguments before one of a body that are worth one comparison: their names are in a hash table, but whoever writes the
/// file can choose names whose hashes are the same.
const ARGUMENTS_PER_COMPARISON: usize = 16;
/// Words and strings beside each other; a block has its name and its labels.
const MOST_WORDS: usize = 16;
/// Bytes that are read another time: the insides of `<<-` heredocs.
const MOST_READ_AGAIN: usize = 16 << 20;

/// Bytes in brackets after operators, each as often as it may be read. Those in one such bracket cost nothing.
const MOST_TRIED: usize = 1 << 20;

/// What is wrong, and at which byte.
pub(super) type Found = (usize, String);

/// What something stands in.
enum Open<'t> {
    /// `{ ... }` of a block.
    Body {
        arguments: usize,
    },
    /// `{ ... }` of an object, or of a loop that makes one.
    Object {
        from: usize,
        keys: usize,
    },
    /// `${ ... }` or `%{ ... }` in a text.
    Inside,
    Quotes,
    Heredoc {
        name: &'t [u8],
        from: usize,
        indented: bool,
    },
}

/// What stands before a brace.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A block's name or label.
    Word,
    Anything,
}

/// How far an operand of an operator has been read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operand {
    /// This is none.
    No,
    /// It begins here.
    Begins,
    /// A part of it stands before this: a name, a call, an index.
    Continues,
}

struct Scan<'t> {
    text: &'t [u8],
    at: usize,
    open: Vec<Open<'t>>,
    /// The whole is a template and no code.
    is_template: bool,
    before: Before,
    words: usize,
    arguments: usize,
    compared: usize,
    again: usize,
    /// Empty heredocs.
    empty: Vec<Range<usize>>,
    operand: Operand,
    /// The brackets and quotes around this: whether each belongs to the operand of an operator.
    brackets: Vec<bool>,
    /// How many of them have one.
    operands: u32,
    /// Where the innermost of them begins, or the last one within it has ended.
    since: usize,
    tried: usize,
}

/// Looks over a body or an expression. Returns it with `""` for empty heredocs; everything else stays where it is.
pub(super) fn code(text: &str) -> Result<Cow<'_, str>, Found> {
    Scan::new(text, false).run().map(|empty| without(text, &empty))
}

/// Looks over a template that has no quotes around it, and returns it as [`code`] does.
pub(super) fn template(text: &str) -> Result<Cow<'_, str>, Found> {
    Scan::new(text, true).run().map(|empty| without(text, &empty))
}

/// Nothing can follow on a heredoc in its last line, so that the end of the line behind `""` ends nothing else.
fn without<'t>(text: &'t str, empty: &[Range<usize>]) -> Cow<'t, str> {
    if empty.is_empty() {
        return Cow::Borrowed(text);
    }
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    for heredoc in empty {
        out.push_str(&text[at..heredoc.start]);
        out.push_str("\"\"");
        let rest = text.as_bytes()[heredoc.clone()].iter().skip(2);
        out.extend(rest.map(|byte| if matches!(byte, b'\r' | b'\n') { char::from(*byte) } else { ' ' }));
        at = heredoc.end;
    }
    out.push_str(&text[at..]);
    Cow::Owned(out)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') || byte >= 0x80
}

impl<'t> Scan<'t> {
    fn new(text: &'t str, is_template: bool) -> Scan<'t> {
        Scan {
            text: text.as_bytes(),
            at: 0,
            open: Vec::new(),
            is_template,
            before: Before::Anything,
            words: 0,
            arguments: 0,
            compared: 0,
            again: 0,
            empty: Vec::new(),
            operand: Operand::No,
            brackets: Vec::new(),
            operands: 0,
            since: 0,
            tried: 0,
        }
    }

    fn run(mut self) -> Result<Vec<Range<usize>>, Found> {
        while self.at < self.text.len() {
            match self.open.last() {
                Some(Open::Quotes | Open::Heredoc { .. }) => self.text()?,
                None if self.is_template => self.text()?,
                _ => self.code()?,
            }
        }
        self.spend()?;
        Ok(self.empty)
    }

    fn rest(&self) -> &'t [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip_to(&mut self, end: &[u8]) {
        let found = self.rest().windows(end.len()).position(|part| part == end);
        self.at = found.map_or(self.text.len(), |found| self.at + found);
    }

    fn code(&mut self) -> Result<(), Found> {
        match *self.rest() {
            [b'#', ..] | [b'/', b'/', ..] => self.skip_to(b"\n"),
            [b'/', b'*', ..] => {
                self.at += 2;
                self.skip_to(b"*/");
                self.at += 2;
            }
            [b' ' | b'\t' | b'\r', ..] => self.at += 1,
            [b'"', ..] => {
                self.word(Before::Word)?;
                self.opened()?;
                self.open.push(Open::Quotes);
                self.at += 1;
            }
            [b'<', b'<', ..] => self.heredoc()?,
            [b'(' | b'[', ..] => {
                self.opened()?;
                self.mark();
            }
            [b')' | b']', ..] => {
                self.closed()?;
                self.mark();
            }
            [b'{', ..] => {
                self.opened()?;
                self.open.push(match self.before {
                    Before::Word => Open::Body { arguments: 0 },
                    Before::Anything => Open::Object { from: self.at, keys: 0 },
                });
                self.mark();
            }
            [b'}', ..] => {
                self.closed()?;
                self.open.pop();
                self.mark();
            }
            [byte @ (b'=' | b':'), ..] => {
                self.assignment()?;
                let before = self.at.checked_sub(1).and_then(|at| self.text.get(at));
                let is_operator = byte == b'=' && matches!(before, Some(b'=' | b'!' | b'<' | b'>'));
                self.operand = if is_operator { Operand::Begins } else { Operand::No };
                self.mark();
            }
            [byte, ..] if is_word(byte) => {
                let length = self.rest().iter().take_while(|b| is_word(**b)).count();
                let word = &self.rest()[..length];
                // An object may follow on these.
                let keyword = matches!(word, b"in" | b"if");
                self.word(if keyword { Before::Anything } else { Before::Word })?;
                // Only names have dashes: after anything else it is a minus.
                self.operand = match self.operand {
                    _ if word.ends_with(b"-") => Operand::Begins,
                    Operand::No => Operand::No,
                    Operand::Begins | Operand::Continues => Operand::Continues,
                };
                self.at += length;
            }
            [byte, ..] => {
                self.operand = match byte {
                    b'+' | b'-' | b'*' | b'/' | b'%' | b'&' | b'|' | b'<' | b'>' => Operand::Begins,
                    b'!' | b'.' => self.operand,
                    b'\n' if self.operand == Operand::Begins => Operand::Begins,
                    _ => Operand::No,
                };
                self.mark();
            }
            [] => {}
        }
        Ok(())
    }

    /// A bracket or quote begins here.
    fn opened(&mut self) -> Result<(), Found> {
        self.spend()?;
        let is_operand = std::mem::replace(&mut self.operand, Operand::No) != Operand::No;
        self.operands += u32::from(is_operand);
        self.brackets.push(is_operand);
        Ok(())
    }

    /// One ends here.
    fn closed(&mut self) -> Result<(), Found> {
        self.spend()?;
        // Another bracket may follow, and belong to the same operand.
        self.operand = if self.leave() { Operand::Continues } else { Operand::No };
        Ok(())
    }

    /// Returns whether it belonged to the operand of an operator.
    fn leave(&mut self) -> bool {
        let is_operand = self.brackets.pop().unwrap_or_default();
        self.operands -= u32::from(is_operand);
        is_operand
    }

    /// Counts what was read of the innermost bracket: twice for each bracket after an operator that is around it.
    fn spend(&mut self) -> Result<(), Found> {
        let bytes = self.at.saturating_sub(self.since);
        self.since = self.at;
        if self.operands > 1 {
            let times = 1_usize.checked_shl(self.operands).unwrap_or(usize::MAX);
            self.tried = self.tried.saturating_add(bytes.saturating_mul(times));
        }
        if self.tried > MOST_TRIED {
            let text = "brackets after operators are nested too deeply here; name the inner expressions in locals { }";
            return Err((self.at, text.to_owned()));
        }
        Ok(())
    }

    fn mark(&mut self) {
        self.at += 1;
        self.words = 0;
        self.before = Before::Anything;
    }

    fn word(&mut self, before: Before) -> Result<(), Found> {
        self.words += 1;
        self.before = before;
        if self.words > MOST_WORDS {
            return Err((self.at, format!("syntax error: more than {MOST_WORDS} words and strings beside each other")));
        }
        Ok(())
    }

    /// Counts what may be an argument of a body or a key of an object.
    fn assignment(&mut self) -> Result<(), Found> {
        let at = self.at;
        let compared = match self.open.last_mut() {
            Some(Open::Object { from, keys }) => {
                *keys += 1;
                *keys + (at - *from) / BYTES_PER_COMPARISON
            }
            Some(Open::Inside | Open::Quotes | Open::Heredoc { .. }) => 0,
            body => {
                let arguments = match body {
                    Some(Open::Body { arguments }) => arguments,
                    _ => &mut self.arguments,
                };
                *arguments += 1;
                *arguments / ARGUMENTS_PER_COMPARISON
            }
        };
        self.compared = self.compared.saturating_add(compared);
        if self.compared > MOST_COMPARED {
            let text = "the objects and blocks here have too many or too large keys and values; write a large one into a \
                        file, and read it with jsondecode(file(...))";
            return Err((at, text.to_owned()));
        }
        Ok(())
    }

    /// The beginning of a heredoc, if it is one: anything else is a mistake.
    fn heredoc(&mut self) -> Result<(), Found> {
        let indented = self.rest().get(2) == Some(&b'-');
        let start = self.at + if indented { 3 } else { 2 };
        let name = &self.text[start..];
        let name = &name[..name.iter().take_while(|b| is_word(**b)).count()];
        let line_end = match self.text.get(start + name.len()..).unwrap_or_default() {
            [b'\n', ..] => 1,
            [b'\r', b'\n', ..] => 2,
            _ => 0,
        };
        if name.is_empty() || line_end == 0 {
            self.mark();
            return Ok(());
        }
        let begin = self.at;
        let from = start + name.len() + line_end;
        self.at = from;
        self.operand = Operand::No;
        let Some(end) = self.end_of(name) else {
            self.open.push(Open::Heredoc { name, from, indented });
            return Ok(());
        };
        let line = self.text[end..].iter().take_while(|byte| **byte != b'\n');
        if !line.copied().all(|byte| byte.is_ascii_whitespace()) {
            let name = String::from_utf8_lossy(name);
            return Err((
                from,
                format!("the first line of the heredoc begins with its delimiter {name}; use another word"),
            ));
        }
        self.empty.push(begin..end);
        self.at = end;
        self.before = Before::Anything;
        Ok(())
    }

    /// Where a heredoc of this name is over, if it is in the line that begins here.
    fn end_of(&self, name: &[u8]) -> Option<usize> {
        let blanks = self.rest().iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
        let after = self.rest()[blanks..].strip_prefix(name)?;
        (!after.first().is_some_and(|b| is_word(*b))).then_some(self.text.len() - after.len())
    }

    fn read_again(&mut self, bytes: usize) -> Result<(), Found> {
        self.again = self.again.saturating_add(bytes);
        if self.again > MOST_READ_AGAIN {
            let text = "heredocs in heredocs; write the texts into files, and read them with file(...)";
            return Err((self.at, text.to_owned()));
        }
        Ok(())
    }

    fn text(&mut self) -> Result<(), Found> {
        let in_quotes = matches!(self.open.last(), Some(Open::Quotes));
        match self.rest() {
            [b'$', b'$', b'{', ..] | [b'%', b'%', b'{', ..] => self.at += 3,
            [b'$' | b'%', b'{', ..] => {
                self.opened()?;
                self.open.push(Open::Inside);
                self.mark();
                self.at += 1;
            }
            [b'\\', ..] if in_quotes => self.at += 2,
            [b'"', ..] if in_quotes => {
                self.closed()?;
                self.open.pop();
                self.at += 1;
                self.before = Before::Word;
            }
            [b'\n', ..] => {
                self.at += 1;
                if let Some(Open::Heredoc { name, from, indented, .. }) = self.open.last()
                    && let Some(end) = self.end_of(name)
                {
                    let read = if *indented { self.at - from } else { 0 };
                    self.read_again(read)?;
                    self.open.pop();
                    self.at = end;
                    self.before = Before::Anything;
                }
            }
            _ => self.at += 1,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{code, template};

    fn object(keys: usize, value: &str) -> String {
        let keys: Vec<String> = (0..keys).map(|i| format!("k{i} = {value}")).collect();
        format!("{{ {} }}", keys.join(", "))
    }

    fn is_refused(text: &str) -> bool {
        code(text).is_err()
    }

    #[test]
    fn what_people_write_passes() {
        for text in [
            "job \"x\" {\n  group \"g\" { count = 1 }\n}\n".to_owned(),
            format!("a = {}", object(5000, "1")),
            format!("env {{\n{}}}\n", "A = \"b:${c}\"\n".repeat(20_000)),
            "a = <<-EOT\n  x ${jsonencode({ a = 1 })}\n  EOT\n".repeat(5_000),
            "a = <<EOT\nEOT\n".repeat(5_000),
            format!("a = <<EOT\n{}EOT\nb = 1\n", "k: v = { x }\n".repeat(100_000)),
            format!("# {}\na = \"{}\"\n", "{a=1,".repeat(50_000), "{a=1,".repeat(50_000)),
            format!("a = 1 {}1{}\n", "+ 2 * (".repeat(10), ")".repeat(10)),
            "a = x == \"\" || (y != \"${b}\" && z > (c + 1) * 2) ? (d) : -(e)\n".repeat(2_000),
            format!("a = {}1{}\n", "f([(".repeat(20), ")])".repeat(20)),
        ] {
            assert!(code(&text).is_ok(), "{}", &text[..text.len().min(60)]);
        }
        assert!(template(&format!("{}{{a=1", "k: v = \"{\n".repeat(50_000))).is_ok());
    }

    /// The parser tries what follows on the second operator of a chain once more if there is a mistake in it: twice as often in
    /// each bracket.
    #[test]
    fn brackets_after_operators_are_not_nested_deeply() {
        for level in [
            "a%b/{",
            "a+b*(",
            "a%b/!(",
            "a%b/-{",
            "a == b != (",
            "a>=b<= {",
            "a&&b||\n(",
            "a%b/ /* x */ # y\n{",
            "a+b+\"${",
            "{c=a%b/{",
            "[for x in a%b/(",
            "1-1-(",
            "a%b/(c)+(",
            "a%b/[",
            "a%b/c[",
            "a%b/f(",
            "a-b- --c.d[",
            "a%b/(c)[",
            "a+b*c[0].*.d[",
            "a+b+f(\"x\")[1].d[",
        ] {
            let deep = format!("x = {}", level.repeat(24));
            let (_, message) = code(&deep).unwrap_err();
            assert!(message.contains("nested too deeply"), "{level}: {message}");
            let long = format!("x = {}{}", level.repeat(10), "y, ".repeat(2_000));
            assert!(is_refused(&long), "{level}");
        }
    }

    #[test]
    fn empty_heredocs_are_strings_and_everything_else_stays() {
        for (text, expected) in [
            ("a = <<E\nE\nb = 1\n", "a = \"\" \n \nb = 1\n"),
            ("a = <<-E\r\n  E \r\n", "a = \"\"  \r\n    \r\n"),
            ("a = <<\u{e9}\n\u{e9}", "a = \"\"  \n  "),
            ("a = \"<<E\nE\n\" // <<E\nE\n/* <<E\nE */", "a = \"<<E\nE\n\" // <<E\nE\n/* <<E\nE */"),
            ("a = <<E\n<<E\nE\n", "a = <<E\n<<E\nE\n"),
            ("a = <<E\n\nE\nb = <<E\nE\n", "a = <<E\n\nE\nb = \"\" \n \n"),
            ("a = <<E\nEE\nE\n", "a = <<E\nEE\nE\n"),
        ] {
            assert_eq!(code(text).unwrap(), expected);
        }
        assert_eq!(template("<<E\nE\n${<<E\nE\n}").unwrap(), "<<E\nE\n${\"\" \n \n}");
    }

    /// Whatever it is hidden in or behind.
    #[test]
    fn an_object_of_many_keys_is_found_wherever_it_stands() {
        let large = object(20_000, "1");
        for around in [
            "a = @",
            "a = [for x in @: x]",
            "a = [for x in y : x if @]",
            "a = \"${@}\"",
            "a = \"}${ \"}\" == @ }\"",
            "a = \"\\\"$${%%{\\\\${@}\"",
            "a = <<EOT\nx \" ${@}\nEOT\n",
            "a = <<EOT\nEOT\n\" ${@}\nEOT\n",
            "a = <<EOT\nEOT\nb = @\n",
            "a = <<-E\n E2\n \"\n  E\nb = @\n",
            "a = <<E\r\nx \"\r\nE\r\nb = @\n",
            "/* \" { */ a = // \"\n # \"\n 1\nb = f(@)",
            "a = 1 / @",
            "x \"l\" l {\n a = {b = @}\n}",
            "a = \"%{if @}x%{endif}\"",
            "a = true ? @ : 1",
        ] {
            assert!(is_refused(&around.replace('@', &large)), "{around}");
            assert!(!is_refused(&around.replace('@', &object(2_000, "1"))), "{around}");
        }
        assert!(template(&format!("x \" ${{{large}}}")).is_err());
        let long = object(1_000, &"x".repeat(8_000));
        assert!(is_refused(&format!("a = {long}")));
    }

    #[test]
    fn labels_arguments_and_heredocs_are_counted() {
        let words = |n: usize, word: &str| format!("job {} {{}}\n", vec![word; n].join(" "));
        for word in ["a", "\"a\"", "a /* x */"] {
            assert!(is_refused(&words(16, word)) && !is_refused(&words(15, word)), "{word}");
        }
        assert!(is_refused(&(0..60_000).map(|i| format!("a{i} = 1\n")).collect::<Vec<_>>().concat()));
        let mut nested = "x".repeat(1 << 20);
        for i in 0..20 {
            nested = format!("${{<<-E{i}\n{nested}\nE{i}\n}}");
        }
        assert!(is_refused(&format!("a = <<-E\n{nested}\nE\n")));
    }
}
