//! Runs jobs at the same time: each starts as soon as the jobs that it needs have succeeded and its lane has room.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// What jobs share, so that only some of them can run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    pub name: &'static str,
    /// How many of its jobs run at the same time.
    pub room: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub name: &'static str,
    /// Names of jobs. Those that are not scheduled are taken as done.
    pub needs: &'static [&'static str],
    pub lane: Lane,
}

/// What happens while jobs run.
#[derive(Debug, PartialEq, Eq)]
pub enum ScheduleEvent<T> {
    /// The job at this index has ended.
    Ended(usize, T),
    /// The job at this index can't run, because a job with this name that it needs has failed.
    Blocked(usize, &'static str),
    /// Nothing has ended for [`RUNNING_REPORT_INTERVAL`]. The indexes of running jobs, and for how long they have been.
    Running(Vec<(usize, Duration)>),
}

/// The time after which running jobs are reported.
const RUNNING_REPORT_INTERVAL: Duration = Duration::from_secs(60);

enum JobState {
    Waiting,
    Running(Instant),
    Succeeded,
    Failed,
}

/// Runs all jobs, those that come first preferred. `work` runs the job at an index, and says whether it succeeded.
/// `handle` gets the events one after the other.
pub fn run_jobs<T: Send>(
    jobs: &[Job],
    work: impl Fn(usize) -> Result<(T, bool)> + Sync,
    mut handle: impl FnMut(ScheduleEvent<T>) -> Result<()>,
) -> Result<()> {
    let mut states: Vec<JobState> = jobs.iter().map(|_| JobState::Waiting).collect();
    thread::scope(|scope| {
        let (sender, ended) = mpsc::channel();
        loop {
            for index in 0..jobs.len() {
                if let Some(need) = failed_need(jobs, &states, index) {
                    states[index] = JobState::Failed;
                    handle(ScheduleEvent::Blocked(index, need))?;
                } else if can_start(jobs, &states, index) {
                    states[index] = JobState::Running(Instant::now());
                    let (sender, work) = (sender.clone(), &work);
                    scope.spawn(move || {
                        // The receiver is gone only after an error, which is returned.
                        let _ = sender.send((index, work(index)));
                    });
                }
            }
            if list_running(&states).is_empty() {
                return Ok(());
            }
            match ended.recv_timeout(RUNNING_REPORT_INTERVAL) {
                Ok((index, result)) => {
                    let (outcome, succeeded) = result?;
                    states[index] = if succeeded { JobState::Succeeded } else { JobState::Failed };
                    handle(ScheduleEvent::Ended(index, outcome))?;
                }
                Err(RecvTimeoutError::Timeout) => {
                    handle(ScheduleEvent::Running(list_running(&states)))?
                }
                Err(RecvTimeoutError::Disconnected) => return Err(anyhow!("no job is left")),
            }
        }
    })
}

fn list_running(states: &[JobState]) -> Vec<(usize, Duration)> {
    let of = |(index, state): (usize, &JobState)| match state {
        JobState::Running(since) => Some((index, since.elapsed())),
        _ => None,
    };
    states.iter().enumerate().filter_map(of).collect()
}

/// The name of a failed job that a waiting one needs.
fn failed_need(jobs: &[Job], states: &[JobState], index: usize) -> Option<&'static str> {
    if !matches!(states[index], JobState::Waiting) {
        return None;
    }
    let failed = |name: &str| {
        jobs.iter()
            .zip(states)
            .any(|(job, state)| job.name == name && matches!(state, JobState::Failed))
    };
    jobs[index].needs.iter().copied().find(|need| failed(need))
}

fn can_start(jobs: &[Job], states: &[JobState], index: usize) -> bool {
    let job = &jobs[index];
    let done = |name: &str| {
        let mut others = jobs.iter().zip(states);
        others.all(|(other, state)| other.name != name || matches!(state, JobState::Succeeded))
    };
    let in_lane = jobs
        .iter()
        .zip(states)
        .filter(|(other, state)| other.lane == job.lane && matches!(state, JobState::Running(_)));
    matches!(states[index], JobState::Waiting)
        && job.needs.iter().all(|need| done(need))
        && in_lane.count() < job.lane.room
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const ONE: Lane = Lane { name: "one", room: 1 };
    const TWO: Lane = Lane { name: "two", room: 2 };

    fn job(name: &'static str, needs: &'static [&'static str], lane: Lane) -> Job {
        Job { name, needs, lane }
    }

    #[test]
    fn a_job_starts_after_those_that_it_needs() -> Result<()> {
        let jobs = [job("test", &["build"], TWO), job("build", &["elsewhere"], ONE)];
        let order = Mutex::new(Vec::new());
        let work = |index: usize| {
            order.lock().expect("no panic").push(jobs[index].name);
            Ok(((), true))
        };
        run_jobs(&jobs, work, |_| Ok(()))?;
        assert_eq!(order.into_inner()?, ["build", "test"]);
        Ok(())
    }

    #[test]
    fn what_needs_a_failed_job_does_not_run() -> Result<()> {
        let jobs = [
            job("build", &[], ONE),
            job("test", &["build"], ONE),
            job("report", &["test"], ONE),
            job("lint", &[], ONE),
        ];
        let mut events = Vec::new();
        let work = |index: usize| Ok((index, jobs[index].name != "build"));
        run_jobs(&jobs, work, |event| {
            events.push(event);
            Ok(())
        })?;
        assert_eq!(
            events,
            [
                ScheduleEvent::Ended(0, 0),
                ScheduleEvent::Blocked(1, "build"),
                ScheduleEvent::Blocked(2, "test"),
                ScheduleEvent::Ended(3, 3)
            ]
        );
        Ok(())
    }

    #[test]
    fn a_lane_has_room_for_some_jobs() -> Result<()> {
        let jobs: Vec<Job> = ["a", "b", "c", "d", "e"].map(|name| job(name, &[], TWO)).into();
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = |_| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // Until another one has started, too, or for long enough for a third.
            for _ in 0..20 {
                if most.load(Ordering::SeqCst) > 1 {
                    break;
                }
                thread::sleep(Duration::from_millis(50));
            }
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(((), true))
        };
        run_jobs(&jobs, work, |_| Ok(()))?;
        assert_eq!(most.into_inner(), 2);
        Ok(())
    }

    #[test]
    fn jobs_of_different_lanes_run_at_the_same_time() -> Result<()> {
        let jobs = [job("a", &[], ONE), job("b", &[], TWO)];
        let barrier = std::sync::Barrier::new(2);
        let work = |_| {
            // Would wait forever alone.
            barrier.wait();
            Ok(((), true))
        };
        run_jobs(&jobs, work, |_| Ok(()))
    }

    #[test]
    fn an_error_of_a_job_is_returned() {
        let jobs = [job("a", &[], ONE)];
        assert!(run_jobs(&jobs, |_| Err::<((), bool), _>(anyhow!("no disk")), |_| Ok(())).is_err());
    }
}
