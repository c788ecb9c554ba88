//! `millrace trace`: traces a packet through the data plane.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::{AddrParseError, IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use lb_common::header::protocol;
use lb_inspect::trace::capture::{Captured, parse_capture};
use lb_inspect::trace::packet::{Tuple, neighbour_request};
use lb_inspect::trace::routes::KernelRoutes;
use lb_inspect::trace::{Meeting, Trace, View, trace_packet};
use lb_kernel::{HookPoint, list_attachments};
use lb_rules::notation::parse_tcp_flags;
use nix::net::if_::if_nametoindex;

use lb_inspect::LiveNames;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TraceOptions {
    /// Interface where the packet arrives or leaves [default: the only interface with programs
    /// attached]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Direction of the packet at the interface; out for a reply that leaves to a client
    #[arg(long, value_enum, default_value_t)]
    direction: Direction,

    /// Transport protocol, or the protocol of a request for a link-layer address
    #[arg(value_enum, ignore_case = true, required_unless_present = "pcap")]
    protocol: Option<TraceProtocol>,

    /// Source ADDRESS:PORT; IPv6 as [ADDRESS]:PORT. For arp and ndp, the ADDRESS of the sender
    #[arg(value_name = "SOURCE", required_unless_present = "pcap")]
    source: Option<TraceEnd>,

    /// Destination ADDRESS:PORT; IPv6 as [ADDRESS]:PORT. For arp and ndp, the ADDRESS that is asked for
    #[arg(value_name = "DESTINATION", required_unless_present = "pcap")]
    destination: Option<TraceEnd>,

    /// TCP flags, such as syn or syn,ack [default: syn for direction in, syn,ack for out]
    #[arg(long, value_parser = parse_tcp_flags, conflicts_with = "pcap")]
    flags: Option<u8>,

    /// Payload length, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 0, conflicts_with = "pcap")]
    #[arg(value_parser = clap::value_parser!(u16).range(..=65_000))]
    payload: u16,

    /// TTL, or the hop limit of IPv6
    #[arg(long, value_name = "NUMBER", default_value_t = 64, conflicts_with = "pcap")]
    ttl: u8,

    /// Capture file; its packets are traced in order
    ///
    /// Each packet sees the flows that earlier packets of the capture would have opened.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["protocol", "source", "destination"])]
    pcap: Option<PathBuf>,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: TraceFormat,
}

const EXAMPLES: &str = "\
Examples:
  The first packet of a client to a Service:
    millrace trace tcp 198.51.100.7:40000 203.0.113.10:80

  A later packet of the same connection, arriving by eth0:
    millrace trace --device eth0 --flags ack tcp 198.51.100.7:40000 203.0.113.10:80

  A reply of a backend, where it leaves the node:
    millrace trace --device eth0 --direction out udp 10.244.1.10:53 198.51.100.7:5353

  A request for the link-layer address of a LoadBalancer address:
    millrace trace arp 192.0.2.7 192.0.2.10
    millrace trace ndp 2001:db8::7 2001:db8::10

  The packets of a capture:
    tcpdump -i eth0 -c 10 -w packets.pcap && millrace trace --device eth0 --pcap packets.pcap";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Direction {
    /// The packet arrives at the interface
    #[default]
    In,
    /// The packet leaves through the interface
    Out,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TraceProtocol {
    Tcp,
    Udp,
    Sctp,
    /// A request by ARP
    Arp,
    /// A neighbour solicitation
    Ndp,
}

/// An address, with a port where the protocol has ports.
#[derive(Clone, Copy, Debug)]
struct TraceEnd {
    address: IpAddr,
    port: Option<u16>,
}

impl FromStr for TraceEnd {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(end) = text.parse::<SocketAddr>() {
            return Ok(Self { address: end.ip(), port: Some(end.port()) });
        }
        match text.parse() {
            Ok(address) => Ok(Self { address, port: None }),
            // The error of the more frequent form.
            Err(_) => Err(text.parse::<SocketAddr>().expect_err("it was tried")),
        }
    }
}

