//! `millrace ingress report`: what would become of Ingresses.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::output::{Format, Row, print};
use crate::ingress::model::report::{Line, Verdict, report};
use crate::model::{Kind, Object};
use crate::source::documents::{self, Contents};

pub const EXAMPLES: &str = "\
Examples:
  Report all Ingresses of the current cluster:
    kubectl get ingress -A -o json | millrace ingress report -

  Report those in a directory of manifests, only what needs a change:
    millrace ingress report site/ | grep refused";

#[derive(Debug, Args)]
pub struct Options {
    /// Files and directories of manifests; `-` reads standard input
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Output format; JSON and YAML contain all fields
    #[arg(long = "output", short = 'o', value_enum, default_value_t, value_name = "FORMAT")]
    format: Format,
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
pub fn run(options: &Options) -> Result<()> {
    let mut contents = Vec::new();
    for path in &options.paths {
        read(path, &mut contents)?;
    }
    for problem in contents.iter().flat_map(|contents| &contents.problems) {
        eprintln!("{problem}");
    }
    let objects = contents.iter().flat_map(|contents| contents.objects.values());
    let ingresses = objects.filter_map(|object| match &**object {
        Object::Ingress(ingress) => Some(&**ingress),
        _ => None,
    });
    let lines = report(ingresses);
    print(&lines, options.format)?;
    match lines.iter().filter(|line| line.verdict == Verdict::Refused).count() {
        0 => Ok(()),
        refused => bail!("{refused} refused: change them before you migrate"),
    }
}

fn read(path: &Path, contents: &mut Vec<Contents>) -> Result<()> {
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
        return entries.iter().filter(|e| is_manifest(e)).try_for_each(|e| read(e, contents));
    }
    let text = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).with_context(failed)?;
        text
    } else {
        std::fs::read_to_string(path).with_context(failed)?
    };
    let file = path.display().to_string();
    match documents::read_kinds(&file, &text, &[Kind::Ingress]) {
        Ok(read) => contents.push(read),
        // One bad file does not hide the others.
        Err(problem) => eprintln!("{problem}"),
    }
    Ok(())
}
