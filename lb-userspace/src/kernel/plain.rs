use aya::Pod;

/// A layout of `lb_common::layout` as a key or value of a map.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Plain<T>(pub T);

// SAFETY: the layouts are `repr(C)` integers and arrays of them, without padding, as asserted
// beside each; any bytes are a valid value.
unsafe impl<T: Layout> Pod for Plain<T> {}

/// The types that may be wrapped.
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

use lb_common::family::{Address4, Address6, V4, V6};
use lb_common::layout::{
    Affinity, AffinityKey, Backend, Device, Frontend, FrontendKey, Host, Identity, Member, Peer,
    Settings, SocketFlow, SourceRange, Target, Traffic,
};

layouts! {
    FrontendKey<V4>, FrontendKey<V6>, Frontend, Backend<Address4>, Backend<Address6>,
    AffinityKey<V4>, AffinityKey<V6>, Affinity, Member, SourceRange<V4>, SourceRange<V6>, Device,
    Identity, Peer, Settings, Target, Traffic, Host, SocketFlow<V4>, SocketFlow<V6>,
}
