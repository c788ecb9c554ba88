//! The thread of a worker.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;

use crate::accept::serve_listener;
use crate::config::Config;
use crate::metrics::{Listener, WorkerCounters};
use crate::stop::Stop;
use crate::worker::{Worker, WorkerContext};

/// The sockets of one worker.
pub(crate) type Sockets = Vec<(Listener, TcpListener)>;

/// What a worker starts with.
pub(crate) struct Start {
    pub shared: Arc<WorkerContext>,
    pub counters: Arc<WorkerCounters>,
    pub config: watch::Receiver<Arc<Config>>,
    pub stop: watch::Receiver<Stop>,
    pub sockets: Sockets,
}

pub(crate) fn spawn_worker(number: usize, start: Start) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(format!("proxy-{number}")).spawn(move || {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build_local(LocalOptions::default());
        let result = runtime.and_then(|runtime| {
            let result = runtime.block_on(run(start));
            // Connections whose time is over end here.
            runtime.shutdown_background();
            result
        });
        if let Err(error) = result {
            tracing::error!(worker = number, %error, "worker failed");
        }
    })
}

async fn run(start: Start) -> io::Result<()> {
    let Start { shared, counters, mut config, mut stop, sockets } = start;
    let snapshot = config.borrow_and_update().clone();
    let mut seed = [0; 8];
    // Without random numbers, `WorkerContext` had failed.
    let _ = getrandom::fill(&mut seed);
    let worker = Worker::new(shared, counters, snapshot, u64::from_ne_bytes(seed));
    let mut tasks = vec![
        tokio::task::spawn_local(worker.clone().follow(config)),
        tokio::task::spawn_local(worker.clone().tend()),
    ];
    let mut accepting = Vec::new();
    for (kind, socket) in sockets {
        let listener = tokio::net::TcpListener::from_std(socket)?;
        accepting.push(tokio::task::spawn_local(serve_listener(worker.clone(), listener, kind)));
    }
    // An error means that the proxy was dropped.
    let _ = stop.wait_for(|stop| *stop != Stop::Serve).await;
    for task in accepting {
        task.abort();
        let _ = task.await;
    }
    worker.drain(stop).await;
    tasks.drain(..).for_each(|task| task.abort());
    Ok(())
}
