//! What a pair has done, readable by anybody at any time.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident)*) => {
        /// Counters of one pair. Each is written by one thread at a time, and never goes back.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        /// [`Counters`], read one after the other.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Snapshot {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// The present values.
            #[must_use]
            pub fn read(&self) -> Snapshot {
                Snapshot { $($name: self.$name.load(Relaxed),)* }
            }
        }

        impl core::ops::Sub for Snapshot {
            type Output = Self;
            fn sub(self, earlier: Self) -> Self {
                Self { $($name: self.$name.wrapping_sub(earlier.$name),)* }
            }
        }
    };
}

counters! {
    /// Work requests posted.
    works
    /// Calls of the fabric's that posted them.
    posts
    /// Messages sent: what takes one of the peer's receives.
    messages
    /// Of these, such as announce bytes.
    data_messages
    /// Of these, such as carry nothing but credits: consumption, or receives that were posted
    /// again.
    credit_messages
    /// Bytes of the connections that were posted.
    bytes_sent
    /// Messages received.
    messages_received
    /// Bytes of the connections that the peer announced.
    bytes_received
    /// Times that something was to be posted and the send queue was full.
    queue_full
    /// Times that something was to be posted and the peer had no receive for it.
    no_receive
}

/// Adds to a counter that only this thread writes.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}
