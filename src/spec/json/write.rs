//! Writing: a text, or a value.

use serde::ser::{self, Error as _, Serialize};
use serde_json::{Error, Map, Value};

/// What is being written. None of its functions knows a type, so each is there once.
pub(super) struct Out {
    kind: Kind,
    /// The next text or number is the name of a member.
    names: bool,
}

enum Kind {
    /// A text, and whether nothing has been written since the last bracket.
    Text { text: Vec<u8>, first: bool },
    /// Lists and objects that are open, with the name of the next member, and what is done.
    Value { open: Vec<(Value, String)>, done: Value },
}

impl Out {
    pub(super) fn text() -> Out {
        Out { kind: Kind::Text { text: Vec::new(), first: true }, names: false }
    }

    pub(super) fn value() -> Out {
        Out { kind: Kind::Value { open: Vec::new(), done: Value::Null }, names: false }
    }

    pub(super) fn into_text(self) -> Vec<u8> {
        match self.kind {
            Kind::Text { text, .. } => text,
            Kind::Value { .. } => Vec::new(),
        }
    }

    pub(super) fn into_value(self) -> Value {
        match self.kind {
            Kind::Value { done, .. } => done,
            Kind::Text { .. } => Value::Null,
        }
    }

    /// Before each element of a list.
    #[inline(never)]
    fn element(&mut self) {
        if let Kind::Text { text, first } = &mut self.kind
            && !std::mem::take(first)
        {
            text.push(b',');
        }
    }

    /// Before each member of an object.
    #[inline(never)]
    fn name(&mut self, name: &str) {
        self.element();
        match &mut self.kind {
            Kind::Text { text, .. } => {
                quote(text, name);
                text.push(b':');
            }
            Kind::Value { open, .. } => {
                if let Some((_, next)) = open.last_mut() {
                    name.clone_into(next);
                }
            }
        }
    }

    /// Something that is whole.
    fn put(&mut self, value: Value) {
        let Kind::Value { open, done } = &mut self.kind else { return };
        match open.last_mut() {
            Some((Value::Array(list), _)) => list.push(value),
            Some((Value::Object(object), name)) => drop(object.insert(std::mem::take(name), value)),
            _ => *done = value,
        }
    }

    /// A value that can be no name.
    #[inline(never)]
    fn atom(&mut self, value: Value) -> Result<(), Error> {
        if self.names {
            return Err(no_name());
        }
        match &mut self.kind {
            Kind::Text { text, .. } => serde_json::to_writer(text, &value)?,
            Kind::Value { .. } => self.put(value),
        }
        Ok(())
    }

    #[inline(never)]
    fn bool(&mut self, v: bool) -> Result<(), Error> {
        if !self.names {
            return self.atom(Value::Bool(v));
        }
        self.str(if v { "true" } else { "false" });
        Ok(())
    }

    #[inline(never)]
    fn signed(&mut self, v: i64) -> Result<(), Error> {
        if !self.names {
            return self.atom(v.into());
        }
        self.str(&v.to_string());
        Ok(())
    }

    #[inline(never)]
    fn unsigned(&mut self, v: u64) -> Result<(), Error> {
        if !self.names {
            return self.atom(v.into());
        }
        self.str(&v.to_string());
        Ok(())
    }

    #[inline(never)]
    fn float(&mut self, v: f64) -> Result<(), Error> {
        self.atom(v.into())
    }

    #[inline(never)]
    fn null(&mut self) -> Result<(), Error> {
        self.atom(Value::Null)
    }

    #[inline(never)]
    fn str(&mut self, v: &str) {
        if std::mem::take(&mut self.names) {
            self.name(v);
            return;
        }
        match &mut self.kind {
            Kind::Text { text, .. } => quote(text, v),
            Kind::Value { .. } => self.put(v.into()),
        }
    }

    /// Opens a list or an object.
    #[inline(never)]
    fn open(&mut self, list: bool) -> Result<(), Error> {
        if self.names {
            return Err(no_name());
        }
        match &mut self.kind {
            Kind::Text { text, first } => {
                text.push(if list { b'[' } else { b'{' });
                *first = true;
            }
            Kind::Value { open, .. } => {
                let empty = if list { Value::Array(Vec::new()) } else { Value::Object(Map::new()) };
                open.push((empty, String::new()));
            }
        }
        Ok(())
    }

    /// Closes what was opened last.
    #[inline(never)]
    fn close(&mut self, list: bool) {
        match &mut self.kind {
            Kind::Text { text, first } => {
                text.push(if list { b']' } else { b'}' });
                *first = false;
            }
            Kind::Value { open, .. } => {
                if let Some((whole, _)) = open.pop() {
                    self.put(whole);
                }
            }
        }
    }

