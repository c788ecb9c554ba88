//! Parts of stages that the verifier checks separately, as global BPF functions.
//!
//! The verifier follows inlined code and static functions once for each state in which they are
//! reached, but checks a global function only once, for any state. It knows nothing about a number
//! that one returns or leaves in a map, so it also follows the code after it only once. So what many
//! paths of the less frequent stages reach is a global function, and the programs load faster. These
//! functions return a number: they read the draft, and store all other results in it.

use crate::layout::Reason;
use crate::verifier::opaque;

/// The bit of a result that is a reason.
const FAILED: u32 = 1 << 8;

/// A reason as a function's result.
#[inline(always)]
pub fn result_of(reason: Reason) -> u32 {
    FAILED | reason as u32
}

/// The reason in a result. By a mask: before Linux 6.10 the verifier loses the bounds of a number across a
/// subtraction.
#[inline(always)]
pub fn reason_in(result: u32) -> Reason {
    let number = opaque(u64::from(result & (FAILED - 1)));
    Reason::ALL.get(number as usize).copied().unwrap_or(Reason::CorruptTable)
}

/// Defines the result of a function: an enum that both sides of the call share. A number that is none of
/// its variants is the one after `otherwise`.
macro_rules! function_result {
    (
        $(#[$about:meta])*
        pub enum $name:ident {
            $($(#[$variant_about:meta])* $variant:ident,)*
        }
        otherwise $otherwise:ident
    ) => {
        $(#[$about])*
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_about])* $variant,)*
        }

        impl $name {
            /// The result as the function returns it.
            #[inline(always)]
            pub fn number(self) -> u32 {
                self as u32
            }

            /// The result that a function has returned as a number.
            #[inline(always)]
            pub fn from_number(number: u32) -> Self {
                match number {
                    $(number if number == Self::$variant as u32 => Self::$variant,)*
                    _ => Self::$otherwise,
                }
            }
        }
    };
}

pub(super) use function_result;

/// Passes the list of functions to a macro, with the names of the kernel's functions for IPv4 and
/// IPv6.
#[macro_export]
macro_rules! for_each_function {
    ($callback:ident) => {
        $callback! {
            /// Stores the drafted flow in the buckets of its client's address and port.
            Begin(begin4, begin6)
            /// As [`Function::Begin`], for a flow whose client's address and port have no other.
            BeginAlone(begin_alone4, begin_alone6)
            /// Stores the drafted flow, which is found by the reply index.
            BeginIndexed(begin_indexed4, begin_indexed6)
            /// Chooses an SNAT port that the drafted flow may try, as a last resort that of a flow that it evicts.
            ChoosePort(choose_port4, choose_port6)
            /// Tries one of the ports among which [`Function::ChoosePort`] chooses.
            TryPort(try_port4, try_port6)
            /// Stores the drafted flow's location in the reply index.
            Index(index4, index6)
            /// Whether replies to the drafted flow would be mistaken for those of another.
            IsTaken(is_taken4, is_taken6)
            /// As [`Function::IsTaken`], by a flow in one bucket of its client.
            IsTakenInBucket(is_taken_in_bucket4, is_taken_in_bucket6)
            /// Finds the flow of the stored segment, of a client, in the buckets of the stored hash.
            FindHashed(find_hashed4, find_hashed6)
            /// As [`Function::FindHashed`], in one of the buckets.
            FindInBucket(find_in_bucket4, find_in_bucket6)
            /// Updates the state of the flow that was found for the stored segment, of a client.
            FollowFound(follow_found4, follow_found6)
            /// Finds the flow of the stored segment, of a backend, by the reply index.
            FindReply(find_reply4, find_reply6)
            /// Finds the flow of the stored segment, of a backend to a client, in one of the client's buckets.
            FindLeavingInBucket(find_leaving_in_bucket4, find_leaving_in_bucket6)
            /// Decides about the stored segment, of a backend to a client, as a reply of a flow without an entry.
            FindUntracked(find_untracked4, find_untracked6)
            /// Updates the state of the flow that was found for the stored segment, of a backend.
            NoteReply(note_reply4, note_reply6)
            /// Ends the flow between the ends of the stored segment, which its client has now reached directly.
            EndShadowed(end_shadowed4, end_shadowed6)
            /// Whether there is a flow to a backend on this node for the stored segment, of a client.
            IsKnown(is_known4, is_known6)
            /// Finds the flow of the stored segment, of a client or of a backend to an SNAT address.
            FindArriving(find_arriving4, find_arriving6)
            /// Chooses the backend of the stored segment, which an ICMP error quotes, by the pool's table.
            ChooseForError(choose_for_error4, choose_for_error6)
            /// Finds an owner of the slot of the stored segment's connection.
            FindOwner(find_owner4, find_owner6)
            /// Examines an owner of the slot of the stored segment's connection.
            ExamineOwner(examine_owner4, examine_owner6)
            /// Ends the flow at the drafted location, whose SYN the stored segment repeats or refuses, if another backend may
            /// get its connection.
            Redispatch(redispatch4, redispatch6)
        }
    };
}

macro_rules! define_functions {
    ($($(#[$about:meta])* $function:ident($v4:ident, $v6:ident))*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Function {
            $($(#[$about])* $function,)*
        }
    };
}

for_each_function!(define_functions);

/// Passes the list of functions that read a packet to a macro, with the names of the kernel's functions
/// for IPv4 and IPv6 in XDP, and in tc.
#[macro_export]
macro_rules! for_each_packet_function {
    ($callback:ident) => {
        $callback! {
            /// Parses a packet, or a first fragment, and stores its segment.
            Parse(xdp_parse4, xdp_parse6, tc_parse4, tc_parse6)
            /// Parses a fragment: stores the segment of a first one, and its ports for later ones.
            Look(xdp_look4, xdp_look6, tc_look4, tc_look6)
            /// Stores the segment of a later fragment, if the first one has arrived.
            Recall(xdp_recall4, xdp_recall6, tc_recall4, tc_recall6)
            /// Parses an ICMP error, and stores the segment of a reply to the packet that it quotes.
            ReadError(xdp_read_error4, xdp_read_error6, tc_read_error4, tc_read_error6)
            /// Decides about a packet from a tunnel by its inner headers.
            JudgeInner(xdp_judge_inner4, xdp_judge_inner6, tc_judge_inner4, tc_judge_inner6)
        }
    };
}

macro_rules! define_packet_functions {
    ($($(#[$about:meta])* $function:ident($($name:ident),*))*) => {
        /// A function that reads a packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum PacketFunction {
            $($(#[$about])* $function,)*
        }
    };
}

for_each_packet_function!(define_packet_functions);
