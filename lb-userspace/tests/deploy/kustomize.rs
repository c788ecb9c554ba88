//! The plain manifests, built by kubectl.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::deploy;
use super::document::{self, Objects};
use super::kubectls::kubectls;

/// Overlays of users: what they make, their resources, and their components.
pub const OVERLAYS: [(&str, &[&str], &[&str]); 13] = [
    ("base", &["base"], &[]),
    ("controller", &["controller"], &[]),
    ("ingress", &["ingress"], &[]),
    ("cleanup", &["cleanup"], &[]),
    ("controller without agents", &["crds", "controller"], &["monitored-controller"]),
    ("agents and ingress", &["base", "ingress"], &[]),
    ("agents and controller", &["base", "controller"], &[]),
    ("privileged", &["base"], &["privileged"]),
    ("one by one", &["base"], &["one-by-one"]),
    ("passive bgp", &["base"], &["passive-bgp"]),
    ("startup taint", &["base"], &["startup-taint"]),
    ("monitored", &["base"], &["monitored-agents"]),
    (
        "everything monitored",
        &["base", "controller", "ingress"],
        &["monitored-agents", "monitored-controller", "monitored-ingress"],
    ),
];

/// Builds an overlay with the newest kubectl; `None` without kubectl.
pub fn build(overlay: &str) -> Option<Objects> {
    let (_, program) = kubectls().last_key_value()?;
    Some(build_by(program, overlay).unwrap_or_else(|stderr| panic!("{overlay}: {stderr}")))
}

/// Builds an overlay with a kubectl; returns its output on failure.
pub fn build_by(program: &Path, overlay: &str) -> Result<Objects, String> {
    let (_, resources, components) =
        OVERLAYS.iter().find(|(name, ..)| *name == overlay).expect("an overlay of the list");
    let directory = tempfile::tempdir().unwrap();
    let repository = relative_to_root(&deploy("kustomize"), directory.path());
    let paths = |under: &str, names: &[&str]| -> Vec<String> {
        names.iter().map(|name| format!("{repository}/{under}{name}")).collect()
    };
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": paths("", resources), "components": paths("components/", components),
    });
    std::fs::write(directory.path().join("kustomization.yaml"), kustomization.to_string()).unwrap();
    build_directory(program, directory.path())
}

/// Kustomize takes relative paths only.
pub fn relative_to_root(path: &Path, from: &Path) -> String {
    let (path, from) = (path.canonicalize().unwrap(), from.canonicalize().unwrap());
    let up = "../".repeat(from.components().count() - 1);
    format!("{up}{}", path.to_str().unwrap().trim_start_matches('/'))
}

/// Builds the kustomization in a directory; returns the output on failure.
pub fn build_directory(program: &Path, directory: &Path) -> Result<Objects, String> {
    let mut command = Command::new(program);
    let output = command.arg("kustomize").arg(directory).output().unwrap();
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
    for (overlay, ..) in OVERLAYS {
        let Some(objects) = build(overlay) else { return };
        document::check(&objects);
        if !objects.contains_key("DaemonSet millrace") {
            continue;
        }
        let mut names = objects.keys().filter_map(|name| name.strip_prefix("ConfigMap "));
        let config = names.find(|name| name.starts_with("millrace-config")).unwrap();
        assert_eq!(
            daemon_set(&objects)["volumes"][0]["configMap"]["name"],
            config,
            "a change of the settings must be rolled out: {overlay}"
        );
        for object in objects.values() {
            let containers = object["spec"]["template"]["spec"]["containers"].as_array();
            for container in containers.into_iter().flatten() {
                let policy = &container["terminationMessagePolicy"];
                assert_eq!(policy, "FallbackToLogsOnError", "{overlay}: {}", container["name"]);
            }
        }
        assert_eq!(
            daemon_set(&objects)["nodeSelector"]["kubernetes.io/arch"],
            "amd64",
            "the agent refuses other architectures: {overlay}"
        );
    }
}

/// Applying a part to a running installation must not replace its agents by ones without its settings.
#[test]
fn no_part_and_no_component_brings_the_agents_along() {
    for overlay in ["controller", "ingress", "cleanup", "controller without agents"] {
        let Some(objects) = build(overlay) else { return };
        assert!(!objects.contains_key("DaemonSet millrace"), "{overlay}");
        assert!(!objects.contains_key("ClusterRole millrace"), "{overlay}");
    }
    let components = std::fs::read_dir(deploy("kustomize/components")).unwrap();
    let mut tested: Vec<&str> =
        OVERLAYS.iter().flat_map(|(.., components)| *components).copied().collect();
    tested.sort_unstable();
    tested.dedup();
    let mut names = Vec::new();
    for folder in components {
        let folder = folder.unwrap().path();
        let text = std::fs::read_to_string(folder.join("kustomization.yaml")).unwrap();
        let component: Value = serde_norway::from_str(&text).unwrap();
        assert_eq!(component["kind"], "Component", "{}", folder.display());
        let resources = component["resources"].as_array();
        for resource in resources.into_iter().flatten() {
            let is_small = *resource == "monitoring.yaml" || *resource == "role.yaml";
            assert!(is_small, "{}: {resource}", folder.display());
        }
        names.push(folder.file_name().unwrap().to_str().unwrap().to_owned());
    }
    names.sort_unstable();
    assert_eq!(names, tested);
}

