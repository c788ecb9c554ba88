//! What happens to a packet.

use super::handover::NextStage;
use super::tables::Counters;
use crate::layout::Reason;

/// Metadata in front of a deferred packet. It is never transmitted.
pub const DEFERRED: u32 = 0x4d69_6c6c;

/// The limit of stages for one packet: the kernel's limit of consecutive tail calls, less the one that
/// brings a deferred packet to its first program in tc ([`ARRIVE`]).
pub const MOST_STAGES: u32 = 33 - 1;

/// What happens to a packet.
///
/// One number: the verifier has difficulties with values that only some variants have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The packet continues up or down the stack, translated or not.
    Pass,
    /// The packet is dropped; the reason has been counted.
    Drop,
    /// The packet goes back through the interface on which it arrived; its link-layer header is complete.
    /// Back to a process of this node ([`Role::Node`](super::Role)): into the stack, as if it arrived there.
    Transmit,
    /// The packet leaves through the interface of [`Packet::leave_by`](super::Packet); its
    /// link-layer header is complete.
    Redirect,
    /// As [`Self::Redirect`], but the stack resolves the next hop's link-layer address.
    Resolve,
    /// The packet continues unmodified to the next hook (tc after XDP), which can do more.
    Defer,
    /// The frame is for another machine, as far as the programs know: it passes unmodified. XDP
    /// marks it for tc if it can, because this machine's link-layer addresses may just have
    /// changed, and in tc the kernel has recognised whether a frame is for this machine.
    Yield,
    /// The packet is not addressed to a Service, or cannot be recognised as such: it passes
    /// unmodified; the reason has been counted. Distinct from [`Self::Pass`], so that only packets with a reason
    /// are reported.
    Decline,
    /// The packet continues in another stage.
    Next(NextStage),
}

/// Passes the list of stages to a macro, with the names of their programs in XDP and tc. XDP has
/// only the stages of arriving packets.
#[macro_export]
macro_rules! for_each_stage {
    ($callback:ident) => {
        $callback! {
            /// An arriving packet that belongs to no flow. Given: whether its client has no other flow from
            /// its port, and which backend it avoids.
            Open(xdp_open, tc_open)
            /// A packet whose flow was drafted
            /// ([`FamilyTables::draft`](crate::datapath::FamilyTables)): stores the flow.
            Begin(xdp_begin, tc_begin)
            /// A packet whose flow was found or begun: the decision about it is in the draft.
            Send(xdp_send, tc_send)
            /// A packet without a flow in its client's buckets, of a client with flows in other
            /// buckets.
            Spread(xdp_spread, tc_spread)
            /// A packet whose drafted flow is found by the reply index.
            Snat(xdp_snat, tc_snat)
            /// A packet whose drafted flow gets no entry.
            Untracked(xdp_untracked, tc_untracked)
            /// A TCP packet that is rejected by a reset.
            Reset(xdp_reset, tc_reset)
            /// A packet that is rejected by an ICMP error. Given: the [`Rejection`](super::Rejection).
            Reject(xdp_reject, tc_reject)
            /// An arriving packet that no port of a Service takes: the address of a load balancer behaves
            /// like that of a host.
            Unserved(xdp_unserved, tc_unserved)
            /// An arriving ICMP packet, possibly an error about a packet of a flow.
            ErrorIn(xdp_error_in, tc_error_in)
            /// A leaving ICMP packet.
            ErrorOut(, tc_error_out)
            /// An arriving fragment, or a SYN for which there is a flow.
            FragmentIn(xdp_fragment_in, tc_fragment_in)
            /// A leaving fragment.
            FragmentOut(, tc_fragment_out)
            /// A leaving packet of a backend: the decision about it is in the draft.
            Reply(, tc_reply)
            /// A packet that is sent through a tunnel to another node. Given: the
            /// [`Encapsulation`](crate::datapath::Encapsulation).
            Encapsulate(xdp_encapsulate, tc_encapsulate)
            /// An arriving packet that may have come through a tunnel.
            Decapsulate(xdp_decapsulate, tc_decapsulate)
            /// A decapsulated packet. Given: its tag, which names the backend.
            Delivered(xdp_delivered, tc_delivered)
            /// A decapsulated packet that belongs to no flow.
            Accept(xdp_accept, tc_accept)
            /// A packet in the middle of an unknown connection, of a slot that may have had another
            /// owner when the connection began.
            Earlier(xdp_earlier, tc_earlier)
            /// A packet between a client and a backend that bypasses Services: it ends an earlier
            /// flow between them.
            Shadow(xdp_shadow, tc_shadow)
            /// A client's repeated SYN, or a backend's reset that refuses one: the connection may move to another
            /// backend. Given: its flow's location.
            Redispatch(, tc_redispatch)
            /// An arriving packet of bidirectional forwarding detection.
            Bfd(xdp_bfd, tc_bfd)
            /// A packet of ARP or neighbour discovery from outside.
            Neighbour(, tc_neighbour)
        }
    };
}

macro_rules! define_stages {
    ($($(#[$about:meta])* $stage:ident($($xdp:ident)?, $tc:ident))*) => {
        /// A part of the data plane that only few packets need.
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

/// Index, behind those of the stages, of the program that reports a packet after its last stage.
pub const REPORT: u32 = Stage::ALL.len() as u32;

/// Index, in tc, of the program that handles arriving packets from the beginning: those that XDP has
/// deferred.
pub const ARRIVE: u32 = REPORT + 1;

/// Passes a packet unmodified, and counts the reason.
#[inline(always)]
pub fn pass_for<T: Counters>(tables: &T, reason: Reason) -> Verdict {
    tables.count(reason);
    Verdict::Decline
}

/// Drops a packet, and counts the reason.
#[inline(always)]
pub fn drop_for<T: Counters>(tables: &T, reason: Reason) -> Verdict {
    tables.count(reason);
    Verdict::Drop
}
