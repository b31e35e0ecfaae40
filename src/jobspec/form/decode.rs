//! A job as somebody sends it: names of members without regard to case, null for what was not given, unknown members left out, as
//! Go's JSON has it.

use serde_json::{Map, Value as Json};

use super::types::{self, Field, Kind, Type};

/// Deepest nesting of objects and lists.
const DEEPEST: usize = 64;

/// What stands at a place of the job that cannot be there.
pub(super) type Result<T> = std::result::Result<T, String>;

/// The job in an object that has it as the member `Job`, or that is the job.
pub(super) fn job(given: &Json) -> Result<Map<String, Json>> {
    let Json::Object(members) = given else { return Err("the job must be an object".to_owned()) };
    let wrapped = members.iter().find(|(name, _)| name.eq_ignore_ascii_case("Job"));
    let (path, job) = match wrapped {
        Some((_, Json::Null)) => return Err("there is no job in it".to_owned()),
        Some((_, job)) => ("Job", job),
        None => ("Job", given),
    };
    object(job, types::of("Job"), path, 0)
}

fn object(given: &Json, of: &'static Type, path: &str, depth: usize) -> Result<Map<String, Json>> {
    let Json::Object(members) = given else { return Err(wrong(path, "an object", given)) };
    if depth > DEEPEST {
        return Err(format!("{path}: more than {DEEPEST} nested levels"));
    }
    let mut out = of.empty();
    for (name, value) in members {
        let Some(field) = of.field(name) else { continue };
        let path = format!("{path}.{}", field.name);
        // Null leaves what cannot be null as it is.
        let value = if value.is_null() { field.nothing() } else { member(value, field, &path, depth)? };
        out.insert(field.name.to_owned(), value);
    }
    Ok(out)
}

fn member(given: &Json, field: &Field, path: &str, depth: usize) -> Result<Json> {
    let as_is = |fits: bool, what: &str| if fits { Ok(given.clone()) } else { Err(wrong(path, what, given)) };
    match field.kind {
        Kind::Text => as_is(given.is_string(), "a string"),
        Kind::Bytes => as_is(given.is_string(), "a string in base64"),
        Kind::Flag => as_is(given.is_boolean(), "true or false"),
        Kind::Int(least, most) => {
            let int = given.as_i64().map(i128::from).or_else(|| given.as_u64().map(i128::from));
            let fits = int.is_some_and(|i| (least..=most).contains(&i));
            as_is(fits, &format!("a whole number from {least} to {most}"))
        }
        Kind::Duration => match given {
            // What a person writes; the command line sends nanoseconds.
            Json::String(text) => {
                crate::jobspec::duration::parse_signed(text).map(Json::from).map_err(|e| format!("{path}: {e}"))
            }
            _ => as_is(given.is_i64(), "a number of nanoseconds"),
        },
        Kind::Texts => {
            let texts = given.as_array().is_some_and(|items| items.iter().all(Json::is_string));
            as_is(texts, "a list of strings")
        }
        Kind::Ports => {
            let port = |v: &Json| v.as_u64().is_some_and(|p| u16::try_from(p).is_ok());
            as_is(given.as_array().is_some_and(|items| items.iter().all(port)), "a list of ports")
        }
        Kind::Strings => {
            let strings = given.as_object().is_some_and(|m| m.values().all(Json::is_string));
            as_is(strings, "an object of strings").map(sorted)
        }
        Kind::Lists => {
            let texts = |v: &Json| v.as_array().is_some_and(|items| items.iter().all(Json::is_string));
            as_is(given.as_object().is_some_and(|m| m.values().all(texts)), "an object of lists of strings").map(sorted)
        }
        Kind::Any => {
            if too_deep(given, DEEPEST.saturating_sub(depth)) {
                return Err(format!("{path}: more than {DEEPEST} nested levels"));
            }
            as_is(given.is_object(), "an object").map(sorted)
        }
        Kind::One(of) => Ok(Json::Object(object(given, types::of(of), path, depth + 1)?)),
        Kind::Many(of) => {
            let Json::Array(items) = given else { return Err(wrong(path, "a list", given)) };
            let each = items.iter().enumerate().filter(|(_, item)| !item.is_null());
            let each =
                each.map(|(i, v)| Ok(Json::Object(object(v, types::of(of), &format!("{path}[{i}]"), depth + 1)?)));
            Ok(Json::Array(each.collect::<Result<_>>()?))
        }
        Kind::Named(of) => {
            let Json::Object(members) = given else { return Err(wrong(path, "an object", given)) };
            let mut out = Map::new();
            for (name, value) in members.iter().filter(|(_, v)| !v.is_null()) {
                let inner = object(value, types::of(of), &format!("{path}.{name}"), depth + 1)?;
                out.insert(name.clone(), Json::Object(inner));
            }
            Ok(sorted(Json::Object(out)))
        }
    }
}

fn sorted(mut value: Json) -> Json {
    if let Json::Object(members) = &mut value {
        members.sort_keys();
    }
    value
}

fn too_deep(value: &Json, levels: usize) -> bool {
    match value {
        Json::Array(items) => levels == 0 || items.iter().any(|v| too_deep(v, levels - 1)),
        Json::Object(members) => levels == 0 || members.values().any(|v| too_deep(v, levels - 1)),
        _ => false,
    }
}

fn wrong(path: &str, needed: &str, found: &Json) -> String {
    let found = match found {
        Json::Null => "null",
        Json::Bool(_) => "true or false",
        Json::Number(_) => "a number that does not fit",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    };
    format!("{path} must be {needed}, not {found}")
}
