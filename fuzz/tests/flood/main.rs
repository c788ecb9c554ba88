//! Spoofed floods over the host's tables, in simulated time. Before, during and after each flood,
//! legitimate clients connect at the first attempt and existing connections continue. A minute
//! after the flood, new connections can replace all of its entries.
//!
//! By default, a small table and a flood several times its size. The acceptance test, with default
//! sizes:
//! `FLOOD_PACKETS=10000000 cargo test -p fuzz --release --test flood -- --nocapture --test-threads
//! 2`

mod connection;
mod flood;
mod full;
mod index;
mod ports;
mod world;

use std::collections::BTreeMap;
use std::time::Instant;

use lb_common::header::protocol::{TCP, UDP};
use lb_common::layout::{Settings, capacity};

use connection::{Honest, Script};
use flood::{Flood, FloodKind, Tally, is_spoofed};
use world::{Path, SECOND, SERVICES, Service, World};

/// The size of a test.
#[derive(Clone, Copy, Debug)]
struct Scale {
    buckets: u32,
    /// Number of SNAT ports, a prime.
    snat_ports: u16,
    packets: u64,
    /// Packets of the flood per second.
    rate: u64,
}

/// The same proportions as in the acceptance test: 100,000 packets a second and 524,288 entries.
const SMALL: Scale =
    Scale { buckets: capacity::FLOW_BUCKETS / 32, snat_ports: 991, packets: 60_000, rate: 3_125 };

impl Scale {
    fn wanted() -> Self {
        let number = |name| std::env::var(name).ok().map(|text| text.parse().expect(name));
        let whole = |packets| Self {
            buckets: capacity::FLOW_BUCKETS,
            snat_ports: Settings::SNAT_PORT_COUNT,
            packets,
            rate: 100_000,
        };
        let scale = number("FLOOD_PACKETS").map_or(SMALL, whole);
        Self { rate: number("FLOOD_RATE").unwrap_or(scale.rate), ..scale }
    }
}

/// Connections of each script to each Service.
const CONNECTIONS: usize = 3;
/// New connections to each Service during the flood.
const VISITS: u64 = 50;

fn run(kind: FloodKind, path: Path, protocol: u8) {
    let mut scale = Scale::wanted();
    if kind == FloodKind::Sustained {
        // Packets of a flood resemble lasting connections only after a while.
        scale.rate /= 4;
    }
    let mut world = World::new(scale.buckets, scale.snat_ports);
    let mut honest = Honest::default();

    dial(&mut honest, &world, Script::Idles);
    honest.run_for(300 * SECOND, &mut world);
    dial(&mut honest, &world, Script::Talks);
    dial(&mut honest, &world, Script::HalfClosed);
    honest.run_for(30 * SECOND, &mut world);
    dial(&mut honest, &world, Script::Visits);
    honest.run_for(5 * SECOND, &mut world);
    check(&honest, "before the flood");

    let began = Instant::now();
    let flood = Flood::new(kind, path, protocol, scale.rate, world.capacity());
    let (before, mut tally) = (honest.packets, Tally::default());
    let visits = VISITS * SERVICES.len() as u64;
    for number in 0..scale.packets {
        world.advance(SECOND / scale.rate);
        if number * visits / scale.packets != (number + 1) * visits / scale.packets {
            let visit = number * visits / scale.packets;
            honest.dial(SERVICES[visit as usize % SERVICES.len()], Script::Visits, world.now);
        }
        honest.go_on(&mut world);
        flood.send(number, &mut world, &mut tally);
    }
    let all = scale.packets + tally.replies + honest.packets - before;
    println!(
        "{kind:?} to {path:?} {protocol}: {} packets, {} replies, {} lost; {:.2} stages a packet, {} at \
         most; {} ns a packet; {} connections",
        scale.packets,
        tally.replies,
        tally.lost,
        tally.stages as f64 / scale.packets as f64,
        tally.most_stages,
        began.elapsed().as_nanos() as u64 / all,
        honest.opened()
    );
    println!("  entries at its end: {:?}", states(&world));
    honest.run_for(SECOND, &mut world);
    honest.wake(world.now);
    dial(&mut honest, &world, Script::Visits);
    honest.run_for(59 * SECOND, &mut world);
    dial(&mut honest, &world, Script::Visits);
    honest.run_for(5 * SECOND, &mut world);
    println!("  entries of the flood a minute later: {:?}", states(&world));
    println!("  counted: {:?}", world.tables.reasons.borrow());
    check(&honest, "during or after the flood");
    // One stage to open the flow, one to allocate its SNAT port or for a tunnel, one to send the packet. More
    // only if other buckets are needed.
    let stages = tally.stages as f64 / scale.packets as f64;
    assert!(stages < 3.5, "{stages} stages for each of the flood's packets");
    fill_with_connections(&mut world);
    let left = states(&world);
    assert!(left.is_empty(), "a minute after the flood its entries can't be evicted: {left:?}");
}

