//! An address of a load balancer that moves to another node while a client opens connections to it.

use std::thread;
use std::time::Duration;

use ::tests::worlds::announcers::{Announcers, IMPATIENT};
use anyhow::Result;

const NODES: usize = 3;

pub fn show_failover() -> Result<()> {
    println!("\nLaying out {NODES} nodes and a client on a switch, with one agent each ...");
    let mut world = Announcers::start(NODES, 0, 1)?;
    let address = world.addresses()[0].clone();
    let holder = world.wait_for_holders("each address has a holder", |_| true)?[0];
    println!(
        "node{holder} answers ARP for {address}, the address of a Service with a pod on each node."
    );
    let stream = world.stream(&address, IMPATIENT);
    thread::sleep(Duration::from_millis(500));
    println!(
        "A client opens connections to it, one after the other. node{holder} loses its power ..."
    );
    world.power_off(holder)?;
    let holders = world.wait_for_holders("another node takes over", |seen| seen[0] != holder)?;
    thread::sleep(Duration::from_millis(500));
    let outcome = stream.end()?;
    println!("node{} answers now:", holders[0]);
    println!("  {} connections, {} failed", outcome.succeeded, outcome.failed);
    println!("  longest time without a new one: {} ms", outcome.longest_gap.as_millis());
    println!("$ millrace announcements");
    print!("{}", world.list(holders[0], "table")?);
    Ok(())
}
