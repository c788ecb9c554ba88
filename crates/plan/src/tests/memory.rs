//! The kernel's tables in memory. The invariants are checked after each step.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use anyhow::Result;
use lb_common::family::Family;
use lb_common::layout::{self, Backend, Bitmap, Pool, ServicePortName, Text};
use lb_common::maglev::Weight;

use super::*;

/// The kernel's tables in memory.
#[derive(Clone, Default)]
pub struct Memory {
    pub frontends: BTreeMap<FrontendKey, layout::Frontend>,
    pub pools: HashMap<u32, Pool>,
    pub slots: Vec<u32>,
    pub backends: BTreeMap<u32, (Option<(BackendKey, BackendState)>, u32)>,
    pub destinations: HashSet<Bitmap>,
    pub sources: HashSet<Bitmap>,
    pub side_entries: BTreeSet<SideEntry>,
    pub datagrams: BTreeSet<DatagramFlow>,
}

impl Memory {
    pub fn carry_out(&mut self, plan: &Plan) {
        self.carry_out_and(plan, |_, _| {});
    }

    /// Carries out a plan, and calls `look` with the tables after each step.
    pub(crate) fn carry_out_and(&mut self, plan: &Plan, look: impl Fn(&Self, &Step)) {
        let before: Vec<Pool> = self.pools.values().copied().collect();
        for step in plan.steps() {
            if let Step::WriteTable { offset, table } = step {
                self.check_table(*offset, table, &before);
            }
            self.apply(step);
            self.check(step);
            look(self, step);
        }
    }

    /// A table must be written to slots that no packet reads, not even one that read its pool
    /// before the plan; or over that of its own pool, slot by slot, with backends that may be
    /// selected.
    fn check_table(&self, offset: u32, table: &Table, before: &[Pool]) {
        let slots = table.slots();
        let end = offset + slots.len() as u32;
        let overlaps = |pool: &&Pool| pool.offset < end && offset < pool.offset + pool.size;
        let met: Vec<&Pool> = before.iter().filter(overlaps).collect();
        let now: Vec<&Pool> = self.pools.values().filter(overlaps).collect();
        if met.is_empty() && now.is_empty() {
            return;
        }
        let whole = Pool { offset, size: end - offset };
        assert_eq!((met, now), (vec![&whole], vec![&whole]), "written over another one's slots");
        for slot in slots {
            let (backend, state) = self.backends[&slot].0.expect("the slot is in use");
            assert!(!state.draining, "{backend} is draining, and chosen");
        }
    }

    pub fn apply(&mut self, step: &Step) {
        step.execute(self).expect("memory has room");
    }

    /// Removes an entry with the same key, whatever its value.
    fn remove(&mut self, side_entry: &SideEntry) {
        let first = match *side_entry {
            SideEntry::Target { target, .. } => SideEntry::Target { target, backend: 0 },
            SideEntry::Earlier { slot, .. } => {
                SideEntry::Earlier { slot, owners: layout::EarlierOwners::default() }
            }
            SideEntry::Weight { member, .. } => SideEntry::Weight { member, weight: Weight::MIN },
            SideEntry::Name { service_port, .. } => {
                let nameless = ServicePortName {
                    namespace: Text::new(""),
                    service: Text::new(""),
                    port: Text::new(""),
                    protocol: 0,
                    family: 0,
                    reserved: [0; 2],
                };
                SideEntry::Name { service_port, name: Arc::new(nameless) }
            }
            _ => side_entry.clone(),
        };
        let found = self.side_entries.range(first..).next().cloned();
        if let Some(found) = found.filter(|found| share_a_slot(found, side_entry)) {
            self.side_entries.remove(&found);
        }
    }

    /// A packet must not see a partly written Service after any step.
    pub fn check(&self, after: &Step) {
        let named: HashSet<u32> = self.named().map(|(service_port, _)| service_port).collect();
        for (key, frontend) in &self.frontends {
            assert!(
                frontend.service_port == 0 || named.contains(&frontend.service_port),
                "{key:?} has no service port with a name after {after:?}"
            );
            if !key.is_node_port() {
                let bit = bits::destination_bit(key.address);
                assert!(
                    self.destinations.contains(&bit),
                    "{key:?} is filtered out after {after:?}"
                );
            }
            for scope in Scope::BOTH {
                for backend in self.members(frontend, scope) {
                    let bit = bits::source_bit(backend);
                    assert!(
                        self.sources.contains(&bit),
                        "{backend} is filtered out after {after:?}"
                    );
                }
            }
        }
    }

