//! Attaches the programs to devices as they are added and removed.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use lb_kernel::{DataPlane, Hook, HookPoint, Links, Modes, Pins};
use lb_network::{Attachments, DeviceName, DeviceRole};
use lb_status::{Condition, Metrics};
use lb_waits::{Resource, Wait, Waits};
use tokio::time::{Instant, sleep_until};

/// Delay between attempts after an attachment has failed.
const RETRY: Duration = Duration::from_secs(5);

/// Hook points by device.
type HookPoints = BTreeMap<DeviceName, BTreeSet<HookPoint>>;

pub struct Devices<'a> {
    pins: &'a Pins,
    data_plane: DataPlane,
    modes: Modes,
    attachments: Attachments,
    /// Until the start: the indexes of devices that may have programs of an earlier agent, over its own maps.
    held_back: BTreeSet<u32>,
    /// Devices that do not support XDP: tc handles all their ingress packets.
    without_xdp: BTreeSet<DeviceName>,
    wanted: HookPoints,
    attached: HookPoints,
    /// How each program is attached.
    hooks: BTreeMap<(DeviceName, HookPoint), Hook>,
    /// The last problem that was logged for each device that is still wanted.
    complained: BTreeMap<DeviceName, String>,
    /// One for each of these devices.
    waits: BTreeMap<DeviceName, Wait>,
    retry: Option<Instant>,
    metrics: Arc<Metrics>,
    condition: Arc<Condition>,
}

impl<'a> Devices<'a> {
    /// Attaches to nothing yet, and until [`Self::start`] only to devices that are added.
    pub fn new(
        pins: &'a Pins,
        data_plane: DataPlane,
        modes: Modes,
        attachments: &Attachments,
        metrics: Arc<Metrics>,
        condition: Arc<Condition>,
    ) -> Result<Self> {
        let modes = Modes { tc: modes.tc.resolve()?, ..modes };
        let mut devices = Self {
            pins,
            data_plane,
            modes,
            attachments: attachments.clone(),
            held_back: BTreeSet::new(),
            without_xdp: BTreeSet::new(),
            wanted: HookPoints::new(),
            attached: HookPoints::new(),
            hooks: BTreeMap::new(),
            complained: BTreeMap::new(),
            waits: BTreeMap::new(),
            retry: None,
            metrics,
            condition,
        };
        devices.decide();
        devices.held_back = devices.wanted.keys().map(|device| device.index).collect();
        Ok(devices)
    }

    pub fn data_plane(&mut self) -> &mut DataPlane {
        &mut self.data_plane
    }

    /// Attaches to all external devices, or fails and attaches to none. A pod's device may be
    /// removed at any time, so its failure does not prevent the start.
    pub fn start(&mut self) -> Result<()> {
        self.held_back.clear();
        let mut links = Links::new(self.pins);
        while let Some((device, missing)) = self.next_missing(|device| self.is_required(device)) {
            self.attach(&mut links, &device, &missing)?;
        }
        links.detach_others(&by_name(&self.wanted))?;
        links.keep();
        self.complain_of_refused();
        self.attach_missing();
        Ok(())
    }

    /// Attaches to added devices and detaches from removed ones.
    pub fn follow(&mut self, attachments: &Attachments) {
        self.attachments = attachments.clone();
        self.without_xdp
            .retain(|device| attachments.served.values().any(|served| served.xdp.contains(device)));
        self.decide();
        // Detach first: a device that has become a port of another one must have no programs before
        // they are attached to that one.
        for (device, points) in self.attached.clone() {
            // A program that replaces another one is attached over it, so that no packet passes
            // between them.
            let stays = |point: &HookPoint| {
                let wanted = self.wanted.get(&device);
                wanted.is_some_and(|wanted| wanted.iter().any(|w| w.slot() == point.slot()))
            };
            let surplus: Vec<HookPoint> =
                points.into_iter().filter(|point| !stays(point)).collect();
            self.detach(&device, &surplus);
        }
        self.complained.retain(|device, _| {
            self.wanted.contains_key(device) || attachments.refused.contains_key(device)
        });
        self.complain_of_refused();
        self.attach_missing();
    }

    /// Returns when [`Self::attach_missing`] is due; never if nothing is missing.
    pub(crate) async fn retry_due(&self) {
        match self.retry {
            Some(at) => sleep_until(at).await,
            None => pending().await,
        }
    }

