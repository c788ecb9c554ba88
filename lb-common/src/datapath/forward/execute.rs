//! Calls a function by its name ([`Function`]).

use super::{begin, carry, lookup, owners, quoted, refused, snat, untracked};
use crate::datapath::function::Function;
use crate::datapath::tables::FamilyTables;
use crate::datapath::wire::parse::PacketFamily;
use crate::layout::Direction;

/// Runs a function on the draft. The caller converts the number to the function's result.
#[inline(always)]
pub fn execute_function<F: PacketFamily, T: FamilyTables<F>>(
    function: Function,
    tables: &T,
) -> u32 {
    match function {
        Function::Begin => begin::begin_in_client_buckets::<false, F, T>(tables).number(),
        Function::BeginAlone => begin::begin_in_client_buckets::<true, F, T>(tables).number(),
        Function::BeginIndexed => snat::begin_indexed::<F, T>(tables).number(),
        Function::ChoosePort => snat::choose_port::<F, T>(tables),
        Function::TryPort => snat::try_port::<F, T>(tables),
        Function::Index => u32::from(snat::store_reply_location::<F, T>(tables)),
        Function::IsTaken => u32::from(begin::are_replies_taken::<F, T>(tables)),
        Function::IsTakenInBucket => u32::from(begin::is_taken_in_bucket::<F, T>(tables)),
        Function::FindHashed => carry::find_hashed::<F, T>(tables).number(),
        Function::FindInBucket => {
            carry::find_in_bucket::<F, T>(tables, Direction::Forward).number()
        }
        Function::FindLeavingInBucket => {
            carry::find_in_bucket::<F, T>(tables, Direction::Reverse).number()
        }
        Function::FindUntracked => u32::from(untracked::find_untracked_reply::<F, T>(tables)),
        Function::NoteReply => u32::from(carry::note_drafted_reply::<F, T>(tables)),
        Function::EndShadowed => u32::from(lookup::end_shadowed::<F, T>(tables)),
        Function::FollowFound => carry::follow_found::<F, T>(tables).number(),
        Function::FindReply => carry::find_drafted_reply::<F, T>(tables).number(),
        Function::IsKnown => u32::from(carry::is_known::<F, T>(tables)),
        Function::FindArriving => carry::find_arriving::<F, T>(tables).number(),
        Function::ChooseForError => u32::from(quoted::choose_quoted_backend::<F, T>(tables)),
        Function::FindOwner => owners::search_owners::<F, T>(tables),
        Function::ExamineOwner => owners::examine_owner::<F, T>(tables),
        Function::Redispatch => refused::redispatch_flow::<F, T>(tables),
    }
}
