//! Who may use a route, and how often.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Instant;

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue};
use lb_http::auth::Check;
use lb_http::policy::{BasicAuth, ExternalAuth, RateLimits};
use lb_http::rate::Permit;
use lb_http::{Rejection, RouteOwner};

use super::external_auth::Granted;
use super::reply::OwnResponse;
use crate::client::{ClientConnection, InFlight};
use crate::metrics::CutOff;
use crate::worker::Worker;

/// `owner` counts what the client has had.
pub(crate) fn limit_rate(
    worker: &Worker,
    client: &IpAddr,
    owner: &RouteOwner,
    limits: &RateLimits,
    now: Instant,
) -> Result<Permit, OwnResponse> {
    match worker.shared.rates.admit(*client, owner, limits, now) {
        Ok(permit) => Ok(permit),
        Err(retry) => {
            let reply = OwnResponse::from(Rejection::RateLimit);
            Err(reply.with(RETRY_AFTER, HeaderValue::from(retry.seconds())))
        }
    }
}

/// A source that has too many requests at the same time takes memory and endpoints from others.
pub(crate) fn count_request(
    client: &Rc<ClientConnection>,
    address: IpAddr,
) -> Result<InFlight, OwnResponse> {
    client.count_request(address).ok_or_else(|| {
        client.worker.counters.cut_off.count(CutOff::RequestsPerSource);
        let reply = OwnResponse::from(Rejection::RequestsPerSource);
        reply.with(RETRY_AFTER, HeaderValue::from(1))
    })
}

pub(crate) async fn authenticate_client(
    worker: &Worker,
    client: IpAddr,
    owner: &RouteOwner,
    basic: &BasicAuth,
    headers: &HeaderMap,
) -> Result<(), OwnResponse> {
    let refused = || {
        let realm = basic.realm.replace(['"', '\\'], "");
        let challenge = HeaderValue::try_from(format!("Basic realm=\"{realm}\""));
        let reply = OwnResponse::from(Rejection::Password);
        let default = HeaderValue::from_static("Basic");
        reply.with(WWW_AUTHENTICATE, challenge.unwrap_or(default))
    };
    let Some(users) = &basic.users else { return Err(refused()) };
    let verified = &worker.shared.verified;
    let verification = match users.check(headers, verified) {
        Check::Allowed(_) => return Ok(()),
        Check::Refused => return Err(refused()),
        Check::Costly(verification) => verification,
    };
    let verified = verified.clone();
    let Some(user) =
        worker.shared.verifications.run(client, owner, move || verification.run(&verified))
    else {
        return Err(Rejection::PasswordBusy.into());
    };
    match user.await {
        Ok(Some(_)) => Ok(()),
        _ => Err(refused()),
    }
}

/// What decides about CORS when the response comes.
pub(crate) fn cors_headers(headers: &HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::new();
    for name in [ORIGIN, ACCESS_CONTROL_REQUEST_METHOD] {
        if let Some(value) = headers.get(&name) {
            kept.insert(name, value.clone());
        }
    }
    kept
}

/// Headers of the authentication server replace the client's: a client must not be able to send them itself.
pub(crate) fn add_granted(auth: &ExternalAuth, granted: &mut Granted, headers: &mut HeaderMap) {
    for name in &auth.response_headers {
        headers.remove(name);
    }
    for (name, value) in &granted.request {
        headers.append(name, value.clone());
    }
}
