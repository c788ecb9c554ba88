//! The embedded API of `millrace standalone` beside a real API server: the same requests, and where responses differ.

mod client;
mod compare;
mod fidelity;
mod scenarios;

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use lb_api::http::ApiLimits;
use lb_api::kinds::AllocationRanges;
use lb_api::server::{ApiServerOptions, EmbeddedApiServer};
use lb_api::storage::ChangeWindow;
use serde_json::{Value, json};
use tests::worlds::topology::SOON;
use tokio::runtime::Builder;

use crate::control_plane::ControlPlane;
use crate::kubeconfig::User;
use crate::network::Network;

use super::results::{Results, SpecResult, TestOutcome};
use client::{ApiClient, ApiRequest, ApiResponse};
use compare::{Difference, Normalizer, differences, reduce_to};
use fidelity::{cases, kinds, widgets};
use scenarios::steps::{ComparedPart, Step};
use scenarios::{Scenario, steps};

/// The programs that the suite needs.
pub const PROGRAMS: [&str; 3] = ["etcd", "kube-apiserver", "kubectl"];

/// Ranges of ClusterIPs of both servers.
const RANGES: [&str; 2] = ["10.96.0.0/16", "fd00:10:96::/112"];

/// What is removed after each scenario.
const COLLECTIONS: [&str; 9] = [
    "/api/v1/namespaces/compared/configmaps",
    "/api/v1/namespaces/compared/secrets",
    "/api/v1/namespaces/compared/services",
    "/api/v1/namespaces/compared/endpoints",
    "/api/v1/namespaces/compared/events",
    "/api/v1/namespaces/compared/serviceaccounts",
    "/apis/discovery.k8s.io/v1/namespaces/compared/endpointslices",
    "/apis/networking.k8s.io/v1/namespaces/compared/ingresses",
    "/apis/coordination.k8s.io/v1/namespaces/compared/leases",
];

/// Cases that make a server wait are sent for one kind only.
const SLOW_CASES: &str = "future";

/// Sends all requests to a real API server and to the embedded one. Each difference is a failed spec, which the list in
/// `suites/api.txt` may exclude.
pub fn run_api_suite(programs: &Path, log: &Path) -> Result<Results> {
    let network = Network::new(0, crate::network::Cni::Bridge, 2)?;
    let files = network.topology.directory().to_owned();
    let administrator = User::administrator()?;
    println!("Starting etcd and the API server ...");
    let _plane = ControlPlane::start_with_ranges(
        &network.router,
        programs,
        &files,
        &RANGES,
        &[&administrator],
    )?;
    let mut log = File::create(log)?;
    network.router.enter(|| {
        // One thread: a network namespace is a property of threads.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let embedded = start_embedded_server(files.join("embedded")).await?;
            let mut servers = ComparedServers {
                real: Server::new(&files.join("admin.kubeconfig"), Some(administrator.token()))
                    .await?,
                embedded: Server::new(&embedded.kubeconfig, None).await?,
                results: Results::default(),
                log: &mut log,
            };
            servers.prepare().await?;
            for scenario in scenarios::all() {
                servers.run_scenario(scenario).await?;
            }
            servers.run_fidelity_cases().await?;
            Ok(servers.results)
        })
    })
}

async fn start_embedded_server(data_directory: PathBuf) -> Result<EmbeddedApiServer> {
    std::fs::create_dir_all(&data_directory)?;
    EmbeddedApiServer::start(ApiServerOptions {
        data_directory,
        bind: "127.0.0.1:0".parse()?,
        kubeconfig: None,
        node_name: compare::THIS_NODE.to_owned(),
        ranges: AllocationRanges {
            cluster_ips: RANGES.iter().map(|range| range.parse()).collect::<Result<_, _>>()?,
            node_ports: 30_000..=32_767,
        },
        window: ChangeWindow::default(),
        limits: ApiLimits::default(),
        declarations: widgets::all(),
        namespaces: Vec::new(),
    })
    .await
}

/// A server, and what is known of it.
struct Server {
    client: ApiClient,
    normalizer: Normalizer,
    captured: HashMap<&'static str, String>,
}

