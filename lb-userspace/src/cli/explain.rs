//! `millrace explain`: why a request for an Ingress goes where it goes.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use lb_ingress::control;
use lb_ingress::offline;
use lb_ingress_rules::explain::{ExplainedRequest, ExplainedRule, Explanation, LosingRule};

use super::ingress::model_settings;
use super::output;
use crate::config::Configuration;

pub const EXAMPLES: &str = "\
Examples:
  Ask the running proxy of this machine:
    millrace explain https://shop.example.org/cart

  Ask one that runs in a pod:
    kubectl -n kube-system exec deploy/millrace-ingress -- millrace explain https://shop.example.org/

  See which requests a canary gets:
    millrace explain https://shop.example.org/ --header 'X-Canary: always'

  Check manifests before they are applied:
    millrace explain http://shop.example.org/cart --manifests site/";

#[derive(Debug, Args)]
pub struct ExplainOptions {
    /// URL of the request: scheme, host and path
    url: String,

    /// Method of the request
    #[arg(long, short = 'X', default_value = "GET")]
    method: String,

    /// Header of the request; may be repeated
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = header)]
    header: Vec<(String, String)>,

    /// Address of the client
    #[arg(long, value_name = "ADDRESS", default_value = "192.0.2.1")]
    client: IpAddr,

    /// File or directory of manifests to explain, instead of asking a running proxy; may be repeated
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    manifests: Vec<PathBuf>,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: ExplainFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ExplainFormat {
    #[default]
    Text,
    Json,
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) if !name.is_empty() => {
            Ok((name.to_owned(), value.trim_start().to_owned()))
        }
        _ => Err("not a header such as 'X-Canary: always'".to_owned()),
    }
}

pub fn explain_request(options: &ExplainOptions, configuration: &Configuration) -> Result<()> {
    let request = ExplainedRequest {
        url: options.url.clone(),
        method: options.method.clone(),
        headers: options.header.clone(),
        client: options.client,
    };
    let settings = &configuration.ingress;
    let explanation = if options.manifests.is_empty() {
        let address = control::parse_socket_address(&settings.control_socket)
            .with_context(|| format!("--control-socket {}", settings.control_socket))?;
        match control::ask_proxy(&address, &request)? {
            Some(explanation) => explanation,
            None => bail!(
                "no proxy listens on {}: start one with `millrace ingress`, name its socket with --control-socket, \
                 or use --manifests",
                settings.control_socket
            ),
        }
    } else {
        let node_name = configuration.agent.node_name().ok();
        let model = model_settings(settings, node_name.as_deref());
        offline::explain_manifests(&options.manifests, model, &request)?
    };
    output::write_text(&match options.output {
        ExplainFormat::Text => text(&request, &explanation),
        ExplainFormat::Json => serde_json::to_string_pretty(&explanation)? + "\n",
    })
}

fn text(request: &ExplainedRequest, explanation: &Explanation) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let value = output::escape_controls(value);
        let name = if name.is_empty() { String::new() } else { format!("{name}:") };
        let _ = writeln!(text, "{name:<13} {value}");
    };
    line("request", &format!("{} {}", request.method, request.url));
    if let Some(refused) = &explanation.refused {
        line("refused", refused);
        return text;
    }
    line("matched as", &format!("host {}, path {}", explanation.host, explanation.path));
    if let Some(tls) = &explanation.tls {
        line("tls", &tls.summary);
        if let (Some(host), Some(expires)) = (&tls.host, &tls.expires) {
            let names = tls.names.join(", ");
            line("certificate", &format!("of host {host}: {names}; expires {expires}"));
        }
    }
    match &explanation.rule {
        Some(rule) => line("rule", &shown(rule)),
        None => line("rule", "none"),
    }
    line("result", &explanation.outcome);
    for canary in &explanation.canaries {
        line("canary", canary);
    }
    if let Some(upstream) = &explanation.upstream {
        line("service", &format!("{}, {}", upstream.service, upstream.protocol));
        line("balancing", &upstream.balance);
        let list = |addresses: &[std::net::SocketAddr]| {
            addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        if !upstream.endpoints.is_empty() {
            line("endpoints", &list(&upstream.endpoints));
        }
        if !upstream.draining.is_empty() {
            line("draining", &list(&upstream.draining));
        }
    }
    for (index, LosingRule { rule, reason }) in explanation.losing_rules.iter().enumerate() {
        let name = if index == 0 { "losing rules" } else { "" };
        line(name, &format!("{}: {reason}", shown(rule)));
    }
    for (index, (annotation, value)) in explanation.annotations.iter().enumerate() {
        let name = if index == 0 { "annotations" } else { "" };
        line(name, &format!("{annotation}: {value}"));
    }
    text
}

fn shown(rule: &ExplainedRule) -> String {
    format!("ingress {}, host {}, path {}", rule.ingress, rule.host, rule.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_a_name_and_a_value() {
        let expected = ("X-Canary".to_owned(), "always".to_owned());
        assert_eq!(header("X-Canary: always"), Ok(expected.clone()));
        assert_eq!(header("X-Canary:always"), Ok(expected));
        assert!(header("X-Canary").is_err() && header(": a").is_err());
    }

    #[test]
    fn what_tenants_wrote_cannot_control_the_terminal() {
        let request = ExplainedRequest {
            url: "http://a/".to_owned(),
            method: "GET".to_owned(),
            headers: Vec::new(),
            client: IpAddr::from([192, 0, 2, 1]),
        };
        let mut explanation = Explanation { outcome: "404".to_owned(), ..Explanation::default() };
        let annotation = ("ingress.millrace.io/a".to_owned(), "\u{1b}[31m\nresult: 200".to_owned());
        explanation.annotations.extend([annotation]);
        let text = text(&request, &explanation);
        assert!(!text.contains('\u{1b}') && text.lines().count() == 5, "{text}");
    }
}
