//! Snippets: nginx's configuration, written by tenants. They are never executed (CVE-2021-25742, CVE-2025-1974). One
//! that restricts access closes the rules.

use super::{Annotation, Effect};

const fn snippet(nginx: &'static [&'static str]) -> Annotation {
    let effect = Effect::Snippet;
    Annotation { name: "", nginx, value: "", doc: "", effect, differs: "", restricts: true }
}

pub const TABLE: &[Annotation] = &[
    snippet(&["configuration-snippet"]),
    snippet(&["server-snippet"]),
    snippet(&["auth-snippet"]),
    snippet(&["stream-snippet"]),
    snippet(&["modsecurity-snippet"]),
];

/// Directives of nginx that deny access to some clients.
const RESTRICTING: [&str; 12] = [
    "deny",
    "auth_basic",
    "auth_request",
    "auth_jwt",
    "satisfy",
    "limit_except",
    "secure_link",
    "secure_link_md5",
    "ssl_verify_client",
    "ssl_client_certificate",
    "valid_referers",
    "internal",
];

/// The first directive of a snippet that restricts access.
pub(crate) fn restricting_directive(snippet: &str) -> Option<&str> {
    let lines = snippet.lines().map(|line| line.split('#').next().unwrap_or_default());
    let statements = lines.flat_map(|line| line.split([';', '{', '}'])).map(str::trim);
    statements.filter(|statement| !statement.is_empty()).find_map(|statement| {
        let mut words = statement.split_ascii_whitespace();
        let directive = words.next()?;
        let mut code = || words.next().and_then(|code| code.parse::<u16>().ok());
        let restricts = RESTRICTING.contains(&directive)
            || directive.starts_with("access_by_lua")
            || (directive == "return" && code().is_some_and(|code| code >= 400));
        restricts.then_some(directive)
    })
}

pub fn refuse_snippet(restricting: Option<&str>) -> String {
    let never = "snippets are never executed";
    match restricting {
        Some(directive) => format!(
            "{never}, and this one restricts access ({directive}): the rules answer 503 until it is replaced by an \
             annotation or removed"
        ),
        None => format!("{never}; see docs/migrate-from-ingress-nginx.md for replacements"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        ] {
            assert_eq!(restricting_directive(snippet), found, "{snippet}");
        }
    }
}
