//! What is recorded about a request.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::time::{Duration, SystemTime};

use super::context::TraceContext;
use crate::route::RouteOwner;

/// A request that ended. It keeps nothing of the client's connection alive, so a queue of these has a known size:
/// [`RequestSpan::octets`].
#[derive(Clone, Debug, PartialEq)]
pub struct RequestSpan {
    /// Of this span.
    pub context: TraceContext,
    /// The span in which the request was sent, by another process.
    pub parent: Option<NonZeroU64>,
    pub state: Option<String>,
    pub name: String,
    pub started: SystemTime,
    pub duration: Duration,
    pub method: String,
    /// The client's, without query.
    pub path: String,
    pub scheme: &'static str,
    /// `Host` or `:authority`.
    pub host: Option<String>,
    pub user_agent: Option<String>,
    /// `1.0`, `1.1` or `2`.
    pub version: &'static str,
    /// The client's address: of the connection, or as a trusted proxy reports it.
    pub client: IpAddr,
    /// The connection's other end.
    pub peer: SocketAddr,
    pub owner: RouteOwner,
    /// The path of the rule.
    pub route: String,
    /// `None`: the client has gone before there was a response.
    pub status: Option<u16>,
    /// Why the proxy replied itself, or the exchange was cut off.
    pub reason: Option<&'static str>,
    /// Octets of the request's body.
    pub received: u64,
    /// Octets of the response's body.
    pub sent: u64,
    /// `None`: the request was not forwarded.
    pub endpoint: Option<EndpointSpan>,
}

impl RequestSpan {
    /// The memory that it takes.
    pub fn octets(&self) -> usize {
        let Self { state, name, method, path, host, user_agent, route, .. } = self;
        let optional = [state, host, user_agent].map(|text| text.as_ref().map_or(0, String::len));
        let always = [name, method, path, route].map(String::len);
        size_of::<Self>() + optional.iter().chain(&always).sum::<usize>()
    }
}

/// The part of a request that endpoints took.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointSpan {
    pub span: NonZeroU64,
    /// From the beginning of the request.
    pub after: Duration,
    /// The one that replied, or was tried last.
    pub address: SocketAddr,
    /// Endpoints that were tried.
    pub tries: u32,
}
