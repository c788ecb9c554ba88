//! How much of the server clients may use.

use std::time::Duration;

/// Limits on what clients may use. Of each total one user gets at most half, and all except the
/// agent at most seven eighths (`shares`).
#[derive(Debug, Clone, Copy)]
pub struct ApiLimits {
    /// Concurrent TLS handshakes.
    pub handshakes: usize,
    /// Connections of authenticated clients.
    pub connections: usize,
    /// Concurrent requests of all clients, not counting watches.
    pub requests: usize,
    pub watches: usize,
    /// Size of a request's body in bytes.
    pub body: usize,
    /// Size of the bodies of all concurrent requests in bytes.
    pub bodies: usize,
    /// Concurrent requests that are expensive: large bodies and lists.
    pub turns: usize,
    /// Time limit for the handshake, the headers, and the body, each; and the longest wait for a
    /// turn.
    pub patience: Duration,
    /// The longest time that a client may block a write, or not reply to a ping. Then its
    /// connection is closed.
    pub stall: Duration,
}

impl Default for ApiLimits {
    fn default() -> Self {
        Self {
            handshakes: 256,
            connections: 1024,
            requests: 256,
            watches: 2048,
            body: 3 << 20,
            bodies: 64 << 20,
            turns: 4,
            patience: Duration::from_secs(30),
            stall: Duration::from_secs(60),
        }
    }
}
