//! Functions of the job file that hash, and those that make UUIDs.

use std::fmt::Write;

use sha1::Digest;

use super::{Outcome, int, text};
use crate::jobspec::value::Value;

/// Greatest cost of `bcrypt`: about a second.
pub(super) const MOST_COST: u32 = 14;

fn hex_digest<D: Digest>(args: &[Value]) -> Outcome {
    let mut hex = String::new();
    for byte in D::digest(text(args, 0)?.as_bytes()) {
        let _ = write!(hex, "{byte:02x}");
    }
    Ok(Value::String(hex))
}

pub(super) fn md5(args: &[Value]) -> Outcome {
    hex_digest::<md5::Md5>(args)
}

pub(super) fn sha1(args: &[Value]) -> Outcome {
    hex_digest::<sha1::Sha1>(args)
}

pub(super) fn sha256(args: &[Value]) -> Outcome {
    hex_digest::<sha2::Sha256>(args)
}

pub(super) fn sha512(args: &[Value]) -> Outcome {
    hex_digest::<sha2::Sha512>(args)
}

pub(super) fn bcrypt(args: &[Value]) -> Outcome {
    let cost = if args.len() > 1 { int(args, 1)? } else { 10 };
    let cost = u32::try_from(cost).ok().filter(|cost| (4..=MOST_COST).contains(cost));
    let cost = cost.ok_or_else(|| format!("the cost must be 4 to {MOST_COST}; each step doubles the time"))?;
    bcrypt::hash_with_salt(text(args, 0)?, cost, crate::sys::random::uuid().into_bytes())
        .map(|parts| Value::String(parts.format_for_version(bcrypt::Version::TwoA)))
        .map_err(|e| e.to_string())
}

/// Left out on purpose: the maintained RSA crates are large and a job file is not a place for a private key.
pub(super) fn rsadecrypt(_: &[Value]) -> Outcome {
    Err("not supported by agentbin run; decrypt the value first and pass it with --var".to_owned())
}

#[expect(clippy::unnecessary_wraps, reason = "a row of the table of functions")]
pub(super) fn uuidv4(_: &[Value]) -> Outcome {
    Ok(Value::String(crate::sys::random::uuid().to_string()))
}

pub(super) fn uuidv5(args: &[Value]) -> Outcome {
    let namespace = match text(args, 0)?.as_str() {
        "dns" => uuid::Uuid::NAMESPACE_DNS,
        "url" => uuid::Uuid::NAMESPACE_URL,
        "oid" => uuid::Uuid::NAMESPACE_OID,
        "x500" => uuid::Uuid::NAMESPACE_X500,
        other => uuid::Uuid::parse_str(other)
            .map_err(|_| format!("the namespace must be dns, url, oid, x500 or a UUID, not \"{other}\""))?,
    };
    Ok(Value::String(uuid::Uuid::new_v5(&namespace, text(args, 1)?.as_bytes()).to_string()))
}
