//! What happens to a packet.

use super::tables::Counters;
use crate::layout::Reason;

/// Mark of a deferred packet, in memory in front of it that is never sent.
pub const DEFERRED: u32 = 0x4d69_6c6c;

/// What happens to a packet.
///
/// One number: the verifier has difficulties with values that only some variants have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Continues up or down the stack, translated or unmodified.
    Pass,
    /// Dropped; the reason has been counted.
    Drop,
    /// Sent out of the interface on which it arrived. Its link-layer header is complete.
    Transmit,
    /// Sent out of the interface of [`Packet::leave_by`](super::Packet). Its link-layer header is
    /// complete.
    Redirect,
    /// Like `Redirect`, but the stack resolves the next hop's link-layer address.
    Resolve,
    /// Passed unmodified to the next ingress hook, which can do more.
    Defer,
    /// Not addressed to a Service, or not recognizably so: passes unmodified; the reason has been
    /// counted. Distinct from the frequent [`Self::Pass`], so that only packets with a reason are
    /// reported.
    Decline,
    /// Continues in another stage.
    Next(Stage),
}

/// The list of stages, as input of a macro. Each has the name of its program in XDP, if the stage
/// runs at ingress, and in tc.
#[macro_export]
macro_rules! for_each_stage {
    ($callback:ident) => {
        $callback! {
            /// A packet at ingress that belongs to no flow.
            Open(xdp_open, tc_open)
            /// A packet whose flow, [`FamilyTables::draft`](crate::datapath::FamilyTables), is to
            /// be stored.
            Begin(xdp_begin, tc_begin)
            /// A packet without a flow in its client's buckets, of a client that also has flows in
            /// others.
            Spread(xdp_spread, tc_spread)
            /// A packet whose flow, [`FamilyTables::draft`](crate::datapath::FamilyTables), needs
            /// the reply index.
            Snat(xdp_snat, tc_snat)
            /// A packet whose flow, [`FamilyTables::draft`](crate::datapath::FamilyTables), gets no
            /// entry.
            Untracked(xdp_untracked, tc_untracked)
            /// A TCP packet to be answered with a reset.
            Reset(xdp_reset, tc_reset)
            /// A packet to be answered with the ICMP error in
            /// [`Scratch::rejection`](crate::datapath::Scratch).
            Reject(xdp_reject, tc_reject)
            /// An ICMP packet at ingress: possibly an error about a packet of a flow.
            ErrorIn(xdp_error_in, tc_error_in)
            /// An ICMP packet at egress.
            ErrorOut(, tc_error_out)
            /// A fragment at ingress.
            FragmentIn(xdp_fragment_in, tc_fragment_in)
            /// A fragment at egress.
            FragmentOut(, tc_fragment_out)
            /// A packet to be tunnelled to another node, as
            /// [`Scratch::handover`](crate::datapath::Scratch) says.
            Encapsulate(xdp_encapsulate, tc_encapsulate)
            /// A packet at ingress that may come from a tunnel.
            Decapsulate(xdp_decapsulate, tc_decapsulate)
            /// A decapsulated packet; [`Scratch::tag`](crate::datapath::Scratch) names its backend.
            Delivered(xdp_delivered, tc_delivered)
            /// A decapsulated packet that belongs to no flow.
            Accept(xdp_accept, tc_accept)
            /// A packet between a client and a backend that bypasses Services: ends an earlier flow
            /// between the two.
            Shadow(xdp_shadow, tc_shadow)
        }
    };
}

macro_rules! define_stages {
    ($($(#[$about:meta])* $stage:ident($($xdp:ident)?, $tc:ident))*) => {
        /// What follows the steps that all packets take.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Stage {
            $($(#[$about])* $stage,)*
        }

        impl Stage {
            pub const ALL: [Self; [$(stringify!($stage)),*].len()] = [$(Self::$stage),*];

            /// The name of its XDP program, if it has one.
            pub const fn xdp_program(self) -> Option<&'static str> {
                match self {
                    $(Self::$stage => first(&[$(stringify!($xdp))?]),)*
                }
            }

            /// The name of its tc program.
            pub const fn tc_program(self) -> &'static str {
                match self {
                    $(Self::$stage => stringify!($tc),)*
                }
            }
        }
    };
}

for_each_stage!(define_stages);

const fn first(names: &[&'static str]) -> Option<&'static str> {
    if names.is_empty() { None } else { Some(names[0]) }
}

/// Index of the program, after those of the stages, that reports a packet at its end.
pub const TELL: u32 = Stage::ALL.len() as u32;

/// The ICMP error sent to a packet's sender.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejection {
    pub kind: RejectionKind,
    /// The largest length that fits, for `TOO_BIG`.
    pub mtu: u32,
}

#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectionKind(pub u32);

impl RejectionKind {
    /// No backend serves the port.
    pub const PORT_UNREACHABLE: Self = Self(0);
    pub const TOO_BIG: Self = Self(1);
    pub const HOP_LIMIT: Self = Self(2);
}

impl Rejection {
    pub const PORT_UNREACHABLE: Self = Self { kind: RejectionKind::PORT_UNREACHABLE, mtu: 0 };
    pub const HOP_LIMIT: Self = Self { kind: RejectionKind::HOP_LIMIT, mtu: 0 };

    #[inline(always)]
    pub fn too_big(mtu: u32) -> Self {
        Self { kind: RejectionKind::TOO_BIG, mtu }
    }
}

/// Passes a packet unmodified, and counts why.
#[inline(always)]
pub fn pass_for<T: Counters>(tables: &T, reason: Reason) -> Verdict {
    tables.count(reason);
    Verdict::Decline
}

/// Drops a packet, and counts why.
#[inline(always)]
pub fn drop_for<T: Counters>(tables: &T, reason: Reason) -> Verdict {
    tables.count(reason);
    Verdict::Drop
}
