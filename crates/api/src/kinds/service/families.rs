//! Determines the address families of a Service from the client's fields and the server's ranges.

use ipnet::IpNet;
use serde_json::Value;

use super::super::AllocationRanges;
use super::super::json::{get_list, get_text, get_texts, get_value, set_value};
use super::super::names::parse_ip;
use super::super::violation::Violation;
use super::spec::{has_selector, is_headless, needs_cluster_ip, service_type};

const FAMILIES: &str = "spec.ipFamilies";
const POLICY: &str = "spec.ipFamilyPolicy";
const ADDRESSES: &str = "spec.clusterIPs";

/// Sets `ipFamilyPolicy` and `ipFamilies`. The Service has been validated.
pub(crate) fn resolve_ip_families(
    service: &mut Value,
    old: Option<&Value>,
    ranges: &AllocationRanges,
) -> Result<(), Violation> {
    if !needs_cluster_ip(service) {
        return Ok(());
    }
    // A changed address is the client's error, whatever the families are.
    if let Some(old) = old {
        same_first_address(service, old)?;
        if is_settled(service, old) {
            return Ok(());
        }
    }
    default_policy(service, old);
    match old {
        Some(old) if get_text(service, POLICY) == "SingleStack" => shorten(service, old),
        Some(old) => refuse_reduction(service, old)?,
        None => {}
    }
    refuse_two_of_single(service)?;
    let configured: Vec<&str> = ranges.cluster_ips.iter().map(family_of_range).collect();
    infer_from_addresses(service, &configured)?;
    choose(service, &configured)?;
    match old {
        Some(old) => unchanged(service, old),
        None => Ok(()),
    }
}

fn family_of_range(range: &IpNet) -> &'static str {
    family(range.addr().is_ipv4())
}

fn family(is_v4: bool) -> &'static str {
    if is_v4 { "IPv4" } else { "IPv6" }
}

fn other(family: &str) -> &'static str {
    if family == "IPv4" { "IPv6" } else { "IPv4" }
}

fn policy_violation(service: &Value, detail: &str) -> Violation {
    Violation::invalid(POLICY, get_text(service, POLICY), detail)
}

/// A change of the server's ranges alone does not upgrade or downgrade a Service that prefers two
/// families. Only a change by its owner does.
fn is_settled(service: &Value, old: &Value) -> bool {
    get_text(service, POLICY) == "PreferDualStack"
        && get_text(old, POLICY) == "PreferDualStack"
        && get_list(service, ADDRESSES).len() == get_list(old, ADDRESSES).len()
        && get_list(service, FAMILIES) == get_list(old, FAMILIES)
}

fn default_policy(service: &mut Value, old: Option<&Value>) {
    if get_value(service, POLICY).is_some() {
        return;
    }
    let before = old.map(|old| get_text(old, POLICY)).filter(|policy| !policy.is_empty());
    let policy = match before {
        Some(policy) => policy,
        // The families of endpoints from elsewhere are unknown.
        None if is_headless(service) && !has_selector(service) => "RequireDualStack",
        None => "SingleStack",
    };
    set_value(service, POLICY, policy);
}

/// A client goes back to one family by changing only the policy. The first address stays.
fn shorten(service: &mut Value, old: &Value) {
    for path in [ADDRESSES, FAMILIES] {
        let values = get_list(service, path);
        if values.len() > 1 && values == get_list(old, path) {
            let first = values[..1].to_vec();
            set_value(service, path, first);
        }
    }
}

fn refuse_reduction(service: &Value, old: &Value) -> Result<(), Violation> {
    for (path, what) in [(ADDRESSES, "cluster IP"), (FAMILIES, "IP family")] {
        let count = get_list(service, path).len();
        if count > 0 && count < get_list(old, path).len() {
            let detail = format!("must be 'SingleStack' to release the secondary {what}");
            return Err(policy_violation(service, &detail));
        }
    }
    Ok(())
}

