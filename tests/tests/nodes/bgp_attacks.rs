//! The BGP speaker against misbehaving peers and other machines, over a real network. One session stays established
//! throughout.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fuzz::bgp::router::{RawRouter, open_and_keepalive};
use lb_bgp::table::AddressAnnouncement;
use lb_bgp::wire::MessageKind;
use lb_kernel::privileges::Privileges;
use lb_rules::model::{Kind as ObjectKind, Object, ServiceName};
use lb_speakers::bgp::{BgpView, PeerObjects, PeerView, Speaker, SpeakerCommand, SpeakerStart};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use serde_json::{Value, json};
use tests::worlds::topology::{Host, SOON, Topology, wait_until};

const NODE: &str = "192.0.2.11";
const GOOD: &str = "192.0.2.1";
const SIGNED: &str = "192.0.2.2";
const NEAR: &str = "192.0.2.3";
const BAD: &str = "192.0.2.4";
const STRANGER: &str = "192.0.2.66";

/// For connections that the node's kernel must not accept.
const REFUSAL: Duration = Duration::from_secs(2);

struct World {
    speaker: Speaker,
    shown: Arc<Mutex<BgpView>>,
    outside: Host,
    node: Host,
    _topology: Topology,
}

fn object(value: Value) -> Result<Object> {
    let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let kind = ObjectKind::of(&text("apiVersion"), &text("kind")).context("a known kind")?;
    Object::read(kind, value)
}

impl World {
    fn start() -> Result<Self> {
        let topology = Topology::new("bgp")?;
        let (node, outside) = (topology.host("node")?, topology.host("outside")?);
        let addresses = [GOOD, SIGNED, NEAR, BAD, STRANGER].map(|each| format!("{each}/24"));
        let addresses = addresses.each_ref().map(String::as_str);
        topology.link(
            node.port("eth0").address(&format!("{NODE}/24")),
            outside.port("eth0").addresses(&addresses),
        )?;
        let mut peers = PeerObjects::default();
        for (name, address, more) in [
            ("good", GOOD, json!({})),
            ("signed", SIGNED, json!({"passwordKey": "signed"})),
            ("near", NEAR, json!({"ttlSecurityHops": 1})),
            ("bad", BAD, json!({"peerASN": 64_513})),
        ] {
            let mut spec = json!({"address": address, "localASN": 64_512, "passive": true});
            spec.as_object_mut()
                .context("fields")?
                .extend(more.as_object().cloned().unwrap_or_default());
            peers.apply_object(&object(json!({
                "apiVersion": "millrace.io/v1alpha1", "kind": "BGPPeer",
                "metadata": {"name": name}, "spec": spec,
            }))?);
        }
        peers.apply_object(&object(json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "millrace-bgp", "namespace": "default"},
            "stringData": {"signed": "correct-horse"},
        }))?);
        let (peers, problems) = peers.list_node_peers("node", None);
        ensure!(problems.is_empty(), "{problems:?}");
        let shown = Arc::new(Mutex::new(BgpView::default()));
        let publish = {
            let shown = Arc::clone(&shown);
            Box::new(move |view| *shown.lock().expect("nothing panics with it") = view)
        };
        let start = SpeakerStart {
            restarted: false,
            privileges: Privileges::AGENT,
            bfd: None,
            transmitter: None,
            publish,
        };
        // Its thread stays in the namespace.
        let (speaker, commands) = Speaker::new();
        node.enter(|| commands.start_speaker(start))?;
        let world = Self { speaker, shown, outside, node, _topology: topology };
        world.tell(SpeakerCommand::Peers(peers))?;
        world.tell(SpeakerCommand::Synced)?;
        wait_until("the port is open", SOON, || world.connect(GOOD, 64, None).is_ok())?;
        Ok(world)
    }

    fn tell(&self, command: SpeakerCommand) -> Result<()> {
        self.speaker.commands().send(command).ok().context("the speaker runs")
    }

    /// A connection from an address outside to the node.
    fn connect(&self, from: &str, ttl: i32, password: Option<&str>) -> Result<TcpStream> {
        self.connect_within(SOON, from, ttl, password)
    }

    /// Fails if there is no connection by then. The first segment is repeated after 1 s.
    fn connect_within(
        &self,
        limit: Duration,
        from: &str,
        ttl: i32,
        password: Option<&str>,
    ) -> Result<TcpStream> {
        let (from, to): (IpAddr, IpAddr) = (from.parse()?, NODE.parse()?);
        self.outside.enter(|| {
            let socket =
                socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
            setsockopt(&socket, sockopt::Ipv4Ttl, &ttl)?;
            setsockopt(&socket, sockopt::TcpUserTimeout, &u32::try_from(limit.as_millis())?)?;
            if let Some(password) = password {
                sign(&socket, to, password)?;
            }
            bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(from, 0)))?;
            connect(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(to, 179)))?;
            let stream = TcpStream::from(socket);
            stream.set_read_timeout(Some(SOON))?;
            Ok(stream)
        })
    }

    fn establish(
        &self,
        from: &str,
        ttl: i32,
        password: Option<&str>,
    ) -> Result<RawRouter<TcpStream>> {
        let mut router = RawRouter::new(self.connect(from, ttl, password)?);
        router.establish(64_513).with_context(|| format!("a session with {from}"))?;
        Ok(router)
    }

    fn peer(&self, name: &str) -> PeerView {
        let shown = self.shown.lock().expect("nothing panics with it");
        shown.peers.iter().find(|peer| peer.name == name).cloned().unwrap_or_default()
    }

    fn wait(&self, name: &str, so: impl Fn(&PeerView) -> bool) -> Result<()> {
        wait_until(name, SOON, || so(&self.peer(name)))
            .with_context(|| format!("{:#?}", self.peer(name)))
    }

    /// Segments that the node's kernel has discarded for this reason.
    fn discarded(&self, reason: &str) -> Result<u64> {
        let text =
            self.node.enter(|| Ok(std::fs::read_to_string("/proc/thread-self/net/netstat")?))?;
        let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
        let (names, values) = (lines.next().context("names")?, lines.next().context("values")?);
        let mut both = names.split(' ').zip(values.split(' '));
        let (_, value) = both.find(|(name, _)| *name == reason).context("no such counter")?;
        Ok(value.parse()?)
    }

    /// The session that stands: it gets a new route.
    fn check_good(&self, router: &mut RawRouter<TcpStream>, number: u8) -> Result<()> {
        let announcement = AddressAnnouncement {
            address: Ipv4Addr::new(203, 0, 113, number).into(),
            advertisements: vec![Arc::default()],
            bandwidth: None,
        };
        let name = ServiceName::new("default", &number.to_string());
        self.tell(SpeakerCommand::Routes(vec![(name, vec![announcement])]))?;
        let prefix = [32, 203, 0, 113, number];
        while !router.next(MessageKind::Update)?.ends_with(&prefix) {}
        let peer = self.peer("good");
        ensure!(peer.established == 1 && peer.ended == 0, "{peer:#?}");
        Ok(())
    }
}

