//! Carries out what the election decides: writes the kernel's maps, sends frames, watches for other
//! machines.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use lb_announce::{LinkAddress, LinkFrame, Time};
use lb_common::datapath::{arp, ndp};
use lb_kernel::{Announcements, clock_of_deadlines};
use lb_network::AnnouncingLink;

/// Between two reads of the map of other machines' claims: while an address is probed, and
/// otherwise.
const WHILE_PROBING: Duration = Duration::from_millis(5);
const OTHERWISE: Duration = Duration::from_secs(1);

/// Routers forget groups after 260 s (RFC 3810).
const REPORT_GROUPS: Duration = Duration::from_secs(100);

/// The time on the clock of the kernel's deadlines.
pub fn read_deadline_clock() -> Time {
    // It cannot fail: the clock exists on all supported kernels.
    clock_of_deadlines().map_or(Time::ZERO, Time::from_nanos)
}

/// An address on an interface.
type At = (u32, IpAddr);

pub(crate) struct Performer {
    kernel: Announcements,
    /// Watched addresses, and the last use of each by another machine that was reported.
    watched: BTreeMap<At, Time>,
    probed: BTreeSet<At>,
    read_at: Time,
    read_all_at: Time,
    /// When the groups of each interface are reported next.
    groups: BTreeMap<u32, Time>,
    /// The IPv6 addresses that have been reported.
    in_groups: BTreeSet<At>,
}

impl Performer {
    /// Forgets what an earlier agent watched.
    pub fn new(mut kernel: Announcements) -> Result<Self> {
        for (device, address) in kernel.watched()? {
            kernel.stop_watching(device, address)?;
        }
        Ok(Self {
            kernel,
            watched: BTreeMap::new(),
            probed: BTreeSet::new(),
            read_at: Time::ZERO,
            read_all_at: Time::ZERO,
            groups: BTreeMap::new(),
            in_groups: BTreeSet::new(),
        })
    }

    pub fn kernel(&self) -> &Announcements {
        &self.kernel
    }

    pub fn announce(
        &mut self,
        device: u32,
        address: IpAddr,
        epoch: u32,
        hold: Duration,
    ) -> Result<()> {
        self.probed.remove(&(device, address));
        self.kernel.announce(device, address, epoch, hold)?;
        if address.is_ipv6() && self.in_groups.insert((device, address)) {
            self.groups.insert(device, Time::ZERO);
        }
        Ok(())
    }

    /// The interface is new to this process, or was created again.
    pub fn adopt(&mut self, device: u32) -> Result<()> {
        self.groups.insert(device, Time::ZERO);
        self.kernel.join_groups(device)
    }

    pub fn withdraw(&mut self, device: u32, address: IpAddr) -> Result<()> {
        self.in_groups.remove(&(device, address));
        self.kernel.withdraw(device, address)
    }

    pub fn watch(&mut self, device: u32, address: IpAddr) -> Result<()> {
        self.kernel.watch(device, address)?;
        self.watched.insert((device, address), Time::ZERO);
        Ok(())
    }

    pub fn stop_watching(&mut self, device: u32, address: IpAddr) -> Result<()> {
        self.watched.remove(&(device, address));
        self.probed.remove(&(device, address));
        self.kernel.stop_watching(device, address)
    }

    pub fn transmit(&mut self, link: &AnnouncingLink, frame: LinkFrame) -> Result<()> {
        let own = link.mac;
        match frame {
            LinkFrame::Announcement { address: IpAddr::V4(address), reply } => {
                let frame = arp::arp_announcement(own, address.into(), !reply);
                self.kernel.transmit(link.index, &frame)
            }
            LinkFrame::Announcement { address: IpAddr::V6(address), .. } => {
                self.kernel.transmit(link.index, &ndp::ndp_announcement(own, address.into()))
            }
            LinkFrame::Probe(address) => self.probe(link, address, None),
            LinkFrame::ProbeOf(address, to) => self.probe(link, address, Some(to)),
        }
    }

    fn probe(
        &mut self,
        link: &AnnouncingLink,
        address: IpAddr,
        to: Option<LinkAddress>,
    ) -> Result<()> {
        self.probed.insert((link.index, address));
        self.read_at = Time::ZERO;
        match address {
            IpAddr::V4(address) => {
                let to = to.unwrap_or(arp::BROADCAST);
                self.kernel.transmit(link.index, &arp::arp_probe(link.mac, address.into(), to))
            }
            IpAddr::V6(address) => {
                self.kernel.transmit(link.index, &ndp::ndp_probe(link.mac, address.into(), to))
            }
        }
    }

    /// When [`Self::claims`] and [`Self::report_groups`] have work.
    pub fn due(&self) -> Time {
        let probing = (!self.probed.is_empty()).then_some(self.read_at);
        let watching = (!self.watched.is_empty()).then_some(self.read_all_at);
        let groups = self.groups.values().min().copied();
        [probing, watching, groups].into_iter().flatten().min().unwrap_or(Time::MAX)
    }

    /// The machines that were seen to use watched addresses since the last call.
    pub fn claims(&mut self, now: Time) -> Vec<(u32, IpAddr, LinkAddress)> {
        let read: Vec<At> = if now >= self.read_all_at {
            self.read_all_at = now + OTHERWISE;
            self.watched.keys().copied().collect()
        } else if now >= self.read_at {
            self.probed.iter().copied().collect()
        } else {
            return Vec::new();
        };
        self.read_at = now + WHILE_PROBING;
        let mut claims = Vec::new();
        for at in read {
            let Ok(Some(claim)) = self.kernel.claim(at.0, at.1) else { continue };
            // Not the time at which the pass began.
            let seen = self::read_deadline_clock().saturating_sub(claim.age);
            let Some(last) = self.watched.get_mut(&at) else { continue };
            // Two readings of one claim differ by the time between two reads of the clock.
            if seen > *last + WHILE_PROBING / 2 {
                *last = seen;
                claims.push((at.0, at.1, claim.link_address));
            }
        }
        claims
    }

    /// Tells switches again which multicast groups the interfaces want.
    pub fn report_groups(&mut self, links: &BTreeMap<u32, LinkAddress>, now: Time) -> Result<()> {
        self.groups.retain(|device, _| links.contains_key(device));
        for (device, due) in self.groups.iter_mut().filter(|(_, due)| now >= **due) {
            *due = now + REPORT_GROUPS;
            if let Some(own) = links.get(device) {
                self.kernel.report_groups(*device, *own)?;
            }
        }
        Ok(())
    }
}
