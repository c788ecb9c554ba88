//! All pools: of AddressPools, of MetalLB's kinds, and of the setting.
//!
//! Invariant: an address belongs to at most one pool. Of two whose ranges overlap, the older one has both addresses and
//! announcement; the range of the other one is not used, and a problem of its object.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use lb_bgp::table::AdvertisedPeers;

use super::advertisement::Advertised;
use super::lending_nodes::list_api_servers;
use super::metallb_advertisement::MetallbAdvertisement;
use super::pool::{Advertisement, IpamPool, PoolName};
use super::range::{Range, address_to_number};
use super::selector::Labels;
use crate::model::{AddressFamily, LentPool, LentPorts, Node, Object, ObjectRef, Problem, Slice};

/// Identifies a pool until the pools change.
pub(crate) type PoolIndex = usize;

#[derive(Debug, Default)]
pub struct Pools {
    setting: Option<IpamPool>,
    objects: BTreeMap<ObjectRef, (IpamPool, Vec<Problem>)>,
    advertisements: BTreeMap<ObjectRef, (Advertisement, Vec<Problem>)>,
    bgp_advertisements: BTreeMap<ObjectRef, (MetallbAdvertisement, Vec<Problem>)>,
    /// Names of communities.
    communities: BTreeMap<ObjectRef, BTreeMap<String, String>>,
    /// In the order in which they are tried, with the ranges that are theirs.
    pools: Vec<IpamPool>,
    /// Sorted; none overlaps another.
    ranges: Vec<(Range, PoolIndex)>,
    problems: BTreeMap<ObjectRef, Vec<Problem>>,
}

impl Pools {
    /// `ranges`: those of the setting.
    pub fn new(ranges: &[Range]) -> Self {
        let setting = (!ranges.is_empty()).then(|| IpamPool::of_setting(ranges));
        let mut pools = Self { setting, ..Self::default() };
        pools.arrange();
        pools
    }

    /// Takes in a pool or advertisement. Returns whether anything has changed.
    pub fn apply(&mut self, object: &Object) -> bool {
        let reference = object.reference();
        let described = |problems| described(&reference, problems);
        let is_changed = match object {
            Object::AddressPool(pool) => {
                let (pool, problems) = IpamPool::of_address_pool(pool);
                replace(&mut self.objects, &reference, (pool, described(problems)))
            }
            Object::IpAddressPool(pool) => {
                let (pool, problems) = IpamPool::of_metallb(pool);
                replace(&mut self.objects, &reference, (pool, described(problems)))
            }
            Object::L2Advertisement(advertisement) => {
                let (advertisement, problems) = Advertisement::read(advertisement);
                let read = (advertisement, described(problems));
                replace(&mut self.advertisements, &reference, read)
            }
            Object::BgpAdvertisement(advertisement) => {
                let (advertisement, problems) = MetallbAdvertisement::read(advertisement);
                let read = (advertisement, described(problems));
                replace(&mut self.bgp_advertisements, &reference, read)
            }
            Object::Community(community) => {
                let aliases = community.spec.communities.iter();
                let aliases = aliases.map(|alias| (alias.name.clone(), alias.value.clone()));
                replace(&mut self.communities, &reference, aliases.collect())
            }
            _ => false,
        };
        if is_changed {
            self.arrange();
        }
        is_changed
    }

    /// Returns whether anything has changed.
    pub fn delete(&mut self, reference: &ObjectRef) -> bool {
        let is_changed = self.objects.remove(reference).is_some()
            || self.advertisements.remove(reference).is_some()
            || self.bgp_advertisements.remove(reference).is_some()
            || self.communities.remove(reference).is_some();
        if is_changed {
            self.arrange();
        }
        is_changed
    }

