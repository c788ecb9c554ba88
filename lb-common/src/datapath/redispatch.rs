//! A connection's move to another backend: its first one has refused it, or does not reply.
//!
//! A client repeats its SYN if the backend has not replied, or has refused the connection (the stage
//! [`redispatching`](super::stages::redispatching)). The repeated SYN opens a new flow, to another backend of the pool. A flow
//! remembers how often that has happened, so its client learns soon that no backend serves the connection.
//!
//! # Invariant
//! What has refused a connection is known of that flow alone, from packets that contain its client's sequence number. So
//! neither a client nor a backend can move the connections of others.

use crate::branchless::{is_zero, sign};
use crate::conntrack::{Signal, track};
use crate::header::{Tcp, protocol};
use crate::layout::{FlowKind, FlowState, Ticks};

/// How a repeated SYN finds another backend in its pool: the number of slots that it passes over (8 bits), and that of the
/// connection's moves with this one, which is not 0 (2 bits). A number: the verifier would follow what comes after it once
/// for each value.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redispatch(u32);

impl Redispatch {
    /// The packet repeats no SYN.
    pub const NONE: Self = Self(0);

    /// Another CPU has replaced the flow meanwhile.
    pub const REPLACED: Self = Self(1 << 16);

    /// How many slots are tried. Of two backends with equal weights, the other is missed by one connection in 65,536.
    pub const TRIES: u32 = 16;

    const SLOTS: u32 = 0xff;
    const MOVES: u32 = 8;
    /// From slot to slot. Distributes consecutive hashes evenly over them.
    const STRIDE: u32 = 0x9e37_79b9;

    /// `moves`: how often the connection has moved before.
    #[inline(always)]
    pub fn past(slots: u32, moves: u8) -> Self {
        Self(slots | (u32::from(moves) + 1) << Self::MOVES)
    }

    /// As functions return it.
    #[inline(always)]
    pub fn number(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub fn from_number(number: u32) -> Self {
        Self(number)
    }

    #[inline(always)]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// 1 for [`Self::NONE`], else 0; without branches.
    #[inline(always)]
    pub fn is_absent(self) -> u64 {
        is_zero(self.0.into())
    }

    /// The hash that selects the new slot, by the one that selects the first slot of the connection.
    #[inline(always)]
    pub fn turn(self, hash: u32) -> u32 {
        hash.wrapping_add(Self::STRIDE.wrapping_mul(self.0 & Self::SLOTS))
    }

    /// What the new flow remembers.
    #[inline(always)]
    pub fn kind(self) -> FlowKind {
        FlowKind::moved((self.0 >> Self::MOVES) as u8 & 3)
    }
}

/// Whether a client's packet repeats the SYN of its flow, which may move to another backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatedSyn {
    /// 1 if the backend has refused the connection, else 0.
    is_refused: u64,
    /// 1 if it has not replied, else 0.
    is_unanswered: u64,
}

impl RepeatedSyn {
    /// For how long a backend must not have replied to a SYN, in [`Ticks`]: half a second. Clients repeat it after a second;
    /// what comes earlier is a duplicate.
    const SILENCE: u32 = Ticks::in_seconds(1) / 2;

    /// By the flow's kind, state and track, and for how long it has been idle. Without branches, for the verifier.
    #[inline(always)]
    pub fn by_flow(
        kind: FlowKind,
        (state, track): (FlowState, u32),
        idle: u32,
        protocol: u8,
        signal: &Signal,
    ) -> Self {
        let opens = is_zero(u64::from(signal.flags & (Tcp::SYN | Tcp::ACK) ^ Tcp::SYN))
            & is_zero(u64::from(protocol ^ protocol::TCP));
        let moves = opens & may_move(kind);
        let is_in = |wanted: FlowState| is_zero(u64::from(state as u8 ^ wanted as u8));
        let refused = track::of_refused(signal.sequence);
        let is_silent = 1 - sign(u64::from(idle).wrapping_sub(Self::SILENCE.into()));
        Self {
            is_refused: moves & is_in(FlowState::Reset) & is_zero(u64::from(refused ^ track)),
            is_unanswered: moves
                & is_in(FlowState::SynSent)
                & is_zero(u64::from(signal.sequence ^ track))
                & is_silent,
        }
    }

