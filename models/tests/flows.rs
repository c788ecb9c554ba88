//! Packets on two and three CPUs at once. A packet may be lost, or begin a new flow, when its entry is
//! taken meanwhile; it is never translated by another flow's entry.

use std::sync::Arc;

use fuzz::wire::{ACK, FIN, Ipv4End, Packet, SYN};
use lb_common::layout::{FlowState, Settings};
use models::{Cpu, Fate, Node, Service, Work, explore, in_parallel};

/// The first entry of the first bucket: where flows contend.
const OWN: (u32, usize) = (0, 0);
const ONE: Service = Service::Local(0);
const OTHER: Service = Service::Local(1);
const REMOTE: Service = Service::Remote(0);
const OTHER_REMOTE: Service = Service::Remote(1);

/// SNAT ports: more than the models use.
const PORTS: u16 = 31;
/// The state of a connection that both sides have closed.
const CLOSED: FlowState = FlowState::TimeWait;

/// Initial sequence numbers.
const CLIENT: u32 = 1_000;
const BACKEND: u32 = 5_000;

fn syn(client: Ipv4End, service: Service) -> Packet {
    Packet::tcp(client, service.frontend(), SYN, CLIENT)
}

fn data(client: Ipv4End, service: Service) -> Packet {
    Packet::tcp(client, service.frontend(), ACK, CLIENT + 1).acknowledging(BACKEND + 1)
}

fn fin(client: Ipv4End, service: Service) -> Packet {
    Packet::tcp(client, service.frontend(), FIN, CLIENT + 1).acknowledging(BACKEND + 1)
}

fn syn_ack(service: Service, client: Ipv4End) -> Packet {
    Packet::tcp(service.backend(), client, SYN, BACKEND).acknowledging(CLIENT + 1)
}

fn reply(service: Service, client: Ipv4End) -> Packet {
    Packet::tcp(service.backend(), client, ACK, BACKEND + 1).acknowledging(CLIENT + 1)
}

fn reply_fin(service: Service, client: Ipv4End) -> Packet {
    Packet::tcp(service.backend(), client, FIN, BACKEND + 1).acknowledging(CLIENT + 1)
}

/// Sends a SYN; the client's end as the backend sees it.
fn dial(cpu: &Cpu, client: Ipv4End, service: Service) -> Ipv4End {
    let received = cpu.request(syn(client, service)).into_packet().expect("a new flow");
    assert_eq!(received.destination, service.backend());
    received.source
}

/// Establishes a connection; the client's end as the backend sees it.
fn connect(cpu: &Cpu, client: Ipv4End, service: Service) -> Ipv4End {
    let source = dial(cpu, client, service);
    let accepted = cpu.reply(service, syn_ack(service, source)).into_packet().expect("a reply");
    assert_eq!((accepted.source, accepted.destination), (service.frontend(), client));
    assert_eq!(cpu.request(data(client, service)).into_packet().map(|p| p.source), Some(source));
    source
}

/// A flow is as one of the clients made it, whole.
fn assert_whole(node: &Node, clients: &[(Ipv4End, Service)]) {
    for (state, flow) in node.flows() {
        let client = Ipv4End { address: flow.client.octets.into(), port: flow.client_port };
        let frontend = Ipv4End { address: flow.frontend.octets.into(), port: flow.frontend_port };
        let backend = Ipv4End { address: flow.backend.octets.into(), port: flow.backend_port };
        let known = clients.iter().any(|(end, service)| {
            (*end, service.frontend(), service.backend()) == (client, frontend, backend)
        });
        assert!(known, "{state:?} {flow:?}");
    }
}

/// What a client sent came to its own backend, if it came anywhere.
fn assert_own_backend(fate: Fate, client: Ipv4End, service: Service) {
    let Some(packet) = fate.into_packet() else { return };
    assert_eq!(packet.destination, service.backend());
    if matches!(service, Service::Local(_)) {
        assert_eq!(packet.source, client);
    }
}

/// A packet to send from a client.
fn request(packet: Packet) -> Work {
    Box::new(move |cpu| cpu.request(packet))
}

/// A packet to send so late that all flows that are not established have expired.
fn late_request(packet: Packet) -> Work {
    Box::new(move |cpu| Cpu::new(cpu.node()).later(LATE).request(packet))
}

fn from_backend(service: Service, packet: Packet) -> Work {
    Box::new(move |cpu| cpu.reply(service, packet))
}

/// Longer than the timeout of a flow that is not established, in seconds.
const LATE: u32 = 200;

