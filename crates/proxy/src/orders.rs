//! What a client's connection is told to do by others than its driver.

use std::cell::{Cell, RefCell};
use std::task::Waker;

use crate::metrics::CutOff;

/// What the driver of a connection has to do.
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
    driver: RefCell<Option<Waker>>,
}

impl ConnectionOrders {
    pub(crate) fn give_order(&self, order: Order) {
        // What was cut off is not drained.
        if !matches!(self.current.get(), Some(Order::CutOff(_))) {
            self.current.set(Some(order));
        }
        if let Some(driver) = self.driver.borrow().as_ref() {
            driver.wake_by_ref();
        }
    }

    /// The current order. Later ones wake the task.
    pub(crate) fn poll_order(&self, waker: &Waker) -> Option<Order> {
        let mut driver = self.driver.borrow_mut();
        if !driver.as_ref().is_some_and(|driver| driver.will_wake(waker)) {
            *driver = Some(waker.clone());
        }
        self.current.get()
    }
}
