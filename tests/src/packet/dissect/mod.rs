//! Bytes to text: one line for a layer, with what each checksum should be. Never panics, whatever
//! the bytes: what cannot be read is shown as data, and the reason said.

mod checksum;
mod icmp;
mod ip;
mod link;
mod transport;

/// Packets in packets deeper than this are shown as data, so that hostile bytes cannot exhaust the
/// stack.
const DEEPEST: usize = 8;

/// An Ethernet frame.
pub fn dissect(frame: &[u8]) -> String {
    let mut report = Report::default();
    link::ethernet(&mut report, frame);
    report.text
}

/// A packet without an Ethernet header.
pub fn dissect_ip(packet: &[u8]) -> String {
    let mut report = Report::default();
    ip::any(&mut report, packet);
    report.text
}

/// The lines so far. Those of a packet within a packet are indented.
#[derive(Default)]
struct Report {
    text: String,
    depth: usize,
}

impl Report {
    fn line(&mut self, layer: &str, fields: impl std::fmt::Display) {
        let indent = 4 * self.depth;
        self.text += &format!("{:indent$}{layer:<9} {fields}\n", "");
    }

    /// Bytes with no meaning to us: in hex, the first of them, and as text where they are text.
    fn data(&mut self, layer: &str, bytes: &[u8]) {
        const SHOWN: usize = 24;
        if bytes.is_empty() {
            return;
        }
        let shown = &bytes[..bytes.len().min(SHOWN)];
        let more = if bytes.len() > SHOWN { "..." } else { "" };
        let hex = hex(shown);
        let text = shown.escape_ascii();
        self.line(layer, format_args!("{} bytes: {hex}{more} \"{text}\"{more}", bytes.len()));
    }

    /// Says why a header cannot be read, and shows what is there.
    fn malformed(&mut self, layer: &str, reason: impl std::fmt::Display, bytes: &[u8]) {
        self.line(layer, format_args!("[MALFORMED: {reason}]"));
        self.data("Data", bytes);
    }

    /// A packet within a packet.
    fn nested(&mut self, packet: &[u8]) {
        if self.depth == DEEPEST {
            return self.data("Data", packet);
        }
        self.depth += 1;
        ip::any(self, packet);
        self.depth -= 1;
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

/// "6 (TCP)", or the number alone.
fn protocol(number: etherparse::IpNumber) -> String {
    match number.keyword_str() {
        Some(name) => format!("{} ({name})", number.0),
        None => number.0.to_string(),
    }
}

#[cfg(test)]
mod tests;
