//! The forms of msgpack, one at a time. Reading accepts every form; each dialect chooses what it writes.

use super::Error;

/// One form without what it contains.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::wire) enum Token<'a> {
    Nil,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    /// The old spec's raw: text or bytes.
    Raw(&'a [u8]),
    Bin(&'a [u8]),
    /// So many elements follow.
    Array(usize),
    /// So many pairs follow.
    Map(usize),
    Ext(i8, &'a [u8]),
}

/// What is left to read.
#[derive(Debug, Clone)]
pub(in crate::wire) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    pub fn rest(&self) -> usize {
        self.0.len()
    }

    /// The next token, which stays where it is.
    pub fn peek(&self) -> Result<Token<'a>, Error> {
        self.clone().next()
    }

    pub fn next(&mut self) -> Result<Token<'a>, Error> {
        let marker = self.array::<1>()?[0];
        Ok(match marker {
            0x00..=0x7f => Token::Unsigned(u64::from(marker)),
            0x80..=0x8f => Token::Map(usize::from(marker & 0x0f)),
            0x90..=0x9f => Token::Array(usize::from(marker & 0x0f)),
            0xa0..=0xbf => Token::Raw(self.take(usize::from(marker & 0x1f))?),
            0xc0 => Token::Nil,
            0xc1 => return Err(Error::Reserved),
            0xc2 | 0xc3 => Token::Bool(marker == 0xc3),
            0xc4 => Token::Bin(self.sized::<1>()?),
            0xc5 => Token::Bin(self.sized::<2>()?),
            0xc6 => Token::Bin(self.sized::<4>()?),
            0xc7 => self.extension::<1>()?,
            0xc8 => self.extension::<2>()?,
            0xc9 => self.extension::<4>()?,
            0xca => Token::Float(f64::from(f32::from_be_bytes(self.array()?))),
            0xcb => Token::Float(f64::from_be_bytes(self.array()?)),
            0xcc => Token::Unsigned(u64::from(u8::from_be_bytes(self.array()?))),
            0xcd => Token::Unsigned(u64::from(u16::from_be_bytes(self.array()?))),
            0xce => Token::Unsigned(u64::from(u32::from_be_bytes(self.array()?))),
            0xcf => Token::Unsigned(u64::from_be_bytes(self.array()?)),
            0xd0 => Token::Signed(i64::from(i8::from_be_bytes(self.array()?))),
            0xd1 => Token::Signed(i64::from(i16::from_be_bytes(self.array()?))),
            0xd2 => Token::Signed(i64::from(i32::from_be_bytes(self.array()?))),
            0xd3 => Token::Signed(i64::from_be_bytes(self.array()?)),
            0xd4..=0xd8 => self.tagged(1 << (marker - 0xd4))?,
            0xd9 => Token::Raw(self.sized::<1>()?),
            0xda => Token::Raw(self.sized::<2>()?),
            0xdb => Token::Raw(self.sized::<4>()?),
            0xdc => Token::Array(self.length::<2>()?),
            0xdd => Token::Array(self.length::<4>()?),
            0xde => Token::Map(self.length::<2>()?),
            0xdf => Token::Map(self.length::<4>()?),
            0xe0..=0xff => Token::Signed(i64::from(marker.cast_signed())),
        })
    }

    /// Passes over one value with all that it contains.
    pub fn skip(&mut self) -> Result<(), Error> {
        let mut left = 1usize;
        while left > 0 {
            left -= 1;
            // A claim of more elements than there are bytes ends with `Truncated`, so the sum cannot be a large number
            // of steps; it only must not overflow.
            left = match self.next()? {
                Token::Array(n) => left.saturating_add(n),
                Token::Map(n) => left.saturating_add(n.saturating_mul(2)),
                _ => left,
            };
        }
        Ok(())
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn length<const N: usize>(&mut self) -> Result<usize, Error> {
        Ok(self.array::<N>()?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    }

    fn sized<const N: usize>(&mut self) -> Result<&'a [u8], Error> {
        let n = self.length::<N>()?;
        self.take(n)
    }

    fn extension<const N: usize>(&mut self) -> Result<Token<'a>, Error> {
        let n = self.length::<N>()?;
        self.tagged(n)
    }

    fn tagged(&mut self, n: usize) -> Result<Token<'a>, Error> {
        let tag = i8::from_be_bytes(self.array()?);
        Ok(Token::Ext(tag, self.take(n)?))
    }
}

