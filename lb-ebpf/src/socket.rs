//! Hooks for processes of the node itself. `lb_common::datapath::socket` decides where they
//! connect.
//!
//! The programs are attached to the root cgroup, so they run for every process of the node, also in
//! pods. Pods are recognised by their network namespace, and left alone.

use core::mem::transmute;

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::bpf_sock;
use aya_ebpf::helpers::{bpf_get_netns_cookie, bpf_get_socket_cookie, bpf_set_retval};
use aya_ebpf::macros::{cgroup_sock, cgroup_sock_addr};
use aya_ebpf::programs::{SockAddrContext, SockContext};
use lb_common::datapath::socket::{
    Socket, SocketTables, SocketVerdict, connect_socket, is_served, peer_name, release_socket,
    send_from_socket, source_for_socket,
};
use lb_common::datapath::{End, PacketFamily};
use lb_common::family::{Address4, Address6, Family, V4, V6};
use lb_common::layout::{Host, SocketEnd, SocketFlow};

use crate::maps::{CONNECTED4, CONNECTED6, HOST, UNCONNECTED4, UNCONNECTED6};
use crate::tables::KernelTables;

const GO_ON: i32 = 1;
const STOP: i32 = 0;

const ECONNREFUSED: i32 = 111;
const EHOSTUNREACH: i32 = 113;

#[cgroup_sock_addr(connect4)]
pub fn connect4(context: SockAddrContext) -> i32 {
    dial::<V4>(&context, connect_socket::<V4, _>)
}

#[cgroup_sock_addr(connect6)]
pub fn connect6(context: SockAddrContext) -> i32 {
    if is_mapped(&context) {
        dial::<Mapped>(&context, connect_socket::<V4, _>)
    } else {
        dial::<V6>(&context, connect_socket::<V6, _>)
    }
}

#[cgroup_sock_addr(sendmsg4)]
pub fn sendmsg4(context: SockAddrContext) -> i32 {
    dial::<V4>(&context, send_from_socket::<V4, _>)
}

/// Datagrams to IPv4-mapped addresses go to [`sendmsg4`].
#[cgroup_sock_addr(sendmsg6)]
pub fn sendmsg6(context: SockAddrContext) -> i32 {
    dial::<V6>(&context, send_from_socket::<V6, _>)
}

#[cgroup_sock_addr(recvmsg4)]
pub fn recvmsg4(context: SockAddrContext) -> i32 {
    name::<V4>(&context, source_for_socket::<V4, _>)
}

#[cgroup_sock_addr(recvmsg6)]
pub fn recvmsg6(context: SockAddrContext) -> i32 {
    if is_mapped(&context) {
        name::<Mapped>(&context, source_for_socket::<V4, _>)
    } else {
        name::<V6>(&context, source_for_socket::<V6, _>)
    }
}

#[cgroup_sock_addr(getpeername4)]
pub fn getpeername4(context: SockAddrContext) -> i32 {
    name::<V4>(&context, peer_name::<V4, _>)
}

#[cgroup_sock_addr(getpeername6)]
pub fn getpeername6(context: SockAddrContext) -> i32 {
    if is_mapped(&context) {
        name::<Mapped>(&context, peer_name::<V4, _>)
    } else {
        name::<V6>(&context, peer_name::<V6, _>)
    }
}

/// The socket is closed.
#[cgroup_sock(sock_release)]
pub fn sock_release(context: SockContext) -> i32 {
    let socket: *mut bpf_sock = context.sock;
    // SAFETY: the context is the one this program was called with.
    let (namespace, cookie, family) = unsafe {
        (
            bpf_get_netns_cookie(socket.cast()),
            bpf_get_socket_cookie(socket.cast()),
            (*socket).family,
        )
    };
    if is_own(namespace) {
        // A socket of IPv6 may have been connected to a mapped address.
        release_socket::<V4, _>(&KernelTables, cookie);
        if family == AF_INET6 {
            release_socket::<V6, _>(&KernelTables, cookie);
        }
    }
    GO_ON
}

const AF_INET6: u32 = 10;

/// The state of a connected socket, also of UDP.
const ESTABLISHED: u32 = 1;

