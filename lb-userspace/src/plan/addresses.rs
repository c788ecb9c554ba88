//! What addresses themselves are, whatever their ports: this node's own, its SNAT addresses, and
//! those that are a Service's wholly.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use lb_common::layout::{self, FrontendKind};

use super::bits::Bits;
use super::step::{FrontendKey, Plan, Step};

#[derive(Default)]
pub struct Addresses {
    node: BTreeSet<IpAddr>,
    snat: BTreeSet<IpAddr>,
    /// Cluster addresses, and how many frontends each has. What they do not serve is rejected.
    cluster: BTreeMap<IpAddr, u32>,
}

impl Addresses {
    /// How many entries of their own they have.
    pub fn len(&self) -> usize {
        // Of this node's there are few.
        let both = self.node.iter().filter(|address| self.cluster.contains_key(address)).count();
        self.node.len() + self.cluster.len() - both
    }

    pub fn has_entry(&self, address: IpAddr) -> bool {
        self.node.contains(&address) || self.cluster.contains_key(&address)
    }

    pub fn move_node(&mut self, wanted: BTreeSet<IpAddr>, bits: &mut Bits, plan: &mut Plan) {
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

    /// What comes to a SNAT address must not end at the prefilter.
    pub fn move_snat(&mut self, wanted: BTreeSet<IpAddr>, bits: &mut Bits, plan: &mut Plan) {
        for &address in wanted.difference(&self.snat) {
            bits.add_destination(address, plan);
        }
        for &address in self.snat.difference(&wanted) {
            bits.remove_destination(address, plan);
        }
        self.snat = wanted;
    }

    /// Notes one more frontend at a cluster address.
    pub fn add_cluster(&mut self, address: IpAddr, plan: &mut Plan) {
        let count = self.cluster.entry(address).or_default();
        *count += 1;
        // An address of this node has other things that listen, whoever else claims it.
        if *count == 1 && !self.node.contains(&address) {
            publish(address, FrontendKind::ClusterIp, plan);
        }
    }

    /// Notes one less.
    pub fn remove_cluster(&mut self, address: IpAddr, plan: &mut Plan) {
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
