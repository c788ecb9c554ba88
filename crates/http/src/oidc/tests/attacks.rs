//! What browsers bring back that did not begin here, or not so.

use super::*;

fn begin(seed: u8) -> BegunLogin {
    BegunLogin::begin(&policy(), &Visit::to("/a"), seed)
}

#[test]
fn a_state_is_worth_nothing_elsewhere() {
    let own = policy();
    let (login, other) = (begin(1), begin(2));
    let state = login.parameter("state");
    let with =
        |query: &str| Visit::to(&format!("{CALLBACK}?{query}")).with("cookie", &login.cookie);
    let refused = |visit: Visit, policy: &OidcAuth| {
        assert_eq!(visit.response(policy, NOW), (400, String::new()), "{:?}", visit.query);
    };
    // Another browser, without a cookie or with that of its own login.
    let stolen = Visit::to(&format!("{CALLBACK}?code=c&state={state}"));
    refused(stolen.clone(), &own);
    refused(stolen.clone().with("cookie", &other.cookie), &own);
    let (name, value) =
        (login.cookie.split_once('=').unwrap().0, other.cookie.split_once('=').unwrap().1);
    refused(stolen.clone().with("cookie", &format!("{name}={value}")), &own);
    refused(stolen.clone().with("cookie", &format!("{name}=")), &own);
    refused(stolen.clone().with("cookie", &format!("{name}={state}")), &own);
    // Another host, also one of the same Ingress.
    refused(login.callback("c").at("b.test"), &own);
    // Made up or changed.
    for made_up in ["", "a", "e30", &state[1..], &format!("{state}A"), other.parameter("nonce")] {
        refused(with(&format!("code=c&state={made_up}")), &own);
    }
    let session = sign_in(&own, &[]).unwrap();
    refused(with(&format!("code=c&state={}", session.split_once('=').unwrap().1)), &own);
    // Other Ingresses, whose cookies have other names, or even the same.
    let others = OidcAuth { cookies: CookieKeys::derive(SECRET.as_bytes(), &["evil"]), ..policy() };
    refused(login.callback("c"), &others);
    let cookie =
        format!("{}; {}", login.cookie, BegunLogin::begin(&others, &Visit::to("/"), 1).cookie);
    refused(stolen.with("cookie", &cookie), &others);
    // Parameters that come twice, or not at all.
    for query in [
        format!("state={state}"),
        format!("code=&state={state}"),
        "code=c".to_owned(),
        format!("code=c&state={state}&state={state}"),
        format!("code=c&state={state}&code=d"),
        format!("code=c&state={state}&iss=https://evil.test"),
        format!("code=c&state={state}&iss=https://id.test&iss=https://id.test"),
    ] {
        refused(with(&query), &own);
    }
    refused(login.callback("c").by(Method::POST), &own);
    refused(Visit::to(CALLBACK), &own);
    assert!(matches!(login.callback("c").decide(&own, NOW), SignInStep::FinishLogin(_)));
}

/// With its cookie, which the first use removes, the state is valid once more only for who holds the cookie: then the
/// provider refuses the code.
#[test]
fn a_login_ends_after_ten_minutes_and_begins_again() {
    let own = policy();
    let login = begin(1);
    let callback = login.callback("c");
    assert!(matches!(callback.decide(&own, NOW + 599), SignInStep::FinishLogin(_)));
    assert_eq!(callback.response(&own, NOW + 600), (302, "https://a.test/a".to_owned()));
    assert_eq!(callback.response(&own, NOW - 61), (400, String::new()), "from the future");
}

#[test]
fn a_refusal_of_the_provider_counts_for_its_own_login_only() {
    let own = policy();
    let login = begin(1);
    let state = login.parameter("state");
    let denied = Visit::to(&format!("{CALLBACK}?error=access_denied&state={state}"));
    assert_eq!(denied.response(&own, NOW).0, 400);
    let SignInStep::Respond(response) = denied.with("cookie", &login.cookie).decide(&own, NOW)
    else {
        panic!()
    };
    assert_eq!(response.status(), 403);
    assert!(cookies(&response)[0].1.contains("Max-Age=0"));
}

/// An attacker's code in a victim's browser, or a victim's in the attacker's.
#[test]
fn a_code_of_another_login_has_another_verifier_and_nonce() {
    let own = policy();
    let (mine, theirs) = (begin(1), begin(2));
    let provider = provider();
    let form =
        |login: &BegunLogin| own.token_request(&provider, &login.pending(&own)).unwrap().form;
    assert_ne!(form(&mine), form(&theirs));
    let signer = Signer::ed25519();
    let keys = keys_of(&signer);
    let verify = |login: &BegunLogin, token: &str| {
        own.verify_id_token(&login.pending(&own), token, &keys, NOW).map(drop)
    };
    let token = signed(&signer, &theirs.claims());
    assert_eq!(verify(&theirs, &token), Ok(()));
    assert_eq!(verify(&mine, &token), Err(TokenError::Nonce));
}

