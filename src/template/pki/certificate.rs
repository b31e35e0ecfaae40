//! Certificates (RFC 5280) with the fields that Go's `x509` gives those that sprig asks it for.

use sha2::Digest as _;

use super::der::{self, Element, Reader, bits, element, integer, sequence};
use super::key::{Key, is_public};
use crate::template::calendar;

/// The object identifiers of extensions, with tag and length.
const KEY_USAGE: &[u8] = &[6, 3, 0x55, 0x1d, 15];
const EXTENDED_KEY_USAGE: &[u8] = &[6, 3, 0x55, 0x1d, 37];
const BASIC_CONSTRAINTS: &[u8] = &[6, 3, 0x55, 0x1d, 19];
const SUBJECT_KEY_ID: &[u8] = &[6, 3, 0x55, 0x1d, 14];
const AUTHORITY_KEY_ID: &[u8] = &[6, 3, 0x55, 0x1d, 35];
const ALTERNATIVE_NAMES: &[u8] = &[6, 3, 0x55, 0x1d, 17];

const COMMON_NAME: &[u8] = &[6, 3, 0x55, 4, 3];
const SERVER: &[u8] = &[6, 8, 0x2b, 6, 1, 5, 5, 7, 3, 1];
const CLIENT: &[u8] = &[6, 8, 0x2b, 6, 1, 5, 5, 7, 3, 2];
const TRUE: &[u8] = &[der::BOOLEAN, 1, 0xff];

/// Most extensions of a certificate: each is compared with those before it.
const MOST_EXTENSIONS: usize = 1_000;

/// What a certificate is to say.
pub(in crate::template) struct Request<'a> {
    pub(in crate::template) name: &'a [u8],
    /// Of 4 or 16 bytes each.
    pub(in crate::template) addresses: Vec<Vec<u8>>,
    pub(in crate::template) dns_names: Vec<Vec<u8>>,
    pub(in crate::template) days: i64,
    pub(in crate::template) is_ca: bool,
}

/// What of a certificate is needed to sign others.
pub(in crate::template) struct Certificate<'a> {
    /// The element of its subject.
    subject: &'a [u8],
    /// The element of its public key.
    public: &'a [u8],
    key_id: Option<&'a [u8]>,
}

