//! Verifies the tokens of requests.

use std::rc::Rc;
use std::time::Instant;

use http::HeaderMap;
use http::header::WWW_AUTHENTICATE;
use lb_http::Rejection;
use lb_http::jwt::{JwtAuth, KeySet, KeySource, TokenError, VerifiedToken, bearer_challenge};

use super::issuer::{seconds_now, verify_with_published_keys};
use super::reply::OwnResponse;
use crate::published::DocumentSlot;
use crate::worker::Worker;

pub(crate) async fn verify_token(
    worker: &Rc<Worker>,
    slot: &DocumentSlot<KeySet>,
    jwt: &JwtAuth,
    headers: &HeaderMap,
) -> Result<VerifiedToken, OwnResponse> {
    let refused = |error: TokenError| {
        let challenge = bearer_challenge(&jwt.realm, error);
        OwnResponse::from(Rejection::Token(error.status())).with(WWW_AUTHENTICATE, challenge)
    };
    let token = jwt.read_token(headers).map_err(refused)?;
    let verify = |keys: &KeySet| jwt.verify_token(&token, keys, seconds_now());
    match &jwt.keys {
        KeySource::Fixed(keys) => verify(keys),
        KeySource::Published(address) => {
            let unavailable = || OwnResponse::from(Rejection::TokenKeys);
            let shared = slot.get(&worker.shared.issuers.keys, address, Instant::now());
            let shared = shared.ok_or_else(unavailable)?;
            let verified = verify_with_published_keys(worker, address, shared, verify).await;
            verified.ok_or_else(unavailable)?
        }
    }
    .map_err(refused)
}
