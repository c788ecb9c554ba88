//! Indexes of backends, and the number of pools that each is in.

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};

use lb_common::family::{Address, Address4, Address6};
use lb_common::hash::{backend_identity, backend_tag};
use lb_common::layout::Backend;

use super::allocate::Indexes;
use super::bits::Bits;
use super::step::{Plan, Step};
use crate::model;

/// Identifies a backend, which all its pools share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendKey {
    pub address: IpAddr,
    pub port: u16,
    pub protocol: u8,
}

impl BackendKey {
    pub fn new(address: IpAddr, port: u16, protocol: u8) -> Self {
        Self { address, port, protocol }
    }

    pub fn of(backend: &model::Backend, protocol: u8) -> Self {
        Self::new(backend.address, backend.port, protocol)
    }

    /// The entry in the kernel's table.
    pub fn entry<A: Address>(&self, address: A, standing: Standing, generation: u32) -> Backend<A> {
        let flag = |on: bool, flag: u8| if on { flag } else { 0 };
        let flags = flag(standing.local, Backend::<A>::LOCAL)
            | flag(standing.draining, Backend::<A>::DRAINING);
        let (port, protocol) = (self.port, self.protocol);
        let node = standing.node.and_then(A::of).unwrap_or_default();
        Backend { address, node, generation, port, protocol, flags }
    }

    /// The tag by which packets in tunnels name it.
    pub fn tag(&self) -> u16 {
        match self.address {
            IpAddr::V4(address) => backend_tag(Address4::from(address), self.port),
            IpAddr::V6(address) => backend_tag(Address6::from(address), self.port),
        }
    }

    /// The input of its Maglev permutation: the same on every node.
    pub fn identity(&self) -> u64 {
        match self.address {
            IpAddr::V4(address) => backend_identity(Address4::from(address), self.port),
            IpAddr::V6(address) => backend_identity(Address6::from(address), self.port),
        }
    }
}

impl Display for BackendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.address, self.port).fmt(f)
    }
}

/// A backend's state and location, as far as the kernel's entry contains them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// On this node.
    pub local: bool,
    /// In no pool: it only keeps its existing connections.
    pub draining: bool,
    /// The address of its node, if that is another one and known.
    pub node: Option<IpAddr>,
}

impl Standing {
    /// That of a member of a pool. As in the kernel's entry, the node's address has the backend's
    /// address family.
    pub fn in_pool(backend: &model::Backend) -> Self {
        let is_of_family = |node: &IpAddr| node.is_ipv4() == backend.address.is_ipv4();
        let node = backend.node.filter(is_of_family).filter(|node| !node.is_unspecified());
        Self { local: backend.local, draining: false, node }
    }

    pub fn of<A: Address>(entry: &Backend<A>) -> Self {
        let node = Some(entry.node).filter(|node| *node != A::default()).map(Into::into);
        Self { local: entry.is_local(), draining: entry.is_draining(), node }
    }
}

pub struct Backends {
    indexes: Indexes,
    held: HashMap<BackendKey, ProgrammedBackend>,
    /// The generation of every index that was ever used.
    generations: HashMap<u32, u32>,
}

struct ProgrammedBackend {
    index: u32,
    /// As in the kernel's entry.
    standing: Standing,
    pools: u32,
    /// How many service ports keep it for its connections.
    keepers: u32,
}

impl Backends {
    pub fn new(limit: u32) -> Self {
        Self {
            // Index 0 is never a backend.
            indexes: Indexes::new(1, limit),
            held: HashMap::new(),
            generations: HashMap::new(),
        }
    }

    pub fn settle(&mut self) {
        self.indexes.settle();
    }

    pub fn len(&self) -> usize {
        self.held.len()
    }

    pub fn index_of(&self, backend: &BackendKey) -> Option<u32> {
        self.held.get(backend).map(|held| held.index)
    }

    /// The index of a backend, if it is in a pool.
    pub fn in_pool(&self, backend: &BackendKey) -> Option<u32> {
        let held = self.held.get(backend)?;
        (held.pools > 0).then_some(held.index)
    }

