//! Hashes of passwords, as htpasswd and crypt(3) write them.

use std::fmt::{self, Display};

use base64::Engine;
use base64::alphabet::BCRYPT;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use sha1::{Digest, Sha1};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use super::crypt64;
use super::md5_crypt::md5_crypt;

/// Caddy's default, the highest of common programs. Takes about a second.
const MOST_BCRYPT_COST: u32 = 14;
/// Of SHA-crypt. Takes about a second.
const MOST_ROUNDS: u32 = 1_000_000;
const DEFAULT_ROUNDS: u32 = sha_crypt::Params::RECOMMENDED_ROUNDS;

/// Why a line lets no one in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnusableHash {
    NoHash,
    /// The user has a line before.
    Repeated,
    Unsupported,
    Damaged,
    TooCostly,
}

impl Display for UnusableHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHash => f.write_str("is not of the form user:hash"),
            Self::Repeated => f.write_str("the user has a line before, which counts"),
            Self::Unsupported => f.write_str("unsupported kind of hash; use bcrypt (htpasswd -B)"),
            Self::Damaged => f.write_str("damaged hash; write it again with htpasswd -B"),
            Self::TooCostly => write!(
                f,
                "hash costs too much time; bcrypt's cost must be at most {MOST_BCRYPT_COST}, and rounds of SHA-crypt \
                 at most {MOST_ROUNDS}"
            ),
        }
    }
}

pub(super) struct Scheme {
    text: Box<str>,
    kind: PasswordScheme,
}

enum PasswordScheme {
    Plain(Box<[u8]>),
    /// The salt follows the password.
    Sha1 {
        hash: [u8; 20],
        salt: Box<[u8]>,
    },
    Bcrypt {
        cost: u32,
        salt: [u8; 16],
        hash: [u8; 23],
    },
    Crypt {
        function: Crypt,
        salt: Box<str>,
        hash: Box<str>,
    },
}

/// Functions with a salt and results as text.
enum Crypt {
    /// `$1$` and Apache's `$apr1$`.
    Md5 {
        magic: &'static str,
    },
    Sha256(sha_crypt::Params),
    Sha512(sha_crypt::Params),
}

