//! The programs during the start: the kernel verifies them while the agent reads objects and writes the maps.

use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};

use super::Options;
use super::announcer::{self, Orders};
use super::devices::Devices;
use crate::announce::Keys;
use crate::bgp::{self, Commands};
use crate::kernel::{Announcements, BfdSessions, Pins, Prepared};
use crate::network::{AnnouncingLink, Attachments};
use crate::notices::Notices;
use crate::serve::{Condition, Metrics};
use crate::settings::BpfLogLevel;

/// Programs that the kernel verifies in a thread of its own, then devices to attach them to.
pub struct Programs<'a> {
    verifying: JoinHandle<Prepared>,
    /// `None` once they are started.
    dependents: Option<Dependents<'a>>,
    /// The last ones that came during the verification.
    attachments: Option<Attachments>,
    devices: Option<Devices<'a>>,
}

/// What needs the programs, and is started when they are verified.
pub struct Dependents<'a> {
    pub pins: &'a Pins,
    pub options: &'a Options,
    /// Programs of an earlier agent have been forwarding.
    pub restarted: bool,
    pub announcer: Orders,
    pub speaker: Commands,
    pub keys: watch::Receiver<Keys>,
    pub links: watch::Receiver<Vec<AnnouncingLink>>,
    pub attachments: Attachments,
    pub notices: Arc<dyn Notices>,
    pub metrics: Arc<Metrics>,
    pub condition: Arc<Condition>,
}

impl<'a> Programs<'a> {
    /// Begins the verification. Its thread ends by itself if the start is given up.
    pub fn verify(mut prepared: Prepared, dependents: Dependents<'a>) -> Self {
        let verifying = spawn_blocking(move || {
            prepared.verify();
            prepared
        });
        Self { verifying, dependents: Some(dependents), attachments: None, devices: None }
    }

    /// Follows changes of devices, also before the programs are there.
    pub fn follow(&mut self, attachments: Attachments) {
        match &mut self.devices {
            Some(devices) => devices.follow(&attachments),
            None => self.attachments = Some(attachments),
        }
    }

    /// Waits for what is due next, and does it.
    pub async fn proceed(&mut self) -> Result<()> {
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

    /// Waits for the programs.
    pub async fn loaded(mut self) -> Result<Devices<'a>> {
        loop {
            match self.devices {
                Some(devices) => return Ok(devices),
                None => self.proceed().await?,
            }
        }
    }
}

impl<'a> Dependents<'a> {
    /// Before all objects are known, which may take long: what an earlier agent announced continues.
    fn start(self, prepared: Prepared) -> Result<Devices<'a>> {
        let Self { pins, options, metrics, condition, .. } = self;
        let mut data_plane = prepared.finish(pins)?;
        if options.bpf_log_level != BpfLogLevel::Off {
            data_plane.follow_messages()?;
        }
        let announcements = Announcements::open(pins, &mut data_plane)?;
        let transmitter = announcements.transmitter();
        self.announcer.start_announcer(announcer::Start {
            node_name: options.node_name.clone(),
            timing: options.announcements,
            kernel: announcements,
            links: self.links,
            keys: self.keys,
            notices: self.notices,
            condition: Arc::clone(&condition),
            privileges: options.privileges,
        })?;
        self.speaker.start_speaker(bgp::Start {
            restarted: self.restarted,
            privileges: options.privileges,
            bfd: Some(BfdSessions::open(pins)?),
            transmitter: Some(transmitter),
            publish: {
                let condition = Arc::clone(&condition);
                Box::new(move |view| condition.set_bgp(view))
            },
        })?;
        Devices::new(pins, data_plane, options.modes, &self.attachments, metrics, condition)
    }
}
