//! Random sequences of writes to a few Services.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::super::json::{get_list, get_texts};
use super::super::super::ledger::TestAllocations;
use super::super::super::{AllocatedResource, KindRules, Subresource};
use super::super::Service;
use super::{TWO_RANGES, service, write, write_to};

/// Specs of a few Services. Omitted fields are kept or allocated.
fn any_spec() -> impl Strategy<Value = Value> {
    let port = (80_i64..84, prop::option::of(30_000_i64..30_004)).prop_map(|(number, node)| {
        let mut port = json!({ "name": format!("p{number}"), "port": number });
        if let Some(node) = node {
            port["nodePort"] = json!(node);
        }
        port
    });
    let either = |values: &'static [&'static str]| prop::option::of(prop::sample::select(values));
    (
        either(&["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]),
        prop::collection::vec(port, 1..4),
        either(&["Cluster", "Local"]),
        either(&["SingleStack", "PreferDualStack", "RequireDualStack"]),
        either(&["10.96.0.1", "10.96.0.2", "None", "fd00::1"]),
        prop::option::of(prop::bool::ANY),
    )
        .prop_map(|(kind, ports, external, families, address, allocate)| {
            let mut spec = json!({ "ports": ports, "externalName": "example.com" });
            for (field, value) in [
                ("type", kind),
                ("externalTrafficPolicy", external),
                ("ipFamilyPolicy", families),
                ("clusterIP", address),
            ] {
                if let Some(value) = value {
                    spec[field] = json!(value);
                }
            }
            if let Some(allocate) = allocate {
                spec["allocateLoadBalancerNodePorts"] = json!(allocate);
            }
            spec
        })
}

fn holdings(service: &Value) -> BTreeSet<AllocatedResource> {
    if service["spec"]["type"] == "ExternalName" {
        return BTreeSet::new();
    }
    let addresses = get_texts(service, "spec.clusterIPs").into_iter();
    let addresses = addresses.filter_map(|ip| Some(AllocatedResource::ClusterIp(ip.parse().ok()?)));
    let ports = get_list(service, "spec.ports").iter().map(|port| &port["nodePort"]);
    let ports = ports.chain([&service["spec"]["healthCheckNodePort"]]);
    let ports = ports.filter_map(|port| u16::try_from(port.as_i64()?).ok());
    addresses.chain(ports.filter(|port| *port != 0).map(AllocatedResource::NodePort)).collect()
}

proptest! {
    /// The allocations are exactly what the stored Services hold, and nothing is held twice.
    #[test]
    fn what_services_have_is_what_they_hold(
        writes in prop::collection::vec((0_u8..3, prop::option::weighted(0.9, any_spec())), 1..20),
    ) {
        let mut ledger = TestAllocations::new(TWO_RANGES);
        let mut stored: BTreeMap<String, Value> = BTreeMap::new();
        for (index, spec) in writes {
            let name = format!("s{index}");
            let owner = format!("default/{name}");
            ledger.write_as(&owner);
            let old = stored.get(&name).cloned();
            match (spec, old) {
                (Some(spec), old) => {
                    let mut sent = service(spec);
                    sent["metadata"]["name"] = json!(name);
                    let mut attempt = ledger.clone();
                    if let Ok(written) =
                        write_to(&mut attempt, sent, old.as_ref(), Subresource::None)
                    {
                        ledger = attempt;
                        stored.insert(name, written);
                    }
                }
                (None, Some(old)) => {
                    Service.release(&old, &mut ledger);
                    stored.remove(&name);
                }
                (None, None) => {}
            }
            for index in 0..3 {
                let held = ledger.held_by(&format!("default/s{index}")).into_iter().collect();
                let has = stored.get(&format!("s{index}")).map(holdings).unwrap_or_default();
                prop_assert_eq!(&has, &held, "s{} after {}", index, json!(stored));
            }
        }
    }

    /// A stored object can be sent back unchanged, and the original can be sent again.
    #[test]
    fn writing_again_changes_nothing(spec in any_spec()) {
        let mut ledger = TestAllocations::new(TWO_RANGES);
        if let Ok(created) = write(&mut ledger, spec.clone(), None) {
            let again = write_to(&mut ledger, created.clone(), Some(&created), Subresource::None);
            prop_assert_eq!(again.as_ref(), Ok(&created));
            let resent = write(&mut ledger, spec, Some(&created));
            prop_assert_eq!(resent.map(|service| service["spec"].clone()), Ok(created["spec"].clone()));
        }
    }
}
