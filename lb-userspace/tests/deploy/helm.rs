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

/// Renders the chart with the URL of an API server, unless the values have one: its objects, or Helm's error; `None`
/// without Helm.
pub fn render(values: &Value) -> Option<Result<Objects, String>> {
    let mut values = values.clone();
    let config = &mut values.as_object_mut().unwrap().entry("config").or_insert(json!({}));
    if let Some(config) = config.as_object_mut() {
        config.entry("api-servers").or_insert("https://192.0.2.1:6443".into());
    }
    render_as_given(&deploy("helm/millrace"), &values)
}

fn render_as_given(chart: &Path, values: &Value) -> Option<Result<Objects, String>> {
    let Some(python) = python() else {
        eprintln!("there is no Python with the package helm-python-sdk: the chart is not tested");
        return None;
    };
    let mut command = Command::new(python);
    command.arg(SCRIPT).arg(chart);
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
        let mut settings: Value = serde_norway::from_str(settings).unwrap();
        // The chart's only.
        settings.as_object_mut().unwrap().remove("api-servers");
        config["data"]["config.yaml"] = settings;
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
    let monitored = json!({"public": true, "serviceMonitor": {"enabled": true}});
    for (values, overlay) in [
        (json!({"privileged": true}), "privileged"),
        (json!({"bgp": {"passive": true}}), "passive bgp"),
        (json!({"startupTaint": {"enabled": true}}), "startup taint"),
        (json!({"ingress": {"enabled": true}}), "agents and ingress"),
        (json!({"controller": {"enabled": true}}), "agents and controller"),
        (json!({"metrics": monitored}), "monitored"),
        (
            json!({"controller": {"enabled": true}, "ingress": {"enabled": true},
                   "metrics": monitored}),
            "everything monitored",
        ),
        (json!({"nodeSelector": {"millrace.io/proxy": "millrace"}}), "one by one"),
        // Each part alone.
        (
            json!({"agent": {"enabled": false}, "crds": {"enabled": false},
                   "ingress": {"enabled": true}}),
            "ingress",
        ),
        (
            json!({"agent": {"enabled": false}, "controller": {"enabled": true},
                   "metrics": {"serviceMonitor": {"enabled": true}}}),
            "controller without agents",
        ),
    ] {
        let (Some(chart), Some(manifests)) = (render(&values), kustomize::build(overlay)) else {
            return;
        };
        let chart = chart.unwrap();
        document::check(&chart);
        assert_eq!(plain(chart), plain(manifests), "{overlay}");
    }
}

/// Parts other than the agent ask the API server by its Service address, as all pods do.
#[test]
fn each_part_can_be_installed_alone() {
    let chart = deploy("helm/millrace");
    let off = json!({"agent": {"enabled": false}});
    let Some(objects) = render_as_given(&chart, &off) else { return };
    let names: Vec<String> = objects.unwrap().into_keys().collect();
    let definitions = ["addresspools", "bgppeers"]
        .map(|plural| format!("CustomResourceDefinition {plural}.millrace.io"));
    assert_eq!(names, definitions);
    for part in ["controller", "ingress"] {
        let mut values = off.clone();
        values["crds"] = json!({"enabled": false});
        values[part] = json!({"enabled": true});
        let objects = render_as_given(&chart, &values).unwrap().unwrap();
        document::check(&objects);
        assert!(objects.contains_key(&format!("Deployment millrace-{part}")), "{part}");
        for name in objects.keys() {
            assert!(
                name.contains(part)
                    || name == "Secret millrace-tunnel"
                    || name == "IngressClass millrace",
                "{part} brings {name}"
            );
        }
    }
}

