//! The settings that the proxy is started with.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use ipnet::IpNet;
use lb_http::balance;
use lb_http::headers::Forwarding;
use lb_http::trace::{RequestSpan, SamplingRatio};
use tokio::sync::mpsc;

use crate::access_log;
use crate::metrics::Listener;
use crate::session_keys::SessionKeys;

#[derive(Debug, Default)]
pub struct ProxySettings {
    /// Listen addresses without TLS: HTTP/1.1, and HTTP/2 with prior knowledge.
    pub http: Vec<SocketAddr>,
    /// Listen addresses with TLS.
    pub https: Vec<SocketAddr>,
    /// Sockets that listen already, from an earlier process or from systemd. Those whose address is in `http` or
    /// `https` are used; the others are closed.
    pub inherited: Vec<TcpListener>,
    /// Peers whose connections begin with the PROXY protocol, version 1 or 2. Connections of these peers without it are
    /// closed. From other peers it is not accepted.
    pub proxy_protocol: Vec<IpNet>,
    /// Which peers are trusted to send headers about the client, and which such headers endpoints get.
    pub forwarding: Forwarding,
    /// The port that clients without TLS connect to. The listeners' own ports may differ, as behind a Service.
    pub http_port: u16,
    /// The port that clients with TLS connect to, to which redirects lead.
    pub tls_port: u16,
    /// Slow start, and ejection of endpoints that fail. The keys of affinity cookies are those of `session_keys`.
    pub balancing: balance::BalancerSettings,
    pub session_keys: SessionKeys,
    pub limits: ProxyLimits,
    /// Threads that serve requests; 0: one for each CPU that the process may use.
    pub workers: usize,
    /// How long requests and WebSockets have to finish when the proxy stops.
    pub shutdown_grace: Duration,
    /// Entries for the access log. A full channel drops entries and counts them.
    pub access_log: Option<mpsc::Sender<access_log::Batch>>,
    /// `None`: no request is traced, and its context is passed on as it came.
    pub traces: Option<TraceSettings>,
    /// The most owners with metrics of their own. The metrics of further ones are summed up.
    pub most_owners: usize,
}

impl ProxySettings {
    /// Listens on `http` and `https`, and has defaults otherwise.
    pub fn new(http: Vec<SocketAddr>, https: Vec<SocketAddr>) -> Self {
        Self {
            http,
            https,
            shutdown_grace: Duration::from_secs(30),
            most_owners: 10_000,
            http_port: 80,
            tls_port: 443,
            ..Self::default()
        }
    }

    /// The port that clients of a listener connect to.
    pub(crate) fn port_of(&self, listener: Listener) -> u16 {
        match listener {
            Listener::Http => self.http_port,
            Listener::Https => self.tls_port,
        }
    }
}

/// Which requests are traced, and recorded as spans.
#[derive(Clone, Debug)]
pub struct TraceSettings {
    /// Whether requests of routes are traced that say nothing about it.
    pub by_default: bool,
    /// The recorded share of the traces that begin here.
    pub ratio: SamplingRatio,
    /// Spans in a second, of all workers.
    pub most_per_second: u32,
    /// A full channel drops spans and counts them.
    pub spans: mpsc::Sender<Vec<RequestSpan>>,
}

