//! The network topologies that other tests use.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result};
use lb_kernel::{Tables, cgroup_root};
use lb_plan::Snapshot;
use tests::manifests::{here, manifests};
use tests::worlds::one_node::OneNode;
use tests::worlds::topology::{
    Hierarchy, Host, Id, LARGE, SOON, Topology, mount_bpffs, remove_leftovers, wait_until,
};

/// A client, a router and a server with addresses of both families, and routes between them.
fn routed(name: &str) -> Result<(Topology, Host, Host, Host)> {
    let topology = Topology::new(name)?;
    let client = topology.host("client")?;
    let router = topology.router("router")?;
    let server = topology.host("server")?;
    topology.link(
        client.port("eth0").addresses(&["192.0.2.2/24", "2001:db8::2/64"]).wire(),
        router.port("ext0").addresses(&["192.0.2.1/24", "2001:db8::1/64"]),
    )?;
    topology.link(
        server.port("eth0").addresses(&["198.51.100.2/24", "2001:db8:1::2/64"]),
        router.port("int0").addresses(&["198.51.100.1/24", "2001:db8:1::1/64"]),
    )?;
    client.default_routes(&["192.0.2.1", "2001:db8::1"])?;
    server.default_routes(&["198.51.100.1", "2001:db8:1::1"])?;
    Ok((topology, client, router, server))
}

/// Namespaces, pins, cgroups and files that belong to this id.
fn remains(id: &str) -> Vec<String> {
    let is_of = |name: &str| {
        name.strip_prefix(id).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let groups = Hierarchy::all_mounted().unwrap_or_default();
    let groups = groups.into_iter().map(|hierarchy| hierarchy.mounted_at);
    let pins = PathBuf::from("/sys/fs/bpf/millrace-test");
    let places = ["/run/netns".into(), pins, env::temp_dir()].into_iter().chain(groups);
    let entries = places.filter_map(|place| fs::read_dir(place).ok()).flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| is_of(name))
        .collect()
}

#[test]
fn curl_reaches_nginx_through_a_router_in_both_families() -> Result<()> {
    let (_topology, client, _router, server) = routed("router")?;
    let _nginx = server.http_server(&["198.51.100.2:8080", "[2001:db8:1::2]:8080"], "pod-a")?;

    for (url, own) in
        [("http://198.51.100.2:8080", "192.0.2.2"), ("http://[2001:db8:1::2]:8080", "2001:db8::2")]
    {
        assert_eq!(client.curl(url)?, "pod-a\n");
        assert_eq!(client.curl(&format!("{url}/client"))?, format!("{own}\n"));
        let large = client.command("curl").args(["-s", "-g", &format!("{url}/large")]).output()?;
        assert_eq!(large.stdout.len(), LARGE);
        let numbers = large.stdout.chunks_exact(4).zip((0..).map(|place: u32| place / 256));
        let wrong = numbers.filter(|(bytes, number)| **bytes != number.to_be_bytes()).count();
        assert_eq!(wrong, 0, "{url}/large");
    }
    Ok(())
}

#[test]
fn topologies_with_the_same_addresses_are_isolated() -> Result<()> {
    const NAMES: [&str; 3] = ["one", "two", "three"];
    let all_are_up = Barrier::new(NAMES.len());
    thread::scope(|scope| {
        let threads = NAMES.map(|name| {
            let all_are_up = &all_are_up;
            scope.spawn(move || -> Result<()> {
                let made = routed(name).and_then(|(topology, client, router, server)| {
                    let nginx = server.http_server(&["198.51.100.2:80"], name)?;
                    Ok((topology, client, router, server, nginx))
                });
                // Also after a failure, because the other threads wait.
                all_are_up.wait();
                let (_topology, client, _router, _server, _nginx) = made?;
                for _ in 0..5 {
                    assert_eq!(client.curl("http://198.51.100.2")?, format!("{name}\n"));
                }
                Ok(())
            })
        });
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread panicked"))
    })
}

