//! The contexts of the hooks as the data plane's `Packet`.
//!
//! The verifier requires a comparison of every access with the packet's end, by pointers that it
//! tracks. Slices would hide that from it.

mod buffer;
mod context;
mod tc;
mod tc_functions;
mod xdp;
mod xdp_functions;

use aya_ebpf::bindings::{
    BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS,
    bpf_fib_lookup as FibQuery,
};
use aya_ebpf::helpers::bpf_fib_lookup;
use lb_common::datapath::{NextHop, Query, Route};
use lb_common::family::Family;
use lb_common::header::Header;

pub use context::{redirect, redirect_into, redirect_resolved};
pub use tc::{Origin, TcPacket, frame_of, is_of_vlan, mark_of_xdp, remove_priority};
pub use xdp::XdpPacket;

/// A context whose packet can be viewed.
trait View {
    fn bounds(&self) -> (usize, usize);

    #[inline(always)]
    fn view<H: Header>(&self, offset: usize) -> Option<&H> {
        // SAFETY: within the packet by the check of `pointer_to`; `Header` has no alignment.
        self.pointer_to::<H>(offset).map(|header| unsafe { &*header })
    }

    #[inline(always)]
    fn view_mut<H: Header>(&mut self, offset: usize) -> Option<&mut H> {
        // SAFETY: as above; the borrow of the context is exclusive.
        self.pointer_to::<H>(offset).map(|header| unsafe { &mut *header })
    }

    /// A pointer to `H` at `offset`, if it fits.
    #[inline(always)]
    fn pointer_to<H: Header>(&self, offset: usize) -> Option<*mut H> {
        let (start, end) = self.bounds();
        let address = start + offset;
        (address + size_of::<H>() <= end).then_some(address as *mut H)
    }
}

/// `offset`, combined with eight bits that are always 0. Neither compiler nor verifier knows that:
/// to them the result is any number below 2^14.
///
/// By addition and a mask: before Linux 6.10 the verifier loses all bounds across other operations
/// on two unknown scalars.
#[inline(always)]
fn blur(offset: usize, below_2_to_24: u32) -> usize {
    let zero = (below_2_to_24 >> 24) as usize;
    (offset + zero * 65) & 0x3fff
}

/// Looks up a route in the kernel's tables.
#[inline(always)]
fn route<F: Family>(context: *mut core::ffi::c_void, device: u32, query: &Query<F>) -> Route {
    /// Addresses are written as words, which the verifier allows only at aligned stack offsets.
    #[repr(align(8))]
    struct Aligned(FibQuery);
    // SAFETY: plain numbers and unions of them, for which zeros are valid.
    let mut aligned: Aligned = unsafe { core::mem::zeroed() };
    let asked = &mut aligned.0;
    asked.family = F::SOCKET_FAMILY;
    asked.l4_protocol = query.protocol;
    asked.ifindex = device;
    asked.__bindgen_anon_1.tot_len = query.length as u16;
    // SAFETY: both unions begin with the address, of either family, in 16 bytes.
    unsafe {
        (&raw mut asked.__bindgen_anon_3).cast::<F::Address>().write(query.from);
        (&raw mut asked.__bindgen_anon_4).cast::<F::Address>().write(query.to);
    }
    // SAFETY: the context is the hook's own, the length that of what is passed.
    let result =
        unsafe { bpf_fib_lookup(context, &raw mut *asked, size_of::<FibQuery>() as i32, 0) };
    match result as u32 {
        BPF_FIB_LKUP_RET_SUCCESS => {
            let next = NextHop { device: asked.ifindex, neighbour: asked.dmac };
            // SAFETY: the kernel has written the route's MTU, as the query has a length.
            let mtu = unsafe { asked.__bindgen_anon_1.mtu_result };
            Route::Known { next, mtu: mtu.into() }
        }
        BPF_FIB_LKUP_RET_NO_NEIGH => Route::NoNeighbour(asked.ifindex),
        BPF_FIB_LKUP_RET_FRAG_NEEDED => {
            // SAFETY: in this case the kernel has written the largest size that fits.
            let mtu = unsafe { asked.__bindgen_anon_1.mtu_result };
            Route::TooBig(u32::from(mtu))
        }
        _ => Route::None,
    }
}
