//! What opens a route, and for whom.

use super::*;

fn claims(value: &str) -> Vec<(HeaderName, HeaderValue)> {
    vec![(HeaderName::from_static("x-user"), HeaderValue::try_from(value).unwrap())]
}

#[test]
fn a_session_ends_when_its_time_is_over() {
    let policy = policy();
    let cookie = sign_in(&policy, &claims("ann")).unwrap();
    let visit = Visit::to("/").with("cookie", &cookie);
    let is_served = |policy: &OidcAuth, now| served(policy, &visit, now).is_some();
    assert!(is_served(&policy, NOW) && is_served(&policy, NOW + 3599));
    assert!(!is_served(&policy, NOW + 3600));
    // The clock of another replica.
    assert!(is_served(&policy, NOW - 60) && !is_served(&policy, NOW - 61));
    // A shorter lifetime counts for those that have begun.
    let shorter = OidcAuth { session_lifetime: Duration::from_secs(60), ..policy };
    assert!(is_served(&shorter, NOW + 59) && !is_served(&shorter, NOW + 60));
}

#[test]
fn a_session_is_worth_nothing_elsewhere() {
    let own = policy();
    let cookie = sign_in(&own, &claims("ann")).unwrap();
    let (name, value) = cookie.split_once('=').unwrap();
    let visit = |cookie: &str| Visit::to("/").with("cookie", cookie);
    assert!(served(&own, &visit(&cookie), NOW).is_some());
    assert!(served(&own, &visit(&cookie).at("a.test:8443"), NOW).is_some());
    assert!(served(&own, &visit(&cookie).at("b.test"), NOW).is_none());
    let other_secret = CookieKeys::derive(b"another secret of the same Ingress", &["shop"]);
    for keys in [CookieKeys::derive(SECRET.as_bytes(), &["evil"]), other_secret] {
        let others = OidcAuth { cookies: keys, ..policy() };
        let renamed = sign_in(&others, &[]).unwrap();
        let renamed = format!("{}={value}", renamed.split_once('=').unwrap().0);
        assert!(served(&others, &visit(&cookie), NOW).is_none());
        assert!(served(&others, &visit(&renamed), NOW).is_none());
    }
    // Nobody can tell whose it is.
    for several in
        [format!("{cookie}; {cookie}"), format!("{name}=a; {cookie}"), format!("{cookie}; {name}=")]
    {
        assert!(served(&own, &visit(&several), NOW).is_none(), "{several}");
    }
    assert!(served(&own, &visit(&cookie.to_uppercase()), NOW).is_none());
    let in_clear = Visit { is_tls: false, ..visit(&cookie) };
    assert!(served(&own, &in_clear, NOW).is_none());
    let huge = "A".repeat(1 << 20);
    let login = BegunLogin::begin(&own, &Visit::to("/"), 1);
    for made_up in [
        "",
        "e30",
        &value[1..],
        &value[..value.len() - 1],
        &format!("{value}{value}"),
        &format!("\"{value}\""),
        &huge,
        login.parameter("state"),
        login.cookie.split_once('=').unwrap().1,
    ] {
        assert!(served(&own, &visit(&format!("{name}={made_up}")), NOW).is_none());
    }
}

#[test]
fn endpoints_get_claims_from_the_session_only() {
    let policy = policy();
    let cookie = sign_in(&policy, &claims("ann")).unwrap();
    let visit = Visit::to("/")
        .with("cookie", &format!("{cookie}; __Host-millrace-login-00000000-1=a"))
        .with("cookie", "__Host-millrace-session-ffffffff=b; own=1")
        .with("x-user", "admin")
        .with("x-email", "admin@a.test")
        .with("x-groups", "admins");
    let headers = served(&policy, &visit, NOW).unwrap();
    let users: Vec<_> = headers.get_all("x-user").iter().collect();
    assert_eq!(users, ["ann"]);
    assert_eq!((headers.get("x-email"), headers.get("x-groups")), (None, None));
    assert_eq!(headers["cookie"], "own=1");
    for name in ["x-user", "x-email", "x-groups"] {
        assert!(policy.sets_header(&HeaderName::from_static(name)));
    }
}

#[test]
fn claims_that_do_not_fit_into_a_cookie_are_refused() {
    let policy = policy();
    let cookie = sign_in(&policy, &claims(&"a".repeat(2800))).unwrap();
    assert!(cookie.len() <= 4096);
    let headers = served(&policy, &Visit::to("/").with("cookie", &cookie), NOW).unwrap();
    assert_eq!(headers["x-user"].len(), 2800);
    let failure = sign_in(&policy, &claims(&"a".repeat(3000))).unwrap_err();
    assert_eq!((failure.status().as_u16(), failure), (403, SignInFailure::TooManyClaims));
}

#[test]
fn sessions_are_shared_in_a_namespace_with_equal_keys() {
    let own = policy();
    assert!(own.shares_sessions_with(&policy()));
    let cookies = CookieKeys::derive(SECRET.as_bytes(), &["evil"]);
    assert!(!own.shares_sessions_with(&OidcAuth { cookies, ..policy() }));
    let discovery = DocumentAddress { namespace: "evil".into(), ..policy().discovery };
    assert!(!own.shares_sessions_with(&OidcAuth { discovery, ..policy() }));
}
