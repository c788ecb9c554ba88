mod attacks;
mod claims;
mod keys;
mod requests;
pub mod signer;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use serde_json::json;

use super::*;
use signer::Signer;

const NOW: u64 = 1_800_000_000;

fn policy() -> JwtAuth {
    JwtAuth {
        issuer: "https://id.test".into(),
        audiences: vec!["shop".into(), "api".into()],
        keys: KeySource::Fixed(Arc::default()),
        cookie: None,
        claim_headers: Vec::new(),
        forwards_token: false,
        realm: "shop".into(),
    }
}

fn valid_claims() -> serde_json::Value {
    json!({"iss": "https://id.test", "aud": "shop", "exp": NOW + 300, "sub": "ann"})
}

fn bearer(token: &str) -> HeaderMap {
    let value = HeaderValue::try_from(format!("Bearer {token}")).unwrap();
    HeaderMap::from_iter([(AUTHORIZATION, value)])
}

fn key_set(keys: &serde_json::Value) -> KeySet {
    KeySet::parse(json!({"keys": keys}).to_string().as_bytes()).unwrap().0
}

fn verify_with(jwt: &JwtAuth, token: &str, keys: &KeySet) -> Result<VerifiedToken, TokenError> {
    jwt.verify_token(&jwt.read_token(&bearer(token))?, keys, NOW)
}

fn verify(token: &str, keys: &KeySet) -> Result<(), TokenError> {
    verify_with(&policy(), token, keys).map(drop)
}
