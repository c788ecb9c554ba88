use std::collections::BTreeMap;

use lb_http::snippet::{HeaderTemplate, ReturnedResponse, SnippetRules};
use proptest::prelude::*;

use super::super::{NGINX, read_annotations};
use crate::snippets::{SnippetReading, restricting_directive};

#[test]
fn restrictions_are_recognized() {
    for (snippet, found) in [
        ("more_set_headers \"X-A: deny\";", None),
        ("# deny all;\nproxy_set_header A b;", None),
        ("location /admin { deny all; }", Some("deny")),
        ("if ($http_x = \"\") { return 403; }", Some("return")),
        ("return 301 https://example.org;", None),
        ("allow 10.0.0.0/8;\ndeny all;", Some("deny")),
        ("auth_request /verify;", Some("auth_request")),
        ("access_by_lua_block { x }", Some("access_by_lua_block")),
        ("satisfy any;", Some("satisfy")),
        // The comment would end the line.
        ("more_set_headers \"X-A: #\"; deny all;", Some("deny")),
        ("more_set_headers \"X-A: b; deny all;", Some("deny")),
    ] {
        assert_eq!(restricting_directive(snippet).as_deref(), found, "{snippet}");
    }
}

/// The rules of both snippets, and whether they close the rules of the Ingress.
fn read(server: &str, location: &str) -> (SnippetRules, bool) {
    let key = |name: &str| format!("{NGINX}{name}");
    let annotations = BTreeMap::from([
        (key("server-snippet"), server.to_owned()),
        (key("configuration-snippet"), location.to_owned()),
    ]);
    let (draft, _) = read_annotations(&annotations, SnippetReading::Allowed);
    let rules = draft.snippet().map_or_else(SnippetRules::default, |rules| (*rules).clone());
    (rules, draft.closed.is_some())
}

#[test]
fn what_is_not_understood_closes_unless_it_is_harmless() {
    for (snippet, closes) in [
        ("gzip on; proxy_read_timeout 1h; sub_filter a b;", false),
        ("more_set_headers -s 404 \"X-A: b\";", false),
        ("more_set_headers \"X-A: $upstream_addr\";", false),
        ("add_header X-A b sometimes;", false),
        ("more_clear_headers X-*;", false),
        ("types { text/plain txt; }", false),
        ("if ($a) { add_header B c; gzip off; }", false),
        // Also a variable of the template.
        ("set $proxy_upstream_name a;", true),
        ("if ($a) { set $b c; }", true),
        ("if ($a) { return 302 /login; }", true),
        ("if ($a) { rewrite ^ /login; }", true),
        ("if ($a) { deny all; }", true),
        ("allow unix:;", true),
        ("deny 10.0.0.0/33;", true),
        ("deny;", true),
        ("deny 10.0.0.0/8,10.1.0.0/16;", true),
        ("satisfy some;", true),
        ("satisfy any; satisfy all;", true),
        ("limit_req zone=a;", true),
        ("limit_except GET { deny all; }", true),
        ("auth_basic off;", true),
        ("modsecurity on;", true),
        ("rewrite ^/a /b;", true),
        ("proxy_pass http://169.254.169.254;", true),
        ("root /;", true),
        ("location /a { deny all; }", true),
        ("proxy_set_header X-Forwarded-For 1;", true),
        ("proxy_set_header X-User $http_x_other;", true),
        ("proxy_set_header Content-Length 5;", true),
        ("proxy_set_header Host evil.example.org;", true),
        ("proxy_set_header Host $host;", false),
        ("proxy_set_header Connection \"upgrade\";", false),
        ("proxy_set_header Connection \"\";", false),
        ("return 444;", true),
        ("return 301;", true),
        ("return 301 https://$server_name/;", true),
        ("return 302 /$request_uri;", true),
        ("return 200 $http_cookie;", true),
        ("return;", true),
        ("return https://example.org;", false),
        ("return 200;", false),
    ] {
        assert_eq!(read("", snippet).1, closes, "{snippet}");
    }
    for (snippet, closes) in [
        ("location /a { deny all; }", false),
        ("location = /a { access_log off; deny all; }", false),
        ("location /a { return 404; }", true),
        ("location /a { deny all; return 404; }", true),
        ("location /a { deny all; deny all; }", true),
        ("location /a { deny 10.0.0.0/8; }", true),
        ("location /a { }", true),
        ("deny 10.0.0.0/8;", true),
        ("allow all;", true),
        ("satisfy any;", true),
        ("return 404;", true),
        ("location /a { deny all; proxy_pass http://b; }", true),
        ("location /a { gzip on; }", true),
        ("location /a { allow all; }", true),
        ("location /a/../b { deny all; }", true),
        ("location a { deny all; }", true),
        ("location @a { deny all; }", true),
        ("location ~ /a { deny all; }", true),
        ("location /a { location /a/b { deny all; } }", true),
        ("proxy_set_header X-User $http_x;", false),
    ] {
        assert_eq!(read(snippet, "").1, closes, "{snippet}");
    }
}

