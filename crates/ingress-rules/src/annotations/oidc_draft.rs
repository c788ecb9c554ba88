//! Where users sign in, as an Ingress asks for it, before the objects that it names are looked up.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

/// What annotations say about signing in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OidcDraft {
    pub issuer: Option<Arc<str>>,
    /// `name`, or `namespace/name`.
    pub secret: Option<Arc<str>>,
    /// Further hosts of the provider, with ports.
    pub hosts: Vec<Arc<str>>,
    /// Besides `openid`.
    pub scopes: Vec<Arc<str>>,
    pub claim_headers: Vec<(Arc<str>, HeaderName)>,
    pub redirect_path: Option<Arc<str>>,
    pub logout_path: Option<Arc<str>>,
    pub session_lifetime: Option<Duration>,
}

impl OidcDraft {
    /// Whether users have to sign in.
    pub fn is_set(&self) -> bool {
        *self != Self::default()
    }
}
