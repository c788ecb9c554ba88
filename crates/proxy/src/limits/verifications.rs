//! Verifies passwords on threads of its own. Anyone can send one, and each takes a processor for up to a second.
//!
//! Invariants:
//! - At most half of the processors verify, at low priority: requests come first.
//! - One source has at most two passwords verified at the same time.
//! - Ingresses take turns: one whose passwords cost much delays those of others by one of its own.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use lb_http::RouteOwner;
use lb_limits::ClientNetwork;
use tokio::sync::oneshot;

/// Running or waiting, in all, of one Ingress, and for one source.
const MOST: usize = 64;
const MOST_PER_OWNER: usize = 16;
const MOST_PER_SOURCE: usize = 8;
const MOST_RUNNING_PER_SOURCE: usize = 2;
/// Added to the threads' niceness: against a thread without it, a processor is shared about 1 to 9.
const NICENESS: i32 = 10;

/// The verifications of the process.
#[derive(Debug)]
pub(crate) struct Verifications(Arc<VerificationThreads>);

#[derive(Debug)]
struct VerificationThreads {
    most_threads: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// Of each Ingress; the one whose turn is next comes first. None is empty.
    waiting: VecDeque<(RouteOwner, VecDeque<Job>)>,
    running: Vec<(RouteOwner, ClientNetwork)>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

struct Job {
    source: ClientNetwork,
    run: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("source", &self.source).finish_non_exhaustive()
    }
}

impl Default for Verifications {
    fn default() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self::with_threads((processors / 2).max(1))
    }
}

impl Verifications {
    fn with_threads(most_threads: usize) -> Self {
        let (queue, changed) = (Mutex::default(), Condvar::new());
        Self(Arc::new(VerificationThreads { most_threads, queue, changed }))
    }

    /// Verifies on another thread. `None`: there are too many already. It counts until it has ended, even if the
    /// client does not wait for that.
    pub fn run<T: Send + 'static>(
        &self,
        source: IpAddr,
        owner: &RouteOwner,
        verify: impl FnOnce() -> T + Send + 'static,
    ) -> Option<oneshot::Receiver<T>> {
        let (result, waits) = oneshot::channel();
        let run = Box::new(move || {
            // The client may have gone.
            let _ = result.send(verify());
        });
        let mut queue = self.0.lock();
        if !queue.add(owner, Job { source: source.into(), run }) {
            return None;
        }
        if queue.idle == 0 && queue.threads < self.0.most_threads {
            let pool = Arc::clone(&self.0);
            let name = "proxy-password".to_owned();
            match thread::Builder::new().name(name).spawn(move || pool.work()) {
                Ok(_) => queue.threads += 1,
                Err(error) => {
                    tracing::warn!(%error, "cannot start a thread that verifies passwords");
                    if queue.threads == 0 {
                        queue.waiting.clear();
                        return None;
                    }
                }
            }
        }
        drop(queue);
        self.0.changed.notify_one();
        Some(waits)
    }
}

impl Drop for Verifications {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.is_closed = true;
        queue.waiting.clear();
        self.0.changed.notify_all();
    }
}

impl VerificationThreads {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        // SAFETY: it has no memory of ours. On Linux it concerns the calling thread only. A failure leaves the priority
        // as it is.
        unsafe { nix::libc::nice(NICENESS) };
        let mut queue = self.lock();
        while !queue.is_closed {
            let Some((owner, job)) = queue.next() else {
                queue.idle += 1;
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
                continue;
            };
            let entry = (owner, job.source);
            queue.running.push(entry.clone());
            drop(queue);
            // A panic refuses one client.
            let _ = catch_unwind(AssertUnwindSafe(job.run));
            queue = self.lock();
            queue.end(&entry);
            // One that its source kept waiting may be next.
            self.changed.notify_one();
        }
        queue.threads -= 1;
    }
}

impl Queue {
    /// Returns whether there was room.
    fn add(&mut self, owner: &RouteOwner, job: Job) -> bool {
        let jobs = self.waiting.iter().flat_map(|(_, jobs)| jobs);
        let of_source = |source: &ClientNetwork| *source == job.source;
        let by_source = jobs.filter(|waiting| of_source(&waiting.source)).count()
            + self.running.iter().filter(|(_, source)| of_source(source)).count();
        let position = self.waiting.iter().position(|(waiting, _)| waiting == owner);
        let by_owner = position.map_or(0, |at| self.waiting[at].1.len())
            + self.running.iter().filter(|(running, _)| running == owner).count();
        let all: usize = self.waiting.iter().map(|(_, jobs)| jobs.len()).sum();
        if all + self.running.len() >= MOST
            || by_owner >= MOST_PER_OWNER
            || by_source >= MOST_PER_SOURCE
        {
            return false;
        }
        match position {
            Some(at) => self.waiting[at].1.push_back(job),
            None => self.waiting.push_back((owner.clone(), VecDeque::from([job]))),
        }
        true
    }

