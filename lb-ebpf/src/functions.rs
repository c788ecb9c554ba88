//! The data plane's functions that the verifier checks separately (`lb_common::datapath::Function`).
//!
//! An exported function with C linkage is a global BPF function: the verifier checks it once, for all callers, and
//! assumes nothing about its parameters, except that a context is one, nor about the number that it returns.

use lb_common::datapath::{Function, OFFSETS, execute_function};
use lb_common::family::{V4, V6};
use lb_common::verifier::opaque;

use crate::tables::KernelTables;

/// The result of a function, of which the compiler knows which numbers are possible. The verifier does
/// not.
#[inline(always)]
pub fn hidden(result: u32) -> u32 {
    opaque(u64::from(result)) as u32
}

macro_rules! define_functions {
    ($($(#[$about:meta])* $function:ident($v4:ident, $v6:ident))*) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $v4() -> u32 {
                execute_function::<V4, _>(Function::$function, &KernelTables)
            }

            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $v6() -> u32 {
                execute_function::<V6, _>(Function::$function, &KernelTables)
            }
        )*

        #[inline(always)]
        pub fn call4(function: Function) -> u32 {
            match function {
                $(Function::$function => hidden($v4()),)*
            }
        }

        #[inline(always)]
        pub fn call6(function: Function) -> u32 {
            match function {
                $(Function::$function => hidden($v6()),)*
            }
        }
    };
}

lb_common::for_each_function!(define_functions);

/// The offset of a network header. To the verifier the parameter is any number.
#[inline(always)]
pub fn bounded(network: u32) -> usize {
    opaque(u64::from(network)) as usize & (OFFSETS - 1)
}
