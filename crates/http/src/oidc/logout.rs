//! Ends sessions, if their users want that: other sites cannot.

use form_urlencoded::Serializer;
use http::header::{ORIGIN, SET_COOKIE};
use http::{Method, Response, StatusCode};

use super::auth::OidcAuth;
use super::cookies::{forget_cookie, session_cookie_name};
use super::provider::ProviderDocument;
use super::responses::{redirect_to, respond_uncached, url_of_host, with_query};
use crate::host::Authority;
use crate::respond::Facts;

/// Whether the request comes from a page of this host, or from the user. What does not say so, as that of an old browser,
/// has to be a POST request with the host's own `Origin`.
pub(super) fn is_wanted_by_user(facts: &Facts, authority: &Authority) -> bool {
    let is_post = facts.method == Method::POST;
    if !is_post && facts.method != Method::GET {
        return false;
    }
    match facts.headers.get("sec-fetch-site") {
        Some(site) => site == "same-origin" || site == "none",
        None => {
            let own = url_of_host(authority, "");
            is_post && facts.headers.get(ORIGIN).is_some_and(|origin| *origin == *own)
        }
    }
}

impl OidcAuth {
    /// Makes the browser forget the session, and sends it to the provider to sign out there, if that is known and possible.
    pub fn sign_out(&self, provider: Option<&ProviderDocument>) -> Response<()> {
        let provider = provider.filter(|provider| self.check_issuer(provider).is_ok());
        let mut response = match provider.and_then(|provider| provider.end_session.as_ref()) {
            Some(url) => {
                let mut query = Serializer::new(String::new());
                query.append_pair("client_id", &self.client.id);
                let mut response = redirect_to(&with_query(url, &query.finish()));
                if response.status() == StatusCode::FOUND {
                    // Also after a POST request, the provider gets a GET request.
                    *response.status_mut() = StatusCode::SEE_OTHER;
                }
                response
            }
            // Any page of the host would sign the user in again.
            None => respond_uncached(StatusCode::OK),
        };
        let name = session_cookie_name(&self.cookies);
        response.headers_mut().append(SET_COOKIE, forget_cookie(&name));
        response
    }
}
