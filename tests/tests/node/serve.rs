//! Metrics of real traffic, and health checks of external load balancers.

use std::fs;

use anyhow::{Context, Result, ensure};
use tests::worlds::one_node::{NODE, OneNode};
use tests::worlds::topology::{SOON, wait_until};

/// A Service with this external traffic policy, and one endpoint on the given node.
fn web(policy: &str, node_of_endpoint: &str) -> String {
    format!(
        "apiVersion: v1\n\
         kind: Service\n\
         metadata: {{name: web, namespace: shop}}\n\
         spec:\n\
         \x20 type: LoadBalancer\n\
         \x20 externalTrafficPolicy: {policy}\n\
         \x20 healthCheckNodePort: 32000\n\
         \x20 clusterIP: 10.96.0.10\n\
         \x20 ports: [{{name: http, port: 80}}]\n\
         status: {{loadBalancer: {{ingress: [{{ip: 203.0.113.10}}]}}}}\n\
         ---\n\
         apiVersion: discovery.k8s.io/v1\n\
         kind: EndpointSlice\n\
         metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: IPv4\n\
         ports: [{{name: http, port: 8080}}]\n\
         endpoints: [{{addresses: [10.244.1.10], nodeName: {node_of_endpoint}}}]\n"
    )
}

/// Gets a URL from the node itself.
fn ask(network: &OneNode, url: &str) -> Result<String> {
    network.node.run(["curl", "--silent", "--show-error", "--max-time", "60", url])
}

/// The HTTP status that an external client gets from the node; 0 without a response.
fn status(network: &OneNode, port: u16) -> Result<u16> {
    let url = format!("http://{NODE}:{port}/healthz");
    let status = network.client.run([
        "sh",
        "-c",
        &format!("curl --silent --max-time 60 --output /dev/null --write-out '%{{http_code}}' {url} || true"),
    ])?;
    status.trim().parse().with_context(|| status.clone())
}

/// The labels of the only Service port, and of its only backend.
const SERVICE: &str =
    "{namespace=\"shop\",service=\"web\",port=\"http\",protocol=\"TCP\",family=\"IPv4\"}";
const BACKEND: &str = "{backend=\"10.244.1.10:8080\",protocol=\"TCP\"}";

