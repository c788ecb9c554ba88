//! Keys of consistent hashing: which properties of a request decide about its endpoint.

use std::fmt::{self, Display};
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};

use crate::cookie;
use crate::policy::{Balance, HashKey, KeyPart};
use crate::stable_hash::StableHash;

/// What a key can be made of.
#[derive(Clone, Copy, Debug)]
pub struct HashInput<'a> {
    pub client: IpAddr,
    /// In lower case, without port.
    pub host: &'a str,
    /// Path and query, as the client sent them.
    pub uri: &'a str,
    /// Normalized, without query.
    pub path: &'a str,
    pub headers: &'a HeaderMap,
}

impl Balance {
    /// For [`crate::balance::Pick::hash`].
    pub fn hash(&self, subject: &HashInput<'_>) -> Option<u64> {
        match self {
            Self::LeastOfTwo => None,
            Self::Hash(key) => key.hash(subject),
        }
    }
}

impl HashKey {
    /// `None`: the request has none of the key's properties, so it cannot be distinguished from others, and it should not go
    /// where all of these would.
    pub fn hash(&self, subject: &HashInput<'_>) -> Option<u64> {
        let mut hash = StableHash::new();
        let mut is_empty = true;
        for part in &self.0 {
            let mut write = |octets: &[u8]| {
                is_empty &= octets.is_empty();
                hash.write(octets);
            };
            match part {
                // The same in all requests.
                KeyPart::Text(text) => hash.write(text.as_bytes()),
                KeyPart::ClientAddress => match subject.client.to_canonical() {
                    IpAddr::V4(address) => write(&address.octets()),
                    IpAddr::V6(address) => write(&address.octets()),
                },
                KeyPart::Host => write(subject.host.as_bytes()),
                KeyPart::Uri => write(subject.uri.as_bytes()),
                KeyPart::Path => write(subject.path.as_bytes()),
                KeyPart::Header(name) => {
                    write(subject.headers.get(name).map_or(&[][..], |value| value.as_bytes()));
                }
                KeyPart::Cookie(name) => {
                    write(cookie::find_cookie(subject.headers, name).unwrap_or_default())
                }
                KeyPart::QueryArgument(name) => write(query_argument(subject.uri, name).as_bytes()),
            }
        }
        (!is_empty).then(|| hash.finish())
    }
}

/// In the notation that [`parse_hash_key`] reads.
impl Display for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| match part {
            KeyPart::Text(text) => f.write_str(text),
            KeyPart::ClientAddress => f.write_str("${remote_addr}"),
            KeyPart::Host => f.write_str("${host}"),
            KeyPart::Uri => f.write_str("${request_uri}"),
            KeyPart::Path => f.write_str("${uri}"),
            KeyPart::Header(name) => write!(f, "${{http_{}}}", name.as_str().replace('-', "_")),
            KeyPart::Cookie(name) => write!(f, "${{cookie_{name}}}"),
            KeyPart::QueryArgument(name) => write!(f, "${{arg_{name}}}"),
        })
    }
}

/// The first value, as the client sent it; empty if there is none.
fn query_argument<'a>(uri: &'a str, name: &str) -> &'a str {
    let query = uri.split_once('?').map_or("", |(_, query)| query);
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map_or("", |(_, value)| value)
}

/// Why a text is not a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidHashKey {
    UnknownVariable(String),
    /// A `$` without a name.
    MissingName,
    /// `${` without `}`.
    MissingBrace,
    /// No variable: all requests would go to the same endpoint.
    Constant,
}

impl Display for InvalidHashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownVariable(name) => write!(
                f,
                "unknown variable ${name}; known are $remote_addr, $host, $request_uri, $uri, $http_NAME, \
                 $cookie_NAME and $arg_NAME"
            ),
            Self::MissingName => f.write_str("a $ must be followed by the name of a variable"),
            Self::MissingBrace => f.write_str("${ without }"),
            Self::Constant => {
                f.write_str("contains no variable, so all requests would go to one endpoint")
            }
        }
    }
}

impl std::error::Error for InvalidHashKey {}

/// Reads a key in nginx's notation: texts and variables, such as `$remote_addr` and `${cookie_id}/x`.
pub fn parse_hash_key(text: &str) -> Result<HashKey, InvalidHashKey> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        push_text(&mut parts, &rest[..dollar]);
        let (name, after) = split_name(&rest[dollar + 1..])?;
        parts.push(variable(name)?);
        rest = after;
    }
    push_text(&mut parts, rest);
    if parts.iter().all(|part| matches!(part, KeyPart::Text(_))) {
        return Err(InvalidHashKey::Constant);
    }
    Ok(HashKey(parts))
}

fn push_text(parts: &mut Vec<KeyPart>, text: &str) {
    if !text.is_empty() {
        parts.push(KeyPart::Text(text.into()));
    }
}

/// The variable's name, and the text after it.
fn split_name(text: &str) -> Result<(&str, &str), InvalidHashKey> {
    let (name, after) = match text.strip_prefix('{') {
        Some(braced) => braced.split_once('}').ok_or(InvalidHashKey::MissingBrace)?,
        None => text.split_at(text.find(|c| !is_name_character(c)).unwrap_or(text.len())),
    };
    if name.is_empty() {
        return Err(InvalidHashKey::MissingName);
    }
    if !name.chars().all(is_name_character) {
        return Err(InvalidHashKey::UnknownVariable(name.into()));
    }
    Ok((name, after))
}

fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn variable(name: &str) -> Result<KeyPart, InvalidHashKey> {
    let unknown = || InvalidHashKey::UnknownVariable(name.into());
    let named = |prefix| name.strip_prefix(prefix).filter(|rest: &&str| !rest.is_empty());
    Ok(match name {
        "remote_addr" | "binary_remote_addr" => KeyPart::ClientAddress,
        "host" => KeyPart::Host,
        "request_uri" => KeyPart::Uri,
        "uri" | "document_uri" => KeyPart::Path,
        _ => {
            if let Some(header) = named("http_") {
                let header = header.replace('_', "-").to_ascii_lowercase();
                KeyPart::Header(HeaderName::from_bytes(header.as_bytes()).map_err(|_| unknown())?)
            } else if let Some(cookie) = named("cookie_") {
                KeyPart::Cookie(Arc::from(cookie))
            } else if let Some(argument) = named("arg_") {
                KeyPart::QueryArgument(Arc::from(argument))
            } else {
                return Err(unknown());
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn subject<'a>(client: &str, uri: &'a str, headers: &'a HeaderMap) -> HashInput<'a> {
        let path = uri.split('?').next().unwrap();
        HashInput { client: client.parse().unwrap(), host: "example.org", uri, path, headers }
    }

    #[test]
    fn keys_are_texts_and_variables() {
        use KeyPart::*;
        let header = |name| Header(HeaderName::from_static(name));
        let cases = [
            ("$remote_addr", vec![ClientAddress]),
            ("$binary_remote_addr", vec![ClientAddress]),
            ("$request_uri$host", vec![Uri, Host]),
            ("$uri", vec![Path]),
            (
                "a${uri}b$host-c",
                vec![Text("a".into()), Path, Text("b".into()), Host, Text("-c".into())],
            ),
            ("$http_x_user_id", vec![header("x-user-id")]),
            ("$http_X_User", vec![header("x-user")]),
            ("$cookie_JSESSIONID", vec![Cookie("JSESSIONID".into())]),
            ("${arg_id}", vec![QueryArgument("id".into())]),
            ("ü$host€", vec![Text("ü".into()), Host, Text("€".into())]),
        ];
        for (text, parts) in cases {
            assert_eq!(parse_hash_key(text), Ok(HashKey(parts)), "{text}");
        }
    }

    #[test]
    fn errors_name_the_variable() {
        let unknown = |name: &str| InvalidHashKey::UnknownVariable(name.into());
        let cases = [
            ("$remote_user", unknown("remote_user")),
            ("$host${nothing}", unknown("nothing")),
            ("$http_", unknown("http_")),
            ("${host;evil}", unknown("host;evil")),
            ("$", InvalidHashKey::MissingName),
            ("$host$", InvalidHashKey::MissingName),
            ("${}", InvalidHashKey::MissingName),
            ("$-", InvalidHashKey::MissingName),
            ("${host", InvalidHashKey::MissingBrace),
            ("constant", InvalidHashKey::Constant),
            ("", InvalidHashKey::Constant),
        ];
        for (text, error) in cases {
            assert_eq!(parse_hash_key(text), Err(error), "{text}");
        }
        assert!(parse_hash_key("$remote_user").unwrap_err().to_string().contains("$remote_user"));
    }

    #[test]
    fn only_the_properties_of_the_key_decide() {
        let mut headers = HeaderMap::new();
        headers.insert("cookie", HeaderValue::from_static("id=7"));
        let hash = |key: &str, client: &str, uri: &str| {
            parse_hash_key(key).unwrap().hash(&subject(client, uri, &headers))
        };

        assert_eq!(
            hash("$remote_addr", "192.0.2.1", "/a"),
            hash("$remote_addr", "192.0.2.1", "/b")
        );
        assert_ne!(
            hash("$remote_addr", "192.0.2.1", "/a"),
            hash("$remote_addr", "192.0.2.2", "/a")
        );
        assert_eq!(
            hash("$remote_addr", "::ffff:192.0.2.1", "/"),
            hash("$remote_addr", "192.0.2.1", "/")
        );
        assert_ne!(
            hash("$request_uri", "192.0.2.1", "/a?x"),
            hash("$request_uri", "192.0.2.1", "/a?y")
        );
        assert_eq!(hash("$uri", "192.0.2.1", "/a?x"), hash("$uri", "192.0.2.1", "/a?y"));
        assert_eq!(
            hash("$arg_id", "192.0.2.1", "/?b=1&id=2"),
            hash("$arg_id", "192.0.2.1", "/x?id=2&id=3")
        );
        assert_ne!(hash("$arg_id", "192.0.2.1", "/?id=1"), hash("$arg_id", "192.0.2.1", "/?id=2"));
    }

    #[test]
    fn a_request_without_the_properties_has_no_key() {
        let headers = HeaderMap::new();
        let subject = subject("192.0.2.1", "/?other=1", &headers);
        for key in ["$http_x_user", "$cookie_id", "$arg_id", "prefix-$arg_id"] {
            assert_eq!(parse_hash_key(key).unwrap().hash(&subject), None, "{key}");
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_parser(text in "[$a-z_{}é0-9]{0,20}") {
            let _ = parse_hash_key(&text);
        }

        #[test]
        fn keys_are_read_as_they_are_written(
            text in r"(\$uri|\$\{host\}|\$http_[a-z_]{1,5}|\$cookie_[A-Za-z]{1,5}|\$arg_x|\$remote_addr|[a-z/-]{1,3}){1,6}",
        ) {
            if let Ok(key) = parse_hash_key(&text) {
                prop_assert_eq!(parse_hash_key(&key.to_string()), Ok(key));
            }
        }
    }
}
