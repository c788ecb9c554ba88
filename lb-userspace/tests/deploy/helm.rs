//! The chart, rendered by Helm itself: its Go code is in the Python package `helm-python-sdk`,
//! which `cargo xtask prerequisites` installs under `target/python`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::document::{self, Objects};
use super::{deploy, kustomize, output_for};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/deploy/render.py");

const RELEASE_LABELS: [&str; 4] = [
    "helm.sh/chart",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
];

/// Renders the chart: its objects, or Helm's error; `None` without Helm.
pub fn render(values: &Value) -> Option<Result<Objects, String>> {
    let Some(python) = python() else {
        eprintln!("there is no Python with the package helm-python-sdk: the chart is not tested");
        return None;
    };
    let mut command = Command::new(python);
    command.arg(SCRIPT).arg(deploy("helm/millrace"));
    let output = output_for(&mut command, values);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Some(if output.status.success() {
        Ok(document::read(&text(output.stdout)))
    } else {
        Err(text(output.stderr))
    })
}

fn python() -> Option<PathBuf> {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/python/bin/python");
    let candidates = env::var_os("MILLRACE_PYTHON").map(PathBuf::from);
    candidates.into_iter().chain([installed, "python3".into()]).find(|python| {
        let imported = Command::new(python).args(["-c", "import helm_python"]).output();
        imported.is_ok_and(|output| output.status.success())
    })
}

/// Removes hashes of the content from names and annotations, because Helm and Kustomize have
/// different ones.
fn plain(mut objects: Objects) -> Objects {
    for (prefix, workload) in [
        ("ConfigMap millrace-config", "DaemonSet millrace"),
        ("ConfigMap millrace-ingress-config", "Deployment millrace-ingress"),
        ("ConfigMap millrace-controller-config", "Deployment millrace-controller"),
    ] {
        let Some(name) = objects.keys().find(|name| name.starts_with(prefix)).cloned() else {
            continue;
        };
        let mut config = objects.remove(&name).unwrap();
        config["metadata"]["name"] = json!("config");
        // Without comments.
        let settings = config["data"]["config.yaml"].as_str().unwrap();
        config["data"]["config.yaml"] = serde_norway::from_str(settings).unwrap();
        objects.insert(prefix.to_owned(), config);

        let template = &mut objects.get_mut(workload).unwrap()["spec"]["template"];
        template["spec"]["volumes"][0]["configMap"]["name"] = json!("config");
        template["metadata"].as_object_mut().unwrap().remove("annotations");
    }
    for object in objects.values_mut() {
        remove_labels_of_the_release(object);
        // Helm alone knows it.
        if object["kind"] == "CustomResourceDefinition" {
            object["metadata"].as_object_mut().unwrap().remove("annotations");
        }
    }
    objects
}

/// Labels that only Helm can know.
fn remove_labels_of_the_release(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for label in RELEASE_LABELS {
                map.remove(label);
            }
            map.values_mut().for_each(remove_labels_of_the_release);
        }
        Value::Array(list) => list.iter_mut().for_each(remove_labels_of_the_release),
        _ => {}
    }
}

#[test]
fn the_chart_as_it_is_makes_the_plain_manifests() {
    let (Some(chart), Some(manifests)) = (render(&json!({})), kustomize::build("base")) else {
        return;
    };
    let (chart, manifests) = (plain(chart.unwrap()), plain(manifests));
    let names = |objects: &Objects| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&chart), names(&manifests));
    for (name, object) in &chart {
        assert_eq!(
            object, &manifests[name],
            "{name}: the chart's, and that of deploy/kustomize/base"
        );
    }
}

