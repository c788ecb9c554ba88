//! Time and memory of 10,000 Ingresses, and of changes to them: `cargo bench -p lb-ingress-rules`.

#![allow(clippy::unwrap_used, reason = "its objects are its own")]

use std::time::{Duration, Instant};

use lb_http::path::Slashes;
use lb_ingress_rules::snippets::SnippetReading;
use lb_ingress_rules::{Delta, IngressRuleSettings, Model};
use lb_rules::model::{Kind, Object};
use serde_json::{Value, json};

const INGRESSES: usize = 10_000;
/// Each namespace has a hundredth of them.
const NAMESPACES: usize = 100;

fn read(kind: Kind, value: Value) -> Object {
    Object::read(kind, value).unwrap()
}

fn namespace(number: usize) -> String {
    format!("team-{}", number % NAMESPACES)
}

fn ingress(number: usize, service: &str) -> Object {
    let backend = json!({"service": {"name": service, "port": {"number": 80}}});
    let rules: Vec<Value> = (0..3)
        .map(|host| {
            let paths = [json!({"path": "/", "pathType": "Prefix", "backend": backend})];
            json!({"host": format!("h{host}-i{number}.example.org"), "http": {"paths": paths}})
        })
        .collect();
    let hosts: Vec<String> = (0..3).map(|host| format!("h{host}-i{number}.example.org")).collect();
    let spec = json!({
        "rules": rules, "tls": [{"hosts": hosts, "secretName": format!("tls-{}", number % 1000)}]
    });
    let annotations = json!({"nginx.ingress.kubernetes.io/proxy-body-size": "8m"});
    let metadata = json!({
        "name": format!("i{number}"), "namespace": namespace(number), "annotations": annotations,
        "creationTimestamp": "2026-01-01T00:00:00Z"
    });
    read(Kind::Ingress, json!({"metadata": metadata, "spec": spec}))
}

fn service(number: usize) -> Object {
    let metadata = json!({"name": format!("s{number}"), "namespace": namespace(number)});
    read(
        Kind::Service,
        json!({"metadata": metadata, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}}),
    )
}

fn slice(number: usize, ready: bool) -> Object {
    let labels = json!({"kubernetes.io/service-name": format!("s{number}")});
    let metadata =
        json!({"name": format!("s{number}-1"), "namespace": namespace(number), "labels": labels});
    let endpoint = |n: usize| {
        let address = format!("10.{n}.{}.{}", number / 250, number % 250 + 1);
        json!({"addresses": [address], "conditions": {"ready": ready || n > 0}})
    };
    read(
        Kind::EndpointSlice,
        json!({
            "metadata": metadata, "addressType": "IPv4", "ports": [{"name": "", "port": 8080}],
            "endpoints": [endpoint(0), endpoint(1), endpoint(2)]
        }),
    )
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The data of a Secret with a certificate for these names.
fn pair(names: &[&str]) -> Value {
    let names = names.iter().copied().map(str::to_owned).collect::<Vec<_>>();
    let pair = rcgen::generate_simple_self_signed(names).unwrap();
    json!({"tls.crt": pair.cert.pem(), "tls.key": pair.signing_key.serialize_pem()})
}

fn settings() -> IngressRuleSettings {
    IngressRuleSettings {
        controller: "millrace.io/ingress-controller".to_owned(),
        accept_nginx_classes: false,
        class: "millrace".to_owned(),
        serve_without_class: true,
        slashes: Slashes::Merged,
        share_hosts: false,
        external_names: false,
        secrets_across_namespaces: false,
        passthrough: false,
        default_certificate: None,
        auth_hosts: Vec::new(),
        snippets: SnippetReading::Refused,
        max_body: Some(1 << 20),
        cluster_domain: "cluster.local".to_owned(),
        node: String::new(),
    }
}

fn main() {
    // `cargo test` does not measure.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let data = pair(&["*.example.org"]);
    let mut objects = Vec::new();
    for number in 0..INGRESSES {
        objects.extend([
            ingress(number, &format!("s{number}")),
            service(number),
            slice(number, true),
        ]);
    }
    for number in 0..1000 {
        let metadata = json!({"name": format!("tls-{number}"), "namespace": namespace(number)});
        objects.push(read(Kind::Secret, json!({"metadata": metadata, "stringData": data})));
    }
    let mut model = Model::new(settings());
    let copies = objects.clone();
    let (before, start) = (resident_kib(), Instant::now());
    copies.into_iter().for_each(|object| model.apply(object));
    let delta = model.settle();
    println!("all objects: {:?}", start.elapsed());
    println!("memory: {} KiB, besides the objects as they were read", resident_kib() - before);
    assert_eq!(delta.hosts.len(), 3 * INGRESSES);
    assert!(delta.problems.is_empty(), "{:?}", delta.problems.first_key_value());
    let kept = delta;

    let mut change =
        |what: &str, object: &dyn Fn(usize) -> Object, wanted: &dyn Fn(&Delta) -> usize| {
            let mut times: Vec<Duration> = (0..1000)
                .map(|number| {
                    let object = object(number);
                    let start = Instant::now();
                    model.apply(object);
                    let delta = model.settle();
                    let time = start.elapsed();
                    assert!(wanted(&delta) > 0, "{what} {number}");
                    time
                })
                .collect();
            times.sort();
            println!("{what}: median {:?}, worst of 1000 {:?}", times[500], times[999]);
        };
    let hosts = |delta: &Delta| delta.hosts.len();
    change("an Ingress", &|number| ingress(number, &format!("s{}", number + NAMESPACES)), &hosts);
    change("a new Ingress", &|number| ingress(INGRESSES + number, &format!("s{number}")), &hosts);
    change("a slice", &|number| slice(number, false), &|delta| delta.upstreams.len());
    let data = pair(&["*.example.org", "*.example.net"]);
    let secret = |number| {
        let metadata = json!({"name": format!("tls-{number}"), "namespace": namespace(number)});
        read(Kind::Secret, json!({"metadata": metadata, "stringData": data}))
    };
    change("a certificate of 10 Ingresses", &secret, &|delta| delta.tls.len());
    drop(kept);
}
