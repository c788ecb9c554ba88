//! Services as backends: their ports, and the endpoints of these.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use lb_http::upstream::UpstreamProtocol;
use lb_http::{Upstream, UpstreamEndpoint};
use lb_rules::model::{
    AddressFamily, Backend, NodeContext, Pool, Problem, Protocol as Transport, ServiceName,
    ServicePortKey, Slice, Weights, view_pool,
};

use super::UpstreamTarget;

/// Why requests can't be forwarded to a port of a Service.
pub(crate) type Unusable = String;

/// A port of a Service.
#[derive(Debug)]
pub struct BackendPort<'a> {
    pub app_protocol: Option<&'a str>,
    /// Host name of an ExternalName Service, and its port.
    external: Option<(&'a str, u16)>,
    /// Name in slices.
    name: &'a str,
    families: Vec<AddressFamily>,
}

/// Looks up a port by its name or number.
pub(crate) fn find_port<'a>(
    service: &'a Service,
    wanted: &str,
) -> Result<BackendPort<'a>, Unusable> {
    let name = ServiceName::of(&service.metadata);
    let spec = service.spec.as_ref().ok_or_else(|| format!("Service {name} has no spec"))?;
    let number: Option<u16> = wanted.parse().ok();
    let same = |port: &&ServicePort| match number {
        Some(number) => port.port == i32::from(number),
        None => port.name.as_deref() == Some(wanted),
    };
    let is_tcp = |port: &&ServicePort| matches!(port.protocol.as_deref(), None | Some("" | "TCP"));
    let port = spec.ports.iter().flatten().filter(is_tcp).find(same);
    if spec.type_.as_deref() == Some("ExternalName") {
        let host = spec.external_name.as_deref().unwrap_or_default();
        // It need not list its ports.
        let number = port.and_then(|port| u16::try_from(port.port).ok()).or(number);
        let number = number.filter(|&number| number != 0);
        let number = number.ok_or_else(|| format!("Service {name} has no port {wanted}"))?;
        if lb_http::host::normalize_host(host).is_err() {
            return Err(format!("externalName {host:?} of Service {name} is no host name"));
        }
        let app_protocol = port.and_then(|port| port.app_protocol.as_deref());
        let external = Some((host, number));
        return Ok(BackendPort { app_protocol, external, name: "", families: Vec::new() });
    }
    let port = port.ok_or_else(|| {
        let known: Vec<String> = spec.ports.iter().flatten().map(described).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        format!("Service {name} has no TCP port {wanted}; it has {known}")
    })?;
    Ok(BackendPort {
        app_protocol: port.app_protocol.as_deref(),
        external: None,
        name: port.name.as_deref().unwrap_or_default(),
        families: families(spec.ip_families.as_deref().unwrap_or_default()),
    })
}

/// The name or number of a Service's first port.
pub(crate) fn first_port(service: &Service) -> Option<Arc<str>> {
    let port = service.spec.as_ref()?.ports.as_ref()?.first()?;
    Some(port.port.to_string().into())
}

fn described(port: &ServicePort) -> String {
    match port.name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => format!("{name} ({})", port.port),
        None => port.port.to_string(),
    }
}

/// The Service's families in its order, then the other ones.
fn families(names: &[String]) -> Vec<AddressFamily> {
    let named = |name: &String| AddressFamily::ALL.into_iter().find(|family| family.name() == name);
    let mut families: Vec<AddressFamily> = names.iter().filter_map(named).collect();
    let missing = AddressFamily::ALL.into_iter().filter(|family| !families.contains(family));
    families.extend(missing.collect::<Vec<_>>());
    families
}

impl BackendPort<'_> {
    pub fn is_external(&self) -> bool {
        self.external.is_some()
    }

    /// The protocol in `appProtocol`.
    pub fn protocol(&self) -> UpstreamProtocol {
        match self.app_protocol.unwrap_or_default() {
            "kubernetes.io/h2c" | "grpc" => UpstreamProtocol::H2c,
            "kubernetes.io/wss" | "https" | "HTTPS" => UpstreamProtocol::Https,
            _ => UpstreamProtocol::Http1,
        }
    }

    /// Pods of a Service with two families have an address in each: only those of the first family with endpoints
    /// are used, so that each pod counts once.
    pub fn backends(
        &self,
        service: &ServiceName,
        slices: &[&Slice],
        weights: &Weights<'_>,
        node: &NodeContext,
        problems: &mut Vec<Problem>,
    ) -> UpstreamTarget {
        if let Some((host, port)) = self.external {
            return UpstreamTarget::Name { host: host.into(), port };
        }
        let mut pools = self.families.iter().map(|&family| {
            let key = ServicePortKey {
                service: service.clone(),
                port: self.name.to_owned(),
                protocol: Transport::Tcp,
                family,
            };
            view_pool(&key, slices, weights, node, problems)
        });
        let first: Pool = pools.next().unwrap_or_default();
        let chosen = if first.serving.is_empty() {
            pools.find(|pool| !pool.serving.is_empty()).unwrap_or(first)
        } else {
            first
        };
        let upstream = Upstream {
            endpoints: chosen.serving.iter().map(endpoint).collect(),
            draining: chosen.draining.iter().map(endpoint).collect(),
        };
        UpstreamTarget::Endpoints(Arc::new(upstream))
    }
}

fn endpoint(backend: &Backend) -> UpstreamEndpoint {
    UpstreamEndpoint { address: (backend.address, backend.port).into(), is_local: backend.local }
}
