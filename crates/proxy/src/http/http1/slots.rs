//! Memory for the futures of requests, which are large: the allocator is slow with such sizes, and idle connections must
//! hold none.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Most that are kept for later requests.
const MOST_FREE: usize = 64;

/// The free slots of a worker.
pub(crate) struct FutureSlots<F>(RefCell<Vec<Pin<Box<Option<F>>>>>);

impl<F> Default for FutureSlots<F> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

/// A future in a slot. The slot becomes free when this is dropped.
pub(super) struct FutureSlot<F> {
    /// `None` only while it is dropped.
    future: Option<Pin<Box<Option<F>>>>,
    slots: Rc<FutureSlots<F>>,
}

impl<F> FutureSlots<F> {
    pub(super) fn put(self: &Rc<Self>, future: F) -> FutureSlot<F> {
        let free = self.0.borrow_mut().pop();
        let slot = match free {
            Some(mut slot) => {
                slot.set(Some(future));
                slot
            }
            None => Box::pin(Some(future)),
        };
        FutureSlot { future: Some(slot), slots: self.clone() }
    }
}

impl<F: Future> FutureSlot<F> {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<F::Output> {
        let future = self.future.as_mut().and_then(|slot| slot.as_mut().as_pin_mut());
        future.map_or(Poll::Pending, |future| future.poll(cx))
    }
}

impl<F> Drop for FutureSlot<F> {
    fn drop(&mut self) {
        let Some(mut slot) = self.future.take() else { return };
        // The future may drop what takes a slot.
        slot.set(None);
        let mut free = self.slots.0.borrow_mut();
        if free.len() < MOST_FREE {
            free.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Ready, ready};

    use super::*;

    #[test]
    fn slots_are_used_again_and_hold_no_future_meanwhile() {
        let slots = Rc::<FutureSlots<Ready<Rc<()>>>>::default();
        let value = Rc::new(());
        let all: Vec<_> = (0..100).map(|_| slots.put(ready(value.clone()))).collect();
        assert_eq!(Rc::strong_count(&value), 101);
        drop(all);
        assert_eq!((Rc::strong_count(&value), slots.0.borrow().len()), (1, MOST_FREE));
        let _used = slots.put(ready(value.clone()));
        assert_eq!((Rc::strong_count(&value), slots.0.borrow().len()), (2, MOST_FREE - 1));
    }
}
