//! Which connections a server accepts, keeps and closes. A pure rule: the time and the addresses are parameters.
//!
//! Invariants:
//! - Connections of other machines never take room from local ones, such as the kubelet's probes.
//! - A new connection is refused only if each connection that it competes with is waiting for its response. Otherwise
//!   one of the peer with the most idle connections is closed: a flood costs its own peers their connections first.
//! - Every connection has a deadline, so a silent client cannot keep one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use lb_limits::ClientNetwork;

/// Limits on the number of connections and on their duration.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionLimits {
    /// Connections of local peers, counted separately.
    pub local: usize,
    /// Connections of all other peers together.
    pub remote: usize,
    /// Connections of each of those other peers.
    pub per_peer: usize,
    /// From the connection to its first complete request head.
    pub head: Duration,
    /// From a request head to its response.
    pub response: Duration,
    /// From a response to the next request head. It includes sending the response.
    pub keep_alive: Duration,
}

impl AdmissionLimits {
    pub const fn new(local: usize, remote: usize, per_peer: usize) -> Self {
        Self {
            local,
            remote,
            per_peer,
            head: Duration::from_secs(5),
            response: Duration::from_secs(30),
            keep_alive: Duration::from_secs(30),
        }
    }
}

/// What connections are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerKey {
    /// A process of this node.
    Local,
    Remote(ClientNetwork),
}

/// A connection; never reused.
pub type ConnectionId = u64;

#[derive(Debug)]
pub struct Admitted {
    pub id: ConnectionId,
    /// The connection to close for this one.
    pub evicted: Option<ConnectionId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The client has not sent a complete request head yet.
    New,
    Answering,
    /// The client has got a response, and has not sent another request yet.
    Answered,
}

#[derive(Clone, Copy, Debug)]
struct AdmittedConnection {
    peer: PeerKey,
    phase: Phase,
    /// When the phase began.
    since: Instant,
}

impl AdmittedConnection {
    fn is_idle(&self) -> bool {
        self.phase != Phase::Answering
    }

    fn is_local(&self) -> bool {
        self.peer == PeerKey::Local
    }
}

/// All connections of a server, or of servers that share one limit.
#[derive(Debug)]
pub struct Admission {
    limits: AdmissionLimits,
    next: ConnectionId,
    connections: BTreeMap<ConnectionId, AdmittedConnection>,
}

impl Admission {
    pub fn new(limits: AdmissionLimits) -> Self {
        Self { limits, next: 0, connections: BTreeMap::new() }
    }

    /// Admits a new connection, and closes another one if the limit is reached. `None`: refused.
    pub fn admit(&mut self, peer: PeerKey, now: Instant) -> Option<Admitted> {
        let AdmissionLimits { local, remote, per_peer, .. } = self.limits;
        let evicted = match peer {
            PeerKey::Local => self.make_room(local, AdmittedConnection::is_local)?,
            PeerKey::Remote(_) => match self.make_room(per_peer, |other| other.peer == peer)? {
                None => self.make_room(remote, |other| !other.is_local())?,
                evicted => evicted,
            },
        };
        let id = self.next;
        self.next += 1;
        self.connections.insert(id, AdmittedConnection { peer, phase: Phase::New, since: now });
        Some(Admitted { id, evicted })
    }

    /// Removes an idle connection when file descriptors run out. Local connections are removed last.
    pub(crate) fn shed(&mut self) -> Option<ConnectionId> {
        let id = self
            .oldest_idle(|connection| !connection.is_local())
            .or_else(|| self.oldest_idle(AdmittedConnection::is_local))?;
        self.connections.remove(&id);
        Some(id)
    }

    pub fn begin_response(&mut self, id: ConnectionId, now: Instant) {
        self.enter(id, Phase::Answering, now);
    }

    pub(crate) fn end_response(&mut self, id: ConnectionId, now: Instant) {
        self.enter(id, Phase::Answered, now);
    }

