//! What `millrace check` says about pools of addresses: where this node would announce them, which decides whether
//! clients reach them after a migration from MetalLB.

use std::time::Duration;

use anyhow::{Context, Result};
use lb_kernel::Finding;
use lb_network::AnnouncingLink;
use lb_process::ClientRequests;
use lb_rules::ipam::{IpamPool, Pools, Range};
use lb_rules::model::Object;
use lb_source::cluster::{UnreadKind, list_pools, list_unread_metallb_kinds};
use tokio::time::timeout;

use super::agent::{build_runtime, cluster_access};
use crate::config::Configuration;

const CHECK: &str = "pools";
/// A cluster that cannot be reached is not waited for.
const LIMIT: Duration = Duration::from_secs(5);

/// Of the pools in the cluster and of the setting.
pub fn check_pools(
    configuration: &Configuration,
    links: &[AnnouncingLink],
) -> Result<Vec<Finding>> {
    let ranges = &configuration.load_balancer.load_balancer_addresses;
    let mut pools = Pools::new(ranges);
    let mut findings = Vec::new();
    let mut has_peers = false;
    if configuration.origin.manifests.is_empty() {
        let read = build_runtime()?.block_on(async {
            let read = timeout(LIMIT, read_cluster(configuration)).await;
            read.context("the API server did not reply in time")?
        });
        match read {
            Ok((objects, unread)) => {
                for object in &objects {
                    has_peers |= matches!(object, Object::BgpPeer(_) | Object::MetallbBgpPeer(_));
                    pools.apply(object);
                }
                findings.extend(unread.iter().map(of_unread_kind));
            }
            // Also where no cluster is meant.
            Err(error) => {
                let error = format!("{error:#}");
                let reason = error.lines().next().unwrap_or_default();
                findings.push(Finding::ok(CHECK, format!("those of a cluster not read: {reason}")));
            }
        }
    }
    findings.extend(pools.problems().values().flatten().map(|problem| {
        let fix = "Correct the object: docs/loadbalancer.md describes its fields";
        Finding::warning(CHECK, problem.to_string(), fix)
    }));
    findings.extend(pools.iter().flat_map(|(_, pool)| of_pool(pool, links, has_peers)));
    Ok(findings)
}

async fn read_cluster(configuration: &Configuration) -> Result<(Vec<Object>, Vec<UnreadKind>)> {
    let connection = cluster_access(&configuration.origin).open(&ClientRequests::default()).await?;
    let namespace = &configuration.load_balancer.metallb_namespace;
    let unread = list_unread_metallb_kinds(&connection.client, namespace).await?;
    let objects = list_pools(&connection.client, namespace).await?;
    Ok((objects, unread.into_iter().collect()))
}

fn of_unread_kind(kind: &UnreadKind) -> Finding {
    const FIX: &str = "docs/loadbalancer.md, \"Migrate from MetalLB\", has what replaces it";
    if kind.has_objects && !kind.is_report() {
        return Finding::warning("MetalLB", kind.to_string(), FIX);
    }
    Finding::ok("MetalLB", kind.to_string())
}

/// Where this node announces each range of a pool.
fn of_pool(pool: &IpamPool, links: &[AnnouncingLink], has_peers: bool) -> Vec<Finding> {
    pool.ranges.iter().map(|range| of_range(pool, range, links, has_peers)).collect()
}

