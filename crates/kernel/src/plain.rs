//! Keys and values of maps.

use aya::Pod;

/// A layout of `lb_common::layout` as a key or value of a map.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Plain<T>(pub T);

// SAFETY: the layouts are `repr(C)` integers and arrays of them, without padding, as asserted
// beside each; any bytes are a valid value.
unsafe impl<T: Layout> Pod for Plain<T> {}

impl<T: Layout> Plain<T> {
    pub fn bytes(&self) -> &[u8] {
        let start = std::ptr::from_ref(&self.0).cast();
        // SAFETY: a layout has no padding, so each of its bytes is written.
        unsafe { std::slice::from_raw_parts(start, size_of::<T>()) }
    }
}

/// Types that `Plain` may wrap.
///
/// # Safety
/// `repr(C)` of integers without implicit padding; every bit pattern valid.
pub unsafe trait Layout: Copy + 'static {}

macro_rules! layouts {
    ($($layout:ty),* $(,)?) => {$(
        // SAFETY: see `Plain`.
        unsafe impl Layout for $layout {}
    )*};
}

/// Layouts that exist for each address family.
macro_rules! family_layouts {
    ($($layout:ident),* $(,)?) => {$(
        // SAFETY: see `Plain`; the assertions cover both families.
        unsafe impl<F: Family> Layout for $layout<F> {}
    )*};
}

use lb_common::family::{Address, Family};
use lb_common::layout::{
    Affinity, AffinityKey, Announced, AnnouncedAddress, Backend, BfdHeard, BfdSession, BufferSum,
    Device, EarlierOwners, Fragment, FragmentKey, Frontend, FrontendKey, Host, Identity, KeyValue,
    LastClaim, Listener, Member, NetworkEpoch, Peer, Pool, PoolSlot, ReplyKey, ServicePortName,
    Settings, SlotPair, SocketEnd, SocketFlow, SourceRange, Traffic, TunnelTarget, Untracked,
};

layouts! {
    Announced, AnnouncedAddress, BfdHeard, BfdSession, BufferSum, LastClaim,
    u32, u64, Frontend, Affinity, Listener, Member, Device, Fragment, Identity, NetworkEpoch, Peer, Pool,
    EarlierOwners, PoolSlot, ServicePortName, Settings, SlotPair, TunnelTarget, Traffic, Host,
}

family_layouts! {
    FrontendKey, AffinityKey, FragmentKey, ReplyKey, SourceRange, SocketEnd, SocketFlow, Untracked,
}

// SAFETY: see `Plain`; the assertions beside `Slot` cover its uses.
unsafe impl<K: Layout, V: Layout> Layout for KeyValue<K, V> {}

// SAFETY: see `Plain`.
unsafe impl<A: Address> Layout for Backend<A> {}
