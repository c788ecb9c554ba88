//! What the Ingress process is configured with.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::time::Duration;

use lb_source::cluster::Access;

use super::access_log::AccessLogFormat;
use super::listeners::ListenAddresses;
use super::status;

#[derive(Debug)]
pub enum ObjectOrigin {
    Manifests(Vec<PathBuf>),
    Cluster(Access),
}

#[derive(Debug)]
pub struct IngressOptions {
    pub origin: ObjectOrigin,
    /// The Node of this process; `None`: unknown.
    pub node_name: Option<String>,
    /// Only objects of this namespace are watched.
    pub namespace: Option<String>,
    pub model: lb_ingress_rules::IngressRuleSettings,
    /// Without its listeners and its access log.
    pub proxy: lb_proxy::ProxySettings,
    pub access_log: AccessLogFormat,
    pub listeners: ListenAddresses,
    pub session_key_file: Option<PathBuf>,
    /// `None`: the status is not written.
    pub status: Option<status::StatusOptions>,
    pub control_socket: String,
    pub healthz: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    pub shutdown_delay: Duration,
    /// The process that started this one. This one ends when the connection does.
    pub parent: Option<StdStream>,
}