#[test]
fn levels_are_inherited_as_in_nginx() {
    let (rules, _) = read(
        "add_header A 1; more_set_headers \"B: 1\"; proxy_hide_header C; default_type a/b;",
        "more_set_headers \"B: 2\"; return 200 ok;",
    );
    assert_eq!((rules.added_headers.len(), rules.hidden_headers.len()), (1, 1));
    assert_eq!(rules.response_headers.len(), 2);
    let Some(ReturnedResponse::Text { media_type, .. }) = rules.returned else { panic!("no text") };
    assert_eq!(media_type, "a/b");

    let (rules, _) =
        read("add_header A 1; proxy_hide_header C;", "add_header D 2; proxy_hide_header E;");
    assert_eq!(rules.added_headers[0].value, HeaderTemplate::text("2"));
    assert_eq!(rules.hidden_headers, ["e"]);
}

#[test]
fn one_directive_has_no_more_headers_than_all_may_have() {
    let set = |count: usize| format!("more_set_headers {};", "\"A: b\" ".repeat(count));
    for (snippet, headers) in [(set(64), 64), (set(65), 0), (format!("{}{}", set(60), set(5)), 60)]
    {
        assert_eq!(read("", &snippet).0.response_headers.len(), headers);
    }
}

#[test]
fn a_directive_that_swallows_a_restriction_closes_the_rules() {
    for before in
        ["\"gzip on;\"", "'gzip{'", "gzip on", "more_clear_headers X", "add_header A b", "types"]
    {
        for restriction in ["deny all;", "return 403;", "auth_basic a;", "internal;"] {
            // A folded text of YAML has one line.
            for blank in ["\n", " "] {
                let snippet = format!("{before}{blank}{restriction}");
                assert!(read("", &snippet).1, "{snippet}");
                assert!(restricting_directive(&snippet).is_some(), "{snippet}");
            }
        }
    }
    let snippet = "'gzip on;\ndeny all;\n#' a;";
    assert!(read("", snippet).1 && restricting_directive(snippet).is_some());
    let snippet = "if ($a) { gzip on deny all; }";
    assert!(read("", snippet).1 && restricting_directive(snippet).is_some());
}

#[test]
fn a_value_may_be_called_like_a_restriction() {
    let snippet = "more_set_headers\n  'A: deny'\n  'B: return'; add_header C internal; proxy_set_header D deny;";
    let (rules, closes) = read("", snippet);
    assert!(!closes && restricting_directive(snippet).is_none());
    assert_eq!((rules.response_headers.len(), rules.added_headers.len()), (2, 1));
    assert_eq!(rules.request_headers.len(), 1);
}

/// Directives that restrict nothing, and what could end a text early or late.
fn pieces() -> impl Strategy<Value = String> {
    const PIECES: [&str; 16] = [
        "gzip on;",
        "gzip \"b;\";",
        "more_set_headers 'A: #';",
        "add_header A ${scheme};",
        "# b; '",
        "\n",
        " ",
        "\"",
        "'",
        "#",
        ";",
        "{",
        "}",
        "\\",
        "$",
        "if ($a) { gzip on; }",
    ];
    prop::collection::vec(prop::sample::select(&PIECES[..]), 0..6).prop_map(|all| all.concat())
}

proptest! {
    /// Whatever stands around it, a directive that denies is honoured, or the rules are closed.
    #[test]
    fn a_tenant_can_hide_no_denial(before in pieces(), after in pieces()) {
        let (rules, closes) = read("", &format!("{before}\ndeny all;\n{after}"));
        let denies = rules.sources.iter().any(|rule| !rule.is_allowed);
        prop_assert!(closes || denies);
    }

    #[test]
    fn any_snippet_is_read_or_refused(text in r#"([a-z_/]{1,8}|return|deny|location|[ "'#;{}\\$=~^\n:0-9])*"#) {
        read(&text, &text);
        restricting_directive(&text);
    }
}
