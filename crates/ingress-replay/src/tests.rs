use serde_json::{Value, json};

use super::*;

fn ingress(name: &str, annotations: &Value, rules: &[(&str, &str, &str, &str)]) -> Object {
    let (namespace, name) = name.split_once('/').unwrap();
    let rules: Vec<Value> = rules
        .iter()
        .map(|(host, path_type, path, service)| {
            json!({"host": host, "http": {"paths": [{"path": path, "pathType": path_type,
                "backend": {"service": {"name": service, "port": {"number": 80}}}}]}})
        })
        .collect();
    let annotations: Value = annotations
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| (format!("nginx.ingress.kubernetes.io/{name}"), value.clone()))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let value = json!({
        "metadata": {"namespace": namespace, "name": name, "annotations": annotations},
        "spec": {"ingressClassName": "nginx", "rules": rules}
    });
    Object::Ingress(Box::new(serde_json::from_value(value).unwrap()))
}

fn site() -> Vec<Object> {
    vec![
        ingress(
            "shop/web",
            &json!({}),
            &[
                ("a.test", "Prefix", "/", "web"),
                ("a.test", "Prefix", "/api", "api"),
                ("a.test", "Exact", "/exact", "exact"),
                ("a.test", "ImplementationSpecific", "/slash/", "slash"),
                ("*.a.test", "Prefix", "/", "any"),
            ],
        ),
        ingress(
            "shop/regex",
            &json!({"use-regex": "true"}),
            &[("regex.test", "ImplementationSpecific", "/v[0-9]+", "versions")],
        ),
        ingress("shop/plain", &json!({}), &[("regex.test", "Prefix", "/plain", "plain")]),
        ingress("team/web", &json!({}), &[("a.test", "Prefix", "/team", "team")]),
        ingress(
            "shop/pcre",
            &json!({"use-regex": "true"}),
            &[("pcre.test", "ImplementationSpecific", "/(?!private)", "public")],
        ),
        ingress(
            "shop/canary",
            &json!({"canary": "true", "canary-weight": "10"}),
            &[("a.test", "Prefix", "/", "next")],
        ),
    ]
}

/// Lines as host, path and upstream, or as they are.
fn replay(lines: &[&str]) -> (Vec<Difference>, Summary) {
    let mut replay = Replay::new(site(), IngressRuleSettings::default(), None);
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let text = match words[..] {
            [host, path, upstream] => json!({
                "host": host, "request": format!("GET {path} HTTP/1.1"), "proxy_upstream_name": upstream
            })
            .to_string(),
            _ => (*line).to_owned(),
        };
        replay.line(Some(&text));
    }
    replay.finish()
}

#[test]
fn requests_of_ordinary_rules_take_the_same_way() {
    let (differences, summary) = replay(&[
        "a.test / shop-web-80",
        "A.test:8080 /x?y shop-web-80",
        "a.test /api shop-api-80",
        "a.test /api/v1 shop-api-80",
        "a.test //api//v1 shop-api-80",
        "a.test /apis shop-web-80",
        "a.test /api/../exact shop-exact-80",
        "a.test /exact/ shop-web-80",
        "b.a.test / shop-any-80",
        "c.b.a.test / upstream-default-backend",
        "other.test / upstream-default-backend",
        "a.test /../x -",
        "regex.test /v1/x shop-versions-80",
        "regex.test /plain/x shop-plain-80",
    ]);
    assert_eq!(differences, []);
    assert_eq!(summary, Summary { requests: 14, ..Summary::default() });
}

#[test]
fn other_ways_are_grouped_with_their_reasons() {
    let cases = [
        (
            "a.test /%2Fapi shop-api-80",
            "shop/web /api -> shop/api:80",
            "shop/web / -> shop/web:80",
            "ingress-nginx reads %2F as /",
        ),
        (
            "a.test /x%2F..%2Fapi shop-api-80",
            "shop/web /api -> shop/api:80",
            "400",
            "dot segment beside a percent-encoded separator",
        ),
        (
            "a.test /slash -",
            "301 to the path with a slash",
            "shop/web /slash/ -> shop/slash:80",
            "a prefix also matches itself without its slash",
        ),
        (
            "regex.test /PLAINER shop-plain-80",
            "shop/plain /plain -> shop/plain:80",
            "404",
            "with ingress-nginx, all paths of the host are expressions",
        ),
        (
            "a.test /team team-team-80",
            "team/web /team -> team/team:80",
            "shop/web / -> shop/web:80",
            "host a.test belongs to namespace shop, whose Ingress shop/web came first",
        ),
    ];
    for (line, nginx, millrace, reason) in cases {
        let (differences, summary) = replay(&[line, line]);
        let [difference] = &differences[..] else { panic!("{line}: {differences:?}") };
        let actual = (&*difference.nginx, &*difference.millrace, &*difference.reason);
        assert_eq!(actual, (nginx, millrace, reason), "{line}");
        assert_eq!((difference.requests, summary.different), (2, 2), "{line}");
        assert_eq!(summary.other_upstream, 0, "{line}");
    }
}

#[test]
fn a_host_that_is_not_in_the_log_follows_from_the_upstream() {
    let line = |path: &str, upstream: &str| {
        format!(r#"192.0.2.1 - - [t] "GET {path} HTTP/1.1" 200 1 "-" "-" 1 0.1 [{upstream}] []"#)
    };
    let lines = [
        line("/api/x", "shop-api-80"),
        line("/%2Fapi", "shop-api-80"),
        line("/plainer", "shop-plain-80"),
        line("/x", "shop-any-80"),
        line("/x", "upstream-default-backend"),
        line("/x", "gone-service-80"),
    ];
    let (differences, summary) = replay(&lines.each_ref().map(String::as_str));
    let hosts: Vec<&str> = differences.iter().map(|d| d.host.as_str()).collect();
    assert_eq!(hosts, ["a.test", "regex.test"]);
    assert_eq!((summary.requests, summary.different, summary.without_host), (6, 2, 2));
}

#[test]
fn a_log_of_other_ingresses_is_noticed() {
    let (_, summary) = replay(&["a.test /api shop-old-80", "pcre.test /x shop-public-80"]);
    assert_eq!((summary.other_upstream, summary.not_comparable), (1, 1));
    assert_eq!(summary.other_upstream_example, "GET a.test/api: [shop-old-80]");
}

#[test]
fn hostile_lines_are_counted_and_shown_harmlessly() {
    let mut replay = Replay::new(site(), IngressRuleSettings::default(), Some("a.test".to_owned()));
    replay.line(None);
    replay.line(Some("{\"host\": {}}"));
    let long = "x".repeat(10_000);
    replay.line(Some(&format!(r#"- - - [t] "GET /%2Fapi/\x1b[2J{long} HTTP/1.1" 200 0"#)));
    let (differences, summary) = replay.finish();
    assert_eq!((summary.unreadable, summary.requests, summary.different), (2, 1, 1));
    assert!(differences[0].example.len() < 300);
    assert!(!differences[0].example.contains('\u{1b}'));
}