    fn arrange(&mut self) {
        self.problems = self
            .objects
            .iter()
            .map(|(reference, (_, problems))| (reference.clone(), problems.clone()))
            .chain(
                self.advertisements
                    .iter()
                    .map(|(reference, (_, problems))| (reference.clone(), problems.clone())),
            )
            .collect();
        let advertised = self.read_communities();
        let mut pools: Vec<IpamPool> =
            self.objects.values().map(|(pool, _)| pool).chain(&self.setting).cloned().collect();
        self.settle_overlaps(&mut pools);
        for pool in &mut pools {
            let all = self.advertisements.values().map(|(advertisement, _)| advertisement);
            if let Some(announcement) = Advertisement::of_pool(all, pool) {
                pool.announcement = Some(announcement);
            }
            pool.advertised.extend(MetallbAdvertisement::of_pool(&advertised, pool));
        }
        for (reference, (advertisement, _)) in &advertised {
            if !pools.iter().any(|pool| advertisement.concerns(pool)) {
                let message = "no IPAddressPool of this namespace is meant: nothing is advertised";
                self.problems.entry(reference.clone()).or_default().push(Problem {
                    object: reference.to_string(),
                    field: "spec.ipAddressPools".to_owned(),
                    message: message.to_owned(),
                });
            }
        }
        pools.sort_by(|a, b| a.order().cmp(&b.order()));
        let ranges = pools.iter().enumerate();
        self.ranges = ranges
            .flat_map(|(index, pool)| pool.ranges.iter().map(move |range| (*range, index)))
            .collect();
        self.ranges.sort_unstable();
        self.pools = pools;
    }

    /// MetalLB's advertisements with their communities. Names are valid in their namespace.
    fn read_communities(&mut self) -> BTreeMap<ObjectRef, (MetallbAdvertisement, Advertised)> {
        let mut read = BTreeMap::new();
        for (reference, (advertisement, problems)) in &self.bgp_advertisements {
            let of_namespace =
                self.communities.iter().filter(|(of, _)| of.namespace == reference.namespace);
            let aliases = of_namespace
                .flat_map(|(_, aliases)| aliases.clone())
                .collect::<BTreeMap<String, String>>();
            let (advertised, unread) = advertisement.advertised(&aliases);
            let all = problems.iter().cloned().chain(described(reference, unread));
            self.problems.insert(reference.clone(), all.collect());
            read.insert(reference.clone(), (advertisement.clone(), advertised));
        }
        read
    }

