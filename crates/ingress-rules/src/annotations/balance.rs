//! Which endpoint gets a request: hashing and affinity.

use lb_http::policy::{Balance, SameSite};

use super::values::{
    parse_boolean, parse_cookie_attribute, parse_duration, parse_path, parse_token, parse_word,
};
use super::{Annotation, Draft};

const SAME_SITES: [(&str, SameSite); 3] =
    [("None", SameSite::None), ("Lax", SameSite::Lax), ("Strict", SameSite::Strict)];

pub const TABLE: &[Annotation] = &[
    Annotation::set(
        "affinity",
        &["affinity"],
        "`cookie`",
        |draft, text| { draft.affinity = parse_word(text, &[("cookie", true)])?; Ok(()) },
        "Sends a client to the endpoint of its first request, by a cookie",
    ),
    Annotation::set(
        "session-cookie-name",
        &["session-cookie-name"],
        "name",
        |draft, text| { draft.cookie.name = Some(parse_token(text)?); Ok(()) },
        "Name of the cookie; `INGRESSCOOKIE` without it",
    ),
    Annotation::set(
        "session-cookie-path",
        &["session-cookie-path"],
        "path",
        |draft, text| { draft.cookie.path = Some(parse_cookie_attribute(&parse_path(text)?)?); Ok(()) },
        "Path of the cookie; `/` without it",
    ),
    Annotation::set(
        "session-cookie-domain",
        &["session-cookie-domain"],
        "host",
        |draft, text| { draft.cookie.domain = Some(parse_cookie_attribute(text)?); Ok(()) },
        "Domain of the cookie",
    ),
    Annotation::set(
        "session-cookie-max-age",
        &["session-cookie-max-age"],
        "time",
        |draft, text| { draft.cookie.max_age = Some(parse_duration(text)?); Ok(()) },
        "How long the cookie is valid; until the browser is closed without it",
    ),
    Annotation::set(
        "session-cookie-expires",
        &["session-cookie-expires"],
        "time",
        |draft, text| { draft.cookie.expires = Some(parse_duration(text)?); Ok(()) },
        "The same, if `session-cookie-max-age` is not set",
    ),
    Annotation::set(
        "session-cookie-samesite",
        &["session-cookie-samesite"],
        "`None`, `Lax`, `Strict`",
        |draft, text| { draft.cookie.same_site = Some(parse_word(text, &SAME_SITES)?); Ok(()) },
        "`SameSite` of the cookie",
    ),
    Annotation::set(
        "session-cookie-secure",
        &["session-cookie-secure"],
        "`true`, `false`",
        |draft, text| { draft.cookie.secure = Some(parse_boolean(text)?); Ok(()) },
        "`Secure` of the cookie; set for requests over TLS without it",
    ),
    Annotation::set(
        "session-cookie-change-on-failure",
        &["session-cookie-change-on-failure"],
        "`true`, `false`",
        |draft, text| { draft.cookie.change_on_failure = parse_boolean(text)?; Ok(()) },
        "Whether a client moves to another endpoint if a request to its own fails",
    ),
    Annotation::set(
        "hash-by",
        &["upstream-hash-by"],
        "text and variables (`$remote_addr`)",
        hash_by,
        "Sends requests with the same key to the same endpoint. Variables: `$remote_addr`, `$host`, `$request_uri`, \
         `$uri`, `$http_NAME`, `$cookie_NAME`, `$arg_NAME`",
    )
    .differs("only these variables; another hash function, so keys move once to other endpoints"),
];

fn hash_by(draft: &mut Draft, text: &str) -> Result<(), String> {
    let key =
        lb_http::hash_key::parse_hash_key(text).map_err(|why| format!("can't be used: {why}"))?;
    draft.balance = Balance::Hash(key);
    Ok(())
}
