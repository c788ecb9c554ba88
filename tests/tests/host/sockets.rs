//! Rung 2: the cgroup hooks' decisions about sockets, with tables on the host.

use std::net::{IpAddr, SocketAddr};

use lb_common::datapath::socket::{
    Socket, SocketVerdict, connect_socket, peer_name, release_socket, send_from_socket,
    source_for_socket,
};
use lb_common::datapath::{End, PacketFamily};
use lb_common::family;
use lb_common::header::protocol::{TCP, UDP};
use lb_common::host::{HostFamily, HostTables, OfFamily};
use lb_common::layout::{Backend, Bitmap, Frontend, Member, Reason, Side, SocketEnd};
use lb_plan::{Change, Planner};
use tests::packets::datapath::cases::{Ends, V4, V6};
use tests::packets::datapath::{HostWorld, Service, World};

/// The verdict on a connect or send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    Passed,
    Led(SocketAddr),
    Refused(Reason),
    Dropped(Reason),
}

/// A node whose processes have sockets.
struct Node {
    world: HostWorld,
    planner: Planner,
    sockets: u64,
}

impl Node {
    fn new() -> Self {
        Self { world: HostWorld::new(4, 0x5eed), planner: Planner::new(), sockets: 0 }
    }

    fn with(services: &[Service]) -> Self {
        let mut node = Self::new();
        services.iter().for_each(|service| node.set(service));
        node
    }

    fn set(&mut self, service: &Service) {
        let ports = [(service.key.clone(), Some(service.port.clone().into()))];
        self.change(Change { service_ports: ports.into(), ..Change::default() });
    }

    fn node_address(&mut self, address: &str) {
        let address: IpAddr = address.parse().expect("an address");
        self.change(Change { node_addresses: Some([address].into()), ..Change::default() });
    }

    fn change(&mut self, change: Change) {
        for step in self.planner.plan(change).steps() {
            self.world.apply(step);
        }
    }

    fn socket(&mut self, protocol: u8) -> Socket {
        self.sockets += 1;
        Socket { cookie: self.sockets, protocol, connected: false }
    }

    fn tcp(&mut self) -> Socket {
        self.socket(TCP)
    }

    fn udp(&mut self) -> Socket {
        self.socket(UDP)
    }

    fn connect(&self, socket: &mut Socket, end: &str) -> Came {
        let tables = &self.world.tables;
        let came = match address(end) {
            SocketAddr::V4(end) => {
                came(connect_socket::<family::V4, _>(tables, *socket, end4(end)))
            }
            SocketAddr::V6(end) => {
                came(connect_socket::<family::V6, _>(tables, *socket, end6(end)))
            }
        };
        socket.connected |= matches!(came, Came::Passed | Came::Led(_));
        came
    }

    fn send(&self, socket: Socket, end: &str) -> Came {
        let tables = &self.world.tables;
        match address(end) {
            SocketAddr::V4(end) => {
                came(send_from_socket::<family::V4, _>(tables, socket, end4(end)))
            }
            SocketAddr::V6(end) => {
                came(send_from_socket::<family::V6, _>(tables, socket, end6(end)))
            }
        }
    }

    /// The source that the process sees for a datagram from this address.
    fn hears(&self, socket: Socket, from: &str) -> String {
        let tables = &self.world.tables;
        match address(from) {
            SocketAddr::V4(end) => {
                named(source_for_socket::<family::V4, _>(tables, socket, end4(end)), from)
            }
            SocketAddr::V6(end) => {
                named(source_for_socket::<family::V6, _>(tables, socket, end6(end)), from)
            }
        }
    }

    /// The peer that the process sees when the socket is connected to this address.
    fn peer(&self, socket: Socket, to: &str) -> String {
        let tables = &self.world.tables;
        match address(to) {
            SocketAddr::V4(end) => named(peer_name::<family::V4, _>(tables, socket, end4(end)), to),
            SocketAddr::V6(end) => named(peer_name::<family::V6, _>(tables, socket, end6(end)), to),
        }
    }

