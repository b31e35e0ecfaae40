//! The functions of sprig that make keys, certificates and passwords, and that encrypt.
//!
//! What takes long counts as about two steps for each microsecond of an AMD EPYC, so that the limit of a template's steps is one of
//! its time: some RSA keys, not a thousand. Measured on 2026-11-26, in ms: bcrypt 65, scrypt 230, an RSA key of 4096 bits 1270 and of
//! 2048 bits 160 (the mean; they are found by chance), a DSA key 820.

use std::rc::Rc;

use aws_lc_rs::cipher::{AES_256, DecryptingKey, DecryptionContext, EncryptingKey, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::rsa::KeySize;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{KeyInit as _, Mac as _};

use super::{Anys, Function, Int, Text, Type, int, row, text};
use crate::template::pki::{Certificate, Key, Request, issue, pem};
use crate::template::types::Exec;
use crate::template::value::{CERTIFICATE, Object, Value};

type Outcome = Result<Value, String>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    row("sprig_bcrypt", &[Text], |x, a| Ok(Value::text(bcrypt(x, text(a, 0))?)), "a bcrypt hash of a password, of cost 10; another one each time"),
    row("sprig_htpasswd", &[Text, Text], htpasswd, "a line of a password file: a name, and the bcrypt hash of a password"),
    row("sprig_derivePassword", &[Type::Uint32, Text, Text, Text, Text], derive_password, "the password that the Master Password algorithm derives for a counter, a type (`maximum`, `long`, `medium`, `short`, `basic`, `pin`), a password, a user and a site; always the same"),
    row("sprig_genPrivateKey", &[Text], private_key, "a new private key in PEM: `rsa` (4096 bits), `ecdsa` (P-256), `ed25519`, `dsa` (2048 bits)"),
    row("sprig_genCA", &[Text, Int], authority, "a new certificate authority for a common name and so many days: `.Cert` and `.Key` in PEM, with an RSA key of 2048 bits"),
    row("sprig_genCAWithKey", &[Text, Int, Text], authority, "as `sprig_genCA`, for a private key in PEM: RSA of 2048 to 8192 bits, EC on P-256, P-384 or P-521, Ed25519"),
    row("sprig_genSelfSignedCert", &[Text, Anys, Anys, Int], self_signed, "a new certificate for a common name, IP addresses, DNS names (each may be `nil`) and so many days, which its own key signs"),
    row("sprig_genSelfSignedCertWithKey", &[Text, Anys, Anys, Int, Text], self_signed, "as `sprig_genSelfSignedCert`, for a private key in PEM"),
    row("sprig_genSignedCert", &[Text, Anys, Anys, Int, Type::Certificate], signed, "as `sprig_genSelfSignedCert`, but signed by an authority that `sprig_genCA` or `sprig_buildCustomCert` gives"),
    row("sprig_genSignedCertWithKey", &[Text, Anys, Anys, Int, Type::Certificate, Text], signed, "as `sprig_genSignedCert`, for a private key in PEM"),
    row("sprig_buildCustomCert", &[Text, Text], custom, "a certificate and its private key in PEM (as of `sprig_genCAWithKey`, or DSA), each in Base64, as a value with `.Cert` and `.Key`"),
    row("sprig_encryptAES", &[Text, Text], encrypt, "a text encrypted by a password with AES-256-CBC, in Base64; another one each time"),
    row("sprig_decryptAES", &[Text, Text], decrypt, "what `sprig_encryptAES` made of a text, as the text"),
];

/// The cost of `bcrypt`, and its steps.
const BCRYPT: (u32, u64) = (10, 120_000);
/// N, r and p of scrypt, its memory in bytes, and its steps.
const SCRYPT: ((u64, u64, u64), usize, u64) = ((32_768, 8, 2), 64 << 20, 500_000);
/// Steps to make keys.
const RSA_4096: u64 = 3_000_000;
const RSA_2048: u64 = 300_000;
const DSA: u64 = 2_000_000;
const SMALL_KEY: u64 = 200;
/// So many bytes of PEM are read in a step.
const BYTES_OF_A_STEP: u64 = 50;

/// The longest password that bcrypt looks at all of, in bytes.
const LONGEST_PASSWORD: usize = 72;

