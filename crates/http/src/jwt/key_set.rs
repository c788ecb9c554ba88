//! Key sets (JWKS, RFC 7517).

use std::fmt::{self, Display};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use super::algorithm::{Algorithm, PublicKey};
use crate::published::IssuerDocument;
use crate::unique_object::UniqueObject;

/// Keys of a set. Issuers publish few: the current one, the next one, and earlier ones.
const MOST_KEYS: usize = 64;
/// Keys that are tried for one token: several, if they or the token have no names.
pub(super) const MOST_CANDIDATES: usize = 4;
/// Of an RSA key, in octets. Larger ones cost each request more.
const MODULUS_OCTETS: std::ops::RangeInclusive<usize> = 256..=512;
/// Of an RSA key. All use 65537, and larger ones cost each request more.
const MOST_EXPONENT: u32 = 65537;
/// Of a key's name, in octets: with the number of keys, it bounds what a set takes to 50 KiB.
pub(super) const MOST_ID_OCTETS: usize = 256;

/// The keys with which an issuer signs.
#[derive(Default, PartialEq, Eq)]
pub struct KeySet(pub(super) Vec<NamedKey>);

#[derive(PartialEq, Eq)]
pub(super) struct NamedKey {
    id: Option<String>,
    /// The only one that the key is for.
    algorithm: Option<Algorithm>,
    key: PublicKey,
}

/// A key that may have signed a token.
pub(super) struct Candidate<'k> {
    pub key: &'k PublicKey,
    /// The token names this key.
    pub is_named: bool,
}

/// Why a document is no key set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidKeySet(String);

impl Display for InvalidKeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidKeySet {}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeySet({})", self.0.len())
    }
}

impl KeySet {
    /// The keys that can verify tokens, and why others can't: those are left out, as RFC 7517 (5) demands. There may be no
    /// key: an issuer withdraws all of them so.
    pub fn parse(document: &[u8]) -> Result<(Self, Vec<String>), InvalidKeySet> {
        let invalid = |why: &dyn Display| InvalidKeySet(format!("is no JSON Web Key Set: {why}"));
        let document = UniqueObject::parse(document).map_err(|error| invalid(&error))?;
        let keys = document.get("keys").and_then(Value::as_array);
        let keys = keys.ok_or_else(|| invalid(&"it has no array \"keys\""))?;
        if keys.len() > MOST_KEYS {
            return Err(InvalidKeySet(format!("has more than {MOST_KEYS} keys")));
        }
        let mut usable = Vec::new();
        let mut left_out = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            match NamedKey::parse(key) {
                Ok(key) => usable.push(key),
                Err(why) => left_out.push(format!("keys[{index}] {why}")),
            }
        }
        Ok((Self(usable), left_out))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys that may have signed a token, and those first that it names: the caller tries few. A key that has no name
    /// may have signed any.
    pub(super) fn candidates<'k>(
        &'k self,
        algorithm: Algorithm,
        id: Option<&'k str>,
    ) -> impl Iterator<Item = Candidate<'k>> {
        let fits = move |key: &&NamedKey| {
            algorithm.fits(&key.key) && key.algorithm.is_none_or(|only| only == algorithm)
        };
        let is_named = move |key: &NamedKey| id.is_some() && key.id.as_deref() == id;
        let fitting = || self.0.iter().filter(fits);
        let named = fitting().filter(move |key| is_named(key));
        let others = fitting().filter(move |key| id.is_none() || key.id.is_none());
        named.chain(others).map(move |key| Candidate { key: &key.key, is_named: is_named(key) })
    }
}

/// A set without keys withdraws all that the issuer has published before.
impl IssuerDocument for KeySet {
    fn is_withdrawal(&self) -> bool {
        self.is_empty()
    }
}

impl NamedKey {
    fn parse(key: &Value) -> Result<Self, String> {
        let text = |name: &str| match key.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(_) => Err(format!("has a {name} that is no text")),
        };
        if text("use")?.is_some_and(|purpose| purpose != "sig") {
            return Err("is not for signatures".to_owned());
        }
        if let Some(operations) = key.get("key_ops")
            && !operations.as_array().is_some_and(|all| all.iter().any(|one| one == "verify"))
        {
            return Err("is not to verify with".to_owned());
        }
        let octets = |name: &str| {
            let encoded = text(name)?.ok_or_else(|| format!("has no {name}"))?;
            let decoded = URL_SAFE_NO_PAD.decode(encoded);
            decoded.map_err(|_| format!("has a {name} that is not in base64url"))
        };
        let point = |length: usize| {
            let (x, y) = (octets("x")?, octets("y")?);
            if x.len() != length || y.len() != length {
                return Err("has a point of another length".to_owned());
            }
            Ok([&[4], &*x, &*y].concat())
        };
        let kind = text("kty")?.unwrap_or_default();
        let key = match (kind, text("crv")?) {
            ("RSA", _) => {
                let key = PublicKey::Rsa {
                    modulus: without_leading_zeros(octets("n")?),
                    exponent: without_leading_zeros(octets("e")?),
                };
                check_rsa(&key)?;
                key
            }
            ("EC", Some("P-256")) => PublicKey::P256(point(32)?),
            ("EC", Some("P-384")) => PublicKey::P384(point(48)?),
            ("OKP", Some("Ed25519")) => {
                let point = octets("x")?;
                if point.len() != 32 {
                    return Err("has a point of another length".to_owned());
                }
                PublicKey::Ed25519(point)
            }
            ("oct", _) => return Err("is symmetric: who can verify with it can sign".to_owned()),
            (_, curve) => {
                return Err(format!(
                    "is of the unknown kind {kind:.20} {:.20}",
                    curve.unwrap_or("")
                ));
            }
        };
        let algorithm = match text("alg")? {
            None => None,
            Some(name) => {
                let algorithm = Algorithm::parse(name).filter(|algorithm| algorithm.fits(&key));
                Some(algorithm.ok_or_else(|| format!("is for {name:.20}, which it does not fit"))?)
            }
        };
        let id = text("kid")?;
        if id.is_some_and(|id| id.len() > MOST_ID_OCTETS) {
            return Err(format!("has a kid of more than {MOST_ID_OCTETS} octets"));
        }
        Ok(Self { id: id.map(str::to_owned), algorithm, key })
    }
}

fn check_rsa(key: &PublicKey) -> Result<(), String> {
    let PublicKey::Rsa { modulus, exponent } = key else { return Ok(()) };
    if !MODULUS_OCTETS.contains(&modulus.len()) {
        return Err(format!("has {} bits; 2048 to 4096 are possible", 8 * modulus.len()));
    }
    let number = exponent.iter().try_fold(0_u32, |number, octet| {
        number.checked_mul(256).map(|number| number + u32::from(*octet))
    });
    match number {
        Some(3..=MOST_EXPONENT) if exponent.last().is_some_and(|octet| octet % 2 == 1) => Ok(()),
        _ => Err(format!("has no odd exponent from 3 to {MOST_EXPONENT}")),
    }
}

/// Some issuers write them.
fn without_leading_zeros(octets: Vec<u8>) -> Vec<u8> {
    octets.into_iter().skip_while(|octet| *octet == 0).collect()
}
