//! An endpoint that records every request that it gets, as octets and parsed strictly.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::client::find;
use crate::world::{PATIENCE, wait_until};

#[derive(Clone, Debug)]
pub struct Request {
    /// Number of the connection that it came on, from 0.
    pub connection: usize,
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        let value = values.next().map(|(_, v)| v.as_str());
        assert!(values.next().is_none(), "several headers {name}: {:?}", self.headers);
        value
    }
}

/// What happens to the connection after a response.
pub enum Then {
    Keep,
    Close,
}

#[derive(Clone)]
pub struct Endpoint {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    errors: Arc<Mutex<Vec<String>>>,
    pub connections: Arc<AtomicUsize>,
}

type Handler = dyn Fn(&Request, &mut TcpStream) -> Then + Send + Sync;

impl Endpoint {
    /// Answers every request with 200 and its name.
    pub fn named(name: &'static str) -> Self {
        Self::start(move |_, stream| {
            respond(stream, name);
            Then::Keep
        })
    }

    /// Serves each connection in a thread.
    pub fn start(
        handler: impl Fn(&Request, &mut TcpStream) -> Then + Send + Sync + 'static,
    ) -> Self {
        Self::on_heads(false, handler)
    }

    /// The handler is called as soon as the head is there. What came of the body with it is in the request; the
    /// handler reads the rest itself.
    pub fn on_heads(
        heads_only: bool,
        handler: impl Fn(&Request, &mut TcpStream) -> Then + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Self {
            address: listener.local_addr().unwrap(),
            requests: Arc::default(),
            errors: Arc::default(),
            connections: Arc::default(),
        };
        let handler: Arc<Handler> = Arc::new(handler);
        let this = endpoint.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (this, handler) = (this.clone(), handler.clone());
                let number = this.connections.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || this.serve(number, stream.unwrap(), heads_only, &*handler));
            }
        });
        endpoint
    }

    fn serve(&self, number: usize, mut stream: TcpStream, heads_only: bool, handler: &Handler) {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut buffer = Vec::new();
        loop {
            match read_request(number, &mut stream, &mut buffer, heads_only) {
                Ok(Some(request)) => {
                    self.requests.lock().unwrap().push(request.clone());
                    if let Then::Close = handler(&request, &mut stream) {
                        let _ = stream.shutdown(Shutdown::Both);
                        return;
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    self.errors.lock().unwrap().push(error);
                    return;
                }
            }
        }
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    pub fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    /// What the endpoint could not read as requests.
    pub fn errors(&self) -> Vec<String> {
        self.errors.lock().unwrap().clone()
    }

    pub fn wait_for(&self, count: usize) {
        wait_until("requests at the endpoint", || self.count() >= count);
    }
}

pub fn respond(stream: &mut TcpStream, body: &str) {
    respond_with(stream, "200 OK", body);
}

pub fn respond_with(stream: &mut TcpStream, status: &str, body: &str) {
    let text = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let _ = stream.write_all(text.as_bytes());
}

/// As strict as an endpoint can be: whatever is not exactly one request is an error.
fn read_request(
    connection: usize,
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    heads_only: bool,
) -> Result<Option<Request>, String> {
    let end = loop {
        if let Some(end) = find(buffer, b"\r\n\r\n") {
            break end + 4;
        }
        if !fill(stream, buffer) {
            return if buffer.is_empty() { Ok(None) } else { Err(text(buffer)) };
        }
    };
    let head: Vec<u8> = buffer.drain(..end).collect();
    let head = String::from_utf8(head).map_err(|e| e.to_string())?;
    let mut lines = head[..end - 4].split("\r\n");
    let line = lines.next().unwrap_or_default().to_owned();
    if line.split(' ').count() != 3 || !line.ends_with("HTTP/1.1") {
        return Err(format!("request line {line}"));
    }
    let mut headers = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(": ").ok_or(format!("header {line}"))?;
        if line.contains(['\r', '\n']) || name.contains([' ', '\t']) {
            return Err(format!("header {line}"));
        }
        headers.push((name.to_owned(), value.to_owned()));
    }
    let mut request = Request { connection, line, headers, body: Vec::new() };
    let length = request.header("content-length").map(str::to_owned);
    let encoding = request.header("transfer-encoding").map(str::to_owned);
    if heads_only {
        request.body = std::mem::take(buffer);
        return Ok(Some(request));
    }
    match (length, encoding.as_deref()) {
        (Some(_), Some(_)) => return Err("two lengths".to_owned()),
        (Some(length), None) => {
            let length = length.parse().map_err(|_| format!("length {length}"))?;
            request.body = take(stream, buffer, length).ok_or("short body")?;
        }
        (None, Some("chunked")) => loop {
            let line = take_line(stream, buffer).ok_or("short chunk")?;
            let size = usize::from_str_radix(&line, 16).map_err(|_| format!("chunk {line}"))?;
            let chunk = take(stream, buffer, size + 2).ok_or("short chunk")?;
            request.body.extend_from_slice(&chunk[..size]);
            if size == 0 {
                break;
            }
        },
        (None, Some(other)) => return Err(format!("encoding {other}")),
        (None, None) => {}
    }
    Ok(Some(request))
}

fn text(buffer: &[u8]) -> String {
    format!("not a request: {:?}", String::from_utf8_lossy(buffer))
}

fn fill(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> bool {
    let mut octets = [0; 16 << 10];
    match stream.read(&mut octets) {
        Ok(0) | Err(_) => false,
        Ok(count) => {
            buffer.extend_from_slice(&octets[..count]);
            true
        }
    }
}

fn take(stream: &mut TcpStream, buffer: &mut Vec<u8>, count: usize) -> Option<Vec<u8>> {
    while buffer.len() < count {
        if !fill(stream, buffer) {
            return None;
        }
    }
    Some(buffer.drain(..count).collect())
}

fn take_line(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(end) = find(buffer, b"\r\n") {
            let line: Vec<u8> = buffer.drain(..end + 2).collect();
            return String::from_utf8(line[..end].to_vec()).ok();
        }
        if !fill(stream, buffer) {
            return None;
        }
    }
}
