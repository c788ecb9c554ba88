//! Servers that hold few connections: [`super::admission`] decides at once whether a new connection is accepted, and
//! which other one is closed for it.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep_until;

use crate::accept::accept_connections;
use crate::admission::{Admission, AdmissionLimits, Admitted, ConnectionId, PeerKey};

/// A socket that accepts connections.
pub trait Listen: Send + Sync {
    type Stream: Send + 'static;

    /// `None`: the peer must not use this server.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Option<PeerKey>)>> + Send;
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

    async fn accept(&self) -> io::Result<(TcpStream, Option<PeerKey>)> {
        let (stream, peer) = self.listener.accept().await?;
        let peer = peer.ip().to_canonical();
        let own = stream.local_addr().map(|own| own.ip().to_canonical());
        let is_local = own.is_ok_and(|own| (self.is_local)(peer, own));
        Ok((stream, Some(if is_local { PeerKey::Local } else { PeerKey::Remote(peer.into()) })))
    }
}

/// Accepts connections from root and from the agent's own user.
impl Listen for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Option<PeerKey>)> {
        let (stream, _) = UnixListener::accept(self).await?;
        let own = nix::unistd::geteuid().as_raw();
        let may_ask = stream.peer_cred().is_ok_and(|peer| [0, own].contains(&peer.uid()));
        Ok((stream, may_ask.then_some(PeerKey::Local)))
    }
}

/// The connections of one server, or of servers that share their limits.
pub struct Room(Mutex<RoomState>);

struct RoomState {
    admission: Admission,
    tasks: BTreeMap<ConnectionId, AbortHandle>,
}

impl Room {
    pub fn new(limits: AdmissionLimits) -> Arc<Self> {
        let admission = Admission::new(limits);
        Arc::new(Self(Mutex::new(RoomState { admission, tasks: BTreeMap::new() })))
    }

    fn admit(self: &Arc<Self>, peer: PeerKey) -> Option<Permit> {
        let mut state = self.state();
        let Admitted { id, evicted } = state.admission.admit(peer, Instant::now())?;
        state.abort(evicted);
        drop(state);
        Some(Permit { room: Arc::clone(self), id, has_left: false.into(), phase: Notify::new() })
    }

    /// A task may end, leave, or be closed in favour of another one before this is called.
    fn set_task(&self, permit: &Permit, task: AbortHandle) {
        let mut state = self.state();
        if state.admission.deadline(permit.id).is_some() {
            state.tasks.insert(permit.id, task);
        } else if !permit.has_left.load(Ordering::Relaxed) {
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

    fn state(&self) -> MutexGuard<'_, RoomState> {
        // No code that holds it can panic in the middle of a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RoomState {
    fn remove(&mut self, id: ConnectionId) {
        self.admission.close(id);
        self.tasks.remove(&id);
    }

    fn abort(&mut self, id: Option<ConnectionId>) {
        if let Some(task) = id.and_then(|id| self.tasks.remove(&id)) {
            task.abort();
        }
    }
}

/// A connection's slot in its room. Dropping it frees the slot.
pub struct Permit {
    room: Arc<Room>,
    id: ConnectionId,
    has_left: AtomicBool,
    /// Notified when the connection's phase changes, and with it the deadline.
    phase: Notify,
}

impl Permit {
    /// Protects the connection from being closed for another one until the guard is dropped.
    pub fn begin_response(self: &Arc<Self>) -> PendingResponse {
        self.room.state().admission.begin_response(self.id, Instant::now());
        self.phase.notify_one();
        PendingResponse(Arc::clone(self))
    }

    /// Frees the slot: from now on other limits than the room's apply to the connection.
    pub fn leave(&self) {
        // Set under the lock: `set_task` sees both or nothing.
        let mut state = self.room.state();
        self.has_left.store(true, Ordering::Relaxed);
        state.remove(self.id);
        drop(state);
        self.phase.notify_one();
    }

    /// Returns when the connection's deadline has passed; never, if the connection leaves the room before.
    async fn expired(&self) {
        loop {
            let deadline = self.room.state().admission.deadline(self.id);
            let Some(deadline) = deadline else { return std::future::pending().await };
            tokio::select! {
                () = sleep_until(deadline.into()) => return,
                () = self.phase.notified() => {}
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.room.state().remove(self.id);
    }
}

/// A response that is being computed.
pub struct PendingResponse(Arc<Permit>);

impl Drop for PendingResponse {
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
    let begin = |(stream, peer): (L::Stream, Option<PeerKey>)| {
        while connections.try_join_next().is_some() {}
        let Some(permit) = peer.and_then(|peer| room.admit(peer)).map(Arc::new) else { return };
        let connection = serve(stream, Arc::clone(&permit));
        let expiring = Arc::clone(&permit);
        let task = connections.spawn(async move {
            tokio::select! {
                () = connection => {}
                () = expiring.expired() => {}
            }
        });
        room.set_task(&permit, task);
    };
    accept_connections(|| listener.accept(), begin, || room.shed()).await;
}
