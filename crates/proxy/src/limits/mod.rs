//! What clients may take: connections, requests and memory in [`sources`], time in [`patience`], passwords in
//! [`verifications`], and what else is costly in [`lb_limits::Shares`].

pub(crate) mod patience;
mod sources;
pub(crate) mod verifications;

pub(crate) use sources::{Permit, SourceRef, Sources};
