//! The ready queue: places of items, first in, first out.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

/// Room is made before, where it may fail; what finds none is not queued.
pub(super) struct ReadyQueue {
    /// As many as a power of two.
    places: Vec<u32>,
    head: usize,
    len: usize,
}

impl ReadyQueue {
    pub(super) const fn new() -> Self {
        Self { places: Vec::new(), head: 0, len: 0 }
    }

    /// Room for `all` altogether.
    pub(super) fn reserve(&mut self, all: usize) -> Result<(), TryReserveError> {
        if all <= self.places.len() {
            return Ok(());
        }
        let mut places = Vec::new();
        let room = all.next_power_of_two();
        places.try_reserve_exact(room)?;
        places.extend(self.iter());
        (self.head, self.len) = (0, places.len());
        places.resize(room, 0);
        self.places = places;
        Ok(())
    }

    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn place(&mut self, at: usize) -> Option<&mut u32> {
        let mask = self.places.len().wrapping_sub(1);
        self.places.get_mut(at & mask)
    }

    /// False: there is no room.
    #[inline(always)]
    pub(super) fn push_back(&mut self, index: u32) -> bool {
        if self.len >= self.places.len() {
            return false;
        }
        let place = self.head.wrapping_add(self.len) & (self.places.len() - 1);
        // SAFETY: there are places, and no more than this mask leaves.
        *unsafe { self.places.get_unchecked_mut(place) } = index;
        self.len += 1;
        true
    }

    /// False: there is no room.
    pub(super) fn push_front(&mut self, index: u32) -> bool {
        let room = self.len < self.places.len();
        if room {
            self.head = self.head.wrapping_sub(1);
            self.len += 1;
            self.place(self.head).into_iter().for_each(|place| *place = index);
        }
        room
    }

    #[inline(always)]
    pub(super) fn pop_front(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        let index = self.place(self.head).copied();
        self.head = self.head.wrapping_add(1);
        index
    }

    #[inline]
    pub(super) fn front(&self) -> Option<u32> {
        self.iter().next()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let mask = self.places.len().wrapping_sub(1);
        (0..self.len)
            .filter_map(move |i| self.places.get(self.head.wrapping_add(i) & mask).copied())
    }

    /// Takes out the one at that distance from the front.
    pub(super) fn remove(&mut self, at: usize) -> Option<u32> {
        if at >= self.len {
            return None;
        }
        let mut rest = self.head.wrapping_add(at);
        let index = self.place(rest).copied()?;
        while rest != self.head {
            let before = self.place(rest.wrapping_sub(1)).copied()?;
            *self.place(rest)? = before;
            rest = rest.wrapping_sub(1);
        }
        self.pop_front().map(|_| index)
    }

    /// Takes out one that is there once at most.
    pub(super) fn forget(&mut self, index: u32) {
        let at = self.iter().position(|i| i == index);
        if let Some(at) = at {
            self.remove(at);
        }
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Reserve(usize),
        PushBack(u32),
        PushFront(u32),
        PopFront,
        Remove(usize),
        Forget(u32),
        Clear,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            1 => (0..40usize).prop_map(Step::Reserve),
            8 => any::<u32>().prop_map(Step::PushBack),
            4 => any::<u32>().prop_map(Step::PushFront),
            6 => Just(Step::PopFront),
            2 => (0..20usize).prop_map(Step::Remove),
            1 => any::<u32>().prop_map(Step::Forget),
            1 => Just(Step::Clear),
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn a_queue_does_what_a_deque_does(steps in steps()) {
            let (mut queue, mut model, mut room) = (ReadyQueue::new(), VecDeque::new(), 0);
            for step in steps {
                let full = model.len() == room;
                match step {
                    Step::Reserve(all) => {
                        queue.reserve(all).unwrap();
                        room = if all > room { all.next_power_of_two() } else { room };
                    }
                    Step::PushBack(i) => {
                        prop_assert_eq!(queue.push_back(i), !full);
                        model.extend((!full).then_some(i));
                    }
                    Step::PushFront(i) => {
                        prop_assert_eq!(queue.push_front(i), !full);
                        (!full).then(|| model.push_front(i));
                    }
                    Step::PopFront => prop_assert_eq!(queue.pop_front(), model.pop_front()),
                    Step::Remove(at) => prop_assert_eq!(queue.remove(at), model.remove(at)),
                    Step::Forget(i) => {
                        let i = model.get(i as usize % 8).copied().unwrap_or(i);
                        queue.forget(i);
                        let at = model.iter().position(|m| *m == i);
                        at.map(|at| model.remove(at));
                    }
                    Step::Clear => {
                        queue.clear();
                        model.clear();
                    }
                }
                prop_assert!(queue.iter().eq(model.iter().copied()));
                prop_assert_eq!((queue.len(), queue.front()), (model.len(), model.front().copied()));
            }
        }
    }
}
