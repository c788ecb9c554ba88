//! Pseudo-random bytes, for tests without a fuzzer.

/// The same seed always gives the same bytes.
pub fn random_bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31).to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| next()).collect();
    bytes.truncate(length);
    bytes
}

/// Removes runs of things, long ones first, as long as the rest still fails.
pub fn shrink_failing<T: Clone>(things: &[T], fails: impl Fn(&[T]) -> bool) -> Vec<T> {
    let mut things = things.to_vec();
    let mut run = things.len() / 2;
    while run > 0 {
        let mut start = 0;
        while start < things.len() {
            let mut fewer = things.clone();
            fewer.drain(start..(start + run).min(things.len()));
            if fails(&fewer) {
                things = fewer;
            } else {
                start += run;
            }
        }
        run /= 2;
    }
    things
}
