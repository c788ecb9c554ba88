//! What the kernel and the agent share, and the data plane itself.
//!
//! `datapath` decides what happens to a packet. It is generic over [`datapath::Packet`] and
//! [`datapath::Tables`], so that the same code runs in the kernel (`lb-ebpf` adapts it to the
//! BPF context and maps) and on the host (`host`, with a byte vector and hash maps).
//!
//! Nothing here does I/O, reads a clock or depends on aya. Without the `std` feature nothing
//! allocates.

#![cfg_attr(not(feature = "std"), no_std)]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch, core_intrinsics))]
#![cfg_attr(target_arch = "bpf", allow(internal_features))]

pub mod address;
pub mod atomic;
pub mod bench;
pub mod branchless;
pub mod checksum;
pub mod conntrack;
pub mod crc32c;
pub mod datapath;
pub mod family;
pub mod hash;
pub mod header;
#[cfg(feature = "std")]
pub mod host;
pub mod layout;
pub mod maglev;
#[cfg(feature = "std")]
pub mod slot_history;
pub mod verifier;
pub mod word;
