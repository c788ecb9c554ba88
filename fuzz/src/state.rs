//! Tables as a planner might write them, and damage to them.

use std::net::IpAddr;

use ipnet::IpNet;
use lb_common::layout::{
    Backend, EarlierOwners, Frontend, FrontendKind, Member, Pool, PoolSlot, Silence, TunnelTarget,
    capacity,
};

use crate::universe::{
    self, BACKEND_PORTS, BACKENDS, NODE_PORTS, PORTS, PROTOCOLS, backend_index, node_address,
    service_address,
};
use crate::{Input, TableChange, TransportAddress, backend_tag};

/// Slots in the region of each pool.
const REGION: u32 = 16;

/// Each service port has two pools, for the policies `Cluster` and `Local`.
fn pool_index(service_port: u32, local: bool) -> u32 {
    service_port * 2 + u32::from(local)
}

/// The tables before the first packet.
pub fn initial_tables(input: &mut Input) -> Vec<TableChange> {
    let mut changes = Vec::new();
    for (v6, which, number) in universe::backend_indexes() {
        let end = backend_end(v6, which, number, 0);
        let flags = if input.chance(64) { 0 } else { Backend::<()>::LOCAL };
        let index = backend_index(v6, which, number);
        let node = (flags == 0 && input.chance(192)).then(|| universe::peer_address(v6, number));
        changes.push(TableChange::Backend { index, end, flags, generation: 1, node });
        changes.push(TableChange::Source(end));
    }
    for v6 in [false, true] {
        for number in 0..2 {
            let address = node_address(v6, number);
            changes.push(TableChange::Destination(address));
            if number == 0 {
                changes.push(itself(address, FrontendKind::NodeAddress));
            }
        }
        changes.extend((0..2).map(|number| TableChange::Peer(universe::peer_address(v6, number))));
        changes.push(TableChange::TunnelPeer(universe::peer_address(v6, 0)));
        // The first backend is a pod that also is a client.
        changes.push(TableChange::Destination(universe::backend_address(v6, 0)));
    }
    for _ in 0..1 + input.below(6) {
        changes.extend(service_port(input));
    }
    changes
}

fn backend_end(v6: bool, which: usize, number: usize, port: usize) -> TransportAddress {
    let (address, protocol) = (universe::backend_address(v6, number), PROTOCOLS[which]);
    TransportAddress { address, port: BACKEND_PORTS[port % BACKEND_PORTS.len()], protocol }
}

/// The frontend entry of a whole address.
fn itself(address: IpAddr, kind: FrontendKind) -> TableChange {
    itself_as(address, Frontend::of_address(kind))
}

fn itself_as(address: IpAddr, value: Frontend) -> TableChange {
    TableChange::Frontend {
        key: TransportAddress { address, port: 0, protocol: 0 },
        value: Some(value),
    }
}

/// A service port with its pools and frontends. If it exists, it is changed.
pub fn service_port(input: &mut Input) -> Vec<TableChange> {
    let (v6, which, number) = (input.chance(128), input.below(3), input.below(3));
    let index = 1 + ((usize::from(v6) * 3 + which) * 3 + number) as u32;
    let mut changes = Vec::new();
    for local in [false, true] {
        let pool = pool_index(index, local);
        let members: Vec<(usize, u32)> = members(input)
            .into_iter()
            .map(|member| (member, backend_index(v6, which, member)))
            .collect();
        let offset = pool * REGION;
        let size = if members.is_empty() { 0 } else { 1 + input.below(REGION as usize) as u32 };
        let slots =
            members.iter().map(|&(_, backend)| backend).cycle().take(size as usize).collect();
        changes.push(TableChange::Slots { offset, slots });
        changes.push(TableChange::Pool { index: pool, pool: Pool { offset, size } });
        if !local && input.chance(160) {
            let shift = input.below(BACKENDS);
            changes.extend((0..size).map(|slot| {
                let owner = |n| backend_index(v6, which, (slot as usize + shift + n) % BACKENDS);
                let owners = EarlierOwners { backends: [0, 1, 2, 3].map(owner), until: [1; 4] };
                TableChange::Earlier { slot: PoolSlot { pool, slot }, owners }
            }));
        }
        for (member, backend) in members {
            changes.push(TableChange::Member(Member { pool, backend }));
            let TransportAddress { address, port, .. } = backend_end(v6, which, member, 0);
            let tag = u32::from(backend_tag(address, port));
            changes.push(TableChange::Target {
                target: TunnelTarget { service_port: index, tag },
                backend,
            });
        }
    }
    let flags = input.byte();
    let frontend = Frontend {
        service_port: index,
        cluster_pool: pool_index(index, false),
        local_pool: pool_index(index, true),
        affinity: if flags & 0x60 == 0x60 { 60 } else { 0 },
        external_local: u8::from(flags & 7 == 7),
        internal_local: u8::from(flags & 0x38 == 0x38),
        restricted: u8::from(flags & 0xc0 == 0xc0),
        populated: u8::from(flags & 1 == 1),
        forwarding: input.choose(&[0, 3, 1, 2]),
        ..Frontend::of_address(FrontendKind::ClusterIp)
    };
    if frontend.restricted != 0 {
        let range = IpNet::new(universe::client_address(v6, 0), if v6 { 127 } else { 31 });
        let service_port = index;
        changes.extend(
            range.map(|range| TableChange::SourceRange { service_port, range: range.trunc() }),
        );
    }
    let kinds = input.byte();
    let protocol = PROTOCOLS[which];
    let mut publish = |address, port, kind: FrontendKind| {
        let key = TransportAddress { address, port, protocol };
        let value = Some(Frontend { kind: kind as u8, ..frontend });
        changes.push(TableChange::Frontend { key, value });
    };
    let address = service_address(v6, number);
    let (kind, other) = match kinds & 3 {
        0 | 1 => (FrontendKind::ClusterIp, true),
        2 => (FrontendKind::LoadBalancer, false),
        _ => (FrontendKind::ExternalIp, false),
    };
    publish(address, PORTS[which], kind);
    if kinds & 4 != 0 {
        let any: IpAddr = if v6 { [0u8; 16].into() } else { [0u8; 4].into() };
        publish(any, NODE_PORTS[number % NODE_PORTS.len()], FrontendKind::NodePort);
    }
    changes.push(TableChange::Destination(address));
    if other && kinds & 8 != 0 {
        changes.push(itself(address, FrontendKind::ClusterIp));
    }
    if kind == FrontendKind::LoadBalancer && kinds & 8 != 0 {
        let entry = Frontend::of_address(kind);
        let (service_port, restricted) = (frontend.service_port, frontend.restricted);
        let silence = [Silence::Never, Silence::Never, Silence::Outside, Silence::Always]
            [usize::from(kinds >> 4 & 3)] as u8;
        changes.push(itself_as(address, Frontend { service_port, restricted, silence, ..entry }));
    }
    changes
}

