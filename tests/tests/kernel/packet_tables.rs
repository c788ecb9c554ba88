//! Rung 3: the same tables in the kernel. Verdicts, bytes, flow entries and counters must equal
//! those of the host.

use std::collections::BTreeMap;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use lb_common::layout::{Forwarding, Reason, map};
use lb_kernel::Sizes;
use tests::maps::any_map::Entry;
use tests::packets::CLIENT_MAC;
use tests::packets::datapath::cases::{self, Ends, V4, V6};
use tests::packets::datapath::surroundings::{INSIDE, OUTSIDE, neighbour};
use tests::packets::datapath::{Conversation, FLOWS, Hook, KernelWorld, World};
use tests::packets::scenario::{self, ScenarioEvent, Sent};

fn run(case: fn(&mut Conversation, &Ends), ends: &Ends) {
    case(&mut both(), ends);
}

tests::every_case!(run);

fn both() -> Conversation {
    Conversation::on_host_and_in_kernel().unwrap_or_else(|error| panic!("{error:#}"))
}

#[test]
fn host_and_kernel_agree_on_a_fixed_random_scenario() {
    live_through(1);
}

#[test]
fn host_and_kernel_agree_on_a_new_random_scenario() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    live_through(now.as_nanos() as u64);
}

/// The conversation compares host and kernel: bytes and verdict of each packet, all flow entries,
/// all counters.
fn live_through(seed: u64) {
    println!("the day's seed is {seed}");
    let day = scenario::draw_value(&scenario::any_scenario(5000), seed);
    let mut conversation = both();
    for event in &day {
        conversation.wait_for_streams();
        match event {
            ScenarioEvent::Packet(sent) if !is_accepted(sent) => {}
            _ => drop(event.happen(&mut conversation)),
        }
    }
}

/// BPF_PROG_TEST_RUN requires an Ethernet header, and for tc an IP header, too.
fn is_accepted(sent: &Sent) -> bool {
    let fewest = match sent.hook {
        Hook::Forward => 14,
        _ => 14 + 40,
    };
    sent.packet.len() >= fewest
}

#[test]
fn a_reset_world_equals_a_new_one() -> Result<()> {
    let mut conversation = both();
    for at in [&V4, &V6] {
        meet_every_table(&mut conversation, at);
    }
    let fresh = contents_of_a_new_world()?;
    let used = conversation.kernel().context("no kernel world")?;
    let spoilt = used.contents()?;
    for (name, contents) in &spoilt {
        assert!(*contents != fresh[name] || NOT_MET.contains(name), "{name} is unchanged");
    }
    used.reset()?;
    for (name, contents) in used.contents()? {
        assert_eq!(contents, fresh[name], "{name}");
    }
    Ok(())
}

/// Maps that these packets do not write. They need sockets of the node, a listener of `millrace
/// drops`, clients with very many flows, or a full flow table.
const NOT_MET: [&str; 15] = [
    map::CROWDED4,
    map::CROWDED6,
    map::CROWDED_LATELY4,
    map::CROWDED_LATELY6,
    map::UNTRACKED4,
    map::UNTRACKED6,
    map::HINTS,
    map::RESERVED_PORTS,
    map::HOST,
    map::CONNECTED4,
    map::CONNECTED6,
    map::UNCONNECTED4,
    map::UNCONNECTED6,
    map::LISTENER,
    map::UNREPORTED,
];

fn contents_of_a_new_world() -> Result<BTreeMap<&'static str, Vec<Entry>>> {
    KernelWorld::new(Sizes::for_flows(FLOWS))?.contents()
}

/// Packets and Services that write to every map except `NOT_MET`.
fn meet_every_table(c: &mut Conversation, at: &Ends) {
    c.share_hops(true);
    let ranges = ["198.51.100.0/24", "2001:db8:51::/48"];
    let range = if at.is_v6() { ranges[1] } else { ranges[0] };
    let web = at.web(1).load_balancer(&at.load_balancer(443));
    c.set(&web.affinity(3600).source_ranges(&[range]).forwarding(Forwarding::Gue));
    // A slot with an earlier owner.
    let ends = at.backends(2);
    let moving = at.service(91, "TCP", 0).forwarding(Forwarding::Gue);
    c.set(&moving.clone().backends(&[&ends[0]]));
    c.set(&moving.backends(&[&ends[1]]).draining(&[&ends[0]]));
    c.peers(&[at.elsewhere]);
    c.tunnel_peer(at.elsewhere);
    c.device(OUTSIDE, |_| {});
    let announced = cases::neighbours::announced(at);
    c.announce(&announced, false);
    c.watch(&announced);
    c.stack(&cases::neighbours::request(at, &announced)).assert_sent();
    cases::bfd::meet(c, at);
    for frontend in [at.cluster(80), at.load_balancer(443)] {
        c.forward(&at.to_web(40000).to(frontend.as_str()).syn()).assert_passed();
    }
    c.set(&at.dns(0));
    let refused = c.forward(&at.to_dns(40000));
    assert!(refused.is_counted_for(Reason::NoBackend));
    let backend = at.end(at.elsewhere, 8080);
    c.set(&at.service(81, "TCP", 0).remote_backends(&[&backend]).weight(50));
    c.device(INSIDE, |_| {});
    c.exit(at.elsewhere, neighbour(INSIDE, CLIENT_MAC));
    let _ = c.forward(&at.to_web(40000).to(at.cluster(81).as_str()).syn());
    let first = at.to_web(41000).psh_ack().payload(&[1; 3000]).dont_fragment(false);
    let _ = c.forward(&first.fragment(..1480));
    c.tunnel_keys([1, 2]);
}

