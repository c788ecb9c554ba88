//! Real clients that try to keep others from being served. Clients on 127.0.0.0/8 stand for
//! clients on other machines.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use lb_connections::{AdmissionLimits, IsLocal, Listen, PeerKey, Room, Tcp, accept_all, is_local};
use nix::errno::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::http::serve_connection;

/// Generous: it costs time only when something is wrong.
const SOON: Duration = Duration::from_secs(120);
/// An attacker's connections stay open for as long as a test runs.
const NEVER: Duration = Duration::from_secs(86_400);
const KUBELET: Ipv4Addr = Ipv4Addr::LOCALHOST;

fn limits() -> AdmissionLimits {
    AdmissionLimits {
        head: NEVER,
        response: NEVER,
        keep_alive: NEVER,
        ..AdmissionLimits::new(8, 64, 4)
    }
}

/// Only 127.0.0.1 counts as this node.
fn is_kubelet(peer: IpAddr, _: IpAddr) -> bool {
    peer == KUBELET
}

async fn listen(is_local: IsLocal) -> (Tcp, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (Tcp { listener, is_local }, address)
}

/// Serves /livez at once, and /slow after a value is sent to the returned channel.
async fn start(limits: AdmissionLimits) -> (SocketAddr, watch::Sender<bool>) {
    let (listener, address) = listen(is_kubelet).await;
    let (finish, finished) = watch::channel(false);
    let slow = move || async move {
        let _ = finished.clone().wait_for(|finished| *finished).await;
        "done"
    };
    let router = Router::new().route("/livez", get(|| async { "ok" })).route("/slow", get(slow));
    tokio::spawn(accept_all(listener, Room::new(limits), move |stream, permit| {
        serve_connection(stream, router.clone(), permit)
    }));
    (address, finish)
}

async fn connect(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    timeout(SOON, socket.connect(to)).await.expect("connected").unwrap()
}

async fn send(stream: &mut TcpStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
}

async fn read(mut stream: TcpStream) -> String {
    let mut text = String::new();
    timeout(SOON, stream.read_to_string(&mut text)).await.expect("a response").unwrap();
    text
}

async fn probe(from: Ipv4Addr, to: SocketAddr) -> String {
    let mut stream = connect(from, to).await;
    send(&mut stream, "/livez").await;
    read(stream).await
}

/// Waits until the server has closed a connection.
async fn closed(stream: &mut TcpStream) {
    let read = timeout(SOON, stream.read(&mut [0; 1])).await.expect("the connection is closed");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

/// An attacker's address.
fn attacker(n: u16) -> Ipv4Addr {
    let [high, low] = n.to_be_bytes();
    Ipv4Addr::new(127, 66, high, low)
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_idle_connections_do_not_stop_probes() {
    let (address, _) = start(limits()).await;
    // More connections than the server accepts; it closes the older ones.
    let mut held = VecDeque::new();
    for n in 0..10_000u16 {
        let mut stream = connect(attacker(n / 8), address).await;
        if n % 2 == 0 {
            stream.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
        }
        held.push_back(stream);
        if held.len() > 256 {
            held.pop_front();
        }
        if n % 1000 == 999 {
            assert!(probe(KUBELET, address).await.starts_with("HTTP/1.1 200"));
            assert!(probe(Ipv4Addr::new(127, 0, 0, 2), address).await.starts_with("HTTP/1.1 200"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_take_long_do_not_stop_local_probes() {
    let (address, finish) = start(limits()).await;
    let mut slow = Vec::new();
    for n in 0..64 {
        let mut stream = connect(attacker(n), address).await;
        send(&mut stream, "/slow").await;
        slow.push(stream);
    }
    assert!(probe(KUBELET, address).await.starts_with("HTTP/1.1 200"));
    // Each gets its response, unless it was closed before the server read its request.
    finish.send_replace(true);
    for stream in slow {
        let response = read(stream).await;
        assert!(response.is_empty() || response.ends_with("done"), "{response}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_at_its_limit_loses_its_oldest_connection_and_no_other_peer_does() {
    let (address, _) = start(limits()).await;
    let other = connect(attacker(1), address).await;
    let mut first = connect(attacker(2), address).await;
    let mut rest = Vec::new();
    for _ in 0..4 {
        rest.push(connect(attacker(2), address).await);
    }
    closed(&mut first).await;
    let mut other = other;
    send(&mut other, "/livez").await;
    assert!(read(other).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_are_closed_before_and_after_a_request() {
    let short = Duration::from_millis(10);
    let (address, _) = start(AdmissionLimits { head: short, ..limits() }).await;
    closed(&mut connect(attacker(1), address).await).await;
    let (address, _) = start(AdmissionLimits { keep_alive: short, ..limits() }).await;
    let mut stream = connect(attacker(1), address).await;
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n").await.unwrap();
    assert!(read(stream).await.ends_with("ok"), "the response, and then the end");
}

#[test]
fn a_peer_is_local_on_loopback_or_with_the_address_it_connected_to() {
    for (peer, own, expected) in [
        ("127.0.0.1", "127.0.0.1", true),
        ("::1", "::1", true),
        ("192.0.2.1", "192.0.2.1", true),
        ("192.0.2.2", "192.0.2.1", false),
        ("2001:db8::2", "2001:db8::1", false),
    ] {
        let local = is_local(peer.parse().unwrap(), own.parse().unwrap());
        assert_eq!(local, expected, "{peer} to {own}");
    }
}

/// Fails once without file descriptors, after the first connection.
struct Exhausted {
    tcp: Tcp,
    accepted: std::sync::atomic::AtomicUsize,
}

impl Listen for Exhausted {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Option<PeerKey>)> {
        if self.accepted.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 1 {
            return Err(Errno::EMFILE.into());
        }
        self.tcp.accept().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_file_descriptors_an_idle_connection_is_closed_and_the_loop_goes_on() {
    let (tcp, address) = listen(is_kubelet).await;
    let router = Router::new().route("/livez", get(|| async { "ok" }));
    let listener = Exhausted { tcp, accepted: 0.into() };
    tokio::spawn(accept_all(listener, Room::new(limits()), move |stream, permit| {
        serve_connection(stream, router.clone(), permit)
    }));
    let mut idle = connect(attacker(1), address).await;
    closed(&mut idle).await;
    assert!(probe(KUBELET, address).await.starts_with("HTTP/1.1 200"));
}
