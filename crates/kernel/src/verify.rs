//! Loads programs. The kernel's verification takes most of the time of an agent's start.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use aya::Ebpf;
use aya::programs::{Program, ProgramError};

/// How many programs are verified concurrently. Each takes 10 to 20 MB of kernel memory meanwhile,
/// which count as the agent's.
const MOST_AT_ONCE: usize = 4;

/// Loads every program, as many concurrently as there are CPUs, up to the limit.
pub fn load(ebpf: &mut Ebpf) -> Result<()> {
    let waiting = Mutex::new(Some(ebpf.programs_mut()));
    let lock = || waiting.lock().unwrap_or_else(PoisonError::into_inner);
    let next = || lock().as_mut().and_then(Iterator::next);
    let work = || {
        while let Some((name, program)) = next() {
            // Return the first error, and leave nothing for the other threads to do.
            load_one(program).with_context(|| format!("program {name}")).inspect_err(|_| {
                lock().take();
            })?;
        }
        anyhow::Ok(())
    };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let workers: Vec<_> =
            (0..processors.min(MOST_AT_ONCE)).map(|_| scope.spawn(work)).collect();
        let ended =
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(|it| resume_unwind(it)));
        // Wait for all threads before returning the error.
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

fn load_one(program: &mut Program) -> Result<()> {
    match program {
        Program::Xdp(program) => program.load(),
        Program::SchedClassifier(program) => program.load(),
        Program::CgroupSockAddr(program) => program.load(),
        Program::CgroupSock(program) => program.load(),
        _ => bail!("Millrace attaches no programs of its type"),
    }
    .map_err(refused)
}

fn refused(error: ProgramError) -> anyhow::Error {
    match error {
        ProgramError::LoadError { io_error, verifier_log } => {
            let log = verifier_log.to_string();
            let last: Vec<&str> = log.lines().rev().take(20).collect();
            let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
            anyhow!(io_error)
                .context(format!("the kernel's verifier refused it; the end of its log:\n{last}"))
        }
        other => anyhow!(other),
    }
}
