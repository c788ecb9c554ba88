//! Measures the embedded API beside etcd, for docs/performance.md: `cargo xtask bench api`.
//!
//! Both servers are processes of their own, on the same disk, and get the same objects from the same
//! number of clients over HTTP/2.

// A program for developers: what fails ends it with a backtrace.
#![allow(clippy::unwrap_used)]

mod connection;
mod etcd;
mod load;
mod millrace;
mod process;
mod report;

use std::env;
use std::path::PathBuf;

use load::Load;
use report::Figures;

const USAGE: &str = "\
Measures the embedded API, and etcd for the same writes.

Options:
  --objects N    Objects that are created, updated and listed [default: 50000]
  --services N   Services that are listed in a second store [default: 10000]
  --watchers N   Watches that get each change [default: 1000]
  --clients N    Concurrent requests [default: 64]
  --etcd PATH    Program of etcd; without it only the embedded API is measured
  --directory D  Where the stores are; the disk of it is measured [default: target/bench]
  --quick        2000 objects and 100 watchers: shows only that everything works";

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        Some(arguments.get(at + 1).unwrap_or_else(|| panic!("{name} needs a value")).clone())
    };
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{USAGE}");
        return;
    }
    if let Some(directory) = value("--serve") {
        return millrace::serve(&PathBuf::from(directory));
    }
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let number = |name: &str, default: usize| {
        value(name)
            .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} {text}?")))
    };
    let load = Load {
        services: number("--services", if quick { 1000 } else { 10_000 }),
        objects: number("--objects", if quick { 2000 } else { 50_000 }),
        watchers: number("--watchers", if quick { 100 } else { 1000 }),
        clients: number("--clients", 64),
    };
    let directory =
        PathBuf::from(value("--directory").unwrap_or_else(|| "target/bench".to_owned()));
    std::fs::create_dir_all(&directory).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut all: Vec<(&str, Figures)> = Vec::new();
    runtime.block_on(async {
        report::print_services(&millrace::measure_services(&load, &directory).await);
        all.push(("embedded API", millrace::measure(&load, &directory).await));
        if let Some(program) = value("--etcd") {
            all.push(("etcd", etcd::measure(&load, &PathBuf::from(program), &directory).await));
        }
    });
    report::print(&load, &all);
}
