//! Reading.

use serde::de::{self, DeserializeSeed, Visitor};

use super::token::{Reader, Token};
use super::{Error, MAX_DEPTH};

/// Reads a value as Go's codec reads it into a variable of the same shape.
///
/// # Errors
/// Bytes that are no msgpack or have another shape: a fraction for a whole number, text for a number, an extension.
pub fn from_slice<T: de::DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let mut decoder = Decoder { reader: Reader::new(bytes), depth: 0 };
    let value = T::deserialize(&mut decoder)?;
    match decoder.reader.rest() {
        0 => Ok(value),
        rest => Err(Error::Trailing(rest)),
    }
}

struct Decoder<'de> {
    reader: Reader<'de>,
    depth: usize,
}

impl<'de> Decoder<'de> {
    fn wrong<T>(found: Token<'_>, needed: &str) -> Result<T, Error> {
        let found = match found {
            Token::Nil => "nil",
            Token::Bool(_) => "a bool",
            Token::Signed(_) | Token::Unsigned(_) => "a whole number",
            Token::Float(_) => "a fraction",
            Token::Raw(_) | Token::Bin(_) => "text",
            Token::Array(_) => "a list",
            Token::Map(_) => "a map",
            Token::Ext(kind, _) => return Err(Error::Extension(kind)),
        };
        Err(Error::Message(format!("msgpack: {needed} is needed, not {found}")))
    }

    fn int<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Error> {
        match self.reader.next()? {
            Token::Nil => visitor.visit_u64(0),
            Token::Signed(int) => visitor.visit_i64(int),
            Token::Unsigned(int) => visitor.visit_u64(int),
            other => Decoder::wrong(other, "a whole number"),
        }
    }

    fn float<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Error> {
        match self.reader.next()? {
            Token::Nil => visitor.visit_f64(0.0),
            Token::Float(float) => visitor.visit_f64(float),
            Token::Signed(int) => visitor.visit_f64(int as f64),
            Token::Unsigned(int) => visitor.visit_f64(int as f64),
            other => Decoder::wrong(other, "a number"),
        }
    }

    fn raw(&mut self) -> Result<&'de [u8], Error> {
        match self.reader.next()? {
            Token::Nil => Ok(&[]),
            Token::Raw(bytes) | Token::Bin(bytes) => Ok(bytes),
            other => Decoder::wrong(other, "text"),
        }
    }

    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.depth == MAX_DEPTH {
            return Err(Error::TooDeep);
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    fn elements<V: Visitor<'de>>(&mut self, n: usize, visitor: V) -> Result<V::Value, Error> {
        self.nested(|decoder| {
            let mut left = Left { decoder, count: n };
            let value = visitor.visit_seq(&mut left)?;
            // Go passes over elements for which a fixed array has no room.
            for _ in 0..left.count {
                left.decoder.reader.skip()?;
            }
            Ok(value)
        })
    }

    fn members<V: Visitor<'de>>(&mut self, n: usize, visitor: V) -> Result<V::Value, Error> {
        self.nested(|decoder| visitor.visit_map(&mut Left { decoder, count: n }))
    }
}

/// Elements or pairs that are still to come.
struct Left<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    count: usize,
}

impl<'de> de::SeqAccess<'de> for Left<'_, 'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        if self.count == 0 {
            return Ok(None);
        }
        self.count -= 1;
        seed.deserialize(&mut *self.decoder).map(Some)
    }
}

impl<'de> de::MapAccess<'de> for Left<'_, 'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        if self.count == 0 {
            return Ok(None);
        }
        self.count -= 1;
        seed.deserialize(&mut *self.decoder).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(&mut *self.decoder)
    }
}

macro_rules! deserialize {
    ($method:ident: $($name:ident)*) => {
        $(fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.$method(visitor)
        })*
    };
}

impl<'de> de::Deserializer<'de> for &mut Decoder<'de> {
    type Error = Error;

    deserialize!(int: deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
                      deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64);
    deserialize!(float: deserialize_f32 deserialize_f64);
    deserialize!(deserialize_str: deserialize_string deserialize_char deserialize_identifier);
    deserialize!(deserialize_bytes: deserialize_byte_buf);

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.reader.next()? {
            Token::Nil => visitor.visit_unit(),
            Token::Bool(flag) => visitor.visit_bool(flag),
            Token::Signed(int) => visitor.visit_i64(int),
            Token::Unsigned(int) => visitor.visit_u64(int),
            Token::Float(float) => visitor.visit_f64(float),
            Token::Raw(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => visitor.visit_borrowed_str(text),
                Err(_) => visitor.visit_borrowed_bytes(bytes),
            },
            Token::Bin(bytes) => visitor.visit_borrowed_bytes(bytes),
            Token::Array(n) => self.elements(n, visitor),
            Token::Map(n) => self.members(n, visitor),
            Token::Ext(kind, _) => Err(Error::Extension(kind)),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.reader.next()? {
            Token::Nil | Token::Unsigned(0) | Token::Signed(0) => visitor.visit_bool(false),
            Token::Unsigned(1) | Token::Signed(1) => visitor.visit_bool(true),
            Token::Bool(flag) => visitor.visit_bool(flag),
            other => Decoder::wrong(other, "a bool"),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let text = std::str::from_utf8(self.raw()?).map_err(|_| Error::NotText)?;
        visitor.visit_borrowed_str(text)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_borrowed_bytes(self.raw()?)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.reader.peek()? == Token::Nil {
            self.reader.next()?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.reader.skip()?;
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.reader.next()? {
            Token::Nil => self.elements(0, visitor),
            Token::Array(n) => self.elements(n, visitor),
            other => Decoder::wrong(other, "a list"),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.reader.next()? {
            Token::Nil => self.members(0, visitor),
            Token::Map(n) => self.members(n, visitor),
            other => Decoder::wrong(other, "a map"),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.reader.peek()? {
            Token::Raw(_) | Token::Bin(_) => visitor.visit_enum(Variant { decoder: self, empty: true }),
            Token::Map(1) => {
                self.reader.next()?;
                self.nested(|decoder| visitor.visit_enum(Variant { decoder, empty: false }))
            }
            other => Decoder::wrong(other, "text"),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn is_human_readable(&self) -> bool {
        true
    }
}

/// A variant of an enum: its name alone, or a map of one name.
struct Variant<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    empty: bool,
}

impl<'de> de::EnumAccess<'de> for Variant<'_, 'de> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        Ok((seed.deserialize(&mut *self.decoder)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, 'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        if self.empty { Ok(()) } else { self.decoder.reader.skip() }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.decoder)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        de::Deserializer::deserialize_seq(self.decoder, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        de::Deserializer::deserialize_map(self.decoder, visitor)
    }
}
