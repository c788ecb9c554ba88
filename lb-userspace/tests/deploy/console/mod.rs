//! The commands of the documentation: a shell runs each page's from the first to the last. `program` stands for all
//! programs that they call, and says which ones are run (kubectl with the embedded API), and which ones are only parsed.
//! A block with commands of the second kind has the reason above it: `<!-- not run: … -->`.

// `xtask` has tests with it, too.
pub mod blocks;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use clap::error::ErrorKind;
use serde_json::{Value, json};

use super::kubectls::kubectls;
use super::{deploy, document, helm, output_for};
use blocks::{Block, PAGES, blocks_of_page, files_of_page, find_blocks};

/// What pages call, beside the shell's own commands: nothing else is found. `program` stands for those of the first list.
const REPLACED: [&str; 8] =
    ["cargo", "curl", "helm", "install", "kubectl", "millrace", "systemctl", "watch"];
const REAL: [&str; 6] = ["bash", "cat", "cp", "mkdir", "mktemp", "openssl"];

/// A program that was called: the line of the block, whether it was run, and its name and arguments.
struct Call {
    block: usize,
    is_run: bool,
    words: Vec<String>,
}

/// The embedded API, which ends with its value.
struct Api(std::process::Child);

impl Drop for Api {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts it with what the commands expect to be there.
fn start_api(directory: &Path, kubectl: &Path) -> Api {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.args([
        "standalone",
        "--serve-api-only",
        "--api-bind-address",
        "127.0.0.1:0",
        "--data-dir",
    ]);
    let api = Api(command.arg(directory).stderr(Stdio::null()).spawn().unwrap());
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker-1"}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-proxy", "namespace": "kube-system"}},
        {"apiVersion": "v1", "kind": "Service",
         "metadata": {"name": "millrace-ingress", "namespace": "kube-system"}, "spec": {"ports": [{"port": 80}]}},
    ]});
    let mut apply = Command::new(kubectl);
    apply.arg("--kubeconfig").arg(directory.join("kubeconfig")).args(["apply", "-f", "-"]);
    for example in ["web", "ingress"] {
        apply.arg("-f").arg(deploy(&format!("../examples/{example}.yaml")));
    }
    let mut last = String::new();
    // Until it serves.
    for _ in 0..600 {
        let output = output_for(&mut apply, &objects);
        if output.status.success() {
            return api;
        }
        last = String::from_utf8(output.stderr).unwrap();
        thread::sleep(Duration::from_millis(100));
    }
    panic!("the embedded API does not take the objects of the examples: {last}");
}

/// A page's commands as a script. What `cat FILE` shows is written to the file.
fn script_of(blocks: &[Block]) -> String {
    let mut script =
        "set -eo pipefail\ntrap 'echo \"in the block of line $BLOCK\" >&2' ERR\n".to_owned();
    for block in blocks {
        for command in &block.commands {
            // Whoever runs the tests may be root.
            let mut words = command.text.split_whitespace();
            let is_real = words.next().is_some_and(|program| REAL.contains(&program));
            let writes_outside =
                |word: &str| word.starts_with(">/") || is_real && word.starts_with('/');
            assert!(
                !words.any(writes_outside),
                "line {}: writes outside of its directory",
                command.line
            );
        }
        script += &format!("export BLOCK={}\n", block.line);
        for command in &block.commands {
            match command.text.strip_prefix("cat ") {
                Some(file) if !file.contains(['<', '>']) && !command.output.is_empty() => {
                    script +=
                        &format!("cat >{file} <<'END OF FILE'\n{}END OF FILE\n", command.output);
                }
                _ => script += &format!("{}\n", command.text),
            }
        }
    }
    script
}

