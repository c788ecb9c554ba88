//! Starts from what an earlier agent left in the kernel.
//!
//! The tables stay unchanged until the first plan, which is made from all objects of the sources.
//! That plan compares contents: what the kernel already has costs no step, so a restart without
//! changes writes nothing. What is still needed keeps its index, so that flows keep naming the
//! right backend. The rest is retired by the same plan.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use lb_common::layout::Pool;
use lb_common::maglev::Weight;
use lb_rules::model::{AddressFamily, Backend, ServicePort, ServicePortKey};

use super::adopted::{Adopted, AdoptedBackends, AdoptedPool, AdoptedTables};
use super::allocate::Region;
use super::backends::Backends;
use super::found::{Found, FoundPool, Snapshot};
use super::history::AdoptedHistories;
use super::key::{BackendKey, BackendState, FrontendKey, Scope};
use super::names;
use super::pool_table::{Fit, PoolTable};
use super::room::Room;
use super::side_entry::SideEntry;
use super::state::{Planner, ProgrammedPort};
use super::step::{Plan, Step};

impl Planner {
    /// Starts from the contents that an earlier agent left in the kernel.
    pub fn adopting(snapshot: Snapshot, room: Room) -> Self {
        let mut planner = Self::with_room(room);
        let mut backends = AdoptedBackends::default();
        planner.backends.expect(snapshot.backends.len());
        planner.bits.expect_sources(snapshot.backends.len());
        for found in snapshot.backends {
            planner.backends.adopt_generation(found.index, found.generation);
            if let Some((backend, state)) = found.backend {
                planner.backends.adopt(found.index, backend, state, &mut planner.bits);
                backends.insert(found.index, (backend, state));
            }
        }
        let mut unclaimed = BTreeSet::new();
        let mut weights = weights_of_pools(&snapshot.side_entries);
        let mut pools = HashMap::new();
        for FoundPool { index, pool, members, digest } in snapshot.pools {
            let region = Region { offset: pool.offset, size: pool.size };
            let is_free = planner.regions.take_exactly(region);
            let region = if is_free { region } else { Region::EMPTY };
            for (key, state) in members.iter().filter_map(|&member| backends.get(member)) {
                planner.backends.join(key, *state);
            }
            let weights = weights.remove(&index).unwrap_or_default();
            let has_own_table = OnceLock::new();
            let pool = AdoptedPool { region, members, digest, weights, has_own_table };
            pools.insert(index, Arc::new(pool));
            unclaimed.insert(Scope::service_port_of(index));
        }
        for (_, frontend) in &snapshot.frontends {
            if frontend.service_port != 0 {
                unclaimed.insert(frontend.service_port);
            }
        }
        let mut side_entries: HashMap<u32, BTreeSet<SideEntry>> = HashMap::new();
        let mut names = HashMap::new();
        let mut histories = AdoptedHistories::default();
        for side_entry in snapshot.side_entries {
            match side_entry {
                SideEntry::Peer(address) => drop(planner.peers.insert(address)),
                SideEntry::Name { service_port, name } => {
                    names.insert(service_port, name);
                    // Also for a name without anything else: it must not be used for another
                    // service port.
                    unclaimed.insert(service_port);
                }
                SideEntry::Earlier { slot, owners } => histories.insert(slot, owners),
                _ => drop(
                    side_entries.entry(side_entry.service_port()).or_default().insert(side_entry),
                ),
            }
        }
        for &index in &unclaimed {
            planner.indexes.take_exactly(index);
        }
        planner.has_adopted = true;
        planner.adopted = Some(Adopted {
            found: Found {
                frontends: snapshot.frontends.into_iter().collect(),
                destination_bits: snapshot.destination_bits.into_iter().collect(),
            },
            pools,
            backends: Arc::new(backends),
            unclaimed,
            source_bits: snapshot.source_bits,
            side_entries,
            names,
            histories,
            datagrams: snapshot.datagrams,
        });
        planner
    }

    /// What a thread may compare until the first plan; `None` without adopted pools.
    pub fn adopted_tables(&self) -> Option<AdoptedTables> {
        let adopted = self.adopted.as_ref().filter(|adopted| !adopted.pools.is_empty())?;
        let pools = adopted.pools.values().cloned().collect();
        Some(AdoptedTables { pools, backends: Arc::clone(&adopted.backends) })
    }

