//! Rung 2: the packet tables on the host, and properties that hold for any packets and tables.

use std::collections::BTreeSet;

use lb_common::datapath::{Answer, Answers};
use lb_common::layout::{Reason, Ticks};
use proptest::prelude::*;
use tests::packets::datapath::cases::{self, Ends, V4, V6};
use tests::packets::datapath::{Conversation, Fate, Hook, PacketOutcome, ends};
use tests::packets::scenario::{self, ScenarioEvent, Sent};
use tests::packets::{Packet, dissect, explain_difference, tcp};

fn run(case: fn(&mut Conversation, &Ends), ends: &Ends) {
    case(&mut Conversation::on_host(), ends);
}

tests::every_case!(run);

#[test]
fn a_long_packet_does_not_use_a_shared_next_hop() {
    for at in [&V4, &V6] {
        cases::shared_hops::a_long_packet_does_not_use_a_shared_next_hop(
            &mut Conversation::on_host(),
            at,
        );
    }
}

#[test]
fn a_request_that_could_be_a_reply_has_a_replys_source() {
    for at in [&V4, &V6] {
        cases::replies::a_request_that_could_be_a_reply_has_a_replys_source(
            &mut Conversation::on_host(),
            at,
        );
    }
}

#[test]
fn a_refused_connection_moves_without_a_link_layer() {
    for at in [&V4, &V6] {
        cases::refusals::a_refused_connection_moves_without_xdp(
            &mut Conversation::on_host_without_link_layer(),
            at,
        );
    }
}

/// Flows from one client port to one backend through several frontends need different SNAT ports.
#[test]
fn when_snat_ports_run_out_only_new_flows_are_refused() {
    for at in [&V4, &V6] {
        let mut c = Conversation::on_host();
        c.host_tables().settings.snat_port_count = 7;
        let backend = at.backends(1)[0].clone();
        let requests: Vec<Packet> = (80..90)
            .map(|port| tcp(at.client(40000).as_str(), at.cluster(port).as_str()))
            .collect();
        for port in 80..90 {
            c.set(&at.service(port, "TCP", 1));
        }
        let mut seen = Vec::new();
        for request in &requests[..8] {
            let opened = request.syn();
            let snat = c.forward(&opened).with_snat(&opened.to(backend.as_str()));
            let reply = request.reversed().syn_ack();
            c.reverse(&reply.from(backend.as_str()).to(snat.as_str())).becomes(&reply);
            let again = request.ack().to(backend.as_str()).from(snat.as_str());
            c.forward(&request.ack()).becomes(&again);
            assert!(!seen.contains(&snat), "{snat} twice");
            seen.push(snat);
        }
        assert_eq!(seen[0], at.client(40000), "the first flow needs no SNAT");
        for request in &requests[8..] {
            c.forward(&request.syn()).is_dropped_for(Reason::NoSnatPort);
        }
        // A flow that is reset frees its SNAT port at once.
        c.forward(&requests[3].rst()).assert_passed();
        let opened = requests[9].syn();
        let snat = c.forward(&opened).with_snat(&opened.to(backend.as_str()));
        assert_eq!(snat, seen[3]);
    }
}

/// A flood of packets of unknown connections must not become a larger one between nodes. What is dropped
/// is repeated by its sender; a backend that gets it instead would reset the connection.
#[test]
fn questions_about_connections_are_limited() {
    for at in [&V4, &V6] {
        let mut c = Conversation::on_host();
        cases::slot_history::with_an_earlier_owner(&mut c, at);
        let packet = at.to_web(40000).ack();
        use_up_questions(&mut c);
        c.forward(&packet).is_dropped_for(Reason::RateLimited);
        let question = cases::slot_history::question_to_this_node(at, &at.to_web(40001).ack());
        use_up_questions(&mut c);
        c.forward(&question).is_dropped_for(Reason::RateLimited);
        let other = at.to_web(40002).ack();
        c.wait(1);
        assert!(c.forward(&other).was_counted_for(Reason::Asked));
    }
}

fn use_up_questions(c: &mut Conversation) {
    let tables = c.host_tables();
    let next = Ticks(tables.now.get().0 + 1);
    let mut questions = tables.questions.get();
    while questions.take(next) {}
    tables.questions.set(questions);
}

