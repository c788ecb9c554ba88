//! Where and how users sign in, as the configuration says.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName};

use super::failure::SignInFailure;
use super::provider::{ProviderDocument, ProviderServer};
use super::sealing::CookieKeys;
use crate::path::{Slashes, comparable_path};
use crate::published::DocumentAddress;

/// Where and how the users of a route sign in.
#[derive(Clone, Debug)]
pub struct OidcAuth {
    /// The claim `iss`, and what the provider's document says, must be this text.
    pub issuer: Arc<str>,
    /// Where the provider's document is.
    pub discovery: DocumentAddress,
    /// The servers that the document may name for keys and tokens.
    pub servers: Vec<ProviderServer>,
    pub client: OidcClient,
    /// Separated by blanks; `openid` is one of them.
    pub scopes: Arc<str>,
    /// Where the provider sends browsers back to.
    pub redirect_path: Arc<str>,
    pub logout_path: Arc<str>,
    /// Claims, and the headers by which endpoints get them.
    pub claim_headers: Vec<(Arc<str>, HeaderName)>,
    pub session_lifetime: Duration,
    pub cookies: CookieKeys,
}

/// What the provider knows the route as.
#[derive(Clone)]
pub struct OidcClient {
    pub id: Arc<str>,
    pub secret: Arc<str>,
}

impl fmt::Debug for OidcClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OidcClient({:?})", self.id)
    }
}

impl OidcAuth {
    /// Whether the document is that of the issuer.
    pub(super) fn check_issuer(&self, provider: &ProviderDocument) -> Result<(), SignInFailure> {
        match *provider.issuer == *self.issuer {
            true => Ok(()),
            false => Err(SignInFailure::Provider(format!(
                "its document names another issuer, {:?}",
                provider.issuer
            ))),
        }
    }

    /// Whether users sign in or out at this path, in whatever form: rules may match all of them.
    pub fn is_own_path(&self, path: &str) -> bool {
        self.is_redirect_path(path) || self.is_logout_path(path)
    }

    pub(super) fn is_redirect_path(&self, path: &str) -> bool {
        *self.redirect_path == *comparable_path(path, Slashes::Merged)
    }

    pub(super) fn is_logout_path(&self, path: &str) -> bool {
        *self.logout_path == *comparable_path(path, Slashes::Merged)
    }

    /// Whether a login or session of the other one counts here, too.
    pub fn shares_sessions_with(&self, other: &Self) -> bool {
        self.discovery.namespace == other.discovery.namespace
            && self.cookies.are_equal_to(&other.cookies)
    }

    pub fn sets_header(&self, name: &HeaderName) -> bool {
        self.claim_headers.iter().any(|(_, known)| known == name)
    }

    /// Removes what a client could send in the name of a claim.
    pub fn strip_claims(&self, headers: &mut HeaderMap) {
        for (_, name) in &self.claim_headers {
            headers.remove(name);
        }
    }
}
