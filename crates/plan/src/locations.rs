//! Where backends are, from what their pools say.
//!
//! Services may disagree about a backend, for example if only the slices of one contain its node.
//! It is on this node if any of them says so; and it has another node, to which tunnels lead, only
//! if all of them say so: without a tunnel it can always be reached. So the result does not depend
//! on the order of changes.
//!
//! A backend at an address of this node is on this node, whatever Services say: no route leads
//! there.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::key::{BackendKey, BackendState};

#[derive(Default)]
pub(crate) struct Locations {
    /// All addresses of this node.
    own: BTreeSet<IpAddr>,
    /// How many pools describe a backend in which way. Contains few backends: those that not all of
    /// their pools describe as the kernel's entry does.
    described: HashMap<BackendKey, BTreeMap<BackendState, u32>>,
    /// Backends whose descriptions have changed since the last call of `changed`.
    changed: BTreeSet<BackendKey>,
}

impl Locations {
    /// The state of a backend that one pool describes.
    pub fn of_one(&self, backend: &BackendKey, described: BackendState) -> BackendState {
        let local = described.local || self.own.contains(&backend.address);
        let node = described.node.filter(|_| !local);
        BackendState { local, draining: false, node }
    }

    /// Adds a pool's description. So far this number of pools had described the backend as the
    /// kernel's entry does, unless they are stored here.
    pub fn add(
        &mut self,
        backend: &BackendKey,
        described: BackendState,
        (held, pools): (BackendState, u32),
    ) {
        if let Some(all) = self.described.get_mut(backend) {
            *all.entry(described).or_default() += 1;
        } else if described == held {
            return;
        } else {
            let others = (pools > 0).then_some((held, pools));
            let all = others.into_iter().chain([(described, 1)]).collect();
            self.described.insert(*backend, all);
        }
        self.changed.insert(*backend);
    }

    /// Removes a pool's description.
    pub fn remove(&mut self, backend: &BackendKey, described: BackendState) {
        let Some(all) = self.described.get_mut(backend) else { return };
        if let Some(pools) = all.get_mut(&described) {
            *pools -= 1;
            if *pools == 0 {
                all.remove(&described);
            }
        }
        self.changed.insert(*backend);
    }

    /// Sets the addresses of this node. `held`: all backends, as in `add`.
    pub(crate) fn move_own<'a>(
        &mut self,
        wanted: BTreeSet<IpAddr>,
        held: impl Iterator<Item = (&'a BackendKey, (BackendState, u32))>,
    ) {
        let moved: BTreeSet<IpAddr> = wanted.symmetric_difference(&self.own).copied().collect();
        self.own = wanted;
        if moved.is_empty() {
            return;
        }
        for (backend, description) in held.filter(|(backend, _)| moved.contains(&backend.address)) {
            let (_, pools) = description;
            if pools > 0 {
                self.described.entry(*backend).or_insert_with(|| [description].into());
                self.changed.insert(*backend);
            }
        }
    }

    /// The standings of backends whose descriptions have changed; without backends that are in no
    /// pool any more.
    pub fn changed(&mut self) -> Vec<(BackendKey, BackendState)> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        changed.filter_map(|backend| Some((backend, self.settle(&backend)?))).collect()
    }

    fn settle(&mut self, backend: &BackendKey) -> Option<BackendState> {
        let all = self.described.remove(backend)?;
        let agreed = all.keys().copied().reduce(|one, other| BackendState {
            local: one.local || other.local,
            node: one.node.filter(|node| other.node == Some(*node)),
            draining: false,
        })?;
        let state = self.of_one(backend, agreed);
        if all.len() > 1 || !all.contains_key(&state) {
            self.described.insert(*backend, all);
        }
        Some(state)
    }
}
