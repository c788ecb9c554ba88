//! `millrace standalone`: Services that stock kubectl creates carry traffic.

use std::collections::BTreeSet;

use anyhow::Result;
use tests::programs::agent::Agent;
use tests::worlds::one_node::{OneNode, has_kubectl};
use tests::worlds::topology::{SOON, wait_until};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/web.yaml");
const VIP: &str = "http://203.0.113.10/";

/// A node with three pods and the embedded API; `None` without kubectl.
fn start() -> Result<Option<(OneNode, Agent)>> {
    if !has_kubectl() {
        eprintln!("skipped: no kubectl on the PATH");
        return Ok(None);
    }
    let network = OneNode::warm(3)?;
    let agent = network.standalone()?;
    Ok(Some((network, agent)))
}

/// The pods that respond to a number of requests.
fn answers(network: &OneNode) -> Result<BTreeSet<String>> {
    (0..30).map(|_| Ok(network.curl(VIP)?.trim().to_owned())).collect()
}

#[test]
fn objects_are_programmed_and_removed_as_kubectl_applies_and_deletes_them() -> Result<()> {
    let Some((network, agent)) = start()? else { return Ok(()) };
    let frontends = || agent.get(&["frontends"]);
    let nothing = frontends()?;

    network.kubectl(&["apply", "-f", EXAMPLE])?;
    let programmed = || frontends().is_ok_and(|all| all.contains("10.244.1.12:8080"));
    wait_until("the Service is programmed", SOON, programmed)?;
    let all: BTreeSet<String> = network.pods.iter().map(|pod| pod.name.clone()).collect();
    assert_eq!(answers(&network)?, all);

    let patch = r#"[{"op": "remove", "path": "/endpoints/2"}]"#;
    network.kubectl(&["patch", "endpointslice", "web-ipv4", "--type=json", "-p", patch])?;
    let gone = || frontends().is_ok_and(|all| !all.contains("10.244.1.12:8080"));
    wait_until("the endpoint is removed", SOON, gone)?;
    assert_eq!(answers(&network)?.len(), 2);

    network.kubectl(&["delete", "-f", EXAMPLE])?;
    wait_until("the maps are empty", SOON, || frontends().is_ok_and(|all| all == nothing))?;
    Ok(())
}

#[test]
fn applied_objects_are_kept_and_programmed_after_a_crash() -> Result<()> {
    let Some((network, agent)) = start()? else { return Ok(()) };
    network.kubectl(&["apply", "-f", EXAMPLE])?;
    agent.kill();
    let agent = network.standalone()?;
    let programmed = || agent.get(&["frontends"]).is_ok_and(|all| all.contains("10.244.1.12:8080"));
    wait_until("the Service is programmed", SOON, programmed)?;
    assert_eq!(answers(&network)?.len(), 3);
    assert!(network.kubectl(&["get", "service", "web"])?.contains("30080"));
    Ok(())
}