#[test]
fn values_make_the_overlays() {
    for (values, overlay) in [
        (json!({"privileged": true}), "overlays/privileged"),
        (json!({"ingress": {"enabled": true}}), "overlays/ingress"),
        (json!({"controller": {"enabled": true}}), "overlays/load-balancer"),
        (
            json!({"metrics": {"public": true, "serviceMonitor": {"enabled": true}}}),
            "overlays/monitored",
        ),
        (
            json!({"controller": {"enabled": true},
                   "metrics": {"public": true, "serviceMonitor": {"enabled": true}}}),
            "overlays/load-balancer-monitored",
        ),
        (json!({"nodeSelector": {"millrace.io/proxy": "millrace"}}), "overlays/one-by-one"),
    ] {
        let (Some(chart), Some(manifests)) = (render(&values), kustomize::build(overlay)) else {
            return;
        };
        let chart = chart.unwrap();
        document::check(&chart);
        assert_eq!(plain(chart), plain(manifests), "{overlay}");
    }
}

#[test]
fn every_value_is_honoured() {
    let values = json!({
        "image": {"registry": "registry.example", "repository": "team/millrace", "tag": "1.2.3",
                  "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
        "config": {"api-server": "https://192.0.2.1:6443", "device": ["eth*"],
                   "healthz-bind-address": "[::]:10300"},
        "metrics": {"port": 9100},
        "affinity": {"nodeAffinity": {}},
        "tolerations": [],
        "priorityClassName": "important",
        "resources": {"limits": {"memory": "1Gi"}},
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "commonLabels": {"e": "f"},
        "serviceAccount": {"name": "proxy", "annotations": {"role": "proxy"}},
        "extraArgs": ["--log=debug"],
        "extraEnv": [{"name": "G", "value": "h"}],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "updateStrategy": {"type": "OnDelete", "rollingUpdate": null},
    });
    let Some(objects) = render(&values) else { return };
    let objects = objects.unwrap();
    document::check(&objects);
    let spec = &objects["DaemonSet millrace"]["spec"];
    let (template, container) = (&spec["template"], &spec["template"]["spec"]["containers"][0]);
    assert_eq!(container["image"], "registry.example/team/millrace:1.2.3");
    assert_eq!(container["imagePullPolicy"], "Always");
    let args = container["args"].as_array().unwrap();
    assert!(args.contains(&json!("--metrics-bind-address=127.0.0.1:9100")), "{args:?}");
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert_eq!(container[probe]["httpGet"]["port"], 10300, "{probe}");
    }
    assert_eq!(container["resources"]["limits"]["memory"], "1Gi");
    let settings = objects["ConfigMap millrace-config"]["data"]["config.yaml"].as_str().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.yaml");
    std::fs::write(&file, settings).unwrap();
    kustomize::check_settings(&file, &[]);
    let settings: Value = serde_norway::from_str(settings).unwrap();
    assert_eq!(settings["api-server"], "https://192.0.2.1:6443");
    assert_eq!(settings["device"], json!(["eth*"]));
    assert_eq!(settings["log"], "info", "values are laid over the chart's own");
    assert_eq!(template["spec"]["imagePullSecrets"], values["imagePullSecrets"]);
    assert_eq!(template["spec"]["affinity"], values["affinity"]);
    assert_eq!(template["spec"]["priorityClassName"], "important");
    assert_eq!(template["spec"]["tolerations"], Value::Null);
    assert_eq!(template["metadata"]["annotations"]["a"], "b");
    assert_eq!(template["metadata"]["labels"]["c"], "d");
    assert_eq!(spec["updateStrategy"]["type"], "OnDelete");
    assert_eq!(args.last(), Some(&json!("--log=debug")), "it overrides what is before it");
    assert!(container["env"].as_array().unwrap().contains(&values["extraEnv"][0]));
    let mounts = container["volumeMounts"].as_array().unwrap();
    assert!(mounts.contains(&values["extraVolumeMounts"][0]), "{mounts:?}");
    let volumes = template["spec"]["volumes"].as_array().unwrap();
    assert!(volumes.contains(&values["extraVolumes"][0]), "{volumes:?}");
    assert_eq!(template["spec"]["serviceAccountName"], "proxy");
    let account = &objects["ServiceAccount proxy"]["metadata"];
    assert_eq!(account["annotations"], json!({"role": "proxy"}));
    assert_eq!(objects["ClusterRoleBinding millrace"]["subjects"][0]["name"], "proxy");
    for (name, object) in &objects {
        assert_eq!(object["metadata"]["labels"]["e"], "f", "{name}");
    }

    let annotation = |objects: &Objects| {
        let template = &objects["DaemonSet millrace"]["spec"]["template"];
        template["metadata"]["annotations"]["checksum/config"].clone()
    };
    let default = render(&json!({})).unwrap().unwrap();
    assert_ne!(
        annotation(&default),
        annotation(&objects),
        "a change of the settings is rolled out"
    );
}

