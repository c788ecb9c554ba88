//! Random packets.

use proptest::collection::vec;
use proptest::prelude::*;

use super::headers::{Around, any_headers};
use super::service::{BACKENDS, ENDS, NODE_PORT, any_frontends};
use crate::packets::datapath::Hook;
use crate::packets::datapath::cases::Ends;
use crate::packets::{Packet, icmp_echo, raw, sctp, tcp, udp};

/// Client ports: few, so that packets belong to existing flows.
const CLIENT_PORTS: std::ops::Range<u16> = 40000..40002;

/// A packet at a hook, and how it was made.
#[derive(Clone, Debug)]
pub struct Sent {
    pub at: &'static Ends,
    pub hook: Hook,
    pub packet: Packet,
    /// Its ports can be read: it has a protocol of Services, and is not a later fragment.
    pub has_ports: bool,
    /// The packet is not damaged.
    pub intact: bool,
}

/// A packet of a client or backend. Most belong to a Service.
pub fn any_intact_packet() -> impl Strategy<Value = Sent> {
    let hook = prop_oneof![
        3 => Just(Hook::Forward),
        1 => Just(Hook::Workload),
        2 => Just(Hook::Reverse),
    ];
    let protocol = prop_oneof![8 => Just(6u8), 6 => Just(17), 1 => Just(132), 1 => Just(1)];
    let ends = (0..ENDS.len(), CLIENT_PORTS, any::<prop::sample::Index>());
    // A few packets appear at the other hook.
    (hook, protocol, ends, any_headers(), prop::bool::weighted(0.1)).prop_map(
        |(hook, protocol, (family, client_port, other), around, astray)| {
            let at = ENDS[family];
            let client = at.client(client_port);
            let (source, destination) = match hook {
                Hook::Forward | Hook::Stack | Hook::AfterXdp | Hook::Workload => {
                    (client, other.get(&destination(at, protocol)).clone())
                }
                Hook::Reverse | Hook::Process => {
                    (other.get(&at.backends(BACKENDS)).clone(), client)
                }
            };
            let packet = build(at, protocol, &source, &destination, &around);
            let hook = if astray { opposite(hook) } else { hook };
            let has_ports = protocol == 6 || protocol == 17;
            Sent { at, hook, packet, has_ports, intact: true }
        },
    )
}

/// The destination of a client: mostly a port of a Service with this protocol.
fn destination(at: &Ends, protocol: u8) -> Vec<String> {
    let port = if protocol == 17 { 53 } else { 80 };
    let own = [at.cluster(port), at.load_balancer(port), at.end(at.node, NODE_PORT)];
    let often = own.iter().cycle().take(8 * own.len()).cloned();
    often.chain(any_frontends(at)).collect()
}

fn build(at: &Ends, protocol: u8, source: &str, destination: &str, around: &Around) -> Packet {
    match protocol {
        6 => around.tcp(at, &tcp(source, destination)),
        17 => around.udp(at, &udp(source, destination)),
        132 => around.ip(at, &sctp(source, destination)),
        _ => around.ip(at, &icmp_echo(address_of(source), address_of(destination))),
    }
}

fn address_of(end: &str) -> std::net::IpAddr {
    let end: std::net::SocketAddr = end.parse().expect("an end of a scenario");
    end.ip()
}

fn opposite(hook: Hook) -> Hook {
    match hook {
        Hook::Forward | Hook::Stack | Hook::AfterXdp | Hook::Workload => Hook::Reverse,
        Hook::Reverse | Hook::Process => Hook::Forward,
    }
}

/// A damaged packet: changed bytes, truncated, a fragment, or random bytes.
pub fn any_damaged_packet() -> impl Strategy<Value = Sent> {
    let accident = prop_oneof![
        4 => vec((0usize..120, any::<u8>()), 1..4).prop_map(Accident::Overwritten),
        3 => (0usize..140).prop_map(Accident::CutTo),
        2 => (0usize..6, 1usize..9).prop_map(|(from, eighths)| Accident::Fragment(from, eighths)),
        1 => vec(any::<u8>(), 14..120).prop_map(Accident::Noise),
    ];
    (any_intact_packet(), accident).prop_map(|(sent, accident)| {
        let packet = accident.to(&sent.packet);
        let is_fragment = matches!(accident, Accident::Fragment(..));
        // Later fragments have no ports; their fate depends on whether the first one arrived.
        let is_later = matches!(accident, Accident::Fragment(from, _) if from > 0);
        // A first fragment that ends within the transport header may have padding instead. Destination
        // options take up to 16 bytes before it.
        let is_short = matches!(accident, Accident::Fragment(_, eighths) if eighths < 5);
        let intact = is_fragment && !is_later && !is_short;
        Sent { packet, intact, has_ports: sent.has_ports && !is_later, ..sent }
    })
}

#[derive(Clone, Debug)]
enum Accident {
    Overwritten(Vec<(usize, u8)>),
    CutTo(usize),
    /// Offset and length in units of eight bytes.
    Fragment(usize, usize),
    Noise(Vec<u8>),
}

impl Accident {
    fn to(&self, packet: &Packet) -> Packet {
        match self.clone() {
            Self::Overwritten(changes) => packet.with(move |bytes| {
                for &(offset, value) in &changes {
                    let offset = offset % bytes.len();
                    bytes[offset] = value;
                }
            }),
            Self::CutTo(length) => packet.truncated(length),
            Self::Fragment(from, eighths) => {
                packet.payload(&[7; 96]).fragment(from * 8..(from + eighths) * 8)
            }
            Self::Noise(bytes) => raw(&bytes),
        }
    }
}
