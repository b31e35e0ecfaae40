//! What expressions are made of: Go's values, as far as templates meet them.

use crate::spec::collections::BTreeMap;
use std::cell::RefCell;
use std::rc::Rc;

use serde_json::Value as Json;

/// A byte string that values share.
pub(super) type Bytes = Rc<[u8]>;

/// A value. Lists, maps and objects are shared, as Go's are.
#[derive(Debug, Clone)]
pub(super) enum Value {
    /// No value at all.
    Nil,
    /// An `interface {}` that holds nothing: a map's missing key, JSON's `null`.
    NilAny,
    /// A pointer to nothing, of the type that is named.
    NilPointer(&'static str),
    Bool(bool),
    /// Go's `int`.
    Int(i64),
    Int64(i64),
    Uint64(u64),
    Byte(u8),
    Float(f64),
    Text(Bytes),
    List(Rc<List>),
    Map(Rc<Map>),
    Object(Rc<Object>),
    /// What `loop` gives: the numbers from the first up to before the second.
    Loop(i64, i64),
    /// The file's scratch pad.
    Scratch,
}

/// Type of the elements of a list or a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Any,
    Text,
    /// A list of anything, as `byTag` gives.
    Lists,
    /// A map of objects, as `byKey` gives.
    Maps,
    Objects(&'static str),
}

#[derive(Debug)]
pub(super) struct List {
    pub(super) kind: Kind,
    pub(super) items: Vec<Value>,
}

/// Keys of a map: all are of one type.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Int(i64),
    Text(Bytes),
}

/// Type of the keys of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keyed {
    Text,
    Int,
    /// Anything, as YAML has it.
    Any,
}

#[derive(Debug)]
pub(super) struct Map {
    pub(super) kind: Kind,
    pub(super) keyed: Keyed,
    pub(super) entries: RefCell<BTreeMap<Key, Value>>,
    /// The variable whose items these are.
    pub(super) owner: Option<Rc<Object>>,
}

/// The type of a certificate with its key.
pub(super) const CERTIFICATE: &str = "sprig.certificate";

/// A struct of Go's with the fields that it shows.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) type_name: &'static str,
    pub(super) fields: Vec<(&'static str, Value)>,
    /// What it is as text, where Go has a method for that.
    pub(super) shown: Option<Bytes>,
    /// What its methods give.
    pub(super) methods: Vec<(&'static str, Value)>,
}

impl Kind {
    fn name(self) -> String {
        match self {
            Kind::Any => "interface {}".to_owned(),
            Kind::Text => "string".to_owned(),
            Kind::Lists => "[]interface {}".to_owned(),
            Kind::Maps => "map[string]*dependency.KeyPair".to_owned(),
            Kind::Objects(name) => name.to_owned(),
        }
    }

    /// What a map of such elements gives for a key that it has not.
    pub(super) fn zero(self) -> Value {
        match self {
            Kind::Any => Value::NilAny,
            Kind::Text => Value::text(b""),
            Kind::Lists => Value::list(Kind::Any, Vec::new()),
            Kind::Maps => Value::map(Kind::Objects("*dependency.KeyPair"), BTreeMap::new()),
            // A struct, not a pointer: an empty one.
            Kind::Objects("dependency.NomadVarItem") => Value::Object(Rc::new(Object {
                type_name: "NomadVarItem",
                fields: vec![("Key", Value::text(b"")), ("Value", Value::text(b""))],
                shown: Some(b""[..].into()),
                methods: Vec::new(),
            })),
            Kind::Objects(name) => Value::NilPointer(name),
        }
    }
}

impl Keyed {
    pub(super) fn name(self) -> &'static str {
        match self {
            Keyed::Text => "string",
            Keyed::Int => "int",
            Keyed::Any => "interface {}",
        }
    }
}

impl Key {
    pub(super) fn text(text: &[u8]) -> Key {
        Key::Text(text.into())
    }

    pub(super) fn value(&self) -> Value {
        match self {
            Key::Int(n) => Value::Int(*n),
            Key::Text(text) => Value::Text(Rc::clone(text)),
        }
    }
}

impl Value {
    pub(super) fn text(text: impl AsRef<[u8]>) -> Value {
        Value::Text(text.as_ref().into())
    }

    pub(super) fn list(kind: Kind, items: Vec<Value>) -> Value {
        Value::List(Rc::new(List { kind, items }))
    }

    /// A `[]string`.
    pub(super) fn texts<T: AsRef<[u8]>>(items: impl IntoIterator<Item = T>) -> Value {
        Value::list(Kind::Text, items.into_iter().map(Value::text).collect())
    }

    pub(super) fn map(kind: Kind, entries: BTreeMap<Key, Value>) -> Value {
        Value::map_keyed(Keyed::Text, kind, entries)
    }

    pub(super) fn map_keyed(keyed: Keyed, kind: Kind, entries: BTreeMap<Key, Value>) -> Value {
        let entries = RefCell::new(entries);
        Value::Map(Rc::new(Map { kind, keyed, entries, owner: None }))
    }

    /// The type's name in Go.
    pub(super) fn type_name(&self) -> String {
        match self {
            Value::Nil => "<nil>".to_owned(),
            Value::NilAny => "interface {}".to_owned(),
            Value::NilPointer(name) => (*name).to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::Int(_) => "int".to_owned(),
            Value::Int64(_) => "int64".to_owned(),
            Value::Uint64(_) => "uint64".to_owned(),
            Value::Byte(_) => "uint8".to_owned(),
            Value::Float(_) => "float64".to_owned(),
            Value::Text(_) => "string".to_owned(),
            Value::List(list) => format!("[]{}", list.kind.name()),
            Value::Map(map) if map.owner.is_some() => "*dependency.NomadVarItems".to_owned(),
            Value::Map(map) => format!("map[{}]{}", map.keyed.name(), map.kind.name()),
            Value::Object(object) if object.is_plain() => object.type_name.to_owned(),
            Value::Object(object) => format!("*dependency.{}", object.type_name),
            Value::Loop(..) => "<-chan int64".to_owned(),
            Value::Scratch => "*template.Scratch".to_owned(),
        }
    }

