//! Decides which sockets are connected to a backend that is gone, or that has left their Service. Pure.

use std::net::{IpAddr, SocketAddr};

use lb_common::datapath::{End, PacketFamily};
use lb_common::family::{V4, V6};
use lb_common::header::protocol::UDP;
use lb_common::layout::{Backend, SocketFlow};
use lb_plan::Datagrams;

/// A connected socket of a process on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    pub cookie: u64,
    pub remote: SocketAddr,
}

/// Read access to the maps of one family.
pub(crate) trait SocketView<F: PacketFamily> {
    fn flow(&self, cookie: u64) -> Option<SocketFlow<F>>;
    fn backend(&self, index: u32) -> Option<Backend<F::Address>>;
}

/// Whether the socket was connected to a backend by the programs, is still connected to it, and the
/// backend is gone, or it sends datagrams that may not stay. A draining backend is not gone: it keeps
/// its connections.
pub fn is_stale(
    socket: &Connected,
    datagrams: &Datagrams,
    held: &(impl SocketView<V4> + SocketView<V6>),
) -> bool {
    let port = socket.remote.port();
    match socket.remote.ip().to_canonical() {
        IpAddr::V4(address) => is_led_astray::<V4>(socket, address.into(), port, datagrams, held),
        IpAddr::V6(address) => is_led_astray::<V6>(socket, address.into(), port, datagrams, held),
    }
}

