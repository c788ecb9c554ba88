//! The programs during the start: the kernel verifies them while the agent reads objects and writes the maps.

use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};
use lb_announce::{ElectionTiming, SealKeys};
use lb_kernel::privileges::Privileges;
use lb_kernel::settings::BpfLogLevel;
use lb_kernel::{Announcements, BfdSessions, Modes, Pins, Prepared};
use lb_network::{AnnouncingLink, Attachments};
use lb_process::notices::Notices;
use lb_speakers::bgp::{self, SpeakerCommands};
use lb_status::{Condition, Metrics};
use tokio::sync::{oneshot, watch};

use super::announcer::{HookTarget, Orders, Start};
use super::devices::Devices;

/// Programs that the kernel verifies in a thread of its own, then devices to attach them to.
pub struct Programs<'a> {
    verifying: oneshot::Receiver<Prepared>,
    /// `None` once they are started.
    dependents: Option<Dependents<'a>>,
    /// The last ones that came during the verification.
    attachments: Option<Attachments>,
    devices: Option<Devices<'a>>,
}

/// What needs the programs, and is started when they are verified.
pub(crate) struct Dependents<'a> {
    pub pins: &'a Pins,
    pub node_name: String,
    pub timing: ElectionTiming,
    pub modes: Modes,
    pub log_level: BpfLogLevel,
    pub privileges: Privileges,
    /// Programs of an earlier agent have been forwarding.
    pub restarted: bool,
    pub announcer: Orders,
    pub announcement_hook: Option<HookTarget>,
    pub may_find_dead_nodes: bool,
    pub speaker: SpeakerCommands,
    pub keys: watch::Receiver<SealKeys>,
    pub links: watch::Receiver<Vec<AnnouncingLink>>,
    pub attachments: Attachments,
    pub notices: Arc<dyn Notices>,
    pub metrics: Arc<Metrics>,
    pub condition: Arc<Condition>,
}

impl<'a> Programs<'a> {
    /// Begins the verification. To be called by a thread that still has all capabilities, which those of the runtime
    /// have not: the verifier needs CAP_PERFMON. The thread that it starts ends by itself if the start is given up.
    pub fn verify(mut prepared: Prepared, dependents: Dependents<'a>) -> Result<Self> {
        let (verified, verifying) = oneshot::channel();
        let verify = move || {
            prepared.verify();
            // Nobody waits if the start was given up.
            let _ = verified.send(prepared);
        };
        thread::Builder::new()
            .name("verifier".to_owned())
            .spawn(verify)
            .context("the thread that verifies programs can't be started")?;
        Ok(Self { verifying, dependents: Some(dependents), attachments: None, devices: None })
    }

    /// Follows changes of devices, also before the programs are there.
    pub fn follow(&mut self, attachments: Attachments) {
        match &mut self.devices {
            Some(devices) => devices.follow(&attachments),
            None => self.attachments = Some(attachments),
        }
    }

    /// Waits for what is due next, and does it.
    pub(crate) async fn proceed(&mut self) -> Result<()> {
        if let Some(devices) = &mut self.devices {
            devices.retry_due().await;
            devices.attach_missing();
            return Ok(());
        }
        let prepared =
            (&mut self.verifying).await.context("the BPF programs could not be verified")?;
        let dependents = self.dependents.take().context("the programs were verified before")?;
        let mut devices = dependents.start(prepared)?;
        if let Some(attachments) = self.attachments.take() {
            devices.follow(&attachments);
        }
        self.devices = Some(devices);
        Ok(())
    }

    /// Whether the programs are verified, and what needs them runs.
    pub(crate) fn are_loaded(&self) -> bool {
        self.devices.is_some()
    }

    pub(crate) fn into_devices(self) -> Result<Devices<'a>> {
        self.devices.context("the BPF programs are not loaded")
    }
}

impl<'a> Dependents<'a> {
    /// Before all objects are known, which may take long: what an earlier agent announced continues.
    fn start(self, prepared: Prepared) -> Result<Devices<'a>> {
        let Self { pins, modes, privileges, metrics, condition, .. } = self;
        let mut data_plane = prepared.finish(pins)?;
        if self.log_level != BpfLogLevel::Off {
            data_plane.follow_messages()?;
        }
        let announcements = Announcements::open(pins, &mut data_plane)?;
        let transmitter = announcements.transmitter();
        self.announcer.start_announcer(Start {
            node_name: self.node_name,
            timing: self.timing,
            kernel: announcements,
            links: self.links,
            keys: self.keys,
            notices: self.notices,
            condition: Arc::clone(&condition),
            privileges,
            hook: self.announcement_hook,
            may_find_dead_nodes: self.may_find_dead_nodes,
        })?;
        self.speaker.start_speaker(bgp::SpeakerStart {
            restarted: self.restarted,
            privileges,
            bfd: Some(BfdSessions::open(pins)?),
            transmitter: Some(transmitter),
            publish: {
                let condition = Arc::clone(&condition);
                Box::new(move |view| condition.set_bgp(view))
            },
        })?;
        Devices::new(pins, data_plane, modes, &self.attachments, metrics, condition)
    }
}