fn of_range(pool: &IpamPool, range: &Range, links: &[AnnouncingLink], has_peers: bool) -> Finding {
    let check = &format!("pool {}", pool.name.label());
    let is_advertised = has_peers && !pool.advertised.is_empty();
    let Some(announcement) = &pool.announcement else {
        return match is_advertised {
            true => Finding::ok(check, format!("{range}: advertised by BGP only")),
            false => Finding::warning(
                check,
                format!("{range}: announced on no link, and advertised to no BGP peer"),
                "Add an announcement or advertisement, unless routers have routes for it to the nodes",
            ),
        };
    };
    let names = |is_meant: &dyn Fn(&AnnouncingLink) -> bool| -> String {
        let names = links.iter().filter(|link| is_meant(link)).map(|link| link.name.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    let ends = range.ends();
    let local = names(&|link| ends.iter().all(|&end| link.has_prefix_of(end)));
    let partly = names(&|link| ends.iter().any(|&end| link.has_prefix_of(end)));
    let scopes = &announcement.scopes;
    let named = names(&|link| scopes.iter().any(|scope| scope.names(&link.name)));
    let by_prefix = scopes.iter().any(|scope| !scope.names_interfaces());
    let of_metallb = scopes.iter().any(|scope| !scope.names_interfaces() && scope.includes_routed);
    match () {
        () if by_prefix && !local.is_empty() => {
            Finding::ok(check, format!("{range}: in the prefix of {local}, announced there"))
        }
        () if !named.is_empty() => {
            Finding::ok(check, format!("{range}: announced on {named}, which the object names"))
        }
        () if by_prefix && !partly.is_empty() => Finding::warning(
            check,
            format!("{range}: only a part of it is in the prefix of {partly}"),
            "Split the range at the prefix, or name the interfaces",
        ),
        () if of_metallb => {
            let all = names(&|_| true);
            Finding::ok(
                check,
                format!(
                    "{range}: routed, in no prefix of this node; announced on all interfaces as by MetalLB ({all})"
                ),
            )
        }
        () if is_advertised => Finding::ok(
            check,
            format!("{range}: routed, in no prefix of this node; advertised by BGP"),
        ),
        () => Finding::warning(
            check,
            format!(
                "{range}: routed, in no prefix of this node; announced on none of its interfaces"
            ),
            "Name the interfaces in the announcement, or advertise the pool by BGP",
        ),
    }
}

#[cfg(test)]
mod tests {
    use lb_kernel::CheckResult;
    use lb_rules::model::Kind;
    use serde_json::{Value, json};

    use super::*;

    fn link(name: &str, prefix: &str) -> AnnouncingLink {
        AnnouncingLink {
            index: 1,
            name: name.to_owned(),
            mac: Default::default(),
            running: true,
            prefixes: vec![prefix.parse().unwrap()],
            addresses: Vec::new(),
        }
    }

    /// Of an IPAddressPool with these addresses and advertisements, on a node with two interfaces.
    fn of_metallb(addresses: &str, advertisements: &[(Kind, Value)]) -> (CheckResult, String) {
        let metadata = json!({"name": "a", "namespace": "metallb-system"});
        let mut pools = Pools::new(&[]);
        let pool = (Kind::IpAddressPool, json!({"addresses": [addresses]}));
        for (kind, spec) in advertisements.iter().chain([&pool]) {
            let object = json!({"metadata": metadata, "spec": spec});
            pools.apply(&Object::read(*kind, object).unwrap());
        }
        let links = [link("eth0", "192.0.2.0/24"), link("eth1", "10.0.0.0/8")];
        let (_, pool) = pools.iter().next().unwrap();
        let has_peers = true;
        let findings = of_pool(pool, &links, has_peers);
        assert!(findings.iter().all(|it| it.fix.is_empty() == (it.result == CheckResult::Ok)));
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!(finding.check, "pool metallb-system/a");
        (finding.result, finding.message.clone())
    }

    #[test]
    fn each_range_is_in_a_prefix_or_routed() {
        let anywhere = || (Kind::L2Advertisement, json!({}));
        let on = |name: &str| (Kind::L2Advertisement, json!({"interfaces": [name]}));
        let bgp = || (Kind::BgpAdvertisement, json!({}));
        for (addresses, advertisements, result, message) in [
            ("192.0.2.16/28", vec![anywhere()], CheckResult::Ok, "in the prefix of eth0"),
            (
                "198.51.100.0/24",
                vec![anywhere()],
                CheckResult::Ok,
                "on all interfaces as by MetalLB (eth0, eth1)",
            ),
            (
                "198.51.100.0/24",
                vec![on("eth1")],
                CheckResult::Ok,
                "announced on eth1, which the object names",
            ),
            (
                "198.51.100.0/24",
                vec![on("eth9")],
                CheckResult::Warning,
                "announced on none of its interfaces",
            ),
            (
                "192.0.2.250-192.0.3.9",
                vec![anywhere()],
                CheckResult::Warning,
                "only a part of it is in the prefix of eth0",
            ),
            ("198.51.100.0/24", vec![bgp()], CheckResult::Ok, "advertised by BGP only"),
            (
                "198.51.100.0/24",
                vec![on("eth9"), bgp()],
                CheckResult::Ok,
                "routed, in no prefix of this node; advertised by BGP",
            ),
            ("192.0.2.16/28", vec![], CheckResult::Warning, "announced on no link"),
        ] {
            let (found, text) = of_metallb(addresses, &advertisements);
            assert!(
                found == result && text.contains(message),
                "{addresses} {advertisements:?}: {text}"
            );
        }
    }

    /// An AddressPool announces where a prefix has the address, unless it names interfaces, and to all peers.
    #[test]
    fn a_routed_range_of_an_address_pool_needs_bgp_peers() {
        let mut pools = Pools::new(&[Range::parse("198.51.100.0/24").unwrap()]);
        pools.apply(
            &Object::read(
                Kind::AddressPool,
                json!({"metadata": {"name": "a"}, "spec": {"addresses": ["192.0.2.0/24"]}}),
            )
            .unwrap(),
        );
        let links = [link("eth0", "192.0.2.0/24")];
        let of = |name: &str| {
            let (_, pool) = pools.iter().find(|(_, pool)| pool.name.name() == name).unwrap();
            |has_peers| of_pool(pool, &links, has_peers).remove(0)
        };
        assert_eq!(of("a")(false).result, CheckResult::Ok);
        let routed = of(lb_rules::ipam::SETTING);
        assert_eq!(routed(false).result, CheckResult::Warning);
        assert_eq!(routed(true).result, CheckResult::Ok);
    }
}
