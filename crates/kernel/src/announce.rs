//! Announced addresses in the kernel, which answers for them without the agent until a deadline.
//!
//! Invariant: the entries of the map are the list of the multicast groups that were joined for
//! them, so that the process that removes the entries, also after a crash, can leave the groups.
//!
//! Tests: `tests/tests/node/announce.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use aya::maps::{HashMap, MapData, MapError};
use lb_common::datapath::arp::LinkAddress;
use lb_common::datapath::ndp;
use lb_common::family::Address6;
use lb_common::layout::{self, Announced, AnnouncedAddress, map};
use nix::time::{ClockId, clock_gettime};

use super::data_plane::DataPlane;
use super::multicast;
use super::pins::Pins;
use super::plain::{Layout, Plain};
use super::removal::ignore_missing;
use super::transmit::Transmitter;

/// An entry of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The interface's index.
    pub device: u32,
    pub address: IpAddr,
    pub epoch: u32,
    /// How long requests are still answered; `None`: no longer.
    pub remaining: Option<Duration>,
}

/// Another machine that used a watched address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressClaim {
    pub link_address: LinkAddress,
    /// How long ago it was last seen.
    pub age: Duration,
}

type Entries<V> = HashMap<MapData, Plain<AnnouncedAddress>, Plain<V>>;

/// The only writer of announcements, and of the frames that go with them. Needs CAP_BPF and
/// CAP_NET_ADMIN.
pub struct Announcements {
    announced: Entries<Announced>,
    claims: Entries<layout::LastClaim>,
    /// All entries of `announced`, also those that an earlier agent left.
    present: BTreeMap<AnnouncedAddress, Announced>,
    transmitter: Arc<Transmitter>,
}

impl Announcements {
    /// Opens the maps, with the entries of an earlier agent. To be called once for a data plane.
    pub fn open(pins: &Pins, data_plane: &mut DataPlane) -> Result<Self> {
        let announced = pins.hash_map(map::ANNOUNCED)?;
        let present = read(&announced)?.collect();
        let claims = pins.hash_map(map::CLAIMS)?;
        Ok(Self { announced, claims, present, transmitter: Arc::new(data_plane.transmitter()?) })
    }

    /// For frames of other protocols.
    pub fn transmitter(&self) -> Arc<Transmitter> {
        Arc::clone(&self.transmitter)
    }

    /// All entries, valid or not, by interface and address.
    pub fn entries(&self) -> Result<Vec<Announcement>> {
        let now = clock_of_deadlines()?;
        let entry = |(at, entry): (&AnnouncedAddress, &Announced)| Announcement {
            device: at.device,
            address: at.ip(),
            epoch: entry.epoch,
            remaining: remaining(entry.deadline, now),
        };
        Ok(self.present.iter().map(entry).collect())
    }

    /// Makes the kernel answer requests for the address for `hold` from now on. Joins the address's
    /// multicast group first.
    pub fn announce(
        &mut self,
        device: u32,
        address: IpAddr,
        epoch: u32,
        hold: Duration,
    ) -> Result<()> {
        let at = AnnouncedAddress::new(device, address);
        let deadline = clock_of_deadlines()?.saturating_add(nanoseconds(hold));
        let entry = Announced { deadline, epoch, flags: 0 };
        if !self.present.contains_key(&at)
            && let Some(group) = group_of(address)
        {
            multicast::join_multicast(device, ndp::group_link(group))
                .with_context(|| format!("announcing {address}"))?;
        }
        self.announced
            .insert(Plain(at), Plain(entry), 0)
            .with_context(|| format!("{address} can't be written to {}", map::ANNOUNCED))?;
        self.present.insert(at, entry);
        Ok(())
    }

    /// Joins the groups of all announced addresses of an interface again: after the interface was
    /// created again under the same index, or when an agent has adopted the entries.
    pub fn join_groups(&self, device: u32) -> Result<()> {
        self.groups(device)
            .into_iter()
            .try_for_each(|group| multicast::join_multicast(device, ndp::group_link(group)))
    }

    /// The data plane no longer answers requests for the address: they pass to the stack.
    pub fn withdraw(&mut self, device: u32, address: IpAddr) -> Result<()> {
        let at = AnnouncedAddress::new(device, address);
        ignore_missing(self.announced.remove(&Plain(at)))
            .with_context(|| format!("{address} can't be removed from {}", map::ANNOUNCED))?;
        self.present.remove(&at);
        // Addresses may have a group in common.
        match group_of(address) {
            Some(group) if !self.groups(device).contains(&group) => {
                multicast::leave_multicast(device, ndp::group_link(group))
            }
            _ => Ok(()),
        }
    }

