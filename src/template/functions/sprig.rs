//! The functions of sprig that consul-template offers, with `sprig_` before their names.

use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::Digest as _;

use super::builtin::same_float;
use super::consul::{hex, merge, number_of, replace, trim_set};
use super::{Any, AnyMap, Bool, Function, Int, Text, Type, data, int, many, name, regular, row, store, text};
use crate::spec::collections::BTreeMap;
use crate::template::codec;
use crate::template::quote::quote;
use crate::template::text as bytes;
use crate::template::types::Exec;
use crate::template::value::{Key, Kind, Value, sorted};
use crate::template::verbs::{self, Out};

type Outcome = Result<Value, String>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    row("sprig_hello", &[], |_, _| Ok(Value::text("Hello!")), "Hello!"),
    // Strings.
    row("sprig_trim", &[Text], |_, a| Ok(Value::text(bytes::trim_space(text(a, 0)))), "without white space at both ends"),
    row("sprig_trimAll", &[Text, Text], |_, a| Ok(Value::text(trim_set(text(a, 1), text(a, 0)))), "without the first argument's characters at both ends"),
    row("sprig_trimall", &[Text, Text], |_, a| Ok(Value::text(trim_set(text(a, 1), text(a, 0)))), "as `sprig_trimAll`"),
    row("sprig_trimPrefix", &[Text, Text], |_, a| Ok(Value::text(text(a, 1).strip_prefix(text(a, 0)).unwrap_or(text(a, 1)))), "without that beginning"),
    row("sprig_trimSuffix", &[Text, Text], |_, a| Ok(Value::text(text(a, 1).strip_suffix(text(a, 0)).unwrap_or(text(a, 1)))), "without that end"),
    row("sprig_upper", &[Text], |_, a| Ok(Value::text(bytes::map(text(a, 0), bytes::upper))), "in upper case"),
    row("sprig_lower", &[Text], |_, a| Ok(Value::text(bytes::map(text(a, 0), bytes::lower))), "in lower case"),
    row("sprig_title", &[Text], |_, a| Ok(Value::text(title(text(a, 0)))), "each word's first letter in upper case"),
    row("sprig_untitle", &[Text], |_, a| Ok(Value::text(untitle(text(a, 0)))), "each word's first letter in lower case"),
    row("sprig_repeat", &[Int, Text], repeat, "the text that many times"),
    row("sprig_substr", &[Int, Int, Text], substr, "the bytes from the first up to before the second place"),
    row("sprig_trunc", &[Int, Text], trunc, "the first bytes, or the last ones of a negative number"),
    row("sprig_nospace", &[Text], |_, a| Ok(Value::text(strings(text(a, 0), |c| !c.is_whitespace()))), "without white space"),
    row("sprig_swapcase", &[Text], |_, a| Ok(Value::text(bytes::map(text(a, 0), swap))), "upper case as lower case, and the reverse"),
    row("sprig_contains", &[Text, Text], |_, a| Ok(Value::Bool(text(a, 0).is_empty() || bytes::find(text(a, 1), text(a, 0)).is_some())), "whether the second has the first"),
    row("sprig_hasPrefix", &[Text, Text], |_, a| Ok(Value::Bool(text(a, 1).starts_with(text(a, 0)))), "whether it begins so"),
    row("sprig_hasSuffix", &[Text, Text], |_, a| Ok(Value::Bool(text(a, 1).ends_with(text(a, 0)))), "whether it ends so"),
    many("sprig_quote", &[Any], |x, a| quoted(x, a, true), "each value between double quotes"),
    many("sprig_squote", &[Any], |x, a| quoted(x, a, false), "each value between single quotes"),
    many("sprig_cat", &[Any], cat, "the values with blanks between them"),
    row("sprig_indent", &[Int, Text], |x, a| indent(x, a, ""), "each line indented by that many blanks"),
    row("sprig_nindent", &[Int, Text], |x, a| indent(x, a, "\n"), "as `sprig_indent`, after a line end"),
    row("sprig_replace", &[Text, Text, Text], |x, a| replace(x, text(a, 2), text(a, 0), text(a, 1)), "each occurrence of the first replaced by the second"),
    row("sprig_plural", &[Text, Text, Int], |_, a| Ok(a[usize::from(int(a, 2) != 1)].clone()), "the first for one, the second for another number"),
    row("sprig_abbrev", &[Int, Text], abbrev, "at most that many characters, with ... where some are left out"),
    row("sprig_toString", &[Any], |x, a| shown(x, &a[0]).map(Value::text), "the value as text"),
    row("sprig_split", &[Text, Text], |x, a| parts_map(x, text(a, 1), text(a, 0), None), "the parts as a map: `_0`, `_1`, ..."),
    row("sprig_splitn", &[Text, Int, Text], |x, a| parts_map(x, text(a, 2), text(a, 0), Some(int(a, 1))), "as `sprig_split`, at most that many"),
    row("sprig_splitList", &[Text, Text], split_list, "the parts as a list"),
    row("sprig_toStrings", &[Any], |x, a| Ok(Value::texts(all_shown(x, &a[0])?)), "each value as text"),
    row("sprig_join", &[Text, Any], join, "the values with the separator between them"),
    row("sprig_sortAlpha", &[Any], sort_alpha, "the values as text, in order"),
    // Numbers.
    row("sprig_atoi", &[Text], |_, a| Ok(Value::Int(name(a, 0).parse().unwrap_or(0))), "a number; 0 for what is none"),
    row("sprig_int", &[Any], |_, a| Ok(Value::Int(whole(&a[0]))), "a number; 0 for what is none"),
    row("sprig_int64", &[Any], |_, a| Ok(Value::Int64(whole(&a[0]))), "a number; 0 for what is none"),
    row("sprig_float64", &[Any], |_, a| Ok(Value::Float(real(&a[0]))), "a floating point number; 0 for what is none"),
    row("sprig_toDecimal", &[Any], to_decimal, "the number that octal digits stand for"),
    row("sprig_add1", &[Any], |_, a| Ok(Value::Int64(whole(&a[0]).wrapping_add(1))), "one more"),
    many("sprig_add", &[Any], |_, a| Ok(Value::Int64(a.iter().map(whole).fold(0, i64::wrapping_add))), "the sum"),
    row("sprig_sub", &[Any, Any], |_, a| Ok(Value::Int64(whole(&a[0]).wrapping_sub(whole(&a[1])))), "the first less the second"),
    row("sprig_div", &[Any, Any], |_, a| divided(&a[0], &a[1], i64::wrapping_div), "the first divided by the second"),
    row("sprig_mod", &[Any, Any], |_, a| divided(&a[0], &a[1], i64::wrapping_rem), "what is left of the first when divided by the second"),
    many("sprig_mul", &[Any, Any], |_, a| Ok(Value::Int64(a.iter().map(whole).fold(1, i64::wrapping_mul))), "the product"),
    many("sprig_max", &[Any, Any], |_, a| Ok(Value::Int64(a.iter().map(whole).max().unwrap_or(0))), "the greatest"),
    many("sprig_biggest", &[Any, Any], |_, a| Ok(Value::Int64(a.iter().map(whole).max().unwrap_or(0))), "the greatest"),
    many("sprig_min", &[Any, Any], |_, a| Ok(Value::Int64(a.iter().map(whole).min().unwrap_or(0))), "the least"),
    many("sprig_maxf", &[Any, Any], |_, a| Ok(Value::Float(a.iter().map(real).fold(f64::NEG_INFINITY, f64::max))), "the greatest"),
    many("sprig_minf", &[Any, Any], |_, a| Ok(Value::Float(a.iter().map(real).fold(f64::INFINITY, f64::min))), "the least"),
    row("sprig_ceil", &[Any], |_, a| Ok(Value::Float(real(&a[0]).ceil())), "the whole number above"),
    row("sprig_floor", &[Any], |_, a| Ok(Value::Float(real(&a[0]).floor())), "the whole number below"),
    many("sprig_round", &[Any, Int, Type::Float], round, "rounded to that many digits behind the point"),
    row("sprig_until", &[Int], |x, a| steps(x, 0, int(a, 0), if int(a, 0) < 0 { -1 } else { 1 }), "the numbers from 0 up to before it"),
    row("sprig_untilStep", &[Int, Int, Int], |x, a| steps(x, int(a, 0), int(a, 1), int(a, 2)), "the numbers from the first up to before the second, in steps of the third"),
    // Defaults.
    many("sprig_default", &[Any, Any], |_, a| Ok(a.get(1).filter(|v| v.is_true()).unwrap_or(&a[0]).clone()), "the second, or the first where that is empty"),
    row("sprig_empty", &[Any], |_, a| Ok(Value::Bool(!a[0].is_true())), "whether it is empty"),
    many("sprig_coalesce", &[Any], |_, a| Ok(a.iter().find(|v| v.is_true()).cloned().unwrap_or(Value::NilAny)), "the first that is not empty"),
    many("sprig_all", &[Any], |_, a| Ok(Value::Bool(a.iter().all(Value::is_true))), "whether none is empty"),
    many("sprig_any", &[Any], |_, a| Ok(Value::Bool(a.iter().any(Value::is_true))), "whether one is not empty"),
    row("sprig_ternary", &[Any, Any, Bool], |_, a| Ok(a[usize::from(!a[2].is_true())].clone()), "the first where the last is true, else the second"),
    row("sprig_fail", &[Text], |_, a| Err(name(a, 0)), "an error with that text"),
    // JSON.
    row("sprig_fromJson", &[Text], |_, a| Ok(codec::parse_json(text(a, 0)).unwrap_or(Value::NilAny)), "what JSON says; nothing for what is none"),
    row("sprig_mustFromJson", &[Text], |_, a| codec::parse_json(text(a, 0)), "what JSON says"),
    row("sprig_toJson", &[Any], |x, a| data::json(x, &a[0], None, true).or(Ok(Value::text(b""))), "JSON in one line"),
    row("sprig_mustToJson", &[Any], |x, a| data::json(x, &a[0], None, true), "JSON in one line"),
    row("sprig_toPrettyJson", &[Any], |x, a| data::json(x, &a[0], Some("  "), true).or(Ok(Value::text(b""))), "JSON in lines"),
    row("sprig_mustToPrettyJson", &[Any], |x, a| data::json(x, &a[0], Some("  "), true), "JSON in lines"),
    row("sprig_toRawJson", &[Any], |x, a| data::json(x, &a[0], None, false), "JSON in one line, `<`, `>` and `&` as they are"),
    row("sprig_mustToRawJson", &[Any], |x, a| data::json(x, &a[0], None, false), "JSON in one line, `<`, `>` and `&` as they are"),
    // Types.
    row("sprig_typeOf", &[Any], |_, a| Ok(Value::text(type_of(&a[0]))), "the name of its type"),
    row("sprig_typeIs", &[Text, Any], |_, a| Ok(Value::Bool(name(a, 0) == type_of(&a[1]))), "whether it has that type"),
    row("sprig_typeIsLike", &[Text, Any], |_, a| Ok(Value::Bool({ let (wanted, found) = (name(a, 0), type_of(&a[1])); found.strip_prefix('*') == Some(&wanted) || found == wanted })), "as `sprig_typeIs`, behind a pointer too"),
    row("sprig_kindOf", &[Any], |_, a| Ok(Value::text(kind_of(&a[0]))), "the kind of its type"),
    row("sprig_kindIs", &[Text, Any], |_, a| Ok(Value::Bool(name(a, 0) == kind_of(&a[1]))), "whether its type is of that kind"),
    row("sprig_deepEqual", &[Any, Any], |_, a| Ok(Value::Bool(same(&a[0], &a[1], 0)?)), "whether two values are the same all the way down"),
    // Paths.
    row("sprig_base", &[Text], |_, a| Ok(Value::text(base(&name(a, 0)))), "the last part of a path"),
    row("sprig_dir", &[Text], |_, a| Ok(Value::text(dir(&name(a, 0)))), "a path without its last part"),
    row("sprig_clean", &[Text], |_, a| Ok(Value::text(clean(&name(a, 0)))), "the shortest path to the same place"),
    row("sprig_ext", &[Text], |_, a| Ok(Value::text(extension(&name(a, 0)))), "what follows the last point"),
    row("sprig_isAbs", &[Text], |_, a| Ok(Value::Bool(text(a, 0).starts_with(b"/"))), "whether it begins at the root"),
    row("sprig_osBase", &[Text], |_, a| Ok(Value::text(base(&name(a, 0)))), "the last part of a path"),
    row("sprig_osDir", &[Text], |_, a| Ok(Value::text(dir(&name(a, 0)))), "a path without its last part"),
    row("sprig_osClean", &[Text], |_, a| Ok(Value::text(clean(&name(a, 0)))), "the shortest path to the same place"),
    row("sprig_osExt", &[Text], |_, a| Ok(Value::text(extension(&name(a, 0)))), "what follows the last point"),
    row("sprig_osIsAbs", &[Text], |_, a| Ok(Value::Bool(text(a, 0).starts_with(b"/"))), "whether it begins at the root"),
    // Encodings and sums.
    row("sprig_b64enc", &[Text], |_, a| Ok(Value::text(STANDARD.encode(text(a, 0)))), "Base64"),
    row("sprig_b64dec", &[Text], |_, a| Ok(Value::text(STANDARD.decode(text(a, 0)).unwrap_or_else(|e| e.to_string().into_bytes()))), "the bytes that Base64 stands for"),
    row("sprig_sha1sum", &[Text], |_, a| Ok(hex(&sha1::Sha1::digest(text(a, 0)))), "SHA-1, as hexadecimal digits"),
    row("sprig_sha256sum", &[Text], |_, a| Ok(hex(&sha2::Sha256::digest(text(a, 0)))), "SHA-256, as hexadecimal digits"),
    row("sprig_sha512sum", &[Text], |_, a| Ok(hex(&sha2::Sha512::digest(text(a, 0)))), "SHA-512, as hexadecimal digits"),
    row("sprig_adler32sum", &[Text], |_, a| Ok(Value::text(adler32(text(a, 0)).to_string())), "Adler-32, as a number"),
    // Lists.
    many("sprig_list", &[Any], list, "a list"),
    many("sprig_tuple", &[Any], list, "a list"),
    row("sprig_first", &[Any], |_, a| Ok(items(&a[0])?.first().cloned().unwrap_or(Value::NilAny)), "the first"),
    row("sprig_mustFirst", &[Any], |_, a| Ok(items(&a[0])?.first().cloned().unwrap_or(Value::NilAny)), "the first"),
    row("sprig_last", &[Any], |_, a| Ok(items(&a[0])?.last().cloned().unwrap_or(Value::NilAny)), "the last"),
    row("sprig_mustLast", &[Any], |_, a| Ok(items(&a[0])?.last().cloned().unwrap_or(Value::NilAny)), "the last"),
    row("sprig_rest", &[Any], |x, a| { let l = items(&a[0])?; list(x, l.get(1..).unwrap_or_default()) }, "all but the first"),
    row("sprig_mustRest", &[Any], |x, a| { let l = items(&a[0])?; list(x, l.get(1..).unwrap_or_default()) }, "all but the first"),
    row("sprig_initial", &[Any], |x, a| { let l = items(&a[0])?; list(x, &l[..l.len().saturating_sub(1)]) }, "all but the last"),
    row("sprig_mustInitial", &[Any], |x, a| { let l = items(&a[0])?; list(x, &l[..l.len().saturating_sub(1)]) }, "all but the last"),
    row("sprig_append", &[Any, Any], append, "the list with one more at its end"),
    row("sprig_push", &[Any, Any], append, "as `sprig_append`"),
    row("sprig_mustAppend", &[Any, Any], append, "as `sprig_append`"),
    row("sprig_mustPush", &[Any, Any], append, "as `sprig_append`"),
    row("sprig_prepend", &[Any, Any], prepend, "the list with one more at its beginning"),
    row("sprig_mustPrepend", &[Any, Any], prepend, "as `sprig_prepend`"),
    many("sprig_concat", &[Any], concat, "the lists one after the other"),
    row("sprig_reverse", &[Any], reverse, "the list from its end"),
    row("sprig_mustReverse", &[Any], reverse, "as `sprig_reverse`"),
    row("sprig_uniq", &[Any], uniq, "each value once"),
    row("sprig_mustUniq", &[Any], uniq, "as `sprig_uniq`"),
    row("sprig_compact", &[Any], compact, "without what is empty"),
    row("sprig_mustCompact", &[Any], compact, "as `sprig_compact`"),
    many("sprig_without", &[Any, Any], without, "the list without these values"),
    many("sprig_mustWithout", &[Any, Any], without, "as `sprig_without`"),
    row("sprig_has", &[Any, Any], has, "whether the list behind has the value"),
    row("sprig_mustHas", &[Any, Any], has, "as `sprig_has`"),
    many("sprig_slice", &[Any, Any], slice, "a part of the list"),
    many("sprig_mustSlice", &[Any, Any], slice, "as `sprig_slice`"),
    row("sprig_chunk", &[Int, Any], chunk, "lists of that many"),
    row("sprig_mustChunk", &[Int, Any], chunk, "as `sprig_chunk`"),
    // Maps.
    many("sprig_dict", &[Any], dict, "a map of keys and values in turn"),
    row("sprig_get", &[AnyMap, Text], |_, a| Ok(map(&a[0])?.get(&Key::text(text(a, 1))).unwrap_or(Value::text(b""))), "the value of a key; empty where there is none"),
    row("sprig_set", &[AnyMap, Text, Any], set, "the map, which has the value from now on"),
    row("sprig_unset", &[AnyMap, Text], unset, "the map, which has the key no more"),
    row("sprig_hasKey", &[AnyMap, Text], |_, a| Ok(Value::Bool(map(&a[0])?.get(&Key::text(text(a, 1))).is_some())), "whether the map has the key"),
    many("sprig_keys", &[AnyMap], keys, "the keys of the maps"),
    row("sprig_values", &[AnyMap], |x, a| { let all: Vec<Value> = map(&a[0])?.pairs().into_iter().map(|(_, v)| v).collect(); list(x, &all) }, "the values of the map"),
    many("sprig_pluck", &[Text, AnyMap], pluck, "the values that the maps have for the key"),
    many("sprig_pick", &[AnyMap, Text], |_, a| chosen(a, true), "the map with these keys only"),
    many("sprig_omit", &[AnyMap, Text], |_, a| chosen(a, false), "the map without these keys"),
    many("sprig_merge", &[AnyMap, AnyMap], |x, a| merged(x, a, false), "the first map, with what only the others have"),
    many("sprig_mustMerge", &[AnyMap, AnyMap], |x, a| merged(x, a, false), "as `sprig_merge`"),
    many("sprig_mergeOverwrite", &[AnyMap, AnyMap], |x, a| merged(x, a, true), "the first map, with all that the others have"),
    many("sprig_mustMergeOverwrite", &[AnyMap, AnyMap], |x, a| merged(x, a, true), "as `sprig_mergeOverwrite`"),
    many("sprig_dig", &[Text, Any], dig, "the value below these keys of the map at the end, or what stands before it"),
    row("sprig_deepCopy", &[Any], |x, a| copy(x, &a[0], 0), "a copy that is changed without the other"),
    row("sprig_mustDeepCopy", &[Any], |x, a| copy(x, &a[0], 0), "as `sprig_deepCopy`"),
    // Regular expressions.
    row("sprig_regexMatch", &[Text, Text], |_, a| Ok(Value::Bool(regular::compile(text(a, 0)).is_ok_and(|r| r.is_match(text(a, 1))))), "whether it matches"),
    row("sprig_mustRegexMatch", &[Text, Text], |_, a| Ok(Value::Bool(regular::compile(text(a, 0))?.is_match(text(a, 1)))), "whether it matches"),
    row("sprig_regexFind", &[Text, Text], regex_find, "the first match"),
    row("sprig_mustRegexFind", &[Text, Text], regex_find, "the first match"),
    row("sprig_regexFindAll", &[Text, Text, Int], regex_find_all, "the matches, at most that many; -1 for all"),
    row("sprig_mustRegexFindAll", &[Text, Text, Int], regex_find_all, "as `sprig_regexFindAll`"),
    row("sprig_regexReplaceAll", &[Text, Text, Text], |x, a| regex_replace(x, a, false), "each match replaced; `$1` stands for a group"),
    row("sprig_mustRegexReplaceAll", &[Text, Text, Text], |x, a| regex_replace(x, a, false), "as `sprig_regexReplaceAll`"),
    row("sprig_regexReplaceAllLiteral", &[Text, Text, Text], |x, a| regex_replace(x, a, true), "each match replaced"),
    row("sprig_mustRegexReplaceAllLiteral", &[Text, Text, Text], |x, a| regex_replace(x, a, true), "as `sprig_regexReplaceAllLiteral`"),
    row("sprig_regexSplit", &[Text, Text, Int], regex_split, "the parts between the matches"),
    row("sprig_mustRegexSplit", &[Text, Text, Int], regex_split, "as `sprig_regexSplit`"),
    row("sprig_regexQuoteMeta", &[Text], |_, a| Ok(Value::text(quote_meta(text(a, 0)))), "an expression that matches the text itself"),
];

