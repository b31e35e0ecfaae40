//! JSON of types of ours, by one reader and one writer. For each type that serde derives for there is one instance of its code for
//! each pair of reader and writer that it meets, and those of `serde_json` for text, for values and for indented text are three;
//! they write a comma, a quote and a digit at each field, too. Here a field is a call.
//!
//! The functions are named as those of `serde_json`, and their texts are the same. A struct is an object, though, never a list; of
//! members with the same name the last one counts; and only a fault of the text itself has a place, not one of what it says. What
//! is a [`Value`] already is for `serde_json`.
//!
//! A struct is read by the names of its fields. Hence serde's `alias` and `deny_unknown_fields` do nothing in it, and an `Option`
//! whose member is missing is `None`, whatever its default.

mod object;
mod read;
mod write;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Error, Value};

pub(crate) use object::{List, Object, json, of};

/// Reads a text.
///
/// # Errors
/// It is not JSON, or not of this type.
pub fn from_slice<T: DeserializeOwned>(text: &[u8]) -> Result<T, Error> {
    from_value(&serde_json::from_slice(text)?)
}

/// Reads a text.
///
/// # Errors
/// It is not JSON, or not of this type.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    from_slice(text.as_bytes())
}

/// Reads a value.
///
/// # Errors
/// It is not of this type.
pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, Error> {
    T::deserialize(read::Node(Some(value)))
}

/// Writes a text without spaces.
///
/// # Errors
/// A map whose keys are neither texts nor whole numbers, or what a type's own `Serialize` refuses.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, Error> {
    let mut out = write::Out::text();
    value.serialize(write::Writer(&mut out))?;
    Ok(out.into_text())
}

/// As [`to_vec`].
///
/// # Errors
/// As those of [`to_vec`].
pub fn to_string<T: Serialize + ?Sized>(value: &T) -> Result<String, Error> {
    Ok(String::from_utf8(to_vec(value)?).expect("JSON of texts is text"))
}

/// Writes a text for people.
///
/// # Errors
/// As those of [`to_vec`].
pub fn to_vec_pretty<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, Error> {
    serde_json::to_vec_pretty(&to_value(value)?)
}

/// As [`to_vec_pretty`].
///
/// # Errors
/// As those of [`to_vec`].
pub fn to_string_pretty<T: Serialize + ?Sized>(value: &T) -> Result<String, Error> {
    serde_json::to_string_pretty(&to_value(value)?)
}

