//! The chart, rendered by Helm itself: its Go code is in the Python package `helm-python-sdk`, which
//! `cargo xtask prerequisites` installs under `target/python`.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::document::{self, Objects};
use super::{deploy, kustomize};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/deploy/render.py");

/// What came of the chart: its objects, or what Helm says is wrong; none where there is no Helm.
pub fn render(values: &Value) -> Option<Result<Objects, String>> {
    let Some(python) = python() else {
        eprintln!("there is no Python with the package helm-python-sdk: the chart is not tested");
        return None;
    };
    let mut command = Command::new(python);
    command.arg(SCRIPT).arg(deploy("helm/millrace"));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(values.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
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

/// Names that follow from the content are made plain, and what only says that it has changed is
/// taken away: each way has its own.
fn plain(mut objects: Objects) -> Objects {
    let name = objects.keys().find(|name| name.starts_with("ConfigMap ")).unwrap().clone();
    let mut config = objects.remove(&name).unwrap();
    config["metadata"]["name"] = json!("config");
    // Comments are no settings.
    let settings = config["data"]["config.yaml"].as_str().unwrap();
    config["data"]["config.yaml"] = serde_norway::from_str(settings).unwrap();
    objects.insert("ConfigMap config".to_owned(), config);

    let template = &mut objects.get_mut("DaemonSet millrace").unwrap()["spec"]["template"];
    template["spec"]["volumes"][0]["configMap"]["name"] = json!("config");
    template["metadata"].as_object_mut().unwrap().remove("annotations");
    objects
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
        (
            json!({"metrics": {"public": true, "serviceMonitor": {"enabled": true}}}),
            "overlays/monitored",
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
        "image": {"repository": "registry.example/millrace", "tag": "1.2.3", "pullPolicy": "Always"},
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
        "updateStrategy": {"type": "OnDelete", "rollingUpdate": null},
    });
    let Some(objects) = render(&values) else { return };
    let objects = objects.unwrap();
    document::check(&objects);
    let spec = &objects["DaemonSet millrace"]["spec"];
    let (template, container) = (&spec["template"], &spec["template"]["spec"]["containers"][0]);
    assert_eq!(container["image"], "registry.example/millrace:1.2.3");
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

#[test]
fn wrong_values_are_refused() {
    for (values, complaint) in [
        (json!({"image": {"tga": "1"}}), "tga"),
        (json!({"config": {"log level": "debug"}}), "log level"),
        (json!({"config": {"metrics-bind-address": "[::]:1"}}), "/config"),
        (json!({"metrics": {"port": 0}}), "/metrics/port"),
        (json!({"metrics": {"serviceMonitor": {"enabled": true}}}), "needs metrics.public=true"),
    ] {
        let Some(rendered) = render(&values) else { return };
        let error = rendered.expect_err(&values.to_string());
        assert!(error.contains(complaint), "{values}: {error}");
    }
}