    /// Opens an object whose only member is a variant.
    #[inline(never)]
    fn variant(&mut self, name: &str) -> Result<(), Error> {
        self.open(false)?;
        self.name(name);
        Ok(())
    }
}

fn no_name() -> Error {
    Error::custom("key must be a string")
}

fn quote(text: &mut Vec<u8>, v: &str) {
    serde_json::to_writer(text, v).expect("a text can be written into memory");
}

/// Writes into it.
pub(super) struct Writer<'o>(pub(super) &'o mut Out);

/// A list or an object that is being written; `variant`: as the content of a variant.
pub(super) struct Open<'o> {
    out: &'o mut Out,
    list: bool,
    variant: bool,
}

impl<'o> Writer<'o> {
    fn open(self, list: bool) -> Result<Open<'o>, Error> {
        self.0.open(list)?;
        Ok(Open { out: self.0, list, variant: false })
    }

    fn open_variant(self, name: &str, list: bool) -> Result<Open<'o>, Error> {
        self.0.variant(name)?;
        self.0.open(list)?;
        Ok(Open { out: self.0, list, variant: true })
    }
}

impl Open<'_> {
    fn close(self) {
        self.out.close(self.list);
        if self.variant {
            self.out.close(false);
        }
    }
}

macro_rules! as_wide {
    ($($method:ident $number:ty: $wide:ident;)*) => {$(
        fn $method(self, v: $number) -> Result<(), Error> {
            self.0.$wide(v.into())
        }
    )*};
}

impl<'o> ser::Serializer for Writer<'o> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Open<'o>;
    type SerializeTuple = Open<'o>;
    type SerializeTupleStruct = Open<'o>;
    type SerializeTupleVariant = Open<'o>;
    type SerializeMap = Open<'o>;
    type SerializeStruct = Open<'o>;
    type SerializeStructVariant = Open<'o>;

    as_wide! {
        serialize_bool bool: bool;
        serialize_i8 i8: signed;
        serialize_i16 i16: signed;
        serialize_i32 i32: signed;
        serialize_i64 i64: signed;
        serialize_u8 u8: unsigned;
        serialize_u16 u16: unsigned;
        serialize_u32 u32: unsigned;
        serialize_u64 u64: unsigned;
        serialize_f32 f32: float;
        serialize_f64 f64: float;
    }

    fn serialize_char(self, v: char) -> Result<(), Error> {
        self.0.str(v.encode_utf8(&mut [0; 4]));
        Ok(())
    }

    fn serialize_str(self, v: &str) -> Result<(), Error> {
        self.0.str(v);
        Ok(())
    }

    fn serialize_bytes(self, v: &[u8]) -> Result<(), Error> {
        v.serialize(self)
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.0.null()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.0.null()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.0.null()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Error> {
        self.0.str(variant);
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.0.variant(variant)?;
        value.serialize(Writer(&mut *self.0))?;
        self.0.close(false);
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Open<'o>, Error> {
        self.open(true)
    }

    fn serialize_tuple(self, _: usize) -> Result<Open<'o>, Error> {
        self.open(true)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Open<'o>, Error> {
        self.open(true)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Open<'o>, Error> {
        self.open_variant(variant, true)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Open<'o>, Error> {
        self.open(false)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Open<'o>, Error> {
        self.open(false)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Open<'o>, Error> {
        self.open_variant(variant, false)
    }
}

macro_rules! lists {
    ($($of:ident $method:ident;)*) => {$(
        impl ser::$of for Open<'_> {
            type Ok = ();
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                self.out.element();
                value.serialize(Writer(&mut *self.out))
            }

            fn end(self) -> Result<(), Error> {
                self.close();
                Ok(())
            }
        }
    )*};
}

lists! {
    SerializeSeq serialize_element;
    SerializeTuple serialize_element;
    SerializeTupleStruct serialize_field;
    SerializeTupleVariant serialize_field;
}

macro_rules! structs {
    ($($of:ident)*) => {$(
        impl ser::$of for Open<'_> {
            type Ok = ();
            type Error = Error;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Error> {
                self.out.name(name);
                value.serialize(Writer(&mut *self.out))
            }

            fn end(self) -> Result<(), Error> {
                self.close();
                Ok(())
            }
        }
    )*};
}

structs!(SerializeStruct SerializeStructVariant);

impl ser::SerializeMap for Open<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.out.names = true;
        key.serialize(Writer(&mut *self.out))
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(Writer(&mut *self.out))
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}
