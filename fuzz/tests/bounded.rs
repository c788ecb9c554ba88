//! Runs the fuzz targets without a fuzzer: over the corpus, and over random bytes.
//!
//! To run more inputs, or others: `FUZZ_INPUTS=100000 FUZZ_SEED=7 cargo test -p fuzz --release`.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use fuzz::{Met, random_bytes, shrink_failing};
use lb_common::layout::Reason;

/// Random inputs of each target, unless `FUZZ_INPUTS` is set. Enough to count every reason.
const INPUTS: u64 = if cfg!(miri) { 20 } else { 6_000 };

fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let first = number("FUZZ_SEED").unwrap_or(0);
    first..first + number("FUZZ_INPUTS").unwrap_or(INPUTS)
}

fn corpus(target: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries = fs::read_dir(&directory).expect("the corpus is committed");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

fn over_the_corpus(name: &str, target: fn(&[u8])) {
    let files = corpus(name);
    assert!(!files.is_empty(), "{name} has no corpus");
    for file in files {
        let bytes = fs::read(&file).expect("a file of the corpus");
        check(&file.display().to_string(), target, &bytes);
    }
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// On a failure, shrinks the input and fails with the smallest one found.
fn check(name: &str, target: impl Fn(&[u8]), bytes: &[u8]) {
    let fails = |bytes: &[u8]| catch_unwind(AssertUnwindSafe(|| target(bytes))).is_err();
    if !fails(bytes) {
        return;
    }
    let default_hook = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !QUIET.get() {
            default_hook(panic);
        }
    }));
    QUIET.set(true);
    let least = shrink_failing(bytes, fails);
    QUIET.set(false);
    let hex: String = least.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{name} fails; the smallest failing input, in hexadecimal: {hex}");
    target(&least);
    panic!("{name} fails");
}

#[test]
fn the_parsers_corpus() {
    over_the_corpus("parser", fuzz::parser);
}

#[test]
fn the_pipelines_corpus() {
    over_the_corpus("pipeline", fuzz::pipeline);
}

#[test]
fn the_parser_handles_random_bytes() {
    for seed in seeds() {
        // Random bytes are never IP, so they follow a valid start.
        let noise = random_bytes(seed, 40 + seed as usize % 160);
        let beginnings: [&[u8]; 4] = [&[], &[0x08, 0, 0x45], &[0x86, 0xdd, 0x60], &[0x81, 0]];
        for beginning in beginnings {
            check(&format!("seed {seed}"), fuzz::parser, &[&[0; 12], beginning, &noise].concat());
        }
    }
}

/// All properties hold, and the inputs cover every reason: a reason that they never reach is not
/// tested.
#[test]
fn the_pipeline_handles_random_bytes() {
    let mut met = Met::default();
    for seed in seeds() {
        let bytes = random_bytes(seed, 4096);
        check(&format!("seed {seed}"), fuzz::pipeline, &bytes);
        met.add(fuzz::meet(&bytes));
    }
    println!("{met:?}");
    // Not reachable here: on the host every packet is writable and the programs match. A scenario
    // is too short to reach the rate limit of responses (tested in `limit.rs`).
    let elsewhere = [Reason::Unwritable, Reason::CorruptTable, Reason::RateLimited];
    let wanted = Reason::ALL.into_iter().filter(|reason| !elsewhere.contains(reason));
    let missing: Vec<Reason> = wanted.filter(|reason| !met.reasons.contains(reason)).collect();
    assert!(missing.is_empty() || cfg!(miri), "never met: {missing:?}");
    assert!(met.answered > 0 || cfg!(miri), "no requests for announced addresses: {met:?}");
    assert!(met.echoes > 0 || cfg!(miri), "no echo requests were answered: {met:?}");
    assert!(met.wrapped.min(met.opened) > 0 || cfg!(miri), "no tunnelled packets: {met:?}");
}

/// Targets that return what they have met: outcomes that the inputs never reach are not tested.
fn meets(name: &str, target: fn(&[u8]) -> &'static str, outcomes: &[&str]) {
    let mut met = BTreeSet::new();
    let mut run = |input: &str, bytes: &[u8]| {
        check(input, |bytes| _ = target(bytes), bytes);
        met.insert(target(bytes));
    };
    for file in corpus(name) {
        run(&file.display().to_string(), &fs::read(&file).expect("a file of the corpus"));
    }
    for seed in seeds() {
        run(&format!("seed {seed}"), &random_bytes(seed, 120));
    }
    println!("{name}: {met:?}");
    let missing: Vec<_> = outcomes.iter().filter(|outcome| !met.contains(*outcome)).collect();
    assert!(missing.is_empty() || cfg!(miri), "never met: {missing:?}");
}

#[test]
fn what_a_bgp_peer_sends() {
    let outcomes = [
        "bad header",
        "incomplete",
        "bad open",
        "open",
        "discard attribute",
        "treat as withdraw",
        "ignore family",
        "end of rib",
        "update",
        "notification",
        "keepalive",
        "route refresh",
    ];
    meets("bgp-message", fuzz::bgp::fuzz_bgp_message, &outcomes);
}

#[test]
fn bgp_sessions() {
    let outcomes = ["nothing", "failed", "established", "down"];
    meets("bgp-session", fuzz::bgp::fuzz_bgp_session, &outcomes);
}

#[test]
fn bfd_sessions() {
    meets("bfd-session", fuzz::bfd::fuzz_bfd_session, &["nothing", "sent", "up", "reflected"]);
}

/// What the HTTP proxy parses.
#[cfg(feature = "http")]
mod http {
    use super::*;

    #[test]
    fn paths() {
        meets("http-path", fuzz::http::fuzz_path, &["refused", "kept", "changed"]);
    }

    #[test]
    fn hosts() {
        meets("http-host", fuzz::http::fuzz_host, &["refused", "name", "address"]);
    }

    #[test]
    fn the_proxy_protocol() {
        let outcomes = ["refused", "incomplete", "no addresses", "addresses"];
        meets("proxy-protocol", fuzz::http::proxy_protocol, &outcomes);
    }

    #[test]
    fn requests() {
        let refusals = [
            "method",
            "uri_too_long",
            "scheme",
            "asterisk_form",
            "path",
            "missing_host",
            "duplicate_host",
            "host",
            "contradictory_host",
            "transfer_encoding",
            "content_length",
            "connection_header",
            "upgrade_with_body",
            "expectation",
        ];
        meets("http-request", fuzz::http::fuzz_request, &refusals);
        meets("http-request", fuzz::http::fuzz_request, &["accepted"]);
    }
}
