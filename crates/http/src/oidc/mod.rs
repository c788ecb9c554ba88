//! Users who sign in at an OpenID provider: the authorization code flow (OpenID Connect Core 1.0, 3.1) with PKCE (RFC 7636),
//! and sessions in cookies.
//!
//! Invariants:
//! - Without a valid session, no request is forwarded, unless another restriction is enough. What cannot be read or fetched
//!   refuses.
//! - A login ends in the browser in which it has begun, once, and within [`LOGIN_SECONDS`]: its cookie, its code, its PKCE
//!   verifier and its nonce belong together.
//! - Sessions and logins count only where keys, issuer, client, claims and host are the same. Nothing is stored here, and
//!   replicas need nothing from each other.
//! - Browsers are redirected to the provider, or to a path of the host that they have asked.
//! - No token leaves the proxy: sessions have the claims that endpoints get. No endpoint of any route gets the cookies: it
//!   could use them. None sets them.

mod auth;
mod callback;
mod cookies;
mod exchange;
mod failure;
mod login;
mod logout;
mod provider;
mod responses;
mod sealing;
mod session;
mod step;
#[cfg(test)]
pub(crate) mod tests;

pub use auth::{OidcAuth, OidcClient};
pub use callback::PendingLogin;
pub use cookies::{remove_own_cookies, remove_set_own_cookies};
pub use exchange::{TokenRequest, read_token_response};
pub use failure::SignInFailure;
pub use login::{LOGIN_SECONDS, LoginRandom};
pub use provider::{ProviderDocument, ProviderServer, discovery_url};
pub use responses::demand_session;
pub use sealing::{CookieKeys, SALT_OCTETS};
pub use session::SignedIn;
pub use step::SignInStep;
