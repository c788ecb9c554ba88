//! Which backend has which index, and in how many pools it is.

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};

use lb_common::family::{Address, Address4, Address6};
use lb_common::hash::mix;
use lb_common::layout::{Backend, capacity};

use super::allocate::Indexes;
use super::bits::Bits;
use super::step::{Plan, Step};

/// What a backend is: shared by all pools that it is in.
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

    /// As the kernel's tables have it.
    pub fn entry<A: Address>(&self, address: A, local: bool, generation: u32) -> Backend<A> {
        let flags = if local { Backend::<A>::LOCAL } else { 0 };
        let (port, protocol) = (self.port, self.protocol);
        Backend { address, generation, port, protocol, flags }
    }

    /// What its place in a Maglev table follows from: the same on every node.
    pub fn identity(&self) -> u64 {
        let [first, second] = match self.address {
            IpAddr::V4(address) => Address4::from(address).words(),
            IpAddr::V6(address) => Address6::from(address).words(),
        };
        mix(mix(first ^ u64::from(self.port) << 40) ^ second)
    }
}

impl Display for BackendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.address, self.port).fmt(f)
    }
}

pub struct Backends {
    indexes: Indexes,
    held: HashMap<BackendKey, Held>,
    /// Of every index that was ever used.
    generations: HashMap<u32, u32>,
}

struct Held {
    index: u32,
    local: bool,
    pools: u32,
}

impl Backends {
    pub fn new() -> Self {
        Self {
            // Index 0 is nobody's.
            indexes: Indexes::new(1, capacity::BACKENDS),
            held: HashMap::new(),
            generations: HashMap::new(),
        }
    }

    #[cfg(test)]
    pub fn limited_to(limit: u32) -> Self {
        Self { indexes: Indexes::new(1, limit), ..Self::new() }
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

    /// Notes one more pool that the backend is in, and says its index.
    pub fn acquire(
        &mut self,
        backend: BackendKey,
        local: bool,
        bits: &mut Bits,
        plan: &mut Plan,
    ) -> Option<u32> {
        if let Some(held) = self.held.get_mut(&backend) {
            held.pools += 1;
            if held.local != local {
                held.local = local;
                let generation = self.generations[&held.index];
                plan.prepare.push(Step::SetBackend {
                    index: held.index,
                    backend,
                    local,
                    generation,
                });
            }
            return Some(held.index);
        }
        let index = self.indexes.take()?;
        let generation = self.generations.entry(index).or_default();
        // The counters of an index that nobody has had yet are zero.
        if *generation > 0 {
            plan.prepare.push(Step::ResetBackendTraffic { index });
        }
        *generation = generation.wrapping_add(1);
        let generation = *generation;
        plan.prepare.push(Step::SetBackend { index, backend, local, generation });
        bits.add_source(backend, plan);
        self.held.insert(backend, Held { index, local, pools: 1 });
        Some(index)
    }

    /// Notes one pool less; the last one retires the backend.
    pub fn release(&mut self, backend: BackendKey, bits: &mut Bits, plan: &mut Plan) {
        let Some(held) = self.held.get_mut(&backend) else { return };
        held.pools -= 1;
        if held.pools == 0 {
            self.retire(backend, bits, plan);
        }
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

    /// Takes in a backend that the kernel held before this agent began, in no pool as yet.
    pub fn adopt(&mut self, index: u32, backend: BackendKey, local: bool, bits: &mut Bits) {
        self.indexes.take_exactly(index);
        bits.adopt_source(backend);
        self.held.insert(backend, Held { index, local, pools: 0 });
    }

    /// Remembers the generation of an index, used or not.
    pub fn adopt_generation(&mut self, index: u32, generation: u32) {
        self.generations.insert(index, generation);
    }

    /// Retires what was adopted and is in no pool.
    pub fn retire_unused(&mut self, bits: &mut Bits, plan: &mut Plan) {
        let unused: Vec<BackendKey> =
            self.held.iter().filter(|(_, held)| held.pools == 0).map(|(key, _)| *key).collect();
        for backend in unused {
            self.retire(backend, bits, plan);
        }
    }
}