/// A certificate for `key`, signed with the key of the issuer, or with `key` itself where there is none. `now` is in seconds and
/// nanoseconds since 1970.
pub(in crate::template) fn issue(
    request: &Request<'_>,
    key: &Key,
    issuer: Option<(&Certificate<'_>, &Key)>,
    now: (i64, u32),
) -> Result<Vec<u8>, String> {
    let unsupported = "DSA keys cannot be used for certificates; RSA, EC and Ed25519 keys can";
    let (public, public_info) = key.public().ok_or(unsupported)?;
    let signer = issuer.map_or(key, |(_, key)| key);
    let algorithm = signer.algorithm().ok_or(unsupported)?;
    let subject = common_name(request.name)?;
    let issuer_name = issuer.map_or(&subject[..], |(certificate, _)| certificate.subject);
    if let Some((certificate, key)) = issuer
        && key.public().is_none_or(|(_, info)| info != certificate.public)
    {
        return Err("the private key of the issuer is not that of its certificate".to_owned());
    }
    let mut extensions = vec![
        extension(KEY_USAGE, true, &usage(request.is_ca)),
        extension(EXTENDED_KEY_USAGE, false, &sequence(&[SERVER, CLIENT])),
        extension(BASIC_CONSTRAINTS, true, &sequence(if request.is_ca { &[TRUE] } else { &[] })),
    ];
    if request.is_ca {
        let id = &sha2::Sha256::digest(&public)[..20];
        extensions.push(extension(SUBJECT_KEY_ID, false, &element(der::OCTETS, &[id])));
    }
    let issuer_id = issuer.and_then(|(certificate, _)| certificate.key_id);
    if let Some(id) = issuer_id.filter(|id| !id.is_empty() && issuer_name != subject) {
        extensions.push(extension(AUTHORITY_KEY_ID, false, &sequence(&[&element(0x80, &[id])])));
    }
    let mut names = Vec::new();
    for name in &request.dns_names {
        if !name.is_ascii() {
            return Err(format!("the DNS name {:?} is not ASCII", String::from_utf8_lossy(name)));
        }
        names.extend(element(0x82, &[name]));
    }
    for address in &request.addresses {
        names.extend(element(0x87, &[address]));
    }
    if !names.is_empty() {
        let is_only_name = request.name.is_empty();
        extensions.push(extension(ALTERNATIVE_NAMES, is_only_name, &sequence(&[&names])));
    }
    let mut serial = [0; 16];
    aws_lc_rs::rand::fill(&mut serial).map_err(|_| "there are no random numbers")?;
    // In nanoseconds, as Go counts them, which begin anew after 292 years.
    let nanoseconds = request.days.wrapping_mul(86_400_000_000_000).wrapping_add(i64::from(now.1));
    let until = now.0.saturating_add(nanoseconds.div_euclid(1_000_000_000));
    let content = sequence(&[
        &element(0xa0, &[&integer(&[2])]),
        &integer(&serial),
        algorithm,
        issuer_name,
        &sequence(&[&time(now.0), &time(until)]),
        &subject,
        &public_info,
        &element(0xa3, &[&sequence(&[&extensions.concat()])]),
    ]);
    let signature = signer.sign(&content).ok_or("the certificate cannot be signed with that key")?;
    Ok(sequence(&[&content, algorithm, &bits(&signature)]))
}

/// A name that is a common name only; of nothing if that is empty.
fn common_name(name: &[u8]) -> Result<Vec<u8>, String> {
    if name.is_empty() {
        return Ok(sequence(&[]));
    }
    let printable = |byte: &u8| byte.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(byte);
    let tag = if name.iter().all(printable) { der::PRINTABLE_STRING } else { der::UTF8_STRING };
    if std::str::from_utf8(name).is_err() {
        return Err("the common name is not UTF-8".to_owned());
    }
    let pair = sequence(&[COMMON_NAME, &element(tag, &[name])]);
    Ok(sequence(&[&element(der::SET, &[&pair])]))
}

fn extension(oid: &[u8], is_critical: bool, content: &[u8]) -> Vec<u8> {
    sequence(&[oid, if is_critical { TRUE } else { &[] }, &element(der::OCTETS, &[content])])
}

/// Signatures and keys; of a CA certificates, too.
fn usage(is_ca: bool) -> Vec<u8> {
    let (unused, bits) = if is_ca { (2, 0b1010_0100) } else { (5, 0b1010_0000) };
    element(der::BITS, &[&[unused, bits]])
}

/// A point in time: with two digits of the year from 1950 to 2049, with four for others.
fn time(seconds: i64) -> Vec<u8> {
    let (year, month, day) = calendar::date(seconds.div_euclid(86_400));
    let second = seconds.rem_euclid(86_400);
    let rest = format!("{month:02}{day:02}{:02}{:02}{:02}Z", second / 3600, second / 60 % 60, second % 60);
    if (1950..2050).contains(&year) {
        element(der::UTC_TIME, &[format!("{:02}{rest}", year % 100).as_bytes()])
    } else {
        element(der::GENERALIZED_TIME, &[format!("{year:04}{rest}").as_bytes()])
    }
}

impl<'a> Certificate<'a> {
    /// Reads a certificate.
    pub(in crate::template) fn parse(der: &'a [u8]) -> Result<Certificate<'a>, String> {
        let mut part = "beginning";
        Certificate::read(der, &mut part).ok_or_else(|| format!("the certificate cannot be read; its {part} is wrong"))
    }

    /// `part` is what is being read.
    fn read(der: &'a [u8], part: &mut &'static str) -> Option<Certificate<'a>> {
        let mut at = |what| *part = what;
        let mut outside = Reader(der);
        let mut outer = outside.inside(der::SEQUENCE)?;
        at("end");
        outside.is_empty().then_some(())?;
        at("content");
        let mut inner = outer.inside(der::SEQUENCE)?;
        at("version");
        let version = inner.inside(0xa0).map_or(Some(0), |mut version| version.version()).filter(|v| *v <= 2)?;
        at("serial number");
        inner.integer().filter(|serial| serial[0] < 0x80)?;
        at("algorithm");
        let algorithm = inner.element(der::SEQUENCE).filter(is_algorithm)?;
        (outer.element(der::SEQUENCE)?.whole == algorithm.whole).then_some(())?;
        at("issuer");
        inner.element(der::SEQUENCE).filter(is_name)?;
        at("validity");
        let mut validity = inner.inside(der::SEQUENCE)?;
        for _ in 0..2 {
            validity.next().filter(is_time)?;
        }
        at("subject");
        let subject = inner.element(der::SEQUENCE).filter(is_name)?;
        at("public key");
        let public = inner.element(der::SEQUENCE)?;
        let mut key = Reader(public.content);
        let (kind, key) = (key.element(der::SEQUENCE).filter(is_algorithm)?, key.bits()?);
        is_public(kind.content, key).then_some(())?;
        let mut found = Certificate { subject: subject.whole, public: public.whole, key_id: None };
        at("extensions");
        if version > 0 {
            inner.take(0x81);
            inner.take(0x82);
        }
        if let Some(mut extensions) = inner.inside(0xa3).filter(|_| version == 2) {
            let mut extensions = extensions.inside(der::SEQUENCE)?;
            let mut seen: Vec<&[u8]> = Vec::new();
            while !extensions.is_empty() {
                let mut extension = extensions.inside(der::SEQUENCE)?;
                let oid = extension.object_id()?.whole;
                let is_critical = match extension.take(der::BOOLEAN) {
                    Some([0xff]) => true,
                    Some([0]) | None => false,
                    Some(_) => return None,
                };
                let content = extension.take(der::OCTETS)?;
                if seen.contains(&oid) || seen.len() == MOST_EXTENSIONS {
                    return None;
                }
                seen.push(oid);
                if oid == SUBJECT_KEY_ID {
                    found.key_id = Some(Reader(content).take(der::OCTETS)?);
                }
                if !is_extension(oid, content) || is_critical && matches!(oid, SUBJECT_KEY_ID | AUTHORITY_KEY_ID) {
                    return None;
                }
            }
        }
        at("signature");
        outer.bits()?;
        Some(found)
    }
}

fn is_algorithm(algorithm: &Element<'_>) -> bool {
    let mut parts = Reader(algorithm.content);
    parts.object_id().is_some() && (parts.is_empty() || parts.next().is_some())
}

/// Whether an extension of those that certificates made here have has the content that belongs to it.
fn is_extension(oid: &[u8], content: &[u8]) -> bool {
    let mut content = Reader(content);
    if oid == KEY_USAGE {
        return content.bits().is_some();
    }
    if ![EXTENDED_KEY_USAGE, BASIC_CONSTRAINTS, AUTHORITY_KEY_ID, ALTERNATIVE_NAMES].contains(&oid) {
        return true;
    }
    let Some(mut parts) = content.inside(der::SEQUENCE) else { return false };
    if oid == BASIC_CONSTRAINTS {
        let truth = parts.take(der::BOOLEAN).is_none_or(|truth| matches!(truth, [0 | 0xff]));
        return truth && (parts.0.first() != Some(&der::INTEGER) || parts.integer().is_some());
    }
    while !parts.is_empty() {
        let is_right = match (oid, parts.0[0]) {
            (EXTENDED_KEY_USAGE, _) => parts.object_id().is_some(),
            (ALTERNATIVE_NAMES, 0x81 | 0x82 | 0x86) => parts.next().is_some_and(|name| name.content.is_ascii()),
            (ALTERNATIVE_NAMES, 0x87) => parts.next().is_some_and(|address| matches!(address.content.len(), 4 | 16)),
            _ => parts.next().is_some(),
        };
        if !is_right {
            return false;
        }
    }
    true
}

/// A sequence of sets of pairs of an object identifier and a text.
fn is_name(name: &Element<'_>) -> bool {
    let mut sets = Reader(name.content);
    while !sets.is_empty() {
        let Some(mut set) = sets.inside(der::SET) else { return false };
        while !set.is_empty() {
            let Some(mut pair) = set.inside(der::SEQUENCE) else { return false };
            if pair.object_id().is_none() || !pair.next().is_some_and(|value| is_text(&value)) {
                return false;
            }
        }
    }
    true
}

fn is_text(text: &Element<'_>) -> bool {
    match text.tag {
        der::UTF8_STRING => std::str::from_utf8(text.content).is_ok(),
        // With two characters that do not belong to it, but are found there.
        der::PRINTABLE_STRING => {
            text.content.iter().all(|byte| byte.is_ascii_alphanumeric() || b" '()+,-./:=?*&".contains(byte))
        }
        der::NUMERIC_STRING => text.content.iter().all(|byte| byte.is_ascii_digit() || *byte == b' '),
        der::IA5_STRING => text.content.is_ascii(),
        der::BMP_STRING => text.content.len().is_multiple_of(2),
        tag => tag == der::T61_STRING,
    }
}

fn is_time(time: &Element<'_>) -> bool {
    let digits = match time.tag {
        der::UTC_TIME => 12,
        der::GENERALIZED_TIME => 14,
        _ => return false,
    };
    let number = |at: usize| -> u8 { time.content[at..at + 2].iter().fold(0, |n, d| n * 10 + (d - b'0')) };
    let [text @ .., b'Z'] = time.content else { return false };
    text.len() == digits
        && text.iter().all(u8::is_ascii_digit)
        && (1..=12).contains(&number(digits - 10))
        && (1..=31).contains(&number(digits - 8))
        && number(digits - 6) < 24
        && number(digits - 4) < 60
        && number(digits - 2) < 60
}
