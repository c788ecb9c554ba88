//! How a pool's Maglev table spreads connections, and how many would move if a backend were
//! removed: computed by the code that builds the tables.

use lb_common::maglev::{self, Weight};
use lb_plan::{BackendKey, Scope, Table, WeightedBackend};
use lb_rules::notation::protocol_name;
use serde::Serialize;

use super::Selector;
use super::reading::{IndexOwner, Reading};

/// The table of one pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spread {
    pub namespace: String,
    pub service: String,
    pub port: String,
    pub protocol: &'static str,
    pub family: &'static str,
    /// `cluster` or `local`.
    pub scope: &'static str,
    pub slots: usize,
    pub evenness: Evenness,
    /// Whether the table in the kernel equals the one computed from these backends, as it does on
    /// all nodes.
    pub as_computed: bool,
    pub backends: Vec<Share>,
}

/// The numbers of slots, and how they deviate from the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Evenness {
    pub min_slots: u32,
    pub max_slots: u32,
    pub mean_slots: f64,
    /// The largest deviation from what the weight gives, in percent of that.
    pub deviation_percent: f64,
}

/// A backend's share of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    pub address: String,
    pub weight: Weight,
    pub slots: u32,
    /// Percentage of new connections.
    pub percent: f64,
    pub deviation_percent: f64,
    pub if_it_left: Departure,
}

/// How many new connections of the same clients would get another backend if a backend were
/// removed. Established ones keep their backends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Departure {
    /// Percentage of all connections, its own and others'.
    pub moved_percent: f64,
    /// Percentage of the other backends' connections, which need not have moved.
    pub of_others_percent: f64,
    /// Size of the table. It depends on the number of backends; another size moves nearly
    /// everything.
    pub slots: u32,
}

/// The tables of the selected Services; pools without backends have none.
pub fn list_spreads(reading: &Reading, meant: &Selector) -> Vec<Spread> {
    let mut owners: Vec<(&IndexOwner, u32)> = reading
        .service_ports
        .iter()
        .filter(|(_, owner)| meant.matches(&owner.service))
        .map(|(&index, owner)| (owner, index))
        .filter(|&(owner, index)| is_port(reading, owner, index, meant))
        .collect();
    owners.sort();
    let scopes = [(Scope::Cluster, "cluster"), (Scope::Local, "local")];
    let pools = owners
        .into_iter()
        .flat_map(|(owner, index)| scopes.map(|(scope, name)| (owner, index, scope, name)));
    pools
        .filter_map(|(owner, index, scope, name)| spread(reading, owner, index, scope, name))
        .collect()
}

fn is_port(reading: &Reading, owner: &IndexOwner, index: u32, meant: &Selector) -> bool {
    let Some(port) = &meant.port else { return true };
    let destination = || reading.frontends.iter().filter(|(_, f)| f.service_port == index);
    owner.port == *port || destination().any(|(key, _)| key.port.to_string() == *port)
}

