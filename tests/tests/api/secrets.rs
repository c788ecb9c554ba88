//! No credential of the agent appears in its output, at any log level.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::programs::agent::{Agent, AgentSource, program};
use tests::programs::api_server::ApiServer;
use tests::worlds::one_node::{DEVICE, OneNode, has_kubectl};
use tests::worlds::topology::{SOON, wait_until};

const TOKEN: &str = "eyJhbGciOiJub25lIn0.c2VjcmV0LXRva2Vu.bWlsbHJhY2U";
const PASSWORD: &str = "correct-horse-battery-staple";
/// `admin` and the password, as HTTP Basic authentication encodes them.
const BASIC: &str = "YWRtaW46Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5LXN0YXBsZQ";

/// The most verbose log levels of the agent, its libraries and its programs.
const TALKATIVE: [&str; 4] = ["--log", "trace,kube_client=trace", "--bpf-log-level", "debug"];

/// The annotation is invalid, which the agent reports as an Event.
const WRONG: &str = "
apiVersion: v1
kind: Service
metadata: {name: wrong, namespace: default, annotations: {millrace.io/forwarding: teleport}}
spec:
  ports: [{port: 80}]
";

/// A Kubernetes API server on the node itself.
struct Cluster {
    network: OneNode,
    server: ApiServer,
}

impl Cluster {
    fn new() -> Result<Self> {
        let network = OneNode::warm(0)?;
        let data = network.kubeconfig().parent().context("it is in a directory")?.to_owned();
        let server = ApiServer::start(&network.node, data, "127.0.0.1:0".parse()?)?;
        Ok(Self { network, server })
    }

    /// The server's kubeconfig with these fields added to its user, and the secrets in it.
    fn kubeconfig(&self, more: &[(&str, &str)]) -> Result<(PathBuf, Vec<String>)> {
        let mut config: Value =
            serde_norway::from_str(&fs::read_to_string(self.server.kubeconfig())?)?;
        let user = &mut config["users"][0]["user"];
        let key = user["client-key-data"].as_str().context("no client key")?;
        // A part of the key, because output may contain it truncated.
        let key = key.get(200..240).context("the key is too short")?.to_owned();
        for (field, value) in more {
            user[field] = json!(value);
        }
        let path = self.network.topology.directory().join("secret.kubeconfig");
        fs::write(&path, config.to_string())?;
        Ok((path, vec![key, TOKEN.to_owned(), PASSWORD.to_owned(), BASIC.to_owned()]))
    }

    /// All output of an agent with this kubeconfig, each with its origin.
    fn output_with(&self, kubeconfig: &Path) -> Result<Vec<(&'static str, String)>> {
        let network = &self.network;
        let (node, pins) = (&network.node, network.pin_path());
        let source = AgentSource::Cluster(kubeconfig);
        let mut agent = Agent::launch(node, &pins, source, DEVICE, &TALKATIVE)?;
        agent.wait_for_output("ready service_ports=")?;
        agent.wait_for_output("teleport")?;
        let mut printed = Vec::new();
        // With any exit code: an invalid Service may make the node unhealthy.
        let path = kubeconfig.to_str().context("UTF-8")?;
        let own = [&["--kubeconfig", path, "--device", DEVICE][..], &TALKATIVE].concat();
        for (command, more) in [("config", &own[..]), ("check", &own), ("status", &[])] {
            let mut words = node.command(program()?);
            words.args([command, "-o", "json"]).args(more).arg("--pin-path").arg(&pins);
            let output = words.output()?;
            printed.push((command, String::from_utf8(output.stdout)?));
            printed.push(("stderr of a command", String::from_utf8(output.stderr)?));
        }
        for (name, url) in [("metrics", "10249/metrics"), ("health", "10256/healthz")] {
            let url = format!("http://127.0.0.1:{url}");
            printed.push((name, node.run(["curl", "--silent", "--max-time", "60", &url])?));
        }
        if has_kubectl() {
            // The Event may be later than the log.
            let mut events = String::new();
            wait_until("there is an Event", SOON, || {
                let list = network.kubectl(&["get", "events", "-A", "-o", "yaml"]);
                events = list.unwrap_or_default();
                events.contains("teleport")
            })
            .with_context(|| events.clone())?;
            printed.push(("Events", events));
        }
        printed.push(("log", agent.end()?));
        Ok(printed)
    }
}

#[test]
fn no_secret_appears_in_any_output() -> Result<()> {
    let cluster = Cluster::new()?;
    let manifest = cluster.network.topology.directory().join("wrong.yaml");
    fs::write(&manifest, WRONG)?;
    if !has_kubectl() {
        eprintln!("skipped: no kubectl on the PATH");
        return Ok(());
    }
    cluster.network.kubectl(&["apply", "-f", &manifest.to_string_lossy()])?;
    for more in [&[("token", TOKEN)][..], &[("username", "admin"), ("password", PASSWORD)]] {
        let (kubeconfig, secrets) = cluster.kubeconfig(more)?;
        let printed = cluster.output_with(&kubeconfig)?;
        // The output is verbose, and covers what it should.
        let of =
            |place: &str| printed.iter().find(|(at, _)| *at == place).map(|(_, printed)| printed);
        for (place, part) in [
            ("log", "TRACE"),
            // The log includes the API client.
            ("log", "http1 handshake complete"),
            ("log", "127.0.0.1"),
            ("config", "secret.kubeconfig"),
            ("metrics", "rest_client_requests_total"),
            ("status", "nodeName"),
            ("Events", "teleport"),
        ] {
            let printed = of(place).context(place)?;
            ensure!(printed.contains(part), "{part} is not in {place}:\n{printed}");
        }
        for secret in secrets {
            for (place, printed) in &printed {
                let found = printed.lines().find(|line| line.contains(&secret));
                ensure!(found.is_none(), "{secret} of {more:?} is in {place}: {found:?}");
            }
        }
    }
    Ok(())
}
