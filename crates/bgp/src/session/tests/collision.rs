//! Two connections with one peer.

use super::script::{Observed, Script, config, peer_open, seconds};
use crate::session::{BgpInput, BgpReport, SessionEndReason};
use crate::wire::OpenMessage;

/// Connection 1 is outgoing, connection 2 incoming.
fn two_connections() -> Script {
    let mut script = Script::new(config());
    script.input(BgpInput::Start);
    script.connected(1, true);
    script.connected(2, false);
    script
}

fn refuses(id: u64) -> [Observed; 2] {
    [Observed::Notification(id, "connection collision resolution".into()), Observed::Close(id)]
}

#[test]
fn the_connection_of_the_higher_identifier_remains() {
    let higher = peer_open();
    let lower = OpenMessage { identifier: "192.0.2.0".parse().unwrap(), ..peer_open() };
    // RFC 6286: the AS number decides between equal ones.
    let equal = OpenMessage { identifier: config().identifier, ..peer_open() };
    for (open, refused, kept) in [(&higher, 1, 2), (&lower, 2, 1), (&equal, 1, 2)] {
        for first in [1, 2] {
            let mut script = two_connections();
            assert_eq!(script.receive_open(first, open), [Observed::Keepalive(first)]);
            let did = script.receive_open(3 - first, open);
            assert_eq!(did[..2], refuses(refused), "{open:?}");
            assert_eq!(did[2..].is_empty(), kept == first);
            let did = script.receive_keepalive(kept);
            assert!(matches!(did[0], Observed::Report(BgpReport::Established(_))), "{did:?}");
        }
    }
}

#[test]
fn a_peer_that_has_lost_the_session_gets_a_new_one() {
    let (mut script, _) = Script::established(config());
    script.wait(seconds(6));
    script.connected(2, false);
    let did = script.receive_open(2, &peer_open());
    let down = Observed::Report(BgpReport::Down(SessionEndReason::PeerRestarted));
    assert_eq!(did, [Observed::Close(1), down, Observed::Keepalive(2)]);
    let did = script.receive_keepalive(2);
    assert!(matches!(did[0], Observed::Report(BgpReport::Established(_))), "{did:?}");
}

#[test]
fn without_graceful_restart_the_session_stays() {
    let (mut script, _) =
        Script::established(crate::session::BgpSessionConfig { restart_time: None, ..config() });
    script.wait(seconds(6));
    script.connected(2, false);
    assert_eq!(script.receive_open(2, &peer_open()), refuses(2));
}

#[test]
fn of_two_connections_at_the_same_time_the_peer_decides_if_one_is_established() {
    let established = || {
        let mut script = two_connections();
        script.receive_open(1, &peer_open());
        script.receive_keepalive(1);
        assert_eq!(script.receive_open(2, &peer_open()), []);
        script
    };
    // It closes the established one: it had not seen that it was.
    let mut script = established();
    let did = script.input(BgpInput::Closed { connection: crate::session::ConnectionId(1) });
    assert_eq!(
        did,
        [Observed::Report(BgpReport::Down(SessionEndReason::Closed)), Observed::Keepalive(2)]
    );
    script.receive_keepalive(2);
    assert!(script.session.status().peer.is_some());
    // It has confirmed the other one, but that was before it decided.
    let mut script = established();
    assert_eq!(script.receive_keepalive(2), []);
    let did = script.input(BgpInput::Closed { connection: crate::session::ConnectionId(1) });
    assert_eq!(
        did[..2],
        [Observed::Report(BgpReport::Down(SessionEndReason::Closed)), Observed::Keepalive(2)]
    );
    assert!(matches!(did[2], Observed::Report(BgpReport::Established(_))), "{did:?}");
    // It closes neither.
    let mut script = established();
    let did = script.wait(seconds(6));
    assert_eq!(did.iter().filter(|did| refuses(2).contains(did)).count(), 2, "{did:?}");
    assert!(script.session.status().peer.is_some());
}

#[test]
fn connections_do_not_pile_up() {
    let mut script = Script::new(config());
    script.input(BgpInput::Start);
    script.connected(1, true);
    script.connected(2, false);
    for id in 3..1000 {
        let did = script.connected(id, false);
        assert_eq!(did[..2], refuses(id - 1));
    }
    // The outgoing one is not affected.
    script.receive_open(1, &peer_open());
    let did = script.receive_keepalive(1);
    assert!(matches!(did[0], Observed::Report(BgpReport::Established(_))), "{did:?}");
}

#[test]
fn a_silent_incoming_connection_does_not_keep_the_session_from_connecting() {
    let mut script = Script::new(config());
    script.input(BgpInput::Start);
    script.input(BgpInput::ConnectFailed);
    script.connected(1, false);
    assert!(script.wait(seconds(2)).contains(&Observed::Connect));
}
