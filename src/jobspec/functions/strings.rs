//! Functions of the job file on strings.

use regex::Regex;

use super::{Count, Outcome, int, text, wrong};
use crate::jobspec::budget::steps_of_pattern;
use crate::jobspec::value::Value;
use crate::spec;
use crate::spec::IntoSet as _;
use crate::spec::collections::BTreeSet;

/// Largest text that is searched, and bytes of it that are searched in one step.
const LARGEST_SEARCHED: usize = 1 << 20;
const BYTES_PER_STEP: u64 = 16;
/// Largest result of a replacement.
const LARGEST_TEXT: usize = 16 << 20;

pub(super) fn chomp(args: &[Value]) -> Outcome {
    Ok(Value::string(text(args, 0)?.trim_end_matches(['\n', '\r'])))
}

pub(super) fn indent(args: &[Value]) -> Outcome {
    let spaces = usize::try_from(int(args, 0)?).ok().filter(|n| *n <= 1000);
    let spaces = spaces.ok_or("the indent must be 0 to 1000")?;
    Ok(Value::String(text(args, 1)?.replace('\n', &format!("\n{}", " ".repeat(spaces)))))
}

pub(super) fn join(args: &[Value]) -> Outcome {
    let separator = text(args, 0)?;
    let mut words = Vec::new();
    for (i, arg) in args.iter().enumerate().skip(1) {
        for item in arg.elements().ok_or_else(|| wrong(i, "a list", arg))? {
            words.push(item.to_text().ok_or_else(|| wrong(i, "a list of strings", arg))?);
        }
    }
    Ok(Value::String(words.join(&separator)))
}

pub(super) fn lower(args: &[Value]) -> Outcome {
    Ok(Value::String(text(args, 0)?.to_lowercase()))
}

pub(super) fn upper(args: &[Value]) -> Outcome {
    Ok(Value::String(text(args, 0)?.to_uppercase()))
}

/// A regular expression of bounded size, which bounds the time for each byte of the text. What it costs is counted.
pub(super) fn regex(pattern: &str, count: Count<'_>) -> Result<Regex, String> {
    count(steps_of_pattern(pattern))?;
    spec::regex(pattern)
}

/// Each match may have looked at all of the rest, so that many of them in a long text are counted before they are made.
pub(super) fn regex_replace(args: &[Value], count: Count<'_>) -> Outcome {
    let (whole, pattern, replacement) = (text(args, 0)?, text(args, 1)?, text(args, 2)?);
    if whole.len() > LARGEST_SEARCHED {
        return Err(format!("the text has more than {} MiB", LARGEST_SEARCHED >> 20));
    }
    let regex = regex(&pattern, count)?;
    let (mut out, mut copied) = (String::new(), 0);
    let steps = |from: usize| count(4 + (whole.len() - from) as u64 / BYTES_PER_STEP);
    steps(0)?;
    for found in regex.captures_iter(&whole) {
        let Some(all) = found.get(0) else { continue };
        steps(all.end())?;
        // Each reference in the replacement stands for no more than the match.
        let most = replacement.len() + replacement.matches('$').count().saturating_mul(all.len());
        if out.len() + most > LARGEST_TEXT {
            return Err(format!("the result has more than {} MiB", LARGEST_TEXT >> 20));
        }
        out.push_str(&whole[copied..all.start()]);
        found.expand(&replacement, &mut out);
        copied = all.end();
    }
    out.push_str(&whole[copied..]);
    Ok(Value::String(out))
}

pub(super) fn replace(args: &[Value]) -> Outcome {
    Ok(Value::String(text(args, 0)?.replace(&text(args, 1)?, &text(args, 2)?)))
}

/// Nomad's `reverse` is the one for strings.
pub(super) fn reverse(args: &[Value]) -> Outcome {
    Ok(Value::String(text(args, 0)?.chars().rev().collect()))
}

pub(super) fn split(args: &[Value]) -> Outcome {
    let (separator, string) = (text(args, 0)?, text(args, 1)?);
    if separator.is_empty() {
        return Ok(Value::List(string.chars().map(|c| Value::string(c.to_string())).collect()));
    }
    Ok(Value::List(string.split(&separator).map(Value::string).collect()))
}

pub(super) fn strlen(args: &[Value]) -> Outcome {
    Ok(Value::usize(text(args, 0)?.chars().count()))
}

/// A negative offset counts from the end, a length of -1 takes the rest.
pub(super) fn substr(args: &[Value]) -> Outcome {
    let string = text(args, 0)?;
    let (offset, length) = (int(args, 1)?, int(args, 2)?);
    let total = i128::try_from(string.chars().count()).unwrap_or(i128::MAX);
    let start = if offset < 0 { (total.saturating_add(offset)).max(0) } else { offset.min(total) };
    let end = if length < 0 { total } else { start.saturating_add(length).min(total) };
    let [skip, take] = [start, end - start].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    Ok(Value::String(string.chars().skip(skip).take(take).collect()))
}

pub(super) fn title(args: &[Value]) -> Outcome {
    let mut out = String::new();
    let mut word_start = true;
    for c in text(args, 0)?.chars() {
        if word_start {
            out.extend(c.to_uppercase());
        } else {
            out.push(c);
        }
        word_start = !(c.is_alphanumeric() || c == '_');
    }
    Ok(Value::String(out))
}

pub(super) fn trim(args: &[Value]) -> Outcome {
    let cut: BTreeSet<char> = text(args, 1)?.chars().into_set();
    Ok(Value::string(text(args, 0)?.trim_matches(|c| cut.contains(&c))))
}

pub(super) fn trimprefix(args: &[Value]) -> Outcome {
    let (string, prefix) = (text(args, 0)?, text(args, 1)?);
    Ok(Value::string(string.strip_prefix(&prefix).unwrap_or(&string)))
}

pub(super) fn trimsuffix(args: &[Value]) -> Outcome {
    let (string, suffix) = (text(args, 0)?, text(args, 1)?);
    Ok(Value::string(string.strip_suffix(&suffix).unwrap_or(&string)))
}

pub(super) fn trimspace(args: &[Value]) -> Outcome {
    Ok(Value::string(text(args, 0)?.trim()))
}