    /// The backends in a frontend's table, slot by slot.
    pub fn members(&self, frontend: &layout::Frontend, scope: Scope) -> Vec<BackendKey> {
        let pool = self.pools.get(&scope.pool_index(frontend.service_port));
        let Pool { offset, size } = pool.copied().unwrap_or_default();
        (offset..offset + size)
            .map(|slot| {
                let index = self.slots[slot as usize];
                let found = self.backends[&index].0;
                let (backend, state) = found.expect("a slot names a backend in use");
                assert!(!state.draining, "{backend} is draining, and chosen");
                backend
            })
            .collect()
    }

    /// Everything that affects packets. Without the indexes, which may differ.
    pub fn visible(&self) -> Vec<(FrontendKey, u8, [Vec<BackendKey>; 2])> {
        let entry = |(key, frontend): (&FrontendKey, &layout::Frontend)| {
            (*key, frontend.kind, Scope::BOTH.map(|scope| self.members(frontend, scope)))
        };
        self.frontends.iter().map(entry).collect()
    }

    /// The targets of tunnels, by frontend.
    pub fn targets(&self) -> BTreeSet<(FrontendKey, u32, BackendKey)> {
        let of = |(key, frontend): (&FrontendKey, &layout::Frontend)| {
            let (key, owner) = (*key, frontend.service_port);
            self.side_entries.iter().filter_map(move |side_entry| match side_entry {
                &SideEntry::Target { target, backend } if target.service_port == owner => {
                    let (backend, state) = self.backends[&backend].0.expect("in use");
                    assert!(state.local && !state.draining, "{backend} is a target");
                    Some((key, target.tag, backend))
                }
                _ => None,
            })
        };
        self.frontends.iter().flat_map(of).collect()
    }

    pub fn named(&self) -> impl Iterator<Item = (u32, String)> + '_ {
        self.side_entries.iter().filter_map(|side_entry| match side_entry {
            SideEntry::Name { service_port, name } => Some((*service_port, format!("{name:?}"))),
            _ => None,
        })
    }

    /// The frontends and their names as commands show them, and names without a frontend.
    pub fn owners(&self) -> BTreeSet<(Option<FrontendKey>, String)> {
        let frontend_of = |service_port| {
            let mut all = self.frontends.iter();
            let found = all.find(|(_, frontend)| frontend.service_port == service_port);
            found.map(|(key, _)| *key)
        };
        self.named().map(|(service_port, name)| (frontend_of(service_port), name)).collect()
    }

    /// SideEntryMaps other than names.
    pub fn looked_up(&self) -> Vec<&SideEntry> {
        self.side_entries
            .iter()
            .filter(|side_entry| !matches!(side_entry, SideEntry::Name { .. }))
            .collect()
    }

    pub fn snapshot(&self) -> Snapshot {
        let most = self.backends.keys().next_back().map_or(0, |last| last + 1);
        let mut reader = PoolReader::new(most);
        Snapshot {
            side_entries: self.side_entries.iter().cloned().collect(),
            frontends: self.frontends.iter().map(|(key, value)| (*key, *value)).collect(),
            pools: self
                .pools
                .iter()
                .filter(|(_, pool)| pool.size > 0)
                .map(|(&index, &pool)| {
                    let slots = pool.offset as usize..(pool.offset + pool.size) as usize;
                    reader.read(index, pool, self.slots[slots].iter().copied())
                })
                .collect(),
            backends: self
                .backends
                .iter()
                .map(|(&index, &(backend, generation))| FoundBackend { index, generation, backend })
                .collect(),
            destination_bits: self.destinations.iter().copied().collect(),
            source_bits: self.sources.iter().copied().collect(),
            datagrams: self.datagrams.clone(),
        }
    }

    pub fn index_of(&self, address: &str) -> (u32, u32) {
        let (index, generation, _) = self.find(address).expect("it is a backend");
        (index, generation)
    }

    /// The index of a UDP backend.
    pub(crate) fn index_udp(&self, address: &str) -> Option<u32> {
        let address: IpAddr = address.parse().unwrap();
        let mut all = self.backends.iter();
        let found = all.find(|(_, (backend, _))| {
            backend.is_some_and(|(key, _)| key.address == address && key.protocol == 17)
        });
        found.map(|(index, _)| *index)
    }

    /// The backends in the cluster pool of the frontend at an address.
    pub(crate) fn members_at(&self, address: &str) -> BTreeSet<BackendKey> {
        let address: IpAddr = address.parse().unwrap();
        let found = self.frontends.iter().find(|(key, _)| key.address == address && key.port != 0);
        let (_, frontend) = found.expect("it is a frontend");
        self.members(frontend, Scope::Cluster).into_iter().collect()
    }

    pub fn find(&self, address: &str) -> Option<(u32, u32, BackendState)> {
        let address: IpAddr = address.parse().unwrap();
        self.backends.iter().find_map(|(&index, &(backend, generation))| {
            let (backend, state) = backend?;
            (backend.address == address).then_some((index, generation, state))
        })
    }

    /// Where the members of pools are.
    pub(crate) fn standings(&self) -> BTreeMap<BackendKey, BackendState> {
        let used = self.backends.values().filter_map(|(backend, _)| *backend);
        used.filter(|(_, state)| !state.draining).collect()
    }

    /// Backends that stay only for their connections.
    pub fn draining(&self) -> impl Iterator<Item = BackendKey> + '_ {
        let used = self.backends.values().filter_map(|(backend, _)| *backend);
        used.filter(|(_, state)| state.draining).map(|(backend, _)| backend)
    }
}