#[test]
fn components_change_what_they_describe() {
    let (Some(base), Some(privileged)) = (build("base"), build("privileged")) else {
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

    let one_by_one = build("one by one").unwrap();
    assert_eq!(daemon_set(&one_by_one)["nodeSelector"]["millrace.io/proxy"], "millrace");
    assert_eq!(daemon_set(&one_by_one)["containers"], daemon_set(&base)["containers"]);

    let monitored = build("monitored").unwrap();
    let args = daemon_set(&monitored)["containers"][0]["args"].as_array().unwrap();
    assert!(args.contains(&json!("--metrics-bind-address=[::]:10249")), "{args:?}");
    assert!(monitored.contains_key("ServiceMonitor millrace"));

    let passive = build("passive bgp").unwrap();
    let capabilities = &daemon_set(&passive)["containers"][0]["securityContext"]["capabilities"];
    assert_eq!(capabilities["add"], json!(["BPF", "NET_ADMIN", "PERFMON", "NET_BIND_SERVICE"]));
}

/// What users copy from docs/install.md.
#[test]
fn the_overlay_of_the_documentation_builds() {
    let Some((_, program)) = kubectls().last_key_value() else { return };
    let page = include_str!("../../../docs/install.md");
    let (_, rest) = page.split_once("<!-- overlay: begin -->\n```yaml\n").unwrap();
    let (block, _) = rest.split_once("```\n<!-- overlay: end -->").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let built = relative_to_root(&deploy("kustomize"), directory.path());
    let block = block.replace("../target/image/deploy/kustomize", &built);
    std::fs::write(directory.path().join("kustomization.yaml"), block).unwrap();
    std::fs::write(
        directory.path().join("config.yaml"),
        "log: info\napi-servers: https://10.0.0.1:6443\n",
    )
    .unwrap();
    let objects =
        build_directory(program, directory.path()).unwrap_or_else(|stderr| panic!("{stderr}"));
    document::check(&objects);
    for workload in
        ["DaemonSet millrace", "Deployment millrace-controller", "Deployment millrace-ingress"]
    {
        let container = &objects[workload]["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], "registry.example.com/millrace:0.0.0", "{workload}");
    }
    let config =
        objects.iter().find(|(name, _)| name.starts_with("ConfigMap millrace-config")).unwrap().1;
    assert!(config["data"]["config.yaml"].as_str().unwrap().contains("api-servers"), "{config}");
}

/// The unit bounds what the agent may have, so it needs the capabilities of all components.
#[test]
fn the_unit_has_the_capabilities_of_the_containers() {
    let Some(objects) = build("passive bgp") else { return };
    let unit = std::fs::read_to_string(deploy("millrace.service")).unwrap();
    let mut lines = unit.lines();
    let bound = lines.find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let bound: Vec<_> = bound.split(' ').map(|name| name.strip_prefix("CAP_").unwrap()).collect();
    let security = &daemon_set(&objects)["containers"][0]["securityContext"];
    assert_eq!(security["capabilities"]["add"], json!(bound));
}

/// The cleanup reaches every node that may have run an agent, with the agent's privileges and pins.
#[test]
fn the_cleanup_runs_wherever_the_agents_ran() {
    let (Some(base), Some(cleanup)) = (build("base"), build("cleanup")) else { return };
    let (agent, pod) =
        (daemon_set(&base), &cleanup["DaemonSet millrace-cleanup"]["spec"]["template"]["spec"]);
    for field in ["hostNetwork", "dnsPolicy", "nodeSelector", "tolerations"] {
        assert_eq!(pod[field], agent[field], "{field}");
    }
    let (init, container) = (&pod["initContainers"][0], &pod["containers"][0]);
    for cleaner in [init, container] {
        assert_eq!(cleaner["securityContext"], agent["containers"][0]["securityContext"]);
        assert_eq!(cleaner["image"], agent["containers"][0]["image"]);
        for mount in cleaner["volumeMounts"].as_array().unwrap() {
            let mounts = agent["containers"][0]["volumeMounts"].as_array().unwrap();
            assert!(mounts.contains(mount), "{mount}");
        }
    }
    assert_eq!(
        (&init["args"], &container["args"]),
        (&json!(["cleanup"]), &json!(["cleanup", "--wait"]))
    );
    let volumes = agent["volumes"].as_array().unwrap();
    assert!(volumes.contains(&pod["volumes"][0]), "{pod}");
}

/// The container's arguments and settings are valid for the agent.
#[test]
fn the_agent_takes_its_arguments_and_settings() {
    let Some(objects) = build("monitored") else { return };
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
        (&settings["http-bind-addresses"][0], "8080"),
        (&settings["https-bind-addresses"][0], "8443"),
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