fn refuse_two_of_single(service: &Value) -> Result<(), Violation> {
    if get_text(service, POLICY) != "SingleStack" {
        return Ok(());
    }
    for (path, what) in [(ADDRESSES, "cluster IPs"), (FAMILIES, "IP families")] {
        if get_list(service, path).len() == 2 {
            let detail = format!(
                "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
            );
            return Err(policy_violation(service, &detail));
        }
    }
    Ok(())
}

fn infer_from_addresses(service: &mut Value, configured: &[&str]) -> Result<(), Violation> {
    if is_headless(service) {
        return Ok(());
    }
    let mut families: Vec<String> = owned(get_texts(service, FAMILIES));
    for (index, address) in get_texts(service, ADDRESSES).iter().enumerate().skip(families.len()) {
        let Some(address) = parse_ip(address) else { continue };
        let family = family(address.is_ipv4());
        if !configured.contains(&family) {
            let detail = format!("{family} is not configured on this cluster");
            let all = get_texts(service, ADDRESSES);
            return Err(Violation::invalid(format!("{ADDRESSES}[{index}]"), all, &detail));
        }
        families.push(family.to_owned());
    }
    if !families.is_empty() {
        set_value(service, FAMILIES, families);
    }
    Ok(())
}

fn choose(service: &mut Value, configured: &[&str]) -> Result<(), Violation> {
    let mut families = owned(get_texts(service, FAMILIES));
    let wants_two = get_text(service, POLICY) != "SingleStack";
    let primary = configured.first().copied().unwrap_or("IPv4").to_owned();
    let is_anyones = is_headless(service) && !has_selector(service);
    if !is_anyones {
        if get_text(service, POLICY) == "RequireDualStack" && configured.len() < 2 {
            let detail = "this cluster is not configured for dual-stack services";
            return Err(policy_violation(service, detail));
        }
        for (index, family) in families.iter().enumerate() {
            if !configured.contains(&family.as_str()) {
                let field = format!("{FAMILIES}[{index}]");
                let detail = "not configured on this cluster";
                return Err(Violation::invalid(field, family.as_str(), detail));
            }
        }
    }
    if families.is_empty() {
        families.push(primary);
    }
    if families.len() == 1 && wants_two && (is_anyones || configured.len() == 2) {
        families.push(other(&families[0]).to_owned());
    }
    set_value(service, FAMILIES, families);
    Ok(())
}

fn same_first_address(service: &Value, old: &Value) -> Result<(), Violation> {
    if !needs_cluster_ip(old) {
        return Ok(());
    }
    let (new, old) = (get_texts(service, ADDRESSES), get_texts(old, ADDRESSES));
    let shared = new.len().min(old.len());
    // When addresses are added or removed, only the first one must stay the same.
    let compared = if new.len() == old.len() { shared } else { shared.min(1) };
    if new.is_empty() && !old.is_empty() {
        let detail = "primary clusterIP can not be unset";
        return Err(Violation::invalid(format!("{ADDRESSES}[0]"), new, detail));
    }
    match (0..compared).find(|index| new[*index] != old[*index]) {
        Some(index) => {
            let field = format!("{ADDRESSES}[{index}]");
            Err(Violation::invalid(field, new, "may not change once set"))
        }
        None => Ok(()),
    }
}

fn unchanged(service: &Value, old: &Value) -> Result<(), Violation> {
    if service_type(old) == "ExternalName" || is_headless(service) || is_headless(old) {
        return Ok(());
    }
    let (new, old) = (get_texts(service, FAMILIES), get_texts(old, FAMILIES));
    let compared = if new.len() == old.len() { new.len() } else { new.len().min(old.len()).min(1) };
    if new[..compared] == old[..compared] {
        return Ok(());
    }
    Err(Violation::invalid(format!("{FAMILIES}[0]"), new, "may not change once set"))
}

fn owned(texts: Vec<&str>) -> Vec<String> {
    texts.into_iter().map(str::to_owned).collect()
}