fn dial(honest: &mut Honest, world: &World, script: Script) {
    // Datagrams after minutes of silence are a new flow.
    let lasts = |service: &Service| script != Script::Idles || service.protocol == TCP;
    for service in SERVICES.into_iter().filter(lasts) {
        for _ in 0..CONNECTIONS {
            honest.dial(service, script, world.now);
        }
    }
}

fn check(honest: &Honest, when: &str) {
    let (failures, opened) = (&honest.failures, honest.opened());
    let some = failures.iter().take(8).map(|failure| format!("\n  {failure}")).collect::<String>();
    assert!(
        failures.is_empty(),
        "{when}, {} of {opened} connections failed:{some}",
        failures.len()
    );
}

/// Number of flows with spoofed clients, by state.
fn states(world: &World) -> BTreeMap<String, usize> {
    let mut states = BTreeMap::new();
    for (state, _) in world.flows().filter(|(_, client)| is_spoofed(*client)) {
        *states.entry(format!("{state:?}")).or_default() += 1;
    }
    states
}

/// Establishes connections until every evictable entry has been replaced.
fn fill_with_connections(world: &mut World) {
    let service = Service { path: Path::Local, protocol: TCP };
    let capacity = world.capacity() as u32;
    for number in 0..6 * capacity {
        full::establish_connection(world, service, number);
        if number.is_multiple_of(capacity / 2) && states(world).is_empty() {
            break;
        }
    }
}

/// One test for each kind of flood and the path its packets take.
macro_rules! floods {
    ($($name:ident: $kind:ident to $path:ident $protocol:ident,)*) => {$(
        #[test]
        fn $name() {
            run(FloodKind::$kind, Path::$path, $protocol);
        }
    )*};
}

floods! {
    tunnelled_syns: Syn to Tunnel TCP,
    tunnelled_acks: Ack to Tunnel TCP,
    tunnelled_syns_and_acks: SynAndAck to Tunnel TCP,
    tunnelled_flagless_segments: Flagless to Tunnel TCP,
    tunnelled_acks_over_seconds: Repeated to Tunnel TCP,
    tunnelled_datagrams_over_seconds: Repeated to Tunnel UDP,
    tunnelled_acks_over_minutes: Sustained to Tunnel TCP,
    tunnelled_datagrams_over_minutes: Sustained to Tunnel UDP,
    local_syns: Syn to Local TCP,
    local_acks: Ack to Local TCP,
    local_syns_and_flagless_segments: SynAndFlagless to Local TCP,
    local_flagless_segments: Flagless to Local TCP,
    local_syns_and_guessed_acks: SynAndAck to Local TCP,
    local_syns_and_fins: SynAndFin to Local TCP,
    local_syns_and_resets: SynAndRst to Local TCP,
    local_datagrams: TwoDatagrams to Local UDP,
    local_datagrams_over_seconds: Repeated to Local UDP,
    local_datagrams_over_minutes: Sustained to Local UDP,
    remote_syns: Syn to Snat TCP,
    remote_syns_and_flagless_segments: SynAndFlagless to Snat TCP,
    remote_datagrams: TwoDatagrams to Snat UDP,
    remote_datagrams_over_seconds: Repeated to Snat UDP,
    remote_datagrams_over_minutes: Sustained to Snat UDP,
}
