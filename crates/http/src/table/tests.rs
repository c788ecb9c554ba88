use std::fmt::Write;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::path::{self, normalize_path};
use crate::policy::RoutePolicy;
use crate::route::{Action, RouteOwner};

pub fn route(name: impl ToString) -> Arc<Route> {
    Arc::new(Route {
        owner: RouteOwner { namespace: "test".into(), name: name.to_string().into() },
        action: Action::Respond { status: http::StatusCode::OK, reason: "test".into() },
        canaries: Vec::new(),
        policy: Arc::new(RoutePolicy::default()),
    })
}

/// `= /a` is exact, `~ /a` an expression, `default`, and all else a prefix: as patterns are displayed.
pub fn pattern(text: &str) -> PathPattern {
    match text.split_once(' ') {
        Some(("=", path)) => PathPattern::Exact(path.into()),
        Some(("~", expression)) => PathPattern::regex(expression).expect("a valid expression"),
        _ if text == "default" => PathPattern::Default,
        _ => PathPattern::Prefix(text.into()),
    }
}

type Rules<'a> = &'a [(&'a str, &'a [&'a str])];

/// Of hosts with their patterns. Routes are named after the position of their rule.
fn table(hosts: Rules) -> IngressTable {
    table_with_slashes(Slashes::Merged, hosts)
}

fn table_with_slashes(slashes: Slashes, hosts: Rules) -> IngressTable {
    let mut table = IngressTable::new(slashes);
    for (host, patterns) in hosts {
        let host = HostPattern::parse(host).expect("a valid host");
        let rules =
            patterns.iter().enumerate().map(|(at, text)| (pattern(text), route(at))).collect();
        table.set_host(host, rules);
    }
    table
}

fn find(table: &IngressTable, host: &str, path: &str) -> String {
    match table.find((!host.is_empty()).then_some(host), path) {
        Some(found) => format!("{} {}", found.host, found.path),
        None => "none".to_string(),
    }
}

#[test]
fn the_most_specific_host_owns_the_request() {
    let table = table(&[
        ("a.example.test", &["/one"]),
        ("*.example.test", &["/"]),
        ("*.test", &["/"]),
        ("", &["/"]),
    ]);
    let cases = [
        ("a.example.test", "/one", "a.example.test /one"),
        ("a.example.test", "/two", "none"),
        ("b.example.test", "/one", "*.example.test /"),
        ("example.test", "/one", "*.test /"),
        ("b.a.example.test", "/one", "* /"),
        ("test", "/", "* /"),
        ("[::1]", "/", "* /"),
        ("", "/", "* /"),
    ];
    for (host, path, expected) in cases {
        assert_eq!(find(&table, host, path), expected, "{host:?} {path}");
    }
}

#[test]
fn the_longest_path_wins_and_exact_before_prefix() {
    let table = table(&[(
        "a",
        &["/", "/a/", "/a/b", "= /a/b", "/ab", "= /", "/a/b/c", "= /a/x/", "/aa/bb"],
    )]);
    let cases = [
        ("/", "= /"),
        ("/x", "/"),
        ("/a", "/a/"),
        ("/a/", "/a/"),
        ("/a/b", "= /a/b"),
        ("/a/b/", "/a/b"),
        ("/a/b/d", "/a/b"),
        ("/a/b/c", "/a/b/c"),
        ("/a/b/cc", "/a/b"),
        ("/a/b-c", "/a/"),
        ("/ab", "/ab"),
        ("/ab/c", "/ab"),
        ("/abc", "/"),
        ("/a!", "/"),
        ("/a/x/", "= /a/x/"),
        ("/a/x", "/a/"),
        ("//a", "/a/"),
        ("/A", "/"),
        ("/aa", "/"),
        ("/aa/bb/", "/aa/bb"),
    ];
    for (path, expected) in cases {
        assert_eq!(find(&table, "a", path), format!("a {expected}"), "{path}");
    }
}

/// A rule that restricts a path must get all forms of it that endpoints read alike.
#[test]
fn no_other_form_of_a_path_escapes_its_rule() {
    let table = table(&[(
        "a",
        &["/", "/admin", "= /one", "~ /@internal(/|$)(.*)", "~ /v1/.*:delete", r"~ /a\(b\)"],
    )]);
    let cases = [
        ("//admin", "/admin"),
        ("/admin//x", "/admin"),
        ("///admin/", "/admin"),
        ("//one", "= /one"),
        ("/%40internal/x", "~ /@internal(/|$)(.*)"),
        ("//@internal", "~ /@internal(/|$)(.*)"),
        ("/v1/x%3Adelete", "~ /v1/.*:delete"),
        ("/v1//x:delete", "~ /v1/.*:delete"),
        ("/a%28b%29", r"~ /a\(b\)"),
        ("//", "/"),
    ];
    for (raw, expected) in cases {
        let path = normalize_path(raw).unwrap();
        assert_eq!(find(&table, "a", &path), format!("a {expected}"), "{raw}");
    }
}

/// Endpoints that tell `//a` and `/a` apart can have rules for both. Encodings are no slashes either way.
#[test]
fn slashes_count_as_they_were_sent_if_the_table_says_so() {
    let rules: Rules =
        &[("a", &["/", "/admin", "//admin", "= /one/", "= /one//", "~ /x(/|$)(.*)"])];
    let cases = [
        ("/admin", "/admin", "/admin"),
        ("//admin/x", "//admin", "/admin"),
        ("///admin", "/", "/admin"),
        ("/one//", "= /one//", "= /one/"),
        ("//one/", "/", "= /one/"),
        ("/x//y", "~ /x(/|$)(.*)", "~ /x(/|$)(.*)"),
        ("//x", "/", "~ /x(/|$)(.*)"),
        ("//%61dmin/../admin", "//admin", "/admin"),
        ("/%2Fadmin", "/", "/"),
        ("/.//admin/.", "//admin", "/admin"),
    ];
    let as_sent = table_with_slashes(Slashes::AsSent, rules);
    let merged = table_with_slashes(Slashes::Merged, rules);
    for (raw, if_as_sent, if_merged) in cases {
        let path = normalize_path(raw).unwrap();
        assert_eq!(find(&as_sent, "a", &path), format!("a {if_as_sent}"), "{raw}");
        assert_eq!(find(&merged, "a", &path), format!("a {if_merged}"), "{raw}");
    }
}

#[test]
fn expressions_are_ordered_by_length_among_prefixes() {
    let table = table(&[(
        "a",
        &["/", "/api/version", "~ /api/(.*)", "~ /api/v[0-9]+/(.*)", "= /api/v1/exact", "default"],
    )]);
    let cases = [
        ("/api/v1/exact", "= /api/v1/exact"),
        ("/api/v1/x", "~ /api/v[0-9]+/(.*)"),
        ("/api/version", "/api/version"),
        ("/api/v", "~ /api/(.*)"),
        ("/API/v", "~ /api/(.*)"),
        ("/other", "/"),
    ];
    for (path, expected) in cases {
        assert_eq!(find(&table, "a", path), format!("a {expected}"), "{path}");
    }
}

#[test]
fn equal_patterns_shadow_each_other_by_order() {
    let mut table = IngressTable::default();
    let rules = ["/a", "/a/", "= /%61", "= /a", "/b%00", "~ /x", "~ /x", "default", "default"];
    let rules = rules.iter().enumerate().map(|(at, text)| (pattern(text), route(at))).collect();
    let shadowed = table.set_host(HostPattern::Any, rules);
    let described: Vec<String> = shadowed
        .iter()
        .map(|shadowed| match &shadowed.why {
            WhyShadowed::By(route) => {
                format!("{} by {}", shadowed.route.owner.name, route.owner.name)
            }
            why => format!("{} {why:?}", shadowed.route.owner.name),
        })
        .collect();
    assert_eq!(
        described,
        ["1 by 0", "3 by 2", "4 InvalidPath(ControlCharacter)", "6 by 5", "8 by 7"]
    );
}

#[test]
fn expressions_of_a_host_are_limited() {
    let mut table = IngressTable::default();
    let rules = (0..MOST_EXPRESSIONS + 2).map(|at| (pattern(&format!("~ /{at}")), route(at)));
    let shadowed = table.set_host(HostPattern::Any, rules.collect());
    assert_eq!(shadowed.len(), 2);
    assert!(
        shadowed.iter().all(|shadowed| matches!(shadowed.why, WhyShadowed::TooManyExpressions))
    );
}

#[test]
fn an_encoded_character_does_not_escape_a_rule() {
    let table = table(&[("a", &["/", "/@admin", "/a,b"])]);
    for path in ["/@admin", "/%40admin/x", "/%40%61dmin"] {
        assert_eq!(find(&table, "a", &normalize_path(path).unwrap()), "a /@admin", "{path}");
    }
    assert_eq!(find(&table, "a", "/a%2Cb"), "a /a,b");
    assert_eq!(find(&table, "a", "/a%2Fb"), "a /");
}

#[test]
fn a_copy_does_not_change_with_the_table() {
    let mut table =
        table(&[("a.test", &["/"]), ("b.test", &["/"]), ("*.test", &["/"]), ("", &["/"])]);
    let copy = table.clone();
    for host in ["a.test", "*.test", ""] {
        table.set_host(HostPattern::parse(host).unwrap(), Vec::new());
    }
    for (host, before, after) in [
        ("a.test", "a.test /", "none"),
        ("b.test", "b.test /", "b.test /"),
        ("c.test", "*.test /", "none"),
        ("", "* /", "none"),
    ] {
        assert_eq!(find(&copy, host, "/"), before);
        assert_eq!(find(&table, host, "/"), after);
    }
    assert_eq!((copy.iter().count(), table.iter().count()), (4, 1));
}

#[test]
fn an_explanation_names_the_rules_that_lost() {
    let table = table(&[
        ("a.test", &["/", "/a", "/a/", "~ /a/.*", "= /a/b", "/b", "default"]),
        ("*.test", &["/a", "= /b"]),
        ("", &["default"]),
    ]);
    let explanation = table.explain(Some("a.test"), "/a/b");
    let mut text = String::new();
    for Lost { rule, reason } in &explanation.lost {
        let reason = match reason {
            MatchReason::Shadowed(WhyShadowed::By(route)) => {
                format!("shadowed by {}", route.owner.name)
            }
            reason => format!("{reason:?}"),
        };
        writeln!(text, "{} {}: {reason}", rule.host, rule.path).unwrap();
    }
    assert_eq!(explanation.owner.map(ToString::to_string), Some("a.test".into()));
    assert_eq!(explanation.matched.unwrap().path.to_string(), "= /a/b");
    assert_eq!(
        text,
        "a.test ~ /a/.*: Path\na.test /a: Path\na.test /: Path\na.test default: Path\na.test /a/: shadowed by 1\n\
         *.test /a: Host\n* default: Host\n"
    );
}

#[test]
fn an_explanation_names_the_owner_of_a_request_without_route() {
    let table = table(&[("a.org", &["/a"]), ("", &["/"])]);
    let explanation = table.explain(Some("a.org"), "/b");
    assert!(explanation.matched.is_none());
    assert_eq!(explanation.owner.map(ToString::to_string), Some("a.org".into()));
    assert_eq!(explanation.lost.len(), 1);
}

type HostRule = (HostPattern, Vec<(PathPattern, Arc<Route>)>);

/// Finds by trying all rules, straight from the definition.
fn naive<'a>(
    hosts: &'a [HostRule],
    host: Option<&str>,
    path: &str,
    slashes: Slashes,
) -> Option<(&'a HostPattern, &'a str)> {
    let comparable = |path: &str| path::comparable_path(path, slashes).into_owned();
    let specificity = |host: &HostPattern| match host {
        HostPattern::Exact(_) => 2,
        HostPattern::Wildcard(_) => 1,
        HostPattern::Any => 0,
    };
    let matches_host = |pattern: &HostPattern| match (pattern, host) {
        (HostPattern::Any, _) => true,
        (HostPattern::Exact(name), Some(host)) => **name == *host,
        (HostPattern::Wildcard(suffix), Some(host)) => host
            .strip_suffix(&**suffix)
            .and_then(|label| label.strip_suffix('.'))
            .is_some_and(|label| !label.is_empty() && !label.contains('.')),
        _ => false,
    };
    // The last rules that were set for a host are its rules; none remove it.
    let last = |at: usize| !hosts[at + 1..].iter().any(|(other, _)| *other == hosts[at].0);
    let owner = (0..hosts.len())
        .filter(|&at| last(at) && !hosts[at].1.is_empty() && matches_host(&hosts[at].0))
        .max_by_key(|&at| specificity(&hosts[at].0))?;
    let (host, rules) = &hosts[owner];
    let elements = |path: &str| -> Vec<String> {
        let path = comparable(path);
        let path = path.strip_suffix('/').unwrap_or(&path);
        path.split('/').map(String::from).collect()
    };
    let path_elements: Vec<String> = comparable(path).split('/').map(String::from).collect();
    let rank = |pattern: &PathPattern| match pattern {
        PathPattern::Exact(text) => (comparable(&normalize_path(text).ok()?) == comparable(path))
            .then_some((3, usize::MAX, 0)),
        PathPattern::Prefix(text) => {
            let text = normalize_path(text).ok()?;
            path_elements.starts_with(&elements(&text)).then_some((2, comparable(&text).len(), 1))
        }
        PathPattern::Regex(regex) => {
            regex.matches(&comparable(path)).then_some((2, regex.text().len(), 0))
        }
        PathPattern::Default => Some((1, 0, 0)),
    };
    // Of equal prefixes the first is served: `/a/` is the same as `/a`.
    let prefix = |at: usize| match &rules[at].0 {
        PathPattern::Prefix(text) => normalize_path(text).ok().map(|text| elements(&text)),
        _ => None,
    };
    let is_first = |at: usize| {
        prefix(at).is_none_or(|own| !(0..at).any(|at| prefix(at).as_ref() == Some(&own)))
    };
    let mut best: Option<((i32, usize, i32), &str)> = None;
    for (at, (pattern, route)) in rules.iter().enumerate() {
        if let Some(rank) = rank(pattern)
            && is_first(at)
            && best.is_none_or(|(before, _)| rank > before)
        {
            best = Some((rank, &route.owner.name));
        }
    }
    best.map(|(_, name)| (host, name))
}

fn any_host() -> impl Strategy<Value = String> {
    let labels = vec!["a", "b", "example", "org", "xn--e1afmkfd", "a-b", "_a"];
    proptest::collection::vec(select(labels), 1..4).prop_map(|labels| labels.join("."))
}

fn any_path() -> impl Strategy<Value = String> {
    let pieces = vec![
        "/", "/", "/", "a", "b", "aa", "-", "!", "%2F", "%2f", "%2e", ".", "..", ";x=1", "@",
        "%40", "~", "%7E", "é", "%C3%A9", "A", "0", "%25", ",", "%2c", ":",
    ];
    proptest::collection::vec(select(pieces), 0..9)
        .prop_map(|pieces| format!("/{}", pieces.concat()))
}

fn any_pattern() -> impl Strategy<Value = PathPattern> {
    let expressions =
        ["/a", "/.*", "/a(/|$)(.*)", "/[ab]+", "/(a|b)/b", "/aa$", "/", "/%2F", "/a/.*/b"];
    // Compiled once: that takes longer than all else.
    let expressions: Vec<PathPattern> =
        expressions.map(|text| pattern(&format!("~ {text}"))).into();
    prop_oneof![
        4 => any_path().prop_map(|path| PathPattern::Prefix(path.into())),
        3 => any_path().prop_map(|path| PathPattern::Exact(path.into())),
        2 => select(expressions),
        1 => Just(PathPattern::Default),
    ]
}

fn any_host_pattern() -> impl Strategy<Value = HostPattern> {
    prop_oneof![
        3 => any_host().prop_map(|host| HostPattern::Exact(host.into())),
        2 => any_host().prop_map(|host| HostPattern::Wildcard(host.into())),
        1 => Just(HostPattern::Any),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn a_random_table_agrees_with_a_naive_matcher(
        hosts in proptest::collection::vec(
            (any_host_pattern(), proptest::collection::vec(any_pattern(), 0..12)), 0..10
        ),
        requests in proptest::collection::vec((proptest::option::weighted(0.9, any_host()), any_path()), 1..40),
        slashes in select(vec![Slashes::Merged, Slashes::AsSent]),
    ) {
        let mut number = 0;
        let mut name = || { number += 1; route(number) };
        let hosts: Vec<HostRule> = hosts.into_iter().map(|(host, patterns)| {
            (host, patterns.into_iter().map(|pattern| (pattern, name())).collect())
        }).collect();
        let mut table = IngressTable::new(slashes);
        for (host, rules) in &hosts {
            table.set_host(host.clone(), rules.clone());
        }
        for (host, raw) in &requests {
            let Ok(path) = normalize_path(raw) else { continue };
            let host = host.as_deref();
            let found = table.find(host, &path).map(|found| (found.host, &*found.route.owner.name));
            prop_assert_eq!(found, naive(&hosts, host, &path, slashes), "{:?} {}", host, path);

            let explanation = table.explain(host, &path);
            let explained = explanation.matched.map(|found| (found.host, &*found.route.owner.name));
            prop_assert_eq!(explained, found);
            for Lost { rule, .. } in &explanation.lost {
                prop_assert!(rule.host.matches(host) && rule.path.matches(&path, slashes));
                prop_assert_ne!(Some((rule.host, &*rule.route.owner.name)), found);
            }
        }
    }
}
