//! Sends frames of the agent's own without CAP_NET_RAW: the kernel runs a BPF program with the
//! frame as its packet, and the program sends a copy through the interface.

use anyhow::{Context, Result, bail};
use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use nix::errno::Errno;

/// The name of the program.
pub const PROGRAM: &str = "transmit";

pub struct Transmitter(SchedClassifier);

impl Transmitter {
    pub fn new(program: SchedClassifier) -> Self {
        Self(program)
    }

    /// Sends a frame, which begins with its Ethernet header, through the interface with this index.
    /// It passes the interface's tc egress and queue like any other packet.
    pub fn transmit(&self, device: u32, frame: &[u8]) -> Result<()> {
        let context = context(device);
        let options = TestRunOptions {
            data_in: Some(frame),
            ctx_in: Some(&context),
            ..TestRunOptions::default()
        };
        let result = self.0.test_run(options).with_context(|| refused(device))?;
        match result.return_value as i32 {
            0 => Ok(()),
            error @ ..0 => Err(Errno::from_raw(-error)).with_context(|| refused(device)),
            // NET_XMIT_DROP and NET_XMIT_CN.
            code => bail!("{}: its queue is full ({code})", refused(device)),
        }
    }
}

fn refused(device: u32) -> String {
    format!("a frame can't be sent through interface {device}")
}

/// `struct __sk_buff` with the interface; the kernel refuses to set most other fields.
fn context(device: u32) -> [u8; SIZE] {
    let mut context = [0; SIZE];
    context[DEVICE..DEVICE + 4].copy_from_slice(&device.to_ne_bytes());
    context
}

/// Up to `gso_size`, which Linux 5.7 has.
const SIZE: usize = 180;
/// The offset of `ifindex`.
const DEVICE: usize = 40;
