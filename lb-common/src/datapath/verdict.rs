//! What becomes of a packet.

use super::tables::Counters;
use crate::layout::Reason;

/// What stands before a packet that was deferred, in memory that never meets a wire.
pub const DEFERRED: u32 = 0x4d69_6c6c;

/// What happens to a packet.
///
/// One number: the kernel's verifier does not like values that are there in some variants only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It goes on its way, translated or untouched.
    Pass,
    /// It ends here; the reason has been counted.
    Drop,
    /// It leaves by the device it came in by; its link-layer header is complete.
    Transmit,
    /// It leaves by the device of [`Packet::leave_by`](super::Packet); its link-layer header is
    /// complete.
    Redirect,
    /// The same, but the stack is to find out the next hop's link-layer address.
    Resolve,
    /// Untouched, it goes to the hook behind this one on its way in, which can do more.
    Defer,
    /// It is not addressed to a Service after all, or can't be told to be: it passes untouched; the
    /// reason has been counted. Apart from the hot [`Self::Pass`], so that only those are reported
    /// that have one.
    Decline,
    /// Another stage is to decide.
    Next(Stage),
}

/// The list of stages, with the names of their programs in XDP, which has only those that packets
/// come to on their way in, and in tc. Hands it to a macro.
#[macro_export]
macro_rules! for_each_stage {
    ($callback:ident) => {
        $callback! {
            /// A packet on its way in that belongs to no flow.
            Open(xdp_open, tc_open)
            /// One whose flow was drafted: [`FamilyTables::draft`](crate::datapath::FamilyTables). It gets an entry.
            Begin(xdp_begin, tc_begin)
            /// A packet that belongs to no flow where its client's are, of a client that has flows elsewhere.
            Spread(xdp_spread, tc_spread)
            /// One that opens a flow which has to do with the reply index: [`FamilyTables::draft`](crate::datapath::FamilyTables) is the flow.
            Snat(xdp_snat, tc_snat)
            /// One for whose flow there is no entry: [`FamilyTables::draft`](crate::datapath::FamilyTables) is the flow.
            Untracked(xdp_untracked, tc_untracked)
            /// A TCP packet that is answered by a reset.
            Reset(xdp_reset, tc_reset)
            /// A packet that is answered by an ICMP error: [`Scratch::rejection`](crate::datapath::Scratch) says by which.
            Reject(xdp_reject, tc_reject)
            /// An ICMP packet on its way in: an error about a packet of a flow, perhaps.
            ErrorIn(xdp_error_in, tc_error_in)
            /// The same on its way out.
            ErrorOut(, tc_error_out)
            /// A fragment on its way in.
            FragmentIn(xdp_fragment_in, tc_fragment_in)
            /// A fragment on its way out.
            FragmentOut(, tc_fragment_out)
            /// A packet that goes through a tunnel to another node: [`Scratch::handover`](crate::datapath::Scratch) says where.
            Encapsulate(xdp_encapsulate, tc_encapsulate)
            /// A packet on its way in that may have come through a tunnel.
            Decapsulate(xdp_decapsulate, tc_decapsulate)
            /// A decapsulated packet; [`Scratch::tag`](crate::datapath::Scratch) names its backend.
            Delivered(xdp_delivered, tc_delivered)
            /// A decapsulated packet that belongs to no flow.
            Accept(xdp_accept, tc_accept)
            /// A packet between a client and a backend past all Services: it ends an earlier flow between them.
            Shadow(xdp_shadow, tc_shadow)
        }
    };
}

macro_rules! define_stages {
    ($($(#[$about:meta])* $stage:ident($($xdp:ident)?, $tc:ident))*) => {
        /// What comes after the ladder that all packets climb.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Stage {
            $($(#[$about])* $stage,)*
        }

        impl Stage {
            pub const ALL: [Self; [$(stringify!($stage)),*].len()] = [$(Self::$stage),*];

            /// The name of its program in XDP, if it has one there.
            pub const fn xdp_program(self) -> Option<&'static str> {
                match self {
                    $(Self::$stage => first(&[$(stringify!($xdp))?]),)*
                }
            }

            /// The name of its program in tc.
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

/// Where, behind the stages, the program is that reports a packet at its end.
pub const TELL: u32 = Stage::ALL.len() as u32;

/// What a packet's sender is told.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejection {
    pub kind: RejectionKind,
    /// What would fit, for those that are too big.
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

/// Passes a packet untouched, and counts why.
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
