//! Documents with keys: they come from the network.

use serde_json::Value;

use super::signer::{RSA_MODULUS, encode};
use super::*;

fn parse(keys: &Value) -> Result<(usize, Vec<String>), String> {
    let document = json!({"keys": keys}).to_string();
    let parsed = KeySet::parse(document.as_bytes()).map_err(|why| why.to_string())?;
    Ok((parsed.0.0.len(), parsed.1))
}

#[test]
fn keys_that_cannot_verify_are_left_out() {
    let good = Signer::p256().key("a");
    let changed = |name: &str, value: Value| {
        let mut key = good.clone();
        key[name] = value;
        key
    };
    let rsa = |modulus: &str, exponent: &str| json!({"kty": "RSA", "n": modulus, "e": exponent});
    let point = encode([1; 31]);
    for (key, why) in [
        (json!({"kty": "oct", "k": "AAAA"}), "symmetric"),
        (json!({"kty": "oct", "k": "AAAA", "alg": "RS256"}), "symmetric"),
        (changed("use", json!("enc")), "not for signatures"),
        (changed("use", json!(["sig"])), "no text"),
        (changed("key_ops", json!(["sign"])), "not to verify"),
        (changed("key_ops", json!("verify")), "not to verify"),
        (changed("alg", json!("ES384")), "does not fit"),
        (changed("alg", json!("HS256")), "does not fit"),
        (changed("alg", json!("none")), "does not fit"),
        (changed("crv", json!("P-521")), "unknown kind"),
        (changed("x", json!(point)), "another length"),
        (changed("x", json!("!")), "base64url"),
        (changed("kid", json!(1)), "no text"),
        (changed("kty", json!("RSA")), "has no n"),
        (json!({"kty": "OKP", "crv": "X25519", "x": "AAAA"}), "unknown kind"),
        (json!({"kty": "OKP", "crv": "Ed25519", "x": "AAAA"}), "another length"),
        (rsa(&encode([255; 128]), "AQAB"), "1024 bits"),
        (rsa(&encode([255; 513]), "AQAB"), "bits"),
        (rsa(RSA_MODULUS, "AQ"), "exponent"),
        (rsa(RSA_MODULUS, "Ag"), "exponent"),
        (rsa(RSA_MODULUS, "AQAAAAAB"), "exponent"),
        (rsa(RSA_MODULUS, "AQAD"), "exponent"),
        (rsa(RSA_MODULUS, "AgAB"), "exponent"),
        (changed("kid", json!("a".repeat(257))), "more than 256 octets"),
        (rsa(RSA_MODULUS, ""), "exponent"),
        (json!({}), "unknown kind"),
        (json!("key"), "unknown kind"),
        (json!(null), "unknown kind"),
    ] {
        let (count, left_out) = parse(&json!([key, good])).unwrap();
        assert_eq!((count, left_out.len()), (1, 1), "{key}");
        assert!(left_out[0].contains(why), "{key}: {left_out:?}");
        assert_eq!(parse(&json!([key])).unwrap().0, 0, "{key}");
    }
}