/// The connection can be established and closed: nothing that was done to its entry before shows.
fn assert_usable(node: &Arc<Node>, client: Ipv4End, service: Service) {
    let cpu = Cpu::new(Arc::clone(node)).later(LATE);
    let source = connect(&cpu, client, service);
    assert_eq!(state_of(node, client, service), FlowState::Established);
    let received = cpu.reply(service, reply(service, source)).into_packet().expect("established");
    assert_eq!((received.source, received.destination), (service.frontend(), client));
}

fn state_of(node: &Node, client: Ipv4End, service: Service) -> FlowState {
    find(node, client, service).expect("it has an entry")
}

/// The state of a flow, if it has an entry.
fn find(node: &Node, client: Ipv4End, service: Service) -> Option<FlowState> {
    let frontend = service.frontend();
    let found = node.flows().into_iter().find(|(_, flow)| {
        flow.client.octets == client.address.octets()
            && flow.client_port == client.port
            && flow.frontend.octets == frontend.address.octets()
    });
    found.map(|(state, _)| state)
}

#[test]
fn a_request_is_not_translated_by_the_flow_that_evicts_its_own() {
    explore("eviction and request", 2, 2, |first| {
        let node = Node::new(1, PORTS);
        let (one, other) = (node.client(OWN, 0), node.client(OWN, 1));
        dial(&Cpu::new(Arc::clone(&node)), one, ONE);
        let work = vec![request(data(one, ONE)), late_request(syn(other, OTHER))];
        let fates = in_parallel(first, &node, work);
        assert_own_backend(fates[0], one, ONE);
        assert_own_backend(fates[1], other, OTHER);
        assert_whole(&node, &[(one, ONE), (other, OTHER)]);
        assert_usable(&node, other, OTHER);
    });
}

/// The agent decides that flows begin in the other bucket, between any two accesses of a packet that
/// belongs to one flow and one that begins another.
#[test]
fn flows_are_found_while_new_ones_begin_elsewhere() {
    explore("new flows begin elsewhere", 3, 2, |first| {
        let node = Node::new(2, PORTS);
        let (one, other) = (node.client(OWN, 0), node.client(OWN, 1));
        dial(&Cpu::new(Arc::clone(&node)), one, ONE);
        let begin_elsewhere: Work = Box::new(|cpu| {
            cpu.node().begin_in_rest();
            Fate::Lost
        });
        let work = vec![request(data(one, ONE)), request(syn(other, OTHER)), begin_elsewhere];
        let fates = in_parallel(first, &node, work);
        assert_own_backend(fates[0], one, ONE);
        assert_own_backend(fates[1], other, OTHER);
        for (client, service) in [(one, ONE), (other, OTHER)] {
            assert_usable(&node, client, service);
        }
        assert_eq!(node.flows().len(), 2);
    });
}

#[test]
fn a_reply_is_not_translated_by_the_flow_that_evicts_its_own() {
    explore("eviction and reply", 2, 2, |first| {
        let node = Node::new(1, PORTS);
        let (one, other) = (node.client(OWN, 0), node.client(OWN, 1));
        dial(&Cpu::new(Arc::clone(&node)), one, ONE);
        let work = vec![from_backend(ONE, syn_ack(ONE, one)), late_request(syn(other, OTHER))];
        let fates = in_parallel(first, &node, work);
        assert_own_client(fates[0], syn_ack(ONE, one), one, ONE);
        assert_own_backend(fates[1], other, OTHER);
        assert_whole(&node, &[(one, ONE), (other, OTHER)]);
        assert_usable(&node, other, OTHER);
    });
}

#[test]
fn two_flows_that_want_the_same_entry_get_one_each() {
    explore("two claims", 2, 2, |first| {
        let node = Node::new(1, PORTS);
        let (one, other) = (node.client(OWN, 0), node.client(OWN, 1));
        let fates =
            in_parallel(first, &node, vec![request(syn(one, ONE)), request(syn(other, OTHER))]);
        assert_own_backend(fates[0], one, ONE);
        assert_own_backend(fates[1], other, OTHER);
        assert_whole(&node, &[(one, ONE), (other, OTHER)]);
        for (client, service) in [(one, ONE), (other, OTHER)] {
            assert_usable(&node, client, service);
        }
    });
}

#[test]
fn three_flows_that_want_the_same_entry_get_one_each() {
    explore("three claims", 3, 0, |first| {
        let node = Node::new(1, PORTS);
        let clients = [(0, ONE), (1, OTHER), (2, ONE)];
        let clients = clients.map(|(number, service)| (node.client(OWN, number), service));
        let work = clients.map(|(client, service)| request(syn(client, service)));
        let fates = in_parallel(first, &node, work.into());
        for (fate, (client, service)) in fates.into_iter().zip(clients) {
            assert_own_backend(fate, client, service);
            assert_usable(&node, client, service);
        }
        assert_whole(&node, &clients);
    });
}

