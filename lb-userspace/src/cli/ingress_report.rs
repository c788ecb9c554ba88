//! `millrace ingress report`: what would become of Ingresses.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use k8s_openapi::api::networking::v1::Ingress;
use lb_ingress_rules::IngressRuleSettings;
use lb_ingress_rules::report::{Line, Verdict, report_annotations};
use lb_rules::documents::{self, Contents};
use lb_rules::model::{Kind, Object};

use super::ingress_replay;
use super::output::{OutputFormat, Row, escape_controls, print_rows};

pub const EXAMPLES: &str = "\
Examples:
  Report all Ingresses of the current cluster:
    kubectl get ingress -A -o json | millrace ingress report -

  Report those in a directory of manifests, only what needs a change:
    millrace ingress report site/ | grep refused

  List the requests of ingress-nginx's access log that would take another rule:
    kubectl get ingress -A -o json >ingresses.json
    kubectl -n ingress-nginx logs deploy/ingress-nginx-controller >access.log
    millrace ingress report ingresses.json --access-log access.log";

#[derive(Debug, Args)]
pub struct IngressReportOptions {
    /// Files and directories of manifests; `-` reads standard input
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Output format; JSON and YAML contain all fields
    #[arg(long = "output", short = 'o', value_enum, default_value_t, value_name = "FORMAT")]
    format: OutputFormat,

    /// Compare which rules ingress-nginx and Millrace use for the requests of an access log; `-` reads standard input
    ///
    /// Reads ingress-nginx's default format, JSON with its usual names, and the formats of this proxy. Lists groups of
    /// requests that take another rule. Only routing is compared.
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,

    /// Host of requests whose log line has none
    ///
    /// ingress-nginx's default format has no hosts. Without this option, the hosts are used whose rules lead to the
    /// upstream in the log.
    #[arg(long, value_name = "HOST", requires = "access_log")]
    host: Option<String>,

    /// Only Ingresses of this class
    #[arg(long, value_name = "NAME")]
    class: Option<String>,
}

impl Row for Line {
    const PLURAL: &'static str = "annotations of Ingresses";
    const HEADERS: &'static [&'static str] =
        &["NAMESPACE", "INGRESS", "VERDICT", "SUBJECT", "DETAIL", "VALUE"];
    const NARROW: usize = 5;

    fn cells(&self) -> Vec<String> {
        let value = self.value.split_whitespace().collect::<Vec<_>>().join(" ");
        vec![
            self.namespace.clone(),
            self.ingress.clone(),
            self.verdict.name().to_owned(),
            self.subject.clone(),
            self.detail.clone(),
            value,
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}/{}", self.namespace, self.ingress, self.subject)
    }
}

/// Fails if anything is refused, after printing all.
pub(crate) fn run_ingress_report(
    options: &IngressReportOptions,
    settings: IngressRuleSettings,
) -> Result<()> {
    let kinds: &[Kind] = match options.access_log {
        Some(_) => &[Kind::Ingress, Kind::Secret],
        None => &[Kind::Ingress],
    };
    let mut contents = Vec::new();
    for path in &options.paths {
        read_manifests(path, kinds, &mut contents)?;
    }
    for problem in contents.iter().flat_map(|contents| &contents.problems) {
        eprintln!("{}", escape_controls(&problem.to_string()));
    }
    let objects = contents.iter().flat_map(|contents| contents.objects.values());
    let objects = objects.filter(|object| match (&***object, &options.class) {
        (Object::Ingress(ingress), Some(class)) => class_of(ingress) == Some(class),
        _ => true,
    });
    if let Some(log) = &options.access_log {
        let objects = objects.map(|object| Object::clone(object)).collect();
        let host = options.host.as_deref();
        return ingress_replay::run_ingress_replay(log, objects, settings, host, options.format);
    }
    let ingresses = objects.filter_map(|object| match &**object {
        Object::Ingress(ingress) => Some(&**ingress),
        _ => None,
    });
    let lines = report_annotations(ingresses, settings.snippets);
    print_rows(&lines, options.format)?;
    match lines.iter().filter(|line| line.verdict == Verdict::Refused).count() {
        0 => Ok(()),
        refused => bail!("{refused} refused: change them before you migrate"),
    }
}

/// The field counts before the annotation.
fn class_of(ingress: &Ingress) -> Option<&String> {
    let named = ingress.spec.as_ref().and_then(|spec| spec.ingress_class_name.as_ref());
    let annotations = ingress.metadata.annotations.as_ref();
    named.or_else(|| annotations.and_then(|all| all.get("kubernetes.io/ingress.class")))
}

fn read_manifests(path: &Path, kinds: &[Kind], contents: &mut Vec<Contents>) -> Result<()> {
    let failed = || format!("can't read {}", path.display());
    if path.is_dir() {
        let mut entries: Vec<PathBuf> = std::fs::read_dir(path)
            .with_context(failed)?
            .map(|entry| Ok(entry.with_context(failed)?.path()))
            .collect::<Result<_>>()?;
        entries.sort();
        let is_manifest = |path: &PathBuf| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            path.is_dir() || matches!(extension, Some("yaml" | "yml" | "json"))
        };
        return entries
            .iter()
            .filter(|e| is_manifest(e))
            .try_for_each(|e| read_manifests(e, kinds, contents));
    }
    let text = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).with_context(failed)?;
        text
    } else {
        std::fs::read_to_string(path).with_context(failed)?
    };
    let file = path.display().to_string();
    match documents::read_kinds(&file, &text, kinds) {
        Ok(read) => contents.push(read),
        // One bad file does not hide the others.
        Err(problem) => eprintln!("{}", escape_controls(&problem.to_string())),
    }
    Ok(())
}
