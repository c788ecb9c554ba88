//! etcd for the same writes, over gRPC. The messages are few, so they are written by hand.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Incoming;
use tokio::sync::mpsc;

use super::connection::{Connection, perform};
use super::load::{CHANGES, Load, name, object};
use super::process::Server;
use super::report::{Figures, Writes};

const CONNECTIONS: usize = 8;
const WATCHES: usize = 200;
const PREFIX: &str = "/registry/configmaps/default/";

/// A field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        field.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    field.push(u8::try_from(length).unwrap());
    field.extend(bytes);
    field
}

fn request(address: SocketAddr, method: &str, message: &[u8]) -> Request<Full<Bytes>> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let body = [&[0][..], &length, message].concat();
    Request::post(format!("http://{address}/etcdserverpb.{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::from(body))
        .unwrap()
}

/// All keys with the prefix.
fn range() -> Vec<u8> {
    let mut end = PREFIX.as_bytes().to_vec();
    *end.last_mut().unwrap() += 1;
    [field(1, PREFIX.as_bytes()), field(2, &end)].concat()
}

fn put(number: usize, version: usize) -> Vec<u8> {
    let key = format!("{PREFIX}{}", name(number));
    [field(1, key.as_bytes()), field(2, object(number, version).as_bytes())].concat()
}

pub async fn measure(load: &Load, program: &Path, directory: &Path) -> Figures {
    let store = tempfile::tempdir_in(directory).unwrap();
    let (address, peers) = (free(), free());
    let mut command = Command::new(program);
    command.arg("--data-dir").arg(store.path().join("data"));
    for (flag, address) in [("client", address), ("peer", peers)] {
        let url = format!("http://{address}");
        command.arg(format!("--listen-{flag}-urls={url}"));
        let advertise = match flag {
            "client" => "--advertise-client-urls",
            _ => "--initial-advertise-peer-urls",
        };
        command.arg(format!("{advertise}={url}"));
    }
    command.arg(format!("--initial-cluster=default=http://{peers}"));
    let server = Server::start_silent(&mut command);
    let mut connections = Vec::new();
    while connections.len() < CONNECTIONS {
        // It takes a moment to listen.
        match tokio::net::TcpStream::connect(address).await {
            Ok(_) => connections.push(Connection::plain(address).await),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    let connections = &connections;
    // Until it has elected itself.
    connections[0].fetch(request(address, "KV/Put", &put(0, 0))).await;
    let empty = server.memory();
    let writes = async |version: usize| {
        let began = Instant::now();
        let latencies = perform(load.objects, load.clients, |number| async move {
            let request = request(address, "KV/Put", &put(number, version));
            connections[number % CONNECTIONS].fetch(request).await;
        });
        let latencies = latencies.await;
        Writes { took: began.elapsed(), latencies }
    };
    let created = writes(1).await;
    let memory = server.memory().saturating_sub(empty) / load.objects as u64;
    let updated = writes(2).await;
    let began = Instant::now();
    let listed = connections[0].fetch(request(address, "KV/Range", &range())).await;
    let list = began.elapsed();
    let full = server.memory();
    let (sender, mut received) = mpsc::unbounded_channel();
    let mut watching = None;
    // `WatchRequest` with a `WatchCreateRequest`.
    let watch = field(1, &range());
    for number in 0..load.watchers {
        if number % WATCHES == 0 {
            watching = Some(Connection::plain(address).await);
        }
        let request = request(address, "Watch/Watch", &watch);
        let response = watching.as_ref().unwrap().send(request).await;
        tokio::spawn(count_messages(response.into_body(), sender.clone()));
    }
    // The first message of each says that it is created.
    for _ in 0..load.watchers {
        received.recv().await.unwrap();
    }
    let watcher_memory = server.memory().saturating_sub(full) / load.watchers.max(1) as u64;
    let mut fan_out = Vec::new();
    for change in 0..CHANGES {
        let began = Instant::now();
        connections[0].fetch(request(address, "KV/Put", &put(change, 3))).await;
        for _ in 0..load.watchers {
            received.recv().await.unwrap();
        }
        fan_out.push(began.elapsed());
    }
    Figures { created, updated, list, list_bytes: listed.len(), fan_out, memory, watcher_memory }
}

/// An address where nothing listens now.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Reports each message of a watch.
async fn count_messages(mut body: Incoming, messages: mpsc::UnboundedSender<()>) {
    let mut pending = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { continue };
        pending.extend_from_slice(&data);
        while let Some(length) = pending.get(1..5) {
            let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
            if pending.len() < 5 + length {
                break;
            }
            pending.drain(..5 + length);
            let _ = messages.send(());
        }
    }
}