#[test]
fn pods_nodes_and_clients_reach_a_pod_with_their_own_addresses() -> Result<()> {
    let topology = Topology::new("pods")?;
    let client = topology.host("client")?;
    let node = topology.router("node")?;
    topology.link(
        client.port("eth0").address("192.0.2.2/24").address("2001:db8::2/64"),
        node.port("ext0").address("192.0.2.1/24").address("2001:db8::1/64"),
    )?;
    client.default_route("192.0.2.1")?;
    client.default_route("2001:db8::1")?;
    let a = node.pod("pod-a", &["10.244.1.10", "fd00:10:244:1::10"])?;
    let b = node.pod("pod-b", &["10.244.1.11", "fd00:10:244:1::11"])?;
    let _server = b.http_server(&["10.244.1.11:80", "[fd00:10:244:1::11]:80"], "pod-b")?;

    for (who, own4, own6) in [
        (&a, "10.244.1.10", "fd00:10:244:1::10"),
        (&client, "192.0.2.2", "2001:db8::2"),
        // Not the address of the pods' gateway.
        (&node, "192.0.2.1", "2001:db8::1"),
    ] {
        assert_eq!(who.curl("http://10.244.1.11/client")?, format!("{own4}\n"));
        assert_eq!(who.curl("http://[fd00:10:244:1::11]/client")?, format!("{own6}\n"));
    }
    // The node's end of the veth has the name of the pod.
    assert!(node.ip("route show 10.244.1.11")?.contains("dev pod-b"));
    Ok(())
}

#[test]
fn ports_of_a_bridge_share_a_network() -> Result<()> {
    let topology = Topology::new("bridge")?;
    let switch = topology.host("switch")?;
    switch.bridge("br0")?;
    let [one, two] = [topology.host("one")?, topology.host("two")?];
    for (host, n) in [(&one, 1), (&two, 2)] {
        topology.link(
            host.port("eth0")
                .mac(&format!("02:00:00:00:00:0{n}"))
                .mtu(1400)
                .address(&format!("192.0.2.{n}/24"))
                .address(&format!("2001:db8::{n}/64")),
            switch.port(&format!("port{n}")).bridge("br0").mtu(1400),
        )?;
    }
    let _server = two.http_server(&["192.0.2.2:80", "[2001:db8::2]:80"], "two")?;
    assert_eq!(one.curl("http://192.0.2.2")?, "two\n");
    assert_eq!(one.curl("http://[2001:db8::2]")?, "two\n");
    let neighbour = one.ip("neighbour show 192.0.2.2")?;
    assert!(neighbour.contains("02:00:00:00:00:02"), "{neighbour}");
    assert!(one.ip("link show eth0")?.contains("mtu 1400"));
    Ok(())
}

#[test]
fn echo_servers_reply_with_their_name_and_the_address_of_the_client() -> Result<()> {
    let (_topology, client, _router, server) = routed("echo")?;
    for address in ["198.51.100.2:7", "[2001:db8:1::2]:7"] {
        let _tcp = server.tcp_echo(address, "tcp-a")?;
        let stream = client.tcp_connect(address)?;
        let own = stream.local_addr()?;
        let mut lines = BufReader::new(&stream).lines();
        for message in ["hello", "again"] {
            // In two writes, with a pause in which the server checks whether it should stop.
            let (head, rest) = message.split_at(2);
            (&stream).write_all(head.as_bytes())?;
            thread::sleep(Duration::from_millis(120));
            (&stream).write_all(format!("{rest}\n").as_bytes())?;
            assert_eq!(lines.next().context("no reply")??, format!("tcp-a {own} {message}"));
        }

        let _udp = server.udp_echo(address, "udp-a")?;
        let unspecified = if own.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = client.udp_socket(unspecified)?;
        socket.connect(address)?;
        socket.send(b"hello")?;
        let mut buffer = [0; 100];
        let length = socket.recv(&mut buffer)?;
        let expected = format!("udp-a {} hello", socket.local_addr()?);
        assert_eq!(String::from_utf8_lossy(&buffer[..length]), expected);
    }
    Ok(())
}

#[test]
fn frames_on_a_wire_have_complete_checksums() -> Result<()> {
    // The client's port is a wire, the server's is not.
    let (_topology, client, router, server) = routed("wire")?;
    let _nginx = server.http_server(&["198.51.100.2:80"], "x")?;
    let mut ext = router.capture("ext0", "tcp and src host 192.0.2.2")?;
    let mut int = router.capture("int0", "tcp and src host 198.51.100.2")?;
    client.curl("http://198.51.100.2")?;
    ext.wait_for("GET / HTTP/1.1")?;
    int.wait_for("HTTP/1.1 200 OK")?;

    assert!(ext.lines().iter().any(|line| line.contains("(correct)")));
    assert!(!ext.lines().iter().any(|line| line.contains("(incorrect")), "{:#?}", ext.lines());
    assert!(int.lines().iter().any(|line| line.contains("(incorrect")), "{:#?}", int.lines());
    Ok(())
}

