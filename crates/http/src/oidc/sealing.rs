//! Encrypts what browsers keep for the proxy, so that only proxies with the same secret can read it, and nobody else can
//! make it.
//!
//! Invariant: each text has a key of its own, made of 192 random bits. So no number of texts that clients have made is
//! too large, as it would be with random nonces of 96 bits.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;

/// Random octets of each sealed text.
pub const SALT_OCTETS: usize = 24;

/// The keys of an Ingress, and of those that share its sessions.
#[derive(Clone)]
pub struct CookieKeys {
    root: hmac::Key,
    /// Differs for each root, and cannot be made into it.
    fingerprint: [u8; 32],
    /// Part of the names of cookies: a browser may have some of several Ingresses of a host.
    suffix: String,
}

/// What a sealed text is for. It is worth nothing for another purpose.
#[derive(Clone, Copy, Debug)]
pub(super) enum SealedPurpose {
    Login,
    Session,
}

impl fmt::Debug for CookieKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CookieKeys(..)")
    }
}

impl CookieKeys {
    /// `users`: everything that must be equal where a session counts.
    pub fn derive(secret: &[u8], users: &[&str]) -> Self {
        let mut of_users = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
        of_users.update(b"millrace OpenID Connect");
        for user in users {
            // With its length, so that no two lists are written alike.
            of_users.update(&(user.len() as u64).to_be_bytes());
            of_users.update(user.as_bytes());
        }
        let root = hmac::Key::new(hmac::HMAC_SHA256, of_users.sign().as_ref());
        let mut fingerprint = [0; 32];
        // HMAC-SHA256 has as many octets.
        fingerprint.copy_from_slice(hmac::sign(&root, b"name").as_ref());
        let suffix = fingerprint[..4].iter().map(|octet| format!("{octet:02x}")).collect();
        Self { root, fingerprint, suffix }
    }

    /// Whether what the other ones seal opens with these.
    pub(super) fn are_equal_to(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }

    pub(super) fn suffix(&self) -> &str {
        &self.suffix
    }

    /// A text that cannot be computed without the keys, although the value is known.
    pub(super) fn derive_text(&self, purpose: &str, value: &[u8]) -> String {
        let derived = hmac::sign(&self.root, &[purpose.as_bytes(), b"\0", value].concat());
        URL_SAFE_NO_PAD.encode(derived)
    }

    /// `salt`: random, and never used before.
    pub(super) fn seal(
        &self,
        purpose: SealedPurpose,
        host: &str,
        content: Vec<u8>,
        salt: [u8; SALT_OCTETS],
    ) -> String {
        let mut content = content;
        let (key, bound) = (self.message_key(&salt), bind(purpose, host));
        // Only contents of more than 256 GiB cannot be sealed.
        let sealed = key.seal_in_place_append_tag(only_nonce(), Aad::from(bound), &mut content);
        match sealed {
            Ok(()) => URL_SAFE_NO_PAD.encode([&salt[..], &content].concat()),
            Err(_) => String::new(),
        }
    }

    /// `None`: it was not sealed with these keys for this purpose and host.
    pub(super) fn open(&self, purpose: SealedPurpose, host: &str, text: &[u8]) -> Option<Vec<u8>> {
        let mut octets = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (salt, sealed) = octets.split_at_mut_checked(SALT_OCTETS)?;
        let (key, bound) = (self.message_key(salt), bind(purpose, host));
        let content = key.open_in_place(only_nonce(), Aad::from(bound), sealed).ok()?;
        Some(content.to_vec())
    }

    fn message_key(&self, salt: &[u8]) -> LessSafeKey {
        let key = hmac::sign(&self.root, &[b"seal\0", salt].concat());
        let key = UnboundKey::new(&CHACHA20_POLY1305, key.as_ref());
        // HMAC-SHA256 has as many octets as the cipher's key.
        LessSafeKey::new(key.expect("a key of 32 octets"))
    }
}

/// The key has no other message.
fn only_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

fn bind(purpose: SealedPurpose, host: &str) -> Vec<u8> {
    let purpose = match purpose {
        SealedPurpose::Login => &b"login\0"[..],
        SealedPurpose::Session => b"session\0",
    };
    [purpose, host.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    #[test]
    fn a_text_opens_with_the_same_keys_for_the_same_purpose_and_host() {
        let keys = CookieKeys::derive(SECRET, &["shop", "a"]);
        let seal = || keys.seal(SealedPurpose::Session, "a.test", b"content".to_vec(), [7; 24]);
        let sealed = seal();
        let open = |keys: &CookieKeys, purpose, host: &str| {
            keys.open(purpose, host, sealed.as_bytes()).is_some()
        };
        assert!(open(&keys, SealedPurpose::Session, "a.test"));
        assert!(open(
            &CookieKeys::derive(SECRET, &["shop", "a"]),
            SealedPurpose::Session,
            "a.test"
        ));
        assert!(!open(&keys, SealedPurpose::Login, "a.test"));
        assert!(!open(&keys, SealedPurpose::Session, "b.test"));
        for users in [&["shop", "b"][..], &["sho", "pa"], &["shopa"], &["shop", "a", ""]] {
            let others = CookieKeys::derive(SECRET, users);
            assert!(!open(&others, SealedPurpose::Session, "a.test"), "{users:?}");
            assert_ne!(others.suffix(), keys.suffix());
        }
        let other = CookieKeys::derive(b"0123456789abcdef0123456789abcdeF", &["shop", "a"]);
        assert!(!open(&other, SealedPurpose::Session, "a.test"));
    }

    /// Anyone can find secrets whose keys have the same suffix.
    #[test]
    fn keys_with_an_equal_suffix_are_not_equal() {
        let derive = |user| CookieKeys::derive(SECRET, &[user]);
        let keys = derive("a");
        assert!(keys.are_equal_to(&derive("a")));
        let other = CookieKeys { suffix: keys.suffix.clone(), ..derive("b") };
        assert!(!keys.are_equal_to(&other));
    }

    #[test]
    fn every_changed_octet_and_every_other_length_is_refused() {
        let keys = CookieKeys::derive(SECRET, &[]);
        let sealed = keys.seal(SealedPurpose::Session, "a.test", b"content".to_vec(), [7; 24]);
        let open = |text: &[u8]| keys.open(SealedPurpose::Session, "a.test", text);
        assert_eq!(open(sealed.as_bytes()).as_deref(), Some(&b"content"[..]));
        for index in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[index] = if changed[index] == b'A' { b'B' } else { b'A' };
            assert_eq!(open(&changed), None, "{index}");
            assert_eq!(open(&sealed.as_bytes()[..index]), None, "{index}");
        }
        assert_eq!(open(format!("{sealed}A").as_bytes()), None);
        assert_eq!(open(b"\xff\xfe"), None);
        let other = keys.seal(SealedPurpose::Session, "a.test", b"content".to_vec(), [8; 24]);
        assert_ne!(sealed, other);
    }

    #[test]
    fn keys_are_in_no_output() {
        assert_eq!(format!("{:?}", CookieKeys::derive(SECRET, &[])), "CookieKeys(..)");
    }
}
