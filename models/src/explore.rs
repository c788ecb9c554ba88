//! Runs a model in every order in which its CPUs may run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use loom::model::Builder;
use loom::thread;

use crate::{Cpu, Fate, Node};

/// What a CPU does.
pub type Work = Box<dyn FnOnce(&Cpu) -> Fate + Send>;

/// The CPU that runs first, until another preempts it. loom stores only the last access to each
/// word. So a load by one CPU is lost when the CPU that is about to replace the word loads it, too,
/// and the order in which the replacement comes first is not tried. It is tried when that CPU runs
/// first.
#[derive(Clone, Copy, Debug)]
pub struct First(usize);

/// Limit for each first CPU; loom checks it every 20,000 orders. Only models with three CPUs that
/// write records reach it, and the one of an SNAT port that is reused.
const MOST_ORDERS: usize = 25_000;

/// Runs a model with `cpus` CPUs in every order that loom finds, with at most `preemptions`
/// preemptions, and prints the number of orders. `LOOM_MAX_PREEMPTIONS` and `LOOM_MAX_PERMUTATIONS`
/// set other limits.
pub fn explore(
    name: &str,
    cpus: usize,
    preemptions: usize,
    model: impl Fn(First) + Sync + Send + Copy + 'static,
) {
    let orders = Arc::new(AtomicU64::new(0));
    let mut bound = None;
    let began = Instant::now();
    for first in 0..cpus {
        let mut builder = Builder::new();
        bound = builder.preemption_bound.or(Some(preemptions));
        builder.preemption_bound = bound;
        builder.max_branches = 100_000;
        builder.max_permutations = builder.max_permutations.or(Some(MOST_ORDERS));
        builder.expect_explicit_explore = true;
        let counted = Arc::clone(&orders);
        builder.check(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            model(First(first));
        });
    }
    let orders = orders.load(Ordering::Relaxed);
    println!("{name}: {cpus} CPUs, {orders} orders, {bound:?} preemptions; {:?}", began.elapsed());
}

/// Runs `work` concurrently, one item per CPU. Returns the results in the same order.
pub fn in_parallel(first: First, node: &Arc<Node>, mut work: Vec<Work>) -> Vec<Fate> {
    loom::explore();
    work.rotate_left(first.0);
    let mut work = work.into_iter();
    let own = work.next().expect("a CPU");
    let others: Vec<_> = work
        .map(|work| {
            let node = Arc::clone(node);
            thread::spawn(move || work(&Cpu::new(node)))
        })
        .collect();
    let mut fates = vec![own(&Cpu::new(Arc::clone(node)))];
    fates.extend(others.into_iter().map(|other| other.join().expect("it does not panic")));
    fates.rotate_right(first.0);
    loom::stop_exploring();
    fates
}
