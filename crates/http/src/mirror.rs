//! Copies of requests for another server, whose responses are discarded.

use std::sync::Arc;

use http::HeaderValue;
use http::uri::PathAndQuery;

use crate::respond::{Facts, fill_template};
use crate::upstream::UpstreamName;

/// Has the marks of copies, so that the proxy makes no copy of one if its server leads back here.
pub const COPY_HEADER: &str = "x-mirrored-by";

/// Where copies of a route's requests go.
#[derive(Clone, Debug)]
pub struct Mirror {
    pub upstream: UpstreamName,
    pub host: HeaderValue,
    /// Path and query, with nginx's `$request_uri`, `$uri`, `$args` and `$is_args`.
    pub uri: Arc<str>,
    pub with_body: bool,
}

impl Mirror {
    /// Path and query of the copy. Without variables, the query of the request is appended. `None`: they are none of a
    /// URI.
    pub fn fill_uri(&self, facts: &Facts) -> Option<PathAndQuery> {
        let mut text = fill_template(&self.uri, facts);
        if !self.uri.contains('$')
            && let Some(query) = facts.query
        {
            text.push(if text.contains('?') { '&' } else { '?' });
            text.push_str(query);
        }
        PathAndQuery::try_from(text).ok().filter(|uri| uri.as_str().starts_with('/'))
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};

    use super::*;
    use crate::upstream::UpstreamProtocol;

    #[test]
    fn the_copy_has_the_configured_path() {
        let upstream = UpstreamName {
            namespace: "default".into(),
            service: "mirror".into(),
            port: "80".into(),
            protocol: UpstreamProtocol::Http1,
            tls: None,
        };
        let cases = [
            ("$request_uri", Some("b=c"), Some("/a?b=c")),
            ("$request_uri", None, Some("/a")),
            ("/copy$request_uri", Some("b=c"), Some("/copy/a?b=c")),
            ("/copy$uri", Some("b=c"), Some("/copy/a")),
            ("$uri$is_args$args", Some("b=c"), Some("/a?b=c")),
            ("$uri$is_args$args", None, Some("/a")),
            ("/copy", Some("b=c"), Some("/copy?b=c")),
            ("/copy?x", Some("b=c"), Some("/copy?x&b=c")),
            ("/copy", None, Some("/copy")),
            ("$args", Some("b=c"), None),
            ("/a b", None, None),
        ];
        for (uri, query, expected) in cases {
            let mirror = Mirror {
                upstream: upstream.clone(),
                host: HeaderValue::from_static("mirror"),
                uri: uri.into(),
                with_body: true,
            };
            let facts = Facts {
                client: [192, 0, 2, 1].into(),
                is_tls: false,
                host_uses_tls: false,
                tls_port: 443,
                method: &Method::GET,
                authority: None,
                path: "/a",
                query,
                headers: &HeaderMap::new(),
            };
            let filled = mirror.fill_uri(&facts);
            assert_eq!(filled.as_ref().map(PathAndQuery::as_str), expected, "{uri} {query:?}");
        }
    }
}
