//! What templates can call. One table, which the documentation is made from.
#![expect(clippy::unnecessary_wraps, reason = "all functions of a table have one type")]

mod builtin;
mod consul;
mod crypto;
mod data;
mod regular;
mod sprig;
mod store;

use std::fmt::Write as _;
use std::sync::LazyLock;

use super::types::Type::{Any, AnyMap, Anys, Bool, Int, Reflect, Text, Texts};
use super::types::{Function, Run, Type};
use super::value::{Value, sorted};
use crate::spec::collections::BTreeMap;

pub(super) use store::scratch;

/// A row of a table.
const fn row(name: &'static str, parameters: &'static [Type], run: Run, about: &'static str) -> Function {
    Function { name, parameters, variadic: false, run, about }
}

/// A row whose last parameter stands for any number of arguments.
const fn many(name: &'static str, parameters: &'static [Type], run: Run, about: &'static str) -> Function {
    Function { name, parameters, variadic: true, run, about }
}

/// The tables by their titles in the documentation.
const TABLES: &[(&str, &[Function])] = &[
    ("Go's own", builtin::TABLE),
    ("Variables, keys, secrets and services", store::TABLE),
    ("Helpers", consul::TABLE),
    ("Data", data::TABLE),
    ("Sprig", sprig::TABLE),
    ("Keys, certificates and passwords", crypto::TABLE),
];

static BY_NAME: LazyLock<BTreeMap<&'static str, &'static Function>> =
    LazyLock::new(|| sorted(TABLES.iter().flat_map(|(_, rows)| rows.iter().map(|f| (f.name, f)))));

/// The function of that name.
pub(super) fn find(name: &str) -> Option<&'static Function> {
    BY_NAME.get(name).copied()
}

/// The names of all functions.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    BY_NAME.keys().copied()
}

/// Functions of consul-template that are not here, with the reason.
const UNAVAILABLE: &[(&str, &str)] = &[
    ("sprig_now", "consul-template does not have it either; timestamp gives the time"),
    ("sprig_env", "consul-template does not have it either; env gives a variable"),
];

/// Why there is no function of that name, where that is known.
pub(super) fn unavailable(name: &str) -> Option<&'static str> {
    UNAVAILABLE.iter().find(|(n, _)| *n == name).map(|(_, why)| *why)
}

/// The names that consul-template has and this refuses, with the reason.
pub fn refused() -> &'static [(&'static str, &'static str)] {
    UNAVAILABLE
}

/// The page of the documentation that lists the functions.
pub fn page() -> String {
    let mut text = String::from(
        "# Functions of templates\n\nThis page is written by `AGENTBIN_WRITE_GOLDEN=1` and compared in a test; change \
         the tables in `src/template/functions`, not the page.\n\nA `template` block's text is in the language of Go's \
         [text/template](https://pkg.go.dev/text/template) with these functions. A pipe hands the value before it to \
         the function behind it as the last argument.\n",
    );
    for (title, rows) in TABLES {
        let _ = write!(text, "\n## {title}\n\n| use | what it gives |\n|---|---|\n");
        let mut rows: Vec<&Function> = rows.iter().collect();
        rows.sort_by_key(|f| f.name.to_ascii_lowercase());
        for function in rows {
            let _ = writeln!(text, "| `{}` | {} |", function.usage(), function.about);
        }
    }
    text.push_str("\n## Not here\n\n| name | why, and what to do |\n|---|---|\n");
    for (name, why) in UNAVAILABLE {
        let _ = writeln!(text, "| `{name}` | {why} |");
    }
    text
}

/// A `[]byte` of an argument that the table has as text.
fn text(arguments: &[Value], index: usize) -> &[u8] {
    arguments.get(index).and_then(Value::as_text).map_or(&[], |text| &text[..])
}

/// The same as a `str`, for names and paths.
fn name(arguments: &[Value], index: usize) -> String {
    String::from_utf8_lossy(text(arguments, index)).into_owned()
}

fn int(arguments: &[Value], index: usize) -> i64 {
    arguments.get(index).and_then(Value::signed).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page sorts the rows, so a text cannot refer to the row before it.
    #[test]
    fn j4_texts_name_the_function_that_they_refer_to() {
        for function in TABLES.iter().flat_map(|(_, rows)| rows.iter()) {
            let Function { name, about, .. } = function;
            assert!(!about.starts_with("the same"), "{name}: {about}");
            if let Some(other) = about.strip_prefix("as `").and_then(|rest| rest.split('`').next()) {
                assert!(find(other).is_some(), "{name}: there is no {other}");
            }
        }
    }
}
