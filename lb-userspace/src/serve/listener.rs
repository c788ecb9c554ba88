//! One port, served for good: bound when it can be, with limits on what clients may do to it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// A client has so long for its request's head, and for sending another one.
const PATIENCE: Duration = Duration::from_secs(30);
const MOST_CONNECTIONS: usize = 256;
/// A port may be free in a moment: whoever had it is ending.
const QUICK_TRIES: u32 = 5;
const QUICKLY: Duration = Duration::from_millis(100);
const SLOWLY: Duration = Duration::from_secs(5);

/// Serves until it is aborted, and with it all its connections. `complain` is called once if the
/// port can't be bound.
pub async fn serve(address: SocketAddr, router: Router, complain: impl FnOnce(&io::Error) + Send) {
    let listener = bind(address, complain).await;
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, say: nothing that asking at once would mend.
            sleep(QUICKLY).await;
            continue;
        };
        let service = TowerToHyperService::new(router.clone());
        connections.spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .serve_connection(TokioIo::new(stream), service);
            // How a client's connection ends is its own business.
            let _ = connection.await;
            drop(place);
        });
    }
}

async fn bind(address: SocketAddr, complain: impl FnOnce(&io::Error)) -> TcpListener {
    let mut complain = Some(complain);
    for attempt in 0u32.. {
        match bind_once(address).await {
            Ok(listener) => return listener,
            Err(_) if attempt < QUICK_TRIES => sleep(QUICKLY).await,
            Err(error) => {
                if let Some(complain) = complain.take() {
                    complain(&error);
                }
                sleep(SLOWLY).await;
            }
        }
    }
    unreachable!("attempts never end")
}

/// Where there is no IPv6, "all addresses" are those of IPv4.
async fn bind_once(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error)
            if address.is_ipv6()
                && address.ip().is_unspecified()
                && error.kind() != io::ErrorKind::AddrInUse =>
        {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        result => result,
    }
}