/// A value as text, as sprig has it.
fn shown(exec: &Exec<'_>, value: &Value) -> Result<Vec<u8>, String> {
    if let Value::Text(text) = value {
        return Ok(text.to_vec());
    }
    let mut out = Out::new(exec.room());
    verbs::write_plain(&mut out, value, 0)?;
    Ok(out.into_bytes())
}

fn all_shown(exec: &mut Exec<'_>, value: &Value) -> Result<Vec<Vec<u8>>, String> {
    let items: Vec<Value> = match value {
        Value::List(list) => list.items.iter().filter(|v| !v.is_nil()).cloned().collect(),
        value if value.is_nil() => Vec::new(),
        value => vec![value.clone()],
    };
    let mut all = Vec::with_capacity(items.len());
    for item in &items {
        let text = shown(exec, item)?;
        exec.spend(text.len() + 32)?;
        all.push(text);
    }
    Ok(all)
}

fn items(value: &Value) -> Result<&[Value], String> {
    match value {
        Value::List(list) => Ok(&list.items),
        other => Err(format!("it takes a list, not a value of type {}", other.type_name())),
    }
}

fn map(value: &Value) -> Result<Rc<crate::template::value::Map>, String> {
    match value {
        Value::Map(map) => Ok(Rc::clone(map)),
        other => Err(format!("it takes a map, not a value of type {}", other.type_name())),
    }
}

