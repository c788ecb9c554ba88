//! Cookies that return a client to the endpoint of its first request.
//!
//! The cookie names the endpoint by a hash of its address, which all replicas compute alike. Without a configured key,
//! a client that has the cookie can find the address by trying all addresses. That reveals an address inside the cluster
//! and no more: a cookie selects among the endpoints of a route, and grants nothing.

use std::fmt::{self, Display, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::{HeaderMap, HeaderValue};
use sha2::{Digest, Sha256};

use crate::cookie;
use crate::policy::{AffinityCookie, SameSite};

/// The name of an endpoint, the same on all replicas with the same [`AffinityTokenKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Token {
    /// Clients send anything.
    fn parse(text: &[u8]) -> Option<Self> {
        let is_token =
            text.len() == 16 && text.iter().all(|octet| matches!(octet, b'0'..=b'9' | b'a'..=b'f'));
        let text = std::str::from_utf8(text).ok().filter(|_| is_token)?;
        u64::from_str_radix(text, 16).ok().map(Self)
    }
}

/// What tokens depend on besides the address. The default is public; one made of a secret hides addresses.
#[derive(Clone, Default)]
pub struct AffinityTokenKey([u8; 32]);

impl AffinityTokenKey {
    /// All replicas need the same secret. Another one moves all clients to other endpoints.
    pub fn from_secret(secret: &[u8]) -> Self {
        Self(Sha256::digest(secret).into())
    }

