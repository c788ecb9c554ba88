//! The settings of traces: a part of those of `millrace ingress`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use lb_http::trace::SamplingRatio;
use lb_otlp::CollectorUrl;

/// Settings of traces.
#[derive(Clone, Debug, Args)]
pub struct TracingSettings {
    /// OpenTelemetry collector, as http://HOST:4318 or https [default: no tracing]
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<CollectorUrl>,

    /// Authorities for the collector's certificate [default: public ones]
    #[arg(long, value_name = "FILE")]
    pub otlp_authority_file: Option<PathBuf>,

    /// Headers for the collector: lines `Name: value`
    #[arg(long, value_name = "FILE")]
    pub otlp_header_file: Option<PathBuf>,

    /// `service.name` of spans
    #[arg(long, value_name = "NAME", default_value = "millrace-ingress")]
    pub trace_service_name: String,

    /// Traced Ingresses
    #[arg(long, value_name = "WHICH", value_enum, default_value_t)]
    pub trace_ingresses: TracedIngresses,

    /// Recorded share of traces that begin here
    #[arg(long, value_name = "RATIO", default_value = "0.01")]
    pub trace_sampling_ratio: SamplingRatio,

    /// Maximum number of requests recorded in a second; a namespace gets a quarter
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub max_spans_per_second: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TracedIngresses {
    /// All, unless annotated
    #[default]
    All,
    /// Annotated ones
    Annotated,
}