    /// Gives the first plan what was found, so that it leaves out what exists already.
    pub(super) fn lend_found(&mut self, plan: &mut Plan) {
        if let Some(adopted) = &mut self.adopted {
            plan.found = std::mem::take(&mut adopted.found);
        }
    }

    /// Takes over the index that one of the service port's frontends has in the kernel, with the
    /// tables and members of its pools there.
    pub(super) fn take_over(
        &mut self,
        key: &ServicePortKey,
        wanted: &ServicePort,
        plan: &Plan,
    ) -> Option<ProgrammedPort> {
        let adopted = self.adopted.as_mut()?;
        let protocol = key.protocol.number();
        let index = wanted.frontends.iter().find_map(|frontend| {
            let key = FrontendKey::new(frontend.address, frontend.port, protocol);
            let found = plan.found.frontends.get(&key)?;
            adopted.unclaimed.contains(&found.service_port).then_some(found.service_port)
        })?;
        adopted.unclaimed.remove(&index);
        let side_entries = adopted.side_entries.remove(&index).unwrap_or_default();
        let name = adopted.names.remove(&index);
        let pools = Scope::BOTH.map(|scope| adopted.pools.remove(&scope.pool_index(index)));
        let mut held = ProgrammedPort::empty(index);
        for (scope, pool) in Scope::BOTH.into_iter().zip(pools) {
            let Some(pool) = pool else { continue };
            let wanted_members = scope.members(wanted);
            let members = adopted.members(&pool, protocol, wanted_members);
            held.tables[scope as usize] = PoolTable {
                region: pool.region,
                // Slots are compared only if the members are unchanged, or their owners remembered.
                fit: if members == *wanted_members || wanted.is_tunnelled() {
                    adopted.fit(&pool, &members, &self.backends)
                } else {
                    Fit::Unknown
                },
            };
            adopted.describe(&pool, protocol, &members, &mut self.backends);
            *scope.members_mut(Arc::make_mut(&mut held.service_port)) = members;
        }
        self.adopt_history(&mut held);
        self.side_entry_counts.replace(&BTreeSet::new(), &side_entries);
        held.side_entries = side_entries;
        held.is_named = name.is_some_and(|name| *name == names::of(key));
        Some(held)
    }

    /// After the first plan: retires what was found and is not wanted.
    pub(super) fn retire_adopted(&mut self, plan: &mut Plan) {
        let Some(mut adopted) = self.adopted.take() else { return };
        let found = std::mem::take(&mut plan.found);
        for (key, frontend) in &found.frontends {
            if adopted.unclaimed.contains(&frontend.service_port) {
                Self::end_all_datagrams(frontend.service_port, key, plan);
            }
        }
        for key in found.frontends.into_keys() {
            let wanted = if key.port == 0 {
                self.addresses.has_entry(key.address)
            } else {
                self.owners.contains_key(&key)
            };
            if !wanted {
                plan.retire.push(Step::RemoveFrontend { key });
            }
        }
        self.retire_details(std::mem::take(&mut adopted.side_entries), plan);
        let name = |(service_port, name)| SideEntry::Name { service_port, name };
        let names = std::mem::take(&mut adopted.names).into_iter();
        plan.retire.extend(names.map(name).map(Step::RemoveSideEntry));
        std::mem::take(&mut adopted.histories).retire(plan);
        for (&index, pool) in &adopted.pools {
            plan.retire.push(Step::SwapPool { index, pool: Pool::default() });
            self.regions.give_back(pool.region);
            adopted.describe(pool, 0, &BTreeSet::new(), &mut self.backends);
        }
        self.note_found_datagrams(&adopted.datagrams, &adopted.unclaimed, plan);
        for index in adopted.unclaimed {
            self.indexes.give_back(index);
        }
        self.backends.settle_adopted(&mut self.bits, plan);
        for bit in found.destination_bits {
            if !self.bits.needs_destination(bit) {
                plan.sweep.clear_bit(bit, &AddressFamily::ALL);
            }
        }
        for bit in adopted.source_bits {
            if !self.bits.needs_source(bit) {
                plan.retire.push(Step::ClearSourceBit(bit));
            }
        }
    }