/// What `lookup` finds in a cluster: a template of the test's own calls the chart's functions with it.
#[test]
fn the_api_server_is_the_one_that_kubeadm_names() {
    let chart = deploy("helm/millrace");
    let Some(missing) = render_as_given(&chart, &json!({})) else { return };
    let error = missing.unwrap_err();
    assert!(
        error.contains("config.api-servers is not set")
            && error.contains("--set config.api-servers="),
        "{error}"
    );
    for values in [
        json!({"config": {"api-servers": ["https://192.0.2.1:6443", "https://192.0.2.2:6443"]}}),
        json!({"config": {"kubeconfig": "/etc/kubernetes/kubelet.conf"}}),
        json!({"extraArgs": ["--api-servers=https://192.0.2.1:6443"]}),
    ] {
        render_as_given(&chart, &values)
            .unwrap()
            .unwrap_or_else(|error| panic!("{values}: {error}"));
    }

    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("millrace");
    let copied = Command::new("cp").args(["-rL"]).arg(&chart).arg(&copy).status().unwrap();
    assert!(copied.success());
    // As `kubectl -n kube-public get configmap cluster-info` and `kubectl -n kube-system get configmap kubeadm-config`.
    let template = r#"
{{- $kubeconfig := "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: AAAA\n    server: https://10.0.0.1:6443\n  name: \"\"\nkind: Config\n" }}
{{- $named := "apiVersion: kubeadm.k8s.io/v1beta4\ncontrolPlaneEndpoint: api.example.com:443\nkind: ClusterConfiguration\n" }}
{{- $portless := "apiVersion: kubeadm.k8s.io/v1beta4\ncontrolPlaneEndpoint: api.example.com\n" }}
apiVersion: v1
kind: ConfigMap
metadata: {name: found}
data:
  kubeconfig: {{ include "millrace.serverOfKubeconfig" $kubeconfig | quote }}
  empty: {{ include "millrace.serverOfKubeconfig" "" | quote }}
  named: {{ include "millrace.serverOfClusterConfiguration" $named | quote }}
  portless: {{ include "millrace.serverOfClusterConfiguration" $portless | quote }}
  single: {{ include "millrace.serverOfClusterConfiguration" "apiServer: {}\n" | quote }}
"#;
    std::fs::write(copy.join("templates/found.yaml"), template).unwrap();
    let objects = render_as_given(&copy, &json!({"agent": {"enabled": false}})).unwrap().unwrap();
    let expected = json!({
        "kubeconfig": "https://10.0.0.1:6443", "empty": "", "named": "https://api.example.com:443",
        "portless": "https://api.example.com:6443", "single": "",
    });
    assert_eq!(objects["ConfigMap found"]["data"], expected);
}

/// Two proxies in a cluster share no object, no Lease and no class.
#[test]
fn a_second_proxy_has_objects_of_its_own() {
    let second = json!({
        "agent": {"enabled": false}, "crds": {"enabled": false},
        "ingress": {"enabled": true, "nameOverride": "inner",
                    "class": {"name": "inner", "controller": "example.com/inner"}},
        "metrics": {"serviceMonitor": {"enabled": true}},
    });
    let (Some(first), Some(second)) = (
        render(
            &json!({"ingress": {"enabled": true}, "metrics": {"public": true, "serviceMonitor": {"enabled": true}}}),
        ),
        render(&second),
    ) else {
        return;
    };
    let (first, second) = (first.unwrap(), second.unwrap());
    document::check(&second);
    for name in second.keys() {
        assert!(!first.contains_key(name), "{name} is of both");
    }
    let settings = second["ConfigMap inner-config"]["data"]["config.yaml"].as_str().unwrap();
    let settings: Value = serde_norway::from_str(settings).unwrap();
    assert_eq!(settings["ingress-controller"], "example.com/inner");
    assert_eq!(settings["ingress-class"], "inner");
    assert_eq!(settings["status-lease"], "kube-system/inner");
    assert_eq!(settings["publish-service"], "kube-system/inner");
    assert_eq!(second["IngressClass inner"]["spec"]["controller"], "example.com/inner");
    let selector = &second["Deployment inner"]["spec"]["selector"]["matchLabels"];
    assert_eq!(*selector, second["Service inner"]["spec"]["selector"]);
    assert_ne!(*selector, first["Deployment millrace-ingress"]["spec"]["selector"]["matchLabels"]);
    let subjects = &second["ClusterRoleBinding inner"]["subjects"][0]["name"];
    assert_eq!(
        *subjects,
        second["Deployment inner"]["spec"]["template"]["spec"]["serviceAccountName"]
    );
    let relabelings = &second["ServiceMonitor inner"]["spec"]["endpoints"][0]["relabelings"];
    assert_eq!(relabelings[0]["replacement"], "millrace-ingress", "the job of the alerts");
}