    fn close(&self, socket: Socket) {
        release_socket::<family::V4, _>(&self.world.tables, socket.cookie);
        release_socket::<family::V6, _>(&self.world.tables, socket.cookie);
    }

    fn counted(&self, reason: Reason) -> u64 {
        self.world.tables.reasons.borrow().get(&reason).copied().unwrap_or_default()
    }

    fn new_flows(&self) -> u64 {
        self.world.tables.service_traffic.borrow().values().map(|traffic| traffic.new_flows).sum()
    }

    /// Removes one entry of an unconnected socket's flow, as if it had been evicted.
    fn forget(&mut self, socket: Socket, end: &str, side: Side) {
        let tables = &self.world.tables;
        let gone = match address(end) {
            SocketAddr::V4(end) => {
                let key = SocketEnd::new(socket.cookie, (*end.ip()).into(), end.port(), side);
                tables.v4.sockets.unconnected.borrow_mut().remove(&key).is_some()
            }
            SocketAddr::V6(end) => {
                let key = SocketEnd::new(socket.cookie, (*end.ip()).into(), end.port(), side);
                tables.v6.sockets.unconnected.borrow_mut().remove(&key).is_some()
            }
        };
        assert!(gone, "no entry for {end}");
    }

    /// Changes generation, protocol and flags of every backend's entry.
    fn change_backends(&mut self, change: impl Fn(&mut u32, &mut u8, &mut u8)) {
        let tables = &mut self.world.tables;
        let backends4 = tables.v4.backends.values_mut();
        backends4.for_each(|b| change(&mut b.generation, &mut b.protocol, &mut b.flags));
        let backends6 = tables.v6.backends.values_mut();
        backends6.for_each(|b| change(&mut b.generation, &mut b.protocol, &mut b.flags));
    }

    fn change_frontends(&mut self, change: impl Fn(&mut Frontend)) {
        let tables = &mut self.world.tables;
        tables.v4.frontends.values_mut().for_each(&change);
        tables.v6.frontends.values_mut().for_each(&change);
    }

    /// Sets the client address of this node's processes: for affinity and source ranges.
    fn own_address(&mut self, address: &str) {
        let tables = &mut self.world.tables;
        match address.parse().expect("an address") {
            IpAddr::V4(address) => tables.v4.sockets.own_address = address.into(),
            IpAddr::V6(address) => tables.v6.sockets.own_address = address.into(),
        }
    }

