//! A pool of addresses, whichever object or setting it comes from.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt::{self, Display};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::advertisement::Advertised;
use super::announcement::{Announcement, AnnouncementScope};
use super::lending_nodes::LendingNodes;
use super::problems::{Problems, is_unset};
use super::range::{Range, ends_in_0_or_255};
use super::selector::{Labels, Selector, any_selects};
use crate::kinds::{AddressPool, IPAddressPool, L2Advertisement};
use crate::model::{AddressFamily, Kind, ObjectRef};

/// The setting that is a pool of its own.
pub const SETTING: &str = "load-balancer-addresses";

/// Of L2Advertisements: weights of nodes.
const PREFERRED_NODES: &str = "preferredNodeSelectors";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolName {
    Object(ObjectRef),
    Setting,
}

impl PoolName {
    /// What an annotation calls it.
    pub fn name(&self) -> &str {
        match self {
            Self::Object(reference) => &reference.name,
            Self::Setting => SETTING,
        }
    }

    /// For labels of metrics: with the namespace, if it has one.
    pub fn label(&self) -> String {
        match self {
            Self::Object(reference) if !reference.namespace.is_empty() => {
                format!("{}/{}", reference.namespace, reference.name)
            }
            _ => self.name().to_owned(),
        }
    }
}

impl Display for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(reference) => reference.fmt(f),
            Self::Setting => write!(f, "the setting {SETTING}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct IpamPool {
    pub name: PoolName,
    /// Decides which one has an address that several contain. `None`, as of settings and files: the oldest.
    pub created: Option<String>,
    pub labels: Labels,
    /// Valid ranges.
    pub ranges: Vec<Range>,
    /// The nodes for whose addresses it stands. Then it has no ranges.
    pub nodes: Option<LendingNodes>,
    pub auto_assign: bool,
    pub avoid_buggy: bool,
    pub priority: i64,
    /// A Service must match one of them; empty: all.
    pub services: Vec<Selector>,
    pub namespaces: NamespaceSelection,
    pub announcement: Option<Announcement>,
    /// To BGP peers; empty: not at all.
    pub advertised: Vec<Advertised>,
}

/// Names and selectors of namespaces; if both are empty, all namespaces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamespaceSelection {
    pub names: BTreeSet<String>,
    pub selectors: Vec<Selector>,
}

impl NamespaceSelection {
    fn is_any(&self) -> bool {
        self.names.is_empty() && self.selectors.is_empty()
    }

    fn includes(&self, name: &str, labels: &Labels) -> bool {
        self.is_any()
            || self.names.contains(name)
            || self.selectors.iter().any(|selector| selector.selects(labels))
    }
}

/// A pool, and what can't be read in its object: field and message.
pub(crate) type ReadPool = (IpamPool, Vec<(String, String)>);

impl IpamPool {
    pub(crate) fn of_setting(ranges: &[Range]) -> Self {
        Self {
            name: PoolName::Setting,
            created: None,
            labels: Labels::new(),
            ranges: ranges.to_vec(),
            nodes: None,
            auto_assign: true,
            avoid_buggy: false,
            priority: 0,
            services: Vec::new(),
            namespaces: NamespaceSelection::default(),
            announcement: Some(Announcement::everywhere().clone()),
            advertised: Advertised::everywhere().to_vec(),
        }
    }

