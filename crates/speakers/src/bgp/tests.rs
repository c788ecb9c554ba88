//! Peers and other machines that violate the protocol or try to exhaust resources, and what the speaker itself must not
//! do to a peer that keeps to it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fuzz::bgp::router::{RawRouter, apply_update, open_and_keepalive};
use ipnet::IpNet;
use lb_bgp::session::PeerAs;
use lb_bgp::table::AddressAnnouncement;
use lb_bgp::wire::update::append_announcements;
use lb_bgp::wire::{AttributeForm, MessageKind, OpenMessage, append_keepalive};
use lb_bgp::{Family, NextHop, RouteAttributes};
use lb_kernel::privileges::Privileges;
use lb_rules::model::ServiceName;

use super::io::{listen_for_peers, reset_connection};
use super::view::BgpView;
use super::*;

const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// The address of the first Service; others have lower ones.
const LAST_ADDRESS: u32 = 0xc633_64ff;
/// The prefix of [`LAST_ADDRESS`], as UPDATEs have it.
const LAST_PREFIX: [u8; 5] = [32, 198, 51, 100, 255];
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A speaker with one peer, and the peer's socket.
struct World {
    speaker: Speaker,
    configured: ConfiguredPeer,
    listener: TcpListener,
    shown: Arc<Mutex<BgpView>>,
}

impl World {
    fn start() -> Self {
        Self::start_as(false)
    }

    fn start_as(restarted: bool) -> Self {
        let listener = TcpListener::bind((LOCAL, 0)).unwrap();
        let shown = Arc::new(Mutex::new(BgpView::default()));
        let publish = {
            let shown = Arc::clone(&shown);
            Box::new(move |view| *shown.lock().unwrap() = view)
        };
        let privileges = Privileges::AGENT;
        let (speaker, commands) = Speaker::new();
        commands
            .start_speaker(SpeakerStart {
                restarted,
                privileges,
                bfd: None,
                transmitter: None,
                publish,
            })
            .unwrap();
        let peer = PeerConfig {
            location: PeerLocation::Address(LOCAL, None),
            port: listener.local_addr().unwrap().port(),
            local_as: 64_512,
            peer_as: PeerAs::External,
            identifier: None,
            source: None,
            multihop: false,
            ttl_security: None,
            hold_time: 9,
            password: PasswordSource::None,
            nodes: Vec::new(),
            restart_time: Some(120),
            passive: false,
            bfd: config::BfdSetting::None,
            families: lb_bgp::Family::ALL.into(),
        };
        let identifier = Ipv4Addr::new(192, 0, 2, 11);
        let configured = ConfiguredPeer { peer, identifier, password: None, detection: None };
        let world = Self { speaker, configured, listener, shown };
        world.configure(9);
        world.tell(SpeakerCommand::Synced);
        world
    }

    fn configure(&self, hold_time: u16) {
        let mut configured = self.configured.clone();
        configured.peer.hold_time = hold_time;
        self.tell(SpeakerCommand::Peers(BTreeMap::from([("router".to_owned(), configured)])));
    }

    fn tell(&self, command: SpeakerCommand) {
        assert!(self.speaker.commands().send(command).is_ok(), "the speaker runs");
    }

    /// The next connection of the speaker.
    fn accept(&self) -> TcpStream {
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        stream
    }

    fn establish(&self) -> RawRouter<TcpStream> {
        let mut router = RawRouter::new(self.accept());
        router.establish(64_513).unwrap();
        router
    }

