//! How the end of a body is marked for its receiver (RFC 9112, 6).

use bytes::Bytes;
use http::{HeaderMap, HeaderName};

use super::fields::write_trailers;
use super::output::Output;

#[derive(Debug)]
pub(crate) enum Framing {
    /// This many octets are still to come.
    Length(u64),
    /// In chunks. These trailers were announced; others are left out.
    Chunked(Vec<HeaderName>),
    /// By the end of the connection: only for receivers of HTTP/1.0.
    Closed,
}

/// The body has other octets than its head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrongLength;

impl Framing {
    /// Adds a part of the body. Whether that was all of it.
    pub fn put_data(
        &mut self,
        data: Bytes,
        is_last: bool,
        output: &mut Output,
    ) -> Result<bool, WrongLength> {
        match self {
            Self::Length(rest) => {
                *rest = rest.checked_sub(data.len() as u64).ok_or(WrongLength)?;
                output.put_data(data, b"");
                return Ok(is_last && *rest == 0);
            }
            Self::Chunked(_) if data.is_empty() => {
                if is_last {
                    output.put_data(data, b"0\r\n\r\n");
                }
            }
            Self::Chunked(_) => {
                output.put_chunk_size(data.len());
                output.put_data(data, if is_last { b"\r\n0\r\n\r\n" } else { b"\r\n" });
            }
            Self::Closed => output.put_data(data, b""),
        }
        Ok(is_last)
    }

    /// Marks the end of a body whose last part did not.
    pub fn put_end(
        &self,
        trailers: Option<&HeaderMap>,
        output: &mut Output,
    ) -> Result<(), WrongLength> {
        match self {
            Self::Length(0) | Self::Closed => Ok(()),
            Self::Length(_) => Err(WrongLength),
            Self::Chunked(announced) => {
                output.text.extend_from_slice(b"0\r\n");
                if let Some(trailers) = trailers {
                    write_trailers(trailers, announced, &mut output.text);
                }
                output.text.extend_from_slice(b"\r\n");
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a peer that takes nothing would have all of a body buffered.
    #[test]
    fn small_parts_are_not_gathered_without_end() {
        let mut output = Output::default();
        let mut framing = Framing::Chunked(Vec::new());
        let mut count = 0;
        while output.has_room() {
            framing.put_data(Bytes::from_static(&[b'x'; 500]), false, &mut output).unwrap();
            count += 1;
        }
        assert!((2..20).contains(&count) && output.text.len() < 10 << 10);
        let mut output = Output::default();
        framing.put_data(Bytes::from(vec![b'x'; 5_000]), false, &mut output).unwrap();
        assert!(!output.has_room());
    }

    #[test]
    fn a_body_has_the_length_that_its_head_states() {
        let mut output = Output::default();
        let part = || Bytes::from_static(b"abc");
        let mut framing = Framing::Length(5);
        assert_eq!(framing.put_data(part(), false, &mut output), Ok(false));
        assert_eq!(framing.put_end(None, &mut output), Err(WrongLength));
        assert_eq!(framing.put_data(part(), false, &mut output), Err(WrongLength));
        assert_eq!(output.text, b"abc");
    }
}
