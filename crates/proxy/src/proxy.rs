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
use crate::metrics::{Listener, Metrics};
use crate::settings::ProxySettings;
use crate::stop::Stop;
use crate::thread::{self, Sockets};
use crate::worker::WorkerContext;

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

#[derive(Debug)]
pub enum StartError {
    /// No listener for this address.
    Listen(SocketAddr, io::Error),
    Thread(io::Error),
    /// There are no random numbers.
    Random(String),
}

impl Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address, error) => write!(f, "cannot listen on {address}: {error}"),
            Self::Thread(error) => write!(f, "cannot start a worker thread: {error}"),
            Self::Random(error) => write!(f, "cannot get random numbers for keys: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl Proxy {
    /// Starts the workers. When this returns, all addresses accept connections.
    pub fn start(
        mut settings: ProxySettings,
        config: watch::Receiver<Arc<Config>>,
    ) -> Result<Self, StartError> {
        if settings.workers == 0 {
            settings.workers = std::thread::available_parallelism().map_or(1, usize::from);
        }
        let workers = settings.workers;
        let metrics = Metrics::new(settings.most_owners);
        let mut inherited = by_address(std::mem::take(&mut settings.inherited));
        let mut open = |addresses: &[SocketAddr]| {
            let mut all = Vec::new();
            for address in addresses {
                let inherited = inherited.remove(address).unwrap_or_default();
                let sockets = listen::open_listeners(*address, inherited, workers);
                all.push(sockets.map_err(|error| StartError::Listen(*address, error))?);
            }
            Ok(all)
        };
        let http = open(&settings.http)?;
        let https = open(&settings.https)?;
        drop(inherited);
        let mut sockets: Vec<Sockets> = (0..workers).map(|_| Sockets::new()).collect();
        let mut listeners = Vec::new();
        for (listener, all) in [(Listener::Http, &http), (Listener::Https, &https)] {
            for (number, socket) in all.iter().flat_map(|of_one| of_one.iter().enumerate()) {
                let copy = || socket.try_clone().map_err(StartError::Thread);
                sockets[number % workers].push((listener, copy()?));
                listeners.push(copy()?);
            }
        }
        let addresses = (addresses(&http)?, addresses(&https)?);
        let (stop, stopped) = watch::channel(Stop::Serve);
        let shared = WorkerContext::new(settings, config.clone()).map_err(StartError::Random)?;
        let shared = Arc::new(shared);
        let mut proxy = Self {
            http: addresses.0,
            https: addresses.1,
            listeners,
            metrics,
            stop,
            workers: Vec::new(),
        };
        for (number, sockets) in sockets.into_iter().enumerate() {
            let start = thread::Start {
                shared: shared.clone(),
                counters: proxy.metrics.add_worker(),
                config: config.clone(),
                stop: stopped.clone(),
                sockets,
            };
            proxy.workers.push(thread::spawn_worker(number, start).map_err(StartError::Thread)?);
        }
        Ok(proxy)
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
        self.listeners.clear();
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
        // Without an address it is none of the listeners of this process.
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
