//! What the data plane looks up and does, as notes for [`super::story`].

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lb_common::datapath::{Direction, Rejection, Route, Stage};
use lb_common::family::{Address, Family};
use lb_common::layout::{
    Affinity, AnnouncedAddress, Backend, Device, Flow, FlowKind, FlowState, Frontend, Member,
    NeighbourEvent, Pool, PoolSlot, Reason, Ticks, TunnelTarget,
};

/// A lookup or an action of the data plane.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Observation {
    Stage(Stage),
    /// Prefilter: whether a frontend may have the address.
    MayBeDestination(IpAddr, bool),
    /// Prefilter for replies: whether a backend may have the address and port.
    MayBeSource(SocketAddr, u8, bool),
    Frontend(SocketAddr, u8, Option<Frontend>),
    SourceAllowed(u32, IpAddr, bool),
    Pool(u32, Option<Pool>),
    Slot(u32, Option<u32>),
    Affinity(u32, Option<Affinity>, Ticks),
    Member(Member, bool),
    Backend(u32, Option<AnyBackend>),
    Device(u32, Option<Device>),
    /// A bucket of the flow table or of the reply index was searched.
    Bucket(u32),
    ReplyBucket(u32),
    /// The packet belongs to this existing flow.
    Touched(AnyFlow),
    /// A flow's entry was freed.
    Released(AnyFlow),
    Opened(AnyFlow),
    /// A flow's entry was taken for another flow.
    Replaced(AnyFlow),
    AffinitySet(u32, Affinity),
    Fragment(bool),
    FragmentSet(u16, u16),
    Peer(IpAddr, bool),
    /// Whether a probe has shown that a node takes packets out of tunnels.
    Decapsulates(IpAddr, bool),
    Target(TunnelTarget, Option<u32>),
    /// An earlier owner of a slot, from 0 for the last one.
    EarlierOwner(PoolSlot, u32, Option<u32>),
    /// Whether a node returns packets of connections that it does not know.
    Returns(IpAddr, bool),
    Rejection(Rejection),
    Counted(Reason),
    Packet(u32, u32, Direction),
    NewFlow(u32, u32),
    Route {
        to: IpAddr,
        from: IpAddr,
        route: Route,
    },
    LeaveBy(u32),
    /// How long requests for an address are still answered; `None`: it is not announced.
    Announced(AnnouncedAddress, Option<Duration>),
    /// Another machine uses an address that the agent watches.
    Claimed(IpAddr, [u8; 6]),
    Answered(NeighbourEvent),
}

/// A flow of either family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AnyFlow {
    pub client: SocketAddr,
    pub frontend: SocketAddr,
    pub backend: SocketAddr,
    pub snat: SocketAddr,
    pub protocol: u8,
    pub service_port: u32,
    pub backend_index: u32,
    pub kind: FlowKind,
    pub before: FlowState,
    pub state: FlowState,
    /// Time since its last packet.
    pub idle_seconds: f64,
}

impl AnyFlow {
    /// `states`: before and after the packet.
    pub fn of<F: Family>(
        flow: &Flow<F>,
        states: (FlowState, FlowState),
        idle_seconds: f64,
    ) -> Self {
        let end = |address: F::Address, port| SocketAddr::new(address.into(), port);
        Self {
            client: end(flow.client, flow.client_port),
            frontend: end(flow.frontend, flow.frontend_port),
            backend: end(flow.backend, flow.backend_port),
            snat: end(flow.snat, flow.snat_port),
            protocol: flow.protocol,
            service_port: flow.service_port,
            backend_index: flow.backend_index,
            kind: flow.kind,
            before: states.0,
            state: states.1,
            idle_seconds,
        }
    }
}

/// A backend of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnyBackend {
    pub end: SocketAddr,
    pub node: Option<IpAddr>,
    pub generation: u32,
    pub protocol: u8,
    pub local: bool,
    pub draining: bool,
}

impl<A: Address> From<Backend<A>> for AnyBackend {
    fn from(backend: Backend<A>) -> Self {
        let node = (backend.node != A::default()).then(|| backend.node.into());
        Self {
            end: SocketAddr::new(backend.address.into(), backend.port),
            node,
            generation: backend.generation,
            protocol: backend.protocol,
            local: backend.is_local(),
            draining: backend.is_draining(),
        }
    }
}

/// The recorded observations.
#[derive(Default)]
pub struct Notes(RefCell<Vec<Observation>>);

impl Notes {
    pub fn add(&self, observation: Observation) {
        self.0.borrow_mut().push(observation);
    }

    pub fn take(&self) -> Vec<Observation> {
        self.0.take()
    }
}
