//! The data plane's functions that the verifier checks separately (`lb_common::datapath::Function`).
//!
//! An exported function with C linkage is a global BPF function: the verifier checks it once, for all callers, and
//! assumes nothing about the number that it returns.

use lb_common::datapath::{Function, execute};
use lb_common::family::{V4, V6};

use crate::tables::KernelTables;

macro_rules! define_functions {
    ($($(#[$about:meta])* $function:ident($v4:ident, $v6:ident))*) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $v4() -> u32 {
                execute::<V4, _>(Function::$function, &KernelTables)
            }

            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $v6() -> u32 {
                execute::<V6, _>(Function::$function, &KernelTables)
            }
        )*

        #[inline(always)]
        pub fn call4(function: Function) -> u32 {
            match function {
                $(Function::$function => $v4(),)*
            }
        }

        #[inline(always)]
        pub fn call6(function: Function) -> u32 {
            match function {
                $(Function::$function => $v6(),)*
            }
        }
    };
}

lb_common::for_each_function!(define_functions);
