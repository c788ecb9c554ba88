//! Runs scripts of commands with every installed kubectl, and compares what it prints.
//!
//! `scripts/NAME.txt` has commands after `$ `, their input after `| `, and below them the output of
//! the newest kubectl. `NAME.v1.27.txt` exists if an older version prints something else.
//! `UPDATE_EXPECT=1` writes the actual output; review it.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lb_api::declared::KindDeclaration;

use super::kubectls::kubectls;
use super::server::TestServer;
use super::widgets;

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/api/scripts");

#[tokio::test(flavor = "multi_thread")]
async fn every_kubectl_prints_the_same_as_on_a_cluster() {
    let kubectls = kubectls();
    let update = env::var_os("UPDATE_EXPECT").is_some();
    let mut wrong = String::new();
    for script in scripts() {
        let name = script.file_stem().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&script).unwrap();
        let runs: Vec<_> = kubectls
            .iter()
            .map(|(version, program)| {
                let (version, program, text) = (version.clone(), program.clone(), text.clone());
                let declarations = if name == "declared" { widgets::all() } else { Vec::new() };
                tokio::spawn(async move { (version, run(&text, &program, declarations).await) })
            })
            .collect();
        // The newest comes first: variants are files that differ from it.
        for (index, run) in runs.into_iter().rev().enumerate() {
            let (version, printed) = run.await.unwrap();
            let own = script.with_file_name(format!("{name}.{version}.txt"));
            if update {
                if index == 0 {
                    fs::write(&script, &printed).unwrap();
                } else if printed == fs::read_to_string(&script).unwrap() {
                    let _ = fs::remove_file(&own);
                } else {
                    fs::write(&own, &printed).unwrap();
                }
                continue;
            }
            let expected = fs::read_to_string(&own).unwrap_or_else(|_| text.clone());
            if printed != expected {
                let difference = first_difference(&expected, &printed);
                writeln!(wrong, "{name}, kubectl {version}:\n{difference}").unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// All scripts, without variants for older versions.
fn scripts() -> Vec<PathBuf> {
    let mut scripts: Vec<PathBuf> = fs::read_dir(SCRIPTS)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.to_string_lossy().contains(".v1."))
        .collect();
    scripts.sort();
    scripts
}

/// Runs a script on a new server. Returns the script with the actual output.
async fn run(script: &str, program: &Path, declarations: Vec<KindDeclaration>) -> String {
    let server = TestServer::start_declared(declarations).await;
    let directory = server.directory.path();
    let kubeconfig = &server.server.kubeconfig;
    symlink(program, directory.join("kubectl")).unwrap();

    let mut printed = String::new();
    let mut lines = script.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with('#') {
            writeln!(printed, "{line}").unwrap();
            continue;
        }
        let Some(command) = line.strip_prefix("$ ") else {
            continue;
        };
        writeln!(printed, "{line}").unwrap();
        let mut input = String::new();
        while let Some(line) = lines.next_if(|line| line.starts_with('|')) {
            writeln!(printed, "{line}").unwrap();
            writeln!(input, "{}", line[1..].strip_prefix(' ').unwrap_or(&line[1..])).unwrap();
        }
        let shell = shell(command, directory, kubeconfig);
        let output = tokio::task::spawn_blocking(move || output_of(shell, &input));
        printed.push_str(&plain(&output.await.unwrap(), directory));
    }
    printed
}

/// A shell that runs a command in which `kubectl` is the one in the directory, which also keeps
/// its cache.
fn shell(command: &str, directory: &Path, kubeconfig: &Path) -> Command {
    let mut shell = Command::new("timeout");
    shell
        .args(["60", "sh", "-c", &format!("{{ {command}\n}} 2>&1")])
        .env("PATH", format!("{}:{}", directory.display(), env::var("PATH").unwrap()))
        .env("HOME", directory)
        .env("LC_ALL", "C")
        .env("KUBECONFIG", kubeconfig);
    shell
}

fn output_of(mut command: Command, input: &str) -> String {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Removes what differs between runs: allocated addresses and ports, times, ages, identities.
fn plain(output: &str, directory: &Path) -> String {
    let output = output.replace(&*directory.to_string_lossy(), "DIRECTORY");
    let mut plain = String::new();
    for line in output.lines() {
        let mut words = Vec::new();
        for word in line.split(' ') {
            words.push(plain_word(word));
        }
        let mut line = words.join(" ");
        // The width of a column depends on its contents.
        while line.contains("   ") {
            line = line.replace("   ", "  ");
        }
        writeln!(plain, "{}", line.trim_end()).unwrap();
    }
    plain
}

fn plain_word(word: &str) -> String {
    let bare = word.trim_matches(|c| "\"',:".contains(c));
    let replace = |with: &str| word.replace(bare, with);
    if bare.starts_with("10.96.") && bare.parse::<std::net::IpAddr>().is_ok() {
        return replace("CLUSTER-IP");
    }
    if bare.starts_with("fd00:10:96:") && bare.parse::<std::net::IpAddr>().is_ok() {
        return replace("CLUSTER-IP6");
    }
    if bare.len() == 36 && bare.split('-').map(str::len).eq([8, 4, 4, 4, 12]) {
        return replace("UID");
    }
    if bare.len() == 20 && bare.parse::<jiff::Timestamp>().is_ok() {
        return replace("TIME");
    }
    if is_age(bare) {
        return replace("AGE");
    }
    word.to_owned()
}

/// Whether a word is an age as kubectl prints it: `5s`, `2m3s`.
fn is_age(word: &str) -> bool {
    let parts: Vec<&str> = word.split_inclusive(['s', 'm', 'h', 'd']).collect();
    let is_part = |part: &&str| {
        part.trim_end_matches(['s', 'm', 'h', 'd']).parse::<u32>().is_ok()
            && part.ends_with(['s', 'm', 'h', 'd'])
    };
    matches!(parts.len(), 1 | 2) && parts.iter().all(is_part)
}

fn first_difference(expected: &str, printed: &str) -> String {
    let mut command = "";
    for (expected, printed) in expected.lines().chain([""]).zip(printed.lines().chain([""])) {
        if expected.starts_with("$ ") {
            command = expected;
        }
        if expected != printed {
            return format!("  {command}\n  expected: {expected}\n  printed:  {printed}");
        }
    }
    "  one of them has more lines".to_owned()
}
