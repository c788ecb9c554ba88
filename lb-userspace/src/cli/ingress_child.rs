//! The Ingress proxy of `millrace standalone`: a child process with the rights of another user.
//!
//! The thread that starts it keeps the capabilities to change users, which no other thread has. Sockets and kubeconfig
//! go to the child over a Unix socket, which is also how each notices the other's end: a proxy without its parent ends
//! even if the parent was killed. The sockets stay open here, so while the child is restarted, connections wait.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lb_ingress::parent;
use lb_kernel::privileges::Privileges;
use lb_process::backoff::Backoff;

use crate::config::IngressSettings;

/// How often the child is looked at.
const POLL: Duration = Duration::from_millis(100);
/// A child that ran for longer did not fail at its start.
const LONG: Duration = Duration::from_secs(30);
/// Beyond the time that the settings give to requests.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the child process is started with.
#[derive(Debug)]
pub(crate) struct ChildOptions {
    /// User and group ID.
    user: u32,
    arguments: Vec<String>,
    http: Vec<SocketAddr>,
    https: Vec<SocketAddr>,
    /// How long the child may take to end.
    patience: Duration,
}

impl ChildOptions {
    pub(crate) fn new(settings: &IngressSettings, user: u32, arguments: Vec<String>) -> Self {
        let seconds = settings.shutdown_delay + settings.shutdown_grace;
        Self {
            user,
            arguments,
            http: settings.http_bind_addresses.clone(),
            https: settings.https_bind_addresses.clone(),
            patience: Duration::from_secs(seconds.into()) + PATIENCE,
        }
    }
}

/// Starts the proxy again when it ends, until this is dropped.
pub(crate) struct IngressChild {
    /// Dropped to end the thread.
    orders: Option<Sender<String>>,
    thread: Option<JoinHandle<()>>,
}

struct Supervisor {
    options: ChildOptions,
    http: Vec<TcpListener>,
    https: Vec<TcpListener>,
}

impl IngressChild {
    /// Opens the ports, and starts the thread. Must be called before this process gives up its capabilities.
    pub(crate) fn prepare(options: ChildOptions) -> Result<Self> {
        let bind = |addresses: &[SocketAddr], setting: &str| {
            let bind = |address: &SocketAddr| {
                TcpListener::bind(address)
                    .with_context(|| format!("--{setting} {address}: can't listen there"))
            };
            addresses.iter().map(bind).collect::<Result<Vec<_>>>()
        };
        let supervisor = Supervisor {
            http: bind(&options.http, "http-bind-addresses")?,
            https: bind(&options.https, "https-bind-addresses")?,
            options,
        };
        let (orders, received) = channel();
        let thread = thread::Builder::new().name("ingress".to_owned()).spawn(move || {
            // Of this thread, and so of the child.
            if let Err(error) = Privileges::SUPERVISOR.at_the_start() {
                tracing::error!(error = format!("{error:#}"), "ingress proxy not started");
                return;
            }
            supervisor.run(&received);
        })?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    /// Starts the proxy, for the API that this kubeconfig leads to.
    pub fn start(&self, kubeconfig: String) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(kubeconfig);
        }
    }
}

impl Drop for IngressChild {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Supervisor {
    fn run(&self, orders: &Receiver<String>) {
        let Ok(kubeconfig) = orders.recv() else { return };
        let mut backoff = Backoff::default();
        loop {
            let began = Instant::now();
            match self.spawn(&kubeconfig) {
                Ok((mut child, stream)) => {
                    tracing::info!(
                        pid = child.id(),
                        user = self.options.user,
                        "ingress proxy started"
                    );
                    if !self.watch(&mut child, orders) {
                        // It drains when it notices the end of its parent.
                        drop(stream);
                        self.wait(&mut child);
                        return;
                    }
                }
                Err(error) => {
                    tracing::error!(error = format!("{error:#}"), "ingress proxy not started");
                }
            }
            if began.elapsed() > LONG {
                backoff.reset();
            }
            match orders.recv_timeout(backoff.next_delay()) {
                Err(RecvTimeoutError::Disconnected) => return,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn spawn(&self, kubeconfig: &str) -> Result<(Child, UnixStream)> {
        let (near, far) = UnixStream::pair()?;
        // Not by its path: the other user may not be allowed to search the directories.
        let mut child = Command::new("/proc/self/exe")
            .arg0("millrace")
            .args(["ingress", "--from-parent"])
            .args(&self.options.arguments)
            // Of this process, they would be taken for the child's: of systemd, and other settings.
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(far)))
            .gid(self.options.user)
            .uid(self.options.user)
            .current_dir("/")
            .spawn()
            .context("the process can't be started")?;
        if let Err(error) = parent::send_inheritance(&near, &self.http, &self.https, kubeconfig) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        Ok((child, near))
    }

    /// Returns true when the child has ended, and false when it is to end.
    fn watch(&self, child: &mut Child, orders: &Receiver<String>) -> bool {
        loop {
            match child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => {
                    tracing::error!(%status, "ingress proxy ended; restarting it");
                    return true;
                }
                Err(error) => {
                    tracing::error!(%error, "ingress proxy lost; restarting it");
                    return true;
                }
            }
            if let Err(RecvTimeoutError::Disconnected) = orders.recv_timeout(POLL) {
                return false;
            }
        }
    }

    fn wait(&self, child: &mut Child) {
        let deadline = Instant::now() + self.options.patience;
        while Instant::now() < deadline {
            match child.try_wait() {
                Ok(None) => thread::sleep(POLL),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        tracing::warn!("ingress proxy does not end; killing it");
        let killed: io::Result<_> = child.kill().and_then(|()| child.wait());
        if let Err(error) = killed {
            tracing::error!(%error, "ingress proxy not killed");
        }
    }
}