    /// Leaves each range to its oldest pool.
    fn settle_overlaps(&mut self, pools: &mut [IpamPool]) {
        pools.sort_by(|a, b| (&a.created, &a.name).cmp(&(&b.created, &b.name)));
        // By first address; none overlaps another.
        let mut taken: BTreeMap<u128, (Range, PoolName)> = BTreeMap::new();
        for pool in pools {
            let name = pool.name.clone();
            let mut problems = Vec::new();
            pool.ranges.retain(|range| {
                let before = taken.range(..=range.last()).next_back();
                let Some((_, (other, owner))) =
                    before.filter(|(_, (other, _))| other.overlaps(range))
                else {
                    taken.insert(range.first(), (*range, name.clone()));
                    return true;
                };
                let message = match *owner == name {
                    true => format!("{range} overlaps {other}: not used"),
                    false => {
                        format!("{range} overlaps {other} of {owner}, which is older: not used")
                    }
                };
                problems.push(message);
                false
            });
            if let PoolName::Object(reference) = &name {
                let described = problems.into_iter().map(|message| Problem {
                    object: reference.to_string(),
                    field: "spec.addresses".to_owned(),
                    message,
                });
                self.problems.entry(reference.clone()).or_default().extend(described);
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// In the order in which they are tried.
    pub fn iter(&self) -> impl Iterator<Item = (PoolIndex, &IpamPool)> {
        self.pools.iter().enumerate()
    }

    pub fn get(&self, index: PoolIndex) -> &IpamPool {
        &self.pools[index]
    }

    /// What a node lends on its own addresses. `slices`: those of the API servers.
    pub fn lent_by<'a>(
        &self,
        node: &Node,
        slices: impl IntoIterator<Item = &'a Slice>,
    ) -> LentPorts {
        let all = self.pools.iter().filter_map(|pool| Some((pool, pool.nodes.as_ref()?)));
        let selecting = all.filter(|(_, nodes)| node.may_lend && nodes.selects(&node.labels));
        let pools = selecting.map(|(pool, nodes)| LentPool {
            name: pool.name.name().to_owned(),
            address_type: nodes.address_type,
            addresses: AddressFamily::ALL
                .iter()
                .filter_map(|family| nodes.address_of(node, *family))
                .collect(),
            ports: nodes.ports.clone(),
        });
        let api_servers = slices.into_iter().flat_map(list_api_servers);
        let own = api_servers.filter(|(address, _)| node.has_address(*address));
        let reserved = own.map(|(_, port)| port).chain(node.kubelet_port).collect();
        LentPorts { pools: pools.collect(), reserved }
    }

    /// What can't be used in each object; of objects without problems, nothing.
    pub fn problems(&self) -> &BTreeMap<ObjectRef, Vec<Problem>> {
        &self.problems
    }

    pub(super) fn index_of(&self, number: u128) -> Option<PoolIndex> {
        let after = self.ranges.partition_point(|(range, _)| range.first() <= number);
        let (range, index) = self.ranges.get(after.checked_sub(1)?)?;
        (range.contains(number) && !self.pools[*index].excludes(number)).then_some(*index)
    }

    /// Advertisements to BGP peers that do not exist.
    pub fn unknown_peers(&self, known: &BTreeSet<String>) -> Vec<Problem> {
        let mut problems = Vec::new();
        for pool in &self.pools {
            let named: BTreeSet<&String> = pool
                .advertised
                .iter()
                .filter_map(|advertised| match &advertised.advertisement.peers {
                    AdvertisedPeers::Named(names) => Some(names),
                    AdvertisedPeers::All => None,
                })
                .flatten()
                .collect();
            problems.extend(named.into_iter().filter(|name| !known.contains(*name)).map(|name| {
                Problem {
                    object: pool.name.to_string(),
                    field: String::new(),
                    message: format!("an advertisement is for the BGPPeer {name}: there is none"),
                }
            }));
        }
        problems
    }

    /// The pool that an address belongs to.
    pub fn pool_of(&self, address: IpAddr) -> Option<&IpamPool> {
        self.index_of(address_to_number(address)).map(|index| self.get(index))
    }

    /// The pool whose range contains an address that it does not assign.
    pub(super) fn excluding(&self, address: IpAddr) -> Option<&PoolName> {
        let number = address_to_number(address);
        let (_, pool) = self.iter().find(|(_, pool)| {
            pool.excludes(number) && pool.ranges.iter().any(|range| range.contains(number))
        })?;
        Some(&pool.name)
    }

    /// Pools that an annotation calls by this name.
    pub(super) fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = PoolIndex> + 'a {
        self.iter().filter(move |(_, pool)| pool.name.name() == name).map(|(index, _)| index)
    }

    /// Pools that a Service gets addresses of without a request.
    pub(super) fn automatic<'a>(
        &'a self,
        namespace: &'a str,
        namespace_labels: &'a Labels,
        labels: &'a Labels,
    ) -> impl Iterator<Item = PoolIndex> + 'a {
        self.iter()
            .filter(move |(_, pool)| {
                pool.auto_assign && pool.admits(namespace, namespace_labels, labels)
            })
            .map(|(index, _)| index)
    }
}

fn described(reference: &ObjectRef, problems: Vec<(String, String)>) -> Vec<Problem> {
    let object = reference.to_string();
    let described = |(field, message)| Problem { object: object.clone(), field, message };
    problems.into_iter().map(described).collect()
}