/// `TCP_MD5SIG`, with a key for the node's address.
fn sign(socket: &OwnedFd, to: IpAddr, password: &str) -> Result<()> {
    let IpAddr::V4(to) = to else { anyhow::bail!("IPv4") };
    let mut key = [0_u8; 216];
    key[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    key[4..8].copy_from_slice(&to.octets());
    key[130..132].copy_from_slice(&(password.len() as u16).to_ne_bytes());
    key[136..136 + password.len()].copy_from_slice(password.as_bytes());
    // SAFETY: the kernel reads the given length of a buffer that lives.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MD5SIG,
            key.as_ptr().cast(),
            key.len() as u32,
        )
    };
    ensure!(outcome == 0, "{}", std::io::Error::last_os_error());
    Ok(())
}

fn framed(length: u16, kind: u8, body: &[u8]) -> Vec<u8> {
    [&[0xff; 16][..], &length.to_be_bytes(), &[kind], body].concat()
}

/// Closed or reset before anything was sent.
fn is_refused(read: &std::io::Result<usize>) -> bool {
    match read {
        Ok(length) => *length == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn a_session_stands_whatever_others_send() -> Result<()> {
    let world = World::start()?;
    let mut good = world.establish(GOOD, 64, None)?;
    world.wait("good", PeerView::is_established)?;
    world.check_good(&mut good, 1)?;

    // Strangers: each connection is reset.
    for number in 0..2_000 {
        // The reset may come before the connection is returned.
        let stream = world.connect(STRANGER, 64, None);
        if number % 500 == 0 {
            let outcome = stream.map(|mut stream| stream.read(&mut [0]));
            let is_refused = match &outcome {
                Ok(outcome) => is_refused(outcome),
                Err(error) => error.downcast_ref() == Some(&Errno::ECONNRESET),
            };
            ensure!(is_refused, "{outcome:?}");
            world.check_good(&mut good, 2 + (number / 500) as u8)?;
        }
    }

    // More connections from the peer's own address, on which nothing is sent.
    let silent = (0..50).map(|_| world.connect(GOOD, 64, None)).collect::<Result<Vec<_>>>()?;
    world.check_good(&mut good, 10)?;
    drop(silent);
    world.check_good(&mut good, 11)?;

    // No password, and a wrong one.
    for (password, reason) in [(None, "TCPMD5NotFound"), (Some("battery-staple"), "TCPMD5Failure")]
    {
        let before = world.discarded(reason)?;
        let unsigned = world.connect_within(REFUSAL, SIGNED, 64, password);
        ensure!(unsigned.is_err(), "{password:?}");
        ensure!(world.discarded(reason)? > before, "{reason}");
    }
    let signed = world.establish(SIGNED, 64, Some("correct-horse"))?;
    world.wait("signed", PeerView::is_established)?;
    drop(signed);

    // From behind a router (GTSM): refused even if the peer sends everything before the connection is accepted.
    for _ in 0..20 {
        if let Ok(mut far) = world.connect_within(REFUSAL, NEAR, 64, None) {
            let _ = far.write_all(&open_and_keepalive(64_513));
            ensure!(is_refused(&far.read(&mut [0])), "it is served");
        }
    }
    ensure!(world.peer("near").established == 0, "{:#?}", world.peer("near"));
    // And in a connection of another host on the link.
    let before = world.discarded("TCPMinTTLDrop")?;
    let mut far = world.connect(NEAR, 255, None)?;
    wait_until("segments from far away are discarded", SOON, || {
        setsockopt(&far, sockopt::Ipv4Ttl, &64).is_ok()
            && far.write_all(&[0xff]).is_ok()
            && world.discarded("TCPMinTTLDrop").is_ok_and(|count| count > before)
    })?;
    drop(far);
    world.establish(NEAR, 255, None)?;
    world.wait("near", |peer| peer.established == 1)?;

    // Messages that end the connection, with the code and subcode that say why.
    let mut version = open_and_keepalive(64_513);
    version[19] = 3;
    let mut hold_time = open_and_keepalive(64_513);
    hold_time[23] = 1;
    let bad: BTreeMap<&str, (Vec<u8>, [u8; 2])> = BTreeMap::from([
        ("no marker", (vec![0; 100], [1, 1])),
        ("too long", (framed(5_000, 2, &[0; 4_981]), [1, 2])),
        ("too short", (framed(5, 4, &[]), [1, 2])),
        ("of no kind", (framed(19, 9, &[]), [1, 3])),
        ("another AS", (open_and_keepalive(64_999), [2, 2])),
        ("another version", (version, [2, 1])),
        ("a hold time of 1 s", (hold_time, [2, 6])),
    ]);
    for (name, (octets, code)) in bad {
        let mut router = RawRouter::new(world.connect(BAD, 64, None)?);
        // The speaker may close it before all is written.
        let _ = router.stream.write_all(&octets);
        let body = router.next(MessageKind::Notification).with_context(|| name.to_owned())?;
        ensure!(body.starts_with(&code), "{name}: {body:?}");
    }
    world.check_good(&mut good, 12)?;

    // An UPDATE whose attributes make no sense: counted, and the session stands (RFC 7606).
    let mut router = world.establish(BAD, 64, None)?;
    let body = [0, 0, 0, 4, 0x40, 1, 1, 9, 32, 203, 0, 113, 9];
    router.stream.write_all(&framed(19 + body.len() as u16, 2, &body))?;
    world.wait("bad", |peer| peer.malformed_updates == 1 && peer.is_established())?;

    // A peer that is silent in the middle of a message costs nothing but its connection.
    let mut other = RawRouter::new(world.connect(BAD, 64, None)?);
    other.stream.write_all(&[0xff; 10])?;
    std::thread::sleep(Duration::from_millis(100));
    world.check_good(&mut good, 13)
}
