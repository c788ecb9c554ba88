//! Texts of spans.

/// Text that a client has sent, of at most this many octets. What is no text, or controls a terminal, is replaced.
pub fn shorten_text(text: &[u8], most: usize) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(most)]);
    if text.contains(char::is_control) {
        return cut_text(&text.replace(char::is_control, "\u{fffd}"), most).to_owned();
    }
    cut_text(&text, most).to_owned()
}

/// The beginning of the text, of at most this many octets.
pub(super) fn cut_text(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
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
            (b"a\tb", 9, "a\u{fffd}b"),
            (b"a\x1b[31m\n", 20, "a\u{fffd}[31m\u{fffd}"),
            (b"\xc2\x9b1m", 20, "\u{fffd}1m"),
        ] {
            let short = shorten_text(text, most);
            assert!(short.len() <= most);
            assert_eq!(short, expected, "{text:?}");
        }
    }

    /// What a text was longer before it was cut takes no memory while it waits.
    #[test]
    fn texts_take_no_more_memory_than_they_are_long() {
        for text in [
            &b"\xff".repeat(256)[..],
            b"\t".repeat(256).as_slice(),
            "\u{e9}".repeat(999).as_bytes(),
        ] {
            let short = shorten_text(text, 256);
            assert!(short.capacity() <= 256, "{} of {}", short.capacity(), short.len());
        }
    }
}
