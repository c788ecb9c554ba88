//! Frames that are for another machine: a bridge that floods delivers them, too.

use lb_common::layout::LinkAddresses;

use super::Ends;
use crate::packets::datapath::surroundings::OUTSIDE;
use crate::packets::datapath::{Conversation, Hook};
use crate::packets::{CLIENT_MAC, Mac, NODE_MAC, Packet};

const OTHER_MAC: Mac = Mac([0x02, 0, 0, 0, 0, 0xee]);
const BROADCAST: Mac = Mac([0xff; 6]);

/// At both hooks.
#[track_caller]
fn passes(c: &mut Conversation, packet: &Packet) {
    // XDP leaves the decision to tc.
    c.forward(packet).is_deferred_for(&[]);
    c.stack(packet).passes();
    assert!(c.flows().is_empty());
}

#[track_caller]
fn is_served(c: &mut Conversation, at: &Ends, packet: &Packet) {
    let backend = &at.backends(1)[0];
    for hook in [Hook::Forward, Hook::Stack] {
        c.run(hook, packet).becomes(&packet.to(backend.as_str()));
    }
}

pub fn frames_for_another_machine_pass(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    c.set(&at.dns(0));
    c.peers(&[at.elsewhere]);
    c.device(OUTSIDE, |_| {});
    let request = at.to_web(40000).syn().macs(CLIENT_MAC, OTHER_MAC);
    passes(c, &request);
    passes(c, &request.vlan(7));
    // A Service without endpoints, and a fragment.
    passes(c, &at.to_dns(40000).macs(CLIENT_MAC, OTHER_MAC));
    let large = at.to_web(40000).psh_ack().payload(&[1; 3000]).dont_fragment(false);
    passes(c, &large.fragment(..1480).macs(CLIENT_MAC, OTHER_MAC));
    // A packet that would end a flow if it were for this machine: a connection past the Service.
    let direct = at.to_web(40000).to(at.backends(1)[0].as_str()).syn();
    c.stack(&direct.macs(CLIENT_MAC, OTHER_MAC)).passes();
    is_served(c, at, &request.macs(CLIENT_MAC, NODE_MAC));
}

pub fn frames_to_groups_are_served(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    c.device(OUTSIDE, |_| {});
    is_served(c, at, &at.to_web(40000).syn().macs(CLIENT_MAC, BROADCAST));
}

/// A pod behind a bridge sends them to its gateway, which is not the interface that they pass.
pub fn frames_of_pods_are_served_for_any_receiver(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    c.device(OUTSIDE, |_| {});
    let request = at.to_web(40000).syn().macs(CLIENT_MAC, OTHER_MAC);
    c.run(Hook::Workload, &request).becomes(&request.to(at.backends(1)[0].as_str()));
}

/// A virtual router's macvlan, a VLAN with an address of its own.
pub fn frames_for_interfaces_above_are_served(c: &mut Conversation, at: &Ends) {
    const VIRTUAL_ROUTER: Mac = Mac([0, 0, 0x5e, 0, 1, 7]);
    c.set(&at.web(1));
    c.device(OUTSIDE, |device| device.macs_above = [VIRTUAL_ROUTER.0, [6; 6]].into());
    let request = at.to_web(40000).syn();
    passes(c, &request.macs(CLIENT_MAC, OTHER_MAC));
    is_served(c, at, &request.macs(CLIENT_MAC, VIRTUAL_ROUTER));
}

pub fn a_new_link_address_replaces_the_old_one(c: &mut Conversation, at: &Ends) {
    const OLD: Mac = Mac([2, 0, 0, 0, 1, 1]);
    const NEW: Mac = Mac([2, 0, 0, 0, 1, 2]);
    c.set(&at.web(1));
    c.device(OUTSIDE, |device| (device.mac, device.macs_above) = (OLD.0, [[6; 6]].into()));
    c.device(OUTSIDE, |device| device.mac = NEW.0);
    let request = at.to_web(40000).syn();
    passes(c, &request.macs(CLIENT_MAC, OLD));
    passes(c, &request.macs(CLIENT_MAC, Mac([6; 6])));
    is_served(c, at, &request.macs(CLIENT_MAC, NEW));
}

pub fn interfaces_with_too_many_addresses_take_all_frames(c: &mut Conversation, at: &Ends) {
    c.set(&at.web(1));
    let above = (1..=LinkAddresses::SLOTS).map(|last| [2, 0, 0, 0, 9, last as u8]).collect();
    c.device(OUTSIDE, |device| device.macs_above = above);
    is_served(c, at, &at.to_web(40000).syn().macs(CLIENT_MAC, OTHER_MAC));
}
