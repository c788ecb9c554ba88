//! Which cluster IPs and external IPs of Services a peer gets, and how. Pure.
//!
//! Invariant: an external IP is advertised only within networks that the peer's object names: whoever may write
//! Services could otherwise have routers send the packets to any address here.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use lb_bgp::Communities;
use lb_bgp::table::{AdvertisedPeers, Advertisement};
use lb_common::layout::FrontendKind;
use lb_rules::ipam::{Labels, Selector, any_selects};
use lb_rules::kinds::PeerServiceAdvertisement;
use lb_rules::model::{ServiceName, TrafficPolicy, is_advertising_label};

/// One of `spec.serviceAdvertisements` of a BGPPeer.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceAdvertisement {
    has_cluster_ips: bool,
    external_ips: Vec<IpNet>,
    /// Empty: all.
    namespaces: BTreeSet<String>,
    services: Vec<Selector>,
    /// For addresses that every node serves.
    shared: Arc<Advertisement>,
    /// With the policy Local. A shorter prefix would bring packets for addresses that this node does not serve.
    exact: Arc<Advertisement>,
}

/// A field below that of the advertisement, and what is wrong with it.
pub(crate) type AdvertisementProblem = (String, String);

impl ServiceAdvertisement {
    /// `peer`: the only one that gets the addresses. What can't be read advertises nothing.
    pub fn read(peer: &str, spec: &PeerServiceAdvertisement) -> (Self, Vec<AdvertisementProblem>) {
        let default = Advertisement::default();
        let ipv4_length = spec.ipv4_prefix_length.unwrap_or(default.ipv4_length);
        let ipv6_length = spec.ipv6_prefix_length.unwrap_or(default.ipv6_length);
        let mut problems = Vec::new();
        let mut external_ips = Vec::new();
        for (index, text) in spec.external_ips.iter().enumerate() {
            let network =
                text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
            let length = |network: &IpNet| match network {
                IpNet::V4(_) => ipv4_length,
                IpNet::V6(_) => ipv6_length,
            };
            let problem = match network {
                // The prefix would bring packets for addresses outside of the network.
                Ok(network) if network.prefix_len() > length(&network) => format!(
                    "{text:?} is longer than the advertised prefix length {}; not advertised",
                    length(&network)
                ),
                Ok(network) => {
                    external_ips.push(network.trunc());
                    continue;
                }
                Err(_) => {
                    format!("{text:?} is not a network such as 203.0.113.0/24; not advertised")
                }
            };
            problems.push((format!("externalIPs[{index}]"), problem));
        }
        let mut services = Vec::new();
        if let Some(selector) = &spec.service_selector {
            let field = "serviceSelector".to_owned();
            let (read, problem) = Selector::read(selector);
            problems.extend(problem.map(|problem| (field.clone(), problem)));
            // Agents hold no other labels of Services.
            let unheld = read.labels().find(|label| !is_advertising_label(label));
            match unheld.map(str::to_owned) {
                None => services.push(read),
                Some(label) => {
                    let message = format!(
                        "the label {label:?} does not begin with millrace.io/: nothing is selected"
                    );
                    problems.push((field, message));
                    services.push(Selector::nothing());
                }
            }
        }
        let mut communities = Communities::default();
        for (index, text) in spec.communities.iter().enumerate() {
            if let Err(error) = communities.add(text) {
                let message = format!("{error}: nothing is advertised");
                problems.push((format!("communities[{index}]"), message));
                // It may have been no-export.
                services = vec![Selector::nothing()];
            }
        }
        let exact = Advertisement {
            local_preference: spec.local_preference,
            communities,
            peers: AdvertisedPeers::Named(BTreeSet::from([peer.to_owned()])),
            ..default
        };
        let shared = Advertisement { ipv4_length, ipv6_length, ..exact.clone() };
        let read = Self {
            has_cluster_ips: spec.cluster_ips,
            external_ips,
            namespaces: spec.namespaces.iter().cloned().collect(),
            services,
            shared: Arc::new(shared),
            exact: Arc::new(exact),
        };
        (read, problems)
    }

    pub(crate) fn selects_service(&self, service: &ServiceName, labels: &Labels) -> bool {
        (self.namespaces.is_empty() || self.namespaces.contains(&service.namespace))
            && any_selects(&self.services, labels)
    }

    /// Whether addresses of this kind are advertised, if the Service is selected.
    pub(crate) fn admits_address(&self, kind: FrontendKind, address: IpAddr) -> bool {
        match kind {
            FrontendKind::ClusterIp => self.has_cluster_ips,
            FrontendKind::ExternalIp => {
                self.external_ips.iter().any(|network| network.contains(&address))
            }
            FrontendKind::LoadBalancer | FrontendKind::NodePort | FrontendKind::NodeAddress => {
                false
            }
        }
    }

    pub(crate) fn by_policy(&self, policy: TrafficPolicy) -> &Arc<Advertisement> {
        match policy {
            TrafficPolicy::Cluster => &self.shared,
            TrafficPolicy::Local => &self.exact,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(spec: Value) -> (ServiceAdvertisement, Vec<String>) {
        let (read, problems) =
            ServiceAdvertisement::read("tor", &serde_json::from_value(spec).unwrap());
        (read, problems.into_iter().map(|(field, message)| format!("{field}: {message}")).collect())
    }

    #[test]
    fn what_cannot_be_read_advertises_nothing() {
        let address = IpAddr::from([203, 0, 113, 1]);
        let service = ServiceName::new("shop", "web");
        for (spec, problem) in [
            (json!({"externalIPs": ["all"]}), "externalIPs[0]: \"all\" is not a network"),
            (
                json!({"externalIPs": ["203.0.113.0/24"], "serviceSelector": {"matchLabels": {"app": "web"}}}),
                "serviceSelector: the label \"app\" does not begin with millrace.io/",
            ),
            (
                json!({"externalIPs": ["203.0.113.0/24"], "serviceSelector": {
                    "matchExpressions": [{"key": "millrace.io/a", "operator": "Near"}]}}),
                "serviceSelector: the operator \"Near\"",
            ),
            (
                json!({"externalIPs": ["203.0.113.0/24"], "communities": ["no-export", "none"],
                    "serviceSelector": {"matchLabels": {"millrace.io/a": "b"}}}),
                "communities[1]: ",
            ),
            (
                json!({"externalIPs": ["203.0.113.0/24"], "ipv4PrefixLength": 16}),
                "externalIPs[0]: \"203.0.113.0/24\" is longer than the advertised prefix length 16",
            ),
        ] {
            let (read, problems) = read(spec);
            assert!(problems.len() == 1 && problems[0].starts_with(problem), "{problems:?}");
            let labels = [("app", "web"), ("millrace.io/a", "b")];
            let labels =
                Labels::from(labels.map(|(key, value)| (key.to_owned(), value.to_owned())));
            let is_advertised = read.selects_service(&service, &labels)
                && read.admits_address(FrontendKind::ExternalIp, address);
            assert!(!is_advertised, "{problem}");
        }
    }

    #[test]
    fn nothing_is_advertised_that_is_not_named() {
        let (read, problems) = read(json!({}));
        assert!(problems.is_empty());
        for kind in [FrontendKind::ClusterIp, FrontendKind::ExternalIp, FrontendKind::LoadBalancer]
        {
            assert!(!read.admits_address(kind, IpAddr::from([203, 0, 113, 1])), "{kind:?}");
        }
    }
}
