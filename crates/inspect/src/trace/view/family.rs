//! The tables of one address family.

use std::cell::UnsafeCell;

use anyhow::Result;
use aya::Pod;
use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, MapData};
use lb_common::atomic::{AtomicLong, AtomicWord};
use lb_common::conntrack::FlowTables;
use lb_common::datapath::{Draft, FamilyTables, Function, execute_function};
use lb_common::family::{Address4, Address6, Family, V4, V6};
use lb_common::layout::{
    Affinity, AffinityKey, BUCKET_ENTRIES, Backend, Bitmap, FlowBucket, Fragment, FragmentKey,
    Frontend, FrontendKey, Hints, REPLY_BUCKET_ENTRIES, ReplyBucket, ReplyKey, SERVICE_PORT_BITS,
    SourceRange, Untracked, map,
};
use lb_kernel::Plain;

use super::{Maps, View, unfit};
use crate::trace::overlay::{Copies, Elements, Entries, Overlaid, entry_if_found};

pub(crate) struct FamilyView<F: InMaps> {
    frontends: Entries<FrontendKey<F>, Plain<Frontend>>,
    backends: Elements<Plain<Backend<F::Address>>>,
    flows: Copies<FlowBucket<F>, F::FlowWords>,
    replies: Copies<ReplyBucket, [u64; REPLY_BUCKET_ENTRIES]>,
    crowded: Copies<AtomicLong, [u64; 1]>,
    hints: Hints,
    untracked: Overlaid<ReplyKey<F>, Untracked<F>>,
    affinities: Overlaid<AffinityKey<F>, Affinity>,
    fragments: Overlaid<FragmentKey<F>, Fragment>,
    source_ranges: LpmTrie<MapData, Plain<SourceRange<F>>, u32>,
    draft: UnsafeCell<Draft<F>>,
}

/// The maps of a family.
pub(crate) trait InMaps: Family {
    /// Words of a flow bucket's size.
    type FlowWords: Pod + AsRef<[u64]>;
    const NAMES: MapNames;
}

pub struct MapNames {
    frontends: &'static str,
    backends: &'static str,
    flows: &'static str,
    replies: &'static str,
    crowded: &'static str,
    untracked: &'static str,
    /// Its index in the map of both families.
    hints: u32,
    affinities: &'static str,
    fragments: &'static str,
    source_ranges: &'static str,
}

impl InMaps for V4 {
    type FlowWords = [u64; size_of::<FlowBucket<V4>>() / 8];
    const NAMES: MapNames = MapNames {
        frontends: map::FRONTENDS4,
        backends: map::BACKENDS4,
        flows: map::FLOWS4,
        replies: map::REPLIES4,
        crowded: map::CROWDED4,
        untracked: map::UNTRACKED4,
        hints: 0,
        affinities: map::AFFINITIES4,
        fragments: map::FRAGMENTS4,
        source_ranges: map::SOURCE_RANGES4,
    };
}