#[test]
fn an_id_token_must_be_the_issuers_for_this_client_and_login() {
    let own = policy();
    let login = begin(1);
    let (signer, other) = (Signer::ed25519(), Signer::ed25519());
    let keys = keys_of(&signer);
    let verify =
        |token: &str| own.verify_id_token(&login.pending(&own), token, &keys, NOW).map(drop);
    let changed = |name: &str, value: Value| {
        let mut claims = login.claims();
        claims[name] = value;
        signed(&signer, &claims)
    };
    for (token, expected) in [
        (changed("a", json!(1)), Ok(())),
        (changed("azp", json!("shop web")), Ok(())),
        (changed("iss", json!("https://evil.test")), Err(TokenError::Issuer)),
        (changed("iss", json!("https://id.test/")), Err(TokenError::Issuer)),
        (changed("aud", json!("other")), Err(TokenError::Audience)),
        (changed("aud", json!(["shop web", "other"])), Err(TokenError::AuthorizedParty)),
        (changed("azp", json!("other")), Err(TokenError::AuthorizedParty)),
        (changed("azp", json!(1)), Err(TokenError::AuthorizedParty)),
        (changed("exp", json!(NOW - 61)), Err(TokenError::Expired)),
        (changed("exp", json!(null)), Err(TokenError::Times)),
        (changed("iat", json!(NOW + 61)), Err(TokenError::NotYetValid)),
        (changed("nonce", json!(null)), Err(TokenError::Nonce)),
        (changed("nonce", json!("")), Err(TokenError::Nonce)),
        (changed("sub", json!("ann\nx-role: admin")), Err(TokenError::ClaimHeader)),
        (signed(&other, &login.claims()), Err(TokenError::Signature)),
        ("a.b".to_owned(), Err(TokenError::Malformed)),
        (String::new(), Err(TokenError::Malformed)),
    ] {
        assert_eq!(verify(&token), expected, "{token}");
    }
    for (header, expected) in [
        (json!({"alg": "none"}), TokenError::Algorithm),
        // The public key as a shared secret.
        (json!({"alg": "HS256", "kid": "a"}), TokenError::Algorithm),
        (json!({"alg": "RS256", "kid": "a"}), TokenError::UnknownKey),
        (json!({"alg": "EdDSA", "kid": "b"}), TokenError::UnknownKey),
        (json!({"alg": "EdDSA", "kid": "b", "jwk": other.key("b")}), TokenError::UnknownKey),
    ] {
        assert_eq!(verify(&other.token(&header, &login.claims())), Err(expected), "{header}");
    }
    let unsigned = signer.token(&json!({"alg": "none"}), &login.claims());
    let unsigned = format!("{}.", unsigned.rsplit_once('.').unwrap().0);
    assert_eq!(verify(&unsigned), Err(TokenError::Algorithm));
}

#[test]
fn nobody_is_sent_to_another_host() {
    let own = policy();
    let long = format!("/{}", "a".repeat(1024));
    for (path, expected) in [
        ("//evil.test", "//evil.test"),
        ("//evil.test/%2e%2e", "//evil.test/%2e%2e"),
        ("/%2Fevil.test", "/%2Fevil.test"),
        ("/%5Cevil.test", "/%5Cevil.test"),
        ("/\\evil.test", "/"),
        ("/\t/evil.test", "/"),
        ("/\n/evil.test", "/"),
        ("/ evil", "/"),
        ("/ä", "/"),
        ("@evil.test", "/"),
        (".evil.test", "/"),
        (":443@evil.test", "/"),
        ("https://evil.test", "/"),
        ("/a?to=https://evil.test", "/a?to=https://evil.test"),
        ("/a?\\evil", "/"),
        (&long, "/"),
    ] {
        let login = BegunLogin::begin(&own, &Visit::to(path), 3);
        let response = own.finish_login(&login.pending(&own), &[], NOW, [9; SALT_OCTETS]).unwrap();
        assert_eq!(location(&response), format!("https://a.test{expected}"), "{path}");
        let late = login.callback("c").response(&own, NOW + 600);
        assert_eq!(late, (302, format!("https://a.test{expected}")));
    }
}

/// Rules match all of them, so that a request could reach an endpoint that its author has not meant to serve them.
#[test]
fn no_form_of_an_own_path_is_served() {
    let own = OidcAuth { redirect_path: "/@in/back".into(), ..policy() };
    let session = sign_in(&policy(), &[]).unwrap();
    let step = |path: &str| Visit::to(path).with("cookie", &session).decide(&own, NOW);
    for (path, status) in [
        ("/@in/back", 400),
        ("/%40in/back", 400),
        ("//@in/back", 400),
        ("/%40in//back", 400),
        (LOGOUT, 403),
        ("//oauth2///logout", 403),
    ] {
        let SignInStep::Respond(response) = step(path) else { panic!("{path}") };
        assert_eq!(response.status(), status, "{path}");
    }
    for path in ["/@in/back/", "/@in%2Fback", "/@IN/back", "/@in"] {
        assert!(matches!(step(path), SignInStep::Serve(_)), "{path}");
    }
}