/// Makes a value.
///
/// # Errors
/// As those of [`to_vec`].
pub fn to_value<T: Serialize + ?Sized>(value: &T) -> Result<Value, Error> {
    let mut out = write::Out::value();
    value.serialize(write::Writer(&mut out))?;
    Ok(out.into_value())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::spec::collections::BTreeMap;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    enum Kind {
        Plain,
        One(u8),
        Two(i64, String),
        Named { a: bool, b: Option<char> },
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Inner {
        text: String,
        bytes: Vec<u8>,
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Whole {
        none: Option<u8>,
        unit: (),
        pair: (i8, f64),
        numbers: Vec<i64>,
        large: u64,
        kinds: Vec<Kind>,
        by_number: BTreeMap<i32, Inner>,
        by_text: BTreeMap<String, Vec<()>>,
        any: Value,
        #[serde(skip_serializing_if = "Option::is_none")]
        left_out: Option<bool>,
        #[serde(flatten)]
        flat: Inner,
    }

    fn whole() -> Whole {
        let inner = Inner { text: "\"\\\n\u{1}\u{7f}ä\u{2028}😀".to_owned(), bytes: vec![0, 255] };
        Whole {
            none: None,
            unit: (),
            pair: (-128, 0.1),
            numbers: vec![i64::MIN, -1, 0, i64::MAX],
            large: u64::MAX,
            kinds: vec![Kind::Plain, Kind::One(7), Kind::Two(-7, String::new()), Kind::Named { a: true, b: Some('ß') }],
            by_number: [(-3, inner.clone()), (4, inner.clone())].into(),
            by_text: [(String::new(), vec![]), ("k\"".to_owned(), vec![(), ()])].into(),
            any: json!({"a": [1, -1, 1.5, 1e300, null, {}], "b": {"": []}}),
            left_out: None,
            flat: inner,
        }
    }

    #[test]
    fn what_is_written_is_what_serde_json_writes_byte_for_byte() {
        let whole = whole();
        assert_eq!(to_string(&whole).unwrap(), serde_json::to_string(&whole).unwrap());
        assert_eq!(to_string_pretty(&whole).unwrap(), serde_json::to_string_pretty(&whole).unwrap());
        assert_eq!(to_value(&whole).unwrap(), serde_json::to_value(&whole).unwrap());
        for odd in [f64::NAN, f64::INFINITY, -0.0, 1.0, 1e-7, f64::MAX] {
            assert_eq!(to_string(&odd).unwrap(), serde_json::to_string(&odd).unwrap());
            assert_eq!(to_value(&odd).unwrap(), serde_json::to_value(odd).unwrap());
        }
        let no_text: BTreeMap<Vec<u8>, u8> = [(vec![1], 1)].into();
        assert!(to_vec(&no_text).is_err() && to_value(&no_text).is_err());
    }

    #[test]
    fn what_was_written_is_read_again() {
        let whole = whole();
        assert_eq!(from_slice::<Whole>(&to_vec(&whole).unwrap()).unwrap(), whole);
        assert_eq!(from_value::<Whole>(&to_value(&whole).unwrap()).unwrap(), whole);
    }

    /// What may be missing, in any order, and among members that nobody knows.
    #[derive(Debug, PartialEq, Deserialize)]
    struct Sparse {
        needed: String,
        option: Option<u8>,
        #[serde(default)]
        list: Vec<u8>,
        #[serde(default = "seven")]
        number: u8,
        #[serde(rename = "Other", default)]
        other: Kept,
        #[serde(skip, default = "seven")]
        skipped: u8,
        any: Value,
        unit: (),
        kind: Kind,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(default)]
    struct Kept {
        a: u8,
        b: Option<u8>,
    }

    impl Default for Kept {
        fn default() -> Kept {
            Kept { a: 1, b: None }
        }
    }

    fn seven() -> u8 {
        7
    }

    #[test]
    fn fields_are_found_missing_or_wrong_as_serde_json_has_them() {
        let members = [
            ("needed", json!("a")),
            ("option", json!(1)),
            ("list", json!([1])),
            ("number", json!(2)),
            ("Other", json!({"b": null})),
            ("skipped", json!(3)),
            ("any", json!(null)),
            ("unit", json!(null)),
            ("kind", json!({"Named": {"b": "x", "a": true}})),
            ("unknown", json!([{}])),
        ];
        let same = |members: &[(&str, Value)]| {
            let value: Value = members.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            let theirs = serde_json::from_value::<Sparse>(value.clone()).map_err(|error| error.to_string());
            assert_eq!(from_value::<Sparse>(&value).map_err(|error| error.to_string()), theirs, "{value}");
            theirs.is_ok()
        };
        assert!(same(&members));
        for start in 0..members.len() {
            let mut turned = members.clone();
            turned.rotate_left(start);
            assert!(same(&turned), "in any order");
            turned.reverse();
            assert!(same(&turned), "in any order");
            let may_miss = ["option", "list", "number", "Other", "skipped", "unknown"].contains(&turned[0].0);
            assert_eq!(same(&turned[1..]), may_miss, "without {}", turned[0].0);
            turned[0].1 = json!({"wrong": 1});
            same(&turned);
            turned[0].1 = json!(null);
            same(&turned);
        }
        for named in [
            json!({}),
            json!({"a": true}),
            json!({"b": "x"}),
            json!({"a": 1}),
            json!([true, null]),
            json!({"a": true, "c": 1}),
        ] {
            let kind = json!({"Named": named});
            let theirs = serde_json::from_value::<Kind>(kind.clone()).map_err(|error| error.to_string());
            if !named.is_array() {
                assert_eq!(from_value::<Kind>(&kind).map_err(|error| error.to_string()), theirs, "{kind}");
            }
        }
    }

    #[test]
    fn what_is_of_another_type_is_refused_as_serde_json_refuses_it() {
        for text in [
            r#"{"text": 1, "bytes": []}"#,
            r#"{"text": "a"}"#,
            r#"{"text": "a", "bytes": [256]}"#,
            r#"{"text": "a", "bytes": [-1]}"#,
            r#"{"text": "a", "bytes": [1.5]}"#,
            r#"{"text": "a", "bytes": {}}"#,
            "null",
            "3",
        ] {
            let theirs = serde_json::from_value::<Inner>(serde_json::from_str(text).unwrap()).unwrap_err();
            assert_eq!(from_str::<Inner>(text).unwrap_err().to_string(), theirs.to_string(), "{text}");
        }
        for text in [
            r#""Other""#,
            r#"{"One": "a"}"#,
            r#"{"Two": [1]}"#,
            r#"{"Two": [1, "a", 2]}"#,
            r#"{"Plain": 1}"#,
            "{}",
            "1",
        ] {
            assert!(serde_json::from_str::<Kind>(text).is_err() && from_str::<Kind>(text).is_err(), "{text}");
        }
        let unknown = r#"{"x": {"y": [1]}, "text": "a", "bytes": [1], "z": null}"#;
        assert_eq!(from_str::<Inner>(unknown).unwrap(), Inner { text: "a".to_owned(), bytes: vec![1] });
        assert!(from_str::<Inner>(r#"["a", [1]]"#).is_err(), "a struct is not a list");
        assert!(from_str::<Inner>("{").unwrap_err().to_string().contains("line 1"));
        assert!(from_str::<BTreeMap<u8, u8>>(r#"{"x": 1}"#).is_err());
    }
}
