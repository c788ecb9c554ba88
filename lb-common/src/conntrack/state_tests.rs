//! The state machine, tested with packets.

extern crate std;
use std::vec::Vec;

use super::state::*;
use super::track::*;
use crate::header::{Tcp, protocol};
use crate::layout::Direction::{Forward, Reverse};
use crate::layout::FlowState::{self, *};
use crate::layout::{Direction, Ticks};

const SYN: u8 = Tcp::SYN;
const SYN_ACK: u8 = Tcp::SYN | Tcp::ACK;
const ACK: u8 = Tcp::ACK;
const FIN: u8 = Tcp::FIN | Tcp::ACK;
const RST: u8 = Tcp::RST;

/// Initial sequence numbers of client and backend.
const CLIENT: u32 = 0x1234_5678;
const BACKEND: u32 = 0xfedc_ba98;

/// One flow, and the current time.
struct FlowWithTime {
    tracked: Tracked,
    protocol: u8,
    now: Ticks,
}

impl FlowWithTime {
    fn begin(protocol: u8, one_way: bool, flags: u8) -> Self {
        let now = Ticks(1 << 20);
        let signal = Signal { flags, sequence: CLIENT, acknowledgement: BACKEND };
        let Beginning { state, track } = Beginning::new(protocol, one_way, &signal, || now);
        Self { tracked: Tracked { state: state as u32, track }, protocol, now }
    }

    fn syn() -> Self {
        Self::begin(protocol::TCP, false, SYN)
    }

    fn established() -> Self {
        let mut flow = Self::syn();
        flow.pass(Reverse, SYN_ACK, BACKEND, CLIENT.wrapping_add(1));
        assert_eq!(flow.pass(Forward, ACK, CLIENT + 1, BACKEND.wrapping_add(1)), Established);
        flow
    }

    fn pass(&mut self, direction: Direction, flags: u8, sequence: u32, ack: u32) -> FlowState {
        let signal = Signal { flags, sequence, acknowledgement: ack };
        let after = state_after_packet(self.tracked, direction, self.protocol, &signal, self.now);
        self.tracked = Tracked { state: after.state, track: after.track };
        self.state()
    }

    fn client(&mut self, flags: u8) -> FlowState {
        self.pass(Forward, flags, CLIENT + 1, BACKEND.wrapping_add(1))
    }

    fn backend(&mut self, flags: u8) -> FlowState {
        self.pass(Reverse, flags, BACKEND.wrapping_add(1), CLIENT + 1)
    }

    fn wait(&mut self, seconds: u32) {
        self.now.0 += Ticks::in_seconds(seconds) + 1;
    }

    fn state(&self) -> FlowState {
        ALL[self.tracked.state as usize]
    }
}

#[test]
fn only_an_acknowledgement_of_the_syn_ack_establishes() {
    let mut flow = FlowWithTime::syn();
    assert_eq!(flow.client(ACK), SynSent, "before the SYN-ACK");
    assert_eq!(flow.pass(Reverse, SYN_ACK, BACKEND, CLIENT + 1), SynReceived);
    for (flags, ack, what) in [
        (0, BACKEND.wrapping_add(1), "without ACK"),
        (Tcp::PSH, BACKEND.wrapping_add(1), "data without ACK"),
        (SYN, BACKEND.wrapping_add(1), "the SYN again"),
        (ACK, BACKEND, "of what came before"),
        (ACK, BACKEND.wrapping_add(1 + (1 << 16)), "of what was never sent"),
        (FIN, BACKEND.wrapping_sub(9), "a FIN with another number"),
        (RST, BACKEND.wrapping_add(1), "a reset"),
    ] {
        assert_eq!(flow.pass(Forward, flags, CLIENT + 1, ack), SynReceived, "{what}");
    }
    assert_eq!(flow.pass(Forward, ACK, CLIENT + 1, BACKEND.wrapping_add(1)), Established);
}

#[test]
fn a_syn_ack_that_is_sent_again_with_another_number_counts() {
    let mut flow = FlowWithTime::syn();
    flow.pass(Reverse, SYN_ACK, 7, CLIENT + 1);
    flow.pass(Reverse, SYN_ACK, 1_000_000_000, CLIENT + 1);
    assert_eq!(flow.pass(Forward, ACK, CLIENT + 1, 8), SynReceived);
    assert_eq!(flow.pass(Forward, ACK, CLIENT + 1, 1_000_000_001), Established);
}

