//! Packets per second that the node forwards if generating them costs nothing.
//!
//! BPF_PROG_TEST_RUN with live frames runs a program in the client's namespace that sends each
//! frame through the client's interface. Another program, on the backend's interface, counts and
//! drops the frames that arrive for the backend's port: lost frames do not count. Everything
//! happens on one CPU, softirqs included, so the rate is that of one CPU.

use std::net::UdpSocket;
use std::time::Instant;

use crate::generator::{OBJECT, Plain, Side, packet_template};
use crate::load::exchange_datagram;
use ::tests::packets::{Mac, Packet, udp};
use ::tests::worlds::one_node::{CLIENT, DEVICE, OneNode};
use ::tests::worlds::topology::Host;
use anyhow::{Context, Result, ensure};
use aya::maps::{Array, PerCpuArray, ProgramArray};
use aya::programs::{TestRun, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use lb_common::bench::FIRST_PORT;

/// Number of open flows over which the frames are spread; a power of two.
pub const FLOWS: u32 = 1_024;
/// Frames that are generated before any is received: fewer than the ring of an interface holds.
const BATCH: u32 = 64;
/// Enough for the smallest Ethernet frame and for what the wrapper writes.
const PAYLOAD: usize = 100;

pub struct Frames {
    ebpf: Ebpf,
    packet: Packet,
}

pub struct Rate {
    pub sent: u32,
    pub arrived: u64,
    pub arrived_a_second: f64,
}

impl Frames {
    /// Frames with datagrams of the client to an address behind the node.
    pub fn new(network: &OneNode, to: std::net::SocketAddr) -> Result<Self> {
        ensure!(!OBJECT.is_empty(), "this was built without the benchmark's BPF object");
        let mut ebpf = EbpfLoader::new().load(OBJECT)?;
        for name in ["wrap_xdp", "send_xdp", "sink_xdp"] {
            program(&mut ebpf, name)?.load()?;
        }
        let send = program(&mut ebpf, "send_xdp")?.fd()?.try_clone()?;
        let map = ebpf.map_mut("XDP_UNDER_TEST").context("no map XDP_UNDER_TEST")?;
        ProgramArray::try_from(map)?.set(0, &send, 0)?;

        let (device, from) = link(&network.client, "eth0")?;
        let (_, node) = link(&network.node, DEVICE)?;
        let map = ebpf.map_mut("DEVICE").context("no map DEVICE")?;
        Array::try_from(map)?.set(0, device, 0)?;
        let client = std::net::SocketAddr::new(CLIENT.parse()?, FIRST_PORT as u16);
        // Without a checksum, because the wrapper varies the port and does not update it.
        let packet = udp(client, to).macs(from, node).payload(&[0; PAYLOAD]);
        let checksum = packet.transport_offset() + 6;
        let packet = packet.with(move |bytes| bytes[checksum..checksum + 2].fill(0));
        let template = packet_template(&packet, Side::Source, FLOWS);
        let map = ebpf.map_mut("TEMPLATE").context("no map TEMPLATE")?;
        Array::try_from(map)?.set(0, Plain(template), 0)?;
        Ok(Self { ebpf, packet })
    }

    /// Opens all flows by exchanging datagrams. The sockets are not used afterwards.
    pub(crate) fn open_flows(
        network: &OneNode,
        to: std::net::SocketAddr,
        from: &str,
    ) -> Result<()> {
        network.client.enter(|| {
            for port in FIRST_PORT..FIRST_PORT + FLOWS {
                let socket = UdpSocket::bind((CLIENT, port as u16))?;
                socket.set_read_timeout(Some(std::time::Duration::from_secs(5)))?;
                socket.connect(to)?;
                // Twice: only then nf_conntrack keeps it as a stream.
                exchange_datagram(&socket, from)?;
                exchange_datagram(&socket, from)?;
            }
            Ok(())
        })
    }

    pub fn measure(&mut self, network: &OneNode, other: &Host, sent: u32) -> Result<Rate> {
        let before = self.arrived()?;
        let sink = program(&mut self.ebpf, "sink_xdp")?;
        let link = other.enter(|| Ok(sink.attach("eth0", XdpMode::Driver)?))?;
        let packet = &self.packet;
        let send = program(&mut self.ebpf, "wrap_xdp")?;
        let elapsed = network.client.enter(|| {
            let began = Instant::now();
            send.test_run(TestRunOptions {
                data_in: Some(packet),
                repeat: sent,
                attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
                ..TestRunOptions::default()
            })?;
            Ok(began.elapsed())
        });
        program(&mut self.ebpf, "sink_xdp")?.detach(link)?;
        let (elapsed, arrived) = (elapsed?, self.arrived()? - before);
        Ok(Rate { sent, arrived, arrived_a_second: arrived as f64 / elapsed.as_secs_f64() })
    }

    fn arrived(&self) -> Result<u64> {
        let map = self.ebpf.map("ARRIVED").context("no map ARRIVED")?;
        Ok(PerCpuArray::<_, u64>::try_from(map)?.get(&0, 0)?.iter().sum())
    }
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    let program = ebpf.program_mut(name).with_context(|| format!("no program {name}"))?;
    Ok(program.try_into()?)
}

/// The index and link-layer address of an interface.
fn link(host: &Host, device: &str) -> Result<(u32, Mac)> {
    // As in `7: eth0@if6: <…> … link/ether 02:00:00:00:00:01 brd …`.
    let line = host.ip(&format!("-o link show dev {device}"))?;
    let index = line.split(':').next().context("ip prints a line")?.trim().parse()?;
    let mut words = line.split_whitespace().skip_while(|word| *word != "link/ether");
    let address = words.nth(1).with_context(|| format!("{device} has no address"))?;
    let octets = address
        .split(':')
        .map(|octet| u8::from_str_radix(octet, 16))
        .collect::<Result<Vec<_>, _>>()?;
    let octets = octets.try_into().ok().with_context(|| format!("{address} is not an address"))?;
    Ok((index, Mac(octets)))
}
