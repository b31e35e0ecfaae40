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

use super::exec::Exec;
use super::value::{CERTIFICATE, Keyed, Kind, Value, sorted};
use crate::spec::collections::BTreeMap;

pub(super) use store::scratch;

/// Type of a parameter, as Go checks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Text,
    Bool,
    Int,
    Float,
    /// `interface {}`
    Any,
    /// Anything, also no value at all.
    Reflect,
    Texts,
    Anys,
    /// `map[string]interface {}`
    AnyMap,
    /// What `ls` and `tree` give.
    Pairs,
    /// What `service` gives.
    Services,
    /// What a constant gives, and nothing else.
    Uint32,
    /// A certificate with its key, as `sprig_genCA` gives.
    Certificate,
}

use Type::{Any, AnyMap, Anys, Bool, Int, Reflect, Text, Texts};

/// A function that templates know.
pub(super) struct Function {
    pub(super) name: &'static str,
    /// Types of its parameters.
    parameters: &'static [Type],
    /// The last one stands for any number of arguments.
    variadic: bool,
    pub(super) run: Run,
    /// What it gives, in a few words.
    about: &'static str,
}

type Run = fn(&mut Exec<'_>, &[Value]) -> Result<Value, String>;

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Type {
    /// Its name in Go.
    pub(super) fn name(self) -> &'static str {
        match self {
            Text => "string",
            Bool => "bool",
            Int => "int",
            Type::Float => "float64",
            Any => "interface {}",
            Reflect => "any value",
            Texts => "[]string",
            Anys => "[]interface {}",
            AnyMap => "map[string]interface {}",
            Type::Pairs => "[]*dependency.KeyPair",
            Type::Services => "[]*dependency.HealthService",
            Type::Uint32 => "uint32",
            Type::Certificate => CERTIFICATE,
        }
    }

    /// A short name for people.
    fn short(self) -> &'static str {
        match self {
            Any | Reflect => "value",
            Type::Float => "float",
            Texts => "strings",
            Anys => "list",
            AnyMap => "map",
            Type::Pairs => "pairs",
            Type::Services => "services",
            Type::Certificate => "certificate",
            Type::Uint32 => "int",
            other => other.name(),
        }
    }

    pub(super) fn can_be_nil(self) -> bool {
        !matches!(self, Text | Bool | Int | Type::Float | Type::Uint32 | Type::Certificate)
    }

    /// Whether Go takes `value` for such a parameter.
    pub(super) fn takes(self, value: &Value) -> bool {
        match (self, value) {
            (Any | Reflect, _) => true,
            (wanted, Value::Nil) => wanted.can_be_nil(),
            (Text, Value::Text(_)) | (Bool, Value::Bool(_)) | (Int, Value::Int(_)) | (Type::Float, Value::Float(_)) => {
                true
            }
            (Texts, Value::List(list)) => list.kind == Kind::Text,
            (Anys, Value::List(list)) => list.kind == Kind::Any,
            (AnyMap, Value::Map(map)) => map.kind == Kind::Any && map.keyed == Keyed::Text && map.owner.is_none(),
            (Type::Pairs, Value::List(list)) => list.kind == Kind::Objects("*dependency.KeyPair"),
            (Type::Services, Value::List(list)) => list.kind == Kind::Objects("*dependency.HealthService"),
            (Type::Certificate, Value::Object(object)) => object.type_name == CERTIFICATE,
            _ => false,
        }
    }
}

impl Function {
    pub(super) fn is_variadic(&self) -> bool {
        self.variadic
    }

    /// How many arguments it needs at least.
    pub(super) fn fixed(&self) -> usize {
        self.parameters.len() - usize::from(self.variadic)
    }

    /// Type of the parameter that the argument `index` goes to.
    pub(super) fn parameter(&self, index: usize) -> Type {
        self.parameters[index.min(self.parameters.len().saturating_sub(1))]
    }

    /// How it is called.
    pub(super) fn usage(&self) -> String {
        let mut text = self.name.to_owned();
        for (i, parameter) in self.parameters.iter().enumerate() {
            let dots = if self.variadic && i + 1 == self.parameters.len() { "..." } else { "" };
            let _ = write!(text, " <{}>{dots}", parameter.short());
        }
        text
    }
}

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
