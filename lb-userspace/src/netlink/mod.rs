//! Netlink: messages and attributes as bytes (`wire`), and a blocking client ([`Netlink`]).
//!
//! `network` has its own transport, which waits for notifications in an async runtime, and uses the
//! same encoding. Imports nothing of this crate but `bytes`.

mod client;
mod wire;

pub use client::Netlink;
pub use wire::{Message, align, attribute, attributes, messages, request, text, text_attribute};

pub use crate::bytes::{u16_at, u32_at, u64_at};
