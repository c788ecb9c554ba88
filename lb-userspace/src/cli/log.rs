//! The log: one line per event to stderr. Its level can be changed while the agent runs.

use std::io;

use anyhow::{Result, anyhow};
use clap::{Arg, ArgMatches};
use lb_kernel::MESSAGES;
use lb_process::service_manager::notify_service_manager;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::config::{self, Common, LogFormat};

/// What is needed to read the level again.
pub struct Level {
    filter: reload::Handle<EnvFilter, Registry>,
    arguments: ArgMatches,
    settings: Vec<Arg>,
}

/// Starts the log; without timestamps under systemd, whose journal adds them.
pub fn start_log(common: &Common, arguments: ArgMatches, settings: Vec<Arg>) -> Result<Level> {
    let (filter, handle) = reload::Layer::new(parse_filter(&common.log)?);
    let text = || {
        fmt::layer()
            .with_writer(io::stderr)
            .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
            .with_target(false)
    };
    let lines: Box<dyn Layer<_> + Send + Sync> = match common.log_format {
        LogFormat::Json => fmt::layer().json().flatten_event(true).with_writer(io::stderr).boxed(),
        LogFormat::Text if std::env::var_os("JOURNAL_STREAM").is_some() => {
            text().without_time().boxed()
        }
        LogFormat::Text => text().boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines).init();
    Ok(Level { filter: handle, arguments, settings })
}

pub(crate) fn parse_filter(log: &str) -> Result<EnvFilter> {
    // The HTTP client would log each attempt; the source reports a problem once. Messages of
    // the BPF programs have their own level.
    EnvFilter::try_new(format!("kube_client=off,{MESSAGES}=trace,{log}"))
        .map_err(|error| anyhow!("--log {log}: {error}; try --log debug"))
}

impl Level {
    /// Reads the level from the configuration file again on SIGHUP. Other settings need a restart.
    pub async fn follow(self) {
        let mut hangups = match signal(SignalKind::hangup()) {
            Ok(hangups) => hangups,
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(error, "SIGHUP handler not installed; the log level stays fixed");
                return;
            }
        };
        while hangups.recv().await.is_some() {
            let now = NotifyState::monotonic_usec_now().ok();
            let states: Vec<NotifyState> =
                [Some(NotifyState::Reloading), now].into_iter().flatten().collect();
            notify_service_manager(&states);
            match self.read() {
                Ok(log_level) => tracing::info!(%log_level, "log level reloaded"),
                Err(error) => {
                    tracing::error!(error = format!("{error:#}"), "log level not reloaded");
                }
            }
            notify_service_manager(&[NotifyState::Ready]);
        }
    }

    /// Applies the level of flags, variables and file.
    fn read(&self) -> Result<String> {
        let log =
            config::resolve_settings(&self.arguments, &self.settings)?.configuration.common.log;
        self.filter.reload(parse_filter(&log)?)?;
        Ok(log)
    }
}