fn whole(value: &Value) -> i64 {
    match value {
        Value::Float(f) => *f as i64,
        Value::Bool(b) => i64::from(*b),
        Value::Text(text) => {
            let text = String::from_utf8_lossy(text).into_owned();
            number_of(&text).or_else(|| text.parse::<f64>().ok().map(|f| f as i64)).unwrap_or(0)
        }
        value => value.signed().or(value.unsigned().map(|n| n as i64)).unwrap_or(0),
    }
}

fn real(value: &Value) -> f64 {
    match value {
        Value::Float(f) => *f,
        Value::Bool(b) => f64::from(u8::from(*b)),
        Value::Text(text) => String::from_utf8_lossy(text).parse().unwrap_or(0.0),
        value => value.signed().map(|n| n as f64).or(value.unsigned().map(|n| n as f64)).unwrap_or(0.0),
    }
}

fn divided(a: &Value, b: &Value, by: fn(i64, i64) -> i64) -> Outcome {
    match whole(b) {
        0 => Err("integer divide by zero".to_owned()),
        n => Ok(Value::Int64(by(whole(a), n))),
    }
}

fn to_decimal(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let text = match &arguments[0] {
        Value::Text(text) => String::from_utf8_lossy(text).into_owned(),
        value => whole(value).to_string(),
    };
    Ok(Value::Int64(i64::from_str_radix(&text, 8).unwrap_or(0)))
}

