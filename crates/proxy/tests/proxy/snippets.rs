//! What routes do in addition, in the words of nginx.

use std::io::Write;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};
use lb_http::RoutePolicy;
use lb_http::policy::AffinityCookie;
use lb_http::snippet::{
    AddedHeader, HeaderChange, HeaderTemplate, HeaderVariable, ReturnedResponse, SnippetRules,
    SourceRule, TemplatePart,
};

use crate::client::Client;
use crate::endpoint::{Endpoint, Then};
use crate::world::{HOST, World, policy_config};

fn name(text: &str) -> HeaderName {
    text.parse().unwrap()
}

fn start(endpoint: &Endpoint, rules: SnippetRules) -> World {
    let policy = RoutePolicy { snippet: Some(Arc::new(rules)), ..RoutePolicy::default() };
    World::start(policy_config(&[endpoint.address], policy))
}

fn variable(variable: HeaderVariable) -> HeaderTemplate {
    HeaderTemplate(vec![TemplatePart::Variable(variable)])
}

#[test]
fn headers_are_changed_on_both_ways() {
    let endpoint = Endpoint::start(|_, stream| {
        let _ = stream.write_all(
            b"HTTP/1.1 200 OK\r\nX-Powered-By: a\r\nServer: b\r\nContent-Length: 2\r\n\r\nhi",
        );
        Then::Keep
    });
    let rules = SnippetRules {
        request_headers: vec![
            (name("x-user"), HeaderTemplate::text("")),
            (name("x-host"), variable(HeaderVariable::Host)),
            (name("x-client"), variable(HeaderVariable::ClientAddress)),
        ],
        hidden_headers: vec![name("x-powered-by")],
        response_headers: vec![
            HeaderChange::Set(name("x-method"), variable(HeaderVariable::Method)),
            HeaderChange::Clear(name("server")),
        ],
        added_headers: vec![AddedHeader {
            name: name("x-added"),
            value: HeaderTemplate::text("1"),
            always: false,
        }],
        ..SnippetRules::default()
    };
    let world = start(&endpoint, rules);
    let mut client = Client::connect(world.http());
    client.send(format!("GET / HTTP/1.1\r\nHost: {HOST}:81\r\nX-User: root\r\n\r\n"));
    let response = client.response();
    assert_eq!(response.text(), "hi");
    for (header, value) in [
        ("x-powered-by", None),
        ("server", None),
        ("x-method", Some("GET")),
        ("x-added", Some("1")),
    ] {
        assert_eq!(response.header(header), value, "{header}");
    }
    let request = &endpoint.requests()[0];
    assert_eq!(request.header("x-user"), None);
    assert_eq!(request.header("x-host"), Some(HOST));
    assert_eq!(request.header("x-client"), Some("127.0.0.1"));
    assert_eq!(request.header("x-forwarded-for"), Some("127.0.0.1"));
}

#[test]
fn a_route_hides_no_cookie_of_its_own() {
    let endpoint = Endpoint::start(|_, stream| {
        let _ =
            stream.write_all(b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n");
        Then::Keep
    });
    let rules =
        SnippetRules { hidden_headers: vec![name("set-cookie")], ..SnippetRules::default() };
    let policy = RoutePolicy {
        snippet: Some(Arc::new(rules)),
        affinity: Some(AffinityCookie::named("route")),
        ..RoutePolicy::default()
    };
    let world = World::start(policy_config(&[endpoint.address], policy));
    let response = Client::connect(world.http()).get(HOST, "/");
    assert!(response.header("set-cookie").unwrap().starts_with("route="));
}

#[test]
fn what_is_returned_comes_before_the_sources() {
    let endpoint = Endpoint::named("never");
    let denied = vec![SourceRule { network: None, is_allowed: false }];
    let text = |status, text: Option<&str>| ReturnedResponse::Text {
        status,
        media_type: HeaderValue::from_static("application/json"),
        text: text.map(Into::into),
    };
    let json = (StatusCode::OK, Some("application/json"));
    let redirect =
        ReturnedResponse::Redirect { status: StatusCode::FOUND, location: "/b$request_uri".into() };
    for (returned, (status, media_type), body) in [
        (Some(text(StatusCode::OK, Some("{}"))), json, "{}"),
        (Some(text(StatusCode::OK, Some(""))), json, ""),
        (
            Some(text(StatusCode::NOT_FOUND, None)),
            (StatusCode::NOT_FOUND, Some("text/plain; charset=utf-8")),
            "404 Not Found\n",
        ),
        (Some(redirect), (StatusCode::FOUND, None), ""),
        (None, (StatusCode::FORBIDDEN, Some("text/plain; charset=utf-8")), "403 Forbidden\n"),
    ] {
        let rules = SnippetRules { returned, sources: denied.clone(), ..SnippetRules::default() };
        let world = start(&endpoint, rules);
        let mut client = Client::connect(world.http());
        for _ in 0..2 {
            let response = client.get(HOST, "/a?b");
            assert_eq!((response.status, response.text().as_str()), (status.as_u16(), body));
            assert_eq!(response.header("content-type"), media_type, "{status}");
            let location = (status == StatusCode::FOUND).then_some("/b/a?b");
            assert_eq!(response.header("location"), location);
        }
        client.send(format!("HEAD /a HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"));
        assert!(client.head().unwrap().starts_with(&format!("HTTP/1.1 {}", status.as_u16())));
    }
    assert_eq!(endpoint.count(), 0);
}
