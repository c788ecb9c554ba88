//! The functions of `functions.rs` that read a packet, for XDP.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::programs::XdpContext;
use lb_common::datapath::{FamilyTables, PacketFamily, PacketFunction, execute_on};
use lb_common::family::{Family, V4, V6};

use super::xdp::XdpPacket;
use crate::functions::{bounded, hidden};
use crate::tables::KernelTables;

macro_rules! define_packet_functions {
    ($($(#[$about:meta])* $function:ident($xdp4:ident, $xdp6:ident, $tc4:ident, $tc6:ident))*) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $xdp4(context: *mut xdp_md, network: u32) -> u32 {
                run::<V4>(PacketFunction::$function, context, network)
            }

            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $xdp6(context: *mut xdp_md, network: u32) -> u32 {
                run::<V6>(PacketFunction::$function, context, network)
            }
        )*

        /// Runs a function of the family `F`.
        #[inline(always)]
        pub fn call_xdp<F: Family>(
            function: PacketFunction,
            context: *mut xdp_md,
            network: usize,
        ) -> u32 {
            match (function, F::ETHER_TYPE) {
                $((PacketFunction::$function, V4::ETHER_TYPE) => hidden($xdp4(context, network as u32)),)*
                $((PacketFunction::$function, _) => hidden($xdp6(context, network as u32)),)*
            }
        }
    };
}

lb_common::for_each_packet_function!(define_packet_functions);

#[inline(always)]
fn run<F: PacketFamily>(function: PacketFunction, context: *mut xdp_md, network: u32) -> u32
where
    KernelTables: FamilyTables<F>,
{
    let packet = XdpPacket::new(XdpContext::new(context));
    execute_on::<F, _, _>(function, &packet, &KernelTables, bounded(network))
}
