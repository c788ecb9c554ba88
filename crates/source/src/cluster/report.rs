//! Where the watches of all kinds report to: the agent, and those parts of the source whose work
//! depends on the objects themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::sync::mpsc;

use super::nodes::Scope;
use super::servers::Servers;
use crate::Event;

#[derive(Clone)]
pub struct Report {
    events: mpsc::UnboundedSender<Event>,
    scope: Arc<Scope>,
    servers: Option<Arc<Servers>>,
    /// Of the watch of a single object: whether it was reported to be there.
    presence: Option<Arc<AtomicBool>>,
}

impl Report {
    pub fn new(
        events: mpsc::UnboundedSender<Event>,
        scope: Arc<Scope>,
        servers: Option<Arc<Servers>>,
    ) -> Self {
        Self { events, scope, servers, presence: None }
    }

    /// For the watch of a single object, with what says whether it was reported to be there.
    pub fn of_one(&self) -> (Self, Arc<AtomicBool>) {
        let presence = Arc::new(AtomicBool::new(false));
        (Self { presence: Some(Arc::clone(&presence)), ..self.clone() }, presence)
    }

    /// Reports events that happened at once.
    pub fn send(&self, events: impl IntoIterator<Item = Event>) {
        let mut events: Vec<Event> = events.into_iter().collect();
        for event in &events {
            self.scope.look_at(event);
            if let Some(servers) = &self.servers {
                servers.look_at(event);
            }
            match (&self.presence, event) {
                (Some(presence), Event::Applied(_)) => presence.store(true, Relaxed),
                (Some(presence), Event::Deleted(_)) => presence.store(false, Relaxed),
                _ => {}
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
