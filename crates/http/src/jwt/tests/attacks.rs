//! Tokens that a client makes up.

use proptest::prelude::*;
use ring::hmac;

use super::signer::{RSA_MODULUS, decode, encode};
use super::*;

/// Each, with what signs it.
fn all_algorithms() -> Vec<(&'static str, Signer)> {
    let mut all = vec![
        ("ES256", Signer::p256()),
        ("ES384", Signer::p384()),
        ("EdDSA", Signer::ed25519()),
        ("Ed25519", Signer::ed25519()),
    ];
    for name in ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"] {
        all.push((name, Signer::rsa()));
    }
    all
}

#[test]
fn each_algorithm_verifies_its_own_signatures_and_no_others() {
    let all = all_algorithms();
    let ids: Vec<String> = all.iter().map(|(name, _)| format!("key of {name}")).collect();
    let keys: Vec<_> = all.iter().zip(&ids).map(|((_, signer), id)| signer.key(id)).collect();
    let keys = key_set(&keys.into());
    for ((name, signer), id) in all.iter().zip(&ids) {
        let claims = valid_claims().to_string();
        let token = signer.token(&json!({"alg": name, "kid": id}), &valid_claims());
        assert_eq!(verify(&token, &keys), Ok(()), "{name}");
        let (_, signature) = token.rsplit_once('.').unwrap();
        for (other, _) in all.iter().filter(|(other, _)| other != name) {
            // Its own signature under another name, and one that was made for another name.
            let header = json!({"alg": other, "kid": id}).to_string();
            let renamed = format!("{}.{}.{signature}", encode(&header), encode(&claims));
            assert!(verify(&renamed, &keys).is_err(), "{name} as {other}");
            let message = format!("{}.{}", encode(&header), encode(&claims));
            let resigned = format!("{message}.{}", encode(signer.sign(name, message.as_bytes())));
            let is_same_algorithm = name.starts_with("Ed") && other.starts_with("Ed");
            assert_eq!(verify(&resigned, &keys).is_ok(), is_same_algorithm, "{name} as {other}");
        }
        // By another key of the same kind.
        if !name.starts_with(['R', 'P']) {
            let other = match *name {
                "ES256" => Signer::p256(),
                "ES384" => Signer::p384(),
                _ => Signer::ed25519(),
            };
            let token = other.token(&json!({"alg": name, "kid": id}), &valid_claims());
            assert_eq!(verify(&token, &keys), Err(TokenError::Signature), "{name}");
        }
    }
}

#[test]
fn a_changed_token_is_refused_whichever_octet_is_changed() {
    let signer = Signer::ed25519();
    let keys = key_set(&json!([signer.key("a")]));
    let token = signer.token(&json!({"alg": "EdDSA", "kid": "a"}), &valid_claims());
    assert_eq!(verify(&token, &keys), Ok(()));
    for position in 0..token.len() {
        for other in ["A", "B", "-", ".", "=", ""] {
            let changed = [&token[..position], other, &token[position + 1..]].concat();
            assert!(changed == token || verify(&changed, &keys).is_err(), "{position} {other}");
        }
    }
}

#[test]
fn tokens_without_signature_are_refused() {
    let keys = key_set(&json!([Signer::rsa().key("a")]));
    let claims = encode(valid_claims().to_string());
    for name in ["none", "None", "NONE", "nOnE", "", "null"] {
        for signature in ["", "AA", &"A".repeat(342)] {
            let header = encode(json!({"alg": name, "kid": "a"}).to_string());
            let token = format!("{header}.{claims}.{signature}");
            assert_eq!(verify(&token, &keys), Err(TokenError::Algorithm), "{name}");
        }
    }
    for algorithm in [json!(null), json!(["RS256"]), json!(0)] {
        let header = encode(json!({"alg": algorithm, "kid": "a"}).to_string());
        assert_eq!(verify(&format!("{header}.{claims}."), &keys), Err(TokenError::Algorithm));
    }
    let header = encode(json!({"alg": "RS256", "kid": "a"}).to_string());
    assert_eq!(verify(&format!("{header}.{claims}."), &keys), Err(TokenError::Signature));
}

/// What the issuer publishes is no secret that a client could sign with.
#[test]
fn public_keys_are_no_secrets_of_hmac() {
    let signer = Signer::rsa();
    let key = signer.key("a");
    let keys = key_set(&json!([key]));
    let secrets = [
        decode(RSA_MODULUS),
        RSA_MODULUS.as_bytes().to_vec(),
        key.to_string().into_bytes(),
        json!({"keys": [key]}).to_string().into_bytes(),
        Vec::new(),
    ];
    let algorithms =
        [("HS256", hmac::HMAC_SHA256), ("HS384", hmac::HMAC_SHA384), ("HS512", hmac::HMAC_SHA512)];
    for (name, algorithm) in algorithms {
        for secret in &secrets {
            let header = json!({"alg": name, "kid": "a"}).to_string();
            let message = format!("{}.{}", encode(header), encode(valid_claims().to_string()));
            let tag = hmac::sign(&hmac::Key::new(algorithm, secret), message.as_bytes());
            let token = format!("{message}.{}", encode(tag));
            assert_eq!(verify(&token, &keys), Err(TokenError::Algorithm), "{name}");
        }
    }
}

