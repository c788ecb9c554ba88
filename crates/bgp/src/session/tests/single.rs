//! One session, input by input.

use std::net::Ipv6Addr;
use std::sync::Arc;

use super::script::{LOCAL_AS, NEXT_HOPS, Observed, PEER_AS, Script};
use super::script::{config, peer_open, routes, seconds};
use crate::session::{
    BgpInput, BgpReport, BgpSessionConfig, BgpSessionState, ConnectionId, NextHops, PeerAs,
    SessionEndReason, SessionStop,
};
use crate::wire::update::append_end_of_rib;
use crate::wire::{Capabilities, OpenMessage, refresh};
use crate::{Family, RouteAttributes};

fn announced(did: &[Observed]) -> Vec<String> {
    let updates = did.iter().filter_map(|did| match did {
        Observed::Update(_, received) => Some(received),
        _ => None,
    });
    updates.flat_map(|each| &each.announced).map(ToString::to_string).collect()
}

fn withdrawn(did: &[Observed]) -> Vec<String> {
    let updates = did.iter().filter_map(|did| match did {
        Observed::Update(_, received) => Some(received),
        _ => None,
    });
    updates.flat_map(|each| &each.withdrawn).map(ToString::to_string).collect()
}

fn ends(did: &[Observed]) -> Vec<Family> {
    let ends = did.iter().filter_map(|did| match did {
        Observed::Update(_, received) => received.end_of_rib,
        _ => None,
    });
    ends.collect()
}

#[test]
fn a_session_is_established_and_kept_alive() {
    let mut script = Script::new(config());
    assert_eq!(script.session.status().state, BgpSessionState::Idle);
    assert_eq!(script.input(BgpInput::Start), [Observed::Connect]);
    assert_eq!(script.session.status().state, BgpSessionState::Connect);
    let did = script.connected(1, true);
    let [Observed::Open(1, open)] = &did[..] else { panic!("{did:?}") };
    assert_eq!((open.autonomous_system, open.hold_time), (LOCAL_AS, 9));
    assert_eq!(script.session.status().state, BgpSessionState::OpenSent);
    assert_eq!(script.receive_open(1, &peer_open()), [Observed::Keepalive(1)]);
    assert_eq!(script.session.status().state, BgpSessionState::OpenConfirm);
    let did = script.receive_keepalive(1);
    let [Observed::Report(BgpReport::Established(established))] = &did[..] else {
        panic!("{did:?}")
    };
    assert_eq!((established.peer_as, established.hold_time), (PEER_AS, seconds(9)));
    assert!(established.graceful_restart);
    for _ in 0..10 {
        let did = script.wait(seconds(6));
        let keepalives = did.iter().filter(|did| **did == Observed::Keepalive(1)).count();
        assert!((2..=3).contains(&keepalives), "{did:?}");
        assert_eq!(did.len(), keepalives);
        script.receive_keepalive(1);
    }
}

#[test]
fn a_silent_peer_ends_the_session_after_the_hold_time() {
    let (mut script, _) = Script::established(config());
    script.wait(seconds(8));
    assert_eq!(script.session.status().state, BgpSessionState::Established);
    let did = script.wait(seconds(1));
    assert!(did.contains(&Observed::Notification(1, "hold timer expired".into())), "{did:?}");
    assert!(did.contains(&Observed::Close(1)));
    let did = script.wait(seconds(1));
    assert_eq!(did, [Observed::Connect]);
}

/// What arrived while the process was paused counts, whatever else has come up since.
#[test]
fn a_pause_of_this_process_ends_no_session() {
    let (mut script, _) = Script::established(config());
    script.now += seconds(60);
    script.input(BgpInput::Routes(&routes(&["203.0.113.1/32"])));
    script.written(1);
    script.receive_keepalive(1);
    script.input(BgpInput::Tick);
    assert_eq!(script.session.status().state, BgpSessionState::Established);
}

