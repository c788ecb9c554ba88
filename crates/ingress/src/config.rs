//! What the Ingress process is configured with.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::time::Duration;

use lb_http::trace::SamplingRatio;
use lb_otlp::CollectorSettings;
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
    /// Without its listeners, its access log and traces.
    pub proxy: lb_proxy::ProxySettings,
    pub access_log: AccessLogFormat,
    /// `None`: no request is traced.
    pub tracing: Option<TracingOptions>,
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

/// Which requests are traced, and where their spans go.
#[derive(Clone, Debug)]
pub struct TracingOptions {
    pub collector: CollectorSettings,
    pub service_name: String,
    /// Whether requests of Ingresses are traced that say nothing about it.
    pub by_default: bool,
    pub ratio: SamplingRatio,
    pub most_per_second: u32,
}
