//! What providers publish and reply.

use http::StatusCode;

use super::*;

fn parse(name: &str, value: Value) -> Result<ProviderDocument, String> {
    let mut document = document();
    document[name] = value;
    parse_document(document.to_string().as_bytes())
}

fn fail<T>(result: Result<T, SignInFailure>) -> (u16, String) {
    let failure = result.map(drop).unwrap_err();
    (failure.status().as_u16(), failure.to_string())
}

#[test]
fn documents_that_cannot_be_used_are_refused() {
    for (name, value, why) in [
        ("issuer", json!(null), "issuer is missing"),
        ("issuer", json!("https://evil.test"), "it is that of another issuer"),
        ("issuer", json!("http://id.test"), "it is that of another issuer"),
        ("issuer", json!("https://id.test/b"), "it is that of another issuer"),
        ("issuer", json!("https://id.test//"), "it is that of another issuer"),
        ("issuer", json!("a".repeat(2048)), "it is that of another issuer"),
        ("issuer", json!(format!("https://id.test/{}", "a".repeat(2048))), "issuer has more than"),
        ("authorization_endpoint", json!(null), "authorization_endpoint is no text"),
        (
            "authorization_endpoint",
            json!("javascript:alert(1)"),
            "authorization_endpoint is no URL",
        ),
        ("authorization_endpoint", json!("http://id.test/"), "authorization_endpoint is no URL"),
        ("authorization_endpoint", json!("//id.test/"), "authorization_endpoint is no URL"),
        ("authorization_endpoint", json!("https://a@id.test/"), "authorization_endpoint is no URL"),
        (
            "authorization_endpoint",
            json!("https://id.test/\r\nX-A: b"),
            "authorization_endpoint is no URL",
        ),
        ("authorization_endpoint", json!("/authorize"), "authorization_endpoint is no URL"),
        ("token_endpoint", json!("http://id.test/token"), "token_endpoint is no URL"),
        ("jwks_uri", json!("http://id.test/keys"), "jwks_uri is no URL"),
        ("jwks_uri", json!(format!("https://id.test/{}", "a".repeat(2048))), "jwks_uri is no URL"),
        ("end_session_endpoint", json!("http://id.test/"), "end_session_endpoint is no URL"),
    ] {
        let error = parse(name, value).unwrap_err();
        assert!(error.starts_with(why) && error.len() < 300, "{error}");
    }
    for document in ["", "[]", "<html>", r#"{"issuer": "a", "issuer": "b"}"#] {
        assert!(parse_document(document.as_bytes()).is_err(), "{document}");
    }
}

#[test]
fn a_document_counts_for_its_own_issuer_only() {
    let policy = policy();
    let login = BegunLogin::begin(&policy, &Visit::to("/"), 1).pending(&policy);
    let random = LoginRandom { browser: [1; 32], salt: [1; 24] };
    // Those that publish it at the same address.
    for issuer in ["https://id.test/", "HTTPS://id.test", "https://ID.test"] {
        let provider = parse("issuer", json!(issuer)).unwrap();
        let begun =
            Visit::to("/").facts(|facts| policy.begin_login(&provider, facts, NOW, &random));
        for (status, why) in [fail(begun), fail(policy.token_request(&provider, &login))] {
            assert_eq!(status, 503);
            assert!(why.contains("another issuer"), "{why}");
        }
    }
}