    /// Retires the side_entries of service ports that were not taken over. Spares wanted side_entries: a new
    /// service port may have got the index of a stray side_entry.
    fn retire_details(&self, side_entries: HashMap<u32, BTreeSet<SideEntry>>, plan: &mut Plan) {
        if side_entries.is_empty() {
            return;
        }
        let wanted: BTreeSet<SideEntry> =
            self.held.values().flat_map(|held| held.side_entries.iter().cloned()).collect();
        let unwanted = side_entries
            .into_values()
            .flatten()
            .filter(|side_entry| !side_entry.is_replaced_in(&wanted));
        plan.retire.extend(unwanted.map(Step::RemoveSideEntry));
    }
}

/// Finds a backend among sorted ones.
fn find<'a>(sorted: &[&'a Backend], key: &BackendKey) -> Option<&'a Backend> {
    let end = (key.address, key.port);
    let index =
        sorted.binary_search_by_key(&end, |backend| (backend.address, backend.port)).ok()?;
    Some(sorted[index])
}

impl Adopted {
    /// The backends in a pool's slots. A backend that is wanted, with the weight in the kernel, is
    /// returned as the wanted one. For others only the fields in the kernel are known.
    fn members(
        &self,
        pool: &AdoptedPool,
        protocol: u8,
        wanted: &BTreeSet<Backend>,
    ) -> BTreeSet<Backend> {
        // Sorted, as the set is by these fields first.
        let wanted: Vec<&Backend> = wanted.iter().collect();
        let indexes = pool.members.iter();
        indexes
            .filter_map(|&index| Some((index, self.backends.get(index)?)))
            // Backends of another protocol and draining ones belong in no pool: one that has them
            // is rebuilt.
            .filter(|(_, (key, state))| key.protocol == protocol && !state.draining)
            .map(|(index, (key, state))| {
                let weight = pool.weight(index);
                match find(&wanted, key) {
                    Some(wanted) if wanted.weight == weight => *wanted,
                    _ => Backend {
                        address: key.address,
                        port: key.port,
                        local: state.local,
                        node: state.node,
                        weight,
                    },
                }
            })
            .collect()
    }

    /// How a pool's slots match these members, which are some of its backends or all of them.
    fn fit(&self, pool: &AdoptedPool, members: &BTreeSet<Backend>, held: &Backends) -> Fit {
        let size = pool.region.size;
        if members.len() != pool.members.len() {
            return Fit::Unknown;
        }
        // Flows name a member by the index that it keeps. Two entries for one backend are the earlier agent's bug.
        let is_kept = |&index: &u32| {
            let (key, _) = self.backends.get(index)?;
            Some(held.index_of(key)? == index)
        };
        let are_kept = pool.members.iter().all(|index| is_kept(index) == Some(true));
        if are_kept && pool.has_own_table(&self.backends) {
            Fit::of(size, members.len())
        } else {
            Fit::Unknown
        }
    }

    /// Describes the backends of a pool as its members are, instead of as in the kernel's entries.
    /// Backends that are no members leave.
    fn describe(
        &self,
        pool: &AdoptedPool,
        protocol: u8,
        members: &BTreeSet<Backend>,
        all: &mut Backends,
    ) {
        let members: Vec<&Backend> = members.iter().collect();
        for (key, found) in pool.members.iter().filter_map(|&index| self.backends.get(index)) {
            let member = find(&members, key).filter(|_| key.protocol == protocol);
            let described = member.map(BackendState::in_pool);
            if described == Some(*found) {
                continue;
            }
            all.leave(key, *found);
            if let Some(described) = described {
                all.join(key, described);
            }
        }
    }
}

/// The weights of each pool's backends, by index, where they are not the default.
fn weights_of_pools(side_entries: &[SideEntry]) -> HashMap<u32, HashMap<u32, Weight>> {
    let mut weights = HashMap::<u32, HashMap<u32, Weight>>::new();
    for side_entry in side_entries {
        if let SideEntry::Weight { member, weight } = *side_entry {
            weights.entry(member.pool).or_default().insert(member.backend, weight);
        }
    }
    weights
}
