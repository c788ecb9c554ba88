//! Cookies that return a client to the endpoint of its first request.
//!
//! The cookie names the endpoint by a hash of its address, which all replicas compute alike. Without a configured key,
//! whoever has the cookie can find the address by trying all addresses. That reveals an address inside the cluster
//! and no more: a cookie selects among the endpoints of a route, and grants nothing.

use std::fmt::{self, Display, Write};
use std::net::SocketAddr;

use http::{HeaderMap, HeaderValue};
use sha2::{Digest, Sha256};

use crate::cookie;
use crate::policy::{AffinityCookie, SameSite};

/// The name of an endpoint, the same on all replicas with the same [`Key`].
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
pub struct Key([u8; 32]);

impl Key {
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

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The endpoint that a request's cookie names. `None`: none, or not one that we set.
pub fn endpoint_of(cookie: &AffinityCookie, headers: &HeaderMap) -> Option<Token> {
    cookie::find(headers, &cookie.name).and_then(Token::parse)
}

/// `Set-Cookie` for the response of an endpoint, if the client needs it: `sent` is the endpoint that its cookie named,
/// and `tried_it` whether that endpoint failed to serve this request, which another one then served.
pub fn set_cookie(
    cookie: &AffinityCookie,
    sent: Option<Token>,
    served: Token,
    tried_it: bool,
    over_tls: bool,
) -> Option<HeaderValue> {
    let stays = sent == Some(served) || (tried_it && cookie.keep_on_failure);
    if stays {
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