/// How an address and port are stored in a context.
trait Form {
    type Family: PacketFamily;
    fn read(context: &SockAddrContext) -> End<<Self::Family as Family>::Address>;
    fn write(context: &SockAddrContext, end: End<<Self::Family as Family>::Address>);
}

/// An IPv4 address of an IPv6 socket: `::ffff:192.0.2.1`.
struct Mapped;

impl Form for V4 {
    type Family = V4;

    #[inline(always)]
    fn read(context: &SockAddrContext) -> End<Address4> {
        // SAFETY: the context is the one this program was called with. The same holds below.
        let address = unsafe { (*context.sock_addr).user_ip4 };
        End { address: Address4::from(address.to_ne_bytes()), port: port(context) }
    }

    #[inline(always)]
    fn write(context: &SockAddrContext, end: End<Address4>) {
        // SAFETY: as above.
        unsafe { (*context.sock_addr).user_ip4 = u32::from_ne_bytes(end.address.octets) };
        set_port(context, end.port);
    }
}

impl Form for V6 {
    type Family = V6;

    #[inline(always)]
    fn read(context: &SockAddrContext) -> End<Address6> {
        // SAFETY: octets in the memory order of the words.
        let octets = unsafe { transmute::<[u32; 4], [u8; 16]>(words(context)) };
        End { address: Address6::from(octets), port: port(context) }
    }

    #[inline(always)]
    fn write(context: &SockAddrContext, end: End<Address6>) {
        // SAFETY: as above.
        let words = unsafe { transmute::<[u8; 16], [u32; 4]>(end.address.octets) };
        // Volatile, here and when reading: the verifier wants whole words at fixed offsets of the
        // context, and no copying of octets.
        // SAFETY: the context is the one this program was called with.
        unsafe {
            let address = &raw mut (*context.sock_addr).user_ip6;
            (&raw mut (*address)[0]).write_volatile(words[0]);
            (&raw mut (*address)[1]).write_volatile(words[1]);
            (&raw mut (*address)[2]).write_volatile(words[2]);
            (&raw mut (*address)[3]).write_volatile(words[3]);
        }
        set_port(context, end.port);
    }
}

impl Form for Mapped {
    type Family = V4;

    #[inline(always)]
    fn read(context: &SockAddrContext) -> End<Address4> {
        let [_, _, _, address] = words(context);
        End { address: Address4::from(address.to_ne_bytes()), port: port(context) }
    }

    #[inline(always)]
    fn write(context: &SockAddrContext, end: End<Address4>) {
        // SAFETY: as above.
        unsafe { (*context.sock_addr).user_ip6[3] = u32::from_ne_bytes(end.address.octets) };
        set_port(context, end.port);
    }
}

#[inline(always)]
fn is_mapped(context: &SockAddrContext) -> bool {
    let [first, second, third, _] = words(context);
    first == 0 && second == 0 && third == 0xffff_u32.to_be()
}

#[inline(always)]
fn words(context: &SockAddrContext) -> [u32; 4] {
    // SAFETY: the context is the one this program was called with.
    unsafe {
        let address = &raw const (*context.sock_addr).user_ip6;
        [
            (&raw const (*address)[0]).read_volatile(),
            (&raw const (*address)[1]).read_volatile(),
            (&raw const (*address)[2]).read_volatile(),
            (&raw const (*address)[3]).read_volatile(),
        ]
    }
}

#[inline(always)]
fn port(context: &SockAddrContext) -> u16 {
    // SAFETY: as above.
    u16::from_be(unsafe { (*context.sock_addr).user_port } as u16)
}

#[inline(always)]
fn set_port(context: &SockAddrContext, port: u16) {
    // SAFETY: as above.
    unsafe { (*context.sock_addr).user_port = u32::from(port.to_be()) };
}

/// A process connects, or sends a datagram: redirects, allows or refuses it.
#[inline(always)]
fn dial<F: Form>(
    context: &SockAddrContext,
    decide: impl FnOnce(
        &KernelTables,
        Socket,
        End<<F::Family as Family>::Address>,
    ) -> SocketVerdict<<F::Family as Family>::Address>,
) -> i32 {
    let Some(socket) = socket(context) else { return GO_ON };
    match decide(&KernelTables, socket, F::read(context)) {
        SocketVerdict::Pass => GO_ON,
        SocketVerdict::Translate(end) => {
            F::write(context, end);
            GO_ON
        }
        SocketVerdict::Refuse(_) => fail(ECONNREFUSED),
        SocketVerdict::Drop(_) => fail(EHOSTUNREACH),
    }
}

