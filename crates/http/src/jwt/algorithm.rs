//! Signature algorithms (RFC 7518, RFC 8037, RFC 9864) and the keys that fit them.

use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};

/// Only algorithms with a public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rsa(RsaScheme),
    P256,
    P384,
    Ed25519,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RsaScheme {
    Pkcs1Sha256,
    Pkcs1Sha384,
    Pkcs1Sha512,
    PssSha256,
    PssSha384,
    PssSha512,
}

/// A key without its name.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum PublicKey {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// An uncompressed point.
    P256(Vec<u8>),
    /// An uncompressed point.
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl Algorithm {
    /// `None`: unknown, or without a public key.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rsa(RsaScheme::Pkcs1Sha256),
            "RS384" => Self::Rsa(RsaScheme::Pkcs1Sha384),
            "RS512" => Self::Rsa(RsaScheme::Pkcs1Sha512),
            "PS256" => Self::Rsa(RsaScheme::PssSha256),
            "PS384" => Self::Rsa(RsaScheme::PssSha384),
            "PS512" => Self::Rsa(RsaScheme::PssSha512),
            "ES256" => Self::P256,
            "ES384" => Self::P384,
            "EdDSA" | "Ed25519" => Self::Ed25519,
            _ => return None,
        })
    }

    pub fn fits(self, key: &PublicKey) -> bool {
        matches!(
            (self, key),
            (Self::Rsa(_), PublicKey::Rsa { .. })
                | (Self::P256, PublicKey::P256(_))
                | (Self::P384, PublicKey::P384(_))
                | (Self::Ed25519, PublicKey::Ed25519(_))
        )
    }

    /// Whether it is the signature of the message by the key. A key of another kind has signed nothing.
    pub fn verify(self, key: &PublicKey, message: &[u8], signature: &[u8]) -> bool {
        let by_point = |algorithm: &'static dyn VerificationAlgorithm, point: &[u8]| {
            UnparsedPublicKey::new(algorithm, point).verify(message, signature).is_ok()
        };
        match (self, key) {
            (Self::Rsa(scheme), PublicKey::Rsa { modulus, exponent }) => {
                RsaPublicKeyComponents { n: modulus, e: exponent }
                    .verify(scheme.parameters(), message, signature)
                    .is_ok()
            }
            (Self::P256, PublicKey::P256(point)) => by_point(&ECDSA_P256_SHA256_FIXED, point),
            (Self::P384, PublicKey::P384(point)) => by_point(&ECDSA_P384_SHA384_FIXED, point),
            (Self::Ed25519, PublicKey::Ed25519(point)) => by_point(&ED25519, point),
            _ => false,
        }
    }
}

impl RsaScheme {
    fn parameters(self) -> &'static RsaParameters {
        match self {
            Self::Pkcs1Sha256 => &RSA_PKCS1_2048_8192_SHA256,
            Self::Pkcs1Sha384 => &RSA_PKCS1_2048_8192_SHA384,
            Self::Pkcs1Sha512 => &RSA_PKCS1_2048_8192_SHA512,
            Self::PssSha256 => &RSA_PSS_2048_8192_SHA256,
            Self::PssSha384 => &RSA_PSS_2048_8192_SHA384,
            Self::PssSha512 => &RSA_PSS_2048_8192_SHA512,
        }
    }
}
