//! Header values that most requests get, made without the formatting machinery, which costs each request more than it
//! seems.

use std::net::IpAddr;

use http::header::HeaderValue;

pub(crate) fn port_value(port: u16) -> HeaderValue {
    match port {
        80 => HeaderValue::from_static("80"),
        443 => HeaderValue::from_static("443"),
        port => HeaderValue::from(port),
    }
}

pub(crate) fn address_value(address: IpAddr) -> Option<HeaderValue> {
    let IpAddr::V4(address) = address else {
        return HeaderValue::try_from(address.to_string()).ok();
    };
    let mut text = [0; 15];
    let mut length = 0;
    let mut push = |octet: u8| {
        text[length] = octet;
        length += 1;
    };
    for (position, octet) in address.octets().into_iter().enumerate() {
        if position > 0 {
            push(b'.');
        }
        if octet >= 100 {
            push(b'0' + octet / 100);
        }
        if octet >= 10 {
            push(b'0' + octet / 10 % 10);
        }
        push(b'0' + octet % 10);
    }
    HeaderValue::from_bytes(&text[..length]).ok()
}

/// 32 digits.
pub(crate) fn hexadecimal_value(number: u128) -> Option<HeaderValue> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    for (pair, octet) in text.chunks_exact_mut(2).zip(number.to_be_bytes()) {
        pair[0] = DIGITS[usize::from(octet >> 4)];
        pair[1] = DIGITS[usize::from(octet & 15)];
    }
    HeaderValue::from_bytes(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_as_they_are_formatted() {
        for octets in [[0, 0, 0, 0], [1, 20, 255, 99], [100, 9, 10, 199], [255, 255, 255, 255]] {
            let expected = IpAddr::from(octets);
            assert_eq!(address_value(expected).unwrap(), expected.to_string().as_str());
        }
        let six: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(address_value(six).unwrap(), "2001:db8::1");
        for number in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef << 64 | 0xf] {
            assert_eq!(hexadecimal_value(number).unwrap(), format!("{number:032x}").as_str());
        }
        for number in [0, 80, 443, 8080, 65535] {
            assert_eq!(port_value(number), number.to_string().as_str());
        }
    }
}
