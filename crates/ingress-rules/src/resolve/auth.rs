//! Basic and external authentication, and the certificates of clients.

use std::sync::Arc;

use http::Method;
use lb_http::policy::{BasicAuth, ExternalAuth};

use super::super::annotations::VerifyClient;
use super::super::resolved::Clients;
use super::Resolver;
use super::servers::ServerTrust;

pub(super) const REALM: &str = "Authentication required";

impl Resolver<'_> {
    /// Without its Secret, no one has access. `auth-secret` alone asks for authentication, too: its author wants it.
    pub fn basic_auth(&mut self) -> Option<BasicAuth> {
        let wish = self.draft.users.clone();
        if !wish.required && wish.secret.is_none() {
            return None;
        }
        let realm = wish.realm.unwrap_or_else(|| REALM.into());
        let users = match &wish.secret {
            Some(text) => self
                .secret(text)
                .and_then(|secret| self.objects.secrets.users(&secret, wish.is_map)),
            None => Err("auth-type is set without it".to_owned()),
        };
        let users = match users {
            Ok((users, problems)) => {
                for problem in problems {
                    self.annotation_problem("auth-secret", problem);
                }
                Some(users)
            }
            Err(why) => {
                self.annotation_problem("auth-secret", format!("{why}; no one has access"));
                None
            }
        };
        Some(BasicAuth { realm, users })
    }

    pub fn external_auth(&mut self) -> Option<ExternalAuth> {
        let wish = self.draft.external.clone();
        let text = wish.url?;
        let server = self.resolve_named_server("auth-url", &text, ServerTrust::Unverified);
        let (upstream, url) = match server {
            Ok(server) => server,
            Err(why) => {
                self.close("auth-url", format!("{text:?} {why}"));
                return None;
            }
        };
        let argument = wish.redirect_argument.as_deref().unwrap_or("rd");
        Some(ExternalAuth {
            upstream,
            url,
            method: wish.method.unwrap_or(Method::GET),
            signin: wish.signin.map(|signin| with_original(&signin, argument)),
            response_headers: wish.response_headers,
        })
    }

    /// Which certificates the clients of the Ingress's hosts need.
    pub fn clients(&mut self) -> Option<Clients> {
        let wish = self.draft.clients.clone();
        let optional = match wish.verify {
            Some(VerifyClient::Off) => return None,
            verify => verify == Some(VerifyClient::Optional),
        };
        let Some(text) = wish.secret else {
            if wish.verify.is_some() {
                self.close("auth-tls-verify-client", "auth-tls-secret is not set".to_owned());
            }
            return None;
        };
        let found = self.secret(&text).and_then(|secret| {
            let mut certificates = self.objects.secrets.clients(&secret, optional)?;
            certificates.pass_to_endpoint = wish.pass_to_endpoint;
            let field = self.field("auth-tls-secret").into();
            Ok(Clients { secret, certificates, field })
        });
        match found {
            Ok(clients) => Some(clients),
            Err(why) => {
                self.close("auth-tls-secret", why);
                None
            }
        }
    }
}

/// The sign-in URL with the URL of the request as an argument, unless it has it.
fn with_original(signin: &str, argument: &str) -> Arc<str> {
    let query = signin.split_once('?').map(|(_, query)| query);
    let has = |query: &str| query.split('&').any(|pair| pair.split('=').next() == Some(argument));
    match query {
        Some(query) if has(query) => signin.into(),
        Some("") => format!("{signin}{argument}=$scheme://$http_host$escaped_request_uri").into(),
        Some(_) => format!("{signin}&{argument}=$scheme://$http_host$escaped_request_uri").into(),
        None => format!("{signin}?{argument}=$scheme://$http_host$escaped_request_uri").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_original_url_is_added_once() {
        let original = "$scheme://$http_host$escaped_request_uri";
        assert_eq!(&*with_original("https://a/in", "rd"), format!("https://a/in?rd={original}"));
        assert_eq!(
            &*with_original("https://a/in?x=1", "rd"),
            format!("https://a/in?x=1&rd={original}")
        );
        assert_eq!(&*with_original("https://a/in?rd=/", "rd"), "https://a/in?rd=/");
    }
}
