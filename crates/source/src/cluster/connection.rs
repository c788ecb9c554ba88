//! Opens the way to a cluster.

use anyhow::{Context, Result};
use kube::Client;
use kube::client::ClientBuilder;
use lb_process::ClientRequests;

use super::access::Access;
use super::servers::{Memory, Servers};
use super::transport::Transport;

/// Access to a cluster, whose server may not be reachable yet.
pub struct Connection {
    pub client: Client,
    /// The server, for people.
    pub description: String,
    pub transport: Transport,
}

impl Access {
    /// Reads the configuration. The server need not be there: a node that starts again must
    /// forward before its cluster can be reached.
    pub async fn open(&self, requests: &ClientRequests) -> Result<Connection> {
        // Files that are replaced meanwhile are read again.
        let fingerprint = self.read().await?.files.fingerprint();
        let opened = self.read().await?;
        let memory = self.state_directory.as_deref().map(Memory::in_directory);
        let servers = Servers::new(&opened.urls, &opened.config, memory)?;
        let (origin, url) = (opened.origin.clone(), &opened.config.cluster_url);
        let description = format!("{url} ({origin})");
        let counting = requests.counting(url.authority().map_or("", |at| at.as_str()));
        let namespace = opened.config.default_namespace.clone();
        let transport = Transport::new(self.clone(), opened, fingerprint, servers)
            .with_context(|| format!("{origin} can't be used"))?;
        let client = ClientBuilder::new(transport.clone(), namespace).with_layer(&counting).build();
        Ok(Connection { client, description, transport })
    }
}
