//! Secrets of which the keys of session tickets and affinity cookies are made. Proxies with the same ones, at the same
//! time or one after the other, resume each other's TLS sessions and know each other's cookies.

use std::fmt::{self, Display};
use std::sync::Arc;

use arc_swap::ArcSwap;
use lb_http::affinity::{AffinityTokenKey, Keys};
use ring::digest::{SHA256, digest};
use ring::hmac;

/// More than the key length of all that is made of it, in base64: `openssl rand -base64 32` prints 44.
const LEAST_LENGTH: usize = 32;
/// A new key, the one before, and some time to remove it.
const MOST: usize = 8;

/// The current secrets of a proxy. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct SessionKeys {
    secrets: Arc<ArcSwap<Vec<Secret>>>,
    affinity: Keys,
}

/// Secrets that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secrets(Vec<Secret>);

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret([u8; 32]);

/// Why a text has no secrets. It does not contain any of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidSecrets {
    None,
    /// The number of the line, from 1.
    TooShort(usize),
    TooMany,
}

impl Display for InvalidSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("there is no key: write one with openssl rand -base64 32"),
            Self::TooShort(line) => write!(
                f,
                "line {line}: a key has at least {LEAST_LENGTH} characters, as openssl rand -base64 32 prints them"
            ),
            Self::TooMany => {
                write!(f, "there are more than {MOST} keys: remove the oldest, at the end")
            }
        }
    }
}

impl std::error::Error for InvalidSecrets {}

impl Secrets {
    /// One secret in each line. The first one is used; what was made with the others is accepted.
    pub fn parse(text: &str) -> Result<Self, InvalidSecrets> {
        let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
        let secrets = lines.map(|(number, line)| match line.len() {
            LEAST_LENGTH.. => Ok(Secret::of(line.as_bytes())),
            _ => Err(InvalidSecrets::TooShort(number + 1)),
        });
        let secrets = secrets.collect::<Result<Vec<_>, _>>()?;
        match secrets.len() {
            0 => Err(InvalidSecrets::None),
            1..=MOST => Ok(Self(secrets)),
            _ => Err(InvalidSecrets::TooMany),
        }
    }
}

impl SessionKeys {
    /// Without secrets, tickets are this process's own, and the key of cookies is public.
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces the secrets, at once in all connections.
    pub fn set(&self, secrets: Secrets) {
        let keys = secrets.0.iter().map(|secret| {
            AffinityTokenKey::from_secret(&secret.derive_key(b"millrace affinity cookies"))
        });
        self.affinity.set(keys.collect());
        self.secrets.store(Arc::new(secrets.0));
    }

    /// Number of secrets.
    pub fn count(&self) -> usize {
        self.secrets.load().len()
    }

    pub(crate) fn affinity(&self) -> Keys {
        self.affinity.clone()
    }

    pub(crate) fn secrets(&self) -> Arc<Vec<Secret>> {
        self.secrets.load_full()
    }
}

impl Secret {
    fn of(text: &[u8]) -> Self {
        let mut secret = [0; 32];
        secret.copy_from_slice(digest(&SHA256, text).as_ref());
        Self(secret)
    }

    pub fn random() -> Result<Self, getrandom::Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)?;
        Ok(Self(secret))
    }

    /// A key for a purpose that is no other's.
    pub(crate) fn derive_key(&self, purpose: &[u8]) -> [u8; 32] {
        derive_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.0), purpose)
    }
}

/// 32 octets that cannot be computed without the key.
pub(crate) fn derive_key(key: &hmac::Key, purpose: &[u8]) -> [u8; 32] {
    let mut derived = [0; 32];
    derived.copy_from_slice(hmac::sign(key, purpose).as_ref());
    derived
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_key_and_mistakes_are_named_without_the_keys() {
        let key = |letter: char| String::from(letter).repeat(44);
        let secrets = |text: &str| Secrets::parse(text);
        assert_eq!(secrets(&format!("\n{}\n\n {}\n", key('a'), key('b'))).unwrap().0.len(), 2);
        assert_eq!(secrets(&key('a')), secrets(&format!(" {}\r\n", key('a'))));
        assert_ne!(secrets(&key('a')), secrets(&key('b')));
        assert_eq!(secrets("\n \n"), Err(InvalidSecrets::None));
        assert_eq!(secrets(&format!("{}\nhunter2", key('a'))), Err(InvalidSecrets::TooShort(2)));
        let many: String = ('a'..='i').map(|letter| key(letter) + "\n").collect();
        assert_eq!(secrets(&many), Err(InvalidSecrets::TooMany));
        assert!(!format!("{:?}", secrets(&key('q'))).contains('q'));
    }
}
