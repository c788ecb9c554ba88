//! What a token with a valid signature says.

use serde_json::Value;

use super::*;
use crate::jwt::claims::{CLOCK_SKEW, Claims};

const SKEW: u64 = CLOCK_SKEW as u64;

/// Valid claims, except these.
fn check(changes: &Value) -> Result<(), TokenError> {
    let mut claims = valid_claims();
    for (name, value) in changes.as_object().unwrap() {
        claims[name] = value.clone();
    }
    let jwt = policy();
    Claims::parse(claims.to_string().as_bytes())?.check(&jwt.issuer, &jwt.audiences, NOW)
}

#[test]
fn a_token_is_valid_for_its_time_and_a_minute_around_it() {
    let cases = [
        (json!({"exp": NOW - SKEW + 1}), Ok(())),
        (json!({"exp": NOW - SKEW}), Err(TokenError::Expired)),
        (json!({"exp": (NOW - SKEW) as f64 + 0.5}), Ok(())),
        (json!({"exp": 0}), Err(TokenError::Expired)),
        (json!({"exp": -1}), Err(TokenError::Expired)),
        (json!({"exp": 1e300}), Ok(())),
        (json!({"exp": u64::MAX}), Ok(())),
        (json!({"exp": null}), Err(TokenError::Times)),
        (json!({"exp": (NOW + 300).to_string()}), Err(TokenError::Times)),
        (json!({"exp": [NOW + 300]}), Err(TokenError::Times)),
        (json!({"exp": true}), Err(TokenError::Times)),
        (json!({"nbf": NOW + SKEW}), Ok(())),
        (json!({"nbf": NOW + SKEW + 1}), Err(TokenError::NotYetValid)),
        (json!({"nbf": "0"}), Err(TokenError::Times)),
        (json!({"nbf": null}), Err(TokenError::Times)),
        (json!({"iat": NOW + SKEW}), Ok(())),
        (json!({"iat": NOW + SKEW + 1}), Err(TokenError::NotYetValid)),
        (json!({"iat": {}}), Err(TokenError::Times)),
    ];
    for (changes, expected) in cases {
        assert_eq!(check(&changes), expected, "{changes}");
    }
    let without_end = br#"{"iss": "https://id.test", "aud": "shop"}"#;
    let claims = Claims::parse(without_end).unwrap();
    assert_eq!(claims.check("https://id.test", &policy().audiences, NOW), Err(TokenError::Times));
    assert!(Claims::parse(br#"{"exp": 1e999}"#).is_err());
    assert!(Claims::parse(br#"{"exp": NaN}"#).is_err());
}

#[test]
fn a_token_is_by_the_issuer_and_for_one_of_the_audiences() {
    let cases = [
        (json!({"iss": "https://id.test/"}), Err(TokenError::Issuer)),
        (json!({"iss": "https://ID.test"}), Err(TokenError::Issuer)),
        (json!({"iss": null}), Err(TokenError::Issuer)),
        (json!({"iss": ["https://id.test"]}), Err(TokenError::Issuer)),
        (json!({"aud": "api"}), Ok(())),
        (json!({"aud": ["other", "api"]}), Ok(())),
        (json!({"aud": "other"}), Err(TokenError::Audience)),
        (json!({"aud": "shop "}), Err(TokenError::Audience)),
        (json!({"aud": "shop,api"}), Err(TokenError::Audience)),
        (json!({"aud": ["other"]}), Err(TokenError::Audience)),
        (json!({"aud": ["shop", 1]}), Err(TokenError::Audience)),
        (json!({"aud": [["shop"]]}), Err(TokenError::Audience)),
        (json!({"aud": []}), Err(TokenError::Audience)),
        (json!({"aud": {"shop": 1}}), Err(TokenError::Audience)),
        (json!({"aud": null}), Err(TokenError::Audience)),
    ];
    for (changes, expected) in cases {
        assert_eq!(check(&changes), expected, "{changes}");
    }
}

#[test]
fn claims_become_headers_as_they_are_or_not_at_all() {
    let refused = Err(TokenError::ClaimHeader);
    let header = |value: &Value| {
        let claims = Claims::parse(json!({"c": value}).to_string().as_bytes()).unwrap();
        let headers = claims.headers(&[("c".into(), HeaderName::from_static("x-c"))])?;
        Ok(headers.first().map(|(_, value)| String::from_utf8(value.as_bytes().into()).unwrap()))
    };
    let cases: [(Value, Result<Option<&str>, TokenError>); 25] = [
        (json!("ann"), Ok(Some("ann"))),
        (json!("Jos\u{e9}"), Ok(Some("Jos\u{e9}"))),
        (json!("a, b"), Ok(Some("a, b"))),
        (json!(""), Ok(Some(""))),
        (json!(7), Ok(Some("7"))),
        (json!(-7), Ok(Some("-7"))),
        (json!(u64::MAX), Ok(Some("18446744073709551615"))),
        // One more, which is rounded as some others are.
        (serde_json::from_str("18446744073709551616").unwrap(), refused),
        (json!(7.0), refused),
        (json!(1.5), refused),
        (json!(1e21), refused),
        (json!(["a", 1.5]), refused),
        (json!(true), Ok(Some("true"))),
        (json!(["a", "b", 3]), Ok(Some("a,b,3"))),
        (json!([]), Ok(Some(""))),
        (json!(null), Ok(None)),
        (json!(" admin"), refused),
        (json!("admin\t"), refused),
        (json!("a\r\nX-Role: admin"), refused),
        (json!("a\0"), refused),
        // Someone may call a group so.
        (json!(["users,admin"]), refused),
        (json!(["users", " admin"]), refused),
        (json!(["users", null]), refused),
        (json!([["admin"]]), refused),
        (json!({"admin": true}), refused),
    ];
    for (value, expected) in cases {
        let expected = expected.map(|text| text.map(str::to_owned));
        assert_eq!(header(&value), expected, "{value}");
    }
}