fn bcrypt(exec: &mut Exec<'_>, password: &[u8]) -> Result<String, String> {
    if password.len() > LONGEST_PASSWORD {
        // The library's words, as it gives them as the output.
        let why = format!("bcrypt: password length exceeds {LONGEST_PASSWORD} bytes");
        return Ok(format!("failed to encrypt string with bcrypt: {why}"));
    }
    exec.work("a bcrypt hash", BCRYPT.1)?;
    let hash = bcrypt::hash_with_salt(password, BCRYPT.0, random()?).map_err(|error| error.to_string())?;
    Ok(hash.format_for_version(bcrypt::Version::TwoA))
}

fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| "there are no random numbers")?;
    Ok(bytes)
}

fn htpasswd(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let user = text(arguments, 0);
    if user.contains(&b':') {
        return Ok(Value::text([b"invalid username: ", user].concat()));
    }
    let hash = bcrypt(exec, text(arguments, 1))?;
    Ok(Value::text([user, b":", hash.as_bytes()].concat()))
}

/// What the Master Password algorithm makes passwords of each type of: a letter is a class of characters.
const PASSWORDS: [(&str, &str); 6] = [
    ("maximum", "anoxxxxxxxxxxxxxxxxx axxxxxxxxxxxxxxxxxno"),
    (
        "long",
        "CvcvnoCvcvCvcv CvcvCvcvnoCvcv CvcvCvcvCvcvno CvccnoCvcvCvcv CvccCvcvnoCvcv CvccCvcvCvcvno CvcvnoCvccCvcv \
         CvcvCvccnoCvcv CvcvCvccCvcvno CvcvnoCvcvCvcc CvcvCvcvnoCvcc CvcvCvcvCvccno CvccnoCvccCvcv CvccCvccnoCvcv \
         CvccCvccCvcvno CvcvnoCvccCvcc CvcvCvccnoCvcc CvcvCvccCvccno CvccnoCvcvCvcc CvccCvcvnoCvcc CvccCvcvCvccno",
    ),
    ("medium", "CvcnoCvc CvcCvcno"),
    ("short", "Cvcn"),
    ("basic", "aaanaaan aannaaan aaannaaa"),
    ("pin", "nnnn"),
];

/// The characters of a class.
fn class(letter: u8) -> String {
    const VOWELS: &str = "AEIOU";
    const CONSONANTS: &str = "BCDFGHJKLMNPQRSTVWXYZ";
    match letter {
        b'V' => VOWELS.to_owned(),
        b'C' => CONSONANTS.to_owned(),
        b'v' | b'c' => class(letter.to_ascii_uppercase()).to_ascii_lowercase(),
        b'a' => [VOWELS, &class(b'v'), CONSONANTS, &class(b'c')].concat(),
        b'n' => "0123456789".to_owned(),
        b'o' => "@&%?,=[]_:-+*$#!'^~;()/.".to_owned(),
        _ => class(b'a') + &class(b'n') + "!@#$%^&*()",
    }
}

fn derive_password(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    const SCOPE: &[u8] = b"com.lyndir.masterpassword";
    let (kind, password, user, site) = (text(arguments, 1), text(arguments, 2), text(arguments, 3), text(arguments, 4));
    let Some((_, forms)) = PASSWORDS.iter().find(|(name, _)| name.as_bytes() == kind) else {
        return Ok(Value::text([b"cannot find password template ", kind].concat()));
    };
    let counter = int(arguments, 0) as u32;
    let length = |text: &[u8]| (text.len() as u32).to_be_bytes();
    let (parameters, memory, steps) = SCRYPT;
    exec.work("a password derived by scrypt", steps)?;
    let salt = [SCOPE, &length(user), user].concat();
    let mut key = [0; 64];
    if !crate::sys::crypto::scrypt(password, &salt, parameters, memory, &mut key) {
        return Err("there is not enough memory to derive a key by scrypt: 32 MiB".to_owned());
    }
    let mut seed = hmac::Hmac::<sha2::Sha256>::new_from_slice(&key).map_err(|error| error.to_string())?;
    seed.update(&[SCOPE, &length(site), site, &counter.to_be_bytes()].concat());
    let seed = seed.finalize().into_bytes();
    let forms: Vec<&str> = forms.split(' ').collect();
    let form = forms[usize::from(seed[0]) % forms.len()];
    let character = |(letter, seed): (u8, &u8)| {
        let class = class(letter).into_bytes();
        class[usize::from(*seed) % class.len()]
    };
    Ok(Value::text(form.bytes().zip(&seed[1..]).map(character).collect::<Vec<u8>>()))
}

