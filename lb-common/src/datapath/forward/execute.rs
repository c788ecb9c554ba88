//! Calls a function by its name ([`Function`]).

use super::{begin, snat};
use crate::datapath::function::Function;
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::parse::PacketFamily;

/// Runs a function on the draft. The caller converts the number to the function's result.
#[inline(always)]
pub fn execute<F: PacketFamily, T: FamilyTables<F>>(function: Function, tables: &T) -> u32 {
    match function {
        Function::Begin => begin::begin::<F, T>(tables) as u32,
        Function::BeginIndexed => snat::begin::<F, T>(tables) as u32,
        Function::ChoosePort => snat::choose_port::<F, T>(tables),
        Function::Index => u32::from(snat::index::<F, T>(tables)),
        Function::IsTaken => u32::from(begin::is_taken::<F, T>(tables)),
    }
}
