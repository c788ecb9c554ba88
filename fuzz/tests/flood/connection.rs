//! Legitimate connections. Each plays client and backend, and checks that every packet arrives at
//! the first attempt, at the backend of the first packet, translated in both directions.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::Ipv4Addr;

use lb_common::hash::mix;
use lb_common::header::protocol::UDP;

use crate::world::{FloodFate, Path, SECOND, Service, World};
use fuzz::wire::{ACK, FIN, Ipv4End, Packet, SYN};

/// Between the node and a client.
const ROUND_TRIP: u64 = 40_000_000;
/// Between the node and a backend.
const BACKEND_ROUND_TRIP: u64 = 300_000;
const INTERVAL: u64 = 3 * SECOND;
const NODE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// What a connection does after its handshake and a first exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Exchanges something every few seconds.
    Talks,
    /// Idles until [`Honest::wake`]; then one exchange, and idles again.
    Idles,
    /// The client closes its direction; the backend keeps sending.
    HalfClosed,
    /// Two more exchanges, then both sides close.
    Visits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Syn,
    SynAck,
    Ack,
    Request,
    Response,
    ClientFin,
    BackendAck,
    BackendFin,
    BackendData,
}

struct ScriptedConnection {
    service: Service,
    script: Script,
    client: Ipv4End,
    step: u32,
    opened_at: u64,
    /// The next sequence numbers.
    client_next: u32,
    backend_next: u32,
    /// The backend that got the first packet. All others must go there.
    backend: Option<Ipv4End>,
    /// The source address and port that the backend sees.
    source: Option<Ipv4End>,
}

impl ScriptedConnection {
    fn new(service: Service, script: Script, client: Ipv4End, now: u64) -> Self {
        let isn = mix(u64::from(u32::from(client.address)) << 16 | u64::from(client.port));
        Self {
            service,
            script,
            client,
            step: 0,
            opened_at: now,
            client_next: isn as u32,
            backend_next: (isn >> 32) as u32,
            backend: None,
            source: None,
        }
    }

    fn act(&self) -> Option<Act> {
        use Act::*;
        let exchange = |step: u32| if step.is_multiple_of(2) { Request } else { Response };
        if self.service.protocol == UDP {
            let over = self.script == Script::Visits && self.step == 6;
            return (!over).then(|| exchange(self.step));
        }
        let later = match self.step {
            0 => return Some(Syn),
            1 => return Some(SynAck),
            2 => return Some(Ack),
            3 => return Some(Request),
            4 => return Some(Response),
            step => step - 5,
        };
        match (self.script, later) {
            (Script::Talks | Script::Idles, _) | (Script::Visits, 0..4) => Some(exchange(later)),
            (Script::Visits, 4) => Some(ClientFin),
            (Script::Visits, 5) => Some(BackendFin),
            (Script::Visits, 6) => Some(Ack),
            (Script::Visits, _) => None,
            (Script::HalfClosed, 0) => Some(ClientFin),
            (Script::HalfClosed, 1) => Some(BackendAck),
            (Script::HalfClosed, _) if later.is_multiple_of(2) => Some(BackendData),
            (Script::HalfClosed, _) => Some(Ack),
        }
    }

    /// The time until the next act; `None` if it waits for [`Honest::wake`].
    fn pause(&self, act: Act) -> Option<u64> {
        use Act::*;
        match (act, self.script) {
            (Syn | Request | ClientFin, _) => Some(BACKEND_ROUND_TRIP),
            (Response, Script::Talks) => Some(INTERVAL),
            (Response, Script::Idles) => None,
            (Ack, Script::HalfClosed) if self.step > 3 => Some(INTERVAL),
            _ => Some(ROUND_TRIP),
        }
    }

    /// Sends the next packet, and returns when the one after it is due.
    fn go_on(&mut self, world: &mut World) -> Result<Option<u64>, String> {
        let Some(act) = self.act() else { return Ok(None) };
        let done = match act {
            Act::Syn | Act::Ack | Act::Request | Act::ClientFin => self.send_request(act, world),
            Act::SynAck | Act::Response | Act::BackendAck | Act::BackendFin | Act::BackendData => {
                self.send_reply(act, world)
            }
        };
        done.map_err(|error| {
            let age = (world.now - self.opened_at) as f64 / SECOND as f64;
            format!(
                "{:?} {:?} from {}:{}, packet {} ({act:?}), {age:.3} s after the first: {error}",
                self.script, self.service, self.client.address, self.client.port, self.step
            )
        })?;
        let pause = self.pause(act);
        self.step += 1;
        Ok(pause.map(|pause| world.now + pause))
    }

