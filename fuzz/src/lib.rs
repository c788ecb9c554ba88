//! Table states and packets out of any bytes, and what holds for all of them.
//!
//! A [`Scenario`] is read from bytes: services are written to the tables, packets meet them at the
//! hooks, time goes by, backends go, entries are damaged. Whoever has bytes can run one: a fuzzer
//! that looks for new ways through the code, an ordinary test with random numbers, and the test that
//! holds the kernel against the host.
//!
//! What is checked is computed here, not by the data plane's own code: where headers are
//! ([`inspect`]), what their checksums should be ([`checksum`]).

mod change;
pub mod checksum;
mod input;
pub mod inspect;
mod invariants;
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

pub use change::{Change, End, backend_tag, damaged_return, destination_bit, source_bit};
pub use input::Input;
pub use invariants::Met;
pub use parser::parser;
pub use random::{random_bytes, shrink};
pub use reply::Translated;
pub use run::{Fate, Host, Outcome};
pub use scenario::{DEVICE, Event, Hook, Reply, Scenario};

/// Runs the scenario that the bytes make on the host, and checks what holds for any.
pub fn pipeline(bytes: &[u8]) {
    meet(bytes);
}

/// The same, and says what was met on the way.
pub fn meet(bytes: &[u8]) -> Met {
    invariants::check(&Scenario::read(&mut Input::new(bytes)))
}
