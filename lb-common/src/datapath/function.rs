//! Parts of stages that the verifier checks separately, as global BPF functions.
//!
//! The verifier follows inlined code and static functions once for each state in which they are
//! reached, but checks a global function only once, for any state. So code that many paths of the
//! less frequent stages reach is a global function, and the programs load faster. These functions
//! have no parameters and return a number: they read the draft, and store all other results in it.

/// Passes the list of functions to a macro, with the names of the kernel's functions for IPv4 and
/// IPv6.
#[macro_export]
macro_rules! for_each_function {
    ($callback:ident) => {
        $callback! {
            /// Stores the drafted flow in the buckets of its client's address and port.
            Begin(begin4, begin6)
            /// Stores the drafted flow, which is found by the reply index.
            BeginIndexed(begin_indexed4, begin_indexed6)
            /// Chooses an SNAT port that the drafted flow may try, as a last resort that of a flow that it evicts.
            ChoosePort(choose_port4, choose_port6)
            /// Stores the drafted flow's location in the reply index.
            Index(index4, index6)
            /// Whether replies to the drafted flow would be mistaken for those of another.
            IsTaken(is_taken4, is_taken6)
        }
    };
}

macro_rules! define_functions {
    ($($(#[$about:meta])* $function:ident($v4:ident, $v6:ident))*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Function {
            $($(#[$about])* $function,)*
        }
    };
}

for_each_function!(define_functions);
