/// Where the kernel's own description of a packet (`struct sk_buff`) has the word that says what the
/// packet's checksum is worth (`ip_summed`). Differs from kernel to kernel; the agent reads it from the
/// kernel's types before it loads the programs.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSum {
    /// The octet in which it is; 0 if that isn't known.
    pub offset: u32,
    /// Its lowest bit in that octet.
    pub shift: u32,
}

impl BufferSum {
    pub const UNKNOWN: Self = Self { offset: 0, shift: 0 };

    /// It has two bits.
    pub const MASK: u8 = 3;
    /// Nobody has looked at the checksum yet, or the card has: it is whole.
    /// <https://github.com/torvalds/linux/blob/v6.1/include/linux/skbuff.h>
    pub const NONE: u8 = 0;
    pub const UNNECESSARY: u8 = 1;
    /// A device is to finish it.
    pub const PARTIAL: u8 = 3;
}

const _: () = assert!(size_of::<BufferSum>() == 8);

/// What the programs call, as the number of a helper that no kernel has, to get at that description:
/// the agent puts `bpf_cast_to_kern_ctx` in its place.
pub const BUFFER_OF_CONTEXT: u32 = 0x6d72_0001;
