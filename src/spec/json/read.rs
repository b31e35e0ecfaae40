//! Reading from a value.

use serde::de::{self, DeserializeSeed, Deserializer, Error as _, Expected, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value, map};

/// A value to read from; none for a field whose member is missing, from which only an `Option` can be read.
#[derive(Clone, Copy)]
pub(super) struct Node<'v>(pub(super) Option<&'v Value>);

impl Node<'_> {
    /// What is said of a value of another type.
    #[inline(never)]
    fn wrong(self, wanted: &dyn Expected) -> Error {
        // Nobody sees it: the field has its default, or `Fields::said` names it.
        let Some(value) = self.0 else { return Error::custom("") };
        let found = match value {
            Value::Null => Unexpected::Unit,
            Value::Bool(b) => Unexpected::Bool(*b),
            Value::String(s) => Unexpected::Str(s),
            Value::Array(_) => Unexpected::Seq,
            Value::Object(_) => Unexpected::Map,
            Value::Number(n) => match (n.as_u64(), n.as_i64()) {
                (Some(n), _) => Unexpected::Unsigned(n),
                (None, Some(n)) => Unexpected::Signed(n),
                (None, None) => Unexpected::Float(n.as_f64().unwrap_or_default()),
            },
        };
        Error::invalid_type(found, wanted)
    }
}

macro_rules! only {
    ($($method:ident)*: $kind:ident) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.$kind(visitor)
        }
    )*};
}

impl Node<'_> {
    fn number<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Some(Value::Number(n)) = self.0 else { return Err(self.wrong(&visitor)) };
        match (n.as_u64(), n.as_i64()) {
            (Some(n), _) => visitor.visit_u64(n),
            (None, Some(n)) => visitor.visit_i64(n),
            (None, None) => visitor.visit_f64(n.as_f64().unwrap_or_default()),
        }
    }

    fn text<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Some(Value::String(text)) = self.0 else { return Err(self.wrong(&visitor)) };
        visitor.visit_str(text)
    }

    fn bytes<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Some(Value::String(text)) => visitor.visit_str(text),
            _ => self.list(visitor),
        }
    }

    fn list<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Some(Value::Array(list)) = self.0 else { return Err(self.wrong(&visitor)) };
        let mut elements = Elements(list.iter());
        let read = visitor.visit_seq(&mut elements)?;
        if elements.0.len() == 0 {
            Ok(read)
        } else {
            Err(Error::invalid_length(list.len(), &"fewer elements in array"))
        }
    }

    /// A struct is read as the list of its fields, in their order: derived code for that has half the size of the code for members
    /// in any order, which keeps for each field whether it was there.
    fn fields<'de, V: Visitor<'de>>(self, names: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        let Some(Value::Object(object)) = self.0 else { return Err(self.wrong(&visitor)) };
        let mut fields = Fields { names: names.iter(), object, rest: object.iter().peekable(), missing: None };
        visitor.visit_seq(&mut fields).map_err(|error| fields.said(error))
    }

    fn object<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Some(Value::Object(object)) = self.0 else { return Err(self.wrong(&visitor)) };
        let mut members = Members { rest: object.iter(), value: &Value::Null };
        let read = visitor.visit_map(&mut members)?;
        if members.rest.len() == 0 {
            Ok(read)
        } else {
            Err(Error::invalid_length(object.len(), &"fewer elements in map"))
        }
    }
}

impl<'de> Deserializer<'de> for Node<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            None => Err(self.wrong(&visitor)),
            Some(Value::Null) => visitor.visit_unit(),
            Some(Value::Bool(b)) => visitor.visit_bool(*b),
            Some(Value::Number(_)) => self.number(visitor),
            Some(Value::String(text)) => visitor.visit_str(text),
            Some(Value::Array(_)) => self.list(visitor),
            Some(Value::Object(_)) => self.object(visitor),
        }
    }

    only!(deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128: number);
    only!(deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128: number);
    only!(deserialize_f32 deserialize_f64: number);
    only!(deserialize_char deserialize_str deserialize_string deserialize_identifier: text);
    only!(deserialize_bytes deserialize_byte_buf: bytes);
    only!(deserialize_seq: list);
    only!(deserialize_map: object);

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Some(Value::Bool(b)) = self.0 else { return Err(self.wrong(&visitor)) };
        visitor.visit_bool(*b)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if let Some(Value::Null) = self.0 { visitor.visit_unit() } else { Err(self.wrong(&visitor)) }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if let None | Some(Value::Null) = self.0 { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.list(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.list(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.fields(names, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum(self.variant()?)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }
}

struct Elements<'v>(std::slice::Iter<'v, Value>);

impl<'de> de::SeqAccess<'de> for Elements<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.0.next().map(|value| seed.deserialize(Node(Some(value)))).transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

/// The fields of a struct, in their order, from the members of an object.
struct Fields<'v> {
    names: std::slice::Iter<'static, &'static str>,
    object: &'v serde_json::Map<String, Value>,
    /// What was written has its members in the order of the fields: then none is looked up.
    rest: std::iter::Peekable<map::Iter<'v>>,
    /// The name of the field that was asked for last, if it has no member.
    missing: Option<&'static str>,
}