/// The value of a metric with its labels.
fn value(metrics: &str, name: &str) -> Option<u64> {
    metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[test]
fn metrics_contain_the_counters_of_the_kernel() -> Result<()> {
    let network = OneNode::warm(1)?;
    let (_agent, _) = network.agent_on(&web("Cluster", "node"))?;
    let before = ask(&network, "http://127.0.0.1:10249/metrics")?;
    assert!(!before.contains("millrace_service_new_flows_total{"), "{before}");

    for _ in 0..12 {
        network.curl("http://203.0.113.10/")?;
    }
    // The server may still be closing the last connection: its packets come between the two numbers that are read.
    let mut metrics = String::new();
    wait_until("traffic of the Service is that of its only backend", SOON, || {
        metrics = ask(&network, "http://127.0.0.1:10249/metrics").unwrap_or_default();
        ["forward_packets", "forward_bytes", "reverse_packets", "reverse_bytes"].iter().all(
            |counted| {
                let [of_service, of_backend] =
                    [("service", SERVICE), ("backend", BACKEND)].map(|(kind, labels)| {
                        value(&metrics, &format!("millrace_{kind}_{counted}_total{labels}"))
                    });
                of_service >= Some(12) && of_service == of_backend
            },
        )
    })
    .with_context(|| metrics.clone())?;
    for (name, expected) in [
        (format!("millrace_service_new_flows_total{SERVICE}"), 12),
        (format!("millrace_backend_new_flows_total{BACKEND}"), 12),
        ("millrace_map_entries{map=\"service_ports\"}".to_owned(), 1),
        ("kubeproxy_sync_proxy_rules_service_changes_total".to_owned(), 1),
    ] {
        assert_eq!(value(&metrics, &name), Some(expected), "{name}: {metrics}");
    }
    Ok(())
}

/// Memory used by the start is returned: most of ten thousand nodes may have an idle agent.
#[test]
fn an_agent_with_one_service_uses_little_memory() -> Result<()> {
    let network = OneNode::warm(1)?;
    let (_agent, _) = network.agent_on(&web("Cluster", "node"))?;
    let metrics = ask(&network, "http://127.0.0.1:10249/metrics")?;
    let own = metrics.lines().find_map(|line| line.strip_prefix("millrace_agent_memory_bytes "));
    let mib = own.with_context(|| metrics.clone())?.parse::<f64>()? / f64::from(1 << 20);
    ensure!(mib < 32.0, "{mib:.0} MiB");
    Ok(())
}

/// The labels must be those that docs/metrics.md lists.
#[test]
fn metrics_have_the_documented_labels() -> Result<()> {
    let network = OneNode::warm(1)?;
    let _agent = network.agent_that_announces(&web("Cluster", "node"))?;
    network.curl("http://203.0.113.10/")?;
    let url = "http://127.0.0.1:10249/metrics";
    wait_until("the address is announced", SOON, || {
        ask(&network, url).is_ok_and(|metrics| metrics.contains("millrace_announcement_held{"))
    })?;
    for path in ["healthz", "livez"] {
        ask(&network, &format!("http://127.0.0.1:10256/{path}"))?;
    }
    let metrics = ask(&network, url)?;

    let document = include_str!("../../../docs/metrics.md");
    let mut looked_at = 0;
    for row in document.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (name, documented) = (cells[1].trim_matches('`'), cells[3].replace(['`', ' '], ""));
        // There is no API server here, no pool and no BGP peer; controller and Ingress proxy are other processes.
        let others = [
            "rest_client_",
            "millrace_ingress_",
            "millrace_address_",
            "millrace_metallb_",
            "millrace_bgp_",
            "millrace_bfd_",
            // Nothing is waited for.
            "millrace_waiting_",
        ];
        if others.iter().any(|other| name.starts_with(other)) {
            continue;
        }
        let sample =
            if cells[2] == "histogram" { format!("{name}_count") } else { name.to_owned() };
        let is_sample = |rest: &&str| rest.starts_with(['{', ' ']);
        let samples = metrics.lines().filter_map(|line| line.strip_prefix(&sample));
        let samples: Vec<&str> = samples.filter(is_sample).collect();
        ensure!(!samples.is_empty(), "{sample} is not in\n{metrics}");
        for sample in samples {
            let labels = sample.strip_prefix('{').and_then(|rest| rest.split_once('}'));
            let labels = labels.map_or("", |(labels, _)| labels);
            let keys = labels.split(',').map(|label| label.split('=').next().unwrap_or_default());
            let keys = keys.collect::<Vec<_>>().join(",");
            ensure!(
                keys == documented,
                "{name} has the labels {keys}, and in docs/metrics.md {documented}"
            );
        }
        looked_at += 1;
    }
    ensure!(looked_at > 40, "only {looked_at} metrics were found in docs/metrics.md");
    Ok(())
}

#[test]
fn the_health_check_port_reports_whether_the_node_serves() -> Result<()> {
    let network = OneNode::warm(1)?;
    let (_agent, file) = network.agent_on(&web("Local", "node"))?;
    wait_until("the node serves", SOON, || status(&network, 32_000).is_ok_and(|s| s == 200))?;
    assert_eq!(status(&network, 10_256)?, 200, "healthz");

    fs::write(&file, web("Local", "elsewhere"))?;
    wait_until("it has no endpoint", SOON, || status(&network, 32_000).is_ok_and(|s| s == 503))?;

    fs::write(&file, web("Cluster", "node"))?;
    wait_until("the port is closed", SOON, || status(&network, 32_000).is_ok_and(|s| s == 0))?;
    assert_eq!(status(&network, 10_256)?, 200, "healthz");
    Ok(())
}

#[test]
fn healthz_fails_on_a_node_that_is_being_deleted() -> Result<()> {
    let network = OneNode::warm(1)?;
    let node = "---\napiVersion: v1\nkind: Node\nmetadata: {name: node}\n";
    let text = web("Local", "node");
    let (_agent, file) = network.agent_on(&format!("{text}{node}"))?;
    assert_eq!(status(&network, 10_256)?, 200);
    let taint = "spec: {taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]}\n";
    fs::write(&file, format!("{text}{node}{taint}"))?;
    wait_until("healthz fails", SOON, || status(&network, 10_256).is_ok_and(|s| s == 503))?;
    // The node still serves existing traffic.
    assert!(network.curl("http://203.0.113.10/").is_ok());
    Ok(())
}
