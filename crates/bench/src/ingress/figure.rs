//! The figures that are measured for each proxy.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IngressFigure {
    Kept,
    KeptTime,
    New,
    NewTime,
    Multiplexed,
    MultiplexedTime,
    FullHandshakeTime,
    ResumedHandshakeTime,
    LargeTime,
    WebSocketHalf,
    WebSocketMost,
    HalfLoadHalf,
    HalfLoadMost,
    IdleMemory,
}

impl IngressFigure {
    pub const ALL: [Self; 14] = [
        Self::Kept,
        Self::KeptTime,
        Self::New,
        Self::NewTime,
        Self::Multiplexed,
        Self::MultiplexedTime,
        Self::FullHandshakeTime,
        Self::ResumedHandshakeTime,
        Self::LargeTime,
        Self::WebSocketHalf,
        Self::WebSocketMost,
        Self::HalfLoadHalf,
        Self::HalfLoadMost,
        Self::IdleMemory,
    ];

    /// Key in the JSON, unit, and what it is.
    fn text(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Kept => ("kept", "requests/s", "HTTP/1.1 with keep-alive"),
            Self::KeptTime => ("kept_cpu", "µs", "CPU time of a request with keep-alive"),
            Self::New => ("new", "requests/s", "HTTP/1.1, new connections"),
            Self::NewTime => ("new_cpu", "µs", "CPU time of a request on a new connection"),
            Self::Multiplexed => ("http2", "requests/s", "HTTP/2 over TLS"),
            Self::MultiplexedTime => ("http2_cpu", "µs", "CPU time of an HTTP/2 request"),
            Self::FullHandshakeTime => {
                ("tls_full_cpu", "µs", "CPU time of a request with a full TLS handshake")
            }
            Self::ResumedHandshakeTime => {
                ("tls_resumed_cpu", "µs", "CPU time of a request with a resumed TLS session")
            }
            Self::LargeTime => ("large_cpu", "ms/GB", "CPU time of large bodies"),
            Self::WebSocketHalf => ("websocket_p50", "µs", "WebSocket round trip, median"),
            Self::WebSocketMost => ("websocket_p99", "µs", "WebSocket round trip, 99 %"),
            Self::HalfLoadHalf => ("half_load_p50", "µs", "Request at half load, median"),
            Self::HalfLoadMost => ("half_load_p99", "µs", "Request at half load, 99 %"),
            Self::IdleMemory => ("idle_memory", "KiB", "Memory of an idle connection"),
        }
    }

    /// The key in the JSON; stable.
    pub fn key(self) -> &'static str {
        self.text().0
    }

    pub fn unit(self) -> &'static str {
        self.text().1
    }

    /// What it is, with its unit.
    pub fn title(self) -> String {
        let (_, unit, what) = self.text();
        format!("{what}, {unit}")
    }
}
