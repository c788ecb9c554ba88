//! Hashing, for two purposes that must not be confused:
//!
//! - [`FlowHash`] selects the buckets of a client's flows. It depends on the client's address and
//!   port, which packets of both directions contain, on the frontend only if their buckets are full,
//!   and on a secret, so that an attacker cannot aim at one bucket.
//! - [`spread`] chooses the slot of a Maglev table. It is the same on every node, so that a
//!   router in front may move a connection from node to node.

use crate::family::{Address, Family};

const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND: u64 = 0xd6e8_feb8_6659_fd93;

/// Two rounds of multiply and shift: every input bit reaches every output bit.
#[inline(always)]
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 32)).wrapping_mul(FIRST);
    let value = (value ^ (value >> 32)).wrapping_mul(SECOND);
    value ^ (value >> 32)
}

/// The secret of the hashes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Secret {
    seed: u64,
    /// For the words of long addresses; they follow from the seed.
    keys: [u64; 2],
}

impl Secret {
    pub const fn new(seed: u64) -> Self {
        Self { seed, keys: [mix(seed ^ FIRST), mix(seed ^ SECOND)] }
    }

    /// The number of a host, one of `numbers`, a power of two. A host may have all IPv6 addresses of a network of 64
    /// bits, so these have one number.
    #[inline(always)]
    pub fn number_of_host<F: Family>(&self, address: F::Address, numbers: u32) -> u32 {
        let [first, _] = address.words();
        (mix(self.seed ^ first) >> 32) as u32 & (numbers - 1)
    }

    /// Adds an address, port and protocol to the hash `before`.
    #[inline(always)]
    fn mix_end<F: Family>(&self, before: u64, address: F::Address, port: u16, protocol: u8) -> u64 {
        let end = u64::from(port) << 40 | u64::from(protocol) << 32;
        let [first, second] = address.words();
        if size_of::<F::Address>() == 4 {
            mix(before ^ (first | end))
        } else {
            // NH, of UMAC (RFC 4418): without the keys, the difference between the sums of two
            // addresses is unknown, so ports cannot be chosen to cancel it out.
            let [one, other] = self.keys;
            mix(before ^ product(first, one).wrapping_add(product(second, other)).wrapping_add(end))
        }
    }
}

/// The product of a word's two halves, to each of which its half of the key is added.
#[inline(always)]
fn product(word: u64, key: u64) -> u64 {
    let low = (word as u32).wrapping_add(key as u32);
    let high = ((word >> 32) as u32).wrapping_add((key >> 32) as u32);
    u64::from(low) * u64::from(high)
}

/// The core of a table: its first buckets, one in 2ⁿ of all. While few entries are in use, most are in
/// the core, where they share few cache lines and pages.
#[derive(Clone, Copy)]
struct Core(u32);

impl Core {
    /// A sixteenth of the flow table.
    const OF_FLOWS: Self = Self(4);
    /// A quarter of the reply index, which has entries for half of the flows.
    const OF_INDEX: Self = Self(2);

    /// The number of its buckets, a power of two, less one; `mask` is that of all buckets.
    #[inline(always)]
    const fn mask(self, mask: u32) -> u32 {
        mask >> self.0
    }

    /// A bucket in the core.
    #[inline(always)]
    fn select(self, hash: u32, mask: u32) -> u32 {
        hash & self.mask(mask)
    }

    /// A bucket in the rest, which is selected by the high bits; of a table of one bucket, that one.
    #[inline(always)]
    fn select_beyond(self, hash: u32, mask: u32) -> u32 {
        mask - scale(hash, mask - self.mask(mask))
    }
}

/// The number of buckets in the core of a flow table with so many buckets.
pub const fn core_of_flows(buckets: u32) -> u32 {
    Core::OF_FLOWS.mask(buckets - 1) + 1
}

/// The hash of a client's address and port, or of client and frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHash {
    bits: u64,
    of: Hashed,
}

/// What a flow's buckets depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hashed {
    Client,
    /// Client and frontend.
    Frontend,
    /// Client and frontend, mixed once more: two other buckets.
    Further,
}

impl FlowHash {
    #[inline(always)]
    pub fn of_client<F: Family>(
        secret: &Secret,
        address: F::Address,
        port: u16,
        protocol: u8,
    ) -> Self {
        let bits = secret.mix_end::<F>(secret.seed, address, port, protocol);
        Self { bits, of: Hashed::Client }
    }

    /// The hash of client and frontend, for flows that are not in their client's buckets.
    #[inline(always)]
    pub fn of_frontend<F: Family>(
        secret: &Secret,
        client: (F::Address, u16),
        frontend: (F::Address, u16),
        protocol: u8,
    ) -> Self {
        let near = secret.mix_end::<F>(secret.seed, client.0, client.1, protocol);
        let bits = secret.mix_end::<F>(near, frontend.0, frontend.1, protocol);
        Self { bits, of: Hashed::Frontend }
    }