    /// Whether the packet does.
    #[inline(always)]
    pub fn exists(self) -> bool {
        self.is_refused | self.is_unanswered != 0
    }

    /// Whether it does because the backend has refused the connection.
    #[inline(always)]
    pub fn is_refused(self) -> bool {
        self.is_refused != 0
    }
}

/// 1 if a flow of this kind may move to another backend, else 0. Of a tunnelled one the replies are not seen, and the
/// node that delivers it has not chosen its backend.
#[inline(always)]
pub fn may_move(kind: FlowKind) -> u64 {
    let staying =
        FlowKind::TUNNELLED.and(FlowKind::NODE).and(FlowKind::SPREAD).and(FlowKind::DELIVERED);
    is_zero(u64::from(kind.0 & staying.0))
        & sign(u64::from(kind.moves()).wrapping_sub(FlowKind::MOST_MOVES.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYN: Signal = Signal { flags: Tcp::SYN, sequence: 70_000, acknowledgement: 0 };
    const REFUSED: (FlowState, u32) = (FlowState::Reset, track::of_refused(70_000));
    const UNANSWERED: (FlowState, u32) = (FlowState::SynSent, 70_000);
    const SILENT: u32 = RepeatedSyn::SILENCE;

    fn is_repeated(kind: FlowKind, flow: (FlowState, u32), idle: u32, signal: &Signal) -> bool {
        RepeatedSyn::by_flow(kind, flow, idle, protocol::TCP, signal).exists()
    }

    #[test]
    fn only_the_syn_of_an_unserved_flow_is_repeated() {
        let plain = FlowKind::default();
        assert!(is_repeated(plain, REFUSED, 0, &SYN));
        assert!(is_repeated(plain, UNANSWERED, SILENT, &SYN));
        assert!(!is_repeated(plain, UNANSWERED, SILENT - 1, &SYN), "a duplicate");
        for (state, track) in [
            (FlowState::Reset, 70_000),
            (FlowState::Established, 70_000),
            (FlowState::SynReceived, 70_000),
            (FlowState::SynReceived, track::of_refused(70_000)),
            (FlowState::TimeWait, track::of_refused(70_000)),
            (FlowState::SynSent, track::of_refused(70_000)),
        ] {
            assert!(!is_repeated(plain, (state, track), SILENT, &SYN), "{state:?}");
        }
        let others = [
            Signal { sequence: 70_001, ..SYN },
            Signal { flags: Tcp::SYN | Tcp::ACK, ..SYN },
            Signal { flags: Tcp::ACK, ..SYN },
            Signal { flags: Tcp::RST, ..SYN },
        ];
        for signal in others {
            assert!(!is_repeated(plain, REFUSED, 0, &signal), "{signal:?}");
            assert!(!is_repeated(plain, UNANSWERED, SILENT, &signal), "{signal:?}");
        }
        let sctp = RepeatedSyn::by_flow(plain, REFUSED, 0, protocol::SCTP, &SYN);
        assert!(!sctp.exists());
    }

    #[test]
    fn a_flow_moves_twice_at_most_and_only_without_tunnels() {
        for moves in 0..FlowKind::MOST_MOVES {
            assert!(is_repeated(FlowKind::SNAT.and(FlowKind::moved(moves)), REFUSED, 0, &SYN));
        }
        for kind in [
            FlowKind::moved(FlowKind::MOST_MOVES),
            FlowKind::TUNNELLED,
            FlowKind::NODE,
            FlowKind::SPREAD,
            FlowKind::DELIVERED,
        ] {
            assert!(!is_repeated(kind, REFUSED, 0, &SYN), "{kind:?}");
        }
    }

    #[test]
    fn a_redispatch_is_a_number() {
        for moves in 0..FlowKind::MOST_MOVES {
            for slots in 0..Redispatch::TRIES {
                let redispatch = Redispatch::past(slots, moves);
                assert_eq!(Redispatch::from_number(redispatch.number()), redispatch);
                assert_eq!(redispatch.kind().moves(), moves + 1);
                assert!(!redispatch.is_none() && redispatch.is_absent() == 0);
                assert_eq!(redispatch.turn(7) == 7, slots == 0);
            }
        }
        assert_eq!(Redispatch::NONE.turn(7), 7);
        assert_eq!(Redispatch::NONE.kind(), FlowKind::default());
    }
}
