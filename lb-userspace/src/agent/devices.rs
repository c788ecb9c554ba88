//! The devices that the programs are attached to, as they come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep_until};

use crate::kernel::{DataPlane, Hook, Links, Modes, Pins, Place};
use crate::network::{Attachments, DeviceName, Role};
use crate::serve::{Condition, Metrics};

/// Between attempts to attach to a device that could not be attached to.
const RETRY: Duration = Duration::from_secs(5);

/// Which programs a device is to have, or has.
type Places = BTreeMap<DeviceName, BTreeSet<Place>>;

pub struct Devices<'a> {
    pins: &'a Pins,
    data_plane: DataPlane,
    modes: Modes,
    attachments: Attachments,
    /// Those that take no XDP: tc alone serves what arrives by them.
    without_xdp: BTreeSet<DeviceName>,
    wanted: Places,
    attached: Places,
    /// How what is attached is attached.
    hooks: BTreeMap<(DeviceName, Place), Hook>,
    /// What has been complained about, of devices that are still wanted.
    complained: BTreeMap<DeviceName, String>,
    retry: Option<Instant>,
    metrics: Arc<Metrics>,
    condition: Arc<Condition>,
}

impl<'a> Devices<'a> {
    /// Attaches to all external devices, or to none and fails. Of pods' devices one that goes
    /// just now is no reason not to start.
    pub fn start(
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
            without_xdp: BTreeSet::new(),
            wanted: Places::new(),
            attached: Places::new(),
            hooks: BTreeMap::new(),
            complained: BTreeMap::new(),
            retry: None,
            metrics,
            condition,
        };
        devices.decide();
        let mut links = Links::new(pins);
        while let Some((device, missing)) = devices.next_missing(|_, places| !is_workload(places)) {
            devices.attach(&mut links, &device, &missing)?;
        }
        links.detach_others(&by_name(&devices.wanted))?;
        links.keep();
        devices.complain_of_refused();
        devices.attach_missing();
        Ok(devices)
    }

    /// Attaches to what came and forgets what went.
    pub fn follow(&mut self, attachments: &Attachments) {
        self.attachments = attachments.clone();
        self.without_xdp
            .retain(|device| attachments.served.values().any(|served| served.xdp.contains(device)));
        self.decide();
        // First what goes: a device that was served by itself and is now a port of another one
        // must be free before that is attached to.
        for (device, places) in self.attached.clone() {
            // What takes another one's place is attached over it, without a packet between.
            let stays = |place: &Place| {
                let wanted = self.wanted.get(&device);
                wanted.is_some_and(|wanted| wanted.iter().any(|w| w.slot() == place.slot()))
            };
            let surplus: Vec<Place> = places.into_iter().filter(|place| !stays(place)).collect();
            self.detach(&device, &surplus);
        }
        self.complained.retain(|device, _| {
            self.wanted.contains_key(device) || attachments.refused.contains_key(device)
        });
        self.complain_of_refused();
        self.attach_missing();
    }

    /// Returns when it is time for [`Self::attach_missing`], if ever.
    pub async fn retry_due(&self) {
        match self.retry {
            Some(at) => sleep_until(at).await,
            None => pending().await,
        }
    }

    pub fn attach_missing(&mut self) {
        let mut failed = BTreeSet::new();
        while let Some((device, missing)) = self.next_missing(|device, _| !failed.contains(device))
        {
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
        // Where attaching failed, an earlier agent's program may go on.
        if failed.is_empty()
            && let Err(error) = self.pins.forget_set_aside()
        {
            let error = format!("{error:#}");
            tracing::warn!(error, "maps of the previous agent not removed");
        }
        self.tell();
    }

    fn tell(&self) {
        let attached = self
            .attached
            .iter()
            .flat_map(|(device, places)| places.iter().map(move |p| (device, *p)));
        let hooks = attached.filter_map(|(device, place)| self.hooks.get(&(device.clone(), place)));
        self.metrics.set_attached(hooks.map(|hook| hook.name()), self.complained.len());
        let complaints = self.complained.iter();
        let complaints = complaints.map(|(device, why)| (device.name.clone(), why.clone()));
        self.condition.set_devices(complaints);
    }

    /// One of these devices that lacks something it is to have, and what.
    fn next_missing(
        &self,
        of: impl Fn(&DeviceName, &BTreeSet<Place>) -> bool,
    ) -> Option<(DeviceName, BTreeSet<Place>)> {
        let wanted = self.wanted.iter().filter(|(device, places)| of(device, places));
        let none = BTreeSet::new();
        wanted
            .map(|(device, wanted)| (device, wanted, self.attached.get(device).unwrap_or(&none)))
            .find(|(_, wanted, attached)| !wanted.is_subset(attached))
            .map(|(device, wanted, attached)| (device.clone(), wanted - attached))
    }

    fn decide(&mut self) {
        let without_xdp = |device: &DeviceName| {
            let finished = !self.attachments.unfinished.contains(device);
            !self.modes.xdp.is_for(finished) || self.without_xdp.contains(device)
        };
        self.wanted = places(&self.attachments, without_xdp);
    }

    /// Attaches, or learns that the device takes no XDP, and then something else is wanted.
    fn attach(
        &mut self,
        links: &mut Links<'_>,
        device: &DeviceName,
        places: &BTreeSet<Place>,
    ) -> Result<()> {
        let (mut hooks, mut attached) = (Vec::new(), BTreeSet::new());
        for &place in places {
            match links.attach(&mut self.data_plane, &device.name, place, self.modes)? {
                Some(hook) => {
                    hooks.push(hook.to_string());
                    self.hooks.insert((device.clone(), place), hook);
                    attached.insert(place);
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

    fn detach(&mut self, device: &DeviceName, places: &[Place]) {
        let links = Links::new(self.pins);
        for place in places {
            if let Err(error) = links.detach(&device.name, *place) {
                let error = format!("{error:#}");
                tracing::error!(device = %device.name, error, "program not detached");
            }
        }
        let Some(attached) = self.attached.get_mut(device) else { return };
        attached.retain(|place| !places.contains(place));
        self.hooks.retain(|(of, place), _| of != device || !places.contains(place));
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

    /// Once about each thing.
    fn complain(&mut self, device: &DeviceName, reason: &str, problem: String) {
        if self.complained.get(device) != Some(&problem) {
            tracing::warn!(device = %device.name, reason, "interface not served");
            self.complained.insert(device.clone(), problem);
        }
    }
}

/// Where one of the devices below an external one has no XDP, tc takes in everything that arrives:
/// what XDP has translated before is no Service's any more.
fn places(attachments: &Attachments, without_xdp: impl Fn(&DeviceName) -> bool) -> Places {
    let mut places = Places::new();
    for (device, served) in &attachments.served {
        let ingress = match served.role {
            Role::Workload => Place::WorkloadIn,
            Role::External if served.xdp.iter().any(&without_xdp) => Place::ExternalInTc,
            Role::External => Place::ExternalDeferred,
        };
        places.entry(device.clone()).or_default().extend([Place::Out, ingress]);
        for device in served.xdp.iter().filter(|device| !without_xdp(device)) {
            places.entry(device.clone()).or_default().insert(Place::ExternalIn);
        }
    }
    places
}

fn is_workload(places: &BTreeSet<Place>) -> bool {
    places.contains(&Place::WorkloadIn)
}

fn by_name(places: &Places) -> BTreeSet<(String, Place)> {
    let each = places.iter().flat_map(|(device, places)| places.iter().map(move |p| (device, p)));
    each.map(|(device, &place)| (device.name.clone(), place)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Served;

    fn device(index: u32, name: &str) -> DeviceName {
        DeviceName { index, name: name.to_owned() }
    }

    /// A bond on two ports, and a pod.
    fn attachments() -> Attachments {
        let xdp = BTreeSet::from([device(1, "port0"), device(2, "port1")]);
        let mut attachments = Attachments::default();
        let served = &mut attachments.served;
        served.insert(device(3, "bond0"), Served { role: Role::External, xdp });
        served.insert(device(4, "pod"), Served { role: Role::Workload, xdp: BTreeSet::new() });
        attachments
    }

    fn check(without_xdp: &[&str], expected: &[(&str, &[Place])]) {
        let places = places(&attachments(), |device| without_xdp.contains(&&*device.name));
        let found: Vec<(&str, Vec<Place>)> = places
            .iter()
            .map(|(device, places)| (&*device.name, places.iter().copied().collect()))
            .collect();
        let expected: Vec<_> = expected.iter().map(|(name, p)| (*name, p.to_vec())).collect();
        assert_eq!(found, expected, "without XDP: {without_xdp:?}");
    }

    #[test]
    fn what_has_no_xdp_is_taken_in_by_tc() {
        use Place::{ExternalDeferred, ExternalIn, ExternalInTc, Out, WorkloadIn};
        let pod: (&str, &[Place]) = ("pod", &[Out, WorkloadIn]);
        let deferred: (&str, &[Place]) = ("bond0", &[Out, ExternalDeferred]);
        let alone: (&str, &[Place]) = ("bond0", &[Out, ExternalInTc]);
        check(&[], &[("port0", &[ExternalIn]), ("port1", &[ExternalIn]), deferred, pod]);
        check(&["port1"], &[("port0", &[ExternalIn]), alone, pod]);
        check(&["port0", "port1"], &[alone, pod]);
    }
}