    /// Selects two more buckets for client and frontend; `None` of any other hash.
    #[inline(always)]
    pub fn further(self) -> Option<Self> {
        let further = Self { bits: mix(self.bits), of: Hashed::Further };
        (self.of == Hashed::Frontend).then_some(further)
    }

    /// The bucket in the core of the flow table, and the one in the rest, where a flow that is not in
    /// its client's buckets has both: in a nearly full table the core is full.
    #[inline(always)]
    pub fn buckets(self, mask: u32) -> [u32; 2] {
        const CORE: Core = Core::OF_FLOWS;
        let low = self.bits as u32;
        let one = match self.of {
            Hashed::Client => CORE.select(low, mask),
            Hashed::Frontend | Hashed::Further => CORE.select_beyond(low << 8, mask),
        };
        [one, CORE.select_beyond((self.bits >> 16) as u32, mask)]
    }

    /// The number of the client's mark, one of `marks`, a power of two.
    #[inline(always)]
    pub fn mark(self, marks: u32) -> u32 {
        self.bits as u32 & (marks - 1)
    }

    /// Distinguishes most flows of one bucket without access to their records.
    #[inline(always)]
    pub fn fingerprint(self) -> u32 {
        (self.bits >> 48) as u32
    }

    /// The preferred entry of a bucket: read first, and used if it is free.
    #[inline(always)]
    pub fn entry_number(self) -> usize {
        (self.bits >> 61) as usize
    }
}

/// The hash of a flow's replies, for the reply index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHash(u64);

impl ReplyHash {
    /// The hash of a reply's addresses and ports: from the backend to the SNAT address.
    #[inline(always)]
    pub fn of<F: Family>(
        secret: &Secret,
        backend: (F::Address, u16),
        snat: (F::Address, u16),
        protocol: u8,
    ) -> Self {
        let near = secret.mix_end::<F>(secret.seed, snat.0, snat.1, protocol);
        Self(secret.mix_end::<F>(near, backend.0, backend.1, protocol))
    }

    /// The bucket to look in first, in the core of the index, and the one to look in next, in the
    /// rest.
    #[inline(always)]
    pub fn buckets(self, mask: u32) -> [u32; 2] {
        const CORE: Core = Core::OF_INDEX;
        [CORE.select(self.0 as u32, mask), CORE.select_beyond((self.0 >> 24) as u32, mask)]
    }

    /// The preferred entry of a bucket: read first, and used if it is free.
    #[inline(always)]
    pub fn preferred_entry(self) -> usize {
        (self.0 >> 57) as usize & 0b111
    }

    /// 28 bits of which the highest is set, so that no fingerprint is 0.
    #[inline(always)]
    pub fn fingerprint(self) -> u32 {
        (mix(self.0) >> 36) as u32 | 1 << 27
    }
}

/// The identity of a backend on every node, which determines its slots in Maglev tables.
#[inline(always)]
pub fn backend_identity<A: Address>(address: A, port: u16) -> u64 {
    let [first, second] = address.words();
    mix(mix(first ^ u64::from(port) << 40) ^ second)
}

/// Sixteen bits of it: the tag by which a tunnelled packet names its backend.
#[inline(always)]
pub fn backend_tag<A: Address>(address: A, port: u16) -> u16 {
    (backend_identity(address, port) >> 48) as u16
}

/// The hash that selects a slot of a pool: of the connection as the client opens it.
#[inline(always)]
pub fn spread<F: Family>(
    client: F::Address,
    client_port: u16,
    frontend: F::Address,
    frontend_port: u16,
    protocol: u8,
) -> u32 {
    const NO_SECRET: Secret = Secret::new(FIRST);
    let near = NO_SECRET.mix_end::<F>(FIRST, client, client_port, protocol);
    (NO_SECRET.mix_end::<F>(near, frontend, frontend_port, protocol) >> 32) as u32
}

