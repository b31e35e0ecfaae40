//! Functions of the AWS-LC library that `aws-lc-rs` does not offer.

use std::ptr::{self, NonNull};

/// What makes keys of one kind.
struct Maker(NonNull<aws_lc_sys::EVP_PKEY_CTX>);

impl Drop for Maker {
    fn drop(&mut self) {
        // SAFETY: only this value has it, and it is dropped once.
        unsafe { aws_lc_sys::EVP_PKEY_CTX_free(self.0.as_ptr()) }
    }
}

/// A key, or the parameters of one.
struct Key(NonNull<aws_lc_sys::EVP_PKEY>);

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: only this value has it, and it is dropped once.
        unsafe { aws_lc_sys::EVP_PKEY_free(self.0.as_ptr()) }
    }
}

/// Fills `key` with what scrypt (RFC 7914) makes of a password, with the parameters N, r and p. `false` if there is not enough
/// memory, or too much would be needed.
#[must_use]
pub fn scrypt(password: &[u8], salt: &[u8], (n, r, p): (u64, u64, u64), most_memory: usize, key: &mut [u8]) -> bool {
    let (password, password_len) = (password.as_ptr().cast(), password.len());
    let (salt, salt_len) = (salt.as_ptr(), salt.len());
    let (key, key_len) = (key.as_mut_ptr(), key.len());
    // SAFETY: each pointer comes with the length of its slice, `key` is written to and borrowed mutably, and the call keeps none.
    let done = unsafe {
        aws_lc_sys::EVP_PBE_scrypt(password, password_len, salt, salt_len, n, r, p, most_memory, key, key_len)
    };
    done == 1
}

/// A new DSA key with new parameters, a prime of 2048 bits and a group of 256: the DER of version, p, q, g, public and private key.
#[must_use]
pub fn new_dsa_key() -> Option<Vec<u8>> {
    // SAFETY: the engine may be null (openssl/evp.h), and the kind is one that the library has.
    let maker = unsafe { aws_lc_sys::EVP_PKEY_CTX_new_id(aws_lc_sys::EVP_PKEY_DSA, ptr::null_mut()) };
    let maker = Maker(NonNull::new(maker)?);
    let at = maker.0.as_ptr();
    // SAFETY: `maker` lives.
    let begun = unsafe { aws_lc_sys::EVP_PKEY_paramgen_init(at) };
    // SAFETY: `maker` lives, is of the kind DSA, and makes parameters, or the call fails.
    let sized = unsafe { aws_lc_sys::EVP_PKEY_CTX_set_dsa_paramgen_bits(at, 2048) };
    // SAFETY: the same.
    let grouped = unsafe { aws_lc_sys::EVP_PKEY_CTX_set_dsa_paramgen_q_bits(at, 256) };
    let mut parameters = ptr::null_mut();
    // SAFETY: `maker` lives; a null pointer is filled in with what belongs to the caller then.
    let made = unsafe { aws_lc_sys::EVP_PKEY_paramgen(at, &raw mut parameters) };
    let parameters = Key(NonNull::new(parameters)?);
    if [begun, sized, grouped, made] != [1; 4] {
        return None;
    }
    // SAFETY: `parameters` lives; the maker counts itself among its users.
    let maker = unsafe { aws_lc_sys::EVP_PKEY_CTX_new(parameters.0.as_ptr(), ptr::null_mut()) };
    let maker = Maker(NonNull::new(maker)?);
    // SAFETY: `maker` lives.
    let begun = unsafe { aws_lc_sys::EVP_PKEY_keygen_init(maker.0.as_ptr()) };
    let mut key = ptr::null_mut();
    // SAFETY: `maker` lives; a null pointer is filled in with what belongs to the caller then.
    let made = unsafe { aws_lc_sys::EVP_PKEY_keygen(maker.0.as_ptr(), &raw mut key) };
    let key = Key(NonNull::new(key)?);
    if [begun, made] != [1; 2] {
        return None;
    }
    // SAFETY: `key` lives; without a place for them nothing is written, and the number of bytes is returned.
    let length = unsafe { aws_lc_sys::i2d_PrivateKey(key.0.as_ptr(), ptr::null_mut()) };
    let mut der = vec![0; usize::try_from(length).ok()?];
    let mut end = der.as_mut_ptr();
    // SAFETY: `der` has room for as many bytes as the call before said, and the key is unchanged.
    let written = unsafe { aws_lc_sys::i2d_PrivateKey(key.0.as_ptr(), &raw mut end) };
    (written == length).then_some(der)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrypt_is_that_of_rfc_7914() {
        let mut key = [0; 64];
        assert!(scrypt(b"", b"", (16, 1, 1), 1 << 20, &mut key));
        assert_eq!(key[..8], [0x77, 0xd6, 0x57, 0x62, 0x38, 0x65, 0x7b, 0x20]);
        assert!(scrypt(b"password", b"NaCl", (1024, 8, 16), 2 << 20, &mut key));
        assert_eq!(key[..8], [0xfd, 0xba, 0xbe, 0x1c, 0x9d, 0x34, 0x72, 0x00]);
        assert!(!scrypt(b"password", b"NaCl", (1024, 8, 16), 1 << 20, &mut key), "more memory than is allowed");
        assert!(!scrypt(b"password", b"NaCl", (1023, 8, 16), 2 << 20, &mut key), "no power of two");
    }
}