impl WriteTables for Memory {
    fn write_slots(&mut self, offset: u32, slots: &[u32]) -> Result<()> {
        let first = offset as usize;
        let end = first + slots.len();
        self.slots.resize(self.slots.len().max(end), u32::MAX);
        self.slots[first..end].copy_from_slice(slots);
        Ok(())
    }

    fn swap_pool(&mut self, index: u32, pool: Pool) -> Result<()> {
        self.pools.insert(index, pool);
        Ok(())
    }

    fn set_destination_bit(&mut self, bit: Bitmap) {
        self.destinations.insert(bit);
    }

    fn set_source_bit(&mut self, bit: Bitmap) {
        self.sources.insert(bit);
    }

    fn clear_source_bit(&mut self, bit: Bitmap) {
        self.sources.remove(&bit);
    }

    fn set_side_entry(&mut self, side_entry: &SideEntry) -> Result<()> {
        self.remove(side_entry);
        self.side_entries.insert(side_entry.clone());
        Ok(())
    }

    fn remove_side_entry(&mut self, side_entry: &SideEntry) -> Result<()> {
        self.remove(side_entry);
        Ok(())
    }

    fn sweep_flows(&mut self, sweep: &Sweep) {
        let Sweep { datagrams, bits, .. } = sweep;
        self.datagrams.retain(|flow| datagrams.may_stay(flow));
        self.destinations.retain(|bit| !bits.contains(bit));
    }

    fn reset_service_traffic(&mut self, _: u32) -> Result<()> {
        Ok(())
    }

    fn reset_backend_traffic(&mut self, _: u32) -> Result<()> {
        Ok(())
    }
}

impl<F: Family> WriteFamily<F> for Memory {
    fn set_backend(&mut self, index: u32, entry: Backend<F::Address>) -> Result<()> {
        let backend = BackendKey::new(entry.address.into(), entry.port, entry.protocol);
        let held = Some((backend, BackendState::of(&entry)));
        self.backends.insert(index, (held, entry.generation));
        Ok(())
    }

    fn retire_backend(&mut self, index: u32, unused: Backend<F::Address>) -> Result<()> {
        self.backends.insert(index, (None, unused.generation));
        Ok(())
    }

    fn set_frontend(&mut self, key: layout::FrontendKey<F>, value: layout::Frontend) -> Result<()> {
        self.frontends.insert(key.into(), value);
        Ok(())
    }

    fn remove_frontend(&mut self, key: layout::FrontendKey<F>) -> Result<()> {
        self.frontends.remove(&key.into());
        Ok(())
    }
}

/// Whether they have the same key.
fn share_a_slot(one: &SideEntry, other: &SideEntry) -> bool {
    match (one, other) {
        (SideEntry::Target { target: one, .. }, SideEntry::Target { target: other, .. }) => {
            one == other
        }
        (SideEntry::Earlier { slot: one, .. }, SideEntry::Earlier { slot: other, .. }) => {
            one == other
        }
        (SideEntry::Weight { member: one, .. }, SideEntry::Weight { member: other, .. }) => {
            one == other
        }
        (
            SideEntry::Name { service_port: one, .. },
            SideEntry::Name { service_port: other, .. },
        ) => one == other,
        _ => one == other,
    }
}
