//! A client that sends octets and reads responses strictly.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::world::PATIENCE;

pub struct Client<S = TcpStream> {
    pub stream: S,
    buffer: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    pub fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self::over(stream)
    }
}

impl<S: Read + Write> Client<S> {
    pub fn over(stream: S) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    /// Some octets were read already.
    pub fn after(octets: &[u8], stream: S) -> Self {
        Self { stream, buffer: octets.to_vec() }
    }

    pub fn send(&mut self, octets: impl AsRef<[u8]>) {
        self.stream.write_all(octets.as_ref()).unwrap();
        self.stream.flush().unwrap();
    }

    /// Sends although the proxy may have closed the connection.
    pub fn try_send(&mut self, octets: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(octets.as_ref()).is_ok() && self.stream.flush().is_ok()
    }

    pub fn get(&mut self, host: &str, path: &str) -> Response {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        self.response()
    }

    /// One response. Interim ones are skipped.
    pub fn response(&mut self) -> Response {
        self.try_response().expect("the connection was closed before a response")
    }

    pub fn try_response(&mut self) -> Option<Response> {
        loop {
            let head = self.head()?;
            let (status, headers) = parse_head(&head);
            if (100..200).contains(&status) && status != 101 {
                continue;
            }
            let mut response = Response { status, headers, body: Vec::new(), trailers: Vec::new() };
            let is_chunked = response.header("transfer-encoding").is_some();
            let length = response.header("content-length").map(|l| l.parse::<usize>().unwrap());
            assert!(!(is_chunked && length.is_some()), "two lengths: {head}");
            if is_chunked {
                self.chunks(&mut response)?;
            } else if let Some(length) = length {
                response.body = self.take(length)?;
            }
            return Some(response);
        }
    }

    /// The head of a response, interim or not.
    pub fn head(&mut self) -> Option<String> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let head = self.buffer.drain(..end + 4).collect();
                return Some(String::from_utf8(head).unwrap());
            }
            self.fill()?;
        }
    }

    fn chunks(&mut self, response: &mut Response) -> Option<()> {
        loop {
            let line = self.line()?;
            let size = usize::from_str_radix(&line, 16).unwrap();
            if size == 0 {
                break;
            }
            let chunk = self.take(size)?;
            response.body.extend(chunk);
            assert_eq!(self.line()?, "");
        }
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(": ") else { return Some(()) };
            response.trailers.push((name.to_owned(), value.to_owned()));
        }
    }

    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return Some(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            self.fill()?;
        }
    }

    pub fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < count {
            self.fill()?;
        }
        Some(self.buffer.drain(..count).collect())
    }

    /// Everything until the connection is closed.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.fill().is_some() {}
        std::mem::take(&mut self.buffer)
    }

    /// Whether the proxy has closed the connection. Waits for it.
    pub fn is_closed(&mut self) -> bool {
        self.buffer.is_empty() && self.fill().is_none()
    }

    fn fill(&mut self) -> Option<()> {
        let mut octets = [0; 16 << 10];
        match self.stream.read(&mut octets) {
            Ok(0) => None,
            Ok(count) => {
                self.buffer.extend_from_slice(&octets[..count]);
                Some(())
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("no octets within {PATIENCE:?}")
            }
            Err(_) => None,
        }
    }
}

pub fn parse_head(head: &str) -> (u16, Vec<(String, String)>) {
    let mut lines = head.trim_end().split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_owned(), value.trim().to_owned())
    });
    (status, headers.collect())
}

pub fn find(octets: &[u8], wanted: &[u8]) -> Option<usize> {
    octets.windows(wanted.len()).position(|window| window == wanted)
}
