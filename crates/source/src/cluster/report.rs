//! Where the watches of all kinds report to: the agent, and those parts of the source whose work
//! depends on the objects themselves.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::nodes::Scope;
use super::servers::Servers;
use crate::Event;

#[derive(Clone)]
pub struct Report {
    events: mpsc::UnboundedSender<Event>,
    scope: Arc<Scope>,
    servers: Option<Arc<Servers>>,
}

impl Report {
    pub fn new(
        events: mpsc::UnboundedSender<Event>,
        scope: Arc<Scope>,
        servers: Option<Arc<Servers>>,
    ) -> Self {
        Self { events, scope, servers }
    }

    /// Reports events that happened at once.
    pub fn send(&self, events: impl IntoIterator<Item = Event>) {
        let mut events: Vec<Event> = events.into_iter().collect();
        for event in &events {
            self.scope.look_at(event);
            if let Some(servers) = &self.servers {
                servers.look_at(event);
            }
        }
        let event = if events.len() > 1 { Some(Event::Together(events)) } else { events.pop() };
        if let Some(event) = event {
            // The watches end when the agent does.
            let _ = self.events.send(event);
        }
    }

    pub async fn closed(&self) {
        self.events.closed().await;
    }
}
