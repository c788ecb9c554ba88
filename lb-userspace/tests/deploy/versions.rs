//! `deploy/` with every kubectl: all versions build the same objects, and the types of each version
//! know every field. `kubectl set --local` uses its own types, and drops unknown fields.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::document::{self, Objects};
use super::kubectls::kubectls;
use super::{helm, kustomize, output_for};

/// Kinds that kubectl parses by its own types, and a change of each: it prints only changed
/// objects.
const CHANGES: [(&str, &[&str]); 2] = [
    ("DaemonSet", &["set", "image", "millrace=changed:1"]),
    ("ClusterRoleBinding", &["set", "subject", "--user=changed"]),
];

/// Overlays with every part and every component.
const OVERLAYS: [&str; 6] =
    ["everything monitored", "privileged", "one by one", "passive bgp", "startup taint", "cleanup"];

/// Returns an object after a change by kubectl, or kubectl's error.
fn given_back(program: &Path, change: &[&str], object: &Value) -> Result<Value, String> {
    let mut command = Command::new(program);
    command.args(change).args(["--local", "-f", "-", "-o", "json"]);
    let output = output_for(&mut command, object);
    serde_json::from_slice(&output.stdout)
        .map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The fields of objects that a kubectl does not know, and the number of tested objects.
fn unknown(program: &Path, objects: &Objects) -> (Vec<String>, usize) {
    let (mut unknown, mut asked) = (Vec::new(), 0);
    for (name, object) in objects {
        let kind = object["kind"].as_str().unwrap();
        let Some((_, change)) = CHANGES.iter().find(|(of, _)| *of == kind) else { continue };
        asked += 1;
        match given_back(program, change, object) {
            Ok(mut back) => {
                // The requested change.
                if kind == "DaemonSet" {
                    let image = "/spec/template/spec/containers/0/image";
                    *back.pointer_mut(image).unwrap() = object.pointer(image).unwrap().clone();
                } else {
                    back["subjects"].as_array_mut().unwrap().pop();
                }
                let lost = document::lost(object, &back);
                unknown.extend(lost.into_iter().map(|field| format!("{name}: {field}")));
            }
            Err(stderr) => unknown.push(format!("{name}: {stderr}")),
        }
    }
    (unknown, asked)
}

#[test]
fn every_kubectl_makes_the_same_and_knows_all_of_it() {
    let kubectls = kubectls();
    let charts = [json!({}), json!({"privileged": true})];
    let charts: Vec<Objects> =
        charts.iter().filter_map(|values| Some(helm::render(values)?.unwrap())).collect();
    let mut wrong = String::new();
    let newest = OVERLAYS.map(|overlay| (overlay, kustomize::build(overlay)));
    for (version, program) in kubectls {
        let mut asked = 0;
        let mut ask = |what: &str, objects: &Objects| {
            let (unknown, of) = unknown(program, objects);
            asked += of;
            for unknown in unknown {
                writeln!(wrong, "kubectl {version}, {what}: {unknown}").unwrap();
            }
        };
        for (overlay, newest) in &newest {
            let built = kustomize::build_by(program, overlay);
            let is_same = built.as_ref().ok() == newest.as_ref();
            assert!(is_same, "kubectl {version} makes something else of {overlay}: {built:?}");
            ask(overlay, &built.unwrap());
        }
        for chart in &charts {
            ask("the chart", chart);
        }
        println!(
            "kubectl {version}: {} overlays, the chart {} times: {asked} objects are known whole",
            OVERLAYS.len(),
            charts.len()
        );
        assert!(asked >= OVERLAYS.len(), "kubectl {version} was asked of {asked}");
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn a_field_that_a_kubectl_does_not_know_is_found() {
    let (Some((_, program)), Some(mut objects)) =
        (kubectls().last_key_value(), kustomize::build("base"))
    else {
        return;
    };
    let daemon_set = objects.get_mut("DaemonSet millrace").unwrap();
    daemon_set["spec"]["template"]["spec"]["hostNetworks"] = json!(true);
    let expected = "DaemonSet millrace: .spec.template.spec.hostNetworks";
    assert_eq!(unknown(program, &objects).0, [expected]);
}
