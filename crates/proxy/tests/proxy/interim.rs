//! Interim responses (1xx): clients of HTTP/1.1 get them; they end no request, delay none, and nothing of them reaches
//! another one.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Request, Response};
use lb_http::RoutePolicy;
use lb_http::policy::Timeouts;
use lb_http::upstream::UpstreamProtocol;
use lb_proxy::Config;

use crate::client::Client;
use crate::endpoint::{Endpoint, Then, respond};
use crate::http2;
use crate::world::{
    HOST, World, add_rules, config, name, policy_config, protocol_config, upstream, wait_until,
};

const EXPECTS: &str =
    "POST / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";

/// Replies with what the path names, and then with 200.
fn interim() -> Endpoint {
    Endpoint::start(|request, stream| {
        let text = match request.line.split(' ').nth(1).unwrap() {
            "/continue" => "HTTP/1.1 100 Continue\r\n\r\n",
            "/processing" => "HTTP/1.1 102 Processing\r\n\r\n",
            "/hints" => {
                "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n\
                 HTTP/1.1 103 Early Hints\r\nSet-Cookie: a=b\r\nConnection: close\r\n\r\n"
            }
            "/unknown" => "HTTP/1.1 199 Nothing\r\nX-Interim: yes\r\n\r\n",
            "/length" => "HTTP/1.1 103 Early Hints\r\nContent-Length: 40\r\n\r\n",
            "/chunked" => "HTTP/1.1 103 Early Hints\r\nTransfer-Encoding: chunked\r\n\r\n",
            "/connection" => {
                "HTTP/1.1 103 Early Hints\r\nConnection: x-secret\r\nX-Secret: 1\r\nKeep-Alive: 5\r\n\
                 Upgrade: evil\r\n\r\n"
            }
            _ => "",
        };
        let _ = stream.write_all(text.as_bytes());
        respond(stream, "ok");
        Then::Keep
    })
}

#[test]
fn interim_responses_are_forwarded_but_for_those_that_the_proxy_asked_for() {
    let endpoint = interim();
    let world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    let link = "link: </a.css>; rel=preload";
    for (path, expected) in [
        // It is for the proxy: the client has asked for nothing.
        ("/continue", vec![]),
        ("/processing", vec![vec!["HTTP/1.1 102 Processing"]]),
        // What concerns the endpoint's connection is not for the client.
        ("/hints", vec![vec!["HTTP/1.1 103 Early Hints", link], vec!["HTTP/1.1 103 Early Hints"]]),
        ("/unknown", vec![vec!["HTTP/1.1 199 <none>", "x-interim: yes"]]),
        // Nothing in it says that it has a body.
        ("/length", vec![vec!["HTTP/1.1 103 Early Hints"]]),
        ("/chunked", vec![vec!["HTTP/1.1 103 Early Hints"]]),
        ("/connection", vec![vec!["HTTP/1.1 103 Early Hints"]]),
        ("/", vec![]),
    ] {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
        for lines in expected {
            assert_eq!(client.head().unwrap(), format!("{}\r\n\r\n", lines.join("\r\n")));
        }
        let head = client.head().unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
        assert!(!["link:", "set-cookie:", "x-interim:"].iter().any(|name| head.contains(name)));
        assert_eq!(client.take(2).unwrap(), b"ok", "{path}");
    }
    // Both connections carried all requests.
    assert!(endpoint.requests().iter().all(|request| request.connection == 0));
    // A client of HTTP/1.0 would take an interim response for the final one.
    client.send(format!("GET /hints HTTP/1.0\r\nHost: {HOST}\r\n\r\n"));
    assert!(client.head().unwrap().contains(" 200 "));
}

/// Browsers show what a hint announces long before the endpoint knows its response.
#[test]
fn an_interim_response_does_not_wait_for_the_final_one() {
    let (go_on, waits) = std::sync::mpsc::channel::<()>();
    let waits = std::sync::Mutex::new(waits);
    let endpoint = Endpoint::start(move |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n");
        let _ = waits.lock().unwrap().recv();
        respond(stream, "ok");
        Then::Keep
    });
    let world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    client.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
    assert!(client.head().unwrap().starts_with("HTTP/1.1 103 "));
    go_on.send(()).unwrap();
    assert_eq!(client.response().text(), "ok");
}

