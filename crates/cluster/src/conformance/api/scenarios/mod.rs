//! Requests in an order that matters, beyond those of the fidelity tests.

mod discovery;
mod patches;
mod reading;
mod services;
pub mod steps;
mod validation;
mod writing;

use steps::Step;

pub struct Scenario {
    pub name: &'static str,
    pub steps: Vec<Step>,
}

/// All scenarios. Each begins with the same state: an empty namespace `compared`.
pub fn all() -> Vec<Scenario> {
    let scenario = |name, steps| Scenario { name, steps };
    vec![
        scenario("discovery", discovery::steps()),
        scenario("forms of responses", reading::forms()),
        scenario("selectors", reading::selectors()),
        scenario("pages", reading::pages()),
        scenario("watches", reading::watches()),
        scenario("merge patches", patches::merges()),
        scenario("JSON patches", patches::json_patches()),
        scenario("strategic merge patches", patches::strategic_merges()),
        scenario("server-side apply", patches::applies()),
        scenario("status", writing::status()),
        scenario("finalizers and deletion", writing::deletions()),
        scenario("names, metadata and options", writing::metadata()),
        scenario("namespaces", writing::namespaces()),
        scenario("Services", services::types()),
        scenario("invalid Services", services::invalid()),
        scenario("changes of Services", services::changes()),
        scenario("EndpointSlices and Endpoints", validation::slices()),
        scenario("Ingresses", validation::ingresses()),
        scenario("other kinds", validation::others()),
    ]
}