impl Scheme {
    /// The kinds that nginx supports, without DES. `{PLAIN}` is one of them: it is for Secrets that a program writes.
    pub fn parse(text: &str) -> Result<Self, UnusableHash> {
        let kind = if let Some(password) = text.strip_prefix("{PLAIN}") {
            PasswordScheme::Plain(password.as_bytes().into())
        } else if let Some(encoded) =
            text.strip_prefix("{SHA}").or_else(|| text.strip_prefix("{SSHA}"))
        {
            parse_sha1(encoded)?
        } else if let Some((id, rest)) =
            text.strip_prefix('$').and_then(|text| text.split_once('$'))
        {
            match id {
                "2a" | "2b" | "2y" => parse_bcrypt(rest)?,
                "1" => parse_crypt(Crypt::Md5 { magic: "$1$" }, rest)?,
                "apr1" => parse_crypt(Crypt::Md5 { magic: "$apr1$" }, rest)?,
                "5" => {
                    let (rounds, rest) = parse_rounds(rest)?;
                    parse_crypt(Crypt::Sha256(rounds), rest)?
                }
                "6" => {
                    let (rounds, rest) = parse_rounds(rest)?;
                    parse_crypt(Crypt::Sha512(rounds), rest)?
                }
                _ => return Err(UnusableHash::Unsupported),
            }
        } else {
            return Err(UnusableHash::Unsupported);
        };
        Ok(Self { text: text.into(), kind })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it takes more than a few microseconds.
    pub(crate) fn is_costly(&self) -> bool {
        matches!(self.kind, PasswordScheme::Bcrypt { .. } | PasswordScheme::Crypt { .. })
    }

    pub fn verify(&self, password: &[u8]) -> bool {
        // crypt(3) would only look at what is before it.
        if password.contains(&0) {
            return false;
        }
        match &self.kind {
            PasswordScheme::Plain(expected) => {
                // Takes the same time for passwords of all lengths.
                Sha256::digest(password).ct_eq(&Sha256::digest(expected)).into()
            }
            PasswordScheme::Sha1 { hash, salt } => {
                let digest: [u8; 20] =
                    Sha1::new().chain_update(password).chain_update(salt).finalize().into();
                digest.ct_eq(hash).into()
            }
            PasswordScheme::Bcrypt { cost, salt, hash } => {
                bcrypt(*cost, *salt, password).ct_eq(hash).into()
            }
            PasswordScheme::Crypt { function, salt, hash } => {
                let digest = match function {
                    Crypt::Md5 { magic } => {
                        crypt64::md5(&md5_crypt(magic, password, salt.as_bytes()))
                    }
                    Crypt::Sha256(rounds) => crypt64::sha256(&sha_crypt::sha256_crypt(
                        password,
                        salt.as_bytes(),
                        *rounds,
                    )),
                    Crypt::Sha512(rounds) => crypt64::sha512(&sha_crypt::sha512_crypt(
                        password,
                        salt.as_bytes(),
                        *rounds,
                    )),
                };
                digest.as_bytes().ct_eq(hash.as_bytes()).into()
            }
        }
    }
}

fn parse_sha1(encoded: &str) -> Result<PasswordScheme, UnusableHash> {
    let octets = STANDARD.decode(encoded).map_err(|_| UnusableHash::Damaged)?;
    let (hash, salt) = octets.split_first_chunk::<20>().ok_or(UnusableHash::Damaged)?;
    Ok(PasswordScheme::Sha1 { hash: *hash, salt: salt.into() })
}

/// `COST$` and 22 characters of salt, then 31 of hash.
fn parse_bcrypt(text: &str) -> Result<PasswordScheme, UnusableHash> {
    // The last character of each has unused bits, which programs set as they like.
    const ENGINE: GeneralPurpose = GeneralPurpose::new(
        &BCRYPT,
        GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::RequireNone)
            .with_decode_allow_trailing_bits(true),
    );
    let (cost, rest) = text.split_once('$').ok_or(UnusableHash::Damaged)?;
    let cost: u32 = cost.parse().map_err(|_| UnusableHash::Damaged)?;
    let (salt, hash) = rest.split_at_checked(22).ok_or(UnusableHash::Damaged)?;
    let decode = |text| ENGINE.decode(text).map_err(|_| UnusableHash::Damaged);
    let salt = decode(salt)?.try_into().map_err(|_| UnusableHash::Damaged)?;
    let hash = decode(hash)?.try_into().map_err(|_| UnusableHash::Damaged)?;
    match cost {
        4..=MOST_BCRYPT_COST => Ok(PasswordScheme::Bcrypt { cost, salt, hash }),
        0..4 => Err(UnusableHash::Damaged),
        _ => Err(UnusableHash::TooCostly),
    }
}

/// The password counts with the NUL at its end, and to the 72nd octet.
fn bcrypt(cost: u32, salt: [u8; 16], password: &[u8]) -> [u8; 23] {
    let mut key = [0; 72];
    let length = password.len().min(72);
    key[..length].copy_from_slice(&password[..length]);
    let output = bcrypt::bcrypt(cost, salt, &key[..(length + 1).min(72)]);
    let mut hash = [0; 23];
    hash.copy_from_slice(&output[..23]);
    hash
}

/// `rounds=N$` may stand before the salt.
fn parse_rounds(text: &str) -> Result<(sha_crypt::Params, &str), UnusableHash> {
    let (rounds, rest) = match text.strip_prefix("rounds=").and_then(|text| text.split_once('$')) {
        Some((rounds, rest)) => (rounds.parse().map_err(|_| UnusableHash::Damaged)?, rest),
        None => (DEFAULT_ROUNDS, text),
    };
    if rounds > MOST_ROUNDS {
        return Err(UnusableHash::TooCostly);
    }
    Ok((sha_crypt::Params::new(rounds).map_err(|_| UnusableHash::Damaged)?, rest))
}

/// `SALT$HASH`.
fn parse_crypt(function: Crypt, text: &str) -> Result<PasswordScheme, UnusableHash> {
    let (most_salt, hash_length) = match function {
        Crypt::Md5 { .. } => (8, 22),
        Crypt::Sha256(_) => (16, 43),
        Crypt::Sha512(_) => (16, 86),
    };
    let (salt, hash) = text.split_once('$').ok_or(UnusableHash::Damaged)?;
    if salt.len() > most_salt || hash.len() != hash_length || !hash.bytes().all(crypt64::is_digit) {
        return Err(UnusableHash::Damaged);
    }
    Ok(PasswordScheme::Crypt { function, salt: salt.into(), hash: hash.into() })
}
