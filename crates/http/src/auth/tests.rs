use http::HeaderValue;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::*;

/// Made by crypt(3) of libxcrypt and by `openssl passwd -apr1`.
const OF_HELLO_WORLD: [&str; 11] = [
    "{PLAIN}Hello world!",
    "{SHA}00hq6RNueFa8QiEjhep5cJRHWAI=",
    "{SSHA}M8XN+MyCuGNn0qVHAt++nhI4sBNzYWx0",
    "$1$abcdefgh$fzmjzFdo5nMtBG8gtud5e0",
    "$apr1$abcdefgh$Unf1zc.jsgCbBQDCL104q.",
    "$5$saltstring$5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc5",
    "$5$rounds=10000$saltstringsaltst$3xv.VbSHBb41AL9AvLeujZkZRBAwqFMz2.opqey6IcA",
    "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1",
    "$6$rounds=1400$anotherlongsalts$5FGyu8c4BZDX4wJgs0Un26YOw2XibT5eTkHF1I1aP3QqStoJI9BHD2YPJYsAjEePVGUyBjdZxcNqMWlrrbIOC.",
    "$2b$05$CCCCCCCCCCCCCCCCCCCCC.z6PrHbuSsMSSwIGFy1JGevQZf6CqJ1y",
    "$2y$06$abcdefghijklmnopqrstuuCKbUef3jNRJlrU6Qmjn.YsMAu5Q70qK",
];

/// Forty times ü, eighty octets.
const OF_LONG: [&str; 4] = [
    "$apr1$xy$UNrR3DtlKkcdH6Mlz2PS8.",
    "$5$saltstring$gayeSJqBvCM/D3uyIP9t2UZUDQsYPA4a7UJm0y98fV2",
    "$6$saltstring$vVnq6x4oICh61SIeaw8r14UGoyZc4a0N1tspGjgDajEbdWg/iRqw2a7EzkhXmKEqxM29UocSoZOViURL9wkHW.",
    "$2b$05$CCCCCCCCCCCCCCCCCCCCC.SqzfMCnGXq0/GEKuUJ0//CNAi0GNL0m",
];

const OF_NOTHING: [&str; 5] = [
    "{PLAIN}",
    "$apr1$abcdefgh$L.PT565ESX4Tp2bqNs7Ie.",
    "$5$saltstring$FdNfA4gXqvCeO6iZs7G/.wwwoywYZqo0l1pwmfWaBA7",
    "$6$saltstring$kyGrqt6gmjAdtFLPrflEFifSYLCWWq1pyx95SvqinLDy2UHmj0sTF0MSLMwxPFZc3tu5kQckI8fks0zOPda3n1",
    "$2b$05$CCCCCCCCCCCCCCCCCCCCC.7uG0VCzI2bS7j6ymqJi9CdcdxiRTWNy",
];

fn headers(value: &str) -> HeaderMap {
    [(AUTHORIZATION, HeaderValue::from_bytes(value.as_bytes()).unwrap())].into_iter().collect()
}

