//! The measurements of one proxy.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::figures::Sample;
use crate::load::{self, ClosingSide};
use ::tests::worlds::topology::{Certificate, Host};
use anyhow::{Context, Result, ensure};

use super::backend::LARGE;
use super::figure::IngressFigure;
use super::h2load::{self, RequestLoad};
use super::pinned;
use super::proxy::{HOST, Proxy};
use super::tls::HandshakeClient;

/// How much each measurement does.
#[derive(Clone, Copy)]
pub(crate) struct IngressEffort {
    pub requests: u64,
    pub time: Duration,
    pub messages: u32,
    pub idle: usize,
}

pub type ProxySamples = BTreeMap<IngressFigure, Sample>;

/// One round of all measurements.
pub(crate) struct Measurement<'a> {
    pub host: &'a Host,
    pub proxy: &'a Proxy,
    pub directory: &'a Path,
    pub certificate: &'a Certificate,
    pub effort: IngressEffort,
}

impl Measurement<'_> {
    pub fn run(&self, samples: &mut ProxySamples) -> Result<()> {
        let mut push =
            |figure: IngressFigure, value: f64| samples.entry(figure).or_default().push(value);
        let (rate, time) = self.kept().context("keep-alive")?;
        push(IngressFigure::Kept, rate);
        push(IngressFigure::KeptTime, time);
        let [half, most] = self.half_load(rate).context("half load")?;
        push(IngressFigure::HalfLoadHalf, half);
        push(IngressFigure::HalfLoadMost, most);
        let (new, time) = self.new_connections().context("new connections")?;
        push(IngressFigure::New, new);
        push(IngressFigure::NewTime, time);
        let (rate, time) = self.multiplexed().context("HTTP/2")?;
        push(IngressFigure::Multiplexed, rate);
        push(IngressFigure::MultiplexedTime, time);
        push(IngressFigure::FullHandshakeTime, self.handshakes(false).context("full handshakes")?);
        push(
            IngressFigure::ResumedHandshakeTime,
            self.handshakes(true).context("resumed handshakes")?,
        );
        push(IngressFigure::LargeTime, self.large().context("large body")?);
        let [half, most] = self.websocket().context("WebSocket")?;
        push(IngressFigure::WebSocketHalf, half);
        push(IngressFigure::WebSocketMost, most);
        push(IngressFigure::IdleMemory, self.idle().context("idle connections")?);
        Ok(())
    }

    fn kept(&self) -> Result<(f64, f64)> {
        let requests = self.effort.requests;
        let load =
            RequestLoad { tls: false, http2: false, clients: 32, streams: 1, requests, rate: None };
        self.timed(requests, || load.run(self.host, &self.proxy.addresses, None))
    }

    fn multiplexed(&self) -> Result<(f64, f64)> {
        let requests = self.effort.requests;
        let load =
            RequestLoad { tls: true, http2: true, clients: 8, streams: 32, requests, rate: None };
        self.timed(requests, || load.run(self.host, &self.proxy.addresses, None))
    }

    /// Percentiles at half of this rate.
    fn half_load(&self, rate: f64) -> Result<[f64; 2]> {
        const CLIENTS: u32 = 16;
        let of_each = ((rate / 2.0 / f64::from(CLIENTS)) as u64).max(1);
        let requests =
            (of_each as f64 * self.effort.time.as_secs_f64()) as u64 * u64::from(CLIENTS);
        let load = RequestLoad {
            tls: false,
            http2: false,
            clients: CLIENTS,
            streams: 1,
            requests: requests.max(u64::from(CLIENTS)),
            rate: Some(of_each),
        };
        let file = self.directory.join("times");
        load.run(self.host, &self.proxy.addresses, Some(&file))?;
        percentiles(h2load::read_request_times(&file)?)
    }

    fn new_connections(&self) -> Result<(f64, f64)> {
        let address = self.address();
        let before = self.proxy.cpu_time()?;
        let time = self.effort.time;
        let done = load::load_connections(
            self.host,
            &[address],
            8,
            time,
            ClosingSide::Server,
            load::is_ok,
        )?;
        ensure!(done.failed == 0, "{} failed: {:?}", done.failed, done.failure);
        let used = self.proxy.cpu_time()?.saturating_sub(before);
        Ok((done.a_second(), micros(used) / done.answered() as f64))
    }

    /// CPU time of a request over a new TLS connection, in microseconds.
    fn handshakes(&self, resumes: bool) -> Result<f64> {
        let client = HandshakeClient::new(&self.certificate.certificate, resumes)?;
        let request = || {
            let address = (Ipv4Addr::LOCALHOST, self.proxy.addresses.https);
            client.request(TcpStream::connect(address)?)
        };
        self.host.enter(|| {
            // The first one gets the ticket.
            request()?;
            let before = self.proxy.cpu_time()?;
            let began = Instant::now();
            let mut count = 0u32;
            while began.elapsed() < self.effort.time {
                ensure!(request()? == resumes, "the proxy resumes a session, or does not");
                count += 1;
            }
            let used = self.proxy.cpu_time()?.saturating_sub(before);
            Ok(micros(used) / f64::from(count))
        })
    }

    /// CPU time for 10^9 octets, in milliseconds.
    fn large(&self) -> Result<f64> {
        let before = self.proxy.cpu_time()?;
        let url = format!("http://{HOST}:{}/large", self.proxy.addresses.http);
        let resolve = format!("{HOST}:{}:127.0.0.1", self.proxy.addresses.http);
        let arguments = [
            "--silent",
            "--fail",
            "--output",
            "/dev/null",
            "--write-out",
            "%{size_download}",
            "--resolve",
            &resolve,
            &url,
        ];
        let size = pinned::run_client(self.host, "curl", &arguments.map(str::to_owned))?;
        ensure!(size.trim() == LARGE.to_string(), "{size} octets arrived");
        let used = self.proxy.cpu_time()?.saturating_sub(before);
        Ok(micros(used) / 1e3 / (LARGE as f64 / 1e9))
    }

    /// Percentiles of the round trip of a message.
    fn websocket(&self) -> Result<[f64; 2]> {
        let mut connection = self.connect()?;
        write!(
            connection,
            "GET /ws HTTP/1.1\r\nHost: {HOST}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )?;
        let mut reader = BufReader::new(connection.try_clone()?);
        let mut status = String::new();
        reader.read_line(&mut status)?;
        ensure!(status.contains(" 101 "), "the proxy answered {status:?}");
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            line.clear();
        }
        let mut times = Vec::new();
        let (sent, mut received) = ([0x55; 64], [0; 64]);
        for _ in 0..self.effort.messages {
            let began = Instant::now();
            connection.write_all(&sent)?;
            reader.read_exact(&mut received)?;
            times.push(began.elapsed());
            ensure!(sent == received, "other octets came back");
        }
        percentiles(times)
    }

    /// Memory for one connection that has had one request, in KiB.
    fn idle(&self) -> Result<f64> {
        let before = self.proxy.memory()?;
        let mut connections = Vec::new();
        for _ in 0..self.effort.idle {
            let mut connection = self.connect()?;
            write!(connection, "GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")?;
            let mut response = [0; 1024];
            let length = connection.read(&mut response)?;
            ensure!(load::is_ok(&response[..length]), "a connection got no response");
            connections.push(connection);
        }
        let more = self.proxy.memory()?.saturating_sub(before);
        Ok(more as f64 / 1024.0 / self.effort.idle as f64)
    }

    /// Requests per second, and CPU time of the proxy for one in microseconds.
    fn timed(&self, requests: u64, load: impl FnOnce() -> Result<f64>) -> Result<(f64, f64)> {
        let before = self.proxy.cpu_time()?;
        let rate = load()?;
        let used = self.proxy.cpu_time()?.saturating_sub(before);
        Ok((rate, micros(used) / requests as f64))
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.proxy.addresses.http).into()
    }

    fn connect(&self) -> Result<TcpStream> {
        let address = self.address();
        self.host.enter(|| {
            let connection = TcpStream::connect(address)?;
            connection.set_nodelay(true)?;
            Ok(connection)
        })
    }
}

/// Median and 99th percentile, in microseconds.
fn percentiles(mut times: Vec<Duration>) -> Result<[f64; 2]> {
    times.sort_unstable();
    let last = times.len().checked_sub(1).context("nothing was timed")?;
    Ok([50, 99].map(|percent| micros(times[last * percent / 100])))
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
