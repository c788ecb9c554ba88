//! Describes how frontend, pool and backend were selected.

use std::net::SocketAddr;

use lb_common::layout::{Frontend, FrontendKind, Member, Pool, Ticks};
use lb_plan::Scope;
use lb_rules::notation::{frontend_kind_name, protocol_name};

use super::Narrator;
use crate::trace::observation::AnyBackend;
use crate::trace::words::describe_policy;

impl Narrator<'_> {
    pub(super) fn frontend(&mut self, end: SocketAddr, number: u8, found: Option<Frontend>) {
        let protocol = protocol_name(number);
        let Some(frontend) = found else {
            // Lookups of the address itself, or of a NodePort.
            let text = if end.port() == 0 {
                format!(
                    "{} is neither a ClusterIP nor an address where NodePorts are open",
                    end.ip()
                )
            } else if end.ip().is_unspecified() {
                format!("no NodePort {protocol} {}", end.port())
            } else {
                format!("no frontend {protocol} {end}")
            };
            return self.add_step("frontend", text);
        };
        if end.port() == 0 {
            let role = match frontend.kind {
                kind if kind == FrontendKind::ClusterIp as u8 => "a ClusterIP",
                _ => "an address of this node where NodePorts are open",
            };
            return self.add_step("frontend", format!("{} is {role}", end.ip()));
        }
        self.frontend = Some((end, frontend));
        let name = self.names.service_port(frontend.service_port);
        let kind = frontend_kind_name(frontend.kind);
        let article = if kind.starts_with('E') { "an" } else { "a" };
        self.add_step("frontend", format!("{protocol} {end} is {article} {kind} of {name}"));
    }

    pub(super) fn pool(&mut self, index: u32, pool: Option<Pool>) {
        let Some(pool) = pool else {
            return self.add_step("pool", format!("pool {index} is beyond the last one"));
        };
        self.pool = Some((index, pool));
        let local = index == Scope::Local.pool_index(Scope::service_port_of(index));
        let scope = if local { "local" } else { "cluster" };
        let why = match self.frontend {
            Some((_, frontend)) if frontend.kind == FrontendKind::ClusterIp as u8 => {
                describe_policy("internalTrafficPolicy", frontend.internal_local, local)
            }
            Some((_, frontend)) => {
                describe_policy("externalTrafficPolicy", frontend.external_local, local)
            }
            None => String::new(),
        };
        let size = match pool.size {
            0 => "it is empty".to_owned(),
            size => format!("its table has {size} slots"),
        };
        self.add_step("pool", format!("{scope} scope{why}; {size}"));
    }

    /// The remembered backend, and the ticks since its last use.
    pub(super) fn affinity(&mut self, found: Option<(u32, u32)>) {
        self.remembered = false;
        let limit = self.frontend.map_or(0, |(_, frontend)| frontend.affinity);
        let text = match found {
            None => "the client is not remembered".to_owned(),
            Some((backend, ago)) => {
                let ago = Ticks(ago).seconds_since(Ticks(0));
                let over = if ago > f64::from(limit) { ": too long ago" } else { "" };
                format!(
                    "the client had backend {backend} {ago:.0} s ago, timeoutSeconds is {limit}{over}"
                )
            }
        };
        self.add_step("affinity", text);
    }

    pub(super) fn slot(&mut self, index: u32, found: Option<u32>) {
        self.chosen = true;
        let number = self.pool.map_or(index, |(_, pool)| index.wrapping_sub(pool.offset));
        let of = self.pool.map_or(0, |(_, pool)| pool.size);
        let weight = |backend| self.names.weight(Member { pool: self.pool?.0, backend });
        let text = match found {
            Some(backend) => match weight(backend) {
                Some(weight) => {
                    format!("slot {number} of {of}: backend {backend}, weight {weight}")
                }
                None => format!("slot {number} of {of}: backend {backend}"),
            },
            None => format!("slot {number} of {of} is beyond the last one"),
        };
        self.add_step("maglev", text);
    }

    pub(super) fn backend(&mut self, index: u32, found: Option<AnyBackend>) {
        let who = if self.chosen || self.remembered {
            format!("backend {index}")
        } else {
            format!("the flow's backend {index}")
        };
        self.chosen = false;
        let text = match found {
            Some(backend) if backend.protocol != 0 => {
                self.backends.push((index, backend));
                let place = match (backend.local, backend.node) {
                    (true, _) => "on this node".to_owned(),
                    (false, Some(node)) => format!("on node {node}"),
                    (false, None) => "on another node".to_owned(),
                };
                let draining = if backend.draining { ", draining" } else { "" };
                format!("{who}: {} {place}{draining}", backend.end)
            }
            Some(backend) => format!("{who}: gone (generation {})", backend.generation),
            None => format!("{who}: beyond the last one"),
        };
        self.add_step("backend", text);
    }
}
