//! Names of service ports, which only people read.

use core::fmt;

/// The name of a service port's index, for commands; no program reads it.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServicePortName {
    pub namespace: Text,
    pub service: Text,
    /// Empty if the port has no name.
    pub port: Text,
    pub protocol: u8,
    /// 4 or 6.
    pub family: u8,
    pub reserved: [u8; 2],
}

/// Octets of UTF-8, then zeros. Names in Kubernetes have at most 63. A longer name, which only a
/// file can have, is truncated.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Text {
    pub octets: [u8; 64],
}

impl Text {
    pub fn new(text: &str) -> Self {
        let mut octets = [0; 64];
        let mut length = text.len().min(octets.len());
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        octets[..length].copy_from_slice(&text.as_bytes()[..length]);
        Self { octets }
    }

    /// The text up to the first octet that is not UTF-8.
    pub fn as_str(&self) -> &str {
        let length = self.octets.iter().position(|&octet| octet == 0);
        let octets = &self.octets[..length.unwrap_or(self.octets.len())];
        let valid = match core::str::from_utf8(octets) {
            Ok(text) => return text,
            Err(error) => error.valid_up_to(),
        };
        core::str::from_utf8(&octets[..valid]).unwrap_or_default()
    }
}

impl Default for Text {
    fn default() -> Self {
        Self { octets: [0; 64] }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Debug for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, service, port, protocol, family, .. } = self;
        let [namespace, service, port] = [namespace, service, port].map(Text::as_str);
        write!(f, "{namespace}/{service}:{port} (protocol {protocol}, IPv{family})")
    }
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<ServicePortName>() == 196);
    assert!(offset_of!(ServicePortName, port) == 128);
    assert!(offset_of!(ServicePortName, protocol) == 192);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_back_up_to_its_maximum_length() {
        for text in ["", "web", "a-name-of-sixty-three-octets-is-the-longest-that-kubernetes-has"] {
            assert_eq!(Text::new(text).as_str(), text);
        }
        let long = "x".repeat(63) + "äy";
        assert_eq!(Text::new(&long).as_str(), "x".repeat(63), "no partial character");
        let full = "x".repeat(64);
        assert_eq!(Text::new(&full).as_str(), full);
    }

    #[test]
    fn invalid_utf8_is_left_out() {
        let mut text = Text::new("web");
        text.octets[3] = 0xff;
        assert_eq!(text.as_str(), "web");
    }
}
