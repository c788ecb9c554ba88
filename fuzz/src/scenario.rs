//! Sequences of events.

use std::net::IpAddr;

use lb_common::host::Exit;

use crate::packet::{self, SKEWS};
use crate::universe::{self, BACKENDS, DEVICE};
use crate::{FuzzEvent, Hook, Input, Reply, TableChange, neighbour, run, state, tunnel};

/// The initial tables, and what happens after that.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Routes to backends, nodes and clients; some have none.
    pub routes: Vec<(IpAddr, Exit)>,
    pub changes: Vec<TableChange>,
    pub events: Vec<FuzzEvent>,
}

/// The limit of events. It keeps rates and idle times in the intended range.
const MOST: usize = 96;

impl Scenario {
    pub fn read(input: &mut Input) -> Self {
        let routes = routes(input);
        let changes = state::initial_tables(input);
        let mut events = Vec::new();
        while !input.is_empty() && events.len() < MOST {
            event(input, &mut events);
        }
        Self { routes, changes, events }
    }
}

/// Established connections of one client, more than the flow table has entries.
fn flood(input: &mut Input, events: &mut Vec<FuzzEvent>) {
    let hook = input.choose(&[Hook::Forward, Hook::Workload]);
    let (v6, protocol) = (input.chance(128), input.below(3));
    let (client, service) = (input.below(4), input.below(3));
    for number in 0..input.below(48) as u16 {
        let packet = packet::opening_packet(v6, protocol, (client, 50_000 + number), service);
        events.push(FuzzEvent::Packet(hook, packet));
        let reply = |tcp_flags| FuzzEvent::Reply(Reply { again: false, tcp_flags, skew: 0 });
        events.extend([0x12, 0x10].map(reply));
    }
}

/// A connection that another node asks about: sometimes it is known here.
fn generate_question(input: &mut Input, events: &mut Vec<FuzzEvent>) {
    let (v6, which, service) = (input.chance(128), input.below(3), input.below(3));
    let client = (input.below(3), 51_000);
    events.push(FuzzEvent::Change(TableChange::TunnelKeys(tunnel::ASKING_KEYS)));
    if input.chance(192) {
        let opening = packet::opening_packet(v6, which, client, service);
        events.push(FuzzEvent::Packet(Hook::Forward, opening));
    }
    let number = 1 + input.below(3) as u8;
    let question = packet::tunnelled_question(v6, which, client, service, number);
    events.push(FuzzEvent::Packet(Hook::Forward, question));
}

/// A connection whose backend refuses it, or does not reply, and whose client repeats its SYN; now and then with other
/// numbers, which mean something else.
fn generate_refusal(input: &mut Input, events: &mut Vec<FuzzEvent>) {
    /// From the number that the opening packet acknowledges to the one that refuses it.
    const EXACT: u32 = !0;
    let hook = input.choose(&[Hook::Forward, Hook::Stack, Hook::Workload]);
    let (v6, client, service) = (input.chance(128), input.below(3), input.below(3));
    for _ in 0..1 + input.below(4) {
        let opening = packet::opening_packet(v6, 0, (client, 52_000), service);
        events.push(FuzzEvent::Packet(hook, opening));
        if input.chance(64) {
            events.push(FuzzEvent::Change(TableChange::Idle(100)));
        } else {
            let skew = if input.chance(192) { EXACT } else { input.choose(&SKEWS) };
            events.push(FuzzEvent::Reply(Reply { again: false, tcp_flags: 0x14, skew }));
        }
    }
}

fn routes(input: &mut Input) -> Vec<(IpAddr, Exit)> {
    let addresses = [false, true].into_iter().flat_map(|v6| {
        let backends = (0..BACKENDS).map(move |number| universe::backend_address(v6, number));
        let peers = (0..2).map(move |number| universe::peer_address(v6, number));
        backends.chain(peers).chain((0..3).map(move |number| universe::client_address(v6, number)))
    });
    let exit = |address| Some((address, run::numbered_exit(input.below(8), DEVICE)?));
    addresses.filter_map(exit).collect()
}

fn event(input: &mut Input, events: &mut Vec<FuzzEvent>) {
    match input.below(32) {
        0..14 => {
            let hook = input.choose(&[Hook::Forward, Hook::Forward, Hook::Workload, Hook::Reverse]);
            events.push(FuzzEvent::Packet(hook, packet::generate_packet(input, hook)));
        }
        14 => flood(input, events),
        15..26 => {
            let flags = [0x12, 0x10, 0x10, 0x18, 0x11, 0x14, 0x02, 0x04, 0, 0x01, 0x08, 0x12];
            let tcp_flags = input.choose(&flags);
            let again = input.chance(128);
            let skew = input.choose(&SKEWS);
            events.push(FuzzEvent::Reply(Reply { again, tcp_flags, skew }));
        }
        26 if input.chance(128) => events.push(FuzzEvent::Change(TableChange::DamagedReturns)),
        26 => events.push(FuzzEvent::Change(TableChange::TunnelKeys(input.choose(&tunnel::KEYS)))),
        27 => events.extend(state::service_port(input).into_iter().map(FuzzEvent::Change)),
        28 => events.extend(state::change_backend(input).map(FuzzEvent::Change)),
        29 => events.push(FuzzEvent::Change(state::damage_tables(input))),
        30 => {
            let ticks = input.choose(&[1_000, 4_000, 12_000, 220_000, 6_000_000]);
            events.push(FuzzEvent::Change(TableChange::Idle(ticks)));
        }
        _ if input.chance(128) => events.extend(neighbour::generate_announcements(input)),
        _ if input.chance(64) => generate_question(input, events),
        _ if input.chance(64) => generate_refusal(input, events),
        _ => {
            let hook = input.choose(&[Hook::Forward, Hook::Workload, Hook::Reverse]);
            let length = 14 + input.below(128);
            events.push(FuzzEvent::Packet(hook, input.take(length)));
        }
    }
}
