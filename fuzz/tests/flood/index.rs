//! The reply index after many more connections than it has entries.

use lb_common::family::V4;
use lb_common::hash::{ReplyHash, mix};
use lb_common::header::protocol::TCP;

use crate::full::establish_connection;
use crate::world::{Path, SECOND, Service, World};
use fuzz::wire::Ipv4End;

const SERVICE: Service = Service { path: Path::Snat, protocol: TCP };
/// 16,384 flows, and 8,192 entries in the first buckets of the index.
const BUCKETS: u32 = 2_048;
/// All ports of all backends are fewer than the entries of the index, so that each flow finds the entry of an
/// earlier one.
const PORTS: u16 = 4_001;
const CONNECTIONS: usize = 2_048;

/// Whether the replies from a backend to a port are found in the bucket that lookups read first.
fn is_in_first_bucket(world: &World, backend: Ipv4End, source: Ipv4End) -> bool {
    let settings = &world.tables.settings;
    let hash = ReplyHash::of::<V4>(
        &settings.secret,
        (backend.address.into(), backend.port),
        (source.address.into(), source.port),
        TCP,
    );
    let [first, _] = hash.buckets(settings.reply_mask);
    let entries = &world.tables.v4.replies[first as usize].entries;
    entries.iter().any(|entry| entry.load() >> 36 == u64::from(hash.fingerprint()))
}

#[test]
fn most_replies_are_found_in_their_first_bucket_however_many_connections_there_were() {
    let mut world = World::new(BUCKETS, PORTS);
    let mut number = 0;
    let mut connect = |world: &mut World| {
        number += 1;
        establish_connection(world, SERVICE, number).expect("the table has room")
    };
    let mut connections: Vec<_> = (0..CONNECTIONS).map(|_| connect(&mut world)).collect();
    for step in 0..100 * CONNECTIONS {
        let ending = mix(step as u64) as usize % CONNECTIONS;
        connections[ending].reset(&mut world, SERVICE);
        connections[ending] = connect(&mut world);
        // A thousand connections wait for the end of their timeout.
        world.advance(SECOND / 100);
    }
    connections.iter().for_each(|connection| connection.check(&mut world, SERVICE));
    let in_first =
        connections.iter().filter(|of| is_in_first_bucket(&world, of.backend, of.source));
    let found = in_first.count();
    println!("{found} of {CONNECTIONS}");
    assert!(found * 100 > CONNECTIONS * 90, "{found} of {CONNECTIONS}");
}