/// What a reply becomes, if it is translated at all.
fn assert_own_client(fate: Fate, sent: Packet, client: Ipv4End, service: Service) {
    let Some(packet) = fate.into_packet() else { return };
    let translated = Packet { source: service.frontend(), destination: client, ..sent };
    assert!(packet == translated || packet == sent, "{packet:?}");
}

/// Each reply leads to the client whose flow has the port, to each port that was ever used.
fn assert_own_ports(node: &Arc<Node>, clients: &[(Ipv4End, Option<Ipv4End>)]) {
    let cpu = Cpu::new(Arc::clone(node));
    for (client, source) in clients {
        let Some(source) = *source else { continue };
        let sent = syn_ack(REMOTE, source);
        let received = cpu.reply(REMOTE, sent).into_packet();
        let expected = Packet { source: REMOTE.frontend(), destination: *client, ..sent };
        assert_eq!(received, Some(expected), "of {clients:?}");
    }
    for (number, (_, source)) in clients.iter().enumerate() {
        let same = clients[..number].iter().any(|(_, other)| other == source && source.is_some());
        assert!(!same, "one port twice: {clients:?}");
    }
}

fn source(fate: Fate) -> Option<Ipv4End> {
    fate.into_packet().map(|packet| packet.source)
}

#[test]
fn two_flows_never_get_the_same_snat_port() {
    explore("two SNAT ports", 2, 2, |first| {
        // So few ports that both flows try the same one.
        let node = Node::new(1, 2);
        let (one, other) = (node.client(OWN, 0), node.client((0, 1), 1));
        let fates =
            in_parallel(first, &node, vec![request(syn(one, REMOTE)), request(syn(other, REMOTE))]);
        assert_own_ports(&node, &[(one, source(fates[0])), (other, source(fates[1]))]);
    });
}

/// Earlier flows have used both ports, and left entries in their second buckets, which are freed.
#[test]
fn two_flows_never_get_the_same_used_snat_port() {
    explore("two used SNAT ports", 2, 2, |first| {
        let node = Node::new(2, 2);
        for port in Settings::SNAT_PORT_FIRST..Settings::SNAT_PORT_FIRST + 2 {
            node.leave_behind(REMOTE.backend(), port);
        }
        let (one, other) = (node.client(OWN, 0), node.client((0, 1), 1));
        let fates =
            in_parallel(first, &node, vec![request(syn(one, REMOTE)), request(syn(other, REMOTE))]);
        assert_own_ports(&node, &[(one, source(fates[0])), (other, source(fates[1]))]);
    });
}

#[test]
fn three_flows_never_get_the_same_snat_port() {
    explore("three SNAT ports", 3, 1, |first| {
        let node = Node::new(1, 3);
        let clients =
            [(0, 0), (1, 1), (2, 2)].map(|(entry, number)| node.client((0, entry), number));
        let work = clients.map(|client| request(syn(client, REMOTE)));
        let fates = in_parallel(first, &node, work.into());
        let sources: Vec<_> = clients.into_iter().zip(fates.into_iter().map(source)).collect();
        assert_own_ports(&node, &sources);
    });
}

/// There is one port: at most one flow has it, and replies to it lead to no other client.
fn assert_one_has_the_port(node: &Arc<Node>, clients: &[Ipv4End]) {
    let flows = node.flows();
    assert!(flows.len() <= 1, "two flows with one port: {flows:?}");
    let Some((state, flow)) = flows.first() else { return };
    let own = clients.iter().find(|client| client.port == flow.client_port).expect("a client");
    let sent = syn_ack(REMOTE, Ipv4End { address: flow.snat.octets.into(), port: flow.snat_port });
    let received = Cpu::new(Arc::clone(node)).later(LATE).reply(REMOTE, sent).into_packet();
    let expected = Packet { source: REMOTE.frontend(), destination: *own, ..sent };
    // A flow that is not established has expired by then: it is not translated.
    let has_expired = *state != FlowState::Established && [Some(sent), None].contains(&received);
    assert!(has_expired || received == Some(expected), "{state:?}: {received:?}");
}

