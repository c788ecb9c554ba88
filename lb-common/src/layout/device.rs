//! Network interfaces, and the epoch of the network.

use super::cache::CacheEntry;
use crate::family::{Address4, Address6};
use crate::layout::Ticks;

/// An interface through which packets are sent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The SNAT address for backends behind the interface; unspecified if there is none.
    pub address6: Address6,
    pub address4: Address4,
    /// The largest IP packet, in bytes.
    pub mtu: u32,
    pub link_address: [u8; 6],
    /// [`Device::REDIRECT`], [`Device::TRANSMIT`].
    pub flags: u8,
    pub reserved: u8,
}

impl Device {
    /// XDP may send packets through it that arrived on another interface.
    pub const REDIRECT: u8 = 1;
    /// XDP may send packets back through it. A veth whose other end does not poll accepts such
    /// packets and drops them.
    pub const TRANSMIT: u8 = 2;
}

/// An interface in the cache, by its index.
pub type DeviceCacheEntry = CacheEntry<u64, Device>;

impl DeviceCacheEntry {
    pub const COUNT: u32 = 1 << 10;

    /// The position of an interface.
    #[inline(always)]
    pub fn index(device: u32) -> u32 {
        device % Self::COUNT
    }
}

/// What programs know about the network as a whole.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkEpoch {
    /// Changes with every change of a route, neighbour, address or link: next hops that were
    /// resolved in an earlier epoch are invalid.
    pub epoch: u32,
    /// Until when the epoch follows the network, in ticks. The agent renews the lease. Its lowest bit says
    /// whether next hops depend on the destination only: then packets of all clients to a backend have the
    /// same one. 0: no agent follows the network.
    pub lease: u32,
}

impl NetworkEpoch {
    /// For how long the agent leases the epoch each time, in ticks: five seconds.
    pub const LEASE: u32 = Ticks::in_seconds(5);

    /// Set in epochs without a lease, so that they are none of those with one.
    const UNLEASED: u32 = 1 << 31;

    /// For how many ticks, as a power of two, next hops are valid without a lease: 1.07 seconds.
    const UNLEASED_LIFETIME_BITS: u32 = 6;

    /// A lease that begins now.
    pub fn lease(now: Ticks, shares_hops: bool) -> u32 {
        now.0.wrapping_add(Self::LEASE) & !1 | u32::from(shares_hops)
    }

    /// Whether a lease has not ended.
    #[inline(always)]
    pub fn is_leased(lease: u32, now: Ticks) -> bool {
        lease != 0 && (lease & !1).wrapping_sub(now.0) <= Self::LEASE
    }

    /// Whether new flows may use the next hops of others.
    #[inline(always)]
    pub fn shares_hops(lease: u32, now: Ticks) -> bool {
        lease & 1 != 0 && Self::is_leased(lease, now)
    }

    /// The epoch in which next hops are valid that are resolved now. Without a lease it changes with time, too: nobody
    /// reports changes of the network then, so that flows look their next hops up once a second. Neither time nor epochs
    /// go back, so their sum does not repeat.
    #[inline(always)]
    pub fn valid_epoch(epoch: u32, lease: u32, now: Ticks) -> u32 {
        if Self::is_leased(lease, now) {
            epoch & !Self::UNLEASED
        } else {
            (now.0 >> Self::UNLEASED_LIFETIME_BITS).wrapping_add(epoch) | Self::UNLEASED
        }
    }
}

/// The link-layer addresses whose frames this machine receives on an interface, in one array of
/// words for all interfaces: a packet reads it without a call. An interface has the bucket of its
/// index. If its addresses do not fit there, it has none, and is taken for unknown.
pub struct LinkAddresses;

impl LinkAddresses {
    /// Words of a bucket, which is a cache line.
    pub const SLOTS: u32 = 8;
    pub const WORDS: u32 = Self::SLOTS << 10;

    /// The first word of an interface's bucket.
    #[inline(always)]
    pub fn bucket(device: u32) -> u32 {
        device * Self::SLOTS % Self::WORDS
    }

    /// An address on an interface; 0 if the interface's index does not fit.
    #[inline(always)]
    pub fn word(device: u32, address: [u8; 6]) -> u64 {
        let [a, b, c, d, e, f] = address;
        let word = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        if device < 1 << 16 { word | u64::from(device) << 48 } else { 0 }
    }

    /// The index of the interface that a word is of; 0: of none.
    #[inline(always)]
    pub fn device(word: u64) -> u64 {
        word >> 48
    }
}

const _: () = {
    assert!(size_of::<Device>() == 32);
    assert!(size_of::<NetworkEpoch>() == 8);
};

#[cfg(not(feature = "model"))]
const _: () = assert!(size_of::<DeviceCacheEntry>() == 48);

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_and_is_none_of_the_past_or_far_future() {
        for now in [Ticks(0), Ticks(1 << 20), Ticks(u32::MAX - 3)] {
            let after = |ticks: u32| Ticks(now.0.wrapping_add(ticks));
            for shares_hops in [false, true] {
                let lease = NetworkEpoch::lease(now, shares_hops);
                for (time, is_leased) in [
                    (now, true),
                    (after(NetworkEpoch::LEASE - 1), true),
                    (after(NetworkEpoch::LEASE + 2), false),
                    (after(1 << 31), false),
                ] {
                    assert_eq!(NetworkEpoch::is_leased(lease, time), is_leased);
                    assert_eq!(NetworkEpoch::shares_hops(lease, time), is_leased && shares_hops);
                }
            }
            assert!(!NetworkEpoch::is_leased(0, now));
        }
    }

    #[test]
    fn without_a_lease_the_epoch_changes_with_time_and_is_none_with_a_lease() {
        let now = Ticks(640);
        let later = |ticks| Ticks(now.0 + ticks);
        let leased = NetworkEpoch::lease(now, false);
        for epoch in [0, 7, 1 << 31, u32::MAX] {
            let followed = NetworkEpoch::valid_epoch(epoch, leased, now);
            assert_eq!(NetworkEpoch::valid_epoch(epoch, leased, later(100)), followed);
            let unfollowed = NetworkEpoch::valid_epoch(epoch, 0, now);
            assert_ne!(followed, unfollowed);
            assert_eq!(NetworkEpoch::valid_epoch(epoch, 0, later(63)), unfollowed);
            assert_ne!(NetworkEpoch::valid_epoch(epoch, 0, later(64)), unfollowed);
        }
    }
}
