//! Redirects of clients.

use super::values::{
    header_value, parse_boolean, parse_number, parse_path, parse_status, parse_template,
};
use super::{Annotation, Draft};

pub const TABLE: &[Annotation] = &[
    Annotation::set(
        "permanent-redirect",
        &["permanent-redirect"],
        "URL",
        |draft, text| { draft.permanent = Some(parse_template(text)?); Ok(()) },
        "Redirects all requests. `$scheme`, `$host`, `$http_host` (with port), `$uri` (the path), `$request_uri` (path and \
         query) and `$escaped_request_uri` stand for parts of the request",
    )
    .restricting()
    .differs("no other variables"),
    Annotation::set(
        "permanent-redirect-code",
        &["permanent-redirect-code"],
        "status (`308`)",
        |draft, text| { draft.permanent_code = Some(parse_status(text, 300, 308)?); Ok(()) },
        "Status of `permanent-redirect`; 301 without it",
    ),
    Annotation::set(
        "temporary-redirect",
        &["temporal-redirect"],
        "URL",
        |draft, text| { draft.temporary = Some(parse_template(text)?); Ok(()) },
        "Like `permanent-redirect`, with 302, and takes precedence over it",
    )
    .restricting()
    .differs("no other variables"),
    Annotation::set(
        "temporary-redirect-code",
        &["temporal-redirect-code"],
        "status (`307`)",
        |draft, text| { draft.temporary_code = Some(parse_status(text, 300, 308)?); Ok(()) },
        "Status of `temporary-redirect`; 302 without it",
    ),
    Annotation::set(
        "tls-redirect",
        &["ssl-redirect"],
        "`true`, `false`",
        |draft, text| { draft.tls_redirect = Some(parse_boolean(text)?); Ok(()) },
        "Whether requests without TLS are redirected (308) if `spec.tls` names the host; without it, they are",
    ),
    Annotation::set(
        "force-tls-redirect",
        &["force-ssl-redirect"],
        "`true`, `false`",
        |draft, text| { draft.force_tls_redirect = parse_boolean(text)?; Ok(()) },
        "Redirects requests without TLS even if the host has no certificate, as behind a proxy that terminates TLS",
    )
    .restricting(),
    Annotation::set(
        "app-root",
        &["app-root"],
        "path",
        |draft, text| { draft.app_root = Some(parse_path(text)?); Ok(()) },
        "Redirects requests for `/` to this path",
    ),
    Annotation::set(
        "www-redirect",
        &["from-to-www-redirect"],
        "`true`, `false`",
        |draft, text| { draft.www_redirect = parse_boolean(text)?; Ok(()) },
        "Redirects `www.example.org` to the host `example.org`, or the reverse, unless an Ingress has that host",
    ),
    Annotation::set(
        "hsts",
        &[],
        "`max-age=31536000; includeSubDomains`",
        hsts,
        "`Strict-Transport-Security` of responses over TLS",
    ),
];

fn hsts(draft: &mut Draft, text: &str) -> Result<(), String> {
    for directive in text.split(';').map(str::trim) {
        match directive.to_ascii_lowercase().split_once('=') {
            Some(("max-age", seconds)) => drop(parse_number::<u64>(seconds, 0, u64::MAX)?),
            None if ["includesubdomains", "preload"]
                .contains(&&*directive.to_ascii_lowercase()) => {}
            _ => return Err(format!("has {directive:?}, which is not known")),
        }
    }
    if !text.to_ascii_lowercase().contains("max-age=") {
        return Err("has no max-age".to_owned());
    }
    draft.hsts = Some(header_value(text)?);
    Ok(())
}