    /// The groups of all announced addresses of an interface.
    fn groups(&self, device: u32) -> BTreeSet<Address6> {
        let of_device = self.present.keys().filter(|at| at.device == device);
        of_device.filter_map(|at| group_of(at.ip())).collect()
    }

    /// Reports to switches which groups the interface wants. To be called when addresses were added
    /// and again before switches forget the groups (after 260 s, RFC 3810). Does nothing without a
    /// link-local address.
    pub fn report_groups(&self, device: u32, own: LinkAddress) -> Result<()> {
        let groups: Vec<Address6> = self.groups(device).into_iter().collect();
        if groups.is_empty() {
            return Ok(());
        }
        let Some(source) = multicast::link_local(device)? else { return Ok(()) };
        for groups in groups.chunks(ndp::GROUPS_PER_REPORT) {
            self.transmit(device, &ndp::group_report(own, source.into(), groups))?;
        }
        Ok(())
    }

    /// Starts watching for other machines that use the address. Uses that were seen before are
    /// forgotten.
    pub fn watch(&mut self, device: u32, address: IpAddr) -> Result<()> {
        let at = AnnouncedAddress::new(device, address);
        self.claims
            .insert(Plain(at), Plain(layout::LastClaim::default()), 0)
            .with_context(|| format!("{address} can't be written to {}", map::CLAIMS))
    }

    pub fn stop_watching(&mut self, device: u32, address: IpAddr) -> Result<()> {
        let at = AnnouncedAddress::new(device, address);
        ignore_missing(self.claims.remove(&Plain(at)))
            .with_context(|| format!("{address} can't be removed from {}", map::CLAIMS))
    }

    /// All watched addresses, also those of an earlier agent.
    pub fn watched(&self) -> Result<Vec<(u32, IpAddr)>> {
        Ok(read(&self.claims)?.map(|(at, _)| (at.device, at.ip())).collect())
    }

    /// The last other machine that was seen to use a watched address.
    pub fn claim(&self, device: u32, address: IpAddr) -> Result<Option<AddressClaim>> {
        let at = AnnouncedAddress::new(device, address);
        let found = match self.claims.get(&Plain(at), 0) {
            Err(MapError::KeyNotFound) => return Ok(None),
            found => found.with_context(|| format!("{address} in {}", map::CLAIMS))?,
        };
        let Plain(found) = found;
        let age = Duration::from_nanos(clock_of_deadlines()?.saturating_sub(found.time));
        let link_address = found.claimant.link_address;
        Ok(found.is_to(&at).then_some(AddressClaim { link_address, age }))
    }

    /// Sends a frame, which begins with its Ethernet header.
    pub fn transmit(&self, device: u32, frame: &[u8]) -> Result<()> {
        self.transmitter.transmit(device, frame)
    }
}

/// Leaves the multicast groups of all announced addresses, before the map is removed.
pub(super) fn leave_groups(pins: &Pins) -> Result<()> {
    let path = pins.map(map::ANNOUNCED);
    if !path.exists() {
        return Ok(());
    }
    let announced: Entries<Announced> = pins.hash_map(map::ANNOUNCED)?;
    for (at, _) in read(&announced)? {
        if let Some(group) = group_of(at.ip()) {
            multicast::leave_multicast(at.device, ndp::group_link(group))?;
        }
    }
    Ok(())
}

fn read<V: Layout>(entries: &Entries<V>) -> Result<impl Iterator<Item = (AnnouncedAddress, V)>> {
    let read: Vec<_> = entries.iter().collect::<Result<_, _>>()?;
    Ok(read.into_iter().map(|(Plain(at), Plain(value))| (at, value)))
}

/// The group to which solicitations for an address are sent; ARP needs none.
fn group_of(address: IpAddr) -> Option<Address6> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(ndp::solicited_node(address.into())),
    }
}

fn remaining(deadline: u64, now: u64) -> Option<Duration> {
    let left = deadline.saturating_sub(now);
    (left > 0).then(|| Duration::from_nanos(left))
}

/// The clock of deadlines and claims, in nanoseconds.
pub fn clock_of_deadlines() -> Result<u64> {
    let clock = clock_gettime(ClockId::CLOCK_BOOTTIME)?;
    Ok(clock.tv_sec() as u64 * 1_000_000_000 + clock.tv_nsec() as u64)
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}
