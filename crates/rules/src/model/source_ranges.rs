//! Which clients may use a load balancer's addresses.

use ipnet::IpNet;
use k8s_openapi::api::core::v1::ServiceSpec;

use super::address::parse_address_range;
use super::fields::Fields;
use super::types::AddressFamily;

/// The clients that are admitted in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admitted {
    All,
    From(Vec<IpNet>),
    /// There are ranges, but none is valid: a typing error must not admit all clients.
    None,
}

/// The source ranges of a Service.
pub(crate) struct SourceRanges {
    ranges: Vec<IpNet>,
    /// The families of the invalid entries, as far as they can be recognized.
    unreadable: Vec<AddressFamily>,
}

impl SourceRanges {
    pub fn read(spec: &ServiceSpec, fields: &mut Fields<'_>) -> Self {
        let mut read = Self { ranges: Vec::new(), unreadable: Vec::new() };
        for (index, text) in spec.load_balancer_source_ranges.iter().flatten().enumerate() {
            if let Some(range) = parse_address_range(text) {
                read.ranges.push(range);
                continue;
            }
            let v6 = text.contains(':');
            read.unreadable.push(if v6 { AddressFamily::V6 } else { AddressFamily::V4 });
            let field = format!("spec.loadBalancerSourceRanges[{index}]");
            fields.problem(&field, format!("{text:?} is not a range such as 192.0.2.0/24"));
        }
        read.ranges.sort();
        read.ranges.dedup();
        for family in AddressFamily::ALL {
            if read.of(family) == Admitted::None {
                let message = format!(
                    "no {} range is valid; until one is, no client may use the load \
                     balancer's {0} addresses",
                    family.name()
                );
                fields.problem("spec.loadBalancerSourceRanges", message);
            }
        }
        read
    }

    pub fn of(&self, family: AddressFamily) -> Admitted {
        let of_family = |range: &&IpNet| AddressFamily::of(&range.addr()) == family;
        let ranges: Vec<IpNet> = self.ranges.iter().filter(of_family).copied().collect();
        // A range of all addresses removes the limits of its family.
        if ranges.iter().any(|range| range.prefix_len() == 0) {
            Admitted::All
        } else if !ranges.is_empty() {
            Admitted::From(ranges)
        } else if self.unreadable.contains(&family) {
            Admitted::None
        } else {
            Admitted::All
        }
    }
}