/// Limits of what clients and endpoints may take. The proxy enforces all of them, whatever the configuration says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyLimits {
    /// Connections of all clients. An idle one takes about as much memory as the design document states, so this
    /// bounds the proxy's memory.
    pub connections: usize,
    /// Connections of one source: an IPv4 address, or a /64 of IPv6, which is what one subscriber gets. Enough for
    /// the users behind one NAT gateway, and a hundredth of all.
    pub connections_per_source: usize,
    /// Requests of one source at the same time, tunnels (upgraded connections) included. The default is twice what its
    /// connections could have with HTTP/1.1; with HTTP/2 they could have 128,000, and each takes memory of an endpoint.
    pub requests_per_source: usize,
    /// From accepting a connection until its first request: PROXY protocol, TLS handshake, and the first octet. A
    /// handshake takes three round trips, so even a client behind a satellite needs less than 3 s.
    pub handshake: Duration,
    /// From the first octet of a request's head until its last. A head is a few packets; a client that needs longer
    /// wants to hold a connection.
    pub head: Duration,
    /// How long a connection without requests stays open. Longer than browsers and common load balancers wait (60 s),
    /// so that the client closes first and no request meets a closing connection.
    pub idle: Duration,
    /// The longest time between two reads of a request's body while the endpoint has not replied yet.
    pub body_stall: Duration,
    /// How long the proxy waits for the endpoint's `100 Continue` before it reads the body of a request with
    /// `Expect: 100-continue` anyway. Clients need not wait forever either (RFC 9110, 10.1.1), and HTTP/1.0 endpoints
    /// send no interim responses.
    pub expectation: Duration,
    /// How long a client may take no octet of its responses. The same as nginx's default.
    pub reader_stall: Duration,
    /// The longest head of a request; of HTTP/2, after decompression. Cookies and tokens reach 16 KiB in practice.
    pub head_bytes: usize,
    /// Headers of a request. Up to 100 are parsed without an allocation.
    pub headers: usize,
    /// Path and query. Above what browsers send (8 KiB is what servers accept in practice).
    pub uri_bytes: usize,
    /// Responses of endpoints have larger heads: many cookies, or a policy.
    pub response_head_bytes: usize,
    /// Requests at the same time on one connection of HTTP/2. RFC 9113 advises at least 100.
    pub streams: u32,
    /// Streams that a client has reset and that still run (CVE-2023-44487).
    pub pending_resets: usize,
    /// Streams that the proxy had to reset because of the client's mistakes (CVE-2025-8671).
    pub provoked_resets: usize,
    /// How many more streams a client may reset than it lets finish, over the life of a connection. Resets make an
    /// endpoint work for nothing even at a low rate. Browsers cancel a few of a hundred.
    pub resets: u32,
    /// Octets of response bodies that one stream of HTTP/2 buffers, at most a quarter of what its connection may.
    pub stream_buffer: usize,
    /// Octets that a client may send before the endpoint has taken them: the window of a stream. Multiplied by the
    /// time of a round trip, it bounds the speed of an upload: 1 MiB/s at 250 ms.
    pub stream_window: u32,
    /// Octets that one connection of HTTP/2 has buffered in each direction: the window for bodies of requests, and
    /// what the client has not taken of its responses.
    pub connection_buffer: u32,
    /// The sum of `connection_buffer` of one source. Connections beyond it get 64 KiB, the least that HTTP/2 allows.
    pub source_buffer: usize,
    /// Responses that one worker compresses at the same time. Each takes up to half a MiB as long as it lasts, and a
    /// client decides how long that is. Further ones are sent as they are.
    pub compressions: usize,
    /// How many of these may be for one source.
    pub compressions_per_source: usize,
    /// Octets that copies of requests for other servers take in one worker: `head_bytes` each, and their bodies.
    pub mirrored_bytes: usize,
    /// How many of these may be for the Ingresses of one namespace.
    pub mirrored_bytes_per_namespace: usize,
    /// The largest body that is copied: what a route accepts without an annotation.
    pub mirrored_body: usize,
    /// How long a server may take to respond to a copy, beginning when the request is complete. Longer than clients of
    /// a healthy service wait, so that only the copies are lost that tell nothing.
    pub mirrored_time: Duration,
    /// Unused connections to one endpoint that a worker keeps.
    pub idle_upstreams: usize,
    /// How long an unused connection to an endpoint is kept. Shorter than servers keep theirs: Node.js closes after
    /// 5 s, most others after 60 s or more. A connection that the endpoint closes meanwhile is noticed.
    pub upstream_idle: Duration,
    /// Requests at the same time on one HTTP/2 connection to an endpoint, if that takes so many; then another one is
    /// opened.
    pub upstream_streams: usize,
    /// HTTP/2 connections of a worker to one endpoint. Further requests wait.
    pub upstream_connections: usize,
    /// Octets of a response that an HTTP/2 endpoint may send before the client has taken them. The connection's window
    /// is this times `upstream_streams`, so that clients that take nothing keep no other request waiting.
    pub upstream_window: u32,
    /// Octets that an endpoint may send before the body of its response: the head, and interim responses (1xx), which a
    /// hostile endpoint could send without end.
    pub interim_bytes: u64,
    /// Between the beginnings of two fetches of an issuer's keys: tokens that name unknown ones cause fetches, and a new
    /// key should not have to wait for long.
    pub key_fetch_interval: Duration,
    /// From the connection to an issuer to the last octet of its response. Clients wait for it.
    pub issuer_response: Duration,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self {
            connections: 100_000,
            connections_per_source: 1_000,
            requests_per_source: 2_000,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            idle: Duration::from_secs(75),
            body_stall: Duration::from_secs(60),
            expectation: Duration::from_secs(1),
            reader_stall: Duration::from_secs(60),
            head_bytes: 32 << 10,
            headers: 100,
            uri_bytes: 16 << 10,
            response_head_bytes: 64 << 10,
            streams: 128,
            pending_resets: 20,
            provoked_resets: 64,
            resets: 200,
            stream_buffer: 64 << 10,
            stream_window: 256 << 10,
            connection_buffer: 512 << 10,
            source_buffer: 64 << 20,
            compressions: 128,
            compressions_per_source: 32,
            mirrored_bytes: 16 << 20,
            mirrored_bytes_per_namespace: 4 << 20,
            mirrored_body: 1 << 20,
            mirrored_time: Duration::from_secs(10),
            idle_upstreams: 128,
            upstream_idle: Duration::from_secs(50),
            upstream_streams: 100,
            upstream_connections: 64,
            upstream_window: 64 << 10,
            interim_bytes: 256 << 10,
            key_fetch_interval: Duration::from_secs(10),
            issuer_response: Duration::from_secs(5),
        }
    }
}
