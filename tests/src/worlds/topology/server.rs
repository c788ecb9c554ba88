//! Real servers: nginx and iperf3.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};

use super::{Host, Process, SOON};

/// The size of `/large` on web servers, in bytes.
pub const LARGE: usize = 16 << 20;

impl Host {
    /// Starts an nginx on all these addresses. Its response to every request is `answer`, except
    /// for
    ///
    /// - `/client`: the client's address as the server sees it,
    /// - `/large`: [`LARGE`] bytes: each four of them are the number of their KiB, big-endian.
    pub fn http_server(&self, listen: &[&str], answer: &str) -> Result<Process> {
        let addresses =
            listen.iter().map(|address| socket_address(address)).collect::<Result<Vec<_>>>()?;
        let number = self.shared.logs.fetch_add(1, Ordering::Relaxed);
        let directory = self.shared.directory.join(format!("{}-{number}-http", self.name()));
        fs::create_dir(&directory)?;
        let large = large_file(&self.shared.directory)?;
        let configuration = directory.join("nginx.conf");
        fs::write(&configuration, nginx_conf(&directory, &large, listen, answer))?;

        // The default limit of 1024 files is low for connections.
        let mut command = self.command("prlimit");
        command.args(["--nofile=16384", "nginx", "-e", "stderr"]);
        command.arg("-p").arg(&directory).arg("-c").arg(&configuration);
        let mut server = Process::start(&self.shared, self.name(), "nginx", &mut command)?;
        for address in addresses {
            let accepts = |_: &Process| self.enter(|| Ok(TcpStream::connect(address)?)).is_ok();
            server.wait_until_so(&format!("accepts at {address}"), SOON, accepts)?;
        }
        Ok(server)
    }

    /// Starts an iperf3 server, which serves one client at a time.
    pub fn iperf3_server(&self, listen: &str) -> Result<Process> {
        let address = socket_address(listen)?;
        let mut command = self.command("iperf3");
        command.args(["--server", "--forceflush", "--bind", &address.ip().to_string()]);
        command.args(["--port", &address.port().to_string()]);
        let mut server = self.spawn(&mut command)?;
        // Not by a connection, which would count as a client.
        server.wait_for_output("Server listening", SOON)?;
        Ok(server)
    }
}

pub(super) fn socket_address(text: &str) -> Result<SocketAddr> {
    text.parse().with_context(|| {
        format!("{text:?} is not an address with a port, as in 10.244.1.10:8080 or [fd00::10]:8080")
    })
}

fn nginx_conf(directory: &Path, large: &Path, listen: &[&str], answer: &str) -> String {
    let (directory, large) = (directory.display(), large.display());
    let listen: String =
        listen.iter().map(|address| format!("listen {address} backlog=4096; ")).collect();
    format!(
        r#"
daemon off;
user root;
# One process, our child: a worker would be an orphan when its master is killed.
master_process off;
pid {directory}/pid;
error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    default_type text/plain;
    sendfile on;
    keepalive_requests 1000000;
    # A client in a slow machine keeps its connection for as long as a test lasts.
    keepalive_timeout 1h;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        {listen}
        location / {{ return 200 "{answer}\n"; }}
        location = /client {{ return 200 "$remote_addr\n"; }}
        location = /large {{ alias {large}; }}
    }}
}}
"#
    )
}

/// The file of all servers of a topology, created at first use.
fn large_file(directory: &Path) -> Result<PathBuf> {
    let path = directory.join("large");
    if !path.exists() {
        let mut unfinished = tempfile::NamedTempFile::new_in(directory)?;
        for number in 0..(LARGE / 1024) as u32 {
            unfinished.write_all(&[number.to_be_bytes(); 256].concat())?;
        }
        // Atomically: another server may look for it.
        unfinished.persist(&path)?;
    }
    Ok(path)
}
