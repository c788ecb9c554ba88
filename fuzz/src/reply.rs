//! Packets that follow an earlier packet: its reply, or its sender's next packet.

use lb_common::header::protocol::{SCTP, TCP, UDP};

use crate::inspect::{self, ParsedDatagram};
use crate::{Hook, PipelineFate, PipelineOutcome, Reply, checksum};

/// A packet before and after its translation.
#[derive(Clone, Debug)]
pub struct Translated {
    pub hook: Hook,
    pub before: Vec<u8>,
    pub after: Vec<u8>,
    /// The packet left the node without passing through the stack.
    pub sent: bool,
}

impl Translated {
    /// `None` if the packet was not translated, or is too damaged to reply to.
    pub fn of(hook: Hook, before: &[u8], outcome: &PipelineOutcome) -> Option<Self> {
        let (after, fate) = (&outcome.bytes, outcome.fate);
        let kept = matches!(fate, PipelineFate::Passed | PipelineFate::Sent)
            && after.len() == before.len();
        let (there, back) = (parse(before)?, parse(after)?);
        // A packet that goes back to the sender was made by the data plane.
        let is_generated = there.source == back.destination;
        let changed = (there.source, there.destination) != (back.source, back.destination);
        let (before, after) = (before.to_vec(), after.clone());
        (kept && changed && !is_generated).then_some(Self {
            hook,
            before,
            after,
            sent: fate == PipelineFate::Sent,
        })
    }

    /// The next packet, and the hook that it reaches.
    pub fn reply(&self, reply: Reply) -> (Hook, Vec<u8>) {
        if reply.again {
            return (self.hook, with_signal(&self.before, reply));
        }
        let hook = match self.hook {
            // Replies to a packet that bypassed the stack arrive on a device.
            _ if self.sent => Hook::Forward,
            Hook::Forward | Hook::Stack | Hook::Workload => Hook::Reverse,
            Hook::Reverse => Hook::Forward,
        };
        (hook, with_signal(&swap_ends(&self.after), reply))
    }

    /// Whether the translated reply can be predicted. An SCTP checksum depends on the order of the
    /// ports, and is not recomputed if it is wrong or covers bytes that were cut off.
    pub fn can_be_undone(&self) -> bool {
        parse(&self.before)
            .filter(|found| found.protocol == SCTP)
            .is_none_or(|found| found.end <= self.before.len() && found.is_right(&self.before))
    }

    /// What the receiver of the reply must get: a reply to the packet that it sent.
    pub fn expected(&self, reply: Reply) -> Vec<u8> {
        with_signal(&swap_ends(&self.before), reply)
    }
}

fn parse(bytes: &[u8]) -> Option<ParsedDatagram> {
    let found = inspect::parse_frame(bytes).ok()?;
    found.ports(bytes)?;
    found.fragment.is_none().then_some(found)
}

/// The packet with source and destination swapped. Of all checksums, only SCTP's changes.
pub fn swap_ends(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let Some(found) = parse(&bytes) else { return bytes };
    let right = found.is_right(&bytes);
    bytes[..12].rotate_left(6);
    let (addresses, length) =
        if found.v6 { (found.network + 8, 32) } else { (found.network + 12, 8) };
    bytes[addresses..addresses + length].rotate_left(length / 2);
    bytes[found.transport..found.transport + 4].rotate_left(2);
    complete(&mut bytes, right);
    bytes
}

/// The packet with these TCP flags, or the SCTP chunk of the same meaning, and skewed numbers.
fn with_signal(bytes: &[u8], Reply { tcp_flags: flags, skew, .. }: Reply) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let Some(found) = parse(&bytes) else { return bytes };
    let right = found.is_right(&bytes);
    match found.protocol {
        TCP => {
            bytes[found.transport + 13] = flags;
            skew_number(&mut bytes, found.transport + 4, skew);
            skew_number(&mut bytes, found.transport + 8, skew);
        }
        SCTP => {
            // The verification tag.
            skew_number(&mut bytes, found.transport + 4, skew);
            bytes[found.transport + 12] = match flags {
                0x12 => 2,
                0x11 => 7,
                0x14 => 6,
                0x02 => 1,
                0x04 => 14,
                _ => 0,
            }
        }
        _ => {}
    }
    complete(&mut bytes, right);
    bytes
}

fn skew_number(bytes: &mut [u8], at: usize, skew: u32) {
    if let Some(field) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<4>()) {
        *field = u32::from_be_bytes(*field).wrapping_add(skew).to_be_bytes();
    }
}

/// Recomputes the checksum if it was right before; otherwise leaves it.
fn complete(bytes: &mut [u8], was_right: bool) {
    let Some(found) = parse(bytes).filter(|_| was_right) else { return };
    let Some(segment) = bytes.get(found.transport..found.end) else { return };
    let Some(field) = checksum::checksum_field(found.protocol) else { return };
    let none = match (segment.get(field.clone()), found.protocol) {
        // The packet's length field ends it before the checksum.
        (None, _) => true,
        (Some(sum), UDP | SCTP) => sum.iter().all(|&byte| byte == 0),
        _ => false,
    };
    if !none {
        let right =
            checksum::transport_checksum(found.source, found.destination, found.protocol, segment);
        let field = found.transport + field.start..found.transport + field.end;
        bytes[field].copy_from_slice(&right);
    }
}
