//! Where the kernel keeps the state of a packet's checksum.

/// The position of the field `ip_summed` in `struct sk_buff`, which describes the state of a
/// packet's checksum. It differs between kernels; the agent reads it from BTF before it loads the
/// programs.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSum {
    /// Its octet; 0 if it is not known.
    pub offset: u32,
    /// Its lowest bit in that octet.
    pub shift: u32,
}

impl BufferSum {
    pub const UNKNOWN: Self = Self { offset: 0, shift: 0 };

    /// The two bits of the field.
    pub const MASK: u8 = 3;
    /// The checksum is complete: not verified yet, or verified by the card.
    /// <https://github.com/torvalds/linux/blob/v6.1/include/linux/skbuff.h>
    pub const NONE: u8 = 0;
    pub const UNNECESSARY: u8 = 1;
    /// The sending device completes it.
    pub const PARTIAL: u8 = 3;
}

const _: () = assert!(size_of::<BufferSum>() == 8);

/// The number of a helper that no kernel has. The agent replaces calls of it by
/// `bpf_cast_to_kern_ctx`.
pub const BUFFER_OF_CONTEXT: u32 = 0x6d72_0001;
