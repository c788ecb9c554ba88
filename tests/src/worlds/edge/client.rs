//! Clients of the proxy.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{Context, Result, ensure};

use super::HTTP;
use crate::worlds::topology::{Host, SOON};

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    head: String,
    pub body: String,
}

impl Response {
    /// The server that the request reached; empty if the proxy itself responded.
    pub fn server(&self) -> &str {
        self.word(0)
    }

    /// The path that reached the server.
    pub fn path(&self) -> &str {
        self.word(1)
    }

    /// The Host that reached the server.
    pub fn host(&self) -> &str {
        self.word(2)
    }

    fn word(&self, number: usize) -> &str {
        let words = (self.status == 200).then(|| self.body.split_whitespace().nth(number));
        words.flatten().unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// Sends a request over a new connection: its first lines, without the empty one.
pub fn send_request(host: &Host, head: &str) -> Result<Response> {
    let mut connection = connect(host)?;
    write!(connection, "{head}Connection: close\r\n\r\n")?;
    let mut text = String::new();
    connection.read_to_string(&mut text)?;
    let (head, body) =
        text.split_once("\r\n\r\n").with_context(|| format!("no response: {text}"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.with_context(|| format!("no status: {head}"))?;
    Ok(Response { status, head: head.to_owned(), body: body.to_owned() })
}

fn connect(host: &Host) -> Result<TcpStream> {
    let address = (Ipv4Addr::LOCALHOST, HTTP).into();
    let connection = host.enter(|| Ok(TcpStream::connect_timeout(&address, SOON)?))?;
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(SOON))?;
    connection.set_write_timeout(Some(SOON))?;
    Ok(connection)
}

/// A client that keeps its connection, and opens another one if the proxy has closed it.
pub struct Kept {
    host: Host,
    name: String,
    connection: Option<BufReader<TcpStream>>,
}

impl Kept {
    pub fn new(host: Host, name: &str) -> Self {
        Self { host, name: name.to_owned(), connection: None }
    }

    /// Sends a request. Fails unless a server responds to it. If a connection that was kept ends without a response,
    /// sends the request again, as RFC 9112 (9.3.1) has clients do.
    pub fn get(&mut self, path: &str) -> Result<()> {
        if let Some(connection) = self.connection.take()
            && self.exchange(connection, path)?
        {
            return Ok(());
        }
        let connection = BufReader::new(connect(&self.host)?);
        ensure!(self.exchange(connection, path)?, "a new connection ended without a response");
        Ok(())
    }

    /// Whether there was a response.
    fn exchange(&mut self, mut connection: BufReader<TcpStream>, path: &str) -> Result<bool> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.name);
        let mut line = String::new();
        let sent = connection.get_mut().write_all(request.as_bytes());
        match sent.and_then(|()| connection.read_line(&mut line)) {
            Ok(1..) => {}
            Err(error) if !ENDED.contains(&error.kind()) => return Err(error.into()),
            Ok(0) | Err(_) => return Ok(false),
        }
        ensure!(line.starts_with("HTTP/1.1 200 "), "the proxy sent {line:?}");
        let (mut length, mut closes) = (None, false);
        while line.trim_end() != "" {
            line.clear();
            connection.read_line(&mut line)?;
            match line.trim_end().to_ascii_lowercase().split_once(": ") {
                Some(("content-length", value)) => length = Some(value.parse()?),
                Some(("connection", "close")) => closes = true,
                _ => {}
            }
        }
        let mut body = vec![0; length.context("a response without length")?];
        connection.read_exact(&mut body)?;
        self.connection = (!closes).then_some(connection);
        Ok(true)
    }
}

/// How a connection that the other side has closed looks.
const ENDED: [ErrorKind; 3] =
    [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::ConnectionAborted];

/// A connection after an upgrade, to a server that returns what it gets.
pub struct WebSocket {
    reader: BufReader<TcpStream>,
    connection: TcpStream,
    sent: u64,
}

impl WebSocket {
    pub fn open(host: &Host, name: &str, path: &str) -> Result<Self> {
        let mut connection = connect(host)?;
        write!(
            connection,
            "GET {path} HTTP/1.1\r\nHost: {name}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )?;
        let mut reader = BufReader::new(connection.try_clone()?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        ensure!(line.starts_with("HTTP/1.1 101"), "the proxy sent {line:?}");
        while reader.read_line(&mut line)? > 2 {}
        Ok(Self { reader, connection, sent: 0 })
    }

    /// Sends a message and waits until it comes back.
    pub fn exchange(&mut self) -> Result<()> {
        self.sent += 1;
        let message = self.sent.to_be_bytes();
        self.connection.write_all(&message)?;
        let mut received = [0; 8];
        self.reader.read_exact(&mut received).context("a WebSocket ended")?;
        ensure!(received == message, "a WebSocket returned another message");
        Ok(())
    }
}
