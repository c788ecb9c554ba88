//! Requests and responses: `connection` drives a client's connection, `http1` reads and writes it, `exchange` serves a request, `forward` gets a
//! response from an endpoint.

pub(crate) mod access;
mod compress;
pub(crate) mod connection;
mod deadline;
mod discard;
mod errors;
mod exchange;
mod extended_connect;
mod external_auth;
mod forward;
mod gate;
pub(crate) mod http1;
mod issuer;
mod mirror;
pub(crate) mod outbound;
mod record;
mod reply;
mod response;
mod sign_in;
mod token;
mod trace;
mod upgrade;
