//! Header values that most requests get, made without memory of their own and, where that is easy, without the
//! formatting machinery: both cost each request more than it seems.

use std::fmt::{self, Write};
use std::net::IpAddr;
use std::ops::Deref;

/// The longest text: an IPv6 address that ends like an IPv4 address.
const MOST_OCTETS: usize = 45;

/// Text without memory of its own.
pub(crate) struct ShortText {
    octets: [u8; MOST_OCTETS],
    length: usize,
}

impl ShortText {
    fn new() -> Self {
        Self { octets: [0; MOST_OCTETS], length: 0 }
    }

    fn push(&mut self, octet: u8) {
        self.octets[self.length] = octet;
        self.length += 1;
    }

    /// Without leading zeros.
    fn push_number(&mut self, number: u16) {
        if number >= 10 {
            self.push_number(number / 10);
        }
        self.push(b'0' + (number % 10) as u8);
    }
}

impl Deref for ShortText {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.octets[..self.length]
    }
}

impl Write for ShortText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|octet| self.push(octet));
        Ok(())
    }
}

pub(crate) fn port_text(port: u16) -> ShortText {
    let mut text = ShortText::new();
    text.push_number(port);
    text
}

pub(crate) fn address_text(address: IpAddr) -> ShortText {
    let mut text = ShortText::new();
    match address {
        IpAddr::V4(address) => {
            for (position, octet) in address.octets().into_iter().enumerate() {
                if position > 0 {
                    text.push(b'.');
                }
                text.push_number(octet.into());
            }
        }
        // There is room for all addresses.
        IpAddr::V6(address) => {
            let _ = write!(text, "{address}");
        }
    }
    text
}

/// 32 digits.
pub(crate) fn hexadecimal_text(number: u128) -> ShortText {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = ShortText::new();
    for octet in number.to_be_bytes() {
        text.push(DIGITS[usize::from(octet >> 4)]);
        text.push(DIGITS[usize::from(octet & 15)]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_as_they_are_formatted() {
        for octets in [[0, 0, 0, 0], [1, 20, 255, 99], [100, 9, 10, 199], [255, 255, 255, 255]] {
            let expected = IpAddr::from(octets);
            assert_eq!(*address_text(expected), *expected.to_string().as_bytes());
        }
        for text in ["2001:db8::1", "::ffff:255.255.255.255", &["abcd"; 8].join(":")] {
            let six: IpAddr = text.parse().unwrap();
            assert_eq!(*address_text(six), *text.as_bytes());
        }
        for number in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef << 64 | 0xf] {
            assert_eq!(*hexadecimal_text(number), *format!("{number:032x}").as_bytes());
        }
        for number in [0, 80, 443, 8080, 65535] {
            assert_eq!(*port_text(number), *number.to_string().as_bytes());
        }
    }
}
