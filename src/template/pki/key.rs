//! Private keys.

use aws_lc_rs::encoding::AsBigEndian as _;
use aws_lc_rs::encoding::{AsDer, EcPrivateKeyBin, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1, ECDSA_P384_SHA384_ASN1_SIGNING,
    ECDSA_P521_SHA512_ASN1, ECDSA_P521_SHA512_ASN1_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
    EcdsaVerificationAlgorithm, Ed25519KeyPair, KeyPair as _, ParsedPublicKey, RSA_PKCS1_SHA256, RsaKeyPair,
};

use super::der::{self, Reader, bits, element, integer, sequence};
use super::pem;

/// A private key of one of the kinds that there are; its bytes are as they stand in the file, and never shown.
pub(in crate::template) enum Key {
    /// The file's form is PKCS #1.
    Rsa(Box<RsaKeyPair>, Vec<u8>),
    /// The number alone.
    Ec(EcdsaKeyPair, &'static Curve, Vec<u8>),
    /// The seed.
    Ed25519(Ed25519KeyPair, Vec<u8>),
    /// Version, p, q, g, public and private key. It can only be written and read.
    Dsa(Vec<u8>),
}

/// A curve, and the signatures that go with it.
pub(in crate::template) struct Curve {
    /// Its object identifier, with tag and length.
    oid: &'static [u8],
    /// Bytes of a private key.
    size: usize,
    signing: &'static EcdsaSigningAlgorithm,
    verifying: &'static EcdsaVerificationAlgorithm,
    /// The algorithm of its signatures, as an element.
    signature: &'static [u8],
}

static CURVES: [Curve; 3] = [
    Curve {
        oid: &[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7],
        size: 32,
        signing: &ECDSA_P256_SHA256_ASN1_SIGNING,
        verifying: &ECDSA_P256_SHA256_ASN1,
        signature: &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2],
    },
    Curve {
        oid: &[6, 5, 0x2b, 0x81, 4, 0, 0x22],
        size: 48,
        signing: &ECDSA_P384_SHA384_ASN1_SIGNING,
        verifying: &ECDSA_P384_SHA384_ASN1,
        signature: &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3],
    },
    Curve {
        oid: &[6, 5, 0x2b, 0x81, 4, 0, 0x23],
        size: 66,
        signing: &ECDSA_P521_SHA512_ASN1_SIGNING,
        verifying: &ECDSA_P521_SHA512_ASN1,
        signature: &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4],
    },
];

/// The algorithm of an RSA key, as an element: `rsaEncryption`, and no parameters.
const RSA: &[u8] = &[0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 1, 5, 0];
const SHA256_WITH_RSA: &[u8] = &[0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 11, 5, 0];
const ED25519: &[u8] = &[0x30, 5, 6, 3, 0x2b, 0x65, 0x70];
/// The object identifier of keys on curves, with tag and length.
const EC_KEY: &[u8] = &[6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];

/// A curve that Go knows besides.
const P224: &[u8] = &[6, 5, 0x2b, 0x81, 4, 0, 0x21];

/// What is said of a key that is none.
const MALFORMED: &str = "the private key cannot be read";

impl Key {
    /// A new RSA key.
    pub(in crate::template) fn new_rsa(size: KeySize) -> Option<Key> {
        let pair = RsaKeyPair::generate(size).ok()?;
        let pkcs8 = AsDer::<Pkcs8V1Der<'_>>::as_der(&pair).ok()?;
        let (_, der) = unwrap_pkcs8(pkcs8.as_ref())?;
        Some(Key::Rsa(Box::new(pair), der.to_vec()))
    }

    /// A new key on the curve P-256.
    pub(in crate::template) fn new_ecdsa() -> Option<Key> {
        let curve = &CURVES[0];
        let pair = EcdsaKeyPair::generate(curve.signing).ok()?;
        let number: EcPrivateKeyBin<'_> = pair.private_key().as_be_bytes().ok()?;
        let number = padded(number.as_ref(), curve.size)?;
        Some(Key::Ec(pair, curve, number))
    }

    pub(in crate::template) fn new_ed25519() -> Option<Key> {
        let pair = Ed25519KeyPair::generate().ok()?;
        let seed = pair.seed().ok()?.as_be_bytes().ok()?.as_ref().to_vec();
        Some(Key::Ed25519(pair, seed))
    }