/// With `ingress.rbac.namespaced` the proxy reads Secrets of its namespace only, and all that it reads otherwise.
#[test]
fn a_proxy_of_one_namespace_reads_no_secrets_of_others() {
    let values = |config: Value| json!({"ingress": {"enabled": true, "rbac": {"namespaced": true}, "config": config}});
    let Some(refused) = render(&values(json!({}))) else { return };
    let error = refused.unwrap_err();
    assert!(error.contains("needs ingress.config.watch-namespace"), "{error}");
    let narrow = render(&values(json!({"watch-namespace": "shop"}))).unwrap().unwrap();
    document::check(&narrow);
    let wide = render(&json!({"ingress": {"enabled": true}})).unwrap().unwrap();
    assert_eq!(narrow["Role millrace-ingress-watched"]["metadata"]["namespace"], "shop");
    assert_eq!(narrow["RoleBinding millrace-ingress-watched"]["metadata"]["namespace"], "shop");
    let granted = |objects: &Objects, name: &str| -> std::collections::BTreeSet<String> {
        let rules = objects[name]["rules"].as_array().unwrap().iter();
        let rule = |rule: &Value| -> Vec<String> {
            let texts = |field: &str| -> Vec<String> {
                serde_json::from_value(rule[field].clone()).unwrap()
            };
            let (groups, verbs) = (texts("apiGroups"), texts("verbs"));
            let resources = texts("resources").into_iter();
            resources
                .flat_map(|resource| {
                    verbs.iter().map(move |verb| format!("{resource} {verb}")).collect::<Vec<_>>()
                })
                .map(|grant| format!("{groups:?} {grant}"))
                .collect()
        };
        rules.flat_map(rule).collect()
    };
    let cluster = granted(&narrow, "ClusterRole millrace-ingress");
    assert!(
        cluster.iter().all(|grant| grant.contains("ingressclasses") || grant.contains("nodes")),
        "{cluster:?}"
    );
    let both: std::collections::BTreeSet<_> =
        cluster.into_iter().chain(granted(&narrow, "Role millrace-ingress-watched")).collect();
    assert_eq!(both, granted(&wide, "ClusterRole millrace-ingress"));
}

