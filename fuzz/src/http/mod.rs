//! What the HTTP proxy reads from clients: hosts, paths, heads of requests, the PROXY protocol.
//!
//! Each target returns what it has met, so that a test can see whether random bytes reach all of it.

mod host;
mod path;
mod proxy_protocol;
mod request;

pub use host::fuzz_host;
pub use path::fuzz_path;
pub use proxy_protocol::proxy_protocol;
pub use request::fuzz_request;

use crate::Input;

/// Text from pieces that attacks are made of, or any text.
fn text(input: &mut Input, pieces: &[&str], most: usize) -> String {
    let length = input.below(most + 1);
    (0..length)
        .map(|_| match input.chance(16) {
            true => char::from(input.byte()).to_string(),
            false => input.choose(pieces).to_string(),
        })
        .collect()
}