#[test]
fn a_client_gets_few_interim_responses_for_one_request() {
    let endpoint = Endpoint::start(|_, stream| {
        let _ = stream.write_all("HTTP/1.1 103 \r\nLink: </a>\r\n\r\n".repeat(50).as_bytes());
        respond(stream, "ok");
        Then::Keep
    });
    let world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    for _ in 0..2 {
        client.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
        for _ in 0..4 {
            assert!(client.head().unwrap().starts_with("HTTP/1.1 103 "));
        }
        assert!(client.head().unwrap().starts_with("HTTP/1.1 200 "));
        assert_eq!(client.take(2).unwrap(), b"ok");
    }
}

/// What an endpoint sends beside its response must not become the response to the next request on that connection,
/// which may be another client's.
#[test]
fn an_interim_response_has_no_body_that_becomes_the_next_response() {
    for (first, late) in [
        // What follows the head is read as the next response, whatever the head says about a body.
        ("HTTP/1.1 103 Early Hints\r\nContent-Length: 40\r\n\r\n", ""),
        ("HTTP/1.1 103 Early Hints\r\nTransfer-Encoding: chunked\r\n\r\n", ""),
        // They come after the final response.
        ("", "HTTP/1.1 100 Continue\r\n\r\n"),
        ("", "HTTP/1.1 103 Early Hints\r\nLink: </evil>\r\n\r\n"),
        ("", "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"),
    ] {
        let closed = Arc::new(AtomicUsize::new(0));
        let counter = closed.clone();
        let endpoint = Endpoint::start(move |_, stream| {
            let _ = stream.write_all(first.as_bytes());
            respond(stream, "ok");
            if late.is_empty() {
                return Then::Keep;
            }
            let _ = stream.write_all(late.as_bytes());
            if stream.read_to_end(&mut Vec::new()).is_ok_and(|count| count == 0) {
                counter.fetch_add(1, Ordering::SeqCst);
            }
            Then::Close
        });
        let world = World::start(config(&[endpoint.address]));
        let mut client = Client::connect(world.http());
        for round in 1..=5 {
            assert_eq!(client.get(HOST, "/").text(), "ok", "{first}{late}");
            // A request before the proxy has noticed would meet the connection.
            let is_closed = || late.is_empty() || closed.load(Ordering::SeqCst) == round;
            wait_until("the proxy closes the connection", is_closed);
        }
    }
}

#[test]
fn a_change_of_protocol_that_no_one_asked_for_is_an_error() {
    let endpoint = Endpoint::start(|request, stream| {
        let text = if request.line.starts_with("GET /bare ") {
            "HTTP/1.1 101 Switching Protocols\r\n\r\n"
        } else {
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: evil\r\n\r\n"
        };
        let _ = stream.write_all(text.as_bytes());
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
        Then::Close
    });
    let world = World::start(config(&[endpoint.address]));
    for path in ["/bare", "/"] {
        let mut client = Client::connect(world.http());
        assert_eq!(client.get(HOST, path).status, 502, "{path}");
    }
}

#[test]
fn a_flood_of_interim_responses_is_cut_off() {
    for interim in [
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 102 \r\n\r\n",
    ] {
        let endpoint = Endpoint::on_heads(true, move |_, stream| {
            while stream.write_all(interim.as_bytes()).is_ok() {}
            Then::Close
        });
        let world = World::start(config(&[endpoint.address]));
        for request in ["POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n", EXPECTS] {
            let mut client = Client::connect(world.http());
            client.send(request);
            let response = client.response();
            assert_eq!(response.status, 502, "{interim}");
        }
        assert_eq!(endpoint.count(), 2, "{interim}");
    }
}

/// Interim responses show that the endpoint lives, not that it ever replies.
#[test]
fn interim_responses_do_not_extend_the_limit() {
    let endpoint = Endpoint::start(|_, stream| {
        while stream.write_all(b"HTTP/1.1 102 Processing\r\n\r\n").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
        Then::Close
    });
    let timeouts = Timeouts { read: Duration::from_millis(300), ..Timeouts::default() };
    let policy = RoutePolicy { timeouts, ..RoutePolicy::default() };
    let world = World::start(policy_config(&[endpoint.address], policy));
    let mut client = Client::connect(world.http());
    assert_eq!(client.get(HOST, "/").status, 504);
}

