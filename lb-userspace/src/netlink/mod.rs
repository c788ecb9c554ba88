//! Netlink: messages and attributes as bytes (`wire`), and a blocking client ([`Netlink`]).
//!
//! `network` has a transport of its own, which waits for notices in a runtime; the bytes are the
//! same. Imports nothing of this crate but `bytes`.

mod client;
mod wire;

pub use client::Netlink;
pub use wire::{Message, align, attribute, attributes, messages, request, text, text_attribute};

pub use crate::bytes::{u16_at, u32_at, u64_at};
