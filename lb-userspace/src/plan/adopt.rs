//! Starting from what an earlier agent left in the kernel.
//!
//! The tables go on serving as they are until the first plan, which is made from everything the
//! sources know. What that plan needs keeps its index, so that flows go on naming the right
//! backend; the rest is retired by the same plan.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use lb_common::layout::{self, Bitmap, Pool, ServicePortName};

use super::allocate::Region;
use super::backends::{BackendKey, Standing};
use super::step::{Detail, FrontendKey, Plan, Scope, Step};
use super::{Held, Planner, Room, names};
use crate::model::{ServicePort, ServicePortKey};

/// The kernel's tables as they were found.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub frontends: Vec<(FrontendKey, layout::Frontend)>,
    /// Those that are not empty.
    pub pools: Vec<(u32, Pool)>,
    pub backends: Vec<FoundBackend>,
    pub destination_bits: Vec<Bitmap>,
    pub source_bits: Vec<Bitmap>,
    pub details: Vec<Detail>,
}

#[derive(Debug)]
pub struct FoundBackend {
    pub index: u32,
    pub generation: u32,
    /// `None`: the index is unused, and only its generation matters.
    pub backend: Option<(BackendKey, Standing)>,
}

/// What was found and nobody has claimed yet.
pub(super) struct Adopted {
    frontends: HashMap<FrontendKey, layout::Frontend>,
    pools: HashMap<u32, Region>,
    /// Service port indexes.
    unclaimed: BTreeSet<u32>,
    destination_bits: Vec<Bitmap>,
    source_bits: Vec<Bitmap>,
    /// By the service port's index.
    details: HashMap<u32, BTreeSet<Detail>>,
    /// By the service port's index.
    names: HashMap<u32, Arc<ServicePortName>>,
}

impl Planner {
    /// Starts from a kernel that holds what an earlier agent put there.
    pub fn adopting(snapshot: Snapshot, room: Room) -> Self {
        let mut planner = Self::with_room(room);
        for found in snapshot.backends {
            planner.backends.adopt_generation(found.index, found.generation);
            if let Some((backend, standing)) = found.backend {
                planner.backends.adopt(found.index, backend, standing, &mut planner.bits);
            }
        }
        let mut unclaimed = BTreeSet::new();
        let mut pools = HashMap::new();
        for (index, Pool { offset, size }) in snapshot.pools {
            let region = Region { offset, size };
            // Regions that overlap would be a fault of the earlier agent: the pool is then
            // rebuilt elsewhere, and this region is left alone.
            if planner.regions.take_exactly(region) {
                pools.insert(index, region);
            }
            unclaimed.insert(Scope::service_port_of(index));
        }
        for (_, frontend) in &snapshot.frontends {
            if frontend.service_port != 0 {
                unclaimed.insert(frontend.service_port);
            }
        }
        let mut details: HashMap<u32, BTreeSet<Detail>> = HashMap::new();
        let mut names = HashMap::new();
        for detail in snapshot.details {
            match detail {
                Detail::Peer(address) => drop(planner.peers.insert(address)),
                Detail::Name { service_port, name } => {
                    names.insert(service_port, name);
                    // Also one of which nothing else is left: it must not name another one.
                    unclaimed.insert(service_port);
                }
                _ => drop(details.entry(detail.service_port()).or_default().insert(detail)),
            }
        }
        for &index in &unclaimed {
            planner.indexes.take_exactly(index);
        }
        planner.has_adopted = true;
        planner.adopted = Some(Adopted {
            frontends: snapshot.frontends.into_iter().collect(),
            pools,
            unclaimed,
            destination_bits: snapshot.destination_bits,
            source_bits: snapshot.source_bits,
            details,
            names,
        });
        planner
    }

    /// Lets a service port go on under the index that one of its frontends has in the kernel.
    /// Its pools are built anew, and the old regions given back when they have been swapped.
    pub(super) fn take_over(&mut self, key: &ServicePortKey, wanted: &ServicePort) -> Option<Held> {
        let adopted = self.adopted.as_mut()?;
        let protocol = key.protocol.number();
        let index = wanted.frontends.iter().find_map(|frontend| {
            let key = FrontendKey::new(frontend.address, frontend.port, protocol);
            let found = adopted.frontends.get(&key)?;
            adopted.unclaimed.contains(&found.service_port).then_some(found.service_port)
        })?;
        adopted.unclaimed.remove(&index);
        let regions = Scope::BOTH
            .map(|scope| adopted.pools.remove(&scope.pool_index(index)).unwrap_or(Region::EMPTY));
        let details = adopted.details.remove(&index).unwrap_or_default();
        self.detail_counts.replace(&BTreeSet::new(), &details);
        let name = adopted.names.remove(&index);
        let is_named = name.is_some_and(|name| *name == names::of(key));
        Some(Held { details, is_named, ..Held::empty(index, regions) })
    }

    /// After the first plan: retires what was found and is not wanted.
    pub(super) fn retire_adopted(&mut self, plan: &mut Plan) {
        let Some(adopted) = self.adopted.take() else { return };
        for key in adopted.frontends.into_keys() {
            let wanted = if key.port == 0 {
                self.addresses.has_entry(key.address)
            } else {
                self.owners.contains_key(&key)
            };
            if !wanted {
                plan.retire.push(Step::RemoveFrontend { key });
            }
        }
        self.retire_details(adopted.details, plan);
        let name = |(service_port, name)| Detail::Name { service_port, name };
        plan.retire.extend(adopted.names.into_iter().map(name).map(Step::RemoveDetail));
        for (index, region) in adopted.pools {
            plan.retire.push(Step::SwapPool { index, pool: Pool::default() });
            self.regions.give_back(region);
        }
        self.note_all_datagrams(&adopted.unclaimed, plan);
        for index in adopted.unclaimed {
            self.indexes.give_back(index);
        }
        self.empty_taken_over(plan);
        self.backends.settle_adopted(&mut self.bits, plan);
        for bit in adopted.destination_bits {
            if !self.bits.needs_destination(bit) {
                plan.cleared.insert(bit);
            }
        }
        for bit in adopted.source_bits {
            if !self.bits.needs_source(bit) {
                plan.retire.push(Step::ClearSourceBit(bit));
            }
        }
    }

    /// Retires the details of service ports that were not taken over. A new one may have got the
    /// index of one of which nothing else was left.
    fn retire_details(&self, details: HashMap<u32, BTreeSet<Detail>>, plan: &mut Plan) {
        if details.is_empty() {
            return;
        }
        let wanted: BTreeSet<Detail> =
            self.held.values().flat_map(|held| held.details.iter().cloned()).collect();
        let unwanted =
            details.into_values().flatten().filter(|detail| !detail.is_replaced_in(&wanted));
        plan.retire.extend(unwanted.map(Step::RemoveDetail));
    }

    /// Empties the pools that were taken over with members and are to have none.
    fn empty_taken_over(&mut self, plan: &mut Plan) {
        for held in self.held.values_mut() {
            for scope in Scope::BOTH {
                let region = &mut held.regions[scope as usize];
                if scope.members(&held.service_port).is_empty() && region.size > 0 {
                    let index = scope.pool_index(held.index);
                    plan.retire.push(Step::SwapPool { index, pool: Pool::default() });
                    self.regions.give_back(std::mem::replace(region, Region::EMPTY));
                }
            }
        }
    }
}
