//! A server in a process of its own, and its memory.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

pub struct Server {
    process: Child,
    /// Kept open: a server that prints to a closed pipe may end.
    _output: Option<BufReader<ChildStdout>>,
}

impl Server {
    /// Starts it, and waits for a line that begins like this.
    pub fn start(command: &mut Command, line: &str) -> (Self, String) {
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut found = String::new();
        while !found.starts_with(line) {
            found.clear();
            assert!(output.read_line(&mut found).unwrap() > 0, "the server ended");
        }
        (Self { process, _output: Some(output) }, found.trim().to_owned())
    }

    pub fn start_silent(command: &mut Command) -> Self {
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self { process: process.expect("it starts"), _output: None }
    }

    /// Memory that is not of files, in bytes.
    pub fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
