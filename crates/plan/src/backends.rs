//! Indexes of backends, and the number of pools that each is in.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use lb_rules::model;

use super::allocate::Indexes;
use super::bits::Bits;
use super::key::{BackendKey, BackendNode, BackendState};
use super::locations::Locations;
use super::step::{Plan, Step};
use super::table::WeightedBackend;

pub struct Backends {
    indexes: Indexes,
    held: HashMap<BackendKey, ProgrammedBackend>,
    /// By index, up to the highest one that was ever used; 0: not used yet.
    generations: Vec<u32>,
    locations: Locations,
}

struct ProgrammedBackend {
    index: u32,
    /// As in the kernel's entry.
    state: BackendState,
    pools: u32,
    /// How many service ports keep it for its connections.
    keepers: u32,
}

impl ProgrammedBackend {
    fn node(&self) -> (u32, BackendNode) {
        (self.index, self.state.node_of(self.index))
    }
}

impl Backends {
    pub fn new(limit: u32) -> Self {
        Self {
            // Index 0 is never a backend.
            indexes: Indexes::new(1, limit),
            held: HashMap::new(),
            generations: Vec::new(),
            locations: Locations::default(),
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

    /// The index of a backend, and where it is.
    pub fn node_of(&self, backend: &BackendKey) -> Option<(u32, BackendNode)> {
        self.held.get(backend).map(ProgrammedBackend::node)
    }

    /// The indexes of all backends, and where they are.
    pub fn nodes(&self) -> impl Iterator<Item = (u32, BackendNode)> {
        self.held.values().map(ProgrammedBackend::node)
    }

    /// The address of each, by index.
    pub fn addresses(&self) -> impl Iterator<Item = (u32, SocketAddr)> {
        self.held.iter().map(|(key, held)| (held.index, SocketAddr::new(key.address, key.port)))
    }

    /// The index of a backend, if it is in a pool.
    pub(crate) fn in_pool(&self, backend: &BackendKey) -> Option<u32> {
        let held = self.held.get(backend)?;
        (held.pools > 0).then_some(held.index)
    }

    /// Those members of a pool that have an index, as their table needs them.
    pub fn weighted(
        &self,
        members: &BTreeSet<model::Backend>,
        protocol: u8,
    ) -> Vec<WeightedBackend> {
        let weighted = |member: &model::Backend| {
            let key = BackendKey::of(member, protocol);
            let (identity, weight) = (key.identity(), member.weight);
            Some(WeightedBackend { identity, weight, index: self.index_of(&key)? })
        };
        members.iter().filter_map(weighted).collect()
    }

    /// Counts one more pool of the backend, and returns its index.
    pub fn acquire(
        &mut self,
        backend: BackendKey,
        member: &model::Backend,
        bits: &mut Bits,
        plan: &mut Plan,
    ) -> Option<u32> {
        let described = BackendState::in_pool(member);
        let index = match self.index_of(&backend) {
            Some(index) => index,
            None => self.begin(backend, self.locations.of_one(&backend, described), bits, plan)?,
        };
        self.join(&backend, described);
        Some(index)
    }

    /// Adds a backend, in no pool yet.
    fn begin(
        &mut self,
        backend: BackendKey,
        state: BackendState,
        bits: &mut Bits,
        plan: &mut Plan,
    ) -> Option<u32> {
        let index = self.indexes.take()?;
        let generation = self.generation_mut(index);
        // The counters of an index that was never used are zero.
        if *generation > 0 {
            plan.prepare.push(Step::ResetBackendTraffic { index });
        }
        *generation = generation.wrapping_add(1);
        let generation = *generation;
        // The bit is set first: an adopted backend is assumed to have its bit.
        bits.add_source(backend, plan);
        plan.prepare.push(Step::SetBackend { index, backend, state, generation });
        self.held.insert(backend, ProgrammedBackend { index, state, pools: 0, keepers: 0 });
        Some(index)
    }

    /// Counts one more pool of a backend, which describes it like this.
    pub fn join(&mut self, backend: &BackendKey, described: BackendState) {
        if let Some(held) = self.held.get_mut(backend) {
            self.locations.add(backend, described, (held.state, held.pools));
            held.pools += 1;
        }
    }

    /// Takes back `join`. If the backend is then in no pool, `settle_adopted` retires it.
    pub fn leave(&mut self, backend: &BackendKey, described: BackendState) {
        if let Some(held) = self.held.get_mut(backend) {
            held.pools -= 1;
            self.locations.remove(backend, described);
        }
    }

    /// Counts one pool less. After the last one the backend is draining, or is retired.
    pub fn release(
        &mut self,
        member: &model::Backend,
        protocol: u8,
        bits: &mut Bits,
        plan: &mut Plan,
    ) {
        let backend = BackendKey::of(member, protocol);
        self.leave(&backend, BackendState::in_pool(member));
        self.settle_one(backend, bits, plan);
    }

    /// Sets all addresses of this node.
    pub(crate) fn move_own(&mut self, addresses: BTreeSet<IpAddr>) {
        let held = self.held.iter().map(|(key, held)| (key, (held.state, held.pools)));
        self.locations.move_own(addresses, held);
    }

    /// Writes where backends are, if their descriptions have changed. To be called when the plan has
    /// joined and left all pools.
    pub(crate) fn write_locations(&mut self, plan: &mut Plan) {
        for (backend, state) in self.locations.changed() {
            let Some(held) = self.held.get_mut(&backend) else { continue };
            if held.state != state {
                held.state = state;
                let (index, generation) = (held.index, self.generations[held.index as usize]);
                plan.prepare.push(Step::SetBackend { index, backend, state, generation });
            }
        }
    }

    /// Counts a service port that keeps a backend outside of its pools. Returns whether the kernel
    /// has the backend: one that was never in a pool has no connections.
    pub fn keep(&mut self, backend: &BackendKey) -> bool {
        let held = self.held.get_mut(backend);
        held.map(|held| held.keepers += 1).is_some()
    }

    /// Counts a service port that keeps a backend which was in a pool of other nodes, and may have connections
    /// there. Returns whether there was room for it.
    pub(crate) fn keep_for_others(
        &mut self,
        member: &model::Backend,
        protocol: u8,
        bits: &mut Bits,
        plan: &mut Plan,
    ) -> bool {
        let backend = BackendKey::of(member, protocol);
        if !self.held.contains_key(&backend) {
            let state = self.locations.of_one(&backend, BackendState::in_pool(member));
            self.begin(backend, BackendState { draining: true, ..state }, bits, plan);
        }
        self.keep(&backend)
    }

    /// Counts one keeper less.
    pub(crate) fn release_draining(
        &mut self,
        backend: BackendKey,
        bits: &mut Bits,
        plan: &mut Plan,
    ) {
        let Some(held) = self.held.get_mut(&backend) else { return };
        held.keepers -= 1;
        self.settle_one(backend, bits, plan);
    }

    /// Lets a backend drain, or retires it, if it is in no pool any more.
    fn settle_one(&mut self, backend: BackendKey, bits: &mut Bits, plan: &mut Plan) {
        let Some(held) = self.held.get_mut(&backend) else { return };
        if held.pools > 0 || (held.keepers > 0 && held.state.draining) {
            return;
        }
        if held.keepers == 0 {
            return self.retire(backend, bits, plan);
        }
        held.state.draining = true;
        let (index, state) = (held.index, held.state);
        let generation = self.generations[index as usize];
        plan.retire.push(Step::SetBackend { index, backend, state, generation });
    }

    fn retire(&mut self, backend: BackendKey, bits: &mut Bits, plan: &mut Plan) {
        let Some(held) = self.held.remove(&backend) else { return };
        let generation = self.generations[held.index as usize];
        plan.retire.push(Step::RetireBackend {
            index: held.index,
            family: backend.address,
            generation,
        });
        bits.remove_source(backend, plan);
        self.indexes.give_back(held.index);
    }

    /// Adds a backend that the kernel already had, in no pool yet.
    pub fn adopt(&mut self, index: u32, backend: BackendKey, state: BackendState, bits: &mut Bits) {
        self.indexes.take_exactly(index);
        bits.adopt_source(backend);
        self.held.insert(backend, ProgrammedBackend { index, state, pools: 0, keepers: 0 });
    }

    fn generation_mut(&mut self, index: u32) -> &mut u32 {
        let index = index as usize;
        if index >= self.generations.len() {
            self.generations.resize(index + 1, 0);
        }
        &mut self.generations[index]
    }

    /// Makes room for backends that the kernel already had.
    pub fn expect(&mut self, adopted: usize) {
        self.held.reserve(adopted);
    }

    /// Stores the generation of an index, used or not.
    pub(crate) fn adopt_generation(&mut self, index: u32, generation: u32) {
        *self.generation_mut(index) = generation;
    }

    /// Retires adopted backends that are not wanted, or lets them drain.
    pub(crate) fn settle_adopted(&mut self, bits: &mut Bits, plan: &mut Plan) {
        let adopted: Vec<BackendKey> =
            self.held.iter().filter(|(_, held)| held.pools == 0).map(|(key, _)| *key).collect();
        for backend in adopted {
            self.settle_one(backend, bits, plan);
        }
    }
}
