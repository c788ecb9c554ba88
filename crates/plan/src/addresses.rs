//! Addresses with an entry or a role of their own, independent of ports: this node's addresses, its
//! SNAT addresses, and cluster addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use lb_common::layout::{self, FrontendKind};

use super::bits::Bits;
use super::key::FrontendKey;
use super::step::{Plan, Step};

#[derive(Default)]
pub struct Addresses {
    node: BTreeSet<IpAddr>,
    snat: BTreeSet<IpAddr>,
    /// Cluster addresses, each with its number of frontends. Packets to other ports are rejected.
    cluster: BTreeMap<IpAddr, u32>,
}

impl Addresses {
    /// How many addresses have an entry.
    pub fn len(&self) -> usize {
        // This node has few addresses.
        let both = self.node.iter().filter(|address| self.cluster.contains_key(address)).count();
        self.node.len() + self.cluster.len() - both
    }

    pub fn has_entry(&self, address: IpAddr) -> bool {
        self.node.contains(&address) || self.cluster.contains_key(&address)
    }

    pub(crate) fn move_node(&mut self, wanted: BTreeSet<IpAddr>, bits: &mut Bits, plan: &mut Plan) {
        for &address in wanted.difference(&self.node) {
            bits.add_destination(address, plan);
            publish(address, FrontendKind::NodeAddress, plan);
        }
        for &address in self.node.difference(&wanted) {
            if self.cluster.contains_key(&address) {
                publish(address, FrontendKind::ClusterIp, plan);
            } else {
                retire(address, plan);
            }
            bits.remove_destination(address, plan);
        }
        self.node = wanted;
    }

    /// Packets to an SNAT address must pass the prefilter.
    pub(crate) fn move_snat(&mut self, wanted: BTreeSet<IpAddr>, bits: &mut Bits, plan: &mut Plan) {
        for &address in wanted.difference(&self.snat) {
            bits.add_destination(address, plan);
        }
        for &address in self.snat.difference(&wanted) {
            bits.remove_destination(address, plan);
        }
        self.snat = wanted;
    }

    /// Counts a frontend at a cluster address.
    pub(crate) fn add_cluster(&mut self, address: IpAddr, plan: &mut Plan) {
        let count = self.cluster.entry(address).or_default();
        *count += 1;
        // An address of this node has other listeners, even if a Service also claims it.
        if *count == 1 && !self.node.contains(&address) {
            publish(address, FrontendKind::ClusterIp, plan);
        }
    }

    /// Counts one frontend less.
    pub(crate) fn remove_cluster(&mut self, address: IpAddr, plan: &mut Plan) {
        let Some(count) = self.cluster.get_mut(&address) else { return };
        *count -= 1;
        if *count == 0 {
            self.cluster.remove(&address);
            if !self.node.contains(&address) {
                retire(address, plan);
            }
        }
    }
}

fn publish(address: IpAddr, kind: FrontendKind, plan: &mut Plan) {
    let value = layout::Frontend::of_address(kind);
    plan.set_frontend(FrontendKey::of_address(address), value);
}

fn retire(address: IpAddr, plan: &mut Plan) {
    plan.retire.push(Step::RemoveFrontend { key: FrontendKey::of_address(address) });
}
