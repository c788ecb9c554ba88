//! Texts of spans.

/// Text that a client has sent, of at most this many octets.
pub fn shorten_text(text: &[u8], most: usize) -> String {
    let mut text = String::from_utf8_lossy(&text[..text.len().min(most)]).into_owned();
    cut_text(&mut text, most);
    text
}

pub(super) fn cut_text(text: &mut String, most: usize) {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_short_and_valid() {
        for (text, most, expected) in [
            (&b"abc"[..], 3, "abc"),
            (b"abcd", 3, "abc"),
            (b"", 3, ""),
            (b"a\xc3\xa9", 2, "a"),
            (b"a\xc3\xa9", 3, "a\u{e9}"),
            (b"\xff\xff\xff", 3, "\u{fffd}"),
        ] {
            let short = shorten_text(text, most);
            assert!(short.len() <= most);
            assert_eq!(short, expected, "{text:?}");
        }
    }
}
