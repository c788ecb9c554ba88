//! Calls a function that reads a packet by its name ([`PacketFunction`]).

use super::{decapsulate, fragment, icmp_error};
use crate::datapath::forward::stored;
use crate::datapath::function::PacketFunction;
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::packet::Packet;
use crate::datapath::wire::parse::PacketFamily;

/// Runs a function on the packet, whose network header is at `network`. The caller converts the number
/// to the function's result.
#[inline(always)]
pub fn execute_on<F: PacketFamily, P: Packet, T: FamilyTables<F>>(
    function: PacketFunction,
    packet: &P,
    tables: &T,
    network: usize,
) -> u32 {
    match function {
        PacketFunction::Parse => stored::parse_stored::<F, P, T>(packet, tables, network).number(),
        PacketFunction::Look => {
            fragment::classify_fragment::<F, P, T>(packet, tables, network).number()
        }
        PacketFunction::Recall => {
            u32::from(fragment::recall_fragment_ports::<F, P, T>(packet, tables, network))
        }
        PacketFunction::ReadError => icmp_error::read_error::<F, P, T>(packet, tables, network),
        PacketFunction::JudgeInner => {
            decapsulate::judge_inner::<F, P, T>(packet, tables, network).number()
        }
    }
}
