//! State of sockets, on the host.

use std::cell::RefCell;
use std::collections::HashMap;

use super::{HostTables, OfFamily};
use crate::datapath::PacketFamily;
use crate::datapath::socket::SocketTables;
use crate::family::Family;
use crate::layout::{SocketEnd, SocketFlow};

/// One family's sockets.
pub struct HostSockets<F: Family> {
    /// This node's own address.
    pub own_address: F::Address,
    /// Whether processes reach NodePorts at the loopback address.
    pub opens_loopback: bool,
    pub connected: RefCell<HashMap<u64, SocketFlow<F>>>,
    pub unconnected: RefCell<HashMap<SocketEnd<F>, SocketFlow<F>>>,
    /// The capacity of each of the two maps.
    pub room: usize,
}

impl<F: Family> Default for HostSockets<F> {
    fn default() -> Self {
        Self {
            own_address: F::Address::default(),
            opens_loopback: false,
            connected: RefCell::default(),
            unconnected: RefCell::default(),
            room: usize::MAX,
        }
    }
}

impl<F: PacketFamily> SocketTables<F> for HostTables
where
    Self: OfFamily<F>,
{
    fn own_address(&self) -> F::Address {
        self.family().sockets.own_address
    }

    fn opens_loopback(&self) -> bool {
        self.family().sockets.opens_loopback
    }

    fn connected(&self, cookie: u64) -> Option<SocketFlow<F>> {
        self.family().sockets.connected.borrow().get(&cookie).copied()
    }

    fn set_connected(&self, cookie: u64, flow: &SocketFlow<F>) -> bool {
        let sockets = &self.family().sockets;
        insert(&mut sockets.connected.borrow_mut(), cookie, *flow, sockets.room)
    }

    fn remove_connected(&self, cookie: u64) {
        self.family().sockets.connected.borrow_mut().remove(&cookie);
    }

    fn unconnected(&self, end: &SocketEnd<F>) -> Option<SocketFlow<F>> {
        self.family().sockets.unconnected.borrow().get(end).copied()
    }

    fn set_unconnected(&self, end: &SocketEnd<F>, flow: &SocketFlow<F>) -> bool {
        let sockets = &self.family().sockets;
        insert(&mut sockets.unconnected.borrow_mut(), *end, *flow, sockets.room)
    }

    fn remove_unconnected(&self, end: &SocketEnd<F>) {
        self.family().sockets.unconnected.borrow_mut().remove(end);
    }
}

fn insert<K: Eq + std::hash::Hash, V>(
    map: &mut HashMap<K, V>,
    key: K,
    value: V,
    room: usize,
) -> bool {
    let fits = map.len() < room || map.contains_key(&key);
    if fits {
        map.insert(key, value);
    }
    fits
}
