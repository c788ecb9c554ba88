//! Two machines without Kubernetes share an address: the files of docs/two-machines.md.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::programs::agent::program;
use tests::programs::api_server;
use tests::worlds::announcers::{ConnectionStream, IMPATIENT, OpenConnection};
use tests::worlds::topology::{Echo, Host, Process, SOON, Topology, wait_until};
use tokio::runtime::Builder;

#[path = "../../../lb-userspace/tests/deploy/console/blocks.rs"]
mod blocks;

/// In the page's files.
const ADDRESS: &str = "192.0.2.10";
const SERVICE: &str = "192.0.2.10:80";
const BACKENDS: [&str; 2] = ["192.0.2.21", "192.0.2.22"];

/// Where the machines' objects are.
#[derive(Clone, Copy, PartialEq)]
enum ObjectLocation {
    /// In files: `millrace agent`.
    Files,
    /// In an API of each machine: `millrace standalone`.
    EmbeddedApis,
}

/// Machines, backends and a client on one switch.
struct Pair {
    objects: ObjectLocation,
    client: Host,
    switch: Host,
    machines: Vec<Host>,
    agents: Vec<Option<Process>>,
    backends: Vec<Echo>,
    topology: Topology,
}

impl Pair {
    /// Starts the agents with the files of the page.
    fn start(objects: ObjectLocation) -> Result<Self> {
        let topology = Topology::new("two-machines")?;
        let (client, switch) = (topology.host("client")?, topology.host("switch")?);
        switch.bridge("br0")?;
        let plug = |host: &Host, address: &str| {
            let port = format!("port{}", address.rsplit('.').next().unwrap_or_default());
            let address = format!("{address}/24");
            topology.link(host.port("eth0").address(&address), switch.port(&port).bridge("br0"))
        };
        plug(&client, "192.0.2.2")?;
        let mut backends = Vec::new();
        for address in BACKENDS {
            let backend = topology.host(&format!("backend{}", &address[9..]))?;
            plug(&backend, address)?;
            backends.push(backend.tcp_echo(&format!("{address}:8080"), address)?);
        }
        let machines = [topology.router("lb-a")?, topology.router("lb-b")?].into();
        let agents = vec![None, None];
        let mut pair = Self { objects, client, switch, machines, agents, backends, topology };
        for (number, machine) in pair.machines.iter().enumerate() {
            let address = format!("192.0.2.{}/24", 11 + number);
            let port = format!("port{}", 11 + number);
            pair.topology.link(
                machine.port("eth0").address(&address),
                pair.switch.port(&port).bridge("br0"),
            )?;
        }
        for number in 0..2 {
            let directory = pair.directory(number);
            fs::create_dir_all(directory.join("objects"))?;
            fs::write(directory.join("tunnel.key"), "d41d8cd98f00b204e9800998ecf8427e0123")?;
            let place = directory.display().to_string();
            let files = blocks::files_of_page("two-machines");
            for (path, text) in files.iter().filter(|(path, _)| !path.contains("maintenance")) {
                let text = text.replace("/etc/millrace", &place);
                let is_left_out = |line: &str| {
                    objects == ObjectLocation::EmbeddedApis && line.starts_with("manifests: ")
                };
                let lines = text.lines().filter(|line| !is_left_out(line));
                let text: String = lines.flat_map(|line| [line, "\n"]).collect();
                fs::write(directory.join(path), text)?;
            }
            pair.launch(number)?;
        }
        for agent in pair.agents.iter_mut().flatten() {
            agent.wait_for_output("ready service_ports=", SOON)?;
        }
        Ok(pair)
    }