/// A process asks for the peer's address: reports the one that it connected to.
#[inline(always)]
fn name<F: Form>(
    context: &SockAddrContext,
    destination: impl FnOnce(
        &KernelTables,
        Socket,
        End<<F::Family as Family>::Address>,
    ) -> Option<End<<F::Family as Family>::Address>>,
) -> i32 {
    if let Some(socket) = socket(context)
        && let Some(end) = destination(&KernelTables, socket, F::read(context))
    {
        F::write(context, end);
    }
    GO_ON
}

/// Sets the error of the system call, instead of EPERM.
#[inline(always)]
fn fail(error: i32) -> i32 {
    // SAFETY: the helper only stores the number.
    unsafe { bpf_set_retval(-error) };
    STOP
}

/// The socket, if it belongs to the node's own network namespace.
#[inline(always)]
fn socket(context: &SockAddrContext) -> Option<Socket> {
    // SAFETY: the context is the one this program was called with.
    let protocol = unsafe { (*context.sock_addr).protocol } as u8;
    if !is_served(protocol) {
        return None;
    }
    // SAFETY: as above.
    if !is_own(unsafe { bpf_get_netns_cookie(context.as_ptr()) }) {
        return None;
    }
    // SAFETY: as above.
    let cookie = unsafe { bpf_get_socket_cookie(context.as_ptr()) };
    // SAFETY: as above; every context has its socket.
    let state = unsafe { (*(*context.sock_addr).__bindgen_anon_1.sk).state };
    Some(Socket { cookie, protocol, connected: state == ESTABLISHED })
}

#[inline(always)]
fn is_own(namespace: u64) -> bool {
    HOST.get(0).is_some_and(|host| host.network_namespace == namespace)
}

/// The tables of both families. A macro, because statics cannot be selected by type.
macro_rules! socket_tables {
    ($family:ty, $address:ty, $own:ident, $loopback:expr, $connected:ident, $unconnected:ident) => {
        impl SocketTables<$family> for KernelTables {
            #[inline(always)]
            fn own_address(&self) -> $address {
                HOST.get(0).map_or_else(Default::default, |host: &Host| host.$own)
            }

            #[inline(always)]
            fn opens_loopback(&self) -> bool {
                HOST.get(0).is_some_and(|host: &Host| host.loopback & $loopback != 0)
            }

            #[inline(always)]
            fn connected(&self, cookie: u64) -> Option<SocketFlow<$family>> {
                // SAFETY: the map may reuse an element for another key while it is copied. Any
                // mixture of integers is a valid flow; whether it is the right one is checked by
                // its addresses and ports.
                unsafe { $connected.get(&cookie).copied() }
            }

            #[inline(always)]
            fn set_connected(&self, cookie: u64, flow: &SocketFlow<$family>) -> bool {
                $connected.insert(&cookie, flow, 0).is_ok()
            }

            #[inline(always)]
            fn remove_connected(&self, cookie: u64) {
                // Usually there is no entry.
                let _ = $connected.remove(&cookie);
            }

            #[inline(always)]
            fn unconnected(&self, end: &SocketEnd<$family>) -> Option<SocketFlow<$family>> {
                // SAFETY: as above.
                unsafe { $unconnected.get(end).copied() }
            }

            #[inline(always)]
            fn set_unconnected(
                &self,
                end: &SocketEnd<$family>,
                flow: &SocketFlow<$family>,
            ) -> bool {
                $unconnected.insert(end, flow, 0).is_ok()
            }

            #[inline(always)]
            fn remove_unconnected(&self, end: &SocketEnd<$family>) {
                let _ = $unconnected.remove(end);
            }
        }
    };
}

socket_tables!(V4, Address4, address4, Host::LOOPBACK4, CONNECTED4, UNCONNECTED4);
socket_tables!(V6, Address6, address6, Host::LOOPBACK6, CONNECTED6, UNCONNECTED6);
