//! Reads the fields of a Service, and collects problems with them.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ServicePort as ApiPort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::types::{Problem, Protocol, ServiceName, TrafficPolicy};

const AFFINITY_SECONDS: i32 = 10_800;
const MAX_AFFINITY_SECONDS: i32 = 86_400;

pub fn find_annotation<'a>(metadata: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

pub struct Fields<'a> {
    pub service: &'a ServiceName,
    pub problems: &'a mut Vec<Problem>,
}

impl Fields<'_> {
    pub fn problem(&mut self, field: &str, message: String) {
        let object = format!("Service {}", self.service);
        self.problems.push(Problem { object, field: field.to_owned(), message });
    }

    /// Parses an address with one of the functions in `address`.
    pub fn address(
        &mut self,
        field: &str,
        text: &str,
        parse: fn(&str) -> Result<IpAddr, &'static str>,
    ) -> Option<IpAddr> {
        parse(text).map_err(|why| self.problem(field, format!("{text:?} {why}"))).ok()
    }

    pub fn port(&mut self, field: &str, number: i32) -> Option<u16> {
        let port = u16::try_from(number).ok().filter(|&port| port != 0);
        if port.is_none() {
            self.problem(field, format!("{number} is not between 1 and 65535"));
        }
        port
    }

    pub fn protocol(&mut self, field: &str, port: &ApiPort) -> Option<Protocol> {
        let protocol = Protocol::parse(port.protocol.as_deref());
        if protocol.is_none() {
            let name = port.protocol.clone().unwrap_or_default();
            self.problem(field, format!("{name:?} is not one of TCP, UDP, SCTP; not served"));
        }
        protocol
    }

    pub fn policy(&mut self, field: &str, policy: &Option<String>) -> TrafficPolicy {
        match self.one_of(field, policy, &["Cluster", "Local"]) {
            "Local" => TrafficPolicy::Local,
            _ => TrafficPolicy::Cluster,
        }
    }

    pub fn affinity(&mut self, spec: &ServiceSpec) -> Option<Duration> {
        let affinity = &spec.session_affinity;
        if self.one_of("spec.sessionAffinity", affinity, &["None", "ClientIP"]) == "None" {
            return None;
        }
        let config = spec.session_affinity_config.as_ref();
        let seconds = config.and_then(|c| c.client_ip.as_ref()?.timeout_seconds);
        let seconds = seconds.unwrap_or(AFFINITY_SECONDS);
        let within = seconds.clamp(1, MAX_AFFINITY_SECONDS);
        if within != seconds {
            let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
            let message =
                format!("{seconds} is not between 1 and {MAX_AFFINITY_SECONDS}; using {within}");
            self.problem(field, message);
        }
        Some(Duration::from_secs(within.unsigned_abs().into()))
    }

    /// One of the API's names; the first if the field is empty. A newer API may have other names.
    pub fn one_of(
        &mut self,
        field: &str,
        name: &Option<String>,
        known: &[&'static str],
    ) -> &'static str {
        let default = known[0];
        let name = name.as_deref().filter(|name| !name.is_empty()).unwrap_or(default);
        known.iter().find(|&&known| known == name).copied().unwrap_or_else(|| {
            let all = known.join(", ");
            self.problem(field, format!("{name:?} is not one of {all}; using {default}"));
            default
        })
    }
}
