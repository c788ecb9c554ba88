//! Which requests are sent again, and that no other is.

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::sleep;
use std::time::Duration;

use lb_http::RoutePolicy;
use lb_http::policy::{Retry, Timeouts};

use crate::client::Client;
use crate::endpoint::{Endpoint, Then, respond};
use crate::forwarding::CLOSED;
use crate::world::{HOST, PATIENCE, World, config, policy_config, wait_until};

#[test]
fn a_request_goes_to_another_endpoint_if_one_cannot_be_reached() {
    let endpoint = Endpoint::named("alive");
    let mut world = World::start(config(&[CLOSED, endpoint.address]));
    let mut client = Client::connect(world.http());
    for number in 0..20 {
        client.send(format!(
            "POST /{number} HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n\r\nhi"
        ));
        assert_eq!(client.response().text(), "alive");
    }
    assert_eq!(endpoint.count(), 20);
    let entry = world.logged(|entry| entry.tries > 1);
    assert_eq!((entry.status, entry.endpoint), (200, Some(endpoint.address)));
    assert!(world.metric("retries_total{namespace=\"default\",ingress=\"web\"}") > 0);
}

#[test]
fn an_endpoint_that_takes_too_long_is_given_up_if_the_policy_says_so() {
    for (on_timeout, tries) in [(true, 2), (false, 1)] {
        let silent = Endpoint::start(|_, _| Then::Keep);
        let retry = Retry { tries: 2, on_timeout, ..Retry::default() };
        let timeouts = Timeouts { read: Duration::from_millis(50), ..Timeouts::default() };
        let policy = RoutePolicy { retry, timeouts, ..RoutePolicy::default() };
        let other = Endpoint::start(|_, _| Then::Keep);
        let mut world = World::start(policy_config(&[silent.address, other.address], policy));
        let mut client = Client::connect(world.http());
        client.send("PUT / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(client.response().status, 504);
        assert_eq!(world.logged(|entry| entry.status == 504).tries, tries);
    }
}

/// Serves the first request of a connection, and closes it at the second one without a response.
fn closes_at_the_second() -> Endpoint {
    let seen = Arc::new(AtomicUsize::new(usize::MAX));
    Endpoint::start(move |request, stream| {
        if seen.swap(request.connection, Ordering::SeqCst) == request.connection {
            return Then::Close;
        }
        respond(stream, "ok");
        Then::Keep
    })
}

#[test]
fn an_idempotent_request_on_a_stale_connection_is_sent_again() {
    let endpoint = closes_at_the_second();
    let retry = Retry { tries: 1, ..Retry::default() };
    let policy = RoutePolicy { retry, ..RoutePolicy::default() };
    let world = World::start(policy_config(&[endpoint.address], policy));
    let mut client = Client::connect(world.http());
    for _ in 0..4 {
        assert_eq!(client.get(HOST, "/").text(), "ok");
    }
    // The second one of each connection was sent again on a new one.
    assert_eq!(endpoint.count(), 7);
    let errors = "upstream_errors_total{namespace=\"default\",ingress=\"web\",reason=\"closed\"}";
    assert_eq!(world.metric(errors), 3);
}

#[test]
fn a_request_that_is_not_idempotent_is_never_processed_twice() {
    let endpoint = closes_at_the_second();
    let world = World::start(config(&[endpoint.address]));
    let mut client = Client::connect(world.http());
    let post = "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n\r\nhi";
    client.send(post);
    assert_eq!(client.response().status, 200);
    client.send(post);
    assert_eq!(client.response().status, 502);
    assert_eq!(endpoint.count(), 2);
}

#[test]
fn a_body_that_was_partly_sent_is_not_sent_again() {
    let closing = Endpoint::on_heads(true, |_, _| Then::Close);
    let world = World::start(config(&[closing.address, closing.address]));
    let mut client = Client::connect(world.http());
    client.send("PUT / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!(client.response().status, 502);
    assert_eq!(closing.count(), 1);
}

#[test]
fn statuses_are_retried_where_the_policy_says_so() {
    let failing = Endpoint::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno");
        Then::Keep
    });
    let good = Endpoint::named("good");
    let addresses = [failing.address, good.address];
    let retry = Retry { statuses: [503].into(), ..Retry::default() };
    let policy = RoutePolicy { retry, ..RoutePolicy::default() };
    let world = World::start(policy_config(&addresses, policy));
    let mut client = Client::connect(world.http());
    for _ in 0..20 {
        assert_eq!(client.get(HOST, "/").text(), "good");
    }
    let before = good.count() + failing.count();
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n");
    client.response();
    assert_eq!(good.count() + failing.count(), before + 1);
}

#[test]
fn an_endpoint_that_keeps_failing_is_ejected() {
    let bad = Endpoint::start(|_, _| Then::Close);
    let good = Endpoint::named("good");
    let world = World::start(config(&[bad.address, good.address]));
    let mut client = Client::connect(world.http());
    for _ in 0..200 {
        assert_eq!(client.get(HOST, "/").text(), "good");
    }
    assert!(bad.count() < 20, "{} requests to the bad endpoint", bad.count());
    assert!(world.metric("ejections_total{namespace=\"default\",ingress=\"web\"}") > 0);
}

