//! Tokens that clients need, and the keys that verify them.

use std::sync::Arc;

use lb_http::jwt::{JwtAuth, KeySource};
use lb_http::published::DocumentAddress;

use super::Resolver;
use super::auth::REALM;
use super::servers::ServerTrust;

impl Resolver<'_> {
    /// A token is for someone and by someone: without issuer or audience, one for another program would count here.
    pub fn jwt_auth(&mut self) -> Option<JwtAuth> {
        let wish = self.draft.jwt.clone();
        if !wish.is_set() {
            return None;
        }
        let missing = match (&wish.issuer, &*wish.audiences) {
            (None, _) => Some("jwt-issuer"),
            (_, []) => Some("jwt-audiences"),
            _ => None,
        };
        if let Some(name) = missing {
            self.close(name, "it is not set, and clients need a token".to_owned());
        }
        let keys = match self.token_keys(wish.secret.as_deref(), wish.keys_url.as_deref()) {
            Ok(keys) => keys,
            Err((name, why)) => {
                self.close(name, why);
                return None;
            }
        };
        Some(JwtAuth {
            issuer: wish.issuer?,
            audiences: wish.audiences,
            keys,
            cookie: wish.cookie,
            claim_headers: wish.claim_headers,
            forwards_token: wish.forwards_token.unwrap_or(false),
            realm: self.draft.users.realm.clone().unwrap_or_else(|| REALM.into()),
        })
    }

    /// An error has the annotation that is its cause.
    fn token_keys(
        &mut self,
        secret: Option<&str>,
        url: Option<&str>,
    ) -> Result<KeySource, (&'static str, String)> {
        let of_secret = |why| ("jwt-secret", why);
        let secret = secret.map(|text| self.secret(text)).transpose().map_err(of_secret)?;
        let secrets = &self.objects.secrets;
        if let Some(url) = url {
            let authorities = secret.map(|name| secrets.authorities(&name)).transpose();
            let trust = ServerTrust::Verified(authorities.map_err(of_secret)?);
            let server = self.resolve_named_server("jwt-keys-url", url, trust);
            let (upstream, url) =
                server.map_err(|why| ("jwt-keys-url", format!("{url:?} {why}")))?;
            return Ok(KeySource::Published(Box::new(DocumentAddress {
                namespace: self.owner.namespace.clone(),
                upstream,
                url,
            })));
        }
        let secret =
            secret.ok_or_else(|| of_secret("neither it nor jwt-keys-url is set".to_owned()))?;
        let (keys, left_out) = secrets.token_keys(&secret).map_err(of_secret)?;
        for why in left_out {
            self.annotation_problem(
                "jwt-secret",
                format!("Secret {secret}: {why}, and is not used"),
            );
        }
        Ok(KeySource::Fixed(Arc::new(keys)))
    }
}