    fn wait(&self, what: &str, so: impl Fn(&PeerView) -> bool) {
        let until = Instant::now() + WAIT_LIMIT;
        loop {
            let view = self.shown.lock().unwrap().clone();
            match view.peers.first() {
                Some(peer) if so(peer) => return,
                _ if Instant::now() > until => panic!("{what}: {view:?}"),
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    fn route(&self, services: u32) {
        self.tell(SpeakerCommand::Routes((1..=services).map(route).collect()));
    }
}

/// The route of a Service.
fn route(number: u32) -> (ServiceName, Vec<AddressAnnouncement>) {
    let announcement = AddressAnnouncement {
        address: Ipv4Addr::from(LAST_ADDRESS - number).into(),
        advertisements: vec![Arc::default()],
        bandwidth: None,
    };
    (ServiceName::new("default", &number.to_string()), vec![announcement])
}

#[test]
fn garbage_ends_the_connection_with_a_notification_and_the_next_one_is_tried() {
    let world = World::start();
    let mut router = RawRouter::new(world.accept());
    router.stream.write_all(&[0; 100]).unwrap();
    router.next(MessageKind::Notification).unwrap();
    drop(router);
    world.establish();
    world.wait("established once", |peer| peer.established == 1);
}

#[test]
fn what_a_peer_announces_is_discarded() {
    let world = World::start();
    let mut router = world.establish();
    let prefixes: Vec<IpNet> = (0..10_000_u32)
        .map(|n| IpNet::new(Ipv4Addr::from(0x0b00_0000 + n).into(), 32).unwrap())
        .collect();
    let form = AttributeForm { local_as: 64_513, external: true, four_octet_as: true };
    let next_hop = NextHop::Ipv4(Ipv4Addr::new(192, 0, 2, 2));
    let mut octets = Vec::new();
    append_announcements(
        &mut octets,
        Family::Ipv4,
        &prefixes,
        &next_hop,
        &RouteAttributes::default(),
        &form,
    );
    router.stream.write_all(&octets).unwrap();
    world.wait("all discarded", |peer| peer.prefixes_discarded == 10_000);
    world.route(1);
    router.next(MessageKind::Update).unwrap();
    world.wait("still established", PeerView::is_established);
}

#[test]
fn a_peer_that_never_reads_delays_nobody_and_gets_the_latest_state() {
    let world = World::start();
    let mut router = world.establish();
    for _ in 0..3 {
        world.route(50_000);
        world.tell(SpeakerCommand::Routes(
            (1..=50_000)
                .map(|n: u32| (ServiceName::new("default", &n.to_string()), vec![]))
                .collect(),
        ));
    }
    // The speaker still works.
    let before = Instant::now();
    world.wait("reported", |peer| peer.messages_sent > 1);
    assert!(before.elapsed() < WAIT_LIMIT);
    world.tell(SpeakerCommand::Routes(vec![route(0)]));
    // The highest prefix is written last. All others are withdrawn by then.
    let mut held = BTreeSet::new();
    while held.last() != Some(&LAST_PREFIX) {
        apply_update(&router.next(MessageKind::Update).unwrap(), &mut held);
    }
    assert_eq!(held.len(), 1);
}

#[test]
fn a_new_service_is_sent_at_once() {
    let world = World::start();
    let mut router = world.establish();
    world.wait("established", PeerView::is_established);
    let began = Instant::now();
    world.route(1);
    router.next(MessageKind::Update).unwrap();
    println!("UPDATE received after {:?}", began.elapsed());
}

#[test]
fn a_peer_that_closes_at_once_is_tried_again_with_pauses() {
    let world = World::start();
    let began = Instant::now();
    for _ in 0..3 {
        drop(world.accept());
    }
    assert!(began.elapsed() > Duration::from_secs(2), "{:?}", began.elapsed());
}

/// The thread waits for the test as it would for a processor, and finds a change of routes first.
#[test]
fn a_pause_ends_no_session_with_a_peer_that_lives() {
    let world = World::start();
    let mut router = RawRouter::new(world.accept());
    let mut octets = open_and_keepalive(64_513);
    // The hold time: 3 s.
    octets[22..24].copy_from_slice(&[0, 3]);
    router.stream.write_all(&octets).unwrap();
    router.next(MessageKind::Keepalive).unwrap();
    world.wait("established", PeerView::is_established);
    let shown = world.shown.lock().unwrap();
    let mut alive = Vec::new();
    append_keepalive(&mut alive);
    for _ in 0..6 {
        std::thread::sleep(Duration::from_secs(1));
        router.stream.write_all(&alive).unwrap();
    }
    world.route(1);
    drop(shown);
    for kind in [MessageKind::Update, MessageKind::Keepalive] {
        router.next(kind).unwrap();
    }
}

/// A router that restarts itself does not wait for the routes of a speaker that has restarted (RFC 4724).
#[test]
fn a_restart_is_over_when_the_peer_has_all_routes() {
    let world = World::start_as(true);
    let next = || {
        let mut router = RawRouter::new(world.accept());
        let open = OpenMessage::parse(&router.next(MessageKind::Open).unwrap()).unwrap();
        (router, open.capabilities.graceful_restart.unwrap())
    };
    let (mut router, told) = next();
    assert!(told.restarting && told.preserved[&Family::Ipv4]);
    router.establish(64_513).unwrap();
    world.wait("complete", |peer| peer.complete);
    world.configure(30);
    let (_, told) = next();
    assert!(!told.restarting && told.preserved[&Family::Ipv4]);
}

/// Needs the port of BGP, which only root may open; not if something else listens there.
#[test]
fn only_configured_addresses_may_connect() {
    let own = listen_for_peers(true, 0, std::iter::empty()).unwrap();
    let address: SocketAddr = own.local_addr().unwrap();
    let mut stream = TcpStream::connect((LOCAL, address.port())).unwrap();
    own.set_nonblocking(false).unwrap();
    let (accepted, _) = own.accept().unwrap();
    reset_connection(&accepted);
    drop(accepted);
    assert!(stream.read(&mut [0]).is_err(), "a reset");
}
