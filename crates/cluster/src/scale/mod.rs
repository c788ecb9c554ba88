//! `cargo xtask bench cluster`: an agent among many Services of a real API server, beside kube-proxy.
//!
//! The API server and etcd are processes of their own, without controllers and kubelets: the benchmark itself creates
//! Services, EndpointSlices and Nodes. One service proxy runs at a time, on a node of its own.

mod contender;
mod figures;
mod load;
mod objects;
mod probe;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde_json::json;
use tests::programs::usage::processor_time_with_children;

use crate::binaries::build_programs_by_name;
use crate::cluster::{DEFAULT_KUBERNETES, start_cleaner};
use crate::control_plane::ControlPlane;
use crate::interrupt::{self, check_interrupt};
use crate::kubeconfig::User;
use crate::network::{Cni, Network};

use contender::{Contender, ContenderKind};
use figures::{ContenderFigures, Samples, milliseconds, write_table};
use load::{create_object, create_objects, merge_patch, with_client};
use objects::{ClusterSize, Creation, NAMESPACE, SERVICE_RANGE};

/// What a service proxy may still have to do after its first answers.
const SETTLING: Duration = Duration::from_secs(3);
const BETWEEN_CHANGES: Duration = Duration::from_millis(100);
/// Probes begin before the change that they wait for.
const PROBES_BEFORE: Duration = Duration::from_millis(20);

/// Measure starts, changes, CPU time and memory among many Services of a real API server, beside kube-proxy
///
/// Builds etcd, the API server and kube-proxy from Go modules, as `cargo xtask cluster` does.
#[derive(Debug, Args)]
pub struct ScaleOptions {
    /// Number of Services
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000)]
    services: usize,

    /// Number of endpoints of each Service
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    endpoints: usize,

    /// Number of Nodes without a machine
    #[arg(long, value_name = "NUMBER", default_value_t = 5_000)]
    nodes: usize,

    /// Number of cold starts of each service proxy
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    rounds: usize,

    /// Number of restarts in each round
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    restarts: usize,

    /// Number of changes in each round
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    changes: usize,

    /// Measure only this service proxy
    #[arg(long, value_enum, value_name = "PROXY")]
    only: Option<ContenderKind>,

    /// 200 Services and one round, with a development build: shows only that everything works
    #[arg(long)]
    quick: bool,

    /// Directory for the results as JSON
    #[arg(long, value_name = "DIRECTORY", default_value = "target/bench")]
    output: PathBuf,

    /// Version of Kubernetes
    #[arg(long, value_name = "VERSION", default_value = DEFAULT_KUBERNETES)]
    kubernetes: String,

    /// Folder for programs
    #[arg(long, value_name = "DIRECTORY", default_value = "target/cluster", hide = true)]
    directory: PathBuf,

    /// Only build the programs that are missing
    #[arg(long, hide = true)]
    build_only: bool,
}

impl ScaleOptions {
    fn size(&self) -> ClusterSize {
        if self.quick {
            return ClusterSize { services: 200, endpoints: 3, nodes: 20 };
        }
        ClusterSize { services: self.services, endpoints: self.endpoints, nodes: self.nodes }
    }

    /// Rounds, and restarts and changes in each.
    fn counts(&self) -> [usize; 3] {
        if self.quick { [1, 1, 3] } else { [self.rounds, self.restarts, self.changes] }
    }
}

/// An API server with all objects, and the service proxies to measure. Fields are dropped in this order.
struct ScaleWorld {
    contenders: Vec<Contender>,
    _plane: ControlPlane,
    network: Network,
    kubeconfig: PathBuf,
}

pub fn run_scale_benchmark(options: &ScaleOptions) -> Result<()> {
    let programs = ["etcd", "kube-apiserver", "kubectl", "kube-proxy"];
    let programs = build_programs_by_name(&options.directory, &options.kubernetes, &programs)?;
    if options.build_only {
        return Ok(());
    }
    let size = options.size();
    ensure!(size.services >= 10, "--services {}: at least 10 are needed", size.services);
    interrupt::handle_interrupts()?;
    let _cleaner = start_cleaner(&[])?;
    let mut world = ScaleWorld::new(options, size, &programs.canonicalize()?)?;
    let [rounds, restarts, changes] = options.counts();
    let mut samples: Vec<_> = world.contenders.iter().map(|_| Samples::default()).collect();
    for round in 1..=rounds {
        for (index, samples) in samples.iter_mut().enumerate() {
            println!("Round {round} of {rounds}: {}", world.contenders[index].kind.name());
            world.measure_cold_start(index, samples)?;
            world.measure_changes(index, changes, samples)?;
            for _ in 0..restarts {
                world.measure_restart(index, samples)?;
            }
            world.kill(index, samples)?;
            world.contenders[index].clean_up()?;
        }
    }
    let all = world.contenders.iter().zip(&samples);
    let figures: Vec<_> = all
        .map(|(contender, samples)| ContenderFigures::new(contender.kind.name(), samples))
        .collect();
    println!(
        "\n{} Services of {} endpoints, {} Nodes, Kubernetes {}, {rounds} rounds: median (least..most)\n\n{}",
        size.services,
        size.endpoints,
        size.nodes,
        options.kubernetes,
        write_table(&figures)
    );
    fs::create_dir_all(&options.output)?;
    let file = options.output.join("cluster.json");
    let json = json!({
        "services": size.services, "endpoints": size.endpoints, "nodes": size.nodes,
        "kubernetes": options.kubernetes, "contenders": figures,
    });
    fs::write(&file, format!("{json:#}\n")).with_context(|| file.display().to_string())?;
    println!("{}", file.display());
    Ok(())
}

