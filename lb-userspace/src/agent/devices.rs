//! The devices that the programs are attached to, as they come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep_until};

use crate::kernel::{DataPlane, Links, Pins, Place, XdpMode};
use crate::network::{Attachments, DeviceName, Role};

/// Between attempts to attach to a device that could not be attached to.
const RETRY: Duration = Duration::from_secs(5);

/// Which programs a device is to have, or has.
type Places = BTreeMap<DeviceName, BTreeSet<Place>>;

pub struct Devices<'a> {
    pins: &'a Pins,
    data_plane: DataPlane,
    mode: XdpMode,
    wanted: Places,
    attached: Places,
    /// What has been complained about, of devices that are still wanted.
    complained: BTreeMap<DeviceName, String>,
    retry: Option<Instant>,
}

impl<'a> Devices<'a> {
    /// Attaches to all external devices, or to none and fails. Of pods' devices one that goes
    /// just now is no reason not to start.
    pub fn start(
        pins: &'a Pins,
        data_plane: DataPlane,
        mode: XdpMode,
        attachments: &Attachments,
    ) -> Result<Self> {
        let wanted = places(attachments);
        let (attached, complained) = (Places::new(), BTreeMap::new());
        let mut devices =
            Self { pins, data_plane, mode, wanted, attached, complained, retry: None };
        let mut links = Links::new(pins);
        for (device, places) in devices.wanted.clone() {
            if !is_workload(&places) {
                devices.attach(&mut links, &device, &places)?;
            }
        }
        links.detach_others(&by_name(&devices.wanted))?;
        links.keep();
        devices.complain_of_refused(attachments);
        devices.attach_missing();
        Ok(devices)
    }

    /// Attaches to what came and forgets what went.
    pub fn follow(&mut self, attachments: &Attachments) {
        self.wanted = places(attachments);
        // First what goes: a device that was served by itself and is now a port of another one
        // must be free before that is attached to.
        for (device, places) in self.attached.clone() {
            let wanted = self.wanted.get(&device);
            let surplus = |place: &&Place| wanted.is_none_or(|wanted| !wanted.contains(place));
            let surplus: Vec<Place> = places.iter().filter(surplus).copied().collect();
            self.detach(&device, &surplus);
        }
        self.complained.retain(|device, _| {
            self.wanted.contains_key(device) || attachments.refused.contains_key(device)
        });
        self.complain_of_refused(attachments);
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
        for (device, places) in self.wanted.clone() {
            let attached = self.attached.get(&device);
            let missing = |place: &&Place| attached.is_none_or(|there| !there.contains(place));
            let missing: BTreeSet<Place> = places.iter().filter(missing).copied().collect();
            if missing.is_empty() {
                continue;
            }
            let mut links = Links::new(self.pins);
            match self.attach(&mut links, &device, &missing) {
                Ok(()) => links.keep(),
                Err(error) => self.complain(&device, format!("{error:#}")),
            }
        }
        self.retry = (self.wanted != self.attached).then(|| Instant::now() + RETRY);
    }

    fn attach(
        &mut self,
        links: &mut Links<'_>,
        device: &DeviceName,
        places: &BTreeSet<Place>,
    ) -> Result<()> {
        let mut hooks = Vec::new();
        for &place in places {
            let hook = links.attach(&mut self.data_plane, &device.name, place, self.mode)?;
            hooks.push(hook.to_string());
        }
        tracing::info!("attached to {}: {}", device.name, hooks.join(", "));
        self.attached.entry(device.clone()).or_default().extend(places);
        self.complained.remove(device);
        Ok(())
    }

    fn detach(&mut self, device: &DeviceName, places: &[Place]) {
        let links = Links::new(self.pins);
        for place in places {
            if let Err(error) = links.detach(&device.name, *place) {
                tracing::error!("{error:#}");
            }
        }
        let Some(attached) = self.attached.get_mut(device) else { return };
        attached.retain(|place| !places.contains(place));
        if attached.is_empty() {
            self.attached.remove(device);
            tracing::info!("{} is served no longer", device.name);
        }
    }

    fn complain_of_refused(&mut self, attachments: &Attachments) {
        for (device, refusal) in &attachments.refused {
            self.complain(device, format!("{} is not served: {refusal}", device.name));
        }
    }

    /// Once about each thing.
    fn complain(&mut self, device: &DeviceName, problem: String) {
        if self.complained.get(device) != Some(&problem) {
            tracing::warn!("{problem}");
            self.complained.insert(device.clone(), problem);
        }
    }
}

fn places(attachments: &Attachments) -> Places {
    let mut places = Places::new();
    for (device, served) in &attachments.served {
        let own = places.entry(device.clone()).or_default();
        match served.role {
            Role::External => own.extend([Place::Out, Place::ExternalDeferred]),
            Role::Workload => own.extend([Place::Out, Place::WorkloadIn]),
        }
        for device in &served.xdp {
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
