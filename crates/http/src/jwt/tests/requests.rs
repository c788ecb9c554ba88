//! Tokens in requests, and what endpoints get of them.

use http::header::COOKIE;

use super::*;

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let line = |(name, value): &(&str, &str)| {
        (HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap())
    };
    let mut headers = HeaderMap::new();
    for (name, value) in lines.iter().map(line) {
        headers.append(name, value);
    }
    headers
}

#[test]
fn a_token_is_found_at_one_place() {
    type Case = (&'static [(&'static str, &'static str)], Result<&'static str, TokenError>);
    let cases: [Case; 15] = [
        (&[], Err(TokenError::Missing)),
        (&[("authorization", "Bearer a")], Ok("a")),
        (&[("authorization", "bEARER   a")], Ok("a")),
        (&[("authorization", "Bearer\ta")], Ok("a")),
        (&[("authorization", "Bearer")], Ok("")),
        (&[("authorization", "Bearera")], Err(TokenError::Missing)),
        (&[("authorization", "Basic YTpi")], Err(TokenError::Missing)),
        (
            &[("authorization", "Bearer a"), ("authorization", "Bearer a")],
            Err(TokenError::Ambiguous),
        ),
        (
            &[("authorization", "Basic a"), ("authorization", "Bearer a")],
            Err(TokenError::Ambiguous),
        ),
        (&[("cookie", "token=b")], Ok("b")),
        (&[("cookie", "other=a; token=b")], Ok("b")),
        (&[("cookie", "Token=b")], Err(TokenError::Missing)),
        (&[("cookie", "token=b; token=c")], Err(TokenError::Ambiguous)),
        (&[("authorization", "Bearer a"), ("cookie", "token=b")], Ok("a")),
        (&[("authorization", "Basic YTpi"), ("cookie", "token=b")], Ok("b")),
    ];
    for (lines, expected) in cases {
        let headers = headers(lines);
        let found = find_token(&headers, Some("token"));
        assert_eq!(found.map(|(token, _)| str::from_utf8(token).unwrap()), expected, "{lines:?}");
    }
    let cookie = headers(&[("cookie", "token=b")]);
    assert_eq!(find_token(&cookie, None), Err(TokenError::Missing));
}

/// What is left was verified, or is no token.
#[test]
fn endpoints_get_no_token_that_was_not_verified() {
    let signer = Signer::ed25519();
    let keys = key_set(&json!([signer.key("a")]));
    let token = signer.token(&json!({"alg": "EdDSA"}), &valid_claims());
    let bearer = format!("Bearer {token}");
    let cookie = format!("a=1; token={token}; b=2");
    let both = [("authorization", &*bearer), ("cookie", &*cookie)];
    let only_cookie = [("authorization", "Basic YTpi"), ("cookie", &*cookie)];
    for (lines, forwards, authorization, cookies) in [
        (&both, false, None, Some("a=1;  b=2")),
        (&both, true, Some(&*bearer), Some("a=1;  b=2")),
        (&only_cookie, false, Some("Basic YTpi"), Some("a=1;  b=2")),
        (&only_cookie, true, Some("Basic YTpi"), Some(&*cookie)),
    ] {
        let jwt = JwtAuth { cookie: Some("token".into()), forwards_token: forwards, ..policy() };
        let mut headers = headers(lines);
        let read = jwt.read_token(&headers).unwrap();
        let verified = jwt.verify_token(&read, &keys, NOW).unwrap();
        let mut unverified = headers.clone();
        jwt.strip_claims_and_tokens(Some(&verified), &mut headers);
        jwt.strip_claims_and_tokens(None, &mut unverified);
        assert!(matches!(find_token(&unverified, Some("token")), Err(TokenError::Missing)));
        let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap());
        assert_eq!(text(AUTHORIZATION), authorization, "{lines:?} {forwards}");
        let without_blanks = |text: Option<&str>| text.map(|text| text.replace(' ', ""));
        assert_eq!(without_blanks(text(COOKIE)), without_blanks(cookies), "{lines:?} {forwards}");
    }
}

#[test]
fn headers_of_claims_come_from_the_token_only() {
    let signer = Signer::ed25519();
    let keys = key_set(&json!([signer.key("a")]));
    let name = |name: &'static str| HeaderName::from_static(name);
    let jwt = JwtAuth {
        claim_headers: vec![("sub".into(), name("x-user")), ("role".into(), name("x-role"))],
        ..policy()
    };
    let token = signer.token(&json!({"alg": "EdDSA"}), &valid_claims());
    let verified = verify_with(&jwt, &token, &keys).unwrap();
    let mut headers = headers(&[("X-User", "admin"), ("x-USER", "root"), ("X-Role", "admin")]);
    jwt.strip_claims_and_tokens(Some(&verified), &mut headers);
    assert!(headers.is_empty());
    verified.add_claim_headers(&mut headers);
    assert_eq!(headers.get("x-user").unwrap(), "ann");
    assert_eq!(headers.len(), 1, "the token has no role");
    assert!(jwt.sets_header(&name("x-role")) && !jwt.sets_header(&name("x-other")));
}

#[test]
fn clients_are_told_what_is_wrong_with_their_token() {
    let challenge = |error| bearer_challenge("a \"b\"", error).to_str().unwrap().to_owned();
    assert_eq!(challenge(TokenError::Missing), "Bearer realm=\"a b\"");
    assert_eq!(
        challenge(TokenError::Expired),
        "Bearer realm=\"a b\", error=\"invalid_token\", error_description=\"the token has expired\""
    );
    assert_eq!(TokenError::Expired.status(), 401);
    assert_eq!(
        challenge(TokenError::Ambiguous),
        "Bearer realm=\"a b\", error=\"invalid_request\", error_description=\"there are several tokens\""
    );
    assert_eq!(TokenError::Ambiguous.status(), 400);
}