#[test]
fn a_flow_that_loses_its_snat_port_loses_its_entry() {
    explore("SNAT port and expiry", 2, 1, |first| {
        let node = Node::new(1, 1);
        let (one, other) = (node.client(OWN, 0), node.client((0, 1), 1));
        dial(&Cpu::new(Arc::clone(&node)), one, REMOTE);
        let work = vec![late_request(syn(other, REMOTE)), request(syn(one, REMOTE))];
        let fates = in_parallel(first, &node, work);
        // There is one port, so one flow has it.
        assert_eq!(node.flows().len(), 1, "two flows with one port: {:?}, {fates:?}", node.flows());
        assert_one_has_the_port(&node, &[one, other]);
    });
}

/// The last packet before the flow expires changes its state.
#[test]
fn a_flow_that_goes_on_keeps_its_snat_port_or_loses_its_entry() {
    explore("SNAT port and handshake", 2, 3, |first| {
        let node = Node::new(1, 1);
        let (one, other) = (node.client(OWN, 0), node.client((0, 1), 1));
        let source = dial(&Cpu::new(Arc::clone(&node)), one, REMOTE);
        let answer = from_backend(REMOTE, syn_ack(REMOTE, source));
        let work = vec![late_request(syn(other, REMOTE)), answer];
        in_parallel(first, &node, work);
        assert_one_has_the_port(&node, &[one, other]);
    });
}

/// A flow that goes on keeps its SNAT port or loses its entry, also if its entry in the reply index is in its second
/// bucket.
#[test]
fn a_displaced_flow_that_goes_on_keeps_its_snat_port_or_loses_its_entry() {
    explore("SNAT port and handshake, displaced", 2, 3, |first| {
        let node = Node::new(2, 1);
        let (one, other) = (node.client(OWN, 0), node.client((0, 1), 1));
        let source = dial(&Cpu::new(Arc::clone(&node)), one, REMOTE);
        node.displace(REMOTE.backend(), source.port);
        let answer = from_backend(REMOTE, syn_ack(REMOTE, source));
        let work = vec![late_request(syn(other, REMOTE)), answer];
        in_parallel(first, &node, work);
        assert_one_has_the_port(&node, &[one, other]);
    });
}

/// A flow takes over the only port while the backend replies to the flow that has it.
#[test]
fn a_flow_whose_port_is_taken_over_loses_its_entry() {
    explore("SNAT port taken over", 2, 3, |first| {
        let node = Node::new(1, 1);
        let (one, other) = (node.client(OWN, 0), node.client((0, 1), 1));
        let source = dial(&Cpu::new(Arc::clone(&node)), one, REMOTE);
        let answer = from_backend(REMOTE, syn_ack(REMOTE, source));
        in_parallel(first, &node, vec![request(syn(other, REMOTE)), answer]);
        assert_one_has_the_port(&node, &[one, other]);
    });
}

/// A flow whose buckets are full is stored in others, which its requests find by a bit of its client,
/// and its replies by the reply index.
#[test]
fn two_flows_of_full_buckets_get_entries_elsewhere() {
    explore("two full buckets", 2, 2, |first| {
        let node = Node::half_full(PORTS);
        let clients = [ONE, OTHER].map(|service| (node.client_of_full_buckets(service), service));
        let work = clients.map(|(client, service)| request(syn(client, service)));
        let fates = in_parallel(first, &node, work.into());
        let cpu = Cpu::new(Arc::clone(&node));
        for (fate, (client, service)) in fates.into_iter().zip(clients) {
            assert_own_backend(fate, client, service);
            // One that loses an entry to the other meanwhile tries its further buckets, and may be forwarded
            // without one.
            let has_entry = find(&node, client, service).is_some();
            let accepted = cpu.reply(service, syn_ack(service, client)).into_packet();
            let expected = Packet { source: service.frontend(), ..syn_ack(service, client) };
            assert!(!has_entry || accepted == Some(expected), "{client:?}: {accepted:?}");
            assert_usable(&node, client, service);
        }
    });
}

/// Two flows that find room only in their third pair of buckets, where they want the same entry.
#[test]
fn two_flows_of_four_full_buckets_get_entries_in_further_ones() {
    explore("two flows in further buckets", 2, 2, |first| {
        let node = Node::nearly_full(PORTS);
        let clients = [ONE, OTHER].map(|service| (node.client_of_further_bucket(service), service));
        let work = clients.map(|(client, service)| request(syn(client, service)));
        let fates = in_parallel(first, &node, work.into());
        for (fate, (client, service)) in fates.into_iter().zip(clients) {
            assert_own_backend(fate, client, service);
        }
        // One that loses its entry to the other is forwarded without: there are no other buckets.
        let with_entries =
            clients.iter().filter(|(end, service)| find(&node, *end, *service).is_some());
        assert!(with_entries.count() > 0);
        let cpu = Cpu::new(Arc::clone(&node));
        for (client, service) in clients {
            let has_entry = find(&node, client, service).is_some();
            let accepted = cpu.reply(service, syn_ack(service, client)).into_packet();
            let expected = Packet { source: service.frontend(), ..syn_ack(service, client) };
            assert!(!has_entry || accepted == Some(expected), "{client:?}: {accepted:?}");
            assert_usable(&node, client, service);
        }
    });
}