/// Scales a hash to `0..size` without a division.
#[inline(always)]
pub fn scale(hash: u32, size: u32) -> u32 {
    ((u64::from(hash) * u64::from(size)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::family::{Address4, V4};

    fn of_client(port: u16) -> FlowHash {
        FlowHash::of_client::<V4>(&Secret::new(99), Address4::from([192, 0, 2, 7]), port, 6)
    }

    fn of_frontend(port: u16) -> FlowHash {
        let (client, frontend) = ([192, 0, 2, 7].into(), [10, 0, 0, 1].into());
        FlowHash::of_frontend::<V4>(&Secret::new(99), (client, port), (frontend, 80), 6)
    }

    fn further(port: u16) -> FlowHash {
        of_frontend(port).further().unwrap()
    }

    fn of_reply(port: u16) -> ReplyHash {
        let (backend, node) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        ReplyHash::of::<V4>(&Secret::new(7), (backend, 80), (node, port), 6)
    }

    /// Whether none of these numbers is six standard deviations of a fair spread from their mean.
    fn is_even(filled: &[u32]) -> bool {
        let mean = filled.iter().sum::<u32>() / filled.len() as u32;
        filled.iter().all(|n| n.abs_diff(mean) <= 1 + 6 * mean.isqrt().max(1))
    }

    #[test]
    fn core_and_rest_are_filled_evenly() {
        type BucketsOf = fn(u16, u32) -> [u32; 2];
        let tables: [(BucketsOf, u32); 2] = [
            (|port, mask| of_client(port).buckets(mask), 16),
            (|port, mask| of_reply(port).buckets(mask), 4),
        ];
        for bits in 1..=12 {
            for (buckets_of, part) in tables {
                let (mask, core) = ((1_u32 << bits) - 1, ((1_u32 << bits) / part).max(1));
                let mut filled = std::vec![0_u32; 1 << bits];
                for port in 0..=u16::MAX {
                    let [one, other] = buckets_of(port, mask);
                    assert!(one < core && core <= other && other <= mask, "{bits} bits");
                    filled[one as usize] += 1;
                    filled[other as usize] += 1;
                }
                let (in_core, in_rest) = filled.split_at(core as usize);
                assert!(is_even(in_core) && is_even(in_rest), "{bits} bits: {filled:?}");
            }
        }
    }

    #[test]
    fn flows_that_are_not_in_their_clients_buckets_fill_the_rest_evenly() {
        for hash_of in [of_frontend, further] {
            let mut filled = [0_u32; 64];
            for hash in (0..=u16::MAX).map(hash_of) {
                hash.buckets(63).into_iter().for_each(|bucket| filled[bucket as usize] += 1);
            }
            assert!(filled[..4] == [0; 4] && is_even(&filled[4..]), "{filled:?}");
        }
    }

    #[test]
    fn a_flow_table_has_a_core_of_a_sixteenth_and_at_least_one_bucket() {
        assert_eq!([1, 4, 16, 32, 65_536].map(core_of_flows), [1, 1, 1, 2, 4_096]);
    }

    #[test]
    fn only_client_and_frontend_have_further_buckets() {
        assert_eq!((of_client(1).further(), further(1).further()), (None, None));
        assert_ne!(further(1).buckets(1023), of_frontend(1).buckets(1023));
    }

    #[test]
    fn a_table_of_one_bucket_has_only_that() {
        let hashes = [of_client(1).buckets(0), of_frontend(1).buckets(0), of_reply(1).buckets(0)];
        assert_eq!(hashes, [[0, 0]; 3]);
    }

    /// Otherwise flows with a bucket in common would have fewer other buckets, fingerprints or preferred
    /// entries than others; those of one hash, and of the three that a flow may have.
    #[test]
    fn the_parts_of_a_hash_are_independent() {
        const MASK: u32 = 255;
        // The core has 16 buckets, and the rest fifteen times as many.
        let part_of = |bucket: u32| bucket.checked_sub(16).map_or(bucket, |bucket| bucket / 15);
        let parts_of = |port: u16| {
            [of_client, of_frontend, further].map(|hash_of| hash_of(port)).map(|hash| {
                let [one, other] = hash.buckets(MASK).map(part_of);
                [one, other, hash.fingerprint() >> 12]
            })
        };
        let parts: std::vec::Vec<_> = (0..=u16::MAX).map(parts_of).collect();
        for (first, second) in
            (0..9).flat_map(|first| (0..first).map(move |second| (first, second)))
        {
            let mut pairs = [0_u32; 16 * 16];
            for part in parts.iter().map(|parts| parts.as_flattened()) {
                pairs[(part[first] * 16 + part[second]) as usize] += 1;
            }
            assert!(is_even(&pairs), "parts {first} and {second}: {pairs:?}");
        }
    }

    #[test]
    fn neighbouring_addresses_and_ports_do_not_collide_in_ipv6() {
        use crate::family::{Address6, V6};
        let mut hashes = std::collections::HashSet::new();
        for host in 0..=255 {
            let mut octets = [0x20; 16];
            octets[15] = host;
            for port in 10_000..10_256 {
                let address = Address6::from(octets);
                hashes.insert(FlowHash::of_client::<V6>(&Secret::new(99), address, port, 6).bits);
            }
        }
        assert_eq!(hashes.len(), 256 * 256);
    }

    #[test]
    fn scale_stays_below_the_size() {
        assert_eq!(scale(u32::MAX, 7), 6);
        assert_eq!(scale(0, 7), 0);
        assert_eq!(scale(u32::MAX, 1), 0);
    }
}
