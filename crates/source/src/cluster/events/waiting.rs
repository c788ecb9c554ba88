//! The queue of Events.

use std::collections::VecDeque;

use k8s_openapi::api::core::v1::Event;

/// Events in order of first occurrence, with their counts. Warnings come first, and have half of the room for themselves:
/// what thousands of addresses report when they move delays no problem.
pub struct Waiting {
    events: VecDeque<(Event, i32)>,
    most: usize,
}

impl Waiting {
    pub fn new(most: usize) -> Self {
        Self { events: VecDeque::new(), most }
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Adds an event, or counts it if it is waiting already; returns false if the queue is full.
    pub fn add(&mut self, event: Event) -> bool {
        let is_same = |waiting: &Event| {
            let of =
                |event: &Event| (event.metadata.namespace.clone(), event.metadata.name.clone());
            of(waiting) == of(&event)
        };
        if let Some((waiting, times)) = self.events.iter_mut().find(|(event, _)| is_same(event)) {
            waiting.last_timestamp = event.last_timestamp;
            *times = times.saturating_add(1);
            return true;
        }
        let most = if is_warning(&event) { self.most } else { self.most / 2 };
        if self.events.len() >= most {
            return false;
        }
        self.events.push_back((event, 1));
        true
    }

    pub fn pop(&mut self) -> Option<(Event, i32)> {
        let first = self.events.iter().position(|(event, _)| is_warning(event));
        self.events.remove(first.unwrap_or(0))
    }
}

fn is_warning(event: &Event) -> bool {
    event.type_.as_deref() == Some("Warning")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str) -> Event {
        let mut event = Event { type_: Some("Warning".to_owned()), ..Event::default() };
        event.metadata.name = Some(name.to_owned());
        event
    }

    fn news(name: &str) -> Event {
        Event { type_: Some("Normal".to_owned()), ..event(name) }
    }

    #[test]
    fn warnings_come_first_and_always_have_room() {
        let mut waiting = Waiting::new(4);
        let added = ["a", "b", "c"].map(|name| waiting.add(news(name)));
        assert_eq!(added, [true, true, false]);
        assert!(waiting.add(event("d")) && waiting.add(event("e")) && !waiting.add(event("f")));
        let popped = std::iter::from_fn(|| waiting.pop());
        let popped: Vec<_> = popped.filter_map(|(event, _)| event.metadata.name).collect();
        assert_eq!(popped, ["d", "e", "a", "b"]);
    }

    #[test]
    fn what_waits_already_is_counted_and_there_is_an_end_to_the_rest() {
        let mut waiting = Waiting::new(2);
        for (name, has_room) in [("a", true), ("b", true), ("a", true), ("c", false), ("b", true)] {
            assert_eq!(waiting.add(event(name)), has_room, "{name}");
        }
        assert!(waiting.add(event("a")));
        let popped = std::iter::from_fn(|| waiting.pop());
        let popped: Vec<_> = popped.map(|(event, times)| (event.metadata.name, times)).collect();
        assert_eq!(popped, [(Some("a".to_owned()), 3), (Some("b".to_owned()), 2)]);
        assert!(waiting.add(event("c")) && !waiting.is_empty());
    }
}
