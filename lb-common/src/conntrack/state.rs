//! States, events and transitions. [`track`](super::track) determines which event a packet is.
//!
//! The TCP states follow RFC 9293 as far as they can be observed between the hosts, and
//! `nf_conntrack`, except where a blind sender could forge packets: only an acknowledgement of the
//! observed SYN-ACK establishes a connection, and FIN and RST count only inside the window.
//!
//! Only the client's packets of a tunnelled flow are visible, and no handshake of a flow picked up
//! mid-connection. Such flows are on probation until traffic has continued for a while. Datagrams
//! become a stream as in `nf_conntrack`: by packets in both directions over more than two seconds.

use crate::layout::{Direction, FlowState};
use crate::verifier::opaque;

/// What a packet means for its connection, after its numbers were checked.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// No effect on the state.
    Nothing = 0,
    SynAck = 1,
    /// Data or an acknowledgement; in `SynReceived`: of the SYN-ACK.
    Ack = 2,
    Fin = 3,
    Rst = 4,
    /// An `Ack` or a datagram after the time that its state requires.
    Late = 5,
    /// A packet of a later connection of the same addresses and ports.
    Foreign = 6,
    /// A backend's reset that acknowledges the client's SYN, and nothing else.
    Refusal = 7,
}

pub(super) const EVENTS: usize = 8;
/// Number of possible state numbers.
pub const STATES: usize = 32;

/// The state after an event. Combinations that are not listed change nothing.
pub const fn next_state(
    state: FlowState,
    direction: Direction,
    event: ConnectionEvent,
) -> FlowState {
    use ConnectionEvent::{Ack, Fin, Foreign, Late, Refusal, Rst, SynAck};
    use Direction::{Forward, Reverse};
    use FlowState::*;

    match (state, direction, event) {
        (SynSent, Reverse, SynAck) => SynReceived,
        (SynReceived, Forward, Ack) => Established,
        (SynReceived | Established | Probation, Forward, Fin) => FinFromClient,
        (Established | Probation, Reverse, Fin) => FinFromBackend,
        (FinFromClient, Reverse, Fin) | (FinFromBackend, Forward, Fin) => TimeWait,
        // The client has begun again, with a SYN that looked like an old one. A half-closed connection
        // stays as it is: the SYN-ACK may be forged, and would end its protection.
        (TimeWait, Reverse, SynAck) => SynReceived,
        // Of a later connection, whose SYN another node received: this one is over.
        (TimeWait, Forward, Foreign) => Free,
        // The connection may begin anew, with another backend.
        (SynSent, Reverse, Refusal) => Free,
        (PickedUp, Reverse, Ack | Fin) => Probation,
        (Probation, Forward, Late) => Established,
        (SynSent, _, Rst) | (SynReceived, Reverse, Rst) => Reset,
        (Established | FinFromClient | FinFromBackend | PickedUp | Probation, _, Rst) => Reset,

        (OneWaySyn, Forward, Ack) => OneWayProbation,
        (OneWayProbation, Forward, Late) => OneWayEstablished,
        (OneWaySyn | OneWayProbation | OneWayEstablished, Forward, Fin | Rst) => OneWayClosed,

        (Datagram, Reverse, Ack | Late) => DatagramReplied,
        (DatagramReplied, Forward, Late) => DatagramContinued,
        (DatagramContinued, Reverse, Ack | Late) => DatagramStream,
        _ => state,
    }
}

/// All states by number; unused numbers count as claimed.
pub const ALL: [FlowState; STATES] = {
    use FlowState::*;
    let mut all = [Claimed; STATES];
    let known = [
        Free,
        Claimed,
        SynSent,
        SynReceived,
        Established,
        FinFromClient,
        FinFromBackend,
        TimeWait,
        Reset,
        PickedUp,
        Probation,
        OneWaySyn,
        OneWayProbation,
        OneWayEstablished,
        OneWayClosed,
        Datagram,
        DatagramReplied,
        DatagramContinued,
        DatagramStream,
    ];
    let mut index = 0;
    while index < known.len() {
        all[known[index] as usize] = known[index];
        index += 1;
    }
    all
};