    fn set_room(&mut self, room: usize) {
        fn set<F: PacketFamily>(family: &mut HostFamily<F>, room: usize) {
            family.sockets.room = room;
        }
        set(OfFamily::<family::V4>::family_mut(&mut self.world.tables), room);
        set(OfFamily::<family::V6>::family_mut(&mut self.world.tables), room);
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap_or_else(|_| panic!("{text} is not an address and port"))
}

fn end4(end: std::net::SocketAddrV4) -> End<family::Address4> {
    End { address: (*end.ip()).into(), port: end.port() }
}

fn end6(end: std::net::SocketAddrV6) -> End<family::Address6> {
    End { address: (*end.ip()).into(), port: end.port() }
}

fn to_std<A: Into<IpAddr>>(end: End<A>) -> SocketAddr {
    SocketAddr::new(end.address.into(), end.port)
}

fn came<A: Into<IpAddr>>(verdict: SocketVerdict<A>) -> Came {
    match verdict {
        SocketVerdict::Pass => Came::Passed,
        SocketVerdict::Translate(end) => Came::Led(to_std(end)),
        SocketVerdict::Refuse(reason) => Came::Refused(reason),
        SocketVerdict::Drop(reason) => Came::Dropped(reason),
    }
}

fn named<A: Into<IpAddr>>(destination: Option<End<A>>, itself: &str) -> String {
    destination.map_or(itself.to_owned(), |end| to_std(end).to_string())
}

fn led(end: &str) -> Came {
    Came::Led(address(end))
}

/// Makes each case a test for both address families.
macro_rules! cases {
    ($($(#[$doc:meta])* fn $case:ident($at:ident: &Ends) $body:block)*) => {$(
        mod $case {
            use super::*;

            $(#[$doc])*
            fn case($at: &Ends) $body

            #[test]
            fn ipv4() {
                case(&V4);
            }

            #[test]
            fn ipv6() {
                case(&V6);
            }
        }
    )*};
}

cases! {
    fn a_connection_goes_to_a_backend_and_shows_the_frontend_as_peer(at: &Ends) {
        let mut node = Node::with(&[at.web(1)]);
        let (frontend, backend) = (at.cluster(80), &at.backends(1)[0]);
        let mut socket = node.tcp();
        assert_eq!(node.connect(&mut socket, &frontend), led(backend));
        assert_eq!(node.peer(socket, backend), frontend);
        assert_eq!(node.new_flows(), 1);

        let other = node.tcp();
        assert_eq!(node.peer(other, backend), *backend, "connected to the backend itself");
        node.close(socket);
        assert_eq!(node.peer(socket, backend), *backend, "its entry is removed");
    }

    fn destinations_without_a_service_pass_uncounted(at: &Ends) {
        let mut node = Node::with(&[at.web(1).load_balancer(&at.load_balancer(80))]);
        node.node_address(at.node);
        for end in [
            at.end(at.elsewhere, 80),
            at.load_balancer(81),
            at.end(at.node, 22),
            at.backends(1)[0].clone(),
        ] {
            let mut socket = node.tcp();
            assert_eq!(node.connect(&mut socket, &end), Came::Passed, "{end}");
            assert_eq!(node.peer(socket, &end), end);
        }
        let mut datagrams = node.udp();
        assert_eq!(node.connect(&mut datagrams, &at.load_balancer(80)), Came::Passed, "of TCP only");
        assert_eq!(node.counted(Reason::NoFrontend), 0);
        assert_eq!(node.new_flows(), 0);
    }

    fn connecting_a_socket_elsewhere_removes_its_entry(at: &Ends) {
        let mut node = Node::with(&[at.dns(1)]);
        let backend = &at.backends(1)[0];
        let mut socket = node.udp();
        assert_eq!(node.connect(&mut socket, &at.cluster(53)), led(backend));
        assert_eq!(node.connect(&mut socket, backend), Came::Passed);
        assert_eq!(node.peer(socket, backend), *backend);
        assert_eq!(node.hears(socket, backend), *backend);
    }

    fn sockets_spread_over_all_backends(at: &Ends) {
        let mut node = Node::with(&[at.web(3)]);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..60 {
            let mut socket = node.tcp();
            match node.connect(&mut socket, &at.cluster(80)) {
                Came::Led(backend) => drop(seen.insert(backend)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen.len(), 3);
    }

    fn a_node_port_is_open_on_the_nodes_addresses_only(at: &Ends) {
        let mut node = Node::with(&[at.web(1).node_port(30080)]);
        node.node_address(at.node);
        let (loopback, any) = if at.is_v6() { ("::1", "::") } else { ("127.0.0.1", "0.0.0.0") };
        // As if a frontend's address had the same bit in the prefilter.
        let tables = &mut node.world.tables;
        for address in [loopback, any] {
            set_destination(tables, address.parse().expect("an address"));
        }
        let backend = &at.backends(1)[0];
        let mut socket = node.tcp();
        assert_eq!(node.connect(&mut socket, &at.end(at.node, 30080)), led(backend));
        for address in [loopback, any, at.elsewhere] {
            let mut socket = node.tcp();
            assert_eq!(node.connect(&mut socket, &at.end(address, 30080)), Came::Passed);
        }
    }

    fn a_node_port_is_open_on_loopback_if_a_setting_says_so(at: &Ends) {
        let mut node = Node::with(&[at.web(1).node_port(30080), at.dns(1).node_port(30053)]);
        let loopback = if at.is_v6() { "::1" } else { "127.0.0.1" };
        let (web, dns) = (at.end(loopback, 30080), at.end(loopback, 30053));
        let backend = at.backends(1)[0].clone();
        let mut socket = node.tcp();
        assert_eq!(node.connect(&mut socket, &web), Came::Passed, "not by default");
        node.world.tables.v4.sockets.opens_loopback = true;
        node.world.tables.v6.sockets.opens_loopback = true;
        let mut socket = node.tcp();
        assert_eq!(node.connect(&mut socket, &web), led(&backend));
        assert_eq!(node.peer(socket, &backend), web);
        let datagrams = node.udp();
        for _ in 0..2 {
            assert_eq!(node.send(datagrams, &dns), led(&backend));
            assert_eq!(node.hears(datagrams, &backend), dns);
        }
        // What else listens there is not touched, nor are ClusterIPs' ports open there.
        for port in [80, 53, 30081] {
            let mut socket = node.tcp();
            assert_eq!(node.connect(&mut socket, &at.end(loopback, port)), Came::Passed, "{port}");
        }
        let mut socket = node.tcp();
        let other = if at.is_v6() { "::2" } else { "127.0.0.53" };
        assert_eq!(node.connect(&mut socket, &at.end(other, 30080)), Came::Passed);
    }

    fn without_backends_sockets_are_refused(at: &Ends) {
        let mut node = Node::with(&[at.web(0), at.dns(0)]);
        let (mut stream, mut datagrams) = (node.tcp(), node.udp());
        let refused = Came::Refused(Reason::NoBackend);
        assert_eq!(node.connect(&mut stream, &at.cluster(80)), refused);
        assert_eq!(node.connect(&mut datagrams, &at.cluster(53)), refused);
        assert_eq!(node.send(datagrams, &at.cluster(53)), refused);
        assert_eq!(node.counted(Reason::NoBackend), 3);
        assert_eq!(node.new_flows(), 0);
    }

    fn the_external_policy_does_not_apply_to_the_node_itself(at: &Ends) {
        let mut node = Node::with(&[at.web(1).load_balancer(&at.load_balancer(443)).external_local()]);
        let mut socket = node.tcp();
        assert_eq!(node.connect(&mut socket, &at.load_balancer(443)), led(&at.backends(1)[0]));
    }

    fn session_affinity_gives_all_processes_of_the_node_one_backend(at: &Ends) {
        let mut node = Node::with(&[at.web(10)]);
        node.own_address(at.node);
        node.change_frontends(|frontend| frontend.affinity = 60);
        let pools: Vec<u32> = node.world.tables.pools.keys().copied().collect();
        let pairs = pools.into_iter().flat_map(|pool| (1..=10).map(move |b| (pool, b)));
        node.world.tables.members = pairs.map(|(pool, backend)| Member { pool, backend }).collect();
        let mut dial = || {
            let mut socket = node.tcp();
            node.connect(&mut socket, &at.cluster(80))
        };
        let first = dial();
        assert!(matches!(first, Came::Led(_)), "{first:?}");
        for _ in 0..20 {
            assert_eq!(dial(), first);
        }
    }

    fn source_ranges_apply_to_the_address_of_the_node(at: &Ends) {
        let mut node = Node::with(&[at.web(1).load_balancer(&at.load_balancer(443))]);
        node.own_address(at.node);
        node.change_frontends(|frontend| frontend.restricted = 1);
        let mut socket = node.tcp();
        let dropped = Came::Dropped(Reason::SourceNotAllowed);
        assert_eq!(node.connect(&mut socket, &at.load_balancer(443)), dropped);
        assert_eq!(node.counted(Reason::SourceNotAllowed), 1);
        let backend = &at.backends(1)[0];
        assert_eq!(node.connect(&mut socket, &at.cluster(80)), led(backend), "not to the ClusterIP");

        let own = format!("{}/{}", at.node, if at.is_v6() { 128 } else { 32 });
        for service_port in 0..8 {
            let range = own.parse().expect("a range");
            node.world.tables.source_ranges.insert(service_port, vec![range]);
        }
        assert_eq!(node.connect(&mut socket, &at.load_balancer(443)), led(backend));
    }

    fn a_port_that_a_cluster_address_does_not_serve_is_refused(at: &Ends) {
        let mut node = Node::with(&[at.web(1)]);
        let mut socket = node.tcp();
        let refused = Came::Refused(Reason::NoSuchPort);
        assert_eq!(node.connect(&mut socket, &at.cluster(81)), refused);
    }

    fn an_unconnected_socket_sees_replies_from_the_frontend(at: &Ends) {
        let mut node = Node::with(&[at.dns(1)]);
        let (frontend, backend) = (at.cluster(53), &at.backends(1)[0]);
        let socket = node.udp();
        assert_eq!(node.send(socket, &frontend), led(backend));
        assert_eq!(node.send(socket, &frontend), led(backend));
        assert_eq!(node.new_flows(), 1, "the second belongs to the flow of the first");
        assert_eq!(node.hears(socket, backend), frontend);
        let other = node.udp();
        assert_eq!(node.hears(other, backend), *backend, "a socket that has sent no request");
        assert_eq!(node.hears(socket, &at.end(at.elsewhere, 53)), at.end(at.elsewhere, 53));

        // After a request to the backend's own address, replies come from that address, until the
        // next request to the Service.
        assert_eq!(node.send(socket, backend), Came::Passed);
        assert_eq!(node.hears(socket, backend), *backend);
        assert_eq!(node.send(socket, &frontend), led(backend));
        assert_eq!(node.hears(socket, backend), frontend);
    }

    fn an_unconnected_socket_stays_with_its_backend(at: &Ends) {
        let mut node = Node::with(&[at.dns(1)]);
        let backend = &at.backends(1)[0];
        let sockets: Vec<Socket> = (0..20).map(|_| node.udp()).collect();
        for socket in &sockets {
            assert_eq!(node.send(*socket, &at.cluster(53)), led(backend));
        }
        node.set(&at.dns(10));
        for socket in &sockets {
            assert_eq!(node.send(*socket, &at.cluster(53)), led(backend));
        }
    }

    fn an_unconnected_socket_moves_when_its_backend_is_removed(at: &Ends) {
        let mut node = Node::with(&[at.dns(1)]);
        let (frontend, gone) = (at.cluster(53), &at.backends(1)[0]);
        let there = at.end(at.elsewhere, 5300);
        let socket = node.udp();
        assert_eq!(node.send(socket, &frontend), led(gone));
        // Several times, so that the index of a removed backend is reused.
        for _ in 0..3 {
            node.set(&at.dns(0).backends(&[&there]));
            assert_eq!(node.send(socket, &frontend), led(&there));
            assert_eq!(node.hears(socket, &there), frontend);
            assert_eq!(node.hears(socket, gone), frontend, "its last reply may still be under way");
            node.set(&at.dns(1));
            assert_eq!(node.send(socket, &frontend), led(gone));
        }
        node.set(&at.dns(0));
        assert_eq!(node.send(socket, &frontend), Came::Refused(Reason::NoBackend));
    }

    /// Another Service keeps the backend, so that its entry does not change.
    fn an_unconnected_socket_moves_when_its_backend_leaves_its_service(at: &Ends) {
        let mut node = Node::with(&[at.dns(1), at.service(54, "UDP", 1)]);
        let [old, new] = [0, 1].map(|number| at.backends(2)[number].clone());
        let (socket, other) = (node.udp(), node.udp());
        assert_eq!(node.send(socket, &at.cluster(53)), led(&old));
        assert_eq!(node.send(other, &at.cluster(54)), led(&old));
        node.set(&at.dns(0).backends(&[&new]));
        assert_eq!(node.send(socket, &at.cluster(53)), led(&new));
        assert_eq!(node.hears(socket, &old), at.cluster(53), "a late reply");
        assert_eq!(node.send(other, &at.cluster(54)), led(&old));
        assert_eq!(node.new_flows(), 3);
    }

    fn sockets_do_not_follow_a_reused_backend_index(at: &Ends) {
        let mut node = Node::with(&[at.dns(1)]);
        let (frontend, backend) = (at.cluster(53), &at.backends(1)[0]);
        let socket = node.udp();
        assert_eq!(node.send(socket, &frontend), led(backend));
        node.change_backends(|generation, _, _| *generation += 1);
        assert_eq!(node.send(socket, &frontend), led(backend));
        assert_eq!(node.new_flows(), 2, "the backend is selected again");
        // Damaged tables: the pool still names the index. The socket must not use it, either.
        node.change_backends(|_, protocol, _| *protocol = 0);
        assert_eq!(node.send(socket, &frontend), Came::Dropped(Reason::NoSuchBackend));
    }

    fn unconnected_sockets_leave_a_draining_backend_and_connected_ones_stay(at: &Ends) {
        let mut node = Node::with(&[at.dns(1)]);
        let (frontend, backend) = (at.cluster(53), &at.backends(1)[0]);
        let (unconnected, mut connected) = (node.udp(), node.udp());
        assert_eq!(node.send(unconnected, &frontend), led(backend));
        assert_eq!(node.connect(&mut connected, &frontend), led(backend));
        assert_eq!(node.new_flows(), 2);
        node.change_backends(|_, _, flags| *flags |= Backend::<()>::DRAINING);
        assert_eq!(node.send(connected, &frontend), led(backend));
        assert_eq!(node.new_flows(), 2);
        node.send(unconnected, &frontend);
        assert_eq!(node.new_flows(), 3, "the backend is selected again");
    }

    fn a_flow_that_lost_one_entry_is_repaired(at: &Ends) {
        let mut node = Node::with(&[at.dns(1)]);
        let (frontend, backend) = (at.cluster(53), &at.backends(1)[0]);
        let socket = node.udp();
        assert_eq!(node.send(socket, &frontend), led(backend));
        node.forget(socket, backend, Side::Backend);
        assert_eq!(node.send(socket, &frontend), led(backend));
        assert_eq!(node.hears(socket, backend), frontend);
        assert_eq!(node.new_flows(), 1);

        node.forget(socket, &frontend, Side::Frontend);
        assert_eq!(node.hears(socket, backend), frontend);
        assert_eq!(node.send(socket, &frontend), led(backend));
        assert_eq!(node.new_flows(), 2, "without its frontend entry it is a new flow");
    }

    fn a_connected_socket_keeps_sending_to_its_backend(at: &Ends) {
        let mut node = Node::with(&[at.dns(1)]);
        let (frontend, backend) = (at.cluster(53), &at.backends(1)[0]);
        let mut sockets: Vec<Socket> = (0..20).map(|_| node.udp()).collect();
        for socket in &mut sockets {
            assert_eq!(node.connect(socket, &frontend), led(backend));
        }
        node.set(&at.dns(10));
        for socket in &sockets {
            assert_eq!(node.send(*socket, &frontend), led(backend));
            assert_eq!(node.hears(*socket, backend), frontend);
        }
        assert_eq!(node.new_flows(), 20);
    }

    fn replies_of_a_shared_backend_come_from_the_frontend_used_last(at: &Ends) {
        let other = tests::packets::datapath::service(&format!("{}/UDP", at.load_balancer(53)));
        let backend = &at.backends(1)[0];
        let mut node = Node::with(&[at.dns(1), other.backends(&[backend])]);
        let socket = node.udp();
        for frontend in [at.cluster(53), at.load_balancer(53), at.cluster(53)] {
            assert_eq!(node.send(socket, &frontend), led(backend));
            assert_eq!(node.hears(socket, backend), frontend);
        }
    }

    fn without_room_sockets_fail_and_open_no_flow(at: &Ends) {
        let mut node = Node::with(&[at.web(1), at.dns(1)]);
        node.set_room(0);
        let (mut stream, datagrams) = (node.tcp(), node.udp());
        let dropped = Came::Dropped(Reason::FlowTableFull);
        assert_eq!(node.connect(&mut stream, &at.cluster(80)), dropped);
        assert_eq!(node.send(datagrams, &at.cluster(53)), dropped);
        assert_eq!(node.counted(Reason::FlowTableFull), 2);
        assert_eq!(node.new_flows(), 0);
    }
}

fn set_destination(tables: &mut HostTables, address: IpAddr) {
    let bit = match address {
        IpAddr::V4(address) => Bitmap::destination::<family::V4>(address.into()),
        IpAddr::V6(address) => Bitmap::destination::<family::V6>(address.into()),
    };
    tables.set_destination(bit, true);
}