/// Whoever asks: the limit of one source is a test of `allowance`.
#[test]
fn answers_from_assigned_addresses_are_limited() {
    for at in [&V4, &V6] {
        let mut c = Conversation::on_host();
        for packet in cases::assigned_addresses::answered_packets(&mut c, at) {
            use_up_answers(&mut c, Answer::Echo);
            use_up_answers(&mut c, Answer::Refusal);
            c.forward(&packet).is_dropped_for(Reason::RateLimited);
            c.wait(1);
            assert_eq!(c.forward(&packet).outcome.fate, Fate::Transmitted);
        }
    }
}

/// Scans of ports must not stop path MTU discovery.
#[test]
fn refusals_from_assigned_addresses_leave_other_errors() {
    for at in [&V4, &V6] {
        let mut c = Conversation::on_host();
        let [_, refused] = cases::assigned_addresses::answered_packets(&mut c, at);
        c.set(&at.service(84, "TCP", 0));
        use_up_answers(&mut c, Answer::Refusal);
        c.forward(&refused).is_dropped_for(Reason::RateLimited);
        let packet = at.to_web(40000).to(at.cluster(84).as_str()).syn();
        assert_eq!(c.forward(&packet).outcome.fate, Fate::Transmitted);
    }
}

/// By few packets of each source, at the time of the next packet.
fn use_up_answers(c: &mut Conversation, answer: Answer) {
    let tables = c.host_tables();
    let next = Ticks(tables.now.get().0 + 1);
    let mut answers = tables.answers.borrow_mut();
    for source in (0..Answers::SOURCES).cycle().take(2_000) {
        answers.take(answer, source, next);
    }
}

/// An error about a connection that is not known here is as easy to forge as any packet.
#[test]
fn errors_for_other_nodes_are_limited() {
    for at in [&V4, &V6] {
        let mut c = Conversation::on_host();
        let error = cases::tunnels_out::error_of_another_node(&mut c, at);
        use_up_questions(&mut c);
        c.forward(&error).passes_for(Reason::UnknownQuote);
        c.wait(1);
        c.forward(&error).assert_sent();
    }
}

/// A router in front of the nodes may send packets of one connection to different nodes.
#[test]
fn every_node_sends_a_connection_to_the_same_backend() {
    for at in [&V4, &V6] {
        let (mut one, mut other) = (Conversation::on_host(), Conversation::on_host_with_seed(7));
        one.set(&at.web(30));
        // The other node got the same backends by other changes, so indexes and regions differ.
        other.set(&at.service(81, "TCP", 5));
        other.set(&at.web(2));
        for backend in (0..30).rev() {
            other.set(&at.web(0).backends(&[&at.backends(30)[backend]]));
        }
        other.set(&at.web(30));
        let mut backends = BTreeSet::new();
        for port in 40000..40300 {
            let request = at.to_web(port).syn();
            let there = one.forward(&request).outcome.bytes;
            assert_eq!(other.forward(&request).outcome.bytes, there, "port {port}");
            backends.insert(ends(&there).1);
        }
        assert_eq!(backends.len(), 30);
    }
}

/// The first flow is idle for so long that its SNAT port is given to another. It must not use that
/// port again: the backend would take both flows for one connection.
#[test]
fn a_reassigned_snat_port_is_not_used_by_two_flows() {
    for at in [&V4, &V6] {
        let mut c = Conversation::on_host();
        c.host_tables().settings.snat_port_count = 1;
        let backend = at.backends(1)[0].clone();
        (80..83).for_each(|port| c.set(&at.service(port, "TCP", 1)));
        let [plain, first, second] = [80, 81, 82]
            .map(|port| tcp(at.client(40000).as_str(), at.cluster(port).as_str()).syn());
        c.request_to(&backend, &plain);
        let snat = c.forward(&first).with_snat(&first.to(backend.as_str()));
        c.host_tables().now.set(Ticks(1 << 13));
        c.request_to(&backend, &plain);
        assert_eq!(c.forward(&second).with_snat(&second.to(backend.as_str())), snat);
        let request = second.reversed();
        let reply = request.syn_ack().from(backend.as_str()).to(snat.as_str());
        c.reverse(&reply).becomes(&request.syn_ack());
        c.forward(&second.ack()).assert_passed();
        c.forward(&first).is_dropped_for(Reason::NoSnatPort);
    }
}

