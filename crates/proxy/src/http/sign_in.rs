//! Lets users sign in at a provider, and asks it who has.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use http::header::SET_COOKIE;
use http::{HeaderMap, Response, StatusCode};
use lb_http::jwt::VerifiedToken;
use lb_http::oidc::{
    LoginRandom, OidcAuth, PendingLogin, ProviderDocument, SALT_OCTETS, SignInFailure, SignInStep,
    SignedIn, demand_session, read_token_response, remove_own_cookies,
};
use lb_http::respond::Facts;
use lb_http::{Rejection, RoutePolicy};

use super::issuer::{IssuerRequest, find_document, seconds_now, verify_with_published_keys};
use super::reply::OwnResponse;
use crate::published::DocumentSlot;
use crate::worker::Worker;

/// What a request is known by. Boxed, because it is part of each request's future.
#[derive(Default)]
pub(crate) struct VerifiedClient(Option<Box<ClientProofs>>);

#[derive(Default)]
struct ClientProofs {
    token: Option<VerifiedToken>,
    session: Option<SignedIn>,
}

impl VerifiedClient {
    pub fn add_token(&mut self, token: VerifiedToken) {
        self.0.get_or_insert_default().token = Some(token);
    }

    pub fn add_session(&mut self, session: Option<SignedIn>) {
        if session.is_some() {
            self.0.get_or_insert_default().session = session;
        }
    }

    /// Removes what endpoints get from the proxy only, and what only the proxy gets.
    pub fn strip_claims_and_proofs(&self, policy: &RoutePolicy, headers: &mut HeaderMap) {
        if let Some(jwt) = &policy.jwt {
            let proofs = self.0.as_deref();
            jwt.strip_claims_and_tokens(proofs.and_then(|proofs| proofs.token.as_ref()), headers);
        }
        if let Some(oidc) = &policy.oidc {
            oidc.strip_claims(headers);
        }
        // Also of routes without sessions: a browser sends its cookies to all routes of a host.
        remove_own_cookies(headers);
    }

    pub fn add_claim_headers(&self, headers: &mut HeaderMap) {
        let Some(proofs) = &self.0 else { return };
        if let Some(token) = &proofs.token {
            token.add_claim_headers(headers);
        }
        if let Some(session) = &proofs.session {
            session.add_claim_headers(headers);
        }
    }
}

/// The session of a request, or the response to a browser that has none. `is_needed`: the request is not served without
/// a session.
pub(crate) async fn check_session(
    worker: &Rc<Worker>,
    slot: &DocumentSlot<ProviderDocument>,
    oidc: &OidcAuth,
    facts: &Facts<'_>,
    is_needed: bool,
) -> Result<Option<SignedIn>, OwnResponse> {
    let now = seconds_now();
    let response = match oidc.decide_sign_in(facts, now) {
        SignInStep::Serve(signed_in) => return Ok(Some(signed_in)),
        SignInStep::BeginLogin | SignInStep::DemandSession if !is_needed => return Ok(None),
        SignInStep::DemandSession => {
            return Err(own_response(demand_session(), Rejection::NoSession));
        }
        SignInStep::BeginLogin => match begin_login(worker, slot, oidc, facts, now).await {
            Ok(response) => return Err(own_response(response, Rejection::NoSession)),
            Err(failure) => Err(failure),
        },
        SignInStep::Respond(response) => Ok(response),
        // The provider may be away: the session ends all the same.
        SignInStep::SignOut => {
            let provider = find_provider(worker, slot, oidc).await.ok();
            Ok(oidc.sign_out(provider.as_deref()))
        }
        SignInStep::FinishLogin(login) => {
            let finished = finish_login(worker, slot, oidc, &login, facts.client).await;
            let can_be_repeated = matches!(finished, Err(SignInFailure::Busy));
            let mut reply = respond(worker, oidc, finished);
            if !can_be_repeated {
                reply.headers.append(SET_COOKIE, login.forget_login());
            }
            return Err(reply);
        }
    };
    Err(respond(worker, oidc, response))
}