impl InMaps for V6 {
    type FlowWords = [u64; size_of::<FlowBucket<V6>>() / 8];
    const NAMES: MapNames = MapNames {
        frontends: map::FRONTENDS6,
        backends: map::BACKENDS6,
        flows: map::FLOWS6,
        replies: map::REPLIES6,
        crowded: map::CROWDED6,
        untracked: map::UNTRACKED6,
        hints: 1,
        affinities: map::AFFINITIES6,
        fragments: map::FRAGMENTS6,
        source_ranges: map::SOURCE_RANGES6,
    };
}
impl<F: InMaps> FamilyView<F> {
    pub fn open(maps: &Maps<'_>) -> Result<Self> {
        let MapNames {
            frontends,
            backends,
            flows,
            replies,
            crowded,
            untracked,
            hints,
            affinities,
            fragments,
            source_ranges,
        } = F::NAMES;
        let all_hints: Elements<[u32; 2]> = maps.elements(map::HINTS)?;
        let words = all_hints.get(hints).unwrap_or_default();
        let [last_untracked, begins_in_rest] = words.map(AtomicWord::new);
        Ok(Self {
            frontends: maps.entries(frontends)?,
            backends: maps.elements(backends)?,
            flows: Copies::new(maps.elements(flows)?, BUCKET_ENTRIES),
            replies: Copies::new(maps.elements(replies)?, REPLY_BUCKET_ENTRIES),
            crowded: Copies::new(maps.elements(crowded)?, 1),
            hints: Hints { untracked: last_untracked, begins_in_rest },
            untracked: maps.overlaid(untracked)?,
            affinities: maps.overlaid(affinities)?,
            fragments: maps.overlaid(fragments)?,
            source_ranges: maps
                .open(source_ranges)?
                .try_into()
                .map_err(|error| unfit(source_ranges, error))?,
            // SAFETY: it consists of plain numbers, for which zeros are valid.
            draft: UnsafeCell::new(unsafe { std::mem::zeroed() }),
        })
    }
}
/// Implements the accessors of both families.
macro_rules! family_tables {
    ($family:ty, $address:ty, $view:ident, $mask:ident) => {
        impl FlowTables<$family> for View {
            fn flow_mask(&self) -> u32 {
                self.settings.$mask
            }

            fn flow_bucket(&self, index: u32) -> Option<&FlowBucket<$family>> {
                self.$view.flows.get(index)
            }

            fn reply_bucket(&self, index: u32) -> Option<&ReplyBucket> {
                self.$view.replies.get(index)
            }

            fn crowded(&self, word: u32) -> Option<&AtomicLong> {
                self.$view.crowded.get(word)
            }

            // In a copy nothing is cleared.
            fn crowded_lately(&self, word: u32) -> Option<&AtomicLong> {
                self.$view.crowded.get(word)
            }

            fn hints(&self) -> Option<&Hints> {
                Some(&self.$view.hints)
            }
        }

        impl FamilyTables<$family> for View {
            fn may_be_destination(&self, address: $address) -> bool {
                let bit = Bitmap::destination::<$family>(address);
                self.destinations.get(bit.word).is_some_and(|word| word & bit.bit != 0)
            }

            fn may_be_source(&self, address: $address, port: u16, protocol: u8) -> bool {
                let bit = Bitmap::source::<$family>(address, port, protocol);
                self.sources.get(bit.word).is_some_and(|word| word & bit.bit != 0)
            }

            fn frontend(&self, key: &FrontendKey<$family>) -> Option<Frontend> {
                self.$view.frontends.get(key).map(|Plain(frontend)| frontend)
            }

            fn backend(&self, index: u32) -> Option<Backend<$address>> {
                self.$view.backends.get(index).map(|Plain(backend)| backend)
            }

            fn draft(&self) -> Option<&mut Draft<$family>> {
                // SAFETY: stages run one after the other, and none keeps the draft.
                Some(unsafe { &mut *self.$view.draft.get() })
            }

            fn call(&self, function: Function) -> u32 {
                execute_function::<$family, _>(function, self)
            }

            fn affinity(&self, key: &AffinityKey<$family>) -> Option<Affinity> {
                self.$view.affinities.get(key)
            }

            fn set_affinity(&self, key: &AffinityKey<$family>, affinity: Affinity) {
                self.$view.affinities.set(key, affinity);
            }

            fn is_source_allowed(&self, service_port: u32, client: $address) -> bool {
                let range = SourceRange::<$family> {
                    service_port: service_port.to_be_bytes(),
                    octets: client.octets,
                };
                let bits = SERVICE_PORT_BITS + 8 * size_of::<$address>() as u32;
                entry_if_found(self.$view.source_ranges.get(&Key::new(bits, Plain(range)), 0))
                    .is_some()
            }

            fn fragment(&self, key: &FragmentKey<$family>) -> Option<Fragment> {
                self.$view.fragments.get(key)
            }

            fn set_fragment(&self, key: &FragmentKey<$family>, fragment: Fragment) {
                self.$view.fragments.set(key, fragment);
            }

            fn untracked(&self, key: &ReplyKey<$family>) -> Option<Untracked<$family>> {
                self.$view.untracked.get(key)
            }

            fn set_untracked(&self, key: &ReplyKey<$family>, untracked: &Untracked<$family>) {
                self.$view.untracked.set(key, *untracked);
            }
        }
    };
}

family_tables!(V4, Address4, v4, flow_mask4);
family_tables!(V6, Address6, v6, flow_mask6);
