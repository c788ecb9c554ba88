//! Netlink: messages and attributes as bytes (`wire`), a blocking client ([`Netlink`]), and
//! families of generic netlink (`generic`).
//!
//! `network` has its own transport, which waits for notifications in an async runtime, and uses the
//! same encoding. Imports nothing of this crate but `bytes`.

mod client;
mod generic;
mod wire;

pub use client::Netlink;
pub use generic::{GENERIC_HEADER_OCTETS, find_generic_family};
pub use wire::{
    NetlinkMessage, align_netlink, encode_attribute, encode_request, encode_text_attribute,
    read_attributes, read_text, split_messages,
};

pub use crate::bytes::{read_u16_at, read_u32_at, read_u64_at};
