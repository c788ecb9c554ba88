//! tc filters of a device's clsact qdisc: how programs are attached where the kernel has no tcx.
//!
//! Filters belong to the device and not to a link that could be pinned: they stay until they are
//! removed. Millrace's filters are recognised by their name; no others are touched.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use anyhow::{Context, Result, anyhow, bail};
use lb_network::netlink::{
    Netlink, encode_attribute, encode_text_attribute, read_attributes, read_text, read_u32_at,
};
use nix::libc::{
    EEXIST, ENODEV, ENOENT, ETH_P_ALL, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_ECHO, NLM_F_EXCL,
    RTM_DELQDISC, RTM_DELTFILTER, RTM_GETQDISC, RTM_GETTFILTER, RTM_NEWQDISC, RTM_NEWTFILTER,
};
use nix::sys::socket::SockProtocol;

use crate::hook::Direction;

/// `struct tcmsg`: family, padding, device, handle, parent, information.
const HEADER: usize = 20;
const HANDLE: usize = 8;
const INFORMATION: usize = 16;

/// <https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/pkt_sched.h>
const TC_H_CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;

/// <https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/pkt_cls.h>
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_ID: u16 = 11;
/// The program's return value decides what happens to the packet.
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;

/// The lowest priority for the filter; it comes behind filters that exist. Early, because tcx
/// programs run before all filters.
const PRIORITY: u16 = 2;
const FILTER_HANDLE: u32 = 1;

/// The parent of a direction's filters.
fn parent(direction: Direction) -> u32 {
    match direction {
        Direction::Ingress => CLSACT_HANDLE | 0xfff2,
        Direction::Egress => CLSACT_HANDLE | 0xfff3,
    }
}

/// The filters of one owner, recognised by name, on the devices of this network namespace.
pub(crate) struct Filters {
    netlink: Netlink,
    name: String,
}

/// The position of a filter in its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    priority: u16,
    handle: u32,
}

/// A filter in a dump.
struct DumpedFilter {
    position: Position,
    name: Option<String>,
    /// The program's id.
    program: Option<u32>,
}

impl Filters {
    pub fn open(name: String) -> Result<Self> {
        let netlink = Netlink::open(SockProtocol::NetlinkRoute)
            .context("no netlink socket can be opened, so no tc filters can be set")?;
        Ok(Self { netlink, name })
    }

