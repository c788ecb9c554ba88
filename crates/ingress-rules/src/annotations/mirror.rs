//! Copies of requests for another server.

use super::draft::MirrorTarget;
use super::values::{Parsed, header_value, parse_word};
use super::{Annotation, Draft};

pub const TABLE: &[Annotation] = &[
    Annotation::set(
        "mirror-target",
        &["mirror-target"],
        "URL",
        |draft, text| { draft.mirror.target = Some(parse_mirror_target(text)?); Ok(()) },
        "Gets a copy of requests, within [limits](design/http-proxy.md#limits); its responses are discarded. \
         `$request_uri`, `$uri`, `$args` and `$is_args` stand for parts of the request",
    )
    .differs("servers as for `auth-url`; gets endpoints' headers, but for those of `auth-url` and snippets; without a path, the request's; no WebSockets"),
    Annotation::set(
        "mirror-request-body",
        &["mirror-request-body"],
        "`on`, `off`",
        request_body,
        "Whether copies have bodies; `on` without it",
    ),
    Annotation::set(
        "mirror-host",
        &["mirror-host"],
        "host",
        |draft, text| {
            lb_http::host::normalize_host(text.trim()).map_err(|why| why.to_string())?;
            draft.mirror.host = Some(header_value(text)?);
            Ok(())
        },
        "`Host` of copies",
    )
    .differs("only for Services of the Ingress's namespace"),
];

/// The variables that the path of copies may have.
const VARIABLES: [&str; 4] = ["request_uri", "uri", "args", "is_args"];
/// Each copy has it.
const MOST_OCTETS: usize = 1 << 10;

fn request_body(draft: &mut Draft, text: &str) -> Result<(), String> {
    let words = [("on", false), ("off", true), ("true", false), ("false", true)];
    draft.mirror.without_body = parse_word(text, &words)?;
    Ok(())
}

fn parse_mirror_target(text: &str) -> Parsed<MirrorTarget> {
    let text = text.trim();
    header_value(text)?;
    if text.len() > MOST_OCTETS {
        return Err(format!("is longer than {MOST_OCTETS} octets"));
    }
    let (_, rest) = text.split_once("://").ok_or("is not a URL of http or https")?;
    let authority = &rest[..rest.find(['/', '$', '?', '#']).unwrap_or(rest.len())];
    let (server, uri) = text.split_at(text.len() - rest.len() + authority.len());
    let is_path = uri.is_empty()
        || uri.starts_with('/')
        || ["$request_uri", "$uri"].iter().any(|variable| uri.starts_with(variable));
    if !is_path || uri.contains('#') {
        return Err("has no path after its host".to_owned());
    }
    for after in uri.split('$').skip(1) {
        let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        if !VARIABLES.contains(&&after[..end.unwrap_or(after.len())]) {
            return Err(format!("has a variable other than ${}", VARIABLES.join(", $")));
        }
    }
    let uri = if uri.is_empty() { "$request_uri" } else { uri };
    Ok(MirrorTarget { server: server.into(), uri: uri.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_a_server_and_a_path() {
        for (text, server, uri) in [
            ("https://test.env.com$request_uri", "https://test.env.com", "$request_uri"),
            ("http://web:81/copy$uri$is_args$args", "http://web:81", "/copy$uri$is_args$args"),
            ("http://web", "http://web", "$request_uri"),
            ("http://web/", "http://web", "/"),
            ("http://[2001:db8::1]:80/a", "http://[2001:db8::1]:80", "/a"),
        ] {
            let wanted = MirrorTarget { server: server.into(), uri: uri.into() };
            assert_eq!(parse_mirror_target(text), Ok(wanted), "{text}");
        }
        for wrong in [
            "",
            "web",
            "/copy",
            "https://$host$request_uri",
            "http://web$http_x",
            "http://web/$host",
            "http://web$args",
            "http://web?a",
            "http://web/#a",
            "http://web/\r\nX: a",
            "http://web/\u{e9}",
            &format!("http://web/{}", "a".repeat(1100)),
        ] {
            assert!(parse_mirror_target(wrong).is_err(), "{wrong}");
        }
    }
}
