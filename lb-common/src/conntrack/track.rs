//! What a flow stores between packets, and how it classifies the next one.
//!
//! - FIN and RST count only inside the window (in the spirit of RFC 5961), which follows the
//!   backend's packets alone.
//! - A segment without ACK changes nothing, nor does a SYN on a live connection: the backend
//!   replies to it with a challenge ACK.
//! - Once both sides have closed, a client's packet far from the positions of both belongs to a later
//!   connection from the same port.
//! - SCTP is expressed in terms of TCP: its verification tag takes the place of the acknowledgement
//!   number. The backend offers a new tag with each INIT-ACK, and the client uses one of them: an INIT that was
//!   repeated, or of a client that has started anew, must not hide the end of the association. An INIT that
//!   was forged does so only after such a restart, whose tag it replaces; then the flow ends when it is idle.
//!
//! [`FlowEntry::track`](crate::layout::FlowEntry) is stored between packets:
//!
//! | states | track |
//! | --- | --- |
//! | `SynSent` | the SYN's sequence number |
//! | `SynReceived` | what the client must acknowledge; of SCTP the last tag that the backend has offered (high 16 bits) and the one before (low 16 bits), both shortened |
//! | `Established`, `Fin…`, `TimeWait`, `Reset` | high halves of the client's sequence number (low 16 bits) and the backend's (high 16 bits); of SCTP the tag that the client has used (low 16 bits) and the last one that the backend has offered (high 16 bits), both shortened |
//! | `Reset`, if the backend has refused the connection, which moves | the complement of the SYN's sequence number |
//! | `PickedUp`, `Probation`, `OneWay…` | high half of the client's sequence number (low 16 bits), and the start time in units of 4.3 s (high 16 bits) |
//! | `Datagram…` | the start time, in [`Ticks`] |

use super::state::{
    ConnectionEvent, EVENTS, STATES, is, is_closing, is_connected, is_datagram, is_one_way,
    state_after,
};
use crate::header::{Tcp, protocol};
use crate::layout::{Direction, FlowState, Ticks};
use crate::verifier::opaque;

/// The fields of a packet that matter to its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signal {
    /// TCP's flags, or the equivalent ones of an SCTP packet; 0 for datagrams.
    pub flags: u8,
    /// TCP's sequence number; of an SCTP INIT-ACK the initiate tag, which it offers, less one.
    pub sequence: u32,
    /// TCP's acknowledgement; SCTP's verification tag.
    pub acknowledgement: u32,
}

impl Signal {
    /// Whether the packet opens a connection.
    #[inline(always)]
    pub fn opens(&self) -> bool {
        self.flags & (Tcp::SYN | Tcp::ACK) == Tcp::SYN
    }

    /// Whether a backend's packet accepts a connection.
    #[inline(always)]
    pub fn accepts(&self) -> bool {
        self.flags & Tcp::SYN != 0
    }
}

/// State and track of a flow that begins with this packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beginning {
    pub state: FlowState,
    pub track: u32,
}

impl Beginning {
    /// `now` is called only if the time is stored.
    #[inline(always)]
    pub fn new(protocol: u8, one_way: bool, signal: &Signal, now: impl FnOnce() -> Ticks) -> Self {
        if protocol == protocol::UDP {
            return Self { state: FlowState::Datagram, track: now().0 };
        }
        let state = match (signal.opens(), one_way) {
            (true, false) => {
                return Self { state: FlowState::SynSent, track: signal.sequence };
            }
            (true, true) => FlowState::OneWaySyn,
            (false, false) => FlowState::PickedUp,
            (false, true) => FlowState::OneWayProbation,
        };
        Self { state, track: high_half(signal.sequence) | coarse_time(now()) << 16 }
    }
}

/// A state and its track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracked {
    pub state: u32,
    pub track: u32,
}

/// The flow's state after a packet, and the event that the packet was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct After {
    pub state: u32,
    pub track: u32,
    /// A [`ConnectionEvent`], by its number.
    pub event: u32,
}

/// How long traffic must continue until a flow on probation is established, in seconds.
pub const PROBATION: u32 = 60;

/// How long packets must flow in both directions until datagrams are a stream, in seconds.
pub const STREAM_AFTER: u32 = 2;

/// How far beyond the SYN-ACK an acknowledgement may be: data that the backend sends with it or
/// right after it (RFC 7413).
const HANDSHAKE_WINDOW: u32 = 1 << 16;

