use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::ensure;
use lb_rules::model::{AddressFamily, Protocol, ServiceName};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use super::*;

fn choose(chosen: &mut Chosen<u32>, counted: &[u32], most: usize) -> (Vec<u32>, u64) {
    let mut counted: Vec<_> =
        counted.iter().map(|&key| (key, layout::Traffic::default())).collect();
    let left_out = chosen.choose(&mut counted, most);
    (counted.into_iter().map(|(key, _)| key).collect(), left_out)
}

#[test]
fn exported_objects_stay_exported_while_they_exist() {
    let mut chosen = Chosen::default();
    assert_eq!(choose(&mut chosen, &[3, 4], 2), (vec![3, 4], 0));
    assert_eq!(choose(&mut chosen, &[1, 2, 3, 4], 2), (vec![3, 4], 2));
    assert_eq!(choose(&mut chosen, &[1, 2, 4], 2), (vec![1, 4], 1), "3 is gone");
    assert_eq!(choose(&mut chosen, &[1, 2, 4], 0), (vec![1, 4], 1), "a lower limit removes none");
    assert_eq!(choose(&mut Chosen::default(), &[1, 2], 0), (vec![], 2));
}

/// Counters of one service port and one backend; they can be read once, then they fail.
struct Fake {
    readable: AtomicBool,
}

impl Counters for Fake {
    fn reasons(&self) -> Result<Vec<(Reason, u64)>> {
        ensure!(self.readable.swap(false, Ordering::Relaxed), "the map is gone");
        Ok(vec![(Reason::NoBackend, 3)])
    }

    fn neighbour_events(&self) -> Result<Vec<(NeighbourEvent, u64)>> {
        Ok(vec![(NeighbourEvent::Arp, 4)])
    }

    fn service_port(&self, index: u32) -> Result<layout::Traffic> {
        let forward_packets = if index == 7 { 11 } else { 0 };
        Ok(layout::Traffic { forward_packets, ..layout::Traffic::default() })
    }

    fn backends(&self) -> Vec<(u32, BackendKey)> {
        let key = |last| BackendKey { address: [10, 0, 0, last].into(), port: 8080, protocol: 6 };
        vec![(1, key(1)), (2, key(2))]
    }

    fn backend(&self, index: u32) -> Result<layout::Traffic> {
        let new_flows = if index == 2 { 5 } else { 0 };
        Ok(layout::Traffic { new_flows, ..layout::Traffic::default() })
    }

    fn flow_tables(&self) -> Vec<FlowTable> {
        vec![FlowTable { family: "IPv4", by_state: vec![("nascent", 2)], capacity: 64 }]
    }
}

fn encode(traffic: &Traffic) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(traffic.clone()));
    let mut text = String::new();
    text::encode(&mut text, &registry).unwrap();
    text
}

#[test]
fn counters_are_exported_by_service_port_and_backend() {
    let traffic = Traffic::default();
    assert!(!encode(&traffic).contains("millrace_reason_packets_total{"), "there are none yet");
    traffic.read_from(|| Ok(Box::new(Fake { readable: true.into() })));
    traffic.catalogue(|catalog| {
        for (name, index) in [("web", 7), ("idle", 8)] {
            let key = ServicePortKey {
                service: ServiceName::new("shop", name),
                port: "http".to_owned(),
                protocol: Protocol::Tcp,
                family: AddressFamily::V4,
            };
            catalog.insert(key, index);
        }
    });
    let text = encode(&traffic);
    for line in [
        "millrace_reason_packets_total{reason=\"no_backend\",outcome=\"answered\"} 3",
        "millrace_neighbour_packets_total{event=\"arp_answered\"} 4",
        "millrace_service_forward_packets_total{namespace=\"shop\",service=\"web\",\
         port=\"http\",protocol=\"TCP\",family=\"IPv4\"} 11",
        "millrace_backend_new_flows_total{backend=\"10.0.0.2:8080\",protocol=\"TCP\"} 5",
        "millrace_flow_table_entries{family=\"IPv4\",state=\"nascent\"} 2",
        "millrace_flow_table_capacity{family=\"IPv4\"} 64",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    for without_traffic in ["idle", "10.0.0.1"] {
        assert!(!text.contains(without_traffic), "{without_traffic} is in\n{text}");
    }
}

#[test]
fn objects_beyond_the_limit_are_counted_and_not_exported() {
    for (most, is_exported) in [(1, true), (0, false)] {
        let traffic = Traffic::default();
        traffic.read_from(|| Ok(Box::new(Fake { readable: true.into() })));
        traffic.limit_objects(most);
        let text = encode(&traffic);
        assert_eq!(text.contains("backend=\"10.0.0.2:8080\""), is_exported, "{text}");
        let omitted = format!("millrace_objects_omitted{{kind=\"backend\"}} {}", 1 - most);
        assert!(text.lines().any(|line| line == omitted), "{omitted} is not in\n{text}");
    }
}

#[test]
fn counters_are_opened_again_after_they_could_not_be_read() {
    let opened = Arc::new(AtomicUsize::new(0));
    let traffic = Traffic::default();
    let count = Arc::clone(&opened);
    traffic.read_from(move || {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Fake { readable: true.into() }))
    });
    let has_reasons = || encode(&traffic).contains("millrace_reason_packets_total{");
    assert_eq!([has_reasons(), has_reasons(), has_reasons()], [true, false, true]);
    assert_eq!(opened.load(Ordering::Relaxed), 2);
}
