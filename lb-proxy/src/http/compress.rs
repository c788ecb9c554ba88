//! Compresses the body of a response as it comes.
//!
//! Invariant: what the endpoint has sent does not wait for more: when it pauses, all of it goes to the client.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

pub(crate) struct Compressor {
    encoder: GzEncoder<Vec<u8>>,
    /// Octets were written that may still be in the encoder.
    has_pending: bool,
}

/// Output that is sent before the endpoint pauses.
const ENOUGH: usize = 16 << 10;
/// The fastest one, as ingress-nginx has it: each further step costs more than it saves.
const LEVEL: Compression = Compression::fast();

impl Compressor {
    pub fn new() -> Self {
        Self { encoder: GzEncoder::new(Vec::new(), LEVEL), has_pending: false }
    }

    /// Takes octets in, and returns some when there are enough.
    pub fn write(&mut self, octets: &[u8]) -> Option<Bytes> {
        // Writing to memory does not fail.
        let _ = self.encoder.write_all(octets);
        self.has_pending = true;
        (self.encoder.get_ref().len() >= ENOUGH).then(|| self.take())
    }

    /// All that was taken in and not returned.
    pub fn flush(&mut self) -> Option<Bytes> {
        if !std::mem::take(&mut self.has_pending) {
            return None;
        }
        let _ = self.encoder.flush();
        Some(self.take())
    }

    /// The end.
    pub fn finish(&mut self) -> Bytes {
        let _ = self.encoder.try_finish();
        self.take()
    }

    fn take(&mut self) -> Bytes {
        Bytes::from(std::mem::take(self.encoder.get_mut()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn what_was_written_comes_out_when_it_is_flushed() {
        let mut compressor = Compressor::new();
        assert_eq!(compressor.flush(), None);
        let mut all = Vec::new();
        for part in ["one ", "two ", "three"] {
            assert_eq!(compressor.write(part.as_bytes()), None);
            all.extend(compressor.flush().unwrap());
            let mut text = vec![0; 64];
            let count = flate2::read::MultiGzDecoder::new(&all[..]).read(&mut text).unwrap();
            assert!(String::from_utf8_lossy(&text[..count]).starts_with("one "));
        }
        all.extend(compressor.finish());
        let mut text = String::new();
        flate2::read::GzDecoder::new(&all[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, "one two three");
    }
}