impl TraceEnd {
    fn with_port(self) -> Result<SocketAddr> {
        let port = self.port.with_context(|| {
            let shown = if self.address.is_ipv4() { "" } else { ", as [ADDRESS]:PORT" };
            format!("{}: tcp, udp and sctp need a port{shown}", self.address)
        })?;
        Ok(SocketAddr::new(self.address, port))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum TraceFormat {
    #[default]
    Text,
    /// One JSON object for each packet
    Json,
}

pub fn trace_packets(options: &TraceOptions, pin_path: &Path) -> Result<()> {
    let view = View::open(pin_path)?;
    let routes = KernelRoutes::open()?;
    let attached = attached(pin_path)?;
    let mut meeting = meeting(options, &attached)?;
    let packets = packets(options)?;
    let names = LiveNames::open(pin_path)?;
    let mut output = io::stdout().lock();
    for (number, Captured { bytes, cut_from, is_made }) in packets.iter().enumerate() {
        view.tick();
        meeting.is_received = *is_made;
        let mut trace = trace_packet(&view, &routes, &names, &meeting, bytes);
        if let Some(length) = cut_from {
            let text = format!("captured only in part: {length} bytes on the wire");
            trace.note("packet", text);
        }
        warn_of_lost_reply(&mut trace, &attached);
        let text = match options.output {
            TraceFormat::Text if packets.len() > 1 => {
                format!("packet {}\n{}\n", number + 1, text(&trace))
            }
            TraceFormat::Text => text(&trace),
            TraceFormat::Json => serde_json::to_string_pretty(&trace)? + "\n",
        };
        match output.write_all(text.as_bytes()) {
            // The reader has closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            result => result?,
        }
    }
    Ok(())
}

/// Warns unless the reply to an SNAT address arrives where a program translates it.
fn warn_of_lost_reply(trace: &mut Trace, attached: &Attached) {
    let Some(device) = trace.reply_arrives_at() else { return };
    let has_ingress = |points: &Vec<HookPoint>| points.iter().any(|point| !point.is_egress());
    if !attached.get(device).is_some_and(has_ingress) {
        let text = format!(
            "the reply will arrive at {device}, where no program is attached: it will be lost. \
             Add --devices {device} to the agent, or let --devices be auto"
        );
        trace.warn(text);
    }
}

fn text(trace: &Trace) -> String {
    let width = trace.steps.iter().map(|step| step.step.len()).max().unwrap_or_default();
    trace.steps.iter().map(|step| format!("{:width$}  {}\n", step.step, step.text)).collect()
}

fn packets(options: &TraceOptions) -> Result<Vec<Captured>> {
    if let Some(path) = &options.pcap {
        let file = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let frames = parse_capture(&file).with_context(|| path.display().to_string())?;
        if frames.is_empty() {
            bail!("{} contains no packets", path.display());
        }
        return Ok(frames);
    }
    let (Some(protocol), Some(source), Some(destination)) =
        (options.protocol, options.source, options.destination)
    else {
        bail!("give a packet as PROTOCOL SOURCE DESTINATION, or use --pcap FILE");
    };
    let number = match protocol {
        TraceProtocol::Tcp => protocol::TCP,
        TraceProtocol::Udp => protocol::UDP,
        TraceProtocol::Sctp => protocol::SCTP,
        TraceProtocol::Arp | TraceProtocol::Ndp => {
            let is_arp = protocol == TraceProtocol::Arp;
            let bytes = neighbour_request(is_arp, source.address, destination.address)?;
            return Ok(vec![Captured::made(bytes)]);
        }
    };
    let usual = match options.direction {
        Direction::In => "syn",
        Direction::Out => "syn,ack",
    };
    let tuple = Tuple {
        protocol: number,
        source: source.with_port()?,
        destination: destination.with_port()?,
        flags: options
            .flags
            .map_or_else(|| parse_tcp_flags(usual), Ok)
            .map_err(|error| anyhow!(error))?,
        payload: options.payload.into(),
        hop_limit: options.ttl,
    };
    Ok(vec![Captured::made(tuple.frame()?)])
}

/// Hook points by device, in the order in which an ingress packet passes them: XDP first.
type Attached = BTreeMap<String, Vec<HookPoint>>;

fn attached(pin_path: &Path) -> Result<Attached> {
    let mut attached = Attached::new();
    for attachment in list_attachments(pin_path)?.into_iter().filter(|found| found.is_attached) {
        attached.entry(attachment.device).or_default().extend(attachment.point);
    }
    for points in attached.values_mut() {
        points.sort_by_key(|point| Reverse(*point));
    }
    Ok(attached)
}

/// Whether the hook points are those of an external device.
fn faces_clients(points: &[HookPoint]) -> bool {
    points.contains(&HookPoint::ExternalDeferred)
}

/// The programs that the packet passes, and their device.
fn meeting(options: &TraceOptions, attached: &Attached) -> Result<Meeting> {
    let there = |points: &[HookPoint]| -> Vec<HookPoint> {
        let out = options.direction == Direction::Out;
        let mut there: Vec<HookPoint> =
            points.iter().copied().filter(|point| point.is_egress() == out).collect();
        // XDP runs on the device below, for example below a VLAN.
        if there == [HookPoint::ExternalDeferred] {
            there.insert(0, HookPoint::ExternalIn);
        }
        there
    };
    let served: Vec<&str> = attached
        .iter()
        .filter(|(_, points)| !there(points).is_empty())
        .map(|(device, _)| device.as_str())
        .collect();
    let facing_clients: Vec<&str> =
        served.iter().copied().filter(|device| faces_clients(&attached[*device])).collect();
    let device = match (&options.device, &facing_clients[..], &served[..]) {
        (Some(device), ..) => device,
        (None, [only], _) | (None, _, [only]) => *only,
        (None, _, []) => bail!("no program is attached to any interface; is the agent running?"),
        (None, _, several) => bail!(
            "several interfaces have programs: select one with --device: {}",
            several.join(", ")
        ),
    };
    let index = if_nametoindex(device)
        .with_context(|| format!("no interface {device} in this network namespace"))?;
    let points = attached.get(device).map(|points| there(points)).unwrap_or_default();
    if points.is_empty() {
        let served = if served.is_empty() { "none".to_owned() } else { served.join(", ") };
        bail!(
            "no Millrace program is attached to {device} for {} packets: they pass unchanged.\n\
             Interfaces with such a program: {served}",
            if options.direction == Direction::Out { "outgoing" } else { "incoming" }
        );
    }
    Ok(Meeting { device: index, points, segment: 0, is_received: true, is_sent_here: true })
}
