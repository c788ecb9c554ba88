//! Pools of nodes: Services have ports on the node's own addresses, and what they must not have stays the node's.

use anyhow::{Result, ensure};
use lb_common::layout::map;
use tests::worlds::one_node::{NODE, OneNode};
use tests::worlds::topology::{SOON, wait_until};

/// A pool of nodes, this node and another one, the Service `web` with a port of the pool, and what tenants want: port 22,
/// the port of `web`, a port of the kubelet.
pub fn manifests(port: &str) -> String {
    manifests_of(port, "True")
}

fn manifests_of(port: &str, ready: &str) -> String {
    let service = |namespace: &str, name: &str, number: u8, port: &str| {
        format!(
            "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{type: LoadBalancer, clusterIP: 10.96.0.{number}, ports: [{{port: {port}}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: {namespace}, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{port: 8080}}]
endpoints: [{{addresses: [10.244.1.{number}], nodeName: node}}]
"
        )
    };
    // Of pods: 10.244.1.10 is of `web`, 10.244.1.11 of the tenant.
    let services = [
        service("default", "a-web", 10, port),
        service("tenant", "ssh", 11, "22"),
        service("tenant", "same", 11, port),
        service("tenant", "kubelet", 11, "10250"),
    ];
    format!(
        "apiVersion: millrace.io/v1alpha1
kind: AddressPool
metadata: {{name: edge}}
spec:
  nodes:
    addressType: InternalIP
    selector: {{matchLabels: {{role: edge}}}}
    ports: [{port}, 10250]
---
apiVersion: v1
kind: Node
metadata: {{name: node, labels: {{role: edge}}}}
status:
  addresses: [{{type: InternalIP, address: {NODE}}}]
  conditions: [{{type: Ready, status: \"{ready}\"}}]
---
apiVersion: v1
kind: Node
metadata: {{name: other, labels: {{role: edge}}}}
status: {{addresses: [{{type: InternalIP, address: 192.0.2.99}}]}}
{}",
        services.concat()
    )
}

#[test]
fn services_get_listed_ports_of_the_node_and_the_others_stay_the_nodes() -> Result<()> {
    let network = OneNode::warm(2)?;
    let _sshd = network.node.http_server(&["192.0.2.1:22", "192.0.2.1:10250"], "the node")?;
    let (mut agent, file) = network.agent_on(&manifests("80"))?;
    let answer = |port: u16| network.curl(&format!("http://{NODE}:{port}/"));
    wait_until("a Service has port 80", SOON, || answer(80).is_ok_and(|a| a.trim() == "pod-0"))?;
    ensure!(answer(22)?.trim() == "the node", "a tenant has port 22");
    ensure!(answer(10250)?.trim() == "the node", "a tenant has the kubelet's port");
    // Another node's address is that node's: this one neither serves nor announces it, nor its own.
    ensure!(network.curl("http://192.0.2.99:80/").is_err(), "another node's address is served");
    let map = network.pin_path().join(map::ANNOUNCED);
    let map = map.to_string_lossy();
    let announced = network.node.run(["bpftool", "-j", "map", "dump", "pinned", &map])?;
    ensure!(announced.trim() == "[]", "{announced}");
    for expected in ["PortNotAllowed: TCP port 22", "SharingConflict", "nodes need TCP port 10250"]
    {
        agent.wait_for_output(expected)?;
    }
    // A node that is not ready leaves the list, and goes on serving clients that know its address.
    std::fs::write(&file, manifests_of("80", "False"))?;
    std::thread::sleep(SOON / 40);
    ensure!(answer(80)?.trim() == "pod-0", "a node that is not ready serves no more");
    // One that is excluded lends nothing, and a port that the pool loses is the node's.
    let excluded =
        "role: edge, node.kubernetes.io/exclude-from-external-load-balancers: \"\"}}\nstatus";
    let excluded = manifests("80").replacen("role: edge}}\nstatus", excluded, 1);
    std::fs::write(&file, excluded)?;
    wait_until("the node lends nothing", SOON, || answer(80).is_err())?;
    std::fs::write(&file, manifests("80"))?;
    wait_until("a Service has port 80", SOON, || answer(80).is_ok_and(|a| a.trim() == "pod-0"))?;
    std::fs::write(&file, manifests("80").replace("ports: [80, 10250]", "ports: [81]"))?;
    wait_until("the pool lost the port", SOON, || answer(80).is_err())
}