impl Server {
    async fn new(kubeconfig: &Path, token: Option<&str>) -> Result<Self> {
        let client = ApiClient::new(kubeconfig, token).await?;
        Ok(Self { client, normalizer: Normalizer::default(), captured: HashMap::new() })
    }

    async fn send(&mut self, step: &Step) -> Result<ApiResponse> {
        let mut request = step.request.clone();
        for (name, value) in &self.captured {
            let placeholder = format!("{{{name}}}");
            request.path = request.path.replace(&placeholder, value);
            request.body = request.body.replace(&placeholder, value);
        }
        let response = self.client.send(&request).await?;
        let body = if step.captured.is_empty() { Value::Null } else { response.json() };
        for (name, pointer) in &step.captured {
            let value = body.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            self.captured.insert(name, value.to_owned());
        }
        Ok(response)
    }
}

struct ComparedServers<'a> {
    real: Server,
    embedded: Server,
    results: Results,
    log: &'a mut File,
}

impl ComparedServers<'_> {
    /// Creates the namespace of the scenarios, and the kinds that only tests declare.
    async fn prepare(&mut self) -> Result<()> {
        for declaration in widgets::all() {
            let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            let step = steps::post("declare", path, serde_json::to_value(declaration.definition)?);
            let response = self.real.send(&step).await?;
            ensure!(response.status == 201, "{}", response.json());
        }
        let began = std::time::Instant::now();
        for path in ["ranges", "widgets"] {
            let step = steps::get("wait", format!("/apis/test.example.com/v1alpha1/{path}"));
            while self.real.send(&step).await?.status != 200 {
                ensure!(began.elapsed() < SOON, "{path} are not served");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
        let namespace = json!({"metadata": {"name": "compared"}});
        let step = steps::post("create", "/api/v1/namespaces", namespace);
        self.compare("preparation", &step).await
    }

    async fn run_scenario(&mut self, scenario: Scenario) -> Result<()> {
        for step in &scenario.steps {
            self.compare(scenario.name, step).await?;
        }
        for path in COLLECTIONS {
            let step = steps::request("remove", "DELETE", path).compare(ComparedPart::Nothing);
            for server in [&mut self.real, &mut self.embedded] {
                server.send(&step).await?;
            }
        }
        Ok(())
    }

    /// The cases of the fidelity tests, of each kind.
    async fn run_fidelity_cases(&mut self) -> Result<()> {
        for (number, kind) in kinds::kinds().into_iter().enumerate() {
            let group = format!("{} {}", kind.api_version, kind.kind);
            let collection = kind.collection();
            let object = kind.object(json!({"name": "old", "labels": {"a": "b"}}));
            let created = steps::post("create", collection.clone(), object);
            let [old, old_embedded] = self.compare_both(&group, &created, &created).await?;
            let version = |old: &Value| {
                old["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
            };
            let own = format!("{collection}/old");
            let parts = [
                (&collection, cases::creations(&kind), cases::creations(&kind)),
                (&collection, cases::lists(&version(&old)), cases::lists(&version(&old_embedded))),
                (&own, cases::harmless(&kind, &old), cases::harmless(&kind, &old_embedded)),
            ];
            for (path, real, embedded) in parts {
                for (real, embedded) in real.into_iter().zip(embedded) {
                    if number > 0 && real.name.contains(SLOW_CASES) {
                        continue;
                    }
                    let [real, embedded] = [real, embedded].map(|case| step_of_case(path, case));
                    self.compare_both(&group, &real, &embedded).await?;
                }
            }
            let missing = format!("{collection}/missing");
            for case in cases::missing(&kind) {
                self.compare(&group, &step_of_case(&missing, case)).await?;
            }
            self.compare(&group, &steps::delete("delete", own.clone())).await?;
        }
        Ok(())
    }

    async fn compare(&mut self, group: &str, step: &Step) -> Result<()> {
        self.compare_both(group, step, step).await.map(drop)
    }

    /// Sends a request to each server, and adds what differs to the results. Returns the bodies.
    async fn compare_both(
        &mut self,
        group: &str,
        real: &Step,
        embedded: &Step,
    ) -> Result<[Value; 2]> {
        let what = || format!("{group}: {}", real.name);
        let responses = [
            self.real.send(real).await.with_context(what)?,
            self.embedded.send(embedded).await.with_context(what)?,
        ];
        let bodies = responses.each_ref().map(ApiResponse::json);
        self.undo_lone_creation([real, embedded], &responses, &bodies).await.with_context(what)?;
        let found = self.differences_of(&responses, bodies.clone(), real.compared);
        let name = format!("{group}: {}", real.name);
        writeln!(
            self.log,
            "{name}: {} {}: {}, {}",
            real.request.method, real.request.path, responses[0].status, responses[1].status
        )?;
        if found.is_empty() {
            self.results.add(group, name.clone(), Ok(()));
        }
        for difference in found {
            let Difference { place, real, embedded } = difference;
            writeln!(self.log, "  {place}\n    real:     {real}\n    embedded: {embedded}")?;
            self.results.0.push(SpecResult {
                group: group.to_owned(),
                name: format!("{name}: {place}: real {real}, embedded {embedded}"),
                outcome: TestOutcome::Failed(String::new()),
                time: std::time::Duration::ZERO,
            });
        }
        Ok(bodies)
    }

    /// Removes an object that only one server has created: the requests that follow expect the same objects in both.
    async fn undo_lone_creation(
        &mut self,
        requests: [&Step; 2],
        responses: &[ApiResponse; 2],
        bodies: &[Value; 2],
    ) -> Result<()> {
        let created = responses.each_ref().map(|response| response.status == 201);
        let Some(creator) = (0..2).find(|server| created[*server] && !created[1 - *server]) else {
            return Ok(());
        };
        let request = &requests[creator].request;
        let path = request.path.split('?').next().unwrap_or_default();
        if request.path.contains("dryRun") {
            return Ok(());
        }
        let path = match (request.method, bodies[creator]["metadata"]["name"].as_str()) {
            ("POST", Some(name)) => format!("{path}/{name}"),
            _ => path.to_owned(),
        };
        let server = if creator == 0 { &mut self.real } else { &mut self.embedded };
        let finalizers = json!({"metadata": {"finalizers": null}});
        server.send(&steps::merge("let go", path.clone(), finalizers)).await?;
        server.send(&steps::delete("undo", path)).await?;
        Ok(())
    }

    fn differences_of(
        &mut self,
        responses: &[ApiResponse; 2],
        [mut real, mut embedded]: [Value; 2],
        compared: ComparedPart,
    ) -> Vec<Difference> {
        if compared == ComparedPart::Nothing {
            return Vec::new();
        }
        let head = |response: &ApiResponse| {
            let mut head = json!({"status": response.status});
            if compared == ComparedPart::Everything {
                for name in ["content-type", "warning", "retry-after", "allow"] {
                    head[name] = json!(response.header(name));
                }
            }
            head
        };
        let [real_head, embedded_head] = responses.each_ref().map(head);
        if responses[0].status != responses[1].status {
            // What else differs follows from that.
            let describe = |response: &ApiResponse, body: &Value| {
                let message = body["message"].as_str().unwrap_or_default();
                compare::shorten(&format!("{} {message}", response.status))
            };
            return vec![Difference {
                place: "status".to_owned(),
                real: describe(&responses[0], &real),
                embedded: describe(&responses[1], &embedded),
            }];
        }
        let mut found = differences(&real_head, &embedded_head);
        if compared == ComparedPart::Status {
            return found;
        }
        self.real.normalizer.normalize(&mut real);
        self.embedded.normalizer.normalize(&mut embedded);
        if compared == ComparedPart::WhatEmbeddedSays {
            reduce_to(&mut real, &embedded);
        }
        found.extend(differences(&real, &embedded));
        found
    }
}

fn step_of_case(path: &str, case: cases::Case) -> Step {
    let mut step = steps::request(case.name, case.method, format!("{path}{}", case.suffix));
    step.request = ApiRequest { content_type: case.type_, body: case.body, ..step.request };
    step
}