/// The connection may stand, but this process does not know it yet.
#[test]
fn a_pause_of_this_process_ends_no_attempt_to_connect() {
    let mut script = Script::new(config());
    script.input(BgpInput::Start);
    script.now += seconds(60);
    assert_eq!(script.input(BgpInput::Synced), []);
    assert!(matches!(script.connected(1, true)[..], [Observed::Open(1, _)]));
}

#[test]
fn attempts_to_connect_become_rarer_up_to_a_limit() {
    let mut script = Script::new(config());
    script.input(BgpInput::Start);
    let mut waits = Vec::new();
    for _ in 0..20 {
        script.input(BgpInput::ConnectFailed);
        let before = script.now;
        let deadline = script.session.deadline().expect("another attempt");
        script.now = deadline;
        assert_eq!(script.input(BgpInput::Tick), [Observed::Connect]);
        waits.push(deadline - before);
    }
    assert!(waits[0] >= seconds(1) * 3 / 4 && waits[0] <= seconds(1), "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= seconds(30)), "{waits:?}");
    assert!(waits[19] >= seconds(22), "{waits:?}");
    // An attempt that does not end is abandoned.
    let did = script.wait(seconds(10));
    assert_eq!(did[0], Observed::AbandonConnect);
}

#[test]
fn a_passive_session_waits() {
    let mut script = Script::new(BgpSessionConfig { passive: true, ..config() });
    assert_eq!(script.input(BgpInput::Start), []);
    assert_eq!(script.wait(seconds(1000)), []);
    assert!(matches!(script.connected(1, false)[..], [Observed::Open(1, _)]));
}

#[test]
fn peers_that_are_not_the_configured_one_are_refused() {
    let with = |change: &dyn Fn(&mut OpenMessage)| {
        let mut open = peer_open();
        change(&mut open);
        open
    };
    let internal = BgpSessionConfig { peer_as: PeerAs::Internal, ..config() };
    let external = BgpSessionConfig { peer_as: PeerAs::External, ..config() };
    let own = |open: &mut OpenMessage| open.autonomous_system = LOCAL_AS;
    let cases = [
        (config(), with(&|open| open.autonomous_system = 1), "bad peer AS"),
        (internal.clone(), peer_open(), "bad peer AS"),
        (external, with(&own), "bad peer AS"),
        (
            internal,
            with(&|open| {
                own(open);
                open.identifier = config().identifier;
            }),
            "bad BGP identifier",
        ),
        (
            BgpSessionConfig { families: [Family::Ipv6].into(), ..config() },
            with(&|open| open.capabilities = Capabilities::default()),
            "unsupported capability",
        ),
    ];
    for (config, open, refusal) in cases {
        let mut script = Script::new(config);
        script.input(BgpInput::Start);
        script.connected(1, true);
        let did = script.receive_open(1, &open);
        assert_eq!(did[0], Observed::Notification(1, refusal.into()));
        assert_eq!(did[1], Observed::Close(1));
    }
}

#[test]
fn a_peer_of_other_families_is_refused() {
    let mut script = Script::new(config());
    script.input(BgpInput::Start);
    script.connected(1, true);
    let [high, low] = (PEER_AS as u16).to_be_bytes();
    // EVPN.
    let open = [4, high, low, 0, 90, 192, 0, 2, 254, 8, 2, 6, 1, 4, 0, 25, 0, 70];
    let did = script.receive(1, &[&[0xff; 16][..], &[0, 37, 1], &open].concat());
    assert_eq!(did[0], Observed::Notification(1, "unsupported capability".into()));
    assert_eq!(did[1], Observed::Close(1));
}

#[test]
fn messages_out_of_order_end_the_session() {
    let mut update = Vec::new();
    append_end_of_rib(&mut update, Family::Ipv4);
    let refused = |did: Vec<Observed>, state: &str| {
        let text = format!("unexpected message in state {state}");
        assert_eq!(did[0], Observed::Notification(1, text));
    };
    let mut script = Script::new(config());
    script.input(BgpInput::Start);
    script.connected(1, true);
    refused(script.receive(1, &update), "OpenSent");

    let mut script = Script::new(config());
    script.input(BgpInput::Start);
    script.connected(1, true);
    script.receive_open(1, &peer_open());
    refused(script.receive(1, &update), "OpenConfirm");

    let (mut script, _) = Script::established(config());
    refused(script.receive_open(1, &peer_open()), "Established");
}

#[test]
fn malformed_updates_are_counted_and_end_nothing() {
    let (mut script, _) = Script::established(config());
    let update = [&[0xff; 16][..], &[0, 23, 2, 0xff, 0xff, 0xff, 0xff]].concat();
    for _ in 0..1000 {
        assert_eq!(script.receive(1, &update), []);
    }
    let status = script.session.status();
    assert_eq!(
        (status.state, status.counters.malformed_updates),
        (BgpSessionState::Established, 1000)
    );
}

#[test]
fn octets_may_arrive_one_by_one() {
    let mut script = Script::new(config());
    script.input(BgpInput::Start);
    script.connected(1, true);
    let mut octets = Vec::new();
    peer_open().encode(&mut octets);
    crate::wire::append_keepalive(&mut octets);
    let did: Vec<Observed> = octets.iter().flat_map(|octet| script.receive(1, &[*octet])).collect();
    assert!(matches!(did[..], [Observed::Keepalive(1), Observed::Report(_)]), "{did:?}");
}

#[test]
fn changes_are_sent_at_once_and_only_once() {
    let (mut script, _) = Script::established(config());
    let both = routes(&["203.0.113.1/32", "2001:db8::1/128"]);
    assert_eq!(
        announced(&script.input(BgpInput::Routes(&both))),
        ["203.0.113.1/32", "2001:db8::1/128"]
    );
    assert_eq!(script.input(BgpInput::Routes(&both)), []);
    // Equal attributes in another place are no change either.
    assert_eq!(script.input(BgpInput::Routes(&routes(&["203.0.113.1/32"]))), []);
    let gone = [(both[0].0, None)];
    assert_eq!(withdrawn(&script.input(BgpInput::Routes(&gone))), ["203.0.113.1/32"]);
    assert_eq!(script.input(BgpInput::Routes(&gone)), []);
}

#[test]
fn a_peer_that_does_not_read_gets_the_latest_state_only() {
    let (mut script, _) = Script::established(config());
    let prefixes: Vec<String> =
        (0..60_000).map(|n| format!("10.{}.{}.{}/32", n >> 16, n >> 8 & 255, n & 255)).collect();
    let all: Vec<&str> = prefixes.iter().map(String::as_str).collect();
    let first = announced(&script.input(BgpInput::Routes(&routes(&all)))).len();
    assert!((10_000..20_000).contains(&first), "{first} prefixes were written");
    // Meanwhile all are withdrawn, and one is announced again.
    let gone: Vec<_> = routes(&all).into_iter().map(|(prefix, _)| (prefix, None)).collect();
    assert_eq!(script.input(BgpInput::Routes(&gone)), []);
    script.input(BgpInput::Routes(&routes(&[all[59_999]])));
    let mut did = Vec::new();
    for _ in 0..20 {
        did.extend(script.written(1));
    }
    assert_eq!(withdrawn(&did).len(), first);
    assert_eq!(announced(&did), [all[59_999]]);
}

/// RFC 9687.
#[test]
fn a_peer_that_never_reads_loses_the_session() {
    let (mut script, _) = Script::established(config());
    script.input(BgpInput::Routes(&routes(&["203.0.113.1/32"])));
    for _ in 0..159 {
        script.wait(seconds(3));
        script.receive_keepalive(1);
    }
    assert_eq!(script.session.status().state, BgpSessionState::Established);
    let did = script.wait(seconds(5));
    assert!(
        did.contains(&Observed::Report(BgpReport::Down(SessionEndReason::SendHoldTimer))),
        "{did:?}"
    );
    assert!(!did.iter().any(|did| matches!(did, Observed::Notification(..))));
}

/// RFC 9687: twice the hold time, if that is more than eight minutes.
#[test]
fn a_long_hold_time_lets_a_peer_read_later() {
    let mut script = Script::new(BgpSessionConfig { hold_time: 600, ..config() });
    script.input(BgpInput::Routes(&routes(&["203.0.113.1/32"])));
    script.input(BgpInput::Start);
    script.connected(1, true);
    script.receive_open(1, &OpenMessage { hold_time: 900, ..peer_open() });
    script.receive_keepalive(1);
    for _ in 0..11 {
        script.wait(seconds(100));
        script.receive_keepalive(1);
    }
    assert_eq!(script.session.status().state, BgpSessionState::Established);
    let did = script.wait(seconds(101));
    assert!(
        did.contains(&Observed::Report(BgpReport::Down(SessionEndReason::SendHoldTimer))),
        "{did:?}"
    );
}

/// The bits R and F of an OPEN (RFC 4724).
fn restart_bits(did: &[Observed]) -> (bool, bool) {
    let [Observed::Open(_, open)] = did else { panic!("{did:?}") };
    let restart = open.capabilities.graceful_restart.clone().expect("configured");
    assert_eq!(restart.time, 120);
    (restart.restarting, restart.preserved.into_values().all(|preserved| preserved))
}

#[test]
fn a_restart_is_announced_until_all_routes_are() {
    let mut script = Script::new(BgpSessionConfig { restarted: Some(seconds(1120)), ..config() });
    script.input(BgpInput::Routes(&routes(&["203.0.113.1/32"])));
    script.input(BgpInput::Start);
    assert_eq!(restart_bits(&script.connected(1, true)), (true, true));
    script.receive_open(1, &peer_open());
    let did = script.receive_keepalive(1);
    assert_eq!((announced(&did), ends(&did)), (vec!["203.0.113.1/32".to_owned()], vec![]));
    // Only once all Services are known does the peer drop what it did not get again.
    let did = script.input(BgpInput::Routes(&routes(&["203.0.113.2/32"])));
    assert_eq!((announced(&did), ends(&did)), (vec!["203.0.113.2/32".to_owned()], vec![]));
    assert_eq!(ends(&script.input(BgpInput::Synced)), Family::ALL);
    // A session that is lost later is no restart, but forwarding has not ended.
    script.input(BgpInput::Closed { connection: ConnectionId(1) });
    script.wait(seconds(2));
    assert_eq!(restart_bits(&script.connected(2, true)), (false, true));
    script.receive_open(2, &peer_open());
    let did = script.receive_keepalive(2);
    assert_eq!((announced(&did).len(), ends(&did)), (2, Family::ALL.to_vec()));
}

/// A peer that restarts itself would not wait for the routes.
#[test]
fn a_peer_that_comes_later_hears_of_no_restart() {
    let mut script = Script::new(BgpSessionConfig { restarted: Some(seconds(1120)), ..config() });
    script.input(BgpInput::Start);
    script.wait(seconds(119));
    assert_eq!(restart_bits(&script.connected(1, true)), (true, true));
    script.input(BgpInput::Closed { connection: ConnectionId(1) });
    script.wait(seconds(1));
    assert_eq!(restart_bits(&script.connected(2, true)), (false, true));
}

#[test]
fn a_first_start_has_preserved_nothing() {
    let mut script = Script::new(config());
    script.input(BgpInput::Start);
    assert_eq!(restart_bits(&script.connected(1, true)), (false, false));
}

#[test]
fn a_process_that_is_replaced_says_nothing() {
    let (mut script, _) = Script::established(config());
    let did = script.input(BgpInput::Stop(SessionStop::Restart));
    assert_eq!(
        did,
        [Observed::Close(1), Observed::Report(BgpReport::Down(SessionEndReason::Restart))]
    );
    assert_eq!(script.wait(seconds(1000)), []);
}

#[test]
fn a_shutdown_names_its_reason() {
    for (stop, text) in [
        (SessionStop::Shutdown("node drained".into()), "administrative shutdown: node drained"),
        (SessionStop::Removed, "peer de-configured"),
        (SessionStop::Changed, "other configuration change"),
    ] {
        let (mut script, _) = Script::established(config());
        let did = script.input(BgpInput::Stop(stop));
        assert_eq!(did[..2], [Observed::Notification(1, text.into()), Observed::Close(1)]);
        assert_eq!(script.wait(seconds(1000)), []);
        assert_eq!(script.session.status().state, BgpSessionState::Idle);
    }
}

#[test]
fn a_broken_path_ends_the_session_at_once() {
    let (mut script, _) = Script::established(config());
    let did = script.input(BgpInput::BfdDown);
    assert_eq!(did[..2], [Observed::Notification(1, "BFD down".into()), Observed::Close(1)]);
}

#[test]
fn a_drained_node_asks_for_other_routes_before_it_withdraws() {
    let (mut script, _) = Script::established(config());
    script.input(BgpInput::Routes(&routes(&["203.0.113.1/32", "2001:db8::1/128"])));
    let did = script.session.handle(script.now, BgpInput::Drain(true));
    let octets = format!("{did:?}");
    // 65535:0 in an UPDATE for each family.
    assert_eq!(octets.matches("192, 8, 4, 255, 255, 0, 0").count(), 2, "{octets}");
    assert_eq!(script.input(BgpInput::Drain(true)), []);
    assert_eq!(announced(&script.input(BgpInput::Drain(false))).len(), 2);
}

/// RFC 8326, section 4: within an autonomous system also by the local preference.
#[test]
fn a_drained_node_has_the_least_preference_within_its_own_autonomous_system() {
    let mut script = Script::new(BgpSessionConfig { peer_as: PeerAs::Internal, ..config() });
    script.input(BgpInput::Routes(&routes(&["203.0.113.1/32"])));
    script.input(BgpInput::Start);
    script.connected(1, true);
    script.receive_open(1, &OpenMessage { autonomous_system: LOCAL_AS, ..peer_open() });
    let preference = |effects| format!("{effects:?}").contains("64, 5, 4, 0, 0, 0, 0,");
    script.receive_keepalive(1);
    assert!(preference(script.session.handle(script.now, BgpInput::Drain(true))));
    assert!(!preference(script.session.handle(script.now, BgpInput::Drain(false))));
}

#[test]
fn routes_are_repeated_for_a_peer_that_asks_but_not_at_its_pace() {
    let (mut script, _) = Script::established(config());
    script.input(BgpInput::Routes(&routes(&["203.0.113.1/32", "2001:db8::1/128"])));
    let mut octets = Vec::new();
    refresh::append_route_refresh(&mut octets, Family::Ipv6);
    assert_eq!(announced(&script.receive(1, &octets)), ["2001:db8::1/128"]);
    let flood = octets.repeat(10_000);
    assert_eq!(announced(&script.receive(1, &flood)), Vec::<String>::new());
    assert_eq!(announced(&script.wait(seconds(1))), ["2001:db8::1/128"]);
    assert_eq!(script.session.status().counters.refreshes, 10_001);
}

#[test]
fn ipv4_routes_use_an_ipv6_next_hop_only_if_the_peer_can() {
    for extended in [false, true] {
        let mut script = Script::new(config());
        script.input(BgpInput::Routes(&routes(&["203.0.113.1/32"])));
        script.input(BgpInput::Start);
        let link_local = Some("fe80::1".parse::<Ipv6Addr>().unwrap());
        let next_hops = NextHops { ipv4: None, ipv6: None, link_local };
        let connection = ConnectionId(1);
        script.input(BgpInput::Connected { connection, outgoing: true, next_hops });
        let mut open = peer_open();
        open.capabilities.extended_next_hop = extended;
        script.receive_open(1, &open);
        let did = script.receive_keepalive(1);
        let Observed::Report(BgpReport::Established(established)) = &did[0] else {
            panic!("{did:?}")
        };
        assert_eq!(established.families.contains(&Family::Ipv4), extended);
        assert_eq!(announced(&did).len(), usize::from(extended));
    }
    assert!(NEXT_HOPS.next_hop_for(Family::Ipv4, false).is_some());
}

#[test]
fn attributes_that_change_are_sent_again() {
    let (mut script, _) = Script::established(config());
    script.input(BgpInput::Routes(&routes(&["203.0.113.1/32"])));
    let mut attributes = RouteAttributes::default();
    attributes.communities.add("65001:1").unwrap();
    let changed = [("203.0.113.1/32".parse().unwrap(), Some(Arc::new(attributes)))];
    assert_eq!(announced(&script.input(BgpInput::Routes(&changed))), ["203.0.113.1/32"]);
}

/// At boot IPv4 comes first; renumbering replaces an address; and one may be lost.
#[test]
fn routes_follow_the_addresses_of_this_node() {
    const FOUR: &str = "203.0.113.1/32";
    const SIX: &str = "2001:db8:1::1/128";
    let mut script = Script::new(config());
    assert_eq!(script.input(BgpInput::Start), [Observed::Connect]);
    let only_four = NextHops { ipv6: None, ..NEXT_HOPS };
    let connection = ConnectionId(1);
    script.input(BgpInput::Connected { connection, outgoing: true, next_hops: only_four });
    script.receive_open(1, &peer_open());
    script.receive_keepalive(1);
    script.written(1);
    assert_eq!(announced(&script.input(BgpInput::Routes(&routes(&[FOUR, SIX])))), [FOUR]);
    script.written(1);
    let mut set = |next_hops| {
        let did = script.input(BgpInput::NextHops { connection, next_hops });
        script.written(1);
        let families = did.iter().find_map(|did| match did {
            Observed::Report(BgpReport::Families(families)) => Some(families.len()),
            _ => None,
        });
        (announced(&did), withdrawn(&did), families)
    };
    let none = || Vec::<String>::new();
    assert_eq!(set(only_four), (none(), none(), None), "nothing has changed");
    assert_eq!(set(NEXT_HOPS), (vec![SIX.to_owned()], none(), Some(2)));
    let other: Ipv6Addr = "2001:db8::2".parse().unwrap();
    let renumbered = NextHops { ipv6: Some(other), ..NEXT_HOPS };
    assert_eq!(set(renumbered), (vec![SIX.to_owned()], none(), Some(2)));
    assert_eq!(set(only_four), (none(), vec![SIX.to_owned()], Some(1)));
    let only_six = NextHops { ipv4: None, ..NEXT_HOPS };
    assert_eq!(set(only_six), (vec![SIX.to_owned()], vec![FOUR.to_owned()], Some(1)));
    assert_eq!(set(NEXT_HOPS), (vec![FOUR.to_owned()], none(), Some(2)));
}

#[test]
fn addresses_that_change_before_the_session_stands_are_its_next_hops() {
    let mut script = Script::new(config());
    script.input(BgpInput::Start);
    let connection = ConnectionId(1);
    let next_hops = NextHops { ipv6: None, ..NEXT_HOPS };
    script.input(BgpInput::Connected { connection, outgoing: true, next_hops });
    script.input(BgpInput::NextHops { connection, next_hops: NEXT_HOPS });
    script.receive_open(1, &peer_open());
    let did = script.receive_keepalive(1);
    let [Observed::Report(BgpReport::Established(established)), ..] = &did[..] else {
        panic!("{did:?}")
    };
    assert_eq!(established.families.len(), 2);
}
