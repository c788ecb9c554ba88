//! Differences between two packets, for the message of a failed assertion.

use std::ops::Range;

use super::dissect;

const BYTES_IN_A_ROW: usize = 16;
/// With more rows of bytes, the layers explain a difference better.
const MOST_ROWS: usize = 12;

/// Panics with [`explain_difference`] unless the packets are the same, byte for byte.
#[track_caller]
pub fn assert_same_packet(name: &str, expected: &[u8], actual: &[u8]) {
    assert!(
        expected == actual,
        "{name}: not the packet that was expected\n{}",
        explain_difference(expected, actual)
    );
}

/// Both packets layer by layer, the layers that differ with both versions (`-` expected, `+`
/// actual) and carets under the fields, then the bytes that differ. Empty if none do.
pub fn explain_difference(expected: &[u8], actual: &[u8]) -> String {
    if expected == actual {
        return String::new();
    }
    layers(&dissect(expected), &dissect(actual)) + &bytes(expected, actual)
}

fn layers(expected: &str, actual: &str) -> String {
    let mut text = "layers (- expected, + actual):\n".to_owned();
    let mut expected = expected.lines().peekable();
    let mut actual = actual.lines().peekable();
    loop {
        match (expected.peek().copied(), actual.peek().copied()) {
            (None, None) => return text,
            (Some(line), Some(same)) if line == same => {
                text += &format!("    {line}\n");
                expected.next();
                actual.next();
            }
            (Some(line), Some(other)) if layer(line) == layer(other) => {
                text += &format!("  - {line}\n  + {other}\n    {}\n", carets(line, other));
                expected.next();
                actual.next();
            }
            // Only one packet has this layer. If the expected layer follows later, this one is extra.
            (Some(line), Some(extra))
                if actual.clone().any(|later| layer(line) == layer(later)) =>
            {
                text += &format!("  + {extra}\n");
                actual.next();
            }
            (Some(missing), _) => {
                text += &format!("  - {missing}\n");
                expected.next();
            }
            (None, Some(extra)) => {
                text += &format!("  + {extra}\n");
                actual.next();
            }
        }
    }
}

/// The name of a line's layer, with its indentation.
fn layer(line: &str) -> &str {
    let indent = line.len() - line.trim_start().len();
    let name = line.trim_start().split(' ').next().unwrap_or_default();
    &line[..indent + name.len()]
}

/// Carets under the fields of the actual line that are not in the expected line.
fn carets(expected: &str, actual: &str) -> String {
    let expected: Vec<&str> = expected.split(", ").collect();
    let mark = |field: &str| {
        let mark = if expected.contains(&field) { " " } else { "^" };
        mark.repeat(field.chars().count())
    };
    actual.split(", ").map(mark).collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

fn bytes(expected: &[u8], actual: &[u8]) -> String {
    let ranges = differing(expected, actual);
    let mut text = "bytes that differ:".to_owned();
    for range in ranges.iter().take(MOST_ROWS) {
        text += &match range.len() {
            1 => format!(" 0x{:02x}", range.start),
            _ => format!(" 0x{:02x}-0x{:02x}", range.start, range.end - 1),
        };
    }
    text += if ranges.len() > MOST_ROWS { " ...\n" } else { "\n" };
    if expected.len() != actual.len() {
        text += &format!("  {} bytes were expected, there are {}\n", expected.len(), actual.len());
    }

    let mut rows: Vec<usize> = ranges
        .iter()
        .flat_map(|range| range.start / BYTES_IN_A_ROW..=(range.end - 1) / BYTES_IN_A_ROW)
        .collect();
    rows.dedup();
    for row in rows.iter().take(MOST_ROWS) {
        let offset = row * BYTES_IN_A_ROW;
        let changed = |at: usize| expected.get(at) != actual.get(at);
        let marks: String = (offset..offset + BYTES_IN_A_ROW)
            .map(|at| if changed(at) { "^^ " } else { "   " })
            .collect();
        text += &format!("  0x{offset:04x} - {}\n", row_of(expected, offset));
        text +=
            &format!("         + {}\n           {}\n", row_of(actual, offset), marks.trim_end());
    }
    if rows.len() > MOST_ROWS {
        text += &format!("  and {} rows more\n", rows.len() - MOST_ROWS);
    }
    text
}

fn differing(expected: &[u8], actual: &[u8]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for at in (0..expected.len().max(actual.len())).filter(|&at| expected.get(at) != actual.get(at))
    {
        match ranges.last_mut() {
            Some(range) if range.end == at => range.end += 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

fn row_of(bytes: &[u8], offset: usize) -> String {
    let row = bytes.iter().skip(offset).take(BYTES_IN_A_ROW);
    row.map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packets::tcp;

    #[test]
    fn equal_packets_have_no_difference() {
        let packet = tcp("198.51.100.7:40000", "203.0.113.10:80").syn();
        assert_eq!(explain_difference(&packet, &packet), "");
        assert_same_packet("the same", &packet, &packet);
    }

    #[test]
    fn differing_layers_and_fields_and_bytes_are_marked() {
        let expected = tcp("198.51.100.7:40000", "203.0.113.10:80").syn();
        let actual = expected.ttl(63);
        let text = explain_difference(&expected, &actual);
        let lines: Vec<&str> = text.lines().collect();

        assert!(lines[1].starts_with("    Ethernet"), "{text}");
        assert!(lines[2].starts_with("  - IPv4") && lines[2].contains("ttl 64"), "{text}");
        assert!(lines[3].starts_with("  + IPv4") && lines[3].contains("ttl 63"), "{text}");
        assert_eq!(lines[4].find('^'), lines[3].find("ttl 63"), "{text}");
        assert!(lines[5].starts_with("    TCP"), "{text}");
        assert!(text.contains("bytes that differ: 0x16 0x18"), "{text}");
        assert!(text.contains("0x0010 - 00 28 1d 1d 40 00 40 06"), "{text}");
    }

    #[test]
    fn a_layer_that_only_one_packet_has_does_not_mark_the_others() {
        let untagged = tcp("198.51.100.7:40000", "203.0.113.10:80").syn();
        let tagged = untagged.vlan(100);

        let added = explain_difference(&untagged, &tagged);
        assert!(added.contains("  + VLAN"), "{added}");
        assert!(added.contains("\n    IPv4") && added.contains("\n    TCP"), "{added}");
        assert!(added.contains("54 bytes were expected, there are 58"), "{added}");

        let removed = explain_difference(&tagged, &untagged);
        assert!(removed.contains("  - VLAN"), "{removed}");
        assert!(removed.contains("\n    IPv4") && removed.contains("\n    TCP"), "{removed}");
    }

    #[test]
    #[should_panic(expected = "the reply: not the packet that was expected")]
    fn the_assertion_names_its_row() {
        let packet = tcp("198.51.100.7:40000", "203.0.113.10:80").syn();
        assert_same_packet("the reply", &packet, &packet.rst());
    }

    #[test]
    fn packets_of_any_lengths_are_compared() {
        let long = vec![0xff; 1000];
        assert!(explain_difference(&[], &long).contains("and 51 rows more"));
        assert!(explain_difference(&long, &[]).contains("bytes that differ: 0x00-0x3e7"));
    }
}
