//! How a user signs in.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::digest::{SHA256, digest};

use super::*;

#[test]
fn a_browser_is_sent_to_the_provider_and_returns_with_a_session() {
    let policy = policy();
    let login = BegunLogin::begin(&policy, &Visit::to("/cart?item=1&b=%2F"), 7);
    assert_eq!(login.url, "https://id.test/authorize");
    for (name, value) in [
        ("tenant", "a"),
        ("response_type", "code"),
        ("client_id", "shop web"),
        ("redirect_uri", "https://a.test/oauth2/callback"),
        ("scope", "openid email"),
        ("code_challenge_method", "S256"),
    ] {
        assert_eq!(login.parameter(name), value);
    }
    assert_eq!(login.parameters.len(), 9);

    let pending = login.pending(&policy);
    let provider = provider();
    let request = policy.token_request(&provider, &pending).unwrap();
    assert_eq!((&*request.upstream.service, request.url.path()), ("id.test", "/token"));
    let authorization = request.authorization.unwrap();
    let expected = format!("Basic {}", STANDARD.encode("shop+web:s%3Ae%2Fc"));
    assert_eq!(authorization, expected);
    assert!(authorization.is_sensitive());
    let form: Vec<(String, String)> =
        form_urlencoded::parse(request.form.as_bytes()).into_owned().collect();
    let verifier = form[3].1.clone();
    let names = ["grant_type", "code", "redirect_uri", "code_verifier"];
    let values = ["authorization_code", "c0de", "https://a.test/oauth2/callback", &*verifier];
    let expected = names.iter().zip(values).map(|(name, value)| ((*name).into(), value.into()));
    assert_eq!(form, expected.collect::<Vec<(String, String)>>());
    let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()));
    assert_eq!(login.parameter("code_challenge"), challenge);
    // Neither the provider's URL nor the browser's cookie has it.
    assert!(!format!("{login:?}").contains(&verifier));

    let signer = Signer::ed25519();
    let token = signed(&signer, &login.claims());
    let claims = policy.verify_id_token(&pending, &token, &keys_of(&signer), NOW).unwrap();
    let response = policy.finish_login(&pending, &claims, NOW, [9; SALT_OCTETS]).unwrap();
    assert_eq!(response.status(), 302);
    assert_eq!(location(&response), "https://a.test/cart?item=1&b=%2F");
    let [(session, attributes)] = &cookies(&response)[..] else { panic!("one cookie") };
    assert_eq!(attributes, "Path=/; Max-Age=3600; Secure; HttpOnly; SameSite=Lax");
    assert!(session.starts_with("__Host-millrace-session-"));
    assert!(!session.contains(&URL_SAFE_NO_PAD.encode("ann")), "encrypted");
    let forgotten = pending.forget_login();
    let name = login.cookie.split_once('=').unwrap().0;
    assert_eq!(forgotten, format!("{name}=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=Lax"));

    let visit = Visit::to("/cart").with("cookie", &format!("a=1; {session}; {}", login.cookie));
    let headers = served(&policy, &visit, NOW).unwrap();
    assert_eq!(
        (&headers["x-user"], &headers["x-groups"]),
        (&"ann".parse().unwrap(), &"a,b".parse().unwrap())
    );
    assert_eq!((headers.get("x-email"), &headers["cookie"]), (None, &"a=1".parse().unwrap()));
}

#[test]
fn only_navigations_are_sent_to_the_provider() {
    let policy = policy();
    let page = || Visit::to("/");
    let without_accept = Visit { headers: HeaderMap::new(), ..page() };
    let accepting = |media: &str| without_accept.clone().with("accept", media);
    let begins = |visit: &Visit| matches!(visit.decide(&policy, NOW), SignInStep::BeginLogin);
    for visit in [
        page(),
        page().by(Method::HEAD),
        page().with("sec-fetch-mode", "navigate"),
        accepting("a/b, TEXT/HTML ;q=0.5"),
    ] {
        assert!(begins(&visit));
    }
    for visit in [
        page().by(Method::POST),
        page().by(Method::OPTIONS),
        page().with("sec-fetch-mode", "cors"),
        accepting("*/*"),
        accepting("application/json"),
        without_accept,
        Visit { is_tls: false, ..page() },
    ] {
        assert!(matches!(visit.decide(&policy, NOW), SignInStep::DemandSession));
    }
    let response = demand_session();
    assert_eq!(response.status(), 401);
    assert_eq!(response.headers()["www-authenticate"], "Cookie");
    // Its own paths are never anybody else's.
    for path in [CALLBACK, LOGOUT] {
        let in_clear = Visit { is_tls: false, ..Visit::to(path) };
        assert_eq!(in_clear.response(&policy, NOW), (400, String::new()));
    }
}

/// As when a browser restores its tabs.
#[test]
fn tabs_sign_in_at_the_same_time() {
    let policy = policy();
    let logins: Vec<_> =
        (0..40).map(|seed| BegunLogin::begin(&policy, &Visit::to("/"), seed)).collect();
    let name = |login: &BegunLogin| login.cookie.split_once('=').unwrap().0.to_owned();
    let names: std::collections::BTreeSet<_> = logins.iter().map(name).collect();
    assert!((5..=8).contains(&names.len()), "{names:?}");
    // One has signed in. The others, whose cookies may be gone, go on to where they wanted.
    let session = sign_in(&policy, &[]).unwrap();
    let login = BegunLogin::begin(&policy, &Visit::to("/other"), 50);
    let mut late = login.callback("c0de");
    late.headers.insert(COOKIE, session.parse().unwrap());
    assert_eq!(late.response(&policy, NOW), (302, "https://a.test/other".to_owned()));
}

#[test]
fn a_port_of_the_host_is_a_part_of_all_urls() {
    let policy = policy();
    for (host, origin) in [("A.test:8443", "https://a.test:8443"), ("a.test:443", "https://a.test")]
    {
        let login = BegunLogin::begin(&policy, &Visit::to("/x").at(host), 7);
        assert_eq!(login.parameter("redirect_uri"), format!("{origin}/oauth2/callback"));
        let SignInStep::FinishLogin(pending) = login.callback("a").at(host).decide(&policy, NOW)
        else {
            panic!()
        };
        let response = policy.finish_login(&pending, &[], NOW, [9; SALT_OCTETS]).unwrap();
        assert_eq!(location(&response), format!("{origin}/x"));
    }
}
