//! The state of a data plane and its agent, as `millrace status` shows it, and whether it is
//! healthy.

mod troubles;

use std::collections::BTreeMap;

use lb_common::layout::map;
use lb_kernel::{Features, Survey};
use lb_status::AgentReport;
use serde::Serialize;

use troubles::troubles_of_agent;
pub use troubles::{trouble_of_path, trouble_of_peer};

/// The whole status.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Whether there are no faults.
    pub healthy: bool,
    pub agent: AgentStatus,
    pub pins: Pins,
    pub kernel: Kernel,
    pub devices: Vec<Device>,
    /// Number of attached programs for processes of the node.
    pub process_programs: usize,
    pub maps: Vec<Fill>,
    pub problems: Vec<Trouble>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    pub running: bool,
    /// The process that holds the lock on the pins, by its id in this namespace.
    pub process: Option<u32>,
    /// The agent's own report; `null` if it is not available here.
    pub report: Option<AgentReport>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pins {
    pub path: String,
    pub maps: usize,
    pub missing_maps: Vec<String>,
    pub attachments: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Kernel {
    pub version: String,
    pub btf: bool,
    pub tcx: bool,
    pub jit: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    pub name: String,
    /// How programs are attached: `native XDP`, `tcx egress`, …
    pub hooks: Vec<String>,
}

/// The fill level of a map.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fill {
    pub map: String,
    pub used: u64,
    pub capacity: u64,
    pub percent: f64,
}

/// A problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Trouble {
    pub severity: Severity,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// The node does not work as it should.
    Fault,
    /// Something needs to be fixed, on the node or in an object; the rest works.
    Warning,
}

/// Fill level of a warning, in percent.
const NEARLY_FULL: f64 = 90.0;

/// What was found about a data plane.
pub struct StatusFindings {
    pub pin_path: String,
    pub survey: Survey,
    pub features: Features,
    /// Used entries by map.
    pub used: BTreeMap<&'static str, u64>,
    /// The agent's report, an error, or `None` if no agent responds.
    pub report: Result<Option<AgentReport>, String>,
}

impl Status {
    pub fn of(found: StatusFindings) -> Self {
        let StatusFindings { pin_path, survey, features, used, report } = found;
        let mut problems = Vec::new();
        let fault = |message: String| Trouble { severity: Severity::Fault, message };
        let warning = |message: String| Trouble { severity: Severity::Warning, message };

        let missing: Vec<String> = survey
            .maps
            .iter()
            .filter(|map| map.capacity.is_none())
            .map(|map| map.name.to_owned())
            .collect();
        if !missing.is_empty() {
            problems.push(fault(format!(
                "{} maps are not pinned; restart the agent to create them",
                missing.len()
            )));
        }
        if survey.attachments.iter().all(|attachment| !attachment.is_attached) {
            problems.push(fault("no program is attached to any device".to_owned()));
        }
        for gone in survey.attachments.iter().filter(|attachment| !attachment.is_attached) {
            let message = format!(
                "the program for {} on {} is pinned, but not attached",
                gone.hook, gone.device
            );
            problems.push(warning(message));
        }
        let (attached, all) = survey.processes;
        if attached < all {
            problems.push(warning(format!(
                "{attached} of {all} programs are attached for processes of this node: they may \
                 not reach Services"
            )));
        }
        let maps = fills(&survey, &used);
        for fill in maps.iter().filter(|fill| fill.percent >= NEARLY_FULL) {
            let message = format!("{} is {:.0}% full", fill.map, fill.percent);
            problems.push(if fill.used >= fill.capacity {
                fault(message)
            } else {
                warning(message)
            });
        }
        if !features.jit {
            problems.push(warning(
                "the kernel interprets BPF programs, which is slow: \
                 sysctl net.core.bpf_jit_enable=1"
                    .to_owned(),
            ));
        }
        problems.extend(troubles_of_agent(&survey, &report));
        problems.sort_by_key(|trouble| trouble.severity);

        let report = report.ok().flatten();
        Self {
            healthy: problems.iter().all(|trouble| trouble.severity != Severity::Fault),
            agent: AgentStatus {
                running: survey.holder.is_some() || report.is_some(),
                process: survey.holder.or(report.as_ref().map(|report| report.process)),
                report,
            },
            pins: Pins {
                path: pin_path,
                maps: survey.maps.len() - missing.len(),
                missing_maps: missing,
                attachments: survey.attachments.len() + attached,
            },
            kernel: Kernel {
                version: features.version,
                btf: features.btf,
                tcx: features.tcx,
                jit: features.jit,
            },
            devices: devices(&survey),
            process_programs: attached,
            maps,
            problems,
        }
    }
}

fn devices(survey: &Survey) -> Vec<Device> {
    let mut hooks: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for attachment in survey.attachments.iter().filter(|attachment| attachment.is_attached) {
        hooks.entry(&attachment.device).or_default().push(attachment.hook.to_string());
    }
    hooks.into_iter().map(|(name, hooks)| Device { name: name.to_owned(), hooks }).collect()
}

/// Fill levels of the maps whose used entries are known. LRU maps are left out: they are normally
/// full.
fn fills(survey: &Survey, used: &BTreeMap<&'static str, u64>) -> Vec<Fill> {
    let fill = |found: &lb_kernel::SurveyedMap| {
        let used = *used.get(found.name)?;
        let entries = u64::from(found.capacity?);
        let capacity = match found.name {
            // Elements have two slots; buckets have eight entries.
            map::POOL_SLOTS => entries * 2,
            map::FLOWS4 | map::FLOWS6 => entries * lb_common::layout::BUCKET_ENTRIES as u64,
            _ => entries,
        };
        let percent = used as f64 * 100.0 / capacity.max(1) as f64;
        Some(Fill { map: found.name.to_owned(), used, capacity, percent })
    };
    survey.maps.iter().filter_map(fill).collect()
}

#[cfg(test)]
mod tests;
