//! Where users sign in.

use std::sync::Arc;
use std::time::Duration;

use lb_http::host::Authority;
use lb_http::oidc::{CookieKeys, OidcAuth, OidcClient, ProviderServer, discovery_url};
use lb_http::path::Slashes;
use lb_http::published::DocumentAddress;
use lb_http::table::Shadowed;
use lb_http::{Action, PathPattern, Route};

use super::super::resolved::HostPart;
use super::Resolver;
use super::servers::ServerTrust;

const REDIRECT_PATH: &str = "/oauth2/callback";
const LOGOUT_PATH: &str = "/oauth2/logout";
const SESSION_LIFETIME: Duration = Duration::from_secs(8 * 3600);
/// As `openssl rand -base64 32` prints them, or longer.
const LEAST_SECRET_OCTETS: usize = 32;

/// An annotation, and why it can't be honoured.
type Unusable = (&'static str, String);

/// What the Secret says.
struct OidcSecret {
    client: OidcClient,
    cookie: Arc<str>,
    authorities: Option<Arc<str>>,
}

impl Resolver<'_> {
    pub fn oidc_auth(&mut self) -> Option<OidcAuth> {
        if !self.draft.oidc.is_set() {
            return None;
        }
        match self.read_oidc() {
            Ok(oidc) => Some(oidc),
            Err((name, why)) => {
                self.close(name, why);
                None
            }
        }
    }

    fn read_oidc(&mut self) -> Result<OidcAuth, Unusable> {
        let wish = self.draft.oidc.clone();
        let unset = |name| (name, "it is not set, and users cannot sign in without it".to_owned());
        let issuer = wish.issuer.ok_or_else(|| unset("oidc-issuer"))?;
        let secret = wish.secret.ok_or_else(|| unset("oidc-secret"))?;
        let OidcSecret { client, cookie, authorities } =
            self.read_oidc_secret(&secret, &issuer).map_err(|why| ("oidc-secret", why))?;
        let trust = ServerTrust::Verified(authorities);
        let (discovery, server) =
            self.find_provider("oidc-issuer", &discovery_url(&issuer), &trust)?;
        let mut servers = vec![server];
        for host in &wish.hosts {
            let url = format!("https://{host}/");
            servers.push(self.find_provider("oidc-hosts", &url, &trust)?.1);
        }
        let redirect_path = wish.redirect_path.unwrap_or_else(|| REDIRECT_PATH.into());
        let logout_path = wish.logout_path.unwrap_or_else(|| LOGOUT_PATH.into());
        if redirect_path == logout_path {
            let why = format!("{logout_path:?} is oidc-redirect-path, too");
            return Err(("oidc-logout-path", why));
        }
        let scopes = wish.scopes.iter().filter(|scope| ***scope != *"openid");
        let scopes = scopes.fold("openid".to_owned(), |all, scope| all + " " + scope);
        // Ingresses with the same ones share their sessions, so that users of a host sign in once.
        let namespace = &*self.owner.namespace;
        let mut users = vec![namespace, &*issuer, &*client.id];
        users.extend(wish.claim_headers.iter().map(|(claim, _)| &**claim));
        let cookies = CookieKeys::derive(cookie.as_bytes(), &users);
        Ok(OidcAuth {
            discovery,
            servers,
            client,
            scopes: scopes.into(),
            redirect_path,
            logout_path,
            claim_headers: wish.claim_headers,
            session_lifetime: wish.session_lifetime.unwrap_or(SESSION_LIFETIME),
            cookies,
            issuer,
        })
    }

    /// Authors of Ingresses may have no access to Secrets. Without its own issuer, the Secret would be sent to any provider
    /// that an Ingress names.
    fn read_oidc_secret(&mut self, secret: &str, issuer: &str) -> Result<OidcSecret, String> {
        let name = self.secret(secret)?;
        let secrets = &self.objects.secrets;
        let text = |key| -> Result<Arc<str>, String> {
            let text = secrets.text(&name, key)?;
            match text.trim() {
                "" => Err(format!("key {key} of Secret {name} is empty")),
                text => Ok(text.into()),
            }
        };
        let client = OidcClient { id: text("client-id")?, secret: text("client-secret")? };
        let own_issuer = text("issuer")
            .map_err(|why| format!("{why}, which must be the URL of the client's provider"))?;
        if *own_issuer != *issuer {
            return Err(format!(
                "key issuer of Secret {name} is not the URL in oidc-issuer: the URL of the client's provider belongs in both"
            ));
        }
        let cookie = text("cookie-secret")?;
        if cookie.len() < LEAST_SECRET_OCTETS {
            return Err(format!(
                "key cookie-secret of Secret {name} has less than {LEAST_SECRET_OCTETS} characters: write one with openssl rand \
                 -base64 32"
            ));
        }
        let has_authorities = secrets.has_authorities(&name);
        let authorities = has_authorities.then(|| secrets.authorities(&name)).transpose()?;
        Ok(OidcSecret { client, cookie, authorities })
    }

    /// The server in a URL, which must be of HTTPS.
    fn find_provider(
        &mut self,
        annotation: &'static str,
        text: &str,
        trust: &ServerTrust,
    ) -> Result<(DocumentAddress, ProviderServer), Unusable> {
        let unusable = |why: String| (annotation, format!("{text:?} {why}"));
        if !text.starts_with("https://") {
            return Err(unusable("is no URL of https".to_owned()));
        }
        if text.contains(['?', '#']) {
            return Err(unusable("has a query or fragment".to_owned()));
        }
        let server = self.resolve_named_server(annotation, text, trust.clone());
        let (upstream, url) = server.map_err(unusable)?;
        // It is the authority of a URL that was read.
        let authority = url.authority().map(|authority| Authority::parse(authority.as_str()));
        let Some(Ok(Authority { host, port })) = authority else {
            return Err(unusable("has no host".to_owned()));
        };
        let server = ProviderServer {
            host: (&*host).into(),
            port: port.unwrap_or(443),
            upstream: upstream.clone(),
        };
        let namespace = self.owner.namespace.clone();
        Ok((DocumentAddress { namespace, upstream, url }, server))
    }

    /// Adds the paths to which browsers return, and where users sign out, to hosts that have no rule for them.
    pub fn add_oidc_paths(&mut self) {
        let Some(oidc) = self.policy.oidc.clone() else { return };
        let slashes = self.objects.settings.slashes;
        for part in self.hosts.values_mut() {
            for path in [&oidc.redirect_path, &oidc.logout_path] {
                if let Some(route) = route_beside(part, path, slashes) {
                    part.paths.push((PathPattern::Exact(path.clone()), route));
                }
            }
        }
    }
}

/// A route that can take a path of its host, unless one takes it already. It forwards no such request.
fn route_beside(part: &HostPart, path: &str, slashes: Slashes) -> Option<Arc<Route>> {
    let takes = |(pattern, _): &(PathPattern, _)| pattern.matches(path, slashes);
    if part.default.is_some() || part.paths.iter().any(takes) {
        return None;
    }
    let routes = || part.paths.iter().map(|(_, route)| route);
    let forwards = |route: &&Arc<Route>| matches!(route.action, Action::Forward(_));
    routes().find(forwards).or_else(|| routes().next()).cloned()
}

/// Whether users of the shadowed route sign in or out as well by the other one. Each Ingress has the paths for that.
pub fn is_shared_login(shadowed: &Shadowed, other: &Route) -> bool {
    let policies = shadowed.route.policy.oidc.as_ref().zip(other.policy.oidc.as_ref());
    match (&shadowed.path, policies) {
        (PathPattern::Exact(path), Some((own, others))) => {
            own.is_own_path(path) && others.is_own_path(path) && own.shares_sessions_with(others)
        }
        _ => false,
    }
}
