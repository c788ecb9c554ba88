//! What a Service beside 10,000 others costs, to UPDATEs for 16 peers: `cargo bench -p lb-bgp`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lb_bgp::Family;
use lb_bgp::session::{
    BgpEffect, BgpInput, BgpSession, BgpSessionConfig, ConnectionId, NextHops, PeerAs,
};
use lb_bgp::table::{AddressAnnouncement, Advertisement, AdvertisementTable};
use lb_bgp::wire::{Capabilities, OpenMessage, append_keepalive};

fn main() {
    // `cargo test` does not measure.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let mut table = AdvertisementTable::default();
    let all = [Arc::new(Advertisement::default())];
    let address = |n: u32| IpAddr::from((0x0a00_0000 + n).to_be_bytes());
    for owner in 0..10_000 {
        let announcement = announcement(address(owner), &all);
        table.set_announcements(owner, vec![announcement]);
    }
    let mut sessions: Vec<BgpSession> = (0..16).map(|_| established()).collect();
    let now = Duration::from_secs(1);
    let written = BgpInput::Written { connection: ConnectionId(1), octets: usize::MAX };
    for session in &mut sessions {
        session.handle(now, BgpInput::Routes(&table.list_all_routes("a")));
        (0..100).for_each(|_| _ = session.handle(now, written.clone()));
        assert_eq!(session.status().announced, 10_000);
    }
    let mut times = Vec::new();
    for round in 0..1000 {
        let started = Instant::now();
        let announcements = vec![announcement(address(20_000 + round), &all)];
        let prefixes = table.set_announcements(20_000 + round, announcements);
        for session in &mut sessions {
            let changes = table.list_changes("a", &prefixes);
            let effects = session.handle(now, BgpInput::Routes(&changes));
            assert!(matches!(effects[..], [BgpEffect::Send { .. }]));
            session.handle(now, written.clone());
        }
        times.push(started.elapsed());
    }
    times.sort();
    println!(
        "a Service beside 10,000, to UPDATEs for 16 peers: median {:?}, most {:?}",
        times[500], times[999]
    );
}

fn announcement(address: IpAddr, advertisements: &[Arc<Advertisement>]) -> AddressAnnouncement {
    AddressAnnouncement { address, advertisements: advertisements.to_vec(), bandwidth: None }
}

/// An established session over a connection that takes everything.
fn established() -> BgpSession {
    let now = Duration::from_secs(1);
    let config = BgpSessionConfig {
        local_as: 65_001,
        peer_as: PeerAs::External,
        identifier: [192, 0, 2, 1].into(),
        hold_time: 9,
        families: Family::ALL.into(),
        passive: false,
        restart_time: None,
        restarted: None,
    };
    let mut session = BgpSession::new(config, 1, now);
    session.handle(now, BgpInput::Start);
    let connection = ConnectionId(1);
    let next_hops = NextHops { ipv4: Some([192, 0, 2, 1].into()), ..NextHops::default() };
    session.handle(now, BgpInput::Connected { connection, outgoing: true, next_hops });
    let open = OpenMessage {
        autonomous_system: 65_002,
        hold_time: 9,
        identifier: [192, 0, 2, 2].into(),
        capabilities: Capabilities { families: Family::ALL.into(), ..Capabilities::default() },
    };
    let mut octets = Vec::new();
    open.encode(&mut octets);
    append_keepalive(&mut octets);
    session.handle(now, BgpInput::Received { connection, octets: &octets });
    session
}