/// The window of resets: how far behind and ahead of the expected position, in units of 64 KiB. The
/// receiver accepts only a reset at the position that it acknowledged last.
const RESET: (u16, u16) = (1, 16);

/// The window of a FIN, in the same units. It reaches as far ahead as data may be in flight.
const FIN: (u16, u16) = (16, 256);

/// Around the positions of a closed connection, in the same units: packets that it may still have on
/// their way are nearer. Of a later connection both numbers are near by chance once in a thousand times.
const CLOSED: (u16, u16) = (1024, 1024);

/// The high half of a sequence number: a position in units of 64 KiB.
#[inline(always)]
const fn high_half(sequence: u32) -> u32 {
    sequence >> 16
}

/// An SCTP verification tag in 16 bits.
#[inline(always)]
const fn shortened(tag: u32) -> u32 {
    (tag ^ tag >> 16) & 0xffff
}

/// Whether a client's packet has one of the tags that its backend has offered.
#[inline(always)]
const fn has_known_tag(track: u32, signal: &Signal) -> bool {
    let tag = shortened(signal.acknowledgement);
    tag == track & 0xffff || tag == track >> 16
}

/// The track of an SCTP flow in a state after an INIT-ACK. The tag that the client has used is kept.
#[inline(always)]
fn track_after_offer(state: u32, track: u32, signal: &Signal) -> u32 {
    let tag = shortened(signal.sequence.wrapping_add(1));
    let kept = if is_connected(state) { track & 0xffff } else { track >> 16 };
    tag << 16 | kept
}

/// The low 16 bits of a time in units of 4.3 s.
#[inline(always)]
const fn coarse_time(now: Ticks) -> u32 {
    now.0 >> 8 & 0xffff
}

/// Whether a position is in the window around `base` that reaches so many units behind and ahead.
#[inline(always)]
const fn is_near(position: u32, base: u32, (behind, ahead): (u16, u16)) -> bool {
    (position as u16).wrapping_sub(base as u16).wrapping_add(behind) <= behind + ahead
}

/// The flow's state after a packet.
#[inline(always)]
pub fn state_after_packet(
    before: Tracked,
    direction: Direction,
    protocol: u8,
    signal: &Signal,
    now: Ticks,
) -> After {
    const CHANGING: u8 = Tcp::SYN | Tcp::FIN | Tcp::RST;

    // Most packets belong to established flows, and change only the positions.
    let Tracked { state, track } = before;
    let unchanged = After { state, track, event: ConnectionEvent::Nothing as u32 };
    if is(before.state, FlowState::DatagramStream) {
        return unchanged;
    }
    if is(before.state, FlowState::Established) && signal.flags & CHANGING == 0 {
        return match direction {
            Direction::Reverse if protocol == protocol::TCP && signal.flags & Tcp::ACK != 0 => {
                After { track: positions_of(direction, signal), ..unchanged }
            }
            _ => unchanged,
        };
    }
    let what = before.state
        | (direction as u32) << 8
        | u32::from(signal.flags) << 16
        | u32::from(protocol) << 24;
    let packed = change(what, before.track, signal.sequence, signal.acknowledgement, now.0);
    // Otherwise the verifier would follow the code after this once for every outcome.
    let packed = opaque(packed);
    After {
        state: packed as u32 & (STATES as u32 - 1),
        track: (packed >> 32) as u32,
        event: (packed >> 8) as u32 & (EVENTS as u32 - 1),
    }
}

/// The positions of client and backend in a packet.
#[inline(always)]
fn positions_of(direction: Direction, signal: &Signal) -> u32 {
    match direction {
        Direction::Forward => high_half(signal.sequence) | signal.acknowledgement & 0xffff_0000,
        Direction::Reverse => high_half(signal.acknowledgement) | signal.sequence & 0xffff_0000,
    }
}