#[test]
fn one_port_of_a_client_has_any_number_of_flows() {
    for at in [&V4, &V6] {
        let mut conversation = Conversation::on_host();
        cases::flows::one_port_of_a_client_has_any_number_of_flows(&mut conversation, at);
    }
}

/// CPUs read the clock independently, and one may be a tick ahead.
#[test]
fn nothing_expires_if_the_clock_of_another_cpu_is_ahead() {
    for at in [&V4, &V6] {
        let mut c = Conversation::on_host();
        c.host_tables().now.set(Ticks(1000));
        let backends = at.backends(2);
        c.set(&at.dns(0).backends(&[&backends[0]]));
        c.set(&at.web(2).affinity(60));
        let question = at.to_dns(40000);
        c.forward(&question).becomes(&question.to(backends[0].as_str()));
        let first = at.to_web(40000).syn();
        let ends = [backends[0].as_str(), backends[1].as_str()];
        let chosen = c.forward(&first).chosen(&ends, |backend| first.to(backend)).to_owned();

        c.host_tables().now.set(Ticks(999));
        c.set(&at.dns(0).backends(&[&backends[0], &backends[1]]));
        for port in 40001..40040 {
            c.forward(&question).becomes(&question.to(backends[0].as_str()));
            let request = at.to_web(port).syn();
            c.request_to(&chosen, &request);
        }
        c.forward(&question).becomes(&question.to(backends[0].as_str()));
    }
}

proptest! {
    #[test]
    fn only_addresses_ports_and_checksums_of_packets_change(day in scenario::any_scenario(1..40)) {
        let mut conversation = Conversation::on_host();
        for event in &day {
            let processed = event.happen(&mut conversation);
            if let (ScenarioEvent::Packet(sent), Some(processed)) = (event, processed) {
                check(sent, &processed.outcome)?;
            }
        }
    }

    #[test]
    fn a_packet_without_a_link_layer_header_fares_as_with_one(day in scenario::any_scenario(1..40)) {
        let (mut framed, mut raw) = (Conversation::on_host(), Conversation::on_host_without_link_layer());
        // A frame from or to a group gets no answer, which nobody knows of a packet without one.
        for event in day.iter().filter(|event| !is_of_group(event)) {
            let (Some(one), Some(other)) = (event.happen(&mut framed), event.happen(&mut raw)) else {
                continue;
            };
            prop_assert_eq!(one.outcome.fate, other.outcome.fate);
            let from_ip = |outcome: &PacketOutcome| outcome.bytes.get(14..).map(<[u8]>::to_vec);
            let (one, other) = (from_ip(&one.outcome), from_ip(&other.outcome));
            prop_assert!(one == other, "{:02x?}\n{:02x?}", one, other);
        }
    }

    #[test]
    fn no_intact_packet_is_dropped_if_all_services_have_backends(
        services in prop::collection::vec(scenario::any_serving_service(), 1..4),
        packets in prop::collection::vec(scenario::any_intact_packet(), 1..30),
    ) {
        let mut conversation = Conversation::on_host();
        services.iter().for_each(|service| conversation.set(service));
        for sent in &packets {
            let processed = conversation.run(sent.hook, &sent.packet);
            // Addresses of Services refuse ports that none has. Assigned ones answer echo requests,
            // and drop what has too many extension headers.
            let answered = matches!(processed.outcome.fate, Fate::Transmitted | Fate::Sent);
            let kept = processed.outcome.passed()
                || processed.is_counted_for(Reason::NoSuchPort)
                || processed.is_counted_for(Reason::Unserved)
                || !sent.has_ports && answered;
            prop_assert!(kept, "dropped:\n{}", dissect(&sent.packet));
        }
    }

    #[test]
    fn translating_a_reply_reverses_the_translation_of_its_request(
        services in prop::collection::vec(scenario::any_serving_service(), 1..4),
        sent in scenario::any_intact_packet(),
    ) {
        let mut conversation = Conversation::on_host();
        services.iter().for_each(|service| conversation.set(service));
        let there = conversation.run(Hook::Forward, &sent.packet).outcome.bytes;
        let Some(backend) = chosen_backend(&sent, &there) else { return Ok(()) };

        let reply = sent.packet.reversed();
        let back = conversation.run(Hook::Reverse, &reply.from(backend.as_str())).outcome.bytes;
        prop_assert!(back == reply[..], "{}", explain_difference(&reply, &back));
    }
}

