//! The settings of traces: a part of those of `millrace ingress`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use lb_http::trace::SamplingRatio;
use lb_otlp::CollectorUrl;

/// Settings of traces.
#[derive(Clone, Debug, Args)]
pub struct TracingSettings {
    /// OpenTelemetry collector for spans, by OTLP over HTTP: http://HOST:4318, or https [default: no tracing]
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<CollectorUrl>,

    /// Authorities for the collector's certificate [default: the public ones]
    #[arg(long, value_name = "FILE")]
    pub otlp_authority_file: Option<PathBuf>,

    /// Headers for the collector, as lines `Name: value`
    #[arg(long, value_name = "FILE")]
    pub otlp_header_file: Option<PathBuf>,

    /// `service.name` of spans
    #[arg(long, value_name = "NAME", default_value = "millrace-ingress")]
    pub trace_service_name: String,

    /// Ingresses that are traced
    #[arg(long, value_name = "WHICH", value_enum, default_value_t)]
    pub trace_ingresses: TracedIngresses,

    /// Recorded share of the traces that begin here, from 0 to 1
    #[arg(long, value_name = "RATIO", default_value = "0.01")]
    pub trace_sampling_ratio: SamplingRatio,

    /// Maximum number of requests that are recorded in a second, of which one namespace has a quarter
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000)]
    pub max_spans_per_second: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TracedIngresses {
    /// All, unless annotated
    #[default]
    All,
    /// Those with the annotation tracing
    Annotated,
}
