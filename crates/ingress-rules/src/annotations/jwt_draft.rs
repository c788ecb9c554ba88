//! The tokens that an Ingress asks for, before the objects that it names are looked up.

use std::sync::Arc;

use http::HeaderName;

/// What annotations say about tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JwtDraft {
    pub issuer: Option<Arc<str>>,
    pub audiences: Vec<Arc<str>>,
    /// `name`, or `namespace/name`.
    pub secret: Option<Arc<str>>,
    pub keys_url: Option<Arc<str>>,
    pub cookie: Option<Arc<str>>,
    pub claim_headers: Vec<(Arc<str>, HeaderName)>,
    pub forwards_token: Option<bool>,
}

impl JwtDraft {
    /// Whether clients need a token.
    pub fn is_set(&self) -> bool {
        *self != Self::default()
    }
}