/// Values that every part has, and those of the Ingress proxy.
#[test]
fn values_of_the_parts_are_honoured() {
    let part = json!({
        "enabled": true,
        "securityContext": {"runAsUser": 7, "capabilities": {"add": ["NET_BIND_SERVICE"]}},
        "podSecurityContext": {"fsGroup": 8},
        "readinessProbe": {"periodSeconds": 9},
        "livenessProbe": {"failureThreshold": 10},
        "startupProbe": {"failureThreshold": 11},
        "topologySpreadConstraints": [
            {"maxSkew": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "networkPolicy": {"enabled": true},
    });
    let mut values = json!({
        "global": {"imageRegistry": "registry.example"},
        "agent": {"enabled": true}, "controller": part, "ingress": part,
        "crds": {"keep": false},
        "terminationGracePeriodSeconds": 12,
        "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap",
                          "metadata": {"name": "more", "labels": {"of": "{{ .Release.Name }}"}}}],
        "metrics": {"public": true, "podMonitor": {"enabled": true}, "prometheusRule": {"enabled": true, "labels": {"a": "b"}},
                    "dashboards": {"enabled": true}},
    });
    for field in
        ["securityContext", "podSecurityContext", "readinessProbe", "livenessProbe", "startupProbe"]
    {
        values[field] = part[field].clone();
    }
    values["ingress"]["config"] = json!({"shutdown-delay": "500ms", "shutdown-grace": "1h1m30s"});
    values["ingress"]["autoscaling"] = json!({"enabled": true, "minReplicas": 3, "maxReplicas": 4});
    values["ingress"]["service"] = json!({
        "labels": {"c": "d"}, "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"], "externalIPs": ["192.0.2.7"],
        "loadBalancerIP": "192.0.2.8", "loadBalancerClass": "millrace.io/load-balancer",
        "loadBalancerSourceRanges": ["192.0.2.0/24"], "nodePorts": {"http": 30080, "https": 30443},
    });
    let Some(objects) = render(&values) else { return };
    let objects = objects.unwrap();
    document::check(&objects);
    for workload in
        ["DaemonSet millrace", "Deployment millrace-controller", "Deployment millrace-ingress"]
    {
        let spec = &objects[workload]["spec"]["template"]["spec"];
        let container = &spec["containers"][0];
        assert_eq!(container["image"], "registry.example/millrace:0.0.0", "{workload}");
        let security = &container["securityContext"];
        assert_eq!(security["runAsUser"], 7, "{workload}");
        assert_eq!(
            security["capabilities"],
            json!({"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}),
            "{workload}"
        );
        assert_eq!(security["readOnlyRootFilesystem"], true, "{workload}: the others stay");
        assert_eq!(spec["securityContext"], json!({"fsGroup": 8}), "{workload}");
        assert_eq!(container["readinessProbe"]["periodSeconds"], 9, "{workload}");
        assert!(container["readinessProbe"]["httpGet"]["path"].is_string(), "{workload}");
        assert_eq!(container["livenessProbe"]["failureThreshold"], 10, "{workload}");
        assert_eq!(container["startupProbe"]["failureThreshold"], 11, "{workload}");
    }
    for name in ["controller", "ingress"] {
        let spec = &objects[&format!("Deployment millrace-{name}")]["spec"]["template"]["spec"];
        assert_eq!(spec["topologySpreadConstraints"], part["topologySpreadConstraints"], "{name}");
        let policy = &objects[&format!("NetworkPolicy millrace-{name}")]["spec"];
        let ports =
            policy["ingress"][0]["ports"].as_array().unwrap().iter().map(|port| &port["port"]);
        let all =
            spec["containers"][0]["ports"].as_array().unwrap().iter().map(|port| &port["name"]);
        assert_eq!(ports.collect::<Vec<_>>(), all.collect::<Vec<_>>(), "{name}");
    }
    let agent = &objects["DaemonSet millrace"]["spec"]["template"]["spec"];
    assert_eq!(agent["terminationGracePeriodSeconds"], 12);
    let proxy = &objects["Deployment millrace-ingress"]["spec"];
    assert_eq!(proxy["template"]["spec"]["terminationGracePeriodSeconds"], 3690 + 15);
    assert_eq!(proxy["replicas"], Value::Null, "the autoscaler's");
    let scaler = &objects["HorizontalPodAutoscaler millrace-ingress"]["spec"];
    assert_eq!((&scaler["minReplicas"], &scaler["maxReplicas"]), (&json!(3), &json!(4)));
    let service = &objects["Service millrace-ingress"];
    for field in [
        "ipFamilyPolicy",
        "ipFamilies",
        "externalIPs",
        "loadBalancerIP",
        "loadBalancerClass",
        "loadBalancerSourceRanges",
    ] {
        assert_eq!(service["spec"][field], values["ingress"]["service"][field], "{field}");
    }
    assert_eq!(service["metadata"]["labels"]["c"], "d");
    let ports = service["spec"]["ports"].as_array().unwrap().iter().map(|port| &port["nodePort"]);
    assert_eq!(ports.collect::<Vec<_>>(), [30080, 30443]);
    for definition in ["addresspools", "bgppeers"] {
        let definition = &objects[&format!("CustomResourceDefinition {definition}.millrace.io")];
        assert_eq!(definition["metadata"]["annotations"], Value::Null, "not kept");
    }
    assert_eq!(
        objects["ConfigMap more"]["metadata"]["labels"]["of"], "millrace",
        "it is evaluated"
    );
    let port = &objects["PodMonitor millrace-ingress"]["spec"]["podMetricsEndpoints"][0]["port"];
    assert_eq!(*port, proxy["template"]["spec"]["containers"][0]["ports"][2]["name"]);
    let rules: Value =
        serde_norway::from_str(&std::fs::read_to_string(deploy("prometheus/rules.yaml")).unwrap())
            .unwrap();
    assert_eq!(objects["PrometheusRule millrace"]["spec"], rules);
    assert_eq!(objects["PrometheusRule millrace"]["metadata"]["labels"]["a"], "b");
    for name in ["millrace", "millrace-addresses", "millrace-ingress"] {
        let map = &objects[&format!("ConfigMap {name}-dashboard")];
        assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
        let text = map["data"][format!("{name}.json")].as_str().unwrap();
        let file = std::fs::read_to_string(deploy(&format!("grafana/{name}.json"))).unwrap();
        let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(parse(text), parse(&file), "{name}");
    }
}

/// A typing error is found by Helm, not by a pod that does not start.
#[test]
fn the_schema_knows_the_settings() {
    use lb_userspace::config::{Configuration, settings_of};
    let path = deploy("helm/millrace/values.schema.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut names: Vec<_> = settings_of::<Configuration>()
        .iter()
        .map(|setting| setting.get_long().unwrap().to_owned())
        .collect();
    names.sort_unstable();
    let line = format!("    \"settings\": {{\"enum\": {}}}", json!(names));
    let lines = text
        .lines()
        .map(|old| if old.starts_with("    \"settings\": {\"enum\": ") { &line } else { old });
    let expected = lines.collect::<Vec<_>>().join("\n") + "\n";
    if env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(
        written.contains(&line) && names.len() > 50,
        "{} is stale: UPDATE_EXPECT=1 cargo test -p lb-userspace --test deploy schema",
        path.display()
    );
}

#[test]
fn every_value_is_honoured() {
    let values = json!({
        "image": {"registry": "registry.example", "repository": "team/millrace", "tag": "1.2.3",
                  "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
        "config": {"api-servers": "https://192.0.2.1:6443", "devices": ["eth*"],
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
    assert_eq!(settings["api-servers"], "https://192.0.2.1:6443");
    assert_eq!(settings["devices"], json!(["eth*"]));
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
        (json!({"config": {"api-server": "https://192.0.2.1"}}), "api-server"),
        (json!({"ingress": {"config": {"max-body": "1m"}}}), "max-body"),
        (json!({"config": {"metrics-bind-address": "[::]:1"}}), "/config"),
        (json!({"metrics": {"port": 0}}), "/metrics/port"),
        (json!({"metrics": {"serviceMonitor": {"enabled": true}}}), "need metrics.public=true"),
    ] {
        let Some(rendered) = render(&values) else { return };
        let error = rendered.expect_err(&values.to_string());
        assert!(error.contains(complaint), "{values}: {error}");
    }
}