    pub(crate) fn of_address_pool(object: &AddressPool) -> ReadPool {
        let spec = &object.spec;
        let mut problems = Problems::default();
        let services = problems.selectors("spec.serviceSelector", spec.service_selector.iter());
        let namespaces =
            problems.selectors("spec.namespaceSelector", spec.namespace_selector.iter());
        let mut scopes: Vec<AnnouncementScope> = Vec::new();
        for (index, announcement) in spec.announcements.iter().enumerate() {
            let field = format!("spec.announcements[{index}]");
            scopes.push(problems.scope(
                (&format!("{field}.nodeSelector"), announcement.node_selector.iter()),
                (&format!("{field}.interfaces"), &announcement.interfaces),
            ));
        }
        if scopes.is_empty() {
            scopes.push(AnnouncementScope::default());
        }
        let mut advertised: Vec<Advertised> = Vec::new();
        for (index, advertisement) in spec.advertisements.iter().enumerate() {
            let field = format!("spec.advertisements[{index}]");
            advertised.push(Advertised::read(advertisement, &field, &mut problems));
        }
        if advertised.is_empty() {
            advertised = Advertised::everywhere().to_vec();
        }
        if !spec.advertise {
            advertised.clear();
        }
        let ranges = problems.ranges(&spec.addresses);
        let (ranges, nodes) = match &spec.nodes {
            Some(nodes) => {
                // What can't be read limits, too.
                let limits = (!spec.addresses.is_empty()).then_some(ranges);
                (Vec::new(), Some(LendingNodes::read(nodes, limits, &mut problems)))
            }
            None => (ranges, None),
        };
        if spec.addresses.is_empty() && nodes.is_none() {
            let message = "is empty, and there is no spec.nodes: the pool has no address";
            problems.add("spec.addresses", message.to_owned());
        }
        let pool = Self {
            name: PoolName::Object(ObjectRef::new(
                Kind::AddressPool,
                None,
                object.metadata.name.as_deref(),
            )),
            created: created(&object.metadata),
            labels: object.metadata.labels.clone().unwrap_or_default(),
            ranges,
            nodes,
            auto_assign: spec.auto_assign,
            avoid_buggy: spec.avoid_buggy_ips,
            priority: spec.priority.into(),
            services,
            namespaces: NamespaceSelection { names: BTreeSet::new(), selectors: namespaces },
            announcement: spec.announce.then_some(Announcement { scopes }),
            advertised,
        };
        (pool, problems.into_list())
    }

    /// Without its announcement and advertisements, which other objects define.
    pub fn of_metallb(object: &IPAddressPool) -> ReadPool {
        let spec = &object.spec;
        let mut problems = Problems::default();
        let allocation = spec.service_allocation.clone().unwrap_or_default();
        let field = "spec.serviceAllocation";
        let priority = match allocation.priority {
            None | Some(0) => 0,
            // Before all other pools.
            Some(priority) => (i64::from(i32::MAX) + 1).saturating_sub(priority).max(1),
        };
        let metadata = &object.metadata;
        let mut services = problems
            .selectors(&format!("{field}.serviceSelectors"), allocation.service_selectors.iter());
        let is_understood =
            problems.understands("spec", &spec.unknown, "no Service gets addresses of the pool")
                & problems.understands(
                    field,
                    &allocation.unknown,
                    "no Service gets addresses of the pool",
                );
        if !is_understood {
            services = vec![Selector::nothing()];
        }
        let pool = Self {
            name: PoolName::Object(ObjectRef::new(
                Kind::IpAddressPool,
                metadata.namespace.as_deref(),
                metadata.name.as_deref(),
            )),
            created: created(metadata),
            labels: metadata.labels.clone().unwrap_or_default(),
            ranges: problems.ranges(&spec.addresses),
            nodes: None,
            auto_assign: spec.auto_assign,
            avoid_buggy: spec.avoid_buggy_ips,
            priority,
            services,
            namespaces: NamespaceSelection {
                names: allocation.namespaces.iter().cloned().collect(),
                selectors: problems.selectors(
                    &format!("{field}.namespaceSelectors"),
                    allocation.namespace_selectors.iter(),
                ),
            },
            announcement: None,
            advertised: Vec::new(),
        };
        (pool, problems.into_list())
    }

