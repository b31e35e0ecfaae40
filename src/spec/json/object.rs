//! Objects and lists written in place: what `serde_json::json!` makes, with one call for each member. That macro has the code of a
//! name, an `insert` and the drop of the former value at each member.

use serde::Serialize;
use serde_json::{Map, Value};

use super::write::{Out, Writer};

/// An object whose members are being added.
#[derive(Debug, Default)]
pub(crate) struct Object(Map<String, Value>);

impl Object {
    pub(crate) fn new() -> Object {
        Object::default()
    }

    /// Adds a member.
    ///
    /// # Panics
    /// The value has no JSON form, as with `json!`.
    pub(crate) fn put<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) {
        self.insert(name, of(value));
    }

    /// Adds a member that is made already.
    #[inline(never)]
    pub(crate) fn insert(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    pub(crate) fn done(self) -> Value {
        Value::Object(self.0)
    }
}

/// A list whose elements are being added.
#[derive(Debug, Default)]
pub(crate) struct List(Vec<Value>);

impl List {
    #[inline(never)]
    pub(crate) fn push(&mut self, value: Value) {
        self.0.push(value);
    }

    pub(crate) fn done(self) -> Value {
        Value::Array(self.0)
    }
}

/// A value's JSON.
///
/// # Panics
/// The value has no JSON form, as with `json!`.
#[inline(never)]
pub(crate) fn of<T: Serialize + ?Sized>(value: &T) -> Value {
    made(&mut |out| value.serialize(Writer(out)))
}

#[inline(never)]
fn made(write: &mut dyn FnMut(&mut Out) -> Result<(), serde_json::Error>) -> Value {
    let mut out = Out::value();
    write(&mut out).expect("a value of ours has a JSON form");
    out.into_value()
}

/// As `serde_json::json!`: `null`, lists and objects of values and of whatever can be serialized, named by texts. A name that is no
/// literal stands in parentheses.
macro_rules! json {
    (null) => { serde_json::Value::Null };
    ([ $($elements:tt)* ]) => {{
        #[allow(unused_mut, clippy::allow_attributes, reason = "an empty list has no elements")]
        let mut list = $crate::spec::json::List::default();
        $crate::spec::json::json!(@list list $($elements)*);
        list.done()
    }};
    ({ $($members:tt)* }) => {{
        #[allow(unused_mut, clippy::allow_attributes, reason = "an empty object has no members")]
        let mut object = $crate::spec::json::Object::new();
        $crate::spec::json::json!(@object object $($members)*);
        object.done()
    }};
    (@list $list:ident) => {};
    (@list $list:ident null $(, $($rest:tt)*)?) => {
        $list.push(serde_json::Value::Null);
        $crate::spec::json::json!(@list $list $($($rest)*)?);
    };
    (@list $list:ident { $($inner:tt)* } $(, $($rest:tt)*)?) => {
        $list.push($crate::spec::json::json!({ $($inner)* }));
        $crate::spec::json::json!(@list $list $($($rest)*)?);
    };
    (@list $list:ident [ $($inner:tt)* ] $(, $($rest:tt)*)?) => {
        $list.push($crate::spec::json::json!([ $($inner)* ]));
        $crate::spec::json::json!(@list $list $($($rest)*)?);
    };
    (@list $list:ident $value:expr $(, $($rest:tt)*)?) => {
        $list.push($crate::spec::json::of(&$value));
        $crate::spec::json::json!(@list $list $($($rest)*)?);
    };
    (@object $object:ident) => {};
    (@object $object:ident $name:tt : null $(, $($rest:tt)*)?) => {
        $object.insert(AsRef::<str>::as_ref(&$name), serde_json::Value::Null);
        $crate::spec::json::json!(@object $object $($($rest)*)?);
    };
    (@object $object:ident $name:tt : { $($inner:tt)* } $(, $($rest:tt)*)?) => {
        $object.insert(AsRef::<str>::as_ref(&$name), $crate::spec::json::json!({ $($inner)* }));
        $crate::spec::json::json!(@object $object $($($rest)*)?);
    };
    (@object $object:ident $name:tt : [ $($inner:tt)* ] $(, $($rest:tt)*)?) => {
        $object.insert(AsRef::<str>::as_ref(&$name), $crate::spec::json::json!([ $($inner)* ]));
        $crate::spec::json::json!(@object $object $($($rest)*)?);
    };
    (@object $object:ident $name:tt : $value:expr $(, $($rest:tt)*)?) => {
        $object.put(AsRef::<str>::as_ref(&$name), &$value);
        $crate::spec::json::json!(@object $object $($($rest)*)?);
    };
    ($value:expr) => { $crate::spec::json::of(&$value) };
}

pub(crate) use json;

#[cfg(test)]
mod tests {
    use serde_json::Value;

    /// The same tokens for both macros.
    macro_rules! both {
        ($($tokens:tt)+) => {
            assert_eq!(super::json!($($tokens)+), serde_json::json!($($tokens)+))
        };
    }

    #[test]
    fn what_serde_json_makes() {
        let (text, number, none) = ("text".to_owned(), -7_i64, None::<u8>);
        let value = Value::from(vec![Value::Null, Value::from(0.5)]);
        both!(null);
        both!(true);
        both!([]);
        both!({});
        both!(text);
        both!(number + 1);
        both!([null, true, -1, 1.5, "a", [], {}, [[1, 2,],], { "k": {} }, &text, number, none, value, u64::MAX,]);
        both!({
            "null": null, "true": true, "empty": {}, "list": [1, { "inner": [null] }], "deep": { "a": { "b": { "c": [] } } },
            (format!("{text}!")): text, "text": &text[1..], "number": number.abs(), "none": none, "some": Some("x"), "value": value,
            "array": ([1, 2].map(|n| n * 2)), "block": if number < 0 { "less" } else { "more" }, "last": 1.0e300, "nan": f64::NAN,
            "last": "again",
        });
    }

    #[test]
    #[should_panic(expected = "a value of ours has a JSON form")]
    fn what_has_no_json_form() {
        let _ = super::json!({ "map": [([1, 2], 3)].into_iter().collect::<std::collections::HashMap<[u8; 2], i32>>() });
    }
}