    pub(crate) fn attach_missing(&mut self) {
        let mut failed = BTreeSet::new();
        while let Some((device, missing)) = self.next_missing(|device| {
            !failed.contains(device) && !self.held_back.contains(&device.index)
        }) {
            let mut links = Links::new(self.pins);
            match self.attach(&mut links, &device, &missing) {
                Ok(()) => links.keep(),
                Err(error) => {
                    let error = format!("{error:#}");
                    self.complain(&device, &error, error.clone());
                    failed.insert(device);
                }
            }
        }
        self.retry = (!failed.is_empty()).then(|| Instant::now() + RETRY);
        // Where attaching failed or has not begun, an earlier agent's program stays attached.
        if failed.is_empty()
            && self.held_back.is_empty()
            && let Err(error) = self.pins.forget_set_aside()
        {
            let error = format!("{error:#}");
            tracing::warn!(error, "maps of the previous agent not removed");
        }
        self.publish();
    }

    fn publish(&mut self) {
        self.waits.retain(|device, _| self.complained.contains_key(device));
        for (device, why) in &self.complained {
            let begin = || {
                let subject = format!("programs on interface {}", device.name);
                Waits::of_process().begin(Resource::Device, subject)
            };
            self.waits.entry(device.clone()).or_insert_with(begin).explain(why);
        }
        let attached = self
            .attached
            .iter()
            .flat_map(|(device, points)| points.iter().map(move |p| (device, *p)));
        let hooks = attached.filter_map(|(device, point)| self.hooks.get(&(device.clone(), point)));
        self.metrics.set_attached(hooks.map(|hook| hook.name()), self.complained.len());
        let complaints = self.complained.iter();
        let complaints = complaints.map(|(device, why)| (device.name.clone(), why.clone()));
        self.condition.set_devices(complaints);
    }

    /// The next of these devices that lacks a program, and its hook point.
    fn next_missing(
        &self,
        of: impl Fn(&DeviceName) -> bool,
    ) -> Option<(DeviceName, BTreeSet<HookPoint>)> {
        let wanted = self.wanted.iter().filter(|(device, _)| of(device));
        let none = BTreeSet::new();
        wanted
            .map(|(device, wanted)| (device, wanted, self.attached.get(device).unwrap_or(&none)))
            .find(|(_, wanted, attached)| !wanted.is_subset(attached))
            .map(|(device, wanted, attached)| (device.clone(), wanted - attached))
    }

    /// Whether the agent must not start without the device's programs, because clients use it.
    fn is_required(&self, device: &DeviceName) -> bool {
        let mut external = self
            .attachments
            .served
            .iter()
            .filter(|(_, served)| served.role == DeviceRole::External);
        external.any(|(served, how)| served == device || how.xdp.contains(device))
    }

    fn decide(&mut self) {
        let without_xdp = |device: &DeviceName| {
            let finished = !self.attachments.unfinished.contains(device);
            !self.modes.xdp.is_for(finished) || self.without_xdp.contains(device)
        };
        self.wanted = points(&self.attachments, without_xdp);
    }

    /// Attaches, or records that the device does not support XDP, which changes its hook points.
    fn attach(
        &mut self,
        links: &mut Links<'_>,
        device: &DeviceName,
        points: &BTreeSet<HookPoint>,
    ) -> Result<()> {
        let (mut hooks, mut attached) = (Vec::new(), BTreeSet::new());
        for &point in points {
            match links.attach(&mut self.data_plane, &device.name, point, self.modes)? {
                Some(hook) => {
                    hooks.push(hook.to_string());
                    self.hooks.insert((device.clone(), point), hook);
                    attached.insert(point);
                }
                None => {
                    tracing::warn!(
                        device = %device.name,
                        "interface does not support XDP; using tc, which is slower"
                    );
                    self.without_xdp.insert(device.clone());
                }
            }
        }
        if !attached.is_empty() {
            let hooks = hooks.join(", ");
            tracing::info!(device = %device.name, hooks, "attached to interface");
            let there = self.attached.entry(device.clone()).or_default();
            there.retain(|old| !attached.iter().any(|new| new.slot() == old.slot()));
            there.extend(attached);
        }
        self.complained.remove(device);
        self.decide();
        Ok(())
    }

    fn detach(&mut self, device: &DeviceName, points: &[HookPoint]) {
        let links = Links::new(self.pins);
        for point in points {
            if let Err(error) = links.detach(&device.name, *point) {
                let error = format!("{error:#}");
                tracing::error!(device = %device.name, error, "program not detached");
            }
        }
        let Some(attached) = self.attached.get_mut(device) else { return };
        attached.retain(|point| !points.contains(point));
        self.hooks.retain(|(of, point), _| of != device || !points.contains(point));
        if attached.is_empty() {
            self.attached.remove(device);
            tracing::info!(device = %device.name, "detached from interface");
        }
    }

    fn complain_of_refused(&mut self) {
        for (device, refusal) in self.attachments.refused.clone() {
            let problem = format!("{} is not served: {refusal}", device.name);
            self.complain(&device, &refusal.to_string(), problem);
        }
    }