/// Whether it is a frame from or to several interfaces.
fn is_of_group(event: &ScenarioEvent) -> bool {
    let ScenarioEvent::Packet(sent) = event else { return false };
    let frame: &[u8] = &sent.packet;
    // A damaged packet may be shorter.
    [0, 6].into_iter().any(|at| frame.get(at).is_some_and(|octet| octet & 1 != 0))
}

/// Properties of a single packet, whatever came before it.
fn check(sent: &Sent, outcome: &PacketOutcome) -> Result<(), TestCaseError> {
    let packet: &[u8] = &sent.packet;
    let difference = || explain_difference(packet, &outcome.bytes);
    let is_wrong = |bytes| dissect(bytes).contains("WRONG");
    if matches!(outcome.fate, Fate::Transmitted | Fate::Sent) {
        // Made by Millrace. A wrong packet may be quoted as it is.
        prop_assert!(is_wrong(packet) || !is_wrong(&outcome.bytes), "{}", difference());
        return Ok(());
    }
    if !outcome.passed() || outcome.bytes == packet {
        return Ok(());
    }
    prop_assert_eq!(outcome.bytes.len(), packet.len());
    let changed = outcome.bytes.iter().zip(packet).filter(|(new, old)| new != old).count();
    // One address, two ports, two checksums, and what hides a refusal: at most this many bytes.
    prop_assert!(changed <= 16 + 2 + 2 + 2 + 2 + 5, "{}", difference());
    prop_assert!(is_wrong(packet) || !is_wrong(&outcome.bytes), "{}", difference());
    // The checksum of a fragment that ends within its header is written to the padding behind it. Nothing else differs.
    let end =
        if dissect(packet).contains("cut short") { end_of_packet(sent) } else { packet.len() };
    if sent.intact {
        // It acknowledges a SYN with the number 1.
        let is_refusal = dissect(packet).contains("[RST ACK], seq 1, ack 2,");
        let expected = sent.has_ports
            && translations(sent).iter().any(|translated| {
                let (source, destination) = ends(&outcome.bytes);
                // The backend may see an SNAT port instead of the client's.
                let translated = match sent.hook {
                    Hook::Forward | Hook::Stack | Hook::AfterXdp | Hook::Workload => {
                        translated.from(source.as_str())
                    }
                    Hook::Reverse | Hook::Process => translated.to(destination.as_str()),
                };
                outcome.bytes[..end] == translated[..end]
                    || is_refusal && outcome.bytes == translated.ack().ack_number(0)[..]
            });
        prop_assert!(expected, "{}", difference());
    }
    Ok(())
}

/// Where the packet ends in its frame, by the length in its IP header.
fn end_of_packet(sent: &Sent) -> usize {
    let frame: &[u8] = &sent.packet;
    let length = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let end = if frame[14] >> 4 == 6 { 14 + 40 + length(14 + 4) } else { 14 + length(14 + 2) };
    end.min(frame.len())
}

/// All translations of a packet that are allowed at its hook.
fn translations(sent: &Sent) -> Vec<Packet> {
    let ends = match sent.hook {
        Hook::Forward | Hook::Stack | Hook::AfterXdp | Hook::Workload => {
            sent.at.backends(scenario::BACKENDS)
        }
        Hook::Reverse | Hook::Process => scenario::any_frontends(sent.at),
    };
    let translate = |end: &String| match sent.hook {
        Hook::Forward | Hook::Stack | Hook::AfterXdp | Hook::Workload => {
            sent.packet.to(end.as_str())
        }
        Hook::Reverse | Hook::Process => sent.packet.from(end.as_str()),
    };
    ends.iter().map(translate).collect()
}

/// The backend that the packet was sent to, if it was translated.
fn chosen_backend(sent: &Sent, outcome: &[u8]) -> Option<String> {
    if !sent.has_ports || outcome == &sent.packet[..] {
        return None;
    }
    let backends = sent.at.backends(scenario::BACKENDS);
    backends.into_iter().find(|backend| sent.packet.to(backend.as_str())[..] == *outcome)
}
