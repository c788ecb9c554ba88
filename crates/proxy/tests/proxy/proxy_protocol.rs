//! The PROXY protocol from load balancers in front of the proxy, and to endpoints.

use lb_http::RoutePolicy;
use lb_http::proxy_protocol::{ProxiedAddresses, Version, encode_v2};

use crate::client::Client;
use crate::endpoint::{Endpoint, Then, respond};
use crate::world::{HOST, World, config, policy_config, wait_until};

fn source() -> Endpoint {
    Endpoint::start(|request, stream| {
        respond(stream, request.header("x-forwarded-for").unwrap());
        Then::Keep
    })
}

fn trusting(endpoint: &Endpoint) -> World {
    World::with(config(&[endpoint.address]), |settings| {
        settings.proxy_protocol = vec!["127.0.0.0/8".parse().unwrap()];
    })
}

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";

#[test]
fn the_header_names_the_client() {
    let endpoint = source();
    let world = trusting(&endpoint);
    let mut client = Client::connect(world.http());
    client.send(format!("PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n{REQUEST}"));
    assert_eq!(client.response().text(), "192.0.2.7");

    let addresses = ProxiedAddresses {
        source: "[2001:db8::7]:4711".parse().unwrap(),
        destination: "[2001:db8::1]:80".parse().unwrap(),
    };
    let mut client = Client::connect(world.http());
    // In pieces, as networks may deliver it.
    let header = encode_v2(Some(&addresses));
    client.send(&header[..7]);
    client.send(&header[7..]);
    client.send(REQUEST);
    assert_eq!(client.response().text(), "2001:db8::7");
}

#[test]
fn trusted_peers_must_send_it_and_others_must_not() {
    let endpoint = source();
    let world = trusting(&endpoint);
    let mut client = Client::connect(world.http());
    client.try_send(REQUEST);
    assert!(client.rest().is_empty());
    let refused = "refused_connections_total{reason=\"proxy_protocol\"}";
    wait_until("refusal", || world.metric(refused) == 1);

    let world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    client.send(format!("PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n{REQUEST}"));
    assert_eq!(client.response().status, 400);
    assert_eq!(endpoint.count(), 0);
}

#[test]
fn limits_count_the_client_that_the_header_names() {
    let endpoint = source();
    let world = World::with(config(&[endpoint.address]), |settings| {
        settings.proxy_protocol = vec!["127.0.0.0/8".parse().unwrap()];
        settings.limits.connections_per_source = 1;
    });
    let connect = |address: &str| {
        let mut client = Client::connect(world.http());
        client.try_send(format!("PROXY TCP4 {address} 192.0.2.1 1 80\r\n{REQUEST}"));
        client
    };
    let mut first = connect("192.0.2.7");
    assert_eq!(first.response().text(), "192.0.2.7");
    assert!(connect("192.0.2.7").rest().is_empty());
    assert_eq!(connect("192.0.2.8").response().text(), "192.0.2.8");
}

/// A load balancer knows the port that the client connected to; this proxy's listener may have another one.
#[test]
fn the_header_names_the_port_that_the_client_connected_to() {
    let endpoint = Endpoint::start(|request, stream| {
        respond(stream, request.header("x-forwarded-port").unwrap());
        Then::Keep
    });
    let inner = trusting(&endpoint);
    let mut client = Client::connect(inner.http());
    client.send(format!("PROXY TCP4 192.0.2.7 192.0.2.1 4711 8080\r\n{REQUEST}"));
    assert_eq!(client.response().text(), "8080");
    // What endpoints learn by the PROXY protocol.
    for version in [Version::V1, Version::V2] {
        let policy =
            RoutePolicy { endpoint_proxy_protocol: Some(version), ..RoutePolicy::default() };
        let outer = World::start(policy_config(&[inner.http()], policy));
        assert_eq!(Client::connect(outer.http()).get(HOST, "/").text(), "80");
    }
}

/// The endpoint is another proxy, which believes what the connection begins with.
#[test]
fn endpoints_learn_the_client_of_each_request() {
    let endpoint = source();
    let inner = trusting(&endpoint);
    for version in [Version::V1, Version::V2] {
        let policy =
            RoutePolicy { endpoint_proxy_protocol: Some(version), ..RoutePolicy::default() };
        let outer = World::with(policy_config(&[inner.http()], policy), |settings| {
            settings.proxy_protocol = vec!["127.0.0.0/8".parse().unwrap()];
        });
        for address in ["192.0.2.7", "192.0.2.8"] {
            let mut client = Client::connect(outer.http());
            client.send(format!("PROXY TCP4 {address} 192.0.2.1 4711 80\r\n"));
            for _ in 0..2 {
                assert_eq!(client.get(HOST, "/").text(), address);
            }
        }
    }
}
