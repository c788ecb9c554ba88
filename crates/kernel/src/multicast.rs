//! Multicast groups of an interface that stay joined without a process.
//!
//! A socket's membership ends with its process, and the kernel then reports to switches that the
//! group is left. The link-layer addresses that are added here stay until they or the interface are
//! removed: the network card accepts the group's frames, but the kernel sends no report to
//! switches. The agent sends these itself ([`lb_common::datapath::ndp::group_report`]).

use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use anyhow::{Context, Result};
use lb_common::datapath::arp::LinkAddress;
use nix::errno::Errno;
use nix::libc;
use nix::net::if_::if_indextoname;

/// Joins a group. Has no effect if it was joined here before.
pub fn join_multicast(device: u32, group: LinkAddress) -> Result<()> {
    change(libc::SIOCADDMULTI, device, group)
        .with_context(|| format!("interface {device} can't join a multicast group"))
}

/// Leaves a group. The kernel's own membership, if it has one, stays.
pub fn leave_multicast(device: u32, group: LinkAddress) -> Result<()> {
    match change(libc::SIOCDELMULTI, device, group) {
        // It was not joined, or the interface is gone.
        Err(Errno::ENOENT | Errno::ENODEV | Errno::ENXIO) | Ok(()) => Ok(()),
        Err(error) => {
            Err(error).with_context(|| format!("interface {device} can't leave a multicast group"))
        }
    }
}

fn change(request: libc::c_ulong, device: u32, group: LinkAddress) -> Result<(), Errno> {
    let name = if_indextoname(device)?;
    // SAFETY: plain numbers, for which zeros are valid.
    let mut asked: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.as_bytes_with_nul();
    for (to, from) in asked.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let mut address = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    for (to, from) in address.sa_data.iter_mut().zip(group) {
        *to = from as libc::c_char;
    }
    asked.ifr_ifru.ifru_hwaddr = address;
    // Any socket will do.
    let socket = UnixDatagram::unbound().map_err(|error| errno(&error))?;
    // SAFETY: the kernel reads the name and the address of the request, which outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request as _, &raw const asked) };
    Errno::result(result).map(drop)
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}

/// The link-local address of an interface, from which group reports are sent.
pub fn link_local(device: u32) -> io::Result<Option<Ipv6Addr>> {
    match fs::read_to_string("/proc/net/if_inet6") {
        // Without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => Ok(link_local_among(&text?, device)),
    }
}

/// Address, index, prefix length, scope and flags in hexadecimal numbers, and the name.
fn link_local_among(text: &str, device: u32) -> Option<Ipv6Addr> {
    /// `IFA_F_DADFAILED`, `IFA_F_TENTATIVE`.
    const UNUSABLE: u8 = 0x08 | 0x40;
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [address, index, _, scope, flags, _] = fields[..] else { return None };
        let address = Ipv6Addr::from_bits(u128::from_str_radix(address, 16).ok()?);
        let usable = u32::from_str_radix(index, 16).ok()? == device
            && scope == "20"
            && u8::from_str_radix(flags, 16).ok()? & UNUSABLE == 0;
        usable.then_some(address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_local_address_is_the_usable_one_of_the_interface() {
        const ADDRESSES: &str = "\
20010db8000000000000000000000001 03 40 00 80     eth0
fe80000000000000000000000000000a 02 40 20 80       lo
fe80000000000000000000000000000b 03 40 20 c0     eth0
fe80000000000000000000000000000c 03 40 20 80     eth0
fe80000000000000000000000000000d 0b 40 20 80     eth1
";
        let found = |device| link_local_among(ADDRESSES, device).map(|found| found.to_string());
        assert_eq!(found(3).as_deref(), Some("fe80::c"));
        assert_eq!(found(11).as_deref(), Some("fe80::d"));
        assert_eq!(found(4), None);
        assert_eq!(link_local_among("", 3), None);
    }
}