    /// Adds a clsact qdisc unless the device has one; returns whether it was added.
    pub(crate) fn ensure_qdisc(&mut self, device: u32, name: &str) -> Result<bool> {
        let body = [
            header(device, CLSACT_HANDLE, TC_H_CLSACT, 0),
            encode_text_attribute(TCA_KIND, "clsact"),
        ]
        .concat();
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        match self.netlink.ask(RTM_NEWQDISC, flags, &body, |_| ()) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(EEXIST) => {
                let kind = self.qdisc(device)?.unwrap_or_default();
                if kind != "clsact" {
                    bail!(
                        "a qdisc {kind:?} is where clsact has to be, and only one of them fits.\n\
                         If it is not needed, `tc qdisc del dev {name} ingress` removes it, with \
                         its filters"
                    );
                }
                Ok(false)
            }
            Err(error) if error.raw_os_error() == Some(ENOENT) => Err(anyhow!(error).context(
                "this kernel has neither tcx nor clsact.\n\
                 Load the modules sch_ingress and cls_bpf, or use a kernel with \
                 CONFIG_NET_SCH_INGRESS and CONFIG_NET_CLS_BPF",
            )),
            Err(error) => Err(error).context("no clsact qdisc can be made"),
        }
    }

    /// Sets the filter of this direction. The program of an existing filter is replaced atomically.
    /// Returns whether the filter is new.
    pub fn set(
        &mut self,
        device: u32,
        direction: Direction,
        program: BorrowedFd<'_>,
    ) -> Result<bool> {
        let there = self.list(device, direction)?;
        let ours = there.iter().find(|filter| filter.name.as_ref() == Some(&self.name));
        let (position, flags) = match ours {
            Some(filter) => (filter.position, 0),
            None => (free_position(&there), NLM_F_EXCL),
        };
        let options = [
            encode_attribute(TCA_BPF_FD, &program.as_raw_fd().to_ne_bytes()),
            encode_text_attribute(TCA_BPF_NAME, &self.name),
            encode_attribute(TCA_BPF_FLAGS, &TCA_BPF_FLAG_ACT_DIRECT.to_ne_bytes()),
        ]
        .concat();
        let body = [
            header(device, position.handle, parent(direction), position.information()),
            encode_text_attribute(TCA_KIND, "bpf"),
            encode_attribute(TCA_OPTIONS, &options),
        ]
        .concat();
        let flags = NLM_F_ACK | NLM_F_CREATE | flags;
        match self.netlink.ask(RTM_NEWTFILTER, flags, &body, |_| ()) {
            Ok(()) => Ok(ours.is_none()),
            Err(error) if error.raw_os_error() == Some(ENOENT) => Err(anyhow!(error).context(
                "this kernel has no BPF filters.\n\
                 Load the module cls_bpf, or use a kernel with CONFIG_NET_CLS_BPF",
            )),
            Err(error) => Err(error).context("no tc filter can be set"),
        }
    }

    /// Whether the filter of this direction exists.
    pub fn has(&mut self, device: u32, direction: Direction) -> Result<bool> {
        Ok(self.program(device, direction)?.is_some())
    }

    /// The program id of the filter of this direction, if it exists.
    pub fn program(&mut self, device: u32, direction: Direction) -> Result<Option<u32>> {
        let there = self.list(device, direction)?;
        let ours = there.into_iter().find(|filter| filter.name.as_ref() == Some(&self.name));
        Ok(ours.map(|filter| filter.program.unwrap_or_default()))
    }

    /// The names of other owners' filters.
    pub fn others(&mut self, device: u32, direction: Direction) -> Result<Vec<String>> {
        let names = self.list(device, direction)?.into_iter().filter_map(|filter| filter.name);
        Ok(names.filter(|name| *name != self.name).collect())
    }

    /// Removes the filter of this direction; returns false if there is none, or no such device.
    pub fn remove(&mut self, device: u32, direction: Direction) -> Result<bool> {
        let there = self.list(device, direction)?;
        let Some(ours) = there.iter().find(|filter| filter.name.as_ref() == Some(&self.name))
        else {
            return Ok(false);
        };
        let Position { handle, .. } = ours.position;
        let body = [
            header(device, handle, parent(direction), ours.position.information()),
            encode_text_attribute(TCA_KIND, "bpf"),
        ]
        .concat();
        match self.netlink.ask(RTM_DELTFILTER, NLM_F_ACK, &body, |_| ()) {
            Err(error) if !is_gone(&error) => Err(error).context("the tc filter can't be removed"),
            _ => Ok(true),
        }
    }

    /// Removes the clsact qdisc if it has no filters of any owner.
    pub(crate) fn remove_qdisc_if_empty(&mut self, device: u32) -> Result<()> {
        for direction in Direction::ALL {
            if !self.list(device, direction)?.is_empty() {
                return Ok(());
            }
        }
        let body = header(device, CLSACT_HANDLE, TC_H_CLSACT, 0);
        match self.netlink.ask(RTM_DELQDISC, NLM_F_ACK, &body, |_| ()) {
            Err(error) if !is_gone(&error) => Err(error).context("clsact can't be removed"),
            _ => Ok(()),
        }
    }

    /// The kind of the qdisc at the handle of clsact.
    fn qdisc(&mut self, device: u32) -> Result<Option<String>> {
        let mut found = None;
        let body = header(device, 0, TC_H_CLSACT, 0);
        self.netlink
            // Without ECHO the response goes only to subscribers of changes.
            .ask(RTM_GETQDISC, NLM_F_ACK | NLM_F_ECHO, &body, |body| {
                let kind = read_attributes(body.get(HEADER..).unwrap_or_default())
                    .find(|&(kind, _)| kind == TCA_KIND);
                found = kind.map(|(_, value)| read_text(value));
            })
            .context("the kernel does not list its qdiscs")?;
        Ok(found)
    }

    /// All filters of this direction; none if the device has no qdisc or was removed.
    fn list(&mut self, device: u32, direction: Direction) -> Result<Vec<DumpedFilter>> {
        let mut found = Vec::new();
        let body = header(device, 0, parent(direction), 0);
        let result = self.netlink.ask(RTM_GETTFILTER, NLM_F_DUMP, &body, |body| {
            found.extend(read_filter(body));
        });
        match result {
            Err(error) if !is_gone(&error) => Err(error).context("listing the tc filters"),
            _ => Ok(found),
        }
    }
}