/// `None`: the pool has no backends.
fn spread(
    reading: &Reading,
    owner: &IndexOwner,
    index: u32,
    scope: Scope,
    scope_name: &'static str,
) -> Option<Spread> {
    let slots = reading.slots(index, scope);
    if slots.is_empty() {
        return None;
    }
    let mut members: Vec<(BackendKey, WeightedBackend, u32)> = reading
        .members(index, scope)
        .into_iter()
        .filter_map(|(backend, count)| {
            let key = reading.backends.get(&backend)?.key;
            let weight = reading.weight(index, scope, backend);
            let weighted = WeightedBackend { identity: key.identity(), weight, index: backend };
            Some((key, weighted, count))
        })
        .collect();
    members.sort();
    let weighted: Vec<WeightedBackend> = members.iter().map(|(_, weighted, _)| *weighted).collect();
    let computed = Table::maglev(slots.len() as u32, weighted.clone());
    let sum: f64 = weighted.iter().map(|one| f64::from(one.weight.get())).sum();
    let shares = members.iter().map(|(key, one, count)| {
        let exact = slots.len() as f64 * f64::from(one.weight.get()) / sum;
        Share {
            address: key.to_string(),
            weight: one.weight,
            slots: *count,
            percent: f64::from(*count) * 100.0 / slots.len() as f64,
            deviation_percent: (f64::from(*count) - exact) * 100.0 / exact,
            if_it_left: departure(&weighted, slots, one.index),
        }
    });
    let shares: Vec<Share> = shares.collect();
    let counts = || shares.iter().map(|share| share.slots);
    Some(Spread {
        namespace: owner.service.namespace.clone(),
        service: owner.service.name.clone(),
        port: owner.port.clone(),
        protocol: protocol_name(owner.protocol),
        family: owner.family_name(),
        scope: scope_name,
        slots: slots.len(),
        evenness: Evenness {
            min_slots: counts().min().unwrap_or(0),
            max_slots: counts().max().unwrap_or(0),
            mean_slots: slots.len() as f64 / shares.len().max(1) as f64,
            deviation_percent: shares
                .iter()
                .map(|share| share.deviation_percent.abs())
                .fold(0.0, f64::max),
        },
        as_computed: computed.slots() == slots,
        backends: shares,
    })
}

fn departure(members: &[WeightedBackend], before: &[u32], leaver: u32) -> Departure {
    let rest: Vec<WeightedBackend> =
        members.iter().filter(|member| member.index != leaver).copied().collect();
    let size = maglev::fitted_size(rest.len());
    let after = Table::maglev(size, rest).slots();
    let (mut moved, mut own) = (0, 0);
    compare(before, &after, |hashes, was, is| {
        if was == leaver {
            own += hashes;
        }
        if is != Some(was) {
            moved += hashes;
        }
    });
    let percent = |part: u64, whole: u64| part as f64 * 100.0 / whole.max(1) as f64;
    Departure {
        moved_percent: percent(moved, HASHES),
        of_others_percent: percent(moved - own, HASHES - own),
        slots: size,
    }
}

/// Connections are hashed to 32 bits, and `hash::scale` maps hashes to slots.
const HASHES: u64 = 1 << 32;

/// Calls `with` for each range of hashes that has the same slot in each of two tables, with the
/// number of hashes and the contents of the slots; the second table may be empty.
fn compare(one: &[u32], other: &[u32], mut with: impl FnMut(u64, u32, Option<u32>)) {
    /// The hash after a slot's last one.
    fn end(slot: usize, slots: usize) -> u64 {
        ((slot as u64 + 1) * HASHES).div_ceil(slots.max(1) as u64)
    }
    let (mut at, mut slot, mut other_slot) = (0, 0, 0);
    while at < HASHES && slot < one.len() {
        let (first, second) = (end(slot, one.len()), end(other_slot, other.len()));
        let next = first.min(second);
        with(next - at, one[slot], other.get(other_slot).copied());
        slot += usize::from(first == next);
        other_slot += usize::from(second == next);
        at = next;
    }
}

#[cfg(test)]
mod tests {
    use lb_common::hash::scale;

    use super::*;

    #[test]
    fn runs_of_hashes_are_those_of_the_data_plane() {
        let (one, other) = ([10, 11, 12, 13, 14, 15, 16], [20, 21, 22]);
        let mut at = 0u64;
        compare(&one, &other, |hashes, was, is| {
            for hash in [at, at + hashes - 1] {
                assert_eq!(one[scale(hash as u32, 7) as usize], was, "{hash}");
                assert_eq!(Some(other[scale(hash as u32, 3) as usize]), is, "{hash}");
            }
            at += hashes;
        });
        assert_eq!(at, HASHES);
    }

    #[test]
    fn with_nothing_left_everything_moves() {
        let mut hashes_seen = 0;
        compare(&[1], &[], |hashes, was, is| {
            assert_eq!((was, is), (1, None));
            hashes_seen += hashes;
        });
        assert_eq!(hashes_seen, HASHES);
    }
}