fn private_key(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let key = match text(arguments, 0) {
        b"" | b"rsa" => new_rsa(exec, KeySize::Rsa4096, RSA_4096)?,
        b"ecdsa" => made(exec.work("a key", SMALL_KEY).map(|()| Key::new_ecdsa())?)?,
        b"ed25519" => made(exec.work("a key", SMALL_KEY).map(|()| Key::new_ed25519())?)?,
        b"dsa" => made(exec.work("a DSA key", DSA).map(|()| Key::new_dsa())?)?,
        other => return Ok(Value::text([b"Unknown type ", other].concat())),
    };
    Ok(Value::text(key.pem()))
}

/// A key that is given. What is done with it takes the longer the longer an RSA key is; the longest are those of 8192 bits.
fn given(exec: &mut Exec<'_>, pem: &[u8]) -> Result<Key, String> {
    let size = pem.len().min(8_000) as u64 / 100;
    exec.work("a private key", SMALL_KEY + size.pow(3) / 3 + pem.len() as u64 / BYTES_OF_A_STEP)?;
    Key::from_pem(pem)
}

/// The bytes of the certificate in a text.
fn certificate_in(exec: &mut Exec<'_>, text: &[u8]) -> Result<Vec<u8>, String> {
    exec.work("a certificate", text.len() as u64 / BYTES_OF_A_STEP)?;
    pem::decode(text).map(|(_, bytes)| bytes).ok_or_else(|| "the certificate has no PEM block".to_owned())
}

fn made(key: Option<Key>) -> Result<Key, String> {
    key.ok_or_else(|| "the key cannot be made: there is not enough memory".to_owned())
}

fn new_rsa(exec: &mut Exec<'_>, size: KeySize, steps: u64) -> Result<Key, String> {
    exec.work("an RSA key", steps)?;
    made(Key::new_rsa(size))
}

/// A certificate with its private key.
fn certificate(exec: &mut Exec<'_>, cert: &[u8], key: &[u8]) -> Outcome {
    exec.spend(256 + cert.len() + key.len())?;
    let fields = vec![("Cert", Value::text(cert)), ("Key", Value::text(key))];
    Ok(Value::Object(Rc::new(Object { type_name: CERTIFICATE, fields, shown: None, methods: Vec::new() })))
}

/// A certificate as requested, for the key that is given, or a new one, and signed by an authority or by that key.
fn issued(exec: &mut Exec<'_>, request: &Request<'_>, key: Option<&Value>, authority: Option<&Value>) -> Outcome {
    let field = |name: &str| match authority {
        Some(Value::Object(object)) => object.field(name).and_then(|field| field.as_text().cloned()),
        _ => None,
    };
    let issuer = match (field("Cert"), field("Key")) {
        (Some(cert), Some(key)) => {
            let cert = certificate_in(exec, &cert).map_err(|error| format!("the authority: {error}"))?;
            let key = given(exec, &key).map_err(|error| format!("the authority's private key: {error}"))?;
            Some((cert, key))
        }
        _ => None,
    };
    let parsed = issuer.as_ref().map(|(cert, key)| Certificate::parse(cert).map(|cert| (cert, key)));
    let parsed = parsed.transpose().map_err(|error| format!("the authority: {error}"))?;
    let key = match key.and_then(Value::as_text) {
        Some(pem) => given(exec, pem)?,
        None => new_rsa(exec, KeySize::Rsa2048, RSA_2048)?,
    };
    let der = issue(request, &key, parsed.as_ref().map(|(cert, key)| (cert, *key)), exec.host.now())?;
    certificate(exec, &pem::encode("CERTIFICATE", &der), &key.pem())
}

fn authority(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let (addresses, dns_names) = (Vec::new(), Vec::new());
    let request = Request { name: text(arguments, 0), addresses, dns_names, days: int(arguments, 1), is_ca: true };
    issued(exec, &request, arguments.get(2), None)
}

/// What certificates that are no authority are requested by: the first four arguments.
fn request<'a>(exec: &mut Exec<'_>, arguments: &'a [Value]) -> Result<Request<'a>, String> {
    let addresses = texts(exec, &arguments[1], "the IP addresses")?;
    let addresses = addresses.into_iter().map(address).collect::<Result<_, _>>()?;
    let dns_names = texts(exec, &arguments[2], "the DNS names")?.into_iter().map(<[u8]>::to_vec).collect();
    Ok(Request { name: text(arguments, 0), addresses, dns_names, days: int(arguments, 3), is_ca: false })
}

