//! Keeps SNAT off the ports that this node uses itself. Polls the node's settings and sockets,
//! receives NodePorts from the agent, and writes the ports that must not be used.

use std::fs;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use aya::maps::MapData;
use lb_common::layout::map;

use super::mapped::Mapped;
use super::pins::Pins;
use super::preflight::Finding;
use super::sockets::Diagnosis;
use crate::privileges::Privileges;
use lb_network::snat_ports::{
    PortSet, PortsInUse, RemainingPorts, SnatRange, parse_port_list, parse_port_range,
};

/// Polling interval for sockets and settings: the kernel reports changes of neither.
const INTERVAL: Duration = Duration::from_secs(10);

/// In the network namespace of this process.
const LOCAL_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const LOCAL_RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// Receives the excluded ports, and how many remain.
pub(crate) type PublishPorts = Box<dyn FnMut(&PortSet, &RemainingPorts) + Send>;

/// The map of ports that the programs must not use for SNAT.
pub struct ReservedPorts(Mapped);

impl ReservedPorts {
    pub fn open(pins: &Pins) -> Result<Self> {
        let path = pins.map(map::RESERVED_PORTS);
        let data = MapData::from_pin(&path).with_context(|| path.display().to_string())?;
        Ok(Self(Mapped::new(&data, size_of::<u64>())?))
    }

    /// What an earlier agent has written.
    pub fn read(&self) -> PortSet {
        let mut ports = PortSet::default();
        for (index, word) in (0..self.0.len()).zip(ports.words_mut()) {
            *word = self.0.word(index).load(Ordering::Relaxed);
        }
        ports
    }

    /// Written word by word: a port that stays reserved is never free in between.
    pub fn write(&self, ports: &PortSet) {
        for (index, &word) in (0..self.0.len()).zip(ports.words()) {
            self.0.word(index).store(word, Ordering::Relaxed);
        }
    }
}

/// Follows the ports of this node in a thread; ends with the agent.
pub struct SnatPorts(Sender<PortSet>);

impl SnatPorts {
    /// Publishes the excluded ports before it returns. Those of an earlier agent stay excluded until
    /// the NodePorts are known.
    pub fn follow(range: SnatRange, earlier: PortSet, publish: PublishPorts) -> Result<Self> {
        Self::follow_every(INTERVAL, range, earlier, publish)
    }

    fn follow_every(
        interval: Duration,
        range: SnatRange,
        earlier: PortSet,
        publish: PublishPorts,
    ) -> Result<Self> {
        let (sender, node_ports) = channel();
        let mut follower = Follower {
            interval,
            range,
            publish,
            diagnosis: Diagnosis::open()
                .inspect_err(|error| {
                    let error = format!("{error:#}");
                    tracing::warn!(error, "sockets cannot be listed; SNAT may use their ports");
                })
                .ok(),
            in_use: PortsInUse { earlier, ..PortsInUse::default() },
            published: None,
            complained: String::new(),
        };
        follower.look();
        thread::Builder::new().name("SNAT ports".into()).spawn(move || {
            if let Err(error) = Privileges::AGENT.once_attached() {
                tracing::warn!(error = format!("{error:#}"), "capabilities not dropped");
            }
            follower.run(&node_ports);
        })?;
        Ok(Self(sender))
    }

    /// Returns at once.
    pub fn set_node_ports(&self, ports: PortSet) {
        // Fails only if the thread has panicked, which has been reported.
        let _ = self.0.send(ports);
    }
}

struct Follower {
    interval: Duration,
    range: SnatRange,
    publish: PublishPorts,
    diagnosis: Option<Diagnosis>,
    in_use: PortsInUse,
    /// The last published value.
    published: Option<(PortSet, RemainingPorts)>,
    complained: String,
}

