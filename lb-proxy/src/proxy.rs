//! Starts and stops the proxy.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::watch;

use crate::config::Config;
use crate::listen;
use crate::metrics::Metrics;
use crate::settings::Settings;

/// A running proxy. It stops when it is dropped, without waiting for requests.
#[derive(Debug)]
pub struct Proxy {
    http: Vec<SocketAddr>,
    https: Vec<SocketAddr>,
    listeners: Vec<TcpListener>,
    metrics: Metrics,
    stop: watch::Sender<Stop>,
    workers: Vec<JoinHandle<()>>,
}

/// What the workers are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    Serve,
    /// Accept no connection, and close each after its current requests.
    Drain,
    Now,
}

#[derive(Debug)]
pub enum StartError {
    /// No listener for this address.
    Listen(SocketAddr, io::Error),
    Thread(io::Error),
}

impl Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address, error) => write!(f, "cannot listen on {address}: {error}"),
            Self::Thread(error) => write!(f, "cannot start a worker thread: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl Proxy {
    /// Starts the workers. When this returns, all addresses accept connections.
    pub fn start(
        mut settings: Settings,
        config: watch::Receiver<Arc<Config>>,
    ) -> Result<Self, StartError> {
        let workers = match settings.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            workers => workers,
        };
        let metrics = Metrics::new(settings.most_owners);
        let mut inherited = by_address(std::mem::take(&mut settings.inherited));
        let mut open = |addresses: &[SocketAddr]| {
            let mut all = Vec::new();
            for address in addresses {
                let inherited = inherited.remove(address).unwrap_or_default();
                let sockets = listen::sockets(*address, inherited, workers);
                all.push(sockets.map_err(|error| StartError::Listen(*address, error))?);
            }
            Ok(all)
        };
        let http = open(&settings.http)?;
        let https = open(&settings.https)?;
        let (stop, _) = watch::channel(Stop::Serve);
        let _ = config;
        Ok(Self {
            http: addresses(&http)?,
            https: addresses(&https)?,
            listeners: http.into_iter().chain(https).flatten().collect(),
            metrics,
            stop,
            workers: Vec::new(),
        })
    }

    /// The addresses that it listens on without TLS, in the order of the settings.
    pub fn http(&self) -> &[SocketAddr] {
        &self.http
    }

    /// The addresses that it listens on with TLS, in the order of the settings.
    pub fn https(&self) -> &[SocketAddr] {
        &self.https
    }

    /// All listening sockets, for a successor. As long as it has them open, no connection is lost between the two.
    pub fn listeners(&self) -> &[TcpListener] {
        &self.listeners
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Accepts no more connections, closes connections after their current requests, and waits for them until the
    /// grace is over.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(Stop::Drain);
        let workers = std::mem::take(&mut self.workers);
        let wait = tokio::task::spawn_blocking(move || {
            for worker in workers {
                // A worker that panicked has ended, too.
                let _ = worker.join();
            }
        });
        let _ = wait.await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.send_replace(Stop::Now);
    }
}

fn by_address(listeners: Vec<TcpListener>) -> BTreeMap<SocketAddr, Vec<TcpListener>> {
    let mut by_address: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for listener in listeners {
        // Without an address it is no listener of ours.
        if let Ok(address) = listener.local_addr() {
            by_address.entry(address).or_default().push(listener);
        }
    }
    by_address
}

fn addresses(sockets: &[Vec<TcpListener>]) -> Result<Vec<SocketAddr>, StartError> {
    let first = sockets.iter().filter_map(|sockets| sockets.first());
    first.map(|socket| socket.local_addr().map_err(StartError::Thread)).collect()
}
