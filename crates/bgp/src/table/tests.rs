//! Prefixes of Services that come and go.

use proptest::prelude::*;

use super::*;

fn advertisement(change: impl FnOnce(&mut Advertisement)) -> Arc<Advertisement> {
    let mut advertisement = Advertisement::default();
    change(&mut advertisement);
    Arc::new(advertisement)
}

fn announcement(address: &str, advertisements: &[Arc<Advertisement>]) -> AddressAnnouncement {
    let advertisements = advertisements.to_vec();
    AddressAnnouncement { address: address.parse().unwrap(), advertisements, bandwidth: None }
}

fn nets(prefixes: &[&str]) -> BTreeSet<IpNet> {
    prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect()
}

fn announced(table: &AdvertisementTable<u32>, peer: &str) -> BTreeSet<IpNet> {
    table.list_all_routes(peer).into_iter().map(|(prefix, _)| prefix).collect()
}

#[test]
fn policies_ask_for_endpoints() {
    let ready = |anywhere, on_this_node| ReadyEndpoints { anywhere, on_this_node };
    for (policy, ready, announces) in [
        (ExternalTrafficPolicy::Cluster, ready(0, 0), false),
        (ExternalTrafficPolicy::Cluster, ready(2, 0), true),
        (ExternalTrafficPolicy::Local, ready(2, 0), false),
        (ExternalTrafficPolicy::Local, ready(2, 1), true),
    ] {
        assert_eq!(policy.announces(ready), announces, "{policy:?} {ready:?}");
    }
}

#[test]
fn addresses_come_and_go() {
    let mut table = AdvertisementTable::default();
    let all = [Arc::new(Advertisement::default())];
    let both = vec![announcement("203.0.113.1", &all), announcement("2001:db8::1", &all)];
    let prefixes = nets(&["203.0.113.1/32", "2001:db8::1/128"]);
    assert_eq!(table.set_announcements(1, both.clone()), prefixes);
    assert_eq!(table.set_announcements(1, both.clone()), nets(&[]));
    assert_eq!(announced(&table, "a"), prefixes);
    assert_eq!(table.set_announcements(1, both[..1].to_vec()), prefixes, "both may have changed");
    assert_eq!(announced(&table, "a"), nets(&["203.0.113.1/32"]));
    assert_eq!(table.set_announcements(1, vec![]), nets(&["203.0.113.1/32"]));
    let gone = table.list_changes("a", &prefixes);
    assert!(gone.len() == 2 && gone.iter().all(|(_, attributes)| attributes.is_none()));
    assert!(table.prefixes.is_empty() && table.announcements.is_empty());
}

#[test]
fn an_aggregate_stays_until_its_last_address_is_gone() {
    let mut table = AdvertisementTable::default();
    let aggregate = [advertisement(|each| (each.ipv4_length, each.ipv6_length) = (24, 64))];
    let set = |table: &mut AdvertisementTable<u32>, owner: u32, address: &str| {
        table.set_announcements(owner, vec![announcement(address, &aggregate)])
    };
    assert_eq!(set(&mut table, 1, "203.0.113.1"), nets(&["203.0.113.0/24"]));
    assert_eq!(set(&mut table, 2, "203.0.113.255"), nets(&["203.0.113.0/24"]));
    assert_eq!(set(&mut table, 3, "2001:db8::1:0:0:1"), nets(&["2001:db8::/64"]));
    table.set_announcements(1, vec![]);
    assert_eq!(announced(&table, "a"), nets(&["203.0.113.0/24", "2001:db8::/64"]));
    table.set_announcements(2, vec![]);
    assert_eq!(announced(&table, "a"), nets(&["2001:db8::/64"]));
}

#[test]
fn services_that_share_an_address_keep_it() {
    let mut table = AdvertisementTable::default();
    let all = [Arc::new(Advertisement::default())];
    table.set_announcements(1, vec![announcement("203.0.113.1", &all)]);
    table.set_announcements(2, vec![announcement("203.0.113.1", &all)]);
    table.set_announcements(1, vec![]);
    assert_eq!(announced(&table, "a"), nets(&["203.0.113.1/32"]));
}