fn is_led_astray<F: PacketFamily>(
    socket: &Connected,
    address: F::Address,
    port: u16,
    datagrams: &Datagrams,
    held: &impl SocketView<F>,
) -> bool {
    let Some(flow) = held.flow(socket.cookie) else { return false };
    // Otherwise the socket was connected elsewhere later, bypassing Services.
    flow.backend() == End { address, port }
        && !held.backend(flow.backend_index).is_some_and(|backend| {
            let may_stay = || backend.is_draining() || datagrams.may_stay(&(&flow).into());
            flow.leads_to(&backend) && (backend.protocol != UDP || may_stay())
        })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use lb_plan::{Allowed, Sweep};
    use lb_rules::model::AddressFamily;

    use super::*;

    fn is_stale(socket: &Connected, held: &Tables) -> bool {
        super::is_stale(socket, &Datagrams::default(), held)
    }

    const COOKIE: u64 = 42;
    const INDEX: u32 = 3;
    const GENERATION: u32 = 7;

    #[derive(Default)]
    struct Tables {
        flows4: HashMap<u64, SocketFlow<V4>>,
        flows6: HashMap<u64, SocketFlow<V6>>,
        backends4: HashMap<u32, Backend<<V4 as lb_common::family::Family>::Address>>,
        backends6: HashMap<u32, Backend<<V6 as lb_common::family::Family>::Address>>,
    }

    impl SocketView<V4> for Tables {
        fn flow(&self, cookie: u64) -> Option<SocketFlow<V4>> {
            self.flows4.get(&cookie).copied()
        }

        fn backend(&self, index: u32) -> Option<Backend<lb_common::family::Address4>> {
            self.backends4.get(&index).copied()
        }
    }

    impl SocketView<V6> for Tables {
        fn flow(&self, cookie: u64) -> Option<SocketFlow<V6>> {
            self.flows6.get(&cookie).copied()
        }

        fn backend(&self, index: u32) -> Option<Backend<lb_common::family::Address6>> {
            self.backends6.get(&index).copied()
        }
    }

    fn flow<F: PacketFamily>(frontend: F::Address, backend: F::Address) -> SocketFlow<F> {
        SocketFlow {
            frontend,
            backend,
            frontend_port: 80,
            backend_port: 8080,
            service_port: 1,
            backend_index: INDEX,
            backend_generation: GENERATION,
        }
    }

    /// A socket that was connected to 10.244.1.1:8080, and the entry of its backend.
    fn given(generation: u32, protocol: u8) -> Tables {
        let (frontend, address) = ([10, 96, 0, 10].into(), [10, 244, 1, 1].into());
        let backend = Backend { address, port: 8080, protocol, generation, ..Backend::default() };
        Tables {
            flows4: HashMap::from([(COOKIE, flow(frontend, address))]),
            backends4: HashMap::from([(INDEX, backend)]),
            ..Tables::default()
        }
    }

    fn socket(cookie: u64, remote: &str) -> Connected {
        Connected { cookie, remote: remote.parse().expect("an address with a port") }
    }

    #[test]
    fn a_socket_is_stale_when_its_backend_is_gone() {
        let socket = socket(COOKIE, "10.244.1.1:8080");
        assert!(!is_stale(&socket, &given(GENERATION, 6)), "it is there");
        assert!(is_stale(&socket, &given(GENERATION, 0)), "the entry is unused");
        assert!(is_stale(&socket, &given(GENERATION + 1, 6)), "the entry is another backend's");
        let no_entry = Tables { backends4: HashMap::new(), ..given(GENERATION, 6) };
        assert!(is_stale(&socket, &no_entry));
    }

    #[test]
    fn a_socket_of_datagrams_is_stale_when_its_backend_has_left_the_service() {
        let socket = socket(COOKIE, "10.244.1.1:8080");
        let left = |backends: &[u32]| {
            let frontends = ["10.96.0.10:80".parse().expect("an address")].into();
            let mut sweep = Sweep::default();
            let allowed = Allowed { backends: backends.iter().copied().collect(), frontends };
            sweep.restrict(1, allowed, &[AddressFamily::V4]);
            sweep.datagrams
        };
        let is_stale = |datagrams, protocol, flags| {
            let mut tables = given(GENERATION, protocol);
            tables.backends4.get_mut(&INDEX).expect("its entry").flags = flags;
            super::is_stale(&socket, datagrams, &tables)
        };
        let (others, all) = (left(&[INDEX + 1]), left(&[INDEX, INDEX + 1]));
        assert!(is_stale(&others, UDP, 0));
        assert!(!is_stale(&all, UDP, 0), "it is a member");
        assert!(!is_stale(&others, 6, 0), "a connection continues");
        let draining = Backend::<lb_common::family::Address4>::DRAINING;
        assert!(!is_stale(&others, UDP, draining), "no pool contains it, until it is removed");
    }

    #[test]
    fn sockets_not_connected_by_the_programs_stay_open() {
        let gone = given(GENERATION, 0);
        assert!(!is_stale(&socket(COOKIE + 1, "10.244.1.1:8080"), &gone), "another socket");
        assert!(!is_stale(&socket(COOKIE, "10.244.1.2:8080"), &gone), "connected elsewhere since");
        assert!(!is_stale(&socket(COOKIE, "10.244.1.1:8081"), &gone), "to another port since");
        assert!(!is_stale(&socket(COOKIE, "[fd00::1]:8080"), &gone), "in the other family");
    }

    #[test]
    fn an_ipv4_mapped_address_is_looked_up_as_ipv4() {
        assert!(is_stale(&socket(COOKIE, "[::ffff:10.244.1.1]:8080"), &given(GENERATION, 0)));
    }

    #[test]
    fn ipv6_sockets_are_looked_up_in_ipv6_tables() {
        let (frontend, address) = ([0xfd; 16].into(), [0xfc; 16].into());
        let mut tables = Tables {
            flows6: HashMap::from([(COOKIE, flow(frontend, address))]),
            ..given(GENERATION, 6)
        };
        let socket = socket(COOKIE, "[fcfc:fcfc:fcfc:fcfc:fcfc:fcfc:fcfc:fcfc]:8080");
        assert!(is_stale(&socket, &tables), "the backend with this index is of the other family");
        let generation = GENERATION;
        let backend =
            Backend { address, port: 8080, protocol: 6, generation, ..Backend::default() };
        tables.backends6.insert(INDEX, backend);
        assert!(!is_stale(&socket, &tables));
    }
}
