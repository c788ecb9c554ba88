//! What nginx, Apache and Node read of attacks that come through the proxy: nothing that it has not sent as a request.
//! A server that is not installed is left out; `cargo xtask prerequisites` installs them.

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::attacks::{AMBIGUOUS_CHUNKS, list_hidden_requests, with_chunks};
use crate::client::Client;
use crate::smuggling::statuses;
use crate::world::{HOST, World, config, wait_until};

/// Ends when it is dropped.
struct Server {
    process: Child,
    log: PathBuf,
    address: SocketAddr,
    _directory: TempDir,
}

impl Server {
    /// `port`: of an address that only this process has. `configure` writes a file, and names the program with its
    /// arguments. `None`: it is not installed.
    fn start(port: u16, configure: impl FnOnce(&Path, SocketAddr) -> Command) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let [.., high, middle, low] = std::process::id().to_be_bytes();
        let address = SocketAddr::from((Ipv4Addr::new(127, 1 + high % 250, middle, low), port));
        let mut command = configure(directory.path(), address);
        let process = match command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn() {
            Ok(process) => process,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                println!("{:?} is left out: not installed", command.get_program());
                return None;
            }
            Err(error) => panic!("{command:?}: {error}"),
        };
        let log = directory.path().join("log");
        let server = Self { process, log, address, _directory: directory };
        wait_until("server", || TcpStream::connect(address).is_ok());
        Some(server)
    }

    /// A line for each request: its identifier, or `-` where there is none, its method and its target.
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = self.process.id().to_string();
        // Servers end their own processes then.
        let _ = Command::new("kill").arg(pid).status();
        let _ = self.process.wait();
    }
}

fn nginx(directory: &Path, address: SocketAddr) -> Command {
    let shown = directory.display();
    let text = format!(
        "daemon off; pid {shown}/pid; user root; worker_processes 1; error_log {shown}/error;
        events {{}}
        http {{
            log_format requests '$http_x_request_id $request_method $request_uri';
            access_log {shown}/log requests;
            client_body_temp_path {shown};
            server {{ listen {address}; keepalive_requests 1000000; location / {{ return 204; }} }}
        }}"
    );
    fs::write(directory.join("nginx.conf"), text).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-e").arg(directory.join("error"));
    command.arg("-p").arg(directory).arg("-c").arg(directory.join("nginx.conf"));
    command
}

fn apache(directory: &Path, address: SocketAddr) -> Command {
    let shown = directory.display();
    let text = format!(
        "ServerName {HOST}
        LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
        LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
        LoadModule rewrite_module /usr/lib/apache2/modules/mod_rewrite.so
        User www-data
        ServerLimit 1
        StartServers 1
        ThreadsPerChild 8
        MaxRequestWorkers 8
        MinSpareThreads 1
        MaxSpareThreads 8
        MaxKeepAliveRequests 0
        PidFile {shown}/pid
        Mutex file:{shown}
        Listen {address}
        ErrorLog {shown}/error
        LogFormat \"%{{X-Request-Id}}i %m %U%q\" requests
        CustomLog {shown}/log requests
        RewriteEngine On
        RewriteRule ^ - [R=204,L]\n"
    );
    fs::write(directory.join("apache.conf"), text).unwrap();
    let mut command = Command::new("apache2");
    command.arg("-d").arg(directory).arg("-f").arg(directory.join("apache.conf"));
    command.arg("-DFOREGROUND");
    command
}

fn node(directory: &Path, address: SocketAddr) -> Command {
    let log = directory.join("log");
    let (host, port) = (address.ip(), address.port());
    let program = format!(
        "const fs = require('fs');
        const server = require('http').createServer((request, response) => {{
            const id = request.headers['x-request-id'] || '-';
            fs.appendFileSync({log:?}, `${{id}} ${{request.method}} ${{request.url}}\\n`);
            request.on('end', () => response.writeHead(204).end()).on('error', () => {{}}).resume();
        }});
        server.on('clientError', (error, socket) => {{
            // A request that the proxy cuts off is none that it has not sent.
            if (!['ECONNRESET', 'HPE_INVALID_EOF_STATE'].includes(error.code))
                fs.appendFileSync({log:?}, `- ${{error.code}}\\n`);
            socket.destroy();
        }});
        server.listen({port}, '{host}');"
    );
    let mut command = Command::new("node");
    command.args(["--eval", &program]);
    command
}

/// Sends every attack, and looks for requests that the proxy has not marked as its own.
fn attack(server: Option<Server>) {
    let Some(server) = server else { return };
    let world = World::start(config(&[server.address]));
    let chunks = AMBIGUOUS_CHUNKS.map(with_chunks);
    let attacks: Vec<String> = list_hidden_requests().into_iter().chain(chunks).collect();
    for (number, attacks) in attacks.chunks(16).enumerate() {
        for attack in attacks {
            statuses(&world, attack);
        }
        // By the same connection to the server, so behind what else it reads of the attacks.
        let path = format!("/attacks-{number}");
        let mut client = Client::connect(world.http());
        assert_eq!(client.get(HOST, &path).status, 204, "after {attacks:#?}");
        wait_until("line of the log", || server.log().contains(&format!(" GET {path}\n")));
        let log = server.log();
        let other = log.lines().find(|line| line.starts_with('-'));
        assert_eq!(other, None, "after {attacks:#?}");
    }
}

#[test]
fn nginx_sees_no_request_that_the_proxy_has_not_seen() {
    attack(Server::start(18_081, nginx));
}

#[test]
fn apache_sees_no_request_that_the_proxy_has_not_seen() {
    attack(Server::start(18_082, apache));
}

#[test]
fn node_sees_no_request_that_the_proxy_has_not_seen() {
    attack(Server::start(18_083, node));
}
