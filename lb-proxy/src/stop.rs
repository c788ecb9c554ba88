//! What the workers are told when the proxy ends.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Serve,
    /// Accept no connection, and close each after its current requests.
    Drain,
    Now,
}