fn self_signed(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let request = request(exec, arguments)?;
    issued(exec, &request, arguments.get(4), None)
}

fn signed(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let request = request(exec, arguments)?;
    issued(exec, &request, arguments.get(5), arguments.get(4))
}

/// The texts of a list that may be `nil`.
fn texts<'a>(exec: &mut Exec<'_>, list: &'a Value, what: &str) -> Result<Vec<&'a [u8]>, String> {
    let Value::List(list) = list else { return Ok(Vec::new()) };
    let mut texts = Vec::with_capacity(list.items.len());
    for item in &list.items {
        let text =
            item.as_text().ok_or_else(|| format!("{what} are texts, not values of type {}", item.type_name()))?;
        exec.spend(2 * text.len() + 64)?;
        texts.push(&text[..]);
    }
    Ok(texts)
}

/// The 4 or 16 bytes of an address.
fn address(text: &[u8]) -> Result<Vec<u8>, String> {
    let shown = String::from_utf8_lossy(text);
    match shown.parse().map(|address: std::net::IpAddr| address.to_canonical()) {
        Ok(std::net::IpAddr::V4(address)) => Ok(address.octets().to_vec()),
        Ok(std::net::IpAddr::V6(address)) => Ok(address.octets().to_vec()),
        Err(_) => Err(format!("{shown:?} is not an IP address")),
    }
}

fn custom(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let cert = pem::base64(text(arguments, 0)).ok_or("the certificate is not Base64")?;
    let key = pem::base64(text(arguments, 1)).ok_or("the private key is not Base64")?;
    Certificate::parse(&certificate_in(exec, &cert)?)?;
    given(exec, &key)?;
    certificate(exec, &cert, &key)
}

/// AES-256 with a password as its key, cut or filled up with zeros.
fn cipher(password: &[u8]) -> Result<UnboundCipherKey, String> {
    let mut key = [0; 32];
    let length = password.len().min(key.len());
    key[..length].copy_from_slice(&password[..length]);
    UnboundCipherKey::new(&AES_256, &key).map_err(|_| "there is no key of that password".to_owned())
}

/// Bytes of a block, and of the first random one.
const BLOCK: usize = 16;

fn encrypt(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let plain = text(arguments, 1);
    if plain.is_empty() {
        return Ok(Value::text(b""));
    }
    exec.spend(3 * plain.len() + 2 * BLOCK)?;
    let failed = |_| "it cannot be encrypted".to_owned();
    let padding = BLOCK - plain.len() % BLOCK;
    let mut content = [plain, &vec![padding as u8; padding]].concat();
    let key = EncryptingKey::cbc(cipher(text(arguments, 0))?).map_err(failed)?;
    let context = key.encrypt(&mut content).map_err(failed)?;
    let first: &[u8] = (&context).try_into().map_err(failed)?;
    Ok(Value::text(STANDARD.encode([first, &content].concat())))
}

