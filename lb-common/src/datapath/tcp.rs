//! A flow's life, as far as it can be seen from the middle. SCTP's is told in TCP's words.

use super::Direction;
use crate::branchless::{choose, is_zero};
use crate::header::{Sctp, Tcp};
use crate::layout::FlowState;

/// The state after a packet. Protocols without flags pass 0 and get as far as `Established`.
#[inline(always)]
pub fn next_state(state: FlowState, direction: Direction, flags: u8) -> FlowState {
    use Direction::{Forward, Reverse};
    use FlowState::*;

    if flags & Tcp::RST != 0 {
        return Closed;
    }
    let fin = flags & Tcp::FIN != 0;
    let syn = flags & Tcp::SYN != 0;
    match (state, direction) {
        (Nascent, Reverse) => Answered,
        (Answered, Forward) if syn => Answered,
        (Answered | Established, Forward) => {
            if fin {
                ClosedForward
            } else {
                Established
            }
        }
        (Answered | Established, Reverse) if fin => ClosedReverse,
        (ClosedForward, Reverse) | (ClosedReverse, Forward) if fin => Closed,
        _ => state,
    }
}

/// What a flow that was met midway was, if this is a backend's packet: only who knows a connection
/// answers from its middle, so it was established before it came here.
#[inline(always)]
pub fn state_before_answer(state: FlowState, flags: u8) -> FlowState {
    if state == FlowState::Nascent && flags & (Tcp::SYN | Tcp::RST) == 0 {
        FlowState::Established
    } else {
        state
    }
}

/// The state after a packet of a flow of which only the client's packets are seen. Their
/// acknowledgements stand for the answers; who closes is done for, as the other side's end will
/// not be seen. Datagrams prove nothing.
#[inline(always)]
pub fn one_way_state(state: FlowState, flags: u8) -> FlowState {
    if flags & (Tcp::FIN | Tcp::RST) != 0 {
        FlowState::Closed
    } else if flags & (Tcp::SYN | Tcp::ACK) == Tcp::ACK && state == FlowState::Nascent {
        FlowState::Established
    } else {
        state
    }
}

/// The flags of TCP that say what an SCTP packet's first chunk says. Those that begin or end an
/// association are first in their packets, but for an ABORT behind other control chunks.
#[inline(always)]
pub fn flags_of_chunk(kind: u8) -> u8 {
    const fn bit(kind: u8) -> u64 {
        1 << kind
    }
    const SYN: u64 = bit(Sctp::INIT) | bit(Sctp::INIT_ACK);
    const ACK: u64 = bit(Sctp::INIT_ACK);
    const FIN: u64 = bit(Sctp::SHUTDOWN) | bit(Sctp::SHUTDOWN_ACK);
    const RST: u64 = bit(Sctp::ABORT) | bit(Sctp::SHUTDOWN_COMPLETE);

    let kind = u64::from(kind);
    let has = |kinds: u64, flag: u8| (kinds >> (kind & 31) & 1) * u64::from(flag);
    let flags = has(SYN, Tcp::SYN) | has(ACK, Tcp::ACK) | has(FIN, Tcp::FIN) | has(RST, Tcp::RST);
    choose(is_zero(kind >> 5), flags, 0) as u8
}

/// Whether the packet asks for a connection of its own.
#[inline(always)]
pub fn opens(flags: u8) -> bool {
    flags & (Tcp::SYN | Tcp::ACK) == Tcp::SYN
}

/// Whether a backend's packet accepts a connection.
#[inline(always)]
pub fn answers(flags: u8) -> bool {
    flags & Tcp::SYN != 0
}

/// Whether a backend's packet answers a SYN that came after the flow's end, and not through the
/// Service: through it, the SYN would have begun another flow.
#[inline(always)]
pub fn answers_a_later_dial(state: FlowState, flags: u8) -> bool {
    answers(flags) && is_closing(state)
}

/// How many sequence numbers the flags take.
#[inline(always)]
pub fn length_of_control(flags: u8) -> u32 {
    u32::from(flags & Tcp::SYN != 0) + u32::from(flags & Tcp::FIN != 0)
}

/// Whether one side or both have closed.
#[inline(always)]
pub fn is_closing(state: FlowState) -> bool {
    matches!(state, FlowState::ClosedForward | FlowState::ClosedReverse | FlowState::Closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYN: u8 = Tcp::SYN;
    const SYN_ACK: u8 = Tcp::SYN | Tcp::ACK;
    const ACK: u8 = Tcp::ACK;
    const FIN: u8 = Tcp::FIN | Tcp::ACK;

    fn after(packets: &[(Direction, u8)]) -> FlowState {
        packets.iter().fold(FlowState::Nascent, |state, &(direction, flags)| {
            next_state(state, direction, flags)
        })
    }

    #[test]
    fn a_handshake_establishes_only_by_the_clients_answer() {
        use Direction::{Forward, Reverse};
        assert_eq!(after(&[(Forward, SYN), (Forward, SYN)]), FlowState::Nascent);
        assert_eq!(after(&[(Forward, ACK), (Forward, ACK)]), FlowState::Nascent);
        assert_eq!(after(&[(Reverse, SYN_ACK), (Forward, SYN)]), FlowState::Answered);
        assert_eq!(after(&[(Reverse, SYN_ACK), (Forward, ACK)]), FlowState::Established);
    }

    #[test]
    fn a_connection_closes_when_both_have_closed() {
        use Direction::{Forward, Reverse};
        let open = [(Reverse, SYN_ACK), (Forward, ACK)];
        let with = |more: &[(Direction, u8)]| after(&[&open[..], more].concat());
        assert_eq!(with(&[(Forward, FIN)]), FlowState::ClosedForward);
        assert_eq!(with(&[(Forward, FIN), (Reverse, ACK)]), FlowState::ClosedForward);
        assert_eq!(with(&[(Forward, FIN), (Reverse, FIN)]), FlowState::Closed);
        assert_eq!(with(&[(Reverse, FIN)]), FlowState::ClosedReverse);
        assert_eq!(with(&[(Reverse, FIN), (Forward, FIN)]), FlowState::Closed);
        assert_eq!(with(&[(Reverse, Tcp::RST)]), FlowState::Closed);
    }

    #[test]
    fn only_chunks_that_begin_or_end_an_association_have_flags() {
        let flags: Vec<(u8, u8)> = (0..=u8::MAX)
            .map(|kind| (kind, flags_of_chunk(kind)))
            .filter(|(_, flags)| *flags != 0)
            .collect();
        let (fin, rst) = (Tcp::FIN, Tcp::RST);
        let expected = [(1, SYN), (2, SYN_ACK), (6, rst), (7, fin), (8, fin), (14, rst)];
        assert_eq!(flags, expected);
    }

    #[test]
    fn a_datagram_flow_is_established_by_an_answered_question() {
        use Direction::{Forward, Reverse};
        assert_eq!(after(&[(Forward, 0), (Forward, 0)]), FlowState::Nascent);
        assert_eq!(after(&[(Reverse, 0)]), FlowState::Answered);
        assert_eq!(after(&[(Reverse, 0), (Forward, 0)]), FlowState::Established);
    }
}
