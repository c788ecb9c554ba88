//! Host names: of requests, in the one form that is matched, and of rules.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// The hosts that a rule is for. The most specific pattern that matches owns a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostPattern {
    /// One name, in lower case, without port and without the dot of the root.
    Exact(Arc<str>),
    /// Names with exactly one label before this suffix. `*.example.org` has the suffix `example.org`.
    Wildcard(Arc<str>),
    /// Requests that no other pattern matches.
    Any,
}

impl HostPattern {
    /// Parses the host of a rule. An empty one is [`HostPattern::Any`].
    pub fn parse(text: &str) -> Result<Self, InvalidHost> {
        let name = |name: &str| {
            let name = name_of(name)?;
            match name.parse::<IpAddr>() {
                Ok(_) => Err(InvalidHost("an IP address is no host name")),
                Err(_) => Ok(Arc::from(&*name)),
            }
        };
        match text {
            "" | "*" => Ok(Self::Any),
            _ => match text.strip_prefix("*.") {
                Some(suffix) => wildcard_suffix(&name(suffix)?).map(Self::Wildcard),
                None => name(text).map(Self::Exact),
            },
        }
    }

    /// Whether the pattern matches a normalized host. `None` is a request without host.
    pub fn matches(&self, host: Option<&str>) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            (Self::Exact(name), Some(host)) => **name == *host,
            (Self::Wildcard(suffix), Some(host)) => parent_domain(host) == Some(suffix),
            _ => false,
        }
    }
}

impl Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Wildcard(suffix) => write!(f, "*.{suffix}"),
            Self::Any => f.write_str("*"),
        }
    }
}

/// Top-level domains without a registry: of RFC 6761 and RFC 6762 (with its appendix G). Names directly below them
/// have no other owner.
const PRIVATE_DOMAINS: [&str; 11] = [
    "corp",
    "example",
    "home",
    "internal",
    "intranet",
    "invalid",
    "lan",
    "local",
    "localhost",
    "private",
    "test",
];

/// The suffix of a wildcard host. Below a public top-level domain, it would stand for everyone's names.
fn wildcard_suffix(suffix: &str) -> Result<Arc<str>, InvalidHost> {
    let last = suffix.rsplit('.').next().unwrap_or(suffix);
    if last.bytes().all(|octet| octet.is_ascii_digit()) {
        Err(InvalidHost("an IP address is no host name"))
    } else if last.len() == suffix.len() && !PRIVATE_DOMAINS.contains(&last) {
        Err(InvalidHost(
            "a wildcard directly below a public top-level domain stands for everyone's hosts",
        ))
    } else {
        Ok(suffix.into())
    }
}

/// Why a host is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidHost(&'static str);

impl Display for InvalidHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for InvalidHost {}

/// `Host` or `:authority`, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority<'a> {
    /// A name or IPv4 address in lower case, without the dot of the root; or an IPv6 address in brackets.
    pub host: Cow<'a, str>,
    pub port: Option<u16>,
}

impl<'a> Authority<'a> {
    pub fn parse(raw: &'a str) -> Result<Self, InvalidHost> {
        let (host, port) = match raw.strip_prefix('[') {
            Some(literal) => {
                let (address, port) =
                    literal.split_once(']').ok_or(InvalidHost("bracket is not closed"))?;
                (address_of(address, &raw[..address.len() + 2])?, port)
            }
            None => {
                let (name, port) = raw.split_at(raw.find(':').unwrap_or(raw.len()));
                (name_of(name)?, port)
            }
        };
        Ok(Self { host, port: port_of(port)? })
    }
}

/// The host of `Host` or `:authority`, without port. Does not allocate if it is normal already.
pub fn normalize_host(raw: &str) -> Result<Cow<'_, str>, InvalidHost> {
    Authority::parse(raw).map(|authority| authority.host)
}

/// What follows the first label: the suffix of the wildcard that matches the host.
pub fn parent_domain(host: &str) -> Option<&str> {
    host.split_once('.').map(|(_, parent)| parent)
}

/// RFC 1035.
const MOST_OCTETS: usize = 253;
const MOST_LABEL_OCTETS: usize = 63;

/// Underscores are no part of host names, but are in use.
fn name_of(raw: &str) -> Result<Cow<'_, str>, InvalidHost> {
    let name = raw.strip_suffix('.').unwrap_or(raw);
    if name.is_empty() {
        return Err(InvalidHost("host is empty"));
    }
    if name.len() > MOST_OCTETS {
        return Err(InvalidHost("host is longer than 253 characters"));
    }
    for label in name.split('.') {
        if label.is_empty() || label.len() > MOST_LABEL_OCTETS {
            return Err(InvalidHost("a label of the host is empty or longer than 63 characters"));
        }
        if !label.bytes().all(|octet| octet.is_ascii_alphanumeric() || b"-_".contains(&octet)) {
            return Err(InvalidHost("host contains a character that host names do not have"));
        }
    }
    Ok(match name.bytes().any(|octet| octet.is_ascii_uppercase()) {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
    })
}

