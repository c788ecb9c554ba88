//! What each decision about a request costs: `cargo bench -p lb-http`, with a word to choose some of them.
//! Each figure is one of the fastest of many short rounds, since other processes may run.

use std::collections::hash_map::RandomState;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use lb_http::auth::{Check, Users, VerifiedCredentials};
use lb_http::balance::{Balancer, BalancerSettings, Pick};
use lb_http::policy::RateLimits;
use lb_http::rate::{DEFAULT_CAPACITY, Limiter};
use lb_http::table::MOST_EXPRESSIONS;
use lb_http::{
    Action, HostPattern, IngressTable, PathPattern, PathRegex, Route, RouteOwner, RoutePolicy,
    Upstream, UpstreamEndpoint,
};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test` does not measure.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-'));
    let all: [(&str, fn()); 5] = [
        ("table", measure_table),
        ("attacks", measure_attacks),
        ("balance", measure_balance),
        ("limits", measure_limits),
        ("passwords", measure_passwords),
    ];
    for (name, measure) in all {
        if wanted.is_none_or(|wanted| name.contains(wanted.as_str())) {
            measure();
        }
    }
}

/// Time of one call, which is given its number in the round.
fn time(mut call: impl FnMut(usize)) -> Duration {
    let mut round = |calls: usize| {
        let start = Instant::now();
        (0..calls).for_each(&mut call);
        start.elapsed() / calls as u32
    };
    let once = (0..5).map(|_| round(1)).min().unwrap_or_default().as_nanos().max(1) as usize;
    // Shorter than a slice of the scheduler.
    let calls = (300_000 / once).clamp(1, 4096);
    let rounds = (500_000_000 / (calls * once)).clamp(5, 1_000);
    let mut times: Vec<Duration> = (0..rounds).map(|_| round(calls)).collect();
    times.sort();
    times[rounds / 10]
}

fn report(what: &str, call: impl FnMut(usize)) {
    println!("{what:<64} {:>12.3?}", time(call));
}

/// An order of numbers below `count` that the processor does not foresee.
fn scatter(number: usize, count: usize) -> usize {
    number * 7919 % count
}

fn host(number: usize) -> HostPattern {
    let name = format!("team-{number}.example.org");
    let text = if number.is_multiple_of(10) { format!("*.{name}") } else { name };
    HostPattern::parse(&text).expect("a valid host")
}

fn route() -> Arc<Route> {
    Arc::new(Route {
        owner: RouteOwner { namespace: "test".into(), name: "bench".into() },
        action: Action::Respond { status: StatusCode::OK, reason: "test".into() },
        canaries: Vec::new(),
        policy: Arc::new(RoutePolicy::default()),
    })
}

fn rules(count: usize) -> Vec<(PathPattern, Arc<Route>)> {
    let route = route();
    let pattern = |number| PathPattern::Prefix(format!("/api/v{number}/items").into());
    (0..count).map(|number| (pattern(number), route.clone())).collect()
}

fn table_of_any_host(rules: Vec<(PathPattern, Arc<Route>)>) -> IngressTable {
    let mut table = IngressTable::default();
    table.set_host(HostPattern::Any, rules);
    table
}

/// Lookups and changes, with three rules for each host, and wildcards for every tenth.
fn measure_table() {
    for hosts in [10, 1_000, 30_000] {
        let mut table = IngressTable::default();
        (0..hosts).for_each(|number| drop(table.set_host(host(number), rules(3))));
        let name = |number| match host(scatter(number, hosts)) {
            HostPattern::Wildcard(suffix) => format!("www.{suffix}"),
            host => host.to_string(),
        };
        let names: Vec<String> = (0..4096).map(name).collect();
        for (what, path) in [("find", "/api/v1/items/4711"), ("find nothing", "/other")] {
            report(&format!("{what}, {hosts} hosts"), |at| {
                black_box(table.find(Some(&names[at % names.len()]), black_box(path)));
            });
        }
        report(&format!("clone, {hosts} hosts"), |_| drop(black_box(table.clone())));
        report(&format!("clone, set_host, drop the old table, {hosts} hosts"), |at| {
            let old = table.clone();
            table.set_host(host(at * 31 % hosts), rules(3));
            drop(old);
        });
    }
    for paths in [10, 1_000, 10_000] {
        let mut table = table_of_any_host(rules(paths));
        let path = |number| format!("/api/v{}/items/4711", scatter(number, paths));
        let requests: Vec<String> = (0..4096).map(path).collect();
        report(&format!("find, {paths} prefixes of one host"), |at| {
            black_box(table.find(None, black_box(&requests[at % requests.len()])));
        });
        report(&format!("set_host, {paths} prefixes"), |_| {
            drop(table.set_host(HostPattern::Any, rules(paths)));
        });
    }
}

/// What tenants and clients can make a lookup cost.
fn measure_attacks() {
    let find = |what: &str, patterns: Vec<PathPattern>, path: &str| {
        let route = route();
        let rules = patterns.into_iter().map(|pattern| (pattern, route.clone())).collect();
        let table = table_of_any_host(rules);
        report(what, |_| _ = black_box(table.find(None, black_box(path))));
    };
    let expressions = |make: &dyn Fn(usize) -> String, count| -> Vec<PathPattern> {
        (0..count).map(|at| PathPattern::regex(&make(at)).expect("a valid expression")).collect()
    };
    let long = "/a".repeat(4 << 10);
    let nested =
        || (1..1_000).map(|depth| PathPattern::Prefix("/a".repeat(depth).into())).collect();
    find("1,000 nested prefixes, a path beside them", nested(), "/a/a/b");
    find("1,000 nested prefixes, a path of 8 KiB", nested(), &long);
    let ordinary = expressions(&|at| format!("/service-{at}(/|$)(.*)"), MOST_EXPRESSIONS);
    find("256 ordinary expressions, none matches", ordinary, "/other/path");
    let reading = |count| expressions(&|at| format!("/.*x{at}$"), count);
    find("256 expressions that read the path, 8 KiB", reading(MOST_EXPRESSIONS), &long);
    find("one of them", reading(1), &long);
    // Each octet leads to a state that the automaton has not been in.
    let mut state = 1_u32;
    let mut letter = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if state >> 31 == 0 { 'a' } else { 'b' }
    };
    let random = format!("/{}", (0..8 << 10).map(&mut letter).collect::<String>());
    let states = expressions(&|_| "/.*a[ab]{7}/".to_owned(), 1);
    find("an expression with many states, 8 KiB", states, &random);
    for text in [
        "/(?:(?:[^x]?){200})*(y?)".to_owned(),
        "(.*)".repeat(32),
        "(?:(.*))*(y?)".to_owned(),
        "/(.?){300}".to_owned(),
        "/((a|b|/)*|[ab/]*|.*)*(y?)".to_owned(),
    ] {
        let regex = PathRegex::new(&text).expect("a valid expression");
        for path in [&random, &long] {
            let what = format!("groups of {text:.24} ({} octets), 8 KiB", regex.octets());
            report(&what, |_| drop(black_box(regex.captures(path))));
        }
    }
}

/// The choice of an endpoint, with its guard.
fn measure_balance() {
    for count in [3, 1_000_u16] {
        let address =
            |number: u16| SocketAddr::from(([10, 0, (number >> 8) as u8, number as u8], 8080));
        let endpoint = |number| UpstreamEndpoint { address: address(number), is_local: false };
        let upstream =
            Upstream { endpoints: (0..count).map(endpoint).collect(), draining: Vec::new() };
        let now = Instant::now();
        let balancer = Balancer::new(Arc::new(BalancerSettings::default()), &upstream, now);
        let mut random = 0_u64;
        for (what, by_hash) in [("least of two", false), ("by hash", true)] {
            report(&format!("{count} endpoints, {what}"), |_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let hash = by_hash.then_some(random);
                let pick = Pick { now, random: random >> 7, hash, affinity: None, tried: &[] };
                drop(black_box(balancer.choose(black_box(&pick))));
            });
        }
    }
}

/// The limits of rate and concurrency of many clients.
fn measure_limits() {
    let now = Instant::now();
    let limiter = Limiter::new(DEFAULT_CAPACITY, RandomState::new(), now);
    let owner = RouteOwner { namespace: "default".into(), name: "web".into() };
    let limits = RateLimits {
        concurrent: Some(100),
        requests_per_second: Some(1_000),
        burst_multiplier: 5,
        ..RateLimits::default()
    };
    for clients in [100, 50_000, 1_000_000_u32] {
        let mut number = 0;
        report(&format!("limits of {clients} clients"), |_| {
            number = (number + 1) % clients;
            let client = IpAddr::from(Ipv4Addr::from_bits(number));
            let now = now + Duration::from_millis(number.into());
            drop(black_box(limiter.admit(client, &owner, &limits, now)));
        });
    }
}

/// The most costly hashes that are accepted, with the longest password, and credentials that are known.
fn measure_passwords() {
    let password = "x".repeat(1024);
    let credentials = |password: &str| {
        let value = format!("Basic {}", STANDARD.encode(format!("ann:{password}")));
        HeaderMap::from_iter([(
            header::AUTHORIZATION,
            HeaderValue::from_str(&value).expect("ASCII"),
        )])
    };
    for (what, hash) in [
        ("SHA-512, 1,000,000 rounds", format!("$6$rounds=1000000$salt${}", ".".repeat(86))),
        ("bcrypt, cost 10", format!("$2y$10${}", ".".repeat(53))),
        ("bcrypt, cost 14", format!("$2y$14${}", ".".repeat(53))),
    ] {
        let (users, problems) = Users::parse(&format!("ann:{hash}"));
        assert!(problems.is_empty(), "{hash}");
        let (headers, verified) = (credentials(&password), VerifiedCredentials::new([1; 32]));
        report(&format!("a wrong password, {what}"), |_| {
            let Check::Costly(verification) = users.check(&headers, &verified) else {
                panic!("it is not costly: {what}");
            };
            assert_eq!(verification.run(&VerifiedCredentials::new([1; 32])), None);
        });
    }
    let (users, _) =
        Users::parse("ann:$2b$05$CCCCCCCCCCCCCCCCCCCCC.z6PrHbuSsMSSwIGFy1JGevQZf6CqJ1y");
    let (headers, verified) = (credentials("Hello world!"), VerifiedCredentials::new([1; 32]));
    if let Check::Costly(verification) = users.check(&headers, &verified) {
        verification.run(&verified);
    }
    report("a password that is known", |_| {
        assert!(matches!(users.check(&headers, &verified), Check::Allowed(_)));
    });
}