/// Some network cards provide the checksum of the whole packet (CHECKSUM_COMPLETE). Translation
/// must update it. Otherwise the stack takes the packet for corrupt, and computes the sum again.
#[test]
fn a_checksum_computed_by_the_card_stays_correct() -> Result<()> {
    for at in [&V4, &V6] {
        let mut conversation = both();
        conversation.set(&at.web(1));
        conversation.set(&at.dns(1));
        let (request, datagram) = (at.to_web(40000).syn(), at.to_dns(40000));
        let kernel = conversation.kernel().context("no kernel world")?;
        for packet in [&request, &datagram] {
            let Some(stays) = kernel.sum_of_card_stays_right(Hook::Stack, packet)? else {
                eprintln!("skipped: not observable on this kernel");
                return Ok(());
            };
            assert!(stays, "{packet:?}");
        }
        // Both packets were translated, so the check above was effective.
        assert_eq!(conversation.kernel().context("no kernel world")?.flows().len(), 2);
    }
    Ok(())
}

/// Forwarding also decrements the hop limit, which has no checksum of its own in IPv6.
#[test]
fn a_checksum_computed_by_the_card_stays_correct_when_a_packet_is_forwarded() -> Result<()> {
    for at in [&V4, &V6] {
        let mut conversation = both();
        let backend = at.end(at.elsewhere, 8080);
        conversation.set(&at.service(81, "TCP", 0).remote_backends(&[&backend]));
        conversation.device(INSIDE, |_| {});
        conversation.exit(at.elsewhere, neighbour(INSIDE, CLIENT_MAC));
        let request = at.to_web(40000).to(at.cluster(81).as_str()).ttl(64).syn();
        // The first packet opens the flow, the second one finds it.
        for _ in 0..2 {
            let kernel = conversation.kernel().context("no kernel world")?;
            let Some(stays) = kernel.sum_of_card_stays_right(Hook::Stack, &request)? else {
                eprintln!("skipped: not observable on this kernel");
                return Ok(());
            };
            assert!(stays, "{request:?}");
            assert_eq!(kernel.flows().len(), 1);
        }
    }
    Ok(())
}

/// So does an echo reply, whose hop limit is another than its request's.
#[test]
fn a_checksum_computed_by_the_card_stays_correct_in_an_echo_reply() -> Result<()> {
    for at in [&V4, &V6] {
        let mut conversation = both();
        let [request, _] = cases::assigned_addresses::answered_packets(&mut conversation, at);
        let kernel = conversation.kernel().context("no kernel world")?;
        let Some(stays) = kernel.sum_of_card_stays_right(Hook::Stack, &request)? else {
            eprintln!("skipped: not observable on this kernel");
            return Ok(());
        };
        assert!(stays, "{request:?}");
    }
    Ok(())
}

/// Flows that are not in their client's buckets are found as long as they live. Afterwards no packet
/// looks for them.
#[test]
fn marks_of_crowded_buckets_are_cleared_after_their_last_flow() -> Result<()> {
    fn clear(c: &mut Conversation) -> Result<u32> {
        c.kernel().context("no kernel world")?.clear_crowded_bits()
    }
    for at in [&V4, &V6] {
        let mut c = both();
        cases::flows::one_port_has_flows(&mut c, at, cases::flows::MORE_THAN_ITS_SHARE);
        assert_eq!(clear(&mut c)?, 0, "flows need them");
        cases::flows::one_port_has_flows(&mut c, at, cases::flows::MORE_THAN_ITS_SHARE);
        c.wait(1_000_000);
        assert!(clear(&mut c)? > 0);
        assert_eq!(clear(&mut c)?, 0);
    }
    Ok(())
}

/// The agent decides it by the flows that are in the table. Host and kernel agree on the entries that
/// flows get afterwards.
#[test]
fn flows_begin_in_the_rest_of_the_table_while_there_are_many() -> Result<()> {
    for (at, many) in [(&V4, [true, false]), (&V6, [false, true])] {
        let mut c = both();
        cases::flows::clients_connect(&mut c, at, 40_000..40_004);
        assert_eq!(c.place_new_flows()?, [false; 2]);
        cases::flows::clients_connect(&mut c, at, 40_004..40_005);
        assert_eq!(c.place_new_flows()?, many);
        cases::flows::clients_connect(&mut c, at, 40_005..40_010);
        // Until all have expired.
        c.wait(90_000);
        assert_eq!(c.place_new_flows()?, [false; 2]);
        cases::flows::clients_connect(&mut c, at, 40_010..40_013);
    }
    Ok(())
}

#[test]
fn a_test_that_panics_leaves_no_state_for_the_next() {
    let panicked = thread::spawn(|| {
        let mut conversation = both();
        meet_every_table(&mut conversation, &V4);
        panic!("as a failing test does");
    });
    assert!(panicked.join().is_err());
    let mut conversation = both();
    assert!(conversation.flows().is_empty());
    conversation.forward(&V4.to_web(40000).syn()).passes();
}