fn basic(user: &str, password: &str) -> HeaderMap {
    headers(&format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
}

fn users(text: &str) -> Users {
    let (users, problems) = Users::parse(text);
    assert!(problems.is_empty(), "{problems:?}");
    users
}

/// The user that a request is authenticated as.
fn admit(users: &Users, headers: &HeaderMap, verified: &VerifiedCredentials) -> Option<String> {
    match users.check(headers, verified) {
        Check::Allowed(user) => Some(user.to_string()),
        Check::Refused => None,
        Check::Costly(verification) => verification.run(verified).map(|user| user.to_string()),
    }
}

fn is_costly(users: &Users, headers: &HeaderMap, verified: &VerifiedCredentials) -> bool {
    matches!(users.check(headers, verified), Check::Costly(_))
}

#[test]
fn passwords_are_verified_by_all_kinds_of_hashes() {
    let long = "ü".repeat(40);
    let all = [("Hello world!", &OF_HELLO_WORLD[..]), (&long, &OF_LONG), ("", &OF_NOTHING)];
    for (password, hashes) in all {
        for hash in hashes {
            let verified = VerifiedCredentials::new([1; 32]);
            let users = users(&format!("ann:{hash}"));
            assert_eq!(
                admit(&users, &basic("ann", password), &verified),
                Some("ann".to_owned()),
                "{hash}"
            );
            for wrong in ["hello world!", "Hello world", "Hello world!\0", "\0"] {
                assert_eq!(admit(&users, &basic("ann", wrong), &verified), None, "{hash}");
            }
            assert_eq!(admit(&users, &basic("bob", password), &verified), None, "{hash}");
        }
    }
}

#[test]
fn lines_that_let_no_one_in_are_reported() {
    let text = "# comment\n\n\
        ann:{SHA}00hq6RNueFa8QiEjhep5cJRHWAI=:comment\r\n\
        no hash\n\
        ann:{PLAIN}second\n\
        des:rl.3StKT.4T8M\n\
        plain:password\n\
        crypt:$7$DU..../....2Q9obwLhin8qvQl6sisAO/$sc/Ho\n\
        cost:$2y$15$abcdefghijklmnopqrstuuCKbUef3jNRJlrU6Qmjn.YsMAu5Q70qK\n\
        most:$2y$99$abcdefghijklmnopqrstuuCKbUef3jNRJlrU6Qmjn.YsMAu5Q70qK\n\
        rounds:$6$rounds=1000001$anotherlongsalts$x\n\
        few:$6$rounds=1$salt$x\n\
        short:$2y$06$abcdefghijklmnopqrstuuCK\n\
        cut:$2y$06$é\n\
        salt:$apr1$abcdefghi$Unf1zc.jsgCbBQDCL104q.\n\
        digits:$apr1$abcdefgh$Unf1zc.jsgCbBQDCL104q!\n\
        sha:{SHA}c2hvcnQ=\n\
        base:{SSHA}%%%\n";
    let (users, problems) = Users::parse(text);
    assert_eq!(users.0.len(), 1);
    assert_eq!(
        admit(&users, &basic("ann", "Hello world!"), &VerifiedCredentials::new([0; 32])),
        Some("ann".to_owned())
    );
    assert_eq!(admit(&users, &basic("ann", "second"), &VerifiedCredentials::new([0; 32])), None);

    let problems: Vec<_> = problems
        .iter()
        .map(|problem| (problem.line, problem.user.as_deref(), &problem.reason))
        .collect();
    use UnusableHash::*;
    let expected = [
        (4, None, &NoHash),
        (5, Some("ann"), &Repeated),
        (6, Some("des"), &Unsupported),
        (7, Some("plain"), &Unsupported),
        (8, Some("crypt"), &Unsupported),
        (9, Some("cost"), &TooCostly),
        (10, Some("most"), &TooCostly),
        (11, Some("rounds"), &TooCostly),
        (12, Some("few"), &Damaged),
        (13, Some("short"), &Damaged),
        (14, Some("cut"), &Damaged),
        (15, Some("salt"), &Damaged),
        (16, Some("digits"), &Damaged),
        (17, Some("sha"), &Damaged),
        (18, Some("base"), &Damaged),
    ];
    assert_eq!(problems, expected);
}

#[test]
fn nothing_shows_hashes() {
    let (users, problems) = Users::parse("ann:{PLAIN}secret\nbob:secret");
    let shown = format!("{users:?} {problems:?} {}", problems[0]);
    assert!(!shown.contains("secret"), "{shown}");
    assert_eq!(
        problems[0].to_string(),
        "line 2 (user bob): unsupported kind of hash; use bcrypt (htpasswd -B)"
    );
}

#[test]
fn headers_that_are_not_credentials_are_refused() {
    // The first colon ends the user.
    let hash = STANDARD.encode(Sha1::digest("p:w"));
    let users = users(&format!("ann:{{SHA}}{hash}\nü:{{PLAIN}}p"));
    let verified = VerifiedCredentials::new([0; 32]);
    let encoded = STANDARD.encode("ann:p:w");
    for value in [format!("Basic {encoded}"), format!("bAsIc   {encoded} ")] {
        assert_eq!(admit(&users, &headers(&value), &verified), Some("ann".to_owned()), "{value}");
    }
    assert_eq!(admit(&users, &basic("ü", "p"), &verified), Some("ü".to_owned()));

    let bad = [
        String::new(),
        "Basic".into(),
        "Basic ".into(),
        format!("Bearer {encoded}"),
        format!("Basic{encoded}"),
        format!("Basic {}", encoded.trim_end_matches('=')),
        format!("Basic {encoded}\u{fc}"),
        format!("Basic {}", STANDARD.encode("ann")),
        format!("Basic {}", STANDARD.encode(b"\xff\xfe:p")),
        format!("Basic {}", STANDARD.encode(format!("ann:{}", "x".repeat(100_000)))),
    ];
    for value in bad {
        assert_eq!(admit(&users, &headers(&value), &verified), None, "{value:.40}");
    }
    let mut twice = basic("ann", "p:w");
    twice.append(AUTHORIZATION, basic("ann", "p:w")[AUTHORIZATION].clone());
    assert_eq!(admit(&users, &twice, &verified), None);
    assert_eq!(admit(&users, &HeaderMap::new(), &verified), None);
}

#[test]
fn the_longest_password_counts_whole() {
    let longest = "x".repeat(MOST_OCTETS);
    let text = format!("ann:{{PLAIN}}{longest}");
    assert!(
        admit(&users(&text), &basic("ann", &longest), &VerifiedCredentials::new([0; 32])).is_some()
    );
    let longer = format!("{longest}x");
    let text = format!("ann:{{PLAIN}}{longer}");
    assert!(
        admit(&users(&text), &basic("ann", &longer), &VerifiedCredentials::new([0; 32])).is_none()
    );
}

#[test]
fn verified_credentials_cost_nothing_until_the_hash_changes() {
    let (verified, password) = (VerifiedCredentials::new([1; 32]), basic("ann", "Hello world!"));
    let sha512 = users(&format!("ann:{}", OF_HELLO_WORLD[7]));
    assert!(is_costly(&sha512, &password, &verified));
    assert!(admit(&sha512, &password, &verified).is_some());
    assert!(!is_costly(&sha512, &password, &verified));
    // Neither another password nor another user.
    assert!(is_costly(&sha512, &basic("ann", "Hello world"), &verified));
    assert!(is_costly(
        &users(&format!("ann2:{}", OF_HELLO_WORLD[7])),
        &basic("ann2", "Hello world!"),
        &verified
    ));

    let other = users(&format!("ann:{}", OF_HELLO_WORLD[5]));
    assert!(is_costly(&other, &password, &verified));
    // Another process remembers other tags.
    assert!(is_costly(&sha512, &password, &VerifiedCredentials::new([2; 32])));
}

/// A client with an old password repeats it.
#[test]
fn a_wrong_password_costs_once_until_the_hash_changes() {
    let verified = VerifiedCredentials::new([1; 32]);
    let wrong = basic("ann", "hello world!");
    let md5 = users(&format!("ann:{}", OF_HELLO_WORLD[3]));
    assert!(is_costly(&md5, &wrong, &verified));
    assert!(admit(&md5, &wrong, &verified).is_none());
    assert!(matches!(md5.check(&wrong, &verified), Check::Refused));
    let other = users(&format!("ann:{}", OF_HELLO_WORLD[4]));
    assert!(is_costly(&other, &wrong, &verified));
}

#[test]
fn memory_is_fixed_and_wrong_passwords_take_no_place_of_right_ones() {
    let verified = VerifiedCredentials::new([1; 32]);
    let tag = |number: u32| Sha256::digest(number.to_be_bytes())[..16].try_into().unwrap();
    verified.remember(tag(0), true);
    for number in 1..100_000 {
        verified.remember(tag(number), false);
    }
    assert_eq!(verified.recall(tag(0)), Some(true));
    assert_eq!(
        (1..100_000).filter(|number| verified.recall(tag(*number)).is_some()).count(),
        8_192
    );
    for number in 100_000..200_000 {
        verified.remember(tag(number), true);
        assert_eq!(verified.recall(tag(number)), Some(true));
    }
    assert_eq!(
        (100_000..200_000).filter(|number| verified.recall(tag(*number)).is_some()).count(),
        8_192
    );
}
