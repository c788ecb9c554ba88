//! Links: veth pairs between hosts. A [`Port`] describes one end.

use anyhow::{Context, Result};

use super::Host;
use super::command::run_ip;

/// The description of a device: one end of a veth pair.
#[must_use]
pub struct Port<'a> {
    host: &'a Host,
    device: String,
    addresses: Vec<String>,
    /// Arguments of `ip link set`.
    settings: Vec<String>,
    /// Arguments of `ethtool -K`.
    offloads: Vec<String>,
}

impl Host {
    /// An end of a link, for [`super::Topology::link`].
    pub fn port(&self, device: &str) -> Port<'_> {
        Port::new(self, device)
    }
}

impl<'a> Port<'a> {
    fn new(host: &'a Host, device: &str) -> Self {
        Self {
            host,
            device: device.to_owned(),
            addresses: Vec::new(),
            settings: Vec::new(),
            offloads: Vec::new(),
        }
    }

    /// Adds an address with its prefix length.
    pub fn address(mut self, address: &str) -> Self {
        self.addresses.push(address.to_owned());
        self
    }

    /// Adds several addresses with their prefix lengths.
    pub fn addresses(self, addresses: &[&str]) -> Self {
        addresses.iter().fold(self, |port, address| port.address(address))
    }

    /// Makes frames leave as on a real wire: segmented, with complete checksums. A veth leaves both
    /// to hardware, and XDP at the other end would see incomplete frames.
    pub fn wire(self) -> Self {
        self.offload("tx off")
    }

    /// Sets whether received segments are merged. A veth without XDP delivers packets that XDP at
    /// the other end transmits only with GRO.
    pub fn gro(self, on: bool) -> Self {
        self.offload(if on { "gro on" } else { "gro off" })
    }

    pub fn mtu(self, bytes: u16) -> Self {
        self.setting(format!("mtu {bytes}"))
    }

    /// Sets the link-layer address, which is random otherwise.
    pub fn mac(self, address: &str) -> Self {
        self.setting(format!("address {address}"))
    }

    /// Makes it a port of a bridge on its host.
    pub fn bridge(self, bridge: &str) -> Self {
        self.setting(format!("master {bridge}"))
    }

    fn setting(mut self, setting: String) -> Self {
        self.settings.push(setting);
        self
    }

    fn offload(mut self, offload: &str) -> Self {
        self.offloads.extend(offload.split(' ').map(str::to_owned));
        self
    }

    fn bring_up(&self) -> Result<()> {
        let Self { host, device, .. } = self;
        if !self.offloads.is_empty() {
            let words = ["ethtool", "-K", device];
            host.run(words.into_iter().chain(self.offloads.iter().map(String::as_str)))?;
        }
        host.ip(&format!("link set {device} {} up", self.settings.join(" "))).map(drop)
    }

    fn add_addresses(&self) -> Result<()> {
        self.addresses.iter().try_for_each(|address| self.host.address(&self.device, address))
    }
}

/// Creates the veth pair of two ports, each in its host's namespace.
pub(super) fn link_ports(one: Port<'_>, other: Port<'_>) -> Result<()> {
    // Created in the hosts' namespaces, never in the machine's own.
    let (a, b) = (one.host.namespace(), other.host.namespace());
    let (device, peer) = (&one.device, &other.device);
    let make = format!("-n {a} link add {device} type veth peer name {peer} netns {b}");
    let link = || {
        run_ip(&make)?;
        // Before an IPv6 address can be used its device needs a carrier.
        one.bring_up()?;
        other.bring_up()?;
        one.add_addresses()?;
        other.add_addresses()
    };
    link().with_context(|| {
        let (a, b) = (one.host.name(), other.host.name());
        format!("{device} of {a} can't be linked to {peer} of {b}")
    })
}