    pub fn token(&self, address: SocketAddr) -> Token {
        let mut hash = Sha256::new();
        // A key of fixed length in front and a truncated result: that is a sound MAC.
        hash.update(self.0);
        match address {
            SocketAddr::V4(address) => hash.update(address.ip().octets()),
            SocketAddr::V6(address) => hash.update(address.ip().octets()),
        }
        hash.update(address.port().to_be_bytes());
        let digest: [u8; 32] = hash.finalize().into();
        let [a, b, c, d, e, f, g, h, ..] = digest;
        Token(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
}

/// The keys of all balancers of a proxy. They can be replaced while the balancers are in use.
#[derive(Clone)]
pub struct Keys(Arc<ArcSwap<Vec<AffinityTokenKey>>>);

impl Keys {
    /// The first one names endpoints in cookies; cookies with the names of the others are accepted, so that replacing
    /// the first one moves no client. None: the default key.
    pub fn set(&self, keys: Vec<AffinityTokenKey>) {
        let keys = if keys.is_empty() { vec![AffinityTokenKey::default()] } else { keys };
        self.0.store(Arc::new(keys));
    }

    pub(crate) fn load(&self) -> Arc<Vec<AffinityTokenKey>> {
        self.0.load_full()
    }

    pub(crate) fn are(&self, keys: &Arc<Vec<AffinityTokenKey>>) -> bool {
        Arc::ptr_eq(&self.0.load(), keys)
    }

    /// The endpoint's name in cookies.
    pub fn token(&self, address: SocketAddr) -> Token {
        // There is always a first one.
        self.0.load().first().unwrap_or(&AffinityTokenKey::default()).token(address)
    }
}

impl Default for Keys {
    fn default() -> Self {
        Self(Arc::new(ArcSwap::from_pointee(vec![AffinityTokenKey::default()])))
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

impl fmt::Debug for AffinityTokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AffinityTokenKey(..)")
    }
}

/// The endpoint that a request's cookie names. `None`: none, or not one that we set.
pub fn find_endpoint_token(cookie: &AffinityCookie, headers: &HeaderMap) -> Option<Token> {
    cookie::find_cookie(headers, &cookie.name).and_then(Token::parse)
}

/// `Set-Cookie` for the response of an endpoint, if the client needs it: `sent` is the endpoint that its cookie named,
/// and `tried_it` whether that endpoint failed to serve this request, which another one then served.
pub fn format_affinity_cookie(
    cookie: &AffinityCookie,
    sent: Option<Token>,
    served: Token,
    tried_it: bool,
    over_tls: bool,
) -> Option<HeaderValue> {
    if sent == Some(served) || (tried_it && cookie.keep_on_failure) {
        return None;
    }
    format_cookie(cookie, served, over_tls)
}

/// `None`: the settings contain octets that no header may have. The model refuses these.
fn format_cookie(cookie: &AffinityCookie, token: Token, over_tls: bool) -> Option<HeaderValue> {
    let mut text =
        format!("{}={token}; Path={}", cookie.name, cookie.path.as_deref().unwrap_or("/"));
    if let Some(domain) = &cookie.domain {
        let _ = write!(text, "; Domain={domain}");
    }
    if let Some(max_age) = cookie.max_age {
        let _ = write!(text, "; Max-Age={}", max_age.as_secs());
    }
    match cookie.same_site {
        Some(SameSite::None) => text.push_str("; SameSite=None"),
        Some(SameSite::Lax) => text.push_str("; SameSite=Lax"),
        Some(SameSite::Strict) => text.push_str("; SameSite=Strict"),
        None => {}
    }
    if cookie.secure.unwrap_or(over_tls) {
        text.push_str("; Secure");
    }
    text.push_str("; HttpOnly");
    HeaderValue::try_from(text).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use http::header::COOKIE;
    use proptest::prelude::*;

    use super::*;

    fn cookie() -> AffinityCookie {
        AffinityCookie::named("route")
    }

    fn token(address: &str) -> Token {
        AffinityTokenKey::default().token(address.parse().unwrap())
    }

    fn sent(value: &str) -> HeaderMap {
        [(COOKIE, HeaderValue::from_str(value).unwrap())].into_iter().collect()
    }

    /// Replicas of all versions must agree. These were computed by another program.
    #[test]
    fn tokens_never_change() {
        assert_eq!(token("10.0.0.1:8080").to_string(), "ac59400bc35b2f5d");
        assert_eq!(token("[2001:db8::1]:8080").to_string(), "9a4b4cf75e4e0f05");
        let key = AffinityTokenKey::from_secret(b"secret");
        assert_eq!(key.token("10.0.0.1:8080".parse().unwrap()).to_string(), "f5ba82a5801bcb36");
    }

    #[test]
    fn tokens_differ_by_address_port_and_key() {
        let addresses =
            ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.1:81", "[::1]:80", "[::ffff:10.0.0.1]:80"];
        let keys = [
            AffinityTokenKey::default(),
            AffinityTokenKey::from_secret(b"a"),
            AffinityTokenKey::from_secret(b"b"),
        ];
        let tokens: HashSet<_> = keys
            .iter()
            .flat_map(|key| addresses.map(|address| key.token(address.parse().unwrap())))
            .collect();
        assert_eq!(tokens.len(), 15);
    }

    #[test]
    fn a_cookie_returns_as_the_endpoint_that_it_was_set_for() {
        let token = token("10.0.0.1:8080");
        let set = format_affinity_cookie(&cookie(), None, token, false, false).unwrap();
        let pair = set.to_str().unwrap().split(';').next().unwrap();
        assert_eq!(
            find_endpoint_token(&cookie(), &sent(&format!("a=1; {pair}; b=2"))),
            Some(token)
        );
    }

    #[test]
    fn attributes_are_those_of_the_settings() {
        let full = AffinityCookie {
            path: Some("/shop".into()),
            domain: Some("example.org".into()),
            max_age: Some(Duration::from_secs(172_800)),
            same_site: Some(SameSite::None),
            secure: Some(true),
            ..cookie()
        };
        let strict =
            AffinityCookie { same_site: Some(SameSite::Strict), secure: Some(false), ..cookie() };
        let lax = AffinityCookie { same_site: Some(SameSite::Lax), ..cookie() };
        let cases = [
            (
                &full,
                false,
                "; Path=/shop; Domain=example.org; Max-Age=172800; SameSite=None; Secure; HttpOnly",
            ),
            (&strict, true, "; Path=/; SameSite=Strict; HttpOnly"),
            (&lax, true, "; Path=/; SameSite=Lax; Secure; HttpOnly"),
            (&cookie(), false, "; Path=/; HttpOnly"),
        ];
        let token = token("10.0.0.1:8080");
        for (cookie, over_tls, attributes) in cases {
            let set = format_affinity_cookie(cookie, None, token, false, over_tls).unwrap();
            assert_eq!(set, format!("route={token}{attributes}"));
        }
    }

    #[test]
    fn settings_cannot_inject_headers() {
        let bad = AffinityCookie { path: Some("/\r\nSet-Cookie: admin=1".into()), ..cookie() };
        assert_eq!(format_affinity_cookie(&bad, None, token("10.0.0.1:8080"), false, false), None);
    }

    #[test]
    fn a_cookie_is_set_if_the_client_is_to_move() {
        let (one, two) = (token("10.0.0.1:80"), token("10.0.0.2:80"));
        let keep = AffinityCookie { keep_on_failure: true, ..cookie() };
        let cases = [
            // Cookie, its endpoint, the endpoint that served, whether the first one failed: whether a cookie is set.
            (&cookie(), None, one, false, true),
            (&cookie(), Some(one), one, false, false),
            (&cookie(), Some(one), two, false, true),
            (&cookie(), Some(one), two, true, true),
            (&keep, Some(one), one, false, false),
            (&keep, Some(one), two, true, false),
            // Its endpoint is gone.
            (&keep, Some(one), two, false, true),
        ];
        for (cookie, sent, served, failed, is_set) in cases {
            let set = format_affinity_cookie(cookie, sent, served, failed, false);
            assert_eq!(set.is_some(), is_set, "{sent:?} {served:?} {failed}");
        }
    }

    #[test]
    fn what_is_not_a_token_names_no_endpoint() {
        let token = token("10.0.0.1:80").to_string();
        let upper = token.to_uppercase();
        assert!(token != upper);
        let values = [
            "",
            "x",
            "+123456789abcdef",
            "0x00000000000000",
            &upper,
            &token[1..],
            &format!("{token}0"),
            "\u{e9}",
        ];
        for value in values {
            assert_eq!(
                find_endpoint_token(&cookie(), &sent(&format!("route={value}"))),
                None,
                "{value}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_header_breaks_the_reader(octets in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(value) = HeaderValue::from_bytes(&octets) {
                let _ = find_endpoint_token(&cookie(), &[(COOKIE, value)].into_iter().collect());
            }
        }
    }
}
