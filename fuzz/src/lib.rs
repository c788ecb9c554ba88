//! Table states and packets made from arbitrary bytes, and the properties that hold for all of
//! them.
//!
//! A [`Scenario`] is read from bytes: Services are written to the tables, packets reach the hooks,
//! time passes, backends are removed, entries are damaged. Three callers supply the bytes: a fuzzer
//! that looks for new code paths, an ordinary test with random bytes, and the test that compares
//! the kernel with the host.
//!
//! [`http`] does the same for what the HTTP proxy parses, [`bgp`] for what a BGP peer sends, and
//! [`bfd`] for a BFD peer.
//!
//! Expected values are computed here, not by the data plane's own code: where headers are
//! ([`inspect`]), and their checksums ([`checksum`]).

pub mod bfd;
pub mod bgp;
mod change;
pub mod checksum;
mod event;
#[cfg(feature = "http")]
pub mod http;
mod input;
pub mod inspect;
mod invariants;
pub mod neighbour;
mod packet;
mod parser;
mod random;
mod reply;
mod run;
mod scenario;
mod state;
mod tunnel;
pub mod universe;
pub mod wire;

pub use change::{
    TableChange, TransportAddress, announced_entry, announced_key, backend_tag, damaged_return,
    destination_bit, source_bit,
};
pub use event::{FuzzEvent, Reply};
pub use input::Input;
pub use invariants::Met;
pub use parser::parser;
pub use random::{random_bytes, shrink_failing};
pub use reply::Translated;
pub use run::{FuzzedHost, Hook, PipelineFate, PipelineOutcome};
pub use scenario::Scenario;

/// Runs the scenario that the bytes describe on the host, and checks all properties.
pub fn pipeline(bytes: &[u8]) {
    meet(bytes);
}

/// Runs [`pipeline`], and returns what the run covered.
pub fn meet(bytes: &[u8]) -> Met {
    invariants::check_scenario(&Scenario::read(&mut Input::new(bytes)))
}
