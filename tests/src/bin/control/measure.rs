//! One size: from nothing to in force, then change by change.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use aya::maps::MapData;
use lb_common::layout::map;
use lb_userspace::agent::{Agent, Outlets};
use lb_userspace::kernel::{self, DataPlane, Pins, Sizes, Tables};
use lb_userspace::notices::{Notice, Notices};
use lb_userspace::plan::Planner;
use lb_userspace::serve::{Health, Metrics};
use lb_userspace::source::{Event, Kind, Object};
use lb_userspace::store::Affected;
use serde::{Deserialize, Serialize};
use tests::topology::bpffs;
use tokio::sync::mpsc;

use super::objects::{read, service, slice};

/// How many changes of each kind are measured.
const ROUNDS: u32 = 200;

#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    pub services: u32,
    pub endpoints: u32,
    /// From text to objects.
    pub read_ms: f64,
    /// From objects to the last written slot.
    pub in_force_ms: f64,
    /// One endpoint of one Service.
    pub endpoint_us: Spread,
    /// A Service and its slice.
    pub creation_us: Spread,
    /// The agent's own, without what it maps.
    pub memory_mib: f64,
    pub maps_mib: f64,
    /// Services of which something did not fit.
    pub lacking: usize,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub worst_of_hundred: f64,
}

impl Spread {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e6;
        Self { median: at(50), worst_of_hundred: at(99) }
    }
}

/// What does not fit is counted, not told.
struct Silent;

impl Notices for Silent {
    fn post(&self, _: Notice) {}
}

pub fn measure(services: u32, endpoints: u32) -> Result<Measured> {
    let path = bpffs()?.join(format!("millrace-bench-control-{}", std::process::id()));
    let pins = Pins::open(&path)?;
    let measured = on(&pins, services, endpoints);
    kernel::remove(pins)?;
    measured
}

fn on(pins: &Pins, services: u32, endpoints: u32) -> Result<Measured> {
    let tables = DataPlane::load(pins, Sizes::default())?.tables()?;
    let health = Arc::new(Health::new(false));
    let outlets = Outlets::new(Arc::new(Silent), health, Arc::new(Metrics::new()));
    let mut agent = Agent::new("node-1", Planner::new(), tables, outlets);

    let began = Instant::now();
    let objects = objects(services, endpoints)?;
    let read_ms = milliseconds(began);

    let began = Instant::now();
    for object in objects {
        agent.store_event(Event::Applied(object));
    }
    agent.put_in_force(Affected::All, None);
    let in_force_ms = milliseconds(began);
    let lacking = agent.lacking();

    // Spread over all of them, by a step that meets each once.
    let step = 7_919;
    let changes = (0..ROUNDS)
        .map(|round| {
            let text = slice(round * step % services, endpoints, Some(round % endpoints));
            let object = read(Kind::EndpointSlice, &text)?;
            Ok(time(&mut agent, [object]))
        })
        .collect::<Result<_>>()?;
    let creations = (services..services + ROUNDS)
        .map(|number| {
            let service = read(Kind::Service, &service(number))?;
            let slice = read(Kind::EndpointSlice, &slice(number, endpoints, None))?;
            Ok(time(&mut agent, [service, slice]))
        })
        .collect::<Result<_>>()?;
    Ok(Measured {
        services,
        endpoints,
        read_ms,
        in_force_ms,
        endpoint_us: Spread::of(changes),
        creation_us: Spread::of(creations),
        memory_mib: own_memory()? / 1024.0,
        maps_mib: map_memory(pins)? / 1024.0,
        lacking,
    })
}

fn objects(services: u32, endpoints: u32) -> Result<Vec<Object>> {
    let mut objects = Vec::with_capacity(services as usize * 2);
    for number in 0..services {
        objects.push(read(Kind::Service, &service(number))?);
        objects.push(read(Kind::EndpointSlice, &slice(number, endpoints, None))?);
    }
    Ok(objects)
}

/// Objects that arrive one after the other.
fn time<const N: usize>(agent: &mut Agent<Tables>, objects: [Object; N]) -> Duration {
    let (_sender, mut nothing) = mpsc::unbounded_channel();
    let began = Instant::now();
    for object in objects {
        agent.take_in(Event::Applied(object), &mut nothing);
    }
    began.elapsed()
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// In KiB.
fn own_memory() -> Result<f64> {
    field(&fs::read_to_string("/proc/self/status")?, "RssAnon:").context("no RssAnon")
}

/// Of all maps, in KiB.
fn map_memory(pins: &Pins) -> Result<f64> {
    let mut total = 0.0;
    for name in map::ALL {
        let map = MapData::from_pin(pins.map(name))?;
        let descriptor = map.fd().as_fd().as_raw_fd();
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}"))?;
        total += field(&text, "memlock:").context("no memlock")? / 1024.0;
    }
    Ok(total)
}

fn field(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