    fn make_packet(&self, act: Act, source: Ipv4End, destination: Ipv4End) -> Packet {
        let from_client = matches!(act, Act::Syn | Act::Ack | Act::Request | Act::ClientFin);
        let length = match act {
            Act::Request | Act::Response | Act::BackendData => 32,
            _ => 0,
        };
        if self.service.protocol == UDP {
            return Packet::udp(source, destination, length);
        }
        let flags = match act {
            Act::Syn | Act::SynAck => SYN,
            Act::ClientFin | Act::BackendFin => FIN,
            _ => ACK,
        };
        let (sequence, acknowledged) = match from_client {
            true => (self.client_next, self.backend_next),
            false => (self.backend_next, self.client_next),
        };
        let packet = Packet::tcp(source, destination, flags, sequence).with_payload(length);
        if act == Act::Syn { packet } else { packet.acknowledging(acknowledged) }
    }

    fn send_request(&mut self, act: Act, world: &mut World) -> Result<(), String> {
        let sent = self.make_packet(act, self.client, self.service.frontend());
        let fate = world.request(&sent);
        let received = match (fate, self.service.path) {
            (FloodFate::Delivered(packet), Path::Local | Path::Snat) => packet,
            (FloodFate::Tunnelled(packet, node), Path::Tunnel) => {
                let numbers = 0..crate::world::BACKENDS;
                let mut backends = numbers.map(|number| self.service.backend(number));
                let backend = backends.find(|backend| self.service.node_of(*backend) == node);
                let backend = backend.ok_or_else(|| format!("went to {node}"))?;
                // The packet is tunnelled unmodified. The backend's node translates it.
                if packet != sent {
                    return Err(format!("{sent:?} was changed to {packet:?}"));
                }
                Packet { destination: backend, ..packet }
            }
            _ => return Err(format!("{sent:?} became {fate:?}")),
        };
        let source = *self.source.get_or_insert(received.source);
        let right_source = match self.service.path {
            Path::Snat => source.address == NODE,
            Path::Local | Path::Tunnel => source == self.client,
        };
        let backend = *self.backend.get_or_insert(received.destination);
        let expected = Packet { source, destination: backend, ..sent };
        if !right_source || !self.service.is_backend(backend) || received != expected {
            return Err(format!("{received:?} is not {expected:?}"));
        }
        self.client_next = sent.end_of_sequence();
        Ok(())
    }

    fn send_reply(&mut self, act: Act, world: &mut World) -> Result<(), String> {
        let (backend, source) = self.backend.zip(self.source).expect("replies follow a request");
        let sent = self.make_packet(act, backend, source);
        self.backend_next = sent.end_of_sequence();
        if self.service.path == Path::Tunnel {
            return Ok(());
        }
        let fate = world.reply(self.service, &sent, self.client);
        let expected = Packet { source: self.service.frontend(), destination: self.client, ..sent };
        if fate != FloodFate::Delivered(expected) {
            return Err(format!("{sent:?} became {fate:?}"));
        }
        Ok(())
    }
}

/// All legitimate connections, and when the next packet of each is due.
#[derive(Default)]
pub struct Honest {
    connections: Vec<ScriptedConnection>,
    due: BinaryHeap<Reverse<(u64, usize)>>,
    pub packets: u64,
    pub failures: Vec<String>,
}

impl Honest {
    pub fn dial(&mut self, service: Service, script: Script, now: u64) {
        let number = self.connections.len();
        let client =
            Ipv4End::new([192, 0, 2, 1 + (number % 250) as u8], 32_768 + (number / 250) as u16);
        self.due.push(Reverse((now, number)));
        self.connections.push(ScriptedConnection::new(service, script, client, now));
    }

    pub fn opened(&self) -> usize {
        self.connections.len()
    }

    /// Sends all packets that are due.
    pub fn go_on(&mut self, world: &mut World) {
        while let Some(&Reverse((due, number))) = self.due.peek()
            && due <= world.now
        {
            self.due.pop();
            self.packets += 1;
            match self.connections[number].go_on(world) {
                Ok(Some(next)) => self.due.push(Reverse((next, number))),
                Ok(None) => {}
                // No retransmission: the first attempt must succeed.
                Err(failure) => self.failures.push(failure),
            }
        }
    }

    /// Advances the clock; only these connections send.
    pub fn run_for(&mut self, nanoseconds: u64, world: &mut World) {
        let end = world.now + nanoseconds;
        while let Some(&Reverse((due, _))) = self.due.peek()
            && due <= end
        {
            world.advance(due.saturating_sub(world.now));
            self.go_on(world);
        }
        world.advance(end - world.now);
    }

    /// Makes the idle connections exchange something.
    pub fn wake(&mut self, now: u64) {
        for (number, connection) in self.connections.iter().enumerate() {
            if connection.script == Script::Idles {
                self.due.push(Reverse((now, number)));
            }
        }
    }
}
