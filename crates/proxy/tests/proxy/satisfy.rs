//! Routes that want one of their restrictions satisfied, and not all.

use std::io::Write;
use std::sync::Arc;

use http::Method;
use lb_http::RoutePolicy;
use lb_http::auth::Users;
use lb_http::policy::{BasicAuth, ExternalAuth, Satisfy};
use lb_http::upstream::UpstreamProtocol;

use crate::client::Client;
use crate::endpoint::{Endpoint, Then};
use crate::forwarding::echo;
use crate::world::{HOST, World, name, policy_config, upstream};

/// A route with a password and a server that is asked, of which any is enough, for clients of these sources.
struct Restricted {
    endpoint: Endpoint,
    server: Endpoint,
    world: World,
}

impl Restricted {
    fn to(allowed: &[&str]) -> Self {
        let server = Endpoint::start(|request, stream| {
            let status =
                if request.header("x-token").is_some() { "200 OK" } else { "401 Unauthorized" };
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\nX-User: ann\r\nWWW-Authenticate: Bearer\r\nContent-Length: 0\r\n\r\n"
            );
            Then::Keep
        });
        let endpoint = echo();
        let auth = name("auth", UpstreamProtocol::Http1);
        let (users, _) = Users::parse("ann:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=");
        let policy = RoutePolicy {
            allowed_sources: allowed.iter().map(|network| network.parse().unwrap()).collect(),
            satisfy: Satisfy::Any,
            basic_auth: Some(BasicAuth { realm: "r".into(), users: Some(Arc::new(users)) }),
            external_auth: Some(ExternalAuth {
                upstream: auth.clone(),
                url: "http://auth.test/check".parse().unwrap(),
                method: Method::GET,
                signin: None,
                response_headers: vec!["x-user".parse().unwrap()],
            }),
            ..RoutePolicy::default()
        };
        let mut config = policy_config(&[endpoint.address], policy);
        config.upstreams.insert(auth, upstream(&[server.address]));
        let world = World::start(config);
        Self { endpoint, server, world }
    }

    /// The status, and how often the server was asked until now.
    fn status(&self, headers: &str) -> (u16, usize) {
        let mut client = Client::connect(self.world.http());
        client.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nX-User: root\r\n{headers}\r\n"));
        (client.response().status, self.server.count())
    }
}

#[test]
fn a_password_or_the_other_server_gives_access() {
    let restricted = Restricted::to(&["198.51.100.0/24"]);
    assert_eq!(restricted.status(""), (401, 1));
    assert_eq!(restricted.status("Authorization: Basic YW5uOndyb25n\r\n"), (401, 2));
    assert_eq!(restricted.endpoint.count(), 0);
    assert_eq!(restricted.status("Authorization: Basic YW5uOnBhc3N3b3Jk\r\n"), (200, 2));
    // The server was not asked, and the client can't name the user in its place.
    assert_eq!(restricted.endpoint.requests()[0].header("x-user"), None);
    assert_eq!(restricted.status("X-Token: good\r\n"), (200, 3));
    assert_eq!(restricted.endpoint.requests()[1].header("x-user"), Some("ann"));
}

#[test]
fn an_allowed_source_is_asked_for_nothing() {
    let restricted = Restricted::to(&["127.0.0.0/8"]);
    assert_eq!(restricted.status(""), (200, 0));
    assert_eq!(restricted.endpoint.requests()[0].header("x-user"), None);
}
