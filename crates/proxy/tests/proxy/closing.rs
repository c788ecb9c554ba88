//! The end of a connection: the client learns of it from the last response, and gets that response.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use lb_http::RoutePolicy;
use lb_http::auth::Users;
use lb_http::policy::{BasicAuth, TlsRedirect};

use crate::client::Client;
use crate::endpoint::{Endpoint, Then};
use crate::tls::{self, trusting};
use crate::world::{HOST, World, config, hosts, policy_config, self_signed, terminate};

const EXPECTS: &str =
    "POST / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";

/// A request with a body of this length, of which a part is sent.
fn upload(length: usize, sent: usize) -> String {
    let body = "x".repeat(sent);
    format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {length}\r\n\r\n{body}")
}

/// Reads a response. The connection must be kept exactly if that does not say `close`. Whether it is.
fn read_and_check_end(client: &mut Client, status: u16) -> bool {
    let response = client.response();
    assert_eq!(response.status, status);
    if response.header("connection") == Some("close") {
        assert!(client.is_closed());
        return false;
    }
    assert_eq!(client.get(HOST, "/").status, status);
    true
}

#[test]
fn only_the_last_response_says_close() {
    let world = World::start(config(&[]));
    for (length, sent, is_kept) in [(20_000, 20_000, true), (20_000, 10_000, false)] {
        let mut client = Client::connect(world.http());
        client.send(upload(length, sent));
        assert_eq!(read_and_check_end(&mut client, 503), is_kept, "{sent} of {length}");
    }
    let refuses = Endpoint::on_heads(true, |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n");
        Then::Keep
    });
    let world = World::start(config(&[refuses.address]));
    let mut client = Client::connect(world.http());
    client.send(EXPECTS);
    assert!(!read_and_check_end(&mut client, 401));
}

/// An endpoint may send `100 Continue` together with its response: it waits for the body.
#[test]
fn a_body_that_the_endpoint_wants_follows_an_early_response() {
    let endpoint = Endpoint::on_heads(true, |_, stream| {
        let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";
        let _ = stream.write_all(text.as_bytes());
        let mut body = [0; 2];
        if stream.read_exact(&mut body).is_ok() {
            let _ = stream.write_all(&body);
        }
        Then::Close
    });
    let world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    client.send(format!("{EXPECTS}ab"));
    assert_eq!(client.response().text(), "ab");
}

#[test]
fn a_refused_body_that_is_there_as_a_whole_ends_no_connection() {
    let world = World::start(config(&[]));
    let mut client = Client::connect(world.http());
    let requests = [
        "POST / HTTP/1.1\r\nHost: b.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
            .to_owned(),
        upload(9_000, 9_000).replace(HOST, "b.test"),
    ];
    for request in requests.iter().cycle().take(4) {
        client.send(request);
        let response = client.response();
        assert_eq!((response.status, response.header("connection")), (404, None));
    }
}

/// Closing a socket that has unread octets resets the connection, and the client's system drops what the client has not
/// read.
#[test]
fn a_client_that_reads_only_after_it_has_sent_all_gets_the_refusal() {
    let (users, _) = Users::parse("ann:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=");
    let basic = BasicAuth { realm: "r".into(), users: Some(Arc::new(users)) };
    let password = RoutePolicy { basic_auth: Some(basic), ..RoutePolicy::default() };
    let small = RoutePolicy { max_body: Some(10), ..RoutePolicy::default() };
    let endpoint = Endpoint::named("ok");
    let pair = self_signed(&[HOST]);
    let large = upload(200_000, 200_000);
    let malformed = upload(200_000, 200_000).replace("POST / ", "POST  / ");
    let long_head = large.replace("Host:", &format!("X: {}\r\nHost:", "x".repeat(100_000)));
    for (policy, request, status) in [
        (password, &large, 401),
        (small, &large, 413),
        (RoutePolicy::default(), &malformed, 400),
        (RoutePolicy::default(), &long_head, 431),
    ] {
        let policy = RoutePolicy { tls_redirect: TlsRedirect::Never, ..policy };
        let mut config = policy_config(&[endpoint.address], policy);
        config.tls = hosts(&[(HOST, &terminate(&pair))]);
        let world = World::start(config);
        let mut client = Client::connect(world.http());
        let mut encrypted = tls::connect(world.https(), &trusting(&[&pair], None), HOST).unwrap();
        client.send(request);
        encrypted.send(request);
        std::thread::sleep(Duration::from_millis(200));
        for response in [client.response(), encrypted.response()] {
            assert_eq!((response.status, response.header("connection")), (status, Some("close")));
        }
    }
}

#[test]
fn an_upload_may_go_on_after_its_response() {
    const PART: [u8; 100] = [b'x'; 100];
    const PARTS: usize = 20;
    let (to_test, complete) = std::sync::mpsc::channel();
    let endpoint = Endpoint::on_heads(true, move |request, stream| {
        let _ = stream.write_all(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n");
        let mut body = vec![0; PART.len() * PARTS - request.body.len()];
        let _ = to_test.send(stream.read_exact(&mut body).is_ok());
        Then::Close
    });
    let world = World::with(config(&[endpoint.address]), |settings| {
        settings.limits.head = Duration::from_millis(200);
    });
    let mut client = Client::connect(world.http());
    client.send(upload(PART.len() * PARTS, 0));
    assert_eq!(client.response().status, 202);
    for _ in 0..PARTS {
        assert!(client.try_send(PART));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(world.metric("cut_off_total{reason=\"slow_head\"}"), 0);
    assert!(complete.recv().unwrap());
}

/// Without a length and without chunks, the end of the connection is the end of the response.
#[test]
fn a_response_of_http_1_0_that_breaks_off_ends_with_a_reset() {
    let endpoint = Endpoint::start(|_, stream| {
        let part = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n";
        let _ = stream.write_all(part);
        Then::Close
    });
    let world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    client.send(format!("GET / HTTP/1.0\r\nHost: {HOST}\r\n\r\n"));
    let error = client.stream.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}
