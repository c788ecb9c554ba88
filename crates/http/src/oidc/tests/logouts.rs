//! How a session ends before its time.

use super::*;

#[test]
fn only_the_user_signs_out() {
    let policy = policy();
    let get = || Visit::to(LOGOUT);
    let post = || get().by(Method::POST);
    for (visit, is_wanted) in [
        (get().with("sec-fetch-site", "same-origin"), true),
        (get().with("sec-fetch-site", "none"), true),
        (get().with("sec-fetch-site", "same-site"), false),
        (get().with("sec-fetch-site", "cross-site"), false),
        (get(), false),
        (get().with("origin", "https://a.test"), false),
        (post().with("sec-fetch-site", "same-origin"), true),
        (post().with("sec-fetch-site", "cross-site").with("origin", "https://a.test"), false),
        (post().with("origin", "https://a.test"), true),
        (post().with("origin", "https://evil.test"), false),
        (post().with("origin", "https://a.test:8443"), false),
        (post().with("origin", "null"), false),
        (post(), false),
        (get().by(Method::HEAD).with("sec-fetch-site", "none"), false),
    ] {
        let step = visit.decide(&policy, NOW);
        match step {
            SignInStep::SignOut => assert!(is_wanted, "{:?}", visit.headers),
            SignInStep::Respond(response) => {
                assert!(!is_wanted, "{:?}", visit.headers);
                assert_eq!((response.status().as_u16(), cookies(&response).len()), (403, 0));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_browser_forgets_the_session_and_tells_the_provider_if_it_can() {
    let policy = policy();
    let name = sign_in(&policy, &[]).unwrap();
    let name = name.split_once('=').unwrap().0;
    let mut elsewhere = provider();
    elsewhere.issuer = "https://evil.test".to_owned();
    let without = ProviderDocument { end_session: None, ..provider() };
    let told = "https://id.test/logout?client_id=shop+web";
    for (provider, status, expected) in [
        (Some(&provider()), 303, told),
        (Some(&without), 200, ""),
        (Some(&elsewhere), 200, ""),
        (None, 200, ""),
    ] {
        let response = policy.sign_out(provider);
        assert_eq!((response.status().as_u16(), &*location(&response)), (status, expected));
        assert_eq!(cookies(&response)[0].0, format!("{name}="));
        assert!(cookies(&response)[0].1.contains("Max-Age=0"));
    }
}
