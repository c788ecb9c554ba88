//! kube-proxy: its process, what it leaves in the kernel, and how that is removed.
//!
//! Invariant: only what kube-proxy made is removed (`plan`).

mod conntrack;
mod ipvs;
mod nftables;
mod plan;

use std::fs;

use anyhow::{Context, Result};
use lb_network::netlink::Netlink;
use nix::libc::{NLM_F_ACK, RTM_DELLINK};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::SockProtocol;

use ipvs::{DEVICE as IPVS_DEVICE, VirtualServers};
use plan::Leftovers;

pub struct KubeProxy {
    /// Its process, if it runs.
    pub process: Option<u32>,
    leftovers: Leftovers,
    has_ipvs_device: bool,
    virtual_servers: VirtualServers,
}

impl KubeProxy {
    pub fn find() -> Result<Self> {
        let chains = nftables::list_chains().context("netfilter chains cannot be listed")?;
        let jumps = nftables::list_jumps().context("netfilter rules cannot be listed")?;
        Ok(Self {
            process: process_called("kube-proxy"),
            leftovers: Leftovers::of(&chains, &jumps),
            has_ipvs_device: if_nametoindex(IPVS_DEVICE).is_ok(),
            virtual_servers: VirtualServers::find()
                .context("virtual servers of IPVS cannot be listed")?,
        })
    }

    /// Removes everything that `removals` lists. Removing it again does nothing.
    pub fn remove(&self) -> Result<()> {
        nftables::remove_leftovers(&self.leftovers)
            .context("kube-proxy's rules cannot be removed from netfilter")?;
        self.virtual_servers.remove().context("virtual servers of IPVS cannot be removed")?;
        if !self.removals().is_empty() {
            conntrack::remove_translated().context(
                "connection tracking entries with a translated destination cannot be removed",
            )?;
        }
        // Last: by its addresses the virtual servers are recognised.
        if self.has_ipvs_device {
            remove_device(IPVS_DEVICE)
                .with_context(|| format!("{IPVS_DEVICE} cannot be removed"))?;
        }
        Ok(())
    }

    /// What `remove` removes, one line for each thing.
    pub fn removals(&self) -> Vec<String> {
        let Leftovers { tables, jumps, chains, .. } = &self.leftovers;
        let tables = tables.iter().map(|table| format!("table {table}"));
        let jumps = jumps
            .iter()
            .map(|jump| format!("jump from {} {} to {}", jump.table, jump.chain, jump.target));
        let chains = chains.iter().map(|chain| format!("chain {chain}"));
        let servers = self.virtual_servers.kube_proxys.iter();
        let servers = servers.map(|server| format!("virtual server {server}"));
        let device = self.has_ipvs_device.then(|| format!("interface {IPVS_DEVICE}"));
        let mut all: Vec<_> =
            tables.chain(jumps).chain(chains).chain(servers).chain(device).collect();
        if !all.is_empty() {
            all.push("connection tracking entries with a translated destination".to_owned());
        }
        all
    }

    /// What is kept although kube-proxy may have made it, and why.
    pub fn kept(&self) -> Vec<String> {
        let kept = self.leftovers.kept.iter();
        let mut kept: Vec<String> =
            kept.map(|(chain, why)| format!("chain {chain}: {why}")).collect();
        if self.has_ipvs_device {
            kept.extend(self.virtual_servers.others.iter().map(|server| {
                format!("virtual server {server}: neither a Service's address nor a NodePort")
            }));
        }
        if uses_legacy_iptables() {
            kept.push(
                "rules of iptables-legacy, which only its own tools can read: run `kube-proxy \
                 --cleanup` from kube-proxy's image"
                    .to_owned(),
            );
        }
        kept
    }
}

/// What shows that kube-proxy runs on this node, or that it ran: a message for each sign of it.
pub fn find_signs() -> Vec<String> {
    let found = match KubeProxy::find() {
        Ok(found) => found,
        // Without nf_tables in the kernel there are no rules.
        Err(error) => {
            tracing::debug!(error = format!("{error:#}"), "netfilter not read");
            KubeProxy {
                process: process_called("kube-proxy"),
                leftovers: Leftovers::default(),
                has_ipvs_device: if_nametoindex(IPVS_DEVICE).is_ok(),
                virtual_servers: VirtualServers::find().unwrap_or_default(),
            }
        }
    };
    let mut messages = Vec::new();
    messages.extend(found.process.map(|process| format!("it is running (process {process})")));
    if !found.leftovers.is_empty() {
        let Leftovers { tables, chains, .. } = &found.leftovers;
        let (tables, chains) = (tables.len(), chains.len());
        messages.push(format!(
            "its rules are in the kernel: {tables} tables of nftables, {chains} chains of iptables"
        ));
    }
    if found.has_ipvs_device {
        let servers = found.virtual_servers.kube_proxys.len();
        messages.push(format!(
            "its interface {IPVS_DEVICE} exists, with {servers} virtual servers of IPVS"
        ));
    }
    messages
}

fn process_called(name: &str) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?;
    processes.filter_map(Result::ok).find_map(|entry| {
        let process = entry.file_name().to_str()?.parse().ok()?;
        let called = fs::read_to_string(entry.path().join("comm")).ok()?;
        (called.trim_end() == name).then_some(process)
    })
}

fn uses_legacy_iptables() -> bool {
    ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"]
        .iter()
        .any(|path| fs::read_to_string(path).is_ok_and(|tables| tables.contains("nat")))
}

fn remove_device(name: &str) -> std::io::Result<()> {
    // `struct ifinfomsg`; its second word is the index.
    let mut body = [0; 16];
    body[4..8].copy_from_slice(&if_nametoindex(name)?.to_ne_bytes());
    Netlink::open(SockProtocol::NetlinkRoute)?.ask(RTM_DELLINK, NLM_F_ACK, &body, |_| {})
}
