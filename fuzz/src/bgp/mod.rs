//! What a BGP peer sends.
//!
//! Each target of the fuzzer returns what it has met, so that a test can see whether random bytes reach all of it.

mod message;
pub mod router;
mod session;

pub use message::fuzz_bgp_message;
pub use session::fuzz_bgp_session;