fn round(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let up_from = match arguments.get(2) {
        Some(Value::Float(f)) => *f,
        _ => 0.5,
    };
    let places = 10f64.powi(int(arguments, 1).clamp(-300, 300) as i32);
    let digit = places * real(&arguments[0]);
    let part = digit.fract();
    Ok(Value::Float(if part >= up_from { digit.ceil() } else { digit.floor() } / places))
}

fn steps(exec: &mut Exec<'_>, from: i64, to: i64, step: i64) -> Outcome {
    let mut items = Vec::new();
    let mut n = i128::from(from);
    let goes_on = |n: i128| if step > 0 { n < i128::from(to) } else { n > i128::from(to) };
    while step != 0 && (from < to) == (step > 0) && goes_on(n) {
        exec.spend(32)?;
        items.push(Value::Int(n as i64));
        n += i128::from(step);
    }
    Ok(Value::list(Kind::Objects("int"), items))
}

fn strings(text: &[u8], keep: impl Fn(char) -> bool) -> Vec<u8> {
    let mut out = Vec::new();
    for rune in bytes::runes(text).filter(|r| keep(r.or_replacement())) {
        bytes::push(&mut out, rune.or_replacement());
    }
    out
}

fn swap(c: char) -> char {
    if c.is_uppercase() { bytes::lower(c) } else { bytes::upper(c) }
}