    /// A new DSA key with new parameters.
    pub(in crate::template) fn new_dsa() -> Option<Key> {
        crate::sys::crypto::new_dsa_key().map(Key::Dsa)
    }

    /// The key in the first block of a text.
    pub(in crate::template) fn from_pem(text: &[u8]) -> Result<Key, String> {
        let (label, bytes) = pem::decode(text).ok_or("it has no PEM block; a private key in PEM is needed")?;
        let Some(kind) = label.strip_suffix(b"PRIVATE KEY") else {
            return Err(format!("its PEM block is of type {}, no private key", String::from_utf8_lossy(label)));
        };
        match kind {
            b"" => Key::from_pkcs8(&bytes),
            b"RSA " => Key::from_pkcs1(&bytes),
            b"EC " => Key::from_sec1(&bytes, None),
            b"DSA " => Key::from_dsa(bytes).ok_or_else(|| MALFORMED.to_owned()),
            _ => Err(format!("private keys of the type {}are not supported", String::from_utf8_lossy(kind))),
        }
    }

    fn from_pkcs8(der: &[u8]) -> Result<Key, String> {
        let (algorithm, key) = unwrap_pkcs8(der).ok_or(MALFORMED)?;
        if algorithm == &RSA[2..] || algorithm == &RSA[2..13] {
            return Key::from_pkcs1(key);
        }
        if let Some(parameters) = algorithm.strip_prefix(EC_KEY) {
            return Key::from_sec1(key, object_id(parameters));
        }
        if algorithm == &ED25519[2..] {
            let seed = Reader(key).take(der::OCTETS).filter(|seed| seed.len() == 32).ok_or(MALFORMED)?;
            let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| MALFORMED)?;
            return Ok(Key::Ed25519(pair, seed.to_vec()));
        }
        Err("private keys of that algorithm are not supported; RSA, EC and Ed25519 are".to_owned())
    }

    fn from_pkcs1(der: &[u8]) -> Result<Key, String> {
        let mut reader = Reader(der);
        let is_one = reader.element(der::SEQUENCE).is_some() && reader.is_empty();
        let modulus = Reader(der).inside(der::SEQUENCE).and_then(|mut key| {
            key.version()?;
            key.integer()
        });
        let modulus = modulus.filter(|_| is_one).ok_or(MALFORMED)?;
        let pair = RsaKeyPair::from_der(der).map_err(|_| match modulus.len() {
            257..=1025 => MALFORMED.to_owned(),
            bytes => format!("an RSA key has to have 2048 to 8192 bits, not about {}", bytes * 8),
        })?;
        Ok(Key::Rsa(Box::new(pair), der.to_vec()))
    }

    /// The number of a key on a curve, which stands in it if it is not `given`.
    fn from_sec1(der: &[u8], given: Option<&[u8]>) -> Result<Key, String> {
        let read = || {
            let mut key = Reader(der).inside(der::SEQUENCE)?;
            let number = (key.version()? == 1).then(|| key.take(der::OCTETS))??;
            let curve = key.take(0xa0).and_then(object_id);
            while !key.is_empty() {
                key.next()?;
            }
            Some((number, curve))
        };
        let (number, own) = read().ok_or(MALFORMED)?;
        let oid = given.or(own).ok_or("the private key does not name its curve")?;
        let curve = CURVES.iter().find(|curve| curve.oid == oid);
        let curve = curve.ok_or("the private key is on a curve that is not supported; P-256, P-384 and P-521 are")?;
        let number = padded(number, curve.size).ok_or(MALFORMED)?;
        let plain = sequence(&[&integer(&[1]), &element(der::OCTETS, &[&number]), &element(0xa0, &[curve.oid])]);
        let pair = EcdsaKeyPair::from_private_key_der(curve.signing, &plain).map_err(|_| MALFORMED)?;
        Ok(Key::Ec(pair, curve, number))
    }

    fn from_dsa(der: Vec<u8>) -> Option<Key> {
        let mut key = Reader(&der).inside(der::SEQUENCE)?;
        for _ in 0..6 {
            key.integer()?;
        }
        Some(Key::Dsa(der))
    }

    /// The key as a file.
    pub(in crate::template) fn pem(&self) -> Vec<u8> {
        match self {
            Key::Rsa(_, der) => pem::encode("RSA PRIVATE KEY", der),
            Key::Dsa(der) => pem::encode("DSA PRIVATE KEY", der),
            Key::Ec(pair, curve, number) => {
                let public = element(0xa1, &[&bits(pair.public_key().as_ref())]);
                let (number, oid) = (element(der::OCTETS, &[number]), element(0xa0, &[curve.oid]));
                pem::encode("EC PRIVATE KEY", &sequence(&[&integer(&[1]), &number, &oid, &public]))
            }
            Key::Ed25519(_, seed) => {
                let key = element(der::OCTETS, &[&element(der::OCTETS, &[seed])]);
                pem::encode("PRIVATE KEY", &sequence(&[&integer(&[]), ED25519, &key]))
            }
        }
    }

    /// The public key's bytes, and the element around them that says what they are. `None` for a DSA key.
    pub(super) fn public(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (algorithm, bytes) = match self {
            Key::Rsa(pair, _) => (RSA.to_vec(), pair.public_key().as_ref()),
            Key::Ec(pair, curve, _) => (sequence(&[EC_KEY, curve.oid]), pair.public_key().as_ref()),
            Key::Ed25519(pair, _) => (ED25519.to_vec(), pair.public_key().as_ref()),
            Key::Dsa(_) => return None,
        };
        Some((bytes.to_vec(), sequence(&[&algorithm, &bits(bytes)])))
    }

    /// The algorithm of its signatures, as an element. `None` for a DSA key.
    pub(super) fn algorithm(&self) -> Option<&'static [u8]> {
        match self {
            Key::Rsa(..) => Some(SHA256_WITH_RSA),
            Key::Ec(_, curve, _) => Some(curve.signature),
            Key::Ed25519(..) => Some(ED25519),
            Key::Dsa(_) => None,
        }
    }

    /// A signature of `message`.
    pub(super) fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match self {
            Key::Rsa(pair, _) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).ok()?;
                Some(signature)
            }
            Key::Ec(pair, ..) => pair.sign(&random, message).ok().map(|signature| signature.as_ref().to_vec()),
            Key::Ed25519(pair, _) => pair.try_sign(message).ok().map(|signature| signature.as_ref().to_vec()),
            Key::Dsa(_) => None,
        }
    }
}

