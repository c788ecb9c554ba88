//! `millrace ingress report --access-log`: which requests would take another rule.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use lb_ingress_replay::{Difference, Replay, Summary};
use lb_ingress_rules::IngressRuleSettings;
use lb_rules::model::Object;

use super::output::{OutputFormat, Row, print_rows};

/// Longer lines are skipped. Both proxies accept less than this of a request's head.
const MOST_LINE_OCTETS: u64 = 64 << 10;

impl Row for Difference {
    const PLURAL: &'static str = "requests that take another rule";
    const HEADERS: &'static [&'static str] =
        &["REQUESTS", "HOST", "INGRESS-NGINX", "MILLRACE", "REASON", "EXAMPLE"];
    const NARROW: usize = 6;

    fn cells(&self) -> Vec<String> {
        let Self { requests, host, nginx, millrace, reason, example } = self.clone();
        vec![requests.to_string(), host, nginx, millrace, reason, example]
    }

    fn name(&self) -> String {
        format!("{}: {} / {}: {}", self.host, self.nginx, self.millrace, self.reason)
    }
}

/// Fails if there are differences, after printing them.
pub(crate) fn run_ingress_replay(
    log: &Path,
    objects: Vec<Object>,
    settings: IngressRuleSettings,
    host: Option<&str>,
    format: OutputFormat,
) -> Result<()> {
    let mut replay = Replay::new(objects, settings, host.map(str::to_owned));
    let failed = || format!("can't read {}", log.display());
    if log == Path::new("-") {
        read_log(&mut io::stdin().lock(), &mut replay).with_context(failed)?;
    } else {
        let file = File::open(log).with_context(failed)?;
        read_log(&mut BufReader::new(file), &mut replay).with_context(failed)?;
    }
    let (differences, summary) = replay.finish();
    print_rows(&differences, format)?;
    eprint!("{}", text_of(&summary));
    match summary.different {
        0 => Ok(()),
        different => bail!("{different} of {} requests take another rule", summary.requests),
    }
}

fn read_log(reader: &mut impl BufRead, replay: &mut Replay) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        // One more than the limit shows that it was exceeded.
        if reader.take(MOST_LINE_OCTETS + 1).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if line.len() as u64 > MOST_LINE_OCTETS {
            if line.last() != Some(&b'\n') {
                reader.skip_until(b'\n')?;
            }
            replay.line(None);
        } else if !line.trim_ascii().is_empty() {
            replay.line(Some(&String::from_utf8_lossy(&line)));
        }
    }
}

fn text_of(summary: &Summary) -> String {
    let Summary { requests, unreadable, without_host, not_comparable, not_listed, .. } = summary;
    let mut text = format!("{requests} requests replayed\n");
    let mut count = |count: u64, what: &str| {
        if count > 0 {
            text += &format!("{count} {what}\n");
        }
    };
    count(*unreadable, "lines have no request with a path, or are too long");
    count(
        *without_host,
        "requests have no host in the log, and no upstream that names one; use --host",
    );
    count(*not_comparable, "requests depend on expressions that only PCRE has");
    count(*not_listed, "different requests are not listed: there are too many groups");
    let example = &summary.other_upstream_example;
    let other = format!(
        "requests had another upstream than by these Ingresses, such as {example}: they have changed since, or some are \
         missing"
    );
    count(summary.other_upstream, &other);
    text
}