/// Letters after what separates words in upper case.
fn title(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut inside = false;
    for rune in bytes::runes(text) {
        let c = rune.or_replacement();
        bytes::push(&mut out, if inside { c } else { bytes::upper(c) });
        inside = if c.is_ascii() {
            c.is_ascii_alphanumeric() || c == '_'
        } else {
            c.is_alphanumeric() || !c.is_whitespace()
        };
    }
    out
}

fn untitle(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut inside = false;
    for rune in bytes::runes(text) {
        let c = rune.or_replacement();
        bytes::push(&mut out, if inside { c } else { bytes::lower(c) });
        inside = !c.is_whitespace();
    }
    out
}

fn repeat(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let count = usize::try_from(int(arguments, 0)).map_err(|_| "a negative number of repetitions".to_owned())?;
    let part = text(arguments, 1);
    if part.len().saturating_mul(count) > exec.room() {
        return Err("the result is too large".to_owned());
    }
    Ok(Value::text(part.repeat(count)))
}

fn substr(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let (from, to, whole) = (int(arguments, 0), int(arguments, 1), text(arguments, 2));
    let end = usize::try_from(to).ok().filter(|e| *e <= whole.len()).unwrap_or(whole.len());
    let start = usize::try_from(from).unwrap_or(0);
    let part = if from < 0 { whole.get(..end) } else { whole.get(start..end) };
    part.map(Value::text).ok_or_else(|| format!("slice bounds out of range [{start}:{end}]"))
}

