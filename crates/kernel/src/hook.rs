//! The hooks of devices and sockets, and the programs for them.

use std::fmt::{self, Display};

use aya::programs::{CgroupSockAddrAttachType, CgroupSockAttachType};

/// Hooks of a device, in the order of attachment: replies must be translated before requests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookPoint {
    /// tc egress.
    Out,
    /// tc egress of a device without link-layer headers.
    RawOut,
    /// tc ingress of a pod's device.
    WorkloadIn,
    /// tc ingress: the packets that XDP has left to tc.
    ExternalDeferred,
    /// tc ingress of an external device without XDP.
    ExternalInTc,
    /// tc ingress of a device without link-layer headers.
    RawIn,
    /// XDP of an external device.
    ExternalIn,
}

impl HookPoint {
    pub const ALL: [Self; 7] = [
        Self::Out,
        Self::RawOut,
        Self::WorkloadIn,
        Self::ExternalDeferred,
        Self::ExternalInTc,
        Self::RawIn,
        Self::ExternalIn,
    ];

    /// The name of the program for this hook point.
    pub fn program(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::RawOut => "raw_out",
            Self::WorkloadIn => "workload_in",
            Self::ExternalDeferred => "external_deferred",
            Self::ExternalInTc => "external_in_tc",
            Self::RawIn => "raw_in",
            Self::ExternalIn => "external_in",
        }
    }

    pub fn is_egress(self) -> bool {
        self.slot() == Slot::Tc(Direction::Egress)
    }

    /// The hook point of a program, by its name as truncated by the kernel.
    pub(crate) fn of_program(name: &str) -> Option<Self> {
        const KEPT: usize = 15;
        let kept = |point: &Self| point.program().get(..KEPT).unwrap_or(point.program()) == name;
        Self::ALL.into_iter().find(kept)
    }
}

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    XdpNative,
    TcxIngress,
    TcxEgress,
    ClsactIngress,
    ClsactEgress,
}

impl Hook {
    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::XdpNative => "xdp_native",
            Self::TcxIngress => "tcx_ingress",
            Self::TcxEgress => "tcx_egress",
            Self::ClsactIngress => "clsact_ingress",
            Self::ClsactEgress => "clsact_egress",
        }
    }
}

impl Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::XdpNative => "native XDP",
            Self::TcxIngress => "tcx ingress",
            Self::TcxEgress => "tcx egress",
            Self::ClsactIngress => "clsact ingress",
            Self::ClsactEgress => "clsact egress",
        })
    }
}

/// A direction of packets in tc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// A direction of a device; one hook point at a time occupies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    Xdp,
    Tc(Direction),
}

impl HookPoint {
    pub fn slot(self) -> Slot {
        match self {
            Self::Out | Self::RawOut => Slot::Tc(Direction::Egress),
            Self::WorkloadIn | Self::ExternalDeferred | Self::ExternalInTc | Self::RawIn => {
                Slot::Tc(Direction::Ingress)
            }
            Self::ExternalIn => Slot::Xdp,
        }
    }
}

impl Slot {
    /// The links that may occupy it.
    pub fn links(self) -> &'static [Hook] {
        match self {
            Self::Xdp => &[Hook::XdpNative],
            Self::Tc(Direction::Ingress) => &[Hook::TcxIngress],
            Self::Tc(Direction::Egress) => &[Hook::TcxEgress],
        }
    }
}

/// In the order of attachment: the programs that translate addresses back for processes come
/// before those that redirect sockets.
pub(crate) const SOCKET_PROGRAMS: [&str; 9] = [
    "sock_release",
    "getpeername4",
    "getpeername6",
    "recvmsg4",
    "recvmsg6",
    "sendmsg4",
    "sendmsg6",
    "connect4",
    "connect6",
];

/// The attach type of the program that sees closed sockets.
pub(crate) const SOCKET_HOOK: CgroupSockAttachType = CgroupSockAttachType::SockRelease;

/// The attach type of a program that sees addresses.
pub(crate) fn address_hook(program: &str) -> Option<CgroupSockAddrAttachType> {
    use CgroupSockAddrAttachType as Hook;
    Some(match program {
        "connect4" => Hook::Connect4,
        "connect6" => Hook::Connect6,
        "getpeername4" => Hook::GetPeerName4,
        "getpeername6" => Hook::GetPeerName6,
        "recvmsg4" => Hook::UDPRecvMsg4,
        "recvmsg6" => Hook::UDPRecvMsg6,
        "sendmsg4" => Hook::UDPSendMsg4,
        "sendmsg6" => Hook::UDPSendMsg6,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_program_has_its_hook() {
        for point in HookPoint::ALL {
            let kept: String = point.program().chars().take(15).collect();
            assert_eq!(HookPoint::of_program(&kept), Some(point));
        }
        assert_eq!(HookPoint::of_program("external"), None);
    }

    #[test]
    fn how_each_program_is_attached_follows_from_its_name() {
        for program in SOCKET_PROGRAMS {
            assert_eq!(address_hook(program).is_none(), program == "sock_release", "{program}");
        }
    }
}
