//! Messages of HTTP/1.1 as octets: what connections to clients and to endpoints share.

mod chunked;
mod fields;
mod framing;
mod output;
mod read_buffer;

pub(crate) use chunked::TrailerLimits;
pub(crate) use fields::{FieldRange, Malformed, ends_with_chunked, write_field};
pub(crate) use framing::{Framing, WrongLength};
pub(crate) use output::Output;
pub(crate) use read_buffer::{ReadBuffer, Reading};