fn trunc(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let (count, whole) = (int(arguments, 0), text(arguments, 1));
    let length = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    Ok(Value::text(match (count < 0, length >= whole.len()) {
        (_, true) => whole,
        (true, false) => &whole[whole.len() - length..],
        (false, false) => &whole[..length],
    }))
}

fn abbrev(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let (width, whole) = (int(arguments, 0), text(arguments, 1));
    let width = usize::try_from(width).unwrap_or(0);
    if width < 4 || whole.len() <= width {
        return Ok(Value::text(whole));
    }
    Ok(Value::text([&whole[..width - 3], b"..."].concat()))
}

fn quoted(exec: &mut Exec<'_>, arguments: &[Value], double: bool) -> Outcome {
    let mut out = Out::new(exec.room());
    let mut first = true;
    for value in arguments.iter().filter(|v| !v.is_nil()) {
        if !std::mem::take(&mut first) {
            out.put(b" ")?;
        }
        let text = shown(exec, value)?;
        if double {
            if text.len() * 4 > exec.room() {
                return Err("the result is too large".to_owned());
            }
            out.put(&quote(&text))?;
        } else {
            out.put(b"'")?;
            out.put(&text)?;
            out.put(b"'")?;
        }
    }
    Ok(Value::text(out.into_bytes()))
}

fn cat(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let mut out = Out::new(exec.room());
    let mut first = true;
    for value in arguments.iter().filter(|v| !v.is_nil()) {
        if !std::mem::take(&mut first) {
            out.put(b" ")?;
        }
        verbs::write_plain(&mut out, value, 0)?;
    }
    Ok(Value::text(out.into_bytes()))
}

fn indent(exec: &mut Exec<'_>, arguments: &[Value], before: &str) -> Outcome {
    let blanks = usize::try_from(int(arguments, 0)).map_err(|_| "a negative number of blanks".to_owned())?;
    let mut out = Out::new(exec.room());
    out.put(before.as_bytes())?;
    out.fill(b' ', blanks)?;
    for byte in text(arguments, 1) {
        out.put(&[*byte])?;
        if *byte == b'\n' {
            out.fill(b' ', blanks)?;
        }
    }
    Ok(Value::text(out.into_bytes()))
}

fn parts_map(exec: &mut Exec<'_>, whole: &[u8], separator: &[u8], most: Option<i64>) -> Outcome {
    let most = most.and_then(|n| usize::try_from(n).ok());
    let parts = if most == Some(0) { Vec::new() } else { bytes::split(whole, separator, most) };
    exec.spend(parts.len() * 96)?;
    let entry = |(i, part): (usize, &&[u8])| (Key::text(format!("_{i}").as_bytes()), Value::text(part));
    Ok(Value::map(Kind::Text, sorted(parts.iter().enumerate().map(entry))))
}

fn split_list(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let parts = bytes::split(text(arguments, 1), text(arguments, 0), None);
    exec.spend(parts.len() * 32)?;
    Ok(Value::texts(parts))
}

fn join(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let parts = all_shown(exec, &arguments[1])?;
    let mut out = Out::new(exec.room());
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            out.put(text(arguments, 0))?;
        }
        out.put(part)?;
    }
    Ok(Value::text(out.into_bytes()))
}

fn sort_alpha(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let mut parts = all_shown(exec, &arguments[0])?;
    parts.sort_unstable();
    Ok(Value::texts(parts))
}