#[test]
fn each_peer_gets_its_own_advertisements() {
    let mut table = AdvertisementTable::default();
    let named = |peer: &str| AdvertisedPeers::Named([peer.to_owned()].into());
    let advertisements = [
        advertisement(|each| {
            each.peers = named("a");
            each.local_preference = Some(50);
            each.communities.add("65001:1").unwrap();
        }),
        advertisement(|each| {
            each.local_preference = Some(200);
            each.communities.add("65001:2").unwrap();
        }),
        advertisement(|each| (each.peers, each.ipv4_length) = (named("b"), 24)),
    ];
    table.set_announcements(1, vec![announcement("203.0.113.1", &advertisements)]);
    assert_eq!(announced(&table, "a"), nets(&["203.0.113.1/32"]));
    assert_eq!(announced(&table, "b"), nets(&["203.0.113.1/32", "203.0.113.0/24"]));
    let of = |peer: &str| {
        let changes = table.list_changes(peer, &nets(&["203.0.113.1/32"]));
        let attributes = changes[0].1.clone().unwrap();
        let communities = attributes.communities.standard().iter().map(ToString::to_string);
        (attributes.local_preference, communities.collect::<Vec<_>>().join(" "))
    };
    assert_eq!(of("a"), (Some(200), "65001:1 65001:2".into()));
    assert_eq!(of("b"), (Some(200), "65001:2".into()));
    // To a peer without an advertisement it is a withdrawal, which the session omits.
    assert_eq!(table.list_changes("a", &nets(&["203.0.113.0/24"]))[0].1, None);
}

#[test]
fn bandwidths_of_an_aggregate_add_up_by_address() {
    let mut table = AdvertisementTable::default();
    let aggregate = |link_bandwidth| {
        [advertisement(|each| (each.ipv4_length, each.link_bandwidth) = (24, link_bandwidth))]
    };
    for (owner, address, bandwidth) in
        [(1, "203.0.113.1", 10.0), (2, "203.0.113.1", 30.0), (3, "203.0.113.2", 5.0)]
    {
        let bandwidth = Some(bandwidth);
        let announced = announcement(address, &aggregate(true));
        table.set_announcements(owner, vec![AddressAnnouncement { bandwidth, ..announced }]);
    }
    assert_eq!(table.list_all_routes("a")[0].1.as_ref().unwrap().bandwidth, Some(35.0));
    // Only where the advertisement asks for it.
    let announced = announcement("203.0.113.2", &aggregate(false));
    table.set_announcements(3, vec![AddressAnnouncement { bandwidth: Some(5.0), ..announced }]);
    assert_eq!(table.list_all_routes("a")[0].1.as_ref().unwrap().bandwidth, Some(30.0));
}

#[test]
fn communities_of_many_advertisements_are_bounded() {
    let mut table = AdvertisementTable::default();
    let advertisements = [1, 2].map(|number| {
        advertisement(|each| {
            for low in 0..Communities::MOST {
                each.communities.add(&format!("{number}:{low}")).unwrap();
            }
        })
    });
    table.set_announcements(1, vec![announcement("203.0.113.1", &advertisements)]);
    let attributes = table.list_all_routes("a")[0].1.clone().unwrap();
    assert_eq!(attributes.communities.standard().len(), Communities::MOST);
}

fn announcements() -> impl Strategy<Value = Vec<AddressAnnouncement>> {
    let one =
        (0..6_u8, 0..3_usize, prop::option::of(1..3_u8)).prop_map(|(host, kind, bandwidth)| {
            let advertisement = advertisement(|each| {
                each.ipv4_length = [32, 31, 30][kind];
                each.local_preference = (kind == 1).then_some(7);
                each.link_bandwidth = kind != 0;
                if kind == 2 {
                    each.peers = AdvertisedPeers::Named(["a".to_owned()].into());
                }
            });
            let bandwidth = bandwidth.map(f32::from);
            let address = IpAddr::from([203, 0, 113, host]);
            AddressAnnouncement { address, advertisements: vec![advertisement], bandwidth }
        });
    prop::collection::vec(one, 0..3)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    /// A peer that applies the changes has what a new peer gets.
    #[test]
    fn changes_lead_to_the_same_result_as_starting_anew(
        steps in prop::collection::vec((0..4_u32, announcements()), 0..30),
    ) {
        let mut table = AdvertisementTable::default();
        let mut last: BTreeMap<u32, Vec<AddressAnnouncement>> = BTreeMap::new();
        let mut peers = BTreeMap::from([("a", BTreeMap::new()), ("b", BTreeMap::new())]);
        for (owner, announcements) in steps {
            last.insert(owner, announcements.clone());
            let prefixes = table.set_announcements(owner, announcements);
            for (peer, has) in &mut peers {
                for (prefix, attributes) in table.list_changes(peer, &prefixes) {
                    match attributes {
                        Some(attributes) => _ = has.insert(prefix, attributes),
                        None => _ = has.remove(&prefix),
                    }
                }
            }
        }
        let mut anew = AdvertisementTable::default();
        for (owner, announcements) in last.into_iter().rev() {
            anew.set_announcements(owner, announcements);
        }
        for (peer, has) in peers {
            let all = anew.list_all_routes(peer).into_iter();
            let all: BTreeMap<_, _> = all.map(|(prefix, attributes)| (prefix, attributes.unwrap())).collect();
            prop_assert_eq!(has, all);
        }
    }
}
