//! What a BGP peer sends.
//!
//! Each target returns what it has met, so that a test can see whether random bytes reach all of it.

mod message;

pub use message::message;