    /// Counts one more pool of the backend, and returns its index.
    pub fn acquire(
        &mut self,
        backend: BackendKey,
        member: &model::Backend,
        bits: &mut Bits,
        plan: &mut Plan,
    ) -> Option<u32> {
        let standing = Standing::in_pool(member);
        if let Some(held) = self.held.get_mut(&backend) {
            held.pools += 1;
            if held.standing != standing {
                held.standing = standing;
                let (index, generation) = (held.index, self.generations[&held.index]);
                plan.prepare.push(Step::SetBackend { index, backend, standing, generation });
            }
            return Some(held.index);
        }
        let index = self.indexes.take()?;
        let generation = self.generations.entry(index).or_default();
        // The counters of an index that was never used are zero.
        if *generation > 0 {
            plan.prepare.push(Step::ResetBackendTraffic { index });
        }
        *generation = generation.wrapping_add(1);
        let generation = *generation;
        // The bit is set first: an adopted backend is assumed to have its bit.
        bits.add_source(backend, plan);
        plan.prepare.push(Step::SetBackend { index, backend, standing, generation });
        self.held.insert(backend, ProgrammedBackend { index, standing, pools: 1, keepers: 0 });
        Some(index)
    }

    /// Counts one more pool in which a backend was found.
    pub fn join(&mut self, backend: &BackendKey) {
        if let Some(held) = self.held.get_mut(backend) {
            held.pools += 1;
        }
    }

    /// Takes back `join`. If the backend is then in no pool, `settle_adopted` retires it.
    pub fn leave(&mut self, backend: &BackendKey) {
        if let Some(held) = self.held.get_mut(backend) {
            held.pools -= 1;
        }
    }

    /// Counts one pool less. After the last one the backend is draining, or is retired.
    pub fn release(&mut self, backend: BackendKey, bits: &mut Bits, plan: &mut Plan) {
        let Some(held) = self.held.get_mut(&backend) else { return };
        held.pools -= 1;
        self.settle_one(backend, bits, plan);
    }

    /// Counts a service port that keeps a backend outside of its pools. Returns whether the kernel
    /// has the backend: one that was never in a pool has no connections.
    pub fn keep(&mut self, backend: &BackendKey) -> bool {
        let held = self.held.get_mut(backend);
        held.map(|held| held.keepers += 1).is_some()
    }

    /// Counts one keeper less.
    pub fn let_go(&mut self, backend: BackendKey, bits: &mut Bits, plan: &mut Plan) {
        let Some(held) = self.held.get_mut(&backend) else { return };
        held.keepers -= 1;
        self.settle_one(backend, bits, plan);
    }

    /// Lets a backend drain, or retires it, if it is in no pool any more.
    fn settle_one(&mut self, backend: BackendKey, bits: &mut Bits, plan: &mut Plan) {
        let Some(held) = self.held.get_mut(&backend) else { return };
        if held.pools > 0 || (held.keepers > 0 && held.standing.draining) {
            return;
        }
        if held.keepers == 0 {
            return self.retire(backend, bits, plan);
        }
        held.standing.draining = true;
        let (index, standing) = (held.index, held.standing);
        let generation = self.generations[&index];
        plan.retire.push(Step::SetBackend { index, backend, standing, generation });
    }

    fn retire(&mut self, backend: BackendKey, bits: &mut Bits, plan: &mut Plan) {
        let Some(held) = self.held.remove(&backend) else { return };
        let generation = self.generations[&held.index];
        plan.retire.push(Step::RetireBackend {
            index: held.index,
            family: backend.address,
            generation,
        });
        bits.remove_source(backend, plan);
        self.indexes.give_back(held.index);
    }

    /// Adds a backend that the kernel already had, in no pool yet.
    pub fn adopt(&mut self, index: u32, backend: BackendKey, standing: Standing, bits: &mut Bits) {
        self.indexes.take_exactly(index);
        bits.adopt_source(backend);
        self.held.insert(backend, ProgrammedBackend { index, standing, pools: 0, keepers: 0 });
    }

    /// Stores the generation of an index, used or not.
    pub fn adopt_generation(&mut self, index: u32, generation: u32) {
        self.generations.insert(index, generation);
    }

    /// Retires adopted backends that are not wanted, or lets them drain.
    pub fn settle_adopted(&mut self, bits: &mut Bits, plan: &mut Plan) {
        let adopted: Vec<BackendKey> =
            self.held.iter().filter(|(_, held)| held.pools == 0).map(|(key, _)| *key).collect();
        for backend in adopted {
            self.settle_one(backend, bits, plan);
        }
    }
}