/// The rarer part of [`state_after_packet`], with at most five numbers as parameters and one as the result, as
/// BPF functions require. The result contains the state (8 bits), the event (8), and the track in
/// the high half.
///
/// In the kernel a global function, which the verifier checks once for all callers.
#[inline(never)]
#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
extern "C" fn change(what: u32, track: u32, sequence: u32, acknowledgement: u32, now: u32) -> u64 {
    let state = what & (STATES as u32 - 1);
    let direction = if what >> 8 & 1 == 0 { Direction::Forward } else { Direction::Reverse };
    let protocol = (what >> 24) as u8;
    let signal = Signal { flags: (what >> 16) as u8, sequence, acknowledgement };
    let now = Ticks(now);
    let event = if is_datagram(state) {
        let late = now.since(Ticks(track)) > Ticks::in_seconds(STREAM_AFTER);
        if late { ConnectionEvent::Late } else { ConnectionEvent::Ack }
    } else {
        classify_packet(state, track, direction, protocol, &signal, now)
    };
    let next = state_after(state, direction, event as u32);
    let track = if is_datagram(state) {
        track
    } else {
        track_after(state, next, track, direction, protocol, event, &signal)
    };
    u64::from(track) << 32 | (event as u64) << 8 | u64::from(next)
}

/// Classifies a TCP or SCTP packet as an event.
#[inline(always)]
fn classify_packet(
    state: u32,
    track: u32,
    direction: Direction,
    protocol: u8,
    signal: &Signal,
    now: Ticks,
) -> ConnectionEvent {
    let flags = signal.flags;
    let forward = direction as u32 == Direction::Forward as u32;
    if flags & Tcp::RST != 0 {
        if is(state, FlowState::SynSent) && !forward && is_refusal(track, protocol, signal) {
            return ConnectionEvent::Refusal;
        }
        let counts = if is_connected(state) {
            is_reset_in_window(track, forward, protocol, signal)
        } else if is(state, FlowState::SynSent) {
            !forward || signal.sequence.wrapping_sub(track) < HANDSHAKE_WINDOW
        } else if is(state, FlowState::SynReceived) {
            // The client's numbers are not stored in this state, whose entries are evicted early
            // anyway.
            !forward
        } else {
            !forward || protocol != protocol::TCP || is_near(high_half(signal.sequence), track, FIN)
        };
        return if counts { ConnectionEvent::Rst } else { ConnectionEvent::Nothing };
    }
    if flags & Tcp::SYN != 0 {
        let both = flags & (Tcp::SYN | Tcp::ACK) == Tcp::SYN | Tcp::ACK;
        let counts = both && !forward && !(is_connected(state) && is_old(track, protocol, signal));
        return if counts { ConnectionEvent::SynAck } else { ConnectionEvent::Nothing };
    }
    // SCTP has no ACK flag: every packet contains the tag.
    if protocol == protocol::TCP && flags & Tcp::ACK == 0 {
        return ConnectionEvent::Nothing;
    }
    if is(state, FlowState::TimeWait) && forward && is_foreign(track, protocol, signal) {
        return ConnectionEvent::Foreign;
    }
    if is(state, FlowState::SynReceived) && forward {
        let is_expected = if protocol == protocol::TCP {
            signal.acknowledgement.wrapping_sub(track) < HANDSHAKE_WINDOW
        } else {
            has_known_tag(track, signal)
        };
        if !is_expected {
            return ConnectionEvent::Nothing;
        }
    }
    if flags & Tcp::FIN != 0 {
        let counts = if is(state, FlowState::SynReceived) {
            forward
        } else if is_connected(state) && forward {
            is_fin_in_window(track, protocol, signal)
        } else {
            !forward || protocol != protocol::TCP || is_near(high_half(signal.sequence), track, FIN)
        };
        return if counts { ConnectionEvent::Fin } else { ConnectionEvent::Nothing };
    }
    let waits = is(state, FlowState::Probation) || is_one_way(state);
    if forward
        && waits
        && protocol == protocol::TCP
        && !is_near(high_half(signal.sequence), track, FIN)
    {
        return ConnectionEvent::Nothing;
    }
    let age = coarse_time(now).wrapping_sub(track >> 16) & 0xffff;
    let late = waits && age > Ticks::in_seconds(PROBATION) >> 8;
    if late { ConnectionEvent::Late } else { ConnectionEvent::Ack }
}

/// Whether a backend's reset says that nothing listens to the SYN: it acknowledges that alone. A blind sender does not
/// know the number.
#[inline(always)]
fn is_refusal(track: u32, protocol: u8, signal: &Signal) -> bool {
    protocol == protocol::TCP
        && signal.flags == Tcp::RST | Tcp::ACK
        && signal.acknowledgement == track.wrapping_add(1)
}