#[test]
fn without_another_endpoint_the_client_gets_the_response_that_would_be_retried() {
    let failing = Endpoint::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 503 No\r\nContent-Length: 3\r\n\r\nown");
        Then::Keep
    });
    let retry = Retry { statuses: [503].into(), ..Retry::default() };
    let policy = RoutePolicy { retry, ..RoutePolicy::default() };
    let world = World::start(policy_config(&[failing.address], policy));
    let response = Client::connect(world.http()).get(HOST, "/");
    assert_eq!((response.status, response.text().as_str()), (503, "own"));
    assert_eq!(failing.count(), 1);
}

#[test]
fn endpoints_that_fail_under_load_get_few_retries() {
    const REQUESTS: usize = 10;
    const RETRIES: usize = 3;
    let (seen, first, second) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)), Arc::default());
    let serve = || {
        let (seen, first) = (seen.clone(), first.clone());
        let second: Arc<AtomicBool> = Arc::clone(&second);
        Endpoint::start(move |_, stream| {
            let is_retry = seen.fetch_add(1, Ordering::SeqCst) >= REQUESTS;
            let go = if is_retry { &second } else { &first };
            wait_until("permission", || go.load(Ordering::SeqCst));
            let _ = stream.write_all(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n");
            Then::Keep
        })
    };
    let addresses = [serve().address, serve().address];
    let retry = Retry { statuses: [503].into(), tries: 2, ..Retry::default() };
    let world =
        World::start(policy_config(&addresses, RoutePolicy { retry, ..RoutePolicy::default() }));
    let address = world.http();
    let get = || std::thread::spawn(move || Client::connect(address).get(HOST, "/").status);
    let clients: Vec<_> = (0..REQUESTS).map(|_| get()).collect();
    wait_until("requests", || seen.load(Ordering::SeqCst) == REQUESTS);
    first.store(true, Ordering::SeqCst);
    let ended = || clients.iter().filter(|client| client.is_finished()).count();
    wait_until("responses without retry", || ended() + seen.load(Ordering::SeqCst) == REQUESTS * 2);
    assert_eq!(seen.load(Ordering::SeqCst), REQUESTS + RETRIES);
    second.store(true, Ordering::SeqCst);
    for client in clients {
        assert_eq!(client.join().unwrap(), 503);
    }
}

#[test]
fn an_endpoint_that_fails_is_ejected_for_all_workers() {
    let failing = Endpoint::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n");
        Then::Keep
    });
    let good = Endpoint::named("good");
    let policy =
        RoutePolicy { retry: Retry { tries: 1, ..Retry::default() }, ..RoutePolicy::default() };
    let world = World::with(policy_config(&[failing.address, good.address], policy), |settings| {
        settings.workers = 4;
        settings.balancing.ejection = settings.balancing.longest_ejection;
    });
    // The kernel spreads the connections over the workers.
    for _ in 0..100 {
        Client::connect(world.http()).get(HOST, "/");
    }
    assert_eq!(failing.count(), 5);
    let series = "ejections_total{namespace=\"default\",ingress=\"web\"}";
    assert_eq!(world.metric(series), 1);
}

/// One endpoint refuses a body without reading it, and another one takes it. The first one gets none of it, and its
/// connection, on which the body is missing, ends.
fn a_refused_body(refuses_late: bool) {
    let wanted = Arc::new(AtomicBool::new(false));
    let (seen, by_the_first) = mpsc::channel();
    let is_wanted = wanted.clone();
    let refusing = Endpoint::on_heads(true, move |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nn");
        if refuses_late {
            wait_until("the other endpoint", || is_wanted.load(Ordering::SeqCst));
        }
        let _ = stream.write_all(b"o");
        let _ = seen.send(stream.read(&mut [0]).map_err(|error| error.kind()));
        Then::Close
    });
    let wants = wanted.clone();
    let taking = Endpoint::on_heads(true, move |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
        wants.store(true, Ordering::SeqCst);
        let mut body = [0; 2];
        let _ = stream.read_exact(&mut body);
        respond(stream, std::str::from_utf8(&body).unwrap());
        Then::Keep
    });
    let retry = Retry { statuses: [503].into(), ..Retry::default() };
    let policy = RoutePolicy { retry, ..RoutePolicy::default() };
    let world = World::start(policy_config(&[refusing.address, taking.address], policy));
    while refusing.count() == 0 {
        wanted.store(false, Ordering::SeqCst);
        let mut client = Client::connect(world.http());
        client.send(
            "PUT / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
        );
        assert!(client.head().unwrap().starts_with("HTTP/1.1 100 "));
        // Time for the end of the late refusal to arrive first.
        sleep(Duration::from_millis(50));
        client.send("hi");
        assert_eq!(client.response().text(), "hi");
    }
    let seen = by_the_first.recv_timeout(PATIENCE / 4).expect("the connection stays");
    assert!(matches!(seen, Ok(0) | Err(ErrorKind::ConnectionReset)), "{seen:?}");
}

#[test]
fn a_connection_ends_whose_body_another_endpoint_gets() {
    a_refused_body(false);
}

#[test]
fn an_endpoint_that_refuses_late_takes_no_body_from_the_next_one() {
    a_refused_body(true);
}
