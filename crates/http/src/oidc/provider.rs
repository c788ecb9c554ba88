//! What a provider publishes about itself (OpenID Connect Discovery 1.0, 3): an untrusted document.
//!
//! Invariants:
//! - Whoever writes the document cannot choose where the proxy connects to: only servers of the configuration are asked.
//! - All of its URLs are of HTTPS.
//! - It counts only where its issuer publishes it.

use std::sync::Arc;

use http::Uri;
use serde_json::Value;

use crate::host::Authority;
use crate::published::IssuerDocument;
use crate::unique_object::UniqueObject;
use crate::upstream::UpstreamName;

/// Of each URL, in octets.
const MOST_URL_OCTETS: usize = 2048;
/// OpenID Connect Discovery 1.0, 4.
const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";

/// Where the servers of a provider are.
#[derive(Debug, PartialEq)]
pub struct ProviderDocument {
    pub(super) issuer: String,
    /// Where browsers are sent to.
    pub(super) authorization: Uri,
    pub(super) token: Uri,
    pub(super) keys: Uri,
    /// Where browsers are sent to that have signed out.
    pub(super) end_session: Option<Uri>,
    pub(super) client_proof: Option<ClientProof>,
    /// Whether responses to browsers name the issuer (RFC 9207).
    pub(super) names_itself: bool,
}

/// How a client proves to the provider who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientProof {
    Basic,
    Post,
}

/// A server that the document may name.
#[derive(Clone, Debug)]
pub struct ProviderServer {
    /// In lower case.
    pub host: Arc<str>,
    pub port: u16,
    pub upstream: UpstreamName,
}

impl IssuerDocument for ProviderDocument {
    fn is_withdrawal(&self) -> bool {
        false
    }
}

/// Where an issuer publishes its document.
pub fn discovery_url(issuer: &str) -> String {
    format!("{}{DISCOVERY_PATH}", issuer.strip_suffix('/').unwrap_or(issuer))
}

impl ProviderDocument {
    /// `url`: where the document was found. An error says what is wrong with it.
    pub fn parse(document: &[u8], url: &Uri) -> Result<Self, String> {
        let document = UniqueObject::parse(document).map_err(|error| error.to_string())?;
        let member = |name: &str| match document.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => match read_url(text) {
                Some(url) => Ok(Some(url)),
                None => Err(format!("{name} is no URL of https")),
            },
            Some(_) => Err(format!("{name} is no text")),
        };
        let needed = |name: &str| member(name)?.ok_or_else(|| format!("{name} is missing"));
        let issuer = document.text("issuer").ok_or("issuer is missing")?;
        if issuer.len() > MOST_URL_OCTETS {
            return Err(format!("issuer has more than {MOST_URL_OCTETS} octets"));
        }
        if !discovery_url(issuer).parse::<Uri>().is_ok_and(|own| own == *url) {
            let issuer: String = issuer.chars().take(200).collect();
            return Err(format!("it is that of another issuer, {issuer:?}"));
        }
        Ok(Self {
            issuer: issuer.to_owned(),
            authorization: needed("authorization_endpoint")?,
            token: needed("token_endpoint")?,
            keys: needed("jwks_uri")?,
            end_session: member("end_session_endpoint")?,
            client_proof: read_client_proof(document.get("token_endpoint_auth_methods_supported")),
            names_itself: document.get("authorization_response_iss_parameter_supported")
                == Some(&Value::Bool(true)),
        })
    }
}

fn read_url(text: &str) -> Option<Uri> {
    let url: Uri = text.parse().ok().filter(|_| text.len() <= MOST_URL_OCTETS)?;
    let authority = url.authority()?.as_str();
    (url.scheme_str() == Some("https") && !authority.contains('@')).then_some(url)
}

/// Without the list, the first one is supported. `None`: the provider supports neither.
fn read_client_proof(supported: Option<&Value>) -> Option<ClientProof> {
    let Some(supported) = supported else { return Some(ClientProof::Basic) };
    let supported = supported.as_array()?;
    let known =
        [("client_secret_basic", ClientProof::Basic), ("client_secret_post", ClientProof::Post)];
    known.into_iter().find(|(name, _)| supported.iter().any(|one| one == name)).map(|(_, one)| one)
}

/// The server of a URL of https.
pub(super) fn find_server<'s>(
    servers: &'s [ProviderServer],
    url: &Uri,
) -> Option<&'s UpstreamName> {
    let authority = Authority::parse(url.authority()?.as_str()).ok()?;
    let port = authority.port.unwrap_or(443);
    let is_it = |server: &&ProviderServer| *server.host == *authority.host && server.port == port;
    servers.iter().find(is_it).map(|server| &server.upstream)
}
