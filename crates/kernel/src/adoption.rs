//! Which maps of an earlier agent are adopted, and which are replaced by new ones.
//!
//! Invariant: attached programs keep running over their own maps until they are replaced. Programs
//! hold references to maps, but the kernel empties an array of programs when its last pin is
//! removed. So the arrays of stages are set aside, not unpinned, and stay until the new programs
//! are attached.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};
use aya::maps::{Array, Map, MapData, MapType};
use lb_common::layout::{Identity, SCHEMA, map};

use super::pins::{Pins, remove_pin};
use super::plain::Plain;
use super::sizes::Sizes;

/// Flows name backends by index and generation, and store the network's epoch; the planner starts
/// from the contents of these maps. If one of them can't be kept, nothing that refers to them can.
const CORE: [&str; 8] = [
    map::IDENTITY,
    map::FRONTENDS4,
    map::FRONTENDS6,
    map::POOLS,
    map::POOL_SLOTS,
    map::BACKENDS4,
    map::BACKENDS6,
    map::NETWORK,
];

/// Groups of maps of which all are kept, or none.
const TOGETHER: [&[&str]; 2] =
    [&[map::FLOWS4, map::REPLIES4, map::CROWDED4], &[map::FLOWS6, map::REPLIES6, map::CROWDED6]];

const STAGES: [&str; 2] = [map::XDP_STAGES, map::TC_STAGES];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PinnedMap {
    Missing,
    /// A map of another kind or size.
    Other,
    Fits,
}

