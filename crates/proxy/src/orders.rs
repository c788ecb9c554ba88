//! Orders to the task of a client's connection: to drain it, or to cut it off.

use std::cell::{Cell, RefCell};
use std::task::Waker;

use crate::metrics::CutOff;

/// What the task of a connection has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Close after the current requests.
    Drain,
    CutOff(CutOff),
}

/// The order for one connection. Its worker has the orders of all its connections.
#[derive(Default)]
pub(crate) struct ConnectionOrders {
    current: Cell<Option<Order>>,
    /// Wakes the connection's task.
    waker: RefCell<Option<Waker>>,
}

impl ConnectionOrders {
    pub(crate) fn give_order(&self, order: Order) {
        // What was cut off is not drained.
        if !matches!(self.current.get(), Some(Order::CutOff(_))) {
            self.current.set(Some(order));
        }
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// The current order. Later ones wake the task.
    pub(crate) fn poll_order(&self, waker: &Waker) -> Option<Order> {
        let mut known = self.waker.borrow_mut();
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
        self.current.get()
    }
}
