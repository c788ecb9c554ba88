use crate::atomic::AtomicLong;

/// How many entries share a bucket: they fill one cache line.
pub const RETURN_WAYS: usize = 8;

/// A set of the index that finds aliased flows by the answers to them; `return_table` has the
/// rules.
///
/// An entry says where a flow is: fingerprint of the answers' ends (28 bits, not 0), the place's
/// generation (8), its way (4), its bucket (24). 0 is free.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ReturnBucket {
    pub entries: [AtomicLong; RETURN_WAYS],
}

const _: () = assert!(size_of::<ReturnBucket>() == 64);