fn decrypt(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let encrypted = text(arguments, 1);
    if encrypted.is_empty() {
        return Ok(Value::text(b""));
    }
    exec.spend(2 * encrypted.len())?;
    let mut bytes = pem::base64(encrypted).ok_or("what is to be decrypted is not Base64")?;
    let wrong =
        || "what is to be decrypted is not what sprig_encryptAES made, or the password is another one".to_owned();
    let (first, content) = bytes.split_first_chunk_mut::<BLOCK>().ok_or_else(wrong)?;
    let context = DecryptionContext::Iv128(FixedLength::from(&*first));
    let key = DecryptingKey::cbc(cipher(text(arguments, 0))?).map_err(|_| wrong())?;
    let plain = key.decrypt(content, context).map_err(|_| wrong())?;
    // Only the last byte is looked at, as the library does: how many are no text.
    let padding = usize::from(*plain.last().ok_or_else(wrong)?);
    let length = plain.len().checked_sub(padding).ok_or_else(wrong)?;
    Ok(Value::text(&plain[..length]))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::template::asked::tests::Counting;
    use crate::template::{Limits, Template};

    fn try_render(text: &str, limits: Limits) -> Result<String, String> {
        let cancel = AtomicBool::new(false);
        let rendered = Template::parse(text, "{{", "}}", &cancel)
            .and_then(|template| template.render(&Counting::new(), true, limits, &cancel));
        rendered.map(|r| String::from_utf8(r.output).unwrap()).map_err(|e| e.message)
    }

    fn rendered(text: &str) -> String {
        try_render(text, Limits::default()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn refused(text: &str) -> String {
        try_render(text, Limits::default()).expect_err(text)
    }

    #[test]
    fn j4_passwords_are_derived_and_hashed() {
        let derived = |kind: &str| {
            rendered(&format!(r#"{{{{ sprig_derivePassword 1 "{kind}" "password" "user" "example.com" }}}}"#))
        };
        assert_eq!(derived("long"), "ZedaFaxcZaso9*");
        assert_eq!((derived("pin").len(), derived("maximum").len()), (4, 20));
        assert_eq!(derived("tiny"), "cannot find password template tiny");
        assert!(refused(r#"{{ sprig_derivePassword -1 "pin" "" "" "" }}"#).contains("expected uint32"));
        assert!(
            refused(r#"{{ $n := 1 }}{{ sprig_derivePassword $n "pin" "" "" "" }}"#)
                .contains("expected uint32; got int")
        );
        let line = rendered(r#"{{ sprig_htpasswd "me" "secret" }}"#);
        let hash = line.strip_prefix("me:").unwrap();
        assert!(hash.starts_with("$2a$10$") && bcrypt::verify("secret", hash).unwrap(), "{line}");
        assert_eq!(rendered(r#"{{ sprig_htpasswd "a:b" "secret" }}"#), "invalid username: a:b");
        let too_long = rendered(&format!(r#"{{{{ sprig_bcrypt "{}" }}}}"#, "x".repeat(73)));
        assert!(too_long.ends_with("password length exceeds 72 bytes"), "{too_long}");
    }

    #[test]
    fn j4_texts_are_encrypted_and_decrypted() {
        // As sprig's page has it.
        let known = r#"{{ "30tEfhuJSVRhpG97XCuWgz2okj7L8vQ1s6V9zVUPeDQ=" | sprig_decryptAES "secretkey" }}"#;
        assert_eq!(rendered(known), "plaintext");
        for length in [0, 1, 15, 16, 17, 1000] {
            let (text, password) = ("x".repeat(length), "p".repeat(length % 40));
            let both = format!(r#"{{{{ sprig_encryptAES "{password}" "{text}" | sprig_decryptAES "{password}" }}}}"#);
            assert_eq!(rendered(&both), text);
        }
        let twice = rendered(r#"{{ eq (sprig_encryptAES "p" "x") (sprig_encryptAES "p" "x") }}"#);
        assert_eq!(twice, "false");
        for bad in ["!", "AAAA", "AAAAAAAAAAAAAAAAAAAAAA==", "AAAAAAAAAAAAAAAAAAAAAAAA"] {
            refused(&format!(r#"{{{{ sprig_decryptAES "p" "{bad}" }}}}"#));
        }
    }

    #[test]
    fn j4_keys_are_read_as_they_are_written() {
        for (kind, label) in [("ecdsa", "EC "), ("ed25519", ""), ("dsa", "DSA "), ("rsa", "RSA ")] {
            let begun = std::time::Instant::now();
            let pem = rendered(&format!(r#"{{{{ sprig_genPrivateKey "{kind}" }}}}"#));
            println!("{kind}: {:?}", begun.elapsed());
            assert!(pem.starts_with(&format!("-----BEGIN {label}PRIVATE KEY-----\n")), "{kind}");
            let key = Key::from_pem(pem.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(key.pem()).unwrap(), pem, "{kind}");
            let made = try_render(&format!("{{{{ sprig_genCAWithKey `x` 1 `{pem}` }}}}"), Limits::default());
            match made {
                Ok(cert) => assert!(cert.ends_with(&format!("{pem}}}")) && kind != "dsa", "{cert}"),
                // No message shows a key.
                Err(error) => assert!(kind == "dsa" && error.contains("DSA") && !error.contains("BEGIN"), "{error}"),
            }
        }
        assert_eq!(rendered(r#"{{ sprig_genPrivateKey "x" }}"#), "Unknown type x");
        let pem = rendered(r#"{{ sprig_genPrivateKey "ecdsa" }}"#);
        let cut = pem.replacen('M', "A", 1);
        for (bad, why) in [
            ("", "no PEM block"),
            (&*pem.replace("EC PRIVATE", "PUBLIC"), "no private key"),
            (&pem.replace("EC ", "X "), "not supported"),
            (&pem.replace("EC ", "RSA "), "cannot be read"),
            (&cut, "cannot be read"),
        ] {
            let error = refused(&format!("{{{{ sprig_genCAWithKey `x` 1 `{bad}` }}}}"));
            assert!(error.contains(why) && !error.contains(&pem[40..80]), "{error}");
        }
    }

    #[test]
    fn j4_certificates_are_values_with_two_fields() {
        let start = r#"{{ $k := sprig_genPrivateKey "ed25519" }}{{ $c := sprig_genCAWithKey "ca" 1 $k }}"#;
        let shown = |rest: &str| rendered(&format!("{start}{rest}"));
        assert_eq!(
            shown(r#"{{ sprig_typeOf $c }} {{ sprig_kindOf $c }} {{ printf "%T" $c }} {{ if $c }}yes{{ end }}"#),
            "sprig.certificate struct sprig.certificate yes"
        );
        assert_eq!(shown("{{ eq $c.Key $k }} {{ eq $c $c }} {{ sprig_deepEqual $c $c }}"), "true true true");
        assert_eq!(shown("{{ eq (print $c) (printf `{%s %s}` $c.Cert $c.Key) }}"), "true");
        let go = shown(r#"{{ printf "%#v" $c }}"#);
        assert!(
            go.starts_with(r#"sprig.certificate{Cert:"-----BEGIN CERT"#) && go.contains(r#"", Key:"-----BEGIN"#),
            "{go}"
        );
        for (bad, why) in [
            ("{{ $c.Other }}", "no field Other"),
            (r#"{{ sprig_genSignedCert "x" nil nil 1 "text" }}"#, "expected sprig.certificate; found string"),
            (r#"{{ sprig_genSignedCert "x" nil nil 1 nil }}"#, "cannot assign nil to sprig.certificate"),
            (r#"{{ sprig_genSelfSignedCertWithKey "x" (sprig_list 1) nil 1 $k }}"#, "are texts"),
            (r#"{{ sprig_genSelfSignedCertWithKey "x" (sprig_list "1.2.3") nil 1 $k }}"#, "not an IP address"),
            (r#"{{ sprig_genSelfSignedCertWithKey "x" nil (sprig_list "ä") 1 $k }}"#, "not ASCII"),
            (r#"{{ sprig_genSelfSignedCertWithKey "\xff" nil nil 1 $k }}"#, "not UTF-8"),
            ("{{ sprig_buildCustomCert (sprig_b64enc $k) (sprig_b64enc $k) }}", "certificate cannot be read"),
            ("{{ sprig_buildCustomCert (sprig_b64enc $c.Cert) (sprig_b64enc $c.Cert) }}", "no private key"),
            (r#"{{ sprig_buildCustomCert "?" (sprig_b64enc $k) }}"#, "not Base64"),
            (
                r#"{{ sprig_genSignedCertWithKey "x" nil nil 1 (sprig_buildCustomCert (sprig_b64enc $c.Cert) (sprig_b64enc (sprig_genPrivateKey "ecdsa"))) $k }}"#,
                "not that of its certificate",
            ),
        ] {
            let error = refused(&format!("{start}{bad}"));
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn j4_what_takes_long_is_counted_before_it_is_done() {
        let fuzzed = Limits { rendered: 1 << 16, made: 1 << 20, steps: 20_000, depth: 200 };
        for text in [
            r#"{{ sprig_genPrivateKey "rsa" }}"#,
            r#"{{ sprig_genPrivateKey "dsa" }}"#,
            r#"{{ sprig_genCA "x" 1 }}"#,
            r#"{{ sprig_bcrypt "x" }}"#,
            r#"{{ sprig_derivePassword 1 "pin" "" "" "" }}"#,
        ] {
            let error = try_render(text, fuzzed).unwrap_err();
            assert!(error.contains("more than 20000 steps") && error.contains("counts as"), "{error}");
        }
        // As does what is read.
        let long = format!("{{{{ sprig_genCAWithKey `x` 1 `{}` }}}}", "x".repeat(6_400));
        assert!(try_render(&long, fuzzed).unwrap_err().contains("a private key counts as 87"), "a key of 8192 bits");
        let mut many = String::new();
        for _ in 0..20 {
            many.push_str(r#"{{ sprig_genPrivateKey "ed25519" }}"#);
        }
        assert!(try_render(&many, fuzzed).is_ok());
        // Some keys for a template, but not a thousand.
        let steps = Limits::default().steps;
        assert!((5..50).contains(&(steps / RSA_4096)) && (50..200).contains(&(steps / RSA_2048)));
    }
}
