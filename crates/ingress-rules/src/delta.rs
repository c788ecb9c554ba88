//! What a change of objects changes for the proxy.

use std::collections::BTreeMap;
use std::sync::Arc;

use lb_http::{HostPattern, PathPattern, Route, Upstream, UpstreamName};
use lb_proxy::HostTls;
use lb_rules::model::{ObjectRef, Problem, ServiceName};

/// New contents of what has changed.
#[derive(Debug, Default)]
pub struct Delta {
    /// All rules of a host, in the order of precedence: of equal patterns, the first is served. Empty: the host is gone.
    pub hosts: BTreeMap<HostPattern, Vec<(PathPattern, Arc<Route>)>>,
    /// `None`: no rule uses the upstream any more.
    pub upstreams: BTreeMap<UpstreamName, Option<UpstreamTarget>>,
    /// `None`: the host is not served over TLS any more.
    pub tls: BTreeMap<HostPattern, Option<Arc<HostTls>>>,
    /// All problems of an object; empty: its problems are fixed, or it is gone.
    pub problems: BTreeMap<ObjectRef, Vec<Problem>>,
    /// Whether an Ingress is of our class. `false`: it is of another class now, or gone.
    pub ingresses: BTreeMap<ServiceName, bool>,
    /// Whether Ingresses refer to other Secrets than before.
    pub other_secrets: bool,
}

impl Delta {
    pub fn is_empty(&self) -> bool {
        let Self { hosts, upstreams, tls, problems, ingresses, other_secrets } = self;
        hosts.is_empty()
            && upstreams.is_empty()
            && tls.is_empty()
            && problems.is_empty()
            && ingresses.is_empty()
            && !other_secrets
    }
}

/// Where the requests for an upstream go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamTarget {
    Endpoints(Arc<Upstream>),
    /// An ExternalName Service, or an authentication server outside the cluster: to be resolved by DNS.
    Name {
        host: Arc<str>,
        port: u16,
    },
}