    /// Whether `if` takes the first branch.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Nil | Value::NilAny | Value::NilPointer(_) => false,
            Value::Bool(b) => *b,
            Value::Int(n) | Value::Int64(n) => *n != 0,
            Value::Uint64(n) => *n != 0,
            Value::Byte(n) => *n != 0,
            Value::Float(f) => *f != 0.0,
            Value::Text(text) => !text.is_empty(),
            Value::List(list) => !list.items.is_empty(),
            // Items of a variable are behind a pointer.
            Value::Map(map) => map.owner.is_some() || !map.entries.borrow().is_empty(),
            Value::Object(_) | Value::Loop(..) | Value::Scratch => true,
        }
    }

    pub(super) fn is_nil(&self) -> bool {
        matches!(self, Value::Nil | Value::NilAny | Value::NilPointer(_))
    }

    /// Without the interface around it.
    pub(super) fn bare(self) -> Value {
        if matches!(self, Value::NilAny) { Value::Nil } else { self }
    }

    /// As an element of something that holds anything.
    pub(super) fn boxed(self) -> Value {
        if matches!(self, Value::Nil) { Value::NilAny } else { self }
    }

    /// A signed integer of any width.
    pub(super) fn signed(&self) -> Option<i64> {
        match self {
            Value::Int(n) | Value::Int64(n) => Some(*n),
            _ => None,
        }
    }

    /// An unsigned integer of any width.
    pub(super) fn unsigned(&self) -> Option<u64> {
        match self {
            Value::Uint64(n) => Some(*n),
            Value::Byte(n) => Some(u64::from(*n)),
            _ => None,
        }
    }

    pub(super) fn as_text(&self) -> Option<&Bytes> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }

    /// Roughly the bytes that it takes for itself, without what is shared below.
    pub(super) fn size(&self) -> usize {
        const EACH: usize = size_of::<Value>();
        match self {
            Value::Text(text) => EACH + text.len(),
            Value::List(list) => EACH * (1 + list.items.len()),
            Value::Map(map) => EACH * (1 + 3 * map.entries.borrow().len()),
            _ => EACH,
        }
    }

    /// What JSON says.
    pub(super) fn of_json(json: &Json) -> Value {
        match json {
            Json::Null => Value::NilAny,
            Json::Bool(b) => Value::Bool(*b),
            Json::Number(n) => Value::Float(n.as_f64().unwrap_or(f64::NAN)),
            Json::String(text) => Value::text(text),
            Json::Array(items) => Value::list(Kind::Any, items.iter().map(Value::of_json).collect()),
            Json::Object(members) => {
                let entries = members.iter().map(|(k, v)| (Key::text(k.as_bytes()), Value::of_json(v)));
                Value::map(Kind::Any, sorted(entries))
            }
        }
    }
}

/// The pairs as a map, pair by pair: `collect` would have the code of a sort for each iterator.
pub(super) fn sorted<K: Ord, V>(pairs: impl IntoIterator<Item = (K, V)>) -> BTreeMap<K, V> {
    let mut map = BTreeMap::new();
    map.extend(pairs);
    map
}

impl Map {
    pub(super) fn get(&self, key: &Key) -> Option<Value> {
        self.entries.borrow().get(key).cloned()
    }

    /// Keys with values, in order.
    pub(super) fn pairs(&self) -> Vec<(Key, Value)> {
        self.entries.borrow().iter().map(|(k, v)| (k.clone(), v.clone())).collect()
    }
}

impl Object {
    /// It is the struct itself, of a type with its whole name; others are behind a pointer.
    pub(super) fn is_plain(&self) -> bool {
        self.type_name.contains(['.', ' '])
    }

    /// Whether two are the same: the same place in memory, or of a struct itself the same texts in its fields.
    pub(super) fn is_same(self: &Rc<Object>, other: &Rc<Object>) -> bool {
        let texts = |object: &Object| -> Vec<Option<Bytes>> {
            object.fields.iter().map(|(_, value)| value.as_text().cloned()).collect()
        };
        Rc::ptr_eq(self, other) || self.is_plain() && self.type_name == other.type_name && texts(self) == texts(other)
    }

    pub(super) fn field(&self, name: &str) -> Option<Value> {
        let all = self.methods.iter().chain(&self.fields);
        all.into_iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone())
    }
}

thread_local! {
    /// Values whose owner went: they are let go one after the other, as they may nest deeper than the stack is.
    static GONE: RefCell<(bool, Vec<Value>)> = const { RefCell::new((false, Vec::new())) };
}

/// Lets values go without recursion.
fn let_go(values: impl IntoIterator<Item = Value>) {
    let first = GONE.with_borrow_mut(|(busy, gone)| {
        gone.extend(values.into_iter().filter(|v| matches!(v, Value::List(_) | Value::Map(_) | Value::Object(_))));
        !std::mem::replace(busy, true)
    });
    if first {
        while let Some(value) = GONE.with_borrow_mut(|(_, gone)| gone.pop()) {
            drop(value);
        }
        GONE.with_borrow_mut(|(busy, _)| *busy = false);
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if !self.items.is_empty() {
            let_go(std::mem::take(&mut self.items));
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let entries = std::mem::take(self.entries.get_mut());
        if !entries.is_empty() {
            let_go(entries.into_values());
        }
    }
}
