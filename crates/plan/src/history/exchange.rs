//! The history of slots as nodes give it to each other: a node that joins has seen no changes from before.
//!
//! Untrusted input: the contents come from another node, which may be of another version, or taken over. Only rows of
//! slots that this node has are taken, only with backends of the same Service as owners, as many as a row and the map have
//! room for beside those that this node has seen itself. So wrong ones cost questions to nodes that do not know the
//! connection.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;

use lb_common::layout::EarlierOwners;
use lb_common::slot_history::{SlotOwner, entries};
use lb_rules::model::ServicePortKey;
use serde::{Deserialize, Serialize};

use super::{SlotHistory, asked};
use crate::key::{BackendKey, Scope};
use crate::pool_table::Fit;
use crate::side_entry::SideEntry;
use crate::state::{Planner, ProgrammedPort};
use crate::step::{Plan, Step};

/// What a node knows of the slots of a service port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KnownHistory {
    /// As logs name it.
    pub service_port: String,
    /// The size of its table.
    pub slots: u32,
    /// All backends that the rows refer to.
    pub owners: Vec<SocketAddr>,
    /// One after the other, so that many short ones take little more memory than their text: a slot, the number of its
    /// earlier owners, and for each, the last one first, its position in `owners` and how many seconds ago it lost the
    /// slot; with the highest bit in addition if it stands for several on its node.
    pub rows: Vec<u32>,
}

/// A slot, and its earlier owners.
type Row<'a> = (u32, &'a [[u32; 2]]);

impl KnownHistory {
    fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let mut rest = &self.rows[..];
        std::iter::from_fn(move || {
            let (&[slot, count], after) = rest.split_first_chunk()?;
            let (owners, after) = after.split_at_checked(2 * count as usize)?;
            rest = after;
            Some((slot, owners.as_chunks().0))
        })
    }
}

impl Planner {
    /// What this node knows, for a node that joins.
    pub fn known_history(&self, now: u32) -> Vec<KnownHistory> {
        let with_history = self.held.iter().filter(|(_, held)| !held.history.is_empty());
        let addresses: HashMap<u32, SocketAddr> = if self.history.rows > 0 {
            self.backends.addresses().collect()
        } else {
            HashMap::new()
        };
        with_history
            .map(|(key, held)| {
                let (mut owners, mut positions) = (Vec::new(), HashMap::new());
                let mut position_of = |backend: u32| {
                    let address = *addresses.get(&backend)?;
                    Some(*positions.entry(backend).or_insert_with(|| {
                        owners.push(address);
                        owners.len() as u32 - 1
                    }))
                };
                let mut rows = Vec::new();
                for (slot, earlier) in held.history.rows() {
                    let owners = entries(earlier).filter_map(|owner| {
                        let age = now.saturating_sub(owner.until);
                        let word = EarlierOwners::with_mark(age, owner.several);
                        Some([position_of(owner.backend)?, word])
                    });
                    let owners: Vec<[u32; 2]> = owners.collect();
                    rows.extend([slot, owners.len() as u32]);
                    rows.extend(owners.into_iter().flatten());
                }
                let slots = held.tables[Scope::Cluster as usize].region.size;
                KnownHistory { service_port: key.to_string(), slots, owners, rows }
            })
            .collect()
    }

    /// Adds what other nodes know.
    pub(crate) fn learn_history(&mut self, known: Vec<KnownHistory>, plan: &mut Plan) {
        if known.is_empty() || self.history.age == 0 {
            return;
        }
        let tunnelled = self.held.iter().filter(|(_, held)| held.service_port.is_tunnelled());
        let mut keys: BTreeMap<String, ServicePortKey> =
            tunnelled.map(|(key, _)| (key.to_string(), key.clone())).collect();
        for known in known {
            // Each once.
            if let Some(key) = keys.remove(&known.service_port) {
                self.learn_of(&key, &known, plan);
            }
        }
    }

    fn learn_of(&mut self, key: &ServicePortKey, known: &KnownHistory, plan: &mut Plan) {
        // The entry is put back below.
        let Some(mut held) = self.held.remove(key) else { return };
        let table = &held.tables[Scope::Cluster as usize];
        if table.region.size == known.slots && table.fit != Fit::Unknown {
            let protocol = key.protocol.number();
            self.keep_owners(&mut held, known, protocol, plan);
            let history = self.with_rows(&held, known, protocol);
            self.replace_history(held.index, &held.history, &history, plan);
            // This plan may have removed a row that is added again.
            let pool = Scope::Cluster.pool_index(held.index);
            plan.retire.retain(|step| match step {
                Step::RemoveSideEntry(SideEntry::Earlier { slot, .. }) => {
                    slot.pool != pool || history.get(slot.slot).is_none()
                }
                _ => true,
            });
            held.history = history;
        }
        self.held.insert(key.clone(), held);
    }

    /// Adds owners that began to drain before this node joined.
    fn keep_owners(
        &mut self,
        held: &mut ProgrammedPort,
        known: &KnownHistory,
        protocol: u8,
        plan: &mut Plan,
    ) {
        let owners: HashSet<&SocketAddr> = known.owners.iter().collect();
        for member in &held.service_port.draining {
            let backend = BackendKey::of(member, protocol);
            let is_new = !held.draining.contains(&backend);
            if is_new
                && owners.contains(&SocketAddr::new(member.address, member.port))
                && self.backends.keep_for_others(member, protocol, &mut self.bits, plan)
            {
                held.draining.push(backend);
            }
        }
    }

    /// A service port's history with that of another node.
    fn with_rows(&self, held: &ProgrammedPort, known: &KnownHistory, protocol: u8) -> SlotHistory {
        let members = held.service_port.cluster.iter().map(|it| BackendKey::of(it, protocol));
        let there: Vec<_> = members.chain(held.draining.iter().copied()).collect();
        let asked = asked(&self.backends, &there, &[], &SlotHistory::default());
        let index = |owner: &SocketAddr| {
            let owner = BackendKey::new(owner.ip(), owner.port(), protocol);
            self.backends.index_of(&owner).filter(|index| asked.contains_key(index))
        };
        let owners: Vec<Option<u32>> = known.owners.iter().map(index).collect();
        let slots = self.slots_of(&held.service_port, known.slots, protocol);
        let mut history = held.history.clone();
        let room = self.room.history.saturating_sub(self.history.rows - held.history.len());
        // A slot has one row.
        for (slot, row) in known.rows().take(slots.len()) {
            let Some(&owner) = slots.get(slot as usize) else { continue };
            if history.len() >= room && history.get(slot).is_none() {
                continue;
            }
            let earlier = row.iter().filter_map(|&[position, word]| {
                let backend = owners.get(position as usize).copied().flatten()?;
                let (age, several) = EarlierOwners::without_mark(word);
                // A change before this machine started is one at its start.
                let until = self.now.saturating_sub(age);
                (age < self.history.age).then_some(SlotOwner { backend, until, several })
            });
            let asked = |owner: u32| asked.get(&owner).copied();
            history.learn(slot, owner, earlier, asked);
        }
        history
    }
}
