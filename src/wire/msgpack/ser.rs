//! Writing.

use serde::ser::{self, Serialize};

use super::{Error, token};
use crate::spec::Order as _;

/// The bytes that Go's codec writes for a value of this shape.
///
/// # Errors
/// A key of a map that is not text, or what a type's own `Serialize` refuses.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    value.serialize(Writer(&mut out))?;
    Ok(out)
}

struct Writer<'o>(&'o mut Vec<u8>);

impl<'o> ser::Serializer for Writer<'o> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Elements<'o>;
    type SerializeTuple = Elements<'o>;
    type SerializeTupleStruct = Elements<'o>;
    type SerializeTupleVariant = Elements<'o>;
    type SerializeMap = Members<'o>;
    type SerializeStruct = Members<'o>;
    type SerializeStructVariant = Members<'o>;

    fn serialize_bool(self, v: bool) -> Result<(), Error> {
        token::bool(self.0, v);
        Ok(())
    }

    fn serialize_i8(self, v: i8) -> Result<(), Error> {
        self.serialize_i64(v.into())
    }

    fn serialize_i16(self, v: i16) -> Result<(), Error> {
        self.serialize_i64(v.into())
    }

    fn serialize_i32(self, v: i32) -> Result<(), Error> {
        self.serialize_i64(v.into())
    }

    fn serialize_i64(self, v: i64) -> Result<(), Error> {
        // Go has no signed 8-bit form for what is above 127: 128 takes 16 bits, which the smallest signed form gives.
        token::signed(self.0, v);
        Ok(())
    }

    fn serialize_u8(self, v: u8) -> Result<(), Error> {
        self.serialize_u64(v.into())
    }

    fn serialize_u16(self, v: u16) -> Result<(), Error> {
        self.serialize_u64(v.into())
    }

    fn serialize_u32(self, v: u32) -> Result<(), Error> {
        self.serialize_u64(v.into())
    }

    fn serialize_u64(self, v: u64) -> Result<(), Error> {
        token::unsigned(self.0, v);
        Ok(())
    }

    fn serialize_f32(self, v: f32) -> Result<(), Error> {
        self.0.push(0xca);
        self.0.extend(v.to_be_bytes());
        Ok(())
    }

    fn serialize_f64(self, v: f64) -> Result<(), Error> {
        token::float(self.0, v);
        Ok(())
    }

    fn serialize_char(self, v: char) -> Result<(), Error> {
        self.serialize_str(v.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, v: &str) -> Result<(), Error> {
        self.serialize_bytes(v.as_bytes())
    }

    fn serialize_bytes(self, v: &[u8]) -> Result<(), Error> {
        token::raw(self.0, v);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.0.push(token::NIL);
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Error> {
        self.serialize_str(variant)
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
        token::map(self.0, 1);
        token::raw(self.0, variant.as_bytes());
        value.serialize(self)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Elements<'o>, Error> {
        Ok(Elements { out: self.0, variant: None, count: 0, bytes: Vec::new() })
    }

    fn serialize_tuple(self, _: usize) -> Result<Elements<'o>, Error> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Elements<'o>, Error> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Elements<'o>, Error> {
        Ok(Elements { out: self.0, variant: Some(variant), count: 0, bytes: Vec::new() })
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Members<'o>, Error> {
        Ok(Members { out: self.0, variant: None, key: Vec::new(), members: Vec::new() })
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Members<'o>, Error> {
        self.serialize_map(None)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Members<'o>, Error> {
        Ok(Members { out: self.0, variant: Some(variant), key: Vec::new(), members: Vec::new() })
    }
}

/// A list under construction: its length comes first and is known last.
struct Elements<'o> {
    out: &'o mut Vec<u8>,
    variant: Option<&'static str>,
    count: usize,
    bytes: Vec<u8>,
}

impl Elements<'_> {
    fn add<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.count += 1;
        value.serialize(Writer(&mut self.bytes))
    }

    fn write(self) {
        if let Some(variant) = self.variant {
            token::map(self.out, 1);
            token::raw(self.out, variant.as_bytes());
        }
        token::array(self.out, self.count);
        self.out.extend(self.bytes);
    }
}

/// A map under construction: written in the order of its keys.
struct Members<'o> {
    out: &'o mut Vec<u8>,
    variant: Option<&'static str>,
    key: Vec<u8>,
    members: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Members<'_> {
    fn add<T: Serialize + ?Sized>(&mut self, key: Vec<u8>, value: &T) -> Result<(), Error> {
        let mut bytes = Vec::new();
        value.serialize(Writer(&mut bytes))?;
        self.members.push((key, bytes));
        Ok(())
    }

    fn write(mut self) {
        if let Some(variant) = self.variant {
            token::map(self.out, 1);
            token::raw(self.out, variant.as_bytes());
        }
        self.members.order_by(|(a, _), (b, _)| a.cmp(b));
        token::map(self.out, self.members.len());
        for (key, value) in self.members {
            token::raw(self.out, &key);
            self.out.extend(value);
        }
    }
}

impl ser::SerializeSeq for Elements<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.add(value)
    }

    fn end(self) -> Result<(), Error> {
        self.write();
        Ok(())
    }
}

impl ser::SerializeTuple for Elements<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.add(value)
    }

    fn end(self) -> Result<(), Error> {
        self.write();
        Ok(())
    }
}

impl ser::SerializeTupleStruct for Elements<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.add(value)
    }

    fn end(self) -> Result<(), Error> {
        self.write();
        Ok(())
    }
}

impl ser::SerializeTupleVariant for Elements<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.add(value)
    }

    fn end(self) -> Result<(), Error> {
        self.write();
        Ok(())
    }
}

impl ser::SerializeMap for Members<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.key = key_text(key)?;
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let key = std::mem::take(&mut self.key);
        self.add(key, value)
    }

    fn end(self) -> Result<(), Error> {
        self.write();
        Ok(())
    }
}

impl ser::SerializeStruct for Members<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
        self.add(key.as_bytes().to_vec(), value)
    }

    fn end(self) -> Result<(), Error> {
        self.write();
        Ok(())
    }
}

impl ser::SerializeStructVariant for Members<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
        self.add(key.as_bytes().to_vec(), value)
    }

    fn end(self) -> Result<(), Error> {
        self.write();
        Ok(())
    }
}

/// The bytes of a key, which must be a text, in whatever type it is wrapped.
fn key_text<T: Serialize + ?Sized>(key: &T) -> Result<Vec<u8>, Error> {
    let bytes = to_vec(key)?;
    match token::Reader::new(&bytes).next()? {
        token::Token::Raw(text) => Ok(text.to_vec()),
        _ => Err(Error::KeyNotText),
    }
}
