//! Measures lookups and changes. By hand, on an idle machine:
//! `cargo test -p lb-http --release table::figures -- --ignored --nocapture`

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::tests::{pattern, route};
use super::*;

/// With three rules for each host, and wildcards for every tenth.
fn table_of(hosts: usize) -> Table {
    let mut table = Table::default();
    for number in 0..hosts {
        table.set_host(host(number), rules(3));
    }
    table
}

fn host(number: usize) -> HostPattern {
    let name = format!("team-{}.example.org", number);
    HostPattern::parse(&if number.is_multiple_of(10) { format!("*.{name}") } else { name }).unwrap()
}

fn rules(count: usize) -> Vec<(PathPattern, Arc<Route>)> {
    let route = route("figures");
    (0..count).map(|number| (pattern(&format!("/api/v{number}/items")), route.clone())).collect()
}

/// Time of one call: of rounds that are shorter than a slice of the scheduler, since other processes may run, one of
/// the fastest.
fn measure(mut call: impl FnMut(usize)) -> Duration {
    let mut round = |calls: usize| {
        let start = Instant::now();
        (0..calls).for_each(&mut call);
        start.elapsed() / calls as u32
    };
    let once = (0..5).map(|_| round(1)).min().unwrap().as_nanos().max(1) as usize;
    let calls = (300_000 / once).clamp(1, 4096);
    let rounds = (500_000_000 / (calls * once)).clamp(5, 1_000);
    let mut times: Vec<Duration> = (0..rounds).map(|_| round(calls)).collect();
    times.sort();
    times[rounds / 10]
}

fn report(what: &str, time: Duration) {
    println!("{what:<64} {time:>12.3?}");
}

#[test]
#[ignore = "measures"]
fn figures_of_the_table() {
    for hosts in [10, 1_000, 30_000] {
        let mut table = table_of(hosts);
        // In an order that the processor does not foresee.
        let names: Vec<String> = (0..4096)
            .map(|number| (number * 7919) % hosts)
            .map(|number| match host(number) {
                HostPattern::Wildcard(suffix) => format!("www.{suffix}"),
                host => host.to_string(),
            })
            .collect();
        let find = |table: &Table, path: &str| {
            measure(|at| {
                black_box(table.find(Some(&names[at % names.len()]), black_box(path)));
            })
        };
        report(&format!("find, {hosts} hosts"), find(&table, "/api/v1/items/4711"));
        report(&format!("find nothing, {hosts} hosts"), find(&table, "/other"));
        report(&format!("clone, {hosts} hosts"), measure(|_| drop(black_box(table.clone()))));
        let change = measure(|at| {
            let old = table.clone();
            table.set_host(host(at * 31 % hosts), rules(3));
            drop(old);
        });
        report(&format!("clone, set_host, drop the old table, {hosts} hosts"), change);
    }
    for paths in [10, 1_000, 10_000] {
        let mut table = Table::default();
        table.set_host(HostPattern::Any, rules(paths));
        let requests: Vec<String> =
            (0..4096).map(|at| format!("/api/v{}/items/4711", (at * 7919) % paths)).collect();
        let time = measure(|at| {
            black_box(table.find(None, black_box(&requests[at % requests.len()])));
        });
        report(&format!("find, {paths} prefixes of one host"), time);
        report(
            &format!("set_host, {paths} prefixes"),
            measure(|_| drop(table.set_host(HostPattern::Any, rules(paths)))),
        );
    }
}

/// What tenants and clients can make a lookup cost.
#[test]
#[ignore = "measures"]
fn figures_of_attacks() {
    let find = |patterns: Vec<String>, path: &str| {
        let mut table = Table::default();
        let rules = patterns.iter().map(|text| (pattern(text), route("attack"))).collect();
        table.set_host(HostPattern::Any, rules);
        measure(|_| {
            black_box(table.find(None, black_box(path)));
        })
    };
    let long = "/a".repeat(4 << 10);
    let nested = (1..1_000).map(|depth| "/a".repeat(depth)).collect();
    report("1,000 nested prefixes, a path beside them", find(nested, "/a/a/b"));
    let nested = (1..1_000).map(|depth| "/a".repeat(depth)).collect();
    report("1,000 nested prefixes, a path of 8 KiB", find(nested, &long));
    let ordinary = (0..MOST_EXPRESSIONS).map(|at| format!("~ /service-{at}(/|$)(.*)")).collect();
    report("256 ordinary expressions, none matches", find(ordinary, "/other/path"));
    let scanning = (0..MOST_EXPRESSIONS).map(|at| format!("~ /.*x{at}$")).collect();
    report("256 expressions that read the path, 8 KiB", find(scanning, &long));
    report("one of them", find(vec!["~ /.*x{255}$".to_string()], &long));
    // Each octet leads to a state that the automaton has not been in.
    let mut state = 1_u32;
    let random: String = (0..8 << 10)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if state >> 31 == 0 { 'a' } else { 'b' }
        })
        .collect();
    let random = format!("/{random}");
    report(
        "an expression with many states, 8 KiB",
        find(vec!["~ /.*a[ab]{7}/".to_string()], &random),
    );
    for text in [
        "/(?:(?:[^x]?){200})*(y?)".to_string(),
        "(.*)".repeat(32),
        "(?:(.*))*(y?)".to_string(),
        "/(.?){300}".to_string(),
        "/((a|b|/)*|[ab/]*|.*)*(y?)".to_string(),
    ] {
        let regex = crate::path::PathRegex::new(&text).unwrap();
        let time = |path: &str| measure(|_| drop(black_box(regex.captures(path))));
        let what = format!("groups of {:.24} ({} octets), 8 KiB", text, regex.octets());
        report(&what, time(&random).max(time(&long)));
    }
}