    /// The Ingress then is the last one.
    fn next(&mut self) -> Option<(RouteOwner, Job)> {
        let running = &self.running;
        let may_run = |job: &Job| {
            let of_source = running.iter().filter(|(_, source)| *source == job.source);
            of_source.count() < MOST_RUNNING_PER_SOURCE
        };
        let mut turns = self.waiting.iter().enumerate();
        let (turn, at) = turns
            .find_map(|(turn, (_, jobs))| jobs.iter().position(may_run).map(|at| (turn, at)))?;
        let (owner, mut jobs) = self.waiting.remove(turn)?;
        let job = jobs.remove(at)?;
        if !jobs.is_empty() {
            self.waiting.push_back((owner.clone(), jobs));
        }
        Some((owner, job))
    }

    fn end(&mut self, entry: &(RouteOwner, ClientNetwork)) {
        if let Some(at) = self.running.iter().position(|running| running == entry) {
            self.running.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const ATTACKER: [u8; 4] = [192, 0, 2, 1];

    fn owner(name: &str) -> RouteOwner {
        RouteOwner { namespace: "shop".into(), name: name.into() }
    }

    /// Reports its name, and ends when it may.
    struct Work {
        began: mpsc::Sender<String>,
        may_end: Arc<Mutex<mpsc::Receiver<()>>>,
    }

    impl Work {
        fn new() -> (Self, mpsc::Receiver<String>, mpsc::Sender<()>) {
            let (began, has_begun) = mpsc::channel();
            let (end, may_end) = mpsc::channel();
            (Self { began, may_end: Arc::new(Mutex::new(may_end)) }, has_begun, end)
        }

        fn add(&self, to: &Verifications, source: [u8; 4], of: &str) -> bool {
            let (began, may_end, name) = (self.began.clone(), self.may_end.clone(), of.to_owned());
            let run = move || {
                let _ = began.send(name);
                let _ = may_end.lock().unwrap().recv();
            };
            to.run(source.into(), &owner(of), run).is_some()
        }
    }

    #[test]
    fn a_source_and_an_ingress_leave_room_for_others() {
        let verifications = Verifications::with_threads(1);
        let (work, _began, end) = Work::new();
        let admitted = |source: &dyn Fn(u8) -> [u8; 4], of: &str| {
            (0..100).filter(|&n| work.add(&verifications, source(n), of)).count()
        };
        assert_eq!(admitted(&|_| ATTACKER, "a"), MOST_PER_SOURCE);
        assert_eq!(admitted(&|n| [198, 51, 100, n], "a"), MOST_PER_OWNER - MOST_PER_SOURCE);
        assert_eq!(admitted(&|n| [198, 51, 100, n], "b"), MOST_PER_OWNER);
        // The shares come back.
        drop(end);
        while !work.add(&verifications, ATTACKER, "a") {
            thread::yield_now();
        }
    }

    #[test]
    fn a_source_has_two_verified_at_the_same_time() {
        let verifications = Verifications::with_threads(4);
        let (work, began, end) = Work::new();
        for _ in 0..4 {
            assert!(work.add(&verifications, ATTACKER, "attacked"));
        }
        assert!(work.add(&verifications, [192, 0, 2, 2], "other"));
        let first: Vec<String> = (0..3).map(|_| began.recv().unwrap()).collect();
        assert!(first.contains(&"other".to_owned()), "{first:?}");
        assert!(verifications.0.lock().running.len() == 3);
        for _ in 0..5 {
            end.send(()).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(began.recv().unwrap(), "attacked");
        }
    }

    #[test]
    fn ingresses_take_turns() {
        let verifications = Verifications::with_threads(1);
        let (work, began, end) = Work::new();
        for number in 0..5 {
            assert!(work.add(&verifications, [198, 51, 100, number], "a"));
        }
        assert_eq!(began.recv().unwrap(), "a");
        assert!(work.add(&verifications, [192, 0, 2, 2], "b"));
        let mut order = Vec::new();
        for _ in 0..2 {
            end.send(()).unwrap();
            order.push(began.recv().unwrap());
        }
        assert_eq!(order, ["a", "b"]);
        drop(end);
    }

    #[test]
    fn its_threads_are_few_and_nicer_than_workers() {
        fn niceness() -> i32 {
            // SAFETY: it has no memory of ours.
            unsafe { nix::libc::getpriority(nix::libc::PRIO_PROCESS, 0) }
        }
        let verifications = Verifications::with_threads(2);
        let results: Vec<_> = (0..10)
            .map(|n| verifications.run([198, 51, 100, n].into(), &owner("a"), niceness).unwrap())
            .collect();
        for result in results {
            let niceness_of_thread = result.blocking_recv().unwrap();
            assert_eq!(niceness_of_thread, (niceness() + NICENESS).min(19));
        }
        assert!(verifications.0.lock().threads <= 2);
    }

    #[test]
    fn a_panic_refuses_one_client() {
        let verifications = Verifications::with_threads(1);
        let run = |verify: fn() -> u8| verifications.run(ATTACKER.into(), &owner("a"), verify);
        assert!(run(|| panic!("wanted")).unwrap().blocking_recv().is_err());
        assert_eq!(run(|| 7).unwrap().blocking_recv(), Ok(7));
    }
}