/// Returns whether it differs from the value before.
fn replace<T: PartialEq>(
    map: &mut BTreeMap<ObjectRef, T>,
    reference: &ObjectRef,
    value: T,
) -> bool {
    if map.get(reference) == Some(&value) {
        return false;
    }
    map.insert(reference.clone(), value);
    true
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::Kind;

    fn apply(pools: &mut Pools, kind: Kind, value: Value) {
        pools.apply(&Object::read(kind, value).unwrap());
    }

    #[test]
    fn advertisements_to_peers_that_do_not_exist_are_problems() {
        let mut pools = Pools::new(&[]);
        let spec =
            json!({"addresses": ["192.0.2.0/24"], "advertisements": [{"peers": ["a", "b"]}, {}]});
        apply(&mut pools, Kind::AddressPool, json!({"metadata": {"name": "public"}, "spec": spec}));
        let unknown = |known: &[&str]| -> Vec<String> {
            let known = known.iter().map(|name| (*name).to_owned()).collect();
            pools.unknown_peers(&known).iter().map(ToString::to_string).collect()
        };
        assert!(unknown(&["a", "b", "c"]).is_empty());
        let found = unknown(&["a"]);
        assert!(found.len() == 1 && found[0].contains("AddressPool public"), "{found:?}");
        assert!(found[0].contains("BGPPeer b"), "{found:?}");
    }

    /// As of another version of MetalLB. What restricts must not be ignored.
    #[test]
    fn objects_with_unknown_fields_are_not_used_and_are_problems() {
        let metadata = |name: &str| json!({"name": name, "namespace": "metallb-system"});
        let of = |advertisements: Value, pool: Value| {
            let mut pools = Pools::new(&[]);
            let mut spec = json!({"addresses": ["192.0.2.0/24"]});
            spec.as_object_mut().unwrap().extend(pool.as_object().unwrap().clone());
            for (kind, spec) in [
                (Kind::IpAddressPool, spec),
                (Kind::L2Advertisement, advertisements.clone()),
                (Kind::BgpAdvertisement, advertisements),
            ] {
                apply(&mut pools, kind, json!({"metadata": metadata("a"), "spec": spec}));
            }
            pools
        };
        let problems = |pools: &Pools| -> Vec<String> {
            pools.problems().values().flatten().map(ToString::to_string).collect()
        };
        let address = "192.0.2.1".parse().unwrap();
        // Fields without a value restrict nothing.
        for unset in
            [json!({}), json!({"later": false}), json!({"later": []}), json!({"later": ""})]
        {
            let pools = of(unset.clone(), json!({}));
            let pool = pools.pool_of(address).unwrap();
            assert!(pool.announcement.is_some() && pool.advertised.len() == 1, "{unset}");
            assert_eq!(problems(&pools), [""; 0], "{unset}");
        }
        let pools = of(json!({"laterSelectors": [{}]}), json!({}));
        let pool = pools.pool_of(address).unwrap();
        assert!(pool.announcement.is_none() && pool.advertised.is_empty());
        let found = problems(&pools);
        for kind in ["L2Advertisement", "BGPAdvertisement"] {
            let expected = format!("{kind} metallb-system/a: spec.laterSelectors: is not known");
            assert!(found.iter().any(|one| one.contains(&expected)), "{found:?}");
        }
        // It orders nodes only.
        let preferred = json!({"preferredNodeSelectors": [{"weight": 1, "preference": {}}]});
        let mut pools = Pools::new(&[]);
        let spec = json!({"addresses": ["192.0.2.0/24"]});
        apply(&mut pools, Kind::IpAddressPool, json!({"metadata": metadata("a"), "spec": spec}));
        apply(
            &mut pools,
            Kind::L2Advertisement,
            json!({"metadata": metadata("a"), "spec": preferred}),
        );
        assert!(pools.pool_of(address).is_some_and(|pool| pool.announcement.is_some()));
        assert!(problems(&pools)[0].contains("spec.preferredNodeSelectors: is not supported"));

        for pool in [json!({"later": true}), json!({"serviceAllocation": {"laterSelectors": [{}]}})]
        {
            let pools = of(json!({}), pool.clone());
            let labels = Labels::new();
            assert!(!pools.pool_of(address).unwrap().admits("default", &labels, &labels), "{pool}");
            assert!(problems(&pools)[0].contains("no Service gets addresses"), "{pool}");
        }
    }

    #[test]
    fn an_advertisement_of_no_pool_is_a_problem() {
        let mut pools = Pools::new(&[]);
        let metadata = |name: &str| json!({"name": name, "namespace": "metallb-system"});
        let advertisement =
            json!({"metadata": metadata("one"), "spec": {"ipAddressPools": ["public"]}});
        apply(&mut pools, Kind::BgpAdvertisement, advertisement);
        let problems = |pools: &Pools| pools.problems().values().flatten().count();
        assert_eq!(problems(&pools), 1);
        let spec = json!({"addresses": ["192.0.2.0/24"]});
        let pool = json!({"metadata": metadata("public"), "spec": spec});
        apply(&mut pools, Kind::IpAddressPool, pool);
        assert_eq!(problems(&pools), 0);
    }
}
