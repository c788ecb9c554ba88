//! `millrace trace`: what would become of a packet.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use lb_common::header::protocol;
use nix::net::if_::if_nametoindex;

use super::names::LiveNames;
use crate::kernel::{Place, attachments};
use crate::notation::parse_tcp_flags;
use crate::trace::capture::{Captured, frames};
use crate::trace::packet::Tuple;
use crate::trace::routes::KernelRoutes;
use crate::trace::{Meeting, Trace, View, trace as trace_packet};

/// Takes a packet through the data plane, over the maps as they are now, and tells each step. Nothing
/// is sent, counted or changed; no agent is needed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The device that the packet arrives by, or leaves by [default: the only one that is served]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Whether it arrives by the device, or leaves by it, as a backend's answer does
    #[arg(long, value_enum, default_value_t)]
    direction: Direction,

    #[arg(value_enum, ignore_case = true, required_unless_present = "pcap")]
    protocol: Option<Protocol>,

    /// Where it comes from
    #[arg(value_name = "SOURCE", required_unless_present = "pcap")]
    source: Option<SocketAddr>,

    /// Where it goes
    #[arg(value_name = "DESTINATION", required_unless_present = "pcap")]
    destination: Option<SocketAddr>,

    /// Its TCP flags, as syn or syn,ack [default: syn for what arrives, syn,ack for what leaves]
    #[arg(long, value_parser = parse_tcp_flags, conflicts_with = "pcap")]
    flags: Option<u8>,

    /// How many bytes it carries
    #[arg(long, value_name = "BYTES", default_value_t = 0, conflicts_with = "pcap")]
    #[arg(value_parser = clap::value_parser!(u16).range(..=65_000))]
    payload: u16,

    /// How many more times it may be forwarded
    #[arg(long, value_name = "NUMBER", default_value_t = 64, conflicts_with = "pcap")]
    ttl: u8,

    /// The packets of a capture, one after the other: each meets the flows that those before it
    /// would have opened
    #[arg(long, value_name = "FILE", conflicts_with_all = ["protocol", "source", "destination"])]
    pcap: Option<PathBuf>,

    #[arg(long, short, value_enum, default_value_t)]
    output: Format,
}

const EXAMPLES: &str = "\
Examples:
  A client's first packet to a Service:
    millrace trace tcp 198.51.100.7:40000 203.0.113.10:80

  A later packet of the same connection, arriving by eth0:
    millrace trace --device eth0 --flags ack tcp 198.51.100.7:40000 203.0.113.10:80

  A backend's answer, where it leaves the node:
    millrace trace --device eth0 --direction out udp 10.244.1.10:53 198.51.100.7:5353

  What was captured:
    tcpdump -i eth0 -c 10 -w packets.pcap && millrace trace --device eth0 --pcap packets.pcap";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Direction {
    #[default]
    In,
    Out,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    #[default]
    Text,
    /// An object for each packet
    Json,
}

pub fn trace(options: &Options, pin_path: &Path) -> Result<()> {
    let view = View::open(pin_path)?;
    let routes = KernelRoutes::open()?;
    let meeting = meeting(options, &attached(pin_path)?)?;
    let packets = packets(options)?;
    let names = LiveNames::open(pin_path)?;
    let mut output = io::stdout().lock();
    for (number, Captured { bytes, cut_from }) in packets.iter().enumerate() {
        view.tick();
        let mut trace = trace_packet(&view, &routes, &names, &meeting, bytes);
        if let Some(length) = cut_from {
            let text = format!("captured only in part: it had {length} bytes on the wire");
            trace.note("packet", text);
        }
        let text = match options.output {
            Format::Text if packets.len() > 1 => {
                format!("packet {}\n{}\n", number + 1, text(&trace))
            }
            Format::Text => text(&trace),
            Format::Json => serde_json::to_string_pretty(&trace)? + "\n",
        };
        match output.write_all(text.as_bytes()) {
            // Whoever reads has read enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            result => result?,
        }
    }
    Ok(())
}

fn text(trace: &Trace) -> String {
    let width = trace.steps.iter().map(|step| step.step.len()).max().unwrap_or_default();
    trace.steps.iter().map(|step| format!("{:width$}  {}\n", step.step, step.text)).collect()
}

fn packets(options: &Options) -> Result<Vec<Captured>> {
    if let Some(path) = &options.pcap {
        let file = fs::read(path).with_context(|| format!("{} can't be read", path.display()))?;
        let frames = frames(&file).with_context(|| path.display().to_string())?;
        if frames.is_empty() {
            bail!("there is no packet in {}", path.display());
        }
        return Ok(frames);
    }
    let (Some(protocol), Some(source), Some(destination)) =
        (options.protocol, options.source, options.destination)
    else {
        bail!("say which packet: PROTOCOL SOURCE DESTINATION, or --pcap FILE");
    };
    let usual = match options.direction {
        Direction::In => "syn",
        Direction::Out => "syn,ack",
    };
    let tuple = Tuple {
        protocol: match protocol {
            Protocol::Tcp => protocol::TCP,
            Protocol::Udp => protocol::UDP,
            Protocol::Sctp => protocol::SCTP,
        },
        source,
        destination,
        flags: options
            .flags
            .map_or_else(|| parse_tcp_flags(usual), Ok)
            .map_err(|error| anyhow!(error))?,
        payload: options.payload.into(),
        hop_limit: options.ttl,
    };
    Ok(vec![Captured { bytes: tuple.frame()?, cut_from: None }])
}

/// By device, in the order in which a packet that arrives meets them: XDP first.
type Attached = BTreeMap<String, Vec<Place>>;

fn attached(pin_path: &Path) -> Result<Attached> {
    let mut attached = Attached::new();
    for attachment in attachments(pin_path)?.into_iter().filter(|found| found.is_attached) {
        attached.entry(attachment.device).or_default().extend(attachment.place);
    }
    for places in attached.values_mut() {
        places.sort_by_key(|place| Reverse(*place));
    }
    Ok(attached)
}

/// Which programs the packet meets, and at which device.
fn meeting(options: &Options, attached: &Attached) -> Result<Meeting> {
    let there = |places: &[Place]| -> Vec<Place> {
        let out = options.direction == Direction::Out;
        let mut there: Vec<Place> =
            places.iter().copied().filter(|place| (*place == Place::Out) == out).collect();
        // XDP has seen it on the device below, as below a VLAN.
        if there == [Place::ExternalDeferred] {
            there.insert(0, Place::ExternalIn);
        }
        there
    };
    let served: Vec<&str> = attached
        .iter()
        .filter(|(_, places)| !there(places).is_empty())
        .map(|(device, _)| device.as_str())
        .collect();
    let device = match (&options.device, &served[..]) {
        (Some(device), _) => device,
        (None, [only]) => *only,
        (None, []) => bail!("no program is attached to any device; does the agent run?"),
        (None, several) => bail!("say at which device, by --device: {}", several.join(", ")),
    };
    let index = if_nametoindex(device)
        .with_context(|| format!("there is no device {device} in this network namespace"))?;
    let places = attached.get(device).map(|places| there(places)).unwrap_or_default();
    if places.is_empty() {
        let served = if served.is_empty() { "none".to_owned() } else { served.join(", ") };
        bail!(
            "no program of Millrace is attached to {device} for what goes {}: such packets pass \
             untouched.\nDevices that are served so: {served}",
            if options.direction == Direction::Out { "out" } else { "in" }
        );
    }
    Ok(Meeting { device: index, places, segment: 0 })
}
