//! A program with one socket, for tests of Services from the view of a process.
//!
//! `socket tcp|udp BIND ACTION...` executes the actions in order, and prints the result of each.
//! `BIND` is `0.0.0.0:0` or `[::]:0`; TCP ignores it.

use std::env;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};

const USAGE: &str = "socket tcp|udp BIND ACTION...
  connect=END       connects
  peer              getpeername
  ask=TEXT          sends to its peer; prints the reply and its source
  ask=TEXT@END      the same to this end, without a connection
  keep-asking=END   repeats requests to this end; prints each change of the server, and failures
  hold              waits until the connection ends; prints how it ended";

/// Time limit for a reply.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two requests: short enough to notice a change soon, long enough for a short log.
const PAUSE: Duration = Duration::from_millis(20);

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [protocol, bind, actions @ ..] = &arguments[..] else { bail!("{USAGE}") };
    let mut socket: Box<dyn Socket> = match protocol.as_str() {
        "tcp" => Box::new(Tcp(None)),
        "udp" => {
            let socket = UdpSocket::bind(bind)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            Box::new(socket)
        }
        _ => bail!("{USAGE}"),
    };
    actions.iter().try_for_each(|action| act(socket.as_mut(), action))
}

fn act(socket: &mut dyn Socket, action: &str) -> Result<()> {
    let (verb, rest) = action.split_once('=').unwrap_or((action, ""));
    let came = match verb {
        "connect" => socket.dial(end(rest)?).map(|()| "done".to_owned()),
        "peer" => socket.peer().map(|peer| peer.to_string()),
        "ask" => match rest.split_once('@') {
            Some((text, to)) => socket.ask(text, Some(end(to)?)),
            None => socket.ask(rest, None),
        },
        "keep-asking" => {
            let mut last = String::new();
            let to = end(rest)?;
            loop {
                let came = line_of(socket.ask("again", Some(to)));
                if came != last {
                    println!("{action}: {came}");
                    last = came;
                }
                sleep(PAUSE);
            }
        }
        "hold" => socket.hold().map(|()| "closed".to_owned()),
        _ => bail!("{action}?\n{USAGE}"),
    };
    println!("{action}: {}", line_of(came));
    Ok(())
}

fn line_of(came: io::Result<String>) -> String {
    came.unwrap_or_else(|error| error.to_string())
}

fn end(text: &str) -> Result<SocketAddr> {
    text.parse().with_context(|| format!("{text} is not an address with a port"))
}

trait Socket {
    fn dial(&mut self, end: SocketAddr) -> io::Result<()>;
    fn peer(&self) -> io::Result<SocketAddr>;
    /// Returns the reply and the address of its sender.
    fn ask(&mut self, text: &str, to: Option<SocketAddr>) -> io::Result<String>;
    fn hold(&mut self) -> io::Result<()>;
}

impl Socket for UdpSocket {
    fn dial(&mut self, end: SocketAddr) -> io::Result<()> {
        self.connect(end)
    }

    fn peer(&self) -> io::Result<SocketAddr> {
        self.peer_addr()
    }

    fn ask(&mut self, text: &str, to: Option<SocketAddr>) -> io::Result<String> {
        match to {
            Some(end) => self.send_to(text.as_bytes(), end)?,
            None => self.send(text.as_bytes())?,
        };
        let mut buffer = [0; 2048];
        let (length, from) = self.recv_from(&mut buffer)?;
        Ok(format!("{} from {from}", String::from_utf8_lossy(&buffer[..length])))
    }

    fn hold(&mut self) -> io::Result<()> {
        self.set_read_timeout(None)?;
        self.recv(&mut [0]).map(drop)
    }
}

struct Tcp(Option<TcpStream>);

impl Tcp {
    fn stream(&self) -> io::Result<&TcpStream> {
        self.0.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Socket for Tcp {
    fn dial(&mut self, end: SocketAddr) -> io::Result<()> {
        let stream = TcpStream::connect_timeout(&end, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        self.0 = Some(stream);
        Ok(())
    }

    fn peer(&self) -> io::Result<SocketAddr> {
        self.stream()?.peer_addr()
    }

    fn ask(&mut self, text: &str, _: Option<SocketAddr>) -> io::Result<String> {
        let mut stream = self.stream()?;
        stream.write_all(format!("{text}\n").as_bytes())?;
        let mut answer = Vec::new();
        let mut byte = [0];
        while stream.read(&mut byte)? == 1 && byte[0] != b'\n' {
            answer.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    fn hold(&mut self) -> io::Result<()> {
        let mut stream = self.stream()?;
        stream.set_read_timeout(None)?;
        stream.read(&mut [0]).map(drop)
    }
}
