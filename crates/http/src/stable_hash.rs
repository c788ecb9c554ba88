//! A hash that is the same in all processes, on all architectures and in all versions of Millrace, as replicas must
//! agree on it. It is no secret: a client that knows a key can compute its hash.

/// FNV-1a, with a finalizer that makes all bits depend on all octets.
#[derive(Clone, Copy)]
pub(crate) struct StableHash(u64);

impl StableHash {
    pub fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub fn write(&mut self, octets: &[u8]) {
        for octet in octets {
            self.0 = (self.0 ^ u64::from(*octet)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    pub fn finish(self) -> u64 {
        mix_hash(self.0)
    }
}

/// A bijection whose bits all depend on all bits of the input (the finalizer of SplitMix64).
pub(crate) fn mix_hash(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another result sends all clients of a hashed upstream to another endpoint.
    #[test]
    fn results_never_change() {
        let hash = |text: &str| {
            let mut hash = StableHash::new();
            hash.write(text.as_bytes());
            hash.finish()
        };
        assert_eq!(hash(""), mix_hash(0xcbf2_9ce4_8422_2325));
        // FNV-1a of "a" is 0xaf63dc4c8601ec8c.
        assert_eq!(hash("a"), mix_hash(0xaf63_dc4c_8601_ec8c));
        // The first output of SplitMix64 with seed 0.
        assert_eq!(mix_hash(0x9e37_79b9_7f4a_7c15), 0xe220_a839_7b1d_cdaf);
    }
}
