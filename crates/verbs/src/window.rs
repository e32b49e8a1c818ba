//! How full a send queue is.
//!
//! A slot of a send queue is free again when a completion of its request, or of a later *signaled*
//! one, was polled. So not every request needs a completion, but every so often one must be
//! signaled, or the queue fills up for ever. This keeps the count. It does not post, and knows
//! nothing of what the requests do.

/// The slots of one pair's send queue. Used under the lock of whoever posts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    slots: u32,
    /// Requests posted since the beginning, wrapping.
    posted: u32,
    /// Requests known to be completed. `posted - completed <= slots`.
    completed: u32,
    /// The last signaled request, counted as `posted` is after it.
    signaled: u32,
    /// At most so many requests in a row go unsignaled.
    stride: u32,
}

impl Window {
    /// An empty queue of `slots` requests, at least one of each quarter of which is signaled.
    #[must_use]
    pub const fn new(slots: u32) -> Self {
        let quarter = slots / 4;
        Self {
            slots,
            posted: 0,
            completed: 0,
            signaled: 0,
            stride: if quarter == 0 { 1 } else { quarter },
        }
    }

    /// How many requests can be posted.
    #[must_use]
    pub const fn room(&self) -> u32 {
        self.slots.saturating_sub(self.posted.wrapping_sub(self.completed))
    }

    /// Whether nothing is known to be under way.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.posted == self.completed
    }

    /// The next `count` requests: the number to put into the identifier of the last of them, and
    /// whether it must be signaled. Call [`posted`](Self::posted) once they are.
    #[must_use]
    pub const fn next(&self, count: u32) -> (u32, bool) {
        let last = self.posted.wrapping_add(count);
        (last, last.wrapping_sub(self.signaled) >= self.stride)
    }

    /// `count` requests were posted; the last of them was `signaled`.
    pub const fn posted(&mut self, count: u32, signaled: bool) {
        self.posted = self.posted.wrapping_add(count);
        if signaled {
            self.signaled = self.posted;
        }
    }

    /// A completion of the send queue carried the number `last`: everything up to it is done. A
    /// number that is not under way changes nothing.
    pub const fn completed(&mut self, last: u32) {
        let under_way = self.posted.wrapping_sub(self.completed);
        if last.wrapping_sub(self.completed) <= under_way {
            self.completed = last;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the pattern of batches: never more slots used than there are, and the queue never
    /// gets stuck.
    #[test]
    fn a_queue_whose_signaled_requests_complete_never_gets_stuck() {
        for slots in 1..40u32 {
            for batch in 1..=slots.min(5) {
                let mut w = Window::new(slots);
                w.posted = u32::MAX - 50;
                w.completed = w.posted;
                w.signaled = w.posted;
                // What the hardware would report: the numbers of signaled requests, in order.
                let mut reported = alloc::collections::VecDeque::new();
                for _ in 0..500 {
                    while w.room() < batch {
                        w.completed(
                            reported.pop_front().expect("stuck: full, and nothing signaled"),
                        );
                    }
                    let (last, signaled) = w.next(batch);
                    if signaled {
                        reported.push_back(last);
                    }
                    w.posted(batch, signaled);
                    assert!(w.posted.wrapping_sub(w.completed) <= slots);
                }
            }
        }
    }

    #[test]
    fn completions_of_unknown_numbers_change_nothing() {
        let mut w = Window::new(8);
        w.posted(3, true);
        w.completed(4);
        assert_eq!(w.room(), 5);
        w.completed(3);
        assert!(w.is_idle());
        w.completed(2);
        assert!(w.is_idle() && w.room() == 8);
    }
}