    /// Logs each problem once.
    fn complain(&mut self, device: &DeviceName, reason: &str, problem: String) {
        if self.complained.get(device) != Some(&problem) {
            tracing::warn!(device = %device.name, reason, "interface not served");
            self.complained.insert(device.clone(), problem);
        }
    }
}

/// If one of the devices below an external one has no XDP, tc handles all its ingress packets:
/// those that XDP has translated no longer have the address of a Service.
fn points(attachments: &Attachments, without_xdp: impl Fn(&DeviceName) -> bool) -> HookPoints {
    let mut points = HookPoints::new();
    for (device, served) in &attachments.served {
        let tc_alone = served.xdp.is_empty() || served.xdp.iter().any(&without_xdp);
        let ingress = match served.role {
            _ if served.raw => HookPoint::RawIn,
            DeviceRole::Workload => HookPoint::WorkloadIn,
            DeviceRole::External | DeviceRole::Transit if tc_alone => HookPoint::ExternalInTc,
            DeviceRole::External | DeviceRole::Transit => HookPoint::ExternalDeferred,
        };
        let egress = if served.raw { HookPoint::RawOut } else { HookPoint::Out };
        let own = points.entry(device.clone()).or_default();
        own.insert(egress);
        if served.ingress {
            own.insert(ingress);
        }
        for device in served.xdp.iter().filter(|device| !without_xdp(device)) {
            points.entry(device.clone()).or_default().insert(HookPoint::ExternalIn);
        }
    }
    points
}

fn by_name(points: &HookPoints) -> BTreeSet<(String, HookPoint)> {
    let each = points.iter().flat_map(|(device, points)| points.iter().map(move |p| (device, p)));
    each.map(|(device, &point)| (device.name.clone(), point)).collect()
}

#[cfg(test)]
mod tests {
    use lb_network::ServedDevice;

    use super::*;

    fn device(index: u32, name: &str) -> DeviceName {
        DeviceName { index, name: name.to_owned() }
    }

    /// A bond on two ports, and a pod.
    fn attachments() -> Attachments {
        let xdp = BTreeSet::from([device(1, "port0"), device(2, "port1")]);
        let mut attachments = Attachments::default();
        let served = &mut attachments.served;
        served.insert(device(3, "bond0"), of_role(DeviceRole::External, xdp));
        served.insert(device(4, "pod"), of_role(DeviceRole::Workload, BTreeSet::new()));
        attachments
    }

    fn of_role(role: DeviceRole, xdp: BTreeSet<DeviceName>) -> ServedDevice {
        ServedDevice { role, raw: false, ingress: true, xdp }
    }

    fn check(attachments: &Attachments, without_xdp: &[&str], expected: &[(&str, &[HookPoint])]) {
        let points = points(attachments, |device| without_xdp.contains(&&*device.name));
        let found: Vec<(&str, Vec<HookPoint>)> = points
            .iter()
            .map(|(device, points)| (&*device.name, points.iter().copied().collect()))
            .collect();
        let expected: Vec<_> = expected.iter().map(|(name, p)| (*name, p.to_vec())).collect();
        assert_eq!(found, expected, "without XDP: {without_xdp:?}");
    }

    #[test]
    fn what_has_no_xdp_is_taken_in_by_tc() {
        use HookPoint::{ExternalDeferred, ExternalIn, ExternalInTc, Out, WorkloadIn};
        let pod: (&str, &[HookPoint]) = ("pod", &[Out, WorkloadIn]);
        let deferred: (&str, &[HookPoint]) = ("bond0", &[Out, ExternalDeferred]);
        let alone: (&str, &[HookPoint]) = ("bond0", &[Out, ExternalInTc]);
        let bond = attachments();
        check(&bond, &[], &[("port0", &[ExternalIn]), ("port1", &[ExternalIn]), deferred, pod]);
        check(&bond, &["port1"], &[("port0", &[ExternalIn]), alone, pod]);
        check(&bond, &["port0", "port1"], &[alone, pod]);
    }

    #[test]
    fn devices_without_xdp_of_their_own_have_programs_in_tc_only() {
        use HookPoint::{ExternalInTc, Out, RawIn, RawOut};
        let mut attachments = Attachments::default();
        let transit = of_role(DeviceRole::Transit, BTreeSet::new());
        let raw = ServedDevice { raw: true, ..transit.clone() };
        let out_only =
            ServedDevice { ingress: false, ..of_role(DeviceRole::Workload, BTreeSet::new()) };
        attachments.served.extend([
            (device(1, "eth1"), transit),
            (device(2, "wg0"), raw),
            (device(3, "vnet0"), out_only),
        ]);
        let expected: &[(&str, &[HookPoint])] =
            &[("eth1", &[Out, ExternalInTc]), ("wg0", &[RawOut, RawIn]), ("vnet0", &[Out])];
        check(&attachments, &[], expected);
    }
}
