//! Hashes of passwords, as the Modular Crypt Format and RFC 2307 write them.

use std::fmt::{self, Display};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};
use subtle::ConstantTimeEq;

/// Why a hash can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    NoHash,
    /// The user has a line before.
    Repeated,
    Unsupported,
    Damaged,
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoHash => "is not of the form user:hash",
            Self::Repeated => "repeats a user, whose first line counts",
            Self::Unsupported => {
                "has a kind of hash that is not supported; use htpasswd -B (bcrypt)"
            }
            Self::Damaged => "has a damaged hash; write it with htpasswd -B (bcrypt)",
        })
    }
}

pub(super) struct Scheme {
    text: Box<str>,
    kind: Kind,
}

enum Kind {
    /// `{SHA}` and `{SSHA}`: the salt follows the password.
    Sha1 { hash: [u8; 20], salt: Box<[u8]> },
}

impl Scheme {
    pub fn parse(text: &str) -> Result<Self, Error> {
        let kind = match text.strip_prefix("{SHA}").or_else(|| text.strip_prefix("{SSHA}")) {
            Some(encoded) => parse_sha1(encoded)?,
            None => return Err(Error::Unsupported),
        };
        Ok(Self { text: text.into(), kind })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it takes more than a few microseconds.
    pub fn is_costly(&self) -> bool {
        match self.kind {
            Kind::Sha1 { .. } => false,
        }
    }

    pub fn verify(&self, password: &[u8]) -> bool {
        match &self.kind {
            Kind::Sha1 { hash, salt } => {
                let digest: [u8; 20] =
                    Sha1::new().chain_update(password).chain_update(salt).finalize().into();
                digest.ct_eq(hash).into()
            }
        }
    }
}

fn parse_sha1(encoded: &str) -> Result<Kind, Error> {
    let octets = STANDARD.decode(encoded).map_err(|_| Error::Damaged)?;
    let (hash, salt) = octets.split_first_chunk::<20>().ok_or(Error::Damaged)?;
    Ok(Kind::Sha1 { hash: *hash, salt: salt.into() })
}
