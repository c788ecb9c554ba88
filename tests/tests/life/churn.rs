//! Pods that come and go, as when a deployment is rolled out.

use std::fs;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tests::manifests::{Service, manifests};
use tests::programs::agent::Agent;
use tests::worlds::one_node::OneNode;
use tests::worlds::topology::{Echo, Host, SOON, wait_until};

const SERVICE: &str = "10.96.0.10:53";
/// Between two datagrams of a new pod.
const PAUSE: Duration = Duration::from_millis(1);

struct Node {
    network: OneNode,
    _agent: Agent,
    _backend: Echo,
}

impl Node {
    fn start() -> Result<Self> {
        let network = OneNode::warm(1)?;
        let backend = network.pods[0].host.udp_echo("10.244.1.10:5353", "pod-0")?;
        let dns = Service::new("dns", &["10.96.0.10"]).udp(53, 5353).here(&["10.244.1.10"]);
        let agent = network.agent_with(&manifests(&[dns]), &[])?;
        Ok(Self { network, _agent: agent, _backend: backend })
    }

    /// Adds a pod, which sends datagrams to the Service as soon as it has an address. Returns how
    /// many of them were lost.
    fn add(&self, number: usize) -> Result<usize> {
        let address = format!("10.244.{}.{}", 2 + number / 250, 1 + number % 250);
        let pod = self.network.node.pod(&name(number), &[&address])?;
        lost_by(&pod).with_context(|| name(number))
    }

    fn remove(&self, number: usize) -> Result<()> {
        self.network.node.ip(&format!("link del {}", name(number))).map(drop)
    }

    /// The pinned attachments to pods' interfaces.
    fn links(&self) -> Result<Vec<String>> {
        let links = fs::read_dir(self.network.pin_path().join("links"))?;
        let names = links.flatten().map(|link| link.file_name().to_string_lossy().into_owned());
        Ok(names.filter(|name| name.starts_with("churn-")).collect())
    }
}

fn name(number: usize) -> String {
    format!("churn-{number}")
}

fn lost_by(pod: &Host) -> Result<usize> {
    let socket = pod.udp_socket("0.0.0.0:0")?;
    socket.set_read_timeout(Some(PAUSE))?;
    let started = Instant::now();
    for number in 0_usize.. {
        socket.send_to(&number.to_be_bytes(), SERVICE)?;
        let mut reply = [0; 100];
        match socket.recv(&mut reply) {
            // The reply ends with the datagram that it is for.
            Ok(length) => {
                let sent = reply[..length].last_chunk().context("a reply without its datagram")?;
                return Ok(usize::from_be_bytes(*sent));
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
        ensure!(started.elapsed() < SOON, "the pod is not served");
    }
    unreachable!("the numbers do not end")
}

#[test]
fn pods_that_come_and_go_are_served_and_leave_nothing() -> Result<()> {
    let node = Node::start()?;
    for number in 0..10 {
        node.add(number)?;
        // Which is pinned once it serves.
        wait_until("the pod is served by an attachment", SOON, || {
            node.links().is_ok_and(|links| links.iter().any(|link| link.starts_with(&name(number))))
        })?;
        if let Some(old) = number.checked_sub(3) {
            node.remove(old)?;
        }
    }
    for number in 7..10 {
        node.remove(number)?;
    }
    wait_until("no interface is left", SOON, || node.links().is_ok_and(|links| links.is_empty()))
}
