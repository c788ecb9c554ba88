//! The proxy between raw clients and raw endpoints, all in this process and on loopback.

// All of this is tests.
#![allow(clippy::unwrap_used)]

mod attacks;
mod client;
mod endpoint;
mod provider;
mod world;

mod closing;
mod forwarding;
mod http2;
mod http2_attacks;
mod interim;
mod limits;
mod mirrors;
mod policies;
mod proxy_protocol;
mod real_endpoints;
mod replicas;
mod retries;
mod satisfy;
mod shutdown;
mod sign_in;
mod sign_in_attacks;
mod smuggling;
mod snapshots;
mod snippets;
mod sources;
mod tls;
mod tokens;
mod traces;
mod upgrades;