/// Whether a certificate may have this public key of this algorithm. `true` for algorithms that are not known here, as in Go.
pub(super) fn is_public(algorithm: &[u8], key: &[u8]) -> bool {
    if let Some(parameters) = algorithm.strip_prefix(EC_KEY) {
        return match CURVES.iter().find(|curve| curve.oid == parameters) {
            Some(curve) => ParsedPublicKey::new(curve.verifying, key).is_ok(),
            None => parameters == P224,
        };
    }
    if algorithm.starts_with(&RSA[2..13]) {
        let positive = |number: &[u8]| number[0] < 0x80 && number != [0];
        let numbers = Reader(key).inside(der::SEQUENCE).and_then(|mut key| key.integer().zip(key.integer()));
        return algorithm == &RSA[2..] && numbers.is_some_and(|(n, e)| positive(n) && positive(e));
    }
    !algorithm.starts_with(&ED25519[2..]) || algorithm == &ED25519[2..] && key.len() == 32
}

/// The content of the algorithm, and the key.
fn unwrap_pkcs8(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut outer = Reader(der).inside(der::SEQUENCE)?;
    outer.version()?;
    Some((outer.take(der::SEQUENCE)?, outer.take(der::OCTETS)?))
}

/// The object identifier that is the first element, with tag and length.
fn object_id(der: &[u8]) -> Option<&[u8]> {
    Reader(der).object_id().map(|element| element.whole)
}

/// A number in exactly so many bytes: zeros in front may be missing or too many.
fn padded(number: &[u8], size: usize) -> Option<Vec<u8>> {
    let (more, number) = number.split_at(number.len().saturating_sub(size));
    let zeros = vec![0; size - number.len()];
    more.iter().all(|byte| *byte == 0).then(|| [&zeros, number].concat())
}
