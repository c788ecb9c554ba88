//! The accept loop of all servers of the agent. It never waits for a connection to end: `admission`
//! decides at once whether a new connection is accepted, and which other one is closed for it.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, sleep_until};

use super::admission::{Admission, Admitted, Id, Limits, Peer};

/// Delay after an accept error that an immediate attempt would meet again.
const RETRY: Duration = Duration::from_millis(100);

/// A socket that accepts connections.
pub trait Listen: Send {
    type Stream: Send + 'static;

    /// `None`: the peer must not use this server.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Option<Peer>)>> + Send;
}

/// Whether a peer is a process of this node, by its address and the one that it connected to.
pub type IsLocal = fn(peer: IpAddr, own: IpAddr) -> bool;

/// A process that connects to an address of its own node uses the same address as its source,
/// unless it chose another one. No other machine can: the kernel drops such packets.
pub fn is_local(peer: IpAddr, own: IpAddr) -> bool {
    peer.is_loopback() || peer == own
}

pub struct Tcp {
    pub listener: TcpListener,
    pub is_local: IsLocal,
}

impl Listen for Tcp {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Option<Peer>)> {
        let (stream, peer) = self.listener.accept().await?;
        let peer = peer.ip().to_canonical();
        let own = stream.local_addr().map(|own| own.ip().to_canonical());
        let is_local = own.is_ok_and(|own| (self.is_local)(peer, own));
        Ok((stream, Some(if is_local { Peer::Local } else { Peer::remote(peer) })))
    }
}

/// Accepts connections from root and from the agent's own user.
impl Listen for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Option<Peer>)> {
        let (stream, _) = UnixListener::accept(self).await?;
        let own = nix::unistd::geteuid().as_raw();
        let may_ask = stream.peer_cred().is_ok_and(|peer| [0, own].contains(&peer.uid()));
        Ok((stream, may_ask.then_some(Peer::Local)))
    }
}

/// The connections of one server, or of servers that share their limits.
pub struct Room(Mutex<State>);

struct State {
    admission: Admission,
    tasks: BTreeMap<Id, AbortHandle>,
}

impl Room {
    pub fn new(limits: Limits) -> Arc<Self> {
        let admission = Admission::new(limits);
        Arc::new(Self(Mutex::new(State { admission, tasks: BTreeMap::new() })))
    }

    fn admit(self: &Arc<Self>, peer: Peer) -> Option<Permit> {
        let mut state = self.state();
        let Admitted { id, evicted } = state.admission.admit(peer, Instant::now())?;
        state.abort(evicted);
        drop(state);
        Some(Permit { room: Arc::clone(self), id, phase: Notify::new() })
    }

    /// A task may end, or be closed in favour of another one, before this is called.
    fn set_task(&self, id: Id, task: AbortHandle) {
        let mut state = self.state();
        if state.admission.deadline(id).is_some() {
            state.tasks.insert(id, task);
        } else {
            task.abort();
        }
    }

    /// Closes a connection to get a file descriptor; returns whether there was one.
    fn shed(&self) -> bool {
        let mut state = self.state();
        let id = state.admission.shed();
        state.abort(id);
        id.is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds it can panic in the middle of a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn abort(&mut self, id: Option<Id>) {
        if let Some(task) = id.and_then(|id| self.tasks.remove(&id)) {
            task.abort();
        }
    }
}

/// A connection's slot in its room. Dropping it frees the slot.
pub struct Permit {
    room: Arc<Room>,
    id: Id,
    /// Notified when the connection's phase changes, and with it the deadline.
    phase: Notify,
}

impl Permit {
    /// Protects the connection from being closed for another one until the guard is dropped.
    pub fn begin_response(self: &Arc<Self>) -> Response {
        self.room.state().admission.begin_response(self.id, Instant::now());
        self.phase.notify_one();
        Response(Arc::clone(self))
    }

    /// Returns when the connection's deadline has passed.
    async fn expired(&self) {
        loop {
            let deadline = self.room.state().admission.deadline(self.id);
            let Some(deadline) = deadline else { return };
            tokio::select! {
                () = sleep_until(deadline.into()) => return,
                () = self.phase.notified() => {}
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.room.state();
        state.admission.close(self.id);
        state.tasks.remove(&self.id);
    }
}

/// A response that is being computed.
pub struct Response(Arc<Permit>);

impl Drop for Response {
    fn drop(&mut self) {
        self.0.room.state().admission.end_response(self.0.id, Instant::now());
        self.0.phase.notify_one();
    }
}

/// Serves until it is aborted, which also closes all its connections.
pub async fn accept_all<L: Listen, F>(
    listener: L,
    room: Arc<Room>,
    serve: impl Fn(L::Stream, Arc<Permit>) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, Some(peer))) => {
                let Some(permit) = room.admit(peer) else { continue };
                let (id, permit) = (permit.id, Arc::new(permit));
                let connection = serve(stream, Arc::clone(&permit));
                let task = connections.spawn(async move {
                    tokio::select! {
                        () = connection => {}
                        () = permit.expired() => {}
                    }
                });
                room.set_task(id, task);
            }
            Ok((_, None)) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            // The descriptor of a closed connection is free as soon as its task has been run.
            Err(error) if lacks_descriptors(&error) && room.shed() => {
                tokio::task::yield_now().await
            }
            Err(_) => sleep(RETRY).await,
        }
    }
}

fn lacks_descriptors(error: &io::Error) -> bool {
    let lacks = [Errno::EMFILE, Errno::ENFILE].map(|errno| errno as i32);
    error.raw_os_error().is_some_and(|errno| lacks.contains(&errno))
}

#[cfg(test)]
mod tests;