#[test]
fn an_endpoint_of_http2_floods_only_its_own_request() {
    let flooded = Arc::new(AtomicUsize::new(0));
    let count = flooded.clone();
    let (address, _) =
        http2::endpoint(move |request: Request<RecvStream>, mut respond: SendResponse<Bytes>| {
            let count = count.clone();
            async move {
                let hints =
                    || Response::builder().status(103).header("link", "</a>").body(()).unwrap();
                while request.uri().path() == "/flood"
                    && respond.send_informational(hints()).is_ok()
                {
                    count.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                }
                // The stream of a flood was reset.
                if let Ok(mut stream) = respond.send_response(Response::new(()), false) {
                    let _ = stream.send_data(Bytes::from_static(b"ok"), true);
                }
            }
        });
    let timeouts = Timeouts { read: Duration::from_millis(500), ..Timeouts::default() };
    let short = RoutePolicy { timeouts, ..RoutePolicy::default() };
    let mut config = Config::default();
    let web = name("web", UpstreamProtocol::H2c);
    add_rules(&mut config, HOST, &web, vec![("/flood", short), ("/", RoutePolicy::default())]);
    config.upstreams.insert(web, upstream(&[address]));
    let world = World::start(config);
    let mut flooded_client = Client::connect(world.http());
    flooded_client.send(format!("GET /flood HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
    let mut client = Client::connect(world.http());
    // Requests that share the connection with the flood.
    for _ in 0..5 {
        assert_eq!(client.get(HOST, "/").text(), "ok");
    }
    assert_eq!(flooded_client.response().status, 504);
    assert!(flooded.load(Ordering::SeqCst) > 0);
    assert_eq!(client.get(HOST, "/").text(), "ok");
}

/// Interim responses of HTTP/2 are not seen, so the body must not wait for one.
#[test]
fn an_endpoint_of_http2_gets_an_expected_body_at_once() {
    let (address, _) = http2::endpoint(
        |request: Request<RecvStream>, mut respond: SendResponse<Bytes>| async move {
            let (text, _) = http2::body(request.into_body()).await;
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            stream.send_data(text.into(), true).unwrap();
        },
    );
    let config = protocol_config(&[address], RoutePolicy::default(), UpstreamProtocol::H2c);
    // Longer than the test waits.
    let world = World::with(config, |settings| {
        settings.limits.expectation = Duration::from_secs(3600);
    });
    let mut client = Client::connect(world.http());
    client.send(EXPECTS);
    assert!(client.head().unwrap().starts_with("HTTP/1.1 100 "));
    client.send("ok");
    assert_eq!(client.response().text(), "ok");
}

#[test]
fn a_client_need_not_wait_and_the_next_request_is_its_own() {
    let endpoint = Endpoint::on_heads(true, |request, stream| {
        let mut body = request.body.clone();
        let _ = stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
        while body.len() < 2 {
            let mut octets = [0; 2];
            let count = stream.read(&mut octets).unwrap();
            body.extend_from_slice(&octets[..count]);
        }
        respond(stream, std::str::from_utf8(&body).unwrap());
        Then::Keep
    });
    let world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    // Bodies and the next head follow at once.
    client.send(format!("{EXPECTS}ab{EXPECTS}cd"));
    assert_eq!(client.response().text(), "ab");
    assert_eq!(client.response().text(), "cd");
    assert_eq!(endpoint.count(), 2);
    assert_eq!(endpoint.errors(), [""; 0]);
}

/// Such a client holds a connection to an endpoint, and must not do so forever.
#[test]
fn a_client_that_announces_a_body_and_sends_none_is_cut_off() {
    let endpoint = Endpoint::on_heads(true, |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
        let _ = stream.read(&mut [0]);
        Then::Close
    });
    let world = World::with(config(&[endpoint.address]), |settings| {
        settings.limits.body_stall = Duration::from_millis(200);
    });
    let mut client = Client::connect(world.http());
    client.send(EXPECTS);
    assert_eq!(client.response().status, 408);
    assert!(client.is_closed());
}