/// The sandbox of a page: what its commands find in their directory.
fn make_directory(directory: &Path) -> PathBuf {
    let inside = directory.join("inside");
    fs::create_dir_all(inside.join("target/image")).unwrap();
    fs::create_dir_all(inside.join("site")).unwrap();
    symlink(deploy("").canonicalize().unwrap(), inside.join("target/image/deploy")).unwrap();
    symlink(deploy("").canonicalize().unwrap(), inside.join("deploy")).unwrap();
    symlink(deploy("../examples").canonicalize().unwrap(), inside.join("examples")).unwrap();
    fs::copy(deploy("../examples/ingress.yaml"), inside.join("site/ingress.yaml")).unwrap();
    // Of another page.
    let values = json!({"image": {"registry": "registry.example.com"}});
    fs::write(inside.join("values.yaml"), values.to_string()).unwrap();
    let plugin = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plugin"}});
    fs::write(inside.join("CNI.yaml"), plugin.to_string()).unwrap();
    fs::write(
        directory.join("access.log"),
        "192.0.2.1 - - [28/Nov/2026:06:40:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl/8\" 80 0.001 \
         [default-shop-http] [] 10.244.1.10:8080 5 0.001 200 0f\n",
    )
    .unwrap();
    let programs = directory.join("programs");
    fs::create_dir(&programs).unwrap();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/deploy/console/program");
    REPLACED.iter().for_each(|name| symlink(program, programs.join(name)).unwrap());
    for name in REAL {
        let real = ["/usr/bin", "/bin"].map(|directory| Path::new(directory).join(name));
        if let Some(real) = real.iter().find(|path| path.exists()) {
            symlink(real, programs.join(name)).unwrap();
        }
    }
    fs::create_dir(directory.join("built")).unwrap();
    inside
}

/// Runs the commands of a page; returns the programs that they called.
fn run_page(
    page: &str,
    blocks: &[Block],
    directory: &Path,
    kubectl: &Path,
    api: &Path,
) -> Vec<Call> {
    let inside = make_directory(directory);
    for (path, text) in files_of_page(page) {
        let path = inside.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let record = directory.join("record");
    fs::write(&record, "").unwrap();
    let output = Command::new("/bin/bash")
        .args(["-c", &script_of(blocks)])
        .current_dir(&inside)
        .env_clear()
        .envs([("PATH", directory.join("programs")), ("HOME", directory.to_owned())])
        .envs([("RECORD", record.clone()), ("BUILT", directory.join("built"))])
        .envs([("FILES", directory.to_owned()), ("KUBECTL", kubectl.to_owned())])
        .envs([("API", api.to_owned()), ("MILLRACE", env!("CARGO_BIN_EXE_millrace").into())])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "docs/{page}.md: {stderr}");
    for built in fs::read_dir(directory.join("built")).unwrap() {
        let text = fs::read_to_string(built.unwrap().path()).unwrap();
        document::check(&document::read(&text));
    }
    let record = fs::read_to_string(&record).unwrap();
    let calls = record.split_terminator('\0').map(|call| {
        let mut fields = call.split_terminator('\u{1f}').map(str::to_owned);
        let block = fields.next().unwrap().parse().unwrap();
        let is_run = fields.next().unwrap() == "run";
        Call { block, is_run, words: fields.collect() }
    });
    calls.collect()
}

/// Panics if the program would refuse the arguments.
fn check_arguments(words: &[String], inside: &Path) {
    let command = words.join(" ");
    let (program, arguments) = words.split_first().unwrap();
    match program.as_str() {
        "millrace" => {
            let parsed = lb_userspace::cli::command_line().try_get_matches_from(words);
            if let Err(error) = parsed {
                assert_eq!(error.kind(), ErrorKind::DisplayVersion, "{command}: {error}");
            }
        }
        // What it runs in a container.
        "kubectl" => {
            let mut inner = arguments.iter().skip_while(|word| *word != "--").skip(1).peekable();
            if inner.peek().is_some_and(|word| *word == "millrace") {
                check_arguments(&inner.cloned().collect::<Vec<_>>(), inside);
            }
        }
        "helm" => {
            check_helm(arguments, inside).unwrap_or_else(|error| panic!("{command}: {error}"))
        }
        _ => {}
    }
}

