//! The end of a proxy, and its successor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::client::Client;
use crate::endpoint::{Endpoint, Then, respond};
use crate::upgrades::{echo_after_upgrade, upgrade};
use crate::world::{HOST, World, config, wait_until};

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

#[test]
fn requests_finish_before_the_proxy_does() {
    let go = Arc::new(AtomicBool::new(false));
    let allowed = go.clone();
    let endpoint = Endpoint::start(move |request, stream| {
        if request.line.starts_with("GET /slow ") {
            wait_until("permission", || allowed.load(Ordering::SeqCst));
        }
        respond(stream, "done");
        Then::Keep
    });
    let mut world = World::start(config(&[endpoint.address]));
    let address = world.http();
    let mut idle = Client::connect(address);
    assert_eq!(idle.get(HOST, "/").status, 200);
    let mut busy = Client::connect(address);
    busy.send("GET /slow HTTP/1.1\r\nHost: a.test\r\n\r\n");
    endpoint.wait_for(2);
    let proxy = world.proxy.take().unwrap();
    let ended = std::thread::spawn(move || block_on(proxy.shutdown()));
    assert!(idle.is_closed());
    wait_until("closed listener", || std::net::TcpStream::connect(address).is_err());
    assert!(!ended.is_finished());
    go.store(true, Ordering::SeqCst);
    let response = busy.response();
    assert_eq!(response.text(), "done");
    assert!(busy.is_closed());
    ended.join().unwrap();
}

#[test]
fn a_first_head_that_comes_slowly_does_not_delay_the_end() {
    let mut world = World::with(config(&[]), |settings| {
        settings.limits.head = Duration::from_millis(200);
        settings.shutdown_grace = Duration::from_secs(600);
    });
    let mut client = Client::connect(world.http());
    client.send("GET");
    wait_until("connection", || world.metric("open_connections{listener=\"http\"}") == 1);
    let proxy = world.proxy.take().unwrap();
    let ended = std::thread::spawn(move || block_on(proxy.shutdown()));
    assert!(client.is_closed());
    ended.join().unwrap();
}

#[test]
fn the_grace_ends_tunnels() {
    let endpoint = echo_after_upgrade();
    let mut world = World::with(config(&[endpoint.address]), |settings| {
        settings.shutdown_grace = Duration::from_millis(300);
    });
    let mut client = Client::connect(world.http());
    upgrade(&mut client);
    assert_eq!(client.take(6).unwrap(), b"hello ");
    block_on(world.proxy.take().unwrap().shutdown());
    assert!(client.is_closed());
}

#[test]
fn a_successor_takes_the_sockets_over_without_losing_a_connection() {
    let endpoint = Endpoint::named("ok");
    let mut old = World::with(config(&[endpoint.address]), |settings| settings.workers = 2);
    let address = old.http();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = |_| {
            let done = &done;
            scope.spawn(move || {
                let mut sent = 0;
                while !done.load(Ordering::Relaxed) {
                    let mut client = Client::connect(address);
                    client.send("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
                    assert_eq!(client.response().text(), "ok");
                    sent += 1;
                }
                assert!(sent > 0);
            })
        };
        let clients: Vec<_> = (0..2).map(load).collect();
        for _ in 0..5 {
            let sockets = old.proxy().listeners().iter().map(|s| s.try_clone().unwrap());
            let inherited = sockets.collect();
            let new = World::with(config(&[endpoint.address]), |settings| {
                settings.inherited = inherited;
                settings.http = vec![address];
                settings.workers = 2;
            });
            block_on(old.proxy.take().unwrap().shutdown());
            old = new;
        }
        done.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
    });
}
