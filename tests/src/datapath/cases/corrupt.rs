//! Tables as no planner writes them. A packet that meets one ends there, for a reason of its own;
//! it is never sent to whom a damaged table happens to name.

use std::net::SocketAddr;

use lb_common::family::{V4 as Family4, V6 as Family6};
use lb_common::header::protocol::{TCP, UDP};
use lb_common::layout::{Bitmap, Frontend, FrontendKind, Pool, Reason, capacity};
use lb_userspace::plan::{BackendKey, FrontendKey, Standing, Step};

use super::Ends;
use crate::datapath::Conversation;

/// What leads from the ClusterIP's port 80 to the first backend, to be damaged.
struct Written {
    frontend: Frontend,
    pool: Pool,
    /// The backend's index that stands in the pool's slots.
    slot: u32,
    /// The protocol of the backend at [`BACKEND`].
    protocol: u8,
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
        }
    }

    fn write(&self, c: &mut Conversation, at: &Ends) {
        let end = |text: &str| -> SocketAddr { text.parse().expect("an end of a case") };
        let (cluster, backend) = (end(&at.cluster(80)), end(&at.backends(1)[0]));
        c.carry_out(&Step::SetBackend {
            index: BACKEND,
            backend: BackendKey::new(backend.ip(), backend.port(), self.protocol),
            standing: Standing { local: true, draining: false },
            generation: 1,
        });
        let (offset, slots) = (Written::whole().pool.offset, vec![self.slot; 5]);
        c.carry_out(&Step::WriteSlots { offset, slots });
        c.carry_out(&Step::SwapPool { index: POOL, pool: self.pool });
        let key = FrontendKey::new(cluster.ip(), cluster.port(), TCP);
        c.carry_out(&Step::SetFrontend { key, value: self.frontend });
        let bit = match cluster {
            SocketAddr::V4(end) => Bitmap::destination::<Family4>((*end.ip()).into()),
            SocketAddr::V6(end) => Bitmap::destination::<Family6>((*end.ip()).into()),
        };
        c.carry_out(&Step::SetDestinationBit(bit));
    }

    #[track_caller]
    fn drops(&self, c: &mut Conversation, at: &Ends, reason: Reason) {
        self.write(c, at);
        c.forward(&at.to_web(40000).syn()).is_dropped_for(reason);
        assert!(c.flows().is_empty(), "nothing begins");
    }
}

pub fn what_is_whole_serves(c: &mut Conversation, at: &Ends) {
    Written::whole().write(c, at);
    let request = at.to_web(40000).syn();
    c.forward(&request).becomes(&request.to(at.backends(1)[0].as_str()));
}

pub fn a_frontend_of_no_kind_leads_nowhere(c: &mut Conversation, at: &Ends) {
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

/// The last one would begin again with the first slots, which are other pools'.
pub fn there_is_no_slot_beyond_the_last(c: &mut Conversation, at: &Ends) {
    for (offset, size) in [(capacity::POOL_SLOTS, 5), (u32::MAX, 1), (u32::MAX - 1, u32::MAX)] {
        let pool = Pool { offset, size };
        Written { pool, ..Written::whole() }.drops(c, at, Reason::NoSuchSlot);
    }
}

pub fn a_slot_may_name_nobody(c: &mut Conversation, at: &Ends) {
    for slot in [0, BACKEND + 1, capacity::BACKENDS - 1, capacity::BACKENDS, u32::MAX] {
        Written { slot, ..Written::whole() }.drops(c, at, Reason::NoSuchBackend);
    }
}

pub fn a_backend_serves_its_own_protocol_only(c: &mut Conversation, at: &Ends) {
    for protocol in [0, UDP, u8::MAX] {
        Written { protocol, ..Written::whole() }.drops(c, at, Reason::NoSuchBackend);
    }
}