#[test]
fn documents_that_are_no_key_sets_are_refused() {
    let many: Vec<Value> = (0..65).map(|_| Signer::ed25519().key("a")).collect();
    assert!(parse(&json!(many[..64])).is_ok());
    assert!(parse(&json!(many)).is_err());
    for document in ["", "[]", "{}", "null", r#"{"keys": {}}"#, r#"{"keys": null}"#, "<html>"] {
        assert!(KeySet::parse(document.as_bytes()).is_err(), "{document}");
    }
    let twice = format!(r#"{{"keys": [], "keys": [{}]}}"#, many[0]);
    assert!(KeySet::parse(twice.as_bytes()).is_err());
}

/// RFC 7517 allows it for keys of different kinds.
#[test]
fn keys_of_one_name_are_all_tried() {
    let (one, two, other) = (Signer::p256(), Signer::p256(), Signer::ed25519());
    let keys = key_set(&json!([other.key("a"), one.key("a"), two.key("a")]));
    for (signer, algorithm) in [(&one, "ES256"), (&two, "ES256"), (&other, "EdDSA")] {
        let token = signer.token(&json!({"alg": algorithm, "kid": "a"}), &valid_claims());
        assert_eq!(verify(&token, &keys), Ok(()));
    }
    let token = Signer::p256().token(&json!({"alg": "ES256", "kid": "a"}), &valid_claims());
    assert_eq!(verify(&token, &keys), Err(TokenError::Signature));
}

#[test]
fn names_of_keys_are_optional() {
    let (one, two) = (Signer::p256(), Signer::p256());
    let mut nameless = two.key("");
    nameless.as_object_mut().unwrap().remove("kid");
    let keys = key_set(&json!([one.key("a"), nameless]));
    let cases = [
        (&one, json!({"alg": "ES256"}), Ok(())),
        (&one, json!({"alg": "ES256", "kid": "b"}), Err(TokenError::UnknownKey)),
        (&two, json!({"alg": "ES256"}), Ok(())),
        (&two, json!({"alg": "ES256", "kid": "b"}), Ok(())),
    ];
    for (signer, header, expected) in cases {
        assert_eq!(verify(&signer.token(&header, &valid_claims()), &keys), expected, "{header}");
    }
}

/// Each costs a tenth of a millisecond, and clients need no valid token for that.
#[test]
fn few_keys_are_tried_for_a_token() {
    let signers: Vec<Signer> = (0..5).map(|_| Signer::ed25519()).collect();
    let keys: Vec<Value> = signers.iter().map(|signer| signer.key("a")).collect();
    let keys = key_set(&keys.into());
    let results: Vec<bool> = signers
        .iter()
        .map(|signer| {
            verify(&signer.token(&json!({"alg": "EdDSA"}), &valid_claims()), &keys).is_ok()
        })
        .collect();
    assert_eq!(results, [true, true, true, true, false]);
}

/// So that an issuer with many keys can have each of its tokens verified.
#[test]
fn the_key_that_a_token_names_is_tried_before_nameless_ones() {
    let named = Signer::ed25519();
    let mut keys: Vec<Value> = (0..5).map(|_| Signer::ed25519().key("")).collect();
    for nameless in &mut keys {
        nameless.as_object_mut().unwrap().remove("kid");
    }
    keys.push(named.key("a"));
    let keys = key_set(&keys.into());
    let token = |header| named.token(&header, &valid_claims());
    assert_eq!(verify(&token(json!({"alg": "EdDSA", "kid": "a"})), &keys), Ok(()));
    assert_eq!(verify(&token(json!({"alg": "EdDSA"})), &keys), Err(TokenError::UnknownKey));
}

#[test]
fn names_of_keys_have_a_limited_length() {
    let signer = Signer::ed25519();
    let token = |id: &str| signer.token(&json!({"alg": "EdDSA", "kid": id}), &valid_claims());
    let longest = "a".repeat(256);
    let keys = key_set(&json!([signer.key(&longest)]));
    assert_eq!(verify(&token(&longest), &keys), Ok(()));
    assert_eq!(verify(&token(&"a".repeat(257)), &keys), Err(TokenError::Malformed));
}

#[test]
fn a_key_for_one_algorithm_verifies_no_other() {
    let signer = Signer::rsa();
    let mut key = signer.key("a");
    key["alg"] = json!("PS256");
    let keys = key_set(&json!([key]));
    let token = |algorithm| signer.token(&json!({"alg": algorithm, "kid": "a"}), &valid_claims());
    assert_eq!(verify(&token("PS256"), &keys), Ok(()));
    assert_eq!(verify(&token("RS256"), &keys), Err(TokenError::UnknownKey));
}

/// As some issuers write them.
#[test]
fn a_modulus_may_begin_with_zeros() {
    let signer = Signer::rsa();
    let mut key = signer.key("a");
    key["n"] = json!(encode([&[0], &*super::signer::decode(RSA_MODULUS)].concat()));
    key["e"] = json!("AAEAAQ");
    let token = signer.token(&json!({"alg": "RS256", "kid": "a"}), &valid_claims());
    assert_eq!(verify(&token, &key_set(&json!([key]))), Ok(()));
}
