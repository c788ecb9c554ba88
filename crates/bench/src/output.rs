//! Where results are written.

/// The default directory.
pub const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/bench");
