//! Real servers.

use std::fs;
use std::net::SocketAddr;

use anyhow::Result;

use super::command::{Process, wait_until};
use super::host::Host;

impl Host {
    /// An nginx that answers every request with `answer` and a line break, at `/client` with the
    /// client's address as it sees it, and at `/large` with 8 MiB.
    pub fn http_server(&self, listen: &[&str], answer: &str) -> Result<Process> {
        let directory = self.files().join(format!("{}-nginx-{answer}", self.namespace()));
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("large"), vec![b'x'; 8 << 20])?;
        let at = directory.display();
        let listens: String = listen
            .iter()
            .map(|address| format!("        listen {address} backlog=4096;\n"))
            .collect();
        let configuration = format!(
            "daemon off; master_process off; user root; pid {at}/pid; error_log stderr warn;\n\
             events {{ worker_connections 8192; }}\n\
             http {{\n    access_log off; default_type text/plain; keepalive_requests 1000000;\n\
             \x20   client_body_temp_path {at}/body; proxy_temp_path {at}/proxy;\n\
             \x20   fastcgi_temp_path {at}/fastcgi; uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;\n\
             \x20   server {{\n{listens}        root {at};\n\
             \x20       location = /client {{ return 200 \"$remote_addr\\n\"; }}\n\
             \x20       location = /large {{ }}\n\
             \x20       location / {{ return 200 \"{answer}\\n\"; }}\n    }}\n}}\n"
        );
        let file = directory.join("nginx.conf");
        fs::write(&file, configuration)?;
        let mut command = self.command("nginx");
        command.arg("-p").arg(&directory).arg("-c").arg(&file).args(["-e", "stderr"]);
        let server = self.start(command)?;
        for address in listen {
            self.wait_for_listener(address)?;
        }
        Ok(server)
    }

    /// An iperf3 server; it serves one client at a time.
    pub fn iperf3_server(&self, address: &str, port: u16) -> Result<Process> {
        let mut command = self.command("iperf3");
        command.args(["--server", "--bind", address, "--port", &port.to_string()]);
        let server = self.start(command)?;
        self.wait_for_listener(&SocketAddr::new(address.parse()?, port).to_string())?;
        Ok(server)
    }

    fn wait_for_listener(&self, address: &str) -> Result<()> {
        let address: SocketAddr = address.parse()?;
        wait_until(&format!("a server listens on {address}"), || {
            self.enter(|| Ok(std::net::TcpStream::connect(address).is_ok())).unwrap_or(false)
        })
    }
}
