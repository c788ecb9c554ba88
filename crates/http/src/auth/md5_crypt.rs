//! Poul-Henning Kamp's hash of passwords from FreeBSD, which Apache took over with another magic.

use md5::{Digest, Md5};

/// The salt has at most eight octets.
pub(super) fn md5_crypt(magic: &str, password: &[u8], salt: &[u8]) -> [u8; 16] {
    let inner: [u8; 16] = Md5::new()
        .chain_update(password)
        .chain_update(salt)
        .chain_update(password)
        .finalize()
        .into();

    let mut hash = Md5::new();
    hash.update(password);
    hash.update(magic);
    hash.update(salt);
    let mut left = password.len();
    while left > 0 {
        hash.update(&inner[..left.min(16)]);
        left = left.saturating_sub(16);
    }
    // For each bit of the length, from the lowest: NUL, or the first octet.
    let mut bits = password.len();
    while bits > 0 {
        hash.update(if bits & 1 == 1 { &[0][..] } else { &password[..1] });
        bits >>= 1;
    }
    let mut digest: [u8; 16] = hash.finalize().into();

    for round in 0..1_000 {
        let is_odd = round % 2 == 1;
        let mut hash = Md5::new();
        hash.update(if is_odd { password } else { &digest });
        if round % 3 != 0 {
            hash.update(salt);
        }
        if round % 7 != 0 {
            hash.update(password);
        }
        hash.update(if is_odd { &digest } else { password });
        digest = hash.finalize().into();
    }
    digest
}