/// A provider could otherwise make the proxy connect to whatever it can reach.
#[test]
fn tokens_and_keys_come_from_servers_of_the_configuration() {
    let policy = policy();
    let login = BegunLogin::begin(&policy, &Visit::to("/"), 1).pending(&policy);
    let server = |url: &str| {
        let provider = parse("token_endpoint", json!(url)).unwrap();
        let request =
            policy.token_request(&provider, &login).map(|r| r.upstream.service.to_string());
        let provider = parse("jwks_uri", json!(url)).unwrap();
        let keys = policy.keys_address(&provider).map(|keys| keys.upstream.service.to_string());
        assert_eq!(request.is_ok(), keys.is_ok());
        request.ok()
    };
    for (url, expected) in [
        ("https://id.test/a", Some("id.test")),
        ("https://ID.test:443/a", Some("id.test")),
        ("https://keys.test:8443/a", Some("keys.test")),
        ("https://keys.test/a", None),
        ("https://id.test:8443/a", None),
        ("https://id.test.evil.test/a", None),
        ("https://169.254.169.254/latest", None),
        ("https://[::1]/", None),
        ("https://kubernetes.default.svc/api", None),
    ] {
        assert_eq!(server(url).as_deref(), expected, "{url}");
    }
    let provider = parse("token_endpoint", json!("https://10.0.0.1/")).unwrap();
    let (status, why) = fail(policy.token_request(&provider, &login));
    assert_eq!(status, 503);
    assert!(why.contains("oidc-hosts"), "{why}");
}

#[test]
fn a_client_proves_itself_in_a_way_that_the_provider_supports() {
    let policy = policy();
    let login = BegunLogin::begin(&policy, &Visit::to("/"), 1).pending(&policy);
    let request = |methods: Value| {
        let provider = parse("token_endpoint_auth_methods_supported", methods).unwrap();
        let request = policy.token_request(&provider, &login);
        request.map(|request| {
            (request.authorization.is_some(), request.form.contains("client_secret="))
        })
    };
    assert_eq!(request(json!(["client_secret_post", "client_secret_basic"])), Ok((true, false)));
    assert_eq!(request(json!(["private_key_jwt", "client_secret_post"])), Ok((false, true)));
    for unsupported in [json!(["private_key_jwt"]), json!([]), json!("client_secret_basic")] {
        assert_eq!(fail(request(unsupported)).0, 503);
    }
}

#[test]
fn a_provider_that_names_itself_must_do_so() {
    let policy = policy();
    let provider = parse("authorization_response_iss_parameter_supported", json!(true)).unwrap();
    let login = BegunLogin::begin(&policy, &Visit::to("/"), 1);
    let (status, _) = fail(policy.token_request(&provider, &login.pending(&policy)));
    assert_eq!(status, 400);
    let mut callback = login.callback("c");
    callback.query = callback.query.map(|query| query + "&iss=https%3A%2F%2Fid.test");
    let SignInStep::FinishLogin(pending) = callback.decide(&policy, NOW) else { panic!() };
    assert!(policy.token_request(&provider, &pending).is_ok());
}

#[test]
fn replies_to_a_code() {
    let read = |status: u16, body: &str| {
        read_token_response(StatusCode::from_u16(status).unwrap(), body.as_bytes())
    };
    assert_eq!(read(200, r#"{"id_token": "a.b.c", "access_token": "x"}"#), Ok("a.b.c".to_owned()));
    for (status, body, expected) in [
        (400, r#"{"error": "invalid_grant"}"#, 400),
        (401, r#"{"error": "invalid_client"}"#, 503),
        (400, "<html>", 503),
        (500, "", 503),
        (302, r#"{"id_token": "a.b.c"}"#, 503),
        (200, "{}", 503),
        (200, r#"{"id_token": 1}"#, 503),
        (200, r#"{"id_token": "a", "id_token": "b"}"#, 503),
    ] {
        assert_eq!(fail(read(status, body)).0, expected, "{status} {body}");
    }
    let (_, why) = fail(read(400, &json!({"error": "x".repeat(1000)}).to_string()));
    assert!(why.len() < 200, "{why}");
}

#[test]
fn secrets_are_in_no_output() {
    let policy = policy();
    let login = BegunLogin::begin(&policy, &Visit::to("/"), 1).pending(&policy);
    let text = format!("{policy:?} {login:?}");
    for secret in [&*policy.client.secret, SECRET, "c0de", &login.verifier, &login.nonce] {
        assert!(!text.contains(secret), "{text}");
    }
}
