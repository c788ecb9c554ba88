//! What the HTTP proxy decides, without I/O: which route a request takes, what happens to its headers, and which
//! endpoint gets it.
//!
//! Invariants:
//! - Pure: no I/O and no clock. Time, random numbers and load are parameters.
//! - It knows nothing about Kubernetes: `lb-userspace` turns objects into rules and upstreams.
//! - Work for a request is bounded by the size of the request, not by the number of routes.

pub mod access;
pub mod admission;
pub mod affinity;
pub mod auth;
mod automaton;
pub mod balance;
pub mod canary;
pub mod compress;
pub mod cookie;
pub mod hash_key;
pub mod headers;
pub mod host;
pub mod jwt;
pub mod mirror;
pub mod oidc;
pub mod path;
pub mod policy;
pub mod proxy_protocol;
pub mod published;
pub mod rate;
mod rejection;
pub mod request;
pub mod respond;
pub mod retry;
pub mod rewrite;
pub mod route;
pub mod snippet;
mod stable_hash;
pub mod table;
pub mod target;
pub mod trace;
mod unique_object;
pub mod upstream;

pub use host::HostPattern;
pub use path::{PathPattern, PathRegex};
pub use policy::RoutePolicy;
pub use rejection::Rejection;
pub use route::{Action, Canary, Route, RouteOwner, RouteRule};
pub use table::IngressTable;
pub use upstream::{Upstream, UpstreamEndpoint, UpstreamName};
