//! Configuration that changes while requests are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lb_http::Upstream;
use lb_http::upstream::UpstreamProtocol;

use crate::client::Client;
use crate::endpoint::{Endpoint, Then, respond};
use crate::world::{HOST, World, config, name, wait_until};

#[test]
fn replacing_snapshots_under_load_loses_no_request() {
    let endpoints: Vec<_> = (0..3).map(|_| Endpoint::named("ok")).collect();
    let addresses: Vec<_> = endpoints.iter().map(|endpoint| endpoint.address).collect();
    let world = World::with(config(&addresses), |settings| settings.workers = 2);
    let done = AtomicBool::new(false);
    let to = world.http();
    let sent: usize = std::thread::scope(|scope| {
        let load = |_| {
            let done = &done;
            scope.spawn(move || {
                let mut client = Client::connect(to);
                let mut sent = 0;
                while !done.load(Ordering::Relaxed) {
                    let response = client.get(HOST, "/");
                    assert_eq!((response.status, response.text().as_str()), (200, "ok"));
                    sent += 1;
                }
                sent
            })
        };
        let clients: Vec<_> = (0..4).map(load).collect();
        for number in 0..300 {
            // Each snapshot lacks another endpoint.
            let mut some = addresses.clone();
            some.remove(number % some.len());
            world.config.send_replace(Arc::new(config(&some)));
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        done.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    let served: usize = endpoints.iter().map(Endpoint::count).sum();
    assert_eq!(served, sent);
}

#[test]
fn a_removed_endpoint_finishes_its_requests() {
    let go = Arc::new(AtomicBool::new(false));
    let allowed = go.clone();
    let old = Endpoint::start(move |_, stream| {
        wait_until("permission", || allowed.load(Ordering::SeqCst));
        respond(stream, "old");
        Then::Keep
    });
    let new = Endpoint::named("new");
    let world = World::start(config(&[old.address]));
    let mut waiting = Client::connect(world.http());
    waiting.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    old.wait_for(1);
    world.config.send_replace(Arc::new(config(&[new.address])));
    wait_until("the new endpoint", || {
        // A request that still goes to the old one would wait for permission.
        let mut client = Client::connect(world.http());
        client.stream.set_read_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
        client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
        let mut octet = [0];
        client.stream.peek(&mut octet).is_ok_and(|count| count == 1)
    });
    go.store(true, Ordering::SeqCst);
    assert_eq!(waiting.response().text(), "old");
}

#[test]
fn a_draining_endpoint_gets_no_new_clients() {
    let (old, new) = (Endpoint::named("old"), Endpoint::named("new"));
    let mut config = config(&[]);
    let endpoint = |endpoint: &Endpoint| lb_http::UpstreamEndpoint {
        address: endpoint.address,
        is_local: false,
    };
    let upstream = Upstream { endpoints: vec![endpoint(&new)], draining: vec![endpoint(&old)] };
    config.upstreams.insert(name("web", UpstreamProtocol::Http1), Arc::new(upstream));
    let world = World::start(config);
    let mut client = Client::connect(world.http());
    for _ in 0..20 {
        assert_eq!(client.get(HOST, "/").text(), "new");
    }
}
