//! Damaged tables, which no planner writes. A packet that uses a damaged entry is dropped with its own
//! reason, and never sent to an address from such an entry.

use std::net::SocketAddr;

use lb_common::family::{V4 as Family4, V6 as Family6};
use lb_common::header::protocol::{TCP, UDP};
use lb_common::layout::{Bitmap, Frontend, FrontendKind, Pool, Reason, capacity};
use lb_plan::{BackendKey, BackendState, FrontendKey, Step, Table};

use super::{Ends, establish};
use crate::packets::datapath::Conversation;

/// The entries from port 80 of the ClusterIP to the first backend, which are damaged.
struct Written {
    frontend: Frontend,
    pool: Pool,
    /// The backend index in the pool's slots.
    slot: u32,
    /// The backend's protocol.
    protocol: u8,
    places: Places,
}

/// The indexes of the entries.
struct Places {
    backend: u32,
    pool: u32,
    slots: u32,
}

const BACKEND: u32 = 7;
const POOL: u32 = 6;

impl Written {
    fn whole() -> Self {
        let of_address = Frontend::of_address(FrontendKind::ClusterIp);
        Self {
            frontend: Frontend { service_port: 3, cluster_pool: POOL, ..of_address },
            pool: Pool { offset: 100, size: 5 },
            slot: BACKEND,
            protocol: TCP,
            places: Places { backend: BACKEND, pool: POOL, slots: 100 },
        }
    }

    fn write(&self, c: &mut Conversation, at: &Ends) {
        let end = |text: &str| -> SocketAddr { text.parse().expect("an end of a case") };
        let (cluster, backend) = (end(&at.cluster(80)), end(&at.backends(1)[0]));
        c.carry_out(&Step::SetBackend {
            index: self.places.backend,
            backend: BackendKey::new(backend.ip(), backend.port(), self.protocol),
            state: BackendState { local: true, ..BackendState::default() },
            generation: 1,
        });
        let table = Table::of_slots(vec![self.slot; 5]);
        c.carry_out(&Step::WriteTable { offset: self.places.slots, table });
        c.carry_out(&Step::SwapPool { index: self.places.pool, pool: self.pool });
        let key = FrontendKey::new(cluster.ip(), cluster.port(), TCP);
        c.carry_out(&Step::SetFrontend { key, value: self.frontend });
        let destination = match cluster {
            SocketAddr::V4(end) => Bitmap::destination::<Family4>((*end.ip()).into()),
            SocketAddr::V6(end) => Bitmap::destination::<Family6>((*end.ip()).into()),
        };
        c.carry_out(&Step::SetDestinationBit(destination));
        let source = match backend {
            SocketAddr::V4(end) => {
                Bitmap::source::<Family4>((*end.ip()).into(), end.port(), self.protocol)
            }
            SocketAddr::V6(end) => {
                Bitmap::source::<Family6>((*end.ip()).into(), end.port(), self.protocol)
            }
        };
        c.carry_out(&Step::SetSourceBit(source));
    }

    #[track_caller]
    fn drops(&self, c: &mut Conversation, at: &Ends, reason: Reason) {
        self.write(c, at);
        c.forward(&at.to_web(40000).syn()).is_dropped_for(reason);
        assert!(c.flows().is_empty(), "nothing begins");
    }
}

pub fn undamaged_tables_serve(c: &mut Conversation, at: &Ends) {
    Written::whole().write(c, at);
    let request = at.to_web(40000).syn();
    c.forward(&request).becomes(&request.to(at.backends(1)[0].as_str()));
}

/// The last index of each table; where tables are large enough, it has more than 16 bits.
pub fn the_last_indexes_serve(c: &mut Conversation, at: &Ends) {
    let (backend, pool) = (capacity::BACKENDS - 1, capacity::POOLS - 1);
    let (service_port, slots) = (capacity::SERVICE_PORTS - 1, capacity::POOL_SLOTS - 5);
    let whole = Written::whole();
    Written {
        frontend: Frontend { service_port, cluster_pool: pool, ..whole.frontend },
        pool: Pool { offset: slots, size: 5 },
        slot: backend,
        places: Places { backend, pool, slots },
        ..whole
    }
    .write(c, at);
    for port in 40000..40010 {
        establish(c, &at.to_web(port), &at.backends(1)[0]);
    }
}

pub fn a_frontend_without_a_kind_serves_nothing(c: &mut Conversation, at: &Ends) {
    for kind in [0, FrontendKind::NodeAddress as u8, 6, u8::MAX] {
        let whole = Written::whole();
        let frontend = Frontend { kind, ..whole.frontend };
        Written { frontend, ..whole }.drops(c, at, Reason::CorruptFrontend);
    }
}

pub fn there_is_no_pool_beyond_the_last(c: &mut Conversation, at: &Ends) {
    for cluster_pool in [capacity::POOLS, u32::MAX] {
        let whole = Written::whole();
        let frontend = Frontend { cluster_pool, ..whole.frontend };
        Written { frontend, ..whole }.drops(c, at, Reason::NoSuchPool);
    }
}

pub fn an_empty_pool_refuses(c: &mut Conversation, at: &Ends) {
    let pool = Pool { size: 0, ..Written::whole().pool };
    Written { pool, ..Written::whole() }.write(c, at);
    let refused = at.to_web(40000).seq(7).syn();
    let reset = refused.reversed().rst_ack().seq(0).ack_number(8).window(0).ttl(64).id(0);
    c.forward(&refused).is_answered_by(&reset, Reason::NoBackend);
}

/// Beyond the last slot, lookups would continue with the first slots, which belong to other pools.
pub fn there_is_no_slot_beyond_the_last(c: &mut Conversation, at: &Ends) {
    for (offset, size) in [(capacity::POOL_SLOTS, 5), (u32::MAX, 1), (u32::MAX - 1, u32::MAX)] {
        let pool = Pool { offset, size };
        Written { pool, ..Written::whole() }.drops(c, at, Reason::NoSuchSlot);
    }
}

pub fn a_slot_may_name_no_backend(c: &mut Conversation, at: &Ends) {
    for slot in [0, BACKEND + 1, capacity::BACKENDS - 1, capacity::BACKENDS, u32::MAX] {
        Written { slot, ..Written::whole() }.drops(c, at, Reason::NoSuchBackend);
    }
}

pub fn a_backend_serves_its_own_protocol_only(c: &mut Conversation, at: &Ends) {
    for protocol in [0, UDP, u8::MAX] {
        Written { protocol, ..Written::whole() }.drops(c, at, Reason::NoSuchBackend);
    }
}
