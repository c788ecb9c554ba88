//! Bodies in chunks (RFC 9112, 7.1), decoded as strictly as hyper does, but for trailers: none of their lines may end with LF
//! alone. Hyper would drop what follows an empty line of that kind.

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::fields::Malformed;

/// Most octets of the extensions of all chunks: nothing else bounds them.
const MOST_EXTENSION_OCTETS: usize = 16 << 10;

/// Bounds of the trailers after a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrailerLimits {
    pub octets: usize,
    pub count: usize,
}

impl Default for TrailerLimits {
    fn default() -> Self {
        Self { octets: 16 << 10, count: 100 }
    }
}

#[derive(Debug, Default)]
pub(crate) struct ChunkDecoder {
    state: ChunkState,
    limits: TrailerLimits,
    /// Of the current chunk, what is still to come.
    rest: u64,
    extension_octets: usize,
    trailers: Vec<u8>,
    trailer_count: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChunkState {
    /// Before the first digit of a size.
    #[default]
    Start,
    Size,
    /// White space after the size.
    SizeSpace,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// At the beginning of a line after the last chunk.
    Line,
    Trailer,
    TrailerLf,
    EndLf,
    End,
}

#[derive(Debug)]
pub(crate) enum Decoded {
    Data(Bytes),
    End(Option<HeaderMap>),
    /// More has to be received.
    Partial,
}

impl ChunkDecoder {
    pub fn new(limits: TrailerLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Takes what can be decoded from the beginning of what was received.
    pub fn decode(&mut self, input: &mut BytesMut) -> Result<Decoded, Malformed> {
        loop {
            if self.state == ChunkState::Data && !input.is_empty() {
                let count = input.len().min(usize::try_from(self.rest).unwrap_or(usize::MAX));
                self.rest -= count as u64;
                if self.rest == 0 {
                    self.state = ChunkState::DataCr;
                }
                return Ok(Decoded::Data(input.split_to(count).freeze()));
            }
            let Some(&octet) = input.first() else { return Ok(Decoded::Partial) };
            input.advance(1);
            self.step(octet)?;
            if self.state == ChunkState::End {
                return self.read_trailers().map(Decoded::End);
            }
        }
    }

    /// One octet that is not data.
    fn step(&mut self, octet: u8) -> Result<(), Malformed> {
        self.state = match (self.state, octet) {
            (ChunkState::Start | ChunkState::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = char::from(octet).to_digit(16).ok_or(Malformed)?;
                let size = self.rest.checked_mul(16).ok_or(Malformed)?;
                self.rest = size + u64::from(digit);
                ChunkState::Size
            }
            (ChunkState::Size | ChunkState::SizeSpace, b'\t' | b' ') => ChunkState::SizeSpace,
            (ChunkState::Size | ChunkState::SizeSpace, b';') => ChunkState::Extension,
            (ChunkState::Size | ChunkState::SizeSpace | ChunkState::Extension, b'\r') => {
                ChunkState::SizeLf
            }
            (ChunkState::Extension, b'\n') => return Err(Malformed),
            (ChunkState::Extension, _) => {
                self.extension_octets += 1;
                if self.extension_octets >= MOST_EXTENSION_OCTETS {
                    return Err(Malformed);
                }
                ChunkState::Extension
            }
            (ChunkState::SizeLf, b'\n') if self.rest == 0 => ChunkState::Line,
            (ChunkState::SizeLf, b'\n') => ChunkState::Data,
            (ChunkState::DataCr, b'\r') => ChunkState::DataLf,
            (ChunkState::DataLf, b'\n') => ChunkState::Start,
            (ChunkState::Line, b'\r') => ChunkState::EndLf,
            (ChunkState::EndLf, b'\n') => ChunkState::End,
            (ChunkState::Line | ChunkState::Trailer, _) => {
                self.trailers.push(octet);
                if self.trailers.len() >= self.limits.octets {
                    return Err(Malformed);
                }
                if octet == b'\r' { ChunkState::TrailerLf } else { ChunkState::Trailer }
            }
            (ChunkState::TrailerLf, b'\n') if self.trailer_count < self.limits.count => {
                self.trailer_count += 1;
                self.trailers.push(octet);
                ChunkState::Line
            }
            _ => return Err(Malformed),
        };
        Ok(())
    }

    fn read_trailers(&mut self) -> Result<Option<HeaderMap>, Malformed> {
        if self.trailers.is_empty() {
            return Ok(None);
        }
        self.trailers.extend_from_slice(b"\r\n");
        // Each line is one trailer: others would be separated by LF alone.
        let mut fields = vec![httparse::EMPTY_HEADER; self.trailer_count];
        let parsed = httparse::parse_headers(&self.trailers, &mut fields).map_err(|_| Malformed)?;
        let httparse::Status::Complete((length, fields)) = parsed else { return Err(Malformed) };
        if length != self.trailers.len() {
            return Err(Malformed);
        }
        let mut trailers = HeaderMap::with_capacity(fields.len());
        for field in fields {
            let name = HeaderName::try_from(field.name).map_err(|_| Malformed)?;
            let value = HeaderValue::from_bytes(field.value).map_err(|_| Malformed)?;
            trailers.append(name, value);
        }
        Ok(Some(trailers))
    }
}
