//! GoBGP, ExaBGP and OpenBGPD on one host, each with two sessions to a node: on the link, where both sides accept only
//! packets that no router has forwarded (GTSM), and through a router. They wait for connections, want a password, and
//! take routes of both families.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::worlds::topology::{Host, Process};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Daemon {
    Gobgp = 1,
    Exabgp,
    Openbgpd,
}

/// The password of all.
pub const PASSWORD: &str = "correct-horse";

impl Daemon {
    pub const ALL: [Self; 3] = [Self::Gobgp, Self::Exabgp, Self::Openbgpd];

    /// Its address on the link to the node.
    pub fn near(self) -> String {
        format!("10.9.0.{}", self as u8)
    }

    /// Its address behind a router.
    pub fn far(self) -> String {
        format!("10.8.0.{}", self as u8)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Gobgp => "gobgp",
            Self::Exabgp => "exabgp",
            Self::Openbgpd => "openbgpd",
        }
    }

    pub fn autonomous_system(self) -> u32 {
        64_600 + self as u32
    }

    /// Starts it, with sessions to a node's address on the link, and to one behind a router.
    pub fn start(
        self,
        host: &Host,
        directory: &Path,
        node: [&str; 2],
        node_as: u32,
    ) -> Result<Running> {
        let file = |suffix: &str| directory.join(format!("{self:?}.{suffix}"));
        let (configuration, output) = (file("conf"), file("out"));
        fs::write(&configuration, self.configuration(&output, node, node_as))?;
        // OpenBGPD refuses a file with a password that others may read.
        fs::set_permissions(&configuration, Permissions::from_mode(0o600))?;
        let mut command = match self {
            Self::Gobgp => host.urgent_command("gobgpd"),
            Self::Exabgp => host.urgent_command("exabgp"),
            Self::Openbgpd => host.urgent_command("bgpd"),
        };
        match self {
            Self::Gobgp => {
                command.args(["--api-hosts", "127.0.0.1:50051", "--pprof-disable", "-f"])
            }
            Self::Exabgp => {
                command.envs([("exabgp.daemon.user", "root"), ("exabgp.api.cli", "false")])
            }
            Self::Openbgpd => {
                // It changes its root to this directory, which its service makes.
                fs::create_dir_all("/run/openbgpd")?;
                command.args(["-d", "-f"])
            }
        };
        let process = host.spawn(command.arg(configuration))?;
        Ok(Running { daemon: self, host: host.clone(), output, process })
    }

    fn configuration(self, output: &Path, [node, far_node]: [&str; 2], node_as: u32) -> String {
        let (near, far, own_as) = (self.near(), self.far(), self.autonomous_system());
        let output = output.display();
        match self {
            Self::Gobgp => {
                let family = |name: &str| {
                    format!(
                        "[[neighbors.afi-safis]]\n\
                         [neighbors.afi-safis.config]\nafi-safi-name = \"{name}-unicast\"\n\
                         [neighbors.afi-safis.mp-graceful-restart.config]\nenabled = true\n"
                    )
                };
                let neighbour = |node: &str, own: &str, distance: &str| {
                    format!(
                        "[[neighbors]]\n\
                         [neighbors.config]\nneighbor-address = \"{node}\"\npeer-as = {node_as}\n\
                         auth-password = \"{PASSWORD}\"\n\
                         [neighbors.timers.config]\nhold-time = 9\nkeepalive-interval = 3\n\
                         [neighbors.transport.config]\npassive-mode = true\nlocal-address = \"{own}\"\n\
                         {distance}\
                         [neighbors.graceful-restart.config]\nenabled = true\nrestart-time = 120\n{}{}",
                        family("ipv4"),
                        family("ipv6")
                    )
                };
                let on_link = "[neighbors.ttl-security.config]\nenabled = true\nttl-min = 255\n";
                let behind = "[neighbors.ebgp-multihop.config]\nenabled = true\nmultihop-ttl = 3\n";
                format!(
                    "[global.config]\nas = {own_as}\nrouter-id = \"{near}\"\n\
                     local-address-list = [\"{near}\", \"{far}\"]\n{}{}",
                    neighbour(node, &near, on_link),
                    neighbour(far_node, &far, behind)
                )
            }
            // The helper writes what it reads into the file. One that closes its output counts as ended.
            Self::Exabgp => {
                let neighbour = |node: &str, own: &str, distance: &str| {
                    format!(
                        "neighbor {node} {{\n router-id {near};\n local-address {own};\n \
                         local-as {own_as};\n peer-as {node_as};\n hold-time 9;\n \
                         md5-password \"{PASSWORD}\";\n passive true;\n listen 179;\n {distance}\
                         capability {{ graceful-restart 120; }}\n \
                         family {{ ipv4 unicast; ipv6 unicast; }}\n \
                         api {{ processes [ log ]; receive {{ parsed; update; }} }}\n}}\n"
                    )
                };
                format!(
                    "process log {{\n run /usr/bin/sed -u -n w{output};\n encoder json;\n}}\n{}{}",
                    neighbour(node, &near, "incoming-ttl 255;\n "),
                    neighbour(far_node, &far, "")
                )
            }
            Self::Openbgpd => {
                let neighbour = |node: &str, distance: &str| {
                    format!(
                        "neighbor {node} {{\n remote-as {node_as}\n passive\n holdtime 9\n \
                         ttl-security yes\n {distance}\
                         tcp md5sig password \"{PASSWORD}\"\n announce IPv4 unicast\n \
                         announce IPv6 unicast\n}}\n"
                    )
                };
                format!(
                    "AS {own_as}\nrouter-id {near}\nlisten on {near}\nlisten on {far}\n\
                     fib-update no\nsocket \"{output}\"\n{}{}allow from any\n",
                    neighbour(node, ""),
                    neighbour(far_node, "multihop 2\n ")
                )
            }
        }
    }

    /// Whether it keeps the routes of a peer that restarts.
    pub fn helps_restarts(self) -> bool {
        // ExaBGP only reports what it receives.
        self != Self::Exabgp
    }
}

/// A daemon that runs until this is dropped.
pub struct Running {
    pub daemon: Daemon,
    host: Host,
    /// ExaBGP writes what it receives into this file. It is OpenBGPD's socket.
    output: PathBuf,
    process: Process,
}

impl Running {
    /// What it has said.
    pub fn log(&self) -> String {
        self.process.output()
    }

    /// Its routes, as text.
    pub fn routes(&self) -> Result<String> {
        match self.daemon {
            Daemon::Gobgp => {
                let of = |family| self.host.run(["gobgp", "global", "rib", "-a", family]);
                Ok(of("ipv4")? + &of("ipv6")?)
            }
            Daemon::Exabgp => Ok(fs::read_to_string(&self.output)?),
            Daemon::Openbgpd => {
                let socket = self.output.as_os_str();
                self.host.run([
                    "bgpctl".as_ref(),
                    "-s".as_ref(),
                    socket,
                    "show".as_ref(),
                    "rib".as_ref(),
                ])
            }
        }
    }
}
