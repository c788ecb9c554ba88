//! A server that returns what reached it: its own name, the path and the Host of the request. After an upgrade it
//! returns what it gets.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use anyhow::{Context, Result};

use crate::worlds::topology::Host;

/// Serves until the test program ends.
pub fn start_server(host: &Host, address: SocketAddr, name: &str) -> Result<()> {
    let listener =
        host.enter(|| TcpListener::bind(address).with_context(|| address.to_string()))?;
    let name = name.to_owned();
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let name = name.clone();
            // How a client ends its connection does not matter.
            thread::spawn(move || drop(serve(connection, &name)));
        }
    });
    Ok(())
}

fn serve(mut connection: TcpStream, name: &str) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection.try_clone()?);
    while let Some(request) = Request::read(&mut reader)? {
        if request.upgrades {
            connection.write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            )?;
            return echo(&mut reader, &mut connection);
        }
        let body = format!("{name} {} {}\n", request.path, request.host);
        let length = body.len();
        let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
        connection.write_all(response.as_bytes())?;
    }
    Ok(())
}

fn echo(reader: &mut BufReader<TcpStream>, connection: &mut TcpStream) -> io::Result<()> {
    let mut octets = [0; 1024];
    loop {
        let length = reader.read(&mut octets)?;
        if length == 0 {
            return Ok(());
        }
        connection.write_all(&octets[..length])?;
    }
}

#[derive(Default)]
struct Request {
    path: String,
    host: String,
    upgrades: bool,
}

impl Request {
    /// Reads the head of a request without body.
    fn read(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut request = Self { path, ..Self::default() };
        loop {
            line.clear();
            if reader.read_line(&mut line)? <= 2 {
                return Ok(Some(request));
            }
            match line.trim_end().to_ascii_lowercase().split_once(": ") {
                Some(("host", value)) => request.host = value.to_owned(),
                Some(("upgrade", _)) => request.upgrades = true,
                _ => {}
            }
        }
    }
}