/// Arguments of the container, in the namespace of the release.
fn arguments(objects: &Objects, workload: &str) -> Vec<String> {
    let args = &objects[workload]["spec"]["template"]["spec"]["containers"][0]["args"];
    serde_json::from_value(args.clone()).unwrap()
}

fn tunnel_key_volume(objects: &Objects) -> Value {
    let volumes = &objects["DaemonSet millrace"]["spec"]["template"]["spec"]["volumes"];
    let mut volumes = volumes.as_array().unwrap().iter();
    volumes.find(|volume| volume["name"] == "tunnel-key").unwrap()["secret"].clone()
}

/// No upgrade may replace it, so no value is in the chart.
#[test]
fn the_controller_generates_the_tunnel_key_unless_there_is_one() {
    let Some(objects) = render(&json!({"controller": {"enabled": true}})) else { return };
    let objects = objects.unwrap();
    document::check(&objects);
    for field in ["data", "stringData"] {
        assert_eq!(objects["Secret millrace-tunnel"][field], Value::Null, "an upgrade keeps it");
    }
    let secret = &objects["Secret millrace-tunnel"]["metadata"];
    let namespaced =
        format!("--tunnel-key-secret={}/millrace-tunnel", secret["namespace"].as_str().unwrap());
    assert!(arguments(&objects, "Deployment millrace-controller").contains(&namespaced));
    let rule = json!({"apiGroups": [""], "resources": ["secrets"],
                      "resourceNames": ["millrace-tunnel"], "verbs": ["get", "update"]});
    let rules = |objects: &Objects| objects["Role millrace-controller"]["rules"].clone();
    assert!(rules(&objects).as_array().unwrap().contains(&rule));
    let volume = tunnel_key_volume(&objects);
    assert_eq!(
        (&volume["secretName"], &volume["optional"]),
        (&json!("millrace-tunnel"), &json!(true))
    );

    let own = json!({"tunnelKeySecret": "own", "controller": {"enabled": true}});
    let own = render(&own).unwrap().unwrap();
    document::check(&own);
    assert!(!own.contains_key("Secret millrace-tunnel"));
    assert!(!rules(&own).to_string().contains("secrets"), "no permission that is not used");
    assert!(!arguments(&own, "Deployment millrace-controller").concat().contains("tunnel-key"));
    let volume = tunnel_key_volume(&own);
    assert_eq!((&volume["secretName"], &volume["optional"]), (&json!("own"), &Value::Null));
    let required = "--tunnel-key-file=/etc/millrace-tunnel/key".to_owned();
    assert!(arguments(&own, "DaemonSet millrace").contains(&required));
}

#[test]
fn all_objects_have_the_standard_labels_and_the_selector_has_only_what_never_changes() {
    let Some(objects) = render(&json!({})) else { return };
    let objects = objects.unwrap();
    for (name, object) in &objects {
        let labels = &object["metadata"]["labels"];
        for label in RELEASE_LABELS.iter().chain(&["app.kubernetes.io/name"]) {
            assert!(labels[label].is_string(), "{name} lacks {label}: {labels}");
        }
    }
    let selector = &objects["DaemonSet millrace"]["spec"]["selector"]["matchLabels"];
    assert_eq!(*selector, json!({"app.kubernetes.io/name": "millrace"}), "it is immutable");
}

