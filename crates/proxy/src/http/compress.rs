//! Compresses the body of a response as it comes.
//!
//! Invariant: what the endpoint has sent does not wait for more: when it pauses, all of it goes to the client.

use std::io::Write;

use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use lb_http::compress::Coding;

pub(crate) struct Compressor {
    encoder: Encoder,
    /// Octets were written that may still be in the encoder.
    has_pending: bool,
}

enum Encoder {
    Gzip(Box<GzEncoder<Vec<u8>>>),
    /// `None`: it has ended.
    Brotli(Option<Box<CompressorWriter<Vec<u8>>>>),
}

/// Output that is sent before the endpoint pauses.
const ENOUGH: usize = 16 << 10;
/// The fastest one, as ingress-nginx has it: each further step costs more than it saves.
const GZIP_LEVEL: Compression = Compression::fast();
/// A response takes about twice the time of gzip and half a MiB, a third more than with gzip. Higher levels cost more
/// than they save.
const BROTLI_LEVEL: i32 = 2;
/// The logarithm of the window, which the encoder keeps: 64 KiB; gzip has 32.
const BROTLI_WINDOW: i32 = 16;
/// Input that is gathered before the encoder gets it.
const BROTLI_BUFFER: usize = 4 << 10;

impl Encoder {
    fn new(coding: Coding) -> Self {
        match coding {
            Coding::Gzip => Self::Gzip(Box::new(GzEncoder::new(Vec::new(), GZIP_LEVEL))),
            Coding::Brotli => {
                let parameters = BrotliEncoderParams {
                    quality: BROTLI_LEVEL,
                    lgwin: BROTLI_WINDOW,
                    ..BrotliEncoderParams::default()
                };
                let encoder = CompressorWriter::with_params(Vec::new(), BROTLI_BUFFER, &parameters);
                Self::Brotli(Some(Box::new(encoder)))
            }
        }
    }

    fn write_all(&mut self, octets: &[u8]) {
        // Writing to memory does not fail.
        let _ = match self {
            Self::Gzip(encoder) => encoder.write_all(octets),
            Self::Brotli(Some(encoder)) => encoder.write_all(octets),
            Self::Brotli(None) => Ok(()),
        };
    }

    fn flush(&mut self) {
        let _ = match self {
            Self::Gzip(encoder) => encoder.flush(),
            Self::Brotli(Some(encoder)) => encoder.flush(),
            Self::Brotli(None) => Ok(()),
        };
    }

    /// Octets that are ready.
    fn output(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            Self::Gzip(encoder) => Some(encoder.get_mut()),
            Self::Brotli(encoder) => encoder.as_mut().map(|encoder| encoder.get_mut()),
        }
    }

    /// All octets that were not taken.
    fn finish(&mut self) -> Vec<u8> {
        match self {
            Self::Gzip(encoder) => {
                let _ = encoder.try_finish();
                std::mem::take(encoder.get_mut())
            }
            Self::Brotli(encoder) => {
                encoder.take().map(|encoder| encoder.into_inner()).unwrap_or_default()
            }
        }
    }
}

impl Compressor {
    pub fn new(coding: Coding) -> Self {
        Self { encoder: Encoder::new(coding), has_pending: false }
    }

    /// Takes octets in, and returns some when there are enough.
    pub fn write(&mut self, octets: &[u8]) -> Option<Bytes> {
        self.encoder.write_all(octets);
        self.has_pending = true;
        let output = self.encoder.output().filter(|output| output.len() >= ENOUGH)?;
        Some(Bytes::from(std::mem::take(output)))
    }

    /// All that was taken in and not returned.
    pub fn flush(&mut self) -> Option<Bytes> {
        if !std::mem::take(&mut self.has_pending) {
            return None;
        }
        self.encoder.flush();
        self.encoder.output().map(|output| Bytes::from(std::mem::take(output)))
    }

    /// The end.
    pub fn finish(&mut self) -> Bytes {
        Bytes::from(self.encoder.finish())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// As much as can be read.
    fn plain(coding: Coding, octets: &[u8], most: usize) -> String {
        let mut decoder: Box<dyn Read> = match coding {
            Coding::Gzip => Box::new(flate2::read::MultiGzDecoder::new(octets)),
            Coding::Brotli => Box::new(brotli::Decompressor::new(octets, 4096)),
        };
        let mut text = vec![0; most];
        let mut length = 0;
        while length < most {
            match decoder.read(&mut text[length..]) {
                Ok(0) | Err(_) => break,
                Ok(count) => length += count,
            }
        }
        String::from_utf8_lossy(&text[..length]).into_owned()
    }

    #[test]
    fn what_was_written_comes_out_when_it_is_flushed() {
        for coding in [Coding::Gzip, Coding::Brotli] {
            let mut compressor = Compressor::new(coding);
            assert_eq!(compressor.flush(), None);
            let (mut all, mut written) = (Vec::new(), String::new());
            for part in ["one ", "two ", "three"] {
                assert_eq!(compressor.write(part.as_bytes()), None);
                written += part;
                all.extend(compressor.flush().unwrap());
                assert_eq!(plain(coding, &all, written.len()), written);
            }
            all.extend(compressor.finish());
            assert_eq!(plain(coding, &all, 100), "one two three");
            assert!(compressor.finish().len() < 20);
        }
    }

    /// The encoder holds no more than its window and a part of the output, however long a body is.
    #[test]
    fn output_comes_before_the_end() {
        for coding in [Coding::Gzip, Coding::Brotli] {
            let mut compressor = Compressor::new(coding);
            let mut state = 1_u32;
            let mut all = Vec::new();
            let mut written = 0;
            for _ in 0..256 {
                // Hardly compressible.
                let part: Vec<u8> = (0..4096)
                    .map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        b'a' + (state >> 24) as u8 % 16
                    })
                    .collect();
                written += part.len();
                if let Some(octets) = compressor.write(&part) {
                    assert!(octets.len() < 256 << 10);
                    all.extend(octets);
                }
            }
            let before_the_end = all.len();
            all.extend(compressor.finish());
            assert!(all.len() - before_the_end < 256 << 10, "{coding:?}: {}", all.len());
            assert_eq!(plain(coding, &all, written + 1).len(), written, "{coding:?}");
        }
    }
}