fn respond(
    worker: &Worker,
    oidc: &OidcAuth,
    response: Result<Response<()>, SignInFailure>,
) -> OwnResponse {
    match response {
        Ok(response) => own_response(response, Rejection::Oidc),
        Err(failure) => {
            worker.shared.issuers.warn_about_login(&oidc.discovery, &failure);
            match failure {
                SignInFailure::Provider(_) | SignInFailure::Busy => Rejection::OidcProvider.into(),
                failure => Rejection::Oidc(failure.status()).into(),
            }
        }
    }
}

fn own_response(
    response: Response<()>,
    rejection: impl FnOnce(StatusCode) -> Rejection,
) -> OwnResponse {
    let (parts, ()) = response.into_parts();
    OwnResponse { rejection: rejection(parts.status), headers: parts.headers }
}

async fn begin_login(
    worker: &Rc<Worker>,
    slot: &DocumentSlot<ProviderDocument>,
    oidc: &OidcAuth,
    facts: &Facts<'_>,
    now: u64,
) -> Result<Response<()>, SignInFailure> {
    let provider = find_provider(worker, slot, oidc).await?;
    let (browser, salt) = random_octets()?;
    oidc.begin_login(&provider, facts, now, &LoginRandom { browser, salt })
}

async fn find_provider(
    worker: &Rc<Worker>,
    slot: &DocumentSlot<ProviderDocument>,
    oidc: &OidcAuth,
) -> Result<Arc<ProviderDocument>, SignInFailure> {
    let (cache, address) = (&worker.shared.issuers.providers, &oidc.discovery);
    let unavailable = || SignInFailure::Provider("its document is not available".to_owned());
    let shared = slot.get(cache, address, Instant::now()).ok_or_else(unavailable)?;
    find_document(worker, address, shared).await.ok_or_else(unavailable)
}

/// Exchanges the code, and verifies what the provider says.
async fn finish_login(
    worker: &Rc<Worker>,
    slot: &DocumentSlot<ProviderDocument>,
    oidc: &OidcAuth,
    login: &PendingLogin,
    client: IpAddr,
) -> Result<Response<()>, SignInFailure> {
    let issuers = &worker.shared.issuers;
    let provider = find_provider(worker, slot, oidc).await?;
    let request = oidc.token_request(&provider, login)?;
    let address = oidc.keys_address(&provider)?;
    let share = issuers.begin_exchange(&address.namespace, client).ok_or(SignInFailure::Busy)?;
    let reply = IssuerRequest::for_token(request).send(worker).await;
    let (status, body) = reply
        .map_err(|error| SignInFailure::Provider(format!("it does not exchange codes: {error}")))?;
    drop(share);
    let token = read_token_response(status, &body)?;
    let without_keys = || SignInFailure::Provider("its keys are not available".to_owned());
    let shared = issuers.keys.get(&address, Instant::now()).ok_or_else(without_keys)?;
    let verified = verify_with_published_keys(worker, &address, &shared, |keys| {
        oidc.verify_id_token(login, &token, keys, seconds_now())
    });
    let claims = verified.await.ok_or_else(without_keys)?.map_err(SignInFailure::IdToken)?;
    let (_, salt) = random_octets()?;
    oidc.finish_login(login, &claims, seconds_now(), salt)
}

fn random_octets() -> Result<([u8; 32], [u8; SALT_OCTETS]), SignInFailure> {
    let (mut browser, mut salt) = ([0; 32], [0; SALT_OCTETS]);
    let filled = getrandom::fill(&mut browser).and_then(|()| getrandom::fill(&mut salt));
    match filled {
        Ok(()) => Ok((browser, salt)),
        Err(error) => Err(SignInFailure::Provider(format!("there are no random numbers: {error}"))),
    }
}
