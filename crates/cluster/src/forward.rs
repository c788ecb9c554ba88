//! The API server on the machine's loopback interface: connections are forwarded into the cluster's network.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use anyhow::Result;
use tests::worlds::topology::Host;

use crate::network::{API_PORT, ROUTER};

/// Forwards to the API server in the background, as long as this process lives; returns the port of 127.0.0.1.
pub(crate) fn forward_api(router: &Host) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let router = router.clone();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let router = router.clone();
            thread::spawn(move || {
                if let Ok(server) = router.enter(|| Ok(TcpStream::connect((ROUTER[0], API_PORT))?))
                {
                    let _ = copy_both_ways(&client, &server);
                }
            });
        }
    });
    Ok(port)
}

fn copy_both_ways(client: &TcpStream, server: &TcpStream) -> io::Result<()> {
    let copy = |mut from: &TcpStream, mut to: &TcpStream| {
        let copied = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
        copied
    };
    thread::scope(|scope| {
        scope.spawn(|| copy(client, server));
        copy(server, client).map(drop)
    })
}
