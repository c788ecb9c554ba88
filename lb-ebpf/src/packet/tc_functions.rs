//! The functions of `functions.rs` that read a packet, for tc.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use lb_common::datapath::{FamilyTables, PacketFamily, PacketFunction, execute_on};
use lb_common::family::{Family, V4, V6};

use super::tc::TcPacket;
use crate::functions::{bounded, hidden};
use crate::tables::KernelTables;

macro_rules! define_packet_functions {
    ($($(#[$about:meta])* $function:ident($xdp4:ident, $xdp6:ident, $tc4:ident, $tc6:ident))*) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $tc4(context: *mut __sk_buff, network: u32) -> u32 {
                run::<V4>(PacketFunction::$function, context, network)
            }

            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $tc6(context: *mut __sk_buff, network: u32) -> u32 {
                run::<V6>(PacketFunction::$function, context, network)
            }
        )*

        /// Runs a function of the family `F`.
        #[inline(always)]
        pub fn call_tc<F: Family>(
            function: PacketFunction,
            context: *mut __sk_buff,
            network: usize,
        ) -> u32 {
            match (function, F::ETHER_TYPE) {
                $((PacketFunction::$function, V4::ETHER_TYPE) => hidden($tc4(context, network as u32)),)*
                $((PacketFunction::$function, _) => hidden($tc6(context, network as u32)),)*
            }
        }
    };
}

lb_common::for_each_packet_function!(define_packet_functions);

#[inline(always)]
fn run<F: PacketFamily>(function: PacketFunction, context: *mut __sk_buff, network: u32) -> u32
where
    KernelTables: FamilyTables<F>,
{
    let packet = TcPacket::again(TcContext::new(context));
    execute_on::<F, _, _>(function, &packet, &KernelTables, bounded(network))
}
