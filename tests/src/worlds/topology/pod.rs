//! Pods: hosts behind a node, reached by routes to their addresses.

use std::net::IpAddr;

use anyhow::{Context, Result};

use super::{Host, port};

/// The pods' gateway: the same on all their links.
const GATEWAY4: &str = "169.254.1.1";
const GATEWAY6: &str = "fe80::1";

impl Host {
    /// Adds a pod to this node with these addresses, without prefix lengths. Its device is `eth0`;
    /// the node's end, the workload device, has the pod's name.
    ///
    /// As in Calico, the workload device has no address that the node would send from, and only the
    /// gateway is on the pod's link, so that pods of the same node communicate through the node.
    pub fn pod(&self, name: &str, addresses: &[&str]) -> Result<Self> {
        let pod = Self::new(&self.shared, name)?;
        port::link_ports(pod.port("eth0"), self.port(name))?;
        for address in addresses {
            let parsed: IpAddr = address.parse().with_context(|| {
                format!("pod {name}: {address:?} is not an address; addresses have no prefix length, as in 10.244.1.10")
            })?;
            match parsed {
                IpAddr::V4(_) => {
                    // The node responds for addresses of `lo` on any link; one of scope link is
                    // never the source of the node's packets.
                    self.ip(&format!("address replace {GATEWAY4}/32 dev lo scope link"))?;
                    pod.address("eth0", &format!("{address}/32"))?;
                    pod.ip(&format!("route add {GATEWAY4} dev eth0"))?;
                    pod.ip(&format!("route add default via {GATEWAY4}"))?;
                }
                IpAddr::V6(_) => {
                    self.ip(&format!("address replace {GATEWAY6}/64 dev {name} nodad"))?;
                    pod.address("eth0", &format!("{address}/128"))?;
                    pod.ip(&format!("route add default via {GATEWAY6} dev eth0"))?;
                }
            }
            self.ip(&format!("route add {address} dev {name}"))?;
        }
        Ok(pod)
    }
}
