//! Splits the body of a watch into lines as it arrives. Pure.

use axum::body::Bytes;

use super::items::MAX_ITEM;

#[derive(Debug, Default)]
pub struct Lines {
    /// The beginning of a line that is not complete.
    line: Vec<u8>,
}

impl Lines {
    /// Takes from `bytes` what belongs to the next line; returns the line if it is complete. What
    /// remains in `bytes` belongs to later lines.
    pub fn next(&mut self, bytes: &mut Bytes) -> Result<Option<Vec<u8>>, String> {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = bytes.split_to(end.map_or(bytes.len(), |end| end + 1));
        if self.line.len() + part.len() > MAX_ITEM {
            return Err(format!("an event of the watch is larger than {} KiB", MAX_ITEM >> 10));
        }
        self.line.extend_from_slice(&part);
        Ok(end.map(|_| std::mem::take(&mut self.line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(body: &[u8], piece: usize) -> Vec<Vec<u8>> {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for bytes in body.chunks(piece) {
            let mut bytes = Bytes::copy_from_slice(bytes);
            while !bytes.is_empty() {
                found.extend(lines.next(&mut bytes).unwrap());
            }
        }
        found
    }

    #[test]
    fn lines_are_found_wherever_the_body_is_cut() {
        let body = b"{\"a\": 1}\n\n{\"b\": \"\\n\"}\r\n{\"breaks off";
        for piece in 1..=body.len() {
            let expected: [&[u8]; 3] = [b"{\"a\": 1}\n", b"\n", b"{\"b\": \"\\n\"}\r\n"];
            assert_eq!(split(body, piece), expected);
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut lines = Lines::default();
        let mut push = || lines.next(&mut Bytes::from(vec![b'a'; 1 << 20]));
        let error = (0..=MAX_ITEM >> 20).find_map(|_| push().err()).expect("a limit");
        assert!(error.contains("is larger than 16384 KiB"), "{error}");
    }
}
