//! `millrace`: the agent and its command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    lb_userspace::cli::run_command_line()
}