pub(in crate::wire) const NIL: u8 = 0xc0;

pub(in crate::wire) fn bool(out: &mut Vec<u8>, value: bool) {
    out.push(0xc2 | u8::from(value));
}

pub(in crate::wire) fn float(out: &mut Vec<u8>, value: f64) {
    out.push(0xcb);
    out.extend(value.to_be_bytes());
}

/// The smallest unsigned form.
pub(in crate::wire) fn unsigned(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=0x7f => out.push(value as u8),
        0x80..=0xff => out.extend([0xcc, value as u8]),
        0x100..=0xffff => out.push_all(0xcd, &(value as u16).to_be_bytes()),
        0x1_0000..=0xffff_ffff => out.push_all(0xce, &(value as u32).to_be_bytes()),
        _ => out.push_all(0xcf, &value.to_be_bytes()),
    }
}

/// The smallest signed form.
pub(in crate::wire) fn signed(out: &mut Vec<u8>, value: i64) {
    if let -32..=127 = value {
        out.push((value as i8).cast_unsigned());
    } else if let Ok(small) = i8::try_from(value) {
        out.push_all(0xd0, &small.to_be_bytes());
    } else if let Ok(small) = i16::try_from(value) {
        out.push_all(0xd1, &small.to_be_bytes());
    } else if let Ok(small) = i32::try_from(value) {
        out.push_all(0xd2, &small.to_be_bytes());
    } else {
        out.push_all(0xd3, &value.to_be_bytes());
    }
}

pub(in crate::wire) fn array(out: &mut Vec<u8>, n: usize) {
    match n {
        0..=15 => out.push(0x90 | n as u8),
        16..=0xffff => out.push_all(0xdc, &(n as u16).to_be_bytes()),
        _ => out.push_all(0xdd, &(n as u32).to_be_bytes()),
    }
}

pub(in crate::wire) fn map(out: &mut Vec<u8>, n: usize) {
    match n {
        0..=15 => out.push(0x80 | n as u8),
        16..=0xffff => out.push_all(0xde, &(n as u16).to_be_bytes()),
        _ => out.push_all(0xdf, &(n as u32).to_be_bytes()),
    }
}

/// Text or bytes in the old spec's raw forms, which have none with an 8-bit length.
pub(in crate::wire) fn raw(out: &mut Vec<u8>, bytes: &[u8]) {
    match bytes.len() {
        n @ 0..=31 => out.push(0xa0 | n as u8),
        n @ 32..=0xffff => out.push_all(0xda, &(n as u16).to_be_bytes()),
        n => out.push_all(0xdb, &(n as u32).to_be_bytes()),
    }
    out.extend_from_slice(bytes);
}

/// Text in the new spec's forms.
pub(in crate::wire) fn text(out: &mut Vec<u8>, text: &str) {
    if let n @ 32..=0xff = text.len() {
        out.extend([0xd9, n as u8]);
        out.extend_from_slice(text.as_bytes());
    } else {
        raw(out, text.as_bytes());
    }
}

pub(in crate::wire) fn bin(out: &mut Vec<u8>, bytes: &[u8]) {
    match bytes.len() {
        n @ 0..=0xff => out.extend([0xc4, n as u8]),
        n @ 0x100..=0xffff => out.push_all(0xc5, &(n as u16).to_be_bytes()),
        n => out.push_all(0xc6, &(n as u32).to_be_bytes()),
    }
    out.extend_from_slice(bytes);
}

trait PushAll {
    fn push_all(&mut self, marker: u8, bytes: &[u8]);
}

impl PushAll for Vec<u8> {
    fn push_all(&mut self, marker: u8, bytes: &[u8]) {
        self.push(marker);
        self.extend_from_slice(bytes);
    }
}
