//! The plain manifests, built by kubectl.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::deploy;
use super::document::{self, Objects};
use super::kubectls::kubectls;

pub const FOLDERS: [&str; 7] = [
    "base",
    "overlays/ingress",
    "overlays/load-balancer",
    "overlays/load-balancer-monitored",
    "overlays/privileged",
    "overlays/one-by-one",
    "overlays/monitored",
];

/// Builds a folder with the newest kubectl; `None` without kubectl.
pub fn build(folder: &str) -> Option<Objects> {
    let (_, program) = kubectls().last_key_value()?;
    Some(build_by(program, folder).unwrap_or_else(|stderr| panic!("{folder}: {stderr}")))
}

/// Builds a folder with a kubectl; returns its output on failure.
pub fn build_by(program: &Path, folder: &str) -> Result<Objects, String> {
    let mut command = Command::new(program);
    let output = command.arg("kustomize").arg(deploy("kustomize").join(folder)).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    // Deprecated fields cause only warnings.
    if !output.status.success() || !stderr.is_empty() {
        return Err(stderr.into_owned());
    }
    Ok(document::read(&String::from_utf8(output.stdout).unwrap()))
}

fn daemon_set(objects: &Objects) -> &Value {
    &objects["DaemonSet millrace"]["spec"]["template"]["spec"]
}

#[test]
fn all_manifests_are_what_kubernetes_knows() {
    for folder in FOLDERS {
        let Some(objects) = build(folder) else { return };
        document::check(&objects);
        let config = objects.keys().find_map(|name| name.strip_prefix("ConfigMap ")).unwrap();
        assert_eq!(
            daemon_set(&objects)["volumes"][0]["configMap"]["name"],
            config,
            "a change of the settings must be rolled out: {folder}"
        );
        for object in objects.values() {
            let containers = object["spec"]["template"]["spec"]["containers"].as_array();
            for container in containers.into_iter().flatten() {
                let policy = &container["terminationMessagePolicy"];
                assert_eq!(policy, "FallbackToLogsOnError", "{folder}: {}", container["name"]);
            }
        }
        assert_eq!(
            daemon_set(&objects)["nodeSelector"]["kubernetes.io/arch"],
            "amd64",
            "the agent refuses other architectures: {folder}"
        );
    }
}

#[test]
fn overlays_change_what_they_describe() {
    let (Some(base), Some(privileged)) = (build("base"), build("overlays/privileged")) else {
        return;
    };
    let container = &daemon_set(&privileged)["containers"][0];
    assert_eq!(container["securityContext"]["privileged"], true);
    assert_eq!(container["securityContext"]["capabilities"], Value::Null);
    let bpf = json!({
        "name": "bpf", "mountPath": "/sys/fs/bpf", "mountPropagation": "Bidirectional"
    });
    assert!(container["volumeMounts"].as_array().unwrap().contains(&bpf), "{container}");
    assert_eq!(daemon_set(&privileged)["volumes"], daemon_set(&base)["volumes"]);

    let one_by_one = build("overlays/one-by-one").unwrap();
    assert_eq!(daemon_set(&one_by_one)["nodeSelector"]["millrace.io/proxy"], "millrace");
    assert_eq!(daemon_set(&one_by_one)["containers"], daemon_set(&base)["containers"]);

    let monitored = build("overlays/monitored").unwrap();
    let args = daemon_set(&monitored)["containers"][0]["args"].as_array().unwrap();
    assert!(args.contains(&json!("--metrics-bind-address=[::]:10249")), "{args:?}");
    assert!(monitored.contains_key("ServiceMonitor millrace"));
}

/// The container's arguments and settings are valid for the agent.
#[test]
fn the_agent_takes_its_arguments_and_settings() {
    let Some(objects) = build("overlays/monitored") else { return };
    let args = daemon_set(&objects)["containers"][0]["args"].as_array().unwrap();
    let args: Vec<&str> = args.iter().map(|arg| arg.as_str().unwrap()).collect();
    let ("agent", [config, rest @ ..]) = (args[0], &args[1..]) else { panic!("{args:?}") };
    assert_eq!(*config, "--config=/etc/millrace/config.yaml");
    check_settings(&deploy("kustomize/base/config.yaml"), rest);
}

/// No process of the Ingress proxy has privileges, whatever it can be made to do.
#[test]
fn the_ingress_proxy_runs_without_privileges() {
    let Some(objects) = build("ingress") else { return };
    document::check(&objects);
    let spec = &objects["Deployment millrace-ingress"]["spec"]["template"]["spec"];
    let container = &spec["containers"][0];
    let expected = json!({
        "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
        "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}
    });
    assert_eq!(container["securityContext"], expected);
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        assert_eq!(spec[field], Value::Null, "{field}");
    }
    check_settings(&deploy("kustomize/ingress/config.yaml"), &[]);
    let settings = std::fs::read_to_string(deploy("kustomize/ingress/config.yaml")).unwrap();
    let settings: Value = serde_norway::from_str(&settings).unwrap();
    for (setting, port) in [
        (&settings["http-bind-address"][0], "8080"),
        (&settings["https-bind-address"][0], "8443"),
        (&settings["ingress-metrics-bind-address"], "10253"),
    ] {
        let ports = container["ports"].as_array().unwrap().iter();
        let mut numbers = ports.map(|port| port["containerPort"].to_string());
        assert!(setting.as_str().unwrap().ends_with(port), "{setting}");
        assert!(numbers.any(|number| number == port), "{port}");
    }
}

/// What assigns addresses needs nothing of the nodes.
#[test]
fn the_controller_runs_without_privileges() {
    let Some(objects) = build("controller") else { return };
    document::check(&objects);
    let spec = &objects["Deployment millrace-controller"]["spec"]["template"]["spec"];
    let container = &spec["containers"][0];
    assert_eq!(container["securityContext"]["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!(container["securityContext"]["runAsNonRoot"], true);
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        assert_eq!(spec[field], Value::Null, "{field}");
    }
    let args = container["args"].as_array().unwrap().iter();
    let args: Vec<&str> = args.skip(2).map(|arg| arg.as_str().unwrap()).collect();
    check_settings(&deploy("kustomize/controller/config.yaml"), &args);
}

/// Panics if the agent would not start with this file of settings and these arguments.
pub fn check_settings(file: &Path, args: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    let output = command.args(["config", "--check", "--config"]).arg(file).args(args).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