/// Renders the chart as Helm would. Knows only the arguments that the documentation uses.
fn check_helm(arguments: &[String], inside: &Path) -> Result<(), String> {
    let (mut values, mut words) = (json!({}), Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-n" | "--namespace" => drop(arguments.next().ok_or("no namespace")?),
            "-f" | "--values" => {
                let file = inside.join(arguments.next().ok_or("no file")?);
                let text =
                    fs::read_to_string(&file).map_err(|error| format!("{file:?}: {error}"))?;
                values =
                    serde_norway::from_str(&text).map_err(|error| format!("{file:?}: {error}"))?;
            }
            flag if flag.starts_with('-') => return Err(format!("{flag} is no known flag")),
            word => words.push(word),
        }
    }
    match words.as_slice() {
        ["install" | "upgrade", _, chart] => {
            assert!(inside.join(chart).join("Chart.yaml").exists(), "{chart} is no chart");
            helm::render(&values).map_or(Ok(()), |objects| objects.map(|it| document::check(&it)))
        }
        ["rollback" | "uninstall", _] => Ok(()),
        _ => Err("no known command".to_owned()),
    }
}

#[test]
fn every_command_of_the_pages_is_run_or_says_why_not() {
    let Some((_, kubectl)) = kubectls().last_key_value() else { return };
    let directory = tempfile::tempdir().unwrap();
    let api = directory.path().join("api");
    fs::create_dir(&api).unwrap();
    let _api = start_api(&api, kubectl);
    let check = |page: &str| -> Vec<String> {
        let blocks = blocks_of_page(page);
        assert!(!blocks.is_empty(), "docs/{page}.md has no console block");
        let directory = directory.path().join(page);
        fs::create_dir(&directory).unwrap();
        let calls = run_page(page, &blocks, &directory, kubectl, &api.join("kubeconfig"));
        calls.iter().for_each(|call| check_arguments(&call.words, &directory.join("inside")));
        blocks.iter().filter_map(|block| check_comment(page, block, &calls)).collect()
    };
    // They wait for kubectl.
    let wrong: Vec<String> = thread::scope(|scope| {
        let pages: Vec<_> = PAGES.iter().map(|page| scope.spawn(|| check(page))).collect();
        pages.into_iter().flat_map(|page| page.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is wrong with the comment above a block.
fn check_comment(page: &str, block: &Block, calls: &[Call]) -> Option<String> {
    let parsed = calls.iter().filter(|call| call.block == block.line && !call.is_run);
    let parsed: BTreeSet<String> = parsed.map(|call| call.words.join(" ")).collect();
    let complaint = match (&block.not_run, parsed.is_empty()) {
        (None, false) => format!(
            "only parsed; run them in tests/deploy/console/program, or write `<!-- not run: why -->` above the \
             block: {parsed:#?}"
        ),
        (Some(reason), true) => format!("all is run; remove `<!-- not run: {reason} -->`"),
        _ => return None,
    };
    Some(format!("docs/{page}.md:{}: {complaint}", block.line))
}

/// The runner finds what is wrong with a command.
#[test]
fn a_wrong_argument_is_found() {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for wrong in [
        "millrace agent --manifest a",
        "millrace statos",
        "kubectl exec pod/a -- millrace cleanup --kubeproxy",
        "helm install millrace deploy/helm/millrace --value values.yaml",
    ] {
        let found = std::panic::catch_unwind(|| check_arguments(&words(wrong), &deploy("..")));
        assert!(found.is_err(), "{wrong}");
    }
    let right: Value =
        json!(["helm", "install", "millrace", "deploy/helm/millrace", "-n", "kube-system"]);
    check_arguments(&serde_json::from_value::<Vec<String>>(right).unwrap(), &deploy(".."));
}

#[test]
fn commands_are_found_with_their_lines_and_outputs() {
    let page = "Text\n\n<!-- not run: needs a moon -->\n```console\n$ one \\\n    more\nits output\n# two <<'END'\n\
                $ no command\nEND\n```\n\n- item\n\n  ```console\n  $ three\n  ```\n```yaml\n$ none: 1\n```\n";
    let blocks = find_blocks("page", page);
    let found: Vec<_> = blocks
        .iter()
        .map(|block| {
            let commands = block.commands.iter();
            let commands = commands.map(|it| (it.line, it.text.as_str(), it.output.as_str()));
            (block.line, block.not_run.as_deref(), commands.collect::<Vec<_>>())
        })
        .collect();
    assert_eq!(
        found,
        [
            (
                4,
                Some("needs a moon"),
                vec![
                    (5, "one \\\n    more", "its output\n"),
                    (8, "two <<'END'\n$ no command\nEND", "")
                ]
            ),
            (15, None, vec![(16, "three", "")]),
        ]
    );
}