#[test]
fn iperf3_measures_a_transfer() -> Result<()> {
    let (_topology, client, _router, server) = routed("iperf3")?;
    for listen in ["198.51.100.2", "2001:db8:1::2"] {
        let socket = if listen.contains(':') {
            format!("[{listen}]:5201")
        } else {
            format!("{listen}:5201")
        };
        let _server = server.iperf3_server(&socket)?;
        let report = client.run(["iperf3", "--client", listen, "--bytes", "10M"])?;
        assert!(report.contains("receiver"), "{report}");
    }
    Ok(())
}

#[test]
fn errors_quote_the_command_and_its_output() -> Result<()> {
    let topology = Topology::new("errors")?;
    let host = topology.host("host")?;

    let error = host.run(["sh", "-c", "echo what is wrong >&2; exit 3"]).unwrap_err().to_string();
    assert!(error.contains("sh -c 'echo what") && error.ends_with("what is wrong"), "{error}");

    let error = host.ip("link set eth7 up").unwrap_err().to_string();
    assert!(
        error.contains("link set eth7 up: ") && error.contains("Cannot find device"),
        "{error}"
    );

    let error = host.run_within(Duration::from_millis(100), ["sleep", "60"]).unwrap_err();
    assert!(error.to_string().contains("did not end within 100ms"), "{error}");

    let mut process = host.spawn(host.command("sh").args(["-c", "echo no such luck; exit 3"]))?;
    let error = process.wait_for_output("ready", SOON).unwrap_err().to_string();
    assert!(
        error.contains("sh on host says \"ready\"") && error.ends_with("no such luck"),
        "{error}"
    );

    let taken = host.http_server(&["192.0.2.77:80"], "x").map(drop).unwrap_err().to_string();
    assert!(
        taken.contains("nginx on host") && taken.contains("bind() to 192.0.2.77:80"),
        "{taken}"
    );

    let error = topology.host("a b").map(drop).unwrap_err().to_string();
    assert!(error.contains("\"a b\" is not a name"), "{error}");
    Ok(())
}

#[test]
fn a_process_is_killed_with_its_children() -> Result<()> {
    let topology = Topology::new("processes")?;
    let host = topology.host("host")?;
    let mut process = host.spawn(host.command("sh").args(["-c", "sleep 600 & echo $!; wait"]))?;
    process.wait_for_output("\n", SOON)?;
    let child = Path::new("/proc").join(process.output().trim());
    assert!(child.exists());
    process.kill();
    wait_until("the child ends", SOON, || !is_running(&child))?;

    let trap = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done";
    let mut process = host.spawn(host.command("sh").args(["-c", trap]))?;
    process.wait_for_output("ready", SOON)?;
    assert_eq!(process.terminate(SOON)?.code(), Some(7));
    Ok(())
}

fn is_running(process: &Path) -> bool {
    fs::read_to_string(process.join("stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_panic_leaves_nothing_behind() -> Result<()> {
    let mut id = String::new();
    let mut stray = None;
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let (topology, client, _router, server) = routed("panic").expect("a topology");
        id = topology.id().to_string();
        let _nginx = server.http_server(&["198.51.100.2:80"], "x").expect("a server");
        let _echo = server.tcp_echo("198.51.100.2:7", "x").expect("a server");
        let _connection = client.tcp_connect("198.51.100.2:7").expect("a connection");
        fs::create_dir_all(topology.pins().join("deep/down")).expect("a directory for pins");
        // A process without a guard that kills it.
        stray = server.command("sleep").arg("600").spawn().ok();
        assert_eq!(remains(&id).len(), 6, "3 hosts, pins, cgroup, files: {:?}", remains(&id));
        panic!("as a failing test does");
    }));
    assert!(panic.is_err());
    assert_eq!(remains(&id), [""; 0]);
    assert!(!stray.context("sleep did not start")?.wait()?.success(), "killed");
    Ok(())
}