fn type_of(value: &Value) -> String {
    if matches!(value, Value::Nil | Value::NilAny) { "<nil>".to_owned() } else { value.type_name() }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Nil | Value::NilAny => "invalid",
        Value::Object(object) if object.is_plain() => "struct",
        Value::NilPointer(_) | Value::Object(_) | Value::Scratch => "ptr",
        Value::Bool(_) => "bool",
        Value::Int(_) => "int",
        Value::Int64(_) => "int64",
        Value::Uint64(_) => "uint64",
        Value::Byte(_) => "uint8",
        Value::Float(_) => "float64",
        Value::Text(_) => "string",
        Value::List(_) => "slice",
        Value::Map(map) if map.owner.is_some() => "ptr",
        Value::Map(_) => "map",
        Value::Loop(..) => "chan",
    }
}

/// As `reflect.DeepEqual`.
fn same(a: &Value, b: &Value, depth: usize) -> Result<bool, String> {
    if depth > 1000 {
        return Err("the values nest deeper than 1000".to_owned());
    }
    Ok(match (a, b) {
        (Value::Nil | Value::NilAny, Value::Nil | Value::NilAny) => true,
        (Value::NilPointer(a), Value::NilPointer(b)) => a == b,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) | (Value::Int64(a), Value::Int64(b)) => a == b,
        (Value::Uint64(a), Value::Uint64(b)) => a == b,
        (Value::Byte(a), Value::Byte(b)) => a == b,
        (Value::Float(a), Value::Float(b)) => same_float(*a, *b),
        (Value::Text(a), Value::Text(b)) => a == b,
        (Value::List(a), Value::List(b)) => {
            if a.kind != b.kind || a.items.len() != b.items.len() {
                return Ok(false);
            }
            for (x, y) in a.items.iter().zip(&b.items) {
                if !same(x, y, depth + 1)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Map(a), Value::Map(b)) => {
            let (x, y) = (a.pairs(), b.pairs());
            if a.kind != b.kind || a.keyed != b.keyed || x.len() != y.len() {
                return Ok(false);
            }
            for ((k, v), (l, w)) in x.iter().zip(&y) {
                if k != l || !same(v, w, depth + 1)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Object(a), Value::Object(b)) => a.is_same(b),
        _ => false,
    })
}

fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if rooted => {}
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    match (rooted, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    }
}

fn base(path: &str) -> String {
    if path.is_empty() {
        return ".".to_owned();
    }
    let trimmed = path.trim_end_matches('/');
    if trimmed.is_empty() { "/".to_owned() } else { trimmed.rsplit('/').next().unwrap_or("").to_owned() }
}

fn dir(path: &str) -> String {
    clean(path.rfind('/').map_or("", |at| &path[..=at]))
}

fn extension(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or("");
    name.rfind('.').map_or(String::new(), |at| name[at..].to_owned())
}

