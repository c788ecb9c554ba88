//! The packets of a case: what is measured, and what must become of it.

use std::net::IpAddr;

use crate::generator::{
    Side, packet_template, template_of_list, tunnelled_template, unvaried_template,
};
use ::tests::packets::datapath::surroundings::{INSIDE, OUTSIDE, device, mac};
use ::tests::packets::datapath::tunnel::{named, of_flow, through};
use ::tests::packets::{CLIENT_MAC, Packet, packet_too_big, tcp, udp};
use lb_common::bench::Template;

use super::case::{Backends, CLIENT_PORT, Case, Ends, PacketKind, ROUTER_MAC};

/// More clients than a measurement has packets, so each packet opens a new flow.
const ENDLESS: u32 = 1 << 28;

const HOP_LIMIT: u8 = 64;

/// Identifies the fragments of one packet.
const FRAGMENTED: u16 = 7;

impl Case {
    /// The first measured packet, and how it varies. `some`: any flow.
    pub fn template(&self, flows: u32, some: Option<Ends>) -> (Packet, Template) {
        let packet = match self.kind {
            PacketKind::New | PacketKind::Fresh | PacketKind::Flood => self.fresh(),
            PacketKind::Untracked => self.opening(),
            _ => self.packet(some),
        };
        let template = match (self.kind, self.is_request()) {
            (PacketKind::Reply | PacketKind::AgedReply, _) => template_of_list(&packet, flows),
            (PacketKind::New | PacketKind::Fresh | PacketKind::Flood, _) => {
                packet_template(&packet, Side::Source, ENDLESS)
            }
            (PacketKind::Fragment | PacketKind::Error, _) => unvaried_template(&packet),
            (_, true) => self.template_of(&packet, flows),
            (_, false) => packet_template(&packet, Side::Destination, flows),
        };
        (self.arriving(&packet), Template { at_front: self.moves_front().into(), ..template })
    }

    /// Whether the program moves the start of the packet.
    fn moves_front(&self) -> bool {
        self.is_tunnelled() || matches!(self.kind, PacketKind::Delivered(_))
    }

    /// A template of a client's packet, as it arrives.
    pub(crate) fn template_of(&self, packet: &Packet, flows: u32) -> Template {
        let arriving = self.arriving(packet);
        let template = packet_template(packet, Side::Source, flows);
        let template = match self.kind {
            PacketKind::Delivered(_) => tunnelled_template(&arriving, packet, &template),
            _ => template,
        };
        Template { at_front: self.moves_front().into(), ..template }
    }

    /// A client's packet as it arrives: through a tunnel, or as the client sent it.
    pub fn arriving(&self, packet: &Packet) -> Packet {
        match self.kind {
            PacketKind::Delivered(tunnel) => {
                let outer = through(tunnel, &self.other_node(), &self.own_address(OUTSIDE), packet);
                named(&outer, &self.backends()[0])
            }
            _ => packet.clone(),
        }
    }

    /// A packet of an established connection.
    pub fn request(&self) -> Packet {
        self.request_of(self.end("100.64.0.0", "2001:db8:64::", CLIENT_PORT))
    }

    /// The packet that opens the connection.
    pub fn opening(&self) -> Packet {
        if self.udp { self.request() } else { self.request().syn() }
    }

    /// The packet that opens a connection of an unknown client.
    fn fresh(&self) -> Packet {
        let fresh = self.request_of(self.end("16.0.0.0", "2001:db8:16::", CLIENT_PORT));
        if self.udp { fresh } else { fresh.syn() }
    }

    /// A backend's reply to it, if the backend knows the client's address.
    pub fn reply(&self) -> Packet {
        // From the next hop, to the interface on which it arrives.
        let reply = self.request().reversed().macs(ROUTER_MAC, mac(OUTSIDE));
        match (self.kind, self.backends().first()) {
            (PacketKind::None, _) | (_, None) => reply,
            (_, Some(backend)) => reply.from(backend.as_str()),
        }
    }

