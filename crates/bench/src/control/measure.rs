//! Measures one size: programming everything, then single changes.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ::tests::worlds::topology::mount_bpffs;
use anyhow::{Result, ensure};
use lb_agent::{Agent, Outlets};
use lb_common::layout::capacity;
use lb_kernel::{DataPlane, Parameters, Pins, Prepared, Sizes, Tables};
use lb_plan::{AdoptedTables, Planner};
use lb_process::notices::{Notice, Notices};
use lb_rules::model::{Kind, Object};
use lb_rules::store::Affected;
use lb_source::Event;
use lb_status::{Health, Metrics};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::memory::{self, Peak};
use super::objects::{parse_object, write_service, write_slice};

/// Number of measured changes of each kind.
const ROUNDS: u32 = 200;

#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    pub services: u32,
    pub endpoints: u32,
    pub limits: MapSizes,
    /// Parsing the objects.
    pub read_ms: f64,
    /// From the parsed objects to the last written slot.
    pub programmed_ms: f64,
    /// A change of one endpoint of a Service.
    pub endpoint_us: Spread,
    /// Creation of a Service with its slice.
    pub creation_us: Spread,
    /// Start of an agent that adopts the maps of another.
    pub restart_ms: f64,
    /// Anonymous memory of the agent when everything is programmed.
    pub memory_mib: f64,
    /// The maximum until then.
    pub peak_mib: f64,
    pub maps_mib: f64,
    /// Number of Services that do not fit completely.
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

/// Discards notices: what does not fit is counted separately.
struct Silent;

impl Notices for Silent {
    fn post(&self, _: Notice) {}
}

pub fn measure_control_plane(services: u32, endpoints: u32) -> Result<Measured> {
    let path = mount_bpffs()?.join(format!("millrace-bench-control-{}", std::process::id()));
    let pins = Pins::open(&path)?;
    let measured = on(&pins, services, endpoints);
    lb_kernel::remove_data_plane(pins)?;
    measured
}

/// The sizes of the maps: the defaults if they suffice.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct MapSizes {
    pub max_service_ports: u32,
    pub max_endpoints: u32,
}

impl MapSizes {
    /// With a reserve of a tenth, for created Services and changed endpoints.
    fn for_services(services: u32, endpoints: u32) -> Self {
        let with_room = |number: u32| number / 10 * 11 + 2 * ROUNDS;
        Self {
            max_service_ports: with_room(services).max(capacity::SERVICE_PORTS),
            max_endpoints: with_room(services * endpoints).max(capacity::BACKENDS),
        }
    }

    fn sizes(self) -> Sizes {
        Sizes::default().with_services(self.max_service_ports, self.max_endpoints)
    }
}

fn on(pins: &Pins, services: u32, endpoints: u32) -> Result<Measured> {
    let limits = MapSizes::for_services(services, endpoints);
    let tables = DataPlane::load(pins, limits.sizes())?.tables()?;
    let planner = Planner::with_room(limits.sizes().room());
    let mut agent = agent(planner, tables);

    let began = Instant::now();
    let all = objects(services, endpoints)?;
    let read_ms = milliseconds(began);

    let peak = Peak::start();
    let began = Instant::now();
    program_objects(&mut agent, all);
    let programmed_ms = milliseconds(began);
    let peak_mib = peak.end()?;
    let memory_mib = memory::own_memory()?;
    let lacking = agent.lacking();

    // A step that is coprime to the number of Services spreads the changes over all of them.
    let step = 7_919;
    let changes = (0..ROUNDS)
        .map(|round| {
            let text = write_slice(round * step % services, endpoints, Some(round % endpoints));
            let object = parse_object(Kind::EndpointSlice, &text)?;
            Ok(time(&mut agent, [object]))
        })
        .collect::<Result<_>>()?;
    let creations = (services..services + ROUNDS)
        .map(|number| {
            let service = parse_object(Kind::Service, &write_service(number))?;
            let slice = parse_object(Kind::EndpointSlice, &write_slice(number, endpoints, None))?;
            Ok(time(&mut agent, [service, slice]))
        })
        .collect::<Result<_>>()?;
    drop(agent);

    Ok(Measured {
        services,
        endpoints,
        limits,
        read_ms,
        programmed_ms,
        endpoint_us: Spread::of(changes),
        creation_us: Spread::of(creations),
        restart_ms: restart(pins, limits, objects(services, endpoints)?)?,
        memory_mib,
        peak_mib,
        maps_mib: memory::of_maps(pins)?,
        lacking,
    })
}

/// The time in which an agent adopts the maps of another, once it has all objects.
fn restart(pins: &Pins, limits: MapSizes, all: Vec<Object>) -> Result<f64> {
    let parameters = Parameters { sizes: limits.sizes(), ..Parameters::default() };
    ensure!(Prepared::open(pins, parameters)?.adopted(), "the maps were not adopted");
    let tables = Tables::open(|name| pins.map(name))?;
    let began = Instant::now();
    let planner = Planner::adopting(tables.snapshot()?, limits.sizes().room());
    let adopted = planner.adopted_tables();
    thread::spawn(|| adopted.map(AdoptedTables::compare_all));
    program_objects(&mut agent(planner, tables), all);
    Ok(milliseconds(began))
}

fn agent(planner: Planner, tables: Tables) -> Agent<Tables> {
    let health = Arc::new(Health::new(false));
    let outlets = Outlets::new(Arc::new(Silent), health, Arc::new(Metrics::new()));
    Agent::new("node-1", planner, tables, outlets)
}

/// Like a starting agent.
fn program_objects(agent: &mut Agent<Tables>, objects: Vec<Object>) {
    for object in objects {
        agent.store_event(Event::Applied(object));
    }
    agent.program_changes(Affected::All);
}

fn objects(services: u32, endpoints: u32) -> Result<Vec<Object>> {
    let mut objects = Vec::with_capacity(services as usize * 2);
    for number in 0..services {
        objects.push(parse_object(Kind::Service, &write_service(number))?);
        objects.push(parse_object(Kind::EndpointSlice, &write_slice(number, endpoints, None))?);
    }
    Ok(objects)
}

/// The time for objects that arrive one after the other.
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