/// [`next_state`] as a table: one load for the verifier.
static TRANSITIONS: [u8; 2 * EVENTS * STATES] = {
    const EVERY: [ConnectionEvent; EVENTS] = [
        ConnectionEvent::Nothing,
        ConnectionEvent::SynAck,
        ConnectionEvent::Ack,
        ConnectionEvent::Fin,
        ConnectionEvent::Rst,
        ConnectionEvent::Late,
        ConnectionEvent::Foreign,
        ConnectionEvent::Refusal,
    ];
    let mut table = [0; 2 * EVENTS * STATES];
    let mut at = 0;
    while at < table.len() {
        let state = ALL[at % STATES];
        let event = at / STATES % EVENTS;
        let direction =
            if at / STATES / EVENTS == 0 { Direction::Forward } else { Direction::Reverse };
        table[at] = next_state(state, direction, EVERY[event]) as u8;
        at += 1;
    }
    table
};

#[inline(always)]
pub(super) const fn is(state: u32, other: FlowState) -> bool {
    state == other as u32
}

#[inline(always)]
pub(super) const fn is_connected(state: u32) -> bool {
    state >= FlowState::Established as u32 && state <= FlowState::Reset as u32
}

#[inline(always)]
pub(super) const fn is_one_way(state: u32) -> bool {
    state >= FlowState::OneWaySyn as u32 && state <= FlowState::OneWayClosed as u32
}

#[inline(always)]
pub const fn is_datagram(state: u32) -> bool {
    state >= FlowState::Datagram as u32
}

/// Whether the track of a state has the flow's start time in its high half.
pub const fn keeps_time(state: u32) -> bool {
    is(state, FlowState::PickedUp) || is(state, FlowState::Probation) || is_one_way(state)
}

/// The state after an event, by their numbers.
#[inline(always)]
pub fn state_after(state: u32, direction: Direction, event: u32) -> u32 {
    let at = (direction as usize * EVENTS + event as usize) * STATES + state as usize;
    // The 6.1 verifier loses all bounds across `|` of two unknown scalars.
    let at = opaque(at as u64) as usize & (TRANSITIONS.len() - 1);
    u32::from(TRANSITIONS[at])
}

/// Whether one side or both have closed.
#[inline(always)]
pub fn is_closing(state: FlowState) -> bool {
    let state = state as u32;
    state >= FlowState::FinFromClient as u32 && state <= FlowState::Reset as u32
}

/// Whether the connection is over on both sides.
#[inline(always)]
pub fn is_over(state: FlowState) -> bool {
    matches!(state, FlowState::TimeWait | FlowState::Reset | FlowState::OneWayClosed)
}

/// The phase of a connection as commands and metrics show it, without which side has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The client has sent, and the backend has not replied.
    Nascent,
    /// The backend has replied.
    Answered,
    /// On probation: only one side, or no handshake, was seen.
    Probation,
    Established,
    /// One side has closed.
    Closing,
    /// Both sides have closed, or one has reset the connection.
    Closed,
}

/// The phase of a state; `None`: there is no flow.
pub fn phase_of(state: FlowState) -> Option<Phase> {
    use FlowState::*;
    Some(match state {
        Free | Claimed => return None,
        SynSent | PickedUp | OneWaySyn | Datagram => Phase::Nascent,
        SynReceived | DatagramReplied | DatagramContinued => Phase::Answered,
        Probation | OneWayProbation => Phase::Probation,
        Established | OneWayEstablished | DatagramStream => Phase::Established,
        FinFromClient | FinFromBackend => Phase::Closing,
        TimeWait | Reset | OneWayClosed => Phase::Closed,
    })
}
