//! The functions of the expression language.

mod collections;
mod cost;
mod encoding;
mod files;
mod format;
mod hashes;
mod net;
mod numbers;
mod strings;
mod time;

pub(super) use cost::cost;

use super::base::Base;
use super::diag::did_you_mean;
use super::value::{Number, Value};

type Outcome = Result<Value, String>;

/// A function with its least and greatest number of arguments.
struct Function {
    name: &'static str,
    least: usize,
    most: usize,
    body: Body,
}

enum Body {
    Pure(fn(&[Value]) -> Outcome),
    /// Also takes the directory that relative paths start from.
    Files(fn(&[Value], Base<'_>) -> Outcome),
    /// Looks at files, and counts what it looks at.
    Search(fn(&[Value], Base<'_>, Count<'_>) -> Outcome),
    /// Counts steps of its own.
    Counted(fn(&[Value], Count<'_>) -> Outcome),
    /// Names the key that was meant, if that is wanted.
    Hinting(fn(&[Value], &dyn Fn() -> bool) -> Outcome),
}

/// Counts steps; fails when there were too many.
type Count<'a> = &'a dyn Fn(u64) -> Result<(), String>;

/// What a call has beside its arguments.
pub(super) struct Surroundings<'a> {
    /// Directory of the filesystem functions; `None` where they are not allowed.
    pub base_dir: Option<Base<'a>>,
    pub count: Count<'a>,
    /// Asked when a word was misspelt: whether the right one is to be looked for.
    pub hints: &'a dyn Fn() -> bool,
}

const MANY: usize = usize::MAX;

const fn pure(name: &'static str, least: usize, most: usize, body: fn(&[Value]) -> Outcome) -> Function {
    Function { name, least, most, body: Body::Pure(body) }
}

const fn with_files(name: &'static str, arguments: usize, body: fn(&[Value], Base<'_>) -> Outcome) -> Function {
    Function { name, least: arguments, most: arguments, body: Body::Files(body) }
}

/// Functions that take expressions instead of values; the evaluator has them.
const LAZY: [&str; 3] = ["can", "convert", "try"];

const TABLE: &[Function] = &[
    pure("abs", 1, 1, numbers::abs),
    pure("ceil", 1, 1, numbers::ceil),
    pure("floor", 1, 1, numbers::floor),
    pure("log", 2, 2, numbers::log),
    pure("max", 1, MANY, numbers::max),
    pure("min", 1, MANY, numbers::min),
    pure("parseint", 2, 2, numbers::parseint),
    pure("pow", 2, 2, numbers::pow),
    pure("signum", 1, 1, numbers::signum),
    pure("chomp", 1, 1, strings::chomp),
    pure("format", 1, MANY, format::format),
    pure("formatlist", 1, MANY, format::formatlist),
    pure("indent", 2, 2, strings::indent),
    pure("join", 2, MANY, strings::join),
    pure("lower", 1, 1, strings::lower),
    Function { name: "regex_replace", least: 3, most: 3, body: Body::Counted(strings::regex_replace) },
    pure("replace", 3, 3, strings::replace),
    pure("reverse", 1, 1, strings::reverse),
    pure("split", 2, 2, strings::split),
    pure("strlen", 1, 1, strings::strlen),
    pure("strrev", 1, 1, strings::reverse),
    pure("substr", 3, 3, strings::substr),
    pure("title", 1, 1, strings::title),
    pure("trim", 2, 2, strings::trim),
    pure("trimprefix", 2, 2, strings::trimprefix),
    pure("trimspace", 1, 1, strings::trimspace),
    pure("trimsuffix", 2, 2, strings::trimsuffix),
    pure("upper", 1, 1, strings::upper),
    pure("chunklist", 2, 2, collections::chunklist),
    pure("coalesce", 1, MANY, collections::coalesce),
    pure("coalescelist", 1, MANY, collections::coalescelist),
    pure("compact", 1, 1, collections::compact),
    pure("concat", 1, MANY, collections::concat),
    pure("contains", 2, 2, collections::contains),
    pure("distinct", 1, 1, collections::distinct),
    pure("element", 2, 2, collections::element),
    pure("flatten", 1, 1, collections::flatten),
    Function { name: "index", least: 2, most: 2, body: Body::Hinting(collections::index) },
    pure("keys", 1, 1, collections::keys),
    pure("length", 1, 1, collections::length),
    pure("lookup", 2, 3, collections::lookup),
    pure("merge", 1, MANY, collections::merge),
    pure("range", 1, 3, collections::range),
    pure("setintersection", 1, MANY, collections::setintersection),
    pure("setproduct", 1, MANY, collections::setproduct),
    pure("setunion", 1, MANY, collections::setunion),
    pure("slice", 3, 3, collections::slice),
    pure("sort", 1, 1, collections::sort),
    pure("values", 1, 1, collections::values),
    pure("zipmap", 2, 2, collections::zipmap),
    pure("base64decode", 1, 1, encoding::base64decode),
    pure("base64encode", 1, 1, encoding::base64encode),
    pure("csvdecode", 1, 1, encoding::csvdecode),
    pure("jsondecode", 1, 1, encoding::jsondecode),
    pure("jsonencode", 1, 1, encoding::jsonencode),
    pure("urlencode", 1, 1, encoding::urlencode),
    pure("yamldecode", 1, 1, encoding::yamldecode),
    pure("yamlencode", 1, 1, encoding::yamlencode),
    pure("formatdate", 2, 2, time::formatdate),
    pure("timeadd", 2, 2, time::timeadd),
    pure("bcrypt", 1, 2, hashes::bcrypt),
    pure("md5", 1, 1, hashes::md5),
    pure("rsadecrypt", 2, 2, hashes::rsadecrypt),
    pure("sha1", 1, 1, hashes::sha1),
    pure("sha256", 1, 1, hashes::sha256),
    pure("sha512", 1, 1, hashes::sha512),
    pure("uuidv4", 0, 0, hashes::uuidv4),
    pure("uuidv5", 2, 2, hashes::uuidv5),
    pure("cidrhost", 2, 2, net::cidrhost),
    pure("cidrnetmask", 1, 1, net::cidrnetmask),
    pure("cidrsubnet", 3, 3, net::cidrsubnet),
    pure("cidrsubnets", 2, MANY, net::cidrsubnets),
    pure("basename", 1, 1, files::basename),
    pure("dirname", 1, 1, files::dirname),
    with_files("pathexpand", 1, files::pathexpand),
    with_files("abspath", 1, files::abspath),
    Function { name: "file", least: 1, most: 1, body: Body::Search(files::file) },
    Function { name: "filebase64", least: 1, most: 1, body: Body::Search(files::filebase64) },
    with_files("fileexists", 1, files::fileexists),
    Function { name: "fileset", least: 2, most: 2, body: Body::Search(files::fileset) },
];

/// The functions that a plugin's configuration and schema may call.
const CONFIG: [&str; 15] = [
    "abs",
    "coalesce",
    "concat",
    "hasindex",
    "int",
    "jsondecode",
    "jsonencode",
    "length",
    "lower",
    "max",
    "min",
    "reverse",
    "strlen",
    "substr",
    "upper",
];

/// Calls a function of a plugin's configuration; the error is the reason without the function's name.
pub(super) fn call_in_config(name: &str, args: &[Value], around: &Surroundings<'_>) -> Outcome {
    match (name, args) {
        ("hasindex", [collection, key]) => {
            Ok(Value::Bool(super::operators::indexed(collection, key, &|| false).is_ok()))
        }
        ("hasindex", _) => Err(format!("takes 2 arguments, not {}", args.len())),
        ("int", [_]) => Ok(match number(args, 0)? {
            Number::Float(float) => Number::from_f64(float.trunc()).map_or(Value::Null, Value::Number),
            whole @ Number::Int(_) => Value::Number(whole),
        }),
        ("int", _) => Err(format!("takes 1 argument, not {}", args.len())),
        _ if CONFIG.contains(&name) => call(name, args, around),
        _ => Err(no_function(name, &mut CONFIG.iter().copied(), around)),
    }
}

/// Calls a function; the error is the reason without the function's name.
pub(super) fn call(name: &str, args: &[Value], around: &Surroundings<'_>) -> Outcome {
    let Some(function) = TABLE.iter().find(|f| f.name == name) else {
        return Err(no_function(name, &mut TABLE.iter().map(|f| f.name).chain(LAZY), around));
    };
    if args.len() < function.least || args.len() > function.most {
        let count = match (function.least, function.most) {
            (least, MANY) => format!("at least {least}"),
            (least, most) if least == most => least.to_string(),
            (least, most) => format!("{least} to {most}"),
        };
        let s = if count == "1" || count == "at least 1" { "" } else { "s" };
        return Err(format!("takes {count} argument{s}, not {}", args.len()));
    }
    match (&function.body, around.base_dir) {
        (Body::Pure(body), _) => body(args),
        (Body::Counted(body), _) => body(args, around.count),
        (Body::Hinting(body), _) => body(args, around.hints),
        (Body::Files(body), Some(dir)) => body(args, dir),
        (Body::Search(body), Some(dir)) => body(args, dir, around.count),
        (Body::Files(_) | Body::Search(_), None) => Err("filesystem functions cannot be used here".to_owned()),
    }
}

fn no_function(name: &str, known: &mut dyn Iterator<Item = &str>, around: &Surroundings<'_>) -> String {
    let hint = if (around.hints)() { did_you_mean(name, known) } else { String::new() };
    format!("there is no function of this name{hint}")
}

fn text(args: &[Value], i: usize) -> Result<String, String> {
    args[i].to_text().ok_or_else(|| wrong(i, "a string", &args[i]))
}

fn number(args: &[Value], i: usize) -> Result<Number, String> {
    args[i].to_number().ok_or_else(|| wrong(i, "a number", &args[i]))
}

fn int(args: &[Value], i: usize) -> Result<i128, String> {
    number(args, i)?.to_int().ok_or_else(|| wrong(i, "a whole number", &args[i]))
}

fn list(args: &[Value], i: usize) -> Result<&[Value], String> {
    args[i].elements().ok_or_else(|| wrong(i, "a list", &args[i]))
}

fn map(args: &[Value], i: usize) -> Result<&crate::spec::collections::BTreeMap<String, Value>, String> {
    match &args[i] {
        Value::Object(map) => Ok(map),
        other => Err(wrong(i, "a map", other)),
    }
}

fn wrong(i: usize, needed: &str, value: &Value) -> String {
    format!("argument {} must be {needed}, not {}", i + 1, value.type_name())
}
