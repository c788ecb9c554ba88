//! Netlink: messages and attributes as bytes (`wire`), a blocking client ([`Netlink`]), and
//! families of generic netlink (`generic`).
//!
//! `network` has its own transport, which waits for notifications in an async runtime, and uses the
//! same encoding. Imports nothing of this crate but `bytes`.

mod client;
mod generic;
mod wire;

pub use client::Netlink;
pub use generic::{GENERIC_HEADER, family};
pub use wire::{Message, align, attribute, attributes, messages, request, text, text_attribute};

pub use crate::bytes::{u16_at, u32_at, u64_at};
