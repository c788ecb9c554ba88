//! The Unix socket of a proxy: `millrace explain` asks there, and a successor takes over the listening sockets.
//!
//! Only root and the proxy's own user are served. A request is one line of JSON.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lb_connections::{AdmissionLimits, Room, accept_all};
use lb_ingress_rules::explain::{self, ExplainedRequest, Explanation};
use lb_proxy::Config;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

use super::controller::IngressAnnotations;

const CONTROL_LIMITS: AdmissionLimits = AdmissionLimits::new(16, 0, 16);
const MAX_REQUEST_BYTES: u64 = 256 << 10;
const CONTROL_TIMEOUT: Duration = Duration::from_secs(30);
/// A predecessor may still hold the name.
const BIND_RETRY_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum ControlRequest {
    Explain(ExplainedRequest),
    TakeOver,
}

/// An explanation, or why there is none.
type ControlReply = std::result::Result<Explanation, String>;

/// What the socket serves.
pub(crate) struct ControlSocket {
    pub config: watch::Receiver<Arc<Config>>,
    pub annotations: IngressAnnotations,
    /// Connections of successors.
    pub successors: mpsc::Sender<StdStream>,
}

/// A path, or `@` and an abstract name.
pub fn parse_socket_address(text: &str) -> io::Result<SocketAddr> {
    match text.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(text),
    }
}

impl ControlSocket {
    /// Serves until it is aborted. Reports when a successor can connect.
    pub async fn serve(self, address: SocketAddr, opened: oneshot::Sender<()>) {
        let this = Arc::new(self);
        let mut is_reported = false;
        let listener = loop {
            match bind(&address) {
                Ok(listener) => break listener,
                Err(error) => {
                    let error = format!("{error:#}");
                    if !std::mem::replace(&mut is_reported, true) {
                        tracing::info!(?address, error, "control socket not opened; retrying");
                    }
                    sleep(BIND_RETRY_INTERVAL).await;
                }
            }
        };
        let _ = opened.send(());
        accept_all(listener, Room::new(CONTROL_LIMITS), |stream, _| {
            let this = Arc::clone(&this);
            // A failed connection does not matter to the proxy.
            async move { drop(this.answer(stream).await) }
        })
        .await;
    }

    async fn answer(&self, stream: UnixStream) -> Result<()> {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        (&mut stream).take(MAX_REQUEST_BYTES).read_line(&mut line).await?;
        match serde_json::from_str(&line)? {
            ControlRequest::Explain(request) => {
                let config = self.config.borrow().clone();
                let annotations =
                    |namespace: &str, name: &str| self.annotations.of(namespace, name);
                let answer: ControlReply = explain::explain_request(&config, annotations, &request)
                    .map_err(|error| format!("{error:#}"));
                let mut stream = stream.into_inner();
                stream.write_all(&serde_json::to_vec(&answer)?).await?;
                stream.shutdown().await?;
            }
            ControlRequest::TakeOver => {
                let stream = stream.into_inner().into_std()?;
                stream.set_nonblocking(false)?;
                // Another successor is being served, if this fails.
                self.successors.try_send(stream)?;
            }
        }
        Ok(())
    }
}

fn bind(address: &SocketAddr) -> io::Result<UnixListener> {
    if let Some(path) = address.as_pathname()
        && StdStream::connect_addr(address).is_err()
    {
        // Left by a process that has ended.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let listener = StdListener::bind_addr(address)?;
    if let Some(path) = address.as_pathname() {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    }
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Connects to a proxy. `None`: none listens there. With the user of the process that does.
fn connect(address: &SocketAddr) -> Result<Option<(StdStream, u32)>> {
    let stream = match StdStream::connect_addr(address) {
        Ok(stream) => stream,
        Err(error)
            if [io::ErrorKind::ConnectionRefused, io::ErrorKind::NotFound]
                .contains(&error.kind()) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error).context("the control socket can't be reached"),
    };
    let user = getsockopt(&stream, PeerCredentials)?.uid();
    stream.set_read_timeout(Some(CONTROL_TIMEOUT))?;
    stream.set_write_timeout(Some(CONTROL_TIMEOUT))?;
    Ok(Some((stream, user)))
}

fn send(stream: &StdStream, question: &ControlRequest) -> Result<()> {
    let mut line = serde_json::to_string(question)?;
    line.push('\n');
    (&mut &*stream).write_all(line.as_bytes()).context("the proxy closed the connection")
}

/// Asks the proxy at this address. `None`: none listens there.
pub fn ask_proxy(address: &SocketAddr, request: &ExplainedRequest) -> Result<Option<Explanation>> {
    let Some((mut stream, user)) = connect(address)? else { return Ok(None) };
    let own = nix::unistd::geteuid().as_raw();
    // Any process may have bound an abstract name. Only root may ask another user's.
    ensure!(user == own || user == 0 || own == 0, "a process of user {user} listens there");
    send(&stream, &ControlRequest::Explain(request.clone()))?;
    let mut text = String::new();
    stream.read_to_string(&mut text).context("no response from the proxy")?;
    ensure!(!text.is_empty(), "the proxy serves only root and its own user; try sudo");
    let answer: ControlReply =
        serde_json::from_str(&text).context("cannot parse the proxy's response")?;
    answer.map(Some).map_err(anyhow::Error::msg)
}

/// A running proxy that gives its sockets to this process.
pub(crate) struct Predecessor(StdStream);

/// Requests the sockets of the proxy at this address. `None`: none listens there.
pub(crate) fn take_over_sockets(address: &SocketAddr) -> Result<Option<Predecessor>> {
    let Some((stream, user)) = connect(address)? else { return Ok(None) };
    let own = nix::unistd::geteuid().as_raw();
    ensure!(
        [0, own].contains(&user),
        "a process of user {user} listens on the control socket: start this one as the same user, or give it \
         another --control-socket"
    );
    send(&stream, &ControlRequest::TakeOver)?;
    Ok(Some(Predecessor(stream)))
}

impl Predecessor {
    pub fn stream(&self) -> &StdStream {
        &self.0
    }

    /// This process serves: the other one stops accepting connections.
    pub(crate) fn dismiss(&self) -> io::Result<()> {
        (&mut &self.0).write_all(b"\n")
    }
}
