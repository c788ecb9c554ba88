use std::net::IpAddr;

use lb_common::datapath::{self, Role, Verdict};
use lb_common::family::Family;
use lb_common::host::{Frame, HostFamily, HostTables};
use lb_common::layout::{Device, Flow, FlowState, FrontendKey, Reason, Ticks};
use lb_userspace::plan::{Detail, Step};

use super::kernel::TEST_RUN_DEVICE;
use super::{Fate, Flows, Hook, Outcome, World};

/// The data plane on the host.
pub struct HostWorld {
    pub tables: HostTables,
}

impl HostWorld {
    pub fn new(buckets: u32, flow_seed: u64) -> Self {
        let mut tables = HostTables::new(buckets, flow_seed);
        let device = Device { flags: Device::TRANSMIT, ..Device::default() };
        tables.devices.insert(TEST_RUN_DEVICE, device);
        Self { tables }
    }
}

impl HostWorld {
    /// Takes over when another world with the same entries has seen them.
    pub fn set_seen(&mut self, flows: &Flows) {
        let seen = flows.v4.iter().map(|flow| flow.1);
        set_seen(&self.tables.v4, seen.clone());
        let seen6 = flows.v6.iter().map(|flow| flow.1);
        set_seen(&self.tables.v6, seen6.clone());
        if let Some(last) = seen.chain(seen6).max_by_key(|ticks| ticks.0) {
            self.tables.now.set(last);
        }
    }
}

fn set_seen<F: Family>(family: &HostFamily<F>, seen: impl Iterator<Item = Ticks>) {
    let tags = family.flows.iter().flat_map(|bucket| &bucket.tags);
    let used = tags.filter(|tag| !tag.is_free());
    for (tag, seen) in used.zip(seen) {
        tag.seen.store(seen.0);
    }
}

impl World for HostWorld {
    fn apply(&mut self, step: &Step) {
        let tables = &mut self.tables;
        match step {
            Step::SetBackend { index, backend, standing, generation } => {
                let generation = *generation;
                match backend.address {
                    IpAddr::V4(address) => {
                        let entry = backend.entry(address.into(), *standing, generation);
                        tables.v4.backends.insert(*index, entry);
                    }
                    IpAddr::V6(address) => {
                        let entry = backend.entry(address.into(), *standing, generation);
                        tables.v6.backends.insert(*index, entry);
                    }
                }
            }
            Step::RetireBackend { index, .. } => {
                tables.v4.backends.remove(index);
                tables.v6.backends.remove(index);
            }
            Step::WriteSlots { offset, slots } => {
                tables.slots.extend((*offset..).zip(slots.iter().copied()));
            }
            Step::SwapPool { index, pool } => {
                tables.pools.insert(*index, *pool);
            }
            Step::SetFrontend { key, value } => match key.address {
                IpAddr::V4(a) => {
                    let key = FrontendKey::new(a.into(), key.port, key.protocol);
                    tables.v4.frontends.insert(key, *value);
                }
                IpAddr::V6(a) => {
                    let key = FrontendKey::new(a.into(), key.port, key.protocol);
                    tables.v6.frontends.insert(key, *value);
                }
            },
            Step::RemoveFrontend { key } => match key.address {
                IpAddr::V4(a) => {
                    let key = FrontendKey::new(a.into(), key.port, key.protocol);
                    tables.v4.frontends.remove(&key);
                }
                IpAddr::V6(a) => {
                    let key = FrontendKey::new(a.into(), key.port, key.protocol);
                    tables.v6.frontends.remove(&key);
                }
            },
            Step::SetDestinationBit(bit) => tables.set_destination(*bit, true),
            Step::ClearDestinationBit(bit) => tables.set_destination(*bit, false),
            Step::SetSourceBit(bit) => tables.set_source(*bit, true),
            Step::ClearSourceBit(bit) => tables.set_source(*bit, false),
            Step::SetDetail(Detail::Member(member)) => {
                tables.members.insert(*member);
            }
            Step::RemoveDetail(Detail::Member(member)) => {
                tables.members.remove(member);
            }
            Step::SetDetail(Detail::SourceRange { service_port, range }) => {
                tables.source_ranges.entry(*service_port).or_default().push(*range);
            }
            Step::RemoveDetail(Detail::SourceRange { service_port, range }) => {
                let ranges = tables.source_ranges.entry(*service_port).or_default();
                ranges.retain(|found| found != range);
            }
            Step::ResetServiceTraffic { .. } | Step::ResetBackendTraffic { .. } => {}
        }
    }

    fn run(&mut self, hook: Hook, frame: &[u8]) -> Outcome {
        // Time goes on: the flow seen last is known from the one before.
        let now = self.tables.now.get();
        self.tables.now.set(Ticks(now.0 + 1));
        let mut frame = Frame { device: TEST_RUN_DEVICE, ..Frame::new(frame.to_vec()) };
        if hook == Hook::Workload {
            frame.role = Role::Workload;
            frame.resolves = true;
        }
        let mut verdict = match hook {
            Hook::Forward | Hook::Workload => datapath::ingress(&mut frame, &self.tables),
            Hook::Reverse => datapath::egress(&mut frame, &self.tables),
        };
        while let Verdict::Next(stage) = verdict {
            verdict = datapath::stage(stage, &mut frame, &self.tables);
        }
        let fate = match verdict {
            Verdict::Pass | Verdict::Defer => Fate::Passed,
            Verdict::Transmit | Verdict::Redirect | Verdict::Resolve => Fate::Sent,
            Verdict::Drop | Verdict::Next(_) => Fate::Dropped,
        };
        Outcome { fate, bytes: frame.bytes }
    }

    fn flows(&self) -> Flows {
        Flows { v4: flows(&self.tables.v4), v6: flows(&self.tables.v6) }
    }

    fn reasons(&self) -> Vec<(Reason, u64)> {
        let reasons = self.tables.reasons.borrow();
        let count = |reason| (reason, reasons.get(&reason).copied().unwrap_or_default());
        Reason::ALL.into_iter().map(count).collect()
    }
}

fn flows<F: Family>(family: &HostFamily<F>) -> Vec<(FlowState, Ticks, Flow<F>)> {
    family.flows.iter().flat_map(|bucket| bucket.entries()).collect()
}
