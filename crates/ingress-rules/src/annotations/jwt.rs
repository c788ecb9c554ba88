//! Tokens that clients must present. Each of these annotations demands one, and all close if they can't be honoured.

use std::sync::Arc;

use http::HeaderName;
use http::header::{AUTHORIZATION, COOKIE};

use super::Annotation;
use super::access::secret_name;
use super::values::{Parsed, header_name, is_reserved, parse_boolean, parse_list, parse_token};

/// Each token is compared with them, or has them read.
const MOST_AUDIENCES: usize = 32;
const MOST_CLAIMS: usize = 16;
const MOST_NAME_OCTETS: usize = 1024;

pub const TABLE: &[Annotation] = &[
    Annotation::set(
        "jwt-issuer",
        &[],
        "text (`https://id.example.org`)",
        |draft, text| { draft.jwt.issuer = Some(claim_text(text)?); Ok(()) },
        "Clients need a JWT with this `iss`: a bearer token",
    )
    .restricting(),
    Annotation::set(
        "jwt-audiences",
        &[],
        "texts",
        |draft, text| { draft.jwt.audiences = parse_audiences(text)?; Ok(()) },
        "`aud` must be one of these",
    )
    .restricting(),
    Annotation::set(
        "jwt-secret",
        &[],
        "name of a Secret",
        |draft, text| { draft.jwt.secret = Some(secret_name(text)?); Ok(()) },
        "Secret with the issuer's keys (`jwks.json`), or the authorities (`ca.crt`) of `jwt-keys-url`",
    )
    .restricting(),
    Annotation::set(
        "jwt-keys-url",
        &[],
        "URL",
        |draft, text| { draft.jwt.keys_url = Some(text.trim().into()); Ok(()) },
        "Where the issuer publishes its keys",
    )
    .restricting(),
    Annotation::set(
        "jwt-cookie",
        &[],
        "name",
        |draft, text| { draft.jwt.cookie = Some(parse_token(text)?); Ok(()) },
        "Cookie with the token of requests without bearer token",
    )
    .restricting(),
    Annotation::set(
        "jwt-claim-headers",
        &[],
        "`sub=X-User, email=X-Email`",
        |draft, text| { draft.jwt.claim_headers = parse_claim_headers(text)?; Ok(()) },
        "Claims that endpoints get as headers. Those of clients are removed",
    )
    .restricting(),
    Annotation::set(
        "jwt-forward-token",
        &[],
        "`true`, `false`",
        |draft, text| { draft.jwt.forwards_token = Some(parse_boolean(text)?); Ok(()) },
        "Whether endpoints get the token; without it, they do not",
    )
    .restricting(),
];

/// Claims are compared as they are, in all of Unicode.
pub(super) fn claim_text(text: &str) -> Parsed<Arc<str>> {
    let text = text.trim();
    if text.is_empty() || text.len() > MOST_NAME_OCTETS || text.contains(char::is_control) {
        return Err(format!("is not a text of at most {MOST_NAME_OCTETS} octets"));
    }
    Ok(text.into())
}

fn parse_audiences(text: &str) -> Parsed<Vec<Arc<str>>> {
    let items = parse_list(text)?;
    if items.len() > MOST_AUDIENCES {
        return Err(format!("has more than {MOST_AUDIENCES} items"));
    }
    items.into_iter().map(claim_text).collect()
}

pub(super) fn parse_claim_headers(text: &str) -> Parsed<Vec<(Arc<str>, HeaderName)>> {
    let items = parse_list(text)?;
    if items.len() > MOST_CLAIMS {
        return Err(format!("has more than {MOST_CLAIMS} items"));
    }
    let mut headers: Vec<(Arc<str>, HeaderName)> = Vec::new();
    for item in items {
        // Names of claims may be URLs.
        let (claim, name) = item.rsplit_once('=').ok_or("has an item without =")?;
        let name = header_name(name)?;
        if is_reserved(&name) || [AUTHORIZATION, COOKIE].contains(&name) {
            return Err(format!("sets {name}, which the proxy itself controls"));
        }
        // Of a client's, only names with `_` are removed from all requests: `X-User` would be taken for `X_User`.
        if name.as_str().contains('_') {
            return Err(format!(
                "sets {name}, which some endpoints cannot tell from a name with -"
            ));
        }
        if headers.iter().any(|(_, known)| *known == name) {
            return Err(format!("sets {name} twice"));
        }
        headers.push((claim_text(claim)?, name));
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_become_headers_that_are_not_the_proxys_own() {
        let read = parse_claim_headers("sub=X-User, https://a.test/role?x=1=X-Role").unwrap();
        let read: Vec<_> = read.iter().map(|(claim, name)| (&**claim, name.as_str())).collect();
        assert_eq!(read, [("sub", "x-user"), ("https://a.test/role?x=1", "x-role")]);
        for wrong in [
            "",
            "sub",
            "sub=",
            "=X-User",
            "sub=X User",
            "sub=Host",
            "sub=X_User",
            "sub=X-Forwarded-For",
            "sub=Authorization",
            "sub=Cookie",
            "sub=X-User, email=x-user",
        ] {
            assert!(parse_claim_headers(wrong).is_err(), "{wrong}");
        }
        let many = |count: usize| (0..count).map(|n| format!("a=X-{n},")).collect::<String>();
        assert!(parse_claim_headers(&many(16)).is_ok());
        assert!(parse_claim_headers(&many(17)).is_err());
    }
}
