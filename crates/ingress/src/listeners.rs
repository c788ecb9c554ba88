//! Where the listening sockets come from: systemd, a predecessor, a parent, or this process opens them.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{FromRawFd, OwnedFd};

use anyhow::{Context, Result, bail};

use super::handover::listener_of_fd;

/// The addresses to serve, and sockets that exist already.
#[derive(Debug, Default)]
pub struct ListenAddresses {
    pub http: Vec<SocketAddr>,
    pub https: Vec<SocketAddr>,
    pub inherited: Vec<TcpListener>,
}

impl ListenAddresses {
    /// Sockets that systemd passes replace the addresses of their protocol. Must be called once, before other files are
    /// opened by numbers.
    pub fn replaced_by_environment(self) -> Result<Self> {
        let passed = sd_notify::listen_fds_with_names().context("the sockets of systemd")?;
        let passed = passed
            .map(|(fd, name)| {
                // SAFETY: systemd opened it for this process, by $LISTEN_PID, and only this function takes it.
                (unsafe { OwnedFd::from_raw_fd(fd) }, name)
            })
            .collect();
        self.replaced_by(passed)
    }

    fn replaced_by(mut self, passed: Vec<(OwnedFd, String)>) -> Result<Self> {
        let (mut http, mut https) = (Vec::new(), Vec::new());
        for (fd, name) in passed {
            let socket = listener_of_fd(fd).with_context(|| format!("socket {name} of systemd"))?;
            let address = socket.local_addr()?;
            match name.as_str() {
                "http" => http.push(address),
                "https" => https.push(address),
                _ => bail!(
                    "socket {name:?} of systemd, {address}: its unit needs FileDescriptorName=http or \
                     FileDescriptorName=https"
                ),
            }
            self.inherited.push(socket);
        }
        for (addresses, passed) in [(&mut self.http, http), (&mut self.https, https)] {
            if !passed.is_empty() {
                *addresses = passed;
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> (TcpListener, SocketAddr) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    fn settings() -> ListenAddresses {
        let at = |port| vec![SocketAddr::from(([0, 0, 0, 0], port))];
        ListenAddresses { http: at(80), https: at(443), inherited: Vec::new() }
    }

    #[test]
    fn passed_sockets_replace_the_addresses_of_their_protocol() {
        let (socket, address) = socket();
        let listeners = settings().replaced_by(vec![(socket.into(), "https".to_owned())]).unwrap();
        assert_eq!(listeners.http, settings().http);
        assert_eq!(listeners.https, [address]);
        assert_eq!(listeners.inherited.len(), 1);
    }

    #[test]
    fn a_socket_of_another_name_is_an_error_that_says_how_to_fix_it() {
        let (socket, _) = socket();
        let error = settings().replaced_by(vec![(socket.into(), "unknown".to_owned())]);
        assert!(error.unwrap_err().to_string().contains("FileDescriptorName=http"));
    }
}
