//! What has to be done for a request of a route whose users sign in.

use http::header::ACCEPT;
use http::{Method, Response, StatusCode};

use super::auth::OidcAuth;
use super::callback::PendingLogin;
use super::logout::is_wanted_by_user;
use super::responses::respond_uncached;
use super::session::SignedIn;
use crate::respond::Facts;

/// What has to be done for a request.
#[derive(Debug)]
pub enum SignInStep {
    /// The browser has a session.
    Serve(SignedIn),
    /// There is no session. The browser has to be sent to the provider: [`OidcAuth::begin_login`].
    BeginLogin,
    /// There is no session, and nobody who could sign in: [`demand_session`](super::demand_session).
    DemandSession,
    /// The provider has sent the browser back: its code is exchanged for a token with [`OidcAuth::token_request`], and
    /// [`OidcAuth::finish_login`] ends the login.
    FinishLogin(Box<PendingLogin>),
    /// [`OidcAuth::sign_out`]
    SignOut,
    Respond(Response<()>),
}

impl OidcAuth {
    /// `now`: seconds since 1970.
    pub fn decide_sign_in(&self, facts: &Facts, now: u64) -> SignInStep {
        // Cookies and codes are secrets. Only HTTP/1.0 has no host.
        let authority = facts.authority.filter(|_| facts.is_tls);
        let Some(authority) = authority else {
            return match self.is_own_path(facts.path) {
                true => SignInStep::Respond(respond_uncached(StatusCode::BAD_REQUEST)),
                false => SignInStep::DemandSession,
            };
        };
        if self.is_redirect_path(facts.path) {
            return match self.find_pending_login(facts, authority, now) {
                Ok(pending) => SignInStep::FinishLogin(Box::new(pending)),
                Err(response) => SignInStep::Respond(response),
            };
        }
        if self.is_logout_path(facts.path) {
            return match is_wanted_by_user(facts, authority) {
                true => SignInStep::SignOut,
                false => SignInStep::Respond(respond_uncached(StatusCode::FORBIDDEN)),
            };
        }
        match self.find_session(facts.headers, &authority.host, now) {
            Some(signed_in) => SignInStep::Serve(signed_in),
            None if is_navigation(facts) => SignInStep::BeginLogin,
            None => SignInStep::DemandSession,
        }
    }
}

/// Whether a browser would show the response as a page. Scripts cannot follow a redirect to the provider.
fn is_navigation(facts: &Facts) -> bool {
    let accepted = facts.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut media =
        accepted.flat_map(|value| value.split(',')).filter_map(|one| one.split(';').next());
    let mode = facts.headers.get("sec-fetch-mode");
    [Method::GET, Method::HEAD].contains(facts.method)
        && media.any(|one| one.trim().eq_ignore_ascii_case("text/html"))
        && mode.is_none_or(|mode| mode == "navigate")
}