/// Whether a SYN-ACK is a repeated one of a connection whose positions are known.
#[inline(always)]
fn is_old(track: u32, protocol: u8, signal: &Signal) -> bool {
    if protocol != protocol::TCP {
        let tag = shortened(signal.sequence.wrapping_add(1));
        return tag == track & 0xffff || tag == track >> 16;
    }
    is_near(high_half(signal.sequence), track >> 16, FIN)
}

/// Whether a reset is inside the window of a connection whose positions are known.
#[inline(always)]
fn is_reset_in_window(track: u32, forward: bool, protocol: u8, signal: &Signal) -> bool {
    if protocol != protocol::TCP {
        return !forward || has_known_tag(track, signal);
    }
    let own = if forward { track } else { track >> 16 };
    is_near(high_half(signal.sequence), own, RESET)
}

#[inline(always)]
fn is_fin_in_window(track: u32, protocol: u8, signal: &Signal) -> bool {
    if protocol != protocol::TCP {
        return has_known_tag(track, signal);
    }
    is_near(high_half(signal.sequence), track, FIN)
        && is_near(high_half(signal.acknowledgement), track >> 16, FIN)
}

/// Whether a client's packet is far from the positions of a closed connection.
#[inline(always)]
fn is_foreign(track: u32, protocol: u8, signal: &Signal) -> bool {
    if protocol != protocol::TCP {
        return !has_known_tag(track, signal);
    }
    !is_near(high_half(signal.sequence), track, CLOSED)
        || !is_near(high_half(signal.acknowledgement), track >> 16, CLOSED)
}

/// The track after a transition from one state to the next.
#[inline(always)]
fn track_after(
    state: u32,
    next: u32,
    track: u32,
    direction: Direction,
    protocol: u8,
    event: ConnectionEvent,
    signal: &Signal,
) -> u32 {
    let forward = direction as u32 == Direction::Forward as u32;
    let tcp = protocol == protocol::TCP;
    let keeps = [
        ConnectionEvent::Nothing,
        ConnectionEvent::Rst,
        ConnectionEvent::Foreign,
        ConnectionEvent::Refusal,
    ];
    if keeps.iter().any(|kept| *kept as u32 == event as u32) {
        return track;
    }
    let accepted = event as u32 == ConnectionEvent::SynAck as u32;
    if accepted && !tcp {
        return track_after_offer(state, track, signal);
    }
    if is(next, FlowState::SynReceived) {
        return if accepted { signal.sequence.wrapping_add(1) } else { track };
    }
    if accepted {
        return track;
    }
    if is_connected(next) {
        let begins = !is_connected(state);
        if !tcp {
            let tag = shortened(signal.acknowledgement);
            return if begins && forward { tag << 16 | tag } else { track };
        }
        // Once the backend's positions are known, the client's packets do not change them.
        return if begins || !forward { positions_of(direction, signal) } else { track };
    }
    // On probation, the position follows the traffic, and the time stays.
    let position = if forward { signal.sequence } else { signal.acknowledgement };
    if tcp { track & 0xffff_0000 | high_half(position) } else { track }
}

/// The track of a flow in `Reset` whose backend has refused the SYN with this sequence number. No other flow in that state has
/// it, but by chance.
#[inline(always)]
pub const fn of_refused(sequence: u32) -> u32 {
    !sequence
}

/// Whether a SYN of the client begins a new connection although there is an entry.
///
/// After both sides have closed it must be newer than the old connection (RFC 9293, 3.6.1; RFC
/// 6191): an old duplicate is sent to the old backend.
#[inline(always)]
pub fn may_begin_anew(state: FlowState, track: u32, protocol: u8, signal: &Signal) -> bool {
    match state {
        FlowState::Reset | FlowState::OneWayClosed => true,
        FlowState::TimeWait => {
            let ahead = (high_half(signal.sequence) as u16).wrapping_sub(track as u16) as i16;
            protocol != protocol::TCP || ahead >= 0
        }
        _ => false,
    }
}

/// Whether a backend's packet belongs to a newer connection, which the client opened directly to
/// the backend after this flow had begun to close. Not with an SNAT address, which only the flow
/// leads to: its SYN came through the Service, and was sent to the old backend because it may have
/// been forged, or old ([`may_begin_anew`]).
#[inline(always)]
pub fn belongs_to_newer_connection(state: FlowState, is_snat: bool, signal: &Signal) -> bool {
    signal.accepts() && is_closing(state) && !is_snat
}