    pub fn close(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
    }

    /// When to close a connection if its phase does not change before. `None`: it is closed
    /// already.
    pub fn deadline(&self, id: ConnectionId) -> Option<Instant> {
        let connection = self.connections.get(&id)?;
        let limit = match connection.phase {
            Phase::New => self.limits.head,
            Phase::Answering => self.limits.response,
            Phase::Answered => self.limits.keep_alive,
        };
        Some(connection.since + limit)
    }

    /// `Some(None)`: there is room. `Some(Some(id))`: there is room because `id` was removed.
    fn make_room(
        &mut self,
        limit: usize,
        competes: impl Fn(&AdmittedConnection) -> bool,
    ) -> Option<Option<ConnectionId>> {
        if self.connections.values().filter(|other| competes(other)).count() < limit {
            return Some(None);
        }
        let id = self.oldest_idle(competes)?;
        self.connections.remove(&id);
        Some(Some(id))
    }

    /// Of the peer with the most idle connections that compete, the one that has been idle for longest.
    fn oldest_idle(&self, competes: impl Fn(&AdmittedConnection) -> bool) -> Option<ConnectionId> {
        let idle = || self.connections.iter().filter(|(_, c)| c.is_idle() && competes(c));
        let mut by_peer: HashMap<PeerKey, usize> = HashMap::new();
        for (_, connection) in idle() {
            *by_peer.entry(connection.peer).or_default() += 1;
        }
        let oldest = |(id, c): &(&ConnectionId, &AdmittedConnection)| {
            (Reverse(by_peer[&c.peer]), c.since, **id)
        };
        idle().min_by_key(oldest).map(|(&id, _)| id)
    }

