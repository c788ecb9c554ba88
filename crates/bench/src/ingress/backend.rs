//! The servers behind the proxies.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use ::tests::worlds::topology::{Host, Process, SOON};
use anyhow::{Context, Result};

use super::pinned;

/// The address of the servers: endpoints of Services may not have loopback addresses.
pub const ADDRESS: &str = "10.244.1.10";
pub const WEB: &str = "10.244.1.10:9000";
pub const WEBSOCKET: &str = "10.244.1.10:9001";

/// Octets of `/large`.
pub const LARGE: u64 = 256 << 20;

/// nginx with a short response for `/`, and a large file.
pub fn start_web_server(host: &Host, directory: &Path) -> Result<Process> {
    let directory = directory.join("backend");
    fs::create_dir(&directory)?;
    // Without blocks on the disk: the figure is about the proxy.
    fs::File::create(directory.join("large"))?.set_len(LARGE)?;
    let text = format!(
        "daemon off; master_process off; error_log stderr; pid {0}/pid;\n\
         events {{ worker_connections 8192; }}\n\
         http {{\n access_log off; keepalive_requests 1000000000; sendfile on;\n\
         client_body_temp_path {0}/body; proxy_temp_path {0}/proxy;\n\
         fastcgi_temp_path {0}/fastcgi; uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;\n\
         server {{ listen {WEB} backlog=4096;\n\
         location / {{ return 200 \"hello from the backend\\n\"; }}\n\
         location /large {{ root {0}; }} }}\n}}\n",
        directory.display()
    );
    let file = directory.join("nginx.conf");
    fs::write(&file, text)?;
    let mut command = pinned::pinned_server(host, "nginx");
    command.args(["-e", "stderr", "-p"]).arg(&directory).arg("-c").arg(&file);
    let mut server = host.spawn(&mut command)?;
    server.wait_until_so("accepts", SOON, |_| accepts_connections(host, WEB))?;
    Ok(server)
}

pub fn accepts_connections(host: &Host, address: &str) -> bool {
    host.enter(|| Ok(TcpStream::connect(address)?)).is_ok()
}

/// A server that switches protocols and then returns all octets. It runs until the process ends.
pub fn start_websocket_server(host: &Host) -> Result<()> {
    let address: SocketAddr = WEBSOCKET.parse()?;
    let listener = host.enter(|| TcpListener::bind(address).context(WEBSOCKET))?;
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            thread::spawn(|| echo(connection));
        }
    });
    Ok(())
}

fn echo(mut connection: TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    connection.write_all(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
          Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
    )?;
    let mut octets = [0; 4096];
    loop {
        let length = reader.read(&mut octets)?;
        if length == 0 {
            return Ok(());
        }
        connection.write_all(&octets[..length])?;
    }
}