impl Follower {
    fn run(&mut self, node_ports: &Receiver<PortSet>) {
        let mut due = Instant::now() + self.interval;
        loop {
            match node_ports.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(ports) => {
                    // Only the last of several changes matters.
                    self.in_use.node_ports = node_ports.try_iter().last().unwrap_or(ports);
                    self.in_use.earlier = PortSet::default();
                    self.publish();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= due {
                self.look();
                due = Instant::now() + self.interval;
            }
        }
    }

    /// What can't be read keeps its previous value.
    fn look(&mut self) {
        if let Err(error) = look(&mut self.in_use, self.diagnosis.as_mut()) {
            let error = format!("{error:#}");
            if error != self.complained {
                tracing::warn!(error, "ports in use not read; keeping the previous ones");
            }
            self.complained = error;
        }
        self.publish();
    }

    fn publish(&mut self) {
        let now = (self.in_use.all(), self.in_use.remaining(&self.range.ports()));
        let before = self.published.as_ref();
        if before == Some(&now) {
            return;
        }
        (self.publish)(&now.0, &now.1);
        let were_few = before.map(|(_, remaining)| remaining.are_few());
        if were_few != Some(now.1.are_few()) {
            report(&now.1);
        }
        self.published = Some(now);
    }
}

fn report(remaining: &RemainingPorts) {
    let RemainingPorts { ports, ephemeral, reserved, sockets, node_ports, .. } = *remaining;
    let range = format!("{}-{}", remaining.range.start(), remaining.range.end());
    tracing::info!(
        %range,
        available_ports = ports,
        ephemeral_ports = ephemeral,
        reserved_ports = reserved,
        socket_ports = sockets,
        node_ports,
        "ports available for SNAT"
    );
    if remaining.are_few() {
        tracing::error!(
            %range,
            available_ports = ports,
            fix = remaining.fix(),
            "too few ports for SNAT; connections to backends on other nodes will be refused"
        );
    }
}

fn look(in_use: &mut PortsInUse, diagnosis: Option<&mut Diagnosis>) -> Result<()> {
    let read = |path| fs::read_to_string(path).context(path);
    let range = parse_port_range(&read(LOCAL_RANGE)?).context(LOCAL_RANGE)?;
    in_use.ephemeral = range.collect();
    in_use.reserved = parse_port_list(&read(LOCAL_RESERVED)?).context(LOCAL_RESERVED)?;
    if let Some(diagnosis) = diagnosis {
        in_use.sockets = diagnosis.local_ports()?;
    }
    Ok(())
}

/// The check for `millrace check`, which does not know NodePorts.
pub fn snat_ports(range: SnatRange) -> Finding {
    const CHECK: &str = "SNAT ports";
    let mut in_use = PortsInUse::default();
    let looked = Diagnosis::open().and_then(|mut sockets| look(&mut in_use, Some(&mut sockets)));
    if let Err(error) = looked {
        let fix =
            "Make sure that /proc and the kernel's list of sockets (CONFIG_INET_DIAG) can be read";
        return Finding::warning(CHECK, format!("can't be counted: {error:#}"), fix);
    }
    let remaining = in_use.remaining(&range.ports());
    if remaining.are_few() {
        Finding::error(CHECK, format!("too few: {remaining}"), remaining.fix())
    } else {
        Finding::ok(CHECK, remaining.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn ports_of_this_machine_are_excluded() {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let ports = [
            tcp.local_addr().expect("it is bound").port(),
            udp.local_addr().expect("it is bound").port(),
        ];
        let range = SnatRange::new(1..=65535).unwrap();
        let published = Arc::new(Mutex::new(Vec::new()));
        let publish = {
            let published = Arc::clone(&published);
            Box::new(move |excluded: &PortSet, remaining: &RemainingPorts| {
                published.lock().unwrap().push((excluded.clone(), remaining.ports));
            })
        };
        let _following = SnatPorts::follow(range, PortSet::default(), publish).unwrap();
        let published = published.lock().unwrap();
        let [(excluded, remaining)] = &published[..] else { panic!("once: {}", published.len()) };
        assert!(ports.iter().all(|port| excluded.contains(*port)), "{ports:?}");
        assert_eq!(excluded.count_within(&range.ports()) + remaining, u32::from(range.count));
    }

    #[test]
    fn sockets_are_read_while_node_ports_change_all_the_time() {
        const INTERVAL: Duration = Duration::from_millis(20);
        let (sender, published) = channel();
        let publish = Box::new(move |excluded: &PortSet, _: &RemainingPorts| {
            let _ = sender.send(excluded.clone());
        });
        let range = SnatRange::new(1..=65535).unwrap();
        let following =
            SnatPorts::follow_every(INTERVAL, range, PortSet::default(), publish).unwrap();
        // Outside of the ephemeral range, whose ports are excluded anyway.
        let outside =
            || (2000..2100).find_map(|port| UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).ok());
        let socket = outside().expect("a free port");
        let port = socket.local_addr().expect("it is bound").port();
        let is_read = (30_000..60_000).any(|node_port| {
            following.set_node_ports([node_port].into_iter().collect());
            thread::sleep(INTERVAL / 4);
            published.try_iter().any(|excluded| excluded.contains(port))
        });
        assert!(is_read, "port {port}");
    }

    #[test]
    fn ports_of_an_earlier_agent_stay_excluded_until_the_node_ports_are_known() {
        // Outside of the ephemeral range. No socket of a test machine has them.
        let [kept, unused] = [61_001, 61_002];
        let (sender, published) = channel();
        let publish = Box::new(move |excluded: &PortSet, _: &RemainingPorts| {
            let _ = sender.send([kept, unused].map(|port| excluded.contains(port)));
        });
        let range = SnatRange::new(1..=65535).unwrap();
        let earlier = [kept, unused].into_iter().collect();
        let following = SnatPorts::follow(range, earlier, publish).unwrap();
        assert_eq!(published.recv(), Ok([true, true]));
        following.set_node_ports([kept].into_iter().collect());
        assert_eq!(published.recv(), Ok([true, false]));
    }

    #[test]
    fn sockets_count_apart_from_the_ephemeral_range() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let mut in_use = PortsInUse::default();
        look(&mut in_use, Some(&mut Diagnosis::open().unwrap())).unwrap();
        assert!(in_use.sockets.contains(port));
        assert!(in_use.ephemeral.contains(port), "the kernel chose it");
        drop(listener);
    }
}
