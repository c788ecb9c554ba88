//! Who has access: source ranges, basic and external authentication. All close if they can't be honoured.

use std::sync::Arc;

use http::Method;
use lb_http::policy::Satisfy;

use super::values::{
    header_names, header_value, parse_sources, parse_template, parse_token, parse_word,
};
use super::{Annotation, Draft};

pub const TABLE: &[Annotation] = &[
    Annotation::set(
        "allowed-sources",
        &["whitelist-source-range", "allowlist-source-range"],
        "addresses and ranges",
        |draft, text| { draft.allowed_sources = parse_sources(text)?; Ok(()) },
        "Clients that have access; all others get 403",
    )
    .restricting(),
    Annotation::set(
        "denied-sources",
        &["denylist-source-range"],
        "addresses and ranges",
        |draft, text| { draft.denied_sources = parse_sources(text)?; Ok(()) },
        "Clients that get 403",
    )
    .restricting(),
    Annotation::set(
        "satisfy",
        &["satisfy"],
        "`all`, `any`",
        |draft, text| { draft.satisfy = Some(parse_word(text, &[("all", Satisfy::All), ("any", Satisfy::Any)])?); Ok(()) },
        "Whether all restrictions by source, session, password and `auth-url` must be satisfied, or any; `all` without it",
    )
    .restricting(),
    Annotation::set(
        "auth-type",
        &["auth-type"],
        "`basic`",
        auth_type,
        "Asks clients for a name and password, which `auth-secret` contains",
    )
    .restricting()
    .differs("`digest` is not supported"),
    Annotation::set(
        "auth-secret",
        &["auth-secret"],
        "name of a Secret",
        |draft, text| { draft.users.secret = Some(secret_name(text)?); Ok(()) },
        "Secret with users and password hashes. While it is missing, no one has access",
    )
    .restricting()
    .differs("Secrets of other namespaces need the setting `allow-cross-namespace-secrets`"),
    Annotation::set(
        "auth-secret-type",
        &["auth-secret-type"],
        "`auth-file`, `auth-map`",
        |draft, text| { draft.users.is_map = parse_word(text, &[("auth-file", false), ("auth-map", true)])?; Ok(()) },
        "Whether the Secret has a file of `htpasswd` in its key `auth`, or a key for each user",
    )
    .restricting(),
    Annotation::set(
        "auth-realm",
        &["auth-realm"],
        "text",
        auth_realm,
        "Text that browsers show when they ask for the password",
    ),
    Annotation::set(
        "auth-url",
        &["auth-url"],
        "URL",
        |draft, text| { draft.external.url = Some(text.trim().into()); Ok(()) },
        "Server that decides about each request: 2xx gives access",
    )
    .restricting()
    .differs(
        "only Services of the Ingress's namespace, and hosts in the setting `auth-hosts`; no variables: name the \
         Service instead of `$host`",
    ),
    Annotation::set(
        "auth-method",
        &["auth-method"],
        "method",
        |draft, text| {
            draft.external.method = Some(auth_method(text)?);
            Ok(())
        },
        "Method of the requests to `auth-url`; GET without it",
    )
    .restricting(),
    Annotation::set(
        "auth-signin",
        &["auth-signin"],
        "URL",
        |draft, text| { draft.external.signin = Some(parse_template(text)?); Ok(()) },
        "Where clients without access are redirected to (302), instead of getting 401; variables as in \
         `permanent-redirect`",
    )
    .differs("no other variables"),
    Annotation::set(
        "auth-signin-redirect-argument",
        &["auth-signin-redirect-param"],
        "name",
        |draft, text| { draft.external.redirect_argument = Some(parse_token(text)?); Ok(()) },
        "Argument of `auth-signin` with the URL of the request; `rd` without it",
    ),
    Annotation::set(
        "auth-response-headers",
        &["auth-response-headers"],
        "header names",
        |draft, text| { draft.external.response_headers = header_names(text)?; Ok(()) },
        "Headers of the response of `auth-url` that endpoints get. Those of clients are removed",
    )
    .restricting(),
];

fn auth_type(draft: &mut Draft, text: &str) -> Result<(), String> {
    match text.trim() {
        "basic" => {
            draft.users.required = true;
            Ok(())
        }
        "digest" => Err("is not supported; use basic, over TLS".to_owned()),
        _ => Err("is not basic".to_owned()),
    }
}

/// CONNECT would open a tunnel to the server.
fn auth_method(text: &str) -> Result<Method, String> {
    match Method::from_bytes(text.trim().as_bytes()) {
        Ok(Method::CONNECT) | Err(_) => Err("is not a method for it".to_owned()),
        Ok(method) => Ok(method),
    }
}

fn auth_realm(draft: &mut Draft, text: &str) -> Result<(), String> {
    header_value(text)?;
    if text.contains(['"', '\\']) {
        return Err("has a quotation mark or backslash".to_owned());
    }
    draft.users.realm = Some(text.trim().into());
    Ok(())
}

/// `name`, or `namespace/name`.
pub(crate) fn secret_name(text: &str) -> Result<Arc<str>, String> {
    let text = text.trim();
    let valid = |name: &str| {
        let allowed =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        !name.is_empty() && name.len() <= 253 && name.chars().all(allowed)
    };
    let (namespace, name) = text.split_once('/').unwrap_or(("-", text));
    if valid(namespace) && valid(name) {
        Ok(text.into())
    } else {
        Err("is not the name of a Secret".to_owned())
    }
}
