//! Users who have to sign in. Each of these annotations demands it, and all close if they can't be honoured.

use std::sync::Arc;
use std::time::Duration;

use lb_http::path::normalize_path;

use super::Annotation;
use super::access::secret_name;
use super::jwt::{claim_text, parse_claim_headers};
use super::values::{Parsed, parse_duration, parse_list, parse_path};

const MOST_HOSTS: usize = 8;
/// A session cannot be ended from here.
const SESSION_LIFETIMES: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(60)..=Duration::from_secs(30 * 86_400);

pub const TABLE: &[Annotation] = &[
    Annotation::set(
        "oidc-issuer",
        &[],
        "URL (`https://id.example.org`)",
        |draft, text| {
            draft.oidc.issuer = Some(claim_text(text)?);
            Ok(())
        },
        "Users sign in at this OpenID provider",
    )
    .restricting(),
    Annotation::set(
        "oidc-secret",
        &[],
        "name of a Secret",
        |draft, text| {
            draft.oidc.secret = Some(secret_name(text)?);
            Ok(())
        },
        "`issuer` (as `oidc-issuer`), `client-id`, `client-secret`, `cookie-secret`; `ca.crt` if needed",
    )
    .restricting(),
    Annotation::set(
        "oidc-hosts",
        &[],
        "hosts (`keys.example.org`)",
        |draft, text| {
            draft.oidc.hosts = parse_hosts(text)?;
            Ok(())
        },
        "Further hosts of the provider",
    )
    .restricting(),
    Annotation::set(
        "oidc-scopes",
        &[],
        "`email, groups`",
        |draft, text| {
            draft.oidc.scopes = parse_scopes(text)?;
            Ok(())
        },
        "Scopes besides `openid`",
    )
    .restricting(),
    Annotation::set(
        "oidc-claim-headers",
        &[],
        "as `jwt-claim-headers`",
        |draft, text| {
            draft.oidc.claim_headers = parse_claim_headers(text)?;
            Ok(())
        },
        "Claims of the ID token as headers",
    )
    .restricting(),
    Annotation::set(
        "oidc-redirect-path",
        &[],
        "path",
        |draft, text| {
            draft.oidc.redirect_path = Some(parse_own_path(text)?);
            Ok(())
        },
        "Where users return to; `/oauth2/callback` without it",
    )
    .restricting(),
    Annotation::set(
        "oidc-logout-path",
        &[],
        "path",
        |draft, text| {
            draft.oidc.logout_path = Some(parse_own_path(text)?);
            Ok(())
        },
        "Where they sign out; `/oauth2/logout` without it",
    )
    .restricting(),
    Annotation::set(
        "oidc-session-lifetime",
        &[],
        "time",
        |draft, text| {
            draft.oidc.session_lifetime = Some(parse_lifetime(text)?);
            Ok(())
        },
        "Until they sign in again; `8h` without it",
    )
    .restricting(),
];

fn parse_hosts(text: &str) -> Parsed<Vec<Arc<str>>> {
    let items = parse_list(text)?;
    if items.len() > MOST_HOSTS {
        return Err(format!("has more than {MOST_HOSTS} items"));
    }
    items
        .into_iter()
        .map(|host| match lb_http::host::normalize_host(host) {
            Ok(_) => Ok(host.into()),
            Err(why) => Err(format!("has {host:?}: {why}")),
        })
        .collect()
}

/// Separated by commas or blanks (RFC 6749, 3.3).
fn parse_scopes(text: &str) -> Parsed<Vec<Arc<str>>> {
    let is_allowed = |octet: u8| octet.is_ascii_graphic() && !b"\"\\".contains(&octet);
    let scopes = parse_list(text)?.into_iter().flat_map(str::split_ascii_whitespace);
    scopes
        .map(|scope| match scope.bytes().all(is_allowed) {
            true => Ok(scope.into()),
            false => Err(format!("has {scope:?}, which is no scope")),
        })
        .collect()
}

/// A path in the form that requests have.
fn parse_own_path(text: &str) -> Parsed<Arc<str>> {
    let path = parse_path(text)?;
    let is_plain = path.bytes().all(|octet| octet.is_ascii_graphic() && !b"?#%\\".contains(&octet));
    let is_normal =
        !path.contains("//") && normalize_path(&path).is_ok_and(|normal| *normal == *path);
    if !is_plain || !is_normal || &*path == "/" {
        return Err("is no path such as /oauth2/callback".to_owned());
    }
    Ok(path)
}

fn parse_lifetime(text: &str) -> Parsed<Duration> {
    let time = parse_duration(text)?;
    if SESSION_LIFETIMES.contains(&time) {
        Ok(time)
    } else {
        Err("is not between a minute and 30 days".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_in_the_form_that_requests_have() {
        for path in ["/oauth2/callback", "/a", "/a/", "/a.b-c~d"] {
            assert_eq!(parse_own_path(path).as_deref(), Ok(path));
        }
        for path in
            ["", "a", "/", "//a", "/a//b", "/a/../b", "/a?b", "/a#b", "/%61", "/a b", "/ä", "/\\a"]
        {
            assert!(parse_own_path(path).is_err(), "{path}");
        }
    }

    #[test]
    fn scopes_are_separated_by_blanks_or_commas() {
        let scopes = |text| parse_scopes(text).map(|scopes| scopes.join(" "));
        assert_eq!(scopes("email, groups").as_deref(), Ok("email groups"));
        assert_eq!(
            scopes(" email groups https://a.test/b").as_deref(),
            Ok("email groups https://a.test/b")
        );
        for wrong in ["", ",", "a\"b", "a\\b", "ä"] {
            assert!(scopes(wrong).is_err(), "{wrong}");
        }
    }
}