/// An IPv6 address in the form of RFC 5952. `bracketed` is the same in brackets.
fn address_of<'a>(address: &str, bracketed: &'a str) -> Result<Cow<'a, str>, InvalidHost> {
    let parsed: Ipv6Addr =
        address.parse().map_err(|_| InvalidHost("brackets do not contain an IPv6 address"))?;
    let normal = format!("[{parsed}]");
    Ok(if normal == bracketed { Cow::Borrowed(bracketed) } else { Cow::Owned(normal) })
}

/// What follows the host: nothing, or a colon and digits. RFC 3986 allows a colon alone.
fn port_of(raw: &str) -> Result<Option<u16>, InvalidHost> {
    const INVALID: InvalidHost = InvalidHost("port is not a number below 65536");
    match raw.strip_prefix(':') {
        None if raw.is_empty() => Ok(None),
        None => Err(InvalidHost("host is followed by something other than a port")),
        Some("") => Ok(None),
        // `u16` also parses a sign.
        Some(port) if !port.bytes().all(|octet| octet.is_ascii_digit()) => Err(INVALID),
        Some(port) => port.parse().map(Some).map_err(|_| INVALID),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn normal_forms() {
        let cases = [
            ("example.org", Some("example.org"), None),
            ("EXAMPLE.org:8080", Some("example.org"), Some(8080)),
            ("example.org.:443", Some("example.org"), Some(443)),
            ("example.org:", Some("example.org"), None),
            ("a_b.example.org", Some("a_b.example.org"), None),
            ("127.0.0.1:80", Some("127.0.0.1"), Some(80)),
            ("[::1]:80", Some("[::1]"), Some(80)),
            ("[2001:DB8:0:0::1]", Some("[2001:db8::1]"), None),
            ("", None, None),
            (".", None, None),
            (":80", None, None),
            ("a..b", None, None),
            (".a", None, None),
            ("a.b..", None, None),
            ("a b", None, None),
            ("a,b", None, None),
            ("user@a", None, None),
            ("*.a", None, None),
            ("a/b", None, None),
            ("a%2eb", None, None),
            ("é.org", None, None),
            ("a:+1", None, None),
            ("a:65536", None, None),
            ("a:1:2", None, None),
            ("::1", None, None),
            ("[::1", None, None),
            ("[::1]x", None, None),
            ("[fe80::1%25eth0]", None, None),
            ("[127.0.0.1]", None, None),
            ("a\0b", None, None),
        ];
        for (raw, host, port) in cases {
            let found = Authority::parse(raw).ok();
            assert_eq!(found.as_ref().map(|found| &*found.host), host, "{raw:?}");
            assert_eq!(found.and_then(|found| found.port), port, "{raw:?}");
        }
        assert!(normalize_host(&"a".repeat(64)).is_err());
        assert!(normalize_host(&"a.".repeat(127)).is_ok_and(|host| host.len() == 253));
        assert!(normalize_host(&"a.".repeat(128)).is_err());
    }

    #[test]
    fn patterns() {
        let exact = |name: &str| Some(HostPattern::Exact(name.into()));
        let wildcard = |name: &str| Some(HostPattern::Wildcard(name.into()));
        let cases = [
            ("", Some(HostPattern::Any)),
            ("a.example.org", exact("a.example.org")),
            ("A.example.org.", exact("a.example.org")),
            ("*.example.org", wildcard("example.org")),
            ("*.localhost", wildcard("localhost")),
            ("*.org", None),
            ("*.co.", None),
            ("*.0.0.1", None),
            ("*.1", None),
            ("*.a.1", None),
            ("*.1.a", wildcard("1.a")),
            ("*.", None),
            ("*.*.org", None),
            ("a.*.org", None),
            ("a:80", None),
            ("10.0.0.1", None),
            ("[::1]", None),
        ];
        for (text, expected) in cases {
            assert_eq!(HostPattern::parse(text).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_wildcard_matches_one_label() {
        let pattern = HostPattern::parse("*.example.org").unwrap();
        assert!(pattern.matches(Some("a.example.org")));
        for other in ["example.org", "a.b.example.org", "a.example.com", "aexample.org"] {
            assert!(!pattern.matches(Some(other)), "{other}");
        }
        assert!(!pattern.matches(None));
    }

    proptest! {
        #[test]
        fn normalizing_again_changes_nothing(raw in prop_oneof!["[aA.:\\[\\]1f-]{0,12}", any::<String>()]) {
            let Ok(host) = normalize_host(&raw) else { return Ok(()) };
            prop_assert_eq!(normalize_host(&host), Ok(Cow::Borrowed(&*host)));
            prop_assert!(!host.is_empty() && !host.bytes().any(|octet| octet.is_ascii_uppercase()));
        }
    }
}