#[derive(Debug, PartialEq, Eq)]
enum AdoptionDecision {
    /// There are no maps to adopt.
    AllNew,
    /// The existing maps can't be adopted, for this reason.
    ReplaceAll(String),
    /// Adopt all maps except these.
    Adopt(BTreeSet<&'static str>),
}

/// `schema`: that of the agent which made the maps, if any did. 0: that agent did not finish.
fn decide(schema: Option<u32>, found: &BTreeMap<&'static str, PinnedMap>) -> AdoptionDecision {
    match schema {
        None | Some(0) if found.values().all(|found| *found == PinnedMap::Missing) => {
            return AdoptionDecision::AllNew;
        }
        None | Some(0) => {
            return AdoptionDecision::ReplaceAll("maps without a schema number".to_owned());
        }
        Some(SCHEMA) => {}
        Some(newer) if newer > SCHEMA => {
            return AdoptionDecision::ReplaceAll(format!(
                "maps of a newer version (schema {newer}; this version uses {SCHEMA})"
            ));
        }
        Some(older) => {
            return AdoptionDecision::ReplaceAll(format!(
                "maps of an older version (schema {older}; this version uses {SCHEMA})"
            ));
        }
    }
    let fits = |name: &str| found.get(name) == Some(&PinnedMap::Fits);
    if let Some(unfit) = CORE.into_iter().find(|name| !fits(name)) {
        let why = match found.get(unfit) {
            Some(PinnedMap::Other) => "has another size",
            _ => "is missing",
        };
        return AdoptionDecision::ReplaceAll(format!("map {unfit} {why}"));
    }
    let mut anew: BTreeSet<&str> = map::ALL.into_iter().filter(|name| !fits(name)).collect();
    for group in TOGETHER {
        if group.iter().any(|name| anew.contains(name)) {
            anew.extend(group);
        }
    }
    if !anew.is_empty() {
        // Programs over the old maps must not be led to stages over the new ones.
        anew.extend(STAGES);
    }
    AdoptionDecision::Adopt(anew)
}

/// Unpins or sets aside the maps that new ones will replace, and logs what is lost. Returns the
/// identity of the adopted maps, if any are.
pub fn prepare(pins: &Pins, object: &[u8], sizes: Sizes) -> Result<Option<Identity>> {
    let wanted = wanted_maps(object, sizes)?;
    let found: BTreeMap<&'static str, PinnedMap> = map::ALL
        .into_iter()
        .map(|name| (name, wanted.get(name).map_or(PinnedMap::Missing, |map| map.find(pins, name))))
        .collect();
    let identity = identity(pins.path());
    match decide(identity.map(|identity| identity.schema), &found) {
        AdoptionDecision::AllNew => Ok(None),
        AdoptionDecision::ReplaceAll(reason) => {
            tracing::warn!(
                reason,
                "replacing all maps; forwarding continues, but existing connections break"
            );
            map::ALL.into_iter().try_for_each(|name| make_way(pins, name))?;
            remove_strange(pins)?;
            Ok(None)
        }
        AdoptionDecision::Adopt(anew) => {
            tracing::info!(
                adopted_maps = map::ALL.len() - anew.len(),
                maps = map::ALL.len(),
                "adopting maps of the previous agent"
            );
            report(&anew, &found);
            anew.into_iter().try_for_each(|name| make_way(pins, name))?;
            remove_strange(pins)?;
            Ok(identity)
        }
    }
}

/// Logs which maps can't be adopted, and what that costs.
fn report(anew: &BTreeSet<&'static str>, found: &BTreeMap<&'static str, PinnedMap>) {
    let (missing, unfit): (Vec<&str>, Vec<&str>) = anew
        .iter()
        .filter(|name| !STAGES.contains(name))
        .partition(|name| found[*name] == PinnedMap::Missing);
    if !missing.is_empty() {
        tracing::info!(maps = missing.join(", "), "missing maps created");
    }
    if unfit.is_empty() {
        return;
    }
    let lost = |maps: [&str; 2], what| maps.iter().any(|map| unfit.contains(map)).then_some(what);
    let lost: Vec<&str> = [
        lost([map::FLOWS4, map::FLOWS6], "connections through Services"),
        lost([map::AFFINITIES4, map::AFFINITIES6], "session affinity"),
        lost([map::SERVICE_TRAFFIC, map::BACKEND_TRAFFIC], "traffic counters"),
    ]
    .into_iter()
    .flatten()
    .collect();
    tracing::warn!(
        maps = unfit.join(", "),
        lost = lost.join(", "),
        "replacing maps of another size, and maps that depend on them"
    );
}

/// Maps that only a newer version has would be stale when that version runs again.
fn remove_strange(pins: &Pins) -> Result<()> {
    for (name, path) in pins.others()? {
        remove_pin(&path)?;
        tracing::info!(map = %name, "removed unknown map");
    }
    Ok(())
}

fn make_way(pins: &Pins, name: &str) -> Result<()> {
    if STAGES.contains(&name) { pins.set_aside(name) } else { remove_pin(&pins.map(name)) }
}

/// Fails unless a command can read the maps of a pin directory: they exist, and their schema is this
/// program's.
pub fn check_schema(pin_path: &Path) -> Result<()> {
    let schema = identity(pin_path).map(|identity| identity.schema);
    match schema {
        Some(SCHEMA) => Ok(()),
        None => bail!(
            "no data plane is pinned at {}.\nStart `millrace agent`, or set --pin-path",
            pin_path.display()
        ),
        Some(0) => bail!(
            "the agent has not finished creating the maps at {}: try again in a moment",
            pin_path.display()
        ),
        Some(schema) => bail!(
            "the maps at {} have schema {schema}, but this program reads schema {SCHEMA}.\n\
             Use the `millrace` program of the agent that created them",
            pin_path.display()
        ),
    }
}

fn identity(pin_path: &Path) -> Option<Identity> {
    let pinned = open(&pin_path.join(map::IDENTITY))?;
    let array = Array::<_, Plain<Identity>>::try_from(Map::Array(pinned)).ok()?;
    array.get(&0, 0).ok().map(|Plain(identity)| identity)
}

fn open(path: &Path) -> Option<MapData> {
    MapData::from_pin(path).ok()
}

struct WantedMap {
    kind: Option<MapType>,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
}

impl WantedMap {
    /// aya would reuse a pinned map of any size.
    fn find(&self, pins: &Pins, name: &str) -> PinnedMap {
        let path = pins.map(name);
        if !path.exists() {
            return PinnedMap::Missing;
        }
        let fits = open(&path).and_then(|found| found.info().ok()).is_some_and(|info| {
            info.map_type().ok() == self.kind
                && (info.key_size(), info.value_size(), info.max_entries(), info.map_flags())
                    == (self.key, self.value, self.entries, self.flags)
        });
        if fits { PinnedMap::Fits } else { PinnedMap::Other }
    }
}

/// Estimates the memory of all maps, in bytes, before they are created.
pub fn compute_object_memory(object: &[u8], sizes: Sizes, processors: u64) -> Result<u64> {
    /// Overhead of a hash table's entry, beside its key and value.
    const ELEMENT: u64 = 48;
    let wanted = wanted_maps(object, sizes)?;
    let bytes = wanted.values().map(|map| {
        let (key, value) = (u64::from(map.key), u64::from(map.value).next_multiple_of(8));
        let entry = match map.kind {
            Some(MapType::PerCpuArray) => value * processors,
            Some(MapType::PerCpuHash | MapType::LruPerCpuHash) => {
                ELEMENT + key + value * processors
            }
            Some(MapType::Array) => value,
            // The size of a ring buffer is in bytes.
            Some(MapType::RingBuf) => 1,
            _ => ELEMENT + key + value,
        };
        entry * u64::from(map.entries)
    });
    Ok(bytes.sum())
}

fn wanted_maps(object: &[u8], sizes: Sizes) -> Result<BTreeMap<String, WantedMap>> {
    let object = aya_obj::Object::parse(object)?;
    let wanted = object.maps.into_iter().map(|(name, map)| {
        let kind = aya_obj::generated::bpf_map_type::try_from(map.map_type())
            .ok()
            .and_then(|kind| MapType::try_from(kind).ok());
        let entries = sizes.entries(&name).unwrap_or(map.max_entries());
        let (key, value, flags) = (map.key_size(), map.value_size(), map.map_flags());
        (name, WantedMap { kind, key, value, entries, flags })
    });
    Ok(wanted.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(unfit: &[(&'static str, PinnedMap)]) -> BTreeMap<&'static str, PinnedMap> {
        let all = map::ALL.into_iter().map(|name| (name, PinnedMap::Fits));
        all.chain(unfit.iter().copied()).collect()
    }

    fn anew(unfit: &[(&'static str, PinnedMap)]) -> Vec<&'static str> {
        match decide(Some(SCHEMA), &found(unfit)) {
            AdoptionDecision::Adopt(anew) => anew.into_iter().collect(),
            other => panic!("{unfit:?}: {other:?}"),
        }
    }

    #[test]
    fn what_fits_is_adopted_as_a_whole() {
        assert_eq!(anew(&[]), [""; 0]);
    }

    #[test]
    fn maps_that_nothing_refers_to_are_made_anew_one_by_one() {
        for name in [map::FRAGMENTS4, map::AFFINITIES6, map::DEVICES, map::SERVICE_TRAFFIC] {
            for state in [PinnedMap::Missing, PinnedMap::Other] {
                let mut wanted = vec![name, map::TC_STAGES, map::XDP_STAGES];
                wanted.sort_unstable();
                assert_eq!(anew(&[(name, state)]), wanted);
            }
        }
    }

    #[test]
    fn flows_and_their_reply_index_are_adopted_together() {
        let wanted = [map::CROWDED6, map::FLOWS6, map::REPLIES6, map::TC_STAGES, map::XDP_STAGES];
        assert_eq!(anew(&[(map::REPLIES6, PinnedMap::Missing)]), wanted);
        assert_eq!(anew(&[(map::FLOWS6, PinnedMap::Other)]), wanted);
    }

    #[test]
    fn nothing_is_kept_without_the_maps_that_flows_refer_to() {
        for name in CORE {
            for (state, why) in
                [(PinnedMap::Missing, "is missing"), (PinnedMap::Other, "another size")]
            {
                match decide(Some(SCHEMA), &found(&[(name, state)])) {
                    AdoptionDecision::ReplaceAll(message) => {
                        assert!(message.contains(name) && message.contains(why), "{message}");
                    }
                    other => panic!("{name} {state:?}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn maps_of_other_versions_are_replaced_and_the_version_is_named() {
        for (schema, word) in [(SCHEMA + 1, "newer"), (SCHEMA - 1, "older")] {
            match decide(Some(schema), &found(&[])) {
                AdoptionDecision::ReplaceAll(message) => {
                    assert!(
                        message.contains(word) && message.contains(&schema.to_string()),
                        "{message}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
        let nothing = map::ALL.into_iter().map(|name| (name, PinnedMap::Missing)).collect();
        assert_eq!(decide(None, &nothing), AdoptionDecision::AllNew);
        assert!(matches!(decide(Some(0), &found(&[])), AdoptionDecision::ReplaceAll(_)));
        assert!(matches!(decide(None, &found(&[])), AdoptionDecision::ReplaceAll(_)));
    }
}