fn members(input: &mut Input) -> Vec<usize> {
    let bits = input.byte();
    (0..BACKENDS).filter(|number| bits >> number & 1 != 0).collect()
}

/// Adds, removes or drains a backend, or gives its index to another.
pub fn change_backend(input: &mut Input) -> [TableChange; 2] {
    let (v6, which, number) = (input.chance(128), input.below(3), input.below(BACKENDS));
    let end = backend_end(v6, which, number, input.below(2));
    let end = if input.chance(64) { TransportAddress { protocol: 0, ..end } } else { end };
    let flags = input.choose(&[
        Backend::<()>::LOCAL,
        0,
        Backend::<()>::LOCAL | Backend::<()>::DRAINING,
        Backend::<()>::DRAINING,
    ]);
    let generation = 1 + input.below(3) as u32;
    let index = backend_index(v6, which, number);
    let node = (flags & Backend::<()>::LOCAL == 0).then(|| universe::peer_address(v6, number));
    // The prefilter's bit is set before the entry that needs it.
    [TableChange::Source(end), TableChange::Backend { index, end, flags, generation, node }]
}

/// An entry that no planner would write.
pub fn damage_tables(input: &mut Input) -> TableChange {
    let (v6, which, number) = (input.chance(128), input.below(3), input.below(3));
    let index = 1 + ((usize::from(v6) * 3 + which) * 3 + number) as u32;
    let pool = pool_index(index, input.chance(128));
    match input.below(5) {
        0 => {
            let offset = input.choose(&[0, capacity::POOL_SLOTS - 1, capacity::POOL_SLOTS, !0, 48]);
            let size = input.choose(&[0, 1, 5, capacity::POOL_SLOTS, !0]);
            TableChange::Pool { index: pool, pool: Pool { offset, size } }
        }
        1 => {
            let other = backend_index(!v6, which, number);
            let another = backend_index(v6, (which + 1) % 3, number);
            let wild = [0, capacity::BACKENDS - 1, capacity::BACKENDS, !0, other, another];
            let slots = (0..REGION).map(|_| input.choose(&wild)).collect();
            TableChange::Slots { offset: pool * REGION, slots }
        }
        2 => {
            let key = TransportAddress {
                address: service_address(v6, number),
                port: PORTS[which],
                protocol: PROTOCOLS[which],
            };
            let bytes = input.take(8);
            let value = Frontend {
                service_port: input.choose(&[index, 0, capacity::SERVICE_PORTS - 1, !0]),
                cluster_pool: input.choose(&[pool, 0, capacity::POOLS - 1, capacity::POOLS, !0]),
                local_pool: input.choose(&[pool, 0, capacity::POOLS - 1, capacity::POOLS, !0]),
                affinity: input.choose(&[0, 1, 86_400, !0]),
                kind: input.choose(&[1, 2, 3, 4, 5, 0, 6, bytes[0]]),
                external_local: bytes[1],
                internal_local: bytes[2],
                restricted: bytes[3],
                populated: bytes[4],
                forwarding: bytes[5],
                silence: bytes[6],
                reserved: 0,
            };
            TableChange::Frontend { key, value: Some(value) }
        }
        3 => {
            let end = backend_end(v6, (which + 1) % 3, number, 0);
            let index = backend_index(v6, which, number);
            TableChange::Backend { index, end, flags: input.byte() & 3, generation: 1, node: None }
        }
        _ => {
            let key = TransportAddress {
                address: service_address(v6, number),
                port: PORTS[which],
                protocol: PROTOCOLS[which],
            };
            TableChange::Frontend { key, value: None }
        }
    }
}