    fn enter(&mut self, id: ConnectionId, phase: Phase, now: Instant) {
        if let Some(connection) = self.connections.get_mut(&id) {
            (connection.phase, connection.since) = (phase, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn admission() -> Admission {
        Admission::new(AdmissionLimits::new(2, 4, 2))
    }

    fn remote(last: u8) -> PeerKey {
        PeerKey::Remote(IpAddr::from([192, 0, 2, last]).into())
    }

    /// A moment, in seconds.
    struct Clock(Instant);

    impl Clock {
        fn at(&self, seconds: u64) -> Instant {
            self.0 + Duration::from_secs(seconds)
        }
    }

    fn clock() -> Clock {
        Clock(Instant::now())
    }

    fn admit(
        admission: &mut Admission,
        peer: PeerKey,
        at: Instant,
    ) -> (ConnectionId, Option<ConnectionId>) {
        let admitted = admission.admit(peer, at).unwrap();
        (admitted.id, admitted.evicted)
    }

    #[test]
    fn idle_remote_peers_take_no_room_from_local_ones() {
        let (mut admission, clock) = (admission(), clock());
        for peer in 0..200 {
            admit(&mut admission, remote(peer), clock.at(0));
        }
        for _ in 0..2 {
            assert_eq!(admit(&mut admission, PeerKey::Local, clock.at(1)).1, None);
        }
        assert_eq!(admission.connections.len(), 2 + 4);
    }

    #[test]
    fn remote_peers_with_pending_responses_take_no_room_from_local_ones() {
        let (mut admission, clock) = (admission(), clock());
        for peer in 0..4 {
            let (id, _) = admit(&mut admission, remote(peer), clock.at(0));
            admission.begin_response(id, clock.at(0));
        }
        assert!(admission.admit(remote(9), clock.at(1)).is_none());
        assert!(admission.admit(PeerKey::Local, clock.at(1)).is_some());
    }

    #[test]
    fn the_connection_idle_for_longest_is_closed_for_a_new_one() {
        let (mut admission, clock) = (admission(), clock());
        let ids: Vec<ConnectionId> =
            (0..4).map(|n| admit(&mut admission, remote(n), clock.at(n.into())).0).collect();
        // The first is being served, and the second has been: both are used by their clients.
        admission.begin_response(ids[0], clock.at(5));
        admission.begin_response(ids[1], clock.at(5));
        admission.end_response(ids[1], clock.at(6));
        let evicted: Vec<Option<ConnectionId>> =
            (10..13).map(|n| admit(&mut admission, remote(n), clock.at(n.into())).1).collect();
        assert_eq!(evicted, [Some(ids[2]), Some(ids[3]), Some(ids[1])]);
    }

    #[test]
    fn the_peer_with_the_most_connections_makes_room_for_others() {
        let (mut admission, clock) = (Admission::new(AdmissionLimits::new(2, 4, 3)), clock());
        admit(&mut admission, remote(1), clock.at(0));
        let (first, _) = admit(&mut admission, remote(2), clock.at(1));
        admit(&mut admission, remote(2), clock.at(2));
        admit(&mut admission, remote(2), clock.at(3));
        assert_eq!(admit(&mut admission, remote(3), clock.at(4)).1, Some(first));
        let flood = |last| admission.admit(remote(last), clock.at(9)).unwrap().evicted;
        assert_eq!((10..200).map(flood).filter(Option::is_none).count(), 0);
        assert_eq!(admission.connections.len(), 4);
    }

    #[test]
    fn a_peer_at_its_limit_competes_with_itself() {
        let (mut admission, clock) = (admission(), clock());
        let (other, _) = admit(&mut admission, remote(1), clock.at(0));
        let (first, _) = admit(&mut admission, remote(2), clock.at(1));
        let (second, _) = admit(&mut admission, remote(2), clock.at(2));
        assert_eq!(admit(&mut admission, remote(2), clock.at(3)).1, Some(first));
        assert_eq!(admit(&mut admission, remote(2), clock.at(4)).1, Some(second));
        assert!(admission.deadline(other).is_some());
    }

    #[test]
    fn local_peers_compete_with_local_ones() {
        let (mut admission, clock) = (admission(), clock());
        admit(&mut admission, remote(1), clock.at(0));
        let (first, _) = admit(&mut admission, PeerKey::Local, clock.at(1));
        admit(&mut admission, PeerKey::Local, clock.at(2));
        assert_eq!(admit(&mut admission, PeerKey::Local, clock.at(3)).1, Some(first));
    }

    #[test]
    fn a_closed_connection_leaves_room() {
        let (mut admission, clock) = (admission(), clock());
        let (first, _) = admit(&mut admission, remote(1), clock.at(0));
        admit(&mut admission, remote(1), clock.at(0));
        admission.close(first);
        assert_eq!(admit(&mut admission, remote(1), clock.at(1)).1, None);
    }

    #[test]
    fn without_descriptors_idle_connections_are_closed_and_local_ones_last() {
        let (mut admission, clock) = (admission(), clock());
        let (local, _) = admit(&mut admission, PeerKey::Local, clock.at(0));
        let (responding, _) = admit(&mut admission, remote(1), clock.at(0));
        let (idle, _) = admit(&mut admission, remote(2), clock.at(1));
        admission.begin_response(responding, clock.at(1));
        assert_eq!(
            [admission.shed(), admission.shed(), admission.shed()],
            [Some(idle), Some(local), None]
        );
    }

    #[test]
    fn each_phase_has_a_deadline_of_its_own() {
        let (mut admission, clock) = (admission(), clock());
        let (id, _) = admit(&mut admission, remote(1), clock.at(0));
        assert_eq!(admission.deadline(id), Some(clock.at(5)));
        admission.begin_response(id, clock.at(3));
        assert_eq!(admission.deadline(id), Some(clock.at(3 + 30)));
        admission.end_response(id, clock.at(4));
        assert_eq!(admission.deadline(id), Some(clock.at(4 + 30)));
        admission.close(id);
        assert_eq!(admission.deadline(id), None);
    }
}
