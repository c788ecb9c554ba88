//! What manifests mean, without a proxy.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use lb_ingress_rules::explain::{self, ExplainedRequest, Explanation};
use lb_ingress_rules::snapshot;
use lb_ingress_rules::{IngressRuleSettings, Model};
use lb_rules::model::{Kind, Object};
use lb_source::Manifests;

/// Explains a request by the objects in files and directories.
pub fn explain_manifests(
    paths: &[PathBuf],
    settings: IngressRuleSettings,
    request: &ExplainedRequest,
) -> Result<Explanation> {
    let objects = Manifests::of_kinds(paths.to_vec(), &Kind::OF_INGRESS)?.objects();
    let mut annotations = BTreeMap::new();
    let mut model = Model::new(settings.clone());
    for object in objects {
        if let Object::Ingress(ingress) = &object {
            let reference = object.reference();
            let own = Arc::new(ingress.metadata.annotations.clone().unwrap_or_default());
            annotations.insert((reference.namespace, reference.name), own);
        }
        model.apply(object);
    }
    let mut config = snapshot::new_config(&settings);
    snapshot::apply_changes(&mut config, &model.settle());
    let annotations = |namespace: &str, name: &str| {
        let found = annotations.get(&(namespace.to_owned(), name.to_owned()));
        found.cloned().unwrap_or_default()
    };
    explain::explain_request(&config, annotations, request)
}
