//! The tables of one address family.

use std::net::SocketAddr;

use lb_common::atomic::AtomicLong;
use lb_common::conntrack::FlowTables;
use lb_common::datapath::{Draft, FamilyTables, Function, execute_function};
use lb_common::family::{Family, V4, V6};
use lb_common::layout::{
    Affinity, AffinityKey, Backend, FlowBucket, Fragment, FragmentKey, Frontend, FrontendKey,
    Hints, ReplyBucket, ReplyKey, Untracked,
};

use super::{Observed, WatchedBucket};
use crate::trace::observation::{AnyBackend, Observation};

/// Implements the accessors of both families.
macro_rules! family_tables {
    ($family:ty, $buckets:ident) => {
        impl<T> FlowTables<$family> for Observed<'_, T>
        where
            T: FamilyTables<V4> + FamilyTables<V6>,
        {
            fn flow_mask(&self) -> u32 {
                FlowTables::<$family>::flow_mask(self.tables)
            }

            fn flow_bucket(&self, index: u32) -> Option<&FlowBucket<$family>> {
                let bucket: Option<&FlowBucket<$family>> = self.tables.flow_bucket(index);
                self.note(Observation::Bucket(index));
                let mut watched = self.$buckets.borrow_mut();
                if let Some(bucket) = bucket
                    && !watched.iter().any(|watched| watched.index == index)
                {
                    let entries = std::array::from_fn(|number| bucket.entry(number));
                    watched.push(WatchedBucket { index, entries });
                }
                bucket
            }

            fn reply_bucket(&self, index: u32) -> Option<&ReplyBucket> {
                self.note(Observation::ReplyBucket(index));
                FlowTables::<$family>::reply_bucket(self.tables, index)
            }

            fn crowded(&self, word: u32) -> Option<&AtomicLong> {
                FlowTables::<$family>::crowded(self.tables, word)
            }

            fn crowded_lately(&self, word: u32) -> Option<&AtomicLong> {
                FlowTables::<$family>::crowded_lately(self.tables, word)
            }

            fn hints(&self) -> Option<&Hints> {
                FlowTables::<$family>::hints(self.tables)
            }
        }

        impl<T> FamilyTables<$family> for Observed<'_, T>
        where
            T: FamilyTables<V4> + FamilyTables<V6>,
        {
            fn may_be_destination(&self, address: <$family as Family>::Address) -> bool {
                let may = FamilyTables::<$family>::may_be_destination(self.tables, address);
                self.note(Observation::MayBeDestination(address.into(), may));
                may
            }

            fn may_be_source(
                &self,
                address: <$family as Family>::Address,
                port: u16,
                protocol: u8,
            ) -> bool {
                let may =
                    FamilyTables::<$family>::may_be_source(self.tables, address, port, protocol);
                let end = SocketAddr::new(address.into(), port);
                self.note(Observation::MayBeSource(end, protocol, may));
                may
            }

            fn frontend(&self, key: &FrontendKey<$family>) -> Option<Frontend> {
                let frontend = self.tables.frontend(key);
                let end = SocketAddr::new(key.address.into(), key.port);
                self.note(Observation::Frontend(end, key.protocol, frontend));
                frontend
            }

            fn backend(&self, index: u32) -> Option<Backend<<$family as Family>::Address>> {
                let backend = FamilyTables::<$family>::backend(self.tables, index);
                self.note(Observation::Backend(index, backend.map(AnyBackend::from)));
                backend
            }

            fn draft(&self) -> Option<&mut Draft<$family>> {
                self.tables.draft()
            }

            fn call(&self, function: Function) -> u32 {
                execute_function::<$family, _>(function, self)
            }

            fn affinity(&self, key: &AffinityKey<$family>) -> Option<Affinity> {
                let affinity = self.tables.affinity(key);
                let now = self.tables.now();
                self.note(Observation::Affinity(key.service_port, affinity, now));
                affinity
            }

            fn set_affinity(&self, key: &AffinityKey<$family>, affinity: Affinity) {
                self.note(Observation::AffinitySet(key.service_port, affinity));
                self.tables.set_affinity(key, affinity);
            }

            fn is_source_allowed(
                &self,
                service_port: u32,
                client: <$family as Family>::Address,
            ) -> bool {
                let allowed =
                    FamilyTables::<$family>::is_source_allowed(self.tables, service_port, client);
                self.note(Observation::SourceAllowed(service_port, client.into(), allowed));
                allowed
            }

            fn fragment(&self, key: &FragmentKey<$family>) -> Option<Fragment> {
                let fragment = self.tables.fragment(key);
                self.note(Observation::Fragment(fragment.is_some()));
                fragment
            }

            fn set_fragment(&self, key: &FragmentKey<$family>, fragment: Fragment) {
                let Fragment { source_port, destination_port, .. } = fragment;
                self.note(Observation::FragmentSet(source_port, destination_port));
                self.tables.set_fragment(key, fragment);
            }

            fn untracked(&self, key: &ReplyKey<$family>) -> Option<Untracked<$family>> {
                self.tables.untracked(key)
            }

            fn set_untracked(&self, key: &ReplyKey<$family>, untracked: &Untracked<$family>) {
                self.tables.set_untracked(key, untracked);
            }
        }
    };
}

family_tables!(V4, buckets4);
family_tables!(V6, buckets6);
