//! Clients and servers for more than single requests.

pub mod crowd;
pub mod upload;
pub mod watcher;