#[test]
fn a_connection_closes_when_both_have_closed() {
    let closes = |packets: &[(Direction, u8)]| {
        let mut flow = FlowWithTime::established();
        packets
            .iter()
            .map(|(direction, flags)| match direction {
                Forward => flow.client(*flags),
                Reverse => flow.backend(*flags),
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(
        closes(&[(Forward, FIN), (Reverse, ACK), (Reverse, FIN), (Forward, ACK)]),
        [FinFromClient, FinFromClient, TimeWait, TimeWait]
    );
    assert_eq!(
        closes(&[(Reverse, FIN), (Forward, ACK), (Forward, FIN), (Reverse, ACK)]),
        [FinFromBackend, FinFromBackend, TimeWait, TimeWait]
    );
    assert_eq!(closes(&[(Forward, FIN), (Forward, FIN)]), [FinFromClient; 2], "sent again");
}

#[test]
fn a_reset_counts_only_inside_the_window() {
    for direction in [Forward, Reverse] {
        let (own, ack) = if direction == Forward { (CLIENT, BACKEND) } else { (BACKEND, CLIENT) };
        for offset in [1 << 21, 1 << 24, 1 << 31, 0u32.wrapping_sub(1 << 18)] {
            let mut flow = FlowWithTime::established();
            let sequence = own.wrapping_add(offset);
            assert_eq!(flow.pass(direction, RST, sequence, ack), Established, "{offset:#x}");
        }
        let mut flow = FlowWithTime::established();
        assert_eq!(flow.pass(direction, RST, own.wrapping_add(1), ack), Reset);
    }
}

#[test]
fn the_window_follows_the_backends_packets_and_no_others() {
    let far = CLIENT.wrapping_add(1 << 30);
    let mut flow = FlowWithTime::established();
    flow.pass(Forward, ACK, far, BACKEND.wrapping_add(1));
    assert_eq!(flow.pass(Forward, RST, far, 0), Established, "by the client's packets alone");
    flow.pass(Reverse, ACK, BACKEND.wrapping_add(1), far);
    assert_eq!(flow.pass(Forward, RST, far, 0), Reset);
}

#[test]
fn a_fin_out_of_the_window_closes_nothing() {
    let mut flow = FlowWithTime::established();
    assert_eq!(flow.pass(Forward, FIN, CLIENT + (1 << 28), BACKEND), Established);
    assert_eq!(flow.pass(Forward, FIN, CLIENT, BACKEND.wrapping_add(1 << 28)), Established);
    assert_eq!(flow.client(FIN), FinFromClient);
}

#[test]
fn a_syn_replaces_only_a_closed_connection_and_only_if_it_is_newer() {
    let mut flow = FlowWithTime::established();
    flow.client(FIN);
    let syn = |sequence| Signal { flags: SYN, sequence, acknowledgement: 0 };
    let anew = |flow: &FlowWithTime, sequence| {
        may_begin_anew(flow.state(), flow.tracked.track, flow.protocol, &syn(sequence))
    };
    assert!(!anew(&flow, CLIENT + (1 << 20)), "half closed");
    flow.backend(FIN);
    assert_eq!(flow.state(), TimeWait);
    assert!(anew(&flow, CLIENT + (1 << 20)));
    assert!(!anew(&flow, CLIENT - (1 << 20)), "an old duplicate");
    let mut flow = FlowWithTime::established();
    assert!(!anew(&flow, CLIENT + (1 << 20)), "alive");
    flow.backend(RST);
    assert!(anew(&flow, CLIENT - (1 << 20)), "reset");
}

#[test]
fn a_syn_ack_begins_another_connection_only_after_both_have_closed() {
    let other = BACKEND.wrapping_add(1 << 30);
    let mut flow = FlowWithTime::established();
    assert_eq!(flow.pass(Reverse, SYN_ACK, other, CLIENT), Established);
    flow.client(FIN);
    assert_eq!(flow.pass(Reverse, SYN_ACK, other, CLIENT), FinFromClient, "it may be forged");
    flow.backend(FIN);
    assert_eq!(flow.pass(Reverse, SYN_ACK, BACKEND, CLIENT + 1), TimeWait, "repeated");
    assert_eq!(flow.pass(Reverse, SYN_ACK, other, CLIENT + 9), SynReceived);
    assert_eq!(flow.pass(Forward, ACK, CLIENT + 9, BACKEND), SynReceived, "of the old one");
    assert_eq!(flow.pass(Forward, ACK, CLIENT + 9, other + 1), Established);
    let mut flow = FlowWithTime::established();
    flow.backend(RST);
    assert_eq!(flow.pass(Reverse, SYN_ACK, other, CLIENT), Reset);
}

#[test]
fn only_a_reset_inside_the_window_cancels_a_syn() {
    let mut flow = FlowWithTime::syn();
    assert_eq!(flow.pass(Forward, RST, CLIENT + (1 << 20), 0), SynSent);
    assert_eq!(flow.pass(Forward, RST, CLIENT + 1, 0), Reset);
}

#[test]
fn data_after_a_reset_changes_nothing() {
    let mut flow = FlowWithTime::established();
    flow.backend(RST);
    assert_eq!([flow.client(ACK), flow.backend(ACK), flow.client(FIN)], [Reset; 3]);
}

#[test]
fn a_picked_up_flow_is_established_by_traffic_over_time() {
    let mut flow = FlowWithTime::begin(protocol::TCP, false, ACK);
    assert_eq!(flow.state(), PickedUp);
    flow.wait(100);
    assert_eq!(flow.client(ACK), PickedUp, "without the backend");
    assert_eq!(flow.backend(ACK), Probation);
    assert_eq!(flow.client(ACK), Established);
    let mut flow = FlowWithTime::begin(protocol::TCP, false, ACK);
    flow.backend(ACK);
    assert_eq!(flow.client(ACK), Probation, "at once");
    assert_eq!(flow.backend(RST), Reset);
}

#[test]
fn a_one_way_flow_is_established_by_traffic_over_time() {
    let mut flow = FlowWithTime::begin(protocol::TCP, true, SYN);
    assert_eq!(flow.state(), OneWaySyn);
    assert_eq!(flow.client(0), OneWaySyn, "without ACK");
    assert_eq!(flow.client(ACK), OneWayProbation);
    assert_eq!(flow.client(ACK), OneWayProbation);
    flow.wait(70);
    let far = flow.pass(Forward, ACK, CLIENT + (1 << 28), BACKEND);
    assert_eq!(far, OneWayProbation, "out of the window");
    assert_eq!(flow.client(ACK), OneWayEstablished);
    assert_eq!(flow.client(FIN), OneWayClosed);
    assert_eq!(FlowWithTime::begin(protocol::TCP, true, ACK).state(), OneWayProbation);
}

#[test]
fn datagrams_are_a_stream_after_two_seconds_of_packets_in_both_directions() {
    let mut flow = FlowWithTime::begin(protocol::UDP, false, 0);
    assert_eq!([flow.client(0), flow.client(0)], [Datagram; 2]);
    assert_eq!([flow.backend(0), flow.client(0), flow.backend(0)], [DatagramReplied; 3]);
    flow.wait(3);
    assert_eq!(flow.backend(0), DatagramReplied, "the client has to continue");
    assert_eq!(flow.client(0), DatagramContinued);
    assert_eq!(flow.backend(0), DatagramStream);
    let mut flow = FlowWithTime::begin(protocol::UDP, false, 0);
    flow.wait(100);
    assert_eq!(flow.client(0), Datagram, "without the backend");
}

#[test]
fn sctp_is_judged_by_its_verification_tag() {
    let (tag, other) = (77, 78);
    let mut flow = FlowWithTime::begin(protocol::SCTP, false, SYN);
    flow.pass(Reverse, SYN_ACK, tag - 1, 5);
    assert_eq!(flow.pass(Forward, 0, 0, other), SynReceived);
    assert_eq!(flow.pass(Forward, 0, 0, tag), Established);
    assert_eq!(flow.pass(Forward, RST, 0, other), Established);
    assert_eq!(flow.pass(Forward, FIN, 0, other), Established);
    assert_eq!(flow.pass(Forward, RST, 0, tag), Reset);
}

/// The client has repeated its INIT, and uses the cookie that comes first.
#[test]
fn either_of_two_sctp_handshakes_counts() {
    for used in [100, 200] {
        let mut flow = FlowWithTime::begin(protocol::SCTP, false, SYN);
        flow.pass(Reverse, SYN_ACK, 100 - 1, 5);
        flow.pass(Forward, SYN, 0, 0);
        flow.pass(Reverse, SYN_ACK, 200 - 1, 5);
        assert_eq!(flow.pass(Forward, 0, 0, 300), SynReceived);
        assert_eq!(flow.pass(Forward, 0, 0, used), Established);
        assert_eq!(
            flow.pass(Forward, RST, 0, 300 - used),
            Established,
            "only the one that is used"
        );
        assert_eq!(flow.pass(Forward, RST, 0, used), Reset);
    }
}

/// A client has started anew with the port of an association that its server still has.
#[test]
fn a_restarted_sctp_association_ends_by_its_new_tag() {
    let mut flow = established_sctp(100);
    assert_eq!(flow.pass(Forward, SYN, 0, 0), Established);
    assert_eq!(flow.pass(Reverse, SYN_ACK, 200 - 1, 6), Established);
    assert_eq!(flow.pass(Forward, 0, 0, 200), Established);
    assert_eq!(flow.pass(Forward, FIN, 0, 300), Established);
    assert_eq!(flow.pass(Forward, FIN, 0, 200), FinFromClient);
}

/// The server replies to each INIT, whoever has sent it, with a tag that its sender does not learn.
#[test]
fn forged_inits_do_not_hide_the_end_of_an_sctp_association() {
    let mut flow = established_sctp(100);
    for offered in 1000..1100 {
        flow.pass(Forward, SYN, 0, 0);
        assert_eq!(flow.pass(Reverse, SYN_ACK, offered - 1, 6), Established);
    }
    assert_eq!(flow.pass(Forward, RST, 0, 1000), Established);
    assert_eq!(flow.pass(Forward, RST, 0, 100), Reset);
}

fn established_sctp(tag: u32) -> FlowWithTime {
    let mut flow = FlowWithTime::begin(protocol::SCTP, false, SYN);
    flow.pass(Reverse, SYN_ACK, tag - 1, 5);
    assert_eq!(flow.pass(Forward, 0, 0, tag), Established);
    flow
}

/// A reset that acknowledges the SYN and nothing else: the data plane decides what becomes of the flow.
#[test]
fn a_refusal_is_recognized_by_the_syns_number() {
    const REFUSAL: u8 = Tcp::RST | Tcp::ACK;
    assert_eq!(FlowWithTime::syn().pass(Reverse, REFUSAL, 0, CLIENT + 1), Free);
    let others = [
        (RST, CLIENT + 1),
        (REFUSAL | Tcp::SYN, CLIENT + 1),
        (REFUSAL | Tcp::FIN, CLIENT + 1),
        (REFUSAL, CLIENT),
        (REFUSAL, CLIENT + 2),
    ];
    for (flags, ack) in others {
        assert_eq!(FlowWithTime::syn().pass(Reverse, flags, 0, ack), Reset);
    }
    assert_eq!(
        FlowWithTime::syn().pass(Forward, REFUSAL, CLIENT, CLIENT + 1),
        Reset,
        "the client's"
    );
    let mut answered = FlowWithTime::syn();
    answered.pass(Reverse, SYN_ACK, BACKEND, CLIENT + 1);
    assert_eq!(answered.pass(Reverse, REFUSAL, 0, CLIENT + 1), Reset, "after a SYN-ACK");
    let mut one_way = FlowWithTime::begin(protocol::TCP, true, SYN);
    assert_eq!(one_way.pass(Reverse, REFUSAL, 0, CLIENT + 1), OneWaySyn);
}

/// Every state is reached, and no event leads from one kind of flow to another.
#[test]
fn transitions_stay_within_their_kind() {
    let kind = |state: FlowState| match state as u32 {
        0 | 1 => 0,
        2..=10 => 1,
        12..=15 => 2,
        _ => 3,
    };
    let events = [
        ConnectionEvent::Nothing,
        ConnectionEvent::SynAck,
        ConnectionEvent::Ack,
        ConnectionEvent::Fin,
        ConnectionEvent::Rst,
        ConnectionEvent::Late,
        ConnectionEvent::Foreign,
        ConnectionEvent::Refusal,
    ];
    for state in ALL {
        for direction in [Forward, Reverse] {
            for event in events {
                let next = next_state(state, direction, event);
                let may_end = matches!(event, ConnectionEvent::Foreign | ConnectionEvent::Refusal);
                let stays = kind(next) == kind(state) || may_end && next == Free;
                assert!(stays, "{state:?} {event:?}");
            }
            assert_eq!(next_state(state, direction, ConnectionEvent::Nothing), state);
        }
    }
}
