//! The command to the workers when the proxy shuts down.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Serve,
    /// Accept no connection, and close each after its current requests.
    Drain,
    Now,
}
