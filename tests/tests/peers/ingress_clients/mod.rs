//! Clients and servers that people use, on both sides of `millrace ingress`: gRPC, WebSockets, h2load.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tests::manifests::{Ingress, ingress_class, manifests};
use tests::worlds::edge::{Edge, HTTP, edge_address_of, edge_service};
use tests::worlds::topology::{Process, SOON};

const GRPC: usize = 1;
const WEBSOCKET: usize = 2;
const PREFIX: &str = "Prefix";

#[test]
fn common_clients_work_through_the_proxy() -> Result<()> {
    let services = manifests(&[
        edge_service("web", &[0]),
        edge_service("grpc", &[GRPC]),
        edge_service("h2c", &[GRPC]).app_protocol("kubernetes.io/h2c"),
        edge_service("ws", &[WEBSOCKET]).app_protocol("kubernetes.io/ws"),
    ]);
    let rule = |name: &str| {
        let host = format!("{name}.test");
        Ingress::new(name).host(Some(&host), &[(PREFIX, "/", name)])
    };
    let rules =
        [rule("web"), rule("grpc").annotated("backend-protocol", "GRPC"), rule("h2c"), rule("ws")];
    let rules: String = rules.iter().map(Ingress::manifest).collect();
    let edge = Edge::start("clients", &["web"], &(ingress_class() + &services + &rules))?;
    load(&edge)?;
    grpc(&edge)?;
    websockets(&edge)
}

/// Many requests on few connections, none of which may fail.
fn load(edge: &Edge) -> Result<()> {
    let to = format!("--connect-to=127.0.0.1:{HTTP}");
    for protocol in [&["--h1", "-m1"][..], &["-m100"]] {
        let words = ["h2load", "-n4000", "-c8", &to, "http://web.test/"];
        let output = edge.host.run(words.iter().chain(protocol))?;
        let all =
            "4000 total, 4000 started, 4000 done, 4000 succeeded, 0 failed, 0 errored, 0 timeout";
        assert!(output.contains(all), "{protocol:?}: {output}");
        assert!(output.contains("4000 2xx"), "{protocol:?}: {output}");
    }
    Ok(())
}

fn grpc(edge: &Edge) -> Result<()> {
    let Some(python) = python("grpc") else { return Ok(()) };
    let address = format!("{}:8080", edge_address_of(GRPC));
    let _server = start(edge, GRPC, &python, "grpc_calls.py", &[&address])?;
    for host in ["grpc.test", "h2c.test"] {
        call(edge, &python, "grpc_calls.py", &[&format!("127.0.0.1:{HTTP}"), host])?;
    }
    Ok(())
}

fn websockets(edge: &Edge) -> Result<()> {
    let Some(python) = python("websockets") else { return Ok(()) };
    let address = edge_address_of(WEBSOCKET).to_string();
    let _server = start(edge, WEBSOCKET, &python, "websocket_calls.py", &[&address, "8080"])?;
    call(edge, &python, "websocket_calls.py", &["127.0.0.1", &HTTP.to_string(), "ws.test"])
}

/// A Python that can import this module. `cargo xtask prerequisites` makes one.
fn python(module: &str) -> Option<PathBuf> {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/python/bin/python");
    let candidates = env::var_os("MILLRACE_PYTHON").map(PathBuf::from);
    let found = candidates.into_iter().chain([installed, "python3".into()]).find(|python| {
        let imported = Command::new(python).args(["-c", &format!("import {module}")]).output();
        imported.is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        eprintln!("there is no Python with the module {module}: its clients are not tested");
    }
    found
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/ingress_clients").join(name)
}

fn start(edge: &Edge, number: usize, python: &Path, name: &str, words: &[&str]) -> Result<Process> {
    edge.host.address("lo", &format!("{}/32", edge_address_of(number)))?;
    let mut command = edge.host.command(python);
    let mut server = edge.host.spawn(command.arg(script(name)).arg("serve").args(words))?;
    server.wait_for_output("ready", SOON)?;
    Ok(server)
}

fn call(edge: &Edge, python: &Path, name: &str, words: &[&str]) -> Result<()> {
    let script = script(name);
    let (python, script) = (python.to_string_lossy(), script.to_string_lossy());
    let words = [&*python, &*script, "call"].into_iter().chain(words.iter().copied());
    let output = edge.host.run(words).with_context(|| format!("{name}\n{}", edge.log()))?;
    assert_eq!(output, "done\n");
    Ok(())
}
