//! What happens to connections while nodes, backends, agents and the router come and go.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lb_common::layout::FlowKind;

use super::{Rack, RouterKind, Sizes};
use crate::load::crowd::{Crowd, Loss};

const SECOND: Duration = Duration::from_secs(1);

/// A rack with many connections of a client, which knows why each that ends has ended.
pub struct CrowdedRack {
    pub rack: Rack,
    pub crowd: Crowd,
}

impl CrowdedRack {
    pub fn start(
        kind: RouterKind,
        sizes: Sizes,
        (connections, longest_pause): (usize, Duration),
        history: u32,
    ) -> Result<Self> {
        let rack = Rack::start(kind, sizes, history)?;
        let crowd = Crowd::start(&rack.client, rack.target()?, connections, longest_pause)?;
        Ok(Self { rack, crowd })
    }

    /// Replaces a backend by another one on the node with the fewest.
    fn replace_backend(&mut self, index: usize) -> Result<()> {
        let old = self.rack.remove_backend(index);
        if let Some(node) = self.rack.emptiest() {
            self.rack.add_backend(node)?;
        }
        self.crowd.expect_end([old.address]);
        self.rack.write()?;
        // It serves until all nodes know that it ends.
        thread::sleep(SECOND / 2);
        self.rack.end_backend(old);
        Ok(())
    }

    /// Replaces backends that have been there for the longest time, one after the other.
    pub fn replace_backends(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            // Old ones, and not the same again: a new backend is the last.
            self.replace_backend(0)?;
            thread::sleep(SECOND / 2);
        }
        Ok(())
    }

    /// A node loses its power. Later its backends are removed, and others are started elsewhere.
    pub fn power_off(&mut self, node: usize) -> Result<()> {
        let gone = self.rack.power_off(node)?;
        self.crowd.expect_end(gone.iter().map(|backend| backend.address));
        self.rack.wait_for_nodes(self.rack.nodes.len() - 1)?;
        thread::sleep(SECOND * 3);
        for _ in &gone {
            if let Some(node) = self.rack.emptiest() {
                self.rack.add_backend(node)?;
            }
        }
        self.rack.write()
    }

    /// A node without any state joins, and gets backends.
    pub fn power_on(&mut self, node: usize) -> Result<()> {
        self.rack.power_on(node)?;
        self.rack.wait_for_agents()?;
        self.rack.wait_for_nodes(self.rack.nodes.len())?;
        for _ in 0..3 {
            self.rack.add_backend(node)?;
            self.rack.write()?;
            thread::sleep(SECOND / 2);
        }
        Ok(())
    }

    /// A node is drained: the router avoids it, then its backends move.
    pub fn drain(&mut self, node: usize) -> Result<()> {
        self.rack.cordon(Some(node))?;
        self.rack.wait_for_nodes(self.rack.nodes.len() - 1)?;
        self.crowd.settle()?;
        for _ in 0..2 {
            let index = self.rack.backends().iter().position(|backend| backend.node == node);
            index.map_or(Ok(()), |index| self.replace_backend(index))?;
        }
        self.rack.cordon(None)?;
        self.rack.wait_for_nodes(self.rack.nodes.len())
    }

    pub fn restart_agents(&mut self) -> Result<()> {
        self.rack.restart_agents()?;
        self.rack.wait_for_agents()
    }

    pub fn restart_router(&mut self) -> Result<()> {
        self.rack.end_router()?;
        self.rack.start_router()?;
        self.rack.wait_for_nodes(self.rack.nodes.len())
    }

    /// Whether the connection began so many owners of its slot ago that its node was not asked.
    pub fn is_too_long_ago(&self, loss: &Loss) -> Result<bool> {
        let SocketAddr::V4(client) = loss.client else { bail!("an IPv4 address") };
        let owners = self.rack.slot_owners(client)?;
        let current = owners.first().context("no table")?;
        let mut nodes = vec![current.node];
        for owner in owners.iter().filter(|owner| self.rack.backends().contains(owner)) {
            if !nodes.contains(&owner.node) {
                nodes.push(owner.node);
            }
        }
        nodes.truncate(1 + usize::from(FlowKind::MOST_ASKED));
        let server = owners.iter().find(|owner| owner.address == loss.server);
        Ok(server.is_none_or(|server| !nodes.contains(&server.node)))
    }
}
