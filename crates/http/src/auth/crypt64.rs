//! The text form of digests in crypt(3): six bits a character, from the lowest, after the octets were shuffled.

const DIGITS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

pub(super) fn is_digit(octet: u8) -> bool {
    DIGITS.contains(&octet)
}

pub(super) fn md5(digest: &[u8; 16]) -> String {
    let mut text = String::with_capacity(22);
    for i in 0..5 {
        // The last group would need octet 16, and has octet 5 in its place.
        let last = if i == 4 { 5 } else { i + 12 };
        push(&mut text, [digest[i], digest[i + 6], digest[last]], 4);
    }
    push(&mut text, [0, 0, digest[11]], 2);
    text
}

pub(super) fn sha256(digest: &[u8; 32]) -> String {
    let mut text = String::with_capacity(43);
    let (mut a, mut b, mut c) = (0, 10, 20);
    for _ in 0..10 {
        push(&mut text, [digest[a], digest[b], digest[c]], 4);
        (a, b, c) = (c + 1, a + 1, b + 1);
    }
    push(&mut text, [0, digest[31], digest[30]], 3);
    text
}

pub(super) fn sha512(digest: &[u8; 64]) -> String {
    let mut text = String::with_capacity(86);
    let (mut a, mut b, mut c) = (0, 21, 42);
    for _ in 0..21 {
        push(&mut text, [digest[a], digest[b], digest[c]], 4);
        (a, b, c) = (b + 1, c + 1, a + 1);
    }
    push(&mut text, [0, 0, digest[63]], 2);
    text
}

/// The lowest `count` characters of three octets.
fn push(text: &mut String, [high, middle, low]: [u8; 3], count: usize) {
    let mut bits = u32::from_be_bytes([0, high, middle, low]);
    for _ in 0..count {
        text.push(char::from(DIGITS[bits as usize & 63]));
        bits >>= 6;
    }
}
