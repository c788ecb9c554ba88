//! HTTP servers on TCP: bound as soon as the port can be, with limits on what clients may do.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use lb_connections::{AdmissionLimits, Permit, Room, Tcp, accept_all, is_local};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::notices::{Notice, NoticeReason, Notices};

pub const HEALTHZ_LIMITS: AdmissionLimits = AdmissionLimits::new(64, 256, 16);
/// Responses are large, and held until the client has read them.
pub const METRICS_LIMITS: AdmissionLimits = AdmissionLimits::new(16, 32, 8);

/// Limit on the octets of a request head.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// The port may soon be free: the process that holds it may be ending.
const QUICK_BIND_ATTEMPTS: u32 = 5;
const QUICK_BIND_INTERVAL: Duration = Duration::from_millis(100);
const SLOW_BIND_INTERVAL: Duration = Duration::from_secs(5);

/// Starts one server, unless there is no address. A port that cannot be bound is reported, and tried again.
pub fn start_server(
    address: Option<SocketAddr>,
    option: &'static str,
    router: Router,
    limits: AdmissionLimits,
    notices: &Arc<dyn Notices>,
) {
    let Some(address) = address else { return };
    let notices = Arc::clone(notices);
    let complain = move |error: &io::Error| {
        let message = format!("{option} {address}: can't be bound: {error}; trying again");
        notices.post(Notice { about: None, reason: NoticeReason::NotServed, message });
    };
    tokio::spawn(serve_router(address, router, Room::new(limits), complain));
}

/// Serves until it is aborted, which also closes all its connections. `complain` is called once if
/// the port cannot be bound.
pub async fn serve_router(
    address: SocketAddr,
    router: Router,
    room: Arc<Room>,
    complain: impl FnOnce(&io::Error) + Send,
) {
    let listener = Tcp { listener: bind_with_retries(address, complain).await, is_local };
    accept_all(listener, room, |stream, permit| serve_connection(stream, router.clone(), permit))
        .await;
}

/// Serves the requests of one connection. Its deadlines are those of `permit`.
pub async fn serve_connection(stream: TcpStream, router: Router, permit: Arc<Permit>) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request| {
        let responding = permit.begin_response();
        let response = router.call(request);
        async move {
            let response = response.await;
            drop(responding);
            response
        }
    });
    let connection = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // How a client ends its connection does not matter to the server.
    let _ = connection.await;
}

async fn bind_with_retries(address: SocketAddr, complain: impl FnOnce(&io::Error)) -> TcpListener {
    let mut complain = Some(complain);
    for attempt in 0u32.. {
        match try_bind(address).await {
            Ok(listener) => return listener,
            Err(_) if attempt < QUICK_BIND_ATTEMPTS => sleep(QUICK_BIND_INTERVAL).await,
            Err(error) => {
                if let Some(complain) = complain.take() {
                    complain(&error);
                }
                sleep(SLOW_BIND_INTERVAL).await;
            }
        }
    }
    unreachable!("attempts never end")
}

/// Without IPv6, "all addresses" are those of IPv4.
async fn try_bind(address: SocketAddr) -> io::Result<TcpListener> {
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