impl<'v> Fields<'v> {
    #[inline(never)]
    fn next(&mut self) -> Option<Node<'v>> {
        let name = *self.names.next()?;
        let found = match self.rest.next_if(|(member, _)| *member == name) {
            Some((_, value)) => Some(value),
            None => self.object.get(name),
        };
        self.missing = if found.is_none() { Some(name) } else { None };
        Some(Node(found))
    }

    /// What is said when reading ended with this error: with a field that has no member and no default, it is that.
    #[inline(never)]
    fn said(&self, error: Error) -> Error {
        self.missing.map_or(error, Error::missing_field)
    }
}

impl<'de> de::SeqAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some(node) = self.next() else { return Ok(None) };
        match seed.deserialize(node) {
            Ok(value) => Ok(Some(value)),
            // It has its default, or the struct refuses to be without it.
            Err(_) if self.missing.is_some() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

struct Members<'v> {
    rest: map::Iter<'v>,
    value: &'v Value,
}

impl<'de> de::MapAccess<'de> for Members<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some((key, value)) = self.rest.next() else { return Ok(None) };
        self.value = value;
        seed.deserialize(Key(key)).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(Node(Some(self.value)))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

/// The name of a member; a number where one is wanted.
struct Key<'v>(&'v str);

macro_rules! numbers {
    ($($method:ident $number:ty, $visit:ident;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            match self.0.parse::<$number>() {
                Ok(n) => visitor.$visit(n),
                Err(_) => visitor.visit_str(self.0),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Key<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(self.0)
    }

    numbers! {
        deserialize_i8 i64, visit_i64;
        deserialize_i16 i64, visit_i64;
        deserialize_i32 i64, visit_i64;
        deserialize_i64 i64, visit_i64;
        deserialize_u8 u64, visit_u64;
        deserialize_u16 u64, visit_u64;
        deserialize_u32 u64, visit_u64;
        deserialize_u64 u64, visit_u64;
        deserialize_bool bool, visit_bool;
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum(Variant { name: self.0, content: None })
    }

    forward_to_deserialize_any! {
        i128 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier
        ignored_any
    }
}

/// A variant: its name, or an object whose only member has that name.
struct Variant<'v> {
    name: &'v str,
    content: Option<&'v Value>,
}

impl<'v> Node<'v> {
    #[inline(never)]
    fn variant(self) -> Result<Variant<'v>, Error> {
        match self.0 {
            Some(Value::String(name)) => Ok(Variant { name, content: None }),
            Some(Value::Object(object)) => match object.iter().next() {
                Some((name, content)) if object.len() == 1 => Ok(Variant { name, content: Some(content) }),
                _ => Err(Error::invalid_value(Unexpected::Map, &"map with a single key")),
            },
            _ => Err(self.wrong(&"string or map")),
        }
    }
}

impl<'de> de::EnumAccess<'de> for Variant<'_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        Ok((seed.deserialize(Key(self.name))?, self))
    }
}

impl<'v> Variant<'v> {
    #[inline(never)]
    fn content(&self, wanted: &dyn Expected) -> Result<Node<'v>, Error> {
        self.content
            .map(|content| Node(Some(content)))
            .ok_or_else(|| Error::invalid_type(Unexpected::UnitVariant, wanted))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        match self.content {
            None | Some(Value::Null) => Ok(()),
            Some(value) => Err(Node(Some(value)).wrong(&"unit variant")),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.content(&"newtype variant")?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.content(&"tuple variant")?.list(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, names: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        self.content(&"struct variant")?.fields(names, visitor)
    }
}