#[test]
fn a_token_brings_no_key_along() {
    let (known, evil) = (Signer::ed25519(), Signer::ed25519());
    let keys = key_set(&json!([known.key("a")]));
    for (member, value) in [
        ("jwk", evil.key("a")),
        ("jku", json!("https://evil.test/keys")),
        ("x5u", json!("https://evil.test/certificate")),
        ("x5c", json!(["MIIB"])),
    ] {
        let header = json!({"alg": "EdDSA", "kid": "a", member: value});
        let token = evil.token(&header, &valid_claims());
        assert_eq!(verify(&token, &keys), Err(TokenError::Signature), "{member}");
    }
}

#[test]
fn the_name_of_a_key_is_only_compared() {
    let (known, evil) = (Signer::ed25519(), Signer::ed25519());
    let keys = key_set(&json!([known.key("a")]));
    let long = "a".repeat(256);
    for id in ["../../../../dev/null", "a' OR '1'='1", "a\0", "A", " a", "", "a\r\nX-A: b", &long] {
        let token = evil.token(&json!({"alg": "EdDSA", "kid": id}), &valid_claims());
        assert_eq!(verify(&token, &keys), Err(TokenError::UnknownKey), "{id:?}");
        let token = known.token(&json!({"alg": "EdDSA", "kid": id}), &valid_claims());
        assert_eq!(verify(&token, &keys), Err(TokenError::UnknownKey), "{id:?}");
    }
    for id in [json!(null), json!(0), json!(["a"]), json!({"a": "a"})] {
        let token = known.token(&json!({"alg": "EdDSA", "kid": id}), &valid_claims());
        assert_eq!(verify(&token, &keys), Err(TokenError::Malformed), "{id}");
    }
}

/// Programs disagree about which of two members counts.
#[test]
fn members_that_come_twice_are_refused() {
    let signer = Signer::ed25519();
    let keys = key_set(&json!([signer.key("a")]));
    let header = r#"{"alg": "EdDSA", "kid": "a"}"#;
    let claims = |more: &str| {
        let end = NOW + 300;
        format!(r#"{{"iss": "https://id.test", "aud": "shop", "exp": {end}{more}}}"#)
    };
    assert_eq!(verify(&signer.token_of(header, &claims("")), &keys), Ok(()));
    for more in [r#", "aud": "shop""#, r#", "sub": "a", "sub": "b""#, r#", "\u0061ud": "b""#] {
        let token = signer.token_of(header, &claims(more));
        assert_eq!(verify(&token, &keys), Err(TokenError::Malformed), "{more}");
    }
    for header in [
        r#"{"alg": "EdDSA", "kid": "a", "kid": "a"}"#,
        r#"{"alg": "none", "kid": "a", "alg": "EdDSA"}"#,
        r#"["EdDSA", "a"]"#,
        r#"{"alg": "EdDSA", "kid": "a"} "#.trim_end_matches("} "),
        r#"{"alg": "EdDSA", "kid": "a"}{}"#,
        "",
    ] {
        let token = signer.token_of(header, &claims(""));
        assert_eq!(verify(&token, &keys), Err(TokenError::Malformed), "{header}");
    }
}

#[test]
fn what_must_be_understood_is_refused() {
    let signer = Signer::ed25519();
    let keys = key_set(&json!([signer.key("a")]));
    for critical in [json!(["b64"]), json!(["exp"]), json!([]), json!(null)] {
        let header = json!({"alg": "EdDSA", "kid": "a", "crit": critical, "b64": false});
        let token = signer.token(&header, &valid_claims());
        assert_eq!(verify(&token, &keys), Err(TokenError::CriticalHeader), "{critical}");
    }
}

#[test]
fn other_forms_of_a_token_are_refused() {
    let signer = Signer::ed25519();
    let keys = key_set(&json!([signer.key("a")]));
    let token = signer.token(&json!({"alg": "EdDSA", "kid": "a"}), &valid_claims());
    let (message, signature) = token.rsplit_once('.').unwrap();
    for wrong in [
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        message.to_owned(),
        format!("{token}."),
        format!("{token}=="),
        format!(".{token}"),
        format!("{token}.{signature}"),
        format!("{message} .{signature}"),
        format!("{message}..{signature}"),
        token.replacen('.', ".\u{7f}", 1),
    ] {
        let mut headers = bearer("");
        if let Ok(value) = HeaderValue::try_from(format!("Bearer {wrong}")) {
            headers.insert(AUTHORIZATION, value);
        }
        let read = policy().read_token(&headers);
        let verified = read.and_then(|read| policy().verify_token(&read, &keys, NOW));
        assert!(verified.is_err(), "{wrong}");
    }
    let long = json!({"alg": "EdDSA", "kid": "a", "x": "x".repeat(MOST_TOKEN_OCTETS)});
    let token = signer.token(&long, &valid_claims());
    assert_eq!(verify(&token, &keys), Err(TokenError::TooLong));
    // Deeper than any parser's stack.
    let deep = format!("{}{}", "[".repeat(3000), "]".repeat(3000));
    let token = signer.token_of(r#"{"alg": "EdDSA"}"#, &format!(r#"{{"a": {deep}}}"#));
    assert_eq!(verify(&token, &keys), Err(TokenError::Malformed));
}

proptest! {
    #[test]
    fn no_octets_are_a_token_by_chance(octets in prop::collection::vec(any::<u8>(), 0..300)) {
        let keys = key_set(&json!([Signer::ed25519().key("a")]));
        let message = [b"Bearer eyJhbGciOiJFZERTQSJ9.".as_slice(), &octets].concat();
        if let Ok(value) = HeaderValue::from_bytes(&message) {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
            let read = policy().read_token(&headers);
            prop_assert!(read.and_then(|read| policy().verify_token(&read, &keys, NOW)).is_err());
        }
        let _ = KeySet::parse(&octets);
    }
}
