//! The data plane's functions that the verifier checks separately (`lb_common::datapath::Function`).
//!
//! An exported function with C linkage is a global BPF function: the verifier checks it once, for all callers, and
//! assumes nothing about its parameters, except that a context is one, nor about the number that it returns.

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use aya_ebpf::programs::{TcContext, XdpContext};
use lb_common::branchless::opaque;
use lb_common::datapath::{
    FamilyTables, Function, OFFSETS, PacketFamily, PacketFunction, execute, execute_on,
};
use lb_common::family::{Family, V4, V6};

use crate::packet::{TcPacket, XdpPacket};
use crate::tables::KernelTables;

/// The result of a function, of which the compiler knows which numbers are possible. The verifier does
/// not.
#[inline(always)]
fn hidden(result: u32) -> u32 {
    opaque(u64::from(result)) as u32
}

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

macro_rules! define_packet_functions {
    ($($(#[$about:meta])* $function:ident($xdp4:ident, $xdp6:ident, $tc4:ident, $tc6:ident))*) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $xdp4(context: *mut xdp_md, network: u32) -> u32 {
                xdp_execute::<V4>(PacketFunction::$function, context, network)
            }

            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $xdp6(context: *mut xdp_md, network: u32) -> u32 {
                xdp_execute::<V6>(PacketFunction::$function, context, network)
            }

            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $tc4(context: *mut __sk_buff, network: u32) -> u32 {
                tc_execute::<V4>(PacketFunction::$function, context, network)
            }

            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $tc6(context: *mut __sk_buff, network: u32) -> u32 {
                tc_execute::<V6>(PacketFunction::$function, context, network)
            }
        )*

        /// Runs a function of the family with this EtherType.
        #[inline(always)]
        pub fn xdp_call(
            ether_type: u16,
            function: PacketFunction,
            context: *mut xdp_md,
            network: usize,
        ) -> u32 {
            match (function, ether_type) {
                $((PacketFunction::$function, V4::ETHER_TYPE) => hidden($xdp4(context, network as u32)),)*
                $((PacketFunction::$function, _) => hidden($xdp6(context, network as u32)),)*
            }
        }

        /// Runs a function of the family with this EtherType.
        #[inline(always)]
        pub fn tc_call(
            ether_type: u16,
            function: PacketFunction,
            context: *mut __sk_buff,
            network: usize,
        ) -> u32 {
            match (function, ether_type) {
                $((PacketFunction::$function, V4::ETHER_TYPE) => hidden($tc4(context, network as u32)),)*
                $((PacketFunction::$function, _) => hidden($tc6(context, network as u32)),)*
            }
        }
    };
}

lb_common::for_each_packet_function!(define_packet_functions);

#[inline(always)]
fn xdp_execute<F: PacketFamily>(function: PacketFunction, context: *mut xdp_md, network: u32) -> u32
where
    KernelTables: FamilyTables<F>,
{
    let packet = XdpPacket::new(XdpContext::new(context));
    execute_on::<F, _, _>(function, &packet, &KernelTables, bounded(network))
}

#[inline(always)]
fn tc_execute<F: PacketFamily>(
    function: PacketFunction,
    context: *mut __sk_buff,
    network: u32,
) -> u32
where
    KernelTables: FamilyTables<F>,
{
    let packet = TcPacket::again(TcContext::new(context));
    execute_on::<F, _, _>(function, &packet, &KernelTables, bounded(network))
}

/// The offset of a network header. To the verifier the parameter is any number.
#[inline(always)]
fn bounded(network: u32) -> usize {
    opaque(u64::from(network)) as usize & (OFFSETS - 1)
}