impl Position {
    fn information(self) -> u32 {
        u32::from(self.priority) << 16 | u32::from((ETH_P_ALL as u16).to_be())
    }
}

/// `struct tcmsg`
fn header(device: u32, handle: u32, parent: u32, information: u32) -> Vec<u8> {
    let words = [0, device, handle, parent, information];
    let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
    debug_assert_eq!(bytes.len(), HEADER);
    bytes
}

fn read_filter(body: &[u8]) -> Option<DumpedFilter> {
    let position = Position {
        handle: read_u32_at(body, HANDLE)?,
        priority: (read_u32_at(body, INFORMATION)? >> 16) as u16,
    };
    let find = |bytes, wanted| {
        read_attributes(bytes).find(|&(kind, _)| kind == wanted).map(|(_, value)| value)
    };
    let attributes = body.get(HEADER..)?;
    let is_bpf = find(attributes, TCA_KIND).is_some_and(|kind| read_text(kind) == "bpf");
    let options = find(attributes, TCA_OPTIONS).filter(|_| is_bpf).unwrap_or_default();
    Some(DumpedFilter {
        position,
        name: find(options, TCA_BPF_NAME).map(read_text),
        program: find(options, TCA_BPF_ID).and_then(|id| read_u32_at(id, 0)),
    })
}

/// A priority without other filters: all filters of a priority must have the same kind, and some
/// software replaces any filter with the handle it uses.
fn free_position(there: &[DumpedFilter]) -> Position {
    let taken = |priority: &u16| there.iter().any(|found| found.position.priority == *priority);
    let priority = (PRIORITY..u16::MAX).find(|priority| !taken(priority));
    Position { priority: priority.unwrap_or(u16::MAX), handle: FILTER_HANDLE }
}

/// Whether the device, its qdisc or the filter does not exist.
fn is_gone(error: &io::Error) -> bool {
    use nix::libc::EINVAL;
    // EINVAL: the device has no such qdisc, so that the parent is invalid.
    error.raw_os_error().is_some_and(|code| [ENODEV, ENOENT, EINVAL].contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(priority: u16, kind: &str, name: &str) -> Vec<u8> {
        let position = Position { priority, handle: 7 };
        let options = [
            encode_text_attribute(TCA_BPF_NAME, name),
            encode_attribute(TCA_BPF_ID, &42u32.to_ne_bytes()),
        ]
        .concat();
        [
            header(3, position.handle, parent(Direction::Egress), position.information()),
            encode_text_attribute(TCA_KIND, kind),
            encode_attribute(TCA_OPTIONS, &options),
        ]
        .concat()
    }

    #[test]
    fn a_filter_is_read_as_it_is_written() {
        let found = read_filter(&filter(12, "bpf", "millrace")).expect("it is whole");
        assert_eq!(found.position, Position { priority: 12, handle: 7 });
        assert_eq!(found.name.as_deref(), Some("millrace"));
        assert_eq!(found.program, Some(42));
        let other = read_filter(&filter(12, "flower", "millrace")).expect("it is whole");
        assert_eq!(other.name, None, "attribute numbers of other kinds mean other things");
        assert!(read_filter(&[0; HEADER - 1]).is_none());
    }

    #[test]
    fn no_other_filter_has_the_priority() {
        let there = |priorities: &[u16]| -> Vec<DumpedFilter> {
            let filter = |&priority| read_filter(&filter(priority, "bpf", "other"));
            priorities.iter().filter_map(filter).collect()
        };
        assert_eq!(free_position(&[]).priority, 2);
        assert_eq!(free_position(&there(&[1, 3])).priority, 2);
        assert_eq!(free_position(&there(&[1, 2, 3, 49152])).priority, 4);
    }
}
