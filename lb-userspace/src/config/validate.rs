//! Conflicts between settings that are valid by themselves.

use lb_network::DeviceSelector;
use lb_rules::model::ExternalIpRule;

use super::declared::Configuration;

/// The setting to change, and why.
pub type Conflict = (&'static str, String);

pub fn find_conflicts(configuration: &Configuration) -> Vec<Conflict> {
    let checks =
        [origins, addresses, devices, external_ips, timeouts, families, ingress, load_balancer];
    checks.into_iter().flat_map(|check| check(configuration)).collect()
}

/// Objects come from manifests or from a cluster, not both.
fn origins(configuration: &Configuration) -> Vec<Conflict> {
    let origin = &configuration.origin;
    if origin.manifests.is_empty() {
        return Vec::new();
    }
    [
        ("kubeconfig", origin.kubeconfig.is_some()),
        ("context", origin.context.is_some()),
        ("api-servers", !origin.api_servers.is_empty()),
    ]
    .into_iter()
    .filter(|(_, is_given)| *is_given)
    .map(|(name, _)| {
        let reason =
            "Services are read from manifests or from a cluster: remove this setting or manifests";
        (name, reason.to_owned())
    })
    .collect()
}

fn addresses(configuration: &Configuration) -> Vec<Conflict> {
    let agent = &configuration.agent;
    let (healthz, metrics) = (agent.healthz_bind_address.0, agent.metrics_bind_address.0);
    match (healthz, metrics) {
        (Some(healthz), Some(metrics))
            if healthz.port() == metrics.port()
                && healthz.port() != 0
                && (healthz.ip() == metrics.ip()
                    || healthz.ip().is_unspecified()
                    || metrics.ip().is_unspecified()) =>
        {
            let reason = "healthz-bind-address uses the same port: choose another";
            vec![("metrics-bind-address", reason.to_owned())]
        }
        _ => Vec::new(),
    }
}

fn devices(configuration: &Configuration) -> Vec<Conflict> {
    let agent = &configuration.agent;
    let mut conflicts = Vec::new();
    if agent.devices.contains(&DeviceSelector::None) {
        let reason = "none is valid for workload-devices only: clients need an interface";
        conflicts.push(("devices", reason.to_owned()));
    }
    if agent.workload_devices.contains(&DeviceSelector::None) && agent.workload_devices.len() > 1 {
        let reason = "none excludes every other value";
        conflicts.push(("workload-devices", reason.to_owned()));
    }
    conflicts
}

fn external_ips(configuration: &Configuration) -> Vec<Conflict> {
    let rules = &configuration.agent.external_ips;
    [("all", ExternalIpRule::All), ("none", ExternalIpRule::None)]
        .into_iter()
        .filter(|(_, rule)| rules.len() > 1 && rules.contains(rule))
        .map(|(name, _)| ("external-ips", format!("{name} excludes every other value")))
        .collect()
}

fn timeouts(configuration: &Configuration) -> Vec<Conflict> {
    let agent = &configuration.agent;
    if agent.udp_stream_timeout >= agent.udp_timeout {
        return Vec::new();
    }
    let reason = format!("must not be shorter than udp-timeout, {} seconds", agent.udp_timeout);
    vec![("udp-stream-timeout", reason)]
}

fn families(configuration: &Configuration) -> Vec<Conflict> {
    let ranges = &configuration.standalone.service_cluster_ip_range;
    let families: Vec<bool> = ranges.iter().map(|range| range.addr().is_ipv6()).collect();
    if matches!(families.as_slice(), [_] | [true, false] | [false, true]) {
        return Vec::new();
    }
    let reason = "takes one range, or one of IPv4 and one of IPv6";
    vec![("service-cluster-ip-range", reason.to_owned())]
}

fn ingress(configuration: &Configuration) -> Vec<Conflict> {
    let ingress = &configuration.ingress;
    let mut conflicts = Vec::new();
    if ingress.publish_service.is_some() && !ingress.status_addresses.is_empty() {
        let reason = "the status has the addresses of publish-service: remove one of the two";
        conflicts.push(("status-addresses", reason.to_owned()));
    }
    let both =
        ingress.http_bind_addresses.iter().find(|at| ingress.https_bind_addresses.contains(at));
    if let Some(address) = both.filter(|address| address.port() != 0) {
        let reason = format!("{address} is a listen address for HTTP, too: choose another");
        conflicts.push(("https-bind-addresses", reason));
    }
    conflicts
}

fn load_balancer(configuration: &Configuration) -> Vec<Conflict> {
    let settings = &configuration.load_balancer;
    let mut conflicts = Vec::new();
    for (index, range) in settings.load_balancer_addresses.iter().enumerate() {
        let earlier = &settings.load_balancer_addresses[..index];
        if let Some(other) = earlier.iter().find(|other| other.overlaps(range)) {
            let reason = format!("{range} overlaps {other}: give each address once");
            conflicts.push(("load-balancer-addresses", reason));
        }
    }
    conflicts
}
