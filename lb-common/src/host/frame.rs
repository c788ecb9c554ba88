//! Packets in memory, and simulated routing tables.

use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;

use crate::datapath::{NextHop, Packet, PacketFunction, Query, Role, Route};
use crate::family::Family;
use crate::header::Header;

/// A frame in memory, at a hook of a simulated machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFrame {
    pub bytes: Vec<u8>,
    pub role: Role,
    pub device: u32,
    /// Whether the hook is one that can resolve next hops.
    pub resolves: bool,
    /// See [`Packet::segment`].
    pub segment: u32,
    /// Whether the bytes begin with the network header.
    pub raw: bool,
    /// See [`Packet::is_received`].
    pub received: bool,
    /// See [`Packet::is_sent_here`].
    pub sent_here: bool,
    pub routes: Routes,
    /// The interface through which it leaves, if the verdict is to send it.
    pub left_by: u32,
}

/// The simulated routing tables: the next hop for each destination that has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes(pub Rc<HashMap<IpAddr, Exit>>);

/// Where packets for a destination leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    pub device: u32,
    /// The next hop's link-layer address, if it is resolved.
    pub neighbour: Option<[u8; 6]>,
    /// The MTU.
    pub mtu: u32,
}

impl HostFrame {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// The frame at the hook of tc on the same interface.
    pub fn in_tc(&self) -> Self {
        Self { resolves: true, ..self.clone() }
    }

    /// The result of a route lookup in the kernel for a packet with this exit.
    pub fn route<F: Family>(&self, query: &Query<F>, exit: Option<Exit>) -> Route {
        let Some(Exit { device, neighbour, mtu }) = exit else {
            return Route::None;
        };
        if query.length > mtu {
            return Route::TooBig(mtu);
        }
        match neighbour {
            Some(neighbour) => Route::Known { next: NextHop { device, neighbour }, mtu },
            None => Route::NoNeighbour(device),
        }
    }
}

impl Packet for HostFrame {
    fn role(&self) -> Role {
        self.role
    }

    fn set_role(&mut self, role: Role) {
        self.role = role;
    }

    fn is_sent_here(&self) -> bool {
        self.sent_here
    }

    fn device(&self) -> u32 {
        self.device
    }

    fn resolves(&self) -> bool {
        self.resolves
    }

    fn call<F: Family>(&self, _: PacketFunction, _: usize, execute: impl FnOnce() -> u32) -> u32 {
        execute()
    }

    fn is_raw(&self) -> bool {
        self.raw
    }

    fn is_received(&self) -> bool {
        self.received
    }

    fn segment(&self) -> u32 {
        self.segment
    }

    fn leave_by(&mut self, device: u32) {
        self.left_by = device;
    }

    fn route<F: Family>(&self, query: &Query<F>) -> Route {
        let to: IpAddr = query.to.into();
        self.route(query, self.routes.0.get(&to).copied())
    }

    fn grow_front(&mut self, bytes: usize) -> Option<()> {
        self.bytes.splice(0..0, std::iter::repeat_n(0, bytes));
        Some(())
    }

    fn shrink_front(&mut self, bytes: usize) -> Option<()> {
        (bytes <= self.bytes.len()).then(|| drop(self.bytes.drain(..bytes)))
    }

    fn resize(&mut self, length: u32) -> Option<()> {
        self.bytes.resize(length as usize, 0);
        Some(())
    }

    fn header<H: Header>(&self, offset: usize) -> Option<&H> {
        let bytes = self.bytes.get(offset..)?.get(..size_of::<H>())?;
        // SAFETY: the bytes are as many as `H` has, and `Header` promises that `H` may lie
        // anywhere and take any value.
        Some(unsafe { &*bytes.as_ptr().cast::<H>() })
    }

    fn header_mut<H: Header>(&mut self, offset: usize) -> Option<&mut H> {
        let bytes = self.bytes.get_mut(offset..)?.get_mut(..size_of::<H>())?;
        // SAFETY: as above, and the borrow is exclusive.
        Some(unsafe { &mut *bytes.as_mut_ptr().cast::<H>() })
    }

    fn length(&self) -> u32 {
        self.bytes.len() as u32
    }
}