    /// Creates the objects of the page in a machine's API; TCP connections check its backends.
    fn apply_objects(&self, machine: usize) -> Result<()> {
        let text = fs::read_to_string(self.directory(machine).join("objects/front.yaml"))?;
        let documents = text.split("---\n").map(serde_norway::from_str);
        let mut objects: Vec<Value> = documents.collect::<Result<_, _>>()?;
        for slice in objects.iter_mut().filter(|object| object["kind"] == "EndpointSlice") {
            slice["metadata"]["annotations"] = json!({
                "millrace.io/health-check": "tcp",
                "millrace.io/health-check-interval": "100ms",
                "millrace.io/health-check-timeout": "100ms",
            });
        }
        self.machines[machine].enter(|| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let kubeconfig = self.data_directory(machine).join("kubeconfig");
                api_server::create_objects(&api_server::build_client(&kubeconfig).await?, objects)
                    .await
            })
        })
    }

    fn wait_for_any_holder(&self) -> Result<usize> {
        let mut holder = None;
        wait_until("the machines that run agree who holds the address", SOON, || {
            holder = self.holder().unwrap_or_default();
            holder.is_some()
        })?;
        holder.context("it was found")
    }

    /// The machine loses power and its link.
    fn power_off(&mut self, machine: usize) -> Result<()> {
        self.switch.ip(&format!("link set port{} down", 11 + machine))?;
        if let Some(agent) = self.agents[machine].take() {
            agent.kill();
        }
        Ok(())
    }

    fn power_on(&mut self, machine: usize) -> Result<()> {
        self.switch.ip(&format!("link set port{} up", 11 + machine))?;
        self.launch(machine)?;
        let agent = self.agents[machine].as_mut().context("it was started")?;
        agent.wait_for_output("ready service_ports=", SOON)
    }

    /// `/etc/millrace` of a machine.
    fn directory(&self, machine: usize) -> PathBuf {
        self.topology.directory().join(name(machine))
    }

    /// `/var/lib/millrace` of a machine, which `standalone` creates: it must not be open to others.
    fn data_directory(&self, machine: usize) -> PathBuf {
        self.directory(machine).join("data")
    }

    fn launch(&mut self, machine: usize) -> Result<()> {
        let host = &self.machines[machine];
        let mut command = host.command(program()?);
        let (role, flag, state) = match self.objects {
            ObjectLocation::Files => ("agent", "--state-directory", self.directory(machine)),
            ObjectLocation::EmbeddedApis => {
                ("standalone", "--data-dir", self.data_directory(machine))
            }
        };
        command.args([role, "--node-name", name(machine), "--xdp-mode", "off", "--config"]);
        command.arg(self.directory(machine).join("config.yaml"));
        command.arg(flag).arg(state);
        command.arg("--pin-path").arg(self.topology.warm_pins(name(machine)));
        command.arg("--cgroup").arg(host.cgroup());
        self.agents[machine] = Some(host.spawn(&mut command)?);
        Ok(())
    }

    /// The holder of the address, if all agents that run name the same one.
    fn holder(&self) -> Result<Option<usize>> {
        let mut names = Vec::new();
        for machine in (0..2).filter(|machine| self.agents[*machine].is_some()) {
            let mut command = self.machines[machine].command(program()?);
            command.args(["announcements", "-o", "json", "--pin-path"]);
            command.arg(self.topology.warm_pins(name(machine)));
            let output = command.output()?;
            let rows: Vec<Value> = serde_json::from_slice(&output.stdout)
                .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
            let row = rows.iter().find(|row| row["address"] == ADDRESS);
            names.push(row.and_then(|row| row["holder"].as_str()).unwrap_or_default().to_owned());
        }
        names.dedup();
        Ok((0..2).find(|machine| names == [name(*machine)]))
    }

    fn wait_for_holder(&self, machine: usize) -> Result<()> {
        let mut last = Ok(None);
        wait_until(&format!("{} holds the address", name(machine)), SOON, || {
            last = self.holder();
            last.as_ref().is_ok_and(|holder| *holder == Some(machine))
        })
        .with_context(|| format!("{last:?}"))
    }

    fn connect(&self) -> Result<OpenConnection> {
        self.client.enter(|| OpenConnection::open(SERVICE, SOON))
    }
}

fn name(machine: usize) -> &'static str {
    ["lb-a", "lb-b"][machine]
}

#[test]
fn two_machines_have_one_address_with_the_files_of_the_documentation() -> Result<()> {
    let mut pair = Pair::start(ObjectLocation::Files)?;
    let first = pair.wait_for_any_holder()?;
    let second = 1 - first;
    let mut connection = pair.connect()?;
    ensure!(BACKENDS.contains(&connection.server.as_str()), "{}", connection.server);

    // An agent that crashes, and starts again: nothing moves, and the connection continues.
    let stream = ConnectionStream::start(&pair.client, SERVICE, SOON);
    stream.wait_for_more(1)?;
    if let Some(agent) = pair.agents[first].take() {
        agent.kill();
    }
    connection.ask().context("while the agent is away")?;
    pair.launch(first)?;
    let agent = pair.agents[first].as_mut().context("it was started")?;
    agent.wait_for_output("ready service_ports=", SOON)?;
    pair.wait_for_holder(first)?;
    connection.ask().context("after the agent's restart")?;
    stream.wait_for_more(1)?;
    let outcome = stream.end()?;
    ensure!(outcome.failed == 0, "{outcome:?}");

    // Maintenance: the other one takes the address.
    let files = blocks::files_of_page("two-machines");
    let maintenance = files.iter().find(|(path, _)| path.contains("maintenance"));
    let (path, text) = maintenance.context("the page has it")?;
    let path = pair.directory(first).join(path);
    fs::write(&path, text.replace("lb-a", name(first)))?;
    pair.wait_for_holder(second)?;
    pair.connect()?;

    // The holder loses power while the other one is ready again.
    fs::remove_file(&path)?;
    let lost = pair.wait_for_any_holder()?;
    let stream = ConnectionStream::start(&pair.client, SERVICE, IMPATIENT);
    stream.wait_for_more(1)?;
    pair.power_off(lost)?;
    pair.wait_for_holder(1 - lost)?;
    for _ in 0..10 {
        pair.connect()?;
    }
    println!("without power: {:?}", stream.end()?);
    Ok(())
}

/// The page's section about health checks: each machine has an API, and neither knows the other's.
#[test]
fn two_machines_with_embedded_apis_take_over_and_check_their_backends() -> Result<()> {
    let mut pair = Pair::start(ObjectLocation::EmbeddedApis)?;
    for machine in 0..2 {
        pair.apply_objects(machine)?;
    }
    let lost = pair.wait_for_any_holder()?;
    wait_until("a connection is served", SOON, || pair.connect().is_ok())?;

    pair.power_off(lost)?;
    pair.wait_for_holder(1 - lost)?;
    wait_until("a connection is served", SOON, || pair.connect().is_ok())?;

    // The checks of the machine that is left take a backend away that no longer accepts connections.
    drop(pair.backends.pop());
    let is_served_by_the_other =
        || (0..10).all(|_| pair.connect().is_ok_and(|connection| connection.server == BACKENDS[0]));
    wait_until("only the backend that responds gets connections", SOON, is_served_by_the_other)?;

    // The machine comes back with the objects that its API has stored.
    pair.power_on(lost)?;
    pair.wait_for_any_holder()?;
    wait_until("a connection is served", SOON, || pair.connect().is_ok())
}