    /// Pools are tried in the order of this.
    pub fn order(&self) -> impl Ord + '_ {
        let is_for_all = self.services.is_empty() && self.namespaces.is_any();
        (Reverse(self.priority), is_for_all, self.name.name(), &self.name)
    }

    /// Whether a Service may have its addresses.
    pub fn admits(&self, namespace: &str, namespace_labels: &Labels, labels: &Labels) -> bool {
        self.namespaces.includes(namespace, namespace_labels) && any_selects(&self.services, labels)
    }

    pub fn contains(&self, number: u128) -> bool {
        !self.excludes(number) && self.ranges.iter().any(|range| range.contains(number))
    }

    /// Whether its range contains the address, but it does not assign it.
    pub fn excludes(&self, number: u128) -> bool {
        self.avoid_buggy && ends_in_0_or_255(number)
    }

    pub(crate) fn has_family(&self, family: AddressFamily) -> bool {
        self.ranges.iter().any(|range| range.family() == family)
    }

    /// The number of addresses that it can assign.
    pub fn size(&self, family: AddressFamily) -> u128 {
        let ranges = self.ranges.iter().filter(|range| range.family() == family);
        ranges.map(|range| range.size(self.avoid_buggy)).sum()
    }
}

fn created(metadata: &ObjectMeta) -> Option<String> {
    metadata.creation_timestamp.as_ref().map(|time| time.0.to_string())
}

/// An L2Advertisement.
#[derive(Clone, Debug, PartialEq)]
pub struct Advertisement {
    namespace: String,
    pools: BTreeSet<String>,
    pool_selectors: Vec<Selector>,
    scope: AnnouncementScope,
    /// Otherwise it may be meant to announce less.
    is_understood: bool,
}

impl Advertisement {
    pub fn read(object: &L2Advertisement) -> (Self, Vec<(String, String)>) {
        let spec = &object.spec;
        let mut problems = Problems::default();
        let scope = AnnouncementScope {
            includes_routed: true,
            services: problems.selectors("spec.serviceSelectors", spec.service_selectors.iter()),
            ..problems.scope(
                ("spec.nodeSelectors", spec.node_selectors.iter()),
                ("spec.interfaces", &spec.interfaces),
            )
        };
        let mut unknown = spec.unknown.clone();
        // It orders nodes, and excludes none.
        if unknown.remove(PREFERRED_NODES).is_some_and(|value| !is_unset(&value)) {
            let message = "is not supported: all selected nodes are equal; \
                           see nodeSelectors, or cordon and exclude nodes";
            problems.add(&format!("spec.{PREFERRED_NODES}"), message.to_owned());
        }
        let is_understood = problems.understands("spec", &unknown, "nothing is announced by it");
        let selectors = spec.ip_address_pool_selectors.iter();
        let read = Self {
            namespace: object.metadata.namespace.clone().unwrap_or_default(),
            pools: spec.ip_address_pools.iter().cloned().collect(),
            pool_selectors: problems.selectors("spec.ipAddressPoolSelectors", selectors),
            scope,
            is_understood,
        };
        (read, problems.into_list())
    }

    /// Whether it concerns a pool of MetalLB.
    fn concerns(&self, pool: &ObjectRef, labels: &Labels) -> bool {
        let concerns_all = self.pools.is_empty() && self.pool_selectors.is_empty();
        self.is_understood
            && pool.namespace == self.namespace
            && (concerns_all
                || self.pools.contains(&pool.name)
                || self.pool_selectors.iter().any(|selector| selector.selects(labels)))
    }

    /// Where the addresses of a pool of MetalLB are announced; `None`: nowhere.
    pub fn of_pool<'a>(
        all: impl Iterator<Item = &'a Self>,
        pool: &IpamPool,
    ) -> Option<Announcement> {
        let PoolName::Object(name) = &pool.name else { return None };
        let concerned = all.filter(|advertisement| advertisement.concerns(name, &pool.labels));
        let scopes: Vec<AnnouncementScope> =
            concerned.map(|advertisement| advertisement.scope.clone()).collect();
        (!scopes.is_empty()).then_some(Announcement { scopes })
    }
}