/// A flow in a further bucket is found by its client's packets, or not at all, while another takes its entry.
#[test]
fn a_flow_in_a_further_bucket_is_not_mixed_with_the_one_that_evicts_it() {
    explore("eviction in a further bucket", 2, 2, |first| {
        let node = Node::nearly_full(PORTS);
        let clients = [ONE, OTHER].map(|service| (node.client_of_further_bucket(service), service));
        let [(one, _), (other, _)] = clients;
        dial(&Cpu::new(Arc::clone(&node)), one, ONE);
        let work = vec![request(data(one, ONE)), late_request(syn(other, OTHER))];
        let fates = in_parallel(first, &node, work);
        assert_own_backend(fates[0], one, ONE);
        assert_own_backend(fates[1], other, OTHER);
        assert_usable(&node, other, OTHER);
    });
}

/// The agent clears the bit while a flow begins that needs it, and that had found it set.
#[test]
fn a_bit_that_a_new_flow_needs_stays_set() {
    explore("a bit is cleared", 2, 3, |first| {
        let node = Node::half_full(PORTS);
        node.mark_crowded();
        let client = node.client_of_full_buckets(ONE);
        let clear: Work = Box::new(|cpu| {
            cpu.node().clear_crowded();
            Fate::Lost
        });
        in_parallel(first, &node, vec![request(syn(client, ONE)), clear]);
        assert!(find(&node, client, ONE).is_some());
        let accepted = Cpu::new(Arc::clone(&node)).reply(ONE, syn_ack(ONE, client)).into_packet();
        assert_eq!(accepted.map(|packet| packet.source), Some(ONE.frontend()));
        assert_usable(&node, client, ONE);
    });
}

#[test]
fn a_next_hop_does_not_go_to_the_flow_that_evicts() {
    explore("eviction and next hop", 2, 2, |first| {
        let node = Node::new(1, PORTS);
        let (one, other) = (node.client(OWN, 0), node.client(OWN, 1));
        dial(&Cpu::new(Arc::clone(&node)), one, REMOTE);
        // Its next hop is resolved again, and noted.
        let work: Vec<Work> = vec![
            Box::new(move |cpu| Cpu::new(cpu.node()).in_epoch(2).request(data(one, REMOTE))),
            late_request(syn(other, OTHER_REMOTE)),
        ];
        let fates = in_parallel(first, &node, work);
        assert_next_hop(fates[0], REMOTE);
        assert_next_hop(fates[1], OTHER_REMOTE);
        for epoch in [1, 2] {
            let cpu = Cpu::new(Arc::clone(&node)).later(LATE).in_epoch(epoch);
            assert_next_hop(cpu.request(syn(other, OTHER_REMOTE)), OTHER_REMOTE);
        }
    });
}

fn assert_next_hop(fate: Fate, service: Service) {
    if let Fate::Delivered(packet, neighbour) = fate {
        assert_eq!(packet.destination, service.backend());
        assert_eq!(neighbour, Some(service.next_hop()));
    }
}

#[test]
fn both_sides_close_at_once() {
    explore("two FINs", 2, 3, |first| {
        let node = Node::new(1, PORTS);
        let client = node.client(OWN, 0);
        connect(&Cpu::new(Arc::clone(&node)), client, ONE);
        let work = vec![request(fin(client, ONE)), from_backend(ONE, reply_fin(ONE, client))];
        let fates = in_parallel(first, &node, work);
        assert!(fates.iter().all(|fate| fate.into_packet().is_some()), "{fates:?}");
        assert_eq!(state_of(&node, client, ONE), CLOSED);
    });
}

#[test]
fn both_sides_close_at_once_while_data_is_under_way() {
    explore("two FINs and data", 3, 2, |first| {
        let node = Node::new(1, PORTS);
        let client = node.client(OWN, 0);
        connect(&Cpu::new(Arc::clone(&node)), client, ONE);
        let work = vec![
            request(fin(client, ONE)),
            from_backend(ONE, reply_fin(ONE, client)),
            request(data(client, ONE)),
        ];
        in_parallel(first, &node, work);
        assert_eq!(state_of(&node, client, ONE), CLOSED);
    });
}
