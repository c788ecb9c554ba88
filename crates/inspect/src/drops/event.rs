//! A reported packet, as text and as JSON.

use std::net::SocketAddr;

use jiff::{SignedDuration, Timestamp};
use lb_common::layout::{Ending, PacketEvent, Reason};
use lb_rules::notation::{ip_of_octets, protocol_name, tcp_flag_names};
use serde::Serialize;

/// Reads an event of the ring buffer; `None` if it has another size.
pub fn parse_packet_event(bytes: &[u8]) -> Option<PacketEvent> {
    let event = bytes.get(..size_of::<PacketEvent>())?.as_ptr().cast::<PacketEvent>();
    // SAFETY: the slice has the event's size; any bytes are valid; the read is unaligned.
    Some(unsafe { event.read_unaligned() })
}

/// A line of `millrace drops`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DropReport {
    pub time: String,
    pub ending: &'static str,
    pub reason: &'static str,
    pub device: String,
    pub hook: &'static str,
    /// These fields are missing if the packet could not be parsed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub flags: String,
    /// Length of the frame, in bytes.
    pub length: u32,
    /// The service port, if the destination is a frontend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_port: Option<String>,
}

impl DropReport {
    /// `age`: time since the event.
    pub fn of(event: &PacketEvent, age: SignedDuration, device: String) -> Self {
        let time = Timestamp::now().checked_sub(age).unwrap_or_else(|_| Timestamp::now());
        let time = time.round(jiff::Unit::Millisecond).unwrap_or(time);
        let readable = event.source != [0; 16] || event.destination != [0; 16];
        let end = |octets, port| match (ip_of_octets(octets), port) {
            (address, 0) => address.to_string(),
            (address, port) => SocketAddr::new(address, port).to_string(),
        };
        Self {
            time: time.to_string(),
            ending: ending_name(event.ending),
            reason: reason_name(event.reason),
            device,
            hook: if event.xdp == 1 { "xdp" } else { "tc" },
            protocol: (event.protocol != 0).then(|| protocol_name(event.protocol).to_owned()),
            source: readable.then(|| end(event.source, event.source_port)),
            destination: readable.then(|| end(event.destination, event.destination_port)),
            flags: tcp_flag_names(event.flags),
            length: event.length,
            service_port: None,
        }
    }

    pub fn line(&self) -> String {
        let mut line = format!(
            "{}  {:8}  {:18}  {} {}  ",
            self.time, self.ending, self.reason, self.device, self.hook
        );
        line += self.protocol.as_deref().unwrap_or("?");
        if let (Some(source), Some(destination)) = (&self.source, &self.destination) {
            line += &format!(" {source} → {destination}");
        }
        if !self.flags.is_empty() {
            line += &format!(" [{}]", self.flags);
        }
        line += &format!(", {} bytes", self.length);
        if let Some(service_port) = &self.service_port {
            line += &format!("  {service_port}");
        }
        line
    }
}

fn ending_name(ending: u8) -> &'static str {
    const ENDINGS: [(Ending, &str); 3] =
        [(Ending::Passed, "passed"), (Ending::Dropped, "dropped"), (Ending::Answered, "answered")];
    ENDINGS.iter().find(|(known, _)| *known as u8 == ending).map_or("?", |(_, name)| name)
}

fn reason_name(reason: u32) -> &'static str {
    Reason::ALL.into_iter().find(|known| *known as u32 == reason).map_or("?", Reason::name)
}

#[cfg(test)]
mod tests {
    use lb_common::family::Address4;
    use lb_common::header::protocol;
    use lb_common::layout::Peer;

    use super::*;

    fn mapped(address: [u8; 4]) -> [u8; 16] {
        Peer::from(Address4::from(address)).address.octets
    }

    #[test]
    fn a_line_has_outcome_and_reason() {
        let event = PacketEvent {
            source: mapped([198, 51, 100, 7]),
            destination: mapped([203, 0, 113, 10]),
            source_port: 40_000,
            destination_port: 80,
            protocol: protocol::TCP,
            flags: 2,
            ending: Ending::Answered as u8,
            reason: Reason::NoBackend as u32,
            length: 54,
            xdp: 1,
            ..PacketEvent::default()
        };
        let report = DropReport::of(&event, SignedDuration::ZERO, "eth0".to_owned());
        let (_, rest) = report
            .line()
            .split_once("  ")
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .expect("a time");
        assert_eq!(
            rest,
            "answered  no_backend          eth0 xdp  TCP 198.51.100.7:40000 → 203.0.113.10:80 [syn], 54 bytes"
        );
    }

    #[test]
    fn what_could_not_be_read_has_no_ends() {
        let event = PacketEvent { reason: 77, ending: 9, ..PacketEvent::default() };
        let report = DropReport::of(&event, SignedDuration::ZERO, "eth0".to_owned());
        assert_eq!((report.reason, report.ending, report.source), ("?", "?", None));
    }
}