#[test]
fn a_sweep_removes_leftovers_of_killed_runs_only() -> Result<()> {
    let topology = Topology::new("sweep")?;
    let mut owner = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn()?;
    let id = Id::of_process(owner.id(), 0).context("the owner is not running")?.to_string();
    let namespace = format!("{id}-killed-host");
    run("ip", &["netns", "add", &namespace])?;
    let path = format!("--net=/run/netns/{namespace}");
    let mut stray = Command::new("nsenter").args([&path, "sleep", "600"]).spawn()?;
    // Before that, nsenter may not have entered the namespace, and a sweep would not find it.
    let name = format!("/proc/{}/comm", stray.id());
    wait_until("nsenter becomes sleep", SOON, || {
        fs::read_to_string(&name).is_ok_and(|name| name.trim() == "sleep")
    })?;
    fs::create_dir_all(mount_bpffs()?.join("millrace-test").join(&id).join("maps"))?;
    fs::create_dir_all(env::temp_dir().join(&id))?;
    let groups = cgroup_root()?.context("no cgroup2 file system is mounted")?;
    fs::create_dir(groups.join(&id))?;
    let hierarchies = Hierarchy::all_mounted()?;
    for hierarchy in &hierarchies {
        // Of a node, with one of a pod.
        fs::create_dir_all(hierarchy.mounted_at.join(format!("{id}-node")).join("pod"))?;
    }

    remove_leftovers();
    assert_eq!(remains(&id).len(), 4 + hierarchies.len(), "swept although its owner runs");
    assert!(stray.try_wait()?.is_none());

    owner.kill()?;
    // A zombie counts as ended, too.
    wait_until("the owner ends", SOON, || {
        !is_running(&Path::new("/proc").join(owner.id().to_string()))
    })?;
    remove_leftovers();
    assert_eq!(remains(&id), [""; 0]);
    assert!(!stray.wait()?.success(), "killed");
    owner.wait()?;
    assert_ne!(remains(&topology.id().to_string()), [""; 0], "its own topology was swept");
    Ok(())
}

#[test]
fn a_sweep_removes_leftovers_of_a_reused_process_id() -> Result<()> {
    // Process 1 is running, but was not started at this tick.
    let id = format!("mr-1-{}-{}", u64::MAX, std::process::id());
    fs::create_dir(env::temp_dir().join(&id))?;
    remove_leftovers();
    assert_eq!(remains(&id), [""; 0]);
    Ok(())
}

#[test]
fn the_machines_own_namespace_is_left_alone() -> Result<()> {
    let devices = || -> Result<BTreeSet<String>> {
        let entries = fs::read_dir("/sys/class/net")?.flatten();
        Ok(entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
    };
    let before = devices()?;
    let (_topology, client, ..) = routed("machine")?;
    assert_eq!(devices()?, before);
    let inside = client.enter(|| Ok(fs::read_link("/proc/thread-self/ns/net")?))?;
    assert_ne!(inside, fs::read_link("/proc/thread-self/ns/net")?);
    Ok(())
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let status = Command::new(program).args(arguments).status()?;
    anyhow::ensure!(status.success(), "{program} {arguments:?}: {status}");
    Ok(())
}

/// The directory of an agent that served a request is empty for the next agent, except for loaded
/// programs.
#[test]
fn the_maps_of_a_warm_directory_are_like_new_ones() -> Result<()> {
    let network = OneNode::warm(1)?;
    let (agent, _) = network.agent_on(&manifests(&[here().tcp(80, 8080)]))?;
    assert_eq!(network.curl("http://203.0.113.10/")?, "pod-0\n");
    let refused = network.client.tcp_connect("203.0.113.10:81").is_err();
    assert!(refused && agent.counted("no_such_port")? > 0, "{}", agent.get(&["counters"])?);
    drop((agent, network));

    // Another test may take the directory first, and keeps it again when it ends.
    let mut network = OneNode::warm(0)?;
    wait_until("a warm directory", SOON, || {
        network.pin_path().exists() || {
            OneNode::warm(0).is_ok_and(|next| {
                network = next;
                network.pin_path().exists()
            })
        }
    })?;
    let path = network.pin_path();
    let tables = Tables::open(|name| path.join(name))?;
    assert_eq!(format!("{:?}", tables.snapshot()?), format!("{:?}", Snapshot::default()));
    assert_eq!((tables.flows4().count(), tables.flows6().count()), (0, 0));
    assert!(tables.reasons()?.iter().all(|(_, count)| *count == 0));
    assert_eq!(tables.devices().len(), 0);
    let (agent, _) = network.agent_on("")?;
    assert!(agent.log().contains("adopting maps and programs"), "{}", agent.log());
    Ok(())
}