    /// The packet that must have come before each measurement.
    pub(crate) fn first_fragment(&self) -> Option<Packet> {
        (self.kind == PacketKind::Fragment).then(|| self.whole().fragment(..1480))
    }

    fn whole(&self) -> Packet {
        self.request().payload(&[7; 3000]).id(FRAGMENTED)
    }

    /// A packet of an established connection as the program gets it.
    fn packet(&self, some: Option<Ends>) -> Packet {
        match (self.kind, some) {
            (PacketKind::Reply | PacketKind::AgedReply, Some(ends)) => {
                self.reply().from(ends.backend).to(ends.snat)
            }
            (PacketKind::Fragment, _) => self.whole().fragment(1480..2960),
            (PacketKind::Error, Some(ends)) => {
                let reply = self.request().from(ends.client).reversed();
                packet_too_big(self.end("192.0.2.9", "2001:db8::9", 0).as_str(), &reply, 1400)
            }
            (PacketKind::Untracked | PacketKind::Flood, _) => self.opening(),
            (PacketKind::New, _) if self.backends == Backends::Nowhere => self.opening(),
            _ if self.is_request() => self.request(),
            _ => self.reply(),
        }
    }

    /// A packet before the program, and all possible results.
    pub fn expected(&self, flow: Option<Ends>) -> (Packet, Vec<Packet>) {
        let packet = match (self.kind, self.is_request(), flow) {
            (PacketKind::Fragment, ..) => self.packet(flow),
            (_, true, Some(flow)) => self.packet(None).from(flow.client),
            _ => self.packet(flow),
        };
        let expected = match (self.kind, self.backends, flow) {
            (PacketKind::None, ..) | (_, Backends::Nowhere, _) => vec![packet.clone()],
            (PacketKind::Flood, Backends::Remote, _) => vec![packet.clone()],
            (PacketKind::Reply | PacketKind::AgedReply, _, Some(flow)) => {
                let client = packet.from(self.frontend().as_str()).to(flow.client);
                vec![client.macs(mac(OUTSIDE), CLIENT_MAC).ttl(HOP_LIMIT - 1)]
            }
            (PacketKind::Error, _, Some(flow)) => {
                vec![packet.inner(|quoted| quoted.from(flow.backend)).to(flow.backend.ip())]
            }
            (_, Backends::Remote | Backends::PortsInUse, Some(flow)) => {
                let backend = packet.from(flow.snat).to(flow.backend);
                vec![backend.macs(mac(INSIDE), ROUTER_MAC).ttl(HOP_LIMIT - 1)]
            }
            (_, Backends::Tunnelled(tunnel), Some(flow)) => {
                let (own, other) = (self.own_address(INSIDE), self.other_node());
                let outer = through(tunnel, &own, &other, &packet.ttl(HOP_LIMIT - 1));
                let outer = named(&of_flow(&outer, tunnel, &packet), &flow.backend.to_string());
                vec![outer.macs(mac(INSIDE), ROUTER_MAC)]
            }
            _ if self.is_request() => {
                self.backends().iter().map(|backend| packet.to(backend.as_str())).collect()
            }
            _ => vec![packet.from(self.frontend().as_str())],
        };
        (self.arriving(&packet), expected)
    }

    fn request_of(&self, client: String) -> Packet {
        let to = match self.kind {
            PacketKind::None => self.end("192.0.2.99", "2001:db8::99", 80),
            _ => self.frontend(),
        };
        let packet = if self.udp {
            udp(client.as_str(), to.as_str())
        } else {
            tcp(client.as_str(), to.as_str()).ack()
        };
        packet.ttl(HOP_LIMIT).payload(&[b'x'; 100])
    }

    /// The address of this node on a device.
    pub fn own_address(&self, index: u32) -> String {
        let device = device(index);
        let address = match self.v6 {
            false => device.v4.map(IpAddr::from),
            true => device.v6.map(IpAddr::from),
        };
        address.expect("devices have both").to_string()
    }
}