#[test]
fn a_digest_replaces_the_tag() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let values = json!({"image": {"registry": "registry.example", "tag": "1", "digest": digest}});
    let Some(objects) = render(&values) else { return };
    let container =
        objects.unwrap()["DaemonSet millrace"]["spec"]["template"]["spec"]["containers"][0].clone();
    assert_eq!(container["image"], format!("registry.example/millrace@{digest}"));
}

/// The kubelet's probe: host and port, or no probe.
#[test]
fn probes_follow_the_address_of_the_health_checks() {
    for (address, expected) in [
        (json!("[::]:10300"), Some(("localhost", 10300))),
        (json!("0.0.0.0:10300"), Some(("localhost", 10300))),
        (json!("127.0.0.1:10300"), Some(("127.0.0.1", 10300))),
        (json!("[2001:db8::1]:10300"), Some(("2001:db8::1", 10300))),
        (json!("off"), None),
        // YAML reads an unquoted `off` as this.
        (json!(false), None),
    ] {
        let Some(objects) = render(&json!({"config": {"healthz-bind-address": address}})) else {
            return;
        };
        let objects = objects.unwrap_or_else(|error| panic!("{address}: {error}"));
        document::check(&objects);
        let container = &objects["DaemonSet millrace"]["spec"]["template"]["spec"]["containers"][0];
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let get = &container[probe]["httpGet"];
            match expected {
                Some((host, port)) => {
                    assert_eq!(
                        (&get["host"], &get["port"]),
                        (&json!(host), &json!(port)),
                        "{address}"
                    );
                }
                None => assert_eq!(container[probe], Value::Null, "{address}"),
            }
        }
        if expected.is_none() {
            let settings = objects["ConfigMap millrace-config"]["data"]["config.yaml"].as_str();
            let settings: Value = serde_norway::from_str(settings.unwrap()).unwrap();
            assert_eq!(settings["healthz-bind-address"], "off", "{address}");
        }
    }
}

#[test]
fn a_pod_monitor_finds_the_port_of_the_metrics() {
    let values =
        json!({"metrics": {"public": true, "port": 9100, "podMonitor": {"enabled": true}}});
    let Some(objects) = render(&values) else { return };
    let objects = objects.unwrap();
    let container = &objects["DaemonSet millrace"]["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["ports"][0]["containerPort"], 9100);
    let monitor = &objects["PodMonitor millrace"]["spec"];
    assert_eq!(monitor["podMetricsEndpoints"][0]["port"], container["ports"][0]["name"]);
    assert!(!objects.contains_key("Service millrace-metrics"));
    assert!(!objects.contains_key("PodMonitor millrace-controller"));

    let mut values = values;
    values["controller"] = json!({"enabled": true});
    let objects = render(&values).unwrap().unwrap();
    let spec = &objects["Deployment millrace-controller"]["spec"]["template"]["spec"];
    let monitor = &objects["PodMonitor millrace-controller"]["spec"];
    let port = &monitor["podMetricsEndpoints"][0]["port"];
    assert_eq!(*port, spec["containers"][0]["ports"][0]["name"]);
}

#[test]
fn wrong_values_are_refused() {
    for (values, complaint) in [
        (json!({"image": {"tga": "1"}}), "tga"),
        (json!({"image": {"digest": "sha256:1"}}), "/image/digest"),
        (json!({"extraArgs": "--log=debug"}), "/extraArgs"),
        (
            json!({"metrics": {"public": true, "serviceMonitor": {"enabled": true},
                               "podMonitor": {"enabled": true}}}),
            "scraped twice",
        ),
        (json!({"config": {"log level": "debug"}}), "log level"),
        (json!({"config": {"metrics-bind-address": "[::]:1"}}), "/config"),
        (json!({"metrics": {"port": 0}}), "/metrics/port"),
        (json!({"metrics": {"serviceMonitor": {"enabled": true}}}), "need metrics.public=true"),
    ] {
        let Some(rendered) = render(&values) else { return };
        let error = rendered.expect_err(&values.to_string());
        assert!(error.contains(complaint), "{values}: {error}");
    }
}
