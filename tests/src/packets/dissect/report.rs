//! The lines of a dissected packet.

/// The lines so far. Those of a packet within a packet are indented.
#[derive(Default)]
pub struct Report {
    pub text: String,
    /// How many packets this one is nested in.
    pub depth: usize,
}

impl Report {
    pub fn line(&mut self, layer: &str, fields: impl std::fmt::Display) {
        let indent = 4 * self.depth;
        self.text += &format!("{:indent$}{layer:<9} {fields}\n", "");
    }

    /// Bytes with no meaning to us: in hex, the first of them, and as text where they are text.
    pub fn data(&mut self, layer: &str, bytes: &[u8]) {
        const SHOWN: usize = 24;
        if bytes.is_empty() {
            return;
        }
        let shown = &bytes[..bytes.len().min(SHOWN)];
        let more = if bytes.len() > SHOWN { "..." } else { "" };
        let hex = format_hex(shown);
        let text = shown.escape_ascii();
        self.line(layer, format_args!("{} bytes: {hex}{more} \"{text}\"{more}", bytes.len()));
    }

    /// Says why a header cannot be read, and shows what is there.
    pub fn malformed(&mut self, layer: &str, reason: impl std::fmt::Display, bytes: &[u8]) {
        self.line(layer, format_args!("[MALFORMED: {reason}]"));
        self.data("Data", bytes);
    }
}

pub fn format_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

/// "6 (TCP)", or the number alone.
pub fn protocol_name(number: etherparse::IpNumber) -> String {
    match number.keyword_str() {
        Some(name) => format!("{} ({name})", number.0),
        None => number.0.to_string(),
    }
}