impl ScaleWorld {
    fn new(options: &ScaleOptions, size: ClusterSize, programs: &Path) -> Result<Self> {
        let kinds =
            options.only.map_or(ContenderKind::value_variants().to_vec(), |kind| vec![kind]);
        let network = Network::new(kinds.len(), Cni::Bridge, 1)?;
        let files = network.topology.directory().to_owned();
        println!("Starting etcd and the API server ...");
        let administrator = User::administrator()?;
        let plane = ControlPlane::start_with_ranges(
            &network.router,
            programs,
            &files,
            &[SERVICE_RANGE],
            &[&administrator],
        )?;
        let kubeconfig = files.join("admin.kubeconfig");
        let nodes = kinds.iter().zip(&network.nodes).enumerate();
        let contenders = nodes.map(|(index, (kind, node))| {
            Contender::new(*kind, index, node, &network.topology, programs, &kubeconfig, size)
        });
        let contenders = contenders.collect::<Result<_>>()?;
        let world = Self { contenders, _plane: plane, network, kubeconfig };
        world.create_all(size)?;
        Ok(world)
    }

    fn create_all(&self, size: ClusterSize) -> Result<()> {
        let mut own_nodes = Vec::new();
        for (_, node) in &self.network.nodes {
            own_nodes.push(objects::node_object(&node.name, &node.node[0], 0));
        }
        let mut measured = Vec::new();
        for contender in &self.contenders {
            let endpoint = contender.first_endpoint();
            measured.extend(contender.measured.map(|number| (number, endpoint.clone())));
        }
        let service_creation = move |number: usize| -> Creation {
            let (number, is_slice) = (number / 2, number % 2);
            let own = measured.iter().find(|(own, _)| *own == number);
            let both = match own {
                Some((_, endpoint)) => [
                    objects::service_object(number, "UDP"),
                    objects::slice_object(number, "UDP", std::slice::from_ref(endpoint)),
                ],
                None => objects::other_service(number, size),
            };
            let [service, slice] = both;
            if is_slice == 1 { slice } else { service }
        };
        let began = Instant::now();
        with_client(&self.network.router, &self.kubeconfig, async |client| {
            let namespace = json!({"metadata": {"name": NAMESPACE}});
            create_object(&client, "/api/v1/namespaces", &namespace).await?;
            for (path, node) in &own_nodes {
                create_object(&client, path, node).await?;
            }
            println!("Creating {} Nodes ...", size.nodes);
            create_objects(&client, size.nodes, objects::other_node).await?;
            println!("Creating {} Services and their EndpointSlices ...", size.services);
            create_objects(&client, size.services * 2, service_creation).await
        })?;
        println!("Created after {} s.", began.elapsed().as_secs());
        Ok(())
    }

    fn measure_cold_start(&mut self, index: usize, samples: &mut Samples) -> Result<()> {
        let contender = &mut self.contenders[index];
        contender.clean_up()?;
        let began = contender.start()?;
        let answers = contender.wait_for_all()?;
        samples.cold_processor.push(milliseconds(processor_time_with_children(contender.pid()?)?));
        let times = answers.iter().map(|answer| answer.duration_since(began));
        let (first, all) =
            (times.clone().min().unwrap_or_default(), times.max().unwrap_or_default());
        samples.cold_first.push(milliseconds(first));
        samples.cold_all.push(milliseconds(all));
        println!("  cold start: {first:.2?} until an address answers, {all:.2?} until all do");
        Ok(())
    }

    fn measure_changes(
        &mut self,
        index: usize,
        changes: usize,
        samples: &mut Samples,
    ) -> Result<()> {
        thread::sleep(SETTLING);
        let contender = &mut self.contenders[index];
        let pid = contender.pid()?;
        let before = processor_time_with_children(pid)?;
        with_client(&self.network.router, &self.kubeconfig, async |client| {
            for _ in 0..changes {
                check_interrupt()?;
                thread::sleep(BETWEEN_CHANGES);
                let (path, patch) = contender.next_change();
                let probes = contender.watch_change();
                thread::sleep(PROBES_BEFORE);
                let requested = Instant::now();
                merge_patch(&client, &path, &patch).await?;
                let responded = Instant::now();
                let in_force = probes.join().map_err(|_| anyhow::anyhow!("a probe panicked"))??;
                samples.change.push(milliseconds(in_force.duration_since(requested)));
                let after = milliseconds(in_force.saturating_duration_since(responded))
                    - milliseconds(responded.saturating_duration_since(in_force));
                samples.change_after_response.push(after);
            }
            Ok(())
        })?;
        let used = milliseconds(processor_time_with_children(pid)?.saturating_sub(before));
        samples.change_processor.push(used / changes.max(1) as f64);
        Ok(())
    }

    fn kill(&mut self, index: usize, samples: &mut Samples) -> Result<()> {
        let [anonymous, all] = self.contenders[index].kill()?;
        samples.peak_anonymous.push(anonymous);
        samples.peak_memory.push(all);
        Ok(())
    }

    fn measure_restart(&mut self, index: usize, samples: &mut Samples) -> Result<()> {
        self.kill(index, samples)?;
        let contender = &mut self.contenders[index];
        let (path, patch) = contender.next_change();
        with_client(&self.network.router, &self.kubeconfig, async |client| {
            merge_patch(&client, &path, &patch).await
        })?;
        let began = contender.start()?;
        let took = contender.wait_for_change()?.duration_since(began);
        samples.restart.push(milliseconds(took));
        let pid = contender.pid()?;
        samples.restart_processor.push(milliseconds(processor_time_with_children(pid)?));
        println!("  restart: {took:.2?} until a change is in force");
        // Its peak may come later.
        thread::sleep(SETTLING);
        Ok(())
    }
}