fn adler32(text: &[u8]) -> u32 {
    let (mut a, mut b) = (1u32, 0u32);
    for byte in text {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    b << 16 | a
}

fn list(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    exec.spend(arguments.len() * 32)?;
    Ok(Value::list(Kind::Any, arguments.iter().cloned().map(Value::boxed).collect()))
}

fn append(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let mut all = items(&arguments[0])?.to_vec();
    all.push(arguments[1].clone());
    list(exec, &all)
}

fn prepend(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let mut all = vec![arguments[1].clone()];
    all.extend_from_slice(items(&arguments[0])?);
    list(exec, &all)
}

fn concat(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let mut all = Vec::new();
    for value in arguments {
        let items = items(value)?;
        exec.spend(items.len() * 32)?;
        all.extend_from_slice(items);
    }
    list(exec, &all)
}

fn reverse(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let all: Vec<Value> = items(&arguments[0])?.iter().rev().cloned().collect();
    list(exec, &all)
}

fn uniq(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let mut all: Vec<Value> = Vec::new();
    for item in items(&arguments[0])? {
        if !found(exec, &all, item)? {
            all.push(item.clone());
        }
    }
    list(exec, &all)
}

/// Whether `all` has a value like `wanted`; each look is a step.
fn found(exec: &mut Exec<'_>, all: &[Value], wanted: &Value) -> Result<bool, String> {
    for item in all {
        exec.step()?;
        if same(item, wanted, 0)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn compact(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let all: Vec<Value> = items(&arguments[0])?.iter().filter(|v| v.is_true()).cloned().collect();
    list(exec, &all)
}

fn without(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let mut all = Vec::new();
    for item in items(&arguments[0])? {
        if !found(exec, &arguments[1..], item)? {
            all.push(item.clone());
        }
    }
    list(exec, &all)
}

fn has(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    if arguments[1].is_nil() {
        return Ok(Value::Bool(false));
    }
    let all = items(&arguments[1])?.to_vec();
    found(exec, &all, &arguments[0]).map(Value::Bool)
}

fn slice(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let all = items(&arguments[0])?;
    let place = |i: usize, usual: usize| arguments.get(i).map_or(Ok(usual), |v| usize::try_from(whole(v)));
    let bad = |_| "slice bounds out of range".to_owned();
    let (from, to) = (place(1, 0).map_err(bad)?, place(2, all.len()).map_err(bad)?);
    let part = all.get(from..to).ok_or_else(|| format!("slice bounds out of range [{from}:{to}]"))?;
    list(exec, part)
}

fn chunk(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let size = usize::try_from(int(arguments, 0)).ok().filter(|n| *n > 0).ok_or("the size has to be above 0")?;
    let all = items(&arguments[1])?;
    exec.spend(all.len() * 64)?;
    let chunks = all.chunks(size).map(|part| Value::list(Kind::Any, part.to_vec())).collect();
    Ok(Value::list(Kind::Lists, chunks))
}

fn dict(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    exec.spend(arguments.len() * 64)?;
    let mut entries = BTreeMap::new();
    for pair in arguments.chunks(2) {
        let key = shown(exec, &pair[0])?;
        entries.insert(Key::text(&key), pair.get(1).cloned().unwrap_or(Value::text(b"")).boxed());
    }
    Ok(Value::map(Kind::Any, entries))
}

fn set(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    store::put(exec, &map(&arguments[0])?, Key::text(text(arguments, 1)), &arguments[2])?;
    Ok(arguments[0].clone())
}

fn unset(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let old = map(&arguments[0])?.entries.borrow_mut().remove(&Key::text(text(arguments, 1)));
    drop(old);
    Ok(arguments[0].clone())
}

fn keys(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let mut all = Vec::new();
    for value in arguments {
        all.extend(map(value)?.pairs().into_iter().map(|(k, _)| k.value()));
    }
    exec.spend(all.len() * 32)?;
    Ok(Value::list(Kind::Text, all))
}

fn pluck(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let key = Key::text(text(arguments, 0));
    let mut all = Vec::new();
    for value in &arguments[1..] {
        all.extend(map(value)?.get(&key));
    }
    list(exec, &all)
}

fn chosen(arguments: &[Value], with: bool) -> Outcome {
    let wanted: Vec<Key> = (1..arguments.len()).map(|i| Key::text(text(arguments, i))).collect();
    let pairs = map(&arguments[0])?.pairs().into_iter().filter(|(key, _)| wanted.contains(key) == with);
    Ok(Value::map(Kind::Any, sorted(pairs)))
}

/// The first map itself gets what the others have.
fn merged(exec: &mut Exec<'_>, arguments: &[Value], others_count: bool) -> Outcome {
    let target = map(&arguments[0])?;
    for other in &arguments[1..] {
        let Value::Map(all) = merge(&arguments[0], other, others_count, 0)? else { continue };
        for (key, value) in all.pairs() {
            store::put(exec, &target, key, &value)?;
        }
    }
    Ok(arguments[0].clone())
}

fn dig(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let Some((last, before)) = arguments.split_last() else {
        return Err("dig needs at least three arguments".to_owned());
    };
    let Some((usual, path)) = before.split_last().filter(|(_, path)| !path.is_empty()) else {
        return Err("dig needs at least three arguments".to_owned());
    };
    let mut value = last.clone();
    for key in path {
        let Value::Text(key) = key else { return Err("the keys have to be strings".to_owned()) };
        match map(&value)?.get(&Key::Text(key.clone())) {
            Some(next) => value = next,
            None => return Ok(usual.clone()),
        }
    }
    Ok(value)
}

fn copy(exec: &mut Exec<'_>, value: &Value, depth: usize) -> Outcome {
    if depth > 1000 {
        return Err("the value nests deeper than 1000".to_owned());
    }
    exec.spend(64)?;
    Ok(match value {
        Value::List(list) => {
            let items: Result<Vec<Value>, String> = list.items.iter().map(|v| copy(exec, v, depth + 1)).collect();
            Value::list(list.kind, items?)
        }
        Value::Map(map) if map.owner.is_none() => {
            let mut entries = BTreeMap::new();
            for (key, value) in map.pairs() {
                entries.insert(key, copy(exec, &value, depth + 1)?);
            }
            Value::map_keyed(map.keyed, map.kind, entries)
        }
        other => other.clone(),
    })
}

fn regex_find(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let found = regular::compile(text(arguments, 0))?;
    let found = found.find(text(arguments, 1)).map_or(&b""[..], |m| m.as_bytes());
    Ok(Value::text(found))
}

fn regex_find_all(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let pattern = regular::compile(text(arguments, 0))?;
    let most = usize::try_from(int(arguments, 2)).unwrap_or(usize::MAX);
    let found: Vec<&[u8]> = pattern.find_iter(text(arguments, 1)).take(most).map(|m| m.as_bytes()).collect();
    exec.spend(found.len() * 32)?;
    Ok(Value::texts(found))
}

fn regex_replace(exec: &mut Exec<'_>, arguments: &[Value], literal: bool) -> Outcome {
    let pattern = regular::compile(text(arguments, 0))?;
    let mut out = Out::new(exec.room());
    regular::replace_all(&pattern, text(arguments, 1), text(arguments, 2), literal, &mut out)?;
    Ok(Value::text(out.into_bytes()))
}

fn regex_split(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let pattern = regular::compile(text(arguments, 0))?;
    let whole = text(arguments, 1);
    let parts: Vec<&[u8]> = match int(arguments, 2) {
        0 => Vec::new(),
        n if n > 0 => pattern.splitn(whole, n as usize).collect(),
        _ => pattern.split(whole).collect(),
    };
    exec.spend(parts.len() * 32)?;
    Ok(Value::texts(parts))
}

fn quote_meta(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for byte in text {
        if b"\\.+*?()|[]{}^$".contains(byte) {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out
}
