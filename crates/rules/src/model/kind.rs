//! The kinds of objects that the agent and the Ingress controller read.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Service,
    EndpointSlice,
    Endpoints,
    Node,
    Ingress,
    IngressClass,
    Secret,
    Namespace,
    AddressPool,
    IpAddressPool,
    L2Advertisement,
    BgpPeer,
    MetallbBgpPeer,
    BgpAdvertisement,
    Community,
    BfdProfile,
}

impl Kind {
    /// The last two are for the Ingress controller only.
    pub const ALL: [Self; 16] = [
        Self::Service,
        Self::EndpointSlice,
        Self::Endpoints,
        Self::Node,
        Self::Secret,
        Self::Namespace,
        Self::AddressPool,
        Self::IpAddressPool,
        Self::L2Advertisement,
        Self::BgpPeer,
        Self::MetallbBgpPeer,
        Self::BgpAdvertisement,
        Self::Community,
        Self::BfdProfile,
        Self::Ingress,
        Self::IngressClass,
    ];
    /// Those that the agent reads. From a cluster it does not read all of them.
    pub const OF_AGENT: &'static [Self] = Self::ALL.split_at(Self::ALL.len() - 2).0;
    /// Those that the controller of addresses reads.
    pub const OF_CONTROLLER: [Self; 7] = [
        Self::Service,
        Self::EndpointSlice,
        Self::Node,
        Self::Namespace,
        Self::AddressPool,
        Self::IpAddressPool,
        Self::L2Advertisement,
    ];
    /// Those that define pools of addresses.
    pub const OF_POOLS: [Self; 3] = [Self::AddressPool, Self::IpAddressPool, Self::L2Advertisement];
    /// Those that say which routers learn addresses by BGP, and how.
    pub const OF_BGP: [Self; 5] = [
        Self::BgpPeer,
        Self::MetallbBgpPeer,
        Self::BgpAdvertisement,
        Self::Community,
        Self::BfdProfile,
    ];
    /// Those that the Ingress controller reads.
    pub const OF_INGRESS: [Self; 6] = [
        Self::Service,
        Self::EndpointSlice,
        Self::Node,
        Self::Ingress,
        Self::IngressClass,
        Self::Secret,
    ];

    /// API version, name, and the plural in paths.
    fn names(self) -> (&'static str, &'static str, &'static str) {
        const METALLB: &str = "metallb.io/v1beta1";
        const INGRESS: &str = "networking.k8s.io/v1";
        const OWN: &str = "millrace.io/v1alpha1";
        match self {
            Self::Service => ("v1", "Service", "services"),
            Self::EndpointSlice => ("discovery.k8s.io/v1", "EndpointSlice", "endpointslices"),
            Self::Endpoints => ("v1", "Endpoints", "endpoints"),
            Self::Node => ("v1", "Node", "nodes"),
            Self::Secret => ("v1", "Secret", "secrets"),
            Self::Namespace => ("v1", "Namespace", "namespaces"),
            Self::AddressPool => (OWN, "AddressPool", "addresspools"),
            Self::IpAddressPool => (METALLB, "IPAddressPool", "ipaddresspools"),
            Self::L2Advertisement => (METALLB, "L2Advertisement", "l2advertisements"),
            Self::BgpPeer => (OWN, "BGPPeer", "bgppeers"),
            Self::MetallbBgpPeer => ("metallb.io/v1beta2", "BGPPeer", "bgppeers"),
            Self::BgpAdvertisement => (METALLB, "BGPAdvertisement", "bgpadvertisements"),
            Self::Community => (METALLB, "Community", "communities"),
            Self::BfdProfile => (METALLB, "BFDProfile", "bfdprofiles"),
            Self::Ingress => (INGRESS, "Ingress", "ingresses"),
            Self::IngressClass => (INGRESS, "IngressClass", "ingressclasses"),
        }
    }

    pub fn api_version(self) -> &'static str {
        self.names().0
    }

    pub fn name(self) -> &'static str {
        self.names().1
    }

    /// The API path of all objects of the kind, in all namespaces.
    pub fn path(self) -> String {
        let (version, _, plural) = self.names();
        let root = if version.contains('/') { "apis" } else { "api" };
        format!("/{root}/{version}/{plural}")
    }

    pub fn is_namespaced(self) -> bool {
        !matches!(
            self,
            Self::Node | Self::IngressClass | Self::Namespace | Self::AddressPool | Self::BgpPeer
        )
    }

    /// Whether the kind is MetalLB's: only objects in its namespace count.
    pub fn is_of_metallb(self) -> bool {
        self.api_version().starts_with("metallb.io/")
    }

    /// Whether a cluster may lack the kind, because it is installed separately.
    pub fn is_optional(self) -> bool {
        Self::OF_POOLS.contains(&self) || Self::OF_BGP.contains(&self)
    }

    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        let same = |known: &Self| known.name() == kind && known.api_version() == api_version;
        Self::ALL.into_iter().find(same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_reads_all_kinds_but_those_of_ingress() {
        let ingress = [Kind::Ingress, Kind::IngressClass];
        assert!(
            Kind::ALL.iter().all(|kind| Kind::OF_AGENT.contains(kind) != ingress.contains(kind))
        );
    }

    #[test]
    fn paths_contain_group_version_and_plural() {
        assert_eq!(Kind::Service.path(), "/api/v1/services");
        assert_eq!(Kind::EndpointSlice.path(), "/apis/discovery.k8s.io/v1/endpointslices");
        assert_eq!(Kind::MetallbBgpPeer.path(), "/apis/metallb.io/v1beta2/bgppeers");
    }
}
